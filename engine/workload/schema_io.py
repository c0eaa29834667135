"""Reading and writing of schemas as JSON and CSV text.

The texts are untrusted input: all readers limit their size and refuse everything that is not a
valid description of a schema.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from engine._format import csv_start, quote_public, shortest_text
from engine._untrusted import MAX_JSON_MEMORY, parse_json
from engine.errors import SchemaError

MAX_ATTRIBUTES = 10_000  # attributes of a schema
MAX_LABEL = 1_000  # characters of a name or a label
MAX_FILE = 10_000_000  # bytes or characters of a file
# Limit for the characters of a schema as JSON. It is large because a schema can contain code lists.
MAX_JSON = 30_000_000
MAX_BRACKETS = 100_000
MAX_CSV_FIELD = 131_072
# Kinds of CSV rows: person column, rule for structural zeros, invariant, attribute of dates.
PERSON_KIND = "person"
RULE_KIND = "impossible"
EXACT_KIND = "exact"
DATE_KIND = "dates"
KEYS = ("name", "kind", "size", "labels", "edges", "other", "missing", "clip")
DATE_KEYS = ("start", "stop", "unit", "date_format")
HIERARCHIES_KEY = "hierarchies"
# CSV columns that are written only if an attribute uses them.
OPTIONAL_KEYS = (
    "integer",
    "missing_values",
    "decimal",
    "thousands",
    *DATE_KEYS,
    HIERARCHIES_KEY,
)
ALL_KEYS = KEYS + OPTIONAL_KEYS
TRUE_OR_FALSE = ("clip", "integer")
# Common texts for missing values. The app suggests them; without confirmation none is used.
DEFAULT_MISSING_TEXTS = (
    "NA",
    "N/A",
    "n/a",
    "#N/A",
    "NULL",
    "null",
    "NaN",
    "nan",
    "<NA>",
    ".",
    "-",
    "--",
    "?",
)

# Control characters, line separators, text-direction overrides and lone surrogates: they corrupt
# logs and files, or make a label look like another label.
FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_CSV_TOKEN = re.compile(r"\\[\\|=+\-@]|\||[^|\\]+|\\")


def check_text(text: Any, what: str, limit: int, *, if_empty: str = "give a text") -> None:
    """Raise SchemaError unless a public name or label is a text of 1 to ``limit`` characters.

    Blank texts and control characters are refused. ``what`` names the text in error messages;
    ``if_empty`` states what to do about an empty text.
    """
    if not isinstance(text, str):
        raise SchemaError(f"{what} has the type {type(text).__name__}; give a text")
    if not text.strip():
        raise SchemaError(f"{what} is empty; {if_empty}")
    if len(text) > limit:
        raise SchemaError(
            f"{what} has {len(text):,} characters; at most {limit:,} are allowed. Shorten the text"
        )
    if FORBIDDEN.search(text):
        raise SchemaError(
            f"{what}, {quote_public(text)}, has control characters or characters that change the "
            "text direction; remove them"
        )


def read_json(text: str | bytes, what: str = "the schema") -> Any:
    """Parse JSON text or bytes; raise SchemaError if it is invalid or exceeds the limits.

    The encoding of bytes is UTF-8, or UTF-16 with a byte order mark. ``what`` names the text in
    error messages.
    """
    text = decoded_text(text, limit=MAX_JSON)
    # Parsed objects need far more memory than their text. A schema has two or three objects and
    # lists per attribute, so a text with many more brackets is not a schema.
    if text.count("{") + text.count("[") > MAX_BRACKETS:
        raise SchemaError(
            f"the JSON has more than {MAX_BRACKETS:,} brackets, so it is not a schema; give a"
            " schema file"
        )
    try:
        return parse_json(text, max_memory=MAX_JSON_MEMORY, object_pairs_hook=_unique_keys)
    except SchemaError:
        raise
    except json.JSONDecodeError as error:
        raise SchemaError(
            f"{what} is not valid JSON at line {error.lineno}; correct it or export it again"
        ) from None
    except ValueError as error:
        raise SchemaError(f"{what} cannot be read: {error}. Export it again") from None


def write_csv(descriptions: Iterable[dict[str, Any]]) -> str:
    """Return descriptions of attributes and other declarations as CSV text, one row each.

    The columns are `KEYS` and each of `OPTIONAL_KEYS` that some description uses.

    Raises
    ------
    SchemaError : if a cell is too long.
    """
    documents = list(descriptions)
    keys = KEYS + tuple(
        key for key in OPTIONAL_KEYS if any(key in document for document in documents)
    )
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(keys)
    for document in documents:
        cells = [_cell(document.get(key)) for key in keys]
        if max(map(len, cells)) > MAX_CSV_FIELD:
            raise SchemaError(
                f"the CSV row of {quote_public(document['name'])} needs a cell of more than"
                f" {MAX_CSV_FIELD:,} characters; write the schema as JSON"
            )
        writer.writerow(cells)
    return out.getvalue()


def read_csv(text: str | bytes) -> list[tuple[int, dict[str, Any]]]:
    """Return pairs (line number, description from `parse_row`), one per row of a schema CSV.

    The delimiter is detected in the first line: depending on the locale, spreadsheets write commas
    or semicolons.

    Raises
    ------
    SchemaError : if the text is not a schema in CSV.
    """
    content, delimiter = csv_start(decoded_text(text))
    reader = csv.reader(io.StringIO(content, newline=""), delimiter=delimiter, strict=True)
    rows: list[tuple[int, dict[str, Any]]] = []
    try:
        header = [cell.strip().lower() for cell in next(filter(None, reader), [])]
        if len(set(header)) < len(header) or not {"name", "kind"} <= set(header) <= set(ALL_KEYS):
            raise SchemaError(
                "the header is invalid; give name, kind and further columns among"
                f" {', '.join(ALL_KEYS)}, each at most once"
            )
        for row in reader:
            if not row:
                continue
            if len(row) != len(header):
                raise SchemaError(
                    f"the row has {len(row)} fields, but the header has {len(header)} columns; give"
                    " one field per column"
                )
            # One row more than the limit is allowed, because it can declare the person column.
            if len(rows) > MAX_ATTRIBUTES:
                raise SchemaError(
                    f"the file has more than {MAX_ATTRIBUTES + 1:,} rows; remove some"
                )
            rows.append((reader.line_num, parse_row(dict(zip(header, row, strict=True)))))
    except csv.Error:
        raise SchemaError(
            f"line {reader.line_num} is not valid CSV; check its quotes, and shorten long cells"
        ) from None
    except SchemaError as error:
        raise SchemaError(f"line {reader.line_num}: {error}") from None
    return rows


def decoded_text(text: str | bytes, *, limit: int = MAX_FILE) -> str:
    """Return the text of a public file: UTF-8, or UTF-16 with a byte order mark.

    Raises SchemaError if the bytes are neither, or more than ``limit`` bytes or characters.
    """
    if not isinstance(text, (str, bytes)):
        raise SchemaError(
            f"the content of a file has the type {type(text).__name__}; give text or bytes"
        )
    if len(text) > limit:
        unit = "characters" if isinstance(text, str) else "bytes"
        raise SchemaError(
            f"the file has {len(text):,} {unit}, but at most {limit:,} are allowed; shorten the file"
        )
    if isinstance(text, str):
        return text.removeprefix("\ufeff")
    is_utf16 = text.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        return text.decode("utf-16" if is_utf16 else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise SchemaError(
            f"byte {error.start:,} of the file is not {'UTF-16' if is_utf16 else 'UTF-8'}; save"
            " the file as UTF-8 (spreadsheets offer 'CSV UTF-8')"
        ) from None


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > MAX_ATTRIBUTES:
        raise SchemaError(
            f"the JSON has more than {MAX_ATTRIBUTES:,} keys in one object; remove some keys"
        )
    document = dict(pairs)
    if len(document) < len(pairs):
        raise SchemaError("the JSON has the same key twice in one object; keep one of them")
    return document


def _escaped(text: str) -> str:
    # Spreadsheets would execute a cell that starts with one of these signs as a formula.
    text = text.replace("\\", "\\\\").replace("|", "\\|")
    return f"\\{text}" if text.startswith(("=", "+", "-", "@")) else text


def _cell(value: Any) -> str:
    """Return a value of an attribute's description as the text of a CSV cell."""
    if value is None:
        return ""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return _escaped(json.dumps(value, ensure_ascii=False, separators=(",", ":")))
    if isinstance(value, list):
        return "|".join(
            _escaped(entry if isinstance(entry, str) else shortest_text(entry)) for entry in value
        )
    if isinstance(value, float):
        return _escaped(shortest_text(value))
    return _escaped(value) if isinstance(value, str) else str(value).lower()


