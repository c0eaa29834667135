"""Pairwise designs: every pair in few rows, for any numbers of values."""

import itertools
import math

import pytest

from tests.pairs import pairwise


def unmet(rows, factors):
    """Return the pairs of values of two factors that no row contains."""
    return [
        (one, two)
        for (i, first), (j, second) in itertools.combinations(enumerate(factors), 2)
        for one, two in itertools.product(first, second)
        if not any(row[i] == one and row[j] == two for row in rows)
    ]


LENGTHS = [
    (),
    (3,),
    (4, 6),
    (6, 4),
    (20, 35, 11),
    (2, 3, 7),
    (7, 3, 7),
    (1, 1, 5),
    (3, 3, 3, 3),
    (2, 9, 4, 5, 3),
]


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_pairwise_rows_contain_every_pair(lengths):
    factors = [[f"{'abcde'[i]}{k}" for k in range(n)] for i, n in enumerate(lengths)]
    rows = pairwise(*factors)
    for row in rows:
        assert all(value in values for value, values in zip(row, factors, strict=True))
    assert unmet(rows, factors) == []
    assert rows == pairwise(*factors)
    # The two longest factors alone need a row per pair of their values.
    needed_rows = math.prod(sorted(lengths)[-2:])
    assert len(rows) <= 2 * max(1, needed_rows)


def test_unmet_reports_missing_pair():
    factors = [["a", "b"], [1, 2], ["x", "y"]]
    rows = pairwise(*factors)
    assert len(rows) == 4
    for removed in range(len(rows)):
        assert unmet(rows[:removed] + rows[removed + 1 :], factors)


def test_pairwise_new_value_only_adds_its_rows():
    rows, rows_with_c = pairwise("ab", "xyz", "12"), pairwise("abc", "xyz", "12")
    first_values, first_values_with_c = {row[0] for row in rows}, {row[0] for row in rows_with_c}
    assert first_values_with_c - first_values == {"c"}
