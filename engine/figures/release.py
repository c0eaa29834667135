"""Figures of releases, and `plot`, the default figure of a plan, comparison or measurement.

The figures of releases show budget spending, answers, published tables and interval coverage.
Answers and standard errors are in counts.  At most 512 answers are drawn; the note of the picture
says so if some are omitted.
"""

from __future__ import annotations

import html

import pandas as pd
import plotly.graph_objects as go

from engine._format import cost, pluralize, remaining_text
from engine._validation import check_int, check_type
from engine.analysis.compare import Comparison
from engine.analysis.error_distribution import Coverage
from engine.errors import PlanError
from engine.figures.base import (
    BLUE,
    GREEN,
    GREY,
    MAX_SIDE,
    ORANGE,
    Picture,
    axis_labels,
    set_margins,
)
from engine.figures.compare import ranking_picture
from engine.figures.errors import error_picture
from engine.plans import Plan
from engine.release import Measurement

REHEARSAL_WATERMARK = {
    "text": "REHEARSAL",
    "showarrow": False,
    "font": {"size": 44, "color": "rgba(127,127,127,0.35)"},
    "x": 0.5,
    "y": 0.5,
    "xref": "paper",
    "yref": "paper",
    "textangle": -20,
}


def spending_picture(total: float, spent: float, requested: float, unit: str = "pcost") -> Picture:
    """Return a stacked bar of the total budget of a dataset.

    Its segments are the spent budget, the budget requested by this release and the remaining
    budget, all in ``unit``.
    """
    available = total - spent
    fits = requested <= available  # a release that exceeds the budget is refused
    remaining = available - requested if fits else available
    segments = [
        (f"was spent: {cost(spent)}", spent, GREY, "/"),
        (
            f"this release: {cost(requested)}{'' if fits else ' (too much)'}",
            requested if fits else 0.0,
            ORANGE,
            "x",
        ),
        (f"{'will be' if fits else 'is'} left: {remaining_text(remaining)}", remaining, GREEN, ""),
    ]
    bars = [
        {
            "type": "bar",
            "x": [size],
            "y": ["budget"],
            "name": text,
            "orientation": "h",
            "marker": {"color": color, "pattern": {"shape": shape}},
            "hovertemplate": f"{text} {unit}<extra></extra>",
        }
        for text, size, color, shape in segments
    ]
    layout = {
        "barmode": "stack",
        "height": 150,
        "legend": {"orientation": "h", "traceorder": "normal", "y": 1.6},
        "xaxis": {"title": {"text": f"privacy cost ({unit})"}, "range": [0, total]},
        "yaxis": {"showticklabels": False},
    }
    alt = (
        f"Of a budget of {cost(total)} {unit}, {cost(spent)} was spent and this release takes"
        f" {cost(requested)}; "
    )
    alt += (
        f"{remaining_text(remaining)} will be left."
        if fits
        else f"that is more than what is left, {remaining_text(remaining)}."
    )
    parts = ["was spent", "this release", "will be left" if fits else "is left"]
    table = pd.DataFrame({"part": parts, unit: [spent, requested, remaining]})
    return Picture(
        title="What this spends", figure=set_margins(go.Figure(bars, layout)), table=table, alt=alt
    )


def _lines(queries: pd.Series[str]) -> list[str]:
    """Return query labels with one line per condition, because long labels reduce the plot area."""
    return [text.replace(" and ", "<br>") for text in axis_labels(queries.tolist())]


def _axis_labels(queries: pd.Series[str]) -> tuple[list[str], str | None]:
    """Return axis labels of queries, and the axis title or None.

    If all queries are on one attribute, its name is the title and is omitted from the labels.
    """
    conditions = [
        text.partition(sign) for text in queries for sign in (" = ", " in ") if sign in text
    ][: len(queries)]
    names = {name for name, _, _ in conditions}
    if (
        len(names) != 1
        or len(conditions) != len(queries)
        or any(" and " in cell for _, _, cell in conditions)
    ):
        return _lines(queries), None
    return axis_labels([cell for _, _, cell in conditions]), html.escape(names.pop())


def _max_ticks(texts: list[str]) -> int:
    """Return the number of labels that fit on an axis, given their number of lines."""
    return 16 // (1 + max((text.count("<br>") for text in texts), default=0)) or 1


