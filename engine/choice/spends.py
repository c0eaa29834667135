"""Spends of two steps whose decimals add up to the cost of a plan, to the last digit.

A ledger counts a float as the decimal number that its `repr` shows.  So what is left after a first spend must be a
number that some float shows, for every plan that may still be chosen.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from decimal import ROUND_CEILING, Decimal

from engine.errors import PlanError

TRIES = 20_000


def exact_split(look: float, totals: Sequence[float], *, own: Sequence[bool]) -> tuple[tuple[float, float], ...]:
    """Return (look, residual) for every total: floats whose shown decimals add up to the total's exactly.

    The look is rounded up in its 12th digit, and a little further until every difference is a number that a float shows
    as it is.  ``own`` tells which options have something left to measure; one that has nothing is the look itself, and
    its residual costs 0, or a digit past the 12th that keeps the sums exact.

    >>> exact_split(0.4, [1.0, 0.9999999999999998], own=[True, True])
    ((0.4, 0.6), (0.4, 0.5999999999999998))
    """
    goals = [Decimal(repr(total)) for total in totals]
    cost = Decimal(repr(look))
    # a step is worth a 12th digit of the look, or a 17th of the largest total, where floats get sparse
    step = Decimal(1).scaleb(max(cost.adjusted() - 11, max(goals).adjusted() - 16))
    first = cost.quantize(step, ROUND_CEILING)
    alone = [goal for goal, left in zip(goals, own, strict=True) if not left and goal >= cost]
    for spent in itertools.chain(alone, (first + k * step for k in range(TRIES))):
        left = [goal - spent for goal in goals]
        if min(left) < 0:
            continue
        shown = all(Decimal(repr(float(x))) == x for x in [spent, *left])
        if shown and all(x > 0 or not some for x, some in zip(left, own, strict=True)):
            return tuple((float(spent), float(x)) for x in left)
    raise PlanError(
        f"The costs {list(totals)} cannot be split exactly after a look of {look!r}: they are too close to it, or too "
        "far from each other. Give the options budgets that are closer together, or leave out the cheapest."
    )
