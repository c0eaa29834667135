"""SQL statements: several in one text, grouping sets, names of attributes and tables."""

from __future__ import annotations

import pytest

from engine.errors import WorkloadError
from engine.mechanisms import plan
from engine.privacy import Budget
from engine.workload import Attribute, Schema, Workload
from engine.workload.sql import workload_from_sql
from tests.workload.sql.example import SCHEMA


def test_sql_with_several_statements_gives_plan() -> None:
    text = """
        SELECT COUNT(*) FROM t;  -- everyone
        SELECT sex, COUNT(*) FROM t WHERE age >= 65 GROUP BY sex;;
        /* pairs */ select Code, count(*) from T group by "code"
    """
    workload = workload_from_sql(SCHEMA, text, "t")
    assert [g.attributes for g in workload.groups] == [(), ("sex", "age"), ("code",)]
    loaded = Workload.from_json(workload.to_json())
    budget = Budget(pcost=1.0)
    assert plan(workload, budget).hash == plan(loaded, budget).hash


def test_sql_names_match_exactly_before_loosely() -> None:
    schema = Schema([Attribute.of_size(name, 3) for name in ("Age", "age", "a-b", "Sex")])

    def attribute_of(column: str) -> str:
        workload = workload_from_sql(schema, f"SELECT COUNT(*) FROM t WHERE {column} = 1")
        (name,) = workload.groups[0].attributes
        return name

    assert [attribute_of(column) for column in ("Age", "age", "SEX")] == ["Age", "age", "Sex"]
    assert [attribute_of(column) for column in ("a_b", '"a-b"', "A_B")] == ["a-b"] * 3
    with pytest.raises(WorkloadError, match="could be the attribute 'Age' or 'age'"):
        attribute_of("AGE")
    with pytest.raises(WorkloadError, match="no attribute 'Sexx'; close names: 'Sex'"):
        attribute_of("Sexx")


def test_name_of_attribute_precedes_alias() -> None:
    """As in PostgreSQL: GROUP BY prefers a column to an alias, and quotes keep the case."""

    def grouped(name: str) -> tuple[str, ...]:
        text = f"SELECT sex AS {name}, COUNT(*) FROM t GROUP BY {name}"
        return workload_from_sql(SCHEMA, text).groups[0].attributes

    assert grouped("years") == grouped('"AGE"') == ("sex",)
    for name in ("age", "AGE", '"age"'):
        with pytest.raises(WorkloadError, match="sex is in SELECT but not in GROUP BY"):
            grouped(name)


def test_duplicate_grouping_set_is_used_once() -> None:
    sets = "((sex), (age, sex), (sex), (sex, age, sex), ())"
    workload = workload_from_sql(SCHEMA, f"SELECT COUNT(*) FROM t GROUP BY GROUPING SETS {sets}")
    assert [set(g.attributes) for g in workload.groups] == [{"sex"}, {"age", "sex"}, set()]


def test_sql_table_name_must_match() -> None:
    assert len(workload_from_sql(SCHEMA, "SELECT COUNT(*) FROM People", "PEOPLE")) == 1
    with pytest.raises(WorkloadError, match="the required table is 'people'"):
        workload_from_sql(SCHEMA, "SELECT COUNT(*) FROM t", "people")


def test_sql_integer_column_without_integer_edges_is_refused() -> None:
    with pytest.raises(WorkloadError, match="integer edges"):
        workload_from_sql(SCHEMA, "SELECT COUNT(*) FROM t", integer_columns=["height"])
