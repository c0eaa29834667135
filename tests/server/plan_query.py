"""Address of the plan that server tests use."""

from __future__ import annotations

from pages.parts.shell import link
from pages.parts.shell.state import RequestState
from tests.app.session import demo_plan

PLAN = demo_plan("survey", (1,))
QUERY = "plan=" + link.packed(RequestState(workload=PLAN.workload, budget=PLAN.budget, options={"centers": "uniform"}))
