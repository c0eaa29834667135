"""SQL conditions on public cells: what stands behind WHERE, turned into a `Condition`, or refused with the reason.

A condition is accepted only when every cell meets it as a whole or not at all, so that the counts of the workload are
the counts that the SQL asks for.  The records are read as the schema encodes them: what it collects as missing or as
other counts as that label.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from sqlglot import exp

from engine.errors import WorkloadError
from engine.texts import MAX_NAME, near_matches, plain, shown
from engine.workload import conditions
from engine.workload.attribute import Attribute
from engine.workload.conditions import Condition, Inside
from engine.workload.dated import compared_dates, cut_text
from engine.workload.predicates import evaluate, word
from engine.workload.schema import Schema

MAX_DEPTH = 60
MAX_NUMBER = 2**53  # whole numbers up to here are exact
MAX_ENTRIES = 4_000_000  # cells on which a condition with arithmetic is tried out
COMPARE: dict[type[exp.Expr], str] = {
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.EQ: "=",
    exp.NEQ: "<>",
}
FLIP = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "<>": "<>"}
PYTHON = {"=": "==", "<>": "!="}
ALLOWED = "Conditions compare attributes with constants: =, <>, <, <=, >, >=, BETWEEN, IN, AND, OR, NOT"


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The attributes as SQL names them.

    Attributes
    ----------
    qualifiers : names of the table in lower case; a column may be written ``table.column`` with one of them.
    """

    schema: Schema
    qualifiers: frozenset[str] = frozenset()

    def find(self, node: exp.Expr) -> Attribute:
        """Return the attribute that a column names; case, and signs that need quotes, may be written loosely."""
        if (
            not isinstance(node, exp.Column)
            or extra(node, "this", "table")
            or not isinstance(node.this, exp.Identifier)
        ):
            raise WorkloadError(f"{said(node)} is not the name of an attribute. Write the name alone.")
        if node.table and node.table.casefold() not in self.qualifiers:
            raise WorkloadError(f"{said(node)} names another table than FROM does. Write the column alone.")
        return self.named(node.name)

    def named(self, name: str) -> Attribute:
        """Return the attribute of this name."""
        if name in self.schema:
            return self.schema[name]
        if len(name) > MAX_NAME:
            raise WorkloadError(f"There is no attribute of a name with {len(name):,} characters.")
        for rule in (str.casefold, word, lambda text: word(text).casefold()):
            found = [a for a in self.schema.attributes if rule(a.name) == rule(name)]
            if len(found) == 1:
                return found[0]
            if found:
                raise WorkloadError(
                    f"The column {shown(name)} could be {' or '.join(shown(a.name) for a in found[:5])}. Write the "
                    "name exactly, in double quotes."
                )
        near = near_matches(name, self.schema.names) or f"; there are {', '.join(map(shown, self.schema.names[:8]))}"
        raise WorkloadError(
            f"There is no attribute {shown(name)}{near}. Names with other signs than letters, digits and _ go in "
            "double quotes, texts in single quotes."
        )


def said(node: exp.Expr | None, limit: int = 80) -> str:
    """Return a piece of SQL for a message, in at most ``limit`` characters."""
    if node is None:
        return "nothing"
    try:
        found = node.sql(dialect="duckdb", comments=False)
    except (ValueError, TypeError, AttributeError, RecursionError):
        found = type(node).__name__.upper()
    found = " ".join(found.split())
    return found if len(found) <= limit else f"{found[: limit - 3]}..."


def extra(node: exp.Expr, *allowed: str) -> list[str]:
    """Return the clauses of a node that are given but not among the allowed ones."""
    return [key for key, value in node.args.items() if value and key not in allowed]


def read(node: exp.Expr, columns: Columns, depth: int = 0) -> Condition:
    """Return the condition that an expression states.  Raises: WorkloadError."""
    if depth > MAX_DEPTH:
        raise WorkloadError(f"The condition is nested more than {MAX_DEPTH} levels deep. Write it flatter.")
    if isinstance(node, exp.Paren):
        return read(node.this, columns, depth + 1)
    if isinstance(node, (exp.And, exp.Or)):
        parts = [read(part, columns, depth + 1) for part in node.flatten(unnest=False)]
        return conditions.both(parts) if isinstance(node, exp.And) else conditions.either(parts)
    if isinstance(node, exp.Not):
        return conditions.negation(read(node.this, columns, depth + 1))
    if isinstance(node, exp.Between) and not extra(node, "this", "low", "high"):
        low, high = node.args["low"], node.args["high"]
        sides = [_comparison(node.this, ">=", low, columns), _comparison(node.this, "<=", high, columns)]
        return conditions.both(sides)
    if isinstance(node, exp.In) and not extra(node, "this", "expressions") and node.expressions:
        return conditions.either([_comparison(node.this, "=", item, columns) for item in node.expressions])
    if type(node) in COMPARE:
        return _comparison(node.this, COMPARE[type(node)], node.expression, columns)
    if isinstance(node, exp.Is):
        raise WorkloadError(f"{said(node)}: every record lies in a cell. Name the cell that collects missing values.")
    raise WorkloadError(f"{said(node)} cannot be asked here. {ALLOWED}.")


