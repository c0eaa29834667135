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
from engine.residuals.split import UNIFORM


@dataclass(frozen=True, kw_only=True, eq=False)
class Lines:
    """Weights of queries on single attributes, which the strategies of residual spaces are best for.

    Attributes
    ----------
    weights : one a query of an attribute, shape (queries,) each.
    uses : for every space, in the order of the decomposition, the number of the weights of every attribute; -1 where
        all cells are asked alike.
    """

    weights: tuple[Array, ...]
    uses: tuple[tuple[int, ...], ...]

    def to_dict(self) -> dict[str, Any]:
        """Return them as JSON-ready data."""
        return {"weights": [pack(w) for w in self.weights], "uses": [list(u) for u in self.uses]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Lines:
        """Rebuild from `to_dict`; raise ValueError when the data is none."""
        found = cls(weights=tuple(map(unpack, data["weights"])), uses=tuple(map(tuple, data["uses"])))
        numbers = [n for own in found.uses for n in own]
        if not all(type(n) is int and -1 <= n < len(found.weights) for n in numbers):
            raise ValueError("lines that are not there")
        if not all(np.isfinite(w).all() and (w > 0).all() for w in found.weights):
            raise ValueError("lines without weights")
        return found


@dataclass(frozen=True, kw_only=True, eq=False)
class Tradeoff:
    """What the search for an objective other than the sum had found.

    Attributes
    ----------
    shares : squared noise of every residual space at privacy cost 1, in the order of the decomposition, in counts^2.
    emphasis : weights of the queries that the strategies are best for.
    witness : weights that prove the bound; None when they are the same.
    limits : for the weighted sum with groups that are kept: the largest sum of variances of every group at privacy cost
        1, in counts^2, infinite where any will do, shape (groups,).
    lines : what the strategies are best for where those are products over attributes; the emphasis then proves alone.
    """

    shares: Array
    emphasis: Emphasis
    witness: Emphasis | None = None
    limits: Array | None = None
    lines: Lines | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-ready data."""
        found = {"emphasis": self.emphasis, "witness": self.witness}
        packed = {name: None if e is None else e.to_dict() for name, e in found.items()}
        kept: dict[str, Any] = {} if self.limits is None else {"limits": pack(self.limits)}
        kept |= {} if self.lines is None else {"lines": self.lines.to_dict()}
        return packed | kept | {"shares": pack(self.shares)}


@dataclass(frozen=True, kw_only=True, eq=False)
class Solved:
    """What a search found, enough to rebuild a plan without searching.

    ``duals`` and ``endings`` hold the weights and the last words of every search in order, ``memory_limit`` the bytes
    that chose between dense and alternating searches, ``split`` how queries fall into residual spaces.  ``joint`` says
    whether blocks are charged for one cell together, see `Plan`; None of a new search, which decides.  ``bound`` is
    `Plan.bound` of a plan at hand; a file is not believed, so there it is None and found again.
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
        searched: bool = False,
    ) -> Certificate:
        """Return the certificate of what was achieved against a bound, both in counts.

        Bounds are proved for records that come or go; where neighbours replace a record there is none, since what only
        the number of records tells may then be exact.  Beside public tables, which ``exact`` names, mechanisms outside
        the class may do better than the bound for all that know of none.  A plan that was ``searched`` and has no bound
        may be any distance from the best.
        """
        gap = achieved / bound - 1.0 if bound > 0 else math.inf if searched else 0.0
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


def pack_split(split: Split) -> dict[str, Any]:
    """Return a split as JSON-ready data, every distinct complement once, with its pairs."""
    distinct: dict[bytes, dict[str, Any]] = {}
    for pair, c in split.complements.items():
        packed = distinct.setdefault(
            c.key, {"by_axis": [pack(D) for D in c.by_axis], "by_total": pack(c.by_total), "pairs": []}
        )
        packed["pairs"].append(list(pair))
    stopped = {"stopped": sorted(split.stopped)} if split.stopped else {}
    return stopped | {
        "centers": {name: pack(pi) for name, pi in split.centers.items()},
        "complements": list(distinct.values()),
        "unions": [[list(a), [list(s) for s in spaces]] for a, spaces in split.unions.items()],
    }


def canonical(data: Any) -> str:
    """Return JSON text that is the same for the same data, so that its hash is, too."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
