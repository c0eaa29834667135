"""How far true tables deviate from references: posterior means, given noisy residuals.

One noisy table says little about its own deviation if its noise is large.  All tables together say
more, so their deviations get a common prior, which is estimated from all of them (empirical Bayes).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import scipy

from engine._arrays import Array
from engine.postprocess.residual_estimates import ResidualEstimate
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
