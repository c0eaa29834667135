"""Commands look, decide and finish."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.cli.arguments import (
    add_column_options,
    add_records_options,
    form_of,
    named_columns,
    option_names,
    records_of,
    refuse_seed_option,
    say_rows,
)
from engine.cli.output import Commands, Reply, add_command
from engine.common_mechanism import NestedPlanRule, stepwise
from engine.common_mechanism.common_plan import coarse_or_fine, nested_choices
from engine.common_mechanism.selection_rule import Decision
from engine.ledger import Ledger
from engine.publish import write_answers
from engine.publish.output_path import check_target
from engine.publish.report import FORMATS
from engine.release import Measurement
from engine.release.measure import read_plan

OTHER_RECORDS = (
    "To release these records, give look an --attempt with a new number, which spends again, or another --dataset, "
    "with a budget of its own."
)


def add_step_commands(commands: Commands) -> None:
    """Add the commands ``look``, ``decide`` and ``finish``."""
    look = add_command(
        commands,
        "look",
        _look,
        "measure what plans share, before choosing one of them",
        keys="out queries key pcost options",
    )
    look.add_argument(
        "--plans",
        "--options",
        dest="plans",
        type=Path,
        nargs="+",
        required=True,
        help="plan files, from coarse to fine; plan each with --options centers=uniform, so that they share spaces",
    )
    look.add_argument("--names", nargs="+", help="what to call them; by default the names of the files")
    look.add_argument("--chain", action="store_true", help="choose step by step, from coarse to fine")
    look.add_argument("--dataset", required=True, help="name in the ledger")
    decide = add_command(
        commands,
        "decide",
        _decide,
        "keep on the ledger which option is taken after a look; costs nothing",
        keys="option row verdict shares certain",
    )
    decide.add_argument("--option", help="a name, or 'stop'; by default what the rule says")
    decide.add_argument("--share", type=float, help="the rule: take the finer plan if this share of coarse cells ...")
    decide.add_argument("--snr", type=float, default=5.0, help="... is at least so many standard errors large")
    decide.add_argument("--by", default="", help="who decides without, or against, a rule")
    decide.add_argument("--reason", default="")
    finish = add_command(
        commands,
        "finish",
        _finish,
        "measure what is left of the option that was taken",
        keys="out queries key pcost option decide_again",
    )
    finish.add_argument(
        "--on-changed",
        choices=("refuse", "charge"),
        default="refuse",
        help="if these are other records than those looked at: refuse, or charge this step alone",
    )
    for command in (look, decide, finish):
        command.add_argument("--ledger", type=Path, required=True)
        if command is not look:
            command.add_argument("--look", required=True, metavar="KEY", help="the key that look printed")
        if command is not decide:
            add_records_options(command, "the records; the same in both steps")
            add_column_options(command)
            command.add_argument("--attempt", type=int, default=1)
            command.add_argument("--out", type=Path, required=True, help="CSV or parquet file for the answers")
            command.add_argument("--seed", type=int, help=argparse.SUPPRESS)


def _look(given: argparse.Namespace) -> Reply:
    refuse_seed_option(given)
    form_of(given.out, None, FORMATS)
    check_target(given.out, keep=[*given.plans, *filter(None, (given.data, given.ledger))])
    split = nested_choices if given.chain else coarse_or_fine
    common = split(*map(read_plan, given.plans), names=given.names or [path.stem for path in given.plans])
    with option_names(OTHER_RECORDS):
        found = stepwise.look(
            common, records_of(given), dataset=given.dataset, ledger=given.ledger, **_arguments(given)
        )
    written, pcost = _written(found, given), common.look.budget.pcost
    lines = [
        written.text,
        f"spent pcost {pcost!r}; decide for one of {', '.join(common.names)}, or stop",
        f"key        {found.key}",
    ]
    data = {**written.data, "key": found.key, "pcost": pcost, "options": common.names}
    return Reply(text="\n".join(lines), data=data)


def _decide(given: argparse.Namespace) -> Reply:
    steps = stepwise.resume(given.ledger, given.look)
    verdict: Decision | None = None
    rule: Mapping[str, Any] = {}
    if given.share is not None:
        asked = NestedPlanRule(common=steps.common, share=given.share, snr=given.snr)
        verdict, rule = asked.decide(steps.look), asked.rule
    who = {"by": given.by, "reason": given.reason}
    taken = stepwise.decide(given.ledger, given.look, option=given.option, verdict=verdict, rule=rule, **who)
    lines = [] if verdict is None else [verdict.sentence]
    return Reply(
        text="\n".join([*lines, f"'{taken.option}' is noted in row {taken.seq} of the ledger"]),
        data={
            "option": taken.option,
            "row": taken.seq,
            "verdict": None if verdict is None else verdict.sentence,
            "shares": None if verdict is None else verdict.shares,
            "certain": None if verdict is None else verdict.certain,
        },
    )


def _finish(given: argparse.Namespace) -> Reply:
    refuse_seed_option(given)
    form_of(given.out, None, FORMATS)
    check_target(given.out, keep=[*filter(None, (given.data, given.ledger))])
    book = Ledger(given.ledger)
    with option_names(OTHER_RECORDS):
        found = stepwise.finish(book, given.look, records_of(given), on_changed=given.on_changed, **_arguments(given))
    written = _written(found, given)
    receipts = [book.find(key) for key in dict.fromkeys((given.look, found.key))]
    paid = [receipt.pcost for receipt in receipts if receipt is not None]
    steps = stepwise.resume(book, given.look)
    taken = None if steps.choice is None else steps.choice.option
    again = steps.common.following is not None and taken == steps.common.names[-1]
    lines = [written.text, f"spent pcost {' + '.join(map(repr, paid))}"]
    if again:  # this was a closer look
        lines.append(f"key        {found.key}")
    data = {**written.data, "key": found.key, "pcost": paid, "option": taken, "decide_again": again}
    return Reply(text="\n".join(lines), data=data)


def _arguments(given: argparse.Namespace) -> dict[str, Any]:
    return named_columns(given) | {"attempt": given.attempt, "progress": given.progress, "intake": say_rows}


def _written(found: Measurement, given: argparse.Namespace) -> Reply:
    """Write the answers, and say so."""
    kind, queries = form_of(given.out, None, FORMATS), found.plan.workload.queries
    write_answers(found, given.out, format=kind, progress=given.progress)
    return Reply(text=f"{queries:,} answers in {given.out}", data={"out": given.out, "queries": queries})
