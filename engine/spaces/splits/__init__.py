"""Splits: how a query falls into what its space says and what smaller spaces say, chosen so that the noise is least.

To touch: `tuned` is the entrance; centers, complements and unions are the three ways, each with its gradient.
"""

from engine.spaces.splits.allowance import Allowance
from engine.spaces.splits.center_problem import too_slow
from engine.spaces.splits.pairs import affordable, asks_products, can_tune
from engine.spaces.splits.rows import fewer, part_rows
from engine.spaces.splits.tuned import SplitMemory
from engine.spaces.splits.unions import choose_unions, union_bytes, union_seconds, unite

__all__ = [
    "Allowance",
    "SplitMemory",
    "affordable",
    "asks_products",
    "can_tune",
    "choose_unions",
    "fewer",
    "part_rows",
    "too_slow",
    "union_bytes",
    "union_seconds",
    "unite",
]
