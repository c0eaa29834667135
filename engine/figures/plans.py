"""Figures of plans: budget shares, quality, variance breakdown, intervals and lower bounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from engine._format import cost, format_number, percent_rounded_up, pluralize, set_name
from engine.analysis import NoiseScale, breakdown, half_width, quality_by_group, table_names
from engine.analysis.certificates import MechanismBound
from engine.analysis.relative_error import quality_text
from engine.analysis.variance_breakdown import breakdown_text
from engine.figures.base import (
    BLUE,
    GREY,
    LEGEND,
    ORANGE,
    PERCENT,
    Picture,
    axis_labels,
    bars,
    budget_axis,
    category_axis,
    in_pcost,
    set_margins,
)
from engine.mechanisms import label_of, title_of
from engine.plans import Plan
from engine.privacy import Budget
from engine.release import quantile

MAX_BARS = 30


def plan_caption(plan: Plan) -> str:
    """Return a caption for tables of a plan: mechanism, queries and privacy parameters.

    >>> from engine import Attribute, Budget, Schema, Workload, plan
    >>> workload = Workload.all_ways(Schema([Attribute.of_size("a", 4)]), (1,))
    >>> plan_caption(plan(workload, Budget(pcost=1.0), "wff")).partition(". ")[0]
    'Weighted Fourier Factorizations, 4 queries in 1 table'
    """
    title = title_of(label_of(plan.mechanism, plan.options))
    budget = plan.budget
    queries_text = (
        f"{pluralize(plan.workload.queries, 'query', 'queries')} in"
        f" {pluralize(len(plan.workload.groups), 'table')}"
    )
    parameters = budget.numbers()
    if budget.pure_epsilon is not None:
        parameters = f"Pure epsilon {cost(budget.pure_epsilon)}: {parameters}"
    return f"{title}, {queries_text}. {parameters}."


def _bar_note(plan: Plan) -> str:
    """Return a sentence about the bars of `budget_picture` and `breakdown_picture`."""
    if plan.full_tables:
        return "Each bar is a measured table."
    block_keys = plan.block_key_of_space.values()
    has_joint_blocks = len(set(block_keys)) < len(block_keys)
    joint = " Spaces that are measured together share a bar." if has_joint_blocks else ""
    return (
        "Each bar is a residual space: the part of a table that no table of fewer attributes"
        f" contains.{joint}"
    )


def budget_picture(plan: Plan) -> Picture:
    """Return a bar chart of the share of the budget that each residual space gets, largest first.

    If the plan measures tables instead, each table has a bar.  All bars after the first `MAX_BARS`
    are replaced by their sum.
    """
    spaces = plan.by_space().sort_values("share", ascending=False, kind="stable")
    names = [set_name(a) for a in spaces["attributes"]]
    table = spaces.assign(attributes=names).rename(
        columns={"noise": "noise (standard deviation, counts)"}
    )
    shares, labels = table["share"].tolist()[:MAX_BARS], names[:MAX_BARS]
    if len(names) > MAX_BARS:
        shares = [*shares, table["share"].iloc[MAX_BARS:].sum()]
        labels = [*labels, f"{len(names) - MAX_BARS:,} smaller"]
    unit = "pcost" if plan.budget.pure_epsilon is None else "epsilon"
    figure = bars(
        shares,
        labels,
        f"share of the {unit}",
        f"%{{y}}: %{{x:.2%}} of the {unit}",
        tickformat=PERCENT,
    )
    return Picture(
        title="Budget by measurement",
        figure=figure,
        table=table,
        alt=f"Largest of {pluralize(len(names), 'share')}: {shares[0]:.1%} for {names[0]}.",
        note=f"{_bar_note(plan)} Shares of the {unit} sum to 100%.",
    )


def quality_picture(plan: Plan, scale: NoiseScale) -> Picture:
    """Return one stacked bar per group with its shares of publishable, doubtful and noise answers.

    ``scale`` contains the limits of these classes and the expected number of records.  The group
    with the smallest share of publishable answers comes first.  At most `MAX_BARS` groups are
    drawn.
    """
    table = quality_by_group(plan, scale)
    shown = table.head(MAX_BARS)
    names = table_names(plan.workload)
    labels = axis_labels([f"{g + 1}: {names[g]}" for g in shown["group"]])
    styles = {"publishable": (BLUE, ""), "doubtful": (ORANGE, "/"), "noise": (GREY, "x")}
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
            for name, (color, shape) in styles.items()
        ]
    )
    figure.update_layout(
        barmode="stack",
        height=110 + 22 * len(labels),
        legend=LEGEND,
    )
    figure.update_xaxes(tickformat=".0%", range=[0, 1.02])
    figure.update_yaxes(category_axis() | {"autorange": "reversed"})
    thinning_note = (
        f" The {MAX_BARS} worst of {len(table):,} tables are shown."
        if len(table) > MAX_BARS
        else ""
    )
    return Picture(
        title="Publishable answers, worst tables first",
        figure=set_margins(figure),
        table=table,
        alt=quality_text(plan, scale),
        note="The data lists the smallest publishable count per table." + thinning_note,
    )


MAX_BREAKDOWN_BARS = 16
BUDGET_FACTORS = (0.1, 0.25, 0.5, 1.0, 4.0, 10.0)  # multiples of the current pcost


def breakdown_picture(plan: Plan, group: int, query: int | None = None) -> Picture:
    """Return a bar chart of the share of a variance that each residual space contributes.

    The variance is that of query ``query`` of the group, or the mean over all queries of the group
    if ``query`` is None.  All bars after the first `MAX_BREAKDOWN_BARS` are replaced by their sum.
    """
    contributions = breakdown(plan, group, query)
    names = [set_name(a) for a in contributions["attributes"]]
    shares = contributions["share"].tolist()[:MAX_BREAKDOWN_BARS]
    labels = names[:MAX_BREAKDOWN_BARS]
    if len(names) > MAX_BREAKDOWN_BARS:
        shares = [*shares, 1.0 - sum(shares)]
        labels = [*labels, f"{len(names) - MAX_BREAKDOWN_BARS:,} smaller"]
    figure = bars(shares, labels, "share", "%{y}: %{x:.2%} of the variance", tickformat=PERCENT)
    subject = "query" if query is not None else "table"
    table = contributions.assign(attributes=names).rename(
        columns={"variance": "variance (counts²)", "noise": "noise (standard deviation, counts)"}
    )
    return Picture(
        title=f"Sources of error of this {subject}",
        figure=figure,
        table=table,
        alt=f"Shares of the variance: {breakdown_text(plan, group, query)}",
        note=_bar_note(plan),
    )


def interval_picture(
    plan: Plan,
    variance: float,
    format_budget: Callable[[Budget], str] = in_pcost,
    pcosts: Sequence[float] = (),
) -> Picture:
    """Return a line chart of the half-width of the 95% interval of a query at several budgets.

    Parameters
    ----------
    variance : variance of the query at the budget of the plan, in counts^2.
    format_budget : function that returns the text of a budget.
    pcosts : budgets that are drawn, in increasing order, among them that of the plan; by default,
        `BUDGET_FACTORS` times that of the plan.
    """
    drawn_pcosts = np.array(pcosts or [plan.budget.pcost * factor for factor in BUDGET_FACTORS])
    half_widths = half_width(plan, variance) * np.sqrt(plan.budget.pcost / drawn_pcosts)
    current_index = int(np.argmin(np.abs(drawn_pcosts - plan.budget.pcost)))
    larger_index = min(current_index + 1, len(drawn_pcosts) - 1)
    is_gaussian = plan.budget.pure_epsilon is None
    budget_texts = [format_budget(plan.budget.at(float(p))) for p in drawn_pcosts]
    trace = {
        "type": "scatter",
        "hovertemplate": "%{customdata}<br>answer ± %{y:,.4~r} counts<extra></extra>",
    }
    other_budgets = {
        "x": drawn_pcosts,
        "y": half_widths,
        "mode": "lines+markers",
        "line": {"color": BLUE},
        "marker": {"color": BLUE, "size": 7},
        "name": "other budgets",
        "customdata": budget_texts,
    }
    this_plan = {
        "x": [drawn_pcosts[current_index]],
        "y": [half_widths[current_index]],
        "mode": "markers",
        "marker": {"color": ORANGE, "size": 14, "symbol": "diamond"},
        "name": "this plan",
        "customdata": [budget_texts[current_index]],
    }
    layout = {
        "xaxis": budget_axis(drawn_pcosts.tolist(), budget_texts),
        "yaxis": {"title": {"text": "interval ± (counts)"}, "rangemode": "tozero"},
        "height": 300,
        "legend": LEGEND,
    }
    errors = half_widths / quantile(0.95, plan.budget.law)
    table = pd.DataFrame(
        {
            "budget": budget_texts,
            "pcost": drawn_pcosts,
            "standard error": errors,
            "95% interval ± (counts)": half_widths,
        }
    )
    return Picture(
        title="95% interval at other budgets",
        figure=set_margins(go.Figure([trace | other_budgets, trace | this_plan], layout)),
        table=table,
        alt=(
            f"± {format_number(half_widths[current_index])} counts at"
            f" {budget_texts[current_index]}, ± {format_number(half_widths[larger_index])} at"
            f" {budget_texts[larger_index]}."
        ),
        note=(
            "Half the error costs four times the pcost."
            if is_gaussian
            else "Half the error costs twice the epsilon."
        ),
    )


def distance_picture(plan: Plan, bound: MechanismBound) -> Picture:
    """Return a bar chart of the relative gaps of a plan to two lower bounds on the weighted RMSE.

    The first bound is for the plans that the certificate of the plan covers, the second one for all
    matrix mechanisms.
    """
    rmse = plan.weighted_rmse
    bounds = [plan.certificate.lower_bound, bound.rmse(plan)]
    labels = ["plans of this kind", "any matrix mechanism"]
    gaps = [max(rmse / limit - 1.0, 0.0) if limit > 0.0 else math.nan for limit in bounds]
    axis = "gap to the lower bound"
    figure = bars(gaps, labels, axis, "%{y}: %{x:.2%} above the bound", tickformat=PERCENT)
    figure.update_xaxes(range=[0.0, max(0.01, 1.05 * float(np.nanmax([0.0, *gaps])))])
    table = pd.DataFrame({"bound for": labels, "lower bound (counts)": bounds, "gap": gaps})
    texts = [
        f"{label} {percent_rounded_up(gap)}"
        for label, gap in zip(labels, gaps, strict=True)
        if not math.isnan(gap)
    ]
    return Picture(
        title="Gap to the lower bounds",
        figure=figure,
        table=table.assign(**{"this plan (counts)": rmse}),
        alt=f"Gap of the weighted RMSE to the bound for {', for '.join(texts)}.",
        note=f"Bound for any matrix mechanism: {bound.how}.",
    )
