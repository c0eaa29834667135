"""Synthetic records whose counts are near published tables, by coordinate descent.

**Start.**  Records are drawn along the tree of largest mutual information (Chow and Liu): each
attribute is drawn given its parent in the tree.  Systematic sampling ensures that, among records
with the same value of the parent, the counts of the attribute differ by less than one from their
published shares.

**Descent.**  For one attribute after the other, the values of single records are changed such that

    sum over tables and cells of (n - T)^2 / sqrt(T + 1)

decreases most, where n is the number of records in a cell and T its published count.  The weights
are a compromise between absolute errors, by which tables are judged, and chi-squared, which changes
small cells as fast as large ones.  Gains (decreases of this sum) are computed for many records at
once, so that many records may want to enter the same cell.  Changes are therefore ranked by gain,
and a change is applied only if it remains a gain after all changes ranked before it.  The search
ends when the records are near the tables, or when it improves too slowly.

**Constraints.**  `meet_facts` moves records out of impossible cells.  If the public totals sum to
the number of records, it also moves records until their counts have these totals.
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
from engine.postprocess.checkpoint import NO_CHECKPOINTS, Checkpoints, set_state, state_of
from engine.progress import Listener
from engine.residuals import Axes
from engine.workload import Schema

BATCH_RECORDS = 20_000  # number of records whose gains are computed together
# In one update of a column, the number of records of a batch that may change is at most this share
# of the batch, or MIN_CANDIDATES if that is more.
MAX_CANDIDATE_SHARE, MIN_CANDIDATES = 0.15, 200
STEPS_PER_BATCH = 4
MAX_ROUNDS = 15  # passes over all attributes
# The search ends if a pass over all attributes decreases the objective by less than the share
# MIN_IMPROVEMENT.  If the distance is at most NEAR_FACTOR times the tolerance, this share is
# MIN_IMPROVEMENT_NEAR, because little accuracy is left to gain.
MIN_IMPROVEMENT, MIN_IMPROVEMENT_NEAR, NEAR_FACTOR = 0.03, 0.2, 2.0
MIN_GAIN = 1e-9  # smallest decrease of the objective for which a record changes
IMPOSSIBLE_WEIGHT = 1e4  # weight of impossible cells in the objective


def nearest_people(
    tables: Mapping[Axes, Array],
    sizes: tuple[int, ...],
    people: int,
    generator: np.random.Generator,
    report_progress: Listener,
    impossible: Mapping[Axes, npt.NDArray[np.bool_]] | None = None,
    checkpoints: Checkpoints = NO_CHECKPOINTS,
    tolerance: float = 0.0,
) -> Index:
    """Return synthetic records, shape (people, attributes), whose counts approximate tables.

    Parameters
    ----------
    tables : mapping from attribute sets to tables, shape (n_1, ..., n_k), each with sum ``people``.
        Attributes without a table are 0 in all records.
    sizes : number of cells of every attribute.
    people : number of records.
    generator : source of the random draws, which determines the result.
    impossible : mapping from attribute sets to masks of impossible cells.  Their weight in the
        objective is large, but records may remain in them; `meet_facts` moves these records.
    checkpoints : files from which an interrupted search continues.
    tolerance : L1 distance of the counts from a table, averaged over tables and divided by
        ``people``, at which the search ends.  It also ends if it improves too slowly, or after
        `MAX_ROUNDS` passes over all attributes.
    """
    report_progress(0.0, "Drawing records")
    done = checkpoints.read("people")
    records = _tree_of_people(tables, sizes, people, generator) if done is None else done["records"]
    objective = _Objective(tables, sizes, records, impossible or {})
    order = columns = np.array(sorted({a for axes in tables for a in axes}), dtype=np.int64)
    previous_value, first_update = math.inf, 0
    updates = MAX_ROUNDS * len(columns) if people else 0
    if done is not None:
        objective.gaps, order = done["gaps"], done["order"]
        previous_value, first_update = float(done["before"]), int(done["updates"])
        set_state(generator, done["generator"])
    allowed = tolerance * people * len(tables)
    share = 0.0
    first_distance = max(objective.distance, allowed)
    for update in range(first_update, updates):
        if update % len(columns) == 0:
            is_near = objective.distance <= NEAR_FACTOR * allowed
            required = MIN_IMPROVEMENT_NEAR if is_near else MIN_IMPROVEMENT
            improved = objective.value < (1.0 - required) * previous_value
            if objective.distance <= allowed or not improved:
                break
            previous_value = objective.value
            order = generator.permutation(columns)
        _update_column(records, int(order[update % len(columns)]), objective, generator)
        if checkpoints.due:
            state = {
                "records": records,
                "gaps": objective.gaps,
                "order": order,
                "before": np.array(previous_value),
            }
            checkpoints.write(
                "people",
                state | {"updates": np.array(update + 1), "generator": state_of(generator)},
            )
        # The logarithm of the distance decreases nearly linearly, so it measures the progress.
        log_first, log_present, log_allowed = np.log(
            np.maximum([first_distance, objective.distance, allowed], 1.0)
        )
        share = max(share, (update + 1) / updates)
        if log_first > log_allowed:
            done_share = float((log_first - log_present) / (log_first - log_allowed))
            share = max(share, min(1.0, done_share))
        report_progress(share, "Adjusting records to the tables")
    return records


def impute_records(
    records: Index,
    rules: Sequence[tuple[list[int], npt.NDArray[np.bool_]]],
    generator: np.random.Generator,
) -> None:
    """Change records in impossible cells, in place, by hot deck imputation.

    A record that violates a rule is changed in the columns of the rule.  It gets the values of a
    randomly drawn record that satisfies the rule.  If no record satisfies the rule, all records get
    the values of the first possible cell.

    Parameters
    ----------
    records : cell codes, shape (people, attributes).
    rules : pairs (columns, mask of the possible cells of the table on these columns).
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
    """Position of one table in the concatenated cells of all tables."""

    axes: Axes
    shape: tuple[int, ...]
    cells: slice


