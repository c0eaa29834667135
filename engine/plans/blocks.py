"""Blocks, their calibration to a budget, and the privacy cost of the released integers.

A block is a strategy matrix B on the cells x of a table, with noise.  A release computes the
integers rint(B x / grid) and adds discrete noise of the scale noise / grid, which is an integer.
For two tables that differ in one record, the Euclidean distance of these integers is at most

    s (1 + gamma (2 records + 1)) / grid + sqrt(measurements),

where s is the largest column norm of B, records is the number of records, and measurements is the
number of rows of B.  The last term is the effect of rounding to integers: each rounding moves an
answer by at most one half.  The factor gamma bounds floating-point errors: the computed B x has an
error of at most gamma ||B|| records, with gamma = K u / (1 - K u) for unit roundoff u, where K is
the largest number of roundings of a term of an answer (`Strategy.rounding_terms`).  The privacy
cost (pcost) of a block is the square of this distance divided by (noise / grid)^2, which is twice
the exact zCDP parameter rho of the discrete Gaussian (Canonne, Kamath and Steinke 2020, theorem
14).

For Laplace noise the distance is in the L1 norm, and rounding adds at most 1 per answer.  If block
k is epsilon_k-DP, all blocks together are E-DP with E the sum of the epsilon_k, and therefore
(E^2 / 2)-zCDP (Bun and Steinke 2016, proposition 4).
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from engine._arrays import Array
from engine.errors import PlanError
from engine.privacy import MAX_GRID_LOAD, MAX_GRID_STEP
from engine.residuals import Axes, Space, Strategy, contract, group_axes
from engine.residuals.basis import ungroup_axes
from engine.residuals.strategy import MAX_UNMEASURED_SHARE, MeasuredPart, joint_sensitivity

if TYPE_CHECKING:
    import pandas as pd


# The ratio noise / grid is 2^30 to 2^31, or smaller if answers would otherwise not fit 64 bits.
GRID_BITS = 30
# Standard deviation of the noise, in counts, from which a plan is refused.
MOST_NOISE = 1e150
# Largest relative error of one operation on doubles.
UNIT_ROUNDOFF = 2.0**-53
# Computed privacy costs are multiplied by this factor, which exceeds the floating-point error of
# norms and of sums over blocks.
ROUNDING_FACTOR = 1.0 + 1e-12
MAX_RECORDS = 10**8
# The costs of the columns of a strategy count as unequal if they differ by more than this share of
# the largest cost.
UNEQUAL_COSTS = 1e-6
# Largest number of strategies for which `joint_share` computes the joint sensitivity.
MAX_JOINT = 3_000
# Smallest saving, as a share of the sum of the blocks' privacy costs, for which a plan is charged
# the joint cost of its blocks (the maximum over cells of the summed costs) instead of this sum.
# The lower bound on the error of plans with joint costs is looser, so a smaller saving would widen
# the gap of the certificate by more than it lowers the error.
MIN_JOINT_SAVING = 5e-5
# Standard deviation of noise with scale 1.
STD_PER_SCALE = {"gaussian": 1.0, "laplace": math.sqrt(2.0)}


@dataclass(frozen=True, kw_only=True, eq=False)
class Block:
    """A strategy on one table, with its noise.

    The strategy measures one residual space (the part of a table that no smaller attribute set
    contains), several residual spaces jointly, or the cells of a table.

    Attributes
    ----------
    attributes : attributes of the measured table, in schema order.
    factors : pairs (axes, strategy) on disjoint sets of axes of the table.  The strategy of the
        block is the Kronecker product of these strategies.
    weights : multipliers of the rows of the product, one axis per factor; None if all are 1.
    noise : standard deviation of the noise on every strategy answer, in counts.
    grid : distance between neighbouring values of a released answer, in counts; a power of two.
    union : residual spaces that the strategy measures jointly.  The estimates of the block are the
        residual coordinates of these spaces, one space after the other.  Empty if the block does
        not measure several spaces.
    law : distribution of the noise, "gaussian" or "laplace".  The scale of the noise is an integer
        multiple of ``grid``.
    """

    attributes: Space
    factors: tuple[tuple[Axes, Strategy], ...]
    noise: float
    grid: float
    law: str = "gaussian"
    weights: Array | None = None
    union: tuple[Space, ...] = ()

    @property
    def spaces(self) -> tuple[Space, ...]:
        """Residual spaces that the block measures."""
        return self.union or (self.attributes,)

    @property
    def measurements(self) -> int:
        """Number of strategy answers."""
        return math.prod(len(s.rows) for _, s in self.factors)

    @property
    def sets(self) -> list[Axes]:
        """Axes of each factor."""
        return [axes for axes, _ in self.factors]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of cells of each attribute."""
        return self._in_axis_order([s.sizes for _, s in self.factors])

    @property
    def coordinates(self) -> tuple[int, ...]:
        """Shape of the estimates: one axis per attribute.

        A block that measures several residual spaces jointly has a single axis for all estimates.
        """
        if self.union:
            return (math.prod(s.dimension for _, s in self.factors),)
        return self._in_axis_order([s.coordinates for _, s in self.factors])

    def _in_axis_order(self, lengths_by_factor: Sequence[Sequence[int]]) -> tuple[int, ...]:
        """Return the length of each axis of the table of the block.

        ``lengths_by_factor`` has one list per factor, with the length of each of its axes.
        """
        by_axis = {
            a: n
            for axes, lengths in zip(self.sets, lengths_by_factor, strict=True)
            for a, n in zip(axes, lengths, strict=True)
        }
        return tuple(by_axis[a] for a in range(len(by_axis)))

    @property
    def grid_noise(self) -> int:
        """Scale of the discrete noise in grid units, an integer."""
        return round(self.noise / STD_PER_SCALE[self.law] / self.grid)

    def sensitivity(self, max_records: int) -> float:
        """Return the largest change of the released answers by adding one record, in counts.

        The change is the Euclidean norm of the difference of the answers for Gaussian noise, and
        the L1 norm for Laplace noise.  It includes rounding to the grid, and floating-point errors
        with up to ``max_records`` records.
        """
        if self.law == "laplace":
            norm = math.prod(s.column_sum for _, s in self.factors)
            return float(self._add_rounding(norm, max_records))
        return float(self._add_rounding(self.column_norm, max_records))

    @property
    def column_norm(self) -> float:
        """Largest Euclidean norm of a column of the strategy matrix."""
        if self.weights is None:
            return math.prod(s.column_norm for _, s in self.factors)
        return math.sqrt(float(self.column_squares().max()))

    def column_squares(self) -> Array:
        """Return the squared Euclidean norm of the column of each cell, shape (n_1, ..., n_k)."""
        if self.weights is None:
            # Column norms of a Kronecker product are products of the column norms of the factors.
            squares = [s.column_costs("gaussian")[None] for _, s in self.factors]
            by_factor = contract(np.ones((1,) * len(squares)), squares)
        else:
            by_factor = contract(self.weights**2, [s.rows**2 for _, s in self.factors])
        return ungroup_axes(by_factor, self.sets, self.sizes)

    def cell_pcosts(self, max_records: int) -> Array:
        """Return the pcost of adding one record to each cell, shape (n_1, ..., n_k)."""
        return np.asarray(
            (self._add_rounding(np.sqrt(self.column_squares()), max_records) / self.noise) ** 2
        )

    def _add_rounding(self, norm: Any, max_records: int) -> Any:
        """Return column norms, increased by the effects of grid rounding and of float errors."""
        rounding = self.measurements if self.law == "laplace" else math.sqrt(self.measurements)
        # One term is added for the multiplication of an answer by its weight.
        terms = sum(s.rounding_terms for _, s in self.factors) + 1
        gamma = terms * UNIT_ROUNDOFF / (1.0 - terms * UNIT_ROUNDOFF)
        return (
            norm * ROUNDING_FACTOR * (1.0 + gamma * (2.0 * max_records + 1.0))
            + self.grid * rounding
        )

    def pcost(self, max_records: int) -> float:
        """Return the pcost of releasing the block if there are at most ``max_records`` records."""
        return (self.sensitivity(max_records) * STD_PER_SCALE[self.law] / self.noise) ** 2


