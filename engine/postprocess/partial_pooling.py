"""Partial pooling: estimates of small tables from the residuals of larger ones.

Notation: N is the number of records, T_A the table on the attributes A, p_i = T_i / N, pi_i the
center of attribute i, q_i = p_i - pi_i, r_A the residual on A, and C_ij = T_ij - N p_i p_j.

If attributes i and j are independent, the residual of the pair is (T_i - N pi_i) (x) q_j.  A
measured pair whose q_j is large therefore also measures the one-way table T_i.  Similarly, without
a three-way interaction, T_ijk = N p_i p_j p_k + C_ij (x) p_k + C_ik (x) p_j + C_jk (x) p_i, and the
residual of the triple is r_ij (x) q_k + C_ik (x) q_j + C_jk (x) q_i, which measures r_ij.

These estimates are averages over cells with weights 1 / (v + tau m), where v is the variance of the
noise and tau m the variance of a true cell about its value m under the model.  tau of a pair
follows from its expected squared deviation from independence (see below), and tau of a triple
from its own noisy residual.

**Expected deviations from independence.**  One noisy table says little about its own deviation if
its noise is large.  All tables together say more, so their deviations get a common prior, which is
estimated from all of them (empirical Bayes).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import scipy

from engine._arrays import Array
from engine.postprocess.residual_estimates import Evidence, ResidualEstimate, spread_along
from engine.residuals import Axes

# The prior in `expected_deviations` is a distribution over these values of the ratio (squared
# deviation of a true table from its reference) / (upper bound on this deviation).
DEVIATION_SHARES = np.concatenate([[0.0], np.geomspace(1e-7, 1.0, 43)])
# `_simple_priors` has one lognormal prior of the ratio per median in PRIOR_MEDIANS, and one mixture
# per probability in ZERO_PROBABILITIES.  In a mixture, the ratio is 0 with this probability and
# otherwise lognormal with the last median.  When the prior is estimated, the simple priors count as
# much as PRIOR_TABLES tables.  The values were chosen on eight real tables.
PRIOR_MEDIANS, PRIOR_LOG_SD, ZERO_PROBABILITIES = (0.002, 0.01), 1.8, (0.8, 0.97, 1.0)
PRIOR_TABLES = 60.0
SMALLEST_SQUARE = 1e-300  # replaces smaller squares and likelihoods, whose logarithm is infinite
PRIOR_STEPS = 20  # EM steps that estimate the prior


def expected_deviations(
    residuals: Mapping[Axes, ResidualEstimate], references: Mapping[Axes, Array]
) -> dict[Axes, float]:
    """Return the expected squared deviations of true tables from their references, in counts^2.

    The result has posterior means given the noisy residuals.  The ratio of each squared deviation
    to an upper bound, which follows from the reference, has the same prior for all tables.  The
    prior is estimated by penalized maximum likelihood, see `_simple_priors`.

    Parameters
    ----------
    residuals : mapping from attribute sets to noisy residuals.
    references : mapping from attribute sets to references in counts, for which deviations are
        returned.

    >>> from engine.postprocess.residual_estimates import MeasuredProjection
    >>> projection = MeasuredProjection(centers=(np.full(2, 0.5), np.full(2, 0.5)))
    >>> cells = np.array([[20.0, -20.0], [-20.0, 20.0]])
    >>> residuals = {(0, 1): ResidualEstimate(cells=cells, variance=0.01, rank=1, projection=projection)}
    >>> round(expected_deviations(residuals, {(0, 1): np.full((2, 2), 25.0)})[0, 1], -2)
    1600.0
    """
    if not references:
        return {}
    excesses = np.array(
        [
            residuals[a].noise_excess(residuals[a].cells - residuals[a].projection.of(m))[0]
            for a, m in references.items()
        ]
    )
    bounds = np.array(
        [min(float(np.sum(m.sum(axis=k) ** 2)) for k in range(m.ndim)) for m in references.values()]
    )
    variances = np.array([residuals[a].variance for a in references])
    ranks = np.array([residuals[a].rank for a in references], dtype=float)
    # ``means`` has the squared deviation of each table for each ratio in DEVIATION_SHARES, in
    # squared standard errors, shape (tables, ratios).
    means = np.multiply.outer(bounds / variances, DEVIATION_SHARES)
    logs = _log_likelihood((excesses + ranks)[:, None], means, ranks[:, None])
    likelihood = np.exp(logs - logs.max(axis=1, keepdims=True))
    # ``base`` is a weighted mean of the simple priors.  The weight of a simple prior is the
    # likelihood of all tables under it.
    simple_priors = _simple_priors()
    logs = np.log(np.maximum(likelihood @ simple_priors.T, SMALLEST_SQUARE)).sum(axis=0)
    weights = np.exp(logs - logs.max())
    base = weights @ simple_priors / weights.sum()
    prior = base
    for _ in range(PRIOR_STEPS):
        counts = _posterior(prior, likelihood).sum(axis=0)
        prior = (counts + PRIOR_TABLES * base) / (len(excesses) + PRIOR_TABLES)
    posterior = _posterior(prior, likelihood)
    return dict(zip(references, (bounds * (posterior @ DEVIATION_SHARES)).tolist(), strict=True))


def _simple_priors() -> Array:
    """Return simple priors of deviations: probabilities of `DEVIATION_SHARES`, one prior per row.

    The constants `PRIOR_MEDIANS` and `ZERO_PROBABILITIES` describe the rows.
    """
    lognormal = np.zeros((len(PRIOR_MEDIANS), len(DEVIATION_SHARES)))
    for row, median in zip(lognormal, PRIOR_MEDIANS, strict=True):
        row[1:] = np.exp(-0.5 * (np.log(DEVIATION_SHARES[1:] / median) / PRIOR_LOG_SD) ** 2)
    lognormal /= lognormal.sum(axis=1, keepdims=True)
    with_zero = np.outer(1.0 - np.array(ZERO_PROBABILITIES), lognormal[-1])
    with_zero[:, 0] = ZERO_PROBABILITIES
    return np.concatenate([lognormal, with_zero])


def _posterior(prior: Array, likelihood: Array) -> Array:
    """Return the posterior distribution of each row of ``likelihood``, shape (tables, shares)."""
    posterior = prior * likelihood
    return np.asarray(posterior / posterior.sum(axis=1, keepdims=True))


def _log_likelihood(squared: Array, noncentrality: Array, rank: Array) -> Array:
    """Return the approximate log density of noncentral chi-squared variables, up to a constant.

    The noncentral distribution is replaced by the multiple of a chi-squared distribution that has
    the same mean and variance (Patnaik).  The upper tail of a normal distribution would be too
    light, so that large noise would count as signal.

    Parameters
    ----------
    squared : the variables, at least 0.
    noncentrality, rank : squared length of the mean, and degrees of freedom.
    """
    mean, half_variance = rank + noncentrality, rank + 2.0 * noncentrality
    scale, half_degrees = half_variance / mean, 0.5 * mean**2 / half_variance
    scaled = np.maximum(0.5 * squared / scale, SMALLEST_SQUARE)
    return np.asarray(
        (half_degrees - 1.0) * np.log(scaled)
        - scaled
        - scipy.special.gammaln(half_degrees)
        - np.log(scale)
    )


# An estimate from larger tables counts as biased if its squared distance from the measured estimate
# exceeds the expectation of this distance by more than this number of standard deviations.
BIAS_THRESHOLD_SD = 1.0
# The mean of the predictions of a one-way table by all pairs counts as biased if its squared
# distance exceeds the expectation by more than this number of standard deviations. The number is
# larger than BIAS_THRESHOLD_SD, because the weights of these predictions already allow for the
# dependence of attributes.
PREDICTION_BIAS_SD = 3.0
# For the weights of the predictions of a one-way table by pairs, the expected squared deviations of
# pairs from independence are multiplied by this factor, because the deviations of several pairs can
# bias the table in the same direction. DEPENDENCE_FACTOR and PREDICTION_BIAS_SD were chosen on 14
# real tables.
DEPENDENCE_FACTOR = 2.5
# Number of rounds that improve one-way tables by pairs, and pairs by triples.  Each round uses the
# fitted tables of the previous round.
PAIR_ROUNDS, TRIPLE_ROUNDS = 3, 2
MAX_STEPS = 1_000
STEP_TOLERANCE = 1e-7  # size of the last step: in standard errors of a table, or of logarithms
PRIOR_WEIGHT = 1e-12  # precision of a uniform table, negligible compared with any measurement
MIN_SIGNAL_SE = 2.0  # smallest norm of a residual that is used for the total, in standard errors
MIN_ATTRIBUTES = 3  # smallest number of attributes with such residuals for pooling the total
PRECISE_TOTAL = 0.01  # relative standard error below which the measured total is returned
DEPENDENCE_ERROR = 0.04  # lower bound of the relative error due to dependence between attributes
MAX_LOG_STEP = 0.5  # largest change of a logarithm in one Gauss-Newton step
# Smallest eigenvalue that the information matrix of log N and of the log c_i may have; see
# `pooled_total`.  With a smaller one, the residuals hardly determine N.
MIN_INFORMATION = 0.25

# A pair (residual as a table of cells in counts, variance of its noise in counts^2).
PooledResidual = tuple[Array, float]


def noise_excess(gap: Array, variance: float, rank: int) -> tuple[float, float]:
    """Return by how much the squared norm of ``gap`` exceeds its expectation for pure noise.

    Parameters
    ----------
    gap : difference between a noisy and a predicted table, of any shape, in counts.
    variance : variance of the noise in each of ``rank`` orthogonal directions, in counts^2.

    Returns
    -------
    The excess in counts^2, and the same excess in standard deviations of the squared norm.

    >>> noise_excess(np.array([3.0, 0.0]), 1.0, 2)
    (7.0, 3.5)
    """
    excess = float(np.sum(gap**2)) - rank * variance
    return excess, excess / (variance * math.sqrt(2.0 * rank))


def on_simplex(values: Array, weights: Array, total: float) -> Array:
    """Return the non-negative vector with sum ``total`` that is nearest to ``values``, shape (n,).

    The squared distance is weighted by ``weights``, shape (n,).

    >>> on_simplex(np.array([3.0, -1.0, 1.0]), np.ones(3), 3.0).tolist()
    [2.5, 0.0, 0.5]
    """
    order = np.argsort(-(values * weights), kind="stable")
    slack = (np.cumsum(values[order]) - total) / np.cumsum(1.0 / weights[order])
    above = np.flatnonzero((values * weights)[order] > slack)
    projected = np.maximum(values - slack[above[-1] if len(above) else 0] / weights, 0.0)
    return np.asarray(
        projected * (total / projected.sum())
        if projected.sum() > 0
        else np.full(len(values), total / len(values))
    )


def nearest_single(estimate: ResidualEstimate, total: float, center: Array) -> Array:
    """Return the non-negative one-way table with sum ``total`` that is nearest to its estimate.

    The precision matrix of the noise defines the norm.  In this norm, projecting on a convex set
    that contains the true table cannot increase the error.  Shape (n,).
    """
    # accelerated projected gradient descent (FISTA)
    assert estimate.metric is not None
    equal_weights = np.ones(len(center))
    step = 1.0 / estimate.metric.largest_eigenvalue
    unconstrained = estimate.cells + total * center
    current = point = on_simplex(unconstrained, equal_weights, total)
    momentum = 1.0
    for _ in range(MAX_STEPS):
        gradient = estimate.metric.of(estimate.projection.of(point) - estimate.cells)
        projected = on_simplex(point - step * gradient, equal_weights, total)
        step_length = float(np.abs(projected - current).max())
        # The momentum restarts if its direction opposes the gradient.
        if float((point - projected) @ (projected - current)) > 0.0:
            momentum = 1.0
        next_momentum = (1.0 + math.sqrt(1.0 + 4.0 * momentum * momentum)) / 2.0
        point = projected + (momentum - 1.0) / next_momentum * (projected - current)
        current, momentum = projected, next_momentum
        if step_length <= STEP_TOLERANCE * math.sqrt(estimate.variance):
            break
    return current


def single_tables(
    evidence: Evidence, total: float, pairs: Mapping[Axes, PooledResidual]
) -> dict[Axes, Array]:
    """Return fitted one-way tables, from the residuals of single attributes and of pairs.

    Parameters
    ----------
    total : number of records.
    pairs : mapping from pairs of attributes to their residuals, shape (n_i, n_j).  The residual of
        a pair is an additional measurement of both attributes.  It is not used for attributes with
        a public table, or whose noise has a precision matrix.

    Returns
    -------
    Mapping from sets of one attribute to non-negative tables in counts, shape (n_i,).
    """
    singles: list[Axes] = [axes for axes in evidence.sets if len(axes) == 1]
    direct: dict[Axes, tuple[Array, float]] = {}  # (residual, precision), not pooled
    for axes in singles:
        n, pi = evidence.sizes[axes[0]], evidence.centers[axes[0]]
        estimate = evidence.residuals.get(axes)
        if estimate is None:
            direct[axes] = total * (1.0 / n - pi), PRIOR_WEIGHT
        else:
            direct[axes] = estimate.cells, 1.0 / estimate.variance
    tables: dict[Axes, Array] = {
        a: _on_simplex_table(evidence, total, a, *direct[a]) for a in singles
    }
    for a, estimate in evidence.residuals.items():
        if len(a) == 1 and estimate.metric is not None:
            tables[a] = nearest_single(estimate, total, evidence.centers[a[0]])
    tables |= {a: evidence.exact[a] for a in singles if a in evidence.exact}
    pooled = [
        a
        for a in singles
        if a not in evidence.exact
        and (a not in evidence.residuals or evidence.residuals[a].metric is None)
    ]
    estimates = {
        a: replace(evidence.residuals[a], cells=cells, variance=variance)
        for a, (cells, variance) in pairs.items()
    }
    for _ in range(PAIR_ROUNDS if pairs else 0):
        # Each pair predicts the residuals of both attributes.  For each attribute, ``sums`` has the
        # sum of precision * prediction and the sum of the precisions.
        sums = {a: (np.zeros(evidence.shape(a)), np.zeros(evidence.shape(a))) for a in pooled}
        p = {a: tables[a] / total for a in singles}
        deviations = expected_deviations(
            estimates, {a: total * np.outer(p[a[:1]], p[a[1:]]) for a in estimates}
        )
        for pair, estimate in estimates.items():
            i, j = pair[:1], pair[1:]
            # The dependence of i and j biases both predictions.  It counts as noise: like the noise
            # of the estimate, its variance refers to a direction of the residual.
            bias = DEPENDENCE_FACTOR * deviations[pair] * estimate.cells.size / estimate.rank
            weight = 1.0 / (estimate.variance + bias * np.outer(p[i], p[j]))
            q_i, q_j = p[i] - evidence.centers[i[0]], p[j] - evidence.centers[j[0]]
            t = estimate.cells
            for a, other, table, w in ((i, q_j, t, weight), (j, q_i, t.T, weight.T)):
                if a in sums:
                    value, precision = sums[a]
                    sums[a] = (value + (w * table) @ other, precision + w @ other**2)
        # The predictions are averaged with the measured residual, with their precisions as weights.
        for a, (value, precision) in sums.items():
            residual, measured_precision = direct[a]
            share = _precision_factor(
                evidence.residuals.get(a), value, precision, PREDICTION_BIAS_SD
            )
            weight = measured_precision + share * precision
            value = residual * measured_precision + share * value
            tables[a] = _on_simplex_table(evidence, total, a, value / weight, weight)
    return tables


def _on_simplex_table(
    evidence: Evidence, total: float, axes: Axes, residual: Array, weight: Array | float
) -> Array:
    """Return the non-negative one-way table with sum ``total`` that is nearest to an estimate.

    The estimate is ``residual`` plus ``total`` times the center.  Squared distances are weighted by
    ``weight``, the precision of its cells in 1 / counts^2.  Impossible cells of the result are 0.
    """
    weights = np.broadcast_to(np.asarray(weight, dtype=float), residual.shape)
    table = np.zeros(residual.shape)
    possible = evidence.possible.get(axes, np.ones(residual.shape, dtype=bool))
    table[possible] = on_simplex(
        (residual + total * evidence.centers[axes[0]])[possible], weights[possible], total
    )
    return table


def _precision_factor(
    estimate: ResidualEstimate | None,
    value: Array,
    precision: Array | float,
    threshold_sd: float,
) -> float:
    """Return the factor in (0, 1] by which the precision of a predicted residual is multiplied.

    The factor is below 1 if the squared distance of the prediction from the measured residual
    exceeds its expectation for noise by more than ``threshold_sd`` standard deviations, because the
    prediction is then probably biased.

    Parameters
    ----------
    estimate : the measured residual; None if there is none, so that the factor is 1.
    value : precision times the residual that larger tables predict.
    precision : precision of this prediction, in 1 / counts^2.  If it is 0 in a cell, the factor is
        1.
    """
    if estimate is None or not np.min(precision) > 0.0:
        return 1.0
    observed = (
        float(np.sum(precision * (estimate.projection.of(value / precision) - estimate.cells) ** 2))
        / estimate.rank
    )
    # Expectation of ``observed`` if both residuals have no error but their noise: the noise of the
    # prediction adds 1, the noise of the measured residual adds its variance times the precision.
    expected = 1.0 + float(np.mean(precision)) * estimate.variance
    if observed - expected <= threshold_sd * expected * np.sqrt(2.0 / estimate.rank):
        return 1.0
    return 1.0 / (1.0 + observed - expected)


def pooled_pairs(
    evidence: Evidence,
    total: float,
    singles: Mapping[Axes, Array],
    pairs: Mapping[Axes, Array],
    triples: Sequence[Axes],
) -> dict[Axes, PooledResidual]:
    """Return the residuals of pairs, estimated from measured pairs and triples.

    See the module docstring for the model of the residual of a triple.

    Parameters
    ----------
    total : number of records.
    singles, pairs : mappings from attribute sets to fitted tables in counts.
    triples : the sets of three attributes whose residuals are used.

    Returns
    -------
    Mapping from pairs of attributes to (residual, variance).  The residual has the shape
    (n_i, n_j).  The variance of its noise is in counts^2.  Only pairs whose residual was measured
    completely, with the same variance in all directions, have an entry.
    """
    q = {a[0]: table / total - evidence.centers[a[0]] for a, table in singles.items()}
    dependence: dict[Axes, Array] = {  # C_ij
        (i, j): table - np.outer(singles[i,], singles[j,]) / total
        for (i, j), table in pairs.items()
    }
    # Several estimates of the residual of a pair are averaged with their precisions as weights: the
    # measured residual and one prediction per triple.  For each pair, ``sums`` has the sum of
    # precision * estimate and the sum of the precisions.
    sums: dict[Axes, tuple[Array, Array]] = {}
    for pair, estimate in evidence.residuals.items():
        if len(pair) == 2 and estimate.projection.plain and estimate.metric is None:
            weight = np.full(estimate.cells.shape, 1.0 / estimate.variance)
            sums[pair] = (estimate.cells * weight, weight)
    for axes in triples:
        # Without a three-way interaction, the residual of a triple (i, j, k) is the sum of four
        # terms.  ``pair_terms`` has C_ij (x) q_k, C_ik (x) q_j and C_jk (x) q_i.  ``product`` is N
        # q_i (x) q_j (x) q_k.
        estimate, pair_terms = evidence.residuals[axes], []
        for k, axis in enumerate(axes):
            pair = axes[:k] + axes[k + 1 :]
            pair_terms.append(np.expand_dims(dependence[pair], k) * spread_along(q[axis], k, 3))
        product = total * np.multiply.outer(np.multiply.outer(q[axes[0]], q[axes[1]]), q[axes[2]])
        deviation = estimate.cells - product - sum(pair_terms)
        excess, excess_sd = noise_excess(deviation, estimate.variance, estimate.rank)
        weights = _triple_weights(
            singles, axes, total, estimate, excess if excess_sd > 1.0 else 0.0
        )
        for k, axis in enumerate(axes):
            pair = axes[:k] + axes[k + 1 :]
            if pair in sums:
                # The residual of the triple minus the terms of the two other pairs.  By the model,
                # it is the outer product of this pair's residual and of q of the third attribute.
                remainder, factor = deviation + pair_terms[k] + product, q[axis]
                if weights is None:
                    value = np.tensordot(remainder, factor, axes=(k, 0)) / estimate.variance
                    precision: Array | float = float(factor @ factor) / estimate.variance
                else:
                    value = np.tensordot(weights * remainder, factor, axes=(k, 0))
                    precision = np.tensordot(weights, factor**2, axes=(k, 0))
                share = _precision_factor(
                    evidence.residuals[pair], value, precision, BIAS_THRESHOLD_SD
                )
                sums[pair] = (sums[pair][0] + share * value, sums[pair][1] + share * precision)
    pooled = {}
    for pair, (value, weight) in sums.items():
        pooled[pair] = (
            evidence.residuals[pair].projection.of(value / weight),
            1.0 / float(weight.mean()),
        )
    return pooled


def _triple_weights(
    singles: Mapping[Axes, Array],
    axes: Axes,
    total: float,
    estimate: ResidualEstimate,
    excess: float,
) -> Array | None:
    """Return least-squares weights of the cells of a triple's residual, in 1 / counts^2.

    ``excess`` is the squared distance of the residual from its model, minus the expectation for
    pure noise, in counts^2.  If it is positive, the weights have the shape (n_i, n_j, n_k).
    Otherwise the result is None, which stands for equal weights.
    """
    if excess <= 0.0:
        return None
    i, j, k = (singles[a,] / total for a in axes)
    # The true cells are assumed to differ from the model with variances that are proportional to
    # the product of the one-way shares and that sum to the excess.
    share_product = np.multiply.outer(np.multiply.outer(i, j), k)
    return np.asarray(1.0 / (estimate.variance + excess * share_product))


def pooled_total(evidence: Evidence) -> tuple[float, float]:
    """Estimate the number of records N from its measurement and from residuals.

    Returns
    -------
    The estimate of N, and its variance in counts^2.

    Notes
    -----
    Let q_i be the vector of shares of the cells of attribute i minus its center, and c_i = |q_i|.
    If attributes are independent, the residual on an attribute set B is N times the outer product
    of the q_i, and its component along this product is N times the product of the c_i.  This gives
    one equation per residual on at most three attributes.  The equations are solved for log N and
    the log c_i by weighted least squares.  Real attributes are dependent.  A jackknife over
    attributes estimates the relative error that dependence causes.  This error is taken as
    ``DEPENDENCE_ERROR`` if the estimate is smaller.

    Guarantee: the result is the measured total and its variance in three cases: the measured total
    has a relative standard error of at most ``PRECISE_TOTAL``; it is not positive; the residuals do
    not determine N, for example because fewer than ``MIN_ATTRIBUTES`` attributes have a residual
    with signal.
    """
    measured_total = evidence.total, evidence.total_variance
    usable = {
        a: estimate
        for a, estimate in evidence.residuals.items()
        if estimate.projection.plain and estimate.metric is None and len(a) <= 3
    }
    sizes, directions = dict[int, float](), dict[int, Array]()
    for (i, *others), estimate in usable.items():
        length = float(np.linalg.norm(estimate.cells))
        # The length of the residual without the part that noise is expected to add.
        signal = length - estimate.rank * estimate.variance / max(length, PRIOR_WEIGHT)
        if not others and signal > MIN_SIGNAL_SE * math.sqrt(estimate.variance):
            sizes[i], directions[i] = signal, estimate.cells / length
    if (
        len(sizes) < MIN_ATTRIBUTES
        or evidence.total <= 0.0
        or evidence.total_variance <= (PRECISE_TOTAL * evidence.total) ** 2
    ):
        return measured_total
    rows = [a for a in usable if set(a) <= sizes.keys()]
    incidence = np.array([[True, *(i in a for i in sizes)] for a in rows])
    noise, values = np.array([usable[a].variance for a in rows]), np.zeros(len(rows))
    for row, axes in enumerate(rows):
        component = usable[axes].cells
        for i in reversed(axes[1:]):
            component = component @ directions[i]
        values[row] = sizes[axes[0]] if len(axes) == 1 else float(component @ directions[axes[0]])
    logs = np.log([evidence.total, *(length / evidence.total for length in sizes.values())])
    logs = _fit_logs(incidence, values, noise, logs)
    model = np.exp(incidence @ logs)
    slopes = incidence * (model / np.sqrt(noise))[:, None]
    residual = (values - model) / np.sqrt(noise)
    # The smallest eigenvalue of the information matrix is near 0 if the residuals are mostly noise.
    information, directions_of_logs = np.linalg.eigh(slopes.T @ slopes)
    if information[0] <= MIN_INFORMATION:
        return measured_total
    noise_variance = float(directions_of_logs[0] ** 2 @ (1.0 / information))  # of log N
    log_shifts = [
        _gauss_newton_step(np.delete(slopes[~contains], k, axis=1), residual[~contains])[0]
        for k, contains in enumerate(incidence.T)
        if k
    ]
    jackknife = (len(log_shifts) - 1) * float(np.var(log_shifts))
    total = math.exp(logs[0])
    variance = total**2 * max(noise_variance, jackknife, DEPENDENCE_ERROR**2)
    # ``total`` is taken as biased if it differs from the measured total by more than chance
    # explains. An estimate of the squared bias of a biased ``total`` is added to the variance.
    difference, chance = (total - evidence.total) ** 2, variance + evidence.total_variance
    variance += max(0.0, difference - (1.0 + BIAS_THRESHOLD_SD * math.sqrt(2.0)) * chance)
    precision = 1.0 / evidence.total_variance + 1.0 / variance
    pooled = (evidence.total / evidence.total_variance + total / variance) / precision
    return pooled, 1.0 / precision


def _fit_logs(incidence: Array, values: Array, variances: Array, logs: Array) -> Array:
    """Fit products of factors to noisy values by weighted least squares.

    Parameters
    ----------
    incidence : mask, shape (values, k); row r marks the factors whose product is value r.
    values, variances : noisy values and the variances of their noise, shape (values,).
    logs : logarithms of the factors at which damped Gauss-Newton steps start, shape (k,).

    Returns
    -------
    Logarithms of the fitted factors, shape (k,).
    """
    for _ in range(MAX_STEPS):
        model = np.exp(incidence @ logs)
        step = _gauss_newton_step(
            incidence * (model / np.sqrt(variances))[:, None], (values - model) / np.sqrt(variances)
        )
        # The step is shortened if a logarithm would change by more than MAX_LOG_STEP.
        logs = logs + step * min(1.0, MAX_LOG_STEP / max(float(np.abs(step).max()), MAX_LOG_STEP))
        if np.abs(step).max() <= STEP_TOLERANCE:
            break
    return logs


def _gauss_newton_step(slopes: Array, residual: Array) -> Array:
    return np.asarray(np.linalg.lstsq(slopes, residual, rcond=None)[0])
