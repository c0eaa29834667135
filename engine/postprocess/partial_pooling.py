"""Partial pooling of higher-order into lower-order marginals.

Under independence the residual of a pair is (T_i - N pi_i) (x) q_j with q_j = p_j - pi_j, so that a pair whose second
attribute is far from its center is one more measurement of the first.  With T_ijk = N p_i p_j p_k + sum of
C_ij (x) p_k, C_ij = T_ij - N p_i p_j, the residual of a triple is r_ij (x) q_k + C_ik (x) q_j + C_jk (x) q_i.  Cells
are weighed by 1 / (v + tau m): noise, and the dispersion of the table about its reference m.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from engine._arrays import Array
from engine.postprocess.residual_estimates import Evidence, Seen, spread_along
from engine.residuals import Axes

NOTICED = 1.0  # standard errors by which what is borrowed must miss before it is called biased
PAIR_ROUNDS, TRIPLE_ROUNDS = 3, 2
STEPS, SETTLED = 1_000, 1e-7  # of the search in a metric, and the standard errors that its last step may move
WEAK = 1e-12  # weight of even shares beside anything that was measured
CLEAR, FEWEST = 2.0, 3  # standard errors of a residual that tells of the total, and how many attributes must have one
PRECISE, DEPENDENT = 0.01, 0.04  # relative errors of a total that is left as it is, and of independence at least
LONGEST = 0.5  # step of a logarithm

Known = tuple[Array, float]  # residual in cells and its variance


def dispersion(gap: Array, variance: float, rank: int) -> tuple[float, float]:
    """Return the squares of a gap beyond its noise, and by how many standard errors of the noise that is.

    The gap may have any shape; its noise has ``rank`` directions of the given variance.

    >>> dispersion(np.array([3.0, 0.0]), 1.0, 2)
    (7.0, 3.5)
    """
    beyond = float(np.sum(gap**2)) - rank * variance
    return beyond, beyond / (variance * math.sqrt(2.0 * rank))


def on_simplex(values: Array, weights: Array, total: float) -> Array:
    """Return the nearest numbers >= 0 with a given sum, in the squares weighed by ``weights``; shapes (n,).

    >>> on_simplex(np.array([3.0, -1.0, 1.0]), np.ones(3), 3.0).tolist()
    [2.5, 0.0, 0.5]
    """
    order = np.argsort(-(values * weights), kind="stable")
    slack = (np.cumsum(values[order]) - total) / np.cumsum(1.0 / weights[order])
    above = np.flatnonzero((values * weights)[order] > slack)
    kept = np.maximum(values - slack[above[-1] if len(above) else 0] / weights, 0.0)
    return np.asarray(kept * (total / kept.sum()) if kept.sum() > 0 else np.full(len(values), total / len(values)))


def nearest_single(seen: Seen, total: float, center: Array) -> Array:
    """Return the numbers >= 0 with a given sum, shape (n,), that are nearest to what was measured, in standard errors.

    In the metric of its noise, what is known to be on the right side of a wall only comes nearer to the truth.
    """
    assert seen.metric is not None
    even, step = np.ones(len(center)), 1.0 / seen.metric.steepest
    wanted = seen.cells + total * center
    kept = point = on_simplex(wanted, even, total)
    age = 1.0
    for _ in range(STEPS):
        slope = seen.metric.of(seen.lens.of(point) - seen.cells)
        made = on_simplex(point - step * slope, even, total)
        moved = float(np.abs(made - kept).max())
        older = 1.0 if float((point - made) @ (made - kept)) > 0.0 else age  # it went too far: it starts anew
        age = (1.0 + math.sqrt(1.0 + 4.0 * older * older)) / 2.0
        point, kept = made + (older - 1.0) / age * (made - kept), made
        if moved <= SETTLED * math.sqrt(seen.variance):
            break
    return kept


def single_tables(found: Evidence, total: float, pairs: Mapping[Axes, Known]) -> dict[Axes, Array]:
    """Return the tables of one attribute, shape (n_i,), from their own answers and those of pairs, (n_i, n_j)."""
    used: list[Axes] = [axes for axes in found.sets if len(axes) == 1]
    own: dict[Axes, tuple[Array, float]] = {}
    for axes in used:
        n, pi = found.sizes[axes[0]], found.centers[axes[0]]
        seen = found.seen.get(axes)
        own[axes] = (total * (1.0 / n - pi), WEAK) if seen is None else (seen.cells, 1.0 / seen.variance)
    out: dict[Axes, Array] = {a: _settled(found, total, a, *own[a]) for a in used}
    for a, seen in found.seen.items():
        if len(a) == 1 and seen.metric is not None:
            out[a] = nearest_single(seen, total, found.centers[a[0]])
    out |= {a: found.exact[a] for a in used if a in found.exact}
    learning = [a for a in used if a not in found.exact and (a not in found.seen or found.seen[a].metric is None)]
    for _ in range(PAIR_ROUNDS if pairs else 0):
        sums = {a: (own[a][0] * own[a][1], np.full(len(own[a][0]), own[a][1])) for a in learning}
        q: dict[Axes, Array] = {a: out[a] / total - found.centers[a[0]] for a in used}
        for pair, (t, v) in pairs.items():
            i, j = pair[:1], pair[1:]
            beyond, _ = dispersion(t - total * np.outer(q[i], q[j]), v, found.seen[pair].rank)
            weight = 1.0 / (v + max(0.0, beyond) / total**2 * np.outer(out[i], out[j]))
            for a, other, table, w in ((i, q[j], t, weight), (j, q[i], t.T, weight.T)):
                if a not in sums:
                    continue
                value, precision = (w * table) @ other, w @ other**2
                share = _unbiased_share(found.seen.get(a), value, precision)
                sums[a] = (sums[a][0] + share * value, sums[a][1] + share * precision)
        out |= {a: _settled(found, total, a, value / weight, weight) for a, (value, weight) in sums.items()}
    return out


def _settled(found: Evidence, total: float, axes: Axes, residual: Array, weight: Array | float) -> Array:
    weights = np.broadcast_to(np.asarray(weight, dtype=float), residual.shape)
    out, kept = np.zeros(residual.shape), found.possible.get(axes, np.ones(residual.shape, dtype=bool))
    out[kept] = on_simplex((residual + total * found.centers[axes[0]])[kept], weights[kept], total)
    return out


def _unbiased_share(seen: Seen | None, value: Array, precision: Array | float) -> float:
    """Return what share of its precision a borrowed residual deserves, seen against the space's own answers."""
    if seen is None or not np.min(precision) > 0.0:
        return 1.0
    missed = float(np.sum(precision * (seen.lens.of(value / precision) - seen.cells) ** 2)) / seen.rank
    expected = 1.0 + float(np.mean(precision)) * seen.variance
    if missed - expected <= NOTICED * expected * np.sqrt(2.0 / seen.rank):
        return 1.0
    return 1.0 / (1.0 + missed - expected)


