"""Groups of queries that are much less accurate than the RMSE of a plan suggests.

The RMSE is over all queries, so a group with few queries can have a much larger error and hardly
change it.  Such a group is called hidden.  A larger weight lowers its error, and usually raises the
errors of the other groups only a little.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine._format import format_number, pluralize, set_name
from engine.analysis.variance_breakdown import errors_by_group
from engine.analysis.what_if import Request
from engine.mechanisms import plan
from engine.plans import Plan
from engine.progress import Progress, progress_reporter
from engine.workload import Workload

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
    for number, factor in enumerate((1.0, *FACTORS)):
        report(number / (1 + len(FACTORS)), "Searching for weights")
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
