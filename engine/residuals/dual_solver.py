"""Optimal strategies for one Gram matrix, with certified optimality gaps.

The problem, for a residual Gram G and a lift L (residual coordinates x cells):

    minimise  tr(G X^-1)   over X > 0   with   diag(L^T X L) <= 1

Its dual, with W = G^(1/2) L and a weight mu >= 0 on every cell, is  max over mu of  T(mu)^2 /
sum(mu), T(mu) = tr (W diag(mu) W^T)^(1/2).  Every mu gives a lower bound T^2 / sum(mu), and a
feasible precision X = G^(1/2) (W diag(mu) W^T)^(-1/2) G^(1/2) / max(d), where d is diag(L^T X L)
before the division.  The value of X, its tr(G X^-1), is max(d) T.  The certificate is the pair
(value, bound), which is valid whether or not the search converged.

With s = sqrt(mu) the problem is unconstrained, and L-BFGS on the log of the dual typically needs 10
to 150 evaluations.  Reversing the cells of an attribute is a signed permutation in the cosine
basis, and so is swapping two attributes of equal size.  A signed permutation that leaves G and L
unchanged is a symmetry.  G has one diagonal block for every combination of the eigenvalues +1 and
-1 of the symmetries.  Some optimal mu is constant on the orbits of the symmetries, because the
problem is convex.

If the workload has few queries and many cells, the optimal mu has few positive weights, about as
many as the rank: sums over two attributes of 40 and 41 cells have 43 positive weights on 820
orbits, and L-BFGS takes 190 evaluations to reduce all other weights to zero.  Near the optimum the
same problem on the active set alone,

    minimise  phi(mu) = sum(mu) - 2 T(mu)   over mu >= 0,

is convex, small, and smooth where weights are positive.  Two or three Newton steps solve it up to
rounding errors.  Each step minimises the second-order model over mu >= 0 (non-negative least
squares).  The gradient is 1 - d for the diagonal d of L^T X L.  Cells outside the active set with
d > 1 join the set.  The certificate is that of the full problem.

Source: QuerySmasher, section 6.3 (equation 4) states the primal; the dual, its certificate and the
active set are our work.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy

from engine._arrays import Array, Index
from engine._clock import planning_time
from engine._threads import map_in_threads
from engine.residuals.basis import Lift, basis, contract
from engine.residuals.decomposition import Factor
from engine.residuals.strategy import Strategy, canonical_rotation

# (permutation, sign) of the signed permutation v -> sign * v[permutation]
SignedPermutation = tuple[npt.NDArray[np.int64], Array]


def count_symmetries(factor: Factor, lift: Lift) -> tuple[int, int]:
    """Return how many of the `symmetries` are reversals of attributes, and how many are swaps."""
    is_swap = [bool((sign == 1.0).all()) for (_, sign), _ in symmetries(factor, lift)]
    return is_swap.count(False), is_swap.count(True)


def symmetries(factor: Factor, lift: Lift) -> list[tuple[SignedPermutation, SignedPermutation]]:
    """Return symmetries of the Gram and the lift that commute and are their own inverses.

    A symmetry is a pair of signed permutations: one of the residual coordinates, one of the cells.
    Candidates are reversals of sets of attributes and swaps of two attributes of equal size.  A
    candidate is accepted if it leaves the Gram and the lift unchanged, commutes with all symmetries
    accepted before, and is not a product of them.
    """

    def gram(vector: Array) -> Array:
        image: Array = factor.matrix @ vector
        return factor.matrix.T @ image if factor.low_rank else image

    # Invariance is tested on random vectors: this needs no permuted copy of the Gram, and the
    # probability that an asymmetry goes unnoticed is 0.  A fixed seed makes searches reproducible.
    rng, sizes, dimension = np.random.default_rng(7), lift.sizes, factor.dimension
    coordinate_sizes = lift.coordinates
    probe, cell_probe = rng.standard_normal(dimension), rng.standard_normal(lift.cells)
    image, lifted = gram(probe), lift.table_coordinates(cell_probe[None])[0]
    coordinate_index = np.arange(dimension).reshape(coordinate_sizes)
    cell_index = np.arange(lift.cells).reshape(sizes)
    accepted: list[tuple[SignedPermutation, SignedPermutation]] = []
    axes = range(len(sizes))
    reversals = [
        axis_set for k in range(1, len(sizes) + 1) for axis_set in itertools.combinations(axes, k)
    ]
    candidates: list[tuple[SignedPermutation, SignedPermutation]] = []
    for axis_set in reversals:
        # reversing the cells multiplies cosine k by (-1)^k
        sign = np.ones(coordinate_sizes)
        for axis in axis_set:
            along = [1] * len(sizes)
            along[axis] = coordinate_sizes[axis]
            sign = sign * ((-1.0) ** lift.degrees(axis)).reshape(along)
        candidates.append(
            (
                (coordinate_index.ravel(), sign.ravel()),
                (np.flip(cell_index, axis_set).ravel(), np.ones(lift.cells)),
            )
        )
    for a, b in itertools.combinations(axes, 2):
        if sizes[a] == sizes[b]:
            moved = tuple(np.swapaxes(t, a, b).ravel() for t in (coordinate_index, cell_index))
            candidates.append(((moved[0], np.ones(dimension)), (moved[1], np.ones(lift.cells))))
    for on_coordinates, on_cells in candidates:
        independent = not any(
            np.array_equal(on_coordinates[0], permutation)
            and np.array_equal(on_coordinates[1], sign)
            for permutation, sign in _products(accepted)
        )
        difference = gram(_act(on_coordinates, probe)) - _act(on_coordinates, image)
        invariant = np.abs(difference).max() <= 1e-9 * np.abs(image).max()
        moved_probe = lift.table_coordinates(_act(on_cells, cell_probe)[None])[0]
        lift_difference = moved_probe - _act(on_coordinates, lifted)
        lift_invariant = np.abs(lift_difference).max() <= 1e-9
        # only commuting symmetries have joint eigenspaces, which are the blocks of the Gram
        commuting = all(
            np.array_equal(
                _act(on_coordinates, _act(action, probe)), _act(action, _act(on_coordinates, probe))
            )
            for action, _ in accepted
        )
        if independent and invariant and lift_invariant and commuting:
            accepted.append((on_coordinates, on_cells))
    return accepted


def _act(action: SignedPermutation, vector: Array) -> Array:
    """Apply a signed permutation: entry k of the result is sign[k] * vector[permutation[k]]."""
    permutation, sign = action
    return sign * vector[permutation]


def _products(
    actions: Sequence[tuple[SignedPermutation, SignedPermutation]],
) -> list[SignedPermutation]:
    """Return all products of one or more distinct symmetries, as they act on the coordinates."""
    products: list[SignedPermutation] = []
    for (permutation, sign), _ in actions:
        products += [(p[permutation], sign * s[permutation]) for p, s in products] + [
            (permutation, sign)
        ]
    return products


def character_bases(actions: Sequence[SignedPermutation], dimension: int) -> list[Any]:
    """Return orthonormal bases of the joint eigenspaces of commuting signed permutations.

    There is one eigenspace for every choice of an eigenvalue, +1 or -1, for each permutation.  A
    basis is a sparse matrix of shape (dimension, k); the nonzero entries of a column belong to
    coordinates that the permutations map to each other.
    """
    import scipy.sparse

    eye = scipy.sparse.eye_array(dimension, format="csr")
    projections: list[Any] = [eye]
    for permutation, sign in actions:
        action = scipy.sparse.csr_array(
            (sign, (np.arange(dimension), permutation)), shape=(dimension, dimension)
        )
        # (1 + c * action) / 2 projects onto the eigenspace of ``action`` for the eigenvalue c.  All
        # projections commute, so their product projects onto the intersection of the eigenspaces.
        projections = [P @ (eye + c * action) / 2.0 for P in projections for c in (1.0, -1.0)]
    bases = []
    for P in projections:
        P.eliminate_zeros()
        P.sort_indices()
        # Coordinates that the permutations map to each other have proportional rows in P.  One row
        # is kept: that of the lowest coordinate, whose first nonzero entry is on the diagonal.
        nonempty = np.flatnonzero(np.diff(P.indptr))
        first_coordinates = P.indices[P.indptr[nonempty]]
        rows = P[nonempty[first_coordinates == nonempty]]
        norms = np.sqrt((rows * rows).sum(axis=1))
        bases.append((scipy.sparse.diags_array(1.0 / norms) @ rows).T.tocsr())
    return bases


def sign_classes(actions: Sequence[SignedPermutation], dimension: int) -> list[Index] | None:
    """Return the coordinates of every joint eigenspace of symmetries that only change signs.

    There is one array of coordinates per eigenspace, in the order of `character_bases`.  The result
    is None if some symmetry permutes coordinates.
    """
    classes = [np.arange(dimension)]
    for permutation, sign in actions:
        if not np.array_equal(permutation, np.arange(dimension)):
            return None
        classes = [k[sign[k] == c] for k in classes for c in (1.0, -1.0)]
    return classes


def character_rows(actions: Sequence[SignedPermutation], rows: Array) -> list[Array]:
    """Project rows onto every joint eigenspace of commuting signed permutations.

    Returns one array per eigenspace, of the shape of ``rows``: (k, residual coordinates).  If the
    permutations leave the Gram of ``rows`` unchanged, the Grams of all these arrays sum to it.
    """
    projections = [rows]
    for permutation, sign in actions:
        # Let Q be the image of the rows P under the permutation.  P and Q have equal Grams, and the
        # Grams of (P + Q) / 2 and (P - Q) / 2 sum to this Gram.
        images = [P[:, permutation] * sign for P in projections]
        projections = [
            (P + c * image) / 2.0
            for P, image in zip(projections, images, strict=True)
            for c in (1.0, -1.0)
        ]
    return projections


def orbits(
    actions: Sequence[SignedPermutation], cells: int
) -> tuple[npt.NDArray[np.int64], Array, npt.NDArray[np.int64]]:
    """Return the orbits of the cells under commuting permutations that are their own inverses.

    Returns
    -------
    The index of the orbit of every cell, shape (cells,); the number of cells of every orbit, shape
    (orbits,); the lowest cell of every orbit, shape (orbits,).
    """
    lowest = np.arange(cells)
    for permutation, _sign in actions:
        # After this step, the minimum is over all products of the permutations so far.
        lowest = np.minimum(lowest, lowest[permutation])
    representatives, orbit, count = np.unique(lowest, return_inverse=True, return_counts=True)
    return orbit, count.astype(float), representatives


OrbitIndices: TypeAlias = npt.NDArray[np.intp]

# Weights below this share of the largest weight leave the active set.  An orbit whose optimal
# weight is positive joins the set again, because its derivative d is then greater than 1.
ACTIVE_SHARE = 1e-3
# largest number of active sets of one call of `newton_weights`; 1 is typical
MAX_ACTIVE_SETS = 8
# largest number of Newton steps on one active set; 3 is typical
MAX_NEWTON_STEPS = 20
# a Newton step may take as long as this number of evaluations of the dual on all cells
MAX_STEP_COST = 5
# This share of the Hessian's trace is added to its diagonal: the Hessian is singular if weight can
# move between cells without changing T.
CURVATURE_SHIFT = 1e-13


class WeightProblem(Protocol):
    """Interface of a dual problem whose variables are weights, one per orbit of cells.

    ``projected`` holds one matrix W_b per diagonal block b of the Gram; see `DualProblem`.
    """

    projected: list[Array]

    def evaluate(self, mass: Array, active: OrbitIndices | None = None) -> tuple[float, Array]:
        """Return T and the diagonal d of L^T X L for the weights ``mass``, shape (orbits,).

        If ``active`` lists orbits, all other orbits have weight 0, and ``mass`` and d have one
        entry per listed orbit.
        """

    def curvature(self, mass: Array, active: OrbitIndices) -> Array:
        """Return the Hessian of -2 T in the weights of the k orbits ``active``, shape (k, k)."""


def newton_weights(
    problem: WeightProblem, mass: Array, gap: float, deadline: float
) -> tuple[Array, float] | None:
    """Improve dual weights by Newton's method on the orbits of cells with positive weight.

    Returns (weights of shape (orbits,) with sum 1, the gap that they prove).  Returns None if the
    steps do not prove ``gap``, or if they are not worthwhile (`_is_worthwhile`).

    Parameters
    ----------
    mass : initial weights near the optimal ones, shape (orbits,).
    gap : required relative RMSE gap.
    deadline : time limit on the clock of `planning_time`.
    """
    T, d = problem.evaluate(mass)
    # The steps minimise phi(mu) = sum(mu) - 2 T(mu) over the weights mu, here ``mass``.  Among all
    # multiples of mu, phi is smallest at the one with T = sum(mu).  ``d`` has the privacy costs of
    # the cells.  At the optimum, d is then 1 at all orbits with positive weight.
    d, mass = d * (mass.sum() / T), mass * (T / mass.sum()) ** 2
    for _ in range(MAX_ACTIVE_SETS):
        # At an optimum d is at most 1.  Orbits whose d is below 1 by less than the largest excess
        # of d above 1 are included, because their optimal weight may be positive.
        active = np.flatnonzero((mass > ACTIVE_SHARE * mass.max()) | (d > 1.0 - (d.max() - 1.0)))
        if not _is_worthwhile(problem, len(active), len(mass)):
            return None
        try:
            mass[active] = _newton_minimum(problem, mass[active], active, gap, deadline)
        except (np.linalg.LinAlgError, RuntimeError):  # singular curvature, or no convergence
            return None
        mass = np.where(np.isin(np.arange(len(mass)), active), mass, 0.0)
        T, d = problem.evaluate(mass)
        d = d * (mass.sum() / T)
        proved_gap = math.sqrt(max(float(d.max()), 1.0)) - 1.0
        if proved_gap <= gap:
            return mass / mass.sum(), proved_gap
        if planning_time() > deadline:
            return None
    return None


def _is_worthwhile(problem: WeightProblem, count: int, orbits: int) -> bool:
    """Return whether Newton steps on ``count`` of ``orbits`` weights are likely to save time.

    At most half of the weights may be active, and a step may take at most as long as
    `MAX_STEP_COST` evaluations of the dual.
    """
    ranks = [len(W) for W in problem.projected]
    step_operations = sum(r * r * count * count for r in ranks)
    evaluation_operations = sum(4 * r * r * orbits + 20 * r**3 for r in ranks)
    return 2 * count <= orbits and step_operations <= MAX_STEP_COST * evaluation_operations


def _newton_minimum(
    problem: WeightProblem, mass: Array, active: OrbitIndices, gap: float, deadline: float
) -> Array:
    """Minimise phi(mu) = sum(mu) - 2 T(mu) over weights mu >= 0 of the orbits ``active``.

    Newton steps start from ``mass``, one entry per orbit of ``active``, and return weights of the
    same shape.  The steps end when the violation of the optimality conditions is at most 0.3
    ``gap``, at the deadline, when no step decreases phi, or after `MAX_NEWTON_STEPS`.
    """
    import scipy.linalg
    import scipy.optimize

    T, d = problem.evaluate(mass, active)
    for _ in range(MAX_NEWTON_STEPS):
        # derivative of phi: d is the derivative of 2 T
        slope = 1.0 - d
        violation = np.where(mass > 0.0, slope, np.minimum(slope, 0.0))
        if np.abs(violation).max() <= 0.3 * gap or planning_time() > deadline:
            break
        curvature = problem.curvature(mass, active)
        curvature[np.diag_indices_from(curvature)] += CURVATURE_SHIFT * np.trace(curvature)
        # The second-order model of phi is minimised over mu >= 0 as a non-negative least squares
        # problem, so that one step can set many weights to zero.
        root = scipy.linalg.cholesky(curvature, check_finite=False)
        target = root @ mass - scipy.linalg.solve_triangular(
            root, slope, trans="T", check_finite=False
        )
        step = scipy.optimize.nnls(root, target)[0] - mass
        value, length = mass.sum() - 2.0 * T, 1.0
        # line search: the step is halved until phi decreases sufficiently
        while True:
            candidate = mass + length * step
            T, d = problem.evaluate(candidate, active)
            if candidate.sum() - 2.0 * T <= value + 1e-4 * length * float(slope @ step):
                break
            length /= 2.0
            if length < 1e-6:
                return mass
        mass = candidate
    return mass


# eigenvalues of a Gram below this share of the largest count as zero
NULL_SHARE = 1e-12
# norm of the initial vector s = sqrt(mu); the dual is the same for all multiples of s
START_NORM = 10.0
# Newton steps begin when a relative RMSE gap of NEWTON_GAP is proved and the number of evaluations
# of the dual is at least MIN_NEWTON_EVALUATIONS
NEWTON_GAP, MIN_NEWTON_EVALUATIONS = 3e-3, 16
# with matrices of at least this order, a search that begins after the deadline evaluates nothing,
# because an evaluation takes half as long as the strategy of the initial weights
MIN_SLOW_BLOCK = 30
# with at least this number of residual coordinates, symmetries save more time than their detection
# takes
SYMMETRY_FROM = 40
# called with the current relative RMSE gap after every evaluation; may raise an exception to cancel
Watch = Callable[[float], None]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Stopping rule of a strategy search.  A search without progress may end earlier.

    Attributes
    ----------
    gap : the search ends when it has proved this relative RMSE gap.
    evaluations : limit on the number of evaluations of the dual, without those of Newton steps.
    deadline : time limit on the clock of `planning_time`.
    """

    gap: float = 1e-7
    evaluations: int = 600
    deadline: float = math.inf