class _Objective:
    """Weighted squared distance of the counts of records from published tables.

    Attributes
    ----------
    gaps : counts of the records minus published counts, for the concatenated cells of all tables.
    weights : weights of the squares of ``gaps``, in the same order.
    ranges : position of every table in the concatenated cells.
    """

    def __init__(
        self,
        tables: Mapping[Axes, Array],
        sizes: tuple[int, ...],
        records: Index,
        impossible: Mapping[Axes, npt.NDArray[np.bool_]],
    ) -> None:
        self.sizes, self.ranges, start = sizes, [], 0
        self.gaps = np.empty(sum(t.size for t in tables.values()))
        self.weights = np.empty_like(self.gaps)
        for axes, table in tables.items():
            cells = slice(start, start + table.size)
            self.ranges.append(_CellRange(axes=axes, shape=table.shape, cells=cells))
            self.gaps[cells] = table_of(records, axes, sizes).ravel() - table.ravel()
            self.weights[cells] = 1.0 / np.sqrt(table.ravel() + 1.0)
            if axes in impossible:
                self.weights[cells][impossible[axes].ravel()] = IMPOSSIBLE_WEIGHT
            start = cells.stop

    @property
    def value(self) -> float:
        return float(self.weights @ self.gaps**2)

    @property
    def distance(self) -> float:
        """L1 distance of the counts from the published tables, summed over all tables."""
        return float(np.abs(self.gaps).sum())


class _ColumnTable:
    """Copy of one table of the objective for changes of one column, which is its last axis.

    Attributes
    ----------
    others : all attributes of the table except the column.
    gaps, weights : the gaps and weights of the objective for the cells of this table, shape (m, n).
        Rows are the cells of the table on ``others``, columns the codes of the column.
    """

    def __init__(self, objective: _Objective, cell_range: _CellRange, column: int) -> None:
        self._objective, self._range = objective, cell_range
        self._axis = cell_range.axes.index(column)
        self.others = tuple(a for a in cell_range.axes if a != column)
        self.gaps, self.weights = (
            np.moveaxis(values[cell_range.cells].reshape(cell_range.shape), self._axis, -1).reshape(
                -1, objective.sizes[column]
            )
            for values in (objective.gaps, objective.weights)
        )
        # The arrays are stored contiguously, because they are then read much faster.
        self.gaps, self.weights = self.gaps.copy(), np.ascontiguousarray(self.weights)

    @property
    def added(self) -> Array:
        """Increase of the objective by one more record in each cell, shape (m, n)."""
        return np.asarray(self.weights * (2.0 * self.gaps + 1.0))

    def store(self) -> None:
        """Write the gaps to the objective."""
        shape = [n for k, n in enumerate(self._range.shape) if k != self._axis]
        gaps = np.moveaxis(self.gaps.reshape(*shape, -1), -1, self._axis)
        self._objective.gaps[self._range.cells] = gaps.ravel()


