"""Standard errors of the areas of one level, least accurate first."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from engine import figures
from engine.analysis import levels
from engine.plans import Plan
from engine.workload.level_queries import LevelQueries
from pages.parts.shell import figure_view
from pages.parts.shell.error_text import escape_markdown
from pages.parts.workload import level_choice

PAGE_SIZE = 50  # areas per page
CHART_HEIGHT_PX, TABLE_HEIGHT_PX = 300, 320


def draw(plan: Plan, number: int, group_levels: Sequence[LevelQueries]) -> None:
    """Draw the areas of the chosen level of a group: a chart and a table of one page."""
    by_title = {level.title: level for level in group_levels}
    level = by_title[level_choice.choose_level(list(by_title), key="preview_level")]
    text = level_choice.search(level, key=f"areas_find_{level.title}")
    table = levels.area_errors(plan, number, level)
    found = levels.find_areas(table, level, text)
    if not len(found):
        st.info("No area has this text. Enter fewer letters.", icon="🔎")
        return
    first, end = level_choice.choose_page(
        len(found), PAGE_SIZE, key=f"areas_page_{number}_{level.title}_{text}"
    )
    st.caption(
        escape_markdown(f"Areas {first + 1:,} to {end:,} of {len(found):,}, least accurate first.")
    )
    picture = figures.areas_picture(found[first:end], level.title)
    figure_view.chart(picture, key="areas", height=CHART_HEIGHT_PX)()
    figure_view.table(
        picture.table,
        name="areas",
        alt=picture.title,
        height=TABLE_HEIGHT_PX,
        full_table=lambda: figures.areas_picture(found, level.title).table,
    )
