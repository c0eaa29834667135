"""The only room that sees private values: records in, budget spent, noise drawn, answers out.

To touch: `measure` keeps the order count (`intake`), spend, draw, save; `noise` alone draws randomness.
What follows from noisy answers, at no further cost, is in `reconstruct`: estimates, covariances, intervals.
"""

from engine.release.answers_on_grid import draw
from engine.release.archive import Archive, write_archive
from engine.release.intake import (
    MOST_CELLS,
    Intake,
    check_records,
    count,
    counted_for,
    declare_public,
    left_out,
    maximal_sets,
    one_cell_attributes,
    recognised,
    teller,
)
from engine.release.ledger import (
    DatasetStatus,
    Fingerprint,
    Ledger,
    Receipt,
    TotalChange,
    TotalDefinition,
    good_signature,
    release_key,
    total_history,
    verify_ledger,
)
from engine.release.measure import (
    Answers,
    keep_rehearsal,
    kept_rehearsal,
    left_open,
    load_measurement,
    measure,
    measured,
    read_plan,
    releases,
    spend_draw_save,
)
from engine.release.noise import discrete_gaussian
from engine.release.public_tables import public_table, public_tables, public_text
from engine.release.reconstruct import Measurement, apply_group, estimate, quantile, query_texts
from engine.release.records import (
    COUNTS_ENDING,
    MEMORY_LIMIT,
    Counts,
    DraftSchema,
    TextFile,
    count_marginals,
    draft_schema,
    fingerprint,
    table_digest,
)

__all__ = [
    "COUNTS_ENDING",
    "MEMORY_LIMIT",
    "MOST_CELLS",
    "Answers",
    "Archive",
    "Counts",
    "DatasetStatus",
    "DraftSchema",
    "Fingerprint",
    "Intake",
    "Ledger",
    "Measurement",
    "Receipt",
    "TextFile",
    "TotalChange",
    "TotalDefinition",
    "apply_group",
    "check_records",
    "count",
    "count_marginals",
    "counted_for",
    "declare_public",
    "discrete_gaussian",
    "draft_schema",
    "draw",
    "estimate",
    "fingerprint",
    "good_signature",
    "keep_rehearsal",
    "kept_rehearsal",
    "left_open",
    "left_out",
    "load_measurement",
    "maximal_sets",
    "measure",
    "measured",
    "one_cell_attributes",
    "public_table",
    "public_tables",
    "public_text",
    "quantile",
    "query_texts",
    "read_plan",
    "recognised",
    "release_key",
    "releases",
    "spend_draw_save",
    "table_digest",
    "teller",
    "total_history",
    "verify_ledger",
    "write_archive",
]
