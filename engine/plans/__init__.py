"""Plans: blocks with their noise and privacy cost, variances of every query in closed form, objectives, plan files.

To touch: an objective is one class in `objectives`; a plan recomputes its privacy cost from what it will release.
No record is read here and nothing is drawn.
"""

from engine.plans.answers import SpaceAnswers, TableAnswers
from engine.plans.blocks import (
    DEVIATION,
    GUARD,
    MAX_JOINT,
    MAX_RECORDS,
    Block,
    apply_factors,
    calibrate,
    cells_pcost,
    joint_pcost,
    joint_share,
    noise_grid,
    on_curve,
    strategies_of,
    total_pcost,
    undo_factors,
)
from engine.plans.emphasis import Emphasis
from engine.plans.explicit import Component, ExplicitPlan, answered_by, component_blocks, explicit_strategy
from engine.plans.file import check_rebuilt, parse_plan
from engine.plans.footprint import Footprint, footprint
from engine.plans.group_variance import SLAB, GroupVariance, Summand
from engine.plans.marginals import MarginalsPlan
from engine.plans.neighbours import row_pcosts
from engine.plans.objectives import (
    LARGEST_POWER,
    OBJECTIVES,
    Asked,
    Objective,
    Symmetry,
    check_targets,
    footprints,
    objective,
    symmetry,
)
from engine.plans.plan import Plan
from engine.plans.shares import best_shares
from engine.plans.solved import Lines, Solved, Tradeoff
from engine.plans.variance import VarianceBuilder

__all__ = [
    "DEVIATION",
    "GUARD",
    "LARGEST_POWER",
    "MAX_JOINT",
    "MAX_RECORDS",
    "OBJECTIVES",
    "SLAB",
    "Asked",
    "Block",
    "Component",
    "Emphasis",
    "ExplicitPlan",
    "Footprint",
    "GroupVariance",
    "Lines",
    "MarginalsPlan",
    "Objective",
    "Plan",
    "Solved",
    "SpaceAnswers",
    "Summand",
    "Symmetry",
    "TableAnswers",
    "Tradeoff",
    "VarianceBuilder",
    "answered_by",
    "apply_factors",
    "best_shares",
    "calibrate",
    "cells_pcost",
    "check_rebuilt",
    "check_targets",
    "component_blocks",
    "explicit_strategy",
    "footprint",
    "footprints",
    "joint_pcost",
    "joint_share",
    "noise_grid",
    "objective",
    "on_curve",
    "parse_plan",
    "row_pcosts",
    "strategies_of",
    "symmetry",
    "total_pcost",
    "undo_factors",
]
