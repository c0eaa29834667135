"""Run tests alone on one core and print what they cost: `python -m tests.cost [pytest options]`.

Without options that name tests/browser all other tests are run.  The total is what the kernel charged to pytest and to
all that descends from it, found when everything has ended: whatever loses its parent, as parts of a browser do, is
adopted here and waited for.  Not counted is who ran before.  The cost of a file is what its tests added, also in
processes that live on, as a server or a browser of many tests; what an adopted process took stands in the total alone.
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
    """Run what the options ask for and return the exit code."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    ctypes.CDLL(None).prctl(ADOPT, 1, 0, 0, 0)
    rest = [] if any("browser" in word for word in arguments) else ["--ignore", "tests/browser"]
    command = [sys.executable, "-m", "pytest", "-p", "tests.cost.counting", "-p", "no:xdist", *rest, *arguments]
    tests, code = subprocess.Popen(command, cwd=ROOT), 0
    with suppress(ChildProcessError):  # nobody is left
        while True:
            ended, status = os.wait()
            if ended == tests.pid:
                code = tests.returncode = os.waitstatus_to_exitcode(status)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{used.ru_utime + used.ru_stime:.1f} CPU seconds in all", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
