"""Lattice of attribute sets: which tables follow from which."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set

import numpy as np

from engine._format import shown
from engine.errors import LimitExceeded, SchemaError
from engine.workload import Schema

MAX_AXES = 64
Names = tuple[str, ...]


def listed(names: Sequence[str]) -> str:
    """An attribute set in words."""
    return f"({', '.join(map(shown, names))})"


def asked_sets(schema: Schema, attribute_sets: Iterable[Sequence[str]]) -> list[Names]:
    """The attribute sets as distinct tuples of known names."""
    asked: dict[Names, None] = {}
    for given in attribute_sets:
        # The order of the names is the order of the axes, so an unordered set will not do.
        if isinstance(given, (str, bytes, Set)) or not isinstance(given, Iterable):
            raise SchemaError(f"an attribute set is given as {shown(given)}; give a tuple of names, like ('age',)")
        names = tuple(given)
        if len(names) > MAX_AXES:
            raise LimitExceeded(f"a table on {len(names):,} attributes; at most {MAX_AXES} are possible")
        schema.sizes(names)
        if len(set(names)) < len(names):
            raise SchemaError(f"the attribute set {listed(names)} has a name twice; keep one of them")
        asked[names] = None
    return list(asked)


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
        if source is not None and source != names:  # what is held itself is taken as it is
            found[names] = _summed(found[source], source, names)
    found[()] = np.array(records, np.int64)
    return {names: found[names] for names in asked}
