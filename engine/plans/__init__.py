"""Plans: blocks, noise, privacy cost, variances, objectives and plan files."""

from engine.plans.blocks import Block
from engine.plans.plan import Plan
from engine.plans.reconstruction import SpaceAnswers

__all__ = [
    "Block",
    "Plan",
    "SpaceAnswers",
]
