"""Command line: parser, dispatch and printing.

python -m engine plan --schema adult.json --ways 1 2 3 --pcost 1 --out plan.json
python -m engine budget create --ledger office.ledger
python -m engine budget add --ledger office.ledger --dataset survey --rho 1
python -m engine check --plan plan.json --data survey.csv
python -m engine release --plan plan.json --data survey.csv --dataset survey --ledger office.ledger
--out a.parquet python -m engine count --plan plan.json --data north.parquet --out north.counts
python -m engine counts merge north.counts south.counts --out all.counts python -m engine release
--plan plan.json --counts all.counts --dataset survey --ledger office.ledger --out b.parquet python
-m engine publish --ledger office.ledger --dataset survey --whole --records people.csv --out
tables.zip python -m engine verify --ledger office.ledger --package release.zip

Command ``studio``: start the Streamlit app.
"""

from __future__ import annotations

import argparse
import codecs
import errno
import io
import os
import runpy
import sys
from pathlib import Path

from engine.cli.ledger import add_ledger_commands
from engine.cli.output import Commands, Reply, in_options
from engine.cli.plan import add_plan_commands, add_prediction_commands
from engine.cli.publish import add_publish_commands, add_query_commands
from engine.cli.release import add_count_commands, add_release_commands
from engine.cli.two_stage import add_step_commands
from engine.errors import EngineError
from engine.progress import Bar

# In a checkout app.py is next to the engine folder. In an installation it has a folder of its own,
# so that it cannot collide with a module of another package.
_CHECKOUT = Path(__file__).resolve().parents[2]
_APP_FILES = (_CHECKOUT / "dp_query_workbench" / "app.py", _CHECKOUT / "app.py")


def add_studio_command(commands: Commands) -> None:
    """Add the command ``studio``."""
    studio = commands.add_parser(
        "studio",
        help="open the workbench in the browser",
        description=(
            "Serve the workbench until Ctrl-C. The printed address contains the access key. The app"
            " can read and write files below the folder in which it is started, and below the"
            " folders in DP_WORKBENCH_FOLDERS."
        ),
    )
    studio.add_argument(
        "--port", "--server.port", type=int, help="by default 8501, or the next free port"
    )
    studio.add_argument(
        "--address", "--server.address", help="address to listen on; by default this machine only"
    )
    studio.add_argument(
        "--allowed-host",
        "--server.allowedHosts",
        action="append",
        default=[],
        metavar="HOST",
        help="host name in the browser if an authenticating proxy serves the workbench; repeatable",
    )
    studio.add_argument(
        "options", nargs="*", metavar="-- OPTIONS", help="further options of `streamlit run`"
    )
    studio.set_defaults(run=_studio, json=False)


def _studio(args: argparse.Namespace) -> Reply:
    script = next((path for path in _APP_FILES if path.is_file()), _APP_FILES[0])
    settings = {"port": [args.port], "address": [args.address], "allowedHosts": args.allowed_host}
    options = [
        f"--server.{name}={value}"
        for name, values in settings.items()
        for value in values
        if value is not None
    ]
    # Streamlit runs in this process, so that ending the process also ends the server.
    sys.argv = ["streamlit", "run", str(script), *options, *args.options]
    runpy.run_module("streamlit", run_name="__main__", alter_sys=True)
    return Reply(text="", data={})


_DEFAULT_ADVICE = "Check the path and who may use it."
_DISK_FULL_ADVICE = (
    "Free disk space or choose another folder, then repeat the command: the ledger stores the "
    "release, which is not paid for twice."
)
_ADVICE_BY_ERRNO: dict[int | None, str] = {
    errno.ENOSPC: _DISK_FULL_ADVICE,
    errno.EDQUOT: _DISK_FULL_ADVICE,
}
# exit codes of a shell for the signals SIGINT and SIGPIPE
_EXIT_INTERRUPTED, _EXIT_BROKEN_PIPE = 128 + 2, 128 + 13
_ASCII_FORMS = {
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
    """Run one command and return its exit code; an error is printed to standard error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_ascii_fallback.__name__)
    try:
        args = _parser().parse_args(arguments)
        # leaving the block ends the line of the progress bar before the reply is printed
        with Bar() as args.progress:
            reply: Reply = args.run(args)
        if text := reply.json() if args.json else reply.text:
            print(text)
        sys.stdout.flush()
        return reply.code
    except BrokenPipeError:
        # The reader closed the pipe. Without this redirection Python would flush the remaining
        # output at exit and fail a second time.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _EXIT_BROKEN_PIPE
    except EngineError as error:
        print(f"{type(error).__name__}: {in_options(error)}", file=sys.stderr)
        return 1
    except OSError as error:
        prefix = f"{error.filename}: " if error.filename else ""
        advice = _ADVICE_BY_ERRNO.get(error.errno, _DEFAULT_ADVICE)
        print(f"{prefix}{error.strerror or type(error).__name__}. {advice}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        return _EXIT_INTERRUPTED


def _ascii_fallback(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that the terminal cannot encode by ASCII symbols or escapes."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    characters = error.object[error.start : error.end]
    return (
        "".join(
            _ASCII_FORMS.get(c) or c.encode("ascii", "backslashreplace").decode()
            for c in characters
        ),
        error.end,
    )


codecs.register_error(_ascii_fallback.__name__, _ascii_fallback)


class _Version(argparse.Action):
    """Action of ``--version``; the version is looked up lazily, because that is slow."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from engine import __version__

        print(__version__)
        parser.exit()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m engine", description="Differentially private query answering."
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version")
    commands = parser.add_subparsers(required=True, metavar="command")
    add_plan_commands(commands)
    add_release_commands(commands)
    add_count_commands(commands)
    add_query_commands(commands)
    add_publish_commands(commands)
    add_prediction_commands(commands)
    add_step_commands(commands)
    add_ledger_commands(commands)
    add_studio_command(commands)
    return parser
