"""Mechanisms: workload and budget in, plan out; ``plan``, ``forecast`` and ``load_plan`` choose one by its name.

To touch: a new mechanism is one file here and one name in ``known.MECHANISMS``; forms, comparison and tests follow.
Files that hold a mechanism import none of each other; `residual` and `explicit` hold what they have in common.
What the app and the command line take where nobody said anything: ``usual``.
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
    label_of,
    load_plan,
    mechanism_class,
    plan,
    title_of,
    variants,
)
from engine.mechanisms.usual import Usual, implied_options, usual_options

__all__ = [
    "AIMS",
    "LIMITS",
    "MECHANISMS",
    "Forecast",
    "Mechanism",
    "PlanOptions",
    "Usual",
    "at_budget",
    "check_request",
    "checked_options",
    "forecast",
    "implied_options",
    "known",
    "label_of",
    "load_plan",
    "mechanism_class",
    "plan",
    "title_of",
    "usual_options",
    "variants",
]
