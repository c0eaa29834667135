"""Standard errors of all queries of a plan, or of an even sample when there are too many, and their distribution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from engine.arrays import Array
from engine.plans import Plan
from engine.workload import Group, Workload

EXACT_QUERIES = 2_000_000  # up to here every standard error is computed for a distribution
SAMPLE = 200_000
LEAST = 256  # queries of a group that are computed at least


@dataclass(frozen=True, kw_only=True, eq=False)
class Spread:
    """Distribution of the standard errors of a plan.

    Attributes
    ----------
    errors : sorted standard errors, in counts.
    shares : share of all queries up to each.
    exact : whether every query was computed; a sample otherwise.
    """

    errors: Array
    shares: Array
    exact: bool

    def within(self, tolerance: float) -> float:
        """Share of the queries with a standard error at or below a tolerance in counts."""
        at = int(np.searchsorted(self.errors, tolerance, side="right")) - 1
        return float(self.shares[at]) if at >= 0 else 0.0

    def quantile(self, share: float) -> float:
        """Smallest standard error that a share of the queries does not exceed."""
        return float(self.errors[min(int(np.searchsorted(self.shares, share - 1e-12)), len(self.errors) - 1)])

    @property
    def how(self) -> str:
        """How it was computed, in words."""
        if self.exact:
            return "Every query was computed."
        return f"An evenly spread sample of {len(self.errors):,} queries was computed."


@lru_cache(maxsize=32)
def spread(plan: Plan) -> Spread:
    """Return the distribution of the standard errors of all queries.

    >>> from engine import Attribute, Budget, Schema, Workload, plan
    >>> made = plan(Workload.all_ways(Schema([Attribute.of_size("a", 4)]), (1,), "marginal"), Budget(pcost=1.0))
    >>> found = spread(made)
    >>> len(found.errors), found.within(0.5), found.within(2.0), found.exact
    (4, 0.0, 1.0, True)
    """
    alike: dict[int, list[int]] = {}
    for i in range(len(plan.workload.groups)):
        alike.setdefault(id(plan.group_variance(i)), []).append(i)
    errors, weights = [], []
    for members in alike.values():
        first, total = members[0], plan.workload.groups[members[0]].count * len(members)
        values = np.sqrt(variances_of(plan, first, chosen_queries(plan.workload, first, total)))
        errors.append(values)
        weights.append(np.full(len(values), total / len(values)))
    values, shares = np.concatenate(errors), np.concatenate(weights)
    order = np.argsort(values, kind="stable")
    return Spread(errors=values[order], shares=np.cumsum(shares[order]) / shares.sum(), exact=is_exact(plan.workload))


def is_exact(workload: Workload) -> bool:
    """Return whether a workload is small enough to compute every query."""
    return workload.queries <= EXACT_QUERIES


def chosen_queries(workload: Workload, group: int, total: int | None = None) -> list[npt.NDArray[np.int64]] | None:
    """Return the queries of a group that stand for all of it, one array of positions a part; None stands for all.

    Each has shape (chosen queries,).
    ``total`` is the number of queries that they stand for, when that is more than the group's own.
    """
    asked = workload.groups[group]
    quota = max(LEAST, SAMPLE * (total or asked.count) // workload.queries)
    if is_exact(workload) or quota >= asked.count:
        return None
    return _even_points([p.count for p in asked.parts], quota)


def variances_of(plan: Plan, group: int, index: Sequence[npt.NDArray[np.int64]] | None) -> Array:
    """Return variances of a group's queries at positions, one array a part, in counts^2; of all when None.

    Shape (chosen queries,).
    """
    return plan.variances(group) if index is None else plan.group_variance(group).at(tuple(index))


def number_in_group(group: Group, index: Sequence[npt.NDArray[np.int64]] | None, at: int) -> int:
    """Return the number within its group of the query at one place of `chosen_queries`.

    Positions have shape (chosen queries,).
    """
    if index is None:
        return at
    number = 0
    for part, positions in zip(group.parts, index, strict=True):
        number = number * part.count + int(positions[at])
    return number


def _even_points(counts: Sequence[int], points: int) -> list[npt.NDArray[np.int64]]:
    """Positions spread evenly over a box: the additive recurrence of Roberts, which needs no randomness."""
    ratio = 2.0
    for _ in range(40):  # the positive root of x^(d+1) = x + 1
        ratio = (1.0 + ratio) ** (1.0 / (len(counts) + 1))
    steps = np.arange(1, points + 1)
    return [np.floor((0.5 + steps * ratio ** -(k + 1)) % 1.0 * n).astype(np.int64) for k, n in enumerate(counts)]
