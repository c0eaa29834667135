"""Codes of values: equal for single values and for columns of every type."""

import datetime
import itertools
import math
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import engine.records.readers
from engine.records import MISSING, OUTSIDE, Encoder
from engine.records.encoding import FRACTION, NOT_NUMBER, UNSUPPORTED
from engine.workload import Attribute

LABELS = Attribute.categorical("a", ["1", "-2", "x", "True", "0.5", "NaN", "0", "01"])
SORTED = Attribute.categorical("a", ["x", "else", "none"], other="else", missing="none")
BINS = Attribute.numeric("a", [-1.5, 0, 2.5, 10])
CLIPPED = Attribute.numeric("a", [0, 1, 2**53 + 4, 2**60], clip=True, missing=1)
CODES = Attribute.of_size("a", 3)
WIDE = Attribute.of_size("a", 70_000, "categorical")
ATTRIBUTES = (LABELS, SORTED, BINS, CLIPPED, CODES, WIDE)

RULES = [
    (LABELS, 1, 0), (LABELS, 1.0, 0), (LABELS, "1", 0), (LABELS, Decimal("1.00"), 0), (LABELS, np.int8(1), 0),
    (LABELS, "1.0", OUTSIDE), (LABELS, " 1", OUTSIDE), (LABELS, -2, 1), (LABELS, -2.0, 1), (LABELS, "x", 2),
    (LABELS, "X", OUTSIDE), (LABELS, True, 3), (LABELS, np.True_, 3), (LABELS, "true", OUTSIDE), (LABELS, 0.5, 4),
    (LABELS, "0.50", OUTSIDE), (LABELS, "NaN", 5), (LABELS, math.nan, MISSING), (LABELS, -0.0, 6), (LABELS, "01", 7),
    (LABELS, False, OUTSIDE), (LABELS, b"x", 2), (LABELS, b"\xff", UNSUPPORTED), (LABELS, 10**5000, OUTSIDE),
    (LABELS, math.inf, OUTSIDE), (LABELS, "", MISSING), (LABELS, None, MISSING), (LABELS, pd.NA, MISSING),
    (LABELS, pd.NaT, MISSING), (LABELS, [1], UNSUPPORTED), (LABELS, datetime.date(2020, 1, 1), UNSUPPORTED),
    (LABELS, Decimal("NaN"), MISSING), (LABELS, Decimal("sNaN"), MISSING), (LABELS, "\ud800", OUTSIDE),
    (LABELS, np.datetime64("2020"), UNSUPPORTED), (LABELS, np.timedelta64(1, "s"), UNSUPPORTED),
    (SORTED, "y", 1), (SORTED, 3.5, 1), (SORTED, None, 2), (SORTED, "", 2), (SORTED, [1], UNSUPPORTED),
    (BINS, -1.5, 0), (BINS, -1.6, OUTSIDE), (BINS, -1e-300, 0), (BINS, 0, 1), (BINS, 2.5, 2), (BINS, 10, 2),
    (BINS, np.nextafter(10, 11), OUTSIDE), (BINS, "2.4999", 1), (BINS, " 7 ", 2), (BINS, "7,5", NOT_NUMBER),
    (BINS, "1_0", NOT_NUMBER), (BINS, "٣", NOT_NUMBER), (BINS, "", MISSING), (BINS, "nan", MISSING),
    (BINS, "inf", OUTSIDE), (BINS, -math.inf, OUTSIDE), (BINS, "x", NOT_NUMBER), (BINS, 1j, UNSUPPORTED),
    (BINS, True, 1), (BINS, Decimal("9.99999999999999999999"), 2), (BINS, Decimal("10.00000000000000000001"), OUTSIDE),
    (CLIPPED, -math.inf, 0), (CLIPPED, math.inf, 2), (CLIPPED, None, 1), (CLIPPED, 2**53 + 3, 1),
    (CLIPPED, 2**53 + 4, 2), (CLIPPED, 10**400, 2), (CLIPPED, Decimal("9007199254740995.5"), 1),
    (CLIPPED, Decimal("1e999999"), 2),
    (CODES, 2, 2), (CODES, 3, OUTSIDE), (CODES, -1, OUTSIDE), (CODES, 2.0, 2), (CODES, 1.5, FRACTION),
    (CODES, -0.5, FRACTION), (CODES, 1e300, OUTSIDE), (CODES, 2**64 + 1, OUTSIDE), (CODES, 2**63, OUTSIDE),
    (CODES, 256, OUTSIDE), (CODES, math.inf, OUTSIDE), (CODES, math.nan, MISSING), (CODES, "2", 2), (CODES, "2.0", 2),
    (CODES, "2.5", FRACTION), (CODES, "two", NOT_NUMBER), (CODES, True, 1), (CODES, Decimal("2"), 2),
    (CODES, Decimal("1.5"), FRACTION), (CODES, Decimal("-Infinity"), OUTSIDE), (CODES, -0.0, 0),
    (WIDE, 69_999, 69_999), (WIDE, 70_000, OUTSIDE), (WIDE, -70_001, OUTSIDE),
]  # fmt: skip


def test_encoder_one_value_follows_rules() -> None:
    for i, (attribute, value, code) in enumerate(RULES):
        assert Encoder(attribute=attribute).encode(value) == code, f"rule {i}"


