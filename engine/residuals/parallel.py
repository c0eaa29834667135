"""Parallel strategy searches with progress and cancellation.

By default large work runs in loky processes, at most one per core, each with one thread of linear
algebra.
The caller can choose another backend with `with joblib.parallel_config("dask", ...)` and gets the
same plan: a search is a pure function of its inputs.

A listener thread waits for joblib and puts results into a queue.  The main thread reports progress
while it waits for the queue.  To cancel, the main process deletes a file.  After each evaluation, a
search on the same machine stops if the file or the main process no longer exists.  The worker
processes of the pool remain for later searches.
"""

from __future__ import annotations

import multiprocessing
import os
import pkgutil
import platform
import queue
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from engine._arrays import Array
from engine._clock import planning_time
from engine._threads import one_thread, single_threaded
from engine.errors import Cancelled, PlanError
from engine.residuals.dual_solver import Solution
from engine.residuals.strategy_search import Search

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
