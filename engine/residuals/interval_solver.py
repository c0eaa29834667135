"""Optimal strategies for interval queries on one wide attribute, in linear time per evaluation.

Marginal, prefix, suffix and all range queries on the n cells of a line are interval queries.  The
queries are measured on a residual space or on the whole attribute.  On a residual space with the
center pi, only the component q (I - pi 1^T) of a query q counts.  A query is stored as its
differences z_k = q_k - q_(k+1).  There are n - 1 differences on a residual space, and n on the
whole attribute, where q_(n+1) = 0.  The Gram of every weighted mix of queries in these coordinates
is

    G = a D^T D + tau I + U S U^T,      (D z)_i = z_i - z_(i-1),

where a is the weight of the marginal, and tau is the weight of prefixes and suffixes plus n + 1
times the weight of the ranges.  U is a column of ones, and S is minus the weight of the ranges.
(On the whole attribute, suffixes and the total add a column to U.)  Cell i is the vector c_i with
the entries 1[k >= i] - Pi_k, where Pi is the cumulative center.  Let C have the columns c_i.
Weights mu of sum 1 give K = C diag(mu) C^T, and K^-1 is D^T diag(1/mu) D minus a rank-one term.

The dual of `engine.residuals.dual_solver` maximises f(mu) = tr (G K)^(1/2); f^2 is a lower bound on
the total variance at privacy cost 1.  The precision of the differences is Q = G (K G)^(-1/2), and
d_i = c_i^T Q c_i is the privacy cost of cell i.  Every mu proves f^2 <= optimum <= f max(d).
Elliptic quadrature for the inverse square root (method 3 of the source, error about 1e-11) gives

    Q^-1 = sum_j w_j Y_j,      Y_j = (K^-1 + s_j G)^-1,

a sum of tridiagonal inverses with corrections of low rank.  D^T diag(1/mu + s a) D + s tau I is the
conductance matrix of a ladder of resistors.  A pivot of this matrix minus the next conductance is
the conductance to ground of the ladder up to a node.  The conductances to ground are computed
without subtractions, so that cells with tiny weights cause no loss of accuracy.

Source: Hale, Higham and Trefethen, SIAM J. Numer. Anal. 46 (2008); the Gram in differences, the
sweeps and the certificate are our work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from engine._arrays import Array
from engine._clock import planning_time
from engine.errors import LimitExceeded
from engine.residuals.operators import CosineMatrix, Operator

# negative natural logarithm of the relative error of the quadrature formula
QUADRATURE_LOG_PRECISION = 26.0
# smallest weight of a cell, as a multiple of the uniform weight 1/n
MIN_SHARE = 1e-9
# number of most recent steps that Anderson acceleration combines
HISTORY = 12
# number of rows of a covariance that one matrix product computes
BLOCK_ROWS = 64
# Number of entries of an array of shape (quadrature nodes, cells) above which quadrature nodes are
# divided into batches, so that the arrays stay in the processor's cache.  A batch has at least one
# node.
SWEEP_ENTRIES = 1 << 13
# Newton's method for the conductances of a ladder ends at this relative correction, or after this
# number of steps
LADDER_TOLERANCE, MAX_LADDER_STEPS = 1e-8, 6
# conductances of zero are replaced by this value, because they occur as divisors
TINY = 1e-300
# largest number of cells for which the strategy is computed as a matrix
MAX_STRATEGY_CELLS = 10_000


@dataclass(frozen=True, kw_only=True)
class IntervalGram:
    """Gram of a weighted mix of interval queries on one attribute.

    Attributes
    ----------
    cells : number of cells of the attribute, at least 2.
    marginal, prefix, suffix, ranges : weight of each query of that kind, at least 0.
    total : weight of the total.  It may be negative, but must be greater than
        -(prefix + ranges + suffix / (2 n)) for n cells.

    >>> mix = IntervalGram(cells=3, prefix=1.0) + 2.0 * IntervalGram(cells=3, ranges=1.0)
    >>> mix.prefix, mix.ranges, mix.dense()[0].tolist()
    (1.0, 2.0, [9.0, 6.0, 3.0])
    """

    cells: int
    marginal: float = 0.0
    prefix: float = 0.0
    suffix: float = 0.0
    ranges: float = 0.0
    total: float = 0.0

    def __post_init__(self) -> None:
        weights = (self.marginal, self.prefix, self.suffix, self.ranges)
        if self.cells < 2:
            raise ValueError(f"An interval Gram has {self.cells} cells. Use at least 2.")
        if not all(0.0 <= weight < math.inf for weight in weights) or not any(weights):
            raise ValueError(
                f"The weights of marginal, prefix, suffix and range queries are {weights}. Use "
                "finite weights of at least 0, and at least one that is positive."
            )

    def __add__(self, other: IntervalGram) -> IntervalGram:
        if other.cells != self.cells:
            raise ValueError(
                f"Grams on {self.cells} and {other.cells} cells have no sum. Add Grams on equally"
                " many cells."
            )
        return IntervalGram(
            cells=self.cells,
            marginal=self.marginal + other.marginal,
            prefix=self.prefix + other.prefix,
            suffix=self.suffix + other.suffix,
            ranges=self.ranges + other.ranges,
            total=self.total + other.total,
        )

    def __mul__(self, scale: float) -> IntervalGram:
        return IntervalGram(
            cells=self.cells,
            marginal=self.marginal * scale,
            prefix=self.prefix * scale,
            suffix=self.suffix * scale,
            ranges=self.ranges * scale,
            total=self.total * scale,
        )

    __rmul__ = __mul__

    @property
    def is_marginal(self) -> bool:
        """Whether only the marginal's queries have a weight."""
        return not any((self.prefix, self.suffix, self.ranges, self.total))

    def dense(self) -> Array:
        """Return the Gram W^T W of the weighted queries W on the cells, shape (n, n); for tests."""
        i = np.arange(self.cells, dtype=np.float64)
        low, high = np.minimum.outer(i, i), np.maximum.outer(i, i)
        gram: Array = (
            self.marginal * np.eye(self.cells)
            + self.prefix * (self.cells - high)
            + self.suffix * (low + 1.0)
            + self.ranges * (low + 1.0) * (self.cells - high)
            + self.total
        )
        return gram


