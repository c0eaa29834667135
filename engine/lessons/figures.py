"""Figures of the lessons, and `handout_html`, which returns a printable lesson as one HTML page.

The functions with names that end in ``_picture`` return a `Picture`: a figure with its table,
alternative text and note.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from engine._arrays import Array
from engine._format import cost, format_number, percent_rounded_up, pluralize
from engine.figures import Picture
from engine.figures.base import (
    BLUE,
    GREEN,
    GREY,
    LEGEND,
    ORANGE,
    axis_labels,
    category_axis,
    heat_map,
    mechanism_style,
    set_margins,
)
from engine.lessons.examples import (
    CAPS,
    FIRST,
    PERSONS,
    SECRETS,
    Attack,
    CentersExample,
    ClippingExample,
    Contest,
    Neighbours,
    Overlaps,
    QueryDecomposition,
    StrategyResult,
    TwoAnalyses,
    best_cap,
    caps_table,
)
from engine.privacy import Budget
from engine.workload import Schema
from engine.workload.attribute import cell_text

STYLE = """
body { font: 11pt/1.45 Georgia, serif; color: #111; background: #fff; max-width: 46rem; margin: 2rem auto; }
h1 { font-size: 20pt; } h2 { font-size: 14pt; margin-top: 1.6em; }
table { border-collapse: collapse; margin: 0.8em 0; } th, td { border: 1px solid #999; padding: 0.15em 0.6em; }
code { font-size: 12pt; } figure { margin: 1em 0; break-inside: avoid; } section { break-inside: avoid; }
.line { border-bottom: 1px solid #999; height: 2em; }
@media print { body { margin: 0; } h1:not(:first-child) { break-before: page; } }
"""


def in_html(text: str) -> str:
    """Convert text with simple markup to HTML.

    The markup is ``**bold**``, ``*italic*``, ``code`` in backticks, and lines that start with "- "
    as elements of a list.  All other text is escaped.

    >>> in_html("a **b** <c>")
    '<p>a <b>b</b> &lt;c&gt;</p>'
    """
    markup = html.escape(text, quote=False)
    for mark, tag in ((r"\*\*(.+?)\*\*", "b"), (r"`(.+?)`", "code"), (r"\*(.+?)\*", "i")):
        markup = re.sub(mark, rf"<{tag}>\1</{tag}>", markup)
    lines = [
        f"<li>{line[2:]}</li>" if line.startswith("- ") else f"<p>{line}</p>"
        for line in markup.split("\n")
        if line
    ]
    return "\n".join(lines)


@dataclass(frozen=True, kw_only=True)
class HandoutChapter:
    """One lesson of a handout.

    Attributes
    ----------
    title : heading.
    words : paragraphs before the figures, in the markup of `in_html`.
    pictures : figures; the captions contain title, alternative text and note.  Below a figure are
        the first `HANDOUT_ROWS` rows of its table.
    sections : pairs of heading and text, in the markup of `in_html`.
    """

    title: str
    words: Sequence[str] = ()
    pictures: Sequence[Picture] = ()
    sections: Sequence[tuple[str, str]] = ()


def handout_html(
    title: str,
    words: Sequence[str],
    pictures: Sequence[Picture],
    sections: Sequence[tuple[str, str]],
) -> str:
    """Return an HTML page with a title, paragraphs, figures with captions, and sections.

    Parameters
    ----------
    words : paragraphs before the figures, in the markup of `in_html`.
    pictures : figures; the captions contain title, alternative text and note.
    sections : pairs of heading and text, in the markup of `in_html`.

    >>> page = handout_html("Noise", ["One draw."], [], [("Questions", "- Why?")])
    >>> page.startswith("<!doctype html>"), "<li>Why?</li>" in page
    (True, True)
    """
    chapter = HandoutChapter(title=title, words=words, pictures=pictures, sections=sections)
    return chapters_html(title, [chapter])


def chapters_html(title: str, chapters: Sequence[HandoutChapter]) -> str:
    """Return an HTML page with the text and figures of several lessons, for printing.

    Every lesson begins on a new printed page.  ``title`` is the title of the HTML document, which
    browsers show in the tab; it is not printed.

    >>> page = chapters_html("Two", [HandoutChapter(title="Attack"), HandoutChapter(title="Noise")])
    >>> page.count("<h1>")
    2
    """
    parts = []
    needs_library = True  # the first figure contains the code of plotly, which all figures use
    for chapter in chapters:
        parts += [f"<h1>{html.escape(chapter.title)}</h1>", *map(in_html, chapter.words)]
        for picture in chapter.pictures:
            figure_html = with_room_for_axes(picture.figure).to_html(
                full_html=False,
                include_plotlyjs=needs_library,
                config={"staticPlot": True},
                default_width="46rem",
            )
            needs_library = False
            caption = in_html(f"**{picture.title}.** {picture.alt} {picture.note}")
            parts.append(
                f"<figure>{figure_html}<figcaption>{caption}</figcaption></figure>"
                f"{_data_html(picture.table)}"
            )
        parts += [
            f"<section><h2>{html.escape(head)}</h2>{in_html(body)}</section>"
            for head, body in chapter.sections
        ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta'
        f' charset="utf-8"><title>{html.escape(title)}</title><style>{STYLE}</style></head><body>\n'
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _data_html(table: pd.DataFrame) -> str:
    """Return the first rows of the table behind a figure as HTML; empty for an empty table."""
    if table.empty:
        return ""
    rows = table.head(HANDOUT_ROWS)
    numbers = rows.to_html(index=False, border=0, na_rep="", float_format=_number_text)
    n_left = len(table) - len(rows)
    left = f"<p>The app shows {pluralize(n_left, 'more row')}.</p>" if n_left else ""
    return f"<section>{numbers}{left}</section>"


def _number_text(number: float) -> str:
    """Return a number with at most four significant digits and ten decimals.

    >>> _number_text(-2.2e-16), _number_text(1234.56), _number_text(0.00012345)
    ('0', '1,235', '0.0001234')
    """
    return f"{round(number, 10) + 0.0:,.4g}"  # adding 0.0 changes -0.0 to 0.0


def with_room_for_axes(figure: go.Figure) -> go.Figure:
    """Return a copy of a figure with a white background and automatic margins, for a printed page.

    The margins contain the labels and titles of all axes.  In the app, the theme of Streamlit sets
    background and margins instead.
    """
    copy = go.Figure(figure)
    copy.update_layout(template="plotly_white")
    copy.update_xaxes(automargin=True)
    copy.update_yaxes(automargin=True)
    return copy


HANDOUT_ROWS = 16  # rows of a table in a handout
PANELS_PER_ROW = 3
DIVERGING_SCALE = [
    [0.0, ORANGE],
    [0.5, "#ffffff"],
    [1.0, BLUE],
]  # plotly color scale for values from -1 to 1, with white at 0
DARK_BELOW = -0.1  # cells below this value are dark on the color scale Cividis from -1 to 1


# Cached, because the same few values occur in many cells.
@lru_cache(maxsize=512)
def fraction_text(value: float, parts: int) -> str:
    """Return a number as the text of the nearest fraction with a denominator of at most ``parts``.

    >>> fraction_text(-1 / 6, 6), fraction_text(1e-17, 6), fraction_text(2.0, 6)
    ('−1/6', '0', '2')
    """
    return str(Fraction(value).limit_denominator(max(parts, 1))).replace("-", "−")


def decomposition_picture(decomposition: QueryDecomposition, pieces: int) -> Picture:
    """Return a figure of a query on two attributes, its first components, and their sum.

    Each of these is a panel with a table of coefficients.  ``pieces`` is the number of components
    to draw; if it is 0, the sum is not drawn.
    """
    shown = decomposition.pieces[:pieces]
    partial_sum = decomposition.added(pieces)
    panels = [("the query", decomposition.query, decomposition.schema.names)]
    panels += [(f"piece: {p.name}", p.table, p.attributes) for p in shown]
    panels += [("sum of the pieces", partial_sum, decomposition.schema.names)] if pieces else []
    rows = -(-len(panels) // PANELS_PER_ROW)
    sizes = dict(zip(decomposition.schema.names, decomposition.query.shape, strict=True))
    traces: list[dict[str, Any]] = []
    layout = deepcopy(_panel_layout(tuple(html.escape(title) for title, _, _ in panels), rows))
    for number, (title, table, names) in enumerate(panels):
        trace_axes = {axis: f"{axis[0]}{_axis_suffix(number)}" for axis in ("xaxis", "yaxis")}
        n_rows, n_columns = (n if name in names else 1 for name, n in sizes.items())
        grid = np.reshape(table, (n_rows, n_columns))
        texts = [fraction_text(v, decomposition.query.size) for v in grid.ravel()]
        row, column = np.indices(grid.shape).reshape(2, -1)
        heat = {
            "type": "heatmap",
            "z": grid,
            "colorscale": "Cividis",
            "zmin": -1,
            "zmax": 1,
            "showscale": False,
        }
        numbers = {
            "type": "scatter",
            "x": column,
            "y": row,
            "text": texts,
            "mode": "text",
            # Texts are black on bright cells and white on dark cells.
            "textfont": {
                "size": 16,
                "color": ["black" if v > DARK_BELOW else "white" for v in grid.ravel()],
            },
            "hovertemplate": f"{html.escape(title)}<br>%{{text}}<extra></extra>",
            "showlegend": False,
        }
        traces += [
            heat | {"xgap": 2, "ygap": 2, "hoverinfo": "skip"} | trace_axes,
            numbers | trace_axes,
        ]
        for axis, name, n in zip(("yaxis", "xaxis"), sizes, sizes.values(), strict=True):
            labels = _cell_labels(decomposition.schema, name) if name in names else []
            # The axes of every panel have the length of the full table, so that all cells of all
            # panels have the same size.
            extent = [n - 0.5, -0.5] if axis == "yaxis" else [-0.5, n - 0.5]
            ticks = {
                "tickvals": list(range(len(labels))),
                "ticktext": labels,
                "showgrid": False,
                "zeroline": False,
            }
            layout[f"{axis}{_axis_suffix(number)}"] |= ticks | {"range": extent}
    layout["height"] = 80 + rows * (70 + 44 * decomposition.query.shape[0])
    sum_text = "their sum is the query"
    if pieces < len(decomposition.pieces):
        remainder = float(np.max(np.abs(partial_sum - decomposition.query)))
        remainder_text = fraction_text(remainder, decomposition.query.size)
        sum_text = f"their sum differs from the query by up to {remainder_text}"
    piece_names = ", ".join(p.name for p in shown) or "none"
    return Picture(
        title="A query and its pieces",
        figure=set_margins(go.Figure(traces, layout)),
        table=_coefficient_table(decomposition, pieces),
        alt=f"The query and its pieces ({piece_names}); {sum_text}.",
        note=(
            "Bright: positive. Dark: negative. A piece adds up to 0 along each of its attributes."
        ),
    )


def _axis_suffix(panel: int) -> str:
    """Return the suffix of the plotly axes of a panel: "" for panel 0, "2" for panel 1, and so
    on."""
    return str(panel + 1) if panel else ""


# Cached, because plotly takes longer for the subplot layout than for the traces.
@lru_cache(maxsize=64)
def _panel_layout(titles: tuple[str, ...], rows: int) -> dict[str, Any]:
    """Return the plotly layout of panels with titles, in ``rows`` rows of `PANELS_PER_ROW` panels.

    The result is cached, so callers must copy it before they change it.
    """
    figure = make_subplots(
        rows=rows, cols=PANELS_PER_ROW, subplot_titles=titles, horizontal_spacing=0.09
    )
    return {
        name: value for name, value in figure.layout.to_plotly_json().items() if name != "template"
    }


def overlap_picture(overlaps: Overlaps) -> Picture:
    """Return a heat map of the cosines between the queries of all tables."""
    labels = [
        f"{table}: {label}" for table, label in zip(overlaps.tables, overlaps.labels, strict=True)
    ]
    shown = np.where(np.abs(overlaps.cosines) < 1e-12, 0.0, overlaps.cosines)
    column_labels = list(overlaps.labels) if len(set(overlaps.labels)) == len(labels) else labels
    style = {"zmin": -1, "zmax": 1, "xgap": 1, "ygap": 1, "colorscale": DIVERGING_SCALE}
    figure = heat_map(
        shown,
        [labels, column_labels],
        ["", ""],
        "%{y}<br>%{x}<br>cosine %{z:.3f}",
        "cosine",
        **style,
    )
    line = {"type": "line", "line": {"color": ORANGE, "width": 2}}
    starts = [
        i - 0.5 for i in range(1, len(labels)) if overlaps.tables[i] != overlaps.tables[i - 1]
    ]
    vertical_lines = [
        line | {"x0": x, "x1": x, "xref": "x", "y0": 0, "y1": 1, "yref": "y domain"} for x in starts
    ]
    horizontal_lines = [
        line | {"x0": 0, "x1": 1, "xref": "x domain", "y0": y, "y1": y, "yref": "y"} for y in starts
    ]
    all_ticks = {"nticks": len(labels)}
    figure.update_layout(
        shapes=[*vertical_lines, *horizontal_lines], xaxis=all_ticks, yaxis=all_ticks
    )
    tables = list(dict.fromkeys(overlaps.tables))
    cosine_text = (
        f"cosines between different tables reach {overlaps.largest:.2f}, so they share information"
    )
    if overlaps.largest < 1e-9:
        cosine_text = "every cosine between different tables is 0, so they share no information"
    table = pd.DataFrame(shown, columns=labels)
    table.insert(0, "query", labels)
    return Picture(
        title="Information that the counts of all tables share",
        figure=figure,
        table=table,
        alt=f"Heat map of {len(labels)} queries from {len(tables)} tables; {cosine_text}.",
        note="Cosine 1: the same count. 0: no shared information. Lines separate the tables.",
    )


def cost_picture(decomposition: QueryDecomposition) -> Picture:
    """Return a bar chart of the privacy cost of every component of a query, at a standard error of
    1."""
    names, costs = [p.name for p in decomposition.pieces], [p.cost for p in decomposition.pieces]
    figure = _bars(
        names, costs, "privacy cost (pcost) at a standard error of 1 count", "%{x:,.4~r} pcost"
    )
    most_expensive = max(decomposition.pieces, key=lambda p: p.cost)
    return Picture(
        title="Cost of each piece",
        figure=figure,
        table=pd.DataFrame({"piece": names, "pcost": costs}),
        alt=(
            f"Costs of {len(names)} pieces; the most expensive is {most_expensive.name} with "
            f"{cost(most_expensive.cost)} pcost."
        ),
        note="Square of the largest coefficient: the largest change of the answer by one record.",
    )


def outcomes_picture(names: Sequence[str], counts: Sequence[int], drawn: Array) -> Picture:
    """Return a figure of several possible releases of a histogram, and its true counts.

    Parameters
    ----------
    names : labels of the cells.
    counts : true counts of the cells.
    drawn : noisy counts of every release, shape (draws, cells).
    """
    draws, texts = len(drawn), axis_labels(names)
    # Each release has its own horizontal shift, so that the points of a cell do not overlap.
    positions = np.arange(len(counts)) + np.linspace(-0.35, 0.35, draws)[:, None]
    all_draws = {
        "type": "scatter",
        "x": positions.ravel(),
        "y": drawn.ravel(),
        "mode": "markers",
        "name": f"{draws} possible releases",
        "marker": {"color": BLUE, "size": 6},
        "customdata": texts * draws,
        "hovertemplate": "%{customdata}<br>%{y:.1f}<extra>one release</extra>",
    }
    last_draw = {
        "type": "scatter",
        "x": positions[-1],
        "y": drawn[-1],
        "mode": "lines+markers",
        "name": "one of them",
        "line": {"color": ORANGE, "width": 2, "dash": "dot"},
        "marker": {"size": 9, "symbol": "diamond"},
    }
    true_counts = {
        "type": "scatter",
        "x": [p for i in range(len(counts)) for p in (i - 0.4, i + 0.4, None)],
        "y": [v for count in counts for v in (count, count, None)],
        "mode": "lines",
        "name": "true count (invented)",
        "line": {"color": GREEN, "width": 3},
        "hovertemplate": "true count %{y}<extra></extra>",
    }
    ticks = {
        "tickvals": list(range(len(counts))),
        "ticktext": texts,
        "title": {"text": "age"},
        "showgrid": False,
    }
    layout = {
        "xaxis": ticks,
        "yaxis": {"title": {"text": "records (counts)"}},
        "height": 400,
        "legend": LEGEND,
    }
    table = pd.DataFrame(drawn.T, columns=[f"release {i + 1}" for i in range(draws)])
    table.insert(0, "true count", list(counts))
    table.insert(0, "age", list(names))
    errors = np.abs(drawn - np.asarray(counts))
    return Picture(
        title="Possible releases",
        figure=set_margins(go.Figure([all_draws, last_draw, true_counts], layout)),
        table=table,
        alt=(
            f"{draws} noisy histograms of {len(counts)} invented counts: half of the errors are"
            f" below {format_number(float(np.median(errors)))} counts, the largest is"
            f" {format_number(float(errors.max()))}."
        ),
        note="Only one of them would be published.",
    )


def neighbours_picture(neighbours: Neighbours) -> Picture:
    """Return a figure of the densities of one noisy count without and with one person."""
    traces = [
        {
            "type": "scatter",
            "x": neighbours.values,
            "y": density,
            "mode": "lines",
            "name": name,
            "fill": "tozeroy",
            "line": {"color": color, "dash": dash, "width": 2.5},
            "hovertemplate": "%{x:.2f} counts from the count without the person<extra></extra>",
        }
        for name, density, color, dash in (
            ("without the person", neighbours.without, BLUE, "solid"),
            ("with the person", neighbours.with_one, ORANGE, "dash"),
        )
    ]
    layout = {
        "xaxis": {"title": {"text": "published count minus count without the person"}},
        "yaxis": {"title": {"text": "density"}, "showticklabels": False, "rangemode": "tozero"},
        "height": 340,
        "legend": LEGEND,
    }
    table = pd.DataFrame(
        {
            "noisy count": neighbours.values,
            "density without": neighbours.without,
            "density with": neighbours.with_one,
        }
    )
    return Picture(
        title="The same release with and without one person",
        figure=set_margins(go.Figure(traces, layout)),
        table=table,
        alt=(
            "Two bell curves, at a distance of the number of rows of the person. An attacker "
            "guesses from the answer whether the person is in the data; the guess is right at most"
            f" {guess_text(neighbours)} of the time."
        ),
        note="The more the curves overlap, the less an answer reveals about the person.",
    )


def guess_text(neighbours: Neighbours) -> str:
    """Return the probability ``guess`` as a percentage, rounded up to one decimal.

    >>> from engine import Budget
    >>> from engine.lessons.examples import neighbours
    >>> guess_text(neighbours(Budget(pcost=1.0)))
    '69.2%'
    """
    return f"{min(np.ceil(1000 * neighbours.guess) / 10, 100.0):g}%"


def spends_picture(analyses: TwoAnalyses) -> Picture:
    """Return a bar chart of the pcost of a first measurement (the look) and a following analysis.

    There is one bar per row of `TwoAnalyses.spends`.
    """
    table = analyses.spends()
    budget = analyses.fine.pcost
    bars = [
        {
            "type": "bar",
            "x": table[label],
            "y": table["path"],
            "name": label,
            "orientation": "h",
            "marker": {"color": color, "pattern": {"shape": shape}},
            "hovertemplate": f"{label}: %{{x:,.4~r}} pcost<extra></extra>",
        }
        for label, color, shape in ((FIRST, ORANGE, "x"), ("remainder", BLUE, ""))
    ]
    budget_line = {"type": "line", "x0": budget, "x1": budget, "y0": 0, "y1": 1, "yref": "paper"}
    line_label = {"x": budget, "y": 1.0, "yref": "paper", "yanchor": "bottom", "showarrow": False}
    layout = {
        "shapes": [budget_line | {"line": {"color": GREY, "dash": "dash"}}],
        "annotations": [line_label | {"text": f"budget {cost(budget)}"}],
        "barmode": "stack",
        "height": 300,
        "legend": LEGEND,
        "xaxis": {"title": {"text": "privacy cost (pcost)"}, "rangemode": "tozero"},
        "yaxis": category_axis() | {"autorange": "reversed"},
    }
    look = table[FIRST].iloc[0]
    return Picture(
        title="Cost of a first measurement before the decision",
        figure=set_margins(go.Figure(bars, layout)),
        table=table,
        alt=(
            f"A shared first measurement of {cost(look)} pcost and the remainder cost"
            f" {cost(table['total'].iloc[0])}; with an equally accurate separate one the cost is"
            f" {cost(table['total'].iloc[1])}."
        ),
    )


def _bars(names: Sequence[str], sizes: Sequence[float], axis: str, hover: str) -> go.Figure:
    """Return a figure of horizontal bars with their values as text.

    ``axis`` is the title of the axis of values.  ``hover`` is the plotly template of the text that
    appears next to the name when the pointer is on a bar.
    """
    bar = {
        "type": "bar",
        "x": list(sizes),
        "y": axis_labels(list(names)),
        "orientation": "h",
        "marker": {"color": BLUE},
        "text": [format_number(size) for size in sizes],
        "textposition": "auto",
        "hovertemplate": f"%{{y}}: {hover}<extra></extra>",
    }
    layout = {
        "height": 90 + 34 * len(names),
        "bargap": 0.3,
        "yaxis": category_axis() | {"autorange": "reversed"},
        "xaxis": {"title": {"text": axis}},
    }
    return set_margins(go.Figure([bar], layout))


def _cell_labels(schema: Schema, name: str) -> list[str]:
    """Return the axis labels of the cells of an attribute."""
    return axis_labels([cell_text(schema[name], i) for i in range(schema[name].size)])


def _coefficient_table(result: QueryDecomposition, pieces: int) -> pd.DataFrame:
    """Return a table of the coefficients of a query, its first components and their sum.

    There is one row per cell of the full table.  ``pieces`` is the number of components.
    """
    cells = [_cell_labels(result.schema, name) for name in result.schema.names]
    index = np.indices(result.query.shape).reshape(len(cells), -1)
    columns = {
        name: [labels[i] for i in positions]
        for name, labels, positions in zip(result.schema.names, cells, index, strict=True)
    }
    size = result.query.size

    def texts(table: Array) -> list[str]:
        return [fraction_text(v, size) for v in table.ravel()]

    columns_by_name = {**columns, "query": texts(result.query)}
    columns_by_name |= {f"piece {p.name}": texts(p.spread) for p in result.pieces[:pieces]}
    return pd.DataFrame(columns_by_name | {"added up": texts(result.added(pieces))})


PAIR_HEIGHT_PX = 480  # height of figures that are shown side by side


def strategy_picture(result: StrategyResult) -> Picture:
    """Return a heat map of a strategy matrix."""
    m, n = result.rows.shape
    labels = [[f"row {i + 1}" for i in range(m)], [str(i) for i in range(n)]]
    style = {"zmin": -1, "zmax": 1, "zmid": 0, "colorscale": DIVERGING_SCALE}
    axes = ["measurement", "cell"]
    hover = "%{y}, cell %{x}<br>%{z:.3f}"
    figure = heat_map(result.rows, labels, axes, hover, "weight", **style)
    figure.update_layout(height=PAIR_HEIGHT_PX)
    table = pd.DataFrame(result.rows, columns=labels[1])
    table.insert(0, "row", labels[0])
    max_rows_per_cell = int(np.max(np.count_nonzero(np.abs(result.rows) > 1e-9, axis=0)))
    return Picture(
        title=f"{result.name}: measured",
        figure=figure,
        table=table,
        alt=(
            f"{m} rows on {n} cells; a record changes up to {max_rows_per_cell} of the {m} measured"
            " numbers."
        ),
        note=(
            "One row is one noisy number; its weights are scaled so that the whole strategy has"
            " privacy cost 1. White is zero."
        ),
    )


def range_errors_picture(contest: Contest, number: int) -> Picture:
    """Return a heat map of the standard error of every range under one strategy.

    The color range is the same for all strategies.  ``number`` is the position of the strategy in
    the results of the contest.
    """
    result, n = contest.results[number], contest.cells
    first, last = np.triu_indices(n)
    grid = np.full((n, n), np.nan)
    grid[first, last] = result.errors
    labels = [str(i) for i in range(n)]
    hover = "%{y} to %{x}<br>standard error %{z:.3f} counts"
    color_range = {"zmin": 0.0, "zmax": max(float(t.errors.max()) for t in contest.results)}
    figure = heat_map(
        grid,
        [labels, labels],
        ["first cell", "last cell"],
        hover,
        "standard<br>error",
        **color_range,
    )
    figure.update_layout(height=PAIR_HEIGHT_PX)
    worst = int(np.argmax(result.errors))
    return Picture(
        title=f"{result.name}: error",
        figure=figure,
        table=pd.DataFrame(
            {"first cell": first, "last cell": last, "standard error": result.errors}
        ),
        alt=(
            f"{len(first):,} ranges; standard errors from"
            f" {format_number(float(result.errors.min()))} to"
            f" {format_number(float(result.errors.max()))} counts, the largest for cells"
            f" {first[worst]} to {last[worst]}."
        ),
        note="All strategies have the same color scale.",
    )


# Maps a strategy to the label of a mechanism.  The strategy is drawn in the style of the mechanism.
MECHANISM_OF_STRATEGY = {
    "Identity": "identity",
    "Hierarchical": "hierarchical",
    "Wavelet": "wavelet",
    "Fourier": "wff",
    "Optimal": "optimum",
}


def contest_picture(
    contest: Contest, bounds: Mapping[str, float], chosen: str = "", *, decimals: int = 4
) -> Picture:
    """Return a dot plot of the RMSE of all strategies, with lower bounds as vertical lines.

    Parameters
    ----------
    bounds : maps names to at most two lower bounds on the RMSE, in counts.
    chosen : name of the strategy whose marker is larger.
    decimals : number of decimals of the errors and bounds in the texts of the figure.
    """
    names, sizes = [t.name for t in contest.results], [t.rmse for t in contest.results]
    is_chosen = [name == chosen for name in names]
    styles = [mechanism_style(MECHANISM_OF_STRATEGY[name]) for name in names]
    figure = go.Figure(
        go.Scatter(
            x=sizes,
            y=names,
            mode="markers+text",
            text=[f"  {size:.{decimals}f}" for size in sizes],
            textposition="middle right",
            marker={
                "opacity": 1,
                "size": [17 if chosen_one else 12 for chosen_one in is_chosen],
                "symbol": [style.symbol for style in styles],
                "color": [style.color for style in styles],
            },
            hovertemplate=f"%{{y}}: %{{x:.{decimals}f}} counts<extra></extra>",
            showlegend=False,
        )
    )
    # there may be only one bound
    for (name, bound), dash, color in zip(
        bounds.items(), ("dash", "dot"), (GREY, GREEN), strict=False
    ):
        figure.add_scatter(
            x=[bound, bound],
            y=[names[0], names[-1]],
            mode="lines",
            name=f"{name}: {bound:.{decimals}f}",
            line={"color": color, "dash": dash, "width": 3},
            hovertemplate=f"{html.escape(name)}: {bound:.{decimals}f} counts<extra></extra>",
            showlegend=True,
        )
    low, high = min(*sizes, *bounds.values()), max(sizes)
    margin = 0.06 * low + 0.1 * (high - low)
    figure.update_xaxes(
        title="RMSE over all queries (counts)", range=[low - margin / 2, high + 2 * margin]
    )
    figure.update_yaxes(category_axis() | {"autorange": "reversed"})
    figure.update_layout(height=320, legend=LEGEND)
    best = min(contest.results, key=lambda t: t.rmse)
    table = pd.DataFrame(
        {"strategy or bound": [*names, *bounds], "RMSE": [*sizes, *bounds.values()]}
    )
    return Picture(
        title=f"Typical error of all strategies: {contest.family.name}, {contest.cells} cells",
        figure=set_margins(figure),
        table=table,
        alt=(
            f"{best.name} has the smallest RMSE, {best.rmse:.{decimals}f} counts; no strategy can "
            f"be below {max(bounds.values()):.{decimals}f}."
        ),
        note="All strategies have privacy cost 1. The axis does not begin at 0.",
    )


def proof_text(contest: Contest, share: float) -> str:
    """Return Markdown text about the gap between the optimal strategy and a lower bound.

    ``share`` selects the weights that prove the bound and is explained at `Contest.bound`.
    """
    gap = contest.results[-1].rmse / contest.bound(share) - 1.0
    if gap < 1e-6:
        return (
            "**Strategy and bound are equal:** these weights prove that no strategy has a smaller"
            " error."
        )
    return (
        f"The optimal strategy is **{percent_rounded_up(gap, 2)}** above the bound that these "
        "weights prove: no strategy is better by more than that. Other weights prove more."
    )


def attack_picture(attack: Attack) -> Picture:
    """Return a figure of the confidential replies of all persons and their estimates by an attack.

    A horizontal line marks the threshold above which the attacker guesses yes.
    """
    persons = [str(i + 1) for i in range(PERSONS)]
    is_correct = [guess == secret for guess, secret in zip(attack.guesses, SECRETS, strict=True)]
    replies = {
        "type": "scatter",
        "x": persons,
        "y": list(SECRETS),
        "mode": "markers",
        "name": "confidential reply (1 is yes)",
        "marker": {"color": GREEN, "size": 18, "symbol": "circle-open", "line": {"width": 3}},
        "hovertemplate": "person %{x} replied %{y}<extra></extra>",
    }
    guesses = [
        {
            "type": "scatter",
            "x": [p for p, r in zip(persons, is_correct, strict=True) if r is correct],
            "y": [
                float(v) for v, r in zip(attack.estimate, is_correct, strict=True) if r is correct
            ],
            "mode": "markers",
            "name": name,
            "marker": {"color": color, "size": 10, "symbol": symbol},
            "hovertemplate": "person %{x}: estimate %{y:.2f}<extra></extra>",
        }
        for correct, name, color, symbol in (
            (True, "guessed right", BLUE, "circle"),
            (False, "guessed wrong", ORANGE, "x"),
        )
    ]
    threshold = {
        "type": "line",
        "x0": 0,
        "x1": 1,
        "xref": "x domain",
        "y0": 0.5,
        "y1": 0.5,
        "yref": "y",
    }
    layout = {
        "shapes": [threshold | {"line": {"color": GREY, "dash": "dash"}}],
        "xaxis": category_axis("person")
        | {"categoryarray": persons, "categoryorder": "array", "showgrid": False},
        "yaxis": {"title": {"text": "estimated reply"}},
        "height": 360,
        "legend": LEGEND,
    }
    table = pd.DataFrame(
        {
            "person": persons,
            "reply": SECRETS,
            "estimate": attack.estimate,
            "guess": attack.guesses,
            "right": is_correct,
        }
    )
    return Picture(
        title="Replies found by the attack",
        figure=set_margins(go.Figure([replies, *guesses], layout)),
        table=table,
        alt=(
            f"From {len(attack.answers)} answers the attacker finds {attack.right} of {PERSONS}"
            " replies; tossing a coin finds half of them."
        ),
        note="Above the dashed line the attacker guesses yes. The replies are invented.",
    )


def caps_picture(budget: Budget, chosen: int) -> Picture:
    """Return a line chart of the error of the total for every cap on rows per person.

    Further lines show the two sources of the error: the rows lost and the standard error of the
    noise.  A vertical line marks the cap ``chosen``.
    """
    table = caps_table(budget)
    figure = go.Figure()
    for column, name, color, dash in (
        ("rows lost", "rows lost", ORANGE, "dot"),
        ("standard error", "standard error of the noise", BLUE, "dash"),
        ("error", "error of the total", GREEN, "solid"),
    ):
        figure.add_scatter(
            x=table["cap"],
            y=table[column],
            mode="lines+markers",
            name=name,
            line={"color": color, "dash": dash, "width": 2.5},
            hovertemplate=f"cap %{{x}}<br>{name}: %{{y:,.4~r}} counts<extra></extra>",
        )
    figure.add_vline(x=chosen, line={"color": GREY, "dash": "dash"})
    figure.update_xaxes(
        title="cap: largest number of rows counted per person",
        dtick=1,
        range=[CAPS[0] - 0.5, CAPS[-1] + 0.5],
    )
    figure.update_yaxes(title="counts", rangemode="tozero")
    figure.update_layout(height=360, legend=LEGEND)
    best = best_cap(budget)
    error = format_number(float(table["error"][table["cap"] == best].iloc[0]))
    return Picture(
        title="Error for each cap on rows per person",
        figure=set_margins(figure),
        table=table,
        alt=(
            "With a larger cap, fewer rows are lost and the noise is larger; the error of the "
            f"total is smallest at a cap of {best}: {error} counts."
        ),
        note=("Every cap gives a person the same guarantee. Dashed: the chosen cap."),
    )


def clipping_picture(example: ClippingExample, width: int) -> Picture:
    """Return a bar chart of true counts, with markers at the means of clipped noisy counts.

    A noisy count below zero is clipped: it is replaced by zero.  ``width`` is the number of cells
    per bin, for the labels.
    """
    bins = [
        f"{i * width}" if width == 1 else f"{i * width}-{(i + 1) * width - 1}"
        for i in range(len(example.counts))
    ]
    figure = go.Figure()
    figure.add_bar(
        x=bins,
        y=example.counts,
        name="true count (invented)",
        marker_color=GREEN,
        hovertemplate="income class %{x}: %{y}<extra></extra>",
    )
    figure.add_scatter(
        x=bins,
        y=example.means,
        mode="markers",
        name="mean published count",
        marker={"color": ORANGE, "size": 9, "symbol": "diamond"},
        # Error bars do not go below 0, because published counts are never negative.
        error_y={
            "array": example.errors,
            "arrayminus": np.minimum(example.errors, example.means),
            "color": ORANGE,
            "thickness": 1,
        },
        hovertemplate="income class %{x}: %{y:.2f} on average<extra></extra>",
    )
    figure.update_xaxes(category_axis("income class (0 is the lowest)") | {"nticks": 16})
    figure.update_yaxes(title="records (counts)")
    figure.update_layout(height=380, legend=LEGEND)
    table = pd.DataFrame(
        {
            "cells": bins,
            "true count": example.counts,
            "mean published count": example.means,
            "error": example.errors,
        }
    )
    return Picture(
        title="Mean of counts that are clipped at zero",
        figure=set_margins(figure),
        table=table,
        alt=(
            f"{len(bins)} counts with a standard error of {format_number(example.std)}, clipped at"
            f" zero: their sum is {format_number(example.bias)} counts too large on average."
        ),
        note="Vertical lines: root mean squared error of the published count.",
    )


def centers_example_picture(example: CentersExample) -> Picture:
    """Return a dot plot of the gaps to the lower bound with equal and with tuned centers."""
    names = ["equal centers", "tuned centers"]
    labels = ("querysmasher", "querysmasher (centers=tuned)")
    styles = [mechanism_style(label) for label in labels]
    errors = [example.equal.weighted_rmse, example.tuned.weighted_rmse]
    excess_percent = [100.0 * (error / example.bound - 1.0) for error in errors]
    gap_texts = [percent_rounded_up(percent / 100.0, 2) for percent in excess_percent]
    figure = go.Figure(
        go.Scatter(
            x=excess_percent,
            y=names,
            mode="markers+text",
            text=[
                f"  {error:.4f} counts, {gap} above"
                for error, gap in zip(errors, gap_texts, strict=True)
            ],
            textposition="middle right",
            marker={
                "size": 15,
                "color": [style.color for style in styles],
                "symbol": [style.symbol for style in styles],
                "opacity": 1,
            },
            hovertemplate="%{y}: %{x:.3f}% above the bound<extra></extra>",
            showlegend=False,
        )
    )
    figure.add_vline(x=0.0, line={"color": GREY, "dash": "dash", "width": 3})
    figure.update_xaxes(
        title="RMSE above the lower bound (%)",
        range=[-0.05 * max(excess_percent), 1.8 * max(excess_percent)],
    )
    figure.update_yaxes(category_axis() | {"autorange": "reversed"})
    figure.update_layout(height=220)
    table = pd.DataFrame(
        {
            "plan": [*names, "bound for all mechanisms"],
            "RMSE": [*errors, example.bound],
            "above the bound (%)": [*excess_percent, 0.0],
        }
    )
    return Picture(
        title="Gap to the lower bound",
        figure=set_margins(figure),
        table=table,
        alt=(f"Equal centers are {gap_texts[0]} above the bound, tuned centers {gap_texts[1]}."),
        note=f"Dashed: the lower bound, {example.bound:.4f} counts, computed by {example.how}.",
    )


def centers_picture(example: CentersExample, name: str) -> Picture:
    """Return a bar chart of the tuned center of an attribute, with the equal center as a line."""
    center = example.centers()[name]
    cells = [str(i) for i in range(len(center))]
    figure = go.Figure(
        go.Bar(
            x=cells,
            y=center,
            marker_color=BLUE,
            name="tuned",
            hovertemplate="cell %{x}: %{y:.4f}<extra></extra>",
        )
    )
    figure.add_scatter(
        x=cells,
        y=[1.0 / len(center)] * len(center),
        mode="lines",
        name="equal",
        line={"color": ORANGE, "dash": "dash", "width": 3},
        hovertemplate="equal: %{y:.4f}<extra></extra>",
    )
    figure.update_xaxes(category_axis(axis_labels([f"cell of {name}"])[0]) | {"nticks": 12})
    figure.update_yaxes(title="share of the total")
    figure.update_layout(height=300, legend=LEGEND)
    largest = int(np.argmax(center))
    return Picture(
        title=f"Center of {name}",
        figure=set_margins(figure),
        table=pd.DataFrame({"cell": cells, "tuned": center, "equal": 1.0 / len(center)}),
        alt=(
            f"Tuned shares go from {center.min():.3f} to {center.max():.3f}, the largest at cell"
            f" {largest}; equal ones are {1 / len(center):.3f}."
        ),
        note="Both centers add up to 1, so both split every query without remainder.",
    )
