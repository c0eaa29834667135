"""Conditions on attributes as values, and their predicate texts.

A condition is a conjunction of factors. A factor on one attribute is a set of its cells; a factor
on several attributes is a text in the language of `predicates`. Each single-attribute factor
becomes a query family on its attribute, so its query matrix has only the cells of this attribute.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from engine._format import shortest_text
from engine.errors import WorkloadError
from engine.workload.attribute import Attribute
from engine.workload.families import Custom, Family
from engine.workload.predicates import word
from engine.workload.schema import Schema
from engine.workload.workload import Workload

_QUOTED_TEXT = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\"""")
Inside = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, eq=False)
class Cells:
    """Set of cells of one attribute; the mask ``inside`` has shape (size,)."""

    attribute: Attribute
    inside: Inside


@dataclass(frozen=True, kw_only=True, eq=False)
class Condition:
    """Conjunction of factors on single attributes and of predicate texts on several attributes.

    Attributes
    ----------
    cells : attribute name -> cells of this attribute in which its factor is true.
    texts : predicate text -> names of the attributes in this text.
    """

    cells: Mapping[str, Cells] = field(default_factory=dict)
    texts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """Distinct names of the attributes in the condition, in order of appearance."""
        return tuple(
            dict.fromkeys([*self.cells, *(name for names in self.texts.values() for name in names)])
        )

    @property
    def never(self) -> bool:
        """Whether some factor on a single attribute is false in every cell.

        The predicate texts are not evaluated.
        """
        return any(not cells.inside.any() for cells in self.cells.values())

    @property
    def always(self) -> bool:
        """Whether the condition has no predicate texts and every cell satisfies it."""
        return not self.texts and all(cells.inside.all() for cells in self.cells.values())

    @property
    def single(self) -> Cells | None:
        """The cells if the condition is one factor on a single attribute, otherwise None."""
        return next(iter(self.cells.values())) if len(self.cells) == 1 and not self.texts else None


def of_cells(attribute: Attribute, inside: npt.ArrayLike) -> Condition:
    """Return the condition that is true in the cells of the mask ``inside``, shape (size,)."""
    return Condition(
        cells={attribute.name: Cells(attribute=attribute, inside=np.asarray(inside, dtype=bool))}
    )


def all_of(parts: Sequence[Condition]) -> Condition:
    """Return the conjunction of conditions; cells of the same attribute are intersected.

    >>> age = Attribute.numeric("age", [0, 20, 40, 60])
    >>> text(all_of([of_cells(age, [False, True, True]), of_cells(age, [True, True, False])]))
    '20 <= age < 40'
    """
    cells: dict[str, Cells] = {}
    texts: dict[str, tuple[str, ...]] = {}
    for part in parts:
        for name, factor in part.cells.items():
            inside = cells[name].inside & factor.inside if name in cells else factor.inside
            cells[name] = Cells(attribute=factor.attribute, inside=inside)
        texts |= part.texts
    return Condition(cells=cells, texts=texts)


def any_of(parts: Sequence[Condition]) -> Condition:
    """Return the disjunction of one or more conditions.

    Conditions on the same single attribute are merged into one set of cells. If several conditions
    remain, the result is one predicate text on all of their attributes.
    """
    cells: dict[str, Cells] = {}
    other_parts: list[Condition] = []
    for part in parts:
        if (factor := part.single) is not None:
            name = factor.attribute.name
            inside = cells[name].inside | factor.inside if name in cells else factor.inside
            cells[name] = Cells(attribute=factor.attribute, inside=inside)
        else:
            other_parts.append(part)
    options = [*(Condition(cells={name: factor}) for name, factor in cells.items()), *other_parts]
    if any(option.always for option in options):
        return Condition()
    # Conditions that are never true are left out. If all conditions are never true, so is the first
    # one, which is returned.
    options = [option for option in options if not option.never] or options[:1]
    if len(options) == 1:
        return options[0]
    names = dict.fromkeys(name for option in options for name in option.names)
    return Condition(texts={" or ".join(text(option) for option in options): tuple(names)})


def negation(part: Condition) -> Condition:
    """Return the condition that is true exactly where the given condition is false.

    >>> sex = Attribute.categorical("sex", ["F", "M", "X"])
    >>> text(negation(of_cells(sex, [True, False, False])))
    "sex != 'F'"
    """
    if (cells := part.single) is not None:
        return of_cells(cells.attribute, ~cells.inside)
    return Condition(texts={f"not ({text(part)})": part.names})


def text(condition: Condition) -> str:
    """Return the condition in the language of `predicates`."""
    return conjunction(factors(condition))


def factors(condition: Condition) -> list[str]:
    """Return one predicate text per factor of a condition, without factors that are always true."""
    cells = [
        cells_text(factor.attribute, factor.inside)
        for factor in condition.cells.values()
        if not factor.inside.all()
    ]
    return [*cells, *condition.texts]


def conjunction(parts: Sequence[str]) -> str:
    """Return the predicate text of the conjunction of predicate texts; "True" if there are none.

    >>> conjunction(["age < 20", "code == 1 or code == 7"]), conjunction([])
    ('age < 20 and (code == 1 or code == 7)', 'True')
    """
    return parts[0] if len(parts) == 1 else " and ".join(map(parenthesize, parts)) or "True"


def parenthesize(part: str) -> str:
    """Return a predicate text, in parentheses if it contains "or" outside quoted texts."""
    return f"({part})" if " or " in _QUOTED_TEXT.sub("", part) else part


