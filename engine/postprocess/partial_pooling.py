"""Partial pooling of higher-order into lower-order marginals ("borrowing strength").

Notation: N number of records, T_A count table on the attributes A, p_i = T_i / N, pi_i center of
attribute i, q_i = p_i - pi_i, r_A residual on A, C_ij = T_ij - N p_i p_j.

Under independence the residual of a pair is (T_i - N pi_i) (x) q_j, so that a pair whose second
attribute is far from its center is an additional measurement of the first.  With T_ijk = N p_i p_j
p_k + sum of C_ij (x) p_k, the residual of a triple is r_ij (x) q_k + C_ik (x) q_j + C_jk (x) q_i.
Cells have the weights 1 / (v + tau m), where v is the variance of the noise and tau m the
dispersion of the table about its reference m.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from engine._arrays import Array
from engine.postprocess.residual_estimates import Evidence, ResidualEstimate, spread_along
from engine.residuals import Axes

# discrepancy, in standard errors, from which a pooled residual counts as biased
BIAS_THRESHOLD_SE = 1.0
PAIR_ROUNDS, TRIPLE_ROUNDS = 3, 2
MAX_STEPS = 1_000
STEP_TOLERANCE_SE = 1e-7  # length of the last step of a search, in standard errors
PRIOR_WEIGHT = 1e-12  # weight of equal shares, negligible compared with any measurement
MIN_SIGNAL_SE = 2.0  # norm from which a residual is used to estimate the total, in standard errors
MIN_ATTRIBUTES = 3  # attributes with such a residual, below which the total is not pooled
PRECISE_TOTAL = 0.01  # relative standard error below which the measured total is returned
DEPENDENCE_ERROR = 0.04  # lower bound of the relative error due to dependence between attributes
MAX_LOG_STEP = 0.5
# inverse variance of a combination of logarithms below which residuals do not determine them
MIN_INFORMATION = 0.25

# residual as a table of cells in counts, and the variance of its noise in counts^2
PooledResidual = tuple[Array, float]


def dispersion(gap: Array, variance: float, rank: int) -> tuple[float, float]:
    """Return the excess of the squared norm of a difference over its expectation under noise.

    The first value is in counts^2, the second in standard deviations of the squared norm.

    Parameters
    ----------
    gap : difference of any shape, in counts.
    variance : variance of its noise in each of ``rank`` directions, in counts^2.

    >>> dispersion(np.array([3.0, 0.0]), 1.0, 2)
    (7.0, 3.5)
    """
    excess = float(np.sum(gap**2)) - rank * variance
    return excess, excess / (variance * math.sqrt(2.0 * rank))


def on_simplex(values: Array, weights: Array, total: float) -> Array:
    """Return the weighted projection of values on {x >= 0, sum x = total}; shapes (n,).

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


def nearest_single(seen: ResidualEstimate, total: float, center: Array) -> Array:
    """Return the generalized least-squares projection of one marginal on the simplex, shape (n,).

    Because distances are measured in the precision matrix of the noise, the projection on the
    simplex, which contains the true marginal, reduces the error.
    """
    assert seen.metric is not None
    equal_weights, step = np.ones(len(center)), 1.0 / seen.metric.steepest
    unconstrained = seen.cells + total * center
    current = point = on_simplex(unconstrained, equal_weights, total)
    momentum = 1.0
    for _ in range(MAX_STEPS):
        slope = seen.metric.of(seen.lens.of(point) - seen.cells)
        projected = on_simplex(point - step * slope, equal_weights, total)
        step_length = float(np.abs(projected - current).max())
        # restart the momentum where it opposes the gradient
        previous = 1.0 if float((point - projected) @ (projected - current)) > 0.0 else momentum
        momentum = (1.0 + math.sqrt(1.0 + 4.0 * previous * previous)) / 2.0
        point, current = projected + (previous - 1.0) / momentum * (projected - current), projected
        if step_length <= STEP_TOLERANCE_SE * math.sqrt(seen.variance):
            break
    return current


