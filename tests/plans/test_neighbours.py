"""Privacy units: several rows per person and replace-one neighbours, by brute force."""

import itertools
import math

import numpy as np
import pytest

from engine.common_mechanism.common_plan import coarse_or_fine
from engine.errors import BudgetError, NotApplicable, PlanError
from engine.mechanisms import load_plan, plan
from engine.mechanisms.registry import MECHANISMS
from engine.plans import replace_one
from engine.plans.blocks import STD_PER_SCALE
from engine.privacy import Budget
from engine.workload import Attribute, Schema, Workload
from tests import oracles

SCHEMA = Schema(
    [Attribute.of_size("a", 4), Attribute.of_size("b", 3), Attribute.categorical("c", ["x", "y"])]
)
QUERIES = (
    Workload(SCHEMA)
    .add(("a",), "range")
    .add(("a", "b"), {"a": "prefix", "b": "prefix"}, weight=2.0)
    .add(("b", "c"), {"b": "prefix", "c": "marginal"})
)
TABLES = Workload.all_ways(SCHEMA, (1, 2), "marginal")
VARIANTS = [(m.name, options) for m in MECHANISMS for options in m.variants]


def first_plan(name, options, **unit):
    """Return a plan of a mechanism for the first workload and kind of budget that it supports."""
    for workload in (QUERIES, TABLES):
        for budget in (Budget(1.0, **unit), Budget.pure(1.0, **unit)):
            try:
                return plan(workload, budget, name, cache=False, **options)
            except NotApplicable:
                continue
    raise AssertionError(f"{name} has no plan")


def scaled_rows(result):
    """Return the strategy rows divided by their noise, and whether the noise is Laplace.

    The rows have the shape (measurements, cells).
    """
    blocks = list(result.blocks.values())
    parts = []
    for block in blocks:
        rows = oracles.block_rows(result.schema, block)
        if block.weights is not None:
            rows = rows * block.weights.reshape(-1, 1)
        parts.append(rows * STD_PER_SCALE[block.law] / block.noise)
    return np.concatenate(parts), blocks[0].law == "laplace"


def pcost_of_change(change, is_laplace):
    """Return the pcost of answers that differ by ``change``, in units of the noise scale."""
    return float(np.abs(change).sum() ** 2 if is_laplace else change @ change)


def largest_pcost_of_added_row(rows, is_laplace):
    return max(pcost_of_change(column, is_laplace) for column in rows.T)


def largest_pcost_of_replaced_row(rows, is_laplace):
    pairs = itertools.combinations(rows.T, 2)
    return max(pcost_of_change(one - other, is_laplace) for one, other in pairs)


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_rows_per_person_three_triples_error(name, options):
    one, three = first_plan(name, options), first_plan(name, options, rows_per_person=3)
    assert three.rmse == pytest.approx(3.0 * one.rmse, rel=1e-6)
    assert three.certificate.gap == pytest.approx(one.certificate.gap, abs=1e-6)
    B, is_laplace = scaled_rows(three)
    # all 3 rows of a person may be in one cell, which costs 3^2 times as much as one row
    worst = 9.0 * largest_pcost_of_added_row(B, is_laplace)
    assert worst <= three.pcost <= three.budget.pcost
    assert worst == pytest.approx(three.pcost, rel=1e-4)
    rng = np.random.default_rng(1)
    for _ in range(200):
        cells = rng.integers(0, B.shape[1], 3)
        assert pcost_of_change(B[:, cells].sum(axis=1), is_laplace) <= three.pcost
    loaded = load_plan(three.to_json())
    assert (loaded.hash, loaded.pcost, loaded.budget) == (three.hash, three.pcost, three.budget)
    assert loaded.hash != one.hash


