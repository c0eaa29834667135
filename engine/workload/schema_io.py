"""Schemas as JSON and CSV text.

Text comes from people and their tools, so every reader here is bounded in size and refuses whatever is not plainly
a description: see the hostile files in the tests.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from engine._format import csv_start, plain, shown
from engine._untrusted import parse_json
from engine.errors import SchemaError

MAX_ATTRIBUTES = 10_000
MAX_LABEL = 1_000
MAX_FILE = 10_000_000
MAX_BRACKETS = 100_000
MAX_CSV_FIELD = 131_072
PERSON_KIND = "person"  # of the row that tells whose rows these are
RULE_KIND = "impossible"  # of a row with a rule for cells that none may have
EXACT_KIND = "exact"  # of a row with a table that is public and exact
DATE_KIND = "dates"  # of a row whose cells are years, quarters, months or days
KEYS = ("name", "kind", "size", "labels", "edges", "other", "missing", "clip")
DATE_KEYS = ("start", "stop", "unit", "date_format")
# CSV columns that are written only where an attribute uses them
OPTIONAL_KEYS = ("integer", "missing_values", "decimal", "thousands", *DATE_KEYS)
ALL_KEYS = KEYS + OPTIONAL_KEYS
TRUE_OR_FALSE = ("clip", "integer")
# texts that usually mean missing: offered to people, and never assumed
USUAL_MISSING = ("NA", "N/A", "n/a", "#N/A", "NULL", "null", "NaN", "nan", "<NA>", ".", "-", "--", "?")

# Control characters, line separators, text-direction overrides and lone surrogates: they corrupt logs and files, or
# make a label look like another one.
FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_CSV_TOKEN = re.compile(r"\\[\\|=+\-@]|\||[^|\\]+|\\")


def check_text(text: Any, what: str, limit: int) -> None:
    """Accept a public name or label.  Raises: SchemaError for non-text, blank, long or unprintable ones."""
    if not isinstance(text, str):
        raise SchemaError(f"{what} is of type {type(text).__name__}; give text")
    if not text.strip():
        raise SchemaError(f"{what} is empty; give it a text, and use missing= to collect missing values")
    if len(text) > limit:
        raise SchemaError(f"{what} has {len(text):,} characters; at most {limit:,} are allowed")
    if FORBIDDEN.search(text):
        raise SchemaError(f"{what}, {shown(text)}, has control or direction characters; remove them")


def read_json(text: str | bytes) -> Any:
    """The document in a JSON text or in its bytes.  Raises: SchemaError."""
    text = decoded_text(text)
    # Objects cost the parser far more than the bytes they take, and a schema needs two or three brackets an attribute.
    if text.count("{") + text.count("[") > MAX_BRACKETS:
        raise SchemaError(f"the JSON has more than {MAX_BRACKETS:,} brackets; a schema needs far fewer")
    try:
        return parse_json(text, object_pairs_hook=_unique_keys)
    except SchemaError:
        raise
    except ValueError as error:
        place = f" at line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise SchemaError(f"the schema is not valid JSON{place}; correct it or export it again") from None


def write_csv(attributes: Iterable[dict[str, Any]]) -> str:
    """CSV text of attribute descriptions, one row each, under the header KEYS and the optional keys in use.

    Raises: SchemaError if a cell is too long.
    """
    documents = list(attributes)
    keys = KEYS + tuple(key for key in OPTIONAL_KEYS if any(key in document for document in documents))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(keys)
    for document in documents:
        cells = [_cell(document.get(key)) for key in keys]
        if max(map(len, cells)) > MAX_CSV_FIELD:
            raise SchemaError(f"attribute {shown(document['name'])} is too long for a CSV cell; use JSON")
        writer.writerow(cells)
    return out.getvalue()


def read_csv(text: str | bytes) -> list[tuple[int, dict[str, Any]]]:
    """Line number and description of each attribute, the inverse of `write_csv`.  Raises: SchemaError.

    Spreadsheets of many languages write semicolons for commas, so what separates fields is read off the first line.
    """
    content, delimiter = csv_start(decoded_text(text))
    reader = csv.reader(io.StringIO(content, newline=""), delimiter=delimiter, strict=True)
    rows: list[tuple[int, dict[str, Any]]] = []
    try:
        header = [cell.strip().lower() for cell in next(filter(None, reader), [])]
        if len(set(header)) < len(header) or not {"name", "kind"} <= set(header) <= set(ALL_KEYS):
            raise SchemaError(f"it must name columns among {', '.join(ALL_KEYS)}, each once; name and kind are needed")
        for row in reader:
            if not row:
                continue
            if len(row) != len(header):
                raise SchemaError(f"{len(row)} fields under {len(header)} columns; give one field per column")
            if len(rows) > MAX_ATTRIBUTES:  # one row more may tell whose rows these are
                raise SchemaError(f"more than {MAX_ATTRIBUTES:,} attributes; leave some out")
            rows.append((reader.line_num, parse_row(dict(zip(header, row, strict=True)))))
    except csv.Error:
        raise SchemaError(f"line {reader.line_num} is not valid CSV; check its quotes and length") from None
    except SchemaError as error:
        raise SchemaError(f"line {reader.line_num}: {error}") from None
    return rows


def decoded_text(text: str | bytes) -> str:
    """Text of a public file: bytes are UTF-8, or UTF-16 where a mark says so.  Raises: SchemaError."""
    if not isinstance(text, (str, bytes)):
        raise SchemaError(f"a file is text or bytes; given {type(text).__name__}")
    if len(text) > MAX_FILE:
        raise SchemaError(f"a file of {len(text):,} characters; at most {MAX_FILE:,} are read")
    if isinstance(text, str):
        return text.removeprefix("\ufeff")
    try:
        return text.decode("utf-16" if text.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise SchemaError(
            f"byte {error.start:,} of the file is not UTF-8; save it as UTF-8 (spreadsheets offer 'CSV UTF-8')"
        ) from None


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > MAX_ATTRIBUTES:
        raise SchemaError(f"the JSON has more than {MAX_ATTRIBUTES:,} keys in one object; leave some out")
    found = dict(pairs)
    if len(found) < len(pairs):
        raise SchemaError("the JSON has the same key twice in one object; keep one of them")
    return found


def _escaped(text: str) -> str:
    # A cell that starts like a formula would run in a spreadsheet.
    text = text.replace("\\", "\\\\").replace("|", "\\|")
    return f"\\{text}" if text.startswith(("=", "+", "-", "@")) else text


def _cell(value: Any) -> str:
    """One CSV cell of a schema row."""
    if value is None:
        return ""
    if isinstance(value, list):
        return "|".join(_escaped(entry if isinstance(entry, str) else plain(entry)) for entry in value)
    if isinstance(value, float):
        return _escaped(plain(value))
    return _escaped(value) if isinstance(value, str) else str(value).lower()


def _texts(cell: str) -> list[str]:
    """Split a cell at |, undoing the escapes."""
    parts: list[list[str]] = [[]]
    for token in _CSV_TOKEN.findall(cell):
        if token == "|":
            parts.append([])
        else:
            parts[-1].append(token[1:] if len(token) == 2 and token[0] == "\\" else token)
    return ["".join(part) for part in parts]


def parse_row(row: Mapping[str, str]) -> dict[str, Any]:
    """Return one CSV row in the types of a JSON description.  Raises: SchemaError."""
    numeric = bool(row.get("edges"))
    found: dict[str, Any] = {}
    for key, cell in row.items():
        texts = _texts(cell)
        if cell == "":
            continue
        if key in ("labels", "missing_values"):
            found[key] = texts
        elif key == "edges":
            found[key] = [_parsed_number(text, float) for text in texts]
        elif len(texts) > 1:
            raise SchemaError(f"the column {key} takes one text; write \\| for a | inside it")
        elif key in TRUE_OR_FALSE:
            if cell.lower() not in ("true", "false"):
                raise SchemaError(f"the column {key} takes true or false")
            found[key] = cell.lower() == "true"
        elif key == "size" or (key == "missing" and numeric):
            found[key] = _parsed_number(texts[0], int if key == "size" else float)
        else:
            found[key] = texts[0]
    return found


def _parsed_number(text: str, kind: Any) -> Any:
    try:
        if "_" in text:
            raise ValueError
        return kind(text)
    except ValueError:
        raise SchemaError(f"{shown(text)} is no {'whole number' if kind is int else 'number'}") from None
