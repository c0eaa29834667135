"""Schema files: round trips, files of spreadsheets, and invalid or hostile files."""

import csv
import io
import json
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import SchemaError
from engine.workload import Attribute, Schema
from engine.workload.attribute import MAX_CELLS
from engine.workload.schema_io import FORBIDDEN, MAX_CSV_FIELD, MAX_FILE

names = st.text(min_size=1, max_size=12).filter(
    lambda text: text.strip() and not FORBIDDEN.search(text)
)
finite = st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def attributes(draw: st.DrawFn, name: str) -> Attribute:
    """Draw an attribute with labels, with edges or with a size."""
    form = draw(st.sampled_from(["labels", "edges", "size"]))
    if form == "labels":
        labels = draw(st.lists(names, min_size=1, max_size=6, unique=True))
        return Attribute.categorical(
            name, labels, other=draw(st.none() | names), missing=draw(st.none() | names)
        )
    if form == "edges":
        edges = sorted(
            draw(st.lists(finite, min_size=2, max_size=6, unique_by=lambda edge: edge + 0.0))
        )
        missing = draw(st.sampled_from([None, edges[0], edges[-1]]))
        return Attribute.numeric(name, edges, clip=draw(st.booleans()), missing=missing)
    return Attribute.of_size(
        name, draw(st.integers(1, MAX_CELLS)), draw(st.sampled_from(["numeric", "categorical"]))
    )


@st.composite
def schemas(draw: st.DrawFn) -> Schema:
    person, *columns = draw(st.lists(names, min_size=2, max_size=6, unique=True))
    unit = {"person": person, "rows_per_person": draw(st.none() | st.integers(1, 1_000))}
    declared = draw(st.sampled_from([(), ("person",), ("rows_per_person",), tuple(unit)]))
    return Schema(
        [draw(attributes(name)) for name in columns], **{key: unit[key] for key in declared}
    )


@given(schemas())
@settings(max_examples=25, deadline=None)
def test_schema_files_round_trip(schema: Schema) -> None:
    for loaded in (
        Schema.from_json(schema.to_json()),
        Schema.from_json(("\ufeff" + schema.to_json()).encode()),
        Schema.from_csv(schema.to_csv()),
        Schema.from_csv(("\ufeff" + schema.to_csv().replace("\n", "\r\n")).encode()),
        Schema.from_dict(schema.to_dict()),
    ):
        assert loaded == schema
        assert hash(loaded) == hash(schema)
        assert loaded.to_dict() == schema.to_dict()


@given(schemas())
@settings(max_examples=40, deadline=None)
def test_schema_csv_contains_no_formula(schema: Schema) -> None:
    for row in csv.reader(io.StringIO(schema.to_csv())):
        assert not any(cell.startswith(("=", "+", "-", "@", "\t", "\r")) for cell in row)


def test_domain_json_is_read_as_codes() -> None:
    schema = Schema.from_json('{"age": 85, "income>50K": 2}')
    assert schema == Schema([Attribute.of_size("age", 85), Attribute.of_size("income>50K", 2)])


def test_schema_csv_with_needed_columns_is_read() -> None:
    assert Schema.from_csv("Name,kind,labels\nsex,categorical,F|M\n\n") == Schema(
        [Attribute.categorical("sex", ["F", "M"])]
    )


def attribute_json(**changes: object) -> str:
    base = {"name": "a", "kind": "numeric", "size": 3}
    return json.dumps({"format": "schema/1", "attributes": [base | changes]})


def one(**document: object) -> str:
    return json.dumps({"format": "schema/1", "attributes": [document]})


def valid_json(body: str) -> str:
    return f'{{"format": "schema/1", "attributes": [{body}]}}'


