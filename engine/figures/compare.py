"""Pictures of a comparison: the ranking against the bound, all distributions together, and A against B."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from engine.figures.charts import GREY, Picture, fitting, framed, thinned
from engine.figures.errors import QUANTILES, error_grid, grid_figure, spread_axes
from engine.insight import Comparison, check_same_queries, ratios, spread, variants
from engine.mechanisms import known
from engine.plans import Plan
from engine.texts import amount

WIDE = 20.0  # largest over smallest, from which an axis is logarithmic
POINTS = 900  # of one distribution: as many as a wide screen shows; eight take 150 kB
MARKS = 12  # marks on one distribution
# blue, pale, vermilion: better, the same, worse; told apart with every common colour vision
DIVERGING = ((0.0, "#0072b2"), (0.5, "#f2f2f2"), (1.0, "#d55e00"))
PATTERN = {"fillmode": "overlay", "fgcolor": "rgba(255,255,255,0.75)", "solidity": 0.25, "size": 8}
UNITS = {"rmse": "RMSE", "max_std": "largest standard error", "gap": "over the bound", "peak_mb": "peak memory (MB)"}


def ranked(found: Comparison) -> pd.DataFrame:
    """Return the mechanisms that have a result, best first, with the columns of `compare` in words."""
    done = found.frame[found.frame["status"] == "ok"]
    return done.drop(columns="status").rename(columns=UNITS).reset_index(drop=True)


def refused(found: Comparison) -> pd.DataFrame:
    """Return the mechanisms without a result, each with its reason."""
    left = found.frame[found.frame["status"] != "ok"]
    return left[["mechanism", "status"]].rename(columns={"status": "reason"}).reset_index(drop=True)


def costs(found: Comparison) -> dict[str, str]:
    """Return the mechanisms that have a result, best first, each with its error and what planning it took in words."""
    return {
        str(row["mechanism"]): f"{amount(row['rmse'])} counts, {row['seconds']:.1f} s, {row['peak_mb']:,.0f} MB"
        for _, row in found.frame[found.frame["status"] == "ok"].iterrows()
    }


def gap_words(gap: float) -> str:
    """Return how far above the proven bound a plan is, in words.

    >>> gap_words(0.0), gap_words(0.0312), gap_words(7.1), gap_words(math.nan)
    ('at the bound', '3.1% over the bound', '8.10 times the bound', 'no bound known')
    """
    if math.isnan(gap):
        return "no bound known"
    if gap < 5e-5:
        return "at the bound"
    if gap >= 1.0:
        return f"{amount(1.0 + gap)} times the bound"
    return f"{gap:.1%} over the bound" if gap >= 5e-4 else "less than 0.1% over the bound"


def ranking_picture(found: Comparison) -> Picture:
    """RMSE of every mechanism as bars, best first, with the bound that no matrix mechanism can go below as a line."""
    table = ranked(found)
    gaps = table["over the bound"].tolist()
    # a bound is on the weighted RMSE, which is what is drawn where weights make it another number
    weighted = [found.bound * (1.0 + gap) for gap in gaps]
    plain = [float(size) for size in table["RMSE"]]
    is_weighted = found.bound > 0 and any(abs(w / p - 1.0) > 1e-6 for w, p in zip(weighted, plain, strict=True))
    sizes = weighted if is_weighted else plain
    order = sorted(range(len(sizes)), key=lambda k: sizes[k])
    labels = fitting([str(table["mechanism"][k]) for k in order])
    figure = go.Figure()
    for label, k in zip(labels, order, strict=True):
        seen = mechanism_look(str(table["mechanism"][k]))
        figure.add_bar(
            x=[sizes[k] if math.isfinite(sizes[k]) else None],
            y=[label],
            orientation="h",
            text=f" {amount(sizes[k])}, {gap_words(gaps[k])}",
            textposition="outside",
            cliponaxis=False,
            marker={"color": seen.color, "pattern": {"shape": seen.pattern, **PATTERN}},
            hovertemplate=f"{label}<br>%{{x:.5g}} counts, {gap_words(gaps[k])}<extra></extra>",
            showlegend=False,
        )
    finite = [size for size in sizes if math.isfinite(size)] or [1.0]  # a query nobody measures has no finite error
    low, high = min([*finite, found.bound] if found.bound > 0 else finite), max(finite)
    wide = high > WIDE * low > 0
    if found.bound > 0:
        name = f"proven bound {amount(found.bound)}: no matrix mechanism is below it"
        ends = [labels[0], labels[-1]]
        style = {"color": GREY, "dash": "dash", "width": 3}
        figure.add_scatter(x=[found.bound] * 2, y=ends, mode="lines", name=name, line=style, showlegend=True)
        figure.data[-1].update(hovertemplate=f"{name}<extra></extra>")
    what = "weighted RMSE (counts)" if is_weighted else "RMSE over all queries (counts)"
    reach = [math.log10(low) - 0.3, math.log10(high) + 0.6 * math.log10(high / low)] if wide else [0.0, 1.45 * high]
    figure.update_xaxes(title=what, type="log" if wide else "linear", range=reach)
    figure.update_yaxes(autorange="reversed", type="category", automargin=True)
    figure.update_layout(
        height=130 + 30 * len(labels), bargap=0.35, barmode="overlay", legend={"orientation": "h", "y": 1.12}
    )
    best = str(table["mechanism"][order[0]])
    return Picture(
        title="Who answers these queries best",
        figure=framed(figure).update_layout(margin_t=40),
        table=table,
        alt=f"{best} is the most exact of {len(table)} mechanisms with {amount(sizes[order[0]])} counts, "
        f"{gap_words(gaps[order[0]])}.",
        note=found.statement + (" The axis is logarithmic." if wide else ""),
    )


def spreads_picture(plans: Mapping[str, Plan]) -> Picture:
    """Share of all queries with a standard error at or below each size, one line a mechanism on one axis."""
    found = {label: spread(plan) for label, plan in plans.items()}
    figure = go.Figure()
    for place, (label, one) in enumerate(found.items()):
        seen, finite = mechanism_look(label), one.errors[np.isfinite(one.errors)]
        drawn = thinned(len(finite), POINTS)
        text = fitting([label])[0]
        style = {"color": seen.color, "dash": seen.dash, "width": 2.5, "shape": "hv"}
        figure.add_scatter(
            x=finite[drawn],
            y=one.shares[drawn],
            mode="lines",
            line=style,
            legendgroup=label,
            showlegend=False,
            hovertemplate=f"{text}: %{{y:.1%}} of the queries<br>have %{{x:.4g}} counts or less<extra></extra>",
        )
        # marks of different mechanisms stand at different shares, so that they do not cover each other
        heights = [(k + (place + 0.5) / len(found)) / MARKS for k in range(MARKS)]
        mark = {"color": seen.color, "symbol": seen.symbol, "size": 9}
        figure.add_scatter(
            x=[one.quantile(height) for height in heights],
            y=heights,
            mode="markers",
            marker=mark,
            legendgroup=label,
            showlegend=False,
            hoverinfo="skip",
        )
        sample = {"x": [None], "y": [None], "mode": "lines+markers", "marker": mark}
        figure.add_scatter(**sample, line=style, name=text, legendgroup=label)
    finite = np.concatenate([one.errors[np.isfinite(one.errors)] for one in found.values()])
    spread_axes(figure, wide=len(finite) > 0 and float(finite.max()) > WIDE * float(finite.min()) > 0)
    figure.update_xaxes(rangemode="normal")
    figure.update_layout(height=480, legend={"orientation": "h", "y": -0.22})
    table = pd.DataFrame({"share of queries": [f"{q:.0%}" for q in QUANTILES]})
    for label, one in found.items():
        table[label] = [one.quantile(q) for q in QUANTILES]
    middle = min(found, key=lambda label: found[label].quantile(0.5))
    tail = min(found, key=lambda label: found[label].quantile(0.95))
    return Picture(
        title="How standard errors spread over the queries",
        figure=framed(figure),
        table=table,
        alt=f"Half of the queries are within {amount(found[middle].quantile(0.5))} counts under {middle}, the smallest "
        f"such number; 95% are within {amount(found[tail].quantile(0.95))} counts under {tail}.",
        note="A line further left is better. " + next(iter(found.values())).how,
    )


def ratio_picture(
    plans: Mapping[str, Plan], group: int, across: Sequence[int] | None = None, fixed: Sequence[int] | None = None
) -> Picture:
    """Standard errors of the first of two plans over those of the second, query by query of one group."""
    (one, first), (other, second) = plans.items()
    check_same_queries(first, second)
    grid = error_grid(first.workload, group, across, fixed)
    errors = [grid.standard_errors(plan) for plan in (first, second)]
    found = ratios(*errors)
    figure = grid_figure(grid, found, f"{html.escape(one)} / {html.escape(other)}", "")
    shown = found[grid.kept]
    if len(grid.axes) > 1:
        reach = max(float(np.abs(np.log2(shown[(shown > 0) & np.isfinite(shown)])).max(initial=0.0)), 0.01)
        ticks = [2.0 ** (reach * k / 2) for k in range(-2, 3)]
        figure.update_traces(
            z=np.log2(np.where(found > 0, found, np.nan)),
            customdata=found,
            colorscale=DIVERGING,
            zmin=-reach,
            zmax=reach,
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
    columns = {f"standard error, {label}": e[grid.kept] for label, e in zip((one, other), errors, strict=True)}
    return Picture(
        title=f"{one} against {other}: ratio of standard errors of {f'all {grid.what}' if grid.axes else grid.what}",
        figure=figure,
        table=pd.DataFrame(grid.columns() | columns | {"ratio": shown}),
        alt=f"Of {shown.size:,} {grid.what}, {one} is less exact for {worse:.1%} and more exact for {better:.1%}; the "
        f"ratio goes from {amount(float(shown.min()))} to {amount(float(shown.max()))}.",
        note=f"Above 1, in vermilion on a map, {one} has the larger error; below 1, in blue, {other} has. {grid.note}",
    )


COLORS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#7f7f7f")  # Okabe-Ito without yellow
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
PATTERNS = ("", "/", "x", ".", "-", "+")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star")


@dataclass(frozen=True, kw_only=True)
class Look:
    """Colour and marks of one mechanism with its options, in plotly's words."""

    color: str
    dash: str
    pattern: str
    symbol: str


def mechanism_name(label: str) -> str:
    """Return the name of the mechanism in a label such as ``name (option=value)``.

    >>> mechanism_name("querysmasher (centers=tuned)")
    'querysmasher'
    """
    return label.split(" (", 1)[0]


def mechanism_look(label: str) -> Look:
    """Return the look of a label of a comparison; a mechanism has the same colour whatever its options.

    >>> mechanism_look("querysmasher").color == mechanism_look("querysmasher (centers=tuned)").color
    True
    >>> mechanism_look("querysmasher").dash == mechanism_look("querysmasher (centers=tuned)").dash
    False
    """
    names = [m.name for m in known.MECHANISMS]
    name = mechanism_name(label)
    place = names.index(name) if name in names else len(names)
    siblings = [other for other in variants() if mechanism_name(other) == name]
    within = siblings.index(label) if label in siblings else len(siblings)
    turn = place // len(COLORS) * 2 + within
    return Look(
        color=COLORS[place % len(COLORS)],
        dash=DASHES[turn % len(DASHES)],
        pattern=PATTERNS[turn % len(PATTERNS)],
        symbol=SYMBOLS[(place + within) % len(SYMBOLS)],
    )
