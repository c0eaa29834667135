"""SQL to workloads: counts equal those of DuckDB, or a comparison is refused."""

from __future__ import annotations

import bisect
import itertools

import duckdb
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import DataError, WorkloadError
from engine.records import Encoder, count_marginals
from engine.workload import Attribute, Schema, Workload
from engine.workload.sql import sql_readings, workload_from_sql
from tests.workload.sql.example import EDGES, RECORDS, SCHEMA, group_rows

INTEGER_COLUMNS = ("age",)


def cell_of(name: str, value: object) -> int:
    """Return the index of the cell of the attribute ``name`` that contains ``value``."""
    attribute = SCHEMA[name]
    if attribute.labels is not None:
        return attribute.labels.index(value)
    if attribute.edges is None:
        return int(value)
    return min(max(bisect.bisect_right(attribute.edges, value) - 1, 0), attribute.size - 1)


FROM = "COUNT(*) AS n FROM t"
BANDED = {
    f"SELECT CASE WHEN age < 18 THEN 'c' WHEN age < 65 THEN 'a' ELSE 'o' END AS band, {FROM} GROUP "
    "BY band": [
        "age < 18",
        "18 <= age < 65",
        "age >= 65",
    ],
    f"SELECT CASE WHEN age < 18 THEN 'x' WHEN age < 65 THEN 'a' ELSE 'x' END, {FROM} GROUP BY 1": [
        "not 18 <= age < 65",
        "18 <= age < 65",
    ],
    f"SELECT CASE code WHEN 1 THEN 'x' WHEN 3 THEN 'y' END, {FROM} WHERE age < 18 AND code < 4 "
    "GROUP BY ALL": [
        "code == 1 and age < 18",
        "code == 3 and age < 18",
        "code in [0, 2] and age < 18",
    ],
    f"SELECT CASE WHEN code > 2 THEN 'x' ELSE 'y' END, {FROM} WHERE code + \"hours-per-week\" < 6 "
    "GROUP BY 1": [
        "code >= 3 and code + hours_per_week < 6",
        "code <= 2 and code + hours_per_week < 6",
    ],
}


def database_counts(sql: str) -> dict[frozenset[tuple[str, int]], int]:
    """Return the counts of DuckDB for a SQL text, by cell of its grouped attributes.

    A cell is a frozenset of pairs (attribute, index of its cell).
    """
    with duckdb.connect(config={"enable_external_access": "false", "threads": "1"}) as database:
        database.register("t", RECORDS)
        frame = database.execute(sql).fetch_df()
    counts: dict[frozenset[tuple[str, int]], int] = {}
    for row in frame.to_dict("records"):
        named = {key: value for key, value in row.items() if key in SCHEMA and not pd.isna(value)}
        cells = frozenset((name, cell_of(name, value)) for name, value in named.items())
        counts[cells] = counts.get(cells, 0) + int(row["n"])
    return counts


def engine_counts(
    workload: Workload, sets: list[tuple[str, ...]]
) -> dict[frozenset[tuple[str, int]], int]:
    """Return the exact answers of all groups, by cell of the grouped attributes.

    A cell is a frozenset of pairs (attribute, index of its cell).  ``sets`` has the grouped
    attributes of each group of the workload.
    """
    counts: dict[frozenset[tuple[str, int]], int] = {}
    assert len(workload.groups) == len(sets)
    for group, grouped in zip(workload.groups, sets, strict=True):
        assert set(grouped) <= set(group.attributes)
        rows = group_rows(group)
        table = count_marginals(RECORDS, SCHEMA, [group.attributes])[group.attributes]
        answers = rows @ table.ravel()
        for row, answer in zip(rows.reshape(len(rows), *table.shape), answers, strict=True):
            axes = [group.attributes.index(name) for name in grouped]
            others = tuple(a for a in range(table.ndim) if a not in axes)
            selected = (
                np.argwhere(np.any(row, axis=others)) if axes else np.empty((1, 0), dtype=int)
            )
            # each query counts the records of exactly one cell of the grouped attributes
            assert len(selected) == 1
            in_order = [name for name in group.attributes if name in grouped]
            cells = frozenset(zip(in_order, map(int, selected[0]), strict=True))
            assert cells not in counts
            counts[cells] = int(answer)
    return counts


