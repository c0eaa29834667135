"""Worker process: low priority, progress messages, no log output."""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from typing import Any

from engine._workers import FORK_ENVIRONMENT, PRELOADED
from engine.errors import EngineError

# These settings must be set before the fork server starts, which passes them on to the workers.
for _name, _value in FORK_ENVIRONMENT.items():
    os.environ.setdefault(_name, _value)
# Forking the server itself is unsafe, because it has threads. The fork server imports once what all
# workers need.
_FORKSERVER = "forkserver" in multiprocessing.get_all_start_methods()
_CONTEXT = (
    multiprocessing.get_context("forkserver")
    if _FORKSERVER
    else multiprocessing.get_context("spawn")
)
_CONTEXT.set_forkserver_preload(["pages.parts.jobs.tasks", "pandas", *PRELOADED])
NICENESS = 10  # pages have priority over workers
_PROGRESS_INTERVAL_S = 0.1
# A workload of 100,000 groups has a million small objects. With Python's default thresholds,
# garbage collection takes half of the time of the first page that draws it.
_GC_THRESHOLDS = 100_000, 20, 20


@cache
def warm() -> None:
    """Start the fork server in advance, so that the first job does not wait for its imports.

    Also make garbage collection in this process less frequent.
    """
    gc.set_threshold(*_GC_THRESHOLDS)
    if _FORKSERVER:
        threading.Thread(target=forkserver.ensure_running, daemon=True).start()


def launch(
    function: Callable[..., Any], arguments: tuple[Any, ...], *, outlives: bool
) -> tuple[BaseProcess, Event, Connection]:
    """Start a worker process that calls a function.

    Parameters
    ----------
    outlives : when the server ends, it waits for the worker instead of killing it.

    Returns
    -------
    The process, an event that cancels the call when it is set, and the receiving end of the
    pipe with the messages of the process.
    """
    stop = _CONTEXT.Event()
    receiver, sender = _CONTEXT.Pipe(duplex=False)
    process = _CONTEXT.Process(
        target=_run, args=(sender, stop, function, arguments), daemon=not outlives
    )
    process.start()
    sender.close()
    return process, stop, receiver


def _run(
    sender: Connection, stop: Event, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    """Call the function in the worker process and send progress and result through the pipe."""
    # Tracebacks are not printed, because they may contain values of records or file names.
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    if hasattr(os, "nice"):
        os.nice(NICENESS)
    last = 0.0

    def progress(fraction: float, text: str) -> bool:
        nonlocal last
        now = time.monotonic()
        if now - last >= _PROGRESS_INTERVAL_S:
            last = now
            sender.send(("progress", fraction, text))
        return not stop.is_set()

    finish(function, arguments, progress, lambda *message: sender.send(message))


def finish(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    progress: Callable[[float, str], bool],
    send: Callable[..., None],
) -> None:
    """Call the function; then call ``send("done", result)`` or ``send("failed", message)``.

    An unexpected exception is raised again, without a message to ``send``.
    """
    try:
        result = function(*arguments, progress=progress)
    except EngineError as error:
        send("failed", str(error))
    except OSError as error:
        send(
            "failed", f"A file could not be read or written: {error.strerror or 'unknown reason'}."
        )
    except MemoryError:
        send("failed", "Not enough memory. Make the request smaller.")
    else:
        send("done", result)
