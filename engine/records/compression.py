"""Compressed Arrow data with bounded expansion."""

from __future__ import annotations

import bz2
import gzip
import zipfile
from collections.abc import Iterator
from pathlib import Path
from struct import calcsize, unpack
from typing import Any, BinaryIO

import pyarrow as pa

from engine._format import shown
from engine.errors import DataError, LimitExceeded

PACKED = (".gz", ".zst", ".zip", ".bz2")
NO_TEXT = {
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
LONGEST = max(map(len, NO_TEXT))
BLOCK = 2**20
UNFOLDED_BYTES = 400_000_000  # of the packed columns of one batch
MAGIC, GOES_ON = b"ARROW1", 0xFFFFFFFF  # of an Arrow file, and of each of its messages
_DICTIONARY, _BATCH = 2, 3  # kinds of messages that hold values


def unpacked(path: Path) -> tuple[BinaryIO, Any]:
    """A file and the text that is in it, to be read in blocks; the file itself where it is not packed.

    Raises: DataError for more than one packed file, or one that begins like no text.
    """
    with path.open("rb") as raw:
        begins = _content(path, raw).read(LONGEST)
    for mark, kind in NO_TEXT.items():
        if begins.startswith(mark):
            raise DataError(f"the file {shown(path.name)} holds {kind} and no lines of text; give the records as such")
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
            raise DataError(f"the file {shown(path.name)} packs {len(inside):,} files; pack one")
        return archive.open(inside[0])
    return raw


def lines(file: Any, most: int, what: str) -> Iterator[bytes]:
    """The lines of a file that is read in blocks.  Raises: DataError for one of more than `most` bytes."""
    rest = b""
    while block := file.read(BLOCK):
        *whole, rest = (rest + block).split(b"\n")
        if len(rest) > most:
            raise DataError(f"{what} has a line of more than {most:,} bytes; write one record a line")
        yield from whole
    if rest:
        yield rest


def is_arrow_file(file: pa.NativeFile) -> bool:
    """Whether these are messages of Arrow with a list at their end of where they are; without it they are a stream."""
    if file.size() < 2 * len(MAGIC):
        return False
    bytes_of = _Bytes(file)
    return bytes_of.at(0, len(MAGIC)) == bytes_of.at(file.size() - len(MAGIC), len(MAGIC)) == MAGIC


def check_arrow(file: pa.NativeFile, name: str) -> None:
    """Raise LimitExceeded for an Arrow file with a batch that unfolds to too many bytes.

    The reader unfolds whole batches, all columns of them, and holds all dictionaries beside them.  So how long each
    packed piece will be, which is written before it, is looked up in the bytes of the file, whose form is that of
    Arrow's specification, at the very places where the reader will look: those that the end of the file lists.

    Raises also: DataError where the end lists a place that holds no message.
    """
    bytes_of, held = _Bytes(file), 0
    for start, body in _listed(bytes_of, name) if is_arrow_file(file) else _streamed(bytes_of):
        kind, unfolded, _ = _message(bytes_of, start, body)
        if kind == _DICTIONARY:
            held, unfolded = held + unfolded, 0
        if held + unfolded > UNFOLDED_BYTES:
            raise LimitExceeded(
                f"a batch of {shown(name)} unfolds to {held + unfolded:,} bytes with its dictionaries, more than the "
                f"{UNFOLDED_BYTES:,} allowed; write the file again with fewer rows a batch, or shorter dictionaries"
            )


class _Bytes:
    """Numbers and pieces of a file, wherever in it they are."""

    def __init__(self, file: pa.NativeFile):
        self.file = file

    def at(self, place: int, size: int) -> bytes:
        self.file.seek(place)
        return bytes(self.file.read(size))

    def read(self, form: str, place: int) -> tuple[int, ...]:
        return unpack(form, self.at(place, calcsize(form)))


def _listed(file: _Bytes, name: str) -> Iterator[tuple[int, int]]:
    """Where the dictionaries and batches that the end of a file lists have their messages and their bodies."""
    end = file.file.size() - len(MAGIC) - 4
    root = end - file.read("<i", end)[0]
    root += file.read("<I", root)[0]
    for number in (2, 3):
        blocks = _table(file, root, number)
        for i in range(file.read("<I", blocks)[0] if blocks else 0):
            place, length = file.read("<qi", blocks + 4 + 24 * i)
            start, size = _begun(file, place)
            if size <= 0 or start + size != place + length:
                raise DataError(f"the end of {shown(name)} names batches that the file does not hold; write it again")
            yield start, start + size


def _streamed(file: _Bytes) -> Iterator[tuple[int, int]]:
    """The same of messages that follow one another."""
    place = arrow_start(file.at(0, len(MAGIC)))
    while place + 8 <= file.file.size():
        start, size = _begun(file, place)
        if size <= 0:
            return
        yield start, start + size
        place = start + size + max(0, _message(file, start, start + size)[2])


def arrow_start(head: bytes) -> int:
    """Where messages begin that follow one another."""
    return 8 if head == MAGIC else 0


def _begun(file: _Bytes, place: int) -> tuple[int, int]:
    """Where a message starts that begins at a place, and its length without its body."""
    first, second = file.read("<Ii", place)
    return (place + 8, second) if first == GOES_ON else (place + 4, first)


def _message(file: _Bytes, start: int, body: int) -> tuple[int, int, int]:
    """The kind of a message, the bytes that its packed pieces unfold to, and those that all take in the file."""
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
    """Where a field of a table of flatbuffers is; 0 where it has its default."""
    fields = table - file.read("<i", table)[0]
    if 4 + 2 * number >= file.read("<H", fields)[0]:
        return 0
    offset = file.read("<H", fields + 4 + 2 * number)[0]
    return table + offset if offset else 0


def _table(file: _Bytes, table: int, number: int) -> int:
    """Where the table or list is that a field points to; 0 where there is none."""
    field = _field(file, table, number)
    return field + file.read("<I", field)[0] if field else 0
