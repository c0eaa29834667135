"""Residual plans and HDMM unions with a joint privacy cost, the maximum of summed cell costs."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest

from engine.common_mechanism import CommonPlan
from engine.common_mechanism.common_plan import coarse_or_fine, option_cost
from engine.errors import PlanError
from engine.mechanisms import at_budget, load_plan, plan
from engine.plans import Block, Plan
from engine.plans.blocks import cells_pcost, joint_share, total_pcost
from engine.plans.replace_one import replaced_pcost
from engine.privacy import Budget
from engine.records import count_marginals
from engine.release import measure
from engine.workload import Attribute, Custom, Schema, Workload
from tests.oracles import explicit
from tests.replay import campaign

SIZES = (5, 4)
ROWS = np.array([[1, 0, 1, 1, 0], [0, 1, 1, 0, 0]])
INTEGERS = np.random.default_rng(5).integers(-2, 3, (2, 20))
FRACTIONS = np.random.default_rng(1).normal(size=(2, 20))
KINDS = {
    "sum": {},
    "max": {"objective": "max"},
    "lp": {"objective": "lp"},
    "tuned": {"centers": "tuned"},
}


def custom(*, exact: bool = False, fractions: bool = False) -> Workload:
    """Return custom queries on two attributes whose strategies cost more in some cells than others.

    With ``exact``, attribute a has exact totals; with ``fractions``, coefficients are not integers.
    """
    facts = [(["a"], [9] * SIZES[0])] if exact else []
    schema = Schema(
        [Attribute.of_size("a", SIZES[0]), Attribute.of_size("b", SIZES[1])], invariants=facts
    )
    return Workload(schema).add(["a", "b"], Custom(matrix=FRACTIONS if fractions else INTEGERS))


def explicit_pcost(result: Plan) -> float:
    """Return the joint privacy cost, from the dense matrices."""
    return explicit(result).pcost


def wrong_charges(
    stages: Sequence[Any], final_plan: Plan, charge: float, *, tight: bool
) -> list[campaign.Replayed]:
    """Return the replays of a release whose true privacy cost does not fit the charge.

    The true cost must be at most the charge; with ``tight``, it must also reach the charge.
    """
    rng = np.random.default_rng(33)
    replays = campaign.replay("release", stages, final_plan, charge, tight=tight, rng=rng)
    return [replayed for replayed in replays if replayed.wrong]


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("fractions", [False, True])
@pytest.mark.parametrize(
    "budget", [Budget(1.0), Budget(0.02, rows_per_person=3)], ids=["one", "three"]
)
def test_plan_custom_rows_spends_its_budget(exact: bool, fractions: bool, budget: Budget) -> None:
    result = plan(custom(exact=exact, fractions=fractions), budget, cache=False)
    assert result.joint
    # The blocks separately would cost at least 3% more than the budget.
    assert total_pcost(result.blocks, result.max_records) > 1.03 * budget.row_pcost
    assert result.pcost <= budget.pcost
    assert result.pcost >= budget.pcost * (1.0 - 1e-6)
    truth = explicit_pcost(result) * budget.rows_per_person**2
    assert result.pcost * (1.0 - 1e-5) <= truth <= result.pcost


def test_joint_cost_divides_error_by_root_of_sum() -> None:
    joint_plan = plan(custom(), Budget(1.0), cache=False)
    summed_plan = load_plan(_summed_cost_file(joint_plan))
    summed_pcost = total_pcost(joint_plan.blocks, joint_plan.max_records)
    assert not summed_plan.joint
    assert summed_pcost > 1.03
    expected = summed_plan.weighted_rmse / math.sqrt(summed_pcost)
    assert joint_plan.weighted_rmse == pytest.approx(expected, rel=1e-6)


def _summed_cost_file(result: Plan) -> str:
    """Return a plan file as it would be with the sum of the block costs as privacy cost.

    The field ``joint`` is removed and the error is scaled accordingly.
    """
    data = json.loads(result.to_json())
    assert data["solved"].pop("joint") is True
    summed_pcost = total_pcost(result.blocks, result.max_records)
    data["solved"]["weighted_rmse"] *= math.sqrt(summed_pcost)
    return json.dumps(data)


@pytest.mark.parametrize("kind", KINDS)
def test_plan_file_joint_plan_round_trips(kind: str) -> None:
    result = plan(custom(), Budget(1.0), cache=False, **KINDS[kind])
    loaded = load_plan(result.to_json())
    assert loaded.to_json() == result.to_json()
    assert loaded.joint == result.joint
    assert loaded.pcost == result.pcost
    assert loaded.certificate == result.certificate
    assert [b.noise for b in loaded.blocks.values()] == [b.noise for b in result.blocks.values()]


def test_plan_file_of_marginals_has_no_joint_flag() -> None:
    # all cells of a marginal have equal costs, so that joint and summed cost are equal
    result = plan(Workload.all_ways(custom().schema, (1, 2), "marginal"), Budget(1.0))
    assert not result.joint
    assert "joint" not in json.loads(result.to_json())["solved"]


@pytest.mark.parametrize("wrong", [1, "yes", None])
def test_plan_file_damaged_joint_is_refused(wrong: object) -> None:
    data = json.loads(plan(custom(), Budget(1.0), cache=False).to_json())
    data["solved"]["joint"] = wrong
    with pytest.raises(PlanError, match="charged"):
        load_plan(json.dumps(data))


def test_plan_file_without_joint_flag_is_refused() -> None:
    result = plan(custom(), Budget(1.0), cache=False)
    data = json.loads(result.to_json())
    del data["solved"]["joint"]
    with pytest.raises(PlanError, match="changed"):
        load_plan(json.dumps(data))


def test_at_budget_joint_plan_spends_new_budget() -> None:
    result = plan(custom(), Budget(1.0), cache=False)
    rescaled = at_budget(result, Budget(4.0))
    assert rescaled.joint
    assert rescaled.pcost == pytest.approx(4.0, rel=1e-6)
    assert rescaled.weighted_rmse == pytest.approx(result.weighted_rmse / 2.0, rel=1e-6)


@pytest.mark.parametrize("kind", ["sum", "max", "lp"])
@pytest.mark.parametrize("exact", [False, True])
def test_certificate_joint_plan_bounds_its_class(kind: str, exact: bool) -> None:
    workload = custom(exact=exact)
    result = plan(workload, Budget(1.0), cache=False, **KINDS[kind])
    bound = result.certificate.lower_bound
    assert 0.5 * result.achieved < bound <= result.achieved
    for mechanism, options in (
        ("residualplanner", {}),
        ("wff", {}),
        ("querysmasher", {"solver": "eigenbasis"}),
    ):
        other_plan = plan(workload, Budget(1.0), mechanism, cache=False, **KINDS[kind], **options)
        assert other_plan.achieved >= bound


def test_random_noise_has_error_above_certificate_bound() -> None:
    result = plan(custom(), Budget(1.0), cache=False)
    rng = np.random.default_rng(33)
    for _ in range(50):
        blocks = {
            space: dataclasses.replace(block, noise=block.noise * rng.uniform(0.3, 3.0))
            for space, block in result.blocks.items()
        }
        other = dataclasses.replace(result, blocks=blocks, budget=Budget(1e6))
        error_at_pcost_1 = other.weighted_rmse * math.sqrt(cells_pcost(blocks, max_records=1))
        assert error_at_pcost_1 >= result.certificate.lower_bound


def test_keep_joint_plan_limits_group_errors() -> None:
    workload = custom(fractions=True).add(["a"], Custom(matrix=ROWS), weight=0.3)
    uniform = plan(workload, Budget(1.0), cache=False)
    constrained = plan(workload, Budget(1.0), centers="tuned", keep=0.0, cache=False)
    assert (np.array(constrained.totals) <= np.array(uniform.totals) * (1.0 + 1e-6)).all()
    assert constrained.certificate.lower_bound <= constrained.weighted_rmse


def test_replace_one_joint_cost_bounds_worst_pair() -> None:
    result = plan(custom(), Budget(1.0, neighbours="replace_one"), cache=False)
    cost = result.replace_one_pcost
    assert cost.worst.pcost <= cost.bound <= 1.0
    assert replaced_pcost(result.blocks, result.max_records, cells_pcost) == cost.bound


def test_replay_joint_plans_reach_their_charge() -> None:
    with campaign.no_noise():
        for budget in (Budget(1.0), Budget(1.0, rows_per_person=2)):
            result = plan(custom(), budget, cache=False)
            assert wrong_charges([result], result, result.pcost, tight=True) == []


def test_rehearsal_joint_plan_has_predicted_errors() -> None:
    result = plan(custom(), Budget(1.0), cache=False)
    rng = np.random.default_rng(33)
    records = pd.DataFrame({"a": rng.integers(0, 5, 300), "b": rng.integers(0, 4, 300)})
    counts = count_marginals(records, result.schema, [("a", "b")])
    truth = INTEGERS @ counts["a", "b"].ravel()
    errors = [measure(result, counts, rehearsal=True).values(0) - truth for _ in range(600)]
    # a mean of 600 squares has a standard error of 6%
    np.testing.assert_allclose(np.mean(np.square(errors), axis=0), result.variances(0), rtol=0.25)


def test_coarse_or_fine_joint_plan_costs_nothing_extra() -> None:
    """The look and the residual of a chosen plan together cost what the plan alone costs."""
    joint_plan = plan(custom(), Budget(1.0), cache=False)
    fine_plan = plan(custom().add(["a"], "prefix"), Budget(2.0), cache=False)
    common = coarse_or_fine(joint_plan, fine_plan)
    assert joint_plan.joint
    assert common.stretch == pytest.approx(1.0, abs=1e-6)
    assert CommonPlan.from_json(common.to_json()).spends == common.spends
    with campaign.no_noise():
        for residual, option in zip(common.residuals, common.options, strict=True):
            stages, charge = [common.look, residual], option_cost(option)
            assert wrong_charges(stages, option, charge, tight=option is joint_plan) == []


def test_cells_pcost_weighted_block_is_exact() -> None:
    result = plan(custom(), Budget(1.0), cache=False)
    block = next(iter(result.blocks.values()))
    shape = [len(strategy.rows) for _, strategy in block.factors]
    weights = np.random.default_rng(33).uniform(0.2, 1.0, shape)
    weighted = dataclasses.replace(block, weights=weights)
    blocks: dict[object, Block] = {"unweighted": block, "weighted": weighted}
    truth = float((block.cell_pcosts(1) + weighted.cell_pcosts(1)).max())
    assert cells_pcost(blocks, max_records=1) == pytest.approx(truth, rel=1e-6)


def test_joint_share_too_many_blocks_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = plan(custom(), Budget(1.0), cache=False).blocks
    parts = [(space, b.factors, 1.0 / b.noise**2) for space, b in blocks.items()]
    assert joint_share(parts) < 0.97
    monkeypatch.setattr("engine.plans.blocks.MAX_JOINT", len(parts) - 1)
    assert joint_share(parts) == 1.0


def union_plan(monkeypatch: pytest.MonkeyPatch, budget: Budget, queries: int = 2) -> Plan:
    """Return a plan of three product strategies whose costliest cells differ.

    ``queries`` is the number of custom queries on each pair of attributes.
    """
    monkeypatch.setattr("engine.mechanisms.hdmm.MAX_MERGE_CLUSTERS", 1)
    rng = np.random.default_rng(2)
    workload = Workload(Schema([Attribute.of_size(name, 4) for name in "abc"]))
    for pair in ("ab", "ac", "bc"):
        workload = workload.add(list(pair), Custom(matrix=rng.normal(size=(queries, 16))))
    return plan(workload, budget, "hdmm", operator="OPT_plus", cache=False)


@pytest.mark.parametrize(
    "budget", [Budget(1.0), Budget(0.02, rows_per_person=3)], ids=["one", "three"]
)
def test_hdmm_union_spends_its_budget(monkeypatch: pytest.MonkeyPatch, budget: Budget) -> None:
    result = union_plan(monkeypatch, budget)
    assert len(result.blocks) == 3
    assert result.joint
    person_factor = budget.rows_per_person**2
    truth = explicit_pcost(result) * person_factor
    assert truth <= result.pcost <= budget.pcost
    assert truth == pytest.approx(budget.pcost, rel=1e-4)
    summed_pcost = total_pcost(result.blocks, result.max_records) * person_factor
    assert result.pcost < 0.97 * summed_pcost


def test_hdmm_laplace_union_spends_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    result = union_plan(monkeypatch, Budget.pure(0.5), queries=1)
    assert result.joint
    with campaign.no_noise():
        assert wrong_charges([result], result, result.pcost, tight=True) == []
    with monkeypatch.context() as patch:
        patch.setattr("engine.plans.blocks.MAX_JOINT", 2)  # then costs are added up
        summed = union_plan(monkeypatch, Budget.pure(0.5), queries=1)
    assert result.rmse < 0.99 * summed.rmse


def test_hdmm_union_replace_one_is_not_undercharged(monkeypatch: pytest.MonkeyPatch) -> None:
    result = union_plan(monkeypatch, Budget(1.0, neighbours="replace_one"))
    with campaign.no_noise():
        assert wrong_charges([result], result, result.pcost, tight=False) == []


def test_hdmm_union_file_round_trips_and_changes_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    result = union_plan(monkeypatch, Budget(1.0))
    loaded = load_plan(result.to_json())
    assert loaded.joint
    assert (loaded.hash, loaded.pcost, loaded.rmse) == (result.hash, result.pcost, result.rmse)
    assert loaded.to_json() == result.to_json()
    rescaled = at_budget(result, Budget(4.0))
    assert rescaled.joint
    assert rescaled.rmse == pytest.approx(result.rmse / 2, rel=1e-6)


def test_older_file_of_hdmm_union_adds_up_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    result = union_plan(monkeypatch, Budget(1.0))
    with monkeypatch.context() as patch:
        patch.setattr("engine.plans.blocks.MAX_JOINT", 2)  # then costs are added up
        older = union_plan(monkeypatch, Budget(1.0))
    assert not older.joint
    assert older.hash == result.hash
    assert result.rmse < 0.99 * older.rmse
    loaded = load_plan(older.to_json())
    assert not loaded.joint
    assert (loaded.pcost, loaded.rmse) == (older.pcost, older.rmse)


@pytest.mark.parametrize("joint_flag", [0.0, 2.0])
def test_hdmm_union_forged_header_is_refused(
    monkeypatch: pytest.MonkeyPatch, joint_flag: float
) -> None:
    result = union_plan(monkeypatch, Budget(1.0))
    header, *matrices = result.matrices
    forged_header = header.copy()
    forged_header[3] = joint_flag
    forged = dataclasses.replace(result, matrices=(forged_header, *matrices))
    with pytest.raises(PlanError, match="fit"):
        load_plan(forged.to_json())


def test_joint_share_common_largest_cell_skips_elimination(monkeypatch: pytest.MonkeyPatch) -> None:
    # One cell of the domain has the largest privacy cost in every block at the same time.
    schema = Schema([Attribute.of_size("a", 5), Attribute.of_size("b", 4)])
    rows = {"a": Custom(matrix=INTEGERS[:, :5]), "b": Custom(matrix=INTEGERS[:, :4])}
    workload = Workload(schema).add("a", rows["a"]).add("b", rows["b"]).add(["a", "b"], rows)
    blocks = plan(workload, Budget(1.0), cache=False).blocks
    assert cells_pcost(blocks, 1) == pytest.approx(total_pcost(blocks, 1), rel=1e-6)
    monkeypatch.setattr(
        "engine.plans.blocks.joint_sensitivity", lambda *_: pytest.fail("not necessary")
    )
    parts = [(space, b.factors, 1.0 / b.noise**2) for space, b in blocks.items()]
    assert joint_share(parts) == 1.0
