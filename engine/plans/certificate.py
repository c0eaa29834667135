"""What is proven about a plan: how close it is to the best of its class, and to any matrix mechanism at all."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from engine.errors import LimitExceeded
from engine.privacy import REPLACE_ONE, Budget


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """How good a plan is against everything of its class.

    Attributes
    ----------
    lower_bound : no plan of the class has a smaller `Plan.achieved` at the same privacy cost.  In counts: the weighted
        RMSE for the objective "sum", the largest standard error for "max", the root of a power mean of variances for
        "lp"; with targets, the largest ratio of standard error to target.
    gap : achieved / lower_bound - 1.
    statement : what the class is and how the searches ended, in words.
    weighted_rmse : of the plan, in counts.
    search : finds the weighted RMSE, in counts, that no matrix mechanism goes below.
    """

    lower_bound: float
    gap: float
    statement: str
    weighted_rmse: float
    search: Callable[[], float] = field(repr=False, compare=False)

    @classmethod
    def against(
        cls,
        budget: Budget,
        *,
        achieved: float,
        bound: float,
        statement: str,
        weighted_rmse: float,
        search: Callable[[], float],
        exact: str = "",
    ) -> Certificate:
        """Return the certificate of what was achieved against a bound, both in counts.

        Bounds are proved for records that come or go; where neighbours replace a record there is none, since what only
        the number of records tells may then be exact.  Beside public tables, which ``exact`` names, mechanisms outside
        the class may do better than the bound for all that know of none.
        """
        gap = achieved / bound - 1.0 if bound > 0 else 0.0
        if budget.neighbours == REPLACE_ONE:
            bound, gap, search = 0.0, math.inf, float
            statement = "No bound is proved for neighbours that replace a record."
        elif exact:
            search, statement = float, f"{statement} All of them keep {exact}."
        return cls(lower_bound=bound, gap=gap, statement=statement, weighted_rmse=weighted_rmse, search=search)

    @cached_property
    def global_bound(self) -> float:
        """Weighted RMSE, in counts, that no matrix mechanism goes below; takes seconds when it is first asked for.

        Zero where an attribute has too many cells for the search, neighbours replace a record, or tables are exact.
        """
        try:
            return self.search()
        except LimitExceeded:
            return 0.0

    @cached_property
    def global_gap(self) -> float:
        """weighted_rmse / global_bound - 1: no matrix mechanism, whatever it measures, is better by more than that."""
        return self.weighted_rmse / self.global_bound - 1.0 if self.global_bound > 0.0 else math.inf
