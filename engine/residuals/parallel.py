"""Parallel strategy searches with progress and cancellation.

By default large work runs in loky processes, one per core, with one thread of linear algebra each.
The caller can choose another backend with `with joblib.parallel_config("dask", ...)` and gets the
same plan: a search is a pure function of its inputs.

The main thread never blocks in joblib: a listener thread puts results into a queue, and the main
thread reports progress while it waits for them.  To cancel, the main process deletes a file; every
search checks after each evaluation that the file and the main process still exist, and otherwise
stops.  The workers of a pool continue to run, without a search.
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


# expected seconds of work above which worker processes save time
MIN_PARALLEL_S = 2.0
# seconds between two calls of the progress function
PROGRESS_INTERVAL_S = 0.1
# seconds to wait for cancelled searches; those on an unreachable machine are abandoned
CANCEL_TIMEOUT_S = 5.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """One strategy search with the initial weights of `Search.run`."""

    search: Search
    warm_start: Array | None = None
    near: Array | None = None


@dataclass(frozen=True, kw_only=True)
class CancelSignal:
    """Cancellation signal of a search in another process.

    Attributes
    ----------
    file : path of a file of the main process; a search stops when it no longer exists.
    machine, process : host name and process number of the main process.
    deadline : time limit on the wall clock, because the clocks of two processes are not
        comparable.
    """

    file: str
    machine: str
    process: int
    deadline: float


def workers_for(
    seconds: float, searches: int, bytes_each: float, memory: float, requested: int | None
) -> int | None:
    """Return how many workers run the searches.

    0 means that the main process runs them, -1 one worker per core, and None the number of joblib's
    configuration.

    Parameters
    ----------
    seconds : expected time of all searches.
    searches : number of searches.
    bytes_each, memory : memory of one search, and memory limit of all searches that run at once.
    requested : number of workers that the user set; None if the user set none.
    """
    if searches < 2 or requested == 1:
        return 0
    if requested is not None:
        return requested
    import joblib
    from joblib.parallel import get_active_backend

    if is_configured():
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
    # ``prefer`` changes the backend only if the caller configured none
    return type(threads) is type(processes) or number not in (None, 1)


def search_all(
    tasks: Iterable[Task],
    workers: int | None,
    deadline: float,
    on_progress: Callable[[int], object],
) -> Iterator[tuple[str, Solution]]:
    """Run searches in workers; yield the key and solution of each as it ends, in no fixed order.

    Parameters
    ----------
    tasks : the searches.
    workers : number of workers; None for the caller's joblib configuration.
    deadline : time limit on the clock of `planning_time`.
    on_progress : called about ten times per second with the number of searches that ended; may
        raise to cancel.
    """
    import joblib
    from joblib.parallel import get_active_backend

    # a process that was started by another one uses threads: daemonic processes may not have
    # children, and others would wait at their end for idle workers; linear algebra releases the GIL
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
    # threads share one setting for linear algebra: it is set here once, so that no thread changes
    # it for another
    with one_thread(), planning_time.counting_waits():
        streams = "generator_unordered" if backend.supports_return_generator else "list"
        pool = joblib.Parallel(n_jobs=workers, prefer=prefer, return_as=streams, batch_size=1)
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
    """Raise PlanError unless all workers of a Dask cluster can import the engine.

    A worker that cannot import the engine would never return a result.
    """
    if (client := getattr(backend, "client", None)) is None:
        return
    results = client.run(pkgutil.get_data, "engine", "py.typed", on_error="return")
    lost = [name for name, data in results.items() if not isinstance(data, bytes)]
    if lost:
        raise PlanError(
            f"{len(lost)} of {len(results)} workers of the Dask cluster cannot import the engine;"
            f" the first is {lost[0]}. Install on the workers the packages of this environment, in"
            " the same versions, or plan without the cluster."
        )


def _listen(
    pool: joblib.Parallel, calls: Iterable[object], results: queue.SimpleQueue[object]
) -> None:
    try:
        for result in pool(calls):
            results.put(result)
        results.put(None)
    except BaseException as error:
        results.put(error)


def _search(task: Task, cancel_signal: CancelSignal) -> tuple[str, Solution] | Cancelled:
    """Run a search in a worker, with the deadline on the clock of the worker."""
    is_same_machine, is_child = (
        platform.node() == cancel_signal.machine,
        os.getppid() == cancel_signal.process,
    )

    def watch(gap: float = 0.0) -> None:
        if is_same_machine and (
            _has_ended(cancel_signal.process)
            or (is_child and os.getppid() != cancel_signal.process)
        ):
            if type(multiprocessing.current_process()).__name__.startswith("Loky"):
                os._exit(1)  # an idle worker would otherwise wait minutes for work
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
            return search.key, timed_search.run(task.warm_start, task.near, watch)
    except Cancelled as error:
        return error


def _has_ended(process: int) -> bool:
    if os.name == "nt":  # os.kill with signal 0 ends the process on Windows
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
