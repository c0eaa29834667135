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
MANY = Schema(
    [Attribute.of_size(name, n) for name, n in zip("abcdef", (5, 6, 7, 6, 4, 6), strict=True)]
)
WIDE = Schema([Attribute.of_size(name, n) for name, n in zip("abcd", (14, 10, 8, 3), strict=True)])


def exact_tables(codes):
    """Return a function that maps attribute names to the exact table of records.

    ``codes`` has the shape (attributes, records).
    """

    def table(names):
        shape, cells = MANY.sizes(names), codes[[MANY.order[name] for name in names]]
        at = (
            np.ravel_multi_index(tuple(cells), shape)
            if shape
            else np.zeros(codes.shape[1], np.int64)
        )
        return np.bincount(at, minlength=int(np.prod(shape))).reshape(shape).astype(float)

    return table


def test_intervals_of_weakly_dependent_tables_are_not_conservative():
    """One attribute depends partly on another; all others are independent."""
    rng = np.random.default_rng(1)
    codes = np.stack(
        [rng.choice(n, 6_000, p=rng.dirichlet(np.ones(n))) for n in MANY.sizes(MANY.names)]
    )
    dependent = rng.random(6_000) < 0.3
    codes[1, dependent] = codes[0, dependent]
    workload = Workload.all_ways(MANY, (1, 2), family="marginal")
    summary = coverage(workload, Budget(pcost=4e-4), exact_tables(codes), rehearsals=2, draws=8)[2]
    assert summary["cells"] > 600
    assert 0.92 <= summary["covered"] <= 0.985
    # If the dependence of each table were estimated from this table alone, the ratio of the two
    # half-widths would be 0.50.
    assert summary["half"] < 0.46 * summary["unbiased half"]


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
    summary = coverage(workload, budget, exact, rehearsals=2, draws=8)[2]
    assert summary["cells"] > 600
    assert summary["covered"] >= 0.9
    # If the prior of the ratio s were uniform on its values, the mean half-width would be 353
    # counts.
    assert summary["half"] < 260.0


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
    summary = coverage(
        workload, Budget(pcost=pcost), random_tables(WIDE, 20_000, 4), rehearsals=3, draws=8
    )[2]
    assert summary["cells"] > 300
    assert 0.85 <= summary["covered"] <= 0.985
    # Published intervals can be wider than the unbiased ones here, because there are few draws and
    # the counts are large.
    assert summary["half"] < 1.3 * summary["unbiased half"]


def test_total_smaller_than_its_noise_gets_an_error_as_large_as_its_noise():
    """3,000 records; the noise of their number has the standard deviation 2,934."""
    workload, covered = Workload.all_ways(SCHEMA, (1,), family="marginal"), []
    for seed in (0, 7, 11):
        measurement, table = measured_on(workload, Budget(pcost=1e-6), seed=seed)
        published = measurement.publish()
        estimated = published.uncertainty()
        noise_sd = math.sqrt(evidence(measurement).total_variance)
        assert 0.0 < published.total < 0.3 * noise_sd
        assert float(estimated.table_errors([])) > 0.8 * noise_sd
        for name in SCHEMA.names:
            half_width = estimated.reach() * estimated.table_errors([name])
            covered += list(np.abs(published.table([name]) - table([name])) <= half_width)
    assert np.mean(covered) > 0.85


def test_drawn_totals_follow_normal_distribution_above_zero():
    generator = np.random.default_rng(5)
    draws = np.array([draw_total(50.0, 900.0, generator) for _ in range(4_000)])
    expected = scipy.stats.truncnorm(-50.0 / 30.0, np.inf, 50.0, 30.0)
    assert draws.min() > 0.0
    assert scipy.stats.kstest(draws, expected.cdf).pvalue > 0.01


def test_error_of_sum_uses_query_variance():
    workload = Workload(SCHEMA).add(("a", "b"), "marginal").add(("a",), "prefix")
    measurement, _ = measured_on(workload, Budget(pcost=0.05), mechanism="querysmasher")
    uncertainty = measurement.publish().uncertainty(draws=8)
    rows = uncertainty.answers(1)  # the last prefix counts all records, the first one a cell
    assert rows["error"].to_numpy()[-1] == pytest.approx(
        float(uncertainty.table_errors([])), rel=1e-9
    )
    cells = uncertainty.table_errors(["a"])
    assert rows["error"].to_numpy()[0] == pytest.approx(cells[0], rel=1e-9)
    np.testing.assert_allclose(
        uncertainty.table_errors(["b", "a"]), uncertainty.table_errors(["a", "b"]).T
    )


