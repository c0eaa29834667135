"""The durable privacy budget: an append-only chain of rows in one SQLite file, and the results beside it.

To touch: columns and hashes are in `chain`, what rows add up to in `balance`, which rows a spend checks in `checked`;
what ``verify`` checks is in `ledger`.
"""

from engine.release.ledger.balance import EXACT, DatasetStatus, Fingerprint, Receipt
from engine.release.ledger.chain import Row
from engine.release.ledger.changes import TotalChange, total_history
from engine.release.ledger.journal import broken_off, journal
from engine.release.ledger.keys import good_signature
from engine.release.ledger.ledger import (
    REHEARSED,
    ConfusableName,
    Ledger,
    confusable_text,
    release_key,
    verify_ledger,
)
from engine.release.ledger.total import TotalDefinition
from engine.release.ledger.words import NOTE

__all__ = [
    "EXACT",
    "NOTE",
    "REHEARSED",
    "ConfusableName",
    "DatasetStatus",
    "Fingerprint",
    "Ledger",
    "Receipt",
    "Row",
    "TotalChange",
    "TotalDefinition",
    "broken_off",
    "confusable_text",
    "good_signature",
    "journal",
    "release_key",
    "total_history",
    "verify_ledger",
]
