"""Exact counts of records: `count_marginals` and `Counts` of `engine.records`, exported again."""

from engine.records import Counts, count_marginals

__all__ = ["Counts", "count_marginals"]
