"""Contribution bounding: at most k rows per person.

The rows of a person are ordered by a hash of the person and of the row's cells, and the first k
count. Rows of other persons therefore do not affect which rows of this person count, and the rows of
one person change at most k counted rows: the guarantee for all contributions of one person requires
nothing else. The order depends on every column of the schema, counted or not, so two steps on the
same records select the same rows. The order is deterministic and need not be secret.

Memory holds only codes, hashes and the first k + 1 rows per person so far, never the identifiers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from engine._format import quote_public
from engine.errors import DataError, LimitExceeded
from engine.records.identifiers import EXACT, KIND_ADVICE, MIX, identities, mix_bits

ROOM = 1 << 20  # rows collected between two selections of the first rows of every person
NO_PERSON = "without a person"


class PersonCap:
    """Rows of all persons, reduced to the first k of each while they are read.

    Parameters
    ----------
    column : name of the person column.
    rows : k, the largest number of rows that count for one person.
    memory_limit : bytes that codes and hashes may take.
    """

    def __init__(self, column: str, rows: int, memory_limit: int) -> None:
        self.column, self.rows, self.memory_limit = column, rows, memory_limit
        self.read, self.n_without_person, self._kind = 0, 0, ""
        self.elsewhere = 0  # persons within the cap whose rows a database counted
        self._marks: list[np.ndarray] = []  # shape (3, rows): two words of the person, one of the order
        self._codes: list[list[np.ndarray]] = []
        self._n_rows, self._n_sorted = 0, 0
        self._place = np.zeros(0, np.intp)

    def take(self, persons: pa.Array | list[Any], codes: Sequence[np.ndarray], limit: int = EXACT) -> None:
        """Add rows: person identifiers, and codes of every column of the schema, shape (rows,) each.

        Parameters
        ----------
        limit : size from which floats of the source cannot represent all integers.
        """
        first_word, second_word, has_person, kind = identities(
            persons, f"the person column {quote_public(self.column)}", limit
        )
        # the text "07" may or may not be the number 7, so one source has one kind of identifiers
        if kind and self._kind not in ("", kind):
            raise DataError(f"the person column {quote_public(self.column)} mixes {KIND_ADVICE}")
        self._kind = self._kind or kind
        self.read += len(has_person)
        self.n_without_person += int(len(has_person) - has_person.sum())
        sort_key = mix_bits(first_word ^ second_word)
        for number, column in enumerate(codes):
            sort_key = mix_bits(sort_key ^ mix_bits(column.astype(np.int64).view(np.uint64) + number * MIX[:1]))
        self._marks.append(np.stack([first_word, second_word, sort_key])[:, has_person])
        self._codes.append([column[has_person] for column in codes])
        self._n_rows += int(has_person.sum())
        if self._n_rows > 2 * self._n_sorted + ROOM:
            self._sort_and_cut()

    def retained_codes(self) -> list[np.ndarray]:
        """Return the codes of the rows that count, one array of shape (rows,) per column."""
        self._sort_and_cut()
        return [column[self._place < self.rows] for codes in self._codes for column in codes]

    @property
    def people(self) -> int:
        """Number of persons with a row."""
        self._sort_and_cut()
        return int((self._place == 0).sum()) + self.elsewhere

    @property
    def people_over(self) -> int:
        """Number of persons with more than k rows."""
        self._sort_and_cut()
        return int((self._place == self.rows).sum())

    @property
    def over(self) -> int:
        """Number of rows beyond the cap."""
        self._sort_and_cut()
        return self.read - self.n_without_person - int((self._place < self.rows).sum())

    def _sort_and_cut(self) -> None:
        if len(self._marks) <= 1 and self._n_rows == self._n_sorted:
            return
        marks = np.concatenate(self._marks, axis=1)
        codes = [np.concatenate(parts) for parts in zip(*self._codes, strict=True)]
        # sort by person, then by sort key; the order of equal rows does not matter
        order = np.lexsort(marks[::-1])
        marks = marks[:, order]
        starts = np.ones(marks.shape[1], dtype=bool)
        starts[1:] = (marks[:2, 1:] != marks[:2, :-1]).any(axis=0)
        positions = np.arange(len(starts))
        place = positions - np.maximum.accumulate(np.where(starts, positions, 0))
        first = place <= self.rows  # row k + 1 shows that a person is over the cap
        self._place = place[first]
        self._marks, self._codes = [marks[:, first]], [[column[order[first]] for column in codes]]
        self._n_rows = self._n_sorted = int(first.sum())
        size = self._marks[0].nbytes + sum(column.nbytes for column in self._codes[0])
        if 3 * size > self.memory_limit:  # sorting holds a second and a third copy
            raise LimitExceeded(
                f"Keeping {self.rows:,} rows a person takes about {3 * size:.3g} bytes, more than the limit of "
                f"{self.memory_limit:.3g}. Raise memory_limit, or cap the rows of every person before."
            )
