"""Look, decide, finish: in order, once each, exactly paid, and found again."""

import sys
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from engine.common_mechanism import NestedPlanRule
from engine.common_mechanism import two_stage_io as step_files
from engine.common_mechanism.common_plan import coarse_or_fine, nested_choices
from engine.common_mechanism.selection_rule import Decision
from engine.common_mechanism.stepwise import decide, finish, look, look_key, looks, rehearse_finish, resume
from engine.errors import BudgetExceeded, DataError, LedgerError, PlanError, ResultLost
from engine.ledger import Ledger
from engine.privacy import Budget
from engine.records import count_marginals
from engine.release import apply_group
from tests.common_mechanism.plans import cost_of
from tests.common_mechanism.steps import CHAIN, COMMON, FINE, RECORDS, SCHEMA, same, spent, ways

measuring = sys.modules["engine.release.measure"]
REHEARSALS = 200
STOP = Decision(choice=None, certain=True, shares={}, sentence="Stop.")


@pytest.fixture
def ledger(tmp_path):
    made = Ledger.create(tmp_path / "office.ledger")
    made.add_dataset("survey", total=Budget(pcost=1.0))
    return made


# --- the usual way ---


@pytest.mark.parametrize("option", [0, 1])
def test_both_steps_cost_what_the_chosen_plan_costs_alone(ledger, option):
    looked = look(COMMON, RECORDS, dataset="survey", ledger=ledger)
    assert spent(ledger) == [Decimal(repr(COMMON.spends[option][0]))]
    decide(ledger, looked.key, option=option, by="A. Reader", reason="known size")
    done = finish(ledger, looked.key, RECORDS)
    assert sum(spent(ledger)) == Decimal(repr(COMMON.options[option].pcost))
    assert ledger.status("survey").spent == COMMON.options[option].pcost
    assert done.plan.hash == COMMON.options[option].hash
    assert ledger.verify() == ()


@pytest.mark.parametrize("digit", [0.0, 1.0])
def test_the_prices_are_those_of_the_machine_that_looked(ledger, monkeypatch, digit):
    looked = look(COMMON, RECORDS, dataset="survey", ledger=ledger)
    decide(ledger, looked.key, option=1, by="A. Reader", reason="known size")
    honest = step_files.option_cost
    monkeypatch.setattr(step_files, "option_cost", lambda option: float(np.nextafter(honest(option), digit)))
    done = finish(ledger, looked.key, RECORDS)
    same(finish(ledger, looked.key, None), done)
    assert ledger.status("survey").spent == COMMON.options[1].pcost


def test_a_file_of_a_look_with_other_prices_is_refused(ledger, monkeypatch):
    looked = look(COMMON, RECORDS, dataset="survey", ledger=ledger)
    honest = step_files.option_cost
    monkeypatch.setattr(step_files, "option_cost", lambda option: honest(option) * (1.0 - 1e-9))
    with pytest.raises(LedgerError, match="cannot be read"):
        resume(ledger, looked.key)


def test_everything_is_found_again_by_key_and_nothing_is_paid_twice(ledger):
    looked = look(COMMON, RECORDS, dataset="survey", ledger=ledger)
    same(look(COMMON, RECORDS[::-1], dataset="survey", ledger=ledger.path), looked)
    same(look(COMMON, None, dataset="survey", ledger=ledger.path), looked)
    assert (looks(ledger, "survey"), looked.key) == ([looked.key], look_key(COMMON, dataset="survey"))
    steps = resume(ledger.path, looked.key)
    same(steps.look, looked)
    assert (steps.choice, steps.finished, steps.common.names) == (None, None, COMMON.names)
    choice = decide(ledger.path, looked.key, verdict=FINE, rule={"rule": "nested", "share": 0.5, "snr": 5})
    assert (choice.option, choice.verdict, choice.by) == ("2-way", "2-way", "")
    assert resume(ledger, looked.key).choice == choice
    done = finish(ledger, looked.key, RECORDS)
    same(finish(ledger.path, looked.key, None), done)
    steps = resume(ledger, looked.key)
    same(steps.finished, done)
    same(steps.look, looked)
    assert len(spent(ledger)) == 2


