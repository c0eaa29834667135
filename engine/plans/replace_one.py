"""Privacy cost if neighbours replace rows.

Replacing a row in cell x by one in cell y moves the answers of block B by B (e_x - e_y).  With
K = B^T B / noise^2, the cost of a pair is the sum over blocks of K(x, x) + K(y, y) - 2 K(x, y).  If
the inner products of columns are nonnegative, this is at most twice the cost of adding a row.  A
measurement of the total costs nothing here, because replacement does not change the total.

A row may also be replaced by one that is not counted, because it is outside the domain or rejected.
This changes the answers of block B by B e_x, as adding the row does, and is the more costly case
if most of the budget goes to the total.

On a small domain the costs of all pairs of cells are computed.  On a larger domain, the K of a block
with one factor per attribute is a Kronecker product: interval arithmetic over the factors, jointly
for all such blocks, gives an upper bound on the cost of the worst pair, and every other block adds
an upper bound of its own.  A local search over pairs gives a lower bound.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from engine._arrays import Array, Index
from engine.plans.blocks import ROUNDING_FACTOR, STD_PER_SCALE, Block, cells_pcost, total_pcost
from engine.privacy import REPLACE_ONE, Budget
from engine.residuals import Axes, Space, Strategy
from engine.residuals.level_strategy import LevelStrategy
from engine.residuals.levels import AreaTree
from engine.residuals.marginals import IdentityStrategy, MarginalStrategy
from engine.workload import Schema

# local search: number of starts, and passes over the attributes per start
STARTS, MAX_PASSES = 6, 20
# number of bins into which the pairs of different cells of one attribute are divided
BINS = 6
# the best-first search stops after about MAX_STEPS bounds, or after at least 20 bounds if they have
# read MAX_ENTRIES array entries; a matrix of inner products has about MAX_ENTRIES entries at most
MAX_STEPS = 2_000
MAX_ENTRIES = 1 << 24
# the costs of all pairs are computed up to this many cells, if all blocks together have at most
# MAX_ENTRIES inner products of cells
MAX_PAIRED_CELLS = 512


# strategies whose inner products of two different columns have at most two values: one for pairs
# with the last cell, and one for all other pairs
EQUAL_PRODUCTS = (MarginalStrategy, IdentityStrategy)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two cells of the full domain, and the pcost of moving a record from one to the other.

    ``first`` and ``second`` map attribute names to cell numbers.
    """

    pcost: float
    first: Mapping[str, int]
    second: Mapping[str, int]


class ReplaceOne(NamedTuple):
    """Upper bound on the pcost of replacing a person's rows, and the worst pair of cells found."""

    bound: float
    worst: Pair


def row_pcosts(
    budget: Budget, joint: bool = False
) -> Callable[[Mapping[Space, Block], int], float]:
    """Return the function that computes the privacy cost of blocks for one row.

    The function takes the blocks and the public maximum of records.  It computes the cost of adding
    a row or of replacing one, depending on ``budget.neighbours``.  With ``joint``, the cost is the
    maximum over cells of the summed costs of the blocks, instead of the sum of their costs.
    """
    added = cells_pcost if joint else total_pcost
    return partial(replaced_pcost, added=added) if budget.neighbours == REPLACE_ONE else added


def person_pcost(
    blocks: Mapping[Space, Block], budget: Budget, max_records: int, joint: bool = False
) -> float:
    """Return the privacy cost of releasing blocks for one person, rounded up.

    The neighbours and the rows per person are those of the budget.

    Guarantee: k rows of one person change the answers by at most k times as much as one row, so the
    cost is at most k^2 times that of one row, whatever the cells of the rows.
    """
    return budget.of_person(row_pcosts(budget, joint)(blocks, max_records))


