"""Records of any kind to exact counts: sources, batches, encoding by the public schema, marginal tables.

To touch: a new file format is one reader named in `files`; `encoding` decides which values belong to which cell.
"""

from engine.release.records.apart import LABELLED_ENDINGS, SHEET_ENDINGS, DraftSchema, draft_schema, sheet_text
from engine.release.records.counts import Counts
from engine.release.records.counts_file import COUNTS_ENDING, read_counts
from engine.release.records.csv import TextFile
from engine.release.records.database import fit_there, is_table, named_sources, named_table, some_values
from engine.release.records.digest import fingerprint, table_digest
from engine.release.records.encoding import MISSING, OUTSIDE, REASONS, Encoder
from engine.release.records.files import RECORD_ENDINGS, TEXT_ENDINGS
from engine.release.records.hints import MAX_VALUES, Hints
from engine.release.records.sources import column_names, read_batches
from engine.release.records.tables import MEMORY_LIMIT, count_marginals

__all__ = [
    "COUNTS_ENDING",
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
    "DraftSchema",
    "Encoder",
    "Hints",
    "TextFile",
    "column_names",
    "count_marginals",
    "draft_schema",
    "fingerprint",
    "fit_there",
    "is_table",
    "named_sources",
    "named_table",
    "read_batches",
    "read_counts",
    "sheet_text",
    "some_values",
    "table_digest",
]
