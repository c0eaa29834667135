"""Plan cache of the app: limit in bytes, and reuse at other budgets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest

import demo_data
from engine import analysis, figures
from engine._format import format_number
from engine._values import size_in_bytes
from engine.mechanisms import at_budget, plan
from engine.plans import Plan
from engine.privacy import Budget
from engine.residuals.search_cache import LruCache
from engine.workload import Attribute, Custom, Schema, Workload
from pages.parts.jobs import job_queue, plan_cache, plans
from pages.parts.shell import history
from pages.parts.workload import forecast_form
from tests.app.session import demo_plan, open_demo, wait
from tests.working import endless


def compute_tables(result: Plan) -> Plan:
    for look in (
        Plan.by_group,
        analysis.worst_error,
        lambda p: figures.spread_picture(p, 3.0),
        figures.budget_picture,
    ):
        look(result)
    assert result.certificate.gap < 1
    return result


@pytest.mark.parametrize(
    ("name", "ways"), [("adult", (1, 2)), ("cps", (1, 2, 3)), ("survey", (1, 2))]
)
def test_plan_size_estimate_is_upper_bound(name: str, ways: tuple[int, ...]) -> None:
    result = demo_plan(name, ways)
    estimate = plan_cache.plan_bytes(result)
    assert size_in_bytes(compute_tables(result)) <= estimate <= 4 * size_in_bytes(result)


def test_plan_cache_is_limited_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = demo_plan("survey", (1,)).workload
    results = {f"pcost {pcost}": plan(workload, Budget(pcost=pcost)) for pcost in range(1, 61)}
    largest_bytes = max(plan_cache.plan_bytes(result) for result in results.values())
    store = LruCache[Plan](len(results) * largest_bytes)
    monkeypatch.setattr(plan_cache, "_plans", lambda: store)
    for key, result in results.items():
        plan_cache.plan_of_key(key, lambda result=result: result)
    assert all(plan_cache.cached_plan(key) for key in results)
    plan_cache.plan_of_key("large", lambda: demo_plan("survey", (1, 2)))
    assert plan_cache.cached_plan("large")
    # the large plan has displaced the oldest plan, but not the newest
    oldest, *_, newest = results
    assert not plan_cache.cached_plan(oldest)
    assert plan_cache.cached_plan(newest)
    assert store.used <= store.limit
    assert 20 * plan_cache.plan_bytes(demo_plan("adult", (1, 2))) < plan_cache.CACHE_BYTES


def test_plan_cache_counts_shared_parts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    store = LruCache[Plan](plan_cache.CACHE_BYTES)
    monkeypatch.setattr(plan_cache, "_plans", lambda: store)
    schema = Schema.from_json(demo_data.schemas()["adult"].read_bytes())
    studio = history.RequestState(workload=Workload.all_ways(schema, ways=(1, 2)))
    owners = [replace(studio, budget=Budget(pcost=1 + k / 64)) for k in range(6)]
    results, used = [], []
    for owner in owners:
        results.append(plans.quick_plan(owner))
        used.append(store.used)
    assert [plan_cache.cached_plan(owner.key) for owner in owners] == results
    n_groups = len(studio.required_workload.groups)
    table_bytes = plan_cache.DISPLAY_BYTES + plan_cache.GROUP_BYTES * n_groups
    plan_bytes = size_in_bytes(results)
    assert plan_bytes <= store.used <= plan_bytes + len(results) * table_bytes
    assert max(after - before for before, after in pairwise(used)) < used[0] / 2
    # Plans at two budgets share everything but their noise.
    first, *others = results
    largest_addition = max(size_in_bytes(other, first) for other in others)
    assert largest_addition < 0.08 * size_in_bytes(first)
    assert plan_cache.plan_of_key("same plan", lambda: first) is first
    assert store.used == used[-1]


def test_plan_over_cache_limit_is_cached_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    workload, store = demo_plan("survey", (1,)).workload, LruCache[Plan](1)
    both = {
        key: plan(workload, Budget(pcost=pcost)) for key, pcost in (("first", 1), ("second", 2))
    }
    large_store = LruCache[Plan](max(map(plan_cache.plan_bytes, both.values())))
    monkeypatch.setattr(plan_cache, "_plans", lambda: store)
    monkeypatch.setattr(plan_cache, "_large", lambda: large_store)
    for key, result in both.items():
        assert plan_cache.plan_of_key(key, lambda result=result: result) is result
        assert plan_cache.cached_plan(key) is result
    assert plan_cache.cached_plan("first") is None
    assert store.used == 0


def test_budget_change_of_quick_plan_needs_no_planning(monkeypatch: pytest.MonkeyPatch) -> None:
    store = LruCache[Plan](plan_cache.CACHE_BYTES)
    monkeypatch.setattr(plan_cache, "_plans", lambda: store)
    session = open_demo("survey", (1,)).set(budget_unit="pcost")
    monkeypatch.setattr(plans, "plan", None)
    session.set(**{f"budget_pcost_{session.version}": 4.0})
    assert session.metrics()["Typical error (counts)"] == format_number(
        plan(session.studio.required_workload, Budget(pcost=4.0)).rmse
    )


def clear_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty the plan cache and the jobs, and treat planning as slow."""
    store = LruCache[Plan](plan_cache.CACHE_BYTES)
    monkeypatch.setattr(plan_cache, "_plans", lambda: store)
    monkeypatch.setattr(plans, "QUICK_S", -1.0)
    for key in list(job_queue._JOBS):
        job_queue.forget(key)


