"""Print the drafted schema and counts of each file: `python -m tests.cases FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.cases.table import case_text, files


def main(arguments: list[str]) -> int:
    """Print the table of a folder and return the exit code."""
    if len(arguments) != 1 or not Path(arguments[0]).is_dir():
        print(
            "Give one folder with files of records: python -m tests.cases FOLDER", file=sys.stderr
        )
        return 2
    for path in files(Path(arguments[0])):
        print(case_text(path))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
