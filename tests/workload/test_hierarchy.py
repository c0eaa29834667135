"""Hierarchies of code lists: readers, refusals, query families of levels, files, predicates."""

import json
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import SchemaError, WorkloadError
from engine.mechanisms import plan
from engine.privacy import Budget
from engine.workload import (
    Attribute,
    CodeList,
    Hierarchy,
    HierarchyLevel,
    Level,
    Levels,
    Schema,
    Workload,
    hierarchy,
)
from engine.workload.predicates import evaluate, named_in
from tests.workload.refusals import check_refused

TREE = {
    "North": {"Ohio": ["3901", "3903"], "Iowa": ["1901"]},
    "South": {"Utah": ["4901", "4903", "4905"]},
}
ROWS = [
    ("N", "North", "", "region"),
    ("S", "South", None, "region"),
    ("39", "Ohio", "N", "state"),
    ("19", "Iowa", "N", "state"),
    ("49", "Utah", "S", "state"),
    *[(code, "", code[:2], "") for code in ("3901", "3903", "1901", "4901", "4903", "4905")],
]
CSV = "code,label,parent,level\n" + "".join(
    ",".join(cell or "" for cell in row) + "\n" for row in ROWS
)
HRC = "North\n@Ohio\n@@3901\n@@3903\n@Iowa\n@@1901\nSouth\n@Utah\n@@4901\n@@4903\n@@4905\n"
FIELDS = "@;Total\n" + "".join(
    f"@@{'@' * line.count('@')};{line.lstrip('@')}\n" for line in HRC.splitlines()
)
NAMED = {"name": "geography", "levels": ["region", "state"]}


def county() -> Attribute:
    return Attribute.hierarchy("county", CodeList.from_labels(TREE, **NAMED))


# ---- readers


@pytest.mark.parametrize(
    "code_list",
    [
        CodeList.from_labels(TREE, **NAMED),
        CodeList.from_rows(ROWS, name="geography"),
        CodeList.from_rows([row[:3] for row in ROWS], **NAMED),
        CodeList.from_csv(CSV, name="geography"),
        CodeList.from_csv("\ufeff" + CSV.replace(",", ";").replace("\n", "\r\n"), name="geography"),
        CodeList.from_csv(CSV.encode("utf-16"), name="geography"),
        CodeList.from_hrc(HRC, **NAMED),
        CodeList.from_hrc(HRC.replace("@", "--").encode(), indent="--", **NAMED),
        CodeList.from_hrc(FIELDS, **NAMED),
        CodeList.from_hrc("level,name\n" + FIELDS.replace(";", ","), **NAMED),
        CodeList.from_hrc(FIELDS.replace(";", "\t"), **NAMED),
        CodeList.from_hrc("".join(f'"{x}"\n' for x in FIELDS.replace(";", '";"').split()), **NAMED),
    ],
)
def test_code_list_formats_give_equal_hierarchies(code_list: CodeList) -> None:
    assert code_list.codes == ("3901", "3903", "1901", "4901", "4903", "4905")
    regions, states = code_list.hierarchy.levels
    assert code_list.hierarchy.level_names == ("region", "state")
    assert regions.labels == ("North", "South")
    assert states.labels == ("Ohio", "Iowa", "Utah")
    assert regions.area_of_cell.tolist() == [0, 0, 0, 1, 1, 1]
    assert states.area_of_cell.tolist() == [0, 0, 1, 2, 2, 2]
    assert not states.area_of_cell.flags.writeable
    assert code_list.hierarchy == CodeList.from_labels(TREE, **NAMED).hierarchy


def test_code_list_without_level_names_numbers_levels() -> None:
    assert CodeList.from_labels(TREE).hierarchy.level_names == ("level 1", "level 2")


def test_code_list_total_is_no_level() -> None:
    tree = CodeList.from_labels({"USA": {"all": TREE}}, **NAMED)
    assert tree.hierarchy == CodeList.from_labels(TREE, **NAMED).hierarchy


