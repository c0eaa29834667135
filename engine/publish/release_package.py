"""Release package: one zip that readers can use, verify and reproduce without the records.

Files
-----
answers.parquet, answers.csv   all answers with standard errors and intervals (CSV only up to a
                               million answers)
plan.json                      the plan: schema, workload, budget, mechanism and strategy
measurements.json, .npz        the released integers with the equations that they measure, as JSON
                               and as NumPy arrays
certificate.json               charged budget, key, privacy guarantee, and the SHA-256 of every
                               other file
signature.json                 the ledger's signature of certificate.json, if there is a ledger
report.html                    a readable report without external resources
README.md                      description of the files and of the columns of answers
check.py                       verifies the package with this project
published/                     optional: a tables package (see `write_tables`) of this release, with
                               the same plan and released integers

Every block of measurements.json is a linear equation in counts,

    integers * grid  =  (R_1 (x) R_2 (x) ...) t  +  noise,

where t is the exact table on the attributes of the block, R_f are the rows of factor f on the
attributes ``axes``, and the noise is independent with standard deviation ``noise``.  If the block
has row weights, each row of the product is multiplied by its weight.  All answers of a release are
the least-squares answers of these equations.  In two cases the files have estimates instead of
integers and equations: after a release in two stages, whose answers combine both stages, and on a
machine that computes other strategy rows from the plan than the machine that measured.

Packages are untrusted input.  `PackageFiles` therefore bounds the size of a file, in a zip or a
folder, before the file is copied or parsed.  The certificate, the signature, the plan and the
options of tables have fixed limits; the limits of all other files follow from the plan.

A parquet file may state wrong sizes in its footer.  The memory that a reader needs is determined by
the page headers, so `check_pages` parses these.  They are encoded in the compact protocol of
Thrift, see the format specification of Apache Parquet.
"""

from __future__ import annotations

import hashlib
import html
import json
import math
import mmap
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from engine._arrays import Array
from engine._format import format_number, markdown, pluralize, quote_public, set_name
from engine._untrusted import (
    MAX_JSON_MEMORY,
    MAX_MEMBERS,
    bounded_chunks,
    is_plain_name,
    is_regular_file,
    member_chunks,
    open_zip,
    parse_json,
    read_array,
    read_member,
)
from engine.analysis import group_table
from engine.analysis.error_targets import claim_text
from engine.errors import PlanError
from engine.ledger import Ledger, Receipt
from engine.plans import Block, Plan
from engine.postprocess import QualityRule
from engine.privacy import ADD_REMOVE, REPLACE_ONE
from engine.progress import Progress, progress_reporter
from engine.publish.output_path import new_file
from engine.publish.report import REHEARSAL_MARK, write_answers
from engine.release import Measurement
from engine.release.measure import measurement_of
from engine.residuals import Space, Strategy
from engine.residuals.operators import MAX_DENSE_BYTES, EntryRows
from engine.workload import Attribute, Group

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow.parquet as pq

    from engine.figures import Picture
    from engine.postprocess.uncertainty import Uncertainty


MAX_FOOTER = 1_000_000  # largest parquet footer in bytes, without one byte per row
# field types of the compact protocol of Thrift
STOP, BOOLEANS, BYTE, INTEGERS, DOUBLE, BINARY, LISTS, STRUCT = (
    0,
    (1, 2),
    3,
    (4, 5, 6),
    7,
    8,
    (9, 10),
    12,
)
UNCOMPRESSED, COMPRESSED = 2, 3  # field numbers of the sizes in a page header
MAX_NESTING = 8  # levels of structs and lists in a page header


def check_pages(path: Path, max_bytes: int, rows: int) -> None:
    """Raise ValueError unless a parquet file has ``rows`` rows and is small enough to be read.

    It is small enough if all its pages together have at most ``max_bytes`` bytes after
    decompression.

    >>> import pyarrow as pa, pyarrow.parquet as pq, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "a.parquet")
    ...     pq.write_table(pa.table({"a": ["x" * 10**6]}), file, compression="zstd")
    ...     check_pages(file, 2 * 10**5, rows=1)
    Traceback (most recent call last):
    ValueError: a.parquet has more uncompressed bytes than the plan allows
    """
    import pyarrow.parquet as pq

    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        if len(content) < 12 or content[-4:] != b"PAR1":
            raise ValueError(f"{path.name} is not a parquet file")
        if int.from_bytes(content[-8:-4], "little") > min(len(content), MAX_FOOTER + rows):
            raise ValueError(f"{path.name} has a longer footer than the plan allows")
        metadata = pq.read_metadata(path)
        if metadata.num_rows != rows:
            raise ValueError(f"{path.name} does not have one row per query of the plan")
        total = 0
        for start, stop in _column_ranges(metadata):
            if not 0 < start <= stop <= len(content):
                raise ValueError(f"{path.name} has pages outside the file")
            reader = _Reader(content, start)
            while reader.place < stop:
                fields = reader.struct()
                uncompressed = fields.get(UNCOMPRESSED, -1)
                compressed = fields.get(COMPRESSED, -1)
                if uncompressed < 0 or compressed < 0:
                    raise ValueError(f"{path.name} has a page without a size")
                total += uncompressed
                reader.place += compressed
                if total > max_bytes:
                    raise ValueError(
                        f"{path.name} has more uncompressed bytes than the plan allows"
                    )


def _column_ranges(metadata: pq.FileMetaData) -> Iterator[tuple[int, int]]:
    """Yield for every column chunk the positions in the file at which its pages start and end."""
    for group in range(metadata.num_row_groups):
        for number in range(metadata.num_columns):
            column = metadata.row_group(group).column(number)
            start = column.data_page_offset
            dictionary_start = column.dictionary_page_offset
            if dictionary_start is not None and 0 < dictionary_start < start:
                start = dictionary_start
            yield start, start + column.total_compressed_size


