"""A session on the Preview page."""

from __future__ import annotations

from engine.workload import Workload
from pages.parts.shell import link
from pages.parts.shell.state import Studio
from tests.app.session import EVEN, Session


def opened(workload: Workload, **fields: object) -> Session:
    """A session on the Preview page with this workload."""
    return Session(plan=link.packed(Studio(workload=workload, **{"options": EVEN} | fields))).go("preview")