def _comparison(left: exp.Expr, sign: str, right: exp.Expr, columns: Columns) -> Condition:
    left, right = left.unnest(), right.unnest()
    if isinstance(right, exp.Column) and _is_constant(left):
        left, sign, right = right, FLIP[sign], left
    if isinstance(left, exp.Column) and _is_constant(right):
        attribute = columns.find(left)
        return conditions.of_cells(attribute, _inside(attribute, sign, _constant(right)))
    return _arithmetic(left, sign, right, columns)


def _is_constant(node: exp.Expr) -> bool:
    return _is_date(node) or isinstance(node.this.unnest() if isinstance(node, exp.Neg) else node, exp.Literal)


def _is_date(node: exp.Expr) -> bool:
    """Whether an expression is a date such as DATE '2024-01-01'."""
    return (
        isinstance(node, exp.Cast)
        and node.to.is_type(exp.DataType.Type.DATE)
        and isinstance(node.this, exp.Literal)
        and bool(node.this.args.get("is_string"))
    )


def _constant(node: exp.Expr) -> str | int | float:
    if _is_date(node):
        return str(node.this.name)
    if isinstance(node, exp.Neg):
        inner = _constant(node.this.unnest())
        if isinstance(inner, str):
            raise WorkloadError(f"{said(node)} is not a number. Leave the sign or the quotes out.")
        return -inner
    if node.args.get("is_string"):
        return node.name
    try:
        value = float(node.name)
        if math.isfinite(value):
            return int(node.name) if node.name.isascii() and node.name.isdigit() and value <= MAX_NUMBER else value
    except ValueError:
        pass
    raise WorkloadError(f"{said(node)} is not a finite number. Write it in digits, such as 20 or 1.5.")


def _inside(a: Attribute, sign: str, constant: str | int | float) -> Inside:
    """Cells of one attribute that a comparison with a constant holds for."""
    if a.labels is not None:
        if not isinstance(constant, str):
            raise WorkloadError(
                f"'{a.name}' has labels. Compare it with one in single quotes, such as '{a.labels[0]}'."
            )
        if sign not in PYTHON:
            raise WorkloadError(f"The labels of '{a.name}' have no order, so {sign} means nothing. Use =, <> or IN.")
        if constant not in a.labels:
            near = near_matches(constant, a.labels) or f"; the first ones are {', '.join(map(shown, a.labels[:6]))}"
            raise WorkloadError(f"'{a.name}' has no label {shown(constant)}{near}. Case and spaces count.")
        return np.array([(label == constant) == (sign == "=") for label in a.labels])
    if a.is_dated:
        return _dated(a, sign, constant)
    if isinstance(constant, str):
        raise WorkloadError(f"'{a.name}' is a number, but {shown(constant)} is a text. Write a number without quotes.")
    if a.edges is None:
        compare = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
        return np.asarray((compare | {"=": operator.eq, "<>": operator.ne})[sign](np.arange(a.size), constant))
    yes, cut = _binned(a, sign, float(constant), a.integer)
    if len(cut):
        whole_edges = all(map(float.is_integer, a.edges))
        helps = not a.integer and whole_edges and not len(_binned(a, sign, float(constant), True)[1])
        raise _cut(a, sign, float(constant), int(cut[0]), helps)
    return yes


def _dated(a: Attribute, sign: str, constant: str | int | float) -> Inside:
    """Cells of dates that a comparison holds for."""
    if not isinstance(constant, str):
        raise WorkloadError(f"'{a.name}' holds dates. Write them as in DATE '{a.days(0)[0]}'.")
    held, cut = compared_dates(a, sign, constant, clip=a.clip)
    if len(cut):
        i = int(cut[0])
        clipped = " and the days outside" if a.clip and i in (0, a.date_cells - 1) else ""
        raise WorkloadError(f"{a.name} {sign} {shown(constant)} cuts through {cut_text(a, i)}{clipped}.")
    return held


def _binned(a: Attribute, sign: str, c: float, whole: bool) -> tuple[Inside, npt.NDArray[np.intp]]:
    """Bins of which every value meets a comparison, and the bins that it cuts through."""
    edges = np.array(a.edges)
    low, high = edges[:-1].copy(), edges[1:].copy()
    if a.clip:  # numbers outside are counted in the first and the last bin
        low[0], high[-1] = -math.inf, math.inf
    is_open = np.arange(a.size) < a.size - 1
    if whole:  # the edges are whole numbers, too
        high = np.where(is_open, high - 1, high)
        is_open = np.zeros(a.size, dtype=bool)
    if sign in ("=", "<>"):
        yes, no = (low == c) & (high == c), (c < low) | (high < c) | (is_open & (high == c))
        no |= whole and not c.is_integer()
    elif sign in ("<", ">="):
        yes, no = (high < c) | (is_open & (high == c)), low >= c
    else:
        yes, no = high <= c, low > c
    inside = no if sign in ("<>", ">", ">=") else yes
    return inside, np.flatnonzero(~(yes | no))


