"""Strategies of subworkloads: Kronecker, dense or alternating searches.

**Kronecker.**  If a Gram is the Kronecker product of Grams G_i, and V_i is an optimal strategy for
G_i, then the Kronecker product of the V_i is an optimal strategy for the Gram.  Its error is the
product of the errors, and its lower bound the product of the lower bounds.  Other Grams are solved
by one dense search on all axes if it fits into the limits, and otherwise by an alternating search
(`engine.residuals.alternating_search`).

**Parallel searches.**  By default large work runs in loky processes, at most one per core, each
with one thread of linear algebra.  The caller can choose another backend with `with
joblib.parallel_config("dask", ...)` and gets the same plan: a search is a pure function of its
inputs.

A listener thread waits for joblib and puts results into a queue.  The main thread reports progress
while it waits for the queue.  To cancel, the main process deletes a file.  After each evaluation, a
search on the same machine stops if the file or the main process no longer exists.  The worker
processes of the pool remain for later searches.
"""

from __future__ import annotations

import hashlib
import math
import multiprocessing
import os
import pkgutil
import platform
import queue
import tempfile
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from engine._arrays import Array
from engine._clock import planning_time
from engine._threads import MAX_SINGLE_THREAD_ORDER, one_thread, single_threaded, threads_for
from engine.errors import Cancelled, LimitExceeded, PlanError
from engine.residuals.alternating_search import AlternatingSearch, Searched
from engine.residuals.basis import Axes, Complement, digest
from engine.residuals.decomposition import (
    DeferredFactor,
    Factor,
    IntervalFactor,
    LevelFactor,
    Merged,
    Subworkload,
    axis_partition,
    gram_on_axes,
    merge_terms,
    merged_factors,
    window_gram_of,
    window_sum,
)
from engine.residuals.dual_solver import Options, Solution, Watch
from engine.residuals.interval_solver import IntervalGram
from engine.residuals.level_solver import LevelGram
from engine.residuals.level_strategy import level_solution, level_weights
from engine.residuals.marginals import interval_solution
from engine.residuals.operators import Operator
from engine.residuals.search_cache import Hints, Search, SolveCache, most_similar
from engine.residuals.search_costs import (
    ALTERNATING_SWEEPS,
    MAX_PRODUCT_BOUND_S,
    Cost,
    MatrixFreeGram,
    alternating_cost,
    dense_bytes,
    fourier_cost,
    full_rank_cost,
    low_rank_cost,
    matrix_free_cost,
    product_bound_seconds,
)
from engine.residuals.window_solver import WindowGram, WindowSpace
from engine.residuals.window_strategy import WindowWeights, window_solution

if TYPE_CHECKING:
    import joblib

# without a requested or configured number of workers, worker processes are used if the expected
# time of the searches is longer than this, in seconds
MIN_PARALLEL_S = 2.0
# time between two calls of the progress function, in seconds
PROGRESS_INTERVAL_S = 0.1
# longest wait for cancelled searches to end, in seconds; a remote machine may be unreachable
CANCEL_TIMEOUT_S = 5.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """A strategy search for a worker process, and two arguments of its `Search.run`."""

    search: Search
    warm_start: Array | None = None
    similar_weights: Array | None = None


@dataclass(frozen=True, kw_only=True)
class CancelSignal:
    """Conditions under which a search in a worker process stops.

    Attributes
    ----------
    file : path of a file of the main process.  Searches on the same machine stop if the file does
        not exist.
    machine, process : host name and process number of the main process.  Searches on the same
        machine stop if this process has ended.
    deadline : time limit as Unix time, because `planning_time` differs between processes.
    """

    file: str
    machine: str
    process: int
    deadline: float


