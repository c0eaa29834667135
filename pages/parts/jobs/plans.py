"""The plan of a request: from the cache, computed while the page waits, or by a worker.

Workers compute plans that are forecast to take long. If only the size of the budget changes, no new
plan is computed: the noise of the cached plan is rescaled.
"""

from __future__ import annotations

import math
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

# Plans with a forecast of at most this many seconds are computed while the page waits; the second
# limit is for pages that need a plan after every edit.
QUICK_S, LIVE_S = 1.5, 0.5
# Plans with a longer forecast are computed by a worker. It starts without a click of the user if
# the forecast is at most this many seconds; the second limit is for tables that a form proposes.
STARTED_S, FORM_STARTED_S = 60.0, 10.0
LIVE_PLAN = "live_plan"  # session state key of the job that plans the present workload
FORM_PLAN = "foreseen"  # session state key of the job that plans the tables that a form proposes
PAGE_LIMIT_S = 3.0  # after this time the page stops planning, and a worker starts again


@st.cache_resource(max_entries=64, show_spinner=False)
def _forecast(request: str, _request_state: RequestState) -> Forecast:
    return _request_state.default_options.expected or forecast(
        _request_state.required_workload,
        _request_state.mechanism,
        memory_limit=MEMORY_LIMIT,
        **_request_state.options_without_defaults,
    )


def _plan(request_state: RequestState) -> Plan:
    start_s = time.monotonic()
    return plan(
        request_state.required_workload,
        request_state.budget,
        request_state.mechanism,
        **request_state.options_without_defaults,
        memory_limit=MEMORY_LIMIT,
        progress=lambda fraction, text: time.monotonic() - start_s < PAGE_LIMIT_S,
    )


def _search_key(request_state: RequestState) -> str:
    """Return the cache key of a plan for this request without its budget.

    Of the budget, the key contains only the distribution of the noise, Gaussian or Laplace.
    """
    return f"searched|{request_state.budget.law}|{request_state.request_key}"


def plan_of(request_state: RequestState) -> Plan | None:
    """Return the plan of a request; None if it is not available yet.

    If it is not available, the page shows what is missing: a schema or tables, a click on the
    button that starts planning, or the end of a running job.
    """
    if request_state.workload is None or not request_state.workload.groups:
        action = "add queries on Workload"
        if request_state.workload is None:
            action = "enter a schema on Schema, or open a demo on Start"
        st.info(f"To continue, {action}.", icon="🧮")
        return None
    with show_errors():
        if (quick := quick_plan(request_state)) is not None:
            return quick
        key = _job(request_state)
        if not job_queue.is_there(key):
            job_widget.job(key, label="Planning")
            _offer(key, request_state, _expected(request_state))
            return None
        return _worker_plan(request_state, "Planning", quiet=False)
    return None


def live_plan(request_state: RequestState) -> Plan | None:
    """Return the plan of the current request for the accuracy panel; None if not available yet."""
    return _plan_after_edit(request_state, LIVE_PLAN, STARTED_S, "Computing errors", _offer)


def plan_of_form(request_state: RequestState) -> Plan | None:
    """Return the plan of a request with tables that a form proposes; None if not available yet."""
    return _plan_after_edit(
        request_state, FORM_PLAN, FORM_STARTED_S, "Forecasting accuracy", _offer_forecast
    )


def _plan_after_edit(
    request_state: RequestState,
    session_key: str,
    max_seconds: float,
    label: str,
    offer: Callable[[str, RequestState, Forecast], None],
) -> Plan | None:
    """Return the plan of a request that changes with every edit; None if not available yet.

    If the forecast of the time is at most `LIVE_S` seconds, the page waits for the plan. Otherwise
    a worker computes the plan. The worker starts at once if the forecast of the time is at most
    ``max_seconds`` and the forecast of the memory at most `MEMORY_LIMIT`. Otherwise it starts when
    the user clicks the button that ``offer`` draws.

    Parameters
    ----------
    session_key : key of the session state with the job of the previous edit. That job is released,
        unless it plans the current request.
    label : name of the job on screen.
    offer : function that draws the forecast and the button.
    """
    with show_errors():
        if (quick := quick_plan(request_state, LIVE_S)) is not None:
            return quick
        key = _job(request_state)
        expected = _expected(request_state)
        job_widget.replace_job(session_key, key, needed=_job(history.current()))
        is_short = expected.seconds <= max_seconds and expected.memory <= MEMORY_LIMIT
        if job_queue.find(key) is None and is_short:
            _start(key, request_state)
        if job_queue.is_there(key):
            return _worker_plan(request_state, label, quiet=True)
        job_widget.job(key, label=label, quiet=True)  # draws the error of a failed job
        offer(key, request_state, expected)
    return None


