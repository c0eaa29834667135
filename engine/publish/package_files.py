"""Bounded access to the files of a package, in a zip or in a folder.

Nothing is copied or parsed before its size is bounded: by fixed limits for the certificate and the plan, and for every
other file by what the plan says that the package holds.
"""

from __future__ import annotations

import hashlib
import math
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

from engine.errors import PlanError
from engine.plans import Block, Plan
from engine.publish.parquet_pages import check_pages
from engine.texts import shown
from engine.untrusted import (
    MAX_MEMBERS,
    bounded_chunks,
    is_plain_name,
    is_regular_file,
    member_chunks,
    open_zip,
    read_array,
    read_member,
)
from engine.workload import Attribute, Group

MAX_PLAN = 150_000_000  # bytes
MAX_CERTIFICATE = 4_000_000
MAX_SMALL = 100_000  # of a signature, the options of tables, and the script
FIXED = 4_000_000  # beside what depends on the plan
PER_BLOCK = 4_000  # of the description of a block, beside its names
NUMBER = 32  # of a number as text, with its comma
Chunks = Callable[[str, int], Iterator[bytes]]


@dataclass(frozen=True, kw_only=True)
class PackageFiles:
    """The files of a package.

    Attributes
    ----------
    names : of all files, in alphabetical order.
    """

    names: tuple[str, ...]
    _chunks: Chunks
    _folder: Path
    _in_place: bool

    def read(self, name: str, max_bytes: int) -> bytes:
        """Return the content of a file.  Raises ValueError past ``max_bytes``."""
        return b"".join(self._chunks(name, max_bytes))

    def digest(self, name: str, max_bytes: int) -> str:
        """Return the SHA-256 of a file, which afterwards has the path that `path` returns.

        Raises
        ------
        ValueError : it has more than ``max_bytes`` bytes.
        """
        found = hashlib.sha256()
        if self._in_place:
            for chunk in self._chunks(name, max_bytes):
                found.update(chunk)
            return found.hexdigest()
        with open(self.path(name), "wb") as copy:
            for chunk in self._chunks(name, max_bytes):
                found.update(chunk)
                copy.write(chunk)
        return found.hexdigest()

    def path(self, name: str) -> Path:
        """Return the path of a file that `digest` has read."""
        return self._folder / name


@contextmanager
def package_files(place: Path, scratch: Path) -> Iterator[PackageFiles]:
    """Open a package; files of a zip are copied to the folder ``scratch`` when they are read.

    Raises
    ------
    PlanError : the zip is damaged, or has links, folders, encrypted files or a name twice.
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
    """A ``.npz`` file whose arrays are read one at a time, each of a type and a shape that are known before."""

    _archive: zipfile.ZipFile

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator[ArrayFile]:
        """Open a file.  Raises PlanError, also for any damage that is met while it is open."""
        with open_zip(path, path.name, error=PlanError) as archive:
            yield cls(_archive=archive)

    def read(self, name: str, kind: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """Return an array of a NumPy kind, such as "f", and a shape.  Raises PlanError where it is another one."""
        try:
            content = read_member(self._archive, f"{name}.npy", 8 * math.prod(shape) + 10_240)
            return read_array(content, kinds=kind, shape=shape)
        except (KeyError, ValueError):
            raise PlanError(f"The array {shown(name)} is not there, or not of the shape that the plan says.") from None


def max_bytes_of(plan: Plan) -> dict[str, int]:
    """Return the largest size that each file of a release of a plan may have."""
    groups, rows, blocks = plan.workload.groups, plan.workload.queries, plan.blocks.values()
    labels = {a.name: _label_bytes(a) for a in plan.schema.attributes}
    texts = sum(group.count * _text_bytes(group, labels) for group in groups)
    names = sum(map(len, labels)) + FIXED
    return {
        "plan.json": MAX_PLAN,
        "check.py": MAX_SMALL,
        "report.html": 20 * FIXED + 100 * sum(_text_bytes(g, labels) + PER_BLOCK for g in groups),
        "answers.parquet": FIXED + names + 8 * NUMBER * rows + texts,
        "answers.csv": FIXED + 4 * NUMBER * rows + 2 * texts,
        "measurements.json": FIXED + sum(PER_BLOCK + 24 * _name_bytes(b.attributes) for b in blocks),
        "measurements.npz": FIXED + _array_bytes(blocks),
    }


def _label_bytes(attribute: Attribute) -> int:
    """Return the most bytes of UTF-8 that a text on one cell has, twice for ranges from one label to another."""
    longest = max(map(len, attribute.labels), default=0) if attribute.labels is not None else 64
    if attribute.is_dated and attribute.missing is not None:
        longest = max(longest, len(str(attribute.missing)))
    return 4 * (len(attribute.name) + 2 * longest) + 100


def _text_bytes(group: Group, labels: Mapping[str, int]) -> int:
    own = [max(map(len, words), default=0) for p in group.parts if (words := getattr(p.family, "labels", None))]
    return 200 + 4 * len(group.family_text) + 2 * sum(labels[name] for name in group.attributes) + 4 * sum(own)


def _name_bytes(names: Iterable[str]) -> int:
    return sum(6 * len(name) + 8 for name in names)


def _array_bytes(blocks: Iterable[Block]) -> int:
    total, rows = 0, dict[object, int]()
    for block in blocks:
        total += 8 * block.measurements + (0 if block.weights is None else block.weights.nbytes) + 4 * PER_BLOCK
        total += 8 * math.prod(block.coordinates)
        rows |= {strategy: strategy.rows.nbytes for _, strategy in block.factors}
    return total + 4 * sum(rows.values())  # other machines may tell a few apart that are one here


def open_answers(path: Path, rows: int, max_bytes: int) -> pq.ParquetFile:
    """Open the answers of a release for reading page by page; texts come as dictionaries.

    Raises
    ------
    ValueError : the file has another number of rows, unfolds to more bytes than ``max_bytes``, or has other columns.
    """
    check_pages(path, max_bytes, rows)
    texts = sorted({"query", "status"} & set(pq.read_schema(path).names))
    file = pq.ParquetFile(path, buffer_size=1 << 20, read_dictionary=texts)
    kinds = (pa.types.is_floating, pa.types.is_string, pa.types.is_dictionary)
    if not all(any(is_kind(field.type) for is_kind in kinds) for field in file.schema_arrow):
        raise ValueError(f"{path.name} has columns of other types")
    return file
