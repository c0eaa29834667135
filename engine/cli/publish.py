"""Commands ``ask`` and ``publish``, which post-process a measurement without privacy cost.

``publish`` writes consistent non-negative tables and simulated records; ``ask`` answers further
queries.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine._format import format_number, pluralize
from engine._validation import check_positive
from engine.analysis import condition_query
from engine.analysis.ad_hoc_queries import further_answers
from engine.cli.arguments import (
    RELEASE_KEYS,
    add_release_options,
    add_workload_file,
    form_of,
    head_of,
    release_data,
    release_of,
    workload_from_file,
)
from engine.cli.output import CONFIDENCE_HELP, Commands, Reply, add_command, number, whole_number
from engine.errors import PlanError
from engine.ledger import Ledger
from engine.postprocess import QualityRule, acceptance, publish, uncertainty
from engine.postprocess.published_tables import FITS
from engine.postprocess.uncertainty import DRAWS
from engine.publish import (
    write_package,
    write_published,
    write_records,
    write_tables,
    write_workbook,
)
from engine.publish.output_path import check_target
from engine.publish.report import FORMATS
from engine.release import Measurement

TABLE_FORMATS = ("zip", "xlsx", *FORMATS)
PACKAGE = "package"  # format of a signed release package that contains the tables
# Maps a field of `QualityRule` to (placeholder of its value, help text without the default value).
RULE_HELP = {
    "doubtful_cv": ("RATIO", "standard error over number, above which a number is doubtful"),
    "suppressed_cv": ("RATIO", "standard error over number, above which it is suppressed"),
    "least_count": ("COUNT", "count of records below which a number is suppressed"),
    "least_signal": ("SHARE", "measured share, between 0 and 1, below which it is doubtful"),
}


def add_publish_commands(commands: Commands) -> None:
    """Add the command ``publish``."""
    command = add_command(
        commands,
        "publish",
        _publish,
        json_keys=f"{RELEASE_KEYS} out format fit whole total confidence groups records people criteria",
    )
    add_release_options(command)
    command.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="FILE",
        help="file for the tables; a zip contains codes, labels and a codebook",
    )
    command.add_argument(
        "--format",
        choices=(*TABLE_FORMATS, PACKAGE),
        metavar="FORMAT",
        help=(
            f"format of --out: {', '.join(TABLE_FORMATS)}, or {PACKAGE} for the signed release "
            "package with the tables in a folder; by default its ending"
        ),
    )
    command.add_argument(
        "--fit",
        choices=FITS,
        default=FITS[0],
        metavar="METHOD",
        help=f"method of fitting the tables: {', '.join(FITS)}; by default %(default)s",
    )
    command.add_argument(
        "--whole",
        action="store_true",
        help="publish integer counts, tabulated from the same simulated records",
    )
    command.add_argument(
        "--overwrite", action="store_true", help="replace existing files of tables and records"
    )
    command.add_argument(
        "--records",
        type=Path,
        metavar="FILE",
        help=f"file for simulated records, .{' or .'.join(FORMATS)}; by default none",
    )
    command.add_argument(
        "--people",
        type=whole_number,
        metavar="NUMBER",
        help="number of simulated records; by default the total of the tables",
    )
    command.add_argument(
        "--confidence", type=number, default=0.95, metavar="LEVEL", help=CONFIDENCE_HELP
    )
    command.add_argument(
        "--draws",
        type=whole_number,
        default=DRAWS,
        metavar="NUMBER",
        help="number of simulations for the error estimates; by default %(default)s",
    )
    for name, (metavar, help_text) in RULE_HELP.items():
        command.add_argument(
            f"--{name.replace('_', '-')}",
            type=number,
            default=getattr(QualityRule(), name),
            metavar=metavar,
            help=f"{help_text}; by default %(default)g",
        )
    command.add_argument(
        "--resume",
        type=Path,
        metavar="FOLDER",
        help="folder for checkpoints, from which the same command continues; by default none",
    )


def _publish(args: argparse.Namespace) -> Reply:
    """Run ``publish``: write consistent tables, and simulated records, from a measurement."""
    file_format = form_of(args.out, args.format, TABLE_FORMATS)
    records_format = (
        None if args.records is None else form_of(args.records, name=None, forms=FORMATS)
    )
    if records_format is None and args.people is not None:
        raise PlanError(
            "--people is the number of simulated records in the file of --records, which is not"
            " given. Give --records, or leave --people out."
        )
    check_positive("value of --confidence", args.confidence, below=1, error=PlanError)
    rule = QualityRule(**{name: getattr(args, name) for name in RULE_HELP})
    sources = [path for path in (args.ledger, args.measurement) if path is not None]
    check_target(args.out, keep=sources, overwrite=args.overwrite)
    if records_format is not None:
        check_target(args.records, keep=[*sources, args.out], overwrite=args.overwrite)
    measurement = release_of(args)
    run_options: dict[str, Any] = {"progress": args.progress, "resume": args.resume}
    tables = publish(measurement, args.fit, integer=args.whole, **run_options)
    errors = uncertainty(tables, draws=args.draws, **run_options)
    records = None if records_format is None else tables.records(args.people, **run_options)
    settings: dict[str, Any] = {
        "rule": rule,
        "confidence": args.confidence,
        "overwrite": args.overwrite,
    }
    if file_format == PACKAGE:
        ledger = None if args.ledger is None else Ledger(args.ledger)
        receipt = None if ledger is None else ledger.find(measurement.key)
        write_package(
            measurement,
            args.out,
            receipt=receipt,
            ledger=ledger,
            published=errors,
            progress=args.progress,
            **settings,
        )
    elif file_format in ("zip", "xlsx"):
        write = write_tables if file_format == "zip" else write_workbook
        write(errors, args.out, progress=args.progress, **settings)
    else:
        write_published(errors, args.out, format=file_format, progress=args.progress, **settings)
    groups = errors.summary(rule).to_dict("records")
    lines = [
        f"{head_of(measurement)}: tables of {tables.total:,.0f} in {args.out}; nothing was spent"
    ]
    lines += [
        f"{row['attributes']}, {row['family']}: {pluralize(row['answers'], 'number')},"
        f" {row['below zero']:,} of them below zero before fitting;"
        f" {row['publishable']:.0%} publishable, {row['doubtful']:.0%} doubtful,"
        f" {row['suppressed']:.0%} suppressed"
        for row in groups
    ]
    data = release_data(measurement) | {
        "out": args.out,
        "format": file_format,
        "fit": args.fit,
        "whole": args.whole,
    }
    data |= {"total": tables.total, "confidence": args.confidence, "groups": groups}
    data |= {"records": args.records, "people": None, "criteria": None}
    if records is not None and records_format is not None:
        write_records(
            measurement, records, args.records, format=records_format, overwrite=args.overwrite
        )
        criteria = acceptance(errors, records).to_dict("records")
        data |= {"people": len(records), "criteria": criteria}
        lines.append(
            f"{len(records):,} simulated records in {args.records}; no row describes a real person"
        )
        lines += [
            f"{'met' if row['met'] else 'NOT met'}: {row['criterion']}:"
            f" {format_number(row['found'])}, limit {format_number(row['limit'])}"
            for row in criteria
        ]
    return Reply(text="\n".join(lines), data=data)


def add_query_commands(commands: Commands) -> None:
    """Add the command ``ask``."""
    ask = add_command(
        commands,
        "ask",
        _ask,
        json_keys=f"{RELEASE_KEYS} confidence answers together",
    )
    add_release_options(ask)
    queries = ask.add_mutually_exclusive_group(required=True)
    queries.add_argument(
        "--where",
        nargs="+",
        metavar="CONDITION",
        help="count the records with a condition, such as \"age >= 30 and sex == 'F'\"",
    )
    queries.add_argument("--total", action="store_true", help="count all records")
    add_workload_file(ask, queries)
    ask.add_argument(
        "--times",
        nargs="+",
        type=number,
        metavar="NUMBER",
        help=(
            "one factor per condition, to answer their weighted sum as well, such as 1 -1 for a"
            " difference; by default none"
        ),
    )
    ask.add_argument(
        "--confidence", type=number, default=0.95, metavar="LEVEL", help=CONFIDENCE_HELP
    )


def _condition_answers(
    measurement: Measurement,
    conditions: Sequence[str],
    factors: Sequence[float] | None,
    confidence: float,
) -> tuple[list[Any], dict[str, Any] | None]:
    """Return the numbers of records with each condition, and their sum weighted by ``factors``.

    An answer has the keys query, answer, std, low and high.  The weighted sum is None without
    ``factors``.
    """
    queries = [condition_query(measurement.plan.schema, text) for text in conditions]
    pairs = [(query.attributes, query.tensor) for query in queries]
    answers = [
        {"query": query.text} | vars(measurement.combination([pair], [1.0], confidence))
        for query, pair in zip(queries, pairs, strict=True)
    ]
    if factors is None:
        return answers, None
    text = " + ".join(
        f"{factor:g} × ({query.text})" for factor, query in zip(factors, queries, strict=True)
    )
    return answers, {"query": text} | vars(measurement.combination(pairs, factors, confidence))


def _ask(args: argparse.Namespace) -> Reply:
    """Run ``ask``: answer further queries from a measurement."""
    if args.times is not None and args.where is None:
        raise PlanError(
            "--times gives one factor per condition of --where, but no condition is given. Give"
            " --where, or leave --times out."
        )
    if args.times is not None and len(args.times) != len(args.where):
        raise PlanError(
            f"--times has {pluralize(len(args.times), 'factor')}, but --where has"
            f" {pluralize(len(args.where), 'condition')}. Give one factor per condition."
        )
    measurement = release_of(args)
    weighted_sum: dict[str, Any] | None = None
    if args.workload is not None:
        workload = workload_from_file(args.workload, measurement.plan.schema)
        answers: list[Any] = further_answers(measurement, workload, args.confidence).to_dict(
            "records"
        )
    else:
        conditions = args.where or [""]  # with --total, the empty condition
        answers, weighted_sum = _condition_answers(
            measurement, conditions, args.times, args.confidence
        )
    rows = [*answers, *([weighted_sum] if weighted_sum else [])]
    lines = [f"{head_of(measurement)}; intervals at {args.confidence:g}"]
    lines += [
        f"{row['query']}: {format_number(row['answer'])}, standard error"
        f" {format_number(row['std'])}, {format_number(row['low'])} to {format_number(row['high'])}"
        for row in rows
    ]
    data = release_data(measurement) | {
        "confidence": args.confidence,
        "answers": answers,
        "together": weighted_sum,
    }
    return Reply(text="\n".join(lines), data=data)
