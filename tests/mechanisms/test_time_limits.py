"""Time limits: too short limits are refused, and searches leave time for the steps after them."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from engine._clock import planning_time
from engine.bounds import lower_bounds
from engine.bounds.lower_bounds import Model, exact_bound, independent_bound, quick_bound
from engine.errors import LimitExceeded
from engine.mechanisms import forecast, plan, querysmasher, residual_base
from engine.mechanisms.base import Limits
from engine.mechanisms.hdmm import best_of
from engine.mechanisms.hierarchical import LevelPart
from engine.mechanisms.querysmasher import QuerySmasher
from engine.plans import Plan
from engine.privacy import Budget
from engine.residuals import DualProblem, Factor, FullDomain, Options, dual_solver
from engine.residuals.decomposition import Decomposition, Subworkload, decompose
from engine.residuals.search_cache import Search
from engine.residuals.search_costs import MIN_SEARCH_S, Cost, alternating_cost
from engine.residuals.subworkload_solver import SpaceSolution, SubworkloadSolver
from engine.residuals.tuning.center_objective import Allowance
from engine.workload import Custom, Workload
from engine.workload.families import Random
from tests import shapes

ONE = Budget(pcost=1.0)
RANDOM = Random(seed=1, count=1_500)


def wide_sums() -> Workload:
    return Workload(shapes.numeric(365, 101)).add(("a", "b"), "affine")


@pytest.mark.parametrize(
    ("mechanism", "workload"),
    [
        ("querysmasher", wide_sums()),
        ("optimum", Workload(shapes.numeric(60, 50)).add(("a", "b"), "prefix")),
        ("lsa", Workload(shapes.numeric(3_143)).add("a", "prefix")),
    ],
)
def test_too_short_time_limit_is_refused_before_search(
    mechanism: str, workload: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    for method in (DualProblem, LevelPart):
        monkeypatch.setattr(method, "__init__", lambda *_, **__: pytest.fail("a search began"))
    with pytest.raises(LimitExceeded, match=r"time limit is 3 s. Set time_limit=\d+ or more"):
        plan(workload, ONE, mechanism, time_limit=3.0, cache=False)


@pytest.mark.parametrize("centers", ["uniform", "tuned"])
@pytest.mark.parametrize("objective", ["sum", "max"])
def test_forecast_too_short_time_limit_is_refused(centers: str, objective: str) -> None:
    options: Any = {"centers": centers, "objective": objective}
    with pytest.raises(LimitExceeded, match="time_limit"):
        forecast(wide_sums(), time_limit=3.0, **options)
    assert forecast(wide_sums(), time_limit=20.0, **options).seconds > 3.0


def test_forecast_of_alternating_search_is_not_refused() -> None:
    """The search stops at the time limit, so a longer forecast is no reason to refuse the plan."""
    names = ("a", "b", "c")
    workload = Workload(shapes.numeric(30, 20, 10)).add(names, "prefix").add(names, "range")
    assert forecast(workload, time_limit=1.5).seconds > 1.5


def test_hdmm_short_time_limit_measures_marginals() -> None:
    workload = Workload(shapes.numeric(2_000)).add("a", RANDOM)
    choice = best_of(workload, deadline=planning_time() + 2.0)
    assert choice.best.operator.startswith("OPT_marginals")
    assert "time limit" in choice.refused["OPT_kron"]


def test_maximise_large_problem_is_not_evaluated_after_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gram = np.diag(np.arange(1.0, 9.0))
    problem = DualProblem(lift=FullDomain(8), factor=Factor(sizes=(8,), matrix=gram))
    late = Options(deadline=-math.inf)
    expected, status = problem.maximise(late)
    monkeypatch.setattr(dual_solver, "MIN_SLOW_BLOCK", 8)
    monkeypatch.setattr(DualProblem, "evaluate", lambda *_: pytest.fail("an evaluation began"))
    mass, ending = problem.maximise(late)
    assert status == ending == "stopped at the time limit"
    np.testing.assert_allclose(mass, expected, rtol=1e-15)


def test_maximise_begins_no_evaluation_that_ends_late(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds, evaluate = 0.0, DualProblem.evaluate
    monkeypatch.setattr(dual_solver, "planning_time", lambda: seconds)

    def evaluate_in_4_seconds(problem: DualProblem, mass: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal seconds
        seconds += 4.0
        return evaluate(problem, mass)

    monkeypatch.setattr(DualProblem, "evaluate", evaluate_in_4_seconds)
    gram = np.diag(np.arange(1.0, 9.0)) + 1.0
    problem = DualProblem(lift=FullDomain(8), factor=Factor(sizes=(8,), matrix=gram))
    problem.maximise(Options(deadline=10.0))
    assert seconds == 8.0  # a third evaluation would end after 12 seconds


def test_tuned_without_unions_reserves_time_for_one_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise tuning is given up for uniform centers as soon as they took a third of the limit."""
    deadlines = []
    memory = querysmasher.SplitMemory

    def recorded(workload: Workload, cache: None, allowance: Allowance, weights: Any) -> Any:
        deadlines.append(allowance.deadline)
        return memory(workload, cache, allowance, weights)

    monkeypatch.setattr(querysmasher, "SplitMemory", recorded)
    start = planning_time()
    ticks = itertools.chain([start], itertools.repeat(start + 2.0))
    monkeypatch.setattr(querysmasher, "planning_time", lambda: next(ticks))
    workload = Workload(shapes.numeric(300)).add("a", "range")
    limits = Limits(time_limit=100.0, cache=False)
    QuerySmasher(centers="tuned").best(workload, ONE, limits, start + 100.0)
    assert deadlines == [start + 98.0]


