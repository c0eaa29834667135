"""Which table is summed from which larger one, so that records are counted in as few tables as possible."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from engine.workload import Schema

Names = tuple[str, ...]


def larger_tables(schema: Schema, asked: Iterable[Names], held: Iterable[Names] = ()) -> dict[Names, Names | None]:
    """For each set the smallest table that contains it, held or asked before it; None when there is none.

    The sets come out with the larger ones first, so that every source is complete before it is used.
    """
    holders: dict[str, set[Names]] = {name: set() for name in schema}
    found: dict[Names, Names | None] = {}

    def hold(names: Names) -> None:
        for name in names:
            holders[name].add(names)

    for names in held:
        hold(names)
    for names in sorted(asked, key=len, reverse=True):
        candidates = set.intersection(*(holders[name] for name in names)) if names else set()
        found[names] = min(candidates, key=schema.cells, default=None)
        hold(names)
    return found


def _summed(table: np.ndarray, source: Names, names: Names) -> np.ndarray:
    """The marginal table on `names` from the table on `source`, which contains them."""
    rest = tuple(axis for axis, name in enumerate(source) if name not in names)
    kept = [name for name in source if name in names]
    return np.array(table.sum(axis=rest).transpose([kept.index(name) for name in names]), np.int64, order="C")


def completed(
    tables: Mapping[Names, np.ndarray], asked: Sequence[Names], sources: Mapping[Names, Names | None], records: int
) -> dict[Names, np.ndarray]:
    """All asked tables, each of the shape of its attributes, in the order asked, from those counted or held."""
    found = dict(tables)
    for names, source in sources.items():
        if source is not None:
            found[names] = _summed(found[source], source, names)
    found[()] = np.array(records, np.int64)
    return {names: found[names] for names in asked}
