"""Splits: how a query falls into what its space says and what smaller spaces say, chosen so that the noise is least.

To touch: `tuned` is the entrance; centers, complements and unions are the three ways, each with its gradient.
"""

from engine.spaces.splits.allowance import Allowance
from engine.spaces.splits.rows import fewer, part_rows
from engine.spaces.splits.tuned import SplitMemory, split_seconds, ways_to_split
from engine.spaces.splits.unions import choose_unions, strategy_seconds, union_bytes, union_seconds, unite

__all__ = [
    "Allowance",
    "SplitMemory",
    "choose_unions",
    "fewer",
    "part_rows",
    "split_seconds",
    "strategy_seconds",
    "union_bytes",
    "union_seconds",
    "unite",
    "ways_to_split",
]
