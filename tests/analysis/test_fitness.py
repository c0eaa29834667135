"""Budgets for error targets, shares within targets, and variance breakdowns."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from engine import analysis
from engine.analysis import breakdown, budget_for_error, tolerance_for, worst_group
from engine.analysis import error_targets as fitness
from engine.analysis.error_targets import budget_for, share_within
from engine.analysis.variance_breakdown import breakdown_text, worst_query
from engine.errors import NotAnswerable, NotApplicable, PlanError
from engine.mechanisms import at_budget, plan
from engine.plans import Plan
from engine.privacy import Budget
from engine.workload import Workload
from tests import shapes
from tests.analysis.given import ONE, WORKLOAD, check_counts, stds

MADE = [
    ("querysmasher", {}, Budget(pcost=0.7)),
    ("querysmasher", {"centers": "tuned"}, Budget(pcost=0.7)),
    ("residualplanner+", {}, Budget(pcost=1e-6)),
    ("hdmm", {}, Budget(pcost=0.7)),
    ("hdmm", {}, Budget.pure(0.9)),
    ("optimum", {}, Budget(pcost=3.0)),
]


def less(budget: Budget) -> Budget:
    """Return a budget that is smaller than the guaranteed precision allows."""
    if budget.pure_epsilon is None:
        return Budget(pcost=budget.pcost * (1 - 1e-7))
    return Budget.pure(budget.pure_epsilon * (1 - 5e-8))


@pytest.fixture(scope="module", params=MADE, ids=lambda m: f"{m[0]}-{m[1].get('centers', m[2].law)}-{m[2].pcost:g}")
def case(request: pytest.FixtureRequest) -> tuple[Plan, str, dict]:
    name, options, budget = request.param
    return plan(WORKLOAD, budget, name, **options), name, options


def test_shares_and_tolerances_are_those_of_all_queries(case: tuple[Plan, str, dict]) -> None:
    check_counts(case[0])


def check_budget(made: Plan, wanted: float | list[float], share: float) -> Budget:
    """Check that the budget meets the targets, and that a slightly smaller one does not."""
    several = [wanted] * len(made.workload.groups) if isinstance(wanted, float) else wanted
    found = budget_for_error(made, wanted, share)
    assert found.law == made.budget.law
    enough, short = at_budget(made, found), at_budget(made, less(found))
    assert (stds(enough, several) <= 1).mean() >= share
    assert share_within(enough, wanted) >= share
    assert (stds(short, several) <= 1).mean() < share
    return found


def test_the_plan_made_with_the_budget_keeps_the_target(case: tuple[Plan, str, dict]) -> None:
    made, name, options = case
    wanted = tolerance_for(made, 0.5) / 3
    found = budget_for_error(made, wanted, 0.5)
    anew, again = plan(WORKLOAD, found, name, **options), at_budget(made, found)
    assert (stds(anew) <= wanted).mean() >= 0.5
    assert anew.hash == again.hash
    assert anew.certificate == again.certificate
    assert [(b.noise, b.grid) for b in anew.blocks.values()] == [(b.noise, b.grid) for b in again.blocks.values()]


@pytest.mark.parametrize(("share", "factor"), [(0.5, 1.0), (0.95, 1e-3), (1.0, 1e3)])
def test_the_budget_for_an_error_is_the_smallest(case: tuple[Plan, str, dict], share: float, factor: float) -> None:
    made, name, options = case
    wanted = tolerance_for(made, share) * factor
    found = check_budget(made, wanted, share)
    if name == "querysmasher":
        assert found == budget_for(WORKLOAD, wanted, share, name, **options)  # whatever the budget of the plan


@pytest.mark.parametrize(("share", "wanted"), [*itertools.product([0.01, 0.5, 0.999, 1.0], [0.01, 1e4])])
@pytest.mark.parametrize("shape", ["total_only", "duplicate_groups", "query_weighted", "contrasts_only"])
def test_the_budgets_of_many_shapes_are_the_smallest(shape: str, share: float, wanted: float) -> None:
    check_budget(plan(shapes.SHAPES[shape](), ONE), wanted, share)


@pytest.mark.parametrize("mechanism", ["querysmasher", "residualplanner+", "wff", "laplace"])
def test_budgets_of_targets_by_group_are_the_smallest(mechanism: str) -> None:
    asked = Workload.all_ways(shapes.numeric(7, 5), (1, 2), "prefix")
    made = plan(asked, budget_for(asked, 1.0, mechanism=mechanism), mechanism)
    for share in (0.8, 1.0):
        check_budget(made, [0.3, 1.5, 0.7], share)


def test_the_cap_on_records_stays_that_of_the_request() -> None:
    asked = Workload(shapes.numeric(4, 3)).add(("a", "b"), "prefix")
    found = budget_for(asked, 1.0, max_records=2**48)
    assert found.pcost > 1.01 * budget_for(asked, 1.0).pcost
    assert share_within(plan(asked, found, max_records=2**48), 1.0) == 1.0


def test_the_budget_of_a_marginal_is_known() -> None:
    """One block of column norm 1 with equal queries: pcost is 1 / variance."""
    asked = Workload(shapes.numeric(4)).add("a", "marginal")
    for wanted, share in itertools.product((1e-3, 0.25, 1.0, 100.0, 1e5), (0.01, 0.5, 1.0)):
        assert budget_for(asked, wanted, share).pcost == pytest.approx(wanted**-2, rel=1e-4)
    found = budget_for(asked, 100.0, mechanism="hdmm", law="laplace")
    assert found.pure_epsilon == pytest.approx(math.sqrt(2) / 100, rel=1e-5)
    assert budget_for(asked, 100.0, mechanism="laplace") == budget_for(asked, 100.0, mechanism="laplace", law="laplace")


def test_rounding_that_costs_more_than_the_noise_is_paid_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The grid step is about one count here, so the variance differs from 1 / pcost."""
    made = plan(Workload(shapes.numeric(40, 30)).add(("a", "b"), "marginal"), Budget.pure(1.0), "identity")
    tried: list[Budget] = []
    monkeypatch.setattr(fitness, "at_budget", lambda made, budget: tried.append(budget) or at_budget(made, budget))
    found = check_budget(made, 1e11, 1.0)
    assert len(tried) <= 10  # where the variance is no longer in proportion, tries still close in fast
    assert found.pure_epsilon > 100 * math.sqrt(2) / 1e11


