"""Run the campaign on a server of its own and print what crossed."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.isolation.campaign import campaign, environment, left_behind
from tests.server.serving import serving


def main(arguments: list[str] | None = None) -> int:
    """Print every crossing; return 1 if there is one."""
    parser = argparse.ArgumentParser(prog="python -m tests.isolation", description=__doc__)
    parser.add_argument("--actions", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=60_000, help="of each table; the tables are neighbours")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as place:
        folder, kept = Path(place) / "office", Path(place) / "kept"
        folder.mkdir()
        variables, places = environment(kept)
        with serving(folder, DP_WORKBENCH_FOLDERS="", **variables) as server:
            found = campaign(server, folder, places, actions=given.actions, rows=given.rows, seed=given.seed)
        # the server has ended, and so has its private folder
        found += [line for one in places for line in left_behind(one, at_end=True)]
        found += server.strangers()
    print(*found, f"{given.actions} actions in turn, {given.rows:,} rows each: {len(found)} crossings", sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
