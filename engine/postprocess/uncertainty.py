"""Uncertainty of published tables by parametric bootstrap, and quality flags.

Published tables are biased towards their references.  Adding noise to them does not show this bias,
because published tables already are close to their references.  An empirical Bayes bootstrap shows
it: each draw first generates possible true tables, then simulates the measurement of the plan on
them and publishes the result.  The errors of these tables estimate the errors of the published
ones.

Possible truths.  The residual of a table about its reference m has the dispersion tau m.  Noise of
variance v leaves it with the posterior variance

    v tau m / (v + tau m)        per cell,

so a cell is drawn from a gamma distribution with the published count as mean and this variance.

Prior of tau.  If noise is large, one table contains little information about its tau; all tables of
the same number of attributes together contain more.  Let s be the ratio of |t - m|^2 to its upper
bound, min over margins of |margin|^2 - |m|^2.  The distribution of s over tables is estimated by
nonparametric maximum likelihood, and every draw samples s of every table from its posterior.

Quality flags classify published numbers by relative error, size and share of signal; they use
released numbers only.

Sources: Laird and Louis (1987), Empirical Bayes confidence intervals based on bootstrap samples;
Kiefer and Wolfowitz (1956) for the nonparametric prior, here after few steps of expectation and
maximization, so that it remains smooth.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import scipy

from engine._arrays import Array
from engine._format import set_name
from engine._validation import check_int, check_positive
from engine.analysis import NoiseScale
from engine.errors import LimitExceeded, NotAnswerable, PlanError
from engine.plans import Plan
from engine.plans.blocks import apply_factors
from engine.postprocess.checkpoint import (
    arrays_by_axes,
    arrays_by_name,
    checkpoints_of,
    set_state,
    state_of,
)
from engine.postprocess.partial_pooling import dispersion
from engine.postprocess.published_tables import Published, progress_share, publish, seed_of
from engine.postprocess.residual_estimates import (
    Evidence,
    assemble_table,
    contrast,
    evidence,
    largest_subsets,
)
from engine.postprocess.shrinkage import max_entropy_table
from engine.progress import Progress
from engine.records import MEMORY_LIMIT
from engine.release import Measurement, apply_group
from engine.release.measure import measurement_of
from engine.release.measurement import group_texts
from engine.residuals import Axes, Space
from engine.workload import Group

if TYPE_CHECKING:
    import pandas as pd


# values of s (see the module docstring) that its prior is concentrated on; there are no smaller ones,
# because the attributes of a table without visible signal often are dependent, and noise does not
# distinguish them from independent ones
SHARES = np.geomspace(5e-3, 1.0, 24)
ZERO_CELL_SHARE = 1e-9  # share of the largest cell below which a cell counts as 0
EM_STEPS = 30  # steps of expectation and maximization that estimate the prior of s


@dataclass(frozen=True, kw_only=True, eq=False)
class ResidualPosterior:
    """Posterior distribution of the dispersion of one true table about its reference.

    Attributes
    ----------
    reference : the reference m, in counts; shape (n_1, ..., n_k).
    variance : variance of the noise, in counts^2.
    rank : number of measured directions.
    bound : upper bound of the squared distance |t - m|^2, in counts^2.
    probabilities : posterior probabilities that the squared distance is ``SHARES`` times the bound,
        shape (shares,).
    """

    reference: Array = field(repr=False)
    variance: float
    rank: int
    bound: float
    probabilities: Array = field(repr=False)

    def draw_cell_variances(self, generator: np.random.Generator) -> Array:
        """Return posterior variances of the true cells for a randomly drawn dispersion.

        In counts^2, shape (n_1, ..., n_k).
        """
        share = float(generator.choice(SHARES, p=self.probabilities))
        # the mean prior variance of a cell is the squared distance per measured direction
        scale = self.reference.size / self.rank
        prior = scale * share * self.bound / float(self.reference.sum()) * self.reference
        return np.asarray(self.variance * prior / (self.variance + prior))


def residual_posteriors(
    estimates: Evidence, contrasts: Mapping[Axes, Array]
) -> dict[Axes, ResidualPosterior]:
    """Return the posterior distributions of the dispersions of true tables, by attribute set.

    The result has the measured sets of at least two attributes.  ``contrasts`` are those of the
    published tables.
    """
    # (reference, excess of the squared distance, upper bound of the squared distance)
    bounds: dict[Axes, tuple[Array, float, float]] = {}
    for axes, reference, excess, margins in _excess_dispersions(estimates, contrasts):
        bound = min(float(np.sum(m**2)) for m in margins) - float(np.sum(reference**2))
        if bound > 0.0:
            bounds[axes] = reference, excess, bound
    out = {}
    for order in {len(axes) for axes in bounds}:
        members = [axes for axes in bounds if len(axes) == order]
        # squared distances for every value of s, and the variance of their noisy estimates
        squares = np.array([bounds[axes][2] for axes in members])[:, None] * SHARES
        excesses = np.array([bounds[axes][1] for axes in members])[:, None]
        variances = np.array([estimates.residuals[axes].variance for axes in members])[:, None]
        ranks = np.array([estimates.residuals[axes].rank for axes in members])[:, None]
        spread = 2.0 * ranks * variances**2 + 4.0 * variances * squares
        log_likelihood = -0.5 * ((excesses - squares) ** 2 / spread + np.log(spread))
        likelihood = np.exp(log_likelihood - log_likelihood.max(axis=1, keepdims=True))
        prior = uniform = np.full(len(SHARES), 1.0 / len(SHARES))
        for _ in range(EM_STEPS):
            posterior = prior * likelihood
            posterior /= posterior.sum(axis=1, keepdims=True)
            # one pseudo-table without information keeps the prior positive
            prior = (posterior.sum(axis=0) + uniform) / (len(members) + 1)
        for axes, probabilities in zip(members, posterior, strict=True):
            reference, _, bound = bounds[axes]
            out[axes] = ResidualPosterior(
                reference=reference,
                variance=estimates.residuals[axes].variance,
                rank=estimates.residuals[axes].rank,
                bound=bound,
                probabilities=probabilities,
            )
    return out


def _excess_dispersions(
    estimates: Evidence, contrasts: Mapping[Axes, Array]
) -> Iterator[tuple[Axes, Array, float, list[Array]]]:
    """Yield (axes, reference, excess, margins) for every measured set of at least two attributes.

    The reference is the maximum-entropy table of the published margins, in counts; the excess is
    the squared distance of the noisy residual from it beyond the noise, in counts^2.
    """
    tables: dict[Axes, Array] = {}
    for axes in estimates.sets:
        tables[axes] = np.maximum(assemble_table(contrasts, axes), 0.0)
        estimate = estimates.residuals.get(axes)
        if len(axes) < 2 or estimate is None or estimate.rank == 0:
            continue
        reference = max_entropy_table(
            axes,
            {f: tables[f] for f in (*largest_subsets(axes), axes[:-2])},
            estimates.possible.get(axes),
        )
        excess, _ = dispersion(
            estimate.cells - estimate.projection.of(reference), estimate.variance, estimate.rank
        )
        yield axes, reference, excess, [tables[f] for f in largest_subsets(axes)]


def share_of_signal(estimates: Evidence, contrasts: Mapping[Axes, Array]) -> dict[Axes, Array]:
    """Return which share of every published cell was measured, by attribute set.

    The share is tau m / (v + tau m), the weight of the noisy answer in the published residual; the
    reference, which follows from smaller tables, has the remaining weight.  The result has the
    measured sets of at least two attributes; shares are from 0 to 1, shapes (n_1, ..., n_k).
    """
    out = {}
    for axes, reference, excess, _ in _excess_dispersions(estimates, contrasts):
        estimate = estimates.residuals[axes]
        scale = reference.size / estimate.rank
        prior = scale * max(0.0, excess) / float(contrasts[()]) * reference
        out[axes] = prior / (estimate.variance + prior)
    return out


def draw_truth(
    contrasts: Mapping[Axes, Array],
    posteriors: Mapping[Axes, ResidualPosterior],
    generator: np.random.Generator,
) -> dict[Axes, Array]:
    """Return the contrasts of randomly drawn tables that may be the true ones, by attribute set.

    ``contrasts`` are those of the published tables, in the shapes (n_1, ..., n_k) of the tables,
    ``posteriors`` the dispersions from `residual_posteriors`.
    """
    out = dict(contrasts)
    for axes, posterior in posteriors.items():
        variance = posterior.draw_cell_variances(generator)
        table = np.maximum(assemble_table(contrasts, axes), 0.0)
        spread = np.zeros_like(table)
        # rounding near 0 differs between machines; with a tolerance, all machines draw for the same
        # cells
        positive = (table > ZERO_CELL_SHARE * table.max()) & (
            variance > ZERO_CELL_SHARE * variance.max()
        )
        scale = variance[positive] / table[positive]
        spread[positive] = generator.gamma(table[positive] / scale, scale) - table[positive]
        out[axes] = contrasts[axes] + contrast(spread)
    return out


def simulate_measurement(
    plan: Plan, table: Callable[[Space], Array], generator: np.random.Generator
) -> Measurement:
    """Return a simulated measurement of a plan on public or hypothetical tables.

    ``table`` is a function from attributes to their table in counts, shape (n_1, ..., n_k).  The
    noise has the distribution and the standard deviations of the plan, but comes from a statistical
    random generator: the result is no private release and does not protect the records behind
    ``table``.
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
    return measurement_of(plan, answers, dataset="", key="", utc="", rehearsal=True)


