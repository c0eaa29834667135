"""Units of declared totals and of spends.

    kind   counts               a release with Gaussian noise      one with Laplace noise, epsilon-DP
    zcdp   pcost (rho = /2)     its pcost                          epsilon^2, Bun and Steinke 2016, proposition 4
    gdp    pcost (mu = root)    its pcost                          the larger of that and mu^2, see `Budget.mu`
    pure   epsilon              refused: it keeps no epsilon       its epsilon

A total in (epsilon, delta) is of kind gdp: a number on the curve of Gaussian noise, which holds for discrete noise, too
(`engine.privacy.gaussian`).
On that curve epsilon-DP costs more than epsilon^2 where delta is large, so a release with Laplace
noise takes more there.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

from engine._format import how_many
from engine._untrusted import parse_json
from engine._validation import one_of, whole
from engine.errors import LedgerError
from engine.privacy import ADD_REMOVE, Budget
from engine.privacy.budget import NEIGHBOURS

KINDS = ("zcdp", "gdp", "pure")
_EPSILON = "epsilon "
LAST_DIGITS = Fraction(1, 10**12)  # of a cost: what costs are rounded up by covers them


@dataclass(frozen=True, kw_only=True)
class TotalDefinition:
    """What the total of a dataset is a number of.

    Fields: `kind`, see above; `rows_per_person`, the most rows of one person whose presence is hidden; `neighbours`,
    which data sets are not to be told apart.
    """

    kind: str = "zcdp"
    rows_per_person: int = 1
    neighbours: str = ADD_REMOVE

    def __post_init__(self) -> None:
        one_of("kind of the total", self.kind, KINDS, error=LedgerError)
        whole("rows per person of the total", self.rows_per_person, error=LedgerError)
        one_of("neighbours of the total", self.neighbours, NEIGHBOURS, error=LedgerError)

    @property
    def counts(self) -> str:
        """What is added up: "pcost" or "epsilon"."""
        return "epsilon" if self.kind == "pure" else "pcost"

    def describe(self) -> str:
        """The definition in words.

        >>> TotalDefinition(kind="pure").describe()
        'pure epsilon, for adding or removing a person of at most 1 row'
        """
        kind = {"zcdp": "zCDP (pcost)", "gdp": "Gaussian DP (pcost)", "pure": "pure epsilon"}[self.kind]
        return f"{kind}, for {self.whom}"

    @property
    def whom(self) -> str:
        """What nobody can tell, in words.

        >>> TotalDefinition(rows_per_person=3).whom
        'adding or removing a person of at most 3 rows'
        """
        how = "adding or removing" if self.neighbours == ADD_REMOVE else "replacing"
        return f"{how} a person of at most {how_many(self.rows_per_person, 'row')}"

    def unit(self, budget: Budget) -> Budget:
        """The budget for all that this total protects, by the same numbers; itself where it does so already."""
        rows = max(budget.rows_per_person, self.rows_per_person)
        return replace(budget, rows_per_person=rows, neighbours=self.neighbours)

    def check_unit(self, budget: Budget) -> None:
        """Raise LedgerError unless a release within a budget protects what this total counts.

        More rows per person protect those of fewer, too; costs for different neighbours cannot be compared.
        """
        if self.unit(budget) != budget:
            own = replace(self, rows_per_person=budget.rows_per_person, neighbours=budget.neighbours)
            raise LedgerError(
                f"The total of this dataset is {self.describe()}; the plan is for {own.whom}. Nothing was spent. Plan "
                f"with a budget for rows_per_person={self.rows_per_person} and neighbours={self.neighbours!r}."
            )

    def total(self, budget: Budget) -> str:
        """The decimal text of a total; raises LedgerError if the budget is of another kind."""
        if (self.kind == "pure") != (budget.pure_epsilon is not None):
            raise LedgerError(
                f"A total of kind {self.kind!r} cannot be given as {budget.describe()} Give a budget of its own kind."
            )
        return self.charge(budget.pcost, budget.pure_epsilon)

    def charge(self, pcost: float, pure_epsilon: float | None = None) -> str:
        """What a release takes, as a decimal text; `pure_epsilon` is given for one with Laplace noise.

        Raises: LedgerError when the release does not keep what the total counts.

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
            # a little up, because mu is rounded and a total may not be overdrawn by that
            cost = max(cost, implied.mu**2 * (1 + 1e-12)) if self.kind == "gdp" else max(cost, implied.pcost)
        # repr is the shortest text that reads back as this double, so that what people see is what is counted
        return repr(cost)

    def to_text(self) -> str:
        """The definition as the ledger holds it."""
        return json.dumps(vars(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> TotalDefinition:
        """What `to_text` wrote; a total that was declared before there were definitions is of zCDP and one record.

        Raises: LedgerError for a definition that this program does not know.
        """
        try:
            # ledgers of before have no text here, and theirs were totals of zCDP for one row
            return cls(**parse_json(text)) if text else cls()
        except (ValueError, TypeError):
            raise LedgerError("A total has a definition that this program does not know; update it.") from None


@lru_cache(maxsize=4096)
def exact(text: str) -> Fraction:
    """The decimal number in a row as a fraction, in whatever its total counts.

    >>> 10 * exact(repr(0.1)), exact("epsilon 0.5")
    (Fraction(1, 1), Fraction(1, 2))
    """
    return Fraction(text.removeprefix(_EPSILON))


def same_charge(one: str, other: str) -> bool:
    """Whether two numbers of rows are one cost, as two machines add it up: their last digits may differ.

    >>> same_charge("0.3", "0.30000000000000004"), same_charge("0.3", "0.301"), same_charge("0.3", "epsilon 0.3")
    (True, False, False)
    """
    return is_epsilon(one) == is_epsilon(other) and abs(exact(one) - exact(other)) <= LAST_DIGITS * exact(one)


def is_epsilon(text: str) -> bool:
    """Whether a number in a row counts epsilon."""
    return text.startswith(_EPSILON)


def as_pcost(text: str) -> float:
    """A number in a row as a pcost: epsilon-DP costs at most epsilon^2."""
    number = float(text.removeprefix(_EPSILON))
    return Budget.pure(number).pcost if is_epsilon(text) else number
