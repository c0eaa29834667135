"""Privacy units: several rows per person and replace-one neighbours, by brute force."""

import itertools
import math

import numpy as np
import pytest

from engine.common_mechanism.common_plan import coarse_or_fine
from engine.errors import BudgetError, NotApplicable, PlanError
from engine.mechanisms import load_plan, plan
from engine.mechanisms.registry import MECHANISMS
from engine.plans.blocks import DEVIATION
from engine.privacy import Budget
from engine.privacy.budget import NEIGHBOURS
from engine.workload import Attribute, Schema, Workload
from tests import oracles

SCHEMA = Schema([Attribute.of_size("a", 4), Attribute.of_size("b", 3), Attribute.categorical("c", ["x", "y"])])
ASKED = (
    Workload(SCHEMA)
    .add(("a",), "range")
    .add(("a", "b"), {"a": "prefix", "b": "prefix"}, weight=2.0)
    .add(("b", "c"), {"b": "prefix", "c": "marginal"})
)
TABLES = Workload.all_ways(SCHEMA, (1, 2), "marginal")
VARIANTS = [(m.name, options) for m in MECHANISMS for options in m.variants]


def made(name, options, **unit):
    for workload in (ASKED, TABLES):
        for budget in (Budget(1.0, **unit), Budget.pure(1.0, **unit)):
            try:
                return plan(workload, budget, name, cache=False, **options)
            except NotApplicable:
                continue
    raise AssertionError(f"{name} applies to nothing")


def columns(found):
    """Return the rows over their noise, shape (answers, cells), and whether costs are L1."""
    blocks = list(found.blocks.values())
    parts = []
    for block in blocks:
        rows = oracles.block_rows(found.schema, block)
        if block.weights is not None:
            rows = rows * block.weights.reshape(-1, 1)
        parts.append(rows * DEVIATION[block.law] / block.noise)
    return np.concatenate(parts), blocks[0].law == "laplace"


def cost(moved, in_l1):
    return float(np.abs(moved).sum() ** 2 if in_l1 else moved @ moved)


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_the_error_of_three_rows_is_three_times_that_of_one(name, options):
    one, three = made(name, options), made(name, options, rows_per_person=3)
    assert three.rmse == pytest.approx(3.0 * one.rmse, rel=1e-6)
    assert three.certificate.gap == pytest.approx(one.certificate.gap, abs=1e-6)
    B, in_l1 = columns(three)
    worst = max(cost(B[:, x], in_l1) for x in range(B.shape[1]))
    assert 9.0 * worst <= three.pcost <= three.budget.pcost  # all rows in the worst cell
    assert 9.0 * worst == pytest.approx(three.pcost, rel=1e-4)
    rng = np.random.default_rng(1)
    for _ in range(200):
        rows = rng.integers(0, B.shape[1], 3)
        assert cost(B[:, rows].sum(axis=1), in_l1) <= three.pcost
    again = load_plan(three.to_json())
    assert (again.hash, again.pcost, again.budget) == (three.hash, three.pcost, three.budget)
    assert again.hash != one.hash


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_replacing_costs_at_most_the_proven_bound(name, options):
    found = made(name, options)
    B, in_l1 = columns(found)
    pairs = itertools.combinations(range(B.shape[1]), 2)
    truth = max(cost(B[:, x] - B[:, y], in_l1) for x, y in pairs)
    bound, worst = found.replace_one_pcost
    assert truth <= bound <= found.budget.replace_one_pcost
    assert worst.pcost <= truth * (1.0 + 1e-9)
    cells = [
        int(np.ravel_multi_index([p.get(n, 0) for n in SCHEMA.names], SCHEMA.sizes(SCHEMA.names)))
        for p in (worst.first, worst.second)
    ]
    assert cost(B[:, cells[0]] - B[:, cells[1]], in_l1) == pytest.approx(worst.pcost, rel=1e-9)
    if not in_l1:
        assert worst.pcost == pytest.approx(truth, rel=0.02)
    if name in ("querysmasher", "residualplanner+", "wff", "identity", "optimum"):
        assert 1.8 < bound < 2.03
        assert bound == pytest.approx(truth, rel=0.02)


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_a_plan_for_replacing_keeps_its_budget(name, options):
    found = made(name, options, neighbours="replace_one", rows_per_person=2)
    B, in_l1 = columns(found)
    truth = 4.0 * max(cost(B[:, x] - B[:, y], in_l1) for x, y in itertools.combinations(range(B.shape[1]), 2))
    assert truth <= found.pcost <= found.budget.pcost
    assert truth >= found.pcost * (0.2 if in_l1 else 0.5 if name == "gaussian" else 0.85)
    assert found.certificate.gap == math.inf
    assert "No bound" in found.certificate.statement