def replace_one_cost(
    blocks: Mapping[Space, Block],
    budget: Budget,
    max_records: int,
    schema: Schema,
    joint: bool = False,
) -> ReplaceOne:
    """Return the pcost of replacing all rows of one person: an upper bound and a costly pair."""
    measured = {name for block in blocks.values() for name in block.attributes}
    row_pair = worst_pair(
        blocks, {name: schema[name].size for name in schema.names if name in measured}
    )
    pair = replace(row_pair, pcost=row_pair.pcost * budget.rows_per_person**2)
    bound = replaced_pcost(blocks, max_records, cells_pcost if joint else total_pcost)
    return ReplaceOne(bound=budget.of_person(bound), worst=pair)


def replaced_pcost(
    blocks: Mapping[Space, Block],
    max_records: int,
    added: Callable[[Mapping[Space, Block], int], float] = total_pcost,
) -> float:
    """Return an upper bound on the privacy cost of replacing one record, rounded up.

    The cost includes the rounding of answers.  The old or the new record may lie outside the domain
    and is then in no table.  ``added`` returns an upper bound on the cost of adding a record.
    """
    block_list, added_pcost = list(blocks.values()), added(blocks, max_records)
    if any(b.law == "laplace" for b in block_list):
        # by the triangle inequality epsilon at most doubles, and the pcost is its square
        return 4.0 * added_pcost
    exact_cost = _largest_cost(block_list)
    if exact_cost is None:
        exact_cost = _largest_cost_bound(block_list)
    # Minkowski's inequality for |d + e|: d has the distances of the two columns in all blocks, and
    # e the effects of rounding on them
    rounding = [(b.sensitivity(max_records) - b.column_norm) / b.noise for b in block_list]
    rounding_norm = math.sqrt(math.fsum(e * e for e in rounding))
    pair_cost = (math.sqrt(exact_cost) + rounding_norm) ** 2 * ROUNDING_FACTOR
    return max(added_pcost, min(pair_cost, 4.0 * added_pcost))


def _largest_cost(blocks: Sequence[Block]) -> float | None:
    """Return the largest sum over blocks of |b_x - b_y|^2 / noise^2 over all pairs of cells.

    The cells are those of the table on all attributes of the blocks, and b_x is the column of a
    block's strategy for the cell x.  The result is None if there are too many pairs to compare.
    """
    sizes = {n: k for b in blocks for n, k in zip(b.attributes, b.sizes, strict=True)}
    cells = math.prod(sizes.values())
    if cells > MAX_PAIRED_CELLS or len(blocks) * cells**2 > MAX_ENTRIES:
        return None
    coordinates = dict(
        zip(sizes, np.indices(tuple(sizes.values())).reshape(-1, cells), strict=True)
    )
    inner = np.zeros((cells, cells))
    for block in blocks:
        block_cells = np.zeros(cells, np.int64)
        for name, size in zip(block.attributes, block.sizes, strict=True):
            block_cells = block_cells * size + coordinates[name]
        gram = _column_gram(block) / block.noise**2
        inner += gram[np.ix_(block_cells, block_cells)]
    norms = np.diagonal(inner)
    return float((norms[:, None] + norms - 2.0 * inner).max()) * ROUNDING_FACTOR


def _column_gram(block: Block) -> Array:
    """Return the inner products of the columns of a block's strategy, shape (cells, cells).

    The cells are in row-major order of the block's attributes.
    """
    order = [axis for axes, _ in block.factors for axis in axes]
    factor_sizes = [block.sizes[axis] for axis in order]
    matrices = [s.column_gram() if block.weights is None else s.rows for _, s in block.factors]
    product = np.ones((1, 1))
    for matrix in matrices:
        product = np.kron(product, matrix)
    if block.weights is not None:
        rows = block.weights.reshape(-1, 1) * product
        product = rows.T @ rows
    k = len(order)
    axes = [*np.argsort(order), *(k + np.argsort(order))]
    ordered = product.reshape(factor_sizes * 2).transpose(axes)
    return np.asarray(ordered.reshape(product.shape))


def _largest_cost_bound(blocks: Sequence[Block]) -> float:
    """Return an upper bound on the result of `_largest_cost` for any number of cells."""
    product_blocks = [
        b for b in blocks if b.weights is None and all(len(axes) == 1 for axes, _ in b.factors)
    ]
    bound = Distances(product_blocks).bound() if product_blocks else 0.0
    return bound + math.fsum(
        _block_bound(b) for b in blocks if not any(b is p for p in product_blocks)
    )


