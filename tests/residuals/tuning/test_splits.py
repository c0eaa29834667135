"""Spaces measured together: never above the published split, never below what is possible, exact throughout."""

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
from engine.residuals.basis import pieces, positions
from engine.residuals.decomposition import decompose
from engine.residuals.strategy_search import Search
from engine.residuals.tuning.unions import choose_unions, unite, work_of
from engine.workload import Custom, Workload
from tests import oracles
from tests.mechanisms.checks import check_any_query, check_certificate, check_round_trip, check_variances
from tests.residuals.tuning.full_domain import full_domain_optimum
from tests.shapes import SHAPES, numeric

SOLVED = 1e-5  # relative RMSE that a stopped search may leave


def tuned(workload: Workload, **options: object):
    return plan(workload, Budget(pcost=1.0), centers="tuned", **options)


@pytest.mark.parametrize(("family", "n", "required"), [("abs", 5, 1.3685), ("affine", 10, 1.7395)])
def test_one_joint_pair_is_kept_whole(family, n, required):
    workload = Workload(numeric(n, n)).add(("a", "b"), family)
    made = tuned(workload)
    assert made.rmse <= required
    assert made.rmse == pytest.approx(full_domain_optimum(workload), rel=1e-4)
    assert "whatsoever" in made.certificate.statement


@pytest.mark.parametrize("draw", [product_workload, joint_workload])
def test_random_small_workloads_reach_the_global_optimum(draw):
    rng = np.random.default_rng(11)
    for _ in range(4):
        workload = draw(rng)
        bound = full_domain_optimum(workload)
        found = tuned(workload).weighted_rmse
        assert found <= plan(workload, Budget(pcost=1.0)).weighted_rmse * (1.0 + SOLVED)
        assert bound * (1.0 - 1e-9) <= found <= 1.005 * bound


UNITED = ("nested", "cyclic", "mixed_three", "coupled_three", "all_affine_pairs", "arithmetic_predicates",
          "single_value")  # fmt: skip


def two_works_each():
    """Shapes with two of three works by turns; all of them in full runs."""
    for (s, shape), (w, work) in itertools.product(enumerate(UNITED), enumerate((0, 4_000, 40_000))):
        yield pytest.param(shape, work, marks=[pytest.mark.full] * ((s + w) % 3 == 1))


@pytest.mark.parametrize(("shape", "work"), list(two_works_each()))
def test_partial_unions_are_what_their_matrices_do(shape, work, monkeypatch):
    """With less work allowed some spaces are measured together and some apart, with centers and complements."""
    monkeypatch.setattr("engine.residuals.tuning.unions.WORK", work)
    monkeypatch.setattr("engine.residuals.tuning.unions.MAX_FULL_DOMAIN_FLOPS", 0)
    workload = SHAPES[shape]()
    made, rows = tuned(workload), oracles.workload_rows(workload)
    explicit = oracles.Explicit(made)
    assert made.weighted_rmse <= plan(workload, Budget(pcost=1.0)).weighted_rmse * (1.0 + SOLVED)
    check_privacy_from_above(made, explicit)
    check_variances(made, explicit, rows)
    check_any_query(made, explicit, rows)
    check_certificate(made)
    check_round_trip(made)


def check_privacy_from_above(made, explicit):
    """The stated cost is the sum of the blocks' costs, which the explicit matrices never pass."""
    for space, block in made.blocks.items():
        cost = explicit.block_pcost(space)
        assert cost <= block.pcost(made.max_records) <= cost * (1.0 + 1e-4)
    assert explicit.pcost <= made.pcost <= made.budget.pcost


def test_less_work_gives_partial_unions(monkeypatch):
    kinds = set()
    for work in (0, 40_000, 10**7):
        monkeypatch.setattr("engine.residuals.tuning.unions.WORK", work)
        monkeypatch.setattr("engine.residuals.tuning.unions.MAX_FULL_DOMAIN_FLOPS", 0)
        for shape in ("nested", "all_affine_pairs"):
            made = tuned(SHAPES[shape]())
            kinds.add((bool(made.split.unions), len(made.blocks) > len(made.split.unions)))
    assert kinds == {(False, True), (True, True), (True, False)}


