"""What a search for a plan made, before the plan is put together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from engine.arrays import Array
from engine.plans import Plan
from engine.spaces import Space, Split

STOPPED = {
    "memory": " The memory limit left some queries or spaces out of the search for a split.",
    "time": " The time limit ended the search for a split.",
    "work": " Pairs that would take long were left out of the search for a split; a long time limit lets them in.",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Made:
    """What a search made for one split: its error at privacy cost 1, and what its blocks have of it.

    ``error`` is the sum over blocks of the roots of ``values``, their weighted squared errors in counts^2; for
    objectives that are no weighted sum it is the objective, and ``values`` is empty.  The plan is put together when it
    is asked for, as of several that were made one is taken; that raises Unanswered where light queries are lost.
    """

    split: Split
    error: float
    values: Mapping[Space, float]
    assemble: Callable[[], Plan]

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
