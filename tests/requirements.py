"""Programs and packages that only some tests need.

`python -m tests.requirements` prints the Debian packages of missing programs.
"""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from pathlib import Path

# requirement -> one of its programs, and the Debian packages that install it
PROGRAMS: dict[str, tuple[str, tuple[str, ...]]] = {
    "Chromium": ("/usr/bin/chromium", ("chromium", "fonts-dejavu-core", "fonts-noto-color-emoji")),
    "PostgreSQL": ("initdb", ("postgresql",)),
    "Java": ("java", ("default-jre-headless",)),
    "R": ("Rscript", ("r-base-core",)),
    "LaTeX": ("pdflatex", ("texlive-latex-base", "texlive-latex-recommended")),
    "git": ("git", ("git",)),
    "bash": ("bash", ("bash",)),
}
# name of an imported module -> package of the extra "dev" that is not in the extra "test"
PACKAGES = {
    "axe_playwright_python": "axe-playwright-python",
    "importlinter": "import-linter",
    "mypy": "mypy",
    "opendp": "opendp",
    "playwright": "playwright",
    "pyspark": "pyspark",
    "ruff": "ruff",
}
# test file or folder -> requirements without which pytest does not collect it; single tests have
# the mark "needs" instead
FILES = {
    "browser": ("Chromium", "playwright", "axe_playwright_python"),
    "databases/test_postgres.py": ("PostgreSQL",),
    "databases/test_spark.py": ("Java", "pyspark"),
}


def program_path(program: str) -> str | None:
    """Return the path of a program, or None.

    Debian installs the programs of PostgreSQL outside PATH, so their folders are searched as well.
    """
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    return shutil.which(program, path=os.pathsep.join([os.environ["PATH"], *map(str, folders)]))


def missing_programs() -> list[str]:
    return [name for name, (program, _) in PROGRAMS.items() if program_path(program) is None]


def missing_packages() -> list[str]:
    return [name for name in PACKAGES if find_spec(name) is None]


def missing() -> set[str]:
    """Return the names of missing programs and packages, as in the mark "needs"."""
    return {*missing_programs(), *missing_packages()}


def debian_packages() -> list[str]:
    """Return the Debian packages that install the missing programs."""
    return [package for name in missing_programs() for package in PROGRAMS[name][1]]


def notice() -> str:
    """Return one line with the missing requirements and the commands that install them, or ""."""
    packages = missing_packages()
    names = missing_programs() + [PACKAGES[name] for name in packages]
    commands = []
    if debian := debian_packages():
        sudo = "" if os.geteuid() == 0 else "sudo "
        commands.append(f"{sudo}apt-get install -y --no-install-recommends {' '.join(debian)}")
    if packages:
        commands.append('.venv/bin/pip install -e ".[dev]"')
    if not names:
        return ""
    return f"Left out what needs {', '.join(names)}; to include it: {' && '.join(commands)}"


if __name__ == "__main__":
    print(*debian_packages())
