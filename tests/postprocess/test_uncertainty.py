"""Uncertainty of published tables: coverage, bias and quality flags."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy

from benchmarks.coverage import coverage
from engine.errors import Cancelled, LimitExceeded, NotAnswerable, PlanError
from engine.mechanisms import plan
from engine.postprocess import QualityRule, uncertainty
from engine.postprocess.residual_estimates import evidence
from engine.postprocess.uncertainty import (
    REASONS,
    SHARES,
    ResidualPosterior,
    draw_total,
    residual_posteriors,
    simulate_measurement,
)
from engine.privacy import Budget
from engine.workload import Attribute, Schema, Workload
from tests.publish.measured import SCHEMA, measured_on, random_tables

PAIRS = Workload.all_ways(SCHEMA, (1, 2), family="marginal")
A_GROUP, PAIR_GROUP = (
    [group.attributes for group in PAIRS.groups].index(names) for names in (("a",), ("a", "b"))
)
MANY = Schema(
    [Attribute.of_size(name, n) for name, n in zip("abcdef", (5, 6, 7, 6, 4, 6), strict=True)]
)
WIDE = Schema([Attribute.of_size(name, n) for name, n in zip("abcd", (14, 10, 8, 3), strict=True)])


def exact_tables(codes):
    """Return a function that maps attribute names to the exact table of records.

    ``codes`` has the shape (attributes, records).
    """

    def table(names):
        counts = np.zeros(MANY.sizes(names))
        if not names:
            return counts + codes.shape[1]
        np.add.at(counts, tuple(codes[MANY.order[name]] for name in names), 1.0)
        return counts

    return table


def uncertainty_at(pcost, draws=2):
    """Return the uncertainty of published tables of all pairs of attributes."""
    measurement, _ = measured_on(PAIRS, Budget(pcost=pcost))
    return measurement.publish().uncertainty(draws=draws)


def test_intervals_of_weakly_dependent_tables_are_not_conservative():
    """One attribute depends partly on another; all others are independent."""
    rng = np.random.default_rng(1)
    codes = np.stack(
        [rng.choice(n, 6_000, p=rng.dirichlet(np.ones(n))) for n in MANY.sizes(MANY.names)]
    )
    dependent = rng.random(6_000) < 0.3
    codes[1, dependent] = codes[0, dependent]
    workload = Workload.all_ways(MANY, (1, 2), family="marginal")
    budget, exact = Budget(pcost=4e-4), exact_tables(codes)
    pairs = coverage(workload, budget, exact, rehearsals=2, draws=8)[2]
    assert pairs["cells"] > 600
    assert 0.92 <= pairs["covered"] <= 0.985
    # If the dependence of each table were estimated from this table alone, the ratio of the two
    # half-widths would be 0.50.
    assert pairs["half"] < 0.46 * pairs["unbiased half"]


def test_intervals_of_hardly_measured_pairs_are_not_conservative():
    """One-way tables get nearly all of the budget; the errors of pairs depend on the prior of s."""
    rng = np.random.default_rng(1)
    latent = rng.integers(0, 3, 6_000)
    codes = [
        np.where(rng.random(6_000) < 0.3, latent, rng.integers(0, n, 6_000))
        for n in MANY.sizes(MANY.names)
    ]
    workload = Workload(MANY)
    for ways, weight in ((1, 1e6), (2, 1e-6)):
        for names in itertools.combinations(MANY.names, ways):
            workload = workload.add(names, weight=weight)
    exact, budget = exact_tables(np.stack(codes)), Budget(pcost=4e-4)
    pairs = coverage(workload, budget, exact, rehearsals=2, draws=8)[2]
    assert pairs["cells"] > 600
    assert pairs["covered"] >= 0.9
    # If the prior of the ratio s were uniform on its values, the mean half-width would be 353
    # counts.
    assert pairs["half"] < 260.0


def test_hidden_dependence_is_estimated_from_all_tables():
    """All attributes depend on one hidden variable, too weakly to estimate it from one table."""
    rng = np.random.default_rng(1)
    latent = rng.integers(0, 3, 6_000)
    codes = [
        np.where(rng.random(6_000) < 0.5, latent, rng.integers(0, n, 6_000))
        for n in MANY.sizes(MANY.names)
    ]
    table = exact_tables(np.stack(codes))
    workload = Workload.all_ways(MANY, (1, 2), family="marginal")
    result = plan(workload, Budget(pcost=4e-4), mechanism="residualplanner")
    true_shares = []
    for group in (g for g in workload.groups if len(g.attributes) == 2):
        counts = table(group.attributes)
        rows, columns = counts.sum(axis=1), counts.sum(axis=0)
        product = np.outer(rows, columns) / counts.sum()
        bound = min(np.sum(rows**2), np.sum(columns**2)) - np.sum(product**2)
        true_shares.append(np.sum((counts - product) ** 2) / bound)
    published = simulate_measurement(result, table, np.random.default_rng(0)).publish()
    estimates = evidence(published.measurement)
    posteriors = residual_posteriors(estimates, published.contrasts, {}).values()
    # If each share were estimated from one table alone, it would be about 0.4 times the true share.
    estimated_shares = [p.probabilities @ SHARES for p in posteriors]
    assert np.median(estimated_shares) == pytest.approx(np.mean(true_shares), rel=0.2)
    largest_variance = max(p.draw_cell_variances(rng).max() for p in posteriors)
    assert largest_variance <= max(p.variance for p in posteriors)


def test_intervals_of_independent_pairs_are_not_conservative():
    """All attributes are independent: only sampling lets cells deviate from their references."""
    rng = np.random.default_rng(1)
    codes = np.stack([rng.integers(0, n, 60_000) for n in MANY.sizes(MANY.names)])
    workload = Workload.all_ways(MANY, (1, 2), family="marginal")
    result = plan(workload, Budget(pcost=4e-4), mechanism="residualplanner")
    published = simulate_measurement(result, exact_tables(codes), rng).publish()
    posteriors = residual_posteriors(evidence(published.measurement), published.contrasts, {})
    deviations = [np.sqrt(p.draw_cell_variances(rng).mean()) for p in posteriors.values()]
    cells = np.mean([p.reference.mean() for p in posteriors.values()])
    # The standard deviation of the sampled counts is the root of their mean.
    assert 0.8 * np.sqrt(cells) < np.mean(deviations) < 2.0 * np.sqrt(cells)


def test_true_cells_vary_at_least_like_sampled_counts():
    posterior = ResidualPosterior(
        reference=np.array([[4.0, 4.0], [1.0, 1.0]]),
        variance=12.0,
        rank=1,
        bound=1e-6,
        probabilities=np.eye(len(SHARES))[0],
    )
    variances = posterior.draw_cell_variances(np.random.default_rng(0))
    # 1 / (1 / 12 + 1 / reference) for the references 4 and 1
    np.testing.assert_allclose(variances, [[3.0, 3.0], [12 / 13, 12 / 13]])


@pytest.mark.parametrize("pcost", [0.05, 2.0])
def test_intervals_cover_at_nominal_rate(pcost):
    workload = Workload.all_ways(WIDE, (1, 2), family="marginal")
    pairs = coverage(
        workload, Budget(pcost=pcost), random_tables(WIDE, 20_000, 4), rehearsals=3, draws=8
    )[2]
    assert pairs["cells"] > 300
    assert 0.85 <= pairs["covered"] <= 0.985
    # Published intervals can be wider than the unbiased ones here, because there are few draws and
    # the counts are large.
    assert pairs["half"] < 1.3 * pairs["unbiased half"]


def test_error_of_small_total_is_near_its_noise():
    """3,000 records; the noise of their number has the standard deviation 2,934."""
    workload = Workload.all_ways(SCHEMA, (1,), family="marginal")
    is_covered = []
    for seed in (0, 7, 11):  # the published totals are below a third of their noise
        measurement, table = measured_on(workload, Budget(pcost=1e-6), seed=seed)
        published = measurement.publish()
        uncertainty = published.uncertainty()
        noise_sd = math.sqrt(evidence(measurement).total_variance)
        assert 0.0 < published.total < 0.3 * noise_sd
        assert float(uncertainty.table_errors([])) > 0.8 * noise_sd
        for name in SCHEMA.names:
            half_width = uncertainty.reach() * uncertainty.table_errors([name])
            is_covered += list(np.abs(published.table([name]) - table([name])) <= half_width)
    assert np.mean(is_covered) > 0.85


def test_drawn_totals_follow_normal_distribution_above_zero():
    mean, sd = 50.0, 30.0
    rng = np.random.default_rng(5)
    totals = np.array([draw_total(mean, sd**2, rng) for _ in range(4_000)])
    expected = scipy.stats.truncnorm(-mean / sd, np.inf, mean, sd)
    assert totals.min() > 0.0
    assert scipy.stats.kstest(totals, expected.cdf).pvalue > 0.01


def test_error_of_sum_uses_query_variance():
    workload = Workload(SCHEMA).add(("a", "b"), "marginal").add(("a",), "prefix")
    measurement, _ = measured_on(workload, Budget(pcost=0.05), mechanism="querysmasher")
    uncertainty = measurement.publish().uncertainty(draws=8)
    prefix_errors = uncertainty.answers(1)["error"].to_numpy()
    error_of_first_cell = uncertainty.table_errors(["a"])[0]
    assert prefix_errors[0] == pytest.approx(error_of_first_cell, rel=1e-9)
    error_of_total = float(uncertainty.table_errors([]))
    assert prefix_errors[-1] == pytest.approx(error_of_total, rel=1e-9)
    np.testing.assert_allclose(
        uncertainty.table_errors(["b", "a"]), uncertainty.table_errors(["a", "b"]).T
    )


def test_answers_list_published_and_unbiased_intervals():
    measurement, _ = measured_on(PAIRS)
    published = measurement.publish()
    rule = QualityRule(doubtful_cv=1e9, suppressed_cv=1e9)  # marks no answer
    queries = {"group": PAIR_GROUP, "start": 2, "stop": 9}
    rows = published.uncertainty(draws=4).answers(**queries, confidence=0.9, rule=rule)
    unbiased = measurement.answers(**queries, confidence=0.9)
    columns = ["query", "published", "error", "published_low", "published_high", "flag", "reason"]
    columns.append("measured")
    assert list(rows) == [*columns, "answer", "std", "low", "high"]
    for name in ("answer", "std", "low", "high"):
        np.testing.assert_array_equal(rows[name], unbiased[name])
    np.testing.assert_array_equal(rows["published"], published.values(**queries))
    assert (rows["published_low"] >= 0).all()
    assert (rows["published_low"] <= rows["published"]).all()
    assert (rows["published_high"] > rows["published"]).all()


def test_integer_table_errors_include_rounding():
    measurement, _ = measured_on(PAIRS, records=200)
    pair = ["a", "b"]
    real, integer = measurement.publish(), measurement.publish(integer=True)
    rounding = integer.table(pair) - real.table(pair)
    assert np.abs(rounding).max() > 0.3
    real_errors, integer_errors = (
        published.uncertainty(draws=3).table_errors(pair) for published in (real, integer)
    )
    np.testing.assert_allclose(integer_errors**2, real_errors**2 + rounding**2, atol=1e-8)


def test_bias_by_cell_size_sums_to_total():
    measurement, table = measured_on(PAIRS, Budget(pcost=0.01))
    published = measurement.publish()
    uncertainty = published.uncertainty(draws=10)
    pair = ["a", "b"]
    bias = uncertainty.bias(pair)  # one row per range of true counts
    assert list(bias) == ["true", "cells", "bias", "error"]
    assert bias["cells"].sum() == pytest.approx(7 * 9)
    assert bias["bias"].isna().tolist() == (bias["cells"] == 0).tolist()
    # the errors of all cells sum to the error of the total
    total_error = np.mean([float(tables[()]) for tables in uncertainty.errors])
    assert (bias["cells"] * bias["bias"]).sum() == pytest.approx(total_error, abs=1e-6)
    # The published counts of empty cells are too large.
    assert bias["bias"][0] > 0
    errors = published.table(pair) - table(pair)
    assert errors[table(pair) == 0].mean() > 0


def test_bias_has_same_error_as_answers():
    uncertainty = uncertainty_at(0.01, draws=10)
    bias = uncertainty.bias(["a", "b"]).dropna()
    mean_squared_error = (bias["cells"] * bias["error"] ** 2).sum() / bias["cells"].sum()
    errors = uncertainty.table_errors(["a", "b"])
    assert mean_squared_error == pytest.approx(np.mean(errors**2))


def test_predicted_groups_are_those_without_measured_share():
    predicted_groups = {}
    for pcost in (1e-5, 10.0):
        uncertainty = uncertainty_at(pcost)
        predicted = list(uncertainty.predicted_groups)
        measured = uncertainty.summary()["measured"]
        assert (measured[predicted] == 0).all()
        assert (measured.drop(predicted) > 0).all()
        predicted_groups[pcost] = predicted
    assert predicted_groups[1e-5]
    assert not predicted_groups[10.0]


def test_table_errors_depend_only_on_tables():
    measurement, _ = measured_on(PAIRS)
    other_measurement, _ = measured_on(PAIRS, seed=2)
    errors, same_errors, other_errors = (
        m.publish().uncertainty(draws=2).table_errors(["a", "b"])
        for m in (measurement, measurement, other_measurement)
    )
    np.testing.assert_array_equal(errors, same_errors)
    assert (errors != other_errors).any()


def test_table_errors_increase_with_noise():
    exact = random_tables(SCHEMA, 3_000, seed=1)
    mean_errors = []
    for pcost in (1e6, 1.0, 1e-2):
        result = plan(PAIRS, Budget(pcost=pcost), mechanism="residualplanner")
        published = simulate_measurement(result, exact, np.random.default_rng(0)).publish()
        errors = published.uncertainty(draws=4).table_errors(["a", "b"])
        mean_errors.append(float(errors.mean()))
    assert mean_errors[0] < 0.05
    assert mean_errors[1] > 3 * mean_errors[0]
    assert mean_errors[2] > 3 * mean_errors[1]


@pytest.mark.parametrize(
    ("value", "error", "signal", "flag", "reason"),
    [
        (100.0, 10.0, 1.0, "publishable", ""),
        (100.0, 17.0, 1.0, "doubtful", "cv"),
        (100.0, 34.0, 1.0, "suppressed", "cv"),
        (4.0, 0.1, 1.0, "suppressed", "count"),
        (100.0, 10.0, 0.1, "doubtful", "signal"),
        (100.0, 34.0, 0.1, "suppressed", "cv"),
        (0.0, 1.0, 1.0, "suppressed", "count"),
    ],
)
def test_quality_rule_reports_most_severe_reason(value, error, signal, flag, reason):
    rule = QualityRule(least_count=5.0, least_signal=0.2)
    flags, reasons = rule.flags(np.array([value]), np.array([error]), np.array([signal]))
    assert flags.tolist() == [flag]
    assert reasons.tolist() == [reason]
    assert reason in REASONS


def test_quality_rule_publishes_certain_zero():
    values, errors, signals = np.zeros(2), np.array([0.0, 1e-3]), np.ones(2)
    flags, _ = QualityRule().flags(values, errors, signals)
    assert flags.tolist() == ["publishable", "suppressed"]


def test_suppressed_cells_are_hidden_but_summed():
    measurement, _ = measured_on(PAIRS, Budget(pcost=1.0))
    published = measurement.publish()
    uncertainty = published.uncertainty(draws=4)
    rows = uncertainty.answers(PAIR_GROUP, rule=QualityRule(least_count=40.0))
    is_suppressed = (rows["flag"] == "suppressed").to_numpy()
    assert is_suppressed.any()
    assert not is_suppressed.all()
    numbers = ["published", "error", "published_low", "published_high"]
    assert rows.loc[is_suppressed, numbers].isna().all(axis=None)
    assert rows.loc[~is_suppressed, "published"].notna().all()
    assert set(rows["reason"]) <= set(REASONS)
    sums = uncertainty.answers(A_GROUP, rule=QualityRule(suppressed_cv=1e9))["published"]
    np.testing.assert_allclose(sums, published.table(["a", "b"]).sum(axis=1))


def test_signal_share_increases_with_budget():
    precise, noisy = uncertainty_at(1e4), uncertainty_at(1e-5)
    axes = precise.published.positions(["a", "b"])
    large_cells = precise.published.table(["a", "b"]) > 20
    assert precise.signal[axes][large_cells].min() > 0.99
    assert noisy.signal[axes][large_cells].max() < 0.5
    only_signal_counts = QualityRule(doubtful_cv=1e9, suppressed_cv=1e9, least_signal=0.9)
    rows = noisy.answers(PAIR_GROUP, rule=only_signal_counts)
    shown = rows[rows["published"].notna()]
    assert len(shown) > 10
    assert set(shown["reason"]) == {"signal"}


def test_answers_and_summary_report_measured_share():
    noisy, precise = uncertainty_at(1e-4), uncertainty_at(1e3)
    noisy_shares = noisy.answers(PAIR_GROUP)["measured"]
    assert noisy_shares.between(0.0, 1.0).all()
    assert noisy_shares.mean() < 0.5 < precise.answers(PAIR_GROUP)["measured"].mean()
    assert (noisy.answers(A_GROUP)["measured"] == 1.0).all()
    assert (noisy.summary()["measured"] <= precise.summary()["measured"] + 1e-9).all()


def test_uncertainty_with_invalid_request_is_refused():
    measurement, _ = measured_on(PAIRS)
    with pytest.raises(PlanError, match="intervals"):
        measurement.publish("none").uncertainty()
    with pytest.raises(PlanError, match="draws"):
        uncertainty(measurement.publish(), draws=1)
    with pytest.raises(LimitExceeded, match="fewer draws"):
        uncertainty(measurement.publish(), memory_limit=1_000)
    with pytest.raises(Cancelled):
        uncertainty(measurement.publish(), progress=lambda share, words: False)
    with pytest.raises(PlanError, match="least_count"):
        QualityRule(least_count=-1)
    measurements = (
        measured_on(PAIRS, Budget(pcost=1e-6), records=5, seed=seed)[0] for seed in range(8)
    )
    with_negative_total = next(m for m in measurements if m.marginal([]) < 0)
    with pytest.raises(NotAnswerable, match="number of records"):
        with_negative_total.publish().uncertainty()


def test_uncertainty_of_union_blocks_matches_exact_errors() -> None:
    schema = Schema([Attribute.of_size(name, n) for name, n in zip("abc", (5, 2, 4), strict=True)])
    workload = Workload.all_ways(schema, (1, 2))
    result = plan(workload, Budget(pcost=1.0), centers="tuned")
    # the workload has only pairs of attributes, but one block measures several residual spaces (a
    # union) on three attributes
    assert max(len(block.attributes) for block in result.blocks.values()) == 3

    # counts this large are never clipped, so the error is that of the noise
    def equal_counts(names):
        return np.full(schema.sizes(names), 1e6 / schema.cells(names))

    measurement = simulate_measurement(result, equal_counts, np.random.default_rng(1))
    published = measurement.publish("nonnegative")
    errors = uncertainty(published, draws=100)
    for i, group in enumerate(workload.groups):
        exact = published.answers(i)["std"].mean()
        estimated = errors.answers(i)["error"].mean()
        # two standard errors of a standard deviation that is estimated from 100 draws
        assert estimated == pytest.approx(exact, rel=0.14), group.attributes
