"""Choice of mechanisms, estimate of time and memory, and the comparison job."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from engine._format import pluralize
from engine.analysis import expected_wait_text, partial_comparison, workload_digest
from engine.analysis.compare import (
    REFERENCE_FORECAST_S,
    Comparison,
    expected_costs,
    quick_choices,
)
from engine.errors import EngineError
from engine.mechanisms import label_of, load_plan, title_of, variants
from engine.plans import Plan
from pages.parts.glossary import meaning
from pages.parts.jobs import job_queue, job_widget, plan_cache, plans, tasks
from pages.parts.jobs.status import Status
from pages.parts.shell import buttons, figure_view
from pages.parts.shell.error_text import escape_markdown, show_errors
from pages.parts.shell.history import RequestState

if TYPE_CHECKING:
    from engine._format import Frame

# Session keys of the labels of the chosen mechanisms, the time limit in seconds, and the key of the
# last job.
CHOSEN, LIMIT, LAST = "compare_chosen", "compare_limit", "compare_last"
# Session key of the label that the mechanism of the plan had when this page was last displayed.
LAST_CURRENT = "compare_last_current"
# Session key of a pair (key of workload and budget, labels of the chosen mechanisms). The pair is
# stored when the page adds the mechanism of the plan to the labels that the user chose.
EXTENDED = "compare_extended"
# Session key of the choices with unusual options: a pair (digest of the workload, mapping from the
# label of a choice to its (name, options)).
WITH_OPTIONS = "compare_with_options"
MAX_CHOICES_WITH_OPTIONS = 4
DEFAULT_LIMIT_S = 60
FIRST_PLANS = 2  # number of best plans that are loaded early, for the views of two plans
# Result of the job: the comparison, and a mapping from the label of a mechanism to (name, options).
Result = tuple[Comparison, Mapping[str, tuple[str, Mapping[str, Any]]]]


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Results of a comparison, with the names and options of the compared mechanisms.

    Attributes
    ----------
    results : errors, bounds and plans; while the comparison runs, only of finished mechanisms.
    choices : maps the label of a mechanism to its name and options.
    key : key of the job, which identifies workload, budget, mechanisms and time limit.
    current_label : label of the mechanism of the current plan.
    """

    results: Comparison
    choices: Mapping[str, tuple[str, Mapping[str, Any]]]
    key: str
    current_label: str

    def plan(self, label: str) -> Plan:
        """Return the plan of one mechanism; cached for all sessions."""
        return plan_cache.plan_of_key(
            f"{self.key}|{label}", lambda: load_plan(self.results.plans[label])
        )

    @property
    def time_limit(self) -> float:
        """Time limit per mechanism, in seconds; it is the last part of the key."""
        return float(self.key.rpartition("|")[2])

    @property
    def seconds(self) -> dict[str, float]:
        """Planning times of the mechanisms with a plan: label -> seconds."""
        frame = self.results.frame
        times = dict(zip(frame["mechanism"], frame["seconds"], strict=True))
        return {label: times[label] for label in self.best}

    @property
    def best(self) -> list[str]:
        """Labels of the mechanisms with a plan, best first."""
        return [
            str(label) for label in self.results.frame["mechanism"] if label in self.results.plans
        ]


@st.cache_resource(max_entries=8, show_spinner="Estimating time and memory")
def _expected(
    key: str,
    _request_state: RequestState,
    _choices: list[tuple[str, Mapping[str, Any]]],
    limit: float,
) -> Frame:
    """Return the estimated time and memory of each mechanism, one row per choice.

    ``key`` is the cache key, ``limit`` the time limit per mechanism, in seconds.
    """
    return expected_costs(
        _request_state.required_workload, _request_state.budget, _choices, time_limit=limit
    )


def current_choice(request_state: RequestState) -> tuple[str, tuple[str, Mapping[str, Any]]]:
    """Return the label of the current mechanism, and its name and options.

    The option max_records is left out, because it does not change the comparison.
    """
    options = {
        k: v for k, v in request_state.options_without_defaults.items() if k != "max_records"
    }
    return label_of(request_state.mechanism, options), (request_state.mechanism, options)


