"""Query families: base class, families of intervals, levels and pairs, and the registry.

A query family generates the matrix W of linear counting queries on the cells of one or more
attributes: one row per query, one column per cell. The class `Family` has the operations of all
families: the number of queries, chunks of rows, the Gram matrix, products with tables, quadratic
forms and texts. To add a family, write a subclass and append it to `FAMILIES`.

Families are immutable values. Two families with equal keys have the same queries, and the engine
computes results once per key.

`read_matrix` reads the query matrix of a custom family from a CSV or NumPy file.
"""

from __future__ import annotations

import base64
import binascii
import bisect
import copy
import csv
import hashlib
import io
import math
import tokenize
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from engine._arrays import Array, Index
from engine._format import csv_start, near_matches, quote_public, shortest_text
from engine._validation import check_int, check_positive
from engine.errors import WorkloadError
from engine.workload.attribute import Attribute
from engine.workload.hierarchy import AreaWeights, Hierarchy, LevelSelection

# Target for the number of matrix entries in one chunk of rows.
CHUNK_ENTRIES = 1 << 20
# Limit for the entries of a query matrix that is stored in full (1.6 GB).
MAX_DENSE_ENTRIES = 200_000_000


class Family(ABC):
    """Rule that lists linear counting queries: the rows of a query matrix W on the cells.

    Attributes
    ----------
    name : name of the family in JSON and on screen.
    arity : required number of attributes; None permits any number.
    ordered : whether the queries depend on the order of the cells. If True, `bind` refuses
        categorical attributes.
    meaning : description of the queries for users, in one sentence.
    """

    name: ClassVar[str]
    arity: ClassVar[int | None] = 1
    ordered: ClassVar[bool] = False
    meaning: ClassVar[str] = ""

    def bind(self, attributes: Sequence[Attribute]) -> Family:
        """Return the family with its queries defined on these attributes.

        Raises
        ------
        WorkloadError : if the family does not fit these attributes, for instance because of their
            number or their kind.
        """
        names = ", ".join(a.name for a in attributes)
        if self.arity is not None and len(attributes) != self.arity:
            raise WorkloadError(
                f"The family '{self.name}' takes {self.arity}"
                f" attribute{'s' if self.arity != 1 else ''}, but the group has {len(attributes)}"
                f" ({names}). Choose another number of attributes, or another family."
            )
        for a in attributes if self.ordered else ():
            if a.kind != "numeric":
                raise WorkloadError(
                    f"The family '{self.name}' needs attributes with ordered cells, but '{a.name}' "
                    f"is {a.kind}. Use the family 'marginal' for '{a.name}', or declare this "
                    "attribute numeric in the schema."
                )
        return self

    @abstractmethod
    def count(self, sizes: Sequence[int]) -> int:
        """Return the exact number of queries on attributes with ``sizes`` cells each."""

    @abstractmethod
    def rows(self, sizes: Sequence[int], start: int = 0, stop: int | None = None) -> Array:
        """Return query rows ``start:stop``, shape (stop - start, prod(sizes))."""

    @abstractmethod
    def text(self, attributes: Sequence[Attribute], index: int) -> str:
        """Return the condition of query ``index`` as text; "" if the query counts all records."""

    def chunks(self, sizes: Sequence[int]) -> Iterator[tuple[int, Array]]:
        """Yield the query matrix in chunks of rows, as pairs (index of the first query, rows).

        Rows have shape (queries of the chunk, prod(sizes)), with about `CHUNK_ENTRIES` entries.
        """
        total, step = self.count(sizes), max(1, CHUNK_ENTRIES // max(1, math.prod(sizes)))
        for start in range(0, total, step):
            yield start, self.rows(sizes, start, min(total, start + step))

    def gram(self, sizes: Sequence[int], weights: Array | None = None) -> Array:
        """Return W^T diag(weights) W for the query matrix W, shape (cells, cells)."""
        cells = math.prod(sizes)
        out = np.zeros((cells, cells))
        for start, rows in self.chunks(sizes):
            weighted = rows if weights is None else rows * weights[start : start + len(rows), None]
            out += weighted.T @ rows
        return out

    def dot(self, sizes: Sequence[int], table: Array) -> Array:
        """Return the answers W @ table, shape (count, ...), for a table of shape (cells, ...)."""
        return np.concatenate([np.tensordot(rows, table, axes=1) for _, rows in self.chunks(sizes)])

    def quadratic(self, sizes: Sequence[int], matrix: Array) -> Array:
        """Return q M q^T for every query row q and the symmetric ``matrix`` M, shape (count,)."""
        return np.concatenate(
            [np.einsum("qc,qc->q", rows @ matrix, rows) for _, rows in self.chunks(sizes)]
        )

    def squared_norms(self, sizes: Sequence[int]) -> Array:
        """Return the squared Euclidean norm of every query, shape (count,)."""
        return np.concatenate([np.einsum("qc,qc->q", rows, rows) for _, rows in self.chunks(sizes)])

    def largest_entries(self, sizes: Sequence[int]) -> Array:
        """Return the largest absolute coefficient of each query, shape (count,)."""
        return np.concatenate([np.abs(rows).max(axis=1) for _, rows in self.chunks(sizes)])

    @property
    def query_weights(self) -> Array | None:
        """Weight of each query, shape (count,), or None if every query has weight 1."""
        return None

    @property
    def counts_areas(self) -> bool:
        """Whether every query counts an area of a hierarchy, so that `area_weights` is defined."""
        return False

    def area_weights(self, weights: Array | None = None) -> AreaWeights:
        """Return the Gram matrix W^T diag(weights) W in the form of one weight per area.

        ``weights`` has one weight per query, shape (queries,); None is weight 1 for each query.
        Raises TypeError unless `counts_areas` is True.
        """
        raise TypeError(
            f"the queries of the family '{self.name}' do not count areas; use gram instead"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the family as JSON-ready data."""
        return {"name": self.name}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Family:
        """Return the family that `to_dict` described."""
        return cls(**{k: v for k, v in data.items() if k != "name"})

    @property
    def key(self) -> tuple[Any, ...]:
        """Hashable key of the queries: families with equal keys have the same queries."""
        return (self.name,)


def check_dense_size(name: str, queries: int, cells: int) -> None:
    """Raise WorkloadError if a matrix of queries x cells would exceed `MAX_DENSE_ENTRIES`."""
    if queries * cells > MAX_DENSE_ENTRIES:
        raise WorkloadError(
            f"The family '{name}' would store a matrix of {queries:,} queries x {cells:,} cells, "
            f"but at most {MAX_DENSE_ENTRIES:,} entries are allowed. Use at most"
            f" {MAX_DENSE_ENTRIES // cells:,} queries, or attributes with fewer cells."
        )


class Intervals(Family):
    """Base class of families whose queries are intervals of cells of one attribute.

    Subclasses implement ``bounds(n)``: the first cell and the exclusive end of each interval on n
    cells. An end above n denotes a circular interval, which continues at cell 0. Products, Gram
    matrices and quadratic forms are computed by cumulative sums, without the query matrix.
    """

    ordered: ClassVar[bool] = True

    @abstractmethod
    def bounds(self, n: int) -> tuple[Index, Index]:
        """Return the first cell and the exclusive end of each interval, two arrays (count,)."""

    def count(self, sizes: Sequence[int]) -> int:
        return len(self.bounds(sizes[0])[0])

    def rows(self, sizes: Sequence[int], start: int = 0, stop: int | None = None) -> Array:
        (n,) = sizes
        first, end = (b[start:stop, None] for b in self.bounds(n))
        cell = np.arange(n)
        # A circular interval continues at cell 0, which then has the position n.
        return (((cell >= first) & (cell < end)) | (cell + n < end)).astype(float)

    def gram(self, sizes: Sequence[int], weights: Array | None = None) -> Array:
        (n,) = sizes
        first, end = self.bounds(n)
        weights_by_bounds = np.zeros((n, 2 * n + 1))
        np.add.at(weights_by_bounds, (first, end), 1.0 if weights is None else weights)
        # covers[a, b] is the summed weight of the intervals with first <= a and end >= b.
        covers = np.cumsum(np.cumsum(weights_by_bounds, axis=0)[:, ::-1], axis=1)[:, ::-1]
        # i is the smaller and j the larger cell of each pair.
        i = np.minimum.outer(np.arange(n), np.arange(n))
        j = np.maximum.outer(np.arange(n), np.arange(n))
        # A circular interval continues after cell n - 1 with cell 0 as position n. It contains
        # cells i and j in one of three cases: it covers i to j, or j to i + n, or i + n to j + n.
        return np.asarray(covers[i, j + 1] + covers[j, i + n + 1] + covers[n - 1, j + n + 1])

    def dot(self, sizes: Sequence[int], table: Array) -> Array:
        first, end = self.bounds(sizes[0])
        # total[k] is the sum of the first k cells. The cells are repeated for circular intervals.
        total = np.cumsum(np.concatenate([np.zeros_like(table[:1]), table, table]), axis=0)
        return np.asarray(total[end] - total[first])

    def squared_norms(self, sizes: Sequence[int]) -> Array:
        return self.dot(sizes, np.ones(sizes[0]))

    def largest_entries(self, sizes: Sequence[int]) -> Array:
        first, end = self.bounds(sizes[0])
        return (end > first).astype(float)

    def quadratic(self, sizes: Sequence[int], matrix: Array) -> Array:
        first, end = self.bounds(sizes[0])
        # q M q^T is the sum of M over the square of the cells of the query. total[i, j] is the sum
        # of the first i rows and j columns of M, which is repeated for circular intervals. The two
        # mixed terms are equal, because M is symmetric.
        total = np.zeros((2 * sizes[0] + 1,) * 2)
        total[1:, 1:] = np.cumsum(np.cumsum(np.tile(matrix, (2, 2)), axis=0), axis=1)
        return total[end, end] - 2 * total[first, end] + total[first, first]

    def text(self, attributes: Sequence[Attribute], index: int) -> str:
        (attribute,) = attributes
        first, end = (int(b[index]) for b in self.bounds(attribute.size))
        return run_text(attribute, first, end)


def run_text(attribute: Attribute, first: int, end: int) -> str:
    """Return the condition that the value lies in the cells first .. end - 1, as a text.

    An ``end`` above the number of cells denotes a circular interval, which continues at cell 0.
    """
    n, name = attribute.size, attribute.name
    if end > n:
        return f"{name} from {attribute.label(first)} around to {attribute.label(end - n - 1)}"
    if end - first == 1:
        return f"{name} = {attribute.label(first)}"
    if attribute.edges is not None:
        low, high = attribute.edges[first], attribute.edges[end]
        closing = "<=" if end == n else "<"
        upper_text = f"{name} {closing} {shortest_text(high)}"
        return upper_text if first == 0 else f"{shortest_text(low)} <= {upper_text}"
    if text := _missing_text(attribute, first, end - 1):
        return text
    low_text, high_text = attribute.label(first), attribute.label(end - 1)
    return f"{name} <= {high_text}" if first == 0 else f"{low_text} <= {name} <= {high_text}"


def _missing_text(attribute: Attribute, first: int, last: int | None = None) -> str:
    """Return the condition of an interval of dates that includes the cell for missing values.

    An example is "day >= 2024-03 or day = NA". The interval contains the cells first .. last. By
    default ``last`` is the last cell of the attribute. The result is "" if the cells are not dates,
    or the interval does not include a cell for missing values.
    """
    missing_cell = attribute.date_cells
    last = attribute.size - 1 if last is None else last
    if not attribute.is_dated or last < missing_cell:
        return ""
    is_missing = f"{attribute.name} = {attribute.label(missing_cell)}"
    if first == missing_cell:
        return is_missing
    low, high = attribute.label(first), attribute.label(missing_cell - 1)
    dates = f"{attribute.name} <= {high}" if first == 0 else f"{attribute.name} >= {low}"
    return f"{dates} or {is_missing}"


@dataclass(frozen=True)
class Marginal(Intervals):
    """One query per cell.

    >>> Marginal().count((5,))
    5
    """

    name: ClassVar[str] = "marginal"
    ordered: ClassVar[bool] = False
    meaning: ClassVar[str] = "How many records have each value?"

    def bounds(self, n: int) -> tuple[Index, Index]:
        cell = np.arange(n)
        return cell, cell + 1


@dataclass(frozen=True)
class Prefix(Intervals):
    """One query per cell c: the number of records in the cells 0 .. c.

    >>> Prefix().gram((3,))
    array([[3., 2., 1.],
           [2., 2., 1.],
           [1., 1., 1.]])
    """

    name: ClassVar[str] = "prefix"
    meaning: ClassVar[str] = "How many records are at or below each value?"

    def bounds(self, n: int) -> tuple[Index, Index]:
        end = np.arange(1, n + 1)
        return np.zeros_like(end), end

    def text(self, attributes: Sequence[Attribute], index: int) -> str:
        (attribute,) = attributes
        if attribute.edges is not None:
            closing = "<=" if index + 1 == attribute.size else "<"
            return f"{attribute.name} {closing} {shortest_text(attribute.edges[index + 1])}"
        return _missing_text(attribute, 0, index) or f"{attribute.name} <= {attribute.label(index)}"


@dataclass(frozen=True)
class Suffix(Intervals):
    """One query per cell c: the number of records in cell c and all later cells.

    >>> Suffix().gram((3,))
    array([[1., 1., 1.],
           [1., 2., 2.],
           [1., 2., 3.]])
    """

    name: ClassVar[str] = "suffix"
    meaning: ClassVar[str] = "How many records are at or above each value?"

    def bounds(self, n: int) -> tuple[Index, Index]:
        first = np.arange(n)
        return first, np.full_like(first, n)

    def text(self, attributes: Sequence[Attribute], index: int) -> str:
        (attribute,) = attributes
        start = (
            shortest_text(attribute.edges[index])
            if attribute.edges is not None
            else attribute.label(index)
        )
        return _missing_text(attribute, index) or f"{attribute.name} >= {start}"


@dataclass(frozen=True)
class Range(Intervals):
    """All n(n+1)/2 intervals of consecutive cells.

    >>> Range().count((4,))
    10
    """

    name: ClassVar[str] = "range"
    meaning: ClassVar[str] = "How many records lie between any two values?"

    def count(self, sizes: Sequence[int]) -> int:
        return sizes[0] * (sizes[0] + 1) // 2

    def bounds(self, n: int) -> tuple[Index, Index]:
        return _range_bounds(n)


@lru_cache(maxsize=8)
def _range_bounds(n: int) -> tuple[Index, Index]:
    first, last = np.triu_indices(n)
    return first, last + 1


@dataclass(frozen=True)
class Circular(Intervals):
    """All n^2 circular intervals: each of the n first cells with each length from 1 to n.

    >>> Circular().count((24,))
    576
    """

    name: ClassVar[str] = "circular"
    meaning: ClassVar[str] = "How many records lie between any two values on a clock face?"

    def count(self, sizes: Sequence[int]) -> int:
        return sizes[0] ** 2

    def bounds(self, n: int) -> tuple[Index, Index]:
        first = np.repeat(np.arange(n), n)
        return first, first + np.tile(np.arange(1, n + 1), n)


@dataclass(frozen=True)
class Total(Intervals):
    """One query: the total number of records.

    >>> Total().rows((3,))
    array([[1., 1., 1.]])
    """

    name: ClassVar[str] = "total"
    ordered: ClassVar[bool] = False
    meaning: ClassVar[str] = "How many records are there?"

    def bounds(self, n: int) -> tuple[Index, Index]:
        return np.zeros(1, dtype=np.int64), np.full(1, n)

    def text(self, attributes: Sequence[Attribute], index: int) -> str:
        return ""


@dataclass(frozen=True)
class Width(Intervals):
    """All intervals of exactly ``width`` consecutive cells.

    >>> Width(3).count((10,))
    8
    """

    width: int
    name: ClassVar[str] = "width"
    meaning: ClassVar[str] = "How many records lie in each window of a fixed width?"

    def __post_init__(self) -> None:
        check_int("width", self.width)

    def bind(self, attributes: Sequence[Attribute]) -> Family:
        super().bind(attributes)
        if self.width > attributes[0].size:
            raise WorkloadError(
                f"The width {self.width} is more than the {attributes[0].size} cells of"
                f" '{attributes[0].name}'. Choose a width from 1 to {attributes[0].size}."
            )
        return self

    def bounds(self, n: int) -> tuple[Index, Index]:
        first = np.arange(n - self.width + 1)
        return first, first + self.width

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "width": self.width}

    @property
    def key(self) -> tuple[Any, ...]:
        return (self.name, self.width)


@dataclass(frozen=True)
class Areas(Family):
    """Base class of families with one query per area of some levels of a hierarchy.

    A bound family has the field ``selection``: the hierarchy and the levels whose areas are
    queries. Products, Gram matrices and quadratic forms are computed without the query matrix, from
    the index of the area that contains each cell.
    """

    selection: LevelSelection | None = field(default=None, init=False, repr=False)

    def _bound_to(self, attribute: Attribute, levels: Sequence[str], name: str | None) -> Family:
        bound = copy.copy(self)
        object.__setattr__(bound, "selection", _selection(attribute, levels, name))
        return bound

    @property
    def _selected(self) -> LevelSelection:
        if self.selection is None:
            raise WorkloadError(
                f"The family '{self.name}' has no attribute yet. Add the family to a workload "
                "first."
            )
        return self.selection

    @property
    def counts_areas(self) -> bool:
        return True

    def area_weights(self, weights: Array | None = None) -> AreaWeights:
        return self._selected.area_weights(weights)

    def count(self, sizes: Sequence[int]) -> int:
        return self._selected.starts[-1]

    def rows(self, sizes: Sequence[int], start: int = 0, stop: int | None = None) -> Array:
        selected, (n,) = self._selected, sizes
        first, end, _ = slice(start, stop).indices(selected.starts[-1])
        out = np.zeros((max(0, end - first), n))
        # ``starts`` has one more entry, the number of all queries
        for areas, offset in zip(selected.areas, selected.starts, strict=False):
            # index of the query that contains each cell
            query = areas + offset
            cells = np.flatnonzero((first <= query) & (query < end))
            out[query[cells] - first, cells] = 1.0
        return out

    def gram(self, sizes: Sequence[int], weights: Array | None = None) -> Array:
        selected, (n,) = self._selected, sizes
        out = np.zeros((n, n))
        # ``starts`` has one more entry, the number of all queries
        for areas, offset in zip(selected.areas, selected.starts, strict=False):
            # areas + offset is the index of the query that contains each cell
            weight = 1.0 if weights is None else weights[areas + offset][:, None]
            out += (areas[:, None] == areas) * weight
        return out

    def dot(self, sizes: Sequence[int], table: Array) -> Array:
        return np.concatenate([_area_sums(areas, table) for areas in self._selected.areas])

    def quadratic(self, sizes: Sequence[int], matrix: Array) -> Array:
        (n,) = sizes
        # q M q^T is the sum of M over all pairs of cells of the area. The rows of M are summed over
        # the areas first. The entry of each cell in the row of its area is then added.
        return np.concatenate(
            [
                np.bincount(areas, _area_sums(areas, matrix)[areas, np.arange(n)])
                for areas in self._selected.areas
            ]
        )

    def squared_norms(self, sizes: Sequence[int]) -> Array:
        return np.concatenate([np.bincount(a).astype(float) for a in self._selected.areas])

    def largest_entries(self, sizes: Sequence[int]) -> Array:
        return np.ones(self.count(sizes))

    def text(self, attributes: Sequence[Attribute], index: int) -> str:
        (attribute,) = attributes
        selected = self._selected
        chosen = bisect.bisect_right(selected.starts, index) - 1
        area, position = index - selected.starts[chosen], selected.positions[chosen]
        levels = selected.hierarchy.levels
        if position == len(levels):
            return run_text(attribute, area, area + 1)
        return levels[position].condition(area)

    @property
    def labels(self) -> tuple[str, ...]:
        """Condition of each area, such as "state = Ohio", from the coarsest to the finest level.

        The single cells, which are the areas of the finest level, are left out.
        """
        selected = self._selected
        levels = [
            level for i, level in enumerate(selected.hierarchy.levels) if i in selected.positions
        ]
        return tuple(level.condition(i) for level in levels for i in range(level.areas))

    @property
    def key(self) -> tuple[Any, ...]:
        return ("areas", self._selected.digest)


def _area_sums(areas: Index, table: Array) -> Array:
    """Return the sums of a table of shape (cells, ...) over the areas, shape (areas, ...)."""
    order = np.argsort(areas, kind="stable")
    first = np.searchsorted(areas[order], np.arange(int(areas.max()) + 1))
    return np.asarray(np.add.reduceat(table[order], first, axis=0))


def _selection(attribute: Attribute, names: Sequence[str], hierarchy: str | None) -> LevelSelection:
    """Return the levels with the given names of one hierarchy of an attribute.

    The name of the attribute denotes the level of its cells, which is in every hierarchy. Raises
    WorkloadError if no hierarchy has all named levels, or several have and ``hierarchy`` is None.
    """
    subject = f"'{attribute.name}'"
    if not attribute.hierarchies:
        raise WorkloadError(
            f"The attribute {subject} has no hierarchy, so it has no levels. Add a code list"
            " to it, or use the family 'marginal'."
        )
    candidates = [h for h in attribute.hierarchies if hierarchy in (None, h.name)]
    if not candidates:
        listed = ", ".join(quote_public(h.name) for h in attribute.hierarchies)
        raise WorkloadError(
            f"The attribute {subject} has no hierarchy {quote_public(hierarchy)}. Name one of"
            f" {listed}."
        )
    coarse = {name for name in names if name != attribute.name}
    fitting = [h for h in candidates if coarse <= set(h.level_names)]
    if not fitting:
        raise _no_fitting_hierarchy(attribute, candidates, names)
    # All hierarchies have the same cells, so any of them can be used for the level of the cells.
    if coarse and len(fitting) > 1:
        listed = ", ".join(quote_public(h.name) for h in fitting)
        raise WorkloadError(
            f"The attribute {subject} has these levels in several hierarchies, {listed}. Name one"
            " of the hierarchies as the parameter 'hierarchy'."
        )
    chosen = fitting[0]
    position_of = {name: i for i, name in enumerate((*chosen.level_names, attribute.name))}
    return LevelSelection(hierarchy=chosen, positions=tuple(position_of[name] for name in names))


def _no_fitting_hierarchy(
    attribute: Attribute, hierarchies: Sequence[Hierarchy], names: Sequence[str]
) -> WorkloadError:
    """Return the error for levels that are not all in one of the hierarchies."""
    level_names = [name for h in hierarchies for name in (*h.level_names, attribute.name)]
    unknown = next((name for name in names if name not in level_names), None)
    if unknown is None:
        return WorkloadError(
            f"The levels {', '.join(map(quote_public, names))} of '{attribute.name}' are in"
            " different hierarchies. Add one group per hierarchy."
        )
    listed = ", ".join(map(quote_public, dict.fromkeys(level_names)))
    return WorkloadError(
        f"The attribute '{attribute.name}' has no level {quote_public(unknown)}"
        f"{near_matches(unknown, level_names)}. Name levels among {listed}."
    )


def _check_name(what: str, name: object, *, optional: bool = False) -> None:
    """Raise WorkloadError unless ``name`` is a text, or None if it is optional."""
    if not (isinstance(name, str) or (optional and name is None)):
        raise WorkloadError(
            f"The name of the {what} has the type {type(name).__name__}. Give a text."
        )


@dataclass(frozen=True)
class Level(Areas):
    """One query per area of one level of an attribute with a hierarchy.

    Parameters
    ----------
    level : name of the level; the name of the attribute denotes the level of its cells.
    hierarchy : name of the hierarchy; required if several hierarchies of the attribute have a level
        with this name.

    >>> from engine.workload.hierarchy import CodeList
    >>> codes = CodeList.from_labels({"Ohio": ["39001", "39003"], "Iowa": ["19001"]}, levels=["state"])
    >>> county = Attribute.hierarchy("county", codes)
    >>> Level("state").bind([county]).rows((3,))
    array([[1., 1., 0.],
           [0., 0., 1.]])
    """

    level: str
    hierarchy: str | None = None
    name: ClassVar[str] = "level"
    meaning: ClassVar[str] = "How many records are in each area of one level, such as each state?"

    def __post_init__(self) -> None:
        _check_name("level", self.level)
        _check_name("hierarchy", self.hierarchy, optional=True)

    def bind(self, attributes: Sequence[Attribute]) -> Family:
        super().bind(attributes)
        (attribute,) = attributes
        if self.level == attribute.name and self.hierarchy is None:
            return Marginal()
        bound = self._bound_to(attribute, (self.level,), self.hierarchy)
        return Marginal() if self.level == attribute.name else bound

    def to_dict(self) -> dict[str, Any]:
        data = {"name": self.name, "level": self.level}
        return data if self.hierarchy is None else data | {"hierarchy": self.hierarchy}


@dataclass(frozen=True)
class Levels(Areas):
    """One query per area of several levels of an attribute with a hierarchy.

    Parameters
    ----------
    levels : names of the levels, in the order of their queries; the name of the attribute denotes
        the level of its cells.
    weights : weight of each query of a level, one number of at least 0 per level; by default 1.
    hierarchy : name of the hierarchy; required if several hierarchies of the attribute have all
        these levels.

    >>> Levels(["state", "county"], weights=[10, 1]).to_dict()
    {'name': 'levels', 'levels': ['state', 'county'], 'weights': [10.0, 1.0]}
    """

    levels: tuple[str, ...]
    weights: tuple[float, ...] | None = None
    hierarchy: str | None = None
    name: ClassVar[str] = "levels"
    meaning: ClassVar[str] = "How many records are in each area of several levels?"

    def __post_init__(self) -> None:
        if isinstance(self.levels, str) or not isinstance(self.levels, Sequence) or not self.levels:
            raise WorkloadError(
                "The levels are empty or not a list. Give a list with the name of at least one level."
            )
        for name in self.levels:
            _check_name("level", name)
        _check_name("hierarchy", self.hierarchy, optional=True)
        object.__setattr__(self, "levels", tuple(self.levels))
        if len(set(self.levels)) < len(self.levels):
            raise WorkloadError("The levels contain a name twice. Give each level once.")
        if self.weights is None:
            return
        if not isinstance(self.weights, Sequence) or len(self.weights) != len(self.levels):
            raise WorkloadError(
                f"The weights are not a list of {len(self.levels)} numbers. Give one weight per "
                "level."
            )
        for weight in self.weights:
            if weight != 0:
                check_positive("weight of a level", weight)
        object.__setattr__(self, "weights", tuple(map(float, self.weights)))

    def bind(self, attributes: Sequence[Attribute]) -> Family:
        super().bind(attributes)
        return self._bound_to(attributes[0], self.levels, self.hierarchy)

    @property
    def query_weights(self) -> Array | None:
        if self.weights is None:
            return None
        return np.repeat(np.array(self.weights), np.diff(self._selected.starts))

    def to_dict(self) -> dict[str, Any]:
        data: dict[str, Any] = {"name": self.name, "levels": list(self.levels)}
        if self.weights is not None:
            data["weights"] = list(self.weights)
        return data if self.hierarchy is None else data | {"hierarchy": self.hierarchy}


@dataclass(frozen=True)
class Affine(Family):
    """One query per upper bound on the sum of the cell numbers of two attributes.

    Query c counts the records with A_1 + A_2 <= c, where A_i is the cell number of attribute i. The
    bounds are c = 0 .. n_1 + n_2 - 2 for attributes with n_1 and n_2 cells.

    >>> Affine().count((10, 10))
    19
    """

    name: ClassVar[str] = "affine"
    arity: ClassVar[int | None] = 2
    ordered: ClassVar[bool] = True
    meaning: ClassVar[str] = "How many records have a sum of the two values at or below each bound?"

    def count(self, sizes: Sequence[int]) -> int:
        return sizes[0] + sizes[1] - 1

    def statistic(self, sizes: Sequence[int]) -> npt.NDArray[np.int64]:
        """Return A_1 + A_2 for every cell, shape ``sizes``."""
        return np.add.outer(np.arange(sizes[0]), np.arange(sizes[1]))

    def rows(self, sizes: Sequence[int], start: int = 0, stop: int | None = None) -> Array:
        c = np.arange(self.count(sizes))[start:stop, None]
        return (self.statistic(sizes).reshape(1, -1) <= c).astype(float)

    def text(self, attributes: Sequence[Attribute], index: int) -> str:
        a, b = attributes
        return f"{_cell_number(a)} + {_cell_number(b)} <= {index}"


@dataclass(frozen=True)
class Abs(Affine):
    """One query per upper bound on the absolute difference of two cell numbers.

    Query c counts the records with |A_1 - A_2| <= c, where A_i is the cell number of attribute i.
    The bounds are c = 0 .. max(n_1, n_2) - 1 for attributes with n_1 and n_2 cells.

    >>> Abs().count((10, 12))
    12
    """

    name: ClassVar[str] = "abs"
    meaning: ClassVar[str] = "How many records have two values that differ by at most each bound?"

    def count(self, sizes: Sequence[int]) -> int:
        return max(sizes)

    def statistic(self, sizes: Sequence[int]) -> npt.NDArray[np.int64]:
        """Return |A_1 - A_2| for every cell, shape ``sizes``."""
        return np.abs(np.subtract.outer(np.arange(sizes[0]), np.arange(sizes[1])))

    def text(self, attributes: Sequence[Attribute], index: int) -> str:
        a, b = attributes
        return f"|{_cell_number(a)} - {_cell_number(b)}| <= {index}"


def _cell_number(attribute: Attribute) -> str:
    # If an attribute has labels, bins or dates, the queries are about the numbers of its cells.
    return attribute.name if attribute.is_coded else f"cell number of {attribute.name}"


@dataclass(frozen=True, kw_only=True)
class Random(Family):
    """Random 0/1 queries: each cell is in a query with probability ``p``.

    Parameters
    ----------
    p : probability that a cell is in a query, between 0 and 1.
    count : number of queries; by default three times the number of cells.
    seed : seed of the choice of cells. The same seed gives the same queries on attributes of the
        same sizes. It has no influence on privacy noise.

    >>> Random(p=0.3, seed=1).count((4, 5))
    60
    """

    p: float = 0.3
    queries: int | None = None
    seed: int = 0
    name: ClassVar[str] = "random"
    arity: ClassVar[int | None] = None
    meaning: ClassVar[str] = (
        "Counts of randomly chosen sets of cells, a workload without structure."
    )

    def __init__(self, *, p: float = 0.3, count: int | None = None, seed: int = 0) -> None:
        check_positive("probability p of random queries", p, below=1)
        if count is not None:
            check_int("count", count)
        check_int("seed of random queries", seed, 0, 2**63 - 1)
        object.__setattr__(self, "p", float(p))
        object.__setattr__(self, "queries", count)
        object.__setattr__(self, "seed", seed)

    def bind(self, attributes: Sequence[Attribute]) -> Family:
        sizes = [a.size for a in attributes]
        check_dense_size(self.name, self.count(sizes), math.prod(sizes))
        return self

    def count(self, sizes: Sequence[int]) -> int:
        return self.queries if self.queries is not None else 3 * math.prod(sizes)

    def rows(self, sizes: Sequence[int], start: int = 0, stop: int | None = None) -> Array:
        return _random_rows(self.p, self.count(sizes), self.seed, tuple(sizes))[start:stop].astype(
            float
        )

    def text(self, attributes: Sequence[Attribute], index: int) -> str:
        return (
            f"random set {index} of cells of {' x '.join(a.name for a in attributes)} (p"
            f" {self.p:g}, seed {self.seed})"
        )

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "p": self.p, "count": self.queries, "seed": self.seed}

    @property
    def key(self) -> tuple[Any, ...]:
        return (self.name, self.p, self.queries, self.seed)


@lru_cache(maxsize=4)
def _random_rows(p: float, count: int, seed: int, sizes: tuple[int, ...]) -> npt.NDArray[np.bool_]:
    return np.random.default_rng([seed, *sizes]).random((count, math.prod(sizes))) < p


class Custom(Family):
    """User-defined queries, as a matrix or as predicates.

    Parameters
    ----------
    matrix : finite real numbers, shape (queries, cells), cells in row-major order of the
        attributes.
    predicates : one condition per query, such as ``"age >= 30 and sex == 'F'"`` or ``"age + hours
        <= 60"``. Names that are not Python identifiers are written in backticks. A level of a
        hierarchy is compared with the label of an area, as in ``"state == 'Ohio'"``.
    labels : one text per row of ``matrix``; only with ``matrix``.

    >>> Custom(matrix=[[1, 0, 1], [0, 1, 1]]).count((3,))
    2
    """

    name: ClassVar[str] = "custom"
    arity: ClassVar[int | None] = None
    meaning: ClassVar[str] = "Your own queries, as a matrix or as conditions in words."

    def __init__(
        self,
        matrix: npt.ArrayLike | None = None,
        *,
        predicates: Sequence[str] | None = None,
        labels: Sequence[str] | None = None,
    ) -> None:
        if (matrix is None) == (predicates is None):
            raise WorkloadError(
                "Custom queries take either a matrix or predicates. Give exactly one of the two."
            )
        if labels is not None and predicates is not None:
            raise WorkloadError(
                "Labels belong to a matrix of custom queries; predicates are their own labels. Omit"
                " the labels."
            )
        self.predicates: tuple[str, ...] | None = None
        self.matrix: Array | None = None
        self.labels: tuple[str, ...] | None = None
        if predicates is not None:
            self.predicates = self.labels = _checked_predicates(predicates)
            return
        self.matrix = _checked_matrix(matrix)
        if labels is None:
            return
        self.labels = tuple(labels)
        if not all(isinstance(label, str) for label in self.labels):
            raise WorkloadError(
                "A label of the custom queries is not a text. Give one text per query."
            )
        if len(self.labels) != len(self.matrix):
            raise WorkloadError(
                f"There are {len(self.labels)} labels for {len(self.matrix)} queries. Give one per"
                " query."
            )

    def bind(self, attributes: Sequence[Attribute]) -> Family:
        cells = math.prod(a.size for a in attributes)
        check_dense_size(self.name, len(self.predicates or self._rows), cells)
        if self.predicates is not None and self.matrix is None:
            from engine.workload.predicates import evaluate

            bound = Custom(
                [evaluate(p, attributes) for p in self.predicates], labels=self.predicates
            )
            bound.predicates = self.predicates
            return bound
        if self._rows.shape[1] != cells:
            raise WorkloadError(
                f"The custom matrix has {self._rows.shape[1]} columns, but"
                f" {' x '.join(a.name for a in attributes)} has {cells:,} cells. Give one column"
                " per cell, the last attribute varying fastest."
            )
        return self

    @property
    def _rows(self) -> Array:
        if self.matrix is None:
            raise WorkloadError(
                "The predicates of this custom family have not been evaluated on attributes. Add "
                "the family to a workload first."
            )
        return self.matrix

    def count(self, sizes: Sequence[int]) -> int:
        return len(self._rows)

    def rows(self, sizes: Sequence[int], start: int = 0, stop: int | None = None) -> Array:
        return self._rows[start:stop]

    def text(self, attributes: Sequence[Attribute], index: int) -> str:
        return self.labels[index] if self.labels is not None else f"custom query {index}"

    def to_dict(self) -> dict[str, Any]:
        if self.predicates is not None:
            return {"name": self.name, "predicates": list(self.predicates)}
        packed = base64.b64encode(zlib.compress(self._rows.astype("<f8").tobytes())).decode()
        out = {"name": self.name, "shape": list(self._rows.shape), "matrix": packed}
        return out if self.labels is None else out | {"labels": list(self.labels)}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Family:
        if "predicates" in data:
            return cls(predicates=data["predicates"])
        try:
            queries, cells = (int(k) for k in data["shape"])
            check_dense_size(cls.name, queries, cells)
            unpacker = zlib.decompressobj()
            # One byte more than the matrix has, so that longer data raises an error.
            raw = unpacker.decompress(
                base64.b64decode(data["matrix"], validate=True), 8 * queries * cells + 1
            )
            return cls(np.frombuffer(raw, "<f8").reshape(queries, cells), labels=data.get("labels"))
        except (
            KeyError,
            TypeError,
            ValueError,
            OverflowError,
            binascii.Error,
            zlib.error,
        ) as error:
            if isinstance(error, WorkloadError):
                raise
            raise WorkloadError(
                "A custom matrix in the file is damaged. Export the file again."
            ) from None

    @property
    def key(self) -> tuple[Any, ...]:
        return (
            self.name,
            self._rows.shape,
            hashlib.sha256(self._rows.tobytes()).hexdigest(),
            self.labels,
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Custom) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash(self.predicates or self.key)


def _checked_predicates(predicates: Any) -> tuple[str, ...]:
    if (
        isinstance(predicates, str)
        or not isinstance(predicates, Sequence)
        or not len(predicates)
        or not all(isinstance(predicate, str) for predicate in predicates)
    ):
        raise WorkloadError(
            'The predicates are not a list of at least one text. Give a list such as ["age >= 30"].'
        )
    return tuple(predicates)


def _checked_matrix(matrix: Any) -> Array:
    """Return a query matrix as a read-only array of shape (queries, cells)."""
    try:
        rows = np.array(matrix, dtype=float, ndmin=2)
    except (TypeError, ValueError, OverflowError):
        raise WorkloadError(
            "The custom matrix is not a table of numbers. Give one row per query, all equally long."
        ) from None
    if rows.ndim != 2 or not rows.size:
        raise WorkloadError(
            f"The custom matrix has the shape {rows.shape}. Give one row per query and one column"
            " per cell, at least one of each."
        )
    if not np.isfinite(rows).all():
        raise WorkloadError(
            "The custom matrix has an entry that is not a finite number. Give finite numbers."
        )
    rows.flags.writeable = False
    return rows


FAMILIES: tuple[type[Family], ...] = (
    Marginal,
    Prefix,
    Suffix,
    Range,
    Circular,
    Total,
    Width,
    Level,
    Levels,
    Affine,
    Abs,
    Random,
    Custom,
)


def family(value: str | Family) -> Family:
    """Return a family by its name; a `Family` is returned unchanged.

    WorkloadError is raised for an unknown name, and for a family with required parameters.

    >>> family("prefix")
    Prefix()
    """
    if isinstance(value, Family):
        return value
    by_name = {f.name: f for f in FAMILIES}
    if not isinstance(value, str) or value not in by_name:
        near = near_matches(value, by_name)
        raise WorkloadError(
            f"There is no query family {repr(value)[:60]}{near}. Choose one of"
            f" {', '.join(by_name)}."
        )
    try:
        return by_name[value]()
    except TypeError:
        raise WorkloadError(
            f"The family '{value}' has required parameters, but only its name was given. Import"
            f" {by_name[value].__name__} from engine and give {by_name[value].__name__}(...) with"
            " these parameters."
        ) from None


def default_family(kind: str) -> str:
    """Return the name of the default family for a kind of attribute.

    >>> default_family("categorical"), default_family("numeric")
    ('marginal', 'prefix')
    """
    return "marginal" if kind == "categorical" else "prefix"


def family_from_dict(data: object) -> Family:
    """Rebuild a family from `Family.to_dict`; raise WorkloadError if the data is invalid."""
    if not isinstance(data, dict) or "name" not in data:
        raise WorkloadError(
            'A query family in the file is missing or has no name. Write it as {"name": "prefix"}.'
        )
    cls = {f.name: f for f in FAMILIES}.get(data["name"] if isinstance(data["name"], str) else "")
    if cls is None:
        raise WorkloadError(
            f"There is no query family {str(data['name'])[:60]!r}. Choose one of"
            f" {', '.join(f.name for f in FAMILIES)}."
        )
    try:
        return cls.from_dict(data)
    except TypeError:
        raise WorkloadError(
            f"The query family '{cls.name}' in the file has missing or unknown parameters. Export"
            " the file again."
        ) from None


def spec_to_data(spec: str | Family | Mapping[str, str | Family]) -> Any:
    """Return the family specification of a group (name, family or mapping) as JSON-ready data."""
    # Texts are tested first, because testing for a mapping is slow and a workload can have 100,000
    # groups.
    if isinstance(spec, str):
        return spec
    if isinstance(spec, (MappingProxyType, Mapping)):
        return {
            "each": {name: f if isinstance(f, str) else f.to_dict() for name, f in spec.items()}
        }
    return spec.to_dict()


def spec_from_data(data: Any) -> str | Family | Mapping[str, str | Family]:
    """Return the specification that `spec_to_data` described; raise WorkloadError if invalid."""
    if isinstance(data, str):
        return data
    if isinstance(data, dict) and isinstance(data.get("each"), dict):
        return {
            name: entry if isinstance(entry, str) else family_from_dict(entry)
            for name, entry in data["each"].items()
        }
    return family_from_dict(data)


MAX_FILE = 50_000_000  # bytes
_NPY_MAGIC = b"\x93NUMPY"


def read_matrix(content: bytes, name: str = "the file") -> Array:
    r"""Return the query matrix in a file, shape (queries, cells).

    Raises
    ------
    WorkloadError : if the file is too large, or is not a table of real numbers.

    >>> read_matrix(b"1,0\n0.5,1\n")
    array([[1. , 0. ],
           [0.5, 1. ]])
    """
    if len(content) > MAX_FILE:
        raise WorkloadError(
            f"The matrix file has {len(content):,} bytes, but at most {MAX_FILE:,} are allowed. "
            "Give fewer queries."
        )
    return _read_npy(content, name) if content.startswith(_NPY_MAGIC) else _read_csv(content, name)


def _read_npy(content: bytes, name: str) -> Array:
    """Return the matrix in a file of numpy.save; error messages call the file ``name``."""
    # The header is checked before the array is loaded, because an array of a huge shape would
    # exhaust the memory.
    stream = io.BytesIO(content)
    try:
        version = np.lib.format.read_magic(stream)
        header_readers: dict[tuple[int, int], Any] = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }
        shape, _, dtype = header_readers[version](stream)
    except (
        ValueError,
        KeyError,
        TypeError,
        SyntaxError,
        RecursionError,
        MemoryError,
        tokenize.TokenError,
    ):
        raise WorkloadError(
            f"The content of {name} is not a readable array. Save the matrix with numpy.save."
        ) from None
    if len(shape) not in (1, 2) or dtype.kind not in "biuf":
        raise WorkloadError(
            f"The array in {name} has the shape {str(tuple(shape))[:60]} and the type"
            f" {str(dtype)[:40]}, but a query matrix is a table of real numbers. Save one row per"
            " query, one column per cell."
        )
    if math.prod(shape) > MAX_DENSE_ENTRIES:
        raise WorkloadError(
            f"The matrix in {name} has {math.prod(shape):,} numbers, but at most"
            f" {MAX_DENSE_ENTRIES:,} are allowed. Give fewer queries."
        )
    if math.prod(shape) * dtype.itemsize != len(content) - stream.tell():
        raise WorkloadError(
            f"The header of {name} states {math.prod(shape):,} numbers, but the file has another "
            "length. Save the matrix again."
        )
    stream.seek(0)
    return np.atleast_2d(np.load(stream, allow_pickle=False).astype(float))


def _read_csv(content: bytes, name: str) -> Array:
    """Return the matrix in a CSV file without header; error messages call the file ``name``."""
    rows: list[list[float]] = []
    text, delimiter = csv_start(content.decode("utf-8-sig", errors="replace"))
    reader = csv.reader(io.StringIO(text), delimiter=delimiter)
    try:
        for cells in reader:
            if cells:
                rows.append([float(cell) for cell in cells])
    except (ValueError, csv.Error):
        raise WorkloadError(
            f"Line {reader.line_num} of {name} is not a row of numbers. Correct this line."
        ) from None
    if not rows:
        raise WorkloadError(
            f"There is no matrix in {name}. Write one row per query, with one number per cell."
        )
    if len({len(row) for row in rows}) > 1:
        raise WorkloadError(
            f"The rows of {name} have different lengths. Write one number per cell in every row."
        )
    return np.array(rows)
