"""Python scripts that do with the engine what a page of the app does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain, combinations, pairwise
from math import comb
from typing import Any

import demo_data
from engine._values import cached_on_value
from engine.privacy import Budget
from engine.workload import Attribute, Custom, Family, Group, Schema, Workload
from engine.workload.families import default_family
from pages.parts.shell.history import RequestState

# A schema or workload with more lines or characters of code is read from a downloaded file instead.
MAX_LINES = 40
MAX_TEXT = 4000
MIN_RANGE_EDGES = 4  # fewer bin edges are listed, because a list of them is easier to read
# `_leading_ways` tries a call of `Workload.all_ways` with each of these families, in this order, as
# the family of all numeric attributes.
DEFAULT_FAMILIES = ("prefix", "marginal", "range")


@dataclass(frozen=True, kw_only=True)
class Script:
    """Lines of code with the imports that they need; two scripts can be added.

    Attributes
    ----------
    imports : pairs (module, name); an empty name imports the module itself.
    lines : lines of code.
    """

    imports: frozenset[tuple[str, str]] = frozenset()
    lines: tuple[str, ...] = ()

    def __add__(self, other: Script) -> Script:
        return Script(imports=self.imports | other.imports, lines=self.lines + other.lines)

    def text(self) -> str:
        """Return the script, imports first."""
        modules = sorted(
            {module for module, _ in self.imports}, key=lambda m: (bool(self._names(m)), m)
        )
        head = []
        for module in modules:
            names = self._names(module)
            head.append(f"from {module} import {', '.join(names)}" if names else f"import {module}")
        return "\n".join([*head, "", *self.lines]) + "\n"

    def _names(self, module: str) -> list[str]:
        return sorted({name for m, name in self.imports if m == module and name}, key=str.lower)


def _script(lines: str, **imports: str) -> Script:
    """Return a script with these lines of code and its imports.

    The keyword argument engine__publish="write_answers" stands for `from engine.publish import
    write_answers`, and demo_data="" for `import demo_data`. Several names have spaces between them.
    """
    pairs = {
        (module.replace("__", "."), name)
        for module, names in imports.items()
        for name in names.split() or [""]
    }
    return Script(imports=frozenset(pairs), lines=tuple(lines.split("\n")))


def schema_script(schema: Schema | None) -> Script:
    """Return the script that creates the variable `schema`.

    A demo schema is read from the package `demo_data`. A long schema, or one with a code list, is
    read from a file that the user saves on Start.
    """
    if schema is None:
        return _script("schema = Schema([])  # choose or build a schema first", engine="Schema")
    name = demo_name(schema)
    if name is not None:
        demo_line = f'schema = Schema.from_json(demo_data.schemas()["{name}"].read_bytes())'
        return _script(demo_line, engine="Schema", demo_data="")
    lines = [f"    {_attribute(attribute)}," for attribute in schema.attributes]
    n_totals = sum(len(invariant.values) for invariant in schema.invariants)
    has_code_list = any(attribute.hierarchies for attribute in schema.attributes)
    if _long(lines) or n_totals > MAX_LINES or has_code_list:
        file_lines = (
            "# save schema.json on the page Start\nschema ="
            ' Schema.from_json(Path("schema.json").read_bytes())'
        )
        return _script(file_lines, engine="Schema", pathlib="Path")
    options: dict[str, object] = {
        "person": schema.person,
        "rows_per_person": schema.rows_per_person,
        "impossible": list(schema.impossible),
        "invariants": [
            (list(invariant.attributes), list(invariant.values)) for invariant in schema.invariants
        ],
    }
    more = "".join(
        f", {name}={value!r}" for name, value in options.items() if value not in (None, [])
    )
    return _script("\n".join(["schema = Schema([", *lines, f"]{more})"]), engine="Attribute Schema")


def workload_script(request: RequestState) -> Script:
    """Return the script that creates the variables `schema` and `workload`.

    A long workload is read, with its schema, from a file that the user saves on Start.
    """
    create_schema = schema_script(request.schema)
    if request.workload is None:
        return create_schema
    ways, numeric_family, n_leading = _leading_ways(request.workload)
    other_groups = request.workload.groups[n_leading:]
    in_file = len(other_groups) > MAX_LINES or any(map(_bulky, other_groups))
    lines = [] if in_file else [f"workload = workload.add({_group(g)})" for g in other_groups]
    if in_file or _long(lines):
        file_lines = (
            "# save workload.json on the page Start\nworkload ="
            ' Workload.from_json(Path("workload.json").read_bytes())\nschema = workload.schema'
        )
        return _script(file_lines, engine="Workload", pathlib="Path")
    classes = ("Custom", "Level", "Levels", "Random", "Width")
    used_classes = [name for name in classes if any(f"{name}(" in line for line in lines)]
    import_classes = Script(imports=frozenset(("engine", name) for name in used_classes))
    first_line = f"workload = {_leading_groups_text(ways, numeric_family)}"
    create_workload = _script("\n".join([first_line, *lines]), engine="Workload")
    return create_schema + import_classes + create_workload


def _leading_groups_text(ways: tuple[int, ...], numeric_family: str) -> str:
    """Return the Python expression of a workload with the groups that `_leading_ways` has found."""
    if not ways:
        return "Workload(schema)"
    # The first of the default families is the default of `all_ways`, so it can be omitted.
    if numeric_family == DEFAULT_FAMILIES[0]:
        return f"Workload.all_ways(schema, ways={ways!r})"
    families = f'{{a.name: "{numeric_family}" for a in schema.attributes if a.kind == "numeric"}}'
    return f"Workload.all_ways(schema, ways={ways!r}, family={families})"


def budget_text(budget: Budget) -> str:
    """Return the Python expression that creates a budget.

    >>> budget_text(Budget.pure(2.0)), budget_text(Budget.zcdp(0.5))
    ('Budget.pure(2.0)', 'Budget(pcost=1.0)')
    """
    rows = f", rows_per_person={budget.rows_per_person}" if budget.rows_per_person > 1 else ""
    more = rows + (
        f", neighbours={budget.neighbours!r}" if budget.neighbours != "add_remove" else ""
    )
    if budget.pure_epsilon is not None:
        return f"Budget.pure({budget.pure_epsilon!r}{more})"
    delta = f", report_delta={budget.report_delta!r}" if budget.delta_field else ""
    return f"Budget(pcost={budget.pcost!r}{more}{delta})"


def plan_script(request: RequestState) -> Script:
    """Return the script that creates the plan."""
    args = f"{budget_text(request.budget)}{mechanism_text(request)}"
    return workload_script(request) + _script(
        f"workload_plan = plan(workload, {args})", engine="Budget plan"
    )


def mechanism_text(request: RequestState) -> str:
    """Return mechanism and options as Python text that follows other arguments of `plan`.

    The text is empty for the default mechanism with default options.
    """
    options = "".join(
        f", {name}={value!r}" for name, value in request.options_without_defaults.items()
    )
    if not options and request.mechanism == "querysmasher":
        return ""
    return f', mechanism="{request.mechanism}"{options}'


def plan_code(request: RequestState) -> str:
    """Return the code that creates the plan and prints its errors."""
    return (
        plan_script(request)
        + Script(
            lines=(
                "print(workload_plan.rmse, workload_plan.certificate)",
                "print(workload_plan.by_group())",
            )
        )
    ).text()


def release_code(
    request: RequestState,
    *,
    dataset: str,
    ledger: str,
    records: Script,
    attempt: int,
    columns: Mapping[str, Any],
) -> str:
    """Return the code that measures the plan and writes the answers."""
    which = (f", attempt={attempt}" if attempt > 1 else "") + columns_text(columns)
    lines = (
        f"measurement = measure(workload_plan, records, dataset={dataset!r},"
        f" ledger={ledger!r}{which})\n"
        'write_answers(measurement, "answers.parquet")'
    )
    more = records + _script(lines, engine="measure", engine__publish="write_answers")
    return (plan_script(request) + more).text()


def records_script(path: str, name: str, encoding: str = "", sheet: str = "") -> Script:
    """Return the script that creates the variable `records`.

    Parameters
    ----------
    path : path of a file.
    name : name of a table that the server's administrator configured; empty for a file.
    encoding : encoding of a text file; empty for the default.
    sheet : sheet of a workbook; empty for the default.
    """
    if name:
        return _script(f"records = named_table({name!r})", engine__records="named_table")
    place = repr(path.strip() or "records.csv")
    if encoding:
        return _script(
            f"records = TextFile(path={place}, encoding={encoding!r})", engine="TextFile"
        )
    if sheet:
        return _script(f"records = SheetFile(path={place}, sheet={sheet!r})", engine="SheetFile")
    return _script(f"records = {place}")


def columns_text(columns: Mapping[str, Any]) -> str:
    """Return arguments of `measure` that name columns as Python text; empty ones are omitted."""
    return "".join(f", {name}={value!r}" for name, value in columns.items() if value)


def rehearsal_code(request: RequestState, *, rows: int, seed: int) -> str:
    """Return the code that rehearses the plan on simulated records."""
    lines = (
        f"records = synthetic(schema, rows={rows}, seed={seed})\n"
        f"measurement = measure(workload_plan, records, rehearsal=True, seed={seed})\n"
        "print(measurement.answers(0))"
    )
    more = _script(lines, engine="measure", demo_data__make_synthetic="synthetic")
    return (plan_script(request) + more).text()


@lru_cache(maxsize=1)
def _demos() -> Mapping[str, Schema]:
    return {name: Schema.from_json(path.read_bytes()) for name, path in demo_data.schemas().items()}


def demo_name(schema: Schema) -> str | None:
    """Return the name of the demo with this schema; None if no demo has it."""
    return next((name for name, demo_schema in _demos().items() if demo_schema == schema), None)


def _long(lines: list[str]) -> bool:
    return len(lines) > MAX_LINES or sum(map(len, lines)) > MAX_TEXT


def _attribute(attribute: Attribute) -> str:
    """Return the Python code that creates an attribute; options with their defaults are omitted."""
    options = {
        "other": attribute.other,
        "missing": attribute.missing,
        "clip": attribute.clip or None,
        "integer": attribute.integer or None,
        "missing_values": attribute.missing_values or None,
        "decimal": attribute.decimal,
        "thousands": attribute.thousands,
        "date_format": attribute.date_format,
    }
    keywords = "".join(f", {key}={value!r}" for key, value in options.items() if value is not None)
    name = repr(attribute.name)
    if attribute.labels is not None:
        return f"Attribute.categorical({name}, {list(attribute.labels)!r}{keywords})"
    if attribute.edges is not None:
        return f"Attribute.numeric({name}, {_edges_text(attribute.edges)}{keywords})"
    if attribute.is_dated:
        start, stop, unit = attribute.start, attribute.stop, attribute.unit
        return f"Attribute.dates({name}, {start!r}, {stop!r}, {unit!r}{keywords})"
    return f"Attribute.of_size({name}, {attribute.size}, kind={attribute.kind!r}{keywords})"


def _edges_text(edges: Sequence[float]) -> str:
    """Return the Python expression of bin edges; four or more equally spaced integers as a range.

    >>> _edges_text([0.0, 5.0, 10.0, 15.0]), _edges_text([0.0, 2.5, 5.0, 7.5])
    ('list(range(0, 16, 5))', '[0.0, 2.5, 5.0, 7.5]')
    """
    steps = {high - low for low, high in pairwise(edges)}
    is_range = len(steps) == 1 and all(float(edge).is_integer() for edge in edges)
    if len(edges) < MIN_RANGE_EDGES or not is_range:
        return repr(list(edges))
    start, stop, step = int(edges[0]), int(edges[-1]) + 1, int(steps.pop())
    return f"list(range({start}, {stop}{f', {step}' if step > 1 else ''}))"


@cached_on_value
def _leading_ways(workload: Workload) -> tuple[tuple[int, ...], str, int]:
    """Find a call of `Workload.all_ways` that creates the first groups of a workload, in order.

    Per family, calls with more values of ``ways`` are tried first.

    Returns
    -------
    ways : the argument ``ways`` of the call; empty if no call creates the first groups.
    family : the family that the call gives to numeric attributes.
    n_groups : the number of groups that the call creates.
    """
    schema = workload.schema
    for numeric_family in DEFAULT_FAMILIES:
        families = {
            a.name: numeric_family if a.kind == "numeric" else default_family(a.kind)
            for a in schema.attributes
        }
        for ways in (c for length in (3, 2, 1) for c in combinations((1, 2, 3), length)):
            n_groups = sum(comb(len(schema), k) for k in ways)
            if max(ways) > len(schema) or n_groups > len(workload.groups):
                continue
            attribute_sets = chain.from_iterable(combinations(schema.names, k) for k in ways)
            if all(map(partial(_has_default_family, families), workload.groups, attribute_sets)):
                return ways, numeric_family, n_groups
    return (), DEFAULT_FAMILIES[0], 0


def _has_default_family(families: Mapping[str, str], group: Group, names: tuple[str, ...]) -> bool:
    """Return whether `Workload.all_ways` with these families creates this group on ``names``."""
    is_plain = group.attributes == names and group.weight == 1.0 and group.query_weights is None
    if not is_plain or not isinstance(group.family, Mapping) or len(group.family) != len(names):
        return False
    return all(group.family.get(name) == families[name] for name in names)


def _bulky(group: Group) -> bool:
    """Return whether a line of code for a group would be too long.

    This is so for large matrices, and for query weights that do not follow from the families.
    """
    families = group.family.values() if isinstance(group.family, Mapping) else [group.family]
    sizes = [
        f.matrix.size
        for f in families
        if getattr(f, "predicates", None) is None and hasattr(f, "matrix")
    ]
    has_own_weights = group.query_weights is not None and group.part_weights is None
    return has_own_weights or sum(sizes) > MAX_TEXT // 4


def _group(group: Group) -> str:
    family = group.family
    if isinstance(family, Mapping):
        text = f"{{{', '.join(f'{name!r}: {_family(one)}' for name, one in family.items())}}}"
    else:
        text = _family(family)
    weight = f", weight={group.weight!r}" if group.weight != 1.0 else ""
    return f"{group.attributes!r}, {text}{weight}"


def _family(family: str | Family) -> str:
    if isinstance(family, str):
        return repr(family)
    fields: dict[str, Any] = family.to_dict()
    name = fields.pop("name")
    if isinstance(family, Custom):
        if family.predicates is not None:
            fields = {"predicates": list(family.predicates)}
        elif family.matrix is not None:
            fields = {"matrix": family.matrix.tolist()} | (
                {"labels": list(family.labels)} if family.labels else {}
            )
    if not fields:
        return repr(name)
    return (
        f"{type(family).__name__}({', '.join(f'{key}={value!r}' for key, value in fields.items())})"
    )
