"""Ledger of privacy budgets, with noise journal and stored results."""

from engine.ledger.balance import Receipt
from engine.ledger.ledger import Ledger, release_key, verify_ledger

__all__ = [
    "Ledger",
    "Receipt",
    "release_key",
    "verify_ledger",
]