@dataclass(frozen=True, kw_only=True, eq=False)
class IntervalSpace:
    """Interval queries on one attribute, and whether the total is measured with them.

    Attributes
    ----------
    gram : weights of the marginal, prefix, suffix and range queries.
    center : center of the residual space, sum 1, shape (n,); None for uniform.
    whole : True if the whole attribute is measured, including the total; in this case ``center`` is
        None. False if only the residual space is measured: the table without its total.
    """

    gram: IntervalGram
    center: Array | None = None
    whole: bool = False

    def __post_init__(self) -> None:
        if self.whole and self.center is not None:
            raise ValueError(
                "A Gram on all cells of an attribute has no center. Leave the center out."
            )
        if self.center is not None and (
            self.center.shape != (self.cells,)
            or not np.isfinite(self.center).all()
            or abs(self.center.sum() - 1.0) > 1e-9
        ):
            raise ValueError(
                f"The center has shape {self.center.shape} and sum {self.center.sum():.6g}. Use"
                f" {self.cells} finite numbers with sum 1."
            )

    @property
    def cells(self) -> int:
        """Number of cells."""
        return self.gram.cells

    @property
    def dimension(self) -> int:
        """Number m of differences between neighbouring cells: n if ``whole``, otherwise n - 1."""
        return self.cells if self.whole else self.cells - 1

    @cached_property
    def pi(self) -> Array:
        """Center of the residual space, shape (n,)."""
        return np.full(self.cells, 1.0 / self.cells) if self.center is None else self.center

    @cached_property
    def cumulative(self) -> Array:
        """Cumulative sums of the center, shape (m,); all 0 if ``whole``, which has no center."""
        return np.zeros(self.cells) if self.whole else np.cumsum(self.pi)[:-1]

    @property
    def tau(self) -> float:
        """Coefficient tau of the identity in G = a D^T D + tau I + U S U^T."""
        gram = self.gram
        return gram.prefix + gram.suffix + gram.ranges * (gram.cells + 1)

    @cached_property
    def low_rank(self) -> tuple[Array, Array]:
        """Low-rank term U S U^T of the Gram in differences, as (U, S).

        The shapes are (m, r) and (r, r), where r is 0, 1 or 2.  The Gram is a D^T D + tau I + U S
        U^T, see the module's docstring.
        """
        gram, ones = self.gram, np.ones(self.dimension)
        # differences z_k = q_k - q_(k+1) of the total q = (1, ..., 1): only the last one is not 0
        last = np.zeros(self.dimension)
        last[-1] = 1.0
        if self.whole and gram.suffix > 0.0:
            # Let z_i be the sum of the first i cells of a table.  The suffix from cell j is
            # z_n - z_(j-1), and the squares of all suffixes sum to
            # sum_i z_i^2 - 2 z_n sum_i z_i + (n + 1) z_n^2.
            corner = gram.suffix * (gram.cells + 1) + gram.total
            S = [[-gram.ranges, -gram.suffix], [-gram.suffix, corner]]
            return np.column_stack([ones, last]), np.array(S)
        if self.whole and gram.total != 0.0:
            if gram.ranges > 0.0:
                return np.column_stack([ones, last]), np.diag([-gram.ranges, gram.total])
            return last[:, None], np.array([[gram.total]])
        if gram.ranges > 0.0:
            return ones[:, None], np.array([[-gram.ranges]])
        return np.zeros((self.dimension, 0)), np.zeros((0, 0))

    def apply(self, z: Array) -> Array:
        """Return the Gram G times a vector z of differences, shape (m,)."""
        U, S = self.low_rank
        flows = self.gram.marginal * _differences(z, self.cells)
        product: Array = self.tau * z + U @ (S @ (U.T @ z)) + flows[: len(z)]
        product[: self.cells - 1] -= flows[1:]
        return product

    def cell_traces(self) -> Array:
        """Return for every cell i the value c_i^T G c_i, shape (n,).

        This value is the weighted sum of the squared coefficients of the measured queries on the
        cell.
        """
        gram, n = self.gram, self.cells
        i = np.arange(1.0, n + 1.0)
        diagonal = gram.marginal + gram.prefix * (n + 1 - i) + gram.suffix * i
        diagonal = diagonal + gram.ranges * i * (n + 1 - i) + gram.total
        if self.whole:
            return diagonal
        # the terms of (e_i - pi)^T W^T W (e_i - pi)
        product = gram_product(gram, self.pi)
        return np.asarray(diagonal - 2.0 * product + self.pi @ product)

    def dense(self) -> Array:
        """Return the Gram of the measured queries on the cells, shape (n, n); for tests.

        On a residual space, the queries are q (I - pi 1^T).
        """
        gram = self.gram.dense()
        if self.whole:
            return gram
        P = np.eye(self.cells) - np.outer(self.pi, np.ones(self.cells))
        return np.asarray(P.T @ gram @ P)


def _differences(z: Array, cells: int) -> Array:
    """Return z_i - z_(i-1) for i = 1..cells along the last axis, shape (..., cells).

    ``z`` has shape (..., m) with m = cells or m = cells - 1; z_0 and z_(m+1) are 0.
    """
    ground = np.zeros((*z.shape[:-1], 1))
    return np.diff(z, prepend=ground, append=ground, axis=-1)[..., :cells]


def total_square(gram: IntervalGram, pi: Array) -> float:
    """Return the weighted sum of the squared answers of the queries to the table ``pi``."""
    return float(np.sum(pi * gram_product(gram, pi)))


