"""Plan of the current request: immediately, or in a worker after a forecast.

A different budget only rescales the noise, so that the search is not repeated.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import streamlit as st

from engine._format import format_number
from engine.errors import Cancelled
from engine.mechanisms import at_budget, forecast, load_plan, plan
from engine.mechanisms.base import Forecast
from engine.plans import Plan
from pages.parts.jobs import cost_warnings, job_queue, job_widget, plan_cache, tasks
from pages.parts.jobs.cost_warnings import MEMORY_LIMIT
from pages.parts.shell import buttons, history
from pages.parts.shell.error_text import escape_markdown, show_errors
from pages.parts.shell.history import RequestState

QUICK_S = 1.5  # plans with a shorter forecast are computed while the page waits
FORM_PLAN = "foreseen"  # session key: the last plan of a form
PAGE_LIMIT_S = 3.0  # after this time a quick plan moves to a worker


@st.cache_resource(max_entries=64, show_spinner=False)
def _forecast(request: str, _studio: RequestState) -> Forecast:
    return _studio.default_options.expected or forecast(
        _studio.required_workload,
        _studio.mechanism,
        memory_limit=MEMORY_LIMIT,
        **_studio.options_without_defaults,
    )


def _plan(studio: RequestState) -> Plan:
    start_s = time.monotonic()
    return plan(
        studio.required_workload,
        studio.budget,
        studio.mechanism,
        **studio.options_without_defaults,
        memory_limit=MEMORY_LIMIT,
        progress=lambda fraction, text: time.monotonic() - start_s < PAGE_LIMIT_S,
    )


def _searched(studio: RequestState) -> str:
    """Cache key of the plan for this request at any budget of the same kind."""
    return f"searched|{studio.budget.law}|{studio.request_key}"


def plan_of(studio: RequestState) -> Plan | None:
    """Return the plan; without one, draw the forecast, the progress or what is missing."""
    if studio.workload is None or not studio.workload.groups:
        st.info("To continue, choose a schema and add queries on Workload.", icon="🧮")
        return None
    with show_errors():
        if (quick := quick_plan(studio)) is not None:
            return quick
        key = _job(studio)
        if not job_queue.is_there(key):
            job_widget.job(key, label="Planning")
            _offer(key, studio, _expected(studio))
            return None
        return _worker_plan(studio, "Planning", quiet=False)
    return None


def plan_of_form(studio: RequestState) -> Plan | None:
    """Plan of a form that is not submitted yet: immediately if quick, else by a button."""
    with show_errors():
        if (quick := quick_plan(studio)) is not None:
            return quick
        key = _job(studio)
        old = st.session_state.get(FORM_PLAN, key)
        if old not in (key, _job(history.current())):
            job_widget.release_job(old)
        st.session_state[FORM_PLAN] = key
        if job_queue.is_there(key):
            return _worker_plan(studio, "Forecasting accuracy", quiet=True)
        job_widget.job(key, label="Forecast", quiet=True)
        buttons.button("Forecast accuracy", _start, key, studio, key="foresee")
    return None


def quick_plan(studio: RequestState) -> Plan | None:
    """Plan if it is cached or quick; a plan that exceeds the time limit moves to a worker."""
    if (cached_plan := plan_cache.cached_plan(studio.key)) is not None:
        return cached_plan
    if (searched := plan_cache.cached_plan(_searched(studio))) is not None:
        return plan_cache.plan_of_key(
            studio.key, lambda: at_budget(searched, studio.budget), like=searched
        )
    if job_queue.find(_job(studio)) is None and _expected(studio).seconds <= QUICK_S:
        try:
            return keep(studio, lambda: _plan(studio))
        except Cancelled:
            _start(_job(studio), studio)
    return None


def _worker_plan(studio: RequestState, label: str, *, quiet: bool) -> Plan | None:
    """Plan of a worker once it is done; draws its progress."""
    job_result = job_widget.job(_job(studio), label=label, quiet=quiet)
    if job_result is None:
        return None
    return keep(studio, lambda: load_plan(job_result.result))


def keep(studio: RequestState, make: Callable[[], Plan]) -> Plan:
    """Cached plan of a request, also cached for other budgets."""
    plan = plan_cache.plan_of_key(studio.key, make)
    return plan_cache.plan_of_key(_searched(studio), lambda: plan)


def _job(studio: RequestState) -> str:
    return f"plan|{studio.key}"


def _expected(studio: RequestState) -> Forecast:
    return _forecast(studio.request_key, studio)


def begin(studio: RequestState) -> None:
    """Start a slow plan that another page requests."""
    expected, key = _expected(studio), _job(studio)
    if (
        plan_cache.cached_plan(_searched(studio)) is None
        and expected.seconds > QUICK_S
        and expected.memory <= MEMORY_LIMIT
    ):
        _start(key, studio)


def _offer(key: str, studio: RequestState, expected: Forecast) -> None:
    """Draw the forecast of planning, the costly tables, and the button that starts it."""
    st.warning(
        escape_markdown(f"Planning takes {cost_warnings.words(expected)} ({expected.text})."),
        icon="⏳",
    )
    too_large = expected.memory > MEMORY_LIMIT
    limit_gb = format_number(MEMORY_LIMIT / 1e9)
    reason = (
        f"To continue, make the workload smaller: the memory limit is {limit_gb} GB."
        if too_large
        else None
    )
    if cost_warnings.is_too_costly(expected) and studio is history.current():
        cost_warnings.show_costly_groups(studio)
    buttons.button(
        "Compute plan",
        _start,
        key,
        studio,
        key="plan_now",
        type="primary",
        disabled=too_large,
        help=reason,
    )
    if reason:
        st.caption(reason)


def _start(key: str, studio: RequestState) -> None:
    budget = studio.budget.to_dict()
    job_widget.start(
        key,
        tasks.make_plan,
        studio.required_workload.to_json(),
        budget,
        studio.mechanism,
        dict(studio.options_without_defaults),
    )
