"""Package of published tables: files, metadata and verification."""

from __future__ import annotations

import functools
import json
import re
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
from engine.postprocess import QualityRule, publish, uncertainty
from engine.privacy import Budget
from engine.publish import tables_package
from engine.publish import tables_package as linear_form
from engine.publish import verify as verify_tables
from engine.publish.release_package import write_package
from engine.publish.tables_package import (
    sums_text,
    table_names,
    tables_files,
    write_tables,
    write_workbook,
)
from engine.publish.verify import _same, verify_package
from engine.workload import Attribute, Schema, Workload
from tests.publish.measured import measured_on
from tests.publish.recomputed import answer_from_files, check_r_script

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
def published_errors(mechanism, workload, **options):
    measurement, _ = measured_on(
        workload, Budget(pcost=1.0), records=200, mechanism=mechanism, **options
    )
    return measurement.publish().uncertainty(draws=2)


@functools.cache
def package_bytes(errors, most_weights):
    """Return the bytes of a package of published tables with their ``errors``.

    ``most_weights`` must be the current value of `linear_form.MAX_WEIGHTS`.  The package depends
    on it, so it must be a part of the key of the cache.
    """
    with tempfile.TemporaryDirectory() as folder:
        return write_tables(
            errors, Path(folder) / "tables.zip", rule=QualityRule(least_count=3.0)
        ).read_bytes()


def packed(tmp_path, mechanism="residualplanner", workload=WORKLOAD, **options):
    errors = published_errors(mechanism, workload, **options)
    (tmp_path / "tables.zip").write_bytes(package_bytes(errors, linear_form.MAX_WEIGHTS))
    with zipfile.ZipFile(tmp_path / "tables.zip") as archive:
        archive.extractall(tmp_path / "out")
    return errors, tmp_path / "out"


def read(file):
    return pd.read_csv(file, keep_default_na=False, na_values=[""], dtype={"reason": str})


def group_of(attributes):
    """Return the index of the first group on ``attributes``."""
    return [group.attributes for group in WORKLOAD.groups].index(attributes)


@pytest.mark.parametrize(("mechanism", "options"), PLANS)
def test_open_form_reproduces_estimates_and_errors(mechanism, options, tmp_path):
    errors, folder = packed(tmp_path, mechanism, **options)
    measurement = errors.published.measurement
    rng = np.random.default_rng(0)
    for names in ([], ["age"], ["age", "region"], ["sex", "region", "age"], ["one", "sex"]):
        for query in (rng.normal(size=SCHEMA.sizes(names)), np.ones(SCHEMA.sizes(names))):
            value, variance = answer_from_files(folder, names, query)
            answer = measurement.answer(names, query)
            assert value == pytest.approx(answer.answer, rel=1e-9, abs=1e-9)
            assert np.sqrt(variance) == pytest.approx(answer.std, rel=1e-9)


def test_open_form_leaves_out_unmeasured_tables(tmp_path):
    workload = Workload(SCHEMA).add(("region", "age"), weight=0.0).add("age").add("region")
    _, folder = packed(tmp_path, workload=workload)
    assert np.isinf(pd.read_csv(folder / "table1_region_age.csv")["std"]).all()
    assert list(pd.read_csv(folder / "tables.csv")["table"]) == ["table2_age", "table3_region"]
    assert not verify_package(tmp_path / "tables.zip")
    check_r_script(folder)


def test_sum_of_two_cells_includes_covariance(tmp_path):
    errors, folder = packed(tmp_path)
    result = errors.published.measurement.plan
    attributes = pd.read_csv(folder / "attributes.csv").set_index("id")["name"]
    correlated_tables = 0
    for row in pd.read_csv(folder / "tables.csv", keep_default_na=False).itertuples():
        names = [attributes[i] for i in row.attributes.split()]
        first_cell, first_and_last = (np.zeros(SCHEMA.sizes(names)) for _ in range(2))
        first_cell.flat[0] = 1.0
        first_and_last.flat[0] = first_and_last.flat[-1] = 1.0
        value, variance = answer_from_files(folder, names, first_and_last)
        assert row.check_first_plus_last == pytest.approx(value, rel=1e-9, abs=1e-9)
        assert row.check_first_plus_last_std == pytest.approx(np.sqrt(variance), rel=1e-9)
        if first_cell.size > 1:
            sum_of_variances = 2 * result.variance_of(names, first_cell)
            correlated_tables += abs(variance / sum_of_variances - 1) > 0.01
    assert correlated_tables >= 3  # for these tables the sum of the variances would be wrong


