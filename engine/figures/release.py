"""Figures of releases, and `plot`, the default figure of a plan, comparison or measurement.

The figures of releases show spent budgets, answers, published tables and the coverage of intervals.
All answers and standard errors are in counts.
"""

from __future__ import annotations

import html
import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from engine._format import cost, format_number, pluralize, remaining_text
from engine._validation import check_int, check_type
from engine.analysis.compare import Comparison
from engine.analysis.error_distribution import Coverage
from engine.errors import PlanError
from engine.figures.base import (
    BLUE,
    CHAR_WIDTH_PX,
    GREEN,
    GREY,
    LEGEND,
    MAX_LINE_CHARS,
    MAX_SIDE,
    ORANGE,
    VERMILION,
    Picture,
    axis_labels,
    category_axis,
    heat_map,
    mark_rehearsal,
    set_margins,
)
from engine.figures.compare import ranking_picture
from engine.figures.plans import error_picture
from engine.plans import Plan
from engine.release import Measurement
from engine.workload.attribute import query_texts

SIGN = re.compile(r" (=|in|<|<=|>|>=) ")  # operator between attribute and value in a query text
MIN_ANSWERS_HEIGHT_PX = 330
TITLE_HEIGHT_PX = 24  # height of the title of a panel
MAX_CELL_TEXTS = 120  # heat maps of at most this number of answers have the answers in their cells
FEW_ANSWERS = 40  # if a panel has more answers, their intervals are thinner
PANELS_PER_ROW = 3
MAX_PANELS = 6  # answers that would need more panels are drawn as a heat map
MIN_VISIBLE_SHARE = 0.01  # intervals shorter than this share of the axis cannot be seen


def spending_picture(
    total: float,
    spent: float,
    requested: float,
    unit: str = "pcost",
    format_amount: Callable[[float], str] | None = None,
) -> Picture:
    """Return a bar of the total budget of a dataset: spent, requested and remaining budget.

    If ``requested`` is more than ``total`` - ``spent``, the release would be refused.  Therefore
    the requested budget is not drawn, and the remaining budget is ``total`` - ``spent``.

    Parameters
    ----------
    total : total budget of the dataset.
    spent : budget that the dataset has spent before this release.
    requested : budget of this release.
    unit : unit of these three budgets.
    format_amount : function that converts an amount in ``unit`` to text in another unit, such as
        epsilon, in which amounts need not be additive.  If it is given, the texts of the segments
        are the amounts spent before and after this release, and the total.
    """
    available = total - spent
    fits = requested <= available
    remaining = available - requested if fits else available
    segments = [
        (f"spent: {cost(spent)}", spent, GREY, "/"),
        (
            f"this release: {cost(requested)}{'' if fits else ' (too much)'}",
            requested if fits else 0.0,
            ORANGE,
            "x",
        ),
        (
            f"{'left after it' if fits else 'left'}: {remaining_text(remaining)}",
            remaining,
            GREEN,
            "",
        ),
    ]
    parts = ["spent", "this release", "left after it" if fits else "left"]
    table = pd.DataFrame({"part": parts, unit: [spent, requested, remaining]})
    unit_text, alt = f" {unit}", ""
    if format_amount is not None:
        after = f"{format_amount(spent + requested)}{'' if fits else ' (too much)'}"
        texts = [f"spent before: {format_amount(spent)}", f"spent after: {after}"]
        texts.append(f"total: {format_amount(total)}")
        segments = [
            (text, size, color, shape)
            for text, (_, size, color, shape) in zip(texts, segments, strict=True)
        ]
        unit_text = ""
        alt = f"{'; '.join(texts)}."
        # The last row is the budget that remains after the release, so it has no cumulated spend.
        table["spent in total after it"] = [
            format_amount(spent),
            format_amount(spent + requested),
            "",
        ]
    bars = [
        {
            "type": "bar",
            "x": [size],
            "y": ["budget"],
            "name": text,
            "orientation": "h",
            "marker": {"color": color, "pattern": {"shape": shape}},
            "hovertemplate": f"{text}{unit_text}<extra></extra>",
        }
        for text, size, color, shape in segments
    ]
    axis: dict[str, Any] = {"range": [0, total]}
    if format_amount is None:
        axis["title"] = {"text": f"privacy cost ({unit})"}
    else:
        axis["showticklabels"] = False
    layout = {
        "barmode": "stack",
        "height": 170 if format_amount is None else 110,
        "legend": LEGEND,
        "xaxis": axis,
        "yaxis": {"showticklabels": False},
    }
    figure = set_margins(go.Figure(bars, layout))
    if format_amount is not None:
        return Picture(title="What this spends", figure=figure, table=table, alt=alt)
    alt = (
        f"Of a budget of {cost(total)} {unit}, {cost(spent)} was spent and this release takes"
        f" {cost(requested)}; "
    )
    alt += (
        f"{remaining_text(remaining)} will be left."
        if fits
        else f"that is more than what is left, {remaining_text(remaining)}."
    )
    return Picture(title="What this spends", figure=figure, table=table, alt=alt)


