"""Pairs of attributes: which are asked alike, and whether the search for their complements can be afforded."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from engine.spaces.search import step_seconds
from engine.spaces.split import Space
from engine.spaces.splits.allowance import Allowance
from engine.spaces.splits.rows import rows_bytes
from engine.workload import Group, Workload

MAX_CELLS = 2_600  # pairs with more cells keep the product split
MAX_QUERIES = 1e9  # entries of all queries of a pair, which are gone through one by one afterwards
VECTORS = 60  # of the length of the parameters that the search holds
SEARCH = 20  # a tenth of the evaluations without which the search is not worth beginning
AskedPair = list[tuple[Group, bool]]  # groups on a pair, and whether they name its attributes in the other order


def can_tune(workload: Workload) -> bool:
    """Return whether complements can be tuned: groups on at most two attributes, some pair asked jointly, none large.

    Groups on three attributes pass their pieces through several pairs at once; with them centers are tuned instead.
    """
    pairs = [g for g in workload.groups if g.weight > 0 and len(g.attributes) == 2]
    if any(len(g.attributes) > 2 or g.query_weights is not None for g in workload.groups):
        return False
    if any(min(g.sizes) == 1 or math.prod(g.sizes) > MAX_CELLS for g in pairs):
        return False
    if any(g.count * math.prod(g.sizes) > MAX_QUERIES for g in pairs):
        return False
    return any(len(g.parts) == 1 for g in pairs)


def affordable(workload: Workload, allowance: Allowance) -> bool:
    """Return whether the allowance holds the search for complements; nothing is built to find out."""
    parameters, kept, peak, seconds = sum(a.size**2 for a in workload.schema.attributes), 0, 0, 0.0
    for key, pairs in pair_kinds(workload).items():
        sizes, asked = key[0], pairs[next(iter(pairs))]
        cells, d = math.prod(sizes), math.prod(n - 1 for n in sizes)
        rows = [math.prod(min(p.count, p.cells) for p in g.parts) for g, _ in asked]
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


def asks_products(workload: Workload) -> bool:
    """Return whether some pair is asked by products only, where tuned centers may do better than complements."""
    pairs: dict[frozenset[str], bool] = {}
    for group in workload.groups:
        if group.weight > 0 and len(group.attributes) == 2:
            pair = frozenset(group.attributes)
            pairs[pair] = pairs.get(pair, False) or len(group.parts) == 1
    return not all(pairs.values())
