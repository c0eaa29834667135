"""Baseline selection rules: separate look, noisy total, exponential mechanism.

For rehearsals on simulated or public counts alone: what is right is judged by exact counts.

    separate look    the rule of section 6.2 on a look of its own that is as exact as the shared one
    noisy total      a tenth of the budget for the number of records, and thresholds on it; section 7.5.2
    exponential      a tenth of the budget for an exponential mechanism on the margins of the rule; section 1

Thresholds are set where evenly spread records would just meet the rule.

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


SHARE = 0.1  # of the budget, for rivals that must be paid
MOST_CELLS = 512  # of the domain, to look for the cheapest separate look
MOST_QUERIES = 200_000
COLUMNS = ("way to choose", "costs extra (pcost)", "share of the pcost", "takes", "right with probability")


@dataclass(frozen=True, kw_only=True, eq=False)
class Compared:
    """Rivals of a look.

    Attributes
    ----------
    table : one row a way to choose, with the columns of `COLUMNS`; what is not known is None.
    right : name of the option that the exact counts ask for.
    note : what could not be computed, in words; may be empty.
    """

    table: pd.DataFrame
    right: str
    note: str


def compare_rivals(rule: NestedPlanRule, looked: Measurement, counts: Counts) -> Compared:
    """Return what other ways to choose would have cost and decided.

    ``counts`` are exact and hold the tables of all primary groups; they must be simulated or public.

    Raises
    ------
    NotApplicable : a look that was released, or a primary analysis of too many queries.
    """
    import pandas as pd

    if not looked.rehearsal:
        raise NotApplicable("Rivals are judged by exact counts, so they are for rehearsals only.")
    if rule.queries > MOST_QUERIES:
        raise NotApplicable(f"Rivals are compared for at most {MOST_QUERIES:,} cells; there are {rule.queries:,}.")
    names, primary = rule.common.names, rule.common.position(rule.primary)
    options = (primary, *rule.finer)
    budget = rule.common.options[primary].budget.pcost
    exact = np.concatenate([apply_group(g, counts[g.attributes].astype(float), 0, g.count) for g in rule.groups])
    right, decision = rule.right(counts), rule.decide(looked)
    said = "stop" if decision.choice is None else names[decision.choice]
    sure = 1.0 if decision.choice == right else 0.0
    rows = [("the shared look", 0.0, 0.0, said, sure)]
    separate, note = _separate(rule)
    rows.append(("a separate look, as exact", separate, separate / budget, "as the shared look does", sure))
    paid = SHARE * budget
    for name, law in (
        ("thresholds on a noisy total", _threshold_law(rule, counts.records, paid)),
        ("exponential mechanism", _exponential_law(rule, exact, paid)),
    ):
        best = int(np.argmax(law))
        takes = f"{names[options[best]]} ({law[best]:.0%})"
        rows.append((name, paid, SHARE, takes, float(law[options.index(right)])))
    return Compared(table=pd.DataFrame(rows, columns=list(COLUMNS)), right=names[right], note=note)


def even_totals(rule: NestedPlanRule) -> list[float]:
    """Return for every finer option the number of records, spread evenly over all cells, that just meets the rule."""
    schema = rule.common.look.schema
    even = []
    for group in rule.groups:
        sizes = schema.sizes(group.attributes)
        table = np.full(sizes, 1.0 / math.prod(sizes))
        even.append(apply_group(group, table, 0, group.count))
    each = np.concatenate(even)
    found = []
    for option in rule.finer:
        with np.errstate(divide="ignore"):
            needed = np.where(each > 0, rule.snr * rule.errors(option) / each, math.inf)
        found.append(float(np.quantile(needed, rule.share, method="inverted_cdf")))
    return list(np.maximum.accumulate(found))


def touched(group: Group) -> int:
    """Return the largest number of queries of a group that one record can change."""
    most = []
    for part in group.parts:
        touching = sum((rows != 0).sum(axis=0) for _, rows in part.family.chunks(part.sizes))
        most.append(int(np.max(touching)))
    return math.prod(most)


@dataclass(frozen=True, kw_only=True, eq=False)
class ReservedLook:
    """A separate look that is as exact as another one, at the least cost.

    Attributes
    ----------
    mechanism : answers the queries with at most the variances asked for; its pcost is the upper bound.
    bound : no linear Gaussian mechanism that does so costs less pcost.
    """

    mechanism: LinearMechanism
    bound: float


def reserved_look(queries: npt.ArrayLike, variances: npt.ArrayLike, *, evaluations: int = 300) -> ReservedLook:
    """The rival of section 7.2: reserve budget for the cheapest mechanism that answers with given variances.

    Minimise the largest diagonal entry of X over X > 0 with q_i X^-1 q_i^T <= v_i.  Its dual is the largest
    |diag(a)^1/2 diag(v)^-1/2 Q diag(b)^1/2|_*^2 over weights a of queries and b of cells that each add up to 1, which
    L-BFGS solves in the roots of the weights; every iterate has a bound and a feasible mechanism.

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
    upper, lower, best = math.inf, 0.0, M

    def value(point: Array) -> tuple[float, Array]:
        nonlocal upper, lower, best
        a, b = np.split(point, [len(M)])
        U, sizes, V = thin_svd(a[:, None] * M * b)
        kept = sizes > 1e-12 * sizes[0]
        U, sizes, V = U[:, kept], sizes[kept], V[kept]
        errors = ((M * b @ V.T) ** 2 / sizes).sum(axis=1)
        rows = (U * a[:, None]).T @ M / np.sqrt(sizes)[:, None]
        costs, T = (rows**2).sum(axis=0), sizes.sum()
        lower = max(lower, float(T**2 / (a @ a) / (b @ b)))
        if errors.max() * costs.max() < upper:
            upper, best = float(errors.max() * costs.max()), rows * math.sqrt(errors.max())
        slope = np.r_[2 * a * (1 / (a @ a) - errors / T), 2 * b * (1 / (b @ b) - costs / T)]
        return float(math.log(a @ a) + math.log(b @ b) - 2 * math.log(T)), slope

    scipy.optimize.minimize(
        value,
        np.ones(sum(M.shape)),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": evaluations, "maxfun": evaluations, "maxcor": 30, "ftol": 0.0, "gtol": 1e-10},
    )
    return ReservedLook(mechanism=LinearMechanism(best), bound=lower)


