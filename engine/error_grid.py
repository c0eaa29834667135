"""Which queries of a group one picture shows, along which axes, and their standard errors under any plan.

The grid depends on the workload alone, so that two plans can be compared query by query.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.charts import short, thinned
from engine.family import Array
from engine.intervals import Circular, Range
from engine.plan import Plan
from engine.workload import Group, Workload

MAX_SIDE = 512
MAX_POINTS = 20_000
Positions = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Grid:
    """Queries of one group along no, one or two axes.

    Attributes
    ----------
    group : number of the group.
    axes, labels : title and texts of every axis; the grid has one cell for every combination of texts.
    kept : cells that stand for a query, shape (texts of the first axis, texts of the second).
    index : positions of those queries, one array a part of the group.
    what : the queries in words, such as "queries on age".
    hover : text of one cell, for plotly; labels in it are filled in.
    ordered : whether neighbours on a single axis belong together.
    note : what is left out; may be empty.
    """

    group: int
    axes: tuple[str, ...]
    labels: tuple[tuple[str, ...], ...]
    kept: npt.NDArray[np.bool_]
    index: tuple[Positions, ...]
    what: str
    hover: str
    ordered: bool = False
    note: str = ""

    def standard_errors(self, plan: Plan) -> Array:
        """Return standard errors in counts, shape of the grid; NaN where a cell is no query."""
        out = np.full(self.kept.shape, np.nan)
        if not self.index:
            out[...] = np.sqrt(plan.variances(self.group)[0])
        else:
            out[self.kept] = np.sqrt(plan.group_variance(self.group).at(self.index))
        return out

    def columns(self) -> dict[str, list[str]]:
        """Return the texts of the queries for a table, one column an axis."""
        if not self.axes:
            return {"query": ["all records"]}
        places = np.nonzero(self.kept)
        names = self.axes if len(self.axes) > 1 else ("query",)
        return {name: [texts[i] for i in place] for name, texts, place in zip(names, self.labels, places, strict=True)}


def error_grid(
    workload: Workload, group: int, across: Sequence[int] | None = None, fixed: Sequence[int] | None = None
) -> Grid:
    """Return the queries of a group to draw: a line, a triangle of ranges, or a slice of more dimensions.

    Parameters
    ----------
    across : one or two parts of the group that are drawn; the first two when left out.
    fixed : index of the query of every part that is not drawn, shape (parts,); zeros when left out.
    """
    asked = workload.groups[group]
    if not asked.parts:
        return Grid(group=group, axes=(), labels=(), kept=np.ones((), bool), index=(), what="the total", hover="")
    drawn = tuple(across) if across is not None else tuple(range(min(2, len(asked.parts))))
    held = list(fixed) if fixed is not None else [0] * len(asked.parts)
    rest = [part_text(workload, asked, p, held[p]) for p in range(len(asked.parts)) if p not in drawn]
    where = f", with {' and '.join(rest)}" if rest else ""
    if len(drawn) == 1 and isinstance(asked.parts[drawn[0]].family, (Range, Circular)):
        return _runs(workload, group, drawn[0], held, where)
    most = MAX_POINTS if len(drawn) == 1 else MAX_SIDE
    chosen = [thinned(asked.parts[p].count, most) for p in drawn]
    mesh = np.meshgrid(*chosen, indexing="ij")
    names = [_part_name(asked, p) for p in drawn]
    labels = [
        tuple(short(part_text(workload, asked, p, int(i)), name) for i in positions)
        for p, positions, name in zip(drawn, chosen, names, strict=True)
    ]
    complete = all(len(c) == asked.parts[p].count for p, c in zip(drawn, chosen, strict=True))
    marks = ("%{x}",) if len(drawn) == 1 else ("%{y}", "%{x}")
    return Grid(
        group=group,
        axes=tuple(f"query on {name}" for name in names),
        labels=tuple(labels),
        kept=np.ones(mesh[0].shape, bool),
        index=_placed(held, {p: positions.ravel() for p, positions in zip(drawn, mesh, strict=True)}),
        what=f"queries on {' and '.join(names)}{where}",
        hover="<br>".join(f"{html.escape(name)} {mark}" for name, mark in zip(names, marks, strict=True)),
        ordered=asked.parts[drawn[0]].family.ordered,
        note="" if complete else f"{mesh[0].size:,} evenly spaced queries are drawn.",
    )


def _runs(workload: Workload, group: int, part: int, held: Sequence[int], where: str) -> Grid:
    """Ranges by first and last cell, or circular ranges by first cell and length."""
    asked = workload.groups[group]
    name, n = asked.attributes[asked.parts[part].axes[0]], asked.parts[part].sizes[0]
    circular = isinstance(asked.parts[part].family, Circular)
    cells = thinned(n, MAX_SIDE)
    first, second = np.meshgrid(cells, cells, indexing="ij")
    kept = np.ones(first.shape, bool) if circular else first <= second
    query = first * n + second if circular else first * n - first * (first - 1) // 2 + second - first
    labels = tuple(workload.schema[name].label(int(i)) for i in cells)
    return Grid(
        group=group,
        axes=(f"first cell of {name}", "number of cells" if circular else f"last cell of {name}"),
        labels=(labels, tuple(str(int(i) + 1) for i in cells) if circular else labels),
        kept=kept,
        index=_placed(held, {part: query[kept]}),
        what=f"ranges of {name}{where}",
        hover="from %{y}, %{x} cells" if circular else "%{y} to %{x}",
        note="" if len(cells) == n else f"Ranges between {len(cells)} evenly spaced cells are drawn.",
    )


def _placed(held: Sequence[int], drawn: dict[int, Positions]) -> tuple[Positions, ...]:
    size = len(next(iter(drawn.values())))
    return tuple(drawn.get(p, np.full(size, position)) for p, position in enumerate(held))


def part_text(workload: Workload, group: Group, part: int, index: int) -> str:
    """Return the text of one query of one part of a group."""
    asked = group.parts[part]
    return asked.family.text([workload.schema[group.attributes[a]] for a in asked.axes], index) or "all records"


def _part_name(group: Group, part: int) -> str:
    return " × ".join(group.attributes[a] for a in group.parts[part].axes)