@dataclass(frozen=True, kw_only=True, eq=False)
class LazyBlocks(Mapping[Space, Block]):
    """Mapping from key to block that creates each block on first access and caches it.

    A plan can have 100,000 blocks, but only a few different strategies and noises.  Blocks that
    differ only in their attributes and residual spaces form a class and are created from one
    prototype.

    Attributes
    ----------
    prototypes : one block per class.
    class_of_key : key of a block -> index of its class in ``prototypes``.
    attributes : key of a block -> its attributes; only for blocks whose key is not their
        attributes.
    unions : key of a block -> its residual spaces; only for blocks that measure several jointly.
    """

    prototypes: Sequence[Block]
    class_of_key: Mapping[Space, int]
    attributes: Mapping[Space, Space] = field(default_factory=dict)
    unions: Mapping[Space, tuple[Space, ...]] = field(default_factory=dict)
    _blocks: dict[Space, Block] = field(default_factory=dict)

    def __getitem__(self, key: Space) -> Block:
        block = self._blocks.get(key)
        if block is None:
            prototype = self.prototypes[self.class_of_key[key]]
            block = replace(
                prototype, attributes=self.attributes.get(key, key), union=self.unions.get(key, ())
            )
            # If several threads create the same block, all threads return the block that was stored
            # first.
            block = self._blocks.setdefault(key, block)
        return block

    def __iter__(self) -> Iterator[Space]:
        return iter(self.class_of_key)

    def __len__(self) -> int:
        return len(self.class_of_key)

    @property
    def plain(self) -> bool:
        """Whether the key of every block is the residual space that the block measures."""
        return not self.attributes and not self.unions

    def prototypes_by_space(self) -> Iterator[tuple[Space, Block]]:
        """Yield pairs (measured residual space, prototype of the block that measures it).

        A prototype has the strategy and the noise of the block, but can have other attributes.
        """
        for space, key in self.block_keys():
            yield space, self.prototypes[self.class_of_key[key]]

    def block_keys(self) -> Iterator[tuple[Space, Space]]:
        """Yield pairs (measured residual space, key of the block that measures it).

        No block is created.
        """
        for key in self.class_of_key:
            for space in self.unions.get(key) or (self.attributes.get(key, key),):
                yield space, key


