"""Strategy search for one Gram matrix, and the cache of finished searches.

**Cache.**  Finished searches are stored in memory and optionally on disk.  The key of a search is a
hash of everything that determines it (`Search.key`), and the stored value is its dual weights.
Weights from a file are not trusted.  The strategy, its value, bound and privacy cost are computed
from the weights.  If the weights do not prove the required gap, the search continues from them.  So
a wrong file costs time, but no accuracy.

A search depends only on the schema, the queries and their weights, so no entry depends on records.
The folder may be deleted at any time.  The environment variable DP_WORKBENCH_CACHE can hold its
path, or "off" to keep all entries in memory.  By default, the folder is inside the user's cache
folder.

A file holds one JSON line (format, key, number of values, checksum) and the values as little-endian
doubles.  The values are dual weights, or the parameters of tuned centers or complements (splits of
pairs).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import threading
from collections import Counter, OrderedDict
from collections.abc import Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import platformdirs

from engine._arrays import Array
from engine._atomic_io import atomic_file
from engine._clock import planning_time
from engine._threads import threads_for
from engine._untrusted import parse_json
from engine.residuals.basis import Axes, Complement, Lift, SplitLift, digest
from engine.residuals.decomposition import DeferredFactor, Factor
from engine.residuals.dual_solver import (
    DualProblem,
    FixedBasisProblem,
    FourierProblem,
    Options,
    Solution,
    Watch,
)
from engine.residuals.interval_solver import IntervalSpace
from engine.residuals.interval_solver import solve as solve_intervals
from engine.residuals.search_costs import DENSE_PRODUCT_FLOPS, eigen_seconds

# part of every cache key; raise the number if a code change may change the weights of a search
FORMAT = "search/3"
DEFAULT_OPTIONS = Options()
# share of uniform weights that is mixed into initial weights from another search
UNIFORM_SHARE = 1e-4
# A search from given initial weights that makes no more progress is repeated from uniform weights
# if its gap is more than this factor times the required gap.
MAX_GAP_RATIO = 100.0
# On at least this number of cells, dual weights of interval queries are searched without matrices,
# and one evaluation with matrices follows.  Both together are faster than a search with matrices.
MIN_LINEAR_CELLS = 200
# The search without matrices ends at this share of the required gap.  So its weights prove the
# required gap in the evaluation with matrices, despite rounding errors.
LINEAR_GAP_SHARE = 0.9
# measured time from the last step of a search to the complete plan, relative to the time to set up
# the dual problem: typical value, value for a Gram of low rank, and value for a Gram of full rank
STRATEGY_TIME_RATIO, LOW_RANK_TIME_RATIO, FULL_RANK_TIME_RATIO = 2.5, 1.4, 3.2
# If the dual problem is set up before the deadline, the search may take at least this share of the
# time of the setup.  Sums of 365 x 101 cells had twice the RMSE without a step, and were 2% above
# the optimum after 6 steps in this time.
MIN_SEARCH_RATIO = 0.3
PROBLEMS: Mapping[str, type[DualProblem]] = {
    "optimal": DualProblem,
    "eigenbasis": FixedBasisProblem,
    "fourier": FourierProblem,
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Search:
    """Inputs of one strategy search.

    Attributes
    ----------
    factor : the residual Gram.
    centers : one center per attribute, shape (n_i,), None for a uniform one.
    complements : mapping from the positions of a pair's attributes to its complement (tuned split).
    spaces : if one strategy measures several residual spaces, the positions of the attributes of
        each space; empty if it measures the residual space of all attributes only.
    method : "optimal", or an approximate construction: "eigenbasis" or "fourier".
    options : stopping rule.  Its deadline is not part of the cache key, because searches that are
        ended by the deadline are not stored.
    """

    factor: Factor
    centers: tuple[Array | None, ...]
    complements: Mapping[Axes, Complement] = field(default_factory=dict)
    spaces: tuple[Axes, ...] = ()
    method: str = "optimal"
    options: Options = DEFAULT_OPTIONS

    @property
    def cells(self) -> int:
        """Number of cells of the table."""
        return math.prod(self.factor.sizes)

    @cached_property
    def shape(self) -> str:
        """Hash of all inputs except the entries of the Gram and the stopping rule."""
        kind = (
            FORMAT,
            self.method,
            self.factor.sizes,
            self.factor.low_rank,
            self.factor.matrix.shape,
        )
        complements = tuple((pair, self.complements[pair].key) for pair in sorted(self.complements))
        split = tuple(map(digest, self.centers)), complements, self.spaces
        return hashlib.sha256(repr((kind, split)).encode()).hexdigest()

    @cached_property
    def key(self) -> str:
        """Hash of all inputs except the deadline; a result serves all searches with its key."""
        head = repr((self.shape, self.options.gap, self.options.evaluations)).encode()
        return hashlib.sha256(head + np.ascontiguousarray(self.factor.matrix).tobytes()).hexdigest()

    @cached_property
    def fingerprint(self) -> Array:
        """Diagonal of the residual Gram divided by its trace, shape (residual coordinates,).

        Two searches of equal ``shape`` are similar if their fingerprints are close.
        """
        matrix = self.factor.matrix
        diagonal = (
            np.einsum("rc,rc->c", matrix, matrix) if self.factor.low_rank else np.diagonal(matrix)
        )
        shares: Array = diagonal / diagonal.sum()
        return shares

    def problem(self) -> DualProblem:
        """Return the dual problem of this search, with copies of all arrays."""
        sizes = self.factor.sizes
        # The last digit of a sum depends on memory order and alignment.  Copies fix both, so that
        # every process computes the same digits.
        matrix, low_rank = np.array(self.factor.matrix, order="C"), self.factor.low_rank
        factor = Factor(sizes=sizes, matrix=matrix, low_rank=low_rank)
        centers = [None if pi is None else np.array(pi) for pi in self.centers]
        lift = Lift(sizes, centers)
        if self.spaces or self.complements:
            copies = {}
            for pair in sorted(self.complements):
                first, second = (np.array(D, order="C") for D in self.complements[pair].by_axis)
                copies[pair] = Complement(
                    by_axis=(first, second), by_total=np.array(self.complements[pair].by_total)
                )
            lift = SplitLift(sizes, centers, self.spaces or (tuple(range(len(sizes))),), copies)
        return PROBLEMS[self.method](lift=lift, factor=factor)

    def cell_weights(self, mass: Array) -> Array:
        """Return the dual weight of every cell, shape (cells,), scaled to sum 1.

        ``mass`` holds the summed weight of every orbit of cells, shape (orbits,).
        """
        problem = self.problem()
        weights: Array = (mass / problem.multiplicity)[problem.orbit] / mass.sum()
        return weights

    def run(
        self,
        warm_start: Array | None = None,
        similar_weights: Array | None = None,
        watch: Watch | None = None,
    ) -> Solution:
        """Search for the optimal strategy.

        Parameters
        ----------
        warm_start : dual weights of a search with the same key, shape (orbits,).  If they prove the
            required gap, they determine the result; otherwise the search starts near them.
        similar_weights : dual weights of a similar search, shape (orbits,).  The search starts near
            them if there is no ``warm_start`` and no faster search finds initial weights.
        watch : called with the relative RMSE gap after every evaluation; may raise to cancel.

        All parameters may be None.
        """
        began = planning_time()
        with threads_for(self.factor.rank):
            problem = self.problem()
        # Time for the strategy, which is computed after the search, is subtracted from the time
        # limit.
        now = planning_time()
        ratio = LOW_RANK_TIME_RATIO if self.factor.low_rank else FULL_RANK_TIME_RATIO
        setup_seconds = now - began
        deadline = self.options.deadline - ratio * setup_seconds
        if self.options.deadline > now:
            deadline = max(deadline, now + MIN_SEARCH_RATIO * setup_seconds)
        if now + _evaluation_seconds(problem) > deadline:
            deadline = -math.inf  # not even one step fits
        options = replace(self.options, deadline=deadline)
        # Symmetries divide the matrices of an evaluation into blocks, so the number of threads
        # follows from the order of the largest block, not from the rank.
        with threads_for(problem.largest_block):
            if warm_start is None and (weights := self._interval_weights(options)) is not None:
                warm_start = np.bincount(problem.orbit, weights, problem.variables).astype(float)
            if (
                warm_start is not None
                and is_usable(problem, warm_start)
                and self._proves(problem, warm_start)
            ):
                return problem.solution(warm_start, "optimal")
            initial = initial_weights(
                problem, similar_weights if warm_start is None else warm_start
            )
            mass, status = problem.maximise(options, initial, watch=watch)
            best = problem.solution(mass, status)
            # bad initial weights may be the cause of a large gap, so the search is repeated from
            # uniform weights
            if (
                initial is not None
                and status.startswith("stopped where")
                and best.gap > MAX_GAP_RATIO * self.options.gap
            ):
                repeated = problem.solution(*problem.maximise(options, watch=watch))
                best = min(best, repeated, key=lambda s: s.gap)
            return best

    def _interval_weights(self, options: Options) -> Array | None:
        """Return dual weights of the cells from a search in linear time, shape (cells,), sum 1.

        This requires a search for the optimal strategy, and the Gram of interval queries of one
        kind on at least `MIN_LINEAR_CELLS` cells.  Otherwise the result is None.
        """
        gram = self.factor.interval_gram if isinstance(self.factor, DeferredFactor) else None
        if gram is None or gram.cells < MIN_LINEAR_CELLS or self.method != "optimal":
            return None
        solution = solve_intervals(
            IntervalSpace(gram=gram, center=self.centers[0]),
            gap=LINEAR_GAP_SHARE * options.gap,
            evaluations=options.evaluations,
            deadline=options.deadline,
        )
        return solution.dual

    def _proves(self, problem: DualProblem, mass: Array) -> bool:
        """Return whether dual weights prove the required gap, up to rounding errors.

        A search stops as soon as its weights prove the gap.  When such weights are read again, they
        may miss the gap by rounding errors, so a small tolerance is added.
        """
        T, d = problem.evaluate(mass)
        gap = math.sqrt(float(d.max()) * float(mass.sum()) / T) - 1.0
        return gap <= self.options.gap * (1.0 + 1e-6) + 1e-15

    def replay(self, mass: Array, status: str) -> Solution:
        """Return the strategy of recorded dual weights without a search; their gap is not checked.

        ``mass`` has shape (orbits,); ``status`` is that of the recorded search.

        Raises
        ------
        ValueError : the number of weights is not that of the problem.
        """
        with threads_for(self.factor.rank):
            problem = self.problem()
        if len(mass) != problem.variables:
            raise ValueError(
                f"There are {len(mass)} stored dual weights, but this search needs"
                f" {problem.variables}. Use the dual weights of a search with the same inputs."
            )
        with threads_for(problem.largest_block):
            return problem.solution(mass, status)


def _evaluation_seconds(problem: DualProblem) -> float:
    """Return the expected time of one evaluation of a dual, in seconds on one idle core."""
    return math.fsum(
        4.0 * len(W) * W.size / DENSE_PRODUCT_FLOPS + eigen_seconds(len(W))
        for W in problem.projected
    )


def is_usable(problem: DualProblem, mass: Array | None) -> bool:
    """Return whether ``mass`` is a valid vector of dual weights for a problem.

    Valid weights have shape (orbits,), are at least 0 and have sum 1.
    """
    return (
        mass is not None
        and mass.shape == (problem.variables,)
        and bool(np.isfinite(mass).all() and (mass >= 0.0).all())
        and abs(float(mass.sum()) - 1.0) < 1e-9
    )


def initial_weights(problem: DualProblem, similar_weights: Array | None) -> Array | None:
    """Return initial weights, shape (orbits,), made from the weights of a similar search.

    A small share of uniform weights is mixed in, because a weight of zero would remain zero during
    the search.  The result is None if ``similar_weights`` is None or not valid for the problem.
    """
    if similar_weights is None or not is_usable(problem, similar_weights):
        return None
    uniform = UNIFORM_SHARE * problem.multiplicity / problem.multiplicity.sum()
    mixed: Array = (1.0 - UNIFORM_SHARE) * similar_weights + uniform
    return mixed


VARIABLE = "DP_WORKBENCH_CACHE"
FILE_FORMAT = "weights/1"
SUFFIX = ".weights"
# default limits in bytes of the solutions in memory, of the initial weights in memory, and of the
# files on disk
MEMORY_BYTES = 192 * 2**20
HINT_BYTES = 32 * 2**20
DISK_BYTES = 256 * 2**20
# a search is not stored in a file if the square of its number of residual coordinates is below this
# value, because such a search takes less time than reading the file
MIN_CACHED_COORDINATES_SQUARED = 2_000
# largest number of initial weights stored for searches of one shape (equal sizes, centers, method)
MAX_HINTS_PER_SHAPE = 8
# text in the status of a search that a time limit ended
TIME_LIMIT_STATUS = "time limit"
# `Search.shape` -> pairs (fingerprint of the Gram, dual weights) of earlier searches of that shape
Hints = Mapping[str, tuple[tuple[Array, Array], ...]]
_Value = TypeVar("_Value")


class LruCache(Generic[_Value]):
    """Least-recently-used cache with a limit in bytes."""

    def __init__(self, limit: int) -> None:
        self.limit, self.used = limit, 0
        self._values: OrderedDict[str, tuple[_Value, Mapping[Hashable, int]]] = OrderedDict()
        self._holders: Counter[Hashable] = Counter()
        self._lock = threading.Lock()

    def get(self, key: str) -> _Value | None:
        """Return the value, or None if the key is absent."""
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key][0]

    def put(self, key: str, value: _Value, size: int | Mapping[Any, int]) -> None:
        """Store a value of ``size`` bytes, unless it alone exceeds the limit.

        An earlier value with the same key is removed in either case.  To stay within the limit, the
        least recently used values are removed.

        If values share parts, ``size`` maps the identifiers of the parts to their bytes.  A part of
        several stored values counts once towards the limit.
        """
        parts: Mapping[Hashable, int] = (
            size if isinstance(size, Mapping) else {("unshared", key): size}
        )
        with self._lock:
            if key in self._values:
                self._drop(key)
            if sum(parts.values()) <= self.limit:
                self._values[key] = (value, parts)
                self.used += sum(
                    part_size for part, part_size in parts.items() if not self._holders[part]
                )
                self._holders.update(parts.keys())
            while self.used > self.limit:
                self._drop(next(iter(self._values)))

    def _drop(self, key: str) -> None:
        """Remove a value, and subtract the sizes of its parts that no other value shares."""
        _, parts = self._values.pop(key)
        self._holders.subtract(parts.keys())
        for part, part_size in parts.items():
            if not self._holders[part]:
                del self._holders[part]
                self.used -= part_size

    def snapshot(self) -> dict[str, _Value]:
        """Return all values by key."""
        with self._lock:
            return {key: value for key, (value, _) in self._values.items()}


class SolveCache:
    """Store of the results of strategy searches, by the hash of all inputs of a search.

    Parameters
    ----------
    folder : folder of the files; None keeps all entries in memory only.
    memory, disk : largest size of the solutions in memory and of the folder, in bytes.
    """

    def __init__(
        self, folder: Path | None = None, memory: int = MEMORY_BYTES, disk: int = DISK_BYTES
    ) -> None:
        self.folder, self.disk = folder, disk
        self._solutions = LruCache[Solution](memory)
        self._hints = LruCache[tuple[tuple[Array, Array], ...]](HINT_BYTES)
        self._numbers = LruCache[Array](HINT_BYTES)
        self._written = 0
        self._lock = threading.Lock()

    def recall(self, search: Search) -> Solution | None:
        """Return the solution of a search with the same key from memory, or None."""
        return self._solutions.get(search.key)

    def weights(self, search: Search) -> Array | None:
        """Return the dual weights that a file holds for this search, shape (orbits,), or None.

        The file may be wrong: neither the shape nor the values are checked here.
        """
        return self._read(search.key) if _worth_a_file(search) else None

    def _read(self, key: str) -> Array | None:
        """Return the numbers in an entry's file; None if it is absent or damaged."""
        if self.folder is None:
            return None
        path = self.folder / (key + SUFFIX)
        try:
            head, _, body = path.read_bytes().partition(b"\n")
            if parse_json(head) != _head(key, body):
                return None
            with suppress(OSError):
                os.utime(path)
            return np.frombuffer(body, "<f8").astype(float)
        except (OSError, ValueError):
            return None

    def numbers(self, key: str) -> tuple[Array | None, bool]:
        """Return the array that `keep_numbers` stored under a key, and whether it was in memory.

        If the array was read from a file, the second value is False and only its checksum was
        verified. If nothing is stored, the result is (None, False).
        """
        values = self._numbers.get(key)
        return (values, True) if values is not None else (self._read(key), False)

    def keep_numbers(self, key: str, values: Array) -> None:
        """Store the parameters of a tuned split in memory, and in a file if possible."""
        self._numbers.put(key, values, values.nbytes)
        self._save(key, values)

    def hints(self) -> Hints:
        """Return the stored initial weights of searches, by the shape of the search."""
        return self._hints.snapshot()

    def keep(self, search: Search, solution: Solution) -> None:
        """Store a solution, unless a time limit ended its search or it has a closed form."""
        if TIME_LIMIT_STATUS in solution.status or search.method == "fourier":
            return
        self._solutions.put(search.key, solution, _solution_bytes(solution))
        if _worth_a_file(search):
            self._save(search.key, solution.dual)

    def suggest(self, search: Search, solution: Solution) -> None:
        """Store the dual weights of a search as initial values for later searches of its shape."""
        older_hints = [
            hint
            for hint in self._hints.get(search.shape) or ()
            if not np.array_equal(hint[0], search.fingerprint)
        ]
        hints = ((search.fingerprint, solution.dual), *older_hints[: MAX_HINTS_PER_SHAPE - 1])
        size = sum(fingerprint.nbytes + weights.nbytes for fingerprint, weights in hints)
        self._hints.put(search.shape, hints, size)

    def _save(self, key: str, values: Array) -> None:
        if self.folder is not None:
            with suppress(OSError):  # a full disk or a read-only folder: only memory is used
                self._write(self.folder, key, values)

    def _write(self, folder: Path, key: str, values: Array) -> None:
        """Write an entry's file, and delete old files if the folder may exceed its limit."""
        body = values.astype("<f8").tobytes()
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_file(folder / (key + SUFFIX), overwrite=True, sync=False) as file:
            file.write(json.dumps(_head(key, body)).encode() + b"\n" + body)
        with self._lock:
            is_first_write = self._written == 0
            self._written += len(body)
            # the size of the folder is computed at the first write of the process, and whenever an
            # eighth of the limit has been written since
            needs_trim = is_first_write or self._written > self.disk // 8
            if needs_trim:
                self._written = 1
        if needs_trim:
            self._trim(folder)

    def _trim(self, folder: Path) -> None:
        """Delete the least recently used files until 7/8 of the limit or less remains."""
        files = []
        for path in folder.iterdir():
            if path.suffix in (SUFFIX, ".part"):
                with suppress(OSError):
                    status = path.stat()
                    files.append((status.st_mtime_ns, status.st_size, path))
        excess = sum(size for _, size, _ in files) - 7 * self.disk // 8
        for _, size, path in sorted(files):
            if excess <= 0:
                break
            with suppress(OSError):
                path.unlink()
                excess -= size


