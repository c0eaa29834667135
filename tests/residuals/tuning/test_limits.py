"""Memory and time limits of tuned plans; plans are not worse than with uniform centers."""

from __future__ import annotations

import functools
import itertools
import json
import math
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

from benchmarks.random_limits import draw
from benchmarks.tuned import cube
from engine._clock import PlanningClock
from engine.bounds.lower_bounds import exact_bound
from engine.mechanisms import forecast, load_plan, plan
from engine.mechanisms.querysmasher import QuerySmasher, _affordable_unions, _plans_with_unions
from engine.mechanisms.residual_base import CandidatePlan
from engine.privacy import Budget
from engine.residuals import DualProblem, Split
from engine.residuals.decomposition import decompose
from engine.residuals.tuning.center_objective import Allowance
from engine.residuals.tuning.unions import (
    MAX_ROW_ENTRIES,
    choose_unions,
    step_multiplications,
    strategy_seconds,
    union_row_bytes,
    variance_seconds,
)
from engine.workload import Custom, Workload
from engine.workload.families import Random
from tests.pairs import pairwise
from tests.residuals.tuning.full_domain import limit_unions
from tests.shapes import numeric

# Bytes that planning needs for objects other than matrices.
MEMORY_OVERHEAD = 20e6


def build_plan(workload: Workload, **options: object):
    return plan(workload, Budget(pcost=1.0), cache=False, **options)


