"""Exact tables from records of every kind; refused rows counted, hostile files refused, no value in any message."""

import csv
import datetime
import functools
import gzip
import io
import itertools
import math
import pickle
import random
import subprocess
import sys
import traceback
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import engine.release.records.csv
import engine.release.records.sources
import engine.release.records.tables
from engine.errors import Cancelled, DataError, EngineError, LimitExceeded, SchemaError
from engine.release import Counts, count_marginals
from engine.release.records.encoding import FRACTION, MISSING, NOT_NUMBER, OUTSIDE, UNSUPPORTED, Encoder
from engine.workload import Attribute, Schema

CANARY = "CANARY7391"

LABELS = Attribute.categorical("a", ["1", "-2", "x", "True", "0.5", "NaN", "0", "01"])
SORTED = Attribute.categorical("a", ["x", "else", "none"], other="else", missing="none")
BINS = Attribute.numeric("a", [-1.5, 0, 2.5, 10])
CLIPPED = Attribute.numeric("a", [0, 1, 2**53 + 4, 2**60], clip=True, missing=1)
CODES = Attribute.of_size("a", 3)
WIDE = Attribute.of_size("a", 70_000, "categorical")
EVERY = (LABELS, SORTED, BINS, CLIPPED, CODES, WIDE)

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


def test_the_rule_for_one_value() -> None:
    for i, (attribute, value, code) in enumerate(RULES):
        assert Encoder(attribute=attribute).one(value) == code, f"rule {i}"


texts = st.sampled_from(["1", "-2", "x", "y", "", "True", "nan", "2.5", " 2", "inf", "1e400", "01", "2_0", "٣"])
values_of = {
    pa.int8(): st.integers(-128, 127),
    pa.int64(): st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 12) | st.integers(2**53, 2**53 + 5),
    pa.uint8(): st.integers(0, 255),
    pa.uint64(): st.integers(0, 2**64 - 1) | st.integers(0, 12) | st.integers(2**53, 2**53 + 5),
    pa.float16(): st.floats(width=16).map(np.float16),
    pa.float32(): st.floats(width=32) | st.integers(-3, 12).map(float),
    pa.float64(): st.floats() | st.integers(-3, 12).map(float) | st.sampled_from([2.0**53, 2.0**60, 2.5, 10.0]),
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
def test_columns_follow_the_rule(kind: pa.DataType, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.none() | values_of[kind], max_size=8))
    array = pa.array(values, kind)
    forms = [array, pa.concat_arrays([array, array]).slice(len(array))]
    if not pa.types.is_nested(kind) and kind != pa.float16() and kind not in (pa.null(), pa.string_view()):
        forms.append(array.dictionary_encode())
        forms.append(pa.DictionaryArray.from_arrays(pa.array(range(len(array)), pa.int8()), array))
    if not pa.types.is_nested(kind) and kind != pa.null():
        forms.append(pa.RunEndEncodedArray.from_arrays(pa.array(range(1, len(array) + 1), pa.int32()), array))
    for attribute in EVERY:
        encoder = Encoder(attribute=attribute)
        expected = [encoder.one(value) for value in array.to_pylist()] if kind != pa.timestamp("ns") else [
            encoder.missing if value is None else UNSUPPORTED for value in values
        ]  # fmt: skip
        for form in forms:
            found = encoder.array(form)
            assert found.tolist() == expected
            assert found.dtype == encoder.dtype


def test_a_decimal_meets_the_label_of_the_same_number() -> None:
    written = ["0.5", "0.25", "1e-05", "2", "0.125", "9007199254740993", "0.1000000000000000000000001"]
    column = pa.array([Decimal(text) for text in written], pa.decimal256(60, 26))
    encoder = Encoder(attribute=Attribute.categorical("price", written))
    for values in (column, pa.array(written), column.dictionary_encode()):
        assert encoder.array(values).tolist() == list(range(len(written)))
    assert encoder.objects([float(text) for text in written[:5]]).tolist() == [0, 1, 2, 3, 4]
    cents = pa.array([Decimal("0.50"), Decimal("0.75"), None], pa.decimal128(5, 2))
    for label in ("0.5", "0.50"):
        labels = Attribute.categorical("price", [label, "rest"], other="rest")
        assert Encoder(attribute=labels).array(cents).tolist() == [0, 1, MISSING]
    both = Encoder(attribute=Attribute.categorical("price", ["0.50", "0.5"]))
    assert both.array(cents).tolist() == [1, OUTSIDE, MISSING]
    assert both.one(Decimal("1e-999999")) == OUTSIDE


