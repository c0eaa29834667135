"""Packed files as the bytes that they hold."""

from __future__ import annotations

import bz2
import gzip
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from engine.errors import DataError
from engine.texts import shown

PACKED = (".gz", ".zst", ".zip", ".bz2")
BLOCK = 2**20


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
