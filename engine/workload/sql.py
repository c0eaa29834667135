"""Translation of SQL statements to workloads.

Each ``SELECT ... COUNT(*) FROM t WHERE ... GROUP BY ...`` becomes one or more query groups. sqlglot
parses the text, within limits on its size and nesting; nothing is executed and no table is read.
A statement that is not a plain SELECT of counts, or has no exact translation, is refused with the
reason.

WHERE becomes a `Condition`. It is accepted only if it is true for all values in a cell or for none,
in every cell of the schema; the workload then has exactly the counts of the SQL. Values are
compared after encoding. A missing value is compared as the label of its cell or, in an attribute
with bins, as the number that replaces missing values. A text that is not a label is compared as the
label of the cell "other".

GROUP BY becomes sets of attributes. A CASE expression merges cells of an attribute into coarser
cells, which are called bands here. A group has one query per combination of cells that WHERE
allows, including combinations without records, which a database would omit.
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

from engine._format import MAX_NAME, near_matches, quote_public, shortest_text
from engine._validation import check_type
from engine.errors import EngineError, WorkloadError
from engine.workload import conditions
from engine.workload.attribute import Attribute
from engine.workload.conditions import Condition, Inside
from engine.workload.families import Custom, Family
from engine.workload.predicates import compared_dates, cut_text, evaluate, word
from engine.workload.schema import Schema
from engine.workload.workload import Group, Workload, make_group

MAX_DEPTH = 60  # levels of nested conditions
# Floats represent all integers up to this number exactly.
MAX_NUMBER = 2**53
# Limit for the cells on which a condition with arithmetic is evaluated.
MAX_ARITHMETIC_CELLS = 4_000_000
_COMPARISON_SIGN: dict[type[exp.Expr], str] = {
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.EQ: "=",
    exp.NEQ: "<>",
}
_MIRRORED_SIGN = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "<>": "<>"}
_PYTHON_SIGN = {"=": "==", "<>": "!="}
_ALLOWED_TEXT = (
    "Conditions compare attributes with constants: =, <>, <, <=, >, >=, BETWEEN, IN, AND, OR, NOT"
)


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Lookup of the attributes of a schema by SQL column names.

    Attributes
    ----------
    schema : the schema with the attributes.
    qualifiers : lower-case table names that are allowed before a column, as in ``table.column``.
    """

    schema: Schema
    qualifiers: frozenset[str] = frozenset()

    def find(self, node: exp.Expr) -> Attribute:
        """Return the attribute that a column node names; `named` describes how names match."""
        if (
            not isinstance(node, exp.Column)
            or extra_clauses(node, "this", "table")
            or not isinstance(node.this, exp.Identifier)
        ):
            raise WorkloadError(
                f"{sql_text(node)} is not the name of an attribute. Write the name of an attribute."
            )
        if node.table and node.table.casefold() not in self.qualifiers:
            raise WorkloadError(
                f"{sql_text(node)} names another table than FROM. Write the column without a table."
            )
        return self.named(node.name)

    def named(self, name: str) -> Attribute:
        """Return the attribute with this name.

        If no attribute has exactly this name, similar names match: names that differ in case, and
        names with underscores in place of characters that need quotes in SQL. Raises WorkloadError
        if no attribute matches, or if several match equally well.
        """
        if name in self.schema:
            return self.schema[name]
        if len(name) > MAX_NAME:
            raise WorkloadError(
                f"A column name has {len(name):,} characters; names of attributes have at most"
                f" {MAX_NAME:,}. Write the name of an attribute."
            )
        # The first rule by which at least one attribute matches decides.
        for rule in (str.casefold, word, lambda text: word(text).casefold()):
            matches = [a for a in self.schema.attributes if rule(a.name) == rule(name)]
            if len(matches) == 1:
                return matches[0]
            if matches:
                raise WorkloadError(
                    f"The column {quote_public(name)} could be the attribute"
                    f" {' or '.join(quote_public(a.name) for a in matches[:5])}. Write the exact "
                    "name in double quotes."
                )
        near = (
            near_matches(name, self.schema.names)
            or f"; the attributes are {', '.join(map(quote_public, self.schema.names[:8]))}"
        )
        raise WorkloadError(
            f"There is no attribute {quote_public(name)}{near}. Write names with characters other"
            " than letters, digits and _ in double quotes, and texts in single quotes."
        )


def sql_text(node: exp.Expr | None, limit: int = 80) -> str:
    """Return the SQL of a syntax node for a message, shortened to ``limit`` characters."""
    if node is None:
        return "nothing"
    try:
        sql = node.sql(dialect="duckdb", comments=False)
    except (ValueError, TypeError, AttributeError, RecursionError):
        sql = type(node).__name__.upper()
    sql = " ".join(sql.split())
    return sql if len(sql) <= limit else f"{sql[: limit - 3]}..."


def _text_literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def extra_clauses(node: exp.Expr, *allowed: str) -> list[str]:
    """Return the names of the clauses that a syntax node has, except for ``allowed``."""
    return [key for key, value in node.args.items() if value and key not in allowed]


def translate_condition(node: exp.Expr, columns: Columns, depth: int = 0) -> Condition:
    """Return the condition on cells that an SQL expression in WHERE or CASE denotes.

    Raises
    ------
    WorkloadError : if the expression is not supported, or is true for only some values of a cell.
    """
    if depth > MAX_DEPTH:
        raise WorkloadError(
            f"The condition is nested more than {MAX_DEPTH} levels deep. Use fewer parentheses."
        )
    if isinstance(node, exp.Paren):
        return translate_condition(node.this, columns, depth + 1)
    if isinstance(node, (exp.And, exp.Or)):
        parts = [
            translate_condition(part, columns, depth + 1) for part in node.flatten(unnest=False)
        ]
        return conditions.all_of(parts) if isinstance(node, exp.And) else conditions.any_of(parts)
    if isinstance(node, exp.Not):
        return conditions.negation(translate_condition(node.this, columns, depth + 1))
    if isinstance(node, exp.Between) and not extra_clauses(node, "this", "low", "high"):
        low, high = node.args["low"], node.args["high"]
        sides = [
            _comparison(node.this, ">=", low, columns),
            _comparison(node.this, "<=", high, columns),
        ]
        return conditions.all_of(sides)
    if (
        isinstance(node, exp.In)
        and not extra_clauses(node, "this", "expressions")
        and node.expressions
    ):
        return conditions.any_of(
            [_comparison(node.this, "=", item, columns) for item in node.expressions]
        )
    if type(node) in _COMPARISON_SIGN:
        return _comparison(node.this, _COMPARISON_SIGN[type(node)], node.expression, columns)
    if isinstance(node, exp.Is) and isinstance(node.expression, exp.Null):
        raise _null_error(node, columns)
    raise WorkloadError(f"{sql_text(node)} is not supported in a condition. {_ALLOWED_TEXT}.")


