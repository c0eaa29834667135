"""Command line ``dp-query-workbench``."""

__all__ = []
