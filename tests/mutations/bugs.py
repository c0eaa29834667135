"""All planted bugs."""

from tests.mutations import (
    bugs_app,
    bugs_choice,
    bugs_invariants,
    bugs_ledger,
    bugs_plans,
    bugs_publish,
    bugs_release,
    bugs_tables,
)

ROOMS = (bugs_release, bugs_plans, bugs_ledger, bugs_choice, bugs_publish, bugs_tables, bugs_app, bugs_invariants)
BUGS = tuple(planted for room in ROOMS for planted in room.BUGS)
