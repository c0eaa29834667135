"""Two-stage releases: look, decide, finish, their costs and stored results."""

import sys
from pathlib import Path

import numpy as np
import pytest

from engine.common_mechanism import NestedPlanRule, stepwise
from engine.common_mechanism.common_plan import coarse_or_fine, nested_choices
from engine.common_mechanism.selection_rule import Decision
from engine.common_mechanism.stepwise import (
    decide,
    finish,
    look,
    look_key,
    looks,
    rehearse_finish,
    resume,
)
from engine.errors import BudgetExceeded, DataError, LedgerError, PlanError, ResultLost
from engine.ledger import Ledger
from engine.privacy import Budget
from engine.records import count_marginals
from engine.release import apply_group
from tests.common_mechanism.plans import cost_of
from tests.common_mechanism.steps import (
    CHAIN,
    COMMON,
    FINE,
    ONE_WAY,
    RECORDS,
    SCHEMA,
    TWO_WAY,
    assert_same_measurement,
    ledger_decimal,
    ledger_spends,
    ways,
)

measuring = sys.modules["engine.release.measure"]
REHEARSALS = 200
STOP = Decision(choice=None, certain=True, shares={}, sentence="Stop.")


@pytest.fixture
def ledger(tmp_path):
    book = Ledger.create(tmp_path / "office.ledger")
    book.add_dataset("survey", total=Budget(pcost=1.0))
    return book


# --- look, decide, finish ---


@pytest.mark.parametrize("option", [0, 1])
def test_look_and_finish_cost_the_chosen_plan(ledger, option):
    look_result = look(COMMON, RECORDS, dataset="survey", ledger=ledger)
    assert ledger_spends(ledger) == [ledger_decimal(COMMON.spends[option][0])]
    decide(ledger, look_result.key, option=option, by="A. Reader", reason="large cells")
    final = finish(ledger, look_result.key, RECORDS)
    assert sum(ledger_spends(ledger)) == ledger_decimal(COMMON.options[option].pcost)
    assert ledger.status("survey").spent == COMMON.options[option].pcost
    assert final.plan.hash == COMMON.options[option].hash
    assert ledger.verify() == ()


@pytest.mark.parametrize("direction", [0.0, 1.0])
def test_finish_uses_costs_stored_by_look(ledger, monkeypatch, direction):
    """On another machine, the last digit of a cost can be larger or smaller."""
    look_result = look(COMMON, RECORDS, dataset="survey", ledger=ledger)
    decide(ledger, look_result.key, option=1, by="A. Reader", reason="large cells")
    exact_cost = stepwise.option_cost
    monkeypatch.setattr(
        stepwise, "option_cost", lambda option: float(np.nextafter(exact_cost(option), direction))
    )
    final = finish(ledger, look_result.key, RECORDS)
    assert_same_measurement(finish(ledger, look_result.key, None), final)
    assert ledger.status("survey").spent == TWO_WAY.pcost


def test_resume_look_file_with_other_costs_is_refused(ledger, monkeypatch):
    look_result = look(COMMON, RECORDS, dataset="survey", ledger=ledger)
    exact_cost = stepwise.option_cost
    monkeypatch.setattr(stepwise, "option_cost", lambda option: exact_cost(option) * (1.0 - 1e-9))
    with pytest.raises(LedgerError, match="cannot be read"):
        resume(ledger, look_result.key)