def test_crosstabs_contain_the_published_counts(tmp_path):
    errors, folder = packed(tmp_path)
    group = group_of(("region", "age"))
    path = folder / f"{table_names(WORKLOAD.groups)[group]}_crosstab.csv"
    assert path.read_bytes().startswith(b"\xef\xbb\xbf")  # spreadsheets recognise UTF-8 by it
    answers = errors.answers(group, rule=QualityRule(least_count=3.0))
    expected = answers["published"].to_numpy().reshape(3, 5)
    assert np.isnan(expected).any()
    mark, corner, *ages = pd.read_csv(path).columns
    assert corner == "region \\ age"
    assert ages == [SCHEMA["age"].label(code) for code in range(5)]
    rows = pd.read_csv(path)
    np.testing.assert_allclose(rows[ages].to_numpy(dtype=float), expected, atol=1e-6)
    assert rows[corner].tolist() == ["North, upper", "'=South", "East|West"]
    assert set(rows[mark]) == {"REHEARSAL"}
    # the pairs of attributes, but not the group of prefixes
    pairs = sum(len(g.attributes) == 2 for g in WORKLOAD.groups) - 1
    assert len(list(folder.glob("*_crosstab.csv"))) == pairs


def test_registry_states_only_available_facts(tmp_path):
    errors, folder = packed(tmp_path)
    result = errors.published.measurement.plan
    registry = json.loads((folder / "registry.json").read_text())
    assert registry["status"].startswith("REHEARSAL")
    privacy_loss = registry["privacy loss"]
    assert privacy_loss["rho"] == result.pcost / 2
    assert privacy_loss["epsilon by delta"]["1e-06"] == result.budget.epsilon(1e-6)
    assert "epsilon" not in privacy_loss
    assert registry["privacy unit"] == "a person, 1 row"
    assert registry["neighbours"] == result.budget.neighbours
    assert registry["data curator"] == registry["release date"] == "not stated"
    pure_budget = Budget.pure(0.5, rows_per_person=3)
    pure_measurement, _ = measured_on(WORKLOAD, pure_budget, records=50, mechanism="laplace")
    pure_registry = tables_package.registry(pure_measurement)
    assert pure_registry["flavor"] == "pure epsilon-DP"
    assert pure_registry["privacy loss"]["epsilon"] == 0.5
    assert pure_registry["privacy unit"] == "a person, all of up to 3 rows"


def test_recompute_script_in_r_agrees(tmp_path):
    _, folder = packed(tmp_path)
    check_r_script(folder)


def test_tables_have_one_complete_row_per_query(tmp_path):
    errors, folder = packed(tmp_path)
    columns = {"answer": "estimate", "std": "std", "published": "published", "error": "error"}
    names, first_id = table_names(WORKLOAD.groups), 0
    for i, group in enumerate(WORKLOAD.groups):
        rows = read(folder / f"{names[i]}.csv")
        assert rows["query_id"].tolist() == list(range(first_id, first_id + group.count))
        first_id += group.count
        answers = errors.answers(i, rule=QualityRule(least_count=3.0))
        for name, column in columns.items():
            np.testing.assert_allclose(rows[column], answers[name], atol=1e-6)
        assert rows["flag"].tolist() == answers["flag"].tolist()
        assert set(rows["status"]) == {"REHEARSAL"}
    rows = read(folder / f"{names[group_of(('region', 'age'))]}.csv")
    table = errors.published.measurement.marginal(["region", "age"])
    expected = table[rows["region_code"], rows["age_code"]]
    np.testing.assert_allclose(rows["estimate"], expected, atol=1e-6)
    assert set(rows["region_label"]) == {"North, upper", "'=South", "East|West"}


def test_csvw_metadata_describes_every_column(tmp_path):
    _, folder = packed(tmp_path)
    metadata = json.loads((folder / "tables.csv-metadata.json").read_text())
    assert metadata["@context"] == "http://www.w3.org/ns/csvw"
    files = [table["url"] for table in metadata["tables"]]
    assert files == [f"{name}.csv" for name in table_names(WORKLOAD.groups)]
    kinds = {"integer": "i", "number": "fi"}  # kinds of NumPy types
    for table in metadata["tables"]:
        columns = table["tableSchema"]["columns"]
        rows = read(folder / table["url"])
        assert [column["titles"] for column in columns] == list(rows)
        assert len({column["name"] for column in columns}) == len(columns)
        for column in columns:
            if column["datatype"] in kinds:
                values = rows[column["titles"]].dropna()
                assert values.dtype.kind in kinds[column["datatype"]]


