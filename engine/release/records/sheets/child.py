"""The process in which workbooks are read; run by its path, so that nothing of the project is imported.

Prints pickles: how many sheets there are, where cells are merged ("header", "rows" or ""), and lists of rows, the last
of them empty.  The exit code is `TOO_LARGE` where memory ends.
"""

from __future__ import annotations

import pickle
import sys
from contextlib import suppress
from itertools import islice
from typing import Any

MOST_BYTES = 8_000_000_000  # of addresses; what a sheet may need that is as large as a sheet can be
ROWS = 1_000  # in a list
TOO_LARGE = 3


def _say(value: Any) -> None:
    """Send a value to the process that asked."""
    pickle.dump(value, sys.stdout.buffer)
    sys.stdout.buffer.flush()


def _read(path: str) -> None:
    """Send what the only sheet of a workbook holds."""
    import python_calamine

    book = python_calamine.CalamineWorkbook.from_path(path)
    _say(len(book.sheet_names))
    if len(book.sheet_names) != 1:
        return
    sheet = book.get_sheet_by_index(0)
    first = (sheet.start or (0, 0))[0]
    tops = [top for (top, _), _ in sheet.merged_cell_ranges or ()]
    _say("" if not tops else "header" if min(tops) <= first else "rows")
    rows = iter(sheet.iter_rows())
    while held := list(islice(rows, ROWS)):
        _say(held)
    _say([])


if __name__ == "__main__":
    with suppress(ImportError, ValueError, OSError):  # not every system has limits, or lets them be set
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a dump of memory would hold records
        resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    try:
        _read(sys.argv[1])
    except MemoryError:
        sys.exit(TOO_LARGE)
    except Exception:  # its text may hold what records hold
        sys.exit(1)
