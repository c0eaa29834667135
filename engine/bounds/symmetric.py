"""Lower bounds of workloads invariant under permutations of attributes.

The nuclear norm of a link whose d attributes are asked alike, one by one and in pairs, sector by sector.

The symmetric group parts queries and excitations.  Rows of pairs are made symmetric and antisymmetric under the swap of
their two attributes, in the bases S and L of symmetric and antisymmetric pairs of K, where (0, u) stands for s (x) u.
Row by row (single, symmetric, antisymmetric), with P = d(d-1)/2:

    sector         times         columns    coefficients, column by column
    trivial        1             1 + U + S  single: root(d), 1; symmetric: root(P), root(d-1), 1
    standard       d-1           U + S + L  single: 1; symmetric: root(d/2 - 1), 1; antisymmetric: root(d/2), 1
    two rows       d(d-3)/2      S of U     symmetric: 1
    antisymmetric  (d-1)(d-2)/2  L of U     antisymmetric: 1

With m attributes outside K, C(d, m) choices, the other d - m are such a link again; see `excitations`.

The nuclear norm of a link that asks one product of every j attributes alike, for any j, with one function for each.

Beside the constant, 0, every attribute has one function, 1: the one that its queries couple to the constant most.  The
Gram of the products of all sets of j attributes is then the coefficient of z^j in

    B (x) B (x) ... (x) B,   d times,     B = [[1 + z a, z b], [z b, z c]],     C = [[a, b], [b, c]] of the family.

The symmetric group parts it as it parts d spins.  With m antisymmetric pairs, C(d, m) - C(d, m - 1) times, and with
N = d - 2m attributes left, it is det(B)^m times B on symmetric tables, whose element for k and l of them in state 1 is

    sum over p of N! / (p! (k - p)! (l - p)! (N - k - l + p)!) B_11^p B_01^(k + l - 2p) B_00^(N - k - l + p)

over the root of C(N, k) C(N, l).  Matrices have at most j + 1 rows, however many attributes there are.  Attributes
outside of K are as in `excitations`.  Source: our own; the sectors are those of Schur and Weyl for two states.

The bound where all attributes are asked alike, for weights that are no product of weights of the attributes.

By symmetry the best weights of the cells stay as they are when attributes trade places.  A cell then counts for its
*composition* alone: how many attributes have which value, c_a of them the value a, with sum d.  Weights are shares of
compositions, and the bound is the nuclear norm of the shares' mean of matrices M(c).  These fall into the sectors of
`alike`.  With orthonormal functions phi_u of the values and a unit vector w over the attributes, orthogonal to the
constant, the columns of a sector stand for

    trivial        1,   sum_i phi_u(x_i) / root(d),   sum_{i<j} S(x_i, x_j) / root(P)
    standard       sum_i w_i phi_u(x_i),   sum_{i<j} (w_i + w_j) S(x_i, x_j) / root(d - 2),
                   sum_{i<j} (w_j - w_i) L(x_i, x_j) / root(d)
    two rows       S(x_i, x_j) of all pairs, less what the sectors above hold of them
    antisymmetric  L(x_i, x_j) likewise

so that every M(c) is made of sums over values, whatever d is.  The bound is concave in the shares.  A cell costs
<M^(-1/2), M(c)>; where none costs more than the norm itself, the bound is the optimum of all matrix mechanisms.
Source: our own; `shares` searches.

The search for shares of compositions: more of those that cost most, until none costs more than the bound's norm.

Any shares prove a bound: it holds whatever compositions the search has missed, and however early it ends.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from engine._arrays import Array, Index
from engine._threads import threads_for
from engine.bounds.product_weights import PROBES, Back, Frame, Key, Link, Linked, State, nuclear, root_trace
from engine.residuals import basis
from engine.residuals.split import Role


@dataclass(kw_only=True, eq=False)
class Terms:
    """What is asked of every attribute and of every pair: weights by keys; a pair has two keys, a joint part one."""

    total: float = 0.0
    single: dict[Key, float] = field(default_factory=dict)
    pair: dict[tuple[Key, ...], float] = field(default_factory=dict)


def alike(asked: Linked, link: Link) -> Terms | None:
    """Return the terms of a link that is the same whatever the order of its attributes, or None."""
    names = link.names
    if len(names) < 3 or len({asked.roles[name] for name in names}) > 1:
        return None
    by_set: dict[tuple[str, ...], dict[tuple[Key, ...], float]] = {}
    for pieces, weight in link.terms.items():
        own = sorted(((part, key) for part, key in pieces), key=lambda p: p[0])
        inside = tuple(name for part, _ in own for name in part)
        if len(inside) > 2:
            return None
        if len(own) == 1 and len(inside) == 2:
            turned = inside != tuple(sorted(inside)) and not asked.swaps[own[0][1]]
            keys: tuple[Key, ...] = (own[0][1], int(turned), -1)  # told from a product by its length
        else:
            keys = tuple(key for _, key in own)
        terms = by_set.setdefault(tuple(sorted(inside)), {})
        terms[keys] = terms.get(keys, 0.0) + weight
    out = Terms(total=by_set.pop((), {}).get((), 0.0))
    for count in (1, 2):
        found = [terms for inside, terms in by_set.items() if len(inside) == count]
        if not found:
            continue
        if len(found) != math.comb(len(names), count) or any(terms != found[0] for terms in found[1:]):
            return None
        if count == 1:
            out.single = {keys[0]: weight for keys, weight in found[0].items()}
        elif _both_ways(asked, asked.sizes[asked.roles[names[0]]], found[0]):
            for keys, weight in found[0].items():
                own_keys = keys[:1] if keys[2:] else keys
                out.pair[own_keys] = out.pair.get(own_keys, 0.0) + weight
        else:
            return None
    return out


def _both_ways(asked: Linked, n: int, terms: Mapping[tuple[Key, ...], float]) -> bool:
    """Return whether pairs are asked the same in both orders, judged by the answers to random tables."""
    rng = np.random.default_rng(0)
    for _ in range(PROBES):
        x = rng.standard_normal((n, n))
        answers = []
        for table in (x, x.T):
            total = 0.0
            for keys, weight in terms.items():
                if keys[2:]:
                    total += weight * float(
                        np.sum((asked.rows[keys[0]] @ (table.T if keys[1] else table).ravel()) ** 2)
                    )
                else:
                    total += weight * float(np.sum((asked.rows[keys[0]] @ table @ asked.rows[keys[1]].T) ** 2))
            answers.append(total)
        if abs(answers[0] - answers[1]) > 1e-10 * max(answers):
            return False
    return True


class PairColumns:
    """Symmetric and antisymmetric pairs of k functions, (0, u) before (u, v), u, v > 0."""

    def __init__(self, k: int, sign: int) -> None:
        pairs = [(i, j) for i in range(k) for j in range(i + (sign < 0), k)]
        self.k, self.sign = k, sign
        self.I, self.J = (np.array([p[a] for p in pairs], dtype=np.int64) for a in (0, 1))
        self.c = np.where(self.I == self.J, 0.5, math.sqrt(0.5))

    def columns(self, Z: Array) -> Array:
        """Return rows Z, shape (m, k, k), in this basis."""
        return (Z[:, self.I, self.J] + self.sign * Z[:, self.J, self.I]) * self.c

    def tables(self, X: Array) -> Array:
        """Return the adjoint of `columns`: shape (m, k, k)."""
        out = np.zeros((len(X), self.k, self.k))
        # a pair stands once in the basis: (u, u) alone is added to twice, one after the other
        out[:, self.I, self.J] += X * self.c
        out[:, self.J, self.I] += self.sign * X * self.c
        return out


@dataclass(kw_only=True, eq=False)
class Slab:
    """Rows that several sectors share, their derivative, and what takes it to the state."""

    rows: Array
    by_rows: Array
    back: Callable[[Array], None]


@dataclass(frozen=True, kw_only=True, eq=False)
class Sector:
    """A matrix that occurs ``times`` times: for every slab (its columns, where they go, their coefficient)."""

    name: str
    times: float
    width: int
    placed: list[tuple[Slab, list[tuple[slice, int, float]]]]

    def matrix(self) -> Array:
        """Return the matrix, all slabs one above the other, shape (rows, width)."""
        out = []
        for slab, places in self.placed:
            block = np.zeros((len(slab.rows), self.width))
            for columns, start, coefficient in places:
                values = slab.rows[:, columns]
                block[:, start : start + values.shape[1]] = coefficient * values
            out.append(block)
        return np.concatenate(out)

    def back(self, by: Array) -> None:
        """Add a derivative by the matrix, of its shape, to the slabs."""
        at = 0
        for slab, places in self.placed:
            own = by[at : at + len(slab.rows)]
            for columns, start, coefficient in places:
                width = slab.rows[:, columns].shape[1]
                slab.by_rows[:, columns] += coefficient * own[:, start : start + width]
            at += len(own)


class Alike:
    """One link of attributes that are asked alike, with k functions for each.

    Parameters
    ----------
    d, role, terms : the number of attributes, their role, and what is asked of every one and every pair.
    k : number of functions, the constant one included.
    """

    def __init__(self, d: int, role: Role, terms: Terms, k: int) -> None:
        self.d, self.role, self.terms, self.k = d, role, terms, k

    def value(self, state: State) -> tuple[float, Back]:
        """Return a lower bound on the nuclear norm, and what takes a derivative by it to the state."""
        frame = state.frame(self.role, self.k)
        own, own_back = self._inside(self.d, self.terms, state)
        sums = [self._outside(m, frame, state) for m in (1, 2)] if self.k < len(frame.s) else []
        value = own + math.fsum(total for total, _ in sums)

        def back(outer: float) -> None:
            own_back(outer)
            for m, (total, ways) in enumerate(sums, start=1):
                for keys, t, found, way_back in ways:
                    if t * found > 0.0:
                        share = outer * math.comb(self.d, m) ** 2 * t * found / total
                        way_back(share * t)
                        for key in keys:
                            frame.families[key].by_t += share * t * found / frame.families[key].t

        return value, back

    def _outside(
        self, m: int, frame: Frame, state: State
    ) -> tuple[float, list[tuple[tuple[Key, ...], float, float, Back]]]:
        """Return the sum for m attributes outside K, and how every way of asking them contributes."""
        ways: dict[tuple[Key, ...], Terms] = {}
        products = {keys: weight for keys, weight in self.terms.pair.items() if len(keys) == 2}
        if m == 1:
            for key, weight in self.terms.single.items():
                ways.setdefault((key,), Terms()).total += weight
            for (key, other), weight in products.items():
                ways.setdefault((key,), Terms()).single[other] = weight
        else:
            for keys, weight in products.items():
                ways.setdefault(keys, Terms()).total += weight
        out = []
        for way, terms in ways.items():
            t = math.prod(frame.families[key].t for key in way)
            if t > 0.0:
                out.append((way, t, *self._inside(self.d - m, terms, state)))
        return math.comb(self.d, m) * math.sqrt(math.fsum((t * v) ** 2 for _, t, v, _ in out)), out

    def _inside(self, d: int, terms: Terms, state: State) -> tuple[float, Back]:
        """Return the nuclear norm of d attributes on K, and what takes a derivative by it to the state."""
        found = sectors(d, self.k if terms.single or terms.pair else 1, terms, state, self.role)
        slabs = list(dict.fromkeys(slab for sector in found for slab, _ in sector.placed))
        norms = [nuclear(sector.matrix(), state.derivative) for sector in found]

        def back(outer: float) -> None:
            for slab in slabs:
                slab.by_rows[:] = 0.0
            for sector, (_, by) in zip(found, norms, strict=True):
                sector.back(outer * sector.times * by)
            for slab in slabs:
                slab.back(slab.by_rows)

        return math.fsum(sector.times * value for sector, (value, _) in zip(found, norms, strict=True)), back


def sectors(d: int, k: int, terms: Terms, state: State, role: Role) -> list[Sector]:
    """Return the sectors of d attributes on K."""
    frame, u = state.frame(role, k), k - 1
    total = [_slab(np.full((1, 1), math.sqrt(terms.total)), lambda by: None)] if terms.total else []
    single = [_single(frame, key, weight) for key, weight in terms.single.items()]
    even, odd = list[Slab](), list[Slab]()
    for keys, weight in terms.pair.items():
        for sign, side in ((1, even), (-1, odd)):
            slab = _product(frame, keys, weight, sign) if len(keys) == 2 else _joint(state, role, k, keys, weight, sign)
            if slab is not None:
                side.append(slab)
    S, L = k * u // 2, u * (u - 1) // 2
    zero, one, sums, rest, left = slice(0, 1), slice(1, None), slice(1, k), slice(k, None), slice(u, None)
    trivial = [
        *((slab, [(zero, 0, 1.0)]) for slab in total),
        *((slab, [(zero, 0, math.sqrt(d)), (one, 1, 1.0)]) for slab in single),
        *(
            (slab, [(zero, 0, math.sqrt(d * (d - 1) / 2)), (sums, 1, math.sqrt(d - 1)), (rest, k, 1.0)])
            for slab in even
        ),
    ]
    standard = [
        *((slab, [(one, 0, 1.0)]) for slab in single),
        *((slab, [(sums, 0, math.sqrt(d / 2 - 1)), (rest, u, 1.0)]) for slab in even if d > 2),
        *((slab, [(slice(0, u), 0, math.sqrt(d / 2)), (left, u + S, 1.0)]) for slab in odd),
    ]
    out = [
        Sector(name="trivial", times=1.0, width=1 + u + (S if even else 0), placed=trivial),
        Sector(name="standard", times=d - 1.0, width=u + S + L if even or odd else u, placed=standard),
        Sector(name="two rows", times=d * (d - 3) / 2, width=S, placed=[(slab, [(rest, 0, 1.0)]) for slab in even]),
        Sector(
            name="antisymmetric",
            times=(d - 1) * (d - 2) / 2,
            width=L,
            placed=[(slab, [(left, 0, 1.0)]) for slab in odd],
        ),
    ]
    return [sector for sector in out if sector.times > 0 and sector.width and sector.placed]


def _slab(rows: Array, back: Callable[[Array], None]) -> Slab:
    return Slab(rows=rows, by_rows=np.zeros(rows.shape), back=back)


def _single(frame: Frame, key: Key, weight: float) -> Slab:
    family, root = frame.families[key], math.sqrt(weight)

    def back(by: Array) -> None:
        family.by_root += root * by

    return _slab(root * family.R, back)


def _joint(state: State, role: Role, k: int, keys: tuple[Key, ...], weight: float, sign: int) -> Slab | None:
    joint, columns = state.joint(keys[0], ((role, k), (role, k))), PairColumns(k, sign)
    rows = math.sqrt(weight) * columns.columns(joint.Z)
    if np.abs(rows).max(initial=0.0) <= 1e-13 * np.abs(joint.Z).max():
        return None  # the queries do not change when the two attributes are swapped

    def back(by: Array) -> None:
        joint.by_rows += math.sqrt(weight) * columns.tables(by)

    return _slab(rows, back)


def _product(frame: Frame, keys: tuple[Key, ...], weight: float, sign: int) -> Slab:
    first, second = (frame.families[key] for key in keys)
    root, columns = math.sqrt(weight), PairColumns(frame.K.shape[1], sign)
    shape = (len(first.R), len(second.R))
    # rows of twice the same family fall into the two kinds themselves
    rows = PairColumns(len(first.R), sign) if first is second else None
    made = columns.columns(np.einsum("ip,jq->ijpq", first.R, second.R).reshape(-1, *(columns.k,) * 2))
    if rows is not None:
        made = rows.columns(made.T.reshape(-1, *shape)).T

    def back(by: Array) -> None:
        if rows is not None:
            by = rows.tables(by.T).reshape(by.shape[1], -1).T
        by = columns.tables(root * by).reshape(*shape, columns.k, columns.k)
        first.by_root += np.einsum("ijpq,jq->ip", by, second.R, optimize=True)
        second.by_root += np.einsum("ijpq,ip->jq", by, first.R, optimize=True)

    return _slab(root * made, back)


FUNCTIONS = 2  # of every attribute, the constant one included
Orders = Mapping[int, Mapping[Key, float]]  # number of attributes -> family -> weight


def product_orders(asked: Linked, link: Link) -> Orders | None:
    """Return what is asked of every set of so many attributes, or None where sets, or attributes, differ.

    Parts on several attributes at once are left out: a Gram without them is smaller, and so is its bound.
    """
    names = link.names
    if len({asked.roles[name] for name in names}) != 1:
        return None
    by_set: dict[tuple[str, ...], dict[Key, float]] = {}
    for pieces, weight in link.terms.items():
        if any(len(part) > 1 for part, _ in pieces):
            continue
        keys = {key for _, key in pieces}
        if len(keys) > 1:
            return None
        own = by_set.setdefault(tuple(sorted(part[0] for part, _ in pieces)), {})
        key = keys.pop() if keys else -1  # the total is of no family
        own[key] = own.get(key, 0.0) + weight
    out: dict[int, dict[Key, float]] = {}
    counts: dict[int, int] = {}
    for inside, terms in by_set.items():
        counts[len(inside)] = counts.get(len(inside), 0) + 1
        if out.setdefault(len(inside), terms) != terms:
            return None
    whole = all(count == math.comb(len(names), order) for order, count in counts.items())
    return out if whole and out and max(out) > 0 else None


@dataclass(frozen=True, kw_only=True, eq=False)
class Elements:
    """The elements of a sector's matrix as sums of ``count`` a^i b^j c^k det(C)^l, ``powers`` of shape (terms, 4)."""

    at: Index
    counts: Array
    powers: Index
    width: int

    def matrix(self, gram: Array) -> tuple[Array, list[Array]]:
        """Return the matrix for a Gram C, and its derivatives by a, b and c, each of shape (width, width)."""
        (a, b), (_, c) = gram.tolist()
        values = np.array([a, b, c, max(a * c - b * b, 0.0)])
        table = values ** np.maximum(self.powers, 0)
        by = [self.counts * self._lowered(k, values, table) for k in range(4)]
        made = [self._placed(x) for x in (self.counts * table.prod(axis=1), *by)]
        return made[0], [made[1] + c * made[4], made[2] - 2.0 * b * made[4], made[3] + a * made[4]]

    def _lowered(self, k: int, values: Array, table: Array) -> Array:
        """The derivative of the products by value k, without their counts."""
        power = self.powers[:, k]
        own = power * values[k] ** np.maximum(power - 1, 0)
        return np.asarray(own * np.delete(table, k, axis=1).prod(axis=1))

    def _placed(self, terms: Array) -> Array:
        out: Array = np.zeros(self.width**2)
        np.add.at(out, self.at, terms)
        return out.reshape(self.width, self.width)


