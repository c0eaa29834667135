"""Attributes: columns of the records with a public, finite domain of cells.

The domain is public and fixed before the records are read. It is never derived from the records,
because a label that occurs only if one person is present would reveal that person.

    attribute kind   domain     cells                                           values in the records
    categorical      labels     one per label                                   text, equal to a label
    numeric          edges      n + 1 edges make n bins [e_i, e_{i+1}),         numbers; the last bin also
                                the last one closed: [e_{n-1}, e_n]             contains its right edge;
                                                                                integers only with
                                                                                `integer`
    numeric          dates      one per year, quarter, month or day             dates, times, ISO texts
    either           size       codes 0 .. size - 1                             integer codes

**Texts of bins.**  Bins of integers are written "0–9" on screen and "0 to 9" in published tables.
Files that this project reads back keep the notation of `Attribute.label`, "[0, 10)".
"""

from __future__ import annotations

import inspect
import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import date
from functools import cached_property, partial
from itertools import islice, pairwise
from numbers import Integral, Real
from typing import Any

import numpy as np

from engine._format import MAX_NAME, pluralize, quote_public, shortest_text
from engine._validation import check_type
from engine.errors import SchemaError
from engine.workload.calendar import (
    MAX_YEAR,
    UNITS,
    Period,
    cell_label,
    check_format,
    first_day,
    read_period,
)
from engine.workload.hierarchy import CodeList, Hierarchy, difference_text
from engine.workload.schema_io import (
    ALL_KEYS,
    DATE_KEYS,
    DATE_KIND,
    FORBIDDEN,
    HIERARCHIES_KEY,
    MAX_LABEL,
    check_text,
    parse_row,
)

MAX_CELLS = 10_000_000
# Largest edge of an attribute with integer values.
MAX_INTEGER = 2**53
_MAX_MISSING_VALUES = 1_000
KINDS = ("categorical", "numeric")
DECIMALS = (".", ",")
THOUSANDS = (".", ",", " ", "'")
_GIVE_CODE_LIST = "a CodeList, such as CodeList.from_csv(text)"
_NO_EMPTY_LABEL = "give a text. To count missing values, use the option 'missing'"
# Values of ``thousands`` that mean the same as " ".
_BLANK_NAMES = ("space", "\u00a0", "\u2009", "\u202f")