@pytest.mark.full
def test_csvw_validator_accepts_package_and_rejects_damage(tmp_path):
    """The validator needs fifty megabytes, so it is installed in a temporary environment."""
    _, folder = packed(tmp_path)
    venv.create(tmp_path / "validator", with_pip=True)
    python = tmp_path / "validator" / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", "csvw>=3.5"], check=True)
    code = (
        "import sys; from csvw import CSVW; sys.exit(0 if CSVW(sys.argv[1], validate=True).is_valid"
        " else 3)"
    )

    def validate():
        command = [python, "-c", code, folder / "tables.csv-metadata.json"]
        return subprocess.run(command, capture_output=True, check=False).returncode

    assert validate() == 0
    table = folder / f"{table_names(WORKLOAD.groups)[0]}.csv"
    table.write_text(table.read_text().replace(",0,", ",none,", 1))
    assert validate() == 3


def test_readme_and_codebook_describe_columns_and_labels(tmp_path):
    errors, folder = packed(tmp_path)
    readme, codebook = ((folder / name).read_text() for name in ("README.md", "codebook.md"))
    assert readme.startswith("# REHEARSAL")
    assert errors.published.measurement.plan.budget.promise in readme
    for column in tables_package.COLUMNS:
        assert f"`{column}`" in readme
    assert "Suppressed cells are in all sums" in readme
    assert all(f"## {name}" in codebook for name in SCHEMA.names)
    assert "| 2 | East\\|West |" in codebook


JOINT = Schema([Attribute.of_size("age", 5), Attribute.of_size("years", 4)])
JOINT_PLANS = {
    "joint": (
        {},
        Workload(JOINT).add(("years", "age"), "affine").add(("age",), "prefix").add((), "total"),
    ),
    "union": (
        {"centers": "tuned"},
        Workload(JOINT).add(("age",), "prefix").add(("age", "years"), "marginal"),
    ),
}


@pytest.mark.parametrize("kind", JOINT_PLANS)
def test_joint_plan_answers_are_weighted_integer_sums(kind, tmp_path):
    options, workload = JOINT_PLANS[kind]
    errors, folder = packed(tmp_path, "querysmasher", workload, **options)
    measurement = errors.published.measurement
    blocks = measurement.plan.blocks.values()
    if kind == "union":
        assert any(block.union for block in blocks)
    else:
        assert any(len(axes) > 1 for block in blocks for axes, _ in block.factors)
    integers = pd.read_csv(folder / "integers.csv")
    measured, noise = integers["integer"] * integers["grid"], integers["noise"]
    sums_std = pd.read_csv(folder / "tables.csv")["check_first_plus_last_std"]
    for i, name in enumerate(table_names(workload.groups)):
        weights = np.loadtxt(folder / f"{name}_weights.csv", delimiter=",", ndmin=2)
        answers = measurement.answers(i)
        np.testing.assert_allclose(weights @ measured, answers["answer"], atol=1e-8)
        np.testing.assert_allclose(np.sqrt(weights**2 @ noise**2), answers["std"], rtol=1e-9)
        # tables.csv has the standard error of the sum of the first and the last answer.
        sum_weights = weights[0] + weights[-1] if len(weights) > 1 else weights[0]
        assert np.sqrt(sum_weights**2 @ noise**2) == pytest.approx(sums_std[i], rel=1e-9)
    assert "measures attributes jointly" in (folder / "README.md").read_text()


def test_readme_of_large_joint_plan_names_integers(tmp_path, monkeypatch):
    monkeypatch.setattr(linear_form, "MAX_WEIGHTS", 10)
    _, workload = JOINT_PLANS["joint"]
    _, folder = packed(tmp_path, "querysmasher", workload)
    assert not (folder / "recompute.R").exists()
    assert "the package of the release has its integers" in (folder / "README.md").read_text()


def test_write_tables_refuses_existing_file_and_many_rows(tmp_path, monkeypatch):
    errors, _ = packed(tmp_path)
    with pytest.raises(PlanError, match="not overwritten"):
        write_tables(errors, tmp_path / "tables.zip")
    monkeypatch.setattr(tables_package, "MAX_TABLE_ROWS", 10)
    with pytest.raises(LimitExceeded, match="rows"):
        write_tables(errors, tmp_path / "more.zip")
    assert [p.name for p in tmp_path.glob("*.zip")] == ["tables.zip"]


