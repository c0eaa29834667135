"""Tuned splits: centers, complements and unions."""

__all__ = []
