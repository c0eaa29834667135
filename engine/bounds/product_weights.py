"""Lower bounds on the nuclear norm of a workload for product weights of the cells.

Notes
-----
**Elimination.** If the Grams of all queries on an attribute are invariant under cyclic shifts of
its cells (marginals, circular ranges, totals), uniform weights of its cells are optimal, by
symmetry.  Then s = mu^(1/2) is an eigenvector of all these Grams, so every query is the sum of two
orthogonal components: its mean over the cells of the attribute, and its deviation from the mean.
The mean gives a factor of the query weights, and the deviation a factor of the nuclear norm.  Such
an attribute is eliminated, unless one query family combines it with another attribute.  A set of
eliminated attributes along which the deviation is taken (and the mean along all other eliminated
attributes) gives one `Subproblem` on the remaining attributes, which are called free.

**One attribute.**  The weights of an attribute are represented by a few functions of its cells:

    mu, s        weights of the cells with sum 1, and their square roots; D = diag(mu)
    K            D^(1/2) times k functions of the cells: orthonormal columns, the first one s;
                 shape (n, k)
    Y            square root of H = D^(1/2) W^T W D^(1/2) for the queries W of one family
    R = K^T Y K  the queries in the basis K; row and column 0 belong to s; C = R^2
    t            nuclear norm of Y on the orthogonal complement of K

The two blocks of Y between K and its orthogonal complement are omitted: a pinching, which cannot
increase a nuclear norm.  For a single group nothing is lost, because the trace of Y is the sum of
the traces of the two remaining blocks.

**Several attributes.**  On every attribute either the block of Y on K is taken, or the block on the
complement, which is replaced by the scalar t.  Let T be the set of the attributes with the scalar.
On the other attributes, the Gram in the basis functions is

    M_T = sum over products A containing T of weight_A (x)_{i in A, not in T} C_i (x) s s^T.

Its rows and columns are grouped by the set of the attributes on which a function other than the
constant s is taken.  Products with different families on T have one matrix M_T for each combination
of families.  The queries of these matrices are stacked, and the nuclear norm of a stack is at least
the root of the sum of the squared norms of its members.

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import scipy

from engine._arrays import Array, Index
from engine._threads import threads_for
from engine.residuals import Space, contract, group_axes
from engine.residuals.decomposition import has_identity_gram, interval_gram, part_rows
from engine.residuals.interval_solver import IntervalGram
from engine.residuals.operators import ScaledIdentity
from engine.workload import Group, Part, Workload, joint_part

# The eigenvalues of a matrix of order n are lowered by this factor times (n + 100) times the
# machine epsilon times the largest eigenvalue.  The actual rounding errors of sums and of LAPACK
# would need a factor of about 1 only.
EIGENVALUE_ERROR_FACTOR = 16.0
# Every bound is multiplied by this factor.  It covers the rounding errors of sums and products, and
# the deviation of computed basis functions from exact orthonormality.
ROUNDING_FACTOR = 1.0 - 1e-7
# eigenvalues below this share of the largest are left out of the derivative of a trace
EIGENVALUE_CUTOFF = 1e-11


def root_trace(
    matrix: Array, derivative: bool = True, size: float = 0.0
) -> tuple[float, Array | None]:
    """Return a lower bound on tr sqrt(M) of a symmetric M >= 0, and the derivative of the trace.

    Parameters
    ----------
    matrix : M, shape (n, n).
    derivative : if False, the second result is None, except for n = 1.  Otherwise it is the
        derivative of tr sqrt(M) with respect to M, shape (n, n).  Negligible eigenvalues of M are
        left out of the derivative.
    size : upper bound on the spectral norm of the terms of which M is a sum.  It is needed if terms
        cancel, because the rounding errors of the terms are then large relative to M.

    >>> round(root_trace(np.diag([4.0, 9.0]))[0], 9)
    5.0
    """
    if len(matrix) == 1:
        value = _sum_of_roots(matrix[0], size) if size else float(np.sqrt(max(matrix[0, 0], 0.0)))
        return value, np.full((1, 1), 0.5 / value if value > 0.0 else 0.0)
    with threads_for(len(matrix)):
        if not derivative:
            eigenvalues = scipy.linalg.eigvalsh(matrix, check_finite=False)
            return _sum_of_roots(np.asarray(eigenvalues, dtype=float), size), None
        eigenvalues, U = scipy.linalg.eigh(matrix, check_finite=False)
        used = eigenvalues > max(EIGENVALUE_CUTOFF * eigenvalues[-1], 1e-300)
        U = U[:, used]
        return _sum_of_roots(eigenvalues, size), (U * (0.5 / np.sqrt(eigenvalues[used]))) @ U.T


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

    ``eigenvalues`` ascend.  Their rounding error is proportional to the largest eigenvalue, or to
    ``size`` if it is larger.  ``size`` is an upper bound on the spectral norm of the terms of which
    the matrix is a sum.

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


def _sum_of_roots(eigenvalues: Array, size: float) -> float:
    return float(np.sqrt(lower_eigenvalues(eigenvalues, size)).sum())


def error_bound(norm: float, law: str = "gaussian") -> float:
    """Return the lower bound on the weighted squared error that follows from a nuclear norm.

    ``norm`` is a lower bound on the nuclear norm, in counts.  The result is in counts^2, at privacy
    cost 1 for Gaussian noise and at epsilon 1 for Laplace noise (``law`` "laplace").  The bound for
    Laplace noise is twice the bound for Gaussian noise, because the L1 sensitivity is at least the
    Euclidean sensitivity, and Laplace noise of scale 1 has variance 2.
    """
    return norm * norm * ROUNDING_FACTOR * (2.0 if law == "laplace" else 1.0)


# Queries on two attributes count as symmetric if the sum of their squared answers is the same on a
# random table of values and on the transposed table, for this number of random tables.
RANDOM_TABLES = 3
# A group of product queries is left out of the bound if one factor on several attributes has query
# rows with more entries than this.
MAX_PART_ENTRIES = 4_000_000
# index of a class of equivalent attributes, which have equal weights of cells
AttributeClass = int
# index of a distinct matrix of query rows; product factors with equal rows have the same key
Key = int
# product of queries on disjoint sets of attributes: pairs (attributes of a factor, key of the
# factor)
Product = tuple[tuple[Space, Key], ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Subproblem:
    """Queries on the free attributes of a workload, for one set of eliminated attributes.

    Along the attributes of this set, only the deviation of every query from its mean is taken, and
    along all other eliminated attributes only the mean.  ``terms`` maps products of query families
    on free attributes to weights.  The factors of the means are included in these weights; the
    factors of the deviations are in `ReducedWorkload.sums`.
    """

    terms: dict[Product, float]

    @cached_property
    def names(self) -> Space:
        """Free attributes of the queries, sorted."""
        return tuple(
            sorted({name for product in self.terms for names, _ in product for name in names})
        )

    def count_subsets(self, sizes: Mapping[str, int]) -> Counter[tuple[int, ...]]:
        """Count the attribute sets contained in at least one product, by sizes of attributes.

        A key of the result lists the sizes of the attributes of a set in ascending order.
        ``sizes`` maps free attributes to their numbers of cells.
        """
        subsets: set[Space] = set()
        for product in self.terms:
            names = sorted(name for part_names, _ in product for name in part_names)
            for count in range(len(names) + 1):
                subsets.update(itertools.combinations(names, count))
        return Counter(tuple(sorted(sizes[name] for name in subset)) for subset in subsets)


@dataclass(kw_only=True, eq=False)
class ReducedWorkload:
    """A workload after the elimination of attributes whose optimal weights are uniform.

    The remaining attributes are called free.

    Attributes
    ----------
    subproblems : queries on the free attributes, without duplicates.
    sums : pairs (factor, coefficients).  The nuclear norm of the workload is the sum over all pairs
        of factor * sqrt(sum over i of (coefficients[i] * norm of subproblems[i])^2).
    class_of : mapping from free attributes to indices of their equivalence classes; attributes of
        one class have equal weights of cells.
    cells : mapping from equivalence classes to the number of cells of each attribute.
    rows : mapping from keys of parts (product factors) to rows with the same Gram as the queries,
        shape (rows, cells of the part).
    is_symmetric : mapping from keys of parts on two attributes to whether the queries stay the same
        if the two attributes are swapped.
    single_parts : mapping from equivalence classes to the keys of the parts on one of their
        attributes alone.
    joint_parts : mapping from keys of parts on several attributes to the equivalence classes of
        these attributes.  If several groups contain the part, the classes are those of the
        attributes of the first group.
    intervals : mapping from keys of marginal, prefix, suffix and range parts on one attribute to
        their `IntervalGram`, which has one weight per kind of query.
    """

    subproblems: list[Subproblem]
    sums: list[tuple[float, dict[int, float]]]
    class_of: dict[str, AttributeClass]
    cells: dict[AttributeClass, int]
    rows: dict[Key, Array]
    is_symmetric: dict[Key, bool]
    single_parts: dict[AttributeClass, list[Key]] = field(default_factory=dict)
    joint_parts: dict[Key, tuple[AttributeClass, ...]] = field(default_factory=dict)
    intervals: dict[Key, IntervalGram] = field(default_factory=dict)

    def cells_of(self, name: str) -> int:
        """Return the number of cells of a free attribute."""
        return self.cells[self.class_of[name]]


class _Queries:
    """Groups of a workload as weighted products of query families, and the rows of each family.

    Attributes
    ----------
    groups : pairs of a weight and a product.
    parts : key -> query family.
    rows : key -> query rows; families in ``identity_sizes`` are left out.
    identity_sizes : key of a marginal on a wide attribute -> number of its cells.  The query rows
        of these marginals are a large identity matrix, which is formed only for free attributes.
    intervals : key -> Gram of intervals, for families that have one.
    """

    def __init__(self) -> None:
        self.groups: list[tuple[float, Product]] = []
        self.parts: dict[Key, Part] = {}
        self.rows: dict[Key, Array] = {}
        self.identity_sizes: dict[Key, int] = {}
        self.intervals: dict[Key, IntervalGram] = {}
        self._keys: dict[Any, Key] = {}  # by content of the query rows

    def add(self, group: Group) -> None:
        """Add a group, unless its weight is 0 or a family on several attributes is too large.

        A family is too large if its query rows have more than `MAX_PART_ENTRIES` entries.
        """
        query_weights, weight = group.query_weights, group.weight
        # a group without query families has one query (the total), so its query weight multiplies
        # the group weight
        if query_weights is not None and not group.parts:
            weight, query_weights = weight * float(query_weights[0]), None
        parts: Sequence[Part] = (
            group.parts if query_weights is None or len(group.parts) == 1 else (joint_part(group),)
        )
        too_large = any(
            len(p.axes) > 1 and p.count * math.prod(p.sizes) > MAX_PART_ENTRIES for p in parts
        )
        if not group.is_weighted or too_large:
            return
        named_parts: list[tuple[Space, Key]] = [
            (tuple(group.attributes[a] for a in part.axes), self._key_of(part, query_weights))
            for part in parts
        ]
        self.groups.append((weight, tuple(sorted(named_parts))))

    def _key_of(self, part: Part, query_weights: Array | None) -> Key:
        """Return the key of a family with these weights of queries; store a new family."""
        weight_bytes = None if query_weights is None else query_weights.tobytes()
        key = self._keys.setdefault((part.key, weight_bytes), len(self._keys))
        if key not in self.parts:
            self.parts[key] = part
            gram = interval_gram(part, query_weights) if part.cells > 1 else None
            if gram is not None:
                self.intervals[key] = gram
            if has_identity_gram(part, query_weights):
                self.identity_sizes[key] = part.cells
            else:
                self.rows[key] = part_rows(part, query_weights)
        return key


def reduce_workload(workload: Workload) -> ReducedWorkload:
    """Eliminate the attributes whose optimal weights are uniform, and return the reduced workload.

    Groups of weight 0 are left out, and so are groups with a product factor on several attributes
    whose query rows have more than `MAX_PART_ENTRIES` entries.  Leaving out groups can only lower
    the bound.
    """
    collected = _Queries()
    for group in workload.groups:
        collected.add(group)
    groups, rows, identity_sizes = collected.groups, collected.rows, collected.identity_sizes
    joint_attributes = {
        name for _, product in groups for names, _ in product if len(names) > 1 for name in names
    }
    uniform_factors = _UniformFactors(rows, identity_sizes)
    attributes_with_varying_weights = {
        names[0]
        for _, product in groups
        for names, key in product
        if len(names) == 1 and uniform_factors.factors_of(key) is None
    }
    free = joint_attributes | attributes_with_varying_weights
    rows |= {
        key: ScaledIdentity(order=identity_sizes[key]).dense()
        for _, product in groups
        for names, key in product
        if names[0] in free and key in identity_sizes
    }
    is_symmetric = {
        key: _is_symmetric_pair(rows[key], part.sizes)
        for key, part in collected.parts.items()
        if len(part.sizes) == 2
    }
    class_of = _equivalence_classes(groups, free, is_symmetric, workload)
    subproblems, sums = _subproblems(
        _terms_by_deviations(groups, free, uniform_factors), uniform_factors
    )
    out = ReducedWorkload(
        subproblems=subproblems,
        sums=sums,
        class_of=class_of,
        cells={
            attribute_class: workload.schema[name].size
            for name, attribute_class in class_of.items()
        },
        rows=rows,
        is_symmetric=is_symmetric,
        intervals=collected.intervals,
    )
    for _, product in groups:
        for names, key in product:
            if len(names) > 1:
                out.joint_parts.setdefault(key, tuple(class_of[name] for name in names))
            elif names[0] in free:
                keys_of_class = out.single_parts.setdefault(class_of[names[0]], [])
                if key not in keys_of_class:
                    keys_of_class.append(key)
    return out


def _is_symmetric_pair(rows: Array, sizes: Sequence[int]) -> bool:
    """Return whether the Gram of query rows stays the same when their two attributes are swapped.

    The sums of the squared answers on random tables of values and on the transposed tables are
    compared, up to rounding errors.
    """
    if sizes[0] != sizes[1]:
        return False
    tables = np.random.default_rng(0).standard_normal((RANDOM_TABLES, *sizes))
    squared_answers, transposed_squared_answers = (
        np.sum((values.reshape(RANDOM_TABLES, -1) @ rows.T) ** 2, axis=1)
        for values in (tables, tables.transpose(0, 2, 1))
    )
    return bool(np.allclose(squared_answers, transposed_squared_answers, rtol=1e-12, atol=0.0))


def _equivalence_classes(
    groups: list[tuple[float, Product]],
    free: set[str],
    is_symmetric: Mapping[Key, bool],
    workload: Workload,
) -> dict[str, AttributeClass]:
    """Return the index of the equivalence class of every free attribute.

    Two attributes are equivalent if they have the same number of cells and occur in the same way in
    all groups.  An occurrence in a part (product factor) of a group is described by four values:
    the key of the part, the index of the attribute in the part (0 if the part is symmetric), the
    weight of the group, and the keys of all parts of the group.
    """
    uses: dict[str, list[Any]] = {name: [] for name in workload.schema.names if name in free}
    for weight, product in groups:
        product_keys = tuple(sorted(key for _, key in product))
        for names, key in product:
            for position, name in enumerate(names):
                if name in free:
                    axis = 0 if is_symmetric.get(key) else position
                    uses[name].append((key, axis, weight, product_keys))
    class_numbers: dict[Any, AttributeClass] = {}
    return {
        name: class_numbers.setdefault(
            (workload.schema[name].size, tuple(sorted(uses_of_name))), len(class_numbers)
        )
        for name, uses_of_name in uses.items()
    }


class _UniformFactors:
    """Computes the factors of queries on one attribute under uniform weights of its cells.

    A query is the sum of its mean over the cells and the deviation from the mean.  The mean gives a
    factor of the query weights, the deviation a factor of the nuclear norm.
    """

    def __init__(self, rows: dict[Key, Array], identity_sizes: Mapping[Key, int]) -> None:
        self.rows = rows
        # the Gram of a marginal is I, and I / n has all eigenvalues 1/n
        self.factors: dict[Key, tuple[float, float] | None] = {
            key: (1.0 / n, (n - 1) / math.sqrt(n)) for key, n in identity_sizes.items()
        }

    def factors_of(self, key: Key) -> tuple[float, float] | None:
        """Return the factors (mean, deviation) of a family on one attribute of n cells.

        ``mean`` is the eigenvalue of Gram / n for the constant vector, and ``deviation`` the sum of
        the square roots of all other eigenvalues.  The result is None if the Gram is not circulant,
        because uniform weights may not be optimal for such a Gram.
        """
        if key not in self.factors:
            gram = self.rows[key].T @ self.rows[key]
            n = len(gram)
            circulant = np.allclose(
                gram, np.roll(gram, (1, 1), (0, 1)), rtol=0, atol=1e-12 * np.abs(gram).max()
            )
            # Every row of a circulant matrix has the same entries in another order.  So all rows
            # have the same sum, and the constant vector is an exact eigenvector.
            scaled_gram = scipy.linalg.circulant(gram[0]) / n
            mean = float(scaled_gram[0].sum())
            deviation = root_trace(scaled_gram - mean / n)[0]
            self.factors[key] = (mean, deviation) if circulant else None
        return self.factors[key]


def _terms_by_deviations(
    groups: list[tuple[float, Product]], free: set[str], uniform_factors: _UniformFactors
) -> dict[Product, dict[Product, float]]:
    """Split the queries on eliminated attributes into means and deviations.

    Returns one dictionary for every set of families on eliminated attributes along which the
    deviation is taken, not the mean.  The dictionary maps products of families on free attributes
    to weights.  The weights include the factors of the means along all other eliminated attributes.
    """
    terms_by_deviations: dict[Product, dict[Product, float]] = {}
    for weight, product in groups:
        # all attributes of a product factor on several attributes are free
        free_parts = tuple((names, key) for names, key in product if names[0] in free)
        eliminated = [(names, key) for names, key in product if names[0] not in free]
        factors = [uniform_factors.factors[key] or (0.0, 0.0) for _, key in eliminated]
        # all choices between mean (False) and deviation (True) on every eliminated attribute
        for choices in itertools.product((False, True), repeat=len(eliminated)):
            means = [mean for mean, _ in itertools.compress(factors, (not c for c in choices))]
            deviations = [deviation for _, deviation in itertools.compress(factors, choices)]
            if all(deviation > 0.0 for deviation in deviations):
                deviation_parts = tuple(itertools.compress(eliminated, choices))
                terms = terms_by_deviations.setdefault(deviation_parts, {})
                terms[free_parts] = terms.get(free_parts, 0.0) + weight * math.prod(means)
    return terms_by_deviations


def _subproblems(
    terms_by_deviations: dict[Product, dict[Product, float]], uniform_factors: _UniformFactors
) -> tuple[list[Subproblem], list[tuple[float, dict[int, float]]]]:
    """Return `ReducedWorkload.subproblems` and `ReducedWorkload.sums`.

    ``terms_by_deviations`` is the result of `_terms_by_deviations`.  A set of eliminated attributes
    has one or more subproblems.  All sets with the same single subproblem share one pair of
    `ReducedWorkload.sums`.  The factor of this pair is the sum of the factors of the sets.
    """
    number_of_content: dict[Any, int] = {}
    subproblems: list[Subproblem] = []
    coefficients_by_attributes: dict[Space, dict[int, float]] = {}
    for deviation_parts, terms in terms_by_deviations.items():
        content = frozenset(terms.items())
        if content not in number_of_content:
            number_of_content[content] = len(subproblems)
            subproblems.append(Subproblem(terms=terms))
        number = number_of_content[content]
        # entry 1 of ``factors`` is the factor of the deviation
        factor = math.prod(
            (uniform_factors.factors[key] or (0.0, 0.0))[1] for _, key in deviation_parts
        )
        attributes = tuple(names[0] for names, _ in deviation_parts)
        coefficients = coefficients_by_attributes.setdefault(attributes, {})
        # Different queries on the same attributes are stacked.  The nuclear norm of a stack of X
        # and Y is at least the root of |X|_*^2 + |Y|_*^2.
        coefficients[number] = math.hypot(coefficients.get(number, 0.0), factor)
    single_factors: dict[int, float] = {}
    sums: list[tuple[float, dict[int, float]]] = []
    for coefficients in coefficients_by_attributes.values():
        if len(coefficients) == 1:
            ((number, factor),) = coefficients.items()
            single_factors[number] = single_factors.get(number, 0.0) + factor
        else:
            sums.append((1.0, coefficients))
    return subproblems, sums + [
        (factor, {number: 1.0}) for number, factor in single_factors.items()
    ]


# The derivative of the matrix root Y divides by sums of two eigenvalues of Y.  Quotients whose
# divisor is below this share of the largest eigenvalue are replaced by 0.
ROOT_CUTOFF = 1e-6


@dataclass(kw_only=True, eq=False)
class FamilyRoot:
    """Queries of one family on one attribute, in the basis K of a `Frame`.

    Attributes
    ----------
    gram : Gram W^T W of the queries, shape (n, n).
    roots, U : eigenvalues and eigenvectors of Y, the square root of D^(1/2) W^T W D^(1/2).
    R, C : R = K^T Y K and C = R^2, shape (k, k).
    t : nuclear norm of Y on the orthogonal complement of K.
    by_root, by_square, by_t : accumulated derivatives of the nuclear norm of the workload with
        respect to R, C and t.
    """

    gram: Array
    roots: Array
    U: Array
    R: Array
    C: Array
    t: float
    by_root: Array
    by_square: Array
    by_t: float = 0.0


class Frame:
    """Orthonormal basis K on the cells of one attribute, and the queries on it in this basis.

    Derivatives of the nuclear norm of the workload are accumulated in `by_F` and in `families`.
    From these derivatives, `by_s` computes the derivative with respect to ``s``.

    Parameters
    ----------
    s : square roots of the weights of the n cells, shape (n,), with Euclidean norm 1.
    functions : functions of the cells that span the basis, shape (n, k); the first one is constant.
    families : mapping from keys of query families on the attribute to query rows, shape (m, n).

    Attributes
    ----------
    K : the basis, shape (n, k).
    F : D^(1/2) K, shape (n, k).  Query rows W have the coefficients W F in the basis.
    by_F : accumulated derivative of the nuclear norm with respect to F.
    families : mapping from keys of query families to their queries in the basis.
    """

    def __init__(self, s: Array, functions: Array, families: Mapping[Key, Array]) -> None:
        self.s = s
        K, _ = np.linalg.qr(functions * s[:, None])
        # The signs of the columns of a QR decomposition are arbitrary.  Each column gets the sign
        # of its function on the first cell.
        self.K = K * np.where(functions[0] * K[0] < 0.0, -1.0, 1.0)
        self.K[:, 0] = s
        self.F = self.K * s[:, None]
        self.by_F = np.zeros_like(self.F)
        self.families = {key: self._family(rows) for key, rows in families.items()}

    def _family(self, rows: Array) -> FamilyRoot:
        """Express query rows of shape (m, n) in the basis K; their derivatives begin at 0."""
        # ``roots`` are the eigenvalues of Y, the square root of D^(1/2) W^T W D^(1/2) for the query
        # rows W and the cell weights D.
        gram = rows.T @ rows
        with threads_for(len(gram)):
            eigenvalues, U = scipy.linalg.eigh(gram * self.s[:, None] * self.s, check_finite=False)
        roots = np.sqrt(lower_eigenvalues(eigenvalues))
        K_in_eigenbasis = U.T @ self.K
        R = K_in_eigenbasis.T @ (K_in_eigenbasis * roots[:, None])
        # The trace of Y on the orthogonal complement of K is tr Y - tr R.  For k = n this
        # complement is {0}.
        t = max(float(roots.sum() - np.trace(R)), 0.0) if len(R) < len(gram) else 0.0
        return FamilyRoot(
            gram=gram,
            roots=roots,
            U=U,
            R=R,
            C=R @ R,
            t=t,
            by_root=np.zeros_like(R),
            by_square=np.zeros_like(R),
        )

    def by_s(self) -> Array:
        """Return the derivative of the nuclear norm with respect to ``s``, shape (n,).

        The component of the derivative along ``s`` is removed, because the norm of ``s`` is fixed
        at 1.
        """
        by_K = self.s[:, None] * self.by_F
        by_s = np.einsum("nk,nk->n", self.by_F, self.K)
        for family in self.families.values():
            by_s += self._add_family_derivatives(family, by_K)
        Psi = self.K / self.s[:, None]  # the basis functions of the cells
        by_s += np.einsum("nk,nk->n", by_K, Psi)
        # K is the orthonormal factor of a QR decomposition of diag(s) Psi.  A change ds of s gives
        # E = diag(ds) Psi and dK = E - K X.  The matrix X is upper triangular: its diagonal is that
        # of K^T E, and its other entries are twice those of K^T E.
        half = np.triu(self.K.T @ by_K)
        half[np.diag_indices(len(half))] *= 0.5
        by_s -= 2.0 * self.s * np.einsum("nk,nk->n", Psi @ half, Psi)
        return np.asarray(by_s - (by_s @ self.s) * self.s)

    def _add_family_derivatives(self, family: FamilyRoot, by_K: Array) -> Array:
        """Return one family's derivative with respect to ``s`` at fixed K, shape (n,).

        The derivative with respect to K is added to ``by_K``, shape (n, k).  With S = diag(s), Y is
        the square root of H = S ``family.gram`` S, and R = K^T Y K.
        """
        # C = R^2 and t = tr Y - tr R depend on R, so their derivatives are added to the one for R.
        by_R = family.by_root + family.R @ family.by_square + family.by_square @ family.R
        by_R = 0.5 * (by_R + by_R.T)
        by_R[np.diag_indices(len(by_R))] -= family.by_t
        # R = K^T Y K depends on K and on Y.  ``by_Y`` is in the eigenbasis of Y.
        K_in_eigenbasis = family.U.T @ self.K
        by_K += 2.0 * family.U @ (family.roots[:, None] * K_in_eigenbasis) @ by_R
        by_Y = K_in_eigenbasis @ by_R @ K_in_eigenbasis.T
        by_Y[np.diag_indices(len(by_Y))] += family.by_t
        # Y^2 = H, so dY solves Y dY + dY Y = dH.  In the eigenbasis of Y the solution divides each
        # entry of dH by the sum of two eigenvalues.
        sums = family.roots[:, None] + family.roots
        by_H = np.divide(
            by_Y, sums, out=np.zeros_like(by_Y), where=sums > ROOT_CUTOFF * family.roots[-1]
        )
        by_s: Array = 2.0 * ((family.U @ by_H @ family.U.T) * family.gram) @ self.s
        return by_s


@dataclass(kw_only=True, eq=False)
class Joint:
    """Queries of one family on p attributes, in the product of the attributes' bases K.

    Attributes
    ----------
    rows : query rows on the cells, shape (m, n_1, ..., n_p).
    frames : the basis of every attribute.
    Z : coefficients of the query rows in the bases, shape (m, k_1, ..., k_p).
    by_coefficients : accumulated derivative of the nuclear norm with respect to Z.
    """

    rows: Array
    frames: tuple[Frame, ...]
    Z: Array
    by_coefficients: Array

    def backpropagate(self) -> None:
        """Add the derivatives that follow from ``by_coefficients`` to ``by_F`` of every frame."""
        for axis, frame in enumerate(self.frames):
            # Z is ``coefficient`` times the matrix F of this axis. A frame that several attributes
            # share gets the sum of the derivatives for their axes.
            coefficient = contract(
                self.rows, [None if a == axis else f.F for a, f in enumerate(self.frames)], 1
            )
            other_axes = tuple(a for a in range(coefficient.ndim) if a != axis + 1)
            frame.by_F += group_axes(coefficient, [other_axes, (axis + 1,)]).T @ group_axes(
                self.by_coefficients, [other_axes, (axis + 1,)]
            )


class State:
    """The queries on free attributes in one basis K per attribute, at fixed weights of the cells.

    A basis, and the queries in this basis, are computed when they are first used.

    Parameters
    ----------
    reduced_workload : the workload after the elimination of attributes with uniform weights.
    s : square roots of the weights of the cells, shape (n,), for every class of equivalent
        attributes.
    functions : n functions of the cells as columns, shape (n, n), for every class of equivalent
        attributes.  The first k columns, each times ``s``, span the basis of k functions.
    derivative : whether derivatives are computed.
    """

    def __init__(
        self,
        reduced_workload: ReducedWorkload,
        s: Mapping[AttributeClass, Array],
        functions: Mapping[AttributeClass, Array],
        derivative: bool,
    ) -> None:
        self.reduced_workload, self.s, self.functions, self.derivative = (
            reduced_workload,
            s,
            functions,
            derivative,
        )
        self.frames: dict[tuple[AttributeClass, int], Frame] = {}
        self.joints: dict[Any, Joint] = {}

    def frame(self, attribute_class: AttributeClass, k: int) -> Frame:
        """Return the basis for an attribute of an equivalence class, with k functions."""
        if (attribute_class, k) not in self.frames:
            families = {
                key: self.reduced_workload.rows[key]
                for key in self.reduced_workload.single_parts.get(attribute_class, ())
            }
            self.frames[attribute_class, k] = Frame(
                self.s[attribute_class], self.functions[attribute_class][:, :k], families
            )
        return self.frames[attribute_class, k]

    def joint(self, key: Key, bases: tuple[tuple[AttributeClass, int], ...]) -> Joint:
        """Return the queries of a family on several attributes, in the bases of these attributes.

        ``bases`` has one pair per attribute: its equivalence class and its number of basis
        functions, the arguments of `frame`.
        """
        if (key, bases) not in self.joints:
            frames = tuple(self.frame(*basis) for basis in bases)
            rows = self.reduced_workload.rows[key].reshape(-1, *(len(f.s) for f in frames))
            Z = contract(rows, [frame.F for frame in frames], 1)
            self.joints[key, bases] = Joint(
                rows=rows, frames=frames, Z=Z, by_coefficients=np.zeros(Z.shape)
            )
        return self.joints[key, bases]

    def by_s(self) -> dict[AttributeClass, Array]:
        """Return the derivative of the nuclear norm with respect to ``s`` of every class."""
        for joint in self.joints.values():
            joint.backpropagate()
        out = {attribute_class: np.zeros(len(s)) for attribute_class, s in self.s.items()}
        for (attribute_class, _), frame in self.frames.items():
            out[attribute_class] += frame.by_s()
        return out


# Weights of the product queries that have a factor on each single attribute of a set T. The outer
# key has the keys of these factors, in the order of T; the inner key is the product of all other
# factors.
TermsByKeys = dict[tuple[Key, ...], dict[Product, float]]
# Function that adds the derivatives of the final result with respect to R, C, t and Z to the
# `State`. Its argument is the derivative of the final result with respect to the nuclear norm that
# was computed from R, C, t and Z.
Backpropagate = Callable[[float], None]


@dataclass(frozen=True, kw_only=True, eq=False)
class GramLayout:
    """The positions of the summands of the Gram M_T for one set T of attributes.

    Queries on attributes of T are represented by the scalars t, not by basis functions.

    Attributes
    ----------
    scalar_keys : pairs (attribute of T, key of its query family).
    order : number of rows and of columns of M_T.
    terms : tuples (weight, product, index), one per summand of M_T.  A summand is ``weight`` times
        the Kronecker product of the Grams of the families in ``product``.  Its entry (i, j) is
        added to entry (index[i], index[j]) of M_T.
    """

    scalar_keys: tuple[tuple[str, Key], ...]
    order: int
    terms: list[tuple[float, Product, Index]]


class DenseNormBound:
    """Lower bound on the nuclear norm of any `Subproblem`, computed from dense matrices M_T.

    There is one such matrix for every set T of attributes whose queries are represented by the
    scalar t, and for every combination of query families on T.

    Parameters
    ----------
    reduced_workload, subproblem : the reduced workload and one of its subproblems.
    functions : number of basis functions of every attribute, including the constant function.
    """

    def __init__(
        self,
        reduced_workload: ReducedWorkload,
        subproblem: Subproblem,
        functions: Mapping[str, int],
    ) -> None:
        self.reduced_workload, self.functions = reduced_workload, functions
        terms_by_set = self._terms_by_set(subproblem)
        counted_sets = [(1, item) for item in terms_by_set.items()]
        # With one function per attribute, M_T has a single entry, which depends only on the classes
        # of the attributes.
        if max(functions.values(), default=1) == 1:
            counted_sets = self._count_equal_sets(terms_by_set)
        # pairs: number of sets T that are equal up to attribute names, and the layouts of M_T for
        # one of these sets, one layout per combination of query families on T
        self.counted_layouts: list[tuple[int, list[GramLayout]]] = []
        for count, (T, terms_by_keys) in counted_sets:
            layouts = [
                self._layout(tuple(zip(T, keys, strict=True)), terms)
                for keys, terms in terms_by_keys.items()
            ]
            self.counted_layouts.append((count, layouts))

    def _terms_by_set(self, subproblem: Subproblem) -> dict[Space, TermsByKeys]:
        """Map every set T of attributes to the products of queries that have a factor on each of T.

        On each attribute of T the queries are replaced by the scalar t, their nuclear norm outside
        the basis.  The products of one set T are grouped by the keys of their families on T.  Every
        product is listed without its factors on T.
        """
        terms_by_set: dict[Space, TermsByKeys] = {}
        for product, weight in subproblem.terms.items():
            # Only query factors on a single attribute have a scalar t. The scalar is 0 if the basis
            # has as many functions as the attribute has cells.
            reducible_parts = [
                (names, key)
                for names, key in product
                if len(names) == 1
                and self.functions[names[0]] < self.reduced_workload.cells_of(names[0])
            ]
            for count in range(len(reducible_parts) + 1):
                for outside in itertools.combinations(reducible_parts, count):
                    outside = tuple(sorted(outside, key=lambda part: part[0]))
                    T = tuple(names[0] for names, _ in outside)
                    terms_by_keys = terms_by_set.setdefault(T, {})
                    terms = terms_by_keys.setdefault(tuple(key for _, key in outside), {})
                    other_parts = tuple(part for part in product if part not in outside)
                    terms[other_parts] = terms.get(other_parts, 0.0) + weight
        return terms_by_set

    def _count_equal_sets(
        self, terms_by_set: Mapping[Space, TermsByKeys]
    ) -> list[tuple[int, tuple[Space, TermsByKeys]]]:
        """Return the number of attribute sets T of each kind, and one set of the kind.

        Sets are of one kind if their products are equal, with every attribute replaced by its
        equivalence class.  The result has one pair per kind: the number of sets, and the first set
        with its products.
        """
        class_of = self.reduced_workload.class_of
        counted_sets: dict[Any, tuple[int, tuple[Space, TermsByKeys]]] = {}
        for T, terms_by_keys in terms_by_set.items():
            entries_by_class = []
            for keys, terms in terms_by_keys.items():
                weights: dict[Any, float] = {}
                for product, weight in terms.items():
                    classes_of_product = tuple(
                        sorted(
                            (tuple(class_of[name] for name in names), key) for names, key in product
                        )
                    )
                    weights[classes_of_product] = weights.get(classes_of_product, 0.0) + weight
                classes_of_T = (class_of[name] for name in T)
                entries_by_class.append(
                    (
                        tuple(sorted(zip(classes_of_T, keys, strict=True))),
                        tuple(sorted(weights.items())),
                    )
                )
            kind = tuple(sorted(entries_by_class))
            count, first_set = counted_sets.get(kind, (0, (T, terms_by_keys)))
            counted_sets[kind] = (count + 1, first_set)
        return list(counted_sets.values())

    def _layout(
        self, scalar_keys: tuple[tuple[str, Key], ...], terms: Mapping[Product, float]
    ) -> GramLayout:
        """Return the layout of the Gram M_T of a set T of attributes.

        Parameters
        ----------
        scalar_keys : pairs (attribute of T, key of the query family on it).
        terms : product of query families on the other attributes -> its weight.
        """
        # M_T has one block of rows for every set of attributes on which a function other than the
        # constant is taken.  ``first_rows`` has the first row of each block.
        first_rows: dict[Space, int] = {}
        order, rows_of_terms = 0, []
        for product, weight in terms.items():
            names = [name for part_names, _ in product for name in part_names]
            # the row of M_T for every combination of functions, one index per attribute; the
            # constant function has index 0
            index = np.zeros([self.functions[name] for name in names], dtype=np.int64)
            for is_varying in itertools.product((False, True), repeat=len(names)):
                varying = tuple(sorted(itertools.compress(names, is_varying)))
                shape = [self.functions[name] - 1 for name in varying]
                if varying not in first_rows:
                    first_rows[varying] = order
                    order += math.prod(shape)
                block = (first_rows[varying] + np.arange(math.prod(shape))).reshape(shape)
                # blocks have their attributes in sorted order, ``index`` in the order of ``names``
                order_of_names = [name for name in names if name in varying]
                block = block.transpose([varying.index(name) for name in order_of_names])
                index[tuple(slice(1, None) if varies else 0 for varies in is_varying)] = block
            rows_of_terms.append((weight, product, index.ravel()))
        return GramLayout(scalar_keys=scalar_keys, order=order, terms=rows_of_terms)

    def _family(self, state: State, name: str, key: Key) -> FamilyRoot:
        return state.frame(*self._basis(name)).families[key]

    def _joint(self, state: State, names: Space, key: Key) -> Joint:
        return state.joint(key, tuple(self._basis(name) for name in names))

    def _basis(self, name: str) -> tuple[AttributeClass, int]:
        """Return the equivalence class of an attribute, and its number of basis functions."""
        return self.reduced_workload.class_of[name], self.functions[name]

    def value(self, state: State) -> tuple[float, Backpropagate]:
        """Return a lower bound on the nuclear norm at the weights of ``state``.

        The second result is a function that adds the derivatives of the bound to ``state``.
        """
        # One norm t * tr(M^(1/2)) per layout.  The norm of a stack of queries is at least the root
        # of the sum of the squared norms.
        sums = []
        for count, layouts in self.counted_layouts:
            norms = [(layout, *self._norm(layout, state)) for layout in layouts]
            norm_of_stack = math.sqrt(math.fsum((t * trace) ** 2 for _, t, trace, _ in norms))
            sums.append((count, norm_of_stack, norms))

        def backpropagate(by_value: float) -> None:
            for count, norm_of_stack, norms in sums:
                for layout, t, trace, by_M in norms:
                    if t * trace > 0.0 and by_M is not None:
                        # derivative with respect to t * trace; t is the product of the ``family.t``
                        by_norm = by_value * count * t * trace / norm_of_stack
                        self._add_derivatives(layout, state, by_norm * t, by_M)
                        for name, key in layout.scalar_keys:
                            family = self._family(state, name, key)
                            family.by_t += by_norm * t * trace / family.t

        return math.fsum(count * norm for count, norm, _ in sums), backpropagate

    def _norm(self, layout: GramLayout, state: State) -> tuple[float, float, Array | None]:
        """Return two factors of a nuclear norm: the scalars of T, and the trace of the root of M_T.

        Returns
        -------
        t : product of the scalars t of the attributes in T.
        trace : lower bound on tr sqrt(M_T).
        by_M : derivative of the trace with respect to M_T, or None if `root_trace` computes none.
        """
        t = math.prod(self._family(state, name, key).t for name, key in layout.scalar_keys)
        M = np.zeros((layout.order, layout.order))
        if t > 0.0:
            for weight, product, index in layout.terms:
                gram = np.full((1, 1), weight)
                for factor in self._grams(product, state):
                    gram = np.asarray(np.kron(gram, factor), dtype=float)
                M[np.ix_(index, index)] += gram
        return t, *root_trace(M, state.derivative)

    def _grams(self, product: Product, state: State) -> list[Array]:
        """Return the Gram of every factor of a product in the basis functions."""
        grams = []
        for names, key in product:
            if len(names) == 1:
                grams.append(self._family(state, names[0], key).C)
            else:
                Z = self._joint(state, names, key).Z
                Z = Z.reshape(len(Z), -1)
                grams.append(Z.T @ Z)
        return grams

    def _add_derivatives(
        self, layout: GramLayout, state: State, factor: float, by_M: Array
    ) -> None:
        """Add the derivatives with respect to the Grams of all families in M_T to ``state``.

        ``factor`` times ``by_M`` is the derivative of the final result with respect to M_T.
        """
        for weight, product, index in layout.terms:
            grams = self._grams(product, state)
            by_summand = factor * weight * by_M[np.ix_(index, index)]
            by_summand = by_summand.reshape([len(g) for g in grams] * 2)
            # the row and the column axis of each family become one axis, for the entries of its
            # Gram
            by_summand = group_axes(by_summand, [(q, q + len(grams)) for q in range(len(grams))])
            for p, (names, key) in enumerate(product):
                # derivative of a Kronecker product with respect to one factor: the inner product
                # with all other factors
                other_grams = [None if q == p else gram.ravel() for q, gram in enumerate(grams)]
                by_gram = contract(by_summand, other_grams).reshape(grams[p].shape)
                if len(names) == 1:
                    self._family(state, names[0], key).by_square += by_gram
                else:
                    joint = self._joint(state, names, key)
                    # the Gram is Z^T Z for the coefficients Z of the query rows
                    by_coefficients = 2.0 * (joint.Z.reshape(len(joint.Z), -1) @ by_gram)
                    joint.by_coefficients += by_coefficients.reshape(joint.Z.shape)
