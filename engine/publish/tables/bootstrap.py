"""Uncertainty of published tables: an empirical Bayes bootstrap from released numbers alone.

Published tables are biased towards their references, and no draw of noise about them alone would show it: they are
their own references already.  So each draw first makes tables that might be the true ones: the residual of a table
beyond its reference m has the dispersion tau m, of which noise of variance v has hidden

    v tau m / (v + tau m)        a cell,

and a cell is drawn from a gamma law with the published number as its mean and this variance.  Then the plan is
rehearsed on them and published anew.  What the new tables miss is what the published ones may be expected to miss.

One table hardly tells its own tau where noise is large, but all tables of as many attributes together tell how strongly
attributes hang together here: of the most that a table could differ from its reference, |t - m|^2 <= least of its
margins' squares - |m|^2, each has a share, and the law of these shares is the one that makes what was measured most
likely.  Every draw gives every table a share from that law, seen what was measured of it.

Sources: Laird and Louis (1987), Empirical Bayes confidence intervals based on bootstrap samples; Kiefer and Wolfowitz
(1956) for the law of the shares, here after few steps of expectation and maximization, so that it stays smooth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from engine.arrays import Array
from engine.plans import Plan, apply_factors
from engine.publish.tables.borrow import dispersion
from engine.publish.tables.contrasts import assembled, contrast, faces
from engine.publish.tables.entropic import reference
from engine.publish.tables.evidence import Evidence
from engine.release import Measurement, measured
from engine.spaces import Axes, Space

SHARES = np.geomspace(1e-7, 1.0, 43)
EMPTY = 1e-9  # share of the largest cell below which one is 0
STEPS = 30


@dataclass(frozen=True, kw_only=True, eq=False)
class Hidden:
    """What is not known of how far one table lies from its reference.

    Attributes
    ----------
    middle : the reference, in counts; shape (n_1, ..., n_k).
    variance : of the noise, in counts^2.
    most : |t - m|^2 of the table that is farthest from it, in counts^2.
    odds : of ``SHARES`` of it, seen what was measured; shape (shares,).
    """

    middle: Array = field(repr=False)
    variance: float
    most: float
    odds: Array = field(repr=False)

    def drawn(self, generator: np.random.Generator) -> Array:
        """Return the variance of cells that noise has hidden, for one share out of many. Shape (n_1, ..., n_k)."""
        share = float(generator.choice(SHARES, p=self.odds))
        prior = share * self.most / float(self.middle.sum()) * self.middle
        return np.asarray(self.variance * prior / (self.variance + prior))


def hidden_tables(found: Evidence, contrasts: Mapping[Axes, Array]) -> dict[Axes, Hidden]:
    """Return what noise has hidden of every measured set of several attributes; shapes (n_1, ..., n_k) of tables."""
    made: dict[Axes, tuple[Array, float, float]] = {}
    for axes, middle, beyond, margins in _beyond_references(found, contrasts):
        most = min(float(np.sum(m**2)) for m in margins) - float(np.sum(middle**2))
        if most > 0.0:
            made[axes] = middle, beyond, most
    out = {}
    for order in {len(axes) for axes in made}:
        own = [axes for axes in made if len(axes) == order]
        squares = np.array([made[axes][2] for axes in own])[:, None] * SHARES
        variances = np.array([found.seen[axes].variance for axes in own])[:, None]
        ranks = np.array([found.seen[axes].rank for axes in own])[:, None]
        spread = 2.0 * ranks * variances**2 + 4.0 * variances * squares
        told = -0.5 * ((np.array([made[axes][1] for axes in own])[:, None] - squares) ** 2 / spread + np.log(spread))
        likely = np.exp(told - told.max(axis=1, keepdims=True))
        law = even = np.full(len(SHARES), 1.0 / len(SHARES))
        for _ in range(STEPS):
            odds = law * likely
            odds /= odds.sum(axis=1, keepdims=True)
            law = (odds.sum(axis=0) + even) / (len(own) + 1)  # as if of one more table nothing had been measured
        for axes, row in zip(own, odds, strict=True):
            middle, _, most = made[axes]
            out[axes] = Hidden(middle=middle, variance=found.seen[axes].variance, most=most, odds=row)
    return out


def _beyond_references(
    found: Evidence, contrasts: Mapping[Axes, Array]
) -> Iterator[tuple[Axes, Array, float, list[Array]]]:
    """Yield every measured set of several attributes, its reference, its square beyond noise, and its margins."""
    tables: dict[Axes, Array] = {}
    for axes in found.sets:
        tables[axes] = np.maximum(assembled(contrasts, axes), 0.0)
        seen = found.seen.get(axes)
        if len(axes) < 2 or seen is None or seen.rank == 0:
            continue
        middle = reference(axes, {f: tables[f] for f in (*faces(axes), axes[:-2])}, found.possible.get(axes))
        beyond, _ = dispersion(seen.cells - seen.lens.of(middle), seen.variance, seen.rank)
        yield axes, middle, beyond, [tables[f] for f in faces(axes)]


def share_of_signal(found: Evidence, contrasts: Mapping[Axes, Array]) -> dict[Axes, Array]:
    """Return tau m / (v + tau m) of every cell, shape (n_1, ..., n_k), for every measured set of several attributes.

    It is the share of a published residual that its own noisy answer made, the reference having made the rest.
    """
    out = {}
    for axes, middle, beyond, _ in _beyond_references(found, contrasts):
        prior = max(0.0, beyond) / float(contrasts[()]) * middle
        out[axes] = prior / (found.seen[axes].variance + prior)
    return out


def possible_truth(
    contrasts: Mapping[Axes, Array], hidden: Mapping[Axes, Hidden], generator: np.random.Generator
) -> dict[Axes, Array]:
    """Return contrasts of tables that might be the true ones; shapes (n_1, ..., n_k) of tables."""
    out = dict(contrasts)
    for axes, unknown in hidden.items():
        variance = unknown.drawn(generator)
        table = np.maximum(assembled(contrasts, axes), 0.0)
        spread = np.zeros_like(table)
        # what one machine rounds to 0 is next to it on another one, which must draw for the same cells
        live = (table > EMPTY * table.max()) & (variance > EMPTY * variance.max())
        scale = variance[live] / table[live]
        spread[live] = generator.gamma(table[live] / scale, scale) - table[live]
        out[axes] = contrasts[axes] + contrast(spread)
    return out


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
