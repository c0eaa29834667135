"""Exact counts of records, under the name that other programs call."""

from engine.release import Counts, count_marginals

__all__ = ["Counts", "count_marginals"]
