"""Python code of the Compare page; runs with the engine alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from engine.figures import Picture, block_names
from engine.mechanisms import variants
from engine.plans import Plan
from engine.residuals import Space
from pages.parts.compare.run import Compared, available_choices
from pages.parts.shell.history import RequestState
from pages.parts.shell.python_script import Script, budget_text, plan_script, workload_script

GUARD = 'if __name__ == "__main__":  # comparing starts processes, which import this file again'


def _comparison(
    request_state: RequestState, comparison: Compared | None, lines: Sequence[str], **imports: str
) -> str:
    """Return code that runs a comparison and then further ``lines``.

    ``imports`` are the imports of these lines: a keyword is a module, with a double underscore for
    a dot, and its value contains names separated by spaces. For example,
    ``engine__figures="rows_picture block_names"`` imports two names from `engine.figures`.
    """
    choices = [(name, dict(options)) for name, options in _choices(request_state, comparison)]
    argument = "" if not choices else f", {choices!r}"
    body = [
        f"results = comparison(workload, {budget_text(request_state.budget)}{argument})",
        *lines,
    ]
    names = {("engine", "Budget"), ("engine.analysis", "comparison")}
    names |= {
        (module.replace("__", "."), name)
        for module, text in imports.items()
        for name in text.split()
    }
    script = workload_script(request_state) + Script(
        imports=frozenset(names), lines=(GUARD, *(f"    {line}" for line in body))
    )
    return script.text()


def _choices(
    request_state: RequestState, comparison: Compared | None
) -> list[tuple[str, Mapping[str, Any]]]:
    """Return pairs (name, options) of the compared mechanisms.

    If nothing was compared, these are the mechanisms that the page offers. The list is empty if it
    would equal `variants`, the default of `engine.analysis.comparison`.
    """
    if comparison is None:
        choices = available_choices(request_state)
    else:
        choices = {
            label: comparison.choices[label] for label in comparison.results.frame["mechanism"]
        }
    return [] if choices.keys() == variants().keys() else list(choices.values())


def compare(request_state: RequestState, comparison: Compared | None) -> str:
    """Return code that prints the errors of the compared mechanisms and the lower bound."""
    return _comparison(
        request_state,
        comparison,
        ["print(results.frame.to_string())", "print(results.bound, results.statement)"],
    )


def spreads(request_state: RequestState, comparison: Compared, labels: Sequence[str]) -> str:
    """Return code that prints error distributions of the selected mechanisms."""
    lines = [
        f"spreads = {{label: results.spreads[label] for label in {list(labels)!r}}}",
        "print(spreads_picture(spreads).table)",
    ]
    return _comparison(request_state, comparison, lines, engine__figures="spreads_picture")


def against(request_state: RequestState, comparison: Compared, one: str, other: str) -> str:
    """Return code that prints for which queries mechanism ``one`` has a larger error than
    ``other``."""
    lines = [
        f"a, b = (load_plan(results.plans[label]) for label in {(one, other)!r})",
        "difference = losses(a, b)",
        "print(difference.worse, difference.worst, difference.query)",
        "print(difference.groups.to_string())",
    ]
    return _comparison(
        request_state, comparison, lines, engine="load_plan", engine__analysis="losses"
    )


def strategies(
    request_state: RequestState,
    comparison: Compared,
    selections: Sequence[tuple[str, Space, int]],
    draw: Callable[[Plan, Space, int], Picture],
) -> str:
    """Return code that plans the selected mechanisms and prints one strategy of each.

    Parameters
    ----------
    selections : triples (label of a mechanism, key of a measured block, index of a Kronecker factor
        of this block).
    draw : function of `engine.figures` that returns the picture of a strategy.
    """
    lines = []
    for label, key, factor in selections:
        name, options = comparison.choices[label]
        arguments = "".join(
            f", {option}={value!r}"
            for option, value in {**options, "time_limit": comparison.time_limit}.items()
        )
        number = list(block_names(comparison.plan(label))).index(key)
        last = f", {factor}" if factor else ""
        lines += [
            f"chosen_plan = plan(workload, {budget_text(request_state.budget)},"
            f" {name!r}{arguments})",
            f"key = list(block_names(chosen_plan))[{number}]  # by privacy cost, the largest first",
            f"print({draw.__name__}(chosen_plan, key{last}).table)",
        ]
    imports = {("engine", "Budget"), ("engine", "plan"), ("engine.figures", "block_names")}
    imports.add(("engine.figures", draw.__name__))
    script = workload_script(request_state) + Script(imports=frozenset(imports), lines=tuple(lines))
    return script.text()


def difference(
    request_state: RequestState,
    comparison: Compared | None,
    one: str,
    other: str,
    *,
    current: str,
    file: str,
) -> str:
    """Return code that prints the differences between two plans.

    ``one`` and ``other`` are labels of compared mechanisms, or equal to ``current`` (the plan of
    the current request) or ``file`` (an uploaded plan).
    """
    names = {"first": one, "second": other}
    lines = []
    imports = {("engine", "load_plan"), ("engine.analysis", "plan_diff")}
    compared = [source for source in names.values() if source not in (current, file)]
    for name, source in names.items():
        if source == current:
            lines.append(f"{name} = workload_plan")
        elif source == file:
            lines.append(f'{name} = load_plan(Path("plan.json").read_bytes())')
            imports.add(("pathlib", "Path"))
        else:
            lines.append(f"{name} = load_plan(results.plans[{source!r}])")
    lines.append("difference = plan_diff(first, second)")
    lines += ["print(difference.words)", "print(difference.groups.to_string())"]
    if compared and comparison is not None:
        imports.add(("engine.analysis", "comparison"))
        choices = [
            (comparison.choices[label][0], dict(comparison.choices[label][1])) for label in compared
        ]
        lines = [
            f"results = comparison(workload, {budget_text(request_state.budget)}, {choices!r})",
            *lines,
        ]
        lines = [GUARD, *(f"    {line}" for line in lines)]
    script = plan_script(request_state) + Script(imports=frozenset(imports), lines=tuple(lines))
    return script.text()


def paper_numbers(number: int) -> str:
    """Return code that computes row ``number`` of `ROWS`, the results printed in the papers."""
    lines = (
        f"row = ROWS[{number}]",
        "row_plan = plan(row.workload(), Budget(pcost=1.0))",
        "print(row, row.printed, row_plan.rmse, row_plan.certificate)",
    )
    imports = {("engine", "Budget"), ("engine", "plan"), ("engine.analysis", "ROWS")}
    return Script(imports=frozenset(imports), lines=lines).text()
