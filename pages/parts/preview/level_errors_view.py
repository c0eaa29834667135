"""Standard errors of the areas (such as states) of one level of a code list."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from engine import analysis, figures
from engine.analysis.variance_breakdown import area_errors, find_areas
from engine.plans import Plan
from engine.workload.level_queries import LevelQueries
from pages.parts.shell import figure_view
from pages.parts.shell.error_text import escape_markdown
from pages.parts.workload import level_choice

PAGE_SIZE = 100  # areas per page
CHART_HEIGHT_PX, TABLE_HEIGHT_PX = 300, 290
SHORT_TABLE = 8  # rows of a table without fixed height


def draw(
    plan: Plan, number: int, group_levels: Sequence[LevelQueries], place: DeltaGenerator
) -> None:
    """Draw the choice of a level and a page of its areas, least accurate first.

    Parameters
    ----------
    number : index of the group.
    group_levels : levels of the group.
    place : container for the button that opens chart and downloads.
    """
    by_title = {level.title: level for level in group_levels}
    level = by_title[level_choice.choose_level(list(by_title), key="preview_level")]
    text = level_choice.search(level, key=f"areas_find_{level.title}")
    table = area_errors(plan, number, level)
    areas = find_areas(table, level, text)
    if not len(areas):
        st.info("No area has this text. Enter fewer letters.", icon="🔎")
        return
    first, end = level_choice.choose_page(
        len(areas), PAGE_SIZE, key=f"areas_page_{number}_{level.title}_{text}"
    )
    st.caption(
        escape_markdown(f"Areas {first + 1:,} to {end:,} of {len(areas):,}, least accurate first.")
    )
    picture = figures.areas_picture(areas[first:end], level.title)
    st.dataframe(
        picture.table,
        hide_index=True,
        alt=picture.title,
        height=TABLE_HEIGHT_PX if end - first > SHORT_TABLE else "auto",
        column_config={
            "RMSE": st.column_config.NumberColumn(
                "Typical", format="%,.2f", help="Typical error (RMSE) of the area, in counts."
            ),
            "largest standard error": st.column_config.NumberColumn(
                "Largest",
                format="%,.2f",
                help="Standard error of its least accurate query, in counts.",
            ),
        },
    )
    with place, st.popover("Chart and data"):
        figure_view.chart(picture, key="areas", height=CHART_HEIGHT_PX)()
        st.caption("Errors of these areas")
        figure_view.downloads(lambda: figures.areas_picture(areas, level.title).table, name="areas")
        st.caption("Errors of all tables")
        figure_view.downloads(lambda: analysis.group_table(plan), name="groups_of_plan")