@dataclass(frozen=True, kw_only=True, eq=False)
class Solution:
    """Strategy for one residual Gram, with the proof of its optimality gap.

    Attributes
    ----------
    strategy : the strategy.
    value : weighted sum of the variances of the queries' components at privacy cost 1, in counts^2.
    bound : lower bound on the value of every strategy for the same Gram and lift.
    dual : vector that proves the bound and determines the strategy.  A `DualProblem` has one weight
        mu per orbit of cells.
    status : "optimal" if the search proved the required gap, otherwise why it ended; "closed form"
        without a search.  If the strategy is a special construction, its name and a comma come
        first.
    """

    strategy: Strategy
    value: float
    bound: float
    dual: Array
    status: str

    @property
    def ending(self) -> str:
        """Reason why the search ended: ``status`` without the name of a special construction."""
        return self.status.rpartition(", ")[2]

    @property
    def gap(self) -> float:
        """Relative RMSE gap: sqrt(value / bound) - 1; 0 if the bound is 0."""
        return math.sqrt(self.value / self.bound) - 1.0 if self.bound > 0 else 0.0


class DualProblem:
    """Dual problem of the strategy search for one Gram.

    The symmetries of the Gram G divide it into diagonal blocks.  Block b is stored as rows H_b in
    residual coordinates, and G is the sum of H_b^T H_b over the blocks.  The same rows on cells are
    W_b = H_b L.  An orbit is a set of cells that the symmetries map to each other.  Cells of an
    orbit have equal weights, so W_b is stored with one column per orbit.

    Parameters
    ----------
    lift : maps rows in residual coordinates to rows on cells.
    factor : the residual Gram.
    """

    def __init__(self, *, lift: Lift, factor: Factor) -> None:
        self.lift, self.sizes = lift, lift.sizes
        generators = (
            symmetries(factor, lift) if factor.dimension >= SYMMETRY_FROM and lift.one_space else []
        )
        # A symmetry is a pair of signed permutations: of residual coordinates and of cells.
        on_coordinates = [action for action, _ in generators]
        self.orbit, self.multiplicity, representatives = orbits(
            [action for _, action in generators], lift.cells
        )
        # Every block gets linearly independent rows ("roots").  The Gram is the sum over the blocks
        # of root^T root.
        if factor.low_rank:
            self.roots = _independent(character_rows(on_coordinates, factor.matrix))
        elif generators and (classes := sign_classes(on_coordinates, factor.dimension)) is not None:
            # selecting coordinates takes less time than products with sparse bases
            roots = _roots([factor.matrix[np.ix_(k, k)] for k in classes])
            self.roots = [
                _spread(root, k, factor.dimension)
                for root, k in zip(roots, classes, strict=True)
                if len(root)
            ]
        elif generators:
            bases = character_bases(on_coordinates, factor.dimension)
            roots = _roots([np.asarray(B.T @ (factor.matrix @ B)) for B in bases])
            self.roots = [
                np.asarray(root @ B.T) for root, B in zip(roots, bases, strict=True) if len(root)
            ]
        else:
            self.roots = [root for root in _roots([factor.matrix]) if len(root)]
        # the rows on cells, with one column per orbit of cells
        self.projected = [
            np.ascontiguousarray(lift.rows(root)[:, representatives]) for root in self.roots
        ]

    @property
    def variables(self) -> int:
        """Number of dual weights: one per orbit of cells."""
        return len(self.multiplicity)

    @property
    def largest_block(self) -> int:
        """Order of the largest matrix of an evaluation."""
        return max(map(len, self.projected), default=0)

    def evaluate(self, mass: Array, active: OrbitIndices | None = None) -> tuple[float, Array]:
        """Return T and the diagonal d of L^T X L, shape (orbits,).

        ``mass`` holds for every orbit the summed weight of its cells, shape (orbits,).  If
        ``active`` lists orbits, all other orbits have weight 0, and ``mass`` and d have one entry
        per listed orbit.
        """
        rows = self.projected if active is None else [W[:, active] for W in self.projected]
        blocks = map_in_threads(lambda W: _block(W, mass), rows)
        return math.fsum(T for T, _ in blocks), np.sum([d for _, d in blocks], axis=0)

    def curvature(self, mass: Array, active: OrbitIndices) -> Array:
        """Return the Hessian of -2 T in the weights of the k orbits ``active``, shape (k, k)."""
        hessian = np.zeros((len(active), len(active)))
        for W in self.projected:
            (root, U), _, _ = _eigen_block(W[:, active], mass)
            Y = U.T @ W[:, active]
            i, j = np.triu_indices(len(root))
            # In the eigenbasis of M = W diag(mass) W^T, the derivative of M^(-1/2) with respect to
            # M multiplies entry (i, j) by -1 / (r_i r_j (r_i + r_j)), where ``root`` holds the
            # eigenvalues r of M^(1/2).  ``factor`` has the opposite sign, as the Hessian of -2 T.
            # By symmetry, only entries i <= j are computed, and entries i < j count twice.
            factor = np.where(i == j, 1.0, 2.0) / (root[i] * root[j] * (root[i] + root[j]))
            products = Y[i] * Y[j] * np.sqrt(factor)[:, None]
            hessian += products.T @ products
        return hessian

    def bound(self, mass: Array) -> float:
        """Return T^2 / sum(mass), a lower bound on the value of every strategy.

        ``mass`` holds the weights of the orbits, shape (orbits,).
        """
        # `evaluate` of a subclass may bound only the strategies of this subclass.  The method of
        # `DualProblem` bounds all strategies.
        T, _ = DualProblem.evaluate(self, mass)
        return T * T / float(mass.sum())

    def value(self, mass: Array) -> float:
        """Return the dual value T^2 / sum(mass), with the last digits of `sensitivities`.

        ``mass`` holds the weights of the orbits, shape (orbits,).
        """
        T = 0.0
        for W in self.projected:
            T += float(self._half(W, mass / mass.sum())[0].sum())
        return T * T

    @staticmethod
    def _half(W: Array, mass: Array) -> tuple[Array, Array]:
        """Return the eigenvalues and eigenvectors of M^(1/2) for M = W diag(mass) W^T."""
        eigenvalues, U = scipy.linalg.eigh((W * mass) @ W.T, check_finite=False)
        return np.sqrt(np.maximum(eigenvalues, eigenvalues[-1] * 1e-18)), U

    def sensitivities(self, mass: Array) -> tuple[float, Array, list[Array]]:
        """Return the dual value and its derivatives with respect to the Gram and the centers.

        The weights ``mass``, shape (orbits,), are held constant.  At optimal weights, the results
        are also the derivatives of the optimal value (envelope theorem).

        Returns
        -------
        value : T^2 / sum(mass).
        by_gram : derivative of ``value`` with respect to the Gram, shape (residual coordinates,
            residual coordinates).
        by_centers : for every attribute, the derivative of ``value`` with respect to N_i^T pi_i,
            shape (n_i - 1,).
        """
        mass = mass / mass.sum()
        cell_mass = (mass / self.multiplicity)[self.orbit]
        # Block H has the rows ``root``, and M = H L diag(mu) L^T H^T for the cell weights mu.  X is
        # the sum of H^T M^(-1/2) H over the blocks, and X_inverse is its pseudoinverse.
        T, X_inverse = 0.0, np.zeros((self.lift.dimension,) * 2)
        X = np.zeros_like(X_inverse)
        for root, W in zip(self.roots, self.projected, strict=True):
            half, U = self._half(W, mass)
            T += float(half.sum())
            pseudoinverse_U = (root.T / np.einsum("rc,rc->r", root, root)) @ U
            # the derivative of T^2 with respect to G is T X^-1
            X_inverse += (pseudoinverse_U * half) @ pseudoinverse_U.T
            root_U = root.T @ U
            # The derivative of T with respect to M is M^(-1/2) / 2.  L occurs twice in M, so the
            # factor 1/2 cancels in the derivative for L.
            X += (root_U / half) @ root_U.T
        by_lift = (self.lift.rows(X) * cell_mass).reshape(
            [n - 1 for n in self.sizes] + list(self.sizes)
        )
        # L_i = N_i^T - (N_i^T pi_i) 1^T.  By the chain rule, `traced` turns the derivative with
        # respect to L into the one with respect to -N_i^T pi_i; the minus sign is in the factor -2
        # T.
        return (
            T * T,
            T * X_inverse,
            [-2.0 * T * self.lift.traced(by_lift, axis) for axis in range(len(self.sizes))],
        )

    def maximise(
        self, options: Options, start: Array | None = None, watch: Watch | None = None
    ) -> tuple[Array, str]:
        """Search for dual weights by L-BFGS, with Newton steps near the optimum.

        Parameters
        ----------
        options : stopping rule.
        start : initial weights, shape (orbits,); None gives all cells equal weights.
        watch : called with the relative RMSE gap after every evaluation.

        Returns
        -------
        The weights with the smallest gap, shape (orbits,) with sum 1, and the reason why the search
        ended, "optimal" if the gap of ``options`` is proved.
        """
        import scipy.optimize

        ratio, best = math.inf, np.zeros(0)
        status, evaluations, newton_gap = "optimal", 0, NEWTON_GAP
        longest_evaluation = 0.0
        # Without a deadline the clock is not read, because this can take longer than the evaluation
        # of a small problem.
        has_deadline = math.isfinite(options.deadline)
        now: Callable[[], float] = planning_time if has_deadline else lambda: 0.0

        def negative_log_dual(s: Array) -> tuple[float, Array]:
            """Return -log(T^2 / sum(mu)) for mu = s^2 and its gradient in s; store the best mu."""
            nonlocal ratio, best, evaluations, newton_gap, longest_evaluation
            evaluations += 1
            started = now()
            # The variables s are roots of the weights mu, so that the search needs no constraint
            # mu >= 0.
            mass = s * s
            T, d = self.evaluate(mass)
            longest_evaluation = max(longest_evaluation, now() - started)
            total = float(mass.sum())
            # squared error of the strategy for the weights ``mass``, divided by the lower bound
            # that these weights prove
            if d.max() * total / T < ratio:
                ratio, best = float(d.max()) * total / T, mass / total
            gap = math.sqrt(ratio) - 1.0
            if watch is not None:
                watch(gap)
            if options.gap < gap <= newton_gap and evaluations >= MIN_NEWTON_EVALUATIONS:
                # if Newton steps fail here, they are tried again at a tenth of this gap
                newton_gap = gap / 10.0
                newton_result = newton_weights(self, best, options.gap, options.deadline)
                if newton_result is not None:
                    best, gap = newton_result
                    if watch is not None:
                        watch(gap)
            if gap <= options.gap:
                raise StopIteration
            # On thousands of cells a single evaluation takes seconds, so no evaluation begins that
            # would end after the deadline.
            if now() + longest_evaluation > options.deadline:
                raise TimeoutError
            # This function has the same value for all multiples of s, so sum(mu) needs no
            # constraint.
            return math.log(total) - 2.0 * math.log(T), 2.0 * s / total - 2.0 * s * d / T

        # The first step of L-BFGS has length 1.  The initial vector is longer, so that the step
        # cannot end at s = 0, where the dual is undefined.
        first = START_NORM * np.sqrt(
            self.multiplicity / self.multiplicity.sum() if start is None else start
        )
        # for a large problem, computing the strategy of the initial weights may take less time than
        # one evaluation
        if self.largest_block >= MIN_SLOW_BLOCK and planning_time() > options.deadline:
            return first * first / float(first @ first), "stopped at the time limit"
        try:
            # The first weights often prove the gap.  They are evaluated before L-BFGS, whose setup
            # takes longer than the evaluation of a small problem.
            first_evaluation: list[tuple[float, Array]] = [negative_log_dual(first)]

            def evaluate_again(s: Array) -> tuple[float, Array]:
                """Return the result of `negative_log_dual`; it is not computed again for ``first``."""
                return first_evaluation.pop() if first_evaluation else negative_log_dual(s)

            scipy.optimize.minimize(
                evaluate_again,
                first,
                jac=True,
                method="L-BFGS-B",
                options={
                    "maxcor": 30,
                    "maxiter": options.evaluations,
                    "maxfun": options.evaluations,
                    # no tolerances: a small step of L-BFGS does not prove that the gap is small
                    "ftol": 0.0,
                    "gtol": 0.0,
                },
            )
            status = "stopped where the search made no more progress"
        except StopIteration:
            pass
        except TimeoutError:
            status = "stopped at the time limit"
        return best, status

    def solution(self, mass: Array, status: str) -> Solution:
        """Return the strategy that dual weights determine, with its value and lower bound.

        ``mass`` has shape (orbits,); ``status`` is the reason why the search ended.
        """
        solved = [_eigen_block(W, mass) for W in self.projected]
        T = math.fsum(block_T for _, block_T, _ in solved)
        d = np.sum([block_d for _, _, block_d in solved], axis=0)
        strategy_rows, pinv, directions = [], [], []
        scale = math.sqrt(float(d.max()))  # rows divided by it have sensitivity 1
        # Per block, let H be the rows ``root`` and M = W diag(mass) W^T, with the eigenvectors U.
        # The strategy rows are Q M^(-1/4) H / scale, so their Gram is proportional to
        # X = H^T M^(-1/2) H.  The rotation Q makes the rows independent of the basis of H.
        for root, ((roots_of_m, U), _, _) in zip(self.roots, solved, strict=True):
            squares = np.einsum("rc,rc->r", root, root)
            inverse = root.T / squares  # the rows of a root are orthogonal
            quarter = np.sqrt(roots_of_m)  # eigenvalues of M^(1/4); ``roots_of_m`` of M^(1/2)
            unit_rows = root / np.sqrt(squares)[:, None]
            # the symmetric root M^(-1/4) makes the rows a smooth function of the weights
            rotation = canonical_rotation(unit_rows) @ U
            strategy_rows.append((rotation / quarter) @ (U.T @ root) / scale)
            pinv.append((inverse @ U) * quarter @ rotation.T * scale)
            directions.append(unit_rows)
        rows = self.lift.rows(np.concatenate(strategy_rows))
        complete = len(rows) == self.lift.dimension
        strategy = Strategy(
            sizes=self.sizes,
            rows=rows,
            pinv=np.concatenate(pinv, axis=1),
            complete=complete,
            measured=None if complete else np.concatenate(directions),
        )
        bound = T * T / float(mass.sum())
        return Solution(
            strategy=strategy, value=float(d.max()) * T, bound=bound, dual=mass, status=status
        )


