"""The life of the server: what it sweeps at its start, the address it prints, sessions that end while nobody asks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from streamlit import config, runtime

from pages.parts.jobs import private
from pages.parts.shell.guard import LOOPBACK

EVERY = 5.0  # seconds between two looks for sessions whose page is gone


def lifespan(token: str) -> Callable[[Any], AbstractAsyncContextManager[None]]:
    """What `st.App` runs around the life of the server."""

    @asynccontextmanager
    async def life(_: Any) -> AsyncIterator[None]:
        private.sweep()
        ending = asyncio.create_task(_end_sessions())
        names = [name for name in config.get_option("server.allowedHosts") if name not in LOOPBACK]
        scheme = "https" if names or config.get_option("server.sslCertFile") else "http"
        host = names[0] if names else f"{LOOPBACK[0]}:{config.get_option('server.port')}"
        print(
            f"\n  Open the workbench at {scheme}://{host}/?token={token}\n  Keep this address to yourself.\n",
            flush=True,
        )
        yield
        ending.cancel()

    return life


async def _end_sessions() -> None:
    """End sessions whose time is over; by itself, Streamlit looks only when another page is closed."""
    stored = getattr(getattr(runtime.get_instance(), "_session_mgr", None), "_session_storage", None)
    while hasattr(stored, "_cache"):
        await asyncio.sleep(EVERY)
        stored._cache.expire()
