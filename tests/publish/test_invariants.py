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
    ("which", "rules", "ways", "centers"),
    [
        ("one", RULES, (1, 2, 3), "uniform"),
        ("pair", [], (1, 2), "tuned"),
        ("meeting", RULES, (1, 2), "uniform"),
        ("round", RULES[:1], (1, 2, 3), "uniform"),
        ("disjoint", RULES, (1, 2), "tuned"),
        ("all", [], (1, 2), "uniform"),
    ],
)
def test_fits_and_records_equal_exact_totals(which, rules, ways, centers) -> None:
    measurement, table = simulated(which, rules, ways, centers=centers)
    schema = measurement.plan.schema
    for fit in ("shrunk", "nonnegative", "none"):
        published = publish(measurement, fit)
        if fit != "none":
            check_consistent(published, measurement.plan.workload)
        for group in measurement.plan.workload.groups:
            fitted = published.table(group.attributes)
            # `Published.table` sets impossible cells to 0 and enforces the exact totals.  The
            # contrasts already satisfy both, so the table does not change.
            assembled = assemble_table(published.contrasts, published.positions(group.attributes))
            assert np.abs(assembled - fitted).max() <= 1e-7
            assert (fitted[schema.even_share(group.attributes) == 0.0] == 0.0).all()
            for names in CASES[which]:
                if set(names) <= set(group.attributes):
                    axes = [group.attributes.index(n) for n in names]
                    summed = fitted.sum(axis=tuple(a for a in range(fitted.ndim) if a not in axes))
                    order = [sorted(axes).index(k) for k in axes]
                    assert np.abs(summed.transpose(order) - table(names)).max() <= 1e-8
        for names in CASES[which]:
            assert (published.table(list(names)) == table(names)).all()
        if fit == "shrunk":
            integer_tables = publish(measurement, fit, integer=True)
            check_consistent(integer_tables, measurement.plan.workload)
            codes = integer_tables.records().to_numpy()
            assert (schema.possible_share(schema.names)[tuple(codes.T)] > 0.0).all()
            for names in CASES[which]:
                assert (integer_tables.table(list(names)) == table(names)).all()


def test_exact_totals_reduce_error_of_fitted_tables() -> None:
    errors = []
    for which in ("round", None):
        measurement, table = simulated(which or "all", pcost=2e-3)
        errors.append(
            sum(
                np.abs(measurement.publish().table(n) - table(n)).sum()
                for n in (["a", "d"], ["b", "d"], ["c", "d"])
            )
        )
    assert errors[0] < errors[1]


def test_simulated_records_and_errors_equal_exact_totals() -> None:
    measurement, table = simulated("meeting")
    records = synthetic(measurement.plan.schema, 7, seed=2)
    simulated_measurement = measure(measurement.plan, records, rehearsal=True)
    assert (simulated_measurement.marginal(["a", "b"]) == table("ab")).all()
    errors = measurement.publish().uncertainty(draws=3)
    number = next(
        i for i, g in enumerate(measurement.plan.workload.groups) if g.attributes == ("a", "b")
    )
    answers = errors.answers(number)
    assert answers["error"].abs().max() < 1e-9
    assert (errors.answers(number)["flag"][answers["answer"] > 20] == "publishable").all()


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
    workload = (
        Workload(schema)
        .add(("years", "age"), "affine")
        .add(("sex",))
        .add(("age", "sex"))
        .add((), "total")
    )
    chosen_plan = plan(workload, Budget(pcost=0.5), "querysmasher")
    table = np.zeros((5, 4, 2))
    table[0, 0, 0], table[1:, 1, 1] = 3_000_000, 5
    measurement = simulate_measurement(
        chosen_plan, marginals_of(schema, table), np.random.default_rng(1)
    )
    assert not is_open(measurement)
    write_tables(measurement.publish().uncertainty(draws=2), tmp_path / "tables.zip")
    with zipfile.ZipFile(tmp_path / "tables.zip") as archive:
        archive.extractall(tmp_path)
    integers = pd.read_csv(tmp_path / "integers.csv")
    # the exact totals have the integer 1, the grid 1 and no noise
    assert integers.iloc[-1, 1:].tolist() == [1, 1.0, 0.0]
    for number in range(len(workload.groups)):
        weights = np.loadtxt(
            tmp_path / f"{table_names(workload.groups)[number]}_weights.csv", delimiter=",", ndmin=2
        )
        answers = measurement.answers(number)
        np.testing.assert_allclose(
            weights @ (integers["integer"] * integers["grid"]), answers["answer"], atol=1e-6
        )
        np.testing.assert_allclose(
            np.sqrt(weights**2 @ integers["noise"] ** 2), answers["std"], rtol=1e-9, atol=1e-9
        )
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