def _block(W: Array, mass: Array) -> tuple[float, Array]:
    """Return tr M^(1/2) and the diagonal of W^T M^(-1/2) W for M = W diag(mass) W^T."""
    # numpy.linalg.eigh takes a fifth less time than scipy.linalg.eigh.  `_eigen_block` uses SciPy,
    # because strategies of stored plans must stay equal to the last digit.
    _, T, d = _half_powers(*np.linalg.eigh((W * mass) @ W.T), W)
    return T, d


def _eigen_block(W: Array, mass: Array) -> tuple[tuple[Array, Array], float, Array]:
    """Return the eigenvalues and eigenvectors of M^(1/2), tr M^(1/2), and diag(W^T M^(-1/2) W).

    M = W diag(mass) W^T.
    """
    return _half_powers(*scipy.linalg.eigh((W * mass) @ W.T, check_finite=False), W)


def _half_powers(
    eigenvalues: Array, U: Array, W: Array
) -> tuple[tuple[Array, Array], float, Array]:
    """Return the eigenvalues and eigenvectors of M^(1/2), tr M^(1/2), and diag(W^T M^(-1/2) W).

    ``eigenvalues`` and ``U`` are the eigenvalues and the eigenvectors of M.
    """
    # M may be singular if weights are zero; raising its smallest eigenvalues keeps the inverse
    # finite
    root = np.sqrt(np.maximum(eigenvalues, eigenvalues[-1] * 1e-18))
    half = (U / np.sqrt(root)).T @ W
    return (root, U), float(root.sum()), np.einsum("rc,rc->c", half, half)


