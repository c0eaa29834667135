"""Which files the app may touch: below the folder that it was started in, and those that a setting
names.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from engine.errors import DataError

VARIABLE = "DP_WORKBENCH_FOLDERS"
STARTED = Path.cwd()
ANSWERS = (".csv", ".parquet", ".zip")


def allowed() -> list[Path]:
    """The folders, resolved."""
    named = [Path(name) for name in os.environ.get(VARIABLE, "").split(os.pathsep) if name]
    return [folder.expanduser().resolve() for folder in (STARTED, *named)]


def is_inside(text: str, kinds: tuple[str, ...] = ()) -> Path:
    """The full path of a file that the app may touch; relative names start where the app was
    started.

    Links above the file are followed before it is asked where it stands; the file itself may still
    be one. Raises: DataError for a hidden file, one elsewhere, or one of another kind than those
    given.
    """
    place = _absolute(text)
    if kinds and not place.name.lower().endswith(kinds):
        raise DataError(
            f"The file {place.name} is of another kind. Give a name that ends with"
            f" {', '.join(kinds)}."
        )
    below = next(
        (place.relative_to(folder) for folder in allowed() if place.is_relative_to(folder)), None
    )
    if below is None:
        names = ", ".join(str(folder) for folder in allowed())
        raise DataError(
            f"The app may touch files below {names} only. The setting {VARIABLE} names more"
            " folders."
        )
    if any(part.startswith(".") for part in below.parts):
        raise DataError(
            "Hidden files and folders are not touched. Give a name without a dot at its start."
        )
    return place


def readable(text: str, kinds: tuple[str, ...] = ()) -> Path:
    """The full path of a file that the app may read, whatever links lead to it; raises as
    `is_inside`.
    """
    place = is_inside(text, kinds)
    if place.is_symlink():
        is_inside(str(_absolute(os.path.realpath(place))), kinds)
    return place


def _absolute(text: str) -> Path:
    """The full path, with the links above the file followed, of a name that a file can have."""
    try:
        path = STARTED / Path(text.strip()).expanduser()
        place = path.parent.resolve() / path.name
        with suppress(FileNotFoundError, NotADirectoryError):
            place.stat()
    except (
        OSError,
        RuntimeError,
        ValueError,
    ):  # too long, a loop of links, no such home, a character of no name
        raise DataError(
            "No file that could be read or written has this name. Give another one."
        ) from None
    return place
