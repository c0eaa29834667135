"""The nuclear norm of a link whose d attributes are asked alike, one by one and in pairs, sector by sector.

The symmetric group parts queries and excitations.  Rows of pairs are made symmetric and antisymmetric under the swap of
their two attributes, in the bases S and L of symmetric and antisymmetric pairs of K, where (0, u) stands for s (x) u.
Row by row (single, symmetric, antisymmetric), with P = d(d-1)/2:

    sector         times         columns    coefficients, column by column
    trivial        1             1 + U + S  single: root(d), 1; symmetric: root(P), root(d-1), 1
    standard       d-1           U + S + L  single: 1; symmetric: root(d/2 - 1), 1; antisymmetric: root(d/2), 1
    two rows       d(d-3)/2      S of U     symmetric: 1
    antisymmetric  (d-1)(d-2)/2  L of U     antisymmetric: 1

With m attributes outside K, C(d, m) choices, the other d - m are such a link again; see `excitations`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from engine.arrays import Array
from engine.spaces.bounds.excitations import Back
from engine.spaces.bounds.frames import Frame, State
from engine.spaces.bounds.links import PROBES, Key, Link, Linked
from engine.spaces.bounds.norms import nuclear
from engine.spaces.split import Role


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
