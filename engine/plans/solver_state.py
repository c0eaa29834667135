"""State of a finished strategy search, as stored with a plan."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from engine._arrays import Array
from engine.errors import LimitExceeded
from engine.plans.objectives import Emphasis, pack, unpack
from engine.privacy import REPLACE_ONE, Budget
from engine.residuals import Split
from engine.residuals.basis import UNIFORM


@dataclass(frozen=True, kw_only=True, eq=False)
class Lines:
    """Query weights on single attributes, for which the strategies of residual spaces are optimal.

    Attributes
    ----------
    weights : one weight per query of an attribute, shape (queries,) each.
    uses : for every space, in the order of the decomposition, the index in ``weights`` for every
        attribute; -1 where all cells have equal weights.
    """

    weights: tuple[Array, ...]
    uses: tuple[tuple[int, ...], ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the weights as JSON-ready data."""
        return {"weights": [pack(w) for w in self.weights], "uses": [list(u) for u in self.uses]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Lines:
        """Rebuild from `to_dict`; raise ValueError if the data is invalid."""
        lines = cls(
            weights=tuple(map(unpack, data["weights"])), uses=tuple(map(tuple, data["uses"]))
        )
        numbers = [n for indices in lines.uses for n in indices]
        if not all(type(n) is int and -1 <= n < len(lines.weights) for n in numbers):
            raise ValueError("an index of the attribute weights is out of range")
        if not all(np.isfinite(w).all() and (w > 0).all() for w in lines.weights):
            raise ValueError("attribute weights must be positive and finite")
        return lines


@dataclass(frozen=True, kw_only=True, eq=False)
class Tradeoff:
    """Result of the search for an objective other than the sum.

    Attributes
    ----------
    shares : squared noise of every residual space at privacy cost 1, in counts^2, in the order of
        the decomposition.
    emphasis : query weights for which the strategies are optimal.
    witness : query weights that certify the bound; None if they equal ``emphasis``.
    limits : for the weighted sum with group constraints, the largest allowed sum of variances of
        every group at privacy cost 1, in counts^2, infinite without a constraint, shape (groups,).
    lines : attribute weights for which the strategies are optimal, if these are products over
        attributes; ``emphasis`` then only certifies the bound.
    """

    shares: Array
    emphasis: Emphasis
    witness: Emphasis | None = None
    limits: Array | None = None
    lines: Lines | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON-ready data."""
        weights = {"emphasis": self.emphasis, "witness": self.witness}
        packed = {name: None if e is None else e.to_dict() for name, e in weights.items()}
        optional: dict[str, Any] = {} if self.limits is None else {"limits": pack(self.limits)}
        optional |= {} if self.lines is None else {"lines": self.lines.to_dict()}
        return packed | optional | {"shares": pack(self.shares)}


@dataclass(frozen=True, kw_only=True, eq=False)
class SolverState:
    """State of a finished search, enough to rebuild the plan without searching.

    Attributes
    ----------
    duals, endings : weights and termination message of every search, in order.
    memory_limit : memory limit in bytes that chose between dense and alternating searches.
    split : decomposition of queries into residual spaces.
    matrices : strategy matrices and shares that do not follow from the weights.
    tradeoff : result of the search for an objective other than the sum.
    joint : whether blocks are charged their joint privacy cost, see `Plan`; None for a new search,
        which decides it.
    bound : `Plan.bound` of a plan in memory; None for a plan file, whose bound is recomputed
        instead of trusted.
    """

    duals: tuple[Array, ...]
    endings: tuple[str, ...] = ()
    memory_limit: float = math.inf
    split: Split = UNIFORM
    matrices: tuple[Array, ...] = ()
    tradeoff: Tradeoff | None = None
    joint: bool | None = None
    bound: float | None = None


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """Distance of a plan from the optimum of its class.

    Attributes
    ----------
    lower_bound : lower bound on `Plan.achieved` over all plans of the class at the same privacy
        cost.  In counts: the weighted RMSE for the objective "sum", the largest standard error for
        "max", the root of a power mean of variances for "lp"; with targets, the largest ratio of
        standard error to target.
    gap : achieved / lower_bound - 1.
    statement : description of the class and of how the searches ended.
    weighted_rmse : weighted RMSE of the plan, in counts.
    search : returns a lower bound on the weighted RMSE of all matrix mechanisms, in counts.
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
        searched: bool = False,
    ) -> Certificate:
        """Return the certificate for an achieved value and a bound, both in counts.

        Parameters
        ----------
        exact : names of public tables; with these, the bound on all matrix mechanisms does not
            hold, as it assumes that nothing is public.
        searched : whether the strategies come from a search; without a bound their gap is infinite.

        Notes
        -----
        The bounds are proved for adding or removing records.  If neighbours replace a record there
        is no bound, because answers that depend only on the number of records may then be exact.
        """
        gap = achieved / bound - 1.0 if bound > 0 else math.inf if searched else 0.0
        if budget.neighbours == REPLACE_ONE:
            bound, gap, search = 0.0, math.inf, float
            statement = "No bound is proved for neighbours that replace a record."
        elif exact:
            search, statement = float, f"{statement} All of them keep {exact}."
        return cls(
            lower_bound=bound,
            gap=gap,
            statement=statement,
            weighted_rmse=weighted_rmse,
            search=search,
        )

    @cached_property
    def global_bound(self) -> float:
        """Lower bound on the weighted RMSE of every matrix mechanism, in counts.

        The first access takes seconds.  The bound is 0 if an attribute has too many cells for the
        search, if neighbours replace a record, or if tables are exact.
        """
        try:
            return self.search()
        except LimitExceeded:
            return 0.0

    @cached_property
    def global_gap(self) -> float:
        """weighted_rmse / global_bound - 1, an upper bound on the gap to the optimum."""
        return self.weighted_rmse / self.global_bound - 1.0 if self.global_bound > 0.0 else math.inf


def pack_split(split: Split) -> dict[str, Any]:
    """Return a split as JSON-ready data; equal complements are stored once, with their pairs."""
    distinct: dict[bytes, dict[str, Any]] = {}
    for pair, c in split.complements.items():
        packed = distinct.setdefault(
            c.key,
            {"by_axis": [pack(D) for D in c.by_axis], "by_total": pack(c.by_total), "pairs": []},
        )
        packed["pairs"].append(list(pair))
    stopped = {"stopped": sorted(split.stopped)} if split.stopped else {}
    return stopped | {
        "centers": {name: pack(pi) for name, pi in split.centers.items()},
        "complements": list(distinct.values()),
        "unions": [[list(a), [list(s) for s in spaces]] for a, spaces in split.unions.items()],
    }


def canonical_json(data: Any) -> str:
    """Return canonical JSON text: equal data have equal text and equal hashes."""
    return json.dumps(
        data, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
