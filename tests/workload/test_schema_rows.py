"""Attributes as rows of texts for the editable table."""

from __future__ import annotations

import pytest

import demo_data
from engine.errors import SchemaError
from engine.workload import Attribute, CodeList, Schema
from engine.workload.schema_tables import (
    attribute_of_row,
    attribute_row,
    edges_text,
    is_incomplete,
    parse_edges,
)

ATTRIBUTES = [
    Attribute.categorical("sex", ["F", "M"], missing="unknown", missing_values=["NA", "a|b"]),
    Attribute.categorical(
        "a | b", ["x|y", "\\z", "= 1", " left", "right ", "a \\| b "], other="else"
    ),
    Attribute.numeric("age", [0, 18, 65, 120], clip=True, integer=True, missing=3),
    Attribute.numeric("pay", [-0.5, 0.25, 1e9], decimal=",", thousands="."),
    Attribute.numeric("year", [*range(100), 99], integer=True),
    Attribute.numeric("amount ", [0, 1], thousands=" "),
    Attribute.categorical("kind", ["a", " b"], other=" b"),
    Attribute.categorical("one", ["a, b"]),
    Attribute.categorical("state", ["married, once", "single"]),
    Attribute.dates("day", "2024-01", "2024-12", missing="unknown", date_format="%d.%m.%Y"),
    Attribute.dates("day", "2024-01-01", "2024-03-31", "day"),
    Attribute.of_size("code", 12, kind="categorical", missing_values=["-9"]),
    Attribute.of_size("rank", 5),
    Attribute.hierarchy(
        "place", CodeList.from_labels({"a": ["1", "x|y"], "b": ["3"]}), missing="unknown"
    ),
]


@pytest.mark.parametrize("attribute", ATTRIBUTES, ids=lambda one: one.name)
def test_attribute_row_gives_equal_attribute(attribute: Attribute) -> None:
    assert attribute_of_row(attribute_row(attribute)) == attribute


def test_hierarchy_of_row_follows_its_labels() -> None:
    row = attribute_row(ATTRIBUTES[-1])
    changed = attribute_of_row(row | {"values": "3 | 1 | unknown | x\\|y"})
    assert changed.hierarchies[0].levels[0].area_of_cell.tolist() == [1, 0, 2, 0]
    with pytest.raises(SchemaError, match="'4'"):
        attribute_of_row(row | {"values": "3 | 1 | unknown | 4"})
    with pytest.raises(SchemaError, match="without cells"):
        attribute_of_row(row | {"values": "1 | unknown"})


@pytest.mark.parametrize("name", list(demo_data.schemas()))
def test_rows_of_demo_schemas_give_equal_attributes(name: str) -> None:
    for attribute in Schema.from_json(demo_data.schemas()[name].read_bytes()).attributes:
        assert attribute_of_row(attribute_row(attribute)) == attribute


@pytest.mark.parametrize(
    ("values", "attribute"),
    [
        ("F|M", Attribute.categorical("x", ["F", "M"])),
        (" F | M | n/a ", Attribute.categorical("x", ["F", "M", "n/a"])),
        ("North, South West, R03", Attribute.categorical("x", ["North", "South West", "R03"])),
        ("married, once | single", Attribute.categorical("x", ["married, once", "single"])),
        ("0, 18 65", Attribute.numeric("x", [0, 18, 65])),
        ("0:100:50", Attribute.numeric("x", [0, 50, 100])),
        ("12", Attribute.of_size("x", 12, kind="categorical")),
        (
            "2024-01-01:2024-12-31:day",
            Attribute.dates("x", "2024-01-01", "2024-12-31", "day"),
        ),
        ("2024-01:2024-12:quarter", Attribute.dates("x", "2024-01", "2024-12", "quarter")),
    ],
)
def test_row_without_type_gets_type_of_values(values: str, attribute: Attribute) -> None:
    assert attribute_of_row({"name": "x", "values": values}) == attribute


@pytest.mark.parametrize(
    "row",
    [
        {"name": "", "values": "F|M"},
        {"name": "x", "type": "labels", "values": "F|F"},
        {"name": "x", "type": "bins", "values": "2, 1"},
        {"name": "x", "type": "bins", "values": "1:2"},
        {"name": "x", "type": "codes", "values": "many"},
        {"name": "x", "type": "dates", "values": "2024-01"},
        {"name": "x", "type": "dates", "values": "2024-05:2024-01:month"},
        {"name": "x", "type": "hours", "values": "1"},
        {"name": "x", "values": "0, 1, 2", "clip": "perhaps"},
    ],
)
def test_invalid_row_is_refused(row: dict[str, str]) -> None:
    with pytest.raises(SchemaError):
        attribute_of_row(row)


