"""Mechanisms: from workload and budget to a plan."""

from engine.mechanisms.registry import (
    MECHANISMS,
    at_budget,
    forecast,
    label_of,
    load_plan,
    mechanism_class,
    plan,
    title_of,
    variants,
)

__all__ = [
    "MECHANISMS",
    "at_budget",
    "forecast",
    "label_of",
    "load_plan",
    "mechanism_class",
    "plan",
    "title_of",
    "variants",
]