def _null_error(node: exp.Is, columns: Columns) -> WorkloadError:
    """Return the error for a condition IS NULL, with a condition on the cells to write instead."""
    text, operand = sql_text(node), node.this.unnest()
    attribute = columns.find(operand) if isinstance(operand, exp.Column) else None
    if attribute is None:
        remedy = "Remove the condition"
    elif attribute.missing is None:
        remedy = (
            f"The schema has no cell for missing values of '{attribute.name}'. Remove the condition"
        )
    elif isinstance(attribute.missing, str):
        remedy = (
            f"Compare '{attribute.name}' with {_text_literal(attribute.missing)}, the label of"
            " missing values"
        )
    else:
        remedy = (
            f"Missing values of '{attribute.name}' are replaced by {shortest_text(attribute.missing)}."
            " Compare with the edges of the bin of this number"
        )
    return WorkloadError(f"{text} is not supported. {remedy}.")


def _comparison(left: exp.Expr, sign: str, right: exp.Expr, columns: Columns) -> Condition:
    """Return the condition that a comparison denotes.

    The comparison is of an attribute with a constant, or of two sums of coded attributes.
    """
    left, right = left.unnest(), right.unnest()
    if isinstance(right, exp.Column) and _is_constant(left):
        left, sign, right = right, _MIRRORED_SIGN[sign], left
    if isinstance(left, exp.Column) and _is_constant(right):
        attribute = columns.find(left)
        return conditions.of_cells(
            attribute, _cells_of_comparison(attribute, sign, _constant(right))
        )
    return _arithmetic(left, sign, right, columns)


def _is_constant(node: exp.Expr) -> bool:
    return _is_date(node) or isinstance(
        node.this.unnest() if isinstance(node, exp.Neg) else node, exp.Literal
    )


def _is_date(node: exp.Expr) -> bool:
    """Return whether an expression is a date such as DATE '2024-01-01'."""
    return (
        isinstance(node, exp.Cast)
        and node.to.is_type(exp.DataType.Type.DATE)
        and isinstance(node.this, exp.Literal)
        and bool(node.this.args.get("is_string"))
    )


def _constant(node: exp.Expr) -> str | int | float:
    """Return the value of a constant node: a number, a text, or the text of a date."""
    if _is_date(node):
        return str(node.this.name)
    if isinstance(node, exp.Neg):
        inner = _constant(node.this.unnest())
        if isinstance(inner, str):
            raise WorkloadError(f"{sql_text(node)} is not a number. Remove the sign or the quotes.")
        return -inner
    if node.args.get("is_string"):
        return node.name
    try:
        value = float(node.name)
        is_integer = node.name.isascii() and node.name.isdigit() and value <= MAX_NUMBER
        if math.isfinite(value):
            return int(node.name) if is_integer else value
    except ValueError:
        pass
    raise WorkloadError(
        f"{sql_text(node)} is not a finite decimal number. Write a number such as 20 or 1.5."
    )


def _cells_of_comparison(attribute: Attribute, sign: str, constant: str | int | float) -> Inside:
    """Return the mask of the cells in which a comparison with a constant is true."""
    if attribute.labels is not None:
        if not isinstance(constant, str):
            raise WorkloadError(
                f"'{attribute.name}' has labels, but {constant} is a number. Compare it with a"
                f" label in single quotes, such as {_text_literal(attribute.labels[0])}."
            )
        if sign not in ("=", "<>"):
            raise WorkloadError(
                f"The labels of '{attribute.name}' have no order, so {sign} is undefined. Use =, <>"
                " or IN."
            )
        if constant not in attribute.labels:
            near = (
                near_matches(constant, attribute.labels)
                or f"; the first ones are {', '.join(map(quote_public, attribute.labels[:6]))}"
            )
            raise WorkloadError(
                f"'{attribute.name}' has no label {quote_public(constant)}{near}. Write a label"
                " with the same case and spaces."
            )
        is_equal = np.array([label == constant for label in attribute.labels])
        return is_equal if sign == "=" else ~is_equal
    if attribute.is_dated:
        return _cells_of_dates(attribute, sign, constant)
    if isinstance(constant, str):
        raise WorkloadError(
            f"'{attribute.name}' has numbers, but {quote_public(constant)} is a text. Write a"
            " number without quotes."
        )
    if attribute.edges is None:
        compare = {
            "=": operator.eq,
            "<>": operator.ne,
            "<": operator.lt,
            "<=": operator.le,
            ">": operator.gt,
            ">=": operator.ge,
        }[sign]
        return np.asarray(compare(np.arange(attribute.size), constant))
    inside, cut = _binned(attribute, sign, float(constant), attribute.integer)
    if len(cut):
        # The error proposes ``integer=True`` if this option makes the comparison exact and the
        # attribute can have the option, which requires integer edges.
        has_integer_edges = all(map(float.is_integer, attribute.edges))
        exact_for_integers = (
            not attribute.integer
            and has_integer_edges
            and not len(_binned(attribute, sign, float(constant), integer=True)[1])
        )
        raise _cut_error(attribute, sign, float(constant), int(cut[0]), exact_for_integers)
    return inside


def _cells_of_dates(attribute: Attribute, sign: str, constant: str | int | float) -> Inside:
    """Return the mask of the cells of dates in which a comparison with a constant is true."""
    if not isinstance(constant, str):
        raise WorkloadError(
            f"'{attribute.name}' has dates, but {constant} is a number. Write a date as DATE"
            f" '{attribute.days(0)[0]}'."
        )
    inside, cut = compared_dates(attribute, sign, constant, clip=attribute.clip)
    if len(cut):
        raise WorkloadError(
            f"{attribute.name} {sign} {quote_public(constant)} cuts through"
            f" {cut_text(attribute, int(cut[0]), clip=attribute.clip)}."
        )
    return inside


