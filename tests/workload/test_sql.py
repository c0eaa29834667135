"""SQL to workloads: the groups count what DuckDB counts for the same SQL, and whatever else is refused in words."""

from __future__ import annotations

import bisect
import itertools
import random

import duckdb
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import Attribute, Budget, Schema, Workload, plan
from engine.errors import WorkloadError
from engine.release import count_marginals
from engine.workload import Group, conditions, workload_from_sql
from engine.workload.predicates import evaluate
from engine.workload.sql.text import MAX_TEXT, MAX_TOKENS

EDGES = [0, 18, 20, 40, 65, 90]
SCHEMA = Schema(
    [
        Attribute.numeric("age", EDGES),
        Attribute.categorical("sex", ["F", "M", 'it\'s or "not"']),
        Attribute.of_size("code", 5),
        Attribute.of_size("hours-per-week", 4),
        Attribute.numeric("income", [-10.5, 0, 10.25, 50], clip=True),
        Attribute.categorical("class", ["é", "b and c"]),
    ]
)
WHOLE = ("age",)


def records(rows: int = 400, seed: int = 5) -> pd.DataFrame:
    """Small random records, incomes also outside the bins."""
    draw = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": draw.integers(0, 91, rows),
            "sex": draw.choice(SCHEMA["sex"].labels, rows),
            "code": draw.integers(0, 5, rows),
            "hours-per-week": draw.integers(0, 4, rows),
            "income": draw.choice([-99.0, -10.5, -1.0, 0.0, 3.5, 10.25, 20.0, 50.0, 70.0], rows),
            "class": draw.choice(SCHEMA["class"].labels, rows),
        }
    )


RECORDS = records()


def group_rows(group: Group) -> np.ndarray:
    """Query rows of a small group on the cells of its attributes, shape (queries, cells)."""
    rows = np.ones((1, 1))
    for part in group.parts:
        rows = np.kron(rows, part.family.rows(part.sizes))
    return rows


def cell_of(name: str, value: object) -> int:
    """Number of the cell in which a value of the records lies."""
    attribute = SCHEMA[name]
    if attribute.labels is not None:
        return attribute.labels.index(value)
    if attribute.edges is None:
        return int(value)
    return min(max(bisect.bisect_right(attribute.edges, value) - 1, 0), attribute.size - 1)


FROM = "COUNT(*) AS n FROM t"
BANDED = {
    f"SELECT CASE WHEN age < 18 THEN 'c' WHEN age < 65 THEN 'a' ELSE 'o' END AS band, {FROM} GROUP BY band": (
        ["age < 18", "18 <= age < 65", "age >= 65"]
    ),
    f"SELECT CASE WHEN age < 18 THEN 'x' WHEN age < 65 THEN 'a' ELSE 'x' END, {FROM} GROUP BY 1": (
        ["not 18 <= age < 65", "18 <= age < 65"]
    ),
    f"SELECT CASE code WHEN 1 THEN 'x' WHEN 3 THEN 'y' END, {FROM} WHERE age < 18 AND code < 4 GROUP BY ALL": (
        ["code == 1 and age < 18", "code == 3 and age < 18", "code in [0, 2] and age < 18"]
    ),
    f"SELECT CASE WHEN code > 2 THEN 'x' ELSE 'y' END, {FROM} WHERE code + \"hours-per-week\" < 6 GROUP BY 1": (
        ["code >= 3 and code + hours_per_week < 6", "code <= 2 and code + hours_per_week < 6"]
    ),
}


def database_counts(sql: str) -> dict[frozenset[tuple[str, int]], int]:
    """What DuckDB answers: counts by the cells of the attributes that are grouped by."""
    with duckdb.connect(config={"enable_external_access": "false", "threads": "1"}) as database:
        database.register("t", RECORDS)
        found = database.execute(sql).fetch_df()
    counts: dict[frozenset[tuple[str, int]], int] = {}
    for row in found.to_dict("records"):
        named = {key: value for key, value in row.items() if key in SCHEMA and not pd.isna(value)}
        cells = frozenset((name, cell_of(name, value)) for name, value in named.items())
        counts[cells] = counts.get(cells, 0) + int(row["n"])
    return counts


