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
    """Query weights for which the strategies of residual spaces are optimal.

    In each residual space, the weight of a query is the product of one weight per attribute.

    Attributes
    ----------
    weights : weight vectors, each with one weight per query on a single attribute.
    indices : for each residual space, in the order of the decomposition, one index in ``weights``
        per attribute; -1 if all queries on the attribute have equal weights.
    """

    weights: tuple[Array, ...]
    indices: tuple[tuple[int, ...], ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the weights as JSON-ready data."""
        return {"weights": [pack(w) for w in self.weights], "uses": [list(i) for i in self.indices]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> LineWeights:
        """Return the weights that `to_dict` described; raise ValueError if an entry is invalid."""
        lines = cls(
            weights=tuple(map(unpack, data["weights"])), indices=tuple(map(tuple, data["uses"]))
        )
        numbers = [n for indices in lines.indices for n in indices]
        if not all(type(n) is int and -1 <= n < len(lines.weights) for n in numbers):
            raise ValueError("the query weights by attribute contain an invalid index")
        if not all(np.isfinite(w).all() and (w > 0).all() for w in lines.weights):
            raise ValueError("the query weights by attribute are not all positive and finite")
        return lines


@dataclass(frozen=True, kw_only=True, eq=False)
class Tradeoff:
    """Result of the search for an objective other than the sum, or under accuracy constraints.

    Attributes
    ----------
    shares : squared noise of each residual space at privacy cost 1, in counts^2, in the order of
        the decomposition.
    emphasis : query weights.  If ``lines`` is None, the strategies minimize the sum of variances
        with these weights; otherwise they only certify the bound.
    witness : query weights that certify the bound; None if ``emphasis`` certifies it.
    limits : largest allowed sum of variances of each group at privacy cost 1, in counts^2, shape
        (groups,); infinite for groups without an accuracy constraint.  None if no group has one.
    lines : query weights by attribute for which the strategies are optimal, or None.
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
        data: dict[str, Any] = packed | {"shares": pack(self.shares)}
        if self.limits is not None:
            data["limits"] = pack(self.limits)
        if self.lines is not None:
            data["lines"] = self.lines.to_dict()
        return data


@dataclass(frozen=True, kw_only=True, eq=False)
class SolverState:
    """Result of a finished strategy search, from which the plan is rebuilt without searching.

    Attributes
    ----------
    duals : final dual weights of each search.
    endings : termination message of each search.
    memory_limit : memory limit in bytes, which chose between dense and alternating searches.
    split : decomposition of queries into residual spaces.
    matrices : strategy matrices and budget shares that cannot be computed from ``duals``.
    tradeoff : result of the search for an objective other than the sum, or for the sum under
        accuracy constraints of groups; None for all other plans.
    joint : value of `Plan.joint`; None if it is computed when the plan is rebuilt.
    bound : value of `Plan.bound`; None if the state was read from a plan file.  A bound in a file
        is not trusted but recomputed.
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
    """Lower bounds on the error of plans, and how far one plan is above them.

    The class of a plan is the set of all plans that its mechanism searches, at the same privacy
    cost.

    Attributes
    ----------
    lower_bound : lower bound on `Plan.achieved` for all plans of the class, in the same unit.
    gap : `Plan.achieved` / lower_bound - 1.  If the lower bound is 0, the gap is 0 for a plan whose
        strategies need no search, and infinite for all other plans.  The gap is also infinite if
        neighbours replace a record.
    statement : description in words of the class and of how the searches ended.
    weighted_rmse : weighted RMSE of the plan, in counts.
    search : function that returns a lower bound on the weighted RMSE of all matrix mechanisms, in
        counts.
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
        achieved : `Plan.achieved`, the error of the plan in the unit of its objective.
        bound : lower bound on `Plan.achieved` over the plans that the mechanism chooses from.
        statement, weighted_rmse : see `Certificate`.
        search : function that returns a lower bound on the weighted RMSE of all matrix mechanisms,
            in counts.  It is not called if tables are public or neighbours replace a record.
        exact : text that names the public tables; empty if there are none.
        searched : whether the strategies come from a search.  It decides the gap if the bound is 0:
            infinite if True, 0 if False.

        Notes
        -----
        The bounds are proved for neighbours that add or remove a record.  They do not hold if
        neighbours replace a record, because the number of records can then be released exactly. In
        this case the certificate has the lower bound 0 and an infinite gap.
        """
        gap = math.inf if searched else 0.0
        if bound > 0:
            gap = achieved / bound - 1.0
        # ``search = float`` gives the lower bound 0, because float() returns 0.0.
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
        search, if neighbours replace a record, or if tables are public.
        """
        try:
            return self.search()
        except LimitExceeded:
            return 0.0

    @cached_property
    def global_gap(self) -> float:
        """weighted_rmse / global_bound - 1, or infinity if the bound is 0.

        The error of the plan is at most this share above that of the best matrix mechanism.
        """
        return self.weighted_rmse / self.global_bound - 1.0 if self.global_bound > 0.0 else math.inf


def pack_split(split: Split) -> dict[str, Any]:
    """Return the decomposition of queries into residual spaces as JSON-ready data.

    The result has centers, complements (splits of attribute pairs) and jointly measured spaces.
    Equal complements are stored once, together with the attribute pairs that use them.  The entry
    ``stopped`` is present only if ``split.stopped`` is not empty.
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
