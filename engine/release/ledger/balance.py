"""What the rows of a ledger add up to: totals, spends and saved results, in exact arithmetic.

A pcost in a row is a decimal number and counts as just that, as a fraction: no sum is ever rounded.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache

from engine.errors import LedgerError
from engine.release.ledger.chain import Row


@dataclass(frozen=True, kw_only=True)
class DatasetStatus:
    """The budget of one dataset in pcost: `spent` is rounded up and `left` down to a double, the ledger is exact."""

    dataset: str
    total: float
    spent: float
    left: float
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """Proof of one spend.  `fresh` is True for exactly one call per key ever: the one that may draw and save.

    `hash` seals this row and all before it; kept outside the ledger (in a release) it shows a ledger set back.
    """

    dataset: str
    key: str
    pcost: float
    plan_hash: str
    note: str
    seq: int
    utc: str
    hash: str
    fresh: bool

    @classmethod
    def of(cls, row: Row, *, fresh: bool) -> Receipt:
        """The receipt of a spend row."""
        names = ("dataset", "key", "plan_hash", "note", "seq", "utc", "hash")
        return cls(pcost=float(row.pcost), fresh=fresh, **{name: getattr(row, name) for name in names})


@dataclass(kw_only=True)
class Balance:
    """The state after some rows.

    `totals` and `spent` (exact) by dataset, `spends` and `saved` by key, `notes` by kind and key.
    """

    totals: dict[str, Row] = field(default_factory=dict)
    spent: dict[str, Fraction] = field(default_factory=dict)
    spends: dict[str, Row] = field(default_factory=dict)
    saved: dict[str, Row] = field(default_factory=dict)
    notes: dict[tuple[str, str], list[Row]] = field(default_factory=dict)

    def left(self, dataset: str) -> Fraction:
        """The exact pcost that is left."""
        return exact(self.totals[dataset].pcost) - self.spent[dataset]

    def status(self, dataset: str) -> DatasetStatus:
        """The budget of one dataset as doubles.

        Guarantee: a spend of `left` never passes the total.
        Raises: LedgerError if the dataset was never declared.
        """
        if dataset not in self.totals:
            known = ", ".join(map(repr, self.totals)) or "none"
            raise LedgerError(f"Dataset {dataset!r} is not in the ledger (it has: {known}); declare it first.")
        total, spent, left = float(self.totals[dataset].pcost), self.spent[dataset], self.left(dataset)
        up, down = float(spent), float(left)
        while exact(repr(up)) < spent:
            up = math.nextafter(up, math.inf)
        while exact(repr(down)) > left:
            down = math.nextafter(down, 0.0)
        return DatasetStatus(dataset=dataset, total=total, spent=up, left=down, note=self.totals[dataset].note)


@lru_cache(maxsize=4096)
def exact(text: str) -> Fraction:
    """The decimal number in a row as a fraction.

    >>> 10 * exact(repr(0.1))
    Fraction(1, 1)
    """
    return Fraction(text)


def balance(rows: Iterable[Row]) -> tuple[Balance, list[str]]:
    """What rows add up to, and every row that breaks a rule of the budget.

    >>> opened = Row(seq=1, utc="", kind="ledger")
    >>> spend = Row(seq=2, utc="", kind="spend", dataset="adult", key="a", pcost="0.1")
    >>> balance([opened, spend])[1]
    ['row 2 (spend) has a dataset that was never declared']
    """
    state, problems = Balance(), []
    for row in rows:
        try:
            problem = _enter(state, row)
        except (ArithmeticError, TypeError, ValueError):
            problem = "holds no number where its cost should be"
        if problem:
            problems.append(f"row {row.seq} ({row.kind}) {problem}")
    return state, problems


def _enter(state: Balance, row: Row) -> str:
    """Enter one row; the rule it breaks in words, or nothing."""
    if row.kind == "dataset":
        cost = exact(row.pcost)
        if row.dataset in state.totals or cost <= 0:
            return "declares a dataset twice, or with no positive budget"
        state.totals[row.dataset], state.spent[row.dataset] = row, Fraction(0)
        return ""
    if row.kind in ("ledger", "clock"):
        return ""
    if row.dataset not in state.totals:
        return "has a dataset that was never declared"
    if row.kind == "spend":
        cost = exact(row.pcost)
        if row.key in state.spends or cost <= 0:
            return "spends a key twice, or no positive cost"
        state.spends[row.key] = row
        state.spent[row.dataset] += cost
        return "" if state.left(row.dataset) >= 0 else "spends more than was left"
    if row.kind == "saved":
        if row.key in state.saved or row.key not in state.spends:
            return "saves a result twice, or without a spend"
        state.saved[row.key] = row
        return ""
    if row.kind.startswith("note:"):
        state.notes.setdefault((row.kind, row.key), []).append(row)
        return ""
    return "is of an unknown kind"
