"""Blocks, their calibration to a budget, and the privacy cost of the released integers.

A block is the strategy of one or more residual spaces with its noise.  A release measures
z = rint(B x / grid) and adds exact discrete noise of scale noise / grid, an integer.  The integer
answers of two tables that differ in one record then have a distance of at most

    ( s (1 + gamma (2 records + 1)) / grid + sqrt(measurements) )      in the Euclidean norm,

with s the largest column norm of B: each rounding moves an answer by at most one half, and the
floating-point product B x has an error of at most gamma ||B|| times the number of records, with
gamma = K u / (1 - K u) for sums of K terms.  The cost of a block is the square of that bound over
(noise / grid)^2, twice the exact zCDP parameter of the discrete Gaussian (Canonne, Kamath and
Steinke 2020, theorem 14).

For Laplace noise the distance is in the L1 norm, where each rounding moves the difference of two
answers by at most 1.  Blocks of epsilon_k are together (sum of epsilon_k)-DP, which is
(sum)^2 / 2-zCDP (Bun and Steinke 2016, proposition 4).
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from engine._arrays import Array
from engine.errors import PlanError
from engine.privacy.budget import MAX_GRID_LOAD, MAX_GRID_STEP
from engine.residuals import Axes, Space, Strategy, contract, group_axes
from engine.residuals.basis import ungroup_axes
from engine.residuals.strategy import MAX_UNMEASURED_SHARE, MeasuredPart, joint_sensitivity

if TYPE_CHECKING:
    import pandas as pd


# noise / grid lies between 2^30 and 2^31; it is smaller only where answers would not fit 64 bits
GRID_BITS = 30
# unit roundoff of doubles
UNIT_ROUNDOFF = 2.0**-53
# factor that covers the rounding of norms and of the sum over blocks
ROUNDING_FACTOR = 1.0 + 1e-12
MAX_RECORDS = 10**8
# relative difference above which squared column norms count as unequal
UNEQUAL_NORMS = 1e-6
# number of blocks up to which their joint sensitivity is computed
MAX_JOINT = 3_000
# smallest saving, as a share of the summed costs, for which the joint privacy cost is charged
MIN_JOINT_SAVING = 1e-5
# standard deviation of noise of scale 1
STD_PER_SCALE = {"gaussian": 1.0, "laplace": math.sqrt(2.0)}


@dataclass(frozen=True, kw_only=True, eq=False)
class Block:
    """A strategy that measures one residual space, or several jointly, with its noise.

    Attributes
    ----------
    attributes : attributes of the measured table, in schema order.
    factors : (axes, strategy) on disjoint sets of axes; the strategy of the block is their
        Kronecker product.
    weights : multipliers of the rows of that product, one axis per factor; None for 1 everywhere.
    noise : standard deviation of the noise on every strategy answer, in counts.
    grid : spacing of the released strategy answers, in counts; a power of two.
    union : residual spaces that the strategy measures jointly; its coordinates are those of
        the spaces in this order.  Empty if the block measures the residual space on ``attributes``.
    law : "gaussian" or "laplace"; the scale of the noise is an integer multiple of ``grid``.
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
        """The residual spaces that the block measures."""
        return self.union or (self.attributes,)

    @property
    def measurements(self) -> int:
        """Number of strategy answers."""
        return math.prod(len(s.rows) for _, s in self.factors)

    @property
    def sets(self) -> list[Axes]:
        """The axes of every factor."""
        return [axes for axes, _ in self.factors]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Domain sizes of the attributes."""
        return self._by_axis([s.sizes for _, s in self.factors])

    @property
    def coordinates(self) -> tuple[int, ...]:
        """Shape of the estimates: one axis per attribute, or a single axis for a union."""
        if self.union:
            return (math.prod(s.dimension for _, s in self.factors),)
        return self._by_axis([s.coordinates for _, s in self.factors])

    def _by_axis(self, numbers: Sequence[Sequence[int]]) -> tuple[int, ...]:
        by_axis = {
            a: n
            for axes, factor_numbers in zip(self.sets, numbers, strict=True)
            for a, n in zip(axes, factor_numbers, strict=True)
        }
        return tuple(by_axis[a] for a in range(len(by_axis)))

    @property
    def grid_noise(self) -> int:
        """Scale of the discrete noise in grid units, an integer."""
        return round(self.noise / STD_PER_SCALE[self.law] / self.grid)

    def sensitivity(self, max_records: int) -> float:
        """Sensitivity of the released answers to one record, in counts, including rounding.

        The norm is Euclidean for Gaussian noise and L1 for Laplace noise.
        """
        if self.law == "laplace":
            norm = math.prod(s.column_sum for _, s in self.factors)
            return float(self._released(norm, max_records))
        return float(self._released(self.column_norm, max_records))

    @property
    def column_norm(self) -> float:
        """Largest Euclidean norm of a column of B."""
        if self.weights is None:
            return math.prod(s.column_norm for _, s in self.factors)
        return math.sqrt(float(self.column_squares().max()))

    def column_squares(self) -> Array:
        """Squared Euclidean norms of the columns of B, one per cell, shape (n_1, ..., n_k)."""
        if self.weights is None:
            # column norms of a Kronecker product are products of column norms
            squares = [s.column_costs("gaussian")[None] for _, s in self.factors]
            out = contract(np.ones((1,) * len(squares)), squares)
        else:
            out = contract(self.weights**2, [s.rows**2 for _, s in self.factors])
        return ungroup_axes(out, self.sets, self.sizes)

    def cell_pcosts(self, max_records: int) -> Array:
        """Privacy cost of the block for a record in each cell, shape (n_1, ..., n_k)."""
        return np.asarray(
            (self._released(np.sqrt(self.column_squares()), max_records) / self.noise) ** 2
        )

    def _released(self, norm: Any, max_records: int) -> Any:
        """Add the effects of grid rounding and floating-point errors to column norms of B."""
        rounding = self.measurements if self.law == "laplace" else math.sqrt(self.measurements)
        # the 1 at the end covers the multiplication by a weight
        terms = sum(s.rounding_terms for _, s in self.factors) + 1
        gamma = terms * UNIT_ROUNDOFF / (1.0 - terms * UNIT_ROUNDOFF)
        return (
            norm * ROUNDING_FACTOR * (1.0 + gamma * (2.0 * max_records + 1.0))
            + self.grid * rounding
        )

    def pcost(self, max_records: int) -> float:
        """Privacy cost of this block."""
        return (self.sensitivity(max_records) * STD_PER_SCALE[self.law] / self.noise) ** 2


@dataclass(frozen=True, kw_only=True, eq=False)
class LazyBlocks(Mapping[Space, Block]):
    """A mapping of blocks that differ only in their keys within each of a few classes.

    Blocks are created on first access and cached, because most of them are never accessed.

    Attributes
    ----------
    kinds : one block of every class.
    numbers : index in ``kinds`` of the class of every block.
    attributes : attributes of the blocks whose keys are not their attributes.
    unions : jointly measured residual spaces, for blocks that measure several.
    """

    kinds: Sequence[Block]
    numbers: Mapping[Space, int]
    attributes: Mapping[Space, Space] = field(default_factory=dict)
    unions: Mapping[Space, tuple[Space, ...]] = field(default_factory=dict)
    _blocks: dict[Space, Block] = field(default_factory=dict)

    def __getitem__(self, key: Space) -> Block:
        block = self._blocks.get(key)
        if block is None:
            prototype = self.kinds[self.numbers[key]]
            block = replace(
                prototype, attributes=self.attributes.get(key, key), union=self.unions.get(key, ())
            )
            block = self._blocks.setdefault(key, block)  # the same object for all threads
        return block

    def __iter__(self) -> Iterator[Space]:
        return iter(self.numbers)

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def plain(self) -> bool:
        """Whether every block measures the residual space that its key names."""
        return not self.attributes and not self.unions

    def measured(self) -> Iterator[tuple[Space, Block]]:
        """Yield every residual space with a block of the class that measures it."""
        for space, key in self.homes():
            yield space, self.kinds[self.numbers[key]]

    def homes(self) -> Iterator[tuple[Space, Space]]:
        """Yield every residual space with the key of its block, without creating blocks."""
        for key in self.numbers:
            for space in self.unions.get(key) or (self.attributes.get(key, key),):
                yield space, key


def block_of_space(blocks: Mapping[Space, Block]) -> dict[Space, Space]:
    """Return the key of the block that measures each residual space, without creating blocks."""
    if isinstance(blocks, LazyBlocks):
        return dict(zip(blocks, blocks, strict=True)) if blocks.plain else dict(blocks.homes())
    return {space: key for key, block in blocks.items() for space in block.spaces}


def strategies_of(blocks: Mapping[Space, Block]) -> dict[Space, tuple[tuple[Axes, Strategy], ...]]:
    """Return the factors of each block, without creating blocks."""
    if isinstance(blocks, LazyBlocks):
        return {key: blocks.kinds[number].factors for key, number in blocks.numbers.items()}
    return {key: block.factors for key, block in blocks.items()}


def component_key(number: int) -> Space:
    """Return the key of a component among a plan's blocks."""
    return ("component", str(number))


