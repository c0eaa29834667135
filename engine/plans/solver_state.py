"""Result of a finished strategy search, as stored with a plan."""

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
class LineWeights:
    """Query weights by attribute: for every residual space, a product over its attributes.

    The strategies of the residual spaces are optimal for these weights.

    Attributes
    ----------
    weights : weight vectors, each with one weight per query on a single attribute.
    indices : for every residual space, in the order of the decomposition, one entry per attribute: the
        index of its vector in ``weights``, or -1 if all queries on it have equal weights.
    """

    weights: tuple[Array, ...]
    indices: tuple[tuple[int, ...], ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the weights as JSON-ready data."""
        return {"weights": [pack(w) for w in self.weights], "uses": [list(i) for i in self.indices]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> LineWeights:
        """Rebuild from `to_dict`; raise ValueError if a weight or an index is out of range."""
        lines = cls(
            weights=tuple(map(unpack, data["weights"])), indices=tuple(map(tuple, data["uses"]))
        )
        numbers = [n for indices in lines.indices for n in indices]
        if not all(type(n) is int and -1 <= n < len(lines.weights) for n in numbers):
            raise ValueError("an index of the query weights by attribute is out of range")
        if not all(np.isfinite(w).all() and (w > 0).all() for w in lines.weights):
            raise ValueError("the query weights by attribute must be positive and finite")
        return lines


@dataclass(frozen=True, kw_only=True, eq=False)
class Tradeoff:
    """Result of the search for an objective other than the sum, or under accuracy constraints.

    Attributes
    ----------
    shares : squared noise of every residual space if the plan has privacy cost 1, in counts^2, in
        the order of the decomposition.
    emphasis : query weights for which the strategies minimize the weighted sum of variances.
    witness : query weights that certify the bound; None if they equal ``emphasis``.
    limits : for the weighted sum with group constraints, the largest allowed sum of variances of
        every group at privacy cost 1, in counts^2, infinite without a constraint, shape (groups,).
    lines : query weights by attribute for which the strategies are optimal; ``emphasis`` then only
        certifies the bound.  None if the strategies are optimal for ``emphasis``.
    """

    shares: Array
    emphasis: Emphasis
    witness: Emphasis | None = None
    limits: Array | None = None
    lines: LineWeights | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON-ready data."""
        weights = {"emphasis": self.emphasis, "witness": self.witness}
        packed = {name: None if e is None else e.to_dict() for name, e in weights.items()}
        out: dict[str, Any] = packed | {"shares": pack(self.shares)}
        if self.limits is not None:
            out["limits"] = pack(self.limits)
        if self.lines is not None:
            out["lines"] = self.lines.to_dict()
        return out


@dataclass(frozen=True, kw_only=True, eq=False)
class SolverState:
    """Result of a finished strategy search, enough to rebuild the plan without searching.

    Attributes
    ----------
    duals, endings : final dual weights (one per cell) and termination message of every search.
    memory_limit : memory limit in bytes that chose between dense and alternating searches.
    split : decomposition of queries into residual spaces.
    matrices : strategy matrices and budget shares that cannot be computed from ``duals``.
    tradeoff : result of the search for an objective other than the sum, or for the sum under
        accuracy constraints of groups; None for all other plans.
    joint : whether the plan is charged the joint privacy cost of its blocks, see `Plan.joint`; None
        if this is decided when the plan is built.
    bound : `Plan.bound` of a plan in memory; None if read from a plan file, because a bound in a
        file is recomputed instead of trusted.
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
    """Proof of how far the error of a plan is from the smallest possible.

    The class of a plan is the set of all plans that its mechanism searches, at the same privacy
    cost.

    Attributes
    ----------
    lower_bound : lower bound on `Plan.achieved`, the error in the unit of the objective, over the
        class.  In counts: the weighted RMSE for the objective "sum", the largest standard error for
        "max", the root of a power mean of variances for "lp"; with targets, the largest ratio of
        standard error to target.
    gap : `Plan.achieved` / lower_bound - 1.  If the lower bound is 0, the gap is 0 for a plan
        without a search, and infinite for other plans and for neighbours that replace a record.
    statement : description in words of the class and of how the searches ended.
    weighted_rmse : weighted RMSE of the plan, in counts.
    search : returns a lower bound on the weighted RMSE of all matrix mechanisms, in counts.
    """

    lower_bound: float
    gap: float
    statement: str
    weighted_rmse: float
    search: Callable[[], float] = field(repr=False, compare=False)

    @classmethod
    def of_plan(
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
        """Return the certificate of a plan.

        Parameters
        ----------
        achieved, bound : error of the plan, and its lower bound over the class, both in the unit of
            the objective.
        search : returns a lower bound on the weighted RMSE of all matrix mechanisms, in counts.
        exact : description of the public tables, or empty.  The bound on all matrix mechanisms
            assumes that no table is public, and is 0 if one is.
        searched : whether the strategies come from a search.  If the bound is 0, the gap is then
            infinite instead of 0.

        Notes
        -----
        The bounds are proved for neighbours that add or remove a record.  They fail if neighbours
        replace a record, because answers that depend only on the number of records may be exact.
        """
        gap = math.inf if searched else 0.0
        if bound > 0:
            gap = achieved / bound - 1.0
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
        """Upper bound on the gap to the optimum: weighted_rmse / global_bound - 1.

        Infinite if the bound is 0.
        """
        return self.weighted_rmse / self.global_bound - 1.0 if self.global_bound > 0.0 else math.inf


def pack_split(split: Split) -> dict[str, Any]:
    """Return a split (centers, complements, jointly measured spaces) as JSON-ready data.

    Equal complements are stored once, with the attribute pairs that use them.
    """
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
