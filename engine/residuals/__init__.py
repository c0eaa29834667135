"""Residual spaces: decomposition, certified optimal strategies, tuned splits."""

from engine.residuals.basis import Lift, SplitLift, WholeDomain, basis, center, class_rows, contract, grouped
from engine.residuals.decomposition import Factor
from engine.residuals.dual_solver import DualProblem, Options
from engine.residuals.split import Axes, Complement, Space, Split, digest
from engine.residuals.strategy import Strategy

__all__ = [
    "Axes",
    "Complement",
    "DualProblem",
    "Factor",
    "Lift",
    "Options",
    "Space",
    "Split",
    "SplitLift",
    "Strategy",
    "WholeDomain",
    "basis",
    "center",
    "class_rows",
    "contract",
    "digest",
    "grouped",
]
