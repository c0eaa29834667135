"""Export of all answers with standard errors and intervals, as parquet or CSV."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from engine._format import escape_formula
from engine._validation import check_choice
from engine.errors import PlanError
from engine.progress import Progress, progress_reporter
from engine.publish.output_path import new_file
from engine.release import Measurement, quantile
from engine.release.measurement import query_texts
from engine.workload import Group

FORMATS = ("parquet", "csv")
MARK = "REHEARSAL on simulated or public records. Not for publication; nothing was spent."
BATCH = 1 << 17  # answers written at once
SPAN = 1 << 22  # answers of a group computed at once; each span computes the complete table
SCHEMA = pa.schema(
    [
        ("attributes", pa.dictionary(pa.int32(), pa.string())),
        ("family", pa.dictionary(pa.int32(), pa.string())),
        ("query", pa.string()),
        ("answer", pa.float64()),
        ("std", pa.float64()),
        ("low", pa.float64()),
        ("high", pa.float64()),
    ]
)


def write_answers(
    measurement: Measurement,
    path: str | os.PathLike[str],
    *,
    format: str = "parquet",
    confidence: float = 0.95,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Write all answers of a measurement with standard errors and confidence intervals, in counts.

    Columns: attributes, family, query (text), answer, std, low, high.  Answers are written in
    pieces, so that millions of answers need little memory.  CSV texts that a spreadsheet would
    interpret as formulas get a leading quote.

    Rehearsals have an additional column, status, with REHEARSAL in every row.  The file is written
    atomically; an earlier file of answers is replaced only with ``overwrite``, other files never.

    Raises
    ------
    PlanError : the format is not "parquet" or "csv", or the path must not be written, see
        `check_target`.
    Cancelled : ``progress`` returned False; partial files are removed.
    """
    check_choice("format", format, FORMATS, error=PlanError)
    metadata = {
        "confidence": str(confidence),
        "plan_hash": measurement.plan.hash,
        "pcost": repr(measurement.plan.pcost),
        "status": MARK if measurement.rehearsal else "release",
        "release": measurement.key,
    }
    schema = SCHEMA.insert(0, pa.field("status", pa.string())) if measurement.rehearsal else SCHEMA
    tell = progress_reporter(progress, "Writing the answers was cancelled; no file was left behind.")
    with new_file(path, overwrite=overwrite) as partial, file_writer(partial, format, schema, metadata) as writer:
        for done, table in answer_batches(measurement, confidence):
            if measurement.rehearsal:
                table = table.add_column(0, schema.field(0), [pa.array(["REHEARSAL"] * len(table), pa.string())])
            writer.write(escape_texts(table) if format == "csv" else table)
            tell(done, "Writing answers")
    return Path(path)


def file_writer(path: Path, kind: str, schema: pa.Schema, metadata: dict[str, str]) -> Any:
    if kind == "csv":
        plain = [pa.field(f.name, pa.string()) if pa.types.is_dictionary(f.type) else f for f in schema]
        return pyarrow.csv.CSVWriter(path, pa.schema(plain))
    # noisy numbers do not compress; compressing them would take longer than computing them
    texts = ["attributes", "family", "query", "status"]
    compression = {name: "zstd" if name in texts else "none" for name in schema.names}
    return pq.ParquetWriter(
        path,
        schema.with_metadata(metadata),
        compression=compression,
        use_dictionary=texts[:2],
        write_statistics=texts[:2],
    )


def answer_batches(measurement: Measurement, confidence: float = 0.95) -> Iterator[tuple[float, pa.Table]]:
    """Yield all answers as pairs (share done, table), in the order of `Workload.describe`."""
    workload, written = measurement.plan.workload, 0
    reach = quantile(confidence, measurement.plan.budget.law)
    pending: list[pa.Table] = []
    for number, group, first, last in _spans(measurement):
        answers = measurement.values(number, first, last)
        errors = np.sqrt(measurement.plan.variances(number, first, last))
        for start in range(first, last, BATCH):
            stop = min(last, start + BATCH)
            answer, std = answers[start - first : stop - first], errors[start - first : stop - first]
            columns = [
                repeat_rows(" x ".join(group.attributes), stop - start),
                repeat_rows(group.family_text, stop - start),
                query_texts(measurement.plan, number, start, stop),
                *(pa.array(v) for v in (answer, std, answer - reach * std, answer + reach * std)),
            ]
            pending.append(pa.Table.from_arrays(columns, schema=SCHEMA))
            written += stop - start
            if sum(t.num_rows for t in pending) >= BATCH or written == workload.queries:
                yield written / workload.queries, pa.concat_tables(pending).unify_dictionaries()
                pending = []


def _spans(measurement: Measurement) -> Iterator[tuple[int, Group, int, int]]:
    """Yield spans (group number, group, first answer, end) that are computed at once."""
    for number, group in enumerate(measurement.plan.workload.groups):
        for first in range(0, group.count, SPAN):
            yield number, group, first, min(group.count, first + SPAN)


def repeat_rows(text: str, length: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(length, np.int32)), pa.array([text]))


def escape_texts(table: pa.Table) -> pa.Table:
    """Escape texts and column names that spreadsheets read as formulas; see `escape_formula`."""
    columns = []
    for name in table.column_names:
        column = table[name]
        if pa.types.is_dictionary(column.type):
            column = column.cast(pa.string())
        if pa.types.is_string(column.type):
            risky = pc.match_substring_regex(column, r"^[=+\-@\t\r]")
            column = pc.if_else(risky, pc.binary_join_element_wise("'", column, ""), column)
        columns.append(column)
    return pa.Table.from_arrays(columns, names=[escape_formula(name) for name in table.column_names])