def single_tables(
    evidence: Evidence, total: float, pairs: Mapping[Axes, PooledResidual]
) -> dict[Axes, Array]:
    """Return one-way tables that combine the one-way residuals with what pairs say about them.

    ``pairs`` maps pairs to their residuals, shape (n_i, n_j), which are used as additional
    measurements of both attributes.  Returns a mapping from sets of one attribute to tables in
    counts, shape (n_i,).
    """
    singles: list[Axes] = [axes for axes in evidence.sets if len(axes) == 1]
    direct: dict[Axes, tuple[Array, float]] = {}
    for axes in singles:
        n, pi = evidence.sizes[axes[0]], evidence.centers[axes[0]]
        seen = evidence.seen.get(axes)
        direct[axes] = (
            (total * (1.0 / n - pi), PRIOR_WEIGHT)
            if seen is None
            else (seen.cells, 1.0 / seen.variance)
        )
    out: dict[Axes, Array] = {a: _on_simplex_table(evidence, total, a, *direct[a]) for a in singles}
    for a, seen in evidence.seen.items():
        if len(a) == 1 and seen.metric is not None:
            out[a] = nearest_single(seen, total, evidence.centers[a[0]])
    out |= {a: evidence.exact[a] for a in singles if a in evidence.exact}
    pooled = [
        a
        for a in singles
        if a not in evidence.exact and (a not in evidence.seen or evidence.seen[a].metric is None)
    ]
    for _ in range(PAIR_ROUNDS if pairs else 0):
        sums = {
            a: (direct[a][0] * direct[a][1], np.full(len(direct[a][0]), direct[a][1]))
            for a in pooled
        }
        q: dict[Axes, Array] = {a: out[a] / total - evidence.centers[a[0]] for a in singles}
        for pair, (t, v) in pairs.items():
            i, j = pair[:1], pair[1:]
            excess, _ = dispersion(t - total * np.outer(q[i], q[j]), v, evidence.seen[pair].rank)
            weight = 1.0 / (v + max(0.0, excess) / total**2 * np.outer(out[i], out[j]))
            for a, other, table, w in ((i, q[j], t, weight), (j, q[i], t.T, weight.T)):
                if a not in sums:
                    continue
                value, precision = (w * table) @ other, w @ other**2
                share = _precision_factor(evidence.seen.get(a), value, precision)
                sums[a] = (sums[a][0] + share * value, sums[a][1] + share * precision)
        out |= {
            a: _on_simplex_table(evidence, total, a, value / weight, weight)
            for a, (value, weight) in sums.items()
        }
    return out


def _on_simplex_table(
    estimates: Evidence, total: float, axes: Axes, residual: Array, weight: Array | float
) -> Array:
    weights = np.broadcast_to(np.asarray(weight, dtype=float), residual.shape)
    out, possible = (
        np.zeros(residual.shape),
        estimates.possible.get(axes, np.ones(residual.shape, dtype=bool)),
    )
    out[possible] = on_simplex(
        (residual + total * estimates.centers[axes[0]])[possible], weights[possible], total
    )
    return out


def _precision_factor(
    seen: ResidualEstimate | None, value: Array, precision: Array | float
) -> float:
    """Return the factor in (0, 1] that multiplies the precision of an estimate from larger tables.

    The estimate ``value / precision`` is compared with ``seen``, the measured estimate of the same
    residual.  The factor is below 1 if they differ by more than their noise explains, because the
    estimate from larger tables then seems to be biased.
    """
    if seen is None or not np.min(precision) > 0.0:
        return 1.0
    observed = (
        float(np.sum(precision * (seen.lens.of(value / precision) - seen.cells) ** 2)) / seen.rank
    )
    expected = 1.0 + float(np.mean(precision)) * seen.variance
    if observed - expected <= BIAS_THRESHOLD_SE * expected * np.sqrt(2.0 / seen.rank):
        return 1.0
    return 1.0 / (1.0 + observed - expected)


