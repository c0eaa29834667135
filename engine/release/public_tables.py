"""Public tables: exact totals as offices print them, as text; and schemas of records that anybody may have."""

from __future__ import annotations

import csv
import io
import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from engine.arrays import Index
from engine.errors import DataError, SchemaError
from engine.release.records import DraftSchema, column_names, count_marginals, read_batches
from engine.texts import delimiter, plain, shown
from engine.workload import MAX_FILE, Attribute, Schema, spanned

PublicTable = tuple[tuple[str, ...], Index]
MOST_LABELS = 200  # values of a column of texts; one with more is left to people
FEW = 12  # whole numbers up to which each is a label of its own


def public_table(data: Any, schema: Schema) -> PublicTable:
    """Return attributes and exact counts of a table that is public, for ``Schema.with_facts(invariants=[...])``.

    ``data`` is anything `count_marginals` takes that tells its columns, such as the path of a CSV file: columns of
    attributes, with values as records have them, and one column of counts.  Cells that it does not name count 0.

    Raises: DataError when the columns are others, or a value is outside the domain.

    >>> import pandas as pd
    >>> schema = Schema([Attribute.categorical("region", ["north", "south"])])
    >>> public_table(pd.DataFrame({"region": ["south", "north"], "people": [242, 310]}), schema)[1].tolist()
    [310, 242]
    """
    columns = list(column_names(data))
    names, others = tuple(c for c in columns if c in schema), [c for c in columns if c not in schema]
    if len(others) != 1:
        raise DataError(
            f"the public table has {len(columns):,} columns, of which {len(names)} are attributes of the schema; give "
            "those of its attributes, and one of exact counts"
        )
    plain_schema = replace(schema, person=None, rows_per_person=None, impossible=(), invariants=())
    return names, count_marginals(data, plain_schema, [names], count_column=others[0])[names]


def draft_of_public(data: Any) -> DraftSchema:
    """Return the schema that records make which are public, such as a published sample: every value to be confirmed.

    Columns of up to 200 texts, or up to 12 whole numbers, have a cell for each; other whole numbers a cell for each or
    even bins, and other numbers bins between whole numbers.  Columns of more texts, or of one value, are left to
    people.  For public records alone: of others, a value that is there once would give somebody away.

    Raises: DataError when the data cannot be read; SchemaError when no column makes an attribute.

    >>> import pandas as pd
    >>> found = draft_of_public(pd.DataFrame({"sex": ["M", "F", "F"], "age": [31, 4, 17], "name": ["Li", "Li", "Li"]}))
    >>> [(a.name, a.size) for a in found.schema.attributes], found.unlabelled
    ([('sex', 2), ('age', 3)], ('name',))
    """
    names = list(column_names(data))
    values: dict[str, set[str]] = {name: set() for name in names}
    for batch in read_batches(data, names):
        for name, column in zip(names, batch.columns, strict=True):
            # where some values have labels and some have none, a column is a list of texts and numbers
            found = column if isinstance(column, list) else column.unique().to_pylist()
            values[name].update(_text(v) for v in found if v is not None and v == v)
    made = {name: _attribute_of(name, found - {""}) for name, found in values.items()}
    known = [attribute for attribute in made.values() if attribute is not None]
    if not known:
        raise SchemaError("No column of these records makes an attribute. Write the schema by hand.")
    return DraftSchema(schema=Schema(known), unlabelled=tuple(name for name, a in made.items() if a is None))


def _text(value: Any) -> str:
    return plain(value) if isinstance(value, float) else str(value).strip()


def _attribute_of(name: str, values: set[str]) -> Attribute | None:
    """Return the attribute that values make; nothing where they are for people to say."""
    numbers = _numbers(values)
    whole = numbers is not None and all(number == round(number) for number in numbers)
    if len(values) < 2 or (numbers is None and len(values) > MOST_LABELS):
        return None
    if numbers is None:
        return Attribute.categorical(name, sorted(values))
    if whole and len(set(numbers)) <= FEW:
        return Attribute.categorical(name, [f"{number:.0f}" for number in sorted(set(numbers))])
    return spanned(name, math.floor(min(numbers)), math.ceil(max(numbers)), integer=whole)


def _numbers(values: set[str]) -> list[float] | None:
    try:
        numbers = [float(value) for value in values]
    except ValueError:
        return None
    return numbers if all(map(math.isfinite, numbers)) else None


def public_tables(text: str, schema: Schema) -> list[PublicTable]:
    """Return the public tables in a text: each as CSV with a header, an empty line between them.

    Raises: DataError for what is no such text.
    """
    if len(text) > MAX_FILE:
        raise DataError(f"public tables of {len(text):,} characters; at most {MAX_FILE:,} are read")
    return [
        public_table(_columns(block), schema)
        for block in re.split(r"\n[ \t]*\n", text.replace("\r\n", "\n").strip())
        if block
    ]


def _columns(block: str) -> pa.Table:
    rows = [row for row in csv.reader(io.StringIO(block), delimiter=delimiter(block)) if row]
    head = [cell.strip() for cell in rows[0]]
    if len(set(head)) < len(head) or any(len(row) != len(head) for row in rows):
        raise DataError(
            f"the public table that begins with {shown(block.splitlines()[0])} has rows of different lengths, or a "
            "column twice; give a header, and one field for every column"
        )
    columns = zip(*rows[1:], strict=True) if len(rows) > 1 else [()] * len(head)
    return pa.table(
        {name: pa.array([v.strip() for v in own], pa.string()) for name, own in zip(head, columns, strict=True)}
    )


def public_text(schema: Schema) -> str:
    """Return the invariants of a schema as a text that `public_tables` reads."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for number, one in enumerate(schema.invariants):
        if number:
            out.write("\n")
        counts = next(
            name for name in itertools.accumulate(itertools.repeat("exact"), "{} {}".format) if name not in schema
        )
        writer.writerow([*one.attributes, counts])
        cells = itertools.product(*(_values(schema[name]) for name in one.attributes))
        writer.writerows([*cell, count] for cell, count in zip(cells, one.values, strict=True))
    return out.getvalue()


def _values(attribute: Attribute) -> Sequence[str]:
    """A value of every cell, as records have it."""
    if attribute.labels is not None:
        return attribute.labels
    if attribute.edges is not None:
        return [_written(edge, attribute) for edge in attribute.edges[:-1]]
    return [attribute.label(i) for i in range(attribute.size)]


def _written(number: float, attribute: Attribute) -> str:
    """A number with the decimal sign that the schema declares."""
    return plain(number).replace(".", attribute.decimal or ".")
