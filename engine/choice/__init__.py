"""Coarse or fine: what several analyses share, the rules that choose after a look, and the steps on the ledger.

To touch: a rule is a class in `rules` (small domains) or `plan_rule` (plans); `stepwise` keeps look, decide, finish.
"""

from engine.choice import stepwise
from engine.choice.analyses import against_coarser, by_ways, census_ages
from engine.choice.common_mechanism import CommonMechanism
from engine.choice.common_plan import CommonPlan, coarse_or_fine, nested_choices
from engine.choice.linear import LinearMechanism
from engine.choice.look_plan import price
from engine.choice.plan_rule import NestedPlanRule
from engine.choice.rivals import Compared, compare_rivals, even_totals
from engine.choice.rules import ROUNDING, Decision
from engine.choice.step_records import counted_for_steps
from engine.choice.step_state import Steps

__all__ = [
    "ROUNDING",
    "CommonMechanism",
    "CommonPlan",
    "Compared",
    "Decision",
    "LinearMechanism",
    "NestedPlanRule",
    "Steps",
    "against_coarser",
    "by_ways",
    "census_ages",
    "coarse_or_fine",
    "compare_rivals",
    "counted_for_steps",
    "even_totals",
    "nested_choices",
    "price",
    "stepwise",
]
