"""Export of answers, published tables and synthetic records as parquet or CSV files.

Sums of published tables over the areas of code lists are exported as parquet only.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from engine._format import escape_formula
from engine._validation import check_choice
from engine.errors import PlanError
from engine.plans import Plan
from engine.postprocess import QualityRule
from engine.postprocess.uncertainty import Uncertainty
from engine.progress import Progress, progress_reporter
from engine.publish.output_path import added_columns, new_file
from engine.release import Measurement, quantile
from engine.release.measurement import query_texts
from engine.workload import Group
from engine.workload.attribute import IN_FILES, cell_text
from engine.workload.level_queries import level_groups

if TYPE_CHECKING:
    import pandas as pd


FORMATS = ("parquet", "csv")
REHEARSAL_MARK = "REHEARSAL on simulated or public records. Not for publication; nothing was spent."
ANSWERS_PER_BATCH = 1 << 17  # smallest number of answers that are written together
# number of answers of a group that are computed together; larger than ANSWERS_PER_BATCH, because
# each computation builds the complete table of the group
ANSWERS_PER_TABLE = 1 << 22
ANSWER_SCHEMA = pa.schema(
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

    Columns: attributes, family, query (text), answer, std, low, high.  The file of a rehearsal has
    the additional first column status, with REHEARSAL in every row.  Answers are computed and
    written in batches, so that not all of them are in memory.  In CSV, texts that a spreadsheet
    would interpret as formulas get a leading quote, bins of integers are written as "0 to 9" in
    place of "[0, 10)", and numbers are rounded to `csv_decimals`.  Parquet has full precision.

    The file is written atomically.  An earlier output of this project is replaced only with
    ``overwrite``; any other file is never replaced.

    Raises
    ------
    PlanError : the format is not "parquet" or "csv", the confidence level is not between 0 and 1,
        or the path must not be written, see `check_target`.
    Cancelled : ``progress`` returned False; partial files are removed.
    """
    check_choice("format", format, FORMATS, error=PlanError)
    metadata = {
        "confidence": str(confidence),
        "plan_hash": measurement.plan.hash,
        "pcost": repr(measurement.plan.pcost),
        "status": REHEARSAL_MARK if measurement.rehearsal else "release",
        "release": measurement.key,
    }
    schema = (
        ANSWER_SCHEMA.insert(0, pa.field("status", pa.string()))
        if measurement.rehearsal
        else ANSWER_SCHEMA
    )
    report_progress = progress_reporter(
        progress, "Writing the answers was cancelled; no file was left behind."
    )
    with (
        new_file(path, overwrite=overwrite) as partial,
        file_writer(partial, format, schema, metadata) as writer,
    ):
        for share, table in answer_batches(measurement, confidence, for_people=format == "csv"):
            if measurement.rehearsal:
                table = table.add_column(
                    0, schema.field(0), [pa.array(["REHEARSAL"] * len(table), pa.string())]
                )
            decimals = csv_decimals(table["std"])
            writer.write(csv_table(table, decimals) if format == "csv" else table)
            report_progress(share, "Writing answers")
    return Path(path)


def file_writer(path: Path, kind: str, schema: pa.Schema, metadata: dict[str, str]) -> Any:
    """Return a writer of Arrow tables to a file of the format "csv" or "parquet"."""
    import pyarrow.csv
    import pyarrow.parquet as pq

    if kind == "csv":
        plain = [
            pa.field(f.name, pa.string()) if pa.types.is_dictionary(f.type) else f for f in schema
        ]
        return pyarrow.csv.CSVWriter(path, pa.schema(plain))
    repeated_texts = ["attributes", "family"]  # equal in all rows of a group
    # noisy numbers do not compress
    texts = [*repeated_texts, "query", "status"]
    compression = {name: "zstd" if name in texts else "none" for name in schema.names}
    return pq.ParquetWriter(
        path,
        schema.with_metadata(metadata),
        compression=compression,
        use_dictionary=repeated_texts,
        write_statistics=repeated_texts,
    )