def apply_factors(block: Block, tensor: Array, matrix: Any) -> Array:
    """Apply ``matrix(strategy)``, shape (out, in), of every factor along the axes of a tensor.

    The input tensor, on the residual coordinates, has one axis per attribute of the block; the
    result has one axis per factor, in the order of the factors.
    """
    return contract(group_axes(tensor, block.sets), [matrix(s).T for _, s in block.factors])


def undo_factors(block: Block, answers: Array) -> Array:
    """Return the estimate from strategy answers in counts, by the pseudoinverse of every factor.

    The answers have one axis per factor.  The estimate consists of residual coordinates, or of
    cells for an explicit strategy; its shape is `Block.coordinates`.
    """
    unweighted = answers if block.weights is None else answers / block.weights
    out = contract(unweighted, [s.pinv.T for _, s in block.factors])
    if block.union:
        return out.ravel()
    # row-major order, as after reading a stored estimate: the order affects the last digit of sums
    return np.asarray(ungroup_axes(out, block.sets, block.coordinates), order="C")


def measures_piece(block: Block, piece: Array) -> bool:
    """Return whether a query component lies in the span of the block's strategy.

    ``piece`` has the shape of the residual coordinates.
    """
    for axes, strategy in block.factors:
        if not strategy.complete:
            rows = group_axes(piece, [axes, tuple(a for a in range(piece.ndim) if a not in axes)])
            residual = rows - strategy.span @ (strategy.span.T @ rows)
            if np.linalg.norm(residual) > MAX_UNMEASURED_SHARE * np.linalg.norm(piece):
                return False
    return True


