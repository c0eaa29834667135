"""Predicate language: parsing of conditions and evaluation on cells.

The language has comparisons of attributes with constants, ``in`` lists, ``and``, ``or``, ``not``,
and comparisons of sums, differences, products and absolute values (``abs``) of coded attributes.
Both = and == test equality, and ≤, ≥ and ≠ are the same as <=, >= and !=. A level of a hierarchy is
compared with the labels of its areas; a level with the name of an attribute cannot be used. The
text is parsed and never executed.
`compared_dates` evaluates comparisons with dates for predicates and for SQL.
"""

from __future__ import annotations

import ast
import datetime
import itertools
import keyword
import math
import operator
import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from engine._format import near_matches, quote_public, shortest_text
from engine.errors import WorkloadError
from engine.workload.attribute import Attribute
from engine.workload.calendar import read_period
from engine.workload.hierarchy import HierarchyLevel


def compared_dates(
    attribute: Attribute, sign: str, constant: str, *, clip: bool = False
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.intp]]:
    """Evaluate a comparison such as day >= 2024-02-10 on the cells of an attribute of dates.

    Parameters
    ----------
    sign : comparison operator of SQL: "=", "<>", "<", "<=", ">" or ">=".
    constant : text of a date or of a longer calendar period, such as "2024-Q2", or the label of the
        cell for missing values. A period denotes all its days. The label of missing values can only
        be compared by = and <>.
    clip : whether the first cell includes all earlier days and the last cell all later days.

    Returns
    -------
    satisfied : mask of the cells in which every day satisfies the comparison, shape (size,). The
        cell for missing values satisfies "<>" with every date, and no other comparison with a date.
    cut : positions of the cells in which some days satisfy the comparison and others do not.

    Raises
    ------
    WorkloadError : if the constant is not a date, a period or the label of the cell for missing
        values, or if this label is compared by another operator than "=" or "<>".

    >>> month = Attribute.dates("day", "2024-01", "2024-04")
    >>> compared_dates(month, ">=", "2024-Q2")
    (array([False, False, False,  True]), array([], dtype=int64))
    >>> compared_dates(month, "<", "2024-02-10")
    (array([ True, False, False, False]), array([1]))
    """
    cell = np.arange(attribute.size)
    if constant == attribute.missing:
        if sign not in ("=", "<>"):
            raise WorkloadError(
                f"{quote_public(constant)} is the label of missing values of '{attribute.name}',"
                f" which has no order, so {sign} is undefined. Compare it by =."
            )
        return (cell == attribute.date_cells) == (sign == "="), np.array([], np.intp)
    period = read_period(constant)
    if period is None:
        raise WorkloadError(
            f"'{attribute.name}' has dates, but {quote_public(constant)} is not a date. Write a "
            f"date such as '{attribute.label(0)}' or '{attribute.days(0)[0]}'."
        )
    if attribute.unit == "day":
        low = attribute.first_cell + np.arange(attribute.date_cells)
        high = low.copy()
    else:
        days = np.array(
            [[day.toordinal() for day in attribute.days(i)] for i in range(attribute.date_cells)]
        )
        low, high = days[:, 0].copy(), days[:, 1].copy()
    if clip:
        low[0], high[-1] = 0, datetime.date.max.toordinal() + 1
    first, last = period.day.toordinal(), period.last_day.toordinal()
    if sign in ("=", "<>"):
        yes, no = (first <= low) & (high <= last), (high < first) | (last < low)
    elif sign in ("<", ">="):
        yes, no = high < first, low >= first
    else:
        yes, no = high <= last, low > last
    cut = np.flatnonzero(~(yes | no))
    satisfied = np.zeros(attribute.size, dtype=bool)
    satisfied[: attribute.date_cells] = no if sign in ("<>", ">", ">=") else yes
    satisfied[attribute.date_cells :] = sign == "<>"
    return satisfied, cut


