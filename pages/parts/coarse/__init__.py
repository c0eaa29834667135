"""Coarse or fine page: analyses, selection rule, rehearsal, release steps, ledger state."""
