"""Figures of standard errors."""

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
from engine._format import amount, how_many, set_name
from engine.analysis import group_table
from engine.analysis.error_distribution import spread
from engine.figures.base import BLUE, MAX_SIDE, ORANGE, Picture, bars, framed, heat_map, line, short, thinned
from engine.plans import Plan
from engine.workload import Circular, Group, Range, Workload

MAP_SIDE = 60  # attributes of a map of pairs
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)


def has_map(workload: Workload) -> bool:
    """Return whether `pairs_picture` has something to show: several pairs of attributes, and not too many."""
    names = {name for group in workload.groups if len(group.attributes) == 2 for name in group.attributes}
    return 3 <= len(names) <= MAP_SIDE


def pairs_picture(plan: Plan) -> Picture:
    """Largest standard error, in counts, on pairs of attributes, and on the diagonal on each alone; worst first.

    Every cell with a group has its number as the data of a dot that is not seen: cells of heat maps can't be chosen.
    """
    told = group_table(plan)["largest standard error"].to_numpy()
    worst: dict[frozenset[str], tuple[float, int]] = {}
    for number, (group, error) in enumerate(zip(plan.workload.groups, told.tolist(), strict=True)):
        if 1 <= len(group.attributes) <= 2:
            key = frozenset(group.attributes)
            worst[key] = max(worst.get(key, (-1.0, 0)), (error, number))
    held = dict.fromkeys(name for key in worst if len(key) == 2 for name in plan.schema.names if name in key)
    names = sorted(held, key=lambda name: -max(error for key, (error, _) in worst.items() if name in key))
    found = [[worst.get(frozenset((one, other)), (math.nan, None)) for other in names] for one in names]
    grid = np.array([[error for error, _ in row] for row in found])
    figure = heat_map(grid, (names, names), ("", ""), "%{y} × %{x}<br>up to %{z:.4g} counts", "counts")
    (across, down), cells = (figure.data[0].x, figure.data[0].y), [(i, j) for i, j in np.argwhere(~np.isnan(grid))]
    figure.add_scatter(
        x=[across[j] for _, j in cells],
        y=[down[i] for i, _ in cells],
        mode="markers",
        marker={"size": 14, "symbol": "square", "opacity": 0.0},
        selected={"marker": {"opacity": 0.0}},
        unselected={"marker": {"opacity": 0.0}},
        customdata=[(found[i][j][1], float(grid[i, j])) for i, j in cells],
        hovertemplate="%{y} × %{x}<br>up to %{customdata[1]:.4g} counts<extra></extra>",
        showlegend=False,
    )
    pair = max((key for key in worst if len(key) == 2), key=worst.__getitem__)
    return Picture(
        title="Largest standard error, pair by pair",
        figure=figure,
        table=pd.DataFrame(grid, columns=names).assign(attribute=names).set_index("attribute").reset_index(),
        alt=f"{set_name([n for n in names if n in pair])} is the least exact pair, "
        f"with {amount(worst[pair][0])} counts.",
        note="On the diagonal stand attributes alone; what is not asked is empty. Choose a cell to look at its group.",
    )


def error_picture(
    plan: Plan, group: int, across: Sequence[int] | None = None, fixed: Sequence[int] | None = None
) -> Picture:
    """Standard errors of a group's queries, in counts; ``across`` and ``fixed`` as in `engine.figures.errors`."""
    grid = error_grid(plan.workload, group, across, fixed)
    errors = grid.standard_errors(plan)
    shown = errors[grid.kept]
    extent = f"standard errors from {amount(float(shown.min()))} to {amount(float(shown.max()))} counts."
    return Picture(
        title=f"Standard error of {f'all {grid.what}' if grid.axes else grid.what}",
        figure=grid_figure(grid, errors, "standard error", "counts"),
        table=pd.DataFrame(grid.columns() | {"standard error": shown}),
        alt=f"{shown.size:,} {grid.what}: {extent}" if grid.axes else f"It is {amount(float(shown[0]))} counts.",
        note=grid.note,
    )


