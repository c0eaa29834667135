"""Lower bounds from product weights, on workloads reduced to their free attributes.

Notes
-----
**Reduction.**  An attribute whose Grams are invariant under cyclic shifts of its cells (marginals,
circular ranges, totals) has uniform optimal weights, by symmetry.  Then s = mu^(1/2) is an
eigenvector of all its Grams, so that the sum over its cells is not coupled to the deviations from
the sum.  So a query splits on such an attribute into two components: its sum over the cells, with
the factor ``total``, and its deviation, with the factor ``rest``.  The attribute is eliminated:
every choice of the eliminated attributes whose deviation is taken gives one separate problem
(`Link`) on the remaining attributes, which are called free.

**One attribute.**  The weights of an attribute are represented by a few functions of its cells:

    mu, s        weights of the cells with sum 1, and their square roots; D = diag(mu)
    K            D^(1/2) times k functions of the cells: orthonormal columns, the first one s;
                 shape (n, k)
    Y            square root of H = D^(1/2) W^T W D^(1/2) for the queries W of one family
    R = K^T Y K  the queries in the basis K; index 0 is the sum over the cells; C = R^2
    t            nuclear norm of Y on the orthogonal complement of K

Y is symmetric.  In the basis (K, complement) of its rows and columns its two off-diagonal blocks
are omitted: a pinching, which cannot increase a nuclear norm.  For a single group nothing is lost,
because the trace is the sum of the traces of the blocks.

**Sets of attributes.**  For every set T of attributes outside K, with scalar factors t, the Gram on
the K of the other attributes is

    M_T = sum over terms A containing T of weight_A (x)_{i in A, not in T} C_i (x) s s^T.

Its rows and columns are grouped by excitations.  An excitation is the set of the attributes on
which a function other than the constant s is taken.  Terms with different families on T are
stacked, and the nuclear norm of a stack is at least the root of the sum of the squared norms of its
terms.

**Rounding.**  Every eigenvalue is lowered by more than its error before its square root is taken.
By Weyl's inequality an eigenvalue moves by at most the spectral norm of the rounding errors, in the
matrix and in LAPACK; both stay far below ``EIGENVALUE_ERROR_FACTOR`` times the order of the matrix
times the machine epsilon times the largest eigenvalue.  The computed eigenvalues of null
directions, which are pure rounding error, become 0.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import scipy

from engine._arrays import Array, Index
from engine._threads import threads_for
from engine.residuals import Space, contract, group_axes
from engine.residuals.basis import Role
from engine.residuals.decomposition import has_identity_gram, interval_gram, part_rows
from engine.residuals.intervals import IntervalGram
from engine.residuals.operators import ScaledIdentity
from engine.workload import Part, Workload, joint_part

# Eigenvalues are lowered by this factor times (order + 100) * machine epsilon * largest eigenvalue.
# Actual rounding errors of sums and of LAPACK correspond to factors of about 1.
EIGENVALUE_ERROR_FACTOR = 16.0
# Every bound is multiplied by this factor, which covers the rounding errors of sums and products,
# and of the orthonormality of functions.
ROUNDING_FACTOR = 1.0 - 1e-7
# smallest eigenvalue, relative to the largest, that is used for the derivative
EIGENVALUE_CUTOFF = 1e-11


def root_trace(
    matrix: Array, derivative: bool = True, size: float = 0.0
) -> tuple[float, Array | None]:
    """Return a lower bound on tr sqrt(M) of a symmetric M >= 0, and its derivative.

    Parameters
    ----------
    matrix : M, shape (n, n).
    derivative : whether the derivative with respect to M, shape (n, n), is returned as second
        result; without it, the second result is None (for a matrix of order 1 it is always
        returned).
    size : upper bound on the spectral norm of the terms of which M is a sum.  It is needed if terms
        were subtracted, because their rounding errors may be larger than those of M.

    >>> round(root_trace(np.diag([4.0, 9.0]))[0], 9)
    5.0
    """
    if len(matrix) == 1:
        value = _roots(matrix[0], size) if size else float(np.sqrt(max(matrix[0, 0], 0.0)))
        return value, np.full((1, 1), 0.5 / value if value > 0.0 else 0.0)
    with threads_for(len(matrix)):
        if not derivative:
            return (
                _roots(
                    np.asarray(scipy.linalg.eigvalsh(matrix, check_finite=False), dtype=float), size
                ),
                None,
            )
        eigenvalues, U = scipy.linalg.eigh(matrix, check_finite=False)
        used = eigenvalues > max(EIGENVALUE_CUTOFF * eigenvalues[-1], 1e-300)
        U = U[:, used]
        return _roots(eigenvalues, size), (U * (0.5 / np.sqrt(eigenvalues[used]))) @ U.T


def nuclear(matrix: Array, derivative: bool = True) -> tuple[float, Array]:
    """Return a lower bound on the nuclear norm of a matrix, and its derivative.

    The derivative has the shape of the matrix.  If ``derivative`` is False, the second result has
    no meaning and may be an empty array.

    >>> round(nuclear(np.array([[3.0, 4.0]]))[0], 9)
    5.0
    """
    if not matrix.size:
        return 0.0, np.zeros_like(matrix)
    wide = matrix.shape[0] <= matrix.shape[1]
    value, half = root_trace(matrix @ matrix.T if wide else matrix.T @ matrix, derivative)
    if half is None:
        return value, np.zeros((0, 0))
    return value, 2.0 * (half @ matrix if wide else matrix @ half)


def lower_eigenvalues(eigenvalues: Array, size: float = 0.0) -> Array:
    """Return eigenvalues lowered by more than their rounding error, but not below 0, shape (n,).

    ``eigenvalues`` ascend.  Their error is proportional to the largest eigenvalue or to ``size``,
    whichever is larger; ``size`` is an upper bound on the spectral norm of the terms of which the
    matrix is a sum.

    >>> lower_eigenvalues(np.array([-1e-16, 1e-16, 4.0])).round(9)
    array([0., 0., 4.])
    """
    slack = (
        EIGENVALUE_ERROR_FACTOR
        * (len(eigenvalues) + 100)
        * np.finfo(float).eps
        * max(float(eigenvalues[-1]), size, 0.0)
    )
    return np.maximum(eigenvalues - slack, 0.0)


def _roots(eigenvalues: Array, size: float) -> float:
    return float(np.sqrt(lower_eigenvalues(eigenvalues, size)).sum())


def error_bound(norm: float, law: str = "gaussian") -> float:
    """Return the lower bound on the weighted squared error that follows from a nuclear norm.

    ``norm`` is a lower bound on the nuclear norm, in counts.  The result is in counts^2, at privacy
    cost 1 for Gaussian noise and at epsilon 1 for Laplace noise.  For Laplace noise it is twice as
    large, because the L1 sensitivity is at least the Euclidean sensitivity, and Laplace noise of
    scale 1 has variance 2.
    """
    return norm * norm * ROUNDING_FACTOR * (2.0 if law == "laplace" else 1.0)


# number of random tables that test whether a part is symmetric in two attributes
PROBES = 3
# groups of queries are left out if the query rows of one of their parts on several attributes have
# more entries than this
MAX_PART_ENTRIES = 4_000_000
# identifies the query rows of a part of a group; parts with equal rows have equal keys
Key = int
# product of queries: attributes and key of each of its parts
Pieces = tuple[tuple[Space, Key], ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Link:
    """Queries on the free attributes, for one subset of the eliminated attributes.

    Along every eliminated attribute, a query is its sum over the cells plus the deviation from this
    sum.  This link takes the deviation along the attributes of the subset and the sum along all
    other eliminated attributes.  ``terms`` maps products of parts on free attributes to weights,
    which include the factors of the sums.  Factors of deviations are in `LinkedQueries.sums`.
    """

    terms: dict[Pieces, float]

    @cached_property
    def names(self) -> Space:
        """Free attributes of the queries, sorted."""
        return tuple(
            sorted({name for pieces in self.terms for names, _ in pieces for name in names})
        )

    def kinds(self, sizes: Mapping[str, int]) -> Counter[tuple[int, ...]]:
        """Count the attribute sets that are contained in a term, by the sizes of their attributes.

        A key of the result lists the sizes of a subset's attributes in ascending order.  ``sizes``
        maps free attributes to sizes: numbers of cells, or numbers of functions.
        """
        subsets: set[Space] = set()
        for pieces in self.terms:
            names = sorted(name for part, _ in pieces for name in part)
            for count in range(len(names) + 1):
                subsets.update(itertools.combinations(names, count))
        return Counter(tuple(sorted(sizes[name] for name in inside)) for inside in subsets)


@dataclass(kw_only=True, eq=False)
class LinkedQueries:
    """A workload reduced to its free attributes, whose optimal weights are not known to be uniform.

    Attributes
    ----------
    links : the distinct links; each is a separate problem (`Link`) on the free attributes.
    sums : pairs (factor, coefficients).  The nuclear norm of the workload is the sum over all pairs
        of factor * sqrt(sum over links i of (coefficients[i] * norm of link i)^2).
    roles : mapping from free attributes to roles; attributes of one role have equal weights.
    sizes : mapping from roles to numbers of cells.
    rows : mapping from keys of parts to rows with the same Gram as the queries, shape (rows, cells
        of the part).
    swaps : mapping from keys of parts on two attributes to whether they are symmetric in them.
    singles : mapping from roles to the keys of their parts on one attribute.
    joints : mapping from keys of parts on several attributes to the roles of these attributes where
        the part occurs first in the workload; elsewhere the roles may differ.
    intervals : mapping from keys of parts with interval queries on one attribute to their
        `IntervalGram`, which has one weight per kind of interval query (prefix, range, ...).
    """

    links: list[Link]
    sums: list[tuple[float, dict[int, float]]]
    roles: dict[str, Role]
    sizes: dict[Role, int]
    rows: dict[Key, Array]
    swaps: dict[Key, bool]
    singles: dict[Role, list[Key]] = field(default_factory=dict)
    joints: dict[Key, tuple[Role, ...]] = field(default_factory=dict)
    intervals: dict[Key, IntervalGram] = field(default_factory=dict)


def reduce_workload(workload: Workload) -> LinkedQueries:
    """Eliminate the attributes whose optimal weights are uniform, and return the reduced workload.

    Groups of weight 0 are left out, and so are groups with a part on several attributes whose query
    rows have more than `MAX_PART_ENTRIES` entries.  This can only lower the bound.
    """
    rows: dict[Key, Array] = {}
    # numbers of cells of marginals on wide attributes: they get no entry in ``rows``, because it
    # would be a large identity matrix
    identity_sizes: dict[Key, int] = {}
    parts_by_key: dict[Key, Part] = {}
    intervals: dict[Key, IntervalGram] = {}
    keys: dict[Any, Key] = {}  # by content of the query rows
    groups: list[tuple[float, Pieces]] = []
    for group in workload.groups:
        query_weights, weight = group.query_weights, group.weight
        if query_weights is not None and not group.parts:
            weight, query_weights = weight * float(query_weights[0]), None
        parts: Sequence[Part] = (
            group.parts if query_weights is None or len(group.parts) == 1 else (joint_part(group),)
        )
        too_large = any(
            len(p.axes) > 1 and p.count * math.prod(p.sizes) > MAX_PART_ENTRIES for p in parts
        )
        if not group.is_weighted or too_large:
            continue
        named_parts: list[tuple[Space, Key]] = []
        for part in parts:
            weight_bytes = None if query_weights is None else query_weights.tobytes()
            key = keys.setdefault((part.key, weight_bytes), len(keys))
            if key not in parts_by_key:
                parts_by_key[key] = part
                gram = interval_gram(part, query_weights) if part.cells > 1 else None
                if gram is not None:
                    intervals[key] = gram
                if has_identity_gram(part, query_weights):
                    identity_sizes[key] = part.cells
                else:
                    rows[key] = part_rows(part, query_weights)
            named_parts.append((tuple(group.attributes[a] for a in part.axes), key))
        groups.append((weight, tuple(sorted(named_parts))))
    joint = {
        name for _, pieces in groups for names, _ in pieces if len(names) > 1 for name in names
    }
    uniform = _UniformFactors(rows, identity_sizes)
    varying = {
        names[0]
        for _, pieces in groups
        for names, key in pieces
        if len(names) == 1 and uniform.of(key) is None
    }
    free = joint | varying
    rows |= {
        key: ScaledIdentity(order=identity_sizes[key]).dense()
        for _, pieces in groups
        for names, key in pieces
        if names[0] in free and key in identity_sizes
    }
    swaps = {
        key: _swaps(rows[key], part.sizes)
        for key, part in parts_by_key.items()
        if len(part.sizes) == 2
    }
    roles = _roles(groups, free, swaps, workload)
    sizes = {role: workload.schema[name].size for name, role in roles.items()}
    links, sums = _sums(_links(groups, free, uniform), uniform)
    out = LinkedQueries(
        links=links,
        sums=sums,
        roles=roles,
        sizes=sizes,
        rows=rows,
        swaps=swaps,
        intervals=intervals,
    )
    for _, pieces in groups:
        for names, key in pieces:
            if (
                len(names) == 1
                and names[0] in free
                and key not in out.singles.setdefault(roles[names[0]], [])
            ):
                out.singles[roles[names[0]]].append(key)
            if len(names) > 1:
                out.joints.setdefault(key, tuple(roles[name] for name in names))
    return out


def _swaps(rows: Array, sizes: Sequence[int]) -> bool:
    """Return whether a part does not change when its two attributes are swapped.

    The squared answers to random tables and to their transposes are compared.
    """
    if sizes[0] != sizes[1]:
        return False
    tables = np.random.default_rng(0).standard_normal((PROBES, *sizes))
    one, other = (
        np.sum((t.reshape(PROBES, -1) @ rows.T) ** 2, axis=1)
        for t in (tables, tables.transpose(0, 2, 1))
    )
    return bool(np.allclose(one, other, rtol=1e-12, atol=0.0))


def _roles(
    groups: list[tuple[float, Pieces]],
    free: set[str],
    swaps: Mapping[Key, bool],
    workload: Workload,
) -> dict[str, Role]:
    """Return the role (index of the equivalence class) of every free attribute.

    Attributes are equivalent if they have equal sizes and occur in equal queries: in parts with the
    same key, at equivalent positions, in products with the same keys and the same weight.
    """
    occurrences: dict[str, list[Any]] = {name: [] for name in workload.schema.names if name in free}
    for weight, pieces in groups:
        keys = tuple(sorted(key for _, key in pieces))
        for names, key in pieces:
            for position, name in enumerate(names):
                if name in free:
                    occurrences[name].append((key, 0 if swaps.get(key) else position, weight, keys))
    numbers: dict[Any, Role] = {}
    return {
        name: numbers.setdefault((workload.schema[name].size, tuple(sorted(places))), len(numbers))
        for name, places in occurrences.items()
    }


class _UniformFactors:
    """Computes the factors of parts on one attribute with uniform weights.

    ``total`` is the factor of the sum over the cells, ``rest`` that of the deviation from the sum.
    """

    def __init__(self, rows: dict[Key, Array], identity_sizes: Mapping[Key, int]) -> None:
        self.rows = rows
        # the Gram of a marginal is I, and I / n has all eigenvalues 1/n
        self.factors: dict[Key, tuple[float, float] | None] = {
            key: (1.0 / n, (n - 1) / math.sqrt(n)) for key, n in identity_sizes.items()
        }

    def of(self, key: Key) -> tuple[float, float] | None:
        """Return the factors (total, rest) of a part on one attribute of n cells.

        ``total`` is the eigenvalue of Gram / n for the constant vector, and ``rest`` the sum of the
        square roots of all other eigenvalues.  The result is None if the Gram is not circulant,
        because uniform weights may then not be optimal.
        """
        if key not in self.factors:
            gram = self.rows[key].T @ self.rows[key]
            n = len(gram)
            circulant = np.allclose(
                gram, np.roll(gram, (1, 1), (0, 1)), rtol=0, atol=1e-12 * np.abs(gram).max()
            )
            # the constant vector is an eigenvector of a circulant matrix
            exact = scipy.linalg.circulant(gram[0]) / n
            total = float(exact[0].sum())
            self.factors[key] = (total, root_trace(exact - total / n)[0]) if circulant else None
        return self.factors[key]


def _links(
    groups: list[tuple[float, Pieces]], free: set[str], uniform: _UniformFactors
) -> dict[Pieces, dict[Pieces, float]]:
    """Split all groups on their eliminated attributes, and return the weights of what remains.

    On an eliminated attribute a query is split into its sum over the cells (factor ``total``) and
    its deviation from the sum (factor ``rest``).  A key of the result is a set of eliminated parts
    whose deviations are taken.  Its value maps products of parts on free attributes to weights,
    which include the factors ``total`` of all other eliminated parts.
    """
    out: dict[Pieces, dict[Pieces, float]] = {}
    for weight, pieces in groups:
        free_parts = tuple(p for p in pieces if len(p[0]) > 1 or p[0][0] in free)
        eliminated = [p for p in pieces if len(p[0]) == 1 and p[0][0] not in free]
        factors = [uniform.factors[key] or (0.0, 0.0) for _, key in eliminated]
        # every combination of the sum or the deviation on each eliminated attribute
        for mask in itertools.product((False, True), repeat=len(eliminated)):
            totals = [
                total for (total, _), is_rest in zip(factors, mask, strict=True) if not is_rest
            ]
            rests = [rest for (_, rest), is_rest in zip(factors, mask, strict=True) if is_rest]
            if all(rest > 0.0 for rest in rests):
                terms = out.setdefault(tuple(itertools.compress(eliminated, mask)), {})
                terms[free_parts] = terms.get(free_parts, 0.0) + weight * math.prod(totals)
    return out


def _sums(
    linked: dict[Pieces, dict[Pieces, float]], uniform: _UniformFactors
) -> tuple[list[Link], list[tuple[float, dict[int, float]]]]:
    """Return `LinkedQueries.links` and `LinkedQueries.sums` from the result of `_links`.

    Pairs (factor, coefficients) of ``sums`` with a single link are merged if it is the same link.
    """
    link_numbers: dict[Any, int] = {}
    links: list[Link] = []
    coefficients_by_set: dict[Space, dict[int, float]] = {}
    for rest_parts, terms in linked.items():
        content = frozenset(terms.items())
        if content not in link_numbers:
            link_numbers[content] = len(links)
            links.append(Link(terms=terms))
        number = link_numbers[content]
        factor = math.prod((uniform.factors[key] or (0.0, 0.0))[1] for _, key in rest_parts)
        attributes = tuple(names[0] for names, _ in rest_parts)
        coefficients = coefficients_by_set.setdefault(attributes, {})
        # rows of different parts are stacked: |[X; Y]|_*^2 >= |X|_*^2 + |Y|_*^2
        coefficients[number] = math.hypot(coefficients.get(number, 0.0), factor)
    single_factors: dict[int, float] = {}
    sums: list[tuple[float, dict[int, float]]] = []
    for coefficients in coefficients_by_set.values():
        if len(coefficients) == 1:
            ((number, factor),) = coefficients.items()
            single_factors[number] = single_factors.get(number, 0.0) + factor
        else:
            sums.append((1.0, coefficients))
    return links, sums + [(factor, {number: 1.0}) for number, factor in single_factors.items()]


# The derivative of the square root Y divides by sums of two roots of eigenvalues.  Quotients are
# left out if the sum is below this share of the largest root.
ROOT_CUTOFF = 1e-6


@dataclass(kw_only=True, eq=False)
class FamilyRoot:
    """Queries of one family on one attribute, represented in the functions of a `Frame`.

    Attributes
    ----------
    gram : Gram W^T W of the queries, shape (n, n).
    roots, U : eigenvalues and eigenvectors of Y, the square root of D^(1/2) W^T W D^(1/2).
    R, C : R = K^T Y K and C = R^2, shape (k, k).
    t : nuclear norm of Y on the orthogonal complement of K.
    by_root, by_gram, by_t : accumulated derivatives of the nuclear norm of the workload with
        respect to R, C and t.
    """

    gram: Array
    roots: Array
    U: Array
    R: Array
    C: Array
    t: float
    by_root: Array
    by_gram: Array
    by_t: float = 0.0


class Frame:
    """Queries on one attribute, represented by k functions of its cells, for fixed weights.

    `by_s` turns the derivatives of the nuclear norm with respect to the matrices of this object
    into the derivative with respect to ``s``.

    Parameters
    ----------
    s : square roots of the weights of the cells, shape (n,), with Euclidean norm 1.
    functions : functions of the cells, shape (n, k); the first one is constant.
    families : mapping from keys of query families to their query rows, shape (m, n).
    """

    def __init__(self, s: Array, functions: Array, families: Mapping[Key, Array]) -> None:
        self.s = s
        K, _ = np.linalg.qr(functions * s[:, None])
        # A QR decomposition leaves the signs of columns open; they are fixed, because the objective
        # would be discontinuous otherwise.
        self.K = K * np.where(functions[0] * K[0] < 0.0, -1.0, 1.0)
        self.K[:, 0] = s
        self.F = self.K * s[:, None]  # W F are the coefficients of query rows W in K
        self.by_F = np.zeros_like(self.F)
        self.families = {key: self._family(rows) for key, rows in families.items()}

    def _family(self, rows: Array) -> FamilyRoot:
        """Return the representation of query rows, shape (m, n), with all derivatives 0."""
        gram = rows.T @ rows
        with threads_for(len(gram)):
            eigenvalues, U = scipy.linalg.eigh(gram * self.s[:, None] * self.s, check_finite=False)
        roots = np.sqrt(lower_eigenvalues(eigenvalues))
        K_eigen = U.T @ self.K
        R = K_eigen.T @ (K_eigen * roots[:, None])
        # tr Y on the complement of K is tr Y minus tr R; with all functions in K it is 0
        t = max(float(roots.sum() - np.trace(R)), 0.0) if len(R) < len(gram) else 0.0
        return FamilyRoot(
            gram=gram,
            roots=roots,
            U=U,
            R=R,
            C=R @ R,
            t=t,
            by_root=np.zeros_like(R),
            by_gram=np.zeros_like(R),
        )

    def by_s(self) -> Array:
        """Return the derivative of the nuclear norm with respect to ``s``, shape (n,).

        It is computed from the accumulated derivatives.  It is orthogonal to ``s``, whose norm is
        fixed at 1.
        """
        by_K = self.s[:, None] * self.by_F
        out = np.einsum("nk,nk->n", self.by_F, self.K)
        for family in self.families.values():
            by_root = family.by_root + family.R @ family.by_gram + family.by_gram @ family.R
            by_root = 0.5 * (by_root + by_root.T)
            by_root[np.diag_indices(len(by_root))] -= family.by_t
            K_eigen = family.U.T @ self.K
            by_K += 2.0 * family.U @ (family.roots[:, None] * K_eigen) @ by_root
            by_Y = K_eigen @ by_root @ K_eigen.T
            by_Y[np.diag_indices(len(by_Y))] += family.by_t
            # Y^2 = H, so dY solves Y dY + dY Y = dH.  In the eigenbasis of Y this is a division by
            # sums of two eigenvalues.
            sums = family.roots[:, None] + family.roots
            by_H = np.divide(
                by_Y, sums, out=np.zeros_like(by_Y), where=sums > ROOT_CUTOFF * family.roots[-1]
            )
            out += 2.0 * ((family.U @ by_H @ family.U.T) * family.gram) @ self.s
        Psi = self.K / self.s[:, None]  # the basis functions of the cells
        out += np.einsum("nk,nk->n", by_K, Psi)
        # K is the factor Q of a QR decomposition of Psi * s.  With E = Psi ds, dK is E - K X, where
        # X is upper triangular: the diagonal of K^T E, and above it twice the entries of K^T E.
        half = np.triu(self.K.T @ by_K)
        half[np.diag_indices(len(half))] *= 0.5
        out -= 2.0 * self.s * np.einsum("nk,nk->n", Psi @ half, Psi)
        # the norm of s is fixed, so the component along s is removed
        return np.asarray(out - (out @ self.s) * self.s)


@dataclass(kw_only=True, eq=False)
class Joint:
    """Queries of one part on several attributes, represented in the functions of their frames.

    Attributes
    ----------
    rows : query rows on the cells, shape (m, n_1, ..., n_p).
    frames : frame of every attribute of the part.
    Z : coefficients of the rows in the k_i functions of every attribute, shape (m, k_1, ..., k_p).
    by_rows : accumulated derivative of the nuclear norm with respect to Z.
    """

    rows: Array
    frames: tuple[Frame, ...]
    Z: Array
    by_rows: Array

    def backpropagate(self) -> None:
        """Add to every attribute's frame the derivative with respect to its ``F``, shape (n, k)."""
        for axis, frame in enumerate(self.frames):
            out = contract(
                self.rows, [None if a == axis else f.F for a, f in enumerate(self.frames)], 1
            )
            other_axes = tuple(a for a in range(out.ndim) if a != axis + 1)
            # Z is linear in the matrix F of every axis.  If two attributes have the same frame, the
            # derivatives for both axes are added to it.
            frame.by_F += group_axes(out, [other_axes, (axis + 1,)]).T @ group_axes(
                self.by_rows, [other_axes, (axis + 1,)]
            )