def better_pairs(
    evidence: Evidence,
    total: float,
    singles: Mapping[Axes, Array],
    pairs: Mapping[Axes, Array],
    triples: Sequence[Axes],
) -> dict[Axes, PooledResidual]:
    """Return the residuals of pairs, combined with what three-way tables say about them.

    ``singles`` and ``pairs`` map attribute sets to fitted tables in counts; ``triples`` lists the
    three-way sets with a residual.  Returns a mapping from pairs to residuals, shape (n_i, n_j).
    """
    q = {a[0]: table / total - evidence.centers[a[0]] for a, table in singles.items()}
    dependence: dict[Axes, Array] = {
        (i, j): table - np.outer(singles[i,], singles[j,]) / total
        for (i, j), table in pairs.items()
    }
    sums: dict[Axes, tuple[Array, Array]] = {}
    for pair, seen in evidence.seen.items():
        if len(pair) == 2 and seen.lens.plain and seen.metric is None:
            weight = np.full(seen.cells.shape, 1.0 / seen.variance)
            sums[pair] = (seen.cells * weight, weight)
    for axes in triples:
        seen, parts = evidence.seen[axes], []
        for k, axis in enumerate(axes):
            pair = axes[:k] + axes[k + 1 :]
            parts.append(np.expand_dims(dependence[pair], k) * spread_along(q[axis], k, 3))
        product = total * np.multiply.outer(np.multiply.outer(q[axes[0]], q[axes[1]]), q[axes[2]])
        residual = seen.cells - product - sum(parts)
        excess, errors = dispersion(residual, seen.variance, seen.rank)
        weights = _triple_weights(singles, axes, total, seen, excess if errors > 1.0 else 0.0)
        for k, axis in enumerate(axes):
            subset = axes[:k] + axes[k + 1 :]
            if subset in sums:
                remainder, factor = residual + parts[k] + product, q[axis]
                if weights is None:
                    value = np.tensordot(remainder, factor, axes=(k, 0)) / seen.variance
                    precision: Array | float = float(factor @ factor) / seen.variance
                else:
                    value = np.tensordot(weights * remainder, factor, axes=(k, 0))
                    precision = np.tensordot(weights, factor**2, axes=(k, 0))
                share = _precision_factor(evidence.seen[subset], value, precision)
                sums[subset] = (
                    sums[subset][0] + share * value,
                    sums[subset][1] + share * precision,
                )
    out = {}
    for pair, (value, weight) in sums.items():
        out[pair] = (evidence.seen[pair].lens.of(value / weight), 1.0 / float(weight.mean()))
    return out


def _triple_weights(
    singles: Mapping[Axes, Array], axes: Axes, total: float, seen: ResidualEstimate, excess: float
) -> Array | None:
    """Return the least-squares weights of the cells of a triple's residual, shape (n_i, n_j, n_k).

    ``excess`` is the squared norm of the residual beyond its noise, in counts^2.  None if it is not
    positive, because all weights are then equal.
    """
    if excess <= 0.0:
        return None
    i, j, k = (singles[a,] / total for a in axes)
    # the reference sums to 1, so that the excess is tau times the total
    reference = np.multiply.outer(np.multiply.outer(i, j), k)
    return np.asarray(1.0 / (seen.variance + excess * reference))


