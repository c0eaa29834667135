"""Figures of query coefficients and of strategy matrices.

`family_picture` and `plane_picture` draw the coefficients of queries on the cells.  `range_picture`
draws the cells of attributes; the user can select cells by drawing a box, which `cells_in_box`
converts to ranges of cells.  `rows_picture` and `gram_picture` draw one Kronecker factor of the
strategy matrix of a block, and the Gram matrix of this factor.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import plotly.graph_objects as go

from engine._arrays import Array
from engine._format import number, pluralize, set_name
from engine.figures.base import (
    BLUE,
    GREY,
    MAX_SIDE,
    TOOLBAR_HEIGHT_PX,
    Picture,
    axis_labels,
    evenly_spaced,
    heat_map,
    set_margins,
    short_query_text,
)
from engine.plans import Plan
from engine.residuals import Space
from engine.workload import Attribute, Circular, Group, Range, Schema, Workload
from engine.workload.attribute import cell_text, query_texts
from engine.workload.conditions import box_workload

MAX_ROWS = 128  # largest number of queries that `family_picture` draws


def family_picture(schema: Schema, group: Group, part: int = 0, query: int = 0) -> Picture:
    """Return a heat map of the coefficients of the queries of one query family in a group.

    For a family on two attributes, the heat map shows one query and has one attribute per axis.
    For any other family, it has one row per query, at most `MAX_ROWS`, and one column per cell.
    At most the first `MAX_SIDE` cells are drawn per axis.

    Parameters
    ----------
    part : position of the query family in ``group.parts``.
    query : index of the query to draw, if the family is on two attributes.
    """
    part_queries = group.parts[part]
    columns = [schema[group.attributes[a]] for a in part_queries.axes]
    if len(columns) == 2:
        grid = part_queries.family.rows(part_queries.sizes, query, query + 1).reshape(
            part_queries.sizes
        )[:MAX_SIDE, :MAX_SIDE]
        labels = [
            [cell_text(c, i) for i in range(n)] for c, n in zip(columns, grid.shape, strict=True)
        ]
        (text,) = query_texts(columns, [part_queries.family.text(columns, query)])
        title = f"Query {query:,} of {part_queries.count:,}: {text}"
        axes = [c.name for c in columns]
        alt = (
            f"{int(np.count_nonzero(grid)):,} of {grid.size:,} cells drawn are counted by the query"
            f" {text}."
        )
        complete = grid.size == math.prod(part_queries.sizes)
    else:
        positions = evenly_spaced(part_queries.count, MAX_ROWS)
        grid = np.concatenate(
            [
                part_queries.family.rows(part_queries.sizes, int(i), int(i) + 1)[:, :MAX_SIDE]
                for i in positions
            ]
        )
        cells = [
            cell_text(columns[0], i) if len(columns) == 1 else str(i) for i in range(grid.shape[1])
        ]
        name = set_name(c.name for c in columns)
        texts = [part_queries.family.text(columns, int(i)) or "all records" for i in positions]
        labels = [[short_query_text(text, name) for text in query_texts(columns, texts)], cells]
        count_text = pluralize(part_queries.count, "query", "queries")
        axes = ["query", f"cell of {name}"]
        title = f"{part_queries.family.name} on {name}: {count_text}"
        alt = f"{len(positions):,} of {count_text} as rows; coloured cells of {name} are counted."
        complete = len(positions) == part_queries.count and grid.shape[1] == math.prod(
            part_queries.sizes
        )
    # lines between the cells, if the cells are large enough to remain visible
    style: dict[str, Any] = {"xgap": 1, "ygap": 1} if max(grid.shape) <= 40 else {}
    note = "Bright cells are counted." if set(np.unique(grid)) <= {0.0, 1.0} else ""
    if note:
        style["showscale"] = False
    figure = _coefficient_map(grid, labels, axes, **style)
    table = pd.DataFrame(
        grid, index=pd.Index(labels[0], name=axes[0]), columns=labels[1]
    ).reset_index()
    if not complete:
        note += (
            f" At most {MAX_ROWS} evenly spaced queries and {MAX_SIDE} cells per axis are drawn."
        )
    return Picture(title=title, figure=figure, table=table, alt=alt, note=note.strip())


DOMAIN_TICKS = 14  # ticks on the axis of cells
CellRange = tuple[int, int]  # first and last cell, inclusive


def has_too_many_ranges(group: Group, part: int) -> bool:
    """Return whether a query family is of ranges, of which `family_picture` would draw only some.

    Neighbouring rows would then be unrelated ranges, in which no structure can be seen.
    """
    part_queries = group.parts[part]
    return isinstance(part_queries.family, (Range, Circular)) and part_queries.count > MAX_ROWS


def query_examples(schema: Schema, group: Group, part: int, most: int = 10) -> pd.DataFrame:
    """Return evenly spaced queries of one query family in a group.

    Returns
    -------
    DataFrame with at most ``most`` rows and the columns number (of the query, from 1) and query
    (its text).
    """
    part_queries = group.parts[part]
    attributes = [schema[group.attributes[a]] for a in part_queries.axes]
    positions = evenly_spaced(part_queries.count, most)
    texts = [part_queries.family.text(attributes, int(i)) or "all records" for i in positions]
    return pd.DataFrame({"number": positions + 1, "query": query_texts(attributes, texts)})


def range_picture(schema: Schema, chosen: Mapping[str, CellRange]) -> Picture:
    """Return a figure of the cells of one or two attributes, on which the user can draw a box.

    Parameters
    ----------
    chosen : maps each attribute to the first and the last of the selected cells, inclusive.
    """
    names = list(chosen)
    # ``cells`` has one array of drawn cells per attribute.
    cells = [evenly_spaced(schema[name].size, MAX_SIDE) for name in names]
    is_chosen = [
        (first <= drawn) & (drawn <= last)
        for drawn, (first, last) in zip(cells, chosen.values(), strict=True)
    ]
    labels = [
        [cell_text(schema[name], int(cell)) for cell in drawn]
        for name, drawn in zip(names, cells, strict=True)
    ]
    is_single = len(names) == 1
    if is_single:
        trace, layout = _range_bars(names[0], cells[0], is_chosen[0], labels[0])
        layout["xaxis"] = _cell_axis(schema[names[0]], cells[0])
    else:
        trace, layout = _range_map(cells, is_chosen, labels)
        layout["yaxis"] = _cell_axis(schema[names[0]], cells[0], downwards=True)
        layout["xaxis"] = _cell_axis(schema[names[1]], cells[1])
    layout |= {
        "dragmode": "select",
        "selectdirection": "h" if is_single else "any",
        "showlegend": False,
    }
    (text,) = query_texts(schema.attributes, [box_workload(schema, chosen).describe(0)])
    n_chosen = math.prod(last - first + 1 for first, last in chosen.values())
    all_are_drawn = all(
        len(drawn) == schema[name].size for name, drawn in zip(names, cells, strict=True)
    )
    ends = {name: [cell_text(schema[name], i) for i in run] for name, run in chosen.items()}
    return Picture(
        title=f"Chosen range of {' and '.join(names)}",
        figure=set_margins(go.Figure([trace], layout), top=TOOLBAR_HEIGHT_PX),
        table=pd.DataFrame({"end of the range": ["first cell", "last cell"]} | ends),
        alt=f"{number(n_chosen)} of {pluralize(schema.cells(names), 'cell')} chosen: {text}.",
        note="" if all_are_drawn else f"At most {MAX_SIDE} evenly spaced cells per axis are drawn.",
    )


def _cell_axis(attribute: Attribute, drawn: Any, *, downwards: bool = False) -> dict[str, Any]:
    """Return the plotly properties of an axis of the cells ``drawn`` of an attribute.

    The first cell is at the left or at the bottom, or at the top if ``downwards``.
    """
    tick_cells = [int(drawn[i]) for i in evenly_spaced(len(drawn), DOMAIN_TICKS)]
    ends = [-0.5, attribute.size - 0.5]
    return {
        "title": {"text": axis_labels([attribute.name])[0]},
        "tickvals": tick_cells,
        "ticktext": axis_labels([cell_text(attribute, cell) for cell in tick_cells]),
        "range": ends[::-1] if downwards else ends,
        "automargin": True,
        "autotickangles": [0, 90],
        "ticklabeloverflow": "allow",
    }


def cells_in_box(
    schema: Schema, names: Sequence[str], box: Mapping[str, Sequence[float]]
) -> dict[str, CellRange]:
    """Return the ranges of cells whose centers are in a box that was drawn on `range_picture`.

    If no center is within the range of the box on an axis, the nearest cell is returned.  If the
    box has no range on an axis, all cells of the attribute are returned.

    Parameters
    ----------
    names : attributes of the figure: one on the x axis, or the first on the y axis and the second
        on the x axis.
    box : maps an axis ("x" or "y") to the ends of the box on this axis.

    >>> from engine import Attribute
    >>> schema = Schema([Attribute.of_size("age", 9), Attribute.of_size("code", 4)])
    >>> cells_in_box(schema, ["age"], {"x": [2.4, 5.1], "y": [0, 1]})
    {'age': (3, 5)}
    >>> cells_in_box(schema, ["age", "code"], {"x": [-9, 0.2], "y": [7.6, 7.8]})
    {'age': (8, 8), 'code': (0, 0)}
    """
    axes = ["x"] if len(names) == 1 else ["y", "x"]
    return {
        name: _cell_range(box.get(axis, ()), schema[name].size)
        for name, axis in zip(names, axes, strict=True)
    }


def plane_picture(schema: Schema, group: Group, query: int) -> Picture:
    """Return a heat map of the coefficients of one query of a group on two attributes.

    Raises
    ------
    ValueError : the group does not have two attributes.
    """
    if len(group.attributes) != 2:
        raise ValueError(
            f"The group is on {pluralize(len(group.attributes), 'attribute')}. Give a group on two"
            " attributes."
        )
    attributes = [schema[name] for name in group.attributes]
    cells = [evenly_spaced(attribute.size, MAX_SIDE) for attribute in attributes]
    grid = _coefficients(group, query)[np.ix_(*cells)]
    labels = [
        [cell_text(attribute, int(cell)) for cell in drawn]
        for attribute, drawn in zip(attributes, cells, strict=True)
    ]
    (text,) = query_texts(schema.attributes, [Workload(schema, (group,)).describe(query)])
    figure = _coefficient_map(grid, labels, group.attributes)
    table = pd.DataFrame(
        grid, index=pd.Index(labels[0], name=group.attributes[0]), columns=labels[1]
    ).reset_index()
    notes = ["Bright cells are counted."] if set(np.unique(grid)) <= {0.0, 1.0} else []
    if grid.size < schema.cells(group.attributes):
        notes.append(f"At most {MAX_SIDE} cells per axis are drawn.")
    return Picture(
        title=f"Query {query:,} of {group.count:,}: {text}",
        figure=figure,
        table=table,
        alt=(
            f"{int(np.count_nonzero(grid)):,} of {grid.size:,} cells drawn are counted by the query"
            f" {text}."
        ),
        note=" ".join(notes),
    )


def _coefficient_map(
    grid: Array, labels: Sequence[Sequence[str]], axes: Sequence[str], **style: Any
) -> go.Figure:
    """Return a heat map of query coefficients: how often a query counts the records of a cell.

    ``style`` are further plotly properties of the heat map.
    """
    color_range = {"zmin": min(0.0, float(grid.min())), "zmax": max(1.0, float(grid.max()))}
    return heat_map(
        grid,
        labels,
        axes,
        "%{y}<br>%{x}<br>counted %{z:g} times",
        "times<br>counted",
        **color_range,
        **style,
    )


def _coefficients(group: Group, query: int) -> Array:
    """Return the coefficients of a query of a group on two attributes, shape (n_1, n_2)."""
    rows = []
    # From one query of the group to the next, the query of the last family changes first.
    for part in reversed(group.parts):
        query, row = divmod(query, part.count)
        rows.append(part.family.rows(part.sizes, row, row + 1).reshape(part.sizes))
    return rows[0] if len(rows) == 1 else np.multiply.outer(rows[1], rows[0])


def _cell_range(corners: Sequence[float], size: int) -> CellRange:
    """Return the first and the last cell whose centers are between two coordinates.

    If no center is between the coordinates, the nearest cell is returned as first and last cell.

    Parameters
    ----------
    corners : the two coordinates; if none of them is a finite number, all cells are returned.
    size : number of cells of the attribute.
    """
    finite_corners = [float(c) for c in corners if isinstance(c, (int, float)) and math.isfinite(c)]
    low, high = (min(finite_corners), max(finite_corners)) if finite_corners else (0.0, size - 1.0)
    first, last = math.ceil(low), math.floor(high)
    if first > last:
        first = last = round((low + high) / 2)
    return min(max(first, 0), size - 1), min(max(last, 0), size - 1)


# Plotly properties of a trace, and of the layout of its figure.
_TraceAndLayout = tuple[dict[str, Any], dict[str, Any]]


def _range_bars(name: str, cells: Any, is_chosen: Any, labels: Sequence[str]) -> _TraceAndLayout:
    """Return a row of equal boxes, one per cell; selected cells are blue, all others hatched."""
    texts = [html.escape(label) for label in labels]
    hover_texts = [
        [text, "chosen" if chosen else "not chosen"]
        for text, chosen in zip(texts, is_chosen, strict=True)
    ]
    bar = {
        "type": "bar",
        "x": cells,
        # Boxes of equal height cannot be mistaken for counts.
        "y": np.ones(len(labels)),
        # If only some cells are drawn, each bar is as wide as the distance to the next drawn cell.
        "width": max(1.0, float(cells[-1] + 1) / len(cells)) * 0.9,
        # With the hatching, selected cells can be recognized without color.
        "marker": {
            "color": [BLUE if chosen else GREY for chosen in is_chosen],
            "pattern": {"shape": ["" if chosen else "/" for chosen in is_chosen]},
        },
        "customdata": hover_texts,
        "hovertemplate": (
            f"{html.escape(name)} %{{customdata[0]}}<br>%{{customdata[1]}}<extra></extra>"
        ),
    }
    y_axis = {"range": [0, 1.1], "showticklabels": False, "showgrid": False, "title": {"text": ""}}
    return bar, {"height": 170, "yaxis": y_axis}


def _range_map(
    cells: Sequence[Any], is_chosen: Sequence[Any], labels: Sequence[Sequence[str]]
) -> _TraceAndLayout:
    """Return a heat map of the cells of two attributes; selected cells are bright."""
    rows, columns = (axis_labels(side) for side in labels)
    heat = {
        "type": "heatmap",
        "z": np.multiply.outer(is_chosen[0], is_chosen[1]).astype(int),
        "x": cells[1],
        "y": cells[0],
        "zmin": 0,
        "zmax": 1,
        "colorscale": "Cividis",
        "showscale": False,
        # This is an array, because plotly inspects every element of a list, which takes long.
        "text": np.array(
            [[f"{row}<br>{column}" for column in columns] for row in rows], dtype=object
        ),
        "hovertemplate": "%{text}<extra></extra>",
    }
    # lines between the cells, if the cells are large enough to remain visible
    gaps = {"xgap": 1, "ygap": 1} if max(len(rows), len(columns)) <= 60 else {}
    height = min(620, max(300, 140 + 14 * len(rows)))
    return heat | gaps, {"height": height}


SIDE = 80  # largest number of rows and of columns of a strategy heat map; 80 x 80 need 35 kB
SQUARE_HEIGHT_PX = 520
HEATMAP_TICKS = 6  # few, because two of these figures are side by side


def block_names(plan: Plan) -> dict[Space, str]:
    """Return a text for every block of a plan, by its key in ``plan.blocks``.

    A text contains the attributes of the block and the number of its measurements.  If two blocks
    are on the same attributes, each text begins with the position of its block.  The block with the
    largest privacy cost comes first.

    >>> from engine import Attribute, Budget, plan, Schema, Workload
    >>> workload = Workload.all_ways(Schema([Attribute.of_size("a", 4)]), (1,), "marginal")
    >>> list(block_names(plan(workload, Budget(pcost=1.0))).values())
    ['a: 3 numbers', '(total): 1 number']
    """
    blocks = sorted(plan.blocks.items(), key=lambda item: -item[1].pcost(plan.max_records))
    names_by_key = {}
    is_numbered = len({block.attributes for _, block in blocks}) < len(blocks)
    for position, (key, block) in enumerate(blocks, 1):
        names = set_name(block.attributes)
        prefix = f"part {position}, " if is_numbered else ""
        names_by_key[key] = f"{prefix}{names}: {pluralize(block.measurements, 'number')}"
    return names_by_key


def factor_names(plan: Plan, key: Space) -> list[str]:
    """Return one text per Kronecker factor of the strategy of a block, with attributes and size."""
    block = plan.blocks[key]
    return [
        f"{set_name(block.attributes[a] for a in axes)}: {pluralize(len(s.rows), 'row')} on"
        f" {pluralize(s.cells, 'cell')}"
        for axes, s in block.factors
    ]


def rows_picture(plan: Plan, key: Space, factor: int = 0) -> Picture:
    """Return a heat map of one Kronecker factor of the strategy matrix of a block.

    At most `SIDE` evenly spaced rows are drawn, and the columns of `_drawn_cells`.
    """
    rows, labels, sizes, name = _factor(plan, key, factor)
    m, n = rows.shape
    row_indices, cell_indices = evenly_spaced(m, SIDE), _drawn_cells(sizes)
    shown = rows[np.ix_(row_indices, cell_indices)]
    row_labels = [f"row {int(i) + 1}" for i in row_indices]
    cell_labels = [labels[int(i)] for i in cell_indices]
    figure = heat_map(
        shown.astype(np.float32),
        [row_labels, cell_labels],
        ["measurement", f"cell of {name}"],
        "%{y}, %{x}<br>weight %{z:.4f}",
        "weight",
    )
    _set_color_range(figure, shown)
    max_rows_per_cell = int(np.max(np.count_nonzero(np.abs(rows) > 1e-9, axis=0)))
    table = pd.DataFrame(shown, columns=_distinct(cell_labels))
    # A cell label can be "row", so that the table has two columns of this name.
    table.insert(0, "row", row_labels, allow_duplicates=True)
    return Picture(
        title=f"Strategy on {name}",
        figure=figure,
        table=table,
        alt=(
            f"{pluralize(m, 'row')} on {pluralize(n, 'cell')} of {name}; a record changes up to "
            f"{max_rows_per_cell:,} of the {m:,} numbers."
        ),
        note=(
            "One row is one noisy number."
            f" {_thinning_note(rows=(m, row_indices), cells=(n, cell_indices))}"
        ).strip(),
    )


def gram_picture(plan: Plan, key: Space, factor: int = 0) -> Picture:
    """Return a heat map of the Gram matrix S^T S of one Kronecker factor S of a strategy matrix.

    The Gram matrix has one row and one column per cell; those of `_drawn_cells` are drawn.
    """
    rows, labels, sizes, name = _factor(plan, key, factor)
    n = rows.shape[1]
    cell_indices = _drawn_cells(sizes)
    shown = rows[:, cell_indices].T @ rows[:, cell_indices]
    cell_labels = [labels[int(i)] for i in cell_indices]
    axes = [f"cell of {name}", f"cell of {name}"]
    figure = heat_map(
        shown.astype(np.float32),
        [cell_labels, cell_labels],
        axes,
        "%{y}<br>%{x}<br>%{z:.4f}",
        "inner<br>product",
    )
    _set_color_range(figure, shown)
    diagonal = np.einsum("rc,rc->c", rows, rows)
    ends = dict.fromkeys(f"{cost:.3f}" for cost in (diagonal.min(), diagonal.max()))
    costs = " to ".join(ends)
    table = pd.DataFrame(shown, columns=_distinct(cell_labels))
    table.insert(0, "cell", cell_labels, allow_duplicates=True)
    return Picture(
        title=f"Gram matrix of the strategy on {name}",
        figure=figure,
        table=table,
        alt=(
            f"{pluralize(n, 'cell')}. The diagonal entry of a cell, {costs}, is the privacy cost of"
            " one record in it."
        ),
        note=(
            "Bright: both cells are counted in the same noisy numbers. If only the diagonal is"
            " bright, every cell is measured by itself."
            f" {_thinning_note(cells=(n, cell_indices))}"
        ).strip(),
    )


def on_one_scale(*pictures: Picture) -> None:
    """Set the same color range in the heat maps of several pictures, to make them comparable.

    The common range is symmetric around 0 if the range of one of the pictures is symmetric.
    """
    ranges = [(trace.zmin, trace.zmax) for picture in pictures for trace in picture.figure.data]
    high, low = max(top for _, top in ranges), min(bottom for bottom, _ in ranges)
    if any(bottom == -top for bottom, top in ranges):
        high = max(high, -low)
        low = -high
    for picture in pictures:
        picture.figure.update_traces(zmin=low, zmax=high)


def _drawn_cells(sizes: Sequence[int]) -> npt.NDArray[np.int64]:
    """Return the indices of at most `SIDE` cells of a table with these sizes, in drawing order.

    The cells are evenly spaced along each attribute.  The largest attribute varies fastest, so that
    each combination of values of the other attributes is a block.

    >>> _drawn_cells([3, 2]).tolist()
    [0, 2, 4, 1, 3, 5]
    """
    axes = sorted(range(len(sizes)), key=lambda axis: sizes[axis])
    cells_left, positions = SIDE, []
    for n_done, axis in enumerate(axes):
        # The remaining attributes get equal numbers of cells, whose product is at most
        # ``cells_left``.
        most = max(1, int(cells_left ** (1.0 / (len(axes) - n_done)) + 1e-9))
        positions.append(evenly_spaced(sizes[axis], most))
        cells_left //= len(positions[-1])
    grid = np.meshgrid(*positions, indexing="ij")
    places = [grid[axes.index(axis)].ravel() for axis in range(len(sizes))]
    return np.ravel_multi_index(places, sizes).astype(np.int64)


def _factor(plan: Plan, key: Space, factor: int) -> tuple[Array, list[str], tuple[int, ...], str]:
    """Return one Kronecker factor of the strategy of a block.

    Returns
    -------
    matrix : the factor, shape (rows, cells).
    labels : label of every cell, that is, of every column of the matrix.
    sizes : number of cells per attribute of the factor.
    name : attributes of the factor, as text.
    """
    block = plan.blocks[key]
    # A block without factors measures the total number of records.
    if not block.factors:
        return np.ones((1, 1)), ["all records"], (1,), "all records"
    axes, strategy = block.factors[factor]
    attributes = [plan.schema[block.attributes[a]] for a in axes]
    # A column of the matrix is for one cell per attribute.
    cells_by_column = np.transpose(
        np.unravel_index(np.arange(strategy.cells), strategy.sizes)
    ).tolist()
    texts = [
        ", ".join(
            cell_text(attribute, cell) for attribute, cell in zip(attributes, cells, strict=True)
        )
        for cells in cells_by_column
    ]
    name = set_name(attribute.name for attribute in attributes)
    return strategy.rows, texts, tuple(strategy.sizes), name


def _set_color_range(figure: go.Figure, shown: Array) -> None:
    """Set color range, number of ticks and height of a heat map with the values ``shown``.

    The color range is symmetric around 0 if a value is below -1/4 of the largest absolute value.
    """
    largest = float(np.abs(shown).max()) or 1.0
    lowest = float(shown.min())
    figure.update_traces(zmin=-largest if lowest < -largest / 4 else min(lowest, 0.0), zmax=largest)
    figure.update_xaxes(nticks=HEATMAP_TICKS)
    figure.update_yaxes(nticks=HEATMAP_TICKS)
    figure.update_layout(height=SQUARE_HEIGHT_PX)


def _distinct(texts: list[str]) -> list[str]:
    """Return the texts unchanged if they are distinct, otherwise each with its position in front.

    >>> _distinct(["a", "b"]), _distinct(["a", "a"])
    (['a', 'b'], ['0: a', '1: a'])
    """
    if len(set(texts)) == len(texts):
        return texts
    return [f"{position}: {text}" for position, text in enumerate(texts)]


def _thinning_note(**axes: tuple[int, npt.NDArray[np.int64]]) -> str:
    """Return a sentence about which rows and cells of a matrix are drawn.

    A keyword is the name of an axis, in the plural.  Its value is the number of rows or cells, and
    the indices of those that are drawn.  The sentence is empty if all are drawn.
    """
    if all(len(indices) == count for count, indices in axes.values()):
        return ""
    texts = []
    for name, (count, indices) in axes.items():
        if len(indices) == count:
            texts.append(f"all {count:,} {name}")
            continue
        first = ", ".join(str(i + 1) for i in indices[:3])
        # The text "(1, 2, 3, …, 100)" describes the displayed cells only if their indices are in
        # ascending order.
        is_sorted = bool((np.diff(indices) > 0).all())
        positions = f" ({first}, …, {count:,})" if is_sorted else ""
        texts.append(f"{len(indices)} of {count:,} {name}{positions}")
    return f"Drawn: {' and '.join(texts)}."
