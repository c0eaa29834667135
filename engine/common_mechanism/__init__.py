"""Common mechanism: coarse or fine analyses and two-stage releases."""

from engine.common_mechanism.common_plan import CommonPlan
from engine.common_mechanism.selection_rule import NestedPlanRule, against_coarser, by_ways, census_ages

__all__ = [
    "CommonPlan",
    "NestedPlanRule",
    "against_coarser",
    "by_ways",
    "census_ages",
]
