"""Candidate plans with error and lower bound."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from engine._arrays import Array
from engine.plans import Plan
from engine.residuals import Space, Split

STOPPED = {
    "memory": " The memory limit left some queries or spaces out of the search for a split.",
    "time": " The time limit ended the search for a split.",
    "work": " Pairs that would take long were left out of the search for a split; a longer time limit includes them.",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class CandidatePlan:
    """Candidate plan for one split.

    The plan is assembled on first access, because only one of several candidates is used.  Assembly
    raises `Unanswered` if light queries are lost in rounding.

    Attributes
    ----------
    split : split of queries into residual spaces.
    error : root of the weighted sum of variances at privacy cost 1; for other objectives the
        objective itself.
    values : weighted squared error of every block, in counts^2; the sum of their roots is the error
        with separate sensitivities.  Empty for objectives other than the weighted sum.
    assemble : function that builds the plan.
    joint : joint privacy cost of all blocks over the sum of their separate costs; ``error`` includes
        it.
    """

    split: Split
    error: float
    values: Mapping[Space, float]
    assemble: Callable[[], Plan]
    joint: float = 1.0

    @cached_property
    def plan(self) -> Plan:
        """The assembled plan."""
        return self.assemble()

    def sums(self) -> Array:
        """Return the variance sum of every group in counts^2 at privacy cost 1, shape (groups,)."""
        return np.array(self.plan.totals) * self.plan.budget.row_pcost


def with_stop_reasons(plan: Plan, limits: frozenset[str]) -> Plan:
    """Add to the plan the limits that stopped the search for its split."""
    note = "".join(text for limit, text in STOPPED.items() if limit in limits)
    split = replace(plan.split, stopped=limits)
    return replace(plan, split=split, statement=plan.statement + note) if limits else plan