def block_of_space(blocks: Mapping[Space, Block]) -> dict[Space, Space]:
    """Return measured residual space -> key of the block that measures it."""
    if isinstance(blocks, LazyBlocks):  # creating its blocks would be slow
        return dict(zip(blocks, blocks, strict=True)) if blocks.plain else dict(blocks.block_keys())
    return {space: key for key, block in blocks.items() for space in block.spaces}


def strategies_of(blocks: Mapping[Space, Block]) -> dict[Space, tuple[tuple[Axes, Strategy], ...]]:
    """Return a mapping from the key of each block to its factors, pairs (axes, strategy)."""
    if isinstance(blocks, LazyBlocks):  # creating its blocks would be slow
        return {
            key: blocks.prototypes[number].factors for key, number in blocks.class_of_key.items()
        }
    return {key: block.factors for key, block in blocks.items()}


def component_key(number: int) -> Space:
    """Return the key of component ``number`` in the blocks of a plan that measures tables."""
    return ("component", str(number))


def apply_factors(block: Block, tensor: npt.NDArray[Any], matrix: Any) -> Array:
    """Multiply residual coordinates by a Kronecker product of one matrix per factor of a block.

    Parameters
    ----------
    tensor : residual coordinates, one axis per attribute of the block.
    matrix : function from the strategy of a factor to the matrix that multiplies the axes of this
        factor, shape (rows, residual coordinates of the factor).

    Returns
    -------
    array with one axis per factor, whose length is the number of rows of the matrix.
    """
    return contract(group_axes(tensor, block.sets), [matrix(s).T for _, s in block.factors])