def _block_bound(block: Block) -> float:
    """Return an upper bound on |b_x - b_y|^2 / noise^2 over all pairs of columns of a block."""
    if block.weights is not None or len(block.factors) > 1:
        # a product has too many columns to compare in pairs, so use the triangle inequality
        return (2.0 * block.column_norm / block.noise) ** 2
    strategy = block.factors[0][1]
    if isinstance(strategy, IdentityStrategy):
        return 2.0 / block.noise**2 * ROUNDING_FACTOR
    rows = strategy.rows
    # |b_x - b_y|^2 = |b_x|^2 + |b_y|^2 - 2 b_x b_y for all pairs by a matrix product
    norms, best = np.einsum("rc,rc->c", rows, rows), 0.0
    step = max(1, MAX_ENTRIES // len(norms))
    for start in range(0, len(norms), step):
        inner = rows[:, start : start + step].T @ rows
        best = max(best, float((norms[start : start + step, None] + norms - 2.0 * inner).max()))
    return best / block.noise**2 * ROUNDING_FACTOR


class Distances:
    """Upper bound on the sum over blocks of |B (e_x - e_y)|^2 / noise^2.

    The blocks have one factor per attribute, and K_i is the Gram matrix of a factor's columns.  For
    every attribute, the pairs of cells (x_i, y_i) are divided into bins: equal cells, and different
    cells by the value K_i(x_i, y_i).  Within a bin every K_i lies in an interval, and so does the
    product of a block, which bounds the sum over blocks.  A best-first search assigns a bin to one
    attribute after the other.  It ends when the node with the largest bound has bins for all
    attributes, or after a number of steps; the largest bound of the open nodes is the result.

    Attributes
    ----------
    names : attributes of the blocks.
    attribute : index in ``names`` of the attribute of every factor, shape (blocks, factors).
    low, high : ends of the interval of K_i in every bin, shape (blocks, factors, bins).
    column_costs : largest |B e_x|^2 / noise^2 of every block, shape (blocks,).
    inverse_squared_noises : 1 / noise^2 of every block, shape (blocks,).
    order : indices in ``names`` in the order in which the search assigns bins.
    """

    def __init__(self, blocks: Sequence[Block]) -> None:
        # the first block of an attribute defines its bins, so blocks on few attributes come first
        blocks = sorted(blocks, key=lambda b: len(b.factors))
        self.names = list(dict.fromkeys(name for b in blocks for name in b.attributes))
        attribute_index = {name: i for i, name in enumerate(self.names)}
        width = max((len(b.factors) for b in blocks), default=0)
        # Arrays need equally many factors per block: pad with factors 1 on a dummy attribute, whose
        # number is len(names).
        self.attribute = np.full((len(blocks), width), len(self.names))
        self.low = np.ones((len(blocks), width, BINS + 2))
        self.high = np.ones((len(blocks), width, BINS + 2))
        self.column_costs = np.array([b.column_norm**2 / b.noise**2 for b in blocks])
        self.inverse_squared_noises = np.array([b.noise**-2.0 for b in blocks])
        bins: dict[str, Index] = {}
        interval_cache: dict[tuple[Strategy, str], tuple[Array, Array]] = {}
        factors = [(b.attributes[axis], s) for b in blocks for (axis,), s in b.factors]
        # on these attributes the bins of pairs of different cells need no Gram matrix
        strategies: dict[str, set[Strategy]] = {name: set() for name in self.names}
        for name, factor_strategy in factors:
            strategies[name].add(factor_strategy)
        equal_product_names = {
            n
            for n, on_name in strategies.items()
            if all(isinstance(s, EQUAL_PRODUCTS) for s in on_name)
        }
        trees = {n: _common_tree(on_name) for n, on_name in strategies.items()}
        for k, block in enumerate(blocks):
            for j, ((axis,), strategy) in enumerate(block.factors):
                name = block.attributes[axis]
                self.attribute[k, j] = attribute_index[name]
                key = (strategy, name)
                if (
                    key not in interval_cache
                    and name in equal_product_names
                    and isinstance(strategy, EQUAL_PRODUCTS)
                ):
                    interval_cache[key] = _equal_product_intervals(strategy)
                elif (
                    key not in interval_cache
                    and strategy.cells**2 > MAX_ENTRIES
                    and (tree := trees[name]) is not None
                ):
                    interval_cache[key] = _area_intervals(strategy, tree)
                elif key not in interval_cache:
                    gram = strategy.column_gram()
                    if name not in bins:
                        bins[name] = _assign_bins(gram)
                    interval_cache[key] = _intervals(gram, bins[name])
                self.low[k, j], self.high[k, j] = interval_cache[key]
        # attributes of blocks with large costs come first; the last entry is the dummy attribute
        cost_of_attribute = np.zeros(len(self.names) + 1)
        np.add.at(cost_of_attribute, self.attribute, self.column_costs[:, None])
        self.order = np.argsort(-cost_of_attribute[:-1])

    def bound_in_bins(self, bin_of: Index) -> float:
        """Return the bound on the pcost over pairs of cells that lie in one bin per attribute.

        ``bin_of``, shape (attributes,), holds 0 for all pairs, 1 for equal cells, and numbers from
        2 for the bins of different cells.
        """
        bins = np.append(bin_of, 1)[self.attribute]
        rows, columns = np.indices(bins.shape)
        low, high = self.low[rows, columns, bins], self.high[rows, columns, bins]
        # interval of every block's product of inner products, divided by its noise^2
        smallest = largest = self.inverse_squared_noises
        for j in range(bins.shape[1]):
            # the ends of a product of intervals are among the products of their ends, with any sign
            ends = np.stack(
                [
                    smallest * low[:, j],
                    smallest * high[:, j],
                    largest * low[:, j],
                    largest * high[:, j],
                ]
            )
            smallest, largest = ends.min(axis=0), ends.max(axis=0)
        # records that agree on all attributes of a block have the same column
        differs = (bins != 1).any(axis=1)
        return float(np.sum(2.0 * (self.column_costs - smallest) * differs)) * ROUNDING_FACTOR

    def bound(self) -> float:
        """Return an upper bound on the cost of any pair of cells, by best-first search."""
        start = np.zeros(len(self.names), dtype=np.int64)
        # nodes (-bound, number, attributes with a bin, bins); the number breaks ties of bounds,
        # because arrays cannot be compared
        tie_breaker = itertools.count()
        heap = [(-self.bound_in_bins(start), next(tie_breaker), 0, start)]
        steps = min(MAX_STEPS, max(20, MAX_ENTRIES // max(1, self.attribute.size)))
        while heap and steps > 0 and heap[0][2] < len(self.order):
            _, _, depth, bin_of = heapq.heappop(heap)
            for k in range(1, BINS + 2):
                # a bin without pairs has an infinite interval
                if np.isfinite(self.low[self.attribute == self.order[depth]][0, k]):
                    child = bin_of.copy()
                    child[self.order[depth]] = k
                    heapq.heappush(
                        heap, (-self.bound_in_bins(child), next(tie_breaker), depth + 1, child)
                    )
                    steps -= 1
        return max(-heap[0][0], 0.0)


def _assign_bins(gram: Array) -> Index:
    """Return the bin of every pair of cells, shape (n, n).

    The bin is 1 for two equal cells.  Pairs of different cells have bins from 2 to BINS + 1, divided
    at quantiles of their Gram entries.
    """
    n = len(gram)
    out = np.ones((n, n), dtype=np.int64)
    different = ~np.eye(n, dtype=bool)
    if n > 1:
        # quantiles give narrow bins at values that many pairs have, unlike equal widths
        cuts = np.unique(np.quantile(gram[different], np.linspace(0.0, 1.0, BINS + 1)[1:-1]))
        # subtract a margin, so that entries equal up to rounding are on the same side of a cut
        out[different] = 2 + np.searchsorted(
            cuts, gram[different] - 1e-12 * float(np.abs(gram).max())
        )
    return out


def _equal_product_intervals(strategy: MarginalStrategy | IdentityStrategy) -> tuple[Array, Array]:
    """Return the result of `_intervals` without the Gram matrix of the strategy's columns.

    All pairs of different cells form one bin, number 2.
    """
    low, high = np.full(BINS + 2, np.inf), np.full(BINS + 2, -np.inf)
    products = np.zeros(1) if isinstance(strategy, IdentityStrategy) else strategy.rows.products()
    for k, values in ((1, strategy.column_costs("gaussian")), (2, products)):
        low[k], high[k] = values.min(), values.max()
    low[0], high[0] = low[1:].min(), high[1:].max()
    return low, high


def _common_tree(strategies: Iterable[Strategy]) -> AreaTree | None:
    """Return the tree of strategies on the areas of one hierarchy, or of marginals; else None."""
    trees = {s.tree.key: s.tree for s in strategies if isinstance(s, LevelStrategy)}
    has_bins = all(isinstance(s, (LevelStrategy, *EQUAL_PRODUCTS)) for s in strategies)
    return next(iter(trees.values())) if has_bins and len(trees) == 1 else None


def _area_intervals(strategy: Strategy, tree: AreaTree) -> tuple[Array, Array]:
    """Return the result of `_intervals` without the Gram matrix of the strategy's columns.

    The bin of two different cells is that of the level of the smallest area that contains both;
    the finest levels share the last bin.
    """
    if isinstance(strategy, EQUAL_PRODUCTS):
        low, high = _equal_product_intervals(strategy)
        low[3:], high[3:] = low[2], high[2]
        return low, high
    assert isinstance(strategy, LevelStrategy)  # see `_common_tree`
    low, high = np.full(BINS + 2, np.inf), np.full(BINS + 2, -np.inf)
    costs = strategy.column_costs("gaussian")
    low[1], high[1] = costs.min(), costs.max()
    for level in range(tree.depth):
        k = 2 + min(level, BINS - 1)
        smallest, largest = strategy.product_range(level)
        low[k], high[k] = min(low[k], smallest), max(high[k], largest)
    low[0], high[0] = low[1:].min(), high[1:].max()
    return low, high


def _intervals(gram: Array, bins: Index) -> tuple[Array, Array]:
    """Return the smallest and the largest Gram entry of every bin, shape (BINS + 2,) each.

    Parameters
    ----------
    gram : Gram matrix of the columns of a strategy, shape (n, n).
    bins : bin of every pair of cells, from 1; see `_assign_bins`.

    Returns
    -------
    low, high : entry 0 is over all pairs.  A bin without pairs has the entries inf and -inf.
    """
    low, high = np.full(BINS + 2, np.inf), np.full(BINS + 2, -np.inf)
    np.minimum.at(low, bins, gram)
    np.maximum.at(high, bins, gram)
    low[0], high[0] = gram.min(), gram.max()
    return low, high


def worst_pair(blocks: Mapping[Space, Block], sizes: Mapping[str, int]) -> Pair:
    """Return the most costly pair of cells that a local search from several starts reaches.

    Each step changes one attribute of one record to the most costly value.  The result is
    deterministic.

    Parameters
    ----------
    sizes : number of cells of every attribute in a block.
    """
    # a fixed seed is safe: the starts depend only on the public plan
    names, rng = list(sizes), np.random.default_rng(0)
    blocks_of_name = {n: [b for b in blocks.values() if n in b.attributes] for n in names}
    best = Pair(pcost=0.0, first=dict.fromkeys(names, 0), second=dict.fromkeys(names, 0))
    for start in range(STARTS):
        x = {n: 0 if start == 0 else int(rng.integers(sizes[n])) for n in names}
        y = {n: sizes[n] - 1 if start == 0 else int(rng.integers(sizes[n])) for n in names}
        for _ in range(MAX_PASSES):
            improved = False
            for name in names:
                for record, other in ((x, y), (y, x)):
                    costs = _added_costs(
                        blocks_of_name[name], record, other, name, np.arange(sizes[name])
                    )
                    # a gain within rounding errors could make the search cycle
                    if float(costs.max()) > costs[record[name]] * (1.0 + 1e-12):
                        record[name], improved = int(costs.argmax()), True
            if not improved:
                break
        if (cost := pair_pcost(blocks, x, y)) > best.pcost:
            best = Pair(pcost=cost, first=dict(x), second=dict(y))
    return best


def pair_pcost(
    blocks: Mapping[Space, Block], first: Mapping[str, int], second: Mapping[str, int]
) -> float:
    """Return the pcost of replacing a record by one in another cell, without grid rounding.

    ``first`` and ``second`` map attribute names to cell numbers.
    """
    # epsilons of blocks add up and are squared at the end; costs in zCDP add up directly
    total = float(_added_costs(list(blocks.values()), first, second, "", np.zeros(1, np.int64))[0])
    return total**2 if any(b.law == "laplace" for b in blocks.values()) else total


def _added_costs(
    blocks: Sequence[Block],
    record: Mapping[str, int],
    other: Mapping[str, int],
    name: str,
    values: Index,
) -> Array:
    """Return the summed costs of replacing ``record`` by ``other``, if ``name`` had each value.

    Parameters
    ----------
    record, other : mappings from attribute name to cell number.
    name : attribute of ``record`` that takes the ``values``; empty to keep the record.

    Returns
    -------
    Sums over blocks of pcosts for Gaussian noise and of epsilons for Laplace noise, shape
    (values,).
    """
    total = np.zeros(len(values))
    for block in blocks:
        if block.law == "laplace" or block.weights is not None:
            difference = _columns(block, record, name, values) - _columns(
                block, other, "", values[:1]
            )
            if block.law == "laplace":
                total += np.abs(difference).sum(axis=1) * STD_PER_SCALE["laplace"] / block.noise
            else:
                total += np.einsum("vr,vr->v", difference, difference) / block.noise**2
        else:
            total += _distances(block, record, other, name, values) / block.noise**2
    return total


def _cells(
    block: Block, axes: Axes, record: Mapping[str, int], name: str, values: Index, sizes: Axes
) -> Index:
    """Return the numbers of the cells of a record in the table of one factor.

    The attribute ``name`` of the record takes each of the values.  Shape (values,), or (1,) if the
    factor is not on this attribute.
    """
    if not axes:
        return np.zeros(1, np.int64)
    coordinates = [
        values if block.attributes[a] == name else record[block.attributes[a]] for a in axes
    ]
    return np.atleast_1d(np.ravel_multi_index(np.broadcast_arrays(*coordinates), sizes))


def _distances(
    block: Block, record: Mapping[str, int], other: Mapping[str, int], name: str, values: Index
) -> Array:
    """Return |B (e_x - e_y)|^2 for the cells x of ``record`` and y of ``other``, shape (values,).

    The attribute ``name`` of ``record`` takes each of the values.
    """
    square_x, square_y, inner = np.ones(1), 1.0, np.ones(1)
    for axes, strategy in block.factors:
        x = _cells(block, axes, record, name, values, strategy.sizes)
        y = _cells(block, axes, other, "", values, strategy.sizes)[0]
        squares, square, products = strategy.column_products(x, y)
        square_x, square_y, inner = square_x * squares, square_y * square, inner * products
    return np.maximum(square_x + square_y - 2.0 * inner, 0.0)


def _columns(block: Block, record: Mapping[str, int], name: str, values: Index) -> Array:
    """Return the columns of a block's strategy for the cells of a record.

    The attribute ``name`` of the record takes each of the values.  Shape (values, rows of the
    strategy), or (1, rows of the strategy) if the block is not on this attribute.
    """
    out = np.ones((1, 1))
    for axes, strategy in block.factors:
        factor_columns = strategy.rows[
            :, _cells(block, axes, record, name, values, strategy.sizes)
        ].T
        out = (out[:, :, None] * factor_columns[:, None, :]).reshape(
            max(len(out), len(factor_columns)), -1
        )
    return out if block.weights is None else out * block.weights.ravel()
