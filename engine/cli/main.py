"""Command line: parse the arguments, run the command, print its reply or its error.

The module of a command is imported only if the command is called, so that ``--help`` is fast.
"""

from __future__ import annotations

import argparse
import codecs
import errno
import io
import os
import runpy
import sys
from importlib import import_module
from pathlib import Path

from engine.cli.output import (
    EXAMPLES,
    PROGRAM,
    SUMMARIES,
    Commands,
    HelpFormatter,
    Reply,
    in_options,
    sentence,
    whole_number,
)
from engine.errors import EngineError
from engine.progress import Bar

# In a checkout app.py is next to the folder engine. In an installation it is in a separate folder,
# because another package can also have a module app.
_CHECKOUT = Path(__file__).resolve().parents[2]
_APP_FILES = (_CHECKOUT / "dp_query_workbench" / "app.py", _CHECKOUT / "app.py")


def add_studio_command(commands: Commands) -> None:
    """Add the command ``studio``."""
    studio = commands.add_parser(
        "studio",
        help=SUMMARIES["studio"],
        formatter_class=HelpFormatter,
        description=(
            "Serve the workbench until Ctrl-C. The printed address contains the access key. The app"
            " can read and write files below the folder in which it is started, and below the"
            " folders in DP_WORKBENCH_FOLDERS."
        ),
    )
    studio.add_argument(
        "--port",
        "--server.port",
        type=whole_number,
        metavar="NUMBER",
        help="port of the server; by default 8501, or the next free one",
    )
    studio.add_argument(
        "--address",
        "--server.address",
        metavar="IP",
        help="IP address on which to listen; by default 127.0.0.1, this machine only",
    )
    studio.add_argument(
        "--allowed-host",
        "--server.allowedHosts",
        action="append",
        default=[],
        metavar="HOST",
        help=(
            "host name in the browser, if an authenticating proxy serves the workbench; repeatable;"
            " by default none"
        ),
    )
    studio.add_argument(
        "options", nargs="*", metavar="-- OPTIONS", help="further options of `streamlit run`"
    )
    studio.epilog = f"Example: {PROGRAM} {EXAMPLES['studio']}"
    studio.set_defaults(run=_studio, json=False)


def _studio(args: argparse.Namespace) -> Reply:
    """Serve the app with Streamlit until the server is stopped."""
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


_DEFAULT_ADVICE = "Check the path and the permissions of the file and its folder."
_DISK_FULL_ADVICE = (
    "Free disk space or choose another folder, then repeat the command. A release that the ledger"
    " has stored is not charged again."
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
    """Run one command and return its exit code; print an error to standard error.

    Parameters
    ----------
    arguments : command with its options; by default those of this process.
    """
    _answer_completion_request()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_ascii_fallback.__name__)
    try:
        words = sys.argv[1:] if arguments is None else arguments
        args = _parser(words[0] if words else None).parse_args(words)
        # leaving the block ends the line of the progress bar before the reply is printed
        with Bar() as args.progress:
            reply: Reply = args.run(args)
        if text := reply.json() if args.json else reply.text:
            print(text)
        sys.stdout.flush()
        return reply.code
    except BrokenPipeError:
        # The program that reads the output has ended. Without this redirection Python would write
        # the remaining output at exit and fail a second time.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _EXIT_BROKEN_PIPE
    except EngineError as error:
        print(f"{type(error).__name__}: {sentence(in_options(error))}", file=sys.stderr)
        return 1
    except OSError as error:
        prefix = f"{error.filename}: " if error.filename else ""
        advice = _ADVICE_BY_ERRNO.get(error.errno, _DEFAULT_ADVICE)
        print(f"{prefix}{error.strerror or type(error).__name__}. {advice}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        return _EXIT_INTERRUPTED


def _answer_completion_request() -> None:
    """Print completions of a command and exit, if a shell has started this program for them.

    Shells do so only if argcomplete is installed, for example by the extra "completion".
    """
    if "_ARGCOMPLETE" not in os.environ:
        return
    import argcomplete

    words = os.environ.get("COMP_LINE", "").split()
    argcomplete.autocomplete(_parser(words[1] if len(words) > 1 else None))


def _ascii_fallback(error: UnicodeError) -> tuple[str, int]:
    """Error handler for `codecs.register_error` that replaces characters by ASCII texts.

    Returns the replacement of the characters that the terminal cannot encode, and the position
    after these characters.
    """
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
    """Print the version and exit; the module with the version is imported only then."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from engine import __version__

        print(__version__)
        parser.exit()


# Maps the names of some commands to the module and the function that add these commands to the
# parser.
_GROUPS: dict[tuple[str, ...], tuple[str, str]] = {
    ("schema",): ("engine.cli.plan", "add_schema_command"),
    ("plan", "forecast", "compare", "show"): ("engine.cli.plan", "add_plan_commands"),
    ("release", "rehearse", "check"): ("engine.cli.release", "add_release_commands"),
    ("count", "counts"): ("engine.cli.release", "add_count_commands"),
    ("ask",): ("engine.cli.publish", "add_query_commands"),
    ("publish",): ("engine.cli.publish", "add_publish_commands"),
    ("coarse-or-fine",): ("engine.cli.plan", "add_prediction_commands"),
    ("look", "decide", "finish"): ("engine.cli.two_stage", "add_step_commands"),
    ("budget", "verify"): ("engine.cli.ledger", "add_ledger_commands"),
    ("studio",): ("engine.cli.main", "add_studio_command"),
}


def _parser(command: str | None) -> argparse.ArgumentParser:
    """Return the parser of the program.

    Only ``command``, and the commands that are defined together with it, have their options. All
    other commands have only a name and a summary.
    """
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Differentially private query answering.",
        epilog=f"Options of a command: {PROGRAM} COMMAND --help",
        formatter_class=HelpFormatter,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version")
    commands = parser.add_subparsers(required=True, metavar="command")
    for names, (module, function) in _GROUPS.items():
        if command in names:
            getattr(import_module(module), function)(commands)
        else:
            for name in names:
                commands.add_parser(name, help=SUMMARIES[name])
    return parser
