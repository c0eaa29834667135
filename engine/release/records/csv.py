"""CSV files, packed or not -> batches of texts, or an exact reason why the file is malformed."""

from __future__ import annotations

import codecs
import gzip
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.csv

from engine.errors import DataError
from engine.release.records.batches import Batch, check_columns, cut_batches, tried
from engine.texts import shown

CSV_BLOCK = 4_000_000
MAX_COLUMNS = 50_000

_RAGGED = re.compile(r"CSV parse error: (?:Row #(\d+): )?Expected (\d+) columns, got (\d+)")
_REASONS = {
    "Empty CSV file": "is empty; give a header line and rows",
    "CSV parse error: Empty CSV file": "has no rows; give a header line, its line end, and rows",
    "straddling object": f"has a row of more than {CSV_BLOCK:,} bytes; is a quote not closed?",
}
_T = TypeVar("_T")


def csv_batches(path: Path, names: Sequence[str], rows: int) -> Iterator[Batch]:
    """The named columns of a CSV file, batch by batch.  Raises: DataError when it is malformed anywhere."""
    found = csv_names(path)
    check_columns(found, names, quote=False)
    with _CsvFile(path) as file:
        reader = file.guarded(lambda: file.open(names or found[:1]))
        while (batch := file.guarded(lambda: next(reader, None))) is not None:
            for columns, count in cut_batches(batch, names, rows):
                yield Batch(columns=columns, rows=count, fraction=file.fraction())
        file.guarded(file.finish)


def csv_names(path: Path) -> list[str]:
    """The names in the head of a CSV file."""
    with _CsvFile(path) as file:
        found: list[str] = file.guarded(lambda: file.open(()).schema.names)
    return found


class _CsvFile:
    """A CSV file, packed or not, as the readable object that Arrow asks for; it finds out where it is malformed.

    Arrow takes any quotes.  One that is never closed, or closed in the middle of a field, then makes a single value of
    all the lines between, and their rows are gone in silence.  So quotes are checked here as the bytes go by: in a
    well-formed file they open and close in turn, at the ends of fields, or stand in pairs inside.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.what = path, f"the file {shown(path.name)}"
        self.size = max(1, path.stat().st_size)
        self.malformed = ""
        self.quotes, self.lines, self.kept = 0, 1, b""

    def __enter__(self) -> _CsvFile:
        self.raw, self.unpacked = self._opened()
        return self

    def __exit__(self, *_: object) -> None:
        self.raw.close()

    def _opened(self) -> tuple[BinaryIO, BinaryIO | gzip.GzipFile]:
        raw = self.path.open("rb")
        return raw, gzip.GzipFile(fileobj=raw) if self.path.suffix.lower() == ".gz" else raw

    @property
    def closed(self) -> bool:
        return self.raw.closed

    def read(self, size: int = -1) -> bytes:
        found = self.unpacked.read(size)
        if not self.kept and found.lstrip().partition(b"\n")[0].count(b",") >= MAX_COLUMNS:
            raise DataError(f"{self.what} has more than {MAX_COLUMNS:,} columns; leave out those that no table needs")
        if found:
            self._follow(found)
        return found

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
        wrong = places[~np.isin(data[np.where(opening, places - 1, places + 1)], list(b',\r\n"'))]
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
            parse_options=pa.csv.ParseOptions(newlines_in_values=True),
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
        return f"{where} of {self.what} has {given} fields, not {wanted}; correct the file"

    def guarded(self, action: Callable[[], _T]) -> _T:
        """Result of reading, or a DataError that says where the file is malformed."""
        try:
            found, problem = tried(action, self.what, self._explained), ""
        except DataError as error:
            problem = str(error)
        if not problem and not self.malformed:
            return found
        line = tried(self._undecodable, self.what)
        if line is not None:
            problem = f"line {line:,} of {self.what} is not UTF-8; save the file as UTF-8"
        elif self.malformed:
            problem = f"{self.malformed}; correct the file"
        raise DataError(problem)

    def _undecodable(self) -> int | None:
        """Number of the first line with bytes that are not UTF-8."""
        decoder, lines = codecs.getincrementaldecoder("utf-8")(), 1
        raw, unpacked = self._opened()
        with raw:
            while block := unpacked.read(2**20):
                try:
                    decoder.decode(block)
                except UnicodeDecodeError as error:
                    return lines + block[: error.start].count(b"\n")
                lines += block.count(b"\n")
        return None
