"""Criteria for simulated records that only the true ones can tell: small releases, paid for like any other."""

from __future__ import annotations

import sys

import numpy as np
import pandas as pd
import pytest

from engine.errors import BudgetExceeded, PlanError
from engine.ledger import Ledger
from engine.mechanisms import plan
from engine.postprocess.utility_checks import AcceptanceRule, acceptance_on_records
from engine.privacy import Budget
from engine.release import measure
from engine.workload import Attribute, Schema, Workload

SCHEMA = Schema([Attribute.of_size(name, 3) for name in "abc"])
COST = 0.5
RULE = AcceptanceRule(contradiction=3.0)  # of few answers, noise alone may make 2


@pytest.fixture
def ledger(tmp_path):
    made = Ledger.create(tmp_path / "budget.ledger")
    made.add_dataset("people", total=Budget(pcost=1.2))
    return made


def records(seed, people=600):
    """Records whose third attribute is the sum of the others, which no pair of them shows."""
    codes = np.random.default_rng(seed).integers(0, 3, (people, 2))
    return pd.DataFrame({"a": codes[:, 0], "b": codes[:, 1], "c": codes.sum(axis=1) % 3})


def asked():
    return plan(Workload(SCHEMA).add(("a", "b", "c")).add(("b",)), Budget(pcost=COST))


def spends(ledger):
    return [float(row.pcost) for row in Ledger(ledger.path).rows() if row.kind == "spend"]


def test_a_criterion_that_reads_records_is_booked_and_tells_what_no_published_table_does(ledger):
    true = records(1)
    mixed = true.assign(c=np.random.default_rng(3).permutation(true["c"]))  # every pair looks the same
    found = acceptance_on_records(mixed, asked(), true, dataset="people", ledger=ledger, rule=RULE)
    assert list(found["met"]) == [False, True]
    assert list(found["worst"]) == ["a × b × c", "b"]
    assert found["found"][0] > 5.0
    assert list(found["cost"]) == [asked().pcost, 0.0]
    assert spends(ledger) == [asked().pcost]


def test_the_same_criterion_judges_other_records_for_nothing(ledger):
    true, given = records(1), {"dataset": "people", "ledger": ledger, "rule": RULE}
    first = acceptance_on_records(true, asked(), true, **given)
    assert first["met"].all()
    again = acceptance_on_records(records(5).assign(c=0), asked(), true, **given)
    assert not again["met"][0]
    released = measure(asked(), true, dataset="people", ledger=ledger).answers(0)
    counts = np.bincount(true["a"] * 9 + true["b"] * 3 + true["c"], minlength=27)
    missed = (counts - released["answer"]) / released["std"]
    assert first["found"][0] == pytest.approx(np.sqrt(np.mean(missed**2)))
    assert len(spends(ledger)) == 1


def test_counts_are_scaled_to_the_total_of_the_tables():
    true = records(1)
    few = pd.concat([true] * 3, ignore_index=True)
    given = {"data": true, "rehearsal": True, "rule": RULE}
    assert acceptance_on_records(few, asked(), total=len(true), **given)["met"].all()
    assert not acceptance_on_records(few, asked(), **given)["met"].any()


def test_nothing_is_spent_beyond_the_budget_or_on_attributes_that_are_not_there(ledger):
    true, dear = records(1), plan(Workload(SCHEMA).add(("a", "b")), Budget(pcost=1.3))
    with pytest.raises(BudgetExceeded):
        acceptance_on_records(true, dear, true, dataset="people", ledger=ledger)
    with pytest.raises(PlanError, match=r"no column c\. They have the attributes of the published tables"):
        acceptance_on_records(true[["a", "b"]], asked(), true, dataset="people", ledger=ledger)
    assert spends(ledger) == []


def test_a_crash_between_spend_and_draw_is_paid_for_once(ledger, monkeypatch):
    true, given = records(1), {"dataset": "people", "ledger": ledger, "rule": RULE}
    measuring = sys.modules["engine.release.measure"]
    real = measuring.draw

    def crashed(*_):
        assert spends(ledger) == [asked().pcost]  # before anything was drawn
        raise KeyboardInterrupt

    monkeypatch.setattr(measuring, "draw", crashed)
    with pytest.raises(KeyboardInterrupt):
        acceptance_on_records(true, asked(), true, **given)
    monkeypatch.setattr(measuring, "draw", real)
    assert acceptance_on_records(true, asked(), true, **given)["met"].all()
    assert spends(ledger) == [asked().pcost]


def test_a_rehearsal_costs_nothing():
    assert list(acceptance_on_records(records(1), asked(), records(1), rehearsal=True)["cost"]) == [0.0, 0.0]
