"""Division of several plans into their common part and one residual per plan.

`coarse_or_fine` divides plans on one schema into two stages.  The first stage, the look, measures
the common part of all plans.  After one of the plans is chosen from the answers of the look, the
second stage measures the residual of this plan.  Both stages together have the output distribution
and the privacy cost of the chosen plan, so that the choice costs nothing.  `nested_choices` builds
a chain of such choices.

The common part is computed one residual space at a time, so all plans must divide tables into
residual spaces in the same way.  This is the case if the centers of all plans are uniform, or if
all plans have the same tuned centers and complements (splits of pairs).  Plans that measure several
residual spaces with one strategy (tuned plans on small domains, for example) are refused.

In both stages, answers are rounded to a noise grid, and rounding costs privacy.  The grids of both
stages are finer than that of a plan, so that rounding twice usually costs less than rounding the
answers of the plan once.  If it costs more, all noise is multiplied by one factor, `stretch`, and
exceeds the noise of the plan.

Source: Xiao, Wang, Zhang and Kifer 2022, sections 3 and 5, on the blocks of `engine.plans.plan`.

**Blocks.**  A block measures the
residual coordinates c of its residual space with the precision matrix K = M^T M / noise^2, where M
are its strategy rows in residual coordinates.  Blocks on different residual spaces are independent,
so the common part of several plans is computed one residual space at a time.

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

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from engine._arrays import Array, thin_svd
from engine._format import set_name
from engine._threads import threads_for
from engine._untrusted import parse_json
from engine._validation import check_type
from engine.common_mechanism.common_mechanism import (
    RESIDUAL_TOLERANCE,
    CommonMechanism,
    LinearMechanism,
    exact_split,
)
from engine.errors import LimitExceeded, PlanError
from engine.mechanisms import load_plan
from engine.plans import Block, Plan
from engine.plans.blocks import cells_pcost, joint_pcost, noise_grid, total_pcost, undo_factors
from engine.privacy import REPLACE_ONE, Budget
from engine.residuals import (
    Axes,
    Complement,
    Lift,
    Space,
    Split,
    SplitLift,
    Strategy,
    contract,
    digest,
    group_axes,
    residual_rows,
)
from engine.residuals.basis import ungroup_axes
from engine.residuals.operators import MIN_WIDE_CELLS, Operator
from engine.workload import Schema, Workload

if TYPE_CHECKING:
    import pandas as pd

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


MECHANISM = "common part"


def option_cost(option: Plan) -> float:
    """Return what the ledger is charged for an option, in pcost.

    A plan is charged its pcost.  An option that is the look (first stage) of a later choice is
    charged the budget of this look.
    """
    return option.budget.pcost if option.mechanism == MECHANISM else option.pcost


def look_plan(
    options: Sequence[Plan],
    blocks: Mapping[Space, Block],
    spend: float,
    max_records: int,
    split: Split,
    joint: bool,
) -> Plan:
    """Return the look (first stage) as a plan.

    The workload of this plan contains every group of the options for which the look answers all
    queries.  If there is no such group, but the look measures the total, the workload is the total.

    Parameters
    ----------
    options : the plans to choose from.
    blocks : mapping from residual space to the common part of the plans' blocks.
    spend : cost of the look, in pcost.
    max_records : largest allowed number of records.
    split : centers, of shape (n_i,), and complements (splits of pairs) of all plans.
    joint : whether the joint sensitivity of the blocks is charged, as in `Plan`.
    """
    groups = {(g.attributes, g.key): g for p in options for g in p.workload.groups}
    used = {name for space in blocks for name in space}
    full_plan = Plan(
        # Weight 0, because a plan must answer all groups of positive weight. Groups that the look
        # (first stage) does not answer are removed below.
        workload=Workload(
            options[0].schema, tuple(replace(g, weight=0.0) for g in groups.values())
        ),
        budget=options[0].budget.at(spend),
        mechanism=MECHANISM,
        options={"of": [p.hash for p in options]},
        blocks=blocks,
        bound=0.0,
        statement="The common part of several plans; it is as good as they are.",
        duals=(),
        max_records=max_records,
        joint=joint,
        split=Split(
            centers={name: pi for name, pi in split.centers.items() if name in used},
            complements={pair: c for pair, c in split.complements.items() if pair in blocks},
        ),
    )
    answered_positions = [
        i
        for i, g in enumerate(full_plan.workload.groups)
        if set(g.attributes) <= used and _is_answered(full_plan, i)
    ]
    answered = tuple(list(groups.values())[i] for i in answered_positions)
    workload = Workload(full_plan.schema, answered)
    if not answered and () in blocks:
        workload = workload.add((), "total")
    return replace(full_plan, workload=workload)


def _is_answered(plan: Plan, group: int) -> bool:
    """Return whether a plan determines all queries of a group."""
    return math.isfinite(plan.group_variance(group).total())


def joint_split(options: Sequence[Plan], names: Sequence[str]) -> Split:
    """Return the centers and complements (splits of pairs) of all plans together.

    Raises
    ------
    PlanError
        Two plans have different centers or complements on the same attributes, or a plan measures
        full tables or several residual spaces with one strategy.
    """
    # The subclasses of Plan measure full tables.
    full_table_mechanisms = [p.mechanism for p in options if type(p) is not Plan]
    if full_table_mechanisms:
        raise PlanError(
            f"A plan of the mechanism {full_table_mechanisms[0]!r} measures full tables, but a"
            " two-stage release needs plans that measure residual spaces. Plan with 'querysmasher',"
            " 'residualplanner' or 'wff'."
        )
    plans_with_unions = [name for name, p in zip(names, options, strict=True) if p.split.unions]
    if plans_with_unions:
        raise PlanError(
            f"The plan '{plans_with_unions[0]}' measures several residual spaces with one strategy."
            " A two-stage release needs plans that measure each residual space separately. Plan all"
            ' options with centers="uniform".'
        )
    return Split(centers=_joint_centers(options), complements=_joint_complements(options))


def _joint_centers(options: Sequence[Plan]) -> dict[str, Array]:
    """Return the tuned centers by attribute; raise PlanError if they differ between plans."""
    joint_centers = {}
    for name in dict.fromkeys(name for p in options for space in p.blocks for name in space):
        measuring_plans = [p for p in options if any(name in space for space in p.blocks)]
        centers = [p.split.centers.get(name) for p in measuring_plans]
        if any(digest(c) != digest(centers[0]) for c in centers):
            raise PlanError(
                f"The plans have different centers for '{name}', so that their residual spaces"
                ' differ. Plan all options with centers="uniform".'
            )
        if centers[0] is not None:
            joint_centers[name] = centers[0]
    return joint_centers


def _joint_complements(options: Sequence[Plan]) -> dict[Space, Complement]:
    """Return tuned splits (complements) by pair; raise PlanError if they differ between plans."""
    joint_complements: dict[Space, Complement] = {}
    for pair in dict.fromkeys(space for p in options for space in p.blocks if len(space) == 2):
        complements = [p.split.complements.get(pair) for p in options if pair in p.blocks]
        if len({None if c is None else c.key for c in complements}) > 1:
            raise PlanError(
                f"The plans have different complements for {set_name(pair)}, so that their"
                ' residual spaces differ. Plan all options with centers="uniform".'
            )
        if complements[0] is not None:
            joint_complements[pair] = complements[0]
    return joint_complements


FORMAT = "coarse-or-fine/1"
CLOSER_LOOK_NAME = "look closer"
MAX_STRETCH_STEPS = 20  # number of factors of the noise that are tried


@dataclass(frozen=True, kw_only=True, eq=False)
class Residual:
    """What remains to be measured after the look (first stage) if one plan is chosen.

    Attributes
    ----------
    schema : schema of the plan.
    max_records : largest allowed number of records.  The cost of rounding answers, which is part of
        `spend`, grows with it.
    blocks : mapping from residual space to the block that remains to be measured.  A space is
        absent if the look measures it with the full precision of the plan.
    block_residuals : mapping from each residual space that the look measures to its
        `BlockResidual`, which combines the answers of both stages.
    spend : cost of this stage on the ledger, in pcost; can be 0 only if there is nothing to
        measure.
    rows_per_person : number of rows of one person that the cost protects.
    """

    schema: Schema
    max_records: int
    blocks: Mapping[Space, Block]
    block_residuals: Mapping[Space, BlockResidual]
    spend: float
    rows_per_person: int = 1

    @cached_property
    def pcost(self) -> float:
        """Privacy cost of measuring `blocks` without the look (first stage), rounded up.

        The result can exceed `spend`, which is the cost of the plan minus the cost of the look.  In
        every cell, the costs of both stages sum to at most the cost of the plan, but the most
        expensive cells of the two stages may differ.
        """
        return Budget(pcost=1.0, rows_per_person=self.rows_per_person).of_person(
            total_pcost(self.blocks, self.max_records)
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class CommonPlan:
    """Several plans with their common part and residuals, as `coarse_or_fine` returns them.

    Attributes
    ----------
    options, names : the plans from which one is chosen after the look (first stage), and their
        names on screen.
    look : plan of the common part, which is measured first.
    residuals : for each option, what remains to be measured after the look.
    matches : mapping from residual space to the name of the method that computed the common part.
    stretch : factor by which all noise is multiplied.  It is above 1 only if the costs of rounding
        twice would otherwise exceed the cost of a plan.
    following : the next choice in a chain of choices, see `nested_choices`; None for the last
        choice.  The last of the `options` is the look of ``following``.
    """

    options: tuple[Plan, ...]
    names: tuple[str, ...]
    look: Plan
    residuals: tuple[Residual, ...]
    matches: Mapping[Space, str]
    stretch: float
    following: CommonPlan | None = None

    @property
    def analyses(self) -> tuple[tuple[str, Plan], ...]:
        """Name and plan of every analysis that can be chosen here or in later choices of a
        chain."""
        direct = tuple(zip(self.names, self.options, strict=True))
        return direct if self.following is None else (*direct[:-1], *self.following.analyses)

    @property
    def spends(self) -> tuple[tuple[float, float], ...]:
        """Pair (pcost of the first stage, pcost of the residual) of every option.

        Their decimal numbers sum exactly to the cost of the option (`option_cost`).
        """
        return tuple((self.look.budget.pcost, r.spend) for r in self.residuals)

    @property
    def saved(self) -> float:
        """Pcost of the look (first stage) divided by the largest pcost of an option.

        A separate measurement for the choice would cost as much as the look in addition.  It is
        saved, because the look is reused for the chosen plan.
        """
        return self.look.budget.pcost / max(option_cost(p) for p in self.options)

    @property
    def maximal(self) -> bool:
        """Whether no larger common part exists, up to the proven gap of the dense solver."""
        return all(text in ("closed form", "dense") for text in self.matches.values())

    @cached_property
    def hash(self) -> str:
        """Hash of the options' plans in their order, including those of later choices."""
        following_hash = "" if self.following is None else self.following.hash
        return hashlib.sha256(
            "|".join([FORMAT, following_hash, *(p.hash for p in self.options)]).encode()
        ).hexdigest()

    def position(self, option: int | str) -> int:
        """Return the position of the option that is given by its name or its position.

        Raises
        ------
        PlanError
            There is no such option.
        """
        if isinstance(option, str) and option in self.names:
            return self.names.index(option)
        if (
            isinstance(option, int)
            and not isinstance(option, bool)
            and 0 <= option < len(self.options)
        ):
            return option
        raise PlanError(
            f"There is no option {option!r}. Choose one of {', '.join(map(repr, self.names))}."
        )

    def budget_shares(self) -> pd.DataFrame:
        """Return a table of costs with one row per option.

        Columns: option (name), shared (pcost of the look, the first stage), own (pcost of the
        residual) and total (their exact sum).
        """
        import pandas as pd

        rows = [
            (n, a, b, option_cost(p))
            for n, (a, b), p in zip(self.names, self.spends, self.options, strict=True)
        ]
        return pd.DataFrame(rows, columns=["option", "shared", "own", "total"])

    def by_space(self) -> pd.DataFrame:
        """Return a table of the costs of blocks, with one row per option and residual space.

        Columns: attributes (of the residual space), option (name), total (pcost of the plan's
        block), shared (pcost of the block of the look, the first stage; 0 if the look does not
        measure the space) and found (name of the method that computed the common part; "not in all"
        if an option does not measure the space).
        """
        import pandas as pd

        rows = []
        for name, plan in zip(self.names, self.options, strict=True):
            for space, block in plan.blocks.items():
                look = self.look.blocks.get(space)
                shared = 0.0 if look is None else look.pcost(plan.max_records)
                rows.append(
                    (
                        space,
                        name,
                        block.pcost(plan.max_records),
                        shared,
                        self.matches.get(space, "not in all"),
                    )
                )
        return pd.DataFrame(rows, columns=["attributes", "option", "total", "shared", "found"])

    def combine(
        self, option: int, look: Mapping[Space, Array], answers: Mapping[Space, Array]
    ) -> dict[Space, Array]:
        """Return the estimates of an option from both stages, for every residual space of its plan.

        Parameters
        ----------
        option : position of the option.
        look : mapping from residual space to the coordinates that the first stage (the look)
            estimates, in counts, shape (n_1 - 1, ..., n_k - 1).
        answers : mapping from residual space to the answers of the second stage, in counts, with
            one axis per factor of the block.

        Returns
        -------
        Mapping from residual space to estimated residual coordinates, in counts.

        Guarantee: the estimates are unbiased and have the covariance of the plan measured alone,
        times the square of `stretch`.
        """
        coordinates = {}
        for space in self.options[option].blocks:
            if space in self.residuals[option].block_residuals:
                block_residual = self.residuals[option].block_residuals[space]
                coordinates[space] = block_residual.combine(look[space], answers.get(space))
            else:
                block = self.residuals[option].blocks[space]
                coordinates[space] = undo_factors(block, answers[space])
        return coordinates

    def to_json(self) -> str:
        """Return the plans and names of all options as JSON text.

        `from_json` computes the common part and the residuals from these plans.
        """
        plans = [json.loads(p.to_json()) for _, p in self.analyses]
        names = [name for name, _ in self.analyses]
        chain = self.following is not None
        data = {
            "format": FORMAT,
            "names": names,
            "options": plans,
            "chain": chain,
            "hash": self.hash,
        }
        return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> CommonPlan:
        """Rebuild a common plan from the text that `to_json` wrote.

        The common part of the plans (the look) and their residuals are computed again.

        Raises
        ------
        PlanError
            The text is damaged, or was changed.
        """
        try:
            data = parse_json(text)
        except ValueError:
            raise PlanError(
                "The file of the common plan cannot be read as JSON. Restore it from a copy."
            ) from None
        if (
            not isinstance(data, dict)
            or data.get("format") != FORMAT
            or not isinstance(data.get("options"), list)
        ):
            raise PlanError(
                f'This is not a file of a common plan in the format "{FORMAT}". Give a file that'
                " CommonPlan.to_json() wrote."
            )
        names = data.get("names")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise PlanError(
                "The file of the common plan is damaged: the names are not a list of texts. Restore"
                " it from a copy."
            )
        split = nested_choices if data.get("chain") else coarse_or_fine
        common = split(*(load_plan(json.dumps(p)) for p in data["options"]), names=names)
        # costs are not read from the file but computed from the plans; the hash shows whether the
        # plans were changed
        if common.hash != data.get("hash"):
            raise PlanError(
                "The file of the common plan was changed after it was written. Restore it from a"
                " copy."
            )
        return common


