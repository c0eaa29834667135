"""Choosing mechanisms, saying what comparing them will take, and running the comparison."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import streamlit as st

from engine._format import pluralize
from engine.analysis import partial_comparison
from engine.analysis.compare import Comparison, expected_costs, quick_choices
from engine.errors import EngineError
from engine.mechanisms import label_of, load_plan, title_of, variants
from engine.plans import Plan
from pages.parts.jobs import job_queue, job_widget, plan_cache, plans, tasks
from pages.parts.jobs.status import Status
from pages.parts.shell import buttons, figure_view
from pages.parts.shell.error_text import escape_markdown, show_errors
from pages.parts.shell.history import RequestState

if TYPE_CHECKING:
    from engine._format import Frame

CHOSEN, LIMIT, LAST = "compare_chosen", "compare_limit", "compare_last"
START_LIMIT = 60
FIRST = 2  # plans that the views of two begin with, the best ones
Result = tuple[Comparison, Mapping[str, tuple[str, Mapping[str, Any]]]]


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A comparison that is done, and what was compared.

    `choices` is label -> (mechanism, options), `key` names the comparison, `current_choice` is the
    label of what the studio has chosen.
    """

    found: Comparison
    choices: Mapping[str, tuple[str, Mapping[str, Any]]]
    key: str
    present: str

    def plan(self, label: str) -> Plan:
        """The plan of one mechanism."""
        return plan_cache.plan_of_key(
            f"{self.key}|{label}", lambda: load_plan(self.found.plans[label])
        )

    @property
    def best(self) -> list[str]:
        """Labels of the mechanisms with a plan, best first."""
        return [str(label) for label in self.found.frame["mechanism"] if label in self.found.plans]


@st.cache_resource(max_entries=8, show_spinner="Looking at what each mechanism would take")
def _expected(
    key: str, _studio: RequestState, _choices: list[tuple[str, Mapping[str, Any]]]
) -> Frame:
    return expected_costs(_studio.required_workload, _studio.budget, _choices)


def current_choice(studio: RequestState) -> tuple[str, tuple[str, Mapping[str, Any]]]:
    """Label and choice of what the studio has chosen; the cap on records does not take part."""
    options = {k: v for k, v in studio.options_without_defaults.items() if k != "max_records"}
    return label_of(studio.mechanism, options), (studio.mechanism, options)


def offered(studio: RequestState) -> dict[str, tuple[str, Mapping[str, Any]]]:
    """Everything that can be compared, by label: all variants, and what the studio has chosen."""
    label, choice = current_choice(studio)
    return variants() | {label: choice}


def begin(
    key: str, studio: RequestState, choices: list[tuple[str, Mapping[str, Any]]], limit: float
) -> None:
    """Start the comparison of this key."""
    if (old := st.session_state.get(LAST, key)) != key:
        job_widget.release_job(old)
    st.session_state[LAST] = key
    plain_choices = [(name, dict(options)) for name, options in choices]
    request = studio.required_workload.to_json(), studio.budget.to_dict(), plain_choices, limit
    job_widget.start(key, _with_plans, key, studio, *request, gentle=True)


def _with_plans(key: str, studio: RequestState, *request: Any, progress: tasks.Progress) -> Result:
    """Compare, and read the plans that the views begin with: whoever opens one then does not wait
    for them.
    """
    comparison, choices = result = tasks.compare_all(*request, progress=progress)
    compared = Compared(
        found=comparison, choices=choices, key=key, present=current_choice(studio)[0]
    )
    with suppress(EngineError):  # the view says so
        first = {
            label: compared.plan(label)
            for label in compared.best
            if label in (*compared.best[:FIRST], compared.present)
        }
        if (
            compared.present in first
            and choices[compared.present][1] == studio.options_without_defaults
        ):
            plans.keep(studio, lambda: first[compared.present])
    return result


def running() -> bool:
    """Whether the comparison that was asked for last is on its way."""
    job = job_queue.find(st.session_state.get(LAST, ""))
    return job is not None and job.running


def run(studio: RequestState) -> Compared | None:
    """Draw the choice, the forecast and the progress; return the comparison when it is there."""
    if studio.workload is None or not studio.workload.groups:
        st.info(
            "There is nothing to compare yet: choose a schema and add queries on the Workload"
            " page.",
            icon="🧮",
        )
        return None
    all_choices = offered(studio)
    labels, limit = _inputs(studio, all_choices)
    chosen = [all_choices[label] for label in labels]
    base = studio.workload_budget_key
    key = f"compare|{base}|{_digest(*labels)}|{limit}"
    if not labels:
        st.info("Choose at least one mechanism.", icon="⚖️")
    else:
        with show_errors():
            if labels == _first(studio, all_choices) and job_queue.find(key) is None:
                begin(key, studio, chosen, limit)  # quick: nobody has to ask for it
            _start(key, studio, chosen, limit)
    job_result = job_widget.job(key, label="Comparison", stream=True) if labels else None
    if job_result is None:
        return _so_far(studio, key, chosen, limit) or _before(key, base, current_choice(studio)[0])
    st.session_state[LAST] = key
    return _compared(job_result, key, current_choice(studio)[0])


