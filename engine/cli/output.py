"""Output of commands: replies, help texts, and messages that name options.

Each command returns a `Reply`. `in_options` replaces the Python arguments that messages of the
engine name by options of the command line.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import shlex
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any, TypeVar

from engine._format import translate_arguments

_Number = TypeVar("_Number", int, float)
Commands = Any  # the type that add_subparsers returns is private in argparse


@dataclass(frozen=True, kw_only=True)
class Reply:
    """Result of one command: what it prints to standard output, and its exit code.

    Attributes
    ----------
    text : output without ``--json``.
    data : output with ``--json``; its keys are exactly those listed in the help of the command.
    code : exit code, 0 for success.
    """

    text: str
    data: Mapping[str, Any]
    code: int = 0

    def json(self) -> str:
        """Return the data as one JSON object in ASCII; NaN and infinite numbers become null.

        >>> import numpy as np
        >>> Reply(text="", data={"rmse": math.inf, "sizes": (np.int64(2), 3)}).json()
        '{"rmse": null, "sizes": [2, 3]}'
        """
        return json.dumps(_to_json_types(self.data), allow_nan=False)


def _to_json_types(value: Any) -> Any:
    """Return a value in types that JSON has: dict, list, str, int, float, bool or None."""
    if isinstance(value, Mapping):
        return {str(key): _to_json_types(item) for key, item in value.items()}
    # NumPy scalars have a method `item`; an isinstance check would import NumPy
    if not isinstance(value, (str, PathLike, Sequence)) and hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, PathLike):
        return fspath(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_to_json_types(item) for item in value]
    return value


PROGRAM = "dp-query-workbench"
ATTEMPT_HELP = "number of this release, from 1; each one spends budget; by default %(default)s"
CHAIN_HELP = "decide in steps from coarse to fine; by default at once between all"
CONFIDENCE_HELP = "confidence level of the intervals, between 0 and 1; by default %(default)s"

# Maps a command to its description, in the order of the help text.
SUMMARIES = {
    "schema": "add code lists with levels of areas to a schema",
    "plan": "fit a mechanism to a workload",
    "forecast": "predict time and memory of planning",
    "compare": "plan with every mechanism and rank them",
    "show": "print the guarantees of a plan and the error of each group",
    "release": "spend the plan's cost once and write the answers",
    "rehearse": (
        "run a release on simulated or public records; spends nothing and marks every file"
    ),
    "check": "check records against a plan; exact numbers, for the curator's eyes only",
    "count": "count one part of the records for release --counts; spends nothing",
    "counts": "merge the counts of several parts",
    "ask": "answer further queries from a release; costs nothing",
    "publish": "write consistent non-negative tables from a release; costs nothing",
    "coarse-or-fine": ("predict the costs and the decision of a two-stage release; spends nothing"),
    "look": "measure the common part of several plans, before one of them is chosen",
    "decide": "record in the ledger which option is chosen after the first measurement; costs nothing",
    "finish": "measure the remaining part of the chosen option",
    "budget": "create a ledger, add a dataset, change its total, show the remaining budget",
    "verify": "check every row and result of a ledger, or a package",
    "studio": "open the workbench in the browser",
}

# Maps a command to an example, without the name of the program.
EXAMPLES = {
    "schema": "schema --schema survey.json --code-list county counties.csv --out schema.json",
    "plan": "plan --schema adult.json --ways 1 2 --rho 0.5 --out plan.json",
    "forecast": "forecast --schema adult.json --ways 1 2 3",
    "compare": "compare --schema adult.json --ways 1 2 --rho 0.5",
    "show": "show --plan plan.json",
    "release": (
        "release --plan plan.json --data survey.csv --dataset survey --ledger office.ledger"
        " --out answers.csv"
    ),
    "rehearse": "rehearse --plan plan.json --data public.csv --public 'census 2021' --out rehearsal.csv",
    "check": "check --plan plan.json --data survey.csv",
    "count": "count --plan plan.json --data north.csv --out north.counts",
    "counts merge": "counts merge north.counts south.counts --out all.counts",
    "ask": "ask --ledger office.ledger --dataset survey --where 'age >= 30'",
    "publish": ("publish --ledger office.ledger --dataset survey --whole --out tables.zip"),
    "coarse-or-fine": ("coarse-or-fine --schema adult.json --ways 1 2 --rho 0.5 --records 50000"),
    "look": (
        "look --plans coarse.json fine.json --data survey.csv --dataset survey"
        " --ledger office.ledger --out look.csv"
    ),
    "decide": "decide --ledger office.ledger --look KEY",
    "finish": ("finish --look KEY --data survey.csv --ledger office.ledger --out answers.csv"),
    "budget create": "budget create --ledger office.ledger",
    "budget add": "budget add --ledger office.ledger --dataset survey --rho 1",
    "budget status": "budget status --ledger office.ledger",
    "budget change": (
        "budget change --ledger office.ledger --dataset survey --rho 2 --by 'A. Keller'"
        " --reason 'second wave'"
    ),
    "verify": "verify --package release.zip",
    "studio": "studio --port 8501",
}


class HelpFormatter(argparse.HelpFormatter):
    """Formatter of help texts; the usage line lists no optional options."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30, width=shutil.get_terminal_size((100, 50))[0])

    def _format_args(self, action: argparse.Action, default_metavar: str) -> str:
        """Return ``NAME ...`` for an option with several values, not ``NAME [NAME ...]``."""
        if action.nargs == argparse.ONE_OR_MORE and action.option_strings:
            return f"{action.metavar or default_metavar} ..."
        return super()._format_args(action, default_metavar)

    def add_usage(
        self,
        usage: str | None,
        actions: Iterable[argparse.Action],
        groups: Iterable[argparse._MutuallyExclusiveGroup],
        prefix: str | None = None,
    ) -> None:
        shown = [action for action in actions if action.required or not action.option_strings]
        if len(shown) < len(list(actions)):
            shown.append(argparse.Action([], "options", metavar="[options]"))
        super().add_usage(usage, shown, [], prefix)


