"""Session state restored after a reload: ledger, dataset, file, step, result, incomplete columns.

The state is stored in the settings folder of the user, readable by its owner only, and not in the
address, which people share. An address contains a random name of the stored state, which only the
same browser can use.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Collection, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import platformdirs
import streamlit as st

from engine._atomic_io import atomic_file
from engine.workload.schema_tables import ROW_KEYS
from pages.parts.shell.auth_middleware import BROWSER
from pages.parts.shell.figure_view import OPEN
from pages.parts.shell.history import REPORT_TOKEN

VARIABLE, NAME = "DP_WORKBENCH_SETTINGS", "at"
# session state key of the request that `permalink.keep` does not write into the address
HIDDEN_PLAN = "hidden_plan"
# Keys of the session state whose values are texts.
SESSION_TEXTS = (
    HIDDEN_PLAN,
    "ledger_path",
    "dataset",
    "dataset_schema",
    "records_path",
    "step",
    "release_open",
    "release_request",
    "release_started",
    "release_shown",
    "release_result_fit",
    "coarse_open",
    "coarse_request",
    "coarse_started",
    "coarse_step",
    "coarse_kind",
    "coarse_chain",
    "coarse_level_attribute",
    "previewed_request",
    "released_request",
    REPORT_TOKEN,
)
# Keys of the session state whose values are numbers.
SESSION_NUMBERS = (
    "rows",
    "seed",
    "release_result_least",
    "release_result_size",
    "scale_records",
    "scale_publishable",
    "scale_doubtful",
    "coarse_share",
    "coarse_snr",
    "coarse_sigmas",
    "coarse_rows",
    "coarse_seed",
)
# Keys of the session state whose values are True or False.
SESSION_FLAGS = ("release_result_whole", "release_result_simulate")
# Keys of the session state that begin with one of `LIST_STARTS` have lists of integers as values,
# keys that begin with one of `TEXT_STARTS` have texts.
LIST_STARTS, TEXT_STARTS = ("coarse_ways_", "coarse_levels_"), ("coarse_primary_",)
MAX_LIST_ENTRY = 20  # largest integer in these lists
# Keys of the session state whose values are lists of incomplete rows of the schema grid.
SESSION_ROWS = ("schema_incomplete",)
# Keys of the session state whose values are lists of the names of all rows of the schema grid.
SESSION_NAMES = ("schema_names",)
KEYS = (*SESSION_TEXTS, *SESSION_NUMBERS, *SESSION_FLAGS, *SESSION_ROWS, *SESSION_NAMES)
# The state is stored for the first time when one of these keys has a value.
STARTED = (HIDDEN_PLAN, "ledger_path", "step", "coarse_step", *SESSION_ROWS)
# Opening another project removes the values with these keys from the session state, and all values
# whose key begins with one of `PROJECT_STARTS`.
PROJECT_KEYS = (
    *("dataset", "dataset_schema", "dataset_status", "step", "rows", "rows_default", "seed"),
    *("rows_are", "person_how", "person_column", "number_column", OPEN),
)
PROJECT_STARTS = ("coarse_", "release_", "rehearsal_", "records_", "scale_")
CLEARED = "place_cleared"  # session key: True until `keep` has stored a state with fewer values
MAX_ROWS = 2_000  # entries of a stored list
MAX_BROWSERS, MAX_PAGES, MAX_LEDGERS = 50, 100, 10  # pages and ledgers per browser
_LOCK = threading.Lock()


def browser() -> str:
    """Return a digest that identifies the browser of this session; empty without a cookie."""
    cookie = st.context.cookies.get(BROWSER)
    return hashlib.sha256(cookie.encode()).hexdigest()[:32] if isinstance(cookie, str) else ""


def restore() -> None:
    """When a session starts, restore the state that its address names.

    Without a stored state, restore only the path of the ledger that this browser opened last.
    """
    if st.session_state.setdefault("session_restored", False) or not browser():
        return
    st.session_state["session_restored"] = True
    entry = _read().get(browser(), {})
    name = st.query_params.get(NAME, "")
    stored = entry.get("pages", {}).get(name)
    if stored is None:
        stored = {"ledger_path": next(iter(ledgers()), "")}
    else:
        st.session_state["stored_state_name"] = name
        st.session_state["stored_state"] = {
            k: value for k, value in stored.items() if _fits(k, value)
        }
        # A duplicated browser tab has the same address. If one of the tabs changes its state, the
        # new state gets a new name, so that the other tab still restores its own.
        st.session_state["stored_state_is_shared"] = True
    for key, value in stored.items():
        # A number 0 is restored. An empty text or list means that nothing was chosen.
        if (value or key in SESSION_NUMBERS) and _fits(key, value):
            st.session_state.setdefault(key, value)


def keep() -> None:
    """Store the state of this session if it changed, under a random name in the address."""
    if (name := st.session_state.get("stored_state_name")) and st.query_params.get(NAME) != name:
        st.query_params[NAME] = name
    values = {str(key): value for key, value in st.session_state.items() if _fits(str(key), value)}
    # Streamlit has dropped the values of widgets on other pages; the values stored earlier remain.
    values = st.session_state.get("stored_state", {}) | values
    is_empty = not any(values.get(key) for key in STARTED)
    if not browser() or (is_empty and "stored_state" not in st.session_state):
        return
    is_cleared = st.session_state.pop(CLEARED, False)
    if values == st.session_state.get("stored_state") and not is_cleared:
        return
    st.session_state["stored_state"] = values
    if st.session_state.pop("stored_state_is_shared", False):
        del st.session_state["stored_state_name"]
    name = st.session_state.setdefault("stored_state_name", secrets.token_urlsafe(9))
    st.query_params[NAME] = name
    _store(name, values)


def _store(name: str, values: dict[str, Any]) -> None:
    """Store the state of a session under its random name, for this browser."""
    with _LOCK:
        entries = _read()
        entry = entries.pop(browser(), {"pages": {}, "ledgers": []})
        entry["pages"].pop(name, None)
        # States and browsers are stored in the order of their last use, so that the limits drop
        # those that were not used for the longest time.
        entry["pages"] = dict([*entry["pages"].items(), (name, values)][-MAX_PAGES:])
        entry["used"] = time.time()
        _write(dict([*entries.items(), (browser(), entry)][-MAX_BROWSERS:]))


def clear_project() -> None:
    """Remove the choices and results of the present project, because another project is opened.

    Removed are the values of the pages Release and Coarse or fine, and the expected record count.
    """
    clear(PROJECT_STARTS, PROJECT_KEYS)


def clear(starts: tuple[str, ...], keys: Collection[str] = ()) -> None:
    """Remove values from the session and from the state that a reload restores.

    Removed are the values whose key is in ``keys`` or begins with one of ``starts``.
    """

    def remove(values: MutableMapping[Any, Any]) -> None:
        for name in [name for name in values if str(name).startswith(starts) or name in keys]:
            del values[name]

    form = st.session_state
    remove(form)
    remove(form.get(OPEN, {}))
    if "stored_state" in form:
        form["stored_state"] = dict(form["stored_state"])
        remove(form["stored_state"])
        form[CLEARED] = True


def _fits(name: str, value: object) -> bool:
    """Return whether a value of the session state can be stored: its key and type are known."""
    if name.startswith(LIST_STARTS):
        return isinstance(value, list) and all(
            isinstance(entry, int) and 0 <= entry <= MAX_LIST_ENTRY for entry in value
        )
    if name in SESSION_NUMBERS:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if name in SESSION_FLAGS:
        return isinstance(value, bool)
    if name in SESSION_ROWS:
        return _is_list_of(_is_row, value)
    if name in SESSION_NAMES:
        return _is_list_of(_is_text, value)
    is_text = name in SESSION_TEXTS or name.startswith(TEXT_STARTS)
    return is_text and _is_text(value)


def _is_list_of(is_entry: Callable[[object], bool], value: object) -> bool:
    """Return whether a value is a list of at most `MAX_ROWS` entries of a kind."""
    return isinstance(value, list) and len(value) <= MAX_ROWS and all(map(is_entry, value))


def _is_row(value: object) -> bool:
    """Return whether a value is a row of the schema grid: a text for each of `ROW_KEYS`."""
    return (
        isinstance(value, dict)
        and set(value) == set(ROW_KEYS)
        and all(map(_is_text, value.values()))
    )


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def remember_ledger(ledger: str) -> None:
    """Store the path of a ledger that this browser has opened, with those of earlier ones.

    Only the last `MAX_LEDGERS` paths, and the last `MAX_BROWSERS` browsers, are kept. Without a
    cookie that identifies the browser, nothing is stored.
    """
    if not browser() or st.session_state.get("opened") == ledger:
        return
    st.session_state["opened"] = ledger
    with _LOCK:
        entries = _read()
        entry = entries.pop(browser(), {"pages": {}, "ledgers": []})
        entry["ledgers"] = [ledger, *(other for other in entry["ledgers"] if other != ledger)][
            :MAX_LEDGERS
        ]
        _write(dict([*entries.items(), (browser(), entry)][-MAX_BROWSERS:]))


def ledgers() -> list[str]:
    """Return the paths of existing ledgers that this browser has opened, the latest first."""
    return [path for path in _read().get(browser(), {}).get("ledgers", []) if Path(path).exists()]


def folder() -> Path:
    """Return the settings folder of the user."""
    return Path(os.environ.get(VARIABLE) or platformdirs.user_config_dir("dp-query-workbench"))


def _file() -> Path:
    return folder() / "places.json"


def _read() -> dict[str, Any]:
    """Return a mapping from browsers to stored states; empty if the file cannot be read."""
    with suppress(OSError, ValueError, RecursionError):
        entries = json.loads(_file().read_text(encoding="utf-8"))
        if isinstance(entries, dict):
            return entries
    return {}


def _write(entries: dict[str, Any]) -> None:
    """Write the mapping from browsers to states; do nothing if the folder is read-only."""
    with suppress(OSError):
        _file().parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with atomic_file(_file(), overwrite=True) as file:
            file.write(json.dumps(entries).encode())
