"""Command ``studio``: start the Streamlit app."""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path

from engine.cli.output import Commands, Reply

# In a checkout app.py is next to the engine folder. In an installation it has a folder of its own,
# so that it cannot collide with a module of another package.
_CHECKOUT = Path(__file__).resolve().parents[2]
_APP_FILES = (_CHECKOUT / "dp_query_workbench" / "app.py", _CHECKOUT / "app.py")


def add_studio_command(commands: Commands) -> None:
    """Add the command ``studio``."""
    studio = commands.add_parser(
        "studio",
        help="open the workbench in the browser",
        description="Serve the workbench until Ctrl-C. The printed address contains the access key. "
        "The app can read and write files below the folder in which it is started, and below the "
        "folders in DP_WORKBENCH_FOLDERS.",
    )
    studio.add_argument("--port", "--server.port", type=int, help="by default 8501, or the next free port")
    studio.add_argument("--address", "--server.address", help="address to listen on; by default this machine only")
    studio.add_argument(
        "--allowed-host",
        "--server.allowedHosts",
        action="append",
        default=[],
        metavar="HOST",
        help="host name in the browser if an authenticating proxy serves the workbench; repeatable",
    )
    studio.add_argument("options", nargs="*", metavar="-- OPTIONS", help="further options of `streamlit run`")
    studio.set_defaults(run=_studio, json=False)


def _studio(args: argparse.Namespace) -> Reply:
    script = next((path for path in _APP_FILES if path.is_file()), _APP_FILES[0])
    settings = {"port": [args.port], "address": [args.address], "allowedHosts": args.allowed_host}
    options = [f"--server.{name}={value}" for name, values in settings.items() for value in values if value is not None]
    # Streamlit runs in this process, so that ending the process also ends the server.
    sys.argv = ["streamlit", "run", str(script), *options, *args.options]
    runpy.run_module("streamlit", run_name="__main__", alter_sys=True)
    return Reply(text="", data={})