def check(sql: str, sets: list[tuple[str, ...]]) -> Workload:
    """Return the workload of a SQL text after comparing every count with DuckDB."""
    workload = workload_from_sql(SCHEMA, sql, integer_columns=INTEGER_COLUMNS)
    ours, theirs = engine_counts(workload, sets), database_counts(sql)
    assert {cells for cells, n in theirs.items() if n} <= set(ours)
    assert ours == {cells: theirs.get(cells, 0) for cells in ours}
    assert Workload.from_json(workload.to_json()) == workload
    return workload


CASES = {
    "SELECT COUNT(*) AS n FROM t": ([()], "all records"),
    "SELECT COUNT(1) AS n FROM t": ([()], "all records"),
    "SELECT age, sex, COUNT(*) AS n FROM t GROUP BY age, sex": (
        [("age", "sex")],
        "age = [0, 18) and sex = F",
    ),
    "SELECT COUNT(*) AS n FROM t WHERE age BETWEEN 20 AND 39": ([()], "20 <= age < 40"),
    "SELECT COUNT(*) AS n FROM t WHERE age >= 20 AND age < 40": ([()], "20 <= age < 40"),
    "SELECT COUNT(*) AS n FROM t WHERE 40 > age AND NOT 19 >= age": ([()], "20 <= age < 40"),
    "SELECT COUNT(*) AS n FROM t WHERE age NOT BETWEEN 20 AND 39": ([()], "not 20 <= age < 40"),
    "SELECT COUNT(*) AS n FROM t WHERE sex <> 'F'": ([()], "sex != 'F'"),
    "SELECT COUNT(*) AS n FROM t WHERE sex IN ('it''s or \"not\"')": (
        [()],
        "sex == 'it\\'s or \"not\"'",
    ),
    "SELECT COUNT(*) AS n FROM t WHERE \"class\" = 'é' AND t.code <= 1": (
        [()],
        "class_ == 'é' and code <= 1",
    ),
    "SELECT COUNT(*) AS n FROM t WHERE code NOT IN (1, 3)": ([()], "code not in [1, 3]"),
    "SELECT COUNT(*) AS n FROM t WHERE code = 2 OR age < 18": ([()], "code == 2 or age < 18"),
    "SELECT COUNT(*) AS n FROM t WHERE (code = 2 OR age < 18) AND sex = 'F'": (
        [()],
        "sex == 'F' and (code == 2 or age < 18)",
    ),
    'SELECT COUNT(*) AS n FROM t WHERE code + "hours-per-week" <= 3': (
        [()],
        "code + hours_per_week <= 3",
    ),
    'SELECT COUNT(*) AS n FROM t WHERE ABS(code - "hours-per-week") <= 1': (
        [()],
        "abs(code - hours_per_week) <= 1",
    ),
    'SELECT COUNT(*) AS n FROM t WHERE 2 * code - -1 > "hours-per-week"': (
        [()],
        "2 * code - -1 > hours_per_week",
    ),
    "SELECT COUNT(*) AS n FROM t WHERE code * 2 - 1 < 4.5": ([()], "code <= 2"),
    "SELECT COUNT(*) AS n FROM t WHERE income >= 0 AND income < 10.25": (
        [()],
        "0 <= income < 10.25",
    ),
    "SELECT sex, COUNT(*) AS n FROM t AS p WHERE p.age < 40 GROUP BY sex": (
        [("sex",)],
        "sex = F and age < 40",
    ),
    "SELECT age, COUNT(*) AS n FROM t WHERE age >= 40 GROUP BY 1": ([("age",)], "40 <= age < 65"),
    "SELECT COUNT(*) AS n, code, sex FROM t WHERE age < 18 OR age >= 65 GROUP BY ALL": (
        [("code", "sex")],
        "code = 0 and sex = F and not 18 <= age < 65",
    ),
    'SELECT sex, code, COUNT(*) AS n FROM t WHERE code + "hours-per-week" = 5 GROUP BY sex, code': (
        [("sex", "code")],
        "sex == 'F' and code == 2 and code + hours_per_week == 5",
    ),
    "SELECT age, COUNT(*) AS n FROM t WHERE age >= 20 AND (code = 1 OR sex = 'F') GROUP BY age": (
        [("age",)],
        "20 <= age < 40 and (code == 1 or sex == 'F')",
    ),
    "SELECT sex, age, COUNT(*) AS n FROM t GROUP BY CUBE (sex, age)": (
        [("sex", "age"), ("sex",), ("age",), ()],
        "sex = F and age = [0, 18)",
    ),
    "SELECT sex, age, code, COUNT(*) AS n FROM t WHERE code < 3 GROUP BY sex, ROLLUP (age, code)": (
        [("sex", "age", "code"), ("sex", "age"), ("sex",)],
        "sex = F and age = [0, 18) and code == 0",
    ),
    "SELECT sex, age, code, COUNT(*) AS n FROM t GROUP BY GROUPING SETS ((sex), (age, code), ())": (
        [("sex",), ("age", "code"), ()],
        "sex = F",
    ),
    "SELECT sex, age, code, COUNT(*) AS n FROM t GROUP BY CUBE ((sex, age), code)": (
        [("sex", "age", "code"), ("sex", "age"), ("code",), ()],
        "sex = F and age = [0, 18) and code = 0",
    ),
}


