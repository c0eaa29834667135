"""Output paths: which files a command may write.

A file is written under a name that nobody has and gets its own name when it is complete.  What stands under that name
already is replaced only when that was asked for, and only if it is an earlier file of answers.
"""

from __future__ import annotations

import csv
import os
import secrets
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow.parquet as pq

from engine.errors import PlanError
from engine.publish.columns import is_added

PathText = str | os.PathLike[str]
BESIDE = (".results", ".key", "-journal")  # what a ledger keeps beside it
HEADER = ["attributes", "family", "query", "answer", "std", "low", "high"]
PUBLISHED = ["attributes", "family", "query", "published", "error"]  # of tables, the first columns
MEMBERS = ({"certificate.json"}, {"plan.json", "how.json", "tables.csv-metadata.json"})  # of a package; of tables
WORKBOOK = "docProps/custom.xml"  # where a workbook says what its writer has told of it
MADE_UP = ("SIMULATED", "REHEARSAL")  # what the first column of simulated records says


def check_target(path: PathText, *, keep: Iterable[PathText] = (), overwrite: bool = False) -> Path:
    """Return the full path of a file that may be written; call it before anything is spent.

    Parameters
    ----------
    keep : files that must stay: the ledger, the records, the plan; a ledger's results are kept with it.
    overwrite : replace an earlier file of answers.

    Raises: PlanError for anything else that is there, a link, or a place without a folder.

    >>> check_target("engine", keep=[])
    Traceback (most recent call last):
    engine.errors.PlanError: engine is a folder. Give the name of a file.
    """
    given = Path(path)
    target = given.parent.resolve() / given.name
    if target.is_dir():
        raise PlanError(f"{given} is a folder. Give the name of a file.")
    if not target.parent.is_dir():
        raise PlanError(f"There is no folder {target.parent}. Make it, or give a file in another one.")
    kept = [Path(k).resolve() for k in keep]
    for place in kept:
        beside = [place, *(place.with_name(place.name + ending) for ending in BESIDE)]
        if target in beside or beside[1] in target.parents or _same(target, place):
            raise PlanError(f"{given} is, or belongs to, {place.name}, which this run needs. Give another file.")
    if target.parent.name.endswith(BESIDE[0]) or _is_kept_by_a_ledger(target):
        raise PlanError(f"{given} belongs to a ledger. Give another file.")
    if not os.path.lexists(target):
        return target
    if target.is_symlink():
        raise PlanError(f"{given} is a link. Give the file itself, or another name.")
    if not overwrite:
        raise PlanError(
            f"{given} is there already, and nothing is overwritten. Give another name, or ask to overwrite."
        )
    if not _is_answers(target):
        raise PlanError(f"{given} is no earlier file of answers, so that it is not overwritten. Give another name.")
    return target


@contextmanager
def new_file(path: PathText, *, keep: Iterable[PathText] = (), overwrite: bool = False) -> Iterator[Path]:
    """Yield an unused path to write to; afterwards the complete file has the name that was asked for.

    On any exception nothing is left behind.  Raises: PlanError as `check_target`, also if a file came up meanwhile.
    """
    target = check_target(path, keep=keep, overwrite=overwrite)
    partial = target.with_name(f".{target.name[:100]}.{secrets.token_hex(8)}.part")
    try:
        yield partial
        if overwrite:
            os.replace(partial, target)
        else:
            _take_name(partial, target)
    finally:
        partial.unlink(missing_ok=True)


def _take_name(partial: Path, target: Path) -> None:
    """Give a file its name unless somebody else has taken it meanwhile."""
    try:
        try:
            os.link(partial, target)
        except FileExistsError:
            raise
        except OSError:  # a file system without links
            os.close(os.open(target, os.O_CREAT | os.O_EXCL))
            os.replace(partial, target)
    except FileExistsError:
        raise PlanError(f"{target} has come up meanwhile, and nothing is overwritten. Give another name.") from None


def _same(one: Path, other: Path) -> bool:
    with suppress(OSError):
        return os.path.samefile(one, other)
    return False


def _is_kept_by_a_ledger(target: Path) -> bool:
    """Whether the name is that of a ledger, or of what one keeps; the file itself must not be opened to find out."""
    homes = [target, *(target.with_name(target.name.removesuffix(e)) for e in BESIDE if target.name.endswith(e))]
    return any(home.with_name(home.name + ending).exists() for home in homes for ending in BESIDE)


def _is_answers(target: Path) -> bool:
    """Whether a file was written by this program, with answers in it."""
    with suppress(OSError, ValueError, zipfile.BadZipFile, csv.Error):
        with open(target, "rb") as file:
            start = file.read(4)
        if start == b"PAR1":
            return b"plan_hash" in (pq.read_schema(target).metadata or {})
        if start[:2] == b"PK":
            with zipfile.ZipFile(target) as archive:
                names = set(archive.namelist())
                if WORKBOOK in names:
                    return b"plan_hash" in archive.read(WORKBOOK)
                return any(members <= names for members in MEMBERS)
        with open(target, newline="", encoding="utf-8") as text:
            rows = csv.reader(text)
            head, first = next(rows, []), next(rows, [])
        # simulated records; a file of no records has its head alone
        if head and is_added(head[0], "status") and (first[0] in MADE_UP if first else len(head) > 1):
            return True
        columns = [name for name in head if name != "status"]
        return columns == HEADER or columns[: len(PUBLISHED)] == PUBLISHED
    return False
