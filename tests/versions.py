"""The lowest versions that pyproject.toml names: `python -m tests.versions [--more] [pytest options]`.

Every run of the tests has the newest versions.  This makes an environment of its own with exactly the lowest ones and
runs what depends on other packages most: files that are kept, settings, SQL, records of every kind, pictures, a page.
`--more` adds what else may, the command line and the published files among them; it takes some minutes.
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
MORE_TOOLS = ("hatch", "pyyaml")
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
    """Requirements of exactly the lowest version of each dependency.

    >>> lowest(["numpy>=2.0"])
    ['numpy==2.0']
    """
    found = [re.fullmatch(r"([\w-]+)>=([\d.]+)", text) for text in dependencies]
    assert all(found), "each dependency must name its lowest version, and nothing else"
    return [f"{match[1]}=={match[2]}" for match in found if match]


def main(arguments: list[str]) -> int:
    """Install and test; return the exit code of pytest."""
    more = "--more" in arguments
    options = [text for text in arguments if text != "--more"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    starts = TOOLS + MORE_TOOLS * more
    tools = [text for text in project["optional-dependencies"]["test"] if text.startswith(starts)]
    with tempfile.TemporaryDirectory(prefix="lowest-") as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder) / ("Scripts" if sys.platform == "win32" else "bin") / "python"
        wanted = [*lowest(project["dependencies"]), *tools]
        subprocess.run([python, "-m", "pip", "install", "--quiet", *wanted], check=True)
        tests = [python, "-m", "pytest", "-p", "no:cacheprovider", *TESTS, *MORE * more, *options]
        return subprocess.run(tests, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
