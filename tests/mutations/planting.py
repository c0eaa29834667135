"""Patches, and the outcome of tests on a patched copy of the project.

The runner imports the libraries once and forks for every patch, which saves the start of Python;
each fork imports the project from the copy.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("engine", "pages", "demo_data", "benchmarks", "tests", ".streamlit")
PARTS = (*FOLDERS, "app.py", "pyproject.toml", "README.md", "LICENSE")
LIBRARIES = (
    "numpy pandas pyarrow.csv pyarrow.parquet scipy.optimize scipy.special scipy.stats sqlglot"
    " plotly joblib"
)
TESTING = "pytest _pytest.doctest hypothesis cryptography.hazmat.primitives.asymmetric.ed25519"
LONGEST = 300.0  # seconds; a test that does not end counts as failed
FORK = multiprocessing.get_context("fork")
_TICK = itertools.count(1)


@dataclass(frozen=True, kw_only=True)
class Bug:
    """A privacy bug: a replacement of a text that occurs once in a file, and tests that must fail.

    `tests` are pytest names of files or tests; for an engine file, its doctests are run.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def patched(self, root: Path) -> str:
        """Return the content of the file with the bug.

        Raises ValueError unless the old text occurs exactly once and differs from the new text.
        """
        text = (root / self.file).read_text(encoding="utf-8")
        if (count := text.count(self.old)) != 1 or self.old == self.new:
            raise ValueError(
                f"{self.name}: the old text occurs {count} times in {self.file}; rewrite the patch"
            )
        return text.replace(self.old, self.new)


def bug(name: str, file: str, old: str, new: str, *tests: str) -> Bug:
    """Return a `Bug` from positional arguments."""
    return Bug(name=name, file=file, old=old, new=new, tests=tests)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Outcome of a test run.

    Attributes
    ----------
    failed : name of the first failed test, or a text if the run hangs; empty if no test is named.
    sound : whether all tests passed; False, too, if the run found no test.
    seconds : duration.
    output : text that pytest printed.
    """

    failed: str
    sound: bool
    seconds: float
    output: str


@contextlib.contextmanager
def copied() -> Iterator[Path]:
    """Yield a temporary copy of the project."""
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        place = Path(folder)
        for part in PARTS:
            if (ROOT / part).is_dir():
                # includes compiled code, which stays valid because times are copied
                shutil.copytree(ROOT / part, place / part)
            else:
                shutil.copy2(ROOT / part, place / part)
        yield place


@contextlib.contextmanager
def planted(mutation: Bug, place: Path) -> Iterator[None]:
    """Plant one bug in a copy, and restore the copy afterwards."""
    file = place / mutation.file
    text, before = mutation.patched(place), file.stat()
    content = file.read_bytes()
    try:
        file.write_text(text, encoding="utf-8")
        # a unique time; otherwise Python could use compiled code of another version of equal size
        os.utime(file, (before.st_atime, before.st_mtime + 10 * next(_TICK)))
        yield
    finally:
        file.write_bytes(content)
        os.utime(file, (before.st_atime, before.st_mtime))


def load_libraries() -> None:
    """Import the libraries that every run of the tests needs."""
    for name in f"{LIBRARIES} {TESTING}".split():
        __import__(name)


def verdict(place: Path, tests: Sequence[str]) -> Verdict:
    """Run tests of the copy at ``place`` in a forked process until one fails."""
    start, output = time.monotonic(), place / "output.txt"
    process = FORK.Process(target=_run, args=(place, list(tests), output))
    process.start()
    process.join(LONGEST)
    hangs = process.is_alive()
    if hangs:
        process.kill()
        process.join()
    text = output.read_text(encoding="utf-8", errors="replace")
    named = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", text, re.MULTILINE)
    failed = named.group(1) if named else ""
    if hangs:
        failed = f"no end after {LONGEST:g} s"
    return Verdict(
        failed=failed, sound=process.exitcode == 0, seconds=time.monotonic() - start, output=text
    )


def _run(place: Path, tests: list[str], output: Path) -> None:
    """Run tests of the copy at ``place``, write their output to a file, and end this process."""
    with open(output, "wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    # inside a test, pytest has replaced these streams
    sys.stdout = sys.stderr = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    os.chdir(place)
    sys.path[:] = [
        str(place),
        *(entry for entry in sys.path if Path(entry or ".").resolve() != ROOT),
    ]
    # forget the project of the parent process, so that it is imported from the copy
    for name in [name for name in sys.modules if name.partition(".")[0] in PARTS]:
        del sys.modules[name]
    import pytest

    code = pytest.main(
        ["-x", "-q", "-rfE", "--tb=line", "-p", "no:cacheprovider", "-p", "no:xdist", *tests]
    )
    sys.stdout.flush()
    os._exit(code)
