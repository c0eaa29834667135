"""Base of all figures: the `Picture` type, common charts, and the style of mechanisms.

A mechanism has the same color and marker in all figures.  Elements that differ in color also differ
in another property, such as the marker, for readers who do not see the colors.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import plotly.graph_objects as go

from engine._arrays import Array
from engine._format import cost
from engine.mechanisms import registry, variants
from engine.privacy import Budget

BLUE, ORANGE, GREEN, GREY = "#0072b2", "#e69f00", "#009e73", "#7f7f7f"
PURPLE, SKY, VERMILION = "#cc79a7", "#56b4e9", "#d55e00"
PERCENT = "~%"  # plotly format of percentages without trailing zeros: 0.5%, 1%, 1.5%
TIMES = " × "  # between the attributes in the name of a table
MIN_NAME_CHARS = 8  # below this length, `short_table_names` cuts only names with short attributes
# Names of the columns that contain shares. The table of a picture shows shares as percentages.
SHARE_COLUMNS = (
    "share",
    "gap",
    "over the bound",
    "over the best",
    "worse",
    "better",
    "publishable",
    "doubtful",
    "noise",
    "CV",
    "promised",
    "found",
    "by chance",
    "share above, lowest",
    "share above, estimate",
    "share above, highest",
)
MAX_LABEL_CHARS = 40  # longer axis labels are cut
MAX_LINE_CHARS = 24  # longer axis labels are wrapped


@dataclass(frozen=True, kw_only=True, eq=False)
class Picture:
    """A figure with its title, table, alternative text and note.

    Attributes
    ----------
    title : short title.
    figure : plotly figure, which does not contain the title.
    table : numbers that the figure shows.
    alt : alternative text for screen readers, which states the main result.
    note : explanation of the figure, and of what it does not show; may be empty.
    """

    title: str
    figure: go.Figure
    table: pd.DataFrame
    alt: str
    note: str = ""


def in_pcost(budget: Budget) -> str:
    """Return a budget as text, such as "0.5 pcost"."""
    return f"{cost(budget.pcost)} pcost"


def evenly_spaced(count: int, most: int) -> npt.NDArray[np.int64]:
    """Return at most ``most`` evenly spaced integers from 0 to ``count`` - 1, both included."""
    return (
        np.arange(count)
        if count <= most
        else np.linspace(0, count - 1, most).round().astype(np.int64)
    )


def short_query_text(text: str, name: str) -> str:
    """Return the text of a query without the attribute name and "=" or "in" at its start.

    The name is in the title of the axis.
    """
    return text.removeprefix(name).strip().removeprefix("= ").removeprefix("in ") or text


def axis_labels(texts: Sequence[str], most: int = MAX_LABEL_CHARS) -> list[str]:
    """Return axis labels, escaped for HTML and cut to ``most`` characters.

    No label is cut if two different labels would become equal.  The operators <= and >= of query
    texts become one character.

    >>> axis_labels(["<= 8", "18 <= age < 30", "<=50K"])
    ['≤ 8', '18 ≤ age &lt; 30', '&lt;=50K']
    """
    # A label of the schema, such as "<=50K", has no space after the operator.
    texts = [re.sub("(?<![^ ])<= ", "≤ ", re.sub("(?<![^ ])>= ", "≥ ", text)) for text in texts]
    shortened = [text if len(text) <= most else f"{text[: most - 1]}…" for text in texts]
    return [
        html.escape(text)
        for text in (shortened if len(set(shortened)) == len(set(texts)) else texts)
    ]


def short_table_names(names: Sequence[str], most: int) -> list[str]:
    """Return the names of tables, cut to at most ``most`` characters where this is possible.

    In a name that is too long, "…" replaces the middle of its longest attributes.  The name remains
    uncut if fewer than `MIN_NAME_CHARS` characters would remain of an attribute, and fewer than the
    shortest attribute has.  All names remain uncut if two different names would become equal.

    >>> short_table_names(["place_population × tv_news_days", "age × sex"], 24)
    ['place…ation × tv_ne…days', 'age × sex']
    """
    shortened = [name if len(name) <= most else _short_table_name(name, most) for name in names]
    return shortened if len(set(shortened)) == len(set(names)) else list(names)


def _short_table_name(name: str, most: int) -> str:
    """Return the name of one table, with its longest attributes cut in their middle."""
    attributes = name.split(TIMES)
    chars_left = most - len(TIMES) * (len(attributes) - 1)
    limits = {}
    # The characters are divided equally among the attributes.  The shortest attributes come first,
    # because longer attributes can use the characters that short attributes do not need.
    for number, attribute in enumerate(sorted(attributes, key=len)):
        limits[attribute] = limit = chars_left // (len(attributes) - number)
        chars_left -= min(limit, len(attribute))
    if min(limits.values()) < min(MIN_NAME_CHARS, *map(len, attributes)):
        return name
    return TIMES.join(_without_middle(attribute, limits[attribute]) for attribute in attributes)


def _without_middle(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    end = (most - 1) // 2
    return f"{text[: most - 1 - end]}…{text[-end:]}"


def wrap_label(text: str) -> str:
    """Return an axis label, broken into two lines at a space if it is long, for narrow screens.

    >>> wrap_label("Weighted Fourier Factorizations"), wrap_label("age")
    ('Weighted Fourier<br>Factorizations', 'age')
    """
    spaces = [position for position, char in enumerate(text) if char == " "]
    if len(text) <= MAX_LINE_CHARS or not spaces:
        return text
    middle = min(spaces, key=lambda position: abs(2 * position - len(text)))
    return f"{text[:middle]}<br>{text[middle + 1 :]}"


# Limits for the number of ticks at 1, 2 and 5 times powers of ten; outside, other ticks are chosen.
MIN_LOG_TICKS, MAX_LOG_TICKS = 3, 9


def tick_text(value: float) -> str:
    """Return the text of an axis tick: a decimal number without an exponent.

    >>> tick_text(0.05), tick_text(20.0), tick_text(1e6)
    ('0.05', '20', '1,000,000')
    """
    return f"{value:,.12f}".rstrip("0").rstrip(".")


def log_ticks(low: float, high: float) -> list[float]:
    """Return the ticks of a logarithmic axis from ``low`` to ``high``.

    The ticks are 1, 2 and 5 times the powers of ten.  If there are more than nine such ticks, only
    the powers of ten are returned.  If there are fewer than three, equidistant numbers are returned
    instead, or only ``low`` if both ends are equal.

    >>> log_ticks(0.4, 12.0), log_ticks(1.0, 1e6)
    ([0.5, 1.0, 2.0, 5.0, 10.0], [1.0, 10.0, 100.0, 1000.0, 10000.0, 100000.0, 1000000.0])
    >>> log_ticks(2.1, 4.0), log_ticks(3.0, 3.0)
    ([2.5, 3.0, 3.5, 4.0], [3.0])
    """
    if low == high:
        return [low]
    exponents = range(math.floor(math.log10(low)), math.floor(math.log10(high)) + 1)
    candidates = [float(f"{digit}e{exponent}") for exponent in exponents for digit in (1, 2, 5)]
    ticks = [tick for tick in candidates if low <= tick <= high]
    if len(ticks) < MIN_LOG_TICKS:
        # The step is the largest round number that fits at least three times between the ends.
        power = 10.0 ** math.floor(math.log10(high - low))
        steps = [power * factor for factor in (2.0, 1.0, 0.5, 0.2)]
        step = next(step for step in steps if (high - low) / step >= 3.0)
        # With the tolerance, an end that equals a multiple of the step up to rounding is a tick.
        first = math.ceil(low / step - 1e-9)
        last = math.floor(high / step + 1e-9)
        return [float(f"{step * k:.12g}") for k in range(first, last + 1)]
    if len(ticks) <= MAX_LOG_TICKS:
        return ticks
    powers = [float(f"1e{exponent}") for exponent in exponents]
    return [power for power in powers if low <= power <= high]


def log_axis(low: float, high: float) -> dict[str, Any]:
    """Return the plotly properties of a logarithmic axis with the ticks of `log_ticks`."""
    ticks = log_ticks(low, high)
    texts = [tick_text(tick) for tick in ticks]
    return {"type": "log", "tickvals": ticks, "ticktext": texts, "autotickangles": [0, 90]}


def category_axis(title: str | None = None) -> dict[str, Any]:
    """Return the plotly properties of an axis of labels.

    The labels are horizontal, or vertical if they would overlap. The axis has a title if one is
    given.
    """
    axis: dict[str, Any] = {"type": "category", "automargin": True, "autotickangles": [0, 90]}
    return axis if title is None else axis | {"title": {"text": title}}


def shared_ending(texts: Sequence[str]) -> str:
    """Return the words at the end of the texts that are the same in all texts.

    The first word of a text is never included.  The result is empty for fewer than two texts.

    >>> shared_ending(["1 pcost", "2 pcost"]), shared_ending(["ε 1", "ε 2"]), shared_ending(["ε 1"])
    (' pcost', '', '')
    """
    if len(texts) < 2:
        return ""
    words = [text.split(" ") for text in texts]
    shortest = min(map(len, words))
    count = 0
    while count < shortest - 1 and len({row[-1 - count] for row in words}) == 1:
        count += 1
    return "".join(f" {word}" for word in words[0][len(words[0]) - count :])


def budget_axis(pcosts: Sequence[float], texts: Sequence[str]) -> dict[str, Any]:
    """Return the plotly properties of a logarithmic axis of budgets.

    Words with which all ``texts`` end are moved to the title of the axis.

    Parameters
    ----------
    pcosts : positions of the ticks, in pcost.
    texts : texts of the budgets at these positions.

    >>> budget_axis([1.0, 4.0], ["1 pcost", "4 pcost"])["title"]["text"]
    'budget (pcost)'
    """
    ending = shared_ending(texts)
    words = ending.strip(" ,")
    return {
        "type": "log",
        "tickvals": list(pcosts),
        "ticktext": [text.removesuffix(ending).rstrip(",") for text in texts],
        "title": {"text": f"budget ({words})" if words else "budget"},
        "autotickangles": [0, 90],
    }


# The legend is above the plot, so that it covers no data.  Further lines of the legend extend it
# upwards.
LEGEND = {"orientation": "h", "x": 0.0, "y": 1.02, "yanchor": "bottom", "traceorder": "normal"}
RIBBON_HEIGHT_PX = 20
MIN_PLOT_SHARE = 0.5  # smallest share of the height of a figure that the plot without labels has


def mark_rehearsal(figure: go.Figure) -> None:
    """Draw a ribbon with the word REHEARSAL above the plot, with the legend above the ribbon."""
    # If the figure has panels, the ribbon is above their titles, which are annotations in plotly.
    bottom = 3 if not figure.layout.annotations else 24
    ribbon = {"x0": 0, "x1": 1, "xref": "paper", "yref": "paper", "ysizemode": "pixel"}
    figure.add_shape(
        ribbon
        | {"type": "rect", "yanchor": 1, "y0": bottom, "y1": bottom + RIBBON_HEIGHT_PX}
        | {"fillcolor": ORANGE, "line": {"width": 0}}
    )
    text = {"text": "REHEARSAL", "font": {"size": 12, "color": "#000000"}, "showarrow": False}
    place = {"x": 0.5, "xref": "paper", "y": 1, "yref": "paper", "yanchor": "bottom"}
    figure.add_annotation(text | place | {"yshift": bottom})
    height = float(figure.layout.height or DEFAULT_HEIGHT_PX)
    top = bottom + RIBBON_HEIGHT_PX + 10
    figure.update_layout(legend_y=1.0 + top / (MIN_PLOT_SHARE * height))
    figure.update_layout(margin_t=max(float(figure.layout.margin.t or 0), top))


TOOLBAR_HEIGHT_PX = 40  # space above a heat map for the plotly mode bar
DEFAULT_HEIGHT_PX = 450  # height of a plotly figure whose layout has no height


# The functions of frequently drawn figures pass all properties to the constructor of `go.Figure`,
# because each later update of a figure takes longer than the construction.


# Color scale of heat maps with texts.  Black has a contrast of at least 9:1 on all its colors.
TEXT_SCALE = ((0.0, "#f7f7f7"), (1.0, ORANGE))


# Plotly properties with which axes and color bars show 10,000 instead of 10k.
NUMBERS = {"exponentformat": "none", "separatethousands": True}


def set_margins(figure: go.Figure, top: int = 0) -> go.Figure:
    """Set the margins of a figure and the format of its axis numbers, and return the figure.

    ``top`` is the upper margin in pixels; 0 stands for the default, which is larger for heat maps.
    """
    has_heat_map = any(isinstance(trace, go.Heatmap) for trace in figure.data)
    top = top or (TOOLBAR_HEIGHT_PX if has_heat_map else 30)
    figure.layout.margin = {"l": 10, "r": 10, "t": top, "b": 10}
    figure.layout.xaxis.update(NUMBERS)
    figure.layout.yaxis.update(NUMBERS)
    return figure


def enlarge(picture: Picture, font_px: float, scale: float) -> Picture:
    """Return a picture for projectors, with font size ``font_px`` and ``scale`` times its height."""
    figure = go.Figure(picture.figure)
    height = float(figure.layout.height or DEFAULT_HEIGHT_PX)
    figure.update_layout(font_size=font_px, height=scale * height)
    return replace(picture, figure=figure)


CHAR_WIDTH_PX, LINE_HEIGHT_PX = 6.5, 16.0


def label_places(
    x: Sequence[float], y: Sequence[float], texts: Sequence[str], across: float = math.inf
) -> list[str]:
    """Return positions of the labels of markers, such that labels and markers do not overlap.

    Labels are placed one after the other, each at its first free position.

    Parameters
    ----------
    x, y : positions of the markers in pixels, to the right and up.
    texts : labels, with ``<br>`` between their lines.
    across : width of the plot, in pixels.  Labels do not extend beyond its left and right edges.
        If it is infinite, these edges are not checked.

    Returns
    -------
    One plotly text position per marker, such as "top center"; the empty string for a label without
    a free position.

    >>> label_places([100.0, 104.0, 300.0], [50.0, 52.0, 50.0], ["first", "second", "third"])
    ['bottom center', 'top center', 'top center']
    >>> texts = ["first", "second<br>line", "wide" * 30]
    >>> label_places([100.0, 290.0, 200.0], [50.0, 50.0, 50.0], texts, 300.0)
    ['top center', 'middle left', '']
    """
    radius = LINE_HEIGHT_PX / 2
    marker_boxes = [
        (a - radius, b - radius, a + radius, b + radius) for a, b in zip(x, y, strict=True)
    ]
    label_boxes: list[_Box] = []
    positions = []
    for number, (a, b, text) in enumerate(zip(x, y, texts, strict=True)):
        occupied = marker_boxes[:number] + marker_boxes[number + 1 :] + label_boxes
        free_boxes = {
            position: box
            for position, box in _label_boxes(a, b, text).items()
            if (across == math.inf or 0 <= box[0] < box[2] <= across)
            and not any(_overlap(box, other) for other in occupied)
        }
        position = next(iter(free_boxes), "")
        positions.append(position)
        if position:
            label_boxes.append(free_boxes[position])
    return positions


_Box = tuple[float, float, float, float]  # left, bottom, right, top, in pixels


def _label_boxes(x: float, y: float, text: str) -> dict[str, _Box]:
    """Return plotly text position -> box of a label with this position at the marker (x, y)."""
    lines = text.split("<br>")
    radius = LINE_HEIGHT_PX / 2
    width = CHAR_WIDTH_PX * max(len(html.unescape(line)) for line in lines)
    height = LINE_HEIGHT_PX * len(lines)
    return {
        "top center": (x - width / 2, y + radius, x + width / 2, y + radius + height),
        "bottom center": (x - width / 2, y - radius - height, x + width / 2, y - radius),
        "middle right": (x + radius, y - height / 2, x + radius + width, y + height / 2),
        "middle left": (x - radius - width, y - height / 2, x - radius, y + height / 2),
    }


def _overlap(first: _Box, second: _Box) -> bool:
    """Return whether two boxes overlap; a common edge is no overlap."""
    return (
        first[0] < second[2]
        and second[0] < first[2]
        and first[1] < second[3]
        and second[1] < first[3]
    )


def bars(
    sizes: Sequence[float], labels: Sequence[str], axis: str, hover: str, tickformat: str = ""
) -> go.Figure:
    """Return a figure of horizontal bars, one per label, the first one at the top.

    Parameters
    ----------
    sizes : lengths of the bars.
    axis : title of the axis of lengths.
    hover : plotly hover template of a bar.
    tickformat : plotly format of the numbers at this axis; by default plotly's.
    """
    texts = axis_labels(labels, 2 * MAX_LINE_CHARS)
    bar = {
        "type": "bar",
        "x": list(sizes),
        "y": texts,
        "orientation": "h",
        "marker": {"color": BLUE},
        "hovertemplate": f"{hover}<extra></extra>",
    }
    tick_texts = [wrap_label(text) for text in texts]
    layout = {
        "height": 90 + (22 if tick_texts == texts else 32) * len(texts),
        "bargap": 0.3,
        "yaxis": (
            {"autorange": "reversed", "type": "category", "automargin": True}
            | ({} if tick_texts == texts else {"tickvals": texts, "ticktext": tick_texts})
        ),
        "xaxis": {"title": {"text": axis}} | ({"tickformat": tickformat} if tickformat else {}),
    }
    return set_margins(go.Figure([bar], layout))


MAX_LINE_MARKERS = 60  # lines with at most this number of points also have markers


def line(
    values: Array, labels: Sequence[str], axes: Sequence[str], hover: str, *, connected: bool
) -> go.Figure:
    """Return a figure with one point per label, from left to right.

    Parameters
    ----------
    values : heights of the points, shape (labels,).
    axes : titles of the x and y axes.
    hover : plotly hover template of a point.
    connected : whether a line connects the points.
    """
    texts = axis_labels(labels)
    mode = "markers"
    if connected:
        mode = "lines+markers" if len(texts) <= MAX_LINE_MARKERS else "lines"
    trace = {
        "type": "scatter",
        "x": texts,
        "y": values,
        "mode": mode,
        "marker": {"color": BLUE, "size": 8},
        "line": {"color": BLUE},
        "hovertemplate": f"{hover}<extra></extra>",
    }
    x_title, y_title = axes
    layout = {
        "xaxis": category_axis(axis_labels([x_title])[0]) | {"nticks": 20},
        "yaxis": {"title": {"text": y_title}, "rangemode": "tozero"},
    }
    return set_margins(go.Figure([trace], layout))


def heat_map(
    grid: Any,
    labels: Sequence[Sequence[str]],
    axes: Sequence[str],
    hover: str,
    unit: str,
    **properties: Any,
) -> go.Figure:
    """Return a heat map of a matrix.

    The color scale is Cividis.  If ``properties`` contain ``texttemplate``, the cells contain black
    texts, and the color scale is `TEXT_SCALE`, on which black texts are legible.

    Parameters
    ----------
    grid : values, shape (rows, columns).
    labels : labels of the rows, and labels of the columns.
    axes : titles of the axis of rows and of the axis of columns.
    hover : plotly hover template of a cell.
    unit : title of the color bar.
    properties : further properties of the plotly trace.
    """
    rows, columns = (axis_labels(side) for side in labels)
    heat = {
        "type": "heatmap",
        "z": grid,
        "x": columns,
        "y": rows,
        "colorscale": "Cividis",
        "colorbar": {"title": {"text": unit}, "thickness": 14} | NUMBERS,
        "hoverongaps": False,
        "hovertemplate": f"{hover}<extra></extra>",
    }
    x_title = {"text": axis_labels([axes[1]])[0]}
    y_title = {"text": wrap_label(axis_labels([axes[0]])[0])}
    if "texttemplate" in properties:
        heat |= {"colorscale": TEXT_SCALE, "textfont": {"color": "#000000"}}
    layout = {
        "height": min(620, max(380, 140 + 18 * len(rows))),
        "xaxis": {"title": x_title, "nticks": 10} | category_axis(),
        # With more than `MAX_LABELED_ROWS` rows, the largest height is too small for all labels.
        "yaxis": {
            "title": y_title,
            "nticks": len(rows) if len(rows) <= MAX_LABELED_ROWS else 10,
            "autorange": "reversed",
        }
        | category_axis(),
    }
    return set_margins(go.Figure([heat | properties], layout))


MAX_LABELED_ROWS = 26  # largest number of rows of a heat map of which each has a label
MAX_SIDE = 512  # largest number of rows or columns of a heat map, and of answers in a figure

# The palette of Okabe and Ito without black and yellow, and grey.
COLORS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#7f7f7f")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
PATTERNS = ("", "/", "x", ".", "-", "+")
# Names of plotly markers.  A mechanism has one of `SYMBOLS`.  Variants of the mechanism with other
# options have the same marker with another one of `SYMBOL_ENDINGS`.
SYMBOLS = (
    "circle",
    "square",
    "diamond",
    "triangle-up",
    "cross",
    "x",
    "star",
    "triangle-down",
    "pentagon",
    "triangle-right",
    "triangle-left",
    "hexagram",
    "star-square",
    "star-diamond",
    "star-triangle-up",
    "diamond-wide",
)
SYMBOL_ENDINGS = ("", "-open", "-dot", "-open-dot")


@dataclass(frozen=True, kw_only=True)
class MechanismStyle:
    """Plotly style of one mechanism with its options: color, dash, fill pattern and marker."""

    color: str
    dash: str
    pattern: str
    symbol: str


def mechanism_name(label: str) -> str:
    """Return the name of the mechanism in a label of the form ``name (option=value)``.

    >>> mechanism_name("querysmasher (centers=tuned)")
    'querysmasher'
    """
    return label.split(" (", 1)[0]


def mechanism_style(label: str) -> MechanismStyle:
    """Return the style of a mechanism, given its label in a comparison.

    The color and the shape of the marker depend on the name of the mechanism only.  The options
    change dash and pattern, and whether the marker is filled, open or has a dot.

    >>> mechanism_style("querysmasher").color == mechanism_style("querysmasher (centers=tuned)").color
    True
    >>> mechanism_style("querysmasher").dash == mechanism_style("querysmasher (centers=tuned)").dash
    False
    """
    names = [m.name for m in registry.MECHANISMS]
    name = mechanism_name(label)
    position = names.index(name) if name in names else len(names)
    siblings = [other for other in variants() if mechanism_name(other) == name]
    variant = siblings.index(label) if label in siblings else len(siblings)
    # Mechanisms after the first ``len(COLORS)`` have the color of an earlier mechanism.  They have
    # another dash and pattern, two styles further for each round of colors.
    style_number = position // len(COLORS) * 2 + variant
    return MechanismStyle(
        color=COLORS[position % len(COLORS)],
        dash=DASHES[style_number % len(DASHES)],
        pattern=PATTERNS[style_number % len(PATTERNS)],
        symbol=SYMBOLS[position % len(SYMBOLS)] + SYMBOL_ENDINGS[variant % len(SYMBOL_ENDINGS)],
    )
