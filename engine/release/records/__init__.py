"""Records of any kind to exact counts: sources, batches, encoding by the public schema, marginal tables.

To touch: a new file format is one reader in `sources`; `encoding` decides which values belong to which cell.
"""

from engine.release.records.counts import Counts
from engine.release.records.counts_file import COUNTS_ENDING, read_counts
from engine.release.records.digest import fingerprint, table_digest
from engine.release.records.tables import MEMORY_LIMIT, count_marginals

__all__ = [
    "COUNTS_ENDING",
    "MEMORY_LIMIT",
    "Counts",
    "count_marginals",
    "fingerprint",
    "read_counts",
    "table_digest",
]
