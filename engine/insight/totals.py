"""What a total budget pays for, before it is declared."""

from __future__ import annotations

import math
from fractions import Fraction

from engine.privacy import Budget


def releases_within(total: Budget, each: Budget) -> int | None:
    """Return how many releases at one budget a total pays for; None when the two count different things.

    >>> releases_within(Budget.zcdp(1.0), Budget(pcost=0.6)), releases_within(Budget.pure(1.0), Budget.zcdp(1.0))
    (3, None)
    """
    if (total.rows_per_person, total.neighbours) != (each.rows_per_person, each.neighbours):
        return None
    if total.pure_epsilon is not None and each.pure_epsilon is not None:
        return int(Fraction(total.pure_epsilon) // Fraction(each.pure_epsilon))
    return None if total.pure_epsilon is not None else int(Fraction(total.pcost) // Fraction(each.pcost))


def at_least(value: float) -> float:
    """Return a short number that is not below another: with four digits where that is short enough, rounded up.

    Totals begin with it, so that a total said in mu or epsilon still pays for the budget it was made from.

    >>> at_least(0.5), at_least(1.0), at_least(3.14159), at_least(0.00123456)
    (0.5, 1.0, 3.142, 0.001235)
    """
    digits = 3 - math.floor(math.log10(value))
    short = round(value, digits)
    return short if short >= value else round(value + 0.5 * 10.0**-digits, digits)