def answer_batches(
    measurement: Measurement, confidence: float = 0.95, *, for_people: bool = False
) -> Iterator[tuple[float, pa.Table]]:
    """Yield all answers of a measurement in batches, in the order of `Workload.describe`.

    Each item is a pair (share of all answers up to the end of this batch, table of the batch).
    ``for_people`` is passed to `query_texts`.
    """
    workload, written = measurement.plan.workload, 0
    half_width = quantile(confidence, measurement.plan.budget.law)
    pending: list[pa.Table] = []
    for number, group, first, last in _spans(measurement):
        answers = measurement.values(number, first, last)
        errors = np.sqrt(measurement.plan.variances(number, first, last))
        for start in range(first, last, ANSWERS_PER_BATCH):
            stop = min(last, start + ANSWERS_PER_BATCH)
            answer, std = (
                answers[start - first : stop - first],
                errors[start - first : stop - first],
            )
            columns = [
                repeat_rows(" x ".join(group.attributes), stop - start),
                repeat_rows(group.family_text, stop - start),
                query_texts(measurement.plan, number, start, stop, for_people=for_people),
                *(
                    pa.array(v)
                    for v in (answer, std, answer - half_width * std, answer + half_width * std)
                ),
            ]
            pending.append(pa.Table.from_arrays(columns, schema=ANSWER_SCHEMA))
            written += stop - start
            if sum(t.num_rows for t in pending) >= ANSWERS_PER_BATCH or written == workload.queries:
                yield written / workload.queries, pa.concat_tables(pending).unify_dictionaries()
                pending = []


def _spans(measurement: Measurement) -> Iterator[tuple[int, Group, int, int]]:
    """Yield (group number, group, start, stop) for ranges of queries that are computed together."""
    for number, group in enumerate(measurement.plan.workload.groups):
        for first in range(0, group.count, ANSWERS_PER_TABLE):
            yield number, group, first, min(group.count, first + ANSWERS_PER_TABLE)


