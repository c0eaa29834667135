"""Compare page through changes of state, without a browser: every view, its Python, a toy mechanism, other budgets."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

import psutil
import pytest

from engine import Attribute, Budget, Plan, Schema, Workload, plan
from engine.errors import NotApplicable
from engine.insight import comparison, expected, quick_choices
from engine.mechanisms import Forecast, known, title_of, variants
from engine.mechanisms.base import Limits, Mechanism
from engine.plans import Solved
from engine.spaces import Bounded
from engine.texts import amount, cost
from pages.parts.compare import published, run, views
from pages.parts.jobs import kept, plans, work
from pages.parts.shell import budgets as say
from pages.parts.shell import code, link
from pages.parts.shell.state import Studio
from pages.parts.workload import reference_form
from tests.app.test_pages import EVEN, Session, demo, with_plan
from tests.app.test_release import wait
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("comparing")
FEW = ["querysmasher", "wff", "identity", "laplace"]
SCHEMA = Schema([Attribute.of_size("age", 12), Attribute.categorical("sex", ["F", "M"])])
ASKED = Workload.all_ways(SCHEMA, (1, 2))


def with_small(page: str = "preview") -> Session:
    """A session with few queries, which every mechanism answers quickly."""
    return Session(plan=link.packed(Studio(workload=ASKED, options=EVEN))).go(page)


def compared(session: Session, chosen: list[str] = FEW) -> Session:
    """The session with a comparison that is done, and with no other one before it."""
    session.go("compare", compare_chosen=chosen).press("compare_start")
    return session.until(lambda: "Done: the results are below" in session.said())


@pytest.fixture(scope="module")
def small() -> Session:
    return compared(with_small())


def frames(session: Session) -> list[Any]:
    return [element.value for element in session.app.dataframe]


def ran(session: Session) -> dict[str, Any]:
    """What the code of the page makes when it runs."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(session.app.code[-1].value, names)
    return names


def test_an_empty_page_says_what_to_do() -> None:
    session = Session().go("compare")
    assert "nothing to compare yet" in session.said()
    assert next(b for b in session.app.button if b.key == "next").disabled
    for view in ("How errors spread", "A against B", "Strategies"):
        assert "Press Compare above" in session.set(compare_view=view).said()
    assert "Open a plan file" in session.set(compare_view="Two plans").said()
    session = with_small(page="compare").set(compare_chosen=[])
    assert "Choose at least one mechanism" in session.said()


def test_the_quick_ones_are_compared_without_a_word_and_the_others_wait_for_one() -> None:
    session = with_plan("census", page="compare")
    chosen = next(m for m in session.app.multiselect if m.key == "compare_chosen").value
    table = expected(Workload.all_ways(demo("census"), (1, 2)), Budget(pcost=1.0)).set_index("mechanism")
    assert chosen == quick_choices(table.reset_index())
    assert len(chosen) == 5
    assert (table.loc[chosen, "seconds"] <= 1.0).all()
    session.until(lambda: "Done: the results are below" in session.said())
    assert "is the most exact of" in session.said()
    session.press("compare_all")  # chosen, and not begun: the slow ones are asked for
    assert next(m for m in session.app.multiselect if m.key == "compare_chosen").value == list(variants())
    assert not next(b for b in session.app.button if b.key == "compare_start").disabled
    assert "the results of the choice before" in session.said()


def test_every_picture_of_the_ranking_is_there(small: Session) -> None:
    said = small.set(compare_view="Ranking").said()
    for title in ("Who answers these queries best", "What exactness costs in time", "Who loses where"):
        assert title in said
    assert "publishable from this count on" not in said
    small.app.session_state["scale_records"] = 50_000
    best = comparison(ASKED, Budget(pcost=1.0), FEW).frame["rmse"].min()
    assert f"publishable from this count on: QuerySmasher {math.ceil(best / 0.15)}" in small.run(small.app).said()
    small.set(compare_quality=True)
    (table,) = (t.value for t in small.app.dataframe if "attributes" in t.value)
    assert table["QuerySmasher"].between(0.0, 1.0).all()
    assert (
        "Four times the budget halves" in small.set(compare_view="Other budgets").app.get("plotly_chart")[-1].proto.alt
    )


def test_the_ranking_is_the_engines_and_every_variant_can_be_chosen(small: Session) -> None:
    small.set(compare_view="Ranking")
    offered = next(m for m in small.app.multiselect if m.key == "compare_chosen")
    assert offered.options == [title_of(label) for label in variants()]
    found = comparison(ASKED, Budget(pcost=1.0), FEW)
    best = found.frame.iloc[0]
    assert (
        f"{title_of(best['mechanism'])} is the most exact of 3 mechanisms with {amount(best['rmse'])} counts"
        in small.said()
    )
    reasons = next(f for f in frames(small) if "reason" in f)
    assert reasons["mechanism"].tolist() == ["Laplace mechanism"]
    assert "Laplace noise" in reasons["reason"][0]
    assert sorted(ran(small)["found"].plans) == sorted(found.plans)