@functools.cache
def traced(workload: Workload, limit: float):
    """Return (tuned plan of a short search, peak memory of planning in bytes)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("engine.residuals.tuning.tune.LBFGS_STEPS", 2)
        patch.setattr("engine.residuals.tuning.complements.STEPS_BY_POWER", {16.0: 2})
        tracemalloc.start()
        try:
            result = build_plan(workload, centers="tuned", memory_limit=limit)
            return result, tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()


@functools.cache
def products() -> Workload:
    """Return prefixes and ranges of three attributes, whose largest space has 1,287 coordinates."""
    names = ("a", "b", "c")
    return Workload(numeric(14, 12, 10)).add(names, "prefix").add(names, "range")


def product_and_joint_pair() -> Workload:
    """Return product and joint queries on (a, b), with 140 MB of rows, and joint ones on (b, c)."""
    return (
        Workload(numeric(20, 20, 4))
        .add(("a", "b"), "range")
        .add(("b", "c"), "affine")
        .add(("a", "b"), "abs")
    )


def many_pairs() -> Workload:
    """Return different joint queries on every pair of six attributes.

    The matrices of one pair fit into the memory limit, those of all pairs do not.
    """
    workload = Workload(numeric(*[12] * 6))
    for i, a in enumerate(workload.schema.names):
        for b in workload.schema.names[i + 1 :]:
            workload = workload.add((a, b), Random(seed=len(workload.groups))).add(
                (a, b), "prefix", weight=1.0 + i
            )
    return workload


@pytest.mark.parametrize(
    ("workload", "limit"),
    [
        pytest.param(products(), 5e7, id="3-way"),
        pytest.param(product_and_joint_pair(), 6e7, id="range", marks=pytest.mark.full),
        pytest.param(many_pairs(), 3e7, id="all", marks=pytest.mark.full),
    ],
)
def test_tuned_plan_respects_memory_limit(workload, limit):
    result, peak = traced(workload, limit)
    assert peak <= limit + MEMORY_OVERHEAD
    assert result.weighted_rmse <= build_plan(workload, memory_limit=limit).weighted_rmse


class Clock:
    """Simulated clock that advances only with evaluations of searches."""

    def __init__(self, seconds: float) -> None:
        self.now, self.seconds, self.evaluate = 1000.0, seconds, DualProblem.evaluate

    def tick(self, problem: DualProblem, mass: np.ndarray) -> tuple[float, np.ndarray]:
        self.now += self.seconds
        return self.evaluate(problem, mass)


def timed(
    workload: Workload, patch: pytest.MonkeyPatch, limit: float, seconds: float, **options: object
):
    clock = Clock(seconds)
    with patch.context() as inside:
        inside.setattr(PlanningClock, "__call__", lambda _: clock.now)
        inside.setattr(DualProblem, "evaluate", lambda problem, mass: clock.tick(problem, mass))
        result = build_plan(workload, centers="tuned", time_limit=limit, workers=1, **options)
    return result, clock.now - 1000.0


def three_families() -> Workload:
    """Return prefixes, ranges and sums on the pair (a, b), and the marginal of (b, c)."""
    both = ("a", "b")
    return (
        Workload(numeric(8, 7, 3))
        .add(both, "prefix")
        .add(both, "range")
        .add(both, "affine")
        .add(("b", "c"))
    )


def test_tuned_plan_of_wide_pair_ends_within_limit():
    """Tuning is not skipped if its forecast, for an idle core, is a third of the time limit."""
    workload = Workload(numeric(400, 5)).add("a", "prefix").add(("a", "b"), "prefix")
    result = build_plan(workload, centers="tuned", time_limit=30.0)
    assert not result.split.stopped
    assert result.weighted_rmse < 3.68


def coupled() -> Workload:
    """Return prefixes and ranges of three attributes."""
    return Workload(numeric(5, 4, 4)).add(("a", "b", "c"), "prefix").add(("a", "b", "c"), "range")


TIMED = {
    "make_workload": (three_families, coupled),
    "objective": ("max", "sum"),
    "work": (0, 6e7),
    "seconds": (0.1, 0.5),
}
every_timed = itertools.product(*(TIMED | {"seconds": (0.01, 0.1, 0.5)}).values())


@pytest.mark.parametrize(
    tuple(TIMED),
    [
        *pairwise(*TIMED.values()),
        *(pytest.param(*row, marks=pytest.mark.full) for row in every_timed),
    ],
)
def test_tuned_plan_respects_time_limit(make_workload, objective, work, seconds, monkeypatch):
    limit_unions(monkeypatch, work)
    limit = 8.0
    result, taken_seconds = timed(make_workload(), monkeypatch, limit, seconds, objective=objective)
    assert taken_seconds <= 1.5 * limit + 1.0
    assert np.isfinite(result.rmse)


def test_certificate_states_exceeded_limits(monkeypatch):
    limit_unions(monkeypatch)
    stopped_by_time, _ = timed(three_families(), monkeypatch, 2.0, 0.05)
    assert "time limit" in stopped_by_time.certificate.statement
    stopped_by_memory, _ = traced(products(), 5e7)
    assert "memory limit" in stopped_by_memory.certificate.statement
    for result in (stopped_by_time, stopped_by_memory):
        loaded = load_plan(result.to_json())
        assert loaded.certificate == result.certificate
        assert loaded.to_json() == result.to_json()
    unlimited = build_plan(Workload(numeric(5, 4)).add(("a", "b"), "prefix"), centers="tuned")
    assert "limit" not in unlimited.certificate.statement


@pytest.mark.parametrize("work", [0, 6e7])
@pytest.mark.parametrize("attributes", [("a",), ("a", "b")], ids=len)
def test_tuned_plan_empty_queries_have_zero_variance(attributes, work, monkeypatch):
    limit_unions(monkeypatch, work)
    empty = Custom(predicates=["a >= 5 and a < 3"])
    workload = Workload(numeric(6, 5)).add(attributes, empty).add("a", "prefix").add("b", "prefix")
    result = build_plan(workload, centers="tuned")
    assert result.weighted_rmse <= build_plan(workload).weighted_rmse
    assert result.variances(0).tolist() == [0.0]


def test_tuned_plan_worse_split_is_discarded(monkeypatch):
    """The better plan is returned with the matching bound, even if tuning returns a bad split."""
    workload = Workload(numeric(6, 5)).add(("a", "b"), "prefix").add(("a", "b"), "range")
    skewed = {"a": np.array([3.0, -2.0, 0, 0, 0, 0]), "b": np.array([0, 0, 0, -4.0, 5.0])}
    limit_unions(monkeypatch)
    monkeypatch.setattr("engine.mechanisms.querysmasher.MAX_PRODUCT_SEARCH_S", 0)
    monkeypatch.setattr("engine.residuals.tuning.tune.tuned_centers", lambda *_, **__: skewed)
    uniform, result = build_plan(workload), build_plan(workload, centers="tuned")
    assert result.weighted_rmse == uniform.weighted_rmse
    assert result.certificate == uniform.certificate


@pytest.mark.parametrize(
    "seed", [*range(6), *(pytest.param(s, marks=pytest.mark.full) for s in range(6, 12))]
)
def test_tuned_plan_random_workload_is_not_worse(seed):
    workload = draw(np.random.default_rng(seed), attributes=6, cells=12)
    limits = {"memory_limit": 2e8, "time_limit": 1.0}
    uniform = build_plan(workload, **limits)
    result = build_plan(workload, centers="tuned", **limits)
    assert (
        result.weighted_rmse <= uniform.weighted_rmse * (1.0 + 1e-9)
        or "limit" in result.certificate.statement
    )


def test_load_plan_alternating_by_time_limit_round_trips():
    """If the first step exceeds the time limit, attributes are searched one after the other."""
    result = build_plan(products(), time_limit=0.3)
    assert "alternating" in result.certificate.statement
    assert "alternating" not in build_plan(coupled(), time_limit=60.0).certificate.statement
    assert load_plan(result.to_json()).to_json() == result.to_json()


def test_tuned_plan_slow_dense_search_alternates(monkeypatch):
    """Without symmetries a slow dense search is replaced by an alternating one."""
    workload = coupled()
    limit_unions(monkeypatch)
    monkeypatch.setattr("engine.residuals.subworkload_solver.MAX_TUNED_SEARCH_S", 1e-4)
    result = build_plan(workload, centers="tuned")
    assert result.split.centers
    assert "alternating" in result.certificate.statement
    assert "alternating" not in build_plan(workload).certificate.statement
    assert load_plan(result.to_json()).to_json() == result.to_json()


def test_tuned_plan_cheap_full_domain_skips_tuning(monkeypatch):
    """One strategy on the full domain is preferred if it is cheaper than tuning."""
    monkeypatch.setattr("engine.residuals.tuning.unions.MAX_STEP_MULTIPLICATIONS", 0)
    monkeypatch.setattr("engine.residuals.tuning.unions.MAX_FULL_DOMAIN_S", 0.0)
    workload = three_families()
    # certificates of strategies on the full domain contain this word
    assert "whatsoever" in build_plan(workload, centers="tuned").certificate.statement
    assert forecast(workload, centers="tuned").memory > forecast(workload).memory
    monkeypatch.setattr("engine.mechanisms.querysmasher.TUNING_SOLVES", 0.0)
    monkeypatch.setattr("engine.mechanisms.querysmasher.split_seconds", lambda *_: 1.0)
    assert "whatsoever" in build_plan(workload, centers="tuned").certificate.statement
    monkeypatch.setattr("engine.mechanisms.querysmasher.split_seconds", lambda *_: 0.0)
    assert "whatsoever" not in build_plan(workload, centers="tuned").certificate.statement


def test_choose_unions_full_domain_within_waiting_time(monkeypatch):
    """The full domain is used if it has few enough cells, and its time is within the waiting time.

    The time left must suffice for half of the search and the steps after it.
    """
    monkeypatch.setattr("engine.residuals.tuning.unions.MAX_STEP_MULTIPLICATIONS", 0)
    workload = three_families()
    spaces = tuple(decompose(workload).spaces)
    seconds = strategy_seconds(workload, ("a", "b", "c"), spaces)
    for max_searches, searches_left, covers_all in (
        (2.0, 2.0, True),
        (0.5, 2.0, False),
        (2.0, 0.5, False),
    ):
        max_seconds = max_searches * seconds
        monkeypatch.setattr("engine.residuals.tuning.unions.MAX_FULL_DOMAIN_S", max_seconds)
        unions = choose_unions(workload, spaces, 4e9, seconds_left=searches_left * seconds)
        assert (unions == {("a", "b", "c"): spaces}) == covers_all
    monkeypatch.setattr("engine.residuals.tuning.unions.MAX_FULL_DOMAIN_S", math.inf)
    assert choose_unions(workload, spaces, 4e9)
    monkeypatch.setattr("engine.residuals.tuning.unions.MAX_LOW_RANK_CELLS", 8 * 7 * 3 - 1)
    assert not choose_unions(workload, spaces, 4e9)


def test_choose_unions_products_need_few_rows(monkeypatch):
    """Products have few rows per attribute even with 360,000 queries on 600 cells."""
    pair = ("a", "b")
    circular = Workload(numeric(24, 25)).add(pair, "circular")
    workload = circular.add(pair, "affine").add("a", "prefix")
    spaces = tuple(decompose(workload).spaces)
    assert circular.groups[0].count * 600 > MAX_ROW_ENTRIES
    assert choose_unions(workload, spaces, 4e9) == {pair: spaces}
    assert variance_seconds(workload, pair, spaces) < 2.0
    # There is no union (joint strategy) if all queries would have to be listed. There are two
    # cases: a group has query weights, or a union contains queries that are not measured.
    weighted = Workload(numeric(24, 25)).add(
        pair, "circular", query_weights=np.ones(circular.groups[0].count)
    )
    assert not choose_unions(weighted.add(pair, "affine"), spaces, 4e9)
    with_unmeasured_queries = (
        Workload(numeric(24, 25, 3)).add(pair, "circular").add(("a", "c"), "affine")
    )
    assert not choose_unions(
        with_unmeasured_queries, tuple(decompose(with_unmeasured_queries).spaces), 4e9
    ).get(("a", "b", "c"))
    monkeypatch.setattr("engine.residuals.tuning.unions.MAX_PRODUCT_CELLS", 599)
    assert not choose_unions(workload, spaces, 4e9)


def test_choose_unions_symmetric_workload_has_no_union(monkeypatch):
    """The optimal strategy of a symmetric workload couples no spaces."""
    monkeypatch.setattr("engine.residuals.tuning.unions.MAX_STEP_MULTIPLICATIONS", 0)
    pair = ("a", "b")
    marginal = Workload(numeric(5, 4)).add(pair)
    circular, prefix = marginal.add(pair, "circular"), marginal.add(pair, "prefix")
    assert not choose_unions(circular, tuple(decompose(circular).spaces), 4e9)
    assert choose_unions(prefix, tuple(decompose(prefix).spaces), 4e9)
    optimal_rmse = math.sqrt(exact_bound(circular, 1e-6) / len(circular))
    assert build_plan(circular).weighted_rmse == pytest.approx(optimal_rmse, rel=2e-5)


def test_tuned_plan_full_domain_is_not_worse():
    workload = (
        Workload(numeric(20, 5))
        .add(("a", "b"), {"a": Custom(np.eye(20)), "b": "marginal"})
        .add("a")
    )
    assert build_plan(workload, centers="tuned").weighted_rmse <= build_plan(workload).weighted_rmse


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
result = planned(*json.loads(sys.argv[1]), memory_limit=float(sys.argv[2]))
taken = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
print(json.dumps([taken, result.weighted_rmse, result.certificate.statement]))
"""


