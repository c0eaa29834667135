"""Choosing from what a plan answers: one of its groups, and the part of a group that a picture can
show.
"""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from engine._format import pluralize
from engine.analysis import worst_group
from engine.plans import Plan
from engine.workload import Circular, Group, Range
from pages.parts.shell.error_text import escape_markdown

MANY = 2_000  # choices that a list may hold


def choose_group(plan: Plan, *, key: str, on_change: Callable[[], None] | None = None) -> int:
    """A group of the plan's workload, by name or, when there are too many for a list, by number;
    first the worst.
    """
    all_groups = plan.workload.groups
    st.session_state.setdefault(key, worst_group(plan))
    if len(all_groups) > MANY:
        number = int(st.number_input("Group", 0, len(all_groups) - 1, key=key, on_change=on_change))
        st.caption(escape_markdown(_group_words(all_groups[number], number)))
        return number
    words = lambda i: _group_words(all_groups[i], i)  # noqa: E731
    return st.selectbox(
        "Group", range(len(all_groups)), format_func=words, key=key, on_change=on_change
    )


def choose_slice(
    plan: Plan, number: int, prefix: str = ""
) -> tuple[tuple[int, ...] | None, list[int]] | None:
    """The parts of a group to draw along and where the others are held; None until something can be
    drawn.
    """
    group = plan.workload.groups[number]
    across, fixed = list(range(len(group.parts))), [0] * len(group.parts)
    if len(group.parts) > 1:
        runs = [
            p for p, part in enumerate(group.parts) if isinstance(part.family, (Range, Circular))
        ]
        names = {
            p: " × ".join(group.attributes[a] for a in part.axes)
            for p, part in enumerate(group.parts)
        }
        across = st.multiselect(
            "Draw along",
            list(names),
            default=runs[:1] or list(names)[:2],
            format_func=names.__getitem__,
            max_selections=2,
            key=f"{prefix}across_{number}",
            help="One attribute gives a line, or a triangle of ranges; two give a heat map.",
        )
        rest = [p for p in names if p not in across]
        for column, part in zip(st.columns(max(len(rest), 1)), rest, strict=False):
            fixed[part] = _fixed(column, plan, group, part, key=f"{prefix}fixed_{number}_{part}")
    if not across and group.parts:
        st.info("Choose one or two attributes to draw along.")
        return None
    return tuple(sorted(across)) if group.parts else None, fixed


def _group_words(group: Group, number: int) -> str:
    names = " × ".join(group.attributes) or "total"
    return f"{number}: {names}, {group.family_text} ({pluralize(group.count, 'query', 'queries')})"


def _fixed(column: DeltaGenerator, plan: Plan, group: Group, part: int, *, key: str) -> int:
    chosen_part = group.parts[part]
    attributes = [plan.schema[group.attributes[a]] for a in chosen_part.axes]
    name = " × ".join(a.name for a in attributes)
    if chosen_part.count > MANY:
        return int(
            column.number_input(
                f"Query on {escape_markdown(name)}", 0, chosen_part.count - 1, 0, key=key
            )
        )
    words = lambda i: chosen_part.family.text(attributes, i) or "all records"  # noqa: E731
    return int(
        column.selectbox(
            f"Hold {escape_markdown(name)} at", range(chosen_part.count), format_func=words, key=key
        )
    )
