"""Patches, and what tests say of a copy of the project with one of them in it.

The runner imports the libraries once and forks for every patch, so that a patch costs the tests it runs and not the
start of Python; each fork imports the project anew, from the copy.
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
LIBRARIES = "numpy pandas pyarrow.csv pyarrow.parquet scipy.optimize scipy.special scipy.stats sqlglot plotly joblib"
TESTING = "pytest _pytest.doctest hypothesis cryptography.hazmat.primitives.asymmetric.ed25519"
LONGEST = 300.0  # seconds; a bug that never ends is noticed, too
FORK = multiprocessing.get_context("fork")
_TICK = itertools.count(1)


@dataclass(frozen=True, kw_only=True)
class Bug:
    """A privacy bug: the text that stands exactly once in a file, what is planted there, and the tests to notice it.

    `tests` are files or single tests as pytest names them; of an engine file, its doctests.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def patched(self, root: Path) -> str:
        """The file with the bug; raises ValueError unless the old text stands in it exactly once."""
        text = (root / self.file).read_text(encoding="utf-8")
        if (found := text.count(self.old)) != 1 or self.old == self.new:
            raise ValueError(f"{self.name}: the old text stands {found} times in {self.file}; write the patch anew")
        return text.replace(self.old, self.new)


def bug(name: str, file: str, old: str, new: str, *tests: str) -> Bug:
    """A bug in one line."""
    return Bug(name=name, file=file, old=old, new=new, tests=tests)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the tests said: which failed first, whether all passed, in how many seconds, and all they printed.

    A run that neither passes nor names a failed test, as when a test is not there, is neither.
    """

    failed: str
    sound: bool
    seconds: float
    output: str


@contextlib.contextmanager
def copied() -> Iterator[Path]:
    """A copy of the project that may be patched."""
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        place = Path(folder)
        for part in PARTS:
            if (ROOT / part).is_dir():
                shutil.copytree(ROOT / part, place / part)  # with compiled code, which keeps its times and stays valid
            else:
                shutil.copy2(ROOT / part, place / part)
        yield place


@contextlib.contextmanager
def planted(mutation: Bug, place: Path) -> Iterator[None]:
    """A copy with one bug in it; afterwards it is as it was."""
    file = place / mutation.file
    text, before = mutation.patched(place), file.stat()
    kept = file.read_bytes()
    try:
        file.write_text(text, encoding="utf-8")
        # a time of its own, or compiled code of another version with the same time and size would be taken
        os.utime(file, (before.st_atime, before.st_mtime + 10 * next(_TICK)))
        yield
    finally:
        file.write_bytes(kept)
        os.utime(file, (before.st_atime, before.st_mtime))


def load_libraries() -> None:
    """Import what every run of the tests needs, once."""
    for name in f"{LIBRARIES} {TESTING}".split():
        __import__(name)


def verdict(place: Path, tests: Sequence[str]) -> Verdict:
    """Run tests of a copy in a process of its own until the first one fails."""
    begun, output = time.monotonic(), place / "output.txt"
    process = FORK.Process(target=_run, args=(place, list(tests), output))
    process.start()
    process.join(LONGEST)
    hangs = process.is_alive()
    if hangs:
        process.kill()
        process.join()
    text = output.read_text(encoding="utf-8", errors="replace")
    named = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", text, re.MULTILINE)
    failed = f"no end after {LONGEST:g} s" if hangs else named.group(1) if named else ""
    return Verdict(failed=failed, sound=process.exitcode == 0, seconds=time.monotonic() - begun, output=text)


def _run(place: Path, tests: list[str], output: Path) -> None:
    with open(output, "wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    # where a test runs this, its own output is caught
    sys.stdout = sys.stderr = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    os.chdir(place)
    sys.path[:] = [str(place), *(entry for entry in sys.path if Path(entry or ".").resolve() != ROOT)]
    for name in [name for name in sys.modules if name.partition(".")[0] in PARTS]:
        del sys.modules[name]
    import pytest

    code = pytest.main(["-x", "-q", "-rfE", "--tb=line", "-p", "no:cacheprovider", "-p", "no:xdist", *tests])
    sys.stdout.flush()
    os._exit(code)
