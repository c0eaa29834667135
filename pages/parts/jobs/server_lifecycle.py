"""Server start and end: cleanup, printed address, expired sessions, memory."""

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

SESSION_CHECK_S = 5.0  # interval between checks for expired sessions
M_ARENA_MAX, M_MMAP_THRESHOLD = -8, -3  # of glibc's malloc.h
MALLOC_ARENAS = 2  # with glibc's default of eight per core, freed memory is not returned
MMAP_BYTES = 2**18  # memory of larger arrays is returned to the system as soon as it is freed


def lifespan(token: str) -> Callable[[Any], AbstractAsyncContextManager[None]]:
    """Return a function that makes the context manager within which `st.App` runs the server.

    ``token`` is the access token, a secret part of the address that is printed.
    """

    @asynccontextmanager
    async def life(_: Any) -> AsyncIterator[None]:
        keep_values_out_of_logs()
        streamlit_internals.skip_timer_reruns_of_running_scripts()
        streamlit_internals.complete_callbacks()
        # These two settings return freed memory to the system.
        allocator("mallopt", M_ARENA_MAX, MALLOC_ARENAS)
        allocator("mallopt", M_MMAP_THRESHOLD, MMAP_BYTES)
        private_tempdir.sweep()
        gc.collect()
        # Later garbage collections skip the objects that exist now, such as all loaded modules.
        # With these objects a collection would take as long as drawing a page.
        gc.freeze()
        cleanup_task = asyncio.create_task(_end_sessions())
        names = [name for name in config.get_option("server.allowedHosts") if name not in LOOPBACK]
        scheme = "https" if names or config.get_option("server.sslCertFile") else "http"
        host = names[0] if names else f"{LOOPBACK[0]}:{config.get_option('server.port')}"
        print(
            f"\n  Open the app at {scheme}://{host}/?token={token}\n  Keep this address private.\n",
            flush=True,
        )
        yield
        cleanup_task.cancel()

    return life


def keep_values_out_of_logs() -> None:
    """Log only the type and the line of exceptions; their text may contain values or paths."""
    create_record = logging.getLogRecordFactory()

    def redact(*args: Any, **named: Any) -> logging.LogRecord:
        record = create_record(*args, **named)
        kind, _, trace = record.exc_info or (None, None, None)
        if kind is not None:
            frames = traceback.extract_tb(trace)
            place = (
                f" at {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""
            )
            record.msg, record.args = f"{record.getMessage()} ({kind.__name__}{place})", ()
            record.exc_info = record.exc_text = None
        return record

    logging.setLogRecordFactory(redact)
    threading.excepthook = lambda error: logging.getLogger(__name__).error(
        "A thread ended",
        exc_info=(error.exc_type, error.exc_value or error.exc_type(), error.exc_traceback),
    )


def allocator(name: str, *args: int) -> bool:
    """Call a memory function of glibc; return whether it exists and its result is not 0."""
    try:
        return bool(getattr(ctypes.CDLL(None), name)(*args))
    except (AttributeError, OSError, TypeError):
        return False


def release_memory() -> None:
    """Collect garbage and return free memory to the system."""
    gc.collect()
    pa.default_memory_pool().release_unused()  # Arrow has a separate allocator
    allocator("malloc_trim", 0)


async def _end_sessions() -> None:
    """Every `SESSION_CHECK_S` seconds, end expired sessions and return their memory to the system.

    Streamlit's own garbage collection after every click is switched off, because it takes longer
    than drawing most pages.
    """
    previous_sessions = 0
    while True:
        await asyncio.sleep(SESSION_CHECK_S)
        sessions = streamlit_internals.end_expired_sessions()
        if sessions < previous_sessions:
            release_memory()
        previous_sessions = sessions