def test_early_leaf_is_area_of_deeper_levels() -> None:
    """A cell whose branch of the tree has fewer levels is its own area on the missing levels."""
    levels = CodeList.from_labels({**TREE, "DC": ["11"], "Guam": {"Guam": ["66"]}}).hierarchy.levels
    assert [level.labels[-2:] for level in levels] == [("DC", "Guam"), ("11", "Guam")]
    rows = [*ROWS, ("11", "District", "", "county")]
    levels = CodeList.from_rows(rows).hierarchy.levels
    assert [level.labels[level.area_of_cell[-1]] for level in levels] == ["District"] * 2


def test_repeated_labels_of_areas_get_codes() -> None:
    rows = [("1", "Lee", ""), ("2", "Lee", ""), ("3", "Ohm", ""), ("a", "", "1"), ("b", "", "2")]
    assert CodeList.from_rows(rows).hierarchy.levels[0].labels == ("Lee (1)", "Lee (2)", "Ohm")
    nested = {"Ohio": {"Lee": ["a"]}, "Iowa": {"Lee": ["b"]}}
    assert CodeList.from_labels(nested).hierarchy.levels[1].labels == ("Lee (Ohio)", "Lee (Iowa)")
    rows = [("A", "A", ""), ("B", "A", ""), ("x", "", "A"), ("y", "", "B")]
    assert CodeList.from_rows(rows).hierarchy.levels[0].labels == ("A (A)", "A (B)")


def test_codes_in_other_case_or_with_accents_are_different() -> None:
    nested = {"A": ["Le\u00f3n", "Leon"], "B": ["leon", "1 11", "11 1"]}
    assert CodeList.from_labels(nested).codes == ("Le\u00f3n", "Leon", "leon", "1 11", "11 1")


def test_codes_keep_zeros_and_blanks() -> None:
    rows = [("01", "", ""), ("1", "", ""), (" 010", "", "01"), ("0010 ", "", "1")]
    # Only codes without children are cells.
    assert CodeList.from_rows(rows).codes == (" 010", "0010 ")


@st.composite
def tables(draw: st.DrawFn) -> list[tuple[str, str, str]]:
    """Draw the rows (code, label, parent) of a random tree, in random order.

    At least two codes have no parent.
    """
    parents = [0, 0, *(draw(st.integers(0, i)) for i in range(2, draw(st.integers(3, 20))))]
    rows = [(f"c{i}", f"label {i % 3}", f"c{p}" if p else "") for i, p in enumerate(parents, 1)]
    return draw(st.permutations(rows))


@given(tables())
@settings(max_examples=50, deadline=None)
def test_areas_are_ancestors_of_cells(rows: list[tuple[str, str, str]]) -> None:
    parent = {code: above for code, _, above in rows}
    cells = [code for code in parent if code not in parent.values()]
    paths = [[cell] for cell in cells]
    for path in paths:
        while parent[path[0]]:  # the root of a tree has the empty parent
            path.insert(0, parent[path[0]])
    deepest = max(map(len, paths)) - 1
    # At each depth, the area of a cell is its ancestor at this depth.  A cell whose own depth is
    # smaller is its own area.
    expected = [[path[min(depth, len(path) - 1)] for path in paths] for depth in range(deepest)]
    if not expected:
        check_refused(SchemaError, ["no level"], CodeList.from_rows, rows)
        return
    code_list = CodeList.from_rows(rows)
    assert code_list.codes == tuple(cells)
    assert len(code_list.hierarchy.levels) == len(expected)
    for level, areas in zip(code_list.hierarchy.levels, expected, strict=True):
        assert len(set(zip(level.area_of_cell, areas, strict=True))) == len(set(areas))
        assert level.areas == len(set(areas))
    assert Hierarchy.from_dict(code_list.hierarchy.to_dict()) == code_list.hierarchy


# ---- refusals

