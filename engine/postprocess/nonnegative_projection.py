"""Joint non-negative projection of tables.

    min  sum over B of |r_B - t_B|^2 / 2 g_B     subject to  T_A = sum over B inside A of r_B / cells summed out  >= 0

for the largest sets A, with g_B = 4^|B|: high orders, where most noise is, move first, and the total hardly at all.
With lambda_A >= 0 the multiplier of T_A >= 0,  r_B = t_B + g_B contrast_B(sum over A of mean of lambda_A on B),  and
the dual is climbed by lambda_A <- [lambda_A - step_A T_A]_+, accelerated with restarts.  A table whose cells are
nearly right rests with its multipliers until all are looked at again.  Multipliers are kept for the cells that have
one.  What is still negative in the end is mended by a share of even tables, which are consistent.

Impossible cells have T_A = 0 and multipliers of either sign.  The last of what they hold is taken out by conjugate
gradients, before the share of even tables, whose impossible cells are 0, too.

What is known exactly has g_B = 0: it stays, and all else moves beside it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy

from engine._arrays import Array, Index
from engine.postprocess.checkpoint import NONE, Reached, by_axes, of_axes
from engine.postprocess.contrasts import add_lower, assembled, below, contrast, faces, mean_over
from engine.progress import Listener
from engine.residuals import Axes

AGREEING = "Making all tables agree without negative cells"
FIRM = 1e-3  # g of the total
SLACK = 10.0  # times what a cell may be below 0 in the end: how far above 0 cells with multipliers may be on average
ROUNDS = 250
ALL_LOOK, RESTING = 8, 0.5  # rounds after which every table is looked at, and of ``enough``, up to which one rests
EXACT, MOST_STEPS = 1e-7, 2_000  # of what impossible cells hold is left, and the steps in which it is taken out
REFINED, ROUNDING = 2, 1e-14  # times that is done, so that all that is left is rounding, as a share of the total


_Means = dict[Axes, dict[Axes, Array]]


@dataclass(kw_only=True, eq=False)
class _Multipliers:
    """The multipliers of one table: flat cells, their values, and the point from which the next step is taken."""

    axes: Axes
    shape: tuple[int, ...]
    step: float
    exact: Collection[Axes] = ()
    impossible: npt.NDArray[np.bool_] | None = None
    cells: Index = field(default_factory=lambda: np.zeros(0, np.int64))
    values: Array = field(default_factory=lambda: np.zeros(0))
    point: Array = field(default_factory=lambda: np.zeros(0))
    new: Array = field(default_factory=lambda: np.zeros(0))

    def __post_init__(self) -> None:
        """Impossible cells always have a multiplier."""
        if self.impossible is not None:
            self.cells = np.flatnonzero(self.impossible)
            self.values = self.point = np.zeros(self.cells.size)

    @property
    def held(self) -> npt.NDArray[np.bool_]:
        """Which multipliers are those of impossible cells; shape of ``cells``."""
        return np.zeros(len(self.cells), dtype=bool) if self.impossible is None else self.impossible[self.cells]

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

    def violation(self, table: Array) -> float:
        """Return how far the worst cell of a table is from what it may be, in even cells of so many records."""
        held = np.abs(table.reshape(-1)[self.cells[self.held]]).max(initial=0.0)
        return float(max(-table.min(initial=0.0), held)) * table.size

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
        self.new = np.maximum(self.point - self.step * flat[self.cells], np.where(self.held, -np.inf, 0.0))
        return float((self.point - self.new) @ (self.new - self.values))

    def pass_on(self, momentum: float) -> None:
        kept = (self.new > 0.0) | (self.values > 0.0) | self.held
        point = self.new + momentum * (self.new - self.values)
        self.cells, self.values, self.point = self.cells[kept], self.new[kept], point[kept]


def nonnegative(
    contrasts: dict[Axes, Array],
    tables: Sequence[Axes],
    sizes: Sequence[int],
    enough: float,
    tell: Listener,
    possible: Mapping[Axes, npt.NDArray[np.bool_]] | None = None,
    even: Mapping[Axes, Array] | None = None,
    exact: Collection[Axes] = (),
    *,
    steps: Reached = NONE,
) -> dict[Axes, Array]:
    """Change contrasts so that no table is negative; the largest ones are changed in place. Returns the contrasts.

    The search ends when no cell is further below 0 than the share ``enough`` of an even cell, total over cells; that
    share of even tables is then mixed in.  Contrasts have the shapes of their tables.  ``possible``, ``even`` and
    ``exact`` are those of `Evidence`.

    Guarantee: every table is at least 0 and impossible cells are 0, but for the rounding of sums, and the total is the
    one given unless it contradicts the tables.  Contrasts of ``exact`` sets are not changed at all.
    """
    if done := steps.taken("all"):
        return of_axes(done)
    total = float(contrasts[()])
    possible, even = possible or {}, even or {}
    lower = {axes: c for axes, c in contrasts.items() if axes not in tables}
    dual = _multipliers(contrasts, tables, sizes, possible, exact)
    age, awake, means, worst = 1.0, list(dual.values()), dict[Axes, dict[Axes, Array]](), dict[Axes, float]()
    begun = 0
    if state := steps.taken("search"):
        begun, age, awake = _brought_back(dual, worst, state)
        means = {axes: own.means() for axes, own in dual.items()}
    for number in range(begun, ROUNDS):
        if number > begun and steps.due:
            steps.take("search", _state(dual, worst, number, age, awake))
        for own in awake:
            means[own.axes] = own.means()
        moved = _moves(means, lower, exact)
        full = number % ALL_LOOK == 0 or number == ROUNDS - 1 or not awake
        slack = pull = against = 0.0
        for own in dual.values() if full else awake:
            table = _table(contrasts[own.axes], own, moved, means[own.axes])
            worst[own.axes] = own.violation(table)
            slack += table.size * float(np.abs(table.reshape(-1)[own.cells]) @ np.abs(own.point))
            pull += float(np.abs(own.point).sum())
            against += own.follow(table)
        far = max(worst.values(), default=0.0) > enough * total
        if number == ROUNDS - 1 or (full and not far and slack <= SLACK * enough * total * pull):
            break
        age = 1.0 if against > 0.0 else age
        older, age = age, (1.0 + math.sqrt(1.0 + 4.0 * age * age)) / 2.0
        # tables that are right rest: of many most are, long before the last ones
        awake = list(dual.values()) if full else awake
        for own in awake:
            resting = far and worst[own.axes] <= RESTING * enough * total
            own.pass_on(0.0 if resting else (older - 1.0) / age)
            if resting:
                means[own.axes] = own.means()
        awake = [own for own in awake if not far or worst[own.axes] > RESTING * enough * total]
        tell(min(1.0, number / ROUNDS), AGREEING)
    _move(contrasts, dual, means)
    made = {**contrasts, **moved}
    if possible:
        made = emptied(made, tables, sizes, possible, exact)
    made = lifted(made, tables, possible, even, exact)
    steps.settle("all", by_axes(made))
    return made


def _state(
    dual: Mapping[Axes, _Multipliers], worst: Mapping[Axes, float], number: int, age: float, awake: list[_Multipliers]
) -> dict[str, Array]:
    """Return where the search stands before a round."""
    axes = list(dual)
    out = {"number": np.array(number), "age": np.array(age), "worst": np.array([worst[a] for a in axes])}
    out["awake"] = np.array([axes.index(own.axes) for own in awake], dtype=np.int64)
    for k, own in enumerate(dual.values()):
        out |= {f"cells {k}": own.cells, f"values {k}": own.values, f"point {k}": own.point}
    return out


def _brought_back(
    dual: Mapping[Axes, _Multipliers], worst: dict[Axes, float], state: Mapping[str, Any]
) -> tuple[int, float, list[_Multipliers]]:
    """Let the search stand where it stood; return its round, its age and whom it looks at."""
    for k, (axes, own) in enumerate(dual.items()):
        own.cells, own.values, own.point = (state[f"{word} {k}"] for word in ("cells", "values", "point"))
        worst[axes] = float(state["worst"][k])
    every = list(dual.values())
    return int(state["number"]), float(state["age"]), [every[k] for k in state["awake"]]


def emptied(
    contrasts: dict[Axes, Array],
    tables: Sequence[Axes],
    sizes: Sequence[int],
    possible: Mapping[Axes, npt.NDArray[np.bool_]],
    exact: Collection[Axes] = (),
) -> dict[Axes, Array]:
    """Return the nearest contrasts of tables whose impossible cells are 0, whatever the sign of others.

    Shapes (n_1, ..., n_k) of tables.  The total and ``exact`` sets stay; the largest contrasts are changed in place.

    Guarantee: linear in what is given, and without effect where impossible cells are 0, so that tables which are right
    on average stay so.
    """
    dual = _multipliers(contrasts, tables, sizes, possible, exact)
    lower = {axes: c for axes, c in contrasts.items() if axes not in tables}
    asked = [own for own in dual.values() if own.impossible is not None]
    nothing = {axes: np.zeros_like(c) for axes, c in lower.items()}
    ends = np.cumsum([own.cells.size for own in asked])[:-1]

    def moved_by(point: Array) -> Array:
        for own, values in zip(asked, np.split(point, ends), strict=True):
            own.point = values
        means = {axes: own.means() for axes, own in dual.items()}
        moved = _moves(means, nothing, exact)
        moved[()] = nothing[()]
        parts = []
        for own in asked:
            table = _table(np.zeros(own.shape), own, moved, means[own.axes])
            parts.append(table.reshape(-1)[own.cells])
        return np.concatenate(parts)

    linear = scipy.sparse.linalg
    rounding = ROUNDING * abs(float(contrasts[()]))
    for _ in range(REFINED if asked else 0):
        held = np.concatenate([assembled(contrasts, own.axes).reshape(-1)[own.cells] for own in asked])
        rounding = max(rounding, ROUNDING * float(np.linalg.norm(held)))
        # the system is singular: beyond rounding, what is left grows again
        operator = linear.LinearOperator((len(held),) * 2, moved_by)
        found, _ = linear.cg(operator, -held, rtol=EXACT, atol=rounding, maxiter=MOST_STEPS)
        moved_by(found)  # which leaves the multipliers at the solution
        means = {axes: own.means() for axes, own in dual.items()}
        moved = _moves(means, lower, exact)
        lower = moved | {(): lower[()]}
        _move(contrasts, dual, means)
        contrasts = {**contrasts, **lower}
    return contrasts


def _move(contrasts: dict[Axes, Array], dual: Mapping[Axes, _Multipliers], means: _Means) -> None:
    """Take the steps of multipliers in the contrasts of their own tables."""
    for axes, own in dual.items():
        add_lower(contrasts[axes], axes, own.own_part(means[axes]))
        contrasts[axes].reshape(-1)[own.cells] += own.weight * own.point
        contrasts[axes] = contrast(contrasts[axes])  # the sums of many small steps round


def _multipliers(
    contrasts: Mapping[Axes, Array],
    tables: Sequence[Axes],
    sizes: Sequence[int],
    possible: Mapping[Axes, npt.NDArray[np.bool_]],
    exact: Collection[Axes],
) -> dict[Axes, _Multipliers]:
    tables = [axes for axes in tables if axes not in exact]
    holding: dict[Axes, int] = {}
    for axes in tables:
        for inside in below(axes):
            holding[inside] = holding.get(inside, 0) + 1
    out = {}
    for axes in tables:
        impossible = ~possible[axes].reshape(-1) if axes in possible else None
        step, shape = _step(axes, sizes, holding), contrasts[axes].shape
        out[axes] = _Multipliers(axes=axes, shape=shape, step=step, exact=exact, impossible=impossible)
    return out


def _step(axes: Axes, sizes: Sequence[int], holding: Mapping[Axes, int]) -> float:
    """Return a step that is safe for all tables together."""
    steepest = _weight(axes)
    for inside in below(axes):
        shares = math.prod(sizes[a] for a in axes if a not in inside)
        steepest = max(steepest, _weight(inside) * holding[inside] / shares)
    return 1.0 / steepest


def _weight(axes: Axes) -> float:
    return float(4 ** len(axes)) if axes else FIRM


def _moves(means: _Means, lower: Mapping[Axes, Array], exact: Collection[Axes]) -> dict[Axes, Array]:
    """Return the contrasts of all smaller sets at multipliers that have these means."""
    sums: dict[Axes, Array] = {}
    for found in means.values():
        for inside, values in found.items():
            sums[inside] = sums[inside] + values if inside in sums else values
    moved = {}
    for inside, values in lower.items():
        free = inside in sums and inside not in exact
        moved[inside] = values + _weight(inside) * contrast(sums[inside]) if free else values
    return moved


def _table(own: Array, dual: _Multipliers, moved: Mapping[Axes, Array], means: Mapping[Axes, Array]) -> Array:
    """Return a table at the multipliers."""
    table, part = own.copy(), dual.own_part(means)
    add_lower(table, dual.axes, {a: moved[a] + part[a] if a in part else moved[a] for a in below(dual.axes)})
    table.reshape(-1)[dual.cells] += dual.weight * dual.point
    return table


def lifted(
    contrasts: dict[Axes, Array],
    tables: Sequence[Axes],
    possible: Mapping[Axes, npt.NDArray[np.bool_]],
    even: Mapping[Axes, Array],
    exact: Collection[Axes],
) -> dict[Axes, Array]:
    """Return contrasts, changed in place, mixed with those of even tables as far as negative cells need it.

    Contrasts have the shapes of their tables; ``possible``, ``even`` and ``exact`` are those of `Evidence`.
    """
    total, worst = float(contrasts[()]), 0.0
    for axes in (axes for axes in tables if axes not in exact):
        table = assembled(contrasts, axes)
        share = assembled({axes: np.zeros(table.shape), **even, (): np.array(1.0)}, axes) if even else 1.0 / table.size
        needed = np.divide(-table, share, out=np.zeros_like(table), where=possible.get(axes, np.array(True)))
        worst = max(worst, float(needed.max(initial=0.0)))
    if worst > 0.0:
        kept = max(total, 0.0) / (max(total, 0.0) + worst)
        for axes in contrasts:
            if axes and axes not in exact:
                contrasts[axes] *= kept
                if axes in even:
                    contrasts[axes] += (1.0 - kept) * total * even[axes]
    return contrasts
