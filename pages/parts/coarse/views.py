"""Views of a look (first measurement) and of the final answers, for rehearsals and releases."""

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

STOP = "stop"  # decision for no analysis
MAX_OPTIONS = 2_000  # largest number of tables in a list; above, the user enters an index


def verdict_option(decision: Decision, common: CommonPlan) -> str:
    """Return the name of the analysis that a decision chooses; "stop" if it chooses none."""
    return STOP if decision.choice is None else common.names[decision.choice]


def look(rule: NestedPlanRule, measurement: Measurement, *, key: str) -> Decision:
    """Draw the result of a first measurement, and return the decision of the rule.

    Tabs show the signal-to-noise ratio of the cells, the share of reliable cells, and the answers.
    """
    decision = rule.decide(measurement)
    with st.container(border=True):
        st.caption("Decision by the rule")
        sentence = figures.in_screen_words(decision.sentence)
        st.markdown(f"**{escape_markdown(sentence)}**")
        st.caption(escape_markdown(figures.verdict_reason(rule, decision)))
        if not decision.certain:
            st.caption("Uncertain at this safety margin; the rule is conservative.")
    views = {
        "Reliable cells": lambda: _cells(rule, measurement, key),
        "Share of reliable cells": lambda: figure_view.picture(
            figures.shares_above_picture(rule, measurement), key=f"{key}_shares"
        ),
        "Answers of this measurement": lambda: results_view.browse(
            measurement, key=f"{key}_look", name=f"{key}_look"
        ),
    }
    figure_view.tabs(views, key=f"{key}_view")
    return decision


def _cells(rule: NestedPlanRule, measurement: Measurement, key: str) -> None:
    """Draw the signal-to-noise ratio of the cells of one table, under one analysis."""
    left, right = st.columns(2)
    if len(rule.groups) > MAX_OPTIONS:
        number = int(left.number_input("Table", 1, len(rule.groups), 1, key=f"{key}_group"))
        group = number - 1
        left.caption(escape_markdown(figures.group_text(rule, group)))
    else:
        group = left.selectbox(
            "Table",
            range(len(rule.groups)),
            format_func=lambda i: figures.group_text(rule, i),
            key=f"{key}_group",
        )
    names = [rule.common.names[i] for i in (rule.common.position(rule.primary), *rule.finer)]
    option = right.selectbox(
        "Analysis",
        names,
        index=len(names) - 1,
        format_func=figures.in_screen_words,
        key=f"{key}_option",
    )
    figure_view.picture(figures.snr_picture(rule, measurement, group, option), key=f"{key}_snr")


def answers(
    measurement: Measurement,
    *,
    key: str,
    records: Any = None,
    ledger: str = "",
    is_look: bool = False,
) -> None:
    """Draw the answers, a form for further questions, and the downloads of a finished release.

    Parameters
    ----------
    records : simulated records of a rehearsal; None for a release.
    ledger : path of the ledger of a release; empty for a rehearsal.
    is_look : whether only the first measurement was made, because the user decided to stop after
        it.
    """
    views = {
        "Answers": lambda: results_view.browse(
            measurement, key=key, records=records, name=f"{key}_answers"
        ),
        "Ask a question": lambda: results_view.ask(measurement, key=key),
        "Download": lambda: download_view.downloads(
            measurement, key=key, ledger=ledger, to_server=False, has_package=not is_look
        ),
    }
    figure_view.tabs(views, key=f"{key}_tab")
