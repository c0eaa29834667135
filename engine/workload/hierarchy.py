"""Code lists with levels: areas of cells, such as the states and regions of counties.

A hierarchy partitions the cells of an attribute at several levels, from coarse to fine; every level
refines the level before. The total and the cells are not levels of their own. A branch that ends
early, such as a district without counties, is an area of its own in all deeper levels.

A code list is read from one of three formats:

    CSV             one row per code, with the columns code, parent, and optionally label and level
    nested labels   mappings from the label of an area to its parts; lists of the codes of cells
    hrc             tau-Argus: one code per line after one @ per depth; sdcTable: lines such as @@;code
"""

from __future__ import annotations

import csv
import hashlib
import io
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from engine._arrays import Array, Index
from engine._format import MAX_NAME, csv_start, near_matches, pluralize, quote_public
from engine._values import FrozenValue
from engine.errors import SchemaError
from engine.workload.schema_io import FORBIDDEN, MAX_LABEL, check_text, decoded_text

MAX_LEVELS = 20
# limit for the areas of all levels together, and for the codes of a list
MAX_AREAS = 500_000
# characters
MAX_CODE_LIST = 50_000_000
_COLUMNS = ("code", "label", "parent", "level")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class HierarchyLevel(FrozenValue):
    """Partition of the cells of an attribute into areas.

    Attributes
    ----------
    name : name of the level, such as "state".
    labels : one text per area, all different.
    area_of_cell : number of the area of each cell, shape (cells,), read-only; every area has at
        least one cell.
    """

    name: str
    labels: tuple[str, ...]
    area_of_cell: Index

    def __post_init__(self) -> None:
        check_text(self.name, "the name of a level", MAX_NAME)
        subject = f"the level {quote_public(self.name)}"
        object.__setattr__(self, "labels", tuple(self.labels))
        _check_texts(self.labels, f"label of {subject}")
        if not self.labels:
            raise SchemaError(f"{subject} has no areas; give it areas, or leave the level out")
        if len(set(self.labels)) < len(self.labels):
            repeated = Counter(self.labels).most_common(1)[0][0]
            raise SchemaError(
                f"{subject} has the area {quote_public(repeated)} twice; give each area its own label"
            )
        object.__setattr__(self, "area_of_cell", _area_numbers(self.area_of_cell, subject))
        if not len(self.area_of_cell) or int(self.area_of_cell.max()) >= len(self.labels):
            raise SchemaError(
                f"{subject} has {len(self.labels):,} areas, but a cell in an area beyond them; number"
                " the areas from 0"
            )
        empty = np.flatnonzero(np.bincount(self.area_of_cell, minlength=len(self.labels)) == 0)
        if len(empty):
            raise SchemaError(
                f"{subject} has the area {quote_public(self.labels[empty[0]])} without cells; give it"
                " cells, or remove it"
            )

    @property
    def areas(self) -> int:
        """Number of areas."""
        return len(self.labels)

    def headline(self) -> dict[str, str]:
        """Return name and numbers of areas and cells as texts for display."""
        cells = f"{len(self.area_of_cell):,}"
        return {"name": self.name, "areas": f"{self.areas:,}", "cells": cells}

    def condition(self, area: int) -> str:
        """Return the text of the condition that the value lies in an area, such as "state = Ohio"."""
        return f"{self.name} = {self.labels[area]}"