class FixedBasisProblem(DualProblem):
    """Search among the precisions X = U diag(h) U^T, with the eigenvectors U of the Gram.

    The result is approximate, because other precisions may be better.  Its lower bound holds for
    all strategies.

    Source: QuerySmasher, section 6.3, approximate construction.
    """

    def __init__(self, *, lift: Lift, factor: Factor) -> None:
        super().__init__(lift=lift, factor=factor)
        # One row per eigenvector u of the Gram, and one column per orbit of cells.  Row u has the
        # squared entries of u^T L for the lift L, times the eigenvalue of u.
        self.squares = [W**2 for W in self.projected]

    def evaluate(self, mass: Array, active: OrbitIndices | None = None) -> tuple[float, Array]:
        T, d = 0.0, np.zeros(len(mass))
        for P in self.squares if active is None else [P[:, active] for P in self.squares]:
            root = np.sqrt(P @ mass)
            T += float(root.sum())
            d += P.T @ (1.0 / root)
        return T, d

    def curvature(self, mass: Array, active: OrbitIndices) -> Array:
        hessian = np.zeros((len(active), len(active)))
        for P in self.squares:
            hessian += (P[:, active].T / (P[:, active] @ mass) ** 1.5) @ P[:, active] / 2.0
        return hessian

    def solution(self, mass: Array, status: str) -> Solution:
        """Return the strategy that has the Gram's eigenvectors and the dual weights ``mass``."""
        T, d = self.evaluate(mass)
        scale, rows, pinv = float(d.max()), [], []
        for root, P in zip(self.roots, self.squares, strict=True):
            # With the eigenvectors of the Gram as a basis, M is diagonal: diag(P @ mass).  The
            # strategy rows are M^(-1/4) root, divided by their sensitivity.
            divisors = (P @ mass) ** 0.25 * math.sqrt(scale)
            rows.append(root / divisors[:, None])
            pinv.append(root.T / np.einsum("rc,rc->r", root, root) * divisors)
        residual_rows = np.concatenate(rows)
        strategy = Strategy(
            sizes=self.sizes,
            rows=self.lift.rows(residual_rows),
            pinv=np.concatenate(pinv, axis=1),
            complete=len(residual_rows) == self.lift.dimension,
        )
        return Solution(
            strategy=strategy,
            value=scale * T,
            bound=self.bound(mass),
            dual=mass,
            status=f"fixed basis, {status}",
        )


