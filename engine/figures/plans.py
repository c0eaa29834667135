"""Figures of plans: variance breakdown, budget curve, distance to the bound."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from engine._format import amount, set_name
from engine.analysis import NoiseScale, breakdown, half_width, quality_by_group
from engine.analysis.error_targets import MechanismBound
from engine.analysis.relative_error import quality_text
from engine.analysis.variance_breakdown import breakdown_text
from engine.figures.base import BLUE, GREY, ORANGE, PERCENT, Picture, bars, fitting, framed, in_pcost
from engine.plans import Plan
from engine.privacy import Budget
from engine.release import quantile

MAX_BARS = 30


def budget_picture(plan: Plan) -> Picture:
    """Share of the privacy budget that every residual space takes."""
    found = plan.by_space().sort_values("share", ascending=False, kind="stable")
    names = [set_name(a) for a in found["attributes"]]
    table = found.assign(attributes=names).rename(columns={"noise": "noise (standard deviation, counts)"})
    shares, labels = table["share"].tolist()[:MAX_BARS], names[:MAX_BARS]
    if len(names) > MAX_BARS:
        shares, labels = (
            [*shares, table["share"].iloc[MAX_BARS:].sum()],
            [*labels, f"{len(names) - MAX_BARS:,} smaller ones together"],
        )
    unit = "pcost" if plan.budget.pure_epsilon is None else "epsilon"
    figure = bars(shares, labels, f"share of the {unit}", f"%{{y}}: %{{x:.2%}} of the {unit}", tickformat=PERCENT)
    return Picture(
        title="Where the budget goes",
        figure=figure,
        table=table,
        alt=f"The largest of {len(names):,} shares, {shares[0]:.1%}, goes to {names[0]}.",
        note=(
            f"One bar per set of attributes: what its table adds to all smaller tables. Shares of the {unit} sum to "
            "100%."
        ),
    )


def quality_picture(plan: Plan, scale: NoiseScale) -> Picture:
    """Shares of every group that are publishable, doubtful and noise, worst first."""
    table = quality_by_group(plan, scale)
    shown = table.head(MAX_BARS)
    labels = fitting([f"{g}: {a}" for g, a in zip(shown["group"], shown["attributes"], strict=True)])
    looks = {"publishable": (BLUE, ""), "doubtful": (ORANGE, "/"), "noise": (GREY, "x")}
    figure = go.Figure(
        [
            go.Bar(
                x=shown[name],
                y=labels,
                name=name,
                orientation="h",
                marker={"color": color, "pattern": {"shape": shape}},
                hovertemplate=f"%{{y}}<br>%{{x:.1%}} {name}<extra></extra>",
            )
            for name, (color, shape) in looks.items()
        ]
    )
    figure.update_layout(
        barmode="stack",
        height=110 + 22 * len(labels),
        legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "traceorder": "normal"},
    )
    figure.update_xaxes(tickformat=".0%", range=[0, 1.02])
    figure.update_yaxes(autorange="reversed", type="category", automargin=True)
    more = f" The {MAX_BARS} worst of {len(table):,} groups are drawn." if len(table) > MAX_BARS else ""
    return Picture(
        title="What can be published, worst groups first",
        figure=framed(figure).update_layout(margin_t=40),
        table=table,
        alt=quality_text(plan, scale),
        note="The last column of the table tells from which count on an answer is publishable." + more,
    )


MAX_SHARES = 16
FACTORS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 10.0)  # of the present budget


def breakdown_picture(plan: Plan, group: int, query: int | None = None) -> Picture:
    """Share of every residual space in the variance of a query, or in the mean variance of a group."""
    found = breakdown(plan, group, query)
    names = [set_name(a) for a in found["attributes"]]
    shares, labels = found["share"].tolist()[:MAX_SHARES], names[:MAX_SHARES]
    if len(names) > MAX_SHARES:
        shares, labels = [*shares, 1.0 - sum(shares)], [*labels, f"{len(names) - MAX_SHARES:,} smaller ones together"]
    figure = bars(shares, labels, "share", "%{y}: %{x:.2%} of the variance", tickformat=PERCENT)
    what = "query" if query is not None else "group"
    table = found.assign(attributes=names).rename(
        columns={"variance": "variance (counts²)", "noise": "noise (standard deviation, counts)"}
    )
    return Picture(
        title=f"Where the error of this {what} comes from",
        figure=figure,
        table=table,
        alt=f"Shares of the variance: {breakdown_text(plan, group, query)}",
        note="A bar is one set of attributes: what its table says beyond all smaller tables. The shares add up to all.",
    )


def interval_picture(plan: Plan, variance: float, say: Callable[[Budget], str] = in_pcost) -> Picture:
    """How far the 95% interval of one query reaches at other budgets, in the words of ``say``.

    ``variance`` is the present one, in counts^2.
    """
    pcosts = plan.budget.pcost * np.array(FACTORS)
    halves = half_width(plan, variance) / np.sqrt(np.array(FACTORS))
    now, more, gaussian = FACTORS.index(1.0), FACTORS.index(4.0), plan.budget.pure_epsilon is None
    words = [say(plan.budget.at(float(p))) for p in pcosts]
    both = {"type": "scatter", "hovertemplate": "%{customdata}<br>answer ± %{y:.4g} counts<extra></extra>"}
    others = {
        "x": pcosts,
        "y": halves,
        "mode": "lines+markers",
        "line": {"color": BLUE},
        "marker": {"color": BLUE, "size": 7},
        "name": "other budgets",
        "customdata": words,
    }
    this = {
        "x": [pcosts[now]],
        "y": [halves[now]],
        "mode": "markers",
        "marker": {"color": ORANGE, "size": 14, "symbol": "diamond"},
        "name": "this plan",
        "customdata": [words[now]],
    }
    layout = {
        "xaxis": {"title": {"text": "budget"}, "type": "log", "tickvals": pcosts, "ticktext": words},
        "yaxis": {"title": {"text": "interval ± (counts)"}, "rangemode": "tozero"},
        "height": 300,
        "legend": {"orientation": "h", "y": 1.15},
    }
    errors = halves / quantile(0.95, plan.budget.law)
    table = pd.DataFrame(
        {"budget": words, "pcost": pcosts, "standard error": errors, "95% interval ± (counts)": halves}
    )
    return Picture(
        title="The interval at other budgets",
        figure=framed(go.Figure([both | others, both | this], layout)),
        table=table,
        alt=f"At a budget of {words[now]} the interval is ± {amount(halves[now])} counts; at {words[more]} it is half "
        f"as wide, ± {amount(halves[more])}.",
        note="Half the error costs four times the pcost." if gaussian else "Half the error costs twice the epsilon.",
    )


def distance_picture(plan: Plan, bound: MechanismBound) -> Picture:
    """Weighted RMSE of a plan beside what its class, and what any matrix mechanism, cannot go below."""
    least, own = bound.rmse(plan), plan.certificate.lower_bound
    sizes = [plan.weighted_rmse, own, least]
    labels = ["this plan", "best of its class, at least", "any matrix mechanism, at least"]
    figure = bars(sizes, labels, "weighted RMSE (counts)", "%{y}: %{x:.6g} counts")
    table = pd.DataFrame({"what": labels, "weighted RMSE (counts)": sizes})
    return Picture(
        title="Distance to the best",
        figure=figure,
        table=table,
        alt=f"This plan has a weighted RMSE of {amount(sizes[0])} counts; plans of its class have at least "
        f"{amount(own)}, matrix mechanisms of any kind at least {amount(least)}.",
        note=f"The bound for all matrix mechanisms was found by {bound.how}. How much of the distance lies in the "
        "plan, and how much in the bound, is not known.",
    )
