"""Bounded access to the files of an untrusted package, in a zip or a folder.

No file is copied or parsed before its size is bounded: by fixed limits for the certificate and the
plan, and for all other files by limits that follow from the plan.

The sizes in the footer of a parquet file are not trusted: a reader allocates memory by the headers
of its pages, which `check_pages` therefore parses.  Page headers have the compact protocol of
Thrift, see the format specification of Apache Parquet.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import os
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from engine._format import quote_public
from engine._untrusted import (
    MAX_MEMBERS,
    bounded_chunks,
    is_plain_name,
    is_regular_file,
    member_chunks,
    open_zip,
    read_array,
    read_member,
)
from engine.errors import PlanError
from engine.plans import Block, Plan
from engine.workload import Attribute, Group

MAX_FOOTER = 1_000_000  # bytes, and one more per row
# field types of the compact protocol
STOP, BOOLEANS, BYTE, INTEGERS, DOUBLE, BINARY, LISTS, STRUCT = 0, (1, 2), 3, (4, 5, 6), 7, 8, (9, 10), 12
UNCOMPRESSED, COMPRESSED = 2, 3  # fields of a page header
MAX_NESTING = 8


def check_pages(path: Path, max_bytes: int, rows: int) -> None:
    """Raise ValueError unless the uncompressed size of all pages is at most ``max_bytes``.

    >>> import pyarrow as pa, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "a.parquet")
    ...     pq.write_table(pa.table({"a": ["x" * 10**6]}), file, compression="zstd")
    ...     check_pages(file, 2 * 10**5, rows=1)
    Traceback (most recent call last):
    ValueError: a.parquet unfolds to more bytes than the plan allows
    """
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        if len(content) < 12 or content[-4:] != b"PAR1":
            raise ValueError(f"{path.name} is no parquet file")
        if int.from_bytes(content[-8:-4], "little") > min(len(content), MAX_FOOTER + rows):
            raise ValueError(f"{path.name} has a longer footer than the plan allows")
        metadata, total = pq.read_metadata(path), 0
        if metadata.num_rows != rows:
            raise ValueError(f"{path.name} has another number of rows than the plan has queries")
        for group in range(metadata.num_row_groups):
            for number in range(metadata.num_columns):
                column = metadata.row_group(group).column(number)
                place = column.data_page_offset
                if column.dictionary_page_offset is not None and 0 < column.dictionary_page_offset < place:
                    place = column.dictionary_page_offset
                end = place + column.total_compressed_size
                if not 0 < place <= end <= len(content):
                    raise ValueError(f"{path.name} has pages outside the file")
                while place < end:
                    header = _Reader(content, place)
                    fields = header.struct()
                    unfolded, stored = fields.get(UNCOMPRESSED, -1), fields.get(COMPRESSED, -1)
                    if unfolded < 0 or stored < 0:
                        raise ValueError(f"{path.name} has a page without a size")
                    total, place = total + unfolded, header.place + stored
                    if total > max_bytes:
                        raise ValueError(f"{path.name} unfolds to more bytes than the plan allows")


@dataclass
class _Reader:
    """Reader of compact-protocol values, from a position in a file."""

    content: mmap.mmap
    place: int

    def struct(self, depth: int = 0) -> dict[int, int]:
        """Return the integer fields of a struct by field number and skip all other fields."""
        if depth > MAX_NESTING:
            raise ValueError("a page header is nested too deeply")
        integers, number = dict[int, int](), 0
        while (head := self._byte()) != STOP:
            number = number + (head >> 4) if head >> 4 else self._integer()
            kind = head & 15
            if kind in INTEGERS:
                integers[number] = self._integer()
            elif kind not in BOOLEANS:  # the type of a boolean contains its value
                self._skip(kind, depth)
        return integers

    def _skip(self, kind: int, depth: int) -> None:
        if kind in INTEGERS:
            self._integer()
        elif kind in (BYTE, *BOOLEANS):
            self._byte()
        elif kind == DOUBLE:
            self.place += 8
        elif kind == BINARY:
            length = self._varint()
            self.place += length
        elif kind in LISTS:
            head = self._byte()
            count = head >> 4 if head >> 4 < 15 else self._varint()
            if count > len(self.content):
                raise ValueError("a page header has a longer list than the file")
            for _ in range(count):
                self._skip(head & 15, depth + 1)
        elif kind == STRUCT:
            self.struct(depth + 1)
        else:
            raise ValueError("a page header has a field of another kind")

    def _byte(self) -> int:
        if not 0 <= self.place < len(self.content):
            raise ValueError("a page header leaves the file")
        self.place += 1
        return self.content[self.place - 1]

    def _varint(self) -> int:
        value = shift = 0
        while (byte := self._byte()) & 0x80:
            value, shift = value | (byte & 0x7F) << shift, shift + 7
            if shift > 63:
                raise ValueError("a page header has a number of more than 64 bits")
        return value | byte << shift

    def _integer(self) -> int:
        value = self._varint()
        return value >> 1 ^ -(value & 1)


MAX_PLAN = 150_000_000  # bytes
MAX_CERTIFICATE = 4_000_000
MAX_SMALL = 100_000  # signature, options of tables, or script
FIXED_BYTES = 4_000_000  # allowance per file that does not depend on the plan
BLOCK_BYTES = 4_000  # description of a block, without its names
NUMBER_BYTES = 32  # a number as text, with its comma
Chunks = Callable[[str, int], Iterator[bytes]]


@dataclass(frozen=True, kw_only=True)
class PackageFiles:
    """Files of a package, read with size limits.

    Attributes
    ----------
    names : names of all files, in alphabetical order.
    """

    names: tuple[str, ...]
    _chunks: Chunks
    _folder: Path
    _in_place: bool

    def read(self, name: str, max_bytes: int) -> bytes:
        """Return the content of a file; raise ValueError if it exceeds ``max_bytes``."""
        return b"".join(self._chunks(name, max_bytes))

    def digest(self, name: str, max_bytes: int) -> str:
        """Return the SHA-256 of a file and copy it to `path`, unless it is in a folder.

        Raises
        ------
        ValueError : the file has more than ``max_bytes`` bytes.
        """
        digest = hashlib.sha256()
        if self._in_place:
            for chunk in self._chunks(name, max_bytes):
                digest.update(chunk)
            return digest.hexdigest()
        with open(self.path(name), "wb") as copy:
            for chunk in self._chunks(name, max_bytes):
                digest.update(chunk)
                copy.write(chunk)
        return digest.hexdigest()

    def path(self, name: str) -> Path:
        """Return the path of a file after `digest` has read it."""
        return self._folder / name


@contextmanager
def package_files(place: Path, scratch: Path) -> Iterator[PackageFiles]:
    """Open a package; files of a zip are copied to the folder ``scratch`` when they are read.

    Raises
    ------
    PlanError : the zip is damaged or has links, folders, encrypted files or duplicate names.
    """
    if place.is_dir():
        names = sorted(entry.name for entry in os.scandir(place))
        if len(names) > MAX_MEMBERS:
            raise PlanError(f"The folder has {len(names):,} files; at most {MAX_MEMBERS:,} are read.")

        def from_folder(name: str, max_bytes: int) -> Iterator[bytes]:
            if not is_plain_name(name) or not is_regular_file(place / name):
                raise ValueError(f"{name} is a link, a folder or no file")
            with open(place / name, "rb") as file:
                yield from bounded_chunks(file, max_bytes, name)

        yield PackageFiles(names=tuple(names), _chunks=from_folder, _folder=place, _in_place=True)
        return
    with open_zip(place, "The package", error=PlanError) as archive:

        def from_zip(name: str, max_bytes: int) -> Iterator[bytes]:
            return member_chunks(archive, name, max_bytes)

        names = sorted(archive.namelist())
        yield PackageFiles(names=tuple(names), _chunks=from_zip, _folder=scratch, _in_place=False)


@dataclass(frozen=True, kw_only=True)
class ArrayFile:
    """Reader of a ``.npz`` file with arrays of expected types and shapes."""

    _archive: zipfile.ZipFile

    @classmethod
    @contextmanager
    def open(cls, path: Path, max_arrays: int) -> Iterator[ArrayFile]:
        """Open a file of at most ``max_arrays``; raise PlanError for any damage, also while it is open."""
        with open_zip(path, path.name, error=PlanError, max_members=max_arrays) as archive:
            yield cls(_archive=archive)

    def read(self, name: str, kind: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """Return an array; raise PlanError unless it has this NumPy kind ("f", "i") and shape."""
        try:
            content = read_member(self._archive, f"{name}.npy", 8 * math.prod(shape) + 10_240)
            return read_array(content, kinds=kind, shape=shape)
        except (KeyError, ValueError):
            raise PlanError(
                f"The array {quote_public(name)} is not there, or not of the shape that the plan says."
            ) from None


def max_arrays_of(plan: Plan) -> int:
    """Return the maximum number of arrays in the measurements of a plan."""
    of_blocks = sum(1 + len(block.factors) + (block.weights is not None) for block in plan.blocks.values())
    return max(of_blocks, len(plan.answering))


def max_bytes_of(plan: Plan) -> dict[str, int]:
    """Return the maximum size of every file of a release of a plan, in bytes."""
    groups, rows, blocks = plan.workload.groups, plan.workload.queries, plan.blocks.values()
    labels = {a.name: _label_bytes(a) for a in plan.schema.attributes}
    texts = sum(group.count * _text_bytes(group, labels) for group in groups)
    names = sum(map(len, labels)) + FIXED_BYTES
    return {
        "plan.json": MAX_PLAN,
        "check.py": MAX_SMALL,
        "report.html": 20 * FIXED_BYTES + 100 * sum(_text_bytes(g, labels) + BLOCK_BYTES for g in groups),
        "answers.parquet": FIXED_BYTES + names + 8 * NUMBER_BYTES * rows + texts,
        "answers.csv": FIXED_BYTES + 4 * NUMBER_BYTES * rows + 2 * texts,
        "measurements.json": FIXED_BYTES + sum(BLOCK_BYTES + 24 * _name_bytes(b.attributes) for b in blocks),
        "measurements.npz": FIXED_BYTES + _array_bytes(blocks),
    }


def _label_bytes(attribute: Attribute) -> int:
    """Return the maximum UTF-8 size of the text of one cell, with two labels for ranges."""
    longest = max(map(len, attribute.labels), default=0) if attribute.labels is not None else 64
    if attribute.is_dated and attribute.missing is not None:
        longest = max(longest, len(str(attribute.missing)))
    return 4 * (len(attribute.name) + 2 * longest) + 100


def _text_bytes(group: Group, labels: Mapping[str, int]) -> int:
    label_lengths = [
        max(map(len, words), default=0) for p in group.parts if (words := getattr(p.family, "labels", None))
    ]
    return (
        200 + 4 * len(group.family_text) + 2 * sum(labels[name] for name in group.attributes) + 4 * sum(label_lengths)
    )


def _name_bytes(names: Iterable[str]) -> int:
    return sum(6 * len(name) + 8 for name in names)


def _array_bytes(blocks: Iterable[Block]) -> int:
    total, rows = 0, dict[object, int]()
    for block in blocks:
        total += 8 * block.measurements + (0 if block.weights is None else block.weights.nbytes) + 4 * BLOCK_BYTES
        total += 8 * math.prod(block.coordinates)
        rows |= {strategy: strategy.rows.nbytes for _, strategy in block.factors}
    # factor 4: strategies that are shared here may differ slightly on other machines
    return total + 4 * sum(rows.values())


def open_answers(path: Path, rows: int, max_bytes: int) -> pq.ParquetFile:
    """Open the answers of a release for reading page by page, with texts as dictionaries.

    Raises
    ------
    ValueError : the file has a different number of rows, an uncompressed size above ``max_bytes``,
        or columns of other types.
    """
    check_pages(path, max_bytes, rows)
    texts = sorted({"query", "status"} & set(pq.read_schema(path).names))
    file = pq.ParquetFile(path, buffer_size=1 << 20, read_dictionary=texts)
    kinds = (pa.types.is_floating, pa.types.is_string, pa.types.is_dictionary)
    if not all(any(is_kind(field.type) for is_kind in kinds) for field in file.schema_arrow):
        raise ValueError(f"{path.name} has columns of other types")
    return file
