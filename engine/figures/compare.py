"""Figures of comparisons of mechanisms and of publication methods.

Pictures of a comparison: the ranking against the bound, all distributions together, and A against B.

A picture of ways to publish, side by side at several budgets.
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

from engine._format import amount, how_many, number, set_name
from engine.analysis.compare import Comparison
from engine.analysis.error_distribution import Spread
from engine.analysis.plan_comparison import check_same_queries, ratios
from engine.figures.base import (
    GREY,
    SYMBOLS,
    Picture,
    fitting,
    framed,
    heat_map,
    in_pcost,
    label_places,
    mechanism_look,
    wrapped,
)
from engine.figures.errors import QUANTILES, error_grid, grid_figure, spread_axes
from engine.mechanisms import title_of
from engine.plans import Plan
from engine.privacy import Budget
from engine.workload import Workload

WIDE = 20.0  # largest over smallest, from which an axis is logarithmic
WIDTH = 290  # pixels between the axes of a picture on a narrow screen, or beside another one, at least
MARKS = 12  # marks on one distribution
# blue, pale, vermilion: better, the same, worse; told apart with every common colour vision
DIVERGING = ((0.0, "#0072b2"), (0.5, "#f2f2f2"), (1.0, "#d55e00"))
EVEN = 1e-4  # share of the error up to which mechanisms are told to be equally exact
FAR, VERY_FAR = 2.0, 5.0  # times the bound, up to which mechanisms are drawn, or named
COLUMNS_SHOWN = 30  # groups of a map
SAME = 1e-6
UNITS = {"rmse": "RMSE", "max_std": "largest standard error", "gap": "over the bound", "peak_mb": "peak memory (MB)"}


def ranked(found: Comparison) -> pd.DataFrame:
    """Return the mechanisms that have a result, best first, with the columns of `compare` in words."""
    done = found.frame[found.frame["status"] == "ok"]
    return done.drop(columns="status").rename(columns=UNITS).reset_index(drop=True)


def refused(found: Comparison) -> pd.DataFrame:
    """Return the mechanisms without a result, each with its reason."""
    left = found.frame[found.frame["status"] != "ok"]
    named = left.assign(mechanism=[title_of(str(label)) for label in left["mechanism"]])
    return named[["mechanism", "status"]].rename(columns={"status": "reason"}).reset_index(drop=True)


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


@dataclass(frozen=True, kw_only=True)
class _Standing:
    """Mechanisms of a comparison by their error over the bound, or over the best of them where no bound is known.

    `near` are those that a picture from 1 on can show, best first; `far` are the others.
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
        """What the far ones are, in words."""
        large = [label for label in self.far if self.over[label] > VERY_FAR]
        some = [title_of(label) for label in self.far if label not in large]
        words = [f"Over {FAR:g} times: {', '.join(some)}."] if some else []
        return " ".join([*words, f"Over {VERY_FAR:g} times: {len(large)}."] if large else words)


def _standing(found: Comparison) -> _Standing:
    done = found.frame[found.frame["status"] == "ok"]
    labels = [str(label) for label in done["mechanism"]]
    gaps = dict(zip(labels, map(float, done["gap"]), strict=True))
    plain = dict(zip(labels, map(float, done["rmse"]), strict=True))
    # a bound is on the weighted RMSE, which is what is told where weights make it another number
    sizes = {label: found.bound * (1.0 + gaps[label]) for label in labels} if found.bound > 0 else plain
    if all(not sizes[one] < math.inf or abs(sizes[one] / plain[one] - 1.0) < 1e-6 for one in labels):
        sizes = plain
    least = min(sizes.values(), default=1.0)
    over = {label: 1.0 + gaps[label] if found.bound > 0 else sizes[label] / least for label in labels}
    order = sorted(labels, key=over.__getitem__)
    most = max(FAR, VERY_FAR * min(over.values(), default=1.0) if min(over.values(), default=1.0) > FAR else 0.0)
    axis = "times the bound" if found.bound > 0 else "times the best of these"
    return _Standing(
        near=tuple(label for label in order if over[label] <= most),
        far=tuple(label for label in order if not over[label] <= most),
        over=over,
        sizes=sizes,
        axis=axis,
    )