def test_columns_that_python_cannot_read_are_refused() -> None:
    late = pa.array([2**31 - 1, None], pa.int32()).cast(pa.date32())
    broken = pa.array([b"\xff", None], pa.binary()).view(pa.string())
    for attribute in EVERY:
        encoder = Encoder(attribute=attribute)
        assert encoder.array(late).tolist() == [UNSUPPORTED, encoder.missing]
        outside = UNSUPPORTED if attribute.labels is None else OUTSIDE if attribute.other is None else 1
        assert encoder.array(broken).tolist() == [outside, encoder.missing]


def test_objects_of_mixed_types_follow_the_rule() -> None:
    values = list({type(value): value for _, value, _ in RULES}.values())
    values += [1, 2.5, 10**300, math.nan, "x", True, datetime.datetime(2020, 1, 1), pd.Timestamp("2020-01-01"), {}]
    encoders = [Encoder(attribute=attribute) for attribute in EVERY]
    for pair in itertools.product(values, repeat=2):
        column = engine.release.records.sources.array_of(pd.Series(pair, dtype=object))
        for encoder in encoders:
            found = encoder.objects(column) if isinstance(column, list) else encoder.array(column)
            assert found.tolist() == [encoder.one(value) for value in pair], f"{list(map(type, pair))}"


SCHEMA = Schema(
    [
        Attribute.categorical("sex", ["F", "M"], missing="unknown"),
        Attribute.numeric("age", [0, 20, 65, 120]),
        Attribute.of_size("code", 5),
        Attribute.of_size("one", 1, "categorical"),
        Attribute.categorical("zip", ["01", "1"], other="elsewhere"),
    ]
)
ALL_SETS = [sets for k in range(6) for sets in itertools.combinations(SCHEMA.names, k)]
ALL_SETS += [("age", "sex"), ("zip", "code", "sex")]


def sample(rows: int, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "note": [CANARY] * rows,
            "sex": rng.choice(["F", "M", None], rows).astype(object),
            "age": rng.uniform(0, 120, rows).round(1),
            "code": rng.integers(0, 5, rows),
            "one": np.zeros(rows, int),
            "zip": rng.choice(["01", "1", "99", "x,\ny"], rows),
        }
    )


def oracle(frame: pd.DataFrame, schema: Schema, names: tuple[str, ...]) -> np.ndarray:
    """Cell by cell with pandas: count the rows whose every value lies in the cell."""

    def inside(name: str, cell: int) -> pd.Series:
        attribute, column = schema[name], frame[name]
        if attribute.edges is not None:
            last = cell == attribute.size - 1
            upper = column <= attribute.edges[-1] if last else column < attribute.edges[cell + 1]
            return (column >= attribute.edges[cell]) & upper
        if attribute.labels is None:
            return column == cell
        label = attribute.labels[cell]
        own = column.eq(label) & column.notna()
        if label == attribute.missing:
            own |= column.isna()
        if label == attribute.other:
            own |= column.notna() & ~column.isin(attribute.labels)
        return own

    table = np.zeros(schema.sizes(names), np.int64)
    for cell in np.ndindex(table.shape):
        rows = np.ones(len(frame), bool)
        for name, i in zip(names, cell, strict=True):
            rows &= inside(name, i).to_numpy(dtype=bool)
        table[cell] = rows.sum()
    return table


class Lazy:
    """Stands for a table of a query engine."""

    def __init__(self, table: pa.Table) -> None:
        self.table, self.columns = table, tuple(table.column_names)

    def select(self, names: list[str]) -> "Lazy":
        return Lazy(self.table.select(names))

    def to_pyarrow_batches(self, *, chunk_size: int = 10**6) -> pa.RecordBatchReader:
        return self.table.to_reader(max_chunksize=chunk_size)