def undo_factors(block: Block, answers: npt.NDArray[Any]) -> Array:
    """Return the least squares estimate of what a block measures, in counts.

    The estimate consists of residual coordinates, or of cells if the strategy is on cells; its
    shape is `Block.coordinates`.

    Parameters
    ----------
    answers : noisy strategy answers in counts, one axis per factor.
    """
    unweighted = answers if block.weights is None else answers / block.weights
    by_factor = contract(unweighted, [s.pinv.T for _, s in block.factors])
    if block.union:
        return by_factor.ravel()
    # The last digit of a sum depends on the memory order of the array.  Estimates are returned in
    # row-major order, because estimates that are read from a file have this order.
    return np.asarray(ungroup_axes(by_factor, block.sets, block.coordinates), order="C")


def measures_piece(block: Block, piece: Array) -> bool:
    """Return whether a block measures a query on its residual space, apart from rounding errors.

    ``piece`` has the coefficients of the query on this space, shape (n_1 - 1, ..., n_k - 1).
    """
    for axes, strategy in block.factors:
        if not strategy.complete:
            rows = group_axes(piece, [axes, tuple(a for a in range(piece.ndim) if a not in axes)])
            residual = rows - strategy.span @ (strategy.span.T @ rows)
            if np.linalg.norm(residual) > MAX_UNMEASURED_SHARE * np.linalg.norm(piece):
                return False
    return True


def _classes_of(blocks: Mapping[Space, Block]) -> list[tuple[Block, int]]:
    """Return (block, number of blocks) pairs, one per class of blocks with equal privacy cost."""
    if isinstance(blocks, LazyBlocks):
        return [(blocks.prototypes[k], n) for k, n in Counter(blocks.class_of_key.values()).items()]
    classes: dict[Any, tuple[Block, int]] = {}
    for block in blocks.values():
        # Blocks with weights are not merged with others, because an array cannot be part of a key.
        key = (
            block.factors,
            block.noise,
            block.grid,
            block.law,
            block if block.weights is not None else None,
        )
        classes[key] = block, classes.get(key, (block, 0))[1] + 1
    return list(classes.values())


def total_pcost(blocks: Mapping[Space, Block], max_records: int) -> float:
    """Return the pcost of releasing all blocks, rounded up.

    With Gaussian noise it is the sum of the pcosts of the blocks.  With Laplace noise it is the
    square of the sum of their epsilons, the roots of their pcosts.
    """
    classes = _classes_of(blocks)
    laplace = any(block.law == "laplace" for block, _ in classes)
    costs = [(block.pcost(max_records), times) for block, times in classes]
    # Releasing several blocks adds their parameters: rho of zCDP (Bun and Steinke 2016) for
    # Gaussian noise, and epsilon for Laplace noise.
    additive_costs = (
        itertools.repeat(math.sqrt(cost) if laplace else cost, times) for cost, times in costs
    )
    total = math.fsum(itertools.chain.from_iterable(additive_costs)) * ROUNDING_FACTOR
    return total**2 if laplace else total


def is_on_curve(parts: Iterable[Mapping[Space, Block]], pcost: float) -> bool:
    """Return whether the (epsilon, delta) curve of continuous Gaussian noise holds for a release.

    The released noise is discrete.  By the theorem in `engine.privacy` the curve holds if
    the grid is fine compared with the noise.  Blocks with Laplace noise are ignored.

    Parameters
    ----------
    parts : mappings from key to block; the blocks of all mappings are released.
    pcost : total privacy cost of the blocks.
    """
    classes = [
        block_class
        for blocks in parts
        for block_class in _classes_of(blocks)
        if block_class[0].law == "gaussian"
    ]
    # ``grid_load`` is the sum of 1 / s^2 over all released numbers, with s the scale of the noise
    # in grid steps.
    grid_load = (
        math.fsum(size * block.measurements / block.grid_noise**2 for block, size in classes)
        * ROUNDING_FACTOR
    )
    squared_step = max((1.0 / block.grid_noise**2 for block, _ in classes), default=0.0)
    return grid_load <= MAX_GRID_LOAD * pcost and squared_step <= MAX_GRID_STEP * max(1.0, pcost)


