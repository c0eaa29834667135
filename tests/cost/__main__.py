"""Command that prints the CPU seconds of tests.

    python -m tests.cost [pytest options]

The tests of tests/browser run only if an option names them.  The total is the CPU time of pytest
and all of its descendants, including orphaned processes such as parts of a browser, which are
adopted and waited for.  The cost of a file includes processes that several tests share, such as a
server or a browser, but no adopted process.
"""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ADOPT = 36  # PR_SET_CHILD_SUBREAPER of Linux


def main(arguments: list[str]) -> int:
    """Run pytest with the options and return its exit code."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    # Orphaned descendants become children of this process, so that their CPU time is counted.
    ctypes.CDLL(None).prctl(ADOPT, 1, 0, 0, 0)
    asks_for_browser = any("browser" in word for word in arguments)
    ignored = [] if asks_for_browser else ["--ignore", "tests/browser"]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.cost.counting",
        "-p",
        "no:xdist",
        *ignored,
        *arguments,
    ]
    tests, code = subprocess.Popen(command, cwd=ROOT), 0
    # `os.wait` raises this error when no process is left
    with suppress(ChildProcessError):
        while True:
            ended, status = os.wait()
            if ended == tests.pid:
                code = tests.returncode = os.waitstatus_to_exitcode(status)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{used.ru_utime + used.ru_stime:.1f} CPU seconds in all", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
