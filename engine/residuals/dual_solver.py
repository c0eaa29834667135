"""Certified optimal strategies for one Gram matrix.

Newton steps on the few cells that hold weight, where steps on the weights of all cells converge slowly.

What few queries ask of many cells is measured best with weight on few cells, about as many as the rank: sums of two
attributes of 40 and 41 cells put weight on 43 of 820 orbits, and L-BFGS takes 190 evaluations to find out that all
others hold none.  Once it is near, the same problem on these alone,

    minimise  phi(mu) = sum(mu) - 2 T(mu)   over mu >= 0,

is convex, small, and smooth where weights are positive: two or three Newton steps solve it to rounding, each to the
least of the second order model within mu >= 0 (non-negative least squares).  The gradient is 1 - d for the diagonal d
of L^T X L; cells outside join where d > 1, and the certificate is the one of the whole problem.

Source: our own.

Optimal strategies for one Gram matrix, each with a certified value, bound and gap.

The problem, for a class Gram G and a lift L (class coordinates x cells):

    minimise  tr(G X^-1)   over X > 0   with   diag(L^T X L) <= 1

Its dual, with W = G^(1/2) L and a weight mu >= 0 on every cell, is  max over mu of  T(mu)^2 / sum(mu),
T(mu) = tr (W diag(mu) W^T)^(1/2).  Every mu gives a lower bound T^2 / sum(mu), and a feasible strategy
X = G^(1/2) (W diag(mu) W^T)^(-1/2) G^(1/2) / max(d), d = diag(L^T X L) before scaling, of value max(d) T.  The
certificate is the pair (value, bound); no optimality has to be believed.

With s = sqrt(mu) free of constraints, L-BFGS on log of the dual needs some 10 to 150 evaluations.  Signed permutations
that leave G and L alone (reversing attributes, swapping equal ones) block-diagonalise the work; the optimal mu is
constant on their orbits because the problem is convex.

Source: QuerySmasher, section 6.3 (equation 4) states the primal; the dual and its certificate are our own.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy

from engine._arrays import Array
from engine._threads import side_by_side
from engine.residuals.basis import Lift, basis
from engine.residuals.decomposition import Factor
from engine.residuals.strategy import Strategy, settled
from engine.residuals.symmetry import character_bases, character_rows, orbits, symmetries

Places: TypeAlias = npt.NDArray[np.intp]

LIGHT = 1e-3  # weights below this share of the largest are taken for none; the gradient calls back whom they miss
ROUNDS, STEPS = 8, 20  # how often cells join, and steps on one set of them; one and three are usual
WORTH = 5  # a step may cost as much as so many evaluations on all cells
FLAT = 1e-13  # added to the curvature in shares of its trace, where cells exchange weight at no loss


class Weights(Protocol):
    """A problem whose dual depends on a weight for every orbit of cells."""

    projected: list[Array]

    def evaluate(self, mass: Array, on: Places | None = None) -> tuple[float, Array]:
        """Return T and the diagonal d, for weights on some orbits (on all) and there. Shapes (orbits,)."""

    def curvature(self, mass: Array, on: Places) -> Array:
        """Return the second derivative of -2 T by the weights on some orbits. Shape (orbits, orbits)."""


def concentrated(problem: Weights, mass: Array, gap: float, deadline: float) -> tuple[Array, float] | None:
    """Return weights that prove the gap, and what they prove; None where Newton steps do not get there.

    Parameters
    ----------
    mass : weights to start from, near the best ones. Shape (orbits,).
    gap : relative RMSE gap that is asked for.
    deadline : when to give up, on the clock of `time.monotonic`.
    """
    T, d = problem.evaluate(mass)
    # the length at which phi is least has T = sum(mu): then d is 1 wherever the best weights are positive
    d, mass = d * (mass.sum() / T), mass * (T / mass.sum()) ** 2
    for _ in range(ROUNDS):
        on = np.flatnonzero((mass > LIGHT * mass.max()) | (d > 1.0 - (d.max() - 1.0)))
        if not _worth(problem, len(on), len(mass)):
            return None
        try:
            mass[on] = _least(problem, mass[on], on, gap, deadline)
        except (np.linalg.LinAlgError, RuntimeError):  # no second order model here, or none that was solved
            return None
        mass = np.where(np.isin(np.arange(len(mass)), on), mass, 0.0)
        T, d = problem.evaluate(mass)
        d = d * (mass.sum() / T)
        reached = math.sqrt(max(float(d.max()), 1.0)) - 1.0
        if reached <= gap:
            return mass / mass.sum(), reached
        if time.monotonic() > deadline:
            return None
    return None


def _worth(problem: Weights, count: int, orbits: int) -> bool:
    """Return whether few cells hold weight, and Newton steps on them cost little beside evaluations on all."""
    ranks = [len(W) for W in problem.projected]
    step = sum(r * r * count * count for r in ranks)
    return 2 * count <= orbits and step <= WORTH * sum(4 * r * r * orbits + 20 * r**3 for r in ranks)


def _least(problem: Weights, mass: Array, on: Places, gap: float, deadline: float) -> Array:
    """Return the weights on some orbits where phi is least, by Newton steps within mu >= 0. Shapes (orbits,)."""
    import scipy.linalg
    import scipy.optimize

    T, d = problem.evaluate(mass, on)
    for _ in range(STEPS):
        slope = 1.0 - d
        unmet = np.where(mass > 0.0, slope, np.minimum(slope, 0.0))
        if np.abs(unmet).max() <= 0.3 * gap or time.monotonic() > deadline:
            break
        curvature = problem.curvature(mass, on)
        curvature[np.diag_indices_from(curvature)] += FLAT * np.trace(curvature)
        # the least of the second order model over mu >= 0, not along a line: it finds at once who holds no weight
        root = scipy.linalg.cholesky(curvature, check_finite=False)
        wanted = root @ mass - scipy.linalg.solve_triangular(root, slope, trans="T", check_finite=False)
        step = scipy.optimize.nnls(root, wanted)[0] - mass
        now, length = mass.sum() - 2.0 * T, 1.0
        while True:
            tried = mass + length * step
            T, d = problem.evaluate(tried, on)
            if tried.sum() - 2.0 * T <= now + 1e-4 * length * float(slope @ step):
                break
            length /= 2.0
            if length < 1e-6:
                return mass
        mass = tried
    return mass


NULL = 1e-12  # eigenvalues below this share of the largest are directions that no query asks for
START = 10.0  # length of the first s; the dual does not depend on it
NEAR, SLOW = 3e-3, 16  # Newton steps are tried once this gap is proved, in searches that took so many evaluations
SYMMETRY_FROM = 40  # smaller problems are faster without looking for symmetries
Watch = Callable[[float], None]


@dataclass(frozen=True, kw_only=True)
class Options:
    """How far to go: stop at the relative RMSE ``gap``, after ``evaluations`` steps, or at the ``deadline``."""

    gap: float = 1e-7
    evaluations: int = 600
    deadline: float = math.inf


@dataclass(frozen=True, kw_only=True, eq=False)
class Solution:
    """A strategy with its certificate.

    Attributes
    ----------
    strategy : what to measure.
    value : weighted squared error of the strategy at privacy cost 1, in counts^2.
    bound : no strategy of the class has a smaller value.
    dual : the weights mu that prove it, one per orbit of cells; the strategy is a function of them.
    status : "optimal", or why the search stopped early.
    """

    strategy: Strategy
    value: float
    bound: float
    dual: Array
    status: str

    @property
    def ending(self) -> str:
        """How the search ended, without the name of an approximate construction."""
        return self.status.rpartition(", ")[2]

    @property
    def gap(self) -> float:
        """Relative RMSE gap: sqrt(value / bound) - 1."""
        return math.sqrt(self.value / self.bound) - 1.0 if self.bound > 0 else 0.0


class DualProblem:
    """The dual of one subworkload, in blocks: rows W_b on representatives of the cell orbits.

    Parameters
    ----------
    factor : the class Gram.
    lift : takes class rows to rows on cells.
    """

    def __init__(self, *, lift: Lift, factor: Factor) -> None:
        self.lift, self.sizes = lift, lift.sizes
        found = symmetries(factor, lift) if factor.dimension >= SYMMETRY_FROM and lift.one_space else []
        on_classes = [action for action, _ in found]
        self.orbit, self.multiplicity, representatives = orbits([action for _, action in found], lift.cells)
        # H_b, rows in class coordinates with sum of H_b^T H_b = G
        if factor.low_rank:
            self.roots = _independent(character_rows(on_classes, factor.matrix))
        elif found:
            bases = character_bases(on_classes, factor.dimension)
            roots = _roots([np.asarray(B.T @ (factor.matrix @ B)) for B in bases])
            self.roots = [np.asarray(root @ B.T) for root, B in zip(roots, bases, strict=True) if len(root)]
        else:
            self.roots = [root for root in _roots([factor.matrix]) if len(root)]
        # the best weights are equal on an orbit, so one cell of each stands for all of them
        self.projected = [np.ascontiguousarray(lift.rows(root)[:, representatives]) for root in self.roots]

    @property
    def variables(self) -> int:
        """Number of free weights."""
        return len(self.multiplicity)

    def evaluate(self, mass: Array, on: Places | None = None) -> tuple[float, Array]:
        """Return T and the diagonal d of L^T X L on representatives, for the total weight of every orbit.

        Both have shape (orbits,); with ``on`` only these orbits hold weight, and only theirs is returned.
        """
        rows = self.projected if on is None else [W[:, on] for W in self.projected]
        # blocks share the weights and nothing else
        parts = side_by_side(lambda W: _block(W, mass), rows)
        return math.fsum(T for T, _ in parts), np.sum([d for _, d in parts], axis=0)

    def curvature(self, mass: Array, on: Places) -> Array:
        """Return the second derivative of -2 T by the weights on some orbits. Shape (orbits, orbits)."""
        out = np.zeros((len(on), len(on)))
        for W in self.projected:
            (root, U), _, _ = _solved(W[:, on], mass)
            Y = U.T @ W[:, on]
            i, j = np.triu_indices(len(root))
            # how M^(-1/2) moves with M, in the eigenbasis of M; what stands off the diagonal counts twice
            factor = np.where(i == j, 1.0, 2.0) / (root[i] * root[j] * (root[i] + root[j]))
            products = Y[i] * Y[j] * np.sqrt(factor)[:, None]
            out += products.T @ products
        return out

    def bound(self, mass: Array) -> float:
        """Return the lower bound on the value of any strategy that the weights prove. ``mass`` has shape (orbits,)."""
        # not self.evaluate: a subclass restricts the strategies, and its dual would be no bound on all of them
        T, _ = DualProblem.evaluate(self, mass)
        return T * T / float(mass.sum())

    def sensitivities(self, mass: Array) -> tuple[float, Array, list[Array]]:
        """Return the dual value T^2 / sum(mass), its derivative by the Gram, and by the center of every attribute.

        The derivative by the Gram has shape (class coordinates,) * 2; the one by center i is given for N_i^T pi_i,
        shape (n_i - 1,).  By the envelope theorem the weights may be held fixed.
        """
        mass = mass / mass.sum()
        cell_mass = (mass / self.multiplicity)[self.orbit]
        T, inverse = 0.0, np.zeros((self.lift.dimension,) * 2)
        P = np.zeros_like(inverse)
        for root, W in zip(self.roots, self.projected, strict=True):
            eigenvalues, U = scipy.linalg.eigh((W * mass) @ W.T, check_finite=False)
            half = np.sqrt(np.maximum(eigenvalues, eigenvalues[-1] * 1e-18))
            T += float(half.sum())
            back = (root.T / np.einsum("rc,rc->r", root, root)) @ U
            # dT^2 / dG = T G^(-1/2) M^(1/2) G^(-1/2): what the best X^-1 is in proportion to
            inverse += (back * half) @ back.T
            forth = root.T @ U
            # dT = tr(M^(-1/2) dM) / 2 and M = H L D L^T H^T holds L twice, which takes the half away
            P += (forth / half) @ forth.T
        by_lift = (self.lift.rows(P) * cell_mass).reshape([n - 1 for n in self.sizes] + list(self.sizes))
        # L_i = N_i^T - (N_i^T pi_i) 1^T: a center is subtracted from every column alike
        return T * T, T * inverse, [-2.0 * T * self.lift.traced(by_lift, axis) for axis in range(len(self.sizes))]

    def maximise(self, options: Options, start: Array | None = None, watch: Watch | None = None) -> tuple[Array, str]:
        """Return the best weights found (one total per orbit) and how the search ended. Shape (orbits,)."""
        import scipy.optimize

        ratio, best = math.inf, np.zeros(0)
        status, evaluations, near = "optimal", 0, NEAR

        def negative_log_dual(s: Array) -> tuple[float, Array]:
            nonlocal ratio, best, evaluations, near
            evaluations += 1
            # squares are never negative, so that the search needs no constraints
            mass = s * s
            T, d = self.evaluate(mass)
            total = float(mass.sum())
            if d.max() * total / T < ratio:  # value over bound of the same weights, so that they alone prove the gap
                ratio, best = float(d.max()) * total / T, mass / total
            gap = math.sqrt(ratio) - 1.0
            if watch is not None:
                watch(gap)
            if options.gap < gap <= near and evaluations >= SLOW:
                near = gap / 10.0
                few = concentrated(self, best, options.gap, options.deadline)
                if few is not None:
                    best, gap = few
                    if watch is not None:
                        watch(gap)
            if gap <= options.gap:
                raise StopIteration
            if time.monotonic() > options.deadline:
                raise TimeoutError
            # -log of T^2 / total does not change with the length of s, so that no constraint fixes the total either
            return math.log(total) - 2.0 * math.log(T), 2.0 * s / total - 2.0 * s * d / T

        # the first step of L-BFGS has length 1: from a longer start it cannot land on s = 0, where gradients vanish
        first = START * np.sqrt(self.multiplicity / self.multiplicity.sum() if start is None else start)
        try:
            scipy.optimize.minimize(
                negative_log_dual,
                first,
                jac=True,
                method="L-BFGS-B",
                options={
                    "maxcor": 30,
                    "maxiter": options.evaluations,
                    "maxfun": options.evaluations,
                    # only a proved gap, or the deadline, ends the search; small steps prove nothing
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
        """Return the strategy that the weights stand for, with its certificate. ``mass`` has shape (orbits,)."""
        solved = [_solved(W, mass) for W in self.projected]
        T, d = math.fsum(own for _, own, _ in solved), np.sum([own for _, _, own in solved], axis=0)
        # after division by the root of the largest d no record moves the answers by more than 1
        strategy_rows, pinv, directions, scale = [], [], [], math.sqrt(float(d.max()))
        for root, ((half, U), _, _) in zip(self.roots, solved, strict=True):
            squares = np.einsum("rc,rc->r", root, root)
            inverse = root.T / squares  # the rows of a root are orthogonal
            quarter = np.sqrt(half)
            own = root / np.sqrt(squares)[:, None]
            # X = H^T M^(-1/2) H; the symmetric square root of M^(-1/2) keeps the rows a smooth function of the weights
            turned = settled(own) @ U
            strategy_rows.append((turned / quarter) @ (U.T @ root) / scale)
            pinv.append((inverse @ U) * quarter @ turned.T * scale)
            directions.append(own)
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
        return Solution(strategy=strategy, value=float(d.max()) * T, bound=bound, dual=mass, status=status)


def _block(W: Array, mass: Array) -> tuple[float, Array]:
    """Return tr M^(1/2) and the diagonal of W^T M^(-1/2) W for M = W diag(mass) W^T."""
    # a fifth faster than scipy's; steps only lead to weights, and what these stand for must not change by a digit
    _, T, d = _halved(*np.linalg.eigh((W * mass) @ W.T), W)
    return T, d


def _solved(W: Array, mass: Array) -> tuple[tuple[Array, Array], float, Array]:
    """Return eigenvalues and eigenvectors of M^(1/2), and what `_block` returns."""
    return _halved(*scipy.linalg.eigh((W * mass) @ W.T, check_finite=False), W)


def _halved(eigenvalues: Array, U: Array, W: Array) -> tuple[tuple[Array, Array], float, Array]:
    # weights of zero may leave directions without any; the floor keeps their inverse a number
    root = np.sqrt(np.maximum(eigenvalues, eigenvalues[-1] * 1e-18))
    half = (U / np.sqrt(root)).T @ W
    return (root, U), float(root.sum()), np.einsum("rc,rc->c", half, half)


class FixedBasisProblem(DualProblem):
    """The same problem restricted to X = U diag(h) U^T for the eigenvectors U of the Gram: cheap, approximate.

    Source: QuerySmasher, section 6.3, approximate construction; the bound stays the one of the unrestricted problem.
    """

    def __init__(self, *, lift: Lift, factor: Factor) -> None:
        super().__init__(lift=lift, factor=factor)
        self.squares = [W**2 for W in self.projected]  # row k is eigenvalue_k (u_k . lift)^2

    def evaluate(self, mass: Array, on: Places | None = None) -> tuple[float, Array]:
        T, d = 0.0, np.zeros(len(mass))
        for P in self.squares if on is None else [P[:, on] for P in self.squares]:
            root = np.sqrt(P @ mass)
            T += float(root.sum())
            d += P.T @ (1.0 / root)
        return T, d

    def curvature(self, mass: Array, on: Places) -> Array:
        out = np.zeros((len(on), len(on)))
        for P in self.squares:
            out += (P[:, on].T / (P[:, on] @ mass) ** 1.5) @ P[:, on] / 2.0
        return out

    def solution(self, mass: Array, status: str) -> Solution:
        T, d = self.evaluate(mass)
        scale, rows, pinv = float(d.max()), [], []
        for root, P in zip(self.roots, self.squares, strict=True):
            half = (P @ mass) ** 0.25 * math.sqrt(scale)
            rows.append(root / half[:, None])
            pinv.append(root.T / np.einsum("rc,rc->r", root, root) * half)
        class_rows = np.concatenate(rows)
        strategy = Strategy(
            sizes=self.sizes,
            rows=self.lift.rows(class_rows),
            pinv=np.concatenate(pinv, axis=1),
            complete=len(class_rows) == self.lift.dimension,
        )
        return Solution(
            strategy=strategy, value=scale * T, bound=self.bound(mass), dual=mass, status=f"fixed basis, {status}"
        )


class FourierProblem(DualProblem):
    """X diagonal in the Fourier basis, in closed form: every cell gets the same share.

    With the center (first cell + last cell) / 2 a prefix is half the total and a row of signs, plus up to its end and
    minus after it.  Those rows are half circles on 2 (n - 1) places, the last cell opposite the first, and turning the
    circle changes nothing: equal weights on its places are optimal, half a weight on either end.

    Source: QuerySmasher, appendix C; Weighted Fourier Factorizations, section 4.2 for the circle (extended marginals),
    here without the prefix of all cells, which the total answers.  Needs uniform centers, or those of the circle.
    """

    def maximise(self, options: Options, start: Array | None = None, watch: Watch | None = None) -> tuple[Array, str]:
        weights: Array = np.ones(1)
        for n, L in zip(self.sizes, self.lift.matrices, strict=True):
            # a line of n cells is half of a circle whose two ends are one place
            own = np.ones(n)
            if _circle(L):
                own[[0, -1]] = 0.5
            weights = np.asarray(np.kron(weights, own / own.sum()), dtype=float)
        mass: Array = np.bincount(self.orbit, weights=weights, minlength=self.variables).astype(float)
        return mass, "closed form"

    def solution(self, mass: Array, status: str) -> Solution:
        if any(_circle(L) for L in self.lift.matrices):
            return super().solution(mass, f"half circles, {status}")
        E = np.ones((1, 1), dtype=complex)
        for n in self.sizes:
            # without the constant wave, which belongs to smaller spaces
            E = np.kron(E, basis(n).T @ (np.fft.fft(np.eye(n)) / math.sqrt(n))[:, 1:])
        coefficients = sum(np.sum(np.abs(root @ E) ** 2, axis=0) for root in self.roots)
        asked = coefficients > NULL * coefficients.max()
        eigenvalues = np.where(asked, np.sqrt(coefficients), 0.0)
        # turning the circle leaves X alone, so every cell pays the mean of the eigenvalues: make that 1
        eigenvalues *= self.lift.cells / eigenvalues.sum()
        half = np.sqrt(eigenvalues)
        back = np.divide(1.0, half, out=np.zeros_like(half), where=asked)
        rows = self.lift.rows(((E * half) @ E.conj().T).real)
        value = float(np.sum(np.divide(coefficients, eigenvalues, out=np.zeros_like(half), where=asked)))
        # with other centers than uniform ones the cells pay differently, and the dearest counts
        dearest = max(1.0, float(np.einsum("rc,rc->c", rows, rows).max()))
        strategy = Strategy(
            sizes=self.sizes,
            rows=rows / math.sqrt(dearest),
            pinv=((E * back) @ E.conj().T).real * math.sqrt(dearest),
            complete=bool(asked.all()),
        )
        value *= dearest
        return Solution(
            strategy=strategy, value=value, bound=self.bound(mass), dual=mass, status=f"Fourier basis, {status}"
        )


def _circle(L: Array) -> bool:
    """Return whether a lift puts the last cell opposite the first."""
    return L.shape[1] > 2 and np.allclose(L[:, 0], -L[:, -1], rtol=0, atol=1e-12)


def _roots(grams: Sequence[Array]) -> list[Array]:
    """Return independent rows H with H^T H = gram of every block of one Gram.

    A direction is judged beside the whole Gram: what is null there is rounding, though it is the block's largest.
    """
    solved = [scipy.linalg.eigh(gram, check_finite=False) for gram in grams]
    largest = max((float(eigenvalues.max(initial=0.0)) for eigenvalues, _ in solved), default=0.0)
    out = []
    for eigenvalues, U in solved:
        kept = eigenvalues > NULL * largest
        out.append((U[:, kept] * np.sqrt(eigenvalues[kept])).T)
    return out


def _independent(blocks: Sequence[Array]) -> list[Array]:
    """Return independent rows with the same Gram as the rows of every block, without blocks of none; see `_roots`."""
    solved = [scipy.linalg.eigh(rows @ rows.T, check_finite=False) for rows in blocks]
    largest = max(float(eigenvalues.max(initial=0.0)) for eigenvalues, _ in solved)
    out = [U[:, e > NULL * largest].T @ rows for (e, U), rows in zip(solved, blocks, strict=True)]
    return [_orthogonal(rows) for rows in out if len(rows)]


def _orthogonal(rows: Array) -> Array:
    """Return rows that are orthogonal but for the rounding of a Gram, the last the longest, without that rounding.

    What is left of long rows in short ones would bias the answers of light queries.
    """
    Q, R = scipy.linalg.qr(rows[::-1].T, mode="economic", check_finite=False)
    return np.ascontiguousarray((Q * np.diagonal(R)).T[::-1])
