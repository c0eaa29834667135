"""All planted bugs."""

from tests.mutations import (
    bugs_app,
    bugs_choice,
    bugs_crashes,
    bugs_invariants,
    bugs_ledger,
    bugs_plans,
    bugs_publish,
    bugs_records,
    bugs_release,
    bugs_tables,
)

ROOMS = (
    bugs_release,
    bugs_records,
    bugs_plans,
    bugs_ledger,
    bugs_crashes,
    bugs_choice,
    bugs_publish,
    bugs_tables,
    bugs_app,
    bugs_invariants,
)
BUGS = tuple(planted for room in ROOMS for planted in room.BUGS)