# long texts are built when they are read
Text = str | bytes | Callable[[], str | bytes]
WRONG_JSON: dict[str, Text] = {
    "empty": "",
    "null": "null",
    "number": "3",
    "list": "[]",
    "text": '"schema"',
    "empty object": "{}",
    "cut": valid_json('{"name": "a"')[:-3],
    "trailing comma": valid_json('{"name": "a", "kind": "numeric", "size": 3},'),
    "two documents": "{} {}",
    "no format": '{"attributes": []}',
    "other format": '{"format": "schema/2", "attributes": []}',
    "format a list": '{"format": [], "attributes": []}',
    "extra key": '{"format": "schema/1", "attributes": [], "seed": "x"}',
    "no attributes": valid_json(""),
    "person an attribute": json.dumps(json.loads(attribute_json()) | {"person": "a"}),
    "person a list": json.dumps(json.loads(attribute_json()) | {"person": ["p"]}),
    "rows 1.5": json.dumps(json.loads(attribute_json()) | {"rows_per_person": 1.5}),
    "attributes an object": '{"format": "schema/1", "attributes": {"a": 3}}',
    "attributes null": '{"format": "schema/1", "attributes": null}',
    "attribute a text": valid_json('"a"'),
    "attribute null": valid_json("null"),
    "attribute a list": valid_json("[]"),
    "unknown key": attribute_json(sizes=3),
    "dunder key": attribute_json(__class__="x"),
    "no name": one(kind="numeric", size=3),
    "no kind": one(name="a", size=3),
    "no domain": one(name="a", kind="numeric"),
    "size true": attribute_json(size=True),
    "size 3.0": attribute_json(size=3.0),
    "size text": attribute_json(size="3"),
    "size list": attribute_json(size=[3]),
    "name list": attribute_json(name=["a"]),
    "name object": attribute_json(name={}),
    "kind number": attribute_json(kind=1),
    "labels and size differ": one(name="a", kind="categorical", size=3, labels=["x"]),
    "labels and size true": one(name="a", kind="categorical", size=True, labels=["x"]),
    "labels and edges": one(name="a", kind="categorical", edges=[0, 1], labels=["x"]),
    "labels of a numeric": one(name="a", kind="numeric", labels=["x"]),
    "edges of a categorical": one(name="a", kind="categorical", edges=[0, 1]),
    "labels with clip": one(name="a", kind="categorical", labels=["x"], clip=True),
    "edges with other": one(name="a", kind="numeric", edges=[0, 1], other="x"),
    "size with other": attribute_json(other="x"),
    "labels object": one(name="a", kind="categorical", labels={"x": 1}),
    "labels nested": one(name="a", kind="categorical", labels=[["x"]]),
    "labels null inside": one(name="a", kind="categorical", labels=["x", None]),
    "label surrogate": valid_json(r'{"name": "a", "kind": "categorical", "labels": ["\ud800"]}'),
    "edges text": one(name="a", kind="numeric", edges="0|1"),
    "edges with text": one(name="a", kind="numeric", edges=[0, "1"]),
    "edges with true": one(name="a", kind="numeric", edges=[False, True]),
    "edges 1e400": valid_json('{"name": "a", "kind": "numeric", "edges": [0, 1e400]}'),
    "edges NaN": valid_json('{"name": "a", "kind": "numeric", "edges": [0, NaN]}'),
    "edges Infinity": valid_json('{"name": "a", "kind": "numeric", "edges": [-Infinity, 0]}'),
    "edges of 5000 digits": lambda: valid_json(
        '{"name": "a", "kind": "numeric", "edges": [0, 1' + "0" * 5_000 + "]}"
    ),
    "edges of 400 digits": valid_json(
        '{"name": "a", "kind": "numeric", "edges": [0, 1' + "0" * 400 + "]}"
    ),
    "missing a list": one(name="a", kind="numeric", edges=[0, 1], missing=[0]),
    "missing an object": one(name="a", kind="categorical", labels=["x"], missing={}),
    "clip number": one(name="a", kind="numeric", edges=[0, 1], clip=1),
    "clip text": one(name="a", kind="numeric", edges=[0, 1], clip="true"),
    "key twice": '{"format": "schema/1", "format": "schema/1", "attributes": []}',
    "size twice": valid_json('{"name": "a", "kind": "numeric", "size": 3, "size": 4}'),
    "domain name twice": '{"a": 3, "a": 4}',
    "domain with zero": '{"a": 0}',
    "domain with true": '{"a": true}',
    "domain with float": '{"a": 2.0}',
    "domain with empty name": '{"": 2}',
    "name twice": valid_json(", ".join(['{"name": "a", "kind": "numeric", "size": 3}'] * 2)),
    "deep lists": lambda: "[" * 1_000_000,
    "deep objects": lambda: '{"a":' * 90_000,
    "deep closed": lambda: "[" * 90_000 + "]" * 90_000,
    "deep domain": lambda: valid_json("[" * 5_000 + "]" * 5_000),
    "million lists": lambda: valid_json(",".join(["[]"] * 1_000_000)),
    "many numbers": lambda: one(name="a", kind="numeric", edges=[0] * 300_000),
    "many falling numbers": lambda: one(
        name="a", kind="numeric", edges=list(range(120_000, 0, -1))
    ),
    "many equal labels": lambda: one(name="a", kind="categorical", labels=["x"] * 150_000),
    "not UTF-8": b'{"a": \xff}',
    "UTF-16 cut": '{"a": 3}'.encode("utf-16")[:-1],
    "NUL bytes": b"\x00" * 100,
    "latin-1": '{"\xe9": 3}'.encode("latin-1"),
    "too large": lambda: " " * (MAX_FILE + 1),
    "large and blank": lambda: " " * MAX_FILE,
    "million attributes": lambda: valid_json(
        ",".join(['{"name": "a", "kind": "numeric"}'] * 99_000)
    ),
    "million tiny attributes": lambda: valid_json(",".join(["{}"] * 99_000)),
    "many domains": lambda: "{" + ",".join(f'"{i}":1' for i in range(90_000)) + "}",
    "label of 9 MB": lambda: one(name="a", kind="categorical", labels=["x" * 9_000_000]),
    "name of 9 MB": lambda: attribute_json(name="x" * 9_000_000),
    "kind of 9 MB": lambda: attribute_json(kind="x" * 9_000_000),
    "key of 9 MB": lambda: attribute_json(**{"x" * 9_000_000: 1}),
}