def _classes_of(blocks: Mapping[Space, Block]) -> list[tuple[Block, int]]:
    """Return one block of every class of equal blocks, and the size of the class."""
    if isinstance(blocks, LazyBlocks):
        return [(blocks.kinds[k], n) for k, n in Counter(blocks.numbers.values()).items()]
    classes: dict[Any, tuple[Block, int]] = {}
    for block in blocks.values():
        # a block with weights is its own class because arrays are not hashable
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
    """Return the privacy cost of releasing all blocks, the sum of their costs, rounded up."""
    classes = _classes_of(blocks)
    laplace = any(block.law == "laplace" for block, _ in classes)
    costs = [(block.pcost(max_records), times) for block, times in classes]
    # with independent noise rho of zCDP (Bun and Steinke 2016) and epsilon add up
    single = (
        itertools.repeat(math.sqrt(cost) if laplace else cost, times) for cost, times in costs
    )
    total = math.fsum(itertools.chain.from_iterable(single)) * ROUNDING_FACTOR
    return total**2 if laplace else total


def is_on_curve(parts: Iterable[Mapping[Space, Block]], pcost: float) -> bool:
    """Return whether releases of blocks with total cost ``pcost`` are on the Gaussian curve.

    The grid must be fine enough for the theorem of `engine.privacy.budget`; with Laplace noise
    there is no condition.
    """
    classes = [
        block_class
        for blocks in parts
        for block_class in _classes_of(blocks)
        if block_class[0].law == "gaussian"
    ]
    load = (
        math.fsum(size * block.measurements / block.grid_noise**2 for block, size in classes)
        * ROUNDING_FACTOR
    )
    step = max((1.0 / block.grid_noise**2 for block, _ in classes), default=0.0)
    return load <= MAX_GRID_LOAD * pcost and step <= MAX_GRID_STEP * max(1.0, pcost)


