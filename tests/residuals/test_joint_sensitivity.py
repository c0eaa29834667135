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


def part(rng, law, integers):
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


def costs(factors_of_part, law):
    """Return the privacy cost of every cell for one strategy of `part`, shape of the domain."""
    names, factors, scale = factors_of_part
    out = np.full(tuple(SIZES.values()), scale)
    for axes, strategy in factors:
        moved = (
            (np.abs(strategy.rows) if law == "laplace" else strategy.rows**2)
            .sum(axis=0)
            .reshape(strategy.sizes)
        )
        chosen = [names[a] for a in axes]
        ranked = [chosen.index(n) for n in SIZES if n in chosen]
        out = out * moved.transpose(ranked).reshape([SIZES[n] if n in chosen else 1 for n in SIZES])
    return out


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
@pytest.mark.parametrize("seed", range(12))
def test_joint_sensitivity_equals_maximum_over_cells(seed, law):
    rng = np.random.default_rng(seed)
    parts = [part(rng, law, integers=seed % 2) for _ in range(int(rng.integers(1, 7)))]
    every = [costs(p, law) for p in parts]
    truth, sum_of_maxima = float(sum(every).max()), math.fsum(float(c.max()) for c in every)
    assert joint_sensitivity(parts, law) == pytest.approx(truth, rel=1e-12)
    assert truth <= joint_sensitivity(parts, law) * (1 + 1e-12)
    for most in (1, 4, 12):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(engine.residuals.strategy, "MAX_JOINT_CELLS", most)
            assert (
                truth * (1 - 1e-12) <= joint_sensitivity(parts, law) <= sum_of_maxima * (1 + 1e-12)
            )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine.residuals.strategy, "MAX_JOINT_COMPARISONS", 0)
        assert joint_sensitivity(parts, law) == pytest.approx(truth, rel=1e-12)


@pytest.mark.parametrize("name", ["gaussian", "laplace"])
def test_plan_charge_cell_is_cheaper_than_groups(name):
    schema = Schema([Attribute.of_size(n, 6) for n in "abcd"])
    workload = (
        Workload(schema)
        .add(("a", "b"), "prefix")
        .add(("b", "c"), "affine")
        .add(("c", "d"), Random(seed=3))
    )
    workload = workload.add(("a", "b"), "suffix").add(("a",), "suffix")
    budget = Budget.pure(1.0) if name == "laplace" else Budget(1.0)
    by_cell, by_groups = (plan(workload, budget, name, charge=c) for c in ("cell", "groups"))
    assert by_cell.pcost <= 1.0
    assert by_cell.rmse < 0.9 * by_groups.rmse
    assert load_plan(by_cell.to_json()).pcost == by_cell.pcost
    assert load_plan(by_groups.to_json()).hash == by_groups.hash != by_cell.hash
    assert "charge" not in by_groups.options
    assert at_budget(by_groups, budget).rmse == by_groups.rmse
    with pytest.raises(PlanError, match="charge"):
        plan(workload, budget, name, charge="none")


def test_gaussian_forty_attributes_has_equal_noise():
    schema = Schema([Attribute.of_size(f"x{i}", 10) for i in range(40)])
    result = plan(Workload.all_ways(schema, (1, 2), "range"), Budget(1.0), "gaussian")
    assert 1.0 - 1e-4 <= result.pcost <= 1.0
    # all queries have equal noise; the costliest cell is in the middle of all ranges
    middle = 5 * 6
    queries = 40 * middle + 780 * middle**2
    for block in result.blocks.values():
        assert block.noise**2 == pytest.approx(queries / middle ** len(block.attributes), rel=1e-5)
