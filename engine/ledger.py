"""The ledger of the privacy budget, under the name that other programs call."""

from engine.release import Ledger, release_key, verify_ledger

__all__ = ["Ledger", "release_key", "verify_ledger"]
