"""Workloads from SQL: every ``SELECT ... COUNT(*) FROM t WHERE ... GROUP BY ...`` becomes one query group or more.

The text is parsed and never executed; no table is looked at.  What the workload cannot ask exactly is refused with
the reason.  A GROUP BY asks every combination of cells that WHERE leaves possible, also those without records, which
a database would leave out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

import numpy as np
from sqlglot import exp

from engine import conditions
from engine.conditions import Condition
from engine.errors import WorkloadError
from engine.families import Custom
from engine.predicates import evaluate
from engine.schema import Schema
from engine.sql_conditions import Columns, extra, known, read, said
from engine.sql_text import check_clauses, parsed, statements
from engine.workload import FamilySpec, Group, Workload, make_group

MAX_GROUPS = 5_000  # groups of one text
MAX_ROWS = 5_000  # cells of a GROUP BY that a WHERE leaves some of
MAX_ENTRIES = 10_000_000  # cells x queries that are written down one by one
ONE = exp.Literal.number(1)  # COUNT(1) counts all records, too
NEVER = "No record can meet the condition of WHERE, so the counts are 0. Leave the statement out."


def workload_from_sql(
    schema: Schema, text: str, table: str | None = None, *, whole_numbers: Iterable[str] = ()
) -> Workload:
    """Return the workload that SQL statements ask for, to be added to another one or planned as it is.

    Parameters
    ----------
    text : one SELECT or several with ``;`` between them: COUNT(*), one table, WHERE, and GROUP BY with attributes,
        CUBE, ROLLUP and GROUPING SETS.
    table : the name that FROM has to give; any one name when left out.
    whole_numbers : attributes with bins whose records hold whole numbers only, so that ``age <= 39`` is ``age < 40``.

    Raises
    ------
    WorkloadError : what cannot be read, is not supported, or does not follow the cells of the schema; says why.

    >>> from engine.schema import Attribute
    >>> schema = Schema([Attribute.numeric("age", [0, 20, 40, 90]), Attribute.categorical("sex", ["F", "M"])])
    >>> asked = workload_from_sql(schema, "SELECT sex, COUNT(*) FROM t WHERE age < 40 GROUP BY sex")
    >>> [asked.describe(i) for i in range(len(asked))]
    ['sex = F and age < 40', 'sex = M and age < 40']
    """
    whole, groups = known(schema, whole_numbers), []
    seen = table
    for number, (tokens, source) in enumerate(statements(text), 1):
        try:
            found = parsed(tokens, source)
            seen = check_clauses(found, seen, strict=table is not None)
            columns = Columns(schema=schema, whole=whole, qualifiers=_qualifiers(found))
            groups += _groups(found, columns)
        except WorkloadError as error:
            raise WorkloadError(f"Statement {number}: {error}") from None
        except RecursionError:
            raise WorkloadError(f"Statement {number} is nested too deeply. Write it flatter.") from None
        if len(groups) > MAX_GROUPS:
            raise WorkloadError(f"The SQL makes more than {MAX_GROUPS:,} groups. Ask for fewer at once.")
    if not groups:
        raise WorkloadError("There is no SQL yet. Write SELECT age, COUNT(*) FROM t GROUP BY age, or the like.")
    return Workload(schema, tuple(groups))


def _qualifiers(found: exp.Select) -> frozenset[str]:
    source = found.args["from_"].this
    return frozenset({(source.alias or source.name).casefold()})


def _groups(found: exp.Select, columns: Columns) -> list[Group]:
    """The groups of one statement."""
    where = found.args.get("where")
    condition = read(where.this, columns) if where is not None else Condition()
    if condition.never:
        raise WorkloadError(NEVER)
    names, shown = _selected(found, columns)
    sets = _grouping(found.args.get("group"), columns, names)
    grouped = {name for one in sets for name in one}
    if lone := [name for name in shown if name not in grouped]:
        raise WorkloadError(f"'{lone[0]}' is selected but not in GROUP BY. Add it there, or leave it out.")
    return [_group(columns.schema, one, condition) for one in sets]


def _selected(found: exp.Select, columns: Columns) -> tuple[list[exp.Expr], list[str]]:
    """The expressions of the SELECT list in order, and the attributes among them; one COUNT(*) has to be there."""
    items, shown, counts = [item.unalias() for item in found.expressions], [], 0
    for item in items:
        if isinstance(item, exp.Column) and not isinstance(item.this, exp.Star):
            shown.append(columns.find(item).name)
        elif isinstance(item, exp.Count):
            counts += 1
            constant = isinstance(item.this, exp.Star) or (
                isinstance(item.this, exp.Literal) and not item.this.is_string
            )
            if extra(item, "this", "big_int") or not constant:
                raise WorkloadError(
                    f"{said(item)} does not count all records. Write COUNT(*), with conditions in WHERE."
                )
        elif isinstance(item, exp.AggFunc):
            raise WorkloadError(f"{said(item)} cannot be asked: all queries are counts. Write COUNT(*).")
        else:
            raise WorkloadError(f"SELECT {said(item)} cannot be asked. Select attributes and COUNT(*) only.")
    if counts != 1:
        raise WorkloadError(f"It has {counts} COUNT(*). Write SELECT with the attributes and exactly one COUNT(*).")
    return items, shown


def _grouping(group: exp.Group | None, columns: Columns, items: Sequence[exp.Expr]) -> list[tuple[str, ...]]:
    """The attribute sets of GROUP BY: the product of what its items ask for."""
    if group is None:
        return [()]
    if group.args.get("all") is True and not extra(group, "all"):
        return [tuple(dict.fromkeys(columns.find(item).name for item in items if isinstance(item, exp.Column)))]
    if extra(group, "expressions"):
        raise WorkloadError("This form of GROUP BY cannot be asked. Write GROUP BY a, b or GROUP BY CUBE (a, b).")
    found: list[tuple[str, ...]] = [()]
    for item in group.expressions:
        choices = _sets(item, columns, items)
        if len(found) * len(choices) > MAX_GROUPS:
            raise WorkloadError(f"GROUP BY makes more than {MAX_GROUPS:,} sets of attributes. Ask for fewer at once.")
        found = [tuple(dict.fromkeys(one + more)) for one in found for more in choices]
    return list({frozenset(one): one for one in found}.values())


def _sets(node: exp.Expr, columns: Columns, items: Sequence[exp.Expr]) -> list[tuple[str, ...]]:
    """The sets of one item of GROUP BY."""
    if isinstance(node, exp.GroupingSets):
        return [one for part in node.expressions for one in _sets(part, columns, items)]
    if isinstance(node, (exp.Cube, exp.Rollup)):
        parts = [_one_set(part, columns, items) for part in node.expressions]
        if not parts:
            raise WorkloadError("CUBE and ROLLUP need their attributes in brackets. Write GROUP BY CUBE (a, b).")
        chosen: Iterable[Sequence[tuple[str, ...]]] = (parts[:k] for k in range(len(parts), -1, -1))
        if isinstance(node, exp.Cube):
            if 2 ** len(parts) > MAX_GROUPS:
                raise WorkloadError(
                    f"CUBE of {len(parts)} makes more than {MAX_GROUPS:,} groups. Name fewer attributes."
                )
            chosen = (c for k in range(len(parts), -1, -1) for c in itertools.combinations(parts, k))
        return [tuple(itertools.chain(*some)) for some in chosen]
    return [_one_set(node, columns, items)]


def _one_set(node: exp.Expr, columns: Columns, items: Sequence[exp.Expr]) -> tuple[str, ...]:
    """Attributes of one column, of a number that points at one, or of several in brackets."""
    node = node.unnest()
    if isinstance(node, exp.Tuple):
        return tuple(name for part in node.expressions for name in _one_set(part, columns, items))
    if isinstance(node, exp.Literal) and not node.is_string and node.name.isdigit() and len(node.name) < 6:
        place = int(node.name)
        if not 1 <= place <= len(items) or not isinstance(items[place - 1], exp.Column):
            raise WorkloadError(f"GROUP BY {place} points at no attribute of SELECT. Write the attribute's name.")
        node = items[place - 1]
    if not isinstance(node, exp.Column):
        raise WorkloadError(f"GROUP BY {said(node)} cannot be asked. Group by attributes; their bins are the groups.")
    return (columns.find(node).name,)


def _group(schema: Schema, grouped: tuple[str, ...], condition: Condition) -> Group:
    """Every cell of the grouped attributes that the condition leaves possible."""
    names = (*grouped, *(name for name in condition.names if name not in grouped))
    if condition.texts:
        return _joint(schema, names, grouped, condition)
    spec: dict[str, FamilySpec] = dict(conditions.families(condition))
    for name in grouped:
        held = condition.cells.get(name)
        if held is None or held.inside.all():
            spec[name] = "marginal"
        else:
            kept = np.flatnonzero(held.inside)
            _limit(len(kept), schema[name].size)
            spec[name] = Custom(predicates=[_cell(schema, name, int(i)) for i in kept])
    names = tuple(name for name in names if spec[name] != "total" or name in grouped)
    if not names:
        return make_group(schema, (), "total")
    if all(spec[name] == "marginal" for name in names):
        return make_group(schema, names, "marginal")
    return make_group(schema, names, {name: spec[name] for name in names})  # type: ignore[misc]


def _joint(schema: Schema, names: tuple[str, ...], grouped: tuple[str, ...], condition: Condition) -> Group:
    """A group whose condition ties attributes together: one predicate for each cell of the grouped attributes."""
    sizes = schema.sizes(names)
    _limit(min(MAX_ROWS, schema.cells(grouped)), math.prod(sizes))
    held = evaluate(conditions.text(condition), [schema[name] for name in names])
    kept = np.argwhere(held.reshape(*sizes[: len(grouped)], -1).any(axis=-1))
    if not len(kept):
        raise WorkloadError(NEVER)
    _limit(len(kept), math.prod(sizes))
    others = {name: found for name, found in condition.cells.items() if name not in grouped}
    rest = conditions.factors(Condition(cells=others, texts=condition.texts))
    predicates = [
        conditions.joined([*(_cell(schema, name, int(i)) for name, i in zip(grouped, cell, strict=True)), *rest])
        for cell in kept
    ]
    return make_group(schema, names, Custom(predicates=predicates))


def _cell(schema: Schema, name: str, i: int) -> str:
    return conditions.cells_text(schema[name], np.arange(schema[name].size) == i)


def _limit(queries: int, cells: int) -> None:
    if queries > MAX_ROWS or queries * cells > MAX_ENTRIES:
        raise WorkloadError(
            f"GROUP BY with this WHERE makes {queries:,} queries on {cells:,} cells that are written down one by one; "
            f"at most {MAX_ROWS:,} queries and {MAX_ENTRIES:,} entries are allowed. Ask the whole table without WHERE, "
            "or use attributes with fewer cells."
        )
