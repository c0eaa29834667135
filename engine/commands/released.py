"""Which release a command goes on from, and how it is told."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from engine.choice import stepwise
from engine.commands.reply import Commands
from engine.errors import LedgerError, PlanError
from engine.release import Ledger, Measurement, load_measurement, releases

RELEASE_KEYS = "dataset key released rehearsal"
STEP = ":"  # between the word and the hash in what a step was spent for


def add_release_options(command: Commands) -> None:
    """Add where what was measured is."""
    source = command.add_mutually_exclusive_group(required=True)
    source.add_argument("--ledger", type=Path, help="with --key, or --dataset where it has one release")
    source.add_argument("--measurement", type=Path, help="a file that Measurement.save wrote")
    command.add_argument("--key", help="of a release or a look, as their replies name it")
    command.add_argument("--dataset", help="name in the ledger")


def release_of(given: argparse.Namespace) -> Measurement:
    """Return what `add_release_options` was given.

    Raises: LedgerError when no release, or more than one, is meant; PlanError for a file that is none.
    """
    if given.ledger is None:
        if given.key is not None or given.dataset is not None:
            raise PlanError("--key and --dataset name a release in a --ledger. Leave them out, or give the ledger.")
        return Measurement.load(given.measurement)
    book = Ledger(given.ledger)
    key = given.key
    if key is None:
        keys = [receipt.key for receipt in releases(book, given.dataset or "")]
        if len(keys) != 1:
            words = f"{len(keys)} releases of {given.dataset!r}" if given.dataset else "no --dataset"
            listed = f", one of {', '.join(map(repr, keys[:5]))}" if keys else ""
            raise LedgerError(f"There are {words} to go on from. Give the --key of the one that is meant{listed}.")
        (key,) = keys
    receipt = book.find(key)
    if receipt is None or STEP not in receipt.plan_hash:
        return load_measurement(book, key)
    steps = stepwise.resume(book, key)
    return steps.look if steps.finished is None else steps.finished


def head_of(found: Measurement) -> str:
    """Return a release in words, as the first line for people."""
    return "REHEARSAL, not for publication" if found.rehearsal else f"{found.dataset}, released {found.utc}"


def release_data(found: Measurement) -> dict[str, Any]:
    """Return a release for programs, under `RELEASE_KEYS`."""
    named = {"dataset": found.dataset or None, "key": found.key or None, "released": found.utc or None}
    return named | {"rehearsal": found.rehearsal}