BAD_ROWS: dict[str, tuple[list[Any], list[str]]] = {
    "cycle": ([("a", "", "b"), ("b", "", "a"), ("c", "", "")], ["cycle"]),
    "own parent": ([("a", "", "a"), ("c", "", "")], ["cycle"]),
    "two parents": ([*ROWS, ("3901", "", "19", "")], ["3901", "two parents"]),
    "duplicate": ([*ROWS, ROWS[-1]], ["4905", "twice"]),
    "unknown parent": ([*ROWS, ("x", "", "48", "")], ["unknown parent", "48"]),
    "blank parent": ([*ROWS, ("x", "", " 49", "")], ["unknown parent", "blanks"]),
    "blank code": ([*ROWS, ("4905 ", "", "49", "")], ["4905", "blanks"]),
    "non-breaking blank": (
        [*ROWS, ("49\u00a005", "", "49", ""), ("49 05", "", "49", "")],
        ["49 05", "blanks"],
    ),
    "zero-width character": ([*ROWS, ("49\u200b05", "", "49", "")], ["4905", "not visible"]),
    "decomposed accent": (
        [*ROWS, ("Le\u00f3n", "", "49", ""), ("Leo\u0301n", "", "49", "")],
        ["not visible"],
    ),
    "parent with zero": (
        [*ROWS, ("x", "", "049", "")],
        ["unknown parent", "'49'", "leading zeros"],
    ),
    "parent in other case": ([*ROWS, ("A", "", "", ""), ("x", "", "a", "")], ["'A'", "case"]),
    "parent without accent": (
        [*ROWS, ("Le\u00f3n", "", "", ""), ("x", "", "Leon", "")],
        ["accents"],
    ),
    "empty code": ([*ROWS, ("", "x", "49", "")], ["code", "empty"]),
    "number": ([*ROWS, (4907, "x", "49", "")], ["code", "int"]),
    "control character": ([*ROWS, ("49\x07", "x", "49", "")], ["control"]),
    "two level names": ([*ROWS, ("50", "", "S", "county"), ("501", "", "50", "")], ["'county'"]),
    "short row": ([("a", "b")], ["row"]),
    "text as row": (["abc"], ["row"]),
    "no codes": ([], ["empty"]),
    "flat": ([("a", "", ""), ("b", "", "")], ["no level"]),
    "too deep": ([(str(i), "", str(i - 1) if i else "") for i in range(30)], ["levels"]),
}


@pytest.mark.parametrize("case", BAD_ROWS)
def test_bad_rows_are_refused(case: str) -> None:
    rows, words = BAD_ROWS[case]
    check_refused(SchemaError, words, CodeList.from_rows, rows)


BAD_LABELS: dict[str, tuple[Any, list[str]]] = {
    "area without cells": ({"Ohio": []}, ["Ohio", "no cells"]),
    "empty": ({}, ["no cells"]),
    "repeated cell": ({"Ohio": ["1"], "Iowa": ["1"]}, ["'1'", "twice"]),
    "text for cells": ({"Ohio": "12"}, ["Ohio", "str"]),
    "set of cells": ({"Ohio": {"1", "2"}}, ["Ohio", "set"]),
    "number for cells": ({"Ohio": 3}, ["Ohio", "int"]),
    "number as label": ({"Ohio": [1]}, ["int"]),
    "flat": (["a", "b"], ["no level"]),
}


@pytest.mark.parametrize("case", BAD_LABELS)
def test_bad_labels_are_refused(case: str) -> None:
    labels, words = BAD_LABELS[case]
    check_refused(SchemaError, words, CodeList.from_labels, labels)


def test_recursive_labels_are_refused() -> None:
    nested: dict[str, Any] = {}
    nested["Ohio"] = nested
    check_refused(SchemaError, ["levels"], CodeList.from_labels, nested)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["header"]),
        ("code,label\n1,2\n", ["header"]),
        ("code,parent,parent\n1,,\n", ["header"]),
        ("code,parent,size\n1,,3\n", ["header"]),
        ("code,parent\n1\n", ["line 2"]),
        ('code,parent\n"1,\n', ["line"]),
        (b"code,parent\n\xff,\n", ["UTF-8"]),
        (b"code,parent\n\xff\xfe", ["UTF-8"]),
    ],
)
def test_bad_csv_is_refused(text: str | bytes, words: list[str]) -> None:
    check_refused(SchemaError, words, CodeList.from_csv, text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["empty"]),
        ("@a\n", ["line 1", "deep"]),
        ("a\n@@b\n", ["line 2", "deep"]),
        ("a\n@b\na\n@c\n", ["'a'", "twice"]),
        ("a\n@b\nc\n@b\n", ["'b'", "two parents"]),
        ("a\n@\n", ["empty"]),
        ("a\n@b\n@b \n", ["blanks"]),
    ],
)
def test_bad_hrc_is_refused(text: str, words: list[str]) -> None:
    check_refused(SchemaError, words, CodeList.from_hrc, text)


