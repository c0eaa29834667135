"""What the dearest cell of all costs where several strategies are released: the largest sum over cells, not the sum of
the largest.

A record in cell x moves strategy k by its column at x, whose norm is a product over the factors of the strategy.  So
the cost of x is a sum of products of tables with no negative entry, each on a few attributes, and its maximum is found
in two steps.

    Left out are values of an attribute for which another one is at least as dear in every table: of prefixes all but
    the first, of marginals all but one, of ranges all but the middle.
    What remains is eliminated attribute by attribute, the tables on it added up and its largest value kept.  Tables
    that together would have more than `MOST` cells are kept apart, which takes a sum of maxima for the maximum of a sum
    and can only make the bound larger.  Below that size the bound is exact, but for rounding.

Source: Dechter and Rish 2003 (mini-bucket elimination).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from engine.arrays import Array, Index
from engine.spaces.split import Axes, Space
from engine.spaces.strategy import Strategy

MOST = 1 << 17  # cells of one joint table
ENTRIES = 1 << 28  # comparisons of values that are worth their time
TIE = 1e-13  # values that differ by their rounding alone are equal
MeasuredPart = tuple[Space, tuple[tuple[Axes, Strategy], ...], float]
Placed = tuple[Space, int]  # the attributes of a table, and its number


def dearest_cell(parts: Iterable[MeasuredPart], law: str) -> float:
    """Return an upper bound on the largest sum, over the cells of the domain, of what parts cost there.

    A part is (attributes, factors, scale).  It costs ``scale`` times the squared Euclidean norm of the column for
    Gaussian noise, and ``scale`` times its L1 norm for Laplace noise.

    >>> rows = np.array([[1.0, 1.0], [0.0, 1.0]])
    >>> one, other = (Strategy(sizes=(2,), rows=r, pinv=r, complete=True) for r in (rows, rows[:, ::-1]))
    >>> dearest_cell([(("a",), (((0,), one),), 1.0), (("a",), (((0,), other),), 1.0)], "gaussian")
    3.0
    """
    numbers: dict[Strategy, int] = {}  # it holds the strategies: none of them can be taken for another
    tables: list[Array] = []
    sums: list[tuple[float, list[Placed]]] = []
    for attributes, factors, scale in parts:
        placed = []
        for axes, strategy in factors:
            if strategy not in numbers:
                moved = np.abs(strategy.rows) if law == "laplace" else strategy.rows**2
                numbers[strategy] = len(tables)
                tables.append(moved.sum(axis=0).reshape(strategy.sizes))
            placed.append((tuple(attributes[a] for a in axes), numbers[strategy]))
        sums.append((scale, placed))
    unlike = dict.fromkeys(one for _, placed in sums for one in placed)
    kept, ties = _undominated(unlike, tables)
    reduced = {(names, k): tables[k][np.ix_(*(kept[name] for name in names))] for names, k in unlike}
    order = {name: i for i, name in enumerate(kept)}
    bounds: dict[Space, Array] = {}
    for scale, placed in sums:
        _add(bounds, *_product(scale, [(one[0], reduced[one]) for one in placed], order))
    return _eliminated(bounds, {name: len(values) for name, values in kept.items()}, order) * (1.0 + TIE) ** ties


def _undominated(placed: Iterable[Placed], tables: Sequence[Array]) -> tuple[dict[str, Index], int]:
    """Return the values of every attribute that may be dearest, and how often near ties were taken for ties."""
    touching: dict[str, list[Placed]] = {}
    for names, k in placed:
        for name in names:
            touching.setdefault(name, []).append((names, k))
    kept = {name: np.arange(tables[t[0][1]].shape[t[0][0].index(name)]) for name, t in touching.items()}
    ties, waiting = 0, list(kept)
    while waiting:
        name = waiting.pop()
        rows: dict[tuple[int, int, Space], Array] = {}
        for names, k in touching[name]:
            others = tuple(n for n in names if n != name)
            key = (k, names.index(name), others)
            if key not in rows:
                own = tables[k][np.ix_(*(kept[n] for n in names))]
                rows[key] = np.moveaxis(own, names.index(name), 0).reshape(len(kept[name]), -1)
        best = _largest(np.unique(np.concatenate(list(rows.values()), axis=1), axis=1))
        if len(best) < len(kept[name]):
            kept[name], ties = kept[name][best], ties + 1
            beside = {n for names, _ in touching[name] for n in names if n != name}
            waiting += [n for n in beside if n not in waiting and len(kept[n]) > 1]
    return kept, ties


def _largest(rows: Array) -> Index:
    """Return the numbers of rows that no other row reaches or passes everywhere."""
    if rows.shape[0] ** 2 * rows.shape[1] > ENTRIES:
        return np.arange(len(rows))
    chosen: list[int] = []
    for i in np.argsort(-rows.sum(axis=1), kind="stable"):
        if not chosen or not (rows[chosen] * (1.0 + TIE) >= rows[i]).all(axis=1).any():
            chosen.append(int(i))
    return np.sort(np.array(chosen))


def _product(scale: float, tables: Sequence[tuple[Space, Array]], order: Mapping[str, int]) -> tuple[Space, Array]:
    """Return the product of tables on different attributes, in order; one that is too large is bounded by its entry."""
    out, scope = np.asarray(scale), list[str]()
    for names, table in sorted(tables, key=lambda t: t[1].size):
        if out.size * table.size > MOST:
            out = out * table.max()
            continue
        out, scope = np.multiply.outer(out, table), [*scope, *names]
    ranked = sorted((n for n, size in zip(scope, out.shape, strict=True) if size > 1), key=order.__getitem__)
    free = [scope.index(n) for n in ranked]
    single = [i for i in range(len(scope)) if i not in free]
    return tuple(ranked), out.transpose([*free, *single]).reshape([out.shape[i] for i in free])


def _add(bounds: dict[Space, Array], scope: Space, table: Array) -> None:
    bounds[scope] = bounds[scope] + table if scope in bounds else table


def _eliminated(bounds: dict[Space, Array], sizes: Mapping[str, int], order: Mapping[str, int]) -> float:
    """Return a bound on the largest sum of tables, each on the attributes of its key, over all their values."""
    bounds = dict(bounds)
    while left := {name for scope in bounds for name in scope}:
        joint = {name: {n for scope in bounds if name in scope for n in scope} for name in left}
        name = min(left, key=lambda n: (math.prod(sizes[m] for m in joint[n]), order[n]))
        buckets: list[tuple[set[str], list[Space]]] = []
        for scope in sorted((s for s in bounds if name in s), key=lambda s: -bounds[s].size):
            for together, scopes in buckets:
                if math.prod(sizes[n] for n in together | set(scope)) <= MOST:
                    together |= set(scope)
                    scopes.append(scope)
                    break
            else:
                buckets.append((set(scope), [scope]))
        for together, scopes in buckets:
            names = tuple(sorted(together, key=order.__getitem__))
            total = np.zeros([sizes[n] for n in names])
            for scope in scopes:
                total += bounds.pop(scope).reshape([sizes[n] if n in scope else 1 for n in names])
            _add(bounds, tuple(n for n in names if n != name), total.max(axis=names.index(name)))
    return float(bounds.get((), np.zeros(())))