def workers_for(
    seconds: float, searches: int, bytes_each: float, memory: float, requested: int | None
) -> int | None:
    """Return how many worker processes should run some searches.

    0 means that the main process runs the searches.  -1 means one worker per core.  None means the
    number of workers in the caller's joblib configuration.

    Parameters
    ----------
    seconds : expected time of all searches, in seconds.
    searches : number of searches.
    bytes_each : memory of one search, in bytes.
    memory : memory limit of all searches that run at the same time, in bytes.
    requested : number of workers that the user set, or None.
    """
    if searches < 2 or requested == 1:
        return 0
    if requested is not None:
        return requested
    import joblib
    from joblib.parallel import get_active_backend

    if is_configured():
        # joblib returns None for the number of workers if only a backend is configured
        _, number = get_active_backend(prefer="processes")
        return -1 if number is None else None
    fitting = int(memory // max(bytes_each, 1.0))
    best = min(joblib.cpu_count(), searches, fitting)
    return best if seconds > MIN_PARALLEL_S and best > 1 else 0


def is_configured() -> bool:
    """Return whether the caller configured joblib's backend or number of workers."""
    from joblib.parallel import get_active_backend

    (threads, _), (processes, number) = (
        get_active_backend(prefer=prefer) for prefer in ("threads", "processes")
    )
    # Without a configured backend, joblib selects different backends for the two values of
    # ``prefer``.
    return type(threads) is type(processes) or number not in (None, 1)


def search_all(
    tasks: Iterable[Task],
    workers: int | None,
    deadline: float,
    on_progress: Callable[[int], object],
) -> Iterator[tuple[str, Solution]]:
    """Run searches in workers, and yield (key, solution) of each search.

    A search is yielded as soon as it ends.  If the joblib backend cannot return single results, the
    first search is yielded after all searches have ended.

    Parameters
    ----------
    tasks : the searches.
    workers : number of workers; -1 for one per core, None for the caller's joblib configuration.
    deadline : time limit on the clock of `planning_time`.
    on_progress : called with the number of yielded searches, after each yielded search and every
        `PROGRESS_INTERVAL_S` of waiting; may raise to cancel.
    """
    import joblib
    from joblib.parallel import get_active_backend

    # A child process uses threads.  A daemonic child process may not start processes, and any other
    # child process would wait for idle workers before it ends.  Threads run in parallel, because
    # linear algebra releases the GIL.
    prefer = "processes" if multiprocessing.parent_process() is None else "threads"
    backend, _ = get_active_backend(prefer=prefer)
    _check_workers(backend)
    handle, name = tempfile.mkstemp(prefix="searches-")
    os.close(handle)
    cancel_signal = CancelSignal(
        file=name,
        machine=platform.node(),
        process=os.getpid(),
        deadline=time.time() + deadline - planning_time(),
    )
    results: queue.SimpleQueue[object] = queue.SimpleQueue()
    # worker threads share one setting for the threads of linear algebra, so it is set here
    with one_thread(), planning_time.counting_waits():
        return_as = "generator_unordered" if backend.supports_return_generator else "list"
        pool = joblib.Parallel(n_jobs=workers, prefer=prefer, return_as=return_as, batch_size=1)
        calls = (joblib.delayed(_search)(task, cancel_signal) for task in tasks)
        listener = threading.Thread(target=_listen, args=(pool, calls, results), daemon=True)
        listener.start()
        done = 0
        try:
            while True:
                on_progress(done)
                try:
                    result = results.get(timeout=PROGRESS_INTERVAL_S)
                except queue.Empty:
                    continue
                if result is None:
                    return
                if isinstance(result, BaseException):
                    raise result
                assert isinstance(result, tuple)
                done += 1
                yield result
        finally:
            Path(name).unlink(missing_ok=True)
            listener.join(CANCEL_TIMEOUT_S)


def _check_workers(backend: object) -> None:
    """Raise PlanError if a worker of a Dask cluster cannot import the engine.

    The search would wait forever for a result of such a worker.
    """
    if (client := getattr(backend, "client", None)) is None:
        return
    results = client.run(pkgutil.get_data, "engine", "py.typed", on_error="return")
    failing = [name for name, data in results.items() if not isinstance(data, bytes)]
    if failing:
        raise PlanError(
            f"{len(failing)} of {len(results)} workers of the Dask cluster cannot import the"
            f" engine; the first is {failing[0]}. Install on the workers the packages of this"
            " environment, in the same versions, or plan without the cluster."
        )


def _listen(
    pool: joblib.Parallel, calls: Iterable[object], results: queue.SimpleQueue[object]
) -> None:
    """Put every result of a pool into a queue, and in the end None or the exception of a call."""
    try:
        for result in pool(calls):
            results.put(result)
        results.put(None)
    except BaseException as error:
        results.put(error)


def _search(task: Task, cancel_signal: CancelSignal) -> tuple[str, Solution] | Cancelled:
    """Run a search in a worker; return its key and solution, or the exception that cancelled it."""
    is_same_machine = platform.node() == cancel_signal.machine
    is_child = os.getppid() == cancel_signal.process

    def watch(gap: float = 0.0) -> None:
        """Raise Cancelled if the main process has ended or deleted the file of ``cancel_signal``.

        If the main process has ended, a loky worker exits instead.  On other machines nothing is
        checked.
        """
        if is_same_machine and (
            _has_ended(cancel_signal.process)
            or (is_child and os.getppid() != cancel_signal.process)
        ):
            if type(multiprocessing.current_process()).__name__.startswith("Loky"):
                os._exit(1)  # a loky worker would otherwise wait minutes for further searches
            raise Cancelled("The process that started this search has ended.")
        if is_same_machine and not Path(cancel_signal.file).exists():
            raise Cancelled("The search was cancelled.")

    search = task.search
    seconds_left = cancel_signal.deadline - time.time()
    timed_search = replace(
        search, options=replace(search.options, deadline=planning_time() + seconds_left)
    )
    try:
        watch()
        with single_threaded():
            return search.key, timed_search.run(task.warm_start, task.similar_weights, watch)
    except Cancelled as error:
        return error


def _has_ended(process: int) -> bool:
    """Return whether the process with this number has ended; False if that cannot be determined."""
    if os.name == "nt":  # os.kill with signal 0 ends the process on Windows
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


# A plan records the status of its searches.  If an alternating search optimises one axis at a time,
# because factors are on several axes, its status begins with this prefix.
COUPLED_PREFIX = "in turns"
# If an alternating search optimises one set of axes at a time, because a dense search would fit in
# memory but take too long, its status begins with this prefix.
UNCOUPLED_PREFIX = "set by set"
# If the deadline left out the lower bound for products of an alternating search, the status of its
# last step ends with this text.
NO_PRODUCT_BOUND = " (sum of the bounds of terms)"
# largest expected time of a dense search with the method "optimal", in seconds
MAX_OPTIMAL_SEARCH_S = 45.0
# largest expected time of a dense search with an approximate construction, in seconds
MAX_APPROXIMATE_SEARCH_S = 0.35
# largest expected time of all dense searches together if centers are tuned, in seconds
MAX_TUNED_SEARCH_S = 5.0


@dataclass(frozen=True, kw_only=True, eq=False)
class SpaceSolution:
    """Strategy of a subworkload as a Kronecker product, with a lower bound on the error.

    Attributes
    ----------
    factors : pairs (axes, solution): the strategy on each set of axes; empty for the total.
    value : weighted squared error at privacy cost 1 for the subworkload's Gram, in counts^2.
    bound : lower bound on the value of every strategy, in counts^2.
    status : for an alternating search, a text that names this method.  Otherwise the status of a
        search that did not prove the required gap, or "optimal" if there is none.  A closed form
        without a search is "optimal", too, even if its bound is below its value.
    """

    factors: tuple[tuple[Axes, Solution], ...]
    value: float
    bound: float
    status: str


# key of a weighted sum of residual Grams on the same axes: pairs (index of a Gram, coefficient)
MergedKey = tuple[tuple[int, float], ...]


def _merged_key(sub: Subworkload, axes: Axes) -> MergedKey:
    """Return a key for the sum of a subworkload's residual Grams on ``axes``.

    If the sum consists of a single Gram, its coefficient in the key is 1, because the search does
    not depend on the scale.
    """
    numbers = [(k, t.coefficient) for t in sub.terms for a, k in t.factors if a == axes]
    if len({k for k, _ in numbers}) == 1:
        return ((numbers[0][0], 1.0),)
    return tuple(sorted(set(numbers)))


class SubworkloadSolver:
    """Finds the strategies of the subworkloads of one decomposition.

    A factor that occurs in several Kronecker products is solved once per tuple of centers.

    Parameters
    ----------
    factors : the residual Grams of the decomposition.
    method : "optimal", "eigenbasis" or "fourier".
    options : stopping rule of every search.
    memory_limit : largest memory of one search, in bytes.
    cache : store of solutions of earlier searches; None for no store.
    window_weights : dual weights of windows, by `WindowSpace.key`, from which searches for windows
        start and to which they add their own; None for no weights.

    Attributes
    ----------
    dense_limit : largest memory of a dense search, in bytes.  A subworkload that needs more is
        solved by an alternating search if its Gram allows one.
    coupled_limit : largest memory of a dense search for a subworkload in which factors couple all
        axes, in bytes.  Only a time limit lowers this limit, because an alternating search would
        make such a subworkload less accurate.
    watch : called with the relative RMSE gap after every evaluation; may raise to cancel.
    recorded : dual weights and status of the searches of a stored plan, in their original order;
        strategies are rebuilt from them (replayed) without a search.  None to search.
    warm : initial dual weights from a similar plan, one array per search, in the order of searches.
    duals, endings : dual weights and status of the searches so far, in their order.
    """

    def __init__(
        self,
        *,
        factors: Sequence[Factor],
        method: str,
        options: Options,
        memory_limit: float,
        cache: SolveCache | None = None,
        window_weights: WindowWeights | None = None,
    ) -> None:
        self.factors, self.options, self.memory_limit = factors, options, memory_limit
        self._deadline = options.deadline
        # `in_time` may lower both limits
        self.dense_limit = self.coupled_limit = memory_limit
        self.method, self.cache = method, cache
        self.window_weights = {} if window_weights is None else window_weights
        # The hints (initial weights of searches) are copied once. If solutions of this solver were
        # added to the hints, results would depend on the order of solving.
        self.hints: Hints = cache.hints() if cache is not None else {}
        self.duals: list[Array] = []
        self.endings: list[str] = []
        self.watch: Watch | None = None
        self.recorded: list[tuple[Array, str]] | None = None
        self.warm: tuple[Array, ...] = ()
        self._solved: dict[Any, Solution] = {}
        # Solutions for Grams without a matrix: pairs (scale of the Gram, solution).  The keys are
        # explained in `_matrix_free_solution`.
        self._matrix_free_solutions: dict[Any, tuple[float, Solution]] = {}
        self._parallel_results: dict[str, Solution] = {}
        # key of a search -> (lower bound, dual weights, status), for terms of alternating searches
        self._inner_bounds: dict[str, tuple[float, Array, str]] = {}

    def forecast(self, subs: Sequence[Subworkload]) -> list[Cost]:
        """Return the expected cost of each subworkload, before anything is computed.

        A factor that occurs in several Kronecker products is solved once, so its cost is counted
        for the first of them only.
        """
        counted: set[Hashable] = set()
        costs, computed = [self._forecast(sub, counted) for sub in subs], set[int]()
        for i, sub in enumerate(subs):
            numbers = {
                number
                for term in sub.terms
                for axes, number in term.factors
                if not self._is_window_gram(sub, axes, number)
            } - computed
            seconds = math.fsum(self.factors[number].deferred_seconds for number in numbers)
            costs[i] = replace(costs[i], seconds=costs[i].seconds + seconds)
            computed |= numbers
        return costs

    def _is_window_gram(self, sub: Subworkload, axes: Axes, number: int) -> bool:
        """Return whether a Gram is of windows, and all Grams on its axes are solved with it.

        The matrices of these Grams are not needed.  ``number`` is the index of the Gram in
        ``factors``.
        """
        if self.method != "optimal" or sub.spaces or window_gram_of(self.factors[number]) is None:
            return False
        on_axes = {k for term in sub.terms for a, k in term.factors if a == axes}
        pi = sub.centers[axes[0]]
        return _network_gram([(1.0, self.factors[k]) for k in on_axes], pi) is not None

    def reserve(self, seconds: float) -> None:
        """Let all further searches end ``seconds`` before the deadline of the solver."""
        self.options = replace(self.options, deadline=self._deadline - seconds)

    def in_time(self, subs: Sequence[Subworkload], costs: Sequence[Cost], seconds: float) -> None:
        """Lower the memory limits so that dense searches are expected to take at most ``seconds``.

        The limits are ``coupled_limit`` and ``dense_limit``.  If a center is tuned, ``dense_limit``
        allows at most `MAX_TUNED_SEARCH_S`.  A tuned center has fewer symmetries than a uniform
        one, so that a search can take a hundred times as long.

        Parameters
        ----------
        subs : the subworkloads.
        costs : their forecasts.
        seconds : time limit of all dense searches together.
        """
        self.coupled_limit = min(self.coupled_limit, self._limit_in_time(subs, costs, seconds))
        if any(pi is not None for sub in subs for pi in sub.centers):
            seconds = min(seconds, MAX_TUNED_SEARCH_S)
        self.dense_limit = min(self.dense_limit, self._limit_in_time(subs, costs, seconds))

    @staticmethod
    def _limit_in_time(subs: Sequence[Subworkload], costs: Sequence[Cost], seconds: float) -> float:
        """Return the memory limit of one search, in bytes, that keeps all searches in ``seconds``.

        The limit is infinite if all dense searches together take at most ``seconds``.  The
        parameters are described in `in_time`.
        """
        # Only subworkloads that allow an alternating search count.  A pair holds the memory of the
        # dense search and the index of the subworkload.
        dense_searches = [
            (dense_bytes(s.dimension, s.dimension, math.prod(s.sizes)), k)
            for k, s in enumerate(subs)
            if len(s.terms) > 1 and not s.spaces and not s.complements
        ]
        for needed, k in sorted(dense_searches):
            seconds -= costs[k].seconds
            if seconds < 0.0:
                return needed - 1
        return math.inf

    def _forecast(self, sub: Subworkload, counted: set[Hashable]) -> Cost:
        """Return the expected cost of a subworkload.

        ``counted`` holds keys of searches whose cost is in the forecast of an earlier subworkload.
        Searches with keys in ``counted`` cost nothing.  Keys of searches that are forecast here are
        added: those of single factors by `_merged_key`, those of lower bounds by `_bound_seconds`.
        """
        terms = merged_factors(sub)
        if len(terms) == 1:
            factor_keys = [_merged_key(sub, axes) for axes, _ in terms[0]]
            # a factor may be a sum of Grams on the same axes
            factors_on = [
                (axes, list(dict.fromkeys(k for t in sub.terms for a, k in t.factors if a == axes)))
                for (axes, _), factor_key in zip(terms[0], factor_keys, strict=True)
                if factor_key not in counted
            ]
            counted.update(factor_keys)
        else:
            factors_on = [
                (tuple(range(len(sub.sizes))), [number for t in terms for _, number in t])
            ]
        searches, least_seconds = 1, 0.0
        sets, prefix = self._alternating_sets(sub) if len(terms) > 1 else ([], "")
        if prefix == COUPLED_PREFIX:
            rows = [self.factors[k].n_rows for t in sub.terms for a, k in t.factors if len(a) > 1]
            return alternating_cost(sub.sizes, rows, self.options.gap, sub.centers)
        if sets:
            # On every set of axes, an alternating search runs one search for a single strategy per
            # term, for the lower bound, and one per sweep.
            searches = len(terms) + ALTERNATING_SWEEPS
            least_seconds = self._bound_seconds(sub, terms, sets, counted)
            factors_on = [
                (axes, [n for t in terms for a, n in t if set(a) <= set(axes)]) for axes in sets
            ]
        costs = [self._forecast_on(sub, terms, axes, numbers) for axes, numbers in factors_on]
        dimensions = [math.prod(sub.sizes[a] - 1 for a in axes) for axes in sets]
        bound_seconds = product_bound_seconds(dimensions, len(terms)) if sets else 0.0
        if bound_seconds > MAX_PRODUCT_BOUND_S:
            bound_seconds = 0.0
        return Cost(
            seconds=searches * math.fsum(c.seconds for c in costs) + bound_seconds + 1e-4,
            peak=max((c.peak for c in costs), default=0.0),
            saved=math.fsum(c.saved for c in costs),
            alternates=bool(sets),
            least_seconds=least_seconds + math.fsum(c.least_seconds for c in costs),
        )

    def _bound_seconds(
        self,
        sub: Subworkload,
        terms: Sequence[Sequence[tuple[Axes, int]]],
        sets: Sequence[Axes],
        counted: set[Hashable],
    ) -> float:
        """Return the least time of the searches for the lower bound of an alternating search.

        Equal Grams are searched once, see `_alternate`.  ``counted`` holds the Grams of earlier
        subworkloads; those of this subworkload are added.  The other parameters are those of
        `_forecast_on` and `AlternatingSearch`.
        """
        seconds = 0.0
        for axes in sets:
            for term in terms:
                numbers = [number for a, number in term if set(a) <= set(axes)]
                key = ("bound", *numbers, *(sub.sizes[a] for a in axes))
                if numbers and key not in counted:
                    counted.add(key)
                    seconds += self._forecast_on(sub, terms, axes, numbers).least_seconds
        return seconds

    def _forecast_on(
        self,
        sub: Subworkload,
        terms: Sequence[Sequence[tuple[Axes, int]]],
        axes: Axes,
        numbers: Sequence[int],
    ) -> Cost:
        """Return the expected cost of the search for one factor of the strategy of a subworkload.

        Parameters
        ----------
        terms : the result of `merged_factors` for the subworkload.
        axes : axes of the factor.
        numbers : indices of the Grams on these axes in ``factors``.
        """
        sizes = tuple(sub.sizes[a] for a in axes)
        centers = [sub.centers[a] for a in axes]
        # Grams of all factors on exactly these axes; one search is for their weighted sum
        merged = {k for t in sub.terms for a, k in t.factors if a == axes}
        grams = [self._matrix_free_gram(self.factors[k], centers) for k in merged]
        if len(axes) == 1 and None not in grams:
            windows = _network_gram([(1.0, self.factors[k]) for k in merged], centers[0])
            grams = grams if windows is None else [windows]
        is_matrix_free = _is_matrix_free_sum(grams)
        has_areas = any(isinstance(gram, LevelGram) for gram in grams)
        if has_areas and not is_matrix_free and sizes[0] > MAX_MIXED_AREA_CELLS:
            raise LimitExceeded(
                f"An attribute with {sizes[0]:,} cells has queries on areas of a hierarchy and"
                " other queries, such as areas of a second hierarchy. Such combinations are"
                f" possible on at most {MAX_MIXED_AREA_CELLS:,} cells. Keep only the areas of one"
                " hierarchy and the marginal, merge cells, or choose the mechanism"
                " 'residualplanner'."
            )
        if len(axes) == 1 and is_matrix_free:
            wide = [matrix_free_cost(gram) for gram in grams if gram is not None]
            return max(wide, key=lambda cost: (cost.peak, cost.seconds))
        if self.method == "fourier":
            is_low_rank = all(self.factors[k].low_rank for k in numbers)
            rank = sum(self.factors[k].rank for k in numbers) if is_low_rank else None
            return fourier_cost(sizes, rank)
        joint_dimension = self.factors[numbers[0]].dimension if sub.spaces else None
        if all(self.factors[k].low_rank for k in numbers):
            dimension = (
                math.prod(n - 1 for n in sizes) if joint_dimension is None else joint_dimension
            )
            rank = min(dimension, sum(self.factors[k].rank for k in numbers))
            has_symmetries = not sub.complements and not sub.spaces
            grams_on_axes = [self.factors[k] for k in numbers] if has_symmetries else []
            return low_rank_cost(sizes, rank, grams_on_axes, self.options.gap, joint_dimension)
        joint = [
            self.factors[t[0][1]]
            for t in terms
            if len(t) == 1 and len(sizes) > 1 and not sub.complements
        ]
        return full_rank_cost(sizes, joint, self.options.gap, joint_dimension, centers)

    def solve(self, sub: Subworkload) -> SpaceSolution:
        """Return the strategy of a subworkload, by a search that fits into the limits.

        Raises
        ------
        LimitExceeded : a search needs more memory than the limit, and no other search applies.
        """
        terms = merge_terms(sub, self.factors)
        axes = tuple(range(len(sub.sizes)))
        is_joint = bool(sub.spaces or sub.complements)
        if len(terms) == 1 and not is_joint:
            # The error of a Kronecker product is the product of the errors of its factors.  The
            # same holds for the lower bound and for the privacy cost.
            coefficient, factors = terms[0]
            solved = [
                (factor_axes, self._factor_solution(factor, [sub.centers[a] for a in factor_axes]))
                for factor_axes, factor in factors
            ]
            value = coefficient * math.prod(s.value for _, s in solved)
            bound = coefficient * math.prod(s.bound for _, s in solved)
            return SpaceSolution(
                factors=tuple(solved), value=value, bound=bound, status=_first_status(solved)
            )
        sets, prefix = ([], "") if is_joint else self._alternating_sets(sub)
        if sets:
            return self._alternate(terms, sub, sets, prefix)
        needed = dense_bytes(sub.dimension, sub.dimension, math.prod(sub.sizes))
        # a stored plan (``recorded``) is rebuilt without a search, so the limit does not apply
        if not is_joint and needed > self.memory_limit and self.recorded is None:
            raise LimitExceeded(
                f"Some queries on a table of {' x '.join(map(str, sub.sizes))} cells are not "
                "products of queries on single attributes. Their strategy needs "
                f"{needed / 1e9:.1f} GB, more than the limit of {self.memory_limit / 1e9:.1f} GB. "
                "Raise memory_limit, or merge cells of these attributes."
            )
        solution = self._solution(
            gram_on_axes(terms, axes, sub.sizes), sub.centers, sub.complements, sub.spaces
        )
        return SpaceSolution(
            factors=((axes, solution),),
            value=solution.value,
            bound=solution.bound,
            status=solution.status,
        )

    def _alternating_sets(self, sub: Subworkload) -> tuple[list[Axes], str]:
        """Return the sets of axes of an alternating search, and a prefix for its recorded status.

        An alternating search improves the strategy on one set of axes at a time.  The list of sets
        is empty if one dense search on all axes is used.  The prefix is `COUPLED_PREFIX`,
        `UNCOUPLED_PREFIX` or empty.
        """
        if sub.spaces or sub.complements:
            return [], ""
        uncoupled = axis_partition([(1.0, t.factors) for t in sub.terms], len(sub.sizes))
        single_axes: list[Axes] = [(a,) for a in range(len(sub.sizes))]
        needed = dense_bytes(sub.dimension, sub.dimension, math.prod(sub.sizes))
        if self.recorded is not None:  # a stored plan is rebuilt in the same way
            status = self.recorded[0][1] if self.recorded else ""
            if status.startswith(COUPLED_PREFIX):
                return single_axes, COUPLED_PREFIX
            if status.startswith(UNCOUPLED_PREFIX):
                return uncoupled, UNCOUPLED_PREFIX
            # A status without prefix means a dense search, or an alternating search that was used
            # because a dense search needed too much memory. The memory ``needed`` distinguishes the
            # two cases.
            return (uncoupled if len(uncoupled) > 1 and needed > self.dense_limit else []), ""
        joint_factors = [self.factors[k] for t in sub.terms for a, k in t.factors if len(a) > 1]
        # An alternating search over single axes needs the rows of the factors on several axes.
        # These rows are stored only if there are fewer rows than residual coordinates.
        has_few_rows = (
            all(f.low_rank for f in joint_factors)
            and sum(f.n_rows for f in joint_factors) < sub.dimension
        )
        full_factors = [self.factors[t.factors[0][1]] for t in sub.terms if len(t.factors) == 1]
        seconds = full_rank_cost(
            sub.sizes, full_factors, self.options.gap, centers=sub.centers
        ).seconds
        is_slow = seconds > (
            MAX_OPTIMAL_SEARCH_S if self.method == "optimal" else MAX_APPROXIMATE_SEARCH_S
        )
        if len(uncoupled) == 1:
            if has_few_rows and (is_slow or needed > self.coupled_limit):
                return single_axes, COUPLED_PREFIX
            return [], ""
        if needed <= self.dense_limit and not is_slow:
            return [], ""
        sizes = [tuple(sub.sizes[a] for a in axes) for axes in uncoupled]
        bytes_needed = [
            dense_bytes(math.prod(n - 1 for n in s), math.prod(n - 1 for n in s), math.prod(s))
            for s in sizes
        ]
        if joint_factors and has_few_rows and max(bytes_needed) > self.memory_limit:
            return single_axes, COUPLED_PREFIX
        prefix = UNCOUPLED_PREFIX if needed <= self.dense_limit else ""
        return uncoupled, prefix

    def _factor_solution(self, factor: Factor, centers: Sequence[Array | None]) -> Solution:
        """Return the solution for one residual Gram.

        Equal Grams with equal centers are solved once.
        """
        key = (factor, *map(digest, centers))
        if key not in self._solved:
            gram = self._matrix_free_gram(factor, centers)
            if gram is None:
                self._solved[key] = self._solution(factor, centers)
            else:
                self._solved[key] = self._matrix_free_solution(gram, centers[0])
        return self._solved[key]

    def _matrix_free_gram(
        self, factor: Factor, centers: Sequence[Array | None]
    ) -> MatrixFreeGram | None:
        """Return the query weights of a Gram that is solved without its matrix; None otherwise.

        With a uniform center, areas and the marginal are solved without a matrix by every method.
        The following are solved so by the method "optimal" only, and only if the weights in
        ``recorded`` do not come from a search with a matrix: the marginal with a tuned center, all
        other interval queries, and windows, alone or with prefixes, suffixes and the marginal (see
        `_network_gram`).
        """
        if isinstance(factor, LevelFactor) and centers[0] is None:
            return factor.gram
        gram: IntervalGram | WindowGram | None
        if isinstance(factor, IntervalFactor):
            gram = factor.gram
            if gram.is_marginal and centers[0] is None:
                return gram
        elif (gram := _network_gram([(1.0, factor)], centers[0])) is None:
            return None
        # A search without a matrix records one dual weight per cell, a search with a matrix one per
        # orbit of cells.
        recorded = self.recorded or []
        used_matrix = len(recorded) > 0 and len(recorded[0][0]) != factor.sizes[0]
        return None if self.method != "optimal" or used_matrix else gram

    def _matrix_free_solution(self, gram: MatrixFreeGram, pi: Array | None) -> Solution:
        """Return the solution for a Gram without a matrix, and record its dual weights and status.

        ``pi`` is the center, None for a uniform one.
        """
        record = None if self.recorded is None else self.recorded.pop(0)
        dual = None if record is None else record[0]
        # Grams that are equal up to scale and rounding errors have the same strategy and the same
        # ``key``.  ``scale`` is the largest weight of a Gram of areas or of intervals, and the
        # weight of the windows of a Gram with windows.  The squared error and the bound of a
        # solution are proportional to ``scale``.
        key: Any
        if isinstance(gram, LevelGram):
            scale = gram.largest_weight
            key = gram.key(scale)
            if key not in self._matrix_free_solutions:
                self._matrix_free_solutions[key] = scale, level_solution(gram, self.options, dual)
        elif isinstance(gram, WindowGram):
            scale = gram.weight
            gram = gram.normalized()
            key = (gram, digest(pi))
            if key not in self._matrix_free_solutions:
                self._matrix_free_solutions[key] = 1.0, self._window_solution(gram, dual, pi)
        else:
            weights = (gram.marginal, gram.prefix + gram.suffix, gram.ranges)
            scale = max(weights)
            ratios = tuple(float(f"{weight / scale:.12e}") for weight in weights)
            key = (gram.cells, ratios, digest(pi))
            if key not in self._matrix_free_solutions:
                self._matrix_free_solutions[key] = (
                    scale,
                    interval_solution(gram, self.options, dual, pi),
                )
        first_scale, solution = self._matrix_free_solutions[key]
        factor = scale / first_scale
        solution = replace(solution, value=factor * solution.value, bound=factor * solution.bound)
        if record is not None:
            solution = replace(solution, dual=record[0], status=record[1])
        self.duals.append(solution.dual)
        self.endings.append(solution.ending)
        return solution

    def _window_solution(self, gram: WindowGram, dual: Array | None, pi: Array | None) -> Solution:
        """Return the solution for windows and other queries.

        The search starts at the weights of this Gram and center in the cache, otherwise at those in
        ``window_weights``, otherwise at equal weights.  The parameters are those of
        `window_solution`.  Weights in the cache may come from a wrong file.  Wrong weights only
        cost time, because the search continues from the stored weights.
        """
        if dual is not None:
            return window_solution(gram, self.options, dual, pi)
        key = hashlib.sha256(repr((WINDOW_FORMAT, gram, digest(pi))).encode()).hexdigest()
        stored = None if self.cache is None else self.cache.numbers(key)[0]
        if stored is not None and not _are_weights(stored, gram.cells):
            stored = None
        space_key = WindowSpace(gram=gram, center=pi).key
        start = self.window_weights.get(space_key) if stored is None else stored
        solution = window_solution(gram, self.options, center=pi, start=start)
        self.window_weights[space_key] = solution.dual
        if self.cache is not None and (stored is None or not np.array_equal(stored, solution.dual)):
            self.cache.keep_numbers(key, solution.dual)
        return solution

    def _solution(
        self,
        factor: Factor,
        centers: Sequence[Array | None],
        complements: Mapping[Axes, Complement] | None = None,
        spaces: tuple[Axes, ...] = (),
    ) -> Solution:
        """Return the solution of a dense search, and record its dual weights and status."""
        if isinstance(factor.matrix, Operator):
            factor = Factor(sizes=factor.sizes, matrix=factor.dense())
        needed = dense_bytes(factor.rank, factor.dimension, math.prod(factor.sizes))
        if needed > self.memory_limit and self.recorded is None:
            raise LimitExceeded(
                f"The strategy for a table of {' x '.join(map(str, factor.sizes))} cells needs "
                f"about {needed / 1e9:.1f} GB, more than the limit of "
                f"{self.memory_limit / 1e9:.1f} GB. Raise memory_limit, or merge cells of these "
                "attributes."
            )
        search = self._search(factor, centers, complements, spaces)
        if self.recorded is not None:
            solution = search.replay(*self.recorded.pop(0))
        else:
            number = len(self.duals)
            similar_weights = self.warm[number] if number < len(self.warm) else None
            solution = self._parallel_results.get(search.key) or self._recall_or_run(
                search, similar_weights
            )
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
        """Return the inputs of a dense search with the solver's method and stopping rule."""
        return Search(
            factor=factor,
            centers=tuple(centers),
            complements=complements or {},
            spaces=spaces,
            method=self.method,
            options=self.options,
        )

    def _recall_or_run(self, search: Search, similar_weights: Array | None) -> Solution:
        """Return the solution of a search from the cache, or run the search and store its solution.

        ``similar_weights`` are initial dual weights from a similar plan.  They are used only by a
        solver without a cache.
        """
        if self.cache is None:
            return search.run(similar_weights=similar_weights, watch=self.watch)
        solution = self.cache.recall(search)
        if solution is None:
            # stored weights of the same search may prove the gap immediately; weights of a similar
            # search are only initial weights
            solution = search.run(
                self.cache.weights(search), most_similar(self.hints, search), self.watch
            )
            self._store(search, solution)
        return solution

    def _store(self, search: Search, solution: Solution) -> None:
        """Store a solution in the cache, and its weights as initial weights of similar searches."""
        if self.cache is not None:
            self.cache.keep(search, solution)
            self.cache.suggest(search, solution)

    def ahead(
        self,
        subs: Sequence[Subworkload],
        costs: Sequence[Cost],
        workers: int | None,
        report: Callable[[float], object],
    ) -> None:
        """Run searches in worker processes if that saves time; `solve` then uses their results.

        Parameters
        ----------
        subs : the subworkloads.
        costs : their forecasts.
        workers : number of processes that the user set, or None.
        report : called with the estimated share of searches that ended, 0 to 1; may raise to
            cancel.  The estimate assumes one search per subworkload.
        """
        if workers == 1:
            return
        order = sorted(range(len(subs)), key=lambda i: -costs[i].seconds)
        # the longest search determines the time in parallel, so only the time of all other searches
        # can be saved; this is tested first, because `_worker_searches` may form large Grams
        seconds = [c.seconds for c in costs]
        saved_seconds = math.fsum(seconds) - max(seconds, default=0.0)
        if saved_seconds <= MIN_PARALLEL_S and workers is None and not is_configured():
            return
        outstanding = [i for i in order if self._worker_searches(subs[i])]
        saved_seconds = sum(costs[i].seconds for i in outstanding)
        peak_bytes = max((costs[i].peak for i in outstanding), default=0.0)
        saved_seconds -= max((costs[i].seconds for i in outstanding), default=0.0)
        number = workers_for(
            saved_seconds, len(outstanding), peak_bytes, self.memory_limit, workers
        )
        if number == 0:
            return
        searches, seen = dict[str, Search](), set[str]()
        count = max(len(outstanding), 1)

        def tasks() -> Iterator[Task]:
            """Yield every distinct search once, beginning with the most expensive subworkload."""
            for i in outstanding:
                for search in self._worker_searches(subs[i]):
                    if search.key not in seen:
                        searches[search.key] = search
                        seen.add(search.key)
                        stored_weights = (
                            self.cache.weights(search) if self.cache is not None else None
                        )
                        yield Task(
                            search=search,
                            warm_start=stored_weights,
                            similar_weights=most_similar(self.hints, search),
                        )

        for key, solution in search_all(
            tasks(), number, self.options.deadline, lambda done: report(min(done / count, 1.0))
        ):
            self._parallel_results[key] = solution
            self._store(searches.pop(key), solution)

    def _worker_searches(self, sub: Subworkload) -> list[Search]:
        """Return the searches of a subworkload that worker processes with one core each may run.

        A search is left out if its result is in the cache, if it needs no matrix, if NumPy runs it
        on all cores, or if it exceeds the memory limit.  Alternating searches are left out, because
        every step depends on the result of the step before.
        """
        terms = merge_terms(sub, self.factors)
        axes = tuple(range(len(sub.sizes)))
        if sub.spaces or sub.complements:
            searches = [
                self._search(
                    gram_on_axes(terms, axes, sub.sizes), sub.centers, sub.complements, sub.spaces
                )
            ]
        elif len(terms) == 1:
            searches = [
                self._search(factor, [sub.centers[a] for a in factor_axes])
                for factor_axes, factor in terms[0][1]
                if self._matrix_free_gram(factor, [sub.centers[a] for a in factor_axes]) is None
            ]
        elif not self._alternating_sets(sub)[0]:
            searches = [self._search(gram_on_axes(terms, axes, sub.sizes), sub.centers)]
        else:
            return []
        fitting = [
            s
            for s in searches
            if dense_bytes(s.factor.rank, s.factor.dimension, s.cells) <= self.memory_limit
        ]
        small = [s for s in fitting if s.factor.rank <= MAX_SINGLE_THREAD_ORDER]
        return [s for s in small if self.cache is None or self.cache.recall(s) is None]

    def _alternate(
        self, terms: Merged, sub: Subworkload, sets: Sequence[Axes], prefix: str
    ) -> SpaceSolution:
        """Search for a product of strategies, one per set of axes, by an `AlternatingSearch`.

        ``prefix`` is put before the recorded status of every search, so that a stored plan is
        rebuilt in the same way.
        """

        def search(factor: Factor, centers: Sequence[Array | None]) -> Searched:
            gram = self._matrix_free_gram(factor, centers)
            if gram is not None:
                solution = self._matrix_free_solution(gram, centers[0])
                if isinstance(gram, LevelGram):
                    weights = level_weights(gram, solution.dual)
                else:
                    # the closed form of a marginal has a single weight, the same for all cells
                    weights = np.broadcast_to(solution.dual, gram.cells)
                solved = solution, lambda: weights / weights.sum()
            else:
                solution = self._solution(factor, centers)
                solved = solution, lambda: self._search(factor, centers).cell_weights(solution.dual)
            if prefix and not self.endings[-1].startswith(prefix):
                self.endings[-1] = f"{prefix}: {self.endings[-1]}"
            return solved

        def lower_bound(factor: Factor, centers: Sequence[Array | None]) -> float:
            """Return the lower bound of a search, and record the search.

            Many subworkloads have the same terms, so equal dense Grams are searched once.  If there
            are initial weights or recorded results, each Gram is searched, because equal Grams may
            then have different results.
            """
            # `_matrix_free_solution` searches equal Grams without a matrix once
            is_matrix_free = self._matrix_free_gram(factor, centers) is not None
            if is_matrix_free or self.recorded is not None or self.warm:
                return search(factor, centers)[0].bound
            if isinstance(factor.matrix, Operator):
                return search(factor, centers)[0].bound
            key = self._search(factor, centers).key
            if key not in self._inner_bounds:
                solution, _ = search(factor, centers)
                self._inner_bounds[key] = solution.bound, solution.dual, solution.ending
                return solution.bound
            bound, dual, ending = self._inner_bounds[key]
            self.duals.append(dual)
            self.endings.append(f"{prefix}: {ending}" if prefix else ending)
            return bound

        def has_time(seconds: float) -> bool:
            """Return whether the lower bound for products ends before the deadline.

            A negative answer is recorded, so that a stored plan is rebuilt with the same bound.
            """
            if self.recorded is not None:
                return not self.endings[-1].endswith(NO_PRODUCT_BOUND)
            if planning_time() + seconds <= self.options.deadline:
                return True
            self.endings[-1] += NO_PRODUCT_BOUND
            return False

        alternation = AlternatingSearch(
            terms=terms,
            sets=sets,
            sizes=sub.sizes,
            centers=sub.centers,
            search=search,
            lower_bound=lower_bound,
            has_time=has_time,
        )
        with threads_for(max(sub.sizes)):
            alternation.run()
        return SpaceSolution(
            factors=tuple((axes, solution) for axes, (solution, _) in alternation.solved.items()),
            value=alternation.value,
            bound=alternation.bound,
            status="alternating over attributes: a local optimum among products",
        )


# version of the stored dual weights of windows, part of their key in the cache
WINDOW_FORMAT = "windows/1"


def _are_weights(values: Array, cells: int) -> bool:
    """Return whether ``values`` are positive dual weights of this number of cells with sum 1."""
    return (
        values.shape == (cells,)
        and bool(np.isfinite(values).all() and (values > 0.0).all())
        and abs(float(values.sum()) - 1.0) < 1e-9
    )


def _network_gram(parts: Sequence[tuple[float, Factor]], pi: Array | None) -> WindowGram | None:
    """Return a weighted sum of Grams as weights of windows and other queries, if it can be solved.

    The result is None if the sum needs a matrix, see `window_sum`.  With a tuned center, only a
    single Gram of windows is solved without a matrix.

    Parameters
    ----------
    parts : pairs (weight, Gram) on one axis.
    pi : center of the axis, shape (n,); None for a uniform one.
    """
    if pi is None:
        return window_sum(parts)
    (_, factor), *others = parts
    return factor.window_gram if isinstance(factor, DeferredFactor) and not others else None


def _is_matrix_free_sum(grams: Sequence[MatrixFreeGram | None]) -> bool:
    """Return whether a sum of Grams on one wide attribute can be solved without a matrix.

    This is possible for sums of interval queries, for sums of areas of one hierarchy and the
    marginal, and for a single Gram with windows.  An entry of ``grams`` is None for queries that need
    a matrix.
    """
    if any(isinstance(gram, WindowGram) for gram in grams):
        return len(grams) == 1
    trees = {gram.tree.key for gram in grams if isinstance(gram, LevelGram)}
    if not trees:
        return all(gram is not None for gram in grams)
    is_area_sum = [
        isinstance(gram, LevelGram) or (isinstance(gram, IntervalGram) and gram.is_marginal)
        for gram in grams
    ]
    return len(trees) == 1 and all(is_area_sum)


# largest number of cells of an attribute on which areas of a hierarchy are combined with other
# queries, which takes a dense search
MAX_MIXED_AREA_CELLS = 2_000


def _first_status(solved: Sequence[tuple[Axes, Solution]]) -> str:
    """Return the first status that is not "optimal"; "optimal" if all are."""
    return next((s.status for _, s in solved if s.status != "optimal"), "optimal")
