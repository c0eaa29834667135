"""Records of any kind to exact counts: sources, batches, encoding by the public schema, marginal tables.

To touch: a new file format is one reader in `sources`; `encoding` decides which values belong to which cell.
"""

from engine.release.records.counted import counted_text
from engine.release.records.digest import fingerprint, table_digest
from engine.release.records.tables import MEMORY_LIMIT, Counts, count_marginals

__all__ = [
    "MEMORY_LIMIT",
    "Counts",
    "count_marginals",
    "counted_text",
    "fingerprint",
    "table_digest",
]
