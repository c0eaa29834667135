"""Uncertainty of published tables: an empirical Bayes bootstrap from released numbers alone.

Published tables are biased towards their references, and no draw of noise about them alone would show it: they are
their own references already.  So each draw first makes tables that might be the true ones: the residual of a table
beyond its reference m has the dispersion tau m (as the fit has it), of which noise of variance v has hidden

    v tau m / (v + tau m)        a cell,

and a cell is drawn from a gamma law with the published number as its mean and this variance.  Then the plan is
rehearsed on them and published anew.  What the new tables miss is what the published ones may be expected to miss.

Source: Laird and Louis (1987), Empirical Bayes confidence intervals based on bootstrap samples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from engine.arrays import Array
from engine.publish.tables.borrow import dispersion
from engine.publish.tables.contrasts import assembled, contrast, faces
from engine.publish.tables.entropic import reference
from engine.publish.tables.evidence import Evidence
from engine.spaces import Axes

UNSEEN = 1.0  # standard errors


def share_of_signal(found: Evidence, contrasts: Mapping[Axes, Array], unseen: float = 0.0) -> dict[Axes, Array]:
    """Return tau m / (v + tau m) of every cell, shape (n_1, ..., n_k), for every measured set of several attributes.

    It is the share of a published residual that its own noisy answer made, the reference having made the rest.
    A dispersion may be larger than it seems, by ``unseen`` standard errors of the noise.
    """
    total = float(contrasts[()])
    tables: dict[Axes, Array] = {}
    out = {}
    for axes in found.sets:
        tables[axes] = np.maximum(assembled(contrasts, axes), 0.0)
        seen = found.seen.get(axes)
        if len(axes) < 2 or seen is None or seen.rank == 0:
            continue
        middle = reference(axes, {f: tables[f] for f in (*faces(axes), axes[:-2])}, found.possible.get(axes))
        beyond, _ = dispersion(seen.cells - seen.lens.of(middle), seen.variance, seen.rank)
        beyond = max(0.0, beyond + unseen * seen.variance * math.sqrt(2.0 * seen.rank))
        prior = beyond / total * middle
        out[axes] = prior / (seen.variance + prior)
    return out


def possible_truth(
    found: Evidence, contrasts: Mapping[Axes, Array], signal: Mapping[Axes, Array], generator: np.random.Generator
) -> dict[Axes, Array]:
    """Return contrasts of tables that might be the true ones; shapes (n_1, ..., n_k) of tables."""
    out = dict(contrasts)
    for axes, share in signal.items():
        variance = found.seen[axes].variance * share
        table = np.maximum(assembled(contrasts, axes), 0.0)
        spread = np.zeros_like(table)
        live = (table > 0.0) & (variance > 0.0)
        scale = variance[live] / table[live]
        spread[live] = generator.gamma(table[live] / scale, scale) - table[live]
        out[axes] = contrasts[axes] + contrast(spread)
    return out
