"""The page Coarse or fine as Python: lines that make the options, and the steps of a choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engine.privacy import Budget
from pages.parts.shell.history import RequestState
from pages.parts.shell.python_script import (
    Script,
    budget_text,
    columns_text,
    schema_script,
    workload_script,
)


def script(*lines: str, imports: Sequence[tuple[str, str]] = ()) -> Script:
    """A script from its lines and pairs of module and name."""
    return Script(imports=frozenset(imports), lines=lines)


def tables_script(studio: RequestState, ways: Sequence[int]) -> Script:
    """Make `workloads`: all tables of so many attributes."""
    line = f"workloads = workloads_by_way(schema, {tuple(ways)!r})"
    return schema_script(studio.schema) + script(
        line, imports=[("engine.common_mechanism", "workloads_by_way")]
    )


def coarser_script(studio: RequestState) -> Script:
    """Make `workloads`: the present one and a coarser one."""
    line = "workloads = coarse_and_fine(workload)"
    return workload_script(studio) + script(
        line, imports=[("engine.common_mechanism", "coarse_and_fine")]
    )


def census() -> Script:
    """Make `workloads`: the bins of age of the census example."""
    return script(
        'schema = Schema.from_json(demo_data.schemas()["census"].read_bytes())',
        "workloads = census_ages(schema)",
        imports=[
            ("engine", "Schema"),
            ("demo_data", ""),
            ("engine.common_mechanism", "census_ages"),
        ],
    )


def plans_script(budget: Budget, how: str) -> Script:
    """Make `options`, a plan for each workload."""
    line = (
        f"options = [plan(workload, {budget_text(budget)}{how}) for workload in workloads.values()]"
    )
    return script(line, imports=[("engine", "Budget"), ("engine", "plan")])


def from_files(names: Sequence[str]) -> Script:
    """Make `options` from plan files, and `schema`."""
    return script(
        "options = [load_plan(Path(name).read_bytes()) for name in"
        f" {[f'{name}.json' for name in names]!r}]",
        "schema = options[0].schema",
        imports=[("engine", "load_plan"), ("pathlib", "Path")],
    )


def split_script(names: Sequence[str], *, chain: bool) -> Script:
    """Make `common`."""
    split = "nested_choices" if chain else "coarse_or_fine"
    return script(
        f"common = {split}(*options, names={list(names)!r})",
        "print(common.budget_shares())",
        imports=[("engine", split)],
    )


def rule_script(arguments: Mapping[str, Any]) -> Script:
    """Make `rule`."""
    args = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    return script(
        f"rule = NestedPlanRule(common=common, {args})", imports=[("engine", "NestedPlanRule")]
    )


def rehearsal(*, rows: int, seed: int) -> Script:
    """Look, decide and finish on simulated records."""
    return script(
        f"records = synthetic(schema, rows={rows}, seed={seed})",
        "looked = stepwise.look(common, records, rehearsal=True)",
        "verdict = rule.decide(looked)",
        "print(verdict.sentence)",
        "if verdict.choice is not None:",
        "    done = stepwise.rehearse_finish(common, looked, records, option=verdict.choice)",
        "    print(done.answers(0))",
        imports=[("engine", "stepwise"), ("demo_data.make_synthetic", "synthetic")],
    )


def steps(*, dataset: str, ledger: str, attempt: int, columns: Mapping[str, Any]) -> Script:
    """Look, decide and finish with `records`, for real."""
    named = columns_text(columns)
    again = (f", attempt={attempt}" if attempt > 1 else "") + named
    return script(
        f"looked = stepwise.look(common, records, dataset={dataset!r}, ledger={ledger!r}{again})",
        "verdict = rule.decide(looked)",
        f"choice = stepwise.decide({ledger!r}, looked.key, verdict=verdict, rule=rule.rule)",
        'if choice.option != "stop":',
        f"    done = stepwise.finish({ledger!r}, looked.key, records{named})",
        "    print(done.answers(0))",
        imports=[("engine", "stepwise")],
    )


def how(studio: RequestState) -> str:
    """Mechanism and options as further arguments of `plan`."""
    options = "".join(
        f", {name}={value!r}" for name, value in studio.options_without_defaults.items()
    )
    return (
        f', mechanism="{studio.mechanism}"{options}'
        if options or studio.mechanism != "querysmasher"
        else ""
    )