def _update_column(
    records: Index, column: int, objective: _Objective, generator: np.random.Generator
) -> None:
    """Change values in one column of the records, in place, to decrease the objective."""
    tables = [
        _ColumnTable(objective, cell_range, column)
        for cell_range in objective.ranges
        if column in cell_range.axes
    ]
    order = generator.permutation(len(records))
    for start in range(0, len(order), BATCH_RECORDS):
        batch = order[start : start + BATCH_RECORDS]
        changes = _Changes(tables, column, records.take(batch, axis=0), objective.sizes)
        candidates = changes.promising(
            max(MIN_CANDIDATES, math.ceil(MAX_CANDIDATE_SHARE * len(batch)))
        )
        for _ in range(STEPS_PER_BATCH):
            if not changes.apply(candidates):
                break
        records[batch, column] = changes.values
    for table in tables:
        table.store()


class _Changes:
    """Changes of one column in a batch of records.

    Attributes
    ----------
    values : present codes of the column, shape (records of the batch,).
    n_codes : number of codes of the column.
    tables : the tables that contain the column.
    rows : one array per table: for every record, the row of `_ColumnTable.gaps` that contains it,
        shape (records of the batch,).
    """

    def __init__(
        self, tables: list[_ColumnTable], column: int, records: Index, sizes: tuple[int, ...]
    ) -> None:
        self.tables, self.n_codes = tables, sizes[column]
        self.values = records[:, column].copy()
        # The columns are stored contiguously, because they are then read much faster.
        columns = np.ascontiguousarray(records.T)
        self.rows = [flat_cells(columns.T, table.others, sizes) for table in tables]

    def promising(self, count: int) -> Index:
        """Return the positions in the batch of at most ``count`` records that are worth changing.

        The gain of a record is the largest decrease of the objective by a change of its value in
        this column.  The records with the largest upper bounds on their gain are chosen; records
        whose bound is at most `MIN_GAIN` are left out.
        """
        bounds = np.zeros(len(self.values))
        for table, rows in zip(self.tables, self.rows, strict=True):
            added = table.added
            removed = added - 2.0 * table.weights
            bounds += removed.ravel().take(rows * self.n_codes + self.values)
            bounds -= added.min(axis=1).take(rows)
        candidates = np.flatnonzero(bounds > MIN_GAIN)
        if len(candidates) > count:
            largest = np.argpartition(-bounds.take(candidates), count)[:count]
            candidates = np.sort(candidates.take(largest))
        return candidates

    def apply(self, candidates: Index) -> bool:
        """Change records at the positions ``candidates`` to decrease the objective.

        Returns whether any value has changed.
        """
        values = self.values.take(candidates)
        # Entry (i, c) is the increase of the objective if one more record were added that is equal
        # to candidate i, except that its code in the column is c.
        costs = np.zeros((len(candidates), self.n_codes), np.float32)
        weights_left = np.zeros(
            len(candidates)
        )  # sum over tables of the weights of the candidates' cells
        for table, all_rows in zip(self.tables, self.rows, strict=True):
            rows = all_rows.take(candidates)
            costs += table.added.astype(np.float32).take(rows, axis=0)
            weights_left += table.weights.ravel().take(rows * self.n_codes + values)
        best = costs.argmin(axis=1)
        positions = np.arange(len(candidates))
        # In a cell with gap g and weight w, one more record costs w (2 g + 1).  A record that
        # leaves the cell decreases the objective by w (2 g - 1), which is this cost minus 2 w.
        gains = costs[positions, values] - costs[positions, best] - 2.0 * weights_left
        improving = np.flatnonzero((gains > MIN_GAIN) & (best != values))
        improving = improving.take(np.argsort(-gains.take(improving), kind="stable"))
        candidates, values = candidates.take(improving), values.take(improving)
        best, gains = best.take(improving), gains.take(improving)
        row_starts = [rows.take(candidates) * self.n_codes for rows in self.rows]
        for table, starts in zip(self.tables, row_starts, strict=True):
            for cells in (starts + values, starts + best):
                # Changes are applied by descending gain.  If two records leave the same cell, or
                # enter the same cell, the first change reduces the gain of the second by 2 w.  If
                # one record leaves a cell that another enters, gains would increase; this is
                # ignored.
                weights = table.weights.ravel().take(cells)
                gains -= 2.0 * weights * _ranks(cells, table.weights.size)
        applied = np.flatnonzero(gains > MIN_GAIN)
        values, best = values.take(applied), best.take(applied)
        for table, starts in zip(self.tables, row_starts, strict=True):
            cells = starts.take(applied)
            gaps = table.gaps.reshape(-1)  # a view
            np.subtract.at(gaps, cells + values, 1.0)
            np.add.at(gaps, cells + best, 1.0)
        self.values[candidates.take(applied)] = best
        return len(applied) > 0


