"""Command line: parser, dispatch and printing.

python -m engine plan --schema adult.json --ways 1 2 3 --pcost 1 --out plan.json
python -m engine budget create --ledger office.ledger
python -m engine budget add --ledger office.ledger --dataset survey --rho 1
python -m engine check --plan plan.json --data survey.csv
python -m engine release --plan plan.json --data survey.csv --dataset survey --ledger office.ledger --out a.parquet
python -m engine count --plan plan.json --data north.parquet --out north.counts
python -m engine counts merge north.counts south.counts --out all.counts
python -m engine release --plan plan.json --counts all.counts --dataset survey --ledger office.ledger --out b.parquet
python -m engine publish --ledger office.ledger --dataset survey --whole --records people.csv --out tables.zip
python -m engine verify --ledger office.ledger --package release.zip
"""

from __future__ import annotations

import argparse
import codecs
import errno
import io
import os
import sys

from engine.cli.app import add_studio_command
from engine.cli.ledger import add_keeping_commands
from engine.cli.output import Reply, in_options
from engine.cli.plan import add_planning_commands, add_prediction_commands
from engine.cli.publish import add_asking_commands, add_publishing_commands
from engine.cli.release import add_counting_commands, add_releasing_commands
from engine.cli.two_stage import add_step_commands
from engine.errors import EngineError
from engine.progress import Bar

_USUAL = "Check the path and who may use it."
_FULL = "Make room, or write elsewhere, and ask again: what was released is kept, and is not paid for twice."
_ADVICE: dict[int | None, str] = {errno.ENOSPC: _FULL, errno.EDQUOT: _FULL}
STOPPED, UNREAD = 128 + 2, 128 + 13  # as a shell tells the signals INT and PIPE
SPOKEN = {
    "×": "x",
    "→": "->",
    "≤": "<=",
    "≥": ">=",
    "≠": "!=",
    "≈": "~",
    "±": "+-",
    "−": "-",
    "–": "-",
    "…": "...",
    "·": "*",
}


def main(arguments: list[str] | None = None) -> int:
    """Run one command; return 0, or 1 after printing what was wrong."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_spoken.__name__)
    try:
        given = _parser().parse_args(arguments)
        with Bar() as given.progress:  # what is printed below stands on a line of its own
            reply: Reply = given.run(given)
        if text := reply.json() if given.json else reply.text:
            print(text)
        sys.stdout.flush()
        return reply.code
    except BrokenPipeError:
        # who reads has seen enough; what is left must not be written, and fail, once more at the end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return UNREAD
    except EngineError as error:
        print(f"{type(error).__name__}: {in_options(error)}", file=sys.stderr)
        return 1
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"{where}{error.strerror or type(error).__name__}. {_ADVICE.get(error.errno, _USUAL)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        return STOPPED


def _spoken(error: UnicodeError) -> tuple[str, int]:
    """Write signs that the encoding of a terminal does not have as they are said, and others by their numbers."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    signs = error.object[error.start : error.end]
    return "".join(SPOKEN.get(c) or c.encode("ascii", "backslashreplace").decode() for c in signs), error.end


codecs.register_error(_spoken.__name__, _spoken)


class _Version(argparse.Action):
    """Print the version when it is asked for: to look it up takes longer than to read the arguments."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from engine import __version__

        print(__version__)
        parser.exit()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m engine", description="Differentially private query answering.")
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version")
    commands = parser.add_subparsers(required=True, metavar="command")
    add_planning_commands(commands)
    add_releasing_commands(commands)
    add_counting_commands(commands)
    add_asking_commands(commands)
    add_publishing_commands(commands)
    add_prediction_commands(commands)
    add_step_commands(commands)
    add_keeping_commands(commands)
    add_studio_command(commands)
    return parser
