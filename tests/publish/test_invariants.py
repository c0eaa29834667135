"""Exact totals in what is published: kept by every fit and by whole records, and named where the guarantee is."""

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
from engine.publish.tables_package import is_open, write_tables
from engine.publish.verify import verify_package
from engine.release.measure import read_plan
from engine.workload import Attribute, Schema, Workload
from tests.publish.measured import SCHEMA, check, people
from tests.publish.recomputed import from_files, in_r

measure = sys.modules["engine.release.measure"].measure
RULES = ["a < 3 and b > 2", "c == 0 and d == 1"]
CASES = {
    "one": ["a"],
    "pair": ["bc"],
    "meeting": ["ab", "bd"],
    "round": ["ab", "bc", "ac"],
    "apart": ["a", "d"],
    "all": [""],
}


def stated(which, rules=(), ways=(1, 2), pcost=0.02, **options):
    """A rehearsal on records that keep the facts, and their tables."""
    plain = SCHEMA.with_facts(impossible=rules)
    whole = people(plain, 2_000, 3)(plain.names) * (plain.possible_share(plain.names) > 0.0)

    def table(names):
        kept = [plain.order[name] for name in names]
        summed = whole.sum(axis=tuple(a for a in range(whole.ndim) if a not in kept))
        return summed.transpose([sorted(kept).index(a) for a in kept])

    schema = plain.with_facts(invariants=[(list(names), table(names)) for names in CASES[which]])
    made = plan(Workload.all_ways(schema, ways, family="marginal"), Budget(pcost=pcost), **options)
    return simulate_measurement(made, table, np.random.default_rng(1)), table


@pytest.mark.parametrize(
    ("which", "rules", "ways", "centers"),
    [
        ("one", RULES, (1, 2, 3), "uniform"),
        ("pair", [], (1, 2), "tuned"),
        ("meeting", RULES, (1, 2), "uniform"),
        ("round", RULES[:1], (1, 2, 3), "uniform"),
        ("apart", RULES, (1, 2), "tuned"),
        ("all", [], (1, 2), "uniform"),
    ],
)
def test_fits_and_records_keep_exact_totals(which, rules, ways, centers) -> None:
    found, table = stated(which, rules, ways, centers=centers)
    schema = found.plan.schema
    for fit in ("shrunk", "nonnegative", "none"):
        published = publish(found, fit)
        if fit != "none":
            check(published, found.plan.workload)
        for group in found.plan.workload.groups:
            made = published.table(group.attributes)
            # not by cutting: what the tables are made of has nothing there, and the same totals
            bare = assemble_table(published.contrasts, published.positions(group.attributes))
            assert np.abs(bare - made).max() <= 1e-7
            assert (made[schema.even_share(group.attributes) == 0.0] == 0.0).all()
            for names in CASES[which]:
                if set(names) <= set(group.attributes):
                    kept = [group.attributes.index(n) for n in names]
                    summed = made.sum(axis=tuple(a for a in range(made.ndim) if a not in kept))
                    order = [sorted(kept).index(k) for k in kept]
                    assert np.abs(summed.transpose(order) - table(names)).max() <= 1e-8
        for names in CASES[which]:
            assert (published.table(list(names)) == table(names)).all()
        if fit == "shrunk":
            whole = publish(found, fit, integer=True)
            check(whole, found.plan.workload)
            codes = whole.records().to_numpy()
            assert (schema.possible_share(schema.names)[tuple(codes.T)] > 0.0).all()
            for names in CASES[which]:
                assert (whole.table(list(names)) == table(names)).all()


def test_fitted_tables_come_nearer_to_the_truth_beside_exact_totals() -> None:
    errors = []
    for which in ("round", None):
        found, table = stated(which or "all", pcost=2e-3)
        errors.append(
            sum(np.abs(found.publish().table(n) - table(n)).sum() for n in (["a", "d"], ["b", "d"], ["c", "d"]))
        )
    assert errors[0] < errors[1]


def test_simulated_records_and_errors_keep_exact_totals() -> None:
    found, table = stated("meeting")
    records = synthetic(found.plan.schema, 7, seed=2)
    again = measure(found.plan, records, rehearsal=True)
    assert (again.marginal(["a", "b"]) == table("ab")).all()
    errors = found.publish().uncertainty(draws=3)
    number = next(i for i, g in enumerate(found.plan.workload.groups) if g.attributes == ("a", "b"))
    told = errors.answers(number)
    assert told["error"].abs().max() < 1e-9
    assert (errors.answers(number)["flag"][told["answer"] > 20] == "publishable").all()


