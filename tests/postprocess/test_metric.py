"""Published tables of plans whose sums are more precise than their cells."""

from __future__ import annotations

import numpy as np
import pytest
import scipy

from engine.plans.blocks import apply_factors
from engine.postprocess.partial_pooling import nearest_single
from engine.postprocess.residual_estimates import evidence
from engine.postprocess.shrinkage import max_entropy_table, shrink_table
from engine.privacy import Budget
from engine.release import apply_group
from engine.workload import Attribute, Schema, Workload
from tests.publish.measured import measured_on

SCHEMA = Schema([Attribute.of_size("x", 30), Attribute.of_size("y", 8), Attribute.of_size("z", 3)])
PAIRS = Workload.all_ways(SCHEMA, (1, 2), family="prefix")


@pytest.mark.parametrize(
    ("mechanism", "family", "pcost"),
    [
        ("querysmasher", "prefix", 0.02),
        ("querysmasher", "prefix", 2.0),
        ("querysmasher", "range", 0.2),
        ("residualplanner+", "prefix", 0.2),
    ],
)
def test_published_sums_are_as_accurate_as_unbiased_sums(mechanism, family, pcost):
    workload = Workload.all_ways(SCHEMA, (1, 2), family=family)
    unbiased_errors, published_errors = np.zeros((2, len(workload.groups)))
    for seed in range(3):
        measurement, table = measured_on(
            workload, Budget(pcost=pcost), seed=seed, mechanism=mechanism
        )
        published = measurement.publish()
        for i, group in enumerate(workload.groups):
            truth = apply_group(group, table(group.attributes), 0, group.count)
            unbiased_errors[i] += np.abs(measurement.values(i) - truth).mean()
            published_errors[i] += np.abs(published.values(i) - truth).mean()
    ratios = published_errors / unbiased_errors
    assert ratios.max() < 1.3, ratios
    assert ratios.mean() < 1.0, ratios


def test_published_prefix_answers_are_monotone():
    measurement, _ = measured_on(PAIRS, Budget(pcost=0.02), mechanism="querysmasher")
    published = measurement.publish()
    for i, group in enumerate(PAIRS.groups):
        table = published.values(i).reshape(SCHEMA.sizes(group.attributes))
        for axis in range(table.ndim):
            assert (np.diff(table, axis=axis) >= -1e-9).all()
    one_way_groups = range(len(SCHEMA))
    assert any((np.diff(measurement.values(i)) < 0).any() for i in one_way_groups)


@pytest.mark.parametrize(
    ("mechanism", "options"),
    [("querysmasher", {"centers": "uniform"}), ("residualplanner+", {})],
    ids=["querysmasher", "residualplanner+"],
)
def test_metric_equals_squared_norm_of_strategy_answers(mechanism, options):
    measurement, _ = measured_on(PAIRS, mechanism=mechanism, **options)
    estimates, rng = evidence(measurement), np.random.default_rng(1)
    compared = 0
    for space, block in measurement.plan.blocks.items():
        estimate = estimates.residuals.get(tuple(estimates.names.index(name) for name in space))
        if not space or block.union or estimate.metric is None:
            continue
        difference = rng.normal(size=estimate.cells.shape)
        strategy_answers = apply_factors(block, difference, lambda s: s.rows) / block.noise
        squared_norm = float(np.sum(strategy_answers**2))
        metric = estimate.metric.squared(estimate.projection.of(difference))
        assert metric == pytest.approx(squared_norm, rel=1e-8)
        compared += 1
    assert compared >= 5


def test_nearest_single_matches_nonnegative_least_squares():
    total = 400.0
    measurement, _ = measured_on(
        PAIRS, Budget(pcost=0.005), mechanism="residualplanner+", records=400
    )
    estimates = evidence(measurement)
    estimate = estimates.residuals[0,]
    table = nearest_single(estimate, total, estimates.centers[0])
    assert table.min() == 0.0
    assert table.sum() == pytest.approx(total)
    eigenvalues, vectors = np.linalg.eigh(estimate.metric.factors[0] * estimate.metric.scale)
    metric_root = (np.sqrt(np.maximum(eigenvalues, 0.0)) * vectors).T
    design = metric_root @ np.array([estimate.projection.of(unit) for unit in np.eye(30)]).T
    # a row of large weight fixes the total
    weight = 1e4 * design.max()
    expected, _ = scipy.optimize.nnls(
        np.vstack([design, np.full(30, weight)]),
        np.append(metric_root @ estimate.cells, weight * total),
    )

    def distance(cells):
        return estimate.metric.squared(estimate.projection.of(cells) - estimate.cells)

    assert distance(table) == pytest.approx(distance(expected), rel=1e-4)
    np.testing.assert_allclose(table, expected, atol=0.05)


def test_shrink_table_weights_directions_by_their_precision():
    measurement, _ = measured_on(
        PAIRS, Budget(pcost=5.0), mechanism="residualplanner+", records=20_000
    )
    estimates = evidence(measurement)
    estimate = estimates.residuals[0, 1]
    rows, columns = (measurement.marginal([estimates.names[a]]).clip(1.0) for a in (0, 1))
    total = float(rows.sum())
    margins = {(0,): rows, (1,): columns * (total / columns.sum()), (): np.array(total)}
    start = max_entropy_table((0, 1), margins)
    table = shrink_table((0, 1), estimate, margins, total)
    np.testing.assert_allclose(table.sum(axis=1), rows, rtol=1e-2, atol=5.0)

    def distance(cells):
        """Return the squared distance to the estimate, in units of its noise."""
        return estimate.metric.squared(estimate.projection.of(cells) - estimate.cells)

    assert distance(table) < 0.05 * distance(start)
    assert distance(table) < 2.0 * estimate.rank
    assert table.min() >= 0.0
