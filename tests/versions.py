"""Other versions of packages and of Python: `python -m tests.versions [--more]
[--newest | --interpreters] [pytest options]`.

Ordinary test runs use the newest versions within the bounds of pyproject.toml. This module creates
an environment with exactly the lowest versions and runs the tests that depend most on other
packages: golden files, settings, SQL, records, figures, all pages. `--more` adds further tests, such
as command line and published files (some minutes). `--newest` instead ignores all upper bounds, to
find what a new version of a package breaks. `--interpreters` runs the tests, with the newest
versions within the bounds, on each further version of Python that this machine has.
"""

import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INTERPRETERS = ("3.12", "3.13", "3.14")
TOOLS = ("pytest", "hypothesis", "psutil", "duckdb")
TESTS = (
    "tests/golden_files",
    "tests/test_config.py",
    "tests/workload/sql",
    "tests/workload/test_conditions.py",
    "tests/records/test_encoding.py",
    "tests/records/test_tables.py",
    "tests/records/test_refused.py",
    "tests/records/test_counts.py",
    "tests/records/test_hostile.py",
    "tests/figures",
    "tests/app/test_pages.py",
    "tests/app/shell/test_address.py",
)
MORE_TOOLS = ("argcomplete", "hatch", "pyyaml")
MORE = (
    "tests/workload",
    "tests/records/test_count_column.py",
    "tests/plans/test_explicit.py",
    "tests/publish",
    "tests/install",
    "tests/cli",
    "tests/analysis/test_compare.py",
    "tests/app/workload",
    "tests/app/test_schema.py",
    "tests/app/preview/test_plan.py",
)


def lowest(dependencies: list[str]) -> list[str]:
    """Return requirements that pin each dependency to the lowest version that it allows.

    >>> lowest(["numpy>=2.0", "joblib>=1.4,<2"])
    ['numpy==2.0', 'joblib==1.4']
    """
    requirements = [re.fullmatch(r"([\w-]+)>=([\d.]+)(,<[\d.]+)?", text) for text in dependencies]
    assert all(requirements), "each dependency must name its lowest version first"
    return [f"{match[1]}=={match[2]}" for match in requirements if match]


def unbounded(dependencies: list[str]) -> list[str]:
    """Return requirements without their upper bounds.

    >>> unbounded(["numpy>=2.0", "ibis-framework[duckdb]>=12,<13"])
    ['numpy>=2.0', 'ibis-framework[duckdb]>=12']
    """
    return [re.sub(r",<[\d.]+$", "", text) for text in dependencies]


def interpreter(version: str) -> str | None:
    """Return the path of a Python of this version, on PATH or installed by pyenv, or None."""
    name = f"python{version}"
    installed = sorted(Path.home().glob(f".pyenv/versions/{version}*/bin/{name}"))
    for path in (shutil.which(name), *map(str, installed)):
        # pyenv puts a script on PATH for every installed version; the script of an inactive version
        # fails
        if path and subprocess.run([path, "--version"], capture_output=True).returncode == 0:
            return path
    return None


def run(interpreter_path: str, packages: list[str], tests: list[str]) -> int:
    """Install packages in a new environment, run tests in it, return the exit code of pytest."""
    with tempfile.TemporaryDirectory(prefix="versions-") as folder:
        subprocess.run([interpreter_path, "-m", "venv", folder], check=True)
        python = Path(folder) / ("Scripts" if sys.platform == "win32" else "bin") / "python"
        subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
        command = [python, "-m", "pytest", "-p", "no:cacheprovider", *tests]
        return subprocess.run(command, cwd=ROOT, check=False).returncode


def main(arguments: list[str]) -> int:
    """Install the chosen versions of packages and run tests; return 0 if all tests passed."""
    modes = ("--more", "--newest", "--interpreters")
    more = "--more" in arguments
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    starts = TOOLS + MORE_TOOLS if more else TOOLS
    extras = project["optional-dependencies"]
    tools = [
        text
        for text in extras["test"] + extras["sources"] + extras["completion"]
        if text.startswith(starts)
    ]
    assert all(any(text.startswith(name) for text in tools) for name in starts)
    files = [*TESTS, *MORE] if more else [*TESTS]
    tests = [*files, *(text for text in arguments if text not in modes)]
    dependencies = project["dependencies"]
    if "--newest" in arguments:
        return run(sys.executable, unbounded([*dependencies, *tools]), tests)
    if "--interpreters" not in arguments:
        return run(sys.executable, [*lowest(dependencies), *tools], tests)
    codes = []
    for version in INTERPRETERS:
        path = interpreter(version)
        print(f"Python {version}: {path or 'not on this machine, left out'}", flush=True)
        if path:
            codes.append(run(path, [*dependencies, *tools], tests))
    return max(codes, default=1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
