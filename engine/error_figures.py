"""Pictures of standard errors: of every query of a group, and how they are distributed over all queries."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from engine.charts import BLUE, ORANGE, Picture, amount, bars, fitting, framed, heat_map, line, number, thinned
from engine.error_grid import MAX_POINTS, Grid, error_grid
from engine.family import Array
from engine.plan import Plan
from engine.spread import spread

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)


def error_picture(
    plan: Plan, group: int, across: Sequence[int] | None = None, fixed: Sequence[int] | None = None
) -> Picture:
    """Standard errors of a group's queries, in counts; ``across`` and ``fixed`` as in `engine.error_grid`."""
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
    """Draw one number for every query of a grid: a bar, a line or a heat map; the unit may be empty."""
    what = f"{quantity} ({unit})" if unit else quantity
    if not grid.axes:
        return bars([float(values)], ["all records"], what, f"%{{y}}: %{{x:.4g}} {unit}")
    words = f"{quantity} %{{z:.4g}} {unit}".strip()
    if len(grid.axes) == 1:
        figure = line(values, grid.labels[0], grid.axes[0], connected=len(values) > 1 and grid.ordered)
        figure.update_traces(hovertemplate=f"{grid.hover}<br>{words.replace('%{z', '%{y')}<extra></extra>")
        figure.update_xaxes(title=fitting(grid.axes)[0])
        return figure.update_yaxes(title=what)
    return heat_map(values, grid.labels, grid.axes, f"{grid.hover}<br>{words}", quantity.replace(" ", "<br>"))


def spread_picture(plan: Plan, tolerance: float) -> Picture:
    """Share of all queries with a standard error at or below each size, and a line at a tolerance (counts)."""
    found = spread(plan)
    finite = found.errors[np.isfinite(found.errors)]
    drawn = thinned(len(finite), MAX_POINTS // 10)
    figure = go.Figure(
        go.Scatter(
            x=finite[drawn],
            y=found.shares[drawn],
            mode="lines",
            line={"shape": "hv", "color": BLUE, "width": 2.5},
            hovertemplate="%{y:.1%} of the queries have a standard error<br>of %{x:.4g} counts or less<extra></extra>",
            showlegend=False,
        )
    )
    wide = len(finite) > 0 and finite[-1] > 20 * finite[0] > 0
    place = math.log10(tolerance) if wide else tolerance  # annotations on a logarithmic axis take the exponent
    figure.add_shape(
        type="line", x0=tolerance, x1=tolerance, y0=0, y1=1, yref="paper", line={"color": ORANGE, "dash": "dash"}
    )
    figure.add_annotation(
        x=place, y=1.02, yref="paper", yanchor="bottom", showarrow=False, text=f"tolerance {amount(tolerance)}"
    )
    spread_axes(figure, wide=wide)
    rows = [(f"{q:.0%}", found.quantile(q)) for q in QUANTILES]
    return Picture(
        title="How many queries are good enough",
        figure=framed(figure),
        table=pd.DataFrame(rows, columns=["share of queries", "standard error at most"]),
        alt=f"{found.within(tolerance):.1%} of {number(plan.workload.queries)} queries have a standard error of "
        f"{amount(tolerance)} counts or less.",
        note=found.how,
    )


def spread_axes(figure: go.Figure, *, wide: bool) -> None:
    """Set the axes of a distribution of standard errors, logarithmic when it is wide."""
    figure.update_xaxes(title="standard error (counts)", type="log" if wide else "linear")
    if not wide:
        figure.update_xaxes(rangemode="tozero")
    figure.update_yaxes(title="share of queries", tickformat=".0%", range=[0, 1.02])
