"""Rehearsals on tables: what a plan might have answered, had the records been these."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from engine.arrays import Array
from engine.plans import Plan, apply_factors
from engine.release import Measurement, measured
from engine.spaces import Space


def simulated(plan: Plan, table: Callable[[Space], Array], generator: np.random.Generator) -> Measurement:
    """Return a rehearsal of a plan on tables that need not be counts of anybody.

    ``table`` gives the table on some attributes, in counts, of shape (n_1, ..., n_k).  The noise has the law and the
    standard deviations of the plan and comes from a generator of the statistical kind: this is no release, and the
    records that stand behind it are not protected.
    """
    answers = {}
    for key, block in plan.blocks.items():
        exact = apply_factors(block, table(block.attributes), lambda s: s.rows)
        exact = exact if block.weights is None else exact * block.weights
        if block.law == "laplace":
            noise = generator.laplace(scale=block.noise / np.sqrt(2.0), size=exact.shape)
        else:
            noise = generator.normal(scale=block.noise, size=exact.shape)
        answers[key] = np.rint((exact + noise) / block.grid).astype(np.int64).ravel()
    return measured(plan, answers, dataset="", key="", utc="", rehearsal=True)