@pytest.mark.parametrize("levels", [["region"], ["a", "b", "c"], "ab"])
def test_wrong_number_of_level_names_is_refused(levels: Any) -> None:
    check_refused(SchemaError, ["level names"], CodeList.from_labels, TREE, levels=levels)


def test_too_many_areas_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    document = county().hierarchies[0].to_dict()
    monkeypatch.setattr(hierarchy, "MAX_AREAS", 10)
    check_refused(SchemaError, ["10 codes"], CodeList.from_rows, ROWS)
    check_refused(SchemaError, ["10 codes"], CodeList.from_labels, TREE)
    monkeypatch.setattr(hierarchy, "MAX_AREAS", 4)
    check_refused(SchemaError, ["4 areas", "limit"], Hierarchy.from_dict, document)


def level(name: str, numbers: Any, labels: Any = ("a", "b")) -> HierarchyLevel:
    return HierarchyLevel(name=name, labels=labels, area_of_cell=numbers)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: level("x", [0, 0]), ["'b'", "without cells"]),
        (lambda: level("x", [], ()), ["no areas"]),
        (lambda: level("x", [0, 2]), ["area number 2"]),
        (lambda: level("x", [0, -1]), ["number"]),
        (lambda: level("x", [0.5, 1]), ["number"]),
        (lambda: level("x", [[0], [0, 1]]), ["number"]),
        (lambda: level("x", [0, 1], ("a", "a")), ["twice"]),
        (lambda: level("", [0, 1]), ["name", "empty"]),
        (lambda: Hierarchy(name="h", levels=()), ["levels"]),
        (lambda: Hierarchy(name="h", levels=[level("x", [0, 1])] * 2), ["same name"]),
        (
            lambda: Hierarchy(name="h", levels=[level("x", [0, 1]), level("y", [0, 1, 1])]),
            ["numbers of cells"],
        ),
        (
            lambda: Hierarchy(name="h", levels=[level("x", [0, 1, 1]), level("y", [0, 0, 1])]),
            ["coarse to fine"],
        ),
    ],
)
def test_inconsistent_levels_are_refused(call: Any, words: list[str]) -> None:
    check_refused(SchemaError, words, call)


# ---- attributes


def test_attribute_of_code_list_has_codes_as_labels() -> None:
    attribute = county()
    assert attribute.kind == "categorical"
    assert attribute.labels == ("3901", "3903", "1901", "4901", "4903", "4905")
    assert attribute.hierarchies[0].name == "geography"


def test_second_hierarchy_follows_order_of_labels() -> None:
    zones = CodeList.from_labels({"a": ["4905", "3901", "1901"], "b": ["4901", "3903", "4903"]})
    attribute = county().with_hierarchy(zones)
    assert attribute.hierarchies[1].levels[0].area_of_cell.tolist() == [0, 1, 0, 1, 1, 0]


