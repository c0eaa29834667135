"""Workloads from SQL: every ``SELECT ... COUNT(*) FROM t WHERE ... GROUP BY ...`` becomes one query group or more.

The text is parsed and never executed; no table is looked at.  What the workload cannot ask exactly is refused with
the reason.  A GROUP BY asks every combination of cells that WHERE leaves possible, also those without records, which
a database would leave out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from sqlglot import exp

from engine.checks import instance
from engine.errors import EngineError, WorkloadError
from engine.workload import conditions
from engine.workload.conditions import Condition, Inside
from engine.workload.families import Custom
from engine.workload.family import Family
from engine.workload.groups import Group, Workload, make_group
from engine.workload.predicates import evaluate
from engine.workload.schema import Schema
from engine.workload.sql.conditions import Columns, extra, read, said
from engine.workload.sql.grouping import Grouping
from engine.workload.sql.text import check_clauses, parsed, statements

MAX_GROUPS = 5_000  # groups of one text
MAX_ROWS = 5_000  # cells of a GROUP BY that a WHERE leaves some of
MAX_READING = 300  # characters of a condition and of its reading
MAX_ENTRIES = 10_000_000  # cells x queries that are written down one by one
NEVER = "No record can meet the condition of WHERE, so the counts are 0. Leave the statement out."


def workload_from_sql(
    schema: Schema, text: str, table: str | None = None, *, whole_numbers: Iterable[str] = ()
) -> Workload:
    """Return the workload that SQL statements ask for, to be added to another one or planned as it is.

    Parameters
    ----------
    text : one SELECT or several with ``;`` between them: COUNT(*), one table, WHERE, and GROUP BY with attributes,
        CASE, CUBE, ROLLUP and GROUPING SETS.
    table : the name that FROM has to give; any one name when left out.
    whole_numbers : attributes with bins whose values are whole numbers, so that ``age <= 39`` is ``age < 40``.  The
        schema of the returned workload declares them (`Attribute.integer`), and counting then refuses fractions.

    Raises
    ------
    WorkloadError : what cannot be read, is not supported, or does not follow the cells of the schema; says why.

    >>> from engine import Attribute
    >>> schema = Schema([Attribute.numeric("age", [0, 20, 40, 90]), Attribute.categorical("sex", ["F", "M"])])
    >>> asked = workload_from_sql(schema, "SELECT sex, COUNT(*) FROM t WHERE age < 40 GROUP BY sex")
    >>> [asked.describe(i) for i in range(len(asked))]
    ['sex = F and age < 40', 'sex = M and age < 40']
    """
    return _translate(schema, text, table, whole_numbers)[0]


def sql_readings(
    schema: Schema, text: str, table: str | None = None, *, whole_numbers: Iterable[str] = ()
) -> list[tuple[str, str]]:
    """Return each condition of SQL as written and as read on the cells of the schema, each pair once.

    The parameters and errors are those of `workload_from_sql`.

    >>> from engine import Attribute
    >>> schema = Schema([Attribute.numeric("age", [0, 20, 40, 90], integer=True)])
    >>> sql_readings(schema, "SELECT COUNT(*) FROM t WHERE age BETWEEN 20 AND 39")
    [('age BETWEEN 20 AND 39', '20 <= age < 40')]
    """
    return _translate(schema, text, table, whole_numbers)[1]


def _translate(
    schema: Schema, text: str, table: str | None, whole_numbers: Iterable[str]
) -> tuple[Workload, list[tuple[str, str]]]:
    """Return the workload of SQL statements and the readings of their conditions."""
    instance("schema", schema, Schema, give="the Schema that the SQL asks about", error=WorkloadError)
    schema = _with_whole_numbers(schema, whole_numbers)
    groups: list[Group] = []
    readings: dict[tuple[str, str], None] = {}
    seen = table
    for number, (tokens, source) in enumerate(statements(text), 1):
        try:
            found = parsed(tokens, source)
            seen = check_clauses(found, seen, strict=table is not None)
            columns = Columns(schema=schema, qualifiers=_qualifiers(found))
            groups += _groups(found, columns)
            readings |= dict.fromkeys(_readings(found, columns))
        except WorkloadError as error:
            raise WorkloadError(f"Statement {number}: {error}") from None
        except RecursionError:
            raise WorkloadError(f"Statement {number} is nested too deeply. Write it flatter.") from None
        if len(groups) > MAX_GROUPS:
            raise WorkloadError(f"The SQL makes more than {MAX_GROUPS:,} groups. Ask for fewer at once.")
    if not groups:
        raise WorkloadError("There is no SQL yet. Write SELECT age, COUNT(*) FROM t GROUP BY age, or the like.")
    return Workload(schema, tuple(groups)), list(readings)


def _with_whole_numbers(schema: Schema, names: Iterable[str]) -> Schema:
    """Return the schema in which the values of these attributes are declared to be whole numbers."""
    try:
        declared = {schema[name].name for name in names if schema[name].edges is not None}
        return replace(
            schema, attributes=tuple(replace(a, integer=a.integer or a.name in declared) for a in schema.attributes)
        )
    except (EngineError, TypeError) as error:
        reason = f" {error}." if isinstance(error, EngineError) else ""
        raise WorkloadError(
            f"The attributes with whole numbers must be names of the schema, with whole edges.{reason}"
        ) from None


def _readings(select: exp.Select, columns: Columns) -> Iterable[tuple[str, str]]:
    """Yield the conditions of WHERE and CASE as written and as read."""
    where = select.args.get("where")
    nodes = [where.this] if where is not None else []
    for case in select.find_all(exp.Case):
        tests = [when.this for when in case.args["ifs"]]
        nodes += tests if case.this is None else [exp.EQ(this=case.this, expression=test) for test in tests]
    for node in nodes:
        reading = conditions.text(read(node, columns)) or "True"
        shortened = reading if len(reading) <= MAX_READING else f"{reading[: MAX_READING - 3]}..."
        yield said(node, MAX_READING), shortened


def _qualifiers(found: exp.Select) -> frozenset[str]:
    source = found.args["from_"].this
    return frozenset({(source.alias or source.name).casefold()})


def _groups(found: exp.Select, columns: Columns) -> list[Group]:
    """The groups of one statement."""
    where = found.args.get("where")
    condition = read(where.this, columns) if where is not None else Condition()
    if condition.never:
        raise WorkloadError(NEVER)
    items = _selected(found)
    aliases = {item.alias.casefold(): item.unalias() for item in found.expressions if item.alias}
    grouping = Grouping(columns=columns, items=items, aliases=aliases)
    sets = grouping.sets(found.args.get("group"))
    grouped = {name for one in sets for name in one}
    for item in items:
        if not isinstance(item, exp.Count) and not grouping.shows(item, grouped):
            raise WorkloadError(f"{said(item)} is selected but not in GROUP BY. Add it there, or leave it out.")
    return [_group(columns.schema, one, grouping.bands, condition) for one in sets]


def _selected(found: exp.Select) -> list[exp.Expr]:
    """The expressions of the SELECT list in order; one COUNT(*) has to be there, the rest is grouped by."""
    items, counts = [item.unalias() for item in found.expressions], 0
    for item in items:
        if isinstance(item, exp.Count):
            counts += 1
            constant = isinstance(item.this, exp.Literal) and not item.this.is_string
            if extra(item, "this", "big_int") or not (constant or isinstance(item.this, exp.Star)):
                raise WorkloadError(
                    f"{said(item)} does not count all records. Write COUNT(*), with conditions in WHERE."
                )
        elif isinstance(item, exp.AggFunc):
            raise WorkloadError(f"{said(item)} cannot be asked: all queries are counts. Write COUNT(*).")
        elif not isinstance(item, (exp.Column, exp.Case)) or isinstance(item.this, exp.Star):
            raise WorkloadError(f"SELECT {said(item)} cannot be asked. Select attributes and COUNT(*) only.")
    if counts != 1:
        raise WorkloadError(f"It has {counts} COUNT(*). Write SELECT with the attributes and exactly one COUNT(*).")
    return items


def _group(
    schema: Schema, grouped: tuple[str, ...], bands: Mapping[str, Sequence[Inside]], condition: Condition
) -> Group:
    """Every cell or band of the grouped attributes that the condition leaves possible."""
    names = (*grouped, *(name for name in condition.names if name not in grouped))
    if condition.texts:
        return _joint(schema, names, grouped, bands, condition)
    spec: dict[str, str | Family] = conditions.families(condition)
    for name in grouped:
        held = condition.cells.get(name)
        if name not in bands and (held is None or held.inside.all()):
            spec[name] = "marginal"
        else:
            kept = _kept(schema, name, bands, condition)
            spec[name] = Custom(predicates=[conditions.closed(_text(schema, name, inside)) for inside in kept])
    names = tuple(name for name in names if spec[name] != "total" or name in grouped)
    if not names:
        return make_group(schema, (), "total")
    if all(spec[name] == "marginal" for name in names):
        return make_group(schema, names, "marginal")
    return make_group(schema, names, {name: spec[name] for name in names})


def _joint(
    schema: Schema,
    names: tuple[str, ...],
    grouped: tuple[str, ...],
    bands: Mapping[str, Sequence[Inside]],
    condition: Condition,
) -> Group:
    """A group whose condition ties attributes together: one predicate for each cell or band that is grouped by."""
    sizes = schema.sizes(names)
    _limit(1, math.prod(sizes))
    kept = [_kept(schema, name, bands, condition) for name in grouped]
    _limit(math.prod(map(len, kept)), 1)
    held = evaluate(conditions.text(condition), [schema[name] for name in names])
    held = held.reshape(*sizes[: len(grouped)], -1).max(axis=-1)
    for axis, masks in enumerate(kept):
        held = np.stack([held.compress(mask, axis).max(axis) for mask in masks], axis)
    places = np.argwhere(held)
    if not len(places):
        raise WorkloadError(NEVER)
    _limit(len(places), math.prod(sizes))
    others = {name: found for name, found in condition.cells.items() if name not in grouped}
    rest = conditions.factors(Condition(cells=others, texts=condition.texts))
    texts = [[_text(schema, name, mask) for mask in masks] for name, masks in zip(grouped, kept, strict=True)]
    predicates = [
        conditions.joined([*(text[i] for text, i in zip(texts, place, strict=True)), *rest]) for place in places
    ]
    return make_group(schema, names, Custom(predicates=predicates))


def _kept(
    schema: Schema, name: str, bands: Mapping[str, Sequence[Inside]], condition: Condition
) -> list[npt.NDArray[np.bool_]]:
    """The bands of an attribute, or its cells, as far as the condition leaves something of them."""
    size = schema[name].size
    held = condition.cells[name].inside if name in condition.cells else np.ones(size, dtype=bool)
    if name in bands:
        return [band & held for band in bands[name] if (band & held).any()]
    _limit(int(held.sum()), size)
    return [np.arange(size) == i for i in np.flatnonzero(held)]


def _text(schema: Schema, name: str, inside: Inside) -> str:
    return conditions.cells_text(schema[name], inside)


def _limit(queries: int, cells: int) -> None:
    if queries > MAX_ROWS or queries * cells > MAX_ENTRIES:
        raise WorkloadError(
            f"GROUP BY with this WHERE makes {queries:,} queries on {cells:,} cells that are written down one by one; "
            f"at most {MAX_ROWS:,} queries and {MAX_ENTRIES:,} entries are allowed. Ask the whole table without WHERE, "
            "or use attributes with fewer cells."
        )