class Capsule:
    """Stands for a table of another data frame library."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.__arrow_c_stream__(requested_schema)


def csv_file(frame: pd.DataFrame, path: Path) -> Path:
    frame.to_csv(path, index=False)
    return path


def parquet_file(frame: pd.DataFrame, path: Path) -> Path:
    pa.parquet.write_table(pa.Table.from_pandas(frame), path, row_group_size=60)
    return path


def partitioned(frame: pd.DataFrame, path: Path) -> pa.dataset.Dataset:
    pa.dataset.write_dataset(pa.Table.from_pandas(frame), path, format="parquet", partitioning=["code"],
                             partitioning_flavor="hive")  # fmt: skip
    return pa.dataset.dataset(path, partitioning="hive")


KINDS = {
    "DataFrame": lambda frame, path: frame,
    "DataFrame of extension types": lambda frame, path: frame.convert_dtypes(),
    "DataFrame of Arrow types": lambda frame, path: frame.convert_dtypes(dtype_backend="pyarrow"),
    "DataFrame of objects": lambda frame, path: frame.astype(object),
    "DataFrame of categories": lambda frame, path: frame.astype("category"),
    "DataFrame with odd index": lambda frame, path: frame.set_index(pd.Index([7] * len(frame))),
    "csv": lambda frame, path: csv_file(frame, path / "x.csv"),
    "csv as text": lambda frame, path: str(csv_file(frame, path / "x.CSV")),
    "csv.gz": lambda frame, path: csv_file(frame, path / "x.csv.gz"),
    "parquet": lambda frame, path: parquet_file(frame, path / "x.parquet"),
    "parquet of categories": lambda frame, path: parquet_file(frame.astype("category"), path / "x.parquet"),
    "table": lambda frame, path: pa.Table.from_pandas(frame),
    "batch": lambda frame, path: pa.RecordBatch.from_pandas(frame),
    "reader": lambda frame, path: pa.Table.from_pandas(frame).to_reader(max_chunksize=33),
    "dataset in memory": lambda frame, path: pa.dataset.dataset(pa.Table.from_pandas(frame)),
    "dataset of files": lambda frame, path: partitioned(frame, path / "set"),
    "lazy": lambda frame, path: Lazy(pa.Table.from_pandas(frame)),
    "capsule": lambda frame, path: Capsule(pa.Table.from_pandas(frame)),
    "counts": lambda frame, path: count_marginals(frame, SCHEMA, [SCHEMA.names[::-1]]),
}


@functools.cache
def expected_tables(rows: int) -> dict[tuple[str, ...], np.ndarray]:
    return {names: oracle(sample(rows), SCHEMA, names) for names in ALL_SETS}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_data_gives_the_same_exact_tables(kind: str, tmp_path: Path) -> None:
    frame = sample(200)
    counts = count_marginals(KINDS[kind](frame, tmp_path), SCHEMA, ALL_SETS)
    assert list(counts) == ALL_SETS
    assert counts.records == counts.rows_in == len(frame)
    assert counts.refused == {}
    for names, table in counts.items():
        assert table.dtype == np.int64
        assert table.flags.c_contiguous
        np.testing.assert_array_equal(table, expected_tables(len(frame))[names])


def test_chunks_and_batches_of_any_size_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = sample(5_000)
    whole = count_marginals(frame, SCHEMA, ALL_SETS)
    monkeypatch.setattr(engine.release.records.tables, "CHUNK_ROWS", 1)
    monkeypatch.setattr(engine.release.records.sources, "BATCH_BYTES", 1)
    again = count_marginals(frame, SCHEMA, ALL_SETS)
    for names in ALL_SETS:
        np.testing.assert_array_equal(again[names], whole[names])


@pytest.mark.parametrize(
    "sizes", [(1, 128), (128, 1), (127,), (128,), (1, 32_768), (181, 182), (2, 7, 3_000), (99_999,)]
)
def test_tables_at_the_ends_of_integer_types(sizes: tuple[int, ...]) -> None:
    schema = Schema([Attribute.of_size(f"a{i}", size) for i, size in enumerate(sizes)])
    rng = np.random.default_rng(1)
    for rows in (50, 40_000):
        columns = [rng.integers(0, size, rows) for size in sizes]
        for codes, size in zip(columns, sizes, strict=True):
            codes[:2] = 0, size - 1
        found = count_marginals(pd.DataFrame(dict(zip(schema.names, columns, strict=True))), schema, [schema.names])
        expected = np.bincount(np.ravel_multi_index(columns, sizes), minlength=math.prod(sizes)).reshape(sizes)
        np.testing.assert_array_equal(found[schema.names], expected)


def test_csv_blocks_may_end_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = csv_file(sample(200), tmp_path / "x.csv")
    for block in (60, 61, 500):
        monkeypatch.setattr(engine.release.records.csv, "CSV_BLOCK", block)
        counts = count_marginals(path, SCHEMA, ALL_SETS)
        for names in ALL_SETS:
            np.testing.assert_array_equal(counts[names], expected_tables(200)[names])


def test_only_the_number_of_records_is_asked(tmp_path: Path) -> None:
    frame = sample(70)
    for kind in set(KINDS) - {"counts"}:
        path = tmp_path / kind
        path.mkdir()
        counts = count_marginals(KINDS[kind](frame, path), SCHEMA, [()])
        assert counts[()].shape == ()
        assert int(counts[()]) == counts.records == 70
    assert len(count_marginals(frame, SCHEMA, [])) == 0


def test_an_empty_table_of_records_counts_nothing(tmp_path: Path) -> None:
    frame = sample(3).iloc[:0]
    for kind in ("DataFrame", "csv", "csv.gz", "parquet", "table", "reader", "lazy", "dataset in memory"):
        path = tmp_path / kind
        path.mkdir()
        counts = count_marginals(KINDS[kind](frame, path), SCHEMA, ALL_SETS)
        assert counts.rows_in == 0
        assert all(table.sum() == 0 for table in counts.values())


anything = (st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.binary(max_size=2)
            | st.decimals() | st.dates() | st.lists(st.integers(), max_size=1)
            | st.sampled_from(["F", "01", 0, 1, 19.5, pd.NaT, np.datetime64("2020-01-01")]))  # fmt: skip


@given(st.lists(st.tuples(*[anything] * len(SCHEMA)), max_size=12))
@settings(max_examples=15, deadline=None)
def test_rows_in_are_rows_counted_and_rows_refused(rows: list[tuple[object, ...]]) -> None:
    frame = pd.DataFrame(rows, columns=list(SCHEMA.names), dtype=object)
    counts = count_marginals(frame, SCHEMA, ALL_SETS, on_refused="drop")
    codes = [[Encoder(attribute=SCHEMA[name]).one(v) for name, v in zip(SCHEMA, row, strict=True)] for row in rows]
    good = [code for code in codes if min(code) >= 0]
    assert counts.rows_in == len(rows)
    assert counts.records == len(good)
    assert sum(n for reasons in counts.refused.values() for n in reasons.values()) == sum(
        code < 0 for row in codes for code in row
    )
    for names in ALL_SETS:
        expected = np.zeros(SCHEMA.sizes(names), np.int64)
        for code in good:
            expected[tuple(code[SCHEMA.names.index(name)] for name in names)] += 1
        np.testing.assert_array_equal(counts[names], expected)
    if len(good) < len(rows):
        with pytest.raises(DataError, match=f"{len(rows) - len(good)} of {len(rows)} rows"):
            count_marginals(frame, SCHEMA, ALL_SETS)


def test_the_complaint_names_column_reason_and_rows_and_no_value(tmp_path: Path) -> None:
    frame = sample(10)
    frame["age"] = frame["age"].astype(object)
    frame.loc[[1, 2], "age"] = CANARY
    frame.loc[3, "age"] = None
    frame.loc[[3, 4, 5], "code"] = 7391
    for kind in ("DataFrame", "csv", "csv.gz"):
        with pytest.raises(DataError) as caught:
            count_marginals(KINDS[kind](frame, tmp_path), SCHEMA, [("age", "code"), ("sex",)])
        text = str(caught.value)
        assert text.startswith("5 of 10 rows do not fit the schema: column 'age': 1 missing, 2 not a number; ")
        assert "column 'code': 3 outside the public domain" in text
        assert_silent(caught.value)
        counts = count_marginals(KINDS[kind](frame, tmp_path), SCHEMA, [("age", "code")], on_refused="drop")
        assert (counts.records, counts.rows_refused, counts.rows_in) == (5, 5, 10)
        assert counts.refused == {
            "age": {"missing": 1, "not a number": 2},
            "code": {"outside the public domain": 3},
        }
    # A column that no table needs is not looked at.
    assert count_marginals(frame, SCHEMA, [("sex",)]).records == 10


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("age", [CANARY, 5]),
        ("age", [7391.5, "7391"]),
        ("code", [7391, 1]),
        ("code", [0.7391, 1.0]),
        ("code", [CANARY, "1"]),
        ("sex", [CANARY, "F"]),
        ("person", [0.7391, 1.0]),
        ("person", [CANARY, 7391]),
        ("person", [[7391], [1]]),
    ],
    ids=str,
)
def test_no_error_shows_a_value(column: str, values: list[object]) -> None:
    frame = sample(2).assign(person=["a", "b"]).astype(object)
    frame[column] = pd.Series(values, dtype=object).infer_objects()
    with pytest.raises(DataError) as caught:
        count_marginals(frame, SCHEMA, [("age", "code", "sex")], person="person")
    assert_silent(caught.value)


def assert_silent(error: BaseException) -> None:
    """The error says nothing that was read from records, not even in what it hides."""
    assert isinstance(error, (DataError, LimitExceeded))
    text = "".join(traceback.format_exception(error))
    assert CANARY not in text
    assert "7391" not in text
    assert error.__cause__ is None
    assert error.__context__ is None
    assert len(str(error)) < 600


def test_shards_add_up() -> None:
    frame = sample(300)
    parts = [count_marginals(part, SCHEMA, ALL_SETS) for part in (frame[:100], frame[100:130], frame[130:])]
    total = parts[0] + parts[1] + parts[2]
    for names, table in count_marginals(frame, SCHEMA, ALL_SETS).items():
        np.testing.assert_array_equal(total[names], table)
    assert total.records == 300
    frame.loc[0, "code"] = 9
    dropped = count_marginals(frame, SCHEMA, ALL_SETS, on_refused="drop")
    assert (dropped + dropped).refused == {"code": {"outside the public domain": 2}}
    with pytest.raises(DataError, match="different"):
        total + count_marginals(frame, SCHEMA, [("sex",)])
    with pytest.raises(TypeError):
        total + 1


def test_counts_are_read_only_and_show_no_number() -> None:
    counts = count_marginals(sample(7391), SCHEMA, ALL_SETS)
    for table in counts.values():
        with pytest.raises(ValueError, match="read-only"):
            table[...] = 0
    again = pickle.loads(pickle.dumps(counts))
    assert all((again[names] == table).all() for names, table in counts.items())
    assert "7391" not in repr(counts)
    assert "7391" not in str(counts)
    assert counts == counts
    assert counts != count_marginals(sample(7391), SCHEMA, ALL_SETS)
    assert {counts: 1}[counts] == 1


def test_smaller_tables_come_from_counts() -> None:
    counts = count_marginals(sample(100), SCHEMA, [("sex", "age"), ("code",)])
    again = count_marginals(counts, SCHEMA, [("age",), ("age", "sex"), (), ("code",)])
    np.testing.assert_array_equal(again["age", "sex"], counts["sex", "age"].T)
    np.testing.assert_array_equal(again["age",], counts["sex", "age"].sum(axis=0))
    assert int(again[()]) == again.records == 100
    with pytest.raises(DataError, match="'sex', 'code'"):
        count_marginals(counts, SCHEMA, [("sex", "code")])
    other = Schema([Attribute.categorical("sex", ["M", "F"], missing="unknown")])
    with pytest.raises(DataError, match="'sex'"):
        count_marginals(counts, other, [("sex",)])


def test_counts_from_tables_made_elsewhere() -> None:
    made = Counts.from_tables(SCHEMA, {("sex",): [1, 2, 0], ("code", "one"): [[3], [0], [0], [0], [0]]})
    assert made.records == 3
    assert made["code", "one"].dtype == np.int64
    wrong: list[dict[tuple[str, ...], object]] = [
        {},
        {("sex",): [1, 2]},
        {("sex",): [1.0, 2.0, 0.0]},
        {("sex",): [1, 2, -1]},
        {("sex",): [2**63, 0, 0]},
        {("sex",): [True, False, True]},
        {("sex",): ["1", "2", "0"]},
        {("sex",): [1, 2, 0], ("code",): [1, 2, 1, 0, 0]},
    ]
    for tables in wrong:
        with pytest.raises(DataError):
            Counts.from_tables(SCHEMA, tables)
    with pytest.raises(SchemaError):
        Counts.from_tables(SCHEMA, {("height",): [1]})


def test_wrong_requests_are_refused() -> None:
    frame = sample(3)
    for sets in (["age"], "age", [3], [("age", "age")], [("height",)], [(3,)], [{"age", "sex"}], [frozenset(["age"])]):
        with pytest.raises(SchemaError):
            count_marginals(frame, SCHEMA, sets)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="'skip'"):
        count_marginals(frame, SCHEMA, ALL_SETS, on_refused="skip")
    for data in (None, 3, b"x.csv", {"age": [1]}, [[1]], np.zeros(3), "x.xlsx", "x.csv", Path("/"), "https://x/y.csv"):
        with pytest.raises(DataError):
            count_marginals(data, SCHEMA, [("age",)])


def test_tables_too_large_are_refused_before_anything_is_allocated() -> None:
    schema = Schema([Attribute.of_size(f"a{i}", 1_000) for i in range(40)])
    frame = pd.DataFrame({name: [0] for name in schema})
    with pytest.raises(LimitExceeded, match=r"7\.9e\+13 bytes"):
        count_marginals(frame, schema, itertools.combinations(schema.names, 3))
    with pytest.raises(LimitExceeded):
        count_marginals(frame, schema, [schema.names])
    exact = 8 * 10**6
    assert count_marginals(frame, schema, [("a0", "a1")], memory_limit=exact).records == 1
    with pytest.raises(LimitExceeded):
        count_marginals(frame, schema, [("a0", "a1")], memory_limit=exact - 1)
    many = Schema([Attribute.of_size(f"a{i}", 1 if i < 100 else 10**7) for i in range(10_000)])
    for names in (many.names, many.names[:65]):
        with pytest.raises(LimitExceeded):
            count_marginals(frame, many, [names])


@pytest.mark.parametrize("kind", ["DataFrame", "csv", "csv.gz", "parquet", "reader"])
def test_progress_rises_and_can_stop(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.release.records.sources, "BATCH_BYTES", 1)
    seen: list[float] = []
    data = KINDS[kind](sample(4_000), tmp_path)
    count_marginals(data, SCHEMA, ALL_SETS, progress=lambda fraction, text: seen.append(fraction))
    assert seen == sorted(seen)
    assert len(seen) >= 4
    assert 0 < seen[-1] <= 1

    def stop(fraction: float, text: str) -> None:
        raise Cancelled("stopped")

    with pytest.raises(Cancelled):
        count_marginals(KINDS[kind](sample(4_000), tmp_path), SCHEMA, ALL_SETS, progress=stop)


def test_errors_of_foreign_readers_are_replaced() -> None:
    def broken() -> object:
        yield pa.RecordBatch.from_pydict({"code": [1]})
        raise ValueError(f"cannot convert {CANARY}")

    class Broken:
        def to_pyarrow_batches(self) -> pa.RecordBatchReader:
            return pa.RecordBatchReader.from_batches(pa.schema([("code", pa.int64())]), broken())

    class Worse:
        columns = ("code",)

        def select(self, names: list[str]) -> None:
            raise RuntimeError(CANARY)

        def to_pyarrow_batches(self) -> None:
            raise RuntimeError(CANARY)

    class Worst:
        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            raise MemoryError(CANARY)

    for data, expected in ((Broken(), DataError), (Worse(), DataError), (Worst(), LimitExceeded)):
        with pytest.raises(expected) as caught:
            count_marginals(data, SCHEMA, [("code",)])
        assert_silent(caught.value)


def test_a_headless_file_is_not_quoted(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("agee,sexx\n1,2\n")
    with pytest.raises(DataError, match="first line must hold the column names") as caught:
        count_marginals(path, SCHEMA, [("age",)])
    assert "agee" not in str(caught.value)
    path.write_text("sex,agee\nF,2\n")
    with pytest.raises(DataError, match="'agee'"):
        count_marginals(path, SCHEMA, [("age", "sex")])


BAD_ROWS = [
    b"1", b"1,2,3", b"1,2,3,4,5", b'1,"2,3', b'1,2"3,4', b'1,"2"x,3', b'"1,2,3', b"1,2,\xff", b"\xff,1,2", b"1,\xc3,2",
    b"1,2,\xed\xa0\x80", b",,", b"", b"\x00,1,2", b"1,2,nan", b"nan,1,F", b"inf,1,F", b"1e400,1,F", b"-1,1,F", b"5,1,F",
    b"1.5,1,F", b"99999999999999999999,1,F", b"0x1,1,F", b"1_0,1,F", b"1,121,F", b"1,-0.1,F", b"1,1e-400,F", b"1,x,F",
    b"1;2;3", b"1\t2\t3", "1,2,\u202e".encode(), "１,2,F".encode(), b"1,2," + b"F" * 100_000, b"1" * 4_400 + b",1,F",
    b"1,2,F\r", b"1,2,\"F\nM\"", b'1,2,""""', b'1,2," F"', b"1,2, F", b"True,1,F", b"null,1,F", b"NA,1,F", b"#N/A,1,F",
    b"=1+1,1,F", b"1,2,F\x1a", b"\xef\xbb\xbf1,2,F", b'1,"2",F', b"'1',2,F", b'1,2,"F', b'1,2,F"',
]  # fmt: skip
GOOD_ROWS = [f"{i % 5},{i},{'FM'[i % 2]}".encode() for i in range(20)]
SMALL = Schema([SCHEMA["code"], SCHEMA["age"], SCHEMA["sex"]])
SMALL_SETS = [("code", "age"), ("sex",)]