class State:
    """All queries for fixed weights of the cells, represented in functions of every attribute.

    Frames of attributes and parts on several attributes are computed when they are first used.

    Parameters
    ----------
    linked_queries : the workload, reduced to attributes whose optimal weights are not known to be
        uniform.
    s : for every role (class of equivalent attributes), square roots of the weights, shape (n,).
    functions : for every role, functions of the cells in order of importance, shape (n, n).
    derivative : whether derivatives are computed.
    """

    def __init__(
        self,
        linked_queries: LinkedQueries,
        s: Mapping[Role, Array],
        functions: Mapping[Role, Array],
        derivative: bool,
    ) -> None:
        self.linked_queries, self.s, self.functions, self.derivative = (
            linked_queries,
            s,
            functions,
            derivative,
        )
        self.frames: dict[tuple[Role, int], Frame] = {}
        self.joints: dict[Any, Joint] = {}

    def frame(self, role: Role, k: int) -> Frame:
        """Return the frame with k functions that all attributes of one role share."""
        if (role, k) not in self.frames:
            families = {
                key: self.linked_queries.rows[key]
                for key in self.linked_queries.singles.get(role, ())
            }
            self.frames[role, k] = Frame(self.s[role], self.functions[role][:, :k], families)
        return self.frames[role, k]

    def joint(self, key: Key, places: tuple[tuple[Role, int], ...]) -> Joint:
        """Return the queries of a part, written in basis functions of each attribute.

        A part holds queries of one family, here on several attributes.  ``places`` has the pair
        (role, number of basis functions) of each attribute, as in `frame`.
        """
        if (key, places) not in self.joints:
            frames = tuple(self.frame(*place) for place in places)
            rows = self.linked_queries.rows[key].reshape(-1, *(len(f.s) for f in frames))
            Z = contract(rows, [frame.F for frame in frames], 1)
            self.joints[key, places] = Joint(
                rows=rows, frames=frames, Z=Z, by_rows=np.zeros(Z.shape)
            )
        return self.joints[key, places]

    def by_s(self) -> dict[Role, Array]:
        """Return for every role the derivative of the nuclear norm with respect to its ``s``."""
        for joint in self.joints.values():
            joint.backpropagate()
        out = {role: np.zeros(len(s)) for role, s in self.s.items()}
        for (role, _), frame in self.frames.items():
            out[role] += frame.by_s()
        return out