# Published answers with a smaller value in the column ``measured`` have open markers.
MIN_MEASURED_SHARE = 0.5


@dataclass(frozen=True, kw_only=True, eq=False)
class _Series:
    """Answers and their intervals from ``low`` to ``high``, in counts, each of shape (queries,).

    ``is_open`` is a mask of the answers whose markers are drawn as outlines; if it is None, all
    markers are filled.
    """

    name: str
    values: pd.Series[float]
    low: pd.Series[float]
    high: pd.Series[float]
    color: str
    symbol: str
    is_open: pd.Series[bool] | None = None


def _unbiased(answers: pd.DataFrame, name: str) -> _Series:
    return _Series(
        name=name,
        values=answers["answer"],
        low=answers["low"],
        high=answers["high"],
        color=BLUE,
        symbol="circle",
    )


def _conditions(query: str) -> list[tuple[str, str]] | None:
    """Return the conditions in the text of a query as (attribute, value) pairs.

    If an operator is neither "=" nor "in", the second element of the pair starts with the operator.
    If a condition does not consist of attribute, operator and value, None is returned.

    >>> _conditions("age < 20 and sex = F"), _conditions("20 <= age < 30")
    ([('age', '< 20'), ('sex', 'F')], None)
    """
    pairs = []
    for condition in query.split(" and "):
        parts = SIGN.split(condition)
        if len(parts) != 3:
            return None
        name, sign, value = parts
        pairs.append((name, value if sign in ("=", "in") else f"{sign} {value}"))
    return pairs


def _product_axes(queries: Sequence[str]) -> tuple[tuple[str, str], list[list[str]]] | None:
    """Return two attributes and their values if the queries are all combinations of these values.

    The result is (names, values): the names of the two attributes, and one list of values per name.
    The second attribute must vary fastest from query to query.  For all other queries, None is
    returned.
    """
    conditions = [_conditions(query) for query in queries]
    pairs = [pair for pair in conditions if pair is not None and len(pair) == 2]
    names = {(first[0], second[0]) for first, second in pairs}
    if len(pairs) < len(queries) or len(names) != 1:
        return None
    values = [list(dict.fromkeys(pair[axis][1] for pair in pairs)) for axis in (0, 1)]
    if [(first[1], second[1]) for first, second in pairs] != list(itertools.product(*values)):
        return None
    return names.pop(), values


def _query_labels(queries: Sequence[str]) -> tuple[list[str], str | None]:
    """Return the axis labels of queries, and the title of the axis or None.

    If all queries are on the same attribute, the title is its name, and the labels are its values.
    Otherwise there is no title, and a label has one line per condition.
    """
    conditions = [_conditions(query) for query in queries]
    single = [pair[0] for pair in conditions if pair is not None and len(pair) == 1]
    names = {name for name, _ in single}
    if len(single) < len(queries) or len(names) != 1:
        return [text.replace(" and ", "<br>") for text in axis_labels(list(queries))], None
    return axis_labels([value for _, value in single]), html.escape(names.pop())


