"""Distribution of standard errors over queries, and coverage of confidence intervals.

`error_distribution` evaluates all queries if they have few distinct variances; otherwise it samples
queries of the groups with many distinct variances.  `coverage_check` runs the code of a real
release on simulated or public records many times, so it also finds errors of the implementation.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from engine._arrays import Array
from engine._format import pluralize
from engine.errors import LimitExceeded, PlanError
from engine.plans import Plan
from engine.plans.group_variance import (
    GroupVariance,
    LinearVariances,
    VarianceTerm,
    linear_variances,
)
from engine.progress import Progress, progress_reporter
from engine.records import count_marginals
from engine.release import apply_group, measure, quantile
from engine.release.ingest import maximal_sets
from engine.workload import Group, Workload

if TYPE_CHECKING:
    import pandas as pd


CONFIDENCE_LEVELS = (0.5, 0.8, 0.9, 0.95, 0.99)
MAX_CHECKED_QUERIES = 400  # queries of a coverage check, spread evenly over the groups


@dataclass(frozen=True, kw_only=True, eq=False)
class Coverage:
    """Result of a coverage check.

    Attributes
    ----------
    rehearsals : number of simulated releases.
    queries : number of queries that were checked; queries without noise are left out.
    table : one row per confidence level: nominal coverage ("promised"), share of the intervals that
        contain the exact count ("found") and two standard errors of this share ("by chance").
    bias : largest absolute z-score of a query.  The z-score is the mean error of the query over all
        rehearsals, divided by the standard error of this mean.
    spread : mean over all checked answers of squared error divided by predicted variance; the
        expected value is 1.
    """

    rehearsals: int
    queries: int
    table: pd.DataFrame
    bias: float
    spread: float

    @property
    def sentence(self) -> str:
        """Sentence with the coverage of the 95% intervals and the ratio ``spread``."""
        row = self.table.set_index("promised").loc[0.95]
        return (
            f"In {pluralize(self.rehearsals, 'rehearsal')} of"
            f" {pluralize(self.queries, 'query', 'queries')}, {row['found']:.1%} of the 95%"
            f" intervals held the truth; the mean squared error was {self.spread:.3f} times the"
            " predicted variance."
        )


def coverage_check(
    plan: Plan,
    records: Any,
    *,
    rehearsals: int = 1000,
    seconds: float = math.inf,
    progress: Progress | None = None,
) -> Coverage:
    """Simulate many releases of a plan and compare answers and intervals with the exact counts.

    Parameters
    ----------
    records : simulated or public records, as for `measure`.  Confidential records must not be used,
        because the result depends on the exact counts.
    rehearsals : number of simulated releases, at least 2.
    seconds : time limit.  No further rehearsal starts after it, except that at least two are run.

    Raises
    ------
    PlanError : ``rehearsals`` is not an integer of at least 2, or no query has noise.
    Cancelled : ``progress`` returned False.
    """
    if isinstance(rehearsals, bool) or not isinstance(rehearsals, int) or rehearsals < 2:
        raise PlanError(
            f"The number of rehearsals was {rehearsals!r}. Give an integer of at least 2, such as"
            " 1000."
        )
    groups = range(len(plan.workload.groups))
    positions = _sampled_queries(plan, MAX_CHECKED_QUERIES)
    sampled_sets = [plan.workload.groups[i].attributes for i in groups if len(positions[i])]
    sets = list(dict.fromkeys([*maximal_sets(plan), *sampled_sets]))
    counts = count_marginals(
        records, plan.schema, sets, rows_per_person=plan.budget.rows_per_person
    )
    truth, standard_errors = [], []
    for i in groups:
        if len(positions[i]):
            group = plan.workload.groups[i]
            table = np.asarray(counts[group.attributes], dtype=float)
            truth.append(_values_at(partial(apply_group, group, table), positions[i]))
            standard_errors.append(np.sqrt(_values_at(partial(plan.variances, i), positions[i])))
    exact_answers, scale = np.concatenate(truth), np.concatenate(standard_errors)
    # Queries that follow from invariants have no noise, so their z-scores are undefined.
    has_noise = scale > 0.0
    if not has_noise.any():
        raise PlanError(
            "No query of the plan has noise, so there is no interval to check. Give a plan with noisy"
            " answers."
        )
    errors: list[np.ndarray[Any, Any]] = []
    report = progress_reporter(progress, "The coverage check was cancelled; nothing was spent.")
    started = time.monotonic()
    while len(errors) < rehearsals and (len(errors) < 2 or time.monotonic() - started < seconds):
        measurement = measure(plan, counts, rehearsal=True)
        answers = [
            _values_at(partial(measurement.values, i), positions[i])
            for i in groups
            if len(positions[i])
        ]
        errors.append((np.concatenate(answers) - exact_answers)[has_noise] / scale[has_noise])
        report(len(errors) / rehearsals, f"Rehearsal {len(errors):,}")
    return _coverage(np.array(errors), plan.budget.law)


def _coverage(z_scores: Array, law: str) -> Coverage:
    """Return the statistics of errors divided by predicted standard errors.

    ``z_scores`` has the shape (rehearsals, queries); ``law`` is the distribution of the noise.
    """
    import pandas as pd

    rows = []
    for level in CONFIDENCE_LEVELS:
        is_covered = np.abs(z_scores) <= quantile(level, law)
        # Only rehearsals are independent: the answers of one rehearsal share their noise.
        chance_margin = 2.0 * float(is_covered.mean(axis=1).std(ddof=1)) / math.sqrt(len(z_scores))
        rows.append((level, float(is_covered.mean()), chance_margin))
    return Coverage(
        rehearsals=len(z_scores),
        queries=z_scores.shape[1],
        table=pd.DataFrame(rows, columns=["promised", "found", "by chance"]),
        bias=float(np.abs(z_scores.mean(axis=0)).max() * math.sqrt(len(z_scores))),
        spread=float(np.mean(z_scores**2)),
    )


def _sampled_queries(plan: Plan, queries: int) -> list[list[int]]:
    """Choose at most ``queries`` queries, evenly spaced over the groups and within every group.

    Returns one list per group with the indices of its chosen queries.  If there are more groups
    than ``queries``, some lists are empty.
    """
    groups = plan.workload.groups
    sampled_groups = set(
        np.linspace(0, len(groups) - 1, min(len(groups), queries)).round().astype(int).tolist()
    )
    quota = max(1, queries // len(sampled_groups))
    return [
        (
            sorted({int(p) for p in np.linspace(0, g.count - 1, min(g.count, quota)).round()})
            if i in sampled_groups
            else []
        )
        for i, g in enumerate(groups)
    ]


def _values_at(values: Callable[[int, int], Any], positions: Sequence[int]) -> np.ndarray[Any, Any]:
    """Return the values at sorted positions of a sequence.

    ``values(start, stop)`` returns the slice ``start:stop`` of the sequence.
    """
    if len(positions) == positions[-1] - positions[0] + 1:
        return np.asarray(values(positions[0], positions[-1] + 1))
    return np.concatenate([values(p, p + 1) for p in positions])


MAX_UNSAMPLED_QUERIES = 4_000_000  # queries are sampled if more distinct variances are possible
SAMPLED_QUERIES = 200_000  # approximate size of the sample of all groups together
MIN_SAMPLED_QUERIES = 256  # smallest size of the sample of a group
FIGURE_POINTS = 800  # about the horizontal resolution of a figure
INFINITE_VARIANCE = 1e300  # replaces inf, because 0 * inf in a product of arrays is NaN
ROUNDING_FACTOR = 1.0 + 1e-12  # bounds the difference between two computations of a standard error
MAX_FLOAT = float(np.finfo(float).max)


@dataclass(frozen=True, kw_only=True, eq=False)
class ErrorDistribution:
    """Distribution of the standard errors of the queries of a plan.

    Attributes
    ----------
    errors : standard errors in ascending order, in counts or divided by their targets, shape
        (points,).  Queries that cannot be answered have an infinite error.
    shares : for each error, the share of all queries whose error is at most as large, shape
        (points,).
    inverse_sample_size : 1 divided by the effective sample size; 0 if every query was evaluated.
        The standard error of a share s is about sqrt(s (1 - s) inverse_sample_size).
    sampled : number of evaluated variances if some group was sampled, otherwise 0.
    """

    errors: Array
    shares: Array
    inverse_sample_size: float = 0.0
    sampled: int = 0

    @property
    def exact(self) -> bool:
        """Whether every query was evaluated."""
        return self.inverse_sample_size == 0.0

    def within(self, tolerance: float) -> float:
        """Return the share of the queries whose entry in ``errors`` is at most a tolerance."""
        # The limit is finite, so infinite errors exceed every tolerance.
        limit = min(tolerance * ROUNDING_FACTOR, MAX_FLOAT)
        index = int(np.searchsorted(self.errors, limit, side="right")) - 1
        return float(self.shares[index]) if index >= 0 else 0.0

    def quantile(self, share: float, margin_sds: float = 0.0) -> float:
        """Return the smallest entry of ``errors`` that a share of the queries does not exceed.

        If the distribution comes from a sample, the share is first increased by ``margin_sds``
        times its standard error.  A share of 1 gives the maximum.
        """
        level = share + margin_sds * math.sqrt(share * (1.0 - share) * self.inverse_sample_size)
        index = int(np.searchsorted(self.shares, level)) if level < 1.0 else len(self.errors)
        return float(self.errors[min(index, len(self.errors) - 1)])

    def thin(self) -> ErrorDistribution:
        """Return the distribution with fewer than a thousand points, for figures.

        The 1st to 99th percentiles do not change.  Other quantiles can be larger than those of the
        complete distribution, and `within` can return a smaller share.
        """
        if len(self.errors) < FIGURE_POINTS + 100:
            return self
        percents = np.searchsorted(self.shares, np.arange(1, 100) / 100)
        evenly_spaced = np.linspace(0, len(self.errors) - 1, FIGURE_POINTS).round().astype(np.int64)
        selected = np.unique(np.append(evenly_spaced, percents))
        return replace(self, errors=self.errors[selected], shares=self.shares[selected])

    @property
    def how(self) -> str:
        """Sentence that states whether all queries were evaluated or only a sample."""
        if self.exact:
            return "All queries are included."
        return f"Shares come from a sample of {self.sampled:,} queries; the largest error does not."


@lru_cache(maxsize=16)
def error_distribution(plan: Plan) -> ErrorDistribution:
    """Return the distribution of the standard errors of all queries of a plan, in counts.

    If more than `MAX_UNSAMPLED_QUERIES` distinct variances are possible, only a sample of the
    queries is evaluated in groups with many distinct variances.  The results of the last 16 plans
    are cached.

    >>> from engine import Attribute, Budget, plan, Schema, Workload
    >>> workload = Workload.all_ways(Schema([Attribute.of_size("a", 4)]), (1,), "marginal")
    >>> errors = error_distribution(plan(workload, Budget(pcost=1.0)))
    >>> len(errors.errors), errors.within(0.5), errors.within(2.0), errors.exact
    (4, 0.0, 1.0, True)
    """
    return ratio_distribution(plan, (1.0,) * len(plan.workload.groups))


def ratio_distribution(plan: Plan, targets: Sequence[float]) -> ErrorDistribution:
    """Return the distribution of standard error divided by target over all queries of a plan.

    ``targets`` are in counts, shape (groups,).  Queries are sampled as in `error_distribution`.
    """
    # Groups with equal variances and targets are evaluated once: (variance, target) -> groups.
    classes: dict[tuple[GroupVariance, float], list[int]] = {}
    for i, target in enumerate(targets):
        classes.setdefault((plan.group_variance(i), target), []).append(i)
    factored_by_variance: dict[GroupVariance, LinearVariances | None] = {}
    n_distinct = 0
    if not is_exact(plan.workload):
        factored_by_variance = {variance: _factored_queries(variance) for variance, _ in classes}
        n_distinct = sum(
            _distinct_count(factored_by_variance[variance], variance) for variance, _ in classes
        )
    squared_ratios: list[Array] = []
    multiplicities: list[Array] = []
    inverse_sample_size = 0.0
    for (variance, target), members in classes.items():
        total = plan.workload.groups[members[0]].count * len(members)
        factored = factored_by_variance.get(variance)
        sample = None
        if n_distinct > MAX_UNSAMPLED_QUERIES:
            sample = chosen_queries(plan.workload, members[0], total)
        # A sample with at least as many entries as there are distinct variances would save no work.
        if sample is not None and _distinct_count(factored, variance) <= len(sample[0]):
            sample = None
        # ``variance_counts`` has pairs of arrays: variances, and the number of evaluated queries
        # with each of them.
        if sample is not None:
            # The largest variance is added, so that the maximum is exact.
            sampled = np.append(variance.at(tuple(sample)), variance.largest())
            inverse_sample_size += (total / plan.workload.queries) ** 2 / len(sampled)
            variance_counts = [(sampled, np.ones(len(sampled)))]
        else:
            variance_counts = _all_variances(variance, factored)
        # If the queries are a sample, each of them stands for ``scale`` queries of the groups.
        scale = total / math.fsum(float(n.sum()) for _, n in variance_counts)
        squared_ratios += [v.ravel() / target**2 for v, _ in variance_counts]
        multiplicities += [n.ravel() * scale for _, n in variance_counts]
    values, counts = np.concatenate(squared_ratios), np.concatenate(multiplicities)
    order = np.argsort(values, kind="stable")
    cumulative = np.cumsum(counts[order])
    return ErrorDistribution(
        errors=np.sqrt(values[order]),
        shares=cumulative / cumulative[-1],
        inverse_sample_size=inverse_sample_size,
        sampled=len(order) if inverse_sample_size else 0,
    )


def _factored_queries(variance: GroupVariance) -> LinearVariances | None:
    """Return the variances of a group as sums of products of the entries of small tables.

    The result is None if the tables would be too large.  The variance of an unanswerable query is
    at least `INFINITE_VARIANCE`.
    """
    unanswerable = tuple(replace(t, coefficient=INFINITE_VARIANCE) for t in variance.unmeasured)
    terms = (*variance.terms, *unanswerable) or (VarianceTerm(coefficient=0.0, arrays=()),)
    try:
        return linear_variances(replace(variance, terms=terms, unmeasured=()))
    except LimitExceeded:
        return None


def _distinct_count(factored: LinearVariances | None, variance: GroupVariance) -> int:
    """Return an upper bound on the number of distinct variances in a group.

    ``factored`` is the result of `_factored_queries`.
    """
    return math.prod(
        variance.counts
        if factored is None
        else (len(numbers) for _, numbers in factored.distinct_columns)
    )


def _all_variances(
    variance: GroupVariance, factored: LinearVariances | None
) -> list[tuple[Array, Array]]:
    """Return all variances of a group as pairs of arrays (variances, numbers of queries).

    The second array has the number of queries with each variance.  Variances are in counts^2, and
    infinite for unanswerable queries.  ``factored`` is the result of `_factored_queries`.
    """
    if factored is None:
        values = variance.values(0, math.prod(variance.counts))
        return [(values, np.ones(len(values)))]
    return [
        (np.where(v < INFINITE_VARIANCE, v, math.inf), n) for v, n in factored.variance_chunks()
    ]


def is_exact(workload: Workload) -> bool:
    """Return whether a workload is small enough to evaluate every query."""
    return workload.queries <= MAX_UNSAMPLED_QUERIES


def chosen_queries(
    workload: Workload, group: int, total: int | None = None
) -> list[npt.NDArray[np.int64]] | None:
    """Choose an evenly spread sample of the queries of a group.

    Parameters
    ----------
    total : number of queries that the sample represents; by default those of the group.  The size
        of the sample is proportional to ``total``, but at least `MIN_SAMPLED_QUERIES`.

    Returns
    -------
    One array per query family of the group (`Group.parts`), each of shape (chosen queries,).  A
    query of the group is a product of one query per family; the array of a family has the index of
    its query within the family.  The result is None if all queries of the group are chosen.
    """
    group_queries = workload.groups[group]
    quota = max(
        MIN_SAMPLED_QUERIES, SAMPLED_QUERIES * (total or group_queries.count) // workload.queries
    )
    if is_exact(workload) or quota >= group_queries.count:
        return None
    return _even_points([p.count for p in group_queries.parts], quota)


def variances_of(plan: Plan, group: int, sample: Sequence[npt.NDArray[np.int64]] | None) -> Array:
    """Return the variances of the queries of a group, in counts^2, shape (queries,).

    ``sample`` is the result of `chosen_queries`; None stands for all queries.
    """
    return plan.variances(group) if sample is None else plan.group_variance(group).at(tuple(sample))


def number_in_group(group: Group, sample: Sequence[npt.NDArray[np.int64]] | None, at: int) -> int:
    """Return the index within its group of the query at position ``at`` of a sample.

    ``sample`` is the result of `chosen_queries`; None stands for all queries of the group.
    """
    if sample is None:
        return at
    number = 0
    for part, positions in zip(group.parts, sample, strict=True):
        number = number * part.count + int(positions[at])
    return number


def _even_points(counts: Sequence[int], points: int) -> list[npt.NDArray[np.int64]]:
    """Return evenly spread points with integer coordinates from 0 to ``counts`` - 1.

    There is one array per axis, of shape (points,).  Source: the R sequence, a quasi-random
    sequence of Roberts.
    """
    ratio = 2.0
    # The R sequence in d dimensions uses the positive root x of x^(d+1) = x + 1.  The loop computes
    # it by fixed-point iteration.
    for _ in range(40):
        ratio = (1.0 + ratio) ** (1.0 / (len(counts) + 1))
    steps = np.arange(1, points + 1)
    return [
        np.floor((0.5 + steps * ratio ** -(k + 1)) % 1.0 * n).astype(np.int64)
        for k, n in enumerate(counts)
    ]