def coarse_or_fine(*options: Plan, names: Sequence[str] | None = None) -> CommonPlan:
    """Divide plans into their common part and one residual per plan; no records are read.

    The common part (the look) is measured first.  After a plan is chosen, its residual is measured.

    Parameters
    ----------
    options : two or more plans on one schema, from coarse to fine; their budgets may differ.
    names : names of the options on screen, by default "option 1", "option 2", ...

    Guarantee: for every option, look and residual together have the output distribution of its
    plan, with all noise multiplied by `CommonPlan.stretch`.  Their charges sum to the pcost of the
    plan to the last digit.  The privacy cost of both stages, computed from the blocks with their
    rounded noise, is at most this sum.

    Raises
    ------
    PlanError
        There are fewer than two plans, or the names are not allowed.  The plans have different
        schemas, privacy units, centers or complements (splits of pairs).  A plan measures full
        tables, or several residual spaces with one strategy.  The schema has invariants, or
        neighbours replace a record.  The plans have no common part, or their costs cannot be
        divided between the two stages.
    LimitExceeded
        Blocks are too large to be compared in memory, or all plans measure an attribute of 1,000
        cells or more.

    >>> from engine import Attribute, Budget, plan, Workload
    >>> schema = Schema([Attribute.of_size(name, 2) for name in "abcdefg"])
    >>> ways = [plan(Workload.all_ways(schema, ways=k, family="marginal"), Budget(pcost=1.0)) for k in (1, 2)]
    >>> both = coarse_or_fine(*ways, names=["one-way", "two-way"])
    >>> round(both.saved, 3), both.maximal, [round(cost, 3) for _, cost in both.spends]
    (0.509, True, [0.491, 0.491])
    """
    return _split_options(options, _checked_names(options, names), 1.0)