def test_rehearsed_steps_are_unbiased_with_the_variances_of_the_plan_alone():
    option = COMMON.options[1]
    sets = [g.attributes for g in option.workload.groups]
    counts = count_marginals(RECORDS, SCHEMA, [*sets, *measuring.maximal_sets(option)])
    truth = np.concatenate(
        [apply_group(g, counts[g.attributes].astype(float), 0, g.count) for g in option.workload.groups]
    )
    predicted = np.concatenate([option.variances(i) for i in range(len(sets))])
    errors = []
    for _ in range(REHEARSALS):
        looked = look(COMMON, counts, rehearsal=True)
        done = rehearse_finish(COMMON, looked, counts, option="2-way")
        assert done.rehearsal
        errors.append(np.concatenate([done.values(i) for i in range(len(sets))]) - truth)
    mean, spread = np.mean(errors, axis=0), np.mean(np.square(errors), axis=0)
    assert np.abs(mean / np.sqrt(predicted / REHEARSALS)).max() <= 5.0
    assert spread.sum() / predicted.sum() == pytest.approx(1.0, abs=0.15)
    assert np.abs(spread / predicted - 1.0).max() <= 6.0 * np.sqrt(2.0 / REHEARSALS)


def test_the_look_answers_with_its_own_variances():
    looks_ = [look(COMMON, RECORDS, rehearsal=True) for _ in range(REHEARSALS)]
    answers = np.array([one.values(0) for one in looks_])
    assert (answers.var(axis=0) / looks_[0].plan.variances(0)) == pytest.approx(1.0, abs=6 * np.sqrt(2 / REHEARSALS))


# --- decisions ---


def test_a_decision_needs_a_look_and_is_final(ledger):
    key = look_key(COMMON, dataset="survey")
    with pytest.raises(LedgerError, match="Nothing was ever spent"):
        decide(ledger, key, verdict=FINE)
    looked = look(COMMON, RECORDS, dataset="survey", ledger=ledger)
    with pytest.raises(LedgerError, match="Nothing was decided"):
        finish(ledger, key, RECORDS)
    decide(ledger, looked.key, verdict=FINE)
    for other in ("1-way", "2-way", "stop"):
        with pytest.raises(LedgerError, match="'2-way' was chosen"):
            decide(ledger, key, option=other, by="A. Reader")
    assert len(ledger.notes(kind="decision", key=key)) == 1


def test_who_goes_against_a_rule_is_named(ledger):
    looked = look(COMMON, RECORDS, dataset="survey", ledger=ledger)
    for options, words in (
        ({}, "Nothing was chosen"),
        ({"option": 0}, "Say who decides"),
        ({"option": 0, "verdict": FINE}, "The rule says '2-way'"),
        ({"option": 0, "verdict": FINE, "by": "  "}, "The rule says '2-way'"),
        ({"option": "3-way", "by": "me"}, "no option '3-way'"),
    ):
        with pytest.raises(PlanError, match=words):
            decide(ledger, looked.key, **options)
    choice = decide(ledger, looked.key, option=0, verdict=FINE, by="A. Reader", reason="small cells")
    assert (choice.option, choice.verdict) == ("1-way", "2-way")
    assert (choice.by, choice.reason) == ("A. Reader", "small cells")


def test_stopping_costs_no_more_and_may_be_followed_by_spending_more(ledger):
    looked = look(COMMON, RECORDS, dataset="survey", ledger=ledger)
    decide(ledger, looked.key, verdict=STOP)
    with pytest.raises(LedgerError, match="To stop was decided"):
        finish(ledger, looked.key, RECORDS)
    with pytest.raises(LedgerError, match="only an option can follow"):
        decide(ledger, looked.key, option="stop", by="A. Reader")
    assert len(spent(ledger)) == 1
    decide(ledger, looked.key, option=0, by="A. Reader", reason="worth it")
    finish(ledger, looked.key, RECORDS)
    assert [c.option for c in resume(ledger, looked.key).choices] == ["stop", "1-way"]
    assert sum(spent(ledger)) == Decimal(repr(COMMON.options[0].pcost))


def test_of_decisions_at_the_same_time_one_holds(ledger, monkeypatch):
    looked, note = look(COMMON, RECORDS, dataset="survey", ledger=ledger), Ledger.note

    def overtaken(book, **given):
        # everything of the first decision is worked out, and another one is written before it
        monkeypatch.setattr(Ledger, "note", note)
        assert decide(Ledger(ledger.path), looked.key, option=1, by="A. Reader").option == COMMON.names[1]
        note(book, **given)

    monkeypatch.setattr(Ledger, "note", overtaken)
    with pytest.raises(LedgerError):
        decide(ledger, looked.key, option=0, by="A. Reader")
    (held,) = ledger.notes(kind="decision", key=looked.key)
    assert f'"{COMMON.names[1]}"' in held.note


# --- chains of choices ---


