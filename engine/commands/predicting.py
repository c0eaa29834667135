"""The command coarse-or-fine: what the rule of a choice in steps would say, before anything is spent."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from engine.choice import CommonPlan, NestedPlanRule, by_ways, coarse_or_fine, even_totals, nested_choices, stepwise
from engine.commands.given import (
    add_budget_options,
    add_column_options,
    asked_in,
    budget_of,
    named_columns,
    say_rows,
    schema_of,
)
from engine.commands.options import add_mechanism_options, mechanism_options
from engine.commands.reply import Commands, Reply, add_command
from engine.errors import PlanError, SchemaError
from engine.mechanisms import plan
from engine.release import read_plan

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
    from engine.figures import rule_text, saved_text  # Plotly takes long to import

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
