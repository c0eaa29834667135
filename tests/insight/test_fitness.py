"""From a wanted error to a budget and back, and where a variance comes from: what is promised is what comes."""

from __future__ import annotations

import importlib
import itertools
import math
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest

from engine import Attribute, Budget, Plan, Schema, Workload, budget_for, insight, plan, share_within, tolerance_for
from engine.errors import LimitExceeded, NotAnswerable, NotApplicable, PlanError
from engine.figures import plans as plan_figures
from engine.insight import breakdown, breakdown_text, budget_for_error, fitness, spread, worst_group, worst_query
from engine.mechanisms import at_budget
from engine.plans import footprint
from engine.spaces import exact_bound
from engine.workload import Custom, Random
from tests import shapes

ONE = Budget(pcost=1.0)
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
SHARES = (1e-9, 0.01, 0.1, 0.5, 0.9, 0.95, 0.999, 1.0)
SHAPES = ("nested", "mixed_three", "query_weighted", "zero_weight_covered", "zero_weight_uncovered", "duplicate_groups")


def stds(made: Plan, targets: list[float] | None = None) -> np.ndarray:
    """Standard errors of all queries, listed one by one, as shares of one number a group."""
    targets = targets or [1.0] * len(made.workload.groups)
    return np.sort(np.concatenate([np.sqrt(made.variances(i)) / t for i, t in enumerate(targets)]))


def less(budget: Budget) -> Budget:
    """A budget smaller by what is promised to be too much."""
    if budget.pure_epsilon is None:
        return Budget(pcost=budget.pcost * (1 - 1e-7))
    return Budget.pure(budget.pure_epsilon * (1 - 5e-8))


@pytest.fixture(scope="module", params=MADE, ids=lambda m: f"{m[0]}-{m[1].get('centers', m[2].law)}-{m[2].pcost:g}")
def case(request: pytest.FixtureRequest) -> tuple[Plan, str, dict]:
    name, options, budget = request.param
    return plan(WORKLOAD, budget, name, **options), name, options


def check_counts(made: Plan) -> None:
    """Shares and tolerances are those of the queries listed one by one."""
    errors, found = stds(made), [tolerance_for(made, share) for share in SHARES]
    assert found == pytest.approx(
        [errors[math.ceil(share * len(errors) * (1 - 1e-12)) - 1] for share in SHARES], rel=1e-12
    )
    for share, tolerance in zip(SHARES, found, strict=True):
        if math.isfinite(tolerance):
            assert share_within(made, tolerance) == (errors <= tolerance * (1 + 1e-12)).mean() >= share
        assert (errors < tolerance * (1 - 1e-12)).mean() < share
    assert share_within(made, errors[0] / 2) == 0.0
    assert share_within(made, 1e49) == np.isfinite(errors).mean()
    several = [1.0 + i for i in range(len(made.workload.groups))]
    assert share_within(made, several) == (stds(made, several) <= 1 + 1e-12).mean()


def test_shares_and_tolerances_are_those_of_all_queries(case: tuple[Plan, str, dict]) -> None:
    check_counts(case[0])


@pytest.mark.parametrize("shape", [*SHAPES, "total_only"])
def test_shares_and_tolerances_of_many_shapes(shape: str) -> None:
    made = plan(shapes.SHAPES[shape](), ONE)
    check_counts(made)
    assert tolerance_for(made) == pytest.approx(math.sqrt(made.max_variance), rel=1e-12)


@pytest.mark.parametrize("family", ["marginal", "prefix", "range", "total"])
def test_groups_that_nothing_measures_are_told_apart(family: str) -> None:
    """Their variances are made anew whenever they are asked for, so that nothing may be known by their place."""
    asked = Workload(shapes.numeric(3, 4, 5, 6, 2)).add("a", "marginal")
    for name in "bcde":
        asked = asked.add(name, family, weight=0.0)
    made = plan(asked, ONE, "hdmm")
    check_counts(made)
    assert share_within(made, 2.0) == 3 / asked.queries
    assert share_within(made, [2.0, 1e9, 1e9, 1e9, 1e9]) == 3 / asked.queries
    assert made.by_group()["max_std"].tolist()[1:] == [math.inf] * 4
    lost = insight.losses(made, plan(asked, ONE, "gaussian"))
    assert lost.worse == pytest.approx(1 - 3 / asked.queries)
    assert lost.groups.set_index("group")["queries"].to_dict() == {i: g.count for i, g in enumerate(asked.groups)}