def test_write_tables_with_too_many_files_is_refused(tmp_path, monkeypatch):
    errors, folder = packed(tmp_path)
    names = [file.name for file in folder.iterdir()]
    table_files = [name for name in names if re.match(r"table\d", name)]
    expected_files = len(table_files) + tables_package.OTHER_FILES
    assert len(names) <= expected_files
    monkeypatch.setattr(tables_package, "MAX_MEMBERS", expected_files)
    write_tables(errors, tmp_path / "most.zip")
    monkeypatch.setattr(tables_package, "MAX_MEMBERS", expected_files - 1)
    with pytest.raises(LimitExceeded, match="files"):
        write_tables(errors, tmp_path / "more.zip")
    assert not (tmp_path / "more.zip").exists()


SMALL = Workload(JOINT).add(("age", "years"), "marginal")


@pytest.mark.parametrize("integer", [False, True], ids=["real", "integer"])
def test_verify_tables_detects_every_changed_file(integer, tmp_path):
    measurement, _ = measured_on(SMALL, Budget(pcost=1.0), records=60)
    errors = measurement.publish(integer=integer).uncertainty(draws=2)
    path, folder = tmp_path / "tables.zip", tmp_path / "unpacked"
    write_tables(errors, path, rule=QualityRule(least_count=3.0), confidence=0.9)
    assert verify_package(path) == ()
    with zipfile.ZipFile(path) as archive:
        archive.extractall(folder)
    # if the published counts are integers, only a missing and an added file are tested
    if not integer:
        for file in sorted(file for file in folder.iterdir() if file.suffix != ".npz"):
            content = file.read_bytes()
            changed = content.replace(b"1", b"7") if b"1" in content else content + b"more"
            file.write_bytes(changed)
            assert verify_package(folder), file.name
            file.write_bytes(content)
    readme = folder / "README.md"
    content = readme.read_bytes()
    readme.unlink()
    assert verify_package(folder) == ("README.md is missing",)
    readme.write_bytes(content)
    (folder / "more.txt").write_text("?")
    assert verify_package(folder) == ("more.txt is not a file of a tables package",)


def test_verify_tables_detects_changed_integer(tmp_path):
    _, folder = packed(tmp_path, workload=SMALL)
    with np.load(folder / "measurements.npz") as file:
        arrays = dict(file)
    integers = next(a for a in arrays.values() if a.dtype == np.int64 and a.size > 1)
    integers.flat[0] += 10**12
    np.savez(folder / "measurements.npz", **arrays)
    assert any("table1_" in problem for problem in verify_package(folder))


def test_verify_tables_reports_unrelated_ledger_or_key(tmp_path):
    packed(tmp_path, workload=SMALL)
    Ledger.create(tmp_path / "office")
    assert "no spend" in verify_package(tmp_path / "tables.zip", ledger=tmp_path / "office")[0]
    assert "not signed" in verify_package(tmp_path / "tables.zip", public_key="00")[0]


def test_verify_numbers_tolerates_rounding_except_integers():
    assert verify_tables._near("0.1234567891", "0.1234567892")
    assert not verify_tables._near("1000000000000", "1000000000001")
    assert not verify_tables._near("0.1234", "0.1235")
    assert not verify_tables._near("cv", "count")


def test_verify_names_unsupported_format(tmp_path):
    _, folder = packed(tmp_path, workload=SMALL)
    how = json.loads((folder / "how.json").read_text())
    (folder / "how.json").write_text(json.dumps(how | {"format": "tables/3"}))
    (problem,) = verify_package(folder)
    assert "tables/3" in problem
    assert "tables/4" in problem


AGES = Schema([Attribute.numeric("age", [0, 10, 20, 30], integer=True), SCHEMA["sex"]])
BY_AGE = Workload(AGES).add("age").add(("age", "sex")).add("age", "range")


def test_bins_of_integers_are_written_as_on_screen(tmp_path):
    _, folder = packed(tmp_path, workload=BY_AGE)
    labels = ["0 to 9", "10 to 19", "20 to 30"]
    cells = read(folder / "table1_age.csv")
    assert list(cells["age_label"]) == labels
    assert list(cells["query"]) == [f"age in {label}" for label in labels]
    crosstab = read(folder / "table2_age_sex_crosstab.csv")
    assert list(crosstab["age \\ sex"]) == labels
    assert "age in 10 to 19" in set(read(folder / "table3_age.csv")["query"])
    assert "| 0 | 0 to 9 |" in (folder / "codebook.md").read_text()
    assert verify_package(tmp_path / "tables.zip") == ()


