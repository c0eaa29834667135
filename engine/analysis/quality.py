"""Quality of answers: relative errors, their classes, and groups with hidden errors.

Statistical offices judge an estimate by its coefficient of variation: the standard error divided by
the estimate.  Before a release the answers are not known.  They are replaced by the answers for a
public, expected number of records that are spread uniformly over the cells.  After a release the
noisy answers are used, which is post-processing and has no privacy cost.

The quality classes are publishable, doubtful and noise.

**Hidden errors.**  The RMSE of a plan is over all queries, so a group with few queries can have a
much larger error and hardly change it.  Such a group is called hidden.  A larger weight lowers its
error, and usually raises the errors of the other groups only a little.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from engine._arrays import Array, Index
from engine._format import format_number, number, pluralize, set_name
from engine._validation import check_positive
from engine.analysis.ad_hoc_queries import table_names
from engine.analysis.compare import Comparison
from engine.analysis.error_distribution import chosen_queries, variances_of
from engine.analysis.error_targets import smallest_budget
from engine.analysis.variance_breakdown import errors_by_group, group_table
from engine.analysis.what_if import Request
from engine.errors import PlanError
from engine.mechanisms import plan, title_of
from engine.plans import Plan
from engine.privacy import Budget
from engine.progress import Progress, progress_reporter
from engine.workload import Group, Workload

if TYPE_CHECKING:
    import pandas as pd

# A group is hidden if its RMSE is more than this multiple of the RMSE of all queries.
HIDDEN_RATIO = 3.0
# The weights of hidden groups are raised until their RMSE is at most this multiple of the RMSE of
# all queries.
GOAL_RATIO = 2.0
# Raised weights may multiply the RMSE of all queries by at most this factor.
MAX_RISE = 1.1
# Multipliers of the weights that are tried.
FACTORS = (4.0, 16.0, 64.0, 256.0, 1024.0)


@dataclass(frozen=True, kw_only=True)
class WeightProposal:
    """Proposal to multiply the weights of all hidden groups by a factor.

    Attributes
    ----------
    factor : multiplier of the weights.
    largest : largest RMSE of a hidden group with the new weights, in counts.
    typical : RMSE of all queries with the new weights, in counts.
    """

    factor: float
    largest: float
    typical: float


def hidden_groups(plan: Plan) -> tuple[int, ...]:
    """Return the indices of the hidden groups of a plan, the least accurate group first.

    These are the groups of positive weight whose RMSE is more than `HIDDEN_RATIO` times the RMSE of
    all queries.

    >>> from engine import Attribute, Budget, Schema, Workload, plan
    >>> schema = Schema([Attribute.of_size("town", 500, "categorical"), Attribute.of_size("sex", 2)])
    >>> workload = Workload.all_ways(schema, (1, 2), "marginal")
    >>> hidden_groups(plan(workload, Budget(pcost=1.0)))
    (1,)
    """
    errors = errors_by_group(plan)["rmse"].to_numpy()
    hidden = np.flatnonzero(np.isfinite(errors) & (errors > HIDDEN_RATIO * plan.rmse))
    by_error = hidden[np.argsort(-errors[hidden], kind="stable")]
    return tuple(int(i) for i in by_error if plan.workload.groups[i].weight > 0.0)


def hidden_text(plan: Plan, groups: Sequence[int]) -> str:
    """Return sentences that compare the RMSE of the least accurate group with that of all queries.

    ``groups`` is the result of `hidden_groups`.
    """
    worst = plan.workload.groups[groups[0]]
    error = format_number(errors_by_group(plan)["rmse"][groups[0]])
    is_single = worst.count == 1
    attributes = set_name(worst.attributes) if worst.attributes else "all records"
    queries = "query" if is_single else f"{worst.count:,} queries"
    others = (
        f" {pluralize(len(groups) - 1, 'more table')} {'exceeds' if len(groups) == 2 else 'exceed'}"
        " it by far."
        if len(groups) > 1
        else ""
    )
    return (
        f"The {queries} on {attributes} {'has' if is_single else 'have'} an error of"
        f" {error}, while the typical error is {format_number(plan.rmse)}.{others}"
    )


def raise_weights(workload: Workload, groups: Sequence[int], factor: float) -> Workload:
    """Return the workload with the weights of some groups multiplied by a factor."""
    return workload.with_weights({i: factor * workload.groups[i].weight for i in groups})


def propose_weights(
    request: Request, groups: Sequence[int], progress: Progress | None = None
) -> WeightProposal | None:
    """Propose a factor by which the weights of hidden groups are multiplied.

    The factors in `FACTORS` are tried in ascending order until one of these conditions holds:

    - The factor multiplies the RMSE of all queries by more than `MAX_RISE`.  The factor before it
      is proposed.  If it is the first factor, the result is None.
    - Otherwise, the RMSE of every hidden group is at most `GOAL_RATIO` times the RMSE of all
      queries.  This factor is proposed.

    If no factor meets a condition, the largest factor is proposed.

    Parameters
    ----------
    groups : indices of the hidden groups.
    """
    report = progress_reporter(progress, "The search for weights was cancelled.")
    proposal: WeightProposal | None = None
    typical_before = np.inf
    for position, factor in enumerate((1.0, *FACTORS)):
        report(position / (1 + len(FACTORS)), "Searching for weights")
        trial_plan = plan(
            raise_weights(request.workload, groups, factor),
            request.budget,
            request.mechanism,
            **request.options,
        )
        if factor == 1.0:
            typical_before = trial_plan.rmse
            continue
        if trial_plan.rmse > MAX_RISE * typical_before:
            break
        largest = float(errors_by_group(trial_plan)["rmse"].to_numpy()[list(groups)].max())
        proposal = WeightProposal(factor=factor, largest=largest, typical=trial_plan.rmse)
        if largest <= GOAL_RATIO * trial_plan.rmse:
            break
    return proposal


def proposal_text(proposal: WeightProposal, tables: int) -> str:
    """Return a sentence with the errors that result from the proposed weights.

    ``tables`` is the number of groups whose weight is raised.

    >>> proposal_text(WeightProposal(factor=16.0, largest=84.52, typical=27.09), 1)
    'With 16 times the weight, this error becomes 84.52 and the typical error 27.09.'
    """
    errors = "this error becomes" if tables == 1 else "the errors of these tables are at most"
    return (
        f"With {proposal.factor:g} times the weight, {errors} {format_number(proposal.largest)} and"
        f" the typical error {format_number(proposal.typical)}."
    )


QUALITIES = ("publishable", "doubtful", "noise")


@dataclass(frozen=True, kw_only=True)
class NoiseScale:
    """Limits of the quality classes, and the expected number of records.

    Attributes
    ----------
    records : expected number of records, a public number.
    publishable : largest coefficient of variation of a publishable answer.
    doubtful : largest coefficient of variation of a doubtful answer; an answer with a larger one is
        noise.  The defaults of both limits are common in statistical offices.

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
                f"The limit 'publishable' was {self.publishable:g}, above the limit 'doubtful' of"
                f" {self.doubtful:g}. Give a limit 'publishable' of at most {self.doubtful:g}."
            )

    def quality(self, variation: float) -> str:
        """Return "publishable", "doubtful" or "noise" for a coefficient of variation."""
        return QUALITIES[int(variation > self.publishable) + int(variation > self.doubtful)]


