"""The life of the server: what it sweeps at its start, the address it prints, sessions that end
while nobody asks.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import threading
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from streamlit import config

from pages.parts.jobs import private_tempdir
from pages.parts.shell import streamlit_internals
from pages.parts.shell.auth_middleware import LOOPBACK

EVERY = 5.0  # seconds between two looks for sessions whose page is gone
M_ARENA_MAX, M_MMAP_THRESHOLD = -8, -3  # of glibc's malloc.h
# as many as cores are asked for; by itself, glibc keeps what threads freed in eight pools a core
ARENAS = 2
LARGE = (
    2**18
    # bytes from which on an array goes back to the machine as soon as it is freed; glibc would raise it
)


def lifespan(token: str) -> Callable[[Any], AbstractAsyncContextManager[None]]:
    """What `st.App` runs around the life of the server."""

    @asynccontextmanager
    async def life(_: Any) -> AsyncIterator[None]:
        keep_values_out_of_logs()
        streamlit_internals.skip_timer_reruns_of_running_scripts()
        allocator("mallopt", M_ARENA_MAX, ARENAS)
        allocator("mallopt", M_MMAP_THRESHOLD, LARGE)
        private_tempdir.sweep()
        gc.collect()
        # programs stay as they are: looking through them each time takes as long as drawing a page
        gc.freeze()
        ending = asyncio.create_task(_end_sessions())
        names = [name for name in config.get_option("server.allowedHosts") if name not in LOOPBACK]
        scheme = "https" if names or config.get_option("server.sslCertFile") else "http"
        host = names[0] if names else f"{LOOPBACK[0]}:{config.get_option('server.port')}"
        print(
            f"\n  Open the workbench at {scheme}://{host}/?token={token}\n  Keep this address to"
            " yourself.\n",
            flush=True,
        )
        yield
        ending.cancel()

    return life


def keep_values_out_of_logs() -> None:
    """From now on, log of an exception its kind and the place in the program: its text may hold
    values or paths.
    """
    make = logging.getLogRecordFactory()

    def quiet(*args: Any, **named: Any) -> logging.LogRecord:
        record = make(*args, **named)
        kind, _, trace = record.exc_info or (None, None, None)
        if kind is not None:
            frames = traceback.extract_tb(trace)
            place = (
                f" at {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""
            )
            record.msg, record.args = f"{record.getMessage()} ({kind.__name__}{place})", ()
            record.exc_info = record.exc_text = None
        return record

    logging.setLogRecordFactory(quiet)
    threading.excepthook = lambda told: logging.getLogger(__name__).error(
        "A thread ended",
        exc_info=(told.exc_type, told.exc_value or told.exc_type(), told.exc_traceback),
    )


def allocator(name: str, *args: int) -> bool:
    """Call one of glibc's own functions of its allocator; False where there is none, as on a Mac,
    or it failed.
    """
    try:
        return bool(getattr(ctypes.CDLL(None), name)(*args))
    except (AttributeError, OSError, TypeError):
        return False


def release_memory() -> None:
    """Collect what nobody can reach any more, and give its memory back to the machine."""
    gc.collect()
    # tables that are drawn come from an allocator of its own
    pa.default_memory_pool().release_unused()
    allocator("malloc_trim", 0)


async def _end_sessions() -> None:
    """End expired sessions and return their memory to the system.

    Collecting garbage after every click, as Streamlit would do otherwise, takes longer than
    drawing most pages.
    """
    before = 0
    while True:
        await asyncio.sleep(EVERY)
        now = streamlit_internals.end_expired_sessions()
        if now < before:
            release_memory()
        before = now
