"""Tuned splits keep the limits, never fail where uniform centers do not, and are never worse than those."""

from __future__ import annotations

import functools
import itertools
import json
import math
import subprocess
import sys
import time
import tracemalloc

import numpy as np
import pytest

from benchmarks.random_limits import draw
from benchmarks.tuned import cube
from engine.bounds.lower_bounds import exact_bound
from engine.mechanisms import forecast, load_plan, plan
from engine.mechanisms.querysmasher import _in_time, _united
from engine.mechanisms.residual_base import CandidatePlan
from engine.privacy import Budget
from engine.residuals import DualProblem, Split
from engine.residuals.decomposition import decompose
from engine.residuals.tuning.center_objective import Allowance
from engine.residuals.tuning.unions import (
    ENTRIES,
    choose_unions,
    rows_of_union,
    strategy_seconds,
    union_seconds,
    work_of,
)
from engine.workload import Custom, Workload
from engine.workload.families import Random
from tests.pairs import pairwise
from tests.shapes import numeric

SMALL_CHANGE = 20e6  # bytes that planning takes beside matrices


def made(workload: Workload, **options: object):
    return plan(workload, Budget(pcost=1.0), cache=False, **options)


@functools.cache
def traced(workload: Workload, limit: float):
    """A tuned plan after a short search, and the bytes that it took."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("engine.residuals.tuning.tune.STEPS", 2)
        patch.setattr("engine.residuals.tuning.complements.POWERS", {16.0: 2})
        tracemalloc.start()
        try:
            found = made(workload, centers="tuned", memory_limit=limit)
            return found, tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()


@functools.cache
def products() -> Workload:
    """One space of 1,287 coordinates that couples two families on three attributes."""
    names = ("a", "b", "c")
    return Workload(numeric(14, 12, 10)).add(names, "prefix").add(names, "range")


def beside_joint() -> Workload:
    """Products on a pair whose queries as rows would fill 140 MB, beside a joint pair."""
    return Workload(numeric(20, 20, 4)).add(("a", "b"), "range").add(("b", "c"), "affine").add(("a", "b"), "abs")


def many_pairs() -> Workload:
    """Every pair asked jointly and differently: each fits, all together do not."""
    asked = Workload(numeric(*[12] * 6))
    for i, a in enumerate(asked.schema.names):
        for b in asked.schema.names[i + 1 :]:
            asked = asked.add((a, b), Random(seed=len(asked.groups))).add((a, b), "prefix", weight=1.0 + i)
    return asked


@pytest.mark.parametrize(
    ("workload", "limit"),
    [
        pytest.param(products(), 5e7, id="3-way"),
        pytest.param(beside_joint(), 6e7, id="range", marks=pytest.mark.full),
        pytest.param(many_pairs(), 3e7, id="all", marks=pytest.mark.full),
    ],
)
def test_memory_is_counted_before_it_is_taken(workload, limit):
    found, peak = traced(workload, limit)
    assert peak <= limit + SMALL_CHANGE
    assert found.weighted_rmse <= made(workload, memory_limit=limit).weighted_rmse


class Clock:
    """A clock on which nothing but the evaluations of searches takes time."""

    def __init__(self, seconds: float) -> None:
        self.now, self.seconds, self.evaluate = 1000.0, seconds, DualProblem.evaluate

    def tick(self, problem: DualProblem, mass: np.ndarray) -> tuple[float, np.ndarray]:
        self.now += self.seconds
        return self.evaluate(problem, mass)


def timed(workload: Workload, patch: pytest.MonkeyPatch, limit: float, seconds: float, **options: object):
    clock = Clock(seconds)
    with patch.context() as inside:
        inside.setattr(time, "monotonic", lambda: clock.now)
        inside.setattr(DualProblem, "evaluate", lambda problem, mass: clock.tick(problem, mass))
        found = made(workload, centers="tuned", time_limit=limit, workers=1, **options)
    return found, clock.now - 1000.0


def three_families() -> Workload:
    """Prefixes, ranges and sums on one pair of attributes."""
    both = ("a", "b")
    return Workload(numeric(8, 7, 3)).add(both, "prefix").add(both, "range").add(both, "affine").add(("b", "c"))


def coupled() -> Workload:
    """Two families on three attributes."""
    return Workload(numeric(5, 4, 4)).add(("a", "b", "c"), "prefix").add(("a", "b", "c"), "range")


TIMED = {"asked": (three_families, coupled), "objective": ("max", "sum"), "work": (0, 6e7), "seconds": (0.1, 0.5)}
every_timed = itertools.product(*(TIMED | {"seconds": (0.01, 0.1, 0.5)}).values())


@pytest.mark.parametrize(
    tuple(TIMED), [*pairwise(*TIMED.values()), *(pytest.param(*row, marks=pytest.mark.full) for row in every_timed)]
)
def test_the_time_limit_is_kept(asked, objective, work, seconds, monkeypatch):
    monkeypatch.setattr("engine.residuals.tuning.unions.WORK", work)
    monkeypatch.setattr("engine.residuals.tuning.unions.MAX_FULL_DOMAIN_FLOPS", 0)
    limit = 8.0
    found, taken = timed(asked(), monkeypatch, limit, seconds, objective=objective)
    assert taken <= 1.5 * limit + 1.0
    assert np.isfinite(found.rmse)


def test_the_certificate_says_what_the_limits_stopped(monkeypatch):
    monkeypatch.setattr("engine.residuals.tuning.unions.WORK", 0)
    monkeypatch.setattr("engine.residuals.tuning.unions.MAX_FULL_DOMAIN_FLOPS", 0)
    late, _ = timed(three_families(), monkeypatch, 2.0, 0.05)
    assert "time limit" in late.certificate.statement
    tight, _ = traced(products(), 5e7)
    assert "memory limit" in tight.certificate.statement
    for found in (late, tight):
        again = load_plan(found.to_json())
        assert again.certificate == found.certificate
        assert again.to_json() == found.to_json()
    free = made(Workload(numeric(5, 4)).add(("a", "b"), "prefix"), centers="tuned")
    assert "limit" not in free.certificate.statement


@pytest.mark.parametrize("work", [0, 6e7])
@pytest.mark.parametrize("attributes", [("a",), ("a", "b")], ids=len)
def test_queries_that_count_nothing_stand_beside_others(attributes, work, monkeypatch):
    monkeypatch.setattr("engine.residuals.tuning.unions.WORK", work)
    monkeypatch.setattr("engine.residuals.tuning.unions.MAX_FULL_DOMAIN_FLOPS", 0)
    nothing = Custom(predicates=["a >= 5 and a < 3"])
    workload = Workload(numeric(6, 5)).add(attributes, nothing).add("a", "prefix").add("b", "prefix")
    found = made(workload, centers="tuned")
    assert found.weighted_rmse <= made(workload).weighted_rmse
    assert found.variances(0).tolist() == [0.0]


def test_a_worse_split_is_not_taken(monkeypatch):
    """Whatever the search for a split believes, the better plan is kept, with the bound that belongs to it."""
    workload = Workload(numeric(6, 5)).add(("a", "b"), "prefix").add(("a", "b"), "range")
    skewed = {"a": np.array([3.0, -2.0, 0, 0, 0, 0]), "b": np.array([0, 0, 0, -4.0, 5.0])}
    monkeypatch.setattr("engine.residuals.tuning.unions.WORK", 0)
    monkeypatch.setattr("engine.residuals.tuning.unions.MAX_FULL_DOMAIN_FLOPS", 0)
    monkeypatch.setattr("engine.mechanisms.querysmasher.PRODUCT", 0)
    monkeypatch.setattr("engine.residuals.tuning.tune.tuned_centers", lambda *_, **__: skewed)
    uniform, found = made(workload), made(workload, centers="tuned")
    assert found.weighted_rmse == uniform.weighted_rmse
    assert found.certificate == uniform.certificate


@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(s, marks=pytest.mark.full) for s in range(6, 12))])
def test_random_workloads_are_planned_within_the_limits(seed):
    workload = draw(np.random.default_rng(seed), attributes=6, cells=12)
    limits = {"memory_limit": 2e8, "time_limit": 1.0}
    uniform = made(workload, **limits)
    found = made(workload, centers="tuned", **limits)
    assert found.weighted_rmse <= uniform.weighted_rmse * (1.0 + 1e-9) or "limit" in found.certificate.statement


def test_a_plan_made_in_a_hurry_is_read_back():
    """What cannot take its first step in time is searched attribute by attribute, and again so from a file."""
    found = made(products(), time_limit=0.3)
    assert "alternating" in found.certificate.statement
    assert "alternating" not in made(coupled(), time_limit=60.0).certificate.statement
    assert load_plan(found.to_json()).to_json() == found.to_json()


def test_dense_searches_without_symmetries_have_an_end(monkeypatch):
    """Tuned centers leave no symmetries: what would take too long is searched attribute by attribute."""
    workload = coupled()
    monkeypatch.setattr("engine.residuals.tuning.unions.WORK", 0)
    monkeypatch.setattr("engine.residuals.tuning.unions.MAX_FULL_DOMAIN_FLOPS", 0)
    monkeypatch.setattr("engine.residuals.subworkload_solver.PATIENCE", 1e-4)
    found = made(workload, centers="tuned")
    assert found.split.centers
    assert "alternating" in found.certificate.statement
    assert "alternating" not in made(workload).certificate.statement
    assert load_plan(found.to_json()).to_json() == found.to_json()


def test_tuning_that_takes_longer_than_the_whole_domain_is_not_begun(monkeypatch):
    """Where one strategy for everything costs less than splits, it is taken: nothing is more accurate."""
    monkeypatch.setattr("engine.residuals.tuning.unions.WORK", 0)
    monkeypatch.setattr("engine.residuals.tuning.unions.WAIT", 0.0)
    workload = three_families()
    assert "whatsoever" in made(workload, centers="tuned").certificate.statement
    assert forecast(workload, centers="tuned").memory > forecast(workload).memory
    monkeypatch.setattr("engine.mechanisms.querysmasher.TUNING", 0.0)
    monkeypatch.setattr("engine.mechanisms.querysmasher.split_seconds", lambda *_: 1.0)
    assert "whatsoever" in made(workload, centers="tuned").certificate.statement
    monkeypatch.setattr("engine.mechanisms.querysmasher.split_seconds", lambda *_: 0.0)
    assert "whatsoever" not in made(workload, centers="tuned").certificate.statement


def test_the_whole_domain_is_worth_some_seconds(monkeypatch):
    """Splits that take no time at all are no reason to be less accurate, unless there is no time for more."""
    monkeypatch.setattr("engine.residuals.tuning.unions.WORK", 0)
    workload = three_families()
    spaces = tuple(decompose(workload).spaces)
    seconds = strategy_seconds(workload, ("a", "b", "c"), spaces)
    for wait, left, whole in ((2.0, 2.0, True), (0.5, 2.0, False), (2.0, 0.5, False)):
        monkeypatch.setattr("engine.residuals.tuning.unions.WAIT", wait * seconds)
        found = choose_unions(workload, spaces, 4e9, left=left * seconds)
        assert (found == {("a", "b", "c"): spaces}) == whole
    monkeypatch.setattr("engine.residuals.tuning.unions.WAIT", math.inf)
    assert choose_unions(workload, spaces, 4e9)
    monkeypatch.setattr("engine.residuals.tuning.unions.DOMAIN", 8 * 7 * 3 - 1)
    assert not choose_unions(workload, spaces, 4e9)


def test_products_of_a_union_of_all_spaces_need_no_row_a_query(monkeypatch):
    """A third of a million queries on 600 cells each are told from their few rows, as if each had been gone through."""
    both = ("a", "b")
    asked = Workload(numeric(24, 25)).add(both, "circular")
    workload = asked.add(both, "affine").add("a", "prefix")
    spaces = tuple(decompose(workload).spaces)
    assert asked.groups[0].count * 600 > ENTRIES
    assert choose_unions(workload, spaces, 4e9) == {both: spaces}
    assert union_seconds(workload, both, spaces) < 2.0
    # weights of single queries are no products, and what is not measured has to be looked for query by query
    weighed = Workload(numeric(24, 25)).add(both, "circular", query_weights=np.ones(asked.groups[0].count))
    assert not choose_unions(weighed.add(both, "affine"), spaces, 4e9)
    wider = Workload(numeric(24, 25, 3)).add(both, "circular").add(("a", "c"), "affine")
    assert not choose_unions(wider, tuple(decompose(wider).spaces), 4e9).get(("a", "b", "c"))
    monkeypatch.setattr("engine.residuals.tuning.unions.FORMS", 599)
    assert not choose_unions(workload, spaces, 4e9)


def test_what_looks_the_same_from_every_cell_is_measured_apart(monkeypatch):
    """Turned round it stays the same, and so does its best strategy, which couples no two spaces."""
    monkeypatch.setattr("engine.residuals.tuning.unions.WORK", 0)
    both = ("a", "b")
    for family, apart in (("circular", True), ("prefix", False)):
        asked = Workload(numeric(5, 4)).add(both).add(both, family)
        assert (not choose_unions(asked, tuple(decompose(asked).spaces), 4e9)) == apart
    turned = Workload(numeric(5, 4)).add(both).add(both, "circular")
    assert made(turned).weighted_rmse == pytest.approx(math.sqrt(exact_bound(turned, 1e-6) / len(turned)), rel=2e-5)


def test_one_strategy_for_everything_that_is_no_better_is_not_taken():
    """Noise on a grid costs it a little more, and where uniform centers are the best there are that little is lost."""
    asked = Workload(numeric(20, 5)).add(("a", "b"), {"a": Custom(np.eye(20)), "b": "marginal"}).add("a")
    assert made(asked, centers="tuned").weighted_rmse <= made(asked).weighted_rmse


SCRIPT = """
import json, resource, sys
from engine import Attribute, Budget, Schema, Workload, plan

