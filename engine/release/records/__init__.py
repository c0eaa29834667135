"""Records of any kind to exact counts: sources, batches, encoding by the public schema, marginal tables.

To touch: a new file format is one reader named in `files`; `encoding` decides which values belong to which cell.
"""

from engine.release.records.counts import Counts
from engine.release.records.counts_file import COUNTS_ENDING, read_counts
from engine.release.records.csv import TextFile
from engine.release.records.digest import fingerprint, table_digest
from engine.release.records.labelled import DraftSchema, draft_schema
from engine.release.records.sources import column_names
from engine.release.records.tables import MEMORY_LIMIT, count_marginals

__all__ = [
    "COUNTS_ENDING",
    "MEMORY_LIMIT",
    "Counts",
    "DraftSchema",
    "TextFile",
    "column_names",
    "count_marginals",
    "draft_schema",
    "fingerprint",
    "read_counts",
    "table_digest",
]
