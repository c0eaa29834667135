"""Common mechanism: coarse or fine analyses and two-stage releases."""

from engine.common_mechanism import stepwise
from engine.common_mechanism.common_mechanism import CommonMechanism, LinearMechanism
from engine.common_mechanism.common_plan import CommonPlan, coarse_or_fine, nested_choices
from engine.common_mechanism.selection_rule import NestedPlanRule, against_coarser, by_ways, census_ages

__all__ = [
    "CommonMechanism",
    "CommonPlan",
    "LinearMechanism",
    "NestedPlanRule",
    "against_coarser",
    "by_ways",
    "census_ages",
    "coarse_or_fine",
    "nested_choices",
    "stepwise",
]
