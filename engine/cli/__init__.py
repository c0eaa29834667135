"""Command line."""

__all__ = []
