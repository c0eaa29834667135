"""Blocks: the strategy of one or more residual spaces with its noise, and the privacy cost of what is really released.

A release measures z = rint(B x / grid) and adds exact discrete noise of scale noise / grid, an integer.  Two tables
that differ in one record then have integer answers at most

    ( s (1 + gamma (2 records + 1)) / grid + sqrt(measurements) )      in Euclidean norm,

s being the largest column norm of B: each rounding moves an answer by at most a half, and the floating point product
B x is off by at most gamma ||B|| times the number of records, gamma = K u / (1 - K u) for sums of K terms.  The cost of
a block is that bound squared over (noise / grid)^2, the exact zCDP statement for the discrete Gaussian (Canonne, Kamath
and Steinke 2020, theorem 14) doubled.

Laplace noise is measured in the L1 norm, where each rounding moves the difference of two answers by at most 1.  Blocks
of epsilon_k are together (sum of epsilon_k)-DP, which is (sum)^2 / 2-zCDP (Bun and Steinke 2016, proposition 4).
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
from engine.privacy.gaussian import LOAD, STEP
from engine.residuals import Axes, Space, Strategy, contract, grouped
from engine.residuals.basis import ungrouped
from engine.residuals.strategy import LEAVING, dearest_cell

if TYPE_CHECKING:
    import pandas as pd


GRID_BITS = 30  # noise / grid lies between 2^30 and 2^31, and below that only where answers would not fit 64 bits
UNIT = 2.0**-53
GUARD = 1.0 + 1e-12  # covers the rounding of norms and of the sum over blocks
MAX_RECORDS = 10**8
UNEVEN = 1e-6  # relative difference of squared column norms from which cells cost differently
MAX_JOINT = 3_000  # blocks up to which the costliest cell of all is searched
DEVIATION = {"gaussian": 1.0, "laplace": math.sqrt(2.0)}  # standard deviation of noise of scale 1


@dataclass(frozen=True, kw_only=True, eq=False)
class Block:
    """What is measured about one residual space, or about several together.

    Attributes
    ----------
    attributes : the attributes of the table that is measured, in schema order.
    factors : (axes, strategy) on disjoint sets of axes; the strategy of the block is their Kronecker product.
    weights : what each row of that product is multiplied by, one axis per factor; None for 1 everywhere.
    noise : standard deviation of the noise on every strategy answer, in counts.
    grid : spacing of the released strategy answers, in counts; a power of two.
    union : the residual spaces that one strategy measures together, its class coordinates being theirs one space after
        the other; empty for the one space on ``attributes``.
    law : "gaussian" or "laplace"; the scale of the noise is a whole multiple of ``grid``.
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
        """Shape of the estimates: one axis per attribute of the table, one axis in all for a union."""
        if self.union:
            return (math.prod(s.dimension for _, s in self.factors),)
        return self._by_axis([s.coordinates for _, s in self.factors])

    def _by_axis(self, numbers: Sequence[Sequence[int]]) -> tuple[int, ...]:
        by_axis = {a: n for axes, own in zip(self.sets, numbers, strict=True) for a, n in zip(axes, own, strict=True)}
        return tuple(by_axis[a] for a in range(len(by_axis)))

    @property
    def grid_noise(self) -> int:
        """Scale of the discrete noise in grid units, a whole number."""
        return round(self.noise / DEVIATION[self.law] / self.grid)

    def sensitivity(self, max_records: int) -> float:
        """Largest change of the released answers by one record, in counts, rounding included.

        In the Euclidean norm for Gaussian noise, in the L1 norm for Laplace noise.
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
        """Squared norms of the columns of B, one axis per attribute: what one record of each cell moves.

        Shape (n_1, ..., n_k).
        """
        squares = [s.rows**2 for _, s in self.factors]
        if self.weights is None:  # the norms of a product are products of norms, so no answer is written out
            out = contract(np.ones((1,) * len(squares)), [q.sum(axis=0)[None] for q in squares])
        else:
            out = contract(self.weights**2, squares)
        return ungrouped(out, self.sets, self.sizes)

    def cell_pcosts(self, max_records: int) -> Array:
        """Privacy cost of the block for a record of each cell, one axis per attribute. Shape (n_1, ..., n_k)."""
        return np.asarray((self._released(np.sqrt(self.column_squares()), max_records) / self.noise) ** 2)

    def _released(self, norm: Any, max_records: int) -> Any:
        """A column norm of B, or several, with the rounding of what is released."""
        rounding = self.measurements if self.law == "laplace" else math.sqrt(self.measurements)
        # a weight takes one of the terms that are counted beyond the sums of the factors
        terms = sum(s.cells + 1 for _, s in self.factors) + 1
        gamma = terms * UNIT / (1.0 - terms * UNIT)
        return norm * GUARD * (1.0 + gamma * (2.0 * max_records + 1.0)) + self.grid * rounding

    def pcost(self, max_records: int) -> float:
        """Privacy cost of the block alone."""
        return (self.sensitivity(max_records) * DEVIATION[self.law] / self.noise) ** 2


@dataclass(frozen=True, kw_only=True, eq=False)
class AlikeBlocks(Mapping[Space, Block]):
    """Blocks by their keys, of a few kinds: each is made when it is asked for, once, because few ever are.

    Attributes
    ----------
    kinds : one block of every kind.
    numbers : the kind of every block.
    attributes, unions : the attributes of a block where its key does not say so, and what it measures together.
    """

    kinds: Sequence[Block]
    numbers: Mapping[Space, int]
    attributes: Mapping[Space, Space] = field(default_factory=dict)
    unions: Mapping[Space, tuple[Space, ...]] = field(default_factory=dict)
    _made: dict[Space, Block] = field(default_factory=dict)

    def __getitem__(self, key: Space) -> Block:
        made = self._made.get(key)
        if made is None:
            kind = self.kinds[self.numbers[key]]
            made = replace(kind, attributes=self.attributes.get(key, key), union=self.unions.get(key, ()))
            made = self._made.setdefault(key, made)  # of threads that ask at once all get the same one
        return made

    def __iter__(self) -> Iterator[Space]:
        return iter(self.numbers)

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def plain(self) -> bool:
        """Whether every block measures the residual space that its key names."""
        return not self.attributes and not self.unions

    def measured(self) -> Iterator[tuple[Space, Block]]:
        """Yield every residual space with a block like the one that measures it."""
        for space, key in self.homes():
            yield space, self.kinds[self.numbers[key]]

    def homes(self) -> Iterator[tuple[Space, Space]]:
        """Yield every residual space with the key of the block that measures it, and make none of them."""
        for key in self.numbers:
            for space in self.unions.get(key) or (self.attributes.get(key, key),):
                yield space, key


def homes(blocks: Mapping[Space, Block]) -> dict[Space, Space]:
    """Return the key of the block that measures each residual space, and make none where few kinds stand for all."""
    if isinstance(blocks, AlikeBlocks):
        return dict(zip(blocks, blocks, strict=True)) if blocks.plain else dict(blocks.homes())
    return {space: key for key, block in blocks.items() for space in block.spaces}


def strategies_of(blocks: Mapping[Space, Block]) -> dict[Space, tuple[tuple[Axes, Strategy], ...]]:
    """Return what each block measures, and make none where few kinds stand for all."""
    if isinstance(blocks, AlikeBlocks):
        return {key: blocks.kinds[number].factors for key, number in blocks.numbers.items()}
    return {key: block.factors for key, block in blocks.items()}


def component_key(number: int) -> Space:
    """Return the key of a component among a plan's blocks."""
    return ("component", str(number))