def test_numbers_in_csv_have_no_superfluous_digits(tmp_path):
    measurement, _ = measured_on(SMALL, Budget(pcost=1.0), records=60)
    errors = measurement.publish(integer=True).uncertainty(draws=2)
    path, folder = tmp_path / "tables.zip", tmp_path / "unpacked"
    write_tables(errors, path, rule=QualityRule())
    assert verify_package(path) == ()
    with zipfile.ZipFile(path) as archive:
        archive.extractall(folder)
    tables = [*folder.glob("table[0-9]*.csv"), folder / "totals.csv"]
    assert any("crosstab" in file.name for file in tables)
    for file in tables:
        text = file.read_text(encoding="utf-8-sig")
        assert not re.search(r"\.0\b", text), file.name
        assert not re.search(r"\d\.\d{7,}\b", text), file.name
    first_table = next(file for file in tables if file.name.startswith("table1"))
    assert (read(first_table)["published"].dropna() % 1 == 0).all()


@pytest.mark.parametrize(
    ("text", "other_text", "same"),
    [
        ("0.1234565", "0.1234565", True),
        ("0.123456", "0.123457", True),
        ("0.123456", "0.12346", False),
        ("45", "45.0", True),
        ("45", "46", False),
    ],
)
def test_rounded_numbers_may_differ_by_one_unit(text, other_text, same, tmp_path):
    """A number between two roundings is rounded differently on another machine."""
    (tmp_path / "a.csv").write_text(f"x\n{text}\n")
    (tmp_path / "b.csv").write_text(f"x\n{other_text}\n")
    assert _same(tmp_path / "a.csv", tmp_path / "b.csv") == same


@pytest.mark.parametrize("fit", ["none", "nonnegative"])
def test_texts_are_true_for_the_method_of_fitting(tmp_path, fit):
    """Tables of fit="none" are unbiased and have negative counts."""
    schema = SCHEMA.with_facts(impossible=["age == 0 and sex == 'F'"])
    workload = Workload.all_ways(schema, (0, 1, 2), family="marginal")
    measurement, _ = measured_on(workload, Budget(pcost=0.01), records=200)
    errors = uncertainty(publish(measurement, fit), draws=2)
    is_fitted = fit != "none"
    assert (errors.published.table(("age", "sex")) < 0).any() == (not is_fitted)
    tables = write_tables(errors, tmp_path / "tables.zip", rule=QualityRule())
    package = write_package(measurement, tmp_path / "release.zip", published=errors)
    assert verify_package(tables) == ()
    assert verify_package(package) == ()
    workbook = write_workbook(errors, tmp_path / "tables.xlsx")
    for path in (tables, package, workbook):
        with zipfile.ZipFile(path) as archive:
            text = " ".join(
                archive.read(name).decode()
                for name in archive.namelist()
                if name.endswith(("README.md", "metadata.json", "registry.json", "sheet1.xml"))
            )
        assert ("not negative" in text or "without negative" in text) == is_fitted, path.name
        assert ("it is biased" in text or "tables, biased" in text) == is_fitted, path.name


def test_totals_include_suppressed_counts(tmp_path):
    errors = published_errors("residualplanner", BY_AGE)
    rule = QualityRule(least_count=40.0)
    tables_files(errors, tmp_path, rule=rule, confidence=0.95)
    totals = read(tmp_path / "totals.csv").set_index("table")
    assert list(totals.index) == ["table1_age", "table2_age_sex"]
    assert totals["suppressed"].sum() > 0
    for i, row in enumerate(totals.itertuples()):
        published = read(tmp_path / f"{row.Index}.csv")["published"]
        assert row.counts == len(published)
        assert row.suppressed == published.isna().sum()
        assert row.sum_of_shown == pytest.approx(published.sum(), abs=1e-4)
        all_counts = errors.published.values(i).sum()
        assert row.sum_with_suppressed == pytest.approx(all_counts, abs=1e-6)
    assert "Suppressed counts" in (tmp_path / "README.md").read_text()


def test_sums_text_is_empty_without_suppressed_counts():
    sums = {"counts": 2, "suppressed": 0, "sum_of_shown": 3.0, "sum_with_suppressed": 3.0}
    assert sums_text(sums) == ""
    few = {"counts": 5, "suppressed": 2, "sum_of_shown": 3.25, "sum_with_suppressed": 4.0}
    assert sums_text(few).startswith("2 of 5 counts are suppressed: the counts shown sum to 3.2,")


def test_table_names_unsafe_attributes_give_safe_names():
    schema = Schema([Attribute.of_size("../é; rm", 2), Attribute.of_size("日本", 2)])
    names = table_names(Workload.all_ways(schema, ways=(1,)).groups)
    assert names == ["table1_rm", "table2"]
