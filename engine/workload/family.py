"""What a query family is: a rule that lists linear counting queries on the cells of some attributes.

A family is a rule that lists 0/1 (or real) query rows on the cells of one or more attributes.  Nothing else in the
engine knows what a family looks like: it needs the number of rows, chunks of rows, the Gram matrix, sums along the
rows and a text.  To add a family, write one class and put it into ``engine.workload.families.FAMILIES``.

Every family is a frozen value: equal values ask the same queries, so work done for one serves the other.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from engine.arrays import Array
from engine.errors import WorkloadError
from engine.workload.attribute import Attribute

CHUNK_ENTRIES = 1 << 20  # rows are built in chunks of at most about this many matrix entries
MAX_DENSE_ENTRIES = 200_000_000  # a family given row by row may hold at most 1.6 GB


class Family(ABC):
    """A rule that lists query rows on the cells of its attributes.

    Attributes
    ----------
    name : the word used in JSON and on screen.
    arity : number of attributes it takes, None for any number.
    ordered : whether the order of the cells means something, so that categorical attributes are refused.
    meaning : one plain sentence for the person who chooses it.
    """

    name: ClassVar[str]
    arity: ClassVar[int | None] = 1
    ordered: ClassVar[bool] = False
    meaning: ClassVar[str] = ""

    def bind(self, attributes: Sequence[Attribute]) -> Family:
        """Return the family fitted to these attributes, or raise WorkloadError when it does not fit."""
        names = ", ".join(a.name for a in attributes)
        if self.arity is not None and len(attributes) != self.arity:
            raise WorkloadError(
                f"The family '{self.name}' takes {self.arity} attribute{'s' if self.arity != 1 else ''}, but was given "
                f"{len(attributes)} ({names}). Choose {self.arity} or another family."
            )
        for a in attributes if self.ordered else ():
            if a.kind != "numeric":
                raise WorkloadError(
                    f"The family '{self.name}' needs attributes whose cells are ordered, but '{a.name}' is "
                    f"{a.kind}. Use 'marginal' for it, or declare it numeric in the schema."
                )
        return self

    @abstractmethod
    def count(self, sizes: Sequence[int]) -> int:
        """Return the exact number of queries on cells of shape ``sizes``."""

    @abstractmethod
    def rows(self, sizes: Sequence[int], start: int = 0, stop: int | None = None) -> Array:
        """Return query rows ``start:stop``, shape (stop - start, prod(sizes))."""

    @abstractmethod
    def text(self, attributes: Sequence[Attribute], index: int) -> str:
        """Return the condition of query ``index`` in words; empty when every record counts."""

    def chunks(self, sizes: Sequence[int]) -> Iterator[tuple[int, Array]]:
        """Yield (start, rows) pieces that never hold more than a few million entries.

        Rows have shape (chunk, prod(sizes)).
        """
        total, step = self.count(sizes), max(1, CHUNK_ENTRIES // max(1, math.prod(sizes)))
        for start in range(0, total, step):
            yield start, self.rows(sizes, start, min(total, start + step))

    def gram(self, sizes: Sequence[int], weights: Array | None = None) -> Array:
        """Return W^T diag(weights) W, shape (cells, cells), in counts^2."""
        cells = math.prod(sizes)
        out = np.zeros((cells, cells))
        for start, rows in self.chunks(sizes):
            weighted = rows if weights is None else rows * weights[start : start + len(rows), None]
            out += weighted.T @ rows
        return out

    def dot(self, sizes: Sequence[int], table: Array) -> Array:
        """Return W @ table for a table of shape (cells, ...): shape (count, ...)."""
        return np.concatenate([np.tensordot(rows, table, axes=1) for _, rows in self.chunks(sizes)])

    def quadratic(self, sizes: Sequence[int], matrix: Array) -> Array:
        """Return the diagonal of W matrix W^T, shape (count,), for a symmetric matrix on the cells."""
        return np.concatenate([np.einsum("qc,qc->q", rows @ matrix, rows) for _, rows in self.chunks(sizes)])

    def to_dict(self) -> dict[str, Any]:
        """Return the family as JSON-ready data."""
        return {"name": self.name}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Family:
        """Rebuild the family from `to_dict`."""
        return cls(**{k: v for k, v in data.items() if k != "name"})

    @property
    def key(self) -> tuple[Any, ...]:
        """Return a hashable identity: equal keys ask the same queries."""
        return (self.name,)


def dense_limit(name: str, queries: int, cells: int) -> None:
    """Raise WorkloadError when a family given row by row would not fit into memory."""
    if queries * cells > MAX_DENSE_ENTRIES:
        raise WorkloadError(
            f"The '{name}' family would hold {queries:,} queries on {cells:,} cells row by row, more than the "
            f"{MAX_DENSE_ENTRIES:,} numbers allowed. Use fewer queries, or attributes with fewer cells."
        )
