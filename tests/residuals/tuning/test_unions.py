"""Unions of residual spaces: accuracy, explicit matrices, measurements, files."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from benchmarks.random_small import joint_workload, product_workload
from engine.errors import NotAnswerable, PlanError
from engine.ledger import Ledger
from engine.mechanisms import forecast, load_plan, plan
from engine.mechanisms.querysmasher import CENTERS
from engine.privacy import Budget
from engine.release import measure
from engine.release.measure import load_measurement
from engine.residuals import Complement, Factor, Split, SplitLift
from engine.residuals.basis import coordinate_positions, residual_coefficients
from engine.residuals.decomposition import decompose
from engine.residuals.search_cache import Search
from engine.residuals.tuning.unions import choose_unions, step_multiplications, unite
from engine.workload import Custom, Workload
from engine.workload.families import Random
from tests import oracles
from tests.mechanisms.checks import (
    check_any_query,
    check_certificate,
    check_round_trip,
    check_variances,
)
from tests.residuals.tuning.full_domain import full_domain_optimum, limit_unions
from tests.shapes import SHAPES, numeric

SOLVED = 1e-5  # relative RMSE that a stopped search may leave


def tuned(workload: Workload, **options: object):
    return plan(workload, Budget(pcost=1.0), centers="tuned", **options)


@pytest.mark.parametrize(("family", "n", "required"), [("abs", 5, 1.3685), ("affine", 10, 1.7395)])
def test_tuned_plan_joint_pair_is_optimal(family, n, required):
    workload = Workload(numeric(n, n)).add(("a", "b"), family)
    result = tuned(workload)
    assert result.rmse <= required
    assert result.rmse == pytest.approx(full_domain_optimum(workload), rel=1e-4)
    assert "whatsoever" in result.certificate.statement


@pytest.mark.parametrize("draw", [product_workload, joint_workload])
def test_tuned_plan_random_small_workloads_reach_optimum(draw):
    rng = np.random.default_rng(11)
    for _ in range(4):
        workload = draw(rng)
        bound = full_domain_optimum(workload)
        rmse = tuned(workload).weighted_rmse
        assert rmse <= plan(workload, Budget(pcost=1.0)).weighted_rmse * (1.0 + SOLVED)
        assert bound * (1.0 - 1e-9) <= rmse <= 1.005 * bound


UNION_SHAPES = ("nested", "cyclic", "mixed_three", "coupled_three", "all_affine_pairs", "arithmetic_predicates",
          "single_value")  # fmt: skip


def work_cases():
    """Yield pairs (shape, limit of multiplications per step of the union search).

    Ordinary runs test two of the three limits for each shape, full runs all.
    """
    for (s, shape), (w, work) in itertools.product(
        enumerate(UNION_SHAPES), enumerate((0, 4_000, 40_000))
    ):
        yield pytest.param(shape, work, marks=[pytest.mark.full] * ((s + w) % 3 == 1))


@pytest.mark.parametrize(("shape", "work"), list(work_cases()))
def test_partial_unions_match_explicit_matrices(shape, work, monkeypatch):
    """With a low work limit only some spaces are in unions."""
    limit_unions(monkeypatch, work)
    workload = SHAPES[shape]()
    result, rows = tuned(workload), oracles.workload_rows(workload)
    explicit = oracles.Explicit(result)
    assert result.weighted_rmse <= plan(workload, Budget(pcost=1.0)).weighted_rmse * (1.0 + SOLVED)
    check_privacy_upper_bound(result, explicit)
    check_variances(result, explicit, rows)
    check_any_query(result, explicit, rows)
    check_certificate(result)
    check_round_trip(result)


def check_privacy_upper_bound(result, explicit):
    """Check that each block costs as much as its matrix, and all matrices at most the plan."""
    for space, block in result.blocks.items():
        cost = explicit.block_pcost(space)
        assert cost <= block.pcost(result.max_records) <= cost * (1.0 + 1e-4)
    assert explicit.pcost <= result.pcost <= result.budget.pcost


def test_unions_less_work_gives_partial_unions(monkeypatch):
    cases = set()
    for work in (0, 40_000, 10**7):
        limit_unions(monkeypatch, work)
        for shape in ("nested", "all_affine_pairs"):
            result = tuned(SHAPES[shape]())
            has_unions = bool(result.split.unions)
            has_separate_blocks = len(result.blocks) > len(result.split.unions)
            cases.add((has_unions, has_separate_blocks))
    assert cases == {(False, True), (True, True), (True, False)}


def test_larger_work_limit_of_unions_lowers_error(monkeypatch):
    workload = SHAPES["all_affine_pairs"]()
    errors = []
    for max_multiplications in (0, 40_000, 10**7):
        limit_unions(monkeypatch, max_multiplications)
        errors.append(tuned(workload).weighted_rmse)
    without_unions, with_some, with_all = errors
    assert without_unions > with_some * (1.0 + 1e-4) > with_all * (1.0 + 2e-4)


def random_split(rng):
    """Return the sizes of three attributes, a random center of each, and a random complement.

    The complement belongs to the first two attributes.
    """
    sizes, centers = (3, 4, 2), []
    for n in sizes:
        raw = rng.uniform(0.2, 1.0, n)
        centers.append(raw / raw.sum())
    complement = Complement(
        by_axis=(rng.standard_normal((6, 2)), rng.standard_normal((6, 3))),
        by_total=rng.standard_normal(6),
    )
    return sizes, centers, complement


def test_split_lift_rows_of_coefficients_equal_query():
    rng = np.random.default_rng(2)
    sizes, centers, complement = random_split(rng)
    complements = {(0, 1): complement}
    spaces = ((), (0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2))
    rows = rng.standard_normal((5, 24))
    lift = SplitLift(sizes, centers, spaces, complements)
    columns = coordinate_positions(sizes, spaces)
    coordinates = residual_coefficients(rows, sizes, centers, complements)[:, columns]
    np.testing.assert_allclose(lift.rows(coordinates), rows, atol=1e-12)
    matrix, transpose = lift.rows(np.eye(24)), lift.table_coordinates(np.eye(24))
    np.testing.assert_allclose(transpose.T, matrix, atol=1e-12)


def test_unite_gram_matches_explicit_coefficients():
    rng = np.random.default_rng(4)
    sizes, centers, complement = random_split(rng)
    workload = (
        Workload(numeric(*sizes))
        .add(("b", "a"), "affine")
        .add(("c", "a"), "range", weight=2.0)
        .add(("a", "b", "c"), "prefix", query_weights=rng.uniform(0.5, 2.0, 24))
        .add("c", "prefix")
    )
    named_centers = dict(zip("abc", centers, strict=True))
    unions = {("a", "b"): ((), ("a",), ("a", "b"))}
    split = Split(centers=named_centers, complements={("a", "b"): complement}, unions=unions)
    parts = unite(decompose(workload, split), workload, split)
    number, scale = parts.spaces[("a", "b")]
    columns = coordinate_positions(sizes, ((), (0,), (0, 1)))
    expected = np.zeros((len(columns), len(columns)))
    for rows, weights in zip(
        oracles.workload_rows(workload), oracles.query_weights(workload), strict=True
    ):
        coordinates = residual_coefficients(rows, sizes, centers, {(0, 1): complement})[:, columns]
        expected += (coordinates * weights[:, None]).T @ coordinates
    (term,) = parts.subworkloads[number].terms
    ((_, factor),) = term.factors
    np.testing.assert_allclose(scale * parts.factors[factor].dense(), expected, atol=1e-10)
    other_spaces = {("b",), ("c",), ("a", "c"), ("b", "c"), ("a", "b", "c")}
    assert set(parts.spaces) == {("a", "b")} | other_spaces


def records():
    rng = np.random.default_rng(9)
    return pd.DataFrame(
        {name: rng.integers(0, n, 500) for name, n in zip("abc", (4, 3, 3), strict=True)}
    )


def test_union_measurement_is_exact_and_consistent():
    workload = (
        Workload(numeric(4, 3, 3))
        .add(("a", "b"), "prefix")
        .add(("b", "c"), "range")
        .add(("a", "c"), "affine")
    )
    result = plan(workload, Budget(pcost=1e10), centers="tuned")
    assert result.split.unions
    data = records()
    measurement = measure(result, data, rehearsal=True)
    table_ab, table_cb = measurement.marginal(("a", "b")), measurement.marginal(("c", "b"))
    exact = pd.crosstab(data["a"], data["b"]).to_numpy()
    np.testing.assert_allclose(table_ab, exact, atol=1e-2)
    np.testing.assert_allclose(table_ab.sum(axis=1), measurement.marginal(("a",)), atol=1e-7)
    np.testing.assert_allclose(table_ab.sum(axis=0), table_cb.sum(axis=0), atol=1e-7)
    np.testing.assert_allclose(measurement.marginal(("b", "a")), table_ab.T, atol=1e-7)
    with pytest.raises(NotAnswerable):
        measurement.marginal(("a", "c"))
    # the query "a + c <= 2", as coefficients and as query 2 of the last group
    coefficients = (np.add.outer(np.arange(4), np.arange(3)) <= 2).astype(float)
    answer = measurement.answer(("a", "c"), coefficients)
    exact_answer = int((data["a"] + data["c"] <= 2).sum())
    assert answer.answer == pytest.approx(exact_answer, abs=1e-2)
    affine_answers = measurement.answers(2)
    assert affine_answers["answer"][2] == pytest.approx(answer.answer, abs=1e-7)
    assert affine_answers["std"][2] == pytest.approx(answer.std, rel=1e-9)


def test_load_measurement_of_union_is_equal(tmp_path):
    result = tuned(Workload(numeric(4, 3, 3)).add(("a", "b"), "affine").add(("b", "c"), "prefix"))
    assert result.split.unions
    ledger = Ledger.create(tmp_path / "office.ledger")
    ledger.add_dataset("people", total=Budget(pcost=2.0))
    measurement = measure(result, records(), dataset="people", ledger=ledger)
    loaded = load_measurement(ledger, measurement.key)
    assert loaded.plan.split.unions == result.split.unions
    for i in range(2):
        pd.testing.assert_frame_equal(loaded.answers(i), measurement.answers(i))


def test_choose_unions_very_light_queries_have_no_union():
    schema = numeric(4, 3)
    light_group = Workload(schema).add("a", "prefix", weight=1e-12).add(("a", "b"), "affine")
    assert not choose_unions(light_group, tuple(decompose(light_group).spaces), 4e9)
    light_queries = (
        Workload(schema)
        .add("b", "prefix")
        .add("a", Custom([[1e5, 0, 0, 0], [0, 1, 0, 0], [1, 1, 0, 1]]))
    )
    for workload in (light_group, light_queries):
        assert np.isfinite(tuned(workload).rmse)


def test_union_with_light_queries_is_optimal():
    """Separate spaces would be 12% above the optimum."""
    light = Workload(numeric(5, 4)).add("a", "prefix", weight=1e-8).add(("a", "b"), "affine")
    result = tuned(light)
    assert result.weighted_rmse == pytest.approx(full_domain_optimum(light), rel=2e-5)
    check_variances(result, oracles.Explicit(result), oracles.workload_rows(light))
    check_round_trip(result)


def test_search_key_depends_on_split():
    """Equal Gram matrices with different spaces, centers or complements have different keys."""
    sizes, centers, complement = random_split(np.random.default_rng(6))
    factor = Factor(sizes=sizes[:2], matrix=np.eye(6))
    searches = [
        Search(factor=factor, centers=center_pair, complements=complements, spaces=spaces)
        for center_pair in ((None, None), (centers[0], None))
        for complements in (
            {},
            {(0, 1): complement},
            {(0, 1): replace(complement, by_total=np.zeros(6))},
        )
        for spaces in ((), ((), (0,), (1,), (0, 1)), ((1,), (0,), (0, 1)))
    ]
    assert len({s.key for s in searches}) == len(searches)
    assert len({s.shape for s in searches}) == len(searches)


def test_unite_equal_unions_share_subworkload():
    """Six of seven unions are equal up to the order of rows; another weight separates one."""
    workload = Workload.all_ways(numeric(*[25] * 8), (2,), "abs")
    spaces = decompose(workload).spaces
    unions = choose_unions(workload, tuple(spaces), 4e9)
    split = Split(centers={}, unions=unions)
    assert len(unions) == 7
    united = unite(decompose(workload), workload, split)
    assert len({united.spaces[attributes][0] for attributes in unions}) == 2
    equal_unions = [attributes for attributes, union in unions.items() if len(union) == 2]
    assert len(equal_unions) == 6
    other_weight = workload.add(equal_unions[0], "abs", weight=1e-3)
    united = unite(decompose(other_weight), other_weight, split)
    assert len({united.spaces[attributes][0] for attributes in equal_unions}) == 2


def test_unite_single_union_forms_no_dense_gram(monkeypatch):
    workload = Workload(numeric(9, 8)).add(("a", "b"), "affine")
    parts = decompose(workload)
    split = Split(centers={}, unions=choose_unions(workload, tuple(parts.spaces), 4e9))
    assert split.unions
    monkeypatch.setattr(Factor, "dense", lambda _: pytest.fail("a dense Gram was formed"))
    assert len(unite(parts, workload, split).subworkloads) == 1


def test_choose_unions_many_cells_few_queries_covers_all():
    """A union of 70 x 60 cells had a 5% smaller RMSE within 10 seconds."""
    workload = Workload(numeric(70, 60)).add(("a", "b"), Random(seed=1, count=800))
    spaces = tuple(decompose(workload, forecast=True).spaces)
    unions = choose_unions(workload, spaces, 4e9, lambda: math.inf, seconds_left=10.0)
    assert unions == {("a", "b"): spaces}


def test_choose_unions_one_large_attribute_has_none():
    """With tuned centers two separate spaces reach the optimum."""
    for n, has_union in ((40, True), (300, False)):
        workload = Workload(numeric(n)).add("a", "range")
        assert bool(choose_unions(workload, tuple(decompose(workload).spaces), 4e9)) == has_union
        result = plan(workload, Budget(pcost=1.0), centers="tuned")
        assert result.certificate.global_gap < 1e-4
    assert forecast(workload, centers="tuned").memory < 2e8


def test_union_from_cache_gives_equal_plan():
    workload = SHAPES["nested"]()
    first, repeated = tuned(workload), tuned(workload)
    assert first.split.unions == repeated.split.unions != {}
    assert first.to_json() == repeated.to_json()
    assert tuned(workload, cache=False).rmse == pytest.approx(first.rmse, rel=SOLVED)


@pytest.mark.parametrize("objective", ["max", "lp"])
def test_other_objectives_have_no_unions(objective):
    workload = Workload(numeric(4, 3)).add(("a", "b"), "affine").add("a", "prefix")
    result = tuned(workload, objective=objective)
    assert not result.split.unions
    check_round_trip(result)
    document = json.loads(result.to_json())
    union_of_all = [["a", "b"], [[], ["a"], ["b"], ["a", "b"]]]
    with pytest.raises(PlanError):
        load_plan(_changed(document, [union_of_all]))


def test_step_multiplications_respect_memory_limit():
    workload = SHAPES["all_affine_pairs"]()
    spaces = tuple(decompose(workload).spaces)
    assert step_multiplications(workload, ("a", "b", "c"), spaces, 1e9) < math.inf
    assert step_multiplications(workload, ("a", "b", "c"), spaces, 1e4) == math.inf
    assert forecast(workload, centers="tuned").memory > forecast(workload).memory
    wide = Workload(numeric(400, 400)).add(("a", "b"), "affine")
    spaces = ((), ("a",), ("b",), ("a", "b"))
    assert step_multiplications(wide, ("a", "b"), spaces, 4e9) == math.inf


def test_complements_of_product_pairs_lower_error(monkeypatch):
    limit_unions(monkeypatch)
    workload = (
        Workload(numeric(5, 5, 5))
        .add(("a", "b"), "affine")
        .add(("b", "c"), "prefix")
        .add("a", "prefix")
    )
    result = tuned(workload)
    assert result.split.complements
    monkeypatch.setattr("engine.residuals.tuning.tune.can_tune", lambda workload: False)
    without_complements = tuned(workload)
    assert result.rmse < without_complements.rmse


def test_forecast_tuned_counts_split_search():
    """A single union is cheap; sums of products and joint pairs need a long split search."""
    small = Workload(numeric(5, 5)).add(("a", "b"), "prefix").add(("a", "b"))
    seconds = {centers: forecast(small, centers=centers).seconds for centers in CENTERS}
    # The plan of `small` has one strategy for all residual spaces together.
    assert seconds["uniform"] < seconds["tuned"] < 0.1
    names = tuple("abcdefgh")
    plain = Workload(numeric(*[9] * 8)).add(names[:4]).add(names[4:])
    assert forecast(plain, centers="tuned").seconds < 0.3  # unions and a closed form of the centers
    for ways, family in (((1, 2), "marginal"), ((1,), "affine")):
        short = Workload.all_ways(numeric(*[30] * 8), ways, "prefix")
        longer = short.add(("a", "b"), family)
        extra_seconds = forecast(longer).seconds - forecast(short).seconds
        tuned_seconds = forecast(short, centers="tuned").seconds
        assert tuned_seconds < 1.0
        assert forecast(longer, centers="tuned").seconds > tuned_seconds + extra_seconds + 0.1


def test_forecast_unaffordable_complements_counts_center_search(monkeypatch):
    """Centers of joint pairs need more steps than complements: 11 seconds for three pairs."""
    workload = Workload.all_ways(numeric(30, 31, 32), (2,), "affine")
    with_complements = forecast(workload, centers="tuned").seconds
    monkeypatch.setattr("engine.residuals.tuning.tune.affordable", lambda *_: False)
    assert 1.5 * with_complements < forecast(workload, centers="tuned").seconds < 22.0


def _changed(document, unions):
    document["solved"]["unions"] = unions
    return json.dumps(document)


@pytest.mark.parametrize(
    "unions",
    [
        [],
        7,
        [[["a", "b"], [["a"], ["b"]]]],
        [[["b", "a"], [[], ["a"], ["b"], ["a", "b"]]]],
        [[["a", "b"], [[], ["a"], ["a"], ["b"], ["a", "b"]]]],
        [[["a", "b"], [[], ["a"], ["z"], ["a", "b"]]]],
        [[["a"], [[], ["a"], ["b"], ["a", "b"]]]],
        [[["a", "b"], []]],
    ],
)
def test_load_plan_tampered_unions_is_refused(unions):
    result = tuned(Workload(numeric(3, 3)).add(("a", "b"), "affine").add("a", "prefix"))
    document = json.loads(result.to_json())
    assert document["solved"]["unions"] == [[["a", "b"], [[], ["a"], ["b"], ["a", "b"]]]]
    with pytest.raises(PlanError):
        load_plan(_changed(document, unions))
