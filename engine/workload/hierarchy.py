"""Code lists with levels: areas of cells, such as the states and regions of counties.

A hierarchy has several levels, from coarse to fine. Each level is a partition of the cells of an
attribute into areas, and refines the level before. The table total and the cells do not count as
levels. A cell that is not divided down to the last level, such as a district without counties, is
an area of its own on every level below its parent.

A code list is read from one of three formats:

    CSV             one row per code, with the columns code, parent, and optionally label and level
    nested labels   mapping from an area to its areas (a mapping again) or its cells (a list)
    hrc             tau-Argus: lines such as @@code, one @ per level; sdcTable: such as @@;code

**Similar codes.**  Codes of records and of code lists must be equal, character by character. If
they differ only in blanks, invisible characters, case, accents or leading zeros, error messages
name the code that a person probably meant. Such codes are never treated as equal.
"""

from __future__ import annotations

import csv
import hashlib
import io
import itertools
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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

# Soft hyphen, zero-width characters, direction marks, variation selectors and other characters
# without a visible form.
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0]"
)


def visible_text(text: str) -> str:
    """Return a text as it looks on screen: without invisible characters, with single blanks.

    The result is in Unicode form NFC, without blanks at the ends.

    >>> visible_text("a\\u200b\\u00a01 ")
    'a 1'
    """
    if text.isascii():
        return " ".join(text.split())
    return " ".join(unicodedata.normalize("NFC", _INVISIBLE.sub("", text)).split())


def _without_blanks(text: str) -> str:
    return "".join(text.split())


def _without_accents(text: str) -> str:
    decomposed = unicodedata.normalize("NFD", text)
    return "".join(c for c in decomposed if not unicodedata.combining(c))


def without_details(text: str) -> str:
    """Return a text in lower case without blanks, invisible characters, accents and leading zeros.

    Texts that differ only in these details give the same result.

    >>> without_details("Le\u00f3n 01") == without_details("leon01")
    True
    """
    return _without_blanks(_without_accents(visible_text(text))).casefold().lstrip("0") or "0"


# Kind of difference -> function that removes differences of this kind from a text. Two codes differ
# only by this kind if the function returns equal texts. Messages name the first kind that fits.
_DIFFERENCES: dict[str, Callable[[str], str]] = {
    "blanks": _without_blanks,
    "characters that are not visible": visible_text,
    "leading zeros": lambda text: text.lstrip("0") or "0",
    "upper and lower case": str.casefold,
    "accents": _without_accents,
    "blanks, case, accents or leading zeros": without_details,
}


def only_difference(text: str, candidates: Iterable[str]) -> tuple[str, str] | None:
    """Return a candidate that differs from a text only in details, and the kind of the difference.

    Details are blanks, invisible characters, case, accents and leading zeros. The kind is a phrase
    such as "leading zeros". The result is None if there is no such candidate. A candidate that
    equals the text is ignored.

    >>> only_difference("0101", ["101", "102"]), only_difference("León", ["Leon"]), only_difference("x", ["y"])
    (('101', 'leading zeros'), ('Leon', 'accents'), None)
    >>> only_difference("ab", ["AB "])
    ('AB ', 'blanks, case, accents or leading zeros')
    """
    key = without_details(text)
    similar = [c for c in candidates if c != text and without_details(c) == key]
    for kind, key_of in _DIFFERENCES.items():
        for candidate in similar:
            if key_of(candidate) == key_of(text):
                return candidate, kind
    return None


def difference_text(text: str, candidates: Iterable[str], quote: Callable[[object], str]) -> str:
    """Return an addition to an error message that names a candidate similar to ``text``.

    The addition is empty if `only_difference` finds no candidate. ``quote`` returns the text of a
    candidate in the message.
    """
    similar = only_difference(text, candidates)
    return "" if similar is None else f"; {quote(similar[0])} differs only by {similar[1]}"