def ranking_picture(found: Comparison) -> Picture:
    """Error of every mechanism over the bound that no matrix mechanism can go below, as dots from 1 on, best first."""
    table, standing = ranked(found), _standing(found)
    drawn: list[dict[str, Any]] = []
    rows: dict[str, str] = {}
    gaps = dict(zip(table["mechanism"], table["over the bound"], strict=True))
    for label in standing.near:
        seen, text = mechanism_look(label), fitting([title_of(label)])[0]
        words = f"{amount(standing.sizes[label])} counts, {gap_words(float(gaps[label]))}"
        rows[text] = f"{wrapped(text)}<br>{words.replace(' over the bound', ' over')}"  # the axis says of what
        way = {"x": [1.0, standing.over[label]], "y": [text] * 2, "mode": "lines", "line": {"color": GREY, "width": 2}}
        mark = {
            "x": [standing.over[label]],
            "y": [text],
            "mode": "markers",
            "marker": {"color": seen.color, "symbol": seen.symbol, "size": 13},
            "hovertemplate": f"{text}<br>{words}<extra></extra>",
            "meta": label,
        }
        drawn += [{"type": "scatter", "hoverinfo": "skip"} | way, {"type": "scatter"} | mark]
    width = standing.reach - 1.0
    bound = {"type": "line", "x0": 1.0, "x1": 1.0, "xref": "x", "y0": 0, "y1": 1, "yref": "y domain"}
    # numbers stand below names, where no screen is too narrow for them
    ticks = {"tickvals": list(rows), "ticktext": list(rows.values())}
    layout = {
        "shapes": [bound | {"line": {"color": GREY, "dash": "dash", "width": 3}}],
        "xaxis": {
            "title": {"text": standing.axis},
            "range": [1.0 - 0.05 * width, standing.reach + 0.05 * width],
        },
        "yaxis": {"autorange": "reversed", "type": "category", "automargin": True} | ticks,
        "height": 110 + 50 * len(standing.near),
        "showlegend": False,
    }
    best = min(standing.sizes, key=lambda label: standing.over[label])
    claim = f", {gap_words(float(gaps[best]))}" if found.bound > 0 else ""
    even = [label for label in standing.sizes if standing.over[label] <= standing.over[best] * (1.0 + EVEN)]
    number = how_many(len(table), "mechanism")
    who = f"{title_of(best)} is the most exact of {number}"
    if len(even) > 1:
        who = (
            f"{len(even):,} of {number} are the most exact"
            if len(even) < len(table)
            else f"All {number} are equally exact"
        )
    return Picture(
        title="Who answers these queries best",
        figure=framed(go.Figure(drawn, layout)),
        table=table.assign(mechanism=[title_of(str(label)) for label in table["mechanism"]]),
        alt=f"{who} with {amount(standing.sizes[best])} counts{claim}.",
        note=" ".join(filter(None, [standing.folded(), found.statement])),
    )


def effort_picture(found: Comparison) -> Picture:
    """Error over the bound against the seconds that planning took, one mark a mechanism."""
    table, standing = ranked(found).set_index("mechanism"), _standing(found)
    height = max(300, 110 + 50 * len(standing.near))
    room, times = 0.15 * (standing.reach - 1.0), [math.log10(float(table["seconds"][label])) for label in standing.near]
    ends = [min(times, default=0.0) - 0.4, max(times, default=0.0) + 0.4]
    texts = [wrapped(fitting([title_of(label)])[0]) for label in standing.near]
    places = label_places(
        [(time - ends[0]) / (ends[1] - ends[0]) * WIDTH for time in times],
        [(standing.over[label] - 1.0 + room) / (standing.reach - 1.0 + 2.0 * room) * height for label in standing.near],
        texts,
        across=WIDTH,
    )
    drawn = []
    for label, text, place in zip(standing.near, texts, places, strict=True):
        seen, seconds = mechanism_look(label), float(table["seconds"][label])
        mark = {
            "type": "scatter",
            "x": [seconds],
            "y": [standing.over[label]],
            "mode": "markers+text" if place else "markers",
            "text": text,
            "name": text,
            "showlegend": not place,  # what has no room beside its mark is named below
            "textposition": place or "top center",
            "cliponaxis": False,
            "marker": {"color": seen.color, "symbol": seen.symbol, "size": 13},
            "hovertemplate": f"{text}<br>%{{y:.4g}} times after %{{x:.3g}} s<extra></extra>",
        }
        drawn.append(mark)
    up = {"title": {"text": standing.axis}, "range": [1.0 - room, standing.reach + room], "automargin": True}
    layout = {
        "xaxis": {"title": {"text": "seconds to plan"}, "type": "log", "range": ends},
        "yaxis": up,
        "height": height,
        "showlegend": not all(places),
        "legend": {"orientation": "h", "y": -0.3},
    }
    quick = min(standing.near, key=lambda label: float(table["seconds"][label]), default="")
    rows = [(title_of(label), float(table["seconds"][label]), standing.over[label]) for label in table.index]
    return Picture(
        title="What exactness costs in time",
        figure=framed(go.Figure(drawn, layout)),
        table=pd.DataFrame(rows, columns=["mechanism", "seconds", standing.axis]),
        alt=f"{title_of(quick)} is the quickest of those drawn." if quick else "None is near enough to be drawn.",
        note="Further down is more exact, further left is quicker. " + standing.folded(),
    )


