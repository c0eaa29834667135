"""Charts: one picture with its table and alt text, in one look, and numbers as texts."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import plotly.graph_objects as go

from engine.arrays import Array

BLUE, ORANGE, GREEN, GREY = "#0072b2", "#e69f00", "#009e73", "#7f7f7f"
MAX_LABEL = 40  # characters of a text on an axis


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


def thinned(count: int, most: int) -> npt.NDArray[np.int64]:
    return np.arange(count) if count <= most else np.linspace(0, count - 1, most).round().astype(np.int64)


def short(text: str, name: str) -> str:
    """Text of a query without the name that the axis says already."""
    return text.removeprefix(name).strip().removeprefix("= ") or text


def fitting(texts: Sequence[str]) -> list[str]:
    """Texts for an axis: cut to what fits while they stay different, and with no markup left in them."""
    cut = [text if len(text) <= MAX_LABEL else f"{text[: MAX_LABEL - 1]}…" for text in texts]
    return [html.escape(text) for text in (cut if len(set(cut)) == len(set(texts)) else texts)]


TOOLBAR = 40  # pixels above the cells for the buttons that appear there


# A figure is made in one piece where it is drawn often: plotly takes longer for each later change than for all of it.


def framed(figure: go.Figure) -> go.Figure:
    cells = any(isinstance(trace, go.Heatmap) for trace in figure.data)
    top = TOOLBAR if cells else 30 if figure.layout.annotations else 10
    figure.layout.margin = {"l": 10, "r": 10, "t": top, "b": 10}
    return figure


def bars(sizes: Sequence[float], labels: Sequence[str], axis: str, hover: str, tickformat: str = "") -> go.Figure:
    texts = fitting(labels)
    bar = {
        "type": "bar",
        "x": list(sizes),
        "y": texts,
        "orientation": "h",
        "marker": {"color": BLUE},
        "hovertemplate": f"{hover}<extra></extra>",
    }
    layout = {
        "height": 90 + 22 * len(texts),
        "bargap": 0.3,
        "yaxis": {"autorange": "reversed", "type": "category", "automargin": True},
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


def heat_map(grid: Any, labels: Sequence[Sequence[str]], axes: Sequence[str], hover: str, unit: str) -> go.Figure:
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
    across, down = ({"text": fitting([name])[0]} for name in (axes[1], axes[0]))
    both = {"type": "category", "automargin": True}
    layout = {
        "height": min(620, max(380, 140 + 18 * len(rows))),
        "xaxis": {"title": across, "nticks": 16} | both,
        "yaxis": {"title": down, "nticks": 20, "autorange": "reversed"} | both,
    }
    return framed(go.Figure([heat], layout))


MAX_SIDE = 512
