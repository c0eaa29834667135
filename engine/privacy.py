"""What a privacy budget is and what it means, with every conversion rounded towards privacy.

A linear query release B x + N(0, Sigma) has privacy cost `pcost` = largest diagonal entry of B^T Sigma^-1 B when one
record is added or removed.  The same number said in four ways:

    zCDP            rho = pcost / 2                                          exact for the discrete Gaussian, too
    Gaussian DP     mu = sqrt(pcost)                                         continuous Gaussian
    (eps, delta)    delta = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu)   continuous Gaussian, exact there
    (eps, delta)    what follows from rho-zCDP whatever the noise            proved, a little larger

Releases draw from the *discrete* Gaussian.  For it zCDP is the exact statement; mu and the analytic (eps, delta) curve
are the continuous approximation.  The epsilon a release can prove is `Budget.epsilon_zcdp`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context
from fractions import Fraction
from numbers import Integral, Real
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import erfcx, expit, ndtr, ndtri

from engine.errors import BudgetError

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)
_NODES, _WEIGHTS = (_NODES + 1) / 2, _WEIGHTS / 2
# log(delta) is evaluated to about 1e-12; it is raised by this much (1.5e-11), and by the error of a, before any use
_GUARD = 2.0**-36
_SMALLEST = math.ulp(0.0)


@dataclass(frozen=True)
class Budget:
    """How much privacy a release may cost, held as `pcost` (no unit, finite, above 0).

    A budget of its own kind is pure epsilon, `Budget.pure`: it asks for Laplace noise, which alone keeps it.  Its
    pcost, epsilon^2, is what such a release costs where zCDP is counted; rho, mu and (eps, delta) are implied, too.

    Guarantee: a Budget built from other terms never costs more than they allow, and what it reports in other terms
    is never less than the exact value.  For delta >= 1e-300 and mu <= 1e3 the rounding costs
    less than 1e-9: relative for delta, pcost and an epsilon above 1, absolute for a smaller epsilon.
    Source: Bun and Steinke 2016 (zCDP); Dong, Roth and Su 2019, corollary 2.13 (mu); Balle and Wang 2018, theorem 8.

    >>> budget = Budget.approx(epsilon=1, delta=1e-6)
    >>> round(1 / budget.mu, 5)
    4.22468
    >>> budget.epsilon(1e-6) <= 1 < budget.epsilon_zcdp(1e-6)
    True
    """

    pcost: float
    pure_epsilon: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "pcost", _positive("pcost", self.pcost))
        if self.pure_epsilon is not None:
            object.__setattr__(self, "pure_epsilon", _positive("epsilon", self.pure_epsilon))
            if self.pcost != _square(self.pure_epsilon):
                raise BudgetError(
                    "A budget of pure epsilon has the pcost epsilon^2; make it with Budget.pure(epsilon)."
                )

    @classmethod
    def zcdp(cls, rho: float) -> Budget:
        """The budget of rho-zCDP: pcost = 2 rho, exactly; raises BudgetError unless rho is finite and above 0."""
        return cls(_at_most(2 * Fraction(_positive("rho", rho)), "rho"))

    @classmethod
    def gdp(cls, mu: float) -> Budget:
        """The budget of mu-Gaussian DP: pcost = mu^2, rounded down; raises BudgetError unless mu is finite, above 0."""
        return cls(_at_most(Fraction(_positive("mu", mu)) ** 2, "mu"))

    @classmethod
    def approx(cls, epsilon: float, delta: float) -> Budget:
        """The largest budget of a continuous Gaussian release that is (epsilon, delta)-DP.

        Guarantee: `.epsilon(delta) <= epsilon` and `.delta(epsilon) <= delta` hold for the result, to the last bit.
        Raises: BudgetError unless epsilon is finite and above 0, and 0 < delta < 1.
        """
        epsilon, delta = _positive("epsilon", epsilon), _probability(delta)
        log_delta = math.log(delta)
        too_costly = _first_double(lambda pcost: pcost > 0 and _log_delta(epsilon, _root(pcost)) > log_delta)
        pcost = math.nextafter(too_costly, 0.0)
        shrink = 2.0**-46
        while pcost > 0:
            budget = cls(pcost)
            if budget.delta(epsilon) <= delta and budget.epsilon(delta) <= epsilon:
                return budget
            pcost, shrink = min(pcost * (1 - shrink), math.nextafter(pcost, 0.0)), shrink * 2
        raise BudgetError(
            f"epsilon {epsilon!r} with delta {delta!r} allows no pcost a double can hold; raise epsilon or delta."
        )

    @classmethod
    def pure(cls, epsilon: float) -> Budget:
        """The budget of epsilon-DP with delta 0, which Laplace noise keeps and Gaussian noise cannot.

        Guarantee: epsilon-DP implies epsilon^2 / 2-zCDP, so its pcost is epsilon^2, rounded up.
        Source: Bun and Steinke 2016, proposition 4.
        Raises: BudgetError unless epsilon is finite and above 0.

        >>> Budget.pure(2.0).pcost, Budget.pure(2.0).law
        (4.0, 'laplace')
        """
        epsilon = _positive("epsilon", epsilon)
        return cls(_square(epsilon), pure_epsilon=epsilon)

    @property
    def law(self) -> str:
        """The noise that keeps this budget: "laplace" for pure epsilon, "gaussian" otherwise."""
        return "gaussian" if self.pure_epsilon is None else "laplace"

    @property
    def rho(self) -> float:
        """The rho of zCDP: pcost / 2.  Exact for continuous and discrete Gaussian noise."""
        return _at_least(Fraction(self.pcost) / 2)

    @property
    def mu(self) -> float:
        """The mu of Gaussian DP: sqrt(pcost), rounded up; a query of sensitivity 1 alone gets noise of std 1/mu.

        For pure epsilon the smallest mu that it implies: Phi(-mu/2) = 1 / (1 + e^epsilon).
        """
        if self.pure_epsilon is not None and self.pure_epsilon < 700.0:
            return float(-2.0 * ndtri(expit(-self.pure_epsilon))) * (1.0 + 1e-12)
        return _root(self.pcost)

    @property
    def replace_one_pcost(self) -> float:
        """Upper bound on pcost when neighbours *replace* one record: 4 pcost.

        Replacing moves the data by e_i - e_j, and |B e_i - B e_j|^2 <= (|B e_i| + |B e_j|)^2 <= 4 pcost in the norm
        of Sigma^-1, for every B.  Disjoint counts reach only 2 pcost; a plan can state its own exact number.
        """
        return 4 * self.pcost

    def delta(self, epsilon: float) -> float:
        """The smallest delta for which a continuous Gaussian release is (epsilon, delta)-DP, rounded up.

        Never 0: where the exact value is below every double, the smallest double is given.
        Raises: BudgetError unless epsilon is finite and at least 0.
        """
        epsilon = 0.0 if _is_zero(epsilon) else _positive("epsilon", epsilon, allowed="0 or above")
        if self.pure_epsilon is not None and epsilon >= self.pure_epsilon:
            return 0.0
        value = math.exp(_log_delta(epsilon, self.mu))
        return min(max(value * (1 + 2.0**-51), math.nextafter(value, 1.0), _SMALLEST), 1.0)

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon for which a continuous Gaussian release is (epsilon, delta)-DP, rounded up.

        For discrete Gaussian noise this is the continuous approximation; `epsilon_zcdp` is proved for both.
        Raises: BudgetError unless 0 < delta < 1.
        """
        log_delta, mu = math.log(_probability(delta)), self.mu
        found = _first_double(lambda epsilon: _log_delta(epsilon, mu) <= log_delta)
        return found if self.pure_epsilon is None else min(found, self.pure_epsilon)

    def epsilon_zcdp(self, delta: float) -> float:
        """An epsilon proved for every release of rho-zCDP, whatever its noise, rounded up.

        Guarantee: rho-zCDP implies (epsilon, delta)-DP for the returned number.  With alpha = 1 + t it is
        the minimum over t > 0 of rho (1 + t) + log(t / (1 + t)) + (log(1/delta) - log(1 + t)) / t; any t is valid, so
        the search for the best one needs no proof.
        Source: Canonne, Kamath and Steinke 2020, corollary 13.
        Raises: BudgetError unless 0 < delta < 1.
        """
        log_inverse, rho = -math.log(_probability(delta)), self.rho

        def bound(log_t: float) -> float:
            t = math.exp(log_t)
            terms = (rho, rho * t, log_t, -math.log1p(t), log_inverse / t, -math.log1p(t) / t)
            return sum(terms) + 2.0**-49 * sum(abs(term) for term in terms)

        middle = (math.log(log_inverse) - math.log(rho)) / 2
        edges = sorted((middle, math.log(log_inverse)))
        grid = np.clip(np.linspace(edges[0] - 5, edges[1] + 5, 400), -690, 690)
        best = int(np.argmin([bound(x) for x in grid]))
        bracket = (grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)])
        polished = minimize_scalar(bound, bounds=bracket, method="bounded", options={"xatol": 1e-9})
        found = max(min(bound(grid[best]), bound(float(polished.x))), 0.0)
        return found if self.pure_epsilon is None else min(found, self.pure_epsilon)

    def describe(self, delta: float = 1e-6) -> str:
        """One line in plain words; every number in it is rounded up.

        >>> Budget(pcost=1.0).describe()  # doctest: +NORMALIZE_WHITESPACE
        'Privacy cost 1: whoever knows every other record guesses whether one given person is in the data right
        at most 69.2% of the time (a coin flip: 50%). zCDP rho 0.5; epsilon 4.887 at delta 1e-06 (proved: 5.222).'
        """
        guess = math.ceil(1000 * float(ndtr(self.mu / 2)) + 1e-9) / 10
        if self.pure_epsilon is not None:
            return (
                f"Pure epsilon {_shown(self.pure_epsilon)}: whoever knows every other record guesses whether one given "
                f"person is in the data right at most {min(guess, 100.0):g}% of the time (a coin flip: 50%). Where "
                f"zCDP is counted it costs rho {_shown(self.rho)}, pcost {_shown(self.pcost)}."
            )
        return (
            f"Privacy cost {_shown(self.pcost)}: whoever knows every other record guesses whether one given person is "
            f"in the data right at most {min(guess, 100.0):g}% of the time (a coin flip: 50%). "
            f"zCDP rho {_shown(self.rho)}; epsilon {_shown(self.epsilon(delta))} at delta {delta:g} "
            f"(proved: {_shown(self.epsilon_zcdp(delta))})."
        )

    def to_dict(self) -> dict[str, float]:
        """The budget as JSON holds it; `from_dict` gives the same budget back, bit by bit."""
        return {"pcost": self.pcost} if self.pure_epsilon is None else {"pure_epsilon": self.pure_epsilon}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Budget:
        """The budget that `to_dict` wrote; raises BudgetError for anything but one key `pcost` or `pure_epsilon`."""
        if not isinstance(data, Mapping) or set(data) not in ({"pcost"}, {"pure_epsilon"}):
            raise BudgetError(
                'A stored budget must be a mapping with the one key "pcost" or "pure_epsilon"; write it with to_dict().'
            )
        return cls(data["pcost"]) if "pcost" in data else cls.pure(data["pure_epsilon"])


