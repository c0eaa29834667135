"""The privacy curve of continuous Gaussian noise, bounded from above in floating point."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy

from engine.errors import BudgetError

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)
_NODES, _WEIGHTS = (_NODES + 1) / 2, _WEIGHTS / 2
# log(delta) is evaluated to about 1e-12; it is raised by this much (1.5e-11), and by the error of a, before any use
_GUARD = 2.0**-36


def gaussian_log_delta(epsilon: float, mu: float) -> float:
    """Upper bound of log delta(epsilon) for mu-Gaussian DP, relative error of delta about 2e-11.

    Source: Balle and Wang 2018, theorem 8.

    With a = eps/mu - mu/2, b = a + mu and Mills' ratio M(x) = Phi(-x)/phi(x): e^eps = phi(a)/phi(b), so that
    delta = phi(a) (M(a) - M(b)) without overflow, and M(a) - M(b) = integral of 1 - x M(x) over [a, b] without
    cancellation when mu is small.
    """
    ratio, half = epsilon / mu, mu / 2
    if math.isinf(ratio):
        return -math.inf
    a, slack = ratio - half, 2.0**-51 * (ratio + half)
    if a - slack > 40:  # delta is below 1e-340: a bound is enough, no double delta lies there
        return -(a - slack) * (a - slack) / 2
    if slack > 1:  # mu above 1e15: a is all rounding error
        return 0.0
    log_phi = -a * a / 2 - math.log(2 * math.pi) / 2
    if mu <= 1:
        x = a + mu * _NODES
        value = log_phi + math.log(mu) + math.log(float(_WEIGHTS @ (1 - x * _mills(x))))
    elif a >= 0:
        value = log_phi + math.log(float(_mills(a) - _mills(a + mu)))
    else:  # 1 - delta = phi(a) (M(-a) + M(b)); guarding it instead keeps a delta near 1 accurate
        kept = math.exp(log_phi) * float(_mills(-a) + _mills(a + mu))
        return min(math.log1p(-kept * (1 - _GUARD)) + slack * (abs(a) + 2), 0.0)
    return min(value + _GUARD + slack * (abs(a) + 2), 0.0)


def _mills(x: Any) -> Any:
    return math.sqrt(math.pi / 2) * scipy.special.erfcx(x / math.sqrt(2))


def mu_of_guess(percent: float) -> float:
    """The largest mu at which whoever knows everybody else guesses right at most this often, rounded down.

    Guarantee: `Budget.gdp(mu_of_guess(percent)).guess` is at most the percentage.
    Raises: BudgetError unless it is above 50, a coin flip, and below 100.

    >>> round(mu_of_guess(69.2), 4), round(mu_of_guess(50.1), 4)
    (1.0031, 0.005)
    """
    if isinstance(percent, bool) or not isinstance(percent, (int, float)) or not 50.0 < percent < 100.0:
        raise BudgetError(
            f"The guessing risk was given as {percent!r} percent. Give a number above 50, which is a coin flip, and "
            "below 100, such as 60."
        )
    mu = 2.0 * float(scipy.special.ndtri(percent / 100.0 - 1e-11))
    if mu > 0.0:
        return mu
    raise BudgetError(f"A guessing risk of {percent!r} percent is a coin flip. Give a number such as 50.1.")
