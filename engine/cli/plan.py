"""Commands `schema`, `plan`, `forecast`, `compare`, `show` and `coarse-or-fine`.

These commands do not read confidential records. The command ``coarse-or-fine`` predicts which of
several analyses, from coarse to fine, a two-stage release would choose.

The command ``schema`` adds code lists to a schema.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np

from engine._format import format_number, percent_rounded_up, pluralize, set_name
from engine.analysis import comparison, single_groups_text
from engine.analysis.certificates import claim_text
from engine.cli.arguments import (
    add_budget_options,
    add_column_options,
    add_mechanism_options,
    add_rule_options,
    add_workload_options,
    budget_data,
    budget_of,
    common_plan_of,
    file_bytes,
    mechanism_options,
    mechanisms_of,
    named_columns,
    print_row_summary,
    schema_of,
    workload_from_file,
    workload_of,
)
from engine.cli.output import (
    CHAIN_HELP,
    Commands,
    Reply,
    add_command,
    in_options,
    number,
    whole_number,
)
from engine.common_mechanism import (
    CommonPlan,
    NestedPlanRule,
    stepwise,
    workloads_by_way,
)
from engine.errors import EngineError, PlanError, SchemaError
from engine.mechanisms import forecast, plan
from engine.mechanisms.registry import default_options
from engine.plans import Plan
from engine.postprocess.publication_weights import publication_weights
from engine.publish.output_path import check_target, new_file
from engine.release.measure import read_plan
from engine.workload import Attribute, CodeList, Schema

ENDINGS = {".csv": CodeList.from_csv, ".hrc": CodeList.from_hrc}


def add_schema_command(commands: Commands) -> None:
    """Add the command ``schema``."""
    command = add_command(commands, "schema", _schema, json_keys="schema attributes levels")
    command.add_argument(
        "--schema",
        type=Path,
        metavar="FILE",
        help="schema (JSON, CSV, workbook) to extend; by default a new one",
    )
    command.add_argument(
        "--code-list",
        nargs=2,
        action="append",
        required=True,
        metavar=("NAME", "FILE"),
        help=(
            "attribute and its code list: CSV with code,label,parent, or .hrc; repeatable, also for"
            " one attribute"
        ),
    )
    command.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="file for the schema, as JSON"
    )
    command.add_argument("--overwrite", action="store_true", help="replace an existing schema")


def _schema(args: argparse.Namespace) -> Reply:
    """Run ``schema``: write a schema with added code lists; list all levels of its attributes."""
    code_lists = [(attribute, Path(path)) for attribute, path in args.code_list]
    target_rules = {
        "keep": [*filter(None, [args.schema]), *(path for _, path in code_lists)],
        "overwrite": args.overwrite,
        "is_replaceable": _is_schema,
    }
    check_target(args.out, **target_rules)
    schema = None if args.schema is None else schema_of(args.schema)
    for attribute_name, path in code_lists:
        schema = _with_code_list(schema, attribute_name, path)
    assert schema is not None  # the option --code-list is required
    with new_file(args.out, **target_rules) as partial:
        partial.write_text(schema.to_json(), encoding="utf-8")
    levels: list[dict[str, Any]] = [
        {
            "attribute": attribute.name,
            "hierarchy": hierarchy.name,
            "level": level.name,
            "areas": level.areas,
        }
        for attribute in schema.attributes
        for hierarchy in attribute.hierarchies
        for level in hierarchy.levels
    ]
    lines = [
        f"{entry['attribute']}: level {entry['level']!r}, {pluralize(entry['areas'], 'area')}"
        f" (hierarchy {entry['hierarchy']!r})"
        for entry in levels
    ]
    return Reply(
        text="\n".join([*lines, f"schema     {args.out}"]),
        data={"schema": args.out, "attributes": len(schema), "levels": levels},
    )


def _with_code_list(schema: Schema | None, name: str, path: Path) -> Schema:
    """Return a schema with the code list in a file added to an attribute.

    If there is no schema, the result has only this attribute.
    """
    read = ENDINGS.get(path.suffix.lower())
    if read is None:
        raise SchemaError(
            f"The name of the code list {path} does not end in {' or '.join(ENDINGS)}. Give a file "
            "of one of these formats."
        )
    code_list = read(file_bytes(path, SchemaError), name=path.stem)
    if schema is None:
        return Schema([Attribute.hierarchy(name, code_list)])
    return schema.with_code_list(name, code_list)


def _is_schema(path: Path) -> bool:
    """Return whether a file contains a schema as JSON."""
    try:
        Schema.from_json(path.read_bytes())
    except (EngineError, OSError):
        return False
    return True


PLAN_KEYS = (
    "mechanism options queries rmse weighted_rmse max_std lower_bound gap claim pcost"
    " epsilon_by_delta budget promise hash"
)


def add_plan_commands(commands: Commands) -> None:
    """Add the commands ``plan``, ``forecast``, ``compare`` and ``show``."""
    plan_command = add_command(
        commands,
        "plan",
        _plan,
        json_keys=f"plan centers single weights {PLAN_KEYS}",
    )
    forecast_command = add_command(
        commands,
        "forecast",
        _forecast,
        json_keys="seconds memory text centers",
    )
    compare_command = add_command(
        commands,
        "compare",
        _compare,
        json_keys="mechanisms bound statement",
    )
    for command in (plan_command, forecast_command, compare_command):
        add_workload_options(command)
        add_mechanism_options(command, several=command is compare_command)
        if command is not forecast_command:
            add_budget_options(command)
    plan_command.add_argument(
        "--expected-records",
        type=number,
        metavar="NUMBER",
        help=(
            "expected number of records, to weight groups for published tables; by default not"
            " weighted"
        ),
    )
    plan_command.add_argument(
        "--reference",
        type=Path,
        metavar="FILE",
        help="similar public records, for --expected-records; by default none",
    )
    plan_command.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="file for the plan, as JSON"
    )
    plan_command.add_argument("--overwrite", action="store_true", help="replace an existing plan")
    show_command = add_command(
        commands,
        "show",
        _show,
        json_keys=f"{PLAN_KEYS} groups",
    )
    show_command.add_argument(
        "--plan", type=Path, required=True, metavar="FILE", help="file of a plan"
    )


def _plan(args: argparse.Namespace) -> Reply:
    """Run ``plan``: fit a mechanism to a workload and write the plan."""
    options = mechanism_options(args)
    workload = workload_of(args)
    if args.reference is not None and args.expected_records is None:
        raise PlanError(
            "--reference has no effect without --expected-records. Give both, or leave --reference"
            " out."
        )
    defaults = default_options(workload, args.mechanism, options)
    sources = [path for path in (args.workload, args.schema, args.reference) if path is not None]
    target = {"keep": sources, "overwrite": args.overwrite, "is_replaceable": _is_plan}
    # An existing file is an error, but not if it contains the plan that this command computes.
    # Therefore an existing plan file is checked only after planning, by `new_file` below.
    if args.overwrite or not _is_plan(args.out):
        check_target(args.out, **target)
    budget = budget_of(args, workload.schema)
    arguments = {"progress": args.progress}
    weighted = workload
    if args.expected_records is not None:
        weighted = publication_weights(
            workload, budget, expected_records=args.expected_records, reference=args.reference
        )
    fitted_plan = plan(weighted, budget, args.mechanism, **defaults.options, **arguments)
    weights = ""
    if args.expected_records is not None:
        unweighted = plan(workload, budget, args.mechanism, **defaults.options, **arguments)
        weights = (
            f"for published tables of about {args.expected_records:,.0f} records; typical error of"
            f" unbiased answers {format_number(fitted_plan.rmse)} counts,"
            f" {format_number(unweighted.rmse)} with the weights of the workload"
        )
    if not _holds_plan(fitted_plan, args.out):
        with new_file(args.out, **target) as partial:
            partial.write_text(fitted_plan.to_json(), encoding="utf-8")
    summary, single = _plan_summary(fitted_plan), single_groups_text(fitted_plan)
    remarks = [
        f"{word:11}{text}"
        for word, text in {
            "centers": defaults.reason,
            "single": single,
            "weights": weights,
        }.items()
        if text
    ]
    lines = [summary.text, *remarks, f"plan       {args.out}"]
    data = {
        "plan": args.out,
        "centers": defaults.reason,
        "single": single,
        "weights": weights,
    }
    return Reply(text="\n".join(lines), data={**data, **summary.data})


def _is_plan(path: Path) -> bool:
    """Return whether a file contains a plan."""
    try:
        read_plan(path)
    except EngineError:
        return False
    return True


def _holds_plan(candidate: Plan, path: Path) -> bool:
    """Return whether a file contains the plan ``candidate``, compared by hash."""
    try:
        return path.is_file() and read_plan(path).hash == candidate.hash
    except EngineError:
        return False


def _forecast(args: argparse.Namespace) -> Reply:
    """Run ``forecast``: predict time and memory of planning."""
    options, workload = mechanism_options(args), workload_of(args)
    defaults = default_options(workload, args.mechanism, options)
    estimate = forecast(workload, args.mechanism, **defaults.options)
    text = (
        f"{estimate.text}: about {estimate.seconds:.1f} s and at most"
        f" {estimate.memory / 1e6:,.0f} MB"
    )
    return Reply(
        text=f"{text}\ncenters    {defaults.reason}" if defaults.reason else text,
        data={
            "seconds": estimate.seconds,
            "memory": estimate.memory,
            "text": estimate.text,
            "centers": defaults.reason,
        },
    )


def _compare(args: argparse.Namespace) -> Reply:
    """Run ``compare``: plan with several mechanisms and rank them by RMSE."""
    mechanisms, limits = mechanisms_of(args)
    workload = workload_of(args)
    ranking = comparison(
        workload, budget_of(args, workload.schema), mechanisms, **limits, progress=args.progress
    )
    frame = ranking.frame.assign(status=ranking.frame["status"].map(in_options))
    is_planned = ranking.frame["rmse"].notna()
    table = (
        ranking.frame[is_planned]
        .drop(columns="status")
        .to_string(index=False, float_format=format_number, formatters={"gap": percent_rounded_up})
        if is_planned.any()
        else "No mechanism could plan this workload."
    )
    refused = [f"{row.mechanism}: {row.status}" for row in frame[~is_planned].itertuples()]
    # If no bound is known, ``ranking.bound`` is 0 and ``statement`` contains the reason.
    bound_text = f" It is {format_number(ranking.bound)} counts." if ranking.bound > 0 else ""
    return Reply(
        text="\n".join([table, *refused, f"{ranking.statement}{bound_text}"]),
        data={
            "mechanisms": frame.to_dict("records"),
            "bound": ranking.bound,
            "statement": ranking.statement,
        },
    )


def _plan_summary(fitted_plan: Plan) -> Reply:
    """Return the output that the commands ``plan`` and ``show`` have in common."""
    claim = claim_text(fitted_plan)
    conflict = fitted_plan.schema.rows_per_person_conflict(fitted_plan.budget.rows_per_person)
    lines = [
        (
            f"queries    {fitted_plan.workload.queries:,} in"
            f" {pluralize(len(fitted_plan.workload.groups), 'group')}"
        ),
        f"rmse       {format_number(fitted_plan.rmse)} counts",
        f"proven     {claim}",
        f"budget     {fitted_plan.meaning}",
        f"promise    {fitted_plan.schema.promise(fitted_plan.budget)}",
        *([f"rows       {conflict}"] if conflict else []),
    ]
    data: dict[str, Any] = {
        "mechanism": fitted_plan.mechanism,
        "options": fitted_plan.options,
        "queries": fitted_plan.workload.queries,
        "rmse": fitted_plan.rmse,
        "weighted_rmse": fitted_plan.weighted_rmse,
        "max_std": math.sqrt(fitted_plan.max_variance),
        "lower_bound": fitted_plan.certificate.lower_bound,
        "gap": fitted_plan.certificate.gap,
        "claim": claim,
        "pcost": fitted_plan.pcost,
        "epsilon_by_delta": fitted_plan.epsilon_by_delta,
        "budget": budget_data(fitted_plan.budget),
        "promise": fitted_plan.schema.promise(fitted_plan.budget),
        "hash": fitted_plan.hash,
    }
    return Reply(text="\n".join(lines), data=data)


def _show(args: argparse.Namespace) -> Reply:
    """Run ``show``: print the guarantees of a plan and the error of each group."""
    fitted_plan = read_plan(args.plan)
    summary, groups = _plan_summary(fitted_plan), fitted_plan.by_group()
    named = groups.assign(attributes=[set_name(names) for names in groups["attributes"]])
    return Reply(
        text=f"{summary.text}\n{named.to_string(index=False, float_format=format_number)}",
        data={**summary.data, "groups": groups.to_dict("records")},
    )


_PLANNING_OPTIONS = ("options", "schema", "pcost", "rho", "mu", "epsilon", "pure_epsilon")


def add_prediction_commands(commands: Commands) -> None:
    """Add the command ``coarse-or-fine``."""
    command = add_command(
        commands,
        "coarse-or-fine",
        _coarse_or_fine,
        json_keys="analyses look_pcost saved rule rule_text records predicted verdict",
    )
    analyses = command.add_mutually_exclusive_group(required=True)
    analyses.add_argument(
        "--plans", type=Path, nargs="+", metavar="FILE", help="plans, from coarse to fine"
    )
    analyses.add_argument(
        "--workloads",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="workloads, as JSON or SQL, from coarse to fine",
    )
    analyses.add_argument(
        "--ways",
        type=whole_number,
        nargs="+",
        metavar="K",
        help="with --schema: one analysis per K, of all sets of K attributes",
    )
    command.add_argument(
        "--schema",
        type=Path,
        metavar="FILE",
        help="schema as JSON or CSV, for --ways and SQL; by default none",
    )
    command.add_argument(
        "--names",
        nargs="+",
        metavar="NAME",
        help="names of the analyses; by default the names of the files",
    )
    command.add_argument("--chain", action="store_true", help=CHAIN_HELP)
    add_mechanism_options(command)
    add_budget_options(command, required=False)
    add_rule_options(command, share=0.5)
    command.add_argument(
        "--sigmas",
        type=number,
        default=3.0,
        metavar="NUMBER",
        help="safety margin of the first measurement, in standard errors; by default %(default)g",
    )
    command.add_argument(
        "--primary",
        metavar="NAME",
        help="analysis that must always be answerable; by default the first",
    )
    command.add_argument(
        "--records",
        type=whole_number,
        metavar="NUMBER",
        help="number of evenly spread records for which to predict; by default none",
    )
    command.add_argument(
        "--simulated",
        type=Path,
        metavar="PATH",
        help="simulated records, to rehearse the first measurement; by default none",
    )
    command.add_argument(
        "--seed",
        type=whole_number,
        metavar="NUMBER",
        help="seed of the noise of the rehearsal, a whole number; by default random",
    )
    add_column_options(command)


def _coarse_or_fine(args: argparse.Namespace) -> Reply:
    """Run ``coarse-or-fine``: predict the costs of analyses, and which of them a rule chooses."""
    common = _common_plan(args)
    primary = 0 if args.primary is None else args.primary
    rule = NestedPlanRule(
        common=common, primary=primary, share=args.share, snr=args.snr, sigmas=args.sigmas
    )
    least_records = dict(zip(rule.finer, rule.even_totals(), strict=True))
    costs: list[Any] = common.budget_shares().to_dict("records")
    rows: list[dict[str, Any]] = []
    for i, cost in enumerate(costs):
        is_compared = i == common.position(primary) or i in least_records
        error = float(np.median(rule.errors(i))) if is_compared else None
        stands_out = None if error is None else args.snr * error
        rows.append(
            {
                **cost,
                "typical_std": error,
                "stands_out_from": stands_out,
                "even_records": least_records.get(i),
            }
        )
    from engine.figures import rule_text
    from engine.figures.two_stage import saved_text

    lines = [saved_text(common), rule_text(rule)]
    for row in rows:
        if row["typical_std"] is not None:
            line = (
                f"{row['option']}: a typical cell is reliable from"
                f" {format_number(row['stands_out_from'])} records on"
            )
            threshold = row["even_records"]
            if threshold is not None:
                line += f"; evenly spread records meet the rule from {threshold:,.0f} on"
            lines.append(line)
    predicted = verdict = None
    if args.records is not None:
        if args.records < 0:
            raise PlanError(
                f"--records is {args.records}. Give the expected number of records, at least 0."
            )
        reached = [i for i, least in least_records.items() if args.records >= least]
        predicted = common.names[max(reached, default=common.position(primary))]
        lines.append(f"predicted  {predicted}, for {args.records:,} evenly spread records")
    if args.seed is not None and args.simulated is None:
        raise PlanError(
            "--seed is for the rehearsal on --simulated records. Give both, or leave --seed out."
        )
    if args.simulated is not None:
        columns = named_columns(args)
        release = stepwise.look(
            common,
            args.simulated,
            rehearsal=True,
            seed=args.seed,
            on_refused="drop",
            progress=args.progress,
            intake=print_row_summary,
            **columns,
        )
        decision = rule.decide(release)
        name = stepwise.STOP if decision.choice is None else common.names[decision.choice]
        verdict = {"option": name} | vars(decision)
        lines.append(f"REHEARSAL  {decision.sentence}")
    data = {
        "analyses": rows,
        "look_pcost": common.look.budget.pcost,
        "saved": common.saved,
        "rule": rule.rule,
        "rule_text": rule_text(rule),
        "records": args.records,
        "predicted": predicted,
        "verdict": verdict,
    }
    return Reply(text="\n".join(lines), data=data)


def _common_plan(args: argparse.Namespace) -> CommonPlan:
    """Return the common plan of the analyses, whose plans are read from files or computed."""
    if args.plans is not None:
        if planning_options := [name for name in _PLANNING_OPTIONS if vars(args)[name]]:
            option = planning_options[0].replace("_", "-")
            raise PlanError(
                f"--{option} is an option for planning, but --plans names existing plans. Give one "
                "of the two."
            )
        names = args.names or [path.stem for path in args.plans]
        return common_plan_of(args, map(read_plan, args.plans), names)
    options = mechanism_options(args)
    schema = None if args.schema is None else schema_of(args.schema)
    if args.workloads is not None:
        workloads = [workload_from_file(path, schema) for path in args.workloads]
        names = [path.stem for path in args.workloads]
    else:
        if schema is None:
            raise SchemaError("--ways needs a schema for the attributes. Give one by --schema.")
        workloads_by_name = workloads_by_way(schema, args.ways)
        workloads, names = list(workloads_by_name.values()), list(workloads_by_name)
    plans = [
        plan(
            workload,
            budget_of(args, workload.schema),
            args.mechanism,
            progress=args.progress,
            **options,
        )
        for workload in workloads
    ]
    return common_plan_of(args, plans, args.names or names)
