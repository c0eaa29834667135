"""Exact counts to noisy whole numbers: strategy answers on the plan's grid, and the noise on them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from engine.arrays import Array
from engine.errors import PlanError
from engine.plans import DEVIATION, Block, Plan, apply_factors
from engine.release.intake import Measurable
from engine.release.noise import MOST_DRAWS, Entropy, discrete_gaussian, discrete_laplace
from engine.release.reconstruct import estimate, strategy_answers
from engine.release.records import Counts, count_marginals
from engine.spaces import Space
from engine.texts import set_name
from engine.threads import threads_for

MOST_BITS = 62  # of an answer before noise; noise itself has far fewer
MOST_NOISE_BITS = 36  # of the noise scale in steps of the grid: noise beyond 2^22 scales, which fits, is never drawn


def check_blocks(part: Measurable) -> None:
    """Measure every kind of block on an empty table, so that nothing can fail once the budget is spent.

    Raises
    ------
    PlanError : the strategy, noise or grid of a block cannot be measured on its attributes.
    """
    seen = set[tuple[object, ...]]()
    for block in part.blocks.values():
        sizes = part.schema.sizes(block.attributes)
        kind = (sizes, block.factors, block.noise, block.grid, block.law, block if block.weights is not None else None)
        if kind not in seen:
            seen.add(kind)
            _check_grid(block)
            _check_on_zeros(block, sizes, estimated=isinstance(part, Plan))
            if not block.column_norm * part.max_records / block.grid < 2.0**MOST_BITS:
                raise PlanError(_refused(block, "has answers that do not fit its grid"))
    if isinstance(part, Plan):
        try:
            # broadcast, zeros of any shape take no memory
            part.combine({key: np.broadcast_to(0.0, b.coordinates) for key, b in part.blocks.items()})
        except Exception:
            raise PlanError(_refused(None, "gives no estimates")) from None


def _check_grid(block: Block) -> None:
    """Raise PlanError unless the noise of a block can be drawn exactly and fits into 64 bits."""
    if block.law not in DEVIATION:
        raise PlanError(_refused(block, "has noise of another law"))
    if not 0.0 < block.grid < math.inf or math.frexp(block.grid)[0] != 0.5:
        raise PlanError(_refused(block, "has a grid that is no power of two"))
    if not 0.0 < block.noise < math.inf or not 1 <= block.grid_noise < 1 << MOST_NOISE_BITS:
        raise PlanError(_refused(block, "has noise that its grid cannot hold"))
    if not math.isclose(block.grid_noise * block.grid * DEVIATION[block.law], block.noise, rel_tol=1e-12):
        raise PlanError(_refused(block, "has noise that is no multiple of its grid"))
    if not 0 <= block.measurements < MOST_DRAWS:
        raise PlanError(_refused(block, "has too many measurements"))


def _check_on_zeros(block: Block, sizes: tuple[int, ...], *, estimated: bool) -> None:
    """Raise PlanError unless a block measures an empty table as zeros, and estimates it as zeros where it does."""
    try:
        matrices = [m for _, s in block.factors for m in (s.rows, s.pinv)]
        finite = all(np.isfinite(m).all() for m in (*matrices, *([] if block.weights is None else [block.weights])))
        answers = _on_grid(block, np.zeros(sizes, np.int64), within=True)
        sound = finite and block.sizes == sizes and answers.shape == (block.measurements,) and not answers.any()
        if sound and estimated:
            with np.errstate(invalid="ignore"):  # what has no weight is not estimated
                found = estimate(block, answers)
            sound = found.shape == block.coordinates and found.dtype == np.float64 and not np.nan_to_num(found).any()
    except Exception:  # matrices of other shapes lead to errors of many kinds
        sound = False
    if not sound:
        raise PlanError(_refused(block, "cannot be measured"))


def _refused(block: Block | None, reason: str) -> str:
    what = "its strategy" if block is None else f"the block on {set_name(block.attributes)}"
    return f"The plan is refused: {what} {reason}. Nothing was spent. Make the plan again."


def draw(
    part: Measurable, counts: Counts, tell: Callable[[float, str], None], entropy: Entropy | None = None
) -> Iterator[tuple[Space, npt.NDArray[np.int64]]]:
    """Yield z = rint(B x / grid) + exact discrete noise of every block, shapes (measurements,), each when it is asked.

    Tables that no block has to itself are held until the last, of answers those of one block at a time.
    """
    wanted = list(dict.fromkeys(b.attributes for b in part.blocks.values()))
    tables = count_marginals(counts, part.schema, wanted, memory_limit=10**15)
    bits = {"entropy": entropy} if entropy else {}
    for i, (space, block) in enumerate(part.blocks.items()):
        with threads_for(max((len(s.rows) for _, s in block.factors), default=1)):
            exact = _on_grid(block, tables[block.attributes], counts.records <= part.max_records)
        if block.law == "laplace":
            noise = discrete_laplace(scale=block.grid_noise, size=block.measurements, **bits)
        else:
            noise = discrete_gaussian(variance=block.grid_noise**2, size=block.measurements, **bits)
        yield space, exact + noise
        tell(0.8 + 0.2 * (i + 1) / len(part.blocks), "Adding noise")


def _on_grid(block: Block, table: npt.NDArray[np.int64], within: bool) -> npt.NDArray[np.int64]:
    """Return rint(B x / grid).

    The charged bound on rounding errors holds up to the plan's number of records.  Past it B x is computed in whole
    numbers, without any error, and what leaves 62 bits is clipped, which brings no two answers farther apart.
    """
    if within:
        return np.rint(strategy_answers(block, table).ravel() / block.grid).astype(np.int64)
    answers, shift = np.asarray(table, object), -math.frexp(block.grid)[1] + 1
    bits = [_fraction_bits(s.rows) for _, s in block.factors]
    whole = {s: _whole_numbers(s.rows, b) for (_, s), b in zip(block.factors, bits, strict=True)}
    answers = apply_factors(block, answers, whole.__getitem__)
    if block.weights is not None:
        bits.append(_fraction_bits(block.weights))
        answers = answers * _whole_numbers(block.weights, bits[-1])
    down = sum(bits) - shift
    limit = 2**MOST_BITS
    return np.array(
        [max(-limit, min(limit, _halved(int(z), down))) for z in np.asarray(answers, object).ravel()], np.int64
    )


def _fraction_bits(matrix: Array) -> int:
    """Return how many binary digits after the point make every entry a whole number."""
    return max(0, int(53 - np.frexp(matrix[matrix != 0])[1].min(initial=53)))


def _whole_numbers(matrix: Array, bits: int) -> npt.NDArray[np.object_]:
    """Return matrix * 2^bits, exactly, as Python integers."""
    return np.array([int(Fraction(v) * 2**bits) for v in matrix.ravel().tolist()], object).reshape(matrix.shape)


def _halved(number: int, bits: int) -> int:
    """Return number / 2^bits, rounded to the nearest whole number."""
    return number << -bits if bits <= 0 else (number + (1 << (bits - 1))) >> bits
