"""Command studio: start the app."""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path

from engine.cli.output import Commands, Reply

# in a checkout the app lies beside the engine; installed it has a folder of its own, so that no other package meets it
_BESIDE = Path(__file__).resolve().parents[2]
_PLACES = (_BESIDE / "dp_query_workbench" / "app.py", _BESIDE / "app.py")


def add_studio_command(commands: Commands) -> None:
    """Add the command ``studio``."""
    studio = commands.add_parser(
        "studio",
        help="open the workbench in the browser",
        description="Serve the workbench until Ctrl-C, under the address that is printed, which has the key in it. The "
        "app may touch files below the folder that it is started in, and below those that DP_WORKBENCH_FOLDERS names.",
    )
    studio.add_argument("--port", "--server.port", type=int, help="by default 8501, or the next one that is free")
    studio.add_argument("--address", "--server.address", help="where to listen; by default this machine alone")
    studio.add_argument(
        "--allowed-host",
        "--server.allowedHosts",
        action="append",
        default=[],
        metavar="HOST",
        help="name that people open, if a proxy with log-in stands before the workbench; may repeat",
    )
    studio.add_argument("options", nargs="*", metavar="-- OPTIONS", help="further options of `streamlit run`")
    studio.set_defaults(run=_studio, json=False)


def _studio(given: argparse.Namespace) -> Reply:
    script = next((place for place in _PLACES if place.is_file()), _PLACES[0])
    named = {"port": [given.port], "address": [given.address], "allowedHosts": given.allowed_host}
    options = [f"--server.{name}={value}" for name, values in named.items() for value in values if value is not None]
    # this very process becomes the server, so that whoever ends it ends the server
    sys.argv = ["streamlit", "run", str(script), *options, *given.options]
    runpy.run_module("streamlit", run_name="__main__", alter_sys=True)
    return Reply(text="", data={})
