"""A small workload, sessions that compare mechanisms for it, and what their pages show."""

from __future__ import annotations

from typing import Any

from engine.workload import Attribute, Schema, Workload
from pages.parts.shell import link
from pages.parts.shell.state import Studio
from tests.app.session import EVEN, Session

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


def frames(session: Session) -> list[Any]:
    return [element.value for element in session.app.dataframe]


def ran(session: Session) -> dict[str, Any]:
    """What the code of the page makes when it runs."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(session.app.code[-1].value, names)
    return names
