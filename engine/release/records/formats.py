"""Arrow files, JSON lines and JSON arrays -> batches of the needed columns."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from engine.errors import DataError
from engine.release.records.batches import Batch, batches, check_columns, guarded, tried
from engine.release.records.packed import BLOCK, MAGIC, arrow_start, check_arrow, is_arrow_file, lines, unpacked
from engine.texts import shown

MOST_LINE = 4_000_000
MAX_INDENT = 1_024  # bytes in which the first character of a JSON file comes
BLANKS = re.compile(r"[ \t\r\n]*")
LINES = 2**15  # that are taken apart together


def arrow_schema(path: Path) -> pa.Schema:
    """The columns of an Arrow or Feather file."""
    return tried(lambda: _arrow(path), f"the file {shown(path.name)}").schema


def arrow_batches(path: Path, names: Sequence[str], rows: int) -> Iterator[Batch]:
    """The named columns of an Arrow or Feather file.  Raises: LimitExceeded for batches that unfold to too much."""
    what = f"the file {shown(path.name)}"
    tried(lambda: _check(path), what)
    file = tried(lambda: _arrow(path), what)
    check_columns(file.schema.names, names)
    listed = getattr(file, "num_record_batches", None)
    parts = file if listed is None else map(file.get_batch, range(listed))
    return batches(parts, names, rows, None, what)


def _check(path: Path) -> None:
    if path.stat().st_size:  # an empty file cannot be mapped, and has no batches
        with pa.memory_map(str(path)) as file:
            check_arrow(file, path.name)


def _arrow(path: Path) -> Any:
    """A reader of an Arrow file, which goes by the list at its end, as others do, or of a stream."""
    source = pa.memory_map(str(path))
    listed = is_arrow_file(source)
    source.seek(0 if listed else arrow_start(source.read(len(MAGIC))))
    file = pa.ipc.open_file(source) if listed else pa.ipc.open_stream(source)
    _ = file.schema.names  # which are read now, and may be no text
    return file


def json_names(path: Path) -> list[str]:
    """The keys of the first objects: one leaves out what it has no value for."""
    return list(dict.fromkeys(key for _, row in islice(_objects(path), LINES) for key in row))


def json_batches(path: Path, names: Sequence[str], rows: int) -> Iterator[Batch]:
    """The values under some keys of objects; a key that an object does not have is a missing value."""
    seen: set[str] = set()

    def values() -> Iterator[list[Any]]:
        for place, row in _objects(path):
            if isinstance(row, _Twice) and (lost := row.keys_twice & set(names)):
                where = f"{place} of the file {shown(path.name)}"
                raise DataError(f"{where} has the key {shown(min(lost))} twice; write each once")
            seen.update(row.keys() & names)
            yield [row.get(name) for name in names]

    done = 0
    for batch in batched(values(), len(names), rows):
        done += batch.rows
        yield batch
    if done:
        check_columns(sorted(seen), names)


def batched(values: Iterator[Sequence[Any]], width: int, rows: int) -> Iterator[Batch]:
    """Rows of Python values as batches of so many columns."""
    import pandas as pd

    from engine.release.records.sources import array_of

    while held := list(islice(values, min(rows, LINES))):
        columns = tuple(array_of(pd.Series([row[i] for row in held], dtype=object)) for i in range(width))
        yield Batch(columns=columns, rows=len(held), fraction=None)


class _Twice(dict[str, Any]):
    """An object that says some keys more than once."""

    keys_twice: set[str]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    twice, keys = _Twice(found), [key for key, _ in pairs]
    twice.keys_twice = {key for key in found if keys.count(key) > 1}
    return twice


def _objects(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a file, one per line or in one array, and the place of each in words."""
    what = f"the file {shown(path.name)}"
    raw, file = tried(lambda: unpacked(path), what)
    with raw:
        is_array = tried(lambda: file.read(MAX_INDENT), what).removeprefix(codecs.BOM_UTF8).lstrip()[:1] == b"["
    raw, file = tried(lambda: unpacked(path), what)
    with raw:
        elements = _array(file, what) if is_array else _lines(file, what)
        for place, value in guarded(elements, what):
            if not isinstance(value, dict):
                advice = "write an array of objects alone" if is_array else "write one per line, or one array of them"
                raise DataError(f"{place} of {what} is not a JSON object; {advice}")
            yield place, value


def _lines(file: Any, what: str) -> Iterator[tuple[str, Any]]:
    """The value in each line that is not blank; None for a line that is not JSON."""
    for number, line in enumerate(lines(file, MOST_LINE, what), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line, object_pairs_hook=_object)
        except (ValueError, RecursionError):
            value = None
        yield f"line {number:,}", value


def _array(file: Any, what: str) -> Iterator[tuple[str, Any]]:
    """The elements of an array, decoded one after the other; None for one that is not an object."""
    decoder, text_of = json.JSONDecoder(object_pairs_hook=_object), codecs.getincrementaldecoder("utf-8-sig")()
    text, at, number, is_complete = "", 0, 0, False

    def more() -> bool:
        """Read another block behind the rest of the text; False at the end of the file."""
        nonlocal text, at
        block = file.read(BLOCK)
        text, at = text[at:] + text_of.decode(block, final=not block), 0
        return bool(block)

    def next_sign() -> str:
        """The next character that is not blank; empty at the end of the file."""
        nonlocal at
        while True:
            at = BLANKS.match(text, at).end()  # type: ignore[union-attr]  # it matches no blanks, too
            if at < len(text):
                return text[at]
            if not more():
                return ""

    next_sign()
    while not is_complete:
        at += 1  # the bracket or comma before
        number += 1
        place = f"object {number:,}"
        if (sign := next_sign()) == "]" and number == 1:
            break
        while sign == "{":
            try:
                value, at = decoder.raw_decode(text, at)
                yield place, value
                break
            except RecursionError:
                sign = ""
            except ValueError:
                # it may go on behind this block
                if len(text) - at > MOST_LINE or not more():
                    sign = ""
        if sign != "{":
            yield place, None
        separator = next_sign()
        if separator not in (",", "]"):
            raise DataError(f"{what} breaks off or is not valid JSON behind {place}; write it again")
        is_complete = separator == "]"
    at += 1
    if next_sign():
        raise DataError(f"{what} goes on behind its array; write one array of objects")
