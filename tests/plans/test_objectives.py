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
from engine.plans.linear_variances import linear_variances
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
    plain = cached_plan(mechanism, shape, "sum")
    explicit = oracles.Explicit(result)
    assert explicit.pcost <= result.pcost <= 1.0
    for i, W in enumerate(oracles.workload_rows(result.workload)):
        np.testing.assert_allclose(
            result.variances(i), explicit.variances(W), rtol=1e-8, atol=1e-12
        )
    assert result.achieved == pytest.approx(value_of(result, **goal), rel=1e-8)
    assert result.achieved <= value_of(plain, **goal) * (1 + SLACK)
    certificate = result.certificate
    assert 0 < certificate.lower_bound <= result.achieved * (1 + SLACK)
    assert certificate.gap == pytest.approx(
        result.achieved / certificate.lower_bound - 1, abs=1e-12
    )
    assert (
        "largest standard error" if goal["objective"] == "max" else "power 3"
    ) in certificate.statement


@pytest.mark.parametrize("goal", GOALS, ids=lambda g: g["objective"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("all_mechanisms", [False, pytest.param(True, marks=pytest.mark.full)])
def test_objective_bound_holds_for_other_mechanisms(all_mechanisms, shape, goal):
    """All these mechanisms measure the same residual spaces, so a bound of one holds for all."""
    names = [m.name for m in RESIDUAL] if all_mechanisms else mechanisms_for(shape, goal)
    plans = [cached_plan(name, shape, **goal) for name in names]
    best = min(
        value_of(p, **goal)
        for p in (*plans, *(cached_plan(m.name, shape, "sum") for m in RESIDUAL))
    )
    for result in plans:
        assert result.certificate.lower_bound <= best * (1 + SLACK)
    assert cached_plan("querysmasher", shape, **goal).certificate.gap <= (
        1e-2 if goal["objective"] == "max" else 1e-4
    )


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
    x = np.log([b.noise**2 for b in cached_plan(mechanism, shape, "sum").blocks.values()])

    if goal["objective"] == "max":
        start = np.append(x, math.log((P @ np.exp(x)).max()))
        limits = [
            {
                "type": "ineq",
                "fun": lambda y: y[-1] - np.log(np.maximum(P @ np.exp(y[:-1]), 1e-300)),
            },
            {"type": "ineq", "fun": lambda y: -math.log(np.exp(-y[:-1]).sum())},
        ]
        options = {"maxiter": 2000, "ftol": 1e-14}
        solved = scipy.optimize.minimize(
            lambda y: y[-1], start, method="SLSQP", constraints=limits, options=options
        )
        best = math.exp(0.5 * solved.x[-1])
    else:
        p = goal["power"]

        def log_objective(y):
            return math.log(weights @ (P @ np.exp(y)) ** p) / p + math.log(np.exp(-y).sum())

        solved = scipy.optimize.minimize(log_objective, x, method="BFGS", options={"gtol": 1e-9})
        best = math.exp(0.5 * solved.fun) / result.workload.queries ** (0.5 / p)
    assert result.achieved == pytest.approx(best, rel=2e-5)


def test_max_objective_equal_variances_gives_sum_plan():
    """By symmetry, marginals and circular ranges of one length have equal variances."""
    for workload in (
        Workload(shapes.numeric(5, 4)).add(("a", "b"), "marginal"),
        Workload(shapes.numeric(6)).add(
            "a", Custom([np.roll([1, 1, 0, 0, 0, 0], k) for k in range(6)])
        ),
    ):
        plain, largest = plan(workload, ONE), plan(workload, ONE, objective="max")
        assert plain.max_variance == pytest.approx(plain.rmse**2, rel=1e-5)
        assert largest.max_variance == pytest.approx(plain.rmse**2, rel=1e-5)
        assert largest.certificate.gap <= 1e-5


@pytest.mark.parametrize("mechanism", [m.name for m in RESIDUAL])
def test_all_objectives_close_gap_for_marginals(mechanism):
    """Mechanisms that are optimal for marginals reach the lower bound of every objective."""
    workload = Workload.all_ways(shapes.numeric(6, 3, 2), (0, 1, 2), "marginal")
    for goal in GOALS:
        assert plan(workload, ONE, mechanism, **goal).certificate.gap <= 2e-5


def test_lp_objective_lies_between_sum_and_max():
    workload = Workload.all_ways(shapes.numeric(8, 6), (1, 2), "prefix")
    plans = [plan(workload, ONE, objective="lp", power=p) for p in (1.0, 2.0, 12.0)]
    plans = [plan(workload, ONE), *plans, plan(workload, ONE, objective="max")]
    assert plans[1].rmse == plans[0].rmse
    for a, b in itertools.pairwise(plans[1:]):
        assert a.rmse <= b.rmse * (1 + 1e-3)
        assert a.max_variance >= b.max_variance * (1 - 1e-3)
    assert plans[-1].max_variance < 0.85 * plans[0].max_variance


def test_max_objective_ignores_size_of_weights():
    schema = shapes.numeric(5, 3)
    a = (
        Workload(schema)
        .add("a", "prefix")
        .add(("a", "b"), "marginal")
        .add("b", "range", weight=0.0)
    )
    b = (
        Workload(schema)
        .add("a", "prefix", weight=7.0)
        .add(("a", "b"), "marginal", query_weights=np.arange(1.0, 16.0))
    )
    first, second = (plan(w, ONE, objective="max") for w in (a, b))
    assert first.achieved == pytest.approx(second.achieved, rel=1e-3)
    # the variance of a query of weight 0 is not limited
    light = Workload(schema).add("a", "prefix", query_weights=[1, 0, 0, 0, 1])
    assert plan(light, ONE, objective="max").achieved < 0.9 * plan(light, ONE).max_variance ** 0.5


def test_max_objective_targets_scale_errors():
    workload = (
        Workload(shapes.numeric(6, 4))
        .add("a", "prefix")
        .add(("a", "b"), "marginal")
        .add("b", "range")
    )
    targets = [1.0, 4.0, 2.0]
    result = plan(workload, ONE, objective="max", targets=targets)
    assert result.achieved == pytest.approx(value_of(result, "max", targets=targets), rel=1e-8)
    largest = plan(workload, ONE, objective="max")
    for other in (plan(workload, ONE), largest):
        assert result.achieved < value_of(other, "max", targets=targets) * (1 - 1e-3)
    assert result.certificate.gap < 5e-3
    assert "ratio of standard error to target" in result.certificate.statement
    doubled = plan(workload, ONE, objective="max", targets=[2 * t for t in targets])
    assert doubled.achieved == pytest.approx(result.achieved / 2, rel=2e-3)
    same = plan(workload, ONE, objective="max", targets=3.0)
    assert same.achieved == pytest.approx(largest.achieved / 3, rel=2e-3)


def test_symmetry_rings_of_pairs_are_separated():
    """In one ring of six attributes and in two rings of three, each attribute is in two pairs.

    The symmetry of a workload must still tell these workloads apart.
    """
    schema = shapes.numeric(*[2] * 6)
    ring = [("a", "b"), ("b", "c"), ("c", "d"), ("d", "e"), ("e", "f"), ("a", "f")]
    rings = [("a", "b"), ("b", "c"), ("a", "c"), ("d", "e"), ("e", "f"), ("d", "f")]
    for pairs in (ring, rings, [*ring, ("a", "c")]):
        workload = Workload(schema)
        for pair in pairs:
            workload = workload.add(pair, {pair[0]: "prefix", pair[1]: "marginal"})
        result = plan(workload, ONE, objective="max")
        assert result.achieved == pytest.approx(value_of(result, "max"), rel=1e-8)
        assert result.certificate.gap <= 2e-3
    same = symmetry(
        Workload.all_ways(schema, (1, 2), "prefix"),
        list(decompose(Workload.all_ways(schema, (1, 2), "prefix")).spaces),
        Objective(power=math.inf),
        {},
        UNIFORM,
    )
    # one class each: the total, the six attributes, and the fifteen pairs
    assert list(same.counts) == [1, 6, 15]
    assert list(same.sizes) == [6, 15]


@pytest.mark.parametrize("power", [1.0, 2.0, 3.0, 3.5, 6.0])
def test_linear_variances_power_sums_are_exact(power):
    workload = Workload(shapes.numeric(5, 4, 3)).add(
        ("a", "b", "c"), {"a": "range", "b": "prefix", "c": "marginal"}
    )
    result = plan(workload, ONE)
    queries, variances = linear_variances(result.group_variance(0)), result.variances(0)
    total, slopes = queries.power_sum(queries.noises, power, 2.0)
    assert total == pytest.approx(np.sum((variances / 2.0) ** power), rel=1e-10)
    for j in range(len(slopes)):
        step = 1e-6 * queries.noises[j] * np.eye(len(slopes))[j]
        up, down = (queries.power_sum(queries.noises + s, power, 2.0)[0] for s in (step, -step))
        assert slopes[j] * power / 2.0 == pytest.approx((up - down) / (2 * step[j]), rel=1e-4)
    assert queries.largest(queries.noises)[0] == pytest.approx(variances.max(), rel=1e-10)


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
    result = plan(workload, ONE, objective="max", time_limit=1e-6)
    assert result.achieved <= plan(workload, ONE).max_variance ** 0.5 * 1.5
    assert result.certificate.lower_bound <= result.achieved


def test_max_objective_worse_split_stops_early(monkeypatch):
    """After a few steps, the bound for uniform centers exceeds the value for tuned centers."""
    steps = []
    evaluate = reweighting.TradeoffSearch.evaluate

    def counting_evaluate(search, x):
        steps.append(bool(search.split.centers or search.split.complements))
        return evaluate(search, x)

    monkeypatch.setattr(reweighting.TradeoffSearch, "evaluate", counting_evaluate)
    monkeypatch.setattr(reweighting, "MAX_SOLVES", 14)
    workload = (
        Workload(shapes.numeric(4, 3))
        .add("a", "prefix")
        .add(("a", "b"), "affine")
        .add(("a", "b"), "range")
    )
    uniform = plan(workload, ONE, objective="max", cache=False)
    uniform_steps = len(steps)
    steps.clear()
    tuned = plan(workload, ONE, objective="max", centers="tuned", cache=False)
    assert tuned.split.complements
    assert tuned.max_variance < uniform.certificate.lower_bound**2
    assert uniform_steps > 10
    assert 0 < steps.count(False) < 0.5 * uniform_steps
    assert steps[-1] is False


@pytest.mark.parametrize("limit", [None, 1e-6])
def test_max_objective_uses_better_centers(limit, monkeypatch):
    """Centers are tuned for the sum, and may be worse for another objective."""
    workload = (
        Workload(shapes.numeric(4, 3))
        .add("a", "prefix")
        .add(("a", "b"), "affine")
        .add("b", weight=50.0)
    )
    bad = Split(centers={"a": np.array([1.0, 0.0, 0.0, 0.0])})
    monkeypatch.setattr(QuerySmasher, "_splits", lambda *_: [bad])
    monkeypatch.setattr(reweighting, "MAX_SOLVES", 8)
    chosen = plan(workload, ONE, objective="max", centers="tuned", time_limit=limit)
    alone = plan(workload, ONE, objective="max", time_limit=limit)
    if limit is None:
        assert not chosen.split.centers
        assert chosen.max_variance == alone.max_variance
    else:
        assert chosen.max_variance <= alone.max_variance * (1.0 + 1e-9)