def test_the_budget_for_one_query() -> None:
    made, tensor = plan(WORKLOAD, ONE), np.outer([1.0, 1.0, 0.0, 0.0, 0.0], [1.0, 0.0])
    for wanted in (2.5e-3, 2.5, 2.5e3):
        found = analysis.budget_for_query(made, ("age", "sex"), tensor, wanted)
        assert plan(WORKLOAD, found).variance_of(("age", "sex"), tensor) <= wanted**2
        assert plan(WORKLOAD, less(found)).variance_of(("age", "sex"), tensor) > wanted**2
    with pytest.raises(PlanError, match="no noise"):
        analysis.budget_for_query(made, ("age", "sex"), 0 * tensor, 1.0)
    for wanted in (0.0, [1.0, 2.0]):
        with pytest.raises(PlanError, match="error"):
            analysis.budget_for_query(made, ("age", "sex"), tensor, wanted)


def test_a_shape_for_the_targets_needs_less() -> None:
    asked = Workload(shapes.numeric(5, 3)).add("a", "prefix").add(("a", "b"), "marginal").add("b", "range")
    several = [0.5, 3.0, 1.0]
    scaled, shaped = (budget_for(asked, several, fit=fit) for fit in ("scale", "shape"))
    assert shaped.pcost < 0.9 * scaled.pcost
    made = plan(asked, shaped, objective="max", targets=several)
    assert share_within(made, several) == 1.0
    assert made.achieved == pytest.approx(1.0, rel=1e-6)
    # no shares and strategies of the class need much less: the certificate says so
    assert made.certificate.lower_bound > 0.99


