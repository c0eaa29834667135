"""Parallel strategy searches with progress and cancellation.

By default large work goes to loky processes, one a core, with one thread of linear algebra each.  Whoever wants another
place says so in one line, `with joblib.parallel_config("dask", ...)`, and gets the same plan: a search is the same
function of the same numbers wherever it runs.

The main thread never waits in joblib: it hears results through a queue and tells progress in between.  Searches go on
while a file exists that the main process holds, so that a cancel, or the end of the main process, ends them within one
evaluation, and workers of a pool survive it.
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
from engine._threads import alone, one_thread
from engine.errors import Cancelled, PlanError
from engine.residuals.dual_solver import Solution
from engine.residuals.strategy_search import Search

if TYPE_CHECKING:
    import joblib


WORTH = 2.0  # seconds of work from which processes pay
EVERY = 0.1  # seconds between two looks at the queue
PATIENCE = 5.0  # seconds to wait for searches that were told to stop; those of a lost machine are left behind


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """One search with what is known about it; see `Search.run`."""

    search: Search
    known: Array | None = None
    near: Array | None = None


@dataclass(frozen=True, kw_only=True)
class Leash:
    """How a search in another process hears that it should stop: a file of the main process, its machine, a moment."""

    file: str
    machine: str
    process: int
    deadline: float  # on the wall clock, because monotonic clocks of two machines have nothing in common


def workers_for(seconds: float, searches: int, bytes_each: float, memory: float, asked: int | None) -> int | None:
    """Return how many workers to use: 0 for none, -1 for as many as there are, None for what joblib was told.

    Parameters
    ----------
    seconds : forecast of the work.
    searches : how many there are.
    bytes_each, memory : what one search needs, and what all may take together.
    asked : what the user said; None lets the engine choose.
    """
    if searches < 2 or asked == 1:
        return 0
    if asked is not None:
        return asked
    import joblib
    from joblib.parallel import get_active_backend

    if configured():
        _, number = get_active_backend(prefer="processes")
        return -1 if number is None else None
    fitting = int(memory // max(bytes_each, 1.0))
    best = min(joblib.cpu_count(), searches, fitting)
    return best if seconds > WORTH and best > 1 else 0


def configured() -> bool:
    """Return whether the caller chose a place or a number of workers with `joblib.parallel_config`."""
    from joblib.parallel import get_active_backend

    (threads, _), (processes, number) = (get_active_backend(prefer=prefer) for prefer in ("threads", "processes"))
    # a preference moves only what nobody chose
    return type(threads) is type(processes) or number not in (None, 1)


def search_all(
    tasks: Iterable[Task], workers: int | None, deadline: float, hear: Callable[[int], object]
) -> Iterator[tuple[str, Solution]]:
    """Yield (key, solution) of every search as it ends, in no fixed order.

    Parameters
    ----------
    workers : number of workers; None leaves it to the caller's joblib configuration.
    deadline : on the monotonic clock.
    hear : called about ten times a second with the number of searches that ended; may raise to cancel.
    """
    import joblib
    from joblib.externals.loky import get_reusable_executor
    from joblib.parallel import get_active_backend

    # processes of a pool may not have children; they search in threads, which linear algebra lets run side by side
    prefer = "threads" if multiprocessing.current_process().daemon else "processes"
    backend, _ = get_active_backend(prefer=prefer)
    _check_workers(backend)
    handle, name = tempfile.mkstemp(prefix="searches-")
    os.close(handle)
    leash = Leash(
        file=name, machine=platform.node(), process=os.getpid(), deadline=time.time() + deadline - time.monotonic()
    )
    results: queue.SimpleQueue[object] = queue.SimpleQueue()
    # threads share one setting for linear algebra: with it in place here, none of them changes it under another
    with one_thread():
        streams = "generator_unordered" if backend.supports_return_generator else "list"
        crew = joblib.Parallel(n_jobs=workers, prefer=prefer, return_as=streams, batch_size=1)
        calls = (joblib.delayed(_search)(task, leash) for task in tasks)
        listener = threading.Thread(target=_listen, args=(crew, calls, results), daemon=True)
        listener.start()
        done = 0
        try:
            while True:
                hear(done)
                try:
                    found = results.get(timeout=EVERY)
                except queue.Empty:
                    continue
                if found is None:
                    return
                if isinstance(found, BaseException):
                    raise found
                assert isinstance(found, tuple)
                done += 1
                yield found
        finally:
            Path(name).unlink(missing_ok=True)
            listener.join(PATIENCE)
            if multiprocessing.parent_process() is not None and type(backend).__name__ == "LokyBackend":
                # a process of somebody's pool joins its children when it ends, and idle workers would stay for minutes
                get_reusable_executor().shutdown(wait=True, kill_workers=True)


def _check_workers(backend: object) -> None:
    """Raise PlanError unless all workers of a Dask cluster can import the engine: one that cannot would fall silent."""
    if (client := getattr(backend, "client", None)) is None:
        return
    found = client.run(pkgutil.get_data, "engine", "py.typed", on_error="return")
    lost = [name for name, data in found.items() if not isinstance(data, bytes)]
    if lost:
        raise PlanError(
            f"{len(lost)} of {len(found)} workers of the cluster cannot import the engine; the first is {lost[0]}. "
            "Install there what is installed here, in the same versions, or plan without the cluster."
        )


def _listen(crew: joblib.Parallel, calls: Iterable[object], results: queue.SimpleQueue[object]) -> None:
    try:
        for found in crew(calls):
            results.put(found)
        results.put(None)
    except BaseException as error:
        results.put(error)


def _search(task: Task, leash: Leash) -> tuple[str, Solution] | Cancelled:
    """Search in a worker; the deadline of the search is on the clock of this machine afterwards."""
    here, child = platform.node() == leash.machine, os.getppid() == leash.process

    def watch(gap: float = 0.0) -> None:
        if here and (_gone(leash.process) or (child and os.getppid() != leash.process)):
            if type(multiprocessing.current_process()).__name__.startswith("Loky"):
                os._exit(1)  # it would wait some minutes for more work that cannot come
            raise Cancelled("The process that asked is gone.")
        if here and not Path(leash.file).exists():
            raise Cancelled("The search was cancelled.")

    search = task.search
    left = leash.deadline - time.time()
    timed = replace(search, options=replace(search.options, deadline=time.monotonic() + left))
    try:
        watch()
        with alone():
            return search.key, timed.run(task.known, task.near, watch)
    except Cancelled as error:
        return error


def _gone(process: int) -> bool:
    if os.name == "nt":  # where the same call would end the process
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
