"""Products of strategies over units of attributes: their search, and one of them on the table of all that is asked.

To touch: `kronecker` searches, on the Grams of `grams`, with `p_identity` for Laplace noise; `whole` is for mechanisms
that measure something else and take a product on the whole table where that is better.
"""

from engine.mechanisms.products.grams import (
    GramBuilder,
    ProductGrams,
    by_maximal_sets,
    by_sets,
    weighted_groups,
)
from engine.mechanisms.products.kronecker import KroneckerSolver, Tell, product_component, search_seconds, unit_seconds
from engine.mechanisms.products.whole import table_design, table_seconds

__all__ = [
    "GramBuilder",
    "KroneckerSolver",
    "ProductGrams",
    "Tell",
    "by_maximal_sets",
    "by_sets",
    "product_component",
    "search_seconds",
    "table_design",
    "table_seconds",
    "unit_seconds",
    "weighted_groups",
]
