"""Demo data: schemas of the papers, survey records, synthetic tables."""

import doctest
import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import demo_data
from demo_data import make_panel, make_schemas, make_states, make_survey, make_synthetic
from demo_data.make_synthetic import synthetic
from engine.records import count_marginals
from engine.workload import Attribute, Schema, Workload
from engine.workload.attribute import domain_text

PAPERS = {
    "adult": ([42, 16, 15, 9, 7, 6, 5, 2, 2], [100, 100, 100, 99, 85]),
    "cps": ([7, 4, 2], [100, 50]),
    "loans": ([51, 36, 15, 8, 6, 5, 4, 3], [101, 101, 101, 101]),
    "census": ([2], [103]),
}
ODD = Schema(
    [
        Attribute.categorical("one value", ["only"]),
        Attribute.categorical(
            "quoted", ['a"b', "c,d", "é", "=1+1"], other="other", missing="unknown"
        ),
        Attribute.numeric("tiny", [0, 1e-300, 2e-300]),
        Attribute.numeric("huge", [-1.7e308, 0, 1.7e308]),
        Attribute.numeric("adjacent", [1.0, float(np.nextafter(1, 2)), 2.0]),
        Attribute.numeric("integers", [-3, 0, 7], clip=True),
        Attribute.of_size("codes", 300),
        Attribute.of_size("constant", 1, kind="categorical"),
    ]
)


def load(name: str) -> Schema:
    return Schema.from_json(demo_data.schemas()[name].read_bytes())


def cells(data: pd.DataFrame | Path, schema: Schema) -> dict[str, np.ndarray]:
    """Return the counts of the cells of every attribute; a value outside the schema is an error."""
    counts = count_marginals(data, schema, [(name,) for name in schema.names])
    assert counts.rows_refused == 0
    return {name: counts[name,] for name in schema.names}


@pytest.mark.parametrize("name", PAPERS)
def test_demo_schemas_have_sizes_of_papers(name: str) -> None:
    attributes = load(name).attributes
    categorical, numeric = PAPERS[name]
    assert sorted(a.size for a in attributes if a.kind == "categorical") == sorted(categorical)
    assert sorted(a.size for a in attributes if a.kind == "numeric") == sorted(numeric)


def test_adult_schema_reads_repository_values() -> None:
    # the first record of the repository's file, and one with missing values
    first_record = {
        "workclass": "State-gov",
        "marital-status": "Never-married",
        "occupation": "Adm-clerical",
        "sex": "Male",
        "relationship": "Not-in-family",
        "race": "White",
        "native-country": "United-States",
        "income>50K": "<=50K",
        "age": 39,
        "fnlwgt": 77516,
        "education-num": "13",
        "capital-gain": 2174,
        "capital-loss": 0,
        "hours-per-week": 40,
    }
    with_missing_values = first_record | {
        "workclass": "?",
        "occupation": "?",
        "native-country": "?",
    }
    adult = load("adult")
    counts_by_name = cells(
        pd.DataFrame([first_record, with_missing_values])[list(adult.names)], adult
    )
    assert all(counts.sum() == 2 for counts in counts_by_name.values())
    for name, condition in (
        ("age", "age in [39, 40)"),
        ("sex", "sex = Male"),
        ("capital-gain", "capital-gain in [2000, 3000)"),
    ):
        assert adult[name].condition(int(counts_by_name[name].argmax())) == condition


@pytest.mark.parametrize("name", ["adult", "cps", "loans"])
def test_demo_schema_cells_have_labels_or_edges(name: str) -> None:
    for attribute in load(name).attributes:
        cells = attribute.edges if attribute.kind == "numeric" else attribute.labels
        assert cells is not None, attribute.name
    assert load("cps")["sex"].condition(1) == "sex = Female"


def test_demo_schema_files_match_script() -> None:
    schemas = make_schemas.papers_schemas() | {
        "survey": make_survey.survey_schema(),
        "panel": make_panel.panel_schema(),
        "states": make_states.states_schema(),
    }
    files = demo_data.schemas()
    assert files.keys() == schemas.keys()
    for name, schema in schemas.items():
        assert files[name].read_text(encoding="utf-8") == schema.to_json() + "\n"


def test_demo_names_titles_and_files_agree() -> None:
    assert list(demo_data.schemas()) == list(demo_data.TITLES) == list(demo_data.WORDS)
    assert set(demo_data.tables()) <= set(demo_data.schemas())
    assert all(
        path.is_file() for path in (*demo_data.schemas().values(), *demo_data.tables().values())
    )


def test_census_ages_fit_buckets_of_paper() -> None:
    age = load("census")["age"]
    expected = ["[0, 1)", "[17, 18)", "[84, 85)", "[99, 100)", "[100, 105)", "[110, 130]"]
    assert [age.label(i) for i in (0, 17, 84, 99, 100, 102)] == expected


def test_states_are_simulated_by_script() -> None:
    records = pd.read_csv(demo_data.tables()["states"], dtype=str)
    expected = make_states.states_records().astype(str)
    pd.testing.assert_frame_equal(records, expected, check_dtype=False)
    schema = load("states")
    (geography,) = schema["state"].hierarchies
    assert [level.areas for level in geography.levels] == [4, 9]
    assert schema.sizes(schema.names) == (51, 2, 23)
    counts_by_name = cells(demo_data.tables()["states"], schema)
    assert all(counts.sum() == make_states.PEOPLE for counts in counts_by_name.values())
    assert schema["state"].labels[counts_by_name["state"].argmax()] == "CA"


