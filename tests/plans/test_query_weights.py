"""Query weights that linearize an objective: their plans and their bounds."""

import functools
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
    result = plan(workload, ONE, objective="max", cache=False)
    monkeypatch.setattr(reweighting.SeparateWeights, "fits", lambda class_queries: False)
    factored = plan(workload, ONE, objective="max", cache=False)
    assert result.achieved == pytest.approx(value_of(result, "max"), rel=1e-8)
    assert result.achieved < factored.achieved * (1 - 1e-5)
    assert result.certificate.lower_bound <= factored.achieved


def test_point_weights_match_explicit_sums(monkeypatch):
    """The weighted variances and the noises that minimise their sum equal explicit sums."""
    monkeypatch.setattr(reweighting, "MAX_FULL_DOMAIN_CELLS", 0)
    workload = Workload.all_ways(shapes.numeric(5, 4, 3), (1, 2, 3))
    goal = Objective(power=math.inf, targets=(3.0,) * 7)
    result = plan(workload, ONE, objective="max", targets=math.sqrt(3.0))
    classes = symmetry(workload, list(result.blocks), goal, {}, UNIFORM)
    builder = VarianceBuilder(blocks=result.blocks, split=UNIFORM, schema=workload.schema)
    groups, emphasis = queries_by_class(workload, builder, classes, goal), result.tradeoff.emphasis
    noises = np.random.default_rng(0).uniform(1.0, 2.0, len(classes.counts))
    separate_weights = SeparateWeights(groups, emphasis)
    separate_weights.update(groups, noises)
    weighted, best = separate_weights.weighted_variances(groups, classes.counts, noises, emphasis)

    def variances(kind, noises):
        columns = [noises[list(groups[kind].spaces)][:, None], *groups[kind].variances.tables]
        return functools.reduce(
            lambda a, b: np.einsum("ja,jb->jab", a, b).reshape(len(a), -1), columns
        ).sum(axis=0)

    start = [w * groups[k].target for k, w in enumerate(weights_of(emphasis, workload))]
    updated = [w * (variances(k, noises) / 3.0) ** UPDATE_EXPONENT for k, w in enumerate(start)]
    query_weights = [w / sum(map(np.sum, updated)) for w in updated]
    expected_weights = [np.zeros(len(v)) for v in emphasis.vectors]
    for k, numbers in enumerate(emphasis.vector_indices):
        table = (query_weights[k] * variances(k, noises) / 3.0).reshape(
            [len(emphasis.vectors[n]) for n in numbers]
        )
        for axis, number in enumerate(numbers):
            expected_weights[number] += (
                np.moveaxis(table, axis, 0).reshape(table.shape[axis], -1).sum(axis=1)
            )
    for actual, expected in zip(weighted, expected_weights, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-9)

    def error_at_pcost_1(noises):
        return sum(float(w @ variances(k, noises)) for k, w in enumerate(query_weights)) * float(
            np.sum(classes.counts / noises)
        )

    assert np.sum(classes.counts / best) == pytest.approx(1.0)
    for other in (noises, *(best * (1.0 + 0.1 * np.eye(len(best))))):
        assert error_at_pcost_1(best) < error_at_pcost_1(other)


@pytest.mark.parametrize("goal", GOALS, ids=lambda g: g["objective"])
@pytest.mark.parametrize("shape", ["nested", "query_weighted", "custom_matrix"])
def test_objective_bound_matches_weighted_optimum(shape, goal):
    """The bound is the optimum of the weighted sum, divided by the dual norm of the weights."""
    result = cached_plan("querysmasher", shape, **goal)
    workload, tradeoff = result.workload, result.tradeoff
    weights = weights_of(tradeoff.witness or tradeoff.emphasis, workload)
    if goal["objective"] == "max":
        dual_norm = sum(w.sum() for w in weights)
    else:
        dual_power = goal["power"] / (goal["power"] - 1)
        pairs = zip(
            np.concatenate(weights), np.concatenate(oracles.query_weights(workload)), strict=True
        )
        # The dual norm is over the ratios (weight in the objective / query weight in the workload).
        terms = (own * (w / own) ** dual_power for w, own in pairs if own > 0)
        dual_norm = sum(terms) ** (1 / dual_power)
    weighted = Workload(workload.schema)
    for group, query_weights in zip(workload.groups, weights, strict=True):
        weighted = weighted.add(group.attributes, group.family, query_weights=query_weights)
    low, high = (
        rmse**2 * workload.queries / dual_norm
        for rmse in oracles.class_optimum(weighted, 1.0, 1e-5)
    )
    assert low * (1 - 1e-4) <= result.bound <= high * (1 + SLACK)


def test_applied_emphasis_has_bound_of_weighted_workload():
    workload = shapes.nested()
    rng = np.random.default_rng(3)
    numbers = itertools.count()
    uses = tuple(tuple(next(numbers) for _ in g.parts) for g in workload.groups)
    vectors = tuple(rng.uniform(0.1, 2.0, p.count) for g in workload.groups for p in g.parts)
    kinds = tuple(range(len(workload.groups)))
    emphasis = Emphasis(
        class_of_group=kinds,
        weights=np.array([1.0, 2.0, 3.0]),
        vector_indices=uses,
        single_vector=(False,) * 3,
        vectors=vectors,
    )
    again = Emphasis.from_dict(json.loads(json.dumps(emphasis.to_dict())))
    written = Workload(workload.schema)
    for group, query_weights in zip(workload.groups, weights_of(again, workload), strict=True):
        written = written.add(group.attributes, group.family, query_weights=query_weights)
    a, b = plan(emphasis.apply(workload), ONE), plan(written, ONE)
    assert a.bound == pytest.approx(b.bound, rel=1e-5)