def test_repeated_steps_return_stored_results(ledger):
    look_result = look(COMMON, RECORDS, dataset="survey", ledger=ledger)
    assert_same_measurement(
        look(COMMON, RECORDS[::-1], dataset="survey", ledger=ledger.path), look_result
    )
    assert_same_measurement(look(COMMON, None, dataset="survey", ledger=ledger.path), look_result)
    assert look_result.key == look_key(COMMON, dataset="survey")
    assert looks(ledger, "survey") == [look_result.key]
    steps = resume(ledger.path, look_result.key)
    assert_same_measurement(steps.look, look_result)
    assert steps.choice is None
    assert steps.finished is None
    assert steps.common.names == COMMON.names
    choice = decide(
        ledger.path, look_result.key, verdict=FINE, rule={"rule": "nested", "share": 0.5, "snr": 5}
    )
    assert (choice.option, choice.verdict, choice.by) == ("2-way", "2-way", "")
    assert resume(ledger, look_result.key).choice == choice
    final = finish(ledger, look_result.key, RECORDS)
    assert_same_measurement(finish(ledger.path, look_result.key, None), final)
    steps = resume(ledger, look_result.key)
    assert_same_measurement(steps.finished, final)
    assert_same_measurement(steps.look, look_result)
    assert len(ledger_spends(ledger)) == 2


def test_rehearsed_steps_are_unbiased_with_plan_variances():
    option = TWO_WAY
    sets = [group.attributes for group in option.workload.groups]
    counts = count_marginals(RECORDS, SCHEMA, [*sets, *measuring.maximal_sets(option)])
    counted = np.concatenate(
        [
            apply_group(g, counts[g.attributes].astype(float), 0, g.count)
            for g in option.workload.groups
        ]
    )
    predicted = np.concatenate([option.variances(i) for i in range(len(sets))])
    errors = []
    for _ in range(REHEARSALS):
        look_result = look(COMMON, counts, rehearsal=True)
        final = rehearse_finish(COMMON, look_result, counts, option="2-way")
        assert final.rehearsal
        errors.append(np.concatenate([final.values(i) for i in range(len(sets))]) - counted)
    bias, variances = np.mean(errors, axis=0), np.mean(np.square(errors), axis=0)
    # at most 5 standard errors of the mean and 6 of the variances
    assert np.abs(bias / np.sqrt(predicted / REHEARSALS)).max() <= 5.0
    assert np.abs(variances / predicted - 1.0).max() <= 6.0 * np.sqrt(2.0 / REHEARSALS)
    assert variances.sum() / predicted.sum() == pytest.approx(1.0, abs=0.15)


def test_look_answers_have_look_variances():
    measurements = [look(COMMON, RECORDS, rehearsal=True) for _ in range(REHEARSALS)]
    group = 0
    answers = np.array([measurement.values(group) for measurement in measurements])
    assert (answers.var(axis=0) / measurements[0].plan.variances(group)) == pytest.approx(
        1.0, abs=6 * np.sqrt(2 / REHEARSALS)
    )


# --- decisions ---


def test_decide_needs_look_and_is_final(ledger):
    key = look_key(COMMON, dataset="survey")
    with pytest.raises(LedgerError, match="never spent"):
        decide(ledger, key, verdict=FINE)
    look_result = look(COMMON, RECORDS, dataset="survey", ledger=ledger)
    with pytest.raises(LedgerError, match="No decision"):
        finish(ledger, key, RECORDS)
    decide(ledger, look_result.key, verdict=FINE)
    for option in ("1-way", "2-way", "stop"):
        with pytest.raises(LedgerError, match="'2-way' was chosen"):
            decide(ledger, key, option=option, by="A. Reader")
    assert len(ledger.notes(kind="decision", key=key)) == 1


def test_decide_against_rule_needs_name(ledger):
    look_result = look(COMMON, RECORDS, dataset="survey", ledger=ledger)
    for options, words in (
        ({}, "No decision"),
        ({"option": 0}, "from a rule"),
        ({"option": 0, "verdict": FINE}, "The rule chose '2-way'"),
        ({"option": 0, "verdict": FINE, "by": "  "}, "The rule chose '2-way'"),
        ({"option": "3-way", "by": "me"}, "no option '3-way'"),
    ):
        with pytest.raises(PlanError, match=words):
            decide(ledger, look_result.key, **options)
    choice = decide(
        ledger, look_result.key, option=0, verdict=FINE, by="A. Reader", reason="small cells"
    )
    assert (choice.option, choice.verdict) == ("1-way", "2-way")
    assert (choice.by, choice.reason) == ("A. Reader", "small cells")


