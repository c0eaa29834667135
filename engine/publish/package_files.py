"""Files of packages: released integers, answers, and reading with limits on their sizes.

Every block of measurements.json is a linear equation in counts,

    integers * grid  =  (R_1 (x) R_2 (x) ...) t  +  noise,

where t is the exact table on the attributes of the block, R_f are the rows of factor f on the
attributes ``axes``, and the noise is independent with standard deviation ``noise``.  If the block
has row weights, each row of the product is multiplied by its weight.  All answers of a release are
the least-squares answers of these equations.  In two cases the files have estimates instead of
integers and equations.  The first case is a release in two stages, whose answers combine both
stages.  In the second case, this machine computes other strategy rows from the plan (such as
rotated eigenvectors) than the machine that measured.

Packages are untrusted input.  `PackageFiles` therefore bounds the size of a file, in a zip or a
folder, before the file is copied or parsed.  The certificate, the signature, the plan, check.py and
the options of tables have fixed limits; the limits of all other files follow from the plan.

A parquet file may state wrong sizes in its footer.  The memory that a reader needs is determined by
the page headers, so `check_pages` parses these.  They are encoded in the compact protocol of
Thrift, see the format specification of Apache Parquet.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import os
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
from engine._format import quote_public
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
from engine.errors import PlanError
from engine.plans import Block, Plan
from engine.release import Measurement
from engine.release.measure import measurement_of
from engine.residuals import Space, Strategy
from engine.residuals.operators import MAX_DENSE_BYTES, EntryRows
from engine.workload import Attribute, Group

if TYPE_CHECKING:
    import pyarrow.parquet as pq


README = "README.md"
MAX_FOOTER = 1_000_000  # a parquet footer has at most this number of bytes, plus one per row
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
    """Raise ValueError unless a parquet file has ``rows`` rows and its sizes are within limits.

    All pages together may have at most ``max_bytes`` bytes after decompression.

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
            while reader.position < stop:
                fields = reader.struct()
                uncompressed = fields.get(UNCOMPRESSED, -1)
                compressed = fields.get(COMPRESSED, -1)
                if uncompressed < 0 or compressed < 0:
                    raise ValueError(f"{path.name} has a page without a size")
                total += uncompressed
                reader.position += compressed
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
    position: int

    def struct(self, depth: int = 0) -> dict[int, int]:
        """Read a struct; return the values of its integer fields by field number."""
        if depth > MAX_NESTING:
            raise ValueError("a page header is nested too deeply")
        integers = dict[int, int]()
        number = 0
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
            self.position += 8
        elif kind == BINARY:
            length = self._varint()
            self.position += length
        elif kind in LISTS:
            # The first byte of a list has its length and the type of its elements, 4 bits each.
            # If the length is 15 or more, the bits are 15 and the length follows as a varint.
            length, element_kind = divmod(self._byte(), 16)
            if length == 15:
                length = self._varint()
            if length > len(self.content):
                raise ValueError("a page header has a longer list than the file")
            for _ in range(length):
                self._skip(element_kind, depth + 1)
        elif kind == STRUCT:
            self.struct(depth + 1)
        else:
            raise ValueError("a page header has a field of an unknown type")

    def _byte(self) -> int:
        if not 0 <= self.position < len(self.content):
            raise ValueError("a page header continues beyond the end of the file")
        self.position += 1
        return self.content[self.position - 1]

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
        """Return the SHA-256 of a file as hexadecimal digits.

        A file of a zip is also copied to the scratch folder, so that `path` returns an existing
        file afterwards.

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
        """Return the files whose names start with ``prefix``; their new names lack the prefix."""
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
    PlanError : there are too many files; or the zip is damaged, or has links, entries for folders,
        files in a folder other than `PUBLISHED`, encrypted files or duplicate names.
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
    """Return the names of the files in a package folder and in its subfolder `PUBLISHED`."""
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

        Raises: PlanError if the file has more arrays, or is damaged.  `read` finds other damage.
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
                f"The array {quote_public(name)} of the measurements is missing, or does not have "
                f"the type and the shape {shape} that the plan implies. Give the package as it was "
                "published."
            ) from None


def max_arrays_of(plan: Plan) -> int:
    """Return the maximum number of arrays in the measurements of a plan."""
    n_arrays = 0
    for block in plan.blocks.values():
        # one array of released integers, and one of row weights if the block has them
        n_arrays += 1 + (block.weights is not None)
        for _, strategy in block.factors:
            formula = rows_formula(strategy)
            n_arrays += 1 + (len(formula.layout) if formula is not None else 0)
    # After a two-stage release, the file has one array of estimates per residual space, and no
    # arrays of integers or rows.
    return max(n_arrays, len(plan.estimate_blocks))


def max_bytes_of(plan: Plan) -> dict[str, int]:
    """Return the largest sizes in bytes of the files in a release package of the plan, by name.

    The certificate, the signature and the published tables have no entry.
    """
    groups = plan.workload.groups
    rows = plan.workload.queries
    blocks = plan.blocks.values()
    labels = {a.name: _label_bytes(a) for a in plan.schema.attributes}
    text_bytes = sum(group.count * _text_bytes(group, labels) for group in groups)
    name_bytes = sum(map(len, labels)) + FIXED_BYTES
    # The factors are generous upper bounds of how often a file repeats its numbers and texts.
    return {
        "plan.json": MAX_PLAN,
        "check.py": MAX_SMALL,
        README: MAX_SMALL + name_bytes,
        "report.html": (
            20 * FIXED_BYTES + 100 * sum(_text_bytes(g, labels) + BLOCK_BYTES for g in groups)
        ),
        "answers.parquet": FIXED_BYTES + name_bytes + 8 * NUMBER_BYTES * rows + text_bytes,
        "answers.csv": FIXED_BYTES + 4 * NUMBER_BYTES * rows + 2 * text_bytes,
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
    total = 0
    rows = dict[object, int]()
    for block in blocks:
        total += (
            8 * block.measurements
            + (0 if block.weights is None else block.weights.nbytes)
            + 4 * BLOCK_BYTES
        )
        total += 8 * math.prod(block.coordinates)
        # Rows of more than MAX_DENSE_BYTES are stored as the few numbers of a formula.
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
        or columns that are neither decimal numbers nor texts.
    """
    import pyarrow.parquet as pq

    check_pages(path, max_bytes, rows)
    texts = sorted({"query", "status"} & set(pq.read_schema(path).names))
    file = pq.ParquetFile(path, buffer_size=1 << 20, read_dictionary=texts)
    kinds = (pa.types.is_floating, pa.types.is_string, pa.types.is_dictionary)
    if not all(any(is_kind(field.type) for is_kind in kinds) for field in file.schema_arrow):
        raise ValueError(f"{path.name} has columns that are neither decimal numbers nor texts")
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


