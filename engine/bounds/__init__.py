"""Lower bounds over all matrix mechanisms."""

__all__ = []