def available_choices(request_state: RequestState) -> dict[str, tuple[str, Mapping[str, Any]]]:
    """Return a mapping from labels to (name, options).

    It contains all mechanisms with their usual options, and the last `MAX_CHOICES_WITH_OPTIONS`
    choices with other options that were current on this page with the same workload.
    """
    label, choice = current_choice(request_state)
    usual = variants()
    if request_state.workload is None:
        return usual | {label: choice}
    workload = workload_digest(request_state.workload)
    stored_workload, choices = st.session_state.get(WITH_OPTIONS, ("", {}))
    choices = dict(choices) if stored_workload == workload else {}
    if label not in usual:
        choices.pop(label, None)
        choices = dict([*choices.items(), (label, choice)][-MAX_CHOICES_WITH_OPTIONS:])
    st.session_state[WITH_OPTIONS] = (workload, choices)
    return usual | choices


def begin(
    key: str,
    request_state: RequestState,
    choices: list[tuple[str, Mapping[str, Any]]],
    limit: float,
) -> None:
    """Start the comparison job, and discard the previous one; ``limit`` is in seconds."""
    job_widget.replace_job(LAST, key)
    plain_choices = [(name, dict(options)) for name, options in choices]
    request = (
        request_state.required_workload.to_json(),
        request_state.budget.to_dict(),
        plain_choices,
        limit,
    )
    job_widget.start(key, _with_plans, key, request_state, *request, gentle=True)


def _with_plans(
    key: str, request_state: RequestState, *request: Any, progress: tasks.Progress
) -> Result:
    """Run the comparison, which starts processes itself, and cache the plans that are drawn first.

    ``request`` contains the arguments of `tasks.compare_all`.
    """
    result = tasks.compare_all(*request, progress=progress)
    comparison, choices = result
    compared = Compared(
        results=comparison, choices=choices, key=key, current_label=current_choice(request_state)[0]
    )
    with suppress(EngineError):  # the view shows the error
        # `Compared.plan` caches the plans.
        plans_by_label = {
            label: compared.plan(label)
            for label in compared.best
            if label in (*compared.best[:FIRST_PLANS], compared.current_label)
        }
        # The comparison omits the option max_records. If the request has this option, the compared
        # plan is not the plan of the request.
        if (
            compared.current_label in plans_by_label
            and choices[compared.current_label][1] == request_state.options_without_defaults
        ):
            plans.keep(request_state, lambda: plans_by_label[compared.current_label])
    return result


def running() -> bool:
    """Return whether the last comparison is still running."""
    job = job_queue.find(st.session_state.get(LAST, ""))
    return job is not None and job.running


def current_plan(request_state: RequestState) -> Plan | None:
    """Return the plan of the current request; None if it is not available yet.

    If the comparison on the page is computing this plan, a note says so. Otherwise `plans.plan_of`
    draws what is missing.
    """
    labels = list(st.session_state.get(CHOSEN, ()))
    job = job_queue.find(_job_key(request_state, labels, _limit()))
    if current_choice(request_state)[0] not in labels or job is None or not job.running:
        return plans.plan_of(request_state)
    cached_plan = plan_cache.cached_plan(request_state.key)
    if cached_plan is None:
        st.caption("The comparison above is computing this plan.")
    return cached_plan


def _job_key(request_state: RequestState, labels: list[str], limit: float) -> str:
    return f"compare|{request_state.workload_budget_key}|{_digest(*labels)}|{limit}"


