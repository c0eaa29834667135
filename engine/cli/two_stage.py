"""Commands ``look``, ``decide`` and ``finish``, for two-stage releases.

The first stage (the look) measures the common part of several plans, a decision chooses one of the
plans, and the second stage measures the remaining part of this plan.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine._format import cost, pluralize
from engine.cli.arguments import (
    add_column_options,
    add_records_options,
    add_rule_options,
    common_plan_of,
    form_of,
    named_columns,
    option_names,
    print_row_summary,
    records_of,
    refuse_seed_option,
)
from engine.cli.output import ATTEMPT_HELP, CHAIN_HELP, Commands, Reply, add_command, whole_number
from engine.common_mechanism import NestedPlanRule, stepwise
from engine.common_mechanism.selection_rule import Decision
from engine.ledger import Ledger
from engine.publish import write_answers
from engine.publish.output_path import check_target
from engine.publish.report import FORMATS
from engine.release import Measurement
from engine.release.measure import read_plan

OTHER_RECORDS_ADVICE = (
    "To release these records, give look a new number as --attempt, which spends budget again."
    " Give another --dataset, with a separate budget, only for records of other people."
)


def add_step_commands(commands: Commands) -> None:
    """Add the commands ``look``, ``decide`` and ``finish``."""
    look = add_command(
        commands,
        "look",
        _look,
        json_keys="out queries key pcost options",
    )
    look.add_argument(
        "--plans",
        "--options",
        dest="plans",
        type=Path,
        nargs="+",
        required=True,
        metavar="FILE",
        help=(
            "plans, from coarse to fine; plan each with --options centers=uniform, so that the "
            "plans share residual spaces"
        ),
    )
    look.add_argument(
        "--names",
        nargs="+",
        metavar="NAME",
        help="names of the plans; by default the names of the files",
    )
    look.add_argument("--chain", action="store_true", help=CHAIN_HELP)
    look.add_argument("--dataset", required=True, metavar="NAME", help="dataset in the ledger")
    decide = add_command(
        commands,
        "decide",
        _decide,
        json_keys="option row verdict shares certain",
    )
    decide.add_argument(
        "--option",
        metavar="NAME",
        help="plan to choose, by its name, or 'stop'; by default the decision of the rule",
    )
    add_rule_options(decide, share=None)
    decide.add_argument(
        "--by",
        default="",
        metavar="NAME",
        help="person who decides without a rule or against it; by default none",
    )
    decide.add_argument(
        "--reason", default="", metavar="TEXT", help="reason, for the ledger; by default none"
    )
    finish = add_command(
        commands,
        "finish",
        _finish,
        json_keys="out queries key pcost option decide_again",
    )
    finish.add_argument(
        "--on-changed",
        choices=("refuse", "charge"),
        default="refuse",
        help=(
            "if the records differ from those of the first measurement: refuse, or charge this step"
            " separately; by default %(default)s"
        ),
    )
    for command in (look, decide, finish):
        command.add_argument(
            "--ledger", type=Path, required=True, metavar="FILE", help="file of the ledger"
        )
        if command is not look:
            command.add_argument("--look", required=True, metavar="KEY", help="key printed by look")
        if command is not decide:
            add_records_options(command, "records, the same in look and finish")
            add_column_options(command)
            command.add_argument(
                "--attempt", type=whole_number, default=1, metavar="NUMBER", help=ATTEMPT_HELP
            )
            command.add_argument(
                "--out",
                type=Path,
                required=True,
                metavar="FILE",
                help="file for the answers, .csv or .parquet",
            )
            command.add_argument("--seed", type=whole_number, help=argparse.SUPPRESS)


def _look(args: argparse.Namespace) -> Reply:
    """Run ``look``: measure the common part of the plans and write its answers."""
    refuse_seed_option(args)
    form_of(args.out, name=None, forms=FORMATS)  # raises PlanError for another ending
    sources = [*args.plans, *filter(None, (args.data, args.ledger))]
    check_target(args.out, keep=sources, overwrite=None)
    names = args.names or [path.stem for path in args.plans]
    common = common_plan_of(args, map(read_plan, args.plans), names)
    with option_names(OTHER_RECORDS_ADVICE):
        measurement = stepwise.look(
            common,
            records_of(args),
            dataset=args.dataset,
            ledger=args.ledger,
            **_measure_arguments(args),
        )
    output = _write_answers(measurement, args)
    pcost = common.look.budget.pcost
    lines = [
        output.text,
        f"spent pcost {cost(pcost)}; decide for one of {', '.join(common.names)}, or stop",
        f"key        {measurement.key}",
    ]
    data = {**output.data, "key": measurement.key, "pcost": pcost, "options": common.names}
    return Reply(text="\n".join(lines), data=data)


def _decide(args: argparse.Namespace) -> Reply:
    """Run ``decide``: choose a plan, by a rule or a person, and record the choice in the ledger."""
    steps = stepwise.resume(args.ledger, args.look)
    verdict: Decision | None = None
    rule: Mapping[str, Any] = {}
    if args.share is not None:
        selection_rule = NestedPlanRule(common=steps.common, share=args.share, snr=args.snr)
        verdict = selection_rule.decide(steps.look)
        rule = selection_rule.rule
    attribution = {"by": args.by, "reason": args.reason}
    choice = stepwise.decide(
        args.ledger, args.look, option=args.option, verdict=verdict, rule=rule, **attribution
    )
    lines = [] if verdict is None else [verdict.sentence]
    return Reply(
        text="\n".join(
            [*lines, f"decision   '{choice.option}', recorded in row {choice.seq} of the ledger"]
        ),
        data={
            "option": choice.option,
            "row": choice.seq,
            "verdict": None if verdict is None else verdict.sentence,
            "shares": None if verdict is None else verdict.shares,
            "certain": None if verdict is None else verdict.certain,
        },
    )


def _finish(args: argparse.Namespace) -> Reply:
    """Run ``finish``: measure the remaining part of the chosen plan and write its answers."""
    refuse_seed_option(args)
    form_of(args.out, name=None, forms=FORMATS)  # raises PlanError for another ending
    check_target(args.out, keep=[*filter(None, (args.data, args.ledger))], overwrite=None)
    ledger = Ledger(args.ledger)
    with option_names(OTHER_RECORDS_ADVICE):
        measurement = stepwise.finish(
            ledger,
            args.look,
            records_of(args),
            on_changed=args.on_changed,
            **_measure_arguments(args),
        )
    output = _write_answers(measurement, args)
    receipts = [ledger.find(key) for key in dict.fromkeys((args.look, measurement.key))]
    pcosts = [receipt.pcost for receipt in receipts if receipt is not None]
    steps = stepwise.resume(ledger, args.look)
    option = None if steps.choice is None else steps.choice.option
    # With --chain and more than two plans, this measurement can be the first stage of the next
    # decision.
    has_next_decision = steps.common.following is not None and option == steps.common.names[-1]
    lines = [output.text, f"spent pcost {' + '.join(map(cost, pcosts))}"]
    if has_next_decision:
        lines.append(f"key        {measurement.key}")
    data = {
        **output.data,
        "key": measurement.key,
        "pcost": pcosts,
        "option": option,
        "decide_again": has_next_decision,
    }
    return Reply(text="\n".join(lines), data=data)


def _measure_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """Return the keyword arguments that both measurements, look and finish, pass to the engine."""
    return named_columns(args) | {
        "attempt": args.attempt,
        "progress": args.progress,
        "intake": print_row_summary,
    }


def _write_answers(measurement: Measurement, args: argparse.Namespace) -> Reply:
    """Write the answers of a measurement; return a reply with their number and their file."""
    file_format = form_of(args.out, name=None, forms=FORMATS)
    queries = measurement.plan.workload.queries
    write_answers(measurement, args.out, format=file_format, progress=args.progress)
    return Reply(
        text=f"{pluralize(queries, 'answer')} in {args.out}",
        data={"out": args.out, "queries": queries},
    )
