"""Delimited text as record batches.

What separates fields is read off the head, whose names are public, and the encoding is UTF-8, unless a `TextFile` says
otherwise.
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

from engine._format import csv_start, header_name, shown
from engine.errors import DataError
from engine.records.batches import Batch, check_columns, cut_batches, tried
from engine.records.compression import unpacked

CSV_BLOCK = 4_000_000
MAX_COLUMNS = 50_000
HEAD = 2**16  # bytes in which the names end, for what separates them

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
    """A CSV file of which is known what its name and head do not tell.

    Fields: `path`; `delimiter`, one character between fields, None to read it off the head; `encoding`, as Python names
    it.

    >>> TextFile(path="survey.csv", delimiter=";", encoding="latin-1").encoding
    'latin-1'
    """

    path: str | Path
    delimiter: str | None = None
    encoding: str = "utf-8"

    def __post_init__(self) -> None:
        """Raise DataError for what separates no fields, or is no encoding of text."""
        one = self.delimiter
        if one is not None and (len(one) != 1 or one in '"\r\n' or one > "~"):
            raise DataError(f"the delimiter was given as {shown(one)}; give one character, like ';'")
        try:
            known = codecs.lookup(self.encoding)._is_text_encoding
        except (LookupError, TypeError):
            known = False
        if not known:
            raise DataError(f"there is no encoding {shown(self.encoding)}; give one like 'latin-1' or 'utf-8'")


def csv_batches(text: TextFile, names: Sequence[str], rows: int) -> Iterator[Batch]:
    """The named columns of a CSV file, batch by batch.  Raises: DataError when it is malformed anywhere."""
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
    """The names in the head of a CSV file."""
    return list(map(header_name, _header(text)))


def _header(text: TextFile) -> list[str]:
    """The fields of the head, as they are."""
    with _CsvFile(text) as file:
        fields: list[str] = file.guarded(lambda: file.open(()).schema.names)
    return fields


class _CsvFile:
    """A CSV file, packed or not, as the readable object that Arrow asks for; it finds out where it is malformed.

    Arrow takes any quotes.  One that is never closed, or closed in the middle of a field, then makes a single value of
    all the lines between, and their rows are gone in silence.  So quotes are checked here as the bytes go by: in a
    well-formed file they open and close in turn, at the ends of fields, or stand in pairs inside.
    """

    def __init__(self, text: TextFile) -> None:
        self.path = Path(text.path)
        self.what = f"the file {shown(self.path.name)}"
        self.size = max(1, self.path.stat().st_size)
        self.encoding, self.delimiter = text.encoding, text.delimiter
        self.malformed = ""
        self.quotes, self.lines, self.kept = 0, 1, b""

    def __enter__(self) -> _CsvFile:
        self.raw, self.unpacked = tried(lambda: unpacked(self.path), self.what)
        try:
            start = self.guarded(lambda: self.unpacked.read(HEAD))
            self.decoder = codecs.getincrementaldecoder(self.encoding)() if self._foreign else None
            self.pending = self._in_utf8(start)
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
    def _foreign(self) -> bool:
        return codecs.lookup(self.encoding).name not in ("utf-8", "ascii")

    @property
    def closed(self) -> bool:
        return self.raw.closed

    def read(self, size: int = -1) -> bytes:
        # a block that is short for no other reason than its encoding would cut rows where Arrow expects none cut
        while len(self.pending) < size or size < 0:
            block = self.unpacked.read(size)
            self.pending += self._in_utf8(block)
            if not block:
                break
        cut = len(self.pending) if size < 0 else size
        found, self.pending = self.pending[:cut], self.pending[cut:]
        separator = (self.delimiter or ",").encode()
        if not self.kept and found.lstrip().partition(b"\n")[0].count(separator) >= MAX_COLUMNS:
            raise DataError(f"{self.what} has more than {MAX_COLUMNS:,} columns; leave out those that no table needs")
        if found:
            self._follow(found)
        return found

    def _in_utf8(self, block: bytes) -> bytes:
        if self.decoder is None:
            return block
        try:
            return self.decoder.decode(block, final=not block).encode()
        except UnicodeError:
            self.malformed = f"{self.what} is not in the encoding {self.encoding}"
            return b""

    def finish(self) -> None:
        """Check the quotes up to the end of the file."""
        self._follow(b"\n")
        if self.quotes % 2 and not self.malformed:
            self.malformed = f"a quote of {self.what} is not closed, so that rows would be lost"

    def _follow(self, block: bytes) -> None:
        # A quote is judged by the bytes on both sides, so the last two bytes wait for the next block.
        text = (self.kept or b"\n") + (block if self.kept else block.removeprefix(codecs.BOM_UTF8))
        data = np.frombuffer(text, np.uint8)
        places = np.flatnonzero(data[1:-1] == ord('"')) + 1
        opening = (np.arange(len(places)) + self.quotes) % 2 == 0
        beside = data[np.where(opening, places - 1, places + 1)]
        wrong = places[~np.isin(beside, list(f'{self.delimiter}\r\n"'.encode()))]
        if len(wrong) and not self.malformed:
            line = self.lines + text[1 : wrong[0]].count(b"\n")
            self.malformed = f"line {line:,} of {self.what} has a quote in the middle of a field"
        self.quotes, self.lines, self.kept = self.quotes + len(places), self.lines + text[1:-1].count(b"\n"), text[-2:]

    def fraction(self) -> float:
        """Share of the bytes on disk read so far."""
        return min(1.0, self.raw.tell() / self.size)

    def open(self, names: Sequence[str]) -> pa.RecordBatchReader:
        """The named columns, all when there are none, as texts: "01" stays "01", "NA" stays "NA"."""
        return pa.csv.open_csv(
            self,
            # One thread, because only then Arrow knows the number of a malformed row.
            read_options=pa.csv.ReadOptions(block_size=CSV_BLOCK, use_threads=False),
            parse_options=pa.csv.ParseOptions(newlines_in_values=True, delimiter=self.delimiter or ","),
            convert_options=pa.csv.ConvertOptions(
                include_columns=list(names),
                column_types={name: pa.string() for name in names},
            ),
        )

    def _explained(self, error: Exception) -> str:
        """Numbers from the head of Arrow's message on a ragged row; the row itself comes after them."""
        found = _RAGGED.match(str(error))
        if found is None:
            known = next((reason for head, reason in _REASONS.items() if str(error).startswith(head)), "")
            return f"{self.what} {known}" if known else ""
        row, wanted, given = found.groups()
        where = f"row {row} (the header is row 1, blank lines do not count)" if row else "a row"
        advice = "correct the file"
        if row == "2" and wanted == "1":
            advice = "if the first line is a title or a comment, delete it; otherwise correct the file"
        elif row == "2" and int(given) == int(wanted) + 1:
            advice = (
                "row names without a name in the header, as R's write.table writes them, are one reason, and a "
                "delimiter at the end of every row is another: write the file with row.names=FALSE, or delete it"
            )
        elif row == "2" and int(given) == int(wanted) - 1:
            advice = "if the header ends in a delimiter, delete it there; otherwise correct the file"
        return f"{where} of {self.what} has {given} fields, not {wanted}; {advice}"

    def guarded(self, action: Callable[[], _T]) -> _T:
        """Result of reading, or a DataError that says where the file is malformed."""
        try:
            found, problem = tried(action, self.what, self._explained), ""
        except DataError as error:
            problem = str(error)
        if not problem and not self.malformed:
            return found
        line = None if self._foreign else tried(self._undecodable, self.what)
        if line is not None:
            problem = f"line {line:,} of {self.what} is not UTF-8; save the file as UTF-8, or give its encoding"
        elif self.malformed:
            problem = f"{self.malformed}; correct the file"
        raise DataError(problem)

    def _undecodable(self) -> int | None:
        """Number of the first line with bytes that are not UTF-8."""
        decoder, lines = codecs.getincrementaldecoder("utf-8")(), 1
        raw, inside = unpacked(self.path)
        with raw:
            while block := inside.read(2**20):
                try:
                    decoder.decode(block)
                except UnicodeDecodeError as error:
                    return int(lines + block[: error.start].count(b"\n"))
                lines += block.count(b"\n")
        return None