texts = st.sampled_from(
    ["1", "-2", "x", "y", "", "True", "nan", "2.5", " 2", "inf", "1e400", "01", "2_0", "٣"]
)
values_of = {
    pa.int8(): st.integers(-128, 127),
    pa.int64(): (
        st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 12) | st.integers(2**53, 2**53 + 5)
    ),
    pa.uint8(): st.integers(0, 255),
    pa.uint64(): st.integers(0, 2**64 - 1) | st.integers(0, 12) | st.integers(2**53, 2**53 + 5),
    pa.float16(): st.floats(width=16).map(np.float16),
    pa.float32(): st.floats(width=32) | st.integers(-3, 12).map(float),
    pa.float64(): (
        st.floats()
        | st.integers(-3, 12).map(float)
        | st.sampled_from([2.0**53, 2.0**60, 2.5, 10.0])
    ),
    pa.bool_(): st.booleans(),
    pa.decimal128(30, 5): st.decimals(-(10**9), 10**9, places=5) | st.integers(-3, 12).map(Decimal),
    pa.string(): texts,
    pa.large_string(): texts,
    pa.string_view(): texts,
    pa.binary(): texts.map(str.encode) | st.just(b"\xff"),
    pa.date32(): st.dates(),
    pa.timestamp("ns"): st.just(0),
    pa.duration("s"): st.just(0),
    pa.list_(pa.int64()): st.just([1]),
    pa.struct([("x", pa.int64())]): st.just({"x": 1}),
    pa.null(): st.none(),
}


@pytest.mark.parametrize("kind", values_of, ids=str)
@given(data=st.data())
@settings(max_examples=12, deadline=None)
def test_columns_have_codes_of_single_values(kind: pa.DataType, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.none() | values_of[kind], max_size=8))
    array = pa.array(values, kind)
    second_half = pa.concat_arrays([array, array]).slice(len(array))
    columns = [array, second_half]
    is_flat = not pa.types.is_nested(kind) and kind != pa.null()
    if is_flat and kind not in (pa.float16(), pa.string_view()):
        indices = pa.array(range(len(array)), pa.int8())
        columns += [array.dictionary_encode(), pa.DictionaryArray.from_arrays(indices, array)]
    if is_flat:
        run_ends = pa.array(range(1, len(array) + 1), pa.int32())
        columns.append(pa.RunEndEncodedArray.from_arrays(run_ends, array))
    for attribute in ATTRIBUTES:
        encoder = Encoder(attribute=attribute)
        if kind == pa.timestamp("ns"):
            expected = [encoder.missing if value is None else UNSUPPORTED for value in values]
        else:
            expected = [encoder.encode(value) for value in array.to_pylist()]
        for column in columns:
            codes = encoder.encode_array(column)
            assert codes.tolist() == expected
            assert codes.dtype == encoder.dtype


def test_decimal_column_matches_label_of_equal_number() -> None:
    written = [
        "0.5",
        "0.25",
        "1e-05",
        "2",
        "0.125",
        "9007199254740993",
        "0.1000000000000000000000001",
    ]
    column = pa.array([Decimal(text) for text in written], pa.decimal256(60, 26))
    encoder = Encoder(attribute=Attribute.categorical("price", written))
    for values in (column, pa.array(written), column.dictionary_encode()):
        assert encoder.encode_array(values).tolist() == list(range(len(written)))
    assert encoder.encode_values([float(text) for text in written[:5]]).tolist() == [0, 1, 2, 3, 4]
    cents = pa.array([Decimal("0.50"), Decimal("0.75"), None], pa.decimal128(5, 2))
    for label in ("0.5", "0.50"):
        labels = Attribute.categorical("price", [label, "rest"], other="rest")
        assert Encoder(attribute=labels).encode_array(cents).tolist() == [0, 1, MISSING]
    both = Encoder(attribute=Attribute.categorical("price", ["0.50", "0.5"]))
    assert both.encode_array(cents).tolist() == [1, OUTSIDE, MISSING]
    assert both.encode(Decimal("1e-999999")) == OUTSIDE


def test_columns_that_python_cannot_read_are_refused() -> None:
    late = pa.array([2**31 - 1, None], pa.int32()).cast(pa.date32())
    broken = pa.array([b"\xff", None], pa.binary()).view(pa.string())
    for attribute in ATTRIBUTES:
        encoder = Encoder(attribute=attribute)
        assert encoder.encode_array(late).tolist() == [UNSUPPORTED, encoder.missing]
        outside = UNSUPPORTED
        if attribute.labels is not None:
            outside = OUTSIDE if attribute.other is None else 1
        assert encoder.encode_array(broken).tolist() == [outside, encoder.missing]


def test_mixed_objects_have_codes_of_single_values() -> None:
    one_value_per_type = list({type(value): value for _, value, _ in RULES}.values())
    values = [
        *one_value_per_type,
        1,
        2.5,
        10**300,
        math.nan,
        "x",
        True,
        datetime.datetime(2020, 1, 1),
        pd.Timestamp("2020-01-01"),
        {},
    ]
    encoders = [Encoder(attribute=attribute) for attribute in ATTRIBUTES]
    for pair in itertools.product(values, repeat=2):
        column = engine.records.readers.array_of(pd.Series(pair, dtype=object))
        for encoder in encoders:
            encode = encoder.encode_values if isinstance(column, list) else encoder.encode_array
            expected = [encoder.encode(value) for value in pair]
            assert encode(column).tolist() == expected, f"{list(map(type, pair))}"
