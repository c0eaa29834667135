"""The worker's side: a process that steps back before the pages, tells its progress, and never
writes to the log.
"""

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

from engine._workers import PRELOADED
from engine.errors import EngineError

# fork would copy a server that has threads; a fork server is clean, and has imported what else
# every worker would
_FORKSERVER = "forkserver" in multiprocessing.get_all_start_methods()
_CONTEXT = (
    multiprocessing.get_context("forkserver")
    if _FORKSERVER
    else multiprocessing.get_context("spawn")
)
_CONTEXT.set_forkserver_preload(["pages.parts.jobs.tasks", "pandas", *PRELOADED])
POLITE = 10  # how far workers step back before the pages, which people wait for
_EVERY = 0.1  # seconds between two progress messages
# A workload of a hundred thousand groups is a million small objects, none of them garbage: looking
# through them for garbage as often as Python does by itself took half of the time of a page that
# draws such a workload first.
_COLLECT = 100_000, 20, 20


@cache
def warm() -> None:
    """Make the server ready, once: with its fork server, so that the first job need not wait for
    imports.
    """
    gc.set_threshold(*_COLLECT)
    if _FORKSERVER:
        threading.Thread(target=forkserver.ensure_running, daemon=True).start()


def launch(
    function: Callable[..., Any], arguments: tuple[Any, ...], *, outlives: bool
) -> tuple[BaseProcess, Event, Connection]:
    """Start a worker; return it, the event that asks it to stop, and the end of the pipe that hears
    it.

    `outlives` says that the server waits for it when it ends, instead of ending it.
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
    """Run in the worker: call the function and send what comes of it."""
    # a traceback could carry values of records, or names of files, into the server's log
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    if hasattr(os, "nice"):
        os.nice(POLITE)
    last = 0.0

    def progress(fraction: float, text: str) -> bool:
        nonlocal last
        now = time.monotonic()
        if now - last >= _EVERY:
            last = now
            sender.send(("progress", fraction, text))
        return not stop.is_set()

    finish(function, arguments, progress, lambda *message: sender.send(message))


def finish(
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
    except OSError as error:
        tell(
            "failed", f"A file could not be read or written: {error.strerror or 'unknown reason'}."
        )
    except MemoryError:
        tell("failed", "It needs more memory than there is. Make the request smaller.")
    else:
        tell("done", result)
