"""Mechanisms: workload and budget in, plan out; ``plan``, ``forecast`` and ``load_plan`` choose one by its name.

To touch: a new mechanism is one file here and one name in ``known.MECHANISMS``; forms, comparison and tests follow.
Files that hold a mechanism import none of each other; `residual` and `explicit` hold what they have in common.
"""

from engine.mechanisms import known
from engine.mechanisms.base import Forecast, Mechanism, PlanOptions, check_request
from engine.mechanisms.known import (
    AIMS,
    LIMITS,
    MECHANISMS,
    at_budget,
    checked_options,
    forecast,
    load_plan,
    mechanism_class,
    plan,
)

__all__ = [
    "AIMS",
    "LIMITS",
    "MECHANISMS",
    "Forecast",
    "Mechanism",
    "PlanOptions",
    "at_budget",
    "check_request",
    "checked_options",
    "forecast",
    "known",
    "load_plan",
    "mechanism_class",
    "plan",
]