def run(request_state: RequestState) -> Compared | None:
    """Draw the choice of mechanisms, the forecast and the progress; return the results.

    A comparison starts automatically if the selected mechanisms are the default selection. It also
    does so if this page added the mechanism of the plan and no mechanism is expected to be slow.

    While the comparison runs, the results are those of the mechanisms that have finished. If none
    has finished, they are those of the previous selection; None if there are none.
    """
    if request_state.workload is None or not request_state.workload.groups:
        st.info(
            "There is nothing to compare yet. Choose a schema and add queries to continue.",
            icon="🧮",
        )
        return None
    all_choices = available_choices(request_state)
    labels, place = _selected(request_state, all_choices)
    choices = [all_choices[label] for label in labels]
    limit = _settings(request_state, choices, list(all_choices))
    key = _job_key(request_state, labels, limit)
    partial = None
    if not labels:
        st.info("Choose at least one mechanism.", icon="⚖️")
    else:
        with show_errors():
            if job_queue.find(key) is None and (
                labels == _default_selection(request_state, all_choices)
                or _is_quick_extension(request_state, choices)
            ):
                begin(key, request_state, choices, limit)
            partial = _partial_results(request_state, key, choices, limit)
            _start(key, request_state, choices, limit, place, partial)
    job_result = job_widget.job(key, label="Comparison", stream=True) if labels else None
    if job_result is not None:
        st.session_state[LAST] = key
        return _compared(job_result, key, current_choice(request_state)[0])
    job = job_queue.find(key)
    if partial is not None and job is not None and job.running:
        finished = len(partial.results.frame)
        st.caption(f"{finished} of {pluralize(len(choices), 'mechanism')} so far")
        return partial
    return _previous(key, request_state.workload_budget_key, current_choice(request_state)[0])


def _default_selection(
    request_state: RequestState, choices: Mapping[str, tuple[str, Mapping[str, Any]]]
) -> list[str]:
    """Return the labels that are selected by default.

    These are the mechanisms of `quick_choices`.  The mechanism of the plan is among them, unless it
    is expected to take over a minute.
    """
    table = _expected(
        f"{request_state.key}|{list(choices)}", request_state, list(choices.values()), _limit()
    )
    return quick_choices(table, also=current_choice(request_state)[0])


def _is_quick_extension(
    request_state: RequestState, choices: list[tuple[str, Mapping[str, Any]]]
) -> bool:
    """Return whether this page added the mechanism of the plan, and no choice is slow.

    A choice is slow if it is expected to take longer than `REFERENCE_FORECAST_S`.
    """
    labels = [label_of(name, options) for name, options in choices]
    if st.session_state.get(EXTENDED) != (request_state.workload_budget_key, labels):
        return False
    table = _expected_of(request_state, choices, _limit())
    return bool((table["seconds"].fillna(0.0) <= REFERENCE_FORECAST_S).all())


def _update_selection(
    request_state: RequestState, choices: Mapping[str, tuple[str, Mapping[str, Any]]]
) -> None:
    """Store the default selection, or add the current mechanism if it has changed.

    Labels that are no longer available are removed. An empty selection stays empty.
    """
    current = current_choice(request_state)[0]
    previous = st.session_state.get(LAST_CURRENT, current)
    st.session_state[LAST_CURRENT] = current
    if CHOSEN not in st.session_state:
        st.session_state[CHOSEN] = _default_selection(request_state, choices)
        return
    selected = list(st.session_state[CHOSEN])
    labels = [label for label in selected if label in choices]
    if selected and current != previous and current not in labels:
        labels.insert(0, current)
        st.session_state[EXTENDED] = (request_state.workload_budget_key, labels)
    if labels != selected:
        st.session_state[CHOSEN] = labels


def _select(labels: list[str]) -> None:
    st.session_state[CHOSEN] = labels


def _selected(
    request_state: RequestState, choices: Mapping[str, tuple[str, Mapping[str, Any]]]
) -> tuple[list[str], DeltaGenerator]:
    """Draw the choice of mechanisms; return the chosen labels, and the column to its right."""
    left, right = st.columns([6, 1], vertical_alignment="bottom")
    with show_errors():
        _update_selection(request_state, choices)
    labels = left.multiselect(
        "Mechanisms to compare",
        list(choices),
        format_func=title_of,
        key=CHOSEN,
        persist_state="session",
        help=f"{meaning('Mechanism')} Fast ones and HDMM are compared at once.",
        wrap=True,  # a single line hides the last names
    )
    return labels, right


def _limit() -> float:
    """Return the chosen time limit per mechanism, in seconds."""
    return float(st.session_state.get(LIMIT, DEFAULT_LIMIT_S))


