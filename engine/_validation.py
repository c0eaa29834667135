"""Checks of arguments with uniform error messages.

Functions that check a number return a Python number, also for a NumPy number.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from numbers import Integral, Real
from typing import Any

from engine._format import near_matches, number, quote_public
from engine.errors import EngineError, WorkloadError

Refusal = type[EngineError]


def check_int(
    word: str, value: Any, low: int = 1, high: int | None = None, *, error: Refusal = WorkloadError
) -> int:
    """Return the value as an int; raise ``error`` unless it is an integer from ``low`` to ``high``.

    ``word`` is the name of the value in the error message. With ``high`` None there is no upper
    limit.

    >>> check_int("number of cells", 5)
    5
    >>> check_int("way", 4, 1, 3)
    Traceback (most recent call last):
    engine.errors.WorkloadError: The way was 4. Give a whole number from 1 to 3.
    """
    is_integer = isinstance(value, Integral) and not isinstance(value, bool)
    if is_integer and low <= value and (high is None or value <= high):
        return int(value)
    upper = " upwards" if high is None else f" to {number(high)}"
    raise error(f"The {word} was {_shown_value(value)}. Give a whole number from {low}{upper}.")


def check_positive(
    word: str,
    value: Any,
    below: float = math.inf,
    *,
    most: float = math.inf,
    error: Refusal = WorkloadError,
) -> float:
    """Return the value as a float; raise ``error`` unless it is finite and in the allowed range.

    The value must be above 0, less than ``below``, and at most ``most``.  ``word`` is the name of
    the value in the error message.

    >>> check_positive("confidence", 1.5, below=1)
    Traceback (most recent call last):
    engine.errors.WorkloadError: The confidence was 1.5. Give a number above 0 and below 1.
    """
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if is_number and 0 < value < below and value <= most:
        return float(value)
    if below < math.inf:
        upper = f"below {below:g}"
    elif most < math.inf:
        upper = f"at most {most:g}"
    else:
        upper = "finite"
    raise error(f"The {word} was {_shown_value(value)}. Give a number above 0 and {upper}.")


def check_choice(
    word: str,
    value: str,
    allowed: Collection[str],
    *,
    error: Refusal = WorkloadError,
    public: bool = False,
) -> str:
    """Return ``value`` if it is in ``allowed``; raise ``error`` otherwise.

    With ``public=True`` the error message shows the value; use it only for values that cannot be
    private data, such as options.  Otherwise the message shows what `_shown_value` returns.

    >>> check_choice("format", "parqet", ("csv", "parquet"))  # doctest: +NORMALIZE_WHITESPACE
    Traceback (most recent call last):
    engine.errors.WorkloadError: The format was 'parqet'; close names: 'parquet'. Give one of 'csv',
    'parquet'.
    """
    if isinstance(value, str) and value in allowed:
        return value
    near = near_matches(value, allowed) if isinstance(value, str) else ""
    text = f"{value!r:.60}" if public else _shown_value(value)
    raise error(f"The {word} was {text}{near}. Give one of {', '.join(map(repr, allowed))}.")


def check_type(
    word: str,
    value: Any,
    kinds: type | tuple[type, ...],
    *,
    give: str,
    error: Refusal = WorkloadError,
) -> None:
    """Raise ``error`` unless a value is an instance of ``kinds``.

    In the error message ``word`` is the name of the value, and ``give`` describes an allowed value.

    >>> check_type("plan", 5, str, give="a Plan, as plan() makes it")
    Traceback (most recent call last):
    engine.errors.WorkloadError: The plan was given as int. Give a Plan, as plan() makes it.
    """
    if not isinstance(value, kinds):
        raise error(f"The {word} was given as {type(value).__name__}. Give {give}.")


def check_slice(
    start: Any, stop: Any, count: int, *, error: Refusal = WorkloadError
) -> tuple[int, int]:
    """Return the pair (first, end) to which the slice ``start:stop`` of ``count`` queries amounts.

    ``end`` is exclusive, and at least ``first``.  Negative arguments count from the end.

    >>> check_slice(-2, None, 10), check_slice(4, 2, 10)
    ((8, 10), (4, 4))
    """
    for word, value in (("first query", start), ("end of the queries", stop)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, Integral)):
            raise error(
                f"The {word} was {_shown_value(value)}. Give a whole number from 0, the first"
                f" query, to {number(count)}, the end of the queries."
            )
    first, end, _ = slice(start, stop).indices(count)
    return first, max(first, end)


def _shown_value(value: object) -> str:
    """Return the text of a value in an error message.

    Floats and integers of at most 40 digits are shown as they are, other values by `quote_public`:
    the content of a table that was passed by mistake could be private.
    """
    # an integer may have more digits than Python converts to text
    short = isinstance(value, float) or (isinstance(value, int) and abs(value) < 10**40)
    return str(value) if short else quote_public(value)
