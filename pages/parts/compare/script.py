"""The Compare page as Python: text that runs with the engine alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engine.mechanisms import variants
from pages.parts.compare.run import Compared
from pages.parts.shell.history import RequestState
from pages.parts.shell.python_script import Script, budget_text, plan_script, workload_script

GUARD = 'if __name__ == "__main__":  # comparing starts processes, which import this file again'


def _comparison(
    studio: RequestState, comparison: Compared | None, lines: Sequence[str], **imports: str
) -> str:
    """The comparison, and lines that follow it; imports are module="name", with "__" for a dot."""
    choices = [(name, dict(options)) for name, options in _asked(comparison)]
    more = "" if not choices else f", {choices!r}"
    body = [f"results = comparison(workload, {budget_text(studio.budget)}{more})", *lines]
    names = {("engine", "Budget"), ("engine.analysis", "comparison")}
    names |= {
        (module.replace("__", "."), name)
        for module, text in imports.items()
        for name in text.split()
    }
    script = workload_script(studio) + Script(
        imports=frozenset(names), lines=(GUARD, *(f"    {line}" for line in body))
    )
    return script.text()


def _asked(comparison: Compared | None) -> list[tuple[str, Mapping[str, Any]]]:
    """What was compared, nothing when that is every variant."""
    if comparison is None:
        return []
    labels = list(comparison.found.frame["mechanism"])
    return [] if set(labels) == set(variants()) else [comparison.choices[label] for label in labels]


def compare(studio: RequestState, comparison: Compared | None) -> str:
    """Compare, and print the table and the bound."""
    return _comparison(
        studio, comparison, ["print(results.frame)", "print(results.bound, results.statement)"]
    )


def spreads(studio: RequestState, comparison: Compared, chosen: Sequence[str]) -> str:
    """Distributions of chosen mechanisms."""
    lines = [
        f"spreads = {{label: results.spreads[label] for label in {list(chosen)!r}}}",
        "print(spreads_picture(spreads).table)",
    ]
    return _comparison(studio, comparison, lines, engine__figures="spreads_picture")


def against(studio: RequestState, comparison: Compared, one: str, other: str) -> str:
    """Where one of two mechanisms loses."""
    lines = [
        f"a, b = (load_plan(results.plans[label]) for label in {(one, other)!r})",
        "lost = losses(a, b)",
        "print(lost.worse, lost.worst, lost.query)",
        "print(lost.groups)",
    ]
    return _comparison(studio, comparison, lines, engine="load_plan", engine__analysis="losses")


def strategies(studio: RequestState, comparison: Compared, label: str, factor: int) -> str:
    """Strategy rows of the most expensive piece of a plan."""
    lines = [
        f"made = load_plan(results.plans[{label!r}])",
        "key = next(iter(block_names(made)))  # the most expensive piece",
        (
            f"print(rows_picture(made, key, {factor}).table)"
            if factor
            else "print(rows_picture(made, key).table)"
        ),
    ]
    names = "block_names rows_picture"
    return _comparison(studio, comparison, lines, engine="load_plan", engine__figures=names)


def difference(
    studio: RequestState,
    comparison: Compared | None,
    one: str,
    other: str,
    *,
    present: str,
    file: str,
) -> str:
    """What differs between two plans."""
    names = {"first": one, "second": other}
    lines, imports = [], {("engine", "load_plan"), ("engine.analysis", "plan_diff")}
    compared = [source for source in names.values() if source not in (present, file)]
    for name, source in names.items():
        if source == present:
            lines.append(f"{name} = made")
        elif source == file:
            lines.append(f'{name} = load_plan(Path("plan.json").read_bytes())')
            imports.add(("pathlib", "Path"))
        else:
            lines.append(f"{name} = load_plan(results.plans[{source!r}])")
    lines.append("different = plan_diff(first, second)")
    lines += ["print(different.words)", "print(different.groups)"]
    if compared and comparison is not None:
        imports.add(("engine.analysis", "comparison"))
        choices = [
            (comparison.choices[label][0], dict(comparison.choices[label][1])) for label in compared
        ]
        lines = [
            f"results = comparison(workload, {budget_text(studio.budget)}, {choices!r})",
            *lines,
        ]
        lines = [GUARD, *(f"    {line}" for line in lines)]
    script = plan_script(studio) + Script(imports=frozenset(imports), lines=tuple(lines))
    return script.text()


def book(number: int) -> str:
    """One row of the published tables."""
    lines = (
        f"row = ROWS[{number}]",
        "made = plan(row.workload(), Budget(pcost=1.0))",
        "print(row, row.printed, made.rmse, made.certificate)",
    )
    imports = {("engine", "Budget"), ("engine", "plan"), ("engine.analysis", "ROWS")}
    return Script(imports=frozenset(imports), lines=lines).text()
