"""Small checks of arguments: what was given, what is allowed, what to do."""

from __future__ import annotations

from engine.errors import WorkloadError


def whole(word: str, value: object) -> None:
    """Raise WorkloadError unless ``value`` is a whole number from 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise WorkloadError(f"The {word} was {value!r}. Give a whole number from 1.")
