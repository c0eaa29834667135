"""Shares of the budget sum to 1 for every kind of budget, in the plan and in its chart."""

from __future__ import annotations

import pytest

from engine.figures import budget_picture
from engine.mechanisms import plan
from engine.plans import Plan
from engine.privacy import Budget
from engine.workload import Attribute, Schema, Workload

SCHEMA = Schema([Attribute.of_size("a", 3), Attribute.of_size("b", 4)])
WORKLOAD = Workload.all_ways(SCHEMA, (1, 2), "prefix")
BUDGETS = {
    "one row": Budget(1.0),
    "three rows": Budget(1.0, rows_per_person=3),
    "three rows replaced": Budget(1.0, rows_per_person=3, neighbours="replace_one"),
}


@pytest.mark.parametrize("name", BUDGETS)
@pytest.mark.parametrize("mechanism", ["querysmasher", "gaussian", "hdmm"])
def test_shares_of_gaussian_plans_sum_to_one(name: str, mechanism: str) -> None:
    table = plan(WORKLOAD, BUDGETS[name], mechanism).by_space()
    assert table["share"].sum() == pytest.approx(1.0)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("charge", ["groups", "cell"])
def test_shares_of_laplace_plans_sum_to_one(rows: int, charge: str) -> None:
    result = plan(WORKLOAD, Budget.pure(1.0, rows_per_person=rows), "laplace", charge=charge)
    assert result.by_space()["share"].sum() == pytest.approx(1.0)


def _shares(result: Plan) -> list[float]:
    return [float(share) for share in budget_picture(result).figure.data[0].x]


def test_budget_picture_many_spaces_shows_the_rest() -> None:
    schema = Schema([Attribute.of_size(f"x{i}", 2) for i in range(8)])
    result = plan(Workload.all_ways(schema, (1, 2), "marginal"), Budget(1.0, rows_per_person=3))
    # of 1 + 8 + 28 residual spaces, the picture shows the 30 largest, and the other 7 as one bar
    *largest, rest = _shares(result)
    assert len(largest) == 30
    assert sum(largest) + rest == pytest.approx(1.0)
    assert rest == pytest.approx(result.by_space()["share"].nsmallest(7).sum())


@pytest.mark.parametrize(
    ("mechanism", "words"), [("identity", "measured table"), ("querysmasher", "residual space")]
)
def test_budget_picture_note_names_bars(mechanism: str, words: str) -> None:
    workload = Workload(Schema([Attribute.of_size("age", 4)])).add("age")
    note = budget_picture(plan(workload, Budget(pcost=1.0), mechanism)).note
    assert f"Each bar is a {words}" in note


def test_budget_picture_small_shares_has_decimals() -> None:
    result = plan(WORKLOAD, Budget(1.0, rows_per_person=3))
    assert budget_picture(result).figure.layout.xaxis.tickformat == "~%"