def test_queries_without_noise_are_within_every_tolerance() -> None:
    asked = Workload(shapes.numeric(3, 2)).add("a", Custom([[1, -1, 0], [0, 1, -1]]))
    made = plan(asked.add("b", Custom([[0.0, 0.0]]), weight=0.0), ONE)
    assert share_within(made, 1e-6) == 1 / 3
    assert tolerance_for(made, 0.3) == 0.0
    with pytest.raises(PlanError, match="no noise"):
        budget_for_error(made, 1.0, 0.3)
    assert budget_for_error(made, 1.0, 0.4).pcost > 0


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is listed: variances that differ are counted, up to 500."""
    module = importlib.import_module("engine.insight.spread")
    monkeypatch.setattr(module, "EXACT_QUERIES", 500)
    monkeypatch.setattr(module, "SAMPLE", 3000)
    spread.cache_clear()
    yield
    spread.cache_clear()


@pytest.mark.usefixtures("small")
def test_more_queries_than_can_be_listed_are_counted() -> None:
    for family, schema in (("marginal", shapes.numeric(9, 8, 7)), ("range", shapes.numeric(9, 5))):
        made = plan(Workload.all_ways(schema, (1, 2, 3)[: len(schema.names)], family), ONE)
        assert spread(made).exact
        assert len(spread(made).errors) <= 500 < made.workload.queries
        check_counts(made)
    asked = Workload(shapes.numeric(30, 20)).add("a", "prefix").add(("a", "b"), "marginal", weight=0.0)
    lost = plan(asked, ONE, "hdmm")
    assert spread(lost).exact
    assert len(spread(lost).errors) < lost.workload.queries
    check_counts(lost)


def test_millions_of_queries_are_counted_exactly() -> None:
    asked = Workload(shapes.numeric(40, 40, 17)).add(("a", "b", "c"), {"a": "range", "b": "marginal", "c": "range"})
    made = plan(asked, ONE)
    assert len(spread(made).errors) < 300_000 < 5_000_000 < asked.queries
    tolerance = tolerance_for(made, 0.95)
    within = int(np.sum(made.variances(0) <= tolerance**2 * (1 + 1e-11)))
    assert within / asked.queries == pytest.approx(0.95, abs=1e-4)  # there are ties
    assert share_within(made, tolerance * (1 + 1e-11)) == within / asked.queries


def test_variances_that_differ_by_rounding_are_counted_once() -> None:
    made = plan(Workload(shapes.numeric(40, 6)).add(("a", "b"), {"a": "marginal", "b": "range"}), ONE)
    found, rng = made.group_variance(0), np.random.default_rng(1)
    noisy = replace(
        found,
        summands=tuple(
            replace(s, arrays=tuple((axes, v * (1.0 + 1e-13 * rng.uniform(-1, 1, v.shape))) for axes, v in s.arrays))
            for s in found.summands
        ),
    )
    assert [len(n) for _, n in footprint(noisy).distinct] == [len(n) for _, n in footprint(found).distinct]


@pytest.mark.usefixtures("small")
def test_a_sample_says_so_and_keeps_a_margin() -> None:
    made = plan(Workload.all_ways(shapes.numeric(12, 10, 8), (1, 2, 3), "range"), ONE)
    found, errors = spread(made), stds(made)
    assert not found.exact
    assert "sample" in found.how
    assert tolerance_for(made) == pytest.approx(errors[-1], rel=1e-12)
    for share in (0.5, 0.95):
        assert found.quantile(share) == pytest.approx(np.quantile(errors, share), rel=0.03)
        assert (errors <= tolerance_for(made, share)).mean() >= share
        assert share_within(made, tolerance_for(made, share)) == pytest.approx(share, abs=0.05)
    budget = budget_for_error(made, 4.0, 0.5)
    assert 0.5 <= (stds(plan(made.workload, budget)) <= 4.0).mean() < 0.55


@pytest.mark.usefixtures("small")
def test_a_thinned_distribution_keeps_its_percents_and_its_words() -> None:
    made = plan(Workload.all_ways(shapes.numeric(12, 10, 8), (1, 2, 3), "range"), ONE)
    found = spread(made)
    drawn = found.thinned()
    assert len(drawn.errors) < 1000 < len(found.errors)
    assert drawn.how == found.how
    assert drawn.thinned() is drawn
    for percent in range(1, 101):
        assert drawn.quantile(percent / 100) == found.quantile(percent / 100)
    for tolerance in found.errors[::97]:
        assert found.within(tolerance) - 0.002 <= drawn.within(tolerance) <= found.within(tolerance)


def check_budget(made: Plan, wanted: float | list[float], share: float) -> Budget:
    """The budget keeps the targets for the share, and a slightly smaller one does not."""
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
    """One block of column norm 1, all queries alike: pcost is 1 over the variance."""
    asked = Workload(shapes.numeric(4)).add("a", "marginal")
    for wanted, share in itertools.product((1e-3, 0.25, 1.0, 100.0, 1e5), (0.01, 0.5, 1.0)):
        assert budget_for(asked, wanted, share).pcost == pytest.approx(wanted**-2, rel=1e-4)
    found = budget_for(asked, 100.0, mechanism="hdmm", law="laplace")
    assert found.pure_epsilon == pytest.approx(math.sqrt(2) / 100, rel=1e-5)
    assert budget_for(asked, 100.0, mechanism="laplace") == budget_for(asked, 100.0, mechanism="laplace", law="laplace")


def test_rounding_that_costs_more_than_the_noise_is_paid_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise this large has a grid as wide as a count, so that the variance is far from 1 / pcost."""
    made = plan(Workload(shapes.numeric(40, 30)).add(("a", "b"), "marginal"), Budget.pure(1.0), "identity")
    tried: list[Budget] = []
    monkeypatch.setattr(fitness, "at_budget", lambda made, budget: tried.append(budget) or at_budget(made, budget))
    found = check_budget(made, 1e11, 1.0)
    assert len(tried) <= 10  # where the variance is no longer in proportion, tries still close in fast
    assert found.pure_epsilon > 100 * math.sqrt(2) / 1e11


