"""Refused rows: counted by column and reason, with messages that hide values."""

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import DataError, LimitExceeded
from engine.records import Encoder, count_marginals
from tests.records.fitting import ALL_SETS, KINDS, SCHEMA, sample
from tests.records.silent import CANARY, assert_hides_values

anything = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=3)
    | st.binary(max_size=2)
    | st.decimals()
    | st.dates()
    | st.lists(st.integers(), max_size=1)
    | st.sampled_from(["F", "01", 0, 1, 19.5, pd.NaT, np.datetime64("2020-01-01")])
)


@given(st.lists(st.tuples(*[anything] * len(SCHEMA)), max_size=12))
@settings(max_examples=15, deadline=None)
def test_rows_in_are_rows_counted_and_rows_refused(rows: list[tuple[object, ...]]) -> None:
    frame = pd.DataFrame(rows, columns=list(SCHEMA.names), dtype=object)
    counts = count_marginals(frame, SCHEMA, ALL_SETS, on_refused="drop")
    encoders = [Encoder(attribute=SCHEMA[name]) for name in SCHEMA]
    codes = [[e.encode(v) for e, v in zip(encoders, row, strict=True)] for row in rows]
    accepted = [row_codes for row_codes in codes if min(row_codes) >= 0]
    assert counts.rows_in == len(rows)
    assert counts.records == len(accepted)
    refused_values = sum(code < 0 for row_codes in codes for code in row_codes)
    assert sum(sum(reasons.values()) for reasons in counts.refused.values()) == refused_values
    for names in ALL_SETS:
        expected = np.zeros(SCHEMA.sizes(names), np.int64)
        for row_codes in accepted:
            expected[tuple(row_codes[SCHEMA.order[name]] for name in names)] += 1
        np.testing.assert_array_equal(counts[names], expected)
    if len(accepted) < len(rows):
        with pytest.raises(DataError, match=f"{len(rows) - len(accepted)} of {len(rows)} rows"):
            count_marginals(frame, SCHEMA, ALL_SETS)


def test_refusal_message_names_column_reason_and_rows(tmp_path: Path) -> None:
    frame = sample(10)
    frame["age"] = frame["age"].astype(object)
    frame.loc[[1, 2], "age"] = CANARY
    frame.loc[3, "age"] = None
    frame.loc[[3, 4, 5], "code"] = 7391
    for kind in ("DataFrame", "csv", "csv.gz"):
        with pytest.raises(DataError) as caught:
            count_marginals(KINDS[kind](frame, tmp_path), SCHEMA, [("age", "code"), ("sex",)])
        message = str(caught.value)
        assert message.startswith(
            "5 of 10 rows do not fit the schema: column 'age': 1 missing, 2 not a number; "
        )
        assert "column 'code': 3 outside the schema" in message
        assert_hides_values(caught.value)
        data = KINDS[kind](frame, tmp_path)
        counts = count_marginals(data, SCHEMA, [("age", "code")], on_refused="drop")
        assert (counts.records, counts.rows_refused, counts.rows_in) == (5, 5, 10)
        assert counts.refused == {
            "age": {"missing": 1, "not a number": 2},
            "code": {"outside the schema": 3},
        }
    # a column that no table needs is not checked
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
def test_refusal_message_hides_values(column: str, values: list[object]) -> None:
    frame = sample(2).assign(person=["a", "b"]).astype(object)
    frame[column] = pd.Series(values, dtype=object).infer_objects()
    with pytest.raises(DataError) as caught:
        count_marginals(frame, SCHEMA, [("age", "code", "sex")], person="person")
    assert_hides_values(caught.value)


def test_errors_of_foreign_readers_hide_values() -> None:
    def batches() -> object:
        yield pa.RecordBatch.from_pydict({"code": [1]})
        raise ValueError(f"cannot convert {CANARY}")

    class FailsAtSecondBatch:
        def to_pyarrow_batches(self) -> pa.RecordBatchReader:
            return pa.RecordBatchReader.from_batches(pa.schema([("code", pa.int64())]), batches())

    class FailsAtOnce:
        columns = ("code",)

        def select(self, names: list[str]) -> None:
            raise RuntimeError(CANARY)

        def to_pyarrow_batches(self) -> None:
            raise RuntimeError(CANARY)

    class RunsOutOfMemory:
        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            raise MemoryError(CANARY)

    for data, error in (
        (FailsAtSecondBatch(), DataError),
        (FailsAtOnce(), DataError),
        (RunsOutOfMemory(), LimitExceeded),
    ):
        with pytest.raises(error) as caught:
            count_marginals(data, SCHEMA, [("code",)])
        assert_hides_values(caught.value)


def test_missing_header_error_hides_first_line(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("agee,sexx\n1,2\n")
    with pytest.raises(DataError, match="first line must hold the column names") as caught:
        count_marginals(path, SCHEMA, [("age",)])
    assert "agee" not in str(caught.value)
    path.write_text("sex,agee\nF,2\n")
    with pytest.raises(DataError, match="'agee'"):
        count_marginals(path, SCHEMA, [("age", "sex")])
