"""Records: readers, encoding, contribution bounding and exact counts."""

from engine.records.counts import Counts
from engine.records.csv_reader import TextFile
from engine.records.database import named_table
from engine.records.encoding import (
    MISSING,
    OUTSIDE,
    REASONS,
    Encoder,
    days_of,
    number_of,
    reason_of,
    scalar,
    text_of,
)
from engine.records.marginals import (
    MEMORY_LIMIT,
    RecordKeywords,
    RecordOptions,
    count_marginals,
    count_tables,
)
from engine.records.readers import (
    RECORD_ENDINGS,
    TEXT_ENDINGS,
    as_source,
    column_names,
    read_batches,
)
from engine.records.subprocess_readers import SheetFile

__all__ = [
    "MEMORY_LIMIT",
    "MISSING",
    "OUTSIDE",
    "REASONS",
    "RECORD_ENDINGS",
    "TEXT_ENDINGS",
    "Counts",
    "Encoder",
    "RecordKeywords",
    "RecordOptions",
    "SheetFile",
    "TextFile",
    "as_source",
    "column_names",
    "count_marginals",
    "count_tables",
    "days_of",
    "named_table",
    "number_of",
    "read_batches",
    "reason_of",
    "scalar",
    "text_of",
]
