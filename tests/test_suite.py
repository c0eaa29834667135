"""The run of the tests themselves: what it leaves out it tells, and how to run it."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MARKED = """
import pytest

@pytest.mark.full
@pytest.mark.parametrize("number", range(3))
def test_large(number):
    pass

def test_small():
    pass
"""


def run(tmp_path, *options):
    """Output of a run with the settings of this one over a file with three large tests and a small one."""
    (tmp_path / "test_marked.py").write_text(MARKED, encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "tests",
        "--only-tests",
        "-p",
        "no:cacheprovider",
        "-v",
        "-c",
        ROOT / "pyproject.toml",
    ]
    command += ["-p", "tests.conftest", *options, tmp_path / "test_marked.py"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("workers", ["0", "2"])
def test_what_is_left_out_is_told(tmp_path, workers):
    found = run(tmp_path, "-n", workers)
    assert "1 passed" in found
    assert "3 tests were left out; python -m tests --full runs them, too" in found


def test_full_runs_everything(tmp_path):
    found = run(tmp_path, "--full", "-n", "0")
    assert "4 passed" in found
    assert "left out" not in found
