"""Distribution of standard errors over queries.

Queries with the same variance are counted and not listed, so that the limit is on queries that differ.
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

EXACT_QUERIES = 4_000_000  # up to so many queries, or different variances, each is computed for a distribution
SAMPLE = 200_000
LEAST = 256  # queries of a group that are computed at least
DRAWN = 800  # points of a distribution in a picture: about as many as a wide screen shows
NEVER = 1e300  # stands for an infinite variance, which no product of arrays can hold
ROUNDING = 1.0 + 1e-12  # of a standard error that is computed in two ways
LARGEST = float(np.finfo(float).max)


@dataclass(frozen=True, kw_only=True, eq=False)
class Spread:
    """Distribution of the standard errors of a plan.

    Attributes
    ----------
    errors : sorted standard errors, in counts or as shares of their targets, shape (unlike queries,); infinite for
        queries that are not answerable.
    shares : share of all queries up to each, shape (unlike queries,).
    chance : 1 over the number of queries that the shares rest on, when they come from a sample; 0 when every query was
        counted.  The standard error of a share s is about the root of s (1 - s) chance.
    sampled : queries that were computed, when they are a sample.
    """

    errors: Array
    shares: Array
    chance: float = 0.0
    sampled: int = 0

    @property
    def exact(self) -> bool:
        """Whether every query was counted."""
        return self.chance == 0.0

    def within(self, tolerance: float) -> float:
        """Share of the queries with a standard error at or below a tolerance in counts, up to rounding."""
        most = min(tolerance * ROUNDING, LARGEST)  # an infinite standard error is within no tolerance
        at = int(np.searchsorted(self.errors, most, side="right")) - 1
        return float(self.shares[at]) if at >= 0 else 0.0

    def quantile(self, share: float, sure: float = 0.0) -> float:
        """Smallest standard error that at least a share of the queries does not exceed; for 1 always the largest.

        ``sure`` is the margin of a share that comes from a sample, in standard errors of the share.
        """
        asked = share + sure * math.sqrt(share * (1.0 - share) * self.chance)
        at = int(np.searchsorted(self.shares, asked)) if asked < 1.0 else len(self.errors)
        return float(self.errors[min(at, len(self.errors) - 1)])

    def thinned(self) -> Spread:
        """The same distribution at under a thousand of its points, for pictures: quantiles of whole percents stay.

        Between its points a share is too low and a quantile too high, never the other way round.
        """
        if len(self.errors) < DRAWN + 100:
            return self
        percents = np.searchsorted(self.shares, np.arange(1, 100) / 100)
        even = np.linspace(0, len(self.errors) - 1, DRAWN).round().astype(np.int64)
        kept = np.unique(np.append(even, percents))
        return replace(self, errors=self.errors[kept], shares=self.shares[kept])

    @property
    def how(self) -> str:
        """How it was computed, in words."""
        if self.exact:
            return "Every query was counted."
        return f"Shares come from an evenly spread sample of {self.sampled:,} queries; the largest error is exact."


@lru_cache(maxsize=16)
def spread(plan: Plan) -> Spread:
    """Return the distribution of the standard errors of all queries, kept for the plans that are looked at.

    >>> from engine.workload import Attribute, Schema, Workload
    >>> from engine.privacy.budget import Budget
    >>> from engine.mechanisms import plan
    >>> made = plan(Workload.all_ways(Schema([Attribute.of_size("a", 4)]), (1,), "marginal"), Budget(pcost=1.0))
    >>> found = spread(made)
    >>> len(found.errors), found.within(0.5), found.within(2.0), found.exact
    (4, 0.0, 1.0, True)
    """
    return spread_of_ratios(plan, (1.0,) * len(plan.workload.groups))


def spread_of_ratios(plan: Plan, targets: Sequence[float]) -> Spread:
    """Return the distribution of standard errors over targets, in counts, one a group."""
    alike: dict[tuple[GroupVariance, float], list[int]] = {}
    for i, target in enumerate(targets):
        alike.setdefault((plan.group_variance(i), target), []).append(i)
    counted = {} if is_exact(plan.workload) else {found: _counted(found) for found, _ in alike}
    unlike = sum(_unlike(counted[found], found) for found, _ in alike) if counted else 0
    values: list[Array] = []
    numbers: list[Array] = []
    chance = 0.0
    for (found, target), members in alike.items():
        total = plan.workload.groups[members[0]].count * len(members)
        index = chosen_queries(plan.workload, members[0], total) if unlike > EXACT_QUERIES else None
        if index is not None and _unlike(counted[found], found) > len(index[0]):
            values_at = np.append(found.at(tuple(index)), found.largest())
            chance += (total / plan.workload.queries) ** 2 / len(values_at)
            pieces = [(values_at, np.ones(len(values_at)))]
        else:
            pieces = _every(found, counted.get(found))
        share = total / math.fsum(float(n.sum()) for _, n in pieces)
        values += [v.ravel() / target**2 for v, _ in pieces]
        numbers += [n.ravel() * share for _, n in pieces]
    variances, counts = np.concatenate(values), np.concatenate(numbers)
    order = np.argsort(variances, kind="stable")
    reached = np.cumsum(counts[order])
    sampled = len(order) if chance else 0
    return Spread(errors=np.sqrt(variances[order]), shares=reached / reached[-1], chance=chance, sampled=sampled)


def _counted(found: GroupVariance) -> Footprint | None:
    """Return the queries of a group in factored form; None when they are too much coupled for it."""
    never = tuple(replace(s, coefficient=NEVER) for s in found.unmeasured)
    summands = (*found.summands, *never) or (Summand(coefficient=0.0, arrays=()),)
    try:
        return footprint(replace(found, summands=summands, unmeasured=()))
    except LimitExceeded:
        return None


def _unlike(counted: Footprint | None, found: GroupVariance) -> int:
    """Return the number of different variances in a group, or a bound on it."""
    return math.prod(found.counts if counted is None else (len(numbers) for _, numbers in counted.distinct))


def _every(found: GroupVariance, counted: Footprint | None) -> list[tuple[Array, Array]]:
    """Return pieces of (variances in counts^2, number of queries that have them) over all queries of a group."""
    if counted is None:
        values = found.values(0, math.prod(found.counts))
        return [(values, np.ones(len(values)))]
    return [(np.where(v < NEVER, v, math.inf), n) for v, n in counted.blocks()]


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
