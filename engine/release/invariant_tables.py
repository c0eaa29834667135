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
from engine._format import csv_start, quote_public, shortest_text
from engine.errors import DataError
from engine.records import column_names, count_marginals
from engine.workload import Attribute, Schema
from engine.workload.schema_io import MAX_FILE

PublicTable = tuple[tuple[str, ...], Index]


def public_table(data: Any, schema: Schema) -> PublicTable:
    """Return attributes and exact counts of a public table, for `Schema.with_facts`.

    ``data`` is anything with column names that `count_marginals` accepts, such as the path of a CSV
    file: columns of attributes, with values as in records, and one column of counts.  Cells without
    a row have the count 0.

    Raises
    ------
    DataError
        There are other columns, or a value is outside the domain.

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
    """Return the public tables in a text: CSV tables with headers, separated by empty lines.

    Raises
    ------
    DataError
        The text is too long, or does not contain such tables.
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
    header = [cell.strip() for cell in rows[0]]
    if len(set(header)) < len(header) or any(len(row) != len(header) for row in rows):
        raise DataError(
            f"the public table that begins with {quote_public(block.splitlines()[0])} has rows of different lengths, or a "
            "column twice; give a header, and one field for every column"
        )
    columns = zip(*rows[1:], strict=True) if len(rows) > 1 else [()] * len(header)
    return pa.table(
        {name: pa.array([v.strip() for v in values], pa.string()) for name, values in zip(header, columns, strict=True)}
    )


def public_text(schema: Schema) -> str:
    """Return the invariants of a schema as a text that `public_tables` reads."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for number, invariant in enumerate(schema.invariants):
        if number:
            text.write("\n")
        counts = next(
            name for name in itertools.accumulate(itertools.repeat("exact"), "{} {}".format) if name not in schema
        )
        writer.writerow([*invariant.attributes, counts])
        cells = itertools.product(*(_values(schema[name]) for name in invariant.attributes))
        writer.writerows([*cell, count] for cell, count in zip(cells, invariant.values, strict=True))
    return text.getvalue()


def _values(attribute: Attribute) -> Sequence[str]:
    """Return one value of every cell, as in records."""
    if attribute.labels is not None:
        return attribute.labels
    if attribute.edges is not None:
        return [_written(edge, attribute) for edge in attribute.edges[:-1]]
    return [attribute.label(i) for i in range(attribute.size)]


def _written(number: float, attribute: Attribute) -> str:
    """Return a number as text, with the decimal sign of the schema."""
    return shortest_text(number).replace(".", attribute.decimal or ".")
