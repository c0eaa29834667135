"""File access: the start folder and the folders of a setting."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from engine.errors import DataError

VARIABLE = "DP_WORKBENCH_FOLDERS"
STARTED = Path.cwd()
ANSWERS = (".csv", ".parquet", ".zip")


def allowed() -> list[Path]:
    """Folders that the app may read and write, resolved."""
    named = [Path(name) for name in os.environ.get(VARIABLE, "").split(os.pathsep) if name]
    return [folder.expanduser().resolve() for folder in (STARTED, *named)]


def is_inside(text: str, kinds: tuple[str, ...] = ()) -> Path:
    """Full path of a file that the app may access; names are relative to the start folder.

    Links above the file are resolved; the file itself may be a link.

    Raises
    ------
    DataError : hidden files, files outside the folders, other file types.
    """
    place = _absolute(text)
    if kinds and not place.name.lower().endswith(kinds):
        raise DataError(
            f"The file {place.name} has another type. Use a name that ends with {', '.join(kinds)}."
        )
    below = next(
        (place.relative_to(folder) for folder in allowed() if place.is_relative_to(folder)), None
    )
    if below is None:
        names = ", ".join(str(folder) for folder in allowed())
        raise DataError(
            f"The app may only access files in {names}. Set {VARIABLE} to allow more folders."
        )
    if any(part.startswith(".") for part in below.parts):
        raise DataError(
            "Hidden files and folders are not allowed. Use a name without a dot at its start."
        )
    return place


def readable(text: str, kinds: tuple[str, ...] = ()) -> Path:
    """Full path of a file that the app may read, with links resolved; raises as `is_inside`."""
    place = is_inside(text, kinds)
    if place.is_symlink():
        is_inside(str(_absolute(os.path.realpath(place))), kinds)
    return place


def _absolute(text: str) -> Path:
    """Full path with the links above the file resolved; raises DataError for invalid names."""
    try:
        path = STARTED / Path(text.strip()).expanduser()
        place = path.parent.resolve() / path.name
        with suppress(FileNotFoundError, NotADirectoryError):
            place.stat()
    # too long, a loop of links, an unknown home folder, an invalid character
    except (OSError, RuntimeError, ValueError):
        raise DataError("This is not a valid file name. Use another one.") from None
    return place
