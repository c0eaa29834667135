"""Shrinkage of tables towards maximum-entropy references.

Tables are fitted from the smallest set of attributes up, each near its noisy cells and near a
reference, with the fitted tables on fewer attributes as margins:

    min  |T - That|^2 / 2 v + KL(T | m) / tau     subject to the margins of T,

where That are the noisy cells, v is their variance and tau m the dispersion about the reference m.
The stationarity condition T + s log(T / m) = That - u, with s = v / tau and multipliers u of the
margins, has the solution

    T = s omega((That - u) / s + log(m / s)),

which is always positive; omega is the omega function of Wright.  The reference m is the table of
largest entropy that has the margins: for pairs the product of shares, for larger sets the limit of
iterative proportional fitting.

A better reference m of a pair is predicted through third attributes (`mediators`), from a first fit
of all pairs towards independence, and scaled to the margins.

tau of pairs is estimated jointly: the squared distance of a pair from its reference, less that of
the noise, is an unbiased estimate of its squared deviation, and the deviations of all pairs have
one prior, estimated by nonparametric maximum likelihood (empirical Bayes).  A pair without signal
therefore keeps its reference.  Stein's unbiased risk estimate chooses multiples of tau, so that a
table with a few large deviations from the reference follows its noisy cells.  If few pairs have
signal, it chooses only for those of large deviation.

If the noise of a table has a precision matrix (`metric_of`), |That - T|^2 / v is replaced by
the squared distance in standard errors, and the problem is solved by accelerated proximal gradient
steps.  There, tau is increased until the distance to the measured cells is at most that of linear
shrinkage.

Consistency.  Fitted tables have no negative cells, but for some sets no non-negative table has all
the margins. Proportional fitting reaches the margins of most tables.  Only the remaining ones are
projected jointly with all smaller tables (`nonnegative_projection`); all others are then scaled to
the projected margins.  A table for which scaling fails is added to the joint projection.

Source of the omega function: Lawrence, Corless and Jeffrey, ACM TOMS algorithm 917.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt
import scipy

from engine._arrays import Array
from engine.postprocess.checkpoint import (
    NO_CHECKPOINTS,
    Checkpoints,
    arrays_by_axes,
    arrays_by_name,
)
from engine.postprocess.mediators import PairPredictions, likelihood_mean
from engine.postprocess.nonnegative_projection import (
    AGREEING,
    mix_with_uniform,
    project_nonnegative,
)
from engine.postprocess.partial_pooling import (
    TRIPLE_ROUNDS,
    PooledResidual,
    better_pairs,
    single_tables,
)
from engine.postprocess.residual_estimates import (
    Evidence,
    Metric,
    ResidualEstimate,
    all_sets,
    along_axes,
    assemble_table,
    contrast,
    largest_subsets,
    maximal_sets,
)
from engine.progress import Listener
from engine.residuals import Axes

ENTROPY_SWEEPS = 30  # largest number of passes over the margins of one table
MAX_STEPS = 200  # largest number of proximal gradient steps
STEP_TOLERANCE = 1e-4  # squared length of the last step per direction, in squared standard errors
# allowed error of margins as a share of the records; the joint projection removes it
MARGIN_TOLERANCE = 1e-4
# the same for pairs, whose margins are replaced by the one-way tables when tables are assembled
PAIR_TOLERANCE = 1e-7
# the estimate of tau is multiplied by one of these factors, because large cells dominate it
TAU_FACTORS = (1.4, 4.0, 12.0)
# the same, for tables whose noise has a precision matrix
TAU_FACTORS_METRIC = (1.0, 4.0, 16.0, 64.0)
UNDERFLOW = 1e-250  # sums of derivatives below this are 0 up to underflow
# unless the expected deviation is given, `shrink_table` returns the reference if the squared
# distance of the noisy residual from it exceeds the expectation for pure noise by fewer standard
# deviations than this; the keys are numbers of attributes
MIN_SIGNAL_SD = {2: 1.0}
MIN_SIGNAL_SD_DEFAULT = 2.0
# the risk estimate chooses tau for all pairs if the squared distances of at least the share
# MIN_SIGNAL_SHARE of them exceed this expectation by SIGNIFICANT_SD standard deviations; otherwise
# only for pairs whose distance exceeds it by MIN_CHOICE_SD
MIN_SIGNAL_SHARE, SIGNIFICANT_SD, MIN_CHOICE_SD = 0.25, 2.0, 6.0
# values that the prior of a squared deviation is concentrated on, as shares of its upper bound
DEVIATION_SHARES = np.concatenate([[0.0], np.geomspace(1e-7, 1.0, 43)])
PRIOR_STEPS = 20  # EM steps that estimate the prior
# expected squared deviation, as a multiple of the variance of one cell, that counts as 0
NEGLIGIBLE_EXCESS = 1e-3

# mask of the possible cells, shape (n_1, ..., n_k); None if all cells are possible
Possible = npt.NDArray[np.bool_] | None


def max_entropy_table(
    axes: Axes, margins: Mapping[Axes, Array], possible: Possible = None
) -> Array:
    """Return the table on ``axes`` of largest entropy among those with the given margins.

    Parameters
    ----------
    margins : mapping from attribute sets to tables: from every subset of ``axes`` with one attribute
        fewer, and from ``axes[:-2]``.
    possible : mask of the possible cells, shape (n_1, ..., n_k); impossible cells are 0.

    >>> max_entropy_table((0, 1), {(0,): np.array([1.0, 3.0]), (1,): np.array([2.0, 2.0]), (): np.array(4.0)}).tolist()
    [[0.5, 0.5], [1.5, 1.5]]
    """
    # start with the last two attributes conditionally independent: two margins are already exact
    first, second, rest = axes[:-1], (*axes[:-2], axes[-1]), axes[:-2]
    product = along_axes(margins[first], first, axes) * along_axes(margins[second], second, axes)
    table = _ratio(product, along_axes(np.asarray(margins[rest], dtype=float), rest, axes))
    if possible is not None:
        table = np.where(possible, table, 0.0)
    elif len(axes) == 2:
        return table
    total = float(margins[first].sum())
    return fit_margins(
        table, axes, margins, lambda gap: float(np.abs(gap).sum()) <= MARGIN_TOLERANCE * total
    )


def fit_margins(
    table: Array,
    axes: Axes,
    margins: Mapping[Axes, Array],
    near: Callable[[Array], bool],
    sweeps: int = ENTROPY_SWEEPS,
) -> Array:
    """Scale a table to margins by iterative proportional fitting, in place; return it.

    Parameters
    ----------
    table : start, shape (n_1, ..., n_k).
    margins : mapping from the subsets of ``axes`` with one attribute fewer to tables.
    near : returns whether the differences of one margin are small enough to stop.
    sweeps : maximum number of passes over all margins.

    The limit is the table with these margins of least Kullback-Leibler divergence from the start.
    """
    for _ in range(sweeps):
        done = True
        for subset in largest_subsets(axes):
            sums = table.sum(axis=_other_axes(axes, subset))
            done &= near(sums - margins[subset])
            table *= along_axes(_ratio(margins[subset], sums), subset, axes)
        if done:
            break
    return table


def shrink_table(
    axes: Axes,
    estimate: ResidualEstimate | None,
    margins: Mapping[Axes, Array],
    total: float,
    possible: Possible = None,
    *,
    reference: Array | None = None,
    expected_excess: float | None = None,
    chooses_tau: bool = True,
    tolerance: float | None = None,
) -> Array:
    """Return the table on ``axes`` that is shrunk from its noisy cells towards its reference.

    Parameters
    ----------
    estimate : noisy residual; None if the set was not measured.
    margins : mapping from the subsets of ``axes`` with one attribute fewer to fitted tables, which
        are the margins of the result.
    total : number of records.
    possible : mask of the possible cells, for the maximum-entropy table.
    reference : table with these margins, shape (n_1, ..., n_k); by default the maximum-entropy
        table.
    expected_excess : squared deviation from the reference in counts^2, see `expected_deviations`.
        By default it is estimated from this table alone, and 0 if it is not significant.
    chooses_tau : whether Stein's risk estimate chooses the factor of tau in `TAU_FACTORS`;
        otherwise it is the first one.
    tolerance : error of the margins, as a share of the records; by default rounding only for pairs,
        and `MARGIN_TOLERANCE` for larger sets.

    Returns the reference itself if the noisy residual does not deviate from it significantly, or was
    not measured.  Shape (n_1, ..., n_k).  If the noise has a precision matrix, tau follows from this
    table alone, and ``chooses_tau`` and ``tolerance`` have no effect.
    """
    table = max_entropy_table(axes, margins, possible) if reference is None else reference
    if estimate is None or estimate.rank == 0:
        return table
    gap = estimate.cells - estimate.projection.of(table)
    excess, errors = estimate.surplus(gap)
    if expected_excess is None:
        if errors < MIN_SIGNAL_SD.get(len(axes), MIN_SIGNAL_SD_DEFAULT):
            return table
    elif expected_excess <= NEGLIGIBLE_EXCESS * estimate.variance:
        return table
    if estimate.metric is not None:
        fit, tau = table, excess / float(np.sum(estimate.metric.of_cells * table))
        # squared distance from the noisy residual that linear shrinkage to the reference would have
        expected = estimate.rank**2 / (estimate.rank + excess)
        for factor in TAU_FACTORS_METRIC:
            fit = _metric_fit(table, fit, estimate, estimate.metric, factor * tau, axes, margins)
            if estimate.metric.squared(estimate.projection.of(fit) - estimate.cells) <= expected:
                break
        return fit
    excess = excess * estimate.variance if expected_excess is None else expected_excess
    best, least = table, math.inf
    for factor in TAU_FACTORS if chooses_tau else TAU_FACTORS[:1]:
        s = estimate.variance * total / (factor * excess)
        fit = _entropic_fit(table, table + gap, s, axes, margins, tolerance)
        risk = _risk(fit, table, gap, s, estimate, excess / total)
        if risk < least:
            best, least = fit, risk
    return best


def expected_deviations(
    residuals: Mapping[Axes, ResidualEstimate], references: Mapping[Axes, Array]
) -> dict[Axes, float]:
    """Return expected squared deviations of tables from their references, in counts^2.

    These are posterior means given the noisy residuals, by attribute set.  The deviations, as
    shares of their upper bounds, have the same prior for all tables, estimated by nonparametric
    maximum likelihood.

    >>> from engine.postprocess.residual_estimates import MeasuredProjection
    >>> projection = MeasuredProjection(centers=(np.full(2, 0.5), np.full(2, 0.5)))
    >>> cells = np.array([[1.0, -1.0], [-1.0, 1.0]])
    >>> residuals = {(0, 1): ResidualEstimate(cells=cells, variance=9.0, rank=1, projection=projection)}
    >>> expected_deviations(residuals, {(0, 1): np.full((2, 2), 25.0)})[0, 1] < 0.1
    True
    """
    if not references:
        return {}
    excesses = np.array(
        [
            residuals[a].surplus(residuals[a].cells - residuals[a].projection.of(m))[0]
            for a, m in references.items()
        ]
    )
    bounds = np.array(
        [min(float(np.sum(m.sum(axis=k) ** 2)) for k in range(m.ndim)) for m in references.values()]
    )
    variances = np.array([residuals[a].variance for a in references])
    ranks = np.array([residuals[a].rank for a in references], dtype=float)
    # squared deviations in squared standard errors, shape (tables, shares)
    means = np.multiply.outer(bounds / variances, DEVIATION_SHARES)
    spreads = 2.0 * ranks[:, None] + 4.0 * means
    logs = -0.5 * ((excesses[:, None] - means) ** 2 / spreads + np.log(spreads))
    likelihood = np.exp(logs - logs.max(axis=1, keepdims=True))
    prior = np.full(len(DEVIATION_SHARES), 1.0 / len(DEVIATION_SHARES))
    for _ in range(PRIOR_STEPS):
        posterior = prior * likelihood
        posterior /= posterior.sum(axis=1, keepdims=True)
        prior = posterior.mean(axis=0)
    return dict(zip(references, (bounds * (posterior @ DEVIATION_SHARES)).tolist(), strict=True))


def _metric_fit(
    table: Array,
    start: Array,
    estimate: ResidualEstimate,
    metric: Metric,
    tau: float,
    axes: Axes,
    margins: Mapping[Axes, Array],
) -> Array:
    """Return the shrunk table if the noise has a precision matrix, by proximal gradient steps.

    Parameters
    ----------
    table : reference, whose dispersion is ``tau`` times its cells.
    start : first table of the search.
    margins : margins of the result, as in `shrink_table`.
    """
    step = 1.0 / metric.steepest
    current = point = start
    momentum = 1.0
    for _ in range(MAX_STEPS):
        slope = metric.of(estimate.projection.of(point) - estimate.cells)
        proposal = _entropic_fit(
            table, point - step * slope, step / tau, axes, margins, MARGIN_TOLERANCE
        )
        change = proposal - current
        # restart the momentum where it opposes the gradient
        previous = 1.0 if float(np.sum((point - proposal) * change)) > 0.0 else momentum
        momentum = (1.0 + math.sqrt(1.0 + 4.0 * previous * previous)) / 2.0
        point, current = proposal + (previous - 1.0) / momentum * change, proposal
        if metric.squared(change) <= STEP_TOLERANCE * estimate.rank:
            break
    return current


def _risk(
    fit: Array, table: Array, gap: Array, s: float, estimate: ResidualEstimate, tau: float
) -> float:
    """Return Stein's unbiased estimate of the weighted squared error of ``fit``, up to a constant.

    ``table`` is the reference m, ``gap`` the noisy residual minus that of the reference.  The fit
    used ``s`` = v / tau, see the module docstring; the weight of a cell is 1 / (v + tau m) with the
    argument ``tau``.
    """
    weights = 1.0 / (estimate.variance + tau * table)
    slope = fit / (fit + s)
    distance = estimate.projection.of(fit - table) - gap
    return float(
        np.sum(
            weights * (distance**2 + 2.0 * estimate.variance * slope * estimate.rank / table.size)
        )
    )


def _entropic_fit(
    table: Array,
    noisy: Array,
    s: float,
    axes: Axes,
    margins: Mapping[Axes, Array],
    tolerance: float | None = None,
) -> Array:
    """Return the table near noisy cells and a reference that has given margins, (n_1, ..., n_k).

    It is s omega((noisy - u) / s + log(table / s)) with the reference ``table`` and the omega
    function of Wright.  The multipliers u, one per cell of a margin, are found by Newton steps, one
    margin after the other, until the margins are met up to a share ``tolerance`` of the records.
    """
    with np.errstate(divide="ignore"):
        argument = noisy / s + np.log(table / s)
    total, max_sweeps = float(table.sum()), ENTROPY_SWEEPS
    if len(axes) > 2:
        tolerance = tolerance or MARGIN_TOLERANCE
    else:  # sweeps over the margins of pairs are fast: continue to rounding errors
        tolerance, max_sweeps = tolerance or 1e-13, 10 * ENTROPY_SWEEPS
    for sweep in range(max_sweeps):
        margin_error = 0.0
        for subset in largest_subsets(axes):
            summed_axes, margin = _other_axes(axes, subset), margins[subset]
            values = scipy.special.wrightomega(argument)
            sums = s * values.sum(axis=summed_axes)
            slopes = (values / (1.0 + values)).sum(axis=summed_axes)
            margin_error = max(margin_error, float(np.abs(sums - margin).sum()))
            # Newton step for the logarithm of the sum, which is nearly concave in u
            regular = (margin > 0.0) & (slopes > UNDERFLOW)
            steps = np.zeros_like(sums)
            steps[regular] = (
                sums[regular] * (np.log(sums[regular]) - np.log(margin[regular])) / slopes[regular]
            )
            # where all cells of a sum underflow, shift the largest one to the margin
            if (underflowed := (margin > 0.0) & ~regular).any():
                top = argument.max(axis=summed_axes)
                underflowed &= np.isfinite(top)
                steps[underflowed] = s * (top[underflowed] - np.log(margin[underflowed] / s))
            argument -= along_axes(steps, subset, axes) / s
        if sweep and margin_error <= tolerance * total:
            break
    return np.asarray(s * scipy.special.wrightomega(argument))


def _other_axes(axes: Axes, subset: Axes) -> tuple[int, ...]:
    """Return the positions in ``axes`` of the attributes that are not in ``subset``."""
    return tuple(i for i, a in enumerate(axes) if a not in subset)


def _ratio(numerator: Array, denominator: Array) -> Array:
    """Return the quotient of two arrays, 0 where the denominator is not positive."""
    shape = np.broadcast_shapes(numerator.shape, denominator.shape)
    positive = np.broadcast_to(denominator > 0.0, shape)
    return np.divide(numerator, denominator, out=np.zeros(shape), where=positive)


# tolerance for margins in `make_consistent`, as a share of its tolerance for negative cells
MARGIN_TOLERANCE_SHARE = 0.2
SCALING_SWEEPS = 100  # passes over the margins of one table
REFERENCE_TOLERANCE = 1e-6  # error of the margins of references, as a share of the records
MAX_SCALING_ROUNDS = 6  # rounds after which all tables are projected jointly


def shrunk_total(total: float, variance: float) -> float:
    """Return the noisy number of records, shrunk towards 0 by the positive-part James-Stein rule.

    The shrinkage matters only for totals of the size of their noise: a total of 50 standard errors
    changes by a fiftieth of a standard error.

    >>> shrunk_total(10.0, 4.0), shrunk_total(-3.0, 4.0)
    (9.6, 0.0)
    """
    return max(0.0, total - variance / total) if total > 0.0 else 0.0


def shrunk_contrasts(
    evidence: Evidence, total: float, tell: Listener, checkpoints: Checkpoints = NO_CHECKPOINTS
) -> dict[Axes, Array]:
    """Shrink all tables towards their references, smallest sets first; return their contrasts.

    ``total`` is the number of records, above 0.  Overlapping tables agree up to the tolerance of
    the fits; `make_consistent` removes the remaining differences.  The result maps attribute sets to
    contrasts, in the shapes of their tables.
    """
    by_order = {
        k: [axes for axes in evidence.sets if len(axes) == k]
        for k in range(len(evidence.sets[-1]) + 1)
    }
    done = checkpoints.read("low")
    tables = arrays_by_axes(done) if done else _low_order_tables(evidence, total, by_order, tell)
    checkpoints.write("low", arrays_by_name(tables))
    out = {axes: contrast(table) for axes, table in tables.items()}
    upper = [axes for axes in evidence.sets if len(axes) > 2]
    margin_sets = {subset for axes in upper for subset in largest_subsets(axes)}
    for number, axes in enumerate(upper):
        margins = {subset: tables[subset] for subset in (*largest_subsets(axes), axes[:-2])}
        table = evidence.exact.get(axes)
        if table is None:
            if done := checkpoints.read(name := f"fit {number}"):
                table = done["table"]
            else:
                estimate, possible = evidence.residuals.get(axes), evidence.possible.get(axes)
                table = shrink_table(axes, estimate, margins, total, possible)
                checkpoints.write(name, {"table": table})
        if axes in margin_sets:
            tables[axes] = table
        out[axes] = contrast(table)
        tell(0.1 + 0.3 * (number + 1) / len(upper), "Fitting tables")
    return out


def _low_order_tables(
    estimates: Evidence, total: float, by_order: dict[int, list[Axes]], tell: Listener
) -> dict[Axes, Array]:
    """Return the fitted tables on at most two attributes.

    The noisy residuals of triples improve those of pairs.  ``by_order`` maps a number of attributes
    to the attribute sets of that size.
    """
    residuals = {
        a: (estimates.residuals[a].cells, estimates.residuals[a].variance)
        for a in by_order.get(2, [])
        if _is_plain(estimates, a)
    }
    tables: dict[Axes, Array] = {(): np.array(total)}
    tables |= _one_and_two_way(estimates, total, tables, by_order, residuals)
    triples = [axes for axes in by_order.get(3, []) if _is_plain(estimates, axes)]
    if triples:
        for _ in range(TRIPLE_ROUNDS):
            singles = {a: tables[a] for a in by_order[1]}
            pairs = {a: tables[a] for a in by_order[2]}
            residuals = better_pairs(estimates, total, singles, pairs, triples)
            tables |= _two_way(estimates, total, tables, by_order[2], residuals)
            tell(0.1, "Deriving pairs from triples")
        tables |= _one_and_two_way(estimates, total, tables, by_order, residuals)
    refitted = [axes for axes in by_order.get(2, []) if axes in residuals]
    mediated = _mediator_references(estimates, tables, refitted, residuals)
    return tables | _two_way(estimates, total, tables, refitted, residuals, mediated)


def _mediator_references(
    estimates: Evidence,
    tables: Mapping[Axes, Array],
    pairs: Iterable[Axes],
    residuals: Mapping[Axes, PooledResidual],
) -> dict[Axes, Array]:
    """Return a mapping from pairs to references that are predicted through third attributes.

    ``tables`` are fitted tables, ``residuals`` pooled residuals of pairs.  A reference has the
    margins of the fitted one-way tables; pairs without a prediction, with impossible cells or with
    a public table have none.
    """
    predictions, out = PairPredictions(tables), dict[Axes, Array]()
    for axes in pairs:
        if axes in estimates.possible or axes in estimates.exact:
            continue
        if not (candidates := predictions.candidates(*axes)):
            continue
        margins = {subset: tables[subset] for subset in (*largest_subsets(axes), ())}
        estimate = _pooled_estimate(estimates.residuals[axes], axes, residuals)
        mean = likelihood_mean([max_entropy_table(axes, margins), *candidates], estimate)
        near = partial(_within, allowed=REFERENCE_TOLERANCE * float(tables[()]))
        out[axes] = fit_margins(mean, axes, margins, near)
    return out


def _pooled_estimate(
    estimate: ResidualEstimate, axes: Axes, residuals: Mapping[Axes, PooledResidual]
) -> ResidualEstimate:
    """Return ``estimate`` with cells and variance replaced by those of ``residuals``, if any."""
    if axes not in residuals:
        return estimate
    return replace(estimate, cells=residuals[axes][0], variance=residuals[axes][1])


def make_consistent(
    evidence: Evidence,
    contrasts: dict[Axes, Array],
    tolerance: float,
    tell: Listener,
    checkpoints: Checkpoints = NO_CHECKPOINTS,
) -> dict[Axes, Array]:
    """Change the contrasts of fitted tables so that these agree and have no negative cells.

    Returns ``contrasts``, which change in place.  ``tolerance`` is the share of uniform tables that
    may be mixed in.  The schema must have no impossible cells and no public tables.

    Guarantee: every table is at least 0, up to the rounding of sums.
    """
    total, margin_tolerance = float(contrasts[()]), MARGIN_TOLERANCE_SHARE * tolerance
    joint_sets = [axes for axes in evidence.tables if len(axes) <= 2]
    scaled_sets = [axes for axes in evidence.tables if len(axes) > 2]
    scaled_margins = {subset for axes in scaled_sets for subset in largest_subsets(axes)}
    # project some sets jointly, scale the tables on others to the projected margins, and repeat with
    # the tables for which scaling failed among the joint sets
    for number in itertools.count():
        # the number of rounds is unknown, so each round takes half of the remaining progress
        low, share = 1.0 - 0.5**number, 0.5 ** (number + 1)
        projected_sets = maximal_sets([*joint_sets, *scaled_margins])
        before = {axes: contrasts[axes] for axes in all_sets(tuple(projected_sets))}
        tolerance = margin_tolerance if scaled_sets else tolerance
        round_checkpoints = checkpoints.of_part(f"agree {number}")
        contrasts |= project_nonnegative(
            {axes: c.copy() for axes, c in before.items()},
            projected_sets,
            evidence.sizes,
            tolerance,
            _part(tell, low, share),
            checkpoints=round_checkpoints,
        )
        failed = []
        for axes in scaled_sets:
            tell(low + share, AGREEING)
            table = np.maximum(assemble_table({**before, axes: contrasts[axes]}, axes), 0.0)
            margins = {
                subset: assemble_table(contrasts, subset) for subset in largest_subsets(axes)
            }
            if done := round_checkpoints.read(name := "on " + ",".join(map(str, axes))):
                contrasts[axes] = done["contrast"]
            else:
                contrasts[axes] = contrast(
                    fit_margins(
                        table,
                        axes,
                        margins,
                        partial(_within, allowed=margin_tolerance * total),
                        SCALING_SWEEPS,
                    )
                )
                round_checkpoints.write(name, {"contrast": contrasts[axes]})
            if -float(assemble_table(contrasts, axes).min()) * table.size > tolerance * total:
                failed.append(axes)
        if not failed:
            break
        joint_sets += failed if number < MAX_SCALING_ROUNDS else scaled_sets
        scaled_sets = [axes for axes in scaled_sets if axes not in joint_sets]
    return mix_with_uniform(contrasts, evidence.tables, {}, {}, ())


def _part(tell: Listener, low: float, share: float) -> Listener:
    """Return a progress listener for a part of the work, from ``low`` to ``low + share``."""
    return lambda done, words: tell(low + share * done, words)


def _within(gap: Array, allowed: float) -> bool:
    """Return whether the largest difference times the number of cells is at most ``allowed``.

    Differences are those of the cells of one margin, in counts.
    """
    return float(np.abs(gap).max(initial=0.0)) * gap.size <= allowed


def _is_plain(estimates: Evidence, axes: Axes) -> bool:
    """Return whether the complete residual on a set was measured, with noise of equal variances."""
    return (
        axes in estimates.residuals
        and estimates.residuals[axes].projection.plain
        and estimates.residuals[axes].metric is None
    )


def _one_and_two_way(
    estimates: Evidence,
    total: float,
    tables: dict[Axes, Array],
    by_order: dict[int, list[Axes]],
    residuals: dict[Axes, PooledResidual],
) -> dict[Axes, Array]:
    """Return the fitted one-way and two-way tables, in counts.

    ``residuals`` are those of pairs, which are also used as measurements of single attributes.
    """
    singles = single_tables(estimates, total, residuals)
    return singles | _two_way(estimates, total, tables | singles, by_order.get(2, []), residuals)


def _two_way(
    estimates: Evidence,
    total: float,
    tables: dict[Axes, Array],
    pairs: list[Axes],
    residuals: dict[Axes, PooledResidual],
    mediated: Mapping[Axes, Array] | None = None,
) -> dict[Axes, Array]:
    """Return a mapping from pairs to their tables in counts, each shrunk towards a reference.

    Parameters
    ----------
    tables : fitted tables on at most one attribute.
    residuals : mapping from pairs, whose complete residuals were measured, to pooled residuals.
    mediated : mapping from pairs to references; other pairs are shrunk towards independence.  None
        for a first fit, in which the risk estimate does not choose tau of pairs in ``residuals``.
    """
    references, pooled = dict(mediated or {}), dict[Axes, ResidualEstimate]()
    out = {axes: estimates.exact[axes] for axes in pairs if axes in estimates.exact}
    fitted = [axes for axes in pairs if axes not in out]
    margins = {
        axes: {subset: tables[subset] for subset in (*largest_subsets(axes), ())} for axes in fitted
    }
    for axes in fitted:
        if axes in estimates.residuals:
            pooled[axes] = _pooled_estimate(estimates.residuals[axes], axes, residuals)
        if axes not in references:
            possible = estimates.possible.get(axes)
            references[axes] = max_entropy_table(axes, margins[axes], possible)
    plain = {axes: references[axes] for axes in fitted if axes in residuals}
    excesses = expected_deviations(pooled, plain)
    errors = {
        a: pooled[a].surplus(pooled[a].cells - pooled[a].projection.of(m))[1]
        for a, m in plain.items()
    }
    significant = sum(e >= SIGNIFICANT_SD for e in errors.values())
    choice_threshold = MIN_CHOICE_SD
    if significant >= MIN_SIGNAL_SHARE * len(errors):
        choice_threshold = -math.inf
    for axes in fitted:
        deviates = mediated is not None and errors.get(axes, 0.0) >= choice_threshold
        out[axes] = shrink_table(
            axes,
            pooled.get(axes),
            margins[axes],
            total,
            reference=references[axes],
            expected_excess=excesses.get(axes),
            chooses_tau=deviates or axes not in plain,
            tolerance=PAIR_TOLERANCE,
        )
    return out
