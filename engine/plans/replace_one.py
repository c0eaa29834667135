"""Privacy cost if neighbours replace rows.

Replacing a row in cell x by a row in cell y changes the answers of the strategy B of a block by
B (e_x - e_y), where e_x is the unit vector of cell x.  With K = B^T B / noise^2, the cost of the
pair (x, y) is the sum over blocks of K(x, x) + K(y, y) - 2 K(x, y).  If the inner products of
columns are nonnegative, this is at most twice the cost of adding a row.  A measurement of the total
costs nothing, because a replacement does not change the total.

A row can also be replaced by a row that is not counted, because it is outside the domain or
rejected.  This changes the answers by B e_x, like adding the row.  This case is the more costly one
if most of the budget is spent on the total.

On a small domain the costs of all pairs of cells are computed.  On a larger domain, if a block has
one factor per attribute, K is a Kronecker product.  Interval arithmetic over the factors, jointly
for all such blocks, gives an upper bound on the cost of the worst pair.  For all other blocks, an
upper bound is computed per block.  A local search over pairs gives a lower bound.
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
from engine.residuals.level_solver import AreaTree
from engine.residuals.level_strategy import LevelStrategy
from engine.residuals.marginals import IdentityStrategy, MarginalStrategy
from engine.workload import Schema

# Local search: number of starts, and largest number of passes over the attributes per start.
STARTS, MAX_PASSES = 6, 20
# Number of bins into which the pairs of different cells of one attribute are divided.
BINS = 6
# The best-first search computes at most about MAX_STEPS bounds, and fewer if there are many blocks.
MAX_STEPS = 2_000
# Approximate limit for the number of entries of a matrix of inner products of columns.  All bounds
# of one best-first search together have at most as many entries, unless there are at most 20
# bounds.
MAX_ENTRIES = 1 << 24
# The cost of every pair of cells is computed only if the table on all attributes of the blocks has
# at most this number of cells, and the number of blocks times cells^2 is at most MAX_ENTRIES.
# Otherwise bounds on the costs are computed.
MAX_PAIRED_CELLS = 512


# In these strategies, the inner product of the columns of two different cells has at most two
# values: one for pairs that contain the last cell of the attribute, and one for all other pairs.
EQUAL_PRODUCTS = (MarginalStrategy, IdentityStrategy)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two cells of the full domain, and the pcost of moving a record from one cell to the other.

    ``first`` and ``second`` map the name of each attribute to the number of a cell.
    """

    pcost: float
    first: Mapping[str, int]
    second: Mapping[str, int]


class ReplaceOne(NamedTuple):
    """Bounds on the pcost of replacing the rows of a person.

    Attributes
    ----------
    bound : upper bound over all pairs of cells.
    worst : the most costly pair of cells that a local search finds; its pcost is a lower bound.
    """

    bound: float
    worst: Pair


def row_pcosts(
    budget: Budget, joint: bool = False
) -> Callable[[Mapping[Space, Block], int], float]:
    """Return a function of blocks and max_records that computes the pcost of a release for one row.

    Depending on ``budget.neighbours``, the function computes the pcost of adding or of replacing a
    row.  If ``joint`` is True, the pcost of adding a row is the maximum over cells of the summed
    costs of the blocks.  If ``joint`` is False, it is the sum of the costs of the blocks.
    """
    added = cells_pcost if joint else total_pcost
    return partial(replaced_pcost, added=added) if budget.neighbours == REPLACE_ONE else added


def person_pcost(
    blocks: Mapping[Space, Block], budget: Budget, max_records: int, joint: bool = False
) -> float:
    """Return the pcost of releasing blocks for one person, rounded up.

    The budget defines the neighbours and the number k of rows per person.

    Guarantee: k rows, in any cells, change the answers by at most k times the change by one row, so
    k^2 times the cost for one row is an upper bound.
    """
    return budget.of_person(row_pcosts(budget, joint)(blocks, max_records))


