"""Workload page: groups from SQL."""

from __future__ import annotations

import pytest

from engine.workload import Attribute, Schema
from engine.workload.sql import example, workload_from_sql
from tests.app.session import demo_schema
from tests.app.workload.sessions import SURVEY, open_workload


def test_sql_is_checked_before_it_is_added() -> None:
    session = open_workload(add_how="Write SQL")
    assert not any(b.key == "add_sql" for b in session.app.button)
    text = (
        "SELECT vote, COUNT(*) FROM t WHERE age BETWEEN 20 AND 39 GROUP BY vote; SELECT COUNT(*)"
        " FROM t"
    )
    session.set(sql_text=text)
    assert "The SQL describes 2 tables with 3 queries" in session.text()
    assert "age BETWEEN 20 AND 39 is read as **20 <= age < 40**" in session.text()
    session.press("add_sql")
    expected = workload_from_sql(SURVEY, text)
    assert session.studio.workload == expected
    assert session.press("undo").studio.workload.groups == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("SELECT AVG(age) FROM t", "all queries are counts"),
        ("SELECT COUNT(*) FROM t WHERE income > 3", "no attribute 'income'"),
        ("SELECT COUNT(*) FROM t WHERE household_income < 100", "nearest edges are 0 and 3000"),
        ("DROP TABLE t", "only SELECT"),
        ("(" * 5000, "brackets"),
        ("'", "quote"),
        ("<img src=x onerror=alert(1)>", "only SELECT"),
    ],
)
def test_invalid_sql_is_refused_with_reason(text: str, words: str) -> None:
    session = open_workload(add_how="Write SQL").set(sql_text=text)
    assert words in session.errors()
    assert not any(b.key == "add_sql" for b in session.app.button)
    assert session.studio.workload.groups == ()


def test_sql_condition_inside_bin_names_edges() -> None:
    session = open_workload("census", add_how="Write SQL").set(
        sql_text="SELECT COUNT(*) FROM t WHERE age <= 39"
    )
    assert "cuts through the bin [39, 40)" in session.errors()
    assert not any(b.key == "add_sql" for b in session.app.button)


@pytest.mark.parametrize("name", ["survey", "adult", "cps", "census", "loans"])
def test_sql_example_can_be_added(name: str) -> None:
    session = open_workload(name, add_how="Write SQL").press("sql_example").press("add_sql")
    assert session.studio.workload == workload_from_sql(
        demo_schema(name), example(demo_schema(name))
    )


def test_sql_example_quotes_special_names() -> None:
    schema = Schema(
        [
            Attribute.of_size(n, 3)
            for n in ("group", 'a"b', "é", "x y", "plain", "1st", "--", "'", "ﬁ")
        ]
    )
    for first in range(len(schema)):
        names = schema.names[first:] + schema.names[:first]
        rotated = Schema([schema[name] for name in names])
        assert workload_from_sql(rotated, example(rotated)).groups[0].attributes == names[:2]
