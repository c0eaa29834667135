"""Plan cache of all sessions (least recently used, limited in bytes).

Plans contain no data, so that sessions can share them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import streamlit as st

from engine._values import cached_on_value, size_in_bytes
from engine.plans import Plan
from engine.residuals.cache import LruCache

CACHE_BYTES = 64 * 2**20
LARGE_PLAN_BYTES = 600 * 2**20  # second cache, for plans that exceed the first
DISPLAY_BYTES, GROUP_BYTES = 40 * 2**10, 2**10  # tables that a page computes from a plan
_LOCKS = tuple(threading.Lock() for _ in range(64))


@st.cache_resource(show_spinner=False)
def _plans() -> LruCache[Plan]:
    return LruCache(CACHE_BYTES)


@st.cache_resource(show_spinner=False)
def _large() -> LruCache[Plan]:
    return LruCache(LARGE_PLAN_BYTES)


@cached_on_value
def plan_bytes(plan: Plan, shared_with: Plan | None = None) -> int:
    """Bytes of a plan with its lazily computed values, without arrays shared with another plan."""
    _ = plan.totals, plan.largest  # compute the lazy values, which are most of the bytes
    groups = plan.workload.groups
    # a fixed size per group, because measuring 100,000 groups takes seconds
    parts = {id(part): part for group in groups for part in group.parts}
    weights = [group.query_weights for group in groups if group.query_weights is not None]
    return (
        size_in_bytes([plan, *parts.values(), weights], shared_with, excluded=groups)
        + DISPLAY_BYTES
        + GROUP_BYTES * len(groups)
    )


def cached_plan(key: str) -> Plan | None:
    """Cached plan of this key; None if there is none."""
    entry = _plans().get(key)
    return _large().get(key) if entry is None else entry


def plan_of_key(key: str, make: Callable[[], Plan], *, like: Plan | None = None) -> Plan:
    """Cached plan of this key, computed once even if several sessions need it.

    Arrays shared with the plan `like`, from which it is derived, are counted once.
    """
    with _LOCKS[hash(key) % len(_LOCKS)]:
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
