"""Python code of the Coarse or fine page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pages.parts.shell.history import RequestState
from pages.parts.shell.python_script import (
    Script,
    budget_text,
    columns_text,
    mechanism_text,
    schema_script,
    workload_script,
)


def script(*lines: str, imports: Sequence[tuple[str, str]] = ()) -> Script:
    """Return a script with these lines; ``imports`` are pairs (module, name)."""
    return Script(imports=frozenset(imports), lines=lines)


def tables_script(request_state: RequestState, ways: Sequence[int]) -> Script:
    """Return code that defines `workloads`: for each k in ``ways``, all tables of k attributes."""
    line = f"workloads = workloads_by_way(schema, {tuple(ways)!r})"
    return schema_script(request_state.schema) + script(
        line, imports=[("engine.common_mechanism", "workloads_by_way")]
    )


def levels_script(request_state: RequestState, attribute: str, levels: Sequence[str]) -> Script:
    """Return code that defines `workloads`: one per level of an attribute with a code list."""
    line = f"workloads = workloads_by_level(workload, {attribute!r}, {list(levels)!r})"
    return workload_script(request_state) + script(
        line, imports=[("engine.common_mechanism", "workloads_by_level")]
    )


def coarser_script(request_state: RequestState) -> Script:
    """Return code that defines `workloads`: the current workload, and a coarser version of it."""
    line = "workloads = coarse_and_fine(workload)"
    return workload_script(request_state) + script(
        line, imports=[("engine.common_mechanism", "coarse_and_fine")]
    )


def census() -> Script:
    """Return code that defines `workloads` with the age bins of the census example."""
    return script(
        'schema = Schema.from_json(demo_data.schemas()["census"].read_bytes())',
        "workloads = census_ages(schema)",
        imports=[
            ("engine", "Schema"),
            ("demo_data", ""),
            ("engine.common_mechanism", "census_ages"),
        ],
    )


def plans_script(request_state: RequestState) -> Script:
    """Return code that defines `options`, one plan per workload."""
    args = f"{budget_text(request_state.budget)}{mechanism_text(request_state)}"
    line = f"options = [plan(workload, {args}) for workload in workloads.values()]"
    return script(line, imports=[("engine", "Budget"), ("engine", "plan")])


def from_files(names: Sequence[str]) -> Script:
    """Return code that loads `options` from plan files and defines `schema`."""
    return script(
        "options = [load_plan(Path(name).read_bytes()) for name in"
        f" {[f'{name}.json' for name in names]!r}]",
        "schema = options[0].schema",
        imports=[("engine", "load_plan"), ("pathlib", "Path")],
    )


def split_script(names: Sequence[str], *, chain: bool) -> Script:
    """Return code that splits the plans in `options` and defines the result, `common`.

    Plans are split into a first measurement that they share and a second measurement each. With
    ``chain``, each decision is between two analyses; otherwise one decision is between all.
    """
    split = "nested_choices" if chain else "coarse_or_fine"
    return script(
        f"common = {split}(*options, names={list(names)!r})",
        "print(common.budget_shares())",
        imports=[("engine", split)],
    )


def rule_script(arguments: Mapping[str, Any]) -> Script:
    """Return code that defines `rule`, the selection rule with these arguments."""
    args = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    return script(
        f"rule = NestedPlanRule(common=common, {args})", imports=[("engine", "NestedPlanRule")]
    )


def rehearsal(*, rows: int, seed: int) -> Script:
    """Return code that rehearses a two-stage release on simulated records."""
    return script(
        f"records = synthetic(schema, rows={rows}, seed={seed})",
        f"look = stepwise.look(common, records, rehearsal=True, seed={seed})",
        "decision = rule.decide(look)",
        "print(decision.sentence)",
        "if decision.choice is not None:",
        "    measurement = stepwise.rehearse_finish(",
        f"        common, look, records, option=decision.choice, seed={seed}",
        "    )",
        "    print(measurement.answers(0))",
        imports=[("engine", "stepwise"), ("demo_data.make_synthetic", "synthetic")],
    )


def steps(*, dataset: str, ledger: str, attempt: int, columns: Mapping[str, Any]) -> Script:
    """Return code of a two-stage release of `records`: both measurements and the decision."""
    column_args = columns_text(columns)
    look_args = (f", attempt={attempt}" if attempt > 1 else "") + column_args
    return script(
        f"look = stepwise.look(common, records, dataset={dataset!r}, ledger={ledger!r}{look_args})",
        "decision = rule.decide(look)",
        f"choice = stepwise.decide({ledger!r}, look.key, verdict=decision, rule=rule.rule)",
        'if choice.option != "stop":',
        f"    measurement = stepwise.finish({ledger!r}, look.key, records{column_args})",
        "    print(measurement.answers(0))",
        imports=[("engine", "stepwise")],
    )