def test_what_the_views_begin_with_is_there_when_the_comparison_is(monkeypatch: pytest.MonkeyPatch) -> None:
    session, store = with_small(), Bounded[Plan](kept.BYTES)
    monkeypatch.setattr(kept, "_plans", lambda: store)  # nobody has looked at a plan
    compared(session, [FEW[0], FEW[2]])
    for module, name in ((run, "load_plan"), (plans, "plan")):
        monkeypatch.setattr(module, name, None)
    for view in ("A against B", "Strategies", "Two plans"):
        session.set(compare_view=view)
    assert "Both plans have the same typical error" in session.said()


def test_a_second_look_is_there_at_once(small: Session) -> None:
    again = with_small(page="compare").set(compare_chosen=FEW)
    assert "Done: the results are below" in again.said()
    # another choice keeps what there is on screen until it is compared
    assert "the results of the choice before" in again.set(compare_chosen=FEW[:2]).said()
    assert "is the most exact of 3 mechanisms" in again.said()
    fresh = with_small(page="compare").set(compare_chosen=FEW[:2])
    assert "is the most exact of 3" not in fresh.said()  # what another session chose is not shown here


def test_a_mechanism_goes_into_the_studio_with_its_options(small: Session) -> None:
    small.set(compare_view="Ranking")
    assert next(b for b in small.app.button if b.key == "use_querysmasher").disabled
    small.press("use_wff")
    assert small.studio.mechanism == "wff"
    assert next(b for b in small.app.button if b.key == "use_wff").disabled
    assert small.press("undo").studio.mechanism == "querysmasher"
    version = small.app.session_state["history"].version
    assert version > 0


def test_distributions(small: Session) -> None:
    small.set(compare_view="How errors spread", spread_of=["wff", "identity"])
    assert "95% are within" in small.said()
    assert "wff" in small.app.code[-1].value
    assert set(ran(small)["spreads"]) == {"wff", "identity"}
    assert "Choose at least one mechanism to draw" in small.set(spread_of=[]).said()


def test_one_against_another(small: Session) -> None:
    small.set(compare_view="A against B", pair_a="identity", pair_b="wff")
    metrics = small.metrics()
    one, other = (plan(ASKED, Budget(pcost=1.0), name) for name in ("identity", "wff"))
    worse = worst = 0.0
    for i in range(len(ASKED.groups)):
        ratio = (one.variances(i) / other.variances(i)) ** 0.5
        worse += float((ratio > 1.000001).sum())
        worst = max(worst, float(ratio.max()))
    assert metrics["Queries less exact under A"] == f"{worse / ASKED.queries:.1%}"
    assert metrics["Worst ratio A / B"] == amount(worst)
    small.set(pair_group=2).set(pair_across_2=[0])
    assert not small.errors()
    assert ran(small)["lost"].worst == pytest.approx(worst, rel=1e-6)


def test_strategies(small: Session) -> None:
    small.set(compare_view="Strategies", strategy_of_0="identity")
    assert "Kronecker product of its factors" in small.said()
    small.set(strategy_of_0="querysmasher")
    assert not small.errors()
    assert isinstance(ran(small)["made"], Plan)


def test_two_plans(small: Session) -> None:
    small.set(compare_view="Two plans", diff_first="querysmasher", diff_second_False="identity")
    assert "The mechanism differs: querysmasher and identity." in small.said()
    other = plan(Workload.all_ways(SCHEMA, (1,)), Budget(pcost=4.0))
    small.run(small.app.file_uploader(key="diff_file").upload("p.json", other.to_json().encode(), "text/plain"))
    small.set(diff_first="the present plan", diff_second_True="the uploaded file")
    assert "The budget differs: pcost 1 and pcost 4." in small.said()
    assert "1 group only the first plan has." in small.said()
    assert 'Path("plan.json")' in small.app.code[-1].value
    small.run(small.app.file_uploader(key="diff_file").upload("p.json", b"{}", "text/plain"))
    assert "not a plan file" in small.errors()
    small.set(compare_view="Ranking")


def test_published_numbers() -> None:
    session = Session().go("compare").set(compare_view="Published numbers", book_row=4)
    work.forget("published|4")
    assert "has not been computed yet" in session.run(session.app).said()
    session.press("book_start")
    session.until(lambda: "Ours" in session.metrics())
    assert float(session.metrics()["Ours / paper"]) == pytest.approx(1.0, abs=2e-3)
    table = next(f for f in frames(session) if "ours / paper" in f)
    assert table.loc[table["workload"] == "CPS 1-way", "ours"].tolist() == pytest.approx([3.135], abs=1e-3)
    assert ran(session)["row"].printed == 3.135


