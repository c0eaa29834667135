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
    "work": " Pairs that would take long were left out of the search for a split; a long time limit lets them in.",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Made:
    """What a search made for one split: its error at privacy cost 1, and what its blocks have of it.

    ``values`` are the weighted squared errors of the blocks, in counts^2, and the sum over blocks of their roots is the
    error where every block is charged for its own cells.  For objectives that are no weighted sum ``values`` is empty,
    and the error is the objective.  ``joint`` is the share of that cost that the costliest cell of all blocks takes;
    ``error`` is the one at what the plan is charged.  The plan is put together when it
    is asked for, as of several that were made one is taken; that raises Unanswered where light queries are lost.
    """

    split: Split
    error: float
    values: Mapping[Space, float]
    assemble: Callable[[], Plan]
    joint: float = 1.0

    @cached_property
    def plan(self) -> Plan:
        """The plan."""
        return self.assemble()

    def sums(self) -> Array:
        """Return the sum of variances of every group at privacy cost 1, in counts^2. Shape (groups,)."""
        return np.array(self.plan.totals) * self.plan.budget.row_pcost


def noted(plan: Plan, limits: frozenset[str]) -> Plan:
    """Return the plan with a note of the limits that kept the search for its split from going on."""
    words = "".join(text for limit, text in STOPPED.items() if limit in limits)
    told = replace(plan.split, stopped=limits)
    return replace(plan, split=told, statement=plan.statement + words) if limits else plan