def most_similar(hints: Hints, search: Search) -> Array | None:
    """Return the dual weights of the stored search with the most similar Gram.

    The result is None if no search of the same shape is stored.  Searches of the same shape are
    compared by the diagonal of the Gram divided by its trace.
    """
    candidates = hints.get(search.shape, ())
    if not candidates:
        return None
    return min(candidates, key=lambda hint: float(np.abs(hint[0] - search.fingerprint).sum()))[1]


def default_folder() -> Path | None:
    """Return the folder of the cache files, or None if DP_WORKBENCH_CACHE is "off".

    The environment variable DP_WORKBENCH_CACHE can hold the path of the folder.  If the variable is
    empty or not set, the folder is inside the user's cache folder.
    """
    setting = os.environ.get(VARIABLE, "").strip()
    if setting.lower() == "off":
        return None
    if setting:
        return Path(setting).expanduser()
    return platformdirs.user_cache_path("dp-query-workbench") / "searches"


@lru_cache(maxsize=4)
def _cache(folder: Path | None) -> SolveCache:
    return SolveCache(folder)


def default_cache() -> SolveCache:
    """Return the cache that `plan` uses by default: one per process, shared by all threads."""
    return _cache(default_folder())


def _head(key: str, body: bytes) -> dict[str, str | int]:
    """Return the first line of an entry's file as a mapping; ``body`` is the rest of the file."""
    checksum = hashlib.sha256(key.encode() + body).hexdigest()
    return {"format": FILE_FORMAT, "key": key, "weights": len(body) // 8, "sha256": checksum}


def _worth_a_file(search: Search) -> bool:
    """Return whether reading a file is expected to take less time than the search."""
    return search.factor.dimension**2 >= MIN_CACHED_COORDINATES_SQUARED


def _solution_bytes(solution: Solution) -> int:
    # ``pinv`` counts twice: a strategy that has computed variances stores another array of its size
    return solution.strategy.rows.nbytes + 2 * solution.strategy.pinv.nbytes + solution.dual.nbytes