def grid_figure(grid: Grid, values: Array, quantity: str, unit: str) -> go.Figure:
    """Draw one number for every query of a grid: a bar, a line or a heat map; the unit may be empty.

    ``values`` has the grid's shape.
    """
    what = f"{quantity} ({unit})" if unit else quantity
    if not grid.axes:
        return bars([float(values)], ["all records"], what, f"%{{y}}: %{{x:.4g}} {unit}")
    words = f"{quantity} %{{z:.4g}} {unit}".strip()
    if len(grid.axes) == 1:
        hover = f"{grid.hover}<br>{words.replace('%{z', '%{y')}"
        connected = len(values) > 1 and grid.ordered
        return line(values, grid.labels[0], (grid.axes[0], what), hover, connected=connected)
    return heat_map(values, grid.labels, grid.axes, f"{grid.hover}<br>{words}", quantity.replace(" ", "<br>"))


def spread_picture(plan: Plan, tolerance: float) -> Picture:
    """Share of all queries with a standard error at or below each size, and a line at a tolerance (counts)."""
    found = spread(plan)
    finite = found.errors[np.isfinite(found.errors)]
    drawn = thinned(len(finite), MAX_POINTS // 10)
    shares = {
        "type": "scatter",
        "x": finite[drawn],
        "y": found.shares[drawn],
        "mode": "lines",
        "line": {"shape": "hv", "color": BLUE, "width": 2.5},
        "hovertemplate": "%{y:.1%} of the queries have a standard error<br>of %{x:.4g} counts or less<extra></extra>",
        "showlegend": False,
    }
    wide = len(finite) > 0 and finite[-1] > 20 * finite[0] > 0
    place = math.log10(tolerance) if wide else tolerance  # annotations on a logarithmic axis take the exponent
    limit = {"type": "line", "x0": tolerance, "x1": tolerance, "y0": 0, "y1": 1, "yref": "paper"}
    name = {"x": place, "y": 1.02, "yref": "paper", "yanchor": "bottom", "showarrow": False}
    layout = {
        "shapes": [limit | {"line": {"color": ORANGE, "dash": "dash"}}],
        "annotations": [name | {"text": f"tolerance {amount(tolerance)}"}],
    }
    rows = [(f"{q:.0%}", found.quantile(q)) for q in QUANTILES]
    return Picture(
        title="How many queries are good enough",
        figure=framed(go.Figure([shares], layout | spread_axes(wide=wide))),
        table=pd.DataFrame(rows, columns=["share of queries", "standard error at most"]),
        alt=f"{found.within(tolerance):.1%} of {how_many(plan.workload.queries, 'query', 'queries')} "
        f"{'has' if plan.workload.queries == 1 else 'have'} a standard error of {amount(tolerance)} counts or less.",
        note=found.how,
    )


def spread_axes(*, wide: bool) -> dict[str, Any]:
    """Return the axes of a distribution of standard errors, logarithmic when it is wide."""
    kind = {"type": "log"} if wide else {"type": "linear", "rangemode": "tozero"}
    return {
        "xaxis": {"title": {"text": "standard error (counts)"}} | kind,
        "yaxis": {"title": {"text": "share of queries"}, "tickformat": ".0%", "range": [0, 1.02]},
    }


MAX_POINTS = 20_000
Positions = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Grid:
    """Queries of one group along no, one or two axes.

    Attributes
    ----------
    group : number of the group.
    axes, labels : title and texts of every axis; the grid has one cell for every combination of texts.
    kept : cells that stand for a query, shape (texts of the first axis, texts of the second).
    index : positions of those queries, one array a part of the group.
    what : the queries in words, such as "queries on age".
    hover : text of one cell, for plotly; labels in it are filled in.
    ordered : whether neighbours on a single axis belong together.
    note : what is left out; may be empty.
    """

    group: int
    axes: tuple[str, ...]
    labels: tuple[tuple[str, ...], ...]
    kept: npt.NDArray[np.bool_]
    index: tuple[Positions, ...]
    what: str
    hover: str
    ordered: bool = False
    note: str = ""

    def standard_errors(self, plan: Plan) -> Array:
        """Return standard errors in counts, shape of the grid; NaN where a cell is no query."""
        out = np.full(self.kept.shape, np.nan)
        if not self.index:
            out[...] = np.sqrt(plan.variances(self.group)[0])
        else:
            out[self.kept] = np.sqrt(plan.group_variance(self.group).at(self.index))
        return out

    def columns(self) -> dict[str, list[str]]:
        """Return the texts of the queries for a table, one column an axis."""
        if not self.axes:
            return {"query": ["all records"]}
        places = np.nonzero(self.kept)
        names = self.axes if len(self.axes) > 1 else ("query",)
        return {name: [texts[i] for i in place] for name, texts, place in zip(names, self.labels, places, strict=True)}


def error_grid(
    workload: Workload, group: int, across: Sequence[int] | None = None, fixed: Sequence[int] | None = None
) -> Grid:
    """Return the queries of a group to draw: a line, a triangle of ranges, or a slice of more dimensions.

    Parameters
    ----------
    across : one or two parts of the group that are drawn; the first two when left out.
    fixed : index of the query of every part that is not drawn, shape (parts,); zeros when left out.
    """
    asked = workload.groups[group]
    if not asked.parts:
        return Grid(group=group, axes=(), labels=(), kept=np.ones((), bool), index=(), what="the total", hover="")
    drawn = tuple(across) if across is not None else tuple(range(min(2, len(asked.parts))))
    held = list(fixed) if fixed is not None else [0] * len(asked.parts)
    rest = [part_text(workload, asked, p, held[p]) for p in range(len(asked.parts)) if p not in drawn]
    where = f", with {' and '.join(rest)}" if rest else ""
    if len(drawn) == 1 and isinstance(asked.parts[drawn[0]].family, (Range, Circular)):
        return _runs(workload, group, drawn[0], held, where)
    most = MAX_POINTS if len(drawn) == 1 else MAX_SIDE
    chosen = [thinned(asked.parts[p].count, most) for p in drawn]
    mesh = np.meshgrid(*chosen, indexing="ij")
    names = [_part_name(asked, p) for p in drawn]
    labels = [
        tuple(short(part_text(workload, asked, p, int(i)), name) for i in positions)
        for p, positions, name in zip(drawn, chosen, names, strict=True)
    ]
    complete = all(len(c) == asked.parts[p].count for p, c in zip(drawn, chosen, strict=True))
    marks = ("%{x}",) if len(drawn) == 1 else ("%{y}", "%{x}")
    return Grid(
        group=group,
        axes=tuple(f"query on {name}" for name in names),
        labels=tuple(labels),
        kept=np.ones(mesh[0].shape, bool),
        index=_placed(held, {p: positions.ravel() for p, positions in zip(drawn, mesh, strict=True)}),
        what=f"queries on {' and '.join(names)}{where}",
        hover="<br>".join(f"{html.escape(name)} {mark}" for name, mark in zip(names, marks, strict=True)),
        ordered=asked.parts[drawn[0]].family.ordered,
        note="" if complete else f"{mesh[0].size:,} evenly spaced queries are drawn.",
    )


def _runs(workload: Workload, group: int, part: int, held: Sequence[int], where: str) -> Grid:
    """Ranges by first and last cell, or circular ranges by first cell and length."""
    asked = workload.groups[group]
    name, n = asked.attributes[asked.parts[part].axes[0]], asked.parts[part].sizes[0]
    circular = isinstance(asked.parts[part].family, Circular)
    cells = thinned(n, MAX_SIDE)
    first, second = np.meshgrid(cells, cells, indexing="ij")
    kept = np.ones(first.shape, bool) if circular else first <= second
    query = first * n + second if circular else first * n - first * (first - 1) // 2 + second - first
    labels = tuple(workload.schema[name].label(int(i)) for i in cells)
    return Grid(
        group=group,
        axes=(f"first cell of {name}", "number of cells" if circular else f"last cell of {name}"),
        labels=(labels, tuple(str(int(i) + 1) for i in cells) if circular else labels),
        kept=kept,
        index=_placed(held, {part: query[kept]}),
        what=f"ranges of {name}{where}",
        hover="from %{y}, %{x} cells" if circular else "%{y} to %{x}",
        note="" if len(cells) == n else f"Ranges between {len(cells)} evenly spaced cells are drawn.",
    )


def _placed(held: Sequence[int], drawn: dict[int, Positions]) -> tuple[Positions, ...]:
    size = len(next(iter(drawn.values())))
    return tuple(drawn.get(p, np.full(size, position)) for p, position in enumerate(held))


def part_text(workload: Workload, group: Group, part: int, index: int) -> str:
    """Return the text of one query of one part of a group."""
    asked = group.parts[part]
    return asked.family.text([workload.schema[group.attributes[a]] for a in asked.axes], index) or "all records"


def _part_name(group: Group, part: int) -> str:
    return set_name(group.attributes[a] for a in group.parts[part].axes)
