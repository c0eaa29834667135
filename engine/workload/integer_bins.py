"""Bins of integers as texts for people: "0–9" on screen, "0 to 9" in tables that are handed out.

Files that this project reads back keep the notation of `Attribute.label`, "[0, 10)".
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from engine._format import pluralize, shortest_text
from engine.workload.attribute import MAX_INTEGER, Attribute

INTERVAL = r"(?:in|=) \[(-?[\d.e+]+), (-?[\d.e+]+)([)\]])"
# Texts between the first and the last integer of a bin.  Spreadsheets can misread a dash in a CSV
# file: a spreadsheet may guess another encoding, or turn "1-2" into a date.
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


def domain_text(attribute: Attribute) -> str:
    """Return the first two cells, the last cell and the number of cells of an attribute.

    Up to three cells are all listed.  Long texts of cells are cut.

    >>> domain_text(Attribute.numeric("age", range(16, 102, 5), integer=True))
    '16–20, 21–25, … 96–101 (17 bins)'
    >>> domain_text(Attribute.categorical("sex", ["F", "M"]))
    'F, M (2 values)'
    """
    max_length = 40  # characters of a cell

    def cut_text(cell: int) -> str:
        text = cell_text(attribute, cell)
        return text if len(text) <= max_length else f"{text[: max_length - 1]}…"

    is_long = attribute.size > 3
    listed = ", ".join(map(cut_text, (0, 1) if is_long else range(attribute.size)))
    last = f", … {cut_text(attribute.size - 1)}" if is_long else ""
    noun = "value" if attribute.edges is None else "bin"
    return f"{listed}{last} ({pluralize(attribute.size, noun)})"


def could_be_integer(attribute: Attribute) -> bool:
    """Return whether `integer` can be set: all edges are whole numbers, and it is not set yet.

    >>> could_be_integer(Attribute.numeric("age", [0, 18, 120]))
    True
    """
    numbers = [
        *(attribute.edges or ()),
        *([attribute.missing] if isinstance(attribute.missing, (int, float)) else []),
    ]
    return (
        attribute.edges is not None
        and not attribute.integer
        and all(float(number).is_integer() and abs(number) <= MAX_INTEGER for number in numbers)
    )


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

    ``is_closed`` is whether ``high`` itself is included. If ``low`` is negative, `IN_FILES` is used
    in place of ``between``.
    """
    last = high if is_closed else high - 1
    if low == last:
        return shortest_text(low)
    separator = between if low >= 0 else IN_FILES  # a dash next to a minus sign is hard to read
    return f"{shortest_text(low)}{separator}{shortest_text(last)}"
