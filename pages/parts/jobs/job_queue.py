"""Job queue: one job per key for all sessions, one worker per core.

The sessions that wait for a job are its holders. When the last holder leaves, the job is stopped,
as far as `start` allows, and is removed with its files at its end. The status of a job is one
immutable value, so that the state "done" and the result are always set together. This module does
not import Streamlit, because workers import it.
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
RECONNECT_S = 20.0  # time in which a reloaded page can become a holder of its jobs again
STOPPED = "Nothing was changed."


@dataclass(kw_only=True, eq=False)
class _Job:
    """A function call in the queue, with its status; for most fields see `start`.

    Other modules receive only the status of a moment, because a reference to a job would also keep
    a later result in memory.
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
    def occupied_workers(self) -> int:
        """Number of workers that the job occupies: all if it starts processes itself, else 1."""
        return WORKERS if self.gentle else 1

    def update(self, kind: str, *content: Any) -> None:
        """Update the status by a message of the worker.

        Parameters
        ----------
        kind : "progress", "done" or "failed".
        content : fraction and text for "progress", the result for "done", a message for "failed".
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
    """Start or queue a job, unless a job of this key is waiting, running or done.

    Return the status of the job of this key. If there was one already, the files ``copies`` and
    ``files`` of this call are not needed and are removed.

    Parameters
    ----------
    key : identity of the job; sessions that give the same key share one job.
    function, arguments : the worker calls ``function(*arguments, progress=callback)``.
    holder : session that waits for the job; empty for none.
    spends : the job spends budget. It goes to the front of the queue, is never killed, and can be
        cancelled only before it spends.
    gentle : the job starts processes itself. It therefore runs in a thread of the server, and is
        cancelled by its progress callback, so that it can end these processes.
    stays : the job continues after its last holder has left, for example because it writes a file.
    copies : input files, removed when the job ends.
    files : files of the result, removed with the job, or when it ends without a result.
    """
    with _LOCK:
        if is_there(key):
            _remove((*copies, *files))
        else:
            forget(key)
            _JOBS[key] = _Job(
                status=Status(state="waiting", spends=spends, started=time.monotonic()),
                function=function,
                arguments=arguments,
                gentle=gentle,
                stays=stays,
                copies=tuple(copies),
                files=tuple(files),
            )
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
    """Return the number of waiting jobs that start before the job of this key."""
    with _LOCK:
        waiting = _queue()
        return waiting.index(key) if key in waiting else 0


def cancel(key: str) -> None:
    """Cancel a waiting or running job.

    A job that spends budget is not killed. It ends by itself if it has not spent yet.
    """
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
    """Remove a job with its result and files, unless it is waiting or running."""
    with _LOCK:
        if key in _JOBS and not _JOBS[key].status.running:
            _remove(_JOBS.pop(key).files)


def hold(key: str, holder: str) -> None:
    """Add a session to the holders of a job, so that the job remains when other holders leave."""
    with _LOCK:
        if holder and key in _JOBS:
            _JOBS[key].holders.add(holder)
            _JOBS[key].abandoned = False


def release_job(key: str, holder: str) -> None:
    """Remove a session from the holders of a job; after the last holder, stop and remove the job.

    A job that was started with ``stays`` is not stopped, and is removed when it ends.
    """
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
    """Release all jobs of an ended session, `RECONNECT_S` seconds later.

    After a reload, the new session of the page can become a holder of the jobs in the meantime.
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
    """Start waiting jobs in the order of the queue until one needs more workers than are free.

    If no worker is busy, the first job is started in any case.
    """
    for key in _queue():
        job = _JOBS[key]
        # ``stop`` is None before a job starts and after it has ended
        busy = sum(other.occupied_workers for other in _JOBS.values() if other.stop is not None)
        if busy and busy + job.occupied_workers > WORKERS:
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
        # The system has no process or memory left, or the fork server was killed.
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
    """Call the function of a job in this thread, not in a worker; for jobs with ``gentle``."""

    def progress(fraction: float, text: str) -> bool:
        job.update("progress", fraction, text)
        return job.stop is not None and not job.stop.is_set()

    try:
        finish(job.function, job.arguments, progress, job.update)
    finally:
        if job.status.running:
            # The text of an unexpected exception is not shown: it may contain private values.
            message = "The job ended without a result. Try again."
            job.status = replace(job.status, state="died", error=message)
        _end(key, job)


def _end(key: str, job: _Job) -> None:
    """Clean up after a job has ended, and start the next waiting jobs.

    The input files are removed, and the result files too unless the job is done.
    """
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
