"""Command results and messages: text, JSON data and exit code.

Each command returns a `Reply`. `in_options` translates messages of the engine, which name Python
arguments, into messages that name options of the command line.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any

import numpy as np

from engine._format import translate_arguments

Commands = Any  # the type that add_subparsers returns is private in argparse


@dataclass(frozen=True, kw_only=True)
class Reply:
    """Result of one command, and its only output on standard output.

    Attributes
    ----------
    text : result for people.
    data : result for programs; its keys are exactly those listed in the command's help.
    code : exit code, 0 for success.
    """

    text: str
    data: Mapping[str, Any]
    code: int = 0

    def json(self) -> str:
        """Return the data as one JSON object in ASCII; NaN and infinite numbers become null.

        >>> Reply(text="", data={"rmse": math.inf, "sizes": (np.int64(2), 3)}).json()
        '{"rmse": null, "sizes": [2, 3]}'
        """
        return json.dumps(_to_json_types(self.data), allow_nan=False)


def _to_json_types(value: Any) -> Any:
    """Convert a value to types that JSON can represent."""
    if isinstance(value, Mapping):
        return {str(key): _to_json_types(item) for key, item in value.items()}
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, PathLike):
        return fspath(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_to_json_types(item) for item in value]
    return value


def add_command(
    commands: Commands,
    name: str,
    run: Callable[[argparse.Namespace], Reply],
    text: str,
    *,
    keys: str,
    aliases: Sequence[str] = (),
) -> argparse.ArgumentParser:
    """Add a command with the option ``--json``.

    Parameters
    ----------
    run : function that executes the command.
    text : one-line description.
    keys : keys of ``Reply.data``, separated by spaces, for the help text.
    """
    epilog = (
        f"With --json: one object with the keys {', '.join(keys.split())}. Errors and progress go"
        " to standard error."
    )
    command: argparse.ArgumentParser = commands.add_parser(
        name, help=text, description=f"{text}.", epilog=epilog, aliases=aliases
    )
    command.add_argument(
        "--json", action="store_true", help="print one JSON object for programs instead of text"
    )
    command.set_defaults(run=run)
    return command


# Python argument -> option of the command line, or a description if there is no option
OPTIONS = {
    "SheetFile": "--sheet",
    "attempt": "--attempt {}",
    "centers": "--options centers={}",
    "clip": "clip",
    "count_column": "--count-column {}",
    "doubtful_cv": "--doubtful-cv {}",
    "fit": "--fit {}",
    "ignore": "--ignore {}",
    "integer=True": "--whole",
    "max_records": "--options max_records={}",
    "memory_limit": "the memory limit (of plans: --options memory_limit=BYTES)",
    "missing": "missing",
    "neighbours": "--neighbours {}",
    "on_changed": "--on-changed {}",
    "on_refused=drop": "a smaller file",
    "on_refused": "the treatment of refused rows",
    "other": "other",
    "rehearsal=False": "the command release",
    "rehearsal=True": "the command rehearse",
    "rows_per_person": "--rows-per-person {}",
    "split_by_person=True": "--split-by-person",
    "split_by_person": "--split-by-person",
    "suppressed_cv": "--suppressed-cv {}",
    "time_limit": "--options time_limit={}",
}


def in_options(message: object) -> str:
    """Replace the Python arguments in a message or an error by options of the command line.

    >>> in_options("Plan for rows_per_person=3, or leave out ignore=['n', 'all rows'].")
    "Plan for --rows-per-person 3, or leave out --ignore n 'all rows'."
    """
    return translate_arguments(str(message), OPTIONS, _quoted_values)


def _quoted_values(values: Sequence[str]) -> str:
    return " ".join(text if text == "..." else shlex.quote(text) for text in values)
