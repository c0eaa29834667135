"""Sessions on the page Compare with a small workload."""

from __future__ import annotations

from typing import Any

from engine.workload import Attribute, Schema, Workload
from pages.parts.shell import permalink
from pages.parts.shell.history import RequestState
from tests.app.session import UNIFORM, Session

MECHANISMS = ["querysmasher", "wff", "identity", "laplace"]
SCHEMA = Schema([Attribute.of_size("age", 12), Attribute.categorical("sex", ["F", "M"])])
WORKLOAD = Workload.all_ways(SCHEMA, (1, 2))


def open_small_workload(page: str = "preview") -> Session:
    """Open a page with few queries, which every mechanism plans quickly."""
    return Session(plan=permalink.packed(RequestState(workload=WORKLOAD, options=UNIFORM))).go(page)


def run_comparison(session: Session, chosen: list[str] = MECHANISMS) -> Session:
    """Compare mechanisms in the session and wait for the result."""
    session.go("compare", compare_chosen=chosen).press("compare_start")
    return session.until(lambda: "Done: the results are below" in session.text())


def mechanism_choice(session: Session) -> Any:
    """Return the widget that chooses the mechanism of the plan."""
    return next(s for s in session.app.selectbox if s.label == "Mechanism of your plan")


def data_frames(session: Session) -> list[Any]:
    return [element.value for element in session.app.dataframe]


def run_code(session: Session) -> dict[str, Any]:
    """Run the code of the page and return its variables."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(session.app.code[-1].value, names)
    return names
