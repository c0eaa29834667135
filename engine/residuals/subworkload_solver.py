"""Solver choice for one subworkload: Kronecker, dense or alternating.

A Kronecker Gram has an exact Kronecker optimum: if V_i is optimal for G_i, the product of the V_i
satisfies the optimality conditions for the product of the G_i, and value and bound multiply.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine._arrays import Array
from engine._threads import SMALL, threads_for
from engine.errors import LimitExceeded
from engine.residuals.alternating import AlternatingSearch, Searched
from engine.residuals.cache import Hints, SolveCache, most_similar
from engine.residuals.decomposition import Factor, Subworkload, merge_shape
from engine.residuals.dual_solver import Options, Solution, Watch
from engine.residuals.kronecker_sums import Merged, assemble, axis_partition, merge_terms
from engine.residuals.parallel import MIN_PARALLEL_S, Task, is_configured, search_all, workers_for
from engine.residuals.split import Axes, Complement, digest
from engine.residuals.strategy_search import (
    TURNS,
    Cost,
    Search,
    alternating_cost,
    dense_bytes,
    full_rank_cost,
    low_rank_cost,
)

# prefix of the recorded status of an alternating search over parts that are coupled by factors
COUPLED_PREFIX = "in turns"
# and of one over parts that no factor couples, where one dense search of all would have fitted
UNCOUPLED_PREFIX = "set by set"
# expected seconds of one dense search at most: for optimal strategies, and for approximate
# constructions
MAX_OPTIMAL_SEARCH_S, MAX_APPROXIMATE_SEARCH_S = 45.0, 0.35
# expected seconds of all dense searches at tuned centers at most
PATIENCE = 5.0


@dataclass(frozen=True, kw_only=True, eq=False)
class SpaceSolution:
    """Strategy of a residual space as a product over sets of axes, with its certificate.

    ``factors`` holds (axes, solution); an empty product is the total.  ``value`` and ``bound`` are
    weighted squared errors at privacy cost 1 for the subworkload at scale 1, in counts^2.
    """

    factors: tuple[tuple[Axes, Solution], ...]
    value: float
    bound: float
    status: str


class SubworkloadSolver:
    """Solver for the subworkloads of one decomposition; equal factors are solved once.

    Parameters
    ----------
    factors : the factors of the decomposition.
    method : "optimal", "eigenbasis" or "fourier".
    options : stopping rule.
    memory_limit : bytes of one search at most; ``dense_limit``, at most this, chooses between dense
        and alternating searches where both are possible.
    cache : storage of solutions, None for no storage.

    Attributes
    ----------
    watch : called with the current gap after every evaluation; may raise to cancel.
    recorded : dual weights of an earlier run, in the order of solving, to rebuild the same plan
        without searching.
    warm : weights of a similar run, as initial values.
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
        # a snapshot, so that results do not depend on the order of solving
        self.hints: Hints = cache.hints() if cache is not None else {}
        self.duals: list[Array] = []
        self.endings: list[str] = []
        self.watch: Watch | None = None
        self.recorded: list[tuple[Array, str]] | None = None
        self.warm: tuple[Array, ...] = ()
        self._solved: dict[Any, Solution] = {}
        self._parallel_results: dict[str, Solution] = {}

    def forecast(self, subs: Sequence[Subworkload]) -> list[Cost]:
        """Return the expected cost of each subworkload, before anything is computed.

        Each factor is counted for the first subworkload with it only, because it is solved once.
        """
        counted: set[int] = set()
        return [self._forecast(sub, counted) for sub in subs]

    def in_time(self, subs: Sequence[Subworkload], costs: Sequence[Cost], seconds: float) -> None:
        """Lower ``dense_limit`` until dense searches fit into a number of seconds.

        If centers are tuned, they must fit into ``PATIENCE``, too.

        Tuned centers have no symmetries, so a search may take a hundred times as long as with
        uniform ones.
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

    def _forecast(self, sub: Subworkload, counted: set[int]) -> Cost:
        terms, costs = merge_shape(sub), list[Cost]()
        if len(terms) == 1:
            pieces = [(axes, [number]) for axes, number in terms[0] if number not in counted]
            counted.update(number for _, number in terms[0])
        else:
            pieces = [(tuple(range(len(sub.sizes))), [number for t in terms for _, number in t])]
        turns, (sets, note) = 1, self._sets(sub) if len(terms) > 1 else ([], "")
        if note == COUPLED_PREFIX:
            rows = [len(self.factors[k].matrix) for t in sub.terms for a, k in t.factors if len(a) > 1]
            return alternating_cost(sub.sizes, rows, self.options.gap, sub.centers)
        if sets:
            turns = len(terms) + TURNS  # one search per term for the bound, then the sweeps
            pieces = [(axes, [n for t in terms for a, n in t if set(a) <= set(axes)]) for axes in sets]
        for axes, numbers in pieces:
            sizes = tuple(sub.sizes[a] for a in axes)
            joint_dimension = self.factors[numbers[0]].dimension if sub.spaces else None
            if all(self.factors[k].low_rank for k in numbers):
                dimension = math.prod(n - 1 for n in sizes) if joint_dimension is None else joint_dimension
                rank = min(dimension, sum(self.factors[k].rank for k in numbers))
                is_single = len(numbers) == 1 and not sub.complements and not sub.spaces
                single_factor = self.factors[numbers[0]] if is_single else None
                costs.append(low_rank_cost(sizes, rank, single_factor, self.options.gap, joint_dimension))
            else:
                joint = [self.factors[t[0][1]] for t in terms if len(t) == 1 and len(sizes) > 1 and not sub.complements]
                costs.append(
                    full_rank_cost(sizes, joint, self.options.gap, joint_dimension, [sub.centers[a] for a in axes])
                )
        return Cost(
            seconds=turns * math.fsum(c.seconds for c in costs) + 1e-4,
            peak=max((c.peak for c in costs), default=0.0),
            saved=math.fsum(c.saved for c in costs),
            turns=bool(sets),
        )

    def solve(self, sub: Subworkload) -> SpaceSolution:
        """Return the strategy of one subworkload, optimal if a dense search fits into the limits."""
        terms = merge_terms(sub, self.factors)
        axes = tuple(range(len(sub.sizes)))
        is_joint = bool(sub.spaces or sub.complements)
        if len(terms) == 1 and not is_joint:
            # value and privacy cost of a product are products, so optimal factors have an optimal
            # product
            coefficient, factors = terms[0]
            solved = [(axes, self._factor(factor, [sub.centers[a] for a in axes])) for axes, factor in factors]
            value = coefficient * math.prod(s.value for _, s in solved)
            bound = coefficient * math.prod(s.bound for _, s in solved)
            return SpaceSolution(factors=tuple(solved), value=value, bound=bound, status=_first_status(solved))
        sets, note = ([], "") if is_joint else self._sets(sub)
        if sets:
            return self._alternate(terms, sub, sets, note)
        needed = dense_bytes(sub.dimension, sub.dimension, math.prod(sub.sizes))
        if not is_joint and needed > self.memory_limit and self.recorded is None:
            raise LimitExceeded(
                f"A subworkload on {' x '.join(map(str, sub.sizes))} cells couples all its attributes and does not fit "
                f"into {self.memory_limit / 1e9:.1f} GB. Raise memory_limit, or merge cells of these attributes."
            )
        solution = self._solution(assemble(terms, axes, sub.sizes), sub.centers, sub.complements, sub.spaces)
        return SpaceSolution(
            factors=((axes, solution),), value=solution.value, bound=solution.bound, status=solution.status
        )

    def _sets(self, sub: Subworkload) -> tuple[list[Axes], str]:
        """Return the sets of axes of an alternating search, and the prefix of its status.

        None for one dense search.
        """
        if sub.spaces or sub.complements:
            return [], ""
        uncoupled = axis_partition([(1.0, t.factors) for t in sub.terms], len(sub.sizes))
        single_axes: list[Axes] = [(a,) for a in range(len(sub.sizes))]
        needed = dense_bytes(sub.dimension, sub.dimension, math.prod(sub.sizes))
        if self.recorded is not None:  # a stored plan is rebuilt: its status records the kind of search
            ending = self.recorded[0][1] if self.recorded else ""
            if ending.startswith(COUPLED_PREFIX):
                return single_axes, COUPLED_PREFIX
            if ending.startswith(UNCOUPLED_PREFIX):
                return uncoupled, UNCOUPLED_PREFIX
            # without a prefix: a dense search, or an alternating one of a Gram too large for it
            return (uncoupled if len(uncoupled) > 1 and needed > self.dense_limit else []), ""
        joint = [self.factors[k] for t in sub.terms for a, k in t.factors if len(a) > 1]
        # Grams with more rows than coordinates are stored without rows, and alternating searches
        # need the rows
        has_few_rows = all(f.low_rank for f in joint) and sum(len(f.matrix) for f in joint) < sub.dimension
        full_factors = [self.factors[t.factors[0][1]] for t in sub.terms if len(t.factors) == 1]
        seconds = full_rank_cost(sub.sizes, full_factors, self.options.gap, None, sub.centers).seconds
        slow = seconds > (MAX_OPTIMAL_SEARCH_S if self.method == "optimal" else MAX_APPROXIMATE_SEARCH_S)
        if len(uncoupled) == 1:
            return (single_axes, COUPLED_PREFIX) if has_few_rows and (slow or needed > self.memory_limit) else ([], "")
        if needed <= self.dense_limit and not slow:
            return [], ""
        sizes = [tuple(sub.sizes[a] for a in axes) for axes in uncoupled]
        bytes_needed = [
            dense_bytes(math.prod(n - 1 for n in s), math.prod(n - 1 for n in s), math.prod(s)) for s in sizes
        ]
        if has_few_rows and max(bytes_needed) > self.memory_limit:
            return single_axes, COUPLED_PREFIX
        return uncoupled, UNCOUPLED_PREFIX if needed <= self.dense_limit else ""

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
                f"than the limit of {self.memory_limit / 1e9:.1f} GB. Raise memory_limit, or merge cells of these "
                "attributes."
            )
        search = self._search(factor, centers, complements, spaces)
        if self.recorded is not None:  # a stored plan is rebuilt: its weights are validated, without a search
            solution = search.replay(*self.recorded.pop(0))
        else:
            solution = self._parallel_results.get(search.key) or self._recall_or_run(search, self._warm_start())
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

    def _warm_start(self) -> Array | None:
        number = len(self.duals)
        return self.warm[number] if number < len(self.warm) else None

    def _recall_or_run(self, search: Search, near: Array | None = None) -> Solution:
        if self.cache is None:
            return search.run(near=near, watch=self.watch)
        solution = self.cache.recall(search)
        if solution is None:
            # weights of an equal search may prove the gap at once; those of a similar one are a
            # warm start
            solution = search.run(self.cache.weights(search), most_similar(self.hints, search), self.watch)
            self._store(search, solution)
        return solution

    def _store(self, search: Search, solution: Solution) -> None:
        if self.cache is not None:
            self.cache.keep(search, solution)
            self.cache.suggest(search, solution)

    def ahead(
        self,
        subs: Sequence[Subworkload],
        costs: Sequence[Cost],
        workers: int | None,
        tell: Callable[[float], object],
    ) -> None:
        """Run the outstanding searches in parallel if that saves time.

        `solve` then uses their results.

        ``tell`` is called with the fraction of the searches that ended, and may raise to cancel.
        """
        order = sorted(range(len(subs)), key=lambda i: -costs[i].seconds)
        if math.fsum(c.seconds for c in costs) <= MIN_PARALLEL_S and workers is None and not is_configured():
            return
        outstanding = [i for i in order if self._unsolved(subs[i])]
        seconds, largest = (
            sum(costs[i].seconds for i in outstanding),
            max((costs[i].peak for i in outstanding), default=0.0),
        )
        # the largest search uses all cores by itself; only the remaining ones can run faster in
        # parallel
        seconds -= max((costs[i].seconds for i in outstanding), default=0.0)
        number = workers_for(seconds, len(outstanding), largest, self.memory_limit, workers)
        if number == 0:
            return
        searches, seen = dict[str, Search](), set[str]()
        count = max(len(outstanding), 1)

        def tasks() -> Iterator[Task]:
            for i in outstanding:
                for search in self._unsolved(subs[i]):
                    if search.key not in seen:
                        searches[search.key] = search
                        seen.add(search.key)
                        stored_weights = self.cache.weights(search) if self.cache is not None else None
                        yield Task(search=search, warm_start=stored_weights, near=most_similar(self.hints, search))

        for key, solution in search_all(
            tasks(), number, self.options.deadline, lambda done: tell(min(done / count, 1.0))
        ):
            self._parallel_results[key] = solution
            self._store(searches.pop(key), solution)

    def _unsolved(self, sub: Subworkload) -> list[Search]:
        """Return the searches of a subworkload that workers may run and that have no stored result."""
        terms = merge_terms(sub, self.factors)
        axes = tuple(range(len(sub.sizes)))
        if sub.spaces or sub.complements:
            searches = [self._search(assemble(terms, axes, sub.sizes), sub.centers, sub.complements, sub.spaces)]
        elif len(terms) == 1:
            searches = [
                self._search(factor, [sub.centers[a] for a in factor_axes]) for factor_axes, factor in terms[0][1]
            ]
        elif not self._sets(sub)[0]:
            searches = [self._search(assemble(terms, axes, sub.sizes), sub.centers)]
        else:
            return []
        fitting = [s for s in searches if dense_bytes(s.factor.rank, s.factor.dimension, s.cells) <= self.memory_limit]
        # searches larger than SMALL use all cores by themselves
        small = [s for s in fitting if s.factor.rank <= SMALL]
        return [s for s in small if self.cache is None or self.cache.recall(s) is None]

    def _alternate(self, terms: Merged, sub: Subworkload, sets: Sequence[Axes], note: str) -> SpaceSolution:
        """Search one set of axes at a time.

        ``note`` prefixes the recorded status, from which the plan is rebuilt.
        """

        def search(factor: Factor, centers: Sequence[Array | None]) -> Searched:
            solution = self._solution(factor, centers)
            if note and not self.endings[-1].startswith(note):
                self.endings[-1] = f"{note}: {self.endings[-1]}"
            return solution, lambda: self._search(factor, centers).cell_weights(solution.dual)

        alternation = AlternatingSearch(terms=terms, sets=sets, sizes=sub.sizes, centers=sub.centers, search=search)
        with threads_for(max(sub.sizes)):
            alternation.run()
        return SpaceSolution(
            factors=tuple((axes, solution) for axes, (solution, _) in alternation.solved.items()),
            value=alternation.value,
            bound=alternation.bound,
            status="alternating over attributes: a local optimum among products",
        )


def _first_status(solved: Sequence[tuple[Axes, Solution]]) -> str:
    return next((s.status for _, s in solved if s.status != "optimal"), "optimal")