def exponential_probabilities(scores: npt.ArrayLike, *, sensitivity: float, pcost: float) -> Array:
    """The rival of section 1: the exponential mechanism's law over analyses, shape (..., analyses).

    `scores`, of that shape, are exact, private, for rehearsals only; a record changes each by at most `sensitivity`.
    Guarantee: a choice drawn from it costs at most `pcost`; a bounded range of epsilon gives rho = epsilon^2 / 8.

    >>> exponential_probabilities([0.0, 1.0], sensitivity=1, pcost=1.0).round(3)
    array([0.269, 0.731])
    """
    if not (sensitivity > 0 and pcost > 0):
        raise PlanError(f"sensitivity {sensitivity!r} and pcost {pcost!r} must both be above 0.")
    raised = np.asarray(scores, float) * math.sqrt(pcost) / sensitivity  # epsilon is 2 sqrt(pcost)
    weights = np.exp(raised - raised.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def _separate(rule: NestedPlanRule) -> tuple[float, str]:
    """Return the cost of a separate look in pcost, the cheapest where it can be found, and a note."""
    look = rule.common.look
    if look.schema.size > MOST_CELLS or rule.queries > MOST_CELLS:
        return look.budget.pcost, (
            f"The cheapest separate look is found for at most {MOST_CELLS:,} cells and queries; the cost shown is that "
            "of the shared look run on its own."
        )
    rows = np.concatenate([rows_of_group(look.schema, g) for g in rule.groups])
    found = reserved_look(rows, rule.errors() ** 2)
    return min(float(found.mechanism.pcost), look.budget.pcost), ""


def _threshold_law(rule: NestedPlanRule, records: int, pcost: float) -> Array:
    """Return how likely each option is taken by thresholds on a Gaussian total, shape (options,)."""
    passed = scipy.special.ndtr((records - np.array(even_totals(rule))) * math.sqrt(pcost))
    return np.asarray(np.r_[1.0, passed] - np.r_[passed, 0.0])


def _exponential_law(rule: NestedPlanRule, exact: Array, pcost: float) -> Array:
    """Return how likely each option is taken by an exponential mechanism, shape (options,).

    An option scores by how clearly it serves and the next one does not, in cells; every margin, and so the smaller of
    two, changes by at most the queries that one record can change.
    """
    margins = [float(stands_out(exact, rule.errors(i), rule.snr).sum()) - rule.share * rule.queries for i in rule.finer]
    scores = np.minimum([math.inf, *margins], [*(-m for m in margins), math.inf])
    sensitivity = sum(touched(g) for g in rule.groups)
    return exponential_probabilities(scores, sensitivity=sensitivity, pcost=pcost)
