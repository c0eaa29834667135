"""Coverage check: correct plans pass, and plans with wrong variances fail."""

from __future__ import annotations

import dataclasses

import pytest

from demo_data.make_synthetic import synthetic
from engine.analysis.ad_hoc_queries import add_truth
from engine.analysis.error_distribution import coverage_check
from engine.errors import Cancelled, PlanError
from engine.mechanisms import plan
from engine.privacy import Budget
from engine.release import measure
from engine.workload import Attribute, Schema, Workload

SCHEMA = Schema([Attribute.categorical("sex", ["F", "M"]), Attribute.of_size("age", 6)])
WORKLOAD = Workload.all_ways(SCHEMA, ways=(0, 1, 2))
RECORDS = synthetic(SCHEMA, 300, seed=2)


@pytest.mark.parametrize("budget", [Budget(pcost=0.5), Budget.pure(1.0)])
def test_coverage_of_correct_plan_matches_level(budget: Budget) -> None:
    result = plan(WORKLOAD, budget, "querysmasher" if budget.law == "gaussian" else "identity")
    fractions: list[float] = []
    check = coverage_check(
        result, RECORDS, rehearsals=400, progress=lambda f, _: fractions.append(f)
    )
    assert check.rehearsals == 400 == len(fractions)
    assert check.queries == WORKLOAD.queries
    assert check.spread == pytest.approx(1.0, abs=0.15)
    # the bias is the largest z-score of the mean error of a query
    assert check.bias < 5.0
    table = check.table.set_index("promised")
    for level in (0.5, 0.9, 0.95, 0.99):
        coverage = table.loc[level, "found"]
        tolerance = max(0.02, 2 * table.loc[level, "by chance"])
        assert coverage >= level - tolerance
        # Laplace intervals are the wider of two valid intervals, so they can cover more
        if budget.law == "gaussian":
            assert coverage <= level + tolerance
    assert "95% intervals" in check.sentence


def test_coverage_of_understated_variances_is_low() -> None:
    result = plan(WORKLOAD, Budget(pcost=0.5))
    understated = dataclasses.replace(result)
    # a plan is frozen, so `setattr` raises
    object.__setattr__(understated, "variances", lambda *args: result.variances(*args) / 2)
    check = coverage_check(understated, RECORDS, rehearsals=200)
    assert check.spread == pytest.approx(2.0, rel=0.2)
    assert check.table.set_index("promised").loc[0.95, "found"] < 0.9


def test_coverage_leaves_out_queries_without_noise() -> None:
    counts = RECORDS["sex"].value_counts()
    exact = SCHEMA.with_facts(invariants=[("sex", [int(counts["F"]), int(counts["M"])])])
    workload = Workload(exact).add("sex").add(("sex", "age"))
    result = plan(workload, Budget(pcost=0.5))
    check = coverage_check(result, RECORDS, rehearsals=100)
    # the queries on sex alone have no noise, those on the 12 cells of sex and age have
    assert check.queries == 12
    assert check.spread == pytest.approx(1.0, abs=0.2)
    with pytest.raises(PlanError, match="has noise"):
        coverage_check(result.with_groups(workload.groups[:1]), RECORDS)


def test_truth_counts_only_bounded_rows() -> None:
    declared = Schema(SCHEMA.attributes, person="pid", rows_per_person=3)
    workload = Workload.all_ways(declared, (0, 1), "marginal")
    nearly_exact = Budget(pcost=1e6, rows_per_person=2)
    result = plan(workload, nearly_exact)
    records = synthetic(declared, 300, seed=2)
    measurement = measure(result, records, rehearsal=True)
    for group in range(len(workload.groups)):
        answers = add_truth(measurement.answers(group), result, group, 0, records)
        # the budget protects 2 rows per person, so only 2 of the 3 rows of 100 persons count
        assert answers["truth"].sum() == 200
        assert (answers["answer"] - answers["truth"]).abs().max() < 0.1
    assert coverage_check(result, records, rehearsals=20).spread < 2.0


def test_coverage_check_respects_time_limit_and_cancellation() -> None:
    result = plan(WORKLOAD, Budget(pcost=0.5))
    assert 2 <= coverage_check(result, RECORDS, rehearsals=10**6, seconds=0.0).rehearsals < 100
    with pytest.raises(Cancelled):
        coverage_check(result, RECORDS, progress=lambda fraction, text: False)


def test_coverage_check_with_one_rehearsal_is_refused() -> None:
    with pytest.raises(PlanError):
        coverage_check(plan(WORKLOAD, Budget(pcost=0.5)), RECORDS, rehearsals=1)
