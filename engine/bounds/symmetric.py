"""Lower bounds for workloads that are invariant under permutations of attributes.

The symmetric group block-diagonalizes the matrices of such workloads into a few small sectors.

Notes
-----
**Single attributes and pairs** (`SymmetricPairs`).  Queries on pairs are split into a symmetric and
an antisymmetric part under the exchange of the two attributes, in the bases S and L of symmetric
and antisymmetric pairs of K, where (0, u) denotes s (x) u.  The d attributes have these sectors,
with the coefficients by row (single, symmetric, antisymmetric) and P = d(d-1)/2:

    sector         times         columns    coefficients, column by column
    trivial        1             1 + U + S  single: root(d), 1; symmetric: root(P), root(d-1), 1
    standard       d-1           U + S + L  single: 1; symmetric: root(d/2 - 1), 1;
                                            antisymmetric: root(d/2), 1
    two rows       d(d-3)/2      S of U     symmetric: 1
    antisymmetric  (d-1)(d-2)/2  L of U     antisymmetric: 1

For each of the C(d, m) choices of m attributes outside K, the other d - m attributes form such a
workload again, as in `engine.bounds.product_weights`.

**Products of any order** (`SymmetricProducts`).  The workload has equal products on all sets of j
attributes, for any j.  Besides the constant, 0, every attribute has one function, 1: the one that
its queries couple most strongly to the constant.  The Gram of the products of all sets of j
attributes is the coefficient of z^j in

    B (x) B (x) ... (x) B,   d times,     B = [[1 + z a, z b], [z b, z c]],
    C = [[a, b], [b, c]] of the family.

The symmetric group decomposes it as it decomposes d spins.  With m antisymmetric pairs,
C(d, m) - C(d, m - 1) times, and N = d - 2m remaining attributes, a sector is det(B)^m times B on
symmetric tensors.  Its element in row k and column l, for k and l attributes with function 1, is

    sum over p of N! / (p! (k - p)! (l - p)! (N - k - l + p)!)
                  B_11^p B_01^(k + l - 2p) B_00^(N - k - l + p)

over the square root of C(N, k) C(N, l).  The matrices have at most j + 1 rows for any number of
attributes.  Source: our own; the sectors are those of Schur-Weyl duality for two states.

**Weights that are not products** (`CompositionBound`).  By symmetry the optimal weights of the
cells are invariant under permutations of the attributes.  The weight of a cell then depends only
on its *composition*: c_a of the attributes have the value a, with sum d.  The weights are shares of
compositions, and the bound is the nuclear norm of the mean, under the shares, of matrices M(c),
which have the sectors of `SymmetricPairs`.  With orthonormal functions phi_u of the values and a
unit vector w over the attributes, orthogonal to the constant, the columns of the sectors represent

    trivial        1,   sum_i phi_u(x_i) / root(d),   sum_{i<j} S(x_i, x_j) / root(P)
    standard       sum_i w_i phi_u(x_i),   sum_{i<j} (w_i + w_j) S(x_i, x_j) / root(d - 2),
                   sum_{i<j} (w_j - w_i) L(x_i, x_j) / root(d)
    two rows       S(x_i, x_j) of all pairs, orthogonal to the sectors above
    antisymmetric  L(x_i, x_j) of all pairs, orthogonal to the sectors above

so that every M(c) is a combination of sums over values, for any d.  The bound is concave in the
shares.  The cost of a cell with composition c is <M^(-1/2), M(c)>.  If no cell costs more than the
norm itself, the bound is the optimum of all matrix mechanisms.  `shares_norm` adds the most costly
compositions until none costs more than the norm.  Any shares give a valid bound, so that it may
leave out compositions and end at any time.  Source: our own.
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
    PROBES,
    Backpropagate,
    Frame,
    Key,
    Link,
    LinkedQueries,
    State,
    nuclear,
    root_trace,
)
from engine.residuals import basis
from engine.residuals.basis import Role


@dataclass(kw_only=True, eq=False)
class Terms:
    """Query weights of a workload on single attributes and pairs that is symmetric in all
    attributes.

    Attributes
    ----------
    total : weight of the total.
    single : weights of the queries on each attribute, by key of the query family.
    pair : weights of the queries on each pair of attributes, by (key, key) for a product of two
        families, or (key,) for one part on both attributes.
    """

    total: float = 0.0
    single: dict[Key, float] = field(default_factory=dict)
    pair: dict[tuple[Key, ...], float] = field(default_factory=dict)


def symmetric_terms(linked_queries: LinkedQueries, link: Link) -> Terms | None:
    """Return the query weights of a link that is invariant under permutations of its attributes.

    A link is a problem on the free attributes of a workload.  The result is None if it is not
    invariant, has fewer than 3 attributes, or has queries on more than 2 attributes.
    """
    names = link.names
    if len(names) < 3 or len({linked_queries.roles[name] for name in names}) > 1:
        return None
    by_set: dict[tuple[str, ...], dict[tuple[Key, ...], float]] = {}
    for pieces, weight in link.terms.items():
        sorted_pieces = sorted(((part, key) for part, key in pieces), key=lambda p: p[0])
        attributes = tuple(name for part, _ in sorted_pieces for name in part)
        if len(attributes) > 2:
            return None
        if len(sorted_pieces) == 1 and len(attributes) == 2:
            transposed = (
                attributes != tuple(sorted(attributes))
                and not linked_queries.swaps[sorted_pieces[0][1]]
            )
            # One part on both attributes has three entries (key, transposed, -1), a product of two
            # parts has two entries (key, key).
            keys: tuple[Key, ...] = (sorted_pieces[0][1], int(transposed), -1)
        else:
            keys = tuple(key for _, key in sorted_pieces)
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
        elif _is_symmetric(
            linked_queries, linked_queries.sizes[linked_queries.roles[names[0]]], term_sets[0]
        ):
            for keys, weight in term_sets[0].items():
                family_keys = keys[:1] if keys[2:] else keys
                out.pair[family_keys] = out.pair.get(family_keys, 0.0) + weight
        else:
            return None
    return out


def _is_symmetric(
    linked_queries: LinkedQueries, n: int, terms: Mapping[tuple[Key, ...], float]
) -> bool:
    """Return whether the queries on a pair do not change when its two attributes are swapped.

    The weighted squared answers to random tables and to their transposes are compared.  Both
    attributes have n cells.  ``terms`` maps keys to weights: (key, key) for a product, and
    (key, 1 if transposed else 0, -1) for one part on both attributes.
    """
    rng = np.random.default_rng(0)
    for _ in range(PROBES):
        x = rng.standard_normal((n, n))
        totals = []
        for table in (x, x.T):
            total = 0.0
            for keys, weight in terms.items():
                rows = linked_queries.rows[keys[0]]
                if keys[2:]:  # one part on both attributes
                    answers = rows @ (table.T if keys[1] else table).ravel()
                else:
                    answers = rows @ table @ linked_queries.rows[keys[1]].T
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
        """Return the coefficients of m query rows in this basis, shape (m, pairs).

        ``Z`` holds their coefficients in the basis f_i (x) f_j, shape (m, k, k).
        """
        return (Z[:, self.I, self.J] + self.sign * Z[:, self.J, self.I]) * self.c

    def tables(self, X: Array) -> Array:
        """Apply the transpose of the linear map `columns`, from shape (m, pairs) to (m, k, k)."""
        out = np.zeros((len(X), self.k, self.k))
        # two statements, because an entry with I = J receives both terms
        out[:, self.I, self.J] += X * self.c
        out[:, self.J, self.I] += self.sign * X * self.c
        return out


@dataclass(kw_only=True, eq=False)
class Slab:
    """Query rows that are part of the matrices of several sectors (diagonal blocks).

    Attributes
    ----------
    rows : the query rows, shape (m, columns).
    by_rows : accumulated derivative of the nuclear norm with respect to the rows.
    backpropagate : function that takes this derivative and adds the derivatives with respect to the
        queries on single attributes to the `State`.
    """

    rows: Array
    by_rows: Array
    backpropagate: Callable[[Array], None]


@dataclass(frozen=True, kw_only=True, eq=False)
class Sector:
    """A diagonal block of the matrix of a workload that is symmetric in its attributes.

    Attributes
    ----------
    name : name of the block in the module's docstring.
    times : number of occurrences of the block.
    width : number of columns.
    placed : the slabs whose rows the block stacks.  Each slab comes with tuples (columns of the
        slab, first column of the block that they fill, coefficient by which they are multiplied).
    """

    name: str
    times: float
    width: int
    placed: list[tuple[Slab, list[tuple[slice, int, float]]]]

    def matrix(self) -> Array:
        """Return the matrix of this block, shape (rows, width): its slabs stacked vertically."""
        out = []
        for slab, places in self.placed:
            block = np.zeros((len(slab.rows), self.width))
            for columns, start, coefficient in places:
                values = slab.rows[:, columns]
                block[:, start : start + values.shape[1]] = coefficient * values
            out.append(block)
        return np.concatenate(out)

    def backpropagate(self, by_matrix: Array) -> None:
        """Add to every slab the derivative of the nuclear norm with respect to its rows.

        ``by_matrix`` is the derivative with respect to the matrix of this block, (rows, width).
        """
        row = 0
        for slab, places in self.placed:
            slab_derivative = by_matrix[row : row + len(slab.rows)]
            for columns, start, coefficient in places:
                width = slab.rows[:, columns].shape[1]
                slab.by_rows[:, columns] += coefficient * slab_derivative[:, start : start + width]
            row += len(slab_derivative)


class SymmetricPairs:
    """Nuclear norm of queries on single attributes and pairs that are symmetric in all attributes.

    Parameters
    ----------
    d, role : number of attributes, and the index of the equivalence class to which all belong.
    terms : weights of the queries on each attribute and each pair.
    k : number of functions that represent the queries on an attribute, including the constant.
    """

    def __init__(self, d: int, role: Role, terms: Terms, k: int) -> None:
        self.d, self.role, self.terms, self.k = d, role, terms, k

    def value(self, state: State) -> tuple[float, Backpropagate]:
        """Return a lower bound on the nuclear norm, and the function that adds its derivatives."""
        frame = state.frame(self.role, self.k)
        inside, inside_backpropagate = self._inside(self.d, self.terms, state)
        sums = [self._outside(m, frame, state) for m in (1, 2)] if self.k < len(frame.s) else []
        value = inside + math.fsum(total for total, _ in sums)

        def backpropagate(outer: float) -> None:
            inside_backpropagate(outer)
            for m, (total, summands) in enumerate(sums, start=1):
                for keys, t, norm, summand_backpropagate in summands:
                    if t * norm > 0.0:
                        share = outer * math.comb(self.d, m) ** 2 * t * norm / total
                        summand_backpropagate(share * t)
                        for key in keys:
                            frame.families[key].by_t += share * t * norm / frame.families[key].t

        return value, backpropagate

    def _outside(
        self, m: int, frame: Frame, state: State
    ) -> tuple[float, list[tuple[tuple[Key, ...], float, float, Backpropagate]]]:
        """Return the sum of the nuclear norms over all choices of m attributes outside K.

        Attributes outside K are represented by the scalar t instead of the functions K.  The norm
        of a choice is the root of the sum of the squared summands.

        Returns
        -------
        total : the sum over all choices.
        summands : tuples (keys, t, norm, backpropagate), one per combination of families on the m
            attributes; all choices of attributes have the same summands.  ``keys`` are the keys of
            the families, ``t`` the product of their scalars, ``norm`` the nuclear norm on all other
            attributes.  The summand is t * norm.
        """
        remaining: dict[tuple[Key, ...], Terms] = {}
        products = {keys: weight for keys, weight in self.terms.pair.items() if len(keys) == 2}
        if m == 1:
            for key, weight in self.terms.single.items():
                remaining.setdefault((key,), Terms()).total += weight
            for (key, other), weight in products.items():
                remaining.setdefault((key,), Terms()).single[other] = weight
        else:
            for keys, weight in products.items():
                remaining.setdefault(keys, Terms()).total += weight
        summands = []
        for outside_keys, terms in remaining.items():
            t = float(math.prod(frame.families[key].t for key in outside_keys))
            if t > 0.0:
                summands.append((outside_keys, t, *self._inside(self.d - m, terms, state)))
        norm_of_choice = math.sqrt(math.fsum((t * norm) ** 2 for _, t, norm, _ in summands))
        return math.comb(self.d, m) * norm_of_choice, summands

    def _inside(self, d: int, terms: Terms, state: State) -> tuple[float, Backpropagate]:
        """Return the nuclear norm of the queries on d attributes, represented by the functions K.

        The second result is the function that adds its derivatives to the `State`.
        """
        blocks = sectors(d, self.k if terms.single or terms.pair else 1, terms, state, self.role)
        slabs = list(dict.fromkeys(slab for sector in blocks for slab, _ in sector.placed))
        norms = [nuclear(sector.matrix(), state.derivative) for sector in blocks]

        def backpropagate(outer: float) -> None:
            for slab in slabs:
                slab.by_rows[:] = 0.0
            for sector, (_, by_matrix) in zip(blocks, norms, strict=True):
                sector.backpropagate(outer * sector.times * by_matrix)
            for slab in slabs:
                slab.backpropagate(slab.by_rows)

        return (
            math.fsum(
                sector.times * value for sector, (value, _) in zip(blocks, norms, strict=True)
            ),
            backpropagate,
        )


def sectors(d: int, k: int, terms: Terms, state: State, role: Role) -> list[Sector]:
    """Return the diagonal blocks of queries that are symmetric in all d attributes.

    ``terms`` are the weights of the queries.  Queries on an attribute are represented by k
    functions of its cells, the constant included.
    """
    frame, u = state.frame(role, k), k - 1
    total = [_slab(np.full((1, 1), math.sqrt(terms.total)), lambda by: None)] if terms.total else []
    single = [_single(frame, key, weight) for key, weight in terms.single.items()]
    even, odd = list[Slab](), list[Slab]()  # symmetric and antisymmetric parts of pairs
    for keys, weight in terms.pair.items():
        for sign, slabs in ((1, even), (-1, odd)):
            if len(keys) == 2:
                slabs.append(_product(frame, keys, weight, sign))
            elif (slab := _joint(state, role, k, keys, weight, sign)) is not None:
                slabs.append(slab)
    # number of symmetric and of antisymmetric pairs of functions without the constant
    S, L = k * u // 2, u * (u - 1) // 2
    # columns of the slab of a single attribute: the constant function, and all other functions
    zero, one = slice(0, 1), slice(1, None)
    # Columns of the slab of a pair of attributes: products of a function with the constant, and
    # products of two other functions.  The first line is for symmetric parts, the second one for
    # antisymmetric parts.
    sums, pairs = slice(1, k), slice(k, None)
    odd_sums, odd_pairs = slice(0, u), slice(u, None)
    trivial = [
        *((slab, [(zero, 0, 1.0)]) for slab in total),
        *((slab, [(zero, 0, math.sqrt(d)), (one, 1, 1.0)]) for slab in single),
        *(
            (
                slab,
                [
                    (zero, 0, math.sqrt(d * (d - 1) / 2)),
                    (sums, 1, math.sqrt(d - 1)),
                    (pairs, k, 1.0),
                ],
            )
            for slab in even
        ),
    ]
    standard = [
        *((slab, [(one, 0, 1.0)]) for slab in single),
        *((slab, [(sums, 0, math.sqrt(d / 2 - 1)), (pairs, u, 1.0)]) for slab in even if d > 2),
        *((slab, [(odd_sums, 0, math.sqrt(d / 2)), (odd_pairs, u + S, 1.0)]) for slab in odd),
    ]
    out = [
        Sector(name="trivial", times=1.0, width=1 + u + (S if even else 0), placed=trivial),
        Sector(
            name="standard", times=d - 1.0, width=u + S + L if even or odd else u, placed=standard
        ),
        Sector(
            name="two rows",
            times=d * (d - 3) / 2,
            width=S,
            placed=[(slab, [(pairs, 0, 1.0)]) for slab in even],
        ),
        Sector(
            name="antisymmetric",
            times=(d - 1) * (d - 2) / 2,
            width=L,
            placed=[(slab, [(odd_pairs, 0, 1.0)]) for slab in odd],
        ),
    ]
    return [sector for sector in out if sector.times > 0 and sector.width and sector.placed]


def _slab(rows: Array, backpropagate: Callable[[Array], None]) -> Slab:
    return Slab(rows=rows, by_rows=np.zeros(rows.shape), backpropagate=backpropagate)


def _single(frame: Frame, key: Key, weight: float) -> Slab:
    family, root = frame.families[key], math.sqrt(weight)

    def backpropagate(by: Array) -> None:
        family.by_root += root * by

    return _slab(root * family.R, backpropagate)


def _joint(
    state: State, role: Role, k: int, keys: tuple[Key, ...], weight: float, sign: int
) -> Slab | None:
    """Return the symmetric (sign 1) or antisymmetric (sign -1) component of queries on a pair.

    The queries are those of one part on both attributes.  The result is None if the component is 0.
    """
    joint, columns = state.joint(keys[0], ((role, k), (role, k))), PairColumns(k, sign)
    rows = math.sqrt(weight) * columns.columns(joint.Z)
    if np.abs(rows).max(initial=0.0) <= 1e-13 * np.abs(joint.Z).max():
        return None  # up to rounding errors, the queries have no component of this sign

    def backpropagate(by: Array) -> None:
        joint.by_rows += math.sqrt(weight) * columns.tables(by)

    return _slab(rows, backpropagate)


def _product(frame: Frame, keys: tuple[Key, ...], weight: float, sign: int) -> Slab:
    """Return the symmetric (sign 1) or antisymmetric (sign -1) component of products of
    families."""
    first, second = (frame.families[key] for key in keys)
    root, columns = math.sqrt(weight), PairColumns(frame.K.shape[1], sign)
    shape = (len(first.R), len(second.R))
    # if both families are equal, the rows of the component are symmetric or antisymmetric, too
    rows = PairColumns(len(first.R), sign) if first is second else None
    values = columns.columns(
        np.einsum("ip,jq->ijpq", first.R, second.R).reshape(-1, *(columns.k,) * 2)
    )
    if rows is not None:
        values = rows.columns(values.T.reshape(-1, *shape)).T

    def backpropagate(by: Array) -> None:
        if rows is not None:
            by = rows.tables(by.T).reshape(by.shape[1], -1).T
        by = columns.tables(root * by).reshape(*shape, columns.k, columns.k)
        first.by_root += np.einsum("ijpq,jq->ip", by, second.R, optimize=True)
        second.by_root += np.einsum("ijpq,ip->jq", by, first.R, optimize=True)

    return _slab(root * values, backpropagate)


# number of functions per attribute, including the constant, that `SymmetricProducts` uses
FUNCTIONS_PER_ATTRIBUTE = 2
# weights of products: number of attributes -> key of the query family -> weight
Orders = Mapping[int, Mapping[Key, float]]


def product_orders(linked_queries: LinkedQueries, link: Link) -> Orders | None:
    """Return the weights of the products of a link that is symmetric in all attributes.

    The result maps a number of attributes to the weights of the products on every attribute set of
    this size, by query family.  Parts on several attributes are left out, which can only lower the
    bound.

    The result is None if the attributes are not equivalent, if a product has different families, if
    the products or their weights differ between two attribute sets of equal size, or if there are
    no products except the total.
    """
    names = link.names
    if len({linked_queries.roles[name] for name in names}) != 1:
        return None
    by_set: dict[tuple[str, ...], dict[Key, float]] = {}
    for pieces, weight in link.terms.items():
        if any(len(part) > 1 for part, _ in pieces):
            continue
        keys = {key for _, key in pieces}
        if len(keys) > 1:
            return None
        weights = by_set.setdefault(tuple(sorted(part[0] for part, _ in pieces)), {})
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
class Elements:
    """Matrix of a sector whose elements are polynomials in the Gram C = [[a, b], [b, c]].

    Attributes
    ----------
    at : for every term of the polynomials, its element in the flattened matrix.
    counts, powers : coefficient and powers of every term: term t is counts[t] a^i b^j c^k det(C)^l
        with (i, j, k, l) = powers[t].
    width : order of the matrix.
    """

    at: Index
    counts: Array
    powers: Index
    width: int

    def matrix(self, gram: Array) -> tuple[Array, list[Array]]:
        """Return the matrix for the 2 x 2 Gram C, and its derivatives with respect to a, b and c.

        C = [[a, b], [b, c]].  All matrices have shape (width, width).
        """
        (a, b), (_, c) = gram.tolist()
        values = np.array([a, b, c, max(a * c - b * b, 0.0)])
        table = values ** np.maximum(self.powers, 0)
        derivatives = [self.counts * self._derivative(k, values, table) for k in range(4)]
        matrices = [self._placed(x) for x in (self.counts * table.prod(axis=1), *derivatives)]
        return matrices[0], [
            matrices[1] + c * matrices[4],
            matrices[2] - 2.0 * b * matrices[4],
            matrices[3] + a * matrices[4],
        ]

    def _derivative(self, k: int, values: Array, table: Array) -> Array:
        """Return the derivative of every term with respect to ``values[k]``, shape (terms,).

        ``values`` holds a, b, c and det(C); ``table`` holds their powers in every term, shape
        (terms, 4).  The coefficients ``counts`` are not multiplied.
        """
        power = self.powers[:, k]
        derivative = power * values[k] ** np.maximum(power - 1, 0)
        return np.asarray(derivative * np.delete(table, k, axis=1).prod(axis=1))

    def _placed(self, terms: Array) -> Array:
        """Return the matrix whose elements are the sums of the terms, shape (width, width)."""
        out: Array = np.zeros(self.width**2)
        np.add.at(out, self.at, terms)
        return out.reshape(self.width, self.width)


@lru_cache(maxsize=1024)
def antisymmetric_sector(d: int, pairs: int, order: int, width: int) -> Elements:
    """Return one sector of the Gram of the products on all sets of ``order`` among d attributes.

    The sector is the one with ``pairs`` antisymmetric pairs of attributes (notation of the module's
    docstring).  Its matrix has ``width`` rows and columns.
    """
    remaining = d - 2 * pairs
    # tuples (position of the element, coefficient, powers of a, b, c and det(C))
    terms: list[tuple[int, float, tuple[int, ...]]] = []
    # k and m of the remaining attributes have function 1 in the row and in the column
    for k in range(min(width, remaining + 1)):
        for m in range(min(width, remaining + 1)):
            norm = math.sqrt(math.comb(remaining, k) * math.comb(remaining, m))
            # numbers of attributes with function 1 in both, and in none
            for both in range(max(0, k + m - remaining), min(k, m) + 1):
                none = remaining - k - m + both
                ways = (
                    math.comb(remaining, k)
                    * math.comb(k, both)
                    * math.comb(remaining - k, m - both)
                )
                for q in range(pairs + 1):  # power of det(C)
                    a = order - pairs - (k + m - both) - q  # power of z a in the entries B_00
                    if 0 <= a <= none:
                        count = ways / norm * math.comb(none, a) * math.comb(pairs, q)
                        terms.append(
                            (k * width + m, count, (a, k + m - 2 * both, both + pairs - q, q))
                        )
    return Elements(
        at=np.array([place for place, _, _ in terms], dtype=np.int64),
        counts=np.array([count for _, count, _ in terms]),
        powers=np.array([powers for _, _, powers in terms], dtype=np.int64).reshape(-1, 4),
        width=width,
    )


class SymmetricProducts:
    """Nuclear norm of products of any number of attributes that are symmetric in all d attributes.

    ``orders`` is the result of `product_orders`, the weights of the products.
    """

    def __init__(self, d: int, role: Role, orders: Orders) -> None:
        self.d, self.role, self.orders = d, role, orders

    def value(self, state: State) -> tuple[float, Backpropagate]:
        """Return a lower bound on the nuclear norm, and the function that adds its derivatives."""
        families = state.frame(self.role, FUNCTIONS_PER_ATTRIBUTE).families
        sums = []
        for outside in range(max(self.orders) + 1):  # number of attributes outside K
            summands = []
            for key in families if outside else (None,):
                t = families[key].t ** outside if key is not None else 1.0
                if t > 0.0 and (remaining := self._remaining_orders(outside, key)):
                    summands.append((key, t, *self._inside(self.d - outside, remaining, state)))
            total = math.sqrt(math.fsum((t * norm) ** 2 for _, t, norm, _ in summands))
            sums.append((outside, math.comb(self.d, outside), total, summands))

        def backpropagate(outer: float) -> None:
            for outside, count, total, summands in sums:
                for key, t, norm, by_grams in summands:
                    if norm > 0.0:
                        share = outer * count * t * norm / total
                        for family, by_gram in by_grams.items():
                            width = len(families[family].by_gram)
                            families[family].by_gram += share * t * by_gram[:width, :width]
                        if key is not None:
                            families[key].by_t += share * norm * outside * t / families[key].t

        return math.fsum(count * total for _, count, total, _ in sums), backpropagate

    def _remaining_orders(self, outside: int, key: Key | None) -> dict[int, Mapping[Key, float]]:
        """Return what remains of the products without some of their attributes.

        ``outside`` is the number of removed attributes.  The result has the form of
        `product_orders`, for the remaining attributes.  It includes products of the family ``key``
        only, or of all families if ``key`` is None.
        """
        out: dict[int, Mapping[Key, float]] = {}
        for order, terms in self.orders.items():
            weights = {k: weight for k, weight in terms.items() if key is None or k == key}
            if order >= outside and weights:
                out[order - outside] = weights
        return out

    def _inside(self, d: int, orders: Orders, state: State) -> tuple[float, dict[Key, Array]]:
        """Return the nuclear norm of products on d attributes, and its derivatives.

        ``orders`` holds the weights of the products in the form of `product_orders`.  The second
        result maps every family to the derivative with respect to its Gram C, shape (2, 2).
        """
        families = state.frame(self.role, FUNCTIONS_PER_ATTRIBUTE).families
        value, by_grams = 0.0, dict[Key, Array]()
        for pairs in range(min(max(orders), d // 2) + 1):
            times = math.comb(d, pairs) - (math.comb(d, pairs - 1) if pairs else 0)
            width = max(orders) - pairs + 1
            M, slopes = np.zeros((width, width)), list[tuple[Key, float, list[Array]]]()
            for order, terms in orders.items():
                for key, weight in terms.items() if order >= pairs else ():
                    gram = np.zeros((2, 2))
                    if key in families:  # an attribute with one cell has only one function
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
                    by_grams[key] += [[a, b / 2.0], [b / 2.0, c]]
        return value, by_grams


# singular values of a sector's query rows below this share of the largest count as 0
RANK_TOLERANCE = 1e-10


@dataclass(frozen=True, kw_only=True, eq=False)
class SectorMoments:
    """Matrix of one sector, shape (r, r), as a function of the composition c.

    A composition says how many attributes c_a have the value a, for each value.  The matrix is

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
        """Return the traces for absolute values of all coefficients, shape (m,).

        They are upper bounds on the spectral norms of the summands of the m matrices, to which the
        rounding errors are proportional.
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

    def transformed(self, Z: Array) -> SectorMoments:
        """Return the object whose matrices are Z M Z^T for the matrices M of this object.

        ``Z`` has shape (s, r).
        """
        return replace(self, single=self.single @ Z.T, x=self.x @ Z.T)

    def _vectors(self, counts: Array) -> tuple[Array, Array]:
        """Return the vectors g_a of m compositions, and how many attribute pairs have each value
        pair.

        Shapes (m, n, r) and (m, n, n).  A pair of attributes with different values is counted half
        at (a, b) and half at (b, a).
        """
        n, _, r = self.x.shape
        g = self.single + (counts @ self.x.transpose(1, 0, 2).reshape(n, n * r)).reshape(-1, n, r)
        pair_counts = counts[:, :, None] * counts[:, None, :] / 2.0
        pair_counts[:, range(n), range(n)] -= counts / 2.0
        return g, pair_counts


def moments(d: int, values: Array, sector: Sector) -> SectorMoments:
    """Return the matrix of a sector of d attributes as a function of the composition.

    ``values`` holds the values of all functions except the constant on the n cells, shape (n, u).
    """
    n, u = values.shape
    tables = values[:, None, :, None] * values[None, :, None, :]
    S, L = (
        PairColumns(u, sign).columns(tables.reshape(-1, u, u)).reshape(n, n, -1) for sign in (1, -1)
    )
    rows = sector.matrix()
    _, singular_values, V = np.linalg.svd(rows, full_matrices=False)
    nonzero = singular_values > RANK_TOLERANCE * singular_values.max(initial=0.0)
    # rows with negligible singular values are dropped; this can only lower the bound
    rows = singular_values[nonzero, None] * V[nonzero]
    moments_of = {
        "trivial": lambda: _trivial(d, values, S, rows),
        "standard": lambda: _standard(d, values, S, L, rows),
        "two rows": lambda: _pairs(d - 2, S, rows, sector.times, 1.0 / (2.0 * (d - 1))),
        "antisymmetric": lambda: _pairs(d, L, rows, sector.times, 0.0),
    }
    return replace(moments_of[sector.name](), times=sector.times)


def _trivial(d: int, values: Array, S: Array, rows: Array) -> SectorMoments:
    zero, one, pairs = rows[:, :1], rows[:, 1 : 1 + values.shape[1]], rows[:, 1 + values.shape[1] :]
    x = S[:, :, : pairs.shape[1]] @ pairs.T / math.sqrt(2.0 * d * (d - 1))
    # the coefficient of the constant is divided evenly among the d attributes
    single = zero.T / d + values @ one.T / math.sqrt(d) - np.einsum("aar->ar", x)
    return SectorMoments(times=1.0, single=single, x=x, total=1.0)


def _standard(d: int, values: Array, S: Array, L: Array, rows: Array) -> SectorMoments:
    u = values.shape[1]
    one, even, odd = rows[:, :u], rows[:, u : u + S.shape[2]], rows[:, u + S.shape[2] :]
    x = S[:, :, : even.shape[1]] @ even.T / math.sqrt(d - 2)
    single = values @ one.T - np.einsum("aar->ar", x)
    x = x + (L[:, :, : odd.shape[1]] @ odd.T / math.sqrt(d)).transpose(1, 0, 2)
    return SectorMoments(
        times=1.0, single=single, x=x, value=1.0 / (d - 1), total=-1.0 / (d * (d - 1))
    )


def _pairs(k: int, table: Array, rows: Array, times: float, total: float) -> SectorMoments:
    x = table @ rows.T / math.sqrt(k)
    return SectorMoments(
        times=1.0,
        single=-np.einsum("aar->ar", x),
        x=x,
        pair=k / times,
        value=-1.0 / times,
        total=total / times,
    )


# Initial compositions (numbers of attributes with each value) are drawn from Dirichlet
# distributions with these concentrations; their mean is proportional to the weights of the values
# of an attribute.
CONCENTRATIONS = (0.4, 1.2, 4.0)
# number of initial compositions per concentration
INITIAL_COMPOSITIONS = 100
# number of starting points of a search for the most costly composition; half of them are random
SEARCH_STARTS = 16
# number of candidates per step of this search; each changes the value of one attribute
CANDIDATE_MOVES = 12
# the compositions that a round adds get this share of the weight together
ADDED_SHARE = 0.05
# compositions with less than this share of the weight are dropped
MIN_SHARE = 1e-7
# largest number of rounds of the search; each adds compositions and optimizes their shares
ROUNDS = 100
# a composition is added only if its cost exceeds the norm by more than this share
COST_TOLERANCE = 1e-4
# largest number of L-BFGS steps for the shares in one round
LBFGS_STEPS = 25
# `shares_norm` does not search if the matrices of the initial compositions have more entries
MAX_ENTRIES = 30_000_000


@dataclass(frozen=True, kw_only=True, eq=False)
class Compositions:
    """Compositions (numbers of attributes with each value), and their matrices in every sector.

    Attributes
    ----------
    counts : the compositions, shape (m, n).
    matrices : one array per sector, shapes (m, r, r).
    sizes : results of `SectorMoments.sizes`, one array per sector, shape (m,).
    """

    counts: Array
    matrices: list[Array]
    sizes: list[Array]

    def only(self, which: Index) -> Compositions:
        """Return the compositions with the indices ``which``, shape (k,)."""
        return Compositions(
            counts=self.counts[which],
            matrices=[x[which] for x in self.matrices],
            sizes=[x[which] for x in self.sizes],
        )

    def and_more(self, other: Compositions) -> Compositions:
        """Return these compositions followed by those of ``other``."""
        return Compositions(
            counts=np.concatenate([self.counts, other.counts]),
            matrices=[
                np.concatenate(pair) for pair in zip(self.matrices, other.matrices, strict=True)
            ],
            sizes=[np.concatenate(pair) for pair in zip(self.sizes, other.sizes, strict=True)],
        )


class CompositionBound:
    """The nuclear norm as a function of the shares of the total weight that compositions have.

    Parameters
    ----------
    linked_queries : a reduced workload that is invariant under permutations of its free attributes.
    role, d : equivalence class, and number, of the free attributes.
    terms : weights on every attribute and every pair.
    """

    def __init__(self, linked_queries: LinkedQueries, role: Role, d: int, terms: Terms) -> None:
        self.d, self.n = d, linked_queries.sizes[role]
        n = self.n
        constant = np.full(n, n**-0.5)
        state = State(
            linked_queries,
            {role: constant},
            {role: np.column_stack([np.ones(n), basis(n)])},
            derivative=False,
        )
        values = state.frame(role, n).K[:, 1:] / constant[:, None]
        self.sectors = [moments(d, values, sector) for sector in sectors(d, n, terms, state, role)]

    def of(self, counts: Array) -> Compositions:
        """Return the compositions ``counts``, shape (m, n), with their matrices."""
        return Compositions(
            counts=counts,
            matrices=[sector.matrices(counts) for sector in self.sectors],
            sizes=[sector.sizes(counts) for sector in self.sectors],
        )

    def norm(self, compositions: Compositions, shares: Array) -> tuple[float, list[Array]]:
        """Return a lower bound on the nuclear norm, and its derivatives.

        ``shares``, shape (m,), holds the share of each of the m compositions.  The derivatives are
        with respect to the mean matrix of every sector, one array of shape (r, r) per sector.
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

    def best(self, compositions: Compositions, shares: Array, deadline: float) -> Array:
        """Return shares that approximately maximize the norm, shape (m,).

        The search starts at the positive ``shares`` and ends at ``deadline``, on the clock of
        `planning_time`.
        """
        import scipy.optimize

        def negative_log_value(roots: Array) -> tuple[float, Array]:
            squares, total = roots**2, float(np.sum(roots**2))
            value, slopes = self.norm(compositions, squares)
            by_shares = sum(
                np.einsum("mij,ij->m", part, slope)
                for part, slope in zip(compositions.matrices, slopes, strict=True)
            )
            # the norm is homogeneous of degree 1/2
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

    def cost_moments(self, slopes: Sequence[Array]) -> list[SectorMoments]:
        """Return one `SectorMoments` per sector whose traces sum to the cost of a composition.

        ``slopes`` are the derivatives that `norm` returns, shapes (r, r).
        """
        return [
            sector.transformed(_root(2.0 * slope))
            for sector, slope in zip(self.sectors, slopes, strict=True)
        ]

    def costliest_composition(self, slopes: Sequence[Array], counts: Array) -> tuple[Array, Array]:
        """Search for compositions of large cost; return them, (m, n), and their costs, (m,).

        The m searches start at the compositions ``counts``, shape (m, n).  A step changes the value
        of one attribute.  A search ends if none of the `CANDIDATE_MOVES` changes with the largest
        derivatives raises the cost.  ``slopes`` are the derivatives that `norm` returns.
        """
        cost_moments = self.cost_moments(slopes)
        moves = np.array(
            [
                np.eye(self.n)[b] - np.eye(self.n)[a]
                for a in range(self.n)
                for b in range(self.n)
                if a != b
            ]
        )

        def cost(counts: Array) -> Array:
            return np.asarray(sum(sector.traces(counts) for sector in cost_moments))

        current, costs, active = counts.copy(), cost(counts), np.arange(len(counts))
        while len(active):
            # change of the cost by every move, to first order
            gains = sum(sector.slopes(current[active]) for sector in cost_moments) @ moves.T
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
    linked_queries: LinkedQueries, roots: Mapping[Role, Array], deadline: float
) -> float:
    """Search for cell weights with a large nuclear norm until a deadline; return the largest norm.

    The weight of a cell depends only on its composition: how many attributes have each value.  The
    result is 0 if the workload changes when its free attributes are permuted, if it has no queries
    on pairs, or if the matrices of the initial compositions have more than `MAX_ENTRIES` entries.

    Parameters
    ----------
    roots : mapping from roles of attributes to square roots of the weights of their values, shape
        (n,), in the best product of weights so far; initial compositions are drawn near these.
    deadline : time at which the search ends, on the clock of `planning_time`.
    """
    terms = (
        symmetric_terms(linked_queries, linked_queries.links[0])
        if linked_queries.sums == [(1.0, {0: 1.0})]
        else None
    )
    if terms is None or not terms.pair or max(linked_queries.sizes.values()) < 2:
        return 0.0
    d, role = (
        len(linked_queries.links[0].names),
        linked_queries.roles[linked_queries.links[0].names[0]],
    )
    n = linked_queries.sizes[role]
    pair_rows = sum(
        len(linked_queries.rows[keys[0]]) if len(keys) == 1 else n * n for keys in terms.pair
    )
    width = n + min(n * (n - 1) // 2, pair_rows)  # order of the matrices of the four sectors
    if len(CONCENTRATIONS) * INITIAL_COMPOSITIONS * 4 * width**2 > MAX_ENTRIES:
        return 0.0
    with threads_for(width):
        return _search(CompositionBound(linked_queries, role, d, terms), roots[role] ** 2, deadline)


def _search(problem: CompositionBound, weights: Array, deadline: float) -> float:
    """Add the most costly compositions in rounds, and return the largest norm of a round.

    ``weights``, shape (n,), are weights of the values of an attribute; initial compositions are
    drawn near them.
    """
    rng, d = np.random.default_rng(0), problem.d

    def draw(concentration: float, count: int) -> Array:
        return round_compositions(d * rng.dirichlet(weights * d * concentration, size=count), d)

    compositions = problem.of(
        np.unique(np.concatenate([draw(x, INITIAL_COMPOSITIONS) for x in CONCENTRATIONS]), axis=0)
    )
    shares = np.full(len(compositions.counts), 1.0 / len(compositions.counts))
    value = 0.0
    for _ in range(ROUNDS):
        shares = problem.best(compositions, shares, deadline)
        nonzero = np.flatnonzero(shares > MIN_SHARE)
        compositions, shares = compositions.only(nonzero), shares[nonzero] / shares[nonzero].sum()
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
        # At optimal shares no composition costs more than the norm, and those with a positive share
        # cost exactly the norm.  So only more costly ones are added.
        new = np.unique(candidates[costs > norm * (1.0 + COST_TOLERANCE)], axis=0)
        new = new[~(new[:, None] == compositions.counts).all(axis=2).any(axis=1)]
        if not len(new):
            break
        compositions = compositions.and_more(problem.of(new))
        shares = np.concatenate(
            [shares * (1.0 - ADDED_SHARE), np.full(len(new), ADDED_SHARE / len(new))]
        )
    return value


def round_compositions(x: Array, d: int) -> Array:
    """Round x, shape (m, n), to nonnegative integers with sum d in every row.

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
