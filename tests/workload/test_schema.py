"""Schemas and attributes: descriptions, and invalid declarations."""

import dataclasses
import itertools
import math
import timeit
from collections.abc import Callable

import numpy as np
import pytest

from engine._format import MAX_NAME
from engine.errors import SchemaError
from engine.workload import Attribute, Schema
from engine.workload.attribute import MAX_CELLS
from engine.workload.schema_io import MAX_ATTRIBUTES, MAX_LABEL


def test_schema_file_omits_undeclared_fields() -> None:
    schema = Schema([Attribute.of_size("a", 2)])
    assert schema.to_dict().keys() == {"format", "attributes"}
    assert schema.to_csv().count("\n") == 2
    declared = Schema(schema.attributes, person="pid", rows_per_person=3)
    assert declared != schema
    assert declared.to_dict() == schema.to_dict() | {"person": "pid", "rows_per_person": 3}


def test_person_column_must_match_declaration() -> None:
    schema = Schema([Attribute.of_size("a", 2)])
    assert (schema.person_column(), schema.person_column("x")) == (None, "x")
    declared = Schema(schema.attributes, person="pid")
    assert declared.person_column() == declared.person_column("pid") == "pid"
    with pytest.raises(SchemaError, match="the schema declares 'pid'"):
        declared.person_column("x")


@pytest.mark.parametrize(
    ("unit", "rows", "message"),
    [
        ({}, 5, ""),
        ({"person": "pid", "rows_per_person": 3}, 3, ""),
        ({"person": "pid", "rows_per_person": 3}, 6, "every error is 2 times"),
        ({"person": "pid", "rows_per_person": 3}, 1, "at most 1 of each person"),
        ({"rows_per_person": 3}, 1, "nothing is released"),
    ],
)
def test_rows_per_person_conflict_explains_difference(
    unit: dict[str, object], rows: int, message: str
) -> None:
    explanation = Schema([Attribute.of_size("a", 2)], **unit).rows_per_person_conflict(rows)
    assert message in explanation
    assert bool(message) == bool(explanation)


def test_schema_sizes_are_exact_integers() -> None:
    schema = Schema([Attribute.of_size(f"a{i}", 1_000) for i in range(40)])
    assert schema.size == 10**120
    assert schema.cells(schema.names[:3]) == 10**9
    assert schema.cells(()) == 1
    assert schema.sizes(()) == ()
    assert len(schema) == 40
    assert "a39" in schema
    assert "a40" not in schema
    assert [] not in schema
    assert list(schema) == list(schema.names)


def test_schema_lookup_takes_constant_time() -> None:
    schema = Schema([Attribute.of_size(f"a{i}", MAX_CELLS) for i in range(MAX_ATTRIBUTES)])
    narrow = Schema(schema.attributes[-1:])
    last_name = schema.names[-1]
    seconds, narrow_seconds = (
        min(timeit.repeat(lambda s=s: s[last_name], number=2000)) for s in (schema, narrow)
    )
    # A search through all names would take thousands of times as long.
    assert seconds < 50 * narrow_seconds
    assert schema.size == MAX_CELLS**MAX_ATTRIBUTES


def test_attribute_labels_describe_cells() -> None:
    age = Attribute.numeric("age", np.array([-0.0, 20, 64.5, 1e300]))
    assert [age.label(i) for i in range(3)] == ["[0, 20)", "[20, 64.5)", "[64.5, 1e+300]"]
    assert math.copysign(1, age.edges[0]) == 1
    sex = Attribute.categorical("sex", ("F", "M"), other="else", missing="M")
    assert sex.labels == ("F", "M", "else")
    assert sex.condition(0) == "sex = F"
    assert sex.condition(0, 2) == "sex in F..else"
    code = Attribute.of_size("code", np.int64(5), "categorical")
    assert code.condition(4) == "code = 4"
    assert type(code.size) is int