def gram_product(gram: IntervalGram, x: Array) -> Array:
    """Multiply tables x, shape (..., n), by the Gram W^T W of the queries, in linear time."""
    n, k = gram.cells, np.arange(1.0, gram.cells + 1.0)
    x = np.asarray(x)

    def prefix_sums(values: Array) -> Array:
        return np.cumsum(values, axis=-1)

    def suffix_sums(values: Array) -> Array:
        return np.cumsum(values[..., ::-1], axis=-1)[..., ::-1]

    # If W has the prefixes as rows, W x are the prefix sums of x, and W^T y the suffix sums of y.
    prefixes, suffixes = suffix_sums(prefix_sums(x)), prefix_sums(suffix_sums(x))
    # Entry (i, j) of the Gram of all ranges is the number of ranges that contain both cells:
    # min(i, j) (n + 1 - max(i, j)).
    ranges = (n + 1 - k) * prefix_sums(k * x) + k * (suffix_sums((n + 1 - k) * x) - (n + 1 - k) * x)
    return np.asarray(
        gram.marginal * x
        + gram.prefix * prefixes
        + gram.suffix * suffixes
        + gram.ranges * ranges
        + gram.total * np.sum(x, axis=-1, keepdims=True)
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class IntervalMatrix(Operator):
    """Residual Gram N^T W^T W N of interval queries W, shape (n - 1, n - 1), without its entries.

    N is the cosine basis.  Products with the Gram take O(n log n) time.
    """

    gram: IntervalGram

    @property
    def shape(self) -> tuple[int, int]:
        return self.gram.cells - 1, self.gram.cells - 1

    def transpose(self) -> IntervalMatrix:
        return self

    @property
    def trace(self) -> float:
        """Sum of the diagonal, in counts^2."""
        if self.gram.is_marginal:
            return self.gram.marginal * (self.gram.cells - 1)
        return float(IntervalSpace(gram=self.gram).cell_traces().sum())

    def _apply(self, tensor: Array) -> Array:
        if self.gram.is_marginal:  # a multiple of the identity
            return self.gram.marginal * tensor
        N = CosineMatrix(cells=self.gram.cells)
        return np.asarray(gram_product(self.gram, tensor @ N.T) @ N)


# largest number of roots of the secular equation that are computed; further roots are replaced by
# lower bounds
MAX_SECULAR_ROOTS = 100
# number of bisections per root
BISECTIONS = 60


def root_trace_bound(gram: IntervalGram) -> float:
    """Return a lower bound on tr H^(1/2) for the residual Gram H = N^T W^T W N.

    The bound is equal to tr H^(1/2) if ranges have no weight.

    Notes
    -----
    Let t_k = pi k / 2n.  The residual Gram of all prefixes is diagonal in the cosine basis, with
    the entries 1 / (4 sin^2 t_k), k = 1..n - 1.  That of all ranges is n + 1 times this matrix,
    minus v v^T with v_k = cos t_k / (sqrt(2 n) sin^2 t_k) for odd k and v_k = 0 for even k.  The
    eigenvalues of a diagonal matrix minus v v^T are the roots of the secular equation, and one lies
    between any two neighbouring diagonal entries.

    >>> round(root_trace_bound(IntervalGram(cells=4, marginal=9.0)), 9)
    9.0
    """
    n = gram.cells
    angles = np.pi * np.arange(1, n) / (2.0 * n)
    prefix_weight = gram.prefix + gram.suffix + (n + 1) * gram.ranges
    eigenvalues = gram.marginal + prefix_weight / (4.0 * np.sin(angles) ** 2)
    if gram.ranges == 0.0:
        return float(np.sqrt(eigenvalues).sum())
    # For even k, v_k is 0, so that these eigenvalues are not changed by v v^T.  The entries with
    # odd k are at the even positions of the array, which begins with k = 1.
    odd = slice(0, None, 2)
    poles = eigenvalues[odd]
    weights = gram.ranges * (np.cos(angles[odd]) / np.sin(angles[odd]) ** 2) ** 2 / (2.0 * n)
    # Root k of the secular equation is between pole k + 1 and pole k.  The last root is between the
    # weight of the marginals and the last pole.
    lower_bounds = np.append(poles[1:], gram.marginal)
    count = min(MAX_SECULAR_ROOTS, len(poles))
    low, high = lower_bounds[:count].copy(), poles[:count].copy()
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        # the secular equation is sum(weights / (poles - t)) = 1
        is_above_root = np.array([np.sum(weights / (poles - t)) > 1.0 for t in middle])
        low, high = np.where(is_above_root, low, middle), np.where(is_above_root, middle, high)
    lower_bounds[:count] = low
    return float(np.sqrt(eigenvalues[1::2]).sum() + np.sqrt(lower_bounds).sum())


def inverse_root_quadrature(
    low: float, high: float, log_precision: float = QUADRATURE_LOG_PRECISION
) -> tuple[Array, Array]:
    """Return nodes s and weights w of a quadrature formula for the inverse square root.

    sum_j w_j / (t + s_j) is t^(-1/2) for low <= t <= high, with a relative error of about
    exp(-``log_precision``), by default 1e-11.

    Source: Hale, Higham and Trefethen, SIAM J. Numer. Anal. 46 (2008), method 3.

    >>> s, w = inverse_root_quadrature(1e-6, 1e6)
    >>> bool(abs(np.sum(w / (4.0 + s)) - 0.5) < 1e-11)
    True
    """
    from scipy.special import ellipkm1

    ratio = min(low / high, 1.0)
    count = math.ceil((3.0 - math.log(ratio)) * log_precision / (2.0 * math.pi**2))
    period = float(ellipkm1(ratio))
    lower_half = (np.arange(1, (count + 1) // 2 + 1) - 0.5) * period / count
    phi = _amplitude(lower_half, ratio)
    sn, cn = np.sin(phi), np.cos(phi)
    dn = np.sqrt(cn**2 + ratio * sn**2)
    scale, pairs = 2.0 * period / (math.pi * count), count // 2
    # The upper half of the nodes is computed from the lower half by the identity
    # sc(K - u) = 1 / (k' sc(u)).  A direct computation by tan(phi) near pi / 2 would lose digits.
    nodes = np.concatenate([low * (sn / cn) ** 2, (high * (cn / sn) ** 2)[:pairs][::-1]])
    weights = np.concatenate(
        [math.sqrt(low) * dn / cn**2, (math.sqrt(high) * dn / sn**2)[:pairs][::-1]]
    )
    return nodes, scale * weights


def _amplitude(u: Array, complement: float) -> Array:
    """Return the Jacobi amplitude am(u | 1 - complement), accurate for a small complement.

    ``scipy.special.ellipj`` expects the parameter 1 - complement, which is rounded to 1 if the
    complement is tiny.  The method is the descending Landen transformation with
    arithmetic-geometric means.
    """
    a, b, levels = 1.0, math.sqrt(complement), list[tuple[float, float]]()
    # until both means are equal in double precision
    while len(levels) < 60 and a - b > 1e-16 * a:
        mean = (a + b) / 2.0
        levels.append(((a - b) / 2.0 / mean, a * b / mean**2))
        a, b = mean, math.sqrt(a * b)
    phi = 2.0 ** len(levels) * a * u
    for ratio, one_minus_square in reversed(levels):
        sine = np.sin(phi)
        # arcsin(ratio * sine); 1 - ratio^2 is passed on separately to avoid cancellation
        cosine = np.sqrt(np.cos(phi) ** 2 + one_minus_square * sine**2)
        phi = (phi + np.arctan2(ratio * sine, cosine)) / 2.0
    return phi


@dataclass(frozen=True, kw_only=True, eq=False)
class _Sweep:
    """The matrices Y_j = (K^-1 + s_j G)^-1 for a batch of quadrature nodes s_j.

    Every Y_j is the inverse of a tridiagonal matrix plus a matrix of low rank.  Z_j is defined as
    Y_j, but with D^T diag(1/mu) D in place of K^-1.  A vector z holds the potentials of the nodes
    of a ladder of resistors; (1/mu + s a) D z are the currents through the resistors.

    Attributes
    ----------
    s, w : quadrature nodes and their weights, shape (nodes, 1).
    stretch : 1 / (1 + s a mu), shape (nodes, n).
    joint : for the resistor of every cell, the conductance between its two ends through all other
        resistors, shape (nodes, n).
    diagonal : diagonal of the inverse of the tridiagonal matrix, shape (nodes, m).
    multiplier : for every k, the ratio of row k to row k + 1 of this inverse in the columns after
        k, shape (nodes, m - 1).  So entry (k, l) is entry (l, l) times the ratios from k to l - 1.
    U_potentials, U_currents : solutions of the tridiagonal system for the columns of U, and their
        currents, shapes (r, nodes, m) and (r, nodes, n).
    inner : inverse of (s S)^-1 + U^T Z U, shape (nodes, r, r).
    y, y_currents, sigma : the vector y = s Z G g, its currents, and the pivot of the rank-one term
        of K^-1.  Here g holds the cumulative weights minus the cumulative center.  If the whole
        attribute is measured, K^-1 has no rank-one term; the values are None, None and ones.
    """

    s: Array
    w: Array
    stretch: Array
    joint: Array
    diagonal: Array
    multiplier: Array
    U_potentials: Array
    U_currents: Array
    inner: Array
    y: Array | None
    y_currents: Array | None
    sigma: Array

    def inner_form(self, vectors: Array) -> Array:
        """Return v^T inner v, shape (nodes, k), for k vectors v per node, shape (r, nodes, k)."""
        forms = np.zeros(vectors.shape[1:])
        for a in range(len(vectors)):
            for b in range(len(vectors)):
                forms += self.inner[:, a, b, None] * (vectors[a] * vectors[b])
        return forms


def _sweeps(space: IntervalSpace, mass: Array) -> Iterator[_Sweep]:
    """Yield the matrices Y_j = (K^-1 + s_j G)^-1 of all quadrature nodes, in batches of nodes.

    ``mass`` holds the weights mu of the cells, shape (n,) with sum 1.
    """
    gram, n, m, tau = space.gram, space.cells, space.dimension, space.tau
    low = 1.0 / float(mass @ space.cell_traces())
    # The eigenvalues of K G are between 1 / high and 1 / low, and 1 / low is the trace of K G.
    # ``high`` follows from G >= a D^T D + floor I and from two upper bounds on D^T diag(1/mu) D:
    # this matrix is at most D^T D / min(mu), and by Gershgorin's theorem at most twice its largest
    # diagonal entry.  On the whole attribute, the suffixes add only 1 / (2 n) of their weight to
    # ``floor``.
    floor = gram.prefix + gram.ranges * (n + 1 - m)
    floor += gram.suffix / (2.0 * n if space.whole else 1.0)
    floor += min(gram.total, 0.0) if space.whole else 0.0
    high = 4.0 / (float(mass.min()) * (4.0 * gram.marginal + floor))
    if floor > 0.0:
        neighbours = 1.0 / mass[:-1] + 1.0 / mass[1:]
        high = min(high, 2.0 * float(neighbours.max()) / floor)
    nodes, weights = inverse_root_quadrature(low, max(high, low))
    U, S = space.low_rank
    g = None if space.whole else np.cumsum(mass)[:-1] - space.cumulative
    G_g = None if g is None else space.apply(g)
    step = max(1, SWEEP_ENTRIES // n)
    for start in range(0, len(nodes), step):
        s, w = nodes[start : start + step, None], weights[start : start + step, None]
        stretch = 1.0 / (1.0 + s * gram.marginal * mass)
        resistance, conductance = mass * stretch, 1.0 / mass + s * gram.marginal
        left, right = _ladders(resistance, conductance, s * tau, m)
        # Conductance from every node to ground through the resistors on its right.  The resistor
        # from the node itself to ground (leak) is left out, because ``left`` includes it.
        right_only = np.zeros_like(left)
        right_only[:, : m - 1] = right[:, 1:] / (1.0 + resistance[:, 1:m] * right[:, 1:])
        if not space.whole:
            right_only[:, -1] = conductance[:, -1]
        joint = np.empty((len(s), n))
        joint[:, 0], joint[:, -1] = right[:, 0], left[:, n - 2]
        inside = slice(1, n - 1)
        joint[:, inside] = (
            left[:, : n - 2] * right[:, 1 : n - 1] / (left[:, : n - 2] + right[:, 1 : n - 1])
        )
        if space.whole:
            ends = left[:, n - 2], right[:, n - 1]
            joint[:, -1] = ends[0] * ends[1] / (ends[0] + ends[1])
        pivots = left.copy()
        pivots[:, : n - 1] += conductance[:, 1:]
        multiplier = conductance[:, 1:m] / pivots[:, :-1]
        sources = [np.broadcast_to(column, (len(s), m)) for column in U.T]
        if G_g is not None:
            sources.append(s * G_g)
        potentials = _solve(pivots, multiplier, sources)
        currents = np.empty((len(sources), len(s), n))
        for k, source in enumerate(sources):
            currents[k, :, 0] = conductance[:, 0] * potentials[k, :, 0]
            lost = s * tau * potentials[k] - source
            currents[k, :, 1:] = currents[k, :, :1] + np.cumsum(lost[:, : n - 1], axis=1)
        rank = U.shape[1]
        U_potentials, U_currents = potentials[:rank], currents[:rank]
        inner = np.zeros((len(s), rank, rank))
        if rank:
            coupling = np.einsum("ka,bjk->jab", U, U_potentials)
            inner = np.linalg.inv(np.linalg.inv(S) / s[:, :, None] + coupling)
        y = y_currents = None
        sigma = np.ones_like(s)
        if g is not None:
            y, y_currents = potentials[rank], currents[rank]
            if rank:
                share = np.einsum("jab,jb->aj", inner, y @ U)[:, :, None]
                y = y - np.sum(share * U_potentials, axis=0)
                y_currents = y_currents - np.sum(share * U_currents, axis=0)
            sigma = 1.0 + np.sum((mass - space.pi) * stretch * y_currents, axis=1, keepdims=True)
        yield _Sweep(
            s=s,
            w=w,
            stretch=stretch,
            joint=joint,
            diagonal=1.0 / (left + right_only),
            multiplier=multiplier,
            U_potentials=U_potentials,
            U_currents=U_currents,
            inner=inner,
            y=y,
            y_currents=y_currents,
            sigma=sigma,
        )


def _ladders(resistance: Array, conductance: Array, leak: Array, m: int) -> tuple[Array, Array]:
    """Return two conductances to ground for every node of ladders of resistors.

    Node k is between the resistors k and k + 1.  Every node is also connected to ground by an extra
    resistor, called the leak.  Resistor 0 ends at ground.  If there is a resistor m, it also ends
    at ground.  There is one ladder per quadrature node.

    Parameters
    ----------
    resistance, conductance : of the resistors, shape (quadrature nodes, n).
    leak : conductance of the leaks of a ladder, shape (quadrature nodes, 1).
    m : number of nodes of a ladder.

    Returns
    -------
    Two arrays of shape (quadrature nodes, m).  The first holds the conductances to ground through
    the leak and the ladder on the left of the node; the second, through the leak and the ladder on
    the right.
    """
    n = conductance.shape[1]
    diagonal = conductance[:, :m] + leak
    diagonal[:, : n - 1] += conductance[:, 1:]
    between = conductance[:, 1:m]
    # A pivot minus the conductance of the next resistor is the conductance to ground of the ladder
    # up to that node.
    forward = _pivots(diagonal, between)
    forward[:, : n - 1] -= conductance[:, 1:]
    backward = _pivots(diagonal[:, ::-1], between[:, ::-1])
    backward -= conductance[:, :m][:, ::-1]
    last = conductance[:, m] if m < n else np.zeros(len(conductance))
    left = _refined(forward, conductance[:, 0], resistance[:, 1:m], leak)
    right = _refined(backward, last, resistance[:, 1:m][:, ::-1], leak)
    return left, right[:, ::-1]


def _pivots(diagonal: Array, between: Array) -> Array:
    """Return the pivots of symmetric tridiagonal matrices, one matrix per quadrature node.

    The result and the diagonals have shape (nodes, m).  ``between`` holds the negatives of the
    entries next to the diagonal, shape (nodes, m - 1).
    """
    import scipy.linalg.lapack

    # one call factorizes the block-diagonal matrix of all nodes
    off = np.zeros_like(diagonal)
    off[:, :-1] = -between
    pivots, _, _ = scipy.linalg.lapack.dpttrf(diagonal.ravel(), off.ravel()[:-1])
    return np.asarray(pivots).reshape(diagonal.shape)


def _refined(rough: Array, first: Array, resistance: Array, leak: Array) -> Array:
    """Solve the recurrence l_k = leak + l_(k-1) / (1 + r_k l_(k-1)) by Newton's method.

    l_k is the conductance to ground of a ladder of resistors up to node k.  The initial values
    ``rough`` are differences of pivots and conductances.  They are inaccurate near a cell with a
    tiny weight, because its conductance is large and cancels.  The recurrence has no subtraction,
    so that a few Newton steps reach full accuracy.  A Newton step solves a bidiagonal system.

    Parameters
    ----------
    rough : initial values of the l_k, shape (nodes, m).
    first : conductance of the first resistor, shape (nodes,); l_0 = leak + first.
    resistance : resistances r_k for k = 1..m - 1, shape (nodes, m - 1).
    leak : conductance of the leaks, shape (nodes, 1).
    """
    import scipy.linalg.lapack

    # The conductance of the leaks is 0 if only the marginal is queried.  Divisions need it above 0.
    leak = np.maximum(leak, TINY)
    values = np.maximum(rough, leak)
    values[:, 0] = leak[:, 0] + first
    error, banded = np.zeros_like(values), np.empty((2, values.size), order="F")
    slope = banded[1].reshape(values.shape)
    slope[:, -1] = 0.0  # all ladders form one system, without an entry between two ladders
    for _ in range(MAX_LADDER_STEPS):
        # error: right-hand side of the recurrence minus l_k; slope: the negative derivative of the
        # right-hand side with respect to l_(k-1), -1 / (1 + r_k l_(k-1))^2
        previous = values[:, :-1]
        ratio = resistance * previous
        ratio += 1.0
        np.reciprocal(ratio, out=ratio)
        np.multiply(previous, ratio, out=error[:, 1:])
        error[:, 1:] += leak
        error[:, 1:] -= values[:, 1:]
        ratio *= ratio
        np.negative(ratio, out=slope[:, :-1])
        solution, _ = scipy.linalg.lapack.dtbtrs(banded, error.ravel(), uplo="L", diag="U")
        correction = np.asarray(solution).reshape(values.shape)
        correction /= values
        # corrections are limited so that the conductances stay positive
        values *= 1.0 + np.maximum(correction, -0.9)
        if max(correction.max(), -correction.min()) <= LADDER_TOLERANCE:
            break
    return values


def _solve(pivots: Array, multiplier: Array, sources: list[Array]) -> Array:
    """Solve one tridiagonal system per quadrature node; return shape (sources, nodes, m).

    Parameters
    ----------
    pivots : diagonal of D in the factorization L D L^T of the systems, shape (nodes, m).
    multiplier : negatives of the entries of L below its unit diagonal, shape (nodes, m - 1).
    sources : right-hand sides, shape (nodes, m) each.
    """
    import scipy.linalg.lapack

    if not sources:
        return np.empty((0, *pivots.shape))
    factor = np.zeros_like(pivots)
    factor[:, :-1] = -multiplier
    right = np.stack(sources).reshape(len(sources), -1).T
    solution, _ = scipy.linalg.lapack.dpttrs(pivots.ravel(), factor.ravel()[:-1], right)
    return np.asarray(solution).T.reshape(len(sources), *pivots.shape)


def _cell_norms(space: IntervalSpace, mass: Array) -> Array:
    """Return the privacy cost d_i = c_i^T Q c_i of every cell, shape (n,).

    Its mean under the weights mu = ``mass`` is the dual value f(mu).
    """
    norms = np.zeros(space.cells)
    for sweep in _sweeps(space, mass):
        parallel = sweep.s * space.gram.marginal + sweep.joint
        terms = parallel / (1.0 + mass * parallel)
        if len(sweep.U_currents):
            terms += sweep.inner_form(sweep.U_currents) * sweep.stretch**2
        if sweep.y_currents is not None:
            terms -= (1.0 - sweep.stretch * sweep.y_currents) ** 2 / sweep.sigma
        norms += np.sum(sweep.w / sweep.s * terms, axis=0)
    return np.maximum(norms, 0.0)


@dataclass(frozen=True, kw_only=True, eq=False)
class DualSolution:
    """Dual weights of the cells of one attribute, and the gap that they prove.

    Attributes
    ----------
    dual : weights mu of the cells, shape (n,) with sum 1.
    norms : privacy cost d_i of every cell before the strategy is scaled to privacy cost 1, shape
        (n,).
    evaluations : number of evaluations of the dual value in the search, without those that
        decreased it.
    """

    dual: Array
    norms: Array
    evaluations: int = 1

    @property
    def trace(self) -> float:
        """Dual value f(mu) = tr (G K)^(1/2); its square is a lower bound on the total variance."""
        return float(self.dual @ self.norms)

    @property
    def value(self) -> float:
        """Total weighted variance of the strategy."""
        return self.trace * float(self.norms.max())

    @property
    def bound(self) -> float:
        """Lower bound on the total weighted variance of every strategy."""
        return self.trace**2

    @property
    def gap(self) -> float:
        """Relative RMSE gap: sqrt(value / bound) - 1."""
        return math.sqrt(max(self.value / self.bound, 1.0)) - 1.0


SolutionT = TypeVar("SolutionT", bound=DualSolution)


@dataclass(frozen=True, kw_only=True, eq=False)
class IntervalSolution(DualSolution):
    """Dual weights for interval queries, with the strategy that they determine and its gap.

    All variances are in counts^2 at privacy cost 1.  If only a residual space is measured, only the
    queries' components in this space count.

    Attributes
    ----------
    space : the queries, and whether a residual space or the whole attribute is measured.
    """

    space: IntervalSpace

    def center_gradient(self) -> Array:
        """Return the derivative of the dual value f(mu) with respect to the center, shape (n,).

        Centers have sum 1, so a constant added to all entries makes no difference.  At optimal
        weights the result is also the derivative of the optimal value (envelope theorem).  Only the
        solution of a residual space has a center.
        """
        if self.space.whole:
            raise ValueError(
                "The solution for all cells of an attribute has no center. Use the solution of a"
                " residual space."
            )
        g = np.cumsum(self.dual)[:-1] - self.space.cumulative
        potential = np.zeros_like(g)
        for sweep in _sweeps(self.space, self.dual):
            assert sweep.y is not None
            potential += np.sum(sweep.w / sweep.sigma * (g - sweep.y), axis=0)
        by_cumulative = -self.space.apply(potential)
        return np.append(np.cumsum(by_cumulative[::-1])[::-1], 0.0)

    def cell_variances(self) -> Array:
        """Return the variance of the estimated count of every cell, shape (n,)."""
        mass, space = self.dual, self.space
        variances = np.zeros(space.cells)
        for sweep in _sweeps(space, mass):
            resistance = mass * sweep.stretch
            node_variances = resistance / (1.0 + resistance * sweep.joint)
            node_variances -= sweep.inner_form(sweep.U_currents * resistance)
            if sweep.y_currents is not None:
                rank_one = mass - space.pi - resistance * sweep.y_currents
                node_variances += rank_one**2 / sweep.sigma
            variances += np.sum(sweep.w * node_variances, axis=0)
        return np.asarray(variances * self.norms.max())

    def prefix_variances(self) -> Array:
        """Return the variance of every prefix (cells 0..i), shape (n,); the last is the total."""
        last = np.arange(self.space.cells)
        return self.range_variances(np.zeros_like(last), last)

    def range_variances(self, first: npt.NDArray[np.int64], last: npt.NDArray[np.int64]) -> Array:
        """Return the variances of k ranges, each from cell ``first`` to cell ``last`` inclusive.

        ``first``, ``last`` and the result have shape (k,).
        """
        m = self.space.dimension
        # the differences of a range are 1 at its last cell and -1 at the cell before its first one
        start, end = np.asarray(first) - 1, np.asarray(last)
        has_start, has_end = start >= 0, end < m
        # A range that begins at the first cell has no start difference, and one that ends after the
        # last difference has no end difference.  Their positions are replaced by valid ones, and
        # has_start and has_end set their terms to 0.
        i, j = np.maximum(start, 0), np.minimum(end, m - 1)
        variances = np.zeros(len(end))
        # The variance of a range with differences z is z^T Q^-1 z = sum_j w_j z^T Y_j z.  Y_j is
        # the inverse of a tridiagonal matrix, minus a term of low rank, plus a rank-one term.
        g = None if self.space.whole else np.cumsum(self.dual)[:-1] - self.space.cumulative
        for sweep in _sweeps(self.space, self.dual):
            log_products = np.zeros_like(sweep.diagonal)
            log_products[:, 1:] = np.cumsum(np.log(sweep.multiplier), axis=1)
            # entry (i, j) of the inverse is entry (j, j) times the multipliers from i to j - 1
            mixed = np.exp(log_products[:, j] - log_products[:, i]) * sweep.diagonal[:, j]
            node_variances = has_start * sweep.diagonal[:, i] + has_end * sweep.diagonal[:, j]
            node_variances -= 2.0 * (has_start & has_end) * mixed
            node_variances -= sweep.inner_form(
                has_end * sweep.U_potentials[..., j] - has_start * sweep.U_potentials[..., i]
            )
            if g is not None and sweep.y is not None:
                u = g - sweep.y
                node_variances += (has_end * u[:, j] - has_start * u[:, i]) ** 2 / sweep.sigma
            variances += np.sum(sweep.w * node_variances, axis=0)
        return np.asarray(np.maximum(variances, 0.0) * self.norms.max())

    def total_covariances(self) -> Array:
        """Return the covariance of every estimated cell with the estimated total, shape (n,).

        Only the solution for all cells of an attribute determines the total.
        """
        if not self.space.whole:
            raise ValueError(
                "A residual space does not determine the total. Use the solution for all cells of "
                "the attribute."
            )
        n = self.space.cells
        prefixes = self.prefix_variances()
        # variance of the suffix that begins after each prefix
        suffixes = np.zeros(n)
        suffixes[:-1] = self.range_variances(np.arange(1, n), np.full(n - 1, n - 1))
        # 2 Cov(prefix, total) = Var(prefix) + Var(total) - Var(total - prefix)
        return np.diff(0.5 * (prefixes + prefixes[-1] - suffixes), prepend=0.0)

    def covariance(self) -> Array:
        """Return the covariance of the estimated differences at privacy cost 1, shape (m, m).

        Raises
        ------
        LimitExceeded : the attribute has more than `MAX_STRATEGY_CELLS` cells.
        """
        space, m = self.space, self.space.dimension
        if space.cells > MAX_STRATEGY_CELLS:
            raise LimitExceeded(
                f"Prefix, suffix and range queries on an attribute with {space.cells:,} cells need "
                f"a strategy matrix, which is formed for at most {MAX_STRATEGY_CELLS:,} cells. "
                "Merge cells into bins, or choose the marginal of this attribute only."
            )
        covariance = np.zeros((m, m))
        g = None if space.whole else np.cumsum(self.dual)[:-1] - space.cumulative
        diagonal, multiplier, left_factors, right_factors = [], [], [], []
        for sweep in _sweeps(space, self.dual):
            diagonal.append(sweep.w * sweep.diagonal)
            multiplier.append(sweep.multiplier)
            if len(sweep.U_potentials):
                weighted_inner = sweep.inner * sweep.w[:, :, None]
                scaled = np.einsum("jab,bjk->ajk", weighted_inner, sweep.U_potentials)
                left_factors.append(np.concatenate(list(scaled)))
                right_factors.append(np.concatenate(list(-sweep.U_potentials)))
            if g is not None and sweep.y is not None:
                u = g - sweep.y
                left_factors.append(u * sweep.w / sweep.sigma)
                right_factors.append(u)
        if left_factors:
            np.matmul(np.concatenate(left_factors).T, np.concatenate(right_factors), out=covariance)
        # For j <= k, entry (k, j) of the inverse of a tridiagonal matrix is its entry (k, k) times
        # the multipliers from j to k - 1. The inverse is computed in blocks of rows. In each block,
        # the columns before it are computed by one matrix product, and the columns of the block
        # from row to row.
        weighted, ratios = np.concatenate(diagonal), np.concatenate(multiplier)
        products = np.empty_like(weighted)  # of the multipliers from each column to the block
        for start in range(0, m, BLOCK_ROWS):
            block = slice(start, min(start + BLOCK_ROWS, m))
            width = block.stop - start
            inside, steps = np.empty((len(weighted), width)), np.ones((len(weighted), width))
            for k in range(width):
                if k:
                    inside[:, :k] *= ratios[:, start + k - 1, None]
                    steps[:, k] = steps[:, k - 1] * ratios[:, start + k - 1]
                inside[:, k] = 1.0
                row = start + k
                covariance[row, start : row + 1] += weighted[:, row] @ inside[:, : k + 1]
                covariance[start:row, row] = covariance[row, start:row]
            covariance[block, :start] += (weighted[:, block] * steps).T @ products[:, :start]
            covariance[:start, block] = covariance[block, :start].T
            if block.stop < m:
                products[:, :start] *= (steps[:, -1] * ratios[:, block.stop - 1])[:, None]
                products[:, block] = inside * ratios[:, block.stop - 1, None]
        covariance *= self.norms.max()
        return covariance

    def strategy(self) -> tuple[Array, Array]:
        """Return strategy rows B and a matrix R that estimates differences from their answers.

        B has shape (m, n) and columns of norm at most 1.  R has shape (m, m): R @ answers are the
        estimated differences, with covariance R R^T at noise scale 1.  The answers of all queries
        follow from the differences.
        """
        import scipy.linalg

        n, m = self.space.cells, self.space.dimension
        root = scipy.linalg.cholesky(
            self.covariance(), lower=True, overwrite_a=True, check_finite=False
        )
        C = np.tri(m, n) - self.space.cumulative[:, None]
        rows = scipy.linalg.solve_triangular(
            root, C, lower=True, overwrite_b=True, check_finite=False
        )
        return np.asarray(rows), np.asarray(root)


def evaluate(space: IntervalSpace, weights: Array) -> IntervalSolution:
    """Return the solution that dual weights determine.

    ``weights`` have shape (n,) and any positive sum.  Weights below `MIN_SHARE` times their mean
    are raised to this value, and then all are scaled to sum 1.
    """
    mass, floor = np.asarray(weights), MIN_SHARE * float(weights.sum()) / space.cells
    # Weights of an earlier solution are not scaled again, because this would change their last
    # digits.
    if abs(float(mass.sum()) - 1.0) > 1e-12 or mass.min() < 0.5 * floor:
        mass = np.maximum(mass, floor)
        mass = mass / mass.sum()
    return IntervalSolution(space=space, dual=mass, norms=_cell_norms(space, mass))


def solve(
    space: IntervalSpace,
    *,
    gap: float = 5e-7,
    evaluations: int = 300,
    deadline: float = math.inf,
    start: Array | None = None,
) -> IntervalSolution:
    """Search for dual weights until they prove the relative RMSE gap, or a limit is reached.

    The search maximises the dual value f.  A plain step replaces the weight mu_i of every cell i by
    mu_i d_i / f, where d_i is the privacy cost of the cell.  Plain steps increase f.  Anderson
    acceleration on log mu reduces the search to some 10 to 50 steps.  If an accelerated step
    decreases f, a plain step is taken instead.

    Parameters
    ----------
    space : the queries, and whether a residual space or the whole attribute is measured.
    gap : required relative RMSE gap.
    evaluations : largest number of evaluations of f, without those that decreased f.
    deadline : time limit on the clock of `planning_time`.
    start : initial weights, shape (n,); None for equal weights.

    Returns
    -------
    The solution with the smallest gap, also if a limit ended the search.
    """
    first = evaluate(space, np.ones(space.cells) if start is None else start)
    return maximise(
        lambda weights: evaluate(space, weights),
        first,
        gap=gap,
        evaluations=evaluations,
        deadline=deadline,
    )


def maximise(
    evaluate: Callable[[Array], SolutionT],
    first: SolutionT,
    *,
    gap: float,
    evaluations: int,
    deadline: float,
    min_share: float = MIN_SHARE,
    tolerance: float = 1e-12,
    ignores_vanishing: bool = False,
) -> SolutionT:
    """Search for dual weights by the fixed-point iteration of `solve`.

    Parameters
    ----------
    evaluate : function that returns the solution for dual weights of shape (n,) and any sum.
    first : solution for the initial weights.
    gap, evaluations, deadline : see `solve`.
    min_share : smallest weight that ``evaluate`` uses, as a multiple of the uniform weight 1/n.
    tolerance : an accelerated step is replaced if it decreases f by more than this share.
    ignores_vanishing : whether small weights that decrease have little influence on how steps are
        combined.

    Returns
    -------
    The solution with the smallest gap, also if a limit ended the search.
    """
    n = len(first.dual)
    best = current = first
    points, steps, is_plain = list[Array](), list[Array](), True
    for count in range(1, evaluations + 1):
        best = min(best, current, key=lambda solution: solution.gap)
        if best.gap <= gap or count == evaluations or planning_time() > deadline:
            return replace(best, evaluations=count)
        point = np.log(current.dual)
        step = np.log(np.maximum(current.norms / current.trace, 1e-30))
        # a step that would decrease a weight at its minimum is replaced by 0
        step[(point <= math.log(1.01 * min_share / n)) & (step < 0.0)] = 0.0
        points, steps = [*points, point][-HISTORY:], [*steps, step][-HISTORY:]
        proposal = point + step
        is_plain = len(steps) == 1
        if not is_plain:
            step_changes = np.stack([step - other for other in steps[:-1]], axis=1)
            point_changes = np.stack([point - other for other in points[:-1]], axis=1)
            equations, target = step_changes, step
            if ignores_vanishing:
                # Weights whose optimum is 0 decrease for ever.  Their steps must not determine how
                # the steps of the other weights are combined.
                importance = np.where(step < 0.0, np.sqrt(np.minimum(n * current.dual, 1.0)), 1.0)
                equations, target = importance[:, None] * step_changes, importance * step
            mix = np.linalg.lstsq(equations, target, rcond=1e-10)[0]
            proposal = proposal - (point_changes + step_changes) @ mix
        candidate = evaluate(np.exp(proposal - proposal.max()))
        if not is_plain and not candidate.trace >= current.trace * (1.0 - tolerance):
            points, steps = [], []
            candidate = evaluate(np.exp(point + step))
        current = candidate
    return best
