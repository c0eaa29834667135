"""The groups of a plan, the least exact first, beside the one that is looked at: its queries, why,
and what helps.
"""

from __future__ import annotations

import streamlit as st

from engine import _format as texts
from engine import analysis, figures
from engine._format import pluralize
from engine.plans import Plan
from pages.parts.preview import variance_breakdown_view
from pages.parts.shell import figure_view, history
from pages.parts.workload import group_choice, record_count_form

GROUP, LAST = (
    "group",
    "group_last",
)  # the group that is looked at, as the list gives it back and as it was last
TURN = "group_turn"  # how often it was chosen beside the table
MANY = 500  # groups that the table holds
TALL, PICTURE = 430, 300  # pixels
ALL, MAP, PAIRS = "All", "Map", "pairs_map"


def groups(plan: Plan) -> None:
    """The groups by error, the least exact first, as a list in which a click looks at one, or as a
    map of pairs.
    """
    ways = sorted({len(group.attributes) for group in plan.workload.groups})
    sets, words = {f"{k}-way": k for k in ways}, ""
    views = [ALL, *sets, *([MAP] if figures.has_map(plan.workload) else [])]
    wanted = st.radio(
        "Groups, least exact first", views, horizontal=True, key=f"ways_shown_{len(ways)}"
    )
    if wanted == MAP:
        selected_group(plan)
        figure_view.picture(
            figures.pairs_picture(plan),
            key=PAIRS,
            height=TALL,
            on_select=_pick_pair,
            selects="points",
        )
        return
    if len(plan.workload.groups) > MANY:
        words = st.text_input(
            "Find groups", key="find_groups", placeholder="age income", help="Words of their names."
        )
    table = analysis.worst_first(plan, ways=sets.get(wanted), words=words).head(MANY)
    if not len(table):
        st.info(
            "No group has all these words. Use fewer, such as the name of one attribute.", icon="🔎"
        )
        return
    numbers, chosen = table["group"].tolist(), selected_group(plan)
    columns = ["largest standard error", "attributes", "RMSE", "queries"]
    if table["family"].nunique() > 1:
        columns.append("family")
    if (scale := record_count_form.entered_scale()) is not None:
        shares = analysis.quality_by_group(plan, scale).set_index("group")["publishable"]
        table, columns = table.join(shares, on="group"), [*columns[:3], "publishable", *columns[3:]]
    figure_view.choice(
        table[columns],
        key=f"groups_{history.version()}_{st.session_state.get(TURN, 0)}_{wanted}_{words}",
        alt="Groups by error, the least exact first; the queries of the chosen one stand beside it",
        row=numbers.index(chosen) if chosen in numbers else None,
        bar="largest standard error",
        pick=lambda row: _look_at(numbers[row]),
        height=TALL,
    )
    figure_view.downloads(lambda: analysis.group_table(plan), name="groups_of_plan")


def _pick_pair() -> None:
    """Look at the group whose cell of the map was chosen."""
    if points := st.session_state[f"chart_{PAIRS}"].selection.points:
        _look_at(int(points[-1]["customdata"][0]))


def selected_group(plan: Plan) -> int:
    """The group that is looked at: the one with the least exact query, until another is chosen."""
    form, groups = st.session_state, range(len(plan.workload.groups))
    if (
        form.get(GROUP) not in groups
    ):  # a list whose words changed with the workload gives back the old words
        _look_at(form[LAST] if form.get(LAST) in groups else analysis.worst_group(plan))
    form[LAST] = number = int(form[GROUP])
    return number


def chosen(plan: Plan) -> None:
    """The group that is looked at: its queries, where its error comes from, and what would help."""
    number = selected_group(plan)
    group_choice.choose_group(plan, key=GROUP, on_change=_turned)
    group, row = plan.workload.groups[number], analysis.group_table(plan).iloc[number]
    typical, largest = (
        texts.format_number(row[name]) for name in ("RMSE", "largest standard error")
    )
    even = analysis.even_error(plan, number)
    if even is not None:
        st.markdown(
            f"**Each of its {pluralize(group.count, 'query', 'queries')} has a standard error of"
            f" {typical} counts.**"
        )
    else:
        words = (
            f"{pluralize(group.count, 'query', 'queries')}, typical error {typical} counts, largest"
            f" {largest} counts."
        )
        st.markdown(f"**{words}**")
        place = st.container()
        drawn = group_choice.choose_slice(plan, number)
        if drawn is not None:
            with place:
                figure_view.picture(
                    figures.error_picture(plan, number, *drawn),
                    key="errors",
                    height=PICTURE,
                    titled=False,
                )
    variance_breakdown_view.why(plan, number)


def _look_at(number: int) -> None:
    st.session_state[GROUP] = number


def _turned() -> None:
    """Draw the table afresh, so that it shows the group that was chosen beside it."""
    st.session_state[TURN] = st.session_state.get(TURN, 0) + 1