PUBLISHABLE, DOUBTFUL, SUPPRESSED = FLAGS = ("publishable", "doubtful", "suppressed")
REASONS = {
    "": "nothing speaks against the number",
    "cv": "its error is a large share of it",
    "count": "it is smaller than the least count that is shown",
    "signal": "too little of it was measured: most follows from smaller tables",
}


@dataclass(frozen=True, kw_only=True)
class QualityRule:
    """Thresholds that classify a published number as publishable, doubtful or suppressed.

    Attributes
    ----------
    doubtful_cv, suppressed_cv : relative errors above which a number is doubtful or suppressed; the
        defaults are those of `NoiseScale`.
    least_count : smaller numbers are suppressed.
    least_signal : numbers are doubtful if a smaller share of them, from 0 to 1, was measured.

    The rule protects readers from unreliable numbers.  The noise protects the people in the
    records; suppression does not, because a suppressed cell remains in all sums and can be computed
    from them.

    >>> QualityRule(doubtful_cv=0.4)  # doctest: +NORMALIZE_WHITESPACE
    Traceback (most recent call last):
    engine.errors.PlanError: doubtful_cv is 0.4, above suppressed_cv 0.3, but a number must be
    doubtful before it is suppressed. Give a doubtful_cv of at most suppressed_cv.
    """

    doubtful_cv: float = NoiseScale.publishable
    suppressed_cv: float = NoiseScale.doubtful
    least_count: float = 0.0
    least_signal: float = 0.0

    def __post_init__(self) -> None:
        for name in ("doubtful_cv", "suppressed_cv"):
            check_positive(name, getattr(self, name), error=PlanError)
        if self.doubtful_cv > self.suppressed_cv:
            raise PlanError(
                f"doubtful_cv is {self.doubtful_cv:g}, above suppressed_cv {self.suppressed_cv:g}, but a"
                " number must be doubtful before it is suppressed. Give a doubtful_cv of at most"
                " suppressed_cv."
            )
        if not self.least_count >= 0.0 or not 0.0 <= self.least_signal <= 1.0:
            raise PlanError(
                f"least_count was {self.least_count} and least_signal {self.least_signal}. Give a"
                " least_count of at least 0, and a least_signal from 0 to 1."
            )

    def describe(self) -> str:
        """Return a text that says which numbers are suppressed and which are doubtful.

        >>> QualityRule(least_count=5).describe()
        'Suppressed: counts below 5, and counts with a CV above 30%. Doubtful: a CV above 15%.'
        """
        small = f"counts below {self.least_count:g}, and " if self.least_count > 0 else ""
        unmeasured = (
            f", or less than {self.least_signal:.0%} measured" if self.least_signal > 0 else ""
        )
        return (
            f"Suppressed: {small}counts with a CV above {self.suppressed_cv:.0%}. Doubtful: a CV"
            f" above {self.doubtful_cv:.0%}{unmeasured}."
        )

    def flags(
        self, values: Array, errors: Array, signal: Array
    ) -> tuple[npt.NDArray[np.str_], npt.NDArray[np.str_]]:
        """Return the flags and the reason codes, keys of `REASONS`, of published numbers.

        ``values`` are the numbers and ``errors`` their root mean squared errors, in counts;
        ``signal`` are the shares of the numbers that were measured, from 0 to 1.  All arrays have
        the shape (queries,).  If several thresholds are violated, the reason is that of the most
        severe flag.
        """
        # products instead of ratios: a 0 with an error of 0 is publishable, any other 0 is suppressed
        above_suppressed = errors > self.suppressed_cv * values
        above_doubtful = errors > self.doubtful_cv * values
        small, unmeasured = values < self.least_count, signal < self.least_signal
        reasons = np.select(
            [small, above_suppressed, above_doubtful, unmeasured],
            ["count", "cv", "cv", "signal"],
            "",
        )
        flags = np.select(
            [small | above_suppressed, above_doubtful | unmeasured],
            [SUPPRESSED, DOUBTFUL],
            PUBLISHABLE,
        )
        return flags, reasons