def replace_one_cost(
    blocks: Mapping[Space, Block],
    budget: Budget,
    max_records: int,
    schema: Schema,
    joint: bool = False,
) -> ReplaceOne:
    """Return an upper bound and a lower bound on the pcost of replacing all rows of one person.

    The lower bound is the pcost of a pair of cells.
    """
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
    """Return an upper bound on the pcost of replacing one record, rounded up.

    The bound includes the rounding of answers to the grid.  It also holds if the old or the new
    record is outside the domain and therefore in no table.

    Parameters
    ----------
    added : function of blocks and max_records that returns an upper bound on the pcost of adding a
        record.
    """
    block_list, added_pcost = list(blocks.values()), added(blocks, max_records)
    if any(b.law == "laplace" for b in block_list):
        # By the triangle inequality, replacing a record costs at most twice the epsilon of adding
        # one. A factor of 2 in epsilon is a factor of 4 in pcost.
        return 4.0 * added_pcost
    cost_without_rounding = _largest_cost(block_list)
    if cost_without_rounding is None:
        cost_without_rounding = _largest_cost_bound(block_list)
    # For one pair of cells, let the vector d have the distance of their two columns in each block,
    # divided by the noise, and let e have the effects of rounding.  The cost of the pair is
    # |d + e|^2 <= (|d| + |e|)^2.
    rounding = [(b.sensitivity(max_records) - b.column_norm) / b.noise for b in block_list]
    rounding_norm = math.sqrt(math.fsum(e * e for e in rounding))
    pair_cost = (math.sqrt(cost_without_rounding) + rounding_norm) ** 2 * ROUNDING_FACTOR
    # A replacement by an uncounted row costs as much as adding a row.  By the triangle inequality,
    # a replacement by a counted row costs at most four times as much.
    return max(added_pcost, min(pair_cost, 4.0 * added_pcost))


