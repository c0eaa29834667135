"""Conditions on attributes as values, and their predicate text.

A condition is a conjunction of factors.  A factor on one attribute is the set of its cells; a factor on several is a
text in the language of `predicates`.  A conjunction of single-attribute factors makes a product of queries, so
keeping the factors apart keeps the decomposition of a workload small.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from engine._format import plain
from engine.errors import WorkloadError
from engine.workload.attribute import Attribute
from engine.workload.families import Custom, Family
from engine.workload.predicates import word
from engine.workload.schema import Schema
from engine.workload.workload import FamilySpec, Workload

QUOTED = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\"""")
Inside = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, eq=False)
class Cells:
    """Some cells of one attribute: a mask of shape (size,)."""

    attribute: Attribute
    inside: Inside


@dataclass(frozen=True, kw_only=True, eq=False)
class Condition:
    """A conjunction of factors on single attributes and of texts on several.

    Attributes
    ----------
    cells : name of an attribute -> its cells that meet the condition.
    texts : predicate text -> names of the attributes in it.
    """

    cells: Mapping[str, Cells] = field(default_factory=dict)
    texts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """Every attribute that the condition is about, once, in the order of appearance."""
        return tuple(dict.fromkeys([*self.cells, *(name for named in self.texts.values() for name in named)]))

    @property
    def never(self) -> bool:
        """Whether the cells of one attribute alone make it impossible."""
        return any(not found.inside.any() for found in self.cells.values())

    @property
    def always(self) -> bool:
        """Whether every cell meets it."""
        return not self.texts and all(found.inside.all() for found in self.cells.values())

    @property
    def single(self) -> Cells | None:
        """The cells, when the condition is about one attribute only."""
        return next(iter(self.cells.values())) if len(self.cells) == 1 and not self.texts else None


def of_cells(attribute: Attribute, inside: npt.ArrayLike) -> Condition:
    """Return the condition that a value lies in the cells of a mask, shape (size,)."""
    return Condition(cells={attribute.name: Cells(attribute=attribute, inside=np.asarray(inside, dtype=bool))})


def both(parts: Sequence[Condition]) -> Condition:
    """Return the conjunction; conditions on one attribute become one.

    >>> age = Attribute.numeric("age", [0, 20, 40, 60])
    >>> text(both([of_cells(age, [False, True, True]), of_cells(age, [True, True, False])]))
    '20 <= age < 40'
    """
    cells: dict[str, Cells] = {}
    texts: dict[str, tuple[str, ...]] = {}
    for part in parts:
        for name, found in part.cells.items():
            inside = cells[name].inside & found.inside if name in cells else found.inside
            cells[name] = Cells(attribute=found.attribute, inside=inside)
        texts |= part.texts
    return Condition(cells=cells, texts=texts)


def either(parts: Sequence[Condition]) -> Condition:
    """Return the disjunction of one part or more; parts about one and the same attribute become one set of cells."""
    cells: dict[str, Cells] = {}
    rest: list[Condition] = []
    for part in parts:
        if (found := part.single) is not None:
            name = found.attribute.name
            inside = cells[name].inside | found.inside if name in cells else found.inside
            cells[name] = Cells(attribute=found.attribute, inside=inside)
        else:
            rest.append(part)
    options = [*(Condition(cells={name: found}) for name, found in cells.items()), *rest]
    if any(option.always for option in options):
        return Condition()
    options = [option for option in options if not option.never] or options[:1]
    if len(options) == 1:
        return options[0]
    named = dict.fromkeys(name for option in options for name in option.names)
    return Condition(texts={" or ".join(text(option) for option in options): tuple(named)})


def negation(part: Condition) -> Condition:
    """Return the complement.

    >>> sex = Attribute.categorical("sex", ["F", "M", "X"])
    >>> text(negation(of_cells(sex, [True, False, False])))
    "sex != 'F'"
    """
    if (found := part.single) is not None:
        return of_cells(found.attribute, ~found.inside)
    return Condition(texts={f"not ({text(part)})": part.names})


def text(condition: Condition) -> str:
    """Return the condition in the language of `predicates`."""
    return joined(factors(condition))


def factors(condition: Condition) -> list[str]:
    """Return the texts of a conjunction; none when every cell meets it."""
    cells = [cells_text(found.attribute, found.inside) for found in condition.cells.values() if not found.inside.all()]
    return [*cells, *condition.texts]


def joined(parts: Sequence[str]) -> str:
    """Return the predicate that all parts hold.

    >>> joined(["age < 20", "code == 1 or code == 7"]), joined([])
    ('age < 20 and (code == 1 or code == 7)', 'True')
    """
    return parts[0] if len(parts) == 1 else " and ".join(map(closed, parts)) or "True"