def cells_pcost(blocks: Mapping[Any, Block], max_records: int) -> float:
    """Return an upper bound on the joint privacy cost (pcost) of releasing all blocks.

    The joint cost is the maximum over cells of the summed costs of the blocks for a record in the
    cell.  The bound includes the effects of rounding to the grid.

    Guarantee: apart from rounding, the bound is at most the sum of the costs of the blocks.  The
    bound is the exact joint cost if `joint_sensitivity` is exact for the strategies.
    """
    block_list = list(blocks.values())
    if not block_list:
        return 0.0
    law = block_list[0].law
    scales = [STD_PER_SCALE[law] / b.noise for b in block_list]
    norms = [
        math.prod(s.column_sum for _, s in b.factors) if law == "laplace" else b.column_norm
        for b in block_list
    ]
    rounding_effects = [
        (block.sensitivity(max_records) - norm) * scale
        for block, norm, scale in zip(block_list, norms, scales, strict=True)
    ]
    power = 1 if law == "laplace" else 2
    cost_without_rounding = joint_sensitivity(
        (
            (block.attributes, _without_weights(block), scale**power)
            for block, scale in zip(block_list, scales, strict=True)
        ),
        law,
    )
    if law == "laplace":
        return ((cost_without_rounding + math.fsum(rounding_effects)) * ROUNDING_FACTOR) ** 2
    # For one cell, let the vector d have its column norm in each block, divided by the noise, and
    # let e have the effects of rounding.  The cost of the cell is |d + e|^2 <= (|d| + |e|)^2.
    rounding_norm = math.sqrt(math.fsum(e * e for e in rounding_effects))
    return (math.sqrt(cost_without_rounding) + rounding_norm) ** 2 * ROUNDING_FACTOR


def _without_weights(block: Block) -> tuple[tuple[Axes, Strategy], ...]:
    """Return factors without row weights that have the same Euclidean column norms as a block.

    For a block without weights, the result has the factors of the block.  For a block with weights,
    the result has a single factor, whose strategy has one row: the column norms of the block.
    """
    if block.weights is None:
        return block.factors
    rows = np.sqrt(block.column_squares()).reshape(1, -1)
    axes = tuple(range(len(block.attributes)))
    return ((axes, Strategy(sizes=block.sizes, rows=rows, pinv=rows.T, complete=False)),)


def joint_share(parts: Sequence[MeasuredPart], law: str = "gaussian") -> float:
    """Return the joint privacy cost of strategies divided by the sum of their privacy costs.

    The joint cost is the maximum over cells of the summed costs for a record in the cell.  The
    costs are pcosts for Gaussian noise, and epsilons for Laplace noise.  The result is 1 if some cell
    has the largest cost of every strategy, where costs may differ by the share `UNEQUAL_COSTS`.  If
    there are more than `MAX_JOINT` strategies, 1 is returned as an upper bound.

    Parameters
    ----------
    parts : one (attributes, factors, scale) per strategy; ``scale`` multiplies its cost.
    law : "gaussian" or "laplace".
    """
    if len(parts) > MAX_JOINT:
        return 1.0
    strategies = dict.fromkeys(s for _, factors, _ in parts for _, s in factors)
    costs = {s: s.column_costs(law).reshape(s.sizes) for s in strategies}
    unequal = {s for s, c in costs.items() if np.ptp(c) > UNEQUAL_COSTS * c.max()}
    tables = dict.fromkeys(
        (tuple(attributes[a] for a in axes), s)
        for attributes, factors, _ in parts
        for axes, s in factors
        if s in unequal
    )
    if _share_a_maximum([(names, costs[s]) for names, s in tables]):
        return 1.0
    total = math.fsum(
        scale * math.prod(float(costs[s].max()) for _, s in factors) for _, factors, scale in parts
    )
    return min(1.0, joint_sensitivity(parts, law) / total)


