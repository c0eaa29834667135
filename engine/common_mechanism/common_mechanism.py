"""Linear Gaussian mechanisms, their partial order and their common mechanism.

A linear Gaussian mechanism is M(x) = B x + N(0, Sigma).  Its privacy cost matrix B^T Sigma^-1 B
determines both its privacy cost and the queries that it can answer.

**Partial order.**  M_1 is answerable from M_2 if the output of M_1 can be computed from the output
of M_2.  This is the case if the privacy cost matrix of M_1 is <= that of M_2.  Every mechanism is
equivalent to a standard form S x + N(0, I), where the rows of S are linearly independent and
S^T S is the privacy cost matrix; let R be a right inverse of S (S R = I).  Two mechanisms are
compared by the singular values of S_1 R_2: a singular value of 1 means that both have the same
information in that direction.  Comparisons therefore do not depend on units or noise levels.

**Common mechanism.**  The common mechanism M* of M_1, ..., M_n is a largest mechanism that is
answerable from each of them.  The residual M'_i is what remains to be measured after M* if M_i is
chosen.  M* and M'_i together have exactly the output distribution and the privacy cost of M_i.

**Computation.**  Choose a basis of the queries that every M_i can answer, and let C_i be the
covariance of the answers of M_i to the basis.  If Sigma has the least trace among all matrices with
Sigma >= C_i for all i, the mechanism that answers the basis with covariance Sigma is a largest one
(theorem 5.3), for any basis (theorem 5.2).  This module uses the basis in which the C_i add up to
the identity.  The result then does not depend on units, and does not change if a cell is split into
cells that all mechanisms treat equally.  Two covariances commute in this basis, because
C_2 = I - C_1.  Stott's formula (theorem 5.4) then takes the larger of two eigenvalues in every
direction, which is accurate for ill-conditioned pairs, too.

Three or more covariances that do not commute have no closed form.  The dual of
min tr Sigma, Sigma >= C_i  is  max sum_i tr(Y_i C_i) over Y_i >= 0, sum_i Y_i = I.  Substituting
Y_i = S^-1/2 A_i A_i^T S^-1/2 with S = sum_i A_i A_i^T removes the constraints, and L-BFGS solves
the dual.  Sigma = sum_i C_i Y_i is then increased until Sigma >= C_i for all i; the dual value
proves its gap.

**Exact division of the cost.**  A ledger sums costs as decimal numbers, in the digits that `repr`
shows.  `exact_split` rounds the cost of the first stage such that, for every mechanism that may be
chosen, the remaining cost is a float whose decimal digits are exactly those of the difference.

Source: Xiao, Wang, Zhang and Kifer, "Answering Private Linear Queries Adaptively using the Common
Mechanism", 2022, algorithms 1 and 3, section 7.5; the choice of basis and the dual are not in the
paper.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from functools import cached_property

import numpy as np
import numpy.typing as npt
import scipy

from engine._arrays import Array
from engine.errors import NotAnswerable, PlanError

# Rows scaled to length 1 count as linearly dependent if a pivot of their QR factorization is below
# this share of the largest pivot.
RANK_TOLERANCE = 1e-10
# In the partial order, a relative excess of information up to this value is a rounding error.
ORDER_TOLERANCE = 1e-9
# A direction in which the residual has less than this share of the mechanism's information is
# omitted from the residual.
RESIDUAL_TOLERANCE = 1e-10
EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, eq=False)
class LinearMechanism:
    """Linear Gaussian mechanism M(x) = B x + N(0, Sigma) on tables x of counts.

    Attributes
    ----------
    B : query rows, shape (rows, cells); with 0 rows the mechanism has no output.
    Sigma : positive definite covariance of the noise, shape (rows, rows), in counts^2; None stands
        for the identity.

    Raises
    ------
    PlanError
        B is not a finite matrix, or Sigma is not a positive definite matrix of the required shape.

    Notes
    -----
    Source: definition 2.3.

    >>> LinearMechanism([[1, 1, 1]], [[2]]).pcost
    0.5
    """

    B: Array
    Sigma: Array = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        B = _matrix("B", self.B)
        Sigma = np.eye(len(B)) if self.Sigma is None else _matrix("Sigma", self.Sigma)
        if Sigma.shape != (len(B), len(B)):
            raise PlanError(
                f"Sigma has the shape {Sigma.shape}, but B has {len(B)} rows. Give a matrix Sigma "
                f"of shape {(len(B),) * 2}."
            )
        scale = np.sqrt(np.maximum(np.diag(Sigma), 0.0))
        if not (scale > 0).all() or (np.abs(Sigma - Sigma.T) > 1e-9 * np.outer(scale, scale)).any():
            raise PlanError(
                "Sigma is not symmetric, or has a diagonal entry that is not positive. Give a"
                " covariance matrix."
            )
        Sigma = (Sigma + Sigma.T) / 2
        if _has_off_diagonal(Sigma) and not _is_positive(
            _correlation(Sigma) - 8 * EPS * len(B) * np.eye(len(B))
        ):
            raise PlanError(
                "Sigma is not positive definite: the noise of some answers is determined by the "
                "noise of others. Remove such answers from B and Sigma, or add independent noise."
            )
        for name, array in (("B", B), ("Sigma", Sigma)):
            array.setflags(write=False)
            object.__setattr__(self, name, array)

    @property
    def cells(self) -> int:
        """Number of cells of the domain."""
        return int(self.B.shape[1])

    @property
    def rank(self) -> int:
        """Number of linearly independent query rows."""
        return len(self.row_space)

    @cached_property
    def pcost(self) -> float:
        """Privacy cost: the largest diagonal entry of B^T Sigma^-1 B, rounded up to 12 digits.

        See `round_up` for the treatment of rounding errors.  Source: lemma 2.4.

        >>> LinearMechanism([[0.1]] * 10, np.eye(10) * 0.1).pcost
        1.0
        """
        return round_up(float((self.whiten(self.B) ** 2).sum(axis=0).max()))

    def privacy_cost_matrix(self) -> Array:
        """Return B^T Sigma^-1 B, shape (cells, cells).

        Entry i of its diagonal is the cost of a record in cell i.
        """
        rows = self.whiten(self.B)
        return np.asarray(rows.T @ rows)

    def answers(self, other: LinearMechanism) -> bool:
        """Return whether the output of `other` can be computed from the output of this mechanism.

        The condition is that the privacy cost matrix of `other` is <= that of this mechanism.
        Source: theorem 3.5.

        Guarantee: the tolerance is relative to the information in each direction.  A direction with
        little noise therefore does not hide a difference in another direction.

        Raises PlanError if the mechanisms have different numbers of cells.

        >>> identity, total = LinearMechanism(np.eye(3)), LinearMechanism(np.ones((1, 3)), [[3]])
        >>> identity.answers(total), total.answers(identity)
        (True, False)
        """
        _check_same_cells(self, other)
        # the rows of `other` must lie in the row space of this mechanism
        if self._outside(other.row_space).max(initial=0.0) > self.angle_tolerance(other):
            return False
        # compare in coordinates in which the privacy cost matrix of this mechanism is the identity,
        # so that the tolerance is relative in every direction
        G = other.standard_rows @ self.right_inverse
        slack = ORDER_TOLERANCE + 8 * EPS * float(
            np.linalg.norm(other.standard_rows) * np.linalg.norm(self.right_inverse)
        )
        # G G^T and G^T G have the same positive eigenvalues: use the smaller matrix
        gram = G @ G.T if len(G) < self.rank else G.T @ G
        return _is_positive((1 + slack) ** 2 * np.eye(len(gram)) - gram)

    def equivalent(self, other: LinearMechanism) -> bool:
        """Return whether each mechanism is answerable from the other.  Source: definition 3.6."""
        return self.answers(other) and other.answers(self)

    def estimates(self, queries: npt.ArrayLike) -> Array:
        """Return the matrix that computes the best unbiased answers to queries from the output.

        Parameters
        ----------
        queries : shape (queries, cells).

        Returns
        -------
        Matrix of shape (queries, rows of B).  Its product with the output of the mechanism is the
        vector of the answers.

        Raises
        ------
        PlanError
            ``queries`` is not a matrix with one column per cell.
        NotAnswerable
            A query is not a linear combination of the rows of B.
        """
        # with queries = H S, S = T V and L^-1 B = U T V, the answers are H U^T L^-1 output
        U = self._factors[0]
        H = self._coordinates(queries)
        return self.whiten(U @ H.T, transpose=True).T

    def covariance(self, queries: npt.ArrayLike) -> Array:
        """Return the covariance of the best unbiased answers to the queries, in counts^2.

        ``queries`` has shape (queries, cells), the result (queries, queries).

        Raises
        ------
        PlanError
            ``queries`` is not a matrix with one column per cell.
        NotAnswerable
            A query is not a linear combination of the rows of B.

        >>> LinearMechanism(np.eye(3)).covariance([[1, 1, 1]])
        array([[3.]])
        """
        H = self._coordinates(queries)
        return np.asarray(H @ H.T)

    @cached_property
    def _row_space_and_pivot(self) -> tuple[Array, float]:
        """Orthonormal basis of the row space, and the smallest pivot of the scaled query rows."""
        lengths = np.linalg.norm(self.B, axis=1)
        unit = self.B[lengths > 0] / lengths[lengths > 0, None]
        # rows without a common cell, such as those of a marginal, are orthogonal
        if np.count_nonzero(unit, axis=0).max() <= 1:
            return unit, 1.0
        # for rows of length 1, small pivots show linear dependence, whatever the units of the
        # queries
        Q, T, _ = scipy.linalg.qr(unit.T, mode="economic", pivoting=True, check_finite=False)
        sizes = np.abs(np.diag(T))
        rank = int(np.count_nonzero(sizes > RANK_TOLERANCE * sizes[0]))
        return Q[:, :rank].T, float(sizes[rank - 1])

    @property
    def row_space(self) -> Array:
        """Orthonormal basis of the span of the query rows, shape (rank, cells)."""
        return self._row_space_and_pivot[0]

    @cached_property
    def _factors(self) -> tuple[Array, Array]:
        """Matrices U and T with L^-1 B = U T V, where V is `row_space` and Sigma = L L^T.

        U has orthonormal columns, shape (rows of B, rank); T has the shape (rank, rank).
        """
        F = self.whiten(self.B) @ self.row_space.T
        U, T = (
            np.linalg.qr(F)
            if len(F) > self.rank or _has_off_diagonal(F)
            else (np.eye(self.rank), F)
        )
        return U, T

    @cached_property
    def standard_rows(self) -> Array:
        """S of the standard form S x + N(0, I), which is equivalent to this mechanism.

        Shape (rank, cells).  Source: algorithm 2, lemma 5.1.
        """
        return np.asarray(self._factors[1] @ self.row_space)

    @cached_property
    def right_inverse(self) -> Array:
        """Right inverse R of S, the rows of the standard form: S R = I.  Shape (cells, rank)."""
        return np.asarray(
            scipy.linalg.solve_triangular(self._factors[1], self.row_space, trans="T").T
        )

    @cached_property
    def _lower(self) -> Array:
        """L with Sigma = L L^T; only its diagonal, shape (rows,), if Sigma is diagonal."""
        # factoring the correlation remains accurate if variances differ by many orders of magnitude
        scale = np.sqrt(np.diag(self.Sigma))
        return (
            scale[:, None] * np.linalg.cholesky(_correlation(self.Sigma))
            if _has_off_diagonal(self.Sigma)
            else scale
        )

    def whiten(self, answers: Array, *, transpose: bool = False) -> Array:
        """Return L^-1 times ``answers``, or L^-T times ``answers`` with ``transpose``.

        L is the Cholesky factor of the covariance: Sigma = L L^T.  ``answers`` and the result have
        the shape (rows of B, columns).
        """
        if self._lower.ndim == 1:
            return answers / self._lower[:, None]
        factor = self._lower.T if transpose else self._lower
        return np.asarray(scipy.linalg.solve_triangular(factor, answers, lower=not transpose))

    def angle_tolerance(self, other: LinearMechanism) -> float:
        """Return the relative distance from which a row of `other` counts as outside the row space.

        The distance is that of the row from the row space of this mechanism, divided by the length
        of the row.  Rounding errors can cause smaller distances.  Exchanging the two mechanisms
        does not change the result.
        """
        return ORDER_TOLERANCE / 8 + 8 * EPS * self.cells * (
            1 / self._row_space_and_pivot[1] + 1 / other._row_space_and_pivot[1]
        )

    def _outside(self, rows: Array) -> Array:
        """Return the distance of each of k rows to the row space of B, shape (k,)."""
        return np.asarray(np.linalg.norm(rows - (rows @ self.row_space.T) @ self.row_space, axis=1))

    def _coordinates(self, queries: npt.ArrayLike) -> Array:
        """Return H with queries = H S, S the rows of the standard form; shape (queries, rank)."""
        rows = _matrix("queries", queries)
        if rows.shape[1] != self.cells:
            raise PlanError(
                f"The queries have {rows.shape[1]} columns, but the domain of the mechanism has"
                f" {self.cells} cells. Give queries with one column per cell."
            )
        outside = self._outside(rows) > self.angle_tolerance(self) * np.linalg.norm(rows, axis=1)
        if outside.any():
            raise NotAnswerable(
                f"Row {int(np.argmax(outside))} of the queries, counted from 0, is not a linear"
                f" combination of the {len(self.B)} rows of B. Give queries in the row space of B."
            )
        return np.asarray(rows @ self.right_inverse)


@dataclass(frozen=True, kw_only=True, eq=False)
class Recreation:
    """Matrices that compute the output of a mechanism from the outputs of its parts.

    Attributes
    ----------
    maps : one matrix per part, shape (rows of the mechanism, rows of the part).  The products of
        these matrices and the outputs of the parts sum to an unbiased output of the mechanism.
    extra : covariance of the noise that has to be added to this sum to obtain exactly the output
        distribution of the mechanism; shape (rows, rows), in counts^2.  It is zero unless rows of
        the mechanism are linearly dependent.  Without the added noise the output is more accurate.
    """

    maps: tuple[Array, ...]
    extra: Array


def residual(mechanism: LinearMechanism, part: LinearMechanism) -> LinearMechanism:
    """Return what remains to be measured of `mechanism` after `part`, as a mechanism.

    `part` and the returned mechanism together give exactly the information of `mechanism`.

    Guarantee: the privacy cost matrices of part and residual sum to that of `mechanism`, up to a
    relative error of 1e-9.

    Raises
    ------
    PlanError
        `part` is not answerable from `mechanism`, or has another number of cells.

    Notes
    -----
    Source: algorithm 3, lemma 3.11.

    >>> total, cells = LinearMechanism(np.ones((1, 3)), [[3]]), LinearMechanism(np.eye(3))
    >>> residual(cells, total).rank
    2
    """
    if not mechanism.answers(part):
        raise PlanError(
            "The output of 'part' cannot be computed from the output of 'mechanism', so there is no"
            " residual. Give a 'part' with more noise or fewer queries."
        )
    return unchecked_residual(mechanism, part)


def unchecked_residual(mechanism: LinearMechanism, part: LinearMechanism) -> LinearMechanism:
    """Return `residual(mechanism, part)` without checking that ``part`` is answerable."""
    G = part.whiten(part.B) @ mechanism.right_inverse
    # in the coordinates S x of the mechanism, the privacy cost matrix of ``part`` is G^T G, whose
    # eigenvalues are from 0 to 1; the privacy cost matrix of the residual is I - G^T G
    Q, T = (
        np.linalg.qr(G.T, mode="complete")
        if len(G) < mechanism.rank
        else (np.eye(mechanism.rank), G.T)
    )
    # the first columns of Q span the rows of G, the other columns are orthogonal to these rows
    T = T[: len(G)]
    residual_information, P = np.linalg.eigh(np.eye(len(T)) - T @ T.T)
    # ``part`` has no information in the orthogonal directions, so the residual has the complete
    # information of the mechanism there
    rows = Q.T @ mechanism.standard_rows
    has_information = residual_information > RESIDUAL_TOLERANCE
    scaled_rows = np.sqrt(residual_information[has_information])[:, None] * (
        P[:, has_information].T @ rows[: len(T)]
    )
    return LinearMechanism(np.vstack([scaled_rows, rows[len(T) :]]))


def recreation(mechanism: LinearMechanism, *parts: LinearMechanism) -> Recreation:
    """Return the matrices that compute the output of `mechanism` from the outputs of `parts`.

    Guarantee: the sum over parts p of maps[p] times the output of p is unbiased.  With additional
    noise N(0, extra) it has the output distribution of `mechanism`.

    Raises
    ------
    PlanError
        The privacy cost matrices of the parts do not sum to that of `mechanism`, or a part has
        another number of cells.

    Notes
    -----
    Source: algorithm 4, theorem 5.5.

    >>> total, cells = LinearMechanism(np.ones((1, 3)), [[3]]), LinearMechanism(np.eye(3))
    >>> recreation(cells, total, residual(cells, total)).maps[0].round(9).T
    array([[0.33333333, 0.33333333, 0.33333333]])
    """
    for part in parts:
        _check_same_cells(mechanism, part)
    whitened = [part.whiten(part.B) for part in parts]
    part_rows = np.vstack([np.zeros((0, mechanism.cells)), *whitened]) @ mechanism.right_inverse
    gram = part_rows.T @ part_rows
    distances = [
        mechanism._outside(rows).max(initial=0.0) / np.linalg.norm(rows)
        for rows in whitened
        if len(rows)
    ]
    # The privacy cost matrices of the parts sum to that of the mechanism if their sum is the
    # identity in the coordinates S x of the standard form, and if no part has rows outside the row
    # space of B.
    if (
        np.abs(gram - np.eye(mechanism.rank)).max(initial=0.0) > 1e-7
        or max(distances, default=0.0) > 1e-7
    ):
        raise PlanError(
            "The privacy cost matrices of the parts do not sum to the privacy cost matrix of the"
            " mechanism. Give every part of the mechanism once."
        )
    # The matrix L U computes the answers to B from the answers to the rows S of the standard form,
    # because B = L U S.
    root = (
        mechanism._factors[0] * mechanism._lower[:, None]
        if mechanism._lower.ndim == 1
        else mechanism._lower @ mechanism._factors[0]
    )
    weights = np.split(
        root @ np.linalg.solve(gram, part_rows.T),
        np.cumsum([len(r) for r in whitened])[:-1],
        axis=1,
    )
    maps = tuple(part.whiten(w.T, transpose=True).T for part, w in zip(parts, weights, strict=True))
    return Recreation(maps=maps, extra=mechanism.Sigma - root @ root.T)


def round_up(cost: float) -> float:
    """Return a privacy cost rounded up to 12 significant digits.

    A value that exceeds a number of 12 digits by less than 1e-13 of itself becomes that number,
    because the excess is a rounding error.

    >>> round_up(0.1 + 0.2), round_up(1 / 3)
    (0.3, 0.333333333334)
    """
    # The sum of floats can exceed the exact sum by a rounding error.  Without the factor, rounding
    # up would turn this error into one unit of the 12th digit.
    value = Decimal(cost * (1 - 1e-13))
    return (
        float(value.quantize(Decimal(1).scaleb(value.adjusted() - 11), ROUND_CEILING))
        if value
        else 0.0
    )


def _matrix(name: str, values: npt.ArrayLike) -> Array:
    """Return ``values`` as a matrix of floats.

    Raises PlanError, with ``name`` in its text, unless ``values`` is a matrix of finite numbers
    with at least one column.
    """
    try:
        matrix = np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise PlanError(
            f"{name} is not a matrix of numbers. Give rows of numbers, all of the same length."
        ) from None
    if matrix.ndim != 2 or matrix.shape[1] == 0:
        raise PlanError(
            f"{name} has the shape {matrix.shape}. Give a matrix with at least one column."
        )
    if not np.isfinite(matrix).all():
        raise PlanError(f"{name} has an entry that is not finite. Give finite numbers.")
    return matrix


def _is_positive(matrix: Array) -> bool:
    """Return whether a symmetric matrix is positive definite."""
    try:
        np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        return False
    return True


def _has_off_diagonal(matrix: Array) -> bool:
    """Return whether a matrix has an entry off its diagonal that is not 0."""
    return bool(np.count_nonzero(matrix) > np.count_nonzero(np.diag(matrix)))


def _correlation(Sigma: Array) -> Array:
    scale = np.sqrt(np.diag(Sigma))
    return Sigma / scale[:, None] / scale[None, :]


def _check_same_cells(one: LinearMechanism, other: LinearMechanism) -> None:
    if one.cells != other.cells:
        raise PlanError(
            f"The mechanisms have {one.cells} and {other.cells} cells, but must have the same"
            " domain. Define both on the same domain."
        )


MAX_SPLIT_STEPS = 20_000  # number of costs of the look that `exact_split` tries


def exact_split(
    look: float, totals: Sequence[float], *, has_residual: Sequence[bool]
) -> tuple[tuple[float, float], ...]:
    """Split the cost of every option into the costs of the first stage (the look) and the second.

    The costs of the two stages sum exactly to the cost of the option, if all costs are read as the
    decimal numbers that `repr` shows.  For this, the cost of the look is increased to the first of
    the following values for which the cost of every second stage is a float: the cost of an option
    that measures nothing in the second stage; the cost of the look, rounded up, plus 0, 1, 2, ...
    units in its last digit.

    Parameters
    ----------
    look : smallest allowed cost of the look, in pcost.
    totals : cost of every option, in pcost.
    has_residual : for every option, whether anything is measured in the second stage.  The second
        stage may cost 0 only if nothing is measured in it.

    Returns
    -------
    One pair (cost of the look, cost of the second stage) per option.  All pairs have the same cost
    of the look.

    Raises
    ------
    PlanError
        No such cost of the look was found in `MAX_SPLIT_STEPS` steps.

    >>> exact_split(0.4, [1.0, 0.9999999999999998], has_residual=[True, True])
    ((0.4, 0.6), (0.4, 0.5999999999999998))
    """
    exact_totals = [Decimal(repr(total)) for total in totals]
    cost = Decimal(repr(look))
    # a step is one unit in the 12th digit of the first stage's cost, but not less than one unit in
    # the 17th digit of the largest total, because a float has about 17 decimal digits
    step = Decimal(1).scaleb(max(cost.adjusted() - 11, max(exact_totals).adjusted() - 16))
    rounded = cost.quantize(step, ROUND_CEILING)
    # First try to charge the look (first stage) the full cost of an option that measures nothing in
    # its second stage, so that choosing this option costs nothing.
    totals_without_residual = [
        total
        for total, needed in zip(exact_totals, has_residual, strict=True)
        if not needed and total >= cost
    ]
    for look_cost in itertools.chain(
        totals_without_residual, (rounded + k * step for k in range(MAX_SPLIT_STEPS))
    ):
        residual_costs = [total - look_cost for total in exact_totals]
        if min(residual_costs) < 0:
            continue
        are_floats = all(Decimal(repr(float(x))) == x for x in [look_cost, *residual_costs])
        if are_floats and all(
            x > 0 or not needed for x, needed in zip(residual_costs, has_residual, strict=True)
        ):
            return tuple((float(look_cost), float(x)) for x in residual_costs)
    raise PlanError(
        f"The costs {list(totals)} of the options cannot be split into the cost {look!r} of the"
        " first measurement and exact floating-point costs of the second measurements."
        " Give the options more similar budgets, or remove the cheapest option."
    )


MAX_DUAL_EVALUATIONS = 400  # evaluations of the objective by L-BFGS
CENSUS_AGES = {
    "Total": (0, 103),
    "Age4": (0, 18, 45, 65, 103),
    "Age9": (0, 5, 18, 25, 35, 45, 55, 65, 75, 103),
    "Age23": (
        0,
        5,
        10,
        15,
        18,
        20,
        21,
        22,
        25,
        30,
        35,
        40,
        45,
        50,
        55,
        60,
        62,
        65,
        67,
        70,
        75,
        80,
        85,
        103,
    ),
}


@dataclass(frozen=True, init=False, eq=False)
class CommonMechanism:
    """Common mechanism of two or more linear mechanisms, with the residual of each.

    Attributes
    ----------
    mechanisms : the original mechanisms.
    common : the common mechanism M*, in standard form.
    gap : proven upper bound on how far the solver is from an optimal M*: (trace - minimum) / trace
        of the covariance with which M* answers the queries that all mechanisms can answer.  It is 0
        if a closed form exists, and otherwise about 0.

    Guarantee: the privacy cost matrices satisfy common <= M_i and common + residual_i = M_i, up to
    1e-9 of the cost of M_i.

    Raises
    ------
    PlanError
        There are fewer than two mechanisms, an argument is not a `LinearMechanism`, or the
        mechanisms have different numbers of cells.

    Notes
    -----
    Source: definitions 3.9 and 3.10.

    >>> rows, columns = np.kron(np.eye(3), np.ones(3)), np.kron(np.ones(3), np.eye(3))
    >>> both = CommonMechanism(LinearMechanism(rows), LinearMechanism(columns))
    >>> both.common.covariance(np.ones((1, 9))).round(9), both.residuals[0].rank
    (array([[3.]]), 2)
    """

    mechanisms: tuple[LinearMechanism, ...]
    common: LinearMechanism
    gap: float

    def __init__(self, *mechanisms: LinearMechanism) -> None:
        if len(mechanisms) < 2 or not all(isinstance(M, LinearMechanism) for M in mechanisms):
            raise PlanError(
                "The arguments must be at least two linear mechanisms, but are "
                f"{', '.join(type(M).__name__ for M in mechanisms) or 'none'}. Give two or more "
                "LinearMechanism objects."
            )
        cells = sorted({M.cells for M in mechanisms})
        if len(cells) > 1:
            raise PlanError(
                f"The mechanisms have different numbers of cells: {cells}. Define all of them on "
                "the same domain."
            )
        rows, gap = _common_rows(mechanisms)
        for name, value in (
            ("mechanisms", mechanisms),
            ("common", LinearMechanism(rows)),
            ("gap", gap),
        ):
            object.__setattr__(self, name, value)

    @cached_property
    def residuals(self) -> tuple[LinearMechanism, ...]:
        """Residual of each mechanism, in standard form; only that of the chosen one may be run."""
        return tuple(unchecked_residual(M, self.common) for M in self.mechanisms)

    @property
    def saved(self) -> float:
        """Pcost of M* divided by the largest pcost of a mechanism: "%PLB Saved" in the paper.

        A separate measurement for the choice would cost the pcost of M* in addition.  It is saved,
        because the output of M* is reused for the chosen mechanism.  Source: section 7.2.
        """
        return self.common.pcost / max(M.pcost for M in self.mechanisms)

    @cached_property
    def spends(self) -> tuple[tuple[float, float], ...]:
        """One pair (pcost of the common mechanism, pcost of the residual) per mechanism.

        As decimal numbers, the two costs sum exactly to the pcost of the mechanism.  The cost of a
        residual may be 0.
        """
        has_residual = [len(residual.B) > 0 for residual in self.residuals]
        return exact_split(
            self.common.pcost, [M.pcost for M in self.mechanisms], has_residual=has_residual
        )

    def recreation(self, i: int) -> Recreation:
        """Return the matrices that compute the output of mechanism i from both stages.

        The stages are `common` and `residuals[i]`.

        Guarantee: the computed output has the distribution N(B_i x, Sigma_i - extra), where
        ``extra`` is 0 if the rows of B_i are linearly independent.
        """
        return recreation(self.mechanisms[i], self.common, self.residuals[i])


def _common_rows(mechanisms: Sequence[LinearMechanism]) -> tuple[Array, float]:
    """Return the standard rows of the common mechanism, and `CommonMechanism.gap`."""
    V = _intersection(mechanisms)
    if not len(V):
        return V, 0.0
    # the best answers of mechanism i to the queries V have the covariance H_i H_i^T
    H = [V @ M.right_inverse for M in mechanisms]
    while True:
        # a QR factorization gives T^T T = sum of H_i H_i^T; in the sum itself, small variances
        # would lose digits
        Q, T = np.linalg.qr(np.hstack(H).T)
        blocks = np.split(Q, np.cumsum([h.shape[1] for h in H])[:-1])
        # C_i = T^-T H_i H_i^T T^-1; they add up to the identity, so they are of comparable size
        C = [block.T @ block for block in blocks]
        # if C_i <= C_j, the constraint Sigma >= C_i is redundant; if only two constraints remain,
        # there is a closed form
        maximal = _maximal_indices(C) if len(C) > 2 else list(range(len(C)))
        if len(maximal) == len(C):
            break
        H = [H[i] for i in maximal]
    eigenvalues, P, gap = upper_bound(C)
    basis = scipy.linalg.solve_triangular(T, V, trans="T")
    return (P.T @ basis) / np.sqrt(eigenvalues)[:, None], gap


def _intersection(mechanisms: Sequence[LinearMechanism]) -> Array:
    """Return an orthonormal basis of the queries that all mechanisms answer, shape (k, cells)."""
    first, *rest = sorted(mechanisms, key=lambda M: M.rank)
    V = first.row_space
    for M in rest:
        # A query is in both row spaces if the sine of its angle to the second one is 0.  Squared
        # sines near 0 are accurate only after directions with large sines have been removed.
        for limit in (1e-6, first.angle_tolerance(M)):
            outside = V - (V @ M.row_space.T) @ M.row_space
            if np.linalg.norm(outside) > limit:
                squares, U = np.linalg.eigh(outside @ outside.T)
                V = U[:, squares <= limit**2].T @ V
    return V


def _maximal_indices(C: Sequence[Array]) -> list[int]:
    """Return the positions of the maximal matrices, those that are not <= another matrix.

    Of equal matrices only the first one is maximal.
    """
    maximal = list(range(len(C)))
    # in reverse order, so that the first of equal matrices remains
    for i in reversed(range(len(C))):
        if any(np.linalg.eigvalsh(C[j] - C[i])[0] >= -1e-13 for j in maximal if j != i):
            maximal.remove(i)
    return maximal


def upper_bound(C: Sequence[Array]) -> tuple[Array, Array, float]:
    """Return the eigendecomposition of the matrix Sigma of least trace with Sigma >= C_i for all i.

    Parameters
    ----------
    C : symmetric matrices of shape (k, k).

    Returns
    -------
    eigenvalues : eigenvalues of Sigma, shape (k,).
    eigenvectors : eigenvectors of Sigma as columns, shape (k, k).
    gap : upper bound on (trace - minimum) / trace, which a solution of the dual problem proves; 0
        if a closed form exists.

    >>> eigenvalues, _, gap = upper_bound([np.diag([1.0, 3.0]), np.diag([2.0, 1.0])])
    >>> eigenvalues.tolist(), gap < 1e-12
    ([2.0, 3.0], True)
    """
    # Matrices that commute are diagonal in one common basis.  The eigenvectors of a weighted sum of
    # the matrices are such a basis, unless the weights make two of its eigenvalues equal.
    _, P = np.linalg.eigh(np.sum([np.sqrt(i + 2.0) * c for i, c in enumerate(C)], axis=0))
    rotated = [P.T @ c @ P for c in C]
    if max(np.abs(c - np.diag(np.diag(c))).max() for c in rotated) <= 1e-12:
        return np.max([np.diag(c) for c in rotated], axis=0), P, 0.0
    if len(C) == 2:
        # for two matrices, Stott's formula (theorem 5.4) gives the optimum
        eigenvalues, P = np.linalg.eigh(C[0] + _positive(C[1] - C[0]))
        return eigenvalues, P, 0.0
    # at the optimum Sigma = sum of C_i Y_i with sum of Y_i = I, by complementary slackness; the
    # matrices Y_i solve the dual problem
    product = np.sum([c @ y for c, y in zip(C, _dual(C), strict=True)], axis=0)
    Sigma = (product + product.T) / 2
    lower_bound = float(np.trace(product))
    for c in C:
        # the dual solution is only nearly optimal, so Sigma may violate a constraint: adding the
        # positive part of C_i - Sigma makes it feasible
        Sigma = Sigma + _positive(c - Sigma)
    eigenvalues, P = np.linalg.eigh(Sigma)
    return eigenvalues, P, max(0.0, 1 - lower_bound / float(np.trace(Sigma)))


def _dual(C: Sequence[Array]) -> list[Array]:
    """Solve the dual problem: return Y_i >= 0 with sum I that maximise the sum of tr(C_i Y_i)."""
    import scipy.optimize

    n, k = len(C), len(C[0])

    def factors(point: Array) -> tuple[Array, Array, Array, Array, Array]:
        """Return A_i, A_i A_i^T, S^-1/2, the eigenvectors of S, and 1 / sqrt(eigenvalues of S).

        S is the sum of A_i A_i^T.
        """
        A = point.reshape(n, k, k)
        squares = A @ A.transpose(0, 2, 1)
        eigenvalues, V = np.linalg.eigh(squares.sum(axis=0))
        # eigenvalues that are 0 up to rounding are replaced, so that their inverses are finite
        r = 1 / np.sqrt(np.maximum(eigenvalues, eigenvalues[-1] * 1e-30))
        return A, squares, (V * r) @ V.T, V, r

    def objective(point: Array) -> tuple[float, Array]:
        A, squares, root, V, r = factors(point)
        transformed = [root @ c @ root for c in C]
        mixed = sum(s @ root @ c for s, c in zip(squares, C, strict=True))
        # in the eigenbasis of S, the derivative of S^-1/2 multiplies the entries by divided
        # differences
        rotated = V.T @ (mixed + mixed.T) @ V * (-np.outer(r, r) / np.add.outer(1 / r, 1 / r))
        derivative = V @ rotated @ V.T
        gradient = np.array([2 * (p + derivative) @ a for p, a in zip(transformed, A, strict=True)])
        return (
            -float(sum(np.sum(p * s) for p, s in zip(transformed, squares, strict=True))),
            -gradient.ravel(),
        )

    # Y_i = S^-1/2 A_i A_i^T S^-1/2 with S = sum A_i A_i^T is feasible for all matrices A_i, so the
    # search over the A_i needs no constraints
    start = np.array([_positive(c, power=0.5) for c in C]).ravel()
    optimum = scipy.optimize.minimize(
        objective,
        start,
        jac=True,
        method="L-BFGS-B",
        options={"maxfun": MAX_DUAL_EVALUATIONS, "maxcor": 20, "ftol": 0, "gtol": 1e-12},
    )
    _, squares, root, _, _ = factors(optimum.x)
    return [root @ s @ root for s in squares]


def _positive(matrix: Array, power: float = 1.0) -> Array:
    """Return a symmetric matrix with its eigenvalues replaced by max(eigenvalue, 0)^power."""
    eigenvalues, V = np.linalg.eigh(matrix)
    return np.asarray((V * np.maximum(eigenvalues, 0.0) ** power) @ V.T)
