"""Export of published tables and synthetic records as parquet or CSV."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from engine._validation import check_choice
from engine.errors import PlanError
from engine.plans import Plan
from engine.postprocess import QualityRule
from engine.postprocess.uncertainty import Uncertainty
from engine.progress import Progress, progress_reporter
from engine.publish.columns import added_columns
from engine.publish.output_path import new_file
from engine.publish.report import FORMATS, MARK, escape_texts, file_writer, repeat_rows
from engine.release import Measurement

if TYPE_CHECKING:
    import pandas as pd


STOPPED = "Writing was cancelled; no file was left behind."
PIECE = 1 << 16  # answers per row group
NUMBERS = ("published", "error", "published_low", "published_high", "answer", "std", "low", "high")
SCHEMA = pa.schema(
    [
        ("attributes", pa.dictionary(pa.int32(), pa.string())),
        ("family", pa.dictionary(pa.int32(), pa.string())),
        ("query", pa.string()),
        *((name, pa.float64()) for name in NUMBERS[:4]),
        ("flag", pa.string()),
        ("reason", pa.string()),
        *((name, pa.float64()) for name in NUMBERS[4:]),
    ]
)


def write_published(
    uncertainty: Uncertainty,
    path: str | os.PathLike[str],
    *,
    format: str = "parquet",
    rule: QualityRule | None = None,
    confidence: float = 0.95,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Write all published and unbiased answers with errors, intervals and flags, one row per query.

    Columns: attributes, family, query, then those of `Uncertainty.answers`; for rehearsals, the
    first column is status. The file is written atomically; an earlier file is replaced only with
    ``overwrite``.

    Raises
    ------
    PlanError : the format is not "parquet" or "csv", or the path must not be written, see
        `check_target`.
    Cancelled : ``progress`` returned False; partial files are removed.
    """
    check_choice("format", format, FORMATS, error=PlanError)
    measurement = uncertainty.published.measurement
    rehearsal, workload = measurement.rehearsal, measurement.plan.workload
    metadata = {
        "confidence": str(confidence),
        "plan_hash": measurement.plan.hash,
        "fit": uncertainty.published.fit,
        "status": MARK if rehearsal else "release",
    }
    schema = SCHEMA.insert(0, pa.field("status", pa.string())) if rehearsal else SCHEMA
    tell, written = progress_reporter(progress, STOPPED), 0
    with new_file(path, overwrite=overwrite) as partial, file_writer(partial, format, schema, metadata) as writer:
        for number, group in enumerate(workload.groups):
            for start in range(0, group.count, PIECE):
                rows = uncertainty.answers(number, start, start + PIECE, confidence, rule)
                columns = [repeat_rows(t, len(rows)) for t in (" x ".join(group.attributes), group.family_text)]
                columns += [pa.array(rows[f.name], f.type, from_pandas=True) for f in SCHEMA if f.name in rows]
                table = pa.Table.from_arrays(columns, schema=SCHEMA)
                if rehearsal:
                    table = table.add_column(0, schema.field(0), [pa.array(["REHEARSAL"] * len(rows), pa.string())])
                writer.write(escape_texts(table) if format == "csv" else table)
                written += len(rows)
                tell(written / workload.queries, "Writing published answers")
    return Path(path)


def read_published(
    plan: Plan, path: str | os.PathLike[str], group: int, start: int = 0, stop: int | None = None
) -> pd.DataFrame:
    """Read queries ``start:stop`` of a group from a Parquet file of `write_published`.

    The columns are those of `Uncertainty.answers`.
    """
    queries = plan.workload.groups[group]
    before = sum(g.count for g in plan.workload.groups[:group])
    first, last, _ = slice(start, stop).indices(queries.count)
    first, last = before + first, before + max(first, last)
    with pq.ParquetFile(path) as file:
        sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
        ends = np.cumsum(sizes, dtype=np.int64)
        row_groups = [i for i, end in enumerate(ends) if end > first and end - sizes[i] < last]
        table = file.read_row_groups(row_groups, columns=[f.name for f in SCHEMA][2:])
    skipped = int(ends[row_groups[0]] - sizes[row_groups[0]]) if row_groups else 0
    frame: pd.DataFrame = table.slice(first - skipped, last - first).to_pandas()
    return frame


def write_records(
    measurement: Measurement,
    records: pd.DataFrame,
    path: str | os.PathLike[str],
    *,
    format: str = "csv",
    overwrite: bool = False,
) -> Path:
    """Write synthetic records with labels of cells.

    Parameters
    ----------
    records : cell codes, from `Published.records`.

    The first column, status, is SIMULATED or REHEARSAL in every row.  If an attribute has this
    name, ignoring case, the column is added_status, see `added_columns`.  The file is written
    atomically; an earlier file is replaced only with ``overwrite``.

    Raises: PlanError if the format is not "parquet" or "csv", or the path must not be written.
    """
    check_choice("format", format, FORMATS, error=PlanError)
    status = "REHEARSAL" if measurement.rehearsal else "SIMULATED"
    column = added_columns(["status"], map(str, records))["status"]
    columns: dict[str, pa.Array] = {column: repeat_rows(status, len(records))}
    for name in map(str, records):
        attribute = measurement.plan.schema[name]
        labels = pa.array([attribute.label(i) for i in range(attribute.size)], pa.string())
        codes = pa.array(records[name].to_numpy().astype(np.int32))
        columns[name] = pa.DictionaryArray.from_arrays(codes, labels)
    table = pa.table(columns)
    metadata = {"plan_hash": measurement.plan.hash, "status": MARK if measurement.rehearsal else "simulated records"}
    with new_file(path, overwrite=overwrite) as partial:
        if format == "csv":
            pyarrow.csv.write_csv(escape_texts(table), partial)
        else:
            pq.write_table(table.replace_schema_metadata(metadata), partial)
    return Path(path)
