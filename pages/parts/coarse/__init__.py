"""The page Coarse or fine: analyses and rules, rehearsal, the steps that spend, and what the ledger
knows of them.
"""
