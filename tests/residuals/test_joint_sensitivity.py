"""Joint sensitivity of several strategies against every cell of small domains."""

import math

import numpy as np
import pytest

import engine.residuals.strategy
from engine.errors import PlanError
from engine.mechanisms import at_budget, load_plan, plan
from engine.privacy import Budget
from engine.residuals import Strategy
from engine.residuals.strategy import joint_sensitivity
from engine.workload import Attribute, Schema, Workload
from engine.workload.families import Random

SIZES = {"a": 3, "b": 4, "c": 2, "d": 3, "e": 1}


def random_strategy(rng, integers):
    """Return a random product strategy as (attribute names, factors, scale).

    With ``integers``, the entries of its matrices are integers, so that several cells can have the
    same cost.
    """
    names = tuple(n for n in SIZES if rng.random() < 0.6) or ("a",)
    factors, axes = [], list(rng.permutation(len(names)))
    while axes:
        chosen = tuple(int(axes.pop()) for _ in range(min(len(axes), int(rng.integers(1, 3)))))
        sizes = tuple(SIZES[names[a]] for a in chosen)
        rows = rng.normal(size=(2, math.prod(sizes)))
        rows = np.rint(rows) if integers else rows
        factors.append((chosen, Strategy(sizes=sizes, rows=rows, pinv=rows.T, complete=True)))
    return names, tuple(factors), float(rng.uniform(0.1, 2.0))


def cell_costs(product_strategy, law):
    """Return the privacy cost of every cell for a `random_strategy`, with the shape of the domain."""
    names, factors, scale = product_strategy
    costs = np.full(tuple(SIZES.values()), scale)
    for axes, strategy in factors:
        entries = np.abs(strategy.rows) if law == "laplace" else strategy.rows**2
        factor_costs = entries.sum(axis=0).reshape(strategy.sizes)
        chosen = [names[a] for a in axes]
        order = [chosen.index(n) for n in SIZES if n in chosen]
        shape = [SIZES[n] if n in chosen else 1 for n in SIZES]
        costs = costs * factor_costs.transpose(order).reshape(shape)
    return costs


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
@pytest.mark.parametrize("seed", range(12))
def test_joint_sensitivity_equals_maximum_over_cells(seed, law):
    rng = np.random.default_rng(seed)
    n_strategies = int(rng.integers(1, 7))
    strategies = [random_strategy(rng, integers=seed % 2) for _ in range(n_strategies)]
    costs = [cell_costs(strategy, law) for strategy in strategies]
    maximum = float(sum(costs).max())
    sum_of_maxima = math.fsum(float(c.max()) for c in costs)
    assert joint_sensitivity(strategies, law) == pytest.approx(maximum, rel=1e-12)
    # Above the limit of cells, the result is an upper bound.
    for max_cells in (1, 4, 12):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(engine.residuals.strategy, "MAX_JOINT_CELLS", max_cells)
            upper_bound = joint_sensitivity(strategies, law)
            assert maximum * (1 - 1e-12) <= upper_bound <= sum_of_maxima * (1 + 1e-12)
    # Without comparisons, more cells are computed, and the result is still exact.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine.residuals.strategy, "MAX_JOINT_COMPARISONS", 0)
        assert joint_sensitivity(strategies, law) == pytest.approx(maximum, rel=1e-12)


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
def test_plan_charged_by_cell_is_more_accurate(mechanism):
    schema = Schema([Attribute.of_size(n, 6) for n in "abcd"])
    workload = (
        Workload(schema)
        .add(("a", "b"), "prefix")
        .add(("b", "c"), "affine")
        .add(("c", "d"), Random(seed=3))
        .add(("a", "b"), "suffix")
        .add(("a",), "suffix")
    )
    budget = Budget.pure(1.0) if mechanism == "laplace" else Budget(1.0)
    by_cell, by_groups = (plan(workload, budget, mechanism, charge=c) for c in ("cell", "groups"))
    assert by_cell.pcost <= 1.0
    assert by_cell.rmse < 0.9 * by_groups.rmse
    assert load_plan(by_cell.to_json()).pcost == by_cell.pcost
    assert load_plan(by_groups.to_json()).hash == by_groups.hash != by_cell.hash
    assert "charge" not in by_groups.options
    assert at_budget(by_groups, budget).rmse == by_groups.rmse


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
def test_plan_with_unknown_charge_is_refused(mechanism):
    workload = Workload(Schema([Attribute.of_size("a", 6)])).add("a", "prefix")
    budget = Budget.pure(1.0) if mechanism == "laplace" else Budget(1.0)
    with pytest.raises(PlanError, match="charge"):
        plan(workload, budget, mechanism, charge="none")


def test_gaussian_forty_attributes_has_equal_noise():
    schema = Schema([Attribute.of_size(f"x{i}", 10) for i in range(40)])
    result = plan(Workload.all_ways(schema, (1, 2), "range"), Budget(1.0), "gaussian")
    assert 1.0 - 1e-4 <= result.pcost <= 1.0
    # All queries have equal noise. The costliest cell, in the middle of every attribute, is in
    # 5 * 6 of the 55 ranges of one attribute.
    ranges_per_cell = 5 * 6
    queries_per_cell = 40 * ranges_per_cell + math.comb(40, 2) * ranges_per_cell**2
    for block in result.blocks.values():
        column_norm_squared = ranges_per_cell ** len(block.attributes)
        assert block.noise**2 == pytest.approx(queries_per_cell / column_norm_squared, rel=1e-5)