WRONG_CSV: dict[str, Text] = {
    "empty": "",
    "no header": "a,numeric,3\n",
    "header only": "name,kind,size\n",
    "unknown column": "name,kind,size,seed\na,numeric,3,1\n",
    "column twice": "name,kind,size,size\na,numeric,3,3\n",
    "no kind": "name,size\na,3\n",
    "too few fields": "name,kind,size\na,numeric\n",
    "too many fields": "name,kind,size\na,numeric,3,4\n",
    "open quote": 'name,kind,size\n"a,numeric,3\n',
    "text after quote": 'name,kind,size\n"a"b,numeric,3\n',
    "person twice": "name,kind,size\na,numeric,3\np,person,2\nq,person,2\n",
    "person of nothing": "name,kind,size\na,numeric,3\n,person,\n",
    "person with labels": "name,kind,size,labels\na,numeric,3,\np,person,2,x\n",
    "person an attribute": "name,kind,size\na,numeric,3\na,person,2\n",
    "rows of a person a text": "name,kind,size\na,numeric,3\np,person,two\n",
    "rows of a person 0": "name,kind,size\na,numeric,3\np,person,0\n",
    "size text": "name,kind,size\na,numeric,three\n",
    "size 3.0": "name,kind,size\na,numeric,3.0\n",
    "size 1_0": "name,kind,size\na,numeric,1_0\n",
    "size long": lambda: "name,kind,size\na,numeric," + "9" * 5_000 + "\n",
    "edge text": "name,kind,edges\na,numeric,0|x\n",
    "edge NaN": "name,kind,edges\na,numeric,0|nan\n",
    "edge 1e400": "name,kind,edges\na,numeric,0|1e400\n",
    "edge 1_0": "name,kind,edges\na,numeric,0|1_0\n",
    "edge empty": "name,kind,edges\na,numeric,0||1\n",
    "labels empty": "name,kind,labels\na,categorical,\n",
    "label empty": "name,kind,labels\na,categorical,x||y\n",
    "label twice": "name,kind,labels\na,categorical,x|x\n",
    "label with a new line": 'name,kind,labels\na,categorical,"x\ny"\n',
    "clip maybe": "name,kind,edges,clip\na,numeric,0|1,maybe\n",
    "two names": "name,kind,size\na|b,numeric,3\n",
    "name twice": "name,kind,size\na,numeric,3\na,numeric,3\n",
    "size and labels differ": "name,kind,size,labels\na,categorical,3,x|y\n",
    "size with missing": "name,kind,size,missing\na,numeric,3,1\n",
    "not UTF-8": b"name,kind,size\n\xff,numeric,3\n",
    "UTF-16 cut": "name,kind,size\na,numeric,3\n".encode("utf-16")[:-1],
    "NUL": b"name,kind,size\na\x00,numeric,3\n",
    "semicolons and commas": "name;kind;size\na,numeric,3\n",
    "field too long": lambda: "name,kind,labels\na,categorical," + "x|" * MAX_CSV_FIELD + "\n",
    "million rows": lambda: "name,kind,size\n" + "a,numeric,3\n" * 800_000,
    "too large": lambda: "x" * (MAX_FILE + 1),
    "long header": lambda: "x" * MAX_FILE,
    "many columns": lambda: "name,kind" + ",size" * 100_000,
}


