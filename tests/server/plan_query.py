"""Address of the plan that server tests use."""

from __future__ import annotations

from pages.parts.shell import permalink
from pages.parts.shell.history import RequestState
from tests.app.session import demo_plan

PLAN = demo_plan("survey", (1,))
QUERY = "plan=" + permalink.packed(
    RequestState(workload=PLAN.workload, budget=PLAN.budget, options={"centers": "uniform"})
)
