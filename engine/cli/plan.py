"""Commands plan, forecast, compare, show and coarse-or-fine.

Commands that read no record: plan, forecast, compare, show.

The command coarse-or-fine: what the rule of a choice in steps would say, before anything is spent.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from engine._format import set_name
from engine.analysis import single_groups_text
from engine.analysis.compare import comparison
from engine.analysis.error_targets import claim_text
from engine.cli.arguments import (
    add_budget_options,
    add_column_options,
    add_mechanism_options,
    add_workload_options,
    asked_in,
    asked_mechanisms,
    budget_data,
    budget_of,
    mechanism_options,
    named_columns,
    say_rows,
    schema_of,
    workload_of,
)
from engine.cli.output import Commands, Reply, add_command, in_options
from engine.common_mechanism import CommonPlan, NestedPlanRule, by_ways, stepwise
from engine.common_mechanism.baseline_rules import even_totals
from engine.common_mechanism.common_plan import coarse_or_fine, nested_choices
from engine.errors import EngineError, PlanError, SchemaError
from engine.mechanisms import forecast, plan
from engine.mechanisms.registry import AIMS, Usual, usual_options
from engine.plans import Plan
from engine.publish.output_path import check_target, new_file
from engine.release.measure import read_plan

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


OF_PLANNING = ("options", "schema", "pcost", "rho", "mu", "epsilon", "pure_epsilon")


def add_prediction_commands(commands: Commands) -> None:
    """Add the command ``coarse-or-fine``."""
    command = add_command(
        commands,
        "coarse-or-fine",
        _predict,
        "say what a choice between analyses would cost and when its rule takes which; spends nothing",
        keys="analyses look_pcost saved rule rule_text records predicted verdict",
    )
    which = command.add_mutually_exclusive_group(required=True)
    which.add_argument("--plans", type=Path, nargs="+", help="plan files, from coarse to fine")
    which.add_argument("--workloads", type=Path, nargs="+", help="workload files, JSON or SQL, from coarse to fine")
    which.add_argument("--ways", type=int, nargs="+", help="with --schema: all tables of so many attributes each")
    command.add_argument("--schema", type=Path, help="schema JSON or CSV, for --ways and for SQL")
    command.add_argument("--names", nargs="+", help="what to call the analyses; by default the names of the files")
    command.add_argument("--chain", action="store_true", help="choose step by step, from coarse to fine")
    add_mechanism_options(command)
    add_budget_options(command, required=False)
    command.add_argument("--share", type=float, default=0.5, help="take the finer one if this share of coarse cells ..")
    command.add_argument("--snr", type=float, default=5.0, help=".. is at least so many standard errors large")
    command.add_argument("--sigmas", type=float, default=3.0, help="safety margin of the look, in standard errors")
    command.add_argument("--primary", help="the analysis that must be served; by default the first")
    command.add_argument("--records", type=int, help="how many records there will be: predict for evenly spread ones")
    command.add_argument("--simulated", type=Path, metavar="DATA", help="simulated records: rehearse the look on them")
    command.add_argument("--seed", type=int, help="seed of the noise of that rehearsal, to repeat it exactly")
    add_column_options(command)


def _predict(given: argparse.Namespace) -> Reply:
    common = _common(given)
    primary = 0 if given.primary is None else given.primary
    rule = NestedPlanRule(common=common, primary=primary, share=given.share, snr=given.snr, sigmas=given.sigmas)
    even = dict(zip(rule.finer, even_totals(rule), strict=True))
    costs: list[Any] = common.budget_shares().to_dict("records")
    rows: list[dict[str, Any]] = []
    for i, cost in enumerate(costs):
        judged = i == common.position(primary) or i in even
        error = float(np.median(rule.errors(i))) if judged else None
        stands_out = None if error is None else given.snr * error
        rows.append({**cost, "typical_std": error, "stands_out_from": stands_out, "even_records": even.get(i)})
    from engine.figures import rule_text
    from engine.figures.two_stage import saved_text

    lines = [saved_text(common), rule_text(rule)]
    for row in rows:
        if row["typical_std"] is not None:
            line = f"{row['option']}: a typical cell stands out from {row['stands_out_from']:.4g} records"
            at = row["even_records"]
            lines.append(f"{line}; evenly spread records meet the rule from {at:,.0f} on" if at is not None else line)
    predicted = verdict = None
    if given.records is not None:
        if given.records < 0:
            raise PlanError(f"--records was {given.records}. Give how many records there will be, from 0.")
        enough = [i for i, least in even.items() if given.records >= least]
        predicted = common.names[max(enough, default=common.position(primary))]
        lines.append(f"predicted  {predicted}, for {given.records:,} evenly spread records")
    if given.seed is not None and given.simulated is None:
        raise PlanError("--seed is for the rehearsal on --simulated records. Give both, or leave it out.")
    if given.simulated is not None:
        columns = named_columns(given)
        looked = stepwise.look(
            common,
            given.simulated,
            rehearsal=True,
            seed=given.seed,
            on_refused="drop",
            progress=given.progress,
            intake=say_rows,
            **columns,
        )
        decided = rule.decide(looked)
        name = stepwise.STOP if decided.choice is None else common.names[decided.choice]
        verdict = {"option": name} | vars(decided)
        lines.append(f"REHEARSAL  {decided.sentence}")
    data = {
        "analyses": rows,
        "look_pcost": common.look.budget.pcost,
        "saved": common.saved,
        "rule": rule.rule,
        "rule_text": rule_text(rule),
        "records": given.records,
        "predicted": predicted,
        "verdict": verdict,
    }
    return Reply(text="\n".join(lines), data=data)


def _common(given: argparse.Namespace) -> CommonPlan:
    """The analyses, planned, and what they share."""
    split: Callable[..., CommonPlan] = nested_choices if given.chain else coarse_or_fine
    if given.plans is not None:
        if said := [name for name in OF_PLANNING if vars(given)[name]]:
            word = said[0].replace("_", "-")
            raise PlanError(f"--{word} is for planning, and --plans are made already. Leave one of the two out.")
        return split(*map(read_plan, given.plans), names=given.names or [path.stem for path in given.plans])
    options, schema = mechanism_options(given), None if given.schema is None else schema_of(given.schema)
    if given.workloads is not None:
        asked = [asked_in(path, schema) for path in given.workloads]
        names = [path.stem for path in given.workloads]
    else:
        if schema is None:
            raise SchemaError("--ways needs the attributes. Give them by --schema.")
        found = by_ways(schema, given.ways)
        asked, names = list(found.values()), list(found)
    made = [
        plan(one, budget_of(given, one.schema), given.mechanism, progress=given.progress, **options) for one in asked
    ]
    return split(*made, names=given.names or names)