def _split_options(
    options: Sequence[Plan], names: tuple[str, ...], min_stretch: float
) -> CommonPlan:
    """Return the common plan of `coarse_or_fine`, with all noise multiplied by one factor.

    The factor is ``min_stretch``, or larger if look and residual of an option would otherwise cost
    more than its plan.
    """
    unit = _agreed_unit(options)
    split = joint_split(options, names)
    # The cost of rounding grows with max_records. The cost of the first stage (look) must not
    # exceed the cost of any plan, so it includes the rounding for the smallest max_records of the
    # plans.
    max_records = min(p.max_records for p in options)
    exact_look, methods = _exact_look(options, split)
    look, block_residuals, residual_blocks, stretch = _affordable_stages(
        options, exact_look, unit, max_records, min_stretch
    )
    # The look (first stage) is charged before the choice, so its cost is the same for all options.
    # A plan may be charged its joint cost (maximum over cells of the summed costs of its blocks)
    # instead of the sum of the costs of its blocks. If any plan is charged its joint cost, the look
    # is charged its joint cost or the sum, whichever is smaller.
    joint = any(p.joint for p in options) and cells_pcost(look, max_records) < total_pcost(
        look, max_records
    )
    look_cost = cells_pcost(look, max_records) if joint else total_pcost(look, max_records)
    spends = exact_split(
        unit.of_person(look_cost),
        [option_cost(p) for p in options],
        has_residual=[bool(plan_blocks) for plan_blocks in residual_blocks],
    )
    residuals = tuple(
        Residual(
            schema=p.schema,
            max_records=max_records,
            blocks=plan_blocks,
            block_residuals=plan_block_residuals,
            spend=spend,
            rows_per_person=unit.rows_per_person,
        )
        for p, plan_blocks, plan_block_residuals, (_, spend) in zip(
            options, residual_blocks, block_residuals, spends, strict=True
        )
    )
    return CommonPlan(
        options=tuple(options),
        names=names,
        look=look_plan(options, look, spends[0][0], max_records, split, joint),
        residuals=residuals,
        matches=methods,
        stretch=stretch,
    )


