"""Baselines of the selection rule: separate look, noisy total, exponential mechanism.

The baselines choose between coarse and fine analyses at an extra cost, unlike the shared look.
They are for rehearsals on simulated or public counts only, because exact counts decide which choice
is right.

    separate look    the rule of section 6.2 on a separate look, as accurate as the shared one
    noisy total      a tenth of the budget for the number of records, compared with thresholds;
                     section 7.5.2
    exponential      a tenth of the budget for an exponential mechanism that scores the options by
                     their margins in the rule; section 1

The thresholds are the numbers of records that just meet the rule if they are spread evenly.

Source: Xiao, Wang, Zhang and Kifer 2022, sections 1, 7.2 and 7.5.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import scipy

from engine._arrays import Array, thin_svd
from engine.common_mechanism.common_mechanism import LinearMechanism
from engine.common_mechanism.selection_rule import NestedPlanRule, rows_of_group, stands_out
from engine.errors import NotApplicable, PlanError
from engine.records import Counts
from engine.release import Measurement, apply_group
from engine.workload import Group

if TYPE_CHECKING:
    import pandas as pd


# Share of the budget for baselines that must be paid.
BASELINE_BUDGET_SHARE = 0.1
# Limit of cells and of queries for the search of the cheapest separate look.
MAX_SEPARATE_LOOK_CELLS = 512
MOST_QUERIES = 200_000
COLUMNS = ("way to choose", "costs extra (pcost)", "share of the pcost", "takes", "right with probability")


@dataclass(frozen=True, kw_only=True, eq=False)
class Compared:
    """Comparison of baselines with the shared look.

    Attributes
    ----------
    table : one row per baseline, with the columns `COLUMNS`; values that were not computed are
        None.
    right : name of the option that the rule takes from exact counts.
    note : what could not be computed, as text; may be empty.
    """

    table: pd.DataFrame
    right: str
    note: str


def compare_rivals(rule: NestedPlanRule, looked: Measurement, counts: Counts) -> Compared:
    """Return the cost and the choice of each baseline, with the probability that it is right.

    Parameters
    ----------
    looked : a rehearsed look.
    counts : exact simulated or public counts, with the tables of all primary groups.

    Raises
    ------
    NotApplicable
        The look was released, or the primary analysis has too many queries.
    """
    import pandas as pd

    if not looked.rehearsal:
        raise NotApplicable("Baselines are compared by exact counts, so they are for rehearsals only.")
    if rule.queries > MOST_QUERIES:
        raise NotApplicable(f"Baselines are compared for at most {MOST_QUERIES:,} cells; there are {rule.queries:,}.")
    names, primary = rule.common.names, rule.common.position(rule.primary)
    options = (primary, *rule.finer)
    budget = rule.common.options[primary].budget.pcost
    exact = np.concatenate([apply_group(g, counts[g.attributes].astype(float), 0, g.count) for g in rule.groups])
    right, decision = rule.right(counts), rule.decide(looked)
    look_choice = "stop" if decision.choice is None else names[decision.choice]
    probability_right = 1.0 if decision.choice == right else 0.0
    rows = [("the shared look", 0.0, 0.0, look_choice, probability_right)]
    separate_cost, note = _separate_cost(rule)
    rows.append(
        (
            "a separate look, as exact",
            separate_cost,
            separate_cost / budget,
            "as the shared look does",
            probability_right,
        )
    )
    baseline_cost = BASELINE_BUDGET_SHARE * budget
    for name, probabilities in (
        ("thresholds on a noisy total", _threshold_law(rule, counts.records, baseline_cost)),
        ("exponential mechanism", _exponential_law(rule, exact, baseline_cost)),
    ):
        best = int(np.argmax(probabilities))
        choice_text = f"{names[options[best]]} ({probabilities[best]:.0%})"
        rows.append(
            (name, baseline_cost, BASELINE_BUDGET_SHARE, choice_text, float(probabilities[options.index(right)]))
        )
    return Compared(table=pd.DataFrame(rows, columns=list(COLUMNS)), right=names[right], note=note)


def even_totals(rule: NestedPlanRule) -> list[float]:
    """Return, per finer option, the number of evenly spread records that just meets the rule."""
    schema = rule.common.look.schema
    group_answers = []
    for group in rule.groups:
        sizes = schema.sizes(group.attributes)
        table = np.full(sizes, 1.0 / math.prod(sizes))
        group_answers.append(apply_group(group, table, 0, group.count))
    answers_per_record = np.concatenate(group_answers)
    totals = []
    for option in rule.finer:
        with np.errstate(divide="ignore"):
            needed = np.where(answers_per_record > 0, rule.snr * rule.errors(option) / answers_per_record, math.inf)
        totals.append(float(np.quantile(needed, rule.share, method="inverted_cdf")))
    return list(np.maximum.accumulate(totals))


def touched(group: Group) -> int:
    """Return the largest number of queries of a group that one record changes."""
    part_maxima = []
    for part in group.parts:
        query_counts = sum((rows != 0).sum(axis=0) for _, rows in part.family.chunks(part.sizes))
        part_maxima.append(int(np.max(query_counts)))
    return math.prod(part_maxima)


@dataclass(frozen=True, kw_only=True, eq=False)
class ReservedLook:
    """A separate look, as accurate as another one, at the least cost.

    Attributes
    ----------
    mechanism : answers the queries with at most the variances; its pcost is the upper bound.
    bound : lower bound of the pcost of all linear Gaussian mechanisms that do so.
    """

    mechanism: LinearMechanism
    bound: float


def reserved_look(queries: npt.ArrayLike, variances: npt.ArrayLike, *, evaluations: int = 300) -> ReservedLook:
    """Return the cheapest mechanism that answers queries with at most some variances (section 7.2).

    Minimise the largest diagonal entry of X over X > 0 with q_i X^-1 q_i^T <= v_i.  Its dual is the
    largest |diag(a)^1/2 diag(v)^-1/2 Q diag(b)^1/2|_*^2 over weights a of queries and b of cells
    that each add up to 1, which L-BFGS solves in the roots of the weights; every iterate has a
    bound and a feasible mechanism.

    `queries` is Q, shape (queries, cells), and `variances` v, shape (queries,), in counts^2.

    >>> look = reserved_look(np.vstack([np.eye(2), np.ones((1, 2))]), [1, 1, 2])
    >>> round(look.mechanism.pcost, 6), round(look.bound, 6)
    (1.0, 1.0)
    """
    import scipy.optimize

    Q, v = LinearMechanism(np.asarray(queries, float)).B, np.asarray(variances, float)
    if v.shape != (len(Q),) or not (v > 0).all() or not np.isfinite(v).all():
        raise PlanError(f"variances has shape {v.shape}; give one finite number above 0 for each of {len(Q)} queries.")
    M = (Q / np.sqrt(v)[:, None])[np.any(Q != 0, axis=1)]
    upper, lower, best_rows = math.inf, 0.0, M

    def objective(point: Array) -> tuple[float, Array]:
        nonlocal upper, lower, best_rows
        a, b = np.split(point, [len(M)])
        U, sizes, V = thin_svd(a[:, None] * M * b)
        retained = sizes > 1e-12 * sizes[0]
        U, sizes, V = U[:, retained], sizes[retained], V[retained]
        errors = ((M * b @ V.T) ** 2 / sizes).sum(axis=1)
        rows = (U * a[:, None]).T @ M / np.sqrt(sizes)[:, None]
        costs, T = (rows**2).sum(axis=0), sizes.sum()
        lower = max(lower, float(T**2 / (a @ a) / (b @ b)))
        if errors.max() * costs.max() < upper:
            upper, best_rows = float(errors.max() * costs.max()), rows * math.sqrt(errors.max())
        gradient = np.r_[2 * a * (1 / (a @ a) - errors / T), 2 * b * (1 / (b @ b) - costs / T)]
        return float(math.log(a @ a) + math.log(b @ b) - 2 * math.log(T)), gradient

    scipy.optimize.minimize(
        objective,
        np.ones(sum(M.shape)),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": evaluations, "maxfun": evaluations, "maxcor": 30, "ftol": 0.0, "gtol": 1e-10},
    )
    return ReservedLook(mechanism=LinearMechanism(best_rows), bound=lower)


def exponential_probabilities(scores: npt.ArrayLike, *, sensitivity: float, pcost: float) -> Array:
    """Return the probability of each analysis under the exponential mechanism (section 1).

    Parameters
    ----------
    scores : exact, private scores, shape (..., analyses), for rehearsals only.
    sensitivity : largest change of a score by one record.
    pcost : privacy cost of the choice.

    Guarantee: a choice drawn from these probabilities costs at most `pcost`; a bounded range of
    epsilon gives rho = epsilon^2 / 8.

    >>> exponential_probabilities([0.0, 1.0], sensitivity=1, pcost=1.0).round(3)
    array([0.269, 0.731])
    """
    if not (sensitivity > 0 and pcost > 0):
        raise PlanError(f"sensitivity {sensitivity!r} and pcost {pcost!r} must both be above 0.")
    # epsilon is 2 sqrt(pcost)
    exponents = np.asarray(scores, float) * math.sqrt(pcost) / sensitivity
    weights = np.exp(exponents - exponents.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def _separate_cost(rule: NestedPlanRule) -> tuple[float, str]:
    """Return an upper bound of the pcost of a separate look, and a note on its computation."""
    look = rule.common.look
    if look.schema.size > MAX_SEPARATE_LOOK_CELLS or rule.queries > MAX_SEPARATE_LOOK_CELLS:
        return look.budget.pcost, (
            f"The cheapest separate look is computed for at most {MAX_SEPARATE_LOOK_CELLS:,} cells and queries; the "
            "cost shown is that of the shared look, run separately."
        )
    rows = np.concatenate([rows_of_group(look.schema, g) for g in rule.groups])
    cheapest = reserved_look(rows, rule.errors() ** 2)
    return min(float(cheapest.mechanism.pcost), look.budget.pcost), ""


def _threshold_law(rule: NestedPlanRule, records: int, pcost: float) -> Array:
    """Return the probability of each option by thresholds on a Gaussian total, shape (options,)."""
    pass_probabilities = scipy.special.ndtr((records - np.array(even_totals(rule))) * math.sqrt(pcost))
    return np.asarray(np.r_[1.0, pass_probabilities] - np.r_[pass_probabilities, 0.0])


def _exponential_law(rule: NestedPlanRule, exact: Array, pcost: float) -> Array:
    """Return the probability of each option by an exponential mechanism, shape (options,).

    The score of an option is the smaller of two margins, in cells: by how much it meets the rule,
    and by how much the next option fails it.  One record changes each margin, and so the score, by
    at most the number of queries that it changes.
    """
    margins = [float(stands_out(exact, rule.errors(i), rule.snr).sum()) - rule.share * rule.queries for i in rule.finer]
    scores = np.minimum([math.inf, *margins], [*(-m for m in margins), math.inf])
    sensitivity = sum(touched(g) for g in rule.groups)
    return exponential_probabilities(scores, sensitivity=sensitivity, pcost=pcost)
