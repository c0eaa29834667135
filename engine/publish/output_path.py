"""Output paths: checks before a file is written, and atomic output.

A file is written under a temporary name and renamed when it is complete.  An existing file is
replaced only on request, and only if it contains answers that this project wrote.

`added_columns` names the columns that a file has in addition to those of attributes.
"""

from __future__ import annotations

import csv
import os
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from engine._atomic_io import atomic_path
from engine.errors import PlanError

PREFIX = "added_"
RULE = (
    f"Attributes keep their names. A column that is added starts with '{PREFIX}' where an attribute"
    " has its name."
)


def added_columns(names: Iterable[str], attributes: Iterable[str]) -> dict[str, str]:
    """Return a mapping from default names of additional columns to their names in a file.

    A name that equals an attribute name, ignoring case, gets the prefix `PREFIX`, repeatedly if
    needed.

    >>> added_columns(["status", "flag"], ["Status", "age"])
    {'status': 'added_status', 'flag': 'flag'}
    """
    attribute_names = {name.casefold() for name in attributes}
    columns = {}
    for name in names:
        columns[name] = name
        while columns[name].casefold() in attribute_names:
            columns[name] = f"{PREFIX}{columns[name]}"
    return columns


def is_added(column: str, name: str) -> bool:
    """Return whether a column name of a file is ``name``, with any number of prefixes `PREFIX`."""
    return re.fullmatch(f"(?:{PREFIX})*{re.escape(name)}", column) is not None


PathText = str | os.PathLike[str]
LEDGER_SUFFIXES = (".results", ".key", "-journal")  # of the files that belong to a ledger file
HEADER = ["attributes", "family", "query", "answer", "std", "low", "high"]
PUBLISHED_HEADER = ["attributes", "family", "query", "published", "error"]  # first columns
# names of files that together show that a zip is a release package, or a tables package
MEMBERS = ({"certificate.json"}, {"plan.json", "how.json", "tables.csv-metadata.json"})
WORKBOOK_PROPERTIES = "docProps/custom.xml"
SIMULATED_STATUS = ("SIMULATED", "REHEARSAL")  # first column of simulated records


def check_target(
    path: PathText,
    *,
    keep: Iterable[PathText] = (),
    overwrite: bool = False,
    is_replaceable: Callable[[Path], bool] | None = None,
) -> Path:
    """Return the absolute path of a file that may be written; call this before spending budget.

    Parameters
    ----------
    keep : files that must not be overwritten: records, plan, and ledger with the files that belong
        to it.
    overwrite : whether to replace an earlier file of answers.
    is_replaceable : returns whether ``overwrite`` may replace a file; by default files of answers.

    Raises: PlanError if the path is a folder or a link, is in a missing folder, is or belongs to a
    file in ``keep`` or a ledger, or is a file that exists and may not be replaced.

    >>> check_target("engine", keep=[])
    Traceback (most recent call last):
    engine.errors.PlanError: engine is a folder. Give the name of a file.
    """
    requested = Path(path)
    target = requested.parent.resolve() / requested.name
    if target.is_dir():
        raise PlanError(f"{requested} is a folder. Give the name of a file.")
    if not target.parent.is_dir():
        raise PlanError(
            f"The folder {target.parent} does not exist. Create it, or give a file in another folder."
        )
    for input_path in (Path(k).resolve() for k in keep):
        # if the input is a ledger, these files belong to it; the first is its folder of results
        ledger_files = [input_path.with_name(input_path.name + end) for end in LEDGER_SUFFIXES]
        is_in_results = ledger_files[0] in target.parents
        is_input = target in (input_path, *ledger_files) or _same(target, input_path)
        if is_input or is_in_results:
            raise PlanError(
                f"{requested} is, or belongs to, {input_path.name}, which this run reads. Give the"
                " name of another file."
            )
    if target.parent.name.endswith(LEDGER_SUFFIXES[0]) or _belongs_to_ledger(target):
        raise PlanError(
            f"{requested} belongs to a ledger, which is never overwritten. Give the name of another"
            " file."
        )
    if not os.path.lexists(target):
        return target
    if target.is_symlink():
        raise PlanError(f"{requested} is a link. Give the file that it points to, or another name.")
    if not overwrite:
        raise PlanError(
            f"{requested} exists already and is not overwritten. Give another name, or allow"
            " overwriting."
        )
    if not (is_replaceable or _is_answers)(target):
        raise PlanError(
            f"{requested} is not an earlier output of this kind, so it is not overwritten. Give"
            " another name."
        )
    return target


@contextmanager
def new_file(
    path: PathText,
    *,
    keep: Iterable[PathText] = (),
    overwrite: bool = False,
    is_replaceable: Callable[[Path], bool] | None = None,
) -> Iterator[Path]:
    """Yield a temporary path; on success, rename the file to ``path``.

    The temporary file is removed on any exception.

    Raises: PlanError as `check_target`, also if a file with this name was created in the meantime.
    """
    target = check_target(path, keep=keep, overwrite=overwrite, is_replaceable=is_replaceable)
    try:
        with atomic_path(target, overwrite=overwrite) as partial:
            yield partial
    except FileExistsError:
        raise PlanError(
            f"{target} was created by another program in the meantime and is not overwritten. Give"
            " another name."
        ) from None


def _same(one: Path, other: Path) -> bool:
    with suppress(OSError):
        return os.path.samefile(one, other)
    return False


def _belongs_to_ledger(target: Path) -> bool:
    """Return whether a path is that of a ledger or of a file that belongs to one.

    Decided by names only, because opening a ledger would lock it.
    """
    ledgers = [
        target,
        *(
            target.with_name(target.name.removesuffix(e))
            for e in LEDGER_SUFFIXES
            if target.name.endswith(e)
        ),
    ]
    return any(
        ledger.with_name(ledger.name + suffix).exists()
        for ledger in ledgers
        for suffix in LEDGER_SUFFIXES
    )


def _is_answers(target: Path) -> bool:
    """Return whether a file contains answers, tables or synthetic records that this project wrote."""
    import pyarrow.parquet as pq

    with suppress(OSError, ValueError, zipfile.BadZipFile, csv.Error):
        with open(target, "rb") as file:
            start = file.read(4)
        if start == b"PAR1":
            return b"plan_hash" in (pq.read_schema(target).metadata or {})
        if start[:2] == b"PK":
            with zipfile.ZipFile(target) as archive:
                names = set(archive.namelist())
                if WORKBOOK_PROPERTIES in names:
                    return b"plan_hash" in archive.read(WORKBOOK_PROPERTIES)
                return any(members <= names for members in MEMBERS)
        with open(target, newline="", encoding="utf-8") as text:
            rows = csv.reader(text)
            header, first = next(rows, []), next(rows, [])
        # simulated records; a file without records has only the header
        if (
            header
            and is_added(header[0], "status")
            and (first[0] in SIMULATED_STATUS if first else len(header) > 1)
        ):
            return True
        columns = [name for name in header if name != "status"]
        return columns == HEADER or columns[: len(PUBLISHED_HEADER)] == PUBLISHED_HEADER
    return False
