"""Exact counts of records, under the name that other programs import."""

from engine.records import Counts, count_marginals

__all__ = ["Counts", "count_marginals"]
