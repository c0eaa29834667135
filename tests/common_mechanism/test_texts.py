"""Texts about the cost and the outcome of a two-stage release."""

from __future__ import annotations

from dataclasses import replace

from engine import figures
from engine.common_mechanism import NestedPlanRule
from engine.common_mechanism.selection_rule import Decision
from engine.common_mechanism.stepwise import Choice
from tests.common_mechanism.steps import CHAIN, COMMON

RULE = NestedPlanRule(common=COMMON, share=0.5, snr=5.0)
CHOICE = Choice(
    option="2-way", verdict="2-way", rule={}, by="", reason="", seq=5, utc="2026-03-01T09:30:12Z"
)


def test_to_finish_text_names_options_that_fit() -> None:
    assert "enough for each" in figures.to_finish_text(COMMON, 1.0)
    text = figures.to_finish_text(COMMON, 0.1)
    assert "left is too little" in text
    assert "Choose a smaller budget on Preview" in text
    assert "nother dataset" not in text
    assert "'1-way'" in text


def test_to_finish_text_states_costs_after_next_choice() -> None:
    text = figures.to_finish_text(CHAIN, 10.0)
    assert "After 'a finer one', another choice follows: all steps together then cost" in text
    assert "'2-way' or " in text.partition("another choice follows")[2]
    assert "with '3-way'." in text
    assert "enough for each" in text
    closer, last = CHAIN.options[-1].budget.pcost, CHAIN.analyses[-1][1].budget.pcost
    text = figures.to_finish_text(CHAIN, 0.5 * (closer + last))
    assert "enough only for 'a finer one'." in text
    assert "another choice" not in figures.to_finish_text(COMMON, 10.0)


def test_verdict_reason_compares_shares_with_the_limit() -> None:
    shares = {"1-way, upper": 0.4, "2-way, lower": 0.6, "2-way, upper": 0.7}
    verdict = Decision(choice=1, certain=True, shares=shares, sentence="")
    assert figures.verdict_reason(RULE, verdict) == (
        "At least 60.0% of the cells are reliable in '2-way' (required: 50%). So the rule chose"
        " '2-way'."
    )
    coarse = replace(verdict, choice=0, shares=shares | {"2-way, lower": 0.4999})
    assert figures.verdict_reason(RULE, coarse) == (
        "Only 49.99% of the cells are sure to be reliable in '2-way' (required: 50%). So the rule"
        " chose '1-way'."
    )
    assert figures.verdict_reason(RULE, replace(verdict, choice=None)) == (
        "At most 40.0% of the cells can be reliable in '1-way' (required: 50%). So the rule chose"
        " to stop."
    )


def test_texts_name_the_analyses_behind_a_finer_one() -> None:
    rule = NestedPlanRule(common=CHAIN, share=0.5, snr=5.0)
    shares = {"1-way, upper": 0.9, "look closer, lower": 0.2, "look closer, upper": 0.4}
    verdict = Decision(choice=0, certain=True, shares=shares, sentence="")
    choice = replace(CHOICE, option="1-way", verdict="1-way")
    text = figures.summary_text("office", [choice], [rule], [0.1], CHAIN, verdicts=[verdict])
    assert "20.0% to 40.0% in a finer one ('2-way' or '3-way')." in text
    assert (
        "Only 20.0% of the cells are sure to be reliable in a finer one ('2-way' or '3-way')"
        " (required: 50%). So the rule chose '1-way'." in text
    )


def test_summary_text_states_decision_rule_and_cost() -> None:
    paid = COMMON.spends[1]
    text = figures.summary_text("office", [CHOICE], [RULE], paid, COMMON)
    assert text.startswith(
        "For office, the decision on 2026-03-01 was '2-way', after a first measurement of what"
    )
    assert "at least 50% of the 9 cells of '1-way' must reach 5 standard errors" in text
    assert "The rule decided." in text
    assert text.endswith("as much as this analysis alone.")


def test_summary_text_states_seen_shares_and_delta() -> None:
    shares = {"1-way, upper": 0.9, "2-way, lower": 0.25, "2-way, upper": 0.4}
    verdict = Decision(choice=1, certain=True, shares=shares, sentence="")
    text = figures.summary_text("office", [CHOICE], [RULE], [0.1], COMMON, verdicts=[verdict])
    assert (
        "The first measurement showed this share of reliable cells: 25.0% to 40.0% in '2-way'."
        in text
    )
    assert "delta" not in text
    verdict = replace(verdict, choice=None)
    text = figures.summary_text(
        "office", [CHOICE], [RULE], [0.1], COMMON, lambda _: "ε 1", verdicts=[verdict]
    )
    assert "cells: at most 90.0% in '1-way', 25.0% to 40.0% in '2-way'." in text
    assert text.endswith("Epsilon is at delta 10^-6.")


def test_summary_text_numbers_looks_without_rule() -> None:
    shares = {"1-way, upper": 0.9, "2-way, lower": 0.25, "2-way, upper": 0.4}
    verdict = Decision(choice=1, certain=True, shares=shares, sentence="")
    choices, rules = [CHOICE, CHOICE], [None, RULE]
    text = figures.summary_text("office", choices, rules, [0.1], COMMON, verdicts=[verdict])
    assert "Measurement 2 showed this share of reliable cells" in text


def test_summary_text_without_rule_names_the_person() -> None:
    choice = replace(
        CHOICE, option="1-way", verdict=None, by="A. Reader", reason="totals matter most"
    )
    text = figures.summary_text("office", [choice], [None], [0.1, 0.9], COMMON)
    assert "The decision was made by A. Reader (totals matter most)." in text
    assert "No rule was recorded" in text
    assert "as much as" not in text
    assert "in all" not in text


def test_summary_text_of_stop_counts_lost_attempts() -> None:
    look, choice = COMMON.spends[0][0], replace(CHOICE, option="stop")
    text = figures.summary_text(
        "office", [CHOICE, choice], [RULE, RULE], [look, look], COMMON, lost=1
    )
    assert "was '2-way' and then to stop" in text
    assert "Only the first measurement is released." in text
    assert f"It cost {2 * look:.4g} pcost in all." in text
    assert text.endswith("This includes 1 paid attempt whose result was lost.")


def test_summary_text_of_chain_states_every_rule() -> None:
    stricter = replace(RULE, snr=8.0)
    person = replace(CHOICE, verdict="1-way", by="A. Reader", reason="totals matter most")
    text = figures.summary_text("office", [CHOICE, person], [RULE, stricter], [0.1], COMMON)
    assert (
        "after measurement 1, at least 50% of the 9 cells of '1-way' must reach 5 standard errors"
        in text
    )
    assert (
        "after measurement 2, at least 50% of the 9 cells of '1-way' must reach 8 standard errors"
        in text
    )
    assert (
        "After measurement 2, the decision was made by A. Reader, against the rule (totals matter most)."
        in text
    )
    assert "The rule decided all other times." in text
