"""A target for every size of table, or for every group, some of them locked: noise and budget are
solved for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import streamlit as st

from engine import analysis
from engine._format import format_number, pluralize, set_name
from engine.mechanisms import load_plan
from engine.plans import Plan
from engine.privacy import Budget
from pages.parts.jobs import job_queue, job_widget, plan_cache, tasks
from pages.parts.shell import buttons, figure_view, history
from pages.parts.shell.budgets import in_words, other_units
from pages.parts.shell.error_text import escape_markdown
from pages.parts.shell.history import RequestState

SIZES, EACH = "every number of attributes", "every group"
SMALLEST = "the smallest budget that keeps all of them"
PRESENT = "the present budget, and what is not locked gives way"
MANY = 12  # groups that have a target each
Rows = Mapping[str, Sequence[int]]


def draw(plan: Plan) -> None:
    """The targets with their locks, the button that solves them, and what came of it."""
    studio = history.current()
    rows = _rows(plan)
    goal = st.radio("Solve for", [SMALLEST, PRESENT], horizontal=True, key="targets_goal")
    targets, locked = _table(plan, studio, rows, locks=goal == PRESENT)
    key = f"targets|{studio.key}|{targets}|{locked}"
    with st.container(horizontal=True):
        buttons.button(
            "Solve", _solve, key, studio, targets, locked, key="targets_solve", type="primary"
        )
        if "targets" in studio.options:
            st.button("Plan without targets again", on_click=_forget, key="targets_forget")
    done = job_widget.job(key, label="Solving the targets")
    if done is not None:
        budget, options, text = done.result
        new_plan = plan_cache.plan_of_key(key, lambda: load_plan(text))
        _show_result(
            studio.budget,
            plan,
            new_plan,
            analysis.errors_against_targets(new_plan, rows, options["targets"]),
        )
        changed = replace(studio, budget=Budget.from_dict(budget), options=options)
        buttons.button("Use this", _use, changed, new_plan, key="targets_use", type="primary")


def drop_targets() -> None:
    """Say that a change of the groups took the targets away, until there are others."""
    if st.session_state.get(history.DROPPED) and history.TARGETS not in history.current().options:
        st.info(
            "The plan was shaped for targets of single groups. They went with a change of the"
            " groups; solve them again under “A target for each size of table”.",
            icon="🎯",
        )


def _rows(plan: Plan) -> Rows:
    """The groups that have a target together, by name."""
    groups, how = plan.workload.groups, SIZES
    if len(groups) <= MANY:
        how = st.radio("A target for", [SIZES, EACH], horizontal=True, key="targets_for")
    if how == EACH:
        return {f"{i}: {set_name(group.attributes)}": [i] for i, group in enumerate(groups)}
    sizes: dict[int, list[int]] = {}
    for i, group in enumerate(groups):
        sizes.setdefault(len(group.attributes), []).append(i)
    return {
        f"{k}-way ({pluralize(len(those), 'group')})": those for k, those in sorted(sizes.items())
    }


def _table(
    plan: Plan, studio: RequestState, rows: Rows, *, locks: bool
) -> tuple[list[float], list[bool] | None]:
    """A line for every row; returns a target, and whether it is locked, for every group."""
    groups = len(plan.workload.groups)
    now = studio.options.get("targets") or analysis.largest_errors(plan)
    targets, locked = [1.0] * groups, [False] * groups
    for row, those in rows.items():
        left, right, _ = st.columns([2, 1, 2], vertical_alignment="bottom")
        start = analysis.two_digits(max(now[i] for i in those), plan)
        key = f"{history.version()}_{row}"
        target = left.number_input(
            f"{escape_markdown(row)}: largest standard error",
            0.001,
            value=start,
            format="%.4g",
            key=f"target_{key}",
        )
        lock = locks and right.checkbox(
            "Locked", key=f"lock_{key}", help="It keeps its target whatever else gives way"
        )
        for i in those:
            targets[i], locked[i] = target, lock
    return targets, locked if locks else None


def _solve(key: str, studio: RequestState, targets: list[float], locked: list[bool] | None) -> None:
    if (old := st.session_state.get("targets_job", key)) != key:
        job_widget.release_job(old)
    st.session_state["targets_job"] = key
    request = (
        studio.required_workload.to_json(),
        studio.budget.to_dict(),
        studio.mechanism,
        dict(studio.options),
    )
    if not job_queue.is_there(key):
        job_widget.start(key, tasks.solve_targets, *request, targets, locked)


def _show_result(before: Budget, plan: Plan, new_plan: Plan, table: Any) -> None:
    st.markdown(
        f"**It takes {escape_markdown(in_words(new_plan.budget))}**; the present plan spends"
        f" {escape_markdown(in_words(before))}. The typical error of all queries is then"
        f" {format_number(new_plan.rmse)} counts instead of {format_number(plan.rmse)}.",
        help=escape_markdown(other_units(new_plan.budget)),
    )
    figure_view.table(
        table, name="targets", alt="Targets and the largest standard errors that are reached"
    )


def _use(changed: RequestState, plan: Plan) -> None:
    plan_cache.plan_of_key(changed.key, lambda: plan)
    history.commit(changed, redraw=True)


def _forget() -> None:
    history.change(options=analysis.remove_targets(history.current().options), redraw=True)
