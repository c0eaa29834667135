"""Pairs of attributes: which are asked alike, and whether the search for their complements can be afforded."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from engine.arrays import Array, thin_svd
from engine.spaces.coordinates import Lift, class_rows
from engine.spaces.decomposition import NEGLIGIBLE
from engine.spaces.search import step_seconds
from engine.spaces.split import Space, swapped
from engine.spaces.splits.allowance import Allowance
from engine.spaces.splits.rows import fewer, product_rows, rows_bytes
from engine.workload import Group, Workload

MAX_CELLS = 2_600  # pairs with more cells keep the product split
MAX_QUERIES = 1e9  # entries of all queries of a pair, which are gone through one by one afterwards
VECTORS = 60  # of the length of the parameters that the search holds
SEARCH = 20  # a tenth of the evaluations without which the search is not worth beginning
KIND_SECONDS, EVALUATIONS = 0.8, 900  # of the search, a kind of pair, as measured; for forecasts only
CYCLIC = ("marginal", "circular", "total")  # families that turning an attribute round leaves alone
ASKED = 1e-6  # directions of class rows below this share of the largest are rounding
AskedPair = list[tuple[Group, bool]]  # groups on a pair, and whether they name its attributes in the other order


def can_tune(workload: Workload) -> bool:
    """Return whether complements can be tuned: groups on at most two attributes, some pair asked jointly, none large.

    Groups on three attributes pass their pieces through several pairs at once; with them centers are tuned instead.
    """
    firsts = [workload.groups[kind.numbers[0]] for kind in workload.alike]
    if any(len(g.attributes) > 2 or g.query_weights is not None for g in firsts):
        return False
    asked = [any(workload.groups[i].weight > 0 for i in kind.numbers) for kind in workload.alike]
    pairs = [g for g, counts in zip(firsts, asked, strict=True) if counts and len(g.attributes) == 2]
    if any(min(g.sizes) == 1 or math.prod(g.sizes) > MAX_CELLS for g in pairs):
        return False
    if any(g.count * math.prod(g.sizes) > MAX_QUERIES for g in pairs):
        return False
    return any(len(g.parts) == 1 for g in pairs)


def cyclic(workload: Workload) -> bool:
    """Return whether no query tells one cell of an attribute from another, so that uniform centers are the best.

    Turning any attribute round then leaves the workload alone, and the best of all mechanisms measures spaces apart.
    """
    firsts = [workload.groups[kind.numbers[0]] for kind in workload.alike]
    return all(g.query_weights is None and p.family.name in CYCLIC for g in firsts for p in g.parts)


def affordable(workload: Workload, allowance: Allowance) -> bool:
    """Return whether the allowance holds the search for complements; nothing is built to find out."""
    parameters, kept, peak, seconds = sum(a.size**2 for a in workload.schema.attributes), 0, 0, 0.0
    for sizes, asked in _first_of_kinds(workload):
        cells, d = math.prod(sizes), math.prod(n - 1 for n in sizes)
        rows = _rows_asked(asked)
        held = min(sum(rows), cells)
        rank = min(held, d)
        parameters += rank * (rank + sum(sizes))
        kept += 8 * (held * (rank + sum(sizes)) + 2 * rank * cells + 3 * d * sum(sizes))
        building = max(sum(map(rows_bytes, g.parts)) for g, _ in asked) + 40 * sum(rows) * cells
        peak = max(peak, building + 24 * rank * (held + d), 8 * rank * (8 * cells + 10 * rank))
        seconds += step_seconds(rank, cells)
    fits = allowance.fits(8 * VECTORS * parameters + kept + peak)
    return fits and allowance.bearable(seconds) and allowance.worth(SEARCH * seconds)


def pair_kinds(workload: Workload) -> dict[Any, dict[Space, AskedPair]]:
    """Return pairs, in schema order, with the groups on them, by what is asked of them; keys start with the sizes."""
    on_pair: dict[Space, AskedPair] = {}
    for group in workload.groups:
        if group.weight > 0.0 and len(group.attributes) == 2:
            pair = workload.schema.ranked(group.attributes)
            on_pair.setdefault(pair, []).append((group, group.attributes != pair))
    out: dict[Any, dict[Space, AskedPair]] = {}
    for pair, asked in on_pair.items():
        key = (workload.schema.sizes(pair), frozenset(Counter((g.key, g.weight, t) for g, t in asked).items()))
        out.setdefault(key, {})[pair] = asked
    return out


def complement_seconds(workload: Workload) -> float:
    """Return what the search for complements takes, in seconds on one idle core, for forecasts."""
    seconds = 0.0
    for sizes, asked in _first_of_kinds(workload):
        rank = min(sum(_rows_asked(asked)), math.prod(n - 1 for n in sizes))
        seconds += KIND_SECONDS + EVALUATIONS * step_seconds(rank, math.prod(sizes))
    return seconds


def _first_of_kinds(workload: Workload) -> list[tuple[tuple[int, int], AskedPair]]:
    """Return of every kind of pair the sizes, and the groups on one of them."""
    return [(key[0], pairs[next(iter(pairs))]) for key, pairs in pair_kinds(workload).items()]


def _rows_asked(asked: AskedPair) -> list[int]:
    return [math.prod(min(p.count, p.cells) for p in g.parts) for g, _ in asked]


def asks_products(workload: Workload) -> bool:
    """Return whether some pair is asked by products only, where tuned centers may do better than complements."""
    pairs: dict[frozenset[str], bool] = {}
    for group in workload.groups:
        if group.weight > 0 and len(group.attributes) == 2:
            pair = frozenset(group.attributes)
            pairs[pair] = pairs.get(pair, False) or len(group.parts) == 1
    return not all(pairs.values())


@dataclass(kw_only=True, eq=False)
class PairKind:
    """Pairs that are asked the same, in coordinates relative to uniform centers: rows C = asked V^T, A_i, A_j, a_0.

    Shapes: asked (rows, r), across, which is V, (class coordinates, r).
    """

    sizes: tuple[int, int]
    asked: Array
    across: Array
    A: tuple[Array, Array]
    a0: Array
    swaps: bool  # swapping the attributes changes nothing, so that Y_j is Y_i with its coordinates swapped
    count: int = 0

    @cached_property
    def gram(self) -> Array:
        """Gram of the class rows in the coordinates of V, shape (r, r)."""
        return self.asked.T @ self.asked

    @cached_property
    def lift(self) -> Array:
        """V^T (L_i (x) L_j) at uniform centers, shape (r, n_i, n_j)."""
        return Lift(self.sizes).rows(np.ascontiguousarray(self.across.T)).reshape(-1, *self.sizes)

    @cached_property
    def turn(self) -> Array:
        """What swapping the attributes does in the coordinates of V, shape (r, r)."""
        return self.across.T @ swapped(self.across, *(n - 1 for n in self.sizes))


def pair_kind_of(sizes: tuple[int, ...], asked: AskedPair) -> PairKind:
    """Return the rows of the queries on a pair in class coordinates, few and orthogonal."""
    blocks = []
    for group, turned in asked:
        rows = math.sqrt(group.weight) * product_rows(group)
        if turned:
            rows = np.swapaxes(rows.reshape(len(rows), sizes[1], sizes[0]), 1, 2).reshape(len(rows), -1)
        blocks.append(rows)
    stacked = fewer(np.concatenate(blocks))
    swaps = False
    if sizes[0] == sizes[1]:
        probe = np.random.default_rng(3).standard_normal(sizes)
        image = (stacked.T @ (stacked @ probe.ravel())).reshape(sizes)
        turned_image = (stacked.T @ (stacked @ probe.T.ravel())).reshape(sizes).T
        swaps = bool(np.allclose(image, turned_image, rtol=0, atol=1e-9 * np.abs(image).max()))
    total, *axes, C = (class_rows(stacked, sizes, inside) for inside in ((), (0,), (1,), (0, 1)))
    U, lengths, Vt = thin_svd(C)
    kept = lengths > max(ASKED * lengths.max(initial=0.0), math.sqrt(NEGLIGIBLE * np.sum(stacked**2)))
    return PairKind(
        sizes=(sizes[0], sizes[1]),
        asked=U[:, kept] * lengths[kept],
        across=Vt[kept].T,
        A=(axes[0], axes[1]),
        a0=total[:, 0],
        swaps=swaps,
    )
