"""Plans for all sessions, by their content, up to a number of bytes; they hold no data, so that
sharing tells nothing.

Whoever asks for a plan that somebody else has asked for gets the same one, and the one that was not
used for longest goes first, however many people there are.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import streamlit as st

from engine._values import cached_on_value, size_in_bytes
from engine.plans import Plan
from engine.residuals.cache import LruCache

BYTES = 64 * 2**20
LARGE = 600 * 2**20  # for those that would not leave room for any other: the last of them
TABLES, GROUP = (
    40 * 2**10,
    2**10,
)  # bytes of the tables that are made when a plan is looked at, and of a group in them
_TURNS = tuple(threading.Lock() for _ in range(64))


@st.cache_resource(show_spinner=False)
def _plans() -> LruCache[Plan]:
    return LruCache(BYTES)


@st.cache_resource(show_spinner=False)
def _large() -> LruCache[Plan]:
    return LruCache(LARGE)


@cached_on_value
def plan_bytes(plan: Plan, shared_with: Plan | None = None) -> int:
    """Bytes that a plan takes, with what it computes when it is looked at, and without what another
    plan holds too.
    """
    _ = (
        plan.totals,
        plan.largest,
    )  # the first look computes them, from the variances that are most of what it holds
    groups = plan.workload.groups
    # names and words of a group take less than is counted for it, and to look through a hundred
    # thousand takes seconds
    parts = {id(part): part for group in groups for part in group.parts}
    weights = [group.query_weights for group in groups if group.query_weights is not None]
    return (
        size_in_bytes([plan, *parts.values(), weights], shared_with, excluded=groups)
        + TABLES
        + GROUP * len(groups)
    )


def cached_plan(key: str) -> Plan | None:
    """The plan of this key, if it is there."""
    entry = _plans().get(key)
    return _large().get(key) if entry is None else entry


def plan_of_key(key: str, make: Callable[[], Plan], *, like: Plan | None = None) -> Plan:
    """The plan of this key, made when it is not there; sessions that ask at once wait for the
    first.

    What it shares with the plan that it is made from, `like`, is there once, and counted once.
    """
    with _TURNS[hash(key) % len(_TURNS)]:
        plan = cached_plan(key)
        if plan is None:
            plan = make()
            parts = (
                {plan: plan_bytes(plan)}
                if like is None
                else {like: plan_bytes(like), plan: plan_bytes(plan, like)}
            )
            (_plans() if sum(parts.values()) <= _plans().limit else _large()).put(key, plan, parts)
        return plan
