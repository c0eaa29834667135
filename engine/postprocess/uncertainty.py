"""Uncertainty of published tables by parametric bootstrap, and quality flags.

Uncertainty of published tables: an empirical Bayes bootstrap from released numbers alone.

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

Quality: which published numbers are good enough to be read one by one, told from released numbers alone.

How far published numbers may be from the true ones, with flags for those that should not be read alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import scipy

from engine._arrays import Array
from engine._format import set_name
from engine._validation import positive, whole
from engine.analysis import NoiseScale
from engine.errors import LimitExceeded, NotAnswerable, PlanError
from engine.plans import Plan
from engine.plans.blocks import apply_factors
from engine.postprocess.checkpoint import by_axes, of_axes, set_state, state_of, steps_of
from engine.postprocess.contrasts import assembled, contrast, faces
from engine.postprocess.partial_pooling import dispersion
from engine.postprocess.published_tables import Published, publish, seed_of, told_share
from engine.postprocess.residual_estimates import Evidence, evidence
from engine.postprocess.shrinkage import reference
from engine.progress import Progress
from engine.records import MEMORY_LIMIT
from engine.release import Measurement, apply_group
from engine.release.measure import measured
from engine.residuals import Axes, Space

if TYPE_CHECKING:
    import pandas as pd


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


PUBLISHABLE, DOUBTFUL, SUPPRESSED = FLAGS = ("publishable", "doubtful", "suppressed")
REASONS = {
    "": "nothing speaks against the number",
    "cv": "its error is a large share of it",
    "count": "it is smaller than the least count that is shown",
    "signal": "too little of it was measured: most follows from smaller tables",
}


@dataclass(frozen=True, kw_only=True)
class QualityRule:
    """When a published number is publishable, doubtful or suppressed.

    Attributes
    ----------
    doubtful_cv, suppressed_cv : the error over the number from which it is doubtful, or suppressed: by default those
        of `NoiseScale`.
    least_count : a smaller number is suppressed.
    least_signal : where a smaller share of its residual was measured, a number is doubtful.

    The rule protects readers, not the people in the records: their protection is the noise.  So a suppressed cell stays
    in all sums, and what it was can be had as a difference of them.

    >>> QualityRule(doubtful_cv=0.4)
    Traceback (most recent call last):
    engine.errors.PlanError: A number is doubtful before it is suppressed: doubtful_cv 0.4 is above suppressed_cv 0.3.
    """

    doubtful_cv: float = NoiseScale.publishable
    suppressed_cv: float = NoiseScale.doubtful
    least_count: float = 0.0
    least_signal: float = 0.0

    def __post_init__(self) -> None:
        for name in ("doubtful_cv", "suppressed_cv"):
            positive(name, getattr(self, name), error=PlanError)
        if self.doubtful_cv > self.suppressed_cv:
            raise PlanError(
                f"A number is doubtful before it is suppressed: doubtful_cv {self.doubtful_cv:g} is above "
                f"suppressed_cv {self.suppressed_cv:g}."
            )
        if not self.least_count >= 0.0 or not 0.0 <= self.least_signal <= 1.0:
            raise PlanError(
                f"The least count was {self.least_count}, the least share of signal {self.least_signal}. Give a number "
                "of at least 0, and one from 0 to 1."
            )

    def flags(self, values: Array, errors: Array, signal: Array) -> tuple[npt.NDArray[np.str_], npt.NDArray[np.str_]]:
        """Return flags and reason codes of published numbers, all of shape (queries,); the gravest reason is told.

        ``errors`` are root mean squared errors in counts, ``signal`` shares from 0 to 1.
        """
        # without a division: 0 with an error of 0 is certain, 0 with any other error is not
        grave, doubtful = errors > self.suppressed_cv * values, errors > self.doubtful_cv * values
        small, guessed = values < self.least_count, signal < self.least_signal
        reasons = np.select([small, grave, doubtful, guessed], ["count", "cv", "cv", "signal"], "")
        flags = np.select([small | grave, doubtful | guessed], [SUPPRESSED, DOUBTFUL], PUBLISHABLE)
        return flags, reasons


DRAWS = 30
CLASSES = ((0.0, 1.0), (1.0, 10.0), (10.0, 100.0), (100.0, np.inf))


@dataclass(frozen=True, kw_only=True, eq=False)
class Uncertainty:
    """Errors that published tables may be expected to have, from an empirical Bayes bootstrap.

    Attributes
    ----------
    published : the tables.
    errors : contrasts of what the tables of every draw miss, by positions in ``published.names``.
    truths : contrasts of the tables that were taken for true, of the same draws.
    signal : share of the residual of every cell that was measured, for every measured set of attributes.

    Intervals are approximate.  They hold on average over cells of a table, not for each cell alone, and rest on the
    dispersion that the released numbers show; the exact intervals are those of the unbiased answers.
    """

    published: Published
    errors: tuple[Mapping[Axes, Array], ...] = field(repr=False)
    truths: tuple[Mapping[Axes, Array], ...] = field(repr=False)
    signal: Mapping[Axes, Array] = field(repr=False)

    def table_errors(self, attributes: Sequence[str]) -> Array:
        """Return the root mean squared error of every cell of a table, in counts. Shape (n_1, ..., n_k)."""
        squares = np.mean([self._laid(e, attributes) ** 2 for e in self.errors], axis=0)
        return np.asarray(np.sqrt(squares + self._rounding(attributes) ** 2))

    def reach(self, confidence: float = 0.95) -> float:
        """Return how many errors an interval reaches to each side: Student's quantile, for few draws."""
        share = positive("confidence", confidence, below=1, error=PlanError)
        return float(scipy.special.stdtrit(len(self.errors), 0.5 + share / 2))

    def bias(self, attributes: Sequence[str]) -> pd.DataFrame:
        """Return what publishing does to small and large cells of a table: columns true, cells, bias, error (counts).

        ``true`` says how many records the cells have in the draws, ``cells`` how many of them there are on average,
        ``bias`` and ``error`` by how much too many, and how far off, their published numbers are on average.
        """
        import pandas as pd

        truth = np.array([self._laid(t, attributes) for t in self.truths])
        errors = np.array([self._laid(e, attributes) for e in self.errors])
        rows = []
        for low, high in CLASSES:
            inside = (truth < high) & ((truth >= low) | (low == 0.0))
            missed = errors[inside]
            words = f"{low:g} or more" if high == np.inf else f"{low:g} to {high:g}"
            mean, size = (float(missed.mean()), float(np.abs(missed).mean())) if missed.size else (0.0, 0.0)
            rows.append({"true": words, "cells": inside.sum() / len(truth), "bias": mean, "error": size})
        return pd.DataFrame(rows)

    def answers(
        self,
        group: int,
        start: int = 0,
        stop: int | None = None,
        confidence: float = 0.95,
        rule: QualityRule | None = None,
    ) -> pd.DataFrame:
        """Return queries ``start:stop`` of a group, published and unbiased, with errors, intervals and flags (counts).

        Columns: query, published, error, published_low, published_high, flag, reason; then of the unbiased answer that
        stands beside: answer, std, low, high.  A suppressed number and its interval are NaN; it stays in all sums.
        """
        found = self.published.answers(group, start, stop, confidence)
        values = found["published"].to_numpy()
        asked = self.published.measurement.plan.workload.groups[group]
        first, last, _ = slice(start, stop).indices(asked.count)
        names, last = asked.attributes, max(first, last)
        squares = np.mean([apply_group(asked, self._laid(e, names), first, last) ** 2 for e in self.errors], axis=0)
        squares += apply_group(asked, self._rounding(names), first, last) ** 2
        error = np.sqrt(squares)
        half = self.reach(confidence) * error
        flags, reasons = (rule or QualityRule()).flags(values, error, self._shares(group, first, last, values))
        shown = flags != SUPPRESSED
        columns = {"error": error, "published_low": self._low(values - half), "published_high": values + half}
        found["published"] = np.where(shown, values, np.nan)
        for place, (name, column) in enumerate(columns.items(), start=2):
            found.insert(place, name, np.where(shown, column, np.nan))
        found.insert(5, "flag", flags)
        found.insert(6, "reason", reasons)
        return found

    def summary(self, rule: QualityRule | None = None) -> pd.DataFrame:
        """Return what publishing did to every group, one row each, from released numbers alone.

        Columns: attributes, family, answers, below zero (unbiased answers), published there (their mean afterwards, in
        counts), publishable, doubtful, suppressed (shares of the answers).
        """
        import pandas as pd

        rows = []
        for number, group in enumerate(self.published.measurement.plan.workload.groups):
            found, values = self.answers(number, rule=rule), self.published.values(number)
            negative = found["answer"].to_numpy() < 0.0
            row = {"attributes": set_name(group.attributes), "family": group.family_text, "answers": group.count}
            row |= {"below zero": int(negative.sum())}
            row |= {"published there": float(values[negative].mean()) if negative.any() else np.nan}
            rows.append(row | {flag: float((found["flag"] == flag).mean()) for flag in FLAGS})
        return pd.DataFrame(rows)

    def _low(self, ends: Array) -> Array:
        return ends if self.published.fit == "none" else np.maximum(ends, 0.0)

    def _shares(self, group: int, first: int, last: int, values: Array) -> Array:
        """Return the share of signal in queries of a group, that of its cells weighed by their size."""
        asked = self.published.measurement.plan.workload.groups[group]
        axes = self.published.positions(asked.attributes)
        if self.published.measurement.plan.schema.is_exact(asked.attributes):
            return np.ones(last - first)
        if axes not in self.signal:
            return np.full(last - first, 1.0 if len(axes) < 2 else 0.0)
        table = self.published.table(asked.attributes)
        measured = apply_group(asked, table * self.published.laid_out(self.signal[axes], asked.attributes), first, last)
        return np.divide(measured, values, out=np.zeros_like(values), where=np.abs(values) > 1e-9)

    def _laid(self, contrasts: Mapping[Axes, Array], attributes: Sequence[str]) -> Array:
        axes = self.published.positions(attributes)
        made = assembled(contrasts, axes)
        if (impossible := self.published.impossible(axes)) is not None:
            made[impossible] = 0.0  # a truth that was drawn may lie there, and none does
        return self.published.laid_out(made, attributes)

    def _rounding(self, attributes: Sequence[str]) -> Array:
        """Return by how much whole tables differ from those they were made of."""
        whole_table = self.published.table(attributes)
        if self.published.people is None:
            return np.zeros_like(whole_table)
        return np.asarray(whole_table - np.maximum(self._laid(self.published.contrasts, attributes), 0.0))