def _cut(a: Attribute, sign: str, c: float, i: int, helps: bool) -> WorkloadError:
    """The refusal of a comparison that cuts through bin ``i``, with what could be asked instead."""
    assert a.edges is not None
    low, high, first, last = plain(a.edges[i]), plain(a.edges[i + 1]), i == 0, i == a.size - 1
    below = [] if first else [f"{a.name} < {low}"]
    up_to = [f"{a.name} < {high}"] if not last else [] if a.clip else [f"{a.name} <= {high}"]
    above = [] if first and a.clip else [f"{a.name} >= {low}"]
    advice = (
        " AND ".join([] if first else above) + (" AND " if not (first or last) else "") + "".join(up_to[: not last])
    )
    if sign in ("<", "<="):
        advice = " or ".join(below + up_to)
    elif sign in (">", ">="):
        advice = " or ".join(above + ([] if last else [f"{a.name} >= {high}"]))
    advice = f"write {f'NOT ({advice})' if sign == '<>' else advice}" if advice else "leave the condition out"
    clipped = ", which also holds the numbers outside," if a.clip and (first or last) else ""
    hint = f", or declare in the schema that the values of {a.name} are whole numbers" if helps else ""
    return WorkloadError(
        f"{a.name} {sign} {plain(c)} cuts through the bin {a.label(i)}{clipped} of '{a.name}'. The nearest edges are "
        f"{low} and {high}: {advice}{hint}."
    )


def _arithmetic(left: exp.Expr, sign: str, right: exp.Expr, columns: Columns) -> Condition:
    """A comparison of sums of coded attributes, which is exact on the cells."""
    found: dict[str, Attribute] = {}
    texts = [_sum(side, columns, found, 0)[0] for side in (left, right)]
    written = f"{texts[0]} {PYTHON.get(sign, sign)} {texts[1]}"
    if not found:
        raise WorkloadError(f"{said(left)} {sign} {said(right)} compares no attribute. Name one, or leave it out.")
    if math.prod(a.size for a in found.values()) > MAX_ENTRIES:
        raise WorkloadError(
            f"{written[:80]} is about more than {MAX_ENTRIES:,} cells. Use attributes with fewer cells."
        )
    held = evaluate(written, tuple(found.values())) > 0
    if len(found) == 1:
        return conditions.of_cells(next(iter(found.values())), held)
    if held.all() or not held.any():
        first = next(iter(found.values()))
        return conditions.of_cells(first, np.full(first.size, held.all()))
    return Condition(texts={written: tuple(found)})


def _sum(node: exp.Expr, columns: Columns, found: dict[str, Attribute], depth: int) -> tuple[str, float]:
    """The text of a sum of coded attributes and a bound on its size."""
    if depth > MAX_DEPTH:
        raise WorkloadError(f"A sum is nested more than {MAX_DEPTH} levels deep. Write it flatter.")
    if isinstance(node, exp.Paren):
        inner, bound = _sum(node.this, columns, found, depth + 1)
        return f"({inner})", bound
    if isinstance(node, exp.Column):
        a = columns.find(node)
        if not a.is_coded:
            what = "labels" if a.labels is not None else "bins" if a.edges is not None else "dates"
            raise WorkloadError(
                f"'{a.name}' has {what}, so a sum or a comparison with another attribute has no exact meaning on its "
                "cells. Compare it with constants; texts go in single quotes."
            )
        found[a.name] = a
        return word(a.name), float(a.size)
    if isinstance(node, exp.Literal) and not node.is_string:
        value = _constant(node)
        if depth and not isinstance(value, int):
            raise WorkloadError(f"The number {node.name[:40]} inside a sum is not whole, so the sum may not be exact.")
        return repr(value), abs(float(value))
    if isinstance(node, exp.Neg):
        inner, bound = _sum(node.this, columns, found, depth + 1)
        return f"-{inner}", bound
    if isinstance(node, exp.Abs) and not extra(node, "this"):
        inner, bound = _sum(node.this.unnest(), columns, found, depth + 1)
        return f"abs({inner})", bound
    signs: dict[type[exp.Expr], str] = {exp.Add: "+", exp.Sub: "-", exp.Mul: "*"}
    if type(node) not in signs or extra(node, "this", "expression"):
        raise WorkloadError(f"{said(node)} cannot be compared here. {ALLOWED}; sums and ABS of coded attributes.")
    (left, one), (right, two) = (_sum(side, columns, found, depth + 1) for side in (node.this, node.expression))
    bound = one * two if isinstance(node, exp.Mul) else one + two
    if bound > MAX_NUMBER:
        raise WorkloadError(f"{said(node)} can pass {MAX_NUMBER:,}, where numbers stop being exact. Use smaller ones.")
    return f"{left} {signs[type(node)]} {right}", bound