@pytest.mark.parametrize("path", [["1-way"], ["look closer", "2-way"], ["look closer", "3-way"]])
def test_every_way_through_a_chain_costs_what_its_end_costs_alone(ledger, path):
    key, common = look(CHAIN, RECORDS, dataset="survey", ledger=ledger).key, CHAIN
    for option in path:
        before = resume(ledger, key)
        assert before.common.names == common.names
        decide(ledger, key, option=option, by="A. Reader")
        done = finish(ledger, key, RECORDS)
        same(resume(ledger, key).finished, done)
        same(finish(ledger, key, None), done)
        key, common = done.key, common.following
    plans = dict(CHAIN.analyses)
    assert done.plan.hash == plans[path[-1]].hash
    assert len(spent(ledger)) == len(path) + 1
    assert sum(spent(ledger)) == Decimal(repr(plans[path[-1]].pcost))
    assert ledger.verify() == ()


def test_the_law_at_the_end_of_a_chain_is_that_of_the_plan_alone():
    option = dict(CHAIN.analyses)["3-way"]
    blocks = [CHAIN.look.blocks, CHAIN.residuals[1].blocks, CHAIN.following.residuals[1].blocks]
    parts, whole = [cost_of(SCHEMA, own) for own in blocks], cost_of(SCHEMA, option.blocks)
    np.testing.assert_allclose(sum(parts), whole, atol=1e-9 * whole.max())
    assert np.diag(sum(parts)).max() <= option.pcost
    counts = count_marginals(RECORDS, SCHEMA, [SCHEMA.names])
    truth = counts[SCHEMA.names].ravel()
    errors = []
    for _ in range(REHEARSALS):
        looked = look(CHAIN, counts, rehearsal=True)
        closer = rehearse_finish(CHAIN, looked, counts, option="look closer")
        done = rehearse_finish(CHAIN.following, closer, counts, option="3-way")
        errors.append(done.values(0) - truth)
    assert np.mean(np.square(errors)) / option.variances(0).mean() == pytest.approx(1.0, abs=0.15)


def test_a_closer_look_is_judged_by_the_analysis_that_comes_next():
    rule = NestedPlanRule(common=CHAIN, share=0.5, snr=5)
    both = NestedPlanRule(common=COMMON, share=0.5, snr=5)
    np.testing.assert_allclose(rule.errors("look closer"), both.errors("2-way"), rtol=1e-12)
    looked = look(CHAIN, RECORDS, rehearsal=True)
    assert rule.decide(looked).choice == 1
    closer = rehearse_finish(CHAIN, looked, RECORDS, option="look closer")
    assert NestedPlanRule(common=CHAIN.following, share=0.5, snr=5).decide(closer).choice in (0, 1)


def test_two_looks_of_a_chain_never_share_a_closer_look(ledger):
    ledger.add_dataset("large", total=Budget(pcost=2.0))
    ends = []
    for attempt in (1, 2):
        key = look(CHAIN, RECORDS, dataset="large", ledger=ledger, attempt=attempt).key
        for option in ("look closer", "3-way"):
            decide(ledger, key, option=option, by="A. Reader")
            done = finish(ledger, key, RECORDS)
            key = done.key
        ends.append(done)
    assert ends[0].key != ends[1].key
    assert len(spent(ledger)) == 6


def test_options_that_cannot_be_read_back_are_refused_before_anything_is_spent(ledger):
    odd = coarse_or_fine(COMMON.look, COMMON.options[0])
    with pytest.raises(PlanError):
        look(odd, RECORDS, dataset="survey", ledger=ledger)
    assert spent(ledger) == []


def test_a_chain_is_refused_where_a_closer_look_tells_nothing_new():
    with pytest.raises(PlanError, match="nothing new"):
        nested_choices(ways(1, pcost=1.0), ways(1), ways(1))
    with pytest.raises(PlanError, match="stands for the next choice"):
        nested_choices(ways(1), ways(2), names=["look closer", "fine"])


# --- options that are the look, budgets, and damage ---


def test_an_option_that_is_the_look_draws_nothing_more(ledger):
    common = coarse_or_fine(ways(1), ways(1, pcost=0.1), names=["dear", "cheap"])
    assert not common.residuals[1].blocks
    looked = look(common, RECORDS, dataset="survey", ledger=ledger)
    decide(ledger, looked.key, option="cheap", by="A. Reader")
    done = finish(ledger, looked.key, None)
    assert sum(spent(ledger)) == Decimal(repr(common.options[1].pcost))
    for space, value in looked.estimates.items():
        np.testing.assert_allclose(done.estimates[space], value, rtol=1e-12)
    same(resume(ledger, looked.key).finished, done)


