"""Lattice of attribute sets: tables that are margins of other tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set

import numpy as np

from engine._format import quote_public
from engine.errors import LimitExceeded, SchemaError
from engine.workload import Schema

MAX_AXES = 64
Names = tuple[str, ...]


def set_text(names: Sequence[str]) -> str:
    """Return an attribute set as text for messages."""
    return f"({', '.join(map(quote_public, names))})"


def checked_sets(schema: Schema, attribute_sets: Iterable[Sequence[str]]) -> list[Names]:
    """Return the attribute sets as distinct tuples, checked against the schema.

    Raises
    ------
    SchemaError
        A set is not a sequence, repeats a name or has a name that the schema does not contain.
    LimitExceeded
        A set has more than `MAX_AXES` attributes.
    """
    requested: dict[Names, None] = {}
    for attribute_set in attribute_sets:
        # the order of the names is the order of the axes, so unordered sets are refused
        if isinstance(attribute_set, (str, bytes, Set)) or not isinstance(attribute_set, Iterable):
            raise SchemaError(
                f"an attribute set is {quote_public(attribute_set)}; give a tuple of names, like ('age',)"
            )
        names = tuple(attribute_set)
        if len(names) > MAX_AXES:
            raise LimitExceeded(f"a table on {len(names):,} attributes; at most {MAX_AXES} are possible")
        schema.sizes(names)
        if len(set(names)) < len(names):
            raise SchemaError(f"the attribute set {set_text(names)} has a name twice; keep one of them")
        requested[names] = None
    return list(requested)


def larger_tables(schema: Schema, requested: Iterable[Names], held: Iterable[Names] = ()) -> dict[Names, Names | None]:
    """Return, for each requested set, the smallest table that contains it, or None.

    Parameters
    ----------
    asked : requested attribute sets.
    held : attribute sets of tables that exist already.

    Returns
    -------
    Requested set -> existing table or larger requested set. Larger sets come first, so every source
    is computed before it is used.
    """
    holders: dict[str, set[Names]] = {name: set() for name in schema}
    sources: dict[Names, Names | None] = {}

    def register(names: Names) -> None:
        for name in names:
            holders[name].add(names)

    for names in held:
        register(names)
    for names in sorted(requested, key=len, reverse=True):
        candidates = set.intersection(*(holders[name] for name in names)) if names else set()
        sources[names] = min(candidates, key=schema.cells, default=None)
        register(names)
    return sources


def _summed(table: np.ndarray, source: Names, names: Names) -> np.ndarray:
    """Sum the table on `source` to the table on `names`, a subset of its attributes."""
    summed_axes = tuple(axis for axis, name in enumerate(source) if name not in names)
    remaining = [name for name in source if name in names]
    return np.array(
        table.sum(axis=summed_axes).transpose([remaining.index(name) for name in names]), np.int64, order="C"
    )


def complete_tables(
    tables: Mapping[Names, np.ndarray], requested: Sequence[Names], sources: Mapping[Names, Names | None], records: int
) -> dict[Names, np.ndarray]:
    """Return all requested tables, in the requested order, summed from larger ones if necessary.

    Parameters
    ----------
    tables : counted or existing tables.
    sources : source of each table, see `larger_tables`.
    records : number of records, the table on the empty set.
    """
    all_tables = dict(tables)
    for names, source in sources.items():
        if source is not None and source != names:  # an existing table needs no sum
            all_tables[names] = _summed(all_tables[source], source, names)
    all_tables[()] = np.array(records, np.int64)
    return {names: all_tables[names] for names in requested}
