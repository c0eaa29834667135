"""Iterative reweighting of queries for general objectives.

Weights of queries: their dual norm, what they prove, and weights query by query.

Factored weights leave the largest variance where no product reaches it.  There `PointWeights` has a weight for every
single query: queries above the mean gain weight, those below lose it, and the factored weights, whose strategies are
known, follow what the single ones earn.

The search for strategies under objectives that are no weighted sum.

For weights u on the queries the mechanism's own solver gives strategies and shares that are best for the weighted sum,
and by its certificate a lower bound: the bound on the weighted sum over the dual norm of u holds for every plan of the
class.  The search maximises that bound over weights in factored form: it multiplies every weight by what it earns over
what it costs (by the envelope theorem the variances are the gradient), with Anderson acceleration.  Now and then, and
near the end at every step, the strategies found get the best shares for the objective itself; the best plan and the
best bound are kept.  Where weights are products, the best plan is then bettered: weights of single queries, which no
product says, steer the factored ones (see `query_weights`).  The first step is the weighted sum that the workload asks
for, so the result is never worse than its strategies with the best shares.

Source: Weighted Fourier Factorizations, lemma 3.10, for marginals; the factored weights are our own.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from engine._arrays import Array
from engine.errors import PlanError
from engine.mechanisms.group_constraints import separate_bound
from engine.plans import Block
from engine.plans.budget_allocation import best_shares
from engine.plans.objectives import Asked, Emphasis, Objective, Symmetry, footprints, symmetry
from engine.plans.solver_state import Tradeoff
from engine.plans.variance import Footprint, VarianceBuilder, footprint
from engine.residuals import Space, Split, contract
from engine.residuals.decomposition import Decomposition, decompose
from engine.residuals.subworkload_solver import SpaceSolution
from engine.workload import Part, Workload

POWER = 3.0  # of its variance over the mean, that a query's weight is multiplied by
AXES = "abcdefgh"  # of tables, for sums over products of them
LOST = (
    "Some queries weigh so little beside others that what they ask is lost in rounding. Bring the weights closer "
    "together, or give those queries the weight 0."
)
MOST = 8_000_000  # numbers that the weights of single queries may be


def even(part: Part) -> bool:
    """Return whether the queries of a part ask for all cells alike, so that equal weights are best for them."""
    if len(part.sizes) > 1:
        return False
    gram = part.family.gram(part.sizes)
    apart = gram[~np.eye(len(gram), dtype=bool)]
    return not np.ptp(np.diag(gram)) and not (len(apart) and np.ptp(apart))


def unit_blocks(parts: Decomposition, solutions: list[SpaceSolution]) -> dict[Space, Block]:
    """Return the strategies as blocks of noise 1."""
    return {
        space: Block(
            attributes=space, factors=tuple((a, f.strategy) for a, f in solutions[k].factors), noise=1.0, grid=1.0
        )
        for space, (k, _) in parts.spaces.items()
    }


def dual_norm(workload: Workload, goal: Objective, emphasis: Emphasis) -> tuple[float, Array, list[Array]]:
    """Return the dual norm of the weights, and its derivative by the logs of kind weights and of vectors.

    Shapes (kind weights,) and those of the vectors.
    """
    q = goal.conjugate
    first = {kind: i for i, kind in reversed(list(enumerate(emphasis.kinds)))}
    sizes = np.bincount([k for k in emphasis.kinds if k >= 0], minlength=len(emphasis.weights))
    by_kind, by_vector = np.zeros(len(emphasis.weights)), [np.zeros(len(v)) for v in emphasis.vectors]
    for kind, numbers in enumerate(emphasis.uses):
        group, own = workload.groups[first[kind]], np.ones(1)
        scale = sizes[kind] * emphasis.weights[kind] ** q
        if math.isinf(goal.power):
            scale *= goal.target(first[kind])
        else:
            scale *= group.weight ** (1.0 - q)
            if group.query_weights is not None:
                used = group.query_weights > 0
                own = np.power(group.query_weights, 1.0 - q, where=used, out=np.zeros(group.count))
        masses = [own * emphasis.vectors[n] ** q for n in numbers]
        sums = [float(m.sum()) for m in masses]
        by_kind[kind] = scale * math.prod(sums)
        for n, mass, total in zip(numbers, masses, sums, strict=True):
            # a group whose queries all have the weight 0 adds nothing
            by_vector[n] += by_kind[kind] * mass / total if total > 0.0 else 0.0
    total = float(by_kind.sum())
    value = total ** (1.0 / q)
    return value, by_kind * value / total, [v * value / total for v in by_vector]


def proven(
    workload: Workload, goal: Objective, emphasis: Emphasis, parts: Decomposition, solutions: list[SpaceSolution]
) -> float:
    """Return the lower bound on the norm of the variances at privacy cost 1 that weights and their solutions prove."""
    return separate_bound(parts, solutions) / dual_norm(workload, goal, emphasis)[0]


class PointWeights:
    """A weight for every single query of every kind of group, from factored ones.

    Parameters
    ----------
    asked : the queries by kind, none of them with a vector that runs over all queries of a group.
    emphasis : the factored weights to begin with.
    """

    def __init__(self, asked: Sequence[Asked], emphasis: Emphasis) -> None:
        self.masses: list[Array] = []
        for kind, (one, numbers) in enumerate(zip(asked, emphasis.uses, strict=True)):
            mass = np.array(one.groups * emphasis.weights[kind] * one.target)
            for together in one.queries.sets:
                for p in together:
                    mass = np.multiply.outer(mass, emphasis.vectors[numbers[p]])
            self.masses.append(mass.reshape([table.shape[1] for table in one.queries.tables]))

    @staticmethod
    def fits(asked: Sequence[Asked]) -> bool:
        """Return whether there are few enough queries."""
        return all(len(one.queries.tables) <= len(AXES) for one in asked) and (
            sum(math.prod(len(t.T) for t in one.queries.tables) for one in asked) <= MOST
        )

    def follow(self, asked: Sequence[Asked], noises: Array) -> None:
        """Give weight to the queries above the mean variance.

        ``noises``, squared, have shape (space kinds,).
        """
        found = []
        for one in asked:
            tables = one.queries.tables
            axes = AXES[: len(tables)]
            terms = ",".join(["s", *("s" + a for a in axes)])
            s = noises[list(one.spaces)] / one.target
            found.append(np.einsum(f"{terms}->{axes}", s, *tables, optimize=True))
        total = math.fsum(float(m.sum()) for m in self.masses)
        mean = math.fsum(float(np.vdot(m, v)) for m, v in zip(self.masses, found, strict=True)) / total
        self.masses = [m * (v / mean) ** POWER for m, v in zip(self.masses, found, strict=True)]
        total = math.fsum(float(m.sum()) for m in self.masses)
        self.masses = [m / total for m in self.masses]

    def earned(
        self, asked: Sequence[Asked], counts: Array, noises: Array, emphasis: Emphasis
    ) -> tuple[list[Array], Array]:
        """Return what the queries earn in variance, by vector of the emphasis, and the noises that are best for them.

        ``counts`` and ``noises``, squared and at privacy cost 1, have shape (space kinds,), as what is returned.
        """
        sums, out = np.zeros(len(counts)), [np.zeros(len(v)) for v in emphasis.vectors]
        for one, mass, numbers in zip(asked, self.masses, emphasis.uses, strict=True):
            tables = one.queries.tables
            axes = AXES[: len(tables)]
            for c, (together, table) in enumerate(zip(one.queries.sets, tables, strict=True)):
                others = [i for i in range(len(tables)) if i != c]
                terms, ends = ",".join([axes, *("s" + axes[i] for i in others)]), "s" * bool(others) + axes[c]
                rest = np.einsum(f"{terms}->{ends}", mass, *(tables[i] for i in others), optimize=True)
                own = rest * table / one.target
                if c == 0:
                    sums += np.bincount(one.spaces, own.sum(axis=1), minlength=len(counts))
                tensor = (noises[list(one.spaces)] @ own).reshape([len(out[numbers[p]]) for p in together])
                for i, p in enumerate(together):
                    out[numbers[p]] += tensor.sum(axis=tuple(a for a in range(len(together)) if a != i))
        best = np.sqrt(counts / np.maximum(sums, 1e-300))
        return out, best * float(np.sum(counts / best))


def gains(earned: Array, now: Array) -> Array:
    """Return logs of what is earned over what is earned now, 0 in the mean. All have shape (queries of a part,)."""
    if not earned.any():
        return np.zeros(len(earned))
    ratio = np.log(np.maximum(earned, 1e-300) / np.maximum(now, 1e-300))
    return np.clip(ratio - float(earned @ ratio) / float(earned.sum()), -1.0, 1.0)


EVALUATIONS = 40
APART = 2.0  # what a search for weights of its own takes, over one that symmetries halve and that is shared
GAP = 1e-5  # of the standard error: closer is not worth another step
COARSE = 1e-4  # gap of the shares in the first steps
FINE = 1e-7  # gap of the shares of the plan
ROUGH, LOOSE = 1e-3, 0.1  # gap of the strategies on the way: this, and this times the square of the last move
CALMER = 0.6  # shares are searched again when weights move by this much less than when they last were ...
CALM = 0.02  # ... or by this little, where every step may be the best
SETTLED = 0.05  # once the bound gains less than this share of the gap, it is the plan that is far from the best ...
DROP = 0.3  # ... and gets better weights for single queries, where no vector falls below exp(-DROP) of what it was
MEMORY = 8  # points that the acceleration looks back on
RIDGE = 1e-3  # directions this much shorter than the longest are left out of it
SETBACK = 1e-3  # of the logarithm of the bound that one step may lose
PROGRESS = 1e-4  # of the variance: a step that gains less is none
PATIENCE = 6  # steps without progress
REACH = 12.0  # weights within a vector differ by at most exp(REACH), so that no query drops out of the Gram
WHOLE_QUERIES = 20_000  # groups up to this size may have a weight for every single query ...
WHOLE_CELLS = 400  # ... when their tables are this small, because their spaces are then solved densely
Step = tuple[Decomposition, list[SpaceSolution], tuple[Array, ...], tuple[str, ...]]
Solve = Callable[[Workload, tuple[Array, ...], float], Step]


@dataclass(frozen=True, kw_only=True, eq=False)
class Candidate:
    """One step: the weights, what they led to and what they prove."""

    emphasis: Emphasis
    point: Array
    parts: Decomposition
    solutions: list[SpaceSolution]
    duals: tuple[Array, ...]
    endings: tuple[str, ...]
    noises: Array
    bound: float
    asked: list[Asked]
    unrest: float
    value: float = math.inf


class TradeoffSearch:
    """Searches weights for one workload; see the module's text.

    Parameters
    ----------
    goal : the objective.
    split : how queries fall into residual spaces.
    labels : what a mechanism tells attributes apart by.
    solve : the mechanism for the weighted sum: workload, duals to start from and the gap of the standard error that is
        close enough -> decomposition, solutions, duals, endings.
    tell : called with a fraction and a text.
    known : a value that another plan reaches: the search ends where its bound says that no smaller one can come.
    """

    def __init__(
        self,
        workload: Workload,
        goal: Objective,
        split: Split,
        labels: Mapping[str, Hashable],
        solve: Solve,
        tell: Callable[[float, str], None],
        deadline: float,
        known: float = math.inf,
    ) -> None:
        self.workload, self.goal, self.split, self.labels, self.known = workload, goal, split, labels, known
        self.solve, self.tell, self.deadline, self.started = solve, tell, deadline, time.monotonic()
        spaces = list(decompose(workload, split, labels).spaces)
        self.same: Symmetry = symmetry(workload, spaces, goal, labels, split)
        self.best: Candidate | None = None
        self.witness: Candidate | None = None
        self.pending: Candidate | None = None  # the calmest whose shares were not searched
        self.shared = math.inf  # how much the weights moved when shares were searched last
        self.moved = math.inf  # by how much the weights moved last
        self.evaluations = self.stale = 0
        self.last: tuple[Array, ...] = ()
        self.now: Candidate | None = None  # what the last step led to
        self._lay_out()

    def _lay_out(self) -> None:
        """Decide which vectors there are: variables are logs of kind weights, then logs of the vectors."""
        groups = [self.workload.groups[i] for i in self.same.examples]
        # a weight for every query is more than weights by part can say, and affordable for small groups alone
        small = sum(g.count for g in self.workload.groups) <= WHOLE_QUERIES
        numbers: dict[Any, int] = {}
        self.starts: list[Array] = []
        uses, self.whole = [], []
        for kind, group in enumerate(groups):
            cells = math.prod(group.sizes)
            whole = group.query_weights is not None or (len(group.parts) > 1 and small and cells <= WHOLE_CELLS)
            self.whole.append(whole)
            if whole:
                keys: list[Any] = [("group", kind)]
                own = [np.ones(group.count) if group.query_weights is None else group.query_weights]
            else:
                keys, own = [], []
                # one vector for all groups keeps what every space is asked a product; so do two, where one of them is
                # for parts that stand alone among tables of cells, and their best weights are others
                uneven = sum(not even(part) for part in group.parts)
                for part in group.parts:
                    roles = tuple(self.same.spaces.get((group.attributes[a],), -1) for a in part.axes)
                    names = tuple(self.workload.schema[group.attributes[a]].name for a in part.axes)
                    shared = (uneven > 1, part.key, roles if min(roles) >= 0 else names)
                    keys.append(("group", kind) if len(group.parts) == 1 else shared)
                    own.append(np.ones(part.count))
            for key, start in zip(keys, own, strict=True):
                if key not in numbers:
                    numbers[key] = len(self.starts)
                    self.starts.append(start)
            uses.append(tuple(numbers[key] for key in keys))
        self.uses = tuple(uses)
        targets = [self.goal.target(i) for i in self.same.examples]
        self.targets = np.array(targets)
        self.weights = np.array([g.weight for g in groups])
        ends = np.cumsum([len(groups), *(len(v) for v in self.starts)])
        self.windows = [slice(a, b) for a, b in itertools.pairwise(ends)]
        self.variables = int(ends[-1])
        self.sharp = not math.isinf(self.goal.power) or any(self.whole)  # whether single queries had their say

    def emphasis(self, x: Array) -> Emphasis:
        """Return the weights of a point. A point has shape (kind weights + entries of all vectors,)."""
        vectors = []
        for start, window in zip(self.starts, self.windows, strict=True):
            # only ratios within a vector count: its size is the weight of the kind
            own = x[window] - x[window].max()
            vectors.append(start if np.abs(own).max(initial=0.0) < 1e-9 else start * np.exp(own))
        return Emphasis(
            kinds=self.same.kinds,
            weights=self.weights * np.exp(x[: len(self.weights)]),
            uses=self.uses,
            whole=tuple(self.whole),
            vectors=tuple(vectors),
        )

    def evaluate(self, x: Array) -> tuple[float, Array, Array, Array]:
        """Return the log of the dual value, log of what each weight earns over what it costs, these costs, and masses.

        Earnings and costs have the shape of the point, masses (kinds,).
        The costs are shares of the dual norm, the masses those of the kinds of groups in the best shares.
        """
        if time.monotonic() > self.deadline and self.best is not None:
            raise TimeoutError
        emphasis = self.emphasis(x)
        self.evaluations += 1
        parts, solutions, duals, endings = self.solve(emphasis.apply(self.workload), self.last, self._closeness())
        self.last = duals
        # weights far apart lose spaces in rounding: such a point is no plan, and the search turns back
        if set(parts.spaces) != set(self.same.spaces):
            return -math.inf, np.zeros(len(x)), np.ones(len(x)), self.same.sizes
        values = {s: scale * solutions[k].value for s, (k, scale) in parts.spaces.items()}
        size, by_kind, by_vector = dual_norm(self.workload, self.goal, emphasis)
        costs = np.concatenate([by_kind, *by_vector]) / size
        total = math.fsum(math.sqrt(v) for v in values.values())
        noises = np.zeros(len(self.same.counts))
        for space, kind in self.same.spaces.items():
            # the best shares for the weighted sum, where the search for those of the norm begins
            noises[kind] = total / math.sqrt(values[space])
        blocks = unit_blocks(parts, solutions)
        builder = VarianceBuilder(blocks=blocks, split=self.split, schema=self.workload.schema)
        asked = footprints(self.workload, blocks, builder, self.same, self.goal)
        if asked is None:
            return -math.inf, np.zeros(len(x)), np.ones(len(x)), self.same.sizes
        slope = self._slope(emphasis, builder, asked, noises) / total**2
        # at the optimum every weight earns in variance what it costs in the dual norm: the log of the ratio is the step
        ratio = np.log(np.maximum(slope, 1e-300) / np.maximum(costs, 1e-300))
        candidate = Candidate(
            emphasis=emphasis,
            point=x,
            parts=parts,
            solutions=solutions,
            duals=duals,
            endings=endings,
            noises=noises,
            bound=proven(self.workload, self.goal, emphasis, parts, solutions),
            asked=asked,
            unrest=math.sqrt(float(costs @ self._moving(x, ratio) ** 2) / float(costs.sum())),
        )
        self.moved, self.now = candidate.unrest, candidate
        mass = self._keep(candidate)
        return 2.0 * math.log(total) - math.log(size), ratio, costs, mass

    def _closeness(self) -> float:
        """Return the gap of the strategies of the next step: closer than the weights are, they would be work lost."""
        return 0.0 if self.best is None else min(ROUGH, LOOSE * self.moved**2)

    def _tolerance(self) -> float:
        """Return how close the shares of this step need to be: the strategies are still far off at first."""
        if self.best is None or self.witness is None:
            return COARSE
        # a tenth of the gap is as close as the gap can show
        return min(COARSE, max(0.1 * GAP, 0.02 * (self.best.value / self.witness.bound - 1.0)))

    def _share(self, candidate: Candidate, gap: float) -> Array:
        """Give a candidate the best shares and keep the best plan; return the mass of every kind of group."""
        found = best_shares(candidate.asked, self.same.counts, self.goal, candidate.noises, gap)
        self.pending = None if self.pending is candidate else self.pending
        if found.value < candidate.value:
            shared = replace(candidate, noises=found.noises, value=found.value)
            # one object stays one, so that a file holds its weights once
            self.witness = shared if self.witness is candidate else self.witness
            self.best = shared if self.best is None or shared.value < self.best.value else self.best
        return found.mass

    def _keep(self, candidate: Candidate) -> Array:
        """Keep what is best; return the mass of every kind of group where shares were searched, else their sizes."""
        progress = False
        if self.witness is None or candidate.bound > self.witness.bound:
            progress = self.witness is None or candidate.bound > self.witness.bound * (1.0 + PROGRESS)
            self.witness = candidate
        if self.pending is None or candidate.unrest < self.pending.unrest:
            self.pending = candidate
        mass = self.same.sizes
        # shares take as long as a step, and those of unfinished weights are no better than the last: once in a while
        if candidate.unrest <= max(CALMER * self.shared, CALM):
            self.shared, before = candidate.unrest, math.inf if self.best is None else self.best.value
            mass = self._share(candidate, self._tolerance())
            progress = progress or self.best is None or self.best.value < before * (1.0 - PROGRESS)
        self.stale = 0 if progress else self.stale + 1
        if self.best is None:  # no shares of the budget give all queries a finite error: `run` raises
            raise StopIteration
        gap = math.sqrt(self.best.value / self.witness.bound) - 1.0
        self.tell(self.evaluations / EVALUATIONS, f"Weighing the queries, gap {gap:.1e}")
        if gap <= GAP or self.stale > PATIENCE or self.evaluations >= EVALUATIONS or self._lost():
            raise StopIteration
        return mass

    def _lost(self) -> bool:
        """Return whether nothing better than what is known can come of this search."""
        return self.witness is not None and self.witness.bound >= self.known

    def _slope(self, emphasis: Emphasis, builder: VarianceBuilder, asked: list[Asked], noises: Array) -> Array:
        """Return the derivative of the weighted sum of variances by the variables, at fixed strategies and shares."""
        out = np.zeros(self.variables)
        for kind, numbers in enumerate(emphasis.uses):
            group = self.workload.groups[self.same.examples[kind]]
            found = builder.group(group)
            flat: Footprint = footprint(found, np.ones(group.count)) if self.whole[kind] else asked[kind].queries
            s = noises[list(asked[kind].spaces)] * self.same.sizes[kind] * emphasis.weights[kind]
            sets = [tuple(range(1))] if self.whole[kind] else flat.sets
            shapes = [(group.count,)] if self.whole[kind] else [tuple(group.parts[p].count for p in t) for t in sets]
            if not numbers:
                out[kind] += float(s @ flat.tables[0][:, 0])
                continue
            # weighted sums over single parts of a table that couples several
            along: dict[int, Array] = {}
            totals = []
            for together, shape, table in zip(sets, shapes, flat.tables, strict=True):
                tensor = table.reshape(len(s), *shape)
                for p in together:
                    others = [None if q == p else emphasis.vectors[numbers[q]] for q in together]
                    along[p] = contract(tensor, others, 1) * emphasis.vectors[numbers[p]]
                totals.append(along[together[0]].sum(axis=1))
            whole = np.prod(totals, axis=0)
            out[kind] += float(s @ whole)
            for k, together in enumerate(sets):
                rest = s * np.prod([t for i, t in enumerate(totals) if i != k], axis=0)
                for p in together:
                    out[self.windows[numbers[p]]] += rest @ along[p]
        return out

    def run(self) -> Candidate:
        """Return the best candidate found; `witness` proves the best bound."""
        with contextlib.suppress(StopIteration, TimeoutError):
            *_, mass = self.evaluate(np.zeros(self.variables))
            counts = np.array([self.workload.groups[i].count for i in self.same.examples]) * self.same.sizes
            level = np.log(np.maximum(mass / counts, 1e-5 * (mass / counts).max()) / self.weights / self.targets)
            self._climb(np.concatenate([level - level.max(), np.zeros(self.variables - len(level))]))
        if self.best is None or self.witness is None:
            raise PlanError(LOST)
        if not self.sharp and self.best.value > self.witness.bound * (1.0 + GAP) ** 2 and not self._lost():
            with contextlib.suppress(StopIteration, TimeoutError):
                self._sharpen(self.best)
        for candidate in filter(None, (self.pending, self.best)):
            self._share(candidate, FINE)
        return self.best

    def _climb(self, x: Array) -> None:
        """Multiply every weight by what it earns over what it costs, with Anderson acceleration, until stopped."""
        step = 1.0 / self.goal.conjugate
        points: list[Array] = []
        moves: list[Array] = []
        good: tuple[float, Array, Array] = (-math.inf, x, np.zeros(len(x)))
        shorter = 1.0
        while True:
            before = 0.0 if self.witness is None else self.witness.bound
            value, ratio, costs, _ = self.evaluate(x)
            if self.best is None or self.witness is None:  # nothing to turn back to: `run` raises
                return
            gained, left = self.witness.bound - before, self.best.value - self.witness.bound
            if self._hurried() and self.moved <= CALM and gained < SETTLED * left:
                self._sharpen(self.best)
            if not math.isfinite(value) or value < good[0] - SETBACK:
                # too far: go on plainly from the last good point, a shorter way each time
                shorter *= 0.5
                x, points, moves = self._inside(good[1] + shorter * good[2]), [], []
                continue
            shorter, good = 1.0, (value, x, step * ratio)
            points, moves = [*points[1 - MEMORY :], x], [*moves[1 - MEMORY :], step * ratio]
            x = points[-1] + moves[-1]
            if len(points) > 1:
                dx, df = np.diff(points, axis=0).T, np.diff(moves, axis=0).T
                # weights that are on their way out never settle: what they do must not count
                heavy = np.sqrt(costs)
                gamma = np.linalg.lstsq(heavy[:, None] * df, heavy * moves[-1], rcond=RIDGE)[0]
                x = x - (dx + df) @ gamma
            x = self._inside(x)

    def _hurried(self) -> bool:
        """Return whether better weights for single queries are still to be found, in the half of the time left."""
        return not self.sharp and time.monotonic() > 0.5 * (self.started + self.deadline)

    def _sharpen(self, first: Candidate) -> None:
        """Let the weights follow what single queries earn, as long as that leads to better plans."""
        self.sharp, lost = True, 0
        if not PointWeights.fits(first.asked):
            return
        single, now, noises = PointWeights(first.asked, first.emphasis), first, first.noises
        while lost < 2 and self.best is not None:
            before, self.stale, self.shared = self.best.value, 0, math.inf  # shares of every step are searched
            single.follow(now.asked, noises)
            earned, best = single.earned(now.asked, self.same.counts, noises, now.emphasis)
            own = self._slope(now.emphasis, self._builder(now), now.asked, noises)
            x = now.point.copy()
            for window, vector in zip(self.windows, earned, strict=True):
                x[window] += gains(vector, own[window])
            # light queries would fall to weights of nothing, and their variances rise without end
            x, noises = np.maximum(x, first.point - DROP), best
            if not math.isfinite(self.evaluate(x)[0]) or self.now is None:
                return
            now, left = self.now, before - (self.witness.bound if self.witness else 0.0)
            lost = 0 if before - self.best.value > SETTLED * left else lost + 1

    def _builder(self, made: Candidate) -> VarianceBuilder:
        blocks = unit_blocks(made.parts, made.solutions)
        return VarianceBuilder(blocks=blocks, split=self.split, schema=self.workload.schema)

    def _moving(self, x: Array, ratio: Array) -> Array:
        """Return the ratio, with 0 for weights that are as small as they may be and would fall."""
        return np.where((self._inside(x - 1e-9 * (ratio < 0)) >= x) & (ratio < 0), 0.0, ratio)

    def _inside(self, x: Array) -> Array:
        out = x.copy()
        for window in [slice(0, len(self.weights)), *self.windows]:
            own = out[window]
            out[window] = np.maximum(own - own.max(), -REACH)
        return out

    def tradeoff(self) -> Tradeoff:
        """Return what a plan file keeps of the search."""
        assert self.best is not None
        assert self.witness is not None
        witness = None if self.witness is self.best else self.witness.emphasis
        shares = np.array([self.best.noises[self.same.spaces[s]] for s in self.best.parts.spaces])
        return Tradeoff(shares=shares, emphasis=self.best.emphasis, witness=witness)