MAX_LEVELS = 20  # levels of one hierarchy
# Limit for the areas of all levels together, and for the codes of a list.
MAX_AREAS = 500_000
MAX_CODE_LIST = 50_000_000  # characters
_COLUMNS = ("code", "label", "parent", "level")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class HierarchyLevel(FrozenValue):
    """Partition of the cells of an attribute into areas.

    Attributes
    ----------
    name : name of the level, such as "state".
    labels : one text per area, all different.
    area_of_cell : index in ``labels`` of the area of each cell, shape (cells,), read-only. Every
        area has at least one cell.
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
            raise SchemaError(f"{subject} has no areas; give areas, or leave the level out")
        if len(set(self.labels)) < len(self.labels):
            repeated = Counter(self.labels).most_common(1)[0][0]
            raise SchemaError(
                f"{subject} has the area {quote_public(repeated)} twice; give each area its own "
                "label"
            )
        area_of_cell = _area_indices(self.area_of_cell, f"the area numbers of {subject}")
        object.__setattr__(self, "area_of_cell", area_of_cell)
        if not len(area_of_cell):
            raise SchemaError(f"{subject} has no cells; give each cell the number of its area")
        if int(area_of_cell.max()) >= len(self.labels):
            raise SchemaError(
                f"{subject} has a cell with the area number {int(area_of_cell.max())}, but its last"
                f" area has the number {len(self.labels) - 1}; give each cell the number of its"
                " area"
            )
        empty = np.flatnonzero(np.bincount(self.area_of_cell, minlength=len(self.labels)) == 0)
        if len(empty):
            raise SchemaError(
                f"{subject} has the area {quote_public(self.labels[empty[0]])} without cells; give "
                "the area cells, or remove it"
            )

    @property
    def areas(self) -> int:
        """Number of areas."""
        return len(self.labels)

    def headline(self) -> dict[str, str]:
        """Return the name, the number of areas and the number of cells as texts for display."""
        cells = f"{len(self.area_of_cell):,}"
        return {"name": self.name, "areas": f"{self.areas:,}", "cells": cells}

    def condition(self, area: int) -> str:
        """Return the text of the condition that the value lies in an area, such as "state = Ohio"."""
        return f"{self.name} = {self.labels[area]}"


def _area_indices(numbers: Any, subject: str, unit: str = "cell") -> Index:
    """Return indices of areas as a read-only array, shape (n,).

    Raises SchemaError unless ``numbers`` is a list of integers, 0 or more. Its message names the
    list ``subject`` and what has one entry, ``unit``.
    """
    try:
        values = np.asarray(numbers)
    except ValueError:
        values = np.array(None)
    if values.ndim != 1 or values.dtype.kind not in "iu" or (values < 0).any():
        raise SchemaError(
            f"{subject} are not a list of integers, 0 or more; give one such integer per {unit}"
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
                f"{subject} has {pluralize(len(self.levels), 'level')} between the total and the"
                f" cells; give 1 to {MAX_LEVELS}"
            )
        if sum(level.areas for level in self.levels) > MAX_AREAS:
            raise SchemaError(
                f"{subject} has more than {MAX_AREAS:,} areas, the limit for all levels together;"
                " leave a fine level out"
            )
        if len(set(self.level_names)) < len(self.levels):
            raise SchemaError(f"{subject} has two levels with the same name; rename one of them")
        if len({len(level.area_of_cell) for level in self.levels}) > 1:
            raise SchemaError(
                f"{subject} has levels with different numbers of cells; give an area for each cell "
                "on every level"
            )
        for coarse, fine in zip(self.levels, self.levels[1:], strict=False):
            parents = _parents(coarse, fine)
            divided = np.flatnonzero(parents[fine.area_of_cell] != coarse.area_of_cell)
            if len(divided):
                area = fine.labels[int(fine.area_of_cell[divided[0]])]
                raise SchemaError(
                    f"in {subject}, the area {quote_public(area)} of the level"
                    f" {quote_public(fine.name)} has cells in two areas of the level"
                    f" {quote_public(coarse.name)}. Order the levels from coarse to fine, and put"
                    " each area into one area of the coarser level"
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
        """Name and number of areas of each level, such as "region (4 areas), state (51 areas)"."""
        return ", ".join(
            f"{level.name} ({pluralize(level.areas, 'area')})" for level in self.levels
        )

    def headline(self) -> dict[str, str]:
        """Return texts for display: name, levels, number of areas per level, number of cells."""
        areas = ", ".join(f"{level.areas:,}" for level in self.levels)
        levels = ", ".join(self.level_names)
        return {"name": self.name, "levels": levels, "areas": areas, "cells": f"{self.cells:,}"}

    def with_cells(self, labels: Sequence[str]) -> Hierarchy:
        """Return the hierarchy with cells appended; each is an area of its own on every level."""
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
        """Return the hierarchy with cell ``order[i]`` in position i; ``order`` is a permutation."""
        levels = (
            HierarchyLevel(
                name=level.name, labels=level.labels, area_of_cell=level.area_of_cell[order]
            )
            for level in self.levels
        )
        return Hierarchy(name=self.name, levels=tuple(levels))

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data with the keys name, levels and areas.

        Each level has a name and labels and, except for the first level, "parents": the index of
        the parent of each area in the level before. "areas" has one entry per cell: the index of
        its area in the last level.
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
            raise SchemaError(
                "a hierarchy in the file is not an object with the keys name, levels and areas; "
                "give these keys and no others"
            )
        entries = document["levels"]
        if not isinstance(entries, list) or len(entries) > MAX_LEVELS:
            raise SchemaError(
                "the levels of a hierarchy in the file are not a list of at most"
                f" {MAX_LEVELS} objects; correct them"
            )
        for i, entry in enumerate(entries):
            keys = {"name", "labels", "parents"} if i else {"name", "labels"}
            if not isinstance(entry, dict) or entry.keys() != keys:
                raise SchemaError(
                    f"level {i} of a hierarchy is not an object with the keys"
                    f" {', '.join(sorted(keys))}; give these keys and no others"
                )
            if not isinstance(entry["labels"], list):
                raise SchemaError(
                    f"the labels of level {i} of a hierarchy have the type"
                    f" {type(entry['labels']).__name__}; give a list"
                )
        area_of_cell = _area_indices(document["areas"], "the areas of a hierarchy")
        levels: list[HierarchyLevel] = []
        # The document has the areas of the cells for the last, finest level. For each coarser
        # level, the areas of the cells follow from the parents of the areas.
        for i, entry in reversed(list(enumerate(entries))):
            levels.insert(
                0,
                HierarchyLevel(
                    name=entry["name"], labels=tuple(entry["labels"]), area_of_cell=area_of_cell
                ),
            )
            if i:
                subject = f"the parents of level {i} of a hierarchy"
                parents = _area_indices(entry["parents"], subject, "area")
                if len(parents) != len(entry["labels"]):
                    raise SchemaError(
                        f"level {i} of a hierarchy has {len(entry['labels']):,} areas, but"
                        f" {len(parents):,} parents; give one parent per area"
                    )
                area_of_cell = parents[area_of_cell]
        return cls(name=document["name"], levels=tuple(levels))

    @cached_property
    def digest(self) -> str:
        """SHA-256 hash of the names, the labels and the area of each cell."""
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
    """Return, for each fine area, the index of a coarse area with a common cell, shape (areas,)."""
    parents = np.zeros(fine.areas, dtype=np.int64)
    parents[fine.area_of_cell] = coarse.area_of_cell
    return parents


@dataclass(frozen=True, kw_only=True)
class LevelSelection:
    """Levels of a hierarchy whose areas are the queries of a family.

    Attributes
    ----------
    hierarchy : the hierarchy of the levels.
    positions : index of each level in the hierarchy, in the order of the queries. The index after
        the last level denotes the cells.
    """

    hierarchy: Hierarchy
    positions: tuple[int, ...]

    @cached_property
    def levels(self) -> tuple[Index, ...]:
        """Index of the area of each cell, shape (cells,), for every level of the hierarchy.

        The last array is for the cells as a level: 0 .. cells - 1.
        """
        cells = np.arange(self.hierarchy.cells)
        return (*(level.area_of_cell for level in self.hierarchy.levels), cells)

    @cached_property
    def areas(self) -> tuple[Index, ...]:
        """Index of the area of each cell, shape (cells,), for every level of the selection."""
        return tuple(self.levels[position] for position in self.positions)

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """Index of the first query of each level of the selection, then the number of queries."""
        return (0, *itertools.accumulate(int(areas.max()) + 1 for areas in self.areas))

    @cached_property
    def digest(self) -> str:
        """SHA-256 hash of the queries."""
        digest = hashlib.sha256()
        for areas in self.areas:
            digest.update(areas.tobytes())
        return digest.hexdigest()

    def area_weights(self, weights: Array | None = None) -> AreaWeights:
        """Return one weight per area of every level of the hierarchy: the weight of its query.

        ``weights`` has one weight per query, shape (queries,); None is weight 1 for each query.
        Areas of levels outside the selection have no query and weight 0.
        """
        by_level = [np.zeros(int(areas.max()) + 1) for areas in self.levels]
        for position, start, end in zip(self.positions, self.starts, self.starts[1:], strict=False):
            by_level[position] = np.ones(end - start) if weights is None else weights[start:end]
        return AreaWeights(levels=self.levels, weights=tuple(by_level))


@dataclass(frozen=True, kw_only=True, eq=False)
class AreaWeights:
    """Gram matrix on cells that is a weighted sum over the areas of nested levels.

    The Gram matrix is the sum over levels of P^T diag(weights) P. P is the 0/1 matrix of shape
    (areas, cells) that sums cells to the areas of the level. The sum of two of these Gram matrices
    on the same levels also has this form.

    Attributes
    ----------
    levels : index of the area of each cell, one array of shape (cells,) per level, from coarse to
        fine; the last level is the cells.
    weights : weight of each area, one array of shape (areas,) per level; 0 for areas without query.
    """

    levels: tuple[Index, ...]
    weights: tuple[Array, ...]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class CodeList(FrozenValue):
    """Codes of cells and the hierarchy of their areas, read from rows, nested labels or a file.

    Attributes
    ----------
    codes : codes of the cells, exactly as the records have them.
    hierarchy : hierarchy of the areas of these cells. Cell i of the hierarchy has the code
        ``codes[i]``.

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
        """Return name, levels, areas and cells of the hierarchy as texts for display."""
        return self.hierarchy.headline()

    @classmethod
    def from_rows(
        cls, rows: Iterable[Sequence[str]], *, name: str = "areas", levels: Sequence[str] = ()
    ) -> CodeList:
        """Return the code list of rows (code, label, parent) or (code, label, parent, level).

        Codes without children are the cells. An empty parent or None means that the code is
        directly below the total. If the label is empty, the code is the label.

        Parameters
        ----------
        name : name of the hierarchy.
        levels : names of the levels from coarse to fine, without the total and the cells. By
            default the names are those in the rows; a level without a name there is called
            "level 1", "level 2", and so on.

        Raises
        ------
        SchemaError : if a row has another length or an entry that is not an allowed text, there are
            more than `MAX_AREAS` rows, a code occurs twice or has two parents, a parent is not
            among the codes, the parents form a cycle, there is no level or more than `MAX_LEVELS`,
            ``levels`` has another number of names, or areas at the same depth name different
            levels.
        """
        codes: list[str] = []
        labels: list[str] = []
        parents: list[str] = []
        level_names: list[str] = []
        for row in rows:
            if isinstance(row, (str, bytes)) or len(row) not in (3, 4):
                raise SchemaError(
                    f"row {len(codes) + 1} of the code list is neither (code, label, parent) nor "
                    "(code, label, parent, level); correct the row"
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
        parent_of_code = np.array(
            [positions[parent] if parent else -1 for parent in parents], dtype=np.int64
        )
        return _code_list(codes, labels, parent_of_code, level_names, name, levels)

    @classmethod
    def from_text(
        cls, text: str | bytes, *, name: str = "areas", levels: Sequence[str] = ()
    ) -> CodeList:
        r"""Read a code list by `from_hrc` if a line starts with @ or "@, otherwise by `from_csv`.

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
        r"""Read a code list from CSV text with columns code, parent and optionally label, level.

        Columns and parameters have the meaning that they have in `from_rows`.

        Raises
        ------
        SchemaError
            The text is too large, not UTF-8 or UTF-16, not valid CSV, or has another header; or
            `from_rows` refuses its rows.

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
                    "the header of the code list is invalid; give the columns code and parent, and"
                    " optionally label and level, each once"
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
        """Return the code list that nested mappings describe.

        They map the label of each area to its contents. The contents of an area are a mapping from
        the labels of its areas to their contents, or a list of its cells. The label of a cell is
        also its code.

        >>> CodeList.from_labels({"Ohio": ["Adams", "Allen"], "Iowa": ["Adair"]}).codes
        ('Adams', 'Allen', 'Adair')
        """
        codes: list[str] = []
        parents: list[int] = []
        is_cell: list[bool] = []
        # Depth-first traversal. For each area that is being read, the stack has an iterator of its
        # remaining entries and the position of the area in ``codes`` (-1 for the code list).
        stack: list[tuple[Iterator[Any], int]] = [(_nested_entries(labels, "the code list"), -1)]
        while stack:
            entries, parent = stack[-1]
            entry = next(entries, None)
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
                entries = _nested_entries(contents, f"the area {quote_public(label)}")
                stack.append((entries, len(codes) - 1))
        # Areas can have equal labels. Cells with equal labels raise SchemaError, because the label
        # of a cell is its code in the records.
        _positions([code for code, cell in zip(codes, is_cell, strict=True) if cell], ())
        parent_of_code = np.array(parents, dtype=np.int64)
        return _code_list(codes, codes, parent_of_code, [""] * len(codes), name, levels)

    @classmethod
    def from_hrc(
        cls,
        text: str | bytes,
        *,
        name: str = "areas",
        levels: Sequence[str] = (),
        indent: str = "@",
    ) -> CodeList:
        r"""Read a code list from a hierarchy file of tau-Argus or of the R package sdcTable.

        A line of a tau-Argus file is a code, preceded by ``indent`` once per ancestor except for
        the total. A line of an sdcTable file has two fields, such as "@@;code", and the first code
        is the total.

        >>> CodeList.from_hrc("Ohio\n@Adams\n@Allen\nIowa\n@Adair\n").codes
        ('Adams', 'Allen', 'Adair')
        >>> CodeList.from_hrc("@;Total\n@@;Ohio\n@@@;Adams\n@@;Iowa\n@@@;Adair\n").codes
        ('Adams', 'Adair')
        """
        check_text(indent, "the indentation of a code list", MAX_NAME)
        lines = decoded_text(text, limit=MAX_CODE_LIST).splitlines()
        codes: list[str] = []
        parents: list[str] = []
        path: list[str] = []  # ancestors of the code on the line before, then this code
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
    """Yield rows (code, label, parent, level) of a CSV file; fields without a column are empty."""
    places = [header.index(column) if column in header else -1 for column in _COLUMNS]
    for row in filter(None, reader):
        if len(row) != len(header):
            raise SchemaError(
                f"line {reader.line_num} of the code list has {len(row)} fields, but the header has"
                f" {len(header)} columns; give one field per column"
            )
        code, label, parent, level = (row[place] if place >= 0 else "" for place in places)
        yield code, label, parent, level


def _nested_entries(contents: Any, subject: str) -> Iterator[tuple[Any, Any]]:
    """Return an iterator of the pairs (label, contents) in one mapping or list of nested labels.

    The contents of a cell are None. ``subject`` names the mapping or list in error messages.
    """
    if isinstance(contents, (str, bytes, set, frozenset)) or not isinstance(contents, Iterable):
        raise SchemaError(
            f"the contents of {subject} have the type {type(contents).__name__}; give a list of"
            " cells, or a mapping from areas to their contents"
        )
    nested = contents if isinstance(contents, Mapping) else dict[Any, Any]()
    pairs = list(nested.items()) or [(label, None) for label in contents]
    if not pairs:
        raise SchemaError(f"{subject} has no cells; give at least one cell")
    return iter(pairs)


def _hrc_lines(lines: Sequence[str], indent: str) -> Iterator[tuple[int, int, str]]:
    """Yield (line number, depth, code) of each line of a file of tau-Argus or sdcTable."""
    # A line of sdcTable has marks of the depth (group 1), a separator and the code (group 2).
    marks = re.compile(rf'"?((?:{re.escape(indent)})+)"?[;,\t]"?(.*?)"?$')
    # The first line is a header, which is skipped, if all later lines have the two fields of
    # sdcTable and the first line has not.
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
        f"the code list has more than {MAX_AREAS:,} codes; leave a fine level out, or split the "
        "list"
    )


