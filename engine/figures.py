"""Figures of engine results as pure functions: each returns a picture with its table, its caption and its alt text.

Standard errors are in counts, the unit of the answers.  Heat maps use Cividis, everything else the Okabe-Ito colours,
and colour never tells anything alone.  At most 512 x 512 cells and 20,000 points are drawn; a thinned picture says so.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pandas as pd
import plotly.graph_objects as go

from engine.charts import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    Picture,
    amount,
    bars,
    cost,
    fitting,
    framed,
    heat_map,
    line,
    number,
    short,
    thinned,
)
from engine.coverage import Coverage
from engine.family import Array
from engine.intervals import Circular, Range
from engine.plan import Plan
from engine.schema import Schema
from engine.workload import Group

MAX_SIDE = 512
MAX_POINTS = 20_000
MAX_ROWS = 128  # rows of a family picture
MAX_BARS = 30
EXACT_QUERIES = 2_000_000  # up to here every standard error is computed for a distribution
SAMPLE = 200_000
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)


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
        alt=f"Bars of the cells of {len(schema)} attributes; the largest, {largest.name}, has {largest.size:,}.",
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
        name = " × ".join(c.name for c in columns)
        labels = [[short(asked.family.text(columns, int(i)) or "all records", name) for i in chosen], cells]
        title, axes = f"{asked.family.name} on {name}: {asked.count:,} queries", ["query", f"cell of {name}"]
        alt = f"{len(chosen):,} of {asked.count:,} queries as rows; coloured cells of {name} are counted."
        complete = len(chosen) == asked.count and grid.shape[1] == math.prod(asked.sizes)
    figure, note = heat_map(grid, labels, axes, "%{y}<br>%{x}<br>counted %{z:g} times", "times<br>counted"), ""
    figure.update_traces(zmin=min(0.0, float(grid.min())), zmax=max(1.0, float(grid.max())))
    if max(grid.shape) <= 40:
        figure.update_traces(xgap=1, ygap=1)
    if set(np.unique(grid)) <= {0.0, 1.0}:
        figure.update_traces(showscale=False)
        note = "Bright cells are counted."
    table = pd.DataFrame(grid, index=pd.Index(labels[0], name=axes[0]), columns=labels[1]).reset_index()
    if not complete:
        note += f" At most {MAX_ROWS} evenly spaced queries and {MAX_SIDE} cells a side are drawn."
    return Picture(title=title, figure=figure, table=table, alt=alt, note=note.strip())


@lru_cache(maxsize=8)
def group_table(plan: Plan) -> pd.DataFrame:
    """Return `Plan.by_group` for reading: the group's number, attributes as text, errors in counts."""
    found = plan.by_group()
    names = [" × ".join(names) or "(total)" for names in found["attributes"]]
    weights = [g.weight for g in plan.workload.groups]
    out = found.assign(attributes=names).rename(columns={"rmse": "RMSE", "max_std": "largest standard error"})
    out.insert(0, "group", range(len(out)))
    return out.assign(weight=weights)


def worst_error(plan: Plan) -> float:
    """Return the largest standard error of a query, in counts; as `Plan.max_variance`, from the table that is shown."""
    return float(group_table(plan)["largest standard error"].max())


