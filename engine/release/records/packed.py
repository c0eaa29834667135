"""Packed files as the bytes that they hold, and how many these are where a reader unfolds them at once."""

from __future__ import annotations

import bz2
import gzip
import mmap
import zipfile
from collections.abc import Iterator
from pathlib import Path
from struct import unpack_from
from typing import Any, BinaryIO

import pyarrow as pa

from engine.errors import DataError, LimitExceeded
from engine.texts import shown

PACKED = (".gz", ".zst", ".zip", ".bz2")
BLOCK = 2**20
UNFOLDED_BYTES = 400_000_000  # of the packed columns of one batch
MAGIC, GOES_ON = b"ARROW1", 0xFFFFFFFF  # of an Arrow file, and of each of its messages
_DICTIONARY, _BATCH = 2, 3  # kinds of messages that hold values


def unpacked(path: Path) -> tuple[BinaryIO, Any]:
    """A file and what is in it, to be read in blocks; the file itself where it is not packed."""
    raw, ending = path.open("rb"), path.suffix.lower()
    if ending == ".gz":
        return raw, gzip.GzipFile(fileobj=raw)
    if ending == ".bz2":
        return raw, bz2.BZ2File(raw)
    if ending == ".zst":
        return raw, pa.CompressedInputStream(pa.PythonFile(raw, "r"), "zstd")
    if ending == ".zip":
        archive = zipfile.ZipFile(raw)
        inside = [one for one in archive.infolist() if not one.is_dir() and not one.filename.startswith("__MACOSX/")]
        if len(inside) != 1:
            raise DataError(f"the file {shown(path.name)} packs {len(inside):,} files; pack one")
        return raw, archive.open(inside[0])
    return raw, raw


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


def arrow_start(head: bytes) -> int:
    """Where the messages of an Arrow file begin; the places of its batches at its end, which may lie, are not used."""
    return 8 if head == MAGIC else 0


def check_arrow(path: Path) -> None:
    """Raise LimitExceeded for an Arrow file with a batch that unfolds to too many bytes.

    The reader unfolds whole batches, all columns of them.  So how long each packed piece will be, which is written
    before it, is looked up in the bytes of the file, whose form is that of Arrow's specification.
    """
    if not path.stat().st_size:
        return
    with path.open("rb") as raw, mmap.mmap(raw.fileno(), 0, access=mmap.ACCESS_READ) as file:
        place = arrow_start(file[: len(MAGIC)])
        while place + 8 <= len(file):
            first, second = unpack_from("<Ii", file, place)
            start, size = (place + 8, second) if first == GOES_ON else (place + 4, first)
            if size <= 0:
                return
            size_unfolded, length = _message(file, start, start + size)
            if size_unfolded > UNFOLDED_BYTES:
                raise LimitExceeded(
                    f"a batch of {shown(path.name)} unfolds to {size_unfolded:,} bytes, more than the "
                    f"{UNFOLDED_BYTES:,} allowed; write the file again with fewer rows a batch"
                )
            place = start + size + max(0, length)


def _message(file: Any, start: int, body: int) -> tuple[int, int]:
    """The bytes that the packed pieces of a message unfold to, and those that all pieces take in the file."""
    message = start + unpack_from("<I", file, start)[0]
    kind, length = _field(file, message, 1), _field(file, message, 3)
    length = unpack_from("<q", file, length)[0] if length else 0
    kind = file[kind] if kind else 0
    content = _table(file, message, 2)
    if kind == _DICTIONARY and content:
        content = _table(file, content, 1)
    if kind not in (_DICTIONARY, _BATCH) or not content or not _field(file, content, 3):  # holds no values, or unpacked
        return 0, length
    pieces = _table(file, content, 2)
    sizes = 0
    for i in range(unpack_from("<I", file, pieces)[0] if pieces else 0):
        offset, size = unpack_from("<qq", file, pieces + 4 + 16 * i)
        if size >= 8:
            sizes += max(0, unpack_from("<q", file, body + offset)[0])
    return sizes, length


def _field(file: Any, table: int, number: int) -> int:
    """Where a field of a table of flatbuffers is; 0 where it has its default."""
    fields = table - unpack_from("<i", file, table)[0]
    if 4 + 2 * number >= unpack_from("<H", file, fields)[0]:
        return 0
    offset = unpack_from("<H", file, fields + 4 + 2 * number)[0]
    return table + offset if offset else 0


def _table(file: Any, table: int, number: int) -> int:
    """Where the table or list is that a field points to; 0 where there is none."""
    field = _field(file, table, number)
    return field + unpack_from("<I", file, field)[0] if field else 0
