"""Strategies: rows measured on a residual space, and their joint sensitivity.

Strategies: what is measured on a residual space, and what the answers then say.

What the dearest cell of all costs where several strategies are released: the largest sum over cells, not the sum of
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
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import scipy

from engine._arrays import Array, Index, thin_svd
from engine.residuals.basis import basis
from engine.residuals.split import Axes, Space

APART, TURNED = 1e-9, 1e-5  # by which rows may leave the span of others, and differ from a turn of them
LEAVING = 1e-6  # a class row that leaves the measured span by more than this share cannot be answered


@dataclass(frozen=True, kw_only=True, eq=False)
class Strategy:
    """Strategy rows B on the cells of some attributes, with their reconstruction.

    Attributes
    ----------
    sizes : domain sizes of the attributes.
    rows : B, shape (measurements, cells); every column has Euclidean norm at most about 1.
    pinv : maps strategy answers to class coordinates, shape (class coordinates, measurements).  The estimate of a class
        row c is c @ pinv @ answers, its variance at noise scale 1 is |c @ pinv|^2.  In an explicit strategy the cells
        themselves take the place of the class coordinates.
    complete : whether every class coordinate is measured, or only the span of the workload.
    measured : orthonormal rows with the span of the columns of ``pinv``, shape (rank, class coordinates), where who
        made the strategy knows them; None otherwise.
    """

    sizes: tuple[int, ...]
    rows: Array
    pinv: Array
    complete: bool
    measured: Array | None = None

    def by_rows(self, rows: Array) -> Strategy | None:
        """Return the strategy with other rows that measure the same, shape (measurements, cells), or None.

        They do where they are its own rows, turned: their answers say the same of every cell, at the same cost.
        """
        if rows.shape != self.rows.shape or not np.isfinite(rows).all():
            return None
        if np.array_equal(rows, self.rows):
            return self
        turn = np.linalg.lstsq(self.rows.T, rows.T)[0].T
        same = np.allclose(turn @ self.rows, rows, rtol=0.0, atol=APART * float(np.abs(self.rows).max(initial=0.0)))
        if not same or not np.allclose(turn @ turn.T, np.eye(len(turn)), rtol=0.0, atol=TURNED):
            return None
        # not the transpose: what another machine rounds in the rows must not stay in what they say
        return replace(self, rows=rows, pinv=np.linalg.solve(turn.T, self.pinv.T).T)

    @cached_property
    def column_norm(self) -> float:
        """Largest Euclidean norm of a column of B: the sensitivity of the answers to one record."""
        return float(np.sqrt(np.max(np.einsum("rc,rc->c", self.rows, self.rows))))

    @cached_property
    def column_sum(self) -> float:
        """Largest sum of absolute values of a column of B: the L1 sensitivity of the answers to one record."""
        return float(np.max(np.abs(self.rows).sum(axis=0)))

    @cached_property
    def covariance(self) -> Array:
        """Covariance of the class coordinates at noise scale 1, shape (class coordinates,) * 2."""
        # answers are B x + z with z of covariance 1, so that estimates pinv (B x + z) have this one
        return self.pinv @ self.pinv.T

    @cached_property
    def cell_covariance(self) -> Array:
        """Covariance of the reconstructed table on one attribute at noise scale 1, shape (n, n)."""
        N = basis(self.sizes[0])
        return N @ self.covariance @ N.T

    @property
    def dimension(self) -> int:
        """Number of class coordinates."""
        return len(self.pinv)

    @property
    def coordinates(self) -> tuple[int, ...]:
        """What an estimate has along every attribute: class coordinates, or cells when rows are answered on cells."""
        return self.sizes if len(self.pinv) == self.cells else tuple(n - 1 for n in self.sizes)

    @property
    def cells(self) -> int:
        """Number of cells that the rows cover."""
        return math.prod(self.sizes)

    @cached_property
    def span(self) -> Array:
        """Orthonormal basis of the measured class rows, shape (class coordinates, rank)."""
        if self.measured is not None:
            return self.measured.T
        # of pinv, not of the rows on cells: those depend on the centers, the class rows that can be answered do not
        U, singular, _ = thin_svd(self.pinv)
        Q: Array = U[:, singular > 1e-10 * singular.max(initial=0.0)]
        return Q

    @cached_property
    def unmeasured(self) -> Array:
        """Projector on the class rows that are not measured at all, shape (class coordinates,) * 2."""
        return np.eye(len(self.pinv)) - self.span @ self.span.T

    def leaves_span(self, class_rows: Array) -> npt.NDArray[np.bool_]:
        """Return for every class row whether it asks for something that is not measured, shape (k,)."""
        left = class_rows - (class_rows @ self.span) @ self.span.T  # no difference of squares: it rounds at LEAVING^2
        leaving: npt.NDArray[np.bool_] = np.linalg.norm(left, axis=1) > LEAVING * np.maximum(
            np.linalg.norm(class_rows, axis=1), 1e-300
        )
        return leaving


def settled(directions: Array) -> Array:
    """Return the turn W of orthonormal rows, shape (r, m), for which W @ rows depends on nothing but their span.

    Where eigenvalues are equal, a processor or a library of its own takes other eigenvectors.  What is measured must
    be the same everywhere: integers that one machine drew are read on others.  So the rows become those that
    Gram-Schmidt makes of some fixed vectors, projected on the span.  Shape (r, r).
    """
    Q, R = scipy.linalg.qr(directions @ _scattered(*directions.shape).T, check_finite=False)
    return np.asarray((Q * np.where(np.diagonal(R) < 0.0, -1.0, 1.0)).T)


def _scattered(rows: int, columns: int) -> Array:
    """Return numbers in [-1, 1) without any order, the same for ever: SplitMix64 of 1, 2, 3, ..., bit by bit."""
    bits = np.arange(1, rows * columns + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
    return ((bits ^ (bits >> np.uint64(31))) / 2.0**63 - 1.0).reshape(rows, columns)


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
