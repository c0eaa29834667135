"""Names of columns that are added to the attributes in a file: they never equal the name of an attribute."""

from __future__ import annotations

import re
from collections.abc import Iterable

PREFIX = "added_"
RULE = f"Attributes keep their names. A column that is added starts with '{PREFIX}' where an attribute has its name."


def added_columns(names: Iterable[str], attributes: Iterable[str]) -> dict[str, str]:
    """Return the name in the file of every column that is added beside some attributes.

    A name that equals that of an attribute, ignoring case, gets the prefix, as often as needed.

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
