"""Contribution bounding: at most k rows per person.

A person's rows are put in an order that a hash of the person and of the row's own cells gives, and the first k count.
So rows of others change nothing of this person's, and rows of this person change at most k counted rows: the guarantee
for everything that one person contributes needs no more.  The order uses every column of the schema, counted or not,
so that two steps on the same records keep the same rows.  It need not be secret, and it is the same every time.

Only codes, hashes and the running k + 1 first rows are held, never the identifiers themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from engine._format import shown
from engine.errors import DataError, LimitExceeded
from engine.records.identifiers import EXACT, KIND_ADVICE, MIX, identities, mixed

ROOM = 1 << 20  # rows that are collected before the first ones of every person are looked for again
NOBODY = "without a person"


class PersonCap:
    """The rows of all persons, cut to the first k of each as they come in.

    Parameters
    ----------
    column : name of the column that tells the person.
    rows : k, the most rows that count for one person.
    memory_limit : bytes that codes and hashes may take.
    """

    def __init__(self, column: str, rows: int, memory_limit: int) -> None:
        self.column, self.rows, self.memory_limit = column, rows, memory_limit
        self.read, self.nobody, self._kind = 0, 0, ""
        self.elsewhere = 0  # persons with no more rows than count, whose rows were counted without being taken here
        self._marks: list[np.ndarray] = []  # shape (3, rows): two words of the person, one of the order
        self._codes: list[list[np.ndarray]] = []
        self._held, self._settled = 0, 0
        self._place = np.zeros(0, np.intp)

    def take(self, persons: pa.Array | list[Any], codes: Sequence[np.ndarray], limit: int = EXACT) -> None:
        """Add rows: whose they are, and their codes in every column of the schema, shape (rows,) each.

        Parameters
        ----------
        limit : size from which on the source cannot tell whole floating-point numbers apart.
        """
        one, two, known, kind = identities(persons, f"the person column {shown(self.column)}", limit)
        # the text "07" may or may not be the number 7, so one source has one kind of identifiers
        if kind and self._kind not in ("", kind):
            raise DataError(f"the person column {shown(self.column)} mixes {KIND_ADVICE}")
        self._kind = self._kind or kind
        self.read += len(known)
        self.nobody += int(len(known) - known.sum())
        order = mixed(one ^ two)
        for number, column in enumerate(codes):
            order = mixed(order ^ mixed(column.astype(np.int64).view(np.uint64) + number * MIX[:1]))
        self._marks.append(np.stack([one, two, order])[:, known])
        self._codes.append([column[known] for column in codes])
        self._held += int(known.sum())
        if self._held > 2 * self._settled + ROOM:
            self._settle()

    def kept(self) -> list[np.ndarray]:
        """Return the codes of the rows that count, a column after the other, shape (rows,) each."""
        self._settle()
        return [column[self._place < self.rows] for codes in self._codes for column in codes]

    @property
    def people(self) -> int:
        """Number of persons with a row."""
        self._settle()
        return int((self._place == 0).sum()) + self.elsewhere

    @property
    def people_over(self) -> int:
        """Number of persons with more rows than count."""
        self._settle()
        return int((self._place == self.rows).sum())

    @property
    def over(self) -> int:
        """Number of rows that the cap left out."""
        self._settle()
        return self.read - self.nobody - int((self._place < self.rows).sum())

    def _settle(self) -> None:
        if len(self._marks) <= 1 and self._held == self._settled:
            return
        marks = np.concatenate(self._marks, axis=1)
        codes = [np.concatenate(parts) for parts in zip(*self._codes, strict=True)]
        # rows of one person become neighbours, in their order; equal rows may change places, which changes nothing
        order = np.lexsort(marks[::-1])
        marks = marks[:, order]
        starts = np.ones(marks.shape[1], dtype=bool)
        starts[1:] = (marks[:2, 1:] != marks[:2, :-1]).any(axis=0)
        positions = np.arange(len(starts))
        place = positions - np.maximum.accumulate(np.where(starts, positions, 0))
        first = place <= self.rows  # one row more than counts tells that this person has too many
        self._place = place[first]
        self._marks, self._codes = [marks[:, first]], [[column[order[first]] for column in codes]]
        self._held = self._settled = int(first.sum())
        size = self._marks[0].nbytes + sum(column.nbytes for column in self._codes[0])
        if 3 * size > self.memory_limit:  # sorting holds a second and a third copy
            raise LimitExceeded(
                f"Keeping {self.rows:,} rows a person takes about {3 * size:.3g} bytes, more than the limit of "
                f"{self.memory_limit:.3g}. Raise memory_limit, or cap the rows of every person before."
            )
