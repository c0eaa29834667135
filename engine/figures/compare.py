"""Figures of comparisons of mechanisms and plans.

Mechanisms: ranking against the lower bound, planning time, error by group, error at other budgets,
and distributions of standard errors.  Plans: ratios of standard errors of two plans.

Comparison of mechanisms as a standalone HTML page.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from engine._format import format_number, number, pluralize, set_name
from engine.analysis.compare import Comparison
from engine.analysis.error_distribution import ErrorDistribution
from engine.analysis.plan_comparison import check_same_queries, ratios
from engine.figures.base import (
    GREY,
    Picture,
    axis_labels,
    heat_map,
    in_pcost,
    label_places,
    log_axis,
    mechanism_style,
    set_margins,
    wrap_label,
)
from engine.figures.errors import QUANTILES, error_grid, grid_figure, spread_axes
from engine.mechanisms import title_of
from engine.plans import Plan
from engine.privacy import Budget
from engine.workload import Workload

LOG_AXIS_RATIO = 20.0  # an axis is logarithmic if the maximum exceeds this multiple of the minimum
MIN_PLOT_WIDTH_PX = 290  # smallest width of a plot area on a narrow screen
MARKERS_PER_LINE = 12
# Blue: better, pale: equal, vermilion: worse; suitable for color vision deficiencies.
DIVERGING = ((0.0, "#0072b2"), (0.5, "#f2f2f2"), (1.0, "#d55e00"))
EQUAL_ERROR_TOLERANCE = 1e-4  # relative; closer mechanisms are reported as equally accurate
MAX_DRAWN_RATIO, MAX_NAMED_RATIO = 2.0, 5.0  # multiples of the bound
MAX_MAP_GROUPS = 30
TIE_TOLERANCE = 1e-6
COLUMN_TITLES = {
    "rmse": "RMSE",
    "max_std": "largest standard error",
    "gap": "over the bound",
    "peak_mb": "peak memory (MB)",
}


def ranking(comparison: Comparison) -> pd.DataFrame:
    """Return the mechanisms with a result, best first, with columns renamed for display."""
    successful = comparison.frame[comparison.frame["status"] == "ok"]
    return successful.drop(columns="status").rename(columns=COLUMN_TITLES).reset_index(drop=True)


def refusals(comparison: Comparison) -> pd.DataFrame:
    """Return the mechanisms without a result and the reasons."""
    failed = comparison.frame[comparison.frame["status"] != "ok"]
    titled = failed.assign(mechanism=[title_of(str(label)) for label in failed["mechanism"]])
    return (
        titled[["mechanism", "status"]].rename(columns={"status": "reason"}).reset_index(drop=True)
    )


def costs(comparison: Comparison) -> dict[str, str]:
    """Return the error, planning time and memory of every mechanism with a result, as text."""
    return {
        str(
            row["mechanism"]
        ): f"{format_number(row['rmse'])} counts, {row['seconds']:.1f} s, {row['peak_mb']:,.0f} MB"
        for _, row in comparison.frame[comparison.frame["status"] == "ok"].iterrows()
    }


def gap_words(gap: float) -> str:
    """Return the relative excess over the lower bound as text.

    >>> gap_words(0.0), gap_words(0.0312), gap_words(7.1), gap_words(math.nan)
    ('at the bound', '3.1% over the bound', '8.10 times the bound', 'no bound known')
    """
    if math.isnan(gap):
        return "no bound known"
    if gap < 5e-5:
        return "at the bound"
    if gap >= 1.0:
        return f"{format_number(1.0 + gap)} times the bound"
    return f"{gap:.1%} over the bound" if gap >= 5e-4 else "less than 0.1% over the bound"


@dataclass(frozen=True, kw_only=True)
class _RelativeErrors:
    """Errors of the mechanisms of a comparison, relative to the bound, or to the best mechanism.

    The best mechanism is the reference if there is no bound above 0.

    Attributes
    ----------
    near : labels of the mechanisms that are drawn, best first.
    far : labels of the mechanisms whose errors are too large to be drawn.
    over : maps a label to its error relative to the reference.
    sizes : maps a label to its error in counts.
    axis : axis title of relative errors.
    """

    near: tuple[str, ...]
    far: tuple[str, ...]
    over: Mapping[str, float]
    sizes: Mapping[str, float]
    axis: str

    @property
    def reach(self) -> float:
        return max([1.1, *(1.02 * self.over[label] for label in self.near)])

    def folded(self) -> str:
        """Return sentences about the mechanisms that are not drawn."""
        large = [label for label in self.far if self.over[label] > MAX_NAMED_RATIO]
        titles = [title_of(label) for label in self.far if label not in large]
        sentences = [f"Over {MAX_DRAWN_RATIO:g} times: {', '.join(titles)}."] if titles else []
        return " ".join(
            [*sentences, f"Over {MAX_NAMED_RATIO:g} times: {len(large)}."] if large else sentences
        )


def _relative_errors(comparison: Comparison) -> _RelativeErrors:
    successful = comparison.frame[comparison.frame["status"] == "ok"]
    labels = [str(label) for label in successful["mechanism"]]
    gaps = dict(zip(labels, map(float, successful["gap"]), strict=True))
    rmses = dict(zip(labels, map(float, successful["rmse"]), strict=True))
    # The bound is on the weighted RMSE; the plain RMSE is shown if the two agree.
    sizes = (
        {label: comparison.bound * (1.0 + gaps[label]) for label in labels}
        if comparison.bound > 0
        else rmses
    )
    if all(
        not sizes[mechanism] < math.inf or abs(sizes[mechanism] / rmses[mechanism] - 1.0) < 1e-6
        for mechanism in labels
    ):
        sizes = rmses
    smallest = min(sizes.values(), default=1.0)
    over = {
        label: 1.0 + gaps[label] if comparison.bound > 0 else sizes[label] / smallest
        for label in labels
    }
    order = sorted(labels, key=over.__getitem__)
    limit = max(
        MAX_DRAWN_RATIO,
        (
            MAX_NAMED_RATIO * min(over.values(), default=1.0)
            if min(over.values(), default=1.0) > MAX_DRAWN_RATIO
            else 0.0
        ),
    )
    axis = "times the bound" if comparison.bound > 0 else "times the best"
    return _RelativeErrors(
        near=tuple(label for label in order if over[label] <= limit),
        far=tuple(label for label in order if not over[label] <= limit),
        over=over,
        sizes=sizes,
        axis=axis,
    )


def ranking_picture(comparison: Comparison) -> Picture:
    """Return a dot plot of errors relative to the lower bound for matrix mechanisms, best first."""
    table, relative = ranking(comparison), _relative_errors(comparison)
    traces: list[dict[str, Any]] = []
    rows: dict[str, str] = {}
    gaps = dict(zip(table["mechanism"], table["over the bound"], strict=True))
    for label in relative.near:
        style, text = mechanism_style(label), axis_labels([title_of(label)])[0]
        error_text = (
            f"{format_number(relative.sizes[label])} counts, {gap_words(float(gaps[label]))}"
        )
        rows[text] = f"{wrap_label(text)}<br>{error_text.replace(' over the bound', ' over')}"
        stem = {
            "x": [1.0, relative.over[label]],
            "y": [text] * 2,
            "mode": "lines",
            "line": {"color": GREY, "width": 2},
        }
        mark = {
            "x": [relative.over[label]],
            "y": [text],
            "mode": "markers",
            "marker": {"color": style.color, "symbol": style.symbol, "size": 13},
            "hovertemplate": f"{text}<br>{error_text}<extra></extra>",
            "meta": label,
        }
        traces += [{"type": "scatter", "hoverinfo": "skip"} | stem, {"type": "scatter"} | mark]
    width = relative.reach - 1.0
    bound = {
        "type": "line",
        "x0": 1.0,
        "x1": 1.0,
        "xref": "x",
        "y0": 0,
        "y1": 1,
        "yref": "y domain",
    }
    # Numbers are printed below the names, which also fits narrow screens.
    ticks = {"tickvals": list(rows), "ticktext": list(rows.values())}
    layout = {
        "shapes": [bound | {"line": {"color": GREY, "dash": "dash", "width": 3}}],
        "xaxis": {
            "title": {"text": relative.axis},
            "range": [1.0 - 0.05 * width, relative.reach + 0.05 * width],
        },
        "yaxis": {"autorange": "reversed", "type": "category", "automargin": True} | ticks,
        "height": 110 + 50 * len(relative.near),
        "showlegend": False,
    }
    best = min(relative.sizes, key=lambda label: relative.over[label])
    claim = f", {gap_words(float(gaps[best]))}" if comparison.bound > 0 else ""
    tied = [
        label
        for label in relative.sizes
        if relative.over[label] <= relative.over[best] * (1.0 + EQUAL_ERROR_TOLERANCE)
    ]
    number = pluralize(len(table), "mechanism")
    headline = f"{title_of(best)} is the most accurate of {number}"
    if len(tied) > 1:
        headline = (
            f"{len(tied):,} of {number} are the most accurate"
            if len(tied) < len(table)
            else f"All {number} are equally accurate"
        )
    return Picture(
        title="Error relative to the bound"
        if comparison.bound > 0
        else "Error relative to the best",
        figure=set_margins(go.Figure(traces, layout)),
        table=table.assign(mechanism=[title_of(str(label)) for label in table["mechanism"]]),
        alt=f"{headline} with {format_number(relative.sizes[best])} counts{claim}.",
        note=" ".join(filter(None, [relative.folded(), comparison.statement])),
    )


def effort_picture(comparison: Comparison) -> Picture:
    """Return a scatter plot of relative error against planning time, one marker per mechanism."""
    table, relative = ranking(comparison).set_index("mechanism"), _relative_errors(comparison)
    height = max(300, 110 + 50 * len(relative.near))
    margin, times = (
        0.15 * (relative.reach - 1.0),
        [math.log10(float(table["seconds"][label])) for label in relative.near],
    )
    x_range = [min(times, default=0.0) - 0.4, max(times, default=0.0) + 0.4]
    texts = [wrap_label(axis_labels([title_of(label)])[0]) for label in relative.near]
    text_positions = label_places(
        [(time - x_range[0]) / (x_range[1] - x_range[0]) * MIN_PLOT_WIDTH_PX for time in times],
        [
            (relative.over[label] - 1.0 + margin) / (relative.reach - 1.0 + 2.0 * margin) * height
            for label in relative.near
        ],
        texts,
        across=MIN_PLOT_WIDTH_PX,
    )
    traces = []
    for label, text, text_position in zip(relative.near, texts, text_positions, strict=True):
        style, seconds = mechanism_style(label), float(table["seconds"][label])
        mark = {
            "type": "scatter",
            "x": [seconds],
            "y": [relative.over[label]],
            "mode": "markers+text" if text_position else "markers",
            "text": text,
            "name": text,
            "showlegend": not text_position,  # a label that does not fit goes into the legend
            "textposition": text_position or "top center",
            "cliponaxis": False,
            "marker": {"color": style.color, "symbol": style.symbol, "size": 13},
            "hovertemplate": f"{text}<br>%{{y:.4g}} times after %{{x:.3g}} s<extra></extra>",
        }
        traces.append(mark)
    y_axis = {
        "title": {"text": relative.axis},
        "range": [1.0 - margin, relative.reach + margin],
        "automargin": True,
    }
    layout = {
        "xaxis": (
            log_axis(10.0 ** x_range[0], 10.0 ** x_range[1])
            | {"title": {"text": "seconds to plan"}, "range": x_range}
        ),
        "yaxis": y_axis,
        "height": height,
        "showlegend": not all(text_positions),
        "legend": {"orientation": "h", "y": -0.3},
    }
    fastest = min(relative.near, key=lambda label: float(table["seconds"][label]), default="")
    rows = [
        (title_of(label), float(table["seconds"][label]), relative.over[label])
        for label in table.index
    ]
    return Picture(
        title="Error and planning time",
        figure=set_margins(go.Figure(traces, layout)),
        table=pd.DataFrame(rows, columns=["mechanism", "seconds", relative.axis]),
        alt=(
            f"{title_of(fastest)} is the fastest of those shown."
            if fastest
            else "No mechanism is close enough to be shown."
        ),
        note=("Lower is more accurate, further left is faster. " + relative.folded()).strip(),
    )


def where_picture(comparison: Comparison, workload: Workload) -> Picture:
    """Return a heat map of the RMSE of each group, relative to the best mechanism for the group."""
    relative = _relative_errors(comparison)
    labels = [label for label in (*relative.near, *relative.far) if label in comparison.groups]
    n_drawn = max(1, sum(label in relative.near for label in labels))
    errors = np.array([comparison.groups[label] for label in labels])
    with np.errstate(invalid="ignore", divide="ignore"):
        loss_ratios = np.where(errors > 0.0, errors / errors.min(axis=0), 1.0)
    worst = np.minimum(
        np.nan_to_num(loss_ratios[:n_drawn], nan=MAX_NAMED_RATIO), MAX_NAMED_RATIO
    ).max(axis=0)
    shown_groups = np.argsort(-worst, kind="stable")[:MAX_MAP_GROUPS]
    names = [f"{g}: {set_name(workload.groups[g].attributes)}" for g in range(len(workload.groups))]
    titles = [title_of(label) for label in labels]
    shown = loss_ratios[:n_drawn, shown_groups]
    figure = heat_map(
        np.minimum(shown, MAX_DRAWN_RATIO),
        (titles[:n_drawn], [names[g] for g in shown_groups]),
        ("", "table"),
        "%{y}<br>%{x}<br>%{customdata:.3g} times the best",
        "times<br>the best",
    )
    figure.update_traces(
        zmin=1.0, zmax=max(1.1, min(MAX_DRAWN_RATIO, float(np.nanmax(shown)))), customdata=shown
    )
    if len(shown_groups) <= 12:
        figure.update_traces(
            text=[[f"{x:.2f}" for x in row] for row in shown], texttemplate="%{text}"
        )
    rows = axis_labels(titles[:n_drawn])
    figure.update_yaxes(tickvals=rows, ticktext=[wrap_label(row) for row in rows])
    figure.update_layout(height=min(620, 190 + 34 * n_drawn))
    table = pd.DataFrame(
        {"group": names} | {title: loss_ratios[k] for k, title in enumerate(titles)}
    )
    wins = np.isclose(loss_ratios, 1.0, rtol=TIE_TOLERANCE).sum(axis=1)
    more = (
        f" The {MAX_MAP_GROUPS} tables with the largest differences are shown."
        if len(names) > MAX_MAP_GROUPS
        else ""
    )
    return Picture(
        title="Relative error by table",
        figure=figure,
        table=table,
        alt="Tables where it is the most accurate: "
        + ", ".join(f"{title} {number(int(k))}" for title, k in zip(titles, wins, strict=True))
        + f", of {number(len(names))}.",
        note=(
            f"Brighter = less accurate (capped at {MAX_DRAWN_RATIO:g}x).{more} {relative.folded()}"
        ),
    )


def budgets_picture(
    comparison: Comparison, budget: Budget, say: Callable[[Budget], str] = in_pcost
) -> Picture:
    """Return the errors of all mechanisms at other budgets, in counts, one line per mechanism.

    ``say`` formats a budget.  The custom data of a marker is (budget text, mechanism label, pcost).
    """
    relative = _relative_errors(comparison)
    pcosts = [float(pcost) for pcost in budget.pcost * np.logspace(-1.0, 1.0, 9)]
    budget_texts = [say(budget.at(pcost)) for pcost in pcosts]
    pure = "" if budget.pure_epsilon is None else ", which is twice the epsilon,"
    figure, table = go.Figure(), {"budget": budget_texts, "pcost": pcosts}
    for label in relative.near:
        style, text = mechanism_style(label), axis_labels([title_of(label)])[0]
        table[title_of(label)] = relative.sizes[label] * np.sqrt(budget.pcost / np.array(pcosts))
        figure.add_scatter(
            x=pcosts,
            y=table[title_of(label)],
            mode="lines+markers",
            name=text,
            line={"color": style.color, "dash": style.dash},
            marker={"color": style.color, "symbol": style.symbol, "size": 9},
            customdata=[
                (budget_text, label, pcost)
                for budget_text, pcost in zip(budget_texts, pcosts, strict=True)
            ],
            hovertemplate=f"{text}<br>%{{customdata[0]}}: %{{y:.4g}} counts<extra></extra>",
        )
    figure.update_xaxes(
        title="budget", type="log", tickvals=pcosts[::2], ticktext=budget_texts[::2]
    )
    sizes = [relative.sizes[label] for label in relative.near]
    errors = [size * math.sqrt(budget.pcost / p) for size in sizes for p in pcosts]
    y_axis = log_axis(min(errors), max(errors)) if errors and min(errors) > 0 else {"type": "log"}
    figure.update_yaxes(title="typical error (counts)", **y_axis)
    figure.update_layout(height=380, legend={"orientation": "h", "y": -0.25})
    return Picture(
        title="Error at other budgets",
        figure=set_margins(figure),
        table=pd.DataFrame(table),
        alt=(
            f"Four times the pcost{pure} halves every error; the order of the mechanisms does not"
            " change."
        ),
        note=("Scaled from the current budget."),
    )


def spreads_picture(spreads: Mapping[str, ErrorDistribution]) -> Picture:
    """Return the cumulative distributions of standard errors, one line per mechanism."""
    distributions = {label: distribution.thinned() for label, distribution in spreads.items()}
    figure = go.Figure()
    for position, (label, distribution) in enumerate(distributions.items()):
        style, finite = (
            mechanism_style(label),
            distribution.errors[np.isfinite(distribution.errors)],
        )
        text = axis_labels([title_of(label)])[0]
        line_style = {"color": style.color, "dash": style.dash, "width": 2.5, "shape": "hv"}
        figure.add_scatter(
            # Single precision suffices for drawing and halves the size.
            x=finite.astype(np.float32),
            y=distribution.shares[: len(finite)].astype(np.float32),
            mode="lines",
            line=line_style,
            legendgroup=label,
            showlegend=False,
            hovertemplate=(
                f"{text}: %{{y:.1%}} of the queries<br>have %{{x:.4g}} counts or"
                " less<extra></extra>"
            ),
        )
        # Markers of different mechanisms have different heights, so that they do not overlap.
        heights = [
            (k + (position + 0.5) / len(distributions)) / MARKERS_PER_LINE
            for k in range(MARKERS_PER_LINE)
        ]
        mark = {"color": style.color, "symbol": style.symbol, "size": 9}
        figure.add_scatter(
            x=[distribution.quantile(height) for height in heights],
            y=heights,
            mode="markers",
            marker=mark,
            legendgroup=label,
            showlegend=False,
            hoverinfo="skip",
        )
        legend_entry = {"x": [None], "y": [None], "mode": "lines+markers", "marker": mark}
        figure.add_scatter(**legend_entry, line=line_style, name=text, legendgroup=label)
    finite = np.concatenate(
        [
            distribution.errors[np.isfinite(distribution.errors)]
            for distribution in distributions.values()
        ]
    )
    is_log = len(finite) > 0 and float(finite.max()) > LOG_AXIS_RATIO * float(finite.min()) > 0
    axes = spread_axes((float(finite.min()), float(finite.max())) if is_log else None)
    axes["xaxis"]["rangemode"] = "normal"
    figure.update_layout(axes, height=480, legend={"orientation": "h", "y": -0.22})
    table = pd.DataFrame({"share of queries": [f"{q:.0%}" for q in QUANTILES]})
    for label, distribution in distributions.items():
        table[title_of(label)] = [distribution.quantile(q) for q in QUANTILES]
    best_median = min(distributions, key=lambda label: distributions[label].quantile(0.5))
    best_tail = min(distributions, key=lambda label: distributions[label].quantile(0.95))
    return Picture(
        title="Distribution of standard errors",
        figure=set_margins(figure),
        table=table,
        alt=(
            "Smallest median:"
            f" {format_number(distributions[best_median].quantile(0.5))} counts"
            f" ({title_of(best_median)}). Smallest 95% quantile:"
            f" {format_number(distributions[best_tail].quantile(0.95))} counts"
            f" ({title_of(best_tail)})."
        ),
        note="Further left is more accurate. " + next(iter(distributions.values())).how,
    )


def ratio_picture(
    plans: Mapping[str, Plan],
    group: int,
    across: Sequence[int] | None = None,
    fixed: Sequence[int] | None = None,
) -> Picture:
    """Return a figure of ratios of standard errors of two plans for the queries of a group.

    Parameters
    ----------
    plans : two plans by name; the errors of the first are divided by those of the second.
    across, fixed : queries to draw, as in `error_grid`.
    """
    (first_name, first), (second_name, second) = plans.items()
    check_same_queries(first, second)
    grid = error_grid(first.workload, group, across, fixed)
    errors = [grid.standard_errors(plan) for plan in (first, second)]
    error_ratios = ratios(*errors)
    figure = grid_figure(
        grid, error_ratios, f"{html.escape(first_name)} / {html.escape(second_name)}", ""
    )
    shown = error_ratios[grid.shown]
    if len(grid.axes) > 1:
        log_range = max(
            float(np.abs(np.log2(shown[(shown > 0) & np.isfinite(shown)])).max(initial=0.0)), 0.01
        )
        ticks = [2.0 ** (log_range * k / 2) for k in range(-2, 3)]
        figure.update_traces(
            z=np.log2(np.where(error_ratios > 0, error_ratios, np.nan)),
            customdata=error_ratios,
            colorscale=DIVERGING,
            zmin=-log_range,
            zmax=log_range,
            hovertemplate=f"{grid.hover}<br>ratio %{{customdata:.4g}}<extra></extra>",
            colorbar={
                "title": {"text": "ratio of<br>errors"},
                "tickvals": [math.log2(t) for t in ticks],
                "ticktext": [f"{t:.3g}" for t in ticks],
            },
        )
    elif len(grid.axes) == 1:
        figure.add_hline(y=1.0, line={"color": GREY, "dash": "dash"})
    worse, better = float(np.mean(shown > 1.0 + 1e-6)), float(np.mean(shown < 1.0 - 1e-6))
    columns = {
        f"standard error, {label}": e[grid.shown]
        for label, e in zip((first_name, second_name), errors, strict=True)
    }
    return Picture(
        title=(
            f"{first_name} against {second_name}: ratio of standard errors of "
            f"{f'all {grid.what}' if grid.axes else grid.what}"
        ),
        figure=figure,
        table=pd.DataFrame(grid.columns() | columns | {"ratio": shown}),
        alt=(
            f"Of {shown.size:,} {grid.what}, {first_name} is less accurate for {worse:.1%} and more"
            f" accurate for {better:.1%}; the ratio goes from {format_number(float(shown.min()))} to"
            f" {format_number(float(shown.max()))}."
        ),
        note=(
            f"Above 1 (vermilion on a map) {first_name} has the larger error, below 1 (blue)"
            f" {second_name}. {grid.note}"
        ),
    )


STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0"
    " 1rem;color:#0f141a}table{border-collapse:collapse;margin:1rem"
    " 0;font-size:.9rem}caption{text-align:left;font-weight:bold}th,td{border:1px solid"
    " #76838f;padding:.2rem .6rem;text-align:left}"
)


def comparison_page(comparison: Comparison, workload: Workload, budget: Budget) -> str:
    """Return a comparison as an HTML page: request, ranking, planning time and errors by group.

    All names are HTML-escaped.  The page contains no numbers computed from records.
    """
    pieces = [
        (
            "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>Comparison of"
            " mechanisms</title>"
        ),
        f"<style>{STYLE}</style></head><body><h1>Comparison of mechanisms</h1>",
        _text(
            f"{pluralize(workload.queries, 'query', 'queries')} in"
            f" {pluralize(len(workload.groups), 'table')} on"
            f" {pluralize(len(workload.schema), 'attribute')}. No records were read."
        ),
        _text(budget.describe()),
    ]
    if comparison.plans:
        pictures = (
            ranking_picture(comparison),
            effort_picture(comparison),
            where_picture(comparison, workload),
        )
        pieces += [
            _section(picture) for picture in (*pictures, budgets_picture(comparison, budget))
        ]
    if len(reasons := refusals(comparison)):
        pieces.append(_table("Mechanisms without a result", reasons))
    return "\n".join([*pieces, "</body></html>", ""])


def _section(picture: Picture) -> str:
    return "\n".join(
        [f"<h2>{html.escape(picture.title)}</h2>", *map(_text, (picture.alt, picture.note))]
    ) + _table(picture.title, picture.table)


def _table(title: str, table: pd.DataFrame) -> str:
    head = "".join(f"<th scope='col'>{html.escape(str(name))}</th>" for name in table.columns)
    rows = (
        "".join(f"<td>{_cell(value)}</td>" for value in row)
        for row in table.itertuples(index=False)
    )
    body = "\n".join(f"<tr>{row}</tr>" for row in rows)
    return f"<table><caption>{html.escape(title)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: object) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else format_number(value)
    return html.escape(
        number(value) if isinstance(value, int) and not isinstance(value, bool) else str(value)
    )


def _text(words: str) -> str:
    return f"<p>{html.escape(words)}</p>" if words else ""
