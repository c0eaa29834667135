"""Fitting of tables: partial pooling, shrinkage and the joint nonnegative projection."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from engine.mechanisms import plan
from engine.postprocess import nonnegative_projection as joint
from engine.postprocess import shrinkage as shrunk
from engine.postprocess.dependence import expected_deviations
from engine.postprocess.mediators import PairPredictions
from engine.postprocess.nonnegative_projection import project_nonnegative
from engine.postprocess.partial_pooling import on_simplex, pooled_pairs, single_tables
from engine.postprocess.residual_estimates import (
    Evidence,
    MeasuredProjection,
    ResidualEstimate,
    assemble_table,
    contrast,
    evidence,
)
from engine.postprocess.shrinkage import shrink_table, shrunk_total
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


def test_independent_pairs_keep_most_information_on_their_attributes():
    unpooled, pooled, best = squared_errors_of_single_tables(dependent=False, noise_sd=60.0)
    assert unpooled > 3.0 * best
    assert pooled < 1.35 * best


def test_dependent_pairs_hardly_bias_precise_one_way_tables():
    unpooled, pooled, _ = squared_errors_of_single_tables(dependent=True, noise_sd=2.0)
    assert pooled < 1.05 * unpooled


def test_pooled_pairs_without_three_way_interaction_are_exact():
    rng = np.random.default_rng(7)
    sizes = (4, 3, 5)
    p = [rng.dirichlet(np.full(n, 0.7)) for n in sizes]
    counts = 100.0 * np.multiply.outer(np.multiply.outer(p[0], p[1]), p[2])
    for k in range(3):
        between = contrast(rng.normal(size=[n for i, n in enumerate(sizes) if i != k]))
        counts += np.expand_dims(between, k) * p[k].reshape([-1 if a == k else 1 for a in range(3)])
    centers = tuple(np.full(n, 1.0 / n) for n in sizes)
    three = ResidualEstimate(
        cells=contrast(counts),
        variance=1e-3,
        rank=24,
        projection=MeasuredProjection(centers=centers),
    )
    measured, tables = {(0, 1, 2): three}, {}
    for axes in [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2)]:
        tables[axes] = counts.sum(axis=tuple(a for a in range(3) if a not in axes))
        projection = MeasuredProjection(centers=tuple(centers[a] for a in axes))
        # Pairs of attributes get a variance so large that their answers contain no information.
        if len(axes) == 2:
            measured[axes] = ResidualEstimate(
                cells=np.zeros(tables[axes].shape), variance=1e12, rank=6, projection=projection
            )
    estimates = Evidence(
        names=("a", "b", "c"),
        sizes=sizes,
        centers=centers,
        tables=((0, 1, 2),),
        total=100.0,
        total_variance=1.0,
        residuals=measured,
    )
    singles, pairs = ({a: t for a, t in tables.items() if len(a) == k} for k in (1, 2))
    for axes, (cells, variance) in pooled_pairs(
        estimates, 100.0, singles, pairs, [(0, 1, 2)]
    ).items():
        np.testing.assert_allclose(cells, contrast(tables[axes]), atol=1e-6)
        assert variance < 1.0


@pytest.mark.parametrize("total", [0.5, 3.0, 40.0, 4_000.0])
def test_shrunk_total_moves_at_most_by_its_noise(total):
    shrunk = shrunk_total(total, 4.0)
    assert 0.0 <= shrunk <= total
    assert total - shrunk <= min(total, 4.0 / total) + 1e-9


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
        projected = on_simplex(values, weights, 5.0)
        assert abs(projected.sum() - 5.0) <= 1e-9
        assert projected.min() >= 0
        # Positive cells have the same multiplier.  The multiplier of a cell at zero is not larger.
        multipliers = weights * (values - projected)
        assert np.ptp(multipliers[projected > 0]) <= 1e-9
        assert (multipliers[projected == 0] <= multipliers[projected > 0].min() + 1e-9).all()


def test_shrink_table_follows_residual_only_if_significant():
    margins = {
        (0,): np.array([30.0, 70.0]),
        (1,): np.array([40.0, 50.0, 10.0]),
        (): np.array(100.0),
    }
    projection = MeasuredProjection(centers=(np.full(2, 0.5), np.full(3, 1 / 3)))
    product = np.outer(margins[0,], margins[1,]) / 100
    deviation = contrast(np.array([[15.0, -10.0, 0.0], [0.0, 0.0, 0.0]]))
    for variance, expected in ((1e4, product), (1e-4, product + deviation)):
        estimate = ResidualEstimate(
            cells=contrast(product) + deviation, variance=variance, rank=2, projection=projection
        )
        table = shrink_table((0, 1), estimate, margins, 100.0)
        np.testing.assert_allclose(table, expected, atol=0.05)
        np.testing.assert_allclose(table.sum(axis=1), margins[0,], atol=1e-9)
        np.testing.assert_allclose(table.sum(axis=0), margins[1,], atol=1e-9)


def test_shrink_table_with_very_negative_row_keeps_margins():
    margins = {(0,): np.array([1.0, 99.0]), (1,): np.array([60.0, 40.0]), (): np.array(100.0)}
    projection = MeasuredProjection(centers=(np.full(2, 0.5), np.full(2, 0.5)))
    for size in (1e2, 1e3):
        cells = contrast(np.array([[-size, size / 2], [size, -size]]))
        table = shrink_table(
            (0, 1),
            ResidualEstimate(cells=cells, variance=1.0, rank=1, projection=projection),
            margins,
            100.0,
        )
        np.testing.assert_allclose(table.sum(axis=1), margins[0,], atol=1e-6)
        np.testing.assert_allclose(table.sum(axis=0), margins[1,], atol=1e-6)


def test_project_nonnegative_matches_general_solver():
    """Three pairwise margins that no three-way table satisfies."""
    from scipy.optimize import minimize

    pair = np.array([[3.0, 0.0], [0.0, 3.0]])
    opposite_pair = np.array([[0.0, 3.0], [3.0, 0.0]])
    start = {
        (): np.array(6.0),
        (0, 1): contrast(pair),
        (0, 2): contrast(pair),
        (1, 2): contrast(opposite_pair),
    }
    start |= {(i,): np.zeros(2) for i in range(3)} | {(0, 1, 2): np.zeros((2, 2, 2))}
    assert assemble_table(start, (0, 1, 2)).min() < -0.5
    contrasts = project_nonnegative(
        {a: c.copy() for a, c in start.items()}, [(0, 1, 2)], (2, 2, 2), 1e-4, lambda *_: None
    )

    def distance(cells, total=6.0):
        table, square = cells.reshape(2, 2, 2), (cells.sum() - total) ** 2 / 1e-3
        for axes in (a for a in start if a):
            summed = table.sum(axis=tuple(i for i in range(3) if i not in axes))
            square += float(np.sum((contrast(summed) - start[axes]) ** 2)) / 4 ** len(axes)
        return square

    best = minimize(
        distance, np.full(8, 0.75), bounds=[(0, None)] * 8, options={"ftol": 1e-14, "gtol": 1e-10}
    )
    assert assemble_table(contrasts, (0, 1, 2)).min() >= -1e-12
    assert distance(assemble_table(contrasts, (0, 1, 2)).ravel()) <= 1.02 * best.fun + 1e-6


def test_project_nonnegative_active_set_gives_same_distance(monkeypatch):
    """Ten noisy three-way tables, most of which become feasible early."""
    sizes, generator = (6, 5, 4, 3, 3), np.random.default_rng(1)
    tables = list(itertools.combinations(range(5), 3))
    sets = sorted(
        {inside for axes in tables for n in range(4) for inside in itertools.combinations(axes, n)}
    )
    shapes = {axes: [sizes[a] for a in axes] for axes in sets}
    noisy_sets = {(0, 1), (0, 1, 2), (0, 1, 3)}
    start = {
        axes: contrast(
            generator.normal(scale=20.0 if axes in noisy_sets else 0.3, size=shapes[axes])
        )
        for axes in sets
    }
    start[()] = np.array(500.0)
    updates, gradient_step = [], joint._Multipliers.gradient_step

    def record_update(multipliers, table):
        updates.append(multipliers.axes)
        return gradient_step(multipliers, table)

    monkeypatch.setattr(joint._Multipliers, "gradient_step", record_update)

    def run(every):
        monkeypatch.setattr(joint, "ROUNDS_PER_FULL_UPDATE", every)
        updates.clear()
        contrasts = project_nonnegative(
            {a: c.copy() for a, c in start.items()}, tables, sizes, 1e-6, lambda *_: None
        )
        assert min(assemble_table(contrasts, axes).min() for axes in tables) >= -1e-9
        square = sum(
            float(np.sum((contrasts[a] - start[a]) ** 2)) / 4 ** len(a) for a in start if a
        )
        return square, len(updates)

    default = joint.ROUNDS_PER_FULL_UPDATE
    (distance_of_all, updates_of_all), (distance, n_updates) = run(1), run(default)
    assert distance == pytest.approx(distance_of_all, rel=1e-3)
    assert n_updates < 0.5 * updates_of_all


def test_make_consistent_projects_only_contradictory_tables_jointly(monkeypatch):
    """The pairs of attributes 0, 1, 2 contradict each other; all other triples are consistent."""
    pair, sets = np.array([[40.0, 0.0], [0.0, 40.0]]), list(itertools.combinations(range(4), 2))
    triples = list(itertools.combinations(range(4), 3))
    contradictory = {(0, 1): pair, (0, 2): pair, (1, 2): pair[::-1]}
    start = {(): np.array(80.0)} | {(i,): np.zeros(2) for i in range(4)}
    start |= {axes: contrast(contradictory.get(axes, np.full((2, 2), 20.0))) for axes in sets}
    start |= {axes: contrast(np.eye(2)[0][:, None, None] * 30.0 * np.eye(2)) for axes in triples}
    fields = {
        "names": ("a", "b", "c", "d"),
        "sizes": (2,) * 4,
        "centers": (),
        "total": 80.0,
        "total_variance": 1.0,
    }
    estimates = Evidence(**fields, tables=tuple(triples), residuals={})
    assert min(assemble_table(start, axes).min() for axes in triples[1:]) < -1.0
    projected_sets, project = [], shrunk.project_nonnegative

    def record_sets(contrasts, tables, *args, **options):
        projected_sets.append(tables)
        return project(contrasts, tables, *args, **options)

    monkeypatch.setattr(shrunk, "project_nonnegative", record_sets)
    consistent = shrunk.make_consistent(
        estimates, {a: c.copy() for a, c in start.items()}, 1e-4, lambda *_: None
    )
    assert [[axes for axes in tables if len(axes) == 3] for tables in projected_sets][:2] == [
        [],
        [(0, 1, 2)],
    ]
    assert min(assemble_table(consistent, axes).min() for axes in triples) >= -1e-12
    joint_contrasts = project(
        {a: c.copy() for a, c in start.items()}, triples, (2,) * 4, 1e-4, lambda *_: None
    )
    for axes in sets:
        assert (
            np.abs(assemble_table(consistent, axes) - assemble_table(joint_contrasts, axes)).max()
            < 1.5
        )
    assert np.abs(assemble_table(consistent, (0, 1)) - pair).max() > 5.0


def test_expected_deviations_of_many_noise_tables_are_small():
    """Of 30 tables, 29 are pure noise: their deviations shrink, and that of the last one does not."""
    rng = np.random.default_rng(3)
    projection = MeasuredProjection(centers=(np.full(4, 0.25), np.full(5, 0.2)))
    reference = np.full((4, 5), 50.0)
    noise = {(0, j): contrast(10.0 * rng.normal(size=(4, 5))) for j in range(1, 30)}
    signal = contrast(100.0 * rng.normal(size=(4, 5)))
    residuals = {
        axes: ResidualEstimate(cells=cells, variance=100.0, rank=12, projection=projection)
        for axes, cells in {**noise, (0, 30): signal}.items()
    }
    excesses = expected_deviations(residuals, dict.fromkeys(residuals, reference))
    positive_parts = sum(
        max(0.0, residuals[axes].noise_excess(residuals[axes].cells)[0]) for axes in noise
    )
    assert sum(excesses[axes] for axes in noise) < 0.5 * 100.0 * positive_parts
    assert excesses[0, 30] == pytest.approx(float(np.sum(signal**2)), rel=0.1)


def test_expected_deviations_discount_large_noise_of_single_table():
    rng = np.random.default_rng(4)
    projection = MeasuredProjection(centers=(np.full(5, 0.2), np.full(6, 1 / 6)))
    reference = np.full((5, 6), 200.0)
    residuals = {}
    for j in range(1, 36):
        cells = contrast(rng.normal(size=(5, 6)))
        # The squared norm of noise, divided by its variance, has the mean 20 and the variance 40.
        # For the table with j = 1 it is 3 standard deviations above the mean.
        squared = 20.0 + (3.0 if j == 1 else -0.1) * math.sqrt(40.0)
        cells *= 900.0 * math.sqrt(squared / float(np.sum(cells**2)))
        residuals[0, j] = ResidualEstimate(
            cells=cells, variance=900.0**2, rank=20, projection=projection
        )
    deviations = expected_deviations(residuals, dict.fromkeys(residuals, reference))
    excess = residuals[0, 1].noise_excess(residuals[0, 1].cells)[0] * 900.0**2
    assert 0.0 < deviations[0, 1] < 0.1 * excess


def test_pair_predictions_through_mediator_are_exact():
    rng = np.random.default_rng(5)
    first, second = rng.dirichlet(np.ones(4), 3), rng.dirichlet(np.ones(5), 3)
    joint = 1000.0 * np.einsum("k,ki,kj->kij", rng.dirichlet(np.ones(3)), first, second)
    tables = {
        axes: joint.sum(axis=tuple(a for a in range(3) if a not in axes))
        for axes in [(0,), (1,), (2,), (0, 1), (0, 2)]
    }
    tables[1, 2] = np.outer(tables[1,], tables[2,]) / 1000.0
    (prediction,) = PairPredictions(tables).candidates(1, 2)
    np.testing.assert_allclose(prediction, joint.sum(axis=0), rtol=1e-12)


def test_publish_at_large_noise_stays_near_independence():
    sizes = (6, 5, 4, 7, 3, 8)
    schema = Schema([Attribute.of_size(name, n) for name, n in zip("abcdef", sizes, strict=True)])
    rng = np.random.default_rng(0)
    shares = {name: rng.dirichlet(np.ones(schema[name].size)) for name in schema.names}
    workload = Workload.all_ways(schema, (1, 2), family="marginal")

    def exact(names):
        return 5000.0 * math.prod(np.ix_(*(shares[name] for name in names)), start=np.array(1.0))

    errors = np.zeros(2)
    for seed in range(3):
        result = plan(workload, Budget(pcost=1e-3), mechanism="residualplanner")
        published = simulate_measurement(result, exact, np.random.default_rng(seed)).publish()
        for pair in itertools.combinations(schema.names, 2):
            i, j = (published.table([name]) for name in pair)
            product = np.outer(i, j) / published.total
            errors += [
                np.abs(table - exact(pair)).sum() for table in (published.table(pair), product)
            ]
    assert errors[0] <= 1.005 * errors[1]