@dataclass(frozen=True, kw_only=True)
class Attribute:
    """Column of the records with a public, finite domain.

    Create attributes by `categorical`, `numeric`, `dates` or `of_size`, which set the fields
    consistently.

    Attributes
    ----------
    name : name of the column.
    kind : "categorical" or "numeric"; the cells of a numeric attribute are ordered.
    size : number of cells.
    labels : one text per cell, or None.
    edges : size + 1 increasing numbers, or None.
    other : with labels, label of the cell that counts texts equal to no label. If None, records
        with such a text are refused.
    missing : where missing values are counted. With labels, the label of their cell; with edges,
        the number that replaces them; with dates, the label of an additional last cell. If None,
        records with a missing value are refused.
    clip : with edges or dates. If True, values below the domain are counted in the first cell and
        values above the domain in the last; if False, they are refused.
    integer : with edges. If True, all values are integers, and fractions are refused; SQL can then
        interpret ``age <= 39`` as ``age < 40``.
    missing_values : texts in the records that denote a missing value, such as "NA".
    decimal : with edges, decimal sign of numbers that are written as texts, "." or ",".
    thousands : with edges, separator between groups of three digits in such texts, or None.
    start, stop : with dates, labels of the first and the last date cell.
    unit : with dates, calendar unit of a cell.
    date_format : with dates, format of dates that are written as texts, such as "%d.%m.%Y"; None
        is ISO 8601.
    hierarchies : levels of areas over the cells, for the families `Level` and `Levels`.

    >>> Attribute.numeric("age", [0, 20, 65, 120]).label(2)
    '[65, 120]'
    >>> Attribute.categorical("sex", ["F", "M"], missing="unknown").labels
    ('F', 'M', 'unknown')
    """

    name: str
    kind: str
    size: int
    labels: tuple[str, ...] | None = None
    edges: tuple[float, ...] | None = None
    other: str | None = None
    missing: str | float | None = None
    clip: bool = False
    integer: bool = False
    missing_values: tuple[str, ...] = ()
    decimal: str | None = None
    thousands: str | None = None
    start: str | None = None
    stop: str | None = None
    unit: str | None = None
    date_format: str | None = None
    hierarchies: tuple[Hierarchy, ...] = ()

    @classmethod
    def categorical(
        cls,
        name: str,
        labels: Iterable[str],
        *,
        other: str | None = None,
        missing: str | None = None,
        missing_values: Iterable[str] = (),
    ) -> Attribute:
        """Create a categorical attribute with one cell per label.

        A text in the records is counted in the cell whose label is equal, including case and
        spaces.

        Parameters
        ----------
        labels : labels of the cells. The labels `other` and `missing` are appended if they are not
            among these.
        other : label of the cell that counts texts equal to no label. If None, records with such a
            text are refused.
        missing : label of the cell that counts missing values. If None, records with a missing
            value are refused.
        missing_values : texts that denote a missing value.
        """
        texts = sequence(labels, f"labels of attribute {quote_public(name)}", "a list of texts")
        for extra in (other, missing):
            if extra is not None and extra not in texts:
                texts.append(extra)
        codes = _missing_texts(name, missing_values)
        if ambiguous := [text for text in codes if text in texts and text != missing]:
            text = quote_public(ambiguous[0])
            raise SchemaError(
                f"attribute {quote_public(name)} has {text} as a label and among its"
                f" missing_values; remove {text} from one of the two, or give missing={text}"
            )
        return cls(
            name=name,
            kind="categorical",
            size=len(texts),
            labels=tuple(texts),
            other=other,
            missing=missing,
            missing_values=codes,
        )

    @classmethod
    def hierarchy(
        cls,
        name: str,
        code_list: CodeList,
        *,
        other: str | None = None,
        missing: str | None = None,
        missing_values: Iterable[str] = (),
    ) -> Attribute:
        """Create a categorical attribute with one cell per code of a code list, and its hierarchy.

        The parameters `other`, `missing` and `missing_values` are those of `categorical`. A cell
        that `other` or `missing` adds is an area of its own on every level. Use `with_hierarchy` to
        add a second hierarchy over the same codes.

        >>> counties = CodeList.from_labels({"Ohio": ["39001", "39003"], "Iowa": ["19001"]}, levels=["state"])
        >>> Attribute.hierarchy("county", counties).hierarchies[0].level_names
        ('state',)
        """
        check_type("code_list", code_list, CodeList, error=SchemaError, give=_GIVE_CODE_LIST)
        attribute = cls.categorical(
            name, code_list.codes, other=other, missing=missing, missing_values=missing_values
        )
        return attribute.with_hierarchy(code_list)

    @classmethod
    def numeric(
        cls,
        name: str,
        edges: Iterable[float],
        *,
        clip: bool = False,
        missing: float | None = None,
        integer: bool = False,
        missing_values: Iterable[str] = (),
        decimal: str | None = None,
        thousands: str | None = None,
    ) -> Attribute:
        """Create a numeric attribute whose cells are the bins [e_i, e_{i+1}) between edges.

        The last bin also contains its right edge.

        Parameters
        ----------
        edges : n + 1 increasing numbers for n bins.
        clip : if True, count values outside the edges in the first or the last bin; if False,
            refuse them.
        missing : number that replaces missing values; None refuses them.
        integer : whether all values are integers. If True, the last edge can be repeated: edges 98,
            99, 99 end with the bins [98, 99) and [99, 99].
        missing_values : texts that denote a missing value. If such a text is a number, such as
            "-9", every spelling of the number denotes a missing value, and the number itself too.
        decimal : decimal sign in texts, "." or ","; None is ".".
        thousands : separator between groups of three digits in texts: ".", ",", "'" or " " (any
            blank); None permits no separator.

        >>> Attribute.numeric("pay", [0, 1000, 5000], decimal=",", thousands=".", missing_values=("NA", "-9")).thousands
        '.'
        """
        subject = f"edges of attribute {quote_public(name)}"
        entries = sequence(edges, subject, "a list of numbers")
        numbers = [
            edge if type(edge) is float and edge else _number(edge, subject) for edge in entries
        ]
        value = (
            None
            if missing is None
            else _number(missing, f"missing of attribute {quote_public(name)}")
        )
        return cls(
            name=name,
            kind="numeric",
            size=len(numbers) - 1,
            edges=tuple(numbers),
            missing=value,
            clip=clip,
            integer=integer,
            missing_values=_missing_texts(name, missing_values),
            decimal=decimal,
            thousands=" " if thousands in _BLANK_NAMES else thousands,
        )

    @classmethod
    def dates(
        cls,
        name: str,
        start: str | date,
        stop: str | date,
        unit: str = "month",
        *,
        clip: bool = False,
        missing: str | None = None,
        missing_values: Iterable[str] = (),
        date_format: str | None = None,
    ) -> Attribute:
        """Create an attribute with one cell per calendar period from `start` to `stop`, inclusive.

        Values in the records are dates, times or texts. A text is an ISO date such as 2024-03-15
        or an ISO period that is not longer than a cell, such as 2024-03 for monthly cells. A time
        with a time zone is assigned to its day in UTC, a time without a time zone to the day that
        is written.

        Parameters
        ----------
        start, stop : first and last period, as a date, the text of a date, or the text of a period.
        unit : length of a cell: "year", "quarter", "month" or "day".
        clip : if True, count earlier dates in the first cell and later dates in the last; if False,
            refuse them.
        missing : label of an additional last cell for missing values; None refuses them.
        missing_values : texts that denote a missing value. If such a text is a date, every value
            on that day is a missing value, whether it is a text, a date or a time.
        date_format : format of texts that are not ISO dates, with %Y, %m, %d, %H, %M and %S, each
            at most once; None if all texts are ISO dates.

        >>> quarter = Attribute.dates("day", "2023-10-01", "2024-12-31", "quarter", missing="unknown")
        >>> quarter.size, quarter.label(0), quarter.label(5)
        (6, '2023-Q4', 'unknown')
        """
        subject = f"attribute {quote_public(name)}"
        if unit not in UNITS:
            raise SchemaError(
                f"{subject} has the unit {quote_public(unit)}; give one of {', '.join(UNITS)}"
            )
        first, last = (
            _cell_of(value, unit, f"{what} of {subject}")
            for what, value in (("start", start), ("stop", stop))
        )
        return cls(
            name=name,
            kind="numeric",
            size=last - first + 1 + (missing is not None),
            missing=missing,
            clip=clip,
            missing_values=_missing_texts(name, missing_values),
            start=cell_label(first, unit),
            stop=cell_label(last, unit),
            unit=unit,
            date_format=date_format,
        )

    @classmethod
    def of_size(
        cls, name: str, size: int, kind: str = "numeric", *, missing_values: Iterable[str] = ()
    ) -> Attribute:
        """Create an attribute whose values are the codes 0 .. size - 1."""
        return cls(
            name=name, kind=kind, size=size, missing_values=_missing_texts(name, missing_values)
        )

    def __post_init__(self) -> None:
        check_text(self.name, "attribute name", MAX_NAME)
        subject = f"attribute {quote_public(self.name)}"
        if self.kind not in KINDS:
            raise SchemaError(
                f"{subject} has the kind {quote_public(self.kind)}; give 'categorical' or 'numeric'"
            )
        if not isinstance(self.size, Integral) or isinstance(self.size, bool):
            raise SchemaError(
                f"{subject} has a size of type {type(self.size).__name__}; give a whole number of "
                "cells"
            )
        object.__setattr__(self, "size", int(self.size))
        if self.edges is None and self.unit is None and self.size < 1:
            raise SchemaError(f"{subject} has an empty domain; give it at least one cell")
        if self.size > MAX_CELLS:
            raise SchemaError(
                f"{subject} has more than {MAX_CELLS:,} cells; merge cells into coarser ones"
            )
        if not isinstance(self.clip, bool):
            raise SchemaError(
                f"{subject} has clip of type {type(self.clip).__name__}; give true or false"
            )
        if not isinstance(self.integer, bool):
            raise SchemaError(
                f"{subject} has integer of type {type(self.integer).__name__}; give true or false"
            )
        if self.labels is not None and self.edges is not None:
            raise SchemaError(f"{subject} has both labels and edges; give one of them")
        if self.labels is not None:
            self._check_labels(subject)
        elif self.other is not None:
            raise SchemaError(
                f"{subject} has a value for 'other', which needs labels; give labels, or omit "
                "'other'"
            )
        if self.edges is not None:
            self._check_edges(subject)
        elif self.decimal is not None or self.thousands is not None:
            raise SchemaError(
                f"{subject} has a value for 'decimal' or 'thousands', which need edges; give "
                "edges, or omit the two"
            )
        if any(getattr(self, key) is not None for key in DATE_KEYS):
            self._check_dates(subject)
        elif self.clip and self.edges is None:
            raise SchemaError(
                f"{subject} has clip=True, which needs edges or dates; give one of these, or omit "
                "clip"
            )
        elif self.integer and self.edges is None:
            raise SchemaError(
                f"{subject} has the option 'integer' for whole numbers, which needs bins; give"
                " their edges, or leave the option out"
            )
        elif self.missing is not None and self.labels is None and self.edges is None:
            raise SchemaError(
                f"{subject} has a value for 'missing', which needs labels, edges or dates; give "
                "one of these, or omit 'missing'"
            )
        object.__setattr__(self, "missing_values", _missing_texts(self.name, self.missing_values))
        if self.hierarchies:
            self._check_hierarchies(subject)

    def _check_labels(self, subject: str) -> None:
        if self.kind != "categorical":
            raise SchemaError(
                f"{subject} is numeric but has labels; give edges, or make it categorical"
            )
        labels = self.labels
        if not isinstance(labels, tuple):
            raise SchemaError(
                f"{subject} has labels of type {type(labels).__name__}; give a tuple, or use"
                " Attribute.categorical"
            )
        if len(labels) != self.size:
            raise SchemaError(
                f"{subject} has {pluralize(len(labels), 'label')}, but the size {self.size:,}; give"
                f" the size {len(labels):,}"
            )
        # One search of the joined labels is fast. The slow loop over single labels runs only if the
        # search found a fault, to name the invalid label.
        suspicious = set(map(type, labels)) != {str} or FORBIDDEN.search("".join(labels))
        if suspicious or not all(map(str.strip, labels)) or max(map(len, labels)) > MAX_LABEL:
            for i, label in enumerate(labels):
                check_text(
                    label, f"label {i + 1} of {subject}", MAX_LABEL, if_empty=_NO_EMPTY_LABEL
                )
            # The labels are valid, but some are of a subclass of str, such as numpy.str_.
            object.__setattr__(self, "labels", tuple(map(str, labels)))
        if len(set(labels)) < len(labels):
            repeated = Counter(labels).most_common(1)[0][0]
            raise SchemaError(
                f"{subject} has the label {quote_public(repeated)} more than once; give each label"
                " once"
            )
        for key, value in (("other", self.other), ("missing", self.missing)):
            if value is not None and value not in labels:
                raise SchemaError(
                    f"{subject} has the label {quote_public(value)} for {key!r}, which is not among"
                    " its labels; add this label"
                )

    def _check_edges(self, subject: str) -> None:
        if self.kind != "numeric":
            raise SchemaError(
                f"{subject} is categorical but has edges; give labels instead of edges, or make it"
                " numeric"
            )
        edges = self.edges
        if not isinstance(edges, tuple):
            raise SchemaError(
                f"{subject} has edges of type {type(edges).__name__}; give a tuple, or use"
                " Attribute.numeric"
            )
        if len(edges) < 2:
            raise SchemaError(
                f"{subject} has {pluralize(len(edges), 'edge')}, but a bin has two; give at least"
                " two edges"
            )
        if len(edges) != self.size + 1:
            raise SchemaError(
                f"{subject} has {len(edges):,} edges, but the size {self.size:,}; give the size"
                f" {len(edges) - 1:,}"
            )
        if set(map(type, edges)) != {float}:
            raise SchemaError(
                f"{subject} has an edge that is not of type float; use Attribute.numeric, which"
                " converts numbers"
            )
        if infinite := [edge for edge in edges if not math.isfinite(edge)]:
            raise SchemaError(
                f"{subject} has the edge {infinite[0]}, which is not a finite number; give a finite"
                " number"
            )
        # The last bin contains its right edge, so a last bin such as [99, 99] is not empty.
        checked = edges[:-1] if self.integer and edges[-2] == edges[-1] else edges
        if not all(map(operator.lt, checked, checked[1:])):
            low, high = next(pair for pair in pairwise(edges) if not operator.lt(*pair))
            raise SchemaError(
                f"{subject} has the edge {shortest_text(high)} after {shortest_text(low)}, but"
                " edges must increase; sort them and remove repeats"
            )
        if self.missing is not None:
            if type(self.missing) is not float or not math.isfinite(self.missing):
                wanted = "a finite number" if type(self.missing) is float else "of type float"
                raise SchemaError(
                    f"{subject} has a value for 'missing' that is not {wanted}; give a number such"
                    " as -1.0, or omit 'missing'"
                )
            if not self.clip and not edges[0] <= self.missing <= edges[-1]:
                first, below = shortest_text(edges[0]), shortest_text(edges[0] - 1.0)
                raise SchemaError(
                    f"{subject} replaces missing values by {shortest_text(self.missing)}, which is"
                    f" outside its edges. Give a number from {first} to {shortest_text(edges[-1])}."
                    f" To count missing values in a separate bin, add the edge {below} before"
                    f" {first}, and give {below}"
                )
        if self.integer:
            numbers = edges if self.missing is None else (*edges, self.missing)
            # Above this limit floats cannot distinguish consecutive integers.
            for i, number in enumerate(numbers):
                if number.is_integer() and abs(number) <= MAX_INTEGER:
                    continue
                what = "an edge" if i < len(edges) else "the number for missing values"
                wanted = (
                    f"a number from -{MAX_INTEGER:,} to {MAX_INTEGER:,}"
                    if number.is_integer()
                    else "a whole number"
                )
                raise SchemaError(
                    f"{subject} has the option 'integer', but {what} is {shortest_text(number)};"
                    f" give {wanted}, or omit 'integer'"
                )
        if self.decimal not in (None, *DECIMALS):
            raise SchemaError(
                f"{subject} has the decimal sign {quote_public(self.decimal)}; give"
                f" {' or '.join(map(repr, DECIMALS))}"
            )
        if self.thousands not in (None, *THOUSANDS):
            raise SchemaError(
                f"{subject} has the thousands separator {quote_public(self.thousands)}; give"
                " a point, a comma, an apostrophe or a blank"
            )
        if self.thousands == (self.decimal or "."):
            decimal = "decimal sign" if self.decimal else "default decimal sign"
            raise SchemaError(
                f"{subject} has the thousands separator {self.thousands!r}, which is also the"
                f" {decimal}; change one of the two"
            )

    def _check_dates(self, subject: str) -> None:
        if self.kind != "numeric" or self.labels is not None or self.edges is not None:
            if self.labels is not None:
                conflict, remedy = "labels", "omit the labels, and give the kind 'numeric'"
            elif self.edges is not None:
                conflict, remedy = "edges", "omit the edges"
            else:
                conflict, remedy = "the kind 'categorical'", "give the kind 'numeric'"
            raise SchemaError(
                f"{subject} has dates, which exclude {conflict}; {remedy}, or omit"
                f" {', '.join(DATE_KEYS)}"
            )
        if self.integer:
            raise SchemaError(
                f"{subject} has the option 'integer', but its cells are dates; omit 'integer'"
            )
        if self.unit not in UNITS:
            raise SchemaError(
                f"{subject} has dates without a valid unit; give one of {', '.join(UNITS)}"
            )
        if not isinstance(self.start, str) or not isinstance(self.stop, str):
            raise SchemaError(
                f"{subject} has dates without a text as start or as stop; give both, such as"
                " '2024-01'"
            )
        first, last = (
            _cell_of(text, self.unit, f"dates of {subject}") for text in (self.start, self.stop)
        )
        if first > last:
            raise SchemaError(
                f"{subject} has the start {self.start} after the stop {self.stop}; exchange the two"
            )
        object.__setattr__(self, "start", cell_label(first, self.unit))
        object.__setattr__(self, "stop", cell_label(last, self.unit))
        cells = last - first + 1 + (self.missing is not None)
        if self.size != cells:
            raise SchemaError(
                f"{subject} has the size {self.size:,}, but {pluralize(cells, 'cell')}; give the"
                f" size {cells:,}"
            )
        if self.date_format is not None:
            check_text(self.date_format, f"date format of {subject}", MAX_LABEL)
            check_format(self.date_format, self.unit, subject)
        if self.missing is not None:
            check_text(self.missing, f"label of missing values of {subject}", MAX_LABEL)
            if read_period(str(self.missing), self.date_format) is not None:
                raise SchemaError(
                    f"{subject} has the date {quote_public(self.missing)} as the label of missing"
                    " values; give a text such as 'unknown'"
                )

    def _check_hierarchies(self, subject: str) -> None:
        hierarchies = tuple(self.hierarchies)
        object.__setattr__(self, "hierarchies", hierarchies)
        for hierarchy in hierarchies:
            check_type(
                "hierarchies", hierarchy, Hierarchy, error=SchemaError, give="Hierarchy objects"
            )
            if hierarchy.cells != self.size:
                raise SchemaError(
                    f"{subject} has {self.size:,} cells, but its hierarchy"
                    f" {quote_public(hierarchy.name)} has {hierarchy.cells:,}; read the code list"
                    " again for these cells, or remove the hierarchy"
                )
            if self.name in hierarchy.level_names:
                raise SchemaError(
                    f"{subject} has a hierarchy with a level of the same name, but the name of the"
                    " attribute denotes the level of its cells; rename the level or the attribute"
                )
        names = [hierarchy.name for hierarchy in hierarchies]
        if len(set(names)) < len(names):
            repeated = Counter(names).most_common(1)[0][0]
            raise SchemaError(
                f"{subject} has two hierarchies of the same name, {quote_public(repeated)}; rename "
                "one of them"
            )

    def with_hierarchy(self, code_list: CodeList) -> Attribute:
        """Return a copy of the attribute with the hierarchy of a code list added.

        The codes must be the labels of the attribute, in any order. Only the labels `other` and
        `missing` can be absent from the list; an absent label is an area of its own on every level.

        Raises
        ------
        SchemaError : if the attribute has no labels, another label has no code, or a code is not a
            label.
        """
        check_type("code_list", code_list, CodeList, error=SchemaError, give=_GIVE_CODE_LIST)
        subject = f"attribute {quote_public(self.name)}"
        if self.labels is None:
            raise SchemaError(
                f"{subject} has no labels, so it cannot take a code list; make the attribute"
                " categorical"
            )
        listed = set(code_list.codes)
        added = [text for text in self.labels if text not in listed]
        if unknown := [text for text in added if text not in (self.other, self.missing)]:
            raise SchemaError(
                f"{subject} has the label {quote_public(unknown[0])}, which is not a cell of the "
                f"code list{difference_text(unknown[0], code_list.codes, quote_public)}. Add it to "
                "the list, or correct the label"
            )
        if surplus := listed.difference(self.labels):
            raise SchemaError(
                f"the code list has the cell {quote_public(min(surplus))}, which is not a label of"
                f" {subject}{difference_text(min(surplus), self.labels, quote_public)}. Add the"
                " label, or correct the code"
            )
        positions = {code: i for i, code in enumerate((*code_list.codes, *added))}
        order = np.array([positions[label] for label in self.labels], dtype=np.int64)
        hierarchy = code_list.hierarchy.with_cells(added).reordered(order)
        return replace(self, hierarchies=(*self.hierarchies, hierarchy))

    @property
    def is_dated(self) -> bool:
        """Whether the cells are calendar periods."""
        return self.unit is not None

    @property
    def is_coded(self) -> bool:
        """Whether the cells are the codes 0 .. size - 1, without labels, edges or dates.

        Conditions and sums use the codes as numbers.
        """
        return self.labels is None and self.edges is None and self.unit is None

    @cached_property
    def first_cell(self) -> int:
        """Number of the first calendar period, as counted by `calendar.cell_number`.

        Only an attribute of dates has this number.
        """
        return _cell_of(self.start, self.unit or "", f"start of {quote_public(self.name)}")

    @property
    def date_cells(self) -> int:
        """Number of cells that are calendar periods, without the cell for missing values.

        It is 0 if the attribute has no dates.
        """
        return self.size - (self.missing is not None) if self.is_dated else 0

    def days(self, cell: int) -> tuple[date, date]:
        """Return the first and the last day of a cell of an attribute of dates.

        >>> Attribute.dates("day", "2024-01", "2024-12").days(1)[1]
        datetime.date(2024, 2, 29)
        """
        unit = self.unit or ""
        day = first_day(self.first_cell + cell, unit)
        return day, Period(day, unit).last_day

    def label(self, cell: int) -> str:
        """Return the text of a cell, 0 <= cell < size.

        >>> Attribute.of_size("code", 4).label(3)
        '3'
        """
        return self.span(cell, cell)

    def span(self, first: int, last: int) -> str:
        """Return the text of the cells first .. last, both included.

        >>> Attribute.numeric("age", [0, 20, 65, 120]).span(0, 1)
        '[0, 65)'
        >>> Attribute.of_size("code", 9).span(2, 5)
        '2..5'
        """
        if not 0 <= first <= last < self.size:
            requested, wanted, order = f"cell {first}", "a cell", ""
            if first != last:
                requested, wanted = f"cells {first} to {last}", "a first and a last cell"
                order = ", in this order"
            raise SchemaError(
                f"attribute {quote_public(self.name)} has no {requested}; give {wanted} from 0 to"
                f" {self.size - 1}{order}"
            )
        if self.edges is not None:
            closing = "]" if last == self.size - 1 else ")"
            return (
                f"[{shortest_text(self.edges[first])},"
                f" {shortest_text(self.edges[last + 1])}{closing}"
            )
        start, stop = (self._cell_text(first), self._cell_text(last))
        # The last cell counts missing values. It is not a date, so a range of dates excludes it.
        if first < last and self.is_dated and last == self.date_cells:
            return f"{self.span(first, last - 1)} or {stop}"
        return start if first == last else f"{start}..{stop}"

    def _cell_text(self, cell: int) -> str:
        if self.labels is not None:
            return self.labels[cell]
        if self.unit is None:
            return str(cell)
        return (
            str(self.missing)
            if cell == self.date_cells
            else cell_label(self.first_cell + cell, self.unit)
        )

    def condition(self, first: int, last: int | None = None) -> str:
        """Return the text of the condition that the value lies in the cells first .. last.

        With ``last`` None it is the condition on the cell ``first`` alone.

        >>> Attribute.categorical("sex", ["F", "M"]).condition(1)
        'sex = M'
        >>> Attribute.numeric("age", [0, 20, 65, 120]).condition(1, 2)
        'age in [20, 120]'
        """
        last = first if last is None else last
        relation = "=" if first == last and self.edges is None else "in"
        return f"{self.name} {relation} {self.span(first, last)}"

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready description without the keys that have their default value."""
        description: dict[str, Any] = {
            "name": self.name,
            "kind": DATE_KIND if self.is_dated else self.kind,
        }
        if self.labels is not None:
            description["labels"] = list(self.labels)
        elif self.edges is not None:
            description["edges"] = list(self.edges)
        elif not self.is_dated:
            description["size"] = self.size
        optional = {
            "other": self.other,
            "missing": self.missing,
            "clip": self.clip or None,
            "integer": self.integer or None,
            "missing_values": list(self.missing_values) or None,
            "decimal": self.decimal,
            "thousands": self.thousands,
            **{key: getattr(self, key) for key in DATE_KEYS},
            HIERARCHIES_KEY: [hierarchy.to_dict() for hierarchy in self.hierarchies] or None,
        }
        return description | {key: value for key, value in optional.items() if value is not None}

    @classmethod
    def from_dict(cls, document: Any) -> Attribute:
        """Rebuild an attribute from `to_dict`; raise SchemaError if the description is invalid."""
        if not isinstance(document, dict):
            raise SchemaError(
                f"the description of an attribute has the type {type(document).__name__}; give an"
                " object with name and kind"
            )
        unknown = [key for key in document if key not in ALL_KEYS]
        if unknown:
            named = isinstance(document.get("name"), str)
            subject = f"attribute {quote_public(document['name'])}" if named else "an attribute"
            raise SchemaError(
                f"{subject} has the unknown key {quote_public(unknown[0])}; use the keys"
                f" {', '.join(ALL_KEYS)}"
            )
        options = {key: value for key, value in document.items() if value is not None}
        name, kind = options.pop("name", None), options.pop("kind", None)
        hierarchies = options.pop(HIERARCHIES_KEY, [])
        check_text(name, "attribute name", MAX_NAME)
        domains = options.keys() & {"labels", "edges"}
        dated = kind == DATE_KIND
        if len(domains) + dated > 1:
            listed = " and ".join([*sorted(domains), *(["the kind 'dates'"] if dated else [])])
            raise SchemaError(
                f"attribute {quote_public(name)} has {listed}, which exclude each other; give one"
                " of them"
            )
        if not (domains or dated or "size" in options):
            raise SchemaError(
                f"attribute {quote_public(name)} has no cells; give labels, edges, a size, or the"
                " kind 'dates' with start, stop and unit"
            )
        size = options.pop("size", None)
        if dated:
            if not {"start", "stop", "unit"} <= options.keys():
                raise SchemaError(
                    f"attribute {quote_public(name)} has the kind 'dates', which needs start, stop"
                    " and unit; give all three"
                )
            attribute = _build_attribute(
                partial(cls.dates, name, options.pop("start")), options.pop("stop"), options, name
            )
            kind = attribute.kind
        elif "labels" in options:
            attribute = _build_attribute(
                partial(cls.categorical, name), options.pop("labels"), options, name
            )
        elif "edges" in options:
            attribute = _build_attribute(
                partial(cls.numeric, name), options.pop("edges"), options, name
            )
        else:
            attribute = cls(name=name, kind=kind, size=size, **options)
        if kind != attribute.kind:
            domain = "labels" if attribute.labels is not None else "edges"
            stated = "no kind" if kind is None else f"the kind {quote_public(kind)}"
            raise SchemaError(
                f"attribute {quote_public(name)} has {domain}, but {stated}; give the kind"
                f" {attribute.kind!r}"
            )
        if size is not None and (type(size) is not int or size != attribute.size):
            raise SchemaError(
                f"attribute {quote_public(name)} has {pluralize(attribute.size, 'cell')}, but"
                " states another size; omit the size"
            )
        if not hierarchies:
            return attribute
        if not isinstance(hierarchies, list):
            raise SchemaError(
                f"attribute {quote_public(name)} has hierarchies of type"
                f" {type(hierarchies).__name__}; give a list"
            )
        return replace(attribute, hierarchies=tuple(map(Hierarchy.from_dict, hierarchies)))


def attribute_from_texts(row: Mapping[str, str]) -> Attribute:
    """Return the attribute in one row of a schema CSV; empty texts are ignored.

    >>> attribute_from_texts({"name": "sex", "kind": "categorical", "labels": "F|M", "edges": ""}).labels
    ('F', 'M')
    """
    return Attribute.from_dict(parse_row(row))


def sequence(values: Any, what: str, wanted: str) -> list[Any]:
    """Return the entries of an iterable as a list.

    Parameters
    ----------
    what : name of the values in error messages.
    wanted : type that error messages ask for, such as "a list of numbers".

    Raises
    ------
    SchemaError : if the values are a text, a mapping, a set or no iterable, or have more than
        `MAX_CELLS` + 1 entries.
    """
    # Sets are refused: cells are numbered in the order of the entries, and the order of a set
    # varies between runs.
    if isinstance(values, (str, bytes, Mapping, set, frozenset)) or not isinstance(
        values, Iterable
    ):
        raise SchemaError(f"{what}: the type is {type(values).__name__}; give {wanted}")
    max_entries = MAX_CELLS + 1  # bins have one more edge than cells
    entries = list(islice(values, max_entries + 1))
    if len(entries) > max_entries:
        raise SchemaError(
            f"there are more than {max_entries:,} entries in {what}; give fewer entries"
        )
    return entries


def _number(value: Any, what: str) -> float:
    if type(value) is not int and (not isinstance(value, Real) or isinstance(value, bool)):
        raise SchemaError(f"{what}: a value has the type {type(value).__name__}; give a number")
    try:
        # Adding 0.0 turns -0.0 into 0.0.
        return float(value) + 0.0
    except OverflowError:
        return math.inf


def _missing_texts(name: str, texts: Any) -> tuple[str, ...]:
    """Return the texts for missing values as a tuple; raise SchemaError for an invalid entry."""
    if texts == ():
        return ()
    subject = f"attribute {quote_public(name)}"
    entries = tuple(sequence(texts, f"missing_values of {subject}", "a list of texts"))
    if len(entries) > _MAX_MISSING_VALUES:
        raise SchemaError(
            f"{subject} has more than {_MAX_MISSING_VALUES:,} entries in missing_values; remove "
            "some"
        )
    for text in entries:
        check_text(text, f"an entry of missing_values of {subject}", MAX_LABEL)
    if len(set(entries)) < len(entries):
        repeated = Counter(entries).most_common(1)[0][0]
        raise SchemaError(
            f"{subject} has the entry {quote_public(repeated)} of missing_values twice; remove one "
            "of them"
        )
    return entries


def _cell_of(value: Any, unit: str, what: str) -> int:
    """Return the number of the year, quarter, month or day (``unit``) that contains a date.

    ``value`` is a date, or the text of a date or period. ``what`` names the value in error
    messages. Raises SchemaError if the value is not in one period of this unit, or is after
    `MAX_YEAR`.
    """
    # A datetime is also a date, but its ISO text contains the time of day.
    if isinstance(value, date):
        value = date(value.year, value.month, value.day).isoformat()
    period = read_period(value) if isinstance(value, str) else None
    number = None if period is None else period.number(unit)
    if period is None or number is None:
        raise SchemaError(
            f"{what} is {quote_public(value)}; give a date such as 2024-03-15, or a {unit} in ISO"
            " 8601 format"
        )
    if period.day.year > MAX_YEAR:
        raise SchemaError(
            f"{what} is after the year {MAX_YEAR}; give an earlier date, and use clip to count"
            " later dates in the last cell"
        )
    return number


def _build_attribute(
    build: Callable[..., Attribute], domain: Any, options: dict[str, Any], name: str
) -> Attribute:
    try:
        return build(domain, **options)
    except TypeError:
        parameters = inspect.signature(build).parameters
        excluded = [key for key in options if key not in parameters]
        if not excluded:
            raise SchemaError(
                f"attribute {quote_public(name)} has an option of a wrong type; correct its options"
            ) from None
        kind = next((kind for kind in ("labels", "edges") if kind in parameters), "dates")
        allowed = (p.name for p in parameters.values() if p.kind is p.KEYWORD_ONLY)
        raise SchemaError(
            f"attribute {quote_public(name)} has {kind} and the option {excluded[0]!r}, which"
            f" exclude each other; omit the option. With {kind} you may give {', '.join(allowed)}"
        ) from None


INTERVAL = r"(?:in|=) \[(-?[\d.e+]+), (-?[\d.e+]+)([)\]])"
# Texts between the first and the last integer of a bin.  Spreadsheets can misread a dash in a CSV
# file: a spreadsheet may guess another encoding, or turn "1-2" into a date.
ON_SCREEN, IN_FILES = "–", " to "


def cell_text(attribute: Attribute, cell: int, between: str = ON_SCREEN) -> str:
    """Return the text of a cell for people: its label, or "0–9" for a bin of integers.

    ``between`` is the text between the first and the last integer of a bin.

    >>> age = Attribute.numeric("age", [0, 10, 11, 120], integer=True)
    >>> [cell_text(age, cell) for cell in range(3)]
    ['0–9', '10', '11–120']
    >>> cell_text(age, 0, IN_FILES)
    '0 to 9'
    """
    edges = attribute.edges
    if edges is None or not attribute.integer:
        return attribute.label(cell)
    is_closed = cell == attribute.size - 1
    return _integers(edges[cell], edges[cell + 1], between, is_closed=is_closed)


def domain_text(attribute: Attribute) -> str:
    """Return the first two cells, the last cell and the number of cells of an attribute.

    Up to three cells are all listed.  Long texts of cells are cut.

    >>> domain_text(Attribute.numeric("age", range(16, 102, 5), integer=True))
    '16–20, 21–25, … 96–101 (17 bins)'
    >>> domain_text(Attribute.categorical("sex", ["F", "M"]))
    'F, M (2 values)'
    """
    max_length = 40  # characters of a cell

    def cut_text(cell: int) -> str:
        text = cell_text(attribute, cell)
        return text if len(text) <= max_length else f"{text[: max_length - 1]}…"

    is_long = attribute.size > 3
    listed = ", ".join(map(cut_text, (0, 1) if is_long else range(attribute.size)))
    last = f", … {cut_text(attribute.size - 1)}" if is_long else ""
    noun = "value" if attribute.edges is None else "bin"
    return f"{listed}{last} ({pluralize(attribute.size, noun)})"


def could_be_integer(attribute: Attribute) -> bool:
    """Return whether `integer` can be set: all edges are whole numbers, and it is not set yet.

    >>> could_be_integer(Attribute.numeric("age", [0, 18, 120]))
    True
    """
    numbers = [
        *(attribute.edges or ()),
        *([attribute.missing] if isinstance(attribute.missing, (int, float)) else []),
    ]
    return (
        attribute.edges is not None
        and not attribute.integer
        and all(float(number).is_integer() and abs(number) <= MAX_INTEGER for number in numbers)
    )


def query_texts(
    attributes: Iterable[Attribute], texts: Iterable[str], between: str = ON_SCREEN
) -> list[str]:
    """Return the texts of queries, with the intervals of integer attributes as "0–9".

    ``between`` is the text between the first and the last integer of an interval.

    >>> age = Attribute.numeric("age", [0, 10, 11, 120], integer=True)
    >>> query_texts([age], ["age in [0, 11)", "age in [10, 11)", "age < 10"])
    ['age in 0–10', 'age = 10', 'age < 10']
    """
    names = [re.escape(a.name) for a in attributes if a.integer]
    if not names:
        return list(texts)
    # The longest name is tried first, because one name can be the end of another one.
    condition = re.compile(
        rf"(?<![^\s(])({'|'.join(sorted(names, key=len, reverse=True))}) {INTERVAL}(?![^\s)])"
    )

    def replaced(match: re.Match[str]) -> str:
        name, low, high, closing = match.groups()
        integers = _integers(float(low), float(high), between, is_closed=closing == "]")
        is_single = integers.removeprefix("-").isdecimal()
        return f"{name} {'=' if is_single else 'in'} {integers}"

    return [condition.sub(replaced, text) for text in texts]


def _integers(low: float, high: float, between: str, *, is_closed: bool) -> str:
    """Return a text such as "0–9" for the integers from ``low`` to ``high``.

    ``is_closed`` is whether ``high`` itself is included. If ``low`` is negative, `IN_FILES` is used
    in place of ``between``.
    """
    last = high if is_closed else high - 1
    if low == last:
        return shortest_text(low)
    separator = between if low >= 0 else IN_FILES  # a dash next to a minus sign is hard to read
    return f"{shortest_text(low)}{separator}{shortest_text(last)}"