def apply_factors(block: Block, tensor: Array, matrix: Any) -> Array:
    """Apply ``matrix(strategy)``, shape (out, in), of every factor of a block along the axes of a tensor.

    The axes of the result are one per factor, in the order of the factors; a tensor on the class coordinates has one
    axis per attribute of the block.
    """
    return contract(grouped(tensor, block.sets), [matrix(s).T for _, s in block.factors])


def undo_factors(block: Block, answers: Array) -> Array:
    """Return the estimate that strategy answers in counts, one axis per factor, stand for.

    They are class coordinates, or cells for an explicit strategy; the shape is `Block.coordinates`.
    """
    alone = answers if block.weights is None else answers / block.weights
    out = contract(alone, [s.pinv.T for _, s in block.factors])
    if block.union:
        return out.ravel()
    # a stored estimate comes back in row-major order, and a sum must have the same last digit before and after
    return np.asarray(ungrouped(out, block.sets, block.coordinates), order="C")


def measures_piece(block: Block, piece: Array) -> bool:
    """Return whether a piece, of the shape of the class coordinates, lies in the span of the block's strategy."""
    for axes, strategy in block.factors:
        if not strategy.complete:
            rows = grouped(piece, [axes, tuple(a for a in range(piece.ndim) if a not in axes)])
            left = rows - strategy.span @ (strategy.span.T @ rows)
            if np.linalg.norm(left) > LEAVING * np.linalg.norm(piece):
                return False
    return True


def _kinds_of(blocks: Mapping[Space, Block]) -> list[tuple[Block, int]]:
    """Return one block of every kind, and how many there are: of ten thousands of blocks few differ."""
    if isinstance(blocks, AlikeBlocks):
        return [(blocks.kinds[k], n) for k, n in Counter(blocks.numbers.values()).items()]
    found: dict[Any, tuple[Block, int]] = {}
    for b in blocks.values():
        # those with weights are on their own because arrays are no keys
        key = (b.factors, b.noise, b.grid, b.law, b if b.weights is not None else None)
        found[key] = b, found.get(key, (b, 0))[1] + 1
    return list(found.values())