def csv_variants() -> list[tuple[str, bytes, bool]]:
    """Name, bytes, and whether the file is gzipped: some 200 small hostile files."""
    found = []
    for i, bad in enumerate(BAD_ROWS):
        for where in (0, 20):
            body = b"\n".join([b"code,age,sex", *GOOD_ROWS[:where], bad, *GOOD_ROWS[where:], b""])
            found.append((f"row {i} at {where}", body, bool(i % 2)))
    plain = b"\n".join([b"code,age,sex", *GOOD_ROWS, b""])
    headers = [b"", b"code", b"code,age", b"code,age,sex,code", b"CODE,AGE,SEX", b"code;age;sex", b"code, age, sex",
               b'"code","age","sex"',
               b'\xef\xbb\xbf"code","age","sex"', b"\xef\xbb\xbfcode,age,sex", b"\xff,age,sex", b",,", b"code,age,sex,",
               b'"code,age,sex', b"code,age,sex\x00", b"0,1,F", b"code\nage\nsex"]  # fmt: skip
    found += [(f"header {i}", header + plain[12:], False) for i, header in enumerate(headers)]
    for encoding in ("utf-16", "utf-16-le", "utf-32", "utf-7", "cp037"):
        found.append((encoding, plain.decode().encode(encoding), False))
    found += [
        (f"line ends {i}", plain.replace(b"\n", end), False) for i, end in enumerate([b"\r\n", b"\r", b"\n\n", b" "])
    ]
    found += [(f"cut {i}", plain[:i], False) for i in range(0, len(plain), 12)]
    packed = gzip.compress(plain)
    found += [(f"packed and cut {i}", packed[:i], True) for i in range(0, len(packed), 9)]
    found += [("packed twice", gzip.compress(packed), True), ("packed with rest", packed + b"x" * 50, True),
              ("two packs", packed + gzip.compress(GOOD_ROWS[0] + b"\n"), True), ("packed, not said", packed, False),
              ("not packed", plain, True), ("parquet as csv", parquet_bytes(), False), ("zeros", b"\0" * 10_000, False),
              ("long row", b"code,age,sex\n" + b"1" * 9_000_000, False), ("long header", b"code" * 3_000_000, False),
              ("quotes", b'"' * 99_999, False), ("open at the end", plain + b'"', False),
              ("many columns", b"code" + b",x" * 200_000 + b"\n" + b"1" + b",2" * 200_000, False),
              ("blank lines", b"\n" * 1_000_000, False), ("commas", b"," * 1_000_000, False),
              ("blank block", plain + b"\n" * 5_000_000 + GOOD_ROWS[0] + b"\n", False)]  # fmt: skip
    rng = random.Random(0)
    for i in range(60):
        spoiled = bytearray(plain)
        for _ in range(rng.randint(1, 4)):
            spoiled[rng.randrange(len(spoiled))] = rng.choice([0, 10, 13, 34, 44, 45, 46, 57, 101, 255])
        found.append((f"spoiled {i}", bytes(spoiled), False))
    return found


