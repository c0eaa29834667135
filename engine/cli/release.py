"""Commands check, rehearse, release, count and counts merge.

Commands that read records: check, rehearse, release.

Commands that count parts of the records where they are, and bring the counts together.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from engine._validation import positive
from engine.cli.arguments import (
    add_column_options,
    add_file_options,
    add_named_source,
    add_records_options,
    form_of,
    named_columns,
    option_names,
    records_of,
    refuse_seed_option,
    say_rows,
    schema_of,
)
from engine.cli.output import Commands, Reply, add_command
from engine.common_mechanism.common_plan import coarse_or_fine, nested_choices
from engine.common_mechanism.two_stage_io import counted_for_steps
from engine.errors import DataError, LedgerError, PlanError, SchemaError
from engine.ledger import Ledger, release_key
from engine.publish import write_answers
from engine.publish.output_path import check_target
from engine.publish.release_package import write_package
from engine.publish.report import FORMATS
from engine.records import Counts
from engine.records.counts import COUNTS_ENDING
from engine.release import Intake, measure
from engine.release.ingest import check_records, counted_for, declare_public
from engine.release.measure import read_plan

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


PRIVATE = "exact and private: keep it where the records are kept"
KEYS = "private out tables shards rows_in counted refused people over_cap people_over_cap"


def add_counting_commands(commands: Commands) -> None:
    """Add the commands ``count`` and ``counts merge``."""
    count = add_command(
        commands, "count", _count, "count a part of the records for release --counts; spends nothing", keys=KEYS
    )
    count.add_argument("--plan", type=Path, nargs="+", required=True, help="several for look and finish")
    count.add_argument("--chain", action="store_true", help="as for look, where several plans are chosen step by step")
    count.add_argument("--schema", type=Path, help="that the plan must be on")
    source = count.add_mutually_exclusive_group(required=True)
    source.add_argument("--data", type=Path, help="the part that is here")
    add_named_source(source)
    count.add_argument("--shard", default="", metavar="NAME", help="of this part; no two parts of a sum may share it")
    add_file_options(count)
    add_column_options(count)
    counts = commands.add_parser("counts", help="bring counts of parts together")
    actions = counts.add_subparsers(required=True, metavar="action")
    merge = add_command(actions, "merge", _merge, "add the counts of disjoint parts of the records", keys=KEYS)
    merge.add_argument("parts", type=Path, nargs="+", help=f"files {COUNTS_ENDING}")
    merge.add_argument(
        "--split-by-person", action="store_true", help="declare that nobody has rows in two parts; needed with a cap"
    )
    for command in (count, merge):
        command.add_argument("--out", type=Path, required=True, help=f"new file {COUNTS_ENDING}, {PRIVATE}")


def _count(given: argparse.Namespace) -> Reply:
    _check_out(given.out)
    plans = [read_plan(path) for path in given.plan]
    if given.schema is not None and (schema := schema_of(given.schema)) != plans[0].schema:
        raise SchemaError(
            f"The schema {given.schema} of {len(schema)} attributes is not the plan's. Give that of the plan."
        )
    columns = named_columns(given) | {"progress": given.progress}
    if len(plans) == 1:
        found = counted_for(plans[0], records_of(given), **columns)
    else:
        split = nested_choices if given.chain else coarse_or_fine
        found = counted_for_steps(split(*plans, names=[str(path) for path in given.plan]), records_of(given), **columns)
    return _saved(found.as_shard(given.shard), given.out)


def _merge(given: argparse.Namespace) -> Reply:
    _check_out(given.out)
    return _saved(Counts.sum(map(Counts.load, given.parts), split_by_person=given.split_by_person), given.out)


def _check_out(out: Path) -> None:
    if out.suffix.lower() != COUNTS_ENDING:
        raise DataError(f"The file --out {out} does not end in {COUNTS_ENDING}. Give such a name.")
    if out.exists():
        raise DataError(f"{out} is there already, and nothing is overwritten. Give another name.")


def _saved(found: Counts, out: Path) -> Reply:
    found.save(out)
    rows = Intake.of(found)
    say_rows(rows)
    numbers = {name: value for name, value in vars(rows).items() if name not in ("reasons", "warnings")}
    data = {"private": True, "out": out, "tables": len(found), "shards": max(1, len(found.shards)), **numbers}
    return Reply(text=f"{len(found):,} tables of counts in {out}, {PRIVATE}", data=data)
