"""Warning about tables with an error far above the typical one, and weights that reduce it."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from engine import analysis
from engine.plans import Plan
from pages.parts.jobs import job_queue, job_widget, plans, tasks
from pages.parts.shell import buttons, history
from pages.parts.shell.error_text import deferred_errors, escape_markdown, show_deferred_error
from pages.parts.shell.history import RequestState

PLACE = "hidden"  # key of the error of the button "Apply"
SEARCH_S = 5.0  # longest expected time of one plan at which weights are searched for


def draw(plan: Plan) -> None:
    """Draw a warning about tables with far larger errors than the typical error, if there are any.

    If planning is fast, a worker searches for larger weights of these tables. When it has found
    some, a button applies them.
    """
    hidden = analysis.hidden_groups(plan)
    if not hidden:
        return
    request_state = history.current()
    key = f"weights|{request_state.key}"
    text = analysis.hidden_text(plan, hidden)
    proposal = _proposal(key, request_state, hidden)
    if proposal is None:
        st.warning(escape_markdown(text), icon="🔎")
        job_widget.job(key, label="Searching for better weights", quiet=True)
        return
    text = f"{text} {analysis.proposal_text(proposal, len(hidden))}"
    left, right = st.columns([5, 1], vertical_alignment="center")
    left.warning(escape_markdown(text), icon="🔎")
    buttons.button(
        "Apply", _apply, hidden, proposal.factor, key="hidden_apply", place=right, width="stretch"
    )
    show_deferred_error(PLACE)


def _proposal(
    key: str, request_state: RequestState, hidden: Sequence[int]
) -> analysis.WeightProposal | None:
    """Return the weights that a worker proposes for the groups with the indices ``hidden``.

    The result is None while the search runs, or if it ended without weights. The first call starts
    the search, but only if one plan is expected to take at most `SEARCH_S` seconds.
    """
    job = job_queue.find(key)
    if job is None:
        if plans.expected_seconds(request_state) <= SEARCH_S:
            _search(key, request_state, hidden)
        return None
    proposal: analysis.WeightProposal | None = job.result
    return proposal


def _search(key: str, request_state: RequestState, hidden: Sequence[int]) -> None:
    job_widget.start(key, tasks.propose_weights, *request_state.plan_arguments, list(hidden))


def _apply(hidden: Sequence[int], factor: float) -> None:
    with deferred_errors(PLACE):
        workload = history.current().required_workload
        new_workload = analysis.raise_weights(workload, hidden, factor)
        history.change(workload=new_workload, redraw=True)
