"""Permalink: the request in the address of the page, for reloads and bookmarks.

The address contains the public schema, workload, budget and mechanism, or the name of a stored
request if that is too long; never data, datasets or ledgers.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from contextlib import suppress
from dataclasses import replace
from weakref import WeakValueDictionary

import streamlit as st

from engine.errors import EngineError, PlanError
from engine.workload import Workload
from pages.parts.shell import history, long_url_store, session_restore
from pages.parts.shell.history import RequestState

NAME = "plan"
MAX_LENGTH = 12_000  # some browsers and proxies cut longer addresses
MAX_TEXT = 5_000_000
MAX_QUESTION = 1_000_000  # characters of a request; longer ones are not compressed but stored
# Maps the digest of a request to its workload. All sessions of this process share the workloads.
_WORKLOADS: WeakValueDictionary[str, Workload] = WeakValueDictionary()
NAMED = "~"  # prefix of the name of a request in `long_url_store`
OURS = (NAME, session_restore.NAME)  # query parameters that the app sets on every page


def packed(request: RequestState) -> str:
    """Return the request as compressed text for the address of a page.

    >>> unpacked(packed(RequestState())).budget.pcost
    1.0
    """
    return _compressed(request.to_json())


def _compressed(text: str) -> str:
    return base64.urlsafe_b64encode(zlib.compress(text.encode(), 9)).decode()


def unpacked(text: str) -> RequestState:
    """Return the request in a text that `packed` returned; raises PlanError if it is damaged."""
    try:
        unpacker = zlib.decompressobj()
        text_bytes = unpacker.decompress(base64.urlsafe_b64decode(text.encode()), MAX_TEXT)
    except (ValueError, binascii.Error, zlib.error):
        raise PlanError(
            "The plan in this address is damaged. Open a saved project on Start instead."
        ) from None
    return _shared(RequestState.from_json(text_bytes))


def _shared(request: RequestState) -> RequestState:
    """Return the request, with the workload object of another session that has the same request.

    If there is none, the request is unchanged. Workloads are shared, because they cache computed
    values. They contain no data, and are deleted with the last session that uses them.
    """
    if request.workload is None:
        return request
    return replace(request, workload=_WORKLOADS.setdefault(request.request_key, request.workload))


def restore() -> None:
    """When a session starts, open the request in the address of the page.

    If the request cannot be opened, store the error.
    """
    text = st.query_params.get(NAME)
    if history.KEY in st.session_state or not text:
        return
    try:
        history.start_with(_opened(text))
        if text.startswith(NAMED):
            st.session_state["packed"] = (history.current(), text)
    except EngineError as error:
        st.session_state["address_trouble"] = str(error)


def _opened(text: str) -> RequestState:
    """Return the request of a text that `_packed_once` returned."""
    if text.startswith(NAMED):
        stored_text = long_url_store.find(text.removeprefix(NAMED))
        return _shared(RequestState.from_json(stored_text))
    return unpacked(text)


def restore_hidden() -> None:
    """When a session starts without a request in its address, open the one stored by `keep`.

    Call this function after `restore` and after `session_restore.restore`.
    """
    text = st.session_state.get(session_restore.HIDDEN_PLAN)
    if history.KEY not in st.session_state and text:
        with suppress(EngineError):  # the file of a long request may have been deleted
            history.start_with(_opened(text))


def address_text() -> str:
    """Return the text of the present request for an address; empty without a schema."""
    request = history.current()
    return "" if request.workload is None else _packed_once(request)


def keep(*, hidden: bool = False) -> None:
    """Write the present request into the address.

    If the request is too long, it is stored in a file, and the address contains the name of that
    file. Without a schema, the address contains no request.

    If ``hidden``, the request is not in the address but in the stored state of this browser, so
    that people can share the address of a page without their plan. This needs the cookie of the
    browser; without it the request is in the address.
    """
    text = address_text()
    is_hidden = hidden and bool(session_restore.browser())
    if is_hidden or st.session_state.get(session_restore.HIDDEN_PLAN):
        st.session_state[session_restore.HIDDEN_PLAN] = text if is_hidden else ""
    if not text or is_hidden:
        if NAME in st.query_params:
            del st.query_params[NAME]
    elif st.query_params.get(NAME) != text:
        st.query_params[NAME] = text


def _packed_once(request: RequestState) -> str:
    """Return the text of a request for the address; cached until the request changes."""
    cached = st.session_state.get("packed")
    if cached is None or cached[0] is not request:
        document = request.to_json()
        text = _compressed(document) if len(document) <= MAX_QUESTION else ""
        if not 0 < len(text) <= MAX_LENGTH:
            name = long_url_store.keep(document)
            text = f"{NAMED}{name}" if name else ""
        cached = st.session_state["packed"] = (request, text)
    return cached[1]
