"""SQL that does not count records, and hostile SQL texts, are refused."""

from __future__ import annotations

import random

import pytest

from engine.errors import WorkloadError
from engine.workload import Attribute, Schema
from engine.workload.sql import MAX_TEXT, MAX_TOKENS, workload_from_sql
from tests.workload.sql.example import SCHEMA

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
    "SELECT CASE WHEN age < 18 THEN 'a' END, COUNT(*) FROM t": "not in GROUP BY",
    "SELECT age, COUNT(*) FROM t GROUP BY CASE WHEN age < 18 THEN 'a' END": ("not in GROUP BY"),
    "SELECT COUNT(*) FROM t GROUP BY age, CASE WHEN age < 18 THEN 'a' END": "by cells and by CASE",
    "SELECT COUNT(*) FROM t GROUP BY CASE WHEN age < 18 THEN 1 ELSE 2 END, CASE WHEN age < 20 THEN "
    "1 END": ("two CASE"),
    "SELECT COUNT(*) FROM t GROUP BY CASE WHEN age < 18 THEN 'a' WHEN sex = 'F' THEN 'b' END": (
        "one attribute in all conditions"
    ),
    "SELECT COUNT(*) FROM t GROUP BY CASE WHEN age < 18 OR code = 1 THEN 'a' END": (
        "one attribute in all conditions"
    ),
    "SELECT COUNT(*) FROM t GROUP BY CASE WHEN age < 18 THEN sex ELSE 'b' END": (
        "after THEN or ELSE"
    ),
    "SELECT COUNT(*) FROM t GROUP BY CASE WHEN age < 19 THEN 'a' END": "cuts through",
    "SELECT sex, COUNT(*) FROM t": "not in GROUP BY",
    "SELECT sex, COUNT(*) FROM t GROUP BY 2": "does not refer",
    "SELECT sex, COUNT(*) FROM t GROUP BY 9": "does not refer",
    "SELECT COUNT(*) FROM t GROUP BY age / 10": "Group by attributes",
    "SELECT sex, COUNT(*) FROM t GROUP BY sex WITH ROLLUP": "GROUP BY|brackets",
    "SELECT DISTINCT sex, COUNT(*) FROM t GROUP BY sex": "DISTINCT",
    "SELECT sex, COUNT(*) FROM t GROUP BY sex HAVING COUNT(*) > 5": "HAVING",
    "SELECT sex, COUNT(*) FROM t GROUP BY sex ORDER BY 2": "ORDER BY",
    "SELECT sex, COUNT(*) FROM t GROUP BY sex LIMIT 5": "LIMIT",
    "SELECT COUNT(*) FROM t JOIN u ON t.age = u.age": "JOIN",
    "SELECT COUNT(*) FROM t, u": "JOIN",
    "SELECT COUNT(*) FROM (SELECT * FROM t)": "subqueries",
    "SELECT COUNT(*) FROM read_csv('/etc/passwd')": "functions",
    "SELECT COUNT(*) FROM t TABLESAMPLE 10%": "TABLESAMPLE",
    "SELECT COUNT(*)": "no FROM",
    "WITH u AS (SELECT * FROM t) SELECT COUNT(*) FROM u": "only SELECT",
    "SELECT COUNT(*) FROM t UNION ALL SELECT COUNT(*) FROM t": "UNION",
    "SELECT COUNT(*) FROM t; SELECT COUNT(*) FROM u": "Statement 2.*earlier",
    "SELECT COUNT(*) FROM t; DROP TABLE t": "Statement 2.*DROP",
    "COPY t TO 'file'": "COPY",
    "PRAGMA database_list": "PRAGMA",
    "SELECT COUNT(*) FROM t WHERE 1 = 1": "contains no attribute",
    "SELECT COUNT(*) FROM t WHERE TRUE": "not supported",
    "SELECT COUNT(*) FROM t WHERE height > 3": "no attribute 'height'",
    "SELECT COUNT(*) FROM t WHERE u.age < 18": "another table",
    'SELECT COUNT(*) FROM t WHERE sex = "F"': "no attribute 'F'|single quotes",
    "SELECT COUNT(*) FROM t WHERE sex = 'f'": "no label 'f'",
    "SELECT COUNT(*) FROM t WHERE sex < 'F'": "no order",
    "SELECT COUNT(*) FROM t WHERE sex = 1": "has labels",
    "SELECT COUNT(*) FROM t WHERE age = '18'": "without quotes",
    "SELECT COUNT(*) FROM t WHERE age < 1e999": "finite",
    "SELECT COUNT(*) FROM t WHERE age < -'18'": "not a number",
    "SELECT COUNT(*) FROM t WHERE age IS NULL": "no cell for missing values of 'age'",
    "SELECT COUNT(*) FROM t WHERE age IS TRUE": "Conditions compare",
    "SELECT COUNT(*) FROM t WHERE (age + 1) IS NULL": "Remove the condition",
    "SELECT COUNT(*) FROM t WHERE sex LIKE 'F%'": "not supported",
    "SELECT COUNT(*) FROM t WHERE code IN (SELECT 1)": "not supported",
    "SELECT COUNT(*) FROM t WHERE EXISTS (SELECT 1)": "not supported",
    "SELECT COUNT(*) FROM t WHERE FLOOR(code) = 1": "not supported in a comparison",
    "SELECT COUNT(*) FROM t WHERE code / 2 = 1": "not supported in a comparison",
    "SELECT COUNT(*) FROM t WHERE code * 0.1 < 1": "0.1",
    "SELECT COUNT(*) FROM t WHERE age + code < 20": "has bins",
    "SELECT COUNT(*) FROM t WHERE age < code": "has bins",
    "SELECT COUNT(*) FROM t WHERE code * 9007199254740992 < 3": "rounded",
    "SELECT COUNT(*) FROM t WHERE age < 18 AND age >= 20": "No record can satisfy",
    'SELECT COUNT(*) FROM t WHERE code + "hours-per-week" > 99': "No record can satisfy",
    "SELECT COUNT(*) FROM t WHERE (((": "not valid SQL",
    "SELECT COUNT(*) FROM t WHERE sex = 'F": "not closed",
    "SELECT COUNT(*) FROM t WHERE code < ?": "not supported",
    "SELECT FROM WHERE": "SQL|FROM|COUNT",
}


