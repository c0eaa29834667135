"""Privacy budgets: pcost, zCDP, Gaussian DP and (epsilon, delta)."""

from engine.privacy.budget import ADD_REMOVE, REPLACE_ONE, Budget

__all__ = [
    "ADD_REMOVE",
    "REPLACE_ONE",
    "Budget",
]
