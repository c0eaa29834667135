"""A session of the app without a browser: pages, widgets, what they say, and plans to expect."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from streamlit.testing.v1 import AppTest

import demo_data
from engine.mechanisms import plan
from engine.plans import Plan
from engine.privacy import Budget
from engine.workload import Schema, Workload
from pages.parts.jobs import work
from pages.parts.shell import link
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
        buttons = [b for b in self.app.button if b.key == name or b.label.startswith(name)]
        assert buttons, (name, [b.label for b in self.app.button])
        assert not buttons[0].disabled, name
        return self.run(buttons[0].click())

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
    studio = Studio(workload=Workload.all_ways(demo(name), ways), options=EVEN)
    return wait(Session(plan=link.packed(studio)).go(page, **left))


def wait(session: Session) -> Session:
    """Run the page until no work goes on; on a busy machine also a plan is made in a worker."""
    return session.until(lambda: not any((b.key or "").startswith("cancel_") for b in session.app.button))


@cache
def expected(name: str = "cps", ways: tuple[int, ...] = (1, 2), pcost: float = 1.0, centers: str = "uniform") -> Plan:
    return plan(Workload.all_ways(demo(name), ways), Budget(pcost=pcost), centers=centers)
