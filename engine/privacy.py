"""Privacy budgets and conservative conversions between privacy definitions.

A linear query release B x + N(0, Sigma) has the privacy cost `pcost`, the largest diagonal entry of
B^T Sigma^-1 B, if neighbours add or remove one record.  Other privacy parameters follow from it:

    zCDP            rho = pcost / 2                                          also exact for the
                                                                             discrete Gaussian
    Gaussian DP     mu = sqrt(pcost)                                         continuous Gaussian
    (eps, delta)    delta = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu)   continuous Gaussian

Releases draw from the *discrete* Gaussian, for which the (eps, delta) curve holds with constants
that change epsilon by about 1e-8; the notes below contain the theorem and its proof.
`Budget.epsilon` is the epsilon of this curve, or that of rho-zCDP where it is smaller.  A release
that does not meet the conditions of the theorem reports `Budget.epsilon_zcdp`.

The privacy unit is a *person* with at most `rows_per_person` rows.  k rows move the answers by at
most k times as much as a single row, so one row may cost pcost / k^2 (epsilon / k for pure
epsilon): group privacy is exact for both.  Neighbours add or remove all rows of one person, or
replace them by equally many other rows.

Deltas and epsilons of this module are upper bounds that include the errors of floating point.

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

**Use.**  A release of privacy cost c is on the curve if its L <= ``MAX_GRID_LOAD`` c and its
1 / s^2 <= ``MAX_GRID_STEP`` max(1, c).  Costs add up in the ledger, so releases on the curve are
jointly on the curve of their total cost, with the same constants.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from fractions import Fraction
from numbers import Integral, Real
from typing import Any

import numpy as np
import scipy

from engine._format import cost
from engine.errors import BudgetError

_QUADRATURE_NODES, _QUADRATURE_WEIGHTS = np.polynomial.legendre.leggauss(20)
_QUADRATURE_NODES, _QUADRATURE_WEIGHTS = (_QUADRATURE_NODES + 1) / 2, _QUADRATURE_WEIGHTS / 2
# Upper bounds on log(delta) are computed values plus this margin, 1.5e-11.  The errors of computed
# values are about 1e-12.
_LOG_DELTA_MARGIN = 2.0**-36
# A release is on the privacy curve of Gaussian noise if it respects two limits.  s is the noise
# scale of a released number in grid steps.  First limit: the sum of 1 / s^2 over all released
# numbers, divided by the privacy cost.
MAX_GRID_LOAD = 2.0**-24
# Second limit: the largest 1 / s^2 of a released number, divided by max(1, privacy cost).
MAX_GRID_STEP = 2.0**-54
# The first bound of the theorem has a tail e^(eps - y).  y is chosen such that this tail is e^-30
# times delta(eps).
_TAIL_EXPONENT = 30.0
# less than the logarithm of every positive double
_MIN_LOG_DOUBLE = -800.0


def gaussian_log_delta(epsilon: float, mu: float) -> float:
    """Return an upper bound on log delta(epsilon) for mu-Gaussian DP.

    If mu <= 100 and delta >= 1e-300, exp of the bound is at most (1 + 1e-10) delta.  If delta is
    smaller than every positive double, the bound may be coarse.  If mu > 1e15, the bound may be 0,
    that is, delta = 1.

    Notes
    -----
    Source: Balle and Wang 2018, theorem 8.  Let a = eps/mu - mu/2, b = a + mu, and Mills' ratio
    M(x) = Phi(-x)/phi(x).  From e^eps = phi(a)/phi(b) follows delta = phi(a) (M(a) - M(b)), which
    does not overflow.  For small mu the difference is computed without cancellation, as the
    integral of 1 - x M(x) over [a, b].
    """
    ratio, half = epsilon / mu, mu / 2
    if math.isinf(ratio):
        return -math.inf
    a, slack = ratio - half, 2.0**-51 * (ratio + half)
    # slack bounds the rounding error of a; for a > 40 delta is smaller than every positive double,
    # so a coarse bound suffices
    if a - slack > 40:
        return -(a - slack) * (a - slack) / 2
    # the rounding error of ``a`` can exceed 1 only for mu above 1e15; in this case only delta <= 1
    # is certain
    if slack > 1:
        return 0.0
    log_phi = -a * a / 2 - math.log(2 * math.pi) / 2
    if mu <= 1:
        x = a + mu * _QUADRATURE_NODES
        value = log_phi + math.log(mu) + math.log(float(_QUADRATURE_WEIGHTS @ (1 - x * _mills(x))))
    elif a >= 0:
        value = log_phi + math.log(float(_mills(a) - _mills(a + mu)))
    else:
        # delta may be near 1, so 1 - delta = phi(a) (M(-a) + M(b)) is computed
        complement = math.exp(log_phi) * float(_mills(-a) + _mills(a + mu))
        return min(math.log1p(-complement * (1 - _LOG_DELTA_MARGIN)) + slack * (abs(a) + 2), 0.0)
    return min(value + _LOG_DELTA_MARGIN + slack * (abs(a) + 2), 0.0)


def discrete_log_delta(epsilon: float, mu: float, load: float, inverse_square: float) -> float:
    """Return an upper bound on log delta(epsilon) for discrete Gaussian noise.

    The theorem in the notes of this module has two bounds on delta.  The result is the smallest of
    0 and the logarithms of those bounds that apply.

    Parameters
    ----------
    epsilon : at least 0.
    mu : square root of the sum over released numbers of (shift between neighbours / scale)^2.
    load : L, the sum of 1 / scale^2 over all released numbers, with scales in units of the grid.
    inverse_square : largest 1 / scale^2 of a released number.  If it is above 1, the theorem does
        not apply, and the result is 0 (delta = 1).
    """
    # gaussian_log_delta adds _LOG_DELTA_MARGIN, more than ten times the floating-point errors of
    # this function, which are below 1e-12
    continuous = gaussian_log_delta(epsilon, mu)
    bounds = [0.0]
    # First bound: the sum of the Gaussian curve at a smaller epsilon (``shifted``) and of a tail
    # e^(eps - y), where y can be chosen.  Here eps - y is log_tail.
    log_tail = max(continuous, _MIN_LOG_DOUBLE) - _TAIL_EXPONENT
    shifted = epsilon - (load / 8 + (epsilon - log_tail) * inverse_square / 5)
    if inverse_square <= 1 and shifted >= 0:
        bounds.append(load / 23 + float(np.logaddexp(gaussian_log_delta(shifted, mu), log_tail)))
    # Second bound: `total_variation` bounds the total variation distance between discrete Gaussian
    # noise and rounded continuous Gaussian noise.
    total_variation = load / 24
    if inverse_square <= 1 and 0 < total_variation < 0.5:
        log_numerator = float(np.logaddexp(continuous, epsilon + math.log(total_variation)))
        bounds.append(log_numerator - math.log1p(-total_variation))
    return min(bounds)


def released_log_delta(epsilon: float, pcost: float, mu: float) -> float:
    """Return an upper bound on log delta(epsilon) for the joint output of several releases.

    ``pcost`` is the sum of their privacy costs, and ``mu`` its square root, rounded up.

    The bound holds if the noise scale of every release, in units of its grid, is large enough for
    the Gaussian curve; see "Use" in the notes of this module.
    """
    return discrete_log_delta(epsilon, mu, MAX_GRID_LOAD * pcost, MAX_GRID_STEP * max(1.0, pcost))


def _mills(x: Any) -> Any:
    return math.sqrt(math.pi / 2) * scipy.special.erfcx(x / math.sqrt(2))


def mu_of_guess(percent: float) -> float:
    """Return the largest mu at which an adversary guesses right at most ``percent`` of the time.

    The adversary knows the rows of all other persons and guesses whether one person is in the
    records; see `Budget.guess`.  The returned mu is rounded down.

    Guarantee: `Budget.gdp(mu_of_guess(percent)).guess` is at most ``percent``.
    Raises: BudgetError unless ``percent`` is between 50 (a coin flip) and 100; it must exceed 50 by
    more than about 1e-9.

    >>> round(mu_of_guess(69.2), 4), round(mu_of_guess(50.1), 4)
    (1.0031, 0.005)
    """
    if (
        isinstance(percent, bool)
        or not isinstance(percent, (int, float))
        or not 50.0 < percent < 100.0
    ):
        raise BudgetError(
            f"The guessing risk was given as {percent!r} percent. Give a number above 50, which is"
            " a coin flip, and below 100, such as 60."
        )
    # with continuous noise the success rate is Phi(mu / 2); 1e-11 covers floating-point errors
    success_rate = percent / 100.0 - 1e-11
    mu = 2.0 * float(scipy.special.ndtri(success_rate))
    # by the second bound of the theorem (notes of this module) discrete noise adds at most
    # T / (1 - T) <= 1.001 T to the success rate, with T = L / 24 and L = MAX_GRID_LOAD mu^2
    added = 1.001 * MAX_GRID_LOAD * mu**2 / 24
    mu = 2.0 * float(scipy.special.ndtri(success_rate - added))
    if mu > 0.0:
        return mu
    raise BudgetError(
        f"A guessing risk of {percent!r} percent is too close to 50, a coin flip. Give a larger"
        " number below 100, such as 50.1."
    )


_MIN_DOUBLE = math.ulp(0.0)
ADD_REMOVE, REPLACE_ONE = NEIGHBOURS = ("add_remove", "replace_one")
MAX_ROWS_PER_PERSON = 1_000_000
# delta at which epsilon is stated if the budget was given without one
DEFAULT_DELTA = 1e-6
# deltas of the tables of epsilon in certificates and command line output
LISTED_DELTAS = (1e-5, 1e-6, 1e-9)


@dataclass(frozen=True)
class Budget:
    """Privacy budget: the largest privacy cost that a release may have.

    Every budget stores this cost as `pcost`.  A budget of pure epsilon, from `Budget.pure`,
    requires Laplace noise; its pcost is epsilon^2, because epsilon-DP implies rho-zCDP with rho =
    epsilon^2 / 2.

    Attributes
    ----------
    pcost : privacy cost for all rows of one person together; dimensionless, finite, above 0.
    pure_epsilon : epsilon of pure differential privacy; None for budgets in zCDP.
    rows_per_person : largest number of rows counted for one person.
    neighbours : "add_remove" if neighbours add or remove the rows of a person; "replace_one" if
        they replace these by equally many others, so that the number of records is public.
    report_delta : the delta at which outputs state epsilon.  `approx` stores its delta here; the
        default is 1e-6.  The field changes neither the privacy cost nor `Plan.hash`.  Budgets with
        different values are not equal, because they print different numbers.

    Guarantee: a Budget that is built from rho, mu or (epsilon, delta) never has a larger pcost than
    they allow, and values that a Budget reports in these parameters are never less than the exact
    ones.  For 1e-300 <= delta <= 0.01 and 0.001 <= epsilon <= 10, the pcost from `approx` is at
    least (1 - 3e-8) times the exact pcost for continuous Gaussian noise.
    Source: Bun and Steinke 2016 (zCDP); Dong, Roth and Su 2019, corollary 2.13 (mu); Balle and Wang
    2018, theorem 8.

    >>> budget = Budget.approx(epsilon=1, delta=1e-6)
    >>> round(1 / budget.mu, 5)
    4.22468
    >>> budget.epsilon(1e-6) <= 1 < budget.epsilon_zcdp(1e-6)
    True
    """

    pcost: float
    pure_epsilon: float | None = None
    _: KW_ONLY
    rows_per_person: int = 1
    neighbours: str = ADD_REMOVE
    report_delta: float = DEFAULT_DELTA

    def __post_init__(self) -> None:
        object.__setattr__(self, "report_delta", _probability(self.report_delta))
        object.__setattr__(self, "pcost", _positive("pcost", self.pcost))
        rows = self.rows_per_person
        if (
            isinstance(rows, bool)
            or not isinstance(rows, Integral)
            or not 1 <= rows <= MAX_ROWS_PER_PERSON
        ):
            raise BudgetError(
                f"rows_per_person was given as {rows!r}. Give the largest number of rows counted"
                f" for one person, a whole number from 1 to {MAX_ROWS_PER_PERSON:,}."
            )
        object.__setattr__(self, "rows_per_person", int(rows))
        if self.neighbours not in NEIGHBOURS:
            raise BudgetError(
                f"neighbours was given as {self.neighbours!r}. Give one of {', '.join(NEIGHBOURS)}."
            )
        if self.pure_epsilon is not None:
            object.__setattr__(self, "pure_epsilon", _positive("epsilon", self.pure_epsilon))
            if self.pcost != _square(self.pure_epsilon):
                raise BudgetError(
                    "pcost and pure_epsilon do not agree: a budget of pure epsilon has the pcost"
                    " epsilon^2. Use Budget.pure(epsilon)."
                )

    @classmethod
    def zcdp(cls, rho: float, *, rows_per_person: int = 1, neighbours: str = ADD_REMOVE) -> Budget:
        """Return the budget of rho-zCDP, whose pcost is 2 rho.

        The pcost is rounded down if ``rho`` is not a double, such as a fraction.

        Raises: BudgetError unless rho is finite and above 0, and 2 rho is a finite double.
        """
        return cls(
            _at_most(2 * Fraction(_positive("rho", rho)), "rho"),
            rows_per_person=rows_per_person,
            neighbours=neighbours,
        )

    @classmethod
    def gdp(cls, mu: float, *, rows_per_person: int = 1, neighbours: str = ADD_REMOVE) -> Budget:
        """Return the budget of mu-Gaussian DP, whose pcost is mu^2, rounded down.

        Raises: BudgetError unless mu is finite and above 0, and its square is a positive finite
        double.
        """
        return cls(
            _at_most(Fraction(_positive("mu", mu)) ** 2, "mu"),
            rows_per_person=rows_per_person,
            neighbours=neighbours,
        )

    @classmethod
    def approx(
        cls, epsilon: float, delta: float, *, rows_per_person: int = 1, neighbours: str = ADD_REMOVE
    ) -> Budget:
        """Return the largest budget whose releases with Gaussian noise are jointly (epsilon,
        delta)-DP.

        Outputs of these releases state epsilon at this delta.

        Guarantee: `.epsilon(delta) <= epsilon` and `.delta(epsilon) <= delta` hold for the result
        in double precision.
        Raises: BudgetError if epsilon is not finite or not above 0, if delta is not between 0 and
        1, or if the pcost would be smaller than every positive double.
        """
        epsilon, delta = _positive("epsilon", epsilon), _probability(delta)
        log_delta = math.log(delta)
        too_costly = _first_double(
            lambda pcost: pcost > 0 and released_log_delta(epsilon, pcost, _root(pcost)) > log_delta
        )
        pcost = math.nextafter(too_costly, 0.0)
        # the methods `delta` and `epsilon` round up, so reduce pcost until their values are within
        # the limits; the relative reduction doubles with every step
        shrink = 2.0**-46
        while pcost > 0:
            budget = cls(
                pcost, rows_per_person=rows_per_person, neighbours=neighbours, report_delta=delta
            )
            if budget.delta(epsilon) <= delta and budget.epsilon(delta) <= epsilon:
                return budget
            pcost = min(pcost * (1 - shrink), math.nextafter(pcost, 0.0))
            shrink = shrink * 2
        raise BudgetError(
            f"For epsilon {epsilon!r} with delta {delta!r}, floating-point arithmetic rounds the"
            " pcost to 0. Give a larger epsilon or delta."
        )

    @classmethod
    def pure(
        cls, epsilon: float, *, rows_per_person: int = 1, neighbours: str = ADD_REMOVE
    ) -> Budget:
        """Return the budget of epsilon-DP with delta 0, which requires Laplace noise.

        Its pcost is epsilon^2, rounded up, because epsilon-DP implies rho-zCDP with
        rho = epsilon^2 / 2.
        Source: Bun and Steinke 2016, proposition 4.
        Raises: BudgetError unless epsilon is finite and above 0, and its square is a positive
        finite double.

        >>> Budget.pure(2.0).pcost, Budget.pure(2.0).law
        (4.0, 'laplace')
        """
        epsilon = _positive("epsilon", epsilon)
        return cls(
            _square(epsilon),
            pure_epsilon=epsilon,
            rows_per_person=rows_per_person,
            neighbours=neighbours,
        )

    @property
    def law(self) -> str:
        """Noise distribution for this budget: "laplace" for pure epsilon, else "gaussian"."""
        return "gaussian" if self.pure_epsilon is None else "laplace"

    @property
    def rho(self) -> float:
        """The rho of zCDP: pcost / 2, for both continuous and discrete Gaussian noise."""
        return _at_least(Fraction(self.pcost) / 2)

    @property
    def mu(self) -> float:
        """The mu of Gaussian DP, rounded up.

        For a budget in zCDP, mu is sqrt(pcost): a single query of sensitivity 1 gets Gaussian noise
        with standard deviation 1 / mu.  For a budget of pure epsilon below 700, mu is the smallest
        one that epsilon-DP implies, from Phi(-mu/2) = 1 / (1 + e^epsilon).  From 700 on, mu is
        epsilon, which is larger than that.
        """
        if self.pure_epsilon is not None and self.pure_epsilon < 700.0:
            return float(-2.0 * scipy.special.ndtri(scipy.special.expit(-self.pure_epsilon))) * (
                1.0 + 1e-12
            )
        return _root(self.pcost)

    @property
    def row_pcost(self) -> float:
        """Largest privacy cost of one row: pcost / k^2 for k rows per person, rounded down.

        >>> Budget(pcost=9.0, rows_per_person=3).row_pcost
        1.0
        """
        return _at_most(Fraction(self.pcost) / self.rows_per_person**2, "pcost for every row")

    def of_person(self, row_pcost: float) -> float:
        """Return the privacy cost of all k rows of a person: k^2 times ``row_pcost``, rounded
        up."""
        return _at_least(Fraction(row_pcost) * self.rows_per_person**2)

    def at(self, pcost: float) -> Budget:
        """Return a copy of this budget with another pcost.

        For a budget of pure epsilon, the copy has the largest epsilon with epsilon^2 <= ``pcost``,
        so its pcost may be slightly less than ``pcost``.
        Raises: BudgetError unless ``pcost`` is finite and above 0.
        """
        pcost = _positive("pcost", pcost)
        if self.pure_epsilon is None:
            return replace(self, pcost=pcost)
        epsilon = math.sqrt(pcost)
        while _square(epsilon) > pcost:
            epsilon = math.nextafter(epsilon, 0.0)
        return replace(self, pcost=_square(epsilon), pure_epsilon=epsilon)

    @property
    def protects(self) -> str:
        """Clause that says in what two neighbouring datasets differ, for use in sentences.

        >>> Budget(pcost=1.0, rows_per_person=3).protects
        'one person, with at most 3 rows, is in the data or not'
        """
        rows = "one row" if self.rows_per_person == 1 else f"at most {self.rows_per_person:,} rows"
        if self.neighbours == ADD_REMOVE:
            return f"one person, with {rows}, is in the data or not"
        return f"one person, with {rows}, has these values or any others"

    @property
    def replace_one_pcost(self) -> float:
        """Upper bound on pcost for replace-one neighbours: 4 pcost for "add_remove", else pcost.

        Replacing a record in cell i by one in cell j changes the data by e_i - e_j, and
        |B e_i - B e_j|^2 <= (|B e_i| + |B e_j|)^2 <= 4 pcost in the norm of Sigma^-1, for every
        strategy B.  `Plan.replace_one_pcost` is the smaller bound for one plan, such as 2 pcost
        for disjoint counts.
        """
        return 4 * self.pcost if self.neighbours == ADD_REMOVE else self.pcost

    def delta(self, epsilon: float) -> float:
        """Return the delta for which releases within the budget are (epsilon, delta)-DP, rounded
        up.

        For a budget of pure epsilon the delta is 0 if ``epsilon`` is at least `pure_epsilon`.
        Otherwise the delta is at least the smallest positive double.  For Gaussian noise, the delta
        holds for every release that `engine.plans.blocks.is_on_curve` accepts.
        Raises: BudgetError unless epsilon is finite and at least 0.
        """
        epsilon = 0.0 if _is_zero(epsilon) else _positive("epsilon", epsilon, allowed="0 or above")
        if self.pure_epsilon is not None and epsilon >= self.pure_epsilon:
            return 0.0
        value = math.exp(self._log_delta(epsilon))
        return min(max(value * (1 + 2.0**-51), math.nextafter(value, 1.0), _MIN_DOUBLE), 1.0)

    def epsilon(self, delta: float) -> float:
        """Return the epsilon for which releases within the budget are (epsilon, delta)-DP, rounded
        up.

        The result is the smallest of these: the epsilon of the curve of Gaussian DP, the epsilon of
        rho-zCDP, and for a budget of pure epsilon its `pure_epsilon`.  The curve holds for the
        discrete noise of every release that `engine.plans.blocks.is_on_curve` accepts.

        Raises: BudgetError unless 0 < delta < 1.
        """
        log_delta = math.log(_probability(delta))
        curve = _first_double(lambda epsilon: self._log_delta(epsilon) <= log_delta)
        return min(curve, self.epsilon_zcdp(delta))

    def _log_delta(self, epsilon: float) -> float:
        """Return an upper bound on log delta(epsilon) by the curve of Gaussian DP at `mu`."""
        if self.pure_epsilon is not None:
            return gaussian_log_delta(epsilon, self.mu)
        return released_log_delta(epsilon, self.pcost, self.mu)

    def epsilon_zcdp(self, delta: float) -> float:
        """Return an epsilon for which every rho-zCDP release is (epsilon, delta)-DP, rounded up.

        The result holds for any noise.  It is the minimum over t > 0, with Renyi order alpha = 1 +
        t, of rho (1 + t) + log(t / (1 + t)) + (log(1/delta) - log(1 + t)) / t.  Every t gives a
        valid bound, so the search need not reach the exact minimum.  For a budget of pure epsilon,
        the result is at most this epsilon.
        Source: Canonne, Kamath and Steinke 2020, corollary 13.
        Raises: BudgetError unless 0 < delta < 1.
        """
        from scipy.optimize import minimize_scalar

        log_inverse = -math.log(_probability(delta))
        rho = self.rho

        def bound(log_t: float) -> float:
            t = math.exp(log_t)
            terms = (rho, rho * t, log_t, -math.log1p(t), log_inverse / t, -math.log1p(t) / t)
            # the second sum is larger than the rounding error of the first
            return sum(terms) + 2.0**-49 * sum(abs(term) for term in terms)

        # at the minimum rho t^2 = L - log(1 + t) with L = log(1/delta), so t is at most sqrt(L /
        # rho) and at least min(sqrt(L / (2 rho)), L / 2); the grid of log t is wider than these
        # bounds, and exp(690) is a finite double
        low, high = sorted(((math.log(log_inverse) - math.log(rho)) / 2, math.log(log_inverse)))
        grid = np.clip(np.linspace(low - 5, high + 5, 400), -690, 690)
        best = int(np.argmin([bound(log_t) for log_t in grid]))
        bracket = (grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)])
        minimum = minimize_scalar(bound, bounds=bracket, method="bounded", options={"xatol": 1e-9})
        epsilon = max(min(bound(grid[best]), bound(float(minimum.x))), 0.0)
        return epsilon if self.pure_epsilon is None else min(epsilon, self.pure_epsilon)

    @property
    def promise(self) -> str:
        """Explanation of the guarantee of one release for a person in the data, rounded up.

        Earlier and later releases of the same data add to the risk that the text states, see
        `engine.ledger.balance.JointCharge`.

        >>> Budget(pcost=1.0, rows_per_person=3).promise  # doctest: +NORMALIZE_WHITESPACE
        'Even someone who sees this release and knows the data of everyone else guesses right at
        most 69.2% of the time whether you are in the records (pure chance: 50%). Everything you
        contributed, up to 3 rows, is protected together.'
        """
        whether = "whether you are in the records", "which of any two contributions is yours"
        k = self.rows_per_person
        rows = "one row, is protected" if k == 1 else f"up to {k:,} rows, is protected together"
        return (
            "Even someone who sees this release and knows the data of everyone else guesses"
            f" right at most {self.guess:g}% of the time {whether[self.neighbours == REPLACE_ONE]}"
            f" (pure chance: 50%). Everything you contributed, {rows}."
        )

    @property
    def guess(self) -> float:
        """Largest success rate of a guess about one person, in percent, rounded up.

        For "add_remove", the question is whether the person is in the data.  For "replace_one", the
        question is which of two contributions is that of the person.  The guesser knows the rows of
        all other persons.
        """
        # the total variation distance equals delta at epsilon 0
        return _success_rate(self.delta(0.0))

    @property
    def guess_zcdp(self) -> float:
        """Success rate like `guess`, in percent, that no rho-zCDP release exceeds.

        It holds for any noise.  rho bounds the Kullback-Leibler divergence between the outputs with
        and without the person, and the total variation distance V is at most sqrt(rho / 2)
        (Pinsker) and sqrt(1 - exp(-rho)) (Bretagnolle and Huber 1978).
        """
        return _success_rate(min(math.sqrt(self.rho / 2), math.sqrt(-math.expm1(-self.rho))))

    @property
    def listed_deltas(self) -> tuple[float, ...]:
        """Deltas for which tables list epsilon: `LISTED_DELTAS` and `report_delta`, largest
        first."""
        return tuple(sorted({*LISTED_DELTAS, self.report_delta}, reverse=True))

    def describe(self, delta: float | None = None, *, curve: bool = True) -> str:
        """Return a summary of the budget in one line, with all numbers rounded up.

        Parameters
        ----------
        delta : the delta at which epsilon is stated; by default `report_delta`.
        curve : if True, epsilon is `epsilon`.  If False, it is `epsilon_zcdp`, which also holds for
            a release that does not meet the conditions of the module's theorem.

        >>> Budget(pcost=1.0).describe()  # doctest: +NORMALIZE_WHITESPACE
        'Privacy cost 1: someone who knows all other persons guesses right at most 69.2% of the time
        (pure chance: 50%) whether one person, with one row, is in the data or not. zCDP rho 0.5;
        epsilon 4.887 at delta 1e-06.'
        """
        risk = (
            f"someone who knows all other persons guesses right at most {self.guess:g}% of the time"
            f" (pure chance: 50%) whether {self.protects}"
        )
        budget_text = f"Privacy cost {cost(self.pcost)}"
        parameters = self.numbers(delta, curve=curve)
        if self.pure_epsilon is not None:
            budget_text = f"Pure epsilon {cost(self.pure_epsilon)}"
            parameters = f"Cost in zCDP: {parameters}"
        return f"{budget_text}: {risk}. {parameters}."

    def numbers(self, delta: float | None = None, *, curve: bool = True) -> str:
        """Return a text with rho and epsilon; for a budget of pure epsilon, with rho and pcost.

        All numbers are rounded up.  For a budget in zCDP, ``delta`` and ``curve`` have the meaning
        that they have in `describe`.
        """
        if self.pure_epsilon is not None:
            return f"rho {cost(self.rho)}, pcost {cost(self.pcost)}"
        delta = self.report_delta if delta is None else delta
        epsilon = self.epsilon(delta) if curve else self.epsilon_zcdp(delta)
        return f"zCDP rho {cost(self.rho)}; epsilon {cost(epsilon)} at delta {delta_text(delta)}"

    def to_dict(self) -> dict[str, Any]:
        """Return the budget as a dictionary for JSON, without fields that have their default value.

        `from_dict` restores the budget exactly.
        """
        kind: dict[str, Any] = (
            {"pcost": self.pcost}
            if self.pure_epsilon is None
            else {"pure_epsilon": self.pure_epsilon}
        )
        unit = {"rows_per_person": self.rows_per_person, "neighbours": self.neighbours}
        optional = {key: value for key, value in unit.items() if value not in (1, ADD_REMOVE)}
        return kind | optional | self.delta_field

    @property
    def delta_field(self) -> dict[str, float]:
        """Mapping {"delta": report_delta} for stored data; empty for the default delta."""
        return {} if self.report_delta == DEFAULT_DELTA else {"delta": self.report_delta}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Budget:
        """Return the budget that `to_dict` wrote; raise BudgetError for any other data."""
        kinds, units = {"pcost", "pure_epsilon"}, {"rows_per_person", "neighbours"}
        if (
            not isinstance(data, Mapping)
            or len(kinds & set(data)) != 1
            or set(data) - kinds - units - {"delta"}
        ):
            raise BudgetError(
                "The stored budget has unknown or missing keys. It must be a mapping with one of"
                ' the keys "pcost" and "pure_epsilon", and at most "rows_per_person", "neighbours"'
                ' and "delta" in addition. Write it with to_dict().'
            )
        unit = {key: data[key] for key in units & set(data)}
        budget = (
            cls(data["pcost"], **unit)
            if "pcost" in data
            else cls.pure(data["pure_epsilon"], **unit)
        )
        return replace(budget, report_delta=data["delta"]) if "delta" in data else budget


def delta_text(delta: float) -> str:
    """Return the text of a delta with all its digits.

    >>> delta_text(1e-6), delta_text(1.23456789e-7)
    ('1e-06', '1.23456789e-07')
    """
    return repr(float(delta))


def _first_double(holds: Callable[[float], bool]) -> float:
    """Return the smallest double >= 0 for which a predicate holds.

    If the predicate holds for a number, it must also hold for all larger numbers.  If it holds for
    no finite double, the largest finite double is returned.  Non-negative doubles are ordered like
    their bit patterns, so bisection of the bit patterns takes 63 steps.
    """
    low, high = -1, 0x7FEFFFFFFFFFFFFF
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(_double(middle)) else (middle, high)
    return _double(high)


def _double(bits: int) -> float:
    """Return the double whose bit pattern is the 64-bit integer ``bits``."""
    value: float = struct.unpack("<d", struct.pack("<q", bits))[0]
    return value


def _root(pcost: float) -> float:
    """Return the smallest double whose exact square is at least ``pcost``."""
    root = math.nextafter(math.sqrt(pcost), 0.0)
    while Fraction(root) ** 2 < Fraction(pcost):
        root = math.nextafter(root, math.inf)
    return root


def _square(epsilon: float) -> float:
    """Return epsilon^2, rounded up to a double; raise BudgetError if it is 0 or infinite."""
    value = epsilon * epsilon
    if not 0 < value < math.inf:
        raise BudgetError(
            f"epsilon was {epsilon!r}, but its square is outside the range of floating-point"
            " numbers. Give a number between 1e-150 and 1e150."
        )
    return value if Fraction(value) >= Fraction(epsilon) ** 2 else math.nextafter(value, math.inf)


def _at_most(exact: Fraction, name: str) -> float:
    """Return a number rounded down to a double; raise BudgetError if the result is 0 or infinite."""
    try:
        value = float(exact)
    except OverflowError:
        raise BudgetError(
            f"{name} is too large: its pcost exceeds the range of floating-point numbers. Give a"
            " smaller number; pcost must be below 1e308."
        ) from None
    value = value if Fraction(value) <= exact else math.nextafter(value, -math.inf)
    if value == 0:
        raise BudgetError(
            f"{name} is so small that floating-point arithmetic rounds it, or the pcost computed"
            " from it, to 0. Give a larger number."
        )
    return value


def _at_least(exact: Fraction) -> float:
    """Return a number rounded up to a double."""
    value = float(exact)
    return value if Fraction(value) >= exact else math.nextafter(value, math.inf)


def _is_zero(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and value == 0


def _positive(name: str, value: Any, *, allowed: str = "above 0") -> float:
    """Return a finite number above 0 as a double, rounded down; raise BudgetError for others.

    The error message contains ``name``, the name of the number, and ``allowed``, its range.
    """
    advice = f"Give a finite number {allowed}, such as {'1e-6' if name == 'delta' else '1.0'}"
    if isinstance(value, bool) or not isinstance(value, Real):
        # the message has only the type: the value may be a table of records passed by mistake
        raise BudgetError(f"{name} was given as {type(value).__name__}. {advice}.")
    number: Any = value
    try:
        is_finite = math.isfinite(number)
    except OverflowError:  # an integer or a fraction larger than every double
        is_finite = False
        number = math.inf if number > 0 else -math.inf
    if not is_finite or number <= 0:
        raise BudgetError(f"{name} was given as {number}. {advice}.")
    exact = (
        Fraction(int(number))
        if isinstance(value, Integral)
        else Fraction(*number.as_integer_ratio())
    )
    return _at_most(exact, name)


def _success_rate(distance: float) -> float:
    """Return the success rate of the best guess between two laws, in percent, rounded up.

    The rate is (1 + V) / 2 for the total variation distance V of the two laws.  It is rounded up to
    a tenth of a percent.
    """
    return min(math.ceil(500 * (1.0 + distance) + 1e-9) / 10, 100.0)


def _probability(delta: Any) -> float:
    """Return a delta as a double; raise BudgetError unless 0 < delta < 1."""
    if not _is_zero(delta) and (value := _positive("delta", delta, allowed="between 0 and 1")) < 1:
        return value
    raise BudgetError(
        f"delta was given as {delta}. Give a number between 0 and 1, such as 1e-6, and well below"
        " 1 / number of records."
    )