def _answer_trace(
    labels: Sequence[str], series: _Series, rows: slice, *, showlegend: bool
) -> dict[str, Any]:
    """Return a plotly trace with a marker and an error bar per answer.

    ``rows`` selects the answers of ``series`` that have the ``labels``.
    """
    values = series.values.iloc[rows]
    bars = {
        "type": "data",
        "array": (series.high.iloc[rows] - values).to_numpy(),
        "arrayminus": (values - series.low.iloc[rows]).to_numpy(),
        "color": series.color,
        "thickness": 2.5 if len(labels) <= FEW_ANSWERS else 1.2,
        "width": 3 if len(labels) <= FEW_ANSWERS else 0,
    }
    symbols: str | list[str] = series.symbol
    if series.is_open is not None:
        symbols = [
            f"{series.symbol}-open" if is_open else series.symbol
            for is_open in series.is_open.iloc[rows]
        ]
    return {
        "type": "scatter",
        "x": list(labels),
        "y": values,
        "mode": "markers",
        "name": series.name,
        "legendgroup": series.name,
        "showlegend": showlegend,
        "marker": {
            "color": series.color,
            "symbol": symbols,
            "size": 6 if len(labels) <= FEW_ANSWERS else 4,
        },
        "error_y": bars,
        "customdata": np.stack([series.low.iloc[rows], series.high.iloc[rows]], axis=-1),
        "hovertemplate": (
            "%{x}<br>%{y:,.1f} counts<br>%{customdata[0]:,.1f} to %{customdata[1]:,.1f}"
            "<extra></extra>"
        ),
    }


