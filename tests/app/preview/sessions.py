"""Sessions on the Preview page."""

from __future__ import annotations

from engine.workload import Workload
from pages.parts.shell import permalink
from pages.parts.shell.history import RequestState
from tests.app.session import UNIFORM, Session


def wait_for_changes(session: Session) -> Session:
    """Wait until the page shows the changes that lower the error of the selected table."""
    return session.until(lambda: any(b.key == "what_if_budget" for b in session.app.button))


def open_preview(workload: Workload, **fields: object) -> Session:
    return Session(
        plan=permalink.packed(RequestState(workload=workload, **{"options": UNIFORM} | fields))
    ).go("preview")