@pytest.mark.full
@pytest.mark.parametrize(
    ("sizes", "families", "max_rmse"),
    [((60, 40, 30), ("prefix", "range"), 9.53), ((30, 25), ("prefix", "range", "affine"), 3.814)],
    ids=str,
)
def test_tuned_plan_large_products_need_one_gigabyte(sizes, families, max_rmse):
    command = [sys.executable, "-c", SCRIPT, json.dumps([sizes, families]), "1e9"]
    process = subprocess.run(command, check=True, capture_output=True, text=True)
    peak_bytes, rmse, statement = json.loads(process.stdout)
    assert peak_bytes < 1e9
    assert rmse < max_rmse
    assert "time limit" not in statement


def test_unions_slow_to_list_are_omitted(monkeypatch):
    workload = Workload(numeric(9, 8, 7)).add(("a", "b"), "affine").add(("a", "b", "c"), "range")
    assert build_plan(workload, centers="tuned").split.unions
    monkeypatch.setattr("engine.residuals.tuning.unions.SECONDS_PER_ENTRY", 1.0)
    late = build_plan(workload, centers="tuned", time_limit=1000.0)
    assert not late.split.unions
    assert "time limit" in late.certificate.statement


def test_union_seconds_total_counts_joint_pairs(monkeypatch):
    """Complements of a joint pair add rows to the total."""
    limit_unions(monkeypatch, 2e6)
    for family, is_joint in (("range", False), ("affine", True)):
        workload = Workload(numeric(9, 8, 30, 30)).add(("a", "b"), "affine").add(("c", "d"), family)
        spaces = tuple(decompose(workload).spaces)
        unions = choose_unions(workload, spaces, 4e9)
        ((attributes, union),) = ((a, union) for a, union in unions.items() if () in union)
        seconds = variance_seconds(workload, attributes, union)
        without_total = [space for space in union if space]
        seconds_without_total = variance_seconds(workload, attributes, without_total)
        assert (seconds > 10.0 * seconds_without_total) == is_joint
    monkeypatch.setattr("engine.residuals.tuning.unions.MAX_ROW_ENTRIES", 5e4)
    assert not any(() in union for union in choose_unions(workload, spaces, 4e9).values())