@pytest.fixture(params=["all pairs", "bound"])
def compares_all_pairs(request, monkeypatch):
    """Return whether the cost of replacing a record is the maximum over all pairs of cells.

    The tests that use this fixture run twice; in the second run the engine uses an upper bound on
    this maximum.
    """
    if request.param == "bound":
        monkeypatch.setattr(replace_one, "MAX_PAIRED_CELLS", 0)
    return request.param == "all pairs"


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_replace_one_pcost_is_within_bound(name, options, compares_all_pairs):
    result = first_plan(name, options)
    B, is_laplace = scaled_rows(result)
    truth = largest_pcost_of_replaced_row(B, is_laplace)
    bound, worst = result.replace_one_pcost
    assert truth <= bound <= result.budget.replace_one_pcost
    assert worst.pcost <= truth * (1.0 + 1e-9)
    sizes = SCHEMA.sizes(SCHEMA.names)
    # attributes without measured queries are left out of the pair
    first, second = (
        np.ravel_multi_index([cell.get(name, 0) for name in SCHEMA.names], sizes)
        for cell in (worst.first, worst.second)
    )
    stated_cost = pcost_of_change(B[:, first] - B[:, second], is_laplace)
    assert worst.pcost == pytest.approx(stated_cost, rel=1e-9)
    if not is_laplace:
        assert worst.pcost == pytest.approx(truth, rel=0.02)
        if compares_all_pairs:
            assert bound == pytest.approx(truth, rel=1e-4)
    if name in ("querysmasher", "residualplanner+", "wff", "identity", "optimum"):
        # replacing a record costs these plans about twice as much as adding one
        assert 1.8 < bound < 2.03
        assert bound == pytest.approx(truth, rel=0.02)


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_replace_one_plan_is_within_budget(name, options, compares_all_pairs):
    result = first_plan(name, options, neighbours="replace_one", rows_per_person=2)
    B, is_laplace = scaled_rows(result)
    # both rows of a person may move between the same two cells, which costs 2^2 times as much
    truth = 4.0 * largest_pcost_of_replaced_row(B, is_laplace)
    assert truth <= result.pcost <= result.budget.pcost
    # the cost of a plan is an upper bound, which is exact only if all pairs of cells are compared
    if is_laplace:
        least_share = 0.2
    elif compares_all_pairs:
        least_share = 1.0 - 1e-4
    else:
        least_share = 0.5 if name == "gaussian" else 0.85
    assert truth >= result.pcost * least_share
    assert result.certificate.gap == math.inf
    assert "No bound" in result.certificate.statement


@pytest.mark.parametrize("impossible", [(), ["a == 0 and b == 0"]], ids=["all cells", "impossible"])
@pytest.mark.parametrize("name", ["querysmasher", "residualplanner+", "identity"])
def test_replace_one_uncounted_record_is_within_budget(name, impossible):
    """If most of the budget goes to the total, adding a record costs more than replacing one."""
    workload = (
        Workload(SCHEMA.with_facts(impossible=impossible))
        .add((), weight=1e4)
        .add(("a", "b"), weight=1e-3)
    )
    result = plan(workload, Budget(1.0, neighbours="replace_one"), name, cache=False)
    B, is_laplace = scaled_rows(result)
    added = largest_pcost_of_added_row(B, is_laplace)
    replaced = largest_pcost_of_replaced_row(B, is_laplace)
    assert max(added, replaced) <= result.pcost <= result.budget.pcost
    assert added <= result.replace_one_pcost.bound
    if name != "identity":
        assert added > replaced


def test_budget_files_omit_default_unit_and_round_trip():
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


@pytest.mark.parametrize("rows", [0, -1, 1.0, 2.5, True, "3", None, 10**7], ids=repr)
def test_budget_invalid_rows_per_person_is_refused(rows):
    with pytest.raises(BudgetError, match="from 1"):
        Budget(1.0, rows_per_person=rows)


def test_budget_unknown_neighbours_is_refused():
    with pytest.raises(BudgetError, match="add_remove, replace_one"):
        Budget(1.0, neighbours="swap")
    with pytest.raises(BudgetError):
        Budget.from_dict({"pcost": 1.0, "neighbors": "replace_one"})


def test_budget_describe_states_unit():
    assert "at most 3 rows" in Budget(1.0, rows_per_person=3).describe()
    assert "these values or any others" in Budget.pure(1.0, neighbours="replace_one").describe()


def plans_by_way(**unit):
    """Return plans of all one-way and of all two-way marginals, whose budgets have a unit."""
    return [plan(Workload.all_ways(SCHEMA, k, "marginal"), Budget(1.0, **unit)) for k in (1, 2)]


def test_coarse_or_fine_uses_privacy_unit():
    one, three = coarse_or_fine(*plans_by_way()), coarse_or_fine(*plans_by_way(rows_per_person=3))
    assert three.saved == pytest.approx(one.saved, rel=1e-6)
    assert three.look.budget.rows_per_person == 3
    for look_pcost, residual_pcost in three.spends:
        assert look_pcost + residual_pcost <= 1.0
    assert three.look.pcost <= three.look.budget.pcost
    assert three.look.rmse == pytest.approx(3.0 * one.look.rmse, rel=1e-6)
    _, fine_residual = three.residuals
    _, fine_spends = three.spends
    stages = np.concatenate([scaled_rows(stage)[0] for stage in (three.look, fine_residual)])
    # all 3 rows of a person may be in one cell, which costs 3^2 times as much as one row
    assert 9.0 * largest_pcost_of_added_row(stages, is_laplace=False) <= sum(fine_spends)


def test_coarse_or_fine_unsuitable_privacy_units_are_refused():
    coarse, _ = plans_by_way()
    _, fine_of_three_rows = plans_by_way(rows_per_person=3)
    with pytest.raises(PlanError, match="different"):
        coarse_or_fine(coarse, fine_of_three_rows)
    with pytest.raises(PlanError, match="replace"):
        coarse_or_fine(*plans_by_way(neighbours="replace_one"))
