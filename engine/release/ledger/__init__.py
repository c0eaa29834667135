"""The durable privacy budget: an append-only chain of rows in one SQLite file, and the results beside it.

To touch: columns and hashes are in `chain`, what rows add up to in `balance`; what ``verify`` checks is in `ledger`.
"""

from engine.release.ledger.balance import DatasetStatus, Receipt
from engine.release.ledger.ledger import Ledger, release_key, verify_ledger

__all__ = [
    "DatasetStatus",
    "Ledger",
    "Receipt",
    "release_key",
    "verify_ledger",
]
