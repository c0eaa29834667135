"""Synthetic records near published tables, by coordinate descent.

The start is a tree of attributes of largest mutual information (Chow and Liu): each attribute is
drawn given its parent, by systematic sampling, so that counts differ from the published pair by
less than one.  Then the values of one attribute after the other change, record by record, to those
that most reduce

    sum over tables and cells of (n - T)^2 / sqrt(T + 1)

where n is the number of records in a cell and T its published count.  The weights are a compromise
between absolute errors, by which tables are evaluated, and chi-squared, whose steps are more even.
Gains are computed for many records together, and changes applied to few at a time, largest gain
first, so that not all of them fill the same cell.

Constraints on synthetic records: impossible cells and exact public totals.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine._arrays import Array, Index
from engine._format import set_name
from engine.errors import LimitExceeded, PlanError
from engine.postprocess.checkpoint import NONE, Checkpoints, set_state, state_of
from engine.progress import Listener
from engine.residuals import Axes
from engine.workload import Schema

EVALUATED_SHARE = 1 / 12  # share of the records whose gains are computed together
CHANGED_SHARE = 1 / 800  # share of the records that change together
MAX_ROUNDS = 6
MIN_IMPROVEMENT = 0.03  # relative decrease of the objective below which the search ends
EPSILON = 1e-9
IMPOSSIBLE_WEIGHT = 1e4  # weight of impossible cells


def nearest_people(
    tables: Mapping[Axes, Array],
    sizes: tuple[int, ...],
    people: int,
    generator: np.random.Generator,
    tell: Listener,
    impossible: Mapping[Axes, npt.NDArray[np.bool_]] | None = None,
    steps: Checkpoints = NONE,
) -> Index:
    """Return synthetic records, shape (people, attributes), whose counts approximate tables.

    Parameters
    ----------
    tables : shape (n_1, ..., n_k), each with sum ``people``. Attributes in no table are 0 in all
        records.
    people : number of records.
    generator : determines the result.
    impossible : masks of impossible cells, which have a large weight; `impute_records` removes
        remaining records.
    """
    tell(0.0, "Drawing records")
    done = steps.taken("people")
    records = _tree_of_people(tables, sizes, people, generator) if done is None else done["records"]
    objective = _Objective(tables, sizes, records, impossible or {})
    order = columns = np.array(sorted({a for axes in tables for a in axes}), dtype=np.int64)
    before, first_update, updates = math.inf, 0, MAX_ROUNDS * len(columns) if people else 0
    if done is not None:
        objective.gaps, order, before, first_update = (
            done["gaps"],
            done["order"],
            float(done["before"]),
            int(done["looks"]),
        )
        set_state(generator, done["generator"])
    for update in range(first_update, updates):
        if update % len(columns) == 0:
            if objective.value >= (1.0 - MIN_IMPROVEMENT) * before:
                break
            before, order = objective.value, generator.permutation(columns)
        _update_column(records, int(order[update % len(columns)]), objective, generator)
        if steps.due:
            state = {
                "records": records,
                "gaps": objective.gaps,
                "order": order,
                "before": np.array(before),
            }
            steps.take(
                "people", state | {"looks": np.array(update + 1), "generator": state_of(generator)}
            )
        tell((update + 1) / updates, "Moving records towards the tables")
    return records


def impute_records(
    records: Index,
    rules: Sequence[tuple[list[int], npt.NDArray[np.bool_]]],
    generator: np.random.Generator,
) -> None:
    """Replace impossible values of records, in place, by random hot deck imputation.

    Parameters
    ----------
    records : shape (people, attributes).
    rules : pairs (columns, mask of their possible joint cells).

    Donors are drawn uniformly from the records that satisfy the rule.  If there are none, all
    records get the first possible cell.
    """
    for columns, possible in rules:
        satisfied = possible[tuple(records[:, columns].T)]
        violating, donors = np.flatnonzero(~satisfied), np.flatnonzero(satisfied)
        if not donors.size:
            records[:, columns] = np.argwhere(possible)[0]
        elif violating.size:
            records[violating[:, None], columns] = records[
                generator.choice(donors, violating.size)[:, None], columns
            ]


@dataclass(frozen=True, kw_only=True)
class _CellRange:
    """Position of the cells of one table in the concatenated cells of all tables."""

    axes: Axes
    shape: tuple[int, ...]
    cells: slice

    @property
    def strides(self) -> list[int]:
        return [math.prod(self.shape[i + 1 :]) for i in range(len(self.shape))]


class _Objective:
    """Objective: counts minus published counts, and weights, of the concatenated cells."""

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
            self.places.append(_CellRange(axes=axes, shape=table.shape, cells=cells))
            self.gaps[cells] = table_of(records, axes, sizes).ravel() - table.ravel()
            self.weights[cells] = 1.0 / np.sqrt(table.ravel() + 1.0)
            if axes in impossible:
                self.weights[cells][impossible[axes].ravel()] = IMPOSSIBLE_WEIGHT
            at = cells.stop

    @property
    def value(self) -> float:
        return float(self.weights @ self.gaps**2)

    def holding(self, column: int) -> list[_CellRange]:
        return [place for place in self.places if column in place.axes]

    def added(self, place: _CellRange, column: int) -> Array:
        """Change of the objective per added record, shape (cells of other attributes, n)."""
        change = self.weights[place.cells] * (2.0 * self.gaps[place.cells] + 1.0)
        moved = np.moveaxis(change.reshape(place.shape), place.axes.index(column), -1)
        return moved.reshape(-1, self.sizes[column]).astype(np.float32)


def _update_column(
    records: Index, column: int, objective: _Objective, generator: np.random.Generator
) -> None:
    """Change values of one column where that reduces the objective, in place."""
    places = objective.holding(column)
    others = [[a for a in p.axes if a != column] for p in places]
    steps = np.array([p.strides[p.axes.index(column)] for p in places])
    order = generator.permutation(len(records))
    batch_size, change_size = (
        math.ceil(EVALUATED_SHARE * len(order)),
        math.ceil(CHANGED_SHARE * len(order)),
    )
    for start in range(0, len(order), batch_size):
        batch = order[start : start + batch_size]
        values = records[batch]
        bases = np.empty((len(batch), len(places)), np.int64)
        costs = np.zeros((len(batch), objective.sizes[column]), np.float32)
        for i, (place, rest) in enumerate(zip(places, others, strict=True)):
            strides = dict(zip(place.axes, place.strides, strict=True))
            bases[:, i] = place.cells.start + values[:, rest] @ np.array(
                [strides[a] for a in rest], np.int64
            )
            costs += objective.added(place, column)[flat_cells(values, rest, objective.sizes)]
        best = costs.argmin(axis=1)
        gains = (
            _removal_gain(objective, bases, values[:, column], steps)
            - costs[np.arange(len(best)), best]
        )
        improving = np.flatnonzero((gains > EPSILON) & (best != values[:, column]))
        improving = improving[np.argsort(-gains[improving], kind="stable")]
        for first in range(0, len(improving), change_size):
            candidates = improving[first : first + change_size]
            old, new = values[candidates, column], best[candidates]
            targets = bases[candidates] + new[:, None] * steps
            cost = (objective.weights[targets] * (2.0 * objective.gaps[targets] + 1.0)).sum(axis=1)
            # the gaps have changed: drop changes that no longer reduce the objective
            improves = cost < _removal_gain(objective, bases[candidates], old, steps) - EPSILON
            np.add.at(objective.gaps, targets[improves], 1.0)
            np.add.at(
                objective.gaps, bases[candidates[improves]] + old[improves, None] * steps, -1.0
            )
            records[batch[candidates[improves]], column] = new[improves]


def _removal_gain(objective: _Objective, bases: Index, values: Index, steps: Index) -> Array:
    """Return the decrease of the objective if records leave their cells, shape (records,)."""
    cells = bases + values[:, None] * steps
    return np.asarray((objective.weights[cells] * (2.0 * objective.gaps[cells] - 1.0)).sum(axis=1))


def flat_cells(records: Index, axes: list[int] | Axes, sizes: tuple[int, ...]) -> Index:
    """Return the flat cell index of every record, shape (records,), in the table on ``axes``."""
    out = np.zeros(len(records), np.int64)
    for a in axes:
        out = out * sizes[a] + records[:, a]
    return out


def table_of(records: Index, axes: Axes, sizes: tuple[int, ...]) -> Index:
    """Count records, shape (people, attributes), in a table of shape (n_1, ..., n_k)."""
    shape = [sizes[a] for a in axes]
    return np.bincount(flat_cells(records, axes, sizes), minlength=math.prod(shape)).reshape(shape)


def _tree_of_people(
    tables: Mapping[Axes, Array],
    sizes: tuple[int, ...],
    people: int,
    generator: np.random.Generator,
) -> Index:
    """Return records whose counts of pairs along a tree are within one of the tables."""
    singles: dict[int, Array] = {}
    pairs: dict[tuple[int, int], Array] = {}
    for axes, table in tables.items():
        for i, a in enumerate(axes):
            singles.setdefault(a, table.sum(axis=tuple(k for k in range(table.ndim) if k != i)))
            for j in range(i + 1, len(axes)):
                if (a, axes[j]) not in pairs:
                    pairs[a, axes[j]] = table.sum(
                        axis=tuple(k for k in range(table.ndim) if k not in (i, j))
                    )
    records = np.zeros((people, len(sizes)), np.int64)
    tree = mutual_information_tree(pairs)
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
            values = np.repeat(np.arange(sizes[child]), _apportion(shares, len(who), generator))
            records[who, child] = generator.permutation(values)
    return records


def mutual_information_tree(pairs: Mapping[tuple[int, int], Array]) -> dict[int, tuple[int, int]]:
    """Return (rank, parent) of non-root attributes in the tree of largest mutual information."""
    ranked = sorted(pairs, key=lambda pair: (-_mutual_information(pairs[pair]), pair))
    out: dict[int, tuple[int, int]] = {}
    connected: set[int] = set()
    while rest := [pair for pair in ranked if not set(pair) <= connected]:
        # the best pair that touches the tree, otherwise the first pair of a new tree
        pair = next((p for p in rest if connected & set(p)), rest[0])
        parent, child = pair if pair[0] in connected or not connected & set(pair) else pair[::-1]
        connected |= set(pair)
        out[child] = (len(out) + 1, parent)
    return out


def _mutual_information(table: Array) -> float:
    """Return the mutual information of two attributes, in nats times records."""
    independent = np.outer(table.sum(axis=1), table.sum(axis=0)) / max(float(table.sum()), EPSILON)
    positive = (table > 0.0) & (independent > 0.0)
    return float(np.sum(table[positive] * np.log(table[positive] / independent[positive])))


def _apportion(shares: Array, people: int, generator: np.random.Generator) -> Index:
    """Return integers with sum ``people``, within one of their shares, by systematic sampling."""
    total = float(shares.sum())
    expected = (
        shares * (people / total) if total > 0.0 else np.full(len(shares), people / len(shares))
    )
    cumulative = np.floor(np.cumsum(expected) + generator.random())
    cumulative[-1] = people
    return np.diff(np.minimum(cumulative, people), prepend=0.0).astype(np.int64)


MAX_PROGRAM_CELLS = 20_000  # cells of an integer program that meets several totals jointly

# pairs (axes that are summed out, counts of the margin)
_Margins = Sequence[tuple[tuple[int, ...], Index]]


def keeping_facts(
    columns: Mapping[str, Index], schema: Schema, generator: np.random.Generator
) -> dict[str, npt.NDArray[np.int64]]:
    """Change synthetic records until they satisfy the facts of a schema.

    Parameters
    ----------
    columns : cell codes by attribute, shape (records,).
    schema : its facts on other attributes are summed over these.

    Returns
    -------
    Cell codes of the same shapes.  Impossible cells are empty.  Exact totals are
    met if the number of records equals the public one; a different number of records represents a
    share of them and only satisfies the rules.

    Raises
    ------
    LimitExceeded : several exact totals share attributes of too many cells.
    """
    out = {name: np.array(codes, dtype=np.int64) for name, codes in columns.items()}
    people = len(next(iter(out.values()))) if out else 0
    for fact in schema.facts:
        names = [name for name in fact.names if name in out]
        if not names or not people:
            continue
        possible, records = (
            fact.possible(names) > 0.0,
            np.stack([out[name] for name in names], axis=1),
        )
        impute_records(records, [(list(range(len(names))), possible)], generator)
        margins = []
        for invariant in schema.invariants:
            shared = [name for name in invariant.attributes if name in names]
            if shared and not set(invariant.attributes).isdisjoint(fact.names):
                margins.append(
                    (
                        tuple(a for a, n in enumerate(names) if n not in shared),
                        schema.exact_table(shared),
                    )
                )
        if margins and int(margins[0][1].sum()) == people:
            counts = np.zeros(possible.shape, np.int64)
            np.add.at(counts, tuple(records.T), 1)
            _move_records(
                records, counts, _meet_margins(counts, possible, margins, names), generator
            )
        out |= {name: records[:, i] for i, name in enumerate(names)}
    return out


def _move_records(
    records: Index, counts: Index, target: Index, generator: np.random.Generator
) -> None:
    """Change as few records, shape (people, attributes), as their target counts need, in place."""
    cells = np.ravel_multi_index(tuple(records.T), counts.shape)
    order = generator.permutation(len(cells))
    ranked = order[np.argsort(cells[order], kind="stable")]
    ends = np.cumsum(counts.ravel())
    surplus = np.maximum(counts - target, 0).ravel()
    leaving = np.concatenate(
        [ranked[end - k : end] for end, k in zip(ends, surplus, strict=True) if k] or [ranked[:0]]
    )
    arriving = np.repeat(np.arange(counts.size), np.maximum(target - counts, 0).ravel())
    records[generator.permutation(leaving)] = np.stack(
        np.unravel_index(arriving, counts.shape), axis=1
    )


def _meet_margins(
    counts: Index, possible: npt.NDArray[np.bool_], margins: _Margins, names: Sequence[str]
) -> Index:
    """Return integer counts, shape (n_1, ..., n_k), with the margins and the fewest changes."""
    if len(margins) == 1:
        return _meet_margin(counts, possible, *margins[0])
    import scipy.optimize
    import scipy.sparse

    cells = np.flatnonzero(possible)
    if cells.size > MAX_PROGRAM_CELLS:
        raise LimitExceeded(
            f"The exact totals on {set_name(names)} share attributes of {cells.size:,} cells, but"
            f" records can meet several totals jointly only up to {MAX_PROGRAM_CELLS:,} cells."
            " Publish tables without integer=True."
        )
    index, sums, gaps = np.unravel_index(cells, possible.shape), [], []
    for out, margin in margins:
        remaining = [index[a] for a in range(possible.ndim) if a not in out]
        rows = np.ravel_multi_index(remaining, margin.shape)
        shape = (margin.size, cells.size)
        sums.append(
            scipy.sparse.csr_array(
                (np.ones(cells.size), (rows, np.arange(cells.size))), shape=shape
            )
        )
        gaps.append((margin - counts.sum(axis=out)).ravel())
    matrix, gap = scipy.sparse.vstack(sums), np.concatenate(gaps)
    # minimize added plus removed records, x + y, with margins of x - y equal to the gaps
    solution = scipy.optimize.milp(
        np.ones(2 * cells.size),
        integrality=np.ones(2 * cells.size, np.int64),
        bounds=scipy.optimize.Bounds(
            0.0, np.concatenate([np.full(cells.size, np.inf), counts.ravel()[cells]])
        ),
        constraints=scipy.optimize.LinearConstraint(
            scipy.sparse.hstack([matrix, -matrix]), gap, gap
        ),
    )
    if solution.status != 0:
        raise PlanError(
            f"No integer counts have the exact totals on {set_name(names)}. Correct an invariant."
        )
    adjusted, changes = counts.copy(), np.rint(solution.x).astype(np.int64)
    adjusted.flat[cells] += changes[: cells.size] - changes[cells.size :]
    return adjusted


def _meet_margin(
    counts: Index, possible: npt.NDArray[np.bool_], out: tuple[int, ...], margin: Index
) -> Index:
    """Return integer counts with one margin, by changing the largest cells of each slice."""
    remaining = [a for a in range(counts.ndim) if a not in out]
    rows = counts.transpose([*remaining, *out]).reshape(margin.size, -1).copy()
    allowed = possible.transpose([*remaining, *out]).reshape(margin.size, -1)
    for row, where, target in zip(rows, allowed, margin.ravel(), strict=True):
        missing = int(target - row.sum())
        if missing > 0:
            row[np.argmax(np.where(where, row, -1))] += missing
        while missing < 0:
            largest = int(np.argmax(row))
            taken = min(-missing, int(row[largest]))
            row[largest] -= taken
            missing += taken
    back = np.argsort([*remaining, *out])
    return np.asarray(rows.reshape([counts.shape[a] for a in (*remaining, *out)]).transpose(back))
