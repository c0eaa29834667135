"""Queries of a group on the areas of one level of a hierarchy.

A group has one query per combination of queries of its parts (factors of the query matrix), such as
areas of a geography times age groups. Therefore the queries on the areas of one level are in
general not consecutive in the group. `LevelQueries` returns their indices in the group.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from engine._arrays import Index
from engine.errors import WorkloadError
from engine.workload.attribute import Attribute
from engine.workload.families import Areas, Family, Level, Marginal
from engine.workload.schema import Schema
from engine.workload.workload import Group, make_group


@dataclass(frozen=True, kw_only=True)
class PartQueries:
    """Queries of a group that are combinations of chosen queries of its parts.

    A part is a factor of the query matrix of the group. The group has one query per combination of
    queries of its parts, in row-major order.

    Attributes
    ----------
    chosen : for each part, indices of its chosen queries.
    counts : number of queries of each part.

    >>> queries = PartQueries(chosen=([1], range(3)), counts=(2, 3))
    >>> queries.total, queries.runs(0, 2)
    (3, [(3, 5)])
    """

    chosen: tuple[Sequence[int], ...]
    counts: tuple[int, ...]

    @property
    def total(self) -> int:
        return math.prod(map(len, self.chosen))

    def runs(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Return the indices in the group of the combinations ``start:stop``, as ranges.

        The combinations of chosen queries are numbered in row-major order. Consecutive indices are
        returned as one range (first, exclusive end).
        """
        positions = np.unravel_index(
            np.arange(start, min(stop, self.total)), tuple(map(len, self.chosen))
        )
        indices = tuple(
            np.asarray(chosen, dtype=np.int64)[position]
            for chosen, position in zip(self.chosen, positions, strict=True)
        )
        return consecutive_runs(np.asarray(np.ravel_multi_index(indices, self.counts)))


def consecutive_runs(numbers: Index) -> list[tuple[int, int]]:
    """Divide an array of integers into ranges (first, exclusive end) of consecutive integers.

    >>> consecutive_runs(np.array([3, 4, 5, 9]))
    [(3, 6), (9, 10)]
    """
    if not len(numbers):
        return []
    runs = np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1)
    return [(int(run[0]), int(run[-1]) + 1) for run in runs]


@dataclass(frozen=True, kw_only=True)
class LevelQueries:
    """Queries of a group on the areas of one level.

    Attributes
    ----------
    title : name of the level; followed by the name of the attribute if several attributes of the
        group have levels.
    labels : label of each area.
    part : index of the part with the queries on the areas. Parts are the factors of the query
        matrix of the group.
    start : index, within this part, of the query on the first area.
    counts : number of queries of each part of the group.
    """

    title: str
    labels: tuple[str, ...]
    part: int
    start: int
    counts: tuple[int, ...]

    @cached_property
    def per_area(self) -> int:
        """Number of queries of the group on each area."""
        return math.prod(self.counts[: self.part] + self.counts[self.part + 1 :])

    def find(self, text: str) -> Sequence[int]:
        """Return the indices of the areas whose label contains a text, ignoring case.

        Areas whose label equals the text come first. An empty text is contained in all labels.
        """
        needle = text.strip().casefold()
        if not needle:
            return range(len(self.labels))
        labels = [label.casefold() for label in self.labels]
        matches = [area for area, label in enumerate(labels) if needle in label]
        return sorted(matches, key=lambda area: labels[area] != needle)

    def numbers(self, areas: Sequence[int], start: int, stop: int) -> Index:
        """Return the indices, in the group, of queries ``start:stop`` on the given areas.

        ``start`` and ``stop`` count the queries of a group that has only these areas, in the order
        of ``areas``. The result has shape (queries,).
        """
        shape = list(self.counts)
        shape[self.part] = len(areas)
        first, last, _ = slice(start, stop).indices(len(areas) * self.per_area)
        # ``indices`` has one array per part (product factor) of the group: the index of each query
        # in this part.
        indices = list(np.unravel_index(np.arange(first, max(first, last)), shape))
        indices[self.part] = self.start + np.asarray(areas, dtype=np.int64)[indices[self.part]]
        return np.asarray(np.ravel_multi_index(tuple(indices), self.counts), dtype=np.int64)

    def runs(self, areas: Sequence[int], start: int, stop: int) -> list[tuple[int, int]]:
        """Return the indices of queries ``start:stop`` on the given areas, as ranges.

        A range (first, exclusive end) stands for consecutive indices. `numbers` returns the single
        indices.
        """
        return consecutive_runs(self.numbers(areas, start, stop))