def cut_text(attribute: Attribute, cell: int, *, clip: bool = False) -> str:
    """Return the end of the message for a comparison that is true for only some days of a cell.

    The text names the cell and its days, and states how to correct the comparison. ``clip`` is
    whether the first and last cell contain all earlier and later days.
    """
    first, last = attribute.days(cell)
    is_last = cell == attribute.date_cells - 1
    days_outside = " and the days outside" if clip and (is_last or not cell) else ""
    # Also with ``clip``, <= is exact with every cell but the last, and >= with the last cell.
    sign = ">=" if is_last else "<="
    return (
        f"the cell {attribute.label(cell)} of '{attribute.name}', which contains {first} to"
        f" {last}{days_outside}; compare with a whole cell, such as"
        f" {sign} '{attribute.label(cell)}'"
    )


MAX_TEXT = 10_000  # characters of a predicate
# Matches quoted texts (group 1), names in backticks (group 2) and signs that are replaced by those
# of Python (group 3): ≤, ≥, ≠, and = unless it is a part of another sign.
_TEXT_NAME_OR_SIGN = re.compile(
    r"""('(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")|`([^`]*)`|([≤≥≠]|(?<![=<>!:])=(?![=>]))"""
)
_PYTHON_SIGN = {"=": "==", "≤": "<=", "≥": ">=", "≠": "!="}
MAX_EXAMPLE_LABEL = 40  # characters of a label in an example
_COMPARISON: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_MIRRORED = {
    operator.lt: operator.gt,
    operator.le: operator.ge,
    operator.gt: operator.lt,
    operator.ge: operator.le,
    operator.eq: operator.eq,
    operator.ne: operator.ne,
}
_SQL_SIGN = {
    operator.lt: "<",
    operator.le: "<=",
    operator.gt: ">",
    operator.ge: ">=",
    operator.eq: "=",
    operator.ne: "<>",
}


def evaluate(text: str, attributes: Sequence[Attribute]) -> npt.NDArray[np.float64]:
    """Return 1 for each cell in which a predicate is true and 0 for all others, shape (cells,).

    Cells are in row-major order, with the last attribute varying fastest. Names that are not Python
    identifiers, such as ``hours-per-week``, are written in backticks or as `word` returns them.

    Raises
    ------
    WorkloadError : if the text is not a predicate on the attributes, or if a comparison is true for
        only some values of a bin.

    >>> evaluate("x + y <= 1", [Attribute.of_size("x", 2), Attribute.of_size("y", 3)]).astype(int)
    array([1, 1, 0, 1, 0, 0])
    >>> evaluate("`pay grade` >= 2", [Attribute.of_size("pay grade", 4)]).astype(int)
    array([0, 0, 1, 1])
    """
    tree = _parse(text, attributes)
    evaluator = _Evaluator(text, attributes)
    try:
        with np.errstate(all="raise"):
            truth = evaluator.truth(tree)
    except (OverflowError, FloatingPointError):
        raise evaluator.refuse(
            "computes with numbers that are too large", "Use smaller numbers"
        ) from None
    except RecursionError:
        raise evaluator.refuse("is nested too deeply", "Use fewer parentheses") from None
    return np.broadcast_to(truth, evaluator.sizes).astype(float).ravel()


