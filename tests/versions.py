"""The lowest versions that pyproject.toml names: `python -m tests.versions [--more] [--newest]
[pytest options]`.

Ordinary test runs use the newest versions within the bounds. This module creates an environment
with exactly the lowest versions and runs the tests that depend most on other packages: golden
files, settings, SQL, records, figures, a page. `--more` adds further tests, such as command line
and published files (some minutes). `--newest` instead ignores all upper bounds, to find what a new
version of a package breaks. The interpreter that runs the module is also used for the tests, so
`python3.13 -m tests.versions --newest` tests Python 3.13.
"""

import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
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
    "tests/app/workload",
    "tests/app/shell/test_address.py",
)
MORE_TOOLS = ("argcomplete", "hatch", "pyyaml")
MORE = (
    "tests/workload",
    "tests/records/test_counted.py",
    "tests/plans/test_explicit.py",
    "tests/publish",
    "tests/install",
    "tests/cli",
    "tests/analysis/test_compare.py",
    "tests/app/test_pages.py",
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


def main(arguments: list[str]) -> int:
    """Install the versions in a new environment, run the tests, return the exit code of pytest."""
    more = "--more" in arguments
    newest = "--newest" in arguments
    options = [text for text in arguments if text not in ("--more", "--newest")]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    starts = TOOLS + MORE_TOOLS * more
    extras = project["optional-dependencies"]
    tools = [
        text
        for text in extras["test"] + extras["sources"] + extras["completion"]
        if text.startswith(starts)
    ]
    assert all(any(text.startswith(name) for text in tools) for name in starts)
    with tempfile.TemporaryDirectory(prefix="lowest-") as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder) / ("Scripts" if sys.platform == "win32" else "bin") / "python"
        select = unbounded if newest else lowest
        wanted = [*select(project["dependencies"]), *(unbounded(tools) if newest else tools)]
        subprocess.run([python, "-m", "pip", "install", "--quiet", *wanted], check=True)
        tests = [python, "-m", "pytest", "-p", "no:cacheprovider", *TESTS, *MORE * more, *options]
        return subprocess.run(tests, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
