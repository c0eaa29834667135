"""What a privacy budget is and what it means, with every conversion rounded towards privacy.

A linear query release B x + N(0, Sigma) has privacy cost `pcost` = largest diagonal entry of B^T Sigma^-1 B when one
record is added or removed.  The same number said in four ways:

    zCDP            rho = pcost / 2                                          exact for the discrete Gaussian, too
    Gaussian DP     mu = sqrt(pcost)                                         continuous Gaussian
    (eps, delta)    delta = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu)   continuous Gaussian

Releases draw from the *discrete* Gaussian.  The (eps, delta) curve holds for it with constants that change epsilon
by about 1e-8; `engine.privacy.gaussian` has the theorem and its proof.  `Budget.epsilon` is this number, or what
follows from
rho-zCDP where that is smaller.  A release whose noise is too coarse for the theorem states `Budget.epsilon_zcdp`.

Whom it protects: a budget is that of a *person*, who has at most `rows_per_person` rows.  k rows move the answers by at
most k times what one of them does, so that one row may cost pcost / k^2 (epsilon / k of a pure epsilon): group privacy
is exact for both kinds.  Neighbours are all rows of one person added or removed, or replaced by as many others.
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

from engine._format import rounded_up
from engine.errors import BudgetError
from engine.privacy.gaussian import gaussian_log_delta, released_log_delta

_SMALLEST = math.ulp(0.0)
ADD_REMOVE, REPLACE_ONE = NEIGHBOURS = ("add_remove", "replace_one")
MOST_ROWS = 1_000_000


@dataclass(frozen=True)
class Budget:
    """How much privacy a release may cost, held as `pcost` (no unit, finite, above 0).

    A budget of its own kind is pure epsilon, `Budget.pure`: it asks for Laplace noise, which alone keeps it.  Its
    pcost, epsilon^2, is what such a release costs where zCDP is counted; rho, mu and (eps, delta) are implied, too.

    Attributes
    ----------
    pcost : what everything that one person contributes may cost; no unit.
    pure_epsilon : the epsilon of pure differential privacy; None for the kinds that count in zCDP.
    rows_per_person : the most rows that count for one person.
    neighbours : "add_remove", a person's rows are there or not; "replace_one", they are these or as many others, so
        that the number of records is public.

    Guarantee: a Budget built from other terms never costs more than they allow, and what it reports in other terms
    is never less than the exact value.  For 1e-300 <= delta <= 0.01 and 0.001 <= epsilon <= 10 the theorem for discrete
    noise and rounding cost less than 3e-8 of pcost.
    Source: Bun and Steinke 2016 (zCDP); Dong, Roth and Su 2019, corollary 2.13 (mu); Balle and Wang 2018, theorem 8.

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

    def __post_init__(self) -> None:
        object.__setattr__(self, "pcost", _positive("pcost", self.pcost))
        rows = self.rows_per_person
        if isinstance(rows, bool) or not isinstance(rows, Integral) or not 1 <= rows <= MOST_ROWS:
            raise BudgetError(
                f"rows_per_person was given as {rows!r}; give the largest number of rows that count for one person, a "
                f"whole number from 1 to {MOST_ROWS:,}."
            )
        object.__setattr__(self, "rows_per_person", int(rows))
        if self.neighbours not in NEIGHBOURS:
            raise BudgetError(f"neighbours was given as {self.neighbours!r}; give one of {', '.join(NEIGHBOURS)}.")
        if self.pure_epsilon is not None:
            object.__setattr__(self, "pure_epsilon", _positive("epsilon", self.pure_epsilon))
            if self.pcost != _square(self.pure_epsilon):
                raise BudgetError(
                    "A budget of pure epsilon has the pcost epsilon^2; make it with Budget.pure(epsilon)."
                )

    @classmethod
    def zcdp(cls, rho: float, *, rows_per_person: int = 1, neighbours: str = ADD_REMOVE) -> Budget:
        """The budget of rho-zCDP: pcost = 2 rho, exactly; raises BudgetError unless rho is finite and above 0."""
        return cls(
            _at_most(2 * Fraction(_positive("rho", rho)), "rho"), rows_per_person=rows_per_person, neighbours=neighbours
        )

    @classmethod
    def gdp(cls, mu: float, *, rows_per_person: int = 1, neighbours: str = ADD_REMOVE) -> Budget:
        """The budget of mu-Gaussian DP: pcost = mu^2, rounded down; raises BudgetError unless mu is finite, above 0."""
        return cls(
            _at_most(Fraction(_positive("mu", mu)) ** 2, "mu"), rows_per_person=rows_per_person, neighbours=neighbours
        )

    @classmethod
    def approx(cls, epsilon: float, delta: float, *, rows_per_person: int = 1, neighbours: str = ADD_REMOVE) -> Budget:
        """The largest budget whose Gaussian releases are together (epsilon, delta)-DP.

        Guarantee: `.epsilon(delta) <= epsilon` and `.delta(epsilon) <= delta` hold for the result, to the last bit.
        Raises: BudgetError unless epsilon is finite and above 0, and 0 < delta < 1.
        """
        epsilon, delta = _positive("epsilon", epsilon), _probability(delta)
        log_delta = math.log(delta)
        too_costly = _first_double(
            lambda pcost: pcost > 0 and released_log_delta(epsilon, pcost, _root(pcost)) > log_delta
        )
        pcost = math.nextafter(too_costly, 0.0)
        shrink = 2.0**-46
        while pcost > 0:
            budget = cls(pcost, rows_per_person=rows_per_person, neighbours=neighbours)
            if budget.delta(epsilon) <= delta and budget.epsilon(delta) <= epsilon:
                return budget
            pcost, shrink = min(pcost * (1 - shrink), math.nextafter(pcost, 0.0)), shrink * 2
        raise BudgetError(
            f"epsilon {epsilon!r} with delta {delta!r} allows no pcost a double can hold; raise epsilon or delta."
        )

    @classmethod
    def pure(cls, epsilon: float, *, rows_per_person: int = 1, neighbours: str = ADD_REMOVE) -> Budget:
        """The budget of epsilon-DP with delta 0, which Laplace noise keeps and Gaussian noise cannot.

        Guarantee: epsilon-DP implies epsilon^2 / 2-zCDP, so its pcost is epsilon^2, rounded up.
        Source: Bun and Steinke 2016, proposition 4.
        Raises: BudgetError unless epsilon is finite and above 0.

        >>> Budget.pure(2.0).pcost, Budget.pure(2.0).law
        (4.0, 'laplace')
        """
        epsilon = _positive("epsilon", epsilon)
        return cls(_square(epsilon), pure_epsilon=epsilon, rows_per_person=rows_per_person, neighbours=neighbours)

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
            return float(-2.0 * scipy.special.ndtri(scipy.special.expit(-self.pure_epsilon))) * (1.0 + 1e-12)
        return _root(self.pcost)

    @property
    def row_pcost(self) -> float:
        """What one row may cost, so that all rows of a person together cost at most pcost: pcost / k^2, rounded down.

        >>> Budget(pcost=9.0, rows_per_person=3).row_pcost
        1.0
        """
        return _at_most(Fraction(self.pcost) / self.rows_per_person**2, "pcost for every row")

    def of_person(self, row_pcost: float) -> float:
        """What a person with all rows costs when one row costs ``row_pcost``: k^2 times as much, rounded up."""
        return _at_least(Fraction(row_pcost) * self.rows_per_person**2)

    def at(self, pcost: float) -> Budget:
        """A budget of the same kind, for the same persons and neighbours, at another pcost.

        Guarantee: for pure epsilon the epsilon is rounded down, so that the pcost is at most the one given.
        """
        if self.pure_epsilon is None:
            return replace(self, pcost=pcost)
        epsilon = math.sqrt(pcost)
        while _square(epsilon) > pcost:
            epsilon = math.nextafter(epsilon, 0.0)
        return replace(self, pcost=_square(epsilon), pure_epsilon=epsilon)

    @property
    def protects(self) -> str:
        """Whom the guarantee is for and against what, as part of a sentence.

        >>> Budget(pcost=1.0, rows_per_person=3).protects
        'one person, with at most 3 rows, is in the data or not'
        """
        rows = "one row" if self.rows_per_person == 1 else f"at most {self.rows_per_person:,} rows"
        if self.neighbours == ADD_REMOVE:
            return f"one person, with {rows}, is in the data or not"
        return f"one person, with {rows}, has these values or any others"

    @property
    def replace_one_pcost(self) -> float:
        """Upper bound on pcost when neighbours replace a person's rows: 4 pcost for neighbours "add_remove".

        Replacing moves the data by e_i - e_j, and |B e_i - B e_j|^2 <= (|B e_i| + |B e_j|)^2 <= 4 pcost in the norm
        of Sigma^-1, for every B.  Disjoint counts reach only 2 pcost; `Plan.replace_one_pcost` is a plan's own bound.
        """
        return 4 * self.pcost if self.neighbours == ADD_REMOVE else self.pcost

    def delta(self, epsilon: float) -> float:
        """The delta for which releases within the budget are (epsilon, delta)-DP, rounded up.

        Never 0: where the exact value is below every double, the smallest double is given.
        Raises: BudgetError unless epsilon is finite and at least 0.
        """
        epsilon = 0.0 if _is_zero(epsilon) else _positive("epsilon", epsilon, allowed="0 or above")
        if self.pure_epsilon is not None and epsilon >= self.pure_epsilon:
            return 0.0
        value = math.exp(self._log_delta(epsilon))
        return min(max(value * (1 + 2.0**-51), math.nextafter(value, 1.0), _SMALLEST), 1.0)

    def epsilon(self, delta: float) -> float:
        """The epsilon for which releases within the budget are (epsilon, delta)-DP, rounded up.

        It is the smaller of what the Gaussian curve and what zCDP gives, and at most the epsilon of a pure budget.
        The curve holds for the discrete noise of every release that `engine.plans.blocks.on_curve` accepts.

        Raises: BudgetError unless 0 < delta < 1.
        """
        log_delta = math.log(_probability(delta))
        curve = _first_double(lambda epsilon: self._log_delta(epsilon) <= log_delta)
        return min(curve, self.epsilon_zcdp(delta))

    def _log_delta(self, epsilon: float) -> float:
        """Upper bound of log delta(epsilon) on the Gaussian curve; pure epsilon implies its mu whatever the noise."""
        if self.pure_epsilon is not None:
            return gaussian_log_delta(epsilon, self.mu)
        return released_log_delta(epsilon, self.pcost, self.mu)

    def epsilon_zcdp(self, delta: float) -> float:
        """An epsilon proved for every release of rho-zCDP, whatever its noise, rounded up.

        Guarantee: rho-zCDP implies (epsilon, delta)-DP for the returned number.  With alpha = 1 + t it is
        the minimum over t > 0 of rho (1 + t) + log(t / (1 + t)) + (log(1/delta) - log(1 + t)) / t; any t is valid, so
        the search for the best one needs no proof.
        Source: Canonne, Kamath and Steinke 2020, corollary 13.
        Raises: BudgetError unless 0 < delta < 1.
        """
        from scipy.optimize import minimize_scalar

        log_inverse, rho = -math.log(_probability(delta)), self.rho

        def bound(log_t: float) -> float:
            t = math.exp(log_t)
            terms = (rho, rho * t, log_t, -math.log1p(t), log_inverse / t, -math.log1p(t) / t)
            return sum(terms) + 2.0**-49 * sum(abs(term) for term in terms)

        edges = sorted(((math.log(log_inverse) - math.log(rho)) / 2, math.log(log_inverse)))
        grid = np.clip(np.linspace(edges[0] - 5, edges[1] + 5, 400), -690, 690)
        best = int(np.argmin([bound(x) for x in grid]))
        bracket = (grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)])
        polished = minimize_scalar(bound, bounds=bracket, method="bounded", options={"xatol": 1e-9})
        found = max(min(bound(grid[best]), bound(float(polished.x))), 0.0)
        return found if self.pure_epsilon is None else min(found, self.pure_epsilon)

    @property
    def promise(self) -> str:
        """What the guarantee means, for one of the people whom the records are about; rounded up.

        >>> Budget(pcost=1.0, rows_per_person=3).promise  # doctest: +NORMALIZE_WHITESPACE
        'Whoever sees what is published, and knows everything about everybody else, guesses right at most 69.2% of the
        time whether you are in the records at all (a coin flip: 50%). All that you contributed, up to 3 rows, is
        protected together.'
        """
        whether = "whether you are in the records at all", "which of any two contributions is yours"
        k = self.rows_per_person
        rows = "one row, is protected" if k == 1 else f"up to {k:,} rows, is protected together"
        return (
            "Whoever sees what is published, and knows everything about everybody else, guesses right at most "
            f"{self.guess:g}% of the time {whether[self.neighbours == REPLACE_ONE]} (a coin flip: 50%). All that you "
            f"contributed, {rows}."
        )

    @property
    def guess(self) -> float:
        """How often whoever knows everybody else guesses one person right, in percent, rounded up."""
        # no test is right more often than half of 1 plus the total variation, which is delta at epsilon 0
        return min(math.ceil(500 * (1.0 + self.delta(0.0)) + 1e-9) / 10, 100.0)

    def describe(self, delta: float = 1e-6, *, curve: bool = True) -> str:
        """One line in plain words; every number in it is rounded up.

        ``curve`` is False for a release whose noise is too coarse for the Gaussian curve.

        >>> Budget(pcost=1.0).describe()  # doctest: +NORMALIZE_WHITESPACE
        'Privacy cost 1: whoever knows everybody else guesses right whether one person, with one row, is in the data
        or not at most 69.2% of the time (a coin flip: 50%). zCDP rho 0.5; epsilon 4.887 at delta 1e-06.'
        """
        told = f"whoever knows everybody else guesses right whether {self.protects} at most {self.guess:g}% of the time"
        what, then = f"Privacy cost {rounded_up(self.pcost)}", self.numbers(delta, curve=curve)
        if self.pure_epsilon is not None:
            what, then = f"Pure epsilon {rounded_up(self.pure_epsilon)}", f"Where zCDP is counted it costs {then}"
        return f"{what}: {told} (a coin flip: 50%). {then}."

    def numbers(self, delta: float = 1e-6, *, curve: bool = True) -> str:
        """The budget in the numbers of the field, rounded up."""
        if self.pure_epsilon is not None:
            return f"rho {rounded_up(self.rho)}, pcost {rounded_up(self.pcost)}"
        epsilon = self.epsilon(delta) if curve else self.epsilon_zcdp(delta)
        return f"zCDP rho {rounded_up(self.rho)}; epsilon {rounded_up(epsilon)} at delta {delta:g}"

    def to_dict(self) -> dict[str, Any]:
        """The budget as JSON holds it; `from_dict` gives the same budget back, bit by bit."""
        kind: dict[str, Any] = (
            {"pcost": self.pcost} if self.pure_epsilon is None else {"pure_epsilon": self.pure_epsilon}
        )
        unit = {"rows_per_person": self.rows_per_person, "neighbours": self.neighbours}
        return kind | {key: value for key, value in unit.items() if value not in (1, ADD_REMOVE)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Budget:
        """The budget that `to_dict` wrote; raises BudgetError for anything else."""
        kinds, units = {"pcost", "pure_epsilon"}, {"rows_per_person", "neighbours"}
        if not isinstance(data, Mapping) or len(kinds & set(data)) != 1 or set(data) - kinds - units:
            raise BudgetError(
                'A stored budget must be a mapping with one of the keys "pcost" and "pure_epsilon", and at most '
                '"rows_per_person" and "neighbours" beside it; write it with to_dict().'
            )
        unit = {key: data[key] for key in units & set(data)}
        return cls(data["pcost"], **unit) if "pcost" in data else cls.pure(data["pure_epsilon"], **unit)


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
