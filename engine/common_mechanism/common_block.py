"""Common part and residuals of blocks on one residual space.

A block measures the residual coordinates c of its residual space with precision matrix K = M^T M /
noise^2, where M holds its strategy rows in residual coordinates.  Blocks on different spaces
measure independent functionals.  So the largest common part of several plans consists of the
largest common part of their blocks on each space.  For one space, with K_i the precision of plan i,
there are three cases:

    one K_i below all others   K_i is the common part.  The frequent case: closed form, any size.
    two product blocks         Coordinates T_1 (x) ... (x) T_k make both precisions diagonal.  The
                               common part has the smaller diagonal entry in every coordinate.
    otherwise                  Up to `MAX_DENSE_COORDINATES`: the dense common mechanism.  Above:
                               t K_m with the largest t for which it lies below all others; it is
                               valid, but may not be the largest common part.

The residual of plan i has precision K_i minus the precision of the look.  It is diagonal in
coordinates T_1 (x) ... (x) T_k that are computed factor by factor, without a matrix on all class
coordinates.

Source: Xiao, Wang, Zhang and Kifer 2022, definitions 3.9 and 3.10, algorithms 1, 3 and 4, on
residual spaces.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from engine._arrays import Array, thin_svd
from engine._format import set_name
from engine._threads import threads_for
from engine.common_mechanism.common_mechanism import (
    RESIDUAL_TOLERANCE,
    CommonMechanism,
    LinearMechanism,
)
from engine.errors import LimitExceeded
from engine.plans import Block
from engine.plans.blocks import noise_grid
from engine.residuals import (
    Axes,
    Complement,
    Lift,
    SplitLift,
    Strategy,
    contract,
    group_axes,
    residual_rows,
)
from engine.residuals.basis import ungroup_axes

# Limit of residual coordinates for a dense common mechanism of two blocks, and of three or more.
MAX_DENSE_COORDINATES = {2: 2_000, 3: 300}
# Strategy rows are dependent if a singular value is below this share of the largest.
RANK_TOLERANCE = 1e-10
# Relative differences of precision up to this value are rounding errors.
PRECISION_TOLERANCE = 1e-11
# Rounding errors move a row out of another row space by at most this share of its length.
SPAN_TOLERANCE = 1e-8
# Finer than the grid of a plan (in bits), so that two steps together round less than one plan
# alone.
GRID_BITS = 33


@dataclass(frozen=True, kw_only=True, eq=False)
class Coordinates:
    """Coordinates T c of some axes: T, shape (r, residual coordinates), right inverse ``back``."""

    axes: Axes
    rows: Array
    back: Array


@dataclass(frozen=True, kw_only=True, eq=False)
class BlockResidual:
    """Residual of a block after a look at the same space.

    In the coordinates `turns` the precisions of the look and of the plan are both diagonal.

    Attributes
    ----------
    turns : the coordinates, factor by factor.
    look_precision : precision of the look, 1/counts^2; one axis per turn, or shape () if it is the
        same in all coordinates.
    block : the block that must still be measured, in these coordinates; None if the look has all
        its information.
    """

    turns: tuple[Coordinates, ...]
    look_precision: Array
    block: Block | None

    def combine(self, looked: Array, answers: Array | None) -> Array:
        """Return the precision-weighted mean of the look and of the answers of `block`, in counts.

        Parameters
        ----------
        looked : residual coordinates estimated by the look, shape (n_1 - 1, ..., n_k - 1).
        answers : answers of `block`, one axis per turn; None if there is no block.

        Returns
        -------
        Residual coordinates, shape (n_1 - 1, ..., n_k - 1).

        Notes
        -----
        Source: algorithm 4.
        """
        sets = [t.axes for t in self.turns]
        look_turned = contract(group_axes(looked, sets), [t.rows.T for t in self.turns])
        # for two independent unbiased estimates, precision weights have least variance
        precision, weighted_sum = self.look_precision, self.look_precision * look_turned
        if self.block is not None and answers is not None:
            weights = 1.0 if self.block.weights is None else self.block.weights
            precision = precision + (weights / self.block.noise) ** 2
            weighted_sum = weighted_sum + weights * answers / self.block.noise**2
        # a coordinate that neither step measures stays 0: no query that the plan answers depends on
        # it
        mean = np.divide(
            weighted_sum,
            precision,
            out=np.zeros_like(weighted_sum),
            where=np.broadcast_to(precision, weighted_sum.shape) > 0,
        )
        return ungroup_axes(contract(mean, [t.back.T for t in self.turns]), sets, looked.shape)


def common_block(
    blocks: Sequence[Block], centers: Sequence[Array | None], complement: Complement | None
) -> tuple[Block | None, str]:
    """Return the common part of blocks on one space, its noise not on a grid, and the method.

    Parameters
    ----------
    blocks : one block per plan, all on the same residual space.
    centers : one per attribute, shape (n_i,).
    complement : of a space of two attributes, where the plans have one.

    Returns
    -------
    The common part, or None if there is none, and the method that computed it.
    """
    # every common part lies below all blocks, so a block that itself lies below all others is the
    # largest one
    smallest = _dominated(blocks)
    if smallest is not None:
        return smallest, "closed form"
    dimension = math.prod(n - 1 for n in blocks[0].sizes)
    with threads_for(min(dimension, max(MAX_DENSE_COORDINATES.values()))):
        if len(blocks) == 2 and (common := _two_products(*blocks)) is not None:
            return common, "closed form"
        if dimension <= MAX_DENSE_COORDINATES[min(len(blocks), 3)]:
            return _dense_common(blocks, centers, complement), "dense"
        return _scaled(blocks)


def block_residual(
    look: Block, block: Block, max_records: int, stretch: float = 1.0
) -> BlockResidual:
    """Return the measurement that completes the look's block to the precision of a plan's block.

    Parameters
    ----------
    look, block : blocks of the look and of the plan on one space.
    max_records : largest number of records, for the grid of the noise.
    stretch : factor of the noise of ``block``.

    Raises
    ------
    LimitExceeded
        The blocks are not products on the same sets of axes, and are too large for dense matrices.
    """
    # in the coordinates of its own rows a block has the same precision in every direction
    precision = 1.0 / (block.noise * stretch) ** 2
    products = block.weights is None and _aligned(look, block)
    if look.weights is None and products:
        if all(_same(s, t) for (_, s), (_, t) in zip(look.factors, block.factors, strict=True)):
            turns = tuple(
                Coordinates(axes=a, rows=_residual_rows(s), back=s.pinv) for a, s in block.factors
            )
            return _rest(
                max_records,
                block,
                turns,
                None,
                np.asarray(1.0 / look.noise**2),
                np.asarray(precision),
            )
        relatives = [
            _relative(s, t) for (_, s), (_, t) in zip(look.factors, block.factors, strict=True)
        ]
        turns = tuple(
            Coordinates(axes=a, rows=t, back=b)
            for (a, _), (_, t, b, _) in zip(block.factors, relatives, strict=True)
        )
        look_precision = _outer([g for *_, g in relatives]) / look.noise**2
        return _rest(
            max_records,
            block,
            turns,
            [p for p, *_ in relatives],
            look_precision,
            np.full(look_precision.shape, precision),
        )
    if look.weights is not None and products:
        # the factors of a weighted look are built so that they make the blocks behind it diagonal
        inverses = [s.pinv for _, s in look.factors]
        relative_rows = [
            _residual_rows(s) @ b for (_, s), b in zip(block.factors, inverses, strict=True)
        ]
        grams = [m.T @ m for m in relative_rows]
        if all(np.abs(g - np.diag(np.diag(g))).max() <= 1e-9 * np.diag(g).max() for g in grams):
            turns = tuple(
                Coordinates(axes=a, rows=_residual_rows(s), back=b)
                for (a, s), b in zip(look.factors, inverses, strict=True)
            )
            plan_precision = _outer([np.diag(g) for g in grams]) * precision
            return _rest(
                max_records, look, turns, None, (look.weights / look.noise) ** 2, plan_precision
            )
    look_rows, plan_rows = dense_rows(look), dense_rows(block)
    P, T, right_inverse, look_precision = _relative_rows(look_rows, plan_rows)
    axes = tuple(range(len(block.attributes)))
    rows = P.T @ _kronecker(block, [s.rows for _, s in block.factors], block.sizes)
    merged = Strategy(
        sizes=block.sizes, rows=rows, pinv=right_inverse, complete=len(rows) == T.shape[1]
    )
    look_precision = look_precision / look.noise**2
    return _rest(
        max_records,
        replace(block, factors=((axes, merged),), weights=None),
        (Coordinates(axes=axes, rows=T, back=right_inverse),),
        None,
        look_precision,
        np.full(look_precision.shape, precision),
    )


def round_noise_up(block: Block, noise: float, max_records: int) -> Block:
    """Return the block with its noise rounded up to a multiple of a fine grid step."""
    grid = noise_grid(noise, max_records * block.column_norm, GRID_BITS)
    return replace(block, noise=math.ceil(noise / grid) * grid, grid=grid)


def dense_rows(block: Block) -> Array:
    """Return M of a small block on all residual coordinates, shape (measurements, coordinates)."""
    dimension = math.prod(n - 1 for n in block.sizes)
    if max(dimension, block.measurements) > 2 * MAX_DENSE_COORDINATES[2]:
        raise LimitExceeded(
            f"On {set_name(block.attributes)} the plans measure different products of attributes,"
            f" and the {dimension:,} coordinates are too many to compare them as a whole;"
            f" {2 * MAX_DENSE_COORDINATES[2]:,} are possible. Ask the same families of these"
            " attributes in every plan, or leave these attributes out of one."
        )
    return _kronecker(
        block, [_residual_rows(s) for _, s in block.factors], [n - 1 for n in block.sizes]
    )


def _rest(
    max_records: int,
    basis_block: Block,
    turns: tuple[Coordinates, ...],
    P: Sequence[Array] | None,
    look_precision: Array,
    plan_precision: Array,
) -> BlockResidual:
    # where the look has the same precision up to rounding, measuring again would need noise of
    # infinite deviation
    residual_precision = np.where(
        plan_precision - look_precision > RESIDUAL_TOLERANCE * plan_precision,
        plan_precision - look_precision,
        0.0,
    )
    if not residual_precision.any():
        return BlockResidual(turns=turns, look_precision=look_precision, block=None)
    noise = 1.0 / math.sqrt(float(residual_precision.max()))
    if residual_precision.shape == ():
        return BlockResidual(
            turns=turns,
            look_precision=look_precision,
            block=round_noise_up(replace(basis_block, noise=noise), noise, max_records),
        )
    factors = []
    for k, ((axes, s), turn) in enumerate(zip(basis_block.factors, turns, strict=True)):
        rows = s.rows if P is None else P[k].T @ s.rows
        factors.append(
            (axes, Strategy(sizes=s.sizes, rows=rows, pinv=turn.back, complete=s.complete))
        )
    residual_block = replace(
        basis_block, factors=tuple(factors), weights=np.sqrt(residual_precision) * noise
    )
    return BlockResidual(
        turns=turns,
        look_precision=look_precision,
        block=round_noise_up(residual_block, noise, max_records),
    )


def _dominated(blocks: Sequence[Block]) -> Block | None:
    """Return the first block whose precision is below that of all others, or None."""
    # the noisiest block first, because it is the most likely one
    for block in sorted(blocks, key=lambda b: -b.noise / b.column_norm):
        if all(b is block or _largest(block, b) <= 1.0 + PRECISION_TOLERANCE for b in blocks):
            return block
    return None


def _largest(lower: Block, upper: Block) -> float:
    """Return the least t with K_lower <= t K_upper; infinite if factors do not show one."""
    if lower.weights is not None or upper.weights is not None or not _aligned(lower, upper):
        return math.inf
    ratio = (upper.noise / lower.noise) ** 2
    for (_, s), (_, t) in zip(lower.factors, upper.factors, strict=True):
        if not _same(s, t):
            # K_s <= t K_t requires that the span of s lies in the span of t; t is the largest
            # relative precision
            *_, ratios = _relative(s, t)
            if not _inside(s, t):
                return math.inf
            # the largest eigenvalue of a Kronecker product is the product of the largest ones
            ratio *= float(ratios.max(initial=0.0))
    return ratio


def _two_products(one: Block, other: Block) -> Block | None:
    """Return the coordinate-wise minimum of the precisions of two aligned products, or None."""
    if not _aligned(one, other) or one.weights is not None or other.weights is not None:
        return None
    factors, ratios = [], []
    for (axes, s), (_, t) in zip(one.factors, other.factors, strict=True):
        if not (_inside(s, t) and _inside(t, s)):
            return None
        P, _, right_inverse, ratio = _relative(s, t)
        factors.append(
            (
                axes,
                Strategy(sizes=t.sizes, rows=P.T @ t.rows, pinv=right_inverse, complete=t.complete),
            )
        )
        ratios.append(ratio)
    # where both are diagonal, A <= B and A <= C hold entry by entry (definition 3.9)
    precision = np.minimum(_outer(ratios) / one.noise**2, 1.0 / other.noise**2)
    noise = 1.0 / math.sqrt(float(precision.max()))
    weights = np.sqrt(precision) * noise
    if len(factors) == 1:
        ((axes, s),) = factors
        weighted = Strategy(
            sizes=s.sizes,
            rows=weights[:, None] * s.rows,
            pinv=s.pinv / weights,
            complete=s.complete,
        )
        return replace(other, factors=((axes, weighted),), noise=noise)
    return replace(other, factors=tuple(factors), noise=noise, weights=weights)


def _dense_common(
    blocks: Sequence[Block], centers: Sequence[Array | None], complement: Complement | None
) -> Block | None:
    common_mechanism = CommonMechanism(*(LinearMechanism(dense_rows(b) / b.noise) for b in blocks))
    if not common_mechanism.common.rank:
        return None
    sizes, S = blocks[0].sizes, common_mechanism.common.standard_rows
    lift = Lift(sizes, centers)
    if complement is not None:
        lift = SplitLift(sizes, centers, ((0, 1),), {(0, 1): complement})
    rows, axes = lift.rows(S), tuple(range(len(sizes)))
    # the common mechanism has noise 1, but a block has column norm 1 and carries its scale in the
    # noise
    norm = math.sqrt(float((rows**2).sum(axis=0).max()))
    pinv = common_mechanism.common.right_inverse * norm
    strategy = Strategy(sizes=sizes, rows=rows / norm, pinv=pinv, complete=len(S) == S.shape[1])
    return replace(blocks[0], factors=((axes, strategy),), noise=1.0 / norm, weights=None)


def _scaled(blocks: Sequence[Block]) -> tuple[Block | None, str]:
    largest, largest_precision = None, 0.0
    for block in blocks:
        # the margin of 1e-12 keeps the scaled block below all others in spite of rounding
        share = 1.0 / max(_largest(block, b) * (1.0 + 1e-12) for b in blocks)
        precision = (
            share * math.prod(float(np.sum(s.rows**2)) for _, s in block.factors) / block.noise**2
        )
        if precision > largest_precision:
            largest, largest_precision = (
                replace(block, noise=block.noise / math.sqrt(min(1.0, share))),
                precision,
            )
    return (
        largest,
        (
            "valid, but not the largest: too many coordinates for that"
            if largest
            else "nothing: too large to compare"
        ),
    )


def _aligned(one: Block, other: Block) -> bool:
    return [a for a, _ in one.factors] == [a for a, _ in other.factors]


def _same(one: Strategy, other: Strategy) -> bool:
    return one is other or np.array_equal(one.rows, other.rows)


def _inside(part: Strategy, outer: Strategy) -> bool:
    """Return whether the span of one strategy lies in the span of the other."""
    if outer.complete:
        return True
    rows = _residual_rows(part)
    outside = rows - (rows @ outer.span) @ outer.span.T
    return float(np.linalg.norm(outside)) <= SPAN_TOLERANCE * float(np.linalg.norm(rows))


def _relative(part: Strategy, reference: Strategy) -> tuple[Array, Array, Array, Array]:
    return _relative_rows(_residual_rows(part), _residual_rows(reference))


def _relative_rows(part: Array, reference: Array) -> tuple[Array, Array, Array, Array]:
    """Return P, T, a right inverse of T, and g; T c are coordinates with diagonal precisions.

    T = P^T M for the rows M of ``reference``, which has precision 1 in every coordinate; ``part``
    has precision diag(g).
    """
    # in the singular coordinates of the reference its precision is the identity, and one symmetric
    # eigenproblem then makes the precision of the part diagonal
    U, sizes, Vt = thin_svd(reference)
    retained = sizes > RANK_TOLERANCE * sizes[0]
    U, sizes, Vt = U[:, retained], sizes[retained], Vt[retained]
    G = (part @ Vt.T) / sizes
    g, Q = np.linalg.eigh(G.T @ G)
    P = U @ Q
    return P, P.T @ reference, (Vt.T / sizes) @ Q, np.maximum(g, 0.0)


def _residual_rows(strategy: Strategy) -> Array:
    """Return M, shape (measurements, residual coordinates): rows times N."""
    return residual_rows(strategy.rows, strategy.sizes)


def _kronecker(block: Block, matrices: Sequence[Array], sizes: Sequence[int]) -> Array:
    """Return the weighted product of one matrix per factor, columns in order of the attributes."""
    product = np.ones((1, 1))
    for matrix in matrices:
        product = np.asarray(np.kron(product, matrix), dtype=float)
    grouped_sizes = [math.prod(sizes[a] for a in axes) for axes in block.sets]
    flat = ungroup_axes(
        product.reshape(len(product), *grouped_sizes), block.sets, sizes, 1
    ).reshape(product.shape)
    return flat if block.weights is None else flat * block.weights.reshape(-1, 1)


def _outer(vectors: Sequence[Array]) -> Array:
    out = np.ones(())
    for v in vectors:
        out = np.multiply.outer(out, v)
    return np.asarray(out)