@dataclass
class _Reader:
    """Reader of values in the compact protocol of Thrift, from a position in a file."""

    content: mmap.mmap
    place: int

    def struct(self, depth: int = 0) -> dict[int, int]:
        """Read a struct; return the values of its integer fields by field number."""
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
        """Move the position past a value of field type ``kind``."""
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
        """Read a signed integer in zigzag encoding."""
        value = self._varint()
        return value >> 1 ^ -(value & 1)


MAX_RELEASE_FILES = 10  # files of a release package without published tables
PUBLISHED = "published/"  # folder of the published tables in a release package
MAX_PLAN = 150_000_000  # bytes
MAX_CERTIFICATE = 4_000_000
MAX_SMALL = 100_000  # signature, options of tables, or script
FIXED_BYTES = 4_000_000  # allowance per file that does not depend on the plan
BLOCK_BYTES = 4_000  # description of a block, without its names
NUMBER_BYTES = 32  # a number as text, with its comma
Chunks = Callable[[str, int], Iterator[bytes]]


@dataclass(frozen=True, kw_only=True)
class PackageFiles:
    """Size-limited access to the files of an untrusted package, which is a zip or a folder.

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
        """Return the SHA-256 of a file as hexadecimal digits, and make `path` valid for the file.

        A file of a zip is copied to the scratch folder for this.

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

    def inner(self, prefix: str) -> PackageFiles:
        """Return the files whose names start with ``prefix``, under their names without it."""
        return PackageFiles(
            names=tuple(n.removeprefix(prefix) for n in self.names if n.startswith(prefix)),
            _chunks=lambda name, max_bytes: self._chunks(f"{prefix}{name}", max_bytes),
            _folder=self._folder / prefix,
            _in_place=self._in_place,
        )


@contextmanager
def package_files(place: Path, scratch: Path) -> Iterator[PackageFiles]:
    """Open the package at ``place``, a zip or a folder, for reading.

    `PackageFiles.digest` copies files of a zip to the folder ``scratch``.

    Raises
    ------
    PlanError : there are too many files, or the zip is damaged or has links, folders, encrypted
        files or duplicate names.
    """
    if place.is_dir():
        names = sorted(_names_in_folder(place))
        if len(names) > MAX_MEMBERS:
            raise PlanError(
                f"The folder has {len(names):,} files, but a package has at most {MAX_MEMBERS:,}."
                " Give the folder of one package."
            )

        def from_folder(name: str, max_bytes: int) -> Iterator[bytes]:
            in_folder = name.startswith(PUBLISHED)
            # a link in place of the folder could lead to files outside the package
            is_linked = in_folder and (place / PUBLISHED).is_symlink()
            if (
                is_linked
                or not is_plain_name(name.removeprefix(PUBLISHED))
                or not is_regular_file(place / name)
            ):
                raise ValueError(f"{name} is not a regular file")
            with open(place / name, "rb") as file:
                yield from bounded_chunks(file, max_bytes, name)

        yield PackageFiles(names=tuple(names), _chunks=from_folder, _folder=place, _in_place=True)
        return
    folder = PUBLISHED.rstrip("/")
    with open_zip(place, "The package", error=PlanError, folder=folder) as archive:

        def from_zip(name: str, max_bytes: int) -> Iterator[bytes]:
            return member_chunks(archive, name, max_bytes)

        names = sorted(archive.namelist())
        (scratch / PUBLISHED).mkdir(exist_ok=True)
        yield PackageFiles(names=tuple(names), _chunks=from_zip, _folder=scratch, _in_place=False)


def _names_in_folder(place: Path) -> list[str]:
    """Return the names of the files of a package in a folder, with those in `PUBLISHED`."""
    names = []
    for entry in os.scandir(place):
        if entry.name == PUBLISHED.rstrip("/") and entry.is_dir(follow_symlinks=False):
            names += [f"{PUBLISHED}{inner.name}" for inner in os.scandir(entry.path)]
        else:
            names.append(entry.name)
    return names