def answers_picture(answers: pd.DataFrame, *, rehearsal: bool) -> Picture:
    """Return a figure of noisy answers with their confidence intervals, in counts.

    Parameters
    ----------
    answers : columns query, answer, low and high; rehearsals may have a column truth with the exact
        counts, which is drawn as well.
    rehearsal : whether the picture is marked as a rehearsal.
    """
    shown = answers.head(MAX_SIDE)
    half_width = (shown["high"] - shown["low"]) / 2
    texts, name = _axis_labels(shown["query"])
    noisy = {
        "type": "scatter",
        "x": texts,
        "y": shown["answer"],
        "mode": "markers",
        "name": "noisy answer with interval",
        "marker": {"color": BLUE, "size": 6},
        "error_y": {
            "type": "data",
            "array": half_width,
            "color": BLUE,
            "thickness": 1.2,
            "width": 0,
        },
        "hovertemplate": "%{x}<br>%{y:,.1f} counts<extra></extra>",
    }
    layout = {
        "xaxis": {
            "type": "category",
            "nticks": _max_ticks(texts),
            "automargin": True,
            "title": {"text": name},
        },
        "yaxis": {"title": {"text": "records (counts)"}},
        "legend": {"orientation": "h", "y": 1.12},
        "annotations": [REHEARSAL_WATERMARK] if rehearsal else None,
    }
    coverage_text, traces = "", [noisy]
    if "truth" in shown:
        mark = {"color": ORANGE, "symbol": "line-ew-open", "size": 12, "line": {"width": 3}}
        truth = {
            "type": "scatter",
            "x": texts,
            "y": shown["truth"],
            "mode": "markers",
            "name": "truth",
            "marker": mark,
        }
        traces = [truth, noisy]
        n_covered = int(
            ((shown["low"] <= shown["truth"]) & (shown["truth"] <= shown["high"])).sum()
        )
        coverage_text = f" {n_covered:,} of the {len(shown):,} intervals drawn hold the truth."
    kind = "Rehearsal: noisy" if rehearsal else "Noisy"
    alt = f"{kind} answers to {pluralize(len(shown), 'query', 'queries')}.{coverage_text}"
    note = (
        f"The first {MAX_SIDE} answers of this page are drawn." if len(answers) > MAX_SIDE else ""
    )
    return Picture(
        title="Answers",
        figure=set_margins(go.Figure(traces, layout)),
        table=answers,
        alt=alt,
        note=note,
    )


def published_picture(
    answers: pd.DataFrame, *, rehearsal: bool, unbiased: bool = True, published: bool = True
) -> Picture:
    """Return a figure of unbiased and published answers with confidence intervals, in counts.

    Suppressed answers, which have no published value, are not drawn.

    Parameters
    ----------
    answers : table with the columns of `engine.postprocess.uncertainty.Uncertainty.answers`.
    rehearsal : whether the picture is marked as a rehearsal.
    unbiased, published : whether these answers are drawn.
    """
    shown = answers.head(MAX_SIDE)
    texts = _lines(shown["query"])
    series = [
        (
            "unbiased, exact interval",
            unbiased,
            shown["answer"],
            shown["low"],
            shown["high"],
            BLUE,
            "circle",
        ),
        (
            "published, approximate interval",
            published,
            shown["published"],
            shown["published_low"],
            shown["published_high"],
            ORANGE,
            "diamond",
        ),
    ]
    figure = go.Figure()
    for name, is_drawn, value, low, high, color, symbol in series:
        if is_drawn:
            bars = {
                "type": "data",
                "array": high - value,
                "arrayminus": value - low,
                "color": color,
            }
            figure.add_scatter(
                x=texts,
                y=value,
                mode="markers",
                name=name,
                marker={"color": color, "symbol": symbol, "size": 7},
                error_y=bars | {"thickness": 1.2, "width": 0},
                hovertemplate="%{x}<br>%{y:,.1f} counts<extra></extra>",
            )
    figure.update_xaxes(type="category", nticks=_max_ticks(texts), automargin=True)
    figure.update_yaxes(title="records (counts)")
    figure.update_layout(legend={"orientation": "h", "y": 1.12}, scattermode="group")
    if rehearsal:
        figure.add_annotation(**REHEARSAL_WATERMARK)
    n_negative, n_suppressed = (
        int((shown["answer"] < 0).sum()),
        int(shown["published"].isna().sum()),
    )
    kind = "Rehearsal on simulated records: " if rehearsal else ""
    alt = (
        f"{kind}{pluralize(len(shown), 'query', 'queries')}."
        f" {pluralize(n_negative, 'unbiased answer')} below zero, no published one;"
        f" {n_suppressed:,} published suppressed and not drawn."
    )
    note = (
        f"The first {MAX_SIDE} answers of this page are drawn." if len(answers) > MAX_SIDE else ""
    )
    return Picture(
        title="Unbiased and published",
        figure=set_margins(figure),
        table=answers,
        alt=alt,
        note=note,
    )


def coverage_picture(coverage: Coverage) -> Picture:
    """Return a figure of the empirical against the nominal coverage of confidence intervals."""
    table = coverage.table
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
    return Picture(
        title="Do the intervals hold?",
        figure=set_margins(figure),
        table=table,
        alt=coverage.sentence,
    )


MAX_ANSWERS = 100  # more intervals are not legible


def plot(value: Plan | Comparison | Measurement, group: int = 0) -> go.Figure:
    """Return the default plotly figure of a plan, comparison or measurement, as in the app.

    For a plan, it shows the standard errors of the queries of a group; for a comparison, the
    ranking of the mechanisms; for a measurement, the first 100 answers of a group with intervals.
    Errors and answers are in counts.

    >>> from engine import Attribute, Budget, plan, Schema, Workload
    >>> workload = Workload(Schema([Attribute.of_size("age", 4)])).add("age", "prefix")
    >>> plot(plan(workload, Budget(pcost=1.0))).layout.yaxis.title.text
    'standard error (counts)'
    """
    allowed = "a Plan, a Measurement, or what comparison() returns"
    check_type(
        "what to plot", value, (Plan, Comparison, Measurement), give=allowed, error=PlanError
    )
    if isinstance(value, Comparison):
        return ranking_picture(value).figure
    if isinstance(value, Measurement):
        return answers_picture(
            value.answers(group, 0, MAX_ANSWERS), rehearsal=value.rehearsal
        ).figure
    check_int("number of the group", group, 0, len(value.workload.groups) - 1, error=PlanError)
    return error_picture(value, group).figure