# Products of queries in which every attribute of a set T has a part of its own.  The outer key
# holds the keys of these parts, the inner key the remaining parts of the product; the value is its
# weight.
TermsByKeys = dict[tuple[Key, ...], dict[Pieces, float]]
# function that takes the derivative of the result with respect to one norm, and adds to the `State`
# the derivatives with respect to R, C, t and Z that follow from it
Backpropagate = Callable[[float], None]


@dataclass(frozen=True, kw_only=True, eq=False)
class Dense:
    """Structure of the matrix M_T for one set T of attributes.

    The queries on an attribute of T are replaced by a scalar t, the nuclear norm of what the basis
    functions K do not represent.

    Attributes
    ----------
    outside : the attributes of T with the keys of their query families.
    order : order of the matrix.
    terms : tuples (weight, parts, index), one per summand of M_T.  The summand is ``weight`` times
        the Kronecker product of the Grams of ``parts``; ``index`` holds its rows (and columns) in
        M_T.
    """

    outside: tuple[tuple[str, Key], ...]
    order: int
    terms: list[tuple[float, Pieces, Index]]


class Excitations:
    """Lower bound on the nuclear norm of one link (problem on the free attributes of a workload).

    It is computed from one dense matrix M_T per set T of attributes whose queries are represented
    by a scalar t instead of basis functions.

    Parameters
    ----------
    linked_queries, link : the reduced workload and one of its links.
    functions : number k of basis functions of every attribute, including the constant one.
    """

    def __init__(
        self, linked_queries: LinkedQueries, link: Link, functions: Mapping[str, int]
    ) -> None:
        self.linked_queries, self.k = linked_queries, functions
        self.frame_keys = {name: (linked_queries.roles[name], k) for name, k in functions.items()}
        terms_by_set: dict[Space, TermsByKeys] = {}
        for pieces, weight in link.terms.items():
            # The scalar t stands for what the functions do not represent of a part's queries.  Only
            # a part on one attribute with fewer functions than cells has this scalar.
            reducible = [
                (names, key)
                for names, key in pieces
                if len(names) == 1
                and self.k[names[0]] < linked_queries.sizes[linked_queries.roles[names[0]]]
            ]
            for count in range(len(reducible) + 1):
                for outside in itertools.combinations(reducible, count):
                    outside = tuple(sorted(outside, key=lambda part: part[0]))
                    T = tuple(names[0] for names, _ in outside)
                    terms_by_keys = terms_by_set.setdefault(T, {})
                    terms = terms_by_keys.setdefault(tuple(key for _, key in outside), {})
                    other_parts = tuple(part for part in pieces if part not in outside)
                    terms[other_parts] = terms.get(other_parts, 0.0) + weight
        counted_sets = [(1, item) for item in terms_by_set.items()]
        if max(functions.values(), default=1) == 1:
            counted_sets = self._count_equal_sets(terms_by_set)
        # pairs: the number of equal sets T, and the matrices M_T, one per choice of families on T
        self.sums = [
            (
                count,
                [
                    self._dense(tuple(zip(T, keys, strict=True)), terms)
                    for keys, terms in by_keys.items()
                ],
            )
            for count, (T, by_keys) in counted_sets
        ]

    def _count_equal_sets(
        self, terms_by_set: Mapping[Space, TermsByKeys]
    ) -> list[tuple[int, tuple[Space, TermsByKeys]]]:
        """Group the sets T that are equal up to attribute names into classes.

        Returns for every class the number of its sets and the first of them with its terms.
        """
        roles = self.linked_queries.roles
        classes: dict[Any, tuple[int, tuple[Space, TermsByKeys]]] = {}

        def keys_by_role(names: Space, keys: Iterable[Key]) -> Any:
            return tuple(sorted(zip((roles[name] for name in names), keys, strict=True)))

        for T, by_keys in terms_by_set.items():
            signature = []
            for keys, terms in by_keys.items():
                weights: dict[Any, float] = {}
                for pieces, weight in terms.items():
                    pieces_key = tuple(
                        sorted((tuple(roles[name] for name in names), key) for names, key in pieces)
                    )
                    weights[pieces_key] = weights.get(pieces_key, 0.0) + weight
                signature.append((keys_by_role(T, keys), tuple(sorted(weights.items()))))
            class_key = tuple(sorted(signature))
            count, first = classes.get(class_key, (0, (T, by_keys)))
            classes[class_key] = (count + 1, first)
        return list(classes.values())

    def _dense(self, outside: tuple[tuple[str, Key], ...], terms: Mapping[Pieces, float]) -> Dense:
        """Return the structure of M_T.

        ``outside`` lists the attributes of T with the keys of their families; ``terms`` maps
        products of parts on other attributes to weights.
        """
        # first row of the block of every excitation (set of attributes)
        offsets: dict[Space, int] = {}
        order, out = 0, []
        for pieces, weight in terms.items():
            names = [name for part, _ in pieces for name in part]
            # The row of M_T for every choice of a function of each attribute.  In an excitation,
            # the attributes inside it have any function except the constant, which has index 0.
            index = np.zeros([self.k[name] for name in names], dtype=np.int64)
            for mask in itertools.product((False, True), repeat=len(names)):
                inside = tuple(sorted(itertools.compress(names, mask)))
                shape = [self.k[name] - 1 for name in inside]
                if inside not in offsets:
                    offsets[inside] = order
                    order += math.prod(shape)
                block = (offsets[inside] + np.arange(math.prod(shape))).reshape(shape)
                ordered = [name for name in names if name in inside]
                block = block.transpose([inside.index(name) for name in ordered])
                index[tuple(slice(1, None) if within else 0 for within in mask)] = block
            out.append((weight, pieces, index.ravel()))
        return Dense(outside=outside, order=order, terms=out)

    def value(self, state: State) -> tuple[float, Backpropagate]:
        """Return a lower bound on the nuclear norm, and the function that adds its derivatives."""
        sums = []
        for count, matrices in self.sums:
            norms = [(dense, *self._norm(dense, state)) for dense in matrices]
            total = math.sqrt(math.fsum((t * norm) ** 2 for _, t, norm, _ in norms))
            sums.append((count, total, norms))

        def backpropagate(outer: float) -> None:
            for count, total, norms in sums:
                for dense, t, norm, by_M in norms:
                    if t * norm > 0.0 and by_M is not None:
                        share = outer * count * t * norm / total
                        self._add_derivatives(dense, state, share * t, by_M)
                        for name, key in dense.outside:
                            family = state.frame(*self.frame_keys[name]).families[key]
                            family.by_t += share * t * norm / family.t

        return math.fsum(count * total for count, total, _ in sums), backpropagate

    def _norm(self, dense: Dense, state: State) -> tuple[float, float, Array | None]:
        """Return the nuclear norm for one set T as a factor and a trace, with a derivative.

        Returns
        -------
        t : product of the scalars t of the attributes in T.
        trace : lower bound on tr sqrt(M_T); the norm is t times this trace.
        by_M : derivative of the trace with respect to M_T, or None if `root_trace` computes none.
        """
        t = math.prod(
            state.frame(*self.frame_keys[name]).families[key].t for name, key in dense.outside
        )
        M = np.zeros((dense.order, dense.order))
        if t > 0.0:
            for weight, pieces, index in dense.terms:
                gram = np.full((1, 1), weight)
                for factor in self._grams(pieces, state):
                    gram = np.asarray(np.kron(gram, factor), dtype=float)
                M[np.ix_(index, index)] += gram
        return t, *root_trace(M, state.derivative)

    def _grams(self, pieces: Pieces, state: State) -> list[Array]:
        out = []
        for names, key in pieces:
            if len(names) == 1:
                out.append(state.frame(*self.frame_keys[names[0]]).families[key].C)
            else:
                Z = state.joint(key, tuple(self.frame_keys[name] for name in names)).Z
                Z = Z.reshape(len(Z), -1)
                out.append(Z.T @ Z)
        return out

    def _add_derivatives(self, dense: Dense, state: State, factor: float, by_M: Array) -> None:
        """Add to the state the derivatives with respect to all Grams in M_T.

        ``factor`` times ``by_M`` is the derivative with respect to M_T.
        """
        for weight, pieces, index in dense.terms:
            grams = self._grams(pieces, state)
            block = factor * weight * by_M[np.ix_(index, index)]
            block = block.reshape([len(g) for g in grams] * 2)
            for p, (names, key) in enumerate(pieces):
                # the derivative of a Kronecker product with respect to one factor: contract all
                # other factors
                others = [None if q == p else gram.ravel() for q, gram in enumerate(grams)]
                by_factor = contract(
                    group_axes(block, [(q, q + len(grams)) for q in range(len(grams))]), others
                )
                by_factor = by_factor.reshape(grams[p].shape)
                if len(names) == 1:
                    state.frame(*self.frame_keys[names[0]]).families[key].by_gram += by_factor
                else:
                    joint = state.joint(key, tuple(self.frame_keys[name] for name in names))
                    joint.by_rows += 2.0 * (joint.Z.reshape(len(joint.Z), -1) @ by_factor).reshape(
                        joint.Z.shape
                    )
