"""A total that is raised or lowered: a row of its own that says who did it and why.

Nothing that was written before changes.  A total never goes below what is spent, counts what it counted before, and
spends are judged by the total of their time: a later one neither hides a spend nor makes one right.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from engine.checks import instance
from engine.errors import LedgerError
from engine.privacy import Budget
from engine.release.ledger.balance import Balance
from engine.release.ledger.chain import Row
from engine.release.ledger.total import exact
from engine.release.ledger.words import NOTE, one_line
from engine.untrusted import parse_json

BY, REASON = 200, 1000  # most characters


@dataclass(frozen=True, kw_only=True)
class TotalChange:
    """A total as it was declared, or changed to: when, to how much in what it counts, by whom and why."""

    utc: str
    total: float
    by: str = ""
    reason: str = ""


def changed_total(book: Balance, dataset: str, total: Budget, by: str, reason: str) -> dict[str, str]:
    """The content of the row that changes a total; raises LedgerError when it may not be changed so."""
    instance("total", total, Budget, give="a Budget, such as Budget(pcost=1.0)", error=LedgerError)
    status = book.status(dataset)
    unit, counted = (total.rows_per_person, total.neighbours), status.definition
    if unit != (counted.rows_per_person, counted.neighbours):
        raise LedgerError(
            f"The total of {dataset!r} is {counted.describe()}; a change keeps that. Give it for the same."
        )
    amount = counted.total(total)
    if exact(amount) < book.spent[dataset]:
        raise LedgerError(
            f"{status.spent!r} {counted.counts} of {dataset!r} are spent, and what is spent cannot be taken back. "
            f"{amount} was asked for; give at least what is spent."
        )
    if exact(amount) == exact(book.totals[dataset].pcost):
        raise LedgerError(f"The total of {dataset!r} is that already. Nothing was written.")
    words = {"by": one_line("name", by, most=BY), "reason": one_line("reason", reason, most=REASON)}
    note = one_line("note", json.dumps(words, ensure_ascii=False, sort_keys=True), most=NOTE)
    return {"dataset": dataset, "pcost": amount, "plan_hash": book.totals[dataset].plan_hash, "note": note}


def total_history(rows: Iterable[Row], dataset: str) -> tuple[TotalChange, ...]:
    """The total of a dataset as it was declared and every change of it, oldest first."""
    found = []
    for row in rows:
        if row.dataset == dataset and row.kind in ("dataset", "total"):
            words = parse_json(row.note) if row.kind == "total" else {}
            found.append(TotalChange(utc=row.utc, total=float(exact(row.pcost)), **words))
    return tuple(found)