def test_more_work_is_never_less_accurate(monkeypatch):
    workload, found = SHAPES["all_affine_pairs"](), []
    for work in (0, 40_000, 10**7):
        monkeypatch.setattr("engine.residuals.tuning.unions.WORK", work)
        monkeypatch.setattr("engine.residuals.tuning.unions.MAX_FULL_DOMAIN_FLOPS", 0)
        found.append(tuned(workload).weighted_rmse)
    assert found[0] > found[1] * (1.0 + 1e-4) > found[2] * (1.0 + 2e-4)


def some_split(rng):
    """Centers of three attributes and a complement of the first two, all far from uniform."""
    sizes, centers = (3, 4, 2), []
    for n in sizes:
        raw = rng.uniform(0.2, 1.0, n)
        centers.append(raw / raw.sum())
    complement = Complement(
        by_axis=(rng.standard_normal((6, 2)), rng.standard_normal((6, 3))), by_total=rng.standard_normal(6)
    )
    return sizes, centers, complement


def test_pieces_times_lifts_are_the_query():
    rng = np.random.default_rng(2)
    sizes, centers, complement = some_split(rng)
    spaces = ((), (0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2))
    rows = rng.standard_normal((5, 24))
    lift = SplitLift(sizes, centers, spaces, {(0, 1): complement})
    asked = pieces(rows, sizes, centers, {(0, 1): complement})[:, positions(sizes, spaces)]
    np.testing.assert_allclose(lift.rows(asked), rows, atol=1e-12)
    np.testing.assert_allclose(lift.classes(np.eye(24)).T, lift.rows(np.eye(24)), atol=1e-12)


def test_gram_of_a_union_is_that_of_its_pieces():
    rng = np.random.default_rng(4)
    sizes, centers, complement = some_split(rng)
    workload = Workload(numeric(*sizes)).add(("b", "a"), "affine").add(("c", "a"), "range", weight=2.0)
    workload = workload.add(("a", "b", "c"), "prefix", query_weights=rng.uniform(0.5, 2.0, 24)).add("c", "prefix")
    given = dict(zip("abc", centers, strict=True))
    unions = {("a", "b"): ((), ("a",), ("a", "b"))}
    split = Split(centers=given, complements={("a", "b"): complement}, unions=unions)
    parts = unite(decompose(workload, split), workload, split)
    number, scale = parts.spaces[("a", "b")]
    sub = parts.subworkloads[number]
    kept = positions(sizes, ((), (0,), (0, 1)))
    expected = np.zeros((len(kept), len(kept)))
    for rows, weights in zip(oracles.workload_rows(workload), oracles.query_weights(workload), strict=True):
        asked = pieces(rows, sizes, centers, {(0, 1): complement})[:, kept]
        expected += (asked * weights[:, None]).T @ asked
    np.testing.assert_allclose(scale * parts.factors[sub.terms[0].factors[0][1]].dense(), expected, atol=1e-10)
    assert set(parts.spaces) == {("a", "b"), ("b",), ("c",), ("a", "c"), ("b", "c"), ("a", "b", "c")}


def records():
    rng = np.random.default_rng(9)
    return pd.DataFrame({name: rng.integers(0, n, 500) for name, n in zip("abc", (4, 3, 3), strict=True)})


def test_release_of_a_union_answers_and_its_tables_agree():
    workload = Workload(numeric(4, 3, 3)).add(("a", "b"), "prefix").add(("b", "c"), "range").add(("a", "c"), "affine")
    made = plan(workload, Budget(pcost=1e10), centers="tuned")
    assert made.split.unions
    found, data = measure(made, records(), rehearsal=True), records()
    exact = pd.crosstab(data["a"], data["b"]).to_numpy()
    np.testing.assert_allclose(found.marginal(("a", "b")), exact, atol=1e-2)
    np.testing.assert_allclose(found.marginal(("b", "a")).sum(axis=0), found.marginal(("a",)), atol=1e-7)
    np.testing.assert_allclose(
        found.marginal(("c", "b")).sum(axis=0), found.marginal(("a", "b")).sum(axis=0), atol=1e-7
    )
    with pytest.raises(NotAnswerable):
        found.marginal(("a", "c"))
    answer = found.answer(("a", "c"), (np.add.outer(np.arange(4), np.arange(3)) <= 2).astype(float))
    assert answer.answer == pytest.approx(int((data["a"] + data["c"] <= 2).sum()), abs=1e-2)
    asked = found.answers(2)
    assert asked["answer"][2] == pytest.approx(answer.answer, abs=1e-7)
    assert asked["std"][2] == pytest.approx(answer.std, rel=1e-9)


