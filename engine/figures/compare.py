"""Figures that compare mechanisms or two plans, and a comparison as a standalone HTML page.

Figures of mechanisms: gap to the lower bound, planning time, error by group, error at other
budgets, distributions of standard errors.  Figure of two plans: ratios of their standard errors.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from engine._format import (
    GAP_COLUMNS,
    cost,
    deltas_as_powers,
    duration_text,
    format_number,
    number,
    percent,
    percent_rounded_up,
    pluralize,
)
from engine.analysis import table_names
from engine.analysis.compare import Comparison, check_same_queries, ratios
from engine.analysis.error_distribution import ErrorDistribution
from engine.figures.base import (
    GREY,
    LEGEND,
    PERCENT,
    SHARE_COLUMNS,
    Picture,
    axis_labels,
    budget_axis,
    category_axis,
    heat_map,
    in_pcost,
    label_places,
    log_axis,
    mechanism_style,
    set_margins,
    wrap_label,
)
from engine.figures.plans import QUANTILES, error_grid, grid_figure, spread_axes
from engine.mechanisms import title_of
from engine.plans import Plan
from engine.privacy import Budget
from engine.workload import Workload

LOG_AXIS_RATIO = 20.0  # an axis is logarithmic if its maximum exceeds this multiple of its minimum
MIN_PLOT_WIDTH_PX = 290  # width of the plot on a narrow screen
MARKERS_PER_LINE = 12
# From blue (better) over a pale color (equal) to vermilion (worse), a pair of colors that people
# with color vision deficiencies can distinguish.
DIVERGING = ((0.0, "#0072b2"), (0.5, "#f2f2f2"), (1.0, "#d55e00"))
EQUAL_ERROR_TOLERANCE = 1e-4  # mechanisms with a smaller relative difference are equally accurate
MAX_DRAWN_RATIO = 2.0  # mechanisms above this multiple of the reference (see `_Gaps`) are not drawn
# If the limit `MAX_DRAWN_RATIO` leaves no mechanism to compare with the reference, mechanisms up to
# this multiple of the best error are drawn.
# `where_picture` sorts its rows by their largest ratio, cut to this value.
MAX_RATIO_TO_BEST = 5.0
MAX_MAP_GROUPS = 20
RATIO_NOTE = "Error divided by that of the best mechanism for the table."
BUDGET_FACTORS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)  # multiples of the current pcost
TIE_TOLERANCE = 1e-6  # relative; mechanisms closer to the best one also count as best for a table
BOUND = "the bound"  # the lower bound on the error of every matrix mechanism
# Criteria by which mechanisms are ranked: columns of a comparison, and their titles.
CRITERIA = {"rmse": "Typical error", "max_std": "Largest error"}
COLUMN_TITLES = {
    "rmse": "RMSE",
    "max_std": "largest standard error",
    "gap": "over the bound",
    "peak_mb": "peak memory (MB)",
}


MARKER_SIZE_PX = 13


def ranking(comparison: Comparison) -> pd.DataFrame:
    """Return the table of the mechanisms with a result, best first, for display.

    It has the columns of ``comparison.frame`` except the status, renamed by `COLUMN_TITLES`.
    """
    successful = comparison.frame[comparison.frame["status"] == "ok"]
    return successful.drop(columns="status").rename(columns=COLUMN_TITLES).reset_index(drop=True)


def refusals(comparison: Comparison) -> pd.DataFrame:
    """Return a table of the mechanisms without a result.

    Columns: mechanism (its title) and reason.
    """
    failed = comparison.frame[comparison.frame["status"] != "ok"]
    titled = failed.assign(mechanism=[title_of(str(label)) for label in failed["mechanism"]])
    return (
        titled[["mechanism", "status"]].rename(columns={"status": "reason"}).reset_index(drop=True)
    )


def costs(comparison: Comparison) -> dict[str, str]:
    """Return the errors and planning time of every mechanism with a result as text, by label.

    The errors are the RMSE and the largest standard error, in counts.
    """
    texts = {}
    for _, row in comparison.frame[comparison.frame["status"] == "ok"].iterrows():
        error_text = f"{format_number(row['rmse'])} counts, largest {format_number(row['max_std'])}"
        texts[str(row["mechanism"])] = f"{error_text}, {duration_text(row['seconds'])}"
    return texts


def gap_words(gap: float, reference: str = BOUND) -> str:
    """Return as text by how much an error exceeds a reference.

    ``gap`` is the error divided by the reference, minus 1, or NaN if no bound is known.
    Percentages over the bound are rounded up, because they limit the distance to the optimum.

    >>> gap_words(0.0), gap_words(0.0312), gap_words(7.1), gap_words(math.nan)
    ('at the bound', '3.12% over the bound', '8.10 times the bound', 'no bound known')
    >>> gap_words(0.001111), gap_words(0.0651, "the best")
    ('0.12% over the bound', '6.51% over the best')
    """
    if math.isnan(gap):
        return "no bound known"
    if gap < 5e-5:
        return "at the bound" if reference == BOUND else reference
    if gap >= 1.0:
        return f"{format_number(1.0 + gap)} times {reference}"
    if reference == BOUND:
        return f"{percent_rounded_up(gap)} over {reference}"
    return f"{percent(gap, 2)} over {reference}"


@dataclass(frozen=True, kw_only=True)
class _Gaps:
    """Errors of the mechanisms of a comparison by one criterion, relative to a reference.

    The reference is the lower bound.  If no bound above 0 is known, or the criterion is the largest
    error, the reference is the smallest error instead.

    Attributes
    ----------
    drawn : labels of the mechanisms that are drawn, best first, in one tuple per row of the figure.
        Mechanisms share a row if they have the same RMSE for every table or, if the criterion is
        the largest error, the same largest error.
    omitted : labels of the mechanisms whose errors are too large to be drawn.
    gaps : maps the label of a mechanism to its error divided by the reference, minus 1.
    errors : maps the label of a mechanism to its error, in counts.
    reference : name of the reference.
    is_weighted : whether the errors and the bound are weighted RMSEs.
    """

    drawn: tuple[tuple[str, ...], ...]
    omitted: tuple[str, ...]
    gaps: Mapping[str, float]
    errors: Mapping[str, float]
    reference: str
    is_weighted: bool

    @property
    def labels(self) -> list[str]:
        """Labels of all mechanisms that are drawn, best first."""
        return [label for tied in self.drawn for label in tied]

    @property
    def largest(self) -> float:
        """End of the axis of gaps: 5% above the largest gap that is drawn, at least 0.02."""
        return max([0.02, *(1.05 * self.gaps[label] for label in self.labels)])

    def omitted_text(self) -> str:
        """Return a sentence with the mechanisms that are not drawn and their errors; "" if none."""
        if not self.omitted:
            return ""
        texts = [
            f"{title_of(label)}, {format_number(1.0 + self.gaps[label])} times {self.reference}"
            if self.gaps[label] < math.inf
            else f"{title_of(label)}, unbounded error"
            for label in self.omitted
        ]
        return f"Not drawn: {'; '.join(texts)}."


def _tied_labels(
    labels: Sequence[str], errors_by_label: Mapping[str, Sequence[float]]
) -> list[list[str]]:
    """Group labels so that the mechanisms of a list have the same errors, up to a tolerance."""
    ties: list[list[str]] = []
    for label in labels:
        errors = np.array(errors_by_label.get(label, ()))
        for tied in ties:
            others = np.array(errors_by_label.get(tied[0], ()))
            if len(errors) and np.allclose(errors, others, rtol=EQUAL_ERROR_TOLERANCE, atol=0.0):
                tied.append(label)
                break
        else:
            ties.append([label])
    return ties


def _marker(label: str) -> dict[str, Any]:
    """Return the Plotly marker of a mechanism; a wide line makes open symbols visible."""
    style = mechanism_style(label)
    line = {"color": style.color, "width": 2.5}
    return {"color": style.color, "symbol": style.symbol, "size": MARKER_SIZE_PX, "line": line}


def tied_titles(labels: Sequence[str]) -> str:
    """Return the titles of several mechanisms as one text, given their labels."""
    return ", ".join(title_of(label) for label in labels)


def tied_mechanisms(comparison: Comparison) -> list[str]:
    """Return the titles of the most accurate mechanisms, as counted by `ranking_picture`.

    If only one mechanism is the most accurate, the list is empty.
    """
    tied = _most_accurate(_gaps(comparison))
    return [title_of(label) for label in tied] if len(tied) > 1 else []


def all_tied(comparison: Comparison) -> bool:
    """Return whether several mechanisms are drawn and all are equally accurate for every table."""
    relative = _gaps(comparison)
    return len(relative.drawn) == 1 and len(relative.labels) > 1


def _gaps(comparison: Comparison, criterion: str = "rmse") -> _Gaps:
    """Return the errors of all mechanisms with a result, relative to the reference.

    ``criterion`` is a key of `CRITERIA`.
    """
    successful = comparison.frame[comparison.frame["status"] == "ok"]
    labels = [str(label) for label in successful["mechanism"]]
    bound_gaps = dict(zip(labels, map(float, successful["gap"]), strict=True))
    unweighted = dict(zip(labels, map(float, successful[criterion]), strict=True))
    has_bound = comparison.bound > 0 and criterion == "rmse"
    # The bound applies to the weighted RMSE.  Therefore the weighted RMSE is the error that is
    # shown if it differs from the unweighted RMSE for any mechanism.
    weighted = {label: comparison.bound * (1.0 + bound_gaps[label]) for label in labels}
    is_weighted = has_bound and any(
        weighted[label] < math.inf and abs(weighted[label] / unweighted[label] - 1.0) >= 1e-6
        for label in labels
    )
    errors = weighted if is_weighted else unweighted
    smallest = min(errors.values(), default=1.0)
    gaps = bound_gaps if has_bound else {label: errors[label] / smallest - 1.0 for label in labels}
    order = sorted(labels, key=gaps.__getitem__)
    # With a bound, at least one mechanism is drawn.  Without a bound, at least one mechanism is
    # drawn that is less accurate than the best.  If no such mechanism is within the limit, the
    # limit is raised.
    limit = MAX_DRAWN_RATIO - 1.0
    least_gap = -math.inf if has_bound else EQUAL_ERROR_TOLERANCE
    if not any(least_gap < gap <= limit for gap in gaps.values()):
        limit = MAX_RATIO_TO_BEST * (1.0 + min(gaps.values(), default=0.0)) - 1.0
    drawn_labels = [label for label in order if gaps[label] <= limit]
    compared_errors: Mapping[str, Sequence[float]] = (
        comparison.groups
        if criterion == "rmse"
        else {label: (error,) for label, error in errors.items()}
    )
    return _Gaps(
        drawn=tuple(map(tuple, _tied_labels(drawn_labels, compared_errors))),
        omitted=tuple(label for label in order if label not in drawn_labels),
        gaps=gaps,
        errors=errors,
        reference=BOUND if has_bound else "the best",
        is_weighted=is_weighted,
    )


def ranking_note(comparison: Comparison, criterion: str = "rmse") -> str:
    """Return what the dashed line of `ranking_picture` is, and which mechanisms are not drawn."""
    relative = _gaps(comparison, criterion)
    has_bound = relative.reference == BOUND
    value = f", {format_number(comparison.bound)} counts" if has_bound else ""
    return f"Dashed: {relative.reference}{value}. {relative.omitted_text()}".strip()


def ranking_picture(comparison: Comparison, criterion: str = "rmse") -> Picture:
    """Return a dot plot of the gaps of the mechanisms to the reference of `_Gaps`, best first.

    Equally accurate mechanisms share a row.  The last row of the table of numbers is the lower
    bound, if one is known.

    Parameters
    ----------
    criterion : key of `CRITERIA`.  Mechanisms ranked by their largest error are compared with the
        best mechanism, because a comparison has no lower bound on the largest error.
    """
    table, relative = ranking(comparison), _gaps(comparison, criterion)
    traces: list[dict[str, Any]] = []
    rows: dict[str, str] = {}
    has_bound = relative.reference == BOUND
    # `gap_words` returns for NaN that no bound is known. The gap is NaN if the typical errors have
    # no bound.
    gap_texts = {
        label: gap_words(
            math.nan if criterion == "rmse" and not has_bound else gap, relative.reference
        )
        for label, gap in relative.gaps.items()
    }
    for labels in relative.drawn:
        label, gap = labels[0], relative.gaps[labels[0]]
        text = axis_labels([tied_titles(labels)], 200)[0]
        error_text = f"{format_number(relative.errors[label])} counts, {gap_texts[label]}"
        names = "<br>".join(wrap_label(axis_labels([title_of(one)])[0]) for one in labels)
        rows[text] = f"{names}<br>{error_text.replace(f' over {relative.reference}', ' over')}"
        stem = {"x": [0.0, gap], "y": [text] * 2, "mode": "lines", "hoverinfo": "skip"}
        mark = {
            "x": [gap],
            "y": [text],
            "mode": "markers",
            "marker": _marker(label),
            "hovertemplate": f"{text}<br>{error_text}<extra></extra>",
            "meta": label,
        }
        line = {"line": {"color": GREY, "width": 2}}
        traces += [{"type": "scatter"} | line | stem, {"type": "scatter"} | mark]
    bound = {"type": "line", "x0": 0.0, "x1": 0.0, "xref": "x", "y0": 0, "y1": 1}
    # A tick text has the error below the names, so that it fits on narrow screens.
    ticks = {"tickvals": list(rows), "ticktext": list(rows.values())}
    n_lines = sum(text.count("<br>") + 2 for text in rows.values())
    layout = {
        "shapes": [
            bound | {"yref": "y domain", "line": {"color": GREY, "dash": "dash", "width": 3}}
        ],
        "xaxis": {
            "title": {"text": "gap"},
            "range": [-0.05 * relative.largest, 1.05 * relative.largest],
            "tickformat": PERCENT,
            "nticks": 6,
        },
        "yaxis": {"autorange": "reversed"} | category_axis() | ticks,
        "height": 110 + 17 * n_lines,
        "showlegend": False,
    }
    shown = table.assign(mechanism=[title_of(str(label)) for label in table["mechanism"]])
    if criterion != "rmse":
        shown = shown.sort_values(COLUMN_TITLES[criterion], kind="stable", ignore_index=True)
    if comparison.bound > 0:
        # The bound is a row of the table, so that the CSV, LaTeX and HTML tables have it.
        name = "Lower bound (weighted RMSE)" if relative.is_weighted else "Lower bound"
        bound_row = pd.DataFrame([{"mechanism": name, "RMSE": comparison.bound}])
        shown = pd.concat([shown, bound_row], ignore_index=True)
    best = min(relative.errors, key=lambda label: relative.gaps[label])
    verdict = _verdict(relative, best)
    if criterion != "rmse":
        verdict += " by largest error,"
    claim = f", {gap_texts[best]}" if has_bound else ""
    error = format_number(relative.errors[best])
    amount = f"a weighted RMSE of {error} counts" if relative.is_weighted else f"{error} counts"
    return Picture(
        title=f"Gap to {relative.reference}",
        figure=set_margins(go.Figure(traces, layout)),
        table=shown,
        alt=f"{verdict} with {amount}{claim}.",
        note=" ".join(
            filter(
                None,
                [
                    relative.omitted_text(),
                    "Gaps are rounded up." if has_bound else "",
                    comparison.statement if criterion == "rmse" else "",
                ],
            )
        ),
    )


def _most_accurate(relative: _Gaps) -> list[str]:
    """Return the labels of the mechanisms whose total error is the smallest, up to a tolerance."""
    smallest = min(relative.gaps.values(), default=0.0)
    limit = (1.0 + smallest) * (1.0 + EQUAL_ERROR_TOLERANCE) - 1.0
    return [label for label in relative.errors if relative.gaps[label] <= limit]


def _verdict(relative: _Gaps, best: str) -> str:
    """Return a clause about the most accurate mechanism, whose label is ``best``.

    If other mechanisms are equally accurate, the clause states only how many mechanisms are the
    most accurate ones.
    """
    tied = _most_accurate(relative)
    number = pluralize(len(relative.errors), "mechanism")
    if len(tied) < 2:
        return f"{title_of(best)} is the most accurate of {number}"
    if len(tied) < len(relative.errors):
        return f"{len(tied):,} of {number} are the most accurate"
    return f"All {number} are equally accurate"


def effort_picture(comparison: Comparison, criterion: str = "rmse") -> Picture:
    """Return a scatter plot of gap against planning time, one marker per drawn mechanism.

    ``criterion`` is a key of `CRITERIA`, and the gap is that of `ranking_picture`.
    """
    table = ranking(comparison).set_index("mechanism")
    relative = _gaps(comparison, criterion)
    labels = relative.labels
    height = max(300, 110 + 50 * len(labels))
    plot_height = height - 110  # without margins, tick texts and the title of the x axis
    margin = 0.15 * relative.largest
    times = [math.log10(max(float(table["seconds"][label]), 1e-3)) for label in labels]
    x_range = [min(times, default=0.0) - 0.4, max(times, default=0.0) + 0.4]
    texts = [wrap_label(axis_labels([title_of(label)])[0]) for label in labels]
    places = [
        (
            (time - x_range[0]) / (x_range[1] - x_range[0]) * MIN_PLOT_WIDTH_PX,
            (relative.gaps[label] + margin) / (relative.largest + 2.0 * margin) * plot_height,
        )
        for time, label in zip(times, labels, strict=True)
    ]
    text_positions = label_places(
        [x for x, _ in places], [y for _, y in places], texts, across=MIN_PLOT_WIDTH_PX
    )
    # The legend contains a label without space next to its marker, and the labels of markers that
    # cover each other.
    in_legend = [
        not position
        or any(
            math.dist(place, other) < MARKER_SIZE_PX
            for other in places[:number] + places[number + 1 :]
        )
        for number, (place, position) in enumerate(zip(places, text_positions, strict=True))
    ]
    traces = []
    for label, text, text_position, is_in_legend in zip(
        labels, texts, text_positions, in_legend, strict=True
    ):
        seconds = float(table["seconds"][label])
        gap = relative.gaps[label]
        mark = {
            "type": "scatter",
            "x": [seconds],
            "y": [gap],
            "mode": "markers+text" if text_position else "markers",
            "text": text,
            "name": text,
            "showlegend": is_in_legend,
            "textposition": text_position or "top center",
            "cliponaxis": False,
            "marker": _marker(label),
            "hovertemplate": (
                f"{text}<br>{gap_words(gap, relative.reference)} after {duration_text(seconds)}"
                "<extra></extra>"
            ),
        }
        traces.append(mark)
    y_axis = {
        "title": {"text": "gap"},
        "range": [-margin, relative.largest + margin],
        "tickformat": PERCENT,
        "automargin": True,
    }
    layout = {
        "xaxis": (
            log_axis(10.0 ** x_range[0], 10.0 ** x_range[1])
            | {"title": {"text": "planning time (s)"}, "range": x_range}
        ),
        "yaxis": y_axis,
        "height": height,
        "showlegend": any(in_legend),
        "legend": LEGEND,
    }
    fastest = min(labels, key=lambda label: float(table["seconds"][label]), default="")
    rows = [
        (title_of(label), float(table["seconds"][label]), relative.gaps[label])
        for label in table.index
    ]
    return Picture(
        title="Error and planning time",
        figure=set_margins(go.Figure(traces, layout)),
        table=pd.DataFrame(rows, columns=["mechanism", "seconds", f"over {relative.reference}"]),
        alt=(
            f"{title_of(fastest)} is the fastest of those shown."
            if fastest
            else "No mechanism is close enough to be shown."
        ),
        note=("Lower is more accurate, further left is faster. " + relative.omitted_text()).strip(),
    )


def where_picture(comparison: Comparison, workload: Workload) -> Picture:
    """Return a heat map of the RMSE of tables, divided by that of the best mechanism for the table.

    Rows are the `MAX_MAP_GROUPS` tables with the largest ratios, the largest one first.  Columns
    are the drawn mechanisms; those that are equally accurate for every table share a column.
    """
    relative = _gaps(comparison)
    drawn: list[tuple[str, ...]] = [tied for tied in relative.drawn if tied[0] in comparison.groups]
    if not drawn:
        drawn += [(label,) for label in relative.omitted if label in comparison.groups][:1]
    labels = [
        label for label in (*relative.labels, *relative.omitted) if label in comparison.groups
    ]
    errors = np.array([comparison.groups[label] for label in labels])
    with np.errstate(invalid="ignore", divide="ignore"):
        loss_ratios = np.where(errors > 0.0, errors / errors.min(axis=0), 1.0)
    shown = loss_ratios[[labels.index(tied[0]) for tied in drawn]]
    worst = np.minimum(np.nan_to_num(shown, nan=MAX_RATIO_TO_BEST), MAX_RATIO_TO_BEST).max(axis=0)
    shown_groups = np.argsort(-worst, kind="stable")[:MAX_MAP_GROUPS]
    names = [f"{g}: {name}" for g, name in enumerate(table_names(workload), start=1)]
    titles = [title_of(label) for label in labels]
    shown = shown[:, shown_groups].T
    columns = axis_labels([tied_titles(tied) for tied in drawn], 200)
    rows = axis_labels([names[g] for g in shown_groups], 200)
    figure = heat_map(
        np.minimum(shown, MAX_DRAWN_RATIO),
        (rows, columns),
        ("", ""),
        "%{y}<br>%{x}<br>%{customdata:,.3~r} times the best",
        "",
        showscale=False,
        texttemplate="%{text}",
    )
    figure.update_traces(
        x=columns,
        y=rows,
        zmin=1.0,
        zmax=max(1.1, min(MAX_DRAWN_RATIO, float(np.nanmax(shown)))),
        customdata=shown,
        text=[[f"{ratio:.2f}" if ratio < 100.0 else "over 100" for ratio in row] for row in shown],
    )
    column_texts = ["<br>".join(wrap_label(title_of(one)) for one in tied) for tied in drawn]
    figure.update_xaxes(side="top", tickvals=columns, ticktext=column_texts)
    figure.update_yaxes(tickvals=rows, ticktext=axis_labels([names[g] for g in shown_groups], 24))
    n_lines = max(text.count("<br>") + 1 for text in column_texts)
    figure.update_layout(height=110 + 18 * n_lines + 26 * len(rows))
    wins = np.isclose(loss_ratios, 1.0, rtol=TIE_TOLERANCE).sum(axis=1)
    more = (
        f" The {MAX_MAP_GROUPS} tables with the largest differences are shown."
        if len(names) > MAX_MAP_GROUPS
        else ""
    )
    return Picture(
        title="Relative error by table",
        figure=figure,
        table=pd.DataFrame(
            {"attributes": names} | {title: loss_ratios[k] for k, title in enumerate(titles)}
        ),
        alt=f"Most accurate, of {pluralize(len(names), 'table')}: "
        + ", ".join(
            f"{title} for {number(int(k))}" for title, k in zip(titles, wins, strict=True) if k
        )
        + ".",
        note=(
            f"{RATIO_NOTE} Darker = less accurate (capped at {MAX_DRAWN_RATIO:g}x).{more}"
            f" {relative.omitted_text()}"
        ).strip(),
    )


def budgets_picture(
    comparison: Comparison,
    budget: Budget,
    format_budget: Callable[[Budget], str] = in_pcost,
    pcosts: Sequence[float] = (),
) -> Picture:
    """Return a line chart of the errors of the drawn mechanisms at several budgets, in counts.

    Mechanisms that are equally accurate for every table share a line.  The custom data of a marker
    are text of the budget, label of the mechanism and pcost.

    Parameters
    ----------
    budget : budget of the comparison.
    format_budget : function that returns the text of a budget.
    pcosts : budgets that are drawn, in increasing order; by default, `BUDGET_FACTORS` times the
        pcost of ``budget``.
    """
    relative = _gaps(comparison)
    pcosts = list(pcosts) or [budget.pcost * factor for factor in BUDGET_FACTORS]
    budget_texts = [format_budget(budget.at(pcost)) for pcost in pcosts]
    pure = "" if budget.pure_epsilon is None else ", which is twice the epsilon,"
    figure = go.Figure()
    table = {"budget": budget_texts, "pcost": pcosts}
    for labels in relative.drawn:
        style = mechanism_style(labels[0])
        text = axis_labels([tied_titles(labels)], 200)[0]
        error = relative.errors[labels[0]]
        errors = error * np.sqrt(budget.pcost / np.array(pcosts))
        for label in labels:
            table[title_of(label)] = errors
        figure.add_scatter(
            x=pcosts,
            y=errors,
            mode="lines+markers",
            name=text,
            line={"color": style.color, "dash": style.dash},
            marker={"color": style.color, "symbol": style.symbol, "size": 9},
            customdata=[
                (budget_text, labels[0], pcost)
                for budget_text, pcost in zip(budget_texts, pcosts, strict=True)
            ],
            hovertemplate=f"{text}<br>%{{customdata[0]}}: %{{y:,.4~r}} counts<extra></extra>",
        )
    figure.update_xaxes(budget_axis(pcosts, budget_texts))
    drawn = [relative.errors[label] for label in relative.labels]
    low, high = min(drawn, default=0.0), max(drawn, default=0.0)
    smallest, largest = (math.sqrt(budget.pcost / pcost) for pcost in (pcosts[-1], pcosts[0]))
    y_axis = log_axis(low * smallest, high * largest) if low > 0 else {"type": "log"}
    figure.update_yaxes(title="typical error (counts)", **y_axis)
    figure.update_layout(height=420, legend=LEGEND)
    return Picture(
        title="Error at other budgets",
        figure=set_margins(figure),
        table=pd.DataFrame(table),
        alt=(
            f"Four times the privacy cost (pcost){pure} halves every error; the order of the"
            " mechanisms does not change."
        ),
        note=relative.omitted_text(),
    )


def spreads_picture(spreads: Mapping[str, ErrorDistribution]) -> Picture:
    """Return a figure of the cumulative distributions of the standard errors of mechanisms.

    ``spreads`` maps the label of a mechanism to its distribution.  Mechanisms with equal
    distributions share a line.
    """
    distributions = {label: distribution.thin() for label, distribution in spreads.items()}
    figure = go.Figure()
    ties = _equal_distributions(distributions)
    for position, labels in enumerate(ties):
        label, distribution = labels[0], distributions[labels[0]]
        style = mechanism_style(label)
        finite = distribution.errors[np.isfinite(distribution.errors)]
        text = axis_labels([tied_titles(labels)], 200)[0]
        line_style = {"color": style.color, "dash": style.dash, "width": 2.5, "shape": "hv"}
        figure.add_scatter(
            # Single precision halves the size of the figure; its rounding errors are not visible.
            x=finite.astype(np.float32),
            y=distribution.shares[: len(finite)].astype(np.float32),
            mode="lines",
            line=line_style,
            legendgroup=label,
            showlegend=False,
            hovertemplate=(
                f"{text}: %{{y:.1%}} of the queries<br>have %{{x:,.4~r}} counts or"
                " less<extra></extra>"
            ),
        )
        # Each line has its markers at different heights, so that markers do not overlap.
        heights = [
            (k + (position + 0.5) / len(ties)) / MARKERS_PER_LINE for k in range(MARKERS_PER_LINE)
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
    figure.update_layout(axes, height=480, legend=LEGEND)
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


def _equal_distributions(distributions: Mapping[str, ErrorDistribution]) -> list[list[str]]:
    """Group labels of equal distributions, compared at `QUANTILES` up to a tolerance."""
    ties: list[list[str]] = []
    for label, distribution in distributions.items():
        quantiles = [distribution.quantile(share) for share in QUANTILES]
        for tied in ties:
            others = [distributions[tied[0]].quantile(share) for share in QUANTILES]
            if np.allclose(quantiles, others, rtol=EQUAL_ERROR_TOLERANCE, atol=0.0):
                tied.append(label)
                break
        else:
            ties.append([label])
    return ties


def ratio_picture(
    plans: Mapping[str, Plan],
    group: int,
    across: Sequence[int] | None = None,
    fixed: Sequence[int] | None = None,
) -> Picture:
    """Return a figure of the ratios of standard errors of two plans for the queries of a group.

    Parameters
    ----------
    plans : maps names to two plans.  The errors of the first plan are divided by those of the
        second one.
    group : position of the group in the workload.
    across, fixed : parameters of `engine.figures.plans.error_grid` that select the queries to
        draw.
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
            hovertemplate=f"{grid.hover}<br>ratio %{{customdata:,.4~r}}<extra></extra>",
            colorbar={
                "title": {"text": "ratio of<br>errors"},
                "tickvals": [math.log2(t) for t in ticks],
                "ticktext": [format_number(t) for t in ticks],
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
            f"Of {shown.size:,} {grid.what}, {first_name} is less accurate for {percent(worse)} and more"
            f" accurate for {percent(better)}; the ratio goes from {format_number(float(shown.min()))} "
            f"to {format_number(float(shown.max()))}."
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


def comparison_caption(comparison: Comparison, workload: Workload, budget: Budget) -> str:
    """Return a caption for tables of a comparison: queries, privacy parameters and lower bound."""
    queries_text = (
        f"{pluralize(workload.queries, 'query', 'queries')} in"
        f" {pluralize(len(workload.groups), 'table')}"
    )
    parameters = budget.numbers()
    if budget.pure_epsilon is not None:
        parameters = f"Pure epsilon {cost(budget.pure_epsilon)}: {parameters}"
    sentences = [queries_text, parameters]
    if comparison.bound > 0:
        bound_name = "Lower bound"
        if _gaps(comparison).is_weighted:
            bound_name += " on the weighted RMSE"
        sentences.append(f"{bound_name}: {format_number(comparison.bound)} counts")
    return f"{'. '.join(sentences)}."


def comparison_page(
    comparison: Comparison,
    workload: Workload,
    budget: Budget,
    format_budget: Callable[[Budget], str] = in_pcost,
    pcosts: Sequence[float] = (),
) -> str:
    """Return a comparison of mechanisms as an HTML page.

    The page contains the size of the workload, the budget, the tables of `ranking_picture`,
    `effort_picture`, `where_picture` and `budgets_picture`, and the mechanisms without a result.
    No number was computed from records.  The function ``format_budget`` returns the text of a
    budget; ``pcosts`` are the budgets of `budgets_picture`.  All names are escaped for HTML.
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
        _text(deltas_as_powers(budget.describe())),
    ]
    if comparison.plans:
        pictures = (
            ranking_picture(comparison),
            effort_picture(comparison),
            # The page has no charts, so the note does not explain their colors.
            replace(where_picture(comparison, workload), note=RATIO_NOTE),
            budgets_picture(comparison, budget, format_budget, pcosts),
        )
        pieces += [_section(picture) for picture in pictures]
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
        "".join(
            f"<td>{_cell(name, value)}</td>" for name, value in zip(table.columns, row, strict=True)
        )
        for row in table.itertuples(index=False)
    )
    body = "\n".join(f"<tr>{row}</tr>" for row in rows)
    return f"<table><caption>{html.escape(title)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(column: str, value: object) -> str:
    """Return a value of a table as HTML: NaN as "", shares as percentages."""
    if isinstance(value, float):
        if math.isnan(value):
            return ""
        if column in GAP_COLUMNS:
            return percent_rounded_up(value)
        is_share = column in SHARE_COLUMNS and math.isfinite(value)
        return percent(value, 2) if is_share else format_number(value)
    return html.escape(
        number(value) if isinstance(value, int) and not isinstance(value, bool) else str(value)
    )


def _text(words: str) -> str:
    return f"<p>{html.escape(words)}</p>" if words else ""
