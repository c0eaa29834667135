"""What the search for a plan had found, enough to make it again without searching."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.arrays import Array
from engine.plans.emphasis import Emphasis, pack
from engine.spaces import Complement, Space


@dataclass(frozen=True, kw_only=True, eq=False)
class Tradeoff:
    """What the search for an objective other than the sum had found.

    Attributes
    ----------
    shares : squared noise of every residual space at privacy cost 1, in the order of the decomposition, in counts^2.
    emphasis : weights of the queries that the strategies are best for.
    witness : weights that prove the bound; None when they are the same.
    """

    shares: Array
    emphasis: Emphasis
    witness: Emphasis | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-ready data."""
        found = {"emphasis": self.emphasis, "witness": self.witness}
        packed = {name: None if e is None else e.to_dict() for name, e in found.items()}
        return packed | {"shares": pack(self.shares)}


@dataclass(frozen=True, kw_only=True, eq=False)
class Solved:
    """What a search found, enough to rebuild a plan without searching.

    ``duals`` and ``endings`` hold the weights and the last words of every search in order, ``memory_limit`` the bytes
    that chose between dense and alternating searches.
    """

    duals: tuple[Array, ...]
    endings: tuple[str, ...] = ()
    memory_limit: float = math.inf
    centers: Mapping[str, Array] = field(default_factory=dict)
    complements: Mapping[Space, Complement] = field(default_factory=dict)
    matrices: tuple[Array, ...] = ()
    tradeoff: Tradeoff | None = None
    unions: Mapping[Space, tuple[Space, ...]] = field(default_factory=dict)


def pack_complements(complements: Mapping[Space, Complement]) -> list[dict[str, Any]]:
    """Return every distinct complement once, with its pairs, as JSON-ready data."""
    distinct: dict[bytes, dict[str, Any]] = {}
    for pair, c in complements.items():
        packed = distinct.setdefault(
            c.key, {"by_axis": [pack(D) for D in c.by_axis], "by_total": pack(c.by_total), "pairs": []}
        )
        packed["pairs"].append(list(pair))
    return list(distinct.values())