def _binned(
    attribute: Attribute, sign: str, c: float, integer: bool
) -> tuple[Inside, npt.NDArray[np.intp]]:
    """Evaluate a comparison of a binned attribute with the number ``c``.

    If ``integer`` is True, all values are taken to be integers.

    Returns
    -------
    inside : mask of the bins in which all values satisfy the comparison, shape (size,).
    cut : positions of the bins in which some values satisfy the comparison and others do not.
    """
    edges = np.array(attribute.edges)
    low, high = edges[:-1].copy(), edges[1:].copy()
    if attribute.clip:
        # The first and the last bin also count the values outside the edges.
        low[0], high[-1] = -math.inf, math.inf
    # All bins except the last exclude their upper edge. A bin of integers includes its last
    # integer, so ``high`` becomes this integer.
    is_open = np.arange(attribute.size) < attribute.size - 1
    if integer:
        high = np.where(is_open, high - 1, high)
        is_open = np.zeros(attribute.size, dtype=bool)
    # The masks are for =, < and <=; the other three comparisons are their negations.
    if sign in ("=", "<>"):
        all_satisfy = (low == c) & (high == c)
        none_satisfy = (c < low) | (high < c) | (is_open & (high == c))
        # No integer equals a number with a fraction.
        none_satisfy |= integer and not c.is_integer()
    elif sign in ("<", ">="):
        all_satisfy, none_satisfy = (high < c) | (is_open & (high == c)), low >= c
    else:
        all_satisfy, none_satisfy = high <= c, low > c
    inside = none_satisfy if sign in ("<>", ">", ">=") else all_satisfy
    return inside, np.flatnonzero(~(all_satisfy | none_satisfy))


def _cut_error(
    attribute: Attribute, sign: str, constant: float, cell: int, exact_for_integers: bool
) -> WorkloadError:
    """Return the error for a comparison that is true for only some values of the bin ``cell``.

    The message proposes comparisons with the edges of the bin. If ``exact_for_integers`` is True,
    it also proposes to declare in the schema that the values are integers, so that the comparison
    is exact.
    """
    name, edges, clip = attribute.name, attribute.edges, attribute.clip
    assert edges is not None
    low, high = shortest_text(edges[cell]), shortest_text(edges[cell + 1])
    is_first, is_last = cell == 0, cell == attribute.size - 1
    # ``exact`` lists comparisons with the edges of the bin. Comparisons that would also cut a bin,
    # or that are true for no record, are left out.
    if sign in ("<", "<="):
        exact = [] if is_first else [f"{name} < {low}"]
        if not is_last:
            exact.append(f"{name} < {high}")
        elif not clip:
            exact.append(f"{name} <= {high}")
        condition = " or ".join(exact)
    elif sign in (">", ">="):
        exact = [] if is_first and clip else [f"{name} >= {low}"]
        if not is_last:
            exact.append(f"{name} >= {high}")
        condition = " or ".join(exact)
    else:
        exact = [] if is_first else [f"{name} >= {low}"]
        if not is_last:
            exact.append(f"{name} < {high}")
        condition = " AND ".join(exact)
        if sign == "<>" and condition:
            condition = f"NOT ({condition})"
    advice = f"write {condition}" if condition else "remove the condition"
    clipped = ", which also has the numbers outside," if clip and (is_first or is_last) else ""
    hint = (
        f", or declare in the schema that the values of {name} are integers"
        if exact_for_integers
        else ""
    )
    return WorkloadError(
        f"{name} {sign} {shortest_text(constant)} cuts through the bin"
        f" {attribute.label(cell)}{clipped} of '{name}'. The nearest edges are {low} and {high}: {advice}{hint}."
    )


def _arithmetic(left: exp.Expr, sign: str, right: exp.Expr, columns: Columns) -> Condition:
    """Return the condition that a comparison of sums of coded attributes denotes.

    The comparison is exact, because every cell of a coded attribute has a single value.
    """
    operands: dict[str, Attribute] = {}  # filled by `_sum`
    left_text, _ = _sum(left, columns, operands)
    right_text, _ = _sum(right, columns, operands)
    comparison = f"{left_text} {_PYTHON_SIGN.get(sign, sign)} {right_text}"
    if not operands:
        raise WorkloadError(
            f"{sql_text(left)} {sign} {sql_text(right)} contains no attribute. Write an attribute "
            "on one side, or remove the comparison."
        )
    if math.prod(a.size for a in operands.values()) > MAX_ARITHMETIC_CELLS:
        raise WorkloadError(
            f"The attributes in {comparison[:80]} have more than {MAX_ARITHMETIC_CELLS:,} cells"
            " together. Use attributes with fewer cells."
        )
    inside = evaluate(comparison, tuple(operands.values())) > 0
    if len(operands) == 1:
        return conditions.of_cells(next(iter(operands.values())), inside)
    # A comparison that is true in all cells or in none needs no predicate on several attributes.
    if inside.all() or not inside.any():
        first = next(iter(operands.values()))
        return conditions.of_cells(first, np.full(first.size, inside.all()))
    return Condition(texts={comparison: tuple(operands)})


