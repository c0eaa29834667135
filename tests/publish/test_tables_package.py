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
    attributes = pd.read_csv(folder / "attributes.csv").set_index("id")["name"]
    n_correlated = 0
    for row in pd.read_csv(folder / "tables.csv", keep_default_na=False).itertuples():
        names = [attributes[i] for i in row.attributes.split()]
        query = np.zeros(SCHEMA.sizes(names))
        query.flat[0] = query.flat[-1] = 1.0
        value, variance = answer_from_files(folder, names, query)
        assert row.check_first_plus_last == pytest.approx(value, rel=1e-9, abs=1e-9)
        assert row.check_first_plus_last_std == pytest.approx(np.sqrt(variance), rel=1e-9)
        one = np.zeros_like(query)
        one.flat[0] = 1.0
        cells = errors.published.measurement.plan.variance_of(names, one)
        n_correlated += query.size > 1 and abs(variance / (2 * cells) - 1) > 0.01
    assert n_correlated >= 3  # for these tables the sum of the variances would be wrong


def test_crosstabs_contain_the_published_counts(tmp_path):
    errors, folder = packed(tmp_path)
    pair = next(i for i, g in enumerate(WORKLOAD.groups) if g.attributes == ("region", "age"))
    file = folder / f"{table_names(WORKLOAD.groups)[pair]}_crosstab.csv"
    assert file.read_bytes().startswith(b"\xef\xbb\xbf")
    rows = pd.read_csv(file)
    expected = (
        errors.answers(pair, rule=QualityRule(least_count=3.0))["published"]
        .to_numpy()
        .reshape(3, 5)
    )
    assert np.isnan(expected).any()
    np.testing.assert_allclose(rows.iloc[:, 2:].to_numpy(dtype=float), expected, atol=1e-6)
    assert list(rows)[1:] == ["region \\ age", *(SCHEMA["age"].label(i) for i in range(5))]
    assert rows.iloc[:, 1].tolist() == ["North, upper", "'=South", "East|West"]
    assert set(rows.iloc[:, 0]) == {"REHEARSAL"}
    assert (
        len(list(folder.glob("*_crosstab.csv")))
        == sum(len(g.attributes) == 2 for g in WORKLOAD.groups) - 1
    )


def test_registry_states_only_available_facts(tmp_path):
    errors, folder = packed(tmp_path)
    registry = json.loads((folder / "registry.json").read_text())
    plan = errors.published.measurement.plan
    assert registry["status"].startswith("REHEARSAL")
    assert registry["privacy loss"]["rho"] == plan.pcost / 2
    assert registry["privacy loss"]["epsilon by delta"]["1e-06"] == plan.budget.epsilon(1e-6)
    assert "epsilon" not in registry["privacy loss"]
    assert registry["privacy unit"] == "a person, 1 row"
    assert registry["neighbours"] == plan.budget.neighbours
    assert registry["data curator"] == registry["release date"] == "not stated"
    pure = measured_on(
        WORKLOAD, Budget.pure(0.5, rows_per_person=3), records=50, mechanism="laplace"
    )[0]
    pure_registry = tables_package.registry(pure)
    assert (pure_registry["flavor"], pure_registry["privacy loss"]["epsilon"]) == (
        "pure epsilon-DP",
        0.5,
    )
    assert pure_registry["privacy unit"] == "a person, all of up to 3 rows"


def test_recompute_script_in_r_agrees(tmp_path):
    check_r_script(packed(tmp_path)[1])


def test_tables_have_one_complete_row_per_query(tmp_path):
    errors, folder = packed(tmp_path)
    first = 0
    for number, group in enumerate(WORKLOAD.groups):
        rows = read(folder / f"{table_names(WORKLOAD.groups)[number]}.csv")
        assert rows["query_id"].tolist() == list(range(first, first + group.count))
        first += group.count
        answers = errors.answers(number, rule=QualityRule(least_count=3.0))
        for name, column in (
            ("answer", "estimate"),
            ("std", "std"),
            ("published", "published"),
            ("error", "error"),
        ):
            np.testing.assert_allclose(rows[column], answers[name], atol=1e-6)
        assert rows["flag"].tolist() == answers["flag"].tolist()
        assert set(rows["status"]) == {"REHEARSAL"}
    pair = next(i for i, g in enumerate(WORKLOAD.groups) if g.attributes == ("region", "age"))
    rows = read(folder / f"{table_names(WORKLOAD.groups)[pair]}.csv")
    table = errors.published.measurement.marginal(["region", "age"])
    np.testing.assert_allclose(
        rows["estimate"], table[rows["region_code"], rows["age_code"]], atol=1e-6
    )
    assert set(rows["region_label"]) == {"North, upper", "'=South", "East|West"}


