"""Session of the app without a browser, demo schemas and demo plans."""

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
from pages.parts.jobs import job_queue
from pages.parts.shell import permalink
from pages.parts.shell.history import RequestState
from tests.waiting import CEILING, until

ROOT = Path(__file__).resolve().parents[2]
UNIFORM = {"centers": "uniform"}  # the split of the paper


class Session:
    """One session of the app; a step fails if the page shows an exception."""

    def __init__(self, **address: str) -> None:
        self._app, self._began = AppTest.from_file(ROOT / "app.py", default_timeout=CEILING), False
        for name, value in address.items():
            self._app.query_params[name] = value

    @property
    def app(self) -> AppTest:
        """The open page; by default the Schema page."""
        if not self._began:
            self.go("schema")
        return self._app

    def run(self, element: Any) -> Session:
        element.run()
        assert not self.app.exception, [e.value for e in self.app.exception]
        return self

    def until(self, ready: Callable[[], object]) -> Session:
        """Run the page until ``ready()`` is true.

        The page is run whenever the list of jobs has changed, and at least once per second.
        """
        seen, at = self._jobs(), time.monotonic()

        def step() -> None:
            nonlocal seen, at
            if self._jobs() != seen or time.monotonic() - at > 1.0:
                seen = self._jobs()
                self.run(self.app)
                at = time.monotonic()

        if not ready():
            until(ready, step=step, words=self.text)
        return self

    @staticmethod
    def _jobs() -> list[tuple[str, str]]:
        return [(key, job_queue.find(key).state) for key in list(job_queue._JOBS)]

    def go(self, page: str, **fields: Any) -> Session:
        """Open a page with these values of its fields."""
        for key, value in fields.items():
            self._app.session_state[key] = value
        self._began = True
        self.run(self.app.switch_page(f"pages/{page}.py"))
        # AppTest would otherwise open this page again after a button has opened another page.
        self.app._page_hash = ""
        return self

    def press(self, name: str) -> Session:
        buttons = [b for b in self.app.button if b.key == name or b.label.startswith(name)]
        assert buttons, (name, [b.label for b in self.app.button])
        assert not buttons[0].disabled, name
        return self.run(buttons[0].click())

    def set(self, **values: Any) -> Session:
        """Set fields and run the page.

        If a field is not on the page yet, the page is first run with the fields that are already
        set, because these fields can make it appear.
        """
        waiting = False
        for key, value in values.items():
            element = self._widget(key)
            if element is None and waiting:
                element, waiting = self.run(self.app)._widget(key), False
            if element is not None:
                element.set_value(value)
            else:  # AppTest does not list tabs
                self.app.session_state[key] = value
            waiting = True
        return self.run(self.app) if waiting else self

    def _widget(self, key: str) -> Any:
        kinds = (
            "selectbox",
            "multiselect",
            "text_input",
            "text_area",
            "number_input",
            "button_group",
            "checkbox",
        )
        return next(
            (
                e
                for kind in (*kinds, "toggle", "radio")
                for e in getattr(self.app, kind)
                if e.key == key
            ),
            None,
        )

    def metrics(self) -> dict[str, str]:
        return {m.label: m.value for m in self.app.metric}

    def errors(self) -> str:
        return " ".join(e.value for e in self.app.error).replace("\\", "")

    def text(self) -> str:
        kinds = (
            self.app.caption,
            self.app.info,
            self.app.warning,
            self.app.success,
            self.app.markdown,
        )
        return " ".join(e.value for kind in kinds for e in kind).replace("\\", "")

    @property
    def studio(self) -> RequestState:
        return self.app.session_state["history"].present

    @property
    def version(self) -> int:
        """Version of the request, with which the keys of widgets end."""
        return self.app.session_state["history"].version


def demo_schema(name: str) -> Schema:
    return Schema.from_json(demo_data.schemas()[name].read_bytes())


def open_demo_schema(name: str, session: Session | None = None) -> Session:
    """Open the page Schema and upload a demo schema; the workload stays empty."""
    session = session or Session()
    return upload(session.go("schema"), "schema.json", demo_schema(name).to_json().encode())


def upload(session: Session, name: str, content: bytes, key: str = "schema_file") -> Session:
    """Upload a file in the uploader with this key."""
    return session.run(session.app.file_uploader(key=key).upload(name, content, ""))


def open_demo(
    name: str = "cps", ways: tuple[int, ...] = (1, 2), page: str = "preview", **fields: Any
) -> Session:
    """Open a page by an address that holds all k-way marginals of a demo schema.

    ``ways`` lists the values of k; ``fields`` sets widgets of the page.
    """
    studio = RequestState(workload=Workload.all_ways(demo_schema(name), ways), options=UNIFORM)
    return wait(Session(plan=permalink.packed(studio)).go(page, **fields))


def wait(session: Session) -> Session:
    """Run the page until no job is running."""
    return session.until(
        lambda: not any((b.key or "").startswith("cancel_") for b in session.app.button)
    )


@cache
def demo_plan(
    name: str = "cps", ways: tuple[int, ...] = (1, 2), pcost: float = 1.0, centers: str = "uniform"
) -> Plan:
    return plan(Workload.all_ways(demo_schema(name), ways), Budget(pcost=pcost), centers=centers)