def cells_pcost(blocks: Mapping[Any, Block], max_records: int) -> float:
    """Return an upper bound on the joint privacy cost of releasing all blocks, including rounding.

    The joint cost is the maximum over cells of the summed costs of the blocks for that cell.

    Guarantee: at most the sum of the costs of the single blocks, up to rounding; exact wherever
    `joint_sensitivity` is exact.
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
    extra = [
        (b.sensitivity(max_records) - n) * s
        for b, n, s in zip(block_list, norms, scales, strict=True)
    ]
    power = 1 if law == "laplace" else 2
    ideal = joint_sensitivity(
        ((b.attributes, _unweighted(b), s**power) for b, s in zip(block_list, scales, strict=True)),
        law,
    )
    if law == "laplace":
        return ((ideal + math.fsum(extra)) * ROUNDING_FACTOR) ** 2
    # Minkowski's inequality for |d + e|, with d the column norms of a cell in all blocks and e the
    # effect of rounding on each
    return (math.sqrt(ideal) + math.sqrt(math.fsum(e * e for e in extra))) ** 2 * ROUNDING_FACTOR


def _unweighted(block: Block) -> tuple[tuple[Axes, Strategy], ...]:
    """Return factors without weights whose product has the same column norms."""
    if block.weights is None:
        return block.factors
    rows = np.sqrt(block.column_squares()).reshape(1, -1)
    axes = tuple(range(len(block.attributes)))
    return ((axes, Strategy(sizes=block.sizes, rows=rows, pinv=rows.T, complete=False)),)


def joint_share(parts: Sequence[MeasuredPart]) -> float:
    """Return the joint privacy cost of strategies as a share of the sum of their costs.

    ``parts`` are strategies with Gaussian noise, as for `joint_sensitivity`.  The share is 1 for more
    than `MAX_JOINT` strategies, where the joint cost is not computed.
    """
    if len(parts) > MAX_JOINT:
        return 1.0
    distinct = {s for _, factors, _ in parts for _, s in factors}
    unequal = {
        s for s in distinct if np.ptp(s.column_costs("gaussian")) > UNEQUAL_NORMS * s.column_norm**2
    }
    if sum(any(s in unequal for _, s in factors) for _, factors, _ in parts) < 2:
        return 1.0
    total = math.fsum(
        scale * math.prod(s.column_norm**2 for _, s in factors) for _, factors, scale in parts
    )
    return min(1.0, joint_sensitivity(parts, "gaussian") / total)


def joint_pcost(parts: Sequence[Mapping[Space, Block]], max_records: int) -> float:
    """Return the privacy cost of several sets of blocks on the same records, rounded up.

    A record is in the same cell in every part.  The cost of a space is therefore the maximum over
    its cells of the summed costs, not the sum of the maxima.
    """
    costs = []
    for space in {space: None for part in parts for space in part}:
        blocks = [part[space] for part in parts if space in part]
        if len(blocks) == 1 or all(_same_rows(blocks[0], b) for b in blocks):
            # with equal rows the costs of all cells are proportional, so both are equal
            costs.append(math.fsum(b.pcost(max_records) for b in blocks))
        else:
            costs.append(float(np.sum([b.cell_pcosts(max_records) for b in blocks], axis=0).max()))
    return math.fsum(costs) * ROUNDING_FACTOR


def _same_rows(one: Block, other: Block) -> bool:
    pairs = zip(one.factors, other.factors, strict=False)
    return (
        one.weights is other.weights is None
        and len(one.factors) == len(other.factors)
        and all(a == b and s is t for (a, s), (b, t) in pairs)
    )


def noise_grid(noise: float, reach: float, bits: int = GRID_BITS) -> float:
    """Return the spacing of released answers, in counts, a power of two.

    The spacing is 2^-bits to 2^-(bits + 1) of the noise, or coarser where answers would exceed 2^62
    grid steps.

    Parameters
    ----------
    reach : largest absolute answer: the largest column norm times the number of records.

    Guarantee: an answer and its noise together fit int64, for any table of that many records.

    >>> noise_grid(1.0, 1e8) == 2.0**-30, 1e8 / noise_grid(0.001, 1e8) <= 2.0**62
    (True, True)
    """
    if reach == 0.0:  # every answer is 0
        reach = noise
    # 2^61 instead of 2^62 leaves one bit for rounding and noise
    room = math.floor(math.log2(2.0**61 * noise / reach))
    return 2.0 ** (math.frexp(noise)[1] - 1 - min(bits, room))


def calibrate(
    strategies: Mapping[Space, tuple[tuple[Axes, Strategy], ...]],
    noises: Mapping[Space, float],
    budget: float,
    max_records: int,
    law: str = "gaussian",
    unions: Mapping[Space, tuple[Space, ...]] | None = None,
    attributes: Mapping[Space, Space] | None = None,
    pcost: Callable[[Mapping[Space, Block], int], float] = total_pcost,
) -> LazyBlocks:
    """Return blocks with noises scaled by a common factor to stay within the budget.

    Parameters
    ----------
    noises : ideal standard deviations in counts, for strategies of column norm 1.
    budget : largest allowed privacy cost of the release.
    max_records : public cap on the number of records.
    unions : residual spaces measured jointly, by the key of their block.
    attributes : attributes of the measured tables, for blocks whose key is not their attributes.
    pcost : privacy cost of blocks as a function of the blocks and the number of records; by default
        that of adding or removing one record.

    Raises
    ------
    PlanError : a noise is not finite and positive, or the grid cannot meet the budget.
    """
    for space, noise in noises.items():
        if not 1e-100 < noise < 1e100:  # its square and the inverse of that must be finite
            raise PlanError(
                f"The noise for {' x '.join(space) or 'the total'} came out as {noise}; the plan is"
                " refused. Give "
                + ("less budget." if noise < 1.0 else "more budget, or weights that differ less.")
            )
    # spaces with equal strategies and noises form one class with one grid; plans have few classes
    classes: dict[tuple[tuple[tuple[Axes, Strategy], ...], float], int] = {}
    numbers = {
        space: classes.setdefault((strategies[space], noise), len(classes))
        for space, noise in noises.items()
    }
    grids = [
        noise_grid(noise, max_records * math.prod(f.column_norm for _, f in factors))
        for factors, noise in classes
    ]
    steps = [grid / noise for (_, noise), grid in zip(classes, grids, strict=True)]
    # ``step`` is the largest grid spacing relative to the noise
    stretch, step = 1.0, max([2.0**-GRID_BITS, *steps])
    # the cost depends on the noise through the grid, too: raise the noise until the budget suffices
    for _ in range(20):
        # round the noise up: less noise would cost more than the budget
        raised = [
            math.ceil(noise * stretch / STD_PER_SCALE[law] / grid) * grid * STD_PER_SCALE[law]
            for (_, noise), grid in zip(classes, grids, strict=True)
        ]
        prototypes = [
            Block(attributes=(), factors=factors, noise=noise, grid=grid, law=law)
            for (factors, _), noise, grid in zip(classes, raised, grids, strict=True)
        ]
        blocks = LazyBlocks(
            kinds=prototypes, numbers=numbers, attributes=attributes or {}, unions=unions or {}
        )
        cost = pcost(blocks, max_records)
        if cost <= budget:
            return blocks
        stretch *= math.sqrt(cost / budget) * (1.0 + step)
    raise PlanError(
        f"The privacy cost of the matrices to be released is {cost}, over the budget of {budget};"
        " the plan is refused. Lower max_records, or remove queries."
    )


def table_of_blocks(blocks: Collection[Block], max_records: int) -> pd.DataFrame:
    """Return one row per block: attributes, measurements, noise and share of the budget.

    A share is the cost of a block over the sum of the costs of all blocks, in epsilon for Laplace
    noise and in pcost for Gaussian noise.  The shares sum to 1 for any number of rows per person
    and any neighbours, and also where the joint privacy cost of the plan is less than that sum.
    """
    import pandas as pd

    rows = [(b.attributes, b.measurements, b.noise, b.pcost(max_records)) for b in blocks]
    out = pd.DataFrame(rows, columns=["attributes", "measurements", "noise", "share"])
    laplace = any(block.law == "laplace" for block in blocks)
    shares = out["share"] ** (0.5 if laplace else 1.0)
    return out.assign(share=shares / math.fsum(shares))
