"""Conversion between a schema and the rows of the editable grid."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from engine.errors import SchemaError
from engine.workload import Attribute, Schema
from engine.workload.attribute import attribute_from_texts
from engine.workload.schema_io import ALL_KEYS, TRUE_OR_FALSE

Row = dict[str, str]


def rows(schema: Schema) -> list[Row]:
    """Return one row of texts per attribute, with the columns of the schema's CSV form.

    >>> rows(Schema([Attribute.categorical("sex", ["F", "M"])]))[0]["labels"]
    'F|M'
    """
    plain = replace(schema, person=None, rows_per_person=None, impossible=(), invariants=())
    table = csv.DictReader(io.StringIO(plain.to_csv()))
    return [{key: row.get(key, "") for key in ALL_KEYS} for row in table]


def apply_edits(schema: Schema, edits: Mapping[str, Any]) -> Schema:
    """Return the schema after the edits of a data editor; raises SchemaError for invalid edits.

    Parameters
    ----------
    edits : "edited_rows" {row number: {column: value}}, "added_rows" [{column: value}],
        "deleted_rows" [row number].
    """
    table = rows(schema)
    for place, changes in edits.get("edited_rows", {}).items():
        table[int(place)] |= {key: _text(value) for key, value in changes.items()}
    deleted = {int(place) for place in edits.get("deleted_rows", [])}
    table = [row for place, row in enumerate(table) if place not in deleted]
    table += [{key: _text(row.get(key)) for key in ALL_KEYS} for row in edits.get("added_rows", [])]
    attributes = []
    for number, row in enumerate(table, 1):
        if not any(row[key] for key in ALL_KEYS if key not in ("kind", *TRUE_OR_FALSE)):
            continue  # a new row of the editor is empty at first
        try:
            attributes.append(attribute_from_texts(row))
        except SchemaError as error:
            name = f" ({row['name'][:60]})" if row["name"] else ""
            raise SchemaError(f"Row {number}{name}: {error}") from None
    if not attributes:
        raise SchemaError(
            "A schema needs at least one attribute. Add one before you delete the last one."
        )
    return replace(schema, attributes=tuple(attributes))


def append_attribute(schema: Schema | None, attribute: Attribute) -> Schema:
    """Return the schema with an added attribute."""
    return (
        Schema([attribute])
        if schema is None
        else replace(schema, attributes=(*schema.attributes, attribute))
    )


def read_schema(name: str, content: bytes) -> Schema:
    """Return the schema in an uploaded JSON or CSV file."""
    return Schema.from_csv(content) if name.lower().endswith(".csv") else Schema.from_json(content)


def text_lines(text: str) -> list[str]:
    """Return the nonblank lines of a text.

    >>> text_lines("F\\n M \\n\\n")
    ['F', 'M']
    """
    return [line.strip() for line in text.splitlines() if line.strip()]


def split_texts(text: str) -> list[str]:
    """Return the nonempty texts separated by |.

    >>> split_texts("NA | . ||")
    ['NA', '.']
    """
    return [part.strip() for part in text.split("|") if part.strip()]


def edge_numbers(text: str) -> list[float]:
    """Return bin edges written as numbers, with commas or spaces, or as first:last:step.

    >>> edge_numbers("0, 18 65")
    [0.0, 18.0, 65.0]
    >>> edge_numbers("0:100:25")
    [0.0, 25.0, 50.0, 75.0, 100.0]
    """
    try:
        if ":" in text:
            first, last, step = (float(part) for part in text.split(":"))
            return _even(first, last, step)
        return [float(part) for part in text.replace(",", " ").split()]
    except ValueError:
        raise SchemaError(
            f"Bin edges {text[:60]!r} are not numbers. Write 0, 18, 65, 120 or first:last:step."
        ) from None


def _even(first: float, last: float, step: float) -> list[float]:
    if not step > 0 or not first < last or (last - first) / step > 100_000:
        raise SchemaError(
            f"Bin edges {first:g}:{last:g}:{step:g} contain no bin, or too many. Give first < last"
            " and a step above 0."
        )
    bins = round((last - first) / step)
    if abs(first + bins * step - last) > 1e-9 * max(abs(first), abs(last)):
        raise SchemaError(
            f"Steps of {step:g} from {first:g} do not end at {last:g}. Choose another step."
        )
    return [*(first + i * step for i in range(bins)), last]


def _text(value: Any) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)