def quality_by_group(plan: Plan, scale: NoiseScale) -> pd.DataFrame:
    """Return a table of the groups of a plan, with the shares of their answers per quality class.

    The group with the smallest share of publishable answers comes first.  The columns are those of
    `group_table` and:

    - publishable, doubtful, noise: shares of the answers, if the records are spread uniformly.
    - publishable from: smallest count that is publishable if its standard error is the RMSE of the
      group.  It does not depend on the number of records.

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
    """Return the shares of all answers that are publishable, doubtful and noise.

    The records are assumed to be spread uniformly.
    """
    counts = np.array([group.count for group in plan.workload.groups], dtype=float)
    shares = np.array(
        [_quality_shares(ratios, scale) for ratios in _variations(plan, scale.records)]
    )
    overall = (counts / counts.sum()) @ shares
    return float(overall[0]), float(overall[1]), float(overall[2])


def quality_text(plan: Plan, scale: NoiseScale) -> str:
    """Return sentences with the shares of the quality classes and the smallest publishable count.

    Classes with a rounded share of 0% are left out.  The smallest publishable count is for a
    standard error equal to the RMSE of the plan.
    """
    classes = [
        f"{share:.0%} {name}"
        for name, share in zip(QUALITIES, quality_shares(plan, scale), strict=True)
        if round(share, 2) > 0.0
    ]
    counts_text = "no count is publishable"
    if math.isfinite(plan.rmse):
        smallest_count = number(math.ceil(plan.rmse / scale.publishable))
        counts_text = f"counts of {smallest_count} or more are publishable"
    return (
        f"With {pluralize(round(scale.records), 'record')}, spread evenly:"
        f" {pluralize(plan.workload.queries, 'answer')}, {', '.join(classes)}. At the typical"
        f" error, {counts_text}."
    )


def publishable_text(comparison: Comparison, scale: NoiseScale) -> str:
    """Return a sentence with the smallest publishable count of each mechanism, best first.

    The standard error of every count is taken to be the RMSE of the mechanism.  Mechanisms without
    a finite RMSE are left out.  If all of several mechanisms have
    the same count, the sentence states this count once.
    """
    finite = comparison.frame[comparison.frame["rmse"] < math.inf]
    counts = [number(math.ceil(rmse / scale.publishable)) for rmse in finite["rmse"]]
    if len(counts) > 1 and len(set(counts)) == 1:
        return f"Smallest publishable count at the typical error: {counts[0]} for all mechanisms."
    words = [
        f"{title_of(str(label))} {count}"
        for label, count in zip(finite["mechanism"], counts, strict=True)
    ]
    return f"Smallest publishable count at the typical error: {', '.join(words)}."


def publishable_by_group(
    comparison: Comparison, workload: Workload, scale: NoiseScale
) -> pd.DataFrame:
    """Return a table of the shares of publishable answers, with a row per group.

    The first column, "attributes", has the number of the group, counted from 1, and its name, such
    as "3: sex".  Each other column has the shares for one mechanism with a plan; the most accurate
    mechanism comes first.  Rows are in ascending order of the shares of the first mechanism.  The
    standard error of a query is taken to be the RMSE of its group, and the records are assumed to
    be spread uniformly.
    """
    import pandas as pd

    names = [f"{g}: {name}" for g, name in enumerate(table_names(workload), start=1)]
    table = pd.DataFrame({"attributes": names})
    counts = [
        scale.records * _even_shares(group, chosen_queries(workload, g))
        for g, group in enumerate(workload.groups)
    ]
    titles = []
    for label in comparison.frame["mechanism"]:
        if label not in comparison.groups:
            continue
        table[title_of(label)] = [
            float(np.mean(rmse <= scale.publishable * expected_counts))
            for expected_counts, rmse in zip(counts, comparison.groups[label], strict=True)
        ]
        titles.append(title_of(label))
    return table.sort_values(titles, kind="stable", ignore_index=True)


def quality_counts_text(answers: pd.DataFrame) -> str:
    """Return a text with the number of answers in each quality class that occurs.

    ``answers`` is the result of `with_quality`.

    >>> import pandas as pd
    >>> quality_counts_text(pd.DataFrame({"quality": ["noise", "publishable", "publishable"]}))
    '3 answers: 2 publishable, 1 noise.'
    """
    class_sizes = answers["quality"].value_counts()
    classes = [f"{class_sizes[name]:,} {name}" for name in QUALITIES if name in class_sizes]
    return f"{pluralize(len(answers), 'answer')}: {', '.join(classes)}."


def budget_for_quality(
    plan: Plan, scale: NoiseScale, share: float, *, nearly: bool = False
) -> Budget:
    """Return the smallest budget at which a share of all answers is publishable.

    The records are assumed to be spread uniformly.

    Parameters
    ----------
    share : required share of publishable answers, above 0 and at most 1.
    nearly : whether variances are assumed to be proportional to 1 / pcost, see `budget_for_error`.

    Raises
    ------
    PlanError : ``share`` is invalid; or it cannot be reached, because too many queries cannot be
        answered or have an expected answer of 0, such as differences of cells; or `smallest_budget`
        raises it.
    """
    if not 0.0 < share <= 1.0:
        raise PlanError(f"share was {share!r}. Give a number above 0 and at most 1, such as 0.9.")

    def ratio(candidate: Plan) -> float:
        """Return a quantile of the coefficients of variation, divided by the publishable limit.

        The quantile is at ``share``, over all answers. If it is infinite, PlanError is raised.
        """
        variations = _variations(candidate, scale.records)
        values = np.concatenate(variations)
        # Each evaluated query of a group stands for the same number of the group's queries.
        weights = np.concatenate(
            [
                np.full(len(group_variations), group.count / len(group_variations))
                for group_variations, group in zip(variations, plan.workload.groups, strict=True)
            ]
        )
        order = np.argsort(values, kind="stable")
        cumulative = np.cumsum(weights[order])
        # The margin of 1e-12 keeps rounding errors of the cumulative sums from moving the index.
        index = int(np.searchsorted(cumulative, share * cumulative[-1] * (1.0 - 1e-12)))
        largest_variation = float(values[order[min(index, len(order) - 1)]])
        if math.isfinite(largest_variation):
            return largest_variation / scale.publishable
        raise PlanError(
            f"No budget makes {share:.0%} of the answers publishable: too many queries cannot be"
            " answered or have an expected answer of 0, such as differences of cells. Choose a"
            " smaller share."
        )

    return smallest_budget(plan, ratio, nearly=nearly)


def with_quality(answers: pd.DataFrame, scale: NoiseScale, *, hide: bool = False) -> pd.DataFrame:
    """Return a table of answers with two more columns: CV and quality (its class).

    The CV (coefficient of variation) is the standard error divided by the answer.  It is 0 if the
    standard error is 0; otherwise answers of 0 or below have the CV NaN and the class noise.

    Parameters
    ----------
    answers : table with the columns answer and std (standard error), in counts.
    hide : whether answer, interval and CV are replaced by NaN in the class noise.
    """
    # Answers of 0 or below get an infinite coefficient of variation, so their class is noise.
    positive_part = answers["answer"].where(answers["answer"] > 0.0, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        variation = np.where(answers["std"] > 0.0, answers["std"] / positive_part, 0.0)
    qualities = [scale.quality(float(value)) for value in variation]
    table, position = answers.copy(), list(answers).index("std") + 1
    table.insert(position, "CV", np.where(np.isfinite(variation), variation, np.nan))
    table.insert(position + 1, "quality", qualities)
    if hide:
        hidden = [name for name in ("answer", "low", "high", "CV") if name in table]
        table.loc[table["quality"] == QUALITIES[2], hidden] = math.nan
    return table


@lru_cache(maxsize=8)
def _variations(plan: Plan, records: float) -> tuple[Array, ...]:
    """Return one array per group with the coefficients of variation of its queries.

    Large groups are sampled.  The records are assumed to be spread uniformly.
    """
    return tuple(
        _variation_of_group(plan, i, group, records) for i, group in enumerate(plan.workload.groups)
    )


def _variation_of_group(plan: Plan, number: int, group: Group, records: float) -> Array:
    """Return the coefficients of variation of the queries of one group, or of a sample of them.

    The records are assumed to be spread uniformly.
    """
    sample = chosen_queries(plan.workload, number)
    errors = np.sqrt(variances_of(plan, number, sample))
    shares = _even_shares(group, sample)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(errors > 0.0, errors / (records * shares), 0.0)


def _even_shares(group: Group, sample: Sequence[Index] | None) -> Array:
    """Return |answer| / records of each query, if the records are spread uniformly over the cells.

    ``sample`` is the result of `chosen_queries`; None stands for all queries of the group.
    """
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
    """Return the shares of publishable, doubtful and noisy answers.

    ``variations`` are the coefficients of variation of all answers.
    """
    publishable = float(np.mean(variations <= scale.publishable))
    usable = float(np.mean(variations <= scale.doubtful))
    return publishable, usable - publishable, 1.0 - usable
