"""Public tables for invariants and schema drafts."""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from engine._arrays import Index
from engine._format import csv_start, plain, shown
from engine.errors import DataError
from engine.records import column_names, count_marginals
from engine.workload import Attribute, Schema
from engine.workload.schema_io import MAX_FILE

PublicTable = tuple[tuple[str, ...], Index]


def public_table(data: Any, schema: Schema) -> PublicTable:
    """Return attributes and exact counts of a table that is public, for
    ``Schema.with_facts(invariants=[...])``.

    ``data`` is anything `count_marginals` takes that tells its columns, such as the path of a CSV
    file: columns of attributes, with values as records have them, and one column of counts.  Cells
    that it does not name count 0.

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


def public_tables(text: str, schema: Schema) -> list[PublicTable]:
    """Return the public tables in a text: each as CSV with a header, an empty line between them.

    Raises: DataError for what is no such text.
    """
    if len(text) > MAX_FILE:
        raise DataError(f"public tables of {len(text):,} characters; at most {MAX_FILE:,} are read")
    return [
        public_table(_columns(block), schema)
        for block in re.split(r"\n[ \t]*\n", text.replace("\r\n", "\n").replace("\r", "\n").strip())
        if block
    ]


def _columns(block: str) -> pa.Table:
    text, delimiter = csv_start(block)
    rows = [row for row in csv.reader(io.StringIO(text), delimiter=delimiter) if row]
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
