"""Solver choice for one subworkload: Kronecker, dense or alternating.

A Kronecker Gram has a Kronecker optimum, exactly: if V_i is optimal for G_i, the product of the V_i satisfies the
optimality conditions for the product of the G_i, and value and bound multiply.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine._arrays import Array
from engine._threads import SMALL, threads_for
from engine.errors import LimitExceeded
from engine.residuals.alternating import Searched, Turns
from engine.residuals.cache import Hints, SolveCache, nearest
from engine.residuals.decomposition import Factor, Subworkload, merge_shape
from engine.residuals.dual_solver import Options, Solution, Watch
from engine.residuals.kronecker_sums import Merged, assemble, merge, units
from engine.residuals.parallel import WORTH, Task, configured, search_all, workers_for
from engine.residuals.split import Axes, Complement, digest
from engine.residuals.strategy_search import TURNS, Cost, Search, dense_bytes, full_rank_cost, low_rank_cost, turns_cost

PARTED = "in turns"  # how the note begins that a search was one of parts that factors cross
BY_SETS = "set by set"  # and of one of parts that no factor crosses, where one search of all would have fitted
LONG, QUICK = 45.0, 0.35  # seconds, by forecast, of one dense search; of those that are meant to be quick
PATIENCE = 5.0  # seconds, by forecast, of all dense searches at tuned centers


@dataclass(frozen=True, kw_only=True, eq=False)
class SpaceSolution:
    """Strategy of a residual space as a product over sets of axes, with the certificate of the whole.

    ``factors`` holds (axes, solution); an empty product is the total.  ``value`` and ``bound`` are weighted squared
    errors at privacy cost 1 for the subworkload at scale 1, in counts^2.
    """

    factors: tuple[tuple[Axes, Solution], ...]
    value: float
    bound: float
    status: str


class SubworkloadSolver:
    """Solves subworkloads of one decomposition; equal factors are solved once.

    Parameters
    ----------
    factors : the factors of the decomposition.
    method : "optimal", "eigenbasis" or "fourier".
    options : when to stop.
    memory_limit : most bytes that one search may take; ``dense_limit``, at most this, chooses between dense and
        alternating searches where both can be done.
    cache : where solutions are kept, None for nowhere.

    Set ``watch`` to be called with the present gap after every evaluation; it may raise to cancel.  Set ``recorded`` to
    the dual weights of an earlier run, in the order of solving, to rebuild the same plan without searching; ``warm`` to
    weights of a similar run, to start from.
    """

    def __init__(
        self,
        *,
        factors: Sequence[Factor],
        method: str,
        options: Options,
        memory_limit: float,
        cache: SolveCache | None = None,
    ) -> None:
        self.factors, self.options, self.memory_limit = factors, options, memory_limit
        self.dense_limit = memory_limit
        self.method, self.cache = method, cache
        # those of now: the order of solving is no matter
        self.hints: Hints = cache.hints() if cache is not None else {}
        self.duals: list[Array] = []
        self.endings: list[str] = []
        self.watch: Watch | None = None
        self.recorded: list[tuple[Array, str]] | None = None
        self.warm: tuple[Array, ...] = ()
        self._solved: dict[Any, Solution] = {}
        self._ahead: dict[str, Solution] = {}

    def forecast(self, subs: Sequence[Subworkload]) -> list[Cost]:
        """Return what each subworkload will take, before anything is built.

        A factor that was counted once is free afterwards, because it is solved once.
        """
        known: set[int] = set()
        return [self._forecast(sub, known) for sub in subs]

    def in_time(self, subs: Sequence[Subworkload], costs: Sequence[Cost], seconds: float) -> None:
        """Lower ``dense_limit`` until dense searches take no longer than is reasonable.

        That is until they fit into so many seconds, and into ``PATIENCE`` where centers are tuned: those leave no
        symmetries, so that a search may take a hundred times what uniform ones took.
        """
        if any(pi is not None for sub in subs for pi in sub.centers):
            seconds = min(seconds, PATIENCE)
        products = [k for k, s in enumerate(subs) if len(s.terms) > 1 and not s.spaces and not s.complements]
        coupled = [(dense_bytes(subs[k].dimension, subs[k].dimension, math.prod(subs[k].sizes)), k) for k in products]
        for needed, k in sorted(coupled):
            seconds -= costs[k].seconds
            if seconds < 0.0:
                self.dense_limit = min(self.dense_limit, needed - 1)
                return

    def _forecast(self, sub: Subworkload, known: set[int]) -> Cost:
        terms, costs = merge_shape(sub), list[Cost]()
        if len(terms) == 1:
            pieces = [(axes, [number]) for axes, number in terms[0] if number not in known]
            known.update(number for _, number in terms[0])
        else:
            pieces = [(tuple(range(len(sub.sizes))), [number for t in terms for _, number in t])]
        turns, (sets, note) = 1, self._sets(sub) if len(terms) > 1 else ([], "")
        if note == PARTED:
            rows = [len(self.factors[k].matrix) for t in sub.terms for a, k in t.factors if len(a) > 1]
            return turns_cost(sub.sizes, rows, self.options.gap, sub.centers)
        if sets:
            turns = len(terms) + TURNS  # one search a term for the bound, then the sweeps
            pieces = [(axes, [n for t in terms for a, n in t if set(a) <= set(axes)]) for axes in sets]
        for axes, numbers in pieces:
            sizes = tuple(sub.sizes[a] for a in axes)
            several = self.factors[numbers[0]].dimension if sub.spaces else None
            if all(self.factors[k].low_rank for k in numbers):
                dimension = math.prod(n - 1 for n in sizes) if several is None else several
                rank = min(dimension, sum(self.factors[k].rank for k in numbers))
                plain = len(numbers) == 1 and not sub.complements and not sub.spaces
                alone = self.factors[numbers[0]] if plain else None
                costs.append(low_rank_cost(sizes, rank, alone, self.options.gap, several))
            else:
                joint = [self.factors[t[0][1]] for t in terms if len(t) == 1 and len(sizes) > 1 and not sub.complements]
                costs.append(full_rank_cost(sizes, joint, self.options.gap, several, [sub.centers[a] for a in axes]))
        return Cost(
            seconds=turns * math.fsum(c.seconds for c in costs) + 1e-4,
            peak=max((c.peak for c in costs), default=0.0),
            kept=math.fsum(c.kept for c in costs),
            turns=bool(sets),
        )

    def solve(self, sub: Subworkload) -> SpaceSolution:
        """Return the strategy of one subworkload, exact where it fits into memory."""
        terms = merge(sub, self.factors)
        axes = tuple(range(len(sub.sizes)))
        joined = bool(sub.spaces or sub.complements)
        if len(terms) == 1 and not joined:
            # value and privacy cost of a product are products: factors that are best each are best together
            coefficient, factors = terms[0]
            solved = [(axes, self._factor(factor, [sub.centers[a] for a in axes])) for axes, factor in factors]
            value = coefficient * math.prod(s.value for _, s in solved)
            bound = coefficient * math.prod(s.bound for _, s in solved)
            return SpaceSolution(factors=tuple(solved), value=value, bound=bound, status=_joined(solved))
        sets, note = ([], "") if joined else self._sets(sub)
        if sets:
            return self._in_turns(terms, sub, sets, note)
        needed = dense_bytes(sub.dimension, sub.dimension, math.prod(sub.sizes))
        if not joined and needed > self.memory_limit and self.recorded is None:
            raise LimitExceeded(
                f"A subworkload on {' x '.join(map(str, sub.sizes))} cells couples all its attributes and does not fit "
                f"into {self.memory_limit / 1e9:.1f} GB. Raise memory_limit, or ask fewer cells of these attributes."
            )
        solution = self._solution(assemble(terms, axes, sub.sizes), sub.centers, sub.complements, sub.spaces)
        return SpaceSolution(
            factors=((axes, solution),), value=solution.value, bound=solution.bound, status=solution.status
        )

    def _sets(self, sub: Subworkload) -> tuple[list[Axes], str]:
        """Return the sets of axes to search in turns, and the note that tells of it; none for one dense search."""
        if sub.spaces or sub.complements:
            return [], ""
        found = units([(1.0, t.factors) for t in sub.terms], len(sub.sizes))
        alone: list[Axes] = [(a,) for a in range(len(sub.sizes))]
        needed = dense_bytes(sub.dimension, sub.dimension, math.prod(sub.sizes))
        if self.recorded is not None:  # a plan is read back, and what it holds says how it was made
            ending = self.recorded[0][1] if self.recorded else ""
            if ending.startswith(PARTED):
                return alone, PARTED
            if ending.startswith(BY_SETS):
                return found, BY_SETS
            # a Gram that couples all attributes was not searched in turns before there were such notes
            return (found if len(found) > 1 and needed > self.dense_limit else []), ""
        joint = [self.factors[k] for t in sub.terms for a, k in t.factors if len(a) > 1]
        # more rows than coordinates are kept as their Gram, and that has no parts
        parts = all(f.low_rank for f in joint) and sum(len(f.matrix) for f in joint) < sub.dimension
        whole = [self.factors[t.factors[0][1]] for t in sub.terms if len(t.factors) == 1]
        seconds = full_rank_cost(sub.sizes, whole, self.options.gap, None, sub.centers).seconds
        slow = seconds > (LONG if self.method == "optimal" else QUICK)
        if len(found) == 1:
            return (alone, PARTED) if parts and (slow or needed > self.memory_limit) else ([], "")
        if needed <= self.dense_limit and not slow:
            return [], ""
        sizes = [tuple(sub.sizes[a] for a in own) for own in found]
        held = [dense_bytes(math.prod(n - 1 for n in s), math.prod(n - 1 for n in s), math.prod(s)) for s in sizes]
        if parts and max(held) > self.memory_limit:
            return alone, PARTED
        return found, BY_SETS if needed <= self.dense_limit else ""

    def _factor(self, factor: Factor, centers: Sequence[Array | None]) -> Solution:
        key = (factor, *map(digest, centers))
        if key not in self._solved:
            self._solved[key] = self._solution(factor, centers)
        return self._solved[key]

    def _solution(
        self,
        factor: Factor,
        centers: Sequence[Array | None],
        complements: Mapping[Axes, Complement] | None = None,
        spaces: tuple[Axes, ...] = (),
    ) -> Solution:
        needed = dense_bytes(factor.rank, factor.dimension, math.prod(factor.sizes))
        if needed > self.memory_limit and self.recorded is None:
            raise LimitExceeded(
                f"A subworkload on {' x '.join(map(str, factor.sizes))} cells needs about {needed / 1e9:.1f} GB, more "
                f"than the limit of {self.memory_limit / 1e9:.1f} GB. Raise memory_limit, or ask fewer cells of these "
                "attributes."
            )
        search = self._search(factor, centers, complements, spaces)
        if self.recorded is not None:  # a plan is read back: what was found is checked, and nothing is searched
            solution = search.replay(*self.recorded.pop(0))
        else:
            solution = self._ahead.get(search.key) or self._find(search, self._warm())
        self.duals.append(solution.dual)
        self.endings.append(solution.ending)
        return solution

    def _search(
        self,
        factor: Factor,
        centers: Sequence[Array | None],
        complements: Mapping[Axes, Complement] | None = None,
        spaces: tuple[Axes, ...] = (),
    ) -> Search:
        return Search(
            factor=factor,
            centers=tuple(centers),
            complements=complements or {},
            spaces=spaces,
            method=self.method,
            options=self.options,
        )

    def _warm(self) -> Array | None:
        number = len(self.duals)
        return self.warm[number] if number < len(self.warm) else None

    def _find(self, search: Search, near: Array | None = None) -> Solution:
        if self.cache is None:
            return search.run(near=near, watch=self.watch)
        found = self.cache.recall(search)
        if found is None:
            # weights of an equal search may prove their gap at once; those of a similar one only shorten the way
            found = search.run(self.cache.weights(search), nearest(self.hints, search), self.watch)
            self._keep(search, found)
        return found

    def _keep(self, search: Search, found: Solution) -> None:
        if self.cache is not None:
            self.cache.keep(search, found)
            self.cache.suggest(search, found)

    def ahead(
        self,
        subs: Sequence[Subworkload],
        costs: Sequence[Cost],
        workers: int | None,
        tell: Callable[[float], object],
    ) -> None:
        """Search side by side what is not known yet, where that pays; `solve` then finds it done.

        ``tell`` hears the fraction of the searches that ended, and may raise to cancel.
        """
        order = sorted(range(len(subs)), key=lambda i: -costs[i].seconds)
        if math.fsum(c.seconds for c in costs) <= WORTH and workers is None and not configured():
            return
        open_ = [i for i in order if self._unknown(subs[i])]
        seconds, largest = sum(costs[i].seconds for i in open_), max((costs[i].peak for i in open_), default=0.0)
        # the largest search uses all cores by itself; only what is left beside it can gain
        seconds -= max((costs[i].seconds for i in open_), default=0.0)
        number = workers_for(seconds, len(open_), largest, self.memory_limit, workers)
        if number == 0:
            return
        searches, seen = dict[str, Search](), set[str]()
        count = max(len(open_), 1)

        def tasks() -> Iterator[Task]:
            for i in open_:
                for search in self._unknown(subs[i]):
                    if search.key not in seen:
                        searches[search.key] = search
                        seen.add(search.key)
                        known = self.cache.weights(search) if self.cache is not None else None
                        yield Task(search=search, known=known, near=nearest(self.hints, search))

        for key, found in search_all(tasks(), number, self.options.deadline, lambda done: tell(min(done / count, 1.0))):
            self._ahead[key] = found
            self._keep(searches.pop(key), found)

    def _unknown(self, sub: Subworkload) -> list[Search]:
        """Return the searches of a subworkload that a worker may do and this process has not done before."""
        terms = merge(sub, self.factors)
        axes = tuple(range(len(sub.sizes)))
        if sub.spaces or sub.complements:
            found = [self._search(assemble(terms, axes, sub.sizes), sub.centers, sub.complements, sub.spaces)]
        elif len(terms) == 1:
            found = [self._search(factor, [sub.centers[a] for a in own]) for own, factor in terms[0][1]]
        elif not self._sets(sub)[0]:
            found = [self._search(assemble(terms, axes, sub.sizes), sub.centers)]
        else:
            return []
        fitting = [s for s in found if dense_bytes(s.factor.rank, s.factor.dimension, s.cells) <= self.memory_limit]
        # those beyond SMALL use all cores by themselves
        apart = [s for s in fitting if s.factor.rank <= SMALL]
        return [s for s in apart if self.cache is None or self.cache.recall(s) is None]

    def _in_turns(self, terms: Merged, sub: Subworkload, sets: Sequence[Axes], note: str) -> SpaceSolution:
        """Search one set of axes at a time, with the note in the file from which it is read again."""

        def search(factor: Factor, centers: Sequence[Array | None]) -> Searched:
            solution = self._solution(factor, centers)
            if note and not self.endings[-1].startswith(note):
                self.endings[-1] = f"{note}: {self.endings[-1]}"
            return solution, lambda: self._search(factor, centers).cell_weights(solution.dual)

        turns = Turns(terms=terms, sets=sets, sizes=sub.sizes, centers=sub.centers, search=search)
        with threads_for(max(sub.sizes)):
            turns.run()
        return SpaceSolution(
            factors=tuple((axes, solution) for axes, (solution, _) in turns.solved.items()),
            value=turns.value,
            bound=turns.bound,
            status="alternating over attributes: a local optimum among products",
        )


def _joined(solved: Sequence[tuple[Axes, Solution]]) -> str:
    return next((s.status for _, s in solved if s.status != "optimal"), "optimal")
