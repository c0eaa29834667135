"""Pictures of one piece of a plan: the strategy rows on the cells, and their Gram matrix."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from engine.arrays import Array
from engine.figures.charts import Picture, heat_map, thinned
from engine.plans import Plan
from engine.spaces import Space
from engine.texts import how_many, set_name

SIDE = 80  # of a heat map; four of them stand on a page, and each takes 35 kB
SQUARE = 520  # pixels, height of a picture whose cells should be seen
TICKS = 6  # texts on the axis of a picture that is half as wide as the page


def block_names(plan: Plan) -> dict[Space, str]:
    """Return the pieces that a plan measures, the most expensive first, each with its words.

    >>> from engine import Attribute, Budget, Schema, Workload, plan
    >>> made = plan(Workload.all_ways(Schema([Attribute.of_size("a", 4)]), (1,), "marginal"), Budget(pcost=1.0))
    >>> list(block_names(made).values())
    ['a: 3 numbers', '(total): 1 number']
    """
    found = sorted(plan.blocks.items(), key=lambda item: -item[1].pcost(plan.max_records))
    out, parts = {}, len({block.attributes for _, block in found}) < len(found)
    for place, (key, block) in enumerate(found, 1):
        names = set_name(block.attributes)
        many = f"{block.measurements:,} number{'' if block.measurements == 1 else 's'}"
        out[key] = f"{f'part {place}, ' if parts else ''}{names}: {many}"
    return out


def factor_names(plan: Plan, key: Space) -> list[str]:
    """Return the Kronecker factors of one piece: their attributes and shape."""
    block = plan.blocks[key]
    return [
        f"{set_name(block.attributes[a] for a in axes)}: {how_many(len(s.rows), 'row')} on {how_many(s.cells, 'cell')}"
        for axes, s in block.factors
    ]


def rows_picture(plan: Plan, key: Space, factor: int = 0) -> Picture:
    """Rows of one factor of a strategy on its cells, at most 80 x 80."""
    rows, labels, name = _factor(plan, key, factor)
    m, n = rows.shape
    down, across = thinned(m, SIDE), thinned(n, SIDE)
    shown = rows[np.ix_(down, across)]
    numbers = [f"row {int(i) + 1}" for i in down]
    cells = [labels[int(i)] for i in across]
    figure = heat_map(
        shown.astype(np.float32),
        [numbers, cells],
        ["what is measured", f"cell of {name}"],
        "%{y}, %{x}<br>weight %{z:.4f}",
        "weight",
    )
    _signed(figure, shown)
    used = int(np.max(np.count_nonzero(np.abs(rows) > 1e-9, axis=0)))
    table = pd.DataFrame(shown, columns=_different(cells))
    table.insert(0, "row", numbers, allow_duplicates=True)
    return Picture(
        title=f"What is measured on {name}",
        figure=figure,
        table=table,
        alt=f"{how_many(m, 'row')} on {how_many(n, 'cell')} of {name}; a record moves up to {used:,} of the {m:,} "
        "numbers.",
        note=f"One row is one noisy number. {_left_out(m, n)}".strip(),
    )


def gram_picture(plan: Plan, key: Space, factor: int = 0) -> Picture:
    """Gram matrix, rows^T rows, of one factor of a strategy: how alike two cells are to the noise."""
    rows, labels, name = _factor(plan, key, factor)
    n = rows.shape[1]
    across = thinned(n, SIDE)
    shown = rows[:, across].T @ rows[:, across]
    cells = [labels[int(i)] for i in across]
    axes = [f"cell of {name}", f"cell of {name}"]
    figure = heat_map(shown.astype(np.float32), [cells, cells], axes, "%{y}<br>%{x}<br>%{z:.4f}", "inner<br>product")
    _signed(figure, shown)
    diagonal = np.einsum("rc,rc->c", rows, rows)
    table = pd.DataFrame(shown, columns=_different(cells))
    table.insert(0, "cell", cells, allow_duplicates=True)
    return Picture(
        title=f"Gram matrix of the strategy on {name}",
        figure=figure,
        table=table,
        alt=f"{how_many(n, 'cell')}; the diagonal goes from {diagonal.min():.3f} to {diagonal.max():.3f}. A cell's "
        "entry on it is what one of its records costs, and the largest one sets the price.",
        note=f"Entry (c, d) is the inner product of what a record in c and one in d move. {_left_out(1, n)}".strip(),
    )


def on_one_scale(*pictures: Picture) -> None:
    """Give heat maps that stand beside each other the same colours for the same numbers.

    0 stays in the middle of the colours where it is there in one of them.
    """
    ends = [(trace.zmin, trace.zmax) for picture in pictures for trace in picture.figure.data]
    high, low = max(top for _, top in ends), min(bottom for bottom, _ in ends)
    if any(bottom == -top for bottom, top in ends):
        high = max(high, -low)
        low = -high
    for picture in pictures:
        picture.figure.update_traces(zmin=low, zmax=high)


def _factor(plan: Plan, key: Space, factor: int) -> tuple[Array, list[str], str]:
    """Return the rows of a factor, the texts of its cells and its name; a piece without factors is the total."""
    block = plan.blocks[key]
    if not block.factors:
        return np.ones((1, 1)), ["all records"], "all records"
    axes, strategy = block.factors[factor]
    columns = [plan.schema[block.attributes[a]] for a in axes]
    places = np.unravel_index(np.arange(strategy.cells), strategy.sizes)
    texts = [
        ", ".join(column.label(int(position[i])) for column, position in zip(columns, places, strict=True))
        for i in range(strategy.cells)
    ]
    return strategy.rows, texts, set_name(c.name for c in columns)


def _signed(figure: go.Figure, shown: Array) -> None:
    """Put 0 into the middle of the colours when negative numbers matter, near their end otherwise."""
    most = float(np.abs(shown).max()) or 1.0
    lowest = float(shown.min())
    figure.update_traces(zmin=-most if lowest < -most / 4 else min(lowest, 0.0), zmax=most)
    figure.update_xaxes(nticks=TICKS)
    figure.update_yaxes(nticks=2 * TICKS)
    figure.update_layout(height=SQUARE)


def _different(texts: list[str]) -> list[str]:
    return texts if len(set(texts)) == len(texts) else [f"{i}: {text}" for i, text in enumerate(texts)]


def _left_out(m: int, n: int) -> str:
    if max(m, n) <= SIDE:
        return ""
    return (
        f"At most {SIDE} evenly spaced rows and cells are drawn of {m:,} and {n:,}."
        if m > 1
        else (f"{SIDE} evenly spaced cells of {n:,} are drawn.")
    )