def repeat_rows(text: str, length: int) -> pa.DictionaryArray:
    """Return a column of ``length`` rows that all have the same text."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(length, np.int32)), pa.array([text]))


def csv_decimals(std: Any) -> int:
    """Return the number of decimals with which CSV files have answers with standard errors ``std``.

    There are six digits after the first digit of the smallest positive standard error, and at least
    six decimals.  Rounding errors then remain negligible, compared with the noise, in sums of
    millions of answers, and `verify_package` accepts them.

    >>> csv_decimals([58.0, 4.2]), csv_decimals([0.03]), csv_decimals([])
    (6, 8, 6)
    """
    errors = np.asarray(std, float)
    errors = errors[np.isfinite(errors) & (errors > 0.0)]
    return 6 if not errors.size else 6 + max(0, -math.floor(math.log10(errors.min())))


def round_floats(table: pa.Table, decimals: int) -> pa.Table:
    """Return the table with its floats rounded, so that integers are written without decimals."""
    for place, field in enumerate(table.schema):
        if pa.types.is_floating(field.type):
            column = table[field.name]
            # adding 0 turns -0 into 0
            rounded = np.round(column.to_numpy(), decimals) + 0.0
            numbers = pa.array(rounded, field.type, mask=column.is_null().to_numpy())
            table = table.set_column(place, field, numbers)
    return table


def csv_table(table: pa.Table, decimals: int) -> pa.Table:
    """Return a table as it is written to CSV: floats rounded, and texts escaped."""
    return escape_texts(round_floats(table, decimals))


def escape_texts(table: pa.Table) -> pa.Table:
    """Return the table with a quote before texts and column names that could be formulas."""
    import pyarrow.compute as pc

    columns = []
    for name in table.column_names:
        column = table[name]
        if pa.types.is_dictionary(column.type):
            column = column.cast(pa.string())
        if pa.types.is_string(column.type):
            risky = pc.match_substring_regex(column, r"^[=+\-@\t\r]")
            column = pc.if_else(risky, pc.binary_join_element_wise("'", column, ""), column)
        columns.append(column)
    return pa.Table.from_arrays(
        columns, names=[escape_formula(name) for name in table.column_names]
    )


CANCELLED_TEXT = "Writing was cancelled; no file was left behind."
ANSWERS_PER_ROW_GROUP = 1 << 16
NUMBER_COLUMNS = (
    "published",
    "error",
    "published_low",
    "published_high",
    "answer",
    "std",
    "low",
    "high",
)
TABLE_SCHEMA = pa.schema(
    [
        ("attributes", pa.dictionary(pa.int32(), pa.string())),
        ("family", pa.dictionary(pa.int32(), pa.string())),
        ("query", pa.string()),
        *((name, pa.float64()) for name in NUMBER_COLUMNS[:4]),
        ("flag", pa.string()),
        ("reason", pa.string()),
        ("measured", pa.float64()),
        *((name, pa.float64()) for name in NUMBER_COLUMNS[4:]),
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

    Columns: attributes, family, and the columns of `Uncertainty.answers`.  The file of a rehearsal
    has the additional first column status.  In CSV, bins of integers are written as "0 to 9" in
    place of "[0, 10)", and numbers are rounded to `csv_decimals`.  The file is written atomically;
    an earlier file is replaced only with ``overwrite``.

    Raises
    ------
    PlanError : the format is not "parquet" or "csv", the confidence level is not between 0 and 1,
        or the path must not be written, see `check_target`.
    Cancelled : ``progress`` returned False; partial files are removed.
    """
    check_choice("format", format, FORMATS, error=PlanError)
    measurement = uncertainty.published.measurement
    rehearsal, workload = measurement.rehearsal, measurement.plan.workload
    metadata = {
        "confidence": str(confidence),
        "plan_hash": measurement.plan.hash,
        "fit": uncertainty.published.fit,
        "status": REHEARSAL_MARK if rehearsal else "release",
    }
    schema = TABLE_SCHEMA.insert(0, pa.field("status", pa.string())) if rehearsal else TABLE_SCHEMA
    report_progress = progress_reporter(progress, CANCELLED_TEXT)
    written = 0
    with (
        new_file(path, overwrite=overwrite) as partial,
        file_writer(partial, format, schema, metadata) as writer,
    ):
        for number, group in enumerate(workload.groups):
            for start in range(0, group.count, ANSWERS_PER_ROW_GROUP):
                rows = uncertainty.answers(
                    number, start, start + ANSWERS_PER_ROW_GROUP, confidence, rule
                )
                if format == "csv":
                    stop = start + len(rows)
                    rows["query"] = query_texts(
                        measurement.plan, number, start, stop, for_people=True
                    ).to_pylist()
                columns = [
                    repeat_rows(t, len(rows))
                    for t in (" x ".join(group.attributes), group.family_text)
                ]
                columns += [
                    pa.array(rows[f.name], f.type, from_pandas=True)
                    for f in TABLE_SCHEMA
                    if f.name in rows
                ]
                table = pa.Table.from_arrays(columns, schema=TABLE_SCHEMA)
                if rehearsal:
                    table = table.add_column(
                        0, schema.field(0), [pa.array(["REHEARSAL"] * len(rows), pa.string())]
                    )
                decimals = csv_decimals(rows["std"])
                writer.write(csv_table(table, decimals) if format == "csv" else table)
                written += len(rows)
                report_progress(written / workload.queries, "Writing published answers")
    return Path(path)


def read_published(
    plan: Plan, path: str | os.PathLike[str], group: int, start: int = 0, stop: int | None = None
) -> pd.DataFrame:
    """Read queries ``start:stop`` of a group from a Parquet file of `write_published`.

    The columns are those of `Uncertainty.answers`.
    """
    import pyarrow.parquet as pq

    # The answers of the group begin at this row of the file.
    group_start = sum(g.count for g in plan.workload.groups[:group])
    start, stop, _ = slice(start, stop).indices(plan.workload.groups[group].count)
    first, last = group_start + start, group_start + max(start, stop)
    with pq.ParquetFile(path) as file:
        sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
        ends = np.cumsum(sizes, dtype=np.int64)
        row_groups = [i for i, end in enumerate(ends) if end > first and end - sizes[i] < last]
        # without the columns attributes and family, which are the same for the whole group
        columns = TABLE_SCHEMA.names[2:]
        table = file.read_row_groups(row_groups, columns=columns)
    # position in the file of the first row that was read
    table_start = int(ends[row_groups[0]] - sizes[row_groups[0]]) if row_groups else 0
    frame: pd.DataFrame = table.slice(first - table_start, last - first).to_pandas()
    return frame


