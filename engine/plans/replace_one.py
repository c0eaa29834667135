"""Privacy cost under replacement of rows.

Replacing a row of cell x by one of cell y moves block B by B (e_x - e_y).  With K = B^T B / noise^2, the cost of a pair
is the sum over blocks of K(x, x) + K(y, y) - 2 K(x, y): at most twice the cost of adding a row where columns are at
right angles or less, and less than that by twice what the total alone costs, which no replacing moves.

A row may also be replaced by one that counts nowhere, outside the domain or refused, which moves block B by B e_x as
adding it does; that is the dearer of the two where most of the budget goes to the total.

K is a Kronecker product, so that it is bounded by interval arithmetic over the factors, jointly for all blocks.  The
pair found by a climb from many starts bounds the same number from below.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from engine._arrays import Array, Index
from engine.plans.blocks import DEVIATION, GUARD, Block, cells_pcost, total_pcost
from engine.privacy import REPLACE_ONE, Budget
from engine.residuals import Axes, Space, Strategy
from engine.workload import Schema

STARTS, CLIMBS = 6, 20
BINS = 6  # of pairs of different cells of one attribute
MOST_STEPS = 2_000
ENTRIES = 1 << 24


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two cells, by attribute, and what it costs to replace a record of the one by a record of the other."""

    pcost: float
    first: Mapping[str, int]
    second: Mapping[str, int]


class ReplaceOne(NamedTuple):
    """A proven upper bound on the privacy cost of replacing, and the worst pair of counted cells that was found."""

    bound: float
    worst: Pair


def row_pcosts(budget: Budget, joint: bool = False) -> Callable[[Mapping[Space, Block], int], float]:
    """Return the function of blocks and records that a budget's neighbours count one row by.

    ``joint`` counts what the dearest cell costs in all blocks together, otherwise the dearest cell of every block.
    """
    added = cells_pcost if joint else total_pcost
    return partial(replaced_pcost, added=added) if budget.neighbours == REPLACE_ONE else added


def person_pcost(blocks: Mapping[Space, Block], budget: Budget, max_records: int, joint: bool = False) -> float:
    """Return what a release of all blocks costs one person under a budget's unit and neighbours, rounded up.

    Guarantee: k rows of one person move every answer by at most k times what one row does, so that the cost is at most
    k^2 times that of one row, whatever cells the rows are in.
    """
    return budget.of_person(row_pcosts(budget, joint)(blocks, max_records))


def replaced(
    blocks: Mapping[Space, Block], budget: Budget, max_records: int, schema: Schema, joint: bool = False
) -> ReplaceOne:
    """Return what replacing all rows of a person costs: see `ReplaceOne`."""
    measured = {name for block in blocks.values() for name in block.attributes}
    found = worst_pair(blocks, {name: schema[name].size for name in schema.names if name in measured})
    pair = replace(found, pcost=found.pcost * budget.rows_per_person**2)
    bound = replaced_pcost(blocks, max_records, cells_pcost if joint else total_pcost)
    return ReplaceOne(bound=budget.of_person(bound), worst=pair)


def replaced_pcost(
    blocks: Mapping[Space, Block],
    max_records: int,
    added: Callable[[Mapping[Space, Block], int], float] = total_pcost,
) -> float:
    """Return an upper bound on the cost of replacing one record by another, rounding included, rounded up.

    The other may be one that no table counts.  ``added`` bounds what adding one costs.
    """
    found, alone = list(blocks.values()), added(blocks, max_records)
    if any(b.law == "laplace" for b in found):  # columns in the L1 norm: twice the sensitivity
        return 4.0 * alone
    plain = [b for b in found if b.weights is None and all(len(axes) == 1 for axes, _ in b.factors)]
    ideal = Distances(plain).bound() if plain else 0.0
    ideal += math.fsum(_alone(b) for b in found if not any(b is p for p in plain))
    # |(d + e)|^2 over blocks, d the distances of columns and e what rounding adds to each: Minkowski's inequality
    extra = [(b.sensitivity(max_records) - b.column_norm) / b.noise for b in found]
    pairs = (math.sqrt(ideal) + math.sqrt(math.fsum(e * e for e in extra))) ** 2 * GUARD
    return max(alone, min(pairs, 4.0 * alone))


