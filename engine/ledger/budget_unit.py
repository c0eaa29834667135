"""Units of declared totals, and the charge of a spend in each unit.

    kind   unit                 release with Gaussian noise        release with Laplace noise, epsilon-DP
    zcdp   pcost (rho = /2)     its pcost                          epsilon^2, Bun and Steinke 2016, proposition 4
    gdp    pcost (mu = root)    its pcost                          max(pcost, mu^2), see `Budget.mu`
    pure   epsilon              refused: it has no pure epsilon    its epsilon

A total in (epsilon, delta) has kind gdp: it is a point on the privacy curve of Gaussian noise, which
also holds for discrete noise (`engine.privacy.gaussian`). On that curve epsilon-DP costs more than
epsilon^2 if delta is large, so a release with Laplace noise has a higher charge.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

from engine._format import pluralize
from engine._untrusted import parse_json
from engine._validation import check_choice, check_int
from engine.errors import LedgerError
from engine.privacy import ADD_REMOVE, Budget
from engine.privacy.budget import DEFAULT_DELTA, NEIGHBOURS, delta_text

KINDS = ("zcdp", "gdp", "pure")
_EPSILON = "epsilon "
RELATIVE_COST_TOLERANCE = Fraction(1, 10**12)  # smaller than the upward rounding of costs


@dataclass(frozen=True, kw_only=True)
class TotalDefinition:
    """Unit of the total of a dataset.

    Attributes
    ----------
    kind : "zcdp", "gdp" or "pure", see the module documentation.
    rows_per_person : largest number of rows of one person that is protected.
    neighbours : neighbouring relation of the guarantee.
    delta : the delta at which the declared total states epsilon; changes of the total keep it.
    """

    kind: str = "zcdp"
    rows_per_person: int = 1
    neighbours: str = ADD_REMOVE
    delta: float = DEFAULT_DELTA

    def __post_init__(self) -> None:
        check_choice("kind of the total", self.kind, KINDS, error=LedgerError)
        check_int("rows per person of the total", self.rows_per_person, error=LedgerError)
        check_choice("neighbours of the total", self.neighbours, NEIGHBOURS, error=LedgerError)
        if not isinstance(self.delta, float) or not 0.0 < self.delta < 1.0:
            raise LedgerError(f"delta of the total was {self.delta!r}. Give a number between 0 and 1.")

    @property
    def counts(self) -> str:
        """Unit of the charges: "pcost" or "epsilon"."""
        return "epsilon" if self.kind == "pure" else "pcost"

    def describe(self) -> str:
        """Return the definition as text.

        >>> TotalDefinition(kind="pure").describe()
        'pure epsilon, for adding or removing a person of at most 1 row'
        """
        kind = {"zcdp": "zCDP (pcost)", "gdp": "Gaussian DP (pcost)", "pure": "pure epsilon"}[self.kind]
        delta = "" if self.delta == DEFAULT_DELTA else f", epsilon at delta {delta_text(self.delta)}"
        return f"{kind}{delta}, for {self.whom}"

    @property
    def whom(self) -> str:
        """Return the neighbouring relation as text.

        >>> TotalDefinition(rows_per_person=3).whom
        'adding or removing a person of at most 3 rows'
        """
        how = "adding or removing" if self.neighbours == ADD_REMOVE else "replacing"
        return f"{how} a person of at most {pluralize(self.rows_per_person, 'row')}"

    def unit(self, budget: Budget) -> Budget:
        """Return a budget with the same cost and at least the rows and neighbours of this total."""
        rows = max(budget.rows_per_person, self.rows_per_person)
        return replace(budget, rows_per_person=rows, neighbours=self.neighbours)

    def check_unit(self, budget: Budget) -> None:
        """Raise LedgerError unless a release within a budget has the guarantee of this total.

        A guarantee for more rows per person implies the one for fewer; costs for different neighbours
        are not comparable.
        """
        if self.unit(budget) != budget:
            requested = replace(self, rows_per_person=budget.rows_per_person, neighbours=budget.neighbours)
            raise LedgerError(
                f"The total of this dataset is {self.describe()}; the plan is for {requested.whom}. Nothing was spent. "
                f"Plan with a budget for rows_per_person={self.rows_per_person} and neighbours={self.neighbours!r}."
            )

    def total(self, budget: Budget) -> str:
        """Return a total as decimal text; raise LedgerError if the budget is of another kind."""
        if (self.kind == "pure") != (budget.pure_epsilon is not None):
            raise LedgerError(
                f"A total of kind {self.kind!r} cannot be given as {budget.describe()} Give a budget of its own kind."
            )
        return self.charge(budget.pcost, budget.pure_epsilon)

    def charge(self, pcost: float, pure_epsilon: float | None = None) -> str:
        """Return the charge of a release as decimal text.

        Parameters
        ----------
        pcost : cost of the release.
        pure_epsilon : epsilon of a release with Laplace noise.

        Raises
        ------
        LedgerError
            The total is pure epsilon, and the release has Gaussian noise.

        Examples
        --------

        >>> TotalDefinition(kind="pure").charge(0.04, 0.2), TotalDefinition(kind="gdp").charge(0.04, 0.2)[:6]
        ('epsilon 0.2', '0.0627')
        """
        if self.kind == "pure":
            if pure_epsilon is None:
                raise LedgerError(
                    "The total of this dataset is pure epsilon, which Gaussian noise does not keep at any cost. "
                    "Nothing was spent. Plan with pure epsilon, by a mechanism with Laplace noise."
                )
            return f"{_EPSILON}{Budget.pure(pure_epsilon).pure_epsilon!r}"
        cost = Budget(pcost).pcost
        if pure_epsilon is not None:
            implied = Budget.pure(pure_epsilon)
            # rounded up slightly, because mu is rounded and must not let a total be overdrawn
            cost = max(cost, implied.mu**2 * (1 + 1e-12)) if self.kind == "gdp" else max(cost, implied.pcost)
        # repr is the shortest text that parses to this double, so the displayed number is the exact cost
        return repr(cost)

    def to_text(self) -> str:
        """Return the definition as stored in the ledger."""
        # without the default delta, as ledgers of earlier versions
        stored = {name: value for name, value in vars(self).items() if (name, value) != ("delta", DEFAULT_DELTA)}
        return json.dumps(stored, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> TotalDefinition:
        """Parse the output of `to_text`.

        Raises
        ------
        LedgerError
            The definition is from a later version of the program.
        """
        try:
            return cls(**parse_json(text))
        except (ValueError, TypeError):
            raise LedgerError(
                "A total has a definition that this program does not support; update the program."
            ) from None


@lru_cache(maxsize=4096)
def exact(text: str) -> Fraction:
    """Return the decimal number in a row as a fraction, in the unit of its total.

    >>> 10 * exact(repr(0.1)), exact("epsilon 0.5")
    (Fraction(1, 1), Fraction(1, 2))
    """
    return Fraction(text.removeprefix(_EPSILON))


def same_charge(one: str, other: str) -> bool:
    """Whether two costs agree up to rounding, as when two machines compute them.

    >>> same_charge("0.3", "0.30000000000000004"), same_charge("0.3", "0.301"), same_charge("0.3", "epsilon 0.3")
    (True, False, False)
    """
    return is_epsilon(one) == is_epsilon(other) and abs(exact(one) - exact(other)) <= RELATIVE_COST_TOLERANCE * exact(
        one
    )


def is_epsilon(text: str) -> bool:
    """Whether the unit of a number in a row is epsilon."""
    return text.startswith(_EPSILON)


def as_pcost(text: str) -> float:
    """Return a number in a row as a pcost; epsilon-DP costs at most epsilon^2."""
    number = float(text.removeprefix(_EPSILON))
    return Budget.pure(number).pcost if is_epsilon(text) else number
