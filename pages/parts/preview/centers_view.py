"""Which centers the plan has and why, what that does to single groups, and one click to change
either.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from engine import analysis
from engine.errors import EngineError, NotApplicable
from engine.mechanisms import mechanism_class
from engine.plans import Plan
from pages.parts.jobs import plans
from pages.parts.shell import buttons, history
from pages.parts.shell.error_text import deferred_errors, escape_markdown, show_deferred_error
from pages.parts.shell.request_state import CENTERS, PAPER, RequestState

TUNED = "tuned"
CHOSEN = {PAPER: "uniform centers, as in the paper: chosen", TUNED: "tuned centers: chosen"}
MOST_GROUPS = 5_000  # above, the plan with uniform centers would double what the page takes
UNKNOWN = "Single groups may be less exact than with uniform centers; Compare tells which."


def draw(plan: Plan) -> None:
    """Say which centers were taken and why, and how single groups fare; buttons take others, or
    keep the groups.
    """
    studio = history.current()
    if CENTERS not in (cls := mechanism_class(studio.mechanism)).choices:
        st.caption(f"Mechanism: {cls.title}")
        return
    centers, keep = studio.options_without_defaults.get(CENTERS, PAPER), studio.options.get("keep")
    words = f"Mechanism: {cls.title}, {studio.default_options.reason or CHOSEN[centers]}."
    if centers == TUNED and (more := _single(studio, plan)):
        words += f" {more}"
    st.caption(escape_markdown(words))
    with st.container(horizontal=True):
        if centers == PAPER:
            _button("Pass totals down as it suits the workload", {CENTERS: TUNED}, "centers_tuned")
        else:
            _button("Pass totals down evenly", {CENTERS: PAPER}, "centers_uniform")
            if studio.options_without_defaults.get("objective", "sum") == "sum":
                if keep is None:
                    _button(
                        "Keep every group as exact", {CENTERS: TUNED, "keep": 0.0}, "keep_groups"
                    )
                else:
                    _button(
                        "Best in total, whatever single groups lose", {CENTERS: TUNED}, "keep_none"
                    )
    show_deferred_error(CENTERS)


def _button(label: str, options: Mapping[str, Any], key: str) -> None:
    buttons.button(label, _take, options, key=key, type="tertiary")


def _take(options: Mapping[str, Any]) -> None:
    """Take these centers, leave the other options as they are, and start the plan where that takes
    long.
    """
    studio = history.current()
    rest = {name: value for name, value in studio.options.items() if name not in (CENTERS, "keep")}
    with deferred_errors(CENTERS):
        changed = studio.with_options(rest | dict(options))
        plans.begin(changed)
        history.commit(changed, redraw=True)


def _single(studio: RequestState, plan: Plan) -> str:
    """How single groups fare against uniform centers: the same at every budget of one kind."""
    try:
        return _changed(f"{studio.request_key}{studio.budget.law}", studio, plan)
    except EngineError:
        return UNKNOWN


@st.cache_resource(max_entries=64, show_spinner=False)
def _changed(question: str, _studio: RequestState, _plan: Plan) -> str:
    rest = {
        name: value
        for name, value in _studio.options_without_defaults.items()
        if name not in (CENTERS, "keep")
    }
    even = (
        plans.quick_plan(_studio.with_options(rest))
        if len(_plan.workload.groups) <= MOST_GROUPS
        else None
    )
    if even is None:  # what is raised is not kept, so that it is looked for again
        raise NotApplicable("The plan with uniform centers takes long.")
    return analysis.single_groups_text(_plan, even)
