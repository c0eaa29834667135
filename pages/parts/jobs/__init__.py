"""Background jobs in worker processes, and plans.

Every function in `tasks` makes one engine call.
"""