def _sum(
    node: exp.Expr, columns: Columns, operands: dict[str, Attribute], depth: int = 0
) -> tuple[str, float]:
    """Return the predicate text of a sum or product, and a bound on its absolute value.

    The bound must be at most `MAX_NUMBER`, so that floats compute the sum exactly. The attributes
    in the sum are added to ``operands``. ``depth`` is the nesting depth of the node in the sum.
    """
    if depth > MAX_DEPTH:
        raise WorkloadError(
            f"A sum has more than {MAX_DEPTH} nested operations. Use fewer terms or parentheses."
        )
    if isinstance(node, exp.Paren):
        inner, bound = _sum(node.this, columns, operands, depth + 1)
        return f"({inner})", bound
    if isinstance(node, exp.Column):
        attribute = columns.find(node)
        if not attribute.is_coded:
            if attribute.labels is not None:
                what = "labels"
            elif attribute.edges is not None:
                what = "bins"
            else:
                what = "dates"
            raise WorkloadError(
                f"'{attribute.name}' has {what} instead of codes, so sums and comparisons with"
                f" other attributes are not possible. Compare '{attribute.name}' with constants;"
                " write texts in single quotes."
            )
        operands[attribute.name] = attribute
        return word(attribute.name), float(attribute.size)
    if isinstance(node, exp.Literal) and not node.is_string:
        value = _constant(node)
        if depth and not isinstance(value, int):
            raise WorkloadError(
                f"The number {node.name[:40]} in a sum is not a whole number, so the sum could be"
                " rounded. Use whole numbers."
            )
        return repr(value), abs(float(value))
    if isinstance(node, exp.Neg):
        inner, bound = _sum(node.this, columns, operands, depth + 1)
        return f"-{inner}", bound
    if isinstance(node, exp.Abs) and not extra_clauses(node, "this"):
        inner, bound = _sum(node.this.unnest(), columns, operands, depth + 1)
        return f"abs({inner})", bound
    signs: dict[type[exp.Expr], str] = {exp.Add: "+", exp.Sub: "-", exp.Mul: "*"}
    if type(node) not in signs or extra_clauses(node, "this", "expression"):
        raise WorkloadError(
            f"{sql_text(node)} is not supported in a comparison. {_ALLOWED_TEXT}. Sums, products"
            " and ABS of attributes with codes 0, 1, ... (without labels, edges or dates) can be"
            " compared, too."
        )
    left, left_bound = _sum(node.this, columns, operands, depth + 1)
    right, right_bound = _sum(node.expression, columns, operands, depth + 1)
    is_product = isinstance(node, exp.Mul)
    bound = left_bound * right_bound if is_product else left_bound + right_bound
    if bound > MAX_NUMBER:
        raise WorkloadError(
            f"{sql_text(node)} can be larger than {MAX_NUMBER:,}, so it would be rounded. Use "
            "smaller numbers."
        )
    return f"{left} {signs[type(node)]} {right}", bound


MAX_SETS = 5_000  # attribute sets of a GROUP BY clause
MAX_BANDS = 2_000  # conditions of a CASE expression


@dataclass(frozen=True, kw_only=True)
class Grouping:
    """Interpreter of the GROUP BY clause of one statement.

    Attributes
    ----------
    columns : lookup of attributes by column names.
    items : expressions of SELECT in order; a number in GROUP BY refers to one of them.
    aliases : lower-case alias -> expression of SELECT.
    bands : attribute -> bands of its CASE, one mask of shape (size,) per band. A band is the set of
        cells with the same result. The method `sets` fills this mapping.
    cases : attribute -> SQL of its CASE, or "" if the attribute is grouped by its cells. The method
        `sets` fills this mapping.
    """

    columns: Columns
    items: Sequence[exp.Expr]
    aliases: Mapping[str, exp.Expr]
    bands: dict[str, list[Inside]] = field(default_factory=dict)
    cases: dict[str, str] = field(default_factory=dict)

    def sets(self, group: exp.Group | None) -> list[tuple[str, ...]]:
        """Return the different attribute sets by which a GROUP BY clause groups.

        Each item of the clause has one or, for CUBE, ROLLUP and GROUPING SETS, several attribute
        sets. As in SQL, the sets of all items are combined: "a, CUBE (b)" groups by the sets (a, b)
        and (a). GROUP BY ALL groups by all attributes in SELECT. The result is [()] if ``group`` is
        None.
        """
        if group is None:
            return [()]
        if group.args.get("all") is True and not extra_clauses(group, "all"):
            names = [self._name(i) for i in self.items if isinstance(i, (exp.Column, exp.Case))]
            return [tuple(dict.fromkeys(names))]
        if extra_clauses(group, "expressions"):
            raise WorkloadError(
                "This form of GROUP BY is not supported. Write GROUP BY a, b or GROUP BY CUBE"
                " (a, b)."
            )
        combinations: list[tuple[str, ...]] = [()]
        for item in group.expressions:
            choices = self._sets_of_item(item)
            if len(combinations) * len(choices) > MAX_SETS:
                raise WorkloadError(
                    f"GROUP BY makes more than {MAX_SETS:,} sets of attributes. Use several"
                    " statements with fewer sets."
                )
            combinations = [
                tuple(dict.fromkeys(names + more)) for names in combinations for more in choices
            ]
        # Sets that differ only in the order of their attributes are one set.
        return list({frozenset(names): names for names in combinations}.values())

    def shows(self, item: exp.Expr, grouped: Iterable[str]) -> bool:
        """Return whether GROUP BY contains an expression of SELECT.

        ``grouped`` are the attributes in GROUP BY.
        """
        if isinstance(item, exp.Case):
            return item.sql() in self.cases.values()
        name = self.columns.find(item).name
        return name in grouped and not self.cases.get(name)

    def _sets_of_item(self, node: exp.Expr) -> list[tuple[str, ...]]:
        """Return the attribute sets of one item of GROUP BY."""
        if isinstance(node, exp.GroupingSets):
            return [names for part in node.expressions for names in self._sets_of_item(part)]
        if not isinstance(node, (exp.Cube, exp.Rollup)):
            return [self._attributes_of_item(node)]
        parts = [self._attributes_of_item(part) for part in node.expressions]
        if not parts:
            raise WorkloadError(
                "CUBE and ROLLUP need their attributes in parentheses. Write GROUP BY CUBE (a, b)."
            )
        sizes = range(len(parts), -1, -1)
        if isinstance(node, exp.Rollup):
            return [tuple(itertools.chain(*parts[:size])) for size in sizes]
        if 2 ** len(parts) > MAX_SETS:
            raise WorkloadError(
                f"CUBE of {len(parts)} items makes more than {MAX_SETS:,} groups. Use fewer"
                " attributes."
            )
        return [
            tuple(itertools.chain(*subset))
            for size in sizes
            for subset in itertools.combinations(parts, size)
        ]

    def _attributes_of_item(self, node: exp.Expr) -> tuple[str, ...]:
        """Return the attributes of one item of GROUP BY.

        An item is an attribute, a CASE, the position or the alias of an expression in SELECT, or
        several of these in parentheses.
        """
        node = node.unnest()
        if isinstance(node, exp.Tuple):
            return tuple(
                name for part in node.expressions for name in self._attributes_of_item(part)
            )
        if (
            isinstance(node, exp.Literal)
            and not node.is_string
            and node.name.isdigit()
            and len(node.name) < 6  # Python refuses to read integers of thousands of digits
        ):
            position = int(node.name)
            if not 1 <= position <= len(self.items) or not isinstance(
                self.items[position - 1], (exp.Column, exp.Case)
            ):
                raise WorkloadError(
                    f"GROUP BY {position} does not refer to an attribute in SELECT. Write the name"
                    " of the attribute."
                )
            node = self.items[position - 1]
        if isinstance(node, exp.Column) and not node.table and not self._is_attribute(node):
            node = self.aliases.get(node.name.casefold(), node)
        return (self._name(node),)

    def _is_attribute(self, node: exp.Column) -> bool:
        """Return whether the name of a column is an attribute, so that no alias is looked up.

        Without quotes, upper and lower case are the same.
        """
        names = self.columns.schema.names
        if node.this.quoted:
            return node.name in names
        return node.name.casefold() in (name.casefold() for name in names)

    def _name(self, node: exp.Expr) -> str:
        """Return the name of the attribute of a column or a CASE; store the bands of a CASE."""
        if isinstance(node, exp.Case):
            name, bands = _bands(node, self.columns)
            self.bands[name] = bands
        elif isinstance(node, exp.Column):
            name = self.columns.find(node).name
        else:
            raise WorkloadError(
                f"GROUP BY {sql_text(node)} is not supported. Group by attributes or by CASE."
            )
        case_sql = node.sql() if isinstance(node, exp.Case) else ""
        if self.cases.setdefault(name, case_sql) != case_sql:
            raise WorkloadError(
                f"GROUP BY groups '{name}' both by cells and by CASE, or by two CASE expressions."
                " Write one statement for each of the two."
            )
        return name