def test_the_open_form_holds_exact_totals(tmp_path) -> None:
    schema = Schema(
        [Attribute.categorical("sex", ["f", "m"]), Attribute.of_size("age", 4), Attribute.of_size("one", 1)]
    )
    schema = schema.with_facts(invariants=[(["sex"], [30, 20]), (["age"], [10, 20, 5, 15])])
    workload = Workload(schema).add(("sex",)).add(("age", "sex"), {"age": "prefix", "sex": "marginal"})
    for embedding in ("cells", "circle"):
        made = plan(workload, Budget(pcost=0.5), "wff", embedding=embedding)
        assert embedding == "cells" or made.split.centers
        found = measure(made, synthetic(schema, 50, seed=1), rehearsal=True)
        write_tables(found.publish().uncertainty(draws=2), tmp_path / f"{embedding}.zip")
        with zipfile.ZipFile(tmp_path / f"{embedding}.zip") as archive:
            archive.extractall(tmp_path / embedding)
        for names in (["sex"], ["sex", "age"], []):
            query = np.arange(1.0, 1.0 + np.prod(schema.sizes(names), dtype=int)).reshape(schema.sizes(names))
            value, variance = from_files(tmp_path / embedding, names, query)
            assert value == pytest.approx(found.answer(names, query).answer, rel=1e-9)
            assert np.sqrt(variance) == pytest.approx(found.answer(names, query).std, rel=1e-9, abs=1e-12)


def test_weighted_sums_of_released_integers_hold_exact_totals(tmp_path) -> None:
    sizes = {"age": 5, "years": 4, "sex": 2}
    schema = Schema([Attribute.of_size(name, n) for name, n in sizes.items()])
    schema = schema.with_facts(invariants=[(["sex"], [3_000_000, 20]), (["age"], [3_000_000, 5, 5, 5, 5])])
    workload = Workload(schema).add(("years", "age"), "affine").add(("sex",)).add(("age", "sex")).add((), "total")
    made = plan(workload, Budget(pcost=0.5), "querysmasher")
    table = np.zeros((5, 4, 2))
    table[0, 0, 0], table[1:, 1, 1] = 3_000_000, 5

    def exact(names):
        summed = table.sum(axis=tuple(a for a, name in enumerate(schema.names) if name not in names))
        kept = [name for name in schema.names if name in names]
        return summed.transpose([kept.index(name) for name in names])

    found = simulate_measurement(made, exact, np.random.default_rng(1))
    assert not is_open(found)
    write_tables(found.publish().uncertainty(draws=2), tmp_path / "tables.zip")
    with zipfile.ZipFile(tmp_path / "tables.zip") as archive:
        archive.extractall(tmp_path)
    integers = pd.read_csv(tmp_path / "integers.csv")
    assert integers.iloc[-1, 1:].tolist() == [1, 1.0, 0.0]
    for number in range(len(workload.groups)):
        weights = np.loadtxt(tmp_path / f"table{number + 1}_weights.csv", delimiter=",", ndmin=2)
        told = found.answers(number)
        np.testing.assert_allclose(weights @ (integers["integer"] * integers["grid"]), told["answer"], atol=1e-6)
        np.testing.assert_allclose(np.sqrt(weights**2 @ integers["noise"] ** 2), told["std"], rtol=1e-9, atol=1e-9)
    assert "stands for the exact totals" in (tmp_path / "README.md").read_text()
    in_r(tmp_path)


def test_certificate_report_and_check_name_the_weaker_guarantee(tmp_path, capsys) -> None:
    plain = Schema([Attribute.categorical("region", ["n", "s"]), Attribute.of_size("age", 3)])
    (tmp_path / "schema.json").write_text(plain.to_json(), encoding="utf-8")
    (tmp_path / "region.csv").write_text("region,people\nn,30\ns,20\n", encoding="utf-8")
    given = ["--schema", str(tmp_path / "schema.json"), "--ways", "1", "2", "--exact", str(tmp_path / "region.csv")]
    assert main(["plan", *given, "--pcost", "0.5", "--out", str(tmp_path / "plan.json")]) == 0
    assert "Subspace differential privacy: the exact totals on region" in capsys.readouterr().out
    schema = plain.with_facts(invariants=[(["region"], [30, 20])])
    made = plan(Workload.all_ways(schema, (1, 2)), Budget(pcost=0.5))
    assert read_plan(tmp_path / "plan.json").schema == schema
    book = Ledger.create(tmp_path / "office.ledger")
    book.add_dataset("survey", total=Budget(pcost=1.0))
    found = measure(made, synthetic(schema, 0, seed=1), dataset="survey", ledger=book)
    place = write_package(found, tmp_path / "p.zip", receipt=book.find(found.key), ledger=book)
    assert verify_package(place) == ()
    folder = tmp_path / "p"
    with zipfile.ZipFile(place) as archive:
        archive.extractall(folder)
    report = (folder / "report.html").read_text(encoding="utf-8")
    text = (folder / "certificate.json").read_text(encoding="utf-8")
    for written in (report, text):
        assert "Subspace differential privacy" in written
        assert "whether you are in the records" not in written
        assert "whoever knows everybody else guesses right whether" not in written
    (folder / "signature.json").unlink()
    for name, words in (("promise", made.budget.promise), ("meaning", made.budget.describe()), ("exact", [])):
        (folder / "certificate.json").write_text(json.dumps(json.loads(text) | {name: words}), encoding="utf-8")
        assert verify_package(folder) == (f"the certificate's {name} is not what plan and integers give",)
    assert main(["budget", "status", "--ledger", str(tmp_path / "office.ledger")]) == 0
    assert "subspace differential privacy beside the exact totals on region" in capsys.readouterr().out
