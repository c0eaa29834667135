"""The plan that sessions on the server ask for."""

from __future__ import annotations

from pages.parts.shell import link
from pages.parts.shell.state import Studio
from tests.app.session import expected

MADE = expected("survey", (1,))
QUERY = "plan=" + link.packed(Studio(workload=MADE.workload, budget=MADE.budget, options={"centers": "uniform"}))