def where_picture(found: Comparison, workload: Workload) -> Picture:
    """RMSE of every group under every mechanism over the best of them: who loses where."""
    standing = _standing(found)
    labels = [label for label in (*standing.near, *standing.far) if label in found.groups]
    drawn = max(1, sum(label in standing.near for label in labels))
    errors = np.array([found.groups[label] for label in labels])
    with np.errstate(invalid="ignore", divide="ignore"):
        losing = np.where(errors > 0.0, errors / errors.min(axis=0), 1.0)
    worst = np.minimum(np.nan_to_num(losing[:drawn], nan=VERY_FAR), VERY_FAR).max(axis=0)
    telling = np.argsort(-worst, kind="stable")[:COLUMNS_SHOWN]
    names = [f"{g}: {set_name(workload.groups[g].attributes)}" for g in range(len(workload.groups))]
    titles = [title_of(label) for label in labels]
    shown = losing[:drawn, telling]
    figure = heat_map(
        np.minimum(shown, FAR),
        (titles[:drawn], [names[g] for g in telling]),
        ("", "group"),
        "%{y}<br>%{x}<br>%{customdata:.3g} times the best here",
        "times<br>the best",
    )
    figure.update_traces(zmin=1.0, zmax=max(1.1, min(FAR, float(np.nanmax(shown)))), customdata=shown)
    if len(telling) <= 12:
        figure.update_traces(text=[[f"{x:.2f}" for x in row] for row in shown], texttemplate="%{text}")
    rows = fitting(titles[:drawn])
    figure.update_yaxes(tickvals=rows, ticktext=[wrapped(row) for row in rows])
    figure.update_layout(height=min(620, 190 + 34 * drawn))
    table = pd.DataFrame({"group": names} | {title: losing[k] for k, title in enumerate(titles)})
    wins = np.isclose(losing, 1.0, rtol=SAME).sum(axis=1)
    more = f" The {COLUMNS_SHOWN} groups where they differ most are drawn." if len(names) > COLUMNS_SHOWN else ""
    return Picture(
        title="Who loses where: error of each group over its best mechanism here",
        figure=figure,
        table=table,
        alt="Groups for which no other is more exact: "
        + ", ".join(f"{title} {number(int(k))}" for title, k in zip(titles, wins, strict=True))
        + f", of {number(len(names))}.",
        note=f"Brighter is worse; {FAR:g} stands for all that is more.{more} {standing.folded()}",
    )


def budgets_picture(found: Comparison, budget: Budget, say: Callable[[Budget], str] = in_pcost) -> Picture:
    """Error of every mechanism at other budgets, in the words of ``say``, one line each, in counts.

    Every dot has as its data the words, the label of the mechanism, and the pcost.
    """
    standing = _standing(found)
    pcosts = [float(pcost) for pcost in budget.pcost * np.logspace(-1.0, 1.0, 9)]
    words = [say(budget.at(pcost)) for pcost in pcosts]
    pure = "" if budget.pure_epsilon is None else ", which is twice the epsilon,"
    figure, table = go.Figure(), {"budget": words, "pcost": pcosts}
    for label in standing.near:
        seen, text = mechanism_look(label), fitting([title_of(label)])[0]
        table[title_of(label)] = standing.sizes[label] * np.sqrt(budget.pcost / np.array(pcosts))
        figure.add_scatter(
            x=pcosts,
            y=table[title_of(label)],
            mode="lines+markers",
            name=text,
            line={"color": seen.color, "dash": seen.dash},
            marker={"color": seen.color, "symbol": seen.symbol, "size": 9},
            customdata=[(word, label, pcost) for word, pcost in zip(words, pcosts, strict=True)],
            hovertemplate=f"{text}<br>%{{customdata[0]}}: %{{y:.4g}} counts<extra></extra>",
        )
    figure.update_xaxes(title="budget", type="log", tickvals=pcosts[::2], ticktext=words[::2])
    figure.update_yaxes(title="typical error (counts)", type="log")
    figure.update_layout(height=380, legend={"orientation": "h", "y": -0.25})
    return Picture(
        title="Error at other budgets",
        figure=framed(figure),
        table=pd.DataFrame(table),
        alt=f"Four times the pcost{pure} halves the error of every mechanism, so their order is the same at every "
        "budget of this kind.",
        note="Scaled from the present budget; what a release adds for rounding to its grids is below what is drawn.",
    )


