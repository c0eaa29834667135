"""The nuclear norm of a link that asks one product of every j attributes alike, for any j, with one function for each.

Beside the constant, 0, every attribute has one function, 1: the one that its queries couple to the constant most.  The
Gram of the products of all sets of j attributes is then the coefficient of z^j in

    B (x) B (x) ... (x) B,   d times,     B = [[1 + z a, z b], [z b, z c]],     C = [[a, b], [b, c]] of the family.

The symmetric group parts it as it parts d spins.  With m antisymmetric pairs, C(d, m) - C(d, m - 1) times, and with
N = d - 2m attributes left, it is det(B)^m times B on symmetric tables, whose element for k and l of them in state 1 is

    sum over p of N! / (p! (k - p)! (l - p)! (N - k - l + p)!) B_11^p B_01^(k + l - 2p) B_00^(N - k - l + p)

over the root of C(N, k) C(N, l).  Matrices have at most j + 1 rows, however many attributes there are.  Attributes
outside of K are as in `excitations`.  Source: our own; the sectors are those of Schur and Weyl for two states.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from engine.arrays import Array, Index
from engine.spaces.bounds.excitations import Back
from engine.spaces.bounds.frames import State
from engine.spaces.bounds.links import Key, Link, Linked
from engine.spaces.bounds.norms import root_trace
from engine.spaces.split import Role

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
