"""Relative errors and coefficients of variation.

Statistical offices judge an estimate by its coefficient of variation: the standard error divided by
the estimate.  Before a release the counts are not available, so a public, expected number of
records is assumed to be spread uniformly over the cells.  After a release the noisy answer is used,
which is post-processing and has no privacy cost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from engine._arrays import Array, Index
from engine._format import number, pluralize, set_name
from engine._validation import check_positive
from engine.analysis.compare import Comparison
from engine.analysis.error_distribution import chosen_queries, variances_of
from engine.analysis.error_targets import smallest_budget
from engine.analysis.variance_breakdown import group_table
from engine.errors import PlanError
from engine.mechanisms import title_of
from engine.plans import Plan
from engine.privacy import Budget
from engine.workload import Group, Workload

if TYPE_CHECKING:
    import pandas as pd


QUALITIES = ("publishable", "doubtful", "noise")


@dataclass(frozen=True, kw_only=True)
class NoiseScale:
    """Thresholds on the coefficient of variation, and the expected number of records.

    Attributes
    ----------
    records : expected number of records, which must be public.
    publishable, doubtful : largest coefficients of variation of a publishable and of a doubtful
        answer; answers above are noise.  The defaults are common in statistical offices.

    >>> NoiseScale(records=1000).quality(0.2)
    'doubtful'
    """

    records: float
    publishable: float = 0.15
    doubtful: float = 0.30

    def __post_init__(self) -> None:
        for name in ("records", "publishable", "doubtful"):
            check_positive(name, getattr(self, name), error=PlanError)
        if self.publishable > self.doubtful:
            raise PlanError(
                f"publishable was {self.publishable:g} and doubtful {self.doubtful:g}. Give "
                "publishable a value of at most doubtful."
            )

    def quality(self, variation: float) -> str:
        """Return the quality class of a coefficient of variation."""
        return QUALITIES[int(variation > self.publishable) + int(variation > self.doubtful)]


def quality_by_group(plan: Plan, scale: NoiseScale) -> pd.DataFrame:
    """Return one row per group: its errors and the shares of its answers in each quality class.

    The group with the smallest share of publishable answers comes first.  The first columns are
    those of `group_table`.  The column "publishable from" is the smallest count whose answer is
    publishable at the typical error of the group; it does not depend on the records.  The shares
    assume that the records are spread uniformly.

    >>> from engine import Attribute, plan, Schema, Workload
    >>> workload = Workload(Schema([Attribute.of_size("age", 4)])).add("age")
    >>> table = quality_by_group(plan(workload, Budget(pcost=1.0)), NoiseScale(records=16))
    >>> table[["publishable", "doubtful", "noise"]].values.tolist()
    [[0.0, 1.0, 0.0]]
    """
    table = group_table(plan)
    shares = [_quality_shares(ratios, scale) for ratios in _variations(plan, scale.records)]
    for k, name in enumerate(QUALITIES):
        table = table.assign(**{name: [group_shares[k] for group_shares in shares]})
    table = table.assign(**{"publishable from": table["RMSE"] / scale.publishable})
    return table.sort_values(
        ["publishable", "noise", "RMSE"], ascending=[True, False, False], ignore_index=True
    )


def quality_shares(plan: Plan, scale: NoiseScale) -> tuple[float, float, float]:
    """Return the shares of all queries that are publishable, doubtful and noise."""
    counts = np.array([group.count for group in plan.workload.groups], dtype=float)
    shares = np.array(
        [_quality_shares(ratios, scale) for ratios in _variations(plan, scale.records)]
    )
    overall = (counts / counts.sum()) @ shares
    return float(overall[0]), float(overall[1]), float(overall[2])


def quality_text(plan: Plan, scale: NoiseScale) -> str:
    """Return sentences with the shares of publishable, doubtful and noisy answers of a plan."""
    publishable, doubtful, noise = quality_shares(plan, scale)
    smallest_count = (
        number(math.ceil(plan.rmse / scale.publishable)) if math.isfinite(plan.rmse) else "no size"
    )
    return (
        f"Of {number(plan.workload.queries)} answers {publishable:.0%} are publishable,"
        f" {doubtful:.0%} doubtful and {noise:.0%} noise, if"
        f" {pluralize(round(scale.records), 'record')} are spread evenly. With the typical error,"
        f" counts of {smallest_count} or more are publishable."
    )


def publishable_text(comparison: Comparison, scale: NoiseScale) -> str:
    """Return a sentence with the smallest publishable count under each mechanism, best first."""
    words = [
        f"{title_of(str(row['mechanism']))} {number(math.ceil(row['rmse'] / scale.publishable))}"
        for _, row in comparison.frame[comparison.frame["rmse"] < math.inf].iterrows()
    ]
    return f"Smallest publishable count at the typical error: {', '.join(words)}."


def publishable_by_group(
    comparison: Comparison, workload: Workload, scale: NoiseScale
) -> pd.DataFrame:
    """Return one row per group with the share of publishable answers under each mechanism.

    Columns are sorted by mechanism, best first, and rows by the share under the best mechanism,
    ascending.  Every query is assumed to have the RMSE of its group under the mechanism, and the
    records to be spread uniformly.
    """
    import pandas as pd

    named = [f"{g}: {set_name(group.attributes)}" for g, group in enumerate(workload.groups)]
    table = pd.DataFrame({"attributes": named})
    counts = [
        scale.records * _even_shares(group, chosen_queries(workload, g))
        for g, group in enumerate(workload.groups)
    ]
    titles = []
    for label in (label for label in comparison.frame["mechanism"] if label in comparison.groups):
        pairs = zip(counts, comparison.groups[label], strict=True)
        table[title_of(label)] = [
            float(np.mean(error <= scale.publishable * counted)) for counted, error in pairs
        ]
        titles.append(title_of(label))
    return table.sort_values(titles, kind="stable", ignore_index=True)


def quality_counts_text(answers: pd.DataFrame) -> str:
    """Return a sentence with the number of answers in each quality class.

    >>> import pandas as pd
    >>> quality_counts_text(pd.DataFrame({"quality": ["noise", "publishable", "publishable"]}))
    'Of these 3 answers 2 are publishable, 0 doubtful, 1 noise.'
    """
    counted = answers["quality"].value_counts()
    publishable, doubtful, noise = (int(counted.get(word, 0)) for word in QUALITIES)
    parts = f"{publishable:,} are publishable, {doubtful:,} doubtful, {noise:,} noise"
    return f"Of these {number(len(answers))} answers {parts}."


def budget_for_quality(
    plan: Plan, scale: NoiseScale, share: float, *, nearly: bool = False
) -> Budget:
    """Return the smallest budget at which a share of all answers is publishable.

    ``share`` is above 0 and at most 1.  With ``nearly`` variances are taken as proportional to
    1 / pcost, which is faster, see `budget_for_error`.

    Raises
    ------
    PlanError : ``share`` is invalid, or too many queries have an expected answer of 0, such as
        differences of cells, or are not answerable; or as for `smallest_budget`.
    """
    if not 0.0 < share <= 1.0:
        raise PlanError(f"share was {share!r}. Give a number above 0 and at most 1, such as 0.9.")

    def ratio(candidate: Plan) -> float:
        """Return a quantile of the coefficients of variation, divided by the limit for it."""
        variations = _variations(candidate, scale.records)
        values = np.concatenate(variations)
        weights = np.concatenate(
            [
                np.full(len(p), g.count / len(p))
                for p, g in zip(variations, plan.workload.groups, strict=True)
            ]
        )
        order = np.argsort(values, kind="stable")
        cumulative = np.cumsum(weights[order])
        index = int(np.searchsorted(cumulative, share * cumulative[-1] * (1.0 - 1e-12)))
        largest_variation = float(values[order[min(index, len(order) - 1)]])
        if math.isfinite(largest_variation):
            return largest_variation / scale.publishable
        raise PlanError(
            f"No budget makes {share:.0%} of the answers publishable: some queries have an expected"
            " answer of 0, such as differences of cells, or are not answerable. Choose a smaller"
            " share."
        )

    return smallest_budget(plan, ratio, nearly=nearly)


def with_quality(answers: pd.DataFrame, scale: NoiseScale, *, hide: bool = False) -> pd.DataFrame:
    """Add the coefficient of variation and the quality class to a table of answers.

    Answers of 0 or below have no relative error (NaN) and are noise, unless their standard error is
    0.  ``hide`` replaces the values of answers classified as noise by NaN.
    """
    positive_part = answers["answer"].where(answers["answer"] > 0.0, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        variation = np.where(answers["std"] > 0.0, answers["std"] / positive_part, 0.0)
    qualities = [scale.quality(float(value)) for value in variation]
    table, position = answers.copy(), list(answers).index("std") + 1
    table.insert(position, "relative error", np.where(np.isfinite(variation), variation, np.nan))
    table.insert(position + 1, "quality", qualities)
    if hide:
        hidden = [name for name in ("answer", "low", "high", "relative error") if name in table]
        table.loc[table["quality"] == QUALITIES[2], hidden] = math.nan
    return table


@lru_cache(maxsize=8)
def _variations(plan: Plan, records: float) -> tuple[Array, ...]:
    """Return the coefficients of variation of every group, for all its queries or for a sample."""
    return tuple(
        _variation_of_group(plan, i, group, records) for i, group in enumerate(plan.workload.groups)
    )


def _variation_of_group(plan: Plan, number: int, group: Group, records: float) -> Array:
    """Return the coefficients of variation of a group if the records are spread uniformly."""
    sample = chosen_queries(plan.workload, number)
    errors = np.sqrt(variances_of(plan, number, sample))
    shares = _even_shares(group, sample)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(errors > 0.0, errors / (records * shares), 0.0)


def _even_shares(group: Group, sample: Sequence[Index] | None) -> Array:
    """Return the share of uniformly spread records in each query, or each sampled query."""
    shares = np.ones(1)
    for k, part in enumerate(group.parts):
        part_shares = np.abs(part.family.dot(part.sizes, np.ones(part.cells)) / part.cells)
        shares = (
            np.multiply.outer(shares, part_shares).ravel()
            if sample is None
            else shares * part_shares[sample[k]]
        )
    return shares


def _quality_shares(variations: Array, scale: NoiseScale) -> tuple[float, float, float]:
    """Return the shares of coefficients of variation in each quality class, as in `QUALITIES`."""
    publishable = float(np.mean(variations <= scale.publishable))
    usable = float(np.mean(variations <= scale.doubtful))
    return publishable, usable - publishable, 1.0 - usable
