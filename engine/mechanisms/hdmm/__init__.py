"""HDMM: searches for explicit, product, clustered and marginal strategies, of which the best is kept.

To touch: one operator of the paper is one function in `operators`.
"""

from engine.mechanisms.hdmm.mechanism import HDMM

__all__ = [
    "HDMM",
]