def _share_a_maximum(tables: Sequence[tuple[Space, Array]]) -> bool:
    """Return whether some cell has the largest entry of every table, up to `UNEQUAL_COSTS`.

    ``tables`` holds pairs (attributes of the axes, table of costs).  Only one cell is tested, so
    the result may be False although there is such a cell.
    """
    cell: dict[str, int] = {}
    for names, table in tables:
        largest = np.unravel_index(int(np.argmax(table)), table.shape)
        for name, value in zip(names, largest, strict=True):
            cell.setdefault(name, int(value))
    return all(
        table[tuple(cell[name] for name in names)] >= (1.0 - UNEQUAL_COSTS) * table.max()
        for names, table in tables
    )


def joint_pcost(parts: Sequence[Mapping[Space, Block]], max_records: int) -> float:
    """Return the pcost of releasing several sets of blocks on the same records, rounded up.

    Blocks with the same key measure the same table, and a record is in one cell of this table.  The
    joint cost of these blocks is therefore the maximum over cells of their summed costs.  The costs
    of different keys are added.

    Parameters
    ----------
    parts : one mapping from key to block per set; the blocks have Gaussian noise.
    """
    costs = []
    for space in {space: None for part in parts for space in part}:
        blocks = [part[space] for part in parts if space in part]
        if len(blocks) == 1 or all(_same_rows(blocks[0], b) for b in blocks):
            # With equal rows, the same cell has the largest cost in every block.
            costs.append(math.fsum(b.pcost(max_records) for b in blocks))
        else:
            costs.append(float(np.sum([b.cell_pcosts(max_records) for b in blocks], axis=0).max()))
    return math.fsum(costs) * ROUNDING_FACTOR


def _same_rows(one: Block, other: Block) -> bool:
    """Return whether two blocks have identical strategies on the same axes, and no weights."""
    pairs = zip(one.factors, other.factors, strict=False)  # the lengths are compared below
    return (
        one.weights is other.weights is None
        and len(one.factors) == len(other.factors)
        and all(a == b and s is t for (a, s), (b, t) in pairs)
    )


def noise_grid(noise: float, reach: float, bits: int = GRID_BITS) -> float:
    """Return the grid of released answers: the distance of neighbouring values, in counts.

    The grid is a power of two, from 2^-(bits + 1) to 2^-bits of the noise.  It is coarser if an
    answer could otherwise exceed 2^62 grid steps.

    Parameters
    ----------
    noise : standard deviation of the noise, in counts.
    reach : largest absolute answer in counts: the largest column norm times the number of records.
    bits : the noise is 2^bits to 2^(bits + 1) grid steps, unless answers require a coarser grid.

    Guarantee: the sum of an answer and its noise, in grid steps, fits an int64.

    >>> noise_grid(1.0, 1e8) == 2.0**-30, 1e8 / noise_grid(0.001, 1e8) <= 2.0**62
    (True, True)
    """
    # If every answer is 0, any positive ``reach`` gives a valid grid.
    if reach == 0.0:
        reach = noise
    # Answers without noise are limited to 2^61 grid steps, which leaves one bit for rounding.
    available_bits = math.floor(math.log2(2.0**61 * noise / reach))
    # 2^(frexp exponent - 1) is the largest power of two that is at most the noise.
    return 2.0 ** (math.frexp(noise)[1] - 1 - min(bits, available_bits))