def test_union_seconds_counts_strategy_work(monkeypatch):
    workload = Workload(numeric(9, 8)).add(("a", "b"), "range")
    spaces = tuple(decompose(workload).spaces)
    monkeypatch.setattr("engine.residuals.tuning.unions.SECONDS_PER_ENTRY", 0.0)
    assert variance_seconds(workload, ("a", "b"), spaces) > 0.0


def test_choose_unions_counts_memory_of_rows(monkeypatch):
    """Many queries on few cells need memory for their rows before the Gram is formed."""
    workload = (
        Workload(numeric(4, 3))
        .add(("a", "b"), Random(seed=1, count=4_000))
        .add(("a", "b"), "affine")
    )
    spaces = tuple(decompose(workload).spaces)
    needed_bytes = union_row_bytes(workload, ("a", "b"), spaces)
    assert needed_bytes > 8 * 4_000 * 12  # 4,000 rows of 12 cells in doubles
    assert step_multiplications(workload, ("a", "b"), spaces, needed_bytes - 1) < np.inf
    assert choose_unions(workload, spaces, needed_bytes)
    assert not choose_unions(workload, spaces, needed_bytes - 1)


def test_choose_unions_limits_entries_of_all_groups(monkeypatch):
    workload = Workload(numeric(4, 3)).add(("a", "b"), "affine").add(("a", "b"), "abs")
    spaces = tuple(decompose(workload).spaces)
    entries = [group.count * 12 for group in workload.groups]
    monkeypatch.setattr("engine.residuals.tuning.unions.MAX_ROW_ENTRIES", max(entries) - 1)
    assert step_multiplications(workload, ("a", "b"), spaces, 4e9) == np.inf
    monkeypatch.setattr("engine.residuals.tuning.unions.MAX_ROW_ENTRIES", max(entries))
    assert step_multiplications(workload, ("a", "b"), spaces, 4e9) < np.inf
    assert not choose_unions(workload, spaces, 4e9)
    monkeypatch.setattr("engine.residuals.tuning.unions.MAX_ROW_ENTRIES", sum(entries))
    assert choose_unions(workload, spaces, 4e9)


