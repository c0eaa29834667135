"""Pictures of the attack, of persons with many rows, of clipped tables and of tuned centers."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from engine.figures import BLUE, GREEN, GREY, ORANGE, Picture, fitting, framed
from engine.lessons.attack import PERSONS, SECRETS, Attack
from engine.lessons.binning import Clipped
from engine.lessons.centers import Centered
from engine.lessons.many_rows import best_cap, caps_table
from engine.privacy import Budget
from engine.texts import amount

LEGEND = {"orientation": "h", "y": 1.18}


def attack_picture(found: Attack) -> Picture:
    """What every person said, and what the attacker's least squares say, with the line that a guess is made by."""
    persons = [f"person {i + 1}" for i in range(PERSONS)]
    right = [guess == secret for guess, secret in zip(found.guesses, SECRETS, strict=True)]
    said = {
        "type": "scatter",
        "x": persons,
        "y": list(SECRETS),
        "mode": "markers",
        "name": "what the person said (1 is yes)",
        "marker": {"color": GREEN, "size": 18, "symbol": "circle-open", "line": {"width": 3}},
        "hovertemplate": "%{x} said %{y}<extra></extra>",
    }
    guesses = [
        {
            "type": "scatter",
            "x": [p for p, r in zip(persons, right, strict=True) if r is kept],
            "y": [float(v) for v, r in zip(found.estimate, right, strict=True) if r is kept],
            "mode": "markers",
            "name": name,
            "marker": {"color": color, "size": 10, "symbol": symbol},
            "hovertemplate": "%{x}: estimate %{y:.2f}<extra></extra>",
        }
        for kept, name, color, symbol in (
            (True, "guessed right", BLUE, "circle"),
            (False, "guessed wrong", ORANGE, "x"),
        )
    ]
    half = {"type": "line", "x0": 0, "x1": 1, "xref": "x domain", "y0": 0.5, "y1": 0.5, "yref": "y"}
    layout = {
        "shapes": [half | {"line": {"color": GREY, "dash": "dash"}}],
        "xaxis": {"type": "category", "categoryarray": persons, "categoryorder": "array", "showgrid": False},
        "yaxis": {"title": {"text": "reply, as the attacker works it out"}},
        "height": 360,
        "legend": LEGEND,
    }
    table = pd.DataFrame(
        {"person": persons, "said": SECRETS, "estimate": found.estimate, "guess": found.guesses, "right": right}
    )
    return Picture(
        title="What an attacker learns of every person",
        figure=framed(go.Figure([said, *guesses], layout), top=40),
        table=table,
        alt=f"From {len(found.answers)} answers the attacker has {found.right} of {PERSONS} replies right; half of "
        "them would be right by tossing a coin.",
        note="Above the dashed line the attacker guesses yes. The replies are invented.",
    )


def caps_picture(budget: Budget, chosen: int) -> Picture:
    """Error of the total by the cap of rows a person: rows lost, noise, and both together."""
    table = caps_table(budget)
    figure = go.Figure()
    for column, name, color, dash in (
        ("rows lost", "rows lost", ORANGE, "dot"),
        ("standard error", "standard error of the noise", BLUE, "dash"),
        ("error", "both together", GREEN, "solid"),
    ):
        figure.add_scatter(
            x=table["cap"],
            y=table[column],
            mode="lines+markers",
            name=name,
            line={"color": color, "dash": dash, "width": 2.5},
            hovertemplate=f"cap %{{x}}<br>{name}: %{{y:.4g}} counts<extra></extra>",
        )
    figure.add_vline(x=chosen, line={"color": GREY, "dash": "dash"})
    figure.update_xaxes(title="most rows of one person that are counted", dtick=1)
    figure.update_yaxes(title="counts", rangemode="tozero")
    figure.update_layout(height=360, legend=LEGEND)
    best = best_cap(budget)
    error = amount(float(table["error"][table["cap"] == best].iloc[0]))
    return Picture(
        title="What a cap on rows costs and saves",
        figure=framed(figure).update_layout(margin_t=40),
        table=table,
        alt=f"Rows lost fall and noise grows with the cap; the total is best at a cap of {best}, off by {error}.",
        note="Every cap makes the same promise to a whole person. The dashed line is the cap that you chose.",
    )