def _exact_look(
    options: Sequence[Plan], split: Split
) -> tuple[dict[Space, Block], dict[Space, str]]:
    """Return the common block of all options in each residual space, and how it was computed.

    The noise of the blocks is not rounded.  The first mapping leaves out spaces without a common
    part.

    Raises
    ------
    LimitExceeded
        An attribute has too many cells, or a block is too large for dense matrices.
    PlanError
        No space has a common part.
    """
    # a space can have a common part only if every option measures it
    spaces = [s for s in options[0].blocks if all(s in p.blocks for p in options)]
    exact_look, methods = dict[Space, Block](), dict[Space, str]()
    for space in spaces:
        space_blocks = [p.blocks[space] for p in options]
        for space_block in space_blocks:
            if any(isinstance(strategy.rows, Operator) for _, strategy in space_block.factors):
                raise LimitExceeded(
                    f"The tables on {set_name(space)} have an attribute of {MIN_WIDE_CELLS:,} cells"
                    " or more. A common part is computed only on attributes with fewer cells."
                    " Choose tables without such an attribute, or merge"
                    " its cells."
                )
        block, methods[space] = common_block(
            space_blocks, split.centers_of(space), split.complements.get(space)
        )
        if block is not None:
            exact_look[space] = block
    if not exact_look:
        raise PlanError(
            "These plans have no common part, so there is nothing to measure before the choice. "
            "Give plans that share a query, such as the total, or have tables on the same attributes."
        )
    return exact_look, methods