def _bands(case: exp.Case, columns: Columns) -> tuple[str, list[Inside]]:
    """Return the name of the attribute of a CASE expression, and the bands of the CASE.

    A band is the mask of the cells with one result of the CASE. Bands are in the order in which
    their results first appear. Bands without cells are left out.
    """
    if len(case.args["ifs"]) > MAX_BANDS:
        raise WorkloadError(
            f"CASE has {len(case.args['ifs']):,} conditions; at most {MAX_BANDS:,} are allowed. Use"
            " fewer conditions."
        )
    if extra_clauses(case, "this", "ifs", "default"):
        raise WorkloadError(
            f"{sql_text(case)} is not supported. Write CASE WHEN age < 18 THEN 'child' ELSE 'adult'"
            " END."
        )
    tests = [(when.this, when.args.get("true")) for when in case.args["ifs"]]
    if case.this is not None:  # CASE age WHEN 18 is CASE WHEN age = 18
        tests = [
            (exp.EQ(this=case.this.copy(), expression=test.copy()), result)
            for test, result in tests
        ]
    branches, name = [], None
    for test, result in tests:
        single = translate_condition(test, columns).single
        if single is None or name not in (None, single.attribute.name):
            raise WorkloadError(
                f"{sql_text(test)} has several attributes, or another attribute than the conditions"
                " before it. Use one attribute in all conditions of a CASE in GROUP BY."
            )
        name = single.attribute.name
        branches.append((single.inside, _result(result)))
    assert name is not None
    # A cell belongs to the first condition that it satisfies, and to ELSE if it satisfies none.
    all_cells = np.ones(columns.schema[name].size, dtype=bool)
    branches.append((all_cells, _result(case.args.get("default"))))
    no_cells = ~all_cells
    remaining = all_cells
    bands: dict[str, Inside] = {}
    for mask, result in branches:
        bands[result] = bands.get(result, no_cells) | (mask & remaining)
        remaining = remaining & ~mask
    return name, [band for band in bands.values() if band.any()]


def _result(node: exp.Expr | None) -> str:
    """Return the SQL of a result of CASE, or "" for NULL; cells with equal results are one band."""
    if node is None or isinstance(node, exp.Null):
        return ""
    if not isinstance(node, exp.Literal):
        raise WorkloadError(
            f"{sql_text(node)} after THEN or ELSE is not supported. Write a text in single quotes."
        )
    return node.sql()


