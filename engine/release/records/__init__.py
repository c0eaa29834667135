"""Records of any kind to exact counts: sources, batches, encoding by the public schema, marginal tables.

To touch: a new file format is one reader named in `files`; `encoding` decides which values belong to which cell.
"""

from engine.release.records.apart import (
    DATES,
    LABELLED_ENDINGS,
    SHEET_ENDINGS,
    SheetFile,
    column_problems,
    draft_schema,
    sheet_text,
    visible_sheets,
)
from engine.release.records.counts import Counts
from engine.release.records.counts_file import COUNTS_ENDING, read_counts
from engine.release.records.csv import TextFile
from engine.release.records.database import fit_there, is_table, named_sources, named_table, some_values
from engine.release.records.digest import fingerprint, table_digest
from engine.release.records.encoding import MISSING, OUTSIDE, REASONS, Encoder, days_of, number_of, scalar, text_of
from engine.release.records.files import RECORD_ENDINGS, TEXT_ENDINGS
from engine.release.records.hints import MAX_VALUES, Hints
from engine.release.records.sources import as_source, column_names, read_batches
from engine.release.records.tables import MEMORY_LIMIT, count_marginals

__all__ = [
    "COUNTS_ENDING",
    "DATES",
    "LABELLED_ENDINGS",
    "MAX_VALUES",
    "MEMORY_LIMIT",
    "MISSING",
    "OUTSIDE",
    "REASONS",
    "RECORD_ENDINGS",
    "SHEET_ENDINGS",
    "TEXT_ENDINGS",
    "Counts",
    "Encoder",
    "Hints",
    "SheetFile",
    "TextFile",
    "as_source",
    "column_names",
    "column_problems",
    "count_marginals",
    "days_of",
    "draft_schema",
    "fingerprint",
    "fit_there",
    "is_table",
    "named_sources",
    "named_table",
    "number_of",
    "read_batches",
    "read_counts",
    "scalar",
    "sheet_text",
    "some_values",
    "table_digest",
    "text_of",
    "visible_sheets",
]
