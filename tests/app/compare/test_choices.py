"""Page Compare: choice of mechanisms, options and budgets, and cancellation."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

import pandas as pd
import psutil
import pytest

from engine._format import duration_text, format_number
from engine.analysis import expected_wait_text
from engine.analysis.compare import comparison, expected_costs, quick_choices
from engine.errors import NotApplicable
from engine.mechanisms import plan, registry, title_of, variants
from engine.mechanisms.base import Forecast, Limits, Mechanism
from engine.plans import Plan
from engine.plans.plan import SolverState
from engine.privacy import Budget
from engine.residuals.search_cache import LruCache
from engine.workload import Attribute, Schema, Workload
from pages.parts.compare import run
from pages.parts.jobs import job_queue, plan_cache, plans
from pages.parts.jobs.status import Status
from pages.parts.shell import permalink, python_script
from pages.parts.shell.history import RequestState
from tests.app.compare.sessions import (
    MECHANISMS,
    WORKLOAD,
    mechanism_choice,
    open_small_workload,
    run_code,
    run_comparison,
)
from tests.app.session import Session, demo_schema, open_demo, wait
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("keeps_comparisons")


def test_compare_page_without_workload_shows_instructions() -> None:
    session = Session().go("compare")
    assert "nothing to compare yet" in session.text()
    assert session.app.button(key="next").disabled
    for view in ("Differences", "Other budgets", "Strategies"):
        assert "Press Compare above" in session.set(compare_view=view).text()
    assert "upload a plan file" in session.set(compare_view="Plans").text()
    session = open_small_workload(page="compare").set(compare_chosen=[])
    assert "Choose at least one mechanism" in session.text()


def test_compare_page_starts_only_quick_mechanisms() -> None:
    session = open_demo("census", page="compare")
    chosen = session.app.multiselect(key="compare_chosen").value
    workload = Workload.all_ways(demo_schema("census"), (1, 2))
    costs = expected_costs(workload, Budget(pcost=1.0))
    assert chosen == quick_choices(costs)
    *quick_mechanisms, last = chosen
    assert last == "hdmm"
    assert len(quick_mechanisms) == 5
    seconds = costs.set_index("mechanism")["seconds"]
    assert (seconds[quick_mechanisms] <= 1.0).all()
    session.until(lambda: "Done: the results are below" in session.text())
    assert "of 6 mechanisms are the most accurate" in session.text()
    session.press("compare_all")  # slow mechanisms start only on request
    assert session.app.multiselect(key="compare_chosen").value == list(variants())
    assert not session.app.button(key="compare_start").disabled
    assert "previous selection" in session.text()


def test_expected_wait_names_slowest_mechanism() -> None:
    workload = Workload.all_ways(demo_schema("cps"), (1, 2))
    table = expected_costs(workload, Budget(pcost=1.0), ["wff", "hdmm", "laplace"])
    seconds = duration_text(float(table["seconds"].max()))
    assert expected_wait_text(table) == (
        f"HDMM is expected to take about {seconds}, the others less. 1 mechanism cannot run."
    )
    session = Session(plan=permalink.packed(RequestState(workload=workload)))
    session.go("compare", compare_chosen=["hdmm", "wff"])
    assert "HDMM is expected to take about" in session.text()


def test_expected_wait_follows_measured_times() -> None:
    rows = [("wff", 1.0, 80.0, "ok"), ("hdmm", 5.6, 90.0, "ok")]
    table = pd.DataFrame(rows, columns=["mechanism", "seconds", "memory_mb", "status"])
    assert expected_wait_text(table, {"wff": 5.0}) == "HDMM is expected to take about 28 s."
    assert expected_wait_text(table, {"wff": 0.5}) == "HDMM is expected to take about 5.6 s."
    assert expected_wait_text(table, {"wff": 5.0, "hdmm": 28.0}) == ""


def test_expected_wait_refers_to_time_limit() -> None:
    """With a longer time limit, tuning also searches for a product strategy."""
    families = {"day": "prefix", "age": "range", "sex": "marginal"}
    sizes = {"day": 365, "age": 100, "sex": 2}
    schema = Schema([Attribute.of_size(name, n) for name, n in sizes.items()])
    workload = Workload.all_ways(schema, (1, 2), family=families)
    tuned = [("querysmasher", {"centers": "tuned"})]

    def tuning_seconds(time_limit: float) -> float:
        costs = expected_costs(workload, Budget(pcost=1.0), tuned, time_limit=time_limit)
        return float(costs["seconds"][0])

    assert tuning_seconds(1.0) < tuning_seconds(120.0)
    session = Session(plan=permalink.packed(RequestState(workload=workload)))
    session.go("compare", compare_chosen=["querysmasher (centers=tuned)"], compare_limit=120)
    assert f"is expected to take about {duration_text(tuning_seconds(120.0))}." in session.text()


def test_hdmm_with_long_forecast_starts_only_on_request() -> None:
    table = expected_costs(WORKLOAD, Budget(pcost=1.0))
    slow_table = table.assign(seconds=table["seconds"].where(table["mechanism"] != "hdmm", 1000.0))
    assert "hdmm" in quick_choices(table)
    assert "hdmm" not in quick_choices(slow_table)


def test_comparison_prepares_plans_of_first_views(monkeypatch: pytest.MonkeyPatch) -> None:
    session, store = open_small_workload(), LruCache[Plan](plan_cache.CACHE_BYTES)
    monkeypatch.setattr(plan_cache, "_plans", lambda: store)  # an empty plan cache
    run_comparison(session, [MECHANISMS[0], MECHANISMS[2]])
    for module, name in ((run, "load_plan"), (plans, "plan")):
        monkeypatch.setattr(module, name, None)  # a view that loads or computes a plan fails
    for view in ("Differences", "Strategies", "Plans"):
        session.set(compare_view=view, differences_shown="Two mechanisms")
    assert "Both plans have the same typical error" in session.text()


def test_cancelled_comparison_ends_all_processes() -> None:
    workload = Workload.all_ways(demo_schema("adult"), (1, 2, 3))
    job_queue.start("slow", slow, workload.to_json(), gentle=True)

    def job() -> Status:
        return job_queue.find("slow")

    until(
        lambda: job().text.startswith("Running QuerySmasher") and worker_pids(),
        words=lambda: job().text,
    )
    job_queue.cancel("slow")
    until(lambda: not job().running and not worker_pids(), words=lambda: job().state)
    assert job().state == "cancelled"


def test_comparison_on_page_can_be_cancelled() -> None:
    pair = Workload(Schema([Attribute.of_size("a", 150), Attribute.of_size("b", 100)]))
    coupled = pair.add(("a", "b"), "prefix").add(("a", "b"), "range", weight=2.0)  # slow tuning
    request = RequestState(workload=coupled, options={"centers": "tuned"})
    session = Session(plan=permalink.packed(request))
    session.set(compare_chosen=["wff", "querysmasher (centers=tuned)"]).go("compare")
    session.press("compare_start")
    assert "The comparison is running" in session.text()
    assert "Press Compare above" not in session.text()
    session.until(lambda: "1 of 2 mechanisms so far" in session.text())
    assert "QuerySmasher (tuned) is expected to take" in session.text()
    assert "the others less" not in session.text()  # the other mechanism is done
    # the comparison computes the plan of the current mechanism, so no button offers to compute it
    session.set(fold_mechanism=True)
    assert "The comparison above is computing this plan." in session.text()
    assert "plan_now" not in [b.key for b in session.app.button]
    assert f"{title_of('wff')} is the most accurate of 1 mechanism" in session.text()
    session.press("Cancel")
    session.until(lambda: "cancelled" in session.text())
    assert not session.app.button(key="compare_start").disabled
    assert "the most accurate" not in session.text()


def test_option_variant_is_offered_until_workload_changes() -> None:
    session = open_small_workload(page="compare")
    version = session.version
    session.set(fold_mechanism=True).set(**{f"option_solver_{version}": "fourier"})
    variant = "querysmasher (solver=fourier)"
    run_comparison(session, [variant, "wff"])
    session.set(**{mechanism_choice(session).key: "wff"}).go("preview").go("compare")
    offered = session.app.multiselect(key="compare_chosen")
    assert title_of(variant) in offered.options
    assert offered.value == [variant, "wff"]
    _, choices = session.app.session_state["compare_with_options"]
    session.app.session_state["compare_with_options"] = ("digest of another workload", choices)
    session.go("compare")
    offered = session.app.multiselect(key="compare_chosen")
    assert title_of(variant) not in offered.options
    assert offered.value == ["wff"]


def slow(workload: str, *, progress: Callable[[float, str], bool]) -> object:
    choices = [("querysmasher", {"centers": "tuned"})]
    return comparison(
        Workload.from_json(workload), Budget(pcost=3.0), choices, jobs=1, progress=progress
    )


def worker_pids() -> list[int]:
    """Return the process ids of running workers of this process."""
    pids = []
    for one in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):  # the process ended, or is a zombie
            if "_workers" in " ".join(one.cmdline()):
                pids += [p.pid for p in one.children() if p.status() != psutil.STATUS_ZOMBIE]
    return pids


@dataclass(frozen=True, kw_only=True)
class Toy(Mechanism):
    """Mechanism that refuses all workloads."""

    name: ClassVar[str] = "toy"
    title: ClassVar[str] = "Toy"
    meaning: ClassVar[str] = "Test mechanism."
    variants: ClassVar[tuple[dict, ...]] = ({}, {"size": "large"})
    choices: ClassVar[dict[str, tuple]] = {"size": ("small", "large")}

    size: str = "small"

    def forecast(self, workload: Workload, limits: Limits) -> Forecast:
        return Forecast(seconds=0.5, memory=1e6, text="nothing")

    def plan(self, workload: Workload, budget: Budget, limits: Limits) -> Plan:
        raise NotApplicable("A toy plans nothing.")

    def rebuild(self, workload: Workload, budget: Budget, solved: SolverState) -> Plan:
        raise NotApplicable("A toy plans nothing.")


def test_new_mechanism_appears_on_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "MECHANISMS", (*registry.MECHANISMS, Toy))
    session = open_small_workload(page="compare")
    offered = session.app.multiselect(key="compare_chosen")
    assert offered.options[-2:] == ["Toy", "Toy (large)"]
    run_comparison(session, ["wff", "toy (size=large)"])
    (reason,) = (
        m.value for m in session.app.markdown if "**Toy (large):**" in m.value.replace("\\", "")
    )
    # Comparisons run in worker processes, which import the registry without the toy mechanism.
    assert "The mechanism 'toy' does not exist" in reason.replace("\\", "")
    session.set(**{mechanism_choice(session).key: "toy"})
    version = session.version
    session.set(fold_mechanism=True).set(**{f"option_size_{version}": "large"})
    assert session.studio.options == {"size": "large"}


def test_pure_epsilon_budget_works_on_pages() -> None:
    session = open_small_workload()
    session.set(budget_unit="pure epsilon")
    assert session.studio.budget == Budget.pure(1.0)
    assert "never satisfies pure epsilon" in session.errors()
    assert session.go("compare", compare_chosen=["laplace"]).metrics()["Privacy budget"] == "ε 1"
    session.go("preview")
    assert "pure epsilon 1" in session.text()
    session.set(**{f"budget_pure epsilon_{session.version}": 0.5})
    session.go("compare")
    session.set(**{mechanism_choice(session).key: "laplace"})
    wait(session.go("preview"))
    assert not session.errors()
    result = plan(WORKLOAD, Budget.pure(0.5), "laplace")
    assert session.metrics()["Typical error (counts)"] == format_number(result.rmse)
    assert run_code(session)["workload_plan"].hash == result.hash
    session.set(budget_unit="rho")
    assert session.studio.budget == Budget(pcost=0.25)
    session.press("undo")
    assert session.studio.budget == Budget.pure(0.5)
    assert session.app.session_state["budget_unit"] == "pure epsilon"
    run_comparison(session, ["laplace", "identity", "wff"])
    assert "most accurate of 2 mechanisms" in session.text()
    assert "Budget.pure(0.5)" in session.app.code[-1].value


def test_base_family_of_one_attribute_is_set() -> None:
    session = open_small_workload(page="compare")
    session.set(**{mechanism_choice(session).key: "residualplanner+"})
    version = session.version
    session.set(fold_mechanism=True).set(**{f"option_base_0_{version}": "range"})
    assert session.studio.options == {"base": {"age": "range"}}
    session.set(**{f"option_base_0_{version}": "as in the workload"})
    assert session.studio.options == {}


def test_budget_text_evaluates_to_budget() -> None:
    for budget in (Budget.pure(0.3), Budget.zcdp(0.1)):
        assert eval(python_script.budget_text(budget), {"Budget": Budget}) == budget


def test_mechanism_accepts_each_of_its_choices() -> None:
    for mechanism in registry.MECHANISMS:
        for option, values in mechanism.choices.items():
            assert option in mechanism.__dataclass_fields__
            for value in values:
                # the option `base` is one family per attribute
                setting = {"x": value} if option == "base" else value
                assert mechanism(**{option: setting}).options()[option] == setting


def test_plan_for_largest_error_is_compared() -> None:
    session = run_comparison(open_small_workload(), MECHANISMS[:2])
    label = "querysmasher (objective=max)"
    assert label not in session.text()
    key = f"option_objective_{session.version}"
    session.set(fold_mechanism=True)
    session.set(**{key: "max"})
    session.until(lambda: "Done: the results are below" in session.text())
    assert session.app.session_state["compare_chosen"] == [label, *MECHANISMS[:2]]
    assert "not compared" not in mechanism_choice(session).options[0]
    results = run_code(session)["results"].frame.set_index("mechanism")
    assert results["max_std"].idxmin() == label
    assert session.app.session_state["compare_criterion_max"] == "max_std"
    assert "most accurate of 3 mechanisms by largest error" in session.text()
    session.press("undo")  # the plan for the largest error can still be compared
    assert session.app.session_state["compare_chosen"] == [label, *MECHANISMS[:2]]
    assert "Done: the results are below" in session.text()


def test_code_without_comparison_includes_current_plan() -> None:
    session = open_small_workload().go("compare", compare_chosen=[])
    assert "objective" not in session.app.code[-1].value
    session.set(fold_mechanism=True)
    session.set(**{f"option_objective_{session.version}": "max"})
    assert "('querysmasher', {'objective': 'max'})" in session.app.code[-1].value
