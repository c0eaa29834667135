"""Tables of a plan, least accurate first, and the errors of the selected table."""

from __future__ import annotations

import streamlit as st

from engine import _format as texts
from engine import analysis, figures
from engine._format import pluralize
from engine.plans import Plan
from pages.parts.preview import variance_breakdown_view
from pages.parts.shell import figure_view, history
from pages.parts.workload import group_choice, record_count_form

# session keys: the selected group in the list, the last valid one, and the version of the table
GROUP, LAST, TABLE_VERSION = "group", "group_last", "group_turn"
MAX_ROWS = 500  # groups in the table
TABLE_HEIGHT_PX, CHART_HEIGHT_PX = 430, 300
ALL, MAP, PAIRS = "All", "Map", "pairs_map"


def groups(plan: Plan) -> None:
    """Draw the groups by error as a table with selectable rows, or as a map of pairs."""
    ways = sorted({len(group.attributes) for group in plan.workload.groups})
    sizes, words = {f"{k}-way": k for k in ways}, ""
    views = [ALL, *sizes, *([MAP] if figures.has_map(plan.workload) else [])]
    view = st.radio(
        "Tables, least accurate first", views, horizontal=True, key=f"ways_shown_{len(ways)}"
    )
    if view == MAP:
        selected_group(plan)
        figure_view.picture(
            figures.pairs_picture(plan),
            key=PAIRS,
            height=TABLE_HEIGHT_PX,
            on_select=_pick_pair,
            selects="points",
        )
        return
    if len(plan.workload.groups) > MAX_ROWS:
        words = st.text_input(
            "Find tables", key="find_groups", placeholder="age income", help="Attribute names."
        )
    table = analysis.worst_first(plan, ways=sizes.get(view), words=words).head(MAX_ROWS)
    if not len(table):
        st.info("No table has all these attributes. Enter fewer names.", icon="🔎")
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
        key=f"groups_{history.version()}_{st.session_state.get(TABLE_VERSION, 0)}_{view}_{words}",
        alt="Tables by error, least accurate first",
        row=numbers.index(chosen) if chosen in numbers else None,
        bar="largest standard error",
        pick=lambda row: _select(numbers[row]),
        height=TABLE_HEIGHT_PX,
    )
    figure_view.downloads(lambda: analysis.group_table(plan), name="groups_of_plan")


def _pick_pair() -> None:
    """Select the group whose cell of the map was clicked."""
    if points := st.session_state[f"chart_{PAIRS}"].selection.points:
        _select(int(points[-1]["customdata"][0]))


def selected_group(plan: Plan) -> int:
    """Return the selected group; by default the one with the largest error."""
    form, groups = st.session_state, range(len(plan.workload.groups))
    # after a change of the workload the list returns an old label
    if form.get(GROUP) not in groups:
        _select(form[LAST] if form.get(LAST) in groups else analysis.worst_group(plan))
    form[LAST] = number = int(form[GROUP])
    return number


def chosen(plan: Plan) -> None:
    """Draw the selected group: its queries, its sources of error, and possible changes."""
    number = selected_group(plan)
    group_choice.choose_group(plan, key=GROUP, on_change=_redraw_table)
    group, row = plan.workload.groups[number], analysis.group_table(plan).iloc[number]
    typical, largest = (
        texts.format_number(row[name]) for name in ("RMSE", "largest standard error")
    )
    if analysis.even_error(plan, number) is not None:
        counts = pluralize(group.count, "query", "queries")
        st.markdown(f"**{counts}, each with a standard error of {typical} counts**")
    else:
        words = (
            f"{pluralize(group.count, 'query', 'queries')}, typical error {typical}, largest"
            f" {largest} counts"
        )
        st.markdown(f"**{words}**")
        place = st.container()
        drawn = group_choice.choose_slice(plan, number)
        if drawn is not None:
            with place:
                figure_view.picture(
                    figures.error_picture(plan, number, *drawn),
                    key="errors",
                    height=CHART_HEIGHT_PX,
                    titled=False,
                )
    variance_breakdown_view.why(plan, number)


def _select(number: int) -> None:
    st.session_state[GROUP] = number


def _redraw_table() -> None:
    """Give the table a new key, so that it selects the row of the group chosen in the list."""
    st.session_state[TABLE_VERSION] = st.session_state.get(TABLE_VERSION, 0) + 1
