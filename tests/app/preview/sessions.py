"""Sessions on the Preview page."""

from __future__ import annotations

from engine.workload import Workload
from pages.parts.shell import link
from pages.parts.shell.state import RequestState
from tests.app.session import UNIFORM, Session


def open_preview(workload: Workload, **fields: object) -> Session:
    return Session(plan=link.packed(RequestState(workload=workload, **{"options": UNIFORM} | fields))).go("preview")
