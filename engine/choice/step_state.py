"""What was done so far with a look: the decisions on the ledger, and the steps that a page finds again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from engine.choice.common_plan import CommonPlan
from engine.errors import LedgerError
from engine.release import Measurement


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A decision as it stands on the ledger.

    Attributes
    ----------
    option : name of the option taken, or "stop".
    verdict : what the rule said, or None where there was no rule.
    rule : name and numbers of the rule.
    by, reason : who chose, and why, where it was not the rule; empty otherwise.
    seq, utc : the row of the ledger.
    """

    option: str
    verdict: str | None
    rule: Mapping[str, Any]
    by: str
    reason: str
    seq: int
    utc: str


@dataclass(frozen=True)
class Paid:
    """What was paid until a look, and what each option costs in all, in pcost as decimal numbers: the ledger's digits.

    They are those of the machine that looked: another one may differ in the last digit of what it adds up.
    """

    spent: str
    prices: tuple[str, ...]

    def left(self, i: int) -> float:
        """Return what option i still costs, in decimals, as the ledger sums: floats would miss the last digit.

        Raises: LedgerError if what was spent fits no such option.

        >>> Paid("0.4", ("0.9999999999999998",)).left(0)
        0.5999999999999998
        """
        exact = Decimal(self.prices[i]) - Decimal(self.spent)
        if exact < 0 or Decimal(repr(float(exact))) != exact:
            raise LedgerError("What the look spent does not fit these options; the file of the look was changed.")
        return float(exact)


@dataclass(frozen=True, kw_only=True, eq=False)
class Steps:
    """What was done so far with one look: what a page shows when it is opened again.

    Attributes
    ----------
    common : the options.
    look : the measured common part.
    choices : the decisions so far, oldest first; only a "stop" can be followed by another.
    finished : the measurement of the chosen plan, once it is there.
    paid : what was spent for this look and all before it, and what is left to pay for each option.
    lost : attempts at the last step whose result was spent for and never saved, and which may still be at work.
    begun : the next attempt was paid for and broke off: `finish` ends it with the same records and spends nothing.
    """

    common: CommonPlan
    look: Measurement
    choices: tuple[Choice, ...]
    finished: Measurement | None
    paid: Paid
    lost: tuple[int, ...] = ()
    begun: bool = False

    @property
    def choice(self) -> Choice | None:
        """The decision that holds."""
        return self.choices[-1] if self.choices else None