def test_answers_list_published_and_unbiased_intervals():
    measurement, _ = measured_on(PAIRS)
    published = measurement.publish()
    rule = QualityRule(doubtful_cv=1e9, suppressed_cv=1e9)  # marks no answer
    # queries 2 to 8 of group 4, with 90% intervals
    rows = published.uncertainty(draws=4).answers(4, 2, 9, 0.9, rule=rule)
    plain = measurement.answers(4, 2, 9, 0.9)
    columns = ["query", "published", "error", "published_low", "published_high", "flag", "reason"]
    columns.append("measured")
    assert list(rows) == [*columns, "answer", "std", "low", "high"]
    for name in ("answer", "std", "low", "high"):
        np.testing.assert_array_equal(rows[name], plain[name])
    np.testing.assert_array_equal(rows["published"], published.values(4, 2, 9))
    assert (rows["published_low"] >= 0).all()
    assert (rows["published_low"] <= rows["published"]).all()
    assert (rows["published_high"] > rows["published"]).all()


def test_integer_table_errors_include_rounding():
    measurement, _ = measured_on(PAIRS, records=200)
    plain, integer = measurement.publish(), measurement.publish(integer=True)
    rounding = integer.table(["a", "b"]) - plain.table(["a", "b"])
    one, other = (p.uncertainty(draws=3).table_errors(["a", "b"]) for p in (plain, integer))
    np.testing.assert_allclose(other**2, one**2 + rounding**2, atol=1e-8)
    assert np.abs(rounding).max() > 0.3


def test_bias_by_cell_size_sums_to_total():
    measurement, table = measured_on(PAIRS, Budget(pcost=0.01))
    published = measurement.publish()
    uncertainty = published.uncertainty(draws=10)
    bias = uncertainty.bias(["a", "b"])
    assert list(bias) == ["true", "cells", "bias", "error"]
    assert bias["cells"].sum() == pytest.approx(7 * 9)  # cells of the table of a and b
    # the errors of all cells sum to the error of the total
    total_error = np.mean([float(e[()]) for e in uncertainty.errors])
    assert bias["bias"].isna().tolist() == (bias["cells"] == 0).tolist()
    assert (bias["cells"] * bias["bias"]).sum() == pytest.approx(total_error, abs=1e-6)
    exact = table(["a", "b"])
    errors = published.table(["a", "b"]) - exact
    # The published counts of empty cells are too large.
    assert bias["bias"][0] > 0
    assert errors[exact == 0].mean() > 0


def test_bias_has_same_error_as_answers():
    uncertainty = measured_on(PAIRS, Budget(pcost=0.01))[0].publish().uncertainty(draws=10)
    bias = uncertainty.bias(["a", "b"]).dropna()
    errors = uncertainty.table_errors(["a", "b"])
    squares = (bias["cells"] * bias["error"] ** 2).sum() / bias["cells"].sum()
    assert squares == pytest.approx(np.mean(errors**2))


def test_predicted_groups_are_those_without_measured_share():
    numbers = dict[float, tuple[int, ...]]()
    for pcost in (1e-5, 10.0):
        uncertainty = measured_on(PAIRS, Budget(pcost=pcost))[0].publish().uncertainty(draws=2)
        measured = uncertainty.summary()["measured"]
        numbers[pcost] = uncertainty.predicted_groups
        assert (measured[list(numbers[pcost])] == 0).all()
        assert (measured.drop(list(numbers[pcost])) > 0).all()
    assert numbers[1e-5]
    assert not numbers[10.0]


def test_table_errors_depend_only_on_tables():
    measurement, _ = measured_on(PAIRS)
    one, same = (
        measurement.publish().uncertainty(draws=2).table_errors(["a", "b"]) for _ in range(2)
    )
    np.testing.assert_array_equal(one, same)
    other, _ = measured_on(PAIRS, seed=2)
    assert (one != other.publish().uncertainty(draws=2).table_errors(["a", "b"])).any()


def test_table_errors_increase_with_noise():
    table = random_tables(SCHEMA, 3_000, 1)
    last = 0.0
    for pcost in (1e6, 1.0, 1e-2):
        measurement = simulate_measurement(
            measured_on(PAIRS, Budget(pcost=pcost))[0].plan, table, np.random.default_rng(0)
        )
        typical = float(measurement.publish().uncertainty(draws=4).table_errors(["a", "b"]).mean())
        assert typical > 3 * last
        last = typical
        assert pcost < 1e6 or typical < 0.05


