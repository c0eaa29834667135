"""Distribution of standard errors over queries.

Queries with equal variances are counted, so the size limit applies to distinct variances.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from engine._arrays import Array
from engine.errors import LimitExceeded
from engine.plans import Plan
from engine.plans.variance import Footprint, GroupVariance, Summand, footprint
from engine.workload import Group, Workload

EXACT_QUERIES = 4_000_000  # largest number of queries, or distinct variances, that is not sampled
SAMPLE = 200_000
LEAST = 256  # smallest sample per group
FIGURE_POINTS = 800  # about the horizontal resolution of a figure
INFINITE_VARIANCE = 1e300  # finite substitute, because 0 * inf in a product of arrays is NaN
ROUNDING_FACTOR = 1.0 + 1e-12  # bounds the difference between two computations of a standard error
MAX_FLOAT = float(np.finfo(float).max)


@dataclass(frozen=True, kw_only=True, eq=False)
class ErrorDistribution:
    """Distribution of the standard errors of a plan.

    Attributes
    ----------
    errors : sorted standard errors, in counts or relative to their targets, shape (points,);
        infinite for queries that are not answerable.
    shares : cumulative share of all queries at each error, shape (points,).
    chance : 1 / (effective sample size); 0 if every query was evaluated.  The standard error of a
        share s is about sqrt(s (1 - s) chance).
    sampled : sample size; 0 if every query was evaluated.
    """

    errors: Array
    shares: Array
    chance: float = 0.0
    sampled: int = 0

    @property
    def exact(self) -> bool:
        """Whether every query was evaluated."""
        return self.chance == 0.0

    def within(self, tolerance: float) -> float:
        """Return the share of the queries with a standard error of at most a tolerance."""
        # Infinite errors exceed every tolerance.
        limit = min(tolerance * ROUNDING_FACTOR, MAX_FLOAT)
        index = int(np.searchsorted(self.errors, limit, side="right")) - 1
        return float(self.shares[index]) if index >= 0 else 0.0

    def quantile(self, share: float, sure: float = 0.0) -> float:
        """Return the quantile of the standard errors at a share; for a share of 1, the maximum.

        ``sure`` is the margin of a sampled share, in standard errors of the share.
        """
        level = share + sure * math.sqrt(share * (1.0 - share) * self.chance)
        index = int(np.searchsorted(self.shares, level)) if level < 1.0 else len(self.errors)
        return float(self.errors[min(index, len(self.errors) - 1)])

    def thinned(self) -> ErrorDistribution:
        """Return the distribution at fewer than a thousand points, including all percentiles.

        Between the points, shares are rounded down and quantiles rounded up.
        """
        if len(self.errors) < FIGURE_POINTS + 100:
            return self
        percents = np.searchsorted(self.shares, np.arange(1, 100) / 100)
        evenly_spaced = np.linspace(0, len(self.errors) - 1, FIGURE_POINTS).round().astype(np.int64)
        selected = np.unique(np.append(evenly_spaced, percents))
        return replace(self, errors=self.errors[selected], shares=self.shares[selected])

    @property
    def how(self) -> str:
        """Sentence about whether the distribution is exact or sampled."""
        if self.exact:
            return "Every query was counted."
        return f"Shares come from an evenly spread sample of {self.sampled:,} queries; the largest error is exact."


@lru_cache(maxsize=16)
def error_distribution(plan: Plan) -> ErrorDistribution:
    """Return the distribution of the standard errors of all queries; cached for recent plans.

    >>> from engine import Attribute, Budget, plan, Schema, Workload
    >>> workload = Workload.all_ways(Schema([Attribute.of_size("a", 4)]), (1,), "marginal")
    >>> errors = spread(plan(workload, Budget(pcost=1.0)))
    >>> len(errors.errors), errors.within(0.5), errors.within(2.0), errors.exact
    (4, 0.0, 1.0, True)
    """
    return ratio_distribution(plan, (1.0,) * len(plan.workload.groups))


def ratio_distribution(plan: Plan, targets: Sequence[float]) -> ErrorDistribution:
    """Return the distribution of standard errors divided by targets, in counts, one per group."""
    classes: dict[tuple[GroupVariance, float], list[int]] = {}
    for i, target in enumerate(targets):
        classes.setdefault((plan.group_variance(i), target), []).append(i)
    footprints = {} if is_exact(plan.workload) else {variance: _factored_queries(variance) for variance, _ in classes}
    n_distinct = sum(_distinct_count(footprints[variance], variance) for variance, _ in classes) if footprints else 0
    values: list[Array] = []
    multiplicities: list[Array] = []
    chance = 0.0
    for (variance, target), members in classes.items():
        total = plan.workload.groups[members[0]].count * len(members)
        index = chosen_queries(plan.workload, members[0], total) if n_distinct > EXACT_QUERIES else None
        if index is not None and _distinct_count(footprints[variance], variance) > len(index[0]):
            values_at = np.append(variance.at(tuple(index)), variance.largest())
            chance += (total / plan.workload.queries) ** 2 / len(values_at)
            pieces = [(values_at, np.ones(len(values_at)))]
        else:
            pieces = _all_variances(variance, footprints.get(variance))
        share = total / math.fsum(float(n.sum()) for _, n in pieces)
        values += [v.ravel() / target**2 for v, _ in pieces]
        multiplicities += [n.ravel() * share for _, n in pieces]
    variances, counts = np.concatenate(values), np.concatenate(multiplicities)
    order = np.argsort(variances, kind="stable")
    cumulative = np.cumsum(counts[order])
    sampled = len(order) if chance else 0
    return ErrorDistribution(
        errors=np.sqrt(variances[order]), shares=cumulative / cumulative[-1], chance=chance, sampled=sampled
    )


def _factored_queries(variance: GroupVariance) -> Footprint | None:
    """Return the variances of a group in factored form; None if this form is too large."""
    unanswerable = tuple(replace(s, coefficient=INFINITE_VARIANCE) for s in variance.unmeasured)
    summands = (*variance.summands, *unanswerable) or (Summand(coefficient=0.0, arrays=()),)
    try:
        return footprint(replace(variance, summands=summands, unmeasured=()))
    except LimitExceeded:
        return None


def _distinct_count(factored: Footprint | None, variance: GroupVariance) -> int:
    """Return an upper bound on the number of distinct variances in a group."""
    return math.prod(variance.counts if factored is None else (len(numbers) for _, numbers in factored.distinct))


def _all_variances(variance: GroupVariance, factored: Footprint | None) -> list[tuple[Array, Array]]:
    """Return the variances of a group in blocks of (variances in counts^2, numbers of queries)."""
    if factored is None:
        values = variance.values(0, math.prod(variance.counts))
        return [(values, np.ones(len(values)))]
    return [(np.where(v < INFINITE_VARIANCE, v, math.inf), n) for v, n in factored.blocks()]


def is_exact(workload: Workload) -> bool:
    """Return whether a workload is small enough to evaluate every query."""
    return workload.queries <= EXACT_QUERIES


def chosen_queries(workload: Workload, group: int, total: int | None = None) -> list[npt.NDArray[np.int64]] | None:
    """Return an evenly spread sample of the queries of a group; None if no sampling is needed.

    Parameters
    ----------
    total : number of queries that the sample represents, if several groups share it.

    Returns
    -------
    One array of positions per part of the group, each of shape (chosen queries,).
    """
    group_queries = workload.groups[group]
    quota = max(LEAST, SAMPLE * (total or group_queries.count) // workload.queries)
    if is_exact(workload) or quota >= group_queries.count:
        return None
    return _even_points([p.count for p in group_queries.parts], quota)


def variances_of(plan: Plan, group: int, index: Sequence[npt.NDArray[np.int64]] | None) -> Array:
    """Return the variances at positions of `chosen_queries`, in counts^2, shape (queries,)."""
    return plan.variances(group) if index is None else plan.group_variance(group).at(tuple(index))


def number_in_group(group: Group, index: Sequence[npt.NDArray[np.int64]] | None, at: int) -> int:
    """Return the number within its group of the query at index ``at`` of `chosen_queries`."""
    if index is None:
        return at
    number = 0
    for part, positions in zip(group.parts, index, strict=True):
        number = number * part.count + int(positions[at])
    return number


def _even_points(counts: Sequence[int], points: int) -> list[npt.NDArray[np.int64]]:
    """Return evenly spread points of a box: the quasi-random sequence of Roberts."""
    ratio = 2.0
    # Fixed-point iteration for the positive root of x^(d+1) = x + 1.
    for _ in range(40):
        ratio = (1.0 + ratio) ** (1.0 / (len(counts) + 1))
    steps = np.arange(1, points + 1)
    return [np.floor((0.5 + steps * ratio ** -(k + 1)) % 1.0 * n).astype(np.int64) for k, n in enumerate(counts)]
