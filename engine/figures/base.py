"""Base of all figures: picture, table, alternative text and style.

Charts: one picture with its table and alt text, in one look, and numbers as texts.

How mechanisms look: one colour and one mark each across all pictures, and never colour alone.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import plotly.graph_objects as go

from engine._arrays import Array
from engine._format import cost
from engine.mechanisms import registry as known
from engine.mechanisms import variants
from engine.privacy import Budget

BLUE, ORANGE, GREEN, GREY = "#0072b2", "#e69f00", "#009e73", "#7f7f7f"
PERCENT = "~%"  # tick format with as many decimals as the ticks differ in: 0.5%, 1%, 1.5%
MAX_LABEL, ONE_LINE = 40, 24  # characters of a text on an axis, and of one that stands in one line


@dataclass(frozen=True, kw_only=True, eq=False)
class Picture:
    """A figure and what must go with it.

    Attributes
    ----------
    title : what is shown, in a few words.
    figure : the plotly figure, without a title.
    table : the same numbers.
    alt : the takeaway in one sentence, for those who do not see the figure.
    note : what the picture leaves out or how to read it; may be empty.
    """

    title: str
    figure: go.Figure
    table: pd.DataFrame
    alt: str
    note: str = ""


def in_pcost(budget: Budget) -> str:
    """Words of a budget where nobody asked for others."""
    return f"{cost(budget.pcost)} pcost"


def thinned(count: int, most: int) -> npt.NDArray[np.int64]:
    return np.arange(count) if count <= most else np.linspace(0, count - 1, most).round().astype(np.int64)


def short(text: str, name: str) -> str:
    """Text of a query without the name that the axis says already."""
    return text.removeprefix(name).strip().removeprefix("= ") or text


def fitting(texts: Sequence[str], most: int = MAX_LABEL) -> list[str]:
    """Texts for an axis: cut to what fits while they stay different, and with no markup left in them."""
    cut = [text if len(text) <= most else f"{text[: most - 1]}…" for text in texts]
    return [html.escape(text) for text in (cut if len(set(cut)) == len(set(texts)) else texts)]


def wrapped(text: str) -> str:
    """A text for an axis, in two lines where it is long, so that a narrow screen has room for what stands beside it.

    >>> wrapped("Weighted Fourier Factorizations"), wrapped("age")
    ('Weighted Fourier<br>Factorizations', 'age')
    """
    gaps = [place for place, sign in enumerate(text) if sign == " "]
    if len(text) <= ONE_LINE or not gaps:
        return text
    middle = min(gaps, key=lambda place: abs(2 * place - len(text)))
    return f"{text[:middle]}<br>{text[middle + 1 :]}"


TOOLBAR = 40  # pixels above the cells for the buttons that appear there


# A figure is made in one piece where it is drawn often: plotly takes longer for each later change than for all of it.


def framed(figure: go.Figure, top: int = 0) -> go.Figure:
    """Give a figure its margins; ``top`` are pixels above it where it needs other than the usual ones."""
    cells = any(isinstance(trace, go.Heatmap) for trace in figure.data)
    top = top or (TOOLBAR if cells else 30)
    figure.layout.margin = {"l": 10, "r": 10, "t": top, "b": 10}
    return figure


LETTER, LINE = 6.5, 16.0  # pixels of a text beside a mark


def label_places(x: Sequence[float], y: Sequence[float], texts: Sequence[str], across: float = math.inf) -> list[str]:
    """Where the text of every mark stands so that none covers another text or a mark; empty where it has no room.

    ``x`` and ``y`` are pixels to the right and up, ``across`` those that there are; earlier marks choose first.

    >>> label_places([100.0, 104.0, 300.0], [50.0, 52.0, 50.0], ["first", "second", "third"])
    ['bottom center', 'top center', 'top center']
    >>> label_places([100.0, 290.0, 200.0], [50.0, 50.0, 50.0], ["first", "second<br>line", "wide" * 30], 300.0)
    ['top center', 'middle left', '']
    """
    taken = [(a - LINE / 2, b - LINE / 2, a + LINE / 2, b + LINE / 2) for a, b in zip(x, y, strict=True)]
    marks, found = list(taken), []
    for number, (a, b, text) in enumerate(zip(x, y, texts, strict=True)):
        lines = text.split("<br>")
        wide, tall = LETTER * max(len(html.unescape(line)) for line in lines), LINE * len(lines)
        boxes = {
            "top center": (a - wide / 2, b + LINE / 2, a + wide / 2, b + LINE / 2 + tall),
            "bottom center": (a - wide / 2, b - LINE / 2 - tall, a + wide / 2, b - LINE / 2),
            "middle right": (a + LINE / 2, b - tall / 2, a + LINE / 2 + wide, b + tall / 2),
            "middle left": (a - LINE / 2 - wide, b - tall / 2, a - LINE / 2, b + tall / 2),
        }
        inside = {name: box for name, box in boxes.items() if not across < math.inf or 0 <= box[0] < box[2] <= across}
        others = [box for box in taken if box is not marks[number]]
        free = (name for name, box in inside.items() if not any(_overlap(box, other) for other in others))
        found.append(next(free, ""))
        if found[-1]:
            taken.append(boxes[found[-1]])
    return found


def _overlap(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def bars(sizes: Sequence[float], labels: Sequence[str], axis: str, hover: str, tickformat: str = "") -> go.Figure:
    texts = fitting(labels, 2 * ONE_LINE)
    bar = {
        "type": "bar",
        "x": list(sizes),
        "y": texts,
        "orientation": "h",
        "marker": {"color": BLUE},
        "hovertemplate": f"{hover}<extra></extra>",
    }
    broken = [wrapped(text) for text in texts]
    layout = {
        "height": 90 + (22 if broken == texts else 32) * len(texts),
        "bargap": 0.3,
        "yaxis": {"autorange": "reversed", "type": "category", "automargin": True}
        | ({} if broken == texts else {"tickvals": texts, "ticktext": broken}),
        "xaxis": {"title": {"text": axis}} | ({"tickformat": tickformat} if tickformat else {}),
    }
    return framed(go.Figure([bar], layout))


def line(values: Array, labels: Sequence[str], axes: Sequence[str], hover: str, *, connected: bool) -> go.Figure:
    texts = fitting(labels)
    drawn = {
        "type": "scatter",
        "x": texts,
        "y": values,
        "mode": "lines+markers" if connected and len(texts) <= 60 else "lines" if connected else "markers",
        "marker": {"color": BLUE, "size": 8},
        "line": {"color": BLUE},
        "hovertemplate": f"{hover}<extra></extra>",
    }
    across, up = axes
    layout = {
        "xaxis": {"type": "category", "title": {"text": fitting([across])[0]}, "nticks": 20},
        "yaxis": {"title": {"text": up}, "rangemode": "tozero"},
    }
    return framed(go.Figure([drawn], layout))


def heat_map(
    grid: Any, labels: Sequence[Sequence[str]], axes: Sequence[str], hover: str, unit: str, **looks: Any
) -> go.Figure:
    """Draw a grid with its labels and titles down and across; ``looks`` are properties of the cells in plotly."""
    rows, columns = (fitting(side) for side in labels)
    heat = {
        "type": "heatmap",
        "z": grid,
        "x": columns,
        "y": rows,
        "colorscale": "Cividis",
        "colorbar": {"title": {"text": unit}, "thickness": 14},
        "hoverongaps": False,
        "hovertemplate": f"{hover}<extra></extra>",
    }
    across, down = {"text": fitting([axes[1]])[0]}, {"text": wrapped(fitting([axes[0]])[0])}
    both = {"type": "category", "automargin": True}
    layout = {
        "height": min(620, max(380, 140 + 18 * len(rows))),
        "xaxis": {"title": across, "nticks": 10} | both,
        "yaxis": {"title": down, "nticks": 10, "autorange": "reversed"} | both,
    }
    return framed(go.Figure([heat | looks], layout))


MAX_SIDE = 512


COLORS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#7f7f7f")  # Okabe-Ito without yellow
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
PATTERNS = ("", "/", "x", ".", "-", "+")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star")


@dataclass(frozen=True, kw_only=True)
class Look:
    """Colour and marks of one mechanism with its options, in plotly's words."""

    color: str
    dash: str
    pattern: str
    symbol: str


def mechanism_name(label: str) -> str:
    """Return the name of the mechanism in a label such as ``name (option=value)``.

    >>> mechanism_name("querysmasher (centers=tuned)")
    'querysmasher'
    """
    return label.split(" (", 1)[0]


def mechanism_look(label: str) -> Look:
    """Return the look of a label of a comparison; a mechanism has the same colour whatever its options.

    >>> mechanism_look("querysmasher").color == mechanism_look("querysmasher (centers=tuned)").color
    True
    >>> mechanism_look("querysmasher").dash == mechanism_look("querysmasher (centers=tuned)").dash
    False
    """
    names = [m.name for m in known.MECHANISMS]
    name = mechanism_name(label)
    place = names.index(name) if name in names else len(names)
    siblings = [other for other in variants() if mechanism_name(other) == name]
    within = siblings.index(label) if label in siblings else len(siblings)
    turn = place // len(COLORS) * 2 + within
    return Look(
        color=COLORS[place % len(COLORS)],
        dash=DASHES[turn % len(DASHES)],
        pattern=PATTERNS[turn % len(PATTERNS)],
        symbol=SYMBOLS[(place + within) % len(SYMBOLS)],
    )