def _affordable_stages(
    options: Sequence[Plan],
    exact_look: Mapping[Space, Block],
    unit: Budget,
    max_records: int,
    stretch: float,
) -> tuple[dict[Space, Block], list[dict[Space, BlockResidual]], list[dict[Space, Block]], float]:
    """Round the noise of the look, and multiply all noise until no option costs too much.

    Parameters
    ----------
    exact_look : see `_exact_look`.
    unit : budget with the privacy unit of the options, for the cost of a person.
    stretch : smallest factor of the noise.

    Returns
    -------
    look : residual space -> block with rounded noise.
    block_residuals : for each option, residual space of the look -> what remains of its block.
    residual_blocks : for each option, the blocks to measure after the look.
    stretch : factor of the noise; look and residual of each option cost at most as much as its
        plan.
    """
    for _ in range(MAX_STRETCH_STEPS):
        # the noise of the look (first stage) is rounded to its grid before the residuals are
        # computed from the look
        look = {
            space: round_noise_up(block, block.noise * stretch, max_records)
            for space, block in exact_look.items()
        }
        block_residuals = [
            {
                space: block_residual(block, p.blocks[space], max_records, stretch)
                for space, block in look.items()
            }
            for p in options
        ]
        residual_blocks = [
            _residual_blocks(p, plan_block_residuals, max_records, stretch)
            for p, plan_block_residuals in zip(options, block_residuals, strict=True)
        ]
        relative_costs = [
            unit.of_person(_joint_cost([look, plan_blocks], max_records, p.joint)) / option_cost(p)
            for plan_blocks, p in zip(residual_blocks, options, strict=True)
        ]
        if max(relative_costs) <= 1.0:
            return look, block_residuals, residual_blocks, stretch
        # costs are inversely proportional to the squared noise; the second factor allows for the
        # rounding of the noise to its grid
        stretch *= math.sqrt(max(relative_costs)) * (1.0 + 2.0**-GRID_BITS)
    raise PlanError(
        f"Both stages together would cost {max(relative_costs)} times as much as one of the "
        "plans alone, because answers are rounded twice. Plan with a smaller max_records, or "
        "with fewer queries."
    )


