"""Atomic creation of files."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from engine.errors import EngineError


@contextmanager
def atomic_path(path: Path, *, overwrite: bool) -> Iterator[Path]:
    """Yield a temporary path in the same folder; on success, move the file to ``path``.

    The temporary file is removed on any exception.

    Raises
    ------
    FileExistsError
        The file exists already, and ``overwrite`` is False.
    """
    draft = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}.part")
    try:
        yield draft
        if overwrite:
            os.replace(draft, path)
        else:
            _move_to_new(draft, path)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def atomic_file(
    path: Path, *, overwrite: bool, mode: int = 0o600, sync: bool = True
) -> Iterator[BinaryIO]:
    """Open a file for writing that appears under its name only when it is complete.

    Parameters
    ----------
    mode : permissions of the file, before the umask.
    sync : write the content to the disk before the file gets its name, so that a power cut never
        leaves a file with incomplete content.

    Raises
    ------
    FileExistsError
        The file exists already, and ``overwrite`` is False.
    """
    create = os.O_CREAT | os.O_EXCL | os.O_WRONLY
    with (
        atomic_path(path, overwrite=overwrite) as draft,
        open(os.open(draft, create, mode), "wb") as file,
    ):
        yield file
        file.flush()
        if sync:
            os.fsync(file.fileno())


@contextmanager
def fresh_file(
    path: str | os.PathLike[str], what: str, *, error: type[EngineError], mode: int = 0o666
) -> Iterator[BinaryIO]:
    """Open a new file for writing that appears under its name only when it is complete.

    Parameters
    ----------
    what : noun for the content in messages, such as "plan".
    error : type of the exception if the file exists already or cannot be written.
    mode : permissions of the file, before the umask.
    """
    target = Path(path)
    if not target.name:
        raise error(f"{target} is a folder. Give the name of a file in it.")
    try:
        with atomic_file(target, overwrite=False, mode=mode) as file:
            yield file
    except FileExistsError:
        raise error(
            f"The file {target} exists already and is not overwritten. Give another name."
        ) from None
    except OSError as reason:
        raise error(
            f"The {what} cannot be written to {target}: {reason.strerror}. Give a file in an"
            " existing folder with free space in which you may write."
        ) from None


def _move_to_new(draft: Path, path: Path) -> None:
    """Give a file its final name; raise FileExistsError if a file with this name exists."""
    try:
        # an existing file could be a ledger or records: os.rename would replace it, os.link fails
        os.link(draft, path)
    except FileExistsError:
        raise
    except OSError:
        # on a file system without hard links, O_EXCL fails if the file exists
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
        os.replace(draft, path)
