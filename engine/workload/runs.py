"""Families of intervals: runs of consecutive cells of one attribute."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from engine.arrays import Array, Index
from engine.checks import whole
from engine.errors import WorkloadError
from engine.texts import plain
from engine.workload.attribute import Attribute
from engine.workload.family import Family


class Intervals(Family):
    """Queries that count a run of consecutive cells of one attribute, possibly around the end.

    Subclasses give ``bounds(n)``, the first cell and the end (exclusive, up to 2n when the run wraps around) of every
    run; sums, Gram matrices and quadratic forms then need cumulative sums only, never the rows.
    """

    ordered: ClassVar[bool] = True

    @abstractmethod
    def bounds(self, n: int) -> tuple[Index, Index]:
        """Return (first, end) of every run, each of shape (count,)."""

    def count(self, sizes: Sequence[int]) -> int:
        return len(self.bounds(sizes[0])[0])

    def rows(self, sizes: Sequence[int], start: int = 0, stop: int | None = None) -> Array:
        (n,) = sizes
        first, end = (b[start:stop, None] for b in self.bounds(n))
        cell = np.arange(n)
        return (((cell >= first) & (cell < end)) | (cell + n < end)).astype(float)

    def gram(self, sizes: Sequence[int], weights: Array | None = None) -> Array:
        (n,) = sizes
        first, end = self.bounds(n)
        corner = np.zeros((n, 2 * n + 1))
        np.add.at(corner, (first, end), 1.0 if weights is None else weights)
        # covers[a, b] = runs that begin at a or before and end at b or after
        covers = np.cumsum(np.cumsum(corner, axis=0)[:, ::-1], axis=1)[:, ::-1]
        i, j = np.minimum.outer(np.arange(n), np.arange(n)), np.maximum.outer(np.arange(n), np.arange(n))
        return np.asarray(covers[i, j + 1] + covers[j, i + n + 1] + covers[n - 1, j + n + 1])

    def dot(self, sizes: Sequence[int], table: Array) -> Array:
        first, end = self.bounds(sizes[0])
        total = np.cumsum(np.concatenate([np.zeros_like(table[:1]), table, table]), axis=0)
        return np.asarray(total[end] - total[first])

    def quadratic(self, sizes: Sequence[int], matrix: Array) -> Array:
        first, end = self.bounds(sizes[0])
        total = np.zeros((2 * sizes[0] + 1,) * 2)
        total[1:, 1:] = np.cumsum(np.cumsum(np.tile(matrix, (2, 2)), axis=0), axis=1)
        return total[end, end] - 2 * total[first, end] + total[first, first]

    def text(self, attributes: Sequence[Attribute], index: int) -> str:
        (attribute,) = attributes
        first, end = (int(b[index]) for b in self.bounds(attribute.size))
        return run_text(attribute, first, end)


def run_text(attribute: Attribute, first: int, end: int) -> str:
    """Return a run of cells in words, ``end`` exclusive and beyond the size when the run wraps around."""
    n, name = attribute.size, attribute.name
    if end > n:
        return f"{name} from {attribute.label(first)} around to {attribute.label(end - n - 1)}"
    if end - first == 1:
        return f"{name} = {attribute.label(first)}"
    if attribute.edges is not None:
        low, high = attribute.edges[first], attribute.edges[end]
        closing = "<=" if end == n else "<"
        return f"{name} {closing} {plain(high)}" if first == 0 else f"{plain(low)} <= {name} {closing} {plain(high)}"
    if text := _missing_text(attribute, first, end - 1):
        return text
    low_text, high_text = attribute.label(first), attribute.label(end - 1)
    return f"{name} <= {high_text}" if first == 0 else f"{low_text} <= {name} <= {high_text}"


def _missing_text(attribute: Attribute, first: int, last: int | None = None) -> str:
    """Return cells of dates with the one of missing values, which is before and after no date; else an empty text."""
    missing = attribute.date_cells
    last = attribute.size - 1 if last is None else last
    if not attribute.is_dated or last < missing:
        return ""
    alone = f"{attribute.name} = {attribute.label(missing)}"
    if first == missing:
        return alone
    low, high = attribute.label(first), attribute.label(missing - 1)
    dates = f"{attribute.name} <= {high}" if first == 0 else f"{attribute.name} >= {low}"
    return f"{dates} or {alone}"


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
    """One query per cell c: the records at c or below.

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
            return f"{attribute.name} {closing} {plain(attribute.edges[index + 1])}"
        return _missing_text(attribute, 0, index) or f"{attribute.name} <= {attribute.label(index)}"


@dataclass(frozen=True)
class Suffix(Intervals):
    """One query per cell c: the records at c or above.

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
        start = plain(attribute.edges[index]) if attribute.edges is not None else attribute.label(index)
        return _missing_text(attribute, index) or f"{attribute.name} >= {start}"


@dataclass(frozen=True)
class Range(Intervals):
    """Every run of consecutive cells, n(n+1)/2 of them.

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
    """Every run on a clock face: n starts times lengths 1 to n.

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
    """One query: every record.

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
    """Every run of exactly ``width`` consecutive cells.

    >>> Width(3).count((10,))
    8
    """

    width: int
    name: ClassVar[str] = "width"
    meaning: ClassVar[str] = "How many records lie in each window of a fixed width?"

    def __post_init__(self) -> None:
        whole("width", self.width)

    def bind(self, attributes: Sequence[Attribute]) -> Family:
        super().bind(attributes)
        if self.width > attributes[0].size:
            raise WorkloadError(
                f"The width {self.width} is more than the {attributes[0].size} cells of '{attributes[0].name}'. "
                f"Choose a width from 1 to {attributes[0].size}."
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
