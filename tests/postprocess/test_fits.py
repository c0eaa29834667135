"""Fitting of tables: partial pooling, shrinkage and the joint nonnegative projection."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from engine.mechanisms import plan
from engine.postprocess import nonnegative_projection as joint
from engine.postprocess import shrinkage as shrunk
from engine.postprocess.nonnegative_projection import project_nonnegative
from engine.postprocess.partial_pooling import (
    expected_deviations,
    on_simplex,
    pooled_pairs,
    single_tables,
)
from engine.postprocess.residual_estimates import (
    Evidence,
    MeasuredProjection,
    ResidualEstimate,
    assemble_table,
    contrast,
    evidence,
)
from engine.postprocess.shrinkage import PairPredictions, shrink_table, shrunk_total
from engine.postprocess.uncertainty import simulate_measurement
from engine.privacy import Budget
from engine.workload import Attribute, Schema, Workload
from tests.publish.measured import SCHEMA, measured_on


def test_partial_pooling_reduces_errors_of_small_tables():
    workload = Workload.all_ways(SCHEMA, (1, 2, 3), family="marginal")
    unpooled_error = pooled_error = 0.0
    for seed in range(4):
        measurement, table = measured_on(workload, Budget(pcost=1e-4), seed=seed)
        published, estimates = measurement.publish(), evidence(measurement)
        unpooled = single_tables(estimates, published.total, {})
        for axis, name in enumerate(SCHEMA.names):
            unpooled_error += np.abs(unpooled[(axis,)] - table([name])).sum()
            pooled_error += np.abs(published.table([name]) - table([name])).sum()
    assert pooled_error < 0.9 * unpooled_error


def squared_errors_of_single_tables(dependent, noise_sd):
    """Return squared errors of one-way tables of 10 binary attributes, without and with pooling.

    All residuals have noise with the same standard deviation.  The last result is the error that
    weighting by the precision of the noise would have if all attributes were independent.  If
    ``dependent``, each attribute equals its predecessor with probability 0.8.
    """
    rng, total, share = np.random.default_rng(8), 4_000.0, 0.1
    exact = {(i,): total * np.array([1.0 - share, share]) for i in range(10)}
    for i, j in itertools.combinations(range(10), 2):
        dependence = total * share * (1.0 - share) * (0.8 ** (j - i) if dependent else 0.0)
        sign = np.array([[1.0, -1.0], [-1.0, 1.0]])
        exact[i, j] = np.outer(exact[i,], exact[j,]) / total + dependence * sign
    centers, errors = np.full(2, 0.5), np.zeros(2)
    for _ in range(40):
        residuals = {
            axes: ResidualEstimate(
                cells=contrast(table + noise_sd * rng.normal(size=table.shape)),
                variance=noise_sd**2,
                rank=1,
                projection=MeasuredProjection(centers=(centers,) * len(axes)),
            )
            for axes, table in exact.items()
        }
        estimates = Evidence(
            names=tuple("abcdefghij"),
            sizes=(2,) * 10,
            centers=(centers,) * 10,
            tables=tuple(axes for axes in exact if len(axes) == 2),
            total=total,
            total_variance=1.0,
            residuals=residuals,
        )
        pairs = {a: (r.cells, r.variance) for a, r in residuals.items() if len(a) == 2}
        for k, measured_pairs in enumerate(({}, pairs)):
            tables = single_tables(estimates, total, measured_pairs)
            errors[k] += sum(float(np.sum((tables[i,] - exact[i,]) ** 2)) for i in range(10)) / 40
    information = 1.0 + 9.0 * 2.0 * (0.5 - share) ** 2
    return errors[0], errors[1], 10 * noise_sd**2 / information


def test_pooled_independent_pairs_keep_most_information():
    unpooled, pooled, best = squared_errors_of_single_tables(dependent=False, noise_sd=60.0)
    assert unpooled > 3.0 * best
    assert pooled < 1.35 * best


def test_dependent_pairs_hardly_bias_precise_one_way_tables():
    unpooled, pooled, _ = squared_errors_of_single_tables(dependent=True, noise_sd=2.0)
    assert pooled < 1.05 * unpooled


def test_pooled_pairs_without_three_way_interaction_are_exact():
    rng = np.random.default_rng(7)
    sizes, triple = (4, 3, 5), (0, 1, 2)
    shares = [rng.dirichlet(np.full(n, 0.7)) for n in sizes]
    counts = 100.0 * np.einsum("i,j,k->ijk", *shares)
    counts += np.einsum("i,jk->ijk", shares[0], contrast(rng.normal(size=(3, 5))))
    counts += np.einsum("j,ik->ijk", shares[1], contrast(rng.normal(size=(4, 5))))
    counts += np.einsum("k,ij->ijk", shares[2], contrast(rng.normal(size=(4, 3))))
    centers = tuple(np.full(n, 1.0 / n) for n in sizes)

    def estimate(axes, cells, variance):
        return ResidualEstimate(
            cells=cells,
            variance=variance,
            rank=math.prod(sizes[a] - 1 for a in axes),
            projection=MeasuredProjection(centers=tuple(centers[a] for a in axes)),
        )

    singles = {(a,): counts.sum(axis=tuple({0, 1, 2} - {a})) for a in triple}
    pairs = {
        axes: counts.sum(axis=tuple({0, 1, 2} - set(axes)))
        for axes in itertools.combinations(triple, 2)
    }
    # Only the triple is measured: the variances of pairs are so large that they have no information.
    residuals = {axes: estimate(axes, np.zeros(t.shape), 1e12) for axes, t in pairs.items()}
    residuals[triple] = estimate(triple, contrast(counts), 1e-3)
    estimates = Evidence(
        names=("a", "b", "c"),
        sizes=sizes,
        centers=centers,
        tables=(triple,),
        total=100.0,
        total_variance=1.0,
        residuals=residuals,
    )
    pooled = pooled_pairs(estimates, 100.0, singles, pairs, [triple])
    assert pooled.keys() == pairs.keys()
    for axes, (cells, variance) in pooled.items():
        np.testing.assert_allclose(cells, contrast(pairs[axes]), atol=1e-6)
        assert variance < 1.0


@pytest.mark.parametrize("total", [0.5, 3.0, 40.0, 4_000.0])
def test_shrunk_total_moves_at_most_by_its_noise(total):
    variance = 4.0
    shrunk = shrunk_total(total, variance)
    assert 0.0 <= shrunk <= total
    assert total - shrunk <= variance / total + 1e-9


def test_publish_noisy_total_uses_shrunk_total():
    measurement, _ = measured_on(
        Workload.all_ways(SCHEMA, (1,), family="marginal"), Budget(pcost=1e-5)
    )
    estimates = evidence(measurement)
    assert estimates.total > 0
    expected = shrunk_total(estimates.total, estimates.total_variance)
    assert abs(expected - estimates.total) > 1.0
    assert measurement.publish().total == pytest.approx(expected)
    assert measurement.publish("none").total == pytest.approx(estimates.total)


def test_on_simplex_satisfies_optimality_conditions():
    rng = np.random.default_rng(3)
    for _ in range(50):
        values, weights = rng.normal(size=6) * 10, rng.uniform(0.1, 3.0, 6)
        projected = on_simplex(values, weights, total=5.0)
        assert abs(projected.sum() - 5.0) <= 1e-9
        assert projected.min() >= 0
        # Positive cells have the same multiplier.  The multiplier of a cell at zero is not larger.
        multipliers = weights * (values - projected)
        assert np.ptp(multipliers[projected > 0]) <= 1e-9
        assert (multipliers[projected == 0] <= multipliers[projected > 0].min() + 1e-9).all()


def test_shrink_table_follows_residual_only_if_significant():
    rows, columns = np.array([30.0, 70.0]), np.array([40.0, 50.0, 10.0])
    margins = {(0,): rows, (1,): columns, (): np.array(100.0)}
    projection = MeasuredProjection(centers=(np.full(2, 0.5), np.full(3, 1 / 3)))
    product = np.outer(rows, columns) / 100
    deviation = contrast(np.array([[15.0, -10.0, 0.0], [0.0, 0.0, 0.0]]))
    for variance, expected in ((1e4, product), (1e-4, product + deviation)):
        estimate = ResidualEstimate(
            cells=contrast(product) + deviation, variance=variance, rank=2, projection=projection
        )
        table = shrink_table((0, 1), estimate, margins, 100.0)
        np.testing.assert_allclose(table, expected, atol=0.05)
        np.testing.assert_allclose(table.sum(axis=1), rows, atol=1e-9)
        np.testing.assert_allclose(table.sum(axis=0), columns, atol=1e-9)


def test_shrink_table_with_very_negative_row_keeps_margins():
    rows, columns = np.array([1.0, 99.0]), np.array([60.0, 40.0])
    margins = {(0,): rows, (1,): columns, (): np.array(100.0)}
    projection = MeasuredProjection(centers=(np.full(2, 0.5), np.full(2, 0.5)))
    for size in (1e2, 1e3):
        cells = contrast(np.array([[-size, size / 2], [size, -size]]))
        estimate = ResidualEstimate(cells=cells, variance=1.0, rank=1, projection=projection)
        table = shrink_table((0, 1), estimate, margins, 100.0)
        np.testing.assert_allclose(table.sum(axis=1), rows, atol=1e-6)
        np.testing.assert_allclose(table.sum(axis=0), columns, atol=1e-6)


def test_project_nonnegative_matches_general_solver():
    """Three pairwise margins that no three-way table satisfies."""
    from scipy.optimize import minimize

    triple, total = (0, 1, 2), 6.0
    equal_values = contrast(np.array([[3.0, 0.0], [0.0, 3.0]]))
    start = {(): np.array(total)} | {(axis,): np.zeros(2) for axis in triple}
    start |= {(0, 1): equal_values, (0, 2): equal_values, (1, 2): -equal_values}
    start[triple] = np.zeros((2, 2, 2))
    assert assemble_table(start, triple).min() < -0.5
    tolerance = 1e-4
    contrasts = project_nonnegative(
        {axes: cells.copy() for axes, cells in start.items()},
        [triple],
        (2, 2, 2),
        tolerance,
        lambda *_: None,
    )

    def distance(cells):
        """Return the squared distance, with a penalty if the total differs."""
        table = cells.reshape(2, 2, 2)
        square = (cells.sum() - total) ** 2 / 1e-3
        for axes in start:
            if axes:
                margin = table.sum(axis=tuple(set(triple) - set(axes)))
                square += float(np.sum((contrast(margin) - start[axes]) ** 2)) / 4 ** len(axes)
        return square

    best = minimize(
        distance, np.full(8, 0.75), bounds=[(0, None)] * 8, options={"ftol": 1e-14, "gtol": 1e-10}
    )
    table = assemble_table(contrasts, triple)
    assert table.min() >= -1e-12
    assert distance(table.ravel()) <= 1.02 * best.fun + 1e-6


def test_project_nonnegative_active_set_gives_same_distance(monkeypatch):
    """Ten noisy three-way tables, most of which become feasible early."""
    sizes, generator = (6, 5, 4, 3, 3), np.random.default_rng(1)
    triples = list(itertools.combinations(range(5), 3))
    sets = sorted(
        {subset for axes in triples for n in range(4) for subset in itertools.combinations(axes, n)}
    )
    noisy_sets = {(0, 1), (0, 1, 2), (0, 1, 3)}
    start = {
        axes: contrast(
            generator.normal(
                scale=20.0 if axes in noisy_sets else 0.3, size=[sizes[a] for a in axes]
            )
        )
        for axes in sets
    }
    start[()] = np.array(500.0)
    updates, gradient_step = [], joint._Multipliers.gradient_step

    def recorded_step(multipliers, table):
        updates.append(multipliers.axes)
        return gradient_step(multipliers, table)

    monkeypatch.setattr(joint._Multipliers, "gradient_step", recorded_step)

    def projection_distance():
        contrasts = {axes: cells.copy() for axes, cells in start.items()}
        contrasts = project_nonnegative(contrasts, triples, sizes, 1e-6, lambda *_: None)
        assert min(assemble_table(contrasts, axes).min() for axes in triples) >= -1e-9
        return sum(
            float(np.sum((contrasts[axes] - start[axes]) ** 2)) / 4 ** len(axes)
            for axes in start
            if axes
        )

    active_set_distance = projection_distance()
    active_set_updates = len(updates)
    updates.clear()
    monkeypatch.setattr(joint, "ROUNDS_PER_FULL_UPDATE", 1)  # every round updates all tables
    full_distance = projection_distance()
    assert active_set_distance == pytest.approx(full_distance, rel=1e-3)
    assert active_set_updates < 0.5 * len(updates)


def test_make_consistent_projects_only_contradictory_tables_jointly(monkeypatch):
    """The pairs of attributes 0, 1, 2 contradict each other; all other triples are consistent."""
    sets = list(itertools.combinations(range(4), 2))
    triples = list(itertools.combinations(range(4), 3))
    equal_values = np.array([[40.0, 0.0], [0.0, 40.0]])
    contradictory = {(0, 1): equal_values, (0, 2): equal_values, (1, 2): equal_values[::-1]}
    start = {(): np.array(80.0)} | {(axis,): np.zeros(2) for axis in range(4)}
    start |= {axes: contrast(contradictory.get(axes, np.full((2, 2), 20.0))) for axes in sets}
    start |= {axes: contrast(np.eye(2)[0][:, None, None] * 30.0 * np.eye(2)) for axes in triples}
    estimates = Evidence(
        names=("a", "b", "c", "d"),
        sizes=(2,) * 4,
        centers=(),
        tables=tuple(triples),
        total=80.0,
        total_variance=1.0,
        residuals={},
    )
    assert min(assemble_table(start, axes).min() for axes in triples[1:]) < -1.0
    projected_triples, project = [], shrunk.project_nonnegative

    def recorded_project(contrasts, tables, *args, **options):
        projected_triples.append([axes for axes in tables if len(axes) == 3])
        return project(contrasts, tables, *args, **options)

    monkeypatch.setattr(shrunk, "project_nonnegative", recorded_project)
    contrasts = {axes: cells.copy() for axes, cells in start.items()}
    consistent = shrunk.make_consistent(estimates, contrasts, 1e-4, lambda *_: None)
    assert projected_triples[:2] == [[], [(0, 1, 2)]]
    assert min(assemble_table(consistent, axes).min() for axes in triples) >= -1e-12
    contrasts = {axes: cells.copy() for axes, cells in start.items()}
    joint_contrasts = project(contrasts, triples, (2,) * 4, 1e-4, lambda *_: None)
    for axes in sets:
        difference = assemble_table(consistent, axes) - assemble_table(joint_contrasts, axes)
        assert np.abs(difference).max() < 1.5
    # the contradictory tables had to change
    assert np.abs(assemble_table(consistent, (0, 1)) - equal_values).max() > 5.0


def test_expected_deviations_of_many_noise_tables_are_small():
    """Of 30 tables, 29 are pure noise: their deviations shrink, and that of the last one does not."""
    rng, variance = np.random.default_rng(3), 100.0
    projection = MeasuredProjection(centers=(np.full(4, 0.25), np.full(5, 0.2)))
    cells_by_table = {(0, j): contrast(10.0 * rng.normal(size=(4, 5))) for j in range(1, 30)}
    noise_tables = list(cells_by_table)
    signal = contrast(100.0 * rng.normal(size=(4, 5)))
    cells_by_table[0, 30] = signal
    residuals = {
        axes: ResidualEstimate(cells=cells, variance=variance, rank=12, projection=projection)
        for axes, cells in cells_by_table.items()
    }
    deviations = expected_deviations(residuals, dict.fromkeys(residuals, np.full((4, 5), 50.0)))
    # of each table separately, the estimate is the positive part of its excess over the noise
    excesses = [residuals[axes].noise_excess(cells_by_table[axes])[0] for axes in noise_tables]
    separate_sum = variance * np.maximum(excesses, 0.0).sum()
    assert sum(deviations[axes] for axes in noise_tables) < 0.5 * separate_sum
    assert deviations[0, 30] == pytest.approx(float(np.sum(signal**2)), rel=0.1)


def test_expected_deviations_discount_large_noise_of_single_table():
    rng, noise_sd = np.random.default_rng(4), 900.0
    projection = MeasuredProjection(centers=(np.full(5, 0.2), np.full(6, 1 / 6)))
    residuals = {}
    for j in range(1, 36):
        cells = contrast(rng.normal(size=(5, 6)))
        # The squared norm of noise, divided by its variance, has the mean 20 and the variance 40.
        # For the table with j = 1 it is 3 standard deviations above the mean.
        squared_norm = 20.0 + (3.0 if j == 1 else -0.1) * math.sqrt(40.0)
        cells *= noise_sd * math.sqrt(squared_norm / float(np.sum(cells**2)))
        residuals[0, j] = ResidualEstimate(
            cells=cells, variance=noise_sd**2, rank=20, projection=projection
        )
    deviations = expected_deviations(residuals, dict.fromkeys(residuals, np.full((5, 6), 200.0)))
    excess, _ = residuals[0, 1].noise_excess(residuals[0, 1].cells)
    assert 0.0 < deviations[0, 1] < 0.1 * excess * noise_sd**2


def test_pair_predictions_through_mediator_are_exact():
    """Given attribute 0, attributes 1 and 2 are independent."""
    rng = np.random.default_rng(5)
    mediator = rng.dirichlet(np.ones(3))
    first, second = rng.dirichlet(np.ones(4), 3), rng.dirichlet(np.ones(5), 3)
    counts = 1000.0 * np.einsum("k,ki,kj->kij", mediator, first, second)
    tables = {
        axes: counts.sum(axis=tuple({0, 1, 2} - set(axes)))
        for axes in [(0,), (1,), (2,), (0, 1), (0, 2)]
    }
    tables[1, 2] = np.outer(tables[1,], tables[2,]) / 1000.0
    (prediction,) = PairPredictions(tables).candidates(1, 2)
    np.testing.assert_allclose(prediction, counts.sum(axis=0), rtol=1e-12)


def test_publish_at_large_noise_stays_near_independence():
    sizes = (6, 5, 4, 7, 3, 8)
    schema = Schema([Attribute.of_size(name, n) for name, n in zip("abcdef", sizes, strict=True)])
    rng = np.random.default_rng(0)
    shares = {name: rng.dirichlet(np.ones(schema[name].size)) for name in schema.names}
    workload = Workload.all_ways(schema, (1, 2), family="marginal")

    def exact(names):
        return 5000.0 * math.prod(np.ix_(*(shares[name] for name in names)), start=np.array(1.0))

    published_error = product_error = 0.0
    for seed in range(3):
        result = plan(workload, Budget(pcost=1e-3), mechanism="residualplanner")
        published = simulate_measurement(result, exact, np.random.default_rng(seed)).publish()
        for first, second in itertools.combinations(schema.names, 2):
            pair = (first, second)
            product = np.outer(published.table([first]), published.table([second]))
            product /= published.total
            published_error += np.abs(published.table(pair) - exact(pair)).sum()
            product_error += np.abs(product - exact(pair)).sum()
    assert published_error <= 1.005 * product_error