def borrowed_total(evidence: Evidence) -> tuple[float, float]:
    """Return an estimate of the number of records and its variance, from the total and residuals.

    Notes
    -----
    Under independence the residual on a set B is N times the product of the q_i of its attributes.
    With c_i = |q_i|, the component of the residual along this product is N times the product of the
    c_i.  This overdetermined system is solved for log N and the log c_i by weighted least squares.  The
    jackknife over attributes estimates the error due to dependence between attributes;
    ``DEPENDENCE_ERROR`` is its lower bound.

    Guarantee: returns the measured total if its relative standard error is at most
    ``PRECISE_TOTAL``.
    """
    direct = evidence.total, evidence.total_variance
    usable = {
        a: seen
        for a, seen in evidence.seen.items()
        if seen.lens.plain and seen.metric is None and len(a) <= 3
    }
    sizes, directions = dict[int, float](), dict[int, Array]()
    for (i, *others), seen in usable.items():
        length = float(np.linalg.norm(seen.cells))
        # subtract the expected noise
        along = length - seen.rank * seen.variance / max(length, PRIOR_WEIGHT)
        if not others and along > MIN_SIGNAL_SE * math.sqrt(seen.variance):
            sizes[i], directions[i] = along, seen.cells / length
    if (
        len(sizes) < MIN_ATTRIBUTES
        or evidence.total <= 0.0
        or evidence.total_variance <= (PRECISE_TOTAL * evidence.total) ** 2
    ):
        return direct
    rows = [a for a in usable if set(a) <= sizes.keys()]
    incidence = np.array([[True, *(i in a for i in sizes)] for a in rows])
    noise, values = np.array([usable[a].variance for a in rows]), np.zeros(len(rows))
    for row, axes in enumerate(rows):
        part = usable[axes].cells
        for i in reversed(axes[1:]):
            part = part @ directions[i]
        values[row] = sizes[axes[0]] if len(axes) == 1 else float(part @ directions[axes[0]])
    logs = np.log([evidence.total, *(length / evidence.total for length in sizes.values())])
    logs = _fit_logs(incidence, values, noise, logs)
    model = np.exp(incidence @ logs)
    slopes, residual = (
        incidence * (model / np.sqrt(noise))[:, None],
        (values - model) / np.sqrt(noise),
    )
    # relative variance of the number of records; residuals without signal do not determine it
    values_of_information, directions_of_logs = np.linalg.eigh(slopes.T @ slopes)
    if values_of_information[0] <= MIN_INFORMATION:
        return direct
    error = float(directions_of_logs[0] ** 2 @ (1.0 / values_of_information))
    log_shifts = [
        _gauss_newton_step(np.delete(slopes[~with_it], k, axis=1), residual[~with_it])[0]
        for k, with_it in enumerate(incidence.T)
        if k
    ]
    jackknife = (len(log_shifts) - 1) * float(np.var(log_shifts))
    total = math.exp(logs[0])
    variance = total**2 * max(error, jackknife, DEPENDENCE_ERROR**2)
    discrepancy = (total - direct[0]) ** 2 / (variance + direct[1])
    share = 1.0 if discrepancy <= 1.0 + BIAS_THRESHOLD_SE * math.sqrt(2.0) else 1.0 / discrepancy
    precision = 1.0 / direct[1] + share / variance
    return (direct[0] / direct[1] + share * total / variance) / precision, 1.0 / precision


def _fit_logs(incidence: Array, values: Array, variances: Array, logs: Array) -> Array:
    """Return the logarithms, shape (k,), whose model fits values best, by damped Gauss-Newton steps.

    The model of value r, whose noise has ``variances[r]``, is the exponential of the sum of the
    logarithms that row r of ``incidence``, shape (rows, k), marks.  ``logs`` is the start.
    """
    for _ in range(MAX_STEPS):
        model = np.exp(incidence @ logs)
        step = _gauss_newton_step(
            incidence * (model / np.sqrt(variances))[:, None], (values - model) / np.sqrt(variances)
        )
        logs = logs + step * min(1.0, MAX_LOG_STEP / max(float(np.abs(step).max()), MAX_LOG_STEP))
        if np.abs(step).max() <= STEP_TOLERANCE_SE:
            break
    return logs


def _gauss_newton_step(slopes: Array, residual: Array) -> Array:
    return np.asarray(np.linalg.lstsq(slopes, residual, rcond=None)[0])