def _largest_cost(blocks: Sequence[Block]) -> float | None:
    """Return the largest sum over blocks of |b_x - b_y|^2 / noise^2 over all pairs of cells.

    The cells are those of the table on all attributes of the blocks, and b_x is the column of the
    strategy of a block for cell x.  The result is None if there are too many pairs to compare.
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
        # For every cell of the full table: the row-major number of the cell in the block's table
        # that contains it.
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
    product: Array = np.ones((1, 1))
    for matrix in matrices:
        product = np.asarray(np.kron(product, matrix), dtype=float)
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
    """Return an upper bound on |b_x - b_y|^2 / noise^2 over all pairs of columns b of a block."""
    if block.weights is not None or len(block.factors) > 1:
        # A Kronecker product has too many columns to compare all pairs.  By the triangle
        # inequality, the distance of two columns is at most twice the largest norm of a column.
        return (2.0 * block.column_norm / block.noise) ** 2
    strategy = block.factors[0][1]
    if isinstance(strategy, IdentityStrategy):
        return 2.0 / block.noise**2 * ROUNDING_FACTOR
    rows = strategy.rows
    # All pairs are computed by matrix products: |b_x - b_y|^2 = |b_x|^2 + |b_y|^2 - 2 b_x b_y.
    norms, best = np.einsum("rc,rc->c", rows, rows), 0.0
    step = max(1, MAX_ENTRIES // len(norms))
    for start in range(0, len(norms), step):
        inner = rows[:, start : start + step].T @ rows
        best = max(best, float((norms[start : start + step, None] + norms - 2.0 * inner).max()))
    return best / block.noise**2 * ROUNDING_FACTOR


class Distances:
    """Upper bound on the sum over blocks of |B (e_x - e_y)|^2 / noise^2, for all pairs of cells.

    The blocks have one factor per attribute.  Let K_i be the Gram matrix of the columns of a factor
    on attribute i.  The pairs of cells (x_i, y_i) of each attribute are divided into bins: one bin
    of equal cells, and bins of different cells with similar values K_i(x_i, y_i).  If a bin is
    known for each attribute, every K_i lies in a known interval.  From these intervals, interval
    arithmetic bounds the product of the K_i of each block, and so the sum over blocks.

    A best-first search chooses a bin for one attribute after the other.  It ends when the node with
    the largest bound has a bin for every attribute, or after a limited number of steps.  The result
    is the largest bound of the open nodes.

    Attributes
    ----------
    names : attributes of the blocks.
    attribute : index in ``names`` of the attribute of each factor, shape (blocks, factors).
    low, high : ends of the interval of K_i in each bin, shape (blocks, factors, bins).
    column_costs : largest |B e_x|^2 / noise^2 of each block, shape (blocks,).
    inverse_squared_noises : 1 / noise^2 of each block, shape (blocks,).
    order : indices in ``names`` in the order in which the search chooses bins.
    """

    def __init__(self, blocks: Sequence[Block]) -> None:
        # If Gram matrices are computed for an attribute, the first block on this attribute defines
        # the bins.  Blocks on few attributes come first.
        blocks = sorted(blocks, key=lambda b: len(b.factors))
        self.names = list(dict.fromkeys(name for b in blocks for name in b.attributes))
        attribute_index = {name: i for i, name in enumerate(self.names)}
        width = max((len(b.factors) for b in blocks), default=0)
        # The arrays below have room for ``width`` factors per block.  In blocks with fewer factors,
        # the remaining entries stand for a factor that is always 1, on an additional attribute with
        # the index len(names).
        self.attribute = np.full((len(blocks), width), len(self.names))
        self.low = np.ones((len(blocks), width, BINS + 2))
        self.high = np.ones((len(blocks), width, BINS + 2))
        self.column_costs = np.array([b.column_norm**2 / b.noise**2 for b in blocks])
        self.inverse_squared_noises = np.array([b.noise**-2.0 for b in blocks])
        bins: dict[str, Index] = {}
        interval_cache: dict[tuple[Strategy, str], tuple[Array, Array]] = {}
        factors = [(b.attributes[axis], s) for b in blocks for (axis,), s in b.factors]
        # The Gram matrix of an attribute with many cells would be too large.  If possible, the
        # intervals of its Gram entries are computed without the matrix.
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
        # The search begins with the attributes of costly blocks.  The last entry belongs to the
        # additional attribute, which needs no bin.
        cost_of_attribute = np.zeros(len(self.names) + 1)
        np.add.at(cost_of_attribute, self.attribute, self.column_costs[:, None])
        self.order = np.argsort(-cost_of_attribute[:-1])

    def bound_in_bins(self, bin_of: Index) -> float:
        """Return the bound on the pcost over all pairs of cells in one bin per attribute.

        ``bin_of``, shape (attributes,), has the bin of each attribute: 1 for equal cells, 2 and
        more for the bins of different cells, 0 for all pairs of cells.
        """
        # Blocks with few factors are filled up with factors of 1 on an additional attribute, which
        # gets the bin of equal cells.
        bins = np.append(bin_of, 1)[self.attribute]
        rows, columns = np.indices(bins.shape)
        low, high = self.low[rows, columns, bins], self.high[rows, columns, bins]
        # ``smallest`` and ``largest`` bound the product of the Gram entries of the factors of each
        # block, divided by its noise^2.
        smallest = largest = self.inverse_squared_noises
        for j in range(bins.shape[1]):
            # The ends of a product of two intervals are among the four products of their ends.
            ends = np.stack(
                [
                    smallest * low[:, j],
                    smallest * high[:, j],
                    largest * low[:, j],
                    largest * high[:, j],
                ]
            )
            smallest, largest = ends.min(axis=0), ends.max(axis=0)
        # The cost K(x, x) + K(y, y) - 2 K(x, y) of a block is at most 2 (column cost - smallest).
        # It is 0 if the two cells agree in all attributes of the block, because their columns are
        # then equal.
        differs = (bins != 1).any(axis=1)
        return float(np.sum(2.0 * (self.column_costs - smallest) * differs)) * ROUNDING_FACTOR

    def bound(self) -> float:
        """Return an upper bound on the cost of any pair of cells, by best-first search.

        The pairs are divided by the bin of their Gram entry on one attribute after another.
        """
        # bin 0 of an attribute stands for all its pairs of cells
        start = np.zeros(len(self.names), dtype=np.int64)
        # A node is (-bound, number, how many attributes have a bin, bins).  The number decides
        # between equal bounds, because arrays cannot be compared.
        tie_breaker = itertools.count()
        heap = [(-self.bound_in_bins(start), next(tie_breaker), 0, start)]
        steps = min(MAX_STEPS, max(20, MAX_ENTRIES // max(1, self.attribute.size)))
        # The first node has the largest bound.  If all its attributes have a bin, it cannot be
        # divided, so the bound cannot decrease any more.
        while heap and steps > 0 and heap[0][2] < len(self.order):
            _, _, depth, bin_of = heapq.heappop(heap)
            for k in range(1, BINS + 2):
                # A bin without pairs of cells has an infinite lower end and is skipped.
                if np.isfinite(self.low[self.attribute == self.order[depth]][0, k]):
                    child = bin_of.copy()
                    child[self.order[depth]] = k
                    heapq.heappush(
                        heap, (-self.bound_in_bins(child), next(tie_breaker), depth + 1, child)
                    )
                    steps -= 1
        return max(-heap[0][0], 0.0)


def _assign_bins(gram: Array) -> Index:
    """Return the bin of every pair of cells of an attribute, shape (n, n).

    Two equal cells have bin 1.  Pairs of different cells have the bins 2 to BINS + 1, which are
    divided at quantiles of their Gram entries.
    """
    n = len(gram)
    bins = np.ones((n, n), dtype=np.int64)
    different = ~np.eye(n, dtype=bool)
    if n > 1:
        # The bins are bounded by quantiles.  Where many pairs have similar Gram entries, these bins
        # are narrower than bins of equal width.
        cuts = np.unique(np.quantile(gram[different], np.linspace(0.0, 1.0, BINS + 1)[1:-1]))
        # A small margin is subtracted, so that entries that are equal up to rounding have one bin.
        bins[different] = 2 + np.searchsorted(
            cuts, gram[different] - 1e-12 * float(np.abs(gram).max())
        )
    return bins


def _equal_product_intervals(strategy: MarginalStrategy | IdentityStrategy) -> tuple[Array, Array]:
    """Return bounds ``low, high`` on the Gram entries of each bin, without the Gram matrix.

    Both have shape (BINS + 2,), and are inf and -inf for a bin without pairs.  Bin 1 has the pairs
    of equal cells, bin 2 all pairs of different cells; entry 0 is over all pairs.
    """
    low, high = np.full(BINS + 2, np.inf), np.full(BINS + 2, -np.inf)
    products = np.zeros(1) if isinstance(strategy, IdentityStrategy) else strategy.rows.products()
    for k, values in ((1, strategy.column_costs("gaussian")), (2, products)):
        low[k], high[k] = values.min(), values.max()
    low[0], high[0] = low[1:].min(), high[1:].max()
    return low, high


def _common_tree(strategies: Iterable[Strategy]) -> AreaTree | None:
    """Return the tree of areas that all instances of `LevelStrategy` in ``strategies`` share.

    The result is None if there is no `LevelStrategy`, if two of them have different trees, or if a
    strategy is neither a `LevelStrategy` nor of a type in `EQUAL_PRODUCTS`.
    """
    trees = {s.tree.key: s.tree for s in strategies if isinstance(s, LevelStrategy)}
    has_bins = all(isinstance(s, (LevelStrategy, *EQUAL_PRODUCTS)) for s in strategies)
    return next(iter(trees.values())) if has_bins and len(trees) == 1 else None


def _area_intervals(strategy: Strategy, tree: AreaTree) -> tuple[Array, Array]:
    """Return bounds ``low, high`` on the Gram entries of each bin, without the Gram matrix.

    Both have shape (BINS + 2,).  Bin 1 has the pairs of equal cells.  Bin 2 + k has the pairs of
    different cells whose smallest common area is on level k of the tree; the last bin also has the
    pairs of all finer levels.  Entry 0 is over all pairs.
    """
    if isinstance(strategy, EQUAL_PRODUCTS):
        # these strategies have no areas, so every bin of different cells gets the interval of all
        # pairs of different cells
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
    """Return the smallest and the largest Gram entry of each bin.

    Parameters
    ----------
    gram : Gram matrix of the columns of a strategy, shape (n, n).
    bins : bin of every pair of cells, shape (n, n), as returned by `_assign_bins`.

    Returns
    -------
    low, high : smallest and largest entry of each bin, shape (BINS + 2,); inf and -inf for a bin
        without pairs.  Entry 0 is over all pairs.
    """
    low, high = np.full(BINS + 2, np.inf), np.full(BINS + 2, -np.inf)
    np.minimum.at(low, bins, gram)
    np.maximum.at(high, bins, gram)
    low[0], high[0] = gram.min(), gram.max()
    return low, high


def worst_pair(blocks: Mapping[Space, Block], sizes: Mapping[str, int]) -> Pair:
    """Return the most costly pair of cells that a local search finds.

    Each step of the search changes one attribute of one of the two records to the most costly
    value.  The result is deterministic.

    Parameters
    ----------
    sizes : name of each attribute of the blocks -> its number of cells.
    """
    # The seed can be fixed, because the search uses only the public plan.
    names, rng = list(sizes), np.random.default_rng(0)
    blocks_of_name = {n: [b for b in blocks.values() if n in b.attributes] for n in names}
    best = Pair(pcost=0.0, first=dict.fromkeys(names, 0), second=dict.fromkeys(names, 0))
    # The first start is a pair of opposite corners of the domain; all other starts are random.
    for start in range(STARTS):
        x = {n: 0 if start == 0 else int(rng.integers(sizes[n])) for n in names}
        y = {n: sizes[n] - 1 if start == 0 else int(rng.integers(sizes[n])) for n in names}
        for _ in range(MAX_PASSES):
            improved = False
            for name in names:
                for record, other in ((x, y), (y, x)):
                    costs = _replacement_costs(
                        blocks_of_name[name], record, other, name, np.arange(sizes[name])
                    )
                    # The search could cycle if it followed gains within rounding errors.
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
    """Return the pcost of replacing a record by a record in another cell, without grid rounding.

    ``first`` and ``second`` map the name of each attribute to the number of a cell.
    """
    # With Laplace noise, the summed epsilon is squared.  Costs of Gaussian noise are summed
    # directly.
    total = float(
        _replacement_costs(list(blocks.values()), first, second, "", np.zeros(1, np.int64))[0]
    )
    return total**2 if any(b.law == "laplace" for b in blocks.values()) else total


def _replacement_costs(
    blocks: Sequence[Block],
    record: Mapping[str, int],
    other: Mapping[str, int],
    name: str,
    values: Index,
) -> Array:
    """Return the cost of replacing ``record`` by ``other``, for several values of one attribute.

    Parameters
    ----------
    record, other : name of each attribute -> number of a cell.
    name : attribute of ``record`` that is set to each of the ``values`` in turn; "" for none.
    values : numbers of cells.

    Returns
    -------
    sum over blocks of pcosts (Gaussian noise) or epsilons (Laplace noise), shape (values,).
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
    """Return the cell of a record in the table of one factor, for several values of one attribute.

    The attribute ``name`` of the record is set to each of the ``values`` in turn.  The result has
    shape (values,), or (1,) if the factor is not on this attribute.
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

    The attribute ``name`` of ``record`` is set to each of the ``values`` in turn.
    """
    square_x, square_y, inner = np.ones(1), 1.0, np.ones(1)
    for axes, strategy in block.factors:
        x = _cells(block, axes, record, name, values, strategy.sizes)
        y = _cells(block, axes, other, "", values, strategy.sizes)[0]
        squares, square, products = strategy.column_products(x, y)
        square_x, square_y, inner = square_x * squares, square_y * square, inner * products
    return np.maximum(square_x + square_y - 2.0 * inner, 0.0)


def _columns(block: Block, record: Mapping[str, int], name: str, values: Index) -> Array:
    """Return the columns of the strategy of a block for the cells of a record.

    The attribute ``name`` of the record is set to each of the ``values`` in turn.  The result has
    shape (values, measurements), or (1, measurements) if the block is not on this attribute.
    """
    columns = np.ones((1, 1))
    for axes, strategy in block.factors:
        factor_columns = strategy.rows[
            :, _cells(block, axes, record, name, values, strategy.sizes)
        ].T
        columns = (columns[:, :, None] * factor_columns[:, None, :]).reshape(
            max(len(columns), len(factor_columns)), -1
        )
    return columns if block.weights is None else columns * block.weights.ravel()
