"""Names of additional columns in files, distinct from all attribute names."""

from __future__ import annotations

import re
from collections.abc import Iterable

PREFIX = "added_"
RULE = f"Attributes keep their names. A column that is added starts with '{PREFIX}' where an attribute has its name."


def added_columns(names: Iterable[str], attributes: Iterable[str]) -> dict[str, str]:
    """Return the names of additional columns in a file, by their default names.

    A name that equals an attribute name, ignoring case, gets the prefix, repeatedly if needed.

    >>> added_columns(["status", "flag"], ["Status", "age"])
    {'status': 'added_status', 'flag': 'flag'}
    """
    taken = {name.casefold() for name in attributes}
    columns = {}
    for name in names:
        columns[name] = name
        while columns[name].casefold() in taken:
            columns[name] = f"{PREFIX}{columns[name]}"
    return columns


def is_added(column: str, name: str) -> bool:
    """Return whether a column of a file is the one that `added_columns` names for ``name``."""
    return re.fullmatch(f"(?:{PREFIX})*{re.escape(name)}", column) is not None