def test_cells_for_other_values_are_own_areas() -> None:
    attribute = Attribute.hierarchy(
        "county", CodeList.from_labels(TREE), other="abroad", missing="unknown"
    )
    for level in attribute.hierarchies[0].levels:
        assert level.labels[-2:] == ("abroad", "unknown")
        assert level.area_of_cell[-2:].tolist() == [level.areas - 2, level.areas - 1]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Attribute.hierarchy("county", TREE), ["code_list", "dict"]),
        (lambda: county().with_hierarchy(CodeList.from_labels(TREE, **NAMED)), ["same name"]),
        (lambda: county().with_hierarchy(CodeList.from_labels({"a": ["3901"]})), ["no level"]),
        (
            lambda: Attribute.categorical("x", ["1", "02"]).with_hierarchy(
                CodeList.from_labels({"a": ["01"], "b": ["02"]})
            ),
            ["'1'", "'01'", "leading zeros"],
        ),
        (
            lambda: county().with_hierarchy(CodeList.from_labels({"a": ["3901"], "b": ["2"]})),
            ["'3903'", "not a cell"],
        ),
        (
            lambda: Attribute.categorical("x", ["1"]).with_hierarchy(
                CodeList.from_labels({"a": ["1"], "b": ["2"]})
            ),
            ["'2'", "not a label"],
        ),
        (
            lambda: Attribute.of_size("x", 2).with_hierarchy(
                CodeList.from_labels({"a": ["1"], "b": ["2"]})
            ),
            ["no labels"],
        ),
        (
            lambda: Attribute.hierarchy("state", CodeList.from_labels(TREE, **NAMED)),
            ["name of the attribute"],
        ),
        (
            lambda: Attribute(name="x", kind="numeric", size=2, hierarchies=county().hierarchies),
            ["2 cells", "6"],
        ),
    ],
)
def test_unfit_hierarchy_of_attribute_is_refused(call: Any, words: list[str]) -> None:
    check_refused(SchemaError, words, call)


# ---- families


def workload() -> Workload:
    return Workload(Schema([county(), Attribute.categorical("sex", ["F", "M"])]))


def test_level_lists_areas_with_their_labels() -> None:
    states = workload().add(("county", "sex"), {"county": Level("state"), "sex": "marginal"})
    assert [states.describe(i) for i in (0, 5)] == [
        "state = Ohio and sex = F",
        "state = Utah and sex = M",
    ]


def test_levels_keep_the_order_of_names() -> None:
    both = workload().add("county", Levels(["county", "region"]))
    assert both.describe(0) == "county = 3901"
    assert both.describe(len(both) - 1) == "region = South"


def test_level_of_cells_is_the_marginal() -> None:
    (group,) = workload().add("county", Level("county")).groups
    assert group.parts[0].family.key == ("marginal",)


def test_level_name_in_two_hierarchies_needs_hierarchy() -> None:
    zones = CodeList.from_labels(
        {"a": ["4905", "3901", "1901"], "b": ["4901", "3903", "4903"]},
        name="zones",
        levels=["region"],
    )
    both = Workload(Schema([county().with_hierarchy(zones)]))
    check_refused(WorkloadError, ["zones", "geography"], both.add, "county", Level("region"))
    assert both.add("county", Level("region", "zones")).describe(1) == "region = b"
    assert both.add("county", Levels(["state", "region"])).describe(0) == "state = Ohio"


@pytest.mark.parametrize(
    ("attribute", "make", "words"),
    [
        ("county", lambda: Level("stat"), ["no level", "'state'"]),
        ("county", lambda: Levels(["state", "town"]), ["no level", "'town'"]),
        ("county", lambda: Level("state", "zones"), ["no hierarchy", "geography"]),
        ("sex", lambda: Level("state"), ["no hierarchy"]),
        ("county", lambda: Level(3), ["level", "int"]),
        ("county", lambda: Level("state", 3), ["hierarchy", "int"]),
        ("county", lambda: Levels([]), ["levels"]),
        ("county", lambda: Levels("state"), ["levels"]),
        ("county", lambda: Levels(["state", "state"]), ["twice"]),
        ("county", lambda: Levels(["state"], [1, 2]), ["one weight per level"]),
        ("county", lambda: Levels(["state"], [-1]), ["weight"]),
        ("county", lambda: Levels(["state"], [float("nan")]), ["weight"]),
        ("county", lambda: Levels(["state"], ["1"]), ["weight"]),
        ("county", lambda: "level", ["parameters", "Level"]),
    ],
)
def test_unfit_levels_are_refused(attribute: str, make: Any, words: list[str]) -> None:
    check_refused(WorkloadError, words, lambda: workload().add(attribute, make()))


