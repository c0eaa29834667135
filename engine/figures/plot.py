"""Default figure of a plan, comparison or measurement."""

from __future__ import annotations

import plotly.graph_objects as go

from engine._validation import check_int, check_type
from engine.analysis.compare import Comparison
from engine.errors import PlanError
from engine.figures.compare import ranking_picture
from engine.figures.errors import error_picture
from engine.figures.release import answers_picture
from engine.plans import Plan
from engine.release import Measurement

MAX_ANSWERS = 100  # more intervals are not legible


def plot(value: Plan | Comparison | Measurement, group: int = 0) -> go.Figure:
    """Return the default plotly figure of a plan, comparison or measurement, as in the app.

    For a plan, it shows the standard errors of the queries of a group; for a comparison, the
    ranking of the mechanisms; for a measurement, the first 100 answers of a group with intervals.
    Errors and answers are in counts.

    >>> from engine import Attribute, Budget, plan, Schema, Workload
    >>> workload = Workload(Schema([Attribute.of_size("age", 4)])).add("age", "prefix")
    >>> plot(plan(workload, Budget(pcost=1.0))).layout.yaxis.title.text
    'standard error (counts)'
    """
    allowed = "a Plan, a Measurement, or what comparison() returns"
    check_type("what to plot", value, (Plan, Comparison, Measurement), give=allowed, error=PlanError)
    if isinstance(value, Comparison):
        return ranking_picture(value).figure
    if isinstance(value, Measurement):
        return answers_picture(value.answers(group, 0, MAX_ANSWERS), rehearsal=value.rehearsal).figure
    check_int("number of the group", group, 0, len(value.workload.groups) - 1, error=PlanError)
    return error_picture(value, group).figure