# from this number of residual coordinates on, Fourier transforms are computed by FFT
FFT_FROM = 300


class FourierProblem(DualProblem):
    """Strategies in closed form for queries that are invariant under rotation.

    With uniform centers all cells have equal dual weights, and the precision X is diagonal in the
    Fourier basis.

    With the center (first cell + last cell) / 2, called the circle's center, a prefix query is half
    the total plus half a row of signs: +1 up to the last cell of the prefix, -1 after it.  On a
    circle of 2 (n - 1) points, of which the first n are the cells, such rows are half circles.  The
    set of half circles is invariant under rotation, so equal weights of all points are optimal;
    the first and the last cell are opposite points and have half the weight of an inner cell.

    Source: QuerySmasher, appendix C; Weighted Fourier Factorizations, section 4.2 for the circle
    (extended marginals), here without the prefix of all cells, which the total answers.
    """

    def maximise(
        self, options: Options, start: Array | None = None, watch: Watch | None = None
    ) -> tuple[Array, str]:
        weights: Array = np.ones(1)
        for n, L in zip(self.sizes, self.lift.matrices, strict=True):
            axis_weights = np.ones(n)
            if _has_circle_center(L):
                axis_weights[[0, -1]] = 0.5
            weights = np.asarray(np.kron(weights, axis_weights / axis_weights.sum()), dtype=float)
        mass: Array = np.bincount(self.orbit, weights=weights, minlength=self.variables).astype(
            float
        )
        return mass, "closed form"

    def solution(self, mass: Array, status: str) -> Solution:
        """Return the strategy in closed form; the dual weights ``mass`` prove its lower bound."""
        # There is no closed form for the center (first cell + last cell) / 2.
        if any(_has_circle_center(L) for L in self.lift.matrices):
            return super().solution(mass, f"half circles, {status}")
        coefficients, matrix_of = self._fourier()
        nonzero = coefficients > NULL_SHARE * coefficients.max()
        eigenvalues = np.where(nonzero, np.sqrt(coefficients), 0.0)
        # With uniform centers X is invariant under rotation, so every cell has the same privacy
        # cost: the sum of the eigenvalues divided by the number of cells. It is scaled to 1.
        eigenvalues *= self.lift.cells / eigenvalues.sum()
        half = np.sqrt(eigenvalues)
        inverse_half = np.divide(1.0, half, out=np.zeros_like(half), where=nonzero)
        rows = self.lift.rows(matrix_of(half))
        value = float(
            np.sum(np.divide(coefficients, eigenvalues, out=np.zeros_like(half), where=nonzero))
        )
        # With non-uniform centers the cells have different privacy costs.  The rows are scaled so
        # that no cost is larger than 1.
        max_cost = max(1.0, float(np.einsum("rc,rc->c", rows, rows).max()))
        strategy = Strategy(
            sizes=self.sizes,
            rows=rows / math.sqrt(max_cost),
            pinv=matrix_of(inverse_half) * math.sqrt(max_cost),
            complete=bool(nonzero.all()),
        )
        value *= max_cost
        return Solution(
            strategy=strategy,
            value=value,
            bound=self.bound(mass),
            dual=mass,
            status=f"Fourier basis, {status}",
        )

    def _fourier(self) -> tuple[Array, Callable[[Array], Array]]:
        """Return the diagonal of the Gram in the Fourier basis, and a map from diagonal to matrix.

        The basis consists of the products of the frequencies 1 to n_i - 1 of the attributes;
        frequency 0 is constant and outside the residual space.

        Returns
        -------
        coefficients : diagonal of the Gram in the Fourier basis, shape (dimension,).
        matrix_of : function of a diagonal in the Fourier basis that returns the matrix in residual
            coordinates, shape (dimension, dimension).
        """
        if math.prod(n - 1 for n in self.sizes) >= FFT_FROM:
            return self._fourier_by_fft()
        # columns: the Fourier basis in residual coordinates
        E = np.ones((1, 1), dtype=complex)
        for n in self.sizes:
            # column 0 of the Fourier matrix is constant, so it is outside the residual space
            E = np.kron(E, basis(n).T @ (np.fft.fft(np.eye(n)) / math.sqrt(n))[:, 1:])
        coefficients = sum(np.sum(np.abs(root @ E) ** 2, axis=0) for root in self.roots)
        return np.asarray(coefficients), lambda values: ((E * values) @ E.conj().T).real

    def _fourier_by_fft(self) -> tuple[Array, Callable[[Array], Array]]:
        """Return the result of `_fourier`, computed by fast Fourier transforms.

        `_fourier` multiplies by a dense Fourier matrix instead.
        """
        dimension = math.prod(n - 1 for n in self.sizes)
        bases = [basis(n) for n in self.sizes]
        inner = (slice(1, None),) * len(self.sizes)
        axes = tuple(range(1, 1 + len(self.sizes)))
        coefficients = np.zeros(dimension)
        for root in self.roots:
            coordinates = root.reshape(len(root), *(n - 1 for n in self.sizes))
            tables = contract(coordinates, [N.T for N in bases], 1)
            spectrum = np.fft.fftn(tables, axes=axes)[(slice(None), *inner)]
            coefficients += np.sum(np.abs(spectrum) ** 2, axis=0).ravel() / self.lift.cells

        def matrix_of(values: Array) -> Array:
            """Return the circulant matrix with these eigenvalues, in residual coordinates."""
            spectrum = np.zeros(self.sizes)
            spectrum[inner] = values.reshape([n - 1 for n in self.sizes])
            kernel = np.fft.fftn(spectrum).real / self.lift.cells
            # entry (c, d) of the matrix on cells is the kernel at c - d
            differences = [np.subtract.outer(np.arange(n), np.arange(n)) % n for n in self.sizes]
            k = len(self.sizes)
            index = tuple(
                D.reshape([n if a in (i, k + i) else 1 for a, n in enumerate(2 * self.sizes)])
                for i, D in enumerate(differences)
            )
            on_cells = kernel[index].reshape(-1, *self.sizes)
            half = contract(on_cells, bases, 1).reshape(*self.sizes, dimension)
            matrix = contract(half, [*bases, None], 0)
            return np.asarray(matrix.reshape(dimension, dimension))

        return coefficients, matrix_of