def _answers_figure(
    queries: Sequence[str], series: Sequence[_Series], truth: pd.Series[float] | None = None
) -> go.Figure:
    """Return a figure of answers with intervals, and of the true answers if ``truth`` is not None.

    If the queries are all combinations of values of two attributes, the attribute with fewer values
    determines the kind of the figure:

    - It has at most `MAX_PANELS` values: one panel per value.
    - It has more values: a heat map of the answers of the last series, without true answers.

    All other queries are drawn next to each other in one panel.
    """
    axes = _product_axes(queries)
    if axes is None:
        labels, title = _query_labels(queries)
        traces = [_answer_trace(labels, one, slice(None), showlegend=True) for one in series]
        if truth is not None:
            traces.append(_truth_trace(labels, truth, showlegend=True))
        # At most 16 labels of one line fit next to each other; labels of several lines need more
        # space.
        label_lines = 1 + max((text.count("<br>") for text in labels), default=0)
        max_ticks = max(1, 16 // label_lines)
        layout = {
            "xaxis": category_axis(title) | {"nticks": max_ticks},
            "yaxis": {"title": {"text": "records (counts)"}, "rangemode": "tozero"},
            "legend": LEGEND,
            "height": MIN_ANSWERS_HEIGHT_PX + _label_height(labels),
        }
        return set_margins(go.Figure(traces, layout))
    names, values = axes
    # position of the attribute with fewer values
    panel_axis = int(len(values[1]) < len(values[0]))
    if _is_map(queries):
        return _answers_map(names, values, series[-1])
    return _answers_panels(names, values, panel_axis, series, truth)


def _is_map(queries: Sequence[str]) -> bool:
    """Return whether `_answers_figure` draws the answers to these queries as a heat map."""
    axes = _product_axes(queries)
    return axes is not None and min(map(len, axes[1])) > MAX_PANELS


def _truth_trace(
    labels: Sequence[str], truth: pd.Series[float], *, showlegend: bool
) -> dict[str, Any]:
    line = {"width": 2, "color": VERMILION}
    mark = {"color": VERMILION, "symbol": "line-ew-open", "size": 11, "line": line}
    return {
        "type": "scatter",
        "x": list(labels),
        "y": truth,
        "mode": "markers",
        "name": "truth",
        "legendgroup": "truth",
        "showlegend": showlegend,
        "marker": mark,
        "hovertemplate": "%{x}<br>truth %{y:,.0f} counts<extra></extra>",
    }


def _label_height(labels: Sequence[str]) -> float:
    """Return the height that axis labels need if they are vertical, in pixels."""
    return CHAR_WIDTH_PX * max(len(line) for label in labels for line in label.split("<br>"))


def _answers_map(names: tuple[str, str], values: list[list[str]], series: _Series) -> go.Figure:
    """Return a heat map of the answers to all combinations of values of two attributes."""
    shape = (len(values[0]), len(values[1]))
    intervals = np.stack(
        [one.to_numpy().reshape(shape) for one in (series.low, series.high)], axis=-1
    )
    hover = "%{y}<br>%{x}<br>%{z:,.1f} counts<br>%{customdata[0]:,.1f} to %{customdata[1]:,.1f}"
    grid = series.values.to_numpy().reshape(shape)
    texts = {"texttemplate": "%{z:,.0f}"} if grid.size <= MAX_CELL_TEXTS else {}
    return heat_map(grid, values, names, hover, "counts", customdata=intervals, **texts)


def _condition_text(name: str, value: str) -> str:
    """Return the condition that an attribute has a value, which is a cell or an inequality.

    >>> _condition_text("age", "7"), _condition_text("age", "<= 7")
    ('age = 7', 'age <= 7')
    >>> _condition_text("age", "3 <= age <= 9")
    '3 <= age <= 9'
    """
    if f" {name} <" in value:
        return value
    return (
        f"{name} {value}" if value.startswith(("< ", "<= ", "> ", ">= ")) else f"{name} = {value}"
    )


def _answers_panels(
    names: tuple[str, str],
    values: list[list[str]],
    panel_axis: int,
    series: Sequence[_Series],
    truth: pd.Series[float] | None,
) -> go.Figure:
    """Return one panel of answers per value of an attribute, all with the same axis of counts.

    Parameters
    ----------
    names, values : the two attributes, and the values of each.
    panel_axis : 0 or 1, the attribute whose values are the panels.
    truth : exact counts, in the order of the series; drawn if not None.
    """
    panels = values[panel_axis]
    labels = axis_labels(values[1 - panel_axis])
    titles = [_condition_text(names[panel_axis], value) for value in panels]
    n_columns = min(len(panels), PANELS_PER_ROW)
    n_rows = -(-len(panels) // n_columns)
    figure = make_subplots(
        rows=n_rows,
        cols=n_columns,
        shared_yaxes="all",
        shared_xaxes="columns",
        subplot_titles=axis_labels(titles, 2 * MAX_LINE_CHARS - 10 * n_columns),
        horizontal_spacing=0.03,
        vertical_spacing=0.12 / n_rows,
    )
    for number in range(len(panels)):
        # The second attribute varies fastest.  Therefore the queries with one value of the first
        # attribute are contiguous, and the queries with one value of the second attribute are
        # equally spaced.
        rows = (
            slice(number * len(labels), (number + 1) * len(labels))
            if panel_axis == 0
            else slice(number, None, len(panels))
        )
        place = {"row": number // n_columns + 1, "col": number % n_columns + 1}
        for one in series:
            figure.add_trace(_answer_trace(labels, one, rows, showlegend=number == 0), **place)
        if truth is not None:
            trace = _truth_trace(labels, truth.iloc[rows], showlegend=number == 0)
            figure.add_trace(trace, **place)
    figure.update_xaxes(category_axis() | {"nticks": 12})
    for number in range(n_columns):
        # In each column, only the lowest panel has labels on the x axis.
        row = (len(panels) - 1 - number) // n_columns + 1
        place = {"row": row, "col": number + 1}
        figure.update_xaxes(title_text=html.escape(names[1 - panel_axis]), **place)
        figure.update_xaxes(showticklabels=True, **place)
    figure.update_yaxes(title_text="records (counts)", col=1)
    figure.update_yaxes(rangemode="tozero")
    figure.update_annotations(font_size=12)
    height = 130 + _label_height(labels) + 200 * n_rows
    figure.update_layout(height=height, legend=LEGEND | {"y": 1.0 + TITLE_HEIGHT_PX / height})
    return set_margins(figure, top=30 + TITLE_HEIGHT_PX)


def _interval_text(series: Sequence[_Series]) -> str:
    """Return one sentence per series with the range of half-widths of its intervals."""
    low = min(float(one.low.min()) for one in series)
    high = max(float(one.high.max()) for one in series)
    notes = []
    for one in series:
        half_widths = ((one.high - one.low) / 2).dropna()
        if half_widths.empty:
            continue
        ends = [float(half_widths.min()), float(half_widths.max())]
        if "approximate" in one.name:
            # the errors of published answers are estimates, of which about two digits are reliable
            rounded = [float(f"{end:.2g}") for end in ends]
            texts = [f"{end:,.0f}" if end >= 10 else f"{end:g}" for end in rounded]
        else:
            texts = [format_number(end) for end in ends]
        extent = texts[0] if texts[0] == texts[1] else f"{texts[0]} to {texts[1]}"
        subject = "Intervals" if len(series) == 1 else f"Intervals, {one.name.partition(',')[0]}"
        hidden = float(half_widths.max()) < MIN_VISIBLE_SHARE * (high - low)
        notes.append(f"{subject}: ± {extent} counts{', too narrow to be seen' if hidden else ''}.")
    return " ".join(notes)


def _omitted_text(answers: pd.DataFrame) -> str:
    """Return a sentence with the number of answers that are drawn; "" if all are drawn."""
    return (
        f"The first {MAX_SIDE} answers of this page are drawn." if len(answers) > MAX_SIDE else ""
    )


def answers_picture(answers: pd.DataFrame, *, rehearsal: bool) -> Picture:
    """Return a figure of noisy answers with their confidence intervals, in counts.

    Parameters
    ----------
    answers : table with the columns query, answer, low and high.  The table of a rehearsal can have
        a column truth with the exact counts, which are drawn, too.  The first `MAX_SIDE` rows are
        drawn.
    rehearsal : whether the picture is marked as a rehearsal.
    """
    shown = answers.head(MAX_SIDE)
    noisy = _unbiased(shown, "noisy answer with interval")
    truth = shown.get("truth")
    figure = _answers_figure(shown["query"].tolist(), [noisy], truth)
    if rehearsal:
        mark_rehearsal(figure)
    coverage_text = ""
    if truth is not None:
        n_covered = int(((shown["low"] <= truth) & (truth <= shown["high"])).sum())
        verb = "contains" if n_covered == 1 else "contain"
        coverage_text = f" {n_covered:,} of the {len(shown):,} intervals drawn {verb} the truth."
    kind = "Rehearsal: noisy" if rehearsal else "Noisy"
    noun = "answer" if len(shown) == 1 else "answers"
    return Picture(
        title="Answers",
        figure=figure,
        table=answers,
        alt=(
            f"{kind} {noun} to {pluralize(len(shown), 'query', 'queries')}.{coverage_text}"
            f" {_interval_text([noisy])}"
        ).strip(),
        note=_omitted_text(answers),
    )


def published_picture(
    answers: pd.DataFrame, *, rehearsal: bool, unbiased: bool = True, published: bool = True
) -> Picture:
    """Return a figure of unbiased and published answers with confidence intervals, in counts.

    Suppressed published answers are not drawn.  A published answer has an open marker if its value
    in the column ``measured`` is below `MIN_MEASURED_SHARE`: the answer then depends mainly on
    predictions from smaller tables.

    Parameters
    ----------
    answers : result of `engine.postprocess.uncertainty.Uncertainty.answers`, or of
        `Uncertainty.sums` if ``unbiased`` is False.  The first `MAX_SIDE` rows are drawn.
    rehearsal : whether the picture is marked as a rehearsal.
    unbiased, published : whether the unbiased and the published answers are drawn.
    """
    shown = answers.head(MAX_SIDE)
    drawn = []
    is_predicted = (shown["measured"] < MIN_MEASURED_SHARE) & shown["published"].notna()
    n_predicted = int(is_predicted.sum()) if published else 0
    if unbiased:
        drawn.append(_unbiased(shown, "unbiased, exact interval"))
    if published:
        series = _Series(
            name="published, approximate interval",
            values=shown["published"],
            low=shown["published_low"],
            high=shown["published_high"],
            color=ORANGE,
            symbol="diamond",
            is_open=is_predicted if n_predicted else None,
        )
        drawn.append(series)
    figure = _answers_figure(shown["query"].tolist(), drawn)
    figure.update_layout(scattermode="group")
    if rehearsal:
        mark_rehearsal(figure)
    n_suppressed = int(shown["published"].isna().sum())
    negative_text = ""
    if "answer" in shown:
        n_negative = int((shown["answer"] < 0).sum())
        if n_negative:
            negative_text = f" {pluralize(n_negative, 'unbiased answer')} below zero."
    kind = "Rehearsal on simulated records: " if rehearsal else ""
    suppressed_text = (
        f" {pluralize(n_suppressed, 'published answer')}"
        f" {'is' if n_suppressed == 1 else 'are'} suppressed and not drawn."
        if n_suppressed
        else ""
    )
    is_map = _is_map(shown["query"].tolist())
    predicted_text = (
        f" {pluralize(n_predicted, 'published answer')}{'' if is_map else ' with open markers'}:"
        " less than half was measured, and smaller tables predict the remainder."
        if n_predicted
        else ""
    )
    map_text = " The heat map shows the published answers." if is_map and len(drawn) > 1 else ""
    return Picture(
        title="Unbiased and published",
        figure=figure,
        table=answers,
        alt=(
            f"{kind}{pluralize(len(shown), 'query', 'queries')}{';' if negative_text else '.'}"
            f"{negative_text}{map_text}{suppressed_text}{predicted_text} {_interval_text(drawn)}"
        ).strip(),
        note=_omitted_text(answers),
    )


def coverage_picture(coverage: Coverage) -> Picture:
    """Return a figure of the observed coverage of confidence intervals against the nominal one."""
    # columns: nominal coverage, observed coverage and two standard errors of the observed coverage
    table = coverage.table
    figure = go.Figure()
    figure.add_scatter(
        x=table["promised"],
        y=table["promised"],
        mode="lines",
        name="nominal",
        line={"color": GREY, "dash": "dash"},
        hoverinfo="skip",
    )
    figure.add_scatter(
        x=table["promised"],
        y=table["found"],
        mode="markers",
        name="observed, with 2 standard errors",
        marker={"color": BLUE, "size": 10},
        error_y={"type": "data", "array": table["by chance"], "color": BLUE},
        hovertemplate="nominal %{x:.0%}<br>observed %{y:.2%}<extra></extra>",
    )
    figure.update_xaxes(title="nominal coverage", tickformat=".0%")
    figure.update_yaxes(title="observed coverage", tickformat=".0%")
    figure.update_layout(legend=LEGEND)
    return Picture(
        title="Interval coverage",
        figure=set_margins(figure),
        table=table,
        alt=coverage.sentence,
    )


MAX_ANSWERS = 100  # largest number of answers that `plot` draws


def plot(value: Plan | Comparison | Measurement, group: int = 0) -> go.Figure:
    """Return the default plotly figure of a plan, comparison or measurement.

    Parameters
    ----------
    value : one of the following, which determines what is drawn.

        - plan: the standard errors of the queries of a group, in counts.
        - comparison: the gaps of `ranking_picture`, for all groups together.
        - measurement: the first 100 answers of a group with their intervals, in counts.
    group : position of the group in the workload; ignored for a comparison.

    Raises
    ------
    PlanError : ``value`` has another type, there is no group at this position, or no mechanism of a
        comparison has a result.

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
        if not value.plans:
            raise PlanError(
                "No mechanism of the comparison has a result to plot. Read the reasons in the column"
                " status of its frame."
            )
        return ranking_picture(value).figure
    if isinstance(value, Measurement):
        answers = value.answers(group, 0, MAX_ANSWERS)
        texts = query_texts(value.plan.schema.attributes, answers["query"])
        return answers_picture(answers.assign(query=texts), rehearsal=value.rehearsal).figure
    check_int("number of the group", group, 0, len(value.workload.groups) - 1, error=PlanError)
    return error_picture(value, group).figure
