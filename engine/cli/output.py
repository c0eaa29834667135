"""Command results and messages: text, JSON data and exit code.

What a command answers: words for people, data for programs, and the exit code.

Engine messages in the words of the command line: options instead of Python arguments.
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

Commands = Any  # argparse names the type of its subcommands nowhere


@dataclass(frozen=True, kw_only=True)
class Reply:
    """The answer of one command; nothing else is printed on standard output.

    Attributes
    ----------
    text : for people.
    data : the same for programs, under the keys that the command's help names; what it does not name is not there.
    code : of the exit, 0 where all is well.
    """

    text: str
    data: Mapping[str, Any]
    code: int = 0

    def json(self) -> str:
        """Return the data as one JSON object; numbers that are none, and those without bound, are null.

        It is in ASCII, which is the same in the encoding of every terminal.

        >>> Reply(text="", data={"rmse": math.inf, "sizes": (np.int64(2), 3)}).json()
        '{"rmse": null, "sizes": [2, 3]}'
        """
        return json.dumps(_known(self.data), allow_nan=False)


def _known(value: Any) -> Any:
    """Return a value in the types that JSON has."""
    if isinstance(value, Mapping):
        return {str(key): _known(one) for key, one in value.items()}
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, PathLike):
        return fspath(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_known(one) for one in value]
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
    """Add a command with its option ``--json``, whose keys its help names."""
    told = f"With --json: one object with the keys {', '.join(keys.split())}. Errors and progress go to standard error."
    command: argparse.ArgumentParser = commands.add_parser(
        name, help=text, description=f"{text}.", epilog=told, aliases=aliases
    )
    command.add_argument("--json", action="store_true", help="answer for programs: one JSON object and nothing else")
    command.set_defaults(run=run)
    return command


# Python argument -> option; an argument that has no option is described
OPTIONS = {
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
    """Return the text of a message or an error with the options of the command line.

    >>> in_options("Plan for rows_per_person=3, or leave out ignore=['n', 'all rows'].")
    "Plan for --rows-per-person 3, or leave out --ignore n 'all rows'."
    """
    return translate_arguments(str(message), OPTIONS, _values)


def _values(values: Sequence[str]) -> str:
    return " ".join(text if text == "..." else shlex.quote(text) for text in values)
