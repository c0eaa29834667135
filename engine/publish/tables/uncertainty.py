"""How far published numbers may be from the true ones, with flags for those that should not be read alone."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import scipy

from engine.arrays import Array
from engine.checks import positive, whole
from engine.errors import LimitExceeded, NotAnswerable, PlanError
from engine.progress import Progress
from engine.publish.tables.bootstrap import hidden_tables, possible_truth, share_of_signal, simulated
from engine.publish.tables.contrasts import assembled
from engine.publish.tables.evidence import evidence
from engine.publish.tables.published import Published, publish, seed_of, told_share
from engine.publish.tables.quality import FLAGS, SUPPRESSED, QualityRule
from engine.publish.tables.resume import by_axes, of_axes, set_state, state_of, steps_of
from engine.release import MEMORY_LIMIT, apply_group
from engine.spaces import Axes
from engine.texts import set_name

if TYPE_CHECKING:
    import pandas as pd

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
