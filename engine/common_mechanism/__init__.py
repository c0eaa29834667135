"""Common mechanism: the choice between coarse and fine analyses in two-stage releases."""

from engine.common_mechanism import stepwise
from engine.common_mechanism.common_mechanism import CommonMechanism, LinearMechanism
from engine.common_mechanism.common_plan import CommonPlan, coarse_or_fine, nested_choices
from engine.common_mechanism.selection_rule import (
    NestedPlanRule,
    census_ages,
    coarse_and_fine,
    level_attributes,
    workloads_by_level,
    workloads_by_way,
)

__all__ = [
    "CommonMechanism",
    "CommonPlan",
    "LinearMechanism",
    "NestedPlanRule",
    "census_ages",
    "coarse_and_fine",
    "coarse_or_fine",
    "level_attributes",
    "nested_choices",
    "stepwise",
    "workloads_by_level",
    "workloads_by_way",
]