def test_choose_unions_of_too_many_spaces_is_empty(monkeypatch):
    monkeypatch.setattr("engine.residuals.tuning.unions.MAX_STEP_MULTIPLICATIONS", 1e5)
    monkeypatch.setattr("engine.residuals.tuning.unions.MAX_FULL_DOMAIN_S", 0.0)
    workload = Workload.all_ways(cube(2, 11), (1, 2))
    spaces = tuple(decompose(workload).spaces)
    assert choose_unions(workload, spaces, 4e9) == {}
    monkeypatch.setattr("engine.residuals.tuning.unions.MAX_SPACES", len(spaces))
    assert choose_unions(workload, spaces, 4e9)


def test_choose_unions_contain_several_spaces(monkeypatch):
    """The pairs (a, b) and (b, c) share the space of b, so only one of them gets a union.

    The space that is left of the other pair is measured alone.
    """
    workload = Workload(numeric(4, 4, 4)).add(("a", "b"), "affine").add(("b", "c"), "affine")
    spaces = (("a", "b"), ("b", "c"), ("b",))
    monkeypatch.setattr("engine.residuals.tuning.unions.MAX_FULL_DOMAIN_S", 0.0)
    pair_work = step_multiplications(workload, ("a", "b"), (("a", "b"), ("b",)), 4e9)
    monkeypatch.setattr("engine.residuals.tuning.unions.MAX_STEP_MULTIPLICATIONS", 2 * pair_work)
    (union,) = choose_unions(workload, spaces, 4e9).values()
    assert len(union) == 2