def test_option_after_stop_is_charged_the_rest(ledger):
    look_result = look(COMMON, RECORDS, dataset="survey", ledger=ledger)
    decide(ledger, look_result.key, verdict=STOP)
    with pytest.raises(LedgerError, match="decision to stop"):
        finish(ledger, look_result.key, RECORDS)
    with pytest.raises(LedgerError, match="can follow"):
        decide(ledger, look_result.key, option="stop", by="A. Reader")
    assert len(ledger_spends(ledger)) == 1
    decide(ledger, look_result.key, option=0, by="A. Reader", reason="worth it")
    finish(ledger, look_result.key, RECORDS)
    assert [c.option for c in resume(ledger, look_result.key).choices] == ["stop", "1-way"]
    assert sum(ledger_spends(ledger)) == ledger_decimal(ONE_WAY.pcost)


def test_simultaneous_decisions_store_one(ledger, monkeypatch):
    look_result, note = look(COMMON, RECORDS, dataset="survey", ledger=ledger), Ledger.note

    def decide_first(book, **fields):
        # This function replaces the method that writes a decision. Before the decision that was
        # passed, it writes a competing decision.
        monkeypatch.setattr(Ledger, "note", note)
        assert (
            decide(Ledger(ledger.path), look_result.key, option=1, by="A. Reader").option
            == COMMON.names[1]
        )
        note(book, **fields)

    monkeypatch.setattr(Ledger, "note", decide_first)
    with pytest.raises(LedgerError):
        decide(ledger, look_result.key, option=0, by="A. Reader")
    (decision,) = ledger.notes(kind="decision", key=look_result.key)
    assert f'"{COMMON.names[1]}"' in decision.note


# --- chains of choices ---


@pytest.mark.parametrize("path", [["1-way"], ["look closer", "2-way"], ["look closer", "3-way"]])
def test_chain_path_costs_the_final_plan(ledger, path):
    key, common = look(CHAIN, RECORDS, dataset="survey", ledger=ledger).key, CHAIN
    for option in path:
        before = resume(ledger, key)
        assert before.common.names == common.names
        decide(ledger, key, option=option, by="A. Reader")
        final = finish(ledger, key, RECORDS)
        assert_same_measurement(resume(ledger, key).finished, final)
        assert_same_measurement(finish(ledger, key, None), final)
        key, common = final.key, common.following
    plans = dict(CHAIN.analyses)
    assert final.plan.hash == plans[path[-1]].hash
    assert len(ledger_spends(ledger)) == len(path) + 1
    assert sum(ledger_spends(ledger)) == ledger_decimal(plans[path[-1]].pcost)
    assert ledger.verify() == ()


def test_chain_end_has_variances_of_final_plan():
    option = dict(CHAIN.analyses)["3-way"]
    blocks = [CHAIN.look.blocks, CHAIN.residuals[1].blocks, CHAIN.following.residuals[1].blocks]
    path_cost = sum(cost_of(SCHEMA, part) for part in blocks)
    plan_cost = cost_of(SCHEMA, option.blocks)
    np.testing.assert_allclose(path_cost, plan_cost, atol=1e-9 * plan_cost.max())
    assert np.diag(path_cost).max() <= option.pcost
    counts = count_marginals(RECORDS, SCHEMA, [SCHEMA.names])
    truth = counts[SCHEMA.names].ravel()
    errors = []
    for _ in range(REHEARSALS):
        look_result = look(CHAIN, counts, rehearsal=True)
        closer = rehearse_finish(CHAIN, look_result, counts, option="look closer")
        final = rehearse_finish(CHAIN.following, closer, counts, option="3-way")
        errors.append(final.values(0) - truth)
    assert np.mean(np.square(errors)) / option.variances(0).mean() == pytest.approx(1.0, abs=0.15)