@pytest.mark.parametrize("sql", CASES)
def test_workload_counts_match_duckdb(sql: str) -> None:
    sets, first = CASES[sql]
    assert check(sql, sets).describe(0) == first


@pytest.mark.parametrize("sql", BANDED)
def test_case_expressions_match_duckdb(sql: str) -> None:
    workload = workload_from_sql(SCHEMA, sql, integer_columns=INTEGER_COLUMNS)
    (group,) = workload.groups
    assert [workload.describe(i) for i in range(len(workload))] == BANDED[sql]
    table = count_marginals(RECORDS, SCHEMA, [group.attributes])[group.attributes]
    with duckdb.connect() as database:
        database.register("t", RECORDS)
        duckdb_counts = database.execute(sql).fetch_df()["n"]
    assert sorted(group_rows(group) @ table.ravel()) == sorted(duckdb_counts)


def conditions_in_sql() -> st.SearchStrategy[str]:
    """Return a strategy of random SQL conditions whose bounds are edges of cells."""
    edge = st.sampled_from(EDGES[1:-1])
    code = st.integers(-1, 6)
    signs = ["=", "<>", "<", "<=", ">", ">="]
    label = st.sampled_from([label.replace("'", "''") for label in SCHEMA["sex"].labels])
    atoms = st.one_of(
        st.builds("age {} {}".format, st.sampled_from(["<", ">="]), edge),
        st.builds(lambda a, b: f"age BETWEEN {a} AND {b - 1}", edge, edge),
        st.builds(lambda sign, e: f"{e - 1} {sign} age", st.sampled_from([">=", "<"]), edge),
        st.builds("sex {} '{}'".format, st.sampled_from(["=", "<>", "!="]), label),
        st.builds("sex {} ('{}', '{}')".format, st.sampled_from(["IN", "NOT IN"]), label, label),
        st.builds("code {} {}".format, st.sampled_from(signs), code),
        st.builds(
            'code {} "hours-per-week" {} {}'.format,
            st.sampled_from("+-"),
            st.sampled_from(signs),
            code,
        ),
        st.builds('ABS(code - 2 * "hours-per-week") {} {}'.format, st.sampled_from(signs), code),
        st.builds("income {} {}".format, st.sampled_from(["<", ">="]), st.sampled_from([0, 10.25])),
    )
    return st.recursive(
        atoms,
        lambda inner: st.one_of(
            st.builds("({}) AND ({})".format, inner, inner),
            st.builds("({}) OR ({})".format, inner, inner),
            st.builds("NOT ({})".format, inner),
        ),
        max_leaves=6,
    )


@settings(max_examples=30, deadline=None)
@given(
    conditions_in_sql(), st.lists(st.sampled_from(["age", "sex", "code"]), unique=True, max_size=2)
)
def test_random_conditions_match_duckdb(condition: str, grouped: list[str]) -> None:
    columns = ", ".join([*grouped, "COUNT(*) AS n"])
    group_by = f" GROUP BY {', '.join(grouped)}" if grouped else ""
    sql = f"SELECT {columns} FROM t WHERE {condition}{group_by}"
    try:
        check(sql, [tuple(grouped)])
    except WorkloadError as error:
        assert "No record can satisfy" in str(error), condition  # noqa: PT017
        assert sum(database_counts(sql).values()) == 0


INTEGER_SCHEMA = Schema(
    [
        Attribute.numeric("age", EDGES, integer=True),
        Attribute.numeric("income", [-10, 0, 11, 50], clip=True, integer=True),
    ]
)


# edges of cells, their neighbours, and values between them
CONSTANTS = (-11, -10.5, -1, 0, 10.25, 17, 18, 19, 19.5, 20, 39, 40, 49, 50, 51, 64, 65, 89, 90, 91)