def closed(part: str) -> str:
    """Return a predicate text that can be joined to others by "and"."""
    return f"({part})" if " or " in QUOTED.sub("", part) else part


def cells_text(attribute: Attribute, inside: Inside) -> str:
    """Return the predicate that holds for exactly these cells.

    >>> code = Attribute.of_size("code", 9)
    >>> cells_text(code, np.arange(9) < 4), cells_text(code, np.arange(9) != 4), cells_text(code, np.arange(9) % 4 == 0)
    ('code <= 3', 'code != 4', 'code in [0, 4, 8]')
    """
    if inside.all() or not inside.any():
        return str(bool(inside.all()))
    name, outside = word(attribute.name), ~inside
    (starts, stops), (out, ends) = _runs(inside), _runs(outside)
    codes = attribute.edges is None
    listed = codes and len(starts) > 1 and (stops - starts == 1).all()
    excepted = codes and len(out) < len(starts) and (ends - out == 1).all()
    if attribute.kind == "categorical" or listed or excepted:
        some = not excepted if attribute.kind == "numeric" else inside.sum() <= outside.sum()
        values = [_value(attribute, int(i)) for i in np.flatnonzero(inside if some else outside)]
        if len(values) == 1:
            return f"{name} {'==' if some else '!='} {values[0]}"
        return f"{name} {'in' if some else 'not in'} [{', '.join(values)}]"
    if len(out) < len(starts):
        found = cells_text(attribute, outside)
        return f"not {closed(found)}"
    return " or ".join(_run(attribute, int(a), int(b)) for a, b in zip(starts, stops, strict=True))


def families(condition: Condition) -> dict[str, str | Family]:
    """Return the single-query families of a conjunction without texts, one for each of its attributes."""
    return {
        name: "total" if found.inside.all() else Custom(predicates=[closed(cells_text(found.attribute, found.inside))])
        for name, found in condition.cells.items()
    }


def box_workload(schema: Schema, cells: Mapping[str, tuple[int, int]], weight: float = 1.0) -> Workload:
    """Return the workload of one query: the records whose attributes lie in runs of cells, first and last included.

    >>> schema = Schema([Attribute.numeric("age", [0, 20, 40, 60])])
    >>> box_workload(schema, {"age": (1, 2)}).describe(0)
    'age >= 20'
    """
    parts = []
    for name, (first, last) in cells.items():
        if not 0 <= first <= last < schema[name].size:
            raise WorkloadError(
                f"The cells {first} to {last} of '{name}' were given; it has the cells 0 to {schema[name].size - 1}."
            )
        cell = np.arange(schema[name].size)
        if last - first + 1 < schema[name].size:
            parts.append(of_cells(schema[name], (first <= cell) & (cell <= last)))
    made: FamilySpec = families(both(parts)) if parts else "total"
    return Workload(schema).add(tuple(made) if isinstance(made, Mapping) else (), made, weight)


def _runs(inside: Inside) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """First cell and end (exclusive) of every run of cells that are inside."""
    change = np.diff(np.concatenate([[0], inside.astype(np.int8), [0]]))
    return np.flatnonzero(change == 1), np.flatnonzero(change == -1)


def _value(attribute: Attribute, i: int) -> str:
    return str(i) if attribute.is_coded else repr(attribute.label(i))


def _run(attribute: Attribute, first: int, end: int) -> str:
    name, n, edges = word(attribute.name), attribute.size, attribute.edges
    if attribute.is_dated:
        if end > attribute.date_cells:  # the cell of missing values is in no order with dates
            missing = f"{name} == {_value(attribute, n - 1)}"
            return missing if first == n - 1 else f"{_run(attribute, first, n - 1)} or {missing}"
        n = attribute.date_cells
        if end - first == 1:
            return f"{name} == {_value(attribute, first)}"
        low, high = f"{_value(attribute, first)} <= ", f" <= {_value(attribute, end - 1)}"
        least = f"{name} >= {_value(attribute, first)}"
    elif edges is None:
        if end - first == 1:
            return f"{name} == {first}"
        low, high = f"{first} <= ", f" <= {end - 1}"
        least = f"{name} >= {first}"
    else:
        low, high = f"{plain(edges[first])} <= ", f" < {plain(edges[end])}" if end < n else ""
        least = f"{name} >= {plain(edges[first])}"
    if end == n:
        return least
    return f"{name}{high}" if first == 0 else f"{low}{name}{high}"
