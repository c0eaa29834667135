"""Contribution bounding: at most k rows per person.

The rows of a person are ordered by a hash of the person and of the row's cells, and the first k
rows are counted. Rows of other persons therefore do not affect which rows of this person are
counted, and one person changes at most k counted rows, as the privacy guarantee requires. The order
depends on every column of the schema, including columns that no requested table contains.
Therefore two releases from the same records count the same rows. The order is deterministic and
need not be secret.

While rows are read, memory holds the hashes and cell codes of two kinds of rows: the first k + 1
rows of each person, and the rows that were added since the last selection. In place of identifiers
it holds the identities described below. The identity of a 64-bit integer contains the integer.

Every person identifier is mapped to an identity of 128 bits that does not depend on the data type
of the column. If one person had two identities, twice as many rows of this person would be counted.
If two persons had the same identity, the rows of one would change which rows of the other are
counted. Both errors would cost more privacy than is charged.

    numbers    equal integers are the same person, whether they are stored as signed or unsigned
               integers of any width, as decimals or as floats
    floats     refused if they are so large that floats cannot represent all integers: from 2^53,
               from 2^24 for float32, from 2^11 for float16, and from 10^15 for workbooks, which
               store 15 digits
    texts      equal texts are the same person, so "07" and "7" are two persons; but "7.0", as
               programs write a float, is the person "7". Numbers with an exponent after a plus
               sign, such as "1.2E+11", are refused, because digits may have been dropped
    mixed      a source with both numbers and texts is refused: the text "07" and the number 7 may
               or may not be the same person
    missing    a row with None, NaN or an empty text has no person
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from engine._format import quote_public
from engine.errors import DataError, LimitExceeded

Words = npt.NDArray[np.uint64]
# 64-bit floats represent all integers below this number, but not all above it
FLOAT64_INTEGER_LIMIT = 2**53
# number of bytes of a float -> number below which floats of this size represent all integers
FLOAT_LIMITS = {2: 2**11, 4: 2**24, 8: FLOAT64_INTEGER_LIMIT}
KIND_ADVICE = "numbers and texts; give identifiers as text in all rows and all files"
# patterns of texts that a program wrote from a float; `database.HEX_NUMBER_PATTERN` must match the
# same texts
FROM_FLOAT = r"^-?(0|[1-9][0-9]*)\.0+$"
WITH_EXPONENT = r"^[+-]?[0-9]+([.,][0-9]*)?[eE]\+[0-9]+$"
# constants of the hash function SplitMix64
MIX = np.array([0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB], dtype=np.uint64)
# keys of the hash function of pandas, with 16 characters each; the identity of a text consists of
# its two 64-bit hashes with these keys
_HASH_KEYS = ("person, one of 2", "person, two of 2")
_AS_TEXT = "give identifiers as text, written from their source with all digits"
_MAX_DIGITS = 76  # maximum precision of an Arrow decimal


def identities(
    values: pa.Array | list[Any], column: str, limit: int = FLOAT64_INTEGER_LIMIT
) -> tuple[Words, Words, np.ndarray, str]:
    """Return the identity of the person of each row.

    Parameters
    ----------
    values : identifiers as a reader returns them, one per row.
    column : name of the column in messages.
    limit : floats of this size and larger are refused, because the source may have rounded them.

    Returns
    -------
    first_word, second_word : 64-bit integers that together identify the person, shape (rows,).
    has_person : whether the row has an identifier, shape (rows,).
    kind : "numbers" or "texts", the kind of the identifiers; "" if no row has an identifier.

    Raises
    ------
    DataError
        An identifier is neither an integer nor a text; some identifiers are integers and some are
        texts; an integer has more than 76 digits; or an identifier may have lost digits.
    """
    array = _of_objects(values, column, limit) if isinstance(values, list) else _decoded(values)
    types = pa.types
    if types.is_null(array.type):
        empty = np.zeros(len(array), dtype=np.uint64)
        return empty, empty, np.zeros(len(array), dtype=bool), ""
    if types.is_large_string(array.type):
        kind, people = "texts", _of_texts(array, column)
    elif types.is_floating(array.type):
        kind, people = "numbers", _of_floats(array, column, limit)
    elif types.is_integer(array.type) or types.is_decimal(array.type):
        kind, people = "numbers", _of_exact_numbers(array, column)
    else:
        raise DataError(
            f"{column} contains neither whole numbers nor texts; give identifiers as text"
        )
    # without any identifier the kind is "", because the same column may have another type in
    # another file of the records
    first_word, second_word, is_present = people
    return first_word, second_word, is_present, kind if is_present.any() else ""


def _decoded(values: pa.Array) -> pa.Array:
    """Decode dictionary and run-end encoding, and convert texts of any type to large_string.

    Other arrays are returned unchanged.
    """
    import pyarrow.compute as pc

    types = pa.types
    while types.is_dictionary(values.type) or types.is_run_end_encoded(values.type):
        encoded = types.is_dictionary(values.type)
        values = values.dictionary_decode() if encoded else pc.run_end_decode(values)
    is_text = types.is_string(values.type) or values.type == pa.string_view()
    return values.cast(pa.large_string()) if is_text else values


def _of_objects(values: list[Any], column: str, limit: int) -> pa.Array:
    """Convert identifiers from Python values to an Arrow array of texts or of integers.

    If all values are missing, the array has Arrow's type null.

    Parameters
    ----------
    column : name of the column in messages.
    limit : floats of this size and larger are refused.

    Raises
    ------
    DataError
        Some values are texts and some are numbers, or a value is neither; or `_digits` refuses a
        number.
    """
    import pandas as pd

    # the reader of workbooks returns an empty cell as an empty text, even in a column of numbers
    is_missing = (
        pd.api.types.is_scalar(value) and (pd.isna(value) or value == "") for value in values
    )
    present = [
        None if missing else value for missing, value in zip(is_missing, values, strict=True)
    ]
    kinds = {_kind(value) for value in present if value is not None}
    if not kinds:
        return pa.nulls(len(values))
    if kinds == {"text"}:
        return pa.array(present, pa.large_string())
    if kinds != {"number"}:
        has_others = "" in kinds
        fault = (
            "values that are neither numbers nor texts" if has_others else "both numbers and texts"
        )
        raise DataError(f"{column} contains {fault}; {_AS_TEXT}")
    digits = [None if value is None else _digits(value, column, limit) for value in present]
    return pa.array(
        [None if text is None else Decimal(text) for text in digits], pa.decimal256(_MAX_DIGITS, 0)
    )


def _kind(value: Any) -> str:
    if isinstance(value, str):
        return "text"
    is_number = isinstance(value, (int, float, Decimal, np.integer, np.floating))
    return "number" if is_number and not isinstance(value, bool) else ""


def _digits(value: Any, column: str, limit: int) -> str:
    """Return the decimal digits of an integer of any numeric type.

    Raises
    ------
    DataError
        The number has a fraction, or more than 76 digits, or is a float that may be rounded. A
        float may be rounded if its absolute value is at least `limit` or the limit of its type in
        `FLOAT_LIMITS`.
    """
    if isinstance(value, (float, np.floating)):
        width = int(value.dtype.itemsize) if isinstance(value, np.floating) else 8
        limit = min(limit, FLOAT_LIMITS.get(width, FLOAT64_INTEGER_LIMIT))
        if abs(float(value)) >= limit:
            raise DataError(_too_large(column, limit))
    # a Decimal such as 1E+1000000 must not be converted to an integer of a million digits
    is_long = isinstance(value, Decimal) and not (
        value.is_finite() and value.adjusted() < _MAX_DIGITS
    )
    number = 0 if is_long else int(value)
    if is_long or abs(number) >= 10**_MAX_DIGITS:
        raise DataError(f"{column} has numbers of more than {_MAX_DIGITS} digits; {_AS_TEXT}")
    if value != number:
        raise DataError(_not_integer_text(column))
    return str(number)


def _of_floats(values: pa.Array, column: str, limit: int) -> tuple[Words, Words, np.ndarray]:
    """Return first_word, second_word and has_person of `identities`, for integers stored as floats.

    Raises
    ------
    DataError
        A number has a fraction or may be rounded. It may be rounded if its absolute value is at
        least `limit` or the limit of its type in `FLOAT_LIMITS`.
    """
    limit = min(limit, FLOAT_LIMITS[values.type.bit_width // 8])
    # Arrow has no cast from float16 to float64
    floats = values.cast(pa.float32()) if values.type == pa.float16() else values
    numbers = np.asarray(floats.cast(pa.float64()).fill_null(np.nan))
    is_present = ~np.isnan(numbers)
    numbers = np.where(is_present, numbers, 0.0)
    if (np.abs(numbers) >= limit).any():
        raise DataError(_too_large(column, limit))
    if (np.floor(numbers) != numbers).any():
        raise DataError(_not_integer_text(column))
    word = numbers.astype(np.int64).view(np.uint64)
    return word, mix_bits(word), is_present


def _of_exact_numbers(values: pa.Array, column: str) -> tuple[Words, Words, np.ndarray]:
    """Return first_word, second_word and has_person of `identities`, for integers and decimals.

    The first word of an identity is the number itself if it fits in 64 bits, and a hash of its
    digits if not. The second word is always a hash.

    Raises
    ------
    DataError
        A decimal has a fraction.
    """
    import pyarrow.compute as pc

    is_present = np.asarray(values.is_valid())
    numbers = values
    if pa.types.is_decimal(values.type):
        numbers = pc.replace_substring_regex(_plain_digits(values), r"\.0*$", "")
        if pc.any(pc.match_substring(numbers, ".")).as_py():
            raise DataError(_not_integer_text(column))
    numbers = numbers.fill_null(pa.scalar(0).cast(numbers.type))
    with suppress(pa.ArrowInvalid):  # raised if a number needs more than 64 bits
        word = np.asarray(numbers.cast(pa.int64())).view(np.uint64)
        return word, mix_bits(word), is_present
    return *_of_long_numbers(np.asarray(numbers.cast(pa.string()), dtype=object)), is_present


def _of_long_numbers(digits: np.ndarray) -> tuple[Words, Words]:
    """Return the two words of the identities of integers of any size, given as texts."""
    first_word, second_word = _hashed(digits)
    # numbers that fit in 64 bits get the same two words as in a column without longer numbers, so
    # that a person has one identity in all files
    fits = np.array([-(2**63) <= int(text) < 2**63 for text in digits], dtype=bool)
    numbers = np.array([int(text) for text in digits[fits]], dtype=np.int64)
    first_word[fits] = numbers.view(np.uint64)
    second_word[fits] = mix_bits(first_word[fits])
    return first_word, second_word


def _plain_digits(values: pa.Array) -> pa.Array:
    """Return decimals as an array of texts without exponents."""
    # Arrow writes exponents only if the scale is negative or above 6
    if 0 <= values.type.scale <= 6:
        return values.cast(pa.string())
    return pa.array(
        [None if value is None else format(value, "f") for value in values.to_pylist()], pa.string()
    )


def _of_texts(values: pa.Array, column: str) -> tuple[Words, Words, np.ndarray]:
    """Return first_word, second_word and has_person of `identities`, for texts.

    A text such as "7.0", which a program wrote from a float, has the identity of "7".

    Raises
    ------
    DataError
        A text such as "1.2E+11" may have lost digits; or a text such as "7.0" is a number of 2^53
        or more.
    """
    import pyarrow.compute as pc

    if pc.any(pc.match_substring_regex(values, WITH_EXPONENT)).as_py():
        raise DataError(
            f"{column} has numbers with an exponent, such as 1E+11, which may have lost digits;"
            f" {_AS_TEXT}"
        )
    is_from_float = pc.match_substring_regex(values, FROM_FLOAT)
    if pc.any(is_from_float).as_py():
        integers = pc.replace_substring_regex(values, r"\.0+$", "")
        # An integer of more than 17 characters (a sign and 16 digits) is beyond 2^53. The length is
        # tested first, because `int` raises an error for texts of thousands of digits.
        if any(
            len(text) > 17 or abs(int(text)) >= FLOAT64_INTEGER_LIMIT
            for text in integers.filter(is_from_float).to_pylist()
        ):
            raise DataError(_too_large(column, FLOAT64_INTEGER_LIMIT))
        integers = pc.if_else(pc.equal(integers, "-0"), "0", integers)
        values = pc.if_else(is_from_float, integers, values)
    texts = np.asarray(values.fill_null(""), dtype=object)
    return *_hashed(texts), texts != ""


def _hashed(texts: np.ndarray) -> tuple[Words, Words]:
    """Return the two 64-bit hashes of each text, each of shape (texts,)."""
    import pandas as pd

    first_word, second_word = (
        pd.util.hash_array(texts, hash_key=key, categorize=False) for key in _HASH_KEYS
    )
    return first_word, second_word


def _not_integer_text(column: str) -> str:
    return f"{column} has numbers that are not whole; {_AS_TEXT}"


def _too_large(column: str, limit: int) -> str:
    size = {10**15: "10^15"}.get(limit, f"2^{limit.bit_length() - 1}")
    return (
        f"{column} has floating-point numbers of {size} or more, for which different identifiers"
        f" may be rounded to the same number; {_AS_TEXT}"
    )


def mix_bits(words: Words) -> Words:
    """Return a 64-bit hash of each word: the output function of the generator SplitMix64."""
    out: Words = words + MIX[0]
    out = (out ^ (out >> np.uint64(30))) * MIX[1]
    out = (out ^ (out >> np.uint64(27))) * MIX[2]
    out ^= out >> np.uint64(31)
    return out


# `PersonCap` drops surplus rows again when it holds more than this number of rows plus twice the
# number of rows that it retained the last time.
ROWS_BETWEEN_SELECTIONS = 1 << 20
NO_PERSON = "without a person"


class PersonCap:
    """Collector of rows that selects the first k rows of each person, in the order of row hashes.

    Parameters
    ----------
    column : name of the person column.
    rows : k, the largest number of counted rows per person.
    memory_limit : largest number of bytes for sorting the retained rows.
    """

    def __init__(self, column: str, rows: int, memory_limit: int) -> None:
        self.column, self.rows, self.memory_limit = column, rows, memory_limit
        self.n_rows_read = 0
        self.n_without_person = 0
        # number of persons whose rows were counted by a database, because the cap does not limit
        # them
        self.people_in_database = 0
        # "numbers" or "texts", the kind of all identifiers; "" before the first identifier
        self._kind = ""
        # one array of shape (3, rows) per batch: the two 64-bit words that identify each person,
        # and the hash of each row
        self._keys: list[np.ndarray] = []
        # for each batch, one array of cell codes per attribute
        self._codes: list[list[np.ndarray]] = []
        # number of rows in memory now, and after the last selection
        self._n_rows, self._n_sorted = 0, 0
        # position of each sorted row among the rows of its person, from 0
        self._ranks = np.zeros(0, np.intp)

    def take(
        self,
        persons: pa.Array | list[Any],
        codes: Sequence[np.ndarray],
        limit: int = FLOAT64_INTEGER_LIMIT,
    ) -> None:
        """Add a batch of rows.

        Parameters
        ----------
        persons : identifier of the person of each row.
        codes : cell codes of every attribute of the schema, one array of shape (rows,) each.
        limit : floats of this size and larger are refused as identifiers.

        Raises
        ------
        DataError
            `identities` refuses an identifier; or identifiers of one batch are texts and
            identifiers of another batch are numbers.
        LimitExceeded
            Sorting the retained rows needs more bytes than the memory limit.
        """
        first_word, second_word, has_person, kind = identities(
            persons, f"the person column {quote_public(self.column)}", limit
        )
        # the text "07" may or may not mean the number 7, so the kinds must not be mixed
        if kind and self._kind not in ("", kind):
            raise DataError(f"the person column {quote_public(self.column)} mixes {KIND_ADVICE}")
        self._kind = self._kind or kind
        self.n_rows_read += len(has_person)
        self.n_without_person += int(len(has_person) - has_person.sum())
        row_hash = mix_bits(first_word ^ second_word)
        for i, column in enumerate(codes):
            # a multiple of the attribute's index is added, so that equal cell codes of two
            # attributes have different hashes
            column_hash = mix_bits(column.astype(np.int64).view(np.uint64) + i * MIX[:1])
            row_hash = mix_bits(row_hash ^ column_hash)
        self._keys.append(np.stack([first_word, second_word, row_hash])[:, has_person])
        self._codes.append([column[has_person] for column in codes])
        self._n_rows += int(has_person.sum())
        if self._n_rows > 2 * self._n_sorted + ROWS_BETWEEN_SELECTIONS:
            self._sort_and_cut()

    def retained_codes(self) -> list[np.ndarray]:
        """Return the cell codes of the counted rows: of each person, the k rows of smallest hash.

        Returns
        -------
        One array of shape (counted rows,) per attribute; an empty list if `take` was not called.
        """
        self._sort_and_cut()
        return [column[self._ranks < self.rows] for codes in self._codes for column in codes]

    @property
    def people(self) -> int:
        """Number of persons with at least one row."""
        self._sort_and_cut()
        return int((self._ranks == 0).sum()) + self.people_in_database

    @property
    def people_over(self) -> int:
        """Number of persons with more than k rows."""
        self._sort_and_cut()
        return int((self._ranks == self.rows).sum())

    @property
    def rows_over(self) -> int:
        """Number of rows that are not counted because k rows of their person are counted."""
        self._sort_and_cut()
        return self.n_rows_read - self.n_without_person - int((self._ranks < self.rows).sum())

    def _sort_and_cut(self) -> None:
        """Sort the rows by person and hash, and drop all but the first k + 1 rows per person.

        Raises LimitExceeded if sorting needs more memory than the limit.
        """
        # no row was added since the last selection
        if len(self._keys) <= 1 and self._n_rows == self._n_sorted:
            return
        keys = np.concatenate(self._keys, axis=1)
        codes = [np.concatenate(columns) for columns in zip(*self._codes, strict=True)]
        # Sort by the two 64-bit words that identify the person, then by the hash of the row. Rows
        # of one person with equal hashes have equal cells, so their order does not matter.
        order = np.lexsort(keys[::-1])
        keys = keys[:, order]
        is_first_of_person = np.ones(keys.shape[1], dtype=bool)
        is_first_of_person[1:] = (keys[:2, 1:] != keys[:2, :-1]).any(axis=0)
        positions = np.arange(keys.shape[1])
        # The rank of a row is its distance from the first row of its person. The position of the
        # first row is the largest position, up to this row, at which a person begins.
        ranks = positions - np.maximum.accumulate(np.where(is_first_of_person, positions, 0))
        # row k + 1 is retained, because it shows that the person has more than k rows
        is_retained = ranks <= self.rows
        self._ranks = ranks[is_retained]
        self._keys = [keys[:, is_retained]]
        self._codes = [[column[order[is_retained]] for column in codes]]
        self._n_rows = self._n_sorted = len(self._ranks)
        size = self._keys[0].nbytes + sum(column.nbytes for column in self._codes[0])
        # while rows are sorted, memory holds three copies of them
        if 3 * size > self.memory_limit:
            raise LimitExceeded(
                f"Selecting {self.rows:,} rows per person needs about {3 * size:,} bytes of"
                f" memory, but memory_limit is {self.memory_limit:,.0f} bytes. Raise"
                " memory_limit, or allow fewer rows per person."
            )