def several_sums() -> Workload:
    """Return prefixes and ranges, whose sum on two attributes is no Kronecker product."""
    workload = Workload(shapes.numeric(12, 10))
    for families in ("prefix", "range"), ("range", "marginal"), ("marginal", "prefix"):
        workload = workload.add(("a", "b"), dict(zip(("a", "b"), families, strict=True)))
    return workload


def test_independent_bound_after_deadline_forms_no_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = decompose(several_sums())
    calls = Counter[str]()
    for name in ("gram_on_axes", "_step"):
        monkeypatch.setattr(lower_bounds, name, counted(getattr(lower_bounds, name), calls, name))
    bound = independent_bound(parts)
    assert calls["gram_on_axes"] == 1
    assert calls["_step"] > 1
    calls.clear()
    late = independent_bound(parts, deadline=-math.inf)
    assert calls == {"_step": 1}
    assert 0.5 * bound < late < bound


def counted(function: Any, calls: Counter[str], name: str) -> Any:
    """Return the function, with every call counted in ``calls[name]``."""

    def call(*args: Any, **options: Any) -> Any:
        calls[name] += 1
        return function(*args, **options)

    return call


def test_plan_passes_time_limit_to_independent_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.random.default_rng(5).integers(-2, 3, (2, 20))
    workload = Workload(shapes.numeric(5, 4)).add(("a", "b"), Custom(rows))
    seconds_left = []

    def bound(parts: Decomposition, deadline: float) -> float:
        seconds_left.append(deadline - planning_time())
        return 1.0

    monkeypatch.setattr(residual_base, "independent_bound", bound)
    assert plan(workload, ONE, time_limit=50.0, cache=False).joint
    assert plan(workload, ONE, cache=False).joint
    with_limit, without_limit = seconds_left
    assert 0.0 < with_limit < 1.2 * 50.0
    assert without_limit == math.inf