# columns: number of the group, title of the level, and the columns of published numbers in
# `TABLE_SCHEMA`
LEVEL_SCHEMA = pa.schema(
    [("group", pa.int64()), ("level", pa.string()), *[TABLE_SCHEMA.field(i) for i in range(2, 10)]]
)


def write_level_sums(
    uncertainty: Uncertainty,
    path: str | os.PathLike[str],
    *,
    rule: QualityRule | None = None,
    confidence: float = 0.95,
    overwrite: bool = False,
) -> Path:
    """Write sums of published tables over the areas of code lists to a Parquet file.

    `level_groups` determines the levels of each group.  Columns: group (its number), level (a title
    such as "state"), and the columns of `Uncertainty.sums`.  The file is written atomically.
    `read_level_sums` reads it.
    """
    plan = uncertainty.published.measurement.plan
    with (
        new_file(path, overwrite=overwrite) as partial,
        file_writer(partial, "parquet", LEVEL_SCHEMA, {"plan_hash": plan.hash}) as writer,
    ):
        for number, group in enumerate(plan.workload.groups):
            for level, level_group in level_groups(plan.schema, group).items():
                for start in range(0, level_group.count, ANSWERS_PER_ROW_GROUP):
                    rows = uncertainty.sums(
                        level_group, start, start + ANSWERS_PER_ROW_GROUP, confidence, rule
                    ).assign(group=number, level=level)
                    writer.write(pa.Table.from_pandas(rows, LEVEL_SCHEMA, preserve_index=False))
    return Path(path)


def read_level_sums(
    path: str | os.PathLike[str], group: int, level: str, start: int = 0, stop: int | None = None
) -> pd.DataFrame:
    """Read the sums ``start:stop`` of one group on one level from a file of `write_level_sums`."""
    import pyarrow.parquet as pq

    table = pq.read_table(path, filters=[("group", "==", group), ("level", "==", level)])
    first, last, _ = slice(start, stop).indices(len(table))
    rows = table.drop_columns(["group", "level"]).slice(first, max(first, last) - first)
    frame: pd.DataFrame = rows.to_pandas()
    return frame


def write_records(
    measurement: Measurement,
    records: pd.DataFrame,
    path: str | os.PathLike[str],
    *,
    format: str = "csv",
    overwrite: bool = False,
) -> Path:
    """Write synthetic records to a file, with the labels of cells instead of their codes.

    In CSV, bins of integers are written as "0 to 9" in place of "[0, 10)".
    The first column, status, has SIMULATED or, after a rehearsal, REHEARSAL in every row.  If an
    attribute has the name status (ignoring case), this column is named added_status, see
    `added_columns`.  The file is written atomically; an earlier file is replaced only with
    ``overwrite``.

    Parameters
    ----------
    measurement : measurement from which the records were computed.
    records : cell codes, as `Published.records` returns them.

    Raises
    ------
    PlanError : the format is not "parquet" or "csv", or the path must not be written.
    """
    import pyarrow.csv
    import pyarrow.parquet as pq

    check_choice("format", format, FORMATS, error=PlanError)
    status = "REHEARSAL" if measurement.rehearsal else "SIMULATED"
    column = added_columns(["status"], map(str, records))["status"]
    columns: dict[str, pa.Array] = {column: repeat_rows(status, len(records))}
    for name in map(str, records):
        attribute = measurement.plan.schema[name]
        labels = [
            cell_text(attribute, cell, IN_FILES) if format == "csv" else attribute.label(cell)
            for cell in range(attribute.size)
        ]
        codes = pa.array(records[name].to_numpy().astype(np.int32))
        columns[name] = pa.DictionaryArray.from_arrays(codes, pa.array(labels, pa.string()))
    table = pa.table(columns)
    metadata = {
        "plan_hash": measurement.plan.hash,
        "status": REHEARSAL_MARK if measurement.rehearsal else "simulated records",
    }
    with new_file(path, overwrite=overwrite) as partial:
        if format == "csv":
            pyarrow.csv.write_csv(escape_texts(table), partial)
        else:
            pq.write_table(table.replace_schema_metadata(metadata), partial)
    return Path(path)