@pytest.mark.parametrize(
    ("value", "error", "signal", "expected"),
    [
        (100.0, 10.0, 1.0, ("publishable", "")),
        (100.0, 17.0, 1.0, ("doubtful", "cv")),
        (100.0, 34.0, 1.0, ("suppressed", "cv")),
        (4.0, 0.1, 1.0, ("suppressed", "count")),
        (100.0, 10.0, 0.1, ("doubtful", "signal")),
        (100.0, 34.0, 0.1, ("suppressed", "cv")),
        (0.0, 1.0, 1.0, ("suppressed", "count")),
    ],
)
def test_quality_rule_reports_most_severe_reason(value, error, signal, expected):
    rule = QualityRule(least_count=5.0, least_signal=0.2)
    flags, reasons = rule.flags(*(np.array([x]) for x in (value, error, signal)))
    assert (flags[0], reasons[0]) == expected
    assert reasons[0] in REASONS


def test_quality_rule_publishes_certain_zero():
    flags, _ = QualityRule().flags(np.zeros(2), np.array([0.0, 1e-3]), np.ones(2))
    assert flags.tolist() == ["publishable", "suppressed"]


def test_suppressed_cells_are_hidden_but_summed():
    measurement, _ = measured_on(PAIRS, Budget(pcost=1.0))
    published = measurement.publish()
    uncertainty = published.uncertainty(draws=4)
    number = next(i for i, g in enumerate(PAIRS.groups) if g.attributes == ("a", "b"))
    rows = uncertainty.answers(number, rule=QualityRule(least_count=40.0))
    hidden = (rows["flag"] == "suppressed").to_numpy()
    assert hidden.any()
    assert not hidden.all()
    assert (
        rows.loc[hidden, ["published", "error", "published_low", "published_high"]]
        .isna()
        .all(axis=None)
    )
    assert rows.loc[~hidden, "published"].notna().all()
    sums = uncertainty.answers(0, rule=QualityRule(suppressed_cv=1e9))["published"]
    np.testing.assert_allclose(sums, published.table(["a", "b"]).sum(axis=1))
    assert set(rows["reason"]) <= set(REASONS)


def test_signal_share_increases_with_budget():
    large_budget = measured_on(PAIRS, Budget(pcost=1e4))[0].publish().uncertainty(draws=2)
    small_budget = measured_on(PAIRS, Budget(pcost=1e-5))[0].publish().uncertainty(draws=2)
    large = large_budget.published.table(["a", "b"]) > 20
    a, b = (u.published.positions(["a", "b"]) for u in (large_budget, small_budget))
    assert large_budget.signal[a][large].min() > 0.99
    assert small_budget.signal[b][large].max() < 0.5
    flags = small_budget.answers(
        4, rule=QualityRule(doubtful_cv=1e9, suppressed_cv=1e9, least_signal=0.9)
    )
    shown = flags["published"].notna()
    assert shown.sum() > 10
    assert set(flags["reason"][shown]) == {"signal"}


def test_answers_and_summary_report_measured_share():
    uncertainties = [
        measured_on(PAIRS, Budget(pcost=pcost))[0].publish().uncertainty(draws=2)
        for pcost in (1e-4, 1e3)
    ]
    little, much = (u.answers(4)["measured"] for u in uncertainties)
    assert little.between(0.0, 1.0).all()
    assert little.mean() < 0.5 < much.mean()
    one_way = uncertainties[0].answers(0)["measured"]
    assert (one_way == 1.0).all()
    shares = [u.summary()["measured"] for u in uncertainties]
    assert (shares[0] <= shares[1] + 1e-9).all()


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
    measurement = simulate_measurement(
        result,
        lambda names: np.full(schema.sizes(names), 1e6 / schema.cells(names)),
        np.random.default_rng(1),
    )
    published = measurement.publish("nonnegative")
    draws = 500
    errors = uncertainty(published, draws=draws)
    # counts this large are never clipped, so the error is that of the noise
    for number, group in enumerate(workload.groups):
        exact = published.answers(number)["std"].mean()
        # five standard errors of a standard deviation estimated from these draws
        tolerance = 5 / math.sqrt(2 * draws)
        assert errors.answers(number)["error"].mean() == pytest.approx(exact, rel=tolerance), (
            group.attributes
        )
