"""Charts of one view of the page Compare: main result, export menu and data tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import streamlit as st

from engine.figures import SHARE_COLUMNS, Picture
from pages.parts.shell import figure_view
from pages.parts.shell.error_text import escape_markdown


def head(
    text: str,
    pictures: Mapping[str, Picture],
    *,
    report: Callable[[], str] | None = None,
    caption: str = "",
) -> None:
    """Draw the main result of a view, and next to it the menu that exports its charts.

    Parameters
    ----------
    text : main result, one sentence.
    pictures : maps the key of a chart to its picture.
    report : function that returns an HTML report; None if the view has no report.
    caption : in LaTeX tables, follows the title of the chart; if empty, tables have no caption.
    """
    left, right = st.columns([6, 1], vertical_alignment="center")
    left.markdown(f"**{escape_markdown(text)}**")
    with right.popover("Export", key="export"):
        for key, picture in pictures.items():
            _export_buttons(key, picture, caption)
        if report is not None:
            st.download_button(
                "HTML report",
                lambda: report().encode(),
                "comparison.html",
                "text/html",
                key="export_report",
                on_click="ignore",
            )


def _export_buttons(key: str, picture: Picture, caption: str) -> None:
    """Draw the buttons that save one chart and its table."""
    st.caption(escape_markdown(picture.title))
    with st.container(horizontal=True):
        figure_view.download_buttons(
            lambda: picture.table,
            name=key,
            caption=f"{picture.title}. {caption}" if caption else "",
        )
        st.button(
            "SVG", key=f"svg_{key}"
        )  # the script of `browser_history` saves the chart on a click


def chart(picture: Picture, *, key: str, note: str | None = None) -> None:
    """Draw a chart with its title and the note of the picture.

    If ``note`` is given, it is drawn instead, and the note of the picture becomes its tooltip.
    """
    st.markdown(f"**{escape_markdown(picture.title)}**")
    figure_view.chart(picture, key=key)()
    if note is not None:
        st.caption(escape_markdown(note), help=escape_markdown(picture.note) or None)
    elif picture.note:
        st.caption(escape_markdown(picture.note))


def data(pictures: Mapping[str, Picture], *, key: str) -> None:
    """Draw an expander with the tables of all charts of a view."""
    with st.expander("Show data", key=f"data_{key}", on_change="rerun") as fold:
        for picture in pictures.values() if fold.open else ():
            st.dataframe(
                figure_view.with_gaps_rounded_up(picture.table),
                hide_index=True,
                alt=picture.title,
                placeholder="–",
                column_config={
                    str(name): st.column_config.NumberColumn(
                        format="percent" if name in SHARE_COLUMNS else "%,.2f"
                    )
                    for name, kind in picture.table.dtypes.items()
                    if kind.kind == "f"
                },
            )