def test_published_errors_are_rehearsed_in_a_worker_and_told_with_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published, "adaptive_missing", lambda: "AIM and MST need a package.")
    asked = Workload.all_ways(Schema.from_json('{"a": 9, "b": 8}'), (1, 2), "marginal")
    session = Session(plan=link.packed(Studio(workload=asked))).go("compare")
    session.set(compare_view="Published error, simulated")
    assert "AIM and MST need a package." in session.said()
    assert "never the records that are to be protected" in session.said()
    assert next(m for m in session.app.multiselect if m.key == "standing_adaptive").disabled
    session.set(standing_of=["querysmasher", "identity"], standing_rows=2_000, standing_rehearsals=2)
    session.press("standing_start")
    session.until(lambda: "Without a result" in " ".join(h.value for h in session.app.subheader))
    assert session.app.button(key="standing_start").disabled
    found = ran(session)["found"]  # what the page offers as Python makes the same
    session.set(twin_standing=True)
    drawn = next(f for f in frames(session) if "QuerySmasher, published (simulated, biased)" in f)
    own = found.frame[found.frame["way"] == "QuerySmasher, published"]
    assert drawn["QuerySmasher, published (simulated, biased)"].tolist() == pytest.approx(own["error"].tolist())
    reasons = next(f for f in frames(session) if "reason" in f)
    assert set(reasons["way"]) == {"Identity, published"}
    assert all(words in session.said() for words in found.words(lambda p: say.said(Budget(pcost=p))))
    session.set(standing_reference=reference_form.PUBLIC)
    assert session.app.button(key="standing_start").disabled
    assert "nothing to compare yet" in Session().go("compare").set(compare_view="Published error, simulated").said()


def test_cancelling_ends_every_process() -> None:
    asked = Workload.all_ways(demo("adult"), (1, 2, 3))
    work.start("slow", slow, asked.to_json(), gentle=True)
    found = lambda: work.find("slow")  # noqa: E731
    until(lambda: found().text.startswith("Comparing: querysmasher") and workers(), words=lambda: found().text)
    work.cancel("slow")
    until(lambda: not found().running and not workers(), words=lambda: found().state)
    assert found().state == "cancelled"


def test_a_comparison_can_be_cancelled_on_the_page_and_asked_again() -> None:
    pair = Workload(Schema([Attribute.of_size("a", 150), Attribute.of_size("b", 100)]))
    coupled = pair.add(("a", "b"), "prefix").add(("a", "b"), "range", weight=2.0)  # quick at first, long to tune
    session = Session(plan=link.packed(Studio(workload=coupled)))
    session.set(compare_chosen=["wff", "querysmasher (centers=tuned)"]).go("compare")
    session.press("compare_start")
    assert "The comparison is running" in session.said()
    assert "Press Compare above" not in session.said()
    session.until(lambda: "1 of 2 mechanisms so far" in session.said())
    assert f"{title_of('wff')} is the most exact of 1 mechanism" in session.said()
    session.press("Cancel")
    session.until(lambda: "cancelled" in session.said())
    assert not next(b for b in session.app.button if b.key == "compare_start").disabled
    assert "the most exact" not in session.said()


def test_a_choice_of_ones_own_is_offered_and_leaves_with_its_mechanism() -> None:
    session = with_small()
    version = session.app.session_state["history"].version
    session.set(fold_mechanism=True).set(**{f"option_solver_{version}": "fourier"}).go("compare")
    own = "querysmasher (solver=fourier)"
    compared(session, [own, "wff"]).press("use_wff").go("preview").go("compare")
    offered = next(m for m in session.app.multiselect if m.key == "compare_chosen")
    assert title_of(own) not in offered.options
    assert offered.value == ["wff"]


def slow(workload: str, *, progress: Callable[[float, str], bool]) -> object:
    choices = [("querysmasher", {"centers": "tuned"})]
    return comparison(Workload.from_json(workload), Budget(pcost=3.0), choices, jobs=1, progress=progress)


def workers() -> list[int]:
    """Processes that the keepers of these tests forked and that still run."""
    found = []
    for one in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):  # ended meanwhile; a zombie is one of these
            if "loky" in " ".join(one.cmdline()):
                found += [p.pid for p in one.children() if p.status() != psutil.STATUS_ZOMBIE]
    return found


@dataclass(frozen=True, kw_only=True)
class Toy(Mechanism):
    """Plans nothing."""

    name: ClassVar[str] = "toy"
    title: ClassVar[str] = "Toy"
    meaning: ClassVar[str] = "Only here to be seen."
    variants: ClassVar[tuple[dict, ...]] = ({}, {"size": "large"})
    choices: ClassVar[dict[str, tuple]] = {"size": ("small", "large")}

    size: str = "small"

    def forecast(self, workload: Workload, limits: Limits) -> Forecast:
        return Forecast(seconds=0.5, memory=1e6, text="nothing")

    def plan(self, workload: Workload, budget: Budget, limits: Limits) -> Plan:
        raise NotApplicable("A toy plans nothing.")

    def rebuild(self, workload: Workload, budget: Budget, solved: Solved) -> Plan:
        raise NotApplicable("A toy plans nothing.")