@pytest.mark.parametrize(
    ("read", "text"),
    [pytest.param(Schema.from_json, text, id=f"json {case}") for case, text in WRONG_JSON.items()]
    + [pytest.param(Schema.from_csv, text, id=f"csv {case}") for case, text in WRONG_CSV.items()]
    + [
        pytest.param(read, 3, id="a number as file") for read in (Schema.from_json, Schema.from_csv)
    ],
)
def test_invalid_schema_files_are_refused(read, text) -> None:
    text = text() if callable(text) else text
    with pytest.raises(SchemaError) as caught:
        read(text)
    assert len(str(caught.value)) < 500
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_schema_csv_in_spreadsheet_formats_is_read(separator: str, encoding: str) -> None:
    lines = (
        ("name", "kind", "labels"),
        ("größe", "categorical", '"a;b|c,d"'),
        ("sex", "categorical", "F|M"),
    )
    text = "\r\n".join(map(separator.join, lines))
    schema = Schema.from_csv(text.encode(encoding))
    assert schema == Schema(
        [Attribute.categorical("größe", ["a;b", "c,d"]), Attribute.categorical("sex", ["F", "M"])]
    )


def test_schema_csv_in_other_encoding_suggests_utf8() -> None:
    with pytest.raises(SchemaError, match=r"^byte 16 .* is not UTF-8; .*'CSV UTF-8'"):
        Schema.from_csv("name;kind;size\nmü;numeric;3\n".encode("cp1252"))


def test_schema_csv_error_names_line() -> None:
    with pytest.raises(SchemaError, match=r"^line 3: .*'a'"):
        Schema.from_csv("name,kind,size\nb,numeric,3\na,numeric,0\n")


def test_to_csv_with_too_many_labels_is_refused() -> None:
    schema = Schema([Attribute.categorical("a", [f"label {i}" for i in range(20_000)])])
    with pytest.raises(SchemaError, match="JSON"):
        schema.to_csv()
    assert Schema.from_json(schema.to_json()) == schema


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
                    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(
                        st.sampled_from(["format", "attributes", "name", "kind", "size", "labels", "edges", "x"]),
                        inner, max_size=5), max_leaves=12))  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_random_document_raises_only_schema_errors(document: object) -> None:
    for read in (
        lambda: Schema.from_dict(document),
        lambda: Attribute.from_dict(document),
        lambda: Schema.from_json(json.dumps(document)),
        lambda: Schema.from_dict({"format": "schema/1", "attributes": [document]}),
    ):
        with suppress(SchemaError):
            read()


@given(st.text(max_size=60) | st.binary(max_size=60))
@settings(max_examples=60, deadline=None)
def test_random_text_raises_only_schema_errors(text: str | bytes) -> None:
    for read in (Schema.from_json, Schema.from_csv):
        with suppress(SchemaError):
            read(text)