def _parse(text: str, attributes: Sequence[Attribute]) -> ast.expr:
    """Return the syntax tree of a predicate.

    The tree contains a Python identifier from `_placeholders` for each name in backticks.
    """
    if len(text) > MAX_TEXT:
        raise WorkloadError(
            f"A predicate has {len(text):,} characters; at most {MAX_TEXT:,} are allowed. Shorten "
            "it, or use several queries."
        )
    terms = _terms(attributes)
    placeholders = dict(zip(terms, _placeholders(list(terms)), strict=True))

    def to_python(match: re.Match[str]) -> str:
        quoted_text, name, sign = match.groups()
        if sign is not None:
            return _PYTHON_SIGN[sign]
        if name is not None and name not in placeholders:
            raise WorkloadError(
                f"The predicate {text[:80]!r} has the unknown name"
                f" {name[:40]!r}{near_matches(name, placeholders)}. Use these names:"
                f" {', '.join(list(placeholders)[:10])}."
            )
        return quoted_text if name is None else f" {placeholders[name]} "

    source = _TEXT_NAME_OR_SIGN.sub(to_python, text)
    try:
        return ast.parse(source.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        backticks = next(
            (
                f", and {_display_name(a)} in backticks"
                for a in attributes
                if word(a.name) != a.name
            ),
            "",
        )
        raise WorkloadError(
            f"The predicate {text[:80]!r} cannot be read. Write it like"
            f' "{example(attributes)}"{backticks}.'
        ) from None


def example(attributes: Sequence[Attribute]) -> str:
    """Return an example of a predicate on at most two of the attributes.

    Attributes whose first label is long are left out. If no attribute remains, the example is on
    age and sex.

    >>> day, sex = Attribute.dates("day", "2024-01", "2024-12"), ["F", "M"]
    >>> example([day, Attribute.categorical("sex", sex), Attribute.of_size("code", 9)])
    "day >= '2024-07' and sex == 'F'"
    """
    comparisons = (_example_comparison(a) for a in attributes)
    first_two = list(itertools.islice(filter(None, comparisons), 2))
    return " and ".join(first_two) or "age >= 30 and sex == 'F'"


def _example_comparison(attribute: Attribute) -> str:
    """Return a comparison of an attribute with a constant; empty if its first label is long."""
    name = _display_name(attribute)
    if attribute.labels is not None:
        label = attribute.labels[0]
        return f"{name} == {label!r}" if len(label) <= MAX_EXAMPLE_LABEL else ""
    if attribute.is_dated:
        return f"{name} >= {attribute.label(attribute.date_cells // 2)!r}"
    if attribute.edges is not None:
        return f"{name} >= {shortest_text(attribute.edges[attribute.size // 2])}"
    return f"{name} >= {attribute.size // 2}"


def _terms(
    attributes: Sequence[Attribute],
) -> dict[str, list[tuple[int, HierarchyLevel | None]]]:
    """Return what each name in a predicate can denote: name -> list of pairs (axis, level).

    The axis is the position of the attribute. The level is None if the name denotes the attribute
    itself. Levels with the name of an attribute are left out.
    """
    terms: dict[str, list[tuple[int, HierarchyLevel | None]]] = {
        a.name: [(axis, None)] for axis, a in enumerate(attributes)
    }
    words = {word(a.name) for a in attributes}
    for axis, a in enumerate(attributes):
        for level in (level for hierarchy in a.hierarchies for level in hierarchy.levels):
            if word(level.name) not in words:
                terms.setdefault(level.name, []).append((axis, level))
    return terms


def _placeholders(names: Sequence[str]) -> list[str]:
    """Return one Python identifier per name.

    The identifiers are longer than every `word(name)`, so that no predicate can contain both.
    """
    longest = max((len(word(name)) for name in names), default=0)
    return [f"_{'_' * longest}{i}" for i in range(len(names))]


def _display_name(attribute: Attribute) -> str:
    """Return an attribute name as it is written in predicates, for messages."""
    name = attribute.name
    if word(name) == name or "`" in name:
        return word(name)
    return f"`{name}`"


def word(name: str) -> str:
    """Return an attribute name as a Python identifier, with underscores for invalid characters.

    >>> word("hours-per-week"), word("class"), word("2nd")
    ('hours_per_week', 'class_', '_2nd')
    """
    # The Python parser normalizes identifiers to NFKC.
    text = "".join(
        c if f"a{c}".isidentifier() else "_" for c in unicodedata.normalize("NFKC", name)
    )
    text = unicodedata.normalize("NFKC", text)
    if keyword.iskeyword(text):
        return f"{text}_"
    return text if text.isidentifier() else f"_{text}"


def named_in(text: str, attributes: Sequence[Attribute]) -> tuple[int, ...]:
    """Return the positions in ``attributes`` of the attributes that a predicate names.

    Raises
    ------
    WorkloadError : if the predicate cannot be parsed, names no attribute, or has an unknown name.

    >>> named_in("x + y <= 1 and not x", [Attribute.of_size(name, 2) for name in "wxy"])
    (1, 2)
    """
    nodes = list(ast.walk(_parse(text, attributes)))
    # The name of a function, such as abs, is not a name of an attribute or level.
    functions = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    used = {node.id for node in nodes if isinstance(node, ast.Name) and id(node) not in functions}
    terms = _terms(attributes)
    # each name occurs as its word, or as the placeholder that `_parse` puts for a name in backticks
    words = [word(name) for name in terms]
    placeholders = _placeholders(list(terms))
    unknown = sorted(used - {*words, *placeholders})
    if unknown or not used:
        problem = (
            f"has the unknown name {unknown[0]!r}{near_matches(unknown[0], words)}"
            if unknown
            else "contains no attribute"
        )
        raise WorkloadError(
            f"The predicate {text[:80]!r} {problem}. Use these names:"
            f' {", ".join(words[:10])}. Example: "{example(attributes)}".'
        )
    axes: set[int] = set()
    for meanings, term_word, placeholder in zip(terms.values(), words, placeholders, strict=True):
        if term_word in used or placeholder in used:
            axes.update(axis for axis, _ in meanings)
    return tuple(sorted(axes))


class _Evaluator:
    """Evaluator of a parsed predicate on all cells at once.

    The methods for nodes of the syntax tree return arrays that broadcast to the shape of the table
    of cells, which has one axis per attribute.
    """

    def __init__(self, text: str, attributes: Sequence[Attribute]) -> None:
        self.text = text
        self.sizes = tuple(a.size for a in attributes)
        self.attributes = attributes
        terms = _terms(attributes)
        self.terms: dict[str, list[tuple[int, HierarchyLevel | None]]] = {}
        for (name, meanings), place in zip(terms.items(), _placeholders(list(terms)), strict=True):
            self.terms[place] = meanings
            self.terms.setdefault(word(name), []).extend(meanings)

    def refuse(self, why: str, remedy: str = "") -> WorkloadError:
        """Return an error with the reason ``why`` the predicate is refused, and what to do.

        An empty ``remedy`` is replaced by a description of the permitted syntax.
        """
        allowed = ", ".join(map(_display_name, self.attributes))
        syntax = (
            "Use and, or, not, in, comparisons with constants, and sums or products of attributes"
            f" with the cells 0, 1, 2, ...; the attributes are {allowed}"
        )
        return WorkloadError(f"The predicate {self.text[:80]!r} {why}. {remedy or syntax}.")

    def truth(self, node: ast.expr) -> Any:
        """Return a mask of the cells in which a condition is true."""
        if isinstance(node, ast.BoolOp):
            parts = [self.truth(v) for v in node.values]
            combine = np.logical_and if isinstance(node.op, ast.And) else np.logical_or
            out = parts[0]
            for part in parts[1:]:
                out = combine(out, part)
            return out
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return np.logical_not(self.truth(node.operand))
        if isinstance(node, ast.Constant) and isinstance(node.value, bool):
            return np.full((1,) * len(self.sizes), node.value)
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            out = np.ones((1,) * len(self.sizes), dtype=bool)
            for op, left, right in zip(node.ops, sides[:-1], sides[1:], strict=True):
                out = np.logical_and(out, self.comparison(op, left, right))
            return out
        raise self.refuse(
            "has a part that is not a condition",
            f'Write comparisons, joined by and, or, not, such as "{example(self.attributes)}"',
        )

    def comparison(self, op: ast.cmpop, left: ast.expr, right: ast.expr) -> Any:
        """Return a mask of the cells in which one comparison, or one test by ``in``, is true."""
        if isinstance(op, (ast.In, ast.NotIn)):
            if not isinstance(right, (ast.List, ast.Tuple, ast.Set)):
                raise self.refuse(
                    "uses 'in' without a list", "Write the values in square brackets after 'in'"
                )
            in_list = np.zeros((1,) * len(self.sizes), dtype=bool)
            for item in right.elts:
                in_list = np.logical_or(in_list, self.comparison(ast.Eq(), left, item))
            return in_list if isinstance(op, ast.In) else np.logical_not(in_list)
        if type(op) not in _COMPARISON:
            raise self.refuse(
                "uses a comparison that is not allowed", "Use ==, !=, <, <=, >, >=, in or not in"
            )
        for attribute_side, other, flipped in ((left, right, False), (right, left, True)):
            if (
                isinstance(attribute_side, ast.Name)
                and (constant := self.constant(other)) is not None
            ):
                return self.against_constant(
                    attribute_side.id, _COMPARISON[type(op)], constant, flipped
                )
        return _COMPARISON[type(op)](self.number(left), self.number(right))

    def constant(self, node: ast.expr) -> Any:
        """Return the number or text of a constant node; None for any other node."""
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, (int, float, str))
            and not isinstance(node.value, bool)
        ):
            if isinstance(node.value, float) and not math.isfinite(node.value):
                raise self.refuse("has a number that is too large", "Use a smaller number")
            return node.value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            inner = self.constant(node.operand)
            return -inner if isinstance(inner, (int, float)) else None
        return None

    def named(self, name: str) -> tuple[int, Attribute, HierarchyLevel | None]:
        """Return the axis, the attribute and the level that a name denotes.

        The level is None if the name denotes the attribute itself.
        """
        if name not in self.terms:
            words = [word(known) for known in _terms(self.attributes)]
            raise self.refuse(
                f"has the unknown name {name[:40]!r}{near_matches(name, words)}",
                f"Use the names {', '.join(words[:10])}, and write labels in quotes",
            )
        if len(self.terms[name]) > 1:
            axis, level = self.terms[name][0]
            term = self.attributes[axis].name if level is None else level.name
            # ``name`` is a placeholder if the predicate has the name in backticks.
            shown = name if name in map(word, _terms(self.attributes)) else term
            raise self.refuse(
                f"has the name {shown!r}, which is ambiguous",
                "Write the exact name in backticks"
                if any(level is None for _, level in self.terms[name])
                else "Rename a level, or use the family 'level' with the name of a hierarchy",
            )
        ((axis, level),) = self.terms[name]
        return axis, self.attributes[axis], level

    def along(self, axis: int, values: npt.ArrayLike) -> npt.NDArray[Any]:
        """Return values of shape (size,) of one attribute, reshaped to vary along its axis only."""
        shape = [1] * len(self.sizes)
        shape[axis] = self.sizes[axis]
        return np.asarray(values).reshape(shape)

    def against_constant(
        self, name: str, compare: Callable[[Any, Any], Any], constant: Any, flipped: bool
    ) -> Any:
        """Return a mask of the cells in which the comparison of a name with a constant is true.

        A comparison that is true for only some values of a bin is refused.

        Parameters
        ----------
        name : name of an attribute or of a level.
        flipped : whether the constant is on the left side of the comparison.
        """
        axis, attribute, level = self.named(name)

        def holds(value: Any) -> Any:
            return compare(constant, value) if flipped else compare(value, constant)

        labels, subject = (
            (attribute.labels, attribute.name) if level is None else (level.labels, level.name)
        )
        if labels is not None:
            if not isinstance(constant, str):
                raise self.refuse(
                    f"compares {subject}, which has labels, with a number",
                    f"Write a label in quotes, such as {labels[0][:40]!r}",
                )
            if compare not in (operator.eq, operator.ne):
                raise self.refuse(
                    f"compares {subject} by {_SQL_SIGN[compare]}, but its labels have no order",
                    "Use ==, != or in",
                )
            if constant not in labels:
                listed = near_matches(constant, labels) or (
                    f"; the first ones are {', '.join(map(quote_public, labels[:6]))}"
                )
                raise self.refuse(
                    f"compares {subject} with {constant[:40]!r}, which is not one of its"
                    f" labels{listed}",
                    "Write a label with the same case and spaces",
                )
            verdicts = np.array([holds(label) for label in labels])
            return self.along(axis, verdicts if level is None else verdicts[level.area_of_cell])
        if attribute.is_dated:
            return self.against_date(
                axis, attribute, _MIRRORED[compare] if flipped else compare, constant
            )
        if isinstance(constant, str):
            raise self.refuse(
                f"compares the numeric attribute {attribute.name} with a text",
                "Write a number without quotes",
            )
        if attribute.edges is None:
            return self.along(axis, holds(np.arange(attribute.size)))
        edges = np.array(attribute.edges)
        low, high = edges[:-1], edges[1:]
        # Each bin is tested at its smallest and largest values and at one value inside.
        # ``below_high`` is the largest value below the upper edge; for an edge of 0 it is
        # subnormal.
        with np.errstate(under="ignore"):
            below_high = np.maximum(low, high - 1) if attribute.integer else np.nextafter(high, low)
        # Only the last bin includes its upper edge.
        largest = np.where(np.arange(attribute.size) == attribute.size - 1, high, below_high)
        # ``middle`` is a value inside each bin: the constant if it is inside the bin, because == is
        # true for no other value.
        middle = np.where((low < constant) & (constant < high), constant, low / 2 + high / 2)
        if attribute.integer:
            middle = np.minimum(np.floor(middle), largest)
        at_values = [np.asarray(holds(values)) for values in (low, middle, below_high, largest)]
        cut = np.flatnonzero(np.any(at_values, axis=0) & ~np.all(at_values, axis=0))
        if len(cut):
            cell = int(cut[0])
            # Only the last bin contains its upper edge, so < with this edge would divide it, too.
            exact = (
                f">= {shortest_text(edges[cell])}"
                if cell == attribute.size - 1
                else f"< {shortest_text(edges[cell + 1])}"
            )
            raise self.refuse(
                f"cuts through the bin {attribute.label(cell)} of {attribute.name}",
                f"Compare with bin edges by < or >=, such as {_display_name(attribute)} {exact}",
            )
        return self.along(axis, at_values[0])

    def against_date(
        self, axis: int, attribute: Attribute, compare: Callable[[Any, Any], Any], constant: Any
    ) -> Any:
        """Return a mask of the cells of dates in which a comparison with a constant is true.

        A comparison that is true for only some days of a cell is refused.
        """
        if not isinstance(constant, str):
            raise self.refuse(
                f"compares {attribute.name}, which has dates, with a number",
                f"Write a date in quotes, such as {attribute.label(0)!r}",
            )
        try:
            inside, cut = compared_dates(attribute, _SQL_SIGN[compare], constant)
        except WorkloadError as error:
            raise WorkloadError(
                f"The predicate {self.text[:80]!r} has an invalid comparison. {error}"
            ) from None
        if len(cut):
            raise WorkloadError(
                f"The predicate {self.text[:80]!r} cuts through {cut_text(attribute, int(cut[0]))}."
            )
        return self.along(axis, inside)

    def number(self, node: ast.expr) -> Any:
        """Return the value in every cell of an arithmetic expression of coded attributes."""
        if (constant := self.constant(node)) is not None and not isinstance(constant, str):
            return constant
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub, ast.Mult)):
            apply = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}[
                type(node.op)
            ]
            return apply(self.number(node.left), self.number(node.right))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self.number(node.operand)
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "abs"
            and len(node.args) == 1
        ):
            return np.abs(self.number(node.args[0]))
        if isinstance(node, ast.Name):
            axis, attribute, level = self.named(node.id)
            if level is not None or not attribute.is_coded:
                name = attribute.name if level is None else level.name
                raise self.refuse(
                    f"calculates with {name}, or compares it with something other than a constant,"
                    " but its cells are not numbered 0, 1, 2 and so on",
                    f"Compare {name} with a constant, and write labels and dates in quotes",
                )
            return self.along(axis, np.arange(attribute.size, dtype=float))
        for attribute in self.attributes:
            if isinstance(node, ast.Constant) and node.value == attribute.name:
                raise self.refuse(
                    f"has the attribute {attribute.name} in quotes",
                    f"Write {_display_name(attribute)} without quotes",
                )
        raise self.refuse("has a part that is neither an attribute nor a number")