def _ranks(values: Index, bound: int) -> Index:
    """Return, for every entry, the number of earlier entries that are equal to it, shape (n,).

    Entries are from 0 to ``bound`` - 1.

    >>> _ranks(np.array([5, 3, 5, 5]), 6).tolist()
    [0, 0, 1, 2]
    """
    # NumPy sorts integers of 16 bits by radix sort, which is several times faster.
    keys = values.astype(np.uint16) if bound <= 1 << 16 else values
    order = np.argsort(keys, kind="stable")
    positions, ordered = np.arange(len(values)), keys.take(order)
    is_first = np.ones(len(values), dtype=bool)
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    ranks = np.empty(len(values), np.int64)
    ranks[order] = positions - np.maximum.accumulate(np.where(is_first, positions, 0))
    return ranks


def flat_cells(records: Index, axes: list[int] | Axes, sizes: tuple[int, ...]) -> Index:
    """Return the flat index of every record's cell in the table on ``axes``, shape (records,)."""
    if not len(axes):
        return np.zeros(len(records), np.int64)
    cells: Index = records[:, axes[0]]
    for a in axes[1:]:
        cells = cells * sizes[a] + records[:, a]
    return cells


def table_of(records: Index, axes: Axes, sizes: tuple[int, ...]) -> Index:
    """Return the counts of records, shape (people, attributes), as a table on ``axes``."""
    shape = [sizes[a] for a in axes]
    return np.bincount(flat_cells(records, axes, sizes), minlength=math.prod(shape)).reshape(shape)


def _tree_of_people(
    tables: Mapping[Axes, Array],
    sizes: tuple[int, ...],
    people: int,
    generator: np.random.Generator,
) -> Index:
    """Draw records along the tree of largest mutual information, shape (people, attributes).

    Each attribute is drawn given its parent in the tree, so the records fit the tables of the pairs
    (parent, child).  Among records with the same value of the parent, the counts of the child's
    values differ by less than one from the shares in the table.
    """
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
    # Roots come first, then the other attributes in the order in which the tree was built, so that
    # the values of a parent are sampled before those of its children.
    order_added = {child: number for child, (number, _) in tree.items()}
    for child in sorted(singles, key=lambda attribute: order_added.get(attribute, 0)):
        # One pair per value of the parent: the positions of the records with this value, and the
        # published counts of the child's values among these records.
        if child not in tree:
            groups = [(np.arange(people), singles[child])]
        else:
            _, parent = tree[child]
            pair_table = pairs[parent, child] if parent < child else pairs[child, parent].T
            order = np.argsort(records[:, parent], kind="stable")
            ends = np.cumsum(np.bincount(records[:, parent], minlength=sizes[parent]))
            groups = list(zip(np.split(order, ends[:-1]), pair_table, strict=True))
        for rows, shares in groups:
            values = np.repeat(np.arange(sizes[child]), _apportion(shares, len(rows), generator))
            records[rows, child] = generator.permutation(values)
    return records