def spreads_picture(spreads: Mapping[str, Spread]) -> Picture:
    """Share of all queries with a standard error at or below each size, one line a mechanism on one axis."""
    found = {label: one.thinned() for label, one in spreads.items()}
    figure = go.Figure()
    for place, (label, one) in enumerate(found.items()):
        seen, finite = mechanism_look(label), one.errors[np.isfinite(one.errors)]
        text = fitting([title_of(label)])[0]
        style = {"color": seen.color, "dash": seen.dash, "width": 2.5, "shape": "hv"}
        figure.add_scatter(
            x=finite.astype(np.float32),  # finer than a screen, at half the bytes
            y=one.shares[: len(finite)].astype(np.float32),
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
    axes = spread_axes(wide=len(finite) > 0 and float(finite.max()) > WIDE * float(finite.min()) > 0)
    axes["xaxis"]["rangemode"] = "normal"
    figure.update_layout(axes, height=480, legend={"orientation": "h", "y": -0.22})
    table = pd.DataFrame({"share of queries": [f"{q:.0%}" for q in QUANTILES]})
    for label, one in found.items():
        table[title_of(label)] = [one.quantile(q) for q in QUANTILES]
    middle = min(found, key=lambda label: found[label].quantile(0.5))
    tail = min(found, key=lambda label: found[label].quantile(0.95))
    return Picture(
        title="How standard errors spread over the queries",
        figure=framed(figure),
        table=table,
        alt=f"Half of the queries are within {amount(found[middle].quantile(0.5))} counts under {title_of(middle)}, "
        f"the smallest such number; 95% are within {amount(found[tail].quantile(0.95))} counts under {title_of(tail)}.",
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


OPEN = "-open"  # unbiased, in plotly's words for a mark that is not filled


def standing_picture(
    rows: pd.DataFrame,
    turns: pd.DataFrame,
    words: Sequence[str],
    budget: Budget,
    say: Callable[[Budget], str] = in_pcost,
) -> Picture:
    """Errors of ways to publish at several budgets, a line each; crosses where the order changes.

    ``rows``, ``turns`` and ``words`` are those of a `PublishedComparison`.
    """
    done = rows[rows["status"] == "ok"]
    pcosts = sorted(set(done["pcost"]))
    said = {pcost: say(budget.at(pcost)) for pcost in pcosts}
    figure, table, lines = go.Figure(), pd.DataFrame({"budget": [said[p] for p in pcosts]}), {}
    for place, (way, own) in enumerate(done.groupby("way", sort=False)):
        label, kind = str(own["label"].iloc[0]), str(own["kind"].iloc[0])
        seen, text = mechanism_look(label), fitting([str(way)])[0]
        color, symbol = (seen.color, seen.symbol) if label else (GREY, SYMBOLS[place % len(SYMBOLS)])
        own = own.set_index("pcost").sort_index()
        lines[way] = own["error"]
        table[f"{way} ({kind})"] = [float(own["error"].get(p, np.nan)) for p in pcosts]
        figure.add_scatter(
            x=list(own.index),
            y=own["error"],
            error_y={"type": "data", "array": own["spread"], "thickness": 1},
            mode="lines+markers",
            name=f"{text} ({kind})",
            line={"color": color, "dash": "solid" if label and kind != "unbiased" else "dot"},
            marker={"color": color, "symbol": symbol + (OPEN if kind == "unbiased" else ""), "size": 9},
            customdata=[said[p] for p in own.index],
            hovertemplate=f"{text} ({kind})<br>%{{customdata}}: %{{y:.2%}} of the counts<extra></extra>",
        )
    if len(turns):
        at = [
            np.exp(np.interp(np.log(t["pcost"]), np.log(lines[t["below"]].index), np.log(lines[t["below"]])))
            for _, t in turns.iterrows()
        ]
        figure.add_scatter(
            x=turns["pcost"],
            y=at,
            mode="markers",
            name="the order changes",
            marker={"symbol": "x-thin", "size": 12, "line": {"width": 2, "color": "black"}},
            hovertext=[f"{t['below']} below, {t['above']} above" for _, t in turns.iterrows()],
            hoverinfo="text",
        )
    figure.update_xaxes(title="budget", type="log", tickvals=pcosts, ticktext=[said[p] for p in pcosts])
    figure.update_yaxes(title="share of the counts that is missed", type="log", tickformat=".2%")
    figure.update_layout(height=440, legend={"orientation": "h", "y": -0.25})
    return Picture(
        title="Published error, simulated",
        figure=framed(figure),
        table=table,
        alt=words[0] if words else "At all these budgets the order is the same, or too close to call.",
        note="Means of rehearsals on the reference, with their standard errors: other records have other errors. Those "
        "of unbiased answers alone are proven; what is fitted is biased.",
    )
