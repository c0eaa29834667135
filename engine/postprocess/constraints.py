"""Constraints of published tables and records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from engine._arrays import Index
from engine._format import set_name
from engine.errors import LimitExceeded, PlanError
from engine.postprocess.synthetic_records import mend_people
from engine.workload import Schema

MOST_MOVED = 20_000  # cells of facts that share attributes, where several totals have to be met together

_Margins = Sequence[tuple[tuple[int, ...], Index]]  # axes that are summed out, and the counts that are then left


def keeping_facts(
    columns: Mapping[str, Index], schema: Schema, generator: np.random.Generator
) -> dict[str, npt.NDArray[np.int64]]:
    """Return codes of records, shape (records,) by attribute, changed so far that they keep the facts of a schema.

    Facts on attributes that records lack are kept as far as sums over those tell.  Exact totals are met by as many
    records as they tell; fewer or more stand for a share of them, and keep the rules alone.

    Raises
    ------
    LimitExceeded : several exact totals share attributes of too many cells.
    """
    out = {name: np.array(codes, dtype=np.int64) for name, codes in columns.items()}
    people = len(next(iter(out.values()))) if out else 0
    for found in schema.facts:
        names = [name for name in found.names if name in out]
        if not names or not people:
            continue
        possible, records = found.possible(names) > 0.0, np.stack([out[name] for name in names], axis=1)
        mend_people(records, [(list(range(len(names))), possible)], generator)
        margins = []
        for one in schema.invariants:
            own = [name for name in one.attributes if name in names]
            if own and not set(one.attributes).isdisjoint(found.names):
                margins.append((tuple(a for a, n in enumerate(names) if n not in own), schema.exact_table(own)))
        if margins and int(margins[0][1].sum()) == people:
            counts = np.zeros(possible.shape, np.int64)
            np.add.at(counts, tuple(records.T), 1)
            _move(records, counts, _met(counts, possible, margins, names), generator)
        out |= {name: records[:, i] for i, name in enumerate(names)}
    return out


def _move(records: Index, counts: Index, aimed: Index, generator: np.random.Generator) -> None:
    """Change as few records, shape (people, attributes), as take their counts to others with the same sum, in place."""
    cells = np.ravel_multi_index(tuple(records.T), counts.shape)
    order = generator.permutation(len(cells))
    ranked = order[np.argsort(cells[order], kind="stable")]
    ends = np.cumsum(counts.ravel())
    surplus = np.maximum(counts - aimed, 0).ravel()
    leaving = np.concatenate([ranked[end - k : end] for end, k in zip(ends, surplus, strict=True) if k] or [ranked[:0]])
    arriving = np.repeat(np.arange(counts.size), np.maximum(aimed - counts, 0).ravel())
    records[generator.permutation(leaving)] = np.stack(np.unravel_index(arriving, counts.shape), axis=1)


def _met(counts: Index, possible: npt.NDArray[np.bool_], margins: _Margins, names: Sequence[str]) -> Index:
    """Return whole counts with the margins, near given ones; all have shape (n_1, ..., n_k)."""
    if len(margins) == 1:
        return _one_met(counts, possible, *margins[0])
    import scipy.optimize
    import scipy.sparse

    cells = np.flatnonzero(possible)
    if cells.size > MOST_MOVED:
        raise LimitExceeded(
            f"The exact totals on {set_name(names)} share attributes of {cells.size:,} cells; records are made to meet "
            f"several together where these are at most {MOST_MOVED:,}. Publish tables without integer=True."
        )
    index, sums, gaps = np.unravel_index(cells, possible.shape), [], []
    for out, wanted in margins:
        kept = [index[a] for a in range(possible.ndim) if a not in out]
        at = np.ravel_multi_index(kept, wanted.shape)
        shape = (wanted.size, cells.size)
        sums.append(scipy.sparse.csr_array((np.ones(cells.size), (at, np.arange(cells.size))), shape=shape))
        gaps.append((wanted - counts.sum(axis=out)).ravel())
    whole, gap = scipy.sparse.vstack(sums), np.concatenate(gaps)
    # the fewest records that come and go, x and y: margins of x - y are what is missing
    found = scipy.optimize.milp(
        np.ones(2 * cells.size),
        integrality=np.ones(2 * cells.size, np.int64),
        bounds=scipy.optimize.Bounds(0.0, np.concatenate([np.full(cells.size, np.inf), counts.ravel()[cells]])),
        constraints=scipy.optimize.LinearConstraint(scipy.sparse.hstack([whole, -whole]), gap, gap),
    )
    if found.status != 0:
        raise PlanError(f"No whole records have the exact totals on {set_name(names)}. Correct an invariant.")
    made, moved = counts.copy(), np.rint(found.x).astype(np.int64)
    made.flat[cells] += moved[: cells.size] - moved[cells.size :]
    return made


def _one_met(counts: Index, possible: npt.NDArray[np.bool_], out: tuple[int, ...], wanted: Index) -> Index:
    """Return the same for one margin, whose cells stand alone: each is filled, or emptied, where most records are."""
    kept = [a for a in range(counts.ndim) if a not in out]
    rows = counts.transpose([*kept, *out]).reshape(wanted.size, -1).copy()
    open_to = possible.transpose([*kept, *out]).reshape(wanted.size, -1)
    for row, where, aim in zip(rows, open_to, wanted.ravel(), strict=True):
        missing = int(aim - row.sum())
        if missing > 0:
            row[np.argmax(np.where(where, row, -1))] += missing
        while missing < 0:
            most = int(np.argmax(row))
            taken = min(-missing, int(row[most]))
            row[most] -= taken
            missing += taken
    back = np.argsort([*kept, *out])
    return np.asarray(rows.reshape([counts.shape[a] for a in (*kept, *out)]).transpose(back))
