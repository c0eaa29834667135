"""Query weights that linearize an objective: their plans and their bounds."""

import itertools
import json
import math

import numpy as np
import pytest

from engine.mechanisms import plan, reweighting
from engine.mechanisms import residual_base as residual
from engine.mechanisms.reweighting import UPDATE_EXPONENT, SeparateWeights
from engine.plans.objectives import Emphasis, Objective, queries_by_class, symmetry
from engine.plans.variance_builder import VarianceBuilder
from engine.residuals.basis import UNIFORM
from engine.workload import Attribute, Schema, Workload
from tests import oracles, shapes
from tests.plans.goals import GOALS, ONE, SLACK, cached_plan, value_of


def weights_of(emphasis, workload):
    """Return the query weights of an `Emphasis` (compact form of query weights) as arrays.

    The list has one array per group; groups without weights have zeros.
    """
    out = []
    for group, kind in zip(workload.groups, emphasis.class_of_group, strict=True):
        if kind < 0:
            out.append(np.zeros(group.count))
            continue
        query_weights = np.ones(1)
        for number in emphasis.vector_indices[kind]:
            query_weights = np.multiply.outer(query_weights, emphasis.vectors[number]).ravel()
        out.append(emphasis.weights[kind] * query_weights)
    return out


def test_max_objective_mixed_attributes_has_small_gap(monkeypatch):
    """One weight per cell that all groups share would leave a gap of 2e-3."""
    # The search for small tables is switched off, so that these tables are treated like large ones.
    monkeypatch.setattr(reweighting, "MAX_FULL_DOMAIN_CELLS", 0)
    schema = Schema(
        [
            Attribute.of_size("a", 6),
            Attribute.of_size("b", 5),
            Attribute.of_size("c", 3, "categorical"),
        ]
    )
    result = plan(Workload.all_ways(schema, (1, 2)), ONE, objective="max")
    assert result.achieved == pytest.approx(value_of(result, "max"), rel=1e-8)
    assert 0.0 <= result.certificate.gap <= 3e-4


def test_point_weights_improve_plan(monkeypatch):
    """Product weights are not optimal: without weights of single queries a gap remains."""
    monkeypatch.setattr(reweighting, "MAX_FULL_DOMAIN_CELLS", 0)
    monkeypatch.setattr(residual, "is_applicable", lambda *_: False)
    workload = Workload.all_ways(shapes.numeric(8, 8), (1, 2))
    point_weights = plan(workload, ONE, objective="max", cache=False)
    monkeypatch.setattr(reweighting.SeparateWeights, "fits", lambda class_queries: False)
    product_weights = plan(workload, ONE, objective="max", cache=False)
    assert point_weights.achieved == pytest.approx(value_of(point_weights, "max"), rel=1e-8)
    assert point_weights.achieved < product_weights.achieved * (1 - 1e-5)
    assert point_weights.certificate.lower_bound <= product_weights.achieved


