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
def fresh_file(
    path: str | os.PathLike[str], what: str, *, error: type[EngineError], mode: int = 0o666
) -> Iterator[BinaryIO]:
    """Open a new file that appears under its name only when it is complete.

    An existing file is never replaced.  `mode` are the permissions of the file, before the umask.

    Raises
    ------
    error
        The file exists already, or cannot be written.
    """
    place = Path(path)
    if not place.name:
        raise error(f"{place} is a folder. Give the name of a file in it.")
    draft = place.with_name(f".{place.name}.{secrets.token_hex(8)}")
    try:
        with open(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        # link fails where rename would replace a file, which could be a ledger or records
        os.link(draft, place)
    except FileExistsError:
        raise error(f"{place} is there already, and nothing is overwritten. Give another name.") from None
    except OSError as reason:
        raise error(
            f"The {what} cannot be written to {place}: {reason.strerror}. Give a file in a folder that exists."
        ) from None
    finally:
        draft.unlink(missing_ok=True)
