"""Form for a target error per table or per table size; a locked target must be met."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import streamlit as st

from engine import analysis
from engine._format import format_number, pluralize
from engine.mechanisms import load_plan
from engine.plans import Plan
from engine.privacy import Budget
from pages.parts.jobs import job_queue, job_widget, plan_cache, tasks
from pages.parts.shell import buttons, figure_view, history
from pages.parts.shell.budgets import in_words, other_units
from pages.parts.shell.error_text import escape_markdown
from pages.parts.shell.history import RequestState

TITLE = "Each table size or table"
SIZES, EACH = "Each table size", "Each table"
SMALLEST = "Meet all targets with the smallest budget"
CURRENT = "Keep this budget; relax unlocked tables"
MAX_GROUP_TARGETS = 12  # groups that can have separate targets
# Maps the label of a row of the form to the indices of the groups that share its target.
Rows = Mapping[str, Sequence[int]]


def draw(plan: Plan) -> None:
    """Draw one target per row of the form, the button that searches for a plan, and its result."""
    request_state = history.current()
    rows = _rows(plan)
    goal = st.radio("Solve for", [SMALLEST, CURRENT], horizontal=True, key="targets_goal")
    targets, locked = _table(plan, request_state, rows, locks=goal == CURRENT)
    key = f"targets|{request_state.key}|{targets}|{locked}"
    with st.container(horizontal=True):
        buttons.button(
            "Solve targets",
            _solve,
            key,
            request_state,
            targets,
            locked,
            key="targets_solve",
            type="primary",
        )
        if "targets" in request_state.options:
            st.button("Remove targets", on_click=_remove, key="targets_forget")
    finished_job = job_widget.job(key, label="Solving targets")
    if finished_job is not None:
        budget, options, text = finished_job.result
        new_plan = plan_cache.plan_of_key(key, lambda: load_plan(text))
        _show_result(
            request_state.budget,
            plan,
            new_plan,
            analysis.errors_against_targets(new_plan, rows, options["targets"]),
        )
        new_state = replace(request_state, budget=Budget.from_dict(budget), options=options)
        buttons.button(
            "Use this plan", _use, new_state, new_plan, key="targets_use", type="primary"
        )


def note_removed_targets() -> None:
    """Draw a note if a change of the workload removed the error targets of the plan."""
    if st.session_state.get(history.DROPPED) and history.TARGETS not in history.current().options:
        st.info(
            "A change of the workload removed the error targets. Solve them again under"
            f" “Find the budget for a target error”, “{TITLE}”.",
            icon="🎯",
        )


def _rows(plan: Plan) -> Rows:
    """Return the rows of the form: one per table size, or one per table if the user chose that."""
    groups, shared_by = plan.workload.groups, SIZES
    if len(groups) <= MAX_GROUP_TARGETS:
        shared_by = st.radio("Targets for", [SIZES, EACH], horizontal=True, key="targets_for")
    if shared_by == EACH:
        names = analysis.table_names(plan.workload)
        return {f"{i + 1}: {name}": [i] for i, name in enumerate(names)}
    sizes: dict[int, list[int]] = {}
    for i, group in enumerate(groups):
        sizes.setdefault(len(group.attributes), []).append(i)
    return {
        f"{k}-way ({pluralize(len(numbers), 'table')})": numbers
        for k, numbers in sorted(sizes.items())
    }


def _table(
    plan: Plan, request_state: RequestState, rows: Rows, *, locks: bool
) -> tuple[list[float], list[bool] | None]:
    """Draw a field for the target of each row, and with ``locks`` a checkbox that locks the target.

    The default of a field is the largest target that the request has for a group of the row.
    Without targets in the request, it is the largest standard error that a group of the row has in
    ``plan``. Defaults are rounded by `two_digits`.

    Returns
    -------
    targets : for every group, the largest allowed standard error, in counts.
    locked : for every group, whether its target is locked; None without ``locks``.
    """
    groups = len(plan.workload.groups)
    defaults = request_state.options.get("targets") or analysis.largest_errors(plan)
    targets, locked = [1.0] * groups, [False] * groups
    for row, numbers in rows.items():
        left, right, _ = st.columns([2, 1, 2], vertical_alignment="bottom")
        start = analysis.two_digits(max(defaults[i] for i in numbers), plan)
        key = f"{history.version()}_{row}"
        target = left.number_input(
            f"{escape_markdown(row)}: largest standard error",
            0.001,
            value=start,
            format="%.4g",
            key=f"target_{key}",
        )
        is_locked = False
        if locks:
            is_locked = right.checkbox(
                "Locked", key=f"lock_{key}", help="This target is met even if others are relaxed."
            )
        for i in numbers:
            targets[i], locked[i] = target, is_locked
    return targets, (locked if locks else None)


def _solve(
    key: str, request_state: RequestState, targets: list[float], locked: list[bool] | None
) -> None:
    job_widget.replace_job("targets_job", key)
    if not job_queue.is_there(key):
        workload, budget, mechanism, _ = request_state.plan_arguments
        options = dict(request_state.options)
        job_widget.start(
            key, tasks.solve_targets, workload, budget, mechanism, options, targets, locked
        )


def _show_result(before: Budget, plan: Plan, new_plan: Plan, table: Any) -> None:
    """Draw budget and typical error of the new plan next to the current ones.

    ``table`` is a data frame of the targets and the errors of the new plan.
    """
    st.markdown(
        f"**Budget: {escape_markdown(in_words(new_plan.budget))}** (now"
        f" {escape_markdown(in_words(before))}). Typical error:"
        f" {format_number(new_plan.rmse)} counts (now {format_number(plan.rmse)}).",
        help=escape_markdown(other_units(new_plan.budget)),
    )
    figure_view.table(
        table, name="targets", alt="Targets and largest standard errors of the new plan"
    )


def _use(new_state: RequestState, plan: Plan) -> None:
    plan_cache.plan_of_key(new_state.key, lambda: plan)
    history.commit(new_state, redraw=True)


def _remove() -> None:
    history.change(options=analysis.remove_targets(history.current().options), redraw=True)
