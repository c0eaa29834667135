"""Coverage check: correct plans pass, and plans with wrong variances fail."""

from __future__ import annotations

import dataclasses

import pytest

from demo_data.make_synthetic import synthetic
from engine.analysis.ad_hoc_queries import add_truth
from engine.analysis.coverage import coverage_check
from engine.errors import Cancelled, PlanError
from engine.mechanisms import plan
from engine.privacy import Budget
from engine.release import measure
from engine.workload import Attribute, Schema, Workload

SCHEMA = Schema([Attribute.categorical("sex", ["F", "M"]), Attribute.of_size("age", 6)])
WORKLOAD = Workload.all_ways(SCHEMA, ways=(0, 1, 2))
RECORDS = synthetic(SCHEMA, 300, seed=2)


@pytest.mark.parametrize("budget", [Budget(pcost=0.5), Budget.pure(1.0)])
def test_intervals_of_an_honest_plan_cover_as_promised(budget: Budget) -> None:
    made = plan(WORKLOAD, budget, "querysmasher" if budget.law == "gaussian" else "identity")
    heard: list[float] = []
    found = coverage_check(made, RECORDS, rehearsals=400, progress=lambda f, _: heard.append(f))
    assert found.rehearsals == 400 == len(heard)
    assert found.queries == WORKLOAD.queries
    assert found.spread == pytest.approx(1.0, abs=0.15)
    assert found.bias < 5.0
    table = found.table.set_index("promised")
    for level in (0.5, 0.9, 0.95, 0.99):
        # Laplace intervals are the wider of two, so that they may hold more than they promise
        assert table.loc[level, "found"] >= level - max(0.02, 2 * table.loc[level, "by chance"])
        if budget.law == "gaussian":
            assert table.loc[level, "found"] <= level + max(0.02, 2 * table.loc[level, "by chance"])
    assert "95% intervals" in found.sentence


def test_a_plan_that_promises_too_much_is_found_out() -> None:
    made = plan(WORKLOAD, Budget(pcost=0.5))
    variances = type(made).variances
    boast = dataclasses.replace(made)
    object.__setattr__(boast, "variances", lambda *a: variances(made, *a) / 2)
    found = coverage_check(boast, RECORDS, rehearsals=200)
    assert found.spread == pytest.approx(2.0, rel=0.2)
    assert found.table.set_index("promised").loc[0.95, "found"] < 0.9


def test_the_truth_is_that_of_the_rows_that_count() -> None:
    declared = Schema(SCHEMA.attributes, person="pid", rows_per_person=3)
    made = plan(Workload.all_ways(declared, (0, 1), "marginal"), Budget(pcost=1e6, rows_per_person=2))
    records = synthetic(declared, 300, seed=2)
    drawn = measure(made, records, rehearsal=True)
    for group in range(3):
        page = add_truth(drawn.answers(group), made, group, 0, records)
        assert page["truth"].sum() == 200
        assert (page["answer"] - page["truth"]).abs().max() < 0.1
    assert coverage_check(made, records, rehearsals=20).spread < 2.0


def test_time_ends_the_check_and_cancel_stops_it() -> None:
    made = plan(WORKLOAD, Budget(pcost=0.5))
    assert 2 <= coverage_check(made, RECORDS, rehearsals=10**6, seconds=0.0).rehearsals < 100
    with pytest.raises(Cancelled):
        coverage_check(made, RECORDS, progress=lambda fraction, text: False)
    with pytest.raises(PlanError):
        coverage_check(made, RECORDS, rehearsals=1)
