"""Comparison of counts."""

from __future__ import annotations

from engine.records import Counts

FIELDS = (
    "records",
    "rows_refused",
    "refused",
    "people",
    "cap",
    "rows_over_cap",
    "people_over_cap",
    "schema",
)


def have_equal_counts(one: Counts, two: Counts) -> bool:
    """Return whether two counts have equal tables and equal `FIELDS`."""
    return (
        list(one) == list(two)
        and all((one[names] == two[names]).all() for names in one)
        and all(getattr(one, name) == getattr(two, name) for name in FIELDS)
    )