def test_family_without_attribute_is_refused() -> None:
    check_refused(WorkloadError, ["no attribute"], Level("state").count, (6,))


def test_level_weights_are_query_weights() -> None:
    levels = Levels(["region", "state"], weights=[5, 0.5])
    (group,) = workload().add(("county", "sex"), {"county": levels, "sex": "marginal"}).groups
    weights_of_areas = [5, 5, 0.5, 0.5, 0.5]  # two regions and three states
    np.testing.assert_array_equal(group.query_weights, np.repeat(weights_of_areas, 2))
    of_levels, of_sex = group.part_weights
    np.testing.assert_array_equal(of_levels, weights_of_areas)
    assert of_sex is None
    assert "query_weights" not in group.to_dict()


def test_all_ways_applies_level_weights() -> None:
    families = {"county": Levels(["region", "state"], weights=[3, 1])}
    of_county, of_sex, of_pair = Workload.all_ways(workload().schema, (1, 2), families).groups
    assert of_county.query_weights is not None
    assert of_sex.query_weights is None
    (expected,) = workload().add(("county", "sex"), families | {"sex": "marginal"}).groups
    assert of_pair.key == expected.key


def test_level_weights_decompose_like_query_weights() -> None:
    families = {"county": Levels(["region", "state"], weights=[3, 0.5]), "sex": "marginal"}
    weighted = workload().add(("county", "sex"), families)
    unweighted = families | {"county": Levels(["region", "state"])}
    explicit = workload().add(
        ("county", "sex"), unweighted, query_weights=weighted.groups[0].query_weights
    )
    assert weighted.groups[0].part_weights is not None
    assert explicit.groups[0].part_weights is None
    result, expected = (plan(w, Budget(pcost=1.0)) for w in (weighted, explicit))
    assert result.weighted_rmse == pytest.approx(expected.weighted_rmse, rel=1e-4)


def test_given_query_weights_replace_level_weights() -> None:
    workload_with_both = workload().add("county", Levels(["region"], [2]), query_weights=[1, 3])
    assert workload_with_both.groups[0].part_weights is None
    loaded = Workload.from_json(workload_with_both.to_json())
    assert loaded == workload_with_both
    assert loaded.groups[0].query_weights.tolist() == [1, 3]


def test_area_weights_add_up_to_gram() -> None:
    """An entry of the Gram matrix sums the weights of all areas that contain both cells."""
    (part,) = workload().add("county", Levels(["county", "region"])).groups[0].parts
    weights = np.arange(1.0, 9.0)
    tree = part.family.area_weights(weights)
    assert [len(w) for w in tree.weights] == [2, 3, 6]  # regions, states, counties
    gram = sum(
        np.equal.outer(areas_of_cells, areas_of_cells) * weights_of_areas[areas_of_cells]
        for areas_of_cells, weights_of_areas in zip(tree.levels, tree.weights, strict=True)
    )
    np.testing.assert_array_equal(gram, part.family.gram((6,), weights))


# ---- files


def test_schema_files_keep_hierarchies() -> None:
    zones = CodeList.from_labels({"=a|": ["4905", "3901", "1901", "4901"], "b": ["3903", "4903"]})
    schema = Schema([county().with_hierarchy(zones), Attribute.of_size("age", 3)])
    assert Schema.from_json(schema.to_json()) == schema
    assert Schema.from_csv(schema.to_csv()) == schema
    assert hash(Schema.from_csv(schema.to_csv())) == hash(schema)
    assert pickle.loads(pickle.dumps(schema)) == schema


def test_attribute_without_hierarchies_has_no_key() -> None:
    assert "hierarchies" not in Attribute.of_size("age", 3).to_dict()
    assert "hierarchies" not in Schema([Attribute.of_size("age", 3)]).to_csv()


def test_workload_files_keep_levels() -> None:
    original = (
        workload()
        .add("county", Level("state"))
        .add(("sex", "county"), {"sex": "marginal", "county": Levels(["region", "county"], [2, 1])})
    )
    loaded = Workload.from_json(original.to_json())
    assert loaded == original
    assert loaded.groups[1].key == original.groups[1].key
    np.testing.assert_array_equal(loaded.groups[1].query_weights, original.groups[1].query_weights)


