"""Views of a look and of what was released after it; the same for a rehearsal and for real."""

from __future__ import annotations

from typing import Any

import streamlit as st

from engine import figures
from engine.common_mechanism import CommonPlan, NestedPlanRule
from engine.common_mechanism.selection_rule import Decision
from engine.release import Measurement
from pages.parts.release import download_view, results_view
from pages.parts.shell import figure_view
from pages.parts.shell.error_text import escape_markdown

STOP = "stop"
MANY = 2_000  # groups that a list may hold


def verdict_option(decision: Decision, common: CommonPlan) -> str:
    """The option that a verdict takes, or "stop"."""
    return STOP if decision.choice is None else common.names[decision.choice]


def look(rule: NestedPlanRule, looked: Measurement, *, key: str) -> Decision:
    """What the look says: verdict, cells, shares, and its own answers."""
    decision = rule.decide(looked)
    with st.container(border=True):
        st.caption("The verdict of the rule")
        st.markdown(f"**{escape_markdown(decision.sentence)}**")
        if not decision.certain:
            st.caption(
                "The look leaves a doubt at this safety margin; the rule takes the safe side."
            )
    views = {
        "Which cells stand out": lambda: _cells(rule, looked, key),
        "How many stand out": lambda: figure_view.picture(
            figures.shares_above_picture(rule, looked), key=f"{key}_shares"
        ),
        "Answers of the look": lambda: results_view.browse(
            looked, key=f"{key}_look", name=f"{key}_look"
        ),
    }
    figure_view.tabs(views, key=f"{key}_view")
    return decision


def _cells(rule: NestedPlanRule, looked: Measurement, key: str) -> None:
    left, right = st.columns(2)
    if len(rule.groups) > MANY:
        group = int(left.number_input("Table", 0, len(rule.groups) - 1, 0, key=f"{key}_group"))
        left.caption(escape_markdown(figures.group_text(rule.groups[group])))
    else:
        group = left.selectbox(
            "Table",
            range(len(rule.groups)),
            format_func=lambda i: figures.group_text(rule.groups[i]),
            key=f"{key}_group",
        )
    names = [rule.common.names[i] for i in (rule.common.position(rule.primary), *rule.finer)]
    option = right.selectbox(
        "If this were chosen", names, index=len(names) - 1, key=f"{key}_option"
    )
    figure_view.picture(figures.snr_picture(rule, looked, group, option), key=f"{key}_snr")


def answers(measurement: Measurement, *, key: str, records: Any = None) -> None:
    """The final answers, as on the Release page."""
    views = {
        "Answers": lambda: results_view.browse(
            measurement, key=key, records=records, name=f"{key}_answers"
        ),
        "Ask something else": lambda: results_view.ask(measurement, key=key),
        "Download": lambda: download_view.downloads(measurement, key=key),
    }
    figure_view.tabs(views, key=f"{key}_tab")
