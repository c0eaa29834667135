"""Classic strategies for every attribute: intervals in trees, wavelets, greedy weights, level selection.

To touch: rows of a strategy are in `hierarchies`, the mechanisms that measure their products in `mechanisms`.
"""

from engine.mechanisms.trees.mechanisms import GreedyHierarchical, Hierarchical, LevelSelection, Wavelet

__all__ = [
    "GreedyHierarchical",
    "Hierarchical",
    "LevelSelection",
    "Wavelet",
]
