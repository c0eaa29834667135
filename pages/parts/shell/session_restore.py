"""Where a person was: ledgers opened before, and for every page in a browser its ledger, dataset,
tab and release.

It stands in the user's settings folder, readable by its owner only, so that a reload or a restart
finds it; never in an address, which people hand on.  An address holds a name of no meaning, which
says something only to the browser that it was given to.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import platformdirs
import streamlit as st

from engine._atomic_io import atomic_file
from pages.parts.shell.auth_middleware import BROWSER

VARIABLE, NAME = "DP_WORKBENCH_SETTINGS", "at"
SESSION_TEXTS = (
    "ledger_path",
    "dataset",
    "step",
    "paid",
    "coarse_step",
    "coarse_kind",
    "coarse_chain",
)  # texts of the session
CHOSEN = tuple(
    f"coarse_ways_{most}_{few}" for most in (2, 3) for few in (True, False)
)  # and lists of whole numbers
BROWSERS, PAGES, LEDGERS = 50, 100, 10  # how many are remembered, and how many of each browser
_LOCK = threading.Lock()


def browser() -> str:
    """Name of the browser of this session; empty where there is none."""
    cookie = st.context.cookies.get(BROWSER)
    return hashlib.sha256(cookie.encode()).hexdigest()[:32] if isinstance(cookie, str) else ""


def restore() -> None:
    """When a session begins, put back what the page with this address showed, else the ledger
    opened last.
    """
    if st.session_state.setdefault("placed", False) or not browser():
        return
    st.session_state["placed"] = True
    entry = _read().get(browser(), {})
    name = st.query_params.get(NAME, "")
    page = entry.get("pages", {}).get(name)
    if page is None:
        page = {"ledger_path": next(iter(ledgers()), "")}
    else:
        st.session_state["place_name"] = name
    for name in (*SESSION_TEXTS, *CHOSEN):
        if page.get(name) and _fits(name, page[name]):
            st.session_state.setdefault(name, page[name])


def keep() -> None:
    """Remember where this page is, when that has changed."""
    if (name := st.session_state.get("place_name")) and st.query_params.get(NAME) != name:
        st.query_params[NAME] = name
    now = {name: st.session_state.get(name) for name in (*SESSION_TEXTS, *CHOSEN)}
    now = {name: value for name, value in now.items() if _fits(name, value)}
    # a widget that is not on this page forgets its value, not where the person was
    now = st.session_state.get("place", {}) | now
    if not browser() or not now.get("ledger_path") or now == st.session_state.get("place"):
        return
    st.session_state["place"] = now
    name = st.session_state.setdefault("place_name", secrets.token_urlsafe(9))
    st.query_params[NAME] = name
    with _LOCK:
        entries = _read()
        mine = entries.pop(browser(), {"pages": {}, "ledgers": []})
        mine["pages"].pop(name, None)
        mine["pages"] = dict([*mine["pages"].items(), (name, now)][-PAGES:])
        mine["used"] = time.time()
        _write(dict([*entries.items(), (browser(), mine)][-BROWSERS:]))


def _fits(name: str, value: object) -> bool:
    if name in CHOSEN:
        return isinstance(value, list) and all(ways in (1, 2, 3) for ways in value)
    return isinstance(value, str)


def remember_ledger(ledger: str) -> None:
    """Remember a ledger that this browser has opened."""
    if not browser() or st.session_state.get("opened") == ledger:
        return
    st.session_state["opened"] = ledger
    with _LOCK:
        entries = _read()
        mine = entries.pop(browser(), {"pages": {}, "ledgers": []})
        mine["ledgers"] = [ledger, *(other for other in mine["ledgers"] if other != ledger)][
            :LEDGERS
        ]
        _write(dict([*entries.items(), (browser(), mine)][-BROWSERS:]))


def ledgers() -> list[str]:
    """Ledgers that this browser has opened and that are there, the last one first."""
    return [path for path in _read().get(browser(), {}).get("ledgers", []) if Path(path).exists()]


def folder() -> Path:
    """The user's settings folder."""
    return Path(os.environ.get(VARIABLE) or platformdirs.user_config_dir("dp-query-workbench"))


def _file() -> Path:
    return folder() / "places.json"


def _read() -> dict[str, Any]:
    """What is remembered, by browser; nothing when it cannot be read."""
    with suppress(OSError, ValueError, RecursionError):
        entries = json.loads(_file().read_text(encoding="utf-8"))
        if isinstance(entries, dict):
            return entries
    return {}


def _write(entries: dict[str, Any]) -> None:
    """Remember it; a settings folder that cannot be written is no reason to stop."""
    with suppress(OSError):
        _file().parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with atomic_file(_file(), overwrite=True) as file:
            file.write(json.dumps(entries).encode())