def calibrate(
    strategies: Mapping[Space, tuple[tuple[Axes, Strategy], ...]],
    noises: Mapping[Space, float],
    budget: float,
    max_records: int,
    law: str = "gaussian",
    unions: Mapping[Space, tuple[Space, ...]] | None = None,
    attributes: Mapping[Space, Space] | None = None,
    cost_of: Callable[[Mapping[Space, Block], int], float] = total_pcost,
) -> LazyBlocks:
    """Return blocks whose answers are rounded to a grid and whose privacy cost meets a budget.

    All noises are raised by one common factor until the cost, which includes rounding, meets the
    budget.

    Parameters
    ----------
    strategies : key of a block -> its factors, pairs (axes, strategy).
    noises : key of a block -> standard deviation in counts before it is raised.
    budget : largest allowed privacy cost (pcost) of the release.
    max_records : public upper bound on the number of records.
    law : "gaussian" or "laplace".
    unions : key -> residual spaces, for blocks that measure several jointly.
    attributes : key -> attributes, for blocks whose key is not their attributes.
    cost_of : function of blocks and a number of records that returns the privacy cost; by default
        the cost of adding or removing one record.

    Raises
    ------
    PlanError : if a noise is not between 1e-100 and 1e100 counts, or if rounding to the grid costs
        so much that no noise below `MOST_NOISE` meets the budget.
    """
    for space, noise in noises.items():
        # The square of the noise and the inverse of the square must be finite.
        if not 1e-100 < noise < 1e100:
            raise PlanError(
                f"The standard deviation of the noise for {' x '.join(space) or 'the total'} would"
                f" be {noise} counts, but must be between 1e-100 and 1e100. Give a "
                + (
                    "smaller budget."
                    if noise < 1.0
                    else "larger budget, or weights that differ less."
                )
            )
    # Spaces with equal strategies and noises form a class with one grid.  Plans have few classes.
    classes: dict[tuple[tuple[tuple[Axes, Strategy], ...], float], int] = {}
    class_of_key = {
        space: classes.setdefault((strategies[space], noise), len(classes))
        for space, noise in noises.items()
    }
    grids = [
        noise_grid(noise, max_records * math.prod(f.column_norm for _, f in factors))
        for factors, noise in classes
    ]
    # In each round below, the noise factor grows at least by this share: the largest ratio of a
    # grid step to its noise.
    grid_ratio = max(
        [2.0**-GRID_BITS, *(g / noise for (_, noise), g in zip(classes, grids, strict=True))]
    )
    noise_factor = 1.0
    # The noise factor is searched in rounds: the cost of rounding to the grid depends on the noise,
    # so the factor has no closed form.
    for _ in range(20):
        # The scale of the noise is rounded up to whole grid steps, because less noise costs more.
        raised = [
            math.ceil(noise * noise_factor / STD_PER_SCALE[law] / grid) * grid * STD_PER_SCALE[law]
            for (_, noise), grid in zip(classes, grids, strict=True)
        ]
        # the variances of larger noise overflow
        if max(raised) >= MOST_NOISE:
            break
        prototypes = [
            Block(attributes=(), factors=factors, noise=noise, grid=grid, law=law)
            for (factors, _), noise, grid in zip(classes, raised, grids, strict=True)
        ]
        blocks = LazyBlocks(
            prototypes=prototypes,
            class_of_key=class_of_key,
            attributes=attributes or {},
            unions=unions or {},
        )
        cost = cost_of(blocks, max_records)
        if cost <= budget:
            return blocks
        noise_factor *= math.sqrt(cost / budget) * (1.0 + grid_ratio)
    raise PlanError(
        f"No plan meets the budget of pcost {budget}: the noise is a multiple of a grid step, and"
        f" rounding the answers of up to {max_records:,} records to this grid costs too much. Give"
        " a larger budget, a smaller max_records or fewer queries."
    )


def table_of_blocks(blocks: Collection[Block], max_records: int) -> pd.DataFrame:
    """Return a data frame with one row per block: attributes, measurements, noise and share.

    The noise is in counts.  The share is the privacy cost of the block (epsilon for Laplace noise,
    pcost for Gaussian noise) divided by the sum of the costs of all blocks, so the shares sum to 1.
    """
    import pandas as pd

    rows = [(b.attributes, b.measurements, b.noise, b.pcost(max_records)) for b in blocks]
    table = pd.DataFrame(rows, columns=["attributes", "measurements", "noise", "pcost"])
    laplace = any(block.law == "laplace" for block in blocks)
    costs = table.pop("pcost") ** (0.5 if laplace else 1.0)
    return table.assign(share=costs / math.fsum(costs))