def test_attribute_label_of_missing_cell_is_refused() -> None:
    code = Attribute.of_size("code", 5, "categorical")
    for index in (-1, 5):
        with pytest.raises(SchemaError, match="from 0 to 4"):
            code.label(index)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Attribute.dates("d", "2024-12", "2024-01"), "2024-12 after the stop 2024-01"),
        (
            lambda: Attribute.from_dict(
                {"name": "d", "kind": "numeric", "size": 3, "start": "2024", "stop": "2024"}
                | {"unit": "year"}
            ),
            "give the size 1",
        ),
        (lambda: Attribute.of_size("  ", 3), "name is empty; give a text$"),
        (lambda: Attribute.categorical("a", ["x", ""]), "label 2 of .* use the option 'missing'"),
        (lambda: Attribute.from_dict({"name": "a", "edges": [0, 1]}), "has edges, but no kind"),
        (
            lambda: Attribute.from_dict(
                {"name": "a", "kind": "categorical", "labels": ["x"], "clip": True}
            ),
            "'clip'.* may give other, missing, missing_values",
        ),
        (
            lambda: Schema.from_csv("name,kind,labels,hierarchies\na,categorical,x|y,{\n"),
            "the column hierarchies is not valid JSON",
        ),
    ],
)
def test_invalid_attribute_message_names_fault(call: Callable[[], object], words: str) -> None:
    with pytest.raises(SchemaError, match=words):
        call()


