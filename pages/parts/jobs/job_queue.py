"""Work in processes of its own: one job a key for all sessions, as many workers as cores, the
others in a queue.

What is known of a job is one value, so that a result is there whenever the job says that it is
done.  A job belongs to the holders that asked for it: when all of them have left, it is stopped and
forgotten with its files.  This module and `tasks` are imported by the workers; neither knows
Streamlit.
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
GRACE = (
    20.0  # seconds for a page that lost its line, or was loaded again, to come back for its jobs
)
STOPPED = "It was stopped; nothing was changed."


@dataclass(kw_only=True, eq=False)
class _Job:
    """One piece of work, known to this module alone: whoever kept it would keep its result."""

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
        """Workers that it takes: work that runs processes itself takes one a core."""
        return WORKERS if self.gentle else 1

    def hear(self, kind: str, *content: Any) -> None:
        """Take one message of the work."""
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
    """Start the work of this key, or wait for a worker; one that goes on or is done already is left
    as it is.

    Parameters
    ----------
    spends : budget; such work goes before all that waits, is never killed, and stops only while
        nothing was spent.
    gentle : it runs processes itself and only waits for them, in a thread; asked to stop, it ends
        them.
    stays : it goes on when all of its holders have left, as for a file that somebody asked for.
    copies : files for the work alone, removed when it ends, however it ends.
    files : files that belong to the result, removed when the job is forgotten.
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
    """What is known of the job of this key, if it was started and not forgotten."""
    job = _JOBS.get(key)
    return job.status if job is not None else None


def is_there(key: str) -> bool:
    """Whether the work of this key waits, runs or is done."""
    job = find(key)
    return job is not None and (job.running or job.done)


def before(key: str) -> int:
    """How many jobs stand in the queue before this one."""
    with _LOCK:
        waiting = _queue()
        return waiting.index(key) if key in waiting else 0


def cancel(key: str) -> None:
    """Stop the work: at once when it spends nothing, before the spend otherwise."""
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
    """Drop a job that has ended, with its result and its files."""
    with _LOCK:
        if key in _JOBS and not _JOBS[key].status.running:
            _remove(_JOBS.pop(key).files)


def hold(key: str, holder: str) -> None:
    """Note that somebody wants this job."""
    with _LOCK:
        if holder and key in _JOBS:
            _JOBS[key].holders.add(holder)
            _JOBS[key].abandoned = False


def release_job(key: str, holder: str) -> None:
    """Stop and forget the job of this key, unless somebody else holds it."""
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
    """Let go of all jobs of a holder, a moment later, so that a page that comes back finds them."""

    def left() -> None:
        for key in list(_JOBS):
            release_job(key, holder)

    timer = threading.Timer(GRACE, left)
    timer.daemon = True
    timer.start()


def _queue() -> list[str]:
    """Keys of the jobs that wait, in the order of their turns: those that spend first."""
    waiting = [key for key, job in _JOBS.items() if job.status.state == "waiting"]
    return sorted(waiting, key=lambda key: not _JOBS[key].status.spends)


def _begin_next() -> None:
    """Start what waits while there are workers; whoever is first is never passed by smaller work."""
    for key in _queue():
        job = _JOBS[key]
        busy = sum(
            other.share for other in _JOBS.values() if other.stop is not None
        )  # a worker ends after its work
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
        except (
            OSError,
            EOFError,
        ):  # no process or no memory is left, or the fork server was killed just now
            words = "A worker could not be started. Close other programs, or try again."
            job.status = replace(job.status, state="died", error=words)
            _end(key, job)  # which goes on with the queue
            return
        threading.Thread(target=_listen, args=(key, job, receiver), daemon=True).start()


def _listen(key: str, job: _Job, receiver: Connection) -> None:
    try:
        with receiver, suppress(EOFError, OSError):
            while True:
                job.hear(*receiver.recv())
    finally:
        job.process.join()
        if job.status.running:
            stopped, code = job.stop is not None and job.stop.is_set(), job.process.exitcode
            error = STOPPED if stopped else _last_words(code)
            job.status = replace(job.status, state="cancelled" if stopped else "died", error=error)
        _end(key, job)


def _run_here(key: str, job: _Job) -> None:
    def progress(fraction: float, text: str) -> bool:
        job.hear("progress", fraction, text)
        return job.stop is not None and not job.stop.is_set()

    try:
        finish(job.function, job.arguments, progress, job.hear)
    finally:
        if (
            job.status.running
        ):  # an error nobody foresaw: its text could hold anything, and is not shown
            words = "The work ended without a result. Try again."
            job.status = replace(job.status, state="died", error=words)
        _end(key, job)


def _end(key: str, job: _Job) -> None:
    """Clear up after a job and give its worker to the next one."""
    with _LOCK:
        _remove(job.copies)
        job.arguments, job.process, job.stop = (), None, None
        if not job.status.done:
            _remove(job.files)
        if job.abandoned:
            forget(key)
        _begin_next()


def _last_words(code: int | None) -> str:
    killed = (
        "it ran out of memory or was killed"
        if code is not None and code < 0
        else f"exit code {code}"
    )
    return f"The work ended without a result ({killed}). Make the request smaller, or try again."


def _remove(files: Iterable[Path]) -> None:
    for file in files:
        with suppress(OSError):
            file.unlink(missing_ok=True)
