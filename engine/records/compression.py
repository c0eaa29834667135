"""Compressed text and Arrow files with bounded expansion."""

from __future__ import annotations

import bz2
import gzip
import zipfile
from collections.abc import Iterator
from pathlib import Path
from struct import calcsize, unpack
from typing import Any, BinaryIO

import pyarrow as pa

from engine._format import quote_public
from engine.errors import DataError, LimitExceeded

PACKED = (".gz", ".zst", ".zip", ".bz2")
BINARY_SIGNATURES = {
    b"%PDF": "a PDF document",
    b"PK\x03\x04": "a zip or a workbook",
    b"\xd0\xcf\x11\xe0": "a document of an old Office",
    b"\x1f\x8b": "a file packed with gzip",
    b"\x28\xb5\x2f\xfd": "a file packed with zstd",
    b"PAR1": "a parquet file",
    b"ARROW1": "an Arrow file",
    b"SQLite format 3": "a database of SQLite",
    b"\x89PNG": "a picture",
    b"\xff\xd8\xff": "a picture",
}
MAX_SIGNATURE_BYTES = max(map(len, BINARY_SIGNATURES))
BLOCK = 2**20
UNFOLDED_BYTES = 400_000_000  # maximum size of the decompressed columns of one batch
MAGIC, CONTINUATION = b"ARROW1", 0xFFFFFFFF  # start of an Arrow file, and of each message
_DICTIONARY, _BATCH = 2, 3  # types of messages with values


def open_decompressed(path: Path) -> tuple[BinaryIO, Any]:
    """Open a file and return it with a stream of its decompressed content.

    Raises
    ------
    DataError
        An archive contains several files, or the content starts like a binary format.
    """
    with path.open("rb") as raw:
        first_bytes = _content(path, raw).read(MAX_SIGNATURE_BYTES)
    for mark, kind in BINARY_SIGNATURES.items():
        if first_bytes.startswith(mark):
            raise DataError(
                f"the file {quote_public(path.name)} holds {kind} and no lines of text; give the records as such"
            )
    raw = path.open("rb")
    return raw, _content(path, raw)


def _content(path: Path, raw: BinaryIO) -> Any:
    ending = path.suffix.lower()
    if ending == ".gz":
        return gzip.GzipFile(fileobj=raw)
    if ending == ".bz2":
        return bz2.BZ2File(raw)
    if ending == ".zst":
        return pa.CompressedInputStream(pa.PythonFile(raw, "r"), "zstd")
    if ending == ".zip":
        archive = zipfile.ZipFile(raw)
        inside = [one for one in archive.infolist() if not one.is_dir() and not one.filename.startswith("__MACOSX/")]
        if len(inside) != 1:
            raise DataError(f"the file {quote_public(path.name)} packs {len(inside):,} files; pack one")
        return archive.open(inside[0])
    return raw


def read_lines(file: Any, most: int, what: str) -> Iterator[bytes]:
    """Yield the lines of a file; raise DataError for a line of more than `most` bytes."""
    rest = b""
    while block := file.read(BLOCK):
        *complete, rest = (rest + block).split(b"\n")
        if len(rest) > most:
            raise DataError(f"{what} has a line of more than {most:,} bytes; write one record a line")
        yield from complete
    if rest:
        yield rest


def is_arrow_file(file: pa.NativeFile) -> bool:
    """Whether this is an Arrow file, with a footer that lists its messages, and not a stream."""
    if file.size() < 2 * len(MAGIC):
        return False
    bytes_of = _Bytes(file)
    return bytes_of.at(0, len(MAGIC)) == bytes_of.at(file.size() - len(MAGIC), len(MAGIC)) == MAGIC