def test_a_stored_release_of_a_union_is_read_back(tmp_path):
    made = tuned(Workload(numeric(4, 3, 3)).add(("a", "b"), "affine").add(("b", "c"), "prefix"))
    assert made.split.unions
    ledger = Ledger.create(tmp_path / "office.ledger")
    ledger.add_dataset("people", total=Budget(pcost=2.0))
    found = measure(made, records(), dataset="people", ledger=ledger)
    again = load_measurement(ledger, found.key)
    assert again.plan.split.unions == made.split.unions
    for group in range(2):
        pd.testing.assert_frame_equal(again.answers(group), found.answers(group))


def test_queries_that_drown_in_a_union_are_measured_apart():
    schema = numeric(4, 3)
    light = Workload(schema).add("a", "prefix", weight=1e-12).add(("a", "b"), "affine")
    assert not choose_unions(light, tuple(decompose(light).spaces), 4e9)
    small = Workload(schema).add("b", "prefix").add("a", Custom([[1e5, 0, 0, 0], [0, 1, 0, 0], [1, 1, 0, 1]]))
    for workload in (light, small):
        assert np.isfinite(tuned(workload).rmse)


def test_light_queries_do_not_keep_heavy_ones_from_being_measured_together():
    """Spaces measured apart are 12% above the optimum of all mechanisms here; the light ones are as exact as said."""
    light = Workload(numeric(5, 4)).add("a", "prefix", weight=1e-8).add(("a", "b"), "affine")
    made = tuned(light)
    assert made.weighted_rmse == pytest.approx(full_domain_optimum(light), rel=2e-5)
    check_variances(made, oracles.Explicit(made), oracles.workload_rows(light))
    check_round_trip(made)


def test_searches_of_unions_are_told_apart():
    """Equal Grams on one table have other strategies when they are about other spaces, centers or complements."""
    sizes, centers, complement = some_split(np.random.default_rng(6))
    factor = Factor(sizes=sizes[:2], matrix=np.eye(6))
    searches = [
        Search(factor=factor, centers=given, complements=passed, spaces=spaces)
        for given in ((None, None), (centers[0], None))
        for passed in ({}, {(0, 1): complement}, {(0, 1): replace(complement, by_total=np.zeros(6))})
        for spaces in ((), ((), (0,), (1,), (0, 1)), ((1,), (0,), (0, 1)))
    ]
    assert len({s.key for s in searches}) == len({s.shape for s in searches}) == len(searches)


def test_unions_alike_are_searched_once():
    """Six of seven unions ask the same, with rows in another order; a heavier group is another union."""
    workload = Workload.all_ways(numeric(*[25] * 8), (2,), "abs")
    spaces = decompose(workload).spaces
    unions = choose_unions(workload, tuple(spaces), 4e9)
    split = Split(centers={}, unions=unions)
    assert len(unions) == 7
    united = unite(decompose(workload), workload, split)
    assert len({united.spaces[attributes][0] for attributes in unions}) == 2
    names = [name for name in unions if len(unions[name]) == 2]
    heavier = workload.add(names[0], "abs", weight=1e-3)
    united = unite(decompose(heavier), heavier, split)
    assert len({united.spaces[attributes][0] for attributes in names}) == 2


def test_many_queries_on_one_attribute_are_not_gone_through():
    """The total and the rest, with the right center, are as exact as one strategy for both."""
    for n, whole in ((40, True), (300, False)):
        workload = Workload(numeric(n)).add("a", "range")
        assert bool(choose_unions(workload, tuple(decompose(workload).spaces), 4e9)) == whole
        bare = plan(workload, Budget(pcost=1.0), centers="tuned")
        assert bare.certificate.global_gap < 1e-4
    assert forecast(workload, centers="tuned").memory < 2e8