def rows_formula(strategy: Strategy) -> EntryRows | None:
    """Return the rows of a strategy as a formula of `ROW_FORMS`; None if they are a matrix."""
    rows: object = strategy.rows
    return rows if isinstance(rows, EntryRows) else None


def write_measurements(measurement: Measurement, folder: Path) -> list[Path]:
    """Write the released integers and the strategies that they answer; return the paths.

    If the plan and the integers do not determine the estimates (`integers_determine_estimates`),
    the estimates are written instead.
    """
    if not integers_determine_estimates(measurement):
        return _write_estimates(measurement, folder)
    arrays: dict[str, npt.NDArray[Any]] = {}
    array_names: dict[Strategy, str] = {}
    forms: dict[str, str] = {}
    blocks = []
    for number, (space, block) in enumerate(measurement.plan.blocks.items()):
        factors = []
        for axes, strategy in block.factors:
            array_name = array_names.setdefault(strategy, f"rows{len(array_names)}")
            arrays |= _row_arrays(strategy, array_name)
            factor = {"axes": [block.attributes[a] for a in axes], "rows": array_name}
            formula = rows_formula(strategy)
            if formula is not None:
                factor["form"] = formula.form
                forms[formula.form] = ROW_FORMS[formula.form]
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


def _row_arrays(strategy: Strategy, name: str) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays that determine the rows of a strategy, by their names in the file."""
    formula = rows_formula(strategy)
    if formula is None:
        return {name: np.asarray(strategy.rows)}
    layouts = {f"{name}_{key}": layout for key, layout in formula.layout.items()}
    return {name: formula.entries, **layouts}


def integers_determine_estimates(measurement: Measurement) -> bool:
    """Return whether the released integers and the plan determine the estimates.

    The result is False after the second stage of a two-stage release.  It is also False if this
    machine computes other strategy rows (rotated eigenvectors) than the machine that measured.
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
    files.  They can differ from those of ``plan``, because other machines may compute rotated rows
    (`Strategy.by_rows`).  If the files have estimates, the result has no answers on the grid.

    Parameters
    ----------
    description, arrays : paths of measurements.json and measurements.npz.
    rehearsal : whether the measurement is a rehearsal.
    release_fields : dataset, key and utc of the measurement.

    Raises
    ------
    PlanError : the files have another format or are damaged, a block is missing, or the equations
        in the files are not equivalent to those of the plan.
    ValueError : measurements.json is not JSON.
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
        integers = {}
        blocks = {}
        strategies = dict[tuple[Strategy, str], Strategy]()
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
    """Raise PlanError if the description of a block in measurements.json is damaged."""
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
        files) -> strategy with the rows in the files.

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
    # Rows that are rotated by other eigenvectors have answers of the same distribution only for
    # Gaussian noise without row weights.
    may_rotate = block.weights is None and block.law == "gaussian"
    factors = []
    for factor, (axes, strategy) in zip(entry["factors"], block.factors, strict=True):
        if "form" in factor:
            _check_formula(block, strategy, factor, arrays)
            factors.append((axes, strategy))
            continue
        key = strategy, factor["rows"]
        measured_strategy = strategies.get(key) or strategy.by_rows(
            arrays.read(factor["rows"], "f", strategy.rows.shape)
        )
        if measured_strategy is None or not (
            may_rotate or np.allclose(measured_strategy.rows, strategy.rows, rtol=1e-9, atol=1e-12)
        ):
            raise _mismatch(block)
        strategies[key] = measured_strategy
        factors.append((axes, measured_strategy))
    unchanged = all(
        one is other for (_, one), (_, other) in zip(factors, block.factors, strict=True)
    )
    return block if unchanged else replace(block, factors=tuple(factors))


def _check_formula(
    block: Block, strategy: Strategy, factor: Mapping[str, Any], arrays: ArrayFile
) -> None:
    """Raise PlanError unless the formula of strategy rows in the files is that of ``strategy``."""
    formula = rows_formula(strategy)
    name = factor["rows"]
    if formula is None or factor["form"] != formula.form:
        raise _mismatch(block)
    entries = arrays.read(name, "f", formula.entries.shape)
    if not np.allclose(entries, formula.entries, rtol=1e-9, atol=0.0):
        raise _mismatch(block)
    for key, layout in formula.layout.items():
        if not np.array_equal(arrays.read(f"{name}_{key}", "i", layout.shape), layout):
            raise _mismatch(block)


def _mismatch(block: Block) -> PlanError:
    return PlanError(
        f"The measurements on {list(block.attributes)} are damaged, or do not match the plan in"
        " attributes, strategy rows, weights, noise or grid. Give the package as it was published."
    )
