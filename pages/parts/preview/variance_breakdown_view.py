"""Sources of the error of a table, and trials of changes that could reduce it."""

from __future__ import annotations

from dataclasses import replace

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from engine import _format as texts
from engine import analysis, figures
from engine.analysis.change_effects import changed_requests
from engine.analysis.variance_breakdown import breakdown_text, errors_by_group, worst_query
from engine.analysis.what_if import CHANGES, Change, ChangedRequest, coarser_attribute, twice_budget
from engine.plans import Plan
from engine.privacy import Budget
from engine.workload.attribute import domain_text
from pages.parts.jobs import job_queue, job_widget, plans, tasks
from pages.parts.shell import budgets, buttons, figure_view, history
from pages.parts.shell.error_text import (
    deferred_errors,
    escape_markdown,
    show_deferred_error,
    show_errors,
)

MEAN, WORST, CHOSEN = "Average of all queries", "Least accurate query", "Query by number"
MAX_EXPECTED_S = 2.0  # longest expected time of one plan at which all changes are planned
JOB = "changes_job"  # session key of the job that plans the changes
RAISED_COST = (
    "Twice the privacy cost (pcost) halves every variance. ε grows more slowly than the cost."
)
RAISED_EPSILON = "Twice the epsilon halves every standard error."
BY_NAME = {change.name: change for change in CHANGES}
# Session key of the trial, which is a tuple: the request before the trial as JSON, the index of the
# group, and the changed request.
TRIAL = "what_if"


def why(plan: Plan, number: int, detail: DeltaGenerator, trial: DeltaGenerator) -> None:
    """Draw a sentence with the main source of the error of a group, and buttons for changes.

    Parameters
    ----------
    number : index of the group.
    detail : container for the button that opens the chart of all sources of error.
    trial : container for the errors before and after a change that the user tries.
    """
    with show_errors():
        place = st.container()
        with detail, st.popover("Sources of error"):
            query = _query(plan, number)
            picture = figures.breakdown_picture(plan, number, query)
            figure_view.chart(picture, key="why", config=figure_view.EXPORT)()
            figure_view.downloads(lambda: picture.table, name="why")
        place.markdown(f"**Why:** {escape_markdown(breakdown_text(plan, number, query))}")
    st.markdown(
        "**Ways to reduce this error** (typical error of this table, in counts)",
        help="Each button shows a change before you apply it. Behind the errors stands the other"
        f" table whose error rises most, if any does.{_sum_text(plan.budget)}",
    )
    _ways(plan, number)
    with trial:
        show_deferred_error(TRIAL)
        _draw_trial(plan)


def _sum_text(budget: Budget) -> str:
    """Return the sentence that epsilons do not add up, if this is so for the chosen unit."""
    is_sum = budget.pure_epsilon is not None or budgets.chosen_unit() != budgets.APPROX
    return "" if is_sum else f" {budgets.SUM_NOTE}"


def _query(plan: Plan, group: int) -> int | None:
    """Draw the choice of the query to explain; return its index in the group.

    None stands for the average of all queries of the group.
    """
    worst = worst_query(plan, group)
    choices = [MEAN, *([WORST] if worst is not None else []), CHOSEN]
    choice = st.radio("Error of", choices, horizontal=True, key="why_what")
    if choice == MEAN:
        return None
    query = worst
    if choice == CHOSEN or query is None:
        last = plan.workload.groups[group].count - 1
        query = int(
            st.number_input(
                f"Query number (0 to {texts.number(last)})", 0, last, 0, key=f"why_query_{group}"
            )
        )
    error = float(plan.variances(group, query, query + 1)[0]) ** 0.5
    text = escape_markdown(plan.workload.describe_in_group(group, query))
    st.caption(
        f"Query {texts.number(query)}: {text}. Standard error {texts.format_number(error)} counts."
    )
    return query


def _ways(plan: Plan, group: int) -> None:
    """Draw the changes that lower the error of a group, each with its effect.

    A worker computes the effects. If one plan takes long, all changes are drawn without effects.
    """
    request_state = history.current()
    if plans.expected_seconds(request_state) > MAX_EXPECTED_S:
        _untried_ways(group)
        return
    # Relative changes of errors do not depend on the size of the budget.
    key = f"changes|{request_state.budget.law}|{request_state.request_key}|{group}"
    job_widget.replace_job(JOB, key)
    if job_queue.find(key) is None:
        job_widget.start(key, tasks.helpful_changes, *request_state.plan_arguments, group)
    job = job_widget.job(key, label="Comparing changes", quiet=True)
    if job is None:
        return
    error = float(errors_by_group(plan)["rmse"][group])
    for effect in job.result:
        # The effects may have been computed at another budget.
        effect_now = replace(effect, before=error, after=error * effect.after / effect.before)
        with st.container(horizontal=True, vertical_alignment="center"):
            _way(BY_NAME[effect.name], group, effect.attribute)
            bins = f"; {_merged_bins(effect.attribute)}" if effect.attribute else ""
            st.caption(escape_markdown(effect_now.text + bins), width="content")


