"""Pictures of the cells themselves: a run of cells chosen on the domain, and one query on the plane of two attributes.

The axes count cells, so that the corners of a box drawn on a picture tell which cells lie in it.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from engine.charts import BLUE, GREY, Picture, fitting, framed, heat_map, number, thinned
from engine.conditions import box_workload
from engine.error_grid import MAX_SIDE
from engine.family import Array
from engine.schema import Schema
from engine.workload import Group, Workload

TICKS = 14
Run = tuple[int, int]


def range_picture(schema: Schema, chosen: Mapping[str, Run]) -> Picture:
    """Return the cells of one or two attributes, those of the chosen runs marked; a box can be drawn on it.

    Parameters
    ----------
    chosen : attribute -> first and last cell, both included.
    """
    names = list(chosen)
    cells = [thinned(schema[name].size, MAX_SIDE) for name in names]
    inside = [(first <= c) & (c <= last) for c, (first, last) in zip(cells, chosen.values(), strict=True)]
    labels = [[schema[name].label(int(i)) for i in c] for name, c in zip(names, cells, strict=True)]
    figure = _bars(names[0], cells[0], inside[0], labels[0]) if len(names) == 1 else _plane(cells, inside, labels)
    for axis, name, c in zip("x" if len(names) == 1 else "yx", names, cells, strict=True):
        ticks = thinned(len(c), TICKS)
        side: dict[str, Any] = {
            "title": fitting([name])[0],
            "tickvals": [int(c[i]) for i in ticks],
            "ticktext": fitting([schema[name].label(int(c[i])) for i in ticks]),
            "range": [-0.5, schema[name].size - 0.5] if axis == "x" else [schema[name].size - 0.5, -0.5],
            "automargin": True,
            "ticklabeloverflow": "allow",
        }
        figure.update_layout({f"{axis}axis": side})
    figure.update_layout(dragmode="select", selectdirection="any" if len(names) == 2 else "h", showlegend=False)
    text = box_workload(schema, chosen).describe(0)
    inner = math.prod(last - first + 1 for first, last in chosen.values())
    complete = all(len(c) == schema[name].size for name, c in zip(names, cells, strict=True))
    ends = {name: [schema[name].label(i) for i in run] for name, run in chosen.items()}
    return Picture(
        title=f"Cells of {' and '.join(names)}",
        figure=framed(figure).update_layout(margin_t=40),  # room for the buttons above the cells
        table=pd.DataFrame({"end of the range": ["first cell", "last cell"]} | ends),
        alt=f"{number(inner)} of {number(schema.cells(names))} cells are chosen: {text}.",
        note="" if complete else f"At most {MAX_SIDE} evenly spaced cells a side are drawn.",
    )


def cells_in_box(schema: Schema, names: Sequence[str], box: Mapping[str, Sequence[float]]) -> dict[str, Run]:
    """Return the runs of cells whose middle lies in a box drawn on `range_picture`, at least the nearest cell.

    >>> from engine.schema import Attribute
    >>> schema = Schema([Attribute.of_size("age", 9), Attribute.of_size("code", 4)])
    >>> cells_in_box(schema, ["age"], {"x": [2.4, 5.1], "y": [0, 1]})
    {'age': (3, 5)}
    >>> cells_in_box(schema, ["age", "code"], {"x": [-9, 0.2], "y": [7.6, 7.8]})
    {'age': (8, 8), 'code': (0, 0)}
    """
    axes = ["x"] if len(names) == 1 else ["y", "x"]
    return {name: _run(box.get(axis, ()), schema[name].size) for name, axis in zip(names, axes, strict=True)}


def plane_picture(schema: Schema, group: Group, query: int) -> Picture:
    """Return one query of a group on two attributes as a heat map of its coefficients, shape (n_1, n_2)."""
    if len(group.attributes) != 2:
        raise ValueError("a plane needs a group on two attributes")
    columns = [schema[name] for name in group.attributes]
    cells = [thinned(c.size, MAX_SIDE) for c in columns]
    grid = _coefficients(group, query)[np.ix_(*cells)]
    labels = [[c.label(int(i)) for i in chosen] for c, chosen in zip(columns, cells, strict=True)]
    text = Workload(schema, (group,)).describe(query)
    hover = "%{y}<br>%{x}<br>counted %{z:g} times"
    figure = heat_map(grid, labels, group.attributes, hover, "times<br>counted")
    figure.update_traces(zmin=min(0.0, float(grid.min())), zmax=max(1.0, float(grid.max())))
    table = pd.DataFrame(grid, index=pd.Index(labels[0], name=group.attributes[0]), columns=labels[1]).reset_index()
    drawn = "" if grid.size == schema.cells(group.attributes) else f" At most {MAX_SIDE} cells a side are drawn."
    return Picture(
        title=f"Query {query:,} of {group.count:,}: {text}",
        figure=figure,
        table=table,
        alt=f"{int(np.count_nonzero(grid)):,} of {grid.size:,} cells drawn are counted by the query {text}.",
        note=f"Bright cells are counted.{drawn}",
    )


def _coefficients(group: Group, query: int) -> Array:
    rows = []
    for part in reversed(group.parts):
        query, row = divmod(query, part.count)
        rows.append(part.family.rows(part.sizes, row, row + 1).reshape(part.sizes))
    return rows[0] if len(rows) == 1 else np.multiply.outer(rows[1], rows[0])


def _run(corners: Sequence[float], size: int) -> Run:
    found = [float(c) for c in corners if isinstance(c, (int, float)) and math.isfinite(c)]
    low, high = (min(found), max(found)) if found else (0.0, size - 1.0)
    first, last = math.ceil(low), math.floor(high)
    if first > last:
        first = last = round((low + high) / 2)
    return min(max(first, 0), size - 1), min(max(last, 0), size - 1)


def _bars(name: str, cells: Any, inside: Any, labels: Sequence[str]) -> go.Figure:
    texts = [html.escape(label) for label in labels]
    bar = go.Bar(
        x=cells,
        y=np.where(inside, 1.0, 0.6),  # the height tells it to those who do not see the colour
        width=max(1.0, float(cells[-1] + 1) / len(cells)) * 0.9,
        marker={"color": [BLUE if one else GREY for one in inside]},
        customdata=[[text, "chosen" if one else "not chosen"] for text, one in zip(texts, inside, strict=True)],
        hovertemplate=f"{html.escape(name)} %{{customdata[0]}}<br>%{{customdata[1]}}<extra></extra>",
    )
    figure = go.Figure(bar)
    figure.update_layout(height=230)
    return figure.update_yaxes(range=[0, 1.1], showticklabels=False, showgrid=False, title="")


def _plane(cells: Sequence[Any], inside: Sequence[Any], labels: Sequence[Sequence[str]]) -> go.Figure:
    rows, columns = (fitting(side) for side in labels)
    heat = go.Heatmap(
        z=np.multiply.outer(inside[0], inside[1]).astype(int),
        x=cells[1],
        y=cells[0],
        zmin=0,
        zmax=1,
        colorscale="Cividis",
        showscale=False,
        text=[[f"{row}<br>{column}" for column in columns] for row in rows],
        hovertemplate="%{text}<extra></extra>",
    )
    if max(len(rows), len(columns)) <= 60:
        heat.update(xgap=1, ygap=1)
    figure = go.Figure(heat)
    return figure.update_layout(height=min(620, max(300, 140 + 14 * len(rows))))
