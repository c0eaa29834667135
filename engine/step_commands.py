"""The command line's three steps of a choice between plans: look, decide, finish; see `engine.choice.stepwise`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from engine.choice import Decision, NestedPlanRule, coarse_or_fine, nested_choices, stepwise
from engine.publish import check_target, write_answers
from engine.release import Intake, Ledger, Measurement, Progress, read_plan

Say = Callable[[Intake], object]


def add_column_options(command: argparse.ArgumentParser) -> None:
    """Add what a file's columns are that the schema does not know."""
    command.add_argument(
        "--person", help="column that tells whose row it is, by default the schema's; caps the rows of each person"
    )
    command.add_argument("--count-column", metavar="N", help="how many records each row of the data stands for")
    command.add_argument("--ignore", nargs="+", default=[], metavar="COLUMN", help="columns that are no counts")


def named_columns(given: argparse.Namespace) -> dict[str, Any]:
    """Return what `add_column_options` was given, as arguments of the engine."""
    return {name: getattr(given, name) for name in ("person", "count_column", "ignore")}


def add_step_commands(commands: Any, *, progress: Progress, say_rows: Say) -> None:
    """Add the commands ``look``, ``decide`` and ``finish`` to a parser's commands."""
    look = commands.add_parser("look", help="measure what plans share, before choosing one of them")
    look.add_argument("--options", type=Path, nargs="+", required=True, help="plan files, from coarse to fine")
    look.add_argument("--names", nargs="+", help="what to call them; by default the names of the files")
    look.add_argument("--chain", action="store_true", help="choose step by step, from coarse to fine")
    look.add_argument("--dataset", required=True, help="name in the ledger")
    decide = commands.add_parser("decide", help="keep on the ledger which option is taken after a look; costs nothing")
    decide.add_argument("--option", help="a name, or 'stop'; by default what the rule says")
    decide.add_argument("--share", type=float, help="the rule: take the finer plan if this share of coarse cells ...")
    decide.add_argument("--snr", type=float, default=5.0, help="... is at least so many standard errors large")
    decide.add_argument("--by", default="", help="who decides without, or against, a rule")
    decide.add_argument("--reason", default="")
    finish = commands.add_parser("finish", help="measure what is left of the option that was taken")
    finish.add_argument(
        "--on-changed",
        choices=("refuse", "charge"),
        default="refuse",
        help="if these are other records than those looked at: refuse, or charge this step alone",
    )
    for command, run in ((look, _look), (decide, _decide), (finish, _finish)):
        command.add_argument("--ledger", type=Path, required=True)
        command.set_defaults(run=run, progress=progress, say_rows=say_rows)
        if command is not look:
            command.add_argument("--look", required=True, metavar="KEY", help="the key that look printed")
        if command is not decide:
            command.add_argument("--data", type=Path, required=True, help="CSV or parquet; the same in both steps")
            add_column_options(command)
            command.add_argument("--attempt", type=int, default=1)
            command.add_argument("--out", type=Path, required=True, help="CSV or parquet file for the answers")


def _look(given: argparse.Namespace) -> None:
    check_target(given.out, keep=[*given.options, given.data, given.ledger])
    split = nested_choices if given.chain else coarse_or_fine
    common = split(*map(read_plan, given.options), names=given.names or [path.stem for path in given.options])
    found = stepwise.look(common, given.data, dataset=given.dataset, ledger=given.ledger, **_arguments(given))
    _write(found, given)
    print(f"spent pcost {common.look.budget.pcost!r}; decide for one of {', '.join(common.names)}, or stop")
    print(f"key        {found.key}")


def _decide(given: argparse.Namespace) -> None:
    steps = stepwise.resume(given.ledger, given.look)
    verdict: Decision | None = None
    rule: Mapping[str, Any] = {}
    if given.share is not None:
        asked = NestedPlanRule(common=steps.common, share=given.share, snr=given.snr)
        verdict, rule = asked.decide(steps.look), asked.rule
        print(verdict.sentence)
    who = {"by": given.by, "reason": given.reason}
    taken = stepwise.decide(given.ledger, given.look, option=given.option, verdict=verdict, rule=rule, **who)
    print(f"'{taken.option}' is noted in row {taken.seq} of the ledger")


def _finish(given: argparse.Namespace) -> None:
    check_target(given.out, keep=[given.data, given.ledger])
    book = Ledger(given.ledger)
    found = stepwise.finish(book, given.look, given.data, on_changed=given.on_changed, **_arguments(given))
    _write(found, given)
    receipts = [book.find(key) for key in dict.fromkeys((given.look, found.key))]
    print(f"spent pcost {' + '.join(repr(r.pcost) for r in receipts if r is not None)}")
    steps = stepwise.resume(book, given.look)
    taken = None if steps.choice is None else steps.choice.option
    if steps.common.following is not None and taken == steps.common.names[-1]:
        print(f"key        {found.key}")  # this was a closer look: decide again


def _arguments(given: argparse.Namespace) -> dict[str, Any]:
    return named_columns(given) | {"attempt": given.attempt, "progress": given.progress, "intake": given.say_rows}


def _write(found: Measurement, given: argparse.Namespace) -> None:
    kind = "csv" if given.out.suffix.lower() == ".csv" else "parquet"
    write_answers(found, given.out, format=kind, progress=given.progress)
    print(f"{found.plan.workload.queries:,} answers in {given.out}")