@pytest.mark.parametrize("impossible", [(), ["a == 0 and b == 0"]])
@pytest.mark.parametrize("name", ["querysmasher", "residualplanner+", "identity"])
def test_a_record_replaced_by_one_that_counts_nowhere_keeps_the_budget(name, impossible):
    """If most of the budget goes to the total, adding a record costs more than replacing one."""
    asked = Workload(SCHEMA.with_facts(impossible=impossible)).add((), weight=1e4).add(("a", "b"), weight=1e-3)
    found = plan(asked, Budget(1.0, neighbours="replace_one"), name, cache=False)
    B, in_l1 = columns(found)
    vanish = max(cost(B[:, x], in_l1) for x in range(B.shape[1]))
    pairs = max(cost(B[:, x] - B[:, y], in_l1) for x, y in itertools.combinations(range(B.shape[1]), 2))
    assert max(vanish, pairs) <= found.pcost <= found.budget.pcost
    assert vanish <= found.replace_one_pcost.bound
    assert name == "identity" or vanish > pairs


def test_the_usual_unit_is_not_written_so_that_plans_keep_their_hash():
    assert Budget(2.0).to_dict() == {"pcost": 2.0}
    for budget in (
        Budget(2.0, rows_per_person=3),
        Budget.pure(0.5, neighbours="replace_one"),
        Budget.zcdp(0.1, rows_per_person=2, neighbours="replace_one"),
        Budget.gdp(0.1, rows_per_person=2),
        Budget.approx(1.0, 1e-6, rows_per_person=7),
    ):
        assert Budget.from_dict(budget.to_dict()) == budget
        assert budget.at(budget.pcost) == budget
        assert budget.of_person(budget.row_pcost) <= budget.pcost
        assert budget.of_person(budget.row_pcost) == pytest.approx(budget.pcost, rel=1e-15)
    assert NEIGHBOURS == ("add_remove", "replace_one")


@pytest.mark.parametrize("rows", [0, -1, 1.0, 2.5, True, "3", None, 10**7])
def test_rows_that_are_no_number_of_rows_are_refused(rows):
    with pytest.raises(BudgetError, match="whole number from 1"):
        Budget(1.0, rows_per_person=rows)


def test_other_neighbours_are_refused():
    with pytest.raises(BudgetError, match="add_remove, replace_one"):
        Budget(1.0, neighbours="swap")
    with pytest.raises(BudgetError):
        Budget.from_dict({"pcost": 1.0, "neighbors": "replace_one"})


def test_the_guarantee_is_said_for_a_person():
    assert "at most 3 rows" in Budget(1.0, rows_per_person=3).describe()
    assert "these values or any others" in Budget.pure(1.0, neighbours="replace_one").describe()


def test_a_choice_is_made_for_persons_too():
    def options(**unit):
        return [plan(Workload.all_ways(SCHEMA, k, "marginal"), Budget(1.0, **unit)) for k in (1, 2)]

    one, three = coarse_or_fine(*options()), coarse_or_fine(*options(rows_per_person=3))
    assert three.saved == pytest.approx(one.saved, rel=1e-6)
    assert three.look.budget.rows_per_person == 3
    for look, rest in three.spends:
        assert look + rest <= 1.0
    assert three.look.pcost <= three.look.budget.pcost
    assert three.look.rmse == pytest.approx(3.0 * one.look.rmse, rel=1e-6)
    B, _ = columns(three.look)
    left = columns(three.residuals[1])[0]
    both = np.concatenate([B, left])
    assert 9.0 * max(cost(both[:, x], False) for x in range(both.shape[1])) <= sum(three.spends[1])
    with pytest.raises(PlanError, match="protect different things"):
        coarse_or_fine(options()[0], options(rows_per_person=3)[1])
    with pytest.raises(PlanError, match="replace"):
        coarse_or_fine(*options(neighbours="replace_one"))
