"""Exact counts of records: `count_marginals` and `Counts` under a short import path."""

from engine.records import Counts, count_marginals

__all__ = ["Counts", "count_marginals"]
