"""Exact totals in published tables, records, exports and guarantees."""

from __future__ import annotations

import json
import sys
import zipfile

import numpy as np
import pandas as pd
import pytest

from demo_data.make_synthetic import synthetic
from engine.cli.main import main
from engine.ledger import Ledger
from engine.mechanisms import plan
from engine.postprocess import publish
from engine.postprocess.residual_estimates import assemble_table
from engine.postprocess.uncertainty import simulate_measurement
from engine.privacy import Budget
from engine.publish.release_package import write_package
from engine.publish.tables_package import is_open, table_names, write_tables
from engine.publish.verify import verify_package
from engine.release.measure import read_plan
from engine.workload import Attribute, Schema, Workload
from tests.publish.measured import SCHEMA, check_consistent, marginals_of, random_possible_tables
from tests.publish.recomputed import answer_from_files, check_r_script

measure = sys.modules["engine.release.measure"].measure
RULES = ["a < 3 and b > 2", "c == 0 and d == 1"]
CASES = {
    "one": ["a"],
    "pair": ["bc"],
    "meeting": ["ab", "bd"],
    "round": ["ab", "bc", "ac"],
    "disjoint": ["a", "d"],
    "all": [""],
}


def simulated(which, rules=(), ways=(1, 2), pcost=0.02, **options):
    """Return (simulated measurement, function from attribute names to their exact table).

    Parameters
    ----------
    which : key of `CASES`, which selects the exact totals.
    rules : conditions of impossible cells.
    ways : numbers of attributes of the marginals.
    """
    plain = SCHEMA.with_facts(impossible=rules)
    table = random_possible_tables(plain, 2_000, 3)
    schema = plain.with_facts(invariants=[(list(names), table(names)) for names in CASES[which]])
    chosen_plan = plan(
        Workload.all_ways(schema, ways, family="marginal"), Budget(pcost=pcost), **options
    )
    return simulate_measurement(chosen_plan, table, np.random.default_rng(1)), table


@pytest.mark.parametrize(
    ("case", "rules", "ways", "centers"),
    [
        ("one", RULES, (1, 2, 3), "uniform"),
        ("pair", [], (1, 2), "tuned"),
        ("meeting", RULES, (1, 2), "uniform"),
        ("round", RULES[:1], (1, 2, 3), "uniform"),
        ("disjoint", RULES, (1, 2), "tuned"),
        ("all", [], (1, 2), "uniform"),
    ],
    ids=list(CASES),
)
def test_fits_and_records_equal_exact_totals(case, rules, ways, centers) -> None:
    measurement, table = simulated(case, rules, ways, centers=centers)
    workload, schema = measurement.plan.workload, measurement.plan.schema
    exact_sets = [tuple(names) for names in CASES[case]]
    for fit in ("shrunk", "nonnegative", "none"):
        published = publish(measurement, fit)
        if fit != "none":
            check_consistent(published, workload)
        for names in exact_sets:
            assert (published.table(names) == table(names)).all()
        for group in workload.groups:
            fitted = published.table(group.attributes)
            # `Published.table` sets impossible cells to 0 and enforces the exact totals.  The
            # contrasts already satisfy both, so the table does not change.
            assembled = assemble_table(published.contrasts, published.positions(group.attributes))
            assert np.abs(assembled - fitted).max() <= 1e-7
            assert (fitted[schema.even_share(group.attributes) == 0.0] == 0.0).all()
            for names in exact_sets:
                if set(names) <= set(group.attributes):
                    # the subscripts of `einsum` are the names of the attributes
                    margin = np.einsum(f"{''.join(group.attributes)}->{''.join(names)}", fitted)
                    assert np.abs(margin - table(names)).max() <= 1e-8
    integer_tables = publish(measurement, "shrunk", integer=True)
    check_consistent(integer_tables, workload)
    codes = integer_tables.records().to_numpy()
    assert (schema.possible_share(schema.names)[tuple(codes.T)] > 0.0).all()
    for names in exact_sets:
        assert (integer_tables.table(names) == table(names)).all()


def test_exact_totals_reduce_error_of_fitted_tables() -> None:
    def error(case):
        measurement, table = simulated(case, pcost=2e-3)
        published = measurement.publish()
        pairs = (["a", "d"], ["b", "d"], ["c", "d"])  # not among the exact totals
        return sum(np.abs(published.table(names) - table(names)).sum() for names in pairs)

    assert error("round") < error("all")


def test_simulated_records_and_errors_equal_exact_totals() -> None:
    measurement, table = simulated("meeting")
    records = synthetic(measurement.plan.schema, 7, seed=2)
    rehearsal = measure(measurement.plan, records, rehearsal=True)
    assert (rehearsal.marginal(["a", "b"]) == table("ab")).all()
    errors = measurement.publish().uncertainty(draws=3)
    exact_group = [g.attributes for g in measurement.plan.workload.groups].index(("a", "b"))
    answers = errors.answers(exact_group)
    assert answers["error"].abs().max() < 1e-9
    assert (answers["flag"][answers["answer"] > 20] == "publishable").all()


