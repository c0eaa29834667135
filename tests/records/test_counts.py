"""Counts: sums, immutability, text without numbers, and marginals of counts."""

import pickle

import numpy as np
import pytest

import engine.counts
from engine.errors import DataError, SchemaError
from engine.records import Counts, count_marginals
from engine.workload import Attribute, Schema
from tests.records.fitting import ALL_SETS, SCHEMA, sample


def test_counts_module_exports_count_marginals() -> None:
    assert engine.counts.count_marginals is count_marginals


def test_sum_of_shards_equals_counts_of_all() -> None:
    frame = sample(300)
    first, second, third = (
        count_marginals(shard, SCHEMA, ALL_SETS)
        for shard in (frame[:100], frame[100:130], frame[130:])
    )
    total = first + second + third
    for names, table in count_marginals(frame, SCHEMA, ALL_SETS).items():
        np.testing.assert_array_equal(total[names], table)
    assert total.records == 300
    frame.loc[0, "code"] = 9
    with_refused_row = count_marginals(frame, SCHEMA, ALL_SETS, on_refused="drop")
    doubled = with_refused_row + with_refused_row
    assert doubled.refused == {"code": {"outside the schema": 2}}


def test_sum_with_other_tables_or_numbers_is_refused() -> None:
    total = count_marginals(sample(300), SCHEMA, ALL_SETS)
    with pytest.raises(DataError, match="different"):
        total + count_marginals(sample(300), SCHEMA, [("sex",)])
    with pytest.raises(TypeError):
        total + 1


def test_counts_are_read_only_and_show_no_number() -> None:
    counts = count_marginals(sample(7391), SCHEMA, ALL_SETS)
    for table in counts.values():
        with pytest.raises(ValueError, match="read-only"):
            table[...] = 0
    unpickled = pickle.loads(pickle.dumps(counts))
    assert all((unpickled[names] == table).all() for names, table in counts.items())
    assert "7391" not in repr(counts)
    assert "7391" not in str(counts)
    # counts are compared by identity, so that no comparison reveals equal numbers
    assert counts == counts
    assert counts != count_marginals(sample(7391), SCHEMA, ALL_SETS)
    assert {counts: 1}[counts] == 1


def test_count_marginals_of_counts_gives_smaller_tables() -> None:
    counts = count_marginals(sample(100), SCHEMA, [("sex", "age"), ("code",)])
    margins = count_marginals(counts, SCHEMA, [("age",), ("age", "sex"), (), ("code",)])
    np.testing.assert_array_equal(margins["age", "sex"], counts["sex", "age"].T)
    np.testing.assert_array_equal(margins["age",], counts["sex", "age"].sum(axis=0))
    assert int(margins[()]) == margins.records == 100
    with pytest.raises(DataError, match="'sex', 'code'"):
        count_marginals(counts, SCHEMA, [("sex", "code")])
    other_order = Schema([Attribute.categorical("sex", ["M", "F"], missing="unknown")])
    with pytest.raises(DataError, match="'sex'"):
        count_marginals(counts, other_order, [("sex",)])


def test_counts_from_tables_validates_tables() -> None:
    counts = Counts.from_tables(
        SCHEMA, {("sex",): [1, 2, 0], ("code", "one"): [[3], [0], [0], [0], [0]]}
    )
    assert counts.records == 3
    assert counts["code", "one"].dtype == np.int64
    wrong: list[dict[tuple[str, ...], object]] = [
        {},
        {("sex",): [1, 2]},  # sex has 3 cells
        {("sex",): [1.0, 2.0, 0.0]},
        {("sex",): [1, 2, -1]},
        {("sex",): [2**63, 0, 0]},  # exceeds int64
        {("sex",): [True, False, True]},
        {("sex",): ["1", "2", "0"]},
        {("sex",): [1, 2, 0], ("code",): [1, 2, 1, 0, 0]},  # the totals are 3 and 4
    ]
    for tables in wrong:
        with pytest.raises(DataError):
            Counts.from_tables(SCHEMA, tables)
    with pytest.raises(SchemaError):
        Counts.from_tables(SCHEMA, {("height",): [1]})
