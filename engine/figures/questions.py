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

from engine.arrays import Array
from engine.figures.charts import (
    BLUE,
    GREY,
    MAX_SIDE,
    TOOLBAR,
    Picture,
    bars,
    fitting,
    framed,
    heat_map,
    short,
    thinned,
)
from engine.figures.plans import MAX_BARS
from engine.texts import how_many, number, set_name
from engine.workload import Group, Schema, Workload, box_workload

MAX_ROWS = 128  # rows of a family picture


def domain_picture(schema: Schema) -> Picture:
    """Number of cells of every attribute."""
    table = pd.DataFrame(
        {"attribute": list(schema.names), "kind": [a.kind for a in schema.attributes], "cells": schema.sizes(schema)}
    )
    shown = table.head(MAX_BARS)
    figure = bars(shown["cells"].tolist(), shown["attribute"].tolist(), "cells", "%{y}: %{x:,} cells")
    if max(shown["cells"]) > 50 * min(shown["cells"]):
        figure.update_xaxes(type="log", dtick=1)
    largest = max(schema.attributes, key=lambda a: a.size)
    return Picture(
        title="Cells of every attribute",
        figure=figure,
        table=table,
        alt=f"Bars of the cells of {how_many(len(schema), 'attribute')}; the largest, {largest.name}, has "
        f"{largest.size:,}.",
        note=f"The first {MAX_BARS} attributes are drawn; the table has all." if len(schema) > MAX_BARS else "",
    )


def family_picture(schema: Schema, group: Group, part: int = 0, query: int = 0) -> Picture:
    """What one part of a group asks: its query rows as a heat map, or one query on the plane of two attributes."""
    asked = group.parts[part]
    columns = [schema[group.attributes[a]] for a in asked.axes]
    if len(columns) == 2:
        grid = asked.family.rows(asked.sizes, query, query + 1).reshape(asked.sizes)[:MAX_SIDE, :MAX_SIDE]
        labels = [[c.label(i) for i in range(n)] for c, n in zip(columns, grid.shape, strict=True)]
        text = asked.family.text(columns, query)
        title, axes = f"Query {query:,} of {asked.count:,}: {text}", [c.name for c in columns]
        alt = f"{int(np.count_nonzero(grid)):,} of {grid.size:,} cells drawn are counted by the query {text}."
        complete = grid.size == math.prod(asked.sizes)
    else:
        chosen = thinned(asked.count, MAX_ROWS)
        grid = np.concatenate([asked.family.rows(asked.sizes, int(i), int(i) + 1)[:, :MAX_SIDE] for i in chosen])
        cells = [columns[0].label(i) if len(columns) == 1 else str(i) for i in range(grid.shape[1])]
        name = set_name(c.name for c in columns)
        labels = [[short(asked.family.text(columns, int(i)) or "all records", name) for i in chosen], cells]
        queries, axes = how_many(asked.count, "query", "queries"), ["query", f"cell of {name}"]
        title = f"{asked.family.name} on {name}: {queries}"
        alt = f"{len(chosen):,} of {queries} as rows; coloured cells of {name} are counted."
        complete = len(chosen) == asked.count and grid.shape[1] == math.prod(asked.sizes)
    looks: dict[str, Any] = {"xgap": 1, "ygap": 1} if max(grid.shape) <= 40 else {}
    note = "Bright cells are counted." if set(np.unique(grid)) <= {0.0, 1.0} else ""
    if note:
        looks["showscale"] = False
    figure = _counted(grid, labels, axes, **looks)
    table = pd.DataFrame(grid, index=pd.Index(labels[0], name=axes[0]), columns=labels[1]).reset_index()
    if not complete:
        note += f" At most {MAX_ROWS} evenly spaced queries and {MAX_SIDE} cells a side are drawn."
    return Picture(title=title, figure=figure, table=table, alt=alt, note=note.strip())


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
    one = len(names) == 1
    drawn, layout = _bars(names[0], cells[0], inside[0], labels[0]) if one else _plane(cells, inside, labels)
    for axis, name, c in zip("x" if one else "yx", names, cells, strict=True):
        ticks = thinned(len(c), TICKS)
        layout[f"{axis}axis"] = {
            "title": {"text": fitting([name])[0]},
            "tickvals": [int(c[i]) for i in ticks],
            "ticktext": fitting([schema[name].label(int(c[i])) for i in ticks]),
            "range": [-0.5, schema[name].size - 0.5] if axis == "x" else [schema[name].size - 0.5, -0.5],
            "automargin": True,
            "ticklabeloverflow": "allow",
        }
    layout |= {"dragmode": "select", "selectdirection": "h" if one else "any", "showlegend": False}
    text = box_workload(schema, chosen).describe(0)
    inner = math.prod(last - first + 1 for first, last in chosen.values())
    complete = all(len(c) == schema[name].size for name, c in zip(names, cells, strict=True))
    ends = {name: [schema[name].label(i) for i in run] for name, run in chosen.items()}
    return Picture(
        title=f"Cells of {' and '.join(names)}",
        figure=framed(go.Figure([drawn], layout), top=TOOLBAR),
        table=pd.DataFrame({"end of the range": ["first cell", "last cell"]} | ends),
        alt=f"{number(inner)} of {how_many(schema.cells(names), 'cell')} chosen: {text}.",
        note="" if complete else f"At most {MAX_SIDE} evenly spaced cells a side are drawn.",
    )