def _untried_ways(group: int) -> None:
    """Draw a button for each change of the request that retains the group."""
    st.caption("Planning takes long here, so each change is planned only when you try it.")
    with st.container(horizontal=True):
        for change, attribute, _ in changed_requests(history.current().request, group):
            _way(change, group, attribute)
            if attribute:
                st.caption(escape_markdown(_merged_bins(attribute)), width="content")


def _merged_bins(attribute: str) -> str:
    """Return the bins of an attribute after pairs of adjacent ones are merged, as text."""
    merged = coarser_attribute(history.current().required_workload.schema[attribute])
    return f"new bins: {domain_text(merged)}"


def _way(change: Change, group: int, attribute: str) -> None:
    """Draw the button that tries a change; ``attribute`` has the bins that the change merges."""
    request = history.current().request
    label, tooltip = f"Merge bins of {attribute}" if attribute else change.label(request), None
    if change.name == "budget":
        tooltip = RAISED_COST if request.budget.pure_epsilon is None else RAISED_EPSILON
        label = _raised_budget(twice_budget(request, group).request.budget, request.budget)
    buttons.button(
        escape_markdown(label),
        _start_trial,
        change,
        group,
        attribute,
        key=f"what_if_{change.name}{'_' if attribute else ''}{attribute}",
        help=tooltip,
    )


def _raised_budget(new: Budget, old: Budget) -> str:
    """Return the text of a budget that `twice_budget` raised, in the chosen unit."""
    (unit, after), (old_unit, before) = (
        budgets.headline(budget, budgets.chosen_unit()).rsplit(" ", 1) for budget in (new, old)
    )
    factor = "2 × the privacy cost" if old.pure_epsilon is None else "2 × epsilon"
    if unit != old_unit:  # a very small budget, such as "less than 0.0000001"
        return f"Use {factor}"
    return f"Raise {unit} from {before} to {after} ({factor})"


def _start_trial(change: Change, group: int, attribute: str) -> None:
    """Store a changed request as the trial; if planning takes long, start it in a worker."""
    st.session_state.pop(TRIAL, None)
    with deferred_errors(TRIAL):
        before = history.current()
        changed_request = change.apply(before.request, group, attribute)
        plans.begin(before.with_request(changed_request.request))
        st.session_state[TRIAL] = (before.to_json(), group, changed_request)


def _draw_trial(plan: Plan) -> None:
    """Draw the errors before and after the stored trial, with buttons to apply or discard it.

    Nothing is drawn if the request has changed since the trial started.
    """
    before, group, changed_request = st.session_state.get(TRIAL, ("", 0, None))
    request_state = history.current()
    if changed_request is None or before != request_state.to_json():
        return
    with st.container(border=True), show_errors():
        text = _change_text(changed_request, request_state.budget)
        st.markdown(f"**What if: {escape_markdown(text)}**")
        after = plans.plan_of(request_state.with_request(changed_request.request))
        if after is not None:
            table = analysis.error_table(plan, after, group, changed_request)
            figure_view.table(table, name="what_if", alt="Errors before and after the change")
            st.caption(analysis.query_count_text(plan, after))
        with st.container(horizontal=True):
            if after is not None:
                buttons.button(
                    "Apply this change", _apply, changed_request, key="what_if_keep", type="primary"
                )
            st.button("Discard this change", on_click=_discard, key="what_if_forget")


def _change_text(changed_request: ChangedRequest, budget: Budget) -> str:
    """Return the sentence that describes a change; budgets are in the chosen unit.

    ``budget`` is the budget before the change.
    """
    changed_budget = changed_request.request.budget
    if changed_budget == budget:
        return changed_request.text
    return f"{_raised_budget(changed_budget, budget)}."


def _apply(changed_request: ChangedRequest) -> None:
    history.commit(history.current().with_request(changed_request.request), redraw=True)
    _discard()


def _discard() -> None:
    st.session_state.pop(TRIAL, None)