@dataclass(frozen=True, kw_only=True)
class ArrayFile:
    """Reader of a ``.npz`` file with arrays of expected types and shapes."""

    _archive: zipfile.ZipFile

    @classmethod
    @contextmanager
    def open(cls, path: Path, max_arrays: int) -> Iterator[ArrayFile]:
        """Open a file of at most ``max_arrays`` arrays for reading.

        Raises: PlanError if the file has more arrays or is damaged.  Some damage is found only by
        `read`, which raises PlanError as well.
        """
        with open_zip(path, path.name, error=PlanError, max_members=max_arrays) as archive:
            yield cls(_archive=archive)

    def read(self, name: str, kind: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """Return an array; raise PlanError unless it has this NumPy kind ("f", "i") and shape."""
        try:
            content = read_member(self._archive, f"{name}.npy", 8 * math.prod(shape) + 10_240)
            return read_array(content, kinds=kind, shape=shape)
        except (KeyError, ValueError):
            raise PlanError(
                f"The array {quote_public(name)} of the measurements is missing, or does not have the"
                f" shape {shape} that the plan implies. Give the package as it was published."
            ) from None


def max_arrays_of(plan: Plan) -> int:
    """Return the maximum number of arrays in the measurements of a plan."""
    n_arrays = 0
    for block in plan.blocks.values():
        # released integers, row weights if there are any, and the rows of every factor
        n_arrays += 1 + (block.weights is not None)
        for _, strategy in block.factors:
            symbol = rows_symbol(strategy)
            n_arrays += 1 + (len(symbol.layout) if symbol is not None else 0)
    # the files of a two-stage release have estimates instead
    return max(n_arrays, len(plan.estimate_blocks))


def max_bytes_of(plan: Plan) -> dict[str, int]:
    """Return the maximum size in bytes of every file in a release package of the plan, by name."""
    groups, rows, blocks = plan.workload.groups, plan.workload.queries, plan.blocks.values()
    labels = {a.name: _label_bytes(a) for a in plan.schema.attributes}
    texts = sum(group.count * _text_bytes(group, labels) for group in groups)
    names = sum(map(len, labels)) + FIXED_BYTES
    return {
        "plan.json": MAX_PLAN,
        "check.py": MAX_SMALL,
        README: MAX_SMALL + names,
        "report.html": (
            20 * FIXED_BYTES + 100 * sum(_text_bytes(g, labels) + BLOCK_BYTES for g in groups)
        ),
        "answers.parquet": FIXED_BYTES + names + 8 * NUMBER_BYTES * rows + texts,
        "answers.csv": FIXED_BYTES + 4 * NUMBER_BYTES * rows + 2 * texts,
        "measurements.json": (
            FIXED_BYTES + sum(BLOCK_BYTES + 24 * _name_bytes(b.attributes) for b in blocks)
        ),
        "measurements.npz": FIXED_BYTES + _array_bytes(blocks),
    }


def _label_bytes(attribute: Attribute) -> int:
    """Return an upper bound of the UTF-8 bytes that one attribute adds to the text of a query.

    The text has the name of the attribute and at most two labels, the ends of a range.
    """
    longest = max(map(len, attribute.labels), default=0) if attribute.labels is not None else 64
    if attribute.is_dated and attribute.missing is not None:
        longest = max(longest, len(str(attribute.missing)))
    return 4 * (len(attribute.name) + 2 * longest) + 100


def _text_bytes(group: Group, labels: Mapping[str, int]) -> int:
    """Return an upper bound of the bytes of all texts in the row of one query of a group.

    ``labels`` maps attributes to the results of `_label_bytes`.
    """
    label_lengths = [
        max(map(len, words), default=0)
        for p in group.parts
        if (words := getattr(p.family, "labels", None))
    ]
    return (
        200
        + 4 * len(group.family_text)
        + 2 * sum(labels[name] for name in group.attributes)
        + 4 * sum(label_lengths)
    )


def _name_bytes(names: Iterable[str]) -> int:
    return sum(6 * len(name) + 8 for name in names)


def _array_bytes(blocks: Iterable[Block]) -> int:
    """Return an upper bound of the bytes of measurements.npz."""
    total, rows = 0, dict[object, int]()
    for block in blocks:
        total += (
            8 * block.measurements
            + (0 if block.weights is None else block.weights.nbytes)
            + 4 * BLOCK_BYTES
        )
        total += 8 * math.prod(block.coordinates)
        # rows that are too large for a matrix are stored as a few numbers
        rows |= {s: min(s.rows.nbytes, int(MAX_DENSE_BYTES)) for _, s in block.factors}
    # factor 4: blocks that share a strategy on this machine may have had several strategies, with
    # slightly different rows, on the machine that measured
    return total + 4 * sum(rows.values())


def open_answers(path: Path, rows: int, max_bytes: int) -> pq.ParquetFile:
    """Open the file of answers of a release, for reading page by page.

    Texts remain dictionary-encoded, so that repeated texts need little memory.

    Raises
    ------
    ValueError : the file has a different number of rows, an uncompressed size above ``max_bytes``,
        or columns that are neither numbers nor texts.
    """
    import pyarrow.parquet as pq

    check_pages(path, max_bytes, rows)
    texts = sorted({"query", "status"} & set(pq.read_schema(path).names))
    file = pq.ParquetFile(path, buffer_size=1 << 20, read_dictionary=texts)
    kinds = (pa.types.is_floating, pa.types.is_string, pa.types.is_dictionary)
    if not all(any(is_kind(field.type) for is_kind in kinds) for field in file.schema_arrow):
        raise ValueError(f"{path.name} has columns that are neither numbers nor texts")
    return file


MEASUREMENTS_FORMAT = "measurements/1"
# text in measurements.json; it must not change, because verification compares it
MEASUREMENTS_MEANING = (
    "The released whole numbers with all that is needed to compute from them, in NumPy's own "
    "file format. `measurements.json` says for every block what was measured; the arrays it "
    "names are in `measurements.npz`: integers * grid = (R_1 (x) R_2 (x) ...) t + noise in "
    "counts, weighted row by row where there are weights where t is the exact table on the "
    "block's attributes, R_f the rows of factor f on the attributes `axes`, and the noise "
    "independent with standard deviation `noise`. All answers of a release are the "
    "least-squares answers of these equations. Where a release was made in two steps, its "
    "answers follow from both, and the arrays are the estimates that combine them; they are "
    "estimates, too, where these files are written on a machine that would measure the same in "
    "other rows."
)
NAMES = ("measurements.json", "measurements.npz")
# Strategy rows of wide attributes are too large for a file, but are determined by a few numbers.
# Keys are the kinds of such rows, values their descriptions in measurements.json (key "forms").
ROW_FORMS = {
    "identity": "one row per cell: the number of the array `rows` on that cell, and 0 elsewhere",
    "reflection": (
        "one row per cell but the last, on n cells; with the numbers (one, others, last) of the "
        "array `rows`, row k is one + others on cell k, others on the rest of the first n - 1 "
        "cells, and last on the last cell"
    ),
    "areas": (
        "one row per area; the array `rows` has for every row its entry on the cells of the area "
        "and its entry on the other cells; `rows`_order lists the cells so that every area is a "
        "range of this list, and `rows`_ranges has the first position and the end of the range"
    ),
}


def rows_symbol(strategy: Strategy) -> EntryRows | None:
    """Return the rows of a strategy as one of `ROW_FORMS`; None if they are a dense matrix."""
    rows: object = strategy.rows
    return rows if isinstance(rows, EntryRows) else None


def write_measurements(measurement: Measurement, folder: Path) -> list[Path]:
    """Write the released integers and the equations that they measure; return the paths.

    If integers and plan do not determine the estimates (`in_one_step`), the estimates are written
    instead.
    """
    if not in_one_step(measurement):
        return _write_estimates(measurement, folder)
    arrays: dict[str, npt.NDArray[Any]] = {}
    rows: dict[Strategy, str] = {}
    forms: dict[str, str] = {}
    blocks = []
    for number, (space, block) in enumerate(measurement.plan.blocks.items()):
        factors = []
        for axes, strategy in block.factors:
            name = rows.setdefault(strategy, f"rows{len(rows)}")
            factor = {"axes": [block.attributes[a] for a in axes], "rows": name}
            symbol = rows_symbol(strategy)
            arrays[name] = strategy.rows if symbol is None else symbol.entries
            if symbol is not None:
                factor["form"] = symbol.form
                forms[symbol.form] = ROW_FORMS[symbol.form]
                for key, layout in symbol.layout.items():
                    arrays[f"{name}_{key}"] = layout
            factors.append(factor)
        description: dict[str, Any] = {
            "attributes": block.attributes,
            "factors": factors,
            "integers": f"block{number}",
        }
        description |= {"grid": block.grid, "noise": block.noise, "law": block.law}
        arrays[f"block{number}"] = measurement.answers_on_grid[space]
        if block.weights is not None:
            description["weights"] = f"weights{number}"
            arrays[f"weights{number}"] = block.weights
        blocks.append(description)
    content = {"blocks": blocks} | ({"forms": forms} if forms else {})
    return _write_files(measurement, folder, content, arrays)


def in_one_step(measurement: Measurement) -> bool:
    """Return whether the released integers and the plan determine the estimates.

    They do not if the measurement is the second stage of a two-stage release, or if this machine
    computes other strategy rows from the plan (rotated by other eigenvectors) than the machine that
    measured.
    """
    plan, integers = measurement.plan, measurement.answers_on_grid
    if any(s not in integers or integers[s].size != b.measurements for s, b in plan.blocks.items()):
        return False
    recomputed = measurement_of(
        plan, integers, dataset="", key="", utc="", rehearsal=measurement.rehearsal
    )
    return all(
        np.allclose(recomputed.estimates[s], e, rtol=1e-9, atol=1e-9)
        for s, e in measurement.estimates.items()
    )


def _write_estimates(measurement: Measurement, folder: Path) -> list[Path]:
    numbered = dict(enumerate(measurement.estimates.items()))
    entries = [
        {"space": list(space), "estimates": f"estimates{i}"} for i, (space, _) in numbered.items()
    ]
    return _write_files(
        measurement,
        folder,
        {"estimates": entries},
        {f"estimates{i}": e for i, (_, e) in numbered.items()},
    )


def _write_files(
    measurement: Measurement,
    folder: Path,
    content: Mapping[str, Any],
    arrays: Mapping[str, npt.NDArray[Any]],
) -> list[Path]:
    text = {"format": MEASUREMENTS_FORMAT, "meaning": MEASUREMENTS_MEANING, **content}
    if measurement.rehearsal:
        text["status"] = "REHEARSAL"
    paths = [folder / name for name in NAMES]
    paths[0].write_text(json.dumps(text, indent=1, ensure_ascii=False), encoding="utf-8")
    np.savez(paths[1], allow_pickle=False, **arrays)
    return paths


def read_measurements(
    plan: Plan, description: Path, arrays: Path, *, rehearsal: bool, **release_fields: str
) -> Measurement:
    """Read the measurement of a plan from the files that `write_measurements` wrote.

    If the files have integers and equations, the plan of the result has the strategy rows in the
    files, because the machine that measured may have computed rotated rows (`Strategy.by_rows`).
    If the files have estimates, the result has these estimates and no answers on the grid.

    Parameters
    ----------
    description, arrays : paths of measurements.json and measurements.npz.
    rehearsal : whether the measurement is a rehearsal.
    release_fields : dataset, key and utc of the measurement.

    Raises
    ------
    PlanError : the files have another format or are damaged, a block is missing, or the equations
        in the files are not equivalent to those of the plan.
    """
    text = parse_json(description.read_bytes(), max_memory=MAX_JSON_MEMORY)
    if not isinstance(text, dict) or text.get("format") != MEASUREMENTS_FORMAT:
        raise PlanError(
            f"measurements.json does not have the format {MEASUREMENTS_FORMAT!r}, the only one that"
            " this version reads. Give the package as it was published."
        )
    with ArrayFile.open(arrays, max_arrays_of(plan)) as array_file:
        if "estimates" in text:
            estimates = _read_estimates(plan, text["estimates"], array_file)
            return Measurement(
                plan=plan,
                rehearsal=rehearsal,
                answers_on_grid={},
                estimates=estimates,
                **release_fields,
            )
        if not isinstance(text.get("blocks"), list) or len(text["blocks"]) != len(plan.blocks):
            raise PlanError(
                f"measurements.json does not describe the {len(plan.blocks):,} blocks of the plan."
                " Give the package as it was published."
            )
        integers, blocks, strategies = {}, {}, dict[tuple[Strategy, str], Strategy]()
        for (space, block), entry in zip(plan.blocks.items(), text["blocks"], strict=True):
            _check_block(block, entry)
            blocks[space] = _with_measured_rows(block, entry, array_file, strategies)
            integers[space] = array_file.read(entry["integers"], "i", (block.measurements,)).astype(
                np.int64
            )
    if any(block is not plan.blocks[space] for space, block in blocks.items()):
        plan = replace(plan, blocks=blocks)
    return measurement_of(plan, integers, rehearsal=rehearsal, **release_fields)


def _read_estimates(plan: Plan, entries: Any, arrays: ArrayFile) -> dict[Space, Array]:
    if not isinstance(entries, list) or not all(
        isinstance(e, dict)
        and isinstance(e.get("space"), list)
        and all(isinstance(name, str) for name in e["space"])
        and isinstance(e.get("estimates"), str)
        for e in entries
    ):
        raise PlanError(
            "The list of estimates in measurements.json is damaged. Give the package as it was"
            " published."
        )
    names = {tuple(e["space"]): e["estimates"] for e in entries}
    if len(names) != len(entries) or names.keys() != plan.estimate_blocks.keys():
        raise PlanError(
            "The attribute sets of the estimates in measurements.json are not those of the plan."
            " Give the package as it was published."
        )
    return {
        space: arrays.read(name, "f", plan.estimate_blocks[space].coordinates)
        for space, name in names.items()
    }


def _check_block(block: Block, entry: Any) -> None:
    """Raise PlanError unless the description of a block has all fields with the right types."""
    texts = ("law", "integers") if block.weights is None else ("law", "integers", "weights")
    if (
        not isinstance(entry, dict)
        or not all(isinstance(entry.get(name), str) for name in texts)
        or not all(type(entry.get(name)) in (int, float) for name in ("grid", "noise"))
        or not isinstance(entry.get("factors"), list)
        or len(entry["factors"]) != len(block.factors)
        or not all(
            isinstance(f, dict) and isinstance(f.get("rows"), str) and "axes" in f
            for f in entry["factors"]
        )
    ):
        raise _mismatch(block)


def _with_measured_rows(
    block: Block,
    entry: Mapping[str, Any],
    arrays: ArrayFile,
    strategies: dict[tuple[Strategy, str], Strategy],
) -> Block:
    """Return a block of the plan whose strategies have the rows in the measurement files.

    Parameters
    ----------
    entry : description of the block in measurements.json.
    strategies : cache, which this function extends: (strategy of the plan, name of its rows in the
        files) -> strategy with the rows in the files.  With it, blocks that share a strategy in the
        plan share one in the result.

    Raises: PlanError if the description is not that of the block.
    """
    matches = (
        (entry["grid"], entry["noise"], entry["law"]) == (block.grid, block.noise, block.law)
        and entry.get("attributes") == list(block.attributes)
        and [f["axes"] for f in entry["factors"]]
        == [[block.attributes[a] for a in axes] for axes, _ in block.factors]
        and (block.weights is None) == ("weights" not in entry)
    )
    if matches and block.weights is not None:
        weights = arrays.read(entry["weights"], "f", block.weights.shape)
        matches = np.allclose(weights, block.weights, rtol=1e-9)
    if not matches:
        raise _mismatch(block)
    factors = []
    for f, (axes, strategy) in zip(entry["factors"], block.factors, strict=True):
        shared, symbol = (strategy, f["rows"]), rows_symbol(strategy)
        if "form" in f:
            if symbol is None or f["form"] != symbol.form:
                raise _mismatch(block)
            entries = arrays.read(f["rows"], "f", symbol.entries.shape)
            if not np.allclose(entries, symbol.entries, rtol=1e-9, atol=0.0):
                raise _mismatch(block)
            for key, layout in symbol.layout.items():
                if not np.array_equal(arrays.read(f"{f['rows']}_{key}", "i", layout.shape), layout):
                    raise _mismatch(block)
            factors.append((axes, strategy))
            continue
        measured_strategy = strategies.get(shared) or strategy.by_rows(
            arrays.read(f["rows"], "f", strategy.rows.shape)
        )
        # rotated rows are equivalent only for Gaussian noise without row weights
        may_rotate = block.weights is None and block.law == "gaussian"
        if measured_strategy is None or not (
            may_rotate or np.allclose(measured_strategy.rows, strategy.rows, rtol=1e-9, atol=1e-12)
        ):
            raise _mismatch(block)
        strategies[shared] = measured_strategy
        factors.append((axes, measured_strategy))
    unchanged = all(
        one is other for (_, one), (_, other) in zip(factors, block.factors, strict=True)
    )
    return block if unchanged else replace(block, factors=tuple(factors))


def _mismatch(block: Block) -> PlanError:
    return PlanError(
        f"The measurements on {list(block.attributes)} do not match the plan: their strategy rows,"
        " noise or grid differ. Give the package as it was published."
    )


PACKAGE_FORMAT = "release/5"
MAX_CSV_ANSWERS = 1_000_000
REPORT_ANSWERS = 40  # answers per group in the report
REPORT_GROUPS = 12  # groups with answers in the report
REPORT_ROWS = 300  # rows of a table in the report
STYLE = """
:root{color-scheme:light dark}
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1a1a1a;background:#fff}
table{border-collapse:collapse;margin:1rem 0;font-variant-numeric:tabular-nums}
th,td{padding:.25rem .75rem;border-bottom:1px solid #ccc;text-align:right}
th:first-child,td:first-child{text-align:left}
.mark{border:3px solid #b34700;padding:.5rem 1rem;font-weight:bold}
td{overflow-wrap:anywhere}
svg{width:100%;font-size:13px;fill:currentColor;stroke-width:2}
path{stroke:#1f77b4}
.zero{stroke:#888;stroke-width:1}
circle{fill:#1f77b4}
@media print{body{margin:0}}
"""
CERTIFICATE, SIGNATURE = "certificate.json", "signature.json"
CHECK = '''"""Verify this release; reads no records.

    python check.py                     recompute all answers from the plan and the released integers
    python check.py PUBLIC_KEY          also require the signature of the ledger with this key

Recomputing needs the Python package dp-query-workbench. Without it, only the digests of the files are
compared, and the exit code is 2. measurements.json describes the integers in measurements.npz.
"""

import hashlib
import json
import sys
from pathlib import Path


def check_digests(folder):
    certificate = json.loads((folder / "certificate.json").read_text(encoding="utf-8"))
    problems = []
    for name, digest in sorted(certificate["files"].items()):
        place = folder / "published" if name.startswith("published/") else folder
        file = place / Path(name).name
        if not file.is_file():
            problems.append(f"{name} is missing")
        elif hashlib.sha256(file.read_bytes()).hexdigest() != digest:
            problems.append(f"{name} was changed")
    return problems


def main():
    # names of attributes may have characters that a terminal cannot print
    sys.stdout.reconfigure(errors="backslashreplace")
    folder = Path(__file__).parent
    try:
        from engine.publish import verify_package
    except ImportError:
        problems = check_digests(folder)
        print("\\n".join(problems) or "Every file has the digest that certificate.json states.")
        print("Signature and answers were not checked. Install the Python package dp-query-workbench to check them.")
        return 1 if problems else 2
    problems = verify_package(folder, public_key=sys.argv[1] if len(sys.argv) > 1 else None)
    success = "Every file, field, answer, standard error and interval is what plan and integers give."
    print("\\n".join(problems) or success)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
'''

README = "README.md"
_README_FILES = {
    "answers.parquet": "all answers with standard errors and intervals",
    "answers.csv": "the same as text",
    "report.html": "a report to read in a browser",
    "certificate.json": "privacy guarantee, charged budget, and the SHA-256 of every file",
    "signature.json": "the ledger's signature of the certificate, if there is a ledger",
    "plan.json": "schema, queries, budget, mechanism and strategy",
    "measurements.json": "the equations of the released integers in measurements.npz",
    "check.py": "verifies the package: `python check.py`",
}
_README_COLUMNS = {
    "attributes, family, query": "what is counted",
    "answer": "unbiased noisy count; it may be negative and has decimals",
    "std": "standard error of the answer, in counts",
    "low, high": "limits of the confidence interval, in counts",
}


def readme(measurement: Measurement, confidence: float, *, has_tables: bool = False) -> str:
    """Return the text of README.md in a release package, with or without published tables."""
    plan = measurement.plan
    title = (
        REHEARSAL_MARK if measurement.rehearsal else f"Release of {markdown(measurement.dataset)}"
    )
    files = dict(_README_FILES)
    if plan.workload.queries > MAX_CSV_ANSWERS:
        del files["answers.csv"]
    if has_tables:
        files[PUBLISHED] = (
            "tables without negative counts that agree with each other; see published/README.md"
        )
    lines = [f"# {title}", "", markdown(plan.schema.promise(plan.budget)), ""]
    lines += [markdown(plan.meaning), "", "## Files", ""]
    lines += [f"- `{name}`: {text}" for name, text in files.items()]
    lines += ["", "## Columns of the answers", ""]
    lines += [f"- {name}: {text}" for name, text in _README_COLUMNS.items()]
    lines += ["", f"Intervals have confidence level {confidence:g}."]
    return "\n".join(lines) + "\n"


def write_package(
    measurement: Measurement,
    path: str | os.PathLike[str],
    *,
    receipt: Receipt | None = None,
    ledger: Ledger | None = None,
    confidence: float = 0.95,
    overwrite: bool = False,
    progress: Progress | None = None,
    published: Uncertainty | None = None,
    rule: QualityRule | None = None,
) -> Path:
    """Write a release package: one zip with everything that readers need to use and verify answers.

    Parameters
    ----------
    receipt : receipt of the ledger for the spend.  Its hash is written into the certificate, so
        that readers can find out whether the ledger was later reset to an older state.
    ledger : ledger whose key signs the certificate, which contains the digests of all other files.
        The package is not signed without a ledger, or if the measurement is a rehearsal.
    confidence : confidence level of the intervals.
    overwrite : whether to replace an earlier file of answers; other files are never replaced.
    progress : called with (fraction, text); if it returns False, writing is cancelled and partial
        files are removed.
    published : errors of the published tables of the measurement, which are then in the folder
        `PUBLISHED` of the package; by default the package has no published tables.
    rule : rule that flags unreliable published numbers; by default `QualityRule()`.

    Guarantee: the package depends on the records only through the released answers.  The file is
    written atomically.

    Raises
    ------
    LimitExceeded : there are more published tables than a package may have.
    PlanError : the confidence level is not between 0 and 1, or the path must not be written, see
        `check_target`.
    Cancelled : ``progress`` returned False.
    """

    report_progress, plan = (
        progress_reporter(progress, "Writing the package was cancelled; no file was left behind."),
        measurement.plan,
    )
    with (
        new_file(path, overwrite=overwrite) as partial,
        tempfile.TemporaryDirectory(dir=partial.parent) as temporary,
    ):
        folder = Path(temporary)
        files = [folder / "plan.json", folder / "check.py", folder / "answers.parquet"]
        files[0].write_text(plan.to_json(), encoding="utf-8")
        files[1].write_text(CHECK, encoding="utf-8")
        files.append(folder / README)
        has_tables = published is not None
        files[-1].write_bytes(readme(measurement, confidence, has_tables=has_tables).encode())
        measurement_files = write_measurements(measurement, folder)
        files += measurement_files
        write_answers(
            measurement,
            files[2],
            confidence=confidence,
            progress=lambda f, t: report_progress(0.5 * f, t),
        )
        if plan.workload.queries <= MAX_CSV_ANSWERS:
            files.append(folder / "answers.csv")
            write_answers(
                measurement,
                files[-1],
                format="csv",
                confidence=confidence,
                progress=lambda f, t: report_progress(0.5, t),
            )
        report_progress(0.6, "Writing the report")
        files.append(folder / "report.html")
        files[-1].write_text(
            report_html(measurement, receipt=receipt, confidence=confidence), encoding="utf-8"
        )
        if published is not None:
            report_progress(0.7, "Writing the published tables")
            files += _write_published_tables(
                published, folder, [files[0], *measurement_files], rule, confidence
            )
        fields = certificate(measurement, receipt, confidence)
        fields["files"] = {f.relative_to(folder).as_posix(): _digest(f) for f in files}
        text = json.dumps(fields, indent=2, sort_keys=True, ensure_ascii=False).encode()
        files.append(folder / CERTIFICATE)
        files[-1].write_bytes(text)
        if ledger is not None and not measurement.rehearsal:
            public, signature = ledger.sign(text)
            files.append(folder / SIGNATURE)
            signed = {
                "algorithm": "Ed25519",
                "of": CERTIFICATE,
                "public_key": public,
                "signature": signature,
            }
            files[-1].write_text(json.dumps(signed, indent=2), encoding="utf-8")
        report_progress(0.8, "Packing")
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for file in files:
                archive.write(file, file.relative_to(folder).as_posix())
    report_progress(1.0, "Packed")
    return Path(path)


def _write_published_tables(
    errors: Uncertainty,
    folder: Path,
    shared_files: Iterable[Path],
    rule: QualityRule | None,
    confidence: float,
) -> list[Path]:
    """Write the files of a tables package into the folder `PUBLISHED`; return their paths.

    ``shared_files`` are the plan and the measurements of the release package, of which the tables
    package has copies.
    """
    # the module imports this one
    from engine.publish.tables_package import check_size, tables_files

    check_size(errors.published.measurement.plan.workload, other_files=MAX_RELEASE_FILES)
    place = folder / PUBLISHED
    place.mkdir()
    files = tables_files(errors, place, rule=rule or QualityRule(), confidence=confidence)
    for file in shared_files:
        shutil.copyfile(file, place / file.name)
    return files


def certificate(
    measurement: Measurement, receipt: Receipt | None, confidence: float
) -> dict[str, Any]:
    """Return the content of certificate.json: privacy guarantee, privacy cost and accuracy.

    With a receipt, the content includes the row of the spend in the ledger and its hash.
    """
    plan, budget = measurement.plan, measurement.plan.budget
    optimality = plan.certificate
    out: dict[str, Any] = {
        "format": PACKAGE_FORMAT,
        "status": REHEARSAL_MARK if measurement.rehearsal else "release",
        "dataset": measurement.dataset,
        "key": measurement.key,
        "utc": measurement.utc,
        "plan_hash": plan.hash,
        "mechanism": plan.mechanism,
        "noise": f"exact discrete {budget.law.capitalize()}",
        "neighbours": budget.neighbours,
        "rows_per_person": budget.rows_per_person,
        "pcost": plan.pcost,
        "rho": plan.pcost / 2,
        "epsilon_by_delta_proved": plan.epsilon_by_delta,
        "meaning": plan.meaning,
        "max_records": plan.max_records,
        "queries": plan.workload.queries,
        "rmse_counts": plan.rmse,
        "confidence": confidence,
        "global_bound_counts": optimality.global_bound,
        "global_gap": optimality.global_gap if math.isfinite(optimality.global_gap) else None,
        "claim": claim_text(plan),
        "lower_bound_counts": optimality.lower_bound,
        "gap": optimality.gap,
        "bound": optimality.statement,
    }
    out["promise"] = plan.schema.promise(budget)
    if (keep := plan.options.get("keep")) is not None:
        out["kept"] = _keep_text(plan, keep)
    if plan.schema.invariants:
        out["exact"] = [list(one.attributes) for one in plan.schema.invariants]
    if budget.pure_epsilon is not None:
        out["pure_epsilon"] = budget.pure_epsilon
    if receipt is not None:
        out["ledger"] = {
            "seq": receipt.seq,
            "hash": receipt.hash,
            "pcost": receipt.pcost,
            "utc": receipt.utc,
        }
    return out


def _keep_text(plan: Plan, keep: float | Mapping[int, float]) -> str:
    """Describe the accuracy constraints of groups that the plan option ``keep`` sets.

    A value of ``keep`` is the largest allowed relative excess of a group's error over its error
    with uniform centers.  ``keep`` is one value for all groups, or a mapping from group numbers to
    values.
    """
    shares = keep.items() if isinstance(keep, Mapping) else [(None, keep)]
    limits = []
    for number, share in shares:
        group = None if number is None else plan.workload.groups[number]
        name = (
            "every group"
            if group is None
            else f"{set_name(group.attributes)} ({group.family_text})"
        )
        limit = f"at most {100.0 * share:g}%" if share else "not"
        limits.append(f"{name}: {limit} above its error with uniform centers")
    return "; ".join(limits) or "no group"


def report_html(
    measurement: Measurement, *, receipt: Receipt | None = None, confidence: float = 0.95
) -> str:
    """Return a readable report as one HTML page without external resources."""
    from engine.figures import answers_picture, budget_picture, spread_picture

    plan, fields = measurement.plan, certificate(measurement, receipt, confidence)
    title = "Rehearsal report" if measurement.rehearsal else f"Release of {measurement.dataset}"
    parts = [f"<h1>{html.escape(title)}</h1>"]
    if measurement.rehearsal:
        parts.append(f"<p class=mark>{REHEARSAL_MARK}</p>")
    parts.append(
        f"<p>{pluralize(plan.workload.queries, 'count')} about"
        f" {pluralize(len(plan.schema), 'attribute')}, each with its standard error and"
        f" {confidence:.0%} interval. Typical error {format_number(plan.rmse)} counts.</p>"
    )
    promise = (
        "<p><b>To the people in these records:</b>"
        f" {html.escape(plan.schema.promise(plan.budget))}</p>"
    )
    parts += ["<h2>Privacy</h2>", promise, f"<p>{html.escape(plan.meaning)}</p>", _facts(fields)]
    claim = claim_text(plan)
    if fields["bound"] not in claim:
        claim = f"{claim} {fields['bound']}"
    parts += [
        "<h2>How exact</h2>",
        f"<p>{html.escape(claim)}</p>",
    ]
    parts += [_picture(p) for p in (spread_picture(plan, plan.rmse), budget_picture(plan))]
    parts += ["<h2>Errors of every group</h2>", _table(group_table(plan).head(REPORT_ROWS))]
    parts.append(
        f"<h2>Answers</h2><p>The first {REPORT_ANSWERS} of a group are shown; answers.parquet has"
        " all of them.</p>"
    )
    for number, group in enumerate(plan.workload.groups[:REPORT_GROUPS]):
        answers = measurement.answers(number, 0, REPORT_ANSWERS, confidence)
        picture = answers_picture(answers, rehearsal=measurement.rehearsal)
        picture = replace(picture, title=f"Answers on {set_name(group.attributes)}")
        parts.append(_picture(picture, _interval_chart(answers)))
    head = f'<meta charset="utf-8"><title>{html.escape(title)}</title><style>{STYLE}</style>'
    return (
        "<!doctype html><html"
        f' lang="en"><head>{head}</head><body><main>{"".join(parts)}</main></body></html>'
    )


def _picture(picture: Picture, chart: str = "") -> str:
    """Return a picture as HTML: its title, its text, its table, and ``chart`` if there is one."""
    title, alt, note = (html.escape(text) for text in (picture.title, picture.alt, picture.note))
    table = _table(picture.table.head(REPORT_ROWS))
    if not chart:
        return f"<h3>{title}</h3><p>{alt} {note}</p>{table}"
    return (
        f'<h3>{title}</h3><figure role="group" aria-label="{alt}">{chart}<figcaption>{alt}'
        f" {note}</figcaption></figure><details><summary>The same as a"
        f" table</summary>{table}</details>"
    )


def _interval_chart(answers: pd.DataFrame) -> str:
    """Return an SVG drawing of answers with intervals, one row per answer."""
    low, high = min(0.0, answers["low"].min()), max(1.0, answers["high"].max())
    if not math.isfinite(high - low):
        return ""
    left, width, row_height = 300, 500, 18

    def at(value: float) -> str:
        return f"{left + width * (value - low) / (high - low):.1f}"

    height = row_height * len(answers) + row_height
    rows = [f'<path class=zero d="M{at(0.0)} 0V{height - row_height}"/>']
    columns = (answers[name].tolist() for name in ("query", "answer", "low", "high"))
    for i, (query, answer, start, end) in enumerate(zip(*columns, strict=True)):
        y = row_height * i + row_height // 2
        label = str(query)
        label = label if len(label) <= 40 else f"{label[:39]}…"
        rows.append(
            f'<text x="{left - 10}" y="{y + 5}" text-anchor="end">{html.escape(label)}</text>'
            f'<path d="M{at(start)} {y}H{at(end)}"/>'
            f'<circle cx="{at(answer)}" cy="{y}" r="3"/>'
        )
    for value, anchor in ((low, "start"), (high, "end")):
        text = f"{format_number(value)} counts"
        rows.append(f'<text x="{at(value)}" y="{height - 4}" text-anchor="{anchor}">{text}</text>')
    return f'<svg viewBox="0 0 {left + width + 10} {height}">{"".join(rows)}</svg>'


_NEIGHBOURS = {
    ADD_REMOVE: "one person added or removed",
    REPLACE_ONE: "one person replaced by another",
}
# fields of the certificate that the report shows in a table: key -> (label, function that formats
# the value); the report shows the other fields in sentences
_FACTS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "status": ("Status", str),
    "dataset": ("Dataset", str),
    "key": ("Key of the release", str),
    "utc": ("Time of the release (UTC)", str),
    "mechanism": ("Mechanism", str),
    "noise": ("Noise", str),
    "neighbours": ("Neighbouring datasets", lambda name: _NEIGHBOURS[name]),
    "rows_per_person": ("Rows of one person, at most", lambda rows: f"{rows:,}"),
    "pcost": ("Privacy cost", format_number),
    "rho": ("rho of zero-concentrated DP", format_number),
    "pure_epsilon": ("epsilon of pure DP", format_number),
    "max_records": ("Number of records, at most", lambda records: f"{records:,}"),
    "queries": ("Number of answers", lambda queries: f"{queries:,}"),
    "rmse_counts": ("Typical standard error (counts)", format_number),
    "lower_bound_counts": ("Lower bound on this error (counts)", format_number),
    "confidence": ("Confidence level of the intervals", lambda share: f"{share:g}"),
    "kept": ("Limits on the error of groups", str),
    "exact": ("Public tables that are exact", lambda sets: "; ".join(map(set_name, sets))),
    "plan_hash": ("SHA-256 of the plan", str),
}


def _facts(fields: dict[str, Any]) -> str:
    import pandas as pd

    rows = [
        (label, text(fields[key]))
        for key, (label, text) in _FACTS.items()
        if fields.get(key) not in ("", None)
    ]
    return _table(pd.DataFrame(rows, columns=["Property", "Value"]))


def _table(frame: pd.DataFrame) -> str:
    return frame.to_html(index=False, border=0, float_format=lambda v: f"{v:,.4g}", escape=True)


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
