"""Residual plans and HDMM unions with a joint privacy cost, the maximum of summed cell costs."""

from __future__ import annotations

import dataclasses
import json
import math

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

RNG = np.random.default_rng(33)
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


def test_joint_cost_lowers_error_by_root_of_summed_cost() -> None:
    result = plan(custom(), Budget(1.0), cache=False)
    before = load_plan(_summed_cost_file(result))
    summed_pcost = total_pcost(result.blocks, result.max_records)
    assert not before.joint
    assert summed_pcost > 1.03
    assert result.weighted_rmse == pytest.approx(
        before.weighted_rmse / math.sqrt(summed_pcost), rel=1e-6
    )


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
    again = load_plan(result.to_json())
    assert again.to_json() == result.to_json()
    assert (again.joint, again.pcost, again.certificate) == (
        result.joint,
        result.pcost,
        result.certificate,
    )
    assert [b.noise for b in again.blocks.values()] == [b.noise for b in result.blocks.values()]


def test_plan_file_even_cells_does_not_mention_joint() -> None:
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
    other = at_budget(result, Budget(4.0))
    assert other.joint
    assert other.pcost == pytest.approx(4.0, rel=1e-6)
    assert other.weighted_rmse == pytest.approx(result.weighted_rmse / 2.0, rel=1e-6)


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
    for _ in range(50):
        blocks = {
            s: dataclasses.replace(b, noise=b.noise * RNG.uniform(0.3, 3.0))
            for s, b in result.blocks.items()
        }
        other = dataclasses.replace(result, blocks=blocks, budget=Budget(1e6))
        cost = cells_pcost(blocks, 1)
        assert other.weighted_rmse * math.sqrt(cost) >= result.certificate.lower_bound


def test_keep_joint_plan_limits_group_errors() -> None:
    workload = custom(fractions=True).add(["a"], Custom(matrix=ROWS), weight=0.3)
    uniform = plan(workload, Budget(1.0), cache=False)
    constrained = plan(workload, Budget(1.0), centers="tuned", keep=0.0, cache=False)
    assert all(
        a <= b * (1.0 + 1e-6) for a, b in zip(constrained.totals, uniform.totals, strict=True)
    )
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
            for one in campaign.replay(
                "custom", [result], result, result.pcost, tight=True, rng=RNG
            ):
                assert not one.wrong, one


def test_rehearsal_joint_plan_has_predicted_errors() -> None:
    result = plan(custom(), Budget(1.0), cache=False)
    frame = pd.DataFrame({"a": RNG.integers(0, 5, 300), "b": RNG.integers(0, 4, 300)})
    truth = INTEGERS @ np.bincount(frame["a"] * 4 + frame["b"], minlength=20)
    counts = count_marginals(frame, result.schema, [("a", "b")])
    squares = [(measure(result, counts, rehearsal=True).values(0) - truth) ** 2 for _ in range(600)]
    np.testing.assert_allclose(np.mean(squares, axis=0), result.variances(0), rtol=0.25)


def test_coarse_or_fine_joint_plan_costs_nothing_extra() -> None:
    """The look and the residual of a chosen plan together cost what the plan alone costs."""
    workload = custom()
    plans = [
        plan(workload, Budget(1.0), cache=False),
        plan(workload.add(["a"], "prefix"), Budget(2.0), cache=False),
    ]
    common = coarse_or_fine(*plans)
    assert plans[0].joint
    assert common.stretch == pytest.approx(1.0, abs=1e-6)
    assert CommonPlan.from_json(common.to_json()).spends == common.spends
    with campaign.no_noise():
        for left, result in zip(common.residuals, common.options, strict=True):
            for one in campaign.replay(
                "choice",
                [common.look, left],
                result,
                option_cost(result),
                tight=result is plans[0],
                rng=RNG,
            ):
                assert not one.wrong, one


def test_cells_pcost_weighted_block_is_exact() -> None:
    result = plan(custom(), Budget(1.0), cache=False)
    block = next(iter(result.blocks.values()))
    weighted = dataclasses.replace(
        block, weights=RNG.uniform(0.2, 1.0, [len(s.rows) for _, s in block.factors])
    )
    blocks: dict[object, Block] = {1: block, 2: weighted}
    truth = float((block.cell_pcosts(1) + weighted.cell_pcosts(1)).max())
    assert cells_pcost(blocks, 1) == pytest.approx(truth, rel=1e-6)


def test_joint_share_too_many_blocks_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    result = plan(custom(), Budget(1.0), cache=False)
    parts = [(space, b.factors, 1.0 / b.noise**2) for space, b in result.blocks.items()]
    assert joint_share(parts) < 0.97
    monkeypatch.setattr("engine.plans.blocks.MAX_JOINT", 2)
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
    truth = explicit_pcost(result) * budget.rows_per_person**2
    assert truth <= result.pcost <= budget.pcost
    assert truth == pytest.approx(budget.pcost, rel=1e-4)
    assert (
        result.pcost
        < 0.97 * total_pcost(result.blocks, result.max_records) * budget.rows_per_person**2
    )


def test_hdmm_laplace_union_spends_its_budget_and_lowers_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result = union_plan(monkeypatch, Budget.pure(0.5), queries=1)
    assert result.joint
    with campaign.no_noise():
        for one in campaign.replay("union", [result], result, result.pcost, tight=True, rng=RNG):
            assert not one.wrong, one
    with monkeypatch.context() as patch:
        patch.setattr("engine.plans.blocks.MAX_JOINT", 2)
        summed = union_plan(monkeypatch, Budget.pure(0.5), queries=1)
    assert result.rmse < 0.99 * summed.rmse


def test_hdmm_union_replace_one_is_not_undercharged(monkeypatch: pytest.MonkeyPatch) -> None:
    result = union_plan(monkeypatch, Budget(1.0, neighbours="replace_one"))
    with campaign.no_noise():
        for one in campaign.replay("union", [result], result, result.pcost, tight=False, rng=RNG):
            assert not one.wrong, one


def test_hdmm_union_file_round_trips_and_changes_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    result = union_plan(monkeypatch, Budget(1.0))
    again = load_plan(result.to_json())
    assert again.joint
    assert (again.hash, again.pcost, again.rmse) == (result.hash, result.pcost, result.rmse)
    assert again.to_json() == result.to_json()
    other = at_budget(result, Budget(4.0))
    assert other.joint
    assert other.rmse == pytest.approx(result.rmse / 2, rel=1e-6)


def test_older_file_of_hdmm_union_adds_up_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    result = union_plan(monkeypatch, Budget(1.0))
    with monkeypatch.context() as patch:
        patch.setattr("engine.plans.blocks.MAX_JOINT", 2)
        older = union_plan(monkeypatch, Budget(1.0))
    assert not older.joint
    assert older.hash == result.hash
    assert result.rmse < 0.99 * older.rmse
    again = load_plan(older.to_json())
    assert not again.joint
    assert (again.pcost, again.rmse) == (older.pcost, older.rmse)


@pytest.mark.parametrize("mark", [0.0, 2.0])
def test_hdmm_union_forged_header_is_refused(monkeypatch: pytest.MonkeyPatch, mark: float) -> None:
    result = union_plan(monkeypatch, Budget(1.0))
    header = result.matrices[0].copy()
    header[3] = mark
    text = dataclasses.replace(result, matrices=(header, *result.matrices[1:])).to_json()
    with pytest.raises(PlanError, match="fit"):
        load_plan(text)


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
    assert joint_share([(space, b.factors, 1.0 / b.noise**2) for space, b in blocks.items()]) == 1.0