def engine_counts(workload: Workload, sets: list[tuple[str, ...]]) -> dict[frozenset[tuple[str, int]], int]:
    """What the groups answer on the exact tables, by the one cell of the grouped attributes that a query is about."""
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
            touched = np.argwhere(np.any(row, axis=others)) if axes else np.empty((1, 0), dtype=int)
            assert len(touched) == 1
            in_order = [name for name in group.attributes if name in grouped]
            cells = frozenset(zip(in_order, map(int, touched[0]), strict=True))
            assert cells not in counts
            counts[cells] = int(answer)
    return counts


def check(sql: str, sets: list[tuple[str, ...]]) -> Workload:
    """The workload of a SQL, after comparing every count with DuckDB's."""
    workload = workload_from_sql(SCHEMA, sql, whole_numbers=WHOLE)
    ours, theirs = engine_counts(workload, sets), database_counts(sql)
    assert {cells for cells, n in theirs.items() if n} <= set(ours)
    assert ours == {cells: theirs.get(cells, 0) for cells in ours}
    assert Workload.from_json(workload.to_json()) == workload
    return workload


# ---- the same counts as a database -------------------------------------------------------------------------------

CASES = {
    "SELECT COUNT(*) AS n FROM t": ([()], "all records"),
    "SELECT COUNT(1) AS n FROM t": ([()], "all records"),
    "SELECT age, sex, COUNT(*) AS n FROM t GROUP BY age, sex": ([("age", "sex")], "age = [0, 18) and sex = F"),
    "SELECT COUNT(*) AS n FROM t WHERE age BETWEEN 20 AND 39": ([()], "20 <= age < 40"),
    "SELECT COUNT(*) AS n FROM t WHERE age >= 20 AND age < 40": ([()], "20 <= age < 40"),
    "SELECT COUNT(*) AS n FROM t WHERE 40 > age AND NOT 19 >= age": ([()], "20 <= age < 40"),
    "SELECT COUNT(*) AS n FROM t WHERE age NOT BETWEEN 20 AND 39": ([()], "not 20 <= age < 40"),
    "SELECT COUNT(*) AS n FROM t WHERE sex <> 'F'": ([()], "sex != 'F'"),
    "SELECT COUNT(*) AS n FROM t WHERE sex IN ('it''s or \"not\"')": ([()], "sex == 'it\\'s or \"not\"'"),
    "SELECT COUNT(*) AS n FROM t WHERE \"class\" = 'é' AND t.code <= 1": ([()], "class_ == 'é' and code <= 1"),
    "SELECT COUNT(*) AS n FROM t WHERE code NOT IN (1, 3)": ([()], "code not in [1, 3]"),
    "SELECT COUNT(*) AS n FROM t WHERE code = 2 OR age < 18": ([()], "code == 2 or age < 18"),
    "SELECT COUNT(*) AS n FROM t WHERE (code = 2 OR age < 18) AND sex = 'F'": (
        [()],
        "sex == 'F' and (code == 2 or age < 18)",
    ),
    'SELECT COUNT(*) AS n FROM t WHERE code + "hours-per-week" <= 3': ([()], "code + hours_per_week <= 3"),
    'SELECT COUNT(*) AS n FROM t WHERE ABS(code - "hours-per-week") <= 1': ([()], "abs(code - hours_per_week) <= 1"),
    'SELECT COUNT(*) AS n FROM t WHERE 2 * code - -1 > "hours-per-week"': ([()], "2 * code - -1 > hours_per_week"),
    "SELECT COUNT(*) AS n FROM t WHERE code * 2 - 1 < 4.5": ([()], "code <= 2"),
    "SELECT COUNT(*) AS n FROM t WHERE income >= 0 AND income < 10.25": ([()], "0 <= income < 10.25"),
    "SELECT sex, COUNT(*) AS n FROM t AS p WHERE p.age < 40 GROUP BY sex": ([("sex",)], "sex = F and age < 40"),
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
def test_the_groups_count_what_the_database_counts(sql: str) -> None:
    sets, first = CASES[sql]
    assert check(sql, sets).describe(0) == first


@pytest.mark.parametrize("sql", BANDED)
def test_bands_of_cells(sql: str) -> None:
    made = workload_from_sql(SCHEMA, sql, whole_numbers=WHOLE)
    (group,) = made.groups
    assert [made.describe(i) for i in range(len(made))] == BANDED[sql]
    table = count_marginals(RECORDS, SCHEMA, [group.attributes])[group.attributes]
    with duckdb.connect() as database:
        database.register("t", RECORDS)
        theirs = database.execute(sql).fetch_df()["n"]
    assert sorted(group_rows(group) @ table.ravel()) == sorted(theirs)


def conditions_in_sql() -> st.SearchStrategy[str]:
    """Conditions that follow the cells."""
    edge, code, signs = st.sampled_from(EDGES[1:-1]), st.integers(-1, 6), ["=", "<>", "<", "<=", ">", ">="]
    label = st.sampled_from([label.replace("'", "''") for label in SCHEMA["sex"].labels])
    atoms = st.one_of(
        st.builds("age {} {}".format, st.sampled_from(["<", ">="]), edge),
        st.builds(lambda a, b: f"age BETWEEN {a} AND {b - 1}", edge, edge),
        st.builds(lambda sign, e: f"{e - 1} {sign} age", st.sampled_from([">=", "<"]), edge),
        st.builds("sex {} '{}'".format, st.sampled_from(["=", "<>", "!="]), label),
        st.builds("sex {} ('{}', '{}')".format, st.sampled_from(["IN", "NOT IN"]), label, label),
        st.builds("code {} {}".format, st.sampled_from(signs), code),
        st.builds('code {} "hours-per-week" {} {}'.format, st.sampled_from("+-"), st.sampled_from(signs), code),
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
@given(conditions_in_sql(), st.lists(st.sampled_from(["age", "sex", "code"]), unique=True, max_size=2))
def test_random_conditions(condition: str, grouped: list[str]) -> None:
    columns = "".join(f"{name}, " for name in grouped)
    by = f" GROUP BY {', '.join(grouped)}" if grouped else ""
    sql = f"SELECT {columns}COUNT(*) AS n FROM t WHERE {condition}{by}"
    try:
        check(sql, [tuple(grouped)])
    except WorkloadError as error:
        assert "No record can meet" in str(error), condition  # noqa: PT017
        assert sum(database_counts(sql).values()) == 0


@pytest.mark.parametrize("whole", [(), ("age", "income")])
@pytest.mark.parametrize("sign", ["<", "<=", ">", ">=", "=", "<>"])
@pytest.mark.parametrize("name", ["age", "income"])
def test_a_comparison_is_exact_or_refused(name: str, sign: str, whole: tuple[str, ...]) -> None:
    attribute = SCHEMA[name]
    step = 1.0 if whole else 0.125
    values = np.arange(-20, 100, step)
    if not attribute.clip:
        values = values[(values >= attribute.edges[0]) & (values <= attribute.edges[-1])]
    cells = np.array([cell_of(name, v) for v in values])
    compare = {"<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal, "=": np.equal}
    for constant in (-11, -10.5, -1, 0, 17, 18, 19, 19.5, 20, 39, 40, 64, 65, 89, 90, 91, 10.25, 49, 50, 51):
        held = (compare | {"<>": np.not_equal})[sign](values, constant)
        mixed = any(len(set(held[cells == i])) > 1 for i in range(attribute.size))
        try:
            made = workload_from_sql(
                SCHEMA, f"SELECT COUNT(*) FROM t WHERE {name} {sign} {constant}", whole_numbers=whole
            )
        except WorkloadError as error:
            text = str(error)
            assert mixed == ("cuts through" in text), (name, sign, constant, text)
            assert mixed or not held.any()
            continue
        (group,) = made.groups
        row = group_rows(group)[0] if group.attributes else np.ones(attribute.size)
        assert not mixed
        assert (row[cells] == held).all()


def test_a_refused_comparison_names_the_nearest_edges_and_what_to_write() -> None:
    with pytest.raises(WorkloadError, match=r"age <= 39 cuts through the bin \[20, 40\) of 'age'.*20 and 40"):
        workload_from_sql(SCHEMA, "SELECT COUNT(*) FROM t WHERE age BETWEEN 20 AND 39")
    offers = 0
    for sign, constant in itertools.product(["<", "<=", ">", ">=", "=", "<>"], [-11, 5, 39, 77, 90]):
        for name in ("age", "income"):
            try:
                workload_from_sql(SCHEMA, f"SELECT COUNT(*) FROM t WHERE {name} {sign} {constant}")
            except WorkloadError as error:
                if "write " not in str(error):
                    continue
                advice = str(error).split("write ")[1].split(", or say")[0].rstrip(".")
                for offer in advice.split(" or "):
                    workload_from_sql(SCHEMA, f"SELECT COUNT(*) FROM t WHERE {offer}")  # what is advised is accepted
                    offers += 1
    assert offers > 20


def test_several_statements_and_a_plan() -> None:
    text = """
        SELECT COUNT(*) FROM t;  -- everyone
        SELECT sex, COUNT(*) FROM t WHERE age >= 65 GROUP BY sex;;
        /* pairs */ select Code, count(*) from T group by "code"
    """
    made = workload_from_sql(SCHEMA, text, "t")
    assert [g.attributes for g in made.groups] == [(), ("sex", "age"), ("code",)]
    budget = Budget(pcost=1.0)
    again = Workload.from_json(made.to_json())
    assert plan(made, budget).hash == plan(again, budget).hash


def test_names_are_found_exactly_first_and_then_loosely() -> None:
    schema = Schema([Attribute.of_size(name, 3) for name in ("Age", "age", "a-b", "Sex")])

    def named(column: str) -> tuple[str, ...]:
        return workload_from_sql(schema, f"SELECT COUNT(*) FROM t WHERE {column} = 1").groups[0].attributes

    assert [named(c) for c in ("Age", "age", "SEX", "a_b", '"a-b"', "A_B")] == [
        (name,) for name in ("Age", "age", "Sex", "a-b", "a-b", "a-b")
    ]
    with pytest.raises(WorkloadError, match="could be 'Age' or 'age'"):
        named("AGE")
    with pytest.raises(WorkloadError, match="no attribute 'Sexx'; close names: 'Sex'"):
        named("Sexx")


@settings(max_examples=75, deadline=None)
@given(st.data())
def test_the_text_of_cells_holds_for_these_cells(data: st.DataObject) -> None:
    attribute = data.draw(st.sampled_from(SCHEMA.attributes))
    inside = np.array(data.draw(st.lists(st.booleans(), min_size=attribute.size, max_size=attribute.size)))
    found = conditions.of_cells(attribute, inside)
    np.testing.assert_array_equal(evaluate(conditions.text(found), [attribute]), inside)
    np.testing.assert_array_equal(evaluate(conditions.text(conditions.negation(found)), [attribute]), ~inside)


def test_a_box_of_cells() -> None:
    made = conditions.box_workload(SCHEMA, {"age": (2, 3), "sex": (0, 1), "code": (0, 4)}, weight=2.0)
    assert made.describe(0) == "20 <= age < 65 and sex != 'it\\'s or \"not\"'"
    assert made.groups[0].weight == 2.0
    assert made.groups[0].attributes == ("age", "sex")  # all cells of code are no condition
    expected = ((RECORDS.age >= 20) & (RECORDS.age < 65) & RECORDS.sex.isin(["F", "M"])).sum()
    table = count_marginals(RECORDS, SCHEMA, [made.groups[0].attributes])[made.groups[0].attributes]
    assert (group_rows(made.groups[0]) @ table.ravel()).tolist() == [expected]
    assert conditions.box_workload(SCHEMA, {}).describe(0) == "all records"
    for cells in ((-1, 2), (3, 2), (0, 5)):
        with pytest.raises(WorkloadError, match="cells 0 to 4"):
            conditions.box_workload(SCHEMA, {"age": cells})


# ---- whatever else is refused in words ---------------------------------------------------------------------------

REFUSED = {
    "": "no SQL",
    " ;; -- nothing": "no SQL",
    "SELECT SUM(age) FROM t": "all queries are counts",
    "SELECT AVG(age), COUNT(*) FROM t": "all queries are counts",
    "SELECT sex FROM t GROUP BY sex": "0 COUNT",
    "SELECT COUNT(*), COUNT(*) FROM t": "2 COUNT",
    "SELECT COUNT(age) FROM t": "does not count all records",
    "SELECT COUNT(DISTINCT age) FROM t": "does not count all records",
    "SELECT COUNT(*) FILTER (WHERE sex = 'F') FROM t": "Select attributes and COUNT",
    "SELECT COUNT(*) OVER () FROM t": "Select attributes and COUNT",
    "SELECT * FROM t": "Select attributes and COUNT",
    "SELECT age + 1, COUNT(*) FROM t GROUP BY 1": "Select attributes and COUNT",
    "SELECT CASE WHEN age < 18 THEN 'a' END, COUNT(*) FROM t": "selected but not in GROUP BY",
    "SELECT age, COUNT(*) FROM t GROUP BY CASE WHEN age < 18 THEN 'a' END": "selected but not in GROUP BY",
    "SELECT COUNT(*) FROM t GROUP BY age, CASE WHEN age < 18 THEN 'a' END": "grouped in two ways",
    "SELECT COUNT(*) FROM t GROUP BY CASE WHEN age < 18 THEN 1 ELSE 2 END, CASE WHEN age < 20 THEN 1 END": "two ways",
    "SELECT COUNT(*) FROM t GROUP BY CASE WHEN age < 18 THEN 'a' WHEN sex = 'F' THEN 'b' END": "one and the same",
    "SELECT COUNT(*) FROM t GROUP BY CASE WHEN age < 18 OR code = 1 THEN 'a' END": "one and the same",
    "SELECT COUNT(*) FROM t GROUP BY CASE WHEN age < 18 THEN sex ELSE 'b' END": "after THEN or ELSE",
    "SELECT COUNT(*) FROM t GROUP BY CASE WHEN age < 19 THEN 'a' END": "cuts through",
    "SELECT sex, COUNT(*) FROM t": "not in GROUP BY",
    "SELECT sex, COUNT(*) FROM t GROUP BY 2": "points at no attribute",
    "SELECT sex, COUNT(*) FROM t GROUP BY 9": "points at no attribute",
    "SELECT COUNT(*) FROM t GROUP BY age / 10": "Group by attributes",
    "SELECT sex, COUNT(*) FROM t GROUP BY sex WITH ROLLUP": "GROUP BY|brackets",
    "SELECT DISTINCT sex, COUNT(*) FROM t GROUP BY sex": "DISTINCT",
    "SELECT sex, COUNT(*) FROM t GROUP BY sex HAVING COUNT(*) > 5": "HAVING",
    "SELECT sex, COUNT(*) FROM t GROUP BY sex ORDER BY 2": "ORDER BY",
    "SELECT sex, COUNT(*) FROM t GROUP BY sex LIMIT 5": "LIMIT",
    "SELECT COUNT(*) FROM t JOIN u ON t.age = u.age": "JOIN",
    "SELECT COUNT(*) FROM t, u": "JOIN",
    "SELECT COUNT(*) FROM (SELECT * FROM t)": "Subqueries",
    "SELECT COUNT(*) FROM read_csv('/etc/passwd')": "functions",
    "SELECT COUNT(*) FROM t TABLESAMPLE 10%": "sample",
    "SELECT COUNT(*)": "no FROM",
    "WITH u AS (SELECT * FROM t) SELECT COUNT(*) FROM u": "only SELECT",
    "SELECT COUNT(*) FROM t UNION ALL SELECT COUNT(*) FROM t": "UNION",
    "SELECT COUNT(*) FROM t; SELECT COUNT(*) FROM u": "Statement 2.*same one",
    "SELECT COUNT(*) FROM t; DROP TABLE t": "Statement 2.*DROP",
    "COPY t TO 'file'": "COPY",
    "PRAGMA database_list": "PRAGMA",
    "SELECT COUNT(*) FROM t WHERE 1 = 1": "compares no attribute",
    "SELECT COUNT(*) FROM t WHERE TRUE": "cannot be asked",
    "SELECT COUNT(*) FROM t WHERE height > 3": "no attribute 'height'",
    "SELECT COUNT(*) FROM t WHERE u.age < 18": "another table",
    'SELECT COUNT(*) FROM t WHERE sex = "F"': "no attribute 'F'|single quotes",
    "SELECT COUNT(*) FROM t WHERE sex = 'f'": "no label 'f'",
    "SELECT COUNT(*) FROM t WHERE sex < 'F'": "no order",
    "SELECT COUNT(*) FROM t WHERE sex = 1": "has labels",
    "SELECT COUNT(*) FROM t WHERE age = '18'": "without quotes",
    "SELECT COUNT(*) FROM t WHERE age < 1e999": "finite",
    "SELECT COUNT(*) FROM t WHERE age < -'18'": "not a number",
    "SELECT COUNT(*) FROM t WHERE age IS NULL": "collects missing values",
    "SELECT COUNT(*) FROM t WHERE sex LIKE 'F%'": "cannot be asked",
    "SELECT COUNT(*) FROM t WHERE code IN (SELECT 1)": "cannot be asked",
    "SELECT COUNT(*) FROM t WHERE EXISTS (SELECT 1)": "cannot be asked",
    "SELECT COUNT(*) FROM t WHERE FLOOR(code) = 1": "cannot be compared",
    "SELECT COUNT(*) FROM t WHERE code / 2 = 1": "cannot be compared",
    "SELECT COUNT(*) FROM t WHERE code * 0.1 < 1": "not whole",
    "SELECT COUNT(*) FROM t WHERE age + code < 20": "has bins",
    "SELECT COUNT(*) FROM t WHERE age < code": "has bins",
    "SELECT COUNT(*) FROM t WHERE code * 9007199254740992 < 3": "stop being exact",
    "SELECT COUNT(*) FROM t WHERE age < 18 AND age >= 20": "No record can meet",
    'SELECT COUNT(*) FROM t WHERE code + "hours-per-week" > 99': "No record can meet",
    "SELECT COUNT(*) FROM t WHERE (((": "no valid SQL",
    "SELECT COUNT(*) FROM t WHERE sex = 'F": "does not end",
    "SELECT COUNT(*) FROM t WHERE code < ?": "cannot be",
    "SELECT FROM WHERE": "SQL|FROM|COUNT",
}


@pytest.mark.parametrize("sql", REFUSED)
def test_what_is_refused_says_why(sql: str) -> None:
    with pytest.raises(WorkloadError, match=f"(?s){REFUSED[sql]}") as caught:
        workload_from_sql(SCHEMA, sql)
    assert len(str(caught.value)) < 700


def test_the_same_set_twice_is_asked_once() -> None:
    sets = "((sex), (age, sex), (sex), (sex, age, sex), ())"
    made = workload_from_sql(SCHEMA, f"SELECT COUNT(*) FROM t GROUP BY GROUPING SETS {sets}")
    assert [set(g.attributes) for g in made.groups] == [{"sex"}, {"age", "sex"}, set()]


def test_the_table_can_be_given() -> None:
    assert len(workload_from_sql(SCHEMA, "SELECT COUNT(*) FROM People", "PEOPLE")) == 1
    with pytest.raises(WorkloadError, match="the table here is 'people'"):
        workload_from_sql(SCHEMA, "SELECT COUNT(*) FROM t", "people")
    with pytest.raises(WorkloadError, match="names of the schema"):
        workload_from_sql(SCHEMA, "SELECT COUNT(*) FROM t", whole_numbers=["height"])


WIDE = Schema([Attribute.of_size(f"x{i}", 10) for i in range(40)])
START = "SELECT COUNT(*) FROM t WHERE "
HOSTILE = {
    "brackets": START + "(" * 100_000 + "code = 1" + ")" * 100_000,
    "fewer brackets": START + "(" * 60 + "code = 1" + ")" * 60,
    "nots": START + "NOT " * 5_000 + "code = 1",
    "minuses": START + "code = " + "- " * 5_000 + "1",
    "a long sum": START + "code" + " + code" * 5_000 + " = 1",
    "a long list of mixed ors": START + " OR ".join(f"(code = {i % 5} AND age < 18)" for i in range(500)),
    "megabytes": START + "code = 1 OR " * 300_000,
    "a long text": START + f"sex = '{'F' * 150_000}'",
    "a long name": START + f"{'x' * 150_000} = 1",
    "a long number": START + f"code = {'9' * 150_000}",
    "case": START + "CASE WHEN " * 500 + "1" + " END" * 500,
    "subqueries": "SELECT COUNT(*) FROM " + "(SELECT * FROM " * 30 + "t" + ")" * 30,
    "nulls": START + "sex = '\x00'",
    "directions": START + "sex = '\u202e\u2066F'",
    "surrogates": START + "sex = '\ud800'",
    "full width": "ＳＥＬＥＣＴ COUNT(*) FROM t",
    "another quote": START + "sex = ‘F’",
    "injection": START + "sex = '' OR ''=''; DROP TABLE t; --",
    "bytes": b"SELECT COUNT(*) FROM t",
    "nothing": None,
    "jinja": START + "{{ code }} = 1",
    "many statements": "SELECT COUNT(*) FROM t;" * 20_000,
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_texts_are_refused(case: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        workload_from_sql(SCHEMA, HOSTILE[case])
    assert 20 <= len(str(caught.value)) < 1000


@pytest.mark.parametrize("by", ["CUBE", "ROLLUP"])
def test_too_many_sets_and_cells(by: str) -> None:
    names = ", ".join(WIDE.names)
    made = f"SELECT COUNT(*) FROM t GROUP BY {by} ({names})"
    if by == "CUBE":
        with pytest.raises(WorkloadError, match="CUBE of 40"):
            workload_from_sql(WIDE, made)
        with pytest.raises(WorkloadError, match="more than 5,000 sets"):
            workload_from_sql(
                WIDE, "SELECT COUNT(*) FROM t GROUP BY CUBE (x1,x2,x3,x4,x5,x6,x7), CUBE(x8,x9,x10,x11,x12,x13)"
            )
    else:
        assert len(workload_from_sql(WIDE, made).groups) == 41
    with pytest.raises(WorkloadError, match="written down one by one"):
        workload_from_sql(WIDE, "SELECT COUNT(*) FROM t WHERE x0 + x1 < 9 GROUP BY x2, x3, x4, x5")
    with pytest.raises(WorkloadError, match="more than 4,000,000 cells"):
        workload_from_sql(WIDE, START + " + ".join(WIDE.names[:8]) + " < 9")


WORDS = """
    SELECT COUNT(*) COUNT ( ) * FROM t WHERE AND OR NOT IN BETWEEN GROUP BY CUBE ROLLUP GROUPING SETS age sex code = < >
    <> <= >= + - / 1 20 40.5 'F' 'M' "code" , ; . ABS NULL IS CASE WHEN THEN ELSE END ALL AS DISTINCT LIMIT HAVING ::
    [ ] { } $1 ? @ # % ^ && | -> ~ INTERVAL CAST DATE EXTRACT TRIM VALUES PIVOT UNNEST LAMBDA x'00' e'\\n'
"""


def test_random_words_give_a_workload_or_a_refusal() -> None:
    draw = random.Random(7)
    words = WORDS.split()
    made = 0
    for k in range(3_000):
        text = " ".join(draw.choices(words, k=draw.randint(1, 14)))
        if k % 3:
            text = f"SELECT COUNT(*) FROM t {'WHERE ' if k % 3 == 1 else 'GROUP BY '}{text}"
        try:
            made += len(workload_from_sql(SCHEMA, text).groups) > 0
        except WorkloadError as error:
            assert 20 <= len(str(error)) < 1000  # noqa: PT017
    assert made > 5


def test_limits_are_what_the_messages_say() -> None:
    with pytest.raises(WorkloadError, match=f"{MAX_TEXT:,} are read"):
        workload_from_sql(SCHEMA, " " * (MAX_TEXT + 1))
    with pytest.raises(WorkloadError, match=f"{MAX_TOKENS:,} are read"):
        workload_from_sql(SCHEMA, "a " * (MAX_TOKENS + 1))