DRAWS = 30  # default number of bootstrap draws
# ranges of true counts by which `Uncertainty.bias` groups the cells
COUNT_RANGES = ((0.0, 1.0), (1.0, 10.0), (10.0, 100.0), (100.0, np.inf))


@dataclass(frozen=True, kw_only=True, eq=False)
class Uncertainty:
    """Estimated errors of published tables, from an empirical Bayes bootstrap.

    Attributes
    ----------
    published : the tables.
    errors : one mapping per draw, from attribute sets, as positions in ``published.names``, to the
        contrasts of the errors of their tables.
    truths : contrasts of the true tables of the draws, in the same form.
    signal : mapping from measured sets to the share of every cell that was measured, see
        `share_of_signal`.

    Intervals are approximate.  Their coverage holds on average over the cells of a table, not for
    each single cell, and depends on the dispersion estimated from the released numbers.  Only
    unbiased answers have exact intervals.
    """

    published: Published
    errors: tuple[Mapping[Axes, Array], ...] = field(repr=False)
    truths: tuple[Mapping[Axes, Array], ...] = field(repr=False)
    signal: Mapping[Axes, Array] = field(repr=False)

    def table_errors(self, attributes: Sequence[str]) -> Array:
        """Return the root mean squared errors of a table, in counts; shape (n_1, ..., n_k)."""
        squares = np.mean([self._assembled(e, attributes) ** 2 for e in self.errors], axis=0)
        return np.asarray(np.sqrt(squares + self._rounding(attributes) ** 2))

    def reach(self, confidence: float = 0.95) -> float:
        """Return the half-width of a confidence interval as a multiple of the estimated error.

        It is a quantile of Student's distribution, because the error is estimated from few draws.
        """
        share = check_positive("confidence", confidence, below=1, error=PlanError)
        return float(scipy.special.stdtrit(len(self.errors), 0.5 + share / 2))

    def bias(self, attributes: Sequence[str]) -> pd.DataFrame:
        """Return the bias and the absolute error of the cells of a table, by their true counts.

        Truths and errors are those of the draws.  Columns: true (range of the true counts), cells
        (mean number of cells per draw), bias (mean error, counts) and error (mean absolute error,
        counts).
        """
        import pandas as pd

        truth = np.array([self._assembled(t, attributes) for t in self.truths])
        errors = np.array([self._assembled(e, attributes) for e in self.errors])
        rows = []
        for low, high in COUNT_RANGES:
            inside = (truth < high) & ((truth >= low) | (low == 0.0))
            cell_errors = errors[inside]
            row = {
                "true": f"{low:g} or more" if high == np.inf else f"{low:g} to {high:g}",
                "cells": inside.sum() / len(truth),
                "bias": 0.0,
                "error": 0.0,
            }
            if cell_errors.size:
                row["bias"] = float(cell_errors.mean())
                row["error"] = float(np.abs(cell_errors).mean())
            rows.append(row)
        return pd.DataFrame(rows)

    def answers(
        self,
        group: int,
        start: int = 0,
        stop: int | None = None,
        confidence: float = 0.95,
        rule: QualityRule | None = None,
    ) -> pd.DataFrame:
        """Return published and unbiased answers to queries ``start:stop`` of a group, in counts.

        Columns of published numbers: query, published, error (root mean squared error),
        published_low, published_high, flag, reason, measured (share of the number that was
        measured, from 0 to 1; the rest follows from smaller tables).  Columns of unbiased answers:
        answer, std, low, high.  A suppressed number and its interval are NaN; sums still include
        it.
        """
        queries = self.published.measurement.plan.workload.groups[group]
        unbiased = self.published.measurement.answers(group, start, stop, confidence)
        columns = self._published_columns(queries, start, stop, confidence, rule)
        for place, (name, column) in enumerate(columns.items(), start=1):
            unbiased.insert(place, name, column)
        return unbiased

    def sums(
        self,
        group: Group,
        start: int = 0,
        stop: int | None = None,
        confidence: float = 0.95,
        rule: QualityRule | None = None,
    ) -> pd.DataFrame:
        """Return published answers to queries ``start:stop`` of any group, see `Published.sums`.

        The columns are those of `answers` without the unbiased answers.
        """
        import pandas as pd

        schema = self.published.measurement.plan.schema
        first, last, _ = slice(start, stop).indices(group.count)
        texts = group_texts(schema, group, first, max(first, last)).to_pylist()
        columns = self._published_columns(group, start, stop, confidence, rule)
        return pd.DataFrame({"query": texts} | columns)

    def numbers(
        self, group: Group, start: int = 0, stop: int | None = None, confidence: float = 0.95
    ) -> dict[str, Array]:
        """Return published answers to queries ``start:stop`` of any group, also suppressed ones.

        Keys: published, error, published_low and published_high, as in `answers`; arrays in counts,
        shape (queries,).
        """
        values = self.published.sums(group, start, stop)
        first, last, _ = slice(start, stop).indices(group.count)
        names, last = group.attributes, max(first, last)
        squares = np.mean(
            [apply_group(group, self._assembled(e, names), first, last) ** 2 for e in self.errors],
            axis=0,
        )
        squares += apply_group(group, self._rounding(names), first, last) ** 2
        error = np.sqrt(squares)
        half = self.reach(confidence) * error
        low = values - half if self.published.fit == "none" else np.maximum(values - half, 0.0)
        return {
            "published": values,
            "error": error,
            "published_low": low,
            "published_high": values + half,
        }

    def _published_columns(
        self,
        group: Group,
        start: int,
        stop: int | None,
        confidence: float,
        rule: QualityRule | None,
    ) -> dict[str, npt.NDArray[Any]]:
        """Return the columns of published numbers for queries ``start:stop``; see `answers`."""
        numbers = self.numbers(group, start, stop, confidence)
        values = numbers["published"]
        first, last, _ = slice(start, stop).indices(group.count)
        measured = self._measured_shares(group, first, max(first, last), values)
        flags, reasons = (rule or QualityRule()).flags(values, numbers["error"], measured)
        shown = flags != SUPPRESSED
        return {name: np.where(shown, column, np.nan) for name, column in numbers.items()} | {
            "flag": flags,
            "reason": reasons,
            "measured": measured,
        }

    def summary(self, rule: QualityRule | None = None) -> pd.DataFrame:
        """Summarize the effect of publishing, one row per group, from released numbers only.

        Columns: attributes, family, answers, below zero (number of negative unbiased answers),
        published there (mean published value of these, in counts), measured (share of the published
        counts that was measured; the rest follows from smaller tables), publishable, doubtful,
        suppressed (shares of the answers).
        """
        import pandas as pd

        rows = []
        for number, group in enumerate(self.published.measurement.plan.workload.groups):
            answers, values = self.answers(number, rule=rule), self.published.values(number)
            negative = answers["answer"].to_numpy() < 0.0
            row = {
                "attributes": set_name(group.attributes),
                "family": group.family_text,
                "answers": group.count,
            }
            row |= {"below zero": int(negative.sum())}
            row |= {"published there": float(values[negative].mean()) if negative.any() else np.nan}
            measured = answers["measured"].to_numpy()
            share = float(np.sum(measured * values)) / max(float(values.sum()), 1e-9)
            # rounded, because the last digits of sums differ from run to run
            row |= {"measured": round(share, 6)}
            rows.append(row | {flag: float((answers["flag"] == flag).mean()) for flag in FLAGS})
        return pd.DataFrame(rows)

    def _measured_shares(self, queries: Group, first: int, last: int, values: Array) -> Array:
        """Return the column ``measured`` of `answers` for queries ``first:last``, shape (queries,).

        It is the mean of the measured shares of the cells of a query, weighted by their counts.
        ``values`` are the published answers, shape (queries,).
        """
        axes = self.published.positions(queries.attributes)
        if self.published.measurement.plan.schema.is_exact(queries.attributes):
            return np.ones(last - first)
        if axes not in self.signal:
            return np.full(last - first, 1.0 if len(axes) < 2 else 0.0)
        table = self.published.table(queries.attributes)
        measured = apply_group(
            queries,
            table * self.published.laid_out(self.signal[axes], queries.attributes),
            first,
            last,
        )
        return np.divide(measured, values, out=np.zeros_like(values), where=np.abs(values) > 1e-9)

    def _assembled(self, contrasts: Mapping[Axes, Array], attributes: Sequence[str]) -> Array:
        """Return the table on ``attributes`` with the given contrasts, such as those of errors."""
        axes = self.published.positions(attributes)
        table = assemble_table(contrasts, axes)
        if (impossible := self.published.impossible(axes)) is not None:
            # possible truths are drawn without regard to impossible cells
            table[impossible] = 0.0
        return self.published.laid_out(table, attributes)

    def _rounding(self, attributes: Sequence[str]) -> Array:
        """Return the integer table minus the fitted table that it rounds; 0 if it is not integer."""
        integer_table = self.published.table(attributes)
        if self.published.people is None:
            return np.zeros_like(integer_table)
        return np.asarray(
            integer_table - np.maximum(self._assembled(self.published.contrasts, attributes), 0.0)
        )


