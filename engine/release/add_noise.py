"""Noisy strategy answers: exact counts plus exact discrete noise, as integers on the plan's grid.

This is the only module in which exact counts meet noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from engine._arrays import Array
from engine._format import set_name
from engine._threads import threads_for
from engine.errors import LimitExceeded, PlanError
from engine.plans import Block, Plan
from engine.plans.blocks import STD_PER_SCALE, apply_factors
from engine.records import Counts, count_marginals
from engine.release.ingest import Measurable
from engine.release.measurement import estimate, strategy_answers
from engine.release.noise import MAX_DRAWS, Entropy, discrete_gaussian, discrete_laplace
from engine.residuals import Space
from engine.residuals.operators import EntryRows

# Largest number of bits of an answer in grid steps before noise: answer plus noise fits in int64.
MOST_BITS = 62
# Largest number of bits of the noise scale in grid steps: noise of 2^22 times this scale fits in
# int64.
MOST_NOISE_BITS = 36
# If the tables on all residual spaces have at most this number of cells in total, all of them are
# in memory at the same time; otherwise one table at a time.
MAX_TABLE_CELLS = 1 << 20
# Number of answers that are rounded at once.
ROUNDING_SLAB_ENTRIES = 1 << 18


def check_blocks(part: Measurable) -> None:
    """Check before budget is spent that every block of ``part`` can be measured.

    Noise and grid of each distinct block are checked, and the block is measured without noise on a
    table of zeros.

    Raises
    ------
    PlanError
        A block cannot be measured, or the estimates cannot be combined.
    LimitExceeded
        A block is too large to be measured.
    """
    checked_classes = set[tuple[object, ...]]()
    for block in part.blocks.values():
        sizes = part.schema.sizes(block.attributes)
        # Equal blocks are checked once.  Weights are arrays, which cannot be part of a key, so a
        # block with weights counts as equal only to itself.
        block_class = (
            sizes,
            block.factors,
            block.noise,
            block.grid,
            block.law,
            block if block.weights is not None else None,
        )
        if block_class not in checked_classes:
            checked_classes.add(block_class)
            _check_grid(block)
            _check_on_zeros(block, sizes, estimated=isinstance(part, Plan))
            if not block.column_norm * part.max_records / block.grid < 2.0**MOST_BITS:
                raise PlanError(
                    _refusal_text(block, f"has answers of 2**{MOST_BITS} or more grid steps")
                )
    if isinstance(part, Plan):
        try:
            # a broadcast array of zeros takes no memory, whatever its shape
            part.combine(
                {key: np.broadcast_to(0.0, b.coordinates) for key, b in part.blocks.items()}
            )
        except Exception:
            raise PlanError(_refusal_text(None, "does not determine the answers")) from None


def _check_grid(block: Block) -> None:
    """Raise PlanError unless the noise of a block can be drawn exactly.

    The grid must be a power of two.  The noise scale must be an integer of at most
    `MOST_NOISE_BITS` bits, in grid steps.  The block must have fewer than `MAX_DRAWS` measurements.
    """
    if block.law not in STD_PER_SCALE:
        raise PlanError(_refusal_text(block, "has an unknown noise distribution"))
    if not 0.0 < block.grid < math.inf or math.frexp(block.grid)[0] != 0.5:
        raise PlanError(_refusal_text(block, "has a grid that is not a power of two"))
    if not 0.0 < block.noise < math.inf or not 1 <= block.grid_noise < 1 << MOST_NOISE_BITS:
        reason = f"has a noise scale that is not from 1 to 2**{MOST_NOISE_BITS} grid steps"
        raise PlanError(_refusal_text(block, reason))
    if not math.isclose(
        block.grid_noise * block.grid * STD_PER_SCALE[block.law], block.noise, rel_tol=1e-12
    ):
        raise PlanError(
            _refusal_text(block, "has a noise scale that is not a whole number of grid steps")
        )
    if not 0 <= block.measurements < MAX_DRAWS:
        raise PlanError(_refusal_text(block, "has too many measurements"))


def _check_on_zeros(block: Block, sizes: tuple[int, ...], *, estimated: bool) -> None:
    """Raise PlanError unless a table of zeros gives zero answers of the right shape.

    Parameters
    ----------
    sizes : numbers of cells of the block's attributes.
    estimated : whether the estimates computed from the answers must be zero as well.
    """
    try:
        is_finite = all(s.is_finite for _, s in block.factors) and (
            block.weights is None or bool(np.isfinite(block.weights).all())
        )
        # a broadcast array of zeros takes no memory, whatever its shape
        zeros = np.broadcast_to(np.int64(0), sizes)
        answers = _on_grid(block, zeros, within_max_records=True)
        is_valid = (
            is_finite
            and block.sizes == sizes
            and answers.shape == (block.measurements,)
            and not answers.any()
        )
        if is_valid and estimated:
            answers = np.broadcast_to(np.int64(0), answers.shape)
            # coordinates with weight 0 are not measured; their estimate is nan, which fmin and fmax
            # ignore
            with np.errstate(invalid="ignore"):
                estimates = estimate(block, answers)
            is_valid = (
                estimates.shape == block.coordinates
                and estimates.dtype == np.float64
                and np.fmin.reduce(estimates, axis=None, initial=0.0) == 0.0
                and np.fmax.reduce(estimates, axis=None, initial=0.0) == 0.0
            )
    except LimitExceeded:
        raise
    # matrix products of a damaged plan can raise any error
    except Exception:
        is_valid = False
    if not is_valid:
        raise PlanError(_refusal_text(block, "cannot be measured"))


def _refusal_text(block: Block | None, reason: str) -> str:
    """Return the message that a plan cannot be measured because of ``reason``.

    The subject of the sentence is the block, or the strategy of the plan if ``block`` is None.
    """
    subject = "its strategy" if block is None else f"the block on {set_name(block.attributes)}"
    return f"The plan is refused: {subject} {reason}. Nothing was spent. Plan again."


def draw(
    part: Measurable,
    counts: Counts,
    report_progress: Callable[[float, str], None],
    entropy: Entropy | None = None,
) -> Iterator[tuple[Space, npt.NDArray[np.int64]]]:
    """Yield the key of each block and its noisy answers z = rint(B x / grid) + discrete noise.

    The answers have shape (measurements,) and are in grid steps.  Each block is measured when the
    iteration reaches its pair, so that memory holds the answers of one block.

    Parameters
    ----------
    part : plan to measure, or what remains of a plan after the first of two stages.
    counts : exact tables; the tables on the attributes of all blocks are margins of these tables.
    report_progress : function that receives a fraction from 0.8 to 1 and a text.
    entropy : source of the random bits; None for the operating system.
    """
    spaces = list(dict.fromkeys(b.attributes for b in part.blocks.values()))
    are_small = sum(map(part.schema.cells, spaces)) <= MAX_TABLE_CELLS
    tables = _tables(counts, part, spaces if are_small else [])
    bits = {"entropy": entropy} if entropy else {}
    for i, (space, block) in enumerate(part.blocks.items()):
        with threads_for(max((len(s.rows) for _, s in block.factors), default=1)):
            # if all tables together are large, each one is computed here and deleted afterwards
            names = block.attributes
            table = (tables if are_small else _tables(counts, part, [names]))[names]
            answers = _on_grid(block, table, counts.records <= part.max_records)
            del table
        if block.law == "laplace":
            noise = discrete_laplace(scale=block.grid_noise, size=block.measurements, **bits)
        else:
            noise = discrete_gaussian(variance=block.grid_noise**2, size=block.measurements, **bits)
        answers += noise
        del noise
        yield space, answers
        report_progress(0.8 + 0.2 * (i + 1) / len(part.blocks), "Adding noise")


def _tables(counts: Counts, part: Measurable, spaces: Sequence[Space]) -> Counts:
    """Return the exact tables on ``spaces``, which are margins of the counted tables."""
    return count_marginals(counts, part.schema, spaces, memory_limit=10**15)


def _on_grid(
    block: Block, table: npt.NDArray[np.int64], within_max_records: bool
) -> npt.NDArray[np.int64]:
    """Return the strategy answers before noise, rint(B x / grid), shape (measurements,).

    Parameters
    ----------
    table : exact counts x on the attributes of the block.
    within_max_records : whether the number of records is at most ``max_records`` of the plan.  If
        True, B x is computed in floating point; the privacy cost includes its rounding errors only
        up to this number of records.  If False, B x is computed exactly in integers and clipped to
        62 bits; clipping never increases the difference between the answers of neighbours.
    """
    if within_max_records:
        exact = strategy_answers(block, table).ravel()
        exact /= block.grid
        # the integers overwrite the floats in the same memory, slab by slab
        integers = exact.view(np.int64)
        for start in range(0, len(exact), ROUNDING_SLAB_ENTRIES):
            slab = slice(start, start + ROUNDING_SLAB_ENTRIES)
            integers[slab] = np.rint(exact[slab])
        return integers
    answers = np.asarray(table, object)
    # each matrix is multiplied by a power of two that makes all its entries integers
    bits = [_fraction_bits(s.rows) for _, s in block.factors]
    integer_matrices = {
        s: _scaled_integers(s.rows, b) for (_, s), b in zip(block.factors, bits, strict=True)
    }
    answers = apply_factors(block, answers, integer_matrices.__getitem__)
    if block.weights is not None:
        bits.append(_fraction_bits(block.weights))
        answers = answers * _scaled_integers(block.weights, bits[-1])
    # `answers` are the answers times 2^sum(bits), and the grid is 2^-grid_bits.  In grid steps, the
    # answers are therefore `answers` / 2^(sum(bits) - grid_bits).
    grid_bits = -math.frexp(block.grid)[1] + 1
    total_bits = sum(bits) - grid_bits
    limit = 2**MOST_BITS
    return np.array(
        [
            max(-limit, min(limit, _rounded_shift(int(z), total_bits)))
            for z in np.asarray(answers, object).ravel()
        ],
        np.int64,
    )


def _fraction_bits(matrix: Array | EntryRows) -> int:
    """Return a number of bits such that every entry times 2^bits is an integer."""
    if isinstance(matrix, EntryRows):
        matrix = matrix.entries
    entries = np.asarray(matrix)
    return max(0, int(53 - np.frexp(entries[entries != 0])[1].min(initial=53)))


def _scaled_integers(matrix: Array | EntryRows, bits: int) -> Any:
    """Return ``matrix`` times 2^bits, exactly, as Python integers in the same shape."""
    if isinstance(matrix, EntryRows):
        return matrix.with_entries(_scaled_integers(matrix.entries, bits))
    entries = np.asarray(matrix).ravel().tolist()
    return np.array([int(Fraction(v) * 2**bits) for v in entries], object).reshape(matrix.shape)


def _rounded_shift(number: int, bits: int) -> int:
    """Return number / 2^bits, rounded to the nearest integer; halves are rounded up."""
    return number << -bits if bits <= 0 else (number + (1 << (bits - 1))) >> bits