def _first(studio: RequestState, choices: Mapping[str, tuple[str, Mapping[str, Any]]]) -> list[str]:
    """What is compared as soon as the page is opened: what the studio has chosen, and others, if
    they are quick.
    """
    table = _expected(f"{studio.key}|{list(choices)}", studio, list(choices.values()))
    return quick_choices(table, also=current_choice(studio)[0])


def _add_rest(labels: list[str]) -> None:
    st.session_state[CHOSEN] = labels


def _inputs(
    studio: RequestState, choices: Mapping[str, tuple[str, Mapping[str, Any]]]
) -> tuple[list[str], float]:
    left, right = st.columns([5, 1])
    labels = list(choices)
    with show_errors():
        st.session_state.setdefault(CHOSEN, _first(studio, choices))
    chosen = left.multiselect(
        "Mechanisms to compare",
        labels,
        format_func=title_of,
        key=CHOSEN,
        persist_state="session",
        help=(
            "The quick ones are compared at once. A mechanism that does not apply to this workload"
            " says why."
        ),
    )
    if len(chosen) < len(labels):
        buttons.button(
            "Choose all, the slow ones too", _add_rest, labels, key="compare_all", place=left
        )
    limit = right.number_input(
        "Seconds for each",
        1,
        3600,
        START_LIMIT,
        key=LIMIT,
        persist_state="session",
        help="Time limit; a mechanism that needs longer is stopped and says so.",
    )
    return chosen, float(limit)


def _start(
    key: str, studio: RequestState, chosen: list[tuple[str, Mapping[str, Any]]], limit: float
) -> None:
    """Say what the comparison will take, and offer to start it."""
    job = job_queue.find(key)
    if job is not None and job.running:
        return
    table = _expected(key, studio, chosen)
    ready = table[table["status"] == "ok"]
    stuck = len(table) - len(ready)
    words = f"{pluralize(len(ready), 'mechanism')} can start; each stops at {limit:g} seconds."
    if stuck:
        words += f" {pluralize(stuck, 'mechanism')} cannot, and the table says why."
    left, right = st.columns([1, 3], vertical_alignment="center")
    done = job is not None and job.done
    buttons.button(
        "Compare",
        begin,
        key,
        studio,
        chosen,
        limit,
        key="compare_start",
        place=left,
        type="secondary" if done else "primary",
        disabled=done or ready.empty,
        help="This comparison is done; its results are below." if done else None,
        width="stretch",
    )
    right.caption(
        escape_markdown(
            "Done: the results are below and are kept for a second look." if done else words
        )
    )
    with st.expander(
        "What each is expected to take", key="compare_forecast", on_change="rerun"
    ) as opened:
        if opened.open:
            st.caption(
                "Seconds are rough, memory is an upper bound. Nothing has been planned for this"
                " table."
            )
            named = table.assign(mechanism=[title_of(label) for label in table["mechanism"]])
            figure_view.table(
                named,
                name="forecast",
                alt="Expected seconds and memory of every mechanism, or why not",
            )


def _compared(job: Status, key: str, label: str) -> Compared:
    comparison, choices = job.result
    return Compared(found=comparison, choices=choices, key=key, present=label)


def _so_far(
    studio: RequestState, key: str, chosen: list[tuple[str, Mapping[str, Any]]], limit: float
) -> Compared | None:
    """What there is of a comparison that is on its way, row by row."""
    job = job_queue.find(key)
    if job is None or not job.running:
        return None
    partial = partial_comparison(studio.required_workload, studio.budget, chosen, time_limit=limit)
    if partial is None:
        return None
    st.caption(
        f"{len(partial.frame)} of {pluralize(len(chosen), 'mechanism')} so far; the others follow."
    )
    choices = {label_of(name, options): (name, options) for name, options in chosen}
    return Compared(found=partial, choices=choices, key=key, present=current_choice(studio)[0])


def _before(key: str, base: str, label: str) -> Compared | None:
    """The last comparison of this workload and budget, when another choice was made since."""
    last = st.session_state.get(LAST, "")
    job = job_queue.find(last) if last != key and last.startswith(f"compare|{base}|") else None
    if job is None or not job.done:
        return None
    st.caption("Below are the results of the choice before this one.")
    return _compared(job, last, label)


def _digest(*texts: str) -> str:
    return hashlib.sha256("|".join(texts).encode()).hexdigest()[:16]
