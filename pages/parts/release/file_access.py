"""Limits on file access: the start folder of the app, and folders of an environment variable."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import demo_data
from engine.errors import DataError

VARIABLE = "DP_WORKBENCH_FOLDERS"  # environment variable: more folders that the app may access
STARTED = Path.cwd()
ANSWERS = (".csv", ".parquet", ".zip")  # endings of files that the app writes


def allowed_folders() -> list[Path]:
    """Return the folders that the app may read and write, with links resolved."""
    extra_folders = [Path(name) for name in os.environ.get(VARIABLE, "").split(os.pathsep) if name]
    return [folder.expanduser().resolve() for folder in (STARTED, *extra_folders)]


def allowed_path(text: str, kinds: tuple[str, ...] = ()) -> Path:
    """Return the full path of a file that the app may access.

    Links above the file are resolved; the file itself may be a link.

    Parameters
    ----------
    text : path, which may be relative to the folder in which the app was started.
    kinds : file extensions that are allowed; all if empty.

    Raises
    ------
    DataError : the file is hidden, outside the allowed folders, or of another type, or the path is
        not valid.
    """
    place = _absolute(text)
    if kinds and not place.name.lower().endswith(kinds):
        raise DataError(
            f"The file name {place.name[:60]!r} does not end with one of {', '.join(kinds)}. Use a file"
            " name with one of these endings."
        )
    below = next(
        (place.relative_to(folder) for folder in allowed_folders() if place.is_relative_to(folder)),
        None,
    )
    if below is None:
        names = ", ".join(str(folder) for folder in allowed_folders())
        raise DataError(
            f"The file is outside the folders that the app may access: {names}. Use a file in one of"
            f" them, or add its folder to the environment variable {VARIABLE} and restart the app."
        )
    if any(part.startswith(".") for part in below.parts):
        raise DataError(
            "Hidden files and folders are not allowed. Use a path in which no name starts with a dot."
        )
    return place


def readable(text: str, kinds: tuple[str, ...] = ()) -> Path:
    """Return the path of a file that the app may read; raises as `allowed_path`.

    If the file is a link, its target must be allowed too. The public records of the demos are
    always allowed.
    """
    if _absolute(text) in demo_data.tables().values():
        return _absolute(text)
    place = allowed_path(text, kinds)
    if place.is_symlink():
        allowed_path(str(_absolute(os.path.realpath(place))), kinds)
    return place


def _absolute(text: str) -> Path:
    """Return the absolute path of a file, with the links in its folders resolved.

    If the file itself is a link, this link is not followed. Raises DataError if the system does not
    accept the path.
    """
    try:
        path = STARTED / Path(text.strip()).expanduser()
        place = path.parent.resolve() / path.name
        with suppress(FileNotFoundError, NotADirectoryError):
            place.stat()
    # The path is too long, contains an invalid character or an unknown home folder, or its links
    # form a loop.
    except (OSError, RuntimeError, ValueError):
        raise DataError(
            f"The path {text[:60]!r} is not valid, or the app may not read its folder. Use another"
            " path."
        ) from None
    return place
