"""Commands that read records: check, rehearse, release."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from engine.checks import positive
from engine.commands.given import (
    add_column_options,
    add_records_options,
    form_of,
    named_columns,
    option_names,
    records_of,
    refuse_seed_option,
    say_rows,
)
from engine.commands.reply import Commands, Reply, add_command
from engine.errors import LedgerError, PlanError
from engine.publish import FORMATS, check_target, write_answers, write_package
from engine.release import Ledger, check_records, declare_public, measure, read_plan, release_key

FORMS = (*FORMATS, "zip")
OTHER_RECORDS = (
    "To release these records, give --attempt with a new number, which spends again, or another --dataset, with a "
    "budget of its own."
)


def add_releasing_commands(commands: Commands) -> None:
    """Add the commands ``release``, ``rehearse`` and ``check``."""
    for name, text in (
        ("release", "spend the plan's cost once and write the answers"),
        ("rehearse", "the same on simulated or public records; spends nothing, marks every file"),
    ):
        keys = "out format queries rehearsal dataset attempt key pcost spent receipt"
        command = add_command(commands, name, _release, text, keys=keys)
        command.add_argument("--plan", type=Path, required=True)
        add_records_options(command, "CSV, parquet, ..., a folder or a pattern; rows outside the schema are left out")
        command.add_argument("--out", type=Path, required=True, help="file for the answers")
        command.add_argument("--format", choices=FORMS, help="by default the ending of --out; zip: the package")
        add_column_options(command)
        command.add_argument("--confidence", type=float, default=0.95)
        command.add_argument("--overwrite", action="store_true", help="replace an earlier file of answers")
        if name == "release":
            command.add_argument("--attempt", type=int, default=1)
        else:
            records = command.add_mutually_exclusive_group(required=True)
            records.add_argument("--simulated", action="store_true", help="the records were made by a program")
            records.add_argument("--public", metavar="WHY", default="", help="anybody has the records; say why")
        seed_help = "seed of the noise, to repeat a rehearsal exactly" if name == "rehearse" else argparse.SUPPRESS
        command.add_argument("--seed", type=int, help=seed_help)
        only = "; notes that the records are public, and finds those released before" if name == "rehearse" else ""
        command.add_argument("--dataset", required=name == "release", help=f"name in the ledger{only}")
        command.add_argument("--ledger", type=Path, required=name == "release")
        command.set_defaults(rehearsal=name == "rehearse")

    check = add_command(
        commands,
        "check",
        _check,
        "how records fit a plan; exact, for the curator's eyes only",
        keys="private rows_in counted refused reasons people over_cap people_over_cap warnings",
    )
    check.add_argument("--plan", type=Path, required=True)
    add_records_options(check)
    check.add_argument("--ledger", type=Path, help="also look for the same records under other names")
    check.add_argument("--dataset", default="", help="their name in the ledger")
    add_column_options(check)


def _check(given: argparse.Namespace) -> Reply:
    print("For your eyes only: these exact numbers depend on single records.", file=sys.stderr)
    book = None if given.ledger is None else Ledger(given.ledger)
    asked = {"dataset": given.dataset, "ledger": book} | named_columns(given)
    found = check_records(read_plan(given.plan), records_of(given), **asked, progress=given.progress)
    if not given.json:
        if given.count_column is not None:
            print(f"The column {given.count_column} holds numbers of records, not sampling weights.", file=sys.stderr)
        say_rows(found)
        for column, reasons in found.reasons.items():
            print(f"{column}: " + ", ".join(f"{rows:,} {reason}" for reason, rows in reasons.items()), file=sys.stderr)
    return Reply(text="", data={"private": True, **vars(found)})


def _release(given: argparse.Namespace) -> Reply:
    if not given.rehearsal:
        refuse_seed_option(given)
    keep = [path for path in (given.plan, given.data, given.ledger) if path is not None]
    kind = form_of(given.out, given.format, FORMS)
    positive("confidence", given.confidence, below=1, error=PlanError)  # before anything is spent
    check_target(given.out, keep=keep, overwrite=given.overwrite)
    made, book = read_plan(given.plan), None if given.ledger is None else Ledger(given.ledger)
    if given.rehearsal and given.public and book is not None:
        if not given.dataset:
            raise LedgerError("--ledger needs --dataset, the name under which the records are noted as public.")
        asked = {"dataset": given.dataset, "ledger": book, "why": given.public} | named_columns(given)
        declare_public(made, records_of(given), **asked)
    where: dict[str, Any] = {}
    if not given.rehearsal:
        where = {"dataset": given.dataset, "ledger": book, "attempt": given.attempt}
    key = release_key(dataset=given.dataset, plan_hash=made.hash, attempt=given.attempt) if where else ""
    before = None if book is None or not key else book.find(key)
    with option_names(OTHER_RECORDS):
        measured = measure(
            made,
            records_of(given),
            rehearsal=given.rehearsal,
            seed=given.seed if given.rehearsal else None,
            on_refused="drop",
            progress=given.progress,
            intake=say_rows,
            **named_columns(given),
            **where,
        )
    options = {"confidence": given.confidence, "overwrite": given.overwrite, "progress": given.progress}
    receipt = None if book is None or not key else book.find(key)
    if kind == "zip":
        write_package(measured, given.out, receipt=receipt, ledger=book, **options)
    else:
        write_answers(measured, given.out, format=kind, **options)
    spent = f"spent pcost {made.pcost!r}"
    if given.rehearsal:
        spent = "REHEARSAL, nothing was spent; not for publication"
    elif before is not None:
        spent = f"the release of {before.utc} once more, nothing new was spent; --attempt 2 or more draws again"
    sealed = None if receipt is None else {name: getattr(receipt, name) for name in ("seq", "utc", "hash", "pcost")}
    data = {
        "out": given.out,
        "format": kind,
        "queries": made.workload.queries,
        "rehearsal": given.rehearsal,
        "dataset": measured.dataset,
        "attempt": given.attempt if where else None,
        "key": key or None,
        "pcost": made.pcost,
        "spent": 0.0 if given.rehearsal or before is not None else made.pcost,
        "receipt": sealed,
    }
    return Reply(text=f"{made.workload.queries:,} answers in {given.out}; {spent}", data=data)
