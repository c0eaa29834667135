"""Selection rules on plans, compared with the same rules on the full domain."""

import math
import sys

import numpy as np
import pandas as pd
import pytest

import engine.common_mechanism.selection_rule
from benchmarks.general_rule import domain_rows, spread_of_plans
from benchmarks.matrix_rules import spread_rule
from demo_data import schemas
from demo_data.make_synthetic import synthetic
from engine.common_mechanism import NestedPlanRule, stepwise
from engine.common_mechanism.common_mechanism import LinearMechanism
from engine.common_mechanism.common_plan import coarse_or_fine
from engine.errors import NotApplicable, PlanError
from engine.mechanisms import plan
from engine.privacy import Budget
from engine.records import count_marginals
from engine.workload import Attribute, Schema, Workload
from tests.common_mechanism.plans import rows_of
from tests.oracles import workload_rows

SCHEMA = Schema([Attribute.of_size("a", 4), Attribute.of_size("b", 3), Attribute.of_size("c", 2)])


def ways(k, pcost=1.0):
    return plan(Workload.all_ways(SCHEMA, ways=k, family="marginal"), Budget(pcost=pcost))


COMMON = coarse_or_fine(ways(1), ways(2), ways(3), names=["1-way", "2-way", "3-way"])


def look_at(per_cell, common=COMMON):
    """Return the first measurement (the look) without noise, for ``per_cell`` records per cell."""
    table = np.full((4, 3, 2), per_cell)
    counts = count_marginals_of(table)
    measuring = sys.modules["engine.release.add_noise"]
    real = measuring.discrete_gaussian
    try:
        measuring.discrete_gaussian = lambda *, variance, size: np.zeros(size, dtype=np.int64)
        look_result = stepwise.look(common, counts, rehearsal=True)
    finally:
        measuring.discrete_gaussian = real
    return look_result


def count_marginals_of(table):
    cells = np.argwhere(np.ones_like(table))
    rows = np.repeat(cells, table.ravel(), axis=0)
    return count_marginals(pd.DataFrame(rows, columns=list("abc")), SCHEMA, [("a", "b", "c")])


def nested(**options):
    return NestedPlanRule(common=COMMON, **{"share": 0.5, "snr": 5.0} | options)


def test_errors_match_brute_force():
    rule = nested()
    queries = np.concatenate(workload_rows(COMMON.options[0].workload))
    for option, option_plan in ((None, COMMON.look), *enumerate(COMMON.options)):
        dense_plan = LinearMechanism(rows_of(SCHEMA, option_plan.blocks))
        np.testing.assert_allclose(
            rule.errors(option), np.sqrt(np.diag(dense_plan.covariance(queries))), rtol=1e-6
        )
    look_result = look_at(20)
    np.testing.assert_allclose(rule.estimates(look_result), queries @ np.full(24, 20.0), rtol=1e-6)


@pytest.mark.parametrize(("records_per_cell", "choice"), [(400, 2), (0, None)])
def test_decide_depends_on_records_per_cell(records_per_cell, choice):
    decision = nested(sigmas=1.0).decide(look_at(records_per_cell))
    assert (decision.choice, decision.certain) == (choice, True)
    assert "50.0% of 9 cells above 5 standard errors" in decision.sentence


def test_decide_follows_from_shares():
    outcomes = set()
    for records_per_cell in range(40):
        rule, look_result = nested(sigmas=1.0), look_at(records_per_cell)
        decision = rule.decide(look_result)
        estimate, width = rule.estimates(look_result), rule.errors()
        low = {i: np.mean((estimate - width) / rule.errors(i) >= 5) for i in (1, 2)}
        high = {i: np.mean((estimate + width) / rule.errors(i) >= 5) for i in (0, 1, 2)}
        for i, name in ((1, "2-way"), (2, "3-way")):
            assert decision.shares[f"{name}, lower"] == pytest.approx(low[i])
            assert decision.shares[f"{name}, upper"] == pytest.approx(high[i])
        expected = next((i for i in (2, 1) if low[i] >= 0.5), 0)
        if not expected and high[0] < 0.5:
            expected = None
        assert decision.choice == expected
        outcomes.add((decision.choice, decision.certain))
    assert {None, 0, 1, 2} == {choice for choice, _ in outcomes}
    assert (0, False) in outcomes