def test_rule_judges_closer_look_by_next_analysis():
    rule = NestedPlanRule(common=CHAIN, share=0.5, snr=5)
    rule_without_chain = NestedPlanRule(common=COMMON, share=0.5, snr=5)
    np.testing.assert_allclose(
        rule.errors("look closer"), rule_without_chain.errors("2-way"), rtol=1e-12
    )
    look_result = look(CHAIN, RECORDS, rehearsal=True)
    assert rule.decide(look_result).choice == 1
    closer = rehearse_finish(CHAIN, look_result, RECORDS, option="look closer")
    next_rule = NestedPlanRule(common=CHAIN.following, share=0.5, snr=5)
    assert next_rule.decide(closer).choice in (0, 1)  # not to stop


def test_chain_attempts_have_separate_closer_looks(ledger):
    ledger.add_dataset("large", total=Budget(pcost=2.0))
    final_keys = set()
    for attempt in (1, 2):
        key = look(CHAIN, RECORDS, dataset="large", ledger=ledger, attempt=attempt).key
        for option in ("look closer", "3-way"):
            decide(ledger, key, option=option, by="A. Reader")
            key = finish(ledger, key, RECORDS).key
        final_keys.add(key)
    assert len(final_keys) == 2
    assert len(ledger_spends(ledger)) == 2 * 3  # three measurements per attempt


def test_look_with_unstorable_options_spends_nothing(ledger):
    # No plan file can contain the common first stage (look), because it has no mechanism.
    with_look = coarse_or_fine(COMMON.look, ONE_WAY)
    with pytest.raises(PlanError):
        look(with_look, RECORDS, dataset="survey", ledger=ledger)
    assert ledger_spends(ledger) == []


def test_chain_with_equal_analyses_is_refused():
    with pytest.raises(PlanError, match="nothing to measure"):
        nested_choices(ways(1, pcost=1.0), ways(1), ways(1))


def test_analysis_named_like_the_next_choice_is_refused():
    with pytest.raises(PlanError, match="next choice"):
        nested_choices(ways(1), ways(2), names=["look closer", "fine"])


# --- options equal to the look, insufficient budgets, damaged files ---


def test_finish_option_equal_to_look_spends_nothing(ledger):
    common = coarse_or_fine(ways(1), ways(1, pcost=0.1), names=["larger", "smaller"])
    assert not common.residuals[1].blocks
    look_result = look(common, RECORDS, dataset="survey", ledger=ledger)
    decide(ledger, look_result.key, option="smaller", by="A. Reader")
    final = finish(ledger, look_result.key, None)
    assert sum(ledger_spends(ledger)) == ledger_decimal(common.options[1].pcost)
    for space, value in look_result.estimates.items():
        np.testing.assert_allclose(final.estimates[space], value, rtol=1e-12)
    assert_same_measurement(resume(ledger, look_result.key).finished, final)


def test_finish_without_cost_writes_a_note(ledger):
    common = coarse_or_fine(ONE_WAY, ONE_WAY)
    look_result = look(common, RECORDS, dataset="survey", ledger=ledger)
    decide(ledger, look_result.key, option=1, by="A. Reader")
    for _ in range(2):
        final = finish(ledger, look_result.key, None)
        assert final.plan.hash == common.options[1].hash
    assert ledger_spends(ledger) == [ledger_decimal(common.options[1].pcost)]
    assert len(ledger.notes(kind="finish", key=look_result.key)) == 1
    assert_same_measurement(resume(ledger, look_result.key).finished, final)


def test_finish_new_attempt_draws_and_spends_again(ledger):
    look_result = look(COMMON, RECORDS, dataset="survey", ledger=ledger)
    decide(ledger, look_result.key, option=1, by="A. Reader")
    first = finish(ledger, look_result.key, RECORDS)
    second = finish(ledger, look_result.key, RECORDS, attempt=2)
    assert second.key != first.key
    residual = COMMON.residuals[1]
    # the residual alone can cost more than its part of the cost of the plan
    repeated_cost = max(residual.pcost, residual.spend)
    assert ledger_spends(ledger)[2:] == [ledger_decimal(repeated_cost)]
    spaces = residual.blocks
    assert any(
        (first.answers_on_grid[space] != second.answers_on_grid[space]).any() for space in spaces
    )
    for attempt, expected in ((1, first), (2, second)):
        assert_same_measurement(finish(ledger, look_result.key, RECORDS, attempt=attempt), expected)
        assert_same_measurement(finish(ledger, look_result.key, None, attempt=attempt), expected)
    assert_same_measurement(resume(ledger, look_result.key).finished, first)
    with pytest.raises(DataError, match="on_changed"):
        finish(ledger, look_result.key, RECORDS.iloc[1:], attempt=3)
    assert len(ledger_spends(ledger)) == 3
    assert ledger.verify() == ()