def clipped_picture(found: Clipped, width: int) -> Picture:
    """True counts, and what is published on average once negative counts are put up to zero."""
    bins = [f"{i * width}" if width == 1 else f"{i * width}-{(i + 1) * width - 1}" for i in range(len(found.counts))]
    figure = go.Figure()
    figure.add_bar(
        x=bins,
        y=found.counts,
        name="true count (invented)",
        marker_color=GREEN,
        hovertemplate="cells %{x}: %{y}<extra></extra>",
    )
    figure.add_scatter(
        x=bins,
        y=found.means,
        mode="markers",
        name="published on average, negative counts as 0",
        marker={"color": ORANGE, "size": 9, "symbol": "diamond"},
        error_y={"array": found.errors, "color": ORANGE, "thickness": 1},
        hovertemplate="cells %{x}: %{y:.2f} on average<extra></extra>",
    )
    figure.update_xaxes(type="category", title="cells put together", nticks=16)
    figure.update_yaxes(title="records (counts)")
    figure.update_layout(height=380, legend=LEGEND)
    table = pd.DataFrame(
        {"cells": bins, "true count": found.counts, "published on average": found.means, "error": found.errors}
    )
    return Picture(
        title="What putting negative counts up to zero does",
        figure=framed(figure).update_layout(margin_t=40),
        table=table,
        alt=f"{len(bins)} counts with a standard error of {amount(found.std)}; put up to zero they add up to "
        f"{amount(found.bias)} too many on average, and a cell is off by {amount(found.rmse)} counts.",
        note="Bars of the diamonds: root mean squared error of the published count.",
    )


def centered_picture(found: Centered) -> Picture:
    """Errors of the split of the paper and of the tuned one, over the bound for all mechanisms."""
    names = ["equal centers", "tuned centers"]
    sizes = [found.equal.weighted_rmse, found.tuned.weighted_rmse]
    over = [100.0 * (size / found.bound - 1.0) for size in sizes]
    figure = go.Figure(
        go.Scatter(
            x=over,
            y=names,
            mode="markers+text",
            text=[f"  {size:.4f} counts, {share:.2f}% above" for size, share in zip(sizes, over, strict=True)],
            textposition="middle right",
            marker={"size": 15, "color": [BLUE, ORANGE], "symbol": ["circle", "diamond"], "opacity": 1},
            hovertemplate="%{y}: %{x:.3f}% above the bound<extra></extra>",
            showlegend=False,
        )
    )
    figure.add_vline(x=0.0, line={"color": GREY, "dash": "dash", "width": 3})
    figure.update_xaxes(
        title="RMSE above what no mechanism can go below (%)", range=[-0.05 * max(over), 1.8 * max(over)]
    )
    figure.update_yaxes(autorange="reversed", type="category", automargin=True)
    figure.update_layout(height=220)
    table = pd.DataFrame(
        {
            "plan": [*names, "bound for all mechanisms"],
            "RMSE": [*sizes, found.bound],
            "above the bound (%)": [*over, 0.0],
        }
    )
    return Picture(
        title="What tuning wins, and what is left",
        figure=framed(figure),
        table=table,
        alt=f"Equal centers are {over[0]:.2f}% above the bound, tuned ones {over[1]:.2f}%.",
        note=f"The dashed line is the bound: {found.bound:.4f} counts, found by {found.how}.",
    )


def centers_picture(found: Centered, name: str) -> Picture:
    """The tuned center of an attribute beside the equal one."""
    center = found.centers()[name]
    cells = [str(i) for i in range(len(center))]
    figure = go.Figure(
        go.Bar(x=cells, y=center, marker_color=BLUE, name="tuned", hovertemplate="cell %{x}: %{y:.4f}<extra></extra>")
    )
    figure.add_scatter(
        x=cells,
        y=[1.0 / len(center)] * len(center),
        mode="lines",
        name="equal",
        line={"color": ORANGE, "dash": "dash", "width": 3},
        hovertemplate="equal: %{y:.4f}<extra></extra>",
    )
    figure.update_xaxes(type="category", title=fitting([f"cell of {name}"])[0])
    figure.update_yaxes(title="share of the total")
    figure.update_layout(height=300, legend=LEGEND)
    largest = int(np.argmax(center))
    return Picture(
        title=f"How the total of a query is passed down along {name}",
        figure=framed(figure).update_layout(margin_t=40),
        table=pd.DataFrame({"cell": cells, "tuned": center, "equal": 1.0 / len(center)}),
        alt=f"Tuned shares go from {center.min():.3f} to {center.max():.3f}, the largest at cell {largest}; equal ones "
        f"are {1 / len(center):.3f}.",
        note="Both add up to 1, so that both split every query exactly.",
    )
