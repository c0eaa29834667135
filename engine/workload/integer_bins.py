"""Bins of integers as texts for people: "0–9" on screen, "0 to 9" in tables that are handed out.

Files that this project reads back keep the notation of `Attribute.label`, "[0, 10)".
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from engine._format import shortest_text
from engine.workload.attribute import Attribute

INTERVAL = r"(?:in|=) \[(-?[\d.e+]+), (-?[\d.e+]+)([)\]])"
# Texts between the first and the last integer of a bin.  Spreadsheets can misread a dash in a CSV
# file: they may guess another encoding, or turn "1-2" into a date.
ON_SCREEN, IN_FILES = "–", " to "


def cell_text(attribute: Attribute, cell: int, between: str = ON_SCREEN) -> str:
    """Return the text of a cell for people: its label, or "0–9" for a bin of integers.

    ``between`` is the text between the first and the last integer of a bin.

    >>> age = Attribute.numeric("age", [0, 10, 11, 120], integer=True)
    >>> [cell_text(age, cell) for cell in range(3)]
    ['0–9', '10', '11–120']
    >>> cell_text(age, 0, IN_FILES)
    '0 to 9'
    """
    edges = attribute.edges
    if edges is None or not attribute.integer:
        return attribute.label(cell)
    is_closed = cell == attribute.size - 1
    return _integers(edges[cell], edges[cell + 1], between, is_closed=is_closed)


def query_texts(
    attributes: Iterable[Attribute], texts: Iterable[str], between: str = ON_SCREEN
) -> list[str]:
    """Return the texts of queries, with the intervals of integer attributes as "0–9".

    ``between`` is the text between the first and the last integer of an interval.

    >>> age = Attribute.numeric("age", [0, 10, 11, 120], integer=True)
    >>> query_texts([age], ["age in [0, 11)", "age in [10, 11)", "age < 10"])
    ['age in 0–10', 'age = 10', 'age < 10']
    """
    names = [re.escape(a.name) for a in attributes if a.integer]
    if not names:
        return list(texts)
    # The longest name is tried first, because one name can be the end of another one.
    condition = re.compile(
        rf"(?<![^\s(])({'|'.join(sorted(names, key=len, reverse=True))}) {INTERVAL}(?![^\s)])"
    )

    def replaced(match: re.Match[str]) -> str:
        name, low, high, closing = match.groups()
        integers = _integers(float(low), float(high), between, is_closed=closing == "]")
        is_single = integers.removeprefix("-").isdecimal()
        return f"{name} {'=' if is_single else 'in'} {integers}"

    return [condition.sub(replaced, text) for text in texts]


def _integers(low: float, high: float, between: str, *, is_closed: bool) -> str:
    """Return a text such as "0–9" for the integers from ``low`` to ``high``.

    ``is_closed`` is whether ``high`` itself is included. If ``low`` is negative, `IN_FILES` is used in
    place of ``between``.
    """
    last = high if is_closed else high - 1
    if low == last:
        return shortest_text(low)
    separator = between if low >= 0 else IN_FILES  # a dash next to a minus sign is hard to read
    return f"{shortest_text(low)}{separator}{shortest_text(last)}"
