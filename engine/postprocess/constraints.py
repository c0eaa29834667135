"""Constraints on synthetic records: impossible cells and exact public totals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from engine._arrays import Index
from engine._format import set_name
from engine.errors import LimitExceeded, PlanError
from engine.postprocess.synthetic_records import impute_records
from engine.workload import Schema

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
        possible, records = fact.possible(names) > 0.0, np.stack([out[name] for name in names], axis=1)
        impute_records(records, [(list(range(len(names))), possible)], generator)
        margins = []
        for invariant in schema.invariants:
            shared = [name for name in invariant.attributes if name in names]
            if shared and not set(invariant.attributes).isdisjoint(fact.names):
                margins.append((tuple(a for a, n in enumerate(names) if n not in shared), schema.exact_table(shared)))
        if margins and int(margins[0][1].sum()) == people:
            counts = np.zeros(possible.shape, np.int64)
            np.add.at(counts, tuple(records.T), 1)
            _move_records(records, counts, _meet_margins(counts, possible, margins, names), generator)
        out |= {name: records[:, i] for i, name in enumerate(names)}
    return out


def _move_records(records: Index, counts: Index, target: Index, generator: np.random.Generator) -> None:
    """Change as few records, shape (people, attributes), as their target counts need, in place."""
    cells = np.ravel_multi_index(tuple(records.T), counts.shape)
    order = generator.permutation(len(cells))
    ranked = order[np.argsort(cells[order], kind="stable")]
    ends = np.cumsum(counts.ravel())
    surplus = np.maximum(counts - target, 0).ravel()
    leaving = np.concatenate([ranked[end - k : end] for end, k in zip(ends, surplus, strict=True) if k] or [ranked[:0]])
    arriving = np.repeat(np.arange(counts.size), np.maximum(target - counts, 0).ravel())
    records[generator.permutation(leaving)] = np.stack(np.unravel_index(arriving, counts.shape), axis=1)


def _meet_margins(counts: Index, possible: npt.NDArray[np.bool_], margins: _Margins, names: Sequence[str]) -> Index:
    """Return integer counts, shape (n_1, ..., n_k), with the margins and the fewest changes."""
    if len(margins) == 1:
        return _meet_margin(counts, possible, *margins[0])
    import scipy.optimize
    import scipy.sparse

    cells = np.flatnonzero(possible)
    if cells.size > MAX_PROGRAM_CELLS:
        raise LimitExceeded(
            f"The exact totals on {set_name(names)} share attributes of {cells.size:,} cells, but records can meet "
            f"several totals jointly only up to {MAX_PROGRAM_CELLS:,} cells. Publish tables without integer=True."
        )
    index, sums, gaps = np.unravel_index(cells, possible.shape), [], []
    for out, margin in margins:
        remaining = [index[a] for a in range(possible.ndim) if a not in out]
        rows = np.ravel_multi_index(remaining, margin.shape)
        shape = (margin.size, cells.size)
        sums.append(scipy.sparse.csr_array((np.ones(cells.size), (rows, np.arange(cells.size))), shape=shape))
        gaps.append((margin - counts.sum(axis=out)).ravel())
    matrix, gap = scipy.sparse.vstack(sums), np.concatenate(gaps)
    # minimize added plus removed records, x + y, with margins of x - y equal to the gaps
    solution = scipy.optimize.milp(
        np.ones(2 * cells.size),
        integrality=np.ones(2 * cells.size, np.int64),
        bounds=scipy.optimize.Bounds(0.0, np.concatenate([np.full(cells.size, np.inf), counts.ravel()[cells]])),
        constraints=scipy.optimize.LinearConstraint(scipy.sparse.hstack([matrix, -matrix]), gap, gap),
    )
    if solution.status != 0:
        raise PlanError(f"No integer counts have the exact totals on {set_name(names)}. Correct an invariant.")
    adjusted, changes = counts.copy(), np.rint(solution.x).astype(np.int64)
    adjusted.flat[cells] += changes[: cells.size] - changes[cells.size :]
    return adjusted


def _meet_margin(counts: Index, possible: npt.NDArray[np.bool_], out: tuple[int, ...], margin: Index) -> Index:
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