def _has_circle_center(L: Array) -> bool:
    """Return whether the lift L has the center (first cell + last cell) / 2.

    With this center, the column of the last cell is the negative of that of the first cell.  With
    two cells the result is False.
    """
    return L.shape[1] > 2 and np.allclose(L[:, 0], -L[:, -1], rtol=0, atol=1e-12)


def _roots(grams: Sequence[Array]) -> list[Array]:
    """Return for every diagonal block linearly independent rows H with H^T H = block.

    Eigenvalues below `NULL_SHARE` times the largest eigenvalue of all blocks count as zero, because
    a block may consist of rounding errors only.
    """
    spectra = [scipy.linalg.eigh(gram, check_finite=False) for gram in grams]
    largest = max((float(eigenvalues.max(initial=0.0)) for eigenvalues, _ in spectra), default=0.0)
    roots = []
    for eigenvalues, U in spectra:
        positive = eigenvalues > NULL_SHARE * largest
        roots.append((U[:, positive] * np.sqrt(eigenvalues[positive])).T)
    return roots


def _spread(rows: Array, coordinates: Index, dimension: int) -> Array:
    """Return rows on some coordinates as rows on all coordinates, with zeros elsewhere.

    ``rows`` has shape (k, len(coordinates)), the result (k, dimension).
    """
    # The memory order is that of a product with a sparse basis, because last digits of later
    # products depend on the order.
    spread = np.zeros((len(rows), dimension), order="F")
    spread[:, coordinates] = rows
    return spread


def _independent(blocks: Sequence[Array]) -> list[Array]:
    """Replace the rows of every block by linearly independent rows with the same Gram.

    Blocks whose Gram is zero are left out.
    """
    solved = [scipy.linalg.eigh(rows @ rows.T, check_finite=False) for rows in blocks]
    largest = max(float(eigenvalues.max(initial=0.0)) for eigenvalues, _ in solved)
    independent = [
        U[:, e > NULL_SHARE * largest].T @ rows for (e, U), rows in zip(solved, blocks, strict=True)
    ]
    return [_orthogonal(rows) for rows in independent if len(rows)]


def _orthogonal(rows: Array) -> Array:
    """Return rows that are orthogonal only up to rounding errors, orthogonalised again.

    ``rows`` must have ascending norms.  Without this step, rounding errors of the long rows would
    remain in the short rows and bias the answers of queries with small weights.
    """
    Q, R = scipy.linalg.qr(rows[::-1].T, mode="economic", check_finite=False)
    return np.ascontiguousarray((Q * np.diagonal(R)).T[::-1])
