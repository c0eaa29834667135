"""Default figure of a plan, comparison or measurement."""

from __future__ import annotations

import plotly.graph_objects as go

from engine._validation import instance, whole
from engine.analysis.compare import Comparison
from engine.errors import PlanError
from engine.figures.compare import ranking_picture
from engine.figures.errors import error_picture
from engine.figures.release import answers_picture
from engine.plans import Plan
from engine.release import Measurement

MOST_ANSWERS = 100  # intervals that can still be told apart


def plot(found: Plan | Comparison | Measurement, group: int = 0) -> go.Figure:
    """Return the figure that the app shows, to draw, change or save.

    Of a plan the standard errors of a group's queries, of a comparison the mechanisms in order, and of a measurement
    the first 100 answers of a group with their intervals, all in counts.

    >>> from engine.workload import Attribute, Schema, Workload
    >>> from engine.privacy.budget import Budget
    >>> from engine.mechanisms import plan
    >>> made = plan(Workload(Schema([Attribute.of_size("age", 4)])).add("age", "prefix"), Budget(pcost=1.0))
    >>> plot(made).layout.yaxis.title.text
    'standard error (counts)'
    """
    give = "a Plan, a Measurement, or what comparison() returns"
    instance("what to plot", found, (Plan, Comparison, Measurement), give=give, error=PlanError)
    if isinstance(found, Comparison):
        return ranking_picture(found).figure
    if isinstance(found, Measurement):
        return answers_picture(found.answers(group, 0, MOST_ANSWERS), rehearsal=found.rehearsal).figure
    whole("number of the group", group, 0, len(found.workload.groups) - 1, error=PlanError)
    return error_picture(found, group).figure
