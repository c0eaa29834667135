"""The only room that sees private values: records in, budget spent, noise drawn, answers out.

To touch: `measure` keeps the order count, spend, draw, save; `noise` is the only module that draws randomness.
What follows from noisy answers, at no further cost, is in `reconstruct`: estimates, covariances, intervals.
"""

from engine.release.archive import Archive, write_archive
from engine.release.ledger import DatasetStatus, Ledger, Receipt, release_key, verify_ledger
from engine.release.measure import (
    Answers,
    Intake,
    Progress,
    count,
    draw,
    load_measurement,
    maximal_sets,
    measure,
    read_plan,
    single_cells,
    spend_draw_save,
    teller,
)
from engine.release.noise import discrete_gaussian
from engine.release.reconstruct import Measurement, apply_group, estimate, quantile, query_texts
from engine.release.records import MEMORY_LIMIT, Counts, count_marginals

__all__ = [
    "MEMORY_LIMIT",
    "Answers",
    "Archive",
    "Counts",
    "DatasetStatus",
    "Intake",
    "Ledger",
    "Measurement",
    "Progress",
    "Receipt",
    "apply_group",
    "count",
    "count_marginals",
    "discrete_gaussian",
    "draw",
    "estimate",
    "load_measurement",
    "maximal_sets",
    "measure",
    "quantile",
    "query_texts",
    "read_plan",
    "release_key",
    "single_cells",
    "spend_draw_save",
    "teller",
    "verify_ledger",
    "write_archive",
]