def _changed(**entries: Any) -> dict[str, Any]:
    return county().to_dict() | {"hierarchies": [county().hierarchies[0].to_dict() | entries]}


@pytest.mark.parametrize(
    "document",
    [
        county().to_dict() | {"hierarchies": "geography"},
        county().to_dict() | {"hierarchies": [3]},
        county().to_dict() | {"hierarchies": [{}]},
        _changed(more=1),
        _changed(name=3),
        _changed(levels={}),
        _changed(levels=[]),
        _changed(levels=[3]),
        _changed(levels=[{"name": "x", "labels": "ab"}]),
        _changed(levels=[{"name": "x", "labels": ["a", 3]}]),
        _changed(areas=[0, 1]),
        _changed(areas=[0, 0, 1, 2, 2, 9]),
        _changed(areas=[0, 0, 1, 2, 2, "2"]),
        _changed(areas=[0, 0, 1, 2, 2, 10**30]),
        _changed(areas=3),
        _changed(areas=[[0], [0, 1]]),
    ],
)
def test_invalid_hierarchy_of_file_is_refused(document: dict[str, Any]) -> None:
    check_refused(SchemaError, [], Attribute.from_dict, json.loads(json.dumps(document)))


@pytest.mark.parametrize("parents", [[0, 0], [0, 0, 5], [0, 0, -1], "001", [0.5, 0, 1]])
def test_invalid_parents_of_file_are_refused(parents: Any) -> None:
    document = county().to_dict()
    document["hierarchies"][0]["levels"][1]["parents"] = parents
    check_refused(SchemaError, [], Attribute.from_dict, document)


# ---- predicates


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("state == 'Ohio'", ["3901", "3903"]),
        ("state != 'Utah' and county != '1901'", ["3901", "3903"]),
        ("`state` in ['Iowa', 'Utah'] and region == 'North'", ["1901"]),
        ("not region == 'North' or county == '1901'", ["1901", "4901", "4903", "4905"]),
    ],
)
def test_predicates_compare_levels_with_areas(text: str, codes: list[str]) -> None:
    attribute = county()
    expected = [float(code in codes) for code in attribute.labels or ()]
    assert evaluate(text, [attribute]).tolist() == expected
    # the text names only the second attribute
    assert named_in(text, [Attribute.of_size("age", 2), attribute]) == (1,)


def test_attribute_hides_level_of_its_name() -> None:
    attributes = [county(), Attribute.categorical("state", ["Ohio", "Maine"])]
    assert named_in("state == 'Ohio'", attributes) == (1,)
    assert evaluate("state == 'Ohio'", attributes).tolist() == [1.0, 0.0] * 6


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("state == 'Maine'", ["state", "label"]),
        ("state < 'Ohio'", ["state", "labels"]),
        ("state == 39", ["state", "labels"]),
        ("state + 1 == 2", ["state", "numbered"]),
        ("stat == 'Ohio'", ["stat"]),
    ],
)
def test_unfit_predicates_on_levels_are_refused(text: str, words: list[str]) -> None:
    check_refused(WorkloadError, words, evaluate, text, [county()])


def test_level_of_two_hierarchies_in_predicate_is_ambiguous() -> None:
    zones = CodeList.from_labels(
        {"a": ["4905", "3901", "1901"], "b": ["4901", "3903", "4903"]}, levels=["state"]
    )
    both = [county().with_hierarchy(zones)]
    check_refused(WorkloadError, ["ambiguous", "state"], evaluate, "state == 'a'", both)


def test_structural_zeros_by_level_exclude_areas() -> None:
    schema = Schema(
        [county(), Attribute.of_size("age", 2)], impossible=["state == 'Utah' and age == 1"]
    )
    is_possible = schema.possible_share(["county", "age"]) > 0
    # the last three counties are in Utah
    assert is_possible[:, 0].all()
    assert is_possible[:, 1].tolist() == [True] * 3 + [False] * 3
