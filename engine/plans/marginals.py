"""Plans that measure whole marginal tables and answer by least squares over all of them.

With noise_A on the table of attributes A, residual spaces are eigenspaces of everything that is measured, so least
squares is a weighted mean, space by space: the class coordinates of B are read from every measured table that holds B,
with weights 1 / (noise_A^2 times the number of cells summed), and their variance is the inverse of the sum of weights.

Source: HDMM, section 6.3 and 7.3 (marginals strategies and their algebra); the weighted mean is our own form of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from engine.arrays import Array
from engine.plans.blocks import Block
from engine.plans.plan import Plan
from engine.spaces import Space, Strategy, basis, contract
from engine.workload import subsets


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class MarginalsPlan(Plan):
    """A plan of whole marginal tables; see the module's text.

    The blocks are keyed by ("component", number) and measure every cell of their table; `answering` holds the residual
    spaces that follow from them.
    """

    @cached_property
    def _precisions(self) -> dict[Space, list[tuple[Space, float]]]:
        """For every residual space the measured tables that hold it, each with its precision."""
        out: dict[Space, list[tuple[Space, float]]] = {}
        for key, block in self.blocks.items():
            names = block.attributes
            sizes = dict(zip(names, self.schema.sizes(names), strict=True))
            for space in subsets(names):
                if all(sizes[n] > 1 for n in space):
                    # a coordinate of B adds up so many noisy cells of A for each that it would take on B alone
                    summed = math.prod(sizes[n] for n in names if n not in space)
                    out.setdefault(space, []).append((key, 1.0 / (block.noise**2 * summed)))
        return out

    @cached_property
    def answering(self) -> Mapping[Space, Block]:
        out = {}
        for space in sorted(self._precisions, key=lambda s: (len(s), s)):
            # independent unbiased readings of one number: by precision they have the least variance, the inverse of the
            # sum
            noise = 1.0 / math.sqrt(math.fsum(p for _, p in self._precisions[space]))
            factors = tuple(((axis,), _whole(n)) for axis, n in enumerate(self.schema.sizes(space)))
            out[space] = Block(attributes=space, factors=factors, noise=noise, grid=noise)
        return out

    def combine(self, estimates: Mapping[Space, Array]) -> Mapping[Space, Array]:
        out = {}
        for space, sources in self._precisions.items():
            total = math.fsum(p for _, p in sources)
            value: Array = np.zeros([n - 1 for n in self.schema.sizes(space)])
            for key, precision in sources:
                value = value + precision / total * self._classes(key, estimates[key], space)
            out[space] = value
        return out

    def _classes(self, key: Space, table: Array, space: Sequence[str]) -> Array:
        """Return the class coordinates of a residual space, read from a measured table that holds it."""
        names = self.blocks[key].attributes
        value = table.sum(axis=tuple(a for a, name in enumerate(names) if name not in space))
        return contract(value, [basis(self.schema[name].size) for name in names if name in space])


@lru_cache(maxsize=256)
def _whole(n: int) -> Strategy:
    """Return every class coordinate of an attribute, each with variance 1."""
    return Strategy(sizes=(n,), rows=basis(n).T, pinv=np.eye(n - 1), complete=True)