def test_queries_that_nobody_measures_cannot_be_promised() -> None:
    asked = Workload(shapes.numeric(4, 3)).add("a", "prefix").add("b", "marginal", weight=0.0)
    made = plan(asked, ONE)
    assert tolerance_for(made) == math.inf
    assert share_within(made, 1e9) == 4 / 7
    assert math.isfinite(tolerance_for(made, 0.5))
    for share in (0.58, 1.0):
        with pytest.raises(PlanError, match=r"only 57\.1%.* weight zero"):
            budget_for(asked, 1.0, share)
    check_budget(made, 1.0, 4 / 7)
    with pytest.raises(NotAnswerable, match="group 1"):
        breakdown(made, 1)


@pytest.mark.parametrize(
    ("asked", "word"),
    [
        ({"targets": 0.0}, "targets"),
        ({"targets": -1}, "targets"),
        ({"targets": "low"}, "targets"),
        ({"targets": [1.0]}, "targets"),
        ({"targets": math.nan}, "targets"),
        ({"targets": math.inf}, "targets"),
        ({"targets": 1e-300}, "targets"),
        ({"targets": 1e300}, "targets"),
        ({"share": 0.0}, "share"),
        ({"share": 1.5}, "share"),
        ({"share": True}, "share"),
        ({"share": "most"}, "share"),
        ({"fit": "loose"}, "fit"),
        ({"law": "cauchy"}, "law"),
        ({"fit": "shape", "objective": "sum"}, "objective"),
    ],
    ids=str,
)
def test_requests_that_make_no_sense(asked: dict, word: str) -> None:
    with pytest.raises(PlanError, match=word):
        budget_for(shapes.mixed_three(), **({"targets": 1.0} | asked))


def test_noise_that_a_mechanism_does_not_draw() -> None:
    with pytest.raises(NotApplicable):
        budget_for(shapes.mixed_three(), 1.0, law="laplace")


def test_tolerances_that_make_no_sense() -> None:
    made = plan(shapes.total_only(), ONE)
    for given in (0, -1.0, math.nan, "x", [1.0, 2.0]):
        with pytest.raises(PlanError, match="tolerance"):
            share_within(made, given)
    for given in (0, 1.01, None):
        with pytest.raises(PlanError, match="share"):
            tolerance_for(made, given)


@pytest.mark.parametrize(
    ("mechanism", "options", "family"),
    [
        ("querysmasher", {"centers": "tuned"}, "affine"),
        ("identity", {}, "marginal"),
        ("hdmm", {}, "marginal"),
        ("datacube", {}, "marginal"),
    ],
)
def test_budgets_for_plans_that_do_not_measure_space_by_space(mechanism: str, options: dict, family: str) -> None:
    asked = Workload(shapes.numeric(4, 3)).add(("a", "b"), family)
    asked = asked.add("a", "prefix" if family == "affine" else "marginal")
    made = plan(asked, budget_for(asked, 0.5, mechanism=mechanism, **options), mechanism, **options)
    assert bool(made.split.unions) == (mechanism == "querysmasher")
    assert 0.5 * (1.0 - 1e-7) <= math.sqrt(made.max_variance) <= 0.5
    check_budget(made, 3.0, 0.6)


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
    """Without the noise of one space, the variance decreases by its share in the breakdown."""
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
    with pytest.raises(PlanError, match="number of the group"):
        breakdown(made, 99)
    with pytest.raises(PlanError, match="queries 0 to"):
        breakdown(made, 0, 999)


def test_shares_are_rounded_down() -> None:
    assert [fitness.percent_rounded_down(x) for x in (0.9499999, 0.95, 1.0, 0.9999999, 0.29)] == [
        "94.9%",
        "95.0%",
        "100.0%",
        "99.9%",
        "29.0%",
    ]