def quick_plan(request_state: RequestState, seconds: float = math.inf) -> Plan | None:
    """Return the plan of a request if it is cached or quickly computed; otherwise None.

    The plan is computed here if its forecast is at most ``seconds`` and at most `QUICK_S`, and no
    worker computes it. If planning takes longer than `PAGE_LIMIT_S`, it is stopped, and a worker
    starts it again.
    """
    if (cached_plan := plan_cache.cached_plan(request_state.key)) is not None:
        return cached_plan
    if (other_plan := plan_cache.cached_plan(_search_key(request_state))) is not None:
        # `other_plan` differs from the plan of the request in its budget only.
        return plan_cache.plan_of_key(
            request_state.key, lambda: at_budget(other_plan, request_state.budget), like=other_plan
        )
    if job_queue.find(_job(request_state)) is None and _expected(request_state).seconds <= min(
        seconds, QUICK_S
    ):
        try:
            return keep(request_state, lambda: _plan(request_state))
        except Cancelled:
            _start(_job(request_state), request_state)
    return None


def _worker_plan(request_state: RequestState, label: str, *, quiet: bool) -> Plan | None:
    """Return the plan that a worker computed; while it runs, draw its progress and return None."""
    job_result = job_widget.job(_job(request_state), label=label, quiet=quiet)
    if job_result is None:
        return None
    return keep(request_state, lambda: load_plan(job_result.result))


def keep(request_state: RequestState, make: Callable[[], Plan]) -> Plan:
    """Return the cached plan of a request; if absent, store and return the plan of ``make``.

    The plan is also stored under a key without the budget, so that plans at other budgets can be
    derived from it.
    """
    plan = plan_cache.plan_of_key(request_state.key, make)
    # The cache may already have a plan at another budget under this key, so its result is not used.
    plan_cache.plan_of_key(_search_key(request_state), lambda: plan)
    return plan


def _job(request_state: RequestState) -> str:
    return f"plan|{request_state.key}"


def _expected(request_state: RequestState) -> Forecast:
    return _forecast(request_state.request_key, request_state)


def expected_seconds(request_state: RequestState) -> float:
    """Return the forecast planning time of a request, in seconds."""
    return _expected(request_state).seconds


def begin(request_state: RequestState) -> None:
    """Start planning in a worker, unless it is quick, too large, or a plan is in the cache.

    Other pages call this before they open Preview.
    """
    expected, key = _expected(request_state), _job(request_state)
    if (
        plan_cache.cached_plan(_search_key(request_state)) is None
        and expected.seconds > QUICK_S
        and expected.memory <= MEMORY_LIMIT
    ):
        _start(key, request_state)


def _offer(key: str, request_state: RequestState, expected: Forecast) -> None:
    """Draw the forecast of planning and the button that starts it.

    If the present request is too costly, the tables that make it costly are drawn in between.
    """
    st.warning(
        escape_markdown(f"Planning takes {cost_warnings.cost_text(expected)} ({expected.text})."),
        icon="⏳",
    )
    too_large = expected.memory > MEMORY_LIMIT
    limit_gb = format_number(MEMORY_LIMIT / 1e9)
    reason = (
        f"To continue, make the workload smaller: the memory limit is {limit_gb} GB."
        if too_large
        else None
    )
    if cost_warnings.is_too_costly(expected) and request_state is history.current():
        cost_warnings.show_costly_groups(request_state)
    buttons.button(
        "Compute plan",
        _start,
        key,
        request_state,
        key="plan_now",
        type="primary",
        disabled=too_large,
        help=reason,
    )
    if reason:
        st.caption(reason)


def _offer_forecast(key: str, request_state: RequestState, _: Forecast) -> None:
    buttons.button("Forecast accuracy", _start, key, request_state, key="foresee")


def _start(key: str, request_state: RequestState) -> None:
    job_widget.start(key, tasks.make_plan, *request_state.plan_arguments)
