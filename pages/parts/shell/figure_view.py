"""Drawing a picture with everything that belongs to it: alt text, note, table, CSV."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import streamlit as st

from engine._format import csv_text, latex_text
from engine.figures import Picture
from pages.parts.shell.error_text import escape_markdown, show_errors

if TYPE_CHECKING:
    from streamlit.elements.lib.column_types import ColumnConfig

    from engine._format import Frame

OPEN = "open_tabs"  # key of tabs -> the one that was open last
SHORT = 8  # rows that need no height of their own
ONE_LINE, LINES = (
    19,
    66,
)  # letters of a name that stand in one line; pixels of a row where they stand in several
QUERY, QUERY_LINE = (
    180,
    25,
)  # pixels of the words of a query; letters of them that stand in one line
TEXT_WIDTH, TEXT_HEIGHT = (
    640,
    400,
)  # pixels of a figure that is exported: as wide as the text of a page in print
QUALITY = ("publishable", "doubtful", "noise", "relative error")
SHARES = ("share", "over the bound", "worse", "better", *QUALITY)  # columns that are shares
OPTIMUM = "certified optimum"
FINE = (
    "ratio",
    "worst ratio",
    "paper",
    "ours",
    "ours / paper",
    OPTIMUM,
    f"{OPTIMUM} / paper",
)  # columns whose third and fourth digits matter

# what a table is written to: the words on the button, the ending, the kind, how, and what for
FILES = (
    ("Download CSV", "csv", "text/csv", csv_text, None),
    (
        "LaTeX",
        "tex",
        "text/x-tex",
        latex_text,
        "The same table for a paper, with the package booktabs",
    ),
)

# buttons of a picture that needs none for moving about in it
EXPORT = {"modeBarButtons": [["toImage"]]}


def tabs(
    views: Mapping[str, Callable[..., Any]], *, key: str, arguments: tuple[Any, ...] = ()
) -> Any:
    """Draw tabs of which only the open one is computed; return what its function returns.

    The one that was open is open again when a person comes back to the page.
    """
    result, last = None, st.session_state.setdefault(OPEN, {})
    if key not in st.session_state and last.get(key) in views:
        st.session_state[key] = last[key]
    for tab, (label, view) in zip(
        st.tabs(list(views), key=key, on_change="rerun"), views.items(), strict=True
    ):
        if tab.open:
            last[key] = label
            with tab:
                result = view(*arguments)
    return result


def folds(
    views: Mapping[str, tuple[str, Callable[..., Any]]], *, arguments: tuple[Any, ...] = ()
) -> None:
    """Draw one fold a view, key -> (what it says, how to draw it), of which only open ones are
    computed.
    """
    for key, (label, view) in views.items():
        with st.expander(label, key=f"fold_{key}", on_change="rerun") as fold:
            if fold.open:
                with show_errors():
                    view(*arguments)


def numbers(*values: tuple[str, str, str]) -> None:
    """Draw headline numbers side by side, each as what it is, its value and its meaning; each as
    wide as it needs.
    """
    with st.container(horizontal=True, gap="medium"):
        for label, value, meaning in values:
            st.metric(label, value, help=meaning, width="content")


def chart(
    drawing: Picture,
    *,
    key: str,
    config: Mapping[str, Any] | None = None,
    height: int | Literal["content"] = "content",
) -> Callable[..., Any]:
    """Return what draws the figure of a picture, with a button that saves it as wide as the text of
    a printed page.
    """
    image = {
        "format": "svg",
        "filename": key,
        "width": TEXT_WIDTH,
        "height": drawing.figure.layout.height or TEXT_HEIGHT,
    }
    return partial(
        st.plotly_chart,
        drawing.figure,
        key=f"chart_{key}",
        alt=drawing.alt,
        height=height,
        config={"displaylogo": False, "toImageButtonOptions": image, **(config or {})},
    )


def picture(
    drawing: Picture,
    *,
    key: str,
    config: dict[str, Any] | None = None,
    on_select: Callable[[], None] | None = None,
    selects: Literal["box", "points"] = "box",
    height: int | Literal["content"] = "content",
    titled: bool = True,
) -> None:
    """Draw a figure of the engine, its note, and its table with a download; `on_select` hears of
    what is chosen.
    """
    if titled:
        st.markdown(f"**{escape_markdown(drawing.title)}**")
    draw = chart(drawing, key=key, config=config, height=height)
    if on_select is None:
        draw()
    else:
        draw(on_select=on_select, selection_mode=selects)
    if drawing.note:
        st.caption(escape_markdown(drawing.note))
    with st.expander("The same as a table", key=f"twin_{key}", on_change="rerun") as twin:
        if twin.open:
            table(drawing.table, name=key, alt=drawing.title)


def table(
    frame: Frame,
    *,
    name: str,
    alt: str,
    height: int | Literal["auto"] = "auto",
    full_table: Callable[[], Frame] | None = None,
    shares: Collection[str] = (),
) -> None:
    """Draw a table with its CSV download; `whole` makes the table to download when only a part is
    drawn.

    ``shares`` are columns to write as percentages, beside those that always are.
    """
    tall: int | Literal["auto"] = height if len(frame) > SHORT else "auto"
    long = "query" in frame and frame["query"].astype(str).str.len().max() > QUERY_LINE
    st.dataframe(
        frame,
        hide_index=True,
        alt=alt,
        height=tall,
        column_config=_columns(frame, shares),
        placeholder="",
        row_height=LINES if long else None,
    )
    downloads(full_table or (lambda: frame), name=name)


def downloads(full_table: Callable[[], Frame], *, name: str) -> None:
    """Draw the buttons that write a table to a file, for spreadsheets and for papers."""
    with st.container(horizontal=True):
        for label, ending, mime, write, meaning in FILES:
            st.download_button(
                label,
                data=partial(_written, full_table, write),
                file_name=f"{name}.{ending}",
                mime=mime,
                key=f"{ending}_{name}",
                on_click="ignore",
                help=meaning,
            )


def _written(full_table: Callable[[], Frame], write: Callable[[Frame], str]) -> bytes:
    return write(full_table()).encode()


def choice(
    frame: Frame,
    *,
    key: str,
    alt: str,
    row: int | None,
    bar: str,
    pick: Callable[[int], None],
    height: int,
) -> None:
    """Draw a table of groups of which one is chosen by a click; `pick` hears its row; `bar` is a
    column of sizes.
    """

    def picked() -> None:
        rows = st.session_state[key].selection.rows
        if rows:
            pick(rows[0])

    sizes = frame[bar]
    longest = int(frame["attributes"].str.len().max())
    most = float(sizes[sizes < math.inf].max()) if len(sizes) else 1.0
    columns = _columns(frame) | {
        "attributes": st.column_config.TextColumn(width=140),
        bar: st.column_config.ProgressColumn(
            bar.replace("standard ", ""),
            width=100,
            format="%,.2f",
            min_value=0.0,
            max_value=most if most > 0 else 1.0,
        ),
    }
    st.dataframe(
        frame,
        hide_index=True,
        alt=alt,
        height=height,
        column_config=columns,
        key=key,
        on_select=picked,
        selection_mode="single-row",
        row_height=LINES if longest > ONE_LINE else None,
        selection_default={"selection": {"rows": [row] if row is not None else []}},
    )


def _columns(frame: Frame, shares: Collection[str] = ()) -> dict[str, ColumnConfig]:
    """Number formats by meaning: whole numbers with separators, errors in counts with four digits."""
    formats: dict[str, ColumnConfig] = {}
    labels = {"std": "standard error", "low": "interval from", "high": "interval to"}
    for column, kind in zip(map(str, frame.columns), frame.dtypes, strict=True):
        if column == "group":
            formats[column] = st.column_config.NumberColumn(width="small")
        elif kind.kind == "f":
            style = (
                "percent"
                if column in SHARES or column in shares
                else "%.4f"
                if column in FINE
                else "%,.2f"
            )
            formats[column] = st.column_config.NumberColumn(
                labels.get(column, column), format=style
            )
        elif column == "attributes":
            formats[column] = st.column_config.TextColumn(width="medium")
        elif (
            column == "query"
        ):  # numbers stand beside it on a narrow screen, too; on a wide one it takes what is left
            formats[column] = st.column_config.TextColumn(width=QUERY)
        elif kind.kind in "iu":
            formats[column] = st.column_config.NumberColumn(format="localized")
    return formats