def total_pcost(blocks: Mapping[Space, Block], max_records: int) -> float:
    """Return the privacy cost of releasing all blocks, rounded up."""
    found = _kinds_of(blocks)
    laplace = any(block.law == "laplace" for block, _ in found)
    costs = [(block.pcost(max_records), times) for block, times in found]
    # blocks are measured with independent noise, so that zCDP composes by adding (Bun and Steinke 2016), epsilons too
    single = (itertools.repeat(math.sqrt(cost) if laplace else cost, times) for cost, times in costs)
    total = math.fsum(itertools.chain.from_iterable(single)) * GUARD
    return total**2 if laplace else total


def on_curve(parts: Iterable[Mapping[Space, Block]], pcost: float) -> bool:
    """Return whether releases of these blocks, of this privacy cost in all, are on the curve of Gaussian DP.

    The noise must be fine enough for the theorem of `engine.privacy.gaussian`; Laplace noise always is.
    """
    kinds = [kind for blocks in parts for kind in _kinds_of(blocks) if kind[0].law == "gaussian"]
    load = math.fsum(times * block.measurements / block.grid_noise**2 for block, times in kinds) * GUARD
    step = max((1.0 / block.grid_noise**2 for block, _ in kinds), default=0.0)
    return load <= LOAD * pcost and step <= STEP * max(1.0, pcost)


def cells_pcost(blocks: Mapping[Any, Block], max_records: int) -> float:
    """Return an upper bound on what releasing all blocks costs a record of any one cell, rounding included.

    Guarantee: at most the sum of the blocks' own costs, but for rounding, and exact as far as `dearest_cell` is.
    """
    found = list(blocks.values())
    if not found:
        return 0.0
    law = found[0].law
    scales = [DEVIATION[law] / b.noise for b in found]
    plain = [math.prod(s.column_sum for _, s in b.factors) if law == "laplace" else b.column_norm for b in found]
    extra = [(b.sensitivity(max_records) - n) * s for b, n, s in zip(found, plain, scales, strict=True)]
    power = 1 if law == "laplace" else 2
    ideal = dearest_cell(((b.attributes, _unweighted(b), s**power) for b, s in zip(found, scales, strict=True)), law)
    if law == "laplace":
        return ((ideal + math.fsum(extra)) * GUARD) ** 2
    # |d + e| over blocks, d the norms of a cell's columns and e what rounding adds to each: Minkowski's inequality
    return (math.sqrt(ideal) + math.sqrt(math.fsum(e * e for e in extra))) ** 2 * GUARD


def _unweighted(block: Block) -> tuple[tuple[Axes, Strategy], ...]:
    """Return factors without weights whose product has columns of the same Euclidean norms."""
    if block.weights is None:
        return block.factors
    rows = np.sqrt(block.column_squares()).reshape(1, -1)
    axes = tuple(range(len(block.attributes)))
    return ((axes, Strategy(sizes=block.sizes, rows=rows, pinv=rows.T, complete=False)),)


def joint_share(strategies: Mapping[Space, tuple[tuple[Axes, Strategy], ...]], noises: Mapping[Space, float]) -> float:
    """Return what the costliest cell of all blocks together costs, as a share of the sum over blocks of the costliest.

    ``noises`` are standard deviations of Gaussian noise.  The share is 1 where the blocks are too many for a search.
    """
    if len(strategies) > MAX_JOINT:
        return 1.0
    different = {s for own in strategies.values() for _, s in own}
    uneven = {s for s in different if np.ptp((s.rows**2).sum(axis=0)) > UNEVEN * s.column_norm**2}
    if sum(any(s in uneven for _, s in own) for own in strategies.values()) < 2:
        return 1.0
    parts = [(space, own, 1.0 / noises[space] ** 2) for space, own in strategies.items()]
    total = math.fsum(scale * math.prod(s.column_norm**2 for _, s in own) for _, own, scale in parts)
    return min(1.0, dearest_cell(parts, "gaussian") / total)


def joint_pcost(parts: Sequence[Mapping[Space, Block]], max_records: int) -> float:
    """Return the privacy cost of releasing the blocks of several parts on the same records, rounded up.

    A record pays for its own cell in every part, so that the cost of a space is the largest sum over its cells and not
    the sum of the largest costs.
    """
    costs = []
    for space in {space: None for part in parts for space in part}:
        blocks = [part[space] for part in parts if space in part]
        if len(blocks) == 1 or all(_same_rows(blocks[0], b) for b in blocks):
            # the same rows twice: every cell pays in the same proportion, and the largest sum is the sum of the largest
            costs.append(math.fsum(b.pcost(max_records) for b in blocks))
        else:
            costs.append(float(np.sum([b.cell_pcosts(max_records) for b in blocks], axis=0).max()))
    return math.fsum(costs) * GUARD