def add_command(
    commands: Commands,
    name: str,
    run: Callable[[argparse.Namespace], Reply],
    text: str = "",
    *,
    json_keys: str,
    aliases: Sequence[str] = (),
) -> argparse.ArgumentParser:
    """Add a command with the option ``--json`` and an example in its help, and return its parser.

    Parameters
    ----------
    run : function that executes the command.
    text : one-line description; by default that in `SUMMARIES`.
    json_keys : keys of ``Reply.data``, separated by spaces, for the help of ``--json``.
    aliases : other names of the command.
    """
    text = text or SUMMARIES[name]
    command: argparse.ArgumentParser = commands.add_parser(
        name,
        help=text,
        description=f"{text[0].upper()}{text[1:]}.",
        aliases=aliases,
        formatter_class=HelpFormatter,
    )
    path = command.prog.removeprefix(PROGRAM).strip()
    command.epilog = f"Example: {PROGRAM} {EXAMPLES[path]}"
    command.add_argument(
        "--json",
        action="store_true",
        help=f"print one JSON object with the keys {', '.join(json_keys.split())}",
    )
    command.set_defaults(run=run)
    return command


def add_command_group(commands: Commands, name: str) -> Commands:
    """Add a command whose first argument is an action, such as ``budget create``.

    Returns the object to which the actions are added.
    """
    summary = SUMMARIES[name]
    group = commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=f"Options of an action: {PROGRAM} {name} ACTION --help",
        formatter_class=HelpFormatter,
    )
    return group.add_subparsers(required=True, metavar="action")


# Maps a Python argument to an option of the command line, where {} stands for the value, or to
# words if there is no such option.
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
    "objective": "--options objective={}",
    "on_changed": "--on-changed {}",
    "on_refused=drop": "a smaller file",
    "on_refused": "the treatment of refused rows",
    "other": "other",
    "overwrite=True": "--overwrite",
    "rehearsal=False": "the command release",
    "rehearsal=True": "the command rehearse",
    "rows_per_person": "--rows-per-person {}",
    "split_by_person=True": "--split-by-person",
    "split_by_person": "--split-by-person",
    "suppressed_cv": "--suppressed-cv {}",
    "time_limit": "--options time_limit={}",
}


def in_options(message: object) -> str:
    """Return a message with its Python arguments replaced by options of the command line.

    >>> in_options("Plan for rows_per_person=3, or leave out ignore=['n', 'all rows'].")
    "Plan for --rows-per-person 3, or leave out --ignore n 'all rows'."
    """
    return translate_arguments(str(message), OPTIONS, _quoted_values)


_SENTENCE_START = re.compile(
    r"(a|an|attribute|byte|column|line|no|one|some|the|there|these|this|two) "
)


def sentence(message: str) -> str:
    """Return a message that ends with a punctuation mark, by default a full stop.

    The first letter becomes a capital if the first word is one of those that begin messages of the
    engine; any other first word may be a name and is not changed.

    >>> sentence("the file 'a.csv' has no rows; give some"), sentence("a.csv exists.")
    ("The file 'a.csv' has no rows; give some.", 'a.csv exists.')
    """
    if _SENTENCE_START.match(message):
        message = message[0].upper() + message[1:]
    return message if message.endswith((".", "!", "?")) else f"{message}."


def number(text: str) -> float:
    """Convert an argument of the command line to a number; argparse reports an invalid one."""
    return _parsed(text, float, "a number", "0.5")


def whole_number(text: str) -> int:
    """Convert an argument of the command line to an integer; argparse reports an invalid one."""
    return _parsed(text, int, "a whole number", "3")


def _parsed(text: str, parse: Callable[[str], _Number], kind: str, example: str) -> _Number:
    try:
        return parse(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"'{text}' is not {kind}. Give {kind}, such as {example}."
        ) from None


def _quoted_values(values: Sequence[str]) -> str:
    """Return values as words of a shell command, quoted where necessary.

    The text "..." stands for a value in messages, so it is not quoted.
    """
    return " ".join(text if text == "..." else shlex.quote(text) for text in values)
