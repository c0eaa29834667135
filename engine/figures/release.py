"""Figures of engine results as pure functions: each returns a picture with its table, its caption and its alt text.

Standard errors are in counts, the unit of the answers.  Heat maps use Cividis, everything else the Okabe-Ito colours,
and colour never tells anything alone.  At most 512 x 512 cells and 20,000 points are drawn; a thinned picture says so.
"""

from __future__ import annotations

import html

import pandas as pd
import plotly.graph_objects as go

from engine._format import cost, how_many, remainder
from engine.analysis.coverage import Coverage
from engine.figures.base import BLUE, GREEN, GREY, MAX_SIDE, ORANGE, Picture, fitting, framed

REHEARSAL = {
    "text": "REHEARSAL",
    "showarrow": False,
    "font": {"size": 44, "color": "rgba(127,127,127,0.35)"},
    "x": 0.5,
    "y": 0.5,
    "xref": "paper",
    "yref": "paper",
    "textangle": -20,
}


def spending_picture(total: float, spent: float, asked: float, counts: str = "pcost") -> Picture:
    """Budget of a dataset in pcost, or what its total counts: spent before, by this release, and left after it."""
    left = total - spent
    fits = asked <= left  # one that does not is refused, and leaves what there is
    after = left - asked if fits else left
    pieces = [
        (f"was spent: {cost(spent)}", spent, GREY, "/"),
        (f"this release: {cost(asked)}{'' if fits else ' (too much)'}", asked if fits else 0.0, ORANGE, "x"),
        (f"{'will be' if fits else 'is'} left: {remainder(after)}", after, GREEN, ""),
    ]
    bars = [
        {
            "type": "bar",
            "x": [size],
            "y": ["budget"],
            "name": text,
            "orientation": "h",
            "marker": {"color": color, "pattern": {"shape": shape}},
            "hovertemplate": f"{text} {counts}<extra></extra>",
        }
        for text, size, color, shape in pieces
    ]
    layout = {
        "barmode": "stack",
        "height": 150,
        "legend": {"orientation": "h", "traceorder": "normal", "y": 1.6},
        "xaxis": {"title": {"text": f"privacy cost ({counts})"}, "range": [0, total]},
        "yaxis": {"showticklabels": False},
    }
    words = f"Of a budget of {cost(total)} {counts}, {cost(spent)} was spent and this release takes {cost(asked)}; "
    words += f"{remainder(after)} will be left." if fits else f"that is more than what is left, {remainder(after)}."
    parts = ["was spent", "this release", "will be left" if fits else "is left"]
    table = pd.DataFrame({"part": parts, counts: [spent, asked, after]})
    return Picture(title="What this spends", figure=framed(go.Figure(bars, layout)), table=table, alt=words)


def _lines(queries: pd.Series[str]) -> list[str]:
    """Queries as labels with a line for each condition: long ones in one line leave the dots no room."""
    return [text.replace(" and ", "<br>") for text in fitting(queries.tolist())]


def _named(queries: pd.Series[str]) -> tuple[list[str], str | None]:
    """Labels of queries on an axis and its title: what is asked of one attribute stands there without its name."""
    parts = [text.partition(sign) for text in queries for sign in (" = ", " in ") if sign in text][: len(queries)]
    names = {name for name, _, _ in parts}
    if len(names) != 1 or len(parts) != len(queries) or any(" and " in cell for _, _, cell in parts):
        return _lines(queries), None
    return fitting([cell for _, _, cell in parts]), html.escape(names.pop())


def _labels(texts: list[str]) -> int:
    """How many labels fit on an axis: fewer when they have more lines."""
    return 16 // (1 + max((text.count("<br>") for text in texts), default=0)) or 1


def answers_picture(answers: pd.DataFrame, *, rehearsal: bool) -> Picture:
    """Answers with their intervals, in counts; a column `truth`, which only a rehearsal may have, is drawn as well."""
    shown = answers.head(MAX_SIDE)
    half = (shown["high"] - shown["low"]) / 2
    texts, name = _named(shown["query"])
    noisy = {
        "type": "scatter",
        "x": texts,
        "y": shown["answer"],
        "mode": "markers",
        "name": "noisy answer with interval",
        "marker": {"color": BLUE, "size": 6},
        "error_y": {"type": "data", "array": half, "color": BLUE, "thickness": 1.2, "width": 0},
        "hovertemplate": "%{x}<br>%{y:,.1f} counts<extra></extra>",
    }
    layout = {
        "xaxis": {"type": "category", "nticks": _labels(texts), "automargin": True, "title": {"text": name}},
        "yaxis": {"title": {"text": "records (counts)"}},
        "legend": {"orientation": "h", "y": 1.12},
        "annotations": [REHEARSAL] if rehearsal else None,
    }
    covered, drawn = "", [noisy]
    if "truth" in shown:
        mark = {"color": ORANGE, "symbol": "line-ew-open", "size": 12, "line": {"width": 3}}
        truth = {"type": "scatter", "x": texts, "y": shown["truth"], "mode": "markers", "name": "truth", "marker": mark}
        drawn = [truth, noisy]
        inside = int(((shown["low"] <= shown["truth"]) & (shown["truth"] <= shown["high"])).sum())
        covered = f" {inside:,} of the {len(shown):,} intervals drawn hold the truth."
    kind = "Rehearsal: noisy" if rehearsal else "Noisy"
    alt = f"{kind} answers to {how_many(len(shown), 'query', 'queries')}.{covered}"
    note = f"The first {MAX_SIDE} answers of this page are drawn." if len(answers) > MAX_SIDE else ""
    return Picture(title="Answers", figure=framed(go.Figure(drawn, layout)), table=answers, alt=alt, note=note)


def published_picture(
    answers: pd.DataFrame, *, rehearsal: bool, unbiased: bool = True, published: bool = True
) -> Picture:
    """Unbiased answers and what is published of them, each with its own intervals, in counts; either may be left out.

    Columns are those of `engine.postprocess.uncertainty.Uncertainty.answers`; what is suppressed is not drawn.
    """
    shown = answers.head(MAX_SIDE)
    texts = _lines(shown["query"])
    drawn = [
        ("unbiased, exact interval", unbiased, shown["answer"], shown["low"], shown["high"], BLUE, "circle"),
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
    for name, wanted, value, low, high, color, symbol in drawn:
        if wanted:
            bars = {"type": "data", "array": high - value, "arrayminus": value - low, "color": color}
            figure.add_scatter(
                x=texts,
                y=value,
                mode="markers",
                name=name,
                marker={"color": color, "symbol": symbol, "size": 7},
                error_y=bars | {"thickness": 1.2, "width": 0},
                hovertemplate="%{x}<br>%{y:,.1f} counts<extra></extra>",
            )
    figure.update_xaxes(type="category", nticks=_labels(texts), automargin=True)
    figure.update_yaxes(title="records (counts)")
    figure.update_layout(legend={"orientation": "h", "y": 1.12}, scattermode="group")
    if rehearsal:
        figure.add_annotation(**REHEARSAL)
    below, hidden = int((shown["answer"] < 0).sum()), int(shown["published"].isna().sum())
    kind = "Rehearsal on simulated records: " if rehearsal else ""
    alt = (
        f"{kind}{how_many(len(shown), 'query', 'queries')}. {how_many(below, 'unbiased answer')} below zero, no "
        f"published one; {hidden:,} published suppressed and not drawn."
    )
    note = f"The first {MAX_SIDE} answers of this page are drawn." if len(answers) > MAX_SIDE else ""
    return Picture(title="Unbiased and published", figure=framed(figure), table=answers, alt=alt, note=note)


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
