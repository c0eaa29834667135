"""Group weights that minimise the predicted error of published tables.

A plan minimises the variance of unbiased answers.  For published tables other weights are better,
for two reasons.  Publishing replaces a residual with more noise than signal by its prediction from
smaller tables, so that budget spent on this residual is lost.  And an error in a small table is
repeated in every table that contains it.

**Prediction.**  Let a plan measure the residual on each attribute set B with noise of variance v_B
per cell, and let t be the variance of a true cell of this residual.  Linear shrinkage of the
residual towards 0 has the L1 error

    e_B = 0.8 sum over cells of sqrt(v t / (v + t)) / N,

relative to N records.  The variances t are assumed to be proportional to the cell counts, which are
lognormal with the standard deviation `LOG_CELL_SPREAD`.  Their size is such that the residual
deviates from 0 by d N records (sum of absolute values).  For residuals on k >= 2 attributes, d has
the values `DEVIATIONS` times `ORDER_FACTOR`^(k - 2) with equal probability, or follows from a
reference.  For residuals on one attribute, d is the largest possible value 2, and for the total t
is infinite.  The predicted error of the table on A is the root of the sum of e_B^2 over all B
inside A.

**Optimum.**  Let sigma_B^2 be the variance of the noise of the residual on B, and c_B / sigma_B^2
its privacy cost.  Let u_B be the derivative of the mean error of all tables with respect to
sigma_B^2. For sets B of two or more attributes, u_B is increased (`POOLING_GAIN`).  At the optimum,
sigma_B^2 is proportional to sqrt(c_B / u_B).  Damped steps find variances that satisfy this rule.
A plan minimises the weighted sum of the variances of all groups.  The group weights are chosen such
that the derivatives of this sum are the u_B.

**Small budgets.**  Publishing has to detect the signal of a residual in the noise.  With a small
budget, it rarely detects a signal in residuals on two or more attributes.  Without a reference, the
u_B of these residuals are therefore divided by 1 + (e / `ONE_WAY_ERROR`)^4.  Here e is the mean
error of one-way tables without shrinkage if the whole budget is spent on them.

**Large budgets.**  Let s be the share of the budget for residuals on two or more attributes.  The
larger s is, the less the predicted errors say about the differences between tables.  Each weight is
therefore a geometric mean w^(1 - s^2 / 2) w_0^(s^2 / 2), where the prediction gives w and w_0 is
the original weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import scipy

from engine._arrays import Array
from engine._validation import check_positive, check_type
from engine.errors import LimitExceeded, NotAnswerable, PlanError
from engine.postprocess.published_tables import MAX_SETS, Published
from engine.postprocess.shrinkage import max_entropy_table
from engine.privacy import Budget
from engine.records import count_marginals
from engine.residuals import Space
from engine.workload import Schema, Workload, subsets

# Assumed deviations of a pair of attributes from independence, as shares of the records.  All are
# equally likely.
DEVIATIONS = np.array([0.01, 0.04, 0.1, 0.2, 0.5])
# Assumed L1 norm of the residual on one attribute, as a share of the records.  It is the largest
# possible one: the L1 distance of two tables of shares is at most 2.
MAX_DEVIATION = 2.0
ORDER_FACTOR = 0.4  # deviations are multiplied by this factor for each attribute beyond two
LOG_CELL_SPREAD = 2.25  # assumed standard deviation of the logarithm of cell counts
# Residuals on two or more attributes also improve other tables (`partial_pooling`, `shrinkage`).
# The predicted error ignores this.  The derivative of the error of a cell is therefore multiplied
# by 1 + POOLING_GAIN * (share of signal in the noisy cell).  The gain was chosen on five real
# tables.
POOLING_GAIN = 1.0
CELL_QUANTILES = 15  # number of quantiles that represent the distribution of cell counts
# Without a reference, the derivatives u_B of residuals on two or more attributes are divided by
# 1 + (e / ONE_WAY_ERROR)^4 (see the module docstring).  The value was chosen on 22 real tables.
ONE_WAY_ERROR = 0.05
MEAN_ABSOLUTE = math.sqrt(2.0 / math.pi)  # mean absolute value of standard normal noise
# Smallest deviation that is assumed for a reference table, because published tables can deviate
# less from their predictions than the true tables do.
MIN_DEVIATION = 0.05
MIN_WEIGHT_SHARE = 1e-12  # smallest weight divided by the largest one
MIN_SLOPE = 1e-16  # smallest derivative per privacy cost, divided by the largest one
# The search ends after MAX_STEPS, or when no logarithm of a variance changes by more than
# STEP_TOLERANCE.
MAX_STEPS, STEP_TOLERANCE = 200, 1e-4


def publication_weights(
    workload: Workload, budget: Budget, *, expected_records: float, reference: Any = None
) -> Workload:
    """Choose group weights for tables that will be published, from public information.

    Parameters
    ----------
    workload : groups of queries, one per table.  The weight of a group is the importance of the
        errors of its table; a weight of 0 remains 0.  Groups of all query families are treated as
        marginals on their attributes.
    budget : the budget of the release.
    expected_records : expected number of records, which must be public.
    reference : public tables that resemble the expected ones: `Published` tables of an earlier
        release, or public or simulated records in a form that `count_marginals` accepts.  Never
        give the private records, because a plan is public.

    Returns
    -------
    The workload with new group weights, as an argument of `plan`.  The unbiased answers of such a
    plan have a larger root mean squared error than those with the original weights.

    Guarantee: a deterministic function of its arguments.

    Raises
    ------
    PlanError : the workload is not a Workload, or the number of records is not positive; the
        reference has another schema, was published with fit="none", or has no records.
    LimitExceeded : the groups have too many subsets of attributes.

    >>> from engine import Attribute, Budget, Schema, Workload
    >>> schema = Schema([Attribute.of_size("a", 20), Attribute.of_size("b", 30)])
    >>> workload = Workload.all_ways(schema, (1, 2), family="marginal")
    >>> one, *_, pair = publication_weights(workload, Budget(pcost=0.01), expected_records=500).groups
    >>> one.weight > 100 * pair.weight
    True
    """
    check_type(
        "workload",
        workload,
        Workload,
        give="a Workload, such as Workload.all_ways(schema)",
        error=PlanError,
    )
    records = check_positive("expected number of records", expected_records, error=PlanError)
    schema = workload.schema
    importance = dict[Space, float]()
    sets = [_wide(group.attributes, schema) for group in workload.groups]
    for names, group in zip(sets, workload.groups, strict=True):
        importance[names] = importance.get(names, 0.0) + group.weight
    importance = {names: weight for names, weight in importance.items() if weight > 0.0}
    if not importance:
        return workload
    deviations = None if reference is None else _deviations(reference, workload, importance)
    weights, share = _set_weights(schema, importance, budget.row_pcost, records, deviations)
    exponent = 1.0 - share**2 / 2.0
    new_weights = [
        (weights[names] / importance[names] * schema.cells(names) / group.count) ** exponent
        * group.weight
        if group.weight > 0.0
        else 0.0
        for names, group in zip(sets, workload.groups, strict=True)
    ]
    scale = sum(g.weight * g.count for g in workload.groups) / sum(
        weight * g.count for weight, g in zip(new_weights, workload.groups, strict=True)
    )
    groups = [
        replace(group, weight=scale * weight)
        for group, weight in zip(workload.groups, new_weights, strict=True)
    ]
    return Workload(schema, tuple(groups))


def _wide(names: Space, schema: Schema) -> Space:
    """Return the attributes in ``names`` with more than one cell, in the order of the schema."""
    return tuple(name for name in schema.names if name in names and schema[name].size > 1)


def _set_weights(
    schema: Schema,
    importance: Mapping[Space, float],
    pcost: float,
    records: float,
    deviations: Mapping[Space, float] | None,
) -> tuple[dict[Space, float], float]:
    """Return (weights, share of the budget for residuals on two or more attributes).

    ``weights`` maps each attribute set to the query weight of every cell of its table.

    Parameters
    ----------
    importance : mapping from attribute sets to the importance of their tables.
    pcost : privacy cost of the release.
    records : expected number of records.
    deviations : mapping from attribute sets to the share of the records by which their tables
        deviate from the prediction of smaller tables; None for the prior `DEVIATIONS`.
    """
    if sum(2 ** len(names) for names in importance) > MAX_SETS:
        raise LimitExceeded(
            f"The groups have more than {MAX_SETS:,} subsets of attributes. Use a workload with "
            "fewer attributes per group."
        )
    spaces_of_group = {names: list(subsets(names)) for names in importance}
    spaces = sorted({space for spaces in spaces_of_group.values() for space in spaces}, key=len)
    index = {space: i for i, space in enumerate(spaces)}
    cells = np.array([float(schema.cells(space)) for space in spaces])
    # The number of residual coordinates of each space, and its privacy cost at noise variance 1.
    coordinates = np.array([math.prod(schema[n].size - 1.0 for n in space) for space in spaces])
    costs = coordinates / cells
    # ``dispersions`` has the assumed variance of a true cell, shape (spaces, deviations,
    # quantiles).  It is infinite for the total, which is not shrunk.
    quantiles = scipy.special.ndtri((np.arange(CELL_QUANTILES) + 0.5) / CELL_QUANTILES)
    counts = np.exp(LOG_CELL_SPREAD * quantiles)
    counts /= np.sqrt(counts).mean() ** 2
    shares = np.full((len(spaces), len(DEVIATIONS)), np.inf)
    for i, space in enumerate(spaces):
        if len(space) == 1:
            shares[i] = MAX_DEVIATION
        elif len(space) > 1:
            prior = DEVIATIONS * ORDER_FACTOR ** (len(space) - 2)
            shares[i] = prior if deviations is None else deviations[space]
    dispersions = np.multiply.outer(
        (shares * records / (MEAN_ABSOLUTE * cells[:, None])) ** 2, counts
    )
    # The two arrays have one entry per pair (table, residual space that the table contains).
    set_index = np.repeat(
        np.arange(len(importance)), [len(spaces) for spaces in spaces_of_group.values()]
    )
    space_index = np.array(
        [index[space] for spaces in spaces_of_group.values() for space in spaces]
    )
    set_weights = np.array(list(importance.values())) / sum(importance.values())
    variances = np.full(len(spaces), costs.sum() / pcost)
    factors = MEAN_ABSOLUTE * cells / records
    gains = np.array([POOLING_GAIN if len(space) > 1 else 0.0 for space in spaces])[:, None, None]

    is_single = np.array([len(space) == 1 for space in spaces])
    is_interaction = np.array([len(space) > 1 for space in spaces])
    reliability = np.ones(len(spaces))
    if deviations is None and is_interaction.any():
        # ``error`` is the predicted L1 error of one-way tables without shrinkage if the one-way
        # tables get the whole budget.
        noise_without_pairs = costs * costs[~is_interaction].sum() / pcost
        error = float((factors * np.sqrt(noise_without_pairs))[is_single].mean())
        reliability[is_interaction] = 1.0 / (1.0 + (error / ONE_WAY_ERROR) ** 4)

    def derivatives_at(variances: Array) -> Array:
        """Return the derivatives u_B of the mean error of all tables, shape (spaces,)."""
        noise = (costs * variances)[:, None, None]
        remaining = 1.0 / (1.0 + noise / dispersions)
        errors = factors[:, None] * np.sqrt(noise * remaining).mean(axis=2)
        pooling = 1.0 + gains * remaining
        slopes = (factors * costs)[:, None] * (
            pooling * 0.5 * remaining**1.5 / np.sqrt(noise)
        ).mean(axis=2)
        squares = (errors**2).mean(axis=1)
        square_slopes = reliability * (2.0 * errors * slopes).mean(axis=1)
        table_errors = np.sqrt(np.bincount(set_index, squares[space_index]))
        derivatives = square_slopes * np.bincount(
            space_index, (set_weights / (2.0 * table_errors))[set_index]
        )
        # The derivatives have a positive lower bound. Therefore residuals with much more noise than
        # signal get a share of the budget that is negligible but not 0.
        least = MIN_SLOPE * costs * float((derivatives / costs).max())
        return np.asarray(np.maximum(derivatives, least))

    for _ in range(MAX_STEPS):
        derivatives = derivatives_at(variances)
        optimum = np.sqrt(costs / derivatives)
        optimum *= (costs / optimum).sum() / pcost
        # The step goes half the way to the optimum, in logarithms of the variances.
        new = np.sqrt(variances * optimum)
        new *= (costs / new).sum() / pcost
        step = float(np.abs(np.log(new / variances)).max())
        variances = new
        if step <= STEP_TOLERANCE:
            break
    share = float((costs / variances)[is_interaction].sum()) / pcost
    return _weights_of_derivatives(derivatives, index, spaces_of_group, coordinates, cells), share


def _weights_of_derivatives(
    derivatives: Array,
    index: Mapping[Space, int],
    inside: Mapping[Space, list[Space]],
    coordinates: Array,
    cells: Array,
) -> dict[Space, float]:
    """Return query weights such that the weighted sum of variances has the given ``derivatives``.

    The variances of all cells of the table on A sum to the sum over B inside A of sigma_B^2 times
    coordinates_B / (number of cells of A outside B).  The weights solve this triangular system,
    largest sets first.  A weight that would be negative, or less than `MIN_WEIGHT_SHARE` times the
    largest one, is raised to this number.

    Parameters
    ----------
    derivatives : with respect to the variances sigma_B^2, shape (spaces,).
    index : mapping from residual spaces to their positions in the arrays.
    inside : mapping from the attribute sets of the tables to their subsets.
    coordinates, cells : numbers of residual coordinates and of cells, shape (spaces,).
    """
    remaining, weights = derivatives.copy(), dict[Space, float]()
    for names in sorted(inside, key=len, reverse=True):
        table = index[names]
        weight = max(remaining[table], 0.0) / coordinates[table]
        weights[names] = float(weight)
        for space in inside[names]:
            i = index[space]
            remaining[i] -= weight * coordinates[i] * cells[i] / cells[table]
    least = MIN_WEIGHT_SHARE * max(weights.values())
    return {names: max(weight, least) for names, weight in weights.items()}


def _deviations(reference: Any, workload: Workload, sets: Iterable[Space]) -> dict[Space, float]:
    """Return how far tables of a reference deviate from the predictions of smaller tables.

    The result maps every subset of ``sets`` with at least two attributes to a share of the records.
    """
    spaces = {space for names in sets for space in subsets(names) if len(space) > 1}
    table = _reference_tables(reference, workload.schema, spaces)
    return {space: _deviation(table(space)) for space in spaces}


def _reference_tables(
    reference: Any, schema: Schema, spaces: Iterable[Space]
) -> Callable[[Space], Array | None]:
    """Return a function that maps attributes to their table in a reference, in counts.

    The function returns None for attributes that the reference has no table on.
    """
    if not isinstance(reference, Published):
        counted = count_marginals(reference, schema, [(), *spaces])
        if not counted[()] > 0:
            raise PlanError("The reference has no records. Give a reference with records.")
        return lambda names: counted[names].astype(float)
    published = reference.measurement.plan.schema
    if any(name not in published or published[name].size != schema[name].size for name in schema):
        raise PlanError(
            "The attributes of the reference, or their numbers of cells, differ from those of the"
            " workload. Give tables that were published with the same schema."
        )
    if reference.fit == "none":
        raise PlanError(
            'The reference was published with fit="none", so its cells may be negative. Publish it'
            ' with fit="shrunk" or "nonnegative".'
        )
    if not reference.total > 0.0:
        raise PlanError(
            "The published number of records of the reference is 0. Give a reference with records."
        )

    def published_table(names: Space) -> Array | None:
        try:
            return reference.table(names)
        except NotAnswerable:
            return None

    return published_table


def _deviation(table: Array | None) -> float:
    """Return the share of records by which a table deviates from its maximum-entropy reference.

    The result is at least `MIN_DEVIATION`.  It is `MIN_DEVIATION` if the table is None (missing).
    """
    if table is None:
        return MIN_DEVIATION
    axes = tuple(range(table.ndim))
    margins = {
        subset: table.sum(axis=tuple(a for a in axes if a not in subset))
        for subset in (*(axes[:i] + axes[i + 1 :] for i in axes), axes[:-2])
    }
    difference = table - max_entropy_table(axes, margins)
    return max(float(np.abs(difference).sum() / table.sum()), MIN_DEVIATION)