def better_pairs(
    found: Evidence, total: float, singles: Mapping[Axes, Array], pairs: Mapping[Axes, Array], triples: Sequence[Axes]
) -> dict[Axes, Known]:
    """Return residuals of pairs, shape (n_i, n_j), from their own answers and those of the triples that hold them."""
    q = {a[0]: table / total - found.centers[a[0]] for a, table in singles.items()}
    apart: dict[Axes, Array] = {
        (i, j): table - np.outer(singles[i,], singles[j,]) / total for (i, j), table in pairs.items()
    }
    sums: dict[Axes, tuple[Array, Array]] = {}
    for pair, seen in found.seen.items():
        if len(pair) == 2 and seen.lens.plain and seen.metric is None:
            weight = np.full(seen.cells.shape, 1.0 / seen.variance)
            sums[pair] = (seen.cells * weight, weight)
    for axes in triples:
        seen, parts = found.seen[axes], []
        for k, axis in enumerate(axes):
            pair = axes[:k] + axes[k + 1 :]
            parts.append(np.expand_dims(apart[pair], k) * spread_along(q[axis], k, 3))
        product = total * np.multiply.outer(np.multiply.outer(q[axes[0]], q[axes[1]]), q[axes[2]])
        left = seen.cells - product - sum(parts)
        beyond, errors = dispersion(left, seen.variance, seen.rank)
        weights = _weights(singles, axes, total, seen, beyond if errors > 1.0 else 0.0)
        for k, axis in enumerate(axes):
            face = axes[:k] + axes[k + 1 :]
            if face in sums:
                told, others = left + parts[k] + product, q[axis]
                if weights is None:
                    value = np.tensordot(told, others, axes=(k, 0)) / seen.variance
                    precision: Array | float = float(others @ others) / seen.variance
                else:
                    value = np.tensordot(weights * told, others, axes=(k, 0))
                    precision = np.tensordot(weights, others**2, axes=(k, 0))
                share = _unbiased_share(found.seen[face], value, precision)
                sums[face] = (sums[face][0] + share * value, sums[face][1] + share * precision)
    out = {}
    for pair, (value, weight) in sums.items():
        out[pair] = (found.seen[pair].lens.of(value / weight), 1.0 / float(weight.mean()))
    return out


