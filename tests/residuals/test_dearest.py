"""The dearest cell of all, against every cell of small domains, and as a bound where it cannot be exact."""

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


def part(rng, law, whole):
    """Random factors on some attributes; whole numbers make ties."""
    names = tuple(n for n in SIZES if rng.random() < 0.6) or ("a",)
    factors, axes = [], list(rng.permutation(len(names)))
    while axes:
        own = tuple(int(axes.pop()) for _ in range(min(len(axes), int(rng.integers(1, 3)))))
        sizes = tuple(SIZES[names[a]] for a in own)
        rows = rng.normal(size=(2, math.prod(sizes)))
        rows = np.rint(rows) if whole else rows
        factors.append((own, Strategy(sizes=sizes, rows=rows, pinv=rows.T, complete=True)))
    return names, tuple(factors), float(rng.uniform(0.1, 2.0))


def costs(found, law):
    """What every cell costs in one part, on all attributes, shape of the domain."""
    names, factors, scale = found
    out = np.full(tuple(SIZES.values()), scale)
    for axes, strategy in factors:
        moved = (np.abs(strategy.rows) if law == "laplace" else strategy.rows**2).sum(axis=0).reshape(strategy.sizes)
        own = [names[a] for a in axes]
        ranked = [own.index(n) for n in SIZES if n in own]
        out = out * moved.transpose(ranked).reshape([SIZES[n] if n in own else 1 for n in SIZES])
    return out


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
@pytest.mark.parametrize("seed", range(12))
def test_the_dearest_cell_is_that_of_all_cells(seed, law):
    rng = np.random.default_rng(seed)
    parts = [part(rng, law, whole=seed % 2) for _ in range(int(rng.integers(1, 7)))]
    every = [costs(p, law) for p in parts]
    truth, apart = float(sum(every).max()), math.fsum(float(c.max()) for c in every)
    assert joint_sensitivity(parts, law) == pytest.approx(truth, rel=1e-12)
    assert truth <= joint_sensitivity(parts, law) * (1 + 1e-12)
    for most in (1, 4, 12):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(engine.residuals.strategy, "MOST", most)
            assert truth * (1 - 1e-12) <= joint_sensitivity(parts, law) <= apart * (1 + 1e-12)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine.residuals.strategy, "ENTRIES", 0)  # no value is left out
        assert joint_sensitivity(parts, law) == pytest.approx(truth, rel=1e-12)


@pytest.mark.parametrize("name", ["gaussian", "laplace"])
def test_a_workload_costs_what_its_dearest_cell_costs(name):
    schema = Schema([Attribute.of_size(n, 6) for n in "abcd"])
    workload = Workload(schema).add(("a", "b"), "prefix").add(("b", "c"), "affine").add(("c", "d"), Random(seed=3))
    workload = workload.add(("a", "b"), "suffix").add(("a",), "suffix")
    budget = Budget.pure(1.0) if name == "laplace" else Budget(1.0)
    made, apart = (plan(workload, budget, name, charge=c) for c in ("cell", "groups"))
    assert made.pcost <= 1.0
    assert made.rmse < 0.9 * apart.rmse
    assert load_plan(made.to_json()).pcost == made.pcost
    assert load_plan(apart.to_json()).hash == apart.hash != made.hash
    assert "charge" not in apart.options
    assert at_budget(apart, budget).rmse == apart.rmse
    with pytest.raises(PlanError, match="charge"):
        plan(workload, budget, name, charge="none")


def test_many_attributes_take_little_time():
    schema = Schema([Attribute.of_size(f"x{i}", 10) for i in range(40)])
    made = plan(Workload.all_ways(schema, (1, 2), "range"), Budget(1.0), "gaussian")
    assert 1.0 - 1e-4 <= made.pcost <= 1.0
    # every query has the same noise, which a cell in the middle of all ranges pays for
    middle = 5 * 6
    queries = 40 * middle + 780 * middle**2
    for block in made.blocks.values():
        assert block.noise**2 == pytest.approx(queries / middle ** len(block.attributes), rel=1e-5)
