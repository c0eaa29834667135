"""Synthetic records near published tables.

The records begin as a tree of attributes, each drawn given the one that tells most about it, in counts that follow the
published pair within one.  Then one attribute after the other is set anew, record by record, to the value that lowers

    sum over tables and cells of (n - T)^2 / sqrt(T + 1)

most, n being the records in a cell and T what is published there.  The weights lie between those of the absolute errors
(by which tables are judged) and of chi squared (whose steps are the more even).  Steps of many records are looked at
together and taken few at a time, the largest first, so that not all fill the same gap.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine._arrays import Array, Index
from engine.postprocess.checkpoint import NONE, Reached, set_state, state_of
from engine.progress import Listener
from engine.residuals import Axes

LOOKED_AT, TAKEN = 1 / 12, 1 / 800  # of all records at once
ROUNDS, ENOUGH = 6, 0.03  # and the share by which a round must lower the sum
SMALL = 1e-9
BARRED = 1e4  # weight of a cell that is impossible


def nearest_people(
    tables: Mapping[Axes, Array],
    sizes: tuple[int, ...],
    people: int,
    generator: np.random.Generator,
    tell: Listener,
    impossible: Mapping[Axes, npt.NDArray[np.bool_]] | None = None,
    steps: Reached = NONE,
) -> Index:
    """Return so many records, shape (people, attributes), whose counts come near tables of shape (n_1, ..., n_k).

    The tables sum to ``people``.  Deterministic for a generator.  An attribute of no table is 0 in every record.
    Records are kept out of cells that are ``impossible`` where they can be; `mend_people` does the rest.
    """
    tell(0.0, "Drawing records")
    done = steps.taken("people")
    records = _tree_of_people(tables, sizes, people, generator) if done is None else done["records"]
    misfit = _Misfit(tables, sizes, records, impossible or {})
    order = columns = np.array(sorted({a for axes in tables for a in axes}), dtype=np.int64)
    before, begun, looks = math.inf, 0, ROUNDS * len(columns) if people else 0
    if done is not None:
        misfit.gaps, order, before, begun = done["gaps"], done["order"], float(done["before"]), int(done["looks"])
        set_state(generator, done["generator"])
    for look in range(begun, looks):
        if look % len(columns) == 0:
            if misfit.value >= (1.0 - ENOUGH) * before:
                break
            before, order = misfit.value, generator.permutation(columns)
        _set_anew(records, int(order[look % len(columns)]), misfit, generator)
        if steps.due:
            state = {"records": records, "gaps": misfit.gaps, "order": order, "before": np.array(before)}
            steps.take("people", state | {"looks": np.array(look + 1), "generator": state_of(generator)})
        tell((look + 1) / looks, "Moving records towards the tables")
    return records


def mend_people(
    records: Index, rules: Sequence[tuple[list[int], npt.NDArray[np.bool_]]], generator: np.random.Generator
) -> None:
    """Give records, shape (people, attributes), that break a rule the values of others that keep it, in place.

    A rule is columns, and which of their joint cells are possible.  Where no record keeps it, the first possible cell
    is given to all: hot deck imputation, with donors drawn evenly.
    """
    for columns, possible in rules:
        kept = possible[tuple(records[:, columns].T)]
        broken, donors = np.flatnonzero(~kept), np.flatnonzero(kept)
        if not donors.size:
            records[:, columns] = np.argwhere(possible)[0]
        elif broken.size:
            records[broken[:, None], columns] = records[generator.choice(donors, broken.size)[:, None], columns]


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Where the cells of one table lie among all."""

    axes: Axes
    shape: tuple[int, ...]
    cells: slice

    @property
    def strides(self) -> list[int]:
        return [math.prod(self.shape[i + 1 :]) for i in range(len(self.shape))]


class _Misfit:
    """How far records are from tables: counts minus what is published, and weights, of all cells in a row."""

    def __init__(
        self,
        tables: Mapping[Axes, Array],
        sizes: tuple[int, ...],
        records: Index,
        impossible: Mapping[Axes, npt.NDArray[np.bool_]],
    ) -> None:
        self.sizes, self.places, at = sizes, [], 0
        self.gaps = np.empty(sum(t.size for t in tables.values()))
        self.weights = np.empty_like(self.gaps)
        for axes, table in tables.items():
            cells = slice(at, at + table.size)
            self.places.append(_Place(axes=axes, shape=table.shape, cells=cells))
            self.gaps[cells] = table_of(records, axes, sizes).ravel() - table.ravel()
            self.weights[cells] = 1.0 / np.sqrt(table.ravel() + 1.0)
            if axes in impossible:
                self.weights[cells][impossible[axes].ravel()] = BARRED
            at = cells.stop

    @property
    def value(self) -> float:
        return float(self.weights @ self.gaps**2)

    def holding(self, column: int) -> list[_Place]:
        return [place for place in self.places if column in place.axes]

    def added(self, place: _Place, column: int) -> Array:
        """What one more record would change in every cell, shape (cells of the others, n of the column)."""
        change = self.weights[place.cells] * (2.0 * self.gaps[place.cells] + 1.0)
        moved = np.moveaxis(change.reshape(place.shape), place.axes.index(column), -1)
        return moved.reshape(-1, self.sizes[column]).astype(np.float32)