def parquet_bytes(**options: object) -> bytes:
    out = io.BytesIO()
    table = pa.table({"code": [i % 5 for i in range(20)], "age": [float(i) for i in range(20)], "sex": ["F", "M"] * 10,
                      "note": [CANARY] * 20})  # fmt: skip
    pa.parquet.write_table(table, out, **options)
    return out.getvalue()


def parquet_variants() -> list[tuple[str, bytes]]:
    whole = parquet_bytes()
    found = [(f"cut {i}", whole[:i]) for i in range(0, len(whole), 97)]
    found += [("text", b"code,age,sex\n1,2,F\n"), ("empty", b""), ("magic only", b"PAR1PAR1"), ("zeros", b"\0" * 5_000),
              ("packed", gzip.compress(whole)), ("huge footer", whole[:-8] + b"\xff\xff\xff\x7fPAR1")]  # fmt: skip
    rng = random.Random(0)
    for i in range(80):
        spoiled = bytearray(whole)
        for _ in range(3):
            spoiled[rng.randrange(len(spoiled))] = rng.randrange(256)
        found.append((f"spoiled {i}", bytes(spoiled)))
    return found


def survive(path: Path) -> Counts | None:
    """Count what is there, or refuse by name, silently."""
    try:
        counts = count_marginals(path, SMALL, SMALL_SETS, on_refused="drop")
    except EngineError as error:
        assert_silent(error)
        counts = None
    return counts


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.full), 3])
def test_hostile_csv_files(tmp_path: Path, step: int) -> None:
    variants = csv_variants()[::step]
    assert len(variants) >= 200 // step
    refused = 0
    for name, body, packed in variants:
        path = tmp_path / f"x.csv{'.gz' if packed else ''}"
        again = name.startswith(("packed", "two packs", "not packed"))
        path.write_bytes(gzip.compress(body) if packed and not again else body)
        counts = survive(path)
        refused += counts is None
        if counts is not None:
            # A reader of another make, in its strict mode, must find the same rows.
            text = (gzip.decompress(body) if packed and again else body).decode("utf-8-sig")
            rows = list(csv.reader(io.StringIO(text, newline=""), strict=True))
            assert counts.rows_in == sum(1 for row in rows[1:] if row), name
            assert counts["sex",].sum() == counts.records
    assert refused > 90 // step


