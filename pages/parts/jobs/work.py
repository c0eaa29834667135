"""Work in processes of its own: progress while it runs, a cancel that ends it, one job per key for all sessions.

This module and `tasks` are imported by the workers; neither knows Streamlit.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from typing import Any

from engine.errors import EngineError

# fork would copy a server that has threads; a fork server is clean, and has the engine imported before it is needed
_FORKSERVER = "forkserver" in multiprocessing.get_all_start_methods()
_CONTEXT = multiprocessing.get_context("forkserver") if _FORKSERVER else multiprocessing.get_context("spawn")
_CONTEXT.set_forkserver_preload(["pages.parts.jobs.tasks"])
_JOBS: dict[str, Job] = {}
_LOCK = threading.Lock()
_EVERY = 0.1  # seconds between two progress messages


class Job:
    """One piece of work.

    `state` is "running", "done", "failed", "cancelled" or "died"; `result` is there when done, `error` in words
    otherwise.  To cancel is to ask: the work stops when it next tells its progress.
    """

    def __init__(self) -> None:
        self.state, self.fraction, self.text = "running", 0.0, "Starting"
        self.result: Any = None
        self.error = ""
        self.started = time.monotonic()
        self._stop: Event | threading.Event = threading.Event()

    @property
    def running(self) -> bool:
        """Whether the work goes on."""
        return self.state == "running"

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started

    def cancel(self) -> None:
        """Ask the work to stop."""
        self._stop.set()

    def _hear(self, kind: str, *content: Any) -> None:
        """Take one message of the work."""
        if kind == "progress":
            self.fraction, self.text = content
        elif kind == "done":
            self.result, self.state = content[0], "done"
        else:
            self.error, self.state = content[0], "cancelled" if self._stop.is_set() else "failed"


class ProcessJob(Job):
    """Work in a process of its own.

    One that spends budget is never killed: it is asked to stop, and stops only while nothing was spent.
    """

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...], *, spends: bool) -> None:
        super().__init__()
        self.spends = spends
        self._stop = stop = _CONTEXT.Event()
        receiver, sender = _CONTEXT.Pipe(duplex=False)
        self._process = _CONTEXT.Process(
            target=_run, args=(sender, stop, function, arguments, spends), daemon=not spends
        )
        self._process.start()
        sender.close()
        threading.Thread(target=self._listen, args=(receiver,), daemon=True).start()

    def cancel(self) -> None:
        """Stop the work: at once when it spends nothing, before the spend otherwise."""
        super().cancel()
        if not self.spends and self._process.is_alive():
            self._process.terminate()

    def _listen(self, receiver: Connection) -> None:
        try:
            while True:
                self._hear(*receiver.recv())
        except (EOFError, OSError):
            self._process.join()
        if self.running:
            stopped = self._stop.is_set()
            self.error = "It was stopped; nothing was changed." if stopped else _end(self._process.exitcode)
            self.state = "cancelled" if stopped else "died"


class GentleJob(Job):
    """Work that runs processes itself and only waits for them: in a thread, asked to stop and never killed.

    A killed parent would leave its processes behind; asked, the work ends them.  When the server ends, they end as its
    own daemonic children.
    """

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        super().__init__()
        threading.Thread(target=self._work, args=(function, arguments), daemon=True).start()

    def _work(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        def progress(fraction: float, text: str) -> bool:
            self._hear("progress", fraction, text)
            return not self._stop.is_set()

        try:
            _finish(function, arguments, progress, self._hear)
        finally:
            if self.running:  # an error nobody foresaw: its text could hold anything, and is not shown
                self.error, self.state = "The work ended without a result. Try again.", "died"


@cache
def warm() -> None:
    """Start the fork server, once, so that the first job need not wait for imports."""
    if _FORKSERVER:
        threading.Thread(target=forkserver.ensure_running, daemon=True).start()


def start(key: str, function: Callable[..., Any], *arguments: Any, spends: bool = False, gentle: bool = False) -> Job:
    """Start the work of this key, or return it when it runs or is done already, in whatever session that was."""
    with _LOCK:
        if not is_there(key):
            made = GentleJob(function, arguments) if gentle else ProcessJob(function, arguments, spends=spends)
            _JOBS[key] = made
        return _JOBS[key]


def find(key: str) -> Job | None:
    """The job of this key, if it was started and not forgotten."""
    return _JOBS.get(key)


def is_there(key: str) -> bool:
    """Whether the work of this key runs or is done."""
    found = _JOBS.get(key)
    return found is not None and found.state in ("running", "done")


def forget(key: str) -> None:
    """Drop a job that has ended, with its result."""
    with _LOCK:
        if key in _JOBS and not _JOBS[key].running:
            del _JOBS[key]


def _end(code: int | None) -> str:
    killed = "it ran out of memory or was killed" if code is not None and code < 0 else f"exit code {code}"
    return f"The work ended without a result ({killed}). Make the request smaller, or try again."


def _run(
    sender: Connection, stop: Event, function: Callable[..., Any], arguments: tuple[Any, ...], quiet: bool
) -> None:
    """Run in the worker: call the function and send what comes of it."""
    if quiet:
        # a traceback could carry values of records into the server's log
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    last = 0.0

    def progress(fraction: float, text: str) -> bool:
        nonlocal last
        now = time.monotonic()
        if now - last >= _EVERY:
            last = now
            sender.send(("progress", fraction, text))
        return not stop.is_set()

    _finish(function, arguments, progress, lambda *message: sender.send(message))


def _finish(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    progress: Callable[[float, str], bool],
    tell: Callable[..., None],
) -> None:
    """Call the function and tell what comes of it."""
    try:
        result = function(*arguments, progress=progress)
    except EngineError as error:
        tell("failed", str(error))
    except MemoryError:
        tell("failed", "It needs more memory than there is. Make the request smaller.")
    else:
        tell("done", result)
