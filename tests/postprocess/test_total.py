"""Total number of records: estimation from residuals when its noise is large."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from engine.mechanisms import plan
from engine.postprocess import publish
from engine.postprocess.partial_pooling import pooled_total
from engine.postprocess.publication_weights import publication_weights
from engine.postprocess.residual_estimates import evidence
from engine.postprocess.shrinkage import shrunk_total
from engine.postprocess.uncertainty import simulate_measurement
from engine.privacy import Budget
from engine.workload import Attribute, Schema, Workload

SIZES, PEOPLE, SEEDS = (6, 5, 4, 8, 3, 7), 4_000.0, 12
SCHEMA = Schema([Attribute.of_size(name, n) for name, n in zip("abcdef", SIZES, strict=True)])


def share_of(size):
    """Return the shares of ``size`` cells, with most records in the first cell as in real tables."""
    return np.array([0.7, *([0.3 / (size - 1)] * (size - 1))])


def independent(names):
    """Table of records with independent attributes."""
    table = np.array(PEOPLE)
    for name in names:
        table = np.multiply.outer(table, share_of(SCHEMA[name].size))
    return table


def comonotone(names):
    """Table of records whose attributes are all in the first cell or all in the last."""
    table = np.zeros(SCHEMA.sizes(names))
    table[(0,) * len(names)] += 0.7 * PEOPLE
    table[(-1,) * len(names)] += 0.3 * PEOPLE
    return table


def plan_marginals(pcost, ways=(1, 2)):
    workload = Workload.all_ways(SCHEMA, ways, family="marginal")
    return plan(workload, Budget(pcost=pcost), mechanism="residualplanner")


def total_errors(table, pcost, ways):
    """Return three errors of the total number of records over simulated releases.

    They are the RMSE of the measured total, the RMSE of the total estimated with the residuals of
    all tables (`pooled_total`), and the root mean square of its reported standard error.
    """
    result = plan_marginals(pcost, ways)
    rows = []
    for seed in range(SEEDS):
        measurement = evidence(simulate_measurement(result, table, np.random.default_rng(seed)))
        total, variance = pooled_total(measurement)
        rows.append([(measurement.total - PEOPLE) ** 2, (total - PEOPLE) ** 2, variance])
    return np.sqrt(np.mean(rows, axis=0))


@pytest.mark.parametrize(("ways", "max_ratio"), [((1, 2), 0.9), ((1, 2, 3), 0.85)])
def test_pooled_total_reduces_error_of_noisy_total(ways, max_ratio):
    unpooled, pooled, reported = total_errors(independent, pcost=0.002, ways=ways)
    assert pooled < max_ratio * unpooled
    assert 0.5 * pooled < reported < 2.0 * pooled


@pytest.mark.parametrize("ways", [(1, 2), (1, 2, 3)])
def test_pooled_total_with_dependent_attributes_is_robust(ways):
    unpooled, pooled, _ = total_errors(comonotone, pcost=0.01, ways=ways)
    assert pooled < 1.15 * unpooled


@pytest.mark.parametrize("seed", [31, 35, 50, 56])
def test_pooled_total_at_small_budget_stays_near_measured(seed):
    """With these seeds, the noisy pairs alone would give a total that is far too small."""
    budget = Budget(pcost=2e-5)
    workload = Workload.all_ways(SCHEMA, (1, 2), family="marginal")
    weighted = publication_weights(workload, budget, expected_records=PEOPLE)
    result = plan(weighted, budget, mechanism="residualplanner")
    measurement = evidence(simulate_measurement(result, independent, np.random.default_rng(seed)))
    total, variance = pooled_total(measurement)
    assert abs(total - measurement.total) < np.sqrt(measurement.total_variance)
    assert 0.5 * measurement.total_variance < variance <= measurement.total_variance


@pytest.mark.parametrize(
    ("table", "pcost"), [(comonotone, 0.2), (independent, 1e-6)], ids=["precise", "pure noise"]
)
def test_pooled_total_without_gain_is_measured_total(table, pcost):
    measurement = evidence(
        simulate_measurement(plan_marginals(pcost), table, np.random.default_rng(1))
    )
    assert pooled_total(measurement) == (measurement.total, measurement.total_variance)


def test_pooled_total_with_noise_pairs_is_measured_total():
    workload = Workload(SCHEMA)
    for group in Workload.all_ways(SCHEMA, (1, 2), family="marginal").groups:
        weight = 1.0 if len(group.attributes) == 1 else 1e-13  # hardly any budget for pairs
        workload = workload.add(group.attributes, "marginal", weight=weight)
    result = plan(workload, Budget(pcost=1e-3), mechanism="residualplanner")
    for seed in range(5):
        measurement = evidence(
            simulate_measurement(result, independent, np.random.default_rng(seed))
        )
        assert pooled_total(measurement) == (measurement.total, measurement.total_variance)


def test_published_tables_sum_to_pooled_total():
    measurement = simulate_measurement(plan_marginals(0.002), independent, np.random.default_rng(3))
    published, estimates = publish(measurement), evidence(measurement)
    pooled = shrunk_total(*pooled_total(estimates))
    unpooled = shrunk_total(estimates.total, estimates.total_variance)
    assert abs(published.total - pooled) < 0.1 * abs(unpooled - pooled)
    for names in itertools.combinations("abcdef", 2):
        assert abs(published.table(names).sum() - published.total) <= 1e-9
