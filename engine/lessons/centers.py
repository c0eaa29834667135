"""Tuned centers and the proof: the split of the paper, the tuned one, and what no mechanism can go below.

A center says how a query on several attributes passes its total down to smaller tables.  Equal centers are the split of
the paper; tuned ones are searched for.  What is left above the bound is an upper limit on what anybody could still win.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from engine.arrays import Array
from engine.checks import one_of
from engine.errors import PlanError
from engine.insight import mechanism_bound
from engine.mechanisms import plan
from engine.plans import Plan
from engine.privacy import Budget
from engine.workload import Attribute, Schema, Workload

NAMES = ("age", "income", "hours", "children")
ASKED = ("prefix", "range")
CELLS = (4, 10, 12)  # of four attributes: a strategy for all cells is found for few, and centers for many


@dataclass(frozen=True, kw_only=True, eq=False)
class Centered:
    """Two plans of one workload at one budget, and a bound for all mechanisms.

    Attributes
    ----------
    equal, tuned : the plans.
    bound : weighted RMSE, in counts, that no matrix mechanism goes below.
    how : how the bound was found, in words.
    """

    equal: Plan
    tuned: Plan
    bound: float
    how: str

    @property
    def won(self) -> float:
        """Share of the error that tuning takes away."""
        return 1.0 - self.tuned.weighted_rmse / self.equal.weighted_rmse

    @property
    def left(self) -> float:
        """Weighted RMSE of the tuned plan over the bound, minus 1."""
        return max(self.tuned.weighted_rmse / self.bound - 1.0, 0.0)

    def centers(self) -> dict[str, Array]:
        """Return the tuned center of every attribute, shape (n,) with sum 1; equal ones are 1 / n."""
        schema, found = self.tuned.workload.schema, self.tuned.split.centers
        return {name: found.get(name, np.full(schema[name].size, 1.0 / schema[name].size)) for name in schema.names}


def pairs_workload(asked: str, cells: int) -> Workload:
    """Return queries of one family on all pairs of four attributes with the same number of cells.

    Raises: PlanError for a family or a number of cells that the lesson does not have.
    """
    one_of("asked", asked, ASKED, error=PlanError)
    if cells not in CELLS:
        raise PlanError(f"The number of cells was {cells!r}. Give one of {CELLS}.")
    workload = Workload(Schema([Attribute.of_size(name, cells) for name in NAMES]))
    for i, one in enumerate(NAMES):
        for other in NAMES[i + 1 :]:
            workload = workload.add((one, other), asked)
    return workload


def centered(workload: Workload, budget: Budget) -> Centered:
    """Plan a workload with equal and with tuned centers, and bound what anybody could reach.

    Raises: what `plan` raises; LimitExceeded where no bound can be searched in short time.

    >>> found = centered(pairs_workload("prefix", 4), Budget(pcost=1.0))
    >>> found.bound <= found.tuned.weighted_rmse < found.equal.weighted_rmse
    True
    """
    equal, tuned = (plan(workload, budget, centers=kind) for kind in ("uniform", "tuned"))
    bound = mechanism_bound(workload, budget.law)
    return Centered(equal=equal, tuned=tuned, bound=bound.rmse(tuned), how=bound.how)


@lru_cache(maxsize=8)
def centered_pairs(asked: str, cells: int) -> Centered:
    """Return `centered` for the pairs of the lesson at privacy cost 1."""
    return centered(pairs_workload(asked, cells), Budget(pcost=1.0))


def left_text(found: Centered) -> str:
    """What is left above the bound, and what it can come from, in words (Markdown)."""
    won = f"Tuning took **{found.won:.2%}** off the error."
    if found.left < 1e-4:
        return f"{won} **Plan and bound meet**: nobody can do better, whatever they measure."
    apart = len(found.tuned.blocks)
    return (
        f"{won} **{found.left:.2%}** is left above the bound. Part of it may be the **plan**: it measures {apart} "
        "tables with noise of their own, while the best mechanism could tie all of them together. Part of it may be "
        f"the **bound**: it was found by {found.how}, and better weights might prove more. Which part is which, nobody "
        "knows; no mechanism can win more than both."
    )