def test_budget_change_of_long_plan_needs_no_planning(monkeypatch: pytest.MonkeyPatch) -> None:
    clear_plans(monkeypatch)
    session = open_demo("survey", (1,))
    wait(session.press("plan_now"))
    jobs = set(job_queue._JOBS)
    monkeypatch.setattr(plans, "plan", None)
    session.set(budget_unit="pcost").set(**{f"budget_pcost_{session.version}": 4.0})
    result = plan(session.studio.required_workload, Budget(pcost=4.0))
    assert session.metrics()["Typical error (counts)"] == format_number(result.rmse)
    assert {job for job in set(job_queue._JOBS) - jobs if job.startswith("plan|")} == set()
    assert not any(b.key == "plan_now" for b in session.app.button)
    session.set(budget_unit="pure epsilon")  # Laplace noise needs a new search
    assert any(b.key == "plan_now" for b in session.app.button)


def test_planning_over_time_limit_continues_in_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    store = LruCache[Plan](plan_cache.CACHE_BYTES)
    monkeypatch.setattr(plan_cache, "_plans", lambda: store)
    monkeypatch.setattr(plans, "PAGE_LIMIT_S", -1.0)
    jobs = set(job_queue._JOBS)
    session = wait(open_demo("survey", (2,)))
    assert session.metrics()["Typical error (counts)"] == format_number(
        demo_plan("survey", (2,)).rmse
    )
    assert [
        job_queue.find(job).done for job in set(job_queue._JOBS) - jobs if job.startswith("plan|")
    ] == [True]


def test_queued_plan_shows_queue_position(monkeypatch: pytest.MonkeyPatch) -> None:
    clear_plans(monkeypatch)
    monkeypatch.setattr(job_queue, "WORKERS", 1)
    others = ["works", "waits"]
    try:
        for other in others:
            job_queue.start(other, endless)
        before = set(job_queue._JOBS)
        session = open_demo("survey", (1,)).press("plan_now")
        (bar,) = session.app.get("progress")
        (plan_job,) = (key for key in set(job_queue._JOBS) - before if key.startswith("plan|"))
        assert job_queue.before(plan_job) >= 1
        assert "waiting for a worker" in bar.proto.text
        assert "ahead" in bar.proto.text
        monkeypatch.setattr(job_queue, "before", lambda key: 0)
        (bar,) = session.run(session.app).app.get("progress")
        assert "waiting for a worker" in bar.proto.text
        assert "ahead" not in bar.proto.text
        session.press("Cancel")
    finally:
        for other in others:
            job_queue.cancel(other)


def test_group_tables_of_plans_are_cached_per_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    plans_of_calls: list[Plan] = []
    by_group = Plan.by_group

    def record_call(result: Plan) -> pd.DataFrame:
        plans_of_calls.append(result)
        return by_group(result)

    monkeypatch.setattr(Plan, "by_group", record_call)
    results = [plan(demo_plan("survey", (1,)).workload, Budget(pcost=1 + k)) for k in range(20)]
    for _ in range(2):
        for result in results:
            analysis.group_table(result)
            analysis.worst_error(result)
    assert plans_of_calls == results  # one call per plan


def test_plan_size_includes_arrays_of_groups() -> None:
    schema = Schema([Attribute.of_size("age", 200)])
    weighted = Workload(schema).add("age", "range", query_weights=np.ones(200 * 201 // 2))
    custom = Workload(schema).add("age", Custom(np.eye(200)))
    for workload in (weighted, custom):
        result = plan(workload, Budget(pcost=1.0))
        assert size_in_bytes(workload) > 100_000 > plan_cache.DISPLAY_BYTES
        assert plan_cache.plan_bytes(result) >= size_in_bytes(compute_tables(result))


def test_plans_at_two_budgets_share_their_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """The size of a plan is computed without iterating over groups that another plan shares.

    A plan at a new budget builds only the blocks that are read.
    """
    schema = Schema([Attribute.of_size(f"a{i}", 2, kind="categorical") for i in range(40)])
    result = plan(Workload.all_ways(schema, (2,)), Budget(pcost=1.0))
    excluded_groups: list[object] = []

    def record_excluded(*args: object, excluded: Iterable[object] = ()) -> int:
        excluded_groups.extend(excluded)
        return 0

    monkeypatch.setattr(plan_cache, "size_in_bytes", record_excluded)
    other = at_budget(result, Budget(pcost=2.0))
    plan_cache.plan_bytes(other, result)
    assert excluded_groups == list(result.workload.groups)
    analysis.breakdown(other, 0)
    assert len(result.blocks._blocks) == 0
    assert len(other.blocks._blocks) < 10
    assert other.block_key_of_space == {
        space: key for key, block in other.blocks.items() for space in block.spaces
    }


def test_cached_workload_tables_are_small() -> None:
    schema = Schema([Attribute.of_size(f"a{i}", 2, kind="categorical") for i in range(40)])
    workload = Workload.all_ways(schema, (2,))
    before = size_in_bytes(workload, excluded=workload.groups)
    assert forecast_form.new_groups(workload, workload.groups) == ()
    assert size_in_bytes(workload, excluded=workload.groups) - before < 200 * len(workload.groups)


def test_keep_returns_plan_at_requested_budget() -> None:
    first = history.RequestState(workload=demo_plan("survey", (1,)).workload)
    second = replace(first, budget=Budget(pcost=2.0))
    for request in (first, second):
        kept = plans.keep(
            request, lambda request=request: plan(request.required_workload, request.budget)
        )
        assert kept.budget == request.budget