def nested_choices(*options: Plan, names: Sequence[str] | None = None) -> CommonPlan:
    """Return a chain of choices between plans, which are given from coarse to fine.

    A look precedes each choice.  With three or more plans, the first choice is between the first
    plan and the option "look closer".  "look closer" measures a second look, which leads to a
    choice between the second plan and the option "look closer" again, and so on.  The last choice
    is between the last two plans.  All looks and the residual of the plan that is chosen in the end
    cost together at most as much as this plan alone.

    Arguments and errors are those of `coarse_or_fine`.  PlanError is also raised if a name is "look
    closer", if a further look would measure nothing, or if the rounding of all stages costs too
    much.

    Notes
    -----
    Source: section 7.5.3.  The look before the last choice is the common part of the last two
    plans. The look before any other choice is the common part of the next plan and the next look.
    For nested analyses, as in that section, each look is the common part of all plans that can
    still be chosen.

    >>> from engine import Attribute, Budget, plan, Workload
    >>> schema = Schema([Attribute.of_size(name, 2) for name in "abcd"])
    >>> ways = [plan(Workload.all_ways(schema, ways=k, family="marginal"), Budget(pcost=1.0)) for k in (1, 2, 3)]
    >>> first = nested_choices(*ways)
    >>> first.names, first.following.names
    (('option 1', 'look closer'), ('option 2', 'option 3'))
    """
    names = _checked_names(options, names)
    if CLOSER_LOOK_NAME in names:
        raise PlanError(
            f"The name {CLOSER_LOOK_NAME!r} is reserved for the option that leads to the next "
            "choice. Give the plan another name."
        )
    # In each choice, the two stages together cost at most as much as the plan. All stages of a
    # chain together can cost slightly more, because answers are rounded more often. Therefore the
    # noise is multiplied by ``stretch``, which increases until the cost of the chain is small
    # enough.
    stretch = 1.0
    for _ in range(MAX_STRETCH_STEPS):
        chain = _chain(options, names, stretch)
        relative_cost = _largest_relative_cost(chain)
        if relative_cost <= 1.0:
            return chain
        stretch *= math.sqrt(relative_cost) * (1.0 + 2.0**-GRID_BITS)
    raise PlanError(
        f"All stages that lead to one option would cost {relative_cost} times as much as its plan,"
        " because every stage rounds its answers. Lower max_records, or choose between all options at once."
    )