def test_open_form_contains_exact_totals(tmp_path) -> None:
    schema = Schema(
        [
            Attribute.categorical("sex", ["f", "m"]),
            Attribute.of_size("age", 4),
            Attribute.of_size("one", 1),
        ]
    )
    schema = schema.with_facts(invariants=[(["sex"], [30, 20]), (["age"], [10, 20, 5, 15])])
    workload = (
        Workload(schema).add(("sex",)).add(("age", "sex"), {"age": "prefix", "sex": "marginal"})
    )
    for embedding in ("cells", "circle"):
        chosen_plan = plan(workload, Budget(pcost=0.5), "wff", embedding=embedding)
        assert embedding == "cells" or chosen_plan.split.centers
        measurement = measure(chosen_plan, synthetic(schema, 50, seed=1), rehearsal=True)
        write_tables(measurement.publish().uncertainty(draws=2), tmp_path / f"{embedding}.zip")
        with zipfile.ZipFile(tmp_path / f"{embedding}.zip") as archive:
            archive.extractall(tmp_path / embedding)
        for names in (["sex"], ["sex", "age"], []):
            query = np.arange(1.0, 1.0 + np.prod(schema.sizes(names), dtype=int)).reshape(
                schema.sizes(names)
            )
            value, variance = answer_from_files(tmp_path / embedding, names, query)
            assert value == pytest.approx(measurement.answer(names, query).answer, rel=1e-9)
            assert np.sqrt(variance) == pytest.approx(
                measurement.answer(names, query).std, rel=1e-9, abs=1e-12
            )


def test_weights_of_joint_plan_contain_exact_totals(tmp_path) -> None:
    sizes = {"age": 5, "years": 4, "sex": 2}
    schema = Schema([Attribute.of_size(name, n) for name, n in sizes.items()])
    schema = schema.with_facts(
        invariants=[(["sex"], [3_000_000, 20]), (["age"], [3_000_000, 5, 5, 5, 5])]
    )
    workload = Workload(schema).add(("years", "age"), "affine")
    workload = workload.add(("sex",)).add(("age", "sex")).add((), "total")
    chosen_plan = plan(workload, Budget(pcost=0.5), "querysmasher")
    counts = np.zeros((5, 4, 2))
    counts[0, 0, 0], counts[1:, 1, 1] = 3_000_000, 5
    measurement = simulate_measurement(
        chosen_plan, marginals_of(schema, counts), np.random.default_rng(1)
    )
    assert not is_open(measurement)
    write_tables(measurement.publish().uncertainty(draws=2), tmp_path / "tables.zip")
    with zipfile.ZipFile(tmp_path / "tables.zip") as archive:
        archive.extractall(tmp_path)
    integers = pd.read_csv(tmp_path / "integers.csv")
    exact_totals = integers.iloc[-1]
    assert exact_totals[["integer", "grid", "noise"]].tolist() == [1, 1.0, 0.0]
    for group, name in enumerate(table_names(workload.groups)):
        weights = np.loadtxt(tmp_path / f"{name}_weights.csv", delimiter=",", ndmin=2)
        answers = measurement.answers(group)
        recomputed = weights @ (integers["integer"] * integers["grid"])
        np.testing.assert_allclose(recomputed, answers["answer"], atol=1e-6)
        recomputed_std = np.sqrt(weights**2 @ integers["noise"] ** 2)
        np.testing.assert_allclose(recomputed_std, answers["std"], rtol=1e-9, atol=1e-9)
    assert "exact totals" in (tmp_path / "README.md").read_text()
    check_r_script(tmp_path)


def test_plan_with_exact_file_states_subspace_privacy(tmp_path, capsys) -> None:
    plain = Schema([Attribute.categorical("region", ["n", "s"]), Attribute.of_size("age", 3)])
    (tmp_path / "schema.json").write_text(plain.to_json(), encoding="utf-8")
    (tmp_path / "region.csv").write_text("region,people\nn,30\ns,20\n", encoding="utf-8")
    options = [
        "--schema",
        str(tmp_path / "schema.json"),
        "--ways",
        "1",
        "2",
        "--exact",
        str(tmp_path / "region.csv"),
    ]
    assert main(["plan", *options, "--pcost", "0.5", "--out", str(tmp_path / "plan.json")]) == 0
    assert "Subspace differential privacy: the exact totals on region" in capsys.readouterr().out
    schema = plain.with_facts(invariants=[(["region"], [30, 20])])
    assert read_plan(tmp_path / "plan.json").schema == schema


def test_certificate_report_and_status_state_subspace_privacy(tmp_path, capsys) -> None:
    schema = Schema(
        [Attribute.categorical("region", ["n", "s"]), Attribute.of_size("age", 3)]
    ).with_facts(invariants=[(["region"], [30, 20])])
    chosen_plan = plan(Workload.all_ways(schema, (1, 2)), Budget(pcost=0.5))
    book = Ledger.create(tmp_path / "office.ledger")
    book.add_dataset("survey", total=Budget(pcost=1.0))
    measurement = measure(chosen_plan, synthetic(schema, 0, seed=1), dataset="survey", ledger=book)
    place = write_package(measurement, tmp_path / "p.zip", receipt=book.find(measurement.key))
    assert verify_package(place) == ()
    folder = tmp_path / "p"
    with zipfile.ZipFile(place) as archive:
        archive.extractall(folder)
    report = (folder / "report.html").read_text(encoding="utf-8")
    text = (folder / "certificate.json").read_text(encoding="utf-8")
    for document in (report, text):
        assert "Subspace differential privacy" in document
        assert "whether you are in the records" not in document
        assert "someone who knows all other persons" not in document
    for name, words in (
        ("promise", chosen_plan.budget.promise),
        ("meaning", chosen_plan.budget.describe()),
        ("exact", []),
    ):
        (folder / "certificate.json").write_text(
            json.dumps(json.loads(text) | {name: words}), encoding="utf-8"
        )
        assert verify_package(folder) == (
            f"{name} in the certificate differs from what the plan and the measurements imply",
        )
    assert main(["budget", "status", "--ledger", str(tmp_path / "office.ledger")]) == 0
    assert "subspace differential privacy" in capsys.readouterr().out