@pytest.mark.parametrize("sql", REFUSED)
def test_unsupported_sql_is_refused_with_reason(sql: str) -> None:
    with pytest.raises(WorkloadError, match=f"(?s){REFUSED[sql]}") as caught:
        workload_from_sql(SCHEMA, sql)
    assert len(str(caught.value)) < 700


def test_condition_on_null_names_cell_of_missing_values() -> None:
    schema = Schema(
        [
            Attribute.categorical("sex", ["F", "M"], missing="don't know"),
            Attribute.numeric("age", [-1, 0, 18], missing=-1),
        ]
    )
    for name, words in {"sex": r"'sex' with 'don''t know'", "age": r"replaced by -1"}.items():
        with pytest.raises(WorkloadError, match=words):
            workload_from_sql(schema, f"SELECT COUNT(*) FROM t WHERE {name} IS NOT NULL")


WIDE = Schema([Attribute.of_size(f"x{i}", 10) for i in range(40)])
START = "SELECT COUNT(*) FROM t WHERE "
HOSTILE = {
    "brackets": START + "(" * 100_000 + "code = 1" + ")" * 100_000,
    "fewer brackets": START + "(" * 60 + "code = 1" + ")" * 60,
    "nots": START + "NOT " * 5_000 + "code = 1",
    "minuses": START + "code = " + "- " * 5_000 + "1",
    "a long sum": START + "code" + " + code" * 5_000 + " = 1",
    "a long list of mixed ors": (
        START + " OR ".join(f"(code = {i % 5} AND age < 18)" for i in range(500))
    ),
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
def test_hostile_sql_is_refused(case: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        workload_from_sql(SCHEMA, HOSTILE[case])
    assert 20 <= len(str(caught.value)) < 1000


def test_sql_above_size_limits_is_refused() -> None:
    names = ", ".join(WIDE.names)
    two_cubes = "CUBE (x1,x2,x3,x4,x5,x6,x7), CUBE(x8,x9,x10,x11,x12,x13)"
    for sql, message in (
        (f"SELECT COUNT(*) FROM t GROUP BY CUBE ({names})", "CUBE of 40"),
        (f"SELECT COUNT(*) FROM t GROUP BY {two_cubes}", "more than 5,000 sets"),
        (
            "SELECT COUNT(*) FROM t WHERE x0 + x1 < 9 GROUP BY x2, x3, x4, x5",
            "10,000 queries, but at most 5,000",
        ),
        (START + " + ".join(WIDE.names[:8]) + " < 9", "more than 4,000,000 cells"),
    ):
        with pytest.raises(WorkloadError, match=message):
            workload_from_sql(WIDE, sql)
    rollup = workload_from_sql(WIDE, f"SELECT COUNT(*) FROM t GROUP BY ROLLUP ({names})")
    assert len(rollup.groups) == len(WIDE.names) + 1  # the prefixes of the names


WORDS = """
    SELECT COUNT(*) COUNT ( ) * FROM t WHERE AND OR NOT IN BETWEEN GROUP BY CUBE ROLLUP GROUPING SETS age sex code = < >
    <> <= >= + - / 1 20 40.5 'F' 'M' "code" , ; . ABS NULL IS CASE WHEN THEN ELSE END ALL AS DISTINCT LIMIT HAVING ::
    [ ] { } $1 ? @ # % ^ && | -> ~ INTERVAL CAST DATE EXTRACT TRIM VALUES PIVOT UNNEST LAMBDA x'00' e'\\n'
"""


def test_random_sql_tokens_parse_or_raise_workload_error() -> None:
    rng = random.Random(7)
    words = WORDS.split()
    starts = ["", "SELECT COUNT(*) FROM t WHERE ", "SELECT COUNT(*) FROM t GROUP BY "]
    accepted = 0
    for start in starts * 1_000:
        text = start + " ".join(rng.choices(words, k=rng.randint(1, 14)))
        try:
            accepted += len(workload_from_sql(SCHEMA, text).groups) > 0
        except WorkloadError as error:
            assert 20 <= len(str(error)) < 1000  # noqa: PT017
    assert accepted > 5


def test_sql_limits_match_messages() -> None:
    with pytest.raises(WorkloadError, match=f"{MAX_TEXT:,} are allowed"):
        workload_from_sql(SCHEMA, " " * (MAX_TEXT + 1))
    with pytest.raises(WorkloadError, match=f"{MAX_TOKENS:,} are allowed"):
        workload_from_sql(SCHEMA, "a " * (MAX_TOKENS + 1))
