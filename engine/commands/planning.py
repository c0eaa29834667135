"""Commands that read no record: plan, forecast, compare, show."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from engine.commands.given import add_budget_options, add_workload_options, budget_data, budget_of, workload_of
from engine.commands.options import add_mechanism_options, asked_mechanisms, mechanism_options
from engine.commands.reply import Commands, Reply, add_command
from engine.commands.wording import in_options
from engine.errors import EngineError
from engine.insight import claim_text, comparison, single_groups_text
from engine.mechanisms import AIMS, Usual, forecast, plan, usual_options
from engine.plans import Plan
from engine.publish import check_target, new_file
from engine.release import read_plan
from engine.texts import set_name

PROMISED = (
    "mechanism options queries rmse weighted_rmse max_std lower_bound gap claim pcost epsilon_by_delta budget promise "
    "hash"
)


def add_planning_commands(commands: Commands) -> None:
    """Add the commands ``plan``, ``forecast``, ``compare`` and ``show``."""
    made = add_command(commands, "plan", _plan, "fit a mechanism to a workload", keys=f"plan centers single {PROMISED}")
    told = add_command(
        commands, "forecast", _forecast, "say what planning would take", keys="seconds memory text centers"
    )
    ranked = add_command(
        commands, "compare", _compare, "plan with every mechanism and rank them", keys="mechanisms bound statement"
    )
    for command in (made, told, ranked):
        add_workload_options(command)
        add_mechanism_options(command, several=command is ranked)
        if command is not told:
            add_budget_options(command)
    words = "what is to be exact: the answers, or the tables that are published of them, which needs --reference"
    made.add_argument("--aim", choices=AIMS, default=AIMS[0], help=words)
    made.add_argument("--reference", type=Path, help="for --aim published: public records like those to come")
    made.add_argument("--out", type=Path, required=True, help="plan JSON to write; never over another file")
    show = add_command(commands, "show", _show, "what a plan promises, group by group", keys=f"{PROMISED} groups")
    show.add_argument("--plan", type=Path, required=True)


def _plan(given: argparse.Namespace) -> Reply:
    options = mechanism_options(given)
    workload = workload_of(given)
    # what aims at published tables plans many times, which no forecast says
    unaimed = given.aim == AIMS[0]
    usual = usual_options(workload, given.mechanism, options) if unaimed else Usual(options=options)
    sources = [path for path in (given.workload, given.schema, given.reference) if path is not None]
    if not given.out.is_file():  # what is there may be the same plan, which is then left as it is
        check_target(given.out, keep=sources)
    more = {"progress": given.progress, "aim": given.aim, "reference": given.reference}
    made = plan(workload, budget_of(given, workload.schema), given.mechanism, **usual.options, **more)
    if not _is_there(made, given.out):
        with new_file(given.out, keep=sources) as partial:
            partial.write_text(made.to_json(), encoding="utf-8")
    said, single = _promise(made), single_groups_text(made)
    told = [f"{word:11}{text}" for word, text in {"centers": usual.reason, "single": single}.items() if text]
    lines = [said.text, *told, f"plan       {given.out}"]
    data = {"plan": given.out, "centers": usual.reason, "single": single}
    return Reply(text="\n".join(lines), data={**data, **said.data})


def _is_there(made: Plan, path: Path) -> bool:
    """Whether a file holds this very plan."""
    try:
        return path.is_file() and read_plan(path).hash == made.hash
    except EngineError:
        return False


def _forecast(given: argparse.Namespace) -> Reply:
    options, workload = mechanism_options(given), workload_of(given)
    usual = usual_options(workload, given.mechanism, options)
    found = forecast(workload, given.mechanism, **usual.options)
    text = f"{found.text}: about {found.seconds:.1f} s and at most {found.memory / 1e6:,.0f} MB"
    return Reply(
        text=f"{text}\ncenters    {usual.reason}" if usual.reason else text,
        data={"seconds": found.seconds, "memory": found.memory, "text": found.text, "centers": usual.reason},
    )


def _compare(given: argparse.Namespace) -> Reply:
    asked, limits = asked_mechanisms(given)
    workload = workload_of(given)
    found = comparison(workload, budget_of(given, workload.schema), asked, **limits, progress=given.progress)
    frame = found.frame.assign(status=found.frame["status"].map(in_options))
    served = found.frame["rmse"].notna()
    ranked = found.frame[served].drop(columns="status").to_string(index=False, float_format=lambda v: f"{v:.4g}")
    refused = [f"{row.mechanism}: {row.status}" for row in frame[~served].itertuples()]
    return Reply(
        text="\n".join([ranked, *refused, f"{found.statement} It is {found.bound:.6g} counts."]),
        data={"mechanisms": frame.to_dict("records"), "bound": found.bound, "statement": found.statement},
    )


def _promise(made: Plan) -> Reply:
    claim, rows = claim_text(made), made.schema.other_rows(made.budget.rows_per_person)
    lines = [
        f"queries    {made.workload.queries:,} in {len(made.workload.groups):,} groups",
        f"rmse       {made.rmse:.6g} counts",
        f"proven     {claim}",
        f"budget     {made.meaning}",
        f"promise    {made.schema.promise(made.budget)}",
        *([f"rows       {rows}"] if rows else []),
    ]
    data: dict[str, Any] = {
        "mechanism": made.mechanism,
        "options": made.options,
        "queries": made.workload.queries,
        "rmse": made.rmse,
        "weighted_rmse": made.weighted_rmse,
        "max_std": math.sqrt(made.max_variance),
        "lower_bound": made.certificate.lower_bound,
        "gap": made.certificate.gap,
        "claim": claim,
        "pcost": made.pcost,
        "epsilon_by_delta": {f"{delta:g}": made.epsilon(delta) for delta in (1e-5, 1e-6, 1e-9)},
        "budget": budget_data(made.budget),
        "promise": made.schema.promise(made.budget),
        "hash": made.hash,
    }
    return Reply(text="\n".join(lines), data=data)


def _show(given: argparse.Namespace) -> Reply:
    made = read_plan(given.plan)
    said, groups = _promise(made), made.by_group()
    named = groups.assign(attributes=[set_name(names) for names in groups["attributes"]])
    return Reply(
        text=f"{said.text}\n{named.to_string(index=False)}", data={**said.data, "groups": groups.to_dict("records")}
    )
