"""Checks, then tests: `python -m tests [--checks | --only-tests | --changed [REVISION]] [--full]
[pytest options]`.

Checks are the linter, the formatter, the import layers and the type checker; each prints one line,
and its complete output when it fails.  pytest runs even after a failed check; the type checker
takes most of a minute, so it runs at the same time as pytest and is reported at the end.  --changed
runs, without the checks, the tests of files that changed since a git revision, by default since the
branch left main.  The exit code is 0 only when everything passed.

Checks and tests whose programs or packages (`tests/requirements.py`) are missing are left out; the
last line names them and the commands that install them.  With --checks, a check whose program is
missing fails.  If the environment sets CI, anything missing is an error.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from tests import requirements
from tests.changed import changed_files, selection

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = Path(sys.executable).parent
CHECKS = {
    "ruff check": [SCRIPTS / "ruff", "check", "."],
    "ruff format": [SCRIPTS / "ruff", "format", "--check", "."],
    "import layers": [SCRIPTS / "lint-imports"],
    "mypy": [SCRIPTS / "mypy"],
}
Result = tuple[bool, float, str]


def run_check(command: list[str | Path]) -> Result:
    """Run one check; return whether it passed, its seconds and its output."""
    start = time.perf_counter()
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    except FileNotFoundError:
        return False, 0.0, f"{command[0]} is not installed; run: pip install -e '.[dev]'"
    return done.returncode == 0, time.perf_counter() - start, done.stdout


def report(checks: Mapping[str, Future[Result]]) -> bool:
    """Wait for each check and print its result in one line; return whether all passed."""
    for name, check in checks.items():
        passed, seconds, output = check.result()
        print(f"{name:<14} {'ok' if passed else 'FAILED'} ({seconds:.1f} s)", flush=True)
        if not passed:
            print(output.rstrip(), flush=True)
    return all(check.result()[0] for check in checks.values())


def main(arguments: list[str] | None = None) -> int:
    """Run the selected checks and tests and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests", description=__doc__.splitlines()[0], allow_abbrev=False
    )
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--checks", action="store_true", help="run the checks only")
    only.add_argument("--only-tests", action="store_true", help="run pytest only")
    only.add_argument(
        "--changed", nargs="?", const="", metavar="REVISION", help="run the tests of what changed"
    )
    parser.add_argument(
        "--full",
        action="store_true",
        help="run also the tests marked full, which take many minutes",
    )
    options, for_pytest = parser.parse_known_args(arguments)
    if options.full:
        for_pytest = ["-m", "", *for_pytest]
    if options.checks and for_pytest:
        parser.error(
            f"--checks does not run pytest, and {' '.join(for_pytest)} is for pytest. Leave one"
            " out."
        )
    if options.changed is not None:
        files = selection(changed_files(options.changed or None))
        print("\n".join(files) or "Nothing changed.", flush=True)
        if not files:
            return 0
        for_pytest += files
    notice = requirements.notice()
    if notice and os.environ.get("CI"):
        print(f"The environment sets CI, so nothing may be missing.  {notice}", flush=True)
        return 1
    chosen = {} if options.only_tests or options.changed is not None else CHECKS
    # A check whose program is missing is left out; with --checks it fails.
    if not options.checks:
        chosen = {name: command for name, command in chosen.items() if Path(command[0]).exists()}
    with ThreadPoolExecutor() as pool:
        checks = {name: pool.submit(run_check, command) for name, command in chosen.items()}
        slow = {name: checks.pop(name) for name in ("mypy",) if name in checks}
        passed = report(checks)
        if options.checks:
            return 0 if report(slow) and passed else 1
        # more workers than the usual two cores, because some tests wait for other processes;
        # without reordering, the files start in the order of tests.conftest
        workers = ["-n", "3", "--dist", "loadfile", "--no-loadscope-reorder"]
        tests = subprocess.run([sys.executable, "-m", "pytest", *workers, *for_pytest], cwd=ROOT)
        passed = report(slow) and passed
    if notice:
        print(notice, flush=True)
    return tests.returncode or (0 if passed else 1)


if __name__ == "__main__":
    sys.exit(main())