@lru_cache(maxsize=1024)
def elements(d: int, pairs: int, order: int, width: int) -> Elements:
    """Return a sector of d attributes with so many antisymmetric pairs, for all sets of ``order`` attributes."""
    left, found = d - 2 * pairs, list[tuple[int, float, tuple[int, ...]]]()
    for k in range(min(width, left + 1)):
        for m in range(min(width, left + 1)):
            norm = math.sqrt(math.comb(left, k) * math.comb(left, m))
            for both in range(max(0, k + m - left), min(k, m) + 1):
                none = left - k - m + both
                ways = math.comb(left, k) * math.comb(k, both) * math.comb(left - k, m - both)
                for q in range(pairs + 1):
                    a = order - pairs - (k + m - both) - q  # times that z stands in the 1 + z a of the attributes left
                    if 0 <= a <= none:
                        count = ways / norm * math.comb(none, a) * math.comb(pairs, q)
                        found.append((k * width + m, count, (a, k + m - 2 * both, both + pairs - q, q)))
    return Elements(
        at=np.array([place for place, _, _ in found], dtype=np.int64),
        counts=np.array([count for _, count, _ in found]),
        powers=np.array([powers for _, _, powers in found], dtype=np.int64).reshape(-1, 4),
        width=width,
    )


class AlikeProducts:
    """One link of d attributes that are asked alike, in products of any order."""

    def __init__(self, d: int, role: Role, orders: Orders) -> None:
        self.d, self.role, self.orders = d, role, orders

    def value(self, state: State) -> tuple[float, Back]:
        """Return a lower bound on the nuclear norm, and what takes a derivative by it to the state."""
        families = state.frame(self.role, FUNCTIONS).families
        found = []
        for outside in range(max(self.orders) + 1):
            ways = []
            for key in families if outside else (None,):
                t = families[key].t ** outside if key is not None else 1.0
                if t > 0.0 and (rest := self._rest(outside, key)):
                    ways.append((key, t, *self._inside(self.d - outside, rest, state)))
            total = math.sqrt(math.fsum((t * value) ** 2 for _, t, value, _ in ways))
            found.append((outside, math.comb(self.d, outside), total, ways))

        def back(outer: float) -> None:
            for outside, count, total, ways in found:
                for key, t, value, by in ways:
                    if value > 0.0:
                        share = outer * count * t * value / total
                        for own, gradient in by.items():
                            width = len(families[own].by_gram)
                            families[own].by_gram += share * t * gradient[:width, :width]
                        if key is not None:
                            families[key].by_t += share * value * outside * t / families[key].t

        return math.fsum(count * total for _, count, total, _ in found), back

    def _rest(self, outside: int, key: Key | None) -> dict[int, Mapping[Key, float]]:
        """Return what is asked of the others where so many attributes are outside, all in the way of one family."""
        out: dict[int, Mapping[Key, float]] = {}
        for order, terms in self.orders.items():
            own = terms if key is None else {key: terms[key]} if key in terms else {}
            if order >= outside and own:
                out[order - outside] = own
        return out

    def _inside(self, d: int, orders: Orders, state: State) -> tuple[float, dict[Key, Array]]:
        """Return the nuclear norm of d attributes on K, and its derivatives by the Grams of the families."""
        families = state.frame(self.role, FUNCTIONS).families
        value, by = 0.0, dict[Key, Array]()
        for pairs in range(min(max(orders), d // 2) + 1):
            times = math.comb(d, pairs) - (math.comb(d, pairs - 1) if pairs else 0)
            width = max(orders) - pairs + 1
            M, slopes = np.zeros((width, width)), list[tuple[Key, float, list[Array]]]()
            for order, terms in orders.items():
                for key, weight in terms.items() if order >= pairs else ():
                    gram = np.zeros((2, 2))
                    if key in families:  # of an attribute of one cell there is one function alone
                        gram[: len(families[key].C), : len(families[key].C)] = families[key].C
                    made, slope = elements(d, pairs, order, width).matrix(gram)
                    M += weight * made
                    slopes.append((key, weight, slope))
            own, half = root_trace(M, state.derivative)
            value += times * own
            if half is None:
                continue
            for key, weight, slope in slopes:
                if key in families:
                    a, b, c = (times * weight * float(np.sum(half * s)) for s in slope)
                    by.setdefault(key, np.zeros((2, 2)))
                    by[key] += [[a, b / 2.0], [b / 2.0, c]]
        return value, by


RANK = 1e-10  # of the largest singular value: queries of a sector that count as nothing


@dataclass(frozen=True, kw_only=True, eq=False)
class SectorMoments:
    """The matrix of one sector for every composition c, shape (r, r):

        sum_{a<b} pair c_a c_b x_ab x_ab^T + pair (c_a choose 2) x_aa x_aa^T + value c_a g_a g_a^T + total g g^T,
        g_a = own_a + sum_b c_b x_ab,   g = sum_a c_a g_a.

    Attributes
    ----------
    times : how often the sector occurs.
    own, x : shapes (n, r) and (n, n, r).
    """

    times: float
    own: Array
    x: Array
    pair: float = 0.0
    value: float = 0.0
    total: float = 0.0

    def matrices(self, counts: Array) -> Array:
        """Return the matrices of compositions, shape (m, n), as shape (m, r, r)."""
        g, single, double = self._parts(counts)
        sums = np.einsum("ma,mar->mr", counts, g)
        out = self.total * sums[:, :, None] * sums[:, None, :]
        if self.value:
            out += self.value * (single[:, :, None] * g).transpose(0, 2, 1) @ g
        if self.pair:
            n, _, r = self.x.shape
            x = self.x.reshape(n * n, r)
            out += self.pair * np.array([(x * w.reshape(-1, 1)).T @ x for w in double])
        return np.asarray(out)

    def traces(self, counts: Array) -> Array:
        """Return the traces of these matrices, shape (m,)."""
        g, single, double = self._parts(counts)
        sums = np.einsum("ma,mar->mr", counts, g)
        out = self.total * np.sum(sums**2, axis=1)
        if self.value:
            out += self.value * np.sum(single * np.sum(g**2, axis=2), axis=1)
        if self.pair:
            out += self.pair * np.einsum("mab,ab->m", double, np.sum(self.x**2, axis=2))
        return np.asarray(out)

    def sizes(self, counts: Array) -> Array:
        """Return the traces of all terms, their signs left out, shape (m,): what rounding is held against."""
        return replace(self, pair=abs(self.pair), value=abs(self.value), total=abs(self.total)).traces(counts)

    def slopes(self, counts: Array) -> Array:
        """Return the derivative of these traces by every count, shape (m, n)."""
        n, _, r = self.x.shape
        g, single, _ = self._parts(counts)
        sums = np.einsum("ma,mar->mr", counts, g)
        moved = g + (counts @ self.x.reshape(n, n * r)).reshape(-1, n, r)  # of the sums
        out = 2.0 * self.total * np.einsum("mar,mr->ma", moved, sums)
        if self.value:
            weighed = (single[:, :, None] * g).reshape(-1, n * r)
            out += self.value * (np.sum(g**2, axis=2) + 2.0 * weighed @ self.x.transpose(0, 2, 1).reshape(n * r, n))
        if self.pair:
            squares = np.sum(self.x**2, axis=2)
            out += self.pair * (counts @ squares - np.diag(squares) / 2.0)
        return np.asarray(out)

    def turned(self, Z: Array) -> SectorMoments:
        """Return the same for Z M Z^T, with Z of shape (s, r)."""
        return replace(self, own=self.own @ Z.T, x=self.x @ Z.T)

    def _parts(self, counts: Array) -> tuple[Array, Array, Array]:
        n, _, r = self.x.shape
        g = self.own + (counts @ self.x.transpose(1, 0, 2).reshape(n, n * r)).reshape(-1, n, r)
        # pairs of attributes with values a and b, half of them with a before b
        double = counts[:, :, None] * counts[:, None, :] / 2.0
        double[:, range(n), range(n)] -= counts / 2.0
        return g, counts, double


def moments(d: int, values: Array, sector: Sector) -> SectorMoments:
    """Return the matrices of a sector of d attributes; ``values`` of all functions but the constant, shape (n, u)."""
    n, u = values.shape
    tables = values[:, None, :, None] * values[None, :, None, :]
    S, L = (PairColumns(u, sign).columns(tables.reshape(-1, u, u)).reshape(n, n, -1) for sign in (1, -1))
    rows = sector.matrix()
    _, sizes, V = np.linalg.svd(rows, full_matrices=False)
    kept = sizes > RANK * sizes.max(initial=0.0)
    # fewer rows have a smaller nuclear norm
    rows = sizes[kept, None] * V[kept]
    out = {
        "trivial": lambda: _trivial(d, values, S, rows),
        "standard": lambda: _standard(d, values, S, L, rows),
        "two rows": lambda: _pairs(d - 2, S, rows, sector.times, 1.0 / (2.0 * (d - 1))),
        "antisymmetric": lambda: _pairs(d, L, rows, sector.times, 0.0),
    }
    return replace(out[sector.name](), times=sector.times)


def _trivial(d: int, values: Array, S: Array, rows: Array) -> SectorMoments:
    zero, one, rest = rows[:, :1], rows[:, 1 : 1 + values.shape[1]], rows[:, 1 + values.shape[1] :]
    x = S[:, :, : rest.shape[1]] @ rest.T / math.sqrt(2.0 * d * (d - 1))
    # the constant is shared out: there are d attributes
    own = zero.T / d + values @ one.T / math.sqrt(d) - np.einsum("aar->ar", x)
    return SectorMoments(times=1.0, own=own, x=x, total=1.0)


def _standard(d: int, values: Array, S: Array, L: Array, rows: Array) -> SectorMoments:
    u = values.shape[1]
    one, even, odd = rows[:, :u], rows[:, u : u + S.shape[2]], rows[:, u + S.shape[2] :]
    x = S[:, :, : even.shape[1]] @ even.T / math.sqrt(d - 2)
    own = values @ one.T - np.einsum("aar->ar", x)
    x = x + (L[:, :, : odd.shape[1]] @ odd.T / math.sqrt(d)).transpose(1, 0, 2)
    return SectorMoments(times=1.0, own=own, x=x, value=1.0 / (d - 1), total=-1.0 / (d * (d - 1)))


def _pairs(k: int, table: Array, rows: Array, times: float, total: float) -> SectorMoments:
    x = table @ rows.T / math.sqrt(k)
    return SectorMoments(
        times=1.0, own=-np.einsum("aar->ar", x), x=x, pair=k / times, value=-1.0 / times, total=total / times
    )


LOOSENESS = (0.4, 1.2, 4.0)  # of the first compositions: how closely they follow the weights of one attribute
FIRST = 100  # compositions of every looseness
STARTS = 16  # of a look for the dearest composition, half of them by chance
TRIED = 12  # moves of one attribute to another value, those that promise most
JOINED = 0.05  # share of those that join a search
FAINT = 1e-7  # share of a composition that leaves it
ROUNDS = 100
ARRIVED = 1e-4  # share of the norm by which the dearest composition may cost more
STEPS = 25  # of L-BFGS for the shares, in every round
MOST_NUMBERS = 30_000_000  # in the matrices of so many compositions as a search begins with


@dataclass(frozen=True, kw_only=True, eq=False)
class Compositions:
    """Some compositions, shape (m, n), with their matrices, (m, r, r), and traces of all terms, (m,), by sector."""

    counts: Array
    matrices: list[Array]
    sizes: list[Array]

    def only(self, which: Index) -> Compositions:
        """Return those whose numbers are given, shape (k,)."""
        return Compositions(
            counts=self.counts[which], matrices=[x[which] for x in self.matrices], sizes=[x[which] for x in self.sizes]
        )

    def and_more(self, other: Compositions) -> Compositions:
        """Return these and others after them."""
        return Compositions(
            counts=np.concatenate([self.counts, other.counts]),
            matrices=[np.concatenate(pair) for pair in zip(self.matrices, other.matrices, strict=True)],
            sizes=[np.concatenate(pair) for pair in zip(self.sizes, other.sizes, strict=True)],
        )


class Composed:
    """The bound as a function of shares of compositions.

    Parameters
    ----------
    asked : a workload whose free attributes are all asked alike.
    role, d, terms : the role and number of its attributes, and what is asked of every one and every pair of them.
    """

    def __init__(self, asked: Linked, role: Role, d: int, terms: Terms) -> None:
        self.d, self.n = d, asked.sizes[role]
        n = self.n
        constant = np.full(n, n**-0.5)
        state = State(asked, {role: constant}, {role: np.column_stack([np.ones(n), basis(n)])}, derivative=False)
        values = state.frame(role, n).K[:, 1:] / constant[:, None]
        self.sectors = [moments(d, values, sector) for sector in sectors(d, n, terms, state, role)]

    def of(self, counts: Array) -> Compositions:
        """Return compositions, shape (m, n), with their matrices."""
        return Compositions(
            counts=counts,
            matrices=[sector.matrices(counts) for sector in self.sectors],
            sizes=[sector.sizes(counts) for sector in self.sectors],
        )

    def norm(self, known: Compositions, shares: Array) -> tuple[float, list[Array]]:
        """Return a lower bound on the nuclear norm for shares, shape (m,), and its derivative by every mean matrix."""
        total, slopes = 0.0, list[Array]()
        for sector, own, sizes in zip(self.sectors, known.matrices, known.sizes, strict=True):
            value, half = root_trace(np.tensordot(shares, own, 1), size=float(shares @ sizes))
            total += sector.times * value
            if half is not None:
                slopes.append(sector.times * half)
        return total, slopes

    def best(self, known: Compositions, shares: Array, deadline: float) -> Array:
        """Return shares of about the largest norm, shape (m,) and sum 1, from some that are all above 0."""
        import scipy.optimize

        def log_value(roots: Array) -> tuple[float, Array]:
            own, whole = roots**2, float(np.sum(roots**2))
            value, slopes = self.norm(known, own)
            by = sum(np.einsum("mij,ij->m", part, slope) for part, slope in zip(known.matrices, slopes, strict=True))
            # the norm is homogeneous of degree 1/2
            return 0.5 * math.log(whole) - math.log(value), roots / whole - 2.0 * roots * by / value

        def in_time(intermediate_result: Any) -> None:
            if time.monotonic() > deadline:
                raise StopIteration  # ends the search with what it has

        roots: Array = np.sqrt(shares)
        found = scipy.optimize.minimize(
            log_value,
            roots.ravel(),
            jac=True,
            method="L-BFGS-B",
            callback=in_time,
            options={"maxiter": STEPS, "maxfun": STEPS, "maxcor": 30, "ftol": 1e-13, "gtol": 1e-9},
        )
        return np.asarray(found.x**2 / np.sum(found.x**2))

    def charged(self, slopes: Sequence[Array]) -> list[SectorMoments]:
        """Return what has the costs of compositions as traces, from derivatives as of `norm`, shape (r, r)."""
        return [sector.turned(_root(2.0 * slope)) for sector, slope in zip(self.sectors, slopes, strict=True)]

    def dearest(self, slopes: Sequence[Array], counts: Array) -> tuple[Array, Array]:
        """Return compositions that cost more than those given, shape (m, n), move by move, and what they cost, (m,)."""
        charged = self.charged(slopes)
        moves = np.array(
            [np.eye(self.n)[b] - np.eye(self.n)[a] for a in range(self.n) for b in range(self.n) if a != b]
        )

        def cost(counts: Array) -> Array:
            return np.asarray(sum(sector.traces(counts) for sector in charged))

        found, costs, left = counts.copy(), cost(counts), np.arange(len(counts))
        while len(left):
            gain = sum(sector.slopes(found[left]) for sector in charged) @ moves.T
            gain[(found[left, None, :] + moves < 0.0).any(axis=2)] = -math.inf
            tried = found[left, None, :] + moves[np.argsort(-gain, axis=1, kind="stable")[:, :TRIED]]
            new = np.where((tried < 0.0).any(axis=2), -math.inf, cost(tried.reshape(-1, self.n)).reshape(len(left), -1))
            rows, top = np.arange(len(left)), new.argmax(axis=1)
            dearer = new[rows, top] > costs[left] * (1.0 + 1e-9)
            found[left[dearer]] = tried[rows, top][dearer]
            costs[left[dearer]] = new[rows, top][dearer]
            left = left[dearer]
        return found, costs


def shares_norm(asked: Linked, roots: Mapping[Role, Array], deadline: float) -> float:
    """Return the largest nuclear norm found until a time of the monotonic clock; 0 where not all is asked alike.

    ``roots``, shape (n,), are those of good weights of the values of an attribute: the first compositions are near.
    """
    terms = alike(asked, asked.links[0]) if asked.sums == [(1.0, {0: 1.0})] else None
    if terms is None or not terms.pair or max(asked.sizes.values()) < 2:
        return 0.0
    d, role = len(asked.links[0].names), asked.roles[asked.links[0].names[0]]
    n = asked.sizes[role]
    joint = sum(len(asked.rows[keys[0]]) if len(keys) == 1 else n * n for keys in terms.pair)
    width = n + min(n * (n - 1) // 2, joint)  # of the matrix of a sector, of which there are four
    if len(LOOSENESS) * FIRST * 4 * width**2 > MOST_NUMBERS:
        return 0.0
    with threads_for(width):
        return _search(Composed(asked, role, d, terms), roots[role] ** 2, deadline)


def _search(problem: Composed, weights: Array, deadline: float) -> float:
    rng, d = np.random.default_rng(0), problem.d

    def drawn(looseness: float, count: int) -> Array:
        return rounded(d * rng.dirichlet(weights * d * looseness, size=count), d)

    known = problem.of(np.unique(np.concatenate([drawn(x, FIRST) for x in LOOSENESS]), axis=0))
    shares = np.full(len(known.counts), 1.0 / len(known.counts))
    value = 0.0
    for _ in range(ROUNDS):
        shares = problem.best(known, shares, deadline)
        kept = np.flatnonzero(shares > FAINT)
        known, shares = known.only(kept), shares[kept] / shares[kept].sum()
        now, slopes = problem.norm(known, shares)
        value = max(value, now)
        if time.monotonic() > deadline:
            break
        near = known.counts[rng.permutation(len(known.counts))[: STARTS // 2]]
        found, costs = problem.dearest(slopes, np.concatenate([drawn(LOOSENESS[0], STARTS // 2), near]))
        # what is known costs as much as the norm where the shares are the best
        new = np.unique(found[costs > now * (1.0 + ARRIVED)], axis=0)
        new = new[~(new[:, None] == known.counts).all(axis=2).any(axis=1)]
        if not len(new):
            break
        known = known.and_more(problem.of(new))
        shares = np.concatenate([shares * (1.0 - JOINED), np.full(len(new), JOINED / len(new))])
    return value


def rounded(x: Array, d: int) -> Array:
    """Return whole numbers near x, shape (m, n), none below 0, with sum d in every row.

    >>> rounded(np.array([[0.4, 1.7, 0.9]]), 3)
    array([[0., 2., 1.]])
    """
    out = np.floor(x)
    for row, rest in zip(out, x - out, strict=True):
        row[np.argsort(-rest, kind="stable")[: round(d - row.sum())]] += 1.0
    return np.asarray(out)


def _root(matrix: Array) -> Array:
    values, U = np.linalg.eigh(matrix)
    return np.asarray(np.sqrt(np.maximum(values, 0.0))[:, None] * U.T)
