"""Figures of cells, queries and strategy rows on the domain.

Pictures of the cells themselves: a run of cells chosen on the domain, and one query on the plane of two attributes.

The axes count cells, so that the corners of a box drawn on a picture tell which cells lie in it.

Pictures of one piece of a plan: the strategy rows on the cells, and their Gram matrix.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from engine._arrays import Array
from engine._format import how_many, number, set_name
from engine.figures.base import BLUE, GREY, MAX_SIDE, TOOLBAR, Picture, bars, fitting, framed, heat_map, short, thinned
from engine.figures.plans import MAX_BARS
from engine.plans import Plan
from engine.residuals import Space
from engine.workload import Group, Schema, Workload
from engine.workload.conditions import box_workload

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


DOMAIN_TICKS = 14
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
        ticks = thinned(len(c), DOMAIN_TICKS)
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

    >>> from engine.workload import Attribute
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


SIDE = 80  # of a heat map; four of them stand on a page, and each takes 35 kB
SQUARE = 520  # pixels, height of a picture whose cells should be seen
HEATMAP_TICKS = 6  # texts on the axis of a picture that is half as wide as the page


def block_names(plan: Plan) -> dict[Space, str]:
    """Return the pieces that a plan measures, the most expensive first, each with its words.

    >>> from engine.workload import Attribute, Schema, Workload
    >>> from engine.privacy.budget import Budget
    >>> from engine.mechanisms import plan
    >>> made = plan(Workload.all_ways(Schema([Attribute.of_size("a", 4)]), (1,), "marginal"), Budget(pcost=1.0))
    >>> list(block_names(made).values())
    ['a: 3 numbers', '(total): 1 number']
    """
    found = sorted(plan.blocks.items(), key=lambda item: -item[1].pcost(plan.max_records))
    out, parts = {}, len({block.attributes for _, block in found}) < len(found)
    for place, (key, block) in enumerate(found, 1):
        names = set_name(block.attributes)
        many = f"{block.measurements:,} number{'' if block.measurements == 1 else 's'}"
        out[key] = f"{f'part {place}, ' if parts else ''}{names}: {many}"
    return out


def factor_names(plan: Plan, key: Space) -> list[str]:
    """Return the Kronecker factors of one piece: their attributes and shape."""
    block = plan.blocks[key]
    return [
        f"{set_name(block.attributes[a] for a in axes)}: {how_many(len(s.rows), 'row')} on {how_many(s.cells, 'cell')}"
        for axes, s in block.factors
    ]


def rows_picture(plan: Plan, key: Space, factor: int = 0) -> Picture:
    """Rows of one factor of a strategy on its cells, at most 80 x 80."""
    rows, labels, name = _factor(plan, key, factor)
    m, n = rows.shape
    down, across = thinned(m, SIDE), thinned(n, SIDE)
    shown = rows[np.ix_(down, across)]
    numbers = [f"row {int(i) + 1}" for i in down]
    cells = [labels[int(i)] for i in across]
    figure = heat_map(
        shown.astype(np.float32),
        [numbers, cells],
        ["what is measured", f"cell of {name}"],
        "%{y}, %{x}<br>weight %{z:.4f}",
        "weight",
    )
    _signed(figure, shown)
    used = int(np.max(np.count_nonzero(np.abs(rows) > 1e-9, axis=0)))
    table = pd.DataFrame(shown, columns=_different(cells))
    table.insert(0, "row", numbers, allow_duplicates=True)
    return Picture(
        title=f"What is measured on {name}",
        figure=figure,
        table=table,
        alt=f"{how_many(m, 'row')} on {how_many(n, 'cell')} of {name}; a record moves up to {used:,} of the {m:,} "
        "numbers.",
        note=f"One row is one noisy number. {_left_out(m, n)}".strip(),
    )


def gram_picture(plan: Plan, key: Space, factor: int = 0) -> Picture:
    """Gram matrix, rows^T rows, of one factor of a strategy: how alike two cells are to the noise."""
    rows, labels, name = _factor(plan, key, factor)
    n = rows.shape[1]
    across = thinned(n, SIDE)
    shown = rows[:, across].T @ rows[:, across]
    cells = [labels[int(i)] for i in across]
    axes = [f"cell of {name}", f"cell of {name}"]
    figure = heat_map(shown.astype(np.float32), [cells, cells], axes, "%{y}<br>%{x}<br>%{z:.4f}", "inner<br>product")
    _signed(figure, shown)
    diagonal = np.einsum("rc,rc->c", rows, rows)
    table = pd.DataFrame(shown, columns=_different(cells))
    table.insert(0, "cell", cells, allow_duplicates=True)
    return Picture(
        title=f"Gram matrix of the strategy on {name}",
        figure=figure,
        table=table,
        alt=f"{how_many(n, 'cell')}; the diagonal goes from {diagonal.min():.3f} to {diagonal.max():.3f}. A cell's "
        "entry on it is what one of its records costs, and the largest one sets the price.",
        note=f"Entry (c, d) is the inner product of what a record in c and one in d move. {_left_out(1, n)}".strip(),
    )


def on_one_scale(*pictures: Picture) -> None:
    """Give heat maps that stand beside each other the same colours for the same numbers.

    0 stays in the middle of the colours where it is there in one of them.
    """
    ends = [(trace.zmin, trace.zmax) for picture in pictures for trace in picture.figure.data]
    high, low = max(top for _, top in ends), min(bottom for bottom, _ in ends)
    if any(bottom == -top for bottom, top in ends):
        high = max(high, -low)
        low = -high
    for picture in pictures:
        picture.figure.update_traces(zmin=low, zmax=high)


def _factor(plan: Plan, key: Space, factor: int) -> tuple[Array, list[str], str]:
    """Return the rows of a factor, the texts of its cells and its name; a piece without factors is the total."""
    block = plan.blocks[key]
    if not block.factors:
        return np.ones((1, 1)), ["all records"], "all records"
    axes, strategy = block.factors[factor]
    columns = [plan.schema[block.attributes[a]] for a in axes]
    places = np.unravel_index(np.arange(strategy.cells), strategy.sizes)
    texts = [
        ", ".join(column.label(int(position[i])) for column, position in zip(columns, places, strict=True))
        for i in range(strategy.cells)
    ]
    return strategy.rows, texts, set_name(c.name for c in columns)


def _signed(figure: go.Figure, shown: Array) -> None:
    """Put 0 into the middle of the colours when negative numbers matter, near their end otherwise."""
    most = float(np.abs(shown).max()) or 1.0
    lowest = float(shown.min())
    figure.update_traces(zmin=-most if lowest < -most / 4 else min(lowest, 0.0), zmax=most)
    figure.update_xaxes(nticks=HEATMAP_TICKS)
    figure.update_yaxes(nticks=2 * HEATMAP_TICKS)
    figure.update_layout(height=SQUARE)


def _different(texts: list[str]) -> list[str]:
    return texts if len(set(texts)) == len(texts) else [f"{i}: {text}" for i, text in enumerate(texts)]


def _left_out(m: int, n: int) -> str:
    if max(m, n) <= SIDE:
        return ""
    return (
        f"At most {SIDE} evenly spaced rows and cells are drawn of {m:,} and {n:,}."
        if m > 1
        else (f"{SIDE} evenly spaced cells of {n:,} are drawn.")
    )
