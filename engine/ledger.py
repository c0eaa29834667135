"""The ledger of the privacy budget, under the name that other programs call."""

from engine.release import ConfusableName, Ledger, release_key, verify_ledger

__all__ = ["ConfusableName", "Ledger", "release_key", "verify_ledger"]
