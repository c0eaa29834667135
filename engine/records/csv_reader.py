"""Readers of delimited and compressed text files, and size checks of Arrow files.

A `TextFile` specifies the delimiter and the encoding of a file. By default the delimiter is
detected from the header line, whose names are public, and the encoding is UTF-8. An Arrow file is
refused before it is read if one of its batches would decompress to too many bytes.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import re
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from struct import calcsize, unpack
from typing import Any, BinaryIO, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.csv

from engine._format import csv_start, header_name, quote_public
from engine.errors import DataError, LimitExceeded
from engine.records.batches import Batch, check_columns, cut_batches, without_values

COMPRESSED_ENDINGS = (".gz", ".zst", ".zip", ".bz2")
BINARY_SIGNATURES = {
    b"%PDF": "a PDF document",
    b"PK\x03\x04": "a zip archive or a workbook",
    b"\xd0\xcf\x11\xe0": "a document of an old Office version",
    b"\x1f\x8b": "a file compressed with gzip",
    b"\x28\xb5\x2f\xfd": "a file compressed with zstd",
    b"PAR1": "a Parquet file",
    b"ARROW1": "an Arrow file",
    b"SQLite format 3": "an SQLite database",
    b"\x89PNG": "an image",
    b"\xff\xd8\xff": "an image",
}
MAX_SIGNATURE_BYTES = max(map(len, BINARY_SIGNATURES))
BLOCK = 2**20  # number of bytes that are read at once
MAX_DECOMPRESSED_BYTES = 400_000_000  # limit of the decompressed columns of one batch
MAGIC, CONTINUATION = b"ARROW1", 0xFFFFFFFF  # first bytes of an Arrow file and of each message
_DICTIONARY, _BATCH = 2, 3  # types of the messages that contain values


def open_decompressed(path: Path) -> tuple[BinaryIO, Any]:
    """Open a text file, which may be compressed.

    Returns
    -------
    raw : open file, which the caller must close.
    stream : stream of the decompressed content.

    Raises
    ------
    DataError
        The file is an archive that does not contain exactly one file, or its content is not text.
    """
    with path.open("rb") as raw:
        first_bytes = _decompressed(path, raw).read(MAX_SIGNATURE_BYTES)
    for mark, kind in BINARY_SIGNATURES.items():
        if first_bytes.startswith(mark):
            raise DataError(
                f"the file {quote_public(path.name)} contains {kind}, but its ending names a text"
                " format; correct the ending, or save the records as text"
            )
    raw = path.open("rb")
    return raw, _decompressed(path, raw)


def _decompressed(path: Path, raw: BinaryIO) -> Any:
    """Return a stream of the decompressed content of an open file.

    The ending of ``path`` names the compression.
    """
    ending = path.suffix.lower()
    if ending == ".gz":
        return gzip.GzipFile(fileobj=raw)
    if ending == ".bz2":
        return bz2.BZ2File(raw)
    if ending == ".zst":
        return pa.CompressedInputStream(pa.PythonFile(raw, "r"), "zstd")
    if ending == ".zip":
        archive = zipfile.ZipFile(raw)
        members = [
            member
            for member in archive.infolist()
            # macOS adds a folder with metadata to archives
            if not member.is_dir() and not member.filename.startswith("__MACOSX/")
        ]
        if len(members) != 1:
            raise DataError(
                f"the archive {quote_public(path.name)} contains {len(members):,} files; an archive"
                " of records must contain exactly one. Pack each file separately"
            )
        return archive.open(members[0])
    return raw


def read_lines(file: Any, most: int, what: str) -> Iterator[bytes]:
    """Yield the lines of a file without the newline characters.

    Parameters
    ----------
    file : binary file.
    most : largest length of a line in bytes.
    what : name of the file in messages.

    Raises
    ------
    DataError
        A line is too long. Lengths are checked only at the end of each block of `BLOCK` bytes, so a
        line of more than `most` and less than `most` + `BLOCK` bytes may be accepted.
    """
    incomplete_line = b""
    while block := file.read(BLOCK):
        *lines, incomplete_line = (incomplete_line + block).split(b"\n")
        if len(incomplete_line) > most:
            raise DataError(
                f"{what} has a line of more than {most:,} bytes; write one record per line"
            )
        yield from lines
    if incomplete_line:
        yield incomplete_line


def is_arrow_file(file: pa.NativeFile) -> bool:
    """Return whether a file has the Arrow file format, with a footer that lists its messages.

    The result is False for an Arrow stream, which has no footer.
    """
    if file.size() < 2 * len(MAGIC):
        return False
    bytes_of = _Bytes(file)
    return bytes_of.at(0, len(MAGIC)) == bytes_of.at(file.size() - len(MAGIC), len(MAGIC)) == MAGIC


def check_arrow(file: pa.NativeFile, name: str) -> None:
    """Check that every batch of an Arrow file or stream decompresses to a limited number of bytes.

    The Arrow reader decompresses all columns of a batch at once, and all dictionaries stay in
    memory. In the file, the decompressed length precedes each compressed buffer. This function sums
    these lengths without decompressing the buffers. It examines the same messages as the reader: in
    a file the messages that the footer lists, in a stream all messages.

    Raises
    ------
    LimitExceeded
        A batch together with the dictionaries needs more than `MAX_DECOMPRESSED_BYTES`.
    DataError
        The footer lists a position at which there is no message.
    """
    reader = _Bytes(file)
    messages = _listed_messages(reader, name) if is_arrow_file(file) else _streamed_messages(reader)
    dictionary_bytes = 0
    for start, body in messages:
        kind, message_bytes, _ = _message_sizes(reader, start, body)
        if kind == _DICTIONARY:
            dictionary_bytes += message_bytes
            needed_bytes = dictionary_bytes
        else:
            needed_bytes = dictionary_bytes + message_bytes
        if needed_bytes > MAX_DECOMPRESSED_BYTES:
            raise LimitExceeded(
                f"a batch of {quote_public(name)} and its dictionaries decompress to"
                f" {needed_bytes:,} bytes; at most {MAX_DECOMPRESSED_BYTES:,} are allowed. Write"
                " the file again with fewer rows per batch, or with shorter dictionaries"
            )


class _Bytes:
    """Reader of bytes and numbers at given positions of a file."""

    def __init__(self, file: pa.NativeFile):
        self.file = file

    def at(self, position: int, size: int) -> bytes:
        """Return the `size` bytes that start at a position."""
        self.file.seek(position)
        return bytes(self.file.read(size))

    def read(self, form: str, position: int) -> tuple[int, ...]:
        """Return the numbers that start at a position; `form` is their format in `struct`."""
        return unpack(form, self.at(position, calcsize(form)))


def _listed_messages(file: _Bytes, name: str) -> Iterator[tuple[int, int]]:
    """Yield (position of metadata, position of body) of each message that the footer lists.

    The footer lists all messages that contain dictionaries or batches.
    """
    # the file ends with the footer, the length of the footer in 4 bytes, and MAGIC
    footer_end = file.file.size() - len(MAGIC) - 4
    footer_start = footer_end - file.read("<i", footer_end)[0]
    # a FlatBuffers structure starts with the distance to its root table
    footer = footer_start + file.read("<I", footer_start)[0]
    for number in (2, 3):  # fields of the footer: dictionaries, batches
        blocks = _table_position(file, footer, number)
        for i in range(file.read("<I", blocks)[0] if blocks else 0):
            # the footer has an entry of 24 bytes per message; it starts with the position and the
            # length of the metadata of the message
            position, length = file.read("<qi", blocks + 4 + 24 * i)
            start, size = _message_start(file, position)
            if size <= 0 or start + size != position + length:
                raise DataError(
                    f"the footer of {quote_public(name)} lists batches that the file does not"
                    " contain; write the file again"
                )
            yield start, start + size


def _streamed_messages(file: _Bytes) -> Iterator[tuple[int, int]]:
    """Yield (position of metadata, position of body) of each message of an Arrow stream."""
    position = arrow_start(file.at(0, len(MAGIC)))
    while position + 8 <= file.file.size():
        start, size = _message_start(file, position)
        if size <= 0:
            return
        yield start, start + size
        position = start + size + max(0, _message_sizes(file, start, start + size)[2])


def arrow_start(head: bytes) -> int:
    """Return the position of the first message of a file or stream with the first bytes `head`."""
    return 8 if head == MAGIC else 0


def _message_start(file: _Bytes, position: int) -> tuple[int, int]:
    """Return (position, number of bytes) of the metadata of the message at ``position``."""
    first, second = file.read("<Ii", position)
    # versions of Arrow before 0.15 write no marker before the length
    return (position + 8, second) if first == CONTINUATION else (position + 4, first)


def _message_sizes(file: _Bytes, start: int, body: int) -> tuple[int, int, int]:
    """Return type and sizes of a message of an Arrow file.

    The fields of the metadata are numbered as in Arrow's file Message.fbs.

    Parameters
    ----------
    start, body : positions of the metadata and of the body of the message.

    Returns
    -------
    kind : type of the message, such as `_BATCH`.
    decompressed_bytes : total size of its compressed buffers after decompression.
    body_bytes : size of its body in the file.
    """
    # a FlatBuffers structure starts with the distance to its root table
    message = start + file.read("<I", start)[0]
    kind_field = _field_position(file, message, 1)
    kind = file.at(kind_field, 1)[0] if kind_field else 0
    header = _table_position(file, message, 2)
    length_field = _field_position(file, message, 3)
    body_bytes = file.read("<q", length_field)[0] if length_field else 0
    # the header of a batch lists its buffers; the header of a dictionary contains the header of a
    # batch with the values of the dictionary
    batch = _table_position(file, header, 1) if kind == _DICTIONARY and header else header
    has_compression = kind in (_DICTIONARY, _BATCH) and batch and _field_position(file, batch, 3)
    buffers = _table_position(file, batch, 2) if has_compression else 0
    decompressed_bytes = 0
    for i in range(file.read("<I", buffers)[0] if buffers else 0):
        # After their number (4 bytes), each buffer has an entry of 16 bytes: its offset in the
        # body, and its size. A buffer starts with its decompressed size, or -1 if only this buffer
        # is not compressed.
        offset, size = file.read("<qq", buffers + 4 + 16 * i)
        if size >= 8:
            decompressed_bytes += max(0, file.read("<q", body + offset)[0])
    return kind, decompressed_bytes, body_bytes


def _field_position(file: _Bytes, table: int, number: int) -> int:
    """Return the position of a field of a FlatBuffers table; 0 if the table lacks the field.

    Parameters
    ----------
    table : position of the table.
    number : index of the field in the schema of the table.
    """
    # position of the list of field offsets, which starts with its own length in bytes
    offsets = table - file.read("<i", table)[0]
    if 4 + 2 * number >= file.read("<H", offsets)[0]:
        return 0
    offset = file.read("<H", offsets + 4 + 2 * number)[0]
    return table + offset if offset else 0


def _table_position(file: _Bytes, table: int, number: int) -> int:
    """Return the position of the table or vector that a field refers to.

    The result is 0 if the table lacks the field.
    """
    field = _field_position(file, table, number)
    return field + file.read("<I", field)[0] if field else 0


CSV_BLOCK = 4_000_000  # largest number of bytes of a row
MAX_COLUMNS = 50_000
HEAD = 2**16  # number of bytes at the start of the file from which the delimiter is detected

# Arrow's message for a row with another number of fields than the header
_RAGGED = re.compile(r"CSV parse error: (?:Row #(\d+): )?Expected (\d+) columns, got (\d+)")
_BLANKS_BETWEEN = re.compile(r'\ufeff?"[^"\r\n]*"( "[^"\r\n]*")+\r?\n')
# beginning of an error message of Arrow -> text that follows the name of the file in our message
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
    delimiter : character between fields; None means that it is detected from the header line.
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
        if delimiter is not None and (
            len(delimiter) != 1 or delimiter in '"\r\n' or delimiter > "~"
        ):
            raise DataError(
                f"the delimiter is {quote_public(delimiter)}, but must be one ASCII character other"
                " than a quote or line end. Give a delimiter such as ';'"
            )
        try:
            is_text_encoding = codecs.lookup(self.encoding)._is_text_encoding
        except (LookupError, TypeError):
            is_text_encoding = False
        if not is_text_encoding:
            raise DataError(
                f"the text encoding {quote_public(self.encoding)} is unknown; give the name of a"
                " Python text encoding, such as 'latin-1' or 'utf-8'"
            )


def csv_batches(text: TextFile, names: Sequence[str], rows: int) -> Iterator[Batch]:
    """Yield the named columns of a CSV file in batches of at most ``rows`` rows.

    Raises DataError if the file is malformed anywhere, also in other columns.
    """
    header = _header(text)
    check_columns([header_name(name) for name in header], names, quote=False)
    fields = [next(field for field in header if header_name(field) == name) for name in names]
    with _CsvFile(text) as file:
        # without requested columns, the first column is read to count the rows
        reader = file.guarded(lambda: file.open(fields or header[:1]))
        while (batch := file.guarded(lambda: next(reader, None))) is not None:
            for columns, count in cut_batches(batch, fields, rows):
                yield Batch(columns=columns, rows=count, fraction=file.fraction())
        file.guarded(file.finish)


def csv_names(text: TextFile) -> list[str]:
    """Return the column names in the header of a CSV file."""
    return list(map(header_name, _header(text)))


def _header(text: TextFile) -> list[str]:
    """Return the fields of the header line as they are written in the file."""
    with _CsvFile(text) as file:
        fields: list[str] = file.guarded(lambda: file.open(()).schema.names)
    return fields


class _CsvFile:
    """Readable file object for Arrow that decompresses, decodes and checks a CSV file.

    Arrow accepts misplaced quotes. If a quote is never closed, or is closed in the middle of a
    field, Arrow merges all lines between the two quotes into one value, and their rows are lost
    without an error. This class therefore checks every quote of the file. In a well-formed file an
    opening quote comes directly after a delimiter or line end, a closing quote comes directly
    before one, and quotes within a quoted field occur in pairs.
    """

    def __init__(self, text: TextFile) -> None:
        self.path = Path(text.path)
        self.what = f"the file {quote_public(self.path.name)}"
        self.size = max(1, self.path.stat().st_size)
        self.encoding, self.delimiter = text.encoding, text.delimiter
        # message about the first error in the text
        self.malformed = ""
        # the last two bytes of the blocks that `_check_quotes` received; the last byte, if it is a
        # quote, is checked together with the next block
        self.tail = b""
        # number of quotes that were checked
        self.quotes = 0
        # number of the line that contains the last byte, from 1
        self.line_number = 1

    def __enter__(self) -> _CsvFile:
        self.raw, self.unpacked = without_values(lambda: open_decompressed(self.path), self.what)
        try:
            start = self.guarded(lambda: self.unpacked.read(HEAD))
            self.decoder = (
                codecs.getincrementaldecoder(self.encoding)() if self._needs_decoding else None
            )
            self.pending = self._to_utf8(start)
            self._read_start()
        except BaseException:
            self.raw.close()
            raise
        return self

    def _read_start(self) -> None:
        """Detect the delimiter, and skip a first line such as ``sep=;`` that declares it.

        Raises
        ------
        DataError
            No delimiter was given, and the fields of the header line are separated by blanks.
        """
        text = self.pending.decode("utf-8", "replace")
        is_tsv = ".tsv" in (suffix.lower() for suffix in self.path.suffixes[-2:])
        content, delimiter = csv_start(text, preferred="\t" if is_tsv else "")
        if len(content) < len(text):
            declaration = text[: len(text) - len(content)]
            self.pending = self.pending[len(declaration.encode()) :]
            self.line_number += 1
        if self.delimiter is None and _BLANKS_BETWEEN.match(content):
            raise DataError(
                f"{self.what} separates fields by blanks, as R's write.table does; write it with"
                " commas between the fields and without row names, or give the delimiter"
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
        # decoding shortens a block, and Arrow treats the end of a short block as the end of a row;
        # therefore further blocks are read until `size` bytes are available
        while len(self.pending) < size or size < 0:
            block = self.unpacked.read(size)
            self.pending += self._to_utf8(block)
            if not block:
                break
        cut = len(self.pending) if size < 0 else size
        content, self.pending = self.pending[:cut], self.pending[cut:]
        separator = (self.delimiter or ",").encode()
        if not self.tail and content.lstrip().partition(b"\n")[0].count(separator) >= MAX_COLUMNS:
            raise DataError(
                f"{self.what} has more than {MAX_COLUMNS:,} columns; remove columns that are not"
                " in the schema"
            )
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
        """Check the last byte of the file, and that the last quote is closed."""
        self._check_quotes(b"\n")
        if self.quotes % 2 and not self.malformed:
            self.malformed = f"a quote in {self.what} is not closed, so rows would be lost"

    def _check_quotes(self, block: bytes) -> None:
        """Check the quotes in the next bytes of the file; store a message on the first error.

        The last byte of the block is checked together with the next block, because the check of a
        quote needs the bytes on both sides.
        """
        # a quote at the start of the file is checked like a quote after a line end
        new_bytes = block if self.tail else block.removeprefix(codecs.BOM_UTF8)
        text = (self.tail or b"\n") + new_bytes
        data = np.frombuffer(text, np.uint8)
        # The first byte of `text` was checked with the block before, except in the first block,
        # where it is a line end. The last byte is checked with the next block.
        quote_positions = np.flatnonzero(data[1:-1] == ord('"')) + 1
        # opening and closing quotes alternate in the file
        is_opening = (np.arange(len(quote_positions)) + self.quotes) % 2 == 0
        # the byte before an opening quote, and the byte after a closing quote, must be a delimiter,
        # a line end or another quote
        outer_neighbours = data[np.where(is_opening, quote_positions - 1, quote_positions + 1)]
        is_allowed = np.isin(outer_neighbours, list(f'{self.delimiter}\r\n"'.encode()))
        misplaced = quote_positions[~is_allowed]
        if len(misplaced) and not self.malformed:
            line = self.line_number + text[1 : misplaced[0]].count(b"\n")
            self.malformed = f"line {line:,} of {self.what} has a quote in the middle of a field"
        self.quotes += len(quote_positions)
        self.line_number += text[1:-1].count(b"\n")
        self.tail = text[-2:]

    def fraction(self) -> float:
        """Return the fraction of the file on disk that has been read so far."""
        return min(1.0, self.raw.tell() / self.size)

    def open(self, names: Sequence[str]) -> pa.RecordBatchReader:
        """Return a reader of the named columns, whose values are texts such as "01" and "NA".

        If `names` is empty, the reader returns all columns, with the types that Arrow infers.
        """
        return pa.csv.open_csv(
            self,
            # only with one thread does Arrow report the number of a malformed row
            read_options=pa.csv.ReadOptions(block_size=CSV_BLOCK, use_threads=False),
            parse_options=pa.csv.ParseOptions(
                newlines_in_values=True, delimiter=self.delimiter or ","
            ),
            convert_options=pa.csv.ConvertOptions(
                include_columns=list(names),
                column_types={name: pa.string() for name in names},
            ),
        )

    def _explain_error(self, error: Exception) -> str:
        """Return a message, without text of the file, for an error of Arrow.

        From the message of Arrow, which quotes a row, only the row number and the numbers of fields
        are used. The result is "" if the error is not known.
        """
        match = _RAGGED.match(str(error))
        if match is None:
            reason_text = next(
                (reason for head, reason in _REASONS.items() if str(error).startswith(head)), ""
            )
            return f"{self.what} {reason_text}" if reason_text else ""
        row, expected, actual = match.groups()
        # row 2 is the first after the header; if it is malformed, all rows may have the same fault
        location = f"row {row} (the header is row 1, blank lines do not count)" if row else "a row"
        advice = "correct the file"
        if row == "2" and expected == "1":
            advice = (
                "if the first line is a title or a comment, delete it; otherwise correct the file"
            )
        elif row == "2" and int(actual) == int(expected) + 1:
            advice = (
                "either the file has row names without a header, as R's write.table writes them:"
                " write it with row.names=FALSE; or every row ends in a delimiter: remove it"
            )
        elif row == "2" and int(actual) == int(expected) - 1:
            advice = (
                "if the header ends in a delimiter, delete it there; otherwise correct the file"
            )
        return f"{location} of {self.what} has {actual} fields, not {expected}; {advice}"

    def guarded(self, action: Callable[[], _T]) -> _T:
        """Call an action that reads this file, and return its result.

        Errors contain no values of records.

        Raises
        ------
        DataError
            The action failed, or the text is malformed. The message contains the number of the line
            or row if it is known.
        LimitExceeded
            The action needs more memory than is available.
        """
        problem = ""
        try:
            result = without_values(action, self.what, self._explain_error)
        except DataError as error:
            problem = str(error)
        if not problem and not self.malformed:
            return result
        # a line that is not UTF-8 is reported first, because it may have caused the other problems
        line = (
            None
            if self._needs_decoding
            else without_values(self._first_undecodable_line, self.what)
        )
        if line is not None:
            tried = "not UTF-8, the encoding that was tried"
            if self._has_utf_16_mark():
                tried = "UTF-16, but UTF-8 was tried"
            problem = (
                f"line {line:,} of {self.what} is {tried}; save the file as UTF-8 (spreadsheets"
                " offer 'CSV UTF-8'), or give its encoding"
            )
        elif self.malformed:
            problem = f"{self.malformed}; correct the file"
        raise DataError(problem)

    def _has_utf_16_mark(self) -> bool:
        """Return whether the file starts with the byte order mark of UTF-16."""
        raw, content = open_decompressed(self.path)
        with raw:
            return bytes(content.read(2)) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)

    def _first_undecodable_line(self) -> int | None:
        """Return the number of the first line that is not UTF-8; None if the file is UTF-8.

        A character that the end of the file cuts off is not UTF-8.
        """
        decoder = codecs.getincrementaldecoder("utf-8")()
        line_number = 1
        raw, content = open_decompressed(self.path)
        with raw:
            while block := content.read(2**20):
                try:
                    decoder.decode(block)
                except UnicodeDecodeError as error:
                    return int(line_number + block[: error.start].count(b"\n"))
                line_number += block.count(b"\n")
        try:
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            return line_number
        return None
