"""Integer attributes: files, encoding of records, and conditions."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from engine.analysis.what_if import coarser_attribute
from engine.errors import DataError, SchemaError, WorkloadError
from engine.records import OUTSIDE, Encoder, count_marginals
from engine.records.encoding import FRACTION
from engine.release.public_draft import draft_of_public
from engine.workload import Attribute, Schema
from engine.workload.predicates import evaluate
from engine.workload.schema_tables import draft_from_dictionary
from engine.workload.sql import workload_from_sql

INCOME = Attribute.numeric("income", [0, 30_000, 60_000], integer=True)
CLIPPED = Attribute.numeric("income", [0, 30_000, 60_000], integer=True, clip=True, missing=0)
UNDECLARED = Attribute.numeric("income", [0, 30_000, 60_000])


def test_schema_files_omit_undeclared_integer() -> None:
    schema = Schema([UNDECLARED])
    assert "integer" not in schema.to_json()
    header = schema.to_csv().splitlines()[0]
    assert header == "name,kind,size,labels,edges,other,missing,clip"


@pytest.mark.parametrize("attribute", [INCOME, CLIPPED])
def test_schema_files_keep_integer_declaration(attribute: Attribute) -> None:
    schema = Schema(
        [attribute, Attribute.of_size("code", 3), Attribute.numeric("rate", [0, 0.5, 1])]
    )
    assert Schema.from_json(schema.to_json()) == schema
    assert Schema.from_csv(schema.to_csv()) == schema
    assert schema["income"].integer
    assert schema["income"] != UNDECLARED


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"edges": [0, 0.5]}, "whole"),
        ({"edges": [0, 2.0**54]}, "9,007,199"),
        ({"edges": [0, 9], "missing": 1.5}, "whole"),
        ({"labels": ["a"], "kind": "categorical"}, "exclude each other"),
        ({"size": 3}, "needs bins"),
        ({"edges": [0, 9], "integer": "yes"}, "true or false"),
    ],
)
def test_contradictory_integer_attribute_is_refused(fields: dict[str, object], word: str) -> None:
    with pytest.raises(SchemaError, match=word):
        Attribute.from_dict({"name": "x", "kind": "numeric", "integer": True} | fields)


VALUES = [
    29_999,
    29_999.0,
    29_999.5,
    "29999",
    "29999.5",
    "3e4",
    Decimal("29999.50"),
    Decimal(30_000),
    -0.5,
    60_001,
]
CODES = [0, 0, FRACTION, 0, FRACTION, 1, FRACTION, 1, FRACTION, OUTSIDE]


def test_encoder_refuses_fractions_of_integer_attribute() -> None:
    assert Encoder(attribute=INCOME).encode_values(VALUES).tolist() == CODES
    assert Encoder(attribute=CLIPPED).encode_values(VALUES).tolist() == [*CODES[:-1], 1]
    # Without the declaration that values are integers, a fraction is in a bin like any other
    # number.
    assert Encoder(attribute=UNDECLARED).encode_values(VALUES).tolist()[2] == 0


@pytest.mark.parametrize(
    "column",
    [
        pa.array([29_999.0, 29_999.5, -0.5, 70_000.0, np.inf, None]),
        pa.array([1.0, 0.5, 70_000.25, -3.0, -np.inf, None], pa.float32()),
        pa.array(["29999", "29999.5", "", "abc", "1_0", None]),
        pa.array(["29999", "29999.5", " 7 "]).dictionary_encode(),
        pa.array([Decimal("1.00"), Decimal("1.50"), None]),
        pa.array([True, False, None]),
        pa.array([0, 60_000, 2**62, -1, None]),
    ],
)
@pytest.mark.parametrize("attribute", [INCOME, CLIPPED])
def test_encoder_array_agrees_with_single_values(attribute: Attribute, column: pa.Array) -> None:
    encoder = Encoder(attribute=attribute)
    expected = encoder.encode_values(column.to_pylist())
    assert encoder.encode_array(column).tolist() == expected.tolist()


def test_count_leaves_out_fractions_of_integer_attribute() -> None:
    records = pd.DataFrame({"income": [29_999, 29_999.5, 30_000]})
    with pytest.raises(DataError, match="not a whole number"):
        count_marginals(records, Schema([INCOME]), [("income",)])
    counts = count_marginals(records, Schema([INCOME]), [("income",)], on_refused="drop")
    assert counts[("income",)].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("text", "row"),
    [("income <= 29999", [1, 0]), ("income > 29999", [0, 1]), ("59999 < income", None)],
)
def test_predicate_uses_integer_declaration(text: str, row: list[int] | None) -> None:
    with pytest.raises(WorkloadError, match="cuts through"):
        evaluate(text, [UNDECLARED])
    if row is not None:
        assert evaluate(text, [INCOME]).tolist() == row
    else:
        with pytest.raises(WorkloadError, match="cuts through"):
            evaluate(text, [INCOME])


@pytest.mark.parametrize("edges", [[-2, 0, 1, 4], [-2, 3, 4, 4], [-2, 0, 4, 4]])
@pytest.mark.parametrize("sign", ["<", "<=", ">", ">=", "==", "!="])
def test_predicate_on_integers_is_exact_or_refused(sign: str, edges: list[float]) -> None:
    attribute = Attribute.numeric("x", edges, integer=True)
    values = np.arange(-2, 5)
    cells = Encoder(attribute=attribute).encode_values(values.tolist())
    for constant in (-3, -2.5, -2, -1, -0.5, 0, 0.5, 1, 2, 3, 3.5, 4, 5):
        expected = [bool(eval(f"{value} {sign} {constant}")) for value in values]
        # A condition that is true for some values of a bin and false for others must be refused.
        values_of_bins = [{expected[v] for v in np.flatnonzero(cells == i)} for i in range(3)]
        cuts_bin = any(len(values_of_bin) > 1 for values_of_bin in values_of_bins)
        try:
            row = evaluate(f"x {sign} {constant}", [attribute])
        except WorkloadError:
            assert cuts_bin, (sign, constant)
            continue
        assert not cuts_bin, (sign, constant)
        assert row[cells].astype(bool).tolist() == expected


def test_draft_declares_integer_attributes() -> None:
    assert draft_from_dictionary("name,values\nage,0-99\n").schema["age"].integer
    integers = pd.DataFrame({"n": range(0, 4000, 7)})
    cents = pd.DataFrame({"n": [0.5, *range(1, 4000, 7)]})
    assert draft_of_public(integers).schema["n"].integer
    assert not draft_of_public(cents).schema["n"].integer


@pytest.mark.parametrize(
    ("low", "high"), [(0, 99), (18, 99), (-3, 4), (0, 200), (0, 99_999), (1, 1_000_000)]
)
def test_drafted_integer_range_excludes_next_integer(low: int, high: int) -> None:
    schema = draft_from_dictionary(f"name,values\nx,{low} to {high}\n").schema
    attribute = schema["x"]
    cells = Encoder(attribute=attribute).encode_array(pa.array([low - 1, low, high, high + 1]))
    assert cells.tolist() == [OUTSIDE, 0, attribute.size - 1, OUTSIDE]
    assert attribute.label(attribute.size - 1).endswith(f"{high}]")
    for condition in (f"x <= {high}", f"x < {high + 1}", f"x >= {low}"):
        assert evaluate(condition, [attribute]).all()
        assert len(workload_from_sql(schema, f"SELECT COUNT(*) FROM t WHERE {condition}")) == 1
    assert Schema.from_csv(schema.to_csv()) == Schema.from_json(schema.to_json()) == schema


def test_drafted_public_integers_exclude_next_integer() -> None:
    attribute = draft_of_public(pd.DataFrame({"n": range(100)})).schema["n"]
    assert Encoder(attribute=attribute).encode_values([99, 100]).tolist() == [99, OUTSIDE]


def test_repeated_last_edge_requires_integer_attribute() -> None:
    assert Attribute.numeric("x", [0, 1, 1], integer=True).size == 2
    cases = (([0, 1, 1], False), ([0, 0, 1], True), ([0, 1, 1, 1], True), ([0, 2, 1], True))
    for edges, integer in cases:
        with pytest.raises(SchemaError, match="increase"):
            Attribute.numeric("x", edges, integer=integer)


def test_coarser_attribute_keeps_integer_declaration() -> None:
    assert coarser_attribute(Attribute.of_size("code", 8)).integer
    assert coarser_attribute(Attribute.numeric("x", [0, 1, 2, 3, 4], integer=True)).integer
    assert not coarser_attribute(Attribute.numeric("x", [0, 1, 2, 3, 4])).integer
