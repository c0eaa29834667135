"""Views of a plan: what it promises, its groups, every query of a group, and where the budget goes."""

from __future__ import annotations

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from engine import Plan, figures, insight, texts
from engine.workload import Circular, Group, Range
from pages.parts.preview import target_views
from pages.parts.shell import show
from pages.parts.shell.words import count, plain

MANY = 2_000  # choices that a list may hold


def headline(plan: Plan) -> None:
    """What the plan promises, in four numbers with unit and meaning."""
    one, two, three, four = st.columns(4)
    one.metric(
        "Typical error (counts)",
        texts.amount(plan.rmse),
        help="RMSE: root of the mean squared error over all queries. About two thirds of the answers will be off by "
        "less than this, 95% by less than twice this.",
    )
    two.metric(
        "Largest error (counts)",
        texts.amount(insight.worst_error(plan)),
        help="Standard error of the query that comes out least exact",
    )
    three.metric(
        "Over the proven bound",
        insight.gap_text(plan).replace("less than", "<"),
        help="How much larger the weighted RMSE is than what any plan of this class must have; 0% is the best possible",
    )
    four.metric(
        "Queries",
        texts.number(plan.workload.queries),
        help="Numbers that will be published, each with its standard error and interval",
    )
    st.caption(plain(insight.certificate_text(plan)))
    if (bound := target_views.known_bound(plan)) is not None:
        st.caption(plain(insight.bound_text(plan, bound)))


def groups(plan: Plan) -> None:
    """Predicted error of every group."""
    st.caption("Errors in counts: RMSE over the queries of a group, and the largest standard error of one of them.")
    show.table(insight.group_table(plan), name="groups_of_plan", alt="Predicted error of every group", height=420)


def every_query(plan: Plan) -> None:
    """Standard error of every query of a chosen group."""
    number = choose_group(plan, key="error_group")
    drawn = choose_slice(plan, number)
    if drawn is not None:
        show.picture(figures.error_picture(plan, number, *drawn), key="errors")


def choose_slice(plan: Plan, number: int, prefix: str = "") -> tuple[tuple[int, ...] | None, list[int]] | None:
    """The parts of a group to draw along and where the others are held; None until something can be drawn."""
    group = plan.workload.groups[number]
    across, fixed = list(range(len(group.parts))), [0] * len(group.parts)
    if len(group.parts) > 1:
        runs = [p for p, part in enumerate(group.parts) if isinstance(part.family, (Range, Circular))]
        names = {p: " × ".join(group.attributes[a] for a in part.axes) for p, part in enumerate(group.parts)}
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


def budget(plan: Plan) -> None:
    """Where the budget goes."""
    show.picture(figures.budget_picture(plan), key="budget", config={"displayModeBar": False})


def choose_group(plan: Plan, *, key: str, start: int = 0) -> int:
    """A group of the plan's workload, by name or, when there are too many for a list, by number."""
    asked = plan.workload.groups
    if len(asked) > MANY:
        number = int(st.number_input("Group", 0, len(asked) - 1, start, key=key))
        st.caption(plain(_group_words(asked[number], number)))
        return number
    words = lambda i: _group_words(asked[i], i)  # noqa: E731
    return st.selectbox("Group", range(len(asked)), index=start, format_func=words, key=key)


def _group_words(group: Group, number: int) -> str:
    names = " × ".join(group.attributes) or "total"
    return f"{number}: {names}, {group.family_text} ({count(group.count, 'query', 'queries')})"


def _fixed(column: DeltaGenerator, plan: Plan, group: Group, part: int, *, key: str) -> int:
    asked = group.parts[part]
    attributes = [plan.schema[group.attributes[a]] for a in asked.axes]
    name = " × ".join(a.name for a in attributes)
    if asked.count > MANY:
        return int(column.number_input(f"Query on {plain(name)}", 0, asked.count - 1, 0, key=key))
    words = lambda i: asked.family.text(attributes, i) or "all records"  # noqa: E731
    return int(column.selectbox(f"Hold {plain(name)} at", range(asked.count), format_func=words, key=key))