def test_quick_bound_wide_attribute_evaluates_few_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = Workload(shapes.numeric(60, 3)).add("a", Random(seed=2, count=40)).add(("a", "b"))
    best = quick_bound(workload)
    value, calls = Model.value, 0

    def counted_value(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        return value(*args, **options)

    monkeypatch.setattr(Model, "value", counted_value)
    monkeypatch.setattr(lower_bounds, "MAX_EXACT_CELLS", 50)
    assert quick_bound(workload) == pytest.approx(best, rel=1e-12)
    assert calls == 3  # one evaluation per start
    monkeypatch.setattr(lower_bounds, "MAX_SEVERAL_STARTS_CELLS", 50)
    assert quick_bound(workload) == pytest.approx(best, rel=1e-12)
    assert calls == 4  # a single start is evaluated on so many cells


def test_quick_bound_wide_intervals_is_the_optimum(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = Workload(shapes.numeric(120)).add("a", "prefix")
    optimum = exact_bound(workload)
    monkeypatch.setattr(lower_bounds, "MAX_EXACT_CELLS", 100)
    assert quick_bound(workload) == pytest.approx(optimum, rel=3e-4)


def test_hdmm_forecast_wide_attribute_counts_few_starts() -> None:
    workload = Workload(shapes.numeric(800)).add("a", Random(seed=1, count=900))
    # The plan took 2.9 s when this test was written; the lower bound took half a second of this
    # time.  The forecast may be wrong by a factor of 2.
    assert 1.5 < forecast(workload, "hdmm").seconds < 5.8


def random_pair_queries(*cells: int, count: int) -> Workload:
    return Workload(shapes.numeric(*cells)).add(("a", "b"), Random(seed=1, count=count))


def test_uniform_search_ends_early_for_fitting_union() -> None:
    """2 s are too short for a union of all spaces; 1,000 s are enough for both searches."""
    tuned, workload = QuerySmasher(centers="tuned"), random_pair_queries(60, 60, count=500)
    ends_early = {
        limit: tuned._ends_uniform_search_early(workload, Limits(time_limit=limit))
        for limit in (2.0, 5.0, 20.0, 1e3)
    }
    assert ends_early == {2.0: False, 5.0: True, 20.0: True, 1e3: False}
    assert not tuned._ends_uniform_search_early(workload, Limits())
    assert not replace(tuned, keep=0.1)._ends_uniform_search_early(
        workload, Limits(time_limit=20.0)
    )


@pytest.mark.parametrize("has_union", [True, False])
def test_early_end_of_uniform_search_improves_plan(
    has_union: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = random_pair_queries(12, 10, count=30)
    complete = plan(workload, ONE, cache=False)
    monkeypatch.setattr(QuerySmasher, "_ends_uniform_search_early", lambda *_: True)
    monkeypatch.setattr(querysmasher, "UNIFORM_SEARCH_SHARE", 1e-9)
    if not has_union:
        monkeypatch.setattr(querysmasher, "choose_unions", lambda *_: {})
        monkeypatch.setattr(QuerySmasher, "_splits", lambda *_: iter(()))
    tuned = plan(workload, ONE, centers="tuned", time_limit=100.0, cache=False)
    assert tuned.certificate.gap < 1e-4
    assert tuned.weighted_rmse <= complete.weighted_rmse * (0.95 if has_union else 1.0 + 1e-5)


@pytest.mark.parametrize(
    ("low_rank", "step", "expected"),
    [(True, 0.1, 6.4), (False, 0.1, 5.2), (False, 1.3, -math.inf)],
)
def test_slow_setup_leaves_time_for_the_strategy(
    low_rank: bool, step: float, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a setup of 4 s, the plan takes 5.6 s at low rank and 12.8 s at full rank.

    Steps of the search may take 1.2 s nevertheless.
    """
    monkeypatch.setattr("engine.residuals.search_cache._evaluation_seconds", lambda _: step)
    factor = Factor(sizes=(4,), matrix=np.diag([1.0, 2.0, 3.0]), low_rank=low_rank)
    search = Search(
        method="optimal", factor=factor, options=Options(deadline=12.0), centers=(None,)
    )
    clock = iter([0.0, 4.0])
    monkeypatch.setattr("engine.residuals.search_cache.planning_time", lambda: next(clock))
    deadlines: list[float] = []

    def maximise(_: object, options: Options, *args: object, **kwargs: object) -> None:
        deadlines.append(options.deadline)
        raise TimeoutError

    monkeypatch.setattr(DualProblem, "maximise", maximise)
    with pytest.raises(TimeoutError):
        search.run()
    assert deadlines == [pytest.approx(expected)]


def test_search_leaves_time_for_the_strategies_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every search leaves the least times of all later strategies together."""
    deadlines: list[float] = []
    solve, forecast_spaces = SubworkloadSolver.solve, SubworkloadSolver.forecast

    def recorded_solve(solver: SubworkloadSolver, sub: Subworkload) -> SpaceSolution:
        deadlines.append(solver.options.deadline)
        return solve(solver, sub)

    def slow_forecast(solver: SubworkloadSolver, subs: Sequence[Subworkload]) -> list[Cost]:
        return [replace(cost, least_seconds=1.0) for cost in forecast_spaces(solver, subs)]

    monkeypatch.setattr(SubworkloadSolver, "solve", recorded_solve)
    monkeypatch.setattr(SubworkloadSolver, "forecast", slow_forecast)
    plan(Workload(shapes.numeric(5, 4)).add(("a", "b"), "affine"), ONE, time_limit=50, cache=False)
    assert np.diff(deadlines) == pytest.approx([1.0, 1.0, 1.0])


def test_too_short_time_limit_computes_no_gram(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The Gram of 10,800 queries on 3,600 cells takes seconds."""
    decomposed = residual_base.decompose

    def only_forecast(*args: Any, forecast: bool = False, **options: Any) -> Any:
        assert forecast
        return decomposed(*args, forecast=forecast, **options)

    monkeypatch.setattr(residual_base, "decompose", only_forecast)
    workload = random_pair_queries(60, 60, count=10_800)
    with pytest.raises(LimitExceeded, match="time_limit"):
        plan(workload, ONE, time_limit=5.0, cache=False)


def test_stop_reasons_do_not_compute_variances_again(monkeypatch: pytest.MonkeyPatch) -> None:
    complete = plan(Workload(shapes.numeric(6, 5)).add(("a", "b"), "affine"), ONE, cache=False)
    rmse = complete.weighted_rmse
    monkeypatch.setattr(Plan, "__post_init__", lambda _: pytest.fail("checked again"))
    stopped = residual_base.with_stop_reasons(complete, frozenset({"time"}))
    assert stopped.statement.endswith("The time limit ended the search for centers.")
    assert stopped.split.stopped == {"time"}
    assert not complete.split.stopped
    assert stopped.weighted_rmse == rmse
    assert stopped.workload is complete.workload


def test_random_queries_short_time_limit_search_a_union() -> None:
    """5 s are too short for all steps of the union; half of them are better than no union."""
    workload = random_pair_queries(60, 60, count=500)
    tuned, spaces = QuerySmasher(centers="tuned"), decompose(workload, forecast=True).spaces
    unions = {
        limit: len(tuned._choose_unions(workload, spaces, Limits(time_limit=limit)))
        for limit in (2.0, 5.0)
    }
    assert unions == {2.0: 0, 5.0: 1}


def test_maximise_first_weights_prove_gap_starts_no_lbfgs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scipy.optimize.minimize", lambda *_, **__: pytest.fail("L-BFGS began"))
    problem = DualProblem(lift=FullDomain(8), factor=Factor(sizes=(8,), matrix=np.eye(8)))
    mass, status = problem.maximise(Options())
    assert status == "optimal"
    np.testing.assert_allclose(mass, 1.0 / 8.0)


def alternating_solver(workload: Workload) -> tuple[Decomposition, SubworkloadSolver]:
    """Return a decomposition, and a solver whose memory limit excludes dense searches on pairs."""
    parts = decompose(workload)
    solver = SubworkloadSolver(
        factors=parts.factors, method="optimal", options=Options(), memory_limit=1.5e5
    )
    return parts, solver


def two_pairs_of_sums() -> Workload:
    """Return the queries of `several_sums` on two pairs with a common attribute."""
    workload = Workload(shapes.numeric(12, 10, 9))
    for families in ("prefix", "range"), ("range", "marginal"), ("marginal", "prefix"):
        for pair in ("a", "b"), ("a", "c"):
            workload = workload.add(pair, dict(zip(pair, families, strict=True)))
    return workload


def test_gram_in_two_alternating_searches_is_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    searches_by_gram = Counter[str]()
    run = Search.run

    def counted_run(search: Search, *args: Any, **options: Any) -> Any:
        searches_by_gram[search.key] += 1
        return run(search, *args, **options)

    monkeypatch.setattr(Search, "run", counted_run)
    parts, solver = alternating_solver(two_pairs_of_sums())
    pairs = [sub for sub in parts.subworkloads if len(sub.sizes) == 2]
    solutions = [solver.solve(pair) for pair in pairs]
    assert all(solution.status.startswith("alternating") for solution in solutions)
    # The plan stores the result of every search for each pair that uses it. Both pairs use the
    # three Grams on attribute a.
    assert len(solver.duals) == searches_by_gram.total() + 3
    _, solver_of_one_pair = alternating_solver(two_pairs_of_sums())
    assert solver_of_one_pair.solve(pairs[1]).bound == solutions[1].bound


def test_forecast_of_alternating_search_has_least_time() -> None:
    parts, solver = alternating_solver(two_pairs_of_sums())
    costs = solver.forecast(parts.subworkloads)
    first_pair_s, second_pair_s = (cost.least_seconds for cost in costs if cost.alternates)
    # one search and the bounds of three Grams per attribute; the Grams on attribute a are counted
    # for the first pair only
    assert first_pair_s >= 2 * (1 + 3) * MIN_SEARCH_S
    assert second_pair_s >= (1 + 1 + 3) * MIN_SEARCH_S
    assert second_pair_s < 2 * (1 + 3) * MIN_SEARCH_S
    # one search and one bound per attribute
    coupled = alternating_cost((12, 10), ranks=[20], gap=1e-6, centers=[None, None])
    assert coupled.least_seconds >= 2 * (1 + 1) * MIN_SEARCH_S


def test_independent_bound_computes_every_factor_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = decompose(Workload.all_ways(shapes.numeric(5, 4, 3), (1, 2, 3), "prefix"))
    calls = Counter[str]()
    monkeypatch.setattr(lower_bounds, "_norm", counted(lower_bounds._norm, calls, "norm"))
    monkeypatch.setattr(lower_bounds._Norm, "at", counted(lower_bounds._Norm.at, calls, "at"))
    independent_bound(parts, deadline=-math.inf)
    assert calls == {"norm": 3, "at": 3}


def test_searches_leave_time_for_assembly(monkeypatch: pytest.MonkeyPatch) -> None:
    # planning starts at time 0 and takes no time
    monkeypatch.setattr(residual_base, "planning_time", lambda: 0.0)
    monkeypatch.setattr("engine.mechanisms.base.planning_time", lambda: 0.0)
    deadlines = []
    init = SubworkloadSolver.__init__

    def recorded_init(solver: SubworkloadSolver, *, options: Options, **others: Any) -> None:
        deadlines.append(options.deadline)
        init(solver, options=options, **others)

    monkeypatch.setattr(SubworkloadSolver, "__init__", recorded_init)
    workload = several_sums()
    plan(workload, ONE, time_limit=50.0, cache=False)
    assembly_s = len(decompose(workload).subworkloads) * residual_base.ASSEMBLY_SECONDS
    # earlier solvers only forecast the time
    assert deadlines[-1] == pytest.approx(50.0 - assembly_s)
