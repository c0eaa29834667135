"""GROUP BY: the sets of attributes that it asks for, and how CASE puts the cells of an attribute together."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from sqlglot import exp

from engine.errors import WorkloadError
from engine.workload.conditions import Inside
from engine.workload.sql.conditions import Columns, extra, read, said

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
