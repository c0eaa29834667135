"""Public records of the demos, for rehearsals and as an example of a file for a release."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import demo_data
from engine.workload import Schema
from pages.parts.shell import python_script


def file_of(schema: Schema) -> Path | None:
    """Return the file with the records of a demo, if ``schema`` is the schema of that demo.

    The result is None for other schemas, and for demos without records.
    """
    name = python_script.demo_name(schema)
    return None if name is None else demo_data.tables().get(name)


@cache
def row_count(file: Path) -> int:
    """Return the number of records in a CSV file with a header and one line per record."""
    with file.open("rb") as lines:
        return sum(1 for _ in lines) - 1
