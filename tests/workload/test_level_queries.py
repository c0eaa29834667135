"""Queries on the areas of one level, compared with the texts and matrices of all queries."""

from __future__ import annotations

import numpy as np
import pytest

from engine.errors import WorkloadError
from engine.workload import Attribute, CodeList, Level, Schema, Workload
from engine.workload.level_queries import at_level, level_groups, levels_of_group
from tests.code_lists import CODES, KINDS, SCHEMA, WORKLOAD


def test_numbers_of_level_select_its_queries() -> None:
    texts = [WORKLOAD.describe(i) for i in range(WORKLOAD.queries)]
    levels = levels_of_group(SCHEMA, WORKLOAD.groups[0])
    assert [level.title for level in levels] == ["region", "county", "place"]
    for level in levels:
        all_areas = range(len(level.labels))
        expected = [i for i, text in enumerate(texts) if f" {level.title} = " in text]
        assert level.numbers(all_areas, 0, WORKLOAD.queries).tolist() == expected
        runs = level.runs(all_areas, 0, WORKLOAD.queries)
        assert [i for start, end in runs for i in range(start, end)] == expected


def test_areas_are_found_and_paged() -> None:
    _, county, _ = levels_of_group(SCHEMA, WORKLOAD.groups[0])
    assert list(county.find("")) == [0, 1, 2]
    assert list(county.find("b")) == [1]
    assert list(county.find("nowhere")) == []
    numbers_of_b = county.numbers([1], 0, 6)
    assert all(" and county = B" in WORKLOAD.describe(i) for i in numbers_of_b.tolist())
    assert county.numbers([1], 2, 5).tolist() == numbers_of_b[2:5].tolist()
    assert county.runs([], 0, 10) == []


def test_levels_of_two_attributes_are_distinguished() -> None:
    families = {"place": Level("county"), "work": "marginal"}
    (group,) = Workload(SCHEMA).add(("place", "work"), families).groups
    titles = [level.title for level in levels_of_group(SCHEMA, group)]
    assert titles == ["county of place", "work"]
    assert "region of work" in level_groups(SCHEMA, group)


def test_level_groups_omit_levels_of_queries() -> None:
    groups = level_groups(SCHEMA, WORKLOAD.groups[0])
    assert list(groups) == ["kind"]
    assert groups["kind"].count == 2 * 2 * 3
    (marginal,) = Workload(SCHEMA).add("place").groups
    assert list(level_groups(SCHEMA, marginal)) == ["region", "county", "kind"]
    table = np.arange(6.0)
    (part,) = at_level(SCHEMA, marginal, "place", "region").parts
    assert part.family.dot(part.sizes, table).tolist() == [0 + 1 + 2, 3 + 4 + 5]


def test_level_groups_of_two_attributes_omit_levels_of_queries() -> None:
    group = Workload(SCHEMA).add(("place", "work"), {"place": Level("region"), "work": "total"})
    titles = list(level_groups(SCHEMA, group.groups[0]))
    assert titles == ["county of place", "kind of place", "region of work", "county of work"]


def test_level_of_other_attribute_is_refused() -> None:
    with pytest.raises(WorkloadError, match="age"):
        at_level(SCHEMA, Workload(SCHEMA).add("sex").groups[0], "age", "region")
    with pytest.raises(WorkloadError, match="hierarchy"):
        at_level(SCHEMA, WORKLOAD.groups[0], "sex", "region")


def test_code_list_is_added_and_removed() -> None:
    schema = Schema([Attribute.of_size("age", 3)]).with_code_list("place", CODES)
    assert schema["place"].labels == CODES.codes
    both = schema.with_code_list("place", KINDS)
    assert [h.name for h in both["place"].hierarchies] == ["geography", "type"]
    assert both.without_hierarchy("place", "type") == schema
    assert CODES.hierarchy.levels_text == "region (2 areas), county (3 areas)"


def test_code_list_from_text_detects_format() -> None:
    csv = "code,label,parent\nA,North,\na1,,A\na2,,A\nB,South,\nb1,,B\n"
    hrc = "North\n@a1\n@a2\nSouth\n@b1\n"
    fields = "@;Total\n@@;North\n@@@;a1\n@@@;a2\n@@;South\n@@@;b1\n"
    lists = [CodeList.from_text(text, levels=["region"]) for text in (csv, hrc, fields)]
    assert {codes.codes for codes in lists} == {("a1", "a2", "b1")}
    assert {codes.hierarchy.levels[0].labels for codes in lists} == {("North", "South")}
