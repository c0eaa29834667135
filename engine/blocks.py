"""Blocks: the strategy of one or more residual spaces with its noise, and the privacy cost of what is really released.

A release measures z = rint(B x / grid) and adds exact discrete Gaussian noise of scale noise / grid, an integer.  Two
tables that differ in one record then have integer answers at most

    ( s (1 + gamma (2 records + 1)) / grid + sqrt(measurements) )      in Euclidean norm,

s being the largest column norm of B: each rounding moves an answer by at most a half, and the floating point product
B x is off by at most gamma ||B|| times the number of records, gamma = K u / (1 - K u) for sums of K terms.  The cost of
a block is that bound squared over (noise / grid)^2, the exact zCDP statement for the discrete Gaussian (Canonne, Kamath
and Steinke 2020, theorem 14) doubled.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from engine.decomposition import Axes, Space
from engine.errors import PlanError
from engine.strategy import Strategy

GRID_BITS = 30  # noise / grid lies between 2^30 and 2^31
UNIT = 2.0**-53
GUARD = 1.0 + 1e-12  # covers the rounding of norms and of the sum over blocks
MAX_RECORDS = 10**8


@dataclass(frozen=True, kw_only=True, eq=False)
class Block:
    """What is measured about one residual space, or about several together.

    Attributes
    ----------
    attributes : the attributes of the table that is measured, in schema order.
    factors : (axes, strategy) on disjoint sets of axes; the strategy of the block is their Kronecker product.
    noise : standard deviation of the noise on every strategy answer, in counts; a whole multiple of ``grid``.
    grid : spacing of the released strategy answers, in counts; a power of two.
    union : the residual spaces that one strategy measures together, its class coordinates being theirs one space after
        the other; empty for the one space on ``attributes``.
    """

    attributes: Space
    factors: tuple[tuple[Axes, Strategy], ...]
    noise: float
    grid: float
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
    def grid_noise(self) -> int:
        """Scale of the discrete Gaussian in grid units, a whole number."""
        return round(self.noise / self.grid)

    def sensitivity(self, max_records: int) -> float:
        """Largest change of the released answers by one record, in counts, rounding included."""
        norm = math.prod(s.column_norm for _, s in self.factors)
        terms = sum(s.cells + 1 for _, s in self.factors) + 1
        gamma = terms * UNIT / (1.0 - terms * UNIT)
        return norm * GUARD * (1.0 + gamma * (2.0 * max_records + 1.0)) + self.grid * math.sqrt(self.measurements)

    def pcost(self, max_records: int) -> float:
        """Privacy cost of the block."""
        return (self.sensitivity(max_records) / self.noise) ** 2


def total_pcost(blocks: Mapping[Space, Block], max_records: int) -> float:
    """Return the privacy cost of releasing all blocks, rounded up."""
    return math.fsum(b.pcost(max_records) for b in blocks.values()) * GUARD


def calibrate(
    strategies: Mapping[Space, tuple[tuple[Axes, Strategy], ...]],
    noises: Mapping[Space, float],
    budget: float,
    max_records: int,
    unions: Mapping[Space, tuple[Space, ...]] | None = None,
) -> dict[Space, Block]:
    """Return blocks whose noise is the given one, enlarged by one common factor so that the budget holds exactly.

    Parameters
    ----------
    noises : ideal standard deviations in counts, for strategies of column norm 1.
    budget : privacy cost that the release may have.
    max_records : public cap on the number of records.
    unions : residual spaces measured together, by the attributes of their block.

    Raises
    ------
    PlanError : a noise that is not finite and positive, or a budget that the grid cannot meet.
    """
    for space, noise in noises.items():
        if not 1e-100 < noise < 1e100:  # its square and the square's inverse must stay numbers
            raise PlanError(
                f"The noise for {' x '.join(space) or 'the total'} came out as {noise}; the plan is refused."
            )
    grids = {space: 2.0 ** (math.frexp(noise)[1] - 1 - GRID_BITS) for space, noise in noises.items()}
    stretch = 1.0
    for _ in range(20):
        blocks = {}
        for space, grid in grids.items():
            steps = math.ceil(noises[space] * stretch / grid)
            union = unions.get(space, ()) if unions else ()
            blocks[space] = Block(
                attributes=space, factors=strategies[space], noise=steps * grid, grid=grid, union=union
            )
        cost = total_pcost(blocks, max_records)
        if cost <= budget:
            return blocks
        stretch *= math.sqrt(cost / budget) * (1.0 + 2.0**-GRID_BITS)  # at least one more grid step
    raise PlanError(
        f"The privacy cost of the matrices to be released is {cost}, over the budget of {budget}; the plan is refused. "
        "Lower max_records, or ask fewer queries."
    )