MAX_TEXT = 200_000  # characters of all statements
MAX_TOKENS = 30_000  # words and signs of all statements
MAX_NESTING = 40  # levels of nested parentheses and square brackets
# Exceptions that sqlglot raises on texts that are not SQL.
_PARSER_ERRORS = (
    SqlglotError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
_REFUSED_CLAUSES = {
    "joins": ("JOIN", "The schema is one table; put the columns that you need into it"),
    "laterals": ("LATERAL", "Select from the table of the records"),
    "with_": ("WITH", "Select from the table of the records, with the conditions in WHERE"),
    "distinct": ("DISTINCT", "Counts of distinct values are not linear queries; remove DISTINCT"),
    "having": (
        "HAVING",
        "It depends on the exact counts, which are private; filter the noisy answers afterwards",
    ),
    "limit": ("LIMIT", "All counts of the group are answered; shorten the list afterwards"),
    "offset": ("OFFSET", "All counts of the group are answered; shorten the list afterwards"),
    "order": ("ORDER BY", "Sort the noisy answers afterwards"),
    "qualify": ("QUALIFY", "Filter the noisy answers afterwards"),
    "windows": ("WINDOW", "Use COUNT(*) with GROUP BY"),
    "sample": ("TABLESAMPLE", "The noise is calibrated for all records; remove TABLESAMPLE"),
}


def statements(text: str) -> Iterator[tuple[list[Token], str]]:
    """Yield the pair (tokens of the statement, ``text``) for each statement in a text.

    The positions of the tokens refer to ``text``.

    Raises
    ------
    WorkloadError : if the text is not valid or too long, or has too many tokens or nested brackets.
    """
    if not isinstance(text, str):
        raise WorkloadError(f"The SQL is of type {type(text).__name__}. Give a text.")
    if len(text) > MAX_TEXT:
        raise WorkloadError(
            f"The SQL has {len(text):,} characters; at most {MAX_TEXT:,} are allowed. Split it into"
            " several texts."
        )
    try:
        tokens = Dialect.get_or_raise("duckdb").tokenize(text)
    except _PARSER_ERRORS:
        raise WorkloadError(
            "The SQL is not valid: a quote or a comment is not closed. Close it."
        ) from None
    if len(tokens) > MAX_TOKENS:
        raise WorkloadError(
            f"The SQL has {len(tokens):,} words and signs; at most {MAX_TOKENS:,} are allowed."
            " Split it into several texts."
        )
    opening = (TokenType.L_PAREN, TokenType.L_BRACKET)
    closing = (TokenType.R_PAREN, TokenType.R_BRACKET)
    depth = 0
    statement: list[Token] = []
    for token in tokens:
        depth += (token.token_type in opening) - (token.token_type in closing)
        if depth > MAX_NESTING:
            raise WorkloadError(
                f"The SQL has brackets that are nested more than {MAX_NESTING} levels deep. Use"
                " fewer parentheses or square brackets."
            )
        if token.token_type != TokenType.SEMICOLON:
            statement.append(token)
        elif statement:
            yield statement, text
            statement = []
    if statement:
        yield statement, text


def parse_select(tokens: list[Token], source: str) -> exp.Select:
    """Return the syntax tree of one statement; raise WorkloadError unless it is a SELECT."""
    first = tokens[0].text.upper()[:40]
    if tokens[0].token_type != TokenType.SELECT:
        hint = "Write SELECT a, COUNT(*) FROM t GROUP BY a"
        if first == "WITH":
            hint = "Select from the table of the records, with the conditions of WITH in WHERE"
        raise WorkloadError(
            f"The statement begins with {first!r}, but only SELECT is supported. {hint}."
        )
    try:
        (statement,) = Dialect.get_or_raise("duckdb").parser().parse(tokens, source)
    except SqlglotError as error:
        place = (getattr(error, "errors", None) or [{}])[0]
        location = f" near {place['highlight'][:40]!r}" if place.get("highlight") else ""
        raise WorkloadError(f"The statement is not valid SQL{location}. Correct it.") from None
    except _PARSER_ERRORS:
        raise WorkloadError(
            "The statement is not valid SQL. Write SELECT a, COUNT(*) FROM t GROUP BY a, or "
            "similar."
        ) from None
    if isinstance(statement, exp.SetOperation):
        raise WorkloadError(
            "UNION, INTERSECT and EXCEPT are not supported. Write several SELECTs, separated by ;."
        )
    if not isinstance(statement, exp.Select):
        raise WorkloadError(
            f"{sql_text(statement)} is not a SELECT of counts. Write SELECT a, COUNT(*) FROM t "
            "GROUP BY a, or similar."
        )
    return statement


def check_clauses(statement: exp.Select, table: str | None, *, strict: bool) -> str:
    """Return the name of the table in FROM.

    Parameters
    ----------
    table : required name of the table; None permits any name.
    strict : True if the caller of the translation required the name, False if earlier statements
        use the name. Only the error message depends on ``strict``.

    Raises
    ------
    WorkloadError : if a clause is not supported, or the table has another name.
    """
    for key in extra_clauses(statement, "expressions", "from_", "where", "group"):
        name, advice = _REFUSED_CLAUSES.get(key, (key.strip("_").upper(), "Remove it"))
        raise WorkloadError(f"{name} is not supported. {advice}.")
    source = statement.args["from_"].this if statement.args.get("from_") else None
    if source is None:
        raise WorkloadError("The statement has no FROM. Write FROM and the name of the table.")
    if isinstance(source, exp.Table):
        for key in extra_clauses(source, "this", "db", "catalog", "alias"):
            name, advice = _REFUSED_CLAUSES.get(key, (key.strip("_").upper(), "Remove it"))
            raise WorkloadError(f"{name} is not supported. {advice}.")
    if not isinstance(source, exp.Table) or not isinstance(source.this, exp.Identifier):
        raise WorkloadError(
            f"FROM {sql_text(source)} is not a table name. Write the name of the table; subqueries "
            "and functions are not supported."
        )
    if table is not None and source.name.casefold() != table.casefold():
        expected = "the required table is" if strict else "earlier statements use"
        raise WorkloadError(
            f"The statement uses the table {source.name[:60]!r}, but {expected} {table[:60]!r}. Use"
            " this table in all statements."
        )
    return source.name


def example(schema: Schema) -> str:
    """Return one or two example statements for the attributes of a schema.

    >>> from engine import Attribute
    >>> print(example(Schema([Attribute.of_size("age", 9), Attribute.categorical("pay-grade", ["A", "B"])])))
    SELECT age, "pay-grade", COUNT(*) FROM records GROUP BY age, "pay-grade";
    SELECT "pay-grade", COUNT(*) FROM records WHERE age >= 4 GROUP BY "pay-grade"
    """
    names = [_quoted_name(name) for name in schema]
    grouped = ", ".join(names[:2])
    lines = [f"SELECT {grouped}, COUNT(*) FROM records GROUP BY {grouped}"]
    numeric = [
        attribute
        for attribute in schema.attributes
        if attribute.kind == "numeric" and attribute.size > 1
    ]
    if numeric and len(names) > 1:
        attribute = numeric[0]
        bound = (
            shortest_text(attribute.edges[attribute.size // 2])
            if attribute.edges is not None
            else str(attribute.size // 2)
        )
        if attribute.is_dated:
            bound = f"DATE '{attribute.days(attribute.date_cells // 2)[0]}'"
        compared = names[schema.order[attribute.name]]
        other = next(name for name in names if name != compared)
        lines.append(
            f"SELECT {other}, COUNT(*) FROM records WHERE {compared} >= {bound} GROUP BY {other}"
        )
    return ";\n".join(lines)


def _quoted_name(name: str) -> str:
    """Return a name in SQL, with double quotes unless it is a single plain word."""
    try:
        tokens = Dialect.get_or_raise("duckdb").tokenize(name)
    except _PARSER_ERRORS:
        tokens = []
    is_plain_word = (
        len(tokens) == 1 and tokens[0].token_type == TokenType.VAR and tokens[0].text == name
    )
    return name if is_plain_word else exp.to_identifier(name, quoted=True).sql(dialect="duckdb")


# Limit for the groups of one SQL text.
MAX_GROUPS = 5_000
# Limit for the queries of a group of `_joint_group`, which stores each query as a predicate.
MAX_JOINT_QUERIES = 5_000
# Longer conditions and interpretations are shortened to this number of characters for display.
MAX_READING = 300
# Limit for the entries (queries x cells) of a query matrix that is stored in full.
MAX_QUERY_ENTRIES = 10_000_000
_UNSATISFIABLE_WHERE = (
    "No record can satisfy the condition in WHERE, so all counts are 0. Remove the statement."
)


def workload_from_sql(
    schema: Schema, text: str, table: str | None = None, *, integer_columns: Iterable[str] = ()
) -> Workload:
    """Translate SQL statements to a workload.

    Parameters
    ----------
    text : SELECT statements, separated by ``;``. Each has COUNT(*), one table in FROM, and optional
        WHERE and GROUP BY clauses. GROUP BY can have attributes, CASE, CUBE, ROLLUP and GROUPING
        SETS.
    table : required name of the table. By default any name is accepted, but all statements must use
        the same.
    integer_columns : names of binned attributes whose values are all integers, so that ``age <=
        39`` means ``age < 40``. The schema of the returned workload declares this
        (`Attribute.integer`), and counting then refuses fractions.

    Raises
    ------
    WorkloadError : if the SQL is invalid, is not supported, or is not exact on the cells of the
        schema.

    >>> from engine import Attribute
    >>> schema = Schema([Attribute.numeric("age", [0, 20, 40, 90]), Attribute.categorical("sex", ["F", "M"])])
    >>> workload = workload_from_sql(schema, "SELECT sex, COUNT(*) FROM t WHERE age < 40 GROUP BY sex")
    >>> [workload.describe(i) for i in range(len(workload))]
    ['sex = F and age < 40', 'sex = M and age < 40']
    """
    return _translate(schema, text, table, integer_columns)[0]


def sql_readings(
    schema: Schema, text: str, *, integer_columns: Iterable[str] = ()
) -> list[tuple[str, str]]:
    """Return the conditions in SQL statements with their interpretations on the cells.

    Each entry is a pair of texts: the condition in SQL, and the predicate to which it is
    translated. Long texts are shortened.

    The parameters and errors are those of `workload_from_sql`.

    >>> from engine import Attribute
    >>> schema = Schema([Attribute.numeric("age", [0, 20, 40, 90], integer=True)])
    >>> sql_readings(schema, "SELECT COUNT(*) FROM t WHERE age BETWEEN 20 AND 39")
    [('age BETWEEN 20 AND 39', '20 <= age < 40')]
    """
    return _translate(schema, text, None, integer_columns)[1]


def _translate(
    schema: Schema, text: str, table: str | None, integer_columns: Iterable[str]
) -> tuple[Workload, list[tuple[str, str]]]:
    """Return the results of `workload_from_sql` and of `sql_readings`."""
    check_type("schema", schema, Schema, give="the Schema of the SQL columns", error=WorkloadError)
    schema = _with_integers(schema, integer_columns)
    groups: list[Group] = []
    readings: dict[tuple[str, str], None] = {}
    table_name = table
    for number, (tokens, source) in enumerate(statements(text), 1):
        try:
            select = parse_select(tokens, source)
            table_name = check_clauses(select, table_name, strict=table is not None)
            columns = Columns(schema=schema, qualifiers=_qualifiers(select))
            groups += _groups(select, columns)
            readings |= dict.fromkeys(_readings(select, columns))
        except WorkloadError as error:
            raise WorkloadError(f"Statement {number}: {error}") from None
        except RecursionError:
            raise WorkloadError(
                f"Statement {number} is nested too deeply. Use fewer parentheses."
            ) from None
        if len(groups) > MAX_GROUPS:
            raise WorkloadError(
                f"The SQL makes more than {MAX_GROUPS:,} groups. Use fewer statements, or smaller"
                " CUBE and ROLLUP."
            )
    if not groups:
        raise WorkloadError(
            "There is no SQL yet. Write SELECT age, COUNT(*) FROM t GROUP BY age, or similar."
        )
    return Workload(schema, tuple(groups)), list(readings)


def _with_integers(schema: Schema, names: Iterable[str]) -> Schema:
    """Return the schema with ``integer=True`` for the binned attributes among ``names``."""
    try:
        declared = {schema[name].name for name in names if schema[name].edges is not None}
        return replace(
            schema,
            attributes=tuple(
                replace(a, integer=a.integer or a.name in declared) for a in schema.attributes
            ),
        )
    except (EngineError, TypeError) as error:
        reason = f": {error}" if isinstance(error, EngineError) else ""
        raise WorkloadError(
            f"The list of columns with integer values is invalid{reason}. Give names of attributes"
            " with integer edges."
        ) from None


def _readings(select: exp.Select, columns: Columns) -> Iterable[tuple[str, str]]:
    """Yield one pair (SQL, predicate on cells) per condition of a statement, as shortened texts."""
    where = select.args.get("where")
    nodes = [where.this] if where is not None else []
    for case in select.find_all(exp.Case):
        tests = [when.this for when in case.args["ifs"]]
        nodes += (
            tests
            if case.this is None
            else [exp.EQ(this=case.this, expression=test) for test in tests]
        )
    for node in nodes:
        reading = conditions.text(translate_condition(node, columns))
        shortened = reading if len(reading) <= MAX_READING else f"{reading[: MAX_READING - 3]}..."
        yield sql_text(node, MAX_READING), shortened


def _qualifiers(select: exp.Select) -> frozenset[str]:
    """Return the qualifier permitted before column names: the alias of the table, or its name."""
    source = select.args["from_"].this
    return frozenset({(source.alias or source.name).casefold()})


def _groups(select: exp.Select, columns: Columns) -> list[Group]:
    """Return the query groups of one statement."""
    where = select.args.get("where")
    condition = translate_condition(where.this, columns) if where is not None else Condition()
    if condition.never:
        raise WorkloadError(_UNSATISFIABLE_WHERE)
    items = _selected(select)
    aliases = {item.alias.casefold(): item.unalias() for item in select.expressions if item.alias}
    grouping = Grouping(columns=columns, items=items, aliases=aliases)
    sets = grouping.sets(select.args.get("group"))
    grouped = {name for names in sets for name in names}
    for item in items:
        if not isinstance(item, exp.Count) and not grouping.shows(item, grouped):
            raise WorkloadError(
                f"{sql_text(item)} is in SELECT but not in GROUP BY. Add it to GROUP BY, or remove "
                "it."
            )
    return [_group(columns.schema, names, grouping.bands, condition) for names in sets]


def _selected(select: exp.Select) -> list[exp.Expr]:
    """Return the expressions of SELECT in order: attributes, CASE and exactly one COUNT(*)."""
    items = [item.unalias() for item in select.expressions]
    counts = 0
    for item in items:
        if isinstance(item, exp.Count):
            counts += 1
            # COUNT(1) counts all records, as COUNT(*) does; COUNT('x') is refused.
            constant = isinstance(item.this, exp.Literal) and not item.this.is_string
            if extra_clauses(item, "this", "big_int") or not (
                constant or isinstance(item.this, exp.Star)
            ):
                raise WorkloadError(
                    f"{sql_text(item)} does not count all records. Write COUNT(*), with conditions"
                    " in WHERE."
                )
        elif isinstance(item, exp.AggFunc):
            raise WorkloadError(
                f"{sql_text(item)} is not supported: all queries are counts. Write COUNT(*)."
            )
        elif not isinstance(item, (exp.Column, exp.Case)) or isinstance(item.this, exp.Star):
            raise WorkloadError(
                f"SELECT {sql_text(item)} is not supported. Select attributes and COUNT(*) only."
            )
    if counts != 1:
        raise WorkloadError(
            f"The statement has {counts} COUNT(*). Write SELECT with the attributes and exactly one"
            " COUNT(*)."
        )
    return items


def _group(
    schema: Schema,
    grouped: tuple[str, ...],
    bands: Mapping[str, Sequence[Inside]],
    condition: Condition,
) -> Group:
    """Return the group with one query per combination of cells or bands of the grouped attributes.

    ``bands`` maps each attribute that is grouped by CASE to its bands: one mask of cells per result
    of the CASE. The queries count only records that satisfy ``condition``; combinations that the
    condition excludes are left out.
    """
    names = (*grouped, *(name for name in condition.names if name not in grouped))
    if condition.texts:
        return _joint_group(schema, names, grouped, bands, condition)
    family_of_name: dict[str, str | Family] = conditions.families(condition)
    for name in grouped:
        cells = condition.cells.get(name)
        if name not in bands and (cells is None or cells.inside.all()):
            family_of_name[name] = "marginal"
        else:
            masks = _allowed_masks(schema, name, bands, condition)
            family_of_name[name] = Custom(
                predicates=[
                    conditions.parenthesize(_mask_text(schema, name, mask)) for mask in masks
                ]
            )
    names = tuple(name for name in names if family_of_name[name] != "total" or name in grouped)
    if not names:
        return make_group(schema, (), "total")
    if all(family_of_name[name] == "marginal" for name in names):
        return make_group(schema, names, "marginal")
    return make_group(schema, names, {name: family_of_name[name] for name in names})


def _joint_group(
    schema: Schema,
    names: tuple[str, ...],
    grouped: tuple[str, ...],
    bands: Mapping[str, Sequence[Inside]],
    condition: Condition,
) -> Group:
    """Return the group of a statement whose condition has a predicate on several attributes.

    The query matrix of the group is not a Kronecker product. The group has one query per
    combination of cells or bands of the grouped attributes that the condition allows. Each query is
    a predicate on all attributes.

    Parameters
    ----------
    names : names of the grouped attributes, followed by the other attributes of the condition.
    grouped, bands, condition : as for `_group`.
    """
    sizes = schema.sizes(names)
    _check_size(1, math.prod(sizes))
    masks_by_attribute = [_allowed_masks(schema, name, bands, condition) for name in grouped]
    _check_size(math.prod(map(len, masks_by_attribute)), 1)
    # ``possible`` has one axis per grouped attribute. An entry is 1 if some record with these cells
    # can satisfy the condition. The loop merges the cells of each axis: afterwards the axis has one
    # position per mask, that is per single cell or per result of a CASE.
    possible = evaluate(conditions.text(condition), [schema[name] for name in names])
    possible = possible.reshape(*sizes[: len(grouped)], -1).max(axis=-1)
    for axis, masks in enumerate(masks_by_attribute):
        possible = np.stack([possible.compress(mask, axis).max(axis) for mask in masks], axis)
    positions = np.argwhere(possible)
    if not len(positions):
        raise WorkloadError(_UNSATISFIABLE_WHERE)
    # The text of NOT NOT (age < 18 OR age >= 18) contains no attribute and is true.
    if not names:
        return make_group(schema, (), "total")
    _check_size(len(positions), math.prod(sizes))
    other_cells = {name: cells for name, cells in condition.cells.items() if name not in grouped}
    other_factors = conditions.factors(Condition(cells=other_cells, texts=condition.texts))
    texts = [
        [_mask_text(schema, name, mask) for mask in masks]
        for name, masks in zip(grouped, masks_by_attribute, strict=True)
    ]
    predicates = [
        conditions.conjunction(
            [*(text[i] for text, i in zip(texts, position, strict=True)), *other_factors]
        )
        for position in positions
    ]
    return make_group(schema, names, Custom(predicates=predicates))


def _allowed_masks(
    schema: Schema, name: str, bands: Mapping[str, Sequence[Inside]], condition: Condition
) -> list[npt.NDArray[np.bool_]]:
    """Return one mask of cells per band (result of a CASE) of the attribute ``name``.

    If the attribute is not in ``bands``, there is one mask per cell. The masks contain only cells
    that the condition allows. Empty masks are left out.
    """
    size = schema[name].size
    allowed = condition.cells[name].inside if name in condition.cells else np.ones(size, dtype=bool)
    if name in bands:
        return [band & allowed for band in bands[name] if (band & allowed).any()]
    _check_size(int(allowed.sum()), size)
    return [np.arange(size) == i for i in np.flatnonzero(allowed)]


def _mask_text(schema: Schema, name: str, inside: Inside) -> str:
    return conditions.cells_text(schema[name], inside)


def _check_size(queries: int, cells: int) -> None:
    """Raise WorkloadError if a query matrix with at least so many rows and columns is too large."""
    if queries > MAX_JOINT_QUERIES:
        excess = f"{queries:,} queries, but at most {MAX_JOINT_QUERIES:,}"
    elif queries * cells > MAX_QUERY_ENTRIES:
        excess = (
            f"a matrix (queries x cells) of at least {queries * cells:,} entries, but at most"
            f" {MAX_QUERY_ENTRIES:,}"
        )
    else:
        return
    raise WorkloadError(
        f"The statement with this WHERE makes {excess} are allowed. Remove WHERE, or use attributes"
        " with fewer cells."
    )
