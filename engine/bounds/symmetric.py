"""Lower bounds for workloads that are invariant under permutations of attributes.

The symmetric group block-diagonalizes the matrices of such workloads into a few small sectors.

Notes
-----
**Single attributes and pairs** (`SymmetricPairs`).  Queries on a pair are the sum of a symmetric
and an antisymmetric component under the exchange of the two attributes.  The columns of a sector
are 1 (the constant), U (the functions of K except the constant), and S and L (the symmetric and the
antisymmetric products of two functions of U).  With P = d(d-1)/2 the sectors of d attributes are:

    sector         times         columns    coefficients of single attributes and of both components
    trivial        1             1 + U + S  single: root(d), 1; symmetric: root(P), root(d-1), 1
    standard       d-1           U + S + L  single: 1; symmetric: root(d/2 - 1), 1;
                                            antisymmetric: root(d/2), 1
    two rows       d(d-3)/2      S          symmetric: 1
    antisymmetric  (d-1)(d-2)/2  L          antisymmetric: 1

The orthogonal complement of K on an attribute is represented by a scalar t, as in
`engine.bounds.product_weights`.  For each of the C(d, m) choices of m attributes with this scalar,
the queries on the other d - m attributes are again symmetric, with the sectors for d - m.

**Products of any order** (`SymmetricProducts`).  The workload has equal products on all sets of j
attributes, for any j.  Besides the constant, 0, every attribute has one function, 1: the one that
its queries couple most strongly to the constant.  The Gram of the products of all sets of j
attributes is the coefficient of z^j in

    B (x) B (x) ... (x) B,   d times,     B = [[1 + z a, z b], [z b, z c]],
    C = [[a, b], [b, c]] the Gram of the family in the functions 0 and 1.

The symmetric group decomposes it as it decomposes d spins.  With m antisymmetric pairs,
C(d, m) - C(d, m - 1) times, and N = d - 2m remaining attributes, a sector is det(B)^m times B on
symmetric tensors.  Its element in row k and column l, for k and l attributes with function 1, is

    sum over p of N! / (p! (k - p)! (l - p)! (N - k - l + p)!)
                  B_11^p B_01^(k + l - 2p) B_00^(N - k - l + p)

over the square root of C(N, k) C(N, l).  The matrices have at most j + 1 rows for any number of
attributes.  Source: our own; the sectors are those of Schur-Weyl duality for two states.

**Weights that are not products** (`CompositionBound`).  By symmetry the optimal weights of the
cells are invariant under permutations of the attributes.  So the weight of a cell depends only on
its *composition*: c_a of the attributes have the value a, with sum d.  The weights are shares of
compositions, and the bound is the nuclear norm of the mean, under the shares, of matrices M(c),
which have the sectors of `SymmetricPairs`.  With orthonormal functions phi_u of the values and a
unit vector w over the attributes, orthogonal to the constant, the columns of the sectors represent

    trivial        1,   sum_i phi_u(x_i) / root(d),   sum_{i<j} S(x_i, x_j) / root(P)
    standard       sum_i w_i phi_u(x_i),   sum_{i<j} (w_i + w_j) S(x_i, x_j) / root(d - 2),
                   sum_{i<j} (w_j - w_i) L(x_i, x_j) / root(d)
    two rows       S(x_i, x_j) of all pairs, orthogonal to the sectors above
    antisymmetric  L(x_i, x_j) of all pairs, orthogonal to the sectors above

so every M(c) is a combination of sums over values, for any d.  The bound is concave in the
shares.  The cost of a cell with composition c is <M^(-1/2), M(c)>.  If no cell costs more than the
norm itself, the bound is the optimum of all matrix mechanisms.  `shares_norm` adds costly
compositions in rounds.  Any shares give a valid bound, so it may leave out compositions and end at
any time.  Source: our own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from engine._arrays import Array, Index
from engine._clock import planning_time
from engine._threads import threads_for
from engine.bounds.product_weights import (
    RANDOM_TABLES,
    AttributeClass,
    Backpropagate,
    Frame,
    Key,
    ReducedWorkload,
    State,
    Subproblem,
    nuclear,
    root_trace,
)
from engine.residuals import basis


@dataclass(kw_only=True, eq=False)
class Terms:
    """Query weights of a workload that treats all attributes and all pairs of attributes alike.

    Attributes
    ----------
    total : weight of the total query.
    single : mapping from the keys of the query families on every attribute to their weights.
    pair : mapping from the keys of the queries on every pair of attributes to their weights.  A
        product of two families has the keys of both; a family on both attributes has one key.
    """

    total: float = 0.0
    single: dict[Key, float] = field(default_factory=dict)
    pair: dict[tuple[Key, ...], float] = field(default_factory=dict)


def symmetric_terms(reduced_workload: ReducedWorkload, subproblem: Subproblem) -> Terms | None:
    """Return the query weights of a subproblem that treats all attributes and all pairs alike.

    The result is None if a permutation of the attributes changes the subproblem, if the subproblem
    has fewer than 3 attributes, or if it has queries on more than 2 attributes.
    """
    names = subproblem.names
    if len(names) < 3 or len({reduced_workload.class_of[name] for name in names}) > 1:
        return None
    by_set: dict[tuple[str, ...], dict[tuple[Key, ...], float]] = {}
    for product, weight in subproblem.terms.items():
        sorted_product = sorted(((part, key) for part, key in product), key=lambda p: p[0])
        attributes = tuple(name for part, _ in sorted_product for name in part)
        if len(attributes) > 2:
            return None
        if len(sorted_product) == 1 and len(attributes) == 2:
            transposed = (
                attributes != tuple(sorted(attributes))
                and not reduced_workload.is_symmetric[sorted_product[0][1]]
            )
            # A single query matrix on both attributes gets three entries (key, transposed, -1).
            # Thus it differs from a product of two queries on one attribute each, which gets two
            # entries (key, key).
            keys: tuple[Key, ...] = (sorted_product[0][1], int(transposed), -1)
        else:
            keys = tuple(key for _, key in sorted_product)
        terms = by_set.setdefault(tuple(sorted(attributes)), {})
        terms[keys] = terms.get(keys, 0.0) + weight
    out = Terms(total=by_set.pop((), {}).get((), 0.0))
    for count in (1, 2):
        term_sets = [terms for attributes, terms in by_set.items() if len(attributes) == count]
        if not term_sets:
            continue
        if len(term_sets) != math.comb(len(names), count) or any(
            terms != term_sets[0] for terms in term_sets[1:]
        ):
            return None
        if count == 1:
            out.single = {keys[0]: weight for keys, weight in term_sets[0].items()}
        elif _is_symmetric(reduced_workload, reduced_workload.cells_of(names[0]), term_sets[0]):
            for keys, weight in term_sets[0].items():
                family_keys = keys[:1] if keys[2:] else keys
                out.pair[family_keys] = out.pair.get(family_keys, 0.0) + weight
        else:
            return None
    return out


def _is_symmetric(
    reduced_workload: ReducedWorkload, n: int, terms: Mapping[tuple[Key, ...], float]
) -> bool:
    """Return whether swapping two attributes of n cells leaves the Gram of their queries the same.

    The sums of the weighted squared answers on random tables of values and on the transposed tables
    are compared.

    Parameters
    ----------
    terms : mapping from keys of queries to their weights.  A product of two families has the key
        (key of the first, key of the second).  A family on both attributes has the key
        (key of the family, transposed, -1), where ``transposed`` is 1 if the family has the two
        attributes in reverse order, and 0 otherwise.
    """
    rng = np.random.default_rng(0)
    for _ in range(RANDOM_TABLES):
        x = rng.standard_normal((n, n))
        totals = []
        for table in (x, x.T):
            total = 0.0
            for keys, weight in terms.items():
                rows = reduced_workload.rows[keys[0]]
                if keys[2:]:  # one family on both attributes
                    answers = rows @ (table.T if keys[1] else table).ravel()
                else:
                    answers = rows @ table @ reduced_workload.rows[keys[1]].T
                total += weight * float(np.sum(answers**2))
            totals.append(total)
        if abs(totals[0] - totals[1]) > 1e-10 * max(totals):
            return False
    return True


class PairColumns:
    """Basis of the symmetric (sign 1) or antisymmetric (sign -1) functions on a pair of attributes.

    Its elements are normalized sums or differences of f_i (x) f_j and f_j (x) f_i, where f_0, ...,
    f_(k-1) are functions of the cells of one attribute.  Elements with the constant f_0 come first.
    """

    def __init__(self, k: int, sign: int) -> None:
        pairs = [(i, j) for i in range(k) for j in range(i + (sign < 0), k)]
        self.k, self.sign = k, sign
        self.I, self.J = (np.array([p[a] for p in pairs], dtype=np.int64) for a in (0, 1))
        self.c = np.where(self.I == self.J, 0.5, math.sqrt(0.5))

    def columns(self, Z: Array) -> Array:
        """Return the coefficients of m query rows in this basis, shape (m, basis elements).

        ``Z`` holds the coefficients of the rows in the basis f_i (x) f_j, shape (m, k, k).
        """
        return (Z[:, self.I, self.J] + self.sign * Z[:, self.J, self.I]) * self.c

    def tables(self, X: Array) -> Array:
        """Apply the transpose of the linear map `columns`: (m, basis elements) to (m, k, k)."""
        out = np.zeros((len(X), self.k, self.k))
        # two statements, because an entry with I = J receives both terms
        out[:, self.I, self.J] += X * self.c
        out[:, self.J, self.I] += self.sign * X * self.c
        return out


@dataclass(kw_only=True, eq=False)
class RowBlock:
    """Query rows of the total, of one family or of one product of two families.

    Several sectors contain columns of a row block.

    Attributes
    ----------
    rows : the query rows, shape (m, columns).
    by_rows : accumulated derivative of the nuclear norm with respect to ``rows``.
    backpropagate : function that is called with ``by_rows`` and adds the derivatives with respect
        to the matrices of the family to the `State`.
    """

    rows: Array
    by_rows: Array
    backpropagate: Callable[[Array], None]


@dataclass(frozen=True, kw_only=True, eq=False)
class Sector:
    """A diagonal block of the query matrix of a workload that is symmetric in its attributes.

    Attributes
    ----------
    name : name of the sector in the module's docstring.
    times : number of occurrences of the sector on the diagonal.
    width : number of columns.
    placements : pairs (row block, copies).  The row blocks are stacked vertically.  Each of the
        ``copies`` is a tuple (columns, start, coefficient): these columns of the row block, times
        the coefficient, are the columns of the sector from ``start`` on.
    """

    name: str
    times: float
    width: int
    placements: list[tuple[RowBlock, list[tuple[slice, int, float]]]]

    def matrix(self) -> Array:
        """Return the matrix of this sector, shape (rows of all row blocks, width)."""
        out = []
        for row_block, places in self.placements:
            block = np.zeros((len(row_block.rows), self.width))
            for columns, start, coefficient in places:
                values = row_block.rows[:, columns]
                block[:, start : start + values.shape[1]] = coefficient * values
            out.append(block)
        return np.concatenate(out)

    def backpropagate(self, by_matrix: Array) -> None:
        """Add derivatives of the nuclear norm to ``by_rows`` of every row block.

        ``by_matrix`` is the derivative with respect to the matrix of this sector.
        """
        row = 0
        for row_block, places in self.placements:
            row_derivative = by_matrix[row : row + len(row_block.rows)]
            for columns, start, coefficient in places:
                width = row_block.rows[:, columns].shape[1]
                row_block.by_rows[:, columns] += (
                    coefficient * row_derivative[:, start : start + width]
                )
            row += len(row_derivative)


class SymmetricPairs:
    """Nuclear norm of queries on single attributes and pairs that are symmetric in all attributes.

    Parameters
    ----------
    d : number of attributes.
    attribute_class : index of the equivalence class that contains all attributes.
    terms : weights of the queries on each attribute and each pair.
    k : number of basis functions per attribute, including the constant function.
    """

    def __init__(self, d: int, attribute_class: AttributeClass, terms: Terms, k: int) -> None:
        self.d, self.attribute_class, self.terms, self.k = d, attribute_class, terms, k

    def value(self, state: State) -> tuple[float, Backpropagate]:
        """Return a lower bound on the nuclear norm at the weights of ``state``.

        The second result is a function that adds the derivatives of the bound to ``state``.
        """
        frame = state.frame(self.attribute_class, self.k)
        inside, inside_backpropagate = self._inside(self.d, self.terms, state)
        # For m = 1 and m = 2, sum over all sets of m attributes of the nuclear norms of the queries
        # outside the basis functions. This sum is 0 if the basis has one function per cell.
        sums = [self._outside(m, frame, state) for m in (1, 2)] if self.k < len(frame.s) else []
        value = inside + math.fsum(total for total, _ in sums)

        def backpropagate(by_value: float) -> None:
            inside_backpropagate(by_value)
            for m, (total, summands) in enumerate(sums, start=1):
                for keys, t, norm, summand_backpropagate in summands:
                    if t * norm > 0.0:
                        # ``t`` is the product of the ``family.t`` of all keys.  With C = comb(d,
                        # m), ``total`` is C times the root of the sum of the (t * norm)^2.  So its
                        # derivative with respect to t * norm is C^2 * t * norm / total.
                        by_summand = by_value * math.comb(self.d, m) ** 2 * t * norm / total
                        summand_backpropagate(by_summand * t)
                        for key in keys:
                            family = frame.families[key]
                            family.by_t += by_summand * t * norm / family.t

        return value, backpropagate

    def _outside(
        self, m: int, frame: Frame, state: State
    ) -> tuple[float, list[tuple[tuple[Key, ...], float, float, Backpropagate]]]:
        """Return the sum of nuclear norms over all choices of m attributes outside the basis K.

        On the m attributes, each family is represented by the scalar `FamilyRoot.t`, its nuclear
        norm on the orthogonal complement of K.  m is 1 or 2.

        Returns
        -------
        total : the sum over all choices of m attributes.
        summands : tuples (keys, t, norm, backpropagate), one per combination of families on the m
            attributes: keys of the families, product of their scalars, nuclear norm of the queries
            on all other attributes, and the function that adds derivatives of this norm to
            ``state``.  The nuclear norm for one choice is the root of the sum of (t * norm)^2; it
            is the same for all choices.
        """
        # families on the m attributes -> queries on all other attributes
        remaining: dict[tuple[Key, ...], Terms] = {}
        products = {keys: weight for keys, weight in self.terms.pair.items() if len(keys) == 2}
        if m == 1:
            for key, weight in self.terms.single.items():
                remaining.setdefault((key,), Terms()).total += weight
            # a product of two families, one of them on the fixed attribute, leaves the family on
            # the second attribute
            for (key, other_key), weight in products.items():
                remaining.setdefault((key,), Terms()).single[other_key] = weight
        else:
            for keys, weight in products.items():
                remaining.setdefault(keys, Terms()).total += weight
        summands = []
        for outside_keys, terms in remaining.items():
            t = float(math.prod(frame.families[key].t for key in outside_keys))
            if t > 0.0:
                summands.append((outside_keys, t, *self._inside(self.d - m, terms, state)))
        norm_of_one_set = math.sqrt(math.fsum((t * norm) ** 2 for _, t, norm, _ in summands))
        return math.comb(self.d, m) * norm_of_one_set, summands

    def _inside(self, d: int, terms: Terms, state: State) -> tuple[float, Backpropagate]:
        """Return the nuclear norm of queries on d attributes, which all have the basis functions K.

        The second result is a function that adds the derivatives of a quantity to ``state``.  Its
        argument is the derivative of this quantity with respect to the norm.
        """
        blocks = sectors(
            d, self.k if terms.single or terms.pair else 1, terms, state, self.attribute_class
        )
        row_blocks = list(
            dict.fromkeys(row_block for sector in blocks for row_block, _ in sector.placements)
        )
        norms = [nuclear(sector.matrix(), state.derivative) for sector in blocks]

        def backpropagate(by_norm: float) -> None:
            for row_block in row_blocks:
                row_block.by_rows[:] = 0.0
            for sector, (_, by_matrix) in zip(blocks, norms, strict=True):
                sector.backpropagate(by_norm * sector.times * by_matrix)
            for row_block in row_blocks:
                row_block.backpropagate(row_block.by_rows)

        total = math.fsum(
            sector.times * norm for sector, (norm, _) in zip(blocks, norms, strict=True)
        )
        return total, backpropagate


def sectors(
    d: int, k: int, terms: Terms, state: State, attribute_class: AttributeClass
) -> list[Sector]:
    """Return the diagonal blocks of the matrix of queries that are symmetric in all d attributes.

    ``terms`` has the weights of the queries.  Every attribute has k basis functions, including the
    constant function.
    """
    frame, u = state.frame(attribute_class, k), k - 1
    total = (
        [_row_block(np.full((1, 1), math.sqrt(terms.total)), lambda by: None)]
        if terms.total
        else []
    )
    single = [_single_rows(frame, key, weight) for key, weight in terms.single.items()]
    even, odd = _pair_rows(state, attribute_class, k, terms)
    # number of symmetric and of antisymmetric pairs of functions without the constant
    S, L = k * u // 2, u * (u - 1) // 2
    # columns of row blocks for a single attribute: the constant function, and the other functions
    constant, varying = slice(0, 1), slice(1, None)
    # Columns of row blocks for a pair of attributes: products of a function with the constant, and
    # products of two other functions.  A symmetric block begins with the square of the constant.
    even_with_constant, even_without_constant = slice(1, k), slice(k, None)
    odd_with_constant, odd_without_constant = slice(0, u), slice(u, None)
    trivial = [
        *((row_block, [(constant, 0, 1.0)]) for row_block in total),
        *((row_block, [(constant, 0, math.sqrt(d)), (varying, 1, 1.0)]) for row_block in single),
        *(
            (
                row_block,
                [
                    (constant, 0, math.sqrt(d * (d - 1) / 2)),
                    (even_with_constant, 1, math.sqrt(d - 1)),
                    (even_without_constant, k, 1.0),
                ],
            )
            for row_block in even
        ),
    ]
    standard = [
        *((row_block, [(varying, 0, 1.0)]) for row_block in single),
        *(
            (
                row_block,
                [(even_with_constant, 0, math.sqrt(d / 2 - 1)), (even_without_constant, u, 1.0)],
            )
            for row_block in even
            if d > 2
        ),
        *(
            (
                row_block,
                [(odd_with_constant, 0, math.sqrt(d / 2)), (odd_without_constant, u + S, 1.0)],
            )
            for row_block in odd
        ),
    ]
    out = [
        Sector(name="trivial", times=1.0, width=1 + u + (S if even else 0), placements=trivial),
        Sector(
            name="standard",
            times=d - 1.0,
            width=u + S + L if even or odd else u,
            placements=standard,
        ),
        Sector(
            name="two rows",
            times=d * (d - 3) / 2,
            width=S,
            placements=[(row_block, [(even_without_constant, 0, 1.0)]) for row_block in even],
        ),
        Sector(
            name="antisymmetric",
            times=(d - 1) * (d - 2) / 2,
            width=L,
            placements=[(row_block, [(odd_without_constant, 0, 1.0)]) for row_block in odd],
        ),
    ]
    return [sector for sector in out if sector.times > 0 and sector.width and sector.placements]


def _pair_rows(
    state: State, attribute_class: AttributeClass, k: int, terms: Terms
) -> tuple[list[RowBlock], list[RowBlock]]:
    """Return the symmetric components of all queries on a pair, and the antisymmetric ones."""
    frame = state.frame(attribute_class, k)
    even, odd = list[RowBlock](), list[RowBlock]()
    for keys, weight in terms.pair.items():
        for sign, components in ((1, even), (-1, odd)):
            if len(keys) == 2:
                components.append(_product_rows(frame, keys, weight, sign))
            else:
                component = _joint_rows(state, attribute_class, k, keys, weight, sign)
                if component is not None:
                    components.append(component)
    return even, odd


def _row_block(rows: Array, backpropagate: Callable[[Array], None]) -> RowBlock:
    return RowBlock(rows=rows, by_rows=np.zeros(rows.shape), backpropagate=backpropagate)


def _single_rows(frame: Frame, key: Key, weight: float) -> RowBlock:
    family, root = frame.families[key], math.sqrt(weight)

    def backpropagate(by: Array) -> None:
        family.by_root += root * by

    return _row_block(root * family.R, backpropagate)


def _joint_rows(
    state: State,
    attribute_class: AttributeClass,
    k: int,
    keys: tuple[Key, ...],
    weight: float,
    sign: int,
) -> RowBlock | None:
    """Return the symmetric (sign 1) or antisymmetric (sign -1) component of a family on a pair.

    The family is on both attributes jointly.  The result is None if the component is 0.
    """
    joint = state.joint(keys[0], ((attribute_class, k), (attribute_class, k)))
    columns = PairColumns(k, sign)
    rows = math.sqrt(weight) * columns.columns(joint.Z)
    if np.abs(rows).max(initial=0.0) <= 1e-13 * np.abs(joint.Z).max():
        return None  # up to rounding errors, the queries have no component of this sign

    def backpropagate(by: Array) -> None:
        joint.by_coefficients += math.sqrt(weight) * columns.tables(by)

    return _row_block(rows, backpropagate)


def _product_rows(frame: Frame, keys: tuple[Key, ...], weight: float, sign: int) -> RowBlock:
    """Return the symmetric (sign 1) or antisymmetric (sign -1) component of a product of families.

    ``keys`` has the key of the family on the first attribute, and of that on the second.
    """
    first, second = (frame.families[key] for key in keys)
    root, columns = math.sqrt(weight), PairColumns(frame.K.shape[1], sign)
    shape = (len(first.R), len(second.R))
    # Rows are pairs of rows of R of both families, and columns are pairs of functions.  If both
    # families are equal, only rows of the same symmetry as the columns are nonzero.
    rows = PairColumns(len(first.R), sign) if first is second else None
    products = np.einsum("ip,jq->ijpq", first.R, second.R)
    values = columns.columns(products.reshape(-1, columns.k, columns.k))
    if rows is not None:
        values = rows.columns(values.T.reshape(-1, *shape)).T

    def backpropagate(by: Array) -> None:
        if rows is not None:
            by = rows.tables(by.T).reshape(by.shape[1], -1).T
        by = columns.tables(root * by).reshape(*shape, columns.k, columns.k)
        first.by_root += np.einsum("ijpq,jq->ip", by, second.R, optimize=True)
        second.by_root += np.einsum("ijpq,ip->jq", by, first.R, optimize=True)

    return _row_block(root * values, backpropagate)


# number of functions per attribute, including the constant, that `SymmetricProducts` uses
FUNCTIONS_PER_ATTRIBUTE = 2
# weights of the products of one family on all attribute sets of equal size: the outer key is the
# size (number of attributes), the inner key is that of the family
WeightsBySize = Mapping[int, Mapping[Key, float]]


def product_weights_by_size(
    reduced_workload: ReducedWorkload, subproblem: Subproblem
) -> WeightsBySize | None:
    """Return the weight of each product of a subproblem by number of attributes and query family.

    Products with one factor on several attributes are left out, which can only lower the bound.

    The result is None unless all four conditions hold.  All attributes are equivalent.  Each
    product has the same family on all its attributes.  All attribute sets of equal size have
    products with the same weights.  At least one product has an attribute.
    """
    names = subproblem.names
    if len({reduced_workload.class_of[name] for name in names}) != 1:
        return None
    by_set: dict[tuple[str, ...], dict[Key, float]] = {}
    for product, weight in subproblem.terms.items():
        if any(len(part) > 1 for part, _ in product):
            continue
        keys = {key for _, key in product}
        if len(keys) > 1:
            return None
        weights = by_set.setdefault(tuple(sorted(part[0] for part, _ in product)), {})
        key = keys.pop() if keys else -1  # -1 for the total, which has no family
        weights[key] = weights.get(key, 0.0) + weight
    out: dict[int, dict[Key, float]] = {}
    counts: dict[int, int] = {}  # number of sets by number of attributes
    for attributes, weights in by_set.items():
        counts[len(attributes)] = counts.get(len(attributes), 0) + 1
        if out.setdefault(len(attributes), weights) != weights:
            return None
    complete = all(count == math.comb(len(names), order) for order, count in counts.items())
    return out if complete and out and max(out) > 0 else None


@dataclass(frozen=True, kw_only=True, eq=False)
class SectorPolynomials:
    """Matrix of a sector whose elements are polynomials in the Gram C = [[a, b], [b, c]].

    Term t is coefficients[t] a^i b^j c^k det(C)^l with (i, j, k, l) = powers[t].

    Attributes
    ----------
    elements : index of the element to which each term belongs, in the flattened matrix.
    coefficients : coefficient of each term, shape (terms,).
    powers : powers of a, b, c and det(C) in each term, shape (terms, 4).
    width : number of rows and of columns of the matrix.
    """

    elements: Index
    coefficients: Array
    powers: Index
    width: int

    def matrix(self, gram: Array) -> tuple[Array, list[Array]]:
        """Return the matrix for the 2 x 2 Gram C, and its derivatives with respect to a, b and c.

        C = [[a, b], [b, c]].  All matrices have shape (width, width).
        """
        (a, b), (_, c) = gram.tolist()
        values = np.array([a, b, c, max(a * c - b * b, 0.0)])
        factors = values ** np.maximum(self.powers, 0)
        matrix = self._sum_of_terms(self.coefficients * factors.prod(axis=1))
        by_a, by_b, by_c, by_det = (
            self._sum_of_terms(self.coefficients * self._derivative(k, values, factors))
            for k in range(4)
        )
        # det(C) = a c - b^2
        return matrix, [by_a + c * by_det, by_b - 2.0 * b * by_det, by_c + a * by_det]

    def _derivative(self, k: int, values: Array, factors: Array) -> Array:
        """Return the derivative with respect to ``values[k]`` of every term without its coefficient.

        ``values`` holds a, b, c and det(C).  ``factors`` has the powers of these four values in
        every term, shape (terms, 4).
        """
        power = self.powers[:, k]
        derivative = power * values[k] ** np.maximum(power - 1, 0)
        return np.asarray(derivative * np.delete(factors, k, axis=1).prod(axis=1))

    def _sum_of_terms(self, terms: Array) -> Array:
        """Return the matrix, shape (width, width), for the given values of all terms."""
        matrix: Array = np.zeros(self.width**2)
        np.add.at(matrix, self.elements, terms)
        return matrix.reshape(self.width, self.width)


@lru_cache(maxsize=1024)
def antisymmetric_sector(d: int, pairs: int, order: int, width: int) -> SectorPolynomials:
    """Return one diagonal block of the Gram of products on all sets of ``order`` of d attributes.

    In this block, ``pairs`` pairs of attributes are antisymmetric and all other attributes are
    symmetric; see the module's docstring.  The block has ``width`` rows and columns.
    """
    remaining = d - 2 * pairs
    # tuples (index of the element, coefficient, powers of a, b, c and det(C))
    terms: list[tuple[int, float, tuple[int, ...]]] = []
    # Row k belongs to products with basis function 1 on k of the remaining attributes and function
    # 0 on the rest.  Column m belongs to products with function 1 on m of the remaining attributes.
    for k in range(min(width, remaining + 1)):
        for m in range(min(width, remaining + 1)):
            # the basis vectors of row and column are sums over all choices of k and of m
            # attributes; this is the product of the norms of both sums
            norm = math.sqrt(math.comb(remaining, k) * math.comb(remaining, m))
            # ``both`` is the number of attributes with function 1 in row and column, and ``none``
            # the number with function 0 in row and column.  ``ways`` counts the choices of the
            # attributes with function 1.
            for both in range(max(0, k + m - remaining), min(k, m) + 1):
                none = remaining - k - m + both
                ways = (
                    math.comb(remaining, k)
                    * math.comb(k, both)
                    * math.comb(remaining - k, m - both)
                )
                for det_power in range(pairs + 1):
                    # Only products with z^order count.  This determines how many of the factors
                    # B_00 = 1 + z a contribute z a; all other factors contribute 1.
                    a_power = order - pairs - (k + m - both) - det_power
                    if not 0 <= a_power <= none:
                        continue
                    coefficient = (
                        ways / norm * math.comb(none, a_power) * math.comb(pairs, det_power)
                    )
                    powers = (a_power, k + m - 2 * both, both + pairs - det_power, det_power)
                    terms.append((k * width + m, coefficient, powers))
    return SectorPolynomials(
        elements=np.array([element for element, _, _ in terms], dtype=np.int64),
        coefficients=np.array([coefficient for _, coefficient, _ in terms]),
        powers=np.array([powers for _, _, powers in terms], dtype=np.int64).reshape(-1, 4),
        width=width,
    )


class SymmetricProducts:
    """Nuclear norm of a workload with equal products on all sets of j of d attributes, for any j.

    Every attribute has two basis functions.  ``weights_by_size`` is the result of
    `product_weights_by_size`.
    """

    def __init__(
        self, d: int, attribute_class: AttributeClass, weights_by_size: WeightsBySize
    ) -> None:
        self.d, self.attribute_class, self.weights_by_size = d, attribute_class, weights_by_size

    def value(self, state: State) -> tuple[float, Backpropagate]:
        """Return a lower bound on the nuclear norm at the weights of ``state``.

        The second result is a function that adds the derivatives of the bound to ``state``.
        """
        families = state.frame(self.attribute_class, FUNCTIONS_PER_ATTRIBUTE).families
        sums = []
        # Every family is represented by a 2 x 2 matrix on the span of K, and by the scalar t on its
        # orthogonal complement.  ``outside`` is the number of attributes with the scalar.
        for outside in range(max(self.weights_by_size) + 1):
            summands = []
            # Every product has one family ``key`` on all its attributes.  If some attributes have the
            # scalar, there is one summand per family, because t differs.  Otherwise there is one
            # summand with the products of all families (key None).
            for key in families if outside else (None,):
                t = families[key].t ** outside if key is not None else 1.0
                if t > 0.0 and (remaining := self._remaining_weights(outside, key)):
                    summands.append((key, t, *self._inside(self.d - outside, remaining, state)))
            total = math.sqrt(math.fsum((t * norm) ** 2 for _, t, norm, _ in summands))
            sums.append((outside, math.comb(self.d, outside), total, summands))

        def backpropagate(by_value: float) -> None:
            for outside, count, total, summands in sums:
                for key, t, norm, by_grams in summands:
                    if norm > 0.0:
                        by_summand = by_value * count * t * norm / total
                        for family_key, by_gram in by_grams.items():
                            width = len(families[family_key].by_square)
                            families[family_key].by_square += (
                                by_summand * t * by_gram[:width, :width]
                            )
                        if key is not None:
                            # ``t`` is families[key].t to the power ``outside``
                            families[key].by_t += by_summand * norm * outside * t / families[key].t

        return math.fsum(count * total for _, count, total, _ in sums), backpropagate

    def _remaining_weights(self, outside: int, key: Key | None) -> dict[int, Mapping[Key, float]]:
        """Return the weights of products from each of which ``outside`` attributes are removed.

        The result maps the number of remaining attributes to a mapping from families to weights.
        If ``key`` is not None, the result has only the family ``key``.
        """
        out: dict[int, Mapping[Key, float]] = {}
        for order, terms in self.weights_by_size.items():
            weights = {k: weight for k, weight in terms.items() if key is None or k == key}
            if order >= outside and weights:
                out[order - outside] = weights
        return out

    def _inside(
        self, d: int, weights_by_size: WeightsBySize, state: State
    ) -> tuple[float, dict[Key, Array]]:
        """Return the nuclear norm of products on d attributes in the basis K.

        The second result maps every family to the derivative with respect to its Gram C, shape
        (2, 2).  It is empty if ``state`` needs no derivative.
        """
        families = state.frame(self.attribute_class, FUNCTIONS_PER_ATTRIBUTE).families
        value, by_grams = 0.0, dict[Key, Array]()
        # one sector per number of antisymmetric pairs of attributes, see the module's docstring
        for pairs in range(min(max(weights_by_size), d // 2) + 1):
            # number of copies of this sector
            times = math.comb(d, pairs) - (math.comb(d, pairs - 1) if pairs else 0)
            width = max(weights_by_size) - pairs + 1
            M, slopes = np.zeros((width, width)), list[tuple[Key, float, list[Array]]]()
            # ``order`` is the number of attributes of a product
            for order, terms in weights_by_size.items():
                if order < pairs:
                    continue  # every antisymmetric pair has an attribute of the product
                for key, weight in terms.items():
                    gram = np.zeros((2, 2))
                    if key in families:  # the total has no family
                        # C is 1 x 1 for attributes with one cell
                        gram[: len(families[key].C), : len(families[key].C)] = families[key].C
                    matrix, slope = antisymmetric_sector(d, pairs, order, width).matrix(gram)
                    M += weight * matrix
                    slopes.append((key, weight, slope))
            norm, by_M = root_trace(M, state.derivative)
            value += times * norm
            if by_M is None:
                continue
            for key, weight, slope in slopes:
                if key in families:
                    a, b, c = (times * weight * float(np.sum(by_M * s)) for s in slope)
                    by_grams.setdefault(key, np.zeros((2, 2)))
                    # b is an off-diagonal entry of the symmetric matrix C and occurs twice, so each
                    # occurrence gets half of the derivative with respect to b
                    by_grams[key] += [[a, b / 2.0], [b / 2.0, c]]
        return value, by_grams


# Singular values of the query rows of a sector (one of the diagonal blocks in the module docstring)
# count as 0 if they are below this share of the largest one.
RANK_TOLERANCE = 1e-10


@dataclass(frozen=True, kw_only=True, eq=False)
class CompositionMatrix:
    """Matrix of one sector, shape (r, r), as a function of a composition c.

    A composition contains, for each value a, the number c_a of attributes with this value.  The
    matrix is

        sum_{a<b} pair c_a c_b x_ab x_ab^T + pair (c_a choose 2) x_aa x_aa^T + value c_a g_a g_a^T +
        total g g^T,
        g_a = single_a + sum_b c_b x_ab,   g = sum_a c_a g_a.

    Attributes
    ----------
    times : number of occurrences of the sector.
    single, x : the vectors single_a and x_ab, shapes (n, r) and (n, n, r).
    pair, value, total : coefficients of the sums over pairs, of the sum over values and of g g^T.
    """

    times: float
    single: Array
    x: Array
    pair: float = 0.0
    value: float = 0.0
    total: float = 0.0

    def matrices(self, counts: Array) -> Array:
        """Return the matrix of this sector for each of m compositions, shape (m, r, r).

        Row i of ``counts``, shape (m, n), is composition i: for each value, the number of
        attributes that have it.
        """
        g, pair_counts = self._vectors(counts)
        sums = np.einsum("ma,mar->mr", counts, g)
        out = self.total * sums[:, :, None] * sums[:, None, :]
        if self.value:
            out += self.value * (counts[:, :, None] * g).transpose(0, 2, 1) @ g
        if self.pair:
            n, _, r = self.x.shape
            x = self.x.reshape(n * n, r)
            out += self.pair * np.array([(x * w.reshape(-1, 1)).T @ x for w in pair_counts])
        return np.asarray(out)

    def traces(self, counts: Array) -> Array:
        """Return the traces of the matrices that `matrices` returns, shape (m,)."""
        g, pair_counts = self._vectors(counts)
        sums = np.einsum("ma,mar->mr", counts, g)
        out = self.total * np.sum(sums**2, axis=1)
        if self.value:
            out += self.value * np.sum(counts * np.sum(g**2, axis=2), axis=1)
        if self.pair:
            out += self.pair * np.einsum("mab,ab->m", pair_counts, np.sum(self.x**2, axis=2))
        return np.asarray(out)

    def sizes(self, counts: Array) -> Array:
        """Return upper bounds on the spectral norms of the summands of m matrices, shape (m,).

        A bound is the trace of the matrix with the absolute values of `pair`, `value` and `total`.
        Rounding errors of the matrix are proportional to it.
        """
        return replace(
            self, pair=abs(self.pair), value=abs(self.value), total=abs(self.total)
        ).traces(counts)

    def slopes(self, counts: Array) -> Array:
        """Return the derivatives of the traces with respect to the counts, shape (m, n)."""
        n, _, r = self.x.shape
        g, _ = self._vectors(counts)
        sums = np.einsum("ma,mar->mr", counts, g)
        # derivatives of ``sums`` (the sum over a of c_a g_a) with respect to the counts c
        sum_slopes = g + (counts @ self.x.reshape(n, n * r)).reshape(-1, n, r)
        out = 2.0 * self.total * np.einsum("mar,mr->ma", sum_slopes, sums)
        if self.value:
            weighted = (counts[:, :, None] * g).reshape(-1, n * r)
            out += self.value * (
                np.sum(g**2, axis=2) + 2.0 * weighted @ self.x.transpose(0, 2, 1).reshape(n * r, n)
            )
        if self.pair:
            squares = np.sum(self.x**2, axis=2)
            out += self.pair * (counts @ squares - np.diag(squares) / 2.0)
        return np.asarray(out)

    def transformed(self, Z: Array) -> CompositionMatrix:
        """Return Z M Z^T as a function of the composition, where M is this matrix.

        ``Z`` has shape (s, r).
        """
        return replace(self, single=self.single @ Z.T, x=self.x @ Z.T)

    def _vectors(self, counts: Array) -> tuple[Array, Array]:
        """Return the vectors g_a of m compositions, and counts of attribute pairs by their values.

        The shapes are (m, n, r) and (m, n, n).  Entry (a, a) of the counts is the number of pairs
        in which both attributes have the value a.  The pairs with two different values a and b are
        counted half in entry (a, b) and half in entry (b, a).
        """
        n, _, r = self.x.shape
        g = self.single + (counts @ self.x.transpose(1, 0, 2).reshape(n, n * r)).reshape(-1, n, r)
        pair_counts = counts[:, :, None] * counts[:, None, :] / 2.0
        pair_counts[:, range(n), range(n)] -= counts / 2.0
        return g, pair_counts


def composition_matrix(d: int, values: Array, sector: Sector) -> CompositionMatrix:
    """Return the matrix of a sector of d attributes as a function of the composition.

    ``values``, shape (n, u), has the values of the u non-constant basis functions in the n cells.
    """
    n, u = values.shape
    # values of the symmetric and antisymmetric products of two basis functions in every pair of
    # cells
    tables = values[:, None, :, None] * values[None, :, None, :]
    S, L = (
        PairColumns(u, sign).columns(tables.reshape(-1, u, u)).reshape(n, n, -1) for sign in (1, -1)
    )
    rows = sector.matrix()
    _, singular_values, V = np.linalg.svd(rows, full_matrices=False)
    nonzero = singular_values > RANK_TOLERANCE * singular_values.max(initial=0.0)
    # dropping the directions of negligible singular values can only lower the bound
    rows = singular_values[nonzero, None] * V[nonzero]
    matrix_of = {
        "trivial": lambda: _trivial(d, values, S, rows),
        "standard": lambda: _standard(d, values, S, L, rows),
        "two rows": lambda: _pairs(d - 2, S, rows, times=sector.times, total=1.0 / (2.0 * (d - 1))),
        "antisymmetric": lambda: _pairs(d, L, rows, times=sector.times, total=0.0),
    }
    return replace(matrix_of[sector.name](), times=sector.times)


def _trivial(d: int, values: Array, S: Array, rows: Array) -> CompositionMatrix:
    zero, one, pairs = rows[:, :1], rows[:, 1 : 1 + values.shape[1]], rows[:, 1 + values.shape[1] :]
    x = S[:, :, : pairs.shape[1]] @ pairs.T / math.sqrt(2.0 * d * (d - 1))
    # the coefficient of the constant is divided evenly among the d attributes
    single = zero.T / d + values @ one.T / math.sqrt(d) - np.einsum("aar->ar", x)
    return CompositionMatrix(times=1.0, single=single, x=x, total=1.0)


def _standard(d: int, values: Array, S: Array, L: Array, rows: Array) -> CompositionMatrix:
    u = values.shape[1]
    one, even, odd = rows[:, :u], rows[:, u : u + S.shape[2]], rows[:, u + S.shape[2] :]
    x = S[:, :, : even.shape[1]] @ even.T / math.sqrt(d - 2)
    single = values @ one.T - np.einsum("aar->ar", x)
    x = x + (L[:, :, : odd.shape[1]] @ odd.T / math.sqrt(d)).transpose(1, 0, 2)
    return CompositionMatrix(
        times=1.0, single=single, x=x, value=1.0 / (d - 1), total=-1.0 / (d * (d - 1))
    )


def _pairs(k: int, table: Array, rows: Array, times: float, total: float) -> CompositionMatrix:
    x = table @ rows.T / math.sqrt(k)
    return CompositionMatrix(
        times=1.0,
        single=-np.einsum("aar->ar", x),
        x=x,
        pair=k / times,
        value=-1.0 / times,
        total=total / times,
    )


# `shares_norm` begins with random compositions.  A composition contains, for each value, the number
# of attributes that have this value.  The compositions are sampled from Dirichlet distributions
# with the weights of the values as mean.  The parameters of a distribution are the mean times the
# number of attributes times one of these numbers.
CONCENTRATIONS = (0.4, 1.2, 4.0)
# number of initial compositions per concentration
INITIAL_COMPOSITIONS = 100
# largest number of starting points of a search for costly compositions; half of them are random
SEARCH_STARTS = 16
# In each step, a search for costly compositions (numbers of attributes per value) computes the
# costs of at most this number of candidates. In each candidate, one attribute has a different
# value.
CANDIDATE_MOVES = 12
# sum of the shares that a round of `shares_norm` gives to the compositions that it adds
ADDED_SHARE = 0.05
# `shares_norm` drops compositions with less than this share of the weight
MIN_SHARE = 1e-7
# largest number of rounds of `shares_norm`; each adds compositions and optimizes the shares of all
ROUNDS = 100
# a composition is added only if its cost exceeds the norm by more than this relative difference
COST_TOLERANCE = 1e-4
# largest number of L-BFGS steps that optimize the shares in one round
LBFGS_STEPS = 25
# `shares_norm` does not search if the matrices of the initial compositions have more entries than
# this in total
MAX_ENTRIES = 30_000_000


@dataclass(frozen=True, kw_only=True, eq=False)
class Compositions:
    """m compositions, with one matrix per composition and sector.

    Attributes
    ----------
    counts : shape (m, n).  Row i is composition i: for each of the n values, the number of
        attributes that have this value.
    matrices : result of `CompositionMatrix.matrices` for each sector, shapes (m, r, r).
    sizes : result of `CompositionMatrix.sizes` for each sector, shapes (m,).
    """

    counts: Array
    matrices: list[Array]
    sizes: list[Array]

    def select(self, which: Index) -> Compositions:
        """Return the compositions with the indices ``which``, shape (k,)."""
        return Compositions(
            counts=self.counts[which],
            matrices=[x[which] for x in self.matrices],
            sizes=[x[which] for x in self.sizes],
        )

    def concatenate(self, other: Compositions) -> Compositions:
        """Return these compositions followed by those of ``other``."""
        return Compositions(
            counts=np.concatenate([self.counts, other.counts]),
            matrices=[
                np.concatenate(pair) for pair in zip(self.matrices, other.matrices, strict=True)
            ],
            sizes=[np.concatenate(pair) for pair in zip(self.sizes, other.sizes, strict=True)],
        )


class CompositionBound:
    """Lower bound on the nuclear norm, as a function of the shares of compositions.

    A composition contains, for each value, the number of attributes that have this value.  Its
    share is the total weight of the cells with this composition.

    Parameters
    ----------
    reduced_workload : a workload that is invariant under permutations of its free attributes.
    attribute_class : index of the equivalence class that contains all free attributes.
    d : number of free attributes.
    terms : weights of the queries on each attribute and each pair.
    """

    def __init__(
        self,
        reduced_workload: ReducedWorkload,
        attribute_class: AttributeClass,
        d: int,
        terms: Terms,
    ) -> None:
        self.d, self.n = d, reduced_workload.cells[attribute_class]
        n = self.n
        constant = np.full(n, n**-0.5)  # square roots of uniform weights
        state = State(
            reduced_workload,
            {attribute_class: constant},
            {attribute_class: np.column_stack([np.ones(n), basis(n)])},
            derivative=False,
        )
        # values of the non-constant basis functions in the n cells
        values = state.frame(attribute_class, n).K[:, 1:] / constant[:, None]
        self.sectors = [
            composition_matrix(d, values, sector)
            for sector in sectors(d, n, terms, state, attribute_class)
        ]

    def compositions(self, counts: Array) -> Compositions:
        """Return the compositions ``counts``, shape (m, n), with their matrices."""
        return Compositions(
            counts=counts,
            matrices=[sector.matrices(counts) for sector in self.sectors],
            sizes=[sector.sizes(counts) for sector in self.sectors],
        )

    def norm(self, compositions: Compositions, shares: Array) -> tuple[float, list[Array]]:
        """Return a lower bound on the nuclear norm, and its derivatives.

        ``shares`` has the share of each of the m compositions in the total weight, shape (m,).  The
        bound is computed from the mean of the matrices of each sector under these shares.  The
        second result has the derivatives with respect to the means, one array of shape (r, r) per
        sector.
        """
        total, slopes = 0.0, list[Array]()
        for sector, matrices, sizes in zip(
            self.sectors, compositions.matrices, compositions.sizes, strict=True
        ):
            mean, size = np.tensordot(shares, matrices, 1), float(shares @ sizes)
            value, by_mean = root_trace(mean, size=size)
            total += sector.times * value
            if by_mean is not None:
                slopes.append(sector.times * by_mean)
        return total, slopes

    def maximize_norm(self, compositions: Compositions, shares: Array, deadline: float) -> Array:
        """Return shares that approximately maximize the norm, shape (m,).

        The search starts at ``shares``, which must be positive, and ends after `LBFGS_STEPS` steps
        or at ``deadline`` on the clock of `planning_time`.
        """
        import scipy.optimize

        def negative_log_value(roots: Array) -> tuple[float, Array]:
            """Return -log(norm) and its gradient, for the shares roots^2 / sum(roots^2)."""
            squares, total = roots**2, float(np.sum(roots**2))
            value, slopes = self.norm(compositions, squares)
            by_shares = sum(
                np.einsum("mij,ij->m", part, slope)
                for part, slope in zip(compositions.matrices, slopes, strict=True)
            )
            # The norm is homogeneous of degree 1/2 in the shares, so the value of norm(shares /
            # total) is value / total^(1/2).
            gradient = roots / total - 2.0 * roots * by_shares / value
            return 0.5 * math.log(total) - math.log(value), gradient

        def stop_at_deadline(intermediate_result: Any) -> None:
            if planning_time() > deadline:
                raise StopIteration  # ends the search at the current point

        roots: Array = np.sqrt(shares)
        result = scipy.optimize.minimize(
            negative_log_value,
            roots.ravel(),
            jac=True,
            method="L-BFGS-B",
            callback=stop_at_deadline,
            options={
                "maxiter": LBFGS_STEPS,
                "maxfun": LBFGS_STEPS,
                "maxcor": 30,
                "ftol": 1e-13,
                "gtol": 1e-9,
            },
        )
        return np.asarray(result.x**2 / np.sum(result.x**2))

    def cost_matrices(self, slopes: Sequence[Array]) -> list[CompositionMatrix]:
        """Return one matrix per sector; the sum of their traces is the cost of a composition.

        ``slopes`` are the derivatives that `norm` returns, shapes (r, r).
        """
        return [
            sector.transformed(_root(2.0 * slope))
            for sector, slope in zip(self.sectors, slopes, strict=True)
        ]

    def costliest_composition(self, slopes: Sequence[Array], counts: Array) -> tuple[Array, Array]:
        """Search for compositions of large cost from m starting points, ``counts`` of shape (m, n).

        Returns the last composition of each search, shape (m, n), and its cost, shape (m,).  A step
        changes the value of one attribute.  A search ends if none of the `CANDIDATE_MOVES` changes
        with the largest derivatives raises the cost.  ``slopes`` are the derivatives that `norm`
        returns.
        """
        cost_matrices = self.cost_matrices(slopes)
        # A move changes the value of one attribute from a to b: the number of attributes with value
        # a falls by 1, and that with value b rises by 1.
        moves = np.array(
            [
                np.eye(self.n)[b] - np.eye(self.n)[a]
                for a in range(self.n)
                for b in range(self.n)
                if a != b
            ]
        )

        def cost(counts: Array) -> Array:
            return np.asarray(sum(sector.traces(counts) for sector in cost_matrices))

        current, costs, active = counts.copy(), cost(counts), np.arange(len(counts))
        while len(active):
            # derivative of the cost along every move
            gains = sum(sector.slopes(current[active]) for sector in cost_matrices) @ moves.T
            # A move is impossible if no attribute has the value a.
            gains[(current[active, None, :] + moves < 0.0).any(axis=2)] = -math.inf
            candidates = (
                current[active, None, :]
                + moves[np.argsort(-gains, axis=1, kind="stable")[:, :CANDIDATE_MOVES]]
            )
            new_costs = np.where(
                (candidates < 0.0).any(axis=2),
                -math.inf,
                cost(candidates.reshape(-1, self.n)).reshape(len(active), -1),
            )
            rows, best = np.arange(len(active)), new_costs.argmax(axis=1)
            improved = new_costs[rows, best] > costs[active] * (1.0 + 1e-9)
            current[active[improved]] = candidates[rows, best][improved]
            costs[active[improved]] = new_costs[rows, best][improved]
            active = active[improved]
        return current, costs


def shares_norm(
    reduced_workload: ReducedWorkload, roots: Mapping[AttributeClass, Array], deadline: float
) -> float:
    """Search for weights of cells with a large nuclear norm, and return this norm.

    The weight of a cell depends only on its composition: for each value, the number of attributes
    that have this value.  These weights are not products of one weight per attribute.

    The result is 0 without a search unless all of these conditions hold:

    - the nuclear norm of the workload is that of one subproblem;
    - `symmetric_terms` returns weights for this subproblem, some of them for pairs;
    - an attribute has at least 2 cells;
    - the matrices of the initial compositions have at most `MAX_ENTRIES` entries.

    Parameters
    ----------
    reduced_workload : the workload after the elimination of attributes with uniform weights.
    roots : square roots of the weights of cells, shape (n,), for every class of equivalent
        attributes; initial compositions are sampled near these weights.
    deadline : time after which no round begins, on the clock of `planning_time`.
    """
    terms = (
        symmetric_terms(reduced_workload, reduced_workload.subproblems[0])
        if reduced_workload.sums == [(1.0, {0: 1.0})]
        else None
    )
    if terms is None or not terms.pair or max(reduced_workload.cells.values()) < 2:
        return 0.0
    names = reduced_workload.subproblems[0].names
    d, attribute_class = len(names), reduced_workload.class_of[names[0]]
    n = reduced_workload.cells[attribute_class]
    pair_rows = sum(
        len(reduced_workload.rows[keys[0]]) if len(keys) == 1 else n * n for keys in terms.pair
    )
    width = n + min(n * (n - 1) // 2, pair_rows)  # order of the matrices of the four sectors
    if len(CONCENTRATIONS) * INITIAL_COMPOSITIONS * 4 * width**2 > MAX_ENTRIES:
        return 0.0
    with threads_for(width):
        return _search(
            CompositionBound(reduced_workload, attribute_class, d, terms),
            roots[attribute_class] ** 2,
            deadline,
        )


def _search(problem: CompositionBound, weights: Array, deadline: float) -> float:
    """Add costly compositions in rounds, and return the largest norm of a round.

    ``weights``, shape (n,), are weights of the values of an attribute; initial compositions are
    drawn near these weights.
    """
    rng, d = np.random.default_rng(0), problem.d

    def draw(concentration: float, count: int) -> Array:
        return round_compositions(d * rng.dirichlet(weights * d * concentration, size=count), d)

    compositions = problem.compositions(
        np.unique(np.concatenate([draw(x, INITIAL_COMPOSITIONS) for x in CONCENTRATIONS]), axis=0)
    )
    shares = np.full(len(compositions.counts), 1.0 / len(compositions.counts))
    value = 0.0
    for _ in range(ROUNDS):
        shares = problem.maximize_norm(compositions, shares, deadline)
        nonzero = np.flatnonzero(shares > MIN_SHARE)
        compositions, shares = compositions.select(nonzero), shares[nonzero] / shares[nonzero].sum()
        norm, slopes = problem.norm(compositions, shares)
        value = max(value, norm)
        if planning_time() > deadline:
            break
        current = compositions.counts[
            rng.permutation(len(compositions.counts))[: SEARCH_STARTS // 2]
        ]
        candidates, costs = problem.costliest_composition(
            slopes, np.concatenate([draw(CONCENTRATIONS[0], SEARCH_STARTS // 2), current])
        )
        # At optimal shares no composition costs more than the norm, and compositions with a
        # positive share cost exactly the norm.  So only more costly compositions are added.
        new = np.unique(candidates[costs > norm * (1.0 + COST_TOLERANCE)], axis=0)
        is_present = (new[:, None] == compositions.counts).all(axis=2).any(axis=1)
        new = new[~is_present]
        if not len(new):
            break
        compositions = compositions.concatenate(problem.compositions(new))
        shares = np.concatenate(
            [shares * (1.0 - ADDED_SHARE), np.full(len(new), ADDED_SHARE / len(new))]
        )
    return value


def round_compositions(x: Array, d: int) -> Array:
    """Round ``x`` >= 0, shape (m, n), whose rows have sum d, to integers with the same row sums.

    >>> round_compositions(np.array([[0.4, 1.7, 0.9]]), 3)
    array([[0., 2., 1.]])
    """
    out = np.floor(x)
    for row, fraction in zip(out, x - out, strict=True):
        row[np.argsort(-fraction, kind="stable")[: round(d - row.sum())]] += 1.0
    return np.asarray(out)


def _root(matrix: Array) -> Array:
    """Return a matrix R with R^T R equal to a symmetric ``matrix`` >= 0."""
    values, U = np.linalg.eigh(matrix)
    return np.asarray(np.sqrt(np.maximum(values, 0.0))[:, None] * U.T)
