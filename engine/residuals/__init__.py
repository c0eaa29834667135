"""Residual spaces: decomposition, certified optimal strategies, tuned splits."""

from engine.residuals.basis import (
    Axes,
    Complement,
    FullDomain,
    Lift,
    Space,
    Split,
    SplitLift,
    basis,
    center,
    contract,
    digest,
    group_axes,
    residual_rows,
)
from engine.residuals.decomposition import Factor
from engine.residuals.dual_solver import DualProblem, Options
from engine.residuals.strategy import Strategy

__all__ = [
    "Axes",
    "Complement",
    "DualProblem",
    "Factor",
    "FullDomain",
    "Lift",
    "Options",
    "Space",
    "Split",
    "SplitLift",
    "Strategy",
    "basis",
    "center",
    "contract",
    "digest",
    "group_axes",
    "residual_rows",
]
