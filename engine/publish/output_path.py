"""Output paths: checks before a file is written, and atomic output.

A file is written under a temporary name and renamed when it is complete.  An existing file is
replaced only on request, and only if it is recognized as an earlier output, see `check_target`.

`added_columns` chooses names for the columns of a file that are not attributes.
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
    """Choose names for the columns of a file that are not attributes.

    The result maps each default name in ``names`` to the name in the file.  The two names are
    equal, unless an attribute has the default name (ignoring case).  In this case, `PREFIX` is put
    before the default name, repeatedly until no attribute has the name.

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


def is_added_name(column: str, name: str) -> bool:
    """Return whether `added_columns` can have changed ``name`` to ``column``.

    This is the case if ``column`` is ``name``, possibly with `PREFIX` before it once or repeatedly.
    """
    return re.fullmatch(f"(?:{PREFIX})*{re.escape(name)}", column) is not None


PathText = str | os.PathLike[str]
# A ledger "x" can have the folder "x.results" and the files "x.key" and "x-journal" beside it.
LEDGER_SUFFIXES = (".results", ".key", "-journal")
HEADER = ["attributes", "family", "query", "answer", "std", "low", "high"]
PUBLISHED_HEADER = ["attributes", "family", "query", "published", "error"]  # first columns
# a zip that contains all files of one of these sets is a release package, or a tables package
MEMBERS = ({"certificate.json"}, {"plan.json", "how.json", "tables.csv-metadata.json"})
WORKBOOK_PROPERTIES = "docProps/custom.xml"
SIMULATED_STATUS = ("SIMULATED", "REHEARSAL")  # values in the first column of synthetic records


def check_target(
    path: PathText,
    *,
    keep: Iterable[PathText] = (),
    overwrite: bool | None = False,
    is_replaceable: Callable[[Path], bool] | None = None,
) -> Path:
    """Return the absolute path of an output file, after a check that it may be written.

    Call this before spending budget on the output.

    Parameters
    ----------
    keep : input files, which must not be overwritten: records, plan and ledger.  Files that belong
        to a ledger are protected as well.
    overwrite : whether an existing file may be replaced; None if the caller cannot replace files,
        so that the message does not propose it.
    is_replaceable : function that returns whether an existing file may be replaced if ``overwrite``
        is True; by default only files that look like an output of this project.

    Raises
    ------
    PlanError : the path is a folder or a link, is in a missing folder, is a file in ``keep``,
        belongs to a ledger, or is a file that exists and may not be replaced.

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
            f"{target.parent} is not an existing folder. Create it, or give a file in another"
            " folder."
        )
    for input_path in (Path(k).resolve() for k in keep):
        # the files that belong to the input if it is a ledger; the first is its folder of results
        ledger_files = [input_path.with_name(input_path.name + end) for end in LEDGER_SUFFIXES]
        is_in_results = ledger_files[0] in target.parents
        is_input = target in (input_path, *ledger_files) or _same(target, input_path)
        if is_input or is_in_results:
            raise PlanError(
                f"{requested} is the input file {input_path.name}, or belongs to it, and would be"
                " overwritten. Give the name of another file."
            )
    if target.parent.name.endswith(LEDGER_SUFFIXES[0]) or _belongs_to_ledger(target):
        raise PlanError(
            f"{requested} is a ledger or belongs to one, and ledgers are never overwritten. Give "
            "the name of another file."
        )
    if not os.path.lexists(target):
        return target
    if target.is_symlink():
        raise PlanError(f"{requested} is a link. Give the file that it points to, or another name.")
    if not overwrite:
        advice = "." if overwrite is None else ", or use overwrite=True."
        raise PlanError(
            f"{requested} exists already and is not overwritten. Give another name{advice}"
        )
    if not (is_replaceable or _is_answers)(target):
        raise PlanError(
            f"{requested} is not an earlier output of the same kind as the new file, so it is not"
            " overwritten. Give another name."
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
    """Yield a temporary path; rename its file to ``path`` at the end of the context.

    If the context ends with an exception, the temporary file is removed. The parameters are those
    of `check_target`.

    Raises
    ------
    PlanError : see `check_target`; also if another program created a file with the name ``path``
        during the context.
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

    A ledger is recognized by the names of the files beside it, because opening a ledger locks it.
    """
    possible_ledgers = [target]
    for suffix in LEDGER_SUFFIXES:
        if target.name.endswith(suffix):
            possible_ledgers.append(target.with_name(target.name.removesuffix(suffix)))
    return any(
        ledger.with_name(ledger.name + suffix).exists()
        for ledger in possible_ledgers
        for suffix in LEDGER_SUFFIXES
    )


def _is_answers(target: Path) -> bool:
    """Return whether a file looks like an output of this project.

    The outputs are answers, published tables, synthetic records, and packages of a release or of
    tables.
    """
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
            header, first = next(rows, []), next(rows, None)
        # Synthetic records are recognized by the status in their first row.  A file of 0 records
        # ends after the header.
        if header and is_added_name(header[0], "status"):
            if first is None and len(header) > 1:
                return True
            if first and first[0] in SIMULATED_STATUS:
                return True
        columns = [name for name in header if name != "status"]
        return columns == HEADER or columns[: len(PUBLISHED_HEADER)] == PUBLISHED_HEADER
    return False
