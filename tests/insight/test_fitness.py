"""From a wanted error to a budget and back, and where a variance comes from: what is promised is what comes."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest

from engine import Attribute, Budget, Plan, Schema, Workload, plan
from engine.errors import BudgetError, LimitExceeded, NotAnswerable, PlanError
from engine.figures import plans as fitness_figures
from engine.insight import breakdown, breakdown_text, fitness, worst_group, worst_query
from engine.spaces import exact_bound
from engine.workload import Random

SCHEMA = Schema(
    [
        Attribute.numeric("age", [0, 18, 30, 45, 65, 90]),
        Attribute.categorical("sex", ["F", "M"]),
        Attribute.of_size("code", 4),
    ]
)
WORKLOAD = (
    Workload.all_ways(SCHEMA, ways=(1, 2, 3))
    .add((), "total")
    .add(("age",), "range", weight=2.0)
    .add(("age", "code"), "affine")
    .add(("age", "code"), {"age": "range", "code": "marginal"})
    .add(("sex", "code"), Random(p=0.6, count=5, seed=4))
)
MADE = [
    ("querysmasher", {}, Budget(pcost=0.7)),
    ("querysmasher", {"centers": "tuned"}, Budget(pcost=0.7)),
    ("residualplanner+", {}, Budget(pcost=1e-6)),
    ("hdmm", {}, Budget(pcost=0.7)),
    ("hdmm", {}, Budget.pure(0.9)),
    ("optimum", {}, Budget(pcost=3.0)),
]


def stds(made: Plan) -> np.ndarray:
    return np.sort(np.sqrt(np.concatenate([made.variances(i) for i in range(len(made.workload.groups))])))


@pytest.fixture(scope="module", params=MADE, ids=lambda m: f"{m[0]}-{m[1].get('centers', m[2].law)}-{m[2].pcost:g}")
def case(request: pytest.FixtureRequest) -> tuple[Plan, str, dict]:
    name, options, budget = request.param
    return plan(WORKLOAD, budget, name, **options), name, options


@pytest.mark.parametrize("share", [0.1, 0.5, 0.95, 1.0])
def test_error_of_a_share_is_a_count_of_queries(case: tuple[Plan, str, dict], share: float) -> None:
    made, *_ = case
    errors, found = stds(made), fitness.error_at(made, share)
    assert (errors <= found).mean() >= share > (errors < found).mean()
    assert fitness.share_within(made, found) == (errors <= found).mean()
    assert fitness.share_within(made, errors[0] / 2) == 0.0


@pytest.mark.parametrize(("share", "factor"), [(0.5, 1.0), (0.95, 0.03), (1.0, 20.0), (0.95, 0.9)])
def test_the_budget_for_an_error_is_the_smallest(case: tuple[Plan, str, dict], share: float, factor: float) -> None:
    made, name, options = case
    wanted = fitness.error_at(made, share) * factor
    found = fitness.budget_for_error(made, wanted, share)
    assert found.law == made.budget.law
    assert (stds(plan(WORKLOAD, found, name, **options)) <= wanted).mean() >= share
    pure = found.pure_epsilon
    less = Budget(pcost=found.pcost * (1 - 1e-6)) if pure is None else Budget.pure(pure * (1 - 1e-6))
    assert (stds(plan(WORKLOAD, less, name, **options)) <= wanted).mean() < share


def test_the_budget_for_one_query() -> None:
    made = plan(WORKLOAD, Budget(pcost=1.0))
    tensor = np.ones((3, 2))
    tensor = np.outer([1.0, 1.0, 0.0, 0.0, 0.0], [1.0, 0.0])
    reached = math.sqrt(made.variance_of(("age", "sex"), tensor))
    again = plan(WORKLOAD, fitness.budget_for(made, reached, 2.5))
    assert 2.5 * (1 - 1e-6) <= math.sqrt(again.variance_of(("age", "sex"), tensor)) <= 2.5


def test_a_large_workload_is_sampled_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    made = plan(WORKLOAD, Budget(pcost=1.0))
    assert fitness.how_exact(made) == "Every query was computed."
    exact = [fitness.error_at(made, share) for share in (0.5, 0.95, 1.0)]
    module = sys.modules["engine.insight.spread"]
    monkeypatch.setattr(module, "EXACT_QUERIES", 10)
    module.spread.cache_clear()
    assert "sample" in fitness.how_exact(made)
    assert fitness.error_at(made, 1.0) == pytest.approx(exact[2], rel=1e-12)
    assert fitness.error_at(made, 0.5) == pytest.approx(exact[0], rel=0.2)
    module.spread.cache_clear()


@pytest.mark.parametrize(
    ("error", "share"),
    [
        (0.0, 0.95),
        (-1.0, 0.95),
        (math.nan, 0.95),
        (math.inf, 0.95),
        (1e-300, 0.95),
        (1e300, 0.95),
        (1.0, 0.0),
        (1.0, 2),
    ],
)
def test_what_is_no_error_and_no_share(error: float, share: float) -> None:
    with pytest.raises((PlanError, BudgetError)):
        fitness.budget_for_error(plan(WORKLOAD, Budget(pcost=1.0)), error, share)


def test_queries_that_cannot_be_answered_need_no_budget() -> None:
    asked = Workload(SCHEMA).add("age", "prefix").add("code", "marginal", weight=0.0)
    made = plan(asked, Budget(pcost=1.0))
    with pytest.raises(PlanError, match=r"only 55\.5%"):
        fitness.budget_for_error(made, 1.0, 0.95)
    assert fitness.budget_for_error(made, 1.0, 0.5).pcost > 0
    with pytest.raises(NotAnswerable, match="group 1"):
        breakdown(made, 1)


def test_a_breakdown_adds_up(case: tuple[Plan, str, dict]) -> None:
    made, name, _ = case
    for i, group in enumerate(made.workload.groups):
        variances = made.variances(i)
        table = breakdown(made, i)
        assert table["variance"].sum() == pytest.approx(variances.mean(), rel=1e-9)
        assert table["share"].sum() == pytest.approx(1.0)
        assert table["share"].is_monotonic_decreasing
        joined = name in ("hdmm", "optimum") or made.split.unions  # one strategy for several spaces
        assert joined or set(map(frozenset, table["attributes"])) <= {
            frozenset(group.attributes[a] for a in range(len(group.attributes)) if bits >> a & 1)
            for bits in range(2 ** len(group.attributes))
        }
        for query in {0, group.count // 2, group.count - 1}:
            assert breakdown(made, i, query)["variance"].sum() == pytest.approx(variances[query], rel=1e-9)
        assert variances[worst_query(made, i)] == variances.max()
        assert breakdown_text(made, i)
    assert math.sqrt(made.variances(worst_group(made)).max()) == pytest.approx(stds(made)[-1], rel=1e-9)


def test_a_breakdown_is_the_noise_of_each_space() -> None:
    """Take the noise of one space away: the variance falls by what the breakdown gives to it."""
    made = plan(WORKLOAD, Budget(pcost=1.0))
    number = next(i for i, g in enumerate(made.workload.groups) if g.attributes == ("age", "sex", "code"))
    asked, table = made.workload.groups[number], breakdown(made, number, 11)
    rows = [part.family.rows(part.sizes) for part in asked.parts]
    index = np.unravel_index(11, [len(r) for r in rows])
    tensor = np.einsum("i,j,k->ijk", *(r[i] for r, i in zip(rows, index, strict=True)))
    pieces = made.class_pieces(asked.attributes, tensor)
    for names, variance in zip(table["attributes"], table["variance"], strict=True):
        block = made.blocks[names]
        pinv = np.ones((1, 1))
        for _, strategy in block.factors:
            pinv = np.kron(pinv, strategy.pinv)
        assert block.noise**2 * np.sum((pieces[names].ravel() @ pinv) ** 2) == pytest.approx(variance, rel=1e-8)


def test_queries_and_groups_that_are_none() -> None:
    made = plan(WORKLOAD, Budget(pcost=1.0))
    with pytest.raises(PlanError, match="no group"):
        breakdown(made, 99)
    with pytest.raises(PlanError, match="queries 0 to"):
        breakdown(made, 0, 999)


def test_the_bound_of_all_mechanisms_is_below_every_plan() -> None:
    bound = fitness.mechanism_bound(WORKLOAD)
    assert bound.square == exact_bound(WORKLOAD)
    for pcost in (0.5, 4.0):
        best = plan(WORKLOAD, Budget(pcost=pcost), "optimum")
        assert bound.rmse(best) <= best.weighted_rmse <= bound.rmse(best) * 1.001
        assert "at most 0.1% above" in fitness.bound_text(best, bound)
    made = plan(WORKLOAD, Budget(pcost=1.0), "identity")
    above = float(fitness.bound_text(made, bound).split("at most ")[1].split("%")[0])
    assert 0 <= above / 100 - (made.weighted_rmse / bound.rmse(made) - 1) < 0.001
    large = Schema([Attribute.of_size(c, 60) for c in "abc"])
    asked = Workload.all_ways(large, (1, 2))
    made = plan(asked, Budget(pcost=1.0))
    assert 0 < fitness.mechanism_bound(asked).rmse(made) < made.weighted_rmse
    with pytest.raises(LimitExceeded):
        fitness.mechanism_bound(Workload(Schema([Attribute.of_size("x", 5000)])).add("x", "prefix"))


def test_shares_are_rounded_down() -> None:
    assert [fitness.down(x) for x in (0.9499999, 0.95, 1.0, 0.9999999, 0.29)] == [
        "94.9%",
        "95.0%",
        "100.0%",
        "99.9%",
        "29.0%",
    ]


def test_pictures_show_the_same_numbers() -> None:
    made = plan(WORKLOAD, Budget(pcost=1.0))
    picture = fitness_figures.breakdown_picture(made, 5, 3)
    assert picture.table["variance (counts²)"].sum() == pytest.approx(made.variances(5)[3])
    assert sum(picture.figure.data[0].x) == pytest.approx(1.0)
    variance = float(made.variances(5)[3])
    curve = fitness_figures.interval_picture(made, variance)
    for pcost, half in zip(curve.table["pcost"], curve.table["95% interval ± (counts)"], strict=True):
        again = plan(WORKLOAD, Budget(pcost=pcost))
        assert half == pytest.approx(1.959964 * math.sqrt(again.variances(5)[3]), rel=1e-5)
    bound = fitness.mechanism_bound(WORKLOAD)
    sizes = fitness_figures.distance_picture(made, bound).table["weighted RMSE (counts)"].tolist()
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == made.weighted_rmse