def check_arrow(file: pa.NativeFile, name: str) -> None:
    """Raise LimitExceeded for an Arrow file with a batch that expands to too many bytes.

    The Arrow reader decompresses all columns of a batch and holds all dictionaries in memory. The
    decompressed length precedes each compressed buffer. This function reads these lengths from the
    bytes of the file, as Arrow's specification defines them, for the same messages that the reader
    uses: those listed in the footer.

    Raises
    ------
    LimitExceeded
        A batch with its dictionaries needs more than `UNFOLDED_BYTES`.
    DataError
        The footer lists a position without a message.
    """
    bytes_of, dictionary_bytes = _Bytes(file), 0
    for start, body in _listed_messages(bytes_of, name) if is_arrow_file(file) else _streamed_messages(bytes_of):
        kind, batch_bytes, _ = _message_sizes(bytes_of, start, body)
        if kind == _DICTIONARY:
            dictionary_bytes, batch_bytes = dictionary_bytes + batch_bytes, 0
        if dictionary_bytes + batch_bytes > UNFOLDED_BYTES:
            raise LimitExceeded(
                f"a batch of {quote_public(name)} unfolds to {dictionary_bytes + batch_bytes:,} bytes with its "
                f"dictionaries, more than the {UNFOLDED_BYTES:,} allowed; write the file again with fewer rows a "
                "batch, or shorter dictionaries"
            )


class _Bytes:
    """Random access to bytes and numbers of a file."""

    def __init__(self, file: pa.NativeFile):
        self.file = file

    def at(self, place: int, size: int) -> bytes:
        self.file.seek(place)
        return bytes(self.file.read(size))

    def read(self, form: str, place: int) -> tuple[int, ...]:
        return unpack(form, self.at(place, calcsize(form)))


def _listed_messages(file: _Bytes, name: str) -> Iterator[tuple[int, int]]:
    """Yield the positions of message and body of all dictionaries and batches in the footer."""
    end = file.file.size() - len(MAGIC) - 4
    root = end - file.read("<i", end)[0]
    root += file.read("<I", root)[0]
    for number in (2, 3):
        blocks = _table(file, root, number)
        for i in range(file.read("<I", blocks)[0] if blocks else 0):
            place, length = file.read("<qi", blocks + 4 + 24 * i)
            start, size = _message_start(file, place)
            if size <= 0 or start + size != place + length:
                raise DataError(
                    f"the end of {quote_public(name)} names batches that the file does not hold; write it again"
                )
            yield start, start + size


def _streamed_messages(file: _Bytes) -> Iterator[tuple[int, int]]:
    """Yield the positions of message and body of all messages of a stream."""
    place = arrow_start(file.at(0, len(MAGIC)))
    while place + 8 <= file.file.size():
        start, size = _message_start(file, place)
        if size <= 0:
            return
        yield start, start + size
        place = start + size + max(0, _message_sizes(file, start, start + size)[2])


def arrow_start(head: bytes) -> int:
    """Return the position of the first message."""
    return 8 if head == MAGIC else 0


def _message_start(file: _Bytes, place: int) -> tuple[int, int]:
    """Return the start of the metadata of a message, after its prefix, and its length."""
    first, second = file.read("<Ii", place)
    return (place + 8, second) if first == CONTINUATION else (place + 4, first)


def _message_sizes(file: _Bytes, start: int, body: int) -> tuple[int, int, int]:
    """Return the type of a message, the decompressed size of its buffers and its body length."""
    message = start + file.read("<I", start)[0]
    kind, length = _field(file, message, 1), _field(file, message, 3)
    length = file.read("<q", length)[0] if length else 0
    kind = file.at(kind, 1)[0] if kind else 0
    content = _table(file, message, 2)
    if kind == _DICTIONARY and content:
        content = _table(file, content, 1)
    if kind not in (_DICTIONARY, _BATCH) or not content or not _field(file, content, 3):  # holds no values, or unpacked
        return kind, 0, length
    pieces = _table(file, content, 2)
    sizes = 0
    for i in range(file.read("<I", pieces)[0] if pieces else 0):
        offset, size = file.read("<qq", pieces + 4 + 16 * i)
        if size >= 8:
            sizes += max(0, file.read("<q", body + offset)[0])
    return kind, sizes, length


def _field(file: _Bytes, table: int, number: int) -> int:
    """Return the position of a field of a FlatBuffers table; 0 if it has its default."""
    fields = table - file.read("<i", table)[0]
    if 4 + 2 * number >= file.read("<H", fields)[0]:
        return 0
    offset = file.read("<H", fields + 4 + 2 * number)[0]
    return table + offset if offset else 0


def _table(file: _Bytes, table: int, number: int) -> int:
    """Return the position of the table or vector that a field refers to; 0 if absent."""
    field = _field(file, table, number)
    return field + file.read("<I", field)[0] if field else 0
