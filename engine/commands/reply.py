"""What a command answers: words for people, data for programs, and the exit code."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any

import numpy as np

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