def _chain(options: Sequence[Plan], names: tuple[str, ...], min_stretch: float) -> CommonPlan:
    """Return a chain of choices with all noise multiplied by at least ``min_stretch``."""
    # start with the last choice, because its first stage (look) is an option of the choice before
    chain = _split_options(options[-2:], names[-2:], min_stretch)
    # `chain.look` is the second option of the choice before `chain`
    for option, name in zip(reversed(options[:-2]), reversed(names[:-2]), strict=True):
        previous = _split_options((option, chain.look), (name, CLOSER_LOOK_NAME), min_stretch)
        if not previous.residuals[1].blocks:
            raise PlanError(
                f"If '{name}' is not chosen, the next stage has nothing to measure, because the stage"
                f" before it measures the same. Leave '{name}' out, or choose between all options at"
                " once."
            )
        chain = replace(previous, following=chain)
    return chain


def _joint_cost(steps: Sequence[Mapping[Space, Block]], max_records: int, joint: bool) -> float:
    """Return the privacy cost of the blocks of several stages on the same records, in pcost.

    Without ``joint``, it is the sum of the costs of all residual spaces; the cost of a space is the
    maximum over cells of the summed costs of its blocks.  With ``joint``, it is the minimum of this
    sum and of the maximum over cells of the summed costs of all blocks.
    """
    cost = joint_pcost(steps, max_records)
    if not joint:
        return cost
    blocks = {
        (number, space): block for number, step in enumerate(steps) for space, block in step.items()
    }
    return min(cost, cells_pcost(blocks, max_records))