def _log_delta(epsilon: float, mu: float) -> float:
    """Upper bound of log delta(epsilon) for mu-Gaussian DP, relative error of delta about 2e-11.

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
    return math.sqrt(math.pi / 2) * erfcx(x / math.sqrt(2))


def _first_double(holds: Callable[[float], bool]) -> float:
    """The smallest double at or above 0 where a rising predicate holds; 63 steps, as doubles order like integers."""
    low, high = -1, 0x7FEFFFFFFFFFFFFF
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(_double(middle)) else (middle, high)
    return _double(high)


def _double(bits: int) -> float:
    value: float = struct.unpack("<d", struct.pack("<q", bits))[0]
    return value


def _root(pcost: float) -> float:
    """The smallest double whose exact square is at least pcost."""
    root = math.nextafter(math.sqrt(pcost), 0.0)
    while Fraction(root) ** 2 < Fraction(pcost):
        root = math.nextafter(root, math.inf)
    return root


def _square(epsilon: float) -> float:
    """The smallest double at or above the exact square, within what a double can hold."""
    value = epsilon * epsilon
    if not 0 < value < math.inf:
        raise BudgetError(
            f"epsilon {epsilon!r} has a square that no double can hold; use one between 1e-150 and 1e150."
        )
    return value if Fraction(value) >= Fraction(epsilon) ** 2 else math.nextafter(value, math.inf)


def _at_most(exact: Fraction, name: str) -> float:
    try:
        value = float(exact)
    except OverflowError:
        raise BudgetError(f"{name} is too large for a double; use a smaller one, or pcost below 1e308.") from None
    value = value if Fraction(value) <= exact else math.nextafter(value, -math.inf)
    if value == 0:
        raise BudgetError(f"{name} is so small that its pcost is 0 as a double; use a larger one.")
    return value


def _at_least(exact: Fraction) -> float:
    value = float(exact)
    return value if Fraction(value) >= exact else math.nextafter(value, math.inf)


def _is_zero(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and value == 0


def _positive(name: str, value: Any, *, allowed: str = "above 0") -> float:
    """A finite double above 0, rounded down when the number given is no double."""
    advice = f"{name} must be a finite number {allowed}, such as 1.0"
    if isinstance(value, bool) or not isinstance(value, Real):
        # only the type is named: a table given by mistake would print its records
        raise BudgetError(f"{name} was given as {type(value).__name__}; {advice}.")
    number: Any = value
    try:
        finite = math.isfinite(number)
    except OverflowError:  # an integer or fraction beyond every double
        finite, number = False, math.inf if number > 0 else -math.inf
    if not finite or number <= 0:
        raise BudgetError(f"{name} was given as {number}; {advice}.")
    exact = Fraction(int(number)) if isinstance(value, Integral) else Fraction(*number.as_integer_ratio())
    return _at_most(exact, name)


def _probability(delta: Any) -> float:
    """A double strictly between 0 and 1."""
    if not _is_zero(delta) and (value := _positive("delta", delta, allowed="between 0 and 1")) < 1:
        return value
    raise BudgetError(
        f"delta was given as {delta}; delta must lie strictly between 0 and 1, such as 1e-6. "
        "Take it well below 1 / number of records."
    )


def _shown(value: float) -> str:
    return f"{float(Context(prec=4, rounding=ROUND_CEILING).create_decimal(value)):g}"
