"""Tables that the settings of a machine name, so that people choose a name and nobody types a secret.

The variable DP_WORKBENCH_SOURCES holds the path of a TOML file, a section a table:

    [census]
    address = "postgres://reader:${CENSUS_PASSWORD}@db.example.org/census"
    table = "people"
    database = "public"

``address`` is one that `ibis.connect` takes; ``${NAME}`` stands for a variable of the environment, so that the file
need not hold secrets either (put in as it is: a password with / or # in it must be percent-encoded there).
``database`` is the schema or catalogue of the table, where it is not the usual one.
"""

from __future__ import annotations

import os
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.errors import DataError
from engine.release.records.batches import needed, tried
from engine.release.records.database.grouped import explained
from engine.texts import near_matches, shown

VARIABLE = "DP_WORKBENCH_SOURCES"
KEYS = {"address": True, "table": True, "database": False}  # and whether a section must have them
_PLACE = re.compile(r"\$\{(\w+)\}")


@dataclass(frozen=True, kw_only=True)
class _Source:
    """Where a table is; the address, which may hold a secret, is in no text that is made of it."""

    name: str
    address: str = field(repr=False)
    table: str
    database: str | None = None

    @property
    def what(self) -> str:
        return f"the source {shown(self.name)}"

    def connected(self) -> Any:
        """A connection of Ibis.  Raises: DataError that tells nothing of the address."""
        lost = [name for name in _PLACE.findall(self.address) if name not in os.environ]
        if lost:
            raise DataError(f"{self.what} needs the variable {shown(lost[0])}, which is not set where this was started")
        address = _PLACE.sub(lambda found: os.environ[found[1]], self.address)
        ibis = needed("ibis", self.what)
        return tried(lambda: ibis.connect(address), self.what, explained)


def named_sources() -> tuple[str, ...]:
    """The names that the settings give, in their order; none without settings.  Raises: DataError for wrong ones."""
    return tuple(_settings())


def named_table(name: str) -> Any:
    """The table of a name as one of Ibis, to be counted where it is, by a connection of its own.

    Raises: DataError for a name that the settings lack, and where the database or the table cannot be reached.
    """
    known = _settings()
    if name not in known:
        near = near_matches(name, known) if known else f"; the variable {VARIABLE} names a file of them"
        raise DataError(f"there is no source {shown(name)} in the settings of this machine{near}")
    source = known[name]
    connection = source.connected()
    return tried(lambda: connection.table(source.table, database=source.database), source.what, explained)


def _settings() -> dict[str, _Source]:
    """What the file of the settings says, a section a source."""
    path = os.environ.get(VARIABLE, "").strip()
    if not path:
        return {}
    what = f"the file that {VARIABLE} names"
    read = tried(lambda: tomllib.loads(Path(path).expanduser().read_text(encoding="utf-8")), what)
    found = {}
    for name, section in read.items():
        wrong = not isinstance(section, dict) or not all(isinstance(value, str) for value in section.values())
        if wrong or section.keys() - KEYS or any(must and not section.get(key) for key, must in KEYS.items()):
            raise DataError(
                f"the section {shown(name)} of {what} must hold texts: address, table and, if needed, database"
            )
        found[name] = _Source(name=name, **section)
    return found
