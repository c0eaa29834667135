"""Workloads from SQL statements.

SQL conditions on public cells: what stands behind WHERE, turned into a `Condition`, or refused with the reason.

A condition is accepted only when every cell meets it as a whole or not at all, so that the counts of the workload are
the counts that the SQL asks for.  The records are read as the schema encodes them: what it collects as missing or as
other counts as that label.

GROUP BY: the sets of attributes that it asks for, and how CASE puts the cells of an attribute together.

SQL as text: statements taken apart within limits, everything refused that is no plain SELECT, and an example.

Parsing is the work of sqlglot; nothing is executed.

Workloads from SQL: every ``SELECT ... COUNT(*) FROM t WHERE ... GROUP BY ...`` becomes one query group or more.

The text is parsed and never executed; no table is looked at.  What the workload cannot ask exactly is refused with
the reason.  A GROUP BY asks every combination of cells that WHERE leaves possible, also those without records, which
a database would leave out.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
from sqlglot import Dialect, Token, TokenType, exp
from sqlglot.errors import SqlglotError

from engine._format import MAX_NAME, near_matches, plain, shown
from engine._validation import instance
from engine.errors import EngineError, WorkloadError
from engine.workload import conditions
from engine.workload.attribute import Attribute
from engine.workload.conditions import Condition, Inside
from engine.workload.date_conditions import compared_dates, cut_text
from engine.workload.families import Custom, Family
from engine.workload.predicates import evaluate, word
from engine.workload.schema import Schema
from engine.workload.workload import Group, Workload, make_group

MAX_DEPTH = 60
MAX_NUMBER = 2**53  # whole numbers up to here are exact
MAX_ARITHMETIC_CELLS = 4_000_000  # cells on which a condition with arithmetic is tried out
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
    if math.prod(a.size for a in found.values()) > MAX_ARITHMETIC_CELLS:
        raise WorkloadError(
            f"{written[:80]} is about more than {MAX_ARITHMETIC_CELLS:,} cells. Use attributes with fewer cells."
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


MAX_SETS = 5_000
MAX_BANDS = 2_000


@dataclass(frozen=True, kw_only=True)
class Grouping:
    """What GROUP BY of one statement refers to, and the bands that it was found to ask for.

    Attributes
    ----------
    items : the expressions of SELECT in order, which a number in GROUP BY points at.
    aliases : the names that SELECT gives to expressions, in lower case.
    bands : attribute -> what CASE makes of its cells, one mask of shape (size,) a band; filled while reading.
    """

    columns: Columns
    items: Sequence[exp.Expr]
    aliases: Mapping[str, exp.Expr]
    bands: dict[str, list[Inside]] = field(default_factory=dict)
    cases: dict[str, str] = field(default_factory=dict)  # attribute -> the SQL of its CASE, empty for its own cells

    def sets(self, group: exp.Group | None) -> list[tuple[str, ...]]:
        """Return the attribute sets: the product of what the items of GROUP BY ask for."""
        if group is None:
            return [()]
        if group.args.get("all") is True and not extra(group, "all"):
            return [tuple(dict.fromkeys(self._name(i) for i in self.items if isinstance(i, (exp.Column, exp.Case))))]
        if extra(group, "expressions"):
            raise WorkloadError("This form of GROUP BY cannot be asked. Write GROUP BY a, b or GROUP BY CUBE (a, b).")
        found: list[tuple[str, ...]] = [()]
        for item in group.expressions:
            choices = self._sets(item)
            if len(found) * len(choices) > MAX_SETS:
                raise WorkloadError(f"GROUP BY makes more than {MAX_SETS:,} sets of attributes. Ask for fewer at once.")
            found = [tuple(dict.fromkeys(one + more)) for one in found for more in choices]
        return list({frozenset(one): one for one in found}.values())

    def shows(self, item: exp.Expr, grouped: Iterable[str]) -> bool:
        """Return whether an expression of SELECT is one that GROUP BY groups by."""
        if isinstance(item, exp.Case):
            return item.sql() in self.cases.values()
        name = self.columns.find(item).name
        return name in grouped and not self.cases.get(name)

    def _sets(self, node: exp.Expr) -> list[tuple[str, ...]]:
        """The sets of one item of GROUP BY."""
        if isinstance(node, exp.GroupingSets):
            return [one for part in node.expressions for one in self._sets(part)]
        if not isinstance(node, (exp.Cube, exp.Rollup)):
            return [self._set(node)]
        parts = [self._set(part) for part in node.expressions]
        if not parts:
            raise WorkloadError("CUBE and ROLLUP need their attributes in brackets. Write GROUP BY CUBE (a, b).")
        chosen: Iterable[Sequence[tuple[str, ...]]] = (parts[:k] for k in range(len(parts), -1, -1))
        if isinstance(node, exp.Cube):
            if 2 ** len(parts) > MAX_SETS:
                raise WorkloadError(f"CUBE of {len(parts)} makes more than {MAX_SETS:,} groups. Name fewer attributes.")
            chosen = (c for k in range(len(parts), -1, -1) for c in itertools.combinations(parts, k))
        return [tuple(itertools.chain(*some)) for some in chosen]

    def _set(self, node: exp.Expr) -> tuple[str, ...]:
        """Attributes of one expression, of a number or a name that points at one, or of several in brackets."""
        node = node.unnest()
        if isinstance(node, exp.Tuple):
            return tuple(name for part in node.expressions for name in self._set(part))
        if isinstance(node, exp.Literal) and not node.is_string and node.name.isdigit() and len(node.name) < 6:
            place = int(node.name)
            if not 1 <= place <= len(self.items) or not isinstance(self.items[place - 1], (exp.Column, exp.Case)):
                raise WorkloadError(f"GROUP BY {place} points at no attribute of SELECT. Write the attribute's name.")
            node = self.items[place - 1]
        if isinstance(node, exp.Column) and not node.table and node.name not in self.columns.schema:
            node = self.aliases.get(node.name.casefold(), node)
        return (self._name(node),)

    def _name(self, node: exp.Expr) -> str:
        """The attribute that a column or a CASE groups by."""
        if isinstance(node, exp.Case):
            name, bands = _bands(node, self.columns)
            self.bands[name] = bands
        elif isinstance(node, exp.Column):
            name = self.columns.find(node).name
        else:
            raise WorkloadError(
                f"GROUP BY {said(node)} cannot be asked. Group by attributes, whose bins are the groups, or by CASE."
            )
        asked = node.sql() if isinstance(node, exp.Case) else ""
        if self.cases.setdefault(name, asked) != asked:
            raise WorkloadError(f"'{name}' is grouped in two ways. Write a statement for each.")
        return name


def _bands(case: exp.Case, columns: Columns) -> tuple[str, list[Inside]]:
    """The attribute of a CASE and the masks of its results, in the order in which they are first named."""
    if extra(case, "this", "ifs", "default") or len(case.args["ifs"]) > MAX_BANDS:
        raise WorkloadError(f"{said(case)} cannot be asked. Write CASE WHEN age < 18 THEN 'child' ELSE 'adult' END.")
    tests = [(when.this, when.args.get("true")) for when in case.args["ifs"]]
    if case.this is not None:
        tests = [(exp.EQ(this=case.this.copy(), expression=test.copy()), result) for test, result in tests]
    found, name = [], None
    for test, result in tests:
        single = read(test, columns).single
        if single is None or name not in (None, single.attribute.name):
            raise WorkloadError(
                f"{said(test)}: all conditions of a CASE in GROUP BY must be about one and the same attribute."
            )
        name = single.attribute.name
        found.append((single.inside, _result(result)))
    assert name is not None
    rest = np.ones(columns.schema[name].size, dtype=bool)
    bands: dict[str, Inside] = {}
    for inside, result in [*found, (rest.copy(), _result(case.args.get("default")))]:
        bands[result] = bands.get(result, np.zeros(len(rest), dtype=bool)) | (inside & rest)
        rest &= ~inside
    return name, [band for band in bands.values() if band.any()]


def _result(node: exp.Expr | None) -> str:
    """What tells apart the results of a CASE; the same result twice is one band."""
    if node is None or isinstance(node, exp.Null):
        return ""
    if not isinstance(node, exp.Literal):
        raise WorkloadError(f"{said(node)} after THEN or ELSE cannot be asked. Write a text in single quotes.")
    return node.sql()


MAX_TEXT = 200_000
MAX_TOKENS = 30_000
MAX_NESTING = 40  # brackets inside brackets
# what a parser of somebody else's making may raise on a text that is no SQL
TROUBLE = (SqlglotError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
CLAUSES = {
    "joins": ("JOIN", "The schema is one table; put the columns that you need into it"),
    "laterals": ("LATERAL", "Ask the table itself"),
    "with_": ("WITH", "Ask the table itself, with the conditions in WHERE"),
    "distinct": ("DISTINCT", "Counts of different values are no linear queries; leave it out"),
    "having": ("HAVING", "It looks at the counts, which are not known yet; filter the noisy answers afterwards"),
    "limit": ("LIMIT", "All counts of the group are answered; cut the list afterwards"),
    "offset": ("OFFSET", "All counts of the group are answered; cut the list afterwards"),
    "order": ("ORDER BY", "Sort the noisy answers afterwards"),
    "qualify": ("QUALIFY", "Filter the noisy answers afterwards"),
    "windows": ("WINDOW", "Use COUNT(*) with GROUP BY"),
    "sample": ("a sample", "Leave it out; the noise is worked out for all records"),
}


def statements(text: str) -> Iterator[tuple[list[Token], str]]:
    """Tokens of every statement, bounded in number and in nesting before anything is parsed."""
    if not isinstance(text, str):
        raise WorkloadError(f"The SQL is of type {type(text).__name__}. Give a text.")
    if len(text) > MAX_TEXT:
        raise WorkloadError(f"The SQL has {len(text):,} characters; at most {MAX_TEXT:,} are read. Split it.")
    try:
        tokens = Dialect.get_or_raise("duckdb").tokenize(text)
    except TROUBLE:
        raise WorkloadError("The SQL cannot be read: a quote or a comment does not end. Close it.") from None
    if len(tokens) > MAX_TOKENS:
        raise WorkloadError(f"The SQL has {len(tokens):,} words and signs; at most {MAX_TOKENS:,} are read. Split it.")
    depth, opened, closing = 0, (TokenType.L_PAREN, TokenType.L_BRACKET), (TokenType.R_PAREN, TokenType.R_BRACKET)
    statement: list[Token] = []
    for token in tokens:
        depth += (token.token_type in opened) - (token.token_type in closing)
        if depth > MAX_NESTING:
            raise WorkloadError(f"The SQL has more than {MAX_NESTING} brackets inside each other. Write it flatter.")
        if token.token_type != TokenType.SEMICOLON:
            statement.append(token)
        elif statement:
            yield statement, text
            statement = []
    if statement:
        yield statement, text


def parsed(tokens: list[Token], source: str) -> exp.Select:
    first = tokens[0].text.upper()[:40]
    if tokens[0].token_type != TokenType.SELECT:
        hint = "Take WITH apart and ask the table itself" if first == "WITH" else "Nothing else is read or run"
        raise WorkloadError(f"It begins with {first!r}, but only SELECT asks for counts. {hint}.")
    try:
        (found,) = Dialect.get_or_raise("duckdb").parser().parse(tokens, source)
    except SqlglotError as error:
        place = (getattr(error, "errors", None) or [{}])[0]
        where = f" near {place['highlight'][:40]!r}" if place.get("highlight") else ""
        raise WorkloadError(f"It is no valid SQL{where}. Correct it there.") from None
    except TROUBLE:
        raise WorkloadError("It cannot be read as SQL. Write it like SELECT a, COUNT(*) FROM t GROUP BY a.") from None
    if isinstance(found, exp.SetOperation):
        raise WorkloadError(
            "UNION, INTERSECT and EXCEPT cannot be asked. Write the SELECTs one by one, with ; between."
        )
    if not isinstance(found, exp.Select):
        raise WorkloadError(f"{said(found)} is no SELECT that asks for counts.")
    return found


def check_clauses(found: exp.Select, table: str | None, *, strict: bool) -> str:
    """Refuse every clause but SELECT, FROM, WHERE and GROUP BY; return the name of the table."""
    for key in extra(found, "expressions", "from_", "where", "group"):
        name, advice = CLAUSES.get(key, (key.strip("_").upper(), "Leave it out"))
        raise WorkloadError(f"{name} cannot be asked. {advice}.")
    source = found.args["from_"].this if found.args.get("from_") else None
    if source is None:
        raise WorkloadError("It has no FROM. Write FROM and the name of the table.")
    if isinstance(source, exp.Table):
        for key in extra(source, "this", "db", "catalog", "alias"):
            name, advice = CLAUSES.get(key, (key.strip("_").upper(), "Leave it out"))
            raise WorkloadError(f"{name} cannot be asked. {advice}.")
    if not isinstance(source, exp.Table) or not isinstance(source.this, exp.Identifier):
        raise WorkloadError(f"FROM {said(source)} is no table's name. Subqueries and functions cannot be asked there.")
    if table is not None and source.name.casefold() != table.casefold():
        wanted = f"the table here is {table[:60]!r}" if strict else f"the statements before ask {table[:60]!r}"
        raise WorkloadError(f"It asks the table {source.name[:60]!r}, but {wanted}. All must ask the same one.")
    return source.name


def example(schema: Schema) -> str:
    """Return SQL that the schema can answer, to begin with.

    >>> from engine.workload import Attribute
    >>> print(example(Schema([Attribute.of_size("age", 9), Attribute.categorical("pay-grade", ["A", "B"])])))
    SELECT age, "pay-grade", COUNT(*) FROM records GROUP BY age, "pay-grade";
    SELECT "pay-grade", COUNT(*) FROM records WHERE age >= 4 GROUP BY "pay-grade"
    """
    names = [_written(name) for name in schema]
    shown = names[:2]
    lines = [f"SELECT {', '.join(shown)}, COUNT(*) FROM records GROUP BY {', '.join(shown)}"]
    numeric = [a for a in schema.attributes if a.kind == "numeric" and a.size > 1]
    if numeric and len(names) > 1:
        a = numeric[0]
        bound = plain(a.edges[a.size // 2]) if a.edges is not None else str(a.size // 2)
        if a.is_dated:
            bound = f"DATE '{a.days(a.date_cells // 2)[0]}'"
        by = next(name for name, one in zip(names, schema.attributes, strict=True) if one is not a)
        at = names[schema.order[a.name]]
        lines.append(f"SELECT {by}, COUNT(*) FROM records WHERE {at} >= {bound} GROUP BY {by}")
    return ";\n".join(lines)


def _written(name: str) -> str:
    """A name as SQL has to write it: in quotes unless it is one plain word."""
    try:
        tokens = Dialect.get_or_raise("duckdb").tokenize(name)
    except TROUBLE:
        tokens = []
    plainly = len(tokens) == 1 and tokens[0].token_type == TokenType.VAR and tokens[0].text == name
    return name if plainly else exp.to_identifier(name, quoted=True).sql(dialect="duckdb")


MAX_GROUPS = 5_000  # groups of one text
MAX_ROWS = 5_000  # cells of a GROUP BY that a WHERE leaves some of
MAX_READING = 300  # characters of a condition and of its reading
MAX_QUERY_ENTRIES = 10_000_000  # cells x queries that are written down one by one
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

    >>> from engine.workload import Attribute
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

    >>> from engine.workload import Attribute
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
    if queries > MAX_ROWS or queries * cells > MAX_QUERY_ENTRIES:
        raise WorkloadError(
            f"GROUP BY with this WHERE makes {queries:,} queries on {cells:,} cells that are written down one by one; "
            f"at most {MAX_ROWS:,} queries and {MAX_QUERY_ENTRIES:,} entries are allowed. Ask the whole table without "
            "WHERE, or use attributes with fewer cells."
        )