def _too_many_levels() -> SchemaError:
    return SchemaError(
        f"the code list has more than {MAX_LEVELS} levels between the total and the cells; leave "
        "some out"
    )


def _check_texts(texts: Sequence[Any], what: str) -> None:
    """Raise SchemaError unless `check_text` accepts every entry."""
    # One search of the joined texts is much faster than one check per text.
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
    """Return the position of each code in the list.

    ``parents`` has the parent of each code, or is empty if parents need no check. Raises
    SchemaError for repeated codes, codes that look the same on screen, and unknown parents.
    """
    # The order is reversed so that a repeated code has the position of its first occurrence.
    positions = {code: i for i, code in reversed(list(enumerate(codes)))}
    if len(positions) < len(codes):
        raise _repeated_code(codes, parents, positions)
    # Two codes with the same visible text look the same on screen, which is a mistake.
    first_code: dict[str, str] = {}  # visible text -> first code with this text
    for code in codes:
        visible = visible_text(code)
        if code == visible:
            continue
        similar = visible if visible in positions else first_code.setdefault(visible, code)
        if similar != code:
            _, kind = only_difference(code, [similar]) or ("", "blanks")
            raise SchemaError(
                f"the codes {quote_public(similar)} and {quote_public(code)} differ only by {kind};"
                " correct one of them"
            )
    for code, parent in zip(codes, parents, strict=False):
        if parent and parent not in positions:
            near = difference_text(parent, positions, quote_public) or near_matches(
                parent, positions
            )
            raise SchemaError(
                f"the code {quote_public(code)} has the unknown parent "
                f"{quote_public(parent)}{near}. Add a row for this parent, or leave the parent "
                "empty for a code below the total"
            )
    return positions


