"""Contract of every mechanism: plans agree with their explicit matrices."""

import itertools
from collections import Counter

import pytest

import engine.mechanisms.registry
from engine.errors import Cancelled
from engine.mechanisms import forecast, plan
from engine.mechanisms.registry import MECHANISMS
from engine.privacy import Budget
from engine.residuals.decomposition import decompose, merge_terms
from engine.workload import Workload
from tests import oracles, shapes
from tests.mechanisms.checks import (
    SLACK,
    check_any_query,
    check_certificate,
    check_optimal,
    check_privacy,
    check_round_trip,
    check_variances,
)
from tests.mechanisms.requests import (
    CASES,
    DESIGN,
    RESIDUAL,
    SETTINGS,
    budget_for,
    check_request_of,
    every_case,
    every_shape,
    kind_of,
    optimum_of,
    planned,
    rows_of,
    workload_for,
    workload_of,
)
from tests.shapes import SHAPES

pytestmark = pytest.mark.usefixtures("toy_is_registered", "few_levels")


@pytest.mark.parametrize(
    ("mechanism", "options", "shape", "setting"),
    [
        pytest.param(*CASES[case].values, shape, setting, id=f"{CASES[case].id}-{shape}-{setting}")
        for case, shape, setting in DESIGN
    ],
)
def test_plan_matches_explicit_matrices(mechanism, options, shape, setting):
    check_request_of(mechanism, options, shape, setting)


@pytest.mark.full
@every_shape
@every_case
def test_plan_every_setting_matches_explicit_matrices(mechanism, options, shape):
    for setting in SETTINGS:
        check_request_of(mechanism, options, shape, setting)


def test_design_covers_all_pairs():
    requests = [case.values for case in CASES]
    kinds = [kind_of(mechanism, options) for mechanism, options in requests]
    cases = range(len(CASES))
    kind_shapes = {(kinds[case], shape) for case, shape, _ in DESIGN}
    assert kind_shapes == set(itertools.product(kinds, SHAPES))
    case_settings = {(case, setting) for case, _, setting in DESIGN}
    assert case_settings == set(itertools.product(cases, SETTINGS))
    shape_settings = {(shape, setting) for _, shape, setting in DESIGN}
    assert shape_settings == set(itertools.product(SHAPES, SETTINGS))
    assert set(kinds) > {m.name for m in MECHANISMS}
    assert min(Counter(case for case, _, _ in DESIGN).values()) >= 8
    assert all((m.name, options) in requests for m in MECHANISMS for options in m.variants)


@every_shape
def test_querysmasher_plan_reaches_class_optimum(shape):
    result, _ = planned("querysmasher", {}, shape)
    assert result.certificate.gap <= SLACK
    if shape != "wide":
        check_optimal(result, optimum_of(shape))


@every_shape
def test_tuned_centers_do_not_raise_error(shape):
    result, _ = planned("querysmasher", {}, shape)
    tuned, _ = planned("querysmasher", {"centers": "tuned"}, shape)
    assert tuned.weighted_rmse <= result.weighted_rmse * (1 + SLACK)
    assert tuned.certificate.gap <= SLACK
    assert all(pi.sum() == pytest.approx(1) for pi in tuned.split.centers.values())


@every_case
def test_mechanism_plans_at_least_three_workloads(mechanism, options):
    plans = 0
    for case, shape, setting in DESIGN:
        if CASES[case].values == (mechanism, options):
            _, explicit = planned(mechanism, options, shape, setting)
            plans += explicit is not None  # None if planning is refused
        if plans == 3:
            return
    pytest.fail(f"{plans} workloads were planned")


def test_check_any_query_covers_answered_and_refused_queries():
    counts = [
        check_any_query(*planned("querysmasher", {}, shape), rows_of(shape)) for shape in SHAPES
    ]
    assert sum(answered for answered, _ in counts) > 60
    assert sum(refused for _, refused in counts) > 20


