"""Figures of engine results as pure functions: each returns a picture with its table, its caption and its alt text.

Standard errors are in counts, the unit of the answers.  Heat maps use Cividis, everything else the Okabe-Ito colours,
and colour never tells anything alone.  At most 512 x 512 cells and 20,000 points are drawn; a thinned picture says so.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from engine.charts import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    Picture,
    bars,
    cost,
    fitting,
    framed,
    heat_map,
    short,
    thinned,
)
from engine.coverage import Coverage
from engine.error_grid import MAX_SIDE
from engine.plan import Plan
from engine.schema import Schema
from engine.workload import Group

MAX_ROWS = 128  # rows of a family picture
MAX_BARS = 30


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