def _set_anew(records: Index, column: int, misfit: _Misfit, generator: np.random.Generator) -> None:
    """Give records the value of one column that lowers the misfit most, where it lowers it."""
    places = misfit.holding(column)
    others = [[a for a in p.axes if a != column] for p in places]
    steps = np.array([p.strides[p.axes.index(column)] for p in places])
    order = generator.permutation(len(records))
    many, few = math.ceil(LOOKED_AT * len(order)), math.ceil(TAKEN * len(order))
    for start in range(0, len(order), many):
        looked = order[start : start + many]
        seen = records[looked]
        bases = np.empty((len(looked), len(places)), np.int64)
        costs = np.zeros((len(looked), misfit.sizes[column]), np.float32)
        for i, (place, rest) in enumerate(zip(places, others, strict=True)):
            strides = dict(zip(place.axes, place.strides, strict=True))
            bases[:, i] = place.cells.start + seen[:, rest] @ np.array([strides[a] for a in rest], np.int64)
            costs += misfit.added(place, column)[flat_cells(seen, rest, misfit.sizes)]
        best = costs.argmin(axis=1)
        gained = _left(misfit, bases, seen[:, column], steps) - costs[np.arange(len(best)), best]
        better = np.flatnonzero((gained > SMALL) & (best != seen[:, column]))
        better = better[np.argsort(-gained[better], kind="stable")]
        for first in range(0, len(better), few):
            some = better[first : first + few]
            old, new = seen[some, column], best[some]
            into = bases[some] + new[:, None] * steps
            cost = (misfit.weights[into] * (2.0 * misfit.gaps[into] + 1.0)).sum(axis=1)
            still = cost < _left(misfit, bases[some], old, steps) - SMALL  # steps taken before have changed the gaps
            np.add.at(misfit.gaps, into[still], 1.0)
            np.add.at(misfit.gaps, bases[some[still]] + old[still, None] * steps, -1.0)
            records[looked[some[still]], column] = new[still]


def _left(misfit: _Misfit, bases: Index, values: Index, steps: Index) -> Array:
    """Return by how much the misfit falls when records leave the cells of their values, shape (records,)."""
    cells = bases + values[:, None] * steps
    return np.asarray((misfit.weights[cells] * (2.0 * misfit.gaps[cells] - 1.0)).sum(axis=1))


def flat_cells(records: Index, axes: list[int] | Axes, sizes: tuple[int, ...]) -> Index:
    """Return the flat cell of every record, shape (records,), in the table on some attributes."""
    out = np.zeros(len(records), np.int64)
    for a in axes:
        out = out * sizes[a] + records[:, a]
    return out


def table_of(records: Index, axes: Axes, sizes: tuple[int, ...]) -> Index:
    """Return the counts of records, shape (people, attributes), in a table of shape (n_1, ..., n_k)."""
    shape = [sizes[a] for a in axes]
    return np.bincount(flat_cells(records, axes, sizes), minlength=math.prod(shape)).reshape(shape)


def _tree_of_people(
    tables: Mapping[Axes, Array], sizes: tuple[int, ...], people: int, generator: np.random.Generator
) -> Index:
    """Return records whose pairs along a tree of attributes follow the tables within one."""
    singles: dict[int, Array] = {}
    pairs: dict[tuple[int, int], Array] = {}
    for axes, table in tables.items():
        for i, a in enumerate(axes):
            singles.setdefault(a, table.sum(axis=tuple(k for k in range(table.ndim) if k != i)))
            for j in range(i + 1, len(axes)):
                if (a, axes[j]) not in pairs:
                    pairs[a, axes[j]] = table.sum(axis=tuple(k for k in range(table.ndim) if k not in (i, j)))
    records = np.zeros((people, len(sizes)), np.int64)
    tree = _tree(pairs)
    for child in sorted(singles, key=lambda a: tree.get(a, (0, -1))[0]):
        _, parent = tree.get(child, (0, -1))
        if parent < 0:
            groups = [(np.arange(people), singles[child])]
        else:
            both = pairs[parent, child] if parent < child else pairs[child, parent].T
            order = np.argsort(records[:, parent], kind="stable")
            ends = np.cumsum(np.bincount(records[:, parent], minlength=sizes[parent]))
            groups = list(zip(np.split(order, ends[:-1]), both, strict=True))
        for who, shares in groups:
            values = np.repeat(np.arange(sizes[child]), _apportioned(shares, len(who), generator))
            records[who, child] = generator.permutation(values)
    return records


def _tree(pairs: Mapping[tuple[int, int], Array]) -> dict[int, tuple[int, int]]:
    """Return (rank, parent) of every attribute but the roots: a tree of largest mutual information, roots first."""
    told = sorted(pairs, key=lambda pair: (-_information(pairs[pair]), pair))
    out: dict[int, tuple[int, int]] = {}
    reached: set[int] = set()
    while rest := [pair for pair in told if not set(pair) <= reached]:
        # the pair that tells most among those that touch the tree; a new tree begins where none does
        pair = next((p for p in rest if reached & set(p)), rest[0])
        parent, child = pair if pair[0] in reached or not reached & set(pair) else pair[::-1]
        reached |= set(pair)
        out[child] = (len(out) + 1, parent)
    return out


def _information(table: Array) -> float:
    """Return the mutual information of two attributes, in nats times records."""
    even = np.outer(table.sum(axis=1), table.sum(axis=0)) / max(float(table.sum()), SMALL)
    kept = (table > 0.0) & (even > 0.0)
    return float(np.sum(table[kept] * np.log(table[kept] / even[kept])))


def _apportioned(shares: Array, people: int, generator: np.random.Generator) -> Index:
    """Return whole numbers of a given sum, each within one of its share: systematic sampling of what is left over."""
    total = float(shares.sum())
    wanted = shares * (people / total) if total > 0.0 else np.full(len(shares), people / len(shares))
    reached = np.floor(np.cumsum(wanted) + generator.random())
    reached[-1] = people
    return np.diff(np.minimum(reached, people), prepend=0.0).astype(np.int64)