def mutual_information_tree(pairs: Mapping[tuple[int, int], Array]) -> dict[int, tuple[int, int]]:
    """Return the spanning tree of largest mutual information, by the algorithm of Chow and Liu.

    ``pairs`` maps pairs of attributes to their tables.  There are several trees if the pairs do not
    connect all attributes.  The result maps every attribute except the roots to (k, parent), where
    k counts these attributes from 1 in the order in which the algorithm added them.
    """
    ranked = sorted(pairs, key=lambda pair: (-_mutual_information(pairs[pair]), pair))
    tree: dict[int, tuple[int, int]] = {}
    connected: set[int] = set()
    while remaining := [pair for pair in ranked if not set(pair) <= connected]:
        # Add the pair of largest information that has one attribute in the tree.  If no pair has an
        # attribute in the tree, the pair of largest information begins another tree.
        pair = next((p for p in remaining if connected & set(p)), remaining[0])
        parent, child = pair if pair[0] in connected or not connected & set(pair) else pair[::-1]
        connected |= set(pair)
        tree[child] = (len(tree) + 1, parent)
    return tree


def _mutual_information(table: Array) -> float:
    """Return the number of records times the mutual information of a two-way table, in nats."""
    independent = np.outer(table.sum(axis=1), table.sum(axis=0)) / max(float(table.sum()), 1e-9)
    positive = (table > 0.0) & (independent > 0.0)
    # Logarithms are subtracted, because quotients of very small numbers underflow.
    ratios = np.log(table[positive]) - np.log(independent[positive])
    return float(np.sum(table[positive] * ratios))


def _apportion(shares: Array, people: int, generator: np.random.Generator) -> Index:
    """Divide ``people`` records into integer counts in proportion to ``shares``.

    Each count differs from its exact share by less than one (systematic sampling).  Shares that are
    all 0 count as equal.
    """
    total = float(shares.sum())
    expected = (
        shares * (people / total) if total > 0.0 else np.full(len(shares), people / len(shares))
    )
    cumulative = np.floor(np.cumsum(expected) + generator.random())
    cumulative[-1] = people
    return np.diff(np.minimum(cumulative, people), prepend=0.0).astype(np.int64)


MAX_PROGRAM_CELLS = 20_000  # largest number of cells in an integer program for several totals

# One pair per public total: (axes that are summed out, counts of the margin).
_Margins = Sequence[tuple[tuple[int, ...], Index]]


def meet_facts(
    columns: Mapping[str, Index], schema: Schema, generator: np.random.Generator
) -> dict[str, npt.NDArray[np.int64]]:
    """Change synthetic records so that they satisfy the public facts of a schema.

    In the result no record is in an impossible cell.  If the public totals sum to the number of
    records, the counts of the result equal the public totals.

    Parameters
    ----------
    columns : mapping from attributes to cell codes, shape (records,).
    schema : schema with impossible cells and public totals.  Attributes without a column are summed
        over.

    Returns
    -------
    Mapping from attributes to changed cell codes, of the same shapes.

    Raises
    ------
    LimitExceeded : several public totals share attributes of too many cells.
    PlanError : no integer counts satisfy the rules of the schema and all public totals.
    """
    changed = {name: np.array(codes, dtype=np.int64) for name, codes in columns.items()}
    people = len(next(iter(changed.values()))) if changed else 0
    for fact in schema.facts:
        names = [name for name in fact.names if name in changed]
        if not names or not people:
            continue
        possible = fact.possible(names) > 0.0
        records = np.stack([changed[name] for name in names], axis=1)
        # change the records in impossible cells
        impute_records(records, [(list(range(len(names))), possible)], generator)
        # for each public table, the axes of ``counts`` to sum over and the public totals
        margins = []
        for invariant in schema.invariants:
            shared = [name for name in invariant.attributes if name in names]
            if shared:
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
        changed |= {name: records[:, i] for i, name in enumerate(names)}
    return changed