def _settings(
    request_state: RequestState, choices: list[tuple[str, Mapping[str, Any]]], labels: list[str]
) -> float:
    """Draw the expander with time limit and forecast; return the limit in seconds.

    ``choices`` are the selected mechanisms with their options, ``labels`` the labels of all
    mechanisms.
    """
    with st.expander(
        "Time limit and forecast", key="compare_forecast", on_change="rerun"
    ) as opened:
        left, right = st.columns([1, 2], vertical_alignment="bottom")
        limit = float(
            left.number_input(
                "Time limit per mechanism (s)",
                1,
                3600,
                DEFAULT_LIMIT_S,
                key=LIMIT,
                persist_state="session",
                help="Slower mechanisms are stopped.",
            )
        )
        if len(choices) < len(labels):
            buttons.button(
                "Select all (including slow)", _select, labels, key="compare_all", place=right
            )
        if opened.open and choices:
            with show_errors():
                table = _expected_of(request_state, choices, limit)
                st.caption("Time is a rough estimate, memory an upper bound.")
                figure_view.table(
                    table.assign(mechanism=[title_of(label) for label in table["mechanism"]]),
                    name="forecast",
                    alt="Estimated seconds and memory of every mechanism, or why it cannot run",
                )
    return limit


def _expected_of(
    request_state: RequestState, choices: list[tuple[str, Mapping[str, Any]]], limit: float
) -> Frame:
    """Return the forecasts of the chosen mechanisms; ``limit`` is in seconds per mechanism."""
    labels = [label_of(name, options) for name, options in choices]
    return _expected(f"{request_state.workload_budget_key}{labels}", request_state, choices, limit)


def _start(
    key: str,
    request_state: RequestState,
    choices: list[tuple[str, Mapping[str, Any]]],
    limit: float,
    place: DeltaGenerator,
    partial: Compared | None,
) -> None:
    """Draw the start button in the column ``place``, and the expected time below the columns.

    The expected time is that of the mechanisms without a result in ``partial``.  A comparison that
    is done has a note instead.
    """
    job = job_queue.find(key)
    table = _expected_of(request_state, choices, limit)
    is_running, is_done = job is not None and job.running, job is not None and job.done
    can_start = bool((table["status"] == "ok").any())
    buttons.button(
        "Compare",
        begin,
        key,
        request_state,
        choices,
        limit,
        key="compare_start",
        place=place,
        type="secondary" if is_done else "primary",
        disabled=is_done or is_running or not can_start,
        help="This comparison is done; its results are below." if is_done else None,
        width="stretch",
    )
    if is_done:
        st.caption("Done: the results are below.")
        return
    text = expected_wait_text(table, {} if partial is None else partial.seconds)
    if not text and is_running:
        text = "Only the lower bound is still being computed."
    if text:
        st.caption(escape_markdown(text))


def _compared(job: Status, key: str, label: str) -> Compared:
    comparison, choices = job.result
    return Compared(results=comparison, choices=choices, key=key, current_label=label)


def _partial_results(
    request_state: RequestState,
    key: str,
    choices: list[tuple[str, Mapping[str, Any]]],
    limit: float,
) -> Compared | None:
    """Return the results of the mechanisms that this or an earlier comparison has finished.

    The result is None if the job ``key`` is done, or if no mechanism has finished.
    """
    job = job_queue.find(key)
    if job is not None and job.done:
        return None
    partial = partial_comparison(
        request_state.required_workload, request_state.budget, choices, time_limit=limit
    )
    if partial is None:
        return None
    choices_by_label = {label_of(name, options): (name, options) for name, options in choices}
    return Compared(
        results=partial,
        choices=choices_by_label,
        key=key,
        current_label=current_choice(request_state)[0],
    )


def _previous(key: str, base: str, label: str) -> Compared | None:
    """Draw a note that the results are of the previous selection of mechanisms; return them.

    The result is None if that comparison was for another workload or budget, or did not end.

    Parameters
    ----------
    key : key of the job of the current selection.
    base : text that identifies workload and budget; part of the keys of their jobs.
    label : label of the current mechanism.
    """
    last = st.session_state.get(LAST, "")
    job = job_queue.find(last) if last != key and last.startswith(f"compare|{base}|") else None
    if job is None or not job.done:
        return None
    st.caption("The results below are of the previous selection.")
    return _compared(job, last, label)


def _digest(*texts: str) -> str:
    return hashlib.sha256("|".join(texts).encode()).hexdigest()[:16]