@pytest.mark.parametrize("text", ["a,b", "1:2:0", "5:1:1", "0:1:0.3", "0:1e9:1e-9", "nan:1:1"])
def test_invalid_edges_are_refused(text: str) -> None:
    with pytest.raises(SchemaError):
        parse_edges(text)


def test_labels_type_reads_numbers_separated_by_commas() -> None:
    row = {"name": "x", "type": "labels", "values": "1, 2, 0-17"}
    assert attribute_of_row(row).labels == ("1", "2", "0-17")


@pytest.mark.parametrize(
    ("values", "example"),
    [
        ("North, South, 3", "North | South | 3;"),
        ("0-17, 18-64", "0-17 | 18-64;"),
        ("F/M", "F | M;"),
        ("a, 1, 2, 3, 4, 5", "a | 1 | 2 | 3 | 4 | ...;"),
        ("North", "F | M;"),
        ("1:2", "F | M;"),
    ],
)
def test_error_of_values_shows_how_labels_are_written(values: str, example: str) -> None:
    with pytest.raises(SchemaError) as error:
        attribute_of_row({"name": "x", "values": values})
    assert f"for labels, write {example}" in str(error.value)


@pytest.mark.parametrize(
    ("text", "examples"),
    [
        ("0:10:3", "0:9:3 or 0:12:3"),
        ("16:100:5", "16:96:5 or 16:101:5"),
        ("0:1:0.3", "0:0.9:0.3 or 0:1.2:0.3"),
        ("0:2:5", "0:5:5"),
    ],
)
def test_edges_with_a_remainder_name_possible_edges(text: str, examples: str) -> None:
    with pytest.raises(SchemaError) as error:
        parse_edges(text)
    assert str(error.value).endswith(f"; write {examples}")


@pytest.mark.parametrize(
    ("edges", "text"),
    [
        ([0, 18, 65], "0, 18, 65"),
        ([0, 1, 2, 3], "0:3:1"),
        ([0, 0.1, 0.2, 0.30000000000000004, 0.5], None),
        ([-2, -1, 0, 1, 1], "-2:1:1, 1"),
    ],
)
def test_edges_text_is_parsed_to_equal_edges(edges: list[float], text: str | None) -> None:
    assert parse_edges(edges_text(edges)) == edges
    if text is not None:
        assert edges_text(edges) == text


def test_row_with_name_only_is_incomplete() -> None:
    assert is_incomplete({"name": "age", "type": "bins", "values": " "})
    assert not is_incomplete({"name": "age", "values": "0, 9"})
    assert not is_incomplete({"name": "", "values": ""})


@pytest.mark.parametrize(
    ("values", "advice", "corrected"),
    [
        ("18-94", "write 18:95:1 (bins of width 1) or 18, 94 (one bin)", "18:95:1"),
        ("1-6", "write 1 | 2 | 3 | 4 | 5 | 6 (one value each) or 1, 6 (one bin)", "1, 6"),
        ("18 – 94", "write 18:95:1 (bins of width 1) or 18, 94 (one bin)", "18, 94"),
        ("0 to 120:5", "write 0:120:5 (bins of width 5) or 0, 120 (one bin)", "0:120:5"),
        ("0-17, 18-64, 65-100", "for bins, write 0, 18, 65, 100", "0, 18, 65, 100"),
        ("0-17, 30-64", "for bins, write edges such as 0, 18, 65, 120", "0, 17"),
        ("94-18", "write edges such as 0, 18, 65, 120", "18, 94"),
    ],
)
def test_interval_is_refused_with_its_edges(values: str, advice: str, corrected: str) -> None:
    with pytest.raises(SchemaError) as error:
        attribute_of_row({"name": "age", "values": values, "type": "bins"})
    assert advice in str(error.value)
    assert attribute_of_row({"name": "age", "values": corrected}).edges is not None


@pytest.mark.parametrize("missing", ["unknown", "-1"])
def test_missing_values_of_bins_get_advised_bin(missing: str) -> None:
    row = {"name": "age", "values": "0, 5, 100", "type": "bins", "missing": missing}
    with pytest.raises(SchemaError, match="separate bin") as error:
        attribute_of_row(row)
    assert "-1 before 0" in str(error.value)
    corrected = attribute_of_row(row | {"values": "-1, 0, 5, 100", "missing": "-1"})
    assert (corrected.size, corrected.missing) == (3, -1.0)
