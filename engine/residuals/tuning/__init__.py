"""Tuned splits of queries: centers, complements (of pairs) and unions (joint strategies)."""

__all__ = []
