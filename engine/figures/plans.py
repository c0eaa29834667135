"""Figures of plans: budget shares, quality, standard errors, intervals and lower bounds."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import plotly.graph_objects as go

from engine._arrays import Array
from engine._format import cost, format_number, percent, percent_rounded_up, pluralize, set_name
from engine.analysis import (
    NoiseScale,
    breakdown,
    group_table,
    half_width,
    quality_by_group,
    table_names,
)
from engine.analysis.certificates import MechanismBound
from engine.analysis.error_distribution import error_distribution
from engine.analysis.quality import quality_text
from engine.analysis.variance_breakdown import breakdown_text
from engine.figures.base import (
    BLUE,
    GREY,
    LEGEND,
    MAX_LINE_CHARS,
    MAX_SIDE,
    ORANGE,
    PERCENT,
    Picture,
    axis_labels,
    bars,
    budget_axis,
    category_axis,
    evenly_spaced,
    heat_map,
    in_pcost,
    line,
    log_axis,
    set_margins,
    short_query_text,
)
from engine.mechanisms import label_of, title_of
from engine.plans import Plan
from engine.privacy import Budget
from engine.release import quantile
from engine.workload import Circular, Group, Range, Workload
from engine.workload.attribute import cell_text, query_texts

MAX_MAP_ATTRIBUTES = 60  # largest number of attributes in the figure of `pairs_picture`
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)


def has_map(workload: Workload) -> bool:
    """Return whether the groups on two attributes have from 3 to 60 distinct attributes in all.

    `pairs_picture` can draw the plans of these workloads.
    """
    names = {
        name for group in workload.groups if len(group.attributes) == 2 for name in group.attributes
    }
    return 3 <= len(names) <= MAX_MAP_ATTRIBUTES


def pairs_picture(plan: Plan) -> Picture:
    """Return a heat map of the largest standard error of every pair of attributes, in counts.

    The cells on the diagonal are single attributes.  The attribute with the largest error comes
    first.  Cells of pairs that are not in the workload are empty.
    """
    errors = group_table(plan)["largest standard error"].to_numpy()
    worst: dict[frozenset[str], tuple[float, int]] = {}
    for number, (group, error) in enumerate(
        zip(plan.workload.groups, errors.tolist(), strict=True)
    ):
        if 1 <= len(group.attributes) <= 2:
            key = frozenset(group.attributes)
            worst[key] = max(worst.get(key, (-1.0, 0)), (error, number))
    paired_names = dict.fromkeys(
        name for key in worst if len(key) == 2 for name in plan.schema.names if name in key
    )
    names = sorted(
        paired_names,
        key=lambda name: -max(error for key, (error, _) in worst.items() if name in key),
    )
    entries = [
        [worst.get(frozenset((first, second)), (math.nan, None)) for second in names]
        for first in names
    ]
    grid = np.array([[error for error, _ in row] for row in entries])
    figure = heat_map(
        grid, (names, names), ("", ""), "%{y} × %{x}<br>up to %{z:,.4~r} counts", "counts"
    )
    # The names of the attributes do not fit below the columns.  Therefore the attributes are
    # numbered next to the rows, and the columns have only the numbers.
    figure.update_xaxes(
        tickvals=figure.data[0].x,
        ticktext=[str(number) for number in range(1, len(names) + 1)],
        tickangle=0,
    )
    figure.update_yaxes(
        tickvals=figure.data[0].y,
        ticktext=[f"{text}  {n}" for n, text in enumerate(axis_labels(names, MAX_LINE_CHARS), 1)],
    )
    x_labels, y_labels = figure.data[0].x, figure.data[0].y
    nonempty = [(i, j) for i, j in np.argwhere(~np.isnan(grid))]
    # In plotly, cells of a heat map cannot be selected, but markers can.  Therefore every nonempty
    # cell contains an invisible marker with the custom data (position of the group, error).
    figure.add_scatter(
        x=[x_labels[j] for _, j in nonempty],
        y=[y_labels[i] for i, _ in nonempty],
        mode="markers",
        marker={"size": 14, "symbol": "square", "opacity": 0.0},
        selected={"marker": {"opacity": 0.0}},
        unselected={"marker": {"opacity": 0.0}},
        customdata=[(entries[i][j][1], float(grid[i, j])) for i, j in nonempty],
        hovertemplate="%{y} × %{x}<br>up to %{customdata[1]:,.4~r} counts<extra></extra>",
        showlegend=False,
    )
    pair = max((key for key in worst if len(key) == 2), key=worst.__getitem__)
    return Picture(
        title="Largest standard error per pair",
        figure=figure,
        table=pd.DataFrame(grid, columns=names)
        .assign(attribute=names)
        .set_index("attribute")
        .reset_index(),
        alt=(
            f"{set_name([n for n in names if n in pair])} is the least accurate pair, "
            f"with {format_number(worst[pair][0])} counts."
        ),
        note=(
            "Diagonal: single attributes. Empty: not in the workload. Choose a cell to see its"
            " table."
        ),
    )


def error_picture(
    plan: Plan, group: int, across: Sequence[int] | None = None, fixed: Sequence[int] | None = None
) -> Picture:
    """Return a figure of the standard errors of the queries of a group, in counts.

    ``across`` and ``fixed`` select the queries to draw and are explained at `error_grid`.
    """
    grid = error_grid(plan.workload, group, across, fixed)
    errors = grid.standard_errors(plan)
    shown = errors[grid.shown]
    low, high = (format_number(float(end)) for end in (shown.min(), shown.max()))
    if not grid.axes:
        title, alt = grid.what, f"It is {low} counts."
    elif shown.size == 1:
        title = _counted(1, grid.what)
        alt = f"{title}: standard error {low} counts."
    else:
        title = f"all {grid.what}"
        alt = f"{_counted(shown.size, grid.what)}: standard errors from {low} to {high} counts."
    return Picture(
        title=f"Standard error of {title}",
        figure=grid_figure(grid, errors, "standard error", "counts"),
        table=pd.DataFrame(grid.columns() | {"standard error": shown}),
        alt=alt,
        note=grid.note,
    )


def _counted(count: int, what: str) -> str:
    """Return a number of queries as text; ``what`` describes them in the plural.

    >>> _counted(1, "queries on age"), _counted(2, "ranges of age")
    ('1 query on age', '2 ranges of age')
    """
    plural, *others = what.split(" ")
    singular = {"queries": "query", "ranges": "range"}[plural]
    return " ".join([pluralize(count, singular, plural), *others])


def areas_picture(areas: pd.DataFrame, level: str) -> Picture:
    """Return a figure of the largest standard error of every area at a level of a hierarchy.

    Parameters
    ----------
    areas : result of `engine.analysis.variance_breakdown.area_errors`; the first `MAX_SIDE` rows are drawn.
    level : name of the level.
    """
    shown = areas.head(MAX_SIDE)
    errors = shown["largest standard error"].to_numpy()
    title = "standard error (counts)"
    figure = line(
        errors,
        shown["label"].tolist(),
        (level, title),
        "%{x}<br>up to %{y:,.4~r} counts",
        connected=False,
    )
    table = areas.rename(columns={"label": level}).drop(columns="area")
    return Picture(
        title=f"Largest standard error by {level}",
        figure=figure,
        table=table,
        alt=(
            f"{pluralize(len(shown), 'area')} of the level {level}: standard errors from"
            f" {format_number(float(errors.min()))} to {format_number(float(errors.max()))} counts."
        ),
        note="",
    )


def grid_figure(grid: Grid, values: Array, quantity: str, unit: str) -> go.Figure:
    """Return a figure with one value per query: a bar, a line chart or a heat map.

    The kind depends on the number of axes of the grid: 0, 1 or 2.

    Parameters
    ----------
    values : values in the shape of the grid.
    quantity : name of the values.
    unit : unit of the values; may be empty.
    """
    axis_title = f"{quantity} ({unit})" if unit else quantity
    if not grid.axes:
        return bars([float(values)], ["all records"], axis_title, f"%{{y}}: %{{x:,.4~r}} {unit}")
    hover_value = f"{quantity} %{{z:,.4~r}} {unit}".strip()
    if len(grid.axes) == 1:
        # in a line chart the value is y, not z
        hover = f"{grid.hover}<br>{hover_value.replace('%{z', '%{y')}"
        connected = len(values) > 1 and grid.ordered
        return line(values, grid.labels[0], (grid.axes[0], axis_title), hover, connected=connected)
    return heat_map(
        values,
        grid.labels,
        grid.axes,
        f"{grid.hover}<br>{hover_value}",
        quantity.replace(" ", "<br>"),
    )


def spread_picture(plan: Plan, tolerance: float) -> Picture:
    """Return a figure of the cumulative distribution of the standard errors of all queries.

    A vertical line marks a standard error, ``tolerance``, in counts.
    """
    distribution = error_distribution(plan)
    finite = distribution.errors[np.isfinite(distribution.errors)]
    indices = evenly_spaced(len(finite), MAX_STEPS)
    shares = {
        "type": "scatter",
        "x": finite[indices],
        "y": distribution.shares[indices],
        "mode": "lines",
        "line": {"shape": "hv", "color": BLUE, "width": 2.5},
        "hovertemplate": (
            "%{y:.1%} of the queries have a standard error<br>of %{x:,.4~r} counts or"
            " less<extra></extra>"
        ),
        "showlegend": False,
    }
    # errors that differ by more than a factor of 20 are drawn on a logarithmic axis
    is_log = len(finite) > 0 and finite[-1] > 20 * finite[0] > 0
    log_range = (
        (min(float(finite[0]), tolerance), max(float(finite[-1]), tolerance)) if is_log else None
    )
    # On a logarithmic axis plotly expects log10 of the position of an annotation.
    annotation_x = math.log10(tolerance) if is_log else tolerance
    limit = {"type": "line", "x0": tolerance, "x1": tolerance, "y0": 0, "y1": 1, "yref": "paper"}
    above = {"x": annotation_x, "y": 1.02, "yref": "paper", "yanchor": "bottom", "showarrow": False}
    layout = {
        "shapes": [limit | {"line": {"color": ORANGE, "dash": "dash"}}],
        "annotations": [above | {"text": f"tolerance {format_number(tolerance)}"}],
    }
    rows = [(f"{q:.0%}", distribution.quantile(q)) for q in QUANTILES]
    return Picture(
        title="Distribution of standard errors",
        figure=set_margins(go.Figure([shares], layout | spread_axes(log_range))),
        table=pd.DataFrame(rows, columns=["share of queries", "standard error at most"]),
        alt=(
            f"{percent(distribution.within(tolerance))} of"
            f" {pluralize(plan.workload.queries, 'query', 'queries')}"
            f" {'has' if plan.workload.queries == 1 else 'have'} a standard error of"
            f" {format_number(tolerance)} counts or less."
        ),
        note=distribution.how,
    )


def spread_axes(log_range: tuple[float, float] | None) -> dict[str, Any]:
    """Return the plotly axes for cumulative distributions of standard errors.

    ``log_range`` contains the ends of the logarithmic x axis, in counts; the axis is linear if it
    is None.
    """
    kind = log_axis(*log_range) if log_range else {"type": "linear", "rangemode": "tozero"}
    return {
        "xaxis": {"title": {"text": "standard error (counts)"}} | kind,
        "yaxis": {"title": {"text": "share of queries"}, "tickformat": ".0%", "range": [0, 1.02]},
    }


MAX_POINTS = 20_000  # largest number of queries in a line chart
MAX_STEPS = MAX_POINTS // 10  # largest number of steps of a cumulative distribution
Positions = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Grid:
    """Queries of one group, arranged in a grid with at most two axes.

    Every combination of a label of the first axis and a label of the second axis is a cell of the
    grid.  A cell contains a query of the group or is empty.

    Attributes
    ----------
    group : position of the group in the workload.
    axes : titles of the axes.
    labels : for every axis, its labels.
    shown : whether a cell contains a query, shape (labels of axis 1, labels of axis 2).
    index : one array per part of the group (a query family; a query of the group combines one query
        of every part).  The array of a part has the index of its query for every nonempty cell.
    what : description of the queries, such as "queries on age".
    hover : plotly hover template of a cell.
    ordered : whether the order of the labels has a meaning, if the grid has one axis.
    note : sentence about queries that are not in the grid; may be empty.
    """

    group: int
    axes: tuple[str, ...]
    labels: tuple[tuple[str, ...], ...]
    shown: npt.NDArray[np.bool_]
    index: tuple[Positions, ...]
    what: str
    hover: str
    ordered: bool = False
    note: str = ""

    def standard_errors(self, plan: Plan) -> Array:
        """Return the standard errors of the queries in counts; NaN in cells without a query.

        The array has the shape of the grid.
        """
        errors = np.full(self.shown.shape, np.nan)
        if not self.index:
            errors[...] = np.sqrt(plan.variances(self.group)[0])
        else:
            errors[self.shown] = np.sqrt(plan.group_variance(self.group).at(self.index))
        return errors

    def columns(self) -> dict[str, list[str]]:
        """Return the labels of the queries as columns of a table, one per axis."""
        if not self.axes:
            return {"query": ["all records"]}
        positions = np.nonzero(self.shown)
        names = self.axes if len(self.axes) > 1 else ("query",)
        return {
            name: [texts[i] for i in indices]
            for name, texts, indices in zip(names, self.labels, positions, strict=True)
        }


def error_grid(
    workload: Workload,
    group: int,
    across: Sequence[int] | None = None,
    fixed: Sequence[int] | None = None,
) -> Grid:
    """Select the queries of a group to draw, and arrange them in a grid.

    A group consists of parts, which are query families on different attributes.  A query of the
    group combines one query of every part (query family).  The queries of one or two parts vary
    along the axes of the grid; all other parts have a fixed query.

    If a single part varies and its queries are ranges, the axes are the first cell and the last
    cell of a range; for circular ranges, the first cell and the number of cells.  Otherwise every
    varying part is an axis.

    Parameters
    ----------
    across : positions of the parts that vary, one or two; by default the first two.
    fixed : for every part, the index of its fixed query, shape (parts,); ignored for the parts in
        ``across``; by default zeros.
    """
    queries = workload.groups[group]
    if not queries.parts:
        return Grid(
            group=group,
            axes=(),
            labels=(),
            shown=np.ones((), bool),
            index=(),
            what="the total",
            hover="",
        )
    drawn_parts = tuple(across) if across is not None else tuple(range(min(2, len(queries.parts))))
    fixed_queries = list(fixed) if fixed is not None else [0] * len(queries.parts)
    fixed_texts = [
        part_text(workload, queries, p, fixed_queries[p])
        for p in range(len(queries.parts))
        if p not in drawn_parts
    ]
    suffix = f", with {' and '.join(fixed_texts)}" if fixed_texts else ""
    if len(drawn_parts) == 1 and isinstance(
        queries.parts[drawn_parts[0]].family, (Range, Circular)
    ):
        return _range_grid(workload, group, drawn_parts[0], fixed_queries, suffix)
    max_points = MAX_POINTS if len(drawn_parts) == 1 else MAX_SIDE
    indices = [evenly_spaced(queries.parts[p].count, max_points) for p in drawn_parts]
    mesh = np.meshgrid(*indices, indexing="ij")
    names = [_part_name(queries, p) for p in drawn_parts]
    labels = [
        tuple(short_query_text(part_text(workload, queries, p, int(i)), name) for i in positions)
        for p, positions, name in zip(drawn_parts, indices, names, strict=True)
    ]
    complete = all(
        len(c) == queries.parts[p].count for p, c in zip(drawn_parts, indices, strict=True)
    )
    notes = [] if complete else [f"{mesh[0].size:,} evenly spaced queries are drawn."]
    ranges = [
        name
        for p, name in zip(drawn_parts, names, strict=True)
        if isinstance(queries.parts[p].family, (Range, Circular))
    ]
    if ranges:
        # Ranges of different lengths alternate along an axis, which looks like a barcode.
        notes.append(f"To see the ranges as a triangle, choose {ranges[0]} as the only axis.")
    placeholders = ("%{x}",) if len(drawn_parts) == 1 else ("%{y}", "%{x}")
    return Grid(
        group=group,
        axes=tuple(f"query on {name}" for name in names),
        labels=tuple(labels),
        shown=np.ones(mesh[0].shape, bool),
        index=_part_positions(
            fixed_queries,
            {p: positions.ravel() for p, positions in zip(drawn_parts, mesh, strict=True)},
        ),
        what=f"queries on {' and '.join(names)}{suffix}",
        hover="<br>".join(
            f"{html.escape(name)} {mark}" for name, mark in zip(names, placeholders, strict=True)
        ),
        ordered=queries.parts[drawn_parts[0]].family.ordered,
        note=" ".join(notes),
    )


def _range_grid(
    workload: Workload, group: int, part: int, fixed_queries: Sequence[int], suffix: str
) -> Grid:
    """Return a grid of the ranges of one part (query family) of a group: first cell by last cell.

    For circular ranges, the second axis is the number of cells.  The parameters are explained at
    `error_grid`; ``suffix`` is a text about the fixed queries of the other query families.
    """
    queries = workload.groups[group]
    name, n = queries.attributes[queries.parts[part].axes[0]], queries.parts[part].sizes[0]
    circular = isinstance(queries.parts[part].family, Circular)
    cells = evenly_spaced(n, MAX_SIDE)
    first, second = np.meshgrid(cells, cells, indexing="ij")
    is_query = np.ones(first.shape, bool) if circular else first <= second
    # Queries are numbered by first cell, and for the same first cell by number of cells (circular
    # ranges) or by last cell (other ranges).
    query = first * n + second
    if not circular:
        # No range has last < first.  Of these pairs, 0 + 1 + ... + first come before (first, last).
        query -= first * (first + 1) // 2
    labels = tuple(cell_text(workload.schema[name], int(i)) for i in cells)
    return Grid(
        group=group,
        axes=(f"first cell of {name}", "number of cells" if circular else f"last cell of {name}"),
        labels=(labels, tuple(str(int(i) + 1) for i in cells) if circular else labels),
        shown=is_query,
        index=_part_positions(fixed_queries, {part: query[is_query]}),
        what=f"ranges of {name}{suffix}",
        hover="from %{y}, %{x} cells" if circular else "%{y} to %{x}",
        note=(
            "" if len(cells) == n else f"Ranges between {len(cells)} evenly spaced cells are drawn."
        ),
    )


def _part_positions(
    fixed_queries: Sequence[int], positions_by_part: dict[int, Positions]
) -> tuple[Positions, ...]:
    """Return the field ``index`` of a `Grid`: the query of every query family in every cell.

    Queries are given by their index in the family.

    Parameters
    ----------
    fixed_queries : for every part (query family), the index of the query that fills all cells if
        the part is not in ``positions_by_part``.
    positions_by_part : maps the position of a part to the indices of its queries, shape (cells,).
    """
    size = len(next(iter(positions_by_part.values())))
    return tuple(
        positions_by_part.get(p, np.full(size, position))
        for p, position in enumerate(fixed_queries)
    )


def part_text(workload: Workload, group: Group, part: int, index: int) -> str:
    """Return the text of query ``index`` of one part (query family) of a group."""
    queries = group.parts[part]
    attributes = [workload.schema[group.attributes[a]] for a in queries.axes]
    return query_texts(attributes, [queries.family.text(attributes, index)])[0] or "all records"


def _part_name(group: Group, part: int) -> str:
    return set_name(group.attributes[a] for a in group.parts[part].axes)


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