def _repeated_code(
    codes: Sequence[str], parents: Sequence[str], positions: Mapping[str, int]
) -> SchemaError:
    """Return the error for the first code that occurs a second time.

    ``positions`` maps each code to the position of its first occurrence.
    """
    i, code = next((i, code) for i, code in enumerate(codes) if positions[code] != i)
    if parents and parents[positions[code]] != parents[i]:
        first, second = parents[positions[code]], parents[i]
        return SchemaError(
            f"the code {quote_public(code)} has two parents, {quote_public(first)} and"
            f" {quote_public(second)}; remove one of the rows, or make a second hierarchy"
        )
    return SchemaError(
        f"the code {quote_public(code)} occurs twice; remove one occurrence, or give each cell its"
        " own code"
    )


def _code_list(
    codes: Sequence[str],
    labels: Sequence[str],
    parents: Index,
    level_names: Sequence[str],
    name: str,
    names: Sequence[str],
) -> CodeList:
    """Return the code list of a tree of codes.

    Parameters
    ----------
    parents : position of the parent of each code, shape (codes,); -1 for codes without a parent.
    level_names : name of the level of each code; "" if the code names no level.
    name : name of the hierarchy.
    names : names of all levels from coarse to fine. If empty, the names of ``level_names`` are
        used. A level without a name in ``level_names`` is called "level 1", "level 2", and so on.
    """
    if not codes:
        raise SchemaError("the code list is empty; give it codes")
    depth = _depths(codes, parents)
    has_children = np.zeros(len(codes), dtype=bool)
    has_children[parents[parents >= 0]] = True
    leaves = np.flatnonzero(~has_children)
    deepest = int(depth[has_children].max(initial=-1))
    # ``areas[d]`` contains one node per leaf: the ancestor of the leaf at depth d, or the leaf
    # itself if its depth is at most d.
    ancestors = leaves
    areas = list[npt.NDArray[Any]]()
    for current_depth in range(deepest, -1, -1):
        ancestors = np.where(depth[ancestors] > current_depth, parents[ancestors], ancestors)
        areas.insert(0, ancestors)
    # Depths at which all leaves have the same ancestor are the total, not a level.
    first = next((i for i, nodes in enumerate(areas) if (nodes != nodes[0]).any()), len(areas))
    if first == len(areas):
        raise SchemaError(
            "the code list has no level between the total and the cells. Give parents to the codes,"
            " or, if there are no areas, give the codes as labels of a categorical attribute"
        )
    if len(areas) - first > MAX_LEVELS:
        raise _too_many_levels()
    if names and (isinstance(names, str) or len(names) != len(areas) - first):
        shown = "a single text" if isinstance(names, str) else f"a list of {len(names):,}"
        raise SchemaError(
            f"the code list has {pluralize(len(areas) - first, 'level')} between the total and the"
            f" cells, but the level names are {shown}; give a list of one name per level, from"
            " coarse to fine"
        )
    levels = []
    for i, nodes in enumerate(areas[first:]):
        members, numbers = np.unique(nodes, return_inverse=True)
        # Only codes with children name the level: a code without children, at whatever depth, is a
        # cell, and its level has the name of the cells.
        inner_codes = members[has_children[members] & (depth[members] == first + i)]
        names_in_list = {level_names[k] for k in inner_codes.tolist()} - {""}
        if len(names_in_list) > 1:
            listed = ", ".join(map(quote_public, sorted(names_in_list)[:3]))
            raise SchemaError(
                f"codes at depth {first + i + 1} of the code list have different levels: {listed}; "
                "give all codes at one depth the same level"
            )
        level_name = names[i] if names else next(iter(names_in_list), f"level {i + 1}")
        levels.append(
            HierarchyLevel(
                name=level_name,
                labels=_distinct_labels(members.tolist(), codes, labels, parents),
                area_of_cell=numbers.reshape(-1),
            )
        )
    hierarchy = Hierarchy(name=name, levels=tuple(levels))
    return CodeList(codes=tuple(codes[i] for i in leaves.tolist()), hierarchy=hierarchy)


