"""From the present state to its plan: at once when that is quick, in a worker with a forecast when
it is not.

Another budget changes the noise of a plan and nothing else, so that what was searched once is not
searched again.
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

AT_ONCE = 1.5  # seconds of forecast up to which a plan is made while the page waits
FORESEEN = "foreseen"  # the plan that a form asked about last
PATIENCE = 3.0  # seconds after which a plan that was forecast to be quick goes on in a worker


@st.cache_resource(max_entries=64, show_spinner=False)
def _forecast(question: str, _studio: RequestState) -> Forecast:
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
        progress=lambda fraction, text: time.monotonic() - start_s < PATIENCE,
    )


def _searched(studio: RequestState) -> str:
    """Key of a plan that a worker searched for this question at any budget of this kind."""
    return f"searched|{studio.budget.law}|{studio.request_key}"


def plan_of(studio: RequestState) -> Plan | None:
    """Draw what there is to say about making the plan, and return it when it is there."""
    if studio.workload is None or not studio.workload.groups:
        st.info(
            "There is nothing to plan yet: choose a schema and add queries on the Workload page.",
            icon="🧮",
        )
        return None
    with show_errors():
        if (quick := quick_plan(studio)) is not None:
            return quick
        key = _job(studio)
        if not job_queue.is_there(key):
            job_widget.job(key, label="Planning")
            _offer(key, studio, _expected(studio))
            return None
        return _waited(studio, "Planning", quiet=False)
    return None


def plan_of_form(studio: RequestState) -> Plan | None:
    """The plan of a state that a form only asks about: at once when that is quick, else when the
    person asks for it.
    """
    with show_errors():
        if (quick := quick_plan(studio)) is not None:
            return quick
        key = _job(studio)
        old = st.session_state.get(FORESEEN, key)
        if old not in (key, _job(history.current())):
            job_widget.release_job(old)
        st.session_state[FORESEEN] = key
        if job_queue.is_there(key):
            return _waited(studio, "Foretelling how exact they would be", quiet=True)
        job_widget.job(key, label="Foretelling", quiet=True)
        buttons.button("How exact would they be?", _start, key, studio, key="foresee")
    return None


def quick_plan(studio: RequestState) -> Plan | None:
    """The plan of a state where it is there, or quick to make; one that is not as quick as forecast
    is started.
    """
    if (cached_plan := plan_cache.cached_plan(studio.key)) is not None:
        return cached_plan
    if (searched := plan_cache.cached_plan(_searched(studio))) is not None:
        return plan_cache.plan_of_key(
            studio.key, lambda: at_budget(searched, studio.budget), like=searched
        )
    if job_queue.find(_job(studio)) is None and _expected(studio).seconds <= AT_ONCE:
        try:
            return keep(studio, lambda: _plan(studio))
        except Cancelled:
            _start(_job(studio), studio)
    return None


def _waited(studio: RequestState, label: str, *, quiet: bool) -> Plan | None:
    """The plan that a worker makes, once it is there."""
    job_result = job_widget.job(_job(studio), label=label, quiet=quiet)
    if job_result is None:
        return None
    return keep(studio, lambda: load_plan(job_result.result))


def keep(studio: RequestState, make: Callable[[], Plan]) -> Plan:
    """The plan of a state, kept for other budgets as well."""
    plan = plan_cache.plan_of_key(studio.key, make)
    return plan_cache.plan_of_key(_searched(studio), lambda: plan)


def _job(studio: RequestState) -> str:
    return f"plan|{studio.key}"


def _expected(studio: RequestState) -> Forecast:
    return _forecast(studio.request_key, studio)


def begin(studio: RequestState) -> None:
    """Start a plan that `plan_of` would offer to start, because the person asked for it elsewhere."""
    expected, key = _expected(studio), _job(studio)
    if (
        plan_cache.cached_plan(_searched(studio)) is None
        and expected.seconds > AT_ONCE
        and expected.memory <= MEMORY_LIMIT
    ):
        _start(key, studio)


def _offer(key: str, studio: RequestState, expected: Forecast) -> None:
    """Say what planning will take, before it starts, and what makes it long where that can be
    mended.
    """
    st.warning(
        escape_markdown(f"Planning this takes {cost_warnings.words(expected)} ({expected.text})."),
        icon="⏳",
    )
    too_large = expected.memory > MEMORY_LIMIT
    reason = (
        f"It would pass the limit of {format_number(MEMORY_LIMIT / 1e9)} GB." if too_large else None
    )
    if cost_warnings.is_too_costly(expected) and studio is history.current():
        cost_warnings.show_costly_groups(studio)
    buttons.button(
        "Plan it now",
        _start,
        key,
        studio,
        key="plan_now",
        type="primary",
        disabled=too_large,
        help=reason,
    )
    if reason:
        st.caption(f"Planning has to wait: {reason}")


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