def uncertainty(
    published: Published,
    *,
    draws: int = DRAWS,
    progress: Progress | None = None,
    memory_limit: int = MEMORY_LIMIT,
    resume: str | os.PathLike[str] | None = None,
) -> Uncertainty:
    """Return the errors that published tables may be expected to have, from ``draws`` rehearsals on possible truths.

    ``resume`` is a folder in which rehearsals are kept, see `publish`: those that are there are not made again.

    Unbiased tables whose impossible cells were moved to 0 have other errors than the answers; theirs have no bias.

    Guarantee: a function of what is published alone, so that it costs no privacy; the same every time.

    Raises
    ------
    PlanError : tables that are not fitted have the exact intervals of the answers, unless impossible cells are emptied.
    NotAnswerable : the number of records is lost in its noise.
    LimitExceeded : the draws would need more than ``memory_limit`` bytes.
    """
    whole("number of draws", draws, 2, error=PlanError)
    measurement, fit = published.measurement, published.fit
    if fit == "none" and not measurement.plan.schema.impossible:
        raise PlanError(
            "Unbiased tables have the exact intervals of the answers. Write the answers, or take another fit."
        )
    if fit != "none" and not float(published.contrasts[()]) > 0.0:
        raise NotAnswerable("The number of records is lost in its noise, so that nothing is known of the tables.")
    cells = sum(c.size for c in published.contrasts.values())
    if (needed := 16 * draws * cells) > memory_limit:
        raise LimitExceeded(
            f"{draws} draws of {cells:,} cells would need about {needed / 1e9:,.1f} GB, over the limit of "
            f"{memory_limit / 1e9:,.1f} GB. Ask for fewer draws, or raise memory_limit."
        )
    found, generator, tell = evidence(measurement), np.random.default_rng(seed_of(measurement)), told_share(progress)
    # unbiased tables are linear in their noise, so that whatever is true they miss as much
    hidden = {} if fit == "none" else hidden_tables(found, published.contrasts)
    errors, truths, steps = [], [], steps_of(resume, [seed_of(measurement), fit, "errors"])
    for number in range(draws):
        tell(number / draws, "Rehearsing on tables that might be true")
        if done := steps.taken(f"{number}"):
            errors.append(of_axes(done, "error"))
            truths.append(of_axes(done, "truth"))
            set_state(generator, done["generator"])
            continue
        truth = possible_truth(published.contrasts, hidden, generator)
        tables = Published(measurement=measurement, fit="none", names=published.names, contrasts=truth)
        again = publish(simulated(measurement.plan, tables.spread, generator), fit, memory_limit=memory_limit)
        errors.append({axes: c - truth[axes] for axes, c in again.contrasts.items()})
        truths.append(truth)
        kept = by_axes(errors[-1], "error") | by_axes(truth, "truth") | {"generator": state_of(generator)}
        steps.take(f"{number}", kept)
    tell(1.0, "Rehearsed")
    signal = share_of_signal(found, published.contrasts)
    return Uncertainty(published=published, errors=tuple(errors), truths=tuple(truths), signal=signal)
