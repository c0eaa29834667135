"""Views of a plan against a purpose: a wanted error and its budget, one query of one's own, and the
best possible.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import streamlit as st

from engine import _format as texts
from engine import analysis, figures
from engine.plans import Plan
from engine.privacy import Budget
from pages.parts.jobs import job_queue, job_widget, tasks
from pages.parts.shell import buttons, figure_view, history
from pages.parts.shell.budgets import in_words, other_units
from pages.parts.shell.error_text import (
    deferred_errors,
    escape_markdown,
    show_deferred_error,
    show_errors,
)
from pages.parts.workload import query_form, record_count_form

SHARES = {0.5: "50%", 0.8: "80%", 0.9: "90%", 0.95: "95%", 0.99: "99%", 1.0: "all"}
NEEDED = "needed"
ERROR, INTERVAL = "standard error", "95% interval"


def spread(plan: Plan) -> None:
    """Share of the queries within a tolerance, and the budget that brings a tolerance to a share."""
    one, two, three = st.columns(3, vertical_alignment="bottom")
    tolerance = one.number_input(
        "Tolerance: ± counts",
        min_value=0.001,
        value=analysis.two_digits(plan.rmse, plan),
        format="%.4g",
        key="tolerance",
        persist_state="session",
        help="How far off an answer may be and still be good enough",
    )
    meant = two.radio(
        "What must be within it",
        [ERROR, INTERVAL],
        horizontal=True,
        key="tolerance_is",
        persist_state="session",
        help="A 95% interval reaches about two standard errors to each side.",
    )
    share = three.selectbox(
        "For how many of the queries",
        list(SHARES),
        index=3,
        format_func=SHARES.__getitem__,
        key="tolerance_share",
    )
    error = tolerance if meant == ERROR else analysis.error_for(plan, tolerance)
    text = analysis.within_text(plan, error)
    st.markdown(f"**With this plan:** {escape_markdown(text)}")
    if needed(
        plan,
        f"To bring {_share_words(share)} within it",
        lambda nearly: analysis.budget_for_error(plan, error, share, nearly=nearly),
        key="share",
    ):
        reached = texts.format_number(analysis.tolerance_for(plan, share))
        st.caption(
            f"With the present budget the standard error is at most {reached} counts for"
            f" {_share_words(share)}."
        )
    figure_view.picture(replace(figures.spread_picture(plan, error), alt=text), key="spread")


def usable(plan: Plan) -> None:
    """Which answers are publishable, doubtful or noise, by group, and the budget for a share that
    is.
    """
    scale = record_count_form.scale()
    if scale is None:
        return
    with show_errors():
        picture = figures.quality_picture(plan, scale)
        st.markdown(f"**{escape_markdown(picture.alt)}**")
        left, _ = st.columns([1, 3])
        label = "Share that has to be publishable"
        share = left.selectbox(label, list(SHARES), 2, SHARES.__getitem__, key="usable_share")
        needed(
            plan,
            f"To make {_share_words(share).replace('queries', 'answers')} publishable",
            lambda nearly: analysis.budget_for_quality(plan, scale, share, nearly=nearly),
            key="usable",
        )
        figure_view.picture(picture, key="usable", config=figure_view.EXPORT)


def needed(plan: Plan, goal: str, find: Callable[[bool], Budget], *, key: str) -> bool:
    """Say which budget reaches a goal, with the button that takes it; False, with the reason, when
    none does.

    `find` is asked for the budget nearly, which is all that the digits shown tell, and exactly when
    the button is pressed: that makes plans.
    """
    with show_errors():
        job_state = find(True)
        left, right = st.columns([3, 1], vertical_alignment="center")
        left.markdown(
            f"**{goal}:** a budget of {escape_markdown(in_words(job_state))} is needed; this plan"
            f" spends {escape_markdown(in_words(plan.budget))}.",
            help=escape_markdown(other_units(job_state)),
        )
        buttons.button(
            "Use this budget",
            _use,
            find,
            key,
            key=f"use_budget_{key}",
            place=right,
            width="stretch",
        )
        show_deferred_error(f"{NEEDED}_{key}")
        return True
    return False


def _use(find: Callable[[bool], Budget], key: str) -> None:
    with deferred_errors(f"{NEEDED}_{key}"):
        history.change(budget=find(False), redraw=True)


def one_query(plan: Plan) -> None:
    """Predicted error of a query that the reader makes up, at this budget and at others."""
    with show_errors():
        query = query_form.choose(plan.schema, key="probe", drawn=True)
        if query is None:
            return
        variance = plan.variance_of(query.attributes, query.tensor)
        st.markdown(f"**{escape_markdown(query.text)}**")
        left, right = st.columns(2)
        left.metric(
            "Standard error",
            f"{texts.format_number(variance**0.5)} counts",
            help="Typical size of the noise",
        )
        half = analysis.half_width(plan, variance)
        right.metric(
            "95% interval",
            f"answer ± {texts.format_number(half)} counts",
            help="Holds the true count 95% of the time",
        )
        if variance == 0.0:
            st.caption("It counts no record, so its answer is 0 without any noise.")
            return
        wanted = st.number_input(
            "Wanted 95% interval: ± counts",
            min_value=0.001,
            value=analysis.two_digits(half, plan),
            format="%.4g",
            key="probe_wanted",
            persist_state="session",
        )
        needed(
            plan,
            f"To know it within ± {texts.format_number(wanted)}",
            lambda nearly: analysis.budget_for_query(
                plan,
                query.attributes,
                query.tensor,
                analysis.error_for(plan, wanted),
                nearly=nearly,
            ),
            key="probe",
        )
        figure_view.picture(
            figures.interval_picture(plan, variance, in_words),
            key="probe_budgets",
            config=figure_view.EXPORT,
        )


def distance(plan: Plan) -> None:
    """How far the plan is from what its class, and what any matrix mechanism, could reach."""
    key = _bound_key(plan)
    job_state = job_queue.find(key)  # started with the headline
    if job_state is not None and job_state.done:
        st.markdown(f"**{escape_markdown(analysis.bound_text(plan, job_state.result))}**")
        figure_view.picture(
            figures.distance_picture(plan, job_state.result),
            key="distance",
            config=figure_view.EXPORT,
        )
    elif not job_queue.is_there(key):
        buttons.button("Search again", _search, plan, key="bound_again")
    st.caption(escape_markdown(analysis.certificate_text(plan)))


def best(plan: Plan) -> str | None:
    """How far the plan is at most above the best of all matrix mechanisms; "" while that is
    searched beside the page.

    None where no bound on all of them comes out.
    """
    key = _bound_key(plan)
    if job_queue.find(key) is None:
        _search(plan)
    job_state = job_queue.find(key)
    if job_state is not None and job_state.done:
        return analysis.above_best(plan, job_state.result) or None
    return "" if job_state is not None and job_state.running else None


def search(plan: Plan) -> None:
    """How the search for the best possible goes on; nothing once it is found."""
    job_widget.job(_bound_key(plan), label="Searching what any mechanism could reach", quiet=True)


def _search(plan: Plan) -> None:
    job_widget.start(_bound_key(plan), tasks.find_bound, plan.workload.to_json(), plan.budget.law)


def _bound_key(plan: Plan) -> str:
    return f"bound|{plan.budget.law}|{analysis.workload_digest(plan.workload)}"


def _share_words(share: float) -> str:
    return f"{SHARES[share]} of the queries" if share < 1 else "every query"