def test_attributes_are_frozen_and_keyword_only() -> None:
    attribute = Attribute.of_size("a", 2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        attribute.size = 3  # type: ignore[misc]
    with pytest.raises(TypeError):
        Attribute("a", "numeric", 2)  # type: ignore[misc]


def test_unknown_attribute_message_lists_close_names() -> None:
    schema = Schema([Attribute.of_size("hours-per-week", 2), Attribute.of_size("age", 2)])
    with pytest.raises(SchemaError, match="'hours-per-week'"):
        schema["hours per week"]


WRONG_ATTRIBUTES = {
    "no labels": lambda: Attribute.categorical("a", []),
    "labels as one text": lambda: Attribute.categorical("a", "abc"),
    "labels as mapping": lambda: Attribute.categorical("a", {"x": 1}),
    "labels as number": lambda: Attribute.categorical("a", 3),
    "labels are numbers": lambda: Attribute.categorical("a", [1, 2]),
    "label twice": lambda: Attribute.categorical("a", ["x", "y", "x"]),
    "empty label": lambda: Attribute.categorical("a", ["x", ""]),
    "blank label": lambda: Attribute.categorical("a", ["x", "  "]),
    "long label": lambda: Attribute.categorical("a", ["x" * (MAX_LABEL + 1)]),
    "label of 9 MB": lambda: Attribute.categorical("a", ["x" * 9_000_000]),
    "control character": lambda: Attribute.categorical("a", ["x\x00"]),
    "new line": lambda: Attribute.categorical("a", ["x\n"]),
    "text direction": lambda: Attribute.categorical("a", ["x\u202ey"]),
    "lone surrogate": lambda: Attribute.categorical("a", ["x\ud800"]),
    "missing label None": lambda: Attribute.categorical("a", ["x", None]),
    "other is a number": lambda: Attribute.categorical("a", ["x"], other=3),
    "missing is empty": lambda: Attribute.categorical("a", ["x"], missing=""),
    "other not among labels": lambda: Attribute(
        name="a", kind="categorical", size=1, labels=("x",), other="y"
    ),
    "size differs from labels": lambda: Attribute(
        name="a", kind="categorical", size=3, labels=("x",)
    ),
    "labels as list": lambda: Attribute(name="a", kind="categorical", size=1, labels=["x"]),
    "numeric labels": lambda: Attribute(name="a", kind="numeric", size=1, labels=("x",)),
    "categorical edges": lambda: Attribute(name="a", kind="categorical", size=1, edges=(0.0, 1.0)),
    "labels and edges": lambda: Attribute(
        name="a", kind="categorical", size=1, labels=("x",), edges=(0.0, 1.0)
    ),
    "size differs from edges": lambda: Attribute(
        name="a", kind="numeric", size=3, edges=(0.0, 1.0)
    ),
    "edges not floats": lambda: Attribute(name="a", kind="numeric", size=1, edges=(0, 1)),
    "no edges": lambda: Attribute.numeric("a", []),
    "one edge": lambda: Attribute.numeric("a", [1]),
    "edges that repeat": lambda: Attribute.numeric("a", [0, 1, 1]),
    "edges that fall": lambda: Attribute.numeric("a", [0, 2, 1]),
    "NaN edge": lambda: Attribute.numeric("a", [0, math.nan, 1]),
    "infinite edge": lambda: Attribute.numeric("a", [0, math.inf]),
    "huge integer edge": lambda: Attribute.numeric("a", [0, 10**400]),
    "boolean edge": lambda: Attribute.numeric("a", [False, True]),
    "text edge": lambda: Attribute.numeric("a", ["0", "1"]),
    "complex edge": lambda: Attribute.numeric("a", [0, 1j]),
    "missing outside": lambda: Attribute.numeric("a", [0, 1], missing=2),
    "missing NaN": lambda: Attribute.numeric("a", [0, 1], missing=math.nan, clip=True),
    "missing text": lambda: Attribute.numeric("a", [0, 1], missing="0"),
    "clip text": lambda: Attribute.numeric("a", [0, 1], clip="no"),
    "clip one": lambda: Attribute.numeric("a", [0, 1], clip=1),
    "size 0": lambda: Attribute.of_size("a", 0),
    "size negative": lambda: Attribute.of_size("a", -3),
    "size true": lambda: Attribute.of_size("a", True),
    "size numpy true": lambda: Attribute.of_size("a", np.True_),
    "size float": lambda: Attribute.of_size("a", 3.0),
    "size text": lambda: Attribute.of_size("a", "3"),
    "size None": lambda: Attribute.of_size("a", None),
    "size too large": lambda: Attribute.of_size("a", MAX_CELLS + 1),
    "size astronomic": lambda: Attribute.of_size("a", 10**6000),
    "unknown kind": lambda: Attribute.of_size("a", 3, "ordinal"),
    "kind a list": lambda: Attribute.of_size("a", 3, ["numeric"]),
    "missing without domain": lambda: Attribute(name="a", kind="numeric", size=3, missing=1.0),
    "other without labels": lambda: Attribute(name="a", kind="numeric", size=3, other="x"),
    "clip without edges": lambda: Attribute(name="a", kind="numeric", size=3, clip=True),
    "no name": lambda: Attribute.of_size("", 3),
    "blank name": lambda: Attribute.of_size(" ", 3),
    "name a number": lambda: Attribute.of_size(3, 3),
    "name None": lambda: Attribute.of_size(None, 3),
    "long name": lambda: Attribute.of_size("x" * (MAX_NAME + 1), 3),
    "name with tab": lambda: Attribute.of_size("a\tb", 3),
    "name with surrogate": lambda: Attribute.of_size("\udfff", 3),
    "endless edges": lambda: Attribute.numeric("a", itertools.repeat(0)),
    "no attributes": lambda: Schema([]),
    "schema of texts": lambda: Schema(["a"]),
    "schema of a text": lambda: Schema("a"),
    "schema of a mapping": lambda: Schema({"a": 3}),
    "same name twice": lambda: Schema([Attribute.of_size("a", 2), Attribute.of_size("a", 3)]),
    "a million attributes": lambda: Schema([Attribute.of_size("a", 2)] * 1_000_000),
    "unknown name": lambda: Schema([Attribute.of_size("a", 2)])["b"],
    "name of 9 MB": lambda: Schema([Attribute.of_size("a", 2)])["b" * 9_000_000],
    "name that is no text": lambda: Schema([Attribute.of_size("a", 2)]).sizes([3]),
    "person an attribute": lambda: Schema([Attribute.of_size("a", 2)], person="a"),
    "person blank": lambda: Schema([Attribute.of_size("a", 2)], person=" "),
    "person empty": lambda: Schema([Attribute.of_size("a", 2)], person=""),
    "person long": lambda: Schema([Attribute.of_size("a", 2)], person="x" * (MAX_NAME + 1)),
    "person with tab": lambda: Schema([Attribute.of_size("a", 2)], person="p\tid"),
    "person with text direction": lambda: Schema([Attribute.of_size("a", 2)], person="\u202epid"),
    "person a number": lambda: Schema([Attribute.of_size("a", 2)], person=3),
    "rows 0": lambda: Schema([Attribute.of_size("a", 2)], rows_per_person=0),
    "rows true": lambda: Schema([Attribute.of_size("a", 2)], rows_per_person=True),
    "rows float": lambda: Schema([Attribute.of_size("a", 2)], rows_per_person=3.0),
    "rows text": lambda: Schema([Attribute.of_size("a", 2)], rows_per_person="3"),
    "rows astronomic": lambda: Schema([Attribute.of_size("a", 2)], rows_per_person=10**6000),
}


@pytest.mark.parametrize("case", WRONG_ATTRIBUTES)
def test_invalid_attributes_are_refused(case: str) -> None:
    with pytest.raises(SchemaError) as caught:
        WRONG_ATTRIBUTES[case]()
    assert len(str(caught.value)) < 500
    assert str(caught.value).isprintable()


def test_error_in_schema_of_one_attribute_uses_singular() -> None:
    with pytest.raises(SchemaError, match=r"'b' among its 1 attribute;"):
        Schema([Attribute.of_size("a", 2)])["b"]