def planned(sizes, families, **options):
    schema = Schema([Attribute.of_size(name, n) for name, n in zip("abc", sizes)])
    workload = Workload(schema)
    for family in families:
        workload = workload.add(schema.names, family)
    return plan(workload, Budget(pcost=1.0), centers="tuned", cache=False, workers=1, **options)

planned((3, 3), ("prefix", "affine"))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
made = planned(*json.loads(sys.argv[1]), memory_limit=float(sys.argv[2]))
taken = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
print(json.dumps([taken, made.weighted_rmse, made.certificate.statement]))
"""


@pytest.mark.full
@pytest.mark.parametrize(
    ("sizes", "families", "best"),
    [((60, 40, 30), ("prefix", "range"), 9.53), ((30, 25), ("prefix", "range", "affine"), 3.814)],
    ids=str,
)
def test_large_products_are_tuned_within_a_gigabyte(sizes, families, best):
    given = [sys.executable, "-c", SCRIPT, json.dumps([sizes, families]), "1e9"]
    ended = subprocess.run(given, check=True, capture_output=True, text=True)
    taken, rmse, statement = json.loads(ended.stdout)
    assert taken < 1e9
    assert rmse < best
    assert "time limit" not in statement


def test_unions_whose_queries_take_too_long_to_list_are_left_out(monkeypatch):
    """The plan of a union goes through every query, which no deadline ends."""
    workload = Workload(numeric(9, 8, 7)).add(("a", "b"), "affine").add(("a", "b", "c"), "range")
    assert made(workload, centers="tuned").split.unions
    monkeypatch.setattr("engine.residuals.tuning.unions.LISTED", 1.0)
    late = made(workload, centers="tuned", time_limit=1000.0)
    assert not late.split.unions
    assert "time limit" in late.certificate.statement


def test_a_union_with_the_total_counts_what_complements_pass_to_it(monkeypatch):
    """Every query has a piece in the total; that of a product is one, that of a pair may be passed a share."""
    monkeypatch.setattr("engine.residuals.tuning.unions.WORK", 2e6)
    monkeypatch.setattr("engine.residuals.tuning.unions.MAX_FULL_DOMAIN_FLOPS", 0)
    for family, more in (("range", False), ("affine", True)):
        workload = Workload(numeric(9, 8, 30, 30)).add(("a", "b"), "affine").add(("c", "d"), family)
        spaces = tuple(decompose(workload).spaces)
        few = choose_unions(workload, spaces, 4e9)
        attributes = next(a for a, together in few.items() if () in together)
        own = [space for space in few[attributes] if space]
        each = [union_seconds(workload, attributes, held) for held in (few[attributes], own)]
        assert (each[0] > 10.0 * each[1]) == more
    monkeypatch.setattr("engine.residuals.tuning.unions.ENTRIES", 5e4)
    assert not any(() in together for together in choose_unions(workload, spaces, 4e9).values())


def test_every_query_of_a_union_is_counted_as_work_on_its_strategy(monkeypatch):
    workload = Workload(numeric(9, 8)).add(("a", "b"), "range")
    spaces = tuple(decompose(workload).spaces)
    monkeypatch.setattr("engine.residuals.tuning.unions.LISTED", 0.0)
    assert union_seconds(workload, ("a", "b"), spaces) > 0.0


def test_the_rows_of_a_union_are_counted_as_memory(monkeypatch):
    """Few cells may be asked by many queries, whose rows are held before they are one Gram."""
    workload = Workload(numeric(4, 3)).add(("a", "b"), Random(seed=1, count=4_000)).add(("a", "b"), "affine")
    spaces = tuple(decompose(workload).spaces)
    needed = rows_of_union(workload, ("a", "b"), spaces)
    assert needed > 8 * 4_000 * 12
    assert work_of(workload, ("a", "b"), spaces, needed - 1) < np.inf
    assert choose_unions(workload, spaces, needed)
    assert not choose_unions(workload, spaces, needed - 1)


def test_the_queries_of_a_union_are_few_alone_and_together(monkeypatch):
    workload = Workload(numeric(4, 3)).add(("a", "b"), "affine").add(("a", "b"), "abs")
    spaces = tuple(decompose(workload).spaces)
    entries = [group.count * 12 for group in workload.groups]
    monkeypatch.setattr("engine.residuals.tuning.unions.ENTRIES", max(entries) - 1)
    assert work_of(workload, ("a", "b"), spaces, 4e9) == np.inf
    monkeypatch.setattr("engine.residuals.tuning.unions.ENTRIES", max(entries))
    assert work_of(workload, ("a", "b"), spaces, 4e9) < np.inf
    assert not choose_unions(workload, spaces, 4e9)
    monkeypatch.setattr("engine.residuals.tuning.unions.ENTRIES", sum(entries))
    assert choose_unions(workload, spaces, 4e9)


def test_among_many_spaces_no_clusters_are_looked_for(monkeypatch):
    monkeypatch.setattr("engine.residuals.tuning.unions.WORK", 1e5)
    monkeypatch.setattr("engine.residuals.tuning.unions.WAIT", 0.0)
    workload = Workload.all_ways(cube(2, 11), (1, 2))
    spaces = tuple(decompose(workload).spaces)
    assert choose_unions(workload, spaces, 4e9) == {}
    monkeypatch.setattr("engine.residuals.tuning.unions.MAX_SPACES", len(spaces))
    assert choose_unions(workload, spaces, 4e9)


def test_a_union_holds_more_than_one_space(monkeypatch):
    """The pairs of a chain overlap; what is left to the second cluster may be one space alone."""
    workload = Workload(numeric(4, 4, 4)).add(("a", "b"), "affine").add(("b", "c"), "affine")
    spaces = (("a", "b"), ("b", "c"), ("b",))
    monkeypatch.setattr("engine.residuals.tuning.unions.WAIT", 0.0)
    monkeypatch.setattr("engine.residuals.tuning.unions.WORK", 2 * work_of(workload, ("a", "b"), spaces[::2], 4e9))
    found = choose_unions(workload, spaces, 4e9)
    assert [len(together) for together in found.values()] == [2]


def test_unions_fit_into_the_time_left_all_together():
    workload = Workload(numeric(5, 5, 5, 5)).add(("a", "b"), "affine").add(("c", "d"), "affine")
    unions = {(a, b): ((a,), (b,), (a, b)) for a, b in ("ab", "cd")}
    each = union_seconds(workload, ("a", "b"), unions["a", "b"])

    class Told(Allowance):
        def lasts(self, seconds: float) -> bool:
            return seconds <= 1.5 * each

    assert list(_in_time(workload, unions, Told())) == [("a", "b")]


def test_unions_that_are_worth_less_than_their_spaces_are_taken_apart():
    """A search that stopped early may leave a union worse than what it unites."""
    one, other = ("a", "b"), ("c", "d")
    values = dict.fromkeys((("a",), ("b",), ("c",), ("d",)), 1.0)
    unions = {one: (("a",), ("b",)), other: (("c",), ("d",))}

    def with_unions(split: Split) -> list[CandidatePlan]:
        own = {a: 9.0 if a == one else 1.0 for a in split.unions}
        return [CandidatePlan(split=split, error=0.0, values=own, assemble=lambda: None)]

    apart = CandidatePlan(split=Split(), error=4.0, values=values, assemble=lambda: None)
    (found,) = _united(apart, unions, with_unions)
    assert list(found.split.unions) == [other]