@every_case
def test_plan_hash_depends_on_request(mechanism, options):
    def plan_hash(weight=1.0, budget=1.0, **more):
        workload = (
            Workload(shapes.numeric(4, 3))
            .add(("a", "b"), "marginal", weight=weight)
            .add("a", "marginal")
        )
        return plan(workload, budget_for(mechanism, budget), mechanism, **options, **more).hash

    assert plan_hash() == plan_hash()
    assert (
        len(
            {plan_hash(), plan_hash(weight=2.0), plan_hash(budget=2.0), plan_hash(max_records=1000)}
        )
        == 4
    )


@pytest.mark.parametrize(
    ("mechanism", "options", "stop_at"),
    [
        pytest.param(*case.values, stop_at, id=f"{case.id}-{stop_at}", marks=case.marks)
        for case in CASES
        # a fixed strategy and a single search on the full domain report fewer than five steps
        for stop_at in ((1, 2, 5) if case.values[0] in RESIDUAL and not case.values[1] else (1, 2))
    ],
)
def test_plan_progress_false_cancels(mechanism, options, stop_at):
    fractions = []

    def record(fraction, text):
        fractions.append(fraction)
        assert 0 <= fraction <= 1
        assert isinstance(text, str)
        assert text
        return len(fractions) < stop_at

    with pytest.raises(Cancelled):
        plan(
            workload_for(mechanism, "cyclic"),
            budget_for(mechanism, 1.0),
            mechanism,
            progress=record,
            **options,
        )
    assert len(fractions) == stop_at


@every_case
def test_plan_progress_increases_to_one(mechanism, options):
    fractions = []
    plan(
        workload_for(mechanism, "cyclic"),
        budget_for(mechanism, 1.0),
        mechanism,
        progress=lambda f, _: fractions.append(f),
        **options,
    )
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0


@pytest.mark.parametrize("shape", ["symmetric", "mixed_three", "cyclic"])
def test_certificate_states_exceeded_time_limit(shape):
    result, _ = planned("querysmasher", {}, shape, "no time")
    assert "time limit" in result.certificate.statement
    assert result.certificate.gap > SLACK


def test_alternating_plan_matches_matrices_and_round_trips():
    shape = "coupled"
    result = plan(workload_of(shape), Budget(pcost=1.0), memory_limit=9_000.0)
    explicit = oracles.explicit(result)
    assert "alternating" in result.certificate.statement
    check_privacy(result, explicit)
    check_variances(result, explicit, rows_of(shape))
    check_certificate(result, optimum_of(shape))
    assert all(len(axes) == 1 for axes, _ in result.blocks[("a", "b")].factors)
    check_round_trip(result)


@pytest.mark.parametrize("shape", ["nested", "custom_matrix", "coupled"])
def test_forecast_of_small_workload_is_positive_and_small(shape):
    expected = forecast(workload_of(shape))
    assert 0 < expected.seconds < 10
    assert 0 < expected.memory < 1e9
    assert expected.text


def test_shapes_cover_families_and_couplings():
    workloads = [workload_of(shape) for shape in SHAPES]
    assert max(workload.schema.size for workload in workloads) <= 600
    groups = [group for workload in workloads for group in workload.groups]
    families = {part.family.name for group in groups for part in group.parts}
    assert families == {family.name for family in engine.FAMILIES}
    coupled = decompose(workload_of("coupled"))
    # the Gram matrix of some residual space is not a Kronecker product, but a sum of two
    assert max(len(merge_terms(sub, coupled.factors)) for sub in coupled.subworkloads) == 2
    assert any(not group.attributes for group in workload_of("empty_set").groups)


def test_residualplanner_statement_notes_queries_other_than_marginals():
    schema = shapes.numeric(6, 4)
    marginals = Workload.all_ways(schema, (1, 2), "marginal")
    note = "designed for marginals"
    for workload, has_note in ((marginals, False), (marginals.add("a", "prefix"), True)):
        result = plan(workload, Budget(pcost=1.0), "residualplanner", cache=False)
        assert (note in result.certificate.statement) == has_note
