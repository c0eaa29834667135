"""Shrinkage of noisy tables towards predictions from smaller tables.

**Fit.**  Tables are fitted in order of their number of attributes.  A fitted table T is near its
noisy cells That and near a reference m, which smaller tables predict:

    min  |T - That|^2 / 2 v + KL(T | m) / tau     subject to the margins of T.

The margins are the fitted tables with one attribute fewer.  v is the variance of the noise, and the
true cells are assumed to deviate from m with variance tau m.  With multipliers u of the margins and
s = v / tau, the stationarity condition T + s log(T / m) = That - u has the positive solution

    T = s omega((That - u) / s + log(m / s)),

where omega is the omega function of Wright.

**Reference.**  The reference is the table of largest entropy with the margins of T.  For a pair it
is the product of the one-way tables, divided by the number of records; for larger sets it is the
limit of iterative proportional fitting.  For pairs there is a second fit with better references,
which are predicted through third attributes from the first fit (see below).

**Choice of tau.**  The squared distance of a noisy pair from its reference, minus the expectation
for the noise, is an unbiased estimate of the squared deviation of the true pair.  The deviations of
all pairs are assumed to have the same prior, which is estimated from all pairs (empirical Bayes).
The estimate is drawn towards the mean of the priors of `_simple_priors`, weighted by their
likelihoods; otherwise a single pair whose noise is large by chance would create prior weight for
large deviations.  tau of a pair follows from its posterior mean, so that pairs without signal are
replaced by their references.  Stein's unbiased risk estimate then chooses a multiple of this tau,
because a table with a few large deviations needs a larger one.  If only few pairs have signal, the
multiple is chosen for pairs with large deviations only.

**Precision matrices.**  If the noise of a table has a precision matrix (`metric_of`), the squared
distance in standard errors takes the place of |T - That|^2 / v, and the problem is solved by
accelerated proximal gradient steps.  tau is increased until the fit is at most as far from the
noisy cells as linear shrinkage would be.

**Consistency.**  Tables on at most two attributes, and the margins of larger tables, are projected
jointly on non-negative tables (`nonnegative_projection`).  Larger tables are then scaled to the
projected margins.  If scaling fails, because no non-negative table has these margins, the table is
added to the joint projection.  With impossible cells or public tables, all tables are projected.

Source of the omega function: Lawrence, Corless and Jeffrey, ACM TOMS algorithm 917.

**References of pairs.**  If attributes i and j are nearly independent given a third attribute k (a
mediator), the fitted tables of (i, k) and (k, j) predict the table of (i, j):

    T_ik diag(1 / T_k) T_kj.

The table towards which a pair is shrunk, its reference, is a weighted mean of several candidates:
independence, the prediction through each third attribute, and the prediction along the tree of
largest mutual information (Chow and Liu).  The weight of a candidate is the likelihood of the
measured residual if the candidate were the true table.
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
from engine.postprocess.nonnegative_projection import (
    AGREEING,
    mix_with_uniform,
    project_nonnegative,
)
from engine.postprocess.partial_pooling import (
    TRIPLE_ROUNDS,
    PooledResidual,
    expected_deviations,
    pooled_pairs,
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
from engine.postprocess.synthetic_records import mutual_information_tree
from engine.progress import Listener
from engine.residuals import Axes


class PairPredictions:
    """Predictions of two-way tables from other one-way and two-way tables.

    Parameters
    ----------
    tables : mapping from attribute sets to fitted tables in counts, of shapes (n_i,) and
        (n_i, n_j).  Tables on three or more attributes are ignored.
    """

    def __init__(self, tables: Mapping[Axes, Array]) -> None:
        self.singles = {a[0]: table for a, table in tables.items() if len(a) == 1}
        self.pairs: dict[tuple[int, int], Array] = {}
        for axes, table in tables.items():
            if len(axes) == 2:
                self.pairs[axes[0], axes[1]] = table
                self.pairs[axes[1], axes[0]] = table.T
        self.inverse = {
            a: np.divide(1.0, table, out=np.zeros_like(table), where=table > 0.0)
            for a, table in self.singles.items()
        }
        tree = mutual_information_tree({(i, j): t for (i, j), t in self.pairs.items() if i < j})
        self.parents = {child: parent for child, (_, parent) in tree.items()}

    def candidates(self, i: int, j: int) -> list[Array]:
        """Return all predictions of the table on attributes i and j, each of shape (n_i, n_j).

        There is one prediction per third attribute k for which tables on (i, k) and (k, j) are
        known.  There is one more if the path from i to j in the tree of mutual information has two
        or more attributes between them: the prediction along this path.
        """
        paths = [
            [i, k, j]
            for k in self.singles
            if k not in (i, j) and (i, k) in self.pairs and (k, j) in self.pairs
        ]
        if len(path := self._tree_path(i, j)) > 3:
            paths.append(path)
        return [self._predict(path) for path in paths]

    def _tree_path(self, i: int, j: int) -> list[int]:
        """Return the path from i to j in the tree of mutual information; empty if there is none."""
        ancestors, other_ancestors = self._to_root(i), self._to_root(j)
        if ancestors[-1] != other_ancestors[-1]:
            return []
        # Both lists end at the root.  Of their common ancestors, only the one nearest to i and j is
        # on the path.
        while (
            len(ancestors) > 1 and len(other_ancestors) > 1 and ancestors[-2] == other_ancestors[-2]
        ):
            ancestors.pop()
            other_ancestors.pop()
        return ancestors + other_ancestors[-2::-1]

    def _to_root(self, attribute: int) -> list[int]:
        path = [attribute]
        while path[-1] in self.parents:
            path.append(self.parents[path[-1]])
        return path

    def _predict(self, path: list[int]) -> Array:
        """Return the table on the first and last attribute of a path, taken as a Markov chain."""
        table = self.pairs[path[0], path[1]]
        for k, successor in itertools.pairwise(path[1:]):
            table = (table * self.inverse[k]) @ self.pairs[k, successor]
        return np.asarray(table)


def likelihood_mean(candidates: list[Array], estimate: ResidualEstimate) -> Array:
    """Return the mean of candidate tables, weighted by their likelihoods.

    The likelihood of a candidate is the probability density of the noisy residual ``estimate`` if
    the candidate is the true table.  Candidates and result are in counts, shape (n_i, n_j).

    >>> from engine.postprocess.residual_estimates import MeasuredProjection
    >>> projection = MeasuredProjection(centers=(np.full(2, 0.5), np.full(2, 0.5)))
    >>> cells = np.array([[2.0, -2.0], [-2.0, 2.0]])
    >>> estimate = ResidualEstimate(cells=cells, variance=0.01, rank=1, projection=projection)
    >>> likelihood_mean([np.full((2, 2), 2.0), np.diag([4.0, 4.0])], estimate).tolist()
    [[4.0, 0.0], [0.0, 4.0]]
    """
    # `noise_excess` is the squared distance of a candidate from the estimate, in units of the noise
    # variance, minus a constant.  Half of it is the negative logarithm of the likelihood, up to a
    # constant.
    negative_logs = np.array(
        [
            0.5 * estimate.noise_excess(estimate.projection.of(table) - estimate.cells)[0]
            for table in candidates
        ]
    )
    weights = np.exp(negative_logs.min() - negative_logs)
    weights /= weights.sum()
    return np.asarray(sum(w * table for w, table in zip(weights, candidates, strict=True)))


ENTROPY_SWEEPS = 30  # largest number of passes over the margins of one table
MAX_STEPS = 200  # largest number of proximal gradient steps
STEP_TOLERANCE = 1e-4  # squared length of the last step per direction, in squared standard errors
# Allowed error of the margins of a fitted table, as a share of the records.  `make_consistent`
# removes the error later.
MARGIN_TOLERANCE = 1e-4
# Allowed error of the margins of a fitted pair, as a share of the records.  Published tables do not
# have this error, because they are assembled from contrasts.
PAIR_TOLERANCE = 1e-7
# The estimate of tau is dominated by the large cells of a table.  It is therefore multiplied by one
# of these factors, which Stein's risk estimate chooses.
TAU_FACTORS = (1.4, 4.0, 12.0)
# For tables whose noise has a precision matrix, tau is multiplied by these factors in turn, until
# the fit is near enough to the noisy cells.
TAU_FACTORS_METRIC = (1.0, 4.0, 16.0, 64.0)
# Allowed error of `_shifted_omega`, as a share of the allowed error of margins.
SERIES_ERROR_SHARE = 0.01
UNDERFLOW = 1e-250  # sums of derivatives below this have underflowed
# The signal of a table is the squared distance of its noisy residual from the residual of the
# reference, minus the expectation for pure noise, in standard deviations.  `shrink_table` returns
# the reference itself if the signal is below this limit and no expected deviation is given.  Keys
# are numbers of attributes.
MIN_SIGNAL_SD = {2: 1.0}
MIN_SIGNAL_SD_DEFAULT = 2.0
# In the second fit of pairs, tau of a pair (see the module docstring) is multiplied by a factor.
# Stein's risk estimate chooses the factors of all pairs if at least the share MIN_SIGNAL_SHARE of
# the pairs have a signal of SIGNIFICANT_SD or more.  Otherwise it chooses the factors of the pairs
# with a signal of at least MIN_CHOICE_SD, and all other pairs get the first factor.
MIN_SIGNAL_SHARE, SIGNIFICANT_SD, MIN_CHOICE_SD = 0.25, 2.0, 6.0
# An expected squared deviation counts as 0 if it is at most this multiple of the variance of the
# noise of one cell.
NEGLIGIBLE_EXCESS = 1e-3

# Mask of the possible cells, shape (n_1, ..., n_k); None if all cells are possible.
Possible = npt.NDArray[np.bool_] | None


def max_entropy_table(
    axes: Axes, margins: Mapping[Axes, Array], possible: Possible = None
) -> Array:
    """Return the table on ``axes`` of largest entropy among those with the given margins.

    For a pair without impossible cells the result is exact.  Otherwise iterative proportional
    fitting approximates the table.  The fitting ends when the errors of the margins are at most the
    share `MARGIN_TOLERANCE` of the records, or after `ENTROPY_SWEEPS` passes.

    Parameters
    ----------
    margins : mapping from attribute sets to tables in counts.  It has every subset of ``axes`` with
        one attribute fewer, and ``axes[:-2]``.
    possible : mask of the possible cells, shape (n_1, ..., n_k); impossible cells are 0.

    >>> max_entropy_table((0, 1), {(0,): np.array([1.0, 3.0]), (1,): np.array([2.0, 2.0]), (): np.array(4.0)}).tolist()
    [[0.5, 0.5], [1.5, 1.5]]
    """
    # Start with the table in which the last two attributes are independent given all others.  For a
    # pair without impossible cells, this table is the result.
    first = axes[:-1]
    second = (*axes[:-2], axes[-1])
    rest = axes[:-2]
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
    """Scale a table to given margins by iterative proportional fitting, in place; return it.

    If a table with these margins exists, the limit is the one that has the least Kullback-Leibler
    divergence from the given table.

    Parameters
    ----------
    table : start, shape (n_1, ..., n_k).
    margins : mapping from the subsets of ``axes`` with one attribute fewer to tables.
    near : function that returns whether a margin of the table is near enough to the given margin;
        its argument is their difference.  Scaling stops when it returns True for all margins.
    sweeps : maximum number of passes over all margins.
    """
    for _ in range(sweeps):
        all_near = True
        for subset in largest_subsets(axes):
            sums = table.sum(axis=_other_axes(axes, subset))
            all_near &= near(sums - margins[subset])
            table *= along_axes(_ratio(margins[subset], sums), subset, axes)
        if all_near:
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
    """Shrink one noisy table towards its reference.

    Parameters
    ----------
    axes : the attributes of the table.
    estimate : noisy residual; None if the attribute set was not measured.
    margins : mapping from the subsets of ``axes`` with one attribute fewer to fitted tables, which
        are the margins of the result.
    total : number of records.
    possible : mask of the possible cells, for the maximum-entropy table.
    reference : table with these margins, shape (n_1, ..., n_k); by default the maximum-entropy
        table.
    expected_excess : expected squared deviation of the true table from the reference in counts^2,
        see `expected_deviations`.  By default it is estimated from ``estimate``.
    chooses_tau : whether Stein's risk estimate chooses a factor of tau among `TAU_FACTORS`;
        otherwise tau is multiplied by the first factor.
    tolerance : allowed error of the margins, as a share of the records; by default 1e-13 for pairs
        and `MARGIN_TOLERANCE` for larger sets.

    Returns
    -------
    Table in counts, shape (n_1, ..., n_k).  It is the reference itself in three cases: the
    attribute set was not measured; ``expected_excess`` is negligible; ``expected_excess`` is not
    given, and the noisy residual does not deviate significantly from the reference.

    Notes
    -----
    If the noise has a precision matrix, tau is estimated from this table alone, and ``chooses_tau``
    and ``tolerance`` have no effect.
    """
    table = max_entropy_table(axes, margins, possible) if reference is None else reference
    if estimate is None or estimate.rank == 0:
        return table
    gap = estimate.cells - estimate.projection.of(table)
    excess, excess_sd = estimate.noise_excess(gap)
    if expected_excess is None:
        if excess_sd < MIN_SIGNAL_SD.get(len(axes), MIN_SIGNAL_SD_DEFAULT):
            return table
    elif expected_excess <= NEGLIGIBLE_EXCESS * estimate.variance:
        return table
    if estimate.metric is not None:
        fit = table
        tau = excess / float(np.sum(estimate.metric.of_cells * table))
        # tau is large enough if the fit is as near to the noisy residual as linear shrinkage of the
        # residual is expected to be.
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


def _metric_fit(
    table: Array,
    start: Array,
    estimate: ResidualEstimate,
    metric: Metric,
    tau: float,
    axes: Axes,
    margins: Mapping[Axes, Array],
) -> Array:
    """Shrink a table whose noise has a precision matrix, by accelerated proximal gradient steps.

    Parameters
    ----------
    table : reference m.
    start : table at which the search starts.
    tau : variance of the true cells about the reference, divided by the cells of the reference.
    margins : margins of the result, as in `shrink_table`.
    """
    step = 1.0 / metric.largest_eigenvalue
    current = point = start
    momentum = 1.0
    multipliers = dict[Axes, Array]()
    for _ in range(MAX_STEPS):
        slope = metric.of(estimate.projection.of(point) - estimate.cells)
        proposal = _entropic_fit(
            table, point - step * slope, step / tau, axes, margins, MARGIN_TOLERANCE, multipliers
        )
        change = proposal - current
        # Momentum of FISTA, which restarts if its direction opposes the gradient.
        last_momentum = 1.0 if float(np.sum((point - proposal) * change)) > 0.0 else momentum
        momentum = (1.0 + math.sqrt(1.0 + 4.0 * last_momentum * last_momentum)) / 2.0
        point, current = proposal + (last_momentum - 1.0) / momentum * change, proposal
        if metric.squared(change) <= STEP_TOLERANCE * estimate.rank:
            break
    return current


def _risk(
    fit: Array, table: Array, gap: Array, s: float, estimate: ResidualEstimate, tau: float
) -> float:
    """Return Stein's unbiased estimate of the weighted squared error of ``fit``, up to a constant.

    Parameters
    ----------
    fit : fitted table.
    table : reference m of the fit.
    gap : noisy residual minus the residual of the reference.
    s : noise variance v divided by the tau with which ``fit`` was computed.
    tau : sets the weights 1 / (v + tau m) of the cells.  All fits that are compared have the same
        weights.
    """
    weights = 1.0 / (estimate.variance + tau * table)
    # Derivative of each fitted cell with respect to its noisy cell, if the multipliers do not
    # change.
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
    multipliers: dict[Axes, Array] | None = None,
) -> Array:
    """Return the table with given margins that is near noisy cells and near a reference.

    The module docstring states the problem.  Its solution, shape (n_1, ..., n_k), is
    s omega((noisy - u) / s + log(table / s)), where ``table`` is the reference, omega is the omega
    function of Wright, and u has one multiplier per cell of every margin.  Newton steps adjust the
    multipliers of one margin after the other.  The search ends when the error of every margin is at
    most ``tolerance`` times the number of records, or after a maximum number of passes.  Without a
    ``tolerance`` it is 1e-13 for pairs, and otherwise `MARGIN_TOLERANCE`.

    ``multipliers`` maps margins to multipliers from which the search starts; the final multipliers
    are stored in it.  A sequence of similar fits therefore needs few steps.
    """
    with np.errstate(divide="ignore"):
        argument = noisy / s + np.log(table / s)
    is_warm = bool(multipliers)
    for subset, u in (multipliers or {}).items():
        argument -= along_axes(u, subset, axes) / s
    total = float(table.sum())
    max_sweeps = ENTROPY_SWEEPS
    if len(axes) > 2:
        tolerance = tolerance or MARGIN_TOLERANCE
    else:  # sweeps over the margins of pairs are fast: continue to rounding errors
        tolerance, max_sweeps = tolerance or 1e-13, 10 * ENTROPY_SWEEPS
    # For small shifts of the argument, the series of `_shifted_omega` is accurate, and several
    # times faster than the omega function.
    max_series_shift = 0.0 if multipliers is None else np.cbrt(SERIES_ERROR_SHARE * tolerance)
    values = scipy.special.wrightomega(argument)
    for sweep in range(max_sweeps):
        margin_error = 0.0
        for subset in largest_subsets(axes):
            summed_axes = _other_axes(axes, subset)
            margin = margins[subset]
            sums = s * values.sum(axis=summed_axes)
            slopes = (values / (1.0 + values)).sum(axis=summed_axes)
            margin_error = max(margin_error, float(np.abs(sums - margin).sum()))
            # The step of each multiplier u is a Newton step for the equation log(sum) =
            # log(margin), because log(sum) is nearly concave in u.
            regular = (margin > 0.0) & (slopes > UNDERFLOW)
            steps = np.zeros_like(sums)
            steps[regular] = (
                sums[regular] * (np.log(sums[regular]) - np.log(margin[regular])) / slopes[regular]
            )
            # If all cells of a sum underflow, the multiplier is set such that the largest cell
            # equals the margin.
            if (underflowed := (margin > 0.0) & ~regular).any():
                top = argument.max(axis=summed_axes)
                underflowed &= np.isfinite(top)
                steps[underflowed] = s * (top[underflowed] - np.log(margin[underflowed] / s))
            shift = along_axes(steps, subset, axes) / s
            argument -= shift
            if float(np.abs(shift).max(initial=0.0)) <= max_series_shift:
                values = _shifted_omega(values, -shift)
            else:
                values = scipy.special.wrightomega(argument)
            if multipliers is not None:
                multipliers[subset] = multipliers.get(subset, 0.0) + steps
        if (sweep or is_warm) and margin_error <= tolerance * total:
            break
    return np.asarray(s * values)


def _shifted_omega(values: Array, shift: Array) -> Array:
    """Return omega(x + shift) from ``values`` = omega(x), up to a relative error of about shift^3.

    Computed by the second-order Taylor expansion of log omega; its first two derivatives are
    1 / (1 + omega) and -omega / (1 + omega)^3.

    >>> x = np.linspace(-5.0, 50.0, 12)
    >>> omega = scipy.special.wrightomega
    >>> np.allclose(_shifted_omega(omega(x), 0.01), omega(x + 0.01), rtol=1e-7, atol=0.0)
    True
    """
    slope = 1.0 / (1.0 + values)
    return np.asarray(values * np.exp(shift * slope * (1.0 - 0.5 * shift * values * slope * slope)))


def _other_axes(axes: Axes, subset: Axes) -> tuple[int, ...]:
    """Return the positions in ``axes`` of the attributes that are not in ``subset``."""
    return tuple(i for i, a in enumerate(axes) if a not in subset)


def _ratio(numerator: Array, denominator: Array) -> Array:
    """Return the quotient of two arrays, 0 where the denominator is not positive."""
    shape = np.broadcast_shapes(numerator.shape, denominator.shape)
    positive = np.broadcast_to(denominator > 0.0, shape)
    return np.divide(numerator, denominator, out=np.zeros(shape), where=positive)


# Allowed error of margins in `make_consistent`, as a share of its argument ``tolerance``.
MARGIN_TOLERANCE_SHARE = 0.2
SCALING_SWEEPS = 100  # maximum number of passes over the margins of one table
REFERENCE_TOLERANCE = 1e-6  # allowed error of the margins of references, as a share of the records
MAX_SCALING_ROUNDS = 6  # after this number of rounds, all remaining tables are projected jointly


def shrunk_total(total: float, variance: float) -> float:
    """Return the noisy number of records, shrunk towards 0 by the positive-part James-Stein rule.

    The shrinkage matters only for totals of the size of their noise: a total of 50 standard errors
    changes by a fiftieth of a standard error.

    >>> shrunk_total(10.0, 4.0), shrunk_total(-3.0, 4.0)
    (9.6, 0.0)
    """
    return max(0.0, total - variance / total) if total > 0.0 else 0.0


def shrunk_contrasts(
    evidence: Evidence,
    total: float,
    report_progress: Listener,
    checkpoints: Checkpoints = NO_CHECKPOINTS,
) -> dict[Axes, Array]:
    """Shrink all tables that are not public; return the contrasts of all tables.

    ``total`` is the number of records, above 0.  The result maps attribute sets to contrasts in the
    shapes of their tables.  Fitted tables that overlap agree up to the tolerance of the fits;
    `make_consistent` removes the remaining differences.
    """
    by_order = {
        k: [axes for axes in evidence.sets if len(axes) == k]
        for k in range(len(evidence.sets[-1]) + 1)
    }
    saved = checkpoints.read("low")
    tables = (
        arrays_by_axes(saved)
        if saved
        else _low_order_tables(evidence, total, by_order, report_progress)
    )
    checkpoints.write("low", arrays_by_name(tables))
    contrasts = {axes: contrast(table) for axes, table in tables.items()}
    upper = [axes for axes in evidence.sets if len(axes) > 2]
    margin_sets = {subset for axes in upper for subset in largest_subsets(axes)}
    for number, axes in enumerate(upper):
        # `max_entropy_table` needs these margins
        margins = {subset: tables[subset] for subset in (*largest_subsets(axes), axes[:-2])}
        table = evidence.exact.get(axes)
        if table is None:
            name = f"fit {number}"
            saved_fit = checkpoints.read(name)
            if saved_fit:
                table = saved_fit["table"]
            else:
                estimate, possible = evidence.residuals.get(axes), evidence.possible.get(axes)
                table = shrink_table(axes, estimate, margins, total, possible)
                checkpoints.write(name, {"table": table})
        if axes in margin_sets:
            tables[axes] = table
        contrasts[axes] = contrast(table)
        # these fits are reported as the steps from 10% to 40%
        report_progress(0.1 + 0.3 * (number + 1) / len(upper), "Fitting tables")
    return contrasts


def _low_order_tables(
    evidence: Evidence, total: float, by_order: dict[int, list[Axes]], report_progress: Listener
) -> dict[Axes, Array]:
    """Return the fitted tables on at most two attributes, by attribute set, in counts.

    The residuals of triples are used as further measurements of the residuals of pairs, if both are
    plain (`_is_plain`).  ``by_order`` maps a number of attributes to the attribute sets of this
    size.
    """
    # ``residuals`` has the residual and its variance for every plain pair (see `_is_plain`).
    residuals = {
        axes: (evidence.residuals[axes].cells, evidence.residuals[axes].variance)
        for axes in by_order.get(2, [])
        if _is_plain(evidence, axes)
    }
    tables: dict[Axes, Array] = {(): np.array(total)}
    tables |= _one_and_two_way(evidence, total, tables, by_order, residuals)
    triples = [axes for axes in by_order.get(3, []) if _is_plain(evidence, axes)]
    if triples:
        for _ in range(TRIPLE_ROUNDS):
            singles = {a: tables[a] for a in by_order[1]}
            pairs = {a: tables[a] for a in by_order[2]}
            residuals = pooled_pairs(evidence, total, singles, pairs, triples)
            tables |= _two_way(evidence, total, tables, by_order[2], residuals)
            report_progress(0.1, "Deriving pairs from triples")
        tables |= _one_and_two_way(evidence, total, tables, by_order, residuals)
    # The plain pairs are fitted again, towards references that third attributes predict.
    plain_pairs = [axes for axes in by_order.get(2, []) if axes in residuals]
    references = _mediator_references(evidence, tables, plain_pairs, residuals)
    return tables | _two_way(evidence, total, tables, plain_pairs, residuals, references)


def _mediator_references(
    evidence: Evidence,
    tables: Mapping[Axes, Array],
    pairs: Iterable[Axes],
    residuals: Mapping[Axes, PooledResidual],
) -> dict[Axes, Array]:
    """Return a mapping from pairs to references that are predicted through third attributes.

    A pair has no reference here if it has impossible cells or a public table, or if no third
    attribute predicts it.

    Parameters
    ----------
    tables : fitted tables in counts; the one-way tables are the margins of the references.
    pairs : the pairs for which references are computed.
    residuals : pooled residuals of pairs.
    """
    predictions = PairPredictions(tables)
    references = dict[Axes, Array]()
    for axes in pairs:
        if axes in evidence.possible or axes in evidence.exact:
            continue
        if not (candidates := predictions.candidates(*axes)):
            continue
        margins = {subset: tables[subset] for subset in (*largest_subsets(axes), ())}
        estimate = _pooled_estimate(evidence.residuals[axes], axes, residuals)
        mean = likelihood_mean([max_entropy_table(axes, margins), *candidates], estimate)
        # The mean of the predictions is scaled to the fitted margins.
        near = partial(_within, allowed=REFERENCE_TOLERANCE * float(tables[()]))
        references[axes] = fit_margins(mean, axes, margins, near)
    return references


def _pooled_estimate(
    estimate: ResidualEstimate, axes: Axes, residuals: Mapping[Axes, PooledResidual]
) -> ResidualEstimate:
    """Return ``estimate`` with its residual and variance replaced by those in ``residuals``.

    The result is ``estimate`` itself if ``residuals`` has no entry for ``axes``.
    """
    if axes not in residuals:
        return estimate
    return replace(estimate, cells=residuals[axes][0], variance=residuals[axes][1])


def make_consistent(
    evidence: Evidence,
    contrasts: dict[Axes, Array],
    tolerance: float,
    report_progress: Listener,
    checkpoints: Checkpoints = NO_CHECKPOINTS,
) -> dict[Axes, Array]:
    """Change fitted tables so that overlapping tables agree and no cell is negative.

    The schema must have no impossible cells and no public tables.

    Parameters
    ----------
    contrasts : contrasts of the fitted tables by attribute set; they are changed in place and
        returned.
    tolerance : intended largest share of uniform tables that are mixed in.

    Guarantee: all cells are at least 0, up to the rounding of sums.
    """
    total = float(contrasts[()])
    margin_tolerance = MARGIN_TOLERANCE_SHARE * tolerance
    joint_sets = [axes for axes in evidence.tables if len(axes) <= 2]
    scaled_sets = [axes for axes in evidence.tables if len(axes) > 2]
    scaled_margins = {subset for axes in scaled_sets for subset in largest_subsets(axes)}
    # Each round first projects the tables on ``joint_sets``, and the margins of the tables on
    # ``scaled_sets``, jointly on non-negative tables.  Then it scales the tables on ``scaled_sets``
    # to the projected margins.  Sets for which scaling fails are projected in the next round.
    for number in itertools.count():
        # The number of rounds is unknown, so each round takes half of the remaining progress bar.
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
            _partial_listener(report_progress, low, share),
            checkpoints=round_checkpoints,
        )
        failed = []
        for axes in scaled_sets:
            report_progress(low + share, AGREEING)
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
        # After `MAX_SCALING_ROUNDS`, all tables are projected and none is scaled.
        joint_sets += failed if number < MAX_SCALING_ROUNDS else scaled_sets
        scaled_sets = [axes for axes in scaled_sets if axes not in joint_sets]
    return mix_with_uniform(contrasts, evidence.tables, {}, {}, ())


def _partial_listener(report_progress: Listener, low: float, share: float) -> Listener:
    """Return a listener that reports a share x of one step as ``low + x * share`` of all steps."""
    return lambda done, words: report_progress(low + share * done, words)


def _within(gap: Array, allowed: float) -> bool:
    """Return whether the largest entry of ``gap``, times its number of cells, is at most
    ``allowed``.

    ``gap`` has the differences of the cells of one margin, in counts.
    """
    return float(np.abs(gap).max(initial=0.0)) * gap.size <= allowed


def _is_plain(evidence: Evidence, axes: Axes) -> bool:
    """Return whether a residual was measured completely, with the same variance in all
    directions."""
    return (
        axes in evidence.residuals
        and evidence.residuals[axes].projection.plain
        and evidence.residuals[axes].metric is None
    )


def _one_and_two_way(
    evidence: Evidence,
    total: float,
    tables: dict[Axes, Array],
    by_order: dict[int, list[Axes]],
    residuals: dict[Axes, PooledResidual],
) -> dict[Axes, Array]:
    """Return the fitted one-way and two-way tables by attribute set, in counts.

    ``residuals`` are the residuals of pairs; they are also used as measurements of single
    attributes.
    """
    singles = single_tables(evidence, total, residuals)
    return singles | _two_way(evidence, total, tables | singles, by_order.get(2, []), residuals)


def _two_way(
    evidence: Evidence,
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
    pairs : the pairs to fit.
    residuals : pooled residuals of the pairs whose residuals were measured completely, with equal
        variances.  tau of these pairs is estimated jointly.
    mediated : mapping from pairs to references.  Pairs without an entry are shrunk towards the
        maximum-entropy table.  If it is None (first fit), tau of the pairs in ``residuals`` is
        multiplied by the first of `TAU_FACTORS`; otherwise the risk estimate can choose the factor.
    """
    references, pooled = dict(mediated or {}), dict[Axes, ResidualEstimate]()
    out = {axes: evidence.exact[axes] for axes in pairs if axes in evidence.exact}
    fitted = [axes for axes in pairs if axes not in out]
    margins = {
        axes: {subset: tables[subset] for subset in (*largest_subsets(axes), ())} for axes in fitted
    }
    for axes in fitted:
        if axes in evidence.residuals:
            pooled[axes] = _pooled_estimate(evidence.residuals[axes], axes, residuals)
        if axes not in references:
            possible = evidence.possible.get(axes)
            references[axes] = max_entropy_table(axes, margins[axes], possible)
    plain = {axes: references[axes] for axes in fitted if axes in residuals}
    excesses = expected_deviations(pooled, plain)
    # excess of the distance from the reference over pure noise, in standard deviations
    signals = {
        a: pooled[a].noise_excess(pooled[a].cells - pooled[a].projection.of(m))[1]
        for a, m in plain.items()
    }
    n_significant = sum(signal >= SIGNIFICANT_SD for signal in signals.values())
    choice_threshold = MIN_CHOICE_SD
    if n_significant >= MIN_SIGNAL_SHARE * len(signals):
        choice_threshold = -math.inf
    for axes in fitted:
        deviates = mediated is not None and signals.get(axes, 0.0) >= choice_threshold
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
