"""The search: every query has a weight, every line follows the weights of its queries, and the shares follow both.

Queries above the mean variance gain weight, those below lose it.  What the queries weigh in a space gives its lines
their weights, and those their strategies, one step at a time.  In the end the strategies get the best shares, and the
weights, made products group by group, prove the bound.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.arrays import Array
from engine.errors import Unanswered
from engine.mechanisms.largest.asked import Arranged, Layout, points
from engine.mechanisms.largest.lines import Line
from engine.mechanisms.largest.made import Measured, Proof, measured_lines, proof
from engine.mechanisms.query_weights import LOST, unit_blocks
from engine.plans import (
    Emphasis,
    Objective,
    Symmetry,
    Tradeoff,
    VarianceBuilder,
    best_shares,
    footprints,
)
from engine.spaces import Decomposition, Space, SpaceSolution, Split, decompose
from engine.threads import threads_for
from engine.workload import Workload

FIRST, STEPS, MOST = 60, 20, 160  # steps to the first plan, from each to the next, and in all
ONCE = 96  # steps to the only plan
LEAST_STEPS = 10  # whatever the time
FEW = 500_000  # queries on lines up to which there is more than one plan
LIGHT = 1e-2  # of the mean of their group: weights below it rise fast
FARTHEST = 3.0  # that the logarithm of a weight goes in a step
LIGHTEST = 1e-9  # mean weight of a group's queries, in shares of the mean of all
LEFT = 1e-2  # of the least weight, that a query has at least in a proof
SINGLE: Any = np.float32  # of millions of queries: the search needs no more digits, and certificates are none of it
GAP = 1e-5  # of the standard error: closer is not worth another round
FAR = 1e-3  # of the standard error: products of weights leave this much where they are not for the workload
WORTH, PATIENCE = 0.9, 2  # of the gap: so many rounds in a row that leave more are the last
FINE = 4e-6  # of the variance: gap of the shares


@dataclass(frozen=True, kw_only=True)
class _Pace:
    """How weights move.

    Attributes
    ----------
    power : of its variance over the mean, that a query's weight is multiplied by.
    rise : what more it is where a light weight rises.
    kept : of the last move that the next one goes on with.
    least : weight of a query, in shares of the mean of its group: lighter ones are long in coming back.
    """

    power: float
    rise: float
    kept: float
    least: float


PLAIN = _Pace(power=2.0, rise=20.0, kept=0.0, least=1e-8)  # few queries come near their first plan without haste
KEEN = _Pace(power=1.5, rise=10.0, kept=0.7, least=1e-4)


@dataclass(frozen=True, kw_only=True, eq=False)
class Balanced:
    """A plan for privacy cost 1 and its proof.

    Attributes
    ----------
    plan : strategies of all residual spaces.
    shares : squared noise of every space, in the order of the strategies.
    value : largest variance over its target, in counts^2.
    proof : weights, and the bound that they prove.
    """

    plan: Measured
    shares: Array
    value: float
    proof: Proof

    @property
    def duals(self) -> tuple[Array, ...]:
        """The weights of cells of all strategies, and of the proof, shape (orbits,) each."""
        return (*self.plan.duals, *self.proof.duals)

    @property
    def far(self) -> bool:
        """Whether the proof is so far from the plan that another search is worth its time."""
        return self.value > self.proof.bound * (1.0 + FAR) ** 2

    @property
    def endings(self) -> tuple[str, ...]:
        """How their searches ended."""
        return ("optimal",) * len(self.duals)

    @property
    def parts(self) -> Decomposition:
        """Which space has which strategy."""
        return self.plan.parts

    @property
    def solutions(self) -> list[SpaceSolution]:
        """The strategies."""
        return self.plan.solutions

    @property
    def tradeoff(self) -> Tradeoff:
        """What a plan file keeps."""
        return Tradeoff(shares=self.shares, emphasis=self.proof.emphasis, lines=self.plan.lines)


class _Balance:
    """The weights of all queries, and what follows from them.

    Weights of a kind have the shape of its counts and stand for all its groups and all queries alike; all together
    weigh 1.
    """

    def __init__(self, layout: Layout, counts: Array) -> None:
        self.layout, self.kinds, self.counts = layout, layout.kinds, counts
        self.lines = [Line(rows) for rows in layout.rows]
        whole = math.fsum(math.prod(k.counts) for k in self.kinds)
        self.weights = [np.full(k.counts, 1.0 / whole, dtype=SINGLE) for k in self.kinds]
        self.pace, self.least = KEEN, LIGHTEST / whole
        self.moves = [np.zeros_like(w) for w in self.weights]
        self.outside = [[out.astype(SINGLE) for out in k.outside] for k in self.kinds]
        self.follow([np.ones(len(line.rows)) for line in self.lines])
        self.noises = self.best_noises()

    def follow(self, weights: Sequence[Array]) -> None:
        """Let every line go a step with its weights, shape (queries,) each."""
        for line, own in zip(self.lines, weights, strict=True):
            line.follow(own)
        self.look()

    def look(self) -> None:
        """Take what the lines leave of the queries in every space, shape (spaces, queries), part by part."""
        known = [line.variances.astype(SINGLE) for line in self.lines]
        self.tables = [
            [
                np.stack([out if own[p] < 0 else known[own[p]][window] for own in kind.lines])
                for p, (out, window) in enumerate(zip(outside, kind.windows, strict=True))
            ]
            for kind, outside in zip(self.kinds, self.outside, strict=True)
        ]

    def best_noises(self) -> Array:
        """Return the squared noises that are best for the weights at privacy cost 1, shape (space kinds,)."""
        pulled = np.zeros(len(self.counts))
        for kind, weights, tables in zip(self.kinds, self.weights, self.tables, strict=True):
            sums = _contracted(weights, tables) * kind.factors
            pulled += np.bincount(kind.spaces, sums / kind.target, minlength=len(pulled))
        best = np.sqrt(self.counts / np.maximum(pulled, 1e-300))
        return np.asarray(best * float(np.sum(self.counts / best)), dtype=float)

    def asked(self) -> list[Array]:
        """Return what the queries weigh on the lines, shape (queries,) each."""
        sums = [np.zeros(len(line.rows)) for line in self.lines]
        for kind, weights, tables in zip(self.kinds, self.weights, self.tables, strict=True):
            scale = kind.factors * self.noises[list(kind.spaces)] / kind.target
            for p, window in enumerate(kind.windows):
                rest = _contracted(weights, tables, p) * scale[:, None]
                for j, own in enumerate(kind.lines):
                    if own[p] >= 0:
                        sums[own[p]][window] += rest[j]
        return sums

    def step(self, pace: _Pace) -> None:
        """Let the lines follow the weights, and the weights the variances."""
        self.follow(self.asked())
        self.noises = self.best_noises()
        found = [
            _products(kind.factors * self.noises[list(kind.spaces)] / kind.target, tables)
            for kind, tables in zip(self.kinds, self.tables, strict=True)
        ]
        mean = math.fsum(float(np.vdot(w, v)) for w, v in zip(self.weights, found, strict=True))
        self.pace = pace
        self.moves = [_move(pace, w, v / mean, m) for w, v, m in zip(self.weights, found, self.moves, strict=True)]
        self.weights = [w * np.exp(m) for w, m in zip(self.weights, self.moves, strict=True)]
        total = math.fsum(float(w.sum()) for w in self.weights)
        means = [max(float(w.mean()) / total, self.least) for w in self.weights]
        self.weights = [np.maximum(w / total, pace.least * mean) for w, mean in zip(self.weights, means, strict=True)]

    def emphasis(self, same: Symmetry) -> Emphasis:
        """Return the weights as products over single attributes, every kind of groups with vectors of its own."""
        vectors: list[Array] = []
        uses, by_kind = [], []
        even: dict[int, int] = {}
        for kind, heavy in zip(self.kinds, self.weights, strict=True):
            # what only keeps light queries from being forgotten proves nothing
            floor = self.pace.least * float(heavy.mean())
            weights = np.maximum(heavy - floor, LEFT * floor)
            group, own = self.layout.workload.groups[same.examples[kind.number]], []
            for k, part in enumerate(group.parts):
                if k in kind.parts:
                    axis = kind.parts.index(k)
                    vector = weights.sum(axis=tuple(a for a in range(weights.ndim) if a != axis), dtype=float)
                    own.append(len(vectors))
                    vectors.append(vector / vector.sum())
                else:
                    if part.count not in even:
                        even[part.count] = len(vectors)
                        vectors.append(np.ones(part.count))
                    own.append(even[part.count])
            uses.append(tuple(own))
            by_kind.append(float(weights.sum()) / (kind.groups * kind.alike * kind.target))
        return Emphasis(
            kinds=same.kinds,
            weights=np.array(by_kind),
            uses=tuple(uses),
            whole=(False,) * len(uses),
            vectors=tuple(vectors),
        )


def rounds(workload: Workload, goal: Objective, split: Split) -> int:
    """Return how many plans a search makes at most, 0 where it is not for such a workload; for forecasts."""
    found = points(workload, goal, split)
    return min(found, 1 if found > FEW else 1 + (MOST - FIRST) // STEPS)


def balanced(
    workload: Workload,
    goal: Objective,
    split: Split,
    labels: Mapping[str, Hashable],
    tell: Callable[[float, str], None],
    deadline: float,
) -> Balanced:
    """Return the best plan found until the deadline, for privacy cost 1, and the best proof.

    The first steps are taken whatever the time: without them there is no plan.
    """
    spaces = list(decompose(workload, split, labels).spaces)
    arranged = Arranged(workload, spaces, goal, labels, split)
    layout = Layout(arranged.workload, arranged.same, goal, split)
    balance = _Balance(layout, arranged.same.counts)
    best: Balanced | None = None
    done, left, lost = 0, math.inf, 0
    many = points(workload, goal, split) > FEW
    first, most = (ONCE, ONCE) if many else (FIRST, MOST)
    while True:
        for _ in range(first if best is None else STEPS):
            words = "Weighing the queries" + ("" if best is None else f", gap {left:.1e}")
            tell(0.9 * done / most, words)
            with threads_for(1):  # many small products
                balance.step(KEEN if best is not None or many else PLAIN)
            done += 1
            if time.monotonic() > deadline and done >= LEAST_STEPS:
                break
        found, last = _finished(workload, goal, split, labels, arranged, balance, deadline), left
        best = found if best is None else _both(best, found)
        left = math.sqrt(best.value / best.proof.bound) - 1.0
        lost = lost + 1 if left > WORTH * last else 0
        if done >= most or left <= GAP or lost == PATIENCE or time.monotonic() > deadline:
            return best


def _finished(
    workload: Workload,
    goal: Objective,
    split: Split,
    labels: Mapping[str, Hashable],
    arranged: Arranged,
    now: _Balance,
    deadline: float,
) -> Balanced:
    """Return the plan and the proof that the weights of now lead to; their lines take no harm."""
    kept = [(line.mass, line.variances) for line in now.lines]
    numbers, same = now.layout.numbers, arranged.same
    masses = [line.mass for line in now.lines]
    emphasis = arranged.emphasis(now.emphasis(same))
    near = functools.partial(_known, masses, numbers)
    shown = proof(workload, goal, split, labels, emphasis, near, deadline=deadline)
    with threads_for(1):
        for line in now.lines:
            line.polish()
    made = measured_lines(
        workload,
        split,
        list(same.spaces),
        [line.weights for line in now.lines],
        numbers,
        [line.mass for line in now.lines],
    )
    now.look()
    noises = now.best_noises()
    for line, (mass, variances) in zip(now.lines, kept, strict=True):
        line.mass, line.variances = mass, variances
    now.look()
    blocks = unit_blocks(made.parts, made.solutions)
    builder = VarianceBuilder(blocks=blocks, split=split, schema=workload.schema)
    asked = footprints(arranged.workload, blocks, builder, same, goal)
    if asked is None:
        raise Unanswered(LOST)
    found = best_shares(asked, same.counts, goal, noises, FINE)
    shares = np.array([found.noises[same.spaces[s]] for s in made.parts.spaces])
    return Balanced(plan=made, shares=shares, value=found.value, proof=shown)


def _known(masses: list[Array], numbers: Mapping[tuple[Space, str], int], space: Space, name: str) -> Array | None:
    number = numbers.get((space, name))
    return None if number is None else masses[number]


def _both(a: Balanced, b: Balanced) -> Balanced:
    """Return the better plan with the better proof."""
    plan, shown = (a if a.value <= b.value else b), (a if a.proof.bound >= b.proof.bound else b)
    return Balanced(plan=plan.plan, shares=plan.shares, value=plan.value, proof=shown.proof)


def _move(pace: _Pace, weights: Array, ratio: Array, last: Array) -> Array:
    """Return by what the logarithms of weights rise: a power of variances over the mean, and part of the last move.

    Light ones rise fast.  All have one shape.
    """
    light = LIGHT * float(weights.mean())
    power = pace.power + np.where(ratio > 1.0, pace.rise * light / (light + weights), 0.0).astype(weights.dtype)
    return np.asarray(np.clip(power * np.log(np.maximum(ratio, 1e-30)) + pace.kept * last, -FARTHEST, FARTHEST))


def _contracted(weights: Array, tables: Sequence[Array], but: int = -1) -> Array:
    """Return the sums of weights times one table an axis, shape (spaces,), or (spaces, queries) with one axis left."""
    if but >= 0:
        weights = np.moveaxis(weights, but, 0)
    others = [t for k, t in enumerate(tables) if k != but]
    if not others:
        return np.broadcast_to(weights, (len(tables[but]), *weights.shape)) if but >= 0 else weights.reshape(1)
    with np.errstate(invalid="ignore"):  # vector units raise the flag on registers that hold no data; see below
        out = weights @ others[-1].T
    if not np.isfinite(out).all():
        raise FloatingPointError("the sums of weights times tables are not finite")
    for table in others[-2::-1]:
        out = np.einsum("...as,sa->...s", out, table)
    return np.asarray(out.T)


def _products(scale: Array, tables: Sequence[Array]) -> Array:
    """Return the sum over spaces of scale times a product of tables, in the shape of the queries of all parts."""
    if not tables:
        return np.asarray(scale.sum())
    out = scale[:, None] if not tables else scale[:, None].astype(tables[0].dtype)
    for table in tables[:-1]:
        out = (out[:, :, None] * table[:, None, :]).reshape(len(scale), -1)
    return np.asarray((out.T @ tables[-1]).reshape([t.shape[1] for t in tables]))