def uncertainty(
    published: Published,
    *,
    draws: int = DRAWS,
    progress: Progress | None = None,
    memory_limit: int = MEMORY_LIMIT,
    resume: str | os.PathLike[str] | None = None,
) -> Uncertainty:
    """Estimate the errors of published tables by an empirical Bayes bootstrap.

    Parameters
    ----------
    draws : number of hypothetical true tables that are drawn, measured and published.
    progress : called with the share of the work done and a message; False cancels.
    memory_limit : in bytes.
    resume : folder for checkpoints, see `publish`; draws that it contains are not repeated.

    Unbiased tables (``fit="none"``) are allowed if the schema has impossible cells: setting these
    to 0 changes the errors of the answers, without bias.

    Guarantee: a deterministic function of the published tables, so that it costs no privacy.

    Raises
    ------
    PlanError : unbiased tables without impossible cells, whose answers have exact intervals.
    NotAnswerable : the number of records is not positive because of its noise.
    LimitExceeded : the draws would need more than ``memory_limit`` bytes.
    """
    check_int("number of draws", draws, 2, error=PlanError)
    measurement, fit = published.measurement, published.fit
    if fit == "none" and not measurement.plan.schema.impossible:
        raise PlanError(
            'Tables of fit="none" have the exact intervals of the unbiased answers. Write the answers,'
            ' or publish with fit="shrunk" or "nonnegative".'
        )
    if fit != "none" and not float(published.contrasts[()]) > 0.0:
        raise NotAnswerable(
            "The noisy number of records is not positive, so that errors cannot be estimated. Measure"
            " with a larger budget."
        )
    cells = sum(c.size for c in published.contrasts.values())
    if (needed := 16 * draws * cells) > memory_limit:
        raise LimitExceeded(
            f"{draws} draws of {cells:,} cells would need about {needed / 1e9:,.1f} GB, over the"
            f" limit of {memory_limit / 1e9:,.1f} GB. Give fewer draws, or raise memory_limit."
        )
    estimates = evidence(measurement)
    generator = np.random.default_rng(seed_of(measurement))
    tell = progress_share(progress)
    # the errors of unbiased tables are linear in the noise and do not depend on the truth
    posteriors = {} if fit == "none" else residual_posteriors(estimates, published.contrasts)
    errors: list[dict[Axes, Array]] = []
    truths: list[dict[Axes, Array]] = []
    checkpoints = checkpoints_of(resume, [seed_of(measurement), fit, "errors"])
    for number in range(draws):
        tell(number / draws, "Simulating releases of similar tables")
        if done := checkpoints.read(f"{number}"):
            errors.append(arrays_by_axes(done, "error"))
            truths.append(arrays_by_axes(done, "truth"))
            set_state(generator, done["generator"])
            continue
        truth = draw_truth(published.contrasts, posteriors, generator)
        tables = Published(
            measurement=measurement, fit="none", names=published.names, contrasts=truth
        )
        republished = publish(
            simulate_measurement(measurement.plan, tables.spread, generator),
            fit,
            memory_limit=memory_limit,
        )
        errors.append({axes: c - truth[axes] for axes, c in republished.contrasts.items()})
        truths.append(truth)
        arrays = (
            arrays_by_name(errors[-1], "error")
            | arrays_by_name(truth, "truth")
            | {"generator": state_of(generator)}
        )
        checkpoints.write(f"{number}", arrays)
    tell(1.0, "Errors estimated")
    signal = share_of_signal(estimates, published.contrasts)
    return Uncertainty(
        published=published, errors=tuple(errors), truths=tuple(truths), signal=signal
    )
