"""Lower bounds on the error of all matrix mechanisms."""

__all__ = []
