"""The command publish: tables that are handed out, and simulated records, from what was measured; costs nothing."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from engine.checks import positive
from engine.commands.given import form_of
from engine.commands.released import RELEASE_KEYS, add_release_options, head_of, release_data, release_of
from engine.commands.reply import Commands, Reply, add_command
from engine.errors import PlanError
from engine.publish import (
    DRAWS,
    FITS,
    FORMATS,
    QualityRule,
    acceptance,
    check_target,
    publish,
    uncertainty,
    write_published,
    write_records,
    write_tables,
    write_workbook,
)

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