def test_a_last_step_that_costs_nothing_is_noted_and_not_spent(ledger):
    common = coarse_or_fine(COMMON.options[0], COMMON.options[0])
    looked = look(common, RECORDS, dataset="survey", ledger=ledger)
    decide(ledger, looked.key, option=1, by="A. Reader")
    for _ in range(2):
        done = finish(ledger, looked.key, None)
        assert done.plan.hash == common.options[1].hash
    assert spent(ledger) == [Decimal(repr(common.options[1].pcost))]
    assert len(ledger.notes(kind="finish", key=looked.key)) == 1
    same(resume(ledger, looked.key).finished, done)


def test_finish_new_attempt_draws_and_spends_again(ledger):
    looked = look(COMMON, RECORDS, dataset="survey", ledger=ledger)
    decide(ledger, looked.key, option=1, by="A. Reader")
    first = finish(ledger, looked.key, RECORDS)
    second = finish(ledger, looked.key, RECORDS, attempt=2)
    assert second.key != first.key
    assert spent(ledger)[2:] == [Decimal(repr(max(COMMON.residuals[1].pcost, COMMON.residuals[1].spend)))]
    spaces = COMMON.residuals[1].blocks
    assert any((first.answers_on_grid[space] != second.answers_on_grid[space]).any() for space in spaces)
    for attempt, expected in ((1, first), (2, second)):
        same(finish(ledger, looked.key, RECORDS, attempt=attempt), expected)
        same(finish(ledger, looked.key, None, attempt=attempt), expected)
    same(resume(ledger, looked.key).finished, first)
    with pytest.raises(DataError, match="on_changed"):
        finish(ledger, looked.key, RECORDS.iloc[1:], attempt=3)
    assert len(spent(ledger)) == 3
    assert ledger.verify() == ()


@pytest.mark.parametrize("pcost", [0.4, 0.1])
def test_finish_new_attempt_without_blocks_is_refused(ledger, pcost):
    common = coarse_or_fine(ways(1), ways(1, pcost=pcost), names=["first", "second"])
    looked = look(common, RECORDS, dataset="survey", ledger=ledger)
    decide(ledger, looked.key, option="second", by="A. Reader")
    done = finish(ledger, looked.key, RECORDS)
    costs = spent(ledger)
    with pytest.raises(PlanError, match="attempt=2"):
        finish(ledger, looked.key, RECORDS, attempt=2)
    same(finish(ledger, looked.key, RECORDS), done)
    assert spent(ledger) == costs


def test_a_total_of_another_unit_takes_no_look(ledger):
    for unit in ({"rows_per_person": 3}, {"neighbours": "replace_one"}):
        name = next(iter(unit))
        ledger.add_dataset(name, total=Budget(pcost=5.0, **unit))
        with pytest.raises(LedgerError, match="Plan with a budget for rows_per_person="):
            look(COMMON, RECORDS, dataset=name, ledger=ledger)
        assert ledger.status(name).spent == 0


def test_who_cannot_finish_does_not_look(tmp_path):
    poor = Ledger.create(tmp_path / "poor.ledger")
    poor.add_dataset("survey", total=Budget(pcost=0.3))
    with pytest.raises(BudgetExceeded, match="Nothing was spent"):
        look(COMMON, RECORDS, dataset="survey", ledger=poor)
    assert spent(poor) == []


def test_steps_without_a_ledger_or_with_a_rehearsal_are_kept_apart(ledger):
    with pytest.raises(PlanError, match="needs the dataset's name"):
        look(COMMON, RECORDS)
    with pytest.raises(PlanError, match="spends nothing"):
        look(COMMON, RECORDS, dataset="survey", ledger=ledger, rehearsal=True)
    looked = look(COMMON, RECORDS, dataset="survey", ledger=ledger)
    with pytest.raises(PlanError, match="was released"):
        rehearse_finish(COMMON, looked, RECORDS, option=0)


def test_another_release_is_no_look(ledger):
    measuring.measure(COMMON.options[0], RECORDS, dataset="survey", ledger=ledger)
    (key,) = [row.key for row in ledger.rows() if row.kind == "spend"]
    with pytest.raises(LedgerError, match=r"not this step|cannot be read"):
        resume(ledger, key)


def test_result_files_are_checked(ledger, tmp_path):
    looked = look(COMMON, RECORDS, dataset="survey", ledger=ledger)
    (file,) = Path(f"{ledger.path}.results").glob("*.result")
    file.chmod(0o600)
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(ResultLost, match="was changed"):
        resume(ledger, looked.key)