def _weights(singles: Mapping[Axes, Array], axes: Axes, total: float, seen: Seen, beyond: float) -> Array | None:
    """Return the weights of a triple's cells; None when all are alike."""
    if beyond <= 0.0:
        return None
    i, j, k = (singles[a,] / total for a in axes)
    reference = np.multiply.outer(np.multiply.outer(i, j), k)  # it sums to 1, so that beyond is tau times the total
    return np.asarray(1.0 / (seen.variance + beyond * reference))


def borrowed_total(found: Evidence) -> tuple[float, float]:
    """Return the number of records, in counts, and its variance: from its own answer and from residuals.

    Under independence the residual on B is N times the product of its q_i, so that with c_i = |q_i| its part along
    that product is N times the product of the c_i: many more equations than unknowns, solved for log N and the
    log c_i in standard errors.  How far N moves when one attribute is left out tells how far attributes are from
    independent, which `DEPENDENT` bounds from below.

    Guarantee: the answer itself where its standard error is less than the share ``PRECISE`` of it.
    """
    own = found.total, found.total_variance
    plain = {a: seen for a, seen in found.seen.items() if seen.lens.plain and seen.metric is None and len(a) <= 3}
    sizes, toward = dict[int, float](), dict[int, Array]()
    for (i, *others), seen in plain.items():
        length = float(np.linalg.norm(seen.cells))
        along = length - seen.rank * seen.variance / max(length, WEAK)  # less the noise that is in both factors
        if not others and along > CLEAR * math.sqrt(seen.variance):
            sizes[i], toward[i] = along, seen.cells / length
    if len(sizes) < FEWEST or found.total <= 0.0 or found.total_variance <= (PRECISE * found.total) ** 2:
        return own
    rows = [a for a in plain if set(a) <= sizes.keys()]
    holds = np.array([[True, *(i in a for i in sizes)] for a in rows])
    noise, values = np.array([plain[a].variance for a in rows]), np.zeros(len(rows))
    for row, axes in enumerate(rows):
        part = plain[axes].cells
        for i in reversed(axes[1:]):
            part = part @ toward[i]
        values[row] = sizes[axes[0]] if len(axes) == 1 else float(part @ toward[axes[0]])
    logs = np.log([found.total, *(length / found.total for length in sizes.values())])
    logs = _logs(holds, values, noise, logs)
    model = np.exp(holds @ logs)
    slopes, left = holds * (model / np.sqrt(noise))[:, None], (values - model) / np.sqrt(noise)
    error = float(np.linalg.pinv(slopes.T @ slopes)[0, 0])
    moved = [_step(np.delete(slopes[~with_it], k, axis=1), left[~with_it])[0] for k, with_it in enumerate(holds.T) if k]
    apart = (len(moved) - 1) * float(np.var(moved))
    total = math.exp(logs[0])
    variance = total**2 * max(error, apart, DEPENDENT**2)
    missing = (total - own[0]) ** 2 / (variance + own[1])
    share = 1.0 if missing <= 1.0 + NOTICED * math.sqrt(2.0) else 1.0 / missing
    precision = 1.0 / own[1] + share / variance
    return (own[0] / own[1] + share * total / variance) / precision, 1.0 / precision


def _logs(holds: Array, values: Array, variances: Array, logs: Array) -> Array:
    """Return the logarithms, shape (k,), whose sums over a row of ``holds``, shape (rows, k), are nearest to values."""
    for _ in range(STEPS):
        model = np.exp(holds @ logs)
        step = _step(holds * (model / np.sqrt(variances))[:, None], (values - model) / np.sqrt(variances))
        logs = logs + step * min(1.0, LONGEST / max(float(np.abs(step).max()), LONGEST))
        if np.abs(step).max() <= SETTLED:
            break
    return logs


def _step(slopes: Array, left: Array) -> Array:
    return np.asarray(np.linalg.lstsq(slopes, left, rcond=None)[0])
