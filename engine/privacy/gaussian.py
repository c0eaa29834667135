"""Upper bounds on the privacy curve of Gaussian noise, in floating point.

Notes
-----
**Setting.** One or more releases draw z_j = f_j + k_j, j = 1, 2, ...  Every f_j is an integer
function of the records and of earlier outputs, and k_j is discrete Gaussian noise of scale s_j:
p(k) = exp(-k^2 / (2 s^2)) / C(s) on the integers.  Plans and scales may be chosen by earlier
outputs.  d_j is the change of f_j between two neighbours.  On every path of outputs sum (d_j /
s_j)^2 <= mu^2, sum 1 / s_j^2 <= L, and s_j >= s >= 1.

**Theorem.**  Write delta(eps) for the curve of mu-Gaussian DP (Balle and Wang 2018).  For every eps
>= 0 and y >= 0 all outputs jointly are

    (eps + L / 8 + y / (5 s^2),  e^(L / 23) (delta(eps) + e^(eps - y)))-DP, and
    (eps,  (delta(eps) + e^eps T) / (1 - T))-DP with T = L / 24 < 1.

**Proof.**  q(k) is the probability that rint(Y) = k for continuous Y ~ N(0, s^2), U is uniform on
[-1/2, 1/2], a = 1 / (24 s^2) and g(k) is the density of Y at k.

1. *(1 - a) p <= q.*  Substituting k + U and averaging over the sign of U, q / g = E cosh(k U / s^2)
   exp(-U^2 / (2 s^2)) >= 1 - E U^2 / (2 s^2) = 1 - a.  Poisson summation gives C(s) = s sqrt(2 pi)
   t(s) with t(s) = 1 + 2 sum_(m >= 1) exp(-2 pi^2 s^2 m^2) >= 1, hence p <= g.
2. *q(k) <= exp(k^2 / (24 s^4)) p(k).*  cosh(k U / s^2) rises and exp(-U^2 / (2 s^2)) falls in |U|,
   so the mean of the product is at most the product of the means (Chebyshev).  The first mean is
   sinh(b) / b <= exp(b^2 / 6) with b = k / (2 s^2), term by term since (2 n + 1)! >= 6^n n!.  The
   second is at most 1 - a + 1 / (640 s^4) <= 1 - 1 / (25 s^2), and t(s) (1 - 1 / (25 s^2)) <= 1 for
   s >= 1.  Finally g = t(s) p.
3. *E_p exp(r k^2 / (4 s^2)) <= 2^(r / 2) for 0 <= r <= 1.*  The mean is C(s') / C(s) with s' = s /
   sqrt(1 - r / 2), and C(s) / s decreases in s, so it is at most (1 - r / 2)^(-1/2); the logarithm
   is convex in r, with equality at 0 and 1.
4. *Rounded Gaussian noise has the curve delta(eps).*  f_j is an integer, so f_j + rint(Y_j) =
   rint(f_j + Y_j) unless Y_j is half an odd number, which has probability 0.  This is
   post-processing of Gaussian mechanisms.  For adaptive choices add a last Gaussian measurement
   that makes the sum of squared shifts mu^2 on every path.  The privacy loss is sum (m_j x_j +
   m_j^2 / 2), m_j fixed by the past, x_j standard normal given the past.  Conditioning step by
   step, E exp(i u sum m_j x_j + u^2 sum m_j^2 / 2) = 1.  As sum m_j^2 = mu^2 always, the loss is
   N(mu^2 / 2, mu^2), as for one Gaussian measurement (Smith and Thakurta 2022 treat general
   mu-GDP).  A release that is e-DP counts with the mu of `Budget.pure`, since its laws are
   randomisations of N(0, 1) and N(mu, 1) (Dong, Roth and Su 2019, theorem 2), and adds nothing to
   L.
5. P and Q are the laws of all outputs with noise p and q, D and D' neighbours, S a set of outputs.
   By 1, P_D(S) <= e^(L / 23) Q_D(S), because -log(1 - a) <= 1 / (23 s^2).  By 2, log(q / p) <= h =
   sum k_j^2 / (24 s_j^4). By 3 with r_j = s^2 / s_j^2, applied step by step, E_p exp(6 s^2 h) <=
   2^(s^2 L / 2).  Therefore Q_D'(S) <= e^x P_D'(S) + Q_D'(h > x), and the last term is at most
   exp(-(6 s^2 - 1) x) 2^(s^2 L / 2) <= e^-y for x = L / 14 + y / (5 s^2).  With 4: P_D(S) <= e^(L /
   23) (e^eps (e^x P_D'(S) + e^-y) + delta(eps)), and 1/23 + 1/14 < 1/8.
6. By 1 the product of all q is at least 1 - T times that of all p, so Q = (1 - T) P + T R for some
   law R.  Then (1 - T) P_D(S) <= Q_D(S) <= e^eps ((1 - T) P_D'(S) + T) + delta(eps).

Step 6 bounds the total variation between p and q by c / s^2 with c = 1/24; the smallest possible
constant for large s is 0.0202.  The sampler is exact (`engine.release.noise`), so nothing is added
for it.  Rounding of the strategy answers is part of f, and its effect on d_j is part of the privacy
cost (`engine.plans.blocks`).

**Use.**  A release of privacy cost c is on the curve if its L <= ``LOAD`` c and its 1 / s^2 <=
``STEP`` max(1, c).  Costs add up in the ledger, so releases on the curve are jointly on the curve
of their total cost, with the same constants.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy

from engine.errors import BudgetError

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)
_NODES, _WEIGHTS = (_NODES + 1) / 2, _WEIGHTS / 2
# log(delta) has an error of about 1e-12; it is raised by this amount (1.5e-11) and the error of a
_GUARD = 2.0**-36
# largest sum over released coordinates of 1 / (scale in grid units)^2, per privacy cost
LOAD = 2.0**-24
# largest 1 / (scale in grid units)^2, relative to max(1, privacy cost)
STEP = 2.0**-54
# the tail term e^-y of the theorem is e^-30 times delta
_TAIL_EXPONENT = 30.0
# below the logarithm of every positive double
_MIN_LOG = -800.0


def gaussian_log_delta(epsilon: float, mu: float) -> float:
    """Upper bound on log delta(epsilon) for mu-Gaussian DP; delta has a relative error of 2e-11.

    Source: Balle and Wang 2018, theorem 8.

    With a = eps/mu - mu/2, b = a + mu and Mills' ratio M(x) = Phi(-x)/phi(x): e^eps =
    phi(a)/phi(b), so that delta = phi(a) (M(a) - M(b)) without overflow, and M(a) - M(b) = integral
    of 1 - x M(x) over [a, b] without cancellation when mu is small.
    """
    ratio, half = epsilon / mu, mu / 2
    if math.isinf(ratio):
        return -math.inf
    a, slack = ratio - half, 2.0**-51 * (ratio + half)
    if a - slack > 40:  # delta is below 1e-340, less than every double: a coarse bound is enough
        return -(a - slack) * (a - slack) / 2
    if slack > 1:  # mu above 1e15: a consists of rounding error
        return 0.0
    log_phi = -a * a / 2 - math.log(2 * math.pi) / 2
    if mu <= 1:
        x = a + mu * _NODES
        value = log_phi + math.log(mu) + math.log(float(_WEIGHTS @ (1 - x * _mills(x))))
    elif a >= 0:
        value = log_phi + math.log(float(_mills(a) - _mills(a + mu)))
    else:  # 1 - delta = phi(a) (M(-a) + M(b)); rounding this is accurate for delta near 1
        complement = math.exp(log_phi) * float(_mills(-a) + _mills(a + mu))
        return min(math.log1p(-complement * (1 - _GUARD)) + slack * (abs(a) + 2), 0.0)
    return min(value + _GUARD + slack * (abs(a) + 2), 0.0)


def discrete_log_delta(epsilon: float, mu: float, load: float, inverse_square: float) -> float:
    """Upper bound on log delta(epsilon) for discrete Gaussian noise, by the theorem of this module.

    Parameters
    ----------
    epsilon : at least 0.
    mu : square root of the sum of squared shifts, each relative to the scale of its noise.
    load : L, the sum of 1 / scale^2 over all released coordinates, scales in grid units.
    inverse_square : the largest of these 1 / scale^2; above 1 the bound is trivial.
    """
    rounded = gaussian_log_delta(epsilon, mu)
    bounds = [0.0]
    # floating-point errors are below 1e-12, and _GUARD covers ten times that
    tail = max(rounded, _MIN_LOG) - _TAIL_EXPONENT
    shifted = epsilon - (load / 8 + (epsilon - tail) * inverse_square / 5)
    if inverse_square <= 1 and shifted >= 0:
        bounds.append(load / 23 + float(np.logaddexp(gaussian_log_delta(shifted, mu), tail)))
    variation = load / 24
    if inverse_square <= 1 and 0 < variation < 0.5:
        bounds.append(float(np.logaddexp(rounded, epsilon + math.log(variation))) - math.log1p(-variation))
    return min(bounds)


def released_log_delta(epsilon: float, pcost: float, mu: float) -> float:
    """Upper bound on log delta(epsilon) for releases on the curve of total cost ``pcost``."""
    return discrete_log_delta(epsilon, mu, LOAD * pcost, STEP * max(1.0, pcost))


def _mills(x: Any) -> Any:
    return math.sqrt(math.pi / 2) * scipy.special.erfcx(x / math.sqrt(2))


def mu_of_guess(percent: float) -> float:
    """Largest mu with a success rate of guessing of at most ``percent``, rounded down.

    The guesser knows the rows of all other persons; see `Budget.guess`.

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
    # the theorem for discrete noise adds at most this to the success rate
    added = 1.001 * LOAD * mu**2 / 24
    mu = 2.0 * float(scipy.special.ndtri(percent / 100.0 - 1e-11 - added))
    if mu > 0.0:
        return mu
    raise BudgetError(f"A guessing risk of {percent!r} percent is a coin flip. Give a number such as 50.1.")