def test_the_budget_for_one_query() -> None:
    made, tensor = plan(WORKLOAD, ONE), np.outer([1.0, 1.0, 0.0, 0.0, 0.0], [1.0, 0.0])
    for wanted in (2.5e-3, 2.5, 2.5e3):
        found = insight.budget_for_query(made, ("age", "sex"), tensor, wanted)
        assert plan(WORKLOAD, found).variance_of(("age", "sex"), tensor) <= wanted**2
        assert plan(WORKLOAD, less(found)).variance_of(("age", "sex"), tensor) > wanted**2
    with pytest.raises(PlanError, match="no noise"):
        insight.budget_for_query(made, ("age", "sex"), 0 * tensor, 1.0)
    for wanted in (0.0, [1.0, 2.0]):
        with pytest.raises(PlanError, match="error"):
            insight.budget_for_query(made, ("age", "sex"), tensor, wanted)


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
    with pytest.raises(PlanError, match="number of the group"):
        breakdown(made, 99)
    with pytest.raises(PlanError, match="queries 0 to"):
        breakdown(made, 0, 999)


def test_the_bound_of_all_mechanisms_is_below_every_plan() -> None:
    bound = insight.mechanism_bound(WORKLOAD)
    assert bound.square == exact_bound(WORKLOAD)
    for pcost in (0.5, 4.0):
        best = plan(WORKLOAD, Budget(pcost=pcost), "optimum")
        assert bound.rmse(best) <= best.weighted_rmse <= bound.rmse(best) * 1.001
        assert "at most 0.1% above" in insight.bound_text(best, bound)
    made = plan(WORKLOAD, Budget(pcost=1.0), "identity")
    above = float(insight.bound_text(made, bound).split("at most ")[1].split("%")[0])
    assert 0 <= above / 100 - (made.weighted_rmse / bound.rmse(made) - 1) < 0.001
    large = Schema([Attribute.of_size(c, 25) for c in "abc"])
    asked = Workload.all_ways(large, (1, 2))
    made = plan(asked, Budget(pcost=1.0))
    assert 0 < insight.mechanism_bound(asked).rmse(made) < made.weighted_rmse
    with pytest.raises(LimitExceeded):
        insight.mechanism_bound(Workload(Schema([Attribute.of_size("x", 5000)])).add("x", "prefix"))


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
    picture = plan_figures.breakdown_picture(made, 5, 3)
    assert picture.table["variance (counts²)"].sum() == pytest.approx(made.variances(5)[3])
    assert sum(picture.figure.data[0].x) == pytest.approx(1.0)
    variance = float(made.variances(5)[3])
    curve = plan_figures.interval_picture(made, variance)
    for pcost, half in zip(curve.table["pcost"], curve.table["95% interval ± (counts)"], strict=True):
        again = plan(WORKLOAD, Budget(pcost=pcost))
        assert half == pytest.approx(1.959964 * math.sqrt(again.variances(5)[3]), rel=1e-5)
    bound = insight.mechanism_bound(WORKLOAD)
    sizes = plan_figures.distance_picture(made, bound).table["weighted RMSE (counts)"].tolist()
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == made.weighted_rmse