def levels_of_group(schema: Schema, group: Group) -> tuple[LevelQueries, ...]:
    """Return the levels whose areas are queries of a group, per attribute from coarse to fine.

    The cells of an attribute with a hierarchy count as a level with the name of the attribute.

    >>> from engine.workload import Attribute, CodeList, Levels, Workload
    >>> codes = CodeList.from_labels({"Ohio": ["39001"], "Iowa": ["19001", "19003"]}, levels=["state"])
    >>> schema = Schema([Attribute.hierarchy("county", codes)])
    >>> group = Workload(schema).add("county", Levels(["state", "county"])).groups[0]
    >>> [(level.title, level.labels) for level in levels_of_group(schema, group)]
    [('state', ('Ohio', 'Iowa')), ('county', ('39001', '19001', '19003'))]
    """
    counts = tuple(part.count for part in group.parts)
    levels, names = [], []
    for number, part in enumerate(group.parts):
        attribute = schema[group.attributes[part.axes[0]]]
        if len(part.axes) > 1 or not attribute.hierarchies:
            continue
        for level, labels, start in _levels_of_family(attribute, part.family):
            names.append(attribute.name)
            levels.append(
                LevelQueries(title=level, labels=labels, part=number, start=start, counts=counts)
            )
    # Titles name the attribute only if several attributes have levels.
    if len(set(names)) < 2:
        return tuple(levels)
    return tuple(
        LevelQueries(
            title=level.title if level.title == name else f"{level.title} of {name}",
            labels=level.labels,
            part=level.part,
            start=level.start,
            counts=counts,
        )
        for level, name in zip(levels, names, strict=True)
    )


def _levels_of_family(
    attribute: Attribute, family: Family
) -> list[tuple[str, tuple[str, ...], int]]:
    """Return (name, labels of areas, index of the first query) of each level of a family.

    Only a `Marginal`, whose cells are one level, and `Areas` on selected levels have levels.
    """
    cells = tuple(map(attribute.label, range(attribute.size)))
    if isinstance(family, Marginal):
        return [(attribute.name, cells, 0)]
    if not isinstance(family, Areas) or family.selection is None:
        return []
    selection, out = family.selection, []
    # ``starts`` has one more entry, the number of all queries
    for position, start in sorted(zip(selection.positions, selection.starts, strict=False)):
        if position == len(selection.hierarchy.levels):
            out.append((attribute.name, cells, start))
        else:
            level = selection.hierarchy.levels[position]
            out.append((level.name, level.labels, start))
    return out


def level_groups(schema: Schema, group: Group) -> dict[str, Group]:
    """Return one new group per level of the hierarchies of the attributes of a group.

    In each new group, one query per area of the level replaces the queries on one attribute, see
    `at_level`. The result maps a title such as "state" to the new group. Levels whose areas are
    already queries of ``group`` are left out. The result is empty if a family of ``group`` is on
    several attributes.
    """
    if any(len(part.axes) > 1 for part in group.parts):
        return {}
    # ``present`` has the levels whose areas are already queries of the group.
    present = set()
    for part in group.parts:
        if isinstance(part.family, Areas) and part.family.selection is not None:
            hierarchy = part.family.selection.hierarchy
            for position in part.family.selection.positions:
                # The last position is the level of the cells, which has no name in the hierarchy.
                if position < len(hierarchy.levels):
                    name = group.attributes[part.axes[0]]
                    present.add((name, hierarchy.name, hierarchy.level_names[position]))
    attributes = [schema[name] for name in group.attributes if schema[name].hierarchies]
    entries = [
        (attribute.name, hierarchy.name, level)
        for attribute in attributes
        for hierarchy in attribute.hierarchies
        for level in hierarchy.level_names
    ]
    repeated = Counter((name, level) for name, _, level in entries)
    out = {}
    for name, hierarchy_name, level in entries:
        if (name, hierarchy_name, level) not in present:
            title = level if len(attributes) == 1 else f"{level} of {name}"
            if repeated[name, level] > 1:
                title = f"{title} ({hierarchy_name})"
            out[title] = at_level(schema, group, name, level, hierarchy_name)
    return out


def at_level(
    schema: Schema, group: Group, attribute: str, level: str, hierarchy: str | None = None
) -> Group:
    """Return a group like ``group`` in which the queries on one attribute are replaced.

    The new queries on the attribute are the areas of one level. The queries on all other attributes
    are unchanged. The new group has weight 1. ``level`` and ``hierarchy`` are those of `Level`.

    Raises
    ------
    WorkloadError : if the attribute is not in the group or has no such level, or if a family of the
        group is on several attributes.
    """
    families = {
        group.attributes[part.axes[0]]: part.family for part in group.parts if len(part.axes) == 1
    }
    if attribute not in group.attributes:
        remedy = "one of its attributes" if group.attributes else "a group with this attribute"
        raise WorkloadError(
            f"The group on {', '.join(group.attributes) or 'no attribute'} does not contain"
            f" '{attribute}'. Choose {remedy}."
        )
    if len(families) < len(group.attributes):
        raise WorkloadError(
            f"The group on {', '.join(group.attributes)} has a family on several attributes, so no"
            f" level of '{attribute}' can be queried. Choose a group with one family per attribute."
        )
    return make_group(schema, group.attributes, families | {attribute: Level(level, hierarchy)})
