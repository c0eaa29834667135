"""Schema, Workload and Preview pages through changes of state, without a browser."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from streamlit.runtime.pages_manager import PagesManager
from streamlit.testing.v1 import AppTest

import demo_data
from engine import Attribute, Budget, Plan, Schema, Workload, plan
from engine.gaussian import mu_of_guess
from engine.texts import amount
from pages.parts.jobs import work
from pages.parts.shell import frame, link
from pages.parts.shell.state import Studio
from tests.waiting import CEILING, until

ROOT = Path(__file__).resolve().parents[2]
EVEN = {"centers": "uniform"}  # the split of the paper, whose figures the tests know


class Session:
    """One session of the app; no step may end in an exception on the page."""

    def __init__(self, **address: str) -> None:
        self._app, self._began = AppTest.from_file(ROOT / "app.py", default_timeout=CEILING), False
        for name, value in address.items():
            self._app.query_params[name] = value

    @property
    def app(self) -> AppTest:
        """What is on the page: that of the schema, unless another one was gone to first."""
        if not self._began:
            self.go("schema")
        return self._app

    def run(self, element: Any) -> Session:
        element.run()
        assert not self.app.exception, [e.value for e in self.app.exception]
        return self

    def until(self, ready: Callable[[], object]) -> Session:
        """Run the page until work beside it has come so far: whenever a job begins or ends, and at times."""
        seen, at = self._jobs(), time.monotonic()

        def step() -> None:
            nonlocal seen, at
            if self._jobs() != seen or time.monotonic() - at > 1.0:
                seen = self._jobs()
                self.run(self.app)
                at = time.monotonic()

        if not ready():
            until(ready, step=step, words=self.said)
        return self

    @staticmethod
    def _jobs() -> list[tuple[str, str]]:
        return [(key, work.find(key).state) for key in list(work._JOBS)]

    def go(self, page: str, **left: Any) -> Session:
        """Open a page, which may have been left with some of its widgets filled in."""
        for key, value in left.items():
            self._app.session_state[key] = value
        self._began = True
        self.run(self.app.switch_page(f"pages/{page}.py"))
        self.app._page_hash = ""  # or the page would come back after a button that leads to another one
        return self

    def press(self, name: str) -> Session:
        found = [b for b in self.app.button if b.key == name or b.label.startswith(name)]
        assert found, (name, [b.label for b in self.app.button])
        assert not found[0].disabled, name
        return self.run(found[0].click())

    def set(self, **values: Any) -> Session:
        """Set what stands on the page at once, and what only then appears after a run."""
        waiting = False
        for key, value in values.items():
            element = self._widget(key)
            if element is None and waiting:
                element, waiting = self.run(self.app)._widget(key), False
            if element is not None:
                element.set_value(value)
            else:  # tabs are no widgets to AppTest
                self.app.session_state[key] = value
            waiting = True
        return self.run(self.app) if waiting else self

    def _widget(self, key: str) -> Any:
        kinds = ("selectbox", "multiselect", "text_input", "text_area", "number_input", "button_group", "checkbox")
        return next((e for kind in (*kinds, "toggle", "radio") for e in getattr(self.app, kind) if e.key == key), None)

    def metrics(self) -> dict[str, str]:
        return {m.label: m.value for m in self.app.metric}

    def errors(self) -> str:
        return " ".join(e.value for e in self.app.error).replace("\\", "")

    def said(self) -> str:
        kinds = (self.app.caption, self.app.info, self.app.warning, self.app.success, self.app.markdown)
        return " ".join(e.value for kind in kinds for e in kind).replace("\\", "")

    @property
    def studio(self) -> Studio:
        return self.app.session_state["history"].present


def demo(name: str) -> Schema:
    return Schema.from_json(demo_data.schemas()[name].read_bytes())


def with_plan(name: str = "cps", ways: tuple[int, ...] = (1, 2), page: str = "preview", **left: Any) -> Session:
    """A session with all k-way sets of a demo schema, which comes to a page, left as it is told, by its address."""
    asked = Studio(workload=Workload.all_ways(demo(name), ways), options=EVEN)
    return wait(Session(plan=link.packed(asked)).go(page, **left))


def wait(session: Session) -> Session:
    """Run the page until no work goes on; on a busy machine also a plan is made in a worker."""
    return session.until(lambda: not any((b.key or "").startswith("cancel_") for b in session.app.button))


@cache
def expected(name: str = "cps", ways: tuple[int, ...] = (1, 2), pcost: float = 1.0, centers: str = "uniform") -> Plan:
    return plan(Workload.all_ways(demo(name), ways), Budget(pcost=pcost), centers=centers)


def test_the_first_page_is_empty_and_says_what_to_do() -> None:
    session = Session()
    assert "No schema yet" in session.said()
    assert "choose or build a schema first" in session.said()
    assert next(b for b in session.app.button if b.key == "next").disabled
    for page in ("workload", "preview", "release"):
        session.go(page)
        assert "no schema yet" in session.said() or "nothing to plan" in session.said()
        assert not session.errors()


def test_a_page_that_is_opened_before_the_frame_ever_ran_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PagesManager, "uses_pages_directory", None)
    session = Session()
    assert [t.value for t in session.app.title] == ["📋 Schema"]
    assert PagesManager.uses_pages_directory is False  # it was True until the frame ran
    assert [b.key for b in session.app.button if b.key in ("undo", "redo")] == ["undo", "redo"]


def test_a_newcomer_starts_with_a_demo_and_comes_back_to_it() -> None:
    session = Session().go("start")
    assert not any(b.key == "go_on" for b in session.app.button)
    assert "Schema → Workload → Preview → Compare, Coarse or fine → Release" in session.said()
    session.set(start_demo="census").press("start_Try a demo")
    assert session.app.title[0].value.endswith("Preview")
    assert session.studio.workload == Workload.all_ways(demo("census"), (1, 2))
    assert "✓ Schema → ✓ Workload" in session.said()
    session.go("start")
    assert "✓ Schema → ✓ Workload → ✓ Preview →" in session.said()
    assert session.press("go_on").app.title[0].value.endswith("Preview")
    # how budgets are said is chosen once, and every page says them so
    session.set(budget_unit="guessing risk")
    for page in ("start", "workload", "preview", "compare", "release"):
        session.go(page)
        assert "Budget: risk 69.2%" in session.said(), page
        assert not session.errors()
    session.go("preview").set(**{"budget_guessed right, % of the time_1": 60.0})
    assert session.studio.budget == Budget.gdp(mu_of_guess(60.0))
    assert session.go("start").metrics()["Privacy cost"] == "risk 60%"
    session.set(budget_unit="pure epsilon")  # which is another kind of budget, chosen anywhere
    assert session.studio.budget.pure_epsilon
    session.set(budget_unit="epsilon, delta")
    assert session.go("start").press("start_Use my own schema").app.title[0].value.endswith("Schema")
    assert session.go("start").press("start_Take a lesson").app.title[0].value.endswith("Learn")


def test_every_page_has_frame_summary_and_code() -> None:
    session = with_plan()
    for page in frame.PAGES:
        session.go(Path(page.file).stem)
        assert f"**{page.title}**" in session.said() or page.title in ("Start", "Learn", "Guide")
        assert session.app.title[0].value == f"{page.icon} {page.title}"
        assert "5 attributes" in session.said()
        assert "schema = " in session.app.code[-1].value
        assert any(b.key == "undo" for b in session.app.button)


def test_explanations_can_be_switched_off() -> None:
    session = Session()
    assert "public knowledge" in session.said()
    assert "public knowledge" not in session.set(tutorial=False).said()
    assert "groups" not in session.go("workload").said()


def test_explanations_fold_when_one_comes_back() -> None:
    session = Session()
    assert any("public knowledge" in box.value for box in session.app.info)
    session.set(demo="cps").press("Use this schema")
    assert any("public knowledge" in box.value for box in session.app.info)  # it is still the first visit
    session.go("workload").go("schema")
    assert not any("public knowledge" in box.value for box in session.app.info)
    (fold,) = (e for e in session.app.expander if e.label == "What this page is for")
    assert "public knowledge" in fold.markdown[0].value


def test_a_schema_from_a_demo_and_back() -> None:
    session = Session().set(demo="adult").press("Use this schema")
    assert session.metrics()["Attributes"] == "14"
    assert session.studio.schema == demo("adult")
    session.set(demo="census").press("Use this schema")
    assert session.metrics()["Attributes"] == "2"
    assert session.press("undo").metrics()["Attributes"] == "14"
    assert session.press("redo").metrics()["Attributes"] == "2"
    assert "No schema yet" in session.press("undo").press("undo").said()


def test_attributes_are_added_one_by_one_and_mistakes_lose_nothing() -> None:
    session = Session().set(new_name="sex", new_labels="F\nM").press("Add attribute")
    session.set(new_name="age", domain="Bins", new_edges="0:100:20").press("Add attribute")
    session.set(new_name="code", domain="Codes", new_size=9, new_kind="categorical").press("Add attribute")
    assert session.studio.schema.sizes(["sex", "age", "code"]) == (2, 5, 9)
    before = session.studio.to_json()
    for values in (
        {"new_name": "code", "domain": "Codes"},
        {"new_name": "x", "domain": "Bins", "new_edges": "5, 4"},
        {"new_name": "x", "domain": "Bins", "new_edges": "five"},
        {"new_name": "", "domain": "Codes"},
        {"new_name": "x", "domain": "Labels", "new_labels": "a\na"},
        {"new_name": "x\u202ey", "domain": "Labels", "new_labels": "a"},
    ):
        session.set(**values).press("Add attribute")
        assert session.errors()
        assert session.studio.to_json() == before
    assert not session.set(new_name="x", new_labels="a\nb").press("Add attribute").errors()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", b"{"),
        ("a.json", b"[" * 200_000),
        ("a.json", b'{"age": 5, "sex": "two"}'),
        ("a.json", b"\xff\xfe\x00"),
        ("a.csv", b"name,size\n"),
        ("a.csv", b"name,kind,size\nage,numeric,-4\n"),
        ("a.csv", b""),
    ],
)
def test_files_that_are_no_schema(name: str, content: bytes) -> None:
    session = Session().set(demo="cps").press("Use this schema")
    session.run(session.app.file_uploader(key="schema_file").upload(name, content, "text/plain"))
    assert session.errors()
    assert session.studio.schema == demo("cps")


@pytest.mark.parametrize("name", ["mine.json", "mine.csv"])
def test_a_schema_file(name: str) -> None:
    schema = demo("survey")
    content = (schema.to_json() if name.endswith("json") else schema.to_csv()).encode()
    session = Session()
    session.run(session.app.file_uploader(key="schema_file").upload(name, content, "text/plain"))
    assert session.studio.schema == schema


def test_another_schema_keeps_the_groups_that_fit_and_names_the_rest() -> None:
    session = with_plan(page="schema").set(demo="census").press("Use this schema")
    assert "12 groups no longer fit" in session.said()
    assert len(session.studio.workload.groups) == 3
    assert len(session.press("undo").studio.workload.groups) == 15
    assert "no longer fit" not in session.said()


def test_a_workload_of_every_kind() -> None:
    schema = Schema([Attribute.of_size("age", 12), Attribute.of_size("income", 9), Attribute.of_size("sex", 2)])
    session = Session(plan=link.packed(Studio(workload=Workload(schema)))).go("workload")
    assert "add at least one group" in session.said()
    session.set(ways=[1], special=["age"], own_age="range").press("add_ways")
    assert session.metrics()["Groups"] == "3"
    assert session.metrics()["Queries"] == str(12 * 13 // 2 + 9 + 2)
    session.set(add_how="One set of attributes").press("add_total")
    own = {"own_age": "range", "own_income": "circular"}
    session.set(group_names=["age", "income"], group_how="One per attribute", **own, group_weight=2.5)
    session.press("add_group")
    session.set(group_names=["age"], group_how="The same on each", same="width", same_width=3).press("add_group")
    session.set(group_how="Joint", joint="random", joint_p=0.4, joint_count=11).press("add_group")
    session.set(joint="custom", joint_text="age >= 10\nage < 4 or age >= 11").press("add_group")
    # last, because every run of the page forecasts what is asked, and this takes longest
    session.set(group_names=["age", "income"], joint="affine").press("add_group")
    asked = session.studio.workload
    assert [g.family_text for g in asked.groups[3:]] == [
        "total",
        "range × circular",
        "width",
        "random",
        "custom",
        "affine",
    ]
    assert [g.count for g in asked.groups[5:8]] == [10, 11, 2]
    assert asked.groups[4].weight == 2.5
    chosen = f"chosen_{session.app.session_state['history'].version}"
    session.set(**{chosen: [3, 4, 8]}).press("remove")
    assert [g.family_text for g in session.studio.workload.groups[3:]] == ["width", "random", "custom"]
    session.set(new_weight=4.0, **{f"chosen_{session.app.session_state['history'].version}": [0]}).press("weigh")
    assert session.studio.workload.groups[0].weight == 4.0
    assert session.press("clear").studio.workload.groups == ()
    assert len(session.press("undo").studio.workload.groups) == 6


def test_groups_that_do_not_fit_say_why_and_lose_nothing() -> None:
    session = with_plan(page="workload").set(add_how="One set of attributes", group_names=["sex"])
    before = session.studio.to_json()
    for values in (
        {"same": "prefix"},
        {"same": "range"},
        {"group_how": "Joint", "joint": "affine"},
        {"joint": "custom", "joint_text": "height > 3"},
        {"joint_text": "__import__('os').system('true')"},
        {"joint_text": "("},
        {"joint_text": ""},
        {"joint": "random", "joint_p": 1.5},
    ):
        session.set(**values)
        assert session.errors(), values
        assert not any(b.key == "add_group" for b in session.app.button)
    session.set(group_names=["age"], group_how="The same on each", same="width", same_width=51)
    assert "width 51 is more than the 50 cells" in session.errors()
    assert session.studio.to_json() == before


def test_a_matrix_file() -> None:
    session = with_plan(page="workload").set(add_how="One set of attributes", group_names=["sex"])
    session.set(group_how="Joint", joint="custom", joint_how="Matrix file")
    assert "No matrix file" in session.errors()
    session.run(session.app.file_uploader(key="joint_file").upload("m.csv", b"1,1,1\n", "text/csv"))
    assert "3 columns" in session.errors()
    session.run(session.app.file_uploader(key="joint_file").upload("m.csv", b"1,1\n1,-1\n", "text/csv"))
    assert session.press("add_group").studio.workload.groups[-1].count == 2


def test_workload_files() -> None:
    workload = Workload.all_ways(demo("census"), (1, 2))
    session = Session().go("workload")
    for content in (b"{}", b"x", json.dumps({"format": "workload/1", "schema": {}, "groups": []}).encode()):
        session.run(session.app.file_uploader(key="workload_file").upload("w.json", content, "application/json"))
        assert session.errors()
        assert session.studio.workload is None
    content = workload.to_json().encode()
    session.run(session.app.file_uploader(key="workload_file").upload("w.json", content, "application/json"))
    assert session.studio.workload == workload
    assert not session.errors()


def test_too_many_groups_are_refused_in_words() -> None:
    names = {f"a{i}": 2 for i in range(120)}
    session = Session()
    session.run(session.app.file_uploader(key="schema_file").upload("s.json", json.dumps(names).encode(), "text/plain"))
    session.press("next").set(ways=[3])
    assert "280,840 groups" in session.errors()


def test_the_preview_shows_the_plans_own_numbers() -> None:
    session, made = Session().set(demo="cps").press("Use this schema").press("next"), expected(centers="tuned")
    wait(session.set(ways_ask="Cumulative tables", ways=[1, 2]).press("add_ways").press("next"))
    assert session.metrics()["Typical error (counts)"] == amount(made.rmse)
    assert session.metrics()["Largest error (counts)"] == amount(made.max_variance**0.5)
    for unit, values in (("rho", [2.0]), ("mu", [2.0]), ("pcost", [4.0])):
        session.set(budget_unit=unit)
        key = f"budget_{unit}_{session.app.session_state['history'].version}"
        session.set(**{key: values[0]})
        assert session.studio.budget.pcost == 4.0
        assert session.metrics()["Typical error (counts)"] == amount(expected(pcost=4.0, centers="tuned").rmse)
    assert made.rmse == pytest.approx(2 * expected(pcost=4.0, centers="tuned").rmse, rel=1e-6)
    version = session.app.session_state["history"].version
    session.set(budget_unit="epsilon, delta").set(**{f"budget_epsilon_{version}": 1.0})
    assert session.studio.budget == Budget.approx(1.0, 1e-6)
    assert session.press("undo").metrics()["Typical error (counts)"] == amount(
        expected(pcost=4.0, centers="tuned").rmse
    )


@pytest.mark.parametrize(
    ("unit", "key", "value"),
    [
        ("pcost", "pcost", -1.0),
        ("pcost", "pcost", 0.0),
        ("rho", "rho", -1e-9),
        ("mu", "mu", 0.0),
        ("epsilon, delta", "delta", 2.0),
        ("epsilon, delta", "epsilon", 0.0),
        ("guessing risk", "guessed right, % of the time", 50.0),
    ],
)
def test_budgets_that_are_none(unit: str, key: str, value: float) -> None:
    session = with_plan().set(budget_unit=unit)
    before = session.studio.to_json()
    session.set(**{f"budget_{key}_{session.app.session_state['history'].version}": value})
    assert session.errors()
    assert session.studio.to_json() == before
    assert session.metrics()["Typical error (counts)"] == amount(expected().rmse)


def test_every_view_of_a_plan() -> None:
    session, made = with_plan("survey"), expected("survey")
    for fold in ("share", "usable", "shares", "probe", "limit", "promise", "mechanism"):
        session.set(**{f"fold_{fold}": True})
        assert not session.errors()
    session.set(group=12).set(across_12=[1], fixed_12_0=3).set(across_12=[])
    assert "Choose one or two" in session.said()
    session.set(tolerance=1000.0)
    assert "100.0% of 9,417 queries" in session.said()
    session.set(probe_names=["age", "vote"], probe_vote=[1])
    tensor = [[0.0, 1.0]] * 82
    assert session.metrics()["Standard error"] == f"{amount(made.variance_of(('age', 'vote'), tensor) ** 0.5)} counts"
    session.set(probe_how="Write a condition", probe_text="age >= 30 and vote == 'Nobody'")
    assert "does not have" in session.errors()
    session.set(probe_names=["education", "vote", "party"], probe_how="Choose cells")
    assert "does not measure" in session.errors()


def test_mechanisms_and_their_options() -> None:
    session = with_plan()
    version = session.app.session_state["history"].version
    session.set(fold_mechanism=True).set(**{f"option_solver_{version}": "fourier"})
    assert session.studio.taken == {"solver": "fourier"}
    assert session.metrics()["Typical error (counts)"] != amount(expected().rmse)
    session.set(**{f"mechanism_{version}": "residualplanner"})
    assert session.studio.mechanism == "residualplanner"
    assert session.studio.options == {}
    assert session.press("undo").press("undo").metrics()["Typical error (counts)"] == amount(expected().rmse)


def test_a_plan_file_brings_everything_back() -> None:
    made = plan(Workload.all_ways(demo("census"), (2,)), Budget(pcost=0.3), max_records=10**6)
    session = Session().go("preview")
    session.run(session.app.file_uploader(key="plan_file").upload("p.json", b'{"format": "plan/1"}', "text/plain"))
    assert "lacks" in session.errors()
    session.run(session.app.file_uploader(key="plan_file").upload("p.json", made.to_json().encode(), "text/plain"))
    assert session.studio.workload == made.workload
    assert session.metrics()["Typical error (counts)"] == amount(made.rmse)
    assert "max_records=1000000" in session.app.code[-1].value


def test_the_address_brings_the_request_back() -> None:
    session = with_plan()
    session.run(session.app)
    text = session.app.query_params[link.NAME]
    text = text[0] if isinstance(text, list) else text
    again = Session(plan=text).go("preview")
    assert again.studio.to_json() == session.studio.to_json()
    assert again.metrics()["Typical error (counts)"] == amount(expected().rmse)
    assert "damaged" in Session(plan="rubbish").errors()


def test_a_long_plan_waits_for_a_word_and_can_be_cancelled() -> None:
    schema = Schema.from_json('{"x": 80, "y": 50}')
    asked = Workload(schema).add(("x", "y"), "affine").add(("x", "y"), "range")
    here = Studio(workload=asked)
    session = Session(plan=link.packed(here)).go("preview")
    assert "Planning this takes about" in session.said()
    assert "Typical error (counts)" not in session.metrics()
    assert "there is no plan yet" in session.said()
    session.press("plan_now")
    session.press("Cancel")
    for _ in range(100):
        if "cancelled" in session.said():
            break
        session.run(session.app)
    assert "cancelled" in session.said()
    assert any(b.key == "plan_now" for b in session.app.button)


def test_twenty_edits_and_back_again() -> None:
    session = Session().set(demo="survey").press("Use this schema").press("next")
    for k in range(9):
        session.set(add_how="One set of attributes", group_names=[session.studio.schema.names[k % 10]])
        session.press("add_group")
    session.go("preview").set(budget_unit="pcost")
    key = f"budget_pcost_{session.app.session_state['history'].version}"
    for k in range(10):
        session.set(**{key: 1.5 + k})
    after = session.studio.to_json()
    session.go("guide")  # whose page is quickly drawn; the frame with both buttons is that of every page
    for _ in range(20):
        session.press("undo")
    assert session.studio.to_json() == Studio().to_json()
    for _ in range(20):
        session.press("redo")
    assert session.studio.to_json() == after