def test_a_new_mechanism_appears_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "MECHANISMS", (*known.MECHANISMS, Toy))
    session = with_small(page="compare")
    offered = next(m for m in session.app.multiselect if m.key == "compare_chosen")
    assert offered.options[-2:] == ["Toy", "Toy, large"]
    compared(session, ["wff", "toy (size=large)"])
    reasons = next(f for f in frames(session) if "reason" in f)
    assert reasons["mechanism"].tolist() == ["Toy, large"]
    assert "There is no mechanism 'toy'" in reasons["reason"][0]  # the processes have their own engine
    session.go("preview")
    version = session.app.session_state["history"].version
    session.set(fold_mechanism=True).set(**{f"mechanism_{version}": "toy"})
    version = session.app.session_state["history"].version
    session.set(**{f"option_size_{version}": "large"})
    assert session.studio.options == {"size": "large"}


def test_pure_epsilon_is_a_budget_of_its_own_kind() -> None:
    session = with_small()
    session.set(budget_unit="pure epsilon")
    assert session.studio.budget == Budget.pure(1.0)
    assert "keeps no budget of pure epsilon" in session.errors()
    assert session.go("compare", compare_chosen=["laplace"]).metrics()["Privacy cost"] == "ε 1"
    session.go("preview")
    assert "pure epsilon 1" in session.said()
    version = session.app.session_state["history"].version
    session.set(**{"budget_pure epsilon_" + str(version): 0.5})
    wait(session.set(fold_mechanism=True).set(**{f"mechanism_{version}": "laplace"}))
    assert not session.errors()
    made = plan(ASKED, Budget.pure(0.5), "laplace")
    assert session.metrics()["Typical error (counts)"] == amount(made.rmse)
    assert ran(session)["made"].hash == made.hash
    session.set(budget_unit="rho")
    assert session.studio.budget == Budget(pcost=0.25)
    session.press("undo")
    assert session.studio.budget == Budget.pure(0.5)
    assert session.app.session_state["budget_unit"] == "pure epsilon"
    compared(session, ["laplace", "identity", "wff"])
    assert "most exact of 2 mechanisms" in session.said()
    assert "Budget.pure(0.5)" in session.app.code[-1].value


def test_a_base_family_for_one_attribute() -> None:
    session = with_small()
    session.set(fold_mechanism=True).set(
        **{f"mechanism_{session.app.session_state['history'].version}": "residualplanner+"}
    )
    version = session.app.session_state["history"].version
    session.set(**{f"option_base_0_{version}": "range"})
    assert session.studio.options == {"base": {"age": "range"}}
    session.set(**{f"option_base_0_{version}": "as asked"})
    assert session.studio.options == {}


def test_budgets_as_python() -> None:
    for budget in (Budget.pure(0.3), Budget.zcdp(0.1)):
        assert eval(code.budget_text(budget), {"Budget": Budget}) == budget


def test_every_mechanism_allows_the_choices_it_offers() -> None:
    for mechanism in known.MECHANISMS:
        for option, values in mechanism.choices.items():
            assert option in mechanism.__dataclass_fields__
            for value in values:
                made = mechanism(**{option: {"x": value} if option == "base" else value})
                assert made.options()[option] in (value, {"x": value})


def test_a_plan_of_a_comparison_is_the_present_one(small: Session) -> None:
    label, (name, options) = run.present(small.studio)
    assert (label, name, dict(options)) == ("querysmasher", "querysmasher", {})
    assert math.isfinite(comparison(small.studio.workload, Budget(pcost=1.0), FEW).bound)


def test_a_dot_of_another_budget_is_taken_with_its_mechanism(small: Session) -> None:
    before = small.studio
    small.set(compare_view="Other budgets")
    assert "Choose a dot" in small.said()
    # what a click on the lines leaves behind
    small.app.session_state["only_here"][views.DOT] = (before.key, "wff", 10.0)
    small.run(small.app)
    made = plan(before.asked, Budget(pcost=10.0), "wff")
    said = f"{title_of('wff')} at ε {cost(made.budget.epsilon(1e-6))}: typical error {amount(made.rmse)} counts"
    assert said in small.said().replace("*", "")
    small.press("use_dot")
    assert (small.studio.mechanism, small.studio.budget) == ("wff", Budget(pcost=10.0))
    assert "typical error" not in small.said()  # the dot was one of another budget
    assert small.press("undo").studio is before