def test_affordable_unions_share_one_time_limit():
    workload = Workload(numeric(5, 5, 5, 5)).add(("a", "b"), "affine").add(("c", "d"), "affine")
    unions = {(a, b): ((a,), (b,), (a, b)) for a, b in ("ab", "cd")}
    seconds_per_union = variance_seconds(workload, ("a", "b"), unions["a", "b"])

    class LimitedAllowance(Allowance):
        def has_time(self, seconds: float) -> bool:
            return seconds <= 1.5 * seconds_per_union

    assert list(_affordable_unions(workload, unions, LimitedAllowance())) == [("a", "b")]


def test_plans_with_unions_separate_worse_union():
    """After a stopped search a union may be worse than its separate spaces."""
    worse, equal = ("a", "b"), ("c", "d")
    unions = {worse: (("a",), ("b",)), equal: (("c",), ("d",))}

    def with_unions(split: Split) -> list[CandidatePlan]:
        values = {union: 9.0 if union == worse else 1.0 for union in split.unions}
        return [CandidatePlan(split=split, error=0.0, values=values, assemble=lambda: None)]

    values = dict.fromkeys((("a",), ("b",), ("c",), ("d",)), 1.0)
    separate = CandidatePlan(split=Split(), error=4.0, values=values, assemble=lambda: None)
    (result,) = _plans_with_unions(separate, unions, with_unions)
    assert list(result.split.unions) == [equal]


def test_tuned_plan_after_slow_uniform_plan_is_tuned(monkeypatch):
    """A uniform plan that takes 12 of 20 seconds leaves time for tuning."""
    workload = Workload(numeric(12, 9)).add("a", "prefix").add(("a", "b"), "prefix")
    times = iter([0.0, 12.0])
    monkeypatch.setattr("engine.mechanisms.querysmasher.planning_time", lambda: next(times, 12.0))
    monkeypatch.setattr(QuerySmasher, "_choose_unions", lambda *_: {})
    monkeypatch.setattr(QuerySmasher, "_table_seconds", lambda *_: np.inf)
    tuned = plan(workload, Budget(pcost=1.0), centers="tuned", time_limit=20.0, cache=False)
    assert tuned.split.centers
    assert "time" not in tuned.split.stopped


def test_allowance_without_time_limit_reads_no_clock(monkeypatch):
    module = "engine.residuals.tuning.center_objective"
    monkeypatch.setattr(f"{module}.planning_time", lambda: pytest.fail("a clock was read"))
    Allowance().check()
    monkeypatch.setattr(f"{module}.planning_time", lambda: 2.0)
    late = Allowance(deadline=1.0)
    with pytest.raises(TimeoutError):
        late.check()
    assert late.stopped == {"time"}