def _alone(block: Block) -> float:
    """Return the largest squared distance of two columns of one block over its noise, or a bound on it."""
    if block.weights is not None or len(block.factors) > 1:
        # of products only the triangle inequality is free: their columns are too many to be compared in pairs
        return (2.0 * block.column_norm / block.noise) ** 2
    rows = block.factors[0][1].rows
    # |b_x - b_y|^2 = |b_x|^2 + |b_y|^2 - 2 b_x b_y, so that all pairs are one matrix product
    norms, best = np.einsum("rc,rc->c", rows, rows), 0.0
    step = max(1, ENTRIES // len(norms))
    for start in range(0, len(norms), step):
        inner = rows[:, start : start + step].T @ rows
        best = max(best, float((norms[start : start + step, None] + norms - 2.0 * inner).max()))
    return best / block.noise**2 * GUARD


class Distances:
    """Upper bound on the sum over blocks of |B (e_x - e_y)|^2 / noise^2, for blocks of one factor an attribute.

    For every attribute the pairs (x_i, y_i) fall into bins: equal ones, and those that differ by their K_i(x_i, y_i).
    Within bins each K_i is an interval, a block's product of them too, and the sum over blocks is bounded; the best
    first search through the bins stops at a choice for all attributes, or early, with what is still open as the bound.
    """

    def __init__(self, blocks: Sequence[Block]) -> None:
        blocks = sorted(blocks, key=lambda b: len(b.factors))  # an attribute's own block says best which pairs are far
        self.names = list(dict.fromkeys(name for b in blocks for name in b.attributes))
        place = {name: i for i, name in enumerate(self.names)}
        width = max((len(b.factors) for b in blocks), default=0)
        # one entry more, the attribute number ``len(names)``, fills up blocks on few attributes with the factor 1
        self.attribute = np.full((len(blocks), width), len(self.names))
        self.low = np.ones((len(blocks), width, BINS + 2))
        self.high = np.ones((len(blocks), width, BINS + 2))
        self.column = np.array([b.column_norm**2 / b.noise**2 for b in blocks])
        self.scale = np.array([b.noise**-2.0 for b in blocks])
        bins: dict[str, Index] = {}
        known: dict[tuple[Strategy, str], tuple[Array, Array]] = {}
        for k, block in enumerate(blocks):
            for j, ((axis,), strategy) in enumerate(block.factors):
                name = block.attributes[axis]
                self.attribute[k, j] = place[name]
                key = (strategy, name)
                if key not in known:
                    gram = strategy.rows.T @ strategy.rows
                    if name not in bins:
                        bins[name] = _binned(gram)
                    known[key] = _ends(gram, bins[name])
                self.low[k, j], self.high[k, j] = known[key]
        weight = np.zeros(len(self.names) + 1)
        np.add.at(weight, self.attribute, self.column[:, None])
        self.order = np.argsort(-weight[:-1])

    def at(self, chosen: Index) -> float:
        """Return the bound for one bin an attribute, shape (attributes,): 0 any pair, 1 equal cells, then others."""
        bins = np.append(chosen, 1)[self.attribute]
        rows, columns = np.indices(bins.shape)
        low, high = self.low[rows, columns, bins], self.high[rows, columns, bins]
        least, most = self.scale.copy(), self.scale.copy()
        for j in range(bins.shape[1]):
            # entries may be negative: the product of two intervals ends at one of the four products of their ends
            ends = np.stack([least * low[:, j], least * high[:, j], most * low[:, j], most * high[:, j]])
            least, most = ends.min(axis=0), ends.max(axis=0)
        # records that agree on all attributes of a block leave it as it is
        moved = (bins != 1).any(axis=1)
        return float(np.sum(2.0 * (self.column - least) * moved)) * GUARD

    def bound(self) -> float:
        """Return the bound over all pairs of cells."""
        start = np.zeros(len(self.names), dtype=np.int64)
        ticket = itertools.count()
        heap = [(-self.at(start), next(ticket), 0, start)]
        steps = min(MOST_STEPS, max(20, ENTRIES // max(1, self.attribute.size)))
        while heap and steps > 0 and heap[0][2] < len(self.order):
            _, _, depth, chosen = heapq.heappop(heap)
            for k in range(1, BINS + 2):
                if np.isfinite(self.low[self.attribute == self.order[depth]][0, k]):
                    tried = chosen.copy()
                    tried[self.order[depth]] = k
                    heapq.heappush(heap, (-self.at(tried), next(ticket), depth + 1, tried))
                    steps -= 1
        return max(-heap[0][0], 0.0)


def _binned(gram: Array) -> Index:
    """Return the bin of every pair of cells, shape (n, n): 1 on the diagonal, then by quantiles of entries."""
    n = len(gram)
    out = np.ones((n, n), dtype=np.int64)
    apart = ~np.eye(n, dtype=bool)
    if n > 1:
        # quantiles, not equal widths: a bin says most where pairs are many
        cuts = np.unique(np.quantile(gram[apart], np.linspace(0.0, 1.0, BINS + 1)[1:-1]))
        # entries that differ by rounding alone fall on the same side of a cut
        out[apart] = 2 + np.searchsorted(cuts, gram[apart] - 1e-12 * float(np.abs(gram).max()))
    return out


def _ends(gram: Array, bins: Index) -> tuple[Array, Array]:
    """Return the least and the largest entry over all pairs and in every bin; infinite in a bin without pairs."""
    low, high = np.full(BINS + 2, np.inf), np.full(BINS + 2, -np.inf)
    np.minimum.at(low, bins, gram)
    np.maximum.at(high, bins, gram)
    low[0], high[0] = gram.min(), gram.max()
    return low, high


def worst_pair(blocks: Mapping[Space, Block], sizes: Mapping[str, int]) -> Pair:
    """Return the pair of cells that costs most among those a climb from some starts finds; the same every time.

    Both records change one attribute at a time, to the value that costs most while the others stay.

    Parameters
    ----------
    sizes : number of cells of every attribute that a block measures.
    """
    names, rng = list(sizes), np.random.default_rng(0)  # the plan is public: nothing here is drawn for a release
    touching = {n: [b for b in blocks.values() if n in b.attributes] for n in names}
    best = Pair(pcost=0.0, first=dict.fromkeys(names, 0), second=dict.fromkeys(names, 0))
    for start in range(STARTS):
        x = {n: 0 if start == 0 else int(rng.integers(sizes[n])) for n in names}
        y = {n: sizes[n] - 1 if start == 0 else int(rng.integers(sizes[n])) for n in names}
        for _ in range(CLIMBS):
            rising = False
            for name in names:
                for mine, other in ((x, y), (y, x)):
                    tried = _moved(touching[name], mine, other, name, np.arange(sizes[name]))
                    # a gain that is rounding would let the climb go round in circles
                    if float(tried.max()) > tried[mine[name]] * (1.0 + 1e-12):
                        mine[name], rising = int(tried.argmax()), True
            if not rising:
                break
        if (cost := pair_pcost(blocks, x, y)) > best.pcost:
            best = Pair(pcost=cost, first=dict(x), second=dict(y))
    return best


def pair_pcost(blocks: Mapping[Space, Block], first: Mapping[str, int], second: Mapping[str, int]) -> float:
    """Return the cost of replacing a record of one cell by a record of another, without the rounding of a release."""
    # epsilons of blocks add up and are squared at the end, costs in zCDP add up as they are
    total = float(_moved(list(blocks.values()), first, second, "", np.zeros(1, np.int64))[0])
    return total**2 if any(b.law == "laplace" for b in blocks.values()) else total


def _moved(
    blocks: Sequence[Block], mine: Mapping[str, int], other: Mapping[str, int], name: str, values: Index
) -> Array:
    """Return what blocks add to the cost of a pair for every value of one attribute of the first, shape (values,).

    What adds up is the cost in zCDP for Gaussian noise, and the root of it, an epsilon, for Laplace noise.
    """
    total = np.zeros(len(values))
    for block in blocks:
        if block.law == "laplace" or block.weights is not None:
            moved = _columns(block, mine, name, values) - _columns(block, other, "", values[:1])
            if block.law == "laplace":
                total += np.abs(moved).sum(axis=1) * DEVIATION["laplace"] / block.noise
            else:
                total += np.einsum("vr,vr->v", moved, moved) / block.noise**2
        else:
            total += _distances(block, mine, other, name, values) / block.noise**2
    return total


def _cells(block: Block, axes: Axes, record: Mapping[str, int], name: str, values: Index, sizes: Axes) -> Index:
    """Return the cell of one factor's table that a record is in, for every value of one attribute."""
    given = [values if block.attributes[a] == name else record[block.attributes[a]] for a in axes]
    return np.atleast_1d(np.ravel_multi_index(np.broadcast_arrays(*given), sizes)) if axes else np.zeros(1, np.int64)


def _distances(block: Block, mine: Mapping[str, int], other: Mapping[str, int], name: str, values: Index) -> Array:
    """Return |B (e_x - e_y)|^2 for every value of one attribute of x, from products over the factors."""
    own, theirs, both = np.ones(1), 1.0, np.ones(1)
    for axes, strategy in block.factors:
        x = strategy.rows[:, _cells(block, axes, mine, name, values, strategy.sizes)]
        y = strategy.rows[:, _cells(block, axes, other, "", values, strategy.sizes)[0]]
        own, theirs, both = own * np.einsum("rv,rv->v", x, x), theirs * float(y @ y), both * (y @ x)
    return np.maximum(own + theirs - 2.0 * both, 0.0)


def _columns(block: Block, record: Mapping[str, int], name: str, values: Index) -> Array:
    """Return the columns of a block for a record whose attribute ``name`` takes each value, shape (values, rows)."""
    out = np.ones((1, 1))
    for axes, strategy in block.factors:
        own = strategy.rows[:, _cells(block, axes, record, name, values, strategy.sizes)].T
        out = (out[:, :, None] * own[:, None, :]).reshape(max(len(out), len(own)), -1)
    return out if block.weights is None else out * block.weights.ravel()
