"""Tables of a plan, least accurate first, and the errors of the selected table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from engine import _format as texts
from engine import analysis, figures
from engine._format import pluralize
from engine.analysis.variance_breakdown import names_in_plan
from engine.plans import Plan
from engine.workload.level_queries import levels_of_group
from pages.parts.preview import level_errors_view, variance_breakdown_view
from pages.parts.shell import figure_view, history
from pages.parts.shell.error_text import escape_markdown
from pages.parts.workload import group_choice, record_count_form

if TYPE_CHECKING:
    from streamlit.elements.lib.column_types import ColumnConfig

# Session keys: index of the group that is selected in the list; index and identity of the last
# selected group; and a counter in the key of the table, whose increase resets its selection.
GROUP, LAST, TABLE_VERSION = "group", "group_last", "group_turn"
MAX_ROWS = 500  # groups in the table
TABLE_HEIGHT_PX, MAP_HEIGHT_PX, CHART_HEIGHT_PX = 480, 560, 280
ERRORS_WIDTH_PX = 520  # of the table of errors in a popover
COLUMN_WIDTH_PX = 78
NAME_WIDTH_PX, MAX_NAME_CHARS = 200, 23  # of the column with the names of tables
TWO_LINES_PX = 50  # height of rows with names in two lines
SHORT_TABLE = 10  # rows of a table without a fixed height
ALL, MAP, PAIRS = "All", "Map", "pairs_map"


def draw(plan: Plan) -> None:
    """Draw the tables of a plan, and beside them the errors of the selected table.

    Sources of this error, and ways to reduce it, are drawn below its chart. If the list of tables
    is short, they are instead drawn below list and chart, so that no half of the page is empty.
    """
    left, right = st.columns(2, gap="medium")
    with left:
        is_short = _list_groups(plan) <= SHORT_TABLE
        record_count_form.count_field()
    with right:
        # The trial is shown at the top, so that the user sees its result without scrolling.
        trial = st.container()
        number, row, has_chart = _draw_selected_group(plan)
        below_chart = st.container()
    with st.container() if is_short and has_chart else below_chart:
        variance_breakdown_view.why(plan, number, row, trial)


def _list_groups(plan: Plan) -> int:
    """Draw the groups of the workload as a table with selectable rows, least accurate first.

    The view "Map" instead draws the pairs of attributes as a matrix with one cell per pair.

    Returns
    -------
    The number of rows of the table; without a table, the number of groups of the workload.
    """
    ways = sorted({len(group.attributes) for group in plan.workload.groups})
    sizes, search_text = {f"{k}-way": k for k in ways}, ""
    views = [ALL, *sizes, *([MAP] if figures.has_map(plan.workload) else [])]
    view = st.radio(
        "Tables by largest error", views, horizontal=True, key=f"ways_shown_{len(ways)}"
    )
    if view == MAP:
        selected_group(plan)
        figure_view.picture(
            figures.pairs_picture(plan),
            key=PAIRS,
            height=MAP_HEIGHT_PX,
            on_select=_pick_pair,
            selects="points",
        )
        return len(plan.workload.groups)
    if len(plan.workload.groups) > MAX_ROWS:
        search_text = st.text_input(
            "Find tables", key="find_groups", placeholder="age income", help="Attribute names."
        )
    table = analysis.worst_first(plan, ways=sizes.get(view), words=search_text).head(MAX_ROWS)
    if not len(table):
        st.info("No table has all these attributes. Enter fewer names.", icon="🔎")
        return len(plan.workload.groups)
    numbers, selected = table["group"].tolist(), selected_group(plan)
    # The column that orders the rows is the first column of numbers.
    columns = ["attributes", "largest standard error", "RMSE", "queries"]
    if (scale := record_count_form.entered_scale()) is not None:
        shares = analysis.quality_by_group(plan, scale).set_index("group")["publishable"]
        table, columns = table.join(shares, on="group"), [*columns[:3], "publishable"]
    names = _short_names(plan, table["attributes"].tolist(), numbers)
    is_long = max(map(len, names)) > MAX_NAME_CHARS
    key = (
        f"groups_{history.version()}_{st.session_state.get(TABLE_VERSION, 0)}_{view}_{search_text}"
    )
    st.dataframe(
        table[columns].assign(attributes=names),
        hide_index=True,
        row_height=TWO_LINES_PX if is_long else None,
        alt="Tables by largest error, least accurate first",
        height=TABLE_HEIGHT_PX if len(table) > SHORT_TABLE else "auto",
        column_config={
            "attributes": st.column_config.TextColumn("Table", width=NAME_WIDTH_PX),
            "largest standard error": _error_column(
                "Largest", "Standard error of its least accurate query, in counts."
            ),
            "RMSE": _error_column("Typical", "Typical error (RMSE) of the table, in counts."),
            "publishable": st.column_config.NumberColumn(
                "Publishable", format="percent", width=COLUMN_WIDTH_PX
            ),
            "queries": st.column_config.NumberColumn(
                "Queries", format="localized", width=COLUMN_WIDTH_PX
            ),
        },
        key=key,
        on_select=lambda: _pick_row(key, numbers),
        selection_mode="single-row",
        selection_default={
            "selection": {"rows": [numbers.index(selected)] if selected in numbers else []}
        },
    )
    return len(table)


def _short_names(plan: Plan, attributes: Sequence[str], numbers: Sequence[int]) -> list[str]:
    """Return short names of groups: attributes, and the family if others have the same attributes.

    The name of a group with one condition is the condition.

    Parameters
    ----------
    attributes : attributes of each group, as one text.
    numbers : indices of the groups.
    """
    names = names_in_plan(plan)
    short_names = figures.short_table_names(attributes, MAX_NAME_CHARS)
    return [
        analysis.condition_name(plan.workload, number)
        or short_name + names[number].removeprefix(text)
        for short_name, number, text in zip(short_names, numbers, attributes, strict=True)
    ]


def _error_column(label: str, meaning: str) -> ColumnConfig:
    return st.column_config.NumberColumn(label, format="%,.2f", width=COLUMN_WIDTH_PX, help=meaning)


def _pick_row(key: str, numbers: Sequence[int]) -> None:
    """Select the group of the row that was clicked."""
    if rows := st.session_state[key].selection.rows:
        _select(numbers[rows[0]])


def _pick_pair() -> None:
    """Select the group whose cell of the map was clicked."""
    if points := st.session_state[f"chart_{PAIRS}"].selection.points:
        _select(int(points[-1]["customdata"][0]))


def selected_group(plan: Plan) -> int:
    """Return the index of the selected group.

    A selected group remains selected after a change of the workload, also if its index has changed.
    If it is removed, or if the schema has other attributes, `group_choice.first_group` is selected.
    """
    form, groups = st.session_state, plan.workload.groups
    last, last_identity = form.get(LAST, (None, None))
    if last is None or last >= len(groups) or _identity(plan, last) != last_identity:
        identities = (i for i in range(len(groups)) if _identity(plan, i) == last_identity)
        _select(next(identities, None) if last_identity else None, plan)
        _redraw_table()
    elif form.get(GROUP) not in range(len(groups)):
        _select(last, plan)
    number = int(form[GROUP])
    form[LAST] = number, _identity(plan, number)
    return number


def _identity(plan: Plan, number: int) -> tuple[tuple[str, ...], tuple[str, ...], str, str]:
    """Return texts that identify a group even if its index changes: attributes, family, condition."""
    group = plan.workload.groups[number]
    condition = analysis.condition_name(plan.workload, number)
    return plan.schema.names, group.attributes, group.family_text, condition


def _draw_selected_group(plan: Plan) -> tuple[int, DeltaGenerator, bool]:
    """Draw the errors of the selected group.

    Returns
    -------
    number : index of the group.
    row : container of the buttons below the chart.
    has_chart : False if all queries of the group have the same error, which a sentence states.
    """
    number = selected_group(plan)
    group_choice.choose_group(plan, key=GROUP, on_change=_redraw_table)
    even_error = analysis.even_error(plan, number)
    group_levels = levels_of_group(plan.schema, plan.workload.groups[number])
    # All queries have the same error: a sentence replaces the chart.
    if even_error is not None:
        count = plan.workload.groups[number].count
        each = ", each" if count > 1 else ""
        st.markdown(
            f"**{pluralize(count, 'query', 'queries')}{each} with a standard error of"
            f" {texts.format_number(even_error)} counts**"
        )
        row = st.container(horizontal=True)
        with row, st.popover("Download errors"):
            _errors_of_all_groups(plan)
    elif group_levels:
        place, row = st.container(), st.container(horizontal=True)
        with place:
            level_errors_view.draw(plan, number, group_levels, row)
        if len(plan.workload.groups[number].parts) > 1:
            with row, st.popover("Single queries"):
                _single_queries(plan, number)
    else:
        axes_and_fixed = group_choice.choose_slice(plan, number)
        if axes_and_fixed is not None:
            picture = figures.error_picture(plan, number, *axes_and_fixed)
            st.markdown(f"**{escape_markdown(picture.title)}**")
            figure_view.chart(picture, key="errors", height=CHART_HEIGHT_PX)()
            if picture.note:
                st.caption(escape_markdown(picture.note))
        row = st.container(horizontal=True)
        with row, st.popover("Download errors"):
            if axes_and_fixed is not None:
                _error_table(plan, picture)
            _errors_of_all_groups(plan)
    return number, row, even_error is None


def _errors_of_all_groups(plan: Plan) -> None:
    """Draw the downloads of the errors of all tables."""
    st.caption("Errors of all tables")
    figure_view.downloads(
        lambda: analysis.group_table(plan),
        name="groups_of_plan",
        caption=f"Errors of all tables, in counts. {figures.plan_caption(plan)}",
    )


def _single_queries(plan: Plan, number: int) -> None:
    """Draw the errors of single queries of a group along one or two attributes."""
    axes_and_fixed = group_choice.choose_slice(plan, number)
    if axes_and_fixed is not None:
        picture = figures.error_picture(plan, number, *axes_and_fixed)
        figure_view.chart(picture, key="errors", height=CHART_HEIGHT_PX)()
        _error_table(plan, picture)


def _error_table(plan: Plan, picture: figures.Picture) -> None:
    """Draw the errors of a chart as a table that is wide enough for queries on two attributes."""
    figure_view.table(
        picture.table,
        name="errors",
        alt=picture.title,
        width=ERRORS_WIDTH_PX,
        caption=f"{picture.title}, in counts. {figures.plan_caption(plan)}",
    )


def _select(number: int | None, plan: Plan | None = None) -> None:
    """Select the group with index ``number``; if that is None, the first group shown of ``plan``."""
    if number is None and plan is not None:
        number = group_choice.first_group(plan)
    st.session_state[GROUP] = number


def _redraw_table() -> None:
    """Give the table a new key; it then selects the group that was chosen in the list."""
    st.session_state[TABLE_VERSION] = st.session_state.get(TABLE_VERSION, 0) + 1