def _texts(cell: str) -> list[str]:
    r"""Return the texts in a CSV cell: split at |, with \| and the other escapes removed."""
    parts: list[list[str]] = [[]]
    for token in _CSV_TOKEN.findall(cell):
        if token == "|":
            parts.append([])
        else:
            parts[-1].append(token[1:] if len(token) == 2 and token[0] == "\\" else token)
    return ["".join(part) for part in parts]


def parse_row(row: Mapping[str, str]) -> dict[str, Any]:
    """Return a CSV row as a description of an attribute, with numbers, lists and booleans.

    Empty cells are left out. Raises SchemaError if a cell is not valid.
    """
    numeric = bool(row.get("edges"))
    document: dict[str, Any] = {}
    for key, cell in row.items():
        texts = _texts(cell)
        if cell == "":
            continue
        if key in ("labels", "missing_values"):
            document[key] = texts
        elif key == "edges":
            document[key] = [_parsed_number(text, float) for text in texts]
        elif len(texts) > 1:
            raise SchemaError(
                f"the column {key} has several texts, separated by |; write one text, and \\| for "
                "a | inside it"
            )
        elif key in TRUE_OR_FALSE:
            if cell.lower() not in ("true", "false"):
                raise SchemaError(
                    f"the column {key} has the value {quote_public(cell)}; write true or false"
                )
            document[key] = cell.lower() == "true"
        elif key == HIERARCHIES_KEY:
            document[key] = read_json(texts[0], f"the column {key}")
        elif key == "size" or (key == "missing" and numeric):
            document[key] = _parsed_number(texts[0], int if key == "size" else float)
        else:
            document[key] = texts[0]
    return document


def _parsed_number(text: str, kind: Any) -> Any:
    try:
        if "_" in text:
            raise ValueError
        return kind(text)
    except ValueError:
        raise SchemaError(
            f"{quote_public(text)} is not a {'whole number' if kind is int else 'number'}; correct "
            "it"
        ) from None