def test_usual_forms_of_csv_are_accepted(tmp_path: Path) -> None:
    plain = b"\n".join([b"code,age,sex", *GOOD_ROWS, b""])
    quoted = b"\n".join(b'"' + line.replace(b",", b'","') + b'"' for line in plain.split())
    wide = plain.replace(b"\n", b',"a ""b""\n\n,c"\n')
    for body in (plain, plain[:-1], plain.replace(b"\n", b"\r\n"), plain.replace(b"\n", b"\r"), quoted, wide):
        for form in (body, b"\xef\xbb\xbf" + body, b"\n\n" + body, body + b"\n\n"):
            path = tmp_path / "x.csv"
            path.write_bytes(form)
            assert count_marginals(path, SMALL, SMALL_SETS)["sex",].tolist() == [10, 10, 0]


def test_hostile_parquet_files(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    variants = parquet_variants()
    assert len(variants) >= 100
    for _, body in variants:
        path.write_bytes(body)
        counts = survive(path)
        assert counts is None or counts["sex",].sum() == counts.records
    path.write_bytes(parquet_bytes())
    assert survive(path) is not None


def test_columns_that_cannot_be_used(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    good = {"code": [1], "age": [1.0], "sex": ["F"]}
    for column in ([[1]], [{"x": 1}], [{}], [{CANARY: 7391}]):
        pa.parquet.write_table(pa.table(good | {"code": pa.array(column)}) if column != [{}] else pa.table({}), path)
        assert survive(path) is None
    twice = pd.DataFrame([[1, 2.0, "F", 3]], columns=["code", "age", "sex", "code"])
    for data in (twice, pa.Table.from_arrays([[1], [2.0], ["F"], [3]], names=list(twice.columns))):
        with pytest.raises(DataError, match="'code' is there 2 times"):
            count_marginals(data, SMALL, SMALL_SETS)
        assert count_marginals(data, SMALL, [("sex",)]).records == 1
    for data in (twice[["age"]], pd.DataFrame({1: [2]}), pd.DataFrame()):
        with pytest.raises(DataError, match=r"no column 'code' and \d more|no column 'code'"):
            count_marginals(data, SMALL, [("code", "sex")])


BOMB = """
import sys
from benchmarks import peak_megabytes
from engine import Attribute, Schema, count_marginals
from engine.errors import LimitExceeded

peak = lambda: int(peak_megabytes())
before = peak()
for path in sys.argv[1:]:
    label = Attribute.categorical("a", ["0"], other="else")
    schema = Schema([label if "label" in path else Attribute.of_size("a", 1)])
    try:
        print(count_marginals(path, schema, [("a",)])["a",].sum())
    except LimitExceeded:
        print("refused")
print(peak() - before)
"""


def test_small_files_that_unfold_stay_small(tmp_path: Path) -> None:
    rows = 52_000_000
    constant = tmp_path / "constant.parquet"  # 0.4 GB of numbers in 0.3 MB
    batch = pa.record_batch({"a": np.zeros(4_000_000, np.int64)})
    with pa.parquet.ParquetWriter(constant, batch.schema, compression="zstd") as writer:
        for _ in range(rows // batch.num_rows):
            writer.write_batch(batch)
    label = tmp_path / "label.parquet"  # 200 GB of text in 3 kB
    texts_ = pa.DictionaryArray.from_arrays(pa.array(np.zeros(100_000, np.int32)), pa.array(["x" * 2_000_000]))
    options = {"compression": "zstd", "dictionary_pagesize_limit": 2**30, "store_schema": False}
    pa.parquet.write_table(pa.table({"a": texts_}), label, **options)
    plain = tmp_path / "plain.parquet"  # 0.4 GB of numbers in one row group
    table = pa.table({"a": np.zeros(rows, np.int64)})
    pa.parquet.write_table(table, plain, row_group_size=rows, compression="zstd", use_dictionary=False)
    del table
    packed = tmp_path / "packed.csv.gz"  # 0.3 GB of texts in 12 kB
    packed.write_bytes(gzip.compress(b"a\n" + b"0\n" * 6_000_000, 1))
    files = [constant, label, plain, packed]
    assert all(file.stat().st_size < 2_000_000 for file in files)
    run = [sys.executable, "-c", BOMB, *map(str, files)]
    *found, megabytes = subprocess.run(run, capture_output=True, text=True, check=True).stdout.split()
    assert found == [str(rows), "100000", "refused", "6000000"]
    assert int(megabytes) < 300


def test_a_real_table_is_counted_whole() -> None:
    rng = np.random.default_rng(2)
    sizes = (85, 9, 100, 16, 7, 15, 6, 5, 2, 2, 100, 100, 99, 42)
    schema = Schema([Attribute.of_size(f"a{i}", size) for i, size in enumerate(sizes)])
    frame = pd.DataFrame({name: rng.integers(0, schema[name].size, 48_842) for name in schema})
    sets = [names for k in (1, 2, 3) for names in itertools.combinations(schema.names, k)]
    counts = count_marginals(frame, schema, sets)
    for names in random.Random(3).sample(sets, 20):
        codes = np.ravel_multi_index([frame[name].to_numpy() for name in names], schema.sizes(names))
        expected = np.bincount(codes, minlength=schema.cells(names)).reshape(schema.sizes(names))
        np.testing.assert_array_equal(counts[names], expected)
