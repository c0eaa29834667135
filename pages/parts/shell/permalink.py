"""The present request inside the page's address, so that a refresh, a bookmark or a second tab
brings it back.

The address holds the public schema, the workload, the budget and the mechanism, or where that is
too long a name under which the server keeps them; never data, datasets or ledgers.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from dataclasses import replace
from weakref import WeakValueDictionary

import streamlit as st

from engine.errors import EngineError, PlanError
from engine.workload import Workload
from pages.parts.shell import history, long_url_store, session_restore
from pages.parts.shell.history import RequestState

NAME = "plan"
MAX_LENGTH = 12_000  # longer addresses are cut by some browsers and proxies
MAX_TEXT = 5_000_000
MAX_QUESTION = (
    1_000_000  # characters; a longer one would not fit into an address however well it is packed
)
_HELD: WeakValueDictionary[str, Workload] = WeakValueDictionary()
NAMED = "~"  # what a name begins with that stands for a design on the server
OURS = (NAME, session_restore.NAME)  # what every page keeps in its address


def packed(studio: RequestState) -> str:
    """The state as text for an address.

    >>> unpacked(packed(RequestState())).budget.pcost
    1.0
    """
    return _compressed(studio.to_json())


def _compressed(text: str) -> str:
    return base64.urlsafe_b64encode(zlib.compress(text.encode(), 9)).decode()


def unpacked(text: str) -> RequestState:
    """Inverse of `packed`; raises PlanError when the text is damaged."""
    try:
        unpacker = zlib.decompressobj()
        text_bytes = unpacker.decompress(base64.urlsafe_b64decode(text.encode()), MAX_TEXT)
    except (ValueError, binascii.Error, zlib.error):
        raise PlanError(
            "The plan in the address of this page is damaged. Open a plan file instead."
        ) from None
    return _shared(RequestState.from_json(text_bytes))


def _shared(studio: RequestState) -> RequestState:
    """The same state with the workload that others who ask the same hold already: what is known of
    it is known there.

    Workloads hold no data, and go when nobody holds them.
    """
    if studio.workload is None:
        return studio
    return replace(studio, workload=_HELD.setdefault(studio.request_key, studio.workload))


def restore() -> None:
    """Take the request from the address when a session starts; a damaged one is told about on the
    page.
    """
    text = st.query_params.get(NAME)
    if history.KEY in st.session_state or not text:
        return
    try:
        if text.startswith(NAMED):
            history.start_with(
                _shared(RequestState.from_json(long_url_store.find(text.removeprefix(NAMED))))
            )
            st.session_state["packed"] = (history.current(), text)
        else:
            history.start_with(unpacked(text))
    except EngineError as error:
        st.session_state["address_trouble"] = str(error)


def keep() -> None:
    """Write the present request, or its name, into the address, unless it is empty."""
    studio = history.current()
    text = "" if studio.workload is None else _packed_once(studio)
    if not text:
        if NAME in st.query_params:
            del st.query_params[NAME]
    elif st.query_params.get(NAME) != text:
        st.query_params[NAME] = text


def _packed_once(studio: RequestState) -> str:
    cached = st.session_state.get("packed")
    if cached is None or cached[0] is not studio:
        document = studio.to_json()
        text = _compressed(document) if len(document) <= MAX_QUESTION else ""
        if not 0 < len(text) <= MAX_LENGTH:
            name = long_url_store.keep(document)
            text = f"{NAMED}{name}" if name else ""
        cached = st.session_state["packed"] = (studio, text)
    return cached[1]
