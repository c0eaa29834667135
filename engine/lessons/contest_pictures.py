"""Pictures of strategies: what is measured, the error of every range, and who comes closest to the bound."""

from __future__ import annotations

import html
from collections.abc import Mapping

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from engine.figures import BLUE, GREEN, GREY, ORANGE, Picture, framed, heat_map
from engine.lessons.pictures import SIGNED
from engine.lessons.strategies import Contest, Tried
from engine.texts import amount

PAIR = 480  # pixels, height of two pictures that belong together


def strategy_picture(tried: Tried) -> Picture:
    """The rows of a strategy as a heat map."""
    m, n = tried.rows.shape
    labels = [[f"row {i + 1}" for i in range(m)], [str(i) for i in range(n)]]
    looks = {"zmin": -1, "zmax": 1, "zmid": 0, "colorscale": SIGNED}
    axes, hover = ["what is measured", "cell"], "%{y}, cell %{x}<br>%{z:.3f}"
    figure = heat_map(tried.rows, labels, axes, hover, "weight", **looks)
    figure.update_layout(height=PAIR)
    table = pd.DataFrame(tried.rows, columns=labels[1])
    table.insert(0, "row", labels[0])
    used = int(np.max(np.count_nonzero(np.abs(tried.rows) > 1e-9, axis=0)))
    return Picture(
        title=f"{tried.name}: what is measured",
        figure=figure,
        table=table,
        alt=f"{m} rows on {n} cells; a record moves up to {used} of the {m} measured numbers.",
        note="One row is one noisy number; its weights are scaled so that the whole strategy has privacy cost 1. "
        "White is zero.",
    )


def range_errors_picture(found: Contest, number: int) -> Picture:
    """Standard error of every range under one strategy, on the colours of all strategies together."""
    tried, n = found.tried[number], found.cells
    first, last = np.triu_indices(n)
    grid = np.full((n, n), np.nan)
    grid[first, last] = tried.errors
    labels = [str(i) for i in range(n)]
    hover = "%{y} to %{x}<br>standard error %{z:.3f} counts"
    ends = {"zmin": 0.0, "zmax": max(float(t.errors.max()) for t in found.tried)}
    figure = heat_map(grid, [labels, labels], ["first cell", "last cell"], hover, "standard<br>error", **ends)
    figure.update_layout(height=PAIR)
    worst = int(np.argmax(tried.errors))
    return Picture(
        title=f"{tried.name}: standard error of every range",
        figure=figure,
        table=pd.DataFrame({"first cell": first, "last cell": last, "standard error": tried.errors}),
        alt=f"{len(first):,} ranges; standard errors from {amount(float(tried.errors.min()))} to "
        f"{amount(float(tried.errors.max()))} counts, the largest for cells {first[worst]} to {last[worst]}.",
        note="The colours mean the same for every strategy, so that pictures can be compared.",
    )


def contest_picture(found: Contest, bounds: Mapping[str, float], chosen: str = "") -> Picture:
    """RMSE of every strategy as dots, and proven bounds as lines; the chosen strategy has a mark of its own."""
    names, sizes = [t.name for t in found.tried], [t.rmse for t in found.tried]
    marked = [name == chosen for name in names]
    figure = go.Figure(
        go.Scatter(
            x=sizes,
            y=names,
            mode="markers+text",
            text=[f"  {size:.4f}" for size in sizes],
            textposition="middle right",
            marker={
                "opacity": 1,
                "size": [17 if m else 13 for m in marked],
                "symbol": ["diamond" if m else "circle" for m in marked],
                "color": [ORANGE if m else BLUE for m in marked],
            },
            hovertemplate="%{y}: %{x:.4f} counts<extra></extra>",
            showlegend=False,
        )
    )
    for (name, bound), dash, color in zip(bounds.items(), ("dash", "dot"), (GREY, GREEN), strict=False):
        figure.add_scatter(
            x=[bound, bound],
            y=[names[0], names[-1]],
            mode="lines",
            name=f"{name}: {bound:.4f}",
            line={"color": color, "dash": dash, "width": 3},
            hovertemplate=f"{html.escape(name)}: {bound:.4f} counts<extra></extra>",
            showlegend=True,
        )
    low, high = min(*sizes, *bounds.values()), max(sizes)
    margin = 0.06 * low + 0.1 * (high - low)
    figure.update_xaxes(title="RMSE over all queries (counts)", range=[low - margin / 2, high + 2 * margin])
    figure.update_yaxes(autorange="reversed", type="category", automargin=True)
    figure.update_layout(height=320, legend={"orientation": "h", "y": 1.15})
    best = min(found.tried, key=lambda t: t.rmse)
    table = pd.DataFrame({"strategy or bound": [*names, *bounds], "RMSE": [*sizes, *bounds.values()]})
    return Picture(
        title=f"Who wins on all {found.asked.name} queries over {found.cells} cells",
        figure=framed(figure).update_layout(margin_t=40),
        table=table,
        alt=f"{best.name} has the smallest RMSE, {best.rmse:.4f} counts; no strategy can be below "
        f"{max(bounds.values()):.4f}.",
        note="All strategies have privacy cost 1. The axis does not begin at 0.",
    )


def proof_text(found: Contest, share: float) -> str:
    """What a bound with weights at ``share`` says about the best strategy, in words (Markdown)."""
    gap = found.tried[-1].rmse / found.bound(share) - 1.0
    if gap < 1e-6:
        return "**Strategy and bound meet:** these weights prove that the optimal strategy cannot be improved."
    return (
        f"The optimal strategy is **{gap:.2%}** above the bound that these weights prove. So far you only know that no "
        "strategy is better by more than that; move the weights to learn more."
    )
