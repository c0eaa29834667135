"""Joint projection: the nearest consistent tables without negative cells.

    min  sum over B of |r_B - t_B|^2 / 2 g_B     subject to  T_A = sum over B inside A of r_B / cells summed out  >= 0

for the largest sets A, with g_B = 4^|B|: high orders, where most noise is, move first, and the total hardly at all.
With lambda_A >= 0 the multiplier of T_A >= 0,  r_B = t_B + g_B contrast_B(sum over A of mean of lambda_A on B),  and
the dual is climbed by lambda_A <- [lambda_A - step_A T_A]_+, accelerated with restarts.  Multipliers are kept for the
few cells that have one.  What is still negative in the end is mended by a share of even tables, which are consistent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from engine.arrays import Array, Index
from engine.progress import Listener
from engine.publish.tables.contrasts import add_lower, assembled, below, contrast, faces, mean_over
from engine.spaces import Axes

FIRM = 1e-3  # g of the total
SLACK = 10.0  # times what a cell may be below 0 in the end: how far above 0 cells with multipliers may be on average
ROUNDS = 250


@dataclass(kw_only=True, eq=False)
class _Multipliers:
    """The multipliers of one table: flat cells, their values, and the point from which the next step is taken."""

    axes: Axes
    shape: tuple[int, ...]
    step: float
    cells: Index = field(default_factory=lambda: np.zeros(0, np.int64))
    values: Array = field(default_factory=lambda: np.zeros(0))
    point: Array = field(default_factory=lambda: np.zeros(0))
    new: Array = field(default_factory=lambda: np.zeros(0))

    def means(self) -> dict[Axes, Array]:
        """Return the mean of the point over the rest of the table, for every proper subset of its attributes."""
        out: dict[Axes, Array] = {}
        if not self.cells.size:
            return out
        index = np.unravel_index(self.cells, self.shape)
        for k, face in enumerate(faces(self.axes)):
            shape = self.shape[:k] + self.shape[k + 1 :]
            at = np.ravel_multi_index(index[:k] + index[k + 1 :], shape) if shape else np.zeros(len(self.cells), int)
            sums = np.bincount(at, weights=self.point, minlength=math.prod(shape))
            out[face] = sums.reshape(shape) / self.shape[k]
            for inside in below(face):
                if inside not in out:
                    out[inside] = mean_over(out[face], face, inside)
        return out

    @property
    def weight(self) -> float:
        """How easily the contrast of the table moves."""
        return _weight(self.axes)

    def own_part(self, means: Mapping[Axes, Array]) -> dict[Axes, Array]:
        """Return what the contrast of the point has beside the point itself, as `add_lower` takes it."""
        out = {}
        for inside, values in means.items():
            shares = math.prod(n for a, n in zip(self.axes, self.shape, strict=True) if a not in inside)
            out[inside] = values * (self.weight * (-1.0) ** (len(self.axes) - len(inside)) * shares)
        return out

    def follow(self, table: Array) -> float:
        """Take the step for a table; return how far the step and its point pull in opposite directions."""
        flat = table.reshape(-1)
        fresh = np.setdiff1d(np.flatnonzero(flat < 0.0), self.cells, assume_unique=True)
        if fresh.size:
            order = np.argsort(np.concatenate([self.cells, fresh]), kind="stable")
            nothing = np.zeros(fresh.size)
            self.cells = np.concatenate([self.cells, fresh])[order]
            self.values = np.concatenate([self.values, nothing])[order]
            self.point = np.concatenate([self.point, nothing])[order]
        self.new = np.maximum(self.point - self.step * flat[self.cells], 0.0)
        return float((self.point - self.new) @ (self.new - self.values))

    def pass_on(self, momentum: float) -> None:
        kept = (self.new > 0.0) | (self.values > 0.0)
        point = self.new + momentum * (self.new - self.values)
        self.cells, self.values, self.point = self.cells[kept], self.new[kept], point[kept]


def nonnegative(
    contrasts: dict[Axes, Array], tables: Sequence[Axes], sizes: Sequence[int], enough: float, tell: Listener
) -> dict[Axes, Array]:
    """Change contrasts so that no table is negative; the largest ones are changed in place. Returns the contrasts.

    The search ends when no cell is further below 0 than the share ``enough`` of an even cell, total over cells; that
    share of even tables is then mixed in.  Contrasts have the shapes of their tables.

    Guarantee: every table is at least 0 but for the rounding of sums, and the total is the one given unless it
    contradicts the tables.
    """
    total = float(contrasts[()])
    lower = {axes: c for axes, c in contrasts.items() if axes not in tables}
    holding: dict[Axes, int] = {}
    for axes in tables:
        for inside in below(axes):
            holding[inside] = holding.get(inside, 0) + 1
    dual = {
        axes: _Multipliers(axes=axes, shape=contrasts[axes].shape, step=_step(axes, sizes, holding)) for axes in tables
    }
    age = 1.0
    for number in range(ROUNDS):
        moved, means = _moves(dual, lower)
        worst = against = slack = pull = 0.0
        for axes, own in dual.items():
            table = _table(contrasts[axes], own, moved, means[axes])
            worst = max(worst, -float(table.min(initial=0.0)) * table.size)
            slack += table.size * float(np.abs(table.reshape(-1)[own.cells]) @ np.abs(own.point))
            pull += float(np.abs(own.point).sum())
            against += own.follow(table)
        if (worst <= enough * total and slack <= SLACK * enough * total * pull) or number == ROUNDS - 1:
            break
        age = 1.0 if against > 0.0 else age
        older, age = age, (1.0 + math.sqrt(1.0 + 4.0 * age * age)) / 2.0
        for own in dual.values():
            own.pass_on((older - 1.0) / age)
        tell(min(1.0, number / ROUNDS), "Making all tables agree without negative cells")
    for axes, own in dual.items():
        add_lower(contrasts[axes], axes, own.own_part(means[axes]))
        contrasts[axes].reshape(-1)[own.cells] += own.weight * own.point
        contrasts[axes] = contrast(contrasts[axes])  # the sums of many small steps round
    return _lifted({**contrasts, **moved}, tables)


def _step(axes: Axes, sizes: Sequence[int], holding: Mapping[Axes, int]) -> float:
    """Return a step that is safe for all tables together."""
    steepest = _weight(axes)
    for inside in below(axes):
        shares = math.prod(sizes[a] for a in axes if a not in inside)
        steepest = max(steepest, _weight(inside) * holding[inside] / shares)
    return 1.0 / steepest


def _weight(axes: Axes) -> float:
    return float(4 ** len(axes)) if axes else FIRM


def _moves(
    dual: Mapping[Axes, _Multipliers], lower: Mapping[Axes, Array]
) -> tuple[dict[Axes, Array], dict[Axes, dict[Axes, Array]]]:
    """Return the contrasts of all smaller sets at the multipliers, and the means of these."""
    means = {axes: own.means() for axes, own in dual.items()}
    sums: dict[Axes, Array] = {}
    for found in means.values():
        for inside, values in found.items():
            sums[inside] = sums[inside] + values if inside in sums else values
    moved = {}
    for inside, values in lower.items():
        moved[inside] = values + _weight(inside) * contrast(sums[inside]) if inside in sums else values
    return moved, means


def _table(own: Array, dual: _Multipliers, moved: Mapping[Axes, Array], means: Mapping[Axes, Array]) -> Array:
    """Return a table at the multipliers."""
    table, part = own.copy(), dual.own_part(means)
    add_lower(table, dual.axes, {a: moved[a] + part[a] if a in part else moved[a] for a in below(dual.axes)})
    table.reshape(-1)[dual.cells] += dual.weight * dual.point
    return table


def _lifted(contrasts: dict[Axes, Array], tables: Sequence[Axes]) -> dict[Axes, Array]:
    """Return contrasts mixed with even tables as far as negative cells need it."""
    total, worst = float(contrasts[()]), 0.0
    for axes in tables:
        table = assembled(contrasts, axes)
        worst = max(worst, -float(table.min(initial=0.0)) * table.size)
    if worst > 0.0:
        kept = max(total, 0.0) / (max(total, 0.0) + worst)
        for axes in contrasts:
            if axes:
                contrasts[axes] *= kept
    return contrasts