def error_picture(
    plan: Plan, group: int, across: Sequence[int] | None = None, fixed: Sequence[int] | None = None
) -> Picture:
    """Standard errors of a group's queries: a line, a triangle of ranges, or a slice of more dimensions.

    Parameters
    ----------
    across : one or two parts of the group that are drawn; the first two when left out.
    fixed : index of the query of every part that is not drawn, shape (parts,); zeros when left out.
    """
    asked = plan.workload.groups[group]
    if not asked.parts:
        return _single(plan, group)
    drawn = tuple(across) if across is not None else tuple(range(min(2, len(asked.parts))))
    held = list(fixed) if fixed is not None else [0] * len(asked.parts)
    rest = [_part_text(plan, asked, p, held[p]) for p in range(len(asked.parts)) if p not in drawn]
    where = f", with {' and '.join(rest)}" if rest else ""
    family, n = asked.parts[drawn[0]].family, asked.parts[drawn[0]].sizes[0]
    if len(drawn) == 1 and isinstance(family, (Range, Circular)):
        return _runs(plan, group, drawn[0], held, where, n)
    chosen = [thinned(asked.parts[p].count, MAX_POINTS if len(drawn) == 1 else MAX_SIDE) for p in drawn]
    grid = np.meshgrid(*chosen, indexing="ij")
    index = [np.full(grid[0].size, held[p]) for p in range(len(asked.parts))]
    for p, positions in zip(drawn, grid, strict=True):
        index[p] = positions.ravel()
    errors = np.sqrt(_variances_at(plan, group, index)).reshape(grid[0].shape)
    names = [_part_name(asked, p) for p in drawn]
    labels = [
        [short(_part_text(plan, asked, p, int(i)), name) for i in positions]
        for p, positions, name in zip(drawn, chosen, names, strict=True)
    ]
    if len(drawn) == 1:
        figure = line(errors, labels[0], names[0], connected=len(errors) > 1 and family.ordered)
        table = pd.DataFrame({"query": labels[0], "standard error": errors})
    else:
        hover = f"{html.escape(names[0])} %{{y}}<br>{html.escape(names[1])} %{{x}}<br>standard error %{{z:.4g}} counts"
        figure = heat_map(errors, labels, names, hover, "standard<br>error")
        table = pd.DataFrame(
            {
                f"query on {names[0]}": np.repeat(labels[0], len(labels[1])),
                f"query on {names[1]}": np.tile(labels[1], len(labels[0])),
                "standard error": errors.ravel(),
            }
        )
    complete = all(len(c) == asked.parts[p].count for p, c in zip(drawn, chosen, strict=True))
    note = "" if complete else f"{errors.size:,} evenly spaced queries are drawn."
    return Picture(
        title=f"Standard error of every query on {' and '.join(names)}{where}",
        figure=figure,
        table=table,
        alt=_extent(errors, f"queries on {' and '.join(names)}{where}"),
        note=note,
    )