def _depths(codes: Sequence[str], parents: Index) -> Index:
    """Return the number of ancestors of each code, shape (codes,).

    Raises SchemaError if the parents form a cycle, or a code has more than `MAX_LEVELS` + 2
    ancestors.
    """
    depth = np.where(parents < 0, 0, -1)  # -1 for codes of unknown depth
    # `MAX_LEVELS` counts neither a common root nor the cells, so a tree can be two levels deeper.
    # `_code_list` checks the number of levels exactly.
    for next_depth in range(1, MAX_LEVELS + 3):
        is_open = depth < 0
        if not is_open.any():
            return depth
        depth[is_open & (depth[parents] == next_depth - 1)] = next_depth
    if (depth >= 0).all():
        return depth
    # From a code of unknown depth the parents lead into a cycle, or, if the tree is too deep, to a
    # code without a parent.
    node = int(np.flatnonzero(depth < 0)[0])
    visited = set[int]()
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
    """Return different labels for the areas of a level.

    If several areas have the same label, a code in parentheses is added to the label of each. It is
    the code of the area, or, if that equals the label and the area has a parent, the parent's code.
    """
    texts = [labels[i] for i in members]
    repeated = {text for text, count in Counter(texts).items() if count > 1}
    if not repeated:
        return tuple(texts)
    distinct = []
    for i, text in zip(members, texts, strict=True):
        parent = int(parents[i])
        added = codes[parent] if codes[i] == text and parent >= 0 else codes[i]
        distinct.append(f"{text} ({added})" if text in repeated else text)
    return tuple(distinct)