def test_point_weights_match_explicit_sums(monkeypatch):
    """The weighted variances and the noises that minimise their sum equal explicit sums."""
    monkeypatch.setattr(reweighting, "MAX_FULL_DOMAIN_CELLS", 0)
    workload = Workload.all_ways(shapes.numeric(5, 4, 3), (1, 2, 3))
    target = 3.0  # of the variance of every query
    goal = Objective(power=math.inf, targets=(target,) * len(workload.groups))
    result = plan(workload, ONE, objective="max", targets=math.sqrt(target))
    classes = symmetry(workload, list(result.blocks), goal, {}, UNIFORM)
    builder = VarianceBuilder(blocks=result.blocks, split=UNIFORM, schema=workload.schema)
    groups, emphasis = queries_by_class(workload, builder, classes, goal), result.tradeoff.emphasis
    noises = np.random.default_rng(0).uniform(1.0, 2.0, len(classes.counts))
    separate_weights = SeparateWeights(groups, emphasis)
    separate_weights.update(groups, noises)
    weighted, best_noises = separate_weights.weighted_variances(
        groups, classes.counts, noises, emphasis
    )

    def variances(k, noises):
        """Return the variances of the queries of group ``k``, as a sum over residual spaces."""
        by_space = noises[list(groups[k].spaces)][:, None]
        for table in groups[k].variances.tables:  # one per attribute
            by_space = np.einsum("ja,jb->jab", by_space, table).reshape(len(by_space), -1)
        return by_space.sum(axis=0)

    query_weights = [
        weights * groups[k].target * (variances(k, noises) / target) ** UPDATE_EXPONENT
        for k, weights in enumerate(weights_of(emphasis, workload))
    ]
    weight_sum = sum(map(np.sum, query_weights))
    query_weights = [weights / weight_sum for weights in query_weights]

    expected = [np.zeros(len(vector)) for vector in emphasis.vectors]
    for k, vector_indices in enumerate(emphasis.vector_indices):
        shape = [len(emphasis.vectors[i]) for i in vector_indices]
        table = (query_weights[k] * variances(k, noises) / target).reshape(shape)
        for axis, i in enumerate(vector_indices):
            expected[i] += table.sum(axis=tuple(a for a in range(table.ndim) if a != axis))
    for actual, explicit_sums in zip(weighted, expected, strict=True):
        np.testing.assert_allclose(actual, explicit_sums, rtol=1e-9)

    def error_at_pcost_1(noises):
        error = sum(weights @ variances(k, noises) for k, weights in enumerate(query_weights))
        return error * np.sum(classes.counts / noises)

    assert np.sum(classes.counts / best_noises) == pytest.approx(1.0)
    for other_noises in (noises, *(best_noises * (1.0 + 0.1 * np.eye(len(best_noises))))):
        assert error_at_pcost_1(best_noises) < error_at_pcost_1(other_noises)


@pytest.mark.parametrize("goal", GOALS, ids=lambda g: g["objective"])
@pytest.mark.parametrize("shape", ["nested", "query_weighted", "custom_matrix"])
def test_objective_bound_matches_weighted_optimum(shape, goal):
    """The bound is the optimum of the weighted sum, divided by the dual norm of the weights."""
    result = cached_plan("querysmasher", shape, **goal)
    workload, tradeoff = result.workload, result.tradeoff
    weights_by_group = weights_of(tradeoff.witness or tradeoff.emphasis, workload)
    weights = np.concatenate(weights_by_group)
    if goal["objective"] == "max":
        dual_norm = weights.sum()
    else:
        dual_power = goal["power"] / (goal["power"] - 1)
        # The dual norm is over the ratios (weight in the objective / query weight in the workload).
        own_weights = np.concatenate(oracles.query_weights(workload))
        weights, own_weights = weights[own_weights > 0], own_weights[own_weights > 0]
        terms = own_weights * (weights / own_weights) ** dual_power
        dual_norm = terms.sum() ** (1 / dual_power)
    weighted = Workload(workload.schema)
    for group, query_weights in zip(workload.groups, weights_by_group, strict=True):
        weighted = weighted.add(group.attributes, group.family, query_weights=query_weights)
    optimum = np.array(oracles.class_optimum(weighted, 1.0, 1e-5))  # RMSE from below and above
    low, high = optimum**2 * workload.queries / dual_norm
    assert low * (1 - 1e-4) <= result.bound <= high * (1 + SLACK)


def test_applied_emphasis_has_bound_of_weighted_workload():
    workload = shapes.nested()
    rng = np.random.default_rng(3)
    vectors = tuple(rng.uniform(0.1, 2.0, p.count) for g in workload.groups for p in g.parts)
    indices = itertools.count()
    emphasis = Emphasis(
        class_of_group=(0, 1, 2),
        weights=np.array([1.0, 2.0, 3.0]),
        vector_indices=tuple(tuple(next(indices) for _ in g.parts) for g in workload.groups),
        single_vector=(False,) * 3,
        vectors=vectors,
    )
    loaded = Emphasis.from_dict(json.loads(json.dumps(emphasis.to_dict())))
    weighted = Workload(workload.schema)
    for group, query_weights in zip(workload.groups, weights_of(loaded, workload), strict=True):
        weighted = weighted.add(group.attributes, group.family, query_weights=query_weights)
    bound = plan(emphasis.apply(workload), ONE).bound
    assert bound == pytest.approx(plan(weighted, ONE).bound, rel=1e-5)