def _largest_relative_cost(chain: CommonPlan) -> float:
    """Return the largest of the ratios (privacy cost / charge) of all options of a chain.

    The privacy cost of an option is that of all stages that are measured if it is chosen.  The
    charge is what the ledger is charged for them, see `option_cost`.
    """
    relative_costs: list[float] = []
    released: list[Mapping[Space, Block]] = [chain.look.blocks]
    choice: CommonPlan | None = chain
    while choice is not None:
        for option, residual in zip(choice.options, choice.residuals, strict=True):
            joint_cost = _joint_cost(
                [*released, residual.blocks], residual.max_records, option.joint
            )
            relative_costs.append(option.budget.of_person(joint_cost) / option_cost(option))
        # The next choice is reached only by choosing the last option (the closer look), so the
        # residual of this option is measured before it.
        released.append(choice.residuals[-1].blocks)
        choice = choice.following
    return max(relative_costs)


def _agreed_unit(options: Sequence[Plan]) -> Budget:
    """Return the budget of the first option, after a check that all protect the same privacy unit.

    Raises
    ------
    PlanError
        The options differ in rows per person or neighbours; neighbours replace a record; or the
        schema has invariants.
    """
    unit = options[0].budget
    if any(
        (p.budget.rows_per_person, p.budget.neighbours) != (unit.rows_per_person, unit.neighbours)
        for p in options
    ):
        raise PlanError(
            "The budgets of the plans have different rows_per_person or neighbours, so the plans"
            " protect different units. Give all budgets the same rows_per_person and neighbours."
        )
    if options[0].schema.invariants:
        raise PlanError(
            "A two-stage release is not possible with exact totals (invariants). Remove them from"
            " the schema, or release one plan alone."
        )
    # Replacing a record changes two cells.  The largest cost over pairs of cells is not a sum over
    # residual spaces, so it cannot be divided between two stages.
    if unit.neighbours == REPLACE_ONE:
        raise PlanError(
            "A two-stage release is not possible for neighbours that replace a record. Plan all"
            ' options with neighbours="add_remove".'
        )
    return unit


def _residual_blocks(
    option: Plan, block_residuals: Mapping[Space, BlockResidual], max_records: int, stretch: float
) -> dict[Space, Block]:
    """Return the blocks that remain to be measured for an option, by residual space.

    For a space in ``block_residuals``, this is the block stored there; the space is absent from
    the result if that block is None (nothing remains).  For any other space, this is the block of
    the plan with its noise multiplied by ``stretch``.
    """
    blocks = {}
    for space, block in option.blocks.items():
        if space not in block_residuals:
            # The noise of all blocks is multiplied by the same factor, so that the budget remains
            # divided optimally between the blocks.
            blocks[space] = (
                block
                if stretch == 1.0
                else round_noise_up(block, block.noise * stretch, max_records)
            )
        elif (residual_block := block_residuals[space].block) is not None:
            blocks[space] = residual_block
    return blocks


def _checked_names(options: Sequence[Any], names: Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of the options; raise PlanError unless plans and names are valid."""
    if len(options) < 2 or not all(isinstance(p, Plan) for p in options):
        raise PlanError(
            "The options must be at least two plans, but are"
            f" {', '.join(type(p).__name__ for p in options) or 'none'}. Give two or more Plan"
            " objects."
        )
    check_type(
        "names",
        names,
        (Sequence, type(None)),
        give="a list of texts, one per plan",
        error=PlanError,
    )
    if any(p.schema != options[0].schema for p in options):
        raise PlanError(
            "The plans are for different schemas. Plan all of them with the same schema."
        )
    chosen = (
        tuple(f"option {i + 1}" for i in range(len(options))) if names is None else tuple(names)
    )
    are_valid = all(
        isinstance(n, str) and n.isprintable() and 0 < len(n.strip()) <= 80 for n in chosen
    )
    if (
        len(chosen) != len(options)
        or len(set(chosen)) != len(chosen)
        or not are_valid
        or "stop" in chosen
    ):
        raise PlanError(
            f"The {len(chosen)} names {list(chosen)!r:.200} do not fit the {len(options)} plans. "
            "Give one name per plan: different texts of 1 to 80 characters in one line, none of "
            "them 'stop'."
        )
    return chosen