def cells_text(attribute: Attribute, inside: Inside) -> str:
    """Return a predicate text that is true exactly in the cells of the mask, shape (size,).

    >>> code = Attribute.of_size("code", 9)
    >>> cells_text(code, np.arange(9) < 4), cells_text(code, np.arange(9) != 4), cells_text(code, np.arange(9) % 4 == 0)
    ('code <= 3', 'code != 4', 'code in [0, 4, 8]')
    """
    if inside.all() or not inside.any():
        return str(bool(inside.all()))
    outside = ~inside
    starts, ends = _consecutive_runs(inside)
    gap_starts, gap_ends = _consecutive_runs(outside)
    has_fewer_gaps = len(gap_starts) < len(starts)
    if attribute.kind == "categorical":
        lists_outside = bool(outside.sum() < inside.sum())
        return _list_predicate(
            attribute, outside if lists_outside else inside, negated=lists_outside
        )
    # For an attribute without bins, the condition is a list of values if every gap, or every run,
    # has a single cell.
    has_values = attribute.edges is None
    if has_values and has_fewer_gaps and (gap_ends - gap_starts == 1).all():
        return _list_predicate(attribute, outside, negated=True)
    if has_values and len(starts) > 1 and (ends - starts == 1).all():
        return _list_predicate(attribute, inside, negated=False)
    if has_fewer_gaps:
        complement = cells_text(attribute, outside)
        return f"not {parenthesize(complement)}"
    return " or ".join(
        _run_predicate(attribute, int(start), int(end))
        for start, end in zip(starts, ends, strict=True)
    )


def families(condition: Condition) -> dict[str, str | Family]:
    """Return attribute name -> family with one query, for each attribute in ``condition.cells``.

    The query counts the records in the cells that the condition allows; the family is "total" if
    these are all cells. The predicate texts of the condition, which are on several attributes, are
    ignored.
    """
    return {
        name: (
            "total"
            if cells.inside.all()
            else Custom(predicates=[parenthesize(cells_text(cells.attribute, cells.inside))])
        )
        for name, cells in condition.cells.items()
    }


def box_workload(
    schema: Schema, cells: Mapping[str, tuple[int, int]], weight: float = 1.0
) -> Workload:
    """Return the workload of one query: the records in a box of cells.

    Parameters
    ----------
    cells : attribute name -> first and last cell, both included.

    >>> schema = Schema([Attribute.numeric("age", [0, 20, 40, 60])])
    >>> box_workload(schema, {"age": (1, 2)}).describe(0)
    'age >= 20'
    """
    conditions = []
    for name, (first, last) in cells.items():
        if not 0 <= first <= last < schema[name].size:
            raise WorkloadError(
                f"The box contains the cells {first} to {last} of '{name}', which are not cells of"
                " this attribute in ascending order. Give a first and a last cell among the cells 0"
                f" to {schema[name].size - 1}, in this order."
            )
        cell = np.arange(schema[name].size)
        if last - first + 1 < schema[name].size:
            conditions.append(of_cells(schema[name], (first <= cell) & (cell <= last)))
    if not conditions:
        return Workload(schema).add((), "total", weight)
    family_of = families(all_of(conditions))
    return Workload(schema).add(tuple(family_of), family_of, weight)


def _consecutive_runs(inside: Inside) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Return the first cells and the exclusive ends of the runs of True in a mask of cells."""
    change = np.diff(np.concatenate([[0], inside.astype(np.int8), [0]]))
    return np.flatnonzero(change == 1), np.flatnonzero(change == -1)


def _literal(attribute: Attribute, cell: int) -> str:
    """Return the constant that denotes a cell in predicates: the code, or the label in quotes."""
    return str(cell) if attribute.is_coded else repr(attribute.label(cell))


def _list_predicate(attribute: Attribute, listed: Inside, *, negated: bool) -> str:
    """Return the predicate "is a listed cell", or "is no listed cell" if ``negated``."""
    name = word(attribute.name)
    values = [_literal(attribute, int(cell)) for cell in np.flatnonzero(listed)]
    if len(values) == 1:
        return f"{name} {'!=' if negated else '=='} {values[0]}"
    return f"{name} {'not in' if negated else 'in'} [{', '.join(values)}]"


def _run_predicate(attribute: Attribute, first: int, end: int) -> str:
    """Return the predicate that an attribute lies in the cells first .. end - 1."""
    name = word(attribute.name)
    edges = attribute.edges
    n_ordered = attribute.date_cells if attribute.is_dated else attribute.size
    if end > n_ordered:
        # The last cell counts missing values. It has no order relative to the dates, so it is
        # compared by "==" on its own.
        is_missing = f"{name} == {_literal(attribute, n_ordered)}"
        if first == n_ordered:
            return is_missing
        return f"{_run_predicate(attribute, first, n_ordered)} or {is_missing}"
    if edges is not None:
        low = shortest_text(edges[first])
        upper_bound = f"< {shortest_text(edges[end])}"
    else:
        low, high = _literal(attribute, first), _literal(attribute, end - 1)
        if end - first == 1:
            return f"{name} == {low}"
        upper_bound = f"<= {high}"
    if end == n_ordered:
        return f"{name} >= {low}"
    return f"{name} {upper_bound}" if first == 0 else f"{low} <= {name} {upper_bound}"