def test_a_certificate_says_first_how_far_any_mechanism_could_be_below() -> None:
    made = plan(WORKLOAD, Budget(pcost=2.0), "identity")
    found = made.certificate
    bound = fitness.mechanism_bound(WORKLOAD)
    assert found.global_bound == pytest.approx(bound.rmse(made))
    assert found.global_gap == pytest.approx(made.weighted_rmse / bound.rmse(made) - 1)
    assert found.global_gap > 0.01
    words = fitness.claim_text(made)
    assert words.startswith(fitness.bound_text(made, bound))
    assert "what any matrix mechanism can reach, whatever it measures" in words
    assert "Methods that allow bias can go below that where counts are smaller than the noise." in words
    assert found.statement in words


def test_a_certificate_without_a_bound_for_all_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.spaces.bounds.best.MOST_CELLS", 30)
    made = plan(Workload(Schema([Attribute.of_size("x", 31)])).add("x", "marginal"), Budget(pcost=1.0), "identity")
    assert made.certificate.global_gap == math.inf
    assert made.certificate.statement in fitness.claim_text(made)
    assert "31 cells" in fitness.claim_text(made)


def test_a_bound_for_all_is_searched_when_it_is_asked_for_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.spaces.bounds.best.small_domain", lambda asked: False)  # as where cells are many
    asked = Workload.all_ways(Schema([Attribute.of_size(c, 5) for c in "abc"]), (1, 2))
    made = plan(asked, Budget(pcost=1.0))
    with mock.patch("engine.plans.plan.best_bound", side_effect=AssertionError):
        assert made.certificate.gap < 1e-3
        assert "global" not in repr(made.certificate)
    again = plan(asked, Budget(pcost=9.0))
    first = made.certificate.global_gap
    with mock.patch("engine.spaces.bounds.best.global_bound", side_effect=AssertionError):
        assert again.certificate.global_gap == pytest.approx(first, rel=1e-6)


def test_no_bound_is_claimed_where_neighbours_replace_a_record() -> None:
    made = plan(WORKLOAD, Budget(pcost=2.0, neighbours="replace_one"))
    assert made.certificate.global_gap == math.inf
    assert "at most" not in fitness.bound_text(made, fitness.mechanism_bound(WORKLOAD))
    three = plan(WORKLOAD, Budget(pcost=9.0, rows_per_person=3), "optimum")
    assert three.certificate.global_gap == pytest.approx(0.0, abs=1e-3)
    assert three.certificate.global_bound == pytest.approx(fitness.mechanism_bound(WORKLOAD).rmse(three))