def test_a_union_from_the_cache_is_the_same_plan():
    workload = SHAPES["nested"]()
    first, again = tuned(workload), tuned(workload)
    assert first.split.unions == again.split.unions != {}
    assert first.to_json() == again.to_json()
    assert tuned(workload, cache=False).rmse == pytest.approx(first.rmse, rel=SOLVED)


@pytest.mark.parametrize("objective", ["max", "lp"])
def test_other_objectives_measure_spaces_apart(objective):
    workload = Workload(numeric(4, 3)).add(("a", "b"), "affine").add("a", "prefix")
    made = tuned(workload, objective=objective)
    assert not made.split.unions
    check_round_trip(made)
    document = json.loads(made.to_json())
    with pytest.raises(PlanError):
        load_plan(_changed(document, [[["a", "b"], [[], ["a"], ["b"], ["a", "b"]]]]))


def test_memory_limits_unions():
    workload = SHAPES["all_affine_pairs"]()
    spaces = tuple(decompose(workload).spaces)
    assert work_of(workload, ("a", "b", "c"), spaces, 1e9) < math.inf
    assert work_of(workload, ("a", "b", "c"), spaces, 1e4) == math.inf
    assert forecast(workload, centers="tuned").memory > forecast(workload).memory
    wide = Workload(numeric(400, 400)).add(("a", "b"), "affine")
    assert work_of(wide, ("a", "b"), ((), ("a",), ("b",), ("a", "b")), 4e9) == math.inf


def test_pairs_of_products_beside_joint_ones_have_complements_when_they_are_better(monkeypatch):
    monkeypatch.setattr("engine.residuals.tuning.unions.WORK", 0)
    monkeypatch.setattr("engine.residuals.tuning.unions.MAX_FULL_DOMAIN_FLOPS", 0)
    workload = Workload(numeric(5, 5, 5)).add(("a", "b"), "affine").add(("b", "c"), "prefix").add("a", "prefix")
    made = tuned(workload)
    monkeypatch.setattr("engine.residuals.tuning.tune.can_tune", lambda workload: False)
    assert made.split.complements
    assert made.rmse < tuned(workload).rmse


def test_forecasts_of_tuned_plans_follow_the_work():
    """A union by itself is next to nothing; sums of products and joint pairs are searched for a split at length."""
    small = Workload(numeric(5, 5)).add(("a", "b"), "prefix").add(("a", "b"))
    seconds = {centers: forecast(small, centers=centers).seconds for centers in CENTERS}
    assert seconds["uniform"] < seconds["tuned"] < 0.1  # one union of all
    names = tuple("abcdefgh")
    plain = Workload(numeric(*[9] * 8)).add(names[:4]).add(names[4:])
    assert forecast(plain, centers="tuned").seconds < 0.3  # unions beside a short way to the centers
    for ways, family in (((1, 2), "marginal"), ((1,), "affine")):
        short = Workload.all_ways(numeric(*[30] * 8), ways, "prefix")
        longer = short.add(("a", "b"), family)
        more = forecast(longer).seconds - forecast(short).seconds
        assert forecast(short, centers="tuned").seconds < 1.0
        assert forecast(longer, centers="tuned").seconds > forecast(short, centers="tuned").seconds + more + 0.1


def test_a_forecast_counts_the_long_search_where_complements_take_too_much(monkeypatch):
    """Centers for rows on two attributes take many more steps than complements: 11 seconds on three such pairs."""
    asked = Workload.all_ways(numeric(30, 31, 32), (2,), "affine")
    usual = forecast(asked, centers="tuned").seconds
    monkeypatch.setattr("engine.residuals.tuning.tune.affordable", lambda *_: False)
    assert 1.5 * usual < forecast(asked, centers="tuned").seconds < 22.0


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
def test_tampered_unions_are_refused(unions):
    made = tuned(Workload(numeric(3, 3)).add(("a", "b"), "affine").add("a", "prefix"))
    document = json.loads(made.to_json())
    assert document["solved"]["unions"] == [[["a", "b"], [[], ["a"], ["b"], ["a", "b"]]]]
    with pytest.raises(PlanError):
        load_plan(_changed(document, unions))