def _same_rows(one: Block, other: Block) -> bool:
    pairs = zip(one.factors, other.factors, strict=False)
    return (
        one.weights is other.weights is None
        and len(one.factors) == len(other.factors)
        and all(a == b and s is t for (a, s), (b, t) in pairs)
    )


def noise_grid(noise: float, reach: float, bits: int = GRID_BITS) -> float:
    """Return the spacing of released answers, in counts: a power of two, 2^-bits to 2^-(bits + 1) of the noise.

    Answers go up to ``reach``, largest column norm times records; where they would pass 2^62 grid steps the grid is
    coarser.  Guarantee: an answer and its noise together fit into int64, for any table of so many records.

    >>> noise_grid(1.0, 1e8) == 2.0**-30, 1e8 / noise_grid(0.001, 1e8) <= 2.0**62
    (True, True)
    """
    if reach == 0.0:  # nothing is counted, so no answer needs room
        reach = noise
    # one bit less than an answer may take: rounding and the noise beside it need room, too
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
) -> AlikeBlocks:
    """Return blocks whose noise is the given one, enlarged by one common factor so that the budget holds exactly.

    Parameters
    ----------
    noises : ideal standard deviations in counts, for strategies of column norm 1.
    budget : privacy cost that the release may have.
    max_records : public cap on the number of records.
    unions : residual spaces measured together, by the attributes of their block.
    attributes : the attributes of the table that each block measures, where its key does not say so.
    pcost : what blocks cost with that many records; one record added or removed unless another function is given.

    Raises
    ------
    PlanError : a noise that is not finite and positive, or a budget that the grid cannot meet.
    """
    for space, noise in noises.items():
        if not 1e-100 < noise < 1e100:  # its square and the square's inverse must stay numbers
            raise PlanError(
                f"The noise for {' x '.join(space) or 'the total'} came out as {noise}; the plan is refused. Give "
                + ("less budget." if noise < 1.0 else "more budget, or weights that are less far apart.")
            )
    # spaces of one strategy and one noise have one grid, and plans have few of those however many spaces
    kinds: dict[tuple[tuple[tuple[Axes, Strategy], ...], float], int] = {}
    numbers = {space: kinds.setdefault((strategies[space], noise), len(kinds)) for space, noise in noises.items()}
    grids = [noise_grid(noise, max_records * math.prod(f.column_norm for _, f in own)) for own, noise in kinds]
    steps = [grid / noise for (_, noise), grid in zip(kinds, grids, strict=True)]
    stretch, step = 1.0, max([2.0**-GRID_BITS, *steps])  # one grid step
    # the rounding of answers depends on the grid, and the grid on the noise: the noise is raised until the cost holds
    for _ in range(20):
        # up, never to the nearest: noise below what was asked for would cost more than the budget
        raised = [
            math.ceil(noise * stretch / DEVIATION[law] / grid) * grid * DEVIATION[law]
            for (_, noise), grid in zip(kinds, grids, strict=True)
        ]
        of_kind = [
            Block(attributes=(), factors=own, noise=noise, grid=grid, law=law)
            for (own, _), noise, grid in zip(kinds, raised, grids, strict=True)
        ]
        blocks = AlikeBlocks(kinds=of_kind, numbers=numbers, attributes=attributes or {}, unions=unions or {})
        cost = pcost(blocks, max_records)
        if cost <= budget:
            return blocks
        stretch *= math.sqrt(cost / budget) * (1.0 + step)
    raise PlanError(
        f"The privacy cost of the matrices to be released is {cost}, over the budget of {budget}; the plan is refused. "
        "Lower max_records, or ask fewer queries."
    )


def table_of_blocks(blocks: Collection[Block], max_records: int) -> pd.DataFrame:
    """Return one row per block: attributes, measurements, noise and share of the budget.

    A share is what a block costs the records that it costs most, over the sum of that over all blocks; in epsilon for
    Laplace noise, in pcost for Gaussian noise.  The shares sum to 1 whatever the rows per person and neighbours are,
    and also where the plan is charged less than that sum, because no cell is the costliest of every block.
    """
    import pandas as pd

    rows = [(b.attributes, b.measurements, b.noise, b.pcost(max_records)) for b in blocks]
    out = pd.DataFrame(rows, columns=["attributes", "measurements", "noise", "share"])
    laplace = any(block.law == "laplace" for block in blocks)
    shares = out["share"] ** (0.5 if laplace else 1.0)
    return out.assign(share=shares / math.fsum(shares))
