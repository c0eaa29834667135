"""Commands ``check``, ``rehearse``, ``release``, ``count`` and ``counts merge``.

``count`` and ``counts merge`` are for records in several disjoint parts (shards), such as one per
office: every office counts its part, and ``release --counts`` uses the sum of the exact counts.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from engine._format import cost, pluralize
from engine._validation import check_positive
from engine.cli.arguments import (
    add_column_options,
    add_file_options,
    add_named_source,
    add_records_options,
    common_plan_of,
    form_of,
    named_columns,
    option_names,
    print_row_summary,
    records_of,
    refuse_seed_option,
    schema_of,
)
from engine.cli.output import (
    ATTEMPT_HELP,
    CHAIN_HELP,
    CONFIDENCE_HELP,
    Commands,
    Reply,
    add_command,
    add_command_group,
    number,
    whole_number,
)
from engine.common_mechanism.stepwise import counts_for_steps
from engine.errors import DataError, LedgerError, PlanError, SchemaError
from engine.ledger import Ledger, release_key
from engine.publish import write_answers, write_package
from engine.publish.output_path import check_target
from engine.publish.report import FORMATS
from engine.records import Counts
from engine.records.counts import COUNTS_ENDING
from engine.release import Intake, measure
from engine.release.ingest import check_records, counts_for, declare_public
from engine.release.measure import read_plan

ANSWER_FORMATS = (*FORMATS, "zip")
OTHER_RECORDS_ADVICE = (
    "To release these records, give a new number as --attempt, which spends budget again."
    " Give another --dataset, with a separate budget, only for records of other people."
)


def add_release_commands(commands: Commands) -> None:
    """Add the commands ``release``, ``rehearse`` and ``check``."""
    for name in ("release", "rehearse"):
        keys = "out format queries rehearsal dataset attempt key pcost spent receipt"
        command = add_command(commands, name, _release, json_keys=keys)
        command.add_argument(
            "--plan", type=Path, required=True, metavar="FILE", help="file of the plan"
        )
        add_records_options(
            command,
            "records: file, folder or pattern; rows outside the schema are left out",
        )
        command.add_argument(
            "--out", type=Path, required=True, metavar="FILE", help="file for the answers"
        )
        command.add_argument(
            "--format",
            choices=ANSWER_FORMATS,
            help="format of --out, zip is a release package; by default its ending",
        )
        add_column_options(command)
        command.add_argument(
            "--confidence", type=number, default=0.95, metavar="LEVEL", help=CONFIDENCE_HELP
        )
        command.add_argument(
            "--overwrite", action="store_true", help="replace an existing file of answers"
        )
        if name == "release":
            command.add_argument(
                "--attempt", type=whole_number, default=1, metavar="NUMBER", help=ATTEMPT_HELP
            )
        else:
            records = command.add_mutually_exclusive_group(required=True)
            records.add_argument(
                "--simulated", action="store_true", help="the records are simulated"
            )
            records.add_argument(
                "--public", metavar="REASON", default="", help="the records are public, and why"
            )
        seed_help = (
            "seed of the noise, a whole number, to repeat a rehearsal exactly; by default random"
            if name == "rehearse"
            else argparse.SUPPRESS
        )
        command.add_argument("--seed", type=whole_number, metavar="NUMBER", help=seed_help)
        dataset_help, ledger_help = "dataset in the ledger", "file of the ledger"
        if name == "rehearse":
            dataset_help = "with --public: dataset that the ledger marks as public; by default none"
            ledger_help = "with --public: file of the ledger; by default none"
        command.add_argument(
            "--dataset", required=name == "release", metavar="NAME", help=dataset_help
        )
        command.add_argument(
            "--ledger", type=Path, required=name == "release", metavar="FILE", help=ledger_help
        )
        command.set_defaults(rehearsal=name == "rehearse")

    check = add_command(
        commands,
        "check",
        _check,
        json_keys="private rows_in counted refused reasons people over_cap people_over_cap warnings",
    )
    check.add_argument("--plan", type=Path, required=True, metavar="FILE", help="file of the plan")
    add_records_options(check)
    check.add_argument(
        "--ledger",
        type=Path,
        metavar="FILE",
        help="ledger that is searched for the same records under other names; by default none",
    )
    check.add_argument(
        "--dataset",
        default="",
        metavar="NAME",
        help="dataset of the records in the ledger; by default none",
    )
    add_column_options(check)


def _check(args: argparse.Namespace) -> Reply:
    """Run ``check``: report how many rows a release would drop, and why."""
    print("Confidential: these exact numbers depend on single records.", file=sys.stderr)
    ledger = None if args.ledger is None else Ledger(args.ledger)
    arguments = {"dataset": args.dataset, "ledger": ledger} | named_columns(args)
    intake = check_records(
        read_plan(args.plan), records_of(args), **arguments, progress=args.progress
    )
    if not args.json:
        if args.count_column is not None:
            print(
                f"The column {args.count_column} holds numbers of records, not sampling weights.",
                file=sys.stderr,
            )
        print_row_summary(intake)
        for column, reasons in intake.reasons.items():
            print(
                f"{column}: " + ", ".join(f"{rows:,} {reason}" for reason, rows in reasons.items()),
                file=sys.stderr,
            )
    return Reply(text="", data={"private": True, **vars(intake)})


def _release(args: argparse.Namespace) -> Reply:
    """Run ``release`` or ``rehearse``: measure a plan and write the answers."""
    if not args.rehearsal:
        refuse_seed_option(args)
    sources = [path for path in (args.plan, args.data, args.ledger) if path is not None]
    file_format = form_of(args.out, args.format, ANSWER_FORMATS)
    # The confidence level is used only after budget was spent, so an invalid one is refused now.
    check_positive("value of --confidence", args.confidence, below=1, error=PlanError)
    check_target(args.out, keep=sources, overwrite=args.overwrite)
    plan = read_plan(args.plan)
    ledger = None if args.ledger is None else Ledger(args.ledger)
    if args.rehearsal and args.public and ledger is not None:
        if not args.dataset:
            raise LedgerError(
                "With --public and --ledger, the records are marked as public in the ledger, which"
                " needs the name of their dataset. Give --dataset, or leave --ledger out."
            )
        arguments = {"dataset": args.dataset, "ledger": ledger, "why": args.public} | named_columns(
            args
        )
        declare_public(plan, records_of(args), **arguments)
    ledger_arguments: dict[str, Any] = {}
    if not args.rehearsal:
        ledger_arguments = {"dataset": args.dataset, "ledger": ledger, "attempt": args.attempt}
    key = (
        release_key(dataset=args.dataset, plan_hash=plan.hash, attempt=args.attempt)
        if ledger_arguments
        else ""
    )
    earlier_receipt = None if ledger is None or not key else ledger.find(key)
    with option_names(OTHER_RECORDS_ADVICE):
        measurement = measure(
            plan,
            records_of(args),
            rehearsal=args.rehearsal,
            seed=args.seed if args.rehearsal else None,
            on_refused="drop",
            progress=args.progress,
            intake=print_row_summary,
            **named_columns(args),
            **ledger_arguments,
        )
    options = {
        "confidence": args.confidence,
        "overwrite": args.overwrite,
        "progress": args.progress,
    }
    receipt = None if ledger is None or not key else ledger.find(key)
    if file_format == "zip":
        write_package(measurement, args.out, receipt=receipt, ledger=ledger, **options)
    else:
        write_answers(measurement, args.out, format=file_format, **options)
    spent = f"spent pcost {cost(plan.pcost)}"
    if args.rehearsal:
        spent = "REHEARSAL, nothing was spent; not for publication"
    elif earlier_receipt is not None:
        spent = (
            f"same answers as the release of {earlier_receipt.utc}, nothing was spent now; a higher"
            " --attempt draws new noise and spends again"
        )
    receipt_data = (
        None
        if receipt is None
        else {name: getattr(receipt, name) for name in ("seq", "utc", "hash", "pcost")}
    )
    data = {
        "out": args.out,
        "format": file_format,
        "queries": plan.workload.queries,
        "rehearsal": args.rehearsal,
        "dataset": measurement.dataset,
        "attempt": args.attempt if ledger_arguments else None,
        "key": key or None,
        "pcost": plan.pcost,
        "spent": 0.0 if args.rehearsal or earlier_receipt is not None else plan.pcost,
        "receipt": receipt_data,
    }
    answers = pluralize(plan.workload.queries, "answer")
    lines = [f"{answers} in {args.out}; {spent}"]
    if ledger is not None and receipt is not None:
        joint = ledger.joint_charge(receipt.key)
        lines += [joint.text] if joint.releases > 1 else []
    return Reply(text="\n".join(lines), data=data)


PRIVACY_NOTE = "exact and confidential: store it as securely as the records"
COUNT_KEYS = "private out tables shards rows_in counted refused people over_cap people_over_cap"


def add_count_commands(commands: Commands) -> None:
    """Add the commands ``count`` and ``counts merge``."""
    count = add_command(
        commands,
        "count",
        _count,
        json_keys=COUNT_KEYS,
    )
    count.add_argument(
        "--plan",
        type=Path,
        nargs="+",
        required=True,
        metavar="FILE",
        help="file of the plan, or those of several plans for look and finish",
    )
    count.add_argument("--chain", action="store_true", help=CHAIN_HELP)
    count.add_argument(
        "--schema",
        type=Path,
        metavar="FILE",
        help="schema that the plan must have; by default not compared",
    )
    source = count.add_mutually_exclusive_group(required=True)
    source.add_argument("--data", type=Path, metavar="PATH", help="this part of the records")
    add_named_source(source)
    count.add_argument(
        "--shard", default="", metavar="NAME", help="unique name of this part; by default none"
    )
    add_file_options(count)
    add_column_options(count)
    actions = add_command_group(commands, "counts")
    merge = add_command(
        actions,
        "merge",
        _merge,
        "add the counts of disjoint parts of the records",
        json_keys=COUNT_KEYS,
    )
    merge.add_argument(
        "parts", type=Path, nargs="+", metavar="FILE", help=f"files {COUNTS_ENDING} of the parts"
    )
    merge.add_argument(
        "--split-by-person",
        action="store_true",
        help=(
            "declare that no person has rows in two parts; required with a bound on rows per person"
        ),
    )
    for command in (count, merge):
        command.add_argument(
            "--out",
            type=Path,
            required=True,
            metavar="FILE",
            help=f"new file {COUNTS_ENDING}, {PRIVACY_NOTE}",
        )


def _count(args: argparse.Namespace) -> Reply:
    """Run ``count``: count one part of the records and write the exact counts."""
    _check_counts_path(args.out)
    plans = [read_plan(path) for path in args.plan]
    if args.schema is not None and (schema := schema_of(args.schema)) != plans[0].schema:
        raise SchemaError(
            f"The schema {args.schema} of {pluralize(len(schema), 'attribute')} differs from the"
            " schema of the plan. Give the schema of the plan, or leave --schema out."
        )
    columns = named_columns(args) | {"progress": args.progress}
    if len(plans) == 1:
        counts = counts_for(plans[0], records_of(args), **columns)
    else:
        common = common_plan_of(args, plans, [str(path) for path in args.plan])
        counts = counts_for_steps(common, records_of(args), **columns)
    return _save(counts.as_shard(args.shard), args.out)


def _merge(args: argparse.Namespace) -> Reply:
    """Run ``counts merge``: add the counts of several files and write the sums."""
    _check_counts_path(args.out)
    return _save(
        Counts.sum(map(Counts.load, args.parts), split_by_person=args.split_by_person), args.out
    )


def _check_counts_path(out: Path) -> None:
    """Raise DataError unless ``out`` has the ending of a file of counts and does not exist."""
    if out.suffix.lower() != COUNTS_ENDING:
        raise DataError(
            f"The name {out} of --out does not end in {COUNTS_ENDING}. Give a name with this "
            "ending."
        )
    if out.exists():
        raise DataError(
            f"The file {out} exists already, and counts are never overwritten. Give another name by"
            " --out."
        )


def _save(counts: Counts, out: Path) -> Reply:
    """Write counts to a file; return the reply of the commands ``count`` and ``counts merge``."""
    counts.save(out)
    intake = Intake.of(counts)
    print_row_summary(intake)
    numbers = {
        name: value for name, value in vars(intake).items() if name not in ("reasons", "warnings")
    }
    data = {
        "private": True,
        "out": out,
        "tables": len(counts),
        "shards": max(1, len(counts.shards)),
        **numbers,
    }
    tables = pluralize(len(counts), "table")
    return Reply(text=f"{tables} of counts in {out}, {PRIVACY_NOTE}", data=data)
