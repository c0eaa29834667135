"""Delimited text files as record batches.

The delimiter is detected from the header line, whose names are public, and the encoding is UTF-8,
unless a `TextFile` specifies them.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.csv

from engine._format import csv_start, header_name, quote_public
from engine.errors import DataError
from engine.records.batches import Batch, check_columns, cut_batches, without_values
from engine.records.compression import open_decompressed

CSV_BLOCK = 4_000_000
MAX_COLUMNS = 50_000
HEAD = 2**16  # bytes that are read to detect the delimiter; the header line ends within them

_RAGGED = re.compile(r"CSV parse error: (?:Row #(\d+): )?Expected (\d+) columns, got (\d+)")
_BLANKS_BETWEEN = re.compile(r'\ufeff?"[^"\r\n]*"( "[^"\r\n]*")+\r?\n')
_REASONS = {
    "Empty CSV file": "is empty; give a header line and rows",
    "CSV parse error: Empty CSV file": "has no rows; give a header line, its line end, and rows",
    "straddling object": f"has a row of more than {CSV_BLOCK:,} bytes; is a quote not closed?",
}
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class TextFile:
    """CSV file with explicit delimiter or encoding.

    Attributes
    ----------
    path : path of the file.
    delimiter : one character between fields; None to detect it from the header line.
    encoding : name of a Python text encoding.

    Examples
    --------

    >>> TextFile(path="survey.csv", delimiter=";", encoding="latin-1").encoding
    'latin-1'
    """

    path: str | Path
    delimiter: str | None = None
    encoding: str = "utf-8"

    def __post_init__(self) -> None:
        """Raise DataError for an invalid delimiter or an unknown text encoding."""
        delimiter = self.delimiter
        if delimiter is not None and (len(delimiter) != 1 or delimiter in '"\r\n' or delimiter > "~"):
            raise DataError(f"the delimiter is {quote_public(delimiter)}; give one character, like ';'")
        try:
            is_text_encoding = codecs.lookup(self.encoding)._is_text_encoding
        except (LookupError, TypeError):
            is_text_encoding = False
        if not is_text_encoding:
            raise DataError(f"there is no encoding {quote_public(self.encoding)}; give one like 'latin-1' or 'utf-8'")


def csv_batches(text: TextFile, names: Sequence[str], rows: int) -> Iterator[Batch]:
    """Yield the named columns of a CSV file; raise DataError if any part of it is malformed."""
    header = _header(text)
    check_columns([header_name(name) for name in header], names, quote=False)
    fields = [next(field for field in header if header_name(field) == name) for name in names]
    with _CsvFile(text) as file:
        reader = file.guarded(lambda: file.open(fields or header[:1]))
        while (batch := file.guarded(lambda: next(reader, None))) is not None:
            for columns, count in cut_batches(batch, fields, rows):
                yield Batch(columns=columns, rows=count, fraction=file.fraction())
        file.guarded(file.finish)


def csv_names(text: TextFile) -> list[str]:
    """Return the column names in the header of a CSV file."""
    return list(map(header_name, _header(text)))


def _header(text: TextFile) -> list[str]:
    """Return the fields of the header line, unchanged."""
    with _CsvFile(text) as file:
        fields: list[str] = file.guarded(lambda: file.open(()).schema.names)
    return fields


class _CsvFile:
    """Readable file object for Arrow that decompresses, decodes and checks a CSV file.

    Arrow accepts misplaced quotes. A quote that is never closed, or closed in the middle of a field,
    then merges all lines in between into one value, and their rows are lost without an error. So the
    quotes of all bytes are checked here: in a well-formed file they open and close alternately, at
    the ends of fields, or occur in pairs inside.
    """

    def __init__(self, text: TextFile) -> None:
        self.path = Path(text.path)
        self.what = f"the file {quote_public(self.path.name)}"
        self.size = max(1, self.path.stat().st_size)
        self.encoding, self.delimiter = text.encoding, text.delimiter
        self.malformed = ""
        self.quotes, self.lines, self.tail = 0, 1, b""

    def __enter__(self) -> _CsvFile:
        self.raw, self.unpacked = without_values(lambda: open_decompressed(self.path), self.what)
        try:
            start = self.guarded(lambda: self.unpacked.read(HEAD))
            self.decoder = codecs.getincrementaldecoder(self.encoding)() if self._needs_decoding else None
            self.pending = self._to_utf8(start)
            self._read_start()
        except BaseException:
            self.raw.close()
            raise
        return self

    def _read_start(self) -> None:
        """Skip a line ``sep=;`` and find the delimiter."""
        text = self.pending.decode("utf-8", "replace")
        is_tsv = ".tsv" in (suffix.lower() for suffix in self.path.suffixes[-2:])
        content, delimiter = csv_start(text, preferred="\t" if is_tsv else "")
        if len(content) < len(text):
            self.pending = self.pending[len(text[: len(text) - len(content)].encode()) :]
            self.lines += 1
        if self.delimiter is None and _BLANKS_BETWEEN.match(content):
            raise DataError(
                f"{self.what} separates fields by blanks, as R's write.table does; write it with commas between "
                "the fields and without row names, or give the delimiter"
            )
        self.delimiter = self.delimiter or delimiter

    def __exit__(self, *_: object) -> None:
        self.raw.close()

    @property
    def _needs_decoding(self) -> bool:
        return codecs.lookup(self.encoding).name not in ("utf-8", "ascii")

    @property
    def closed(self) -> bool:
        return self.raw.closed

    def read(self, size: int = -1) -> bytes:
        # Arrow treats a short block as the end of a row, so decoded blocks are filled up to `size`
        while len(self.pending) < size or size < 0:
            block = self.unpacked.read(size)
            self.pending += self._to_utf8(block)
            if not block:
                break
        cut = len(self.pending) if size < 0 else size
        content, self.pending = self.pending[:cut], self.pending[cut:]
        separator = (self.delimiter or ",").encode()
        if not self.tail and content.lstrip().partition(b"\n")[0].count(separator) >= MAX_COLUMNS:
            raise DataError(f"{self.what} has more than {MAX_COLUMNS:,} columns; leave out those that no table needs")
        if content:
            self._check_quotes(content)
        return content

    def _to_utf8(self, block: bytes) -> bytes:
        if self.decoder is None:
            return block
        try:
            return self.decoder.decode(block, final=not block).encode()
        except UnicodeError:
            self.malformed = f"{self.what} is not in the encoding {self.encoding}"
            return b""

    def finish(self) -> None:
        """Check the quotes up to the end of the file."""
        self._check_quotes(b"\n")
        if self.quotes % 2 and not self.malformed:
            self.malformed = f"a quote of {self.what} is not closed, so that rows would be lost"

    def _check_quotes(self, block: bytes) -> None:
        # checking a quote needs the bytes on both sides, so the last two bytes are checked with the
        # next block
        text = (self.tail or b"\n") + (block if self.tail else block.removeprefix(codecs.BOM_UTF8))
        data = np.frombuffer(text, np.uint8)
        positions = np.flatnonzero(data[1:-1] == ord('"')) + 1
        opening = (np.arange(len(positions)) + self.quotes) % 2 == 0
        outer_neighbours = data[np.where(opening, positions - 1, positions + 1)]
        misplaced = positions[~np.isin(outer_neighbours, list(f'{self.delimiter}\r\n"'.encode()))]
        if len(misplaced) and not self.malformed:
            line = self.lines + text[1 : misplaced[0]].count(b"\n")
            self.malformed = f"line {line:,} of {self.what} has a quote in the middle of a field"
        self.quotes, self.lines, self.tail = (
            self.quotes + len(positions),
            self.lines + text[1:-1].count(b"\n"),
            text[-2:],
        )

    def fraction(self) -> float:
        """Return the fraction of the bytes on disk read so far."""
        return min(1.0, self.raw.tell() / self.size)

    def open(self, names: Sequence[str]) -> pa.RecordBatchReader:
        """Open the named columns, or all without names, as texts: "01" and "NA" are unchanged."""
        return pa.csv.open_csv(
            self,
            # with several threads, Arrow cannot report the number of a malformed row
            read_options=pa.csv.ReadOptions(block_size=CSV_BLOCK, use_threads=False),
            parse_options=pa.csv.ParseOptions(newlines_in_values=True, delimiter=self.delimiter or ","),
            convert_options=pa.csv.ConvertOptions(
                include_columns=list(names),
                column_types={name: pa.string() for name in names},
            ),
        )

    def _explain_error(self, error: Exception) -> str:
        """Describe a ragged row by the numbers in Arrow's message, without the row that follows them."""
        match = _RAGGED.match(str(error))
        if match is None:
            reason_text = next((reason for head, reason in _REASONS.items() if str(error).startswith(head)), "")
            return f"{self.what} {reason_text}" if reason_text else ""
        row, expected, actual = match.groups()
        where = f"row {row} (the header is row 1, blank lines do not count)" if row else "a row"
        advice = "correct the file"
        if row == "2" and expected == "1":
            advice = "if the first line is a title or a comment, delete it; otherwise correct the file"
        elif row == "2" and int(actual) == int(expected) + 1:
            advice = (
                "row names without a name in the header, as R's write.table writes them, are one reason, and a "
                "delimiter at the end of every row is another: write the file with row.names=FALSE, or delete it"
            )
        elif row == "2" and int(actual) == int(expected) - 1:
            advice = "if the header ends in a delimiter, delete it there; otherwise correct the file"
        return f"{where} of {self.what} has {actual} fields, not {expected}; {advice}"

    def guarded(self, action: Callable[[], _T]) -> _T:
        """Return the result of an action, or raise a DataError with the place of the malformed text."""
        try:
            result, problem = without_values(action, self.what, self._explain_error), ""
        except DataError as error:
            problem = str(error)
        if not problem and not self.malformed:
            return result
        line = None if self._needs_decoding else without_values(self._first_undecodable_line, self.what)
        if line is not None:
            problem = f"line {line:,} of {self.what} is not UTF-8; save the file as UTF-8, or give its encoding"
        elif self.malformed:
            problem = f"{self.malformed}; correct the file"
        raise DataError(problem)

    def _first_undecodable_line(self) -> int | None:
        """Return the number of the first line that is not UTF-8, or None."""
        decoder, lines = codecs.getincrementaldecoder("utf-8")(), 1
        raw, inside = open_decompressed(self.path)
        with raw:
            while block := inside.read(2**20):
                try:
                    decoder.decode(block)
                except UnicodeDecodeError as error:
                    return int(lines + block[: error.start].count(b"\n"))
                lines += block.count(b"\n")
        return None
