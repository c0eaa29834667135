"""Charts with alternative text, note, data table and downloads."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import streamlit as st

from engine._format import GAP_COLUMNS, csv_text, latex_text, share_rounded_up
from engine.figures import SHARE_COLUMNS, Picture
from pages.parts.shell.error_text import escape_markdown, show_errors

if TYPE_CHECKING:
    from streamlit.elements.lib.column_types import ColumnConfig

    from engine._format import Frame

OPEN = "open_tabs"  # session state key: mapping from the key of a row of tabs to its last open tab
SHORT = 8  # a table with at most this many rows has no fixed height
NAME_CHARACTERS_PER_LINE = 19
QUERY_CHARACTERS_PER_LINE = 25
TALL_ROW_HEIGHT = 66  # pixels of a row with several lines
QUERY_WIDTH = 180  # pixels
EXPORT_WIDTH, EXPORT_HEIGHT = 640, 400  # pixels of an exported figure, as wide as printed text
OPTIMUM = "certified optimum"
COUNTS = ("truth", "published")  # shown without decimals if all numbers are integers
# Columns of numbers that are shown with four decimals.
FINE = (
    "ratio",
    "worst ratio",
    "paper",
    "ours",
    "ours / paper",
    OPTIMUM,
    f"{OPTIMUM} / paper",
)

# Maps the names of columns to their labels on screen, where these differ from the names in files.
LABELS = {
    "std": "standard error",
    "low": "interval from",
    "high": "interval to",
    "error": "error of published",
    "published_low": "published from",
    "published_high": "published to",
    "measured": "share measured",
}

# For each format of downloads: label of the button, file extension, MIME type, tooltip.
FILES = (
    ("Download CSV", "csv", "text/csv", None),
    ("LaTeX", "tex", "text/x-tex", "LaTeX table (packages booktabs and longtable)"),
)

# Plotly configuration with which the toolbar of a chart has only the button for the image.
EXPORT = {"modeBarButtons": [["toImage"]]}


def tabs(
    views: Mapping[str, Callable[..., Any]], *, key: str, arguments: tuple[Any, ...] = ()
) -> Any:
    """Draw tabs, and return what the function of the open tab returns.

    The functions of closed tabs are not called. When the user returns to the page, the tab that was
    open last is open again.

    Parameters
    ----------
    views : mapping from the label of a tab to the function that draws it.
    arguments : arguments of these functions.
    """
    result = None
    last_open = st.session_state.setdefault(OPEN, {})
    if key not in st.session_state and last_open.get(key) in views:
        st.session_state[key] = last_open[key]
    for tab, (label, view) in zip(
        st.tabs(list(views), key=key, on_change="rerun"), views.items(), strict=True
    ):
        if tab.open:
            last_open[key] = label
            with tab:
                result = view(*arguments)
    return result


def folds(
    views: Mapping[str, tuple[str, Callable[..., Any]]], *, arguments: tuple[Any, ...] = ()
) -> None:
    """Draw expanders; the functions of closed expanders are not called.

    Parameters
    ----------
    views : mapping from the key of an expander to its label and the function that draws it.
    arguments : arguments of these functions.
    """
    for key, (label, view) in views.items():
        with st.expander(label, key=f"fold_{key}", on_change="rerun") as fold:
            if fold.open:
                with show_errors():
                    view(*arguments)


def numbers(*values: tuple[str, str, str]) -> None:
    """Draw large numbers in a row, one per tuple (label, value, tooltip)."""
    with st.container(horizontal=True, gap="medium"):
        for label, value, meaning in values:
            st.metric(label, value, help=meaning, width="content")


def chart(
    drawing: Picture,
    *,
    key: str,
    config: Mapping[str, Any] | None = None,
    height: int | Literal["content", "stretch"] = "content",
) -> Callable[..., Any]:
    """Return a function that draws the figure; it accepts further arguments of `st.plotly_chart`.

    Parameters
    ----------
    key : key of the element, and name of the exported SVG file.
    config : further Plotly configuration, if any.
    height : height in pixels; "content" for the height of the figure, "stretch" for that of the
        container.
    """
    image = {
        "format": "svg",
        "filename": key,
        "width": EXPORT_WIDTH,
        "height": drawing.figure.layout.height or EXPORT_HEIGHT,
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
    height: int | Literal["content", "stretch"] = "content",
    show_title: bool = True,
) -> None:
    """Draw a figure with its title, note and an expander with data table and downloads.

    Parameters
    ----------
    config, height : as for `chart`.
    on_select : called when the user selects a box or points in the figure; None if nothing can be
        selected.
    selects : what the user can select.
    show_title : whether the title is drawn.
    """
    if show_title:
        st.markdown(f"**{escape_markdown(drawing.title)}**")
    draw = chart(drawing, key=key, config=config, height=height)
    if on_select is None:
        draw()
    else:
        draw(on_select=on_select, selection_mode=selects)
    if drawing.note:
        st.caption(escape_markdown(drawing.note))
    with st.expander("Show data", key=f"twin_{key}", on_change="rerun") as fold:
        if fold.open:
            table(drawing.table, name=key, alt=drawing.title)


def table(
    frame: Frame,
    *,
    name: str,
    alt: str,
    height: int | Literal["auto"] = "auto",
    full_table: Callable[[], Frame] | None = None,
    shares: Collection[str] = (),
    width: int | Literal["stretch"] = "stretch",
    caption: str = "",
    decimals: Mapping[str, int] | None = None,
) -> None:
    """Draw a table with its downloads.

    Parameters
    ----------
    name : name of the downloaded files.
    alt : description of the table for screen readers.
    full_table : returns the table for the downloads, if `frame` is only a part of it.
    shares : columns that are shown in percent, besides `SHARE_COLUMNS`.
    width : width of the table in pixels; "stretch" for that of the container.
    caption : caption of the LaTeX table, if any.
    decimals : mapping from columns of floats to their number of decimals on screen, where it is not
        the usual one.
    """
    shown_height: int | Literal["auto"] = height if len(frame) > SHORT else "auto"
    has_long_queries = (
        "query" in frame and frame["query"].astype(str).str.len().max() > QUERY_CHARACTERS_PER_LINE
    )
    # On screen, tables are numbered from 1; in Python and in files, from 0.
    shown = frame.assign(group=frame["group"] + 1) if "group" in frame else frame
    st.dataframe(
        with_gaps_rounded_up(shown),
        hide_index=True,
        alt=alt,
        width=width,
        height=shown_height,
        column_config=_columns(frame, shares, decimals or {}),
        placeholder="–",
        row_height=TALL_ROW_HEIGHT if has_long_queries else None,
    )
    downloads(full_table or (lambda: frame), name=name, shares=shares, caption=caption)


def with_gaps_rounded_up(frame: Frame) -> Frame:
    """Return a table with its gaps to lower bounds, the columns `GAP_COLUMNS`, rounded up."""
    return frame.assign(**{c: frame[c].map(share_rounded_up) for c in GAP_COLUMNS if c in frame})


def downloads(
    full_table: Callable[[], Frame],
    *,
    name: str,
    shares: Collection[str] = (),
    caption: str = "",
) -> None:
    """Draw a row of buttons that download a table as CSV and LaTeX.

    ``shares`` are columns that LaTeX shows in percent, besides `SHARE_COLUMNS`. The LaTeX table has
    the ``caption``, if any.
    """
    with st.container(horizontal=True):
        download_buttons(full_table, name=name, shares=shares, caption=caption)


def download_buttons(
    full_table: Callable[[], Frame],
    *,
    name: str,
    shares: Collection[str] = (),
    caption: str = "",
) -> None:
    """Draw the buttons of `downloads` in the present container."""
    percent = (*SHARE_COLUMNS, *shares)
    for label, ending, mime, meaning in FILES:
        write = (
            csv_text if ending == "csv" else partial(_latex_text, percent=percent, caption=caption)
        )
        st.download_button(
            label,
            data=partial(_file_bytes, full_table, write),
            file_name=f"{name}.{ending}",
            mime=mime,
            key=f"{ending}_{name}",
            on_click="ignore",
            help=meaning,
        )


def _latex_text(frame: Frame, percent: Collection[str], caption: str) -> str:
    """Return a table as LaTeX with as many decimals as on screen."""
    decimals = {str(column): _decimals(frame, str(column)) for column in frame.columns}
    return latex_text(frame, percent=percent, caption=caption, decimals=decimals)


def choose_view(views: Iterable[str], *, key: str) -> str:
    """Draw the choice between the views of a tab; return the name of the chosen one."""
    view: str = st.radio(
        "Show",
        list(views),
        key=key,
        horizontal=True,
        persist_state="session",
        label_visibility="collapsed",
    )
    return view


def _file_bytes(full_table: Callable[[], Frame], write: Callable[[Frame], str]) -> bytes:
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
    """Draw a table of groups of which the user can select one.

    Parameters
    ----------
    row : row that is selected at first.
    bar : column of numbers that is drawn as bars.
    pick : called with the number of the row that the user selects.
    """

    def on_select() -> None:
        rows = st.session_state[key].selection.rows
        if rows:
            pick(rows[0])

    sizes = frame[bar]
    longest = int(frame["attributes"].str.len().max())
    largest = float(sizes[sizes < math.inf].max()) if len(sizes) else 1.0
    columns = _columns(frame) | {
        "attributes": st.column_config.TextColumn(width=140),
        bar: st.column_config.ProgressColumn(
            bar.replace("standard ", ""),
            width=100,
            format="%,.2f",
            min_value=0.0,
            max_value=largest if largest > 0 else 1.0,
        ),
    }
    st.dataframe(
        frame,
        hide_index=True,
        alt=alt,
        height=height,
        column_config=columns,
        key=key,
        on_select=on_select,
        selection_mode="single-row",
        row_height=TALL_ROW_HEIGHT if longest > NAME_CHARACTERS_PER_LINE else None,
        selection_default={"selection": {"rows": [row] if row is not None else []}},
    )


def _columns(
    frame: Frame, shares: Collection[str] = (), decimals: Mapping[str, int] | None = None
) -> dict[str, ColumnConfig]:
    """Return a mapping from the columns of a table to their formats and widths.

    Integers have thousands separators. Floats are shown in percent in the columns of
    `SHARE_COLUMNS` and ``shares``, with the number of ``decimals`` of their column, with four
    decimals in the columns of `FINE`, without decimals in the columns of `COUNTS` if all their
    numbers are integers, and otherwise with two decimals.
    """
    decimals = decimals or {}
    formats: dict[str, ColumnConfig] = {}
    for column, kind in zip(map(str, frame.columns), frame.dtypes, strict=True):
        if column == "group":
            formats[column] = st.column_config.NumberColumn("table", width="small")
        elif kind.kind == "f":
            is_share = column in SHARE_COLUMNS or column in shares
            places = decimals.get(column, _decimals(frame, column))
            style = "percent" if is_share else f"%,.{places}f"
            formats[column] = st.column_config.NumberColumn(
                LABELS.get(column, column), format=style
            )
        elif column == "attributes":
            formats[column] = st.column_config.TextColumn(width="medium")
        elif column == "query":  # leaves room for the numbers beside it on a phone
            formats[column] = st.column_config.TextColumn(width=QUERY_WIDTH)
        elif kind.kind in "iu":
            formats[column] = st.column_config.NumberColumn(format="localized")
    return formats


def _decimals(frame: Frame, column: str) -> int:
    """Return the number of decimals of a column of floats that are no shares."""
    if column in FINE:
        return 4
    numbers = frame[column]
    is_whole = column in COUNTS and numbers.dtype.kind == "f" and (numbers.dropna() % 1 == 0).all()
    return 0 if is_whole else 2
