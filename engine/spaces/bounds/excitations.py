"""The nuclear norm of a link, attribute by attribute inside or outside of K, dense on what is inside.

For every set T of attributes that are outside K, with t their plain factors, the Gram on the others' K is

    M_T = sum over terms A containing T of weight_A (x)_{i in A, not in T} C_i (x) s s^T,

a matrix on excitations: sets of attributes that are in K off s, the others being in s.  Terms that ask T in different
ways are stacked, and count at least as the root of the sum of their squares.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.arrays import Array, Index
from engine.spaces.bounds.frames import State
from engine.spaces.bounds.links import Key, Link, Linked, Pieces
from engine.spaces.bounds.norms import root_trace
from engine.spaces.coordinates import contract, grouped
from engine.spaces.split import Space

Ways = dict[tuple[Key, ...], dict[Pieces, float]]  # how T is asked -> weights of what is asked of the others
Back = Callable[[float], None]  # takes the derivative by a value


@dataclass(frozen=True, kw_only=True, eq=False)
class Dense:
    """M_T for one T, asked in one way: its order, and for every term weight, parts and where its Gram stands."""

    outside: tuple[tuple[str, Key], ...]
    order: int
    terms: list[tuple[float, Pieces, Index]]


class Excitations:
    """One link with a number of functions for every attribute.

    Parameters
    ----------
    asked, link : what is asked.
    functions : attribute -> k, the number of its functions, the constant one included.
    """

    def __init__(self, asked: Linked, link: Link, functions: Mapping[str, int]) -> None:
        self.asked, self.k = asked, functions
        self.place = {name: (asked.roles[name], k) for name, k in functions.items()}
        sums: dict[Space, Ways] = {}
        for pieces, weight in link.terms.items():
            loose = [p for p in pieces if len(p[0]) == 1 and self.k[p[0][0]] < asked.sizes[asked.roles[p[0][0]]]]
            for count in range(len(loose) + 1):
                for T in itertools.combinations(loose, count):
                    T = tuple(sorted(T, key=lambda p: p[0]))
                    ways = sums.setdefault(tuple(p[0][0] for p in T), {})
                    rest = tuple(p for p in pieces if p not in T)
                    terms = ways.setdefault(tuple(p[1] for p in T), {})
                    terms[rest] = terms.get(rest, 0.0) + weight
        kept = [(1, ways) for ways in sums.items()]
        if max(functions.values(), default=1) == 1:
            kept = self._counted(sums)
        self.sums = [
            (count, [self._dense(tuple(zip(T, way, strict=True)), terms) for way, terms in ways.items()])
            for count, (T, ways) in kept
        ]

    def _counted(self, sums: Mapping[Space, Ways]) -> list[tuple[int, tuple[Space, Ways]]]:
        """Return one of all sets T that agree but for the names of attributes, with their number."""
        roles, kinds = self.asked.roles, dict[Any, tuple[int, tuple[Space, Ways]]]()

        def kind(names: Space, keys: Iterable[Key]) -> Any:
            return tuple(sorted(zip((roles[name] for name in names), keys, strict=True)))

        for T, ways in sums.items():
            asked = []
            for way, terms in ways.items():
                weights: dict[Any, float] = {}
                for pieces, weight in terms.items():
                    own = tuple(sorted((tuple(roles[name] for name in names), key) for names, key in pieces))
                    weights[own] = weights.get(own, 0.0) + weight
                asked.append((kind(T, way), tuple(sorted(weights.items()))))
            key = tuple(sorted(asked))
            count, first = kinds.get(key, (0, (T, ways)))
            kinds[key] = (count + 1, first)
        return list(kinds.values())

    def _dense(self, outside: tuple[tuple[str, Key], ...], terms: Mapping[Pieces, float]) -> Dense:
        offsets: dict[Space, int] = {}
        order, out = 0, []
        for pieces, weight in terms.items():
            names = [name for part, _ in pieces for name in part]
            at = np.zeros([self.k[name] for name in names], dtype=np.int64)
            for mask in itertools.product((False, True), repeat=len(names)):
                inside = tuple(sorted(itertools.compress(names, mask)))
                shape = [self.k[name] - 1 for name in inside]
                if inside not in offsets:
                    offsets[inside] = order
                    order += math.prod(shape)
                block = (offsets[inside] + np.arange(math.prod(shape))).reshape(shape)
                own = [name for name in names if name in inside]
                block = block.transpose([inside.index(name) for name in own])
                at[tuple(slice(1, None) if within else 0 for within in mask)] = block
            out.append((weight, pieces, at.ravel()))
        return Dense(outside=outside, order=order, terms=out)

    def value(self, state: State) -> tuple[float, Back]:
        """Return a lower bound on the nuclear norm, and what takes a derivative by it to the state."""
        found = []
        for count, ways in self.sums:
            parts = [(dense, *self._one(dense, state)) for dense in ways]
            found.append((count, math.sqrt(math.fsum((t * T) ** 2 for _, t, T, _ in parts)), parts))

        def back(outer: float) -> None:
            for count, total, parts in found:
                for dense, t, T, half in parts:
                    if t * T > 0.0 and half is not None:
                        share = outer * count * t * T / total
                        self._back(dense, state, share * t, half)
                        for name, key in dense.outside:
                            family = state.frame(*self.place[name]).families[key]
                            family.by_t += share * t * T / family.t

        return math.fsum(count * total for count, total, _ in found), back

    def _one(self, dense: Dense, state: State) -> tuple[float, float, Array | None]:
        t = math.prod(state.frame(*self.place[name]).families[key].t for name, key in dense.outside)
        M = np.zeros((dense.order, dense.order))
        if t > 0.0:
            for weight, pieces, at in dense.terms:
                gram = np.full((1, 1), weight)
                for own in self._grams(pieces, state):
                    gram = np.asarray(np.kron(gram, own), dtype=float)
                M[np.ix_(at, at)] += gram
        return t, *root_trace(M, state.derivative)

    def _grams(self, pieces: Pieces, state: State) -> list[Array]:
        out = []
        for names, key in pieces:
            if len(names) == 1:
                out.append(state.frame(*self.place[names[0]]).families[key].C)
            else:
                Z = state.joint(key, tuple(self.place[name] for name in names)).Z
                Z = Z.reshape(len(Z), -1)
                out.append(Z.T @ Z)
        return out

    def _back(self, dense: Dense, state: State, share: float, half: Array) -> None:
        for weight, pieces, at in dense.terms:
            grams = self._grams(pieces, state)
            block = share * weight * half[np.ix_(at, at)].reshape([len(g) for g in grams] * 2)
            for p, (names, key) in enumerate(pieces):
                # the derivative by a Kronecker product, by one factor: the trace with every other
                others = [None if q == p else own.ravel() for q, own in enumerate(grams)]
                by = contract(grouped(block, [(q, q + len(grams)) for q in range(len(grams))]), others)
                by = by.reshape(grams[p].shape)
                if len(names) == 1:
                    state.frame(*self.place[names[0]]).families[key].by_gram += by
                else:
                    joint = state.joint(key, tuple(self.place[name] for name in names))
                    joint.by_rows += 2.0 * (joint.Z.reshape(len(joint.Z), -1) @ by).reshape(joint.Z.shape)
