"""Query families, under the name that other programs call."""

from engine.workload import (
    FAMILIES,
    Abs,
    Affine,
    Circular,
    Custom,
    Marginal,
    Prefix,
    Random,
    Range,
    Suffix,
    Total,
    Width,
)

__all__ = [
    "FAMILIES",
    "Abs",
    "Affine",
    "Circular",
    "Custom",
    "Marginal",
    "Prefix",
    "Random",
    "Range",
    "Suffix",
    "Total",
    "Width",
]
