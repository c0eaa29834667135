"""Exports: answers, tables, release package and verification."""

from engine.publish.report import write_answers

__all__ = [
    "write_answers",
]
