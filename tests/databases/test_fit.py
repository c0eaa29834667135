"""Report of how records fit a schema, for local and database tables."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from engine.errors import Cancelled
from engine.records import count_marginals
from engine.release.ingest import (
    MAX_SHOWN_CHARACTERS,
    MAX_SHOWN_VALUES,
    MAX_UNKNOWN_VALUES,
    ColumnFit,
    records_fit,
)
from engine.workload import Attribute, Schema
from tests.databases.samples import ATTRIBUTES, ROWS, VALUES, create_duckdb_table

SEX = Attribute.categorical("sex", ["F", "M"])


@pytest.fixture(scope="module")
def remote() -> Any:
    return create_duckdb_table(ROWS)


@pytest.mark.parametrize("kind", ["labels", "sorted", "clipped"])
def test_records_fit_of_database_and_file_are_equal(remote: Any, kind: str) -> None:
    """Both reports refuse as many values as a count drops."""
    schema = Schema([ATTRIBUTES[kind](name) for name in VALUES])
    local = records_fit(schema, ROWS)
    for local_fit, remote_fit in zip(local, records_fit(schema, remote), strict=True):
        column = local_fit.column
        counts = count_marginals(
            ROWS.select([column]), Schema([schema[column]]), [(column,)], on_refused="drop"
        )
        assert local_fit.in_domain + local_fit.missing + local_fit.unknown == len(ROWS)
        assert local_fit.refused == counts.rows_refused
        for field in ("column", "is_present", "in_domain", "missing", "unknown", "refused"):
            assert getattr(remote_fit, field) == getattr(local_fit, field)
        for fit in (local_fit, remote_fit):
            if fit.column != "list":  # lists are counted, but not shown
                assert min(fit.unknown, 1) <= sum(fit.values.values()) <= fit.unknown


@pytest.mark.parametrize("in_database", [False, True])
def test_records_fit_reports_frequent_values_and_absent_columns(in_database: bool) -> None:
    sexes = ["F"] * 3 + ["m"] * 4 + ["female"] * 2 + ["x" * 99, "", None, "a", "b", "c", "d"]
    rows = pa.table({"sex": sexes, "other": range(len(sexes))})
    schema = Schema([SEX, Attribute.of_size("age", 3)])
    fit, absent = records_fit(schema, create_duckdb_table(rows) if in_database else rows)
    assert (fit.in_domain, fit.missing, fit.unknown, fit.refused) == (3, 2, 11, 13)
    assert list(fit.values.items())[:2] == [("m", 4), ("female", 2)]
    assert len(fit.values) == MAX_SHOWN_VALUES
    assert all(len(value) <= MAX_SHOWN_CHARACTERS for value in fit.values)
    assert absent == ColumnFit(column="age", is_present=False)
    assert "female" not in repr(fit)


@pytest.mark.parametrize("in_database", [False, True])
def test_records_fit_counts_collected_values_as_unknown(in_database: bool) -> None:
    rows = pa.table({"sex": ["F", "m", "", None, "rest"], "age": [-1.0, 5.0, 10.0, 11.0, None]})
    schema = Schema(
        [
            Attribute.categorical("sex", ["F", "rest", "gone"], other="rest", missing="gone"),
            Attribute.numeric("age", [0, 5, 10], clip=True),
        ]
    )
    sex, age = records_fit(schema, create_duckdb_table(rows) if in_database else rows)
    assert (sex.in_domain, sex.missing, sex.unknown, sex.refused) == (2, 2, 1, 0)
    assert sex.values == {"m": 1}
    assert (age.in_domain, age.missing, age.unknown, age.refused) == (2, 1, 2, 1)
    assert set(age.values) == {"-1.0", "11.0"}


def test_records_fit_of_many_texts_limits_stored_values() -> None:
    batches = [
        pa.record_batch({"sex": [f"{i}-{j}" for j in range(MAX_UNKNOWN_VALUES)] + ["w"] * 3})
        for i in range(4)
    ]
    (fit,) = records_fit(Schema([SEX]), pa.Table.from_batches(batches))
    assert next(iter(fit.values.items())) == ("w", 4 * 3)  # three in each batch
    assert fit.unknown == 4 * (MAX_UNKNOWN_VALUES + 3)


@pytest.mark.parametrize("in_database", [False, True])
def test_records_fit_can_be_cancelled(in_database: bool) -> None:
    rows = pa.table({"sex": ["F"] * 9})
    with pytest.raises(Cancelled, match="spent nothing"):
        records_fit(
            Schema([SEX]),
            create_duckdb_table(rows) if in_database else rows,
            progress=lambda *_: False,
        )


def test_records_fit_of_many_numeric_texts_equals_local() -> None:
    frame = pd.DataFrame({"age": [f"{i}.5" for i in range(1_500)]})
    schema = Schema([Attribute.numeric("age", [0, 20, 120])])
    assert records_fit(schema, create_duckdb_table(pa.Table.from_pandas(frame))) == records_fit(
        schema, frame
    )
