"""Splits: how a query falls into what its space says and what smaller spaces say, chosen so that the noise is least.

To touch: `tuned` is the entrance; centers, complements and unions are the three ways, each with its gradient.
"""

from engine.spaces.splits.complements import asks_products, can_tune
from engine.spaces.splits.tuned import SplitMemory
from engine.spaces.splits.unions import choose_unions, part_rows, union_bytes, unite

__all__ = [
    "SplitMemory",
    "asks_products",
    "can_tune",
    "choose_unions",
    "part_rows",
    "union_bytes",
    "unite",
]
