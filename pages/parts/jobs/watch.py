"""Watching a job on the page: a progress bar that moves by itself, a cancel button, and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import streamlit as st

from pages.parts.jobs import work
from pages.parts.shell.words import plain, trouble


def begin(key: str, function: Callable[..., Any], *arguments: Any) -> None:
    """Start the work of this key: what a button calls."""
    work.start(key, function, *arguments)


def job(key: str, *, label: str) -> work.Job | None:
    """Draw the job of this key and return it once it is done; None while there is nothing to use."""
    found = work.find(key)
    if found is None:
        return None
    if found.running:
        _bar(key, label)
        return None
    if found.state == "done":
        return found
    if found.state == "cancelled":
        st.warning(plain(f"{label}: cancelled. {found.error}"))
    else:
        trouble(f"{label}: {found.error}")
    return None


@st.fragment(run_every=0.4)
def _bar(key: str, label: str) -> None:
    found = work.find(key)
    if found is None or not found.running:
        st.rerun()
    left, right = st.columns([5, 1], vertical_alignment="center")
    words = f"{label}: {found.text} ({found.seconds:.0f} s)"
    left.progress(min(max(found.fraction, 0.0), 1.0), text=plain(words))
    right.button("Cancel", key=f"cancel_{key}", on_click=found.cancel, width="stretch")
