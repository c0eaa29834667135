"""Errors of published tables by an empirical Bayes bootstrap, quality flags and acceptance.

Published tables are biased: they are shrunk towards references, which smaller tables predict.
Simulating the measurement on the published tables would hide this bias, because they are close to
their references already.  Each draw of the bootstrap therefore first generates possible true
tables, then simulates the measurement of the plan on these and publishes the result.  The errors of
the republished tables estimate the errors of the published ones.

**Possible true tables.**  The true cells are assumed to deviate from the reference m with variance
tau m.  Given a measurement with noise of variance v, the posterior variance of a cell is

    v tau m / (v + tau m).

The cell is drawn from the gamma distribution with this variance and the published count as mean.
If the measurement shows that an attribute determines another one (see below), all tables with
the determined attribute follow from the drawn tables with its source.  At the end, all tables of a
draw are scaled to a number of records that is drawn from its posterior distribution.  Otherwise a
published number of records that is far too small would give far too small errors.

**Prior of tau.**  If the noise is large, one table contains little information about its tau, but
all tables with the same number of attributes together contain more.  Let s be the squared distance
|t - m|^2 of the true table from its reference, divided by the upper bound
min over margins of |margin|^2 - |m|^2.  The distribution of s over tables is estimated by
nonparametric maximum likelihood.  Each draw samples s of each table from its posterior.  If two
attributes determine each other, their tables with any third attribute have the same counts, and
these tables share one posterior.  Whatever s is, the variance tau m is at least m, the variance of
a sampled count.

**Quality flags** classify published numbers by their relative error, their size and the share of
them that was measured.  They depend on released numbers only.

Sources: Laird and Louis (1987), Empirical Bayes confidence intervals based on bootstrap samples;
Kiefer and Wolfowitz (1956) for the nonparametric prior.  Only few steps of expectation and
maximization are made, so that the prior remains smooth.

**Determined attributes.**  If the value of attribute k determines that of attribute j, such as
income and income squared, all tables with j follow from the tables with k.
Publishing uses such a dependence (`shrinkage`), so that the tables with j and those with k improve
each other.  True tables that are drawn for a simulation must therefore have the dependence as well,
or else the simulated errors are too large.

**Acceptance.**  `acceptance` compares synthetic records with published tables and unbiased answers.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import scipy

from engine._arrays import Array, Index
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
from engine.postprocess.partial_pooling import noise_excess, pooled_total
from engine.postprocess.published_tables import Published, progress_share, publish, seed_of
from engine.postprocess.residual_estimates import (
    Evidence,
    assemble_table,
    contrast,
    evidence,
    largest_subsets,
)
from engine.postprocess.shrinkage import max_entropy_table
from engine.postprocess.synthetic_records import table_of
from engine.progress import Progress
from engine.records import MEMORY_LIMIT
from engine.release import Measurement, apply_group
from engine.release.measure import measurement_of
from engine.release.measurement import group_texts
from engine.residuals import Axes, Space
from engine.workload import Group

if TYPE_CHECKING:
    import pandas as pd

# A measured table agrees with a prediction if the squared distance exceeds its expectation by at
# most this number of standard deviations.
AGREEMENT_SD = 3.0
# Logarithm of the prior odds against the assumption that one given attribute determines another,
# about 1,000 to 1.
LOG_ODDS_AGAINST = 7.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Determination:
    """How one attribute (the source) determines another one.

    Attributes
    ----------
    source : position of the source in `Evidence.names`.
    cells : cell of the determined attribute for each cell of the source, shape (n_source,).
    """

    source: int
    cells: Index = field(repr=False)


def determined_attributes(
    evidence: Evidence, contrasts: Mapping[Axes, Array]
) -> dict[int, Determination]:
    """Return the attributes that another attribute determines, according to the measurement.

    The keys of the result are positions of determined attributes.  No source is a key.  A source
    has at least as many cells as the attribute that it determines.  If the noise is large, the
    result can lack a determined attribute.  It can also contain an attribute whose value differs in
    a few records from the value that its source determines.

    ``contrasts`` are the contrasts of the published tables.
    """
    attributes = sorted(
        {a for axes in evidence.sets for a in axes}, key=lambda a: (-evidence.sizes[a], a)
    )
    determined: dict[int, Determination] = {}
    for number, attribute in enumerate(attributes):
        for source in attributes[:number]:
            if source in determined:
                continue
            cells = _determined_cells(evidence, contrasts, source, attribute)
            if cells is not None:
                determined[attribute] = Determination(source=source, cells=cells)
                break
    return determined


def _determined_cells(
    evidence: Evidence, contrasts: Mapping[Axes, Array], source: int, attribute: int
) -> Index | None:
    """Return the cell of an attribute for each cell of its source, shape (n_source,).

    The result is None if the measurement does not show that the source determines the attribute.
    """
    axes = (min(source, attribute), max(source, attribute))
    estimate = evidence.residuals.get(axes)
    if estimate is None or estimate.rank == 0:
        return None
    table = np.maximum(assemble_table(contrasts, axes), 0.0)
    table = table if axes[0] == source else table.T
    rows, columns = table.sum(axis=1), table.sum(axis=0)
    if not rows.sum() > 0.0:
        return None
    # If the source determines the attribute, each row has one positive cell.
    cells = table.argmax(axis=1)
    predicted = np.zeros_like(table)
    predicted[np.arange(len(rows)), cells] = rows
    independent = np.outer(rows, columns) / rows.sum()

    def excess_of(prediction: Array, variance: float) -> tuple[float, float]:
        """Return the `noise_excess` of the difference between the residual and ``prediction``."""
        prediction = prediction if axes[0] == source else prediction.T
        gap = estimate.cells - estimate.projection.of(prediction)
        return noise_excess(gap, variance, estimate.rank)

    def noise_of(single: int) -> float:
        """Return the variance of the noise of a one-way residual; 0 if it was not measured."""
        residual = evidence.residuals.get((single,))
        return residual.variance if residual is not None else 0.0

    # The prediction contains the noise of the one-way table of the source.  Its residual keeps
    # 1 / n_attribute of this noise.
    variance = estimate.variance + noise_of(source) / len(columns)
    excess, standard_deviations = excess_of(predicted, variance)
    if standard_deviations > AGREEMENT_SD:
        return None
    # There are n_attribute^n_source ways in which the source could determine the attribute.  They
    # are equally probable before the measurement.
    log_ratio = (excess_of(independent, variance)[0] - excess) / (2.0 * variance)
    if log_ratio <= len(rows) * math.log(len(columns)) + LOG_ODDS_AGAINST:
        return None
    # The predicted cells must also agree with the one-way table of the attribute, because this
    # table can have less noise.
    gap = columns - np.bincount(cells, rows, len(columns))
    variance = noise_of(attribute) + noise_of(source) * len(rows) / len(columns)
    if variance > 0.0 and noise_excess(gap, variance, len(columns) - 1)[1] > AGREEMENT_SD:
        return None
    return np.asarray(cells)


def set_with_same_counts(axes: Axes, determined: Mapping[int, Determination]) -> Axes:
    """Return the attribute set on sources whose table has the same counts as that on ``axes``.

    An attribute is replaced by its source only if the attribute also determines the source.  A set
    with both an attribute and its source is returned unchanged.

    >>> same = {2: Determination(source=1, cells=np.array([1, 0]))}
    >>> set_with_same_counts((0, 2), same), set_with_same_counts((1, 2), same)
    ((0, 1), (1, 2))
    """
    sources = {
        determined[a].source
        if a in determined and len(np.unique(determined[a].cells)) == len(determined[a].cells)
        else a
        for a in axes
    }
    return tuple(sorted(sources)) if len(sources) == len(axes) else axes


def follow_sources(
    contrasts: Mapping[Axes, Array],
    determined: Mapping[int, Determination],
    sets: Iterable[Axes],
) -> dict[Axes, Array]:
    """Return contrasts of tables in which all determined attributes follow from their sources.

    Parameters
    ----------
    contrasts : contrasts of tables by attribute set.
    determined : result of `determined_attributes`.
    sets : the attribute sets whose contrasts may change.  A contrast remains if no determined
        attribute is in the set, or if there is no table on the sources.

    >>> table = np.array([[3.0, 1.0], [0.0, 2.0]])
    >>> contrasts = {(): np.array(6.0), (0,): np.array([1.0, -1.0]), (1,): np.zeros(2)}
    >>> contrasts |= {(2,): np.zeros(2), (0, 1): contrast(table), (0, 2): np.zeros((2, 2))}
    >>> same = {2: Determination(source=1, cells=np.array([0, 1]))}
    >>> follow_sources(contrasts, same, [(0, 2)])[0, 2].tolist()
    [[1.0, -1.0], [-1.0, 1.0]]
    """
    following = dict(contrasts)
    for axes in sets:
        sources = [determined[a].source if a in determined else a for a in axes]
        source_axes = tuple(sorted(set(sources)))
        if source_axes == axes or source_axes not in contrasts:
            continue
        source_table = assemble_table(contrasts, source_axes)
        source_cells = np.indices(source_table.shape)
        # Every cell of the source table is added to the cell of the table that it determines.
        cells = [source_cells[source_axes.index(source)] for source in sources]
        cells = [
            determined[a].cells[c] if a in determined else c
            for a, c in zip(axes, cells, strict=True)
        ]
        table = np.zeros(contrasts[axes].shape)
        np.add.at(table, tuple(cells), source_table)
        following[axes] = contrast(table)
    return following


# The prior of the ratio s (see the module docstring) is a distribution over these values.  Of the
# pairs of 28 real tables, 5% have a smaller ratio.
SHARES = np.geomspace(1e-4, 1.0, 36)
# Typical distribution of the ratio s over ``SHARES``, as observed for pairs of attributes in real
# tables. Its peak is at ``TYPICAL_SHARE``. If the noise hides the dependence in all tables, the
# estimated prior is near this distribution.
TYPICAL_SHARE = 8e-3
TYPICAL_PRIOR = np.minimum(SHARES / TYPICAL_SHARE, TYPICAL_SHARE / SHARES) ** 0.5
TYPICAL_PRIOR /= np.sum(TYPICAL_PRIOR)
ZERO_CELL_SHARE = 1e-9  # share of the largest cell below which a cell counts as 0
EM_STEPS = 30  # steps of expectation and maximization that estimate the prior of s


@dataclass(frozen=True, kw_only=True, eq=False)
class ResidualPosterior:
    """Posterior distribution of the squared distance of one true table from its reference.

    Attributes
    ----------
    reference : the reference m, in counts; shape (n_1, ..., n_k).
    variance : variance of the noise of a residual, in counts^2.
    rank : number of measured directions of the residual.
    bound : upper bound of the squared distance, in counts^2.
    probabilities : posterior probabilities of the values ``SHARES`` of squared distance / bound,
        shape (shares,).
    """

    reference: Array = field(repr=False)
    variance: float
    rank: int
    bound: float
    probabilities: Array = field(repr=False)

    def draw_cell_variances(self, generator: np.random.Generator) -> Array:
        """Draw a squared distance; return the variances of the true cells given this distance.

        The posterior variances are in counts^2, shape (n_1, ..., n_k).
        """
        share = float(generator.choice(SHARES, p=self.probabilities))
        # The prior variances of the cells are proportional to the reference.  Their mean is the
        # squared distance divided by the rank.
        scale = self.reference.size / self.rank
        prior = scale * share * self.bound / float(self.reference.sum()) * self.reference
        # Counts of independent attributes deviate from the reference as well, because the records
        # vary like a sample. The variance of this deviation is about the mean of the count.
        prior = np.maximum(prior, self.reference)
        return np.asarray(self.variance * prior / (self.variance + prior))


def residual_posteriors(
    evidence: Evidence,
    contrasts: Mapping[Axes, Array],
    determined: Mapping[int, Determination],
) -> dict[Axes, ResidualPosterior]:
    """Return for every measured set of two or more attributes how far its true table may deviate.

    The result maps attribute sets to posterior distributions of the squared distance from the
    reference.  Sets without freedom to deviate (bound 0) are absent.

    Parameters
    ----------
    contrasts : contrasts of the published tables.
    determined : result of `determined_attributes`.  Sets whose tables have the same counts share
        the information about their squared distance.
    """
    references = dict[Axes, Array]()
    excesses_of = dict[Axes, float]()
    bounds = dict[Axes, float]()
    for axes, reference, excess, margins in _noise_excesses(evidence, contrasts):
        bound = min(float(np.sum(m**2)) for m in margins) - float(np.sum(reference**2))
        if bound > 0.0:
            references[axes], excesses_of[axes], bounds[axes] = reference, excess, bound
    posteriors = {}
    for order in {len(axes) for axes in bounds}:
        members = [axes for axes in bounds if len(axes) == order]
        # ``squares`` has the squared distance of each table for each ratio s = squared distance /
        # bound in ``SHARES``.  Given a squared distance, the excess of the table is approximately
        # normal, with the squared distance as mean and the variance ``spread``.
        squares = np.array([bounds[axes] for axes in members])[:, None] * SHARES
        excesses = np.array([excesses_of[axes] for axes in members])[:, None]
        variances = np.array([evidence.residuals[axes].variance for axes in members])[:, None]
        ranks = np.array([evidence.residuals[axes].rank for axes in members])[:, None]
        spread = 2.0 * ranks * variances**2 + 4.0 * variances * squares
        log_likelihood = -0.5 * ((excesses - squares) ** 2 / spread + np.log(spread))
        # Tables with the same counts have independent noise: their log-likelihoods add up.
        index = {axes: i for i, axes in enumerate(members)}
        first = [index.get(set_with_same_counts(axes, determined), index[axes]) for axes in members]
        pooled = np.zeros_like(log_likelihood)
        np.add.at(pooled, first, log_likelihood)
        log_likelihood = pooled[first]
        likelihood = np.exp(log_likelihood - log_likelihood.max(axis=1, keepdims=True))
        # The EM algorithm estimates the prior of the ratio s from all tables of this order.
        prior = TYPICAL_PRIOR
        for _ in range(EM_STEPS):
            posterior = prior * likelihood
            posterior /= posterior.sum(axis=1, keepdims=True)
            # The typical prior counts like the posterior of one more table, so that all prior
            # probabilities remain positive.
            prior = (posterior.sum(axis=0) + TYPICAL_PRIOR) / (len(members) + 1)
        for axes, probabilities in zip(members, posterior, strict=True):
            posteriors[axes] = ResidualPosterior(
                reference=references[axes],
                variance=evidence.residuals[axes].variance,
                rank=evidence.residuals[axes].rank,
                bound=bounds[axes],
                probabilities=probabilities,
            )
    return posteriors


def _noise_excesses(
    evidence: Evidence, contrasts: Mapping[Axes, Array]
) -> Iterator[tuple[Axes, Array, float, list[Array]]]:
    """Yield (axes, reference, excess, margins) for every measured set of two or more attributes.

    The reference is the maximum-entropy table with the published margins, in counts.  The excess is
    the squared distance of the noisy residual from the residual of the reference, minus its
    expectation for pure noise, in counts^2.  The margins are the published tables with one
    attribute fewer.
    """
    tables: dict[Axes, Array] = {}
    for axes in evidence.sets:
        tables[axes] = np.maximum(assemble_table(contrasts, axes), 0.0)
        estimate = evidence.residuals.get(axes)
        if len(axes) < 2 or estimate is None or estimate.rank == 0:
            continue
        reference = max_entropy_table(
            axes,
            {f: tables[f] for f in (*largest_subsets(axes), axes[:-2])},
            evidence.possible.get(axes),
        )
        excess, _ = noise_excess(
            estimate.cells - estimate.projection.of(reference), estimate.variance, estimate.rank
        )
        yield axes, reference, excess, [tables[f] for f in largest_subsets(axes)]


def share_of_signal(evidence: Evidence, contrasts: Mapping[Axes, Array]) -> dict[Axes, Array]:
    """Return which share of each published cell was measured, from 0 to 1, by attribute set.

    The result has every measured set of two or more attributes, with arrays of the shapes of their
    tables.  The share is tau m / (v + tau m): the weight of the noisy residual in linear shrinkage.
    The remaining weight is that of the reference, which smaller tables predict.
    """
    shares = {}
    for axes, reference, excess, _ in _noise_excesses(evidence, contrasts):
        estimate = evidence.residuals[axes]
        scale = reference.size / estimate.rank
        prior = scale * max(0.0, excess) / float(contrasts[()]) * reference
        shares[axes] = prior / (estimate.variance + prior)
    return shares


def draw_truth(
    contrasts: Mapping[Axes, Array],
    posteriors: Mapping[Axes, ResidualPosterior],
    determined: Mapping[int, Determination],
    generator: np.random.Generator,
) -> dict[Axes, Array]:
    """Draw possible true tables; return their contrasts by attribute set.

    Parameters
    ----------
    contrasts : contrasts of the published tables, in the shapes (n_1, ..., n_k) of the tables.
    posteriors : result of `residual_posteriors`; other sets keep their published contrasts.
    determined : result of `determined_attributes`.
    """
    truth = dict(contrasts)
    for axes, posterior in posteriors.items():
        variance = posterior.draw_cell_variances(generator)
        table = np.maximum(assemble_table(contrasts, axes), 0.0)
        deviation = np.zeros_like(table)
        # Cells near 0 get no deviation.  They are rounding errors that differ between machines, and
        # every machine must draw random numbers for the same cells.
        positive = (table > ZERO_CELL_SHARE * table.max()) & (
            variance > ZERO_CELL_SHARE * variance.max()
        )
        scale = variance[positive] / table[positive]
        # This gamma distribution has the published count as mean, and the variance ``variance``.
        deviation[positive] = generator.gamma(table[positive] / scale, scale) - table[positive]
        truth[axes] = contrasts[axes] + contrast(deviation)
    return follow_sources(truth, determined, posteriors)


def draw_total(total: float, variance: float, generator: np.random.Generator) -> float:
    """Draw a possible true number of records, given a noisy one above 0.

    The distribution is the normal distribution with mean ``total`` and variance ``variance``,
    restricted to positive numbers: the posterior distribution for a flat prior.

    >>> draw_total(500.0, 0.0, np.random.default_rng(0))
    500.0
    """
    if variance == 0.0:
        return total
    noise_sd = math.sqrt(variance)
    quantile = generator.uniform(scipy.special.ndtr(-total / noise_sd), 1.0)
    return float(total + noise_sd * scipy.special.ndtri(quantile))


def simulate_measurement(
    plan: Plan, table: Callable[[Space], Array], generator: np.random.Generator
) -> Measurement:
    """Return a simulated measurement of a plan on public or hypothetical tables.

    ``table`` is a function that maps attributes to their table in counts, shape (n_1, ..., n_k).
    The noise has the standard deviations of the plan, but is drawn from a statistical random
    generator: the result does not protect the records of ``table`` and is not a private release.
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
    doubtful_cv : a number is doubtful if its relative error is larger.
    suppressed_cv : a number is suppressed if its relative error is larger.
    least_count : a number is suppressed if it is smaller.
    least_signal : a number is doubtful if a smaller share of it, from 0 to 1, was measured.

    The rule protects readers from unreliable numbers.  The people in the records are protected by
    the noise.  Suppression does not protect them, because a suppressed cell remains in all sums and
    can be computed from these.

    >>> QualityRule(doubtful_cv=0.4)  # doctest: +NORMALIZE_WHITESPACE
    Traceback (most recent call last):
    engine.errors.PlanError: doubtful_cv is 0.4, but must be at most suppressed_cv, which is
    0.3. Lower doubtful_cv, or raise suppressed_cv.
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
                f"doubtful_cv is {self.doubtful_cv:g}, but must be at most suppressed_cv, which is"
                f" {self.suppressed_cv:g}. Lower doubtful_cv, or raise suppressed_cv."
            )
        if not self.least_count >= 0.0 or not 0.0 <= self.least_signal <= 1.0:
            raise PlanError(
                f"least_count is {self.least_count} and least_signal is {self.least_signal}. Give a"
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
        """Return the flags of published numbers, and the reasons as keys of `REASONS`.

        Parameters
        ----------
        values : the numbers, in counts, shape (queries,).
        errors : their root mean squared errors, in counts, shape (queries,).
        signal : the share of each number that was measured, from 0 to 1, shape (queries,).

        If a number violates several thresholds, it gets the most severe flag, and the reason for
        this flag.
        """
        # The relative error is not computed as a quotient, because the number can be 0.  So 0 with
        # error 0 is not above a threshold, and 0 with a positive error is above both.
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
# Ranges of true counts by which `Uncertainty.bias` groups the cells.
COUNT_RANGES = ((0.0, 1.0), (1.0, 10.0), (10.0, 100.0), (100.0, np.inf))


@dataclass(frozen=True, kw_only=True, eq=False)
class Uncertainty:
    """Estimated errors of published tables, from an empirical Bayes bootstrap.

    Attributes
    ----------
    published : the tables.
    errors : one mapping per draw of the bootstrap.  It maps attribute sets, as positions in
        ``published.names``, to contrasts of (republished table - true table of the draw).
    truths : one mapping per draw, from attribute sets to contrasts of the true table of the draw.
    signal : mapping from attribute sets to the share of each cell that was measured, see
        `share_of_signal`.
    determined : mapping from each attribute that another one determines, according to the
        measurement, to the attribute that determines it.

    Intervals are approximate.  They have the stated confidence level on average over the cells of a
    table, not for each single cell, and only if the assumptions of the bootstrap about the true
    tables hold.  Only unbiased answers have exact intervals.
    """

    published: Published
    errors: tuple[Mapping[Axes, Array], ...] = field(repr=False)
    truths: tuple[Mapping[Axes, Array], ...] = field(repr=False)
    signal: Mapping[Axes, Array] = field(repr=False)
    determined: Mapping[str, str] = field(default_factory=dict)

    @property
    def predicted_groups(self) -> tuple[int, ...]:
        """Numbers of the groups whose published counts smaller tables predict completely.

        The noise of these groups hides any deviation from the prediction, so that no share of their
        published counts was measured.
        """
        schema = self.published.measurement.plan.schema
        predicted = []
        for number, group in enumerate(self.published.measurement.plan.workload.groups):
            axes = self.published.positions(group.attributes)
            if len(axes) < 2 or schema.is_exact(group.attributes):
                continue
            shares = self.signal.get(axes)
            if shares is None or not float(np.max(shares)) > 0.0:
                predicted.append(number)
        return tuple(predicted)

    @property
    def determined_text(self) -> str:
        """Sentence with all entries of `determined`; empty if there are none."""
        if not self.determined:
            return ""
        pairs = [f"{source} determines {name}" for name, source in self.determined.items()]
        return f"According to the measurement, {', '.join(pairs)}."

    def table_errors(self, attributes: Sequence[str]) -> Array:
        """Return the root mean squared errors of a table, in counts; shape (n_1, ..., n_k)."""
        squares = np.mean([self._assembled(e, attributes) ** 2 for e in self.errors], axis=0)
        return np.asarray(np.sqrt(squares + self._rounding(attributes) ** 2))

    def reach(self, confidence: float = 0.95) -> float:
        """Return the half-width of a confidence interval, divided by the estimated error.

        It is a quantile of Student's t distribution, because the error is estimated from few draws.
        """
        share = check_positive("confidence", confidence, below=1, error=PlanError)
        return float(scipy.special.stdtrit(len(self.errors), 0.5 + share / 2))

    def bias(self, attributes: Sequence[str]) -> pd.DataFrame:
        """Return the estimated bias and error of the cells of a table, by true count.

        There is one row per range of true counts in `COUNT_RANGES`.  Columns: true (the range),
        cells (mean number of such cells per draw), bias (mean error of these cells in counts) and
        error (root mean squared error in counts, as in `answers`), all over the draws of the
        bootstrap.  Bias and error are NaN for a range without cells.
        """
        import pandas as pd

        truth = np.array([self._assembled(t, attributes) for t in self.truths])
        errors = np.array([self._assembled(e, attributes) for e in self.errors])
        rows = []
        for low, high in COUNT_RANGES:
            # the first range also contains negative counts
            is_in_range = (truth < high) & ((truth >= low) | (low == 0.0))
            cell_errors = errors[is_in_range]
            row = {
                "true": f"{low:g} or more" if high == np.inf else f"{low:g} to {high:g}",
                "cells": is_in_range.sum() / len(truth),
                "bias": np.nan,
                "error": np.nan,
            }
            if cell_errors.size:
                row["bias"] = float(cell_errors.mean())
                row["error"] = float(np.sqrt(np.mean(cell_errors**2)))
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

        Columns: query; published (the published answer); error (its root mean squared error);
        published_low and published_high (its approximate interval); flag; reason; measured (share
        of the published answer that was measured, from 0 to 1; smaller tables predict the rest);
        answer, std, low and high (the unbiased answer with standard error and interval).

        If the flag is "suppressed", the published answer, its error and its interval are NaN.
        Published sums still include the suppressed answer.
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
        """Return the published answers to queries ``start:stop`` of any group, with errors and flags.

        The group does not have to be in the workload, see `Published.sums`.  Columns: query;
        published (the published answer); error (its root mean squared error); published_low and
        published_high (its approximate interval); flag; reason; measured (share of the published
        answer that was measured, from 0 to 1).  Numbers of suppressed answers are NaN.
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
        """Return published answers with errors and intervals, without suppressing any.

        The group does not have to be in the workload, see `Published.sums`.  Keys of the result:
        published (the published answers); error (their root mean squared errors); published_low
        and published_high (their approximate intervals).  Values are in counts, shape (queries,).
        """
        values = self.published.sums(group, start, stop)
        first, last, _ = slice(start, stop).indices(group.count)
        names = group.attributes
        last = max(first, last)
        squares = np.mean(
            [apply_group(group, self._assembled(e, names), first, last) ** 2 for e in self.errors],
            axis=0,
        )
        squares += apply_group(group, self._rounding(names), first, last) ** 2
        error = np.sqrt(squares)
        half_width = self.reach(confidence) * error
        low = values - half_width
        if self.published.fit != "none":
            low = np.maximum(low, 0.0)
        return {
            "published": values,
            "error": error,
            "published_low": low,
            "published_high": values + half_width,
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
        """Summarize the effect of publishing on every group, from released numbers only.

        There is one row per group.  Columns: attributes; family; answers (number of queries); below
        zero (number of queries whose unbiased answer is negative); published there (mean published
        answer of these queries, in counts); measured (share of the published counts that was
        measured; smaller tables predict the rest); publishable, doubtful and suppressed (shares of
        the answers with this flag).
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
            # The total is at least 1e-9, so that the share of an empty table is 0.
            share = float(np.sum(measured * values)) / max(float(values.sum()), 1e-9)
            # The share is rounded, because the last digits of sums differ from run to run.
            row |= {"measured": round(share, 6)}
            rows.append(row | {flag: float((answers["flag"] == flag).mean()) for flag in FLAGS})
        return pd.DataFrame(rows)

    def _measured_shares(self, queries: Group, first: int, last: int, values: Array) -> Array:
        """Return the column ``measured`` of `answers` for queries ``first:last``, shape (queries,).

        The share of a query is the mean of the shares of its cells, weighted by their counts.  It
        is 1 for public tables and for tables on at most one attribute, and 0 for attribute sets
        that were not measured.  For other attribute sets it is also 0 if the published answer is 0.
        ``values`` are the published answers, shape (queries,).
        """
        axes = self.published.positions(queries.attributes)
        if self.published.measurement.plan.schema.is_exact(queries.attributes):
            return np.ones(last - first)
        if axes not in self.signal:
            return np.full(last - first, 1.0 if len(axes) < 2 else 0.0)
        table = self.published.table(queries.attributes)
        cell_shares = self.published.laid_out(self.signal[axes], queries.attributes)
        measured = apply_group(queries, table * cell_shares, first, last)
        return np.divide(measured, values, out=np.zeros_like(values), where=np.abs(values) > 1e-9)

    def _assembled(self, contrasts: Mapping[Axes, Array], attributes: Sequence[str]) -> Array:
        """Return the table on ``attributes`` that has the given contrasts, in counts."""
        axes = self.published.positions(attributes)
        table = assemble_table(contrasts, axes)
        if (impossible := self.published.impossible(axes)) is not None:
            # Draws of true tables can have counts in impossible cells.
            table[impossible] = 0.0
        return self.published.laid_out(table, attributes)

    def _rounding(self, attributes: Sequence[str]) -> Array:
        """Return the integer table minus the fitted table; zeros if tables are not integer."""
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

    Tables of ``fit="none"`` are allowed only if the schema has impossible cells.  Setting these to
    0 changes the standard errors of the answers; without impossible cells, the standard errors of
    the unbiased answers are exact.

    Parameters
    ----------
    draws : number of possible true tables that are drawn, measured and published.
    progress : called with the share of the work done and a message; the estimation is cancelled if
        it returns False.
    memory_limit : largest memory of the draws in bytes.
    resume : folder for checkpoints, see `publish`; draws in it are not repeated.

    Guarantee: a deterministic function of the published tables, so that it costs no privacy.

    Raises
    ------
    PlanError : the number of draws is below 2, or the tables have ``fit="none"`` and the schema has
        no impossible cells.
    NotAnswerable : the published number of records is 0, because the noisy one is not larger than
        its standard error.
    LimitExceeded : the draws would need more than ``memory_limit`` bytes.
    """
    check_int("number of draws", draws, 2, error=PlanError)
    measurement, fit = published.measurement, published.fit
    if fit == "none" and not measurement.plan.schema.impossible:
        raise PlanError(
            'Tables of fit="none" are the unbiased answers, whose exact intervals need no'
            ' estimation. Use the unbiased answers, or publish with fit="shrunk" or "nonnegative".'
        )
    if fit != "none" and not float(published.contrasts[()]) > 0.0:
        raise NotAnswerable(
            "The published number of records is 0, because the noisy number of records is not"
            " larger than its standard error. Errors cannot be estimated. Measure with a larger"
            " budget."
        )
    cells = sum(c.size for c in published.contrasts.values())
    # per draw and cell, 8 bytes each for a possible truth and for the error
    if (needed := 16 * draws * cells) > memory_limit:
        raise LimitExceeded(
            f"{draws} draws of {cells:,} cells would need about {needed / 1e9:,.1f} GB, but the"
            f" limit is {memory_limit / 1e9:,.1f} GB. Give fewer draws, or raise memory_limit."
        )
    estimates = evidence(measurement)
    generator = np.random.default_rng(seed_of(measurement))
    report_progress = progress_share(progress)
    # Tables of fit="none" have errors that do not depend on the true tables.  So with fit="none",
    # every draw uses the published tables as true tables.
    posteriors, determined = dict[Axes, ResidualPosterior](), dict[int, Determination]()
    if fit != "none":
        determined = determined_attributes(estimates, published.contrasts)
        posteriors = residual_posteriors(estimates, published.contrasts, determined)
    # The noisy number of records and its variance; see `publish` for the two fits.
    noisy_total = (
        pooled_total(estimates) if fit == "shrunk" else (estimates.total, estimates.total_variance)
    )
    errors: list[dict[Axes, Array]] = []
    truths: list[dict[Axes, Array]] = []
    checkpoints = checkpoints_of(resume, [seed_of(measurement), fit, "errors"])
    for number in range(draws):
        report_progress(number / draws, "Simulating releases of similar tables")
        if done := checkpoints.read(f"{number}"):
            errors.append(arrays_by_axes(done, "error"))
            truths.append(arrays_by_axes(done, "truth"))
            set_state(generator, done["generator"])
            continue
        truth = draw_truth(published.contrasts, posteriors, determined, generator)
        if fit != "none" and not estimates.exact:
            # If public tables determine the number of records (``estimates.exact``), it is not
            # sampled.
            scale = draw_total(*noisy_total, generator) / float(published.contrasts[()])
            truth = {axes: scale * c for axes, c in truth.items()}
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
    report_progress(1.0, "Errors estimated")
    signal = share_of_signal(estimates, published.contrasts)
    return Uncertainty(
        published=published,
        errors=tuple(errors),
        truths=tuple(truths),
        signal=signal,
        determined={
            published.names[a]: published.names[determined[a].source] for a in sorted(determined)
        },
    )


INTERVAL_CONFIDENCE = 0.95
CRITERIA_TEXTS = {
    "distance": "share of records to move until a table is the published one, at most",
    "inside": (
        f"share of answers whose {INTERVAL_CONFIDENCE:.0%} interval holds the count, at least"
    ),
    "contradiction": (
        "typical distance from the unbiased answers of a group, in standard errors, at most"
    ),
}


@dataclass(frozen=True, kw_only=True)
class AcceptanceRule:
    """Thresholds at which synthetic records are acceptable in place of the published tables.

    Attributes
    ----------
    distance : largest allowed total variation distance between a table of the records and the
        published table.
    inside : smallest allowed share of published answers whose approximate 95% interval contains the
        count of the records.
    contradiction : largest allowed root mean square, over the answers of a group, of
        (count of the records - unbiased answer) / standard error of the unbiased answer.  The root
        mean square of the true counts would be about 1.

    >>> AcceptanceRule(distance=0.0)
    Traceback (most recent call last):
    engine.errors.PlanError: The distance was 0.0. Give a number above 0 and below 1.
    """

    distance: float = 0.05
    inside: float = 0.9
    contradiction: float = 1.5

    def __post_init__(self) -> None:
        check_positive("distance", self.distance, below=1, error=PlanError)
        check_positive("inside", self.inside, below=1, error=PlanError)
        check_positive("contradiction", self.contradiction, error=PlanError)


def acceptance(
    uncertainty: Uncertainty, records: pd.DataFrame, rule: AcceptanceRule | None = None
) -> pd.DataFrame:
    """Check synthetic records against the published tables and the unbiased answers.

    Parameters
    ----------
    uncertainty : errors of the published tables.
    records : cell codes, one column per attribute, as `Published.records` returns them.  Their
        counts are scaled to the total of the tables.
    rule : thresholds; by default those of `AcceptanceRule()`.

    Returns
    -------
    DataFrame with one row per criterion and the columns criterion (text), limit (threshold), found
    (observed value), worst (attributes of the group with the worst value; empty for the criterion
    "inside", which has one value for all groups), met (whether the limit is met) and cost (pcost,
    always 0).

    Guarantee: reads only released numbers and synthetic records, so that it costs no privacy.
    """
    import pandas as pd

    thresholds = rule or AcceptanceRule()
    published = uncertainty.published
    codes = records.reindex(columns=list(published.names), fill_value=0).to_numpy()
    scale = published.total / len(codes) if len(codes) else 0.0
    groups = published.measurement.plan.workload.groups
    criteria = pd.DataFrame(
        [_criteria(uncertainty, codes, scale, number) for number in range(len(groups))]
    )
    rows = []
    for name, text in CRITERIA_TEXTS.items():
        worst = int(criteria[name].argmax())
        limit = float(getattr(thresholds, name))
        where = set_name(groups[worst].attributes)
        value = float(criteria[name][worst])
        if name == "inside":
            value = float(criteria[name].sum()) / sum(group.count for group in groups)
            where = ""
        met = value >= limit if name == "inside" else value <= limit
        rows.append(
            {
                "criterion": text,
                "limit": limit,
                "found": value,
                "worst": where,
                "met": met,
                "cost": 0.0,
            }
        )
    return pd.DataFrame(rows)


def _contradiction(counts: Array, answers: pd.DataFrame) -> float:
    """Return the root mean square of (count - unbiased answer) / standard error.

    ``counts`` are those of the synthetic records for the queries of ``answers``, shape (queries,).
    Answers with standard error 0 are left out; if no others exist, the result is 0.
    """
    std = answers["std"].to_numpy()
    ratios = (counts - answers["answer"].to_numpy())[std > 0.0] / std[std > 0.0]
    return float(np.sqrt(np.mean(ratios**2))) if ratios.size else 0.0


def _criteria(errors: Uncertainty, records: Index, scale: float, number: int) -> dict[str, float]:
    """Return the observed values of the criteria of `AcceptanceRule` for one group of queries.

    The value of ``inside`` is a number of answers, not a share.

    Parameters
    ----------
    records : cell codes, shape (records, attributes).
    scale : total of the tables divided by the number of records.
    number : position of the group in the workload.
    """
    published = errors.published
    group = published.measurement.plan.workload.groups[number]
    schema = published.measurement.plan.schema
    axes = published.positions(group.attributes)
    table = scale * table_of(records, axes, schema.sizes(published.names)).astype(float)
    record_table = published.laid_out(table, group.attributes)
    answers = published.measurement.answers(number)
    numbers = errors.numbers(group, confidence=INTERVAL_CONFIDENCE)
    counts = apply_group(group, record_table, 0, group.count)
    is_inside = (counts >= numbers["published_low"]) & (counts <= numbers["published_high"])
    return {
        "distance": (
            0.5
            * float(np.abs(record_table - published.table(group.attributes)).sum())
            / published.total
        ),
        "inside": float(np.sum(is_inside)),
        "contradiction": _contradiction(counts, answers),
    }