def _move_records(
    records: Index, counts: Index, target: Index, generator: np.random.Generator
) -> None:
    """Move as few records as possible to other cells, in place, so that their counts are
    ``target``.

    Parameters
    ----------
    records : cell codes, shape (people, attributes).
    counts, target : present and intended counts of the records, shape (n_1, ..., n_k).
    """
    cells = np.ravel_multi_index(tuple(records.T), counts.shape)
    # ``ranked`` has the records sorted by cell, in random order within each cell.  The records of
    # a cell end at the entry of ``ends`` for this cell.
    order = generator.permutation(len(cells))
    ranked = order[np.argsort(cells[order], kind="stable")]
    ends = np.cumsum(counts.ravel())
    surplus = np.maximum(counts - target, 0).ravel()
    # the last records of every cell with too many records
    leaving = np.concatenate(
        [ranked[:0], *(ranked[end - k : end] for end, k in zip(ends, surplus, strict=True) if k)]
    )
    new_cells = np.repeat(np.arange(counts.size), np.maximum(target - counts, 0).ravel())
    records[generator.permutation(leaving)] = np.stack(
        np.unravel_index(new_cells, counts.shape), axis=1
    )


def _meet_margins(
    counts: Index, possible: npt.NDArray[np.bool_], margins: _Margins, names: Sequence[str]
) -> Index:
    """Return the nearest integer counts, shape (n_1, ..., n_k), that have the given margins.

    Impossible cells remain empty.  Distance is the number of added plus removed records.
    """
    if len(margins) == 1:
        return _meet_margin(counts, possible, *margins[0])
    import scipy.optimize
    import scipy.sparse

    cells = np.flatnonzero(possible)
    if cells.size > MAX_PROGRAM_CELLS:
        raise LimitExceeded(
            f"The table on {set_name(names)} has several exact totals (invariants) and"
            f" {cells.size:,} possible cells, but integer counts with several exact totals are"
            f" computed for at most {MAX_PROGRAM_CELLS:,} cells. Publish without integer=True and"
            " without synthetic records, or merge cells of these attributes."
        )
    # For each margin: the matrix that sums the possible cells to the cells of the margin, and the
    # counts that are missing in these cells.
    index = np.unravel_index(cells, possible.shape)
    sums = []
    gaps = []
    for summed_axes, margin in margins:
        margin_index = [index[a] for a in range(possible.ndim) if a not in summed_axes]
        rows = np.ravel_multi_index(margin_index, margin.shape)
        shape = (margin.size, cells.size)
        sums.append(
            scipy.sparse.csr_array(
                (np.ones(cells.size), (rows, np.arange(cells.size))), shape=shape
            )
        )
        gaps.append((margin - counts.sum(axis=summed_axes)).ravel())
    matrix, gap = scipy.sparse.vstack(sums), np.concatenate(gaps)
    # With x records added to each possible cell and y removed, the sum of all x + y is minimized
    # such that x - y has the missing counts as margins.
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
            "Under the rules of the schema, no integer counts have all exact totals on"
            f" {set_name(names)}. Correct one of these totals (invariants) or a rule."
        )
    adjusted, changes = counts.copy(), np.rint(solution.x).astype(np.int64)
    adjusted.flat[cells] += changes[: cells.size] - changes[cells.size :]
    return adjusted


def _meet_margin(
    counts: Index, possible: npt.NDArray[np.bool_], summed_axes: tuple[int, ...], margin: Index
) -> Index:
    """Return the nearest integer counts whose sums over ``summed_axes`` are ``margin``.

    Records are added to or removed from the largest of the cells that sum to a cell of the margin.
    """
    axes = [*(a for a in range(counts.ndim) if a not in summed_axes), *summed_axes]
    rows = counts.transpose(axes).reshape(margin.size, -1).copy()
    allowed = possible.transpose(axes).reshape(margin.size, -1)
    for row, row_allowed, target in zip(rows, allowed, margin.ravel(), strict=True):
        missing = int(target - row.sum())
        if missing > 0:
            row[np.argmax(np.where(row_allowed, row, -1))] += missing
        while missing < 0:
            largest = int(np.argmax(row))
            removed = min(-missing, int(row[largest]))
            row[largest] -= removed
            missing += removed
    return np.asarray(rows.reshape([counts.shape[a] for a in axes]).transpose(np.argsort(axes)))
