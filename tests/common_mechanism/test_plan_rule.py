"""Decisions on plans against the same rules written out on the full domain."""

import math
import sys
from dataclasses import replace

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


def looked_at(per_cell, common=COMMON):
    """A look without noise at a table with so many records in each cell, as if the noise had come out as zero."""
    table = np.full((4, 3, 2), per_cell)
    counts = count_marginals_of(table)
    measuring = sys.modules["engine.release.noisy_answers"]
    real = measuring.discrete_gaussian
    try:
        measuring.discrete_gaussian = lambda *, variance, size: np.zeros(size, dtype=np.int64)
        found = stepwise.look(common, counts, rehearsal=True)
    finally:
        measuring.discrete_gaussian = real
    return found


def count_marginals_of(table):
    cells = np.argwhere(np.ones_like(table))
    rows = np.repeat(cells, table.ravel(), axis=0)
    return count_marginals(pd.DataFrame(rows, columns=list("abc")), SCHEMA, [("a", "b", "c")])


def nested(**options):
    return NestedPlanRule(common=COMMON, **{"share": 0.5, "snr": 5.0} | options)


def test_errors_are_those_of_brute_force():
    rule = nested()
    W = np.concatenate(workload_rows(COMMON.options[0].workload))
    for option, given in ((None, COMMON.look), *enumerate(COMMON.options)):
        everything = LinearMechanism(rows_of(SCHEMA, given.blocks))
        np.testing.assert_allclose(rule.errors(option), np.sqrt(np.diag(everything.covariance(W))), rtol=1e-6)
    looked = looked_at(20)
    np.testing.assert_allclose(rule.estimates(looked), W @ np.full(24, 20.0), rtol=1e-6)


@pytest.mark.parametrize(("per_cell", "choice"), [(400, 2), (0, None)])
def test_a_dense_table_takes_the_finest_plan_and_an_empty_one_stops(per_cell, choice):
    decision = nested(sigmas=1.0).decide(looked_at(per_cell))
    assert (decision.choice, decision.certain) == (choice, True)
    assert "50.0% of 9 cells above 5 standard errors" in decision.sentence


def test_in_between_every_verdict_follows_from_its_shares():
    seen = set()
    for per_cell in range(40):
        rule, looked = nested(sigmas=1.0), looked_at(per_cell)
        decision = rule.decide(looked)
        estimate, width = rule.estimates(looked), rule.errors()
        low = {i: np.mean((estimate - width) / rule.errors(i) >= 5) for i in (1, 2)}
        high = {i: np.mean((estimate + width) / rule.errors(i) >= 5) for i in (0, 1, 2)}
        for i, name in ((1, "2-way"), (2, "3-way")):
            assert decision.shares[f"{name}, lower"] == pytest.approx(low[i])
            assert decision.shares[f"{name}, upper"] == pytest.approx(high[i])
        expected = 2 if low[2] >= 0.5 else 1 if low[1] >= 0.5 else None if high[0] < 0.5 else 0
        assert decision.choice == expected
        seen.add((decision.choice, decision.certain))
    assert {None, 0, 1, 2} == {choice for choice, _ in seen}
    assert (0, False) in seen


def test_the_map_shows_every_cell():
    rule, looked = nested(), looked_at(30)
    for g, group in enumerate(rule.groups):
        table = rule.signal_to_noise(looked, g, "2-way")
        assert len(table) == group.count
        assert table["query"][0] == COMMON.options[0].workload.describe_in_group(g, 0)
        np.testing.assert_allclose(table["answer"], 30 * 24 / group.count, rtol=1e-6)
        assert (table["snr_low"] < table["snr"]).all()
        np.testing.assert_array_equal(table["stands_out"], table["snr_low"] >= 5 * (1 - 1e-9))
    with pytest.raises(PlanError, match="no group 9"):
        rule.signal_to_noise(looked, 9, 1)


def test_what_is_not_nested_is_refused_with_the_group():
    only_a = plan(Workload(SCHEMA).add(("a",), "marginal"), Budget(pcost=1.0))
    with pytest.raises(NotApplicable, match="does not answer the marginal queries on b"):
        NestedPlanRule(common=coarse_or_fine(ways(1), only_a), share=0.5, snr=5)
    with pytest.raises(NotApplicable, match="is the last option"):
        nested(primary="3-way")
    for option in ({"share": 0.0}, {"snr": -1.0}, {"sigmas": math.inf}):
        with pytest.raises(PlanError, match=next(iter(option))):
            nested(**option)
    other = looked_at(3, coarse_or_fine(ways(1), ways(2)))
    with pytest.raises(PlanError, match="another look"):
        nested().decide(other)


def test_adult_is_decided_from_its_look():
    adult = Schema.from_json(schemas()["adult"].read_text())
    options = [plan(Workload.all_ways(adult, ways=k), Budget(pcost=1.0)) for k in (1, 2)]
    common = coarse_or_fine(*options, names=["1-way", "2-way"])
    rule = NestedPlanRule(common=common, share=0.5, snr=5)
    few, many = (synthetic(adult, rows, seed=1) for rows in (30, 30_000))
    assert rule.decide(stepwise.look(common, many, rehearsal=True)).choice == 1
    assert rule.decide(stepwise.look(common, few, rehearsal=True)).choice == 0
    with pytest.raises(NotApplicable, match="Use the nested rule"):
        spread_of_plans(common, stepwise.look(common, few, rehearsal=True))


def test_the_general_rule_on_plans_is_the_rule_on_their_matrices():
    common = coarse_or_fine(ways(1), ways(2), names=["1-way", "2-way"])
    looked = looked_at(12, common)
    decision = spread_of_plans(common, looked, draws=6, seed=3)
    blocks = common.look.blocks
    look = LinearMechanism(rows_of(SCHEMA, blocks))
    answers = np.concatenate([looked.answers_on_grid[s] * b.grid / b.noise for s, b in blocks.items()])
    analyses = []
    for option in common.options:
        variances = np.concatenate([option.variances(g) for g in range(len(option.workload.groups))])
        analyses.append(LinearMechanism(np.concatenate(workload_rows(option.workload)), np.diag(variances)))
    expected = spread_rule(look=look, analyses=analyses, answers=answers, draws=6, seed=3)
    assert decision.choice == expected.choice
    assert list(decision.shares.values()) == pytest.approx(list(expected.shares.values()), rel=1e-6)
    assert list(decision.shares) == ["1-way", "2-way", "radius"]
    assert decision.sentence.startswith(("Take 1-way", "Take 2-way", "Stop"))


def test_the_general_rule_sees_the_weights_of_rows_in_a_look():
    families = ({"a": "prefix", "b": "range"}, {"a": "range", "b": "prefix"})
    asked = [Workload(SCHEMA).add(("a", "b"), family) for family in families]
    look = coarse_or_fine(*(plan(w, Budget(pcost=0.4), centers="uniform") for w in asked)).look
    assert any(block.weights is not None and np.ptp(block.weights) > 0.1 for block in look.blocks.values())
    rows = np.concatenate([domain_rows(SCHEMA, space, block) / block.noise for space, block in look.blocks.items()])
    np.testing.assert_allclose(rows, rows_of(SCHEMA, look.blocks), rtol=1e-9, atol=1e-12)


def test_a_primary_analysis_too_long_is_refused(monkeypatch):
    monkeypatch.setattr(engine.common_mechanism.selection_rule, "MOST_QUERIES", 8)
    with pytest.raises(NotApplicable, match="9 queries"):
        nested()
    assert replace(COMMON, names=("x", "y", "z")).position("y") == 1
