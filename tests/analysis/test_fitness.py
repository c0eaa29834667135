"""Budgets for error targets, shares of queries within targets, and variance breakdowns."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from engine import analysis
from engine.analysis import breakdown, budget_for_error, tolerance_for, worst_error
from engine.analysis import error_targets as fitness
from engine.analysis.error_targets import budget_for, share_within
from engine.analysis.variance_breakdown import breakdown_text, least_accurate_queries, worst_query
from engine.errors import NotAnswerable, NotApplicable, PlanError
from engine.mechanisms import at_budget, plan
from engine.plans import Plan
from engine.privacy import Budget
from engine.workload import Attribute, Custom, Schema, Workload
from tests import shapes
from tests.analysis.brute_force import ONE, WORKLOAD, check_shares_and_tolerances, sorted_errors

CASES = [
    ("querysmasher", {}, Budget(pcost=0.7)),
    ("querysmasher", {"centers": "tuned"}, Budget(pcost=0.7)),
    ("residualplanner+", {}, Budget(pcost=1e-6)),
    ("hdmm", {}, Budget(pcost=0.7)),
    ("hdmm", {}, Budget.pure(0.9)),
    ("optimum", {}, Budget(pcost=3.0)),
]


def slightly_smaller(budget: Budget) -> Budget:
    """Return a budget below the given one by more than the tolerance of the search for budgets."""
    if budget.pure_epsilon is None:
        return Budget(pcost=budget.pcost * (1 - 1e-7))
    return Budget.pure(budget.pure_epsilon * (1 - 5e-8))


@pytest.fixture(
    scope="module",
    params=CASES,
    ids=lambda m: f"{m[0]}-{m[1].get('centers', m[2].law)}-{m[2].pcost:g}",
)
def case(request: pytest.FixtureRequest) -> tuple[Plan, str, dict]:
    name, options, budget = request.param
    return plan(WORKLOAD, budget, name, **options), name, options


def test_shares_and_tolerances_match_enumeration(case: tuple[Plan, str, dict]) -> None:
    check_shares_and_tolerances(case[0])


def checked_minimal_budget(result: Plan, wanted: float | list[float], share: float) -> Budget:
    """Check and return the smallest budget at which a share of the queries meets error targets.

    ``wanted`` is the target of every query, or one target per group.  A slightly smaller budget
    must not suffice.
    """
    targets = [wanted] * len(result.workload.groups) if isinstance(wanted, float) else wanted
    budget = budget_for_error(result, wanted, share)
    assert budget.law == result.budget.law
    sufficient = at_budget(result, budget)
    assert (sorted_errors(sufficient, targets) <= 1).mean() >= share
    assert share_within(sufficient, wanted) >= share
    insufficient = at_budget(result, slightly_smaller(budget))
    assert (sorted_errors(insufficient, targets) <= 1).mean() < share
    return budget


def test_plan_with_returned_budget_meets_target(case: tuple[Plan, str, dict]) -> None:
    result, name, options = case
    wanted = tolerance_for(result, share=0.5) / 3
    budget = budget_for_error(result, wanted, share=0.5)
    new_plan = plan(WORKLOAD, budget, name, **options)
    scaled_plan = at_budget(result, budget)
    assert (sorted_errors(new_plan) <= wanted).mean() >= 0.5
    assert new_plan.hash == scaled_plan.hash
    assert new_plan.certificate == scaled_plan.certificate
    assert [(b.noise, b.grid) for b in new_plan.blocks.values()] == [
        (b.noise, b.grid) for b in scaled_plan.blocks.values()
    ]


@pytest.mark.parametrize(("share", "factor"), [(0.5, 1.0), (0.95, 1e-3), (1.0, 1e3)])
def test_budget_for_error_is_minimal(
    case: tuple[Plan, str, dict], share: float, factor: float
) -> None:
    result, name, options = case
    wanted = tolerance_for(result, share) * factor
    budget = checked_minimal_budget(result, wanted, share)
    if name == "querysmasher":
        # `budget_for` plans at another budget than that of ``result``. The smallest budget does not
        # depend on the budget of the plan.
        assert budget == budget_for(WORKLOAD, wanted, share, name, **options)


@pytest.mark.parametrize(
    ("share", "wanted"), [*itertools.product([0.01, 0.5, 0.999, 1.0], [0.01, 1e4])]
)
@pytest.mark.parametrize(
    "shape", ["total_only", "duplicate_groups", "query_weighted", "contrasts_only"]
)
def test_budget_for_error_of_many_shapes_is_minimal(
    shape: str, share: float, wanted: float
) -> None:
    checked_minimal_budget(plan(shapes.SHAPES[shape](), ONE), wanted, share)


@pytest.mark.parametrize("mechanism", ["querysmasher", "residualplanner+", "wff", "laplace"])
def test_budget_for_group_targets_is_minimal(mechanism: str) -> None:
    workload = Workload.all_ways(shapes.numeric(7, 5), (1, 2), "prefix")
    result = plan(workload, budget_for(workload, 1.0, mechanism=mechanism), mechanism)
    for share in (0.8, 1.0):
        checked_minimal_budget(result, [0.3, 1.5, 0.7], share)


def test_budget_for_max_records_is_larger() -> None:
    workload = Workload(shapes.numeric(4, 3)).add(("a", "b"), "prefix")
    budget = budget_for(workload, 1.0, max_records=2**48)
    assert budget.pcost > 1.01 * budget_for(workload, 1.0).pcost
    assert share_within(plan(workload, budget, max_records=2**48), 1.0) == 1.0


def test_budget_for_marginal_matches_closed_form() -> None:
    """One block of column norm 1 with equal queries: pcost is 1 / variance."""
    workload = Workload(shapes.numeric(4)).add("a", "marginal")
    for wanted, share in itertools.product((1e-3, 0.25, 1.0, 100.0, 1e5), (0.01, 0.5, 1.0)):
        assert budget_for(workload, wanted, share).pcost == pytest.approx(wanted**-2, rel=1e-4)
    budget = budget_for(workload, 100.0, mechanism="hdmm", law="laplace")
    assert budget.pure_epsilon == pytest.approx(math.sqrt(2) / 100, rel=1e-5)
    assert budget_for(workload, 100.0, mechanism="laplace") == budget_for(
        workload, 100.0, mechanism="laplace", law="laplace"
    )


def test_budget_for_error_includes_rounding_variance(monkeypatch: pytest.MonkeyPatch) -> None:
    """The grid step is about one count here, so the variance differs from 1 / pcost."""
    result = plan(
        Workload(shapes.numeric(40, 30)).add(("a", "b"), "marginal"), Budget.pure(1.0), "identity"
    )
    trials: list[Budget] = []

    def recorded_at_budget(plan: Plan, budget: Budget) -> Plan:
        trials.append(budget)
        return at_budget(plan, budget)

    monkeypatch.setattr(fitness, "at_budget", recorded_at_budget)
    budget = checked_minimal_budget(result, 1e11, 1.0)
    # the search converges quickly although the variance is not proportional to 1 / pcost
    assert len(trials) <= 10
    # Laplace noise of standard error s without rounding needs epsilon sqrt(2) / s.
    epsilon_without_rounding = math.sqrt(2) / 1e11
    assert budget.pure_epsilon > 100 * epsilon_without_rounding


def test_budget_for_query_is_minimal() -> None:
    result = plan(WORKLOAD, ONE)
    # the count of the first two age groups of the first sex
    names = ("age", "sex")
    query = np.outer([1.0, 1.0, 0.0, 0.0, 0.0], [1.0, 0.0])
    for wanted in (2.5e-3, 2.5, 2.5e3):
        budget = analysis.budget_for_query(result, names, query, wanted)
        sufficient = plan(WORKLOAD, budget)
        assert sufficient.variance_of(names, query) <= wanted**2
        insufficient = plan(WORKLOAD, slightly_smaller(budget))
        assert insufficient.variance_of(names, query) > wanted**2
    with pytest.raises(PlanError, match="no noise"):
        analysis.budget_for_query(result, names, 0 * query, 1.0)
    for wanted in (0.0, [1.0, 2.0]):
        with pytest.raises(PlanError, match="error"):
            analysis.budget_for_query(result, names, query, wanted)


def test_budget_of_shape_fit_is_smaller() -> None:
    workload = (
        Workload(shapes.numeric(5, 3))
        .add("a", "prefix")
        .add(("a", "b"), "marginal")
        .add("b", "range")
    )
    targets = [0.5, 3.0, 1.0]
    scaled = budget_for(workload, targets, fit="scale")
    shaped = budget_for(workload, targets, fit="shape")
    assert shaped.pcost < 0.9 * scaled.pcost
    result = plan(workload, shaped, objective="max", targets=targets)
    assert share_within(result, targets) == 1.0
    assert result.achieved == pytest.approx(1.0, rel=1e-6)
    # The achieved value is the largest ratio of error to target.  By its certificate, no plan of
    # the same class reaches a ratio that is more than 1% smaller.
    assert result.certificate.lower_bound > 0.99


def test_budget_for_unmeasured_queries_is_refused() -> None:
    workload = Workload(shapes.numeric(4, 3)).add("a", "prefix").add("b", "marginal", weight=0.0)
    result = plan(workload, ONE)
    assert tolerance_for(result) == math.inf
    # 4 prefixes of a are measured, 3 cells of b are not
    measured_share = 4 / 7
    assert share_within(result, 1e9) == measured_share
    assert math.isfinite(tolerance_for(result, 0.5))
    for share in (measured_share + 0.01, 1.0):
        with pytest.raises(PlanError, match=r"only 57\.1%.* weight zero"):
            budget_for(workload, 1.0, share)
    checked_minimal_budget(result, 1.0, measured_share)
    with pytest.raises(NotAnswerable, match="group 1"):
        breakdown(result, 1)


@pytest.mark.parametrize(
    ("args", "word"),
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
def test_budget_for_invalid_arguments_is_refused(args: dict, word: str) -> None:
    with pytest.raises(PlanError, match=word):
        budget_for(shapes.mixed_three(), **({"targets": 1.0} | args))


def test_budget_for_unsupported_law_is_refused() -> None:
    with pytest.raises(NotApplicable):
        budget_for(shapes.mixed_three(), 1.0, law="laplace")


def test_invalid_tolerance_or_share_is_refused() -> None:
    result = plan(shapes.total_only(), ONE)
    for value in (0, -1.0, math.nan, "x", [1.0, 2.0]):
        with pytest.raises(PlanError, match="tolerance"):
            share_within(result, value)
    for value in (0, 1.01, None):
        with pytest.raises(PlanError, match="share"):
            tolerance_for(result, value)


@pytest.mark.parametrize(
    ("mechanism", "options", "family"),
    [
        ("querysmasher", {"centers": "tuned"}, "affine"),
        ("identity", {}, "marginal"),
        ("hdmm", {}, "marginal"),
        ("datacube", {}, "marginal"),
    ],
)
def test_budget_for_joint_strategies_is_minimal(mechanism: str, options: dict, family: str) -> None:
    workload = Workload(shapes.numeric(4, 3)).add(("a", "b"), family)
    workload = workload.add("a", "prefix" if family == "affine" else "marginal")
    target = 0.5
    budget = budget_for(workload, target, mechanism=mechanism, **options)
    result = plan(workload, budget, mechanism, **options)
    assert bool(result.split.unions) == (mechanism == "querysmasher")
    assert target * (1.0 - 1e-7) <= math.sqrt(result.max_variance) <= target
    checked_minimal_budget(result, 3.0, 0.6)


def test_breakdown_sums_to_query_variance(case: tuple[Plan, str, dict]) -> None:
    result, name, _ = case
    for number, group in enumerate(result.workload.groups):
        variances = result.variances(number)
        table = breakdown(result, number)
        assert table["variance"].sum() == pytest.approx(variances.mean(), rel=1e-9)
        assert table["share"].sum() == pytest.approx(1.0)
        assert table["share"].is_monotonic_decreasing
        # A strategy of these plans can measure several attribute sets, and so also attributes
        # outside the group.
        has_joint_strategies = name in ("hdmm", "optimum") or result.split.unions
        assert has_joint_strategies or all(
            set(attributes) <= set(group.attributes) for attributes in table["attributes"]
        )
        for query in {0, group.count // 2, group.count - 1}:
            terms = breakdown(result, number, query)["variance"]
            assert terms.sum() == pytest.approx(variances[query], rel=1e-9)
        assert variances[worst_query(result, number)] == variances.max()
        queries_per_attribute = [part.count for part in group.parts]
        worst_index = tuple(least_accurate_queries(result, number))
        worst_variance = variances.reshape(queries_per_attribute)[worst_index]
        assert worst_variance == pytest.approx(variances.max(), rel=1e-5)
        assert breakdown_text(result, number)
    assert worst_error(result) == pytest.approx(sorted_errors(result)[-1], rel=1e-9)


def test_worst_error_and_worst_tables_list_no_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    result = plan(WORKLOAD, ONE, cache=False)
    expected = result.by_group()
    monkeypatch.setattr(Plan, "by_group", lambda _: pytest.fail("a table of all groups was made"))
    assert worst_error(result) == expected["max_std"].max()
    worst = analysis.worst_tables(result, 2)
    assert worst["typical error"].tolist() == sorted(expected["rmse"], reverse=True)[:2]


def test_breakdown_text_summarizes_many_small_shares() -> None:
    names = "abcdefgh"
    workload = Workload(Schema([Attribute.of_size(name, 2) for name in names]))
    result = plan(
        workload.add(tuple(names), "marginal").add(("a", "b"), "prefix"), Budget(pcost=1.0)
    )
    assert breakdown_text(result, 0) == "Every term contributes less than 0.5%."


def test_breakdown_matches_noise_of_each_space() -> None:
    result = plan(WORKLOAD, ONE)
    names = ("age", "sex", "code")
    (number,) = (i for i, g in enumerate(WORKLOAD.groups) if g.attributes == names)
    query = 11
    table = breakdown(result, number, query)
    query_rows = [part.family.rows(part.sizes) for part in WORKLOAD.groups[number].parts]
    position = np.unravel_index(query, [len(rows) for rows in query_rows])
    chosen_rows = [rows[i] for rows, i in zip(query_rows, position, strict=True)]
    tensor = np.einsum("i,j,k->ijk", *chosen_rows)
    pieces = result.query_pieces(names, tensor)
    for space, variance in zip(table["attributes"], table["variance"], strict=True):
        block = result.blocks[space]
        pinv = np.ones((1, 1))
        for _, strategy in block.factors:
            pinv = np.kron(pinv, strategy.pinv)
        coefficients = pieces[space].ravel() @ pinv
        assert block.noise**2 * np.sum(coefficients**2) == pytest.approx(variance, rel=1e-8)


def test_breakdown_of_unknown_group_or_query_is_refused() -> None:
    result = plan(WORKLOAD, Budget(pcost=1.0))
    with pytest.raises(PlanError, match="number of the group"):
        breakdown(result, 99)
    with pytest.raises(PlanError, match="query 999"):
        breakdown(result, 0, 999)


def test_percent_rounded_down_never_rounds_up() -> None:
    expected = {
        0.9499999: "94.9%",
        0.95: "95.0%",
        1.0: "100.0%",
        0.9999999: "99.9%",
        0.29: "29.0%",
    }
    assert {share: fitness.percent_rounded_down(share) for share in expected} == expected


def test_breakdown_text_explains_measurement_on_more_attributes() -> None:
    schema = Schema(
        [Attribute.categorical(name, ["x", "y", "z"]) for name in ("region", "party", "sex")]
    )
    condition = Custom(predicates=["region == 'x' or party == 'y' or sex == 'z'"])
    workload = Workload(schema).add("sex", Custom(predicates=["sex == 'x'"]))
    workload = workload.add(("region", "party", "sex"), condition)
    joint = plan(workload, ONE, centers="tuned")
    assert breakdown_text(joint, 0) == (
        "100% of the variance comes from noise on region × party × sex. This table is computed from"
        " counts by region × party × sex: measuring them together lowers the error of the workload."
    )
    assert "interaction" in breakdown_text(joint, 1)
    one_table = plan(workload, ONE, "identity")
    assert breakdown_text(one_table, 0).endswith("sex, from which this table is computed.")
    assert breakdown_text(one_table, 1).endswith("region × party × sex.")
