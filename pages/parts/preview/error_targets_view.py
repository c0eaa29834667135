"""Errors of a plan against a target, the budget that reaches it, and the gap to a lower bound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import streamlit as st

from engine import _format as texts
from engine import analysis, figures
from engine.plans import Plan
from engine.privacy import Budget
from pages.parts.jobs import job_queue, job_widget, tasks
from pages.parts.shell import buttons, figure_view, history
from pages.parts.shell.budgets import chosen_unit, headline, nearby_pcosts, other_units
from pages.parts.shell.error_text import (
    deferred_errors,
    escape_markdown,
    show_deferred_error,
    show_errors,
)
from pages.parts.workload import query_form, record_count_form

# Maps a share of queries to its text on screen.
SHARES = {0.5: "50%", 0.8: "80%", 0.9: "90%", 0.95: "95%", 0.99: "99%", 1.0: "all"}
NEEDED = "needed"  # start of the keys of errors of the button "Use this budget"
ERROR, INTERVAL = "standard error", "95% interval"


def spread(plan: Plan) -> None:
    """Draw the share of queries with an error within a tolerance.

    Below, draw the smallest budget at which a chosen share of the queries has such an error.
    """
    left, middle, right = st.columns(3, vertical_alignment="bottom")
    tolerance = left.number_input(
        "Tolerance (± counts)",
        min_value=0.001,
        value=analysis.two_digits(plan.rmse, plan),
        format="%.4g",
        key="tolerance",
        persist_state="session",
        help="Largest acceptable error of an answer.",
    )
    measure = middle.radio(
        "Apply to",
        [ERROR, INTERVAL],
        horizontal=True,
        key="tolerance_is",
        persist_state="session",
        help="A 95% interval reaches about two standard errors to each side.",
    )
    share = right.selectbox(
        "Share of queries",
        list(SHARES),
        index=list(SHARES).index(0.95),
        format_func=SHARES.__getitem__,
        key="tolerance_share",
    )
    std = tolerance if measure == ERROR else analysis.error_for(plan, tolerance)
    text = analysis.within_text(plan, std)
    st.markdown(f"**With this plan:** {escape_markdown(text)}")
    if _show_needed_budget(
        plan,
        f"For {_share_words(share)} to meet this",
        lambda nearly: analysis.budget_for_error(plan, std, share, nearly=nearly),
        key="share",
    ):
        largest = texts.format_number(analysis.tolerance_for(plan, share))
        st.caption(
            f"With the current budget, {_share_words(share)} have a standard error of at most"
            f" {largest} counts."
        )
    figure_view.picture(replace(figures.spread_picture(plan, std), alt=text), key="spread")


def usable(plan: Plan) -> None:
    """Draw the expected share of publishable answers, and the budget for a chosen share.

    An answer is publishable if its coefficient of variation is at most the limit of the form.
    Without an expected record count, which is entered above, only the form is drawn.
    """
    record_count_form.limits(*st.columns(2, vertical_alignment="bottom"))
    scale = record_count_form.entered_scale()
    if scale is None:
        if not st.session_state.get(record_count_form.RECORDS):
            st.caption("Enter the expected record count above to rate each answer.")
        return
    with show_errors():
        picture = figures.quality_picture(plan, scale)
        st.markdown(f"**{escape_markdown(picture.alt)}**")
        left, _ = st.columns([1, 3])
        label = "Required publishable share"
        share = left.selectbox(
            label,
            list(SHARES),
            index=list(SHARES).index(0.9),
            format_func=SHARES.__getitem__,
            key="usable_share",
        )
        _show_needed_budget(
            plan,
            f"For {_share_words(share).replace('queries', 'answers')} to be publishable",
            lambda nearly: analysis.budget_for_quality(plan, scale, share, nearly=nearly),
            key="usable",
        )
        figure_view.picture(picture, key="usable", config=figure_view.EXPORT)


def _show_needed_budget(plan: Plan, goal: str, find: Callable[[bool], Budget], *, key: str) -> bool:
    """Draw the smallest budget that reaches a goal, with a button that applies this budget.

    The button is disabled if the plan already has this budget, up to the displayed digits.

    Parameters
    ----------
    goal : the goal as text, which is drawn before the budget.
    find : function that returns the budget. ``find(True)`` is fast and exact to the displayed
        digits. ``find(False)`` plans repeatedly, and is called only when the button is pressed.
    key : end of the keys of the button and its error.

    Returns
    -------
    True if a budget reaches the goal. False if none does; the page then shows the reason.
    """
    with show_errors():
        estimate = find(True)
        left, right = st.columns([3, 1], vertical_alignment="center")
        needed, current = (headline(budget, chosen_unit()) for budget in (estimate, plan.budget))
        is_met = needed == current
        verb = "is enough" if estimate.pcost < plan.budget.pcost else "is needed"
        comparison = (
            "the current budget is enough" if is_met else f"{needed} {verb} (now {current})"
        )
        left.markdown(
            f"**{goal}:** {escape_markdown(comparison)}.",
            help=escape_markdown(other_units(estimate)),
        )
        buttons.button(
            "Use this budget",
            _use,
            find,
            key,
            key=f"use_budget_{key}",
            place=right,
            width="stretch",
            disabled=is_met,
            help="The plan already has this budget." if is_met else None,
        )
        show_deferred_error(f"{NEEDED}_{key}")
        return True
    return False


def _use(find: Callable[[bool], Budget], key: str) -> None:
    with deferred_errors(f"{NEEDED}_{key}"):
        history.change(budget=find(False), redraw=True)


def one_query(plan: Plan) -> None:
    """Draw the choice of a query, its error at several budgets, and the budget for a target."""
    with show_errors():
        query = query_form.choose(plan.schema, key="probe", with_drawing=True)
        if query is None:
            return
        variance = plan.variance_of(query.attributes, query.tensor)
        st.markdown(f"**{escape_markdown(query.text)}**")
        left, right = st.columns(2)
        left.metric(
            "Standard error",
            f"{texts.format_number(variance**0.5)} counts",
            help="Typical size of the noise.",
        )
        half_width = analysis.half_width(plan, variance)
        right.metric(
            "95% interval",
            f"answer ± {texts.format_number(half_width)} counts",
            help="Contains the true count 95% of the time.",
        )
        if variance == 0.0:
            st.caption("This query counts no record; its answer is 0, without noise.")
            return
        target = st.number_input(
            "Target 95% interval (± counts)",
            min_value=0.001,
            value=analysis.two_digits(half_width, plan),
            format="%.4g",
            key="probe_wanted",
            persist_state="session",
        )
        _show_needed_budget(
            plan,
            f"For an interval of ± {texts.format_number(target)}",
            lambda nearly: analysis.budget_for_query(
                plan,
                query.attributes,
                query.tensor,
                analysis.error_for(plan, target),
                nearly=nearly,
            ),
            key="probe",
        )
        figure_view.picture(
            figures.interval_picture(
                plan,
                variance,
                partial(headline, unit=chosen_unit()),
                nearby_pcosts(plan.budget),
            ),
            key="probe_budgets",
            config=figure_view.EXPORT,
        )


def distance(plan: Plan) -> None:
    """Draw how far the error of a plan is above its lower bounds.

    The bound of the plan's certificate is always drawn. The bound for all matrix mechanisms is
    drawn once its job is done, and only for plans that minimise the sum of variances.
    """
    if not _minimizes_sum(plan):
        _draw_certificate(plan)
        return
    key = _bound_key(plan)
    # The headline of the page calls `best`, which starts the job with this key.
    job_state = job_queue.find(key)
    if job_state is not None and job_state.done:
        st.markdown(
            f"**{escape_markdown(analysis.short_bound_text(plan, job_state.result))}**",
            help=analysis.BIAS_NOTE,
        )
        figure_view.picture(
            figures.distance_picture(plan, job_state.result),
            key="distance",
            config=figure_view.EXPORT,
        )
    elif not job_queue.is_there(key):
        buttons.button("Search for the bound again", _search, plan, key="bound_again")
    _draw_certificate(plan)


def _draw_certificate(plan: Plan) -> None:
    """Draw the bound of the certificate of a plan; a tooltip has its complete statement."""
    text = analysis.short_certificate_text(plan)
    st.caption(escape_markdown(text), help=escape_markdown(plan.certificate.statement))


def best(plan: Plan) -> str | None:
    """Return the gap to the lower bound for all matrix mechanisms as text, such as "0.4%".

    The text is empty while a worker searches for the bound; the first call starts this search.
    The result is None if the search ended without a bound, or if the plan does not minimise the sum
    of variances.
    """
    if not _minimizes_sum(plan):
        return None
    key = _bound_key(plan)
    if job_queue.find(key) is None:
        _search(plan)
    job_state = job_queue.find(key)
    if job_state is not None and job_state.done:
        return analysis.above_best(plan, job_state.result) or None
    return "" if job_state is not None and job_state.running else None


def _minimizes_sum(plan: Plan) -> bool:
    """Return whether a plan minimises the weighted sum of variances.

    The lower bound for all matrix mechanisms is known only for this objective.
    """
    return bool(plan.options.get("objective", "sum") == "sum")


def search(plan: Plan) -> None:
    """Draw the progress of the search for the lower bound, if there is a search."""
    job_widget.job(_bound_key(plan), label="Searching for the theoretical limit", quiet=True)


def _search(plan: Plan) -> None:
    job_widget.start(_bound_key(plan), tasks.find_bound, plan.workload.to_json(), plan.budget.law)


def _bound_key(plan: Plan) -> str:
    return f"bound|{plan.budget.law}|{analysis.workload_digest(plan.workload)}"


def _share_words(share: float) -> str:
    return f"{SHARES[share]} of the queries" if share < 1 else "every query"
