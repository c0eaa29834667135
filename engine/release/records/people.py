"""At most k rows of every person, by a rule that depends on that person's rows alone.

A person's rows are put in an order that a hash of the person and of the row's own cells gives, and the first k count.
So whatever others do moves nothing of this person's, and whatever this person does moves at most k rows: the guarantee
for everything that one person contributes needs no more.  The order takes in every column of the schema, asked for or
not, so that two steps on the same records keep the same rows.  It need not be secret, and it is the same every time.

Only codes, hashes and the running k + 1 first rows are held, never the identifiers themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from engine.errors import DataError, LimitExceeded
from engine.texts import shown

Words = npt.NDArray[np.uint64]
ROOM = 1 << 20  # rows that are collected before the first ones of every person are looked for again
NOBODY = "without a person"
# two independent keys of 16 characters: together 128 bits tell persons apart
_KEYS = ("person, one of 2", "person, two of 2")
_MIX = np.array([0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB], dtype=np.uint64)


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

    def take(self, persons: pa.Array | list[Any], codes: Sequence[np.ndarray]) -> None:
        """Take in some rows: who they belong to, and their codes in every column of the schema, shape (rows,) each."""
        one, two, known = self._identified(persons)
        self.read += len(known)
        self.nobody += int(len(known) - known.sum())
        order = _mixed(one ^ two)
        for number, column in enumerate(codes):
            order = _mixed(order ^ _mixed(column.astype(np.int64).view(np.uint64) + number * _MIX[:1]))
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

    def _identified(self, persons: pa.Array | list[Any]) -> tuple[Words, Words, np.ndarray]:
        """Return two words for every person and whether there is one at all, shape (rows,) each."""
        import pandas as pd
        import pyarrow.compute as pc

        what = f"the person column {shown(self.column)}"
        if isinstance(persons, list) and all(person is None for person in persons):
            persons = pa.nulls(len(persons))
        if isinstance(persons, list):
            raise DataError(f"{what} mixes types; give one type of number or text")
        if pa.types.is_dictionary(persons.type):
            persons = persons.dictionary_decode()
        if pa.types.is_floating(persons.type):  # whole numbers with gaps come as floats from pandas
            numbers = pc.if_else(pc.is_nan(persons), None, persons)
            persons = None
            with suppress(pa.ArrowInvalid):
                persons = numbers.cast(pa.int64())
            # raised out here, as the error of Arrow names a value and would be kept inside this one
            if persons is None:
                raise DataError(f"{what} has numbers that are not whole; give identifiers as text")
        if pa.types.is_null(persons.type):
            nobody = np.zeros(len(persons), dtype=np.uint64)
            return nobody, nobody, np.zeros(len(persons), dtype=bool)
        whole = pa.types.is_integer(persons.type)
        text = pa.types.is_string(persons.type) or pa.types.is_large_string(persons.type)
        kind = "numbers" if whole else "texts" if text else ""
        # 5 and "5" would be two persons, and each of them would have k rows
        if not kind or self._kind not in ("", kind):
            raise DataError(f"{what} must hold whole numbers or texts, and the same kind in all rows")
        self._kind = kind
        known = np.asarray(persons.is_valid())
        if whole and persons.type != pa.uint64():
            one = np.asarray(persons.fill_null(0)).astype(np.int64).view(np.uint64)
            return one, _mixed(one), known
        texts = np.asarray(persons.cast(pa.string()).fill_null(""), dtype=object)
        known &= texts != ""
        one, two = (pd.util.hash_array(texts, hash_key=key, categorize=False) for key in _KEYS)
        return one, two, known


def _mixed(words: Words) -> Words:
    """Return 64-bit words with every bit spread over all others (the finisher of SplitMix64)."""
    out: Words = words + _MIX[0]
    out = (out ^ (out >> np.uint64(30))) * _MIX[1]
    out = (out ^ (out >> np.uint64(27))) * _MIX[2]
    out ^= out >> np.uint64(31)
    return out
