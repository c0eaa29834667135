"""Views of a plan: what it promises, its groups, every query of a group, and where the budget goes."""

from __future__ import annotations

import streamlit as st

from engine import Plan, figures, insight, texts
from pages.parts.preview import target_views
from pages.parts.shell import show
from pages.parts.shell.words import plain
from pages.parts.workload import group_choice


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
    target_views.claim(plan)
    st.caption(plain(insight.certificate_text(plan)))


def groups(plan: Plan) -> None:
    """Predicted error of every group."""
    st.caption("Errors in counts: RMSE over the queries of a group, and the largest standard error of one of them.")
    show.table(insight.group_table(plan), name="groups_of_plan", alt="Predicted error of every group", height=420)


def every_query(plan: Plan) -> None:
    """Standard error of every query of a chosen group."""
    number = group_choice.choose_group(plan, key="error_group")
    drawn = group_choice.choose_slice(plan, number)
    if drawn is not None:
        show.picture(figures.error_picture(plan, number, *drawn), key="errors")


def budget(plan: Plan) -> None:
    """Where the budget goes."""
    show.picture(figures.budget_picture(plan), key="budget", config={"displayModeBar": False})