def _area_numbers(numbers: Any, subject: str) -> Index:
    """Return area numbers as a read-only array, shape (cells,); raise SchemaError."""
    try:
        values = np.asarray(numbers)
    except ValueError:
        values = np.array(None)
    if values.ndim != 1 or values.dtype.kind not in "iu" or (values < 0).any():
        raise SchemaError(
            f"{subject} needs one area number per cell, integers from 0; correct them"
        )
    out = np.array(values, dtype=np.int64)
    out.flags.writeable = False
    return out


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Hierarchy(FrozenValue):
    """Levels of areas over the cells of one attribute, from coarse to fine.

    >>> state = HierarchyLevel(name="state", labels=("Ohio", "Iowa"), area_of_cell=[0, 0, 1])
    >>> geography = Hierarchy(name="geography", levels=(state,))
    >>> geography, Hierarchy.from_dict(geography.to_dict()) == geography
    (Hierarchy(name geography, levels state, areas 2, cells 3), True)
    """

    name: str
    levels: tuple[HierarchyLevel, ...]

    def __post_init__(self) -> None:
        check_text(self.name, "the name of a hierarchy", MAX_NAME)
        subject = f"the hierarchy {quote_public(self.name)}"
        object.__setattr__(self, "levels", tuple(self.levels))
        if not 1 <= len(self.levels) <= MAX_LEVELS:
            raise SchemaError(
                f"{subject} has {len(self.levels):,} levels; give between 1 and {MAX_LEVELS}, without"
                " the total and the cells"
            )
        if sum(level.areas for level in self.levels) > MAX_AREAS:
            raise SchemaError(
                f"{subject} has more than {MAX_AREAS:,} areas, the limit for all levels together;"
                " leave a fine level out"
            )
        if len(set(self.level_names)) < len(self.levels):
            raise SchemaError(f"{subject} has two levels with the same name; rename one of them")
        if len({len(level.area_of_cell) for level in self.levels}) > 1:
            raise SchemaError(f"{subject} has levels with different numbers of cells; correct them")
        for coarse, fine in zip(self.levels, self.levels[1:], strict=False):
            parents = _parents(coarse, fine)
            if (parents[fine.area_of_cell] != coarse.area_of_cell).any():
                raise SchemaError(
                    f"{subject} has an area of the level {quote_public(fine.name)} in two areas of"
                    f" {quote_public(coarse.name)}; order the levels from coarse to fine, each within"
                    " the areas of the level before"
                )

    @cached_property
    def level_names(self) -> tuple[str, ...]:
        """Names of the levels, from coarse to fine."""
        return tuple(level.name for level in self.levels)

    @property
    def cells(self) -> int:
        """Number of cells."""
        return len(self.levels[0].area_of_cell)

    @property
    def levels_text(self) -> str:
        """Names and numbers of areas of the levels, such as "region (4 areas), state (51 areas)"."""
        return ", ".join(
            f"{level.name} ({pluralize(level.areas, 'area')})" for level in self.levels
        )

    def headline(self) -> dict[str, str]:
        """Return name, levels and numbers of areas and cells as texts for display."""
        areas = ", ".join(f"{level.areas:,}" for level in self.levels)
        levels = ", ".join(self.level_names)
        return {"name": self.name, "levels": levels, "areas": areas, "cells": f"{self.cells:,}"}

    def with_cells(self, labels: Sequence[str]) -> Hierarchy:
        """Return the hierarchy with further cells, each an area of its own in every level."""
        levels = []
        for level in self.levels:
            added = level.areas + np.arange(len(labels))
            numbers = np.concatenate([level.area_of_cell, added])
            levels.append(
                HierarchyLevel(
                    name=level.name, labels=(*level.labels, *labels), area_of_cell=numbers
                )
            )
        return Hierarchy(name=self.name, levels=tuple(levels))

    def reordered(self, order: Index) -> Hierarchy:
        """Return the hierarchy with its cells in another order, a permutation of shape (cells,)."""
        levels = (
            HierarchyLevel(
                name=level.name, labels=level.labels, area_of_cell=level.area_of_cell[order]
            )
            for level in self.levels
        )
        return Hierarchy(name=self.name, levels=tuple(levels))

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data: per level the areas and their parents, then the area of each cell.

        "parents" has the number of the area in the level before, and "areas" the number of the area
        in the last level.
        """
        levels: list[dict[str, Any]] = []
        for i, level in enumerate(self.levels):
            entry: dict[str, Any] = {"name": level.name, "labels": list(level.labels)}
            if i:
                entry["parents"] = _parents(self.levels[i - 1], level).tolist()
            levels.append(entry)
        areas = self.levels[-1].area_of_cell.tolist()
        return {"name": self.name, "levels": levels, "areas": areas}

    @classmethod
    def from_dict(cls, document: Any) -> Hierarchy:
        """Rebuild a hierarchy from `to_dict`; raise SchemaError if the description is invalid."""
        if not isinstance(document, dict) or document.keys() != {"name", "levels", "areas"}:
            raise SchemaError("a hierarchy is an object with the keys name, levels and areas")
        entries = document["levels"]
        if not isinstance(entries, list) or len(entries) > MAX_LEVELS:
            raise SchemaError(f"the levels of a hierarchy are a list of 1 to {MAX_LEVELS} objects")
        for i, entry in enumerate(entries):
            keys = {"name", "labels", "parents"} if i else {"name", "labels"}
            if not isinstance(entry, dict) or entry.keys() != keys:
                raise SchemaError(
                    f"level {i} of a hierarchy is not an object with the keys {', '.join(sorted(keys))}"
                )
            if not isinstance(entry["labels"], list):
                raise SchemaError(f"level {i} of a hierarchy needs a list of labels")
        numbers = _area_numbers(document["areas"], "a hierarchy")
        levels: list[HierarchyLevel] = []
        for i, entry in reversed(list(enumerate(entries))):
            levels.insert(
                0,
                HierarchyLevel(
                    name=entry["name"], labels=tuple(entry["labels"]), area_of_cell=numbers
                ),
            )
            if i:
                parents = _area_numbers(entry["parents"], f"level {i} of a hierarchy")
                if len(parents) != len(entry["labels"]):
                    raise SchemaError(f"level {i} of a hierarchy needs one parent per area")
                numbers = parents[numbers]
        return cls(name=document["name"], levels=tuple(levels))

    @cached_property
    def digest(self) -> str:
        """Hash of names, labels and areas."""
        digest = hashlib.sha256(repr(self.name).encode())
        for level in self.levels:
            digest.update(repr((level.name, level.labels)).encode())
            digest.update(level.area_of_cell.tobytes())
        return digest.hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Hierarchy) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)


def _parents(coarse: HierarchyLevel, fine: HierarchyLevel) -> Index:
    """Return for each area of the finer level an area of the coarser one that shares a cell."""
    parents = np.zeros(fine.areas, dtype=np.int64)
    parents[fine.area_of_cell] = coarse.area_of_cell
    return parents


@dataclass(frozen=True, kw_only=True)
class LevelSelection:
    """Levels of a hierarchy whose areas are the queries of a family.

    Attributes
    ----------
    positions : positions of the levels in the hierarchy, in the order of the queries; the position
        after the last level denotes the cells.
    """

    hierarchy: Hierarchy
    positions: tuple[int, ...]

    @cached_property
    def levels(self) -> tuple[Index, ...]:
        """Number of the area of each cell in every level of the hierarchy, the last the cells."""
        cells = np.arange(self.hierarchy.cells)
        return (*(level.area_of_cell for level in self.hierarchy.levels), cells)

    @cached_property
    def areas(self) -> tuple[Index, ...]:
        """Number of the area of each cell in every level of the selection."""
        return tuple(self.levels[position] for position in self.positions)

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """Index of the first query of each level of the selection, and the number of queries."""
        return (0, *itertools.accumulate(int(areas.max()) + 1 for areas in self.areas))

    @cached_property
    def digest(self) -> str:
        """Hash that identifies the queries."""
        digest = hashlib.sha256()
        for areas in self.areas:
            digest.update(areas.tobytes())
        return digest.hexdigest()

    def area_weights(self, weights: Array | None = None) -> AreaWeights:
        """Return the weights of the areas of all levels, given weights of the queries.

        ``weights`` has shape (queries,); None is weight 1 for each query. Areas without a query
        have weight 0.
        """
        by_level = [np.zeros(int(areas.max()) + 1) for areas in self.levels]
        for position, start, end in zip(self.positions, self.starts, self.starts[1:], strict=False):
            by_level[position] = np.ones(end - start) if weights is None else weights[start:end]
        return AreaWeights(levels=self.levels, weights=tuple(by_level))


@dataclass(frozen=True, kw_only=True, eq=False)
class AreaWeights:
    """Weights of the areas of a tree; their Gram is the sum over levels of P^T diag(weights) P.

    P is the 0/1 matrix from cells to the areas of a level. On the same tree, sums of such Grams are
    again of this form.

    Attributes
    ----------
    levels : number of the area of each cell, one array of shape (cells,) per level, from coarse to
        fine; the last level is the cells.
    weights : weight of each area, one array of shape (areas,) per level; 0 where there is no query.
    """

    levels: tuple[Index, ...]
    weights: tuple[Array, ...]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class CodeList(FrozenValue):
    """Codes of cells and the hierarchy of their areas, as read from a table, labels or a file.

    Attributes
    ----------
    codes : codes of the cells, exactly as the records have them.
    hierarchy : areas of these cells.

    >>> rows = [("39", "Ohio", ""), ("39001", "Adams", "39"), ("39003", "Allen", "39")]
    >>> CodeList.from_rows([*rows, ("19", "Iowa", ""), ("19001", "Adair", "19")]).codes
    ('39001', '39003', '19001')
    """

    codes: tuple[str, ...]
    hierarchy: Hierarchy

    def __post_init__(self) -> None:
        if len(self.codes) != self.hierarchy.cells:
            raise SchemaError(
                f"the code list has {len(self.codes):,} codes, but its hierarchy has"
                f" {self.hierarchy.cells:,} cells; give one code per cell"
            )

    def headline(self) -> dict[str, str]:
        """Return the figures of the hierarchy as texts for display."""
        return self.hierarchy.headline()

    @classmethod
    def from_rows(
        cls, rows: Iterable[Sequence[str]], *, name: str = "areas", levels: Sequence[str] = ()
    ) -> CodeList:
        """Return the code list in rows (code, label, parent) or (code, label, parent, level).

        Codes without children are the cells. A parent that is empty or None denotes the total, and
        an empty label the code.

        Parameters
        ----------
        name : name of the hierarchy.
        levels : names of the levels from coarse to fine, without the total and the cells. By
            default those of the rows, or "level 1", "level 2", ...

        Raises
        ------
        SchemaError : if a code occurs twice or has two parents, a parent is not among the codes,
            the parents form a cycle, there is no level or too many, or the names of levels do not
            fit.
        """
        codes: list[str] = []
        labels: list[str] = []
        parents: list[str] = []
        level_names: list[str] = []
        for row in rows:
            if isinstance(row, (str, bytes)) or len(row) not in (3, 4):
                raise SchemaError(
                    "a row of a code list is not (code, label, parent) or (code, label, parent,"
                    " level); correct it"
                )
            if len(codes) == MAX_AREAS:
                raise _too_many_codes()
            code, label, parent, *level = row
            codes.append(code)
            labels.append(label or code)
            parents.append("" if parent is None else parent)
            level_names.append((level and level[0]) or "")
        for texts, what in ((codes, "code"), (labels, "label of a code")):
            _check_texts(texts, what)
        for texts, what in ((parents, "parent of a code"), (level_names, "level of a code")):
            _check_texts([text for text in texts if text != ""], what)
        positions = _positions(codes, parents)
        numbers = np.array(
            [positions[parent] if parent else -1 for parent in parents], dtype=np.int64
        )
        return _code_list(codes, labels, numbers, level_names, name, levels)

    @classmethod
    def from_text(
        cls, text: str | bytes, *, name: str = "areas", levels: Sequence[str] = ()
    ) -> CodeList:
        r"""Read a code list in a format that its text shows: hrc if a line starts with @, or CSV.

        Parameters and errors are those of `from_csv` and `from_hrc`.

        >>> CodeList.from_text("Ohio\n@Adams\n@Allen\nIowa\n@Adair\n").codes
        ('Adams', 'Allen', 'Adair')
        """
        content = decoded_text(text, limit=MAX_CODE_LIST)
        read = cls.from_hrc if re.search(r'^"?@', content, re.MULTILINE) else cls.from_csv
        return read(content, name=name, levels=levels)

    @classmethod
    def from_csv(
        cls, text: str | bytes, *, name: str = "areas", levels: Sequence[str] = ()
    ) -> CodeList:
        r"""Read a code list from CSV text; parameters and errors are those of `from_rows`.

        The columns code and parent are required; label and level are optional.

        >>> CodeList.from_csv("code,label,parent,level\n39,Ohio,,state\n39001,Adams,39,\n19,Iowa,,state\n")
        CodeList(name areas, levels state, areas 2, cells 2)
        """
        content, delimiter = csv_start(decoded_text(text, limit=MAX_CODE_LIST))
        reader = csv.reader(io.StringIO(content, newline=""), delimiter=delimiter, strict=True)
        try:
            header = [cell.strip().lower() for cell in next(filter(None, reader), [])]
            if not {"code", "parent"} <= set(header) <= set(_COLUMNS) or len(set(header)) < len(
                header
            ):
                raise SchemaError(
                    "the header of the code list must have code and parent, and may have label and"
                    " level, each once; correct it"
                )
            return cls.from_rows(_csv_rows(reader, header), name=name, levels=levels)
        except csv.Error:
            raise SchemaError(
                f"line {reader.line_num} of the code list is not valid CSV; check its quotes"
            ) from None

    @classmethod
    def from_labels(
        cls,
        labels: Mapping[str, Any],
        *,
        name: str = "areas",
        levels: Sequence[str] = (),
    ) -> CodeList:
        """Return the code list in nested labels: area -> its areas, or a list of its cells.

        >>> CodeList.from_labels({"Ohio": ["Adams", "Allen"], "Iowa": ["Adair"]}).codes
        ('Adams', 'Allen', 'Adair')
        """
        codes: list[str] = []
        parents: list[int] = []
        is_cell: list[bool] = []
        stack: list[tuple[Iterator[Any], int]] = [(_parts(labels, "The code list"), -1)]
        while stack:
            parts, parent = stack[-1]
            entry = next(parts, None)
            if entry is None:
                stack.pop()
                continue
            if len(codes) == MAX_AREAS:
                raise _too_many_codes()
            label, contents = entry
            check_text(label, "a label of the code list", MAX_LABEL)
            codes.append(label)
            parents.append(parent)
            is_cell.append(contents is None)
            if contents is not None:
                if len(stack) > MAX_LEVELS + 1:
                    raise _too_many_levels()
                stack.append((_parts(contents, quote_public(label)), len(codes) - 1))
        _positions([code for code, cell in zip(codes, is_cell, strict=True) if cell], ())
        numbers = np.array(parents, dtype=np.int64)
        return _code_list(codes, codes, numbers, [""] * len(codes), name, levels)

    @classmethod
    def from_hrc(
        cls,
        text: str | bytes,
        *,
        name: str = "areas",
        levels: Sequence[str] = (),
        indent: str = "@",
    ) -> CodeList:
        r"""Read a code list in a format of the tools for statistical disclosure control.

        In the files of tau-Argus a line is a code after one ``indent`` per depth, and the codes
        directly below the total have none. In those of sdcTable a line has two fields, such as
        "@@;code", and the total is the first line.

        >>> CodeList.from_hrc("Ohio\n@Adams\n@Allen\nIowa\n@Adair\n").codes
        ('Adams', 'Allen', 'Adair')
        >>> CodeList.from_hrc("@;Total\n@@;Ohio\n@@@;Adams\n@@;Iowa\n@@@;Adair\n").codes
        ('Adams', 'Adair')
        """
        check_text(indent, "the indentation of a code list", MAX_NAME)
        lines = decoded_text(text, limit=MAX_CODE_LIST).splitlines()
        codes: list[str] = []
        parents: list[str] = []
        path: list[str] = []
        for number, depth, code in _hrc_lines(lines, indent):
            if depth > len(path):
                raise SchemaError(
                    f"line {number} of the code list is more than one level deeper than the line"
                    " before; correct its depth, or add the lines between"
                )
            codes.append(code)
            parents.append(path[depth - 1] if depth else "")
            path[depth:] = [code]
        return cls.from_rows(zip(codes, codes, parents, strict=True), name=name, levels=levels)


def _csv_rows(reader: Any, header: list[str]) -> Iterator[tuple[str, str, str, str]]:
    """Yield the rows of a CSV file as (code, label, parent, level), empty where not in the header."""
    places = [header.index(column) if column in header else -1 for column in _COLUMNS]
    for row in filter(None, reader):
        if len(row) != len(header):
            raise SchemaError(
                f"line {reader.line_num} of the code list has {len(row)} fields, but the header has"
                f" {len(header)} columns; give one field per column"
            )
        code, label, parent, level = (row[place] if place >= 0 else "" for place in places)
        yield code, label, parent, level


def _parts(contents: Any, subject: str) -> Iterator[tuple[Any, Any]]:
    """Yield pairs (label, contents) of nested labels; the contents of a cell are None."""
    if isinstance(contents, (str, bytes, set, frozenset)) or not isinstance(contents, Iterable):
        raise SchemaError(
            f"{subject} has contents of type {type(contents).__name__}; give a list of cells, or a"
            " mapping from areas to their contents"
        )
    nested = contents if isinstance(contents, Mapping) else dict[Any, Any]()
    pairs = list(nested.items()) or [(label, None) for label in contents]
    if not pairs:
        raise SchemaError(f"{subject} has no cells; give it cells, or remove it")
    return iter(pairs)


def _hrc_lines(lines: Sequence[str], indent: str) -> Iterator[tuple[int, int, str]]:
    """Yield (line number, depth, code) of a hierarchy file in one of its two variants."""
    marks = re.compile(rf'"?((?:{re.escape(indent)})+)"?[;,\t]"?(.*?)"?$')
    # the first line can be a header
    start = 1 if _all_match(lines[1:], marks) and not marks.fullmatch(lines[0]) else 0
    has_fields = _all_match(lines[start:], marks)
    for number, line in enumerate(lines[start:], start + 1):
        if not line.strip():
            continue
        if has_fields and (match := marks.fullmatch(line)):
            yield number, len(match[1]) // len(indent) - 1, match[2].replace('""', '"')
        else:
            code = line
            while code.startswith(indent):
                code = code[len(indent) :]
            yield number, (len(line) - len(code)) // len(indent), code


def _all_match(lines: Sequence[str], pattern: re.Pattern[str]) -> bool:
    filled = [line for line in lines if line.strip()]
    return bool(filled) and all(map(pattern.fullmatch, filled))


def _too_many_codes() -> SchemaError:
    return SchemaError(
        f"the code list has more than {MAX_AREAS:,} codes; leave a fine level out, or split the list"
    )


def _too_many_levels() -> SchemaError:
    return SchemaError(
        f"the code list has more than {MAX_LEVELS} levels between the total and the cells; leave some"
        " out"
    )


def _check_texts(texts: Sequence[Any], what: str) -> None:
    """Raise SchemaError unless all entries are public texts; see `check_text`."""
    # one search of the joined text accepts valid texts quickly
    if (
        set(map(type, texts)) <= {str}
        and all(map(str.strip, texts))
        and max(map(len, texts), default=0) <= MAX_LABEL
        and not FORBIDDEN.search("".join(texts))
    ):
        return
    for text in texts:
        check_text(text, f"a {what}", MAX_LABEL)


def _positions(codes: Sequence[str], parents: Sequence[str]) -> dict[str, int]:
    """Return the position of each code; raise SchemaError for repeated codes and unknown parents."""
    positions = {code: i for i, code in reversed(list(enumerate(codes)))}
    if len(positions) < len(codes):
        raise _repeated_code(codes, parents, positions)
    # codes that differ by blanks only are equal without them
    unpadded: dict[str, str] = {}
    for code in codes:
        if code != (stripped := code.strip()):
            similar = stripped if stripped in positions else unpadded.setdefault(stripped, code)
            if similar != code:
                raise SchemaError(
                    f"the codes {quote_public(similar)} and {quote_public(code)} differ only by"
                    " blanks; correct one of them"
                )
    for code, parent in zip(codes, parents, strict=False):
        if parent and parent not in positions:
            stripped = parent.strip()
            similar = stripped if stripped in positions else unpadded.get(stripped, "")
            near = (
                f"; {quote_public(similar)} differs only by blanks"
                if similar
                else near_matches(parent, positions)
            )
            raise SchemaError(
                f"the code {quote_public(code)} has the unknown parent {quote_public(parent)}{near}."
                " Add a row for this parent, or leave the parent empty for a code below the total"
            )
    return positions


def _repeated_code(
    codes: Sequence[str], parents: Sequence[str], positions: Mapping[str, int]
) -> SchemaError:
    """Return the error for the first code that occurs twice; ``positions`` are the first ones."""
    i, code = next((i, code) for i, code in enumerate(codes) if positions[code] != i)
    if parents and parents[positions[code]] != parents[i]:
        first, second = parents[positions[code]], parents[i]
        return SchemaError(
            f"the code {quote_public(code)} has two parents, {quote_public(first)} and"
            f" {quote_public(second)}; remove one of the rows, or make a second hierarchy"
        )
    return SchemaError(
        f"the code {quote_public(code)} occurs twice; remove one of them, or give each cell its own"
        " code"
    )


def _code_list(
    codes: Sequence[str],
    labels: Sequence[str],
    parents: Index,
    level_names: Sequence[str],
    name: str,
    names: Sequence[str],
) -> CodeList:
    """Return the code list of a tree.

    Parameters
    ----------
    parents : position of the parent of each code, or -1, shape (codes,).
    level_names : name of the level of each code, or "".
    name : name of the hierarchy.
    names : names of all levels from coarse to fine; if empty, ``level_names`` or numbers name them.
    """
    if not codes:
        raise SchemaError("the code list is empty; give it codes")
    depth = _depths(codes, parents)
    has_children = np.zeros(len(codes), dtype=bool)
    has_children[parents[parents >= 0]] = True
    leaves = np.flatnonzero(~has_children)
    deepest = int(depth[has_children].max(initial=-1))
    ancestors, areas = leaves, list[npt.NDArray[Any]]()
    for at in range(deepest, -1, -1):
        ancestors = np.where(depth[ancestors] > at, parents[ancestors], ancestors)
        areas.insert(0, ancestors)
    first = next((i for i, nodes in enumerate(areas) if (nodes != nodes[0]).any()), len(areas))
    if first == len(areas):
        raise SchemaError(
            "the code list has no level between the total and the cells; give the codes parents, or"
            " list the codes as labels"
        )
    if len(areas) - first > MAX_LEVELS:
        raise _too_many_levels()
    if names and (isinstance(names, str) or len(names) != len(areas) - first):
        raise SchemaError(
            f"there are {len(areas) - first} levels between the total and the cells, but a different"
            " number of level names; give one name per level, from coarse to fine"
        )
    levels = []
    for i, nodes in enumerate(areas[first:]):
        members, numbers = np.unique(nodes, return_inverse=True)
        of_level = members[has_children[members] & (depth[members] == first + i)]
        own_names = {level_names[k] for k in of_level.tolist()} - {""}
        if len(own_names) > 1:
            listed = ", ".join(map(quote_public, sorted(own_names)[:3]))
            raise SchemaError(
                f"codes at depth {first + i + 1} have different levels: {listed}; give all codes at"
                " one depth the same level, and put codes without parts at the depth of the cells"
            )
        own_name = names[i] if names else next(iter(own_names), f"level {i + 1}")
        levels.append(
            HierarchyLevel(
                name=own_name,
                labels=_distinct_labels(members.tolist(), codes, labels, parents),
                area_of_cell=numbers.reshape(-1),
            )
        )
    hierarchy = Hierarchy(name=name, levels=tuple(levels))
    return CodeList(codes=tuple(codes[i] for i in leaves.tolist()), hierarchy=hierarchy)


def _depths(codes: Sequence[str], parents: Index) -> Index:
    """Return the number of ancestors of each code.

    Raises SchemaError if parents form a cycle, or there are too many levels.
    """
    depth = np.where(parents < 0, 0, -1)
    # a common root above the levels and the cells below them do not count towards MAX_LEVELS
    for at in range(1, MAX_LEVELS + 3):
        is_open = depth < 0
        if not is_open.any():
            return depth
        depth[is_open & (depth[parents] == at - 1)] = at
    if (depth >= 0).all():
        return depth
    node, visited = int(np.flatnonzero(depth < 0)[0]), set[int]()
    while node not in visited and node >= 0:
        visited.add(node)
        node = int(parents[node])
    if node < 0:
        raise _too_many_levels()
    raise SchemaError(
        f"the code {quote_public(codes[node])} is its own ancestor, so the parents form a cycle;"
        " correct the parent of one of its codes"
    )


def _distinct_labels(
    members: Sequence[int], codes: Sequence[str], labels: Sequence[str], parents: Index
) -> tuple[str, ...]:
    """Return the labels of the areas of a level; repeated labels get the code, or the parent."""
    texts = [labels[i] for i in members]
    repeated = {text for text, count in Counter(texts).items() if count > 1}
    if not repeated:
        return tuple(texts)
    return tuple(
        text
        if text not in repeated
        else f"{text} ({codes[i] if codes[i] != text else codes[int(parents[i])]})"
        for i, text in zip(members, texts, strict=True)
    )
