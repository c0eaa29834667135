"""Commands ask and publish.

The command publish: tables that are handed out, and simulated records, from what was measured; costs nothing.

The command ask: further questions to what was measured, at no further privacy cost.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from engine._validation import positive
from engine.analysis import condition_query
from engine.analysis.ad_hoc_queries import further_answers
from engine.cli.arguments import (
    RELEASE_KEYS,
    add_asked_file,
    add_release_options,
    asked_in,
    form_of,
    head_of,
    release_data,
    release_of,
)
from engine.cli.output import Commands, Reply, add_command
from engine.errors import PlanError
from engine.postprocess import QualityRule, publish, uncertainty
from engine.postprocess.published_tables import FITS
from engine.postprocess.uncertainty import DRAWS
from engine.postprocess.utility_checks import acceptance
from engine.publish.export_tables import write_published, write_records
from engine.publish.output_path import check_target
from engine.publish.report import FORMATS
from engine.publish.tables_package import write_tables, write_workbook

FORMS = ("zip", "xlsx", *FORMATS)
RULE = {
    "doubtful_cv": "a number is doubtful from this error over itself on",
    "suppressed_cv": "and suppressed from this one on",
    "least_count": "a smaller number is suppressed",
    "least_signal": "doubtful where a smaller share of it was measured",
}


def add_publishing_commands(commands: Commands) -> None:
    """Add the command ``publish``."""
    made = add_command(
        commands,
        "publish",
        _publish,
        "tables without negative numbers that agree with each other, from a release; costs nothing",
        keys=f"{RELEASE_KEYS} out format fit whole total confidence groups records people criteria",
    )
    add_release_options(made)
    made.add_argument(
        "--out", type=Path, required=True, help="zip: the package, with codes, labels and a codebook; xlsx: a workbook"
    )
    made.add_argument("--format", choices=FORMS, help="by default the ending of --out")
    made.add_argument("--fit", choices=FITS, default=FITS[0], help="how the tables are made, by default %(default)s")
    made.add_argument("--whole", action="store_true", help="whole numbers: counts of the same simulated records")
    made.add_argument("--overwrite", action="store_true", help="replace earlier files of tables and records")
    made.add_argument("--records", type=Path, help=f"file for simulated records, {' or '.join(FORMATS)}")
    made.add_argument("--people", type=int, help="how many of them; by default as many as the tables sum to")
    made.add_argument("--confidence", type=float, default=0.95)
    made.add_argument("--draws", type=int, default=DRAWS, help="rehearsals that errors are read from")
    for name, words in RULE.items():
        made.add_argument(f"--{name.replace('_', '-')}", type=float, default=getattr(QualityRule(), name), help=words)
    made.add_argument("--resume", type=Path, metavar="FOLDER", help="keeps what is reached: the same command goes on")


def _publish(given: argparse.Namespace) -> Reply:
    kind = form_of(given.out, given.format, FORMS)
    people = None if given.records is None else form_of(given.records, None, FORMATS)
    if people is None and given.people is not None:
        raise PlanError("--people says how many records --records is to hold. Give the file, too, or leave it out.")
    positive("confidence", given.confidence, below=1, error=PlanError)
    rule = QualityRule(**{name: getattr(given, name) for name in RULE})
    sources = [path for path in (given.ledger, given.measurement) if path is not None]
    check_target(given.out, keep=sources, overwrite=given.overwrite)
    if people is not None:
        check_target(given.records, keep=[*sources, given.out], overwrite=given.overwrite)
    found = release_of(given)
    work: dict[str, Any] = {"progress": given.progress, "resume": given.resume}
    tables = publish(found, given.fit, integer=given.whole, **work)
    errors = uncertainty(tables, draws=given.draws, **work)
    drawn = None if people is None else tables.records(given.people, **work)
    told: dict[str, Any] = {"rule": rule, "confidence": given.confidence, "overwrite": given.overwrite}
    if kind in ("zip", "xlsx"):
        write = write_tables if kind == "zip" else write_workbook
        write(errors, given.out, progress=given.progress, **told)
    else:
        write_published(errors, given.out, format=kind, progress=given.progress, **told)
    groups = errors.summary(rule).to_dict("records")
    lines = [f"{head_of(found)}: tables of {tables.total:,.0f} in {given.out}; nothing was spent"]
    lines += [
        f"{row['attributes']}, {row['family']}: {row['answers']:,} numbers, {row['below zero']:,} were below zero; "
        f"{row['publishable']:.0%} publishable, {row['doubtful']:.0%} doubtful, {row['suppressed']:.0%} suppressed"
        for row in groups
    ]
    data = release_data(found) | {"out": given.out, "format": kind, "fit": given.fit, "whole": given.whole}
    data |= {"total": tables.total, "confidence": given.confidence, "groups": groups}
    data |= {"records": given.records, "people": None, "criteria": None}
    if drawn is not None and people is not None:
        write_records(found, drawn, given.records, format=people, overwrite=given.overwrite)
        criteria = acceptance(errors, drawn).to_dict("records")
        data |= {"people": len(drawn), "criteria": criteria}
        lines.append(f"{len(drawn):,} simulated records in {given.records}; no row stands for a person")
        lines += [
            f"{'met' if row['met'] else 'NOT met'}: {row['criterion']}: {row['found']:.4g}, limit {row['limit']:.4g}"
            for row in criteria
        ]
    return Reply(text="\n".join(lines), data=data)


def add_asking_commands(commands: Commands) -> None:
    """Add the command ``ask``."""
    ask = add_command(
        commands,
        "ask",
        _ask,
        "answer further questions from a release; costs nothing",
        keys=f"{RELEASE_KEYS} confidence answers together",
    )
    add_release_options(ask)
    what = ask.add_mutually_exclusive_group(required=True)
    what.add_argument("--where", nargs="+", metavar="CONDITION", help="such as \"age >= 30 and sex == 'F'\"")
    what.add_argument("--total", action="store_true", help="the number of all records")
    add_asked_file(ask, what)
    ask.add_argument(
        "--times", nargs="+", type=float, metavar="NUMBER", help="one a condition: their sum, such as 1 -1 for two"
    )
    ask.add_argument("--confidence", type=float, default=0.95)


def _ask(given: argparse.Namespace) -> Reply:
    if given.times is not None and given.where is None:
        raise PlanError("--times adds up the counts of conditions. Give them by --where, or leave --times out.")
    if given.times is not None and len(given.times) != len(given.where):
        raise PlanError(f"--times has {len(given.times)} numbers for {len(given.where)} conditions. Give one for each.")
    found = release_of(given)
    together: dict[str, Any] | None = None
    if given.workload is not None:
        asked = asked_in(given.workload, found.plan.schema)
        answers: list[Any] = further_answers(found, asked, given.confidence).to_dict("records")
    else:
        queries = [condition_query(found.plan.schema, text) for text in given.where or [""]]
        pairs = [(query.attributes, query.tensor) for query in queries]
        answers = [
            {"query": query.text} | vars(found.combination([pair], [1.0], given.confidence))
            for query, pair in zip(queries, pairs, strict=True)
        ]
        if given.times is not None:
            text = " + ".join(f"{c:g} × ({q.text})" for c, q in zip(given.times, queries, strict=True))
            together = {"query": text} | vars(found.combination(pairs, given.times, given.confidence))
    rows = [*answers, *([together] if together else [])]
    lines = [f"{head_of(found)}; intervals at {given.confidence:g}"]
    lines += [
        f"{row['query']}: {row['answer']:.6g}, standard error {row['std']:.4g}, {row['low']:.6g} to {row['high']:.6g}"
        for row in rows
    ]
    data = release_data(found) | {"confidence": given.confidence, "answers": answers, "together": together}
    return Reply(text="\n".join(lines), data=data)