def spread_picture(plan: Plan, tolerance: float) -> Picture:
    """Share of all queries with a standard error at or below each size, and a line at a tolerance (counts)."""
    errors, shares, exact = _spread(plan)
    within = float(shares[np.searchsorted(errors, tolerance, side="right") - 1]) if tolerance >= errors[0] else 0.0
    finite = errors[np.isfinite(errors)]
    drawn = thinned(len(finite), MAX_POINTS // 10)
    figure = go.Figure(
        go.Scatter(
            x=finite[drawn],
            y=shares[drawn],
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
    figure.update_xaxes(title="standard error (counts)", type="log" if wide else "linear")
    if not wide:
        figure.update_xaxes(rangemode="tozero")
    figure.update_yaxes(title="share of queries", tickformat=".0%", range=[0, 1.02])
    found = [float(errors[min(int(np.searchsorted(shares, q - 1e-12)), len(errors) - 1)]) for q in QUANTILES]
    table = pd.DataFrame({"share of queries": [f"{q:.0%}" for q in QUANTILES], "standard error at most": found})
    all_queries = number(plan.workload.queries)
    text = f"{within:.1%} of {all_queries} queries have a standard error of {amount(tolerance)} counts or less."
    how = "Every query was computed." if exact else f"An evenly spread sample of {len(errors):,} queries was computed."
    return Picture(title="How many queries are good enough", figure=framed(figure), table=table, alt=text, note=how)


def budget_picture(plan: Plan) -> Picture:
    """Share of the privacy budget that every residual space takes."""
    found = plan.by_space().sort_values("share", ascending=False, kind="stable")
    names = [" × ".join(a) or "(total)" for a in found["attributes"]]
    table = found.assign(attributes=names).rename(columns={"noise": "noise (standard deviation, counts)"})
    shares, labels = table["share"].tolist()[:MAX_BARS], names[:MAX_BARS]
    rest = 1.0 - sum(shares)
    if len(names) > MAX_BARS:
        shares, labels = [*shares, rest], [*labels, f"{len(names) - MAX_BARS:,} smaller ones together"]
    figure = bars(shares, labels, "share of the budget", "%{y}: %{x:.2%} of the budget")
    figure.update_xaxes(tickformat=".0%")
    return Picture(
        title="Where the budget goes",
        figure=figure,
        table=table,
        alt=f"The largest of {len(names):,} shares, {shares[0]:.1%}, goes to {names[0]}.",
        note="A bar is one set of attributes: what its table says beyond all smaller tables.",
    )


def spending_picture(total: float, spent: float, asked: float) -> Picture:
    """Budget of a dataset in pcost: what was spent, what this release would spend, what would be left."""
    left = total - spent
    after = left - asked
    pieces = [
        (f"was spent: {cost(spent)}", spent, GREY, "/"),
        (f"this release: {cost(asked)}{' (too much)' if after < 0 else ''}", min(asked, left), ORANGE, "x"),
        (f"will be left: {cost(max(after, 0.0))}", max(after, 0.0), GREEN, ""),
    ]
    figure = go.Figure(
        [
            go.Bar(
                x=[size],
                y=["budget"],
                name=text,
                orientation="h",
                marker={"color": color, "pattern": {"shape": shape}},
                hovertemplate=f"{text} pcost<extra></extra>",
            )
            for text, size, color, shape in pieces
        ]
    )
    figure.update_layout(barmode="stack", height=150, legend={"orientation": "h", "traceorder": "normal", "y": 1.6})
    figure.update_xaxes(title="privacy cost (pcost)", range=[0, total])
    figure.update_yaxes(showticklabels=False)
    words = f"Of a budget of {cost(total)} pcost, {cost(spent)} was spent and this release takes {cost(asked)}; "
    words += f"{cost(after)} will be left." if after >= 0 else "that is more than what is left."
    table = pd.DataFrame({"part": ["was spent", "this release", "will be left"], "pcost": [spent, asked, after]})
    return Picture(title="What this spends", figure=framed(figure), table=table, alt=words)


def answers_picture(answers: pd.DataFrame, *, rehearsal: bool) -> Picture:
    """Answers with their intervals, in counts; a column `truth`, which only a rehearsal may have, is drawn as well."""
    shown = answers.head(MAX_SIDE)
    half = (shown["high"] - shown["low"]) / 2
    texts = fitting(shown["query"].tolist())
    figure = go.Figure()
    if "truth" in shown:
        figure.add_scatter(
            x=texts,
            y=shown["truth"],
            mode="markers",
            name="truth",
            marker={"color": ORANGE, "symbol": "line-ew-open", "size": 12, "line": {"width": 3}},
        )
    figure.add_scatter(
        x=texts,
        y=shown["answer"],
        mode="markers",
        name="noisy answer with interval",
        marker={"color": BLUE, "size": 6},
        error_y={"type": "data", "array": half, "color": BLUE, "thickness": 1.2, "width": 0},
        hovertemplate="%{x}<br>%{y:,.1f} counts<extra></extra>",
    )
    figure.update_xaxes(type="category", nticks=16, automargin=True)
    figure.update_yaxes(title="records (counts)")
    figure.update_layout(legend={"orientation": "h", "y": 1.12})
    if rehearsal:
        mark = {"size": 64, "color": "rgba(127,127,127,0.35)"}
        place = {"x": 0.5, "y": 0.5, "xref": "paper", "yref": "paper", "textangle": -20}
        figure.add_annotation(text="REHEARSAL", showarrow=False, font=mark, **place)
    covered = ""
    if "truth" in shown:
        inside = int(((shown["low"] <= shown["truth"]) & (shown["truth"] <= shown["high"])).sum())
        covered = f" {inside:,} of the {len(shown):,} intervals drawn hold the truth."
    kind = "Rehearsal on simulated records: noisy" if rehearsal else "Noisy"
    alt = f"{kind} answers to {len(shown):,} queries.{covered}"
    note = f"The first {MAX_SIDE} answers of this page are drawn." if len(answers) > MAX_SIDE else ""
    return Picture(title="Answers", figure=framed(figure), table=answers, alt=alt, note=note)


def coverage_picture(found: Coverage) -> Picture:
    """Share of the intervals of many rehearsals that hold the truth, beside the share that was promised."""
    table = found.table
    figure = go.Figure()
    figure.add_scatter(
        x=table["promised"],
        y=table["promised"],
        mode="lines",
        name="promised",
        line={"color": GREY, "dash": "dash"},
        hoverinfo="skip",
    )
    figure.add_scatter(
        x=table["promised"],
        y=table["found"],
        mode="markers",
        name="found, with what chance allows",
        marker={"color": BLUE, "size": 10},
        error_y={"type": "data", "array": table["by chance"], "color": BLUE},
        hovertemplate="promised %{x:.0%}<br>found %{y:.2%}<extra></extra>",
    )
    figure.update_xaxes(title="promised share of intervals that hold the truth", tickformat=".0%")
    figure.update_yaxes(title="share that did", tickformat=".0%")
    figure.update_layout(legend={"orientation": "h", "y": 1.12})
    return Picture(title="Do the intervals hold?", figure=framed(figure), table=table, alt=found.sentence)


def _variances_at(plan: Plan, group: int, index: Sequence[npt.NDArray[np.int64]]) -> Array:
    """Variances of scattered queries of a group; one array of positions per part, all of one length."""
    return plan.group_variance(group).at(tuple(index))


@lru_cache(maxsize=8)
def _spread(plan: Plan) -> tuple[Array, Array, bool]:
    """Sorted standard errors, the share of queries up to each, and whether every query was computed."""
    alike: dict[int, list[int]] = {}
    for i in range(len(plan.workload.groups)):
        alike.setdefault(id(plan.group_variance(i)), []).append(i)
    exact, errors, weights = plan.workload.queries <= EXACT_QUERIES, [], []
    for members in alike.values():
        group = plan.workload.groups[members[0]]
        total = group.count * len(members)
        quota = group.count if exact else max(256, SAMPLE * total // plan.workload.queries)
        if quota >= group.count:
            variances = plan.variances(members[0])
        else:
            variances = _variances_at(plan, members[0], _even_points([p.count for p in group.parts], quota))
        errors.append(np.sqrt(variances))
        weights.append(np.full(len(variances), total / len(variances)))
    values, shares = np.concatenate(errors), np.concatenate(weights)
    order = np.argsort(values, kind="stable")
    return values[order], np.cumsum(shares[order]) / shares.sum(), exact


def _even_points(counts: Sequence[int], points: int) -> list[npt.NDArray[np.int64]]:
    """Positions spread evenly over a box: the additive recurrence of Roberts, which needs no randomness."""
    ratio = 2.0
    for _ in range(40):  # the positive root of x^(d+1) = x + 1
        ratio = (1.0 + ratio) ** (1.0 / (len(counts) + 1))
    steps = np.arange(1, points + 1)
    return [np.floor((0.5 + steps * ratio ** -(k + 1)) % 1.0 * n).astype(np.int64) for k, n in enumerate(counts)]


def _runs(plan: Plan, group: int, part: int, held: Sequence[int], where: str, n: int) -> Picture:
    """Standard errors of ranges by first and last cell, or of circular ranges by first cell and length."""
    asked = plan.workload.groups[group]
    name = asked.attributes[asked.parts[part].axes[0]]
    circular = isinstance(asked.parts[part].family, Circular)
    cells = thinned(n, MAX_SIDE)
    first, second = (a.ravel() for a in np.meshgrid(cells, cells, indexing="ij"))
    kept = np.full(len(first), True) if circular else first <= second
    query = first * n + second if circular else first * n - first * (first - 1) // 2 + second - first
    index = [np.full(int(kept.sum()), p) for p in held]
    index[part] = query[kept]
    errors = np.full(len(first), np.nan)
    errors[kept] = np.sqrt(_variances_at(plan, group, index))
    labels = [plan.schema[name].label(int(i)) for i in cells]
    second_labels = [str(int(i) + 1) for i in cells] if circular else labels
    axes = [f"first cell of {name}", "number of cells" if circular else f"last cell of {name}"]
    hover = "from %{y}, %{x} cells" if circular else "%{y} to %{x}"
    grid = errors.reshape(len(cells), len(cells))
    figure = heat_map(
        grid, [labels, second_labels], axes, hover + "<br>standard error %{z:.4g} counts", "standard<br>error"
    )
    table = pd.DataFrame(
        {
            axes[0]: np.repeat(labels, len(cells))[kept],
            axes[1]: np.tile(second_labels, len(cells))[kept],
            "standard error": errors[kept],
        }
    )
    return Picture(
        title=f"Standard error of every range of {name}{where}",
        figure=figure,
        table=table,
        alt=_extent(errors[kept], f"ranges of {name}{where}"),
        note="" if len(cells) == n else f"Ranges between {len(cells)} evenly spaced cells are drawn.",
    )


def _single(plan: Plan, group: int) -> Picture:
    error = math.sqrt(float(plan.variances(group)[0]))
    table = pd.DataFrame({"query": ["all records"], "standard error": [error]})
    figure = bars([error], ["all records"], "standard error (counts)", "%{y}: %{x:.4g} counts")
    return Picture(
        title="Standard error of the total", figure=figure, table=table, alt=f"It is {amount(error)} counts."
    )


def _part_text(plan: Plan, group: Group, part: int, index: int) -> str:
    asked = group.parts[part]
    return asked.family.text([plan.schema[group.attributes[a]] for a in asked.axes], index) or "all records"


def _part_name(group: Group, part: int) -> str:
    return " × ".join(group.attributes[a] for a in group.parts[part].axes)


def _extent(errors: Array, what: str) -> str:
    least, most = amount(float(errors.min())), amount(float(errors.max()))
    return f"{errors.size:,} {what}: standard errors from {least} to {most} counts."