@pytest.mark.parametrize("integer", [False, True])
@pytest.mark.parametrize("sign", ["<", "<=", ">", ">=", "=", "<>"])
@pytest.mark.parametrize("name", ["age", "income"])
def test_sql_comparison_is_exact_or_refused(name: str, sign: str, integer: bool) -> None:
    schema = INTEGER_SCHEMA if integer else SCHEMA
    attribute = schema[name]
    step = 1.0 if integer else 0.125
    values = np.arange(-20, 100, step)
    if not attribute.clip:
        values = values[(values >= attribute.edges[0]) & (values <= attribute.edges[-1])]
    cells = Encoder(attribute=attribute).encode_values(values)
    assert cells.min() >= 0
    comparisons = {
        "<": np.less,
        "<=": np.less_equal,
        ">": np.greater,
        ">=": np.greater_equal,
        "=": np.equal,
        "<>": np.not_equal,
    }
    for constant in CONSTANTS:
        satisfied = comparisons[sign](values, constant)
        # A condition that only some values of a bin satisfy must be refused.
        cuts_bin = any(len(set(satisfied[cells == i])) > 1 for i in range(attribute.size))
        sql = f"SELECT COUNT(*) FROM t WHERE {name} {sign} {constant}"
        try:
            workload = workload_from_sql(schema, sql)
        except WorkloadError as error:
            message = str(error)
            assert cuts_bin == ("cuts through" in message), (sql, message)
            assert cuts_bin or not satisfied.any()
            continue
        (group,) = workload.groups
        row = group_rows(group)[0] if group.attributes else np.ones(attribute.size)
        assert not cuts_bin
        assert (row[cells] == satisfied).all()


def test_negated_tautology_counts_all_records_or_none() -> None:
    always = "(age < 20 OR age >= 20)"
    check(f"SELECT COUNT(*) AS n FROM t WHERE NOT (NOT {always})", [()])
    with pytest.raises(WorkloadError, match="No record can satisfy"):
        workload_from_sql(SCHEMA, f"SELECT COUNT(*) FROM t WHERE NOT {always}")


def test_refused_comparison_suggests_valid_conditions() -> None:
    with pytest.raises(
        WorkloadError, match=r"age <= 39 cuts through the bin \[20, 40\) of 'age'.*20 and 40"
    ):
        workload_from_sql(SCHEMA, "SELECT COUNT(*) FROM t WHERE age BETWEEN 20 AND 39")
    accepted_suggestions = 0
    signs = ["<", "<=", ">", ">=", "=", "<>"]
    for name, sign, constant in itertools.product(["age", "income"], signs, [-11, 5, 39, 77, 90]):
        try:
            workload_from_sql(SCHEMA, f"SELECT COUNT(*) FROM t WHERE {name} {sign} {constant}")
        except WorkloadError as error:
            if "write " not in str(error):
                continue
            advice = str(error).split("write ")[1].split(", or declare")[0].rstrip(".")
            for suggestion in advice.split(" or "):
                workload_from_sql(SCHEMA, f"SELECT COUNT(*) FROM t WHERE {suggestion}")
                accepted_suggestions += 1
    assert accepted_suggestions > 20


def test_sql_condition_between_integers_requires_declaration() -> None:
    sql = "SELECT COUNT(*) FROM t WHERE age <= 39"
    with pytest.raises(WorkloadError, match="declare"):
        workload_from_sql(SCHEMA, sql)
    assert workload_from_sql(INTEGER_SCHEMA, sql).describe(0) == "age < 40"


def test_integer_columns_are_declared_in_schema() -> None:
    workload = workload_from_sql(
        SCHEMA, "SELECT COUNT(*) FROM t WHERE age <= 39", integer_columns=["age"]
    )
    assert workload.schema["age"].integer
    with pytest.raises(DataError, match="whole"):
        count_marginals(pd.DataFrame({"age": [39.5]}), workload.schema, [("age",)])


def test_integer_columns_with_fractional_edges_are_refused() -> None:
    with pytest.raises(WorkloadError, match="income"):
        workload_from_sql(SCHEMA, "SELECT COUNT(*) FROM t", integer_columns=["income"])


def test_sql_readings_show_where_and_case() -> None:
    sql = (
        "SELECT CASE WHEN age <= 17 THEN 'c' END, COUNT(*) FROM t WHERE age BETWEEN 18 AND 39 OR"
        " code = 1 GROUP BY 1"
    )
    readings = sql_readings(SCHEMA, sql, integer_columns=["age"])
    conditions = [condition for _, condition in readings]
    assert conditions == ["18 <= age < 40 or code == 1", "age < 18"]
    assert sql_readings(SCHEMA, "SELECT COUNT(*) FROM t") == []