def test_csvw_metadata_describes_every_column(tmp_path):
    _, folder = packed(tmp_path)
    metadata = json.loads((folder / "tables.csv-metadata.json").read_text())
    assert metadata["@context"] == "http://www.w3.org/ns/csvw"
    assert [t["url"] for t in metadata["tables"]] == [
        f"{name}.csv" for name in table_names(WORKLOAD.groups)
    ]
    for table in metadata["tables"]:
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
    words, book = (folder / "README.md").read_text(), (folder / "codebook.md").read_text()
    assert words.startswith("# REHEARSAL")
    assert errors.published.measurement.plan.budget.promise in words
    for column in tables_package.COLUMNS:
        assert f"`{column}`" in words
    assert "Suppressed cells are in all sums" in words
    assert all(f"## {name}" in book for name in SCHEMA.names)
    assert "| 2 | East\\|West |" in book


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
    blocks = errors.published.measurement.plan.blocks.values()
    assert any(
        b.union if kind == "union" else len(axes) > 1 for b in blocks for axes, _ in b.factors
    )
    integers = pd.read_csv(folder / "integers.csv")
    sums = pd.read_csv(folder / "tables.csv").set_index("table")
    for number, group in enumerate(workload.groups):
        weights = np.loadtxt(
            folder / f"{table_names(workload.groups)[number]}_weights.csv", delimiter=",", ndmin=2
        )
        answers = measurement.answers(number)
        np.testing.assert_allclose(
            weights @ (integers["integer"] * integers["grid"]), answers["answer"], atol=1e-8
        )
        np.testing.assert_allclose(
            np.sqrt(weights**2 @ integers["noise"] ** 2), answers["std"], rtol=1e-9
        )
        # tables.csv has the standard error of the sum of the first and the last answer.
        ends = weights[0] + (weights[-1] if group.count > 1 else 0.0)
        assert np.sqrt(ends**2 @ integers["noise"] ** 2) == pytest.approx(
            sums["check_first_plus_last_std"].iloc[number], rel=1e-9
        )
    assert "measures attributes jointly" in (folder / "README.md").read_text()


def test_readme_of_large_joint_plan_names_integers(tmp_path, monkeypatch):
    monkeypatch.setattr(linear_form, "MAX_WEIGHTS", 10)
    _, folder = packed(tmp_path, "querysmasher", JOINT_PLANS["joint"][1])
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
    n_tables = sum(name.startswith("table") and name[5].isdecimal() for name in names)
    assert len(names) <= n_tables + tables_package.OTHER_FILES
    monkeypatch.setattr(tables_package, "MAX_MEMBERS", n_tables + tables_package.OTHER_FILES)
    write_tables(errors, tmp_path / "most.zip")
    monkeypatch.setattr(tables_package, "MAX_MEMBERS", n_tables + tables_package.OTHER_FILES - 1)
    with pytest.raises(LimitExceeded, match="files"):
        write_tables(errors, tmp_path / "more.zip")
    assert not (tmp_path / "more.zip").exists()


SMALL = Workload(JOINT).add(("age", "years"), "marginal")


@pytest.mark.parametrize("integer", [False, True])
def test_verify_tables_detects_every_changed_file(integer, tmp_path):
    measurement, _ = measured_on(SMALL, Budget(pcost=1.0), records=60)
    errors = measurement.publish(integer=integer).uncertainty(draws=2)
    path = write_tables(
        errors, tmp_path / "tables.zip", rule=QualityRule(least_count=3.0), confidence=0.9
    )
    assert verify_package(path) == ()
    with zipfile.ZipFile(path) as archive:
        archive.extractall(tmp_path / "out")
    files = sorted(file for file in (tmp_path / "out").iterdir() if file.suffix != ".npz")
    # if the published counts are integers, only a missing and an added file are tested
    for file in [] if integer else files:
        content = file.read_bytes()
        file.write_bytes(content.replace(b"1", b"7") if b"1" in content else content + b"more")
        assert verify_package(tmp_path / "out"), file.name
        file.write_bytes(content)
    readme = tmp_path / "out" / "README.md"
    content = readme.read_bytes()
    readme.unlink()
    assert verify_package(tmp_path / "out") == ("README.md is missing",)
    readme.write_bytes(content)
    (tmp_path / "out" / "more.txt").write_text("?")
    assert verify_package(tmp_path / "out") == ("more.txt is not a file of a tables package",)


