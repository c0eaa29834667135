"""Cache of plans for all sessions; above a size in bytes, it drops the least recently used plans.

Plans contain no records, so sessions may share them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import streamlit as st

from engine._values import cached_on_value, size_in_bytes
from engine.plans import Plan
from engine.residuals.search_cache import LruCache

CACHE_BYTES = 64 * 2**20
LARGE_PLAN_BYTES = 600 * 2**20  # a second cache, for plans that are larger than the first cache
# Estimated bytes of the tables that pages compute from a plan, and of one group of its workload.
DISPLAY_BYTES, GROUP_BYTES = 40 * 2**10, 2**10
_LOCKS = tuple(threading.Lock() for _ in range(64))


@st.cache_resource(show_spinner=False)
def _plans() -> LruCache[Plan]:
    return LruCache(CACHE_BYTES)


@st.cache_resource(show_spinner=False)
def _large() -> LruCache[Plan]:
    """Return the cache of plans that are too large for the cache of `_plans`."""
    return LruCache(LARGE_PLAN_BYTES)


@cached_on_value
def plan_bytes(plan: Plan, shared_with: Plan | None = None) -> int:
    """Return about how many bytes a plan has, without the arrays that it shares with ``shared_with``.

    Cached properties of the plan, and tables that pages compute from it, are included.
    """
    _ = plan.totals, plan.largest  # compute these cached properties, which have most of the bytes
    groups = plan.workload.groups
    # Measuring 100,000 groups would take seconds, so `size_in_bytes` excludes the groups, and their
    # bytes are estimated. Query families and query weights are measured.
    parts = {id(part): part for group in groups for part in group.parts}
    weights = [group.query_weights for group in groups if group.query_weights is not None]
    return (
        size_in_bytes([plan, *parts.values(), weights], shared_with, excluded=groups)
        + DISPLAY_BYTES
        + GROUP_BYTES * len(groups)
    )


def cached_plan(key: str) -> Plan | None:
    """Return the plan in the cache under this key; None if there is none."""
    entry = _plans().get(key)
    return _large().get(key) if entry is None else entry


def plan_of_key(key: str, make: Callable[[], Plan], *, like: Plan | None = None) -> Plan:
    """Return the cached plan of this key; if absent, store and return the plan of ``make``.

    If several sessions request the same plan at the same time, ``make`` is called once and all of
    them wait. But a plan that is too large for the cache is not stored: each session then calls
    ``make``.

    Parameters
    ----------
    like : plan from which ``make`` derives the new plan. Arrays that both plans share count only
        once towards the size of the cache.
    """
    with _LOCKS[hash(key) % len(_LOCKS)]:
        plan = cached_plan(key)
        if plan is None:
            plan = make()
            if like is None:
                bytes_by_plan = {plan: plan_bytes(plan)}
            else:
                bytes_by_plan = {like: plan_bytes(like), plan: plan_bytes(plan, like)}
            fits = sum(bytes_by_plan.values()) <= _plans().limit
            cache = _plans() if fits else _large()
            cache.put(key, plan, bytes_by_plan)
        return plan
