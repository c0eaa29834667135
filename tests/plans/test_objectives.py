"""Objectives other than the weighted sum: values, bounds and budget allocation."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import scipy.optimize

from engine.errors import PlanError
from engine.mechanisms import plan, reweighting
from engine.mechanisms.querysmasher import QuerySmasher
from engine.plans.group_variance import linear_variances
from engine.plans.objectives import Objective, symmetry
from engine.residuals import Split
from engine.residuals.basis import UNIFORM
from engine.residuals.decomposition import decompose
from engine.workload import Custom, Width, Workload
from tests import oracles, shapes
from tests.pairs import pairwise
from tests.plans.goals import GOALS, ONE, RESIDUAL, SHAPES, SLACK, cached_plan, value_of


def mechanisms_for(shape, goal):
    """Return the mechanisms that an ordinary run tests for a shape and a goal (objective).

    "querysmasher" is always included.  Each other mechanism is included for half of the pairs of a
    shape and a goal.
    """
    number = SHAPES.index(shape) + GOALS.index(goal)
    return [m.name for k, m in enumerate(RESIDUAL) if m.name == "querysmasher" or (number + k) % 2]


def every_mechanism_case():
    """Yield all cases (shape, mechanism, goal); those that an ordinary run leaves out are marked."""
    for shape, m, goal in itertools.product(SHAPES, RESIDUAL, GOALS):
        marks = [] if m.name in mechanisms_for(shape, goal) else [pytest.mark.full]
        yield pytest.param(
            shape, m.name, goal, id=f"{shape}-{m.name}-{goal['objective']}", marks=marks
        )


def test_mechanisms_for_goal_covers_all_pairs():
    covered = [
        (shape, name, g)
        for shape in SHAPES
        for g, goal in enumerate(GOALS)
        for name in mechanisms_for(shape, goal)
    ]
    names = [m.name for m in RESIDUAL]
    assert {row[:2] for row in covered} == set(itertools.product(SHAPES, names))
    assert {row[1:] for row in covered} == set(itertools.product(names, range(len(GOALS))))


@pytest.mark.parametrize(("shape", "mechanism", "goal"), list(every_mechanism_case()))
def test_plan_achieved_objective_matches_matrices(mechanism, shape, goal):
    result = cached_plan(mechanism, shape, **goal)
    sum_plan = cached_plan(mechanism, shape, "sum")
    explicit = oracles.Explicit(result)
    assert explicit.pcost <= result.pcost <= 1.0
    for i, W in enumerate(oracles.workload_rows(result.workload)):
        np.testing.assert_allclose(
            result.variances(i), explicit.variances(W), rtol=1e-8, atol=1e-12
        )
    assert result.achieved == pytest.approx(value_of(result, **goal), rel=1e-8)
    assert result.achieved <= value_of(sum_plan, **goal) * (1 + SLACK)
    certificate = result.certificate
    assert 0 < certificate.lower_bound <= result.achieved * (1 + SLACK)
    gap = result.achieved / certificate.lower_bound - 1
    assert certificate.gap == pytest.approx(gap, abs=1e-12)
    objective_text = "largest standard error" if goal["objective"] == "max" else "power 3"
    assert objective_text in certificate.statement


@pytest.mark.parametrize("goal", GOALS, ids=lambda g: g["objective"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "all_mechanisms",
    [False, pytest.param(True, marks=pytest.mark.full)],
    ids=["half", "all mechanisms"],
)
def test_objective_bound_holds_for_other_mechanisms(all_mechanisms, shape, goal):
    """All these mechanisms measure the same residual spaces, so a bound of one holds for all."""
    names = [m.name for m in RESIDUAL] if all_mechanisms else mechanisms_for(shape, goal)
    plans = [cached_plan(name, shape, **goal) for name in names]
    sum_plans = [cached_plan(m.name, shape, "sum") for m in RESIDUAL]
    best = min(value_of(p, **goal) for p in (*plans, *sum_plans))
    for result in plans:
        assert result.certificate.lower_bound <= best * (1 + SLACK)
    max_gap = 1e-2 if goal["objective"] == "max" else 1e-4
    assert cached_plan("querysmasher", shape, **goal).certificate.gap <= max_gap


def contributions(result):
    """Return (contributions of the blocks to the variances of queries, weights of the queries).

    The contributions have the shape (queries, blocks).  Their product with the squared noises of
    the blocks is the variance of each query.  The weights have the shape (queries,).
    """
    rows, weights = oracles.workload_rows(result.workload), oracles.query_weights(result.workload)
    W = np.concatenate([r[w > 0] for r, w in zip(rows, weights, strict=True)])
    before, by_block = oracles.Explicit(result).variances(W), []
    for space, block in result.blocks.items():
        doubled = dataclasses.replace(block, noise=block.noise * math.sqrt(2.0))
        changed = dataclasses.replace(result, blocks={**result.blocks, space: doubled})
        by_block.append((oracles.Explicit(changed).variances(W) - before) / block.noise**2)
    return np.maximum(np.array(by_block).T, 0.0), np.concatenate([w[w > 0] for w in weights])


SOLVED = ("nested", "query_weighted", "same_size"), ("residualplanner", "residualplanner+"), GOALS
FEW = pairwise(*SOLVED)


@pytest.mark.parametrize(
    ("shape", "mechanism", "goal"),
    [
        pytest.param(*row, marks=() if row in FEW else pytest.mark.full)
        for row in itertools.product(*SOLVED)
    ],
)
def test_budget_shares_match_generic_solver(mechanism, shape, goal):
    """The strategies are fixed; the solver minimises over the logarithms of the noise variances."""
    result = cached_plan(mechanism, shape, **goal)
    # the variances of the queries are P @ (noise variances of the blocks)
    P, weights = contributions(result)
    sum_plan = cached_plan(mechanism, shape, "sum")
    logs = np.log([block.noise**2 for block in sum_plan.blocks.values()])

    if goal["objective"] == "max":
        # the last variable is the logarithm of the largest variance
        def variances_below_largest(x):
            return x[-1] - np.log(np.maximum(P @ np.exp(x[:-1]), 1e-300))

        def pcost_below_1(x):
            return -math.log(np.exp(-x[:-1]).sum())

        solution = scipy.optimize.minimize(
            lambda x: x[-1],
            np.append(logs, math.log((P @ np.exp(logs)).max())),
            method="SLSQP",
            constraints=[
                {"type": "ineq", "fun": f} for f in (variances_below_largest, pcost_below_1)
            ],
            options={"maxiter": 2000, "ftol": 1e-14},
        )
        best = math.exp(0.5 * solution.x[-1])
    else:
        p = goal["power"]

        def log_objective(x):
            return math.log(weights @ (P @ np.exp(x)) ** p) / p + math.log(np.exp(-x).sum())

        solution = scipy.optimize.minimize(
            log_objective, logs, method="BFGS", options={"gtol": 1e-9}
        )
        best = math.exp(0.5 * solution.fun) / result.workload.queries ** (0.5 / p)
    assert result.achieved == pytest.approx(best, rel=2e-5)


def test_max_objective_equal_variances_gives_sum_plan():
    """By symmetry, marginals and circular ranges of one length have equal variances."""
    marginal = Workload(shapes.numeric(5, 4)).add(("a", "b"), "marginal")
    circular_pairs = Custom([np.roll([1, 1, 0, 0, 0, 0], start) for start in range(6)])
    for workload in (marginal, Workload(shapes.numeric(6)).add("a", circular_pairs)):
        sum_plan, max_plan = plan(workload, ONE), plan(workload, ONE, objective="max")
        assert sum_plan.max_variance == pytest.approx(sum_plan.rmse**2, rel=1e-5)
        assert max_plan.max_variance == pytest.approx(sum_plan.rmse**2, rel=1e-5)
        assert max_plan.certificate.gap <= 1e-5


@pytest.mark.parametrize("mechanism", [m.name for m in RESIDUAL])
def test_all_objectives_close_gap_for_marginals(mechanism):
    """Mechanisms that are optimal for marginals reach the lower bound of every objective."""
    workload = Workload.all_ways(shapes.numeric(6, 3, 2), (0, 1, 2), "marginal")
    for goal in GOALS:
        assert plan(workload, ONE, mechanism, **goal).certificate.gap <= 2e-5


def test_lp_objective_lies_between_sum_and_max():
    workload = Workload.all_ways(shapes.numeric(8, 6), (1, 2), "prefix")
    lp_plans = [plan(workload, ONE, objective="lp", power=p) for p in (1.0, 2.0, 12.0)]
    sum_plan, max_plan = plan(workload, ONE), plan(workload, ONE, objective="max")
    assert lp_plans[0].rmse == sum_plan.rmse
    for lower_power, higher_power in itertools.pairwise([*lp_plans, max_plan]):
        assert lower_power.rmse <= higher_power.rmse * (1 + 1e-3)
        assert lower_power.max_variance >= higher_power.max_variance * (1 - 1e-3)
    assert max_plan.max_variance < 0.85 * sum_plan.max_variance


def test_max_objective_ignores_size_of_weights():
    empty = Workload(shapes.numeric(5, 3))
    equal_weights = empty.add("a", "prefix").add(("a", "b"), "marginal")
    equal_weights = equal_weights.add("b", "range", weight=0.0)
    other_weights = empty.add("a", "prefix", weight=7.0)
    other_weights = other_weights.add(("a", "b"), query_weights=np.arange(1.0, 16.0))
    first, second = (plan(w, ONE, objective="max") for w in (equal_weights, other_weights))
    assert first.achieved == pytest.approx(second.achieved, rel=1e-3)
    # the variance of a query of weight 0 is not limited
    two_prefixes = empty.add("a", "prefix", query_weights=[1, 0, 0, 0, 1])
    max_plan, sum_plan = plan(two_prefixes, ONE, objective="max"), plan(two_prefixes, ONE)
    assert max_plan.achieved < 0.9 * sum_plan.max_variance**0.5


def test_max_objective_targets_scale_errors():
    workload = Workload(shapes.numeric(6, 4))
    workload = workload.add("a", "prefix").add(("a", "b"), "marginal").add("b", "range")
    targets = [1.0, 4.0, 2.0]
    result = plan(workload, ONE, objective="max", targets=targets)
    assert result.achieved == pytest.approx(value_of(result, "max", targets=targets), rel=1e-8)
    sum_plan, max_plan = plan(workload, ONE), plan(workload, ONE, objective="max")
    for other in (sum_plan, max_plan):
        assert result.achieved < value_of(other, "max", targets=targets) * (1 - 1e-3)
    assert result.certificate.gap < 5e-3
    assert "ratio of standard error to target" in result.certificate.statement
    doubled = plan(workload, ONE, objective="max", targets=[2 * t for t in targets])
    assert doubled.achieved == pytest.approx(result.achieved / 2, rel=2e-3)
    equal_targets = plan(workload, ONE, objective="max", targets=3.0)
    assert equal_targets.achieved == pytest.approx(max_plan.achieved / 3, rel=2e-3)


def test_symmetry_rings_of_pairs_are_separated():
    """In one ring of six attributes and in two rings of three, each attribute is in two pairs.

    The symmetry of a workload must still tell these workloads apart.
    """
    schema = shapes.numeric(*[2] * 6)
    ring = [("a", "b"), ("b", "c"), ("c", "d"), ("d", "e"), ("e", "f"), ("a", "f")]
    rings = [("a", "b"), ("b", "c"), ("a", "c"), ("d", "e"), ("e", "f"), ("d", "f")]
    for pairs in (ring, rings, [*ring, ("a", "c")]):
        workload = Workload(schema)
        for first, second in pairs:
            workload = workload.add((first, second), {first: "prefix", second: "marginal"})
        result = plan(workload, ONE, objective="max")
        assert result.achieved == pytest.approx(value_of(result, "max"), rel=1e-8)
        assert result.certificate.gap <= 2e-3
    symmetric = Workload.all_ways(schema, (1, 2), "prefix")
    spaces = list(decompose(symmetric).spaces)
    classes = symmetry(symmetric, spaces, Objective(power=math.inf), {}, UNIFORM)
    # one class each: the total, the six attributes, and the fifteen pairs
    assert list(classes.counts) == [1, 6, 15]
    assert list(classes.sizes) == [6, 15]


@pytest.mark.parametrize("power", [1.0, 2.0, 3.0, 3.5, 6.0])
def test_linear_variances_power_sums_are_exact(power):
    families = {"a": "range", "b": "prefix", "c": "marginal"}
    result = plan(Workload(shapes.numeric(5, 4, 3)).add(("a", "b", "c"), families), ONE)
    queries, variances = linear_variances(result.group_variance(0)), result.variances(0)
    scale = 2.0
    total, slopes = queries.power_sum(queries.noises, power, scale)
    assert total == pytest.approx(np.sum((variances / scale) ** power), rel=1e-10)
    derivatives = slopes * power / scale
    for j, derivative in enumerate(derivatives):
        step = np.zeros(len(slopes))
        step[j] = 1e-6 * queries.noises[j]
        above, _ = queries.power_sum(queries.noises + step, power, scale)
        below, _ = queries.power_sum(queries.noises - step, power, scale)
        assert derivative == pytest.approx((above - below) / (2 * step[j]), rel=1e-4)
    largest, _ = queries.largest(queries.noises)
    assert largest == pytest.approx(variances.max(), rel=1e-10)


@pytest.mark.parametrize(
    "options",
    [
        {"objective": "lp", "power": 0.5},
        {"objective": "lp", "power": math.nan},
        {"objective": "lp", "power": "4"},
        {"objective": "lp", "power": True},
        {"objective": "lp", "power": 1e6},
        {"objective": "max", "targets": 0.0},
        {"objective": "max", "targets": [1.0]},
        {"objective": "max", "targets": [1.0, 2.0, -1.0]},
        {"objective": "max", "targets": "fine"},
        {"objective": "max", "targets": []},
        {"objective": "max", "targets": math.inf},
        {"targets": 1.0},
    ],
    ids=str,
)
def test_plan_invalid_objective_options_are_refused(options):
    workload = Workload(shapes.numeric(3, 2)).add("a").add("b").add(("a", "b"))
    with pytest.raises(PlanError) as caught:
        plan(workload, ONE, **options)
    assert ("targets" if "targets" in options else "power") in str(caught.value)


def test_max_objective_time_limit_returns_plan():
    workload = Workload.all_ways(shapes.numeric(8, 8, 8), (1, 2), Width(3))
    stopped = plan(workload, ONE, objective="max", time_limit=1e-6)
    sum_plan = plan(workload, ONE)
    assert stopped.achieved <= 1.5 * sum_plan.max_variance**0.5
    assert stopped.certificate.lower_bound <= stopped.achieved


def test_max_objective_worse_split_stops_early(monkeypatch):
    """After a few steps, the bound for uniform centers exceeds the value for tuned centers."""
    split_of_step = []
    evaluate = reweighting.TradeoffSearch.evaluate

    def recorded_evaluate(search, x):
        is_tuned = search.split.centers or search.split.complements
        split_of_step.append("tuned" if is_tuned else "uniform")
        return evaluate(search, x)

    monkeypatch.setattr(reweighting.TradeoffSearch, "evaluate", recorded_evaluate)
    monkeypatch.setattr(reweighting, "MAX_SOLVES", 14)
    pair = ("a", "b")
    workload = Workload(shapes.numeric(4, 3)).add("a", "prefix")
    workload = workload.add(pair, "affine").add(pair, "range")
    uniform = plan(workload, ONE, objective="max", cache=False)
    steps_of_complete_search = len(split_of_step)
    split_of_step.clear()
    tuned = plan(workload, ONE, objective="max", centers="tuned", cache=False)
    assert tuned.split.complements
    assert tuned.max_variance < uniform.certificate.lower_bound**2
    assert steps_of_complete_search > 10
    assert 0 < split_of_step.count("uniform") < 0.5 * steps_of_complete_search
    assert split_of_step[-1] == "uniform"


@pytest.mark.parametrize("time_limit", [None, 1e-6], ids=["no limit", "limit"])
def test_max_objective_uses_better_centers(time_limit, monkeypatch):
    """Centers are tuned for the sum, and may be worse for another objective."""
    workload = Workload(shapes.numeric(4, 3)).add("a", "prefix")
    workload = workload.add(("a", "b"), "affine").add("b", weight=50.0)
    bad_split = Split(centers={"a": np.array([1.0, 0.0, 0.0, 0.0])})
    monkeypatch.setattr(QuerySmasher, "_splits", lambda *_: [bad_split])
    monkeypatch.setattr(reweighting, "MAX_SOLVES", 8)
    tuned = plan(workload, ONE, objective="max", centers="tuned", time_limit=time_limit)
    uniform = plan(workload, ONE, objective="max", time_limit=time_limit)
    assert tuned.max_variance <= uniform.max_variance * (1.0 + 1e-9)
    if time_limit is None:
        assert not tuned.split.centers
        assert tuned.max_variance == uniform.max_variance