def cells_in_box(schema: Schema, names: Sequence[str], box: Mapping[str, Sequence[float]]) -> dict[str, Run]:
    """Return the runs of cells whose middle lies in a box drawn on `range_picture`, at least the nearest cell.

    >>> from engine import Attribute
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
    figure = _counted(grid, labels, group.attributes)
    table = pd.DataFrame(grid, index=pd.Index(labels[0], name=group.attributes[0]), columns=labels[1]).reset_index()
    drawn = "" if grid.size == schema.cells(group.attributes) else f" At most {MAX_SIDE} cells a side are drawn."
    return Picture(
        title=f"Query {query:,} of {group.count:,}: {text}",
        figure=figure,
        table=table,
        alt=f"{int(np.count_nonzero(grid)):,} of {grid.size:,} cells drawn are counted by the query {text}.",
        note=f"Bright cells are counted.{drawn}",
    )


def _counted(grid: Array, labels: Sequence[Sequence[str]], axes: Sequence[str], **looks: Any) -> go.Figure:
    ends = {"zmin": min(0.0, float(grid.min())), "zmax": max(1.0, float(grid.max()))}
    return heat_map(grid, labels, axes, "%{y}<br>%{x}<br>counted %{z:g} times", "times<br>counted", **ends, **looks)


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


_Drawn = tuple[dict[str, Any], dict[str, Any]]  # a trace and the layout around it


def _bars(name: str, cells: Any, inside: Any, labels: Sequence[str]) -> _Drawn:
    texts = [html.escape(label) for label in labels]
    told = [[text, "chosen" if one else "not chosen"] for text, one in zip(texts, inside, strict=True)]
    bar = {
        "type": "bar",
        "x": cells,
        "y": np.where(inside, 1.0, 0.6),  # the height tells it to those who do not see the colour
        "width": max(1.0, float(cells[-1] + 1) / len(cells)) * 0.9,
        "marker": {"color": [BLUE if one else GREY for one in inside]},
        "customdata": told,
        "hovertemplate": f"{html.escape(name)} %{{customdata[0]}}<br>%{{customdata[1]}}<extra></extra>",
    }
    up = {"range": [0, 1.1], "showticklabels": False, "showgrid": False, "title": {"text": ""}}
    return bar, {"height": 230, "yaxis": up}


def _plane(cells: Sequence[Any], inside: Sequence[Any], labels: Sequence[Sequence[str]]) -> _Drawn:
    rows, columns = (fitting(side) for side in labels)
    heat = {
        "type": "heatmap",
        "z": np.multiply.outer(inside[0], inside[1]).astype(int),
        "x": cells[1],
        "y": cells[0],
        "zmin": 0,
        "zmax": 1,
        "colorscale": "Cividis",
        "showscale": False,
        # as an array, or plotly would look into every text of a list to find its kind
        "text": np.array([[f"{row}<br>{column}" for column in columns] for row in rows], dtype=object),
        "hovertemplate": "%{text}<extra></extra>",
    }
    gaps = {"xgap": 1, "ygap": 1} if max(len(rows), len(columns)) <= 60 else {}
    return heat | gaps, {"height": min(620, max(300, 140 + 14 * len(rows)))}
