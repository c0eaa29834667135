"""Commands that count parts of the records where they are, and bring the counts together."""

from __future__ import annotations

import argparse
from pathlib import Path

from engine.choice import coarse_or_fine, counted_for_steps, nested_choices
from engine.commands.given import (
    add_column_options,
    add_file_options,
    add_named_source,
    named_columns,
    records_of,
    say_rows,
    schema_of,
)
from engine.commands.reply import Commands, Reply, add_command
from engine.errors import DataError, SchemaError
from engine.release import COUNTS_ENDING, Counts, Intake, counted_for, read_plan

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
