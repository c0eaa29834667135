"""Answers as files, under the name that other programs call."""

from engine.publish import write_answers

__all__ = ["write_answers"]