def test_verify_tables_detects_changed_integer(tmp_path):
    _, folder = packed(tmp_path, workload=SMALL)
    with np.load(folder / "measurements.npz") as arrays:
        contents = dict(arrays)
    name = next(n for n, array in contents.items() if array.dtype == np.int64 and array.size > 1)
    contents[name] = contents[name] + np.eye(1, contents[name].size, dtype=np.int64)[0] * 10**12
    np.savez(folder / "measurements.npz", **contents)
    assert any("table1_" in problem for problem in verify_package(folder))


def test_verify_tables_with_unrelated_ledger_or_key_reports_it(tmp_path):
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
    path = write_tables(errors, tmp_path / "tables.zip", rule=QualityRule())
    assert verify_package(path) == ()
    with zipfile.ZipFile(path) as archive:
        archive.extractall(tmp_path / "out")
    tables = [*(tmp_path / "out").glob("table[0-9]*.csv"), tmp_path / "out" / "totals.csv"]
    assert any("crosstab" in file.name for file in tables)
    for file in tables:
        text = file.read_text(encoding="utf-8-sig")
        assert not re.search(r"\.0\b", text), file.name
        assert not re.search(r"\d\.\d{7,}\b", text), file.name
    rows = read(next(file for file in tables if file.name.startswith("table1")))
    assert (rows["published"].dropna() % 1 == 0).all()


def test_rounded_numbers_may_differ_by_one_unit(tmp_path):
    """A number between two roundings is rounded differently on another machine."""
    for text, other, same in (
        ("0.1234565", "0.1234565", True),
        ("0.123456", "0.123457", True),
        ("0.123456", "0.12346", False),
        ("45", "45.0", True),
        ("45", "46", False),
    ):
        (tmp_path / "a.csv").write_text(f"x\n{text}\n")
        (tmp_path / "b.csv").write_text(f"x\n{other}\n")
        assert _same(tmp_path / "a.csv", tmp_path / "b.csv") == same


@pytest.mark.parametrize("fit", ["none", "nonnegative"])
def test_texts_are_true_for_the_method_of_fitting(tmp_path, fit):
    """Tables of fit="none" are unbiased and have negative counts."""
    schema = SCHEMA.with_facts(impossible=["age == 0 and sex == 'F'"])
    workload = Workload.all_ways(schema, (0, 1, 2), family="marginal")
    measurement, _ = measured_on(workload, Budget(pcost=0.01), records=200)
    errors = uncertainty(publish(measurement, fit), draws=2)
    assert (errors.published.table(("age", "sex")) < 0).any() == (fit == "none")
    path = write_tables(errors, tmp_path / "tables.zip", rule=QualityRule())
    assert verify_package(path) == ()
    package = write_package(measurement, tmp_path / "release.zip", published=errors)
    assert verify_package(package) == ()
    workbook = write_workbook(errors, tmp_path / "tables.xlsx")
    for file in (path, package, workbook):
        with zipfile.ZipFile(file) as archive:
            text = " ".join(
                archive.read(name).decode()
                for name in archive.namelist()
                if name.endswith(("README.md", "metadata.json", "registry.json", "sheet1.xml"))
            )
        is_fitted = any(words in text for words in ("not negative", "without negative"))
        assert is_fitted == (fit != "none"), file.name
        assert ("it is biased" in text or "tables, biased" in text) == (fit != "none"), file.name


def test_totals_include_suppressed_counts(tmp_path):
    errors = published_errors("residualplanner", BY_AGE)
    rule = QualityRule(least_count=40.0)
    tables_files(errors, tmp_path, rule=rule, confidence=0.95)
    totals = read(tmp_path / "totals.csv").set_index("table")
    assert list(totals.index) == ["table1_age", "table2_age_sex"]
    assert totals["suppressed"].sum() > 0
    for number, row in enumerate(totals.itertuples()):
        published = read(tmp_path / f"{row.Index}.csv")["published"]
        assert (row.counts, row.suppressed) == (len(published), published.isna().sum())
        assert row.sum_of_shown == pytest.approx(published.sum(), abs=1e-4)
        all_counts = errors.published.values(number).sum()
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