@pytest.mark.parametrize("pcost", [0.4, 0.1])
def test_finish_new_attempt_without_blocks_is_refused(ledger, pcost):
    common = coarse_or_fine(ways(1), ways(1, pcost=pcost), names=["first", "second"])
    look_result = look(common, RECORDS, dataset="survey", ledger=ledger)
    decide(ledger, look_result.key, option="second", by="A. Reader")
    final = finish(ledger, look_result.key, RECORDS)
    costs = ledger_spends(ledger)
    with pytest.raises(PlanError, match="attempt=2"):
        finish(ledger, look_result.key, RECORDS, attempt=2)
    assert_same_measurement(finish(ledger, look_result.key, RECORDS), final)
    assert ledger_spends(ledger) == costs


def test_look_with_other_privacy_unit_is_refused(ledger):
    for unit in ({"rows_per_person": 3}, {"neighbours": "replace_one"}):
        name = next(iter(unit))
        ledger.add_dataset(name, total=Budget(pcost=5.0, **unit))
        with pytest.raises(LedgerError, match="rows_per_person="):
            look(COMMON, RECORDS, dataset=name, ledger=ledger)
        assert ledger.status(name).spent == 0


def test_look_on_pure_total_is_refused_before_counting(ledger):
    ledger.add_dataset("pure", total=Budget.pure(0.1))
    with pytest.raises(LedgerError, match="pure epsilon"):
        look(COMMON, "no file", dataset="pure", ledger=ledger)


def test_look_with_unaffordable_options_is_refused(tmp_path):
    poor = Ledger.create(tmp_path / "poor.ledger")
    poor.add_dataset("survey", total=Budget(pcost=0.3))
    with pytest.raises(BudgetExceeded, match="Nothing was spent"):
        look(COMMON, RECORDS, dataset="survey", ledger=poor)
    assert ledger_spends(poor) == []


def test_steps_mixing_rehearsal_and_release_are_refused(ledger):
    with pytest.raises(PlanError, match="needs a dataset"):
        look(COMMON, RECORDS)
    with pytest.raises(PlanError, match="spends nothing"):
        look(COMMON, RECORDS, dataset="survey", ledger=ledger, rehearsal=True)
    look_result = look(COMMON, RECORDS, dataset="survey", ledger=ledger)
    with pytest.raises(PlanError, match="was a release"):
        rehearse_finish(COMMON, look_result, RECORDS, option=0)


def test_resume_with_key_of_release_is_refused(ledger):
    measuring.measure(ONE_WAY, RECORDS, dataset="survey", ledger=ledger)
    (key,) = [row.key for row in ledger.rows() if row.kind == "spend"]
    with pytest.raises(LedgerError, match=r"first measurement|cannot be read"):
        resume(ledger, key)


def test_load_measurement_with_look_key_names_cause(ledger):
    look_result = look(COMMON, RECORDS, dataset="survey", ledger=ledger)
    with pytest.raises(LedgerError, match=r"two-stage release, not of a one-step release.*resume"):
        measuring.load_measurement(ledger, look_result.key)


def test_resume_with_damaged_result_is_refused(ledger, tmp_path):
    look_result = look(COMMON, RECORDS, dataset="survey", ledger=ledger)
    (file,) = Path(f"{ledger.path}.results").glob("*.result")
    file.chmod(0o600)
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(ResultLost, match="was changed"):
        resume(ledger, look_result.key)
