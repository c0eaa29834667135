"""Job queue: one job per key for all sessions, one worker per core.

Sessions that wait for a job are its holders. A job is stopped and removed with its files when all
its holders have ended. The status of a job is one immutable value, so a reader never sees the state
"done" without the result. Workers import this module and `tasks`; neither imports Streamlit.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from engine._threads import cores
from pages.parts.jobs.status import Status
from pages.parts.jobs.worker_process import finish, launch

WORKERS = cores()
RECONNECT_S = 20.0  # time for a reloaded page to reconnect to its jobs
STOPPED = "Nothing was changed."


@dataclass(kw_only=True, eq=False)
class _Job:
    """A function call in the queue, and its status.

    The class is private, because a reference to a job keeps its result in memory. For the
    parameters see `start`.
    """

    status: Status
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    gentle: bool
    stays: bool
    copies: tuple[Path, ...]
    files: tuple[Path, ...]
    holders: set[str] = field(default_factory=set)
    abandoned: bool = False
    stop: Event | threading.Event | None = None
    process: Any = None

    @property
    def share(self) -> int:
        """Number of workers that the job occupies: all of them if it starts processes itself."""
        return WORKERS if self.gentle else 1

    def update(self, kind: str, *content: Any) -> None:
        """Update the status from a message of the worker.

        The messages are "progress" (fraction, text), "done" (result) and "failed" (error text).
        """
        if kind == "progress":
            self.status = replace(self.status, fraction=content[0], text=content[1])
        elif kind == "done":
            self.status = replace(self.status, state="done", result=content[0])
        else:
            stopped = self.stop is not None and self.stop.is_set()
            self.status = replace(
                self.status, state="cancelled" if stopped else "failed", error=content[0]
            )


_JOBS: dict[str, _Job] = {}
_LOCK = threading.RLock()


def start(
    key: str,
    function: Callable[..., Any],
    *arguments: Any,
    holder: str = "",
    spends: bool = False,
    gentle: bool = False,
    stays: bool = False,
    copies: Iterable[Path] = (),
    files: Iterable[Path] = (),
) -> Status:
    """Start or queue the job of this key, unless it is already waiting, running or done.

    Parameters
    ----------
    key : identity of the job; sessions that give the same key share one job.
    function, arguments : the call, which the worker makes with the further argument ``progress``.
    holder : session that waits for the job; empty for none.
    spends : the job spends budget. It goes to the front of the queue, is never killed, and can be
        cancelled only before the spend.
    gentle : the job starts processes itself. It runs in a thread and ends them if cancelled.
    stays : the job continues after its holders have left, for example an export.
    copies : input files, removed when the job ends.
    files : files of the result, removed with the job.

    If no job starts, because one of this key exists, ``copies`` and ``files`` are removed at once.
    """
    with _LOCK:
        if is_there(key):
            _remove((*copies, *files))
        else:
            forget(key)
            status = Status(state="waiting", spends=spends, started=time.monotonic())
            kind: dict[str, Any] = {
                "gentle": gentle,
                "stays": stays,
                "copies": tuple(copies),
                "files": tuple(files),
            }
            _JOBS[key] = _Job(status=status, function=function, arguments=arguments, **kind)
        hold(key, holder)
        _begin_next()
        return _JOBS[key].status


def find(key: str) -> Status | None:
    """Return the status of the job of this key; None if there is no such job."""
    job = _JOBS.get(key)
    return job.status if job is not None else None


def is_there(key: str) -> bool:
    """Return whether the job of this key is waiting, running or done."""
    job = find(key)
    return job is not None and (job.running or job.done)


def before(key: str) -> int:
    """Return how many waiting jobs start before the job of this key."""
    with _LOCK:
        waiting = _queue()
        return waiting.index(key) if key in waiting else 0


def cancel(key: str) -> None:
    """Cancel a job: immediately, or, if it spends budget, only before the spend."""
    with _LOCK:
        job = _JOBS.get(key)
        if job is None or not job.status.running:
            return
        if job.status.state == "waiting":
            job.status = replace(job.status, state="cancelled", error=STOPPED)
            _end(key, job)
            return
        if job.stop is not None:
            job.stop.set()
        if job.process is not None and not job.status.spends and job.process.is_alive():
            job.process.terminate()


def forget(key: str) -> None:
    """Remove a finished job with its result and files."""
    with _LOCK:
        if key in _JOBS and not _JOBS[key].status.running:
            _remove(_JOBS.pop(key).files)


def hold(key: str, holder: str) -> None:
    """Add a session to the holders of a job, which keep it from being stopped."""
    with _LOCK:
        if holder and key in _JOBS:
            _JOBS[key].holders.add(holder)
            _JOBS[key].abandoned = False


def release_job(key: str, holder: str) -> None:
    """Remove a holder from a job; without holders, stop and remove the job."""
    with _LOCK:
        job = _JOBS.get(key)
        if job is not None and holder in job.holders:
            job.holders.discard(holder)
            job.abandoned = not job.holders
            if job.abandoned:
                if not job.stays:
                    cancel(key)
                forget(key)


def leave(holder: str) -> None:
    """Release all jobs of an ended session after `RECONNECT_S`.

    A reloaded page is a new session, which can become a holder of the jobs within this time.
    """

    def release_all() -> None:
        for key in list(_JOBS):
            release_job(key, holder)

    timer = threading.Timer(RECONNECT_S, release_all)
    timer.daemon = True
    timer.start()


def _queue() -> list[str]:
    """Return the keys of the waiting jobs in the order of their start: spending jobs first."""
    waiting = [key for key, job in _JOBS.items() if job.status.state == "waiting"]
    return sorted(waiting, key=lambda key: not _JOBS[key].status.spends)


def _begin_next() -> None:
    """Start waiting jobs in the order of the queue until one needs more workers than are free."""
    for key in _queue():
        job = _JOBS[key]
        busy = sum(other.share for other in _JOBS.values() if other.stop is not None)
        if busy and busy + job.share > WORKERS:
            return
        job.status = replace(job.status, state="running")
        if job.gentle:
            job.stop = threading.Event()
            threading.Thread(target=_run_here, args=(key, job), daemon=True).start()
            continue
        try:
            job.process, job.stop, receiver = launch(
                job.function, job.arguments, outlives=job.status.spends
            )
        # the system has no process or memory left, or the fork server was killed
        except (OSError, EOFError):
            message = "A worker could not be started. Close other programs, or try again."
            job.status = replace(job.status, state="died", error=message)
            _end(key, job)  # starts the next job
            return
        threading.Thread(target=_listen, args=(key, job, receiver), daemon=True).start()


def _listen(key: str, job: _Job, receiver: Connection) -> None:
    """Update the status from the messages of a worker process until it ends; run in a thread."""
    try:
        with receiver, suppress(EOFError, OSError):
            while True:
                job.update(*receiver.recv())
    finally:
        job.process.join()
        if job.status.running:
            stopped, code = job.stop is not None and job.stop.is_set(), job.process.exitcode
            error = STOPPED if stopped else _exit_message(code)
            job.status = replace(job.status, state="cancelled" if stopped else "died", error=error)
        _end(key, job)


def _run_here(key: str, job: _Job) -> None:
    """Call the function of a gentle job in this thread."""

    def progress(fraction: float, text: str) -> bool:
        job.update("progress", fraction, text)
        return job.stop is not None and not job.stop.is_set()

    try:
        finish(job.function, job.arguments, progress, job.update)
    finally:
        if job.status.running:
            # the text of an unexpected error may contain private values
            message = "The job ended without a result. Try again."
            job.status = replace(job.status, state="died", error=message)
        _end(key, job)


def _end(key: str, job: _Job) -> None:
    """Remove the input files of an ended job, and the result files if it failed; start others."""
    with _LOCK:
        _remove(job.copies)
        job.arguments, job.process, job.stop = (), None, None
        if not job.status.done:
            _remove(job.files)
        if job.abandoned:
            forget(key)
        _begin_next()


def _exit_message(code: int | None) -> str:
    reason = (
        "it ran out of memory or was killed"
        if code is not None and code < 0
        else f"exit code {code}"
    )
    return f"The job ended without a result ({reason}). Make the request smaller, or try again."


def _remove(files: Iterable[Path]) -> None:
    for file in files:
        with suppress(OSError):
            file.unlink(missing_ok=True)
