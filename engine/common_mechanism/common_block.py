"""Common part and residuals of several plans' blocks on one residual space.

A block measures the residual coordinates c of its residual space with the precision matrix
K = M^T M / noise^2, where M are its strategy rows in residual coordinates.  Blocks on different
residual spaces are independent, so the common part of several plans is computed one residual space
at a time.

**Common part.**  Let K_i be the precision of the block of plan i, and let K <= K' mean that K' - K
is positive semidefinite.  The common part has the largest precision that is <= all K_i.  There are
three cases:

    one K_i <= all others      The common part is K_i.  This is the frequent case; it has a closed
                               form for any size.
    two product blocks         If every factor of one block measures a subspace of what the factor
                               of the other block measures, there are coordinates
                               T_1 (x) ... (x) T_k of these subspaces in which both precisions are
                               diagonal.  The common part has the smaller diagonal entry in every
                               coordinate.
    otherwise                  Up to `MAX_DENSE_COORDINATES` coordinates: the common mechanism of
                               dense matrices.  Above: t K_m for one plan m and the largest t such
                               that t K_m <= all K_i.  Its privacy is valid, but another common part
                               may be larger.  If no plan has such a t above 0: nothing.

**Residual.**  The common part is measured first; this stage is called the look.  What remains to be
measured for plan i, its residual, has the precision K_i minus the precision of the look.  If
possible, `block_residual` computes coordinates T_1 (x) ... (x) T_k in which this precision is
diagonal, factor by factor.  Otherwise it uses dense matrices on all residual coordinates.

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

# Largest number of residual coordinates for which the common part is computed with dense matrices;
# keys are the number of blocks, where 3 stands for three or more.
MAX_DENSE_COORDINATES = {2: 2_000, 3: 300}
# Strategy rows are dependent if a singular value is below this share of the largest.
RANK_TOLERANCE = 1e-10
# Relative differences of precision up to this value are rounding errors.
PRECISION_TOLERANCE = 1e-11
# Vectors replace an array of weights if every entry of their outer product differs from the weight
# by at most this share of the weight.
SEPARATION_TOLERANCE = 1e-13
# Rows count as inside a row space if their distance from the space is at most this share of their
# norm.
SPAN_TOLERANCE = 1e-8
# In both stages, answers are rounded to a grid of 2^-33 of the noise scale or less, unless the
# number of records requires a coarser grid.  This grid is finer than that of a plan, so that
# rounding in two stages usually costs less privacy than rounding the answers of one plan.
GRID_BITS = 33


@dataclass(frozen=True, kw_only=True, eq=False)
class Coordinates:
    """Linear coordinates T c of the residual coordinates c of some attributes.

    Attributes
    ----------
    axes : positions of the attributes in the residual space.
    rows : T, shape (r, residual coordinates of these attributes).
    right_inverse : right inverse of T, shape (residual coordinates, r).
    """

    axes: Axes
    rows: Array
    right_inverse: Array


@dataclass(frozen=True, kw_only=True, eq=False)
class BlockResidual:
    """What remains to be measured for a plan's block after the first stage (the look).

    Its coordinates are such that the precisions of the look and of the plan's block are both
    diagonal.

    Attributes
    ----------
    coordinates : the coordinates, one entry per Kronecker factor of the block.
    look_precision : diagonal of the precision of the look in these coordinates, in 1/counts^2, with
        one axis per factor; shape () if all entries are equal.
    block : the block that remains to be measured; None if the look has the full precision of the
        plan's block.
    """

    coordinates: tuple[Coordinates, ...]
    look_precision: Array
    block: Block | None

    def combine(self, look_estimates: Array, answers: Array | None) -> Array:
        """Return the residual coordinates estimated from both stages, weighted by precision.

        Parameters
        ----------
        look_estimates : residual coordinates estimated from the first stage (the look), in counts,
            shape (n_1 - 1, ..., n_k - 1).
        answers : answers of `block` in the second stage, in counts, with one axis per factor; None
            if `block` is None.

        Returns
        -------
        Residual coordinates in counts, shape (n_1 - 1, ..., n_k - 1).

        Notes
        -----
        Source: Xiao, Wang, Zhang and Kifer 2022, algorithm 4.
        """
        sets = [t.axes for t in self.coordinates]
        look_coordinates = contract(
            group_axes(look_estimates, sets), [t.rows.T for t in self.coordinates]
        )
        # of all weighted means of independent unbiased estimates, the one with weights proportional
        # to the precisions has the least variance
        precision = self.look_precision
        weighted_sum = self.look_precision * look_coordinates
        if self.block is not None and answers is not None:
            weights = 1.0 if self.block.weights is None else self.block.weights
            precision = precision + (weights / self.block.noise) ** 2
            weighted_sum = weighted_sum + weights * answers / self.block.noise**2
        # A coordinate that neither stage measures is set to 0, because no query of the plan depends
        # on it.
        mean = np.divide(
            weighted_sum,
            precision,
            out=np.zeros_like(weighted_sum),
            where=np.broadcast_to(precision, weighted_sum.shape) > 0,
        )
        return ungroup_axes(
            contract(mean, [t.right_inverse.T for t in self.coordinates]),
            sets,
            look_estimates.shape,
        )


def common_block(
    blocks: Sequence[Block], centers: Sequence[Array | None], complement: Complement | None
) -> tuple[Block | None, str]:
    """Return the common part of several plans' blocks on one residual space.

    Parameters
    ----------
    blocks : one block per plan, all on the same residual space.
    centers : center of each attribute, shape (n_i,), or None for the uniform center.
    complement : complement (general form of a center) of a pair of attributes; None if the residual
        space is defined by centers.

    Returns
    -------
    block : the common part, whose noise is not yet rounded to a grid; None if it is empty.
    method : name of the method that computed the block.

    Raises
    ------
    LimitExceeded
        A block has too many measurements for dense matrices.
    """
    # a block whose precision is at most that of all other blocks is the largest common part
    smallest = _least_precise(blocks)
    if smallest is not None:
        return smallest, "closed form"
    dimension = math.prod(n - 1 for n in blocks[0].sizes)
    with threads_for(min(dimension, max(MAX_DENSE_COORDINATES.values()))):
        if len(blocks) == 2 and (common := _common_of_products(*blocks)) is not None:
            return common, "closed form"
        if dimension <= MAX_DENSE_COORDINATES[min(len(blocks), 3)]:
            return _dense_common(blocks, centers, complement), "dense"
        return _scaled_common(blocks)


def block_residual(
    look: Block, block: Block, max_records: int, stretch: float = 1.0
) -> BlockResidual:
    """Return what remains to be measured in the second stage to reach the precision of a block.

    Parameters
    ----------
    look, block : blocks of the look (the first stage) and of the plan on one residual space.
    max_records : largest allowed number of records, which determines the noise grid.
    stretch : factor by which the noise of ``block`` is multiplied.

    Raises
    ------
    LimitExceeded
        No coordinates make both precisions diagonal factor by factor, and the blocks are too large
        for dense matrices.
    """
    form = None
    if block.weights is None and _are_aligned(look, block):
        form = (
            _form_of_products(look, block) if look.weights is None else _form_of_look(look, block)
        )
    form = form or _dense_form(look, block)
    # precision of the answer to one strategy row of the plan's block, in 1/counts^2
    precision = 1.0 / (block.noise * stretch) ** 2
    plan_precision = np.asarray(form.plan_precision * precision)
    # differences that are rounding errors are set to 0 (no measurement)
    residual_precision = np.where(
        plan_precision - form.look_precision > RESIDUAL_TOLERANCE * plan_precision,
        plan_precision - form.look_precision,
        0.0,
    )
    residual = None
    if residual_precision.any():
        noise = 1.0 / math.sqrt(float(residual_precision.max()))
        residual = round_noise_up(
            _block_of_form(form, residual_precision, noise), noise, max_records
        )
    return BlockResidual(
        coordinates=form.coordinates, look_precision=form.look_precision, block=residual
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _DiagonalForm:
    """Coordinates in which the precisions of a block of the look and of the plan are diagonal.

    Attributes
    ----------
    basis : block with the strategy rows M of every factor.
    coordinates : coordinates of every factor, whose rows are T = P^T M.
    P : one matrix per factor; None if all are the identity.
    look_precision : diagonal of the precision of the look (first stage), in 1/counts^2, with one
        axis per factor; shape () if all entries are equal.
    plan_precision : diagonal of the precision of the plan's block with noise 1, in the same shape.
    """

    basis: Block
    coordinates: tuple[Coordinates, ...]
    P: Sequence[Array] | None
    look_precision: Array
    plan_precision: Array


def _form_of_products(look: Block, block: Block) -> _DiagonalForm:
    """Return the diagonal form of two Kronecker products without row weights.

    The factors of ``look`` (a block of the first stage) and ``block`` are on the same attributes.
    """
    strategy_pairs = [(s, t) for (_, s), (_, t) in zip(look.factors, block.factors, strict=True)]
    if all(_have_equal_rows(s, t) for s, t in strategy_pairs):
        # In the coordinates that the rows define, both precisions are multiples of the identity.
        return _DiagonalForm(
            basis=block,
            coordinates=tuple(
                Coordinates(axes=axes, rows=_residual_rows(strategy), right_inverse=strategy.pinv)
                for axes, strategy in block.factors
            ),
            P=None,
            look_precision=np.asarray(1.0 / look.noise**2),
            plan_precision=np.ones(()),
        )
    P: list[Array] = []
    coordinates: list[Coordinates] = []
    factor_precisions: list[Array] = []
    for (axes, _), (look_strategy, strategy) in zip(block.factors, strategy_pairs, strict=True):
        # ``precision`` is the diagonal precision of the look's (first stage's) factor with noise 1.
        rotation, T, right_inverse, precision = _diagonal_coordinates(
            _residual_rows(look_strategy), _residual_rows(strategy)
        )
        P.append(rotation)
        coordinates.append(Coordinates(axes=axes, rows=T, right_inverse=right_inverse))
        factor_precisions.append(precision)
    look_precision = _outer_product(factor_precisions) / look.noise**2
    return _DiagonalForm(
        basis=block,
        coordinates=tuple(coordinates),
        P=P,
        look_precision=look_precision,
        plan_precision=np.ones(look_precision.shape),
    )


def _form_of_look(look: Block, block: Block) -> _DiagonalForm | None:
    """Return the diagonal form in coordinates that contain the rows of ``look``.

    ``look`` (a block of the first stage) and ``block`` are Kronecker products on the same
    attributes, and ``look`` has row weights.  The result is None if a precision is not diagonal in
    these coordinates.
    """
    assert look.weights is not None
    # A look (first stage) has row weights if `_common_of_products` computed it. The rows of such a
    # look define coordinates in which the precisions of two plans' blocks are diagonal. The
    # precision of ``block`` is usually diagonal in these coordinates, too.
    strategy_pairs = [(s, t) for (_, s), (_, t) in zip(look.factors, block.factors, strict=True)]
    relative_rows = [_residual_rows(t) @ s.pinv for s, t in strategy_pairs]
    grams = [m.T @ m for m in relative_rows]
    if all(_is_in_row_space(t, s) for s, t in strategy_pairs) and all(map(_is_diagonal, grams)):
        return _DiagonalForm(
            basis=look,
            coordinates=tuple(
                Coordinates(axes=axes, rows=_residual_rows(strategy), right_inverse=strategy.pinv)
                for axes, strategy in look.factors
            ),
            P=None,
            look_precision=(look.weights / look.noise) ** 2,
            plan_precision=_outer_product([np.diag(gram) for gram in grams]),
        )
    # The rows of the look (first stage) do not span those of ``block``, or a precision is not
    # diagonal. Rows are added until the coordinates cover everything that ``block`` measures.
    coordinates: list[Coordinates] = []
    P: list[Array] = []
    squared_lengths: list[Array] = []
    for (axes, look_strategy), (_, strategy) in zip(look.factors, block.factors, strict=True):
        factor_coordinates, factor_P, gram = _extended_coordinates(axes, look_strategy, strategy)
        if not _is_diagonal(gram):
            return None
        coordinates.append(factor_coordinates)
        P.append(factor_P)
        squared_lengths.append(np.diag(gram))
    # The look (first stage) measures only the first coordinates of every Kronecker factor, so its
    # precision is 0 in all other coordinates.
    weights = look.weights * np.sqrt(_outer_product(squared_lengths))
    look_precision = np.zeros([len(c.rows) for c in coordinates])
    look_precision[tuple(slice(n) for n in weights.shape)] = (weights / look.noise) ** 2
    return _DiagonalForm(
        basis=block,
        coordinates=tuple(coordinates),
        P=P,
        look_precision=look_precision,
        plan_precision=np.ones(look_precision.shape),
    )


def _dense_form(look: Block, block: Block) -> _DiagonalForm:
    """Return the diagonal form in one factor on all attributes, from dense matrices.

    Raises LimitExceeded if these matrices are too large.
    """
    P, T, right_inverse, look_precision = _diagonal_coordinates(dense_rows(look), dense_rows(block))
    axes = tuple(range(len(block.attributes)))
    rows = P.T @ _kronecker(block, [s.rows for _, s in block.factors], block.sizes)
    merged = Strategy(
        sizes=block.sizes, rows=rows, pinv=right_inverse, complete=len(rows) == T.shape[1]
    )
    return _DiagonalForm(
        basis=replace(block, factors=((axes, merged),), weights=None),
        coordinates=(Coordinates(axes=axes, rows=T, right_inverse=right_inverse),),
        P=None,
        look_precision=look_precision / look.noise**2,
        plan_precision=np.ones(look_precision.shape),
    )


def _block_of_form(form: _DiagonalForm, precision: Array, noise: float) -> Block:
    """Return the block that measures the coordinates of ``form`` with the given precision.

    ``precision`` has the shape of the precisions in ``form``; its largest entry is 1 / noise^2.
    """
    if precision.shape == ():
        return replace(form.basis, noise=noise)
    factors = []
    for k, ((axes, s), coordinates) in enumerate(
        zip(form.basis.factors, form.coordinates, strict=True)
    ):
        rows = s.rows if form.P is None else form.P[k].T @ s.rows
        pinv = coordinates.right_inverse
        strategy = Strategy(sizes=s.sizes, rows=rows, pinv=pinv, complete=s.complete)
        factors.append((axes, strategy))
    return replace(form.basis, factors=tuple(factors), weights=np.sqrt(precision) * noise)


def _is_diagonal(matrix: Array) -> bool:
    """Return whether a matrix is diagonal up to rounding errors."""
    diagonal = np.diag(matrix)
    return bool(np.abs(matrix - np.diag(diagonal)).max() <= 1e-9 * diagonal.max())


def _extended_coordinates(
    axes: Axes, look: Strategy, plan: Strategy
) -> tuple[Coordinates, Array, Array]:
    """Return coordinates in which ``plan`` has the precision I, for one Kronecker factor.

    ``look`` (first stage) and ``plan`` are the strategies of this factor, with noise 1.  The row
    space of ``look`` must be contained in that of ``plan``.  The first coordinates span this row
    space.

    Returns
    -------
    coordinates : the coordinates of the attributes at positions ``axes``.
    P : matrix with orthonormal columns.  If M are the strategy rows of ``plan``, the rows of the
        coordinates are P^T M.
    gram : Gram matrix of the rows of ``look``.  If it is diagonal, the first coordinates are these
        rows, scaled to length 1, and the precision of ``look`` is diagonal.
    """
    U, singular_values, Vt = thin_svd(_residual_rows(plan))
    retained = singular_values > RANK_TOLERANCE * singular_values[0]
    U, singular_values, Vt = U[:, retained], singular_values[retained], Vt[retained]
    look_rows = (_residual_rows(look) @ Vt.T) / singular_values
    gram = look_rows @ look_rows.T
    # QR extends the normalized rows of the look (first stage) to an orthonormal basis of all
    # coordinates
    normalized = look_rows / np.sqrt(np.diag(gram))[:, None]
    Q, R = np.linalg.qr(normalized.T, mode="complete")
    # QR may return a row with the opposite sign
    Q[:, : len(R.T)] *= np.sign(np.diag(R))
    P = U @ Q
    coordinates = Coordinates(
        axes=axes, rows=P.T @ _residual_rows(plan), right_inverse=(Vt.T / singular_values) @ Q
    )
    return coordinates, P, gram


def round_noise_up(block: Block, noise: float, max_records: int) -> Block:
    """Return the block with the noise scale ``noise``, rounded up to a multiple of its new grid.

    `GRID_BITS` and ``max_records`` determine the grid.
    """
    grid = noise_grid(noise, max_records * block.column_norm, GRID_BITS)
    return replace(block, noise=math.ceil(noise / grid) * grid, grid=grid)


def dense_rows(block: Block) -> Array:
    """Return the rows M of a block as a dense matrix, shape (measurements, residual coordinates).

    Raises
    ------
    LimitExceeded
        The matrix is too large.
    """
    dimension = math.prod(n - 1 for n in block.sizes)
    if max(dimension, block.measurements) > 2 * MAX_DENSE_COORDINATES[2]:
        raise LimitExceeded(
            f"The plans measure {set_name(block.attributes)} with different strategies. Combining "
            f"them needs a dense matrix of {block.measurements:,} rows and {dimension:,} columns. At "
            f"most {2 * MAX_DENSE_COORDINATES[2]:,} rows and as many columns are allowed. Use the "
            "same query families on these attributes in every plan, or remove the attributes from "
            "one plan."
        )
    return _kronecker(
        block, [_residual_rows(s) for _, s in block.factors], [n - 1 for n in block.sizes]
    )


def _least_precise(blocks: Sequence[Block]) -> Block | None:
    """Return the block whose precision is at most that of all other blocks.

    The result is None if there is no such block.
    """
    # start with the noisiest block, which most likely has the lowest precision
    for block in sorted(blocks, key=lambda b: -b.noise / b.column_norm):
        if all(
            b is block or _precision_ratio(block, b) <= 1.0 + PRECISION_TOLERANCE for b in blocks
        ):
            return block
    return None


def _precision_ratio(lower: Block, upper: Block) -> float:
    """Return the least t with K_lower <= t K_upper, where K is the precision matrix of a block.

    The result is infinite if there is no such t.  It is also infinite for blocks that this function
    cannot compare: a block has row weights, or the blocks are not Kronecker products of factors on
    the same attributes.
    """
    if lower.weights is not None or upper.weights is not None or not _are_aligned(lower, upper):
        return math.inf
    ratio = (upper.noise / lower.noise) ** 2
    for (_, lower_factor), (_, upper_factor) in zip(lower.factors, upper.factors, strict=True):
        if not _have_equal_rows(lower_factor, upper_factor):
            # the ratio is finite only if the row space of the lower factor lies in that of the
            # upper one
            if not _is_in_row_space(lower_factor, upper_factor):
                return math.inf
            # precisions of the lower factor relative to the upper factor
            *_, relative_precisions = _diagonal_coordinates(
                _residual_rows(lower_factor), _residual_rows(upper_factor)
            )
            # the largest eigenvalue of a Kronecker product is the product of the largest
            # eigenvalues of its factors
            ratio *= float(relative_precisions.max(initial=0.0))
    return ratio


def _common_of_products(one: Block, other: Block) -> Block | None:
    """Return the common part of two blocks that are Kronecker products, factor by factor.

    The result is None if a block has row weights, or if the factors of the blocks are not on the
    same attributes.  It is also None if neither block measures a subspace of what the other one
    measures: the row space of every factor must lie in that of the same factor of the other block.
    """
    if not _are_aligned(one, other) or one.weights is not None or other.weights is not None:
        return None
    is_one_inner = all(
        _is_in_row_space(factor, other_factor)
        for (_, factor), (_, other_factor) in zip(one.factors, other.factors, strict=True)
    )
    inner, outer = (one, other) if is_one_inner else (other, one)
    factors, precisions = [], []
    for (axes, inside), (_, outside) in zip(inner.factors, outer.factors, strict=True):
        if not _is_in_row_space(inside, outside):
            return None
        if _is_in_row_space(outside, inside):
            # The row spaces are equal.  In the coordinates P^T outside.rows, the precision of
            # ``outside`` is the identity and the precision of ``inside`` is diagonal.
            P, _, right_inverse, inner_precision = _diagonal_coordinates(
                _residual_rows(inside), _residual_rows(outside)
            )
            rows, complete = P.T @ outside.rows, outside.complete
            outer_precision = np.ones(len(P.T))
        else:
            rows, right_inverse, outer_precision = _restricted_precision(inside, outside)
            inner_precision = np.ones(len(outer_precision))
            complete = inside.complete
        strategy = Strategy(sizes=inside.sizes, rows=rows, pinv=right_inverse, complete=complete)
        factors.append((axes, strategy))
        precisions.append((inner_precision, outer_precision))
    # The precisions of both blocks are diagonal in the coordinates of ``factors``.  The largest
    # precision that is at most both is therefore their minimum in every coordinate (definition
    # 3.9).
    precision = np.minimum(
        _outer_product([inner_precision for inner_precision, _ in precisions]) / inner.noise**2,
        _outer_product([outer_precision for _, outer_precision in precisions]) / outer.noise**2,
    )
    noise = 1.0 / math.sqrt(float(precision.max()))
    weights = np.sqrt(precision) * noise
    # If the weights are an outer product with one vector per factor, the rows of each factor are
    # multiplied by its vector, so that the block needs no row weights.
    factor_weights = _outer_factors(weights)
    if factor_weights is None:
        return replace(other, factors=tuple(factors), noise=noise, weights=weights)
    weighted = [
        (axes, replace(strategy, rows=w[:, None] * strategy.rows, pinv=strategy.pinv / w))
        for (axes, strategy), w in zip(factors, factor_weights, strict=True)
    ]
    return replace(other, factors=tuple(weighted), noise=noise)


def _outer_factors(weights: Array) -> list[Array] | None:
    """Return vectors whose outer product is ``weights``, up to rounding errors.

    The result is None if ``weights`` is not an outer product.
    """
    peak = tuple(int(i) for i in np.unravel_index(int(weights.argmax()), weights.shape))
    indices: list[tuple[int | slice, ...]] = [
        (*peak[:axis], slice(None), *peak[axis + 1 :]) for axis in range(weights.ndim)
    ]
    vectors = [weights[index] for index in indices]
    # Every vector contains the largest entry of ``weights``.  Dividing all vectors but the first by
    # this entry makes the largest entry of the outer product equal to it.
    vectors = [vectors[0], *(v / weights[peak] for v in vectors[1:])]
    is_product = np.allclose(_outer_product(vectors), weights, rtol=SEPARATION_TOLERANCE, atol=0.0)
    return vectors if is_product else None


def _restricted_precision(part: Strategy, outer: Strategy) -> tuple[Array, Array, Array]:
    """Return coordinates of the row space of ``part`` in which two precisions are diagonal.

    One is the precision of the strategy ``part``, the other the precision of the strategy
    ``outer``, both with noise 1.  The row space of ``part`` must lie in that of ``outer``.

    Returns
    -------
    rows : the coordinates as linear combinations of cells, shape (r, cells).  In these coordinates,
        the precision of ``part`` is the identity matrix.
    right_inverse : right inverse of the rows in residual coordinates.
    precision : diagonal of the precision with which ``outer`` estimates these coordinates.

    Notes
    -----
    A precision whose row space lies in that of ``part`` is at most the precision of ``outer`` if
    and only if, in the coordinates ``rows``, it is at most ``precision``.
    """
    U, singular_values, Vt = thin_svd(_residual_rows(part))
    retained = singular_values > RANK_TOLERANCE * singular_values[0]
    U, singular_values, Vt = U[:, retained], singular_values[retained], Vt[retained]
    # This matrix times the answers of ``outer`` gives the best estimates of the coordinates
    # U^T part.rows.  Answers have variance 1, so the estimates have the covariance
    # estimation @ estimation.T.
    estimation = (singular_values[:, None] * Vt) @ outer.pinv
    variances, Q = np.linalg.eigh(estimation @ estimation.T)
    return (U @ Q).T @ part.rows, (Vt.T / singular_values) @ Q, 1.0 / variances


def _dense_common(
    blocks: Sequence[Block], centers: Sequence[Array | None], complement: Complement | None
) -> Block | None:
    """Return the common part, computed with dense matrices; None if it is empty."""
    common_mechanism = CommonMechanism(*(LinearMechanism(dense_rows(b) / b.noise) for b in blocks))
    if not common_mechanism.common.rank:
        return None
    sizes, S = blocks[0].sizes, common_mechanism.common.standard_rows
    lift = Lift(sizes, centers)
    if complement is not None:
        lift = SplitLift(sizes, centers, ((0, 1),), {(0, 1): complement})
    rows, axes = lift.rows(S), tuple(range(len(sizes)))
    # The common mechanism has noise 1 and any column norm.  A block must have column norm 1, so
    # rows and noise are divided by the norm.
    norm = math.sqrt(float((rows**2).sum(axis=0).max()))
    pinv = common_mechanism.common.right_inverse * norm
    strategy = Strategy(sizes=sizes, rows=rows / norm, pinv=pinv, complete=len(S) == S.shape[1])
    return replace(blocks[0], factors=((axes, strategy),), noise=1.0 / norm, weights=None)


def _scaled_common(blocks: Sequence[Block]) -> tuple[Block | None, str]:
    """Return one of the blocks, with its noise raised until it is no more precise than any block.

    Returns
    -------
    block : the block whose precision with raised noise has the largest trace; None if no block can
        be compared with all others.
    method : description of the method.
    """
    best, largest_trace = None, 0.0
    for block in blocks:
        # ``factor`` is the largest t such that t K <= all K_i.  The margin of 1e-12 ensures that,
        # in spite of rounding, the result is not more precise than any block.
        factor = 1.0 / max(_precision_ratio(block, b) * (1.0 + 1e-12) for b in blocks)
        trace = (
            factor * math.prod(float(np.sum(s.rows**2)) for _, s in block.factors) / block.noise**2
        )
        if trace > largest_trace:
            best = replace(block, noise=block.noise / math.sqrt(factor))
            largest_trace = trace
    if best is None:
        return None, "nothing: too large to compare"
    return best, "valid, but not the largest: too many coordinates for that"


def _are_aligned(one: Block, other: Block) -> bool:
    """Return whether the Kronecker factors of two blocks are on the same attributes."""
    return [a for a, _ in one.factors] == [a for a, _ in other.factors]


def _have_equal_rows(one: Strategy, other: Strategy) -> bool:
    return one is other or np.array_equal(one.rows, other.rows)


def _is_in_row_space(part: Strategy, outer: Strategy) -> bool:
    """Return whether the row space of ``part`` lies in that of ``outer``.

    Both row spaces are in residual coordinates.
    """
    if outer.complete:
        return True
    rows = _residual_rows(part)
    outside = rows - (rows @ outer.span) @ outer.span.T
    return float(np.linalg.norm(outside)) <= SPAN_TOLERANCE * float(np.linalg.norm(rows))


def _diagonal_coordinates(part: Array, reference: Array) -> tuple[Array, Array, Array, Array]:
    """Return coordinates in which the precisions of two strategies with noise 1 are diagonal.

    Parameters
    ----------
    part, reference : strategy rows in residual coordinates c, shape (rows, coordinates).

    Returns
    -------
    P : matrix with orthonormal columns, such that T = P^T ``reference``.
    T : matrix of the new coordinates T c.  The precision of ``reference`` in them is the identity.
    right_inverse : right inverse of T.
    g : diagonal of the precision of ``part`` in the new coordinates.
    """
    # In the coordinates of the singular value decomposition, the precision of ``reference`` is the
    # identity, also after a rotation.  The rotation Q makes the precision of ``part`` diagonal.
    U, singular_values, Vt = thin_svd(reference)
    retained = singular_values > RANK_TOLERANCE * singular_values[0]
    U, singular_values, Vt = U[:, retained], singular_values[retained], Vt[retained]
    G = (part @ Vt.T) / singular_values
    g, Q = np.linalg.eigh(G.T @ G)
    P = U @ Q
    return P, P.T @ reference, (Vt.T / singular_values) @ Q, np.maximum(g, 0.0)


def _residual_rows(strategy: Strategy) -> Array:
    """Return the strategy rows in residual coordinates, shape (measurements, coordinates)."""
    return residual_rows(strategy.rows, strategy.sizes)


def _kronecker(block: Block, matrices: Sequence[Array], sizes: Sequence[int]) -> Array:
    """Return the Kronecker product of one matrix per factor of a block.

    Rows are multiplied by the row weights of the block, if it has any.  Columns are in the order of
    the attributes of the block; ``sizes`` has the number of columns of every attribute.
    """
    product = np.ones((1, 1))
    for matrix in matrices:
        product = np.asarray(np.kron(product, matrix), dtype=float)
    grouped_sizes = [math.prod(sizes[a] for a in axes) for axes in block.sets]
    flat = ungroup_axes(
        product.reshape(len(product), *grouped_sizes), block.sets, sizes, 1
    ).reshape(product.shape)
    return flat if block.weights is None else flat * block.weights.reshape(-1, 1)


def _outer_product(vectors: Sequence[Array]) -> Array:
    """Return the outer product of vectors, with one axis per vector."""
    product = np.ones(())
    for vector in vectors:
        product = np.multiply.outer(product, vector)
    return np.asarray(product)
