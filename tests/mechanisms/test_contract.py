"""One suite for every mechanism: what a plan says is what its explicit matrices do, over many shapes of workloads."""

import itertools
import math
from collections import Counter

import pytest

import engine.mechanisms.registry
from engine.errors import Cancelled
from engine.mechanisms import plan
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

pytestmark = pytest.mark.usefixtures("toy_is_known", "few_levels")

OPTIMAL = [pytest.param("querysmasher", {}, id="querysmasher")]  # plans that are the best of their class


@pytest.mark.parametrize(
    ("mechanism", "options", "shape", "setting"),
    [pytest.param(*CASES[k].values, *more, id="-".join([CASES[k].id, *more])) for k, *more in DESIGN],
)
def test_plan_is_what_its_matrices_do(mechanism, options, shape, setting):
    check_request_of(mechanism, options, shape, setting)


@pytest.mark.full
@every_shape
@every_case
def test_plan_is_what_its_matrices_do_in_every_setting(mechanism, options, shape):
    for setting in SETTINGS:
        check_request_of(mechanism, options, shape, setting)


def test_the_design_holds_every_pair():
    cases = [case.values for case in CASES]
    rows = [(kind_of(*cases[k]), k, shape, setting) for k, shape, setting in DESIGN]
    kinds, everything = {kind_of(*case) for case in cases}, [range(len(CASES)), SHAPES, SETTINGS]
    assert {(kind, shape) for kind, _, shape, _ in rows} == set(itertools.product(kinds, SHAPES))
    for one, two in ((0, 2), (1, 2)):
        found = {(row[one + 1], row[two + 1]) for row in rows}
        assert found == set(itertools.product(everything[one], everything[two]))
    assert kinds > {m.name for m in MECHANISMS}
    assert min(Counter(k for _, k, _, _ in rows).values()) >= 8
    assert all((m.name, options) in cases for m in MECHANISMS for options in m.variants)


@pytest.mark.parametrize(("mechanism", "options"), OPTIMAL)
@every_shape
def test_optimal_plans_are_optimal(mechanism, options, shape):
    made, _ = planned(mechanism, options, shape)
    assert made.certificate.gap <= SLACK
    if shape != "wide":
        check_optimal(made, optimum_of(shape))


@every_shape
def test_tuned_centers_are_never_worse(shape):
    made, _ = planned("querysmasher", {}, shape)
    tuned, _ = planned("querysmasher", {"centers": "tuned"}, shape)
    assert tuned.weighted_rmse <= made.weighted_rmse * (1 + SLACK)
    assert tuned.certificate.gap <= SLACK
    assert all(pi.sum() == pytest.approx(1) for pi in tuned.split.centers.values())


@every_case
def test_mechanism_serves_something(mechanism, options):
    case = [c.values for c in CASES].index((mechanism, options))
    made = (planned(mechanism, options, *row)[1] for k, *row in DESIGN if k == case)
    assert len(list(itertools.islice(filter(None, made), 3))) == 3


def test_free_queries_of_both_kinds_were_tried():
    counts = [check_any_query(*planned("querysmasher", {}, s), rows_of(s)) for s in SHAPES]
    assert sum(answered for answered, _ in counts) > 60
    assert sum(refused for _, refused in counts) > 20


@every_case
def test_hash_names_the_request(mechanism, options):
    def hashed(weight=1.0, budget=1.0, **more):
        asked = Workload(shapes.numeric(4, 3)).add(("a", "b"), "marginal", weight=weight).add("a", "marginal")
        return plan(asked, budget_for(mechanism, budget), mechanism, **options, **more).hash

    assert hashed() == hashed()
    assert len({hashed(), hashed(weight=2.0), hashed(budget=2.0), hashed(max_records=1000)}) == 4


@pytest.mark.parametrize("stop_at", [1, 2, 5])
@every_case
def test_progress_cancels(mechanism, options, stop_at):
    if stop_at == 5 and (mechanism not in RESIDUAL or options):
        return  # a fixed strategy, or one search on the whole domain, may be there after two steps
    heard = []

    def listen(fraction, text):
        heard.append(fraction)
        assert 0 <= fraction <= 1
        assert isinstance(text, str)
        assert text
        return len(heard) < stop_at

    with pytest.raises(Cancelled):
        plan(workload_for(mechanism, "cyclic"), budget_for(mechanism, 1.0), mechanism, progress=listen, **options)
    assert len(heard) == stop_at


@every_case
def test_progress_rises_to_one(mechanism, options):
    heard = []
    plan(
        workload_for(mechanism, "cyclic"),
        budget_for(mechanism, 1.0),
        mechanism,
        progress=lambda f, _: heard.append(f),
        **options,
    )
    assert heard == sorted(heard)
    assert heard[-1] == 1.0


@pytest.mark.parametrize("shape", ["symmetric", "mixed_three", "cyclic"])
def test_a_search_that_was_stopped_says_so(shape):
    made, _ = planned("querysmasher", {}, shape, "no time")
    assert "time limit" in made.certificate.statement
    assert made.certificate.gap > SLACK


def test_alternation_is_honest_and_kept_on_file():
    shape = "coupled"
    made = plan(workload_of(shape), Budget(pcost=1.0), memory_limit=9_000.0)
    explicit = oracles.explicit(made)
    assert "alternating" in made.certificate.statement
    check_privacy(made, explicit)
    check_variances(made, explicit, rows_of(shape))
    check_certificate(made, optimum_of(shape))
    assert all(len(axes) == 1 for axes, _ in made.blocks[("a", "b")].factors)
    check_round_trip(made)


@pytest.mark.parametrize("shape", ["nested", "custom_matrix", "coupled"])
def test_forecast_needs_no_solve_and_is_finite(shape):
    from engine.mechanisms import forecast

    found = forecast(workload_of(shape))
    assert 0 < found.seconds < 10
    assert 0 < found.memory < 1e9
    assert found.text


def test_shapes_are_what_they_claim():
    assert all(math.prod(a.size for a in f().schema.attributes) <= 600 for f in SHAPES.values())
    families = {p.family.name for f in SHAPES.values() for g in f().groups for p in g.parts}
    assert families == {f.name for f in engine.FAMILIES}
    coupled = decompose(workload_of("coupled"))
    assert max(len(merge_terms(s, coupled.factors)) for s in coupled.subworkloads) == 2
    assert any(len(list(itertools.chain(g.attributes))) == 0 for g in workload_of("empty_set").groups)