def test_survey_records_fit_schema() -> None:
    counts_by_name = cells(demo_data.tables()["survey"], load("survey"))
    assert all(counts.sum() == 944 for counts in counts_by_name.values())
    assert counts_by_name["vote"].tolist() == [551, 393]
    assert counts_by_name["education"].tolist() == [13, 52, 248, 187, 90, 227, 127]
    assert counts_by_name["household_income"].tolist()[-2:] == [47, 68]
    assert counts_by_name["tv_news_days"].tolist() == [161, 100, 112, 101, 66, 84, 32, 288]


def test_survey_code_without_label_is_refused() -> None:
    columns = [
        "popul",
        "TVnews",
        "selfLR",
        "ClinLR",
        "DoleLR",
        "PID",
        "age",
        "educ",
        "income",
        "vote",
    ]
    codes = pd.DataFrame([[0, 7, 7, 1, 6, 6, 36, 8, 1, 1]], columns=columns)
    with pytest.raises(ValueError, match=r"educ holds a code outside 1\.\.7"):
        make_survey.decoded(codes)
    codes["educ"] = 7
    assert make_survey.decoded(codes)["education"].tolist() == ["Advanced degree"]
    with pytest.raises(ValueError, match="numbers"):
        make_survey.decoded(codes + 0.5)


@pytest.mark.parametrize(
    "schema", [*(load(name) for name in demo_data.schemas()), ODD], ids=[*demo_data.TITLES, "odd"]
)
def test_synthetic_tables_fit_and_repeat_by_seed(schema: Schema) -> None:
    table = synthetic(schema, rows=3_000, seed=5)
    person_columns = [] if schema.person is None else [schema.person]
    assert list(table.columns) == [*schema.names, *person_columns]
    if schema.person is not None:
        assert set(table.groupby(schema.person).size()) == {schema.rows_per_person}
    assert all(counts.sum() == 3_000 for counts in cells(table, schema).values())
    pd.testing.assert_frame_equal(table, synthetic(schema, rows=3_000, seed=5))
    assert not table.equals(synthetic(schema, rows=3_000, seed=6))
    assert synthetic(schema, rows=0, seed=5).shape == (0, len(table.columns))


def test_synthetic_values_are_portable() -> None:
    table = synthetic(load("census"), rows=5, seed=1)
    expected = [(28, "Male"), (30, "Male"), (14, "Male"), (18, "Male"), (22, "Female")]
    assert [*zip(table["age"], table["sex"], strict=True)] == expected


def test_synthetic_marginals_are_skewed_and_correlated() -> None:
    schema, rows = load("cps"), 20_000
    table = synthetic(schema, rows=rows, seed=1)
    for name, counts in cells(table, schema).items():
        uniform_count = rows / schema[name].size
        assert counts.max() > 1.25 * uniform_count, name
    for name in ("age", "marital", "race", "sex"):
        shares = count_marginals(table, schema, [("income", name)])["income", name] / rows
        shares = shares[shares.sum(axis=1) > 0][:, shares.sum(axis=0) > 0]
        independent = shares.sum(axis=1, keepdims=True) * shares.sum(axis=0, keepdims=True)
        chi_squared = ((shares - independent) ** 2 / independent).sum()
        # For independent columns, this is the mean of the statistic.
        mean_by_chance = (shares.shape[0] - 1) * (shares.shape[1] - 1) / rows
        assert chi_squared > 2 * mean_by_chance, name


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_synthetic_command_writes_same_table(tmp_path, suffix: str) -> None:
    out = tmp_path / f"table{suffix}"
    make_synthetic.main(["--schema", "survey", "--rows", "200", "--seed", "3", "--out", str(out)])
    schema = load("survey")
    expected = cells(synthetic(schema, rows=200, seed=3), schema)
    for name, counts in cells(out, schema).items():
        np.testing.assert_array_equal(counts, expected[name])


@pytest.mark.parametrize(
    "invalid_option",
    [
        {"--schema": "no such file.json"},
        {"--rows": "-1"},
        {"--seed": "-1"},
        {"--out": "table.pickle"},
        {"--schema": str(demo_data.tables()["survey"])},
    ],
    ids=lambda invalid_option: "".join(invalid_option),
)
def test_synthetic_command_with_invalid_option_is_refused(
    tmp_path, capsys, invalid_option: dict[str, str]
) -> None:
    valid_options = {
        "--schema": "cps",
        "--rows": "1",
        "--seed": "1",
        "--out": str(tmp_path / "x.csv"),
    }
    options = valid_options | invalid_option
    with pytest.raises(SystemExit) as stop:
        make_synthetic.main([*itertools.chain(*options.items())])
    assert stop.value.code == 2
    (name,) = invalid_option
    assert name in capsys.readouterr().err


def test_synthetic_module_runs_without_warning(tmp_path) -> None:
    out = tmp_path / "table.csv"
    options = ["--schema", "cps", "--rows", "2", "--seed", "1", "--out", str(out)]
    command = [sys.executable, "-m", "demo_data.make_synthetic", *options]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (run.stdout, run.stderr) == ("", "")
    lines = out.read_text(encoding="utf-8").splitlines()
    assert len(lines) == 3  # the header and two rows


@pytest.mark.parametrize("module", [demo_data, make_synthetic])
def test_docstring_examples_pass(module) -> None:
    result = doctest.testmod(module)
    assert result.attempted
    assert not result.failed


def test_survey_days_of_news_end_with_last_possible_value() -> None:
    schema = load("survey")
    workload = Workload(schema).add("tv_news_days", "prefix")
    assert workload.describe_in_group(0, 7) == "tv_news_days <= 7"
    assert domain_text(schema["tv_news_days"]) == "0, 1, … 7 (8 values)"
