"""Run the campaign on a new server and print the leaks."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.isolation.campaign import campaign, environment, left_behind
from tests.server.serving import run_server


def main(arguments: list[str] | None = None) -> int:
    """Print the leaks; return 1 if there are any."""
    parser = argparse.ArgumentParser(prog="python -m tests.isolation", description=__doc__)
    parser.add_argument("--actions", type=int, default=1000)
    parser.add_argument(
        "--rows", type=int, default=60_000, help="rows of the first table; the second has one more"
    )
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as place:
        folder, state = Path(place) / "office", Path(place) / "state"
        folder.mkdir()
        variables, places = environment(state)
        with run_server(folder, DP_WORKBENCH_FOLDERS="", **variables) as server:
            leaks = campaign(
                server, folder, places, actions=args.actions, rows=args.rows, seed=args.seed
            )
        # The server has stopped and should have removed its private folder.
        leaks += [line for path in places for line in left_behind(path, at_end=True)]
        leaks += server.outside_hosts()
    print(
        *leaks,
        f"{args.actions} actions in turn, {args.rows:,} rows each: {len(leaks)} leaks",
        sep="\n",
    )
    return 1 if leaks else 0


if __name__ == "__main__":
    sys.exit(main())
