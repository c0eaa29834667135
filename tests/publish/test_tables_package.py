"""The package of published tables: plain text that says what the engine says, to those who do not have it."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from engine.errors import LimitExceeded, PlanError
from engine.ledger import Ledger
from engine.postprocess import QualityRule
from engine.privacy import Budget
from engine.publish import tables_package
from engine.publish import tables_package as linear_form
from engine.publish import verify as verify_tables
from engine.publish.tables_package import write_tables
from engine.publish.verify import verify_package
from engine.workload import Attribute, Schema, Workload
from tests.publish.measured import measured_on
from tests.publish.recomputed import from_files, in_r

SCHEMA = Schema(
    [
        Attribute.categorical("region", ["North, upper", "=South", "East|West"]),
        Attribute.of_size("age", 5),
        Attribute.of_size("one", 1),
        Attribute.categorical("sex", ["F", "M"]),
    ]
)
WORKLOAD = (
    Workload.all_ways(SCHEMA, (0, 1, 2), family="marginal")
    .add(("age", "region"), {"age": "prefix", "region": "marginal"})
    .add(("sex", "age", "region"), "marginal")
)
PLANS = [
    ("residualplanner", {}),
    ("querysmasher", {"centers": "uniform"}),
    ("residualplanner+", {}),
]


@functools.cache
def published(mechanism, workload, **options):
    found, _ = measured_on(workload, Budget(pcost=1.0), records=200, mechanism=mechanism, **options)
    return found.publish().uncertainty(draws=2)


@functools.cache
def written(made, most_weights):
    """The bytes of a package, which many tests read and some change."""
    with tempfile.TemporaryDirectory() as folder:
        return write_tables(made, Path(folder) / "tables.zip", rule=QualityRule(least_count=3.0)).read_bytes()


def packed(tmp_path, mechanism="residualplanner", workload=WORKLOAD, **options):
    made = published(mechanism, workload, **options)
    (tmp_path / "tables.zip").write_bytes(written(made, linear_form.MOST_WEIGHTS))
    with zipfile.ZipFile(tmp_path / "tables.zip") as archive:
        archive.extractall(tmp_path / "out")
    return made, tmp_path / "out"


def read(file):
    return pd.read_csv(file, keep_default_na=False, na_values=[""], dtype={"reason": str})


@pytest.mark.parametrize(("mechanism", "options"), PLANS)
def test_estimates_errors_and_covariances_follow_from_the_open_form_alone(mechanism, options, tmp_path):
    made, folder = packed(tmp_path, mechanism, **options)
    found = made.published.measurement
    rng = np.random.default_rng(0)
    for names in ([], ["age"], ["age", "region"], ["sex", "region", "age"], ["one", "sex"]):
        for query in (rng.normal(size=SCHEMA.sizes(names)), np.ones(SCHEMA.sizes(names))):
            value, variance = from_files(folder, names, query)
            said = found.answer(names, query)
            assert value == pytest.approx(said.answer, rel=1e-9, abs=1e-9)
            assert np.sqrt(variance) == pytest.approx(said.std, rel=1e-9)


def test_the_sum_of_two_cells_is_told_with_their_covariance(tmp_path):
    made, folder = packed(tmp_path)
    attributes = pd.read_csv(folder / "attributes.csv").set_index("id")["name"]
    apart = 0
    for row in pd.read_csv(folder / "tables.csv", keep_default_na=False).itertuples():
        names = [attributes[i] for i in row.attributes.split()]
        query = np.zeros(SCHEMA.sizes(names))
        query.flat[0] = query.flat[-1] = 1.0
        value, variance = from_files(folder, names, query)
        assert row.sum == pytest.approx(value, rel=1e-9, abs=1e-9)
        assert row.sum_std == pytest.approx(np.sqrt(variance), rel=1e-9)
        one = np.zeros_like(query)
        one.flat[0] = 1.0
        cells = made.published.measurement.plan.variance_of(names, one)
        apart += query.size > 1 and abs(variance / (2 * cells) - 1) > 0.01
    assert apart >= 3  # adding up their variances would be wrong


def test_crosstabs_open_in_spreadsheets_with_the_published_counts(tmp_path):
    made, folder = packed(tmp_path)
    pair = next(i for i, g in enumerate(WORKLOAD.groups) if g.attributes == ("region", "age"))
    file = folder / f"table{pair + 1}_crosstab.csv"
    assert file.read_bytes().startswith(b"\xef\xbb\xbf")
    rows = pd.read_csv(file)
    told = made.answers(pair, rule=QualityRule(least_count=3.0))["published"].to_numpy().reshape(3, 5)
    assert np.isnan(told).any()
    np.testing.assert_allclose(rows.iloc[:, 2:].to_numpy(dtype=float), told, rtol=1e-9)
    assert list(rows)[1:] == ["region \\ age", *(SCHEMA["age"].label(i) for i in range(5))]
    assert rows.iloc[:, 1].tolist() == ["North, upper", "'=South", "East|West"]
    assert set(rows.iloc[:, 0]) == {"REHEARSAL"}
    assert len(list(folder.glob("*_crosstab.csv"))) == sum(len(g.attributes) == 2 for g in WORKLOAD.groups) - 1


def test_the_registry_has_what_is_known_and_no_more(tmp_path):
    made, folder = packed(tmp_path)
    told, plan = json.loads((folder / "registry.json").read_text()), made.published.measurement.plan
    assert told["status"].startswith("REHEARSAL")
    assert told["privacy loss"]["rho"] == plan.pcost / 2
    assert told["privacy loss"]["epsilon by delta"]["1e-06"] == plan.budget.epsilon(1e-6)
    assert "epsilon" not in told["privacy loss"]
    assert told["privacy unit"] == "a person, 1 row"
    assert told["neighbours"] == plan.budget.neighbours
    assert told["data curator"] == told["release date"] == "not stated"
    pure = measured_on(WORKLOAD, Budget.pure(0.5, rows_per_person=3), records=50, mechanism="laplace")[0]
    found = tables_package.registry(pure)
    assert (found["flavor"], found["privacy loss"]["epsilon"]) == ("pure epsilon-DP", 0.5)
    assert found["privacy unit"] == "a person, all of up to 3 rows"


def test_the_script_in_r_says_the_same(tmp_path):
    in_r(packed(tmp_path)[1])


def test_every_query_has_its_row_with_codes_labels_and_both_numbers(tmp_path):
    made, folder = packed(tmp_path)
    first = 0
    for number, group in enumerate(WORKLOAD.groups):
        rows = read(folder / f"table{number + 1}.csv")
        assert rows["query_id"].tolist() == list(range(first, first + group.count))
        first += group.count
        told = made.answers(number, rule=QualityRule(least_count=3.0))
        for ours, theirs in (("answer", "estimate"), ("std", "std"), ("published", "published"), ("error", "error")):
            np.testing.assert_allclose(rows[theirs], told[ours], rtol=1e-9, atol=1e-9)
        assert rows["flag"].tolist() == told["flag"].tolist()
        assert set(rows["status"]) == {"REHEARSAL"}
    pair = next(i for i, g in enumerate(WORKLOAD.groups) if g.attributes == ("region", "age"))
    rows = read(folder / f"table{pair + 1}.csv")
    table = made.published.measurement.marginal(["region", "age"])
    np.testing.assert_allclose(rows["estimate"], table[rows["region_code"], rows["age_code"]], rtol=1e-9, atol=1e-9)
    assert set(rows["region_label"]) == {
        "North, upper",
        "'=South",
        "East|West",
    }  # no spreadsheet takes it for a formula


def test_the_metadata_names_every_column_of_every_file(tmp_path):
    _, folder = packed(tmp_path)
    told = json.loads((folder / "tables.csv-metadata.json").read_text())
    assert told["@context"] == "http://www.w3.org/ns/csvw"
    assert [t["url"] for t in told["tables"]] == [f"table{i + 1}.csv" for i in range(len(WORKLOAD.groups))]
    for table in told["tables"]:
        columns = table["tableSchema"]["columns"]
        rows = read(folder / table["url"])
        assert [c["titles"] for c in columns] == list(rows)
        assert len({c["name"] for c in columns}) == len(columns)
        for column in columns:
            values = rows[column["titles"]].dropna()
            if column["datatype"] == "integer":
                assert values.dtype.kind == "i"
            if column["datatype"] == "number":
                assert values.dtype.kind in "fi"


@pytest.mark.full
def test_a_validator_of_csv_on_the_web_finds_the_package_valid_and_a_broken_one_not(tmp_path):
    """The validator, which brings fifty megabytes, has an environment of its own."""
    _, folder = packed(tmp_path)
    venv.create(tmp_path / "apart", with_pip=True)
    python = tmp_path / "apart" / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", "csvw>=3.5"], check=True)
    code = "import sys; from csvw import CSVW; sys.exit(0 if CSVW(sys.argv[1], validate=True).is_valid else 3)"

    def found():
        told = [python, "-c", code, folder / "tables.csv-metadata.json"]
        return subprocess.run(told, capture_output=True, check=False).returncode

    assert found() == 0
    table = folder / "table1.csv"
    table.write_text(table.read_text().replace(",0,", ",none,", 1))
    assert found() == 3


def test_words_say_what_the_numbers_are_and_what_the_rule_does_not_do(tmp_path):
    made, folder = packed(tmp_path)
    words, book = (folder / "README.md").read_text(), (folder / "codebook.md").read_text()
    assert words.startswith("# REHEARSAL")
    assert made.published.measurement.plan.budget.promise in words
    for column in tables_package.COLUMNS:
        assert f"`{column}`" in words
    assert "Suppressed cells are in all sums" in words
    assert all(f"## {name}" in book for name in SCHEMA.names)
    assert "| 2 | East\\|West |" in book


JOINT = Schema([Attribute.of_size("age", 5), Attribute.of_size("years", 4)])
JOINT_PLANS = {
    "joint": ({}, Workload(JOINT).add(("years", "age"), "affine").add(("age",), "prefix").add((), "total")),
    "union": ({"centers": "tuned"}, Workload(JOINT).add(("age",), "prefix").add(("age", "years"), "marginal")),
}


@pytest.mark.parametrize("kind", JOINT_PLANS)
def test_answers_of_joint_plans_are_weighted_sums_of_the_integers(kind, tmp_path):
    options, workload = JOINT_PLANS[kind]
    made, folder = packed(tmp_path, "querysmasher", workload, **options)
    found, blocks = made.published.measurement, made.published.measurement.plan.blocks.values()
    assert any(b.union if kind == "union" else len(axes) > 1 for b in blocks for axes, _ in b.factors)
    integers = pd.read_csv(folder / "integers.csv")
    sums = pd.read_csv(folder / "tables.csv").set_index("table")
    for number, group in enumerate(workload.groups):
        weights = np.loadtxt(folder / f"table{number + 1}_weights.csv", delimiter=",", ndmin=2)
        told = found.answers(number)
        np.testing.assert_allclose(weights @ (integers["integer"] * integers["grid"]), told["answer"], atol=1e-8)
        np.testing.assert_allclose(np.sqrt(weights**2 @ integers["noise"] ** 2), told["std"], rtol=1e-9)
        ends = weights[0] + (weights[-1] if group.count > 1 else 0.0)
        assert np.sqrt(ends**2 @ integers["noise"] ** 2) == pytest.approx(sums["sum_std"].iloc[number], rel=1e-9)
    assert "measures attributes jointly" in (folder / "README.md").read_text()


def test_a_joint_plan_of_many_answers_says_where_its_integers_are(tmp_path, monkeypatch):
    monkeypatch.setattr(linear_form, "MOST_WEIGHTS", 10)
    _, folder = packed(tmp_path, "querysmasher", JOINT_PLANS["joint"][1])
    assert not (folder / "recompute.R").exists()
    assert "the package of the release has its integers" in (folder / "README.md").read_text()


def test_nothing_is_overwritten_and_what_is_too_long_is_refused(tmp_path, monkeypatch):
    made, _ = packed(tmp_path)
    with pytest.raises(PlanError, match="nothing is overwritten"):
        write_tables(made, tmp_path / "tables.zip")
    monkeypatch.setattr(tables_package, "MAX_TABLE_ROWS", 10)
    with pytest.raises(LimitExceeded, match="rows of text"):
        write_tables(made, tmp_path / "more.zip")
    assert [p.name for p in tmp_path.glob("*.zip")] == ["tables.zip"]


def test_write_tables_with_too_many_files_is_refused(tmp_path, monkeypatch):
    made, folder = packed(tmp_path)
    names = [file.name for file in folder.iterdir()]
    n_tables = sum(name.startswith("table") and name[5].isdecimal() for name in names)
    assert len(names) <= n_tables + tables_package.OTHER_FILES
    monkeypatch.setattr(tables_package, "MAX_MEMBERS", n_tables + tables_package.OTHER_FILES)
    write_tables(made, tmp_path / "most.zip")
    monkeypatch.setattr(tables_package, "MAX_MEMBERS", n_tables + tables_package.OTHER_FILES - 1)
    with pytest.raises(LimitExceeded, match="files"):
        write_tables(made, tmp_path / "more.zip")
    assert not (tmp_path / "more.zip").exists()


SMALL = Workload(JOINT).add(("age", "years"), "marginal")


@pytest.mark.parametrize("integer", [False, True])
def test_tables_are_made_again_from_their_integers_and_every_changed_file_is_noticed(integer, tmp_path):
    found, _ = measured_on(SMALL, Budget(pcost=1.0), records=60)
    made = found.publish(integer=integer).uncertainty(draws=2)
    path = write_tables(made, tmp_path / "tables.zip", rule=QualityRule(least_count=3.0), confidence=0.9)
    assert verify_package(path) == ()
    with zipfile.ZipFile(path) as archive:
        archive.extractall(tmp_path / "out")
    for file in sorted((tmp_path / "out").iterdir()) if not integer else []:
        kept = file.read_bytes()
        if file.suffix != ".npz":
            file.write_bytes(kept.replace(b"1", b"7") if b"1" in kept else kept + b"more")
            assert verify_package(tmp_path / "out"), file.name
        file.write_bytes(kept)
    readme = tmp_path / "out" / "README.md"
    kept = readme.read_bytes()
    readme.unlink()
    assert verify_package(tmp_path / "out") == ("README.md is not there",)
    readme.write_bytes(kept)
    (tmp_path / "out" / "more.txt").write_text("?")
    assert verify_package(tmp_path / "out") == ("more.txt is no part of the tables",)


def test_another_integer_makes_other_tables(tmp_path):
    _, folder = packed(tmp_path, workload=SMALL)
    with np.load(folder / "measurements.npz") as arrays:
        held = dict(arrays)
    name = next(n for n, array in held.items() if array.dtype == np.int64 and array.size > 1)
    held[name] = held[name] + np.eye(1, held[name].size, dtype=np.int64)[0] * 10**12
    np.savez(folder / "measurements.npz", **held)
    assert any("table1.csv" in problem for problem in verify_package(folder))


def test_a_ledger_that_never_paid_for_the_tables_says_so(tmp_path):
    _, _ = packed(tmp_path, workload=SMALL)
    Ledger.create(tmp_path / "office")
    assert "no spend" in verify_package(tmp_path / "tables.zip", ledger=tmp_path / "office")[0]
    assert "no signature" in verify_package(tmp_path / "tables.zip", public_key="00")[0]


def test_the_last_digits_of_another_machine_are_no_problem_and_whole_numbers_are_exact():
    assert verify_tables._near("0.1234567891", "0.1234567892")
    assert not verify_tables._near("1000000000000", "1000000000001")
    assert not verify_tables._near("0.1234", "0.1235")
    assert not verify_tables._near("cv", "count")