def test_signal_to_noise_has_one_row_per_cell():
    rule, look_result = nested(), look_at(30)
    one_way = COMMON.options[0].workload
    for g, group in enumerate(rule.groups):
        table = rule.signal_to_noise(look_result, g, "2-way")
        assert len(table) == group.count
        assert table["query"][0] == one_way.describe_in_group(g, 0)
        # the 24 cells have 30 records each
        np.testing.assert_allclose(table["answer"], 30 * 24 / group.count, rtol=1e-6)
        assert (table["snr_low"] < table["snr"]).all()
        np.testing.assert_array_equal(table["stands_out"], table["snr_low"] >= 5 * (1 - 1e-9))
    with pytest.raises(PlanError, match="no group 9"):
        rule.signal_to_noise(look_result, 9, 1)


def test_plan_rule_with_bad_arguments_is_refused():
    only_a = plan(Workload(SCHEMA).add(("a",), "marginal"), Budget(pcost=1.0))
    with pytest.raises(NotApplicable, match="does not answer the marginal queries on b"):
        NestedPlanRule(common=coarse_or_fine(ways(1), only_a), share=0.5, snr=5)
    with pytest.raises(NotApplicable, match="is the last option"):
        nested(primary="3-way")
    for option in ({"share": 0.0}, {"snr": -1.0}, {"sigmas": math.inf}):
        with pytest.raises(PlanError, match=next(iter(option))):
            nested(**option)
    other_look = look_at(3, coarse_or_fine(ways(1), ways(2)))
    with pytest.raises(PlanError, match="options of this rule"):
        nested().decide(other_look)


def test_decide_adult_depends_on_number_of_records():
    adult = Schema.from_json(schemas()["adult"].read_text())
    options = [plan(Workload.all_ways(adult, ways=k), Budget(pcost=1.0)) for k in (1, 2)]
    common = coarse_or_fine(*options, names=["1-way", "2-way"])
    rule = NestedPlanRule(common=common, share=0.5, snr=5)
    few, many = (synthetic(adult, rows, seed=1) for rows in (30, 30_000))
    assert rule.decide(stepwise.look(common, many, rehearsal=True)).choice == 1
    assert rule.decide(stepwise.look(common, few, rehearsal=True)).choice == 0
    with pytest.raises(NotApplicable, match="Use the nested rule"):
        spread_of_plans(common, stepwise.look(common, few, rehearsal=True))


def test_general_rule_on_plans_matches_matrix_rule():
    common = coarse_or_fine(ways(1), ways(2), names=["1-way", "2-way"])
    look_result = look_at(12, common)
    decision = spread_of_plans(common, look_result, draws=6, seed=3)
    blocks = common.look.blocks
    look = LinearMechanism(rows_of(SCHEMA, blocks))
    answers = np.concatenate(
        [look_result.answers_on_grid[s] * b.grid / b.noise for s, b in blocks.items()]
    )
    analyses = []
    for option in common.options:
        variances = np.concatenate(
            [option.variances(g) for g in range(len(option.workload.groups))]
        )
        analyses.append(
            LinearMechanism(np.concatenate(workload_rows(option.workload)), np.diag(variances))
        )
    expected = spread_rule(look=look, analyses=analyses, answers=answers, draws=6, seed=3)
    assert decision.choice == expected.choice
    assert list(decision.shares.values()) == pytest.approx(list(expected.shares.values()), rel=1e-6)
    assert list(decision.shares) == ["1-way", "2-way", "radius"]
    option = None if decision.choice is None else common.names[decision.choice]
    assert decision.sentence.startswith(f"Take {option}" if option else "Stop")


def test_domain_rows_include_block_weights():
    families = ({"a": "prefix", "b": "range"}, {"a": "range", "b": "prefix"})
    workloads = [Workload(SCHEMA).add(("a", "b"), family) for family in families]
    look = coarse_or_fine(*(plan(w, Budget(pcost=0.4), centers="uniform") for w in workloads)).look
    assert any(
        block.weights is not None and np.ptp(block.weights) > 0.1 for block in look.blocks.values()
    )
    rows = np.concatenate(
        [domain_rows(SCHEMA, space, block) / block.noise for space, block in look.blocks.items()]
    )
    np.testing.assert_allclose(rows, rows_of(SCHEMA, look.blocks), rtol=1e-9, atol=1e-12)


def test_primary_analysis_with_many_queries_is_refused(monkeypatch):
    monkeypatch.setattr(engine.common_mechanism.selection_rule, "MAX_PRIMARY_QUERIES", 8)
    with pytest.raises(NotApplicable, match="9 queries"):
        nested()
