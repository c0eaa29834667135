"""Test runner, selection of changed tests, noise of tests, and benchmark tables."""

import multiprocessing
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import options, peak_megabytes, run_in_new_process, table
from engine.release import discrete_gaussian, noise
from tests import conftest

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
    """Run the suite on a file with three tests marked full and one other; return the output."""
    (tmp_path / "test_marked.py").write_text(MARKED, encoding="utf-8")
    command = [sys.executable, "-m", "tests", "--only-tests", "-p", "no:cacheprovider", "-v"]
    command += [
        "-c",
        ROOT / "pyproject.toml",
        "-p",
        "tests.conftest",
        *options,
        tmp_path / "test_marked.py",
    ]
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    ).stdout


def test_deselected_full_tests_of_workers_are_counted(tmp_path):
    output = run(tmp_path, "-n", "1")
    assert "1 passed" in output
    assert "3 tests were left out; python -m tests --full runs them, too" in output


def test_full_run_runs_all_and_writes_bytecode(tmp_path):
    output = run(tmp_path, "--full", "-n", "0")
    assert "4 passed" in output
    assert "left out" not in output
    assert [file.suffix for file in (tmp_path / "__pycache__").iterdir()] == [".pyc"]


PROJECT = {
    "tests/__init__.py": "",  # otherwise an installed checkout is imported instead
    "engine/plans/__init__.py": "from engine.plans.costs import cost",
    "engine/plans/costs.py": "def cost(): ...",
    "engine/plans/plan.py": "from engine.plans import cost",
    "engine/plans/files.py": "",
    "engine/report.py": "from engine.plans import cost",
    "tests/helper.py": "def f():\n    from engine.plans import cost",
    "tests/plans/test_plan.py": "import engine.plans.plan",
    "tests/plans/test_files.py": "from engine.plans import files",
    "tests/other/test_report.py": "",
    "tests/other/test_costs.py": "",
    "tests/other/test_helper.py": "from tests.helper import f",
    "tests/other/test_plan_use.py": "from engine.plans.plan import Plan",
    "tests/other/test_texts.py": "open('notes.md')",
    "notes.md": "",
}


@pytest.mark.needs("git")
def test_changed_selects_importers_mirrors_and_names(tmp_path: Path) -> None:
    for name, text in PROJECT.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    shutil.copy(ROOT / "tests" / "changed.py", tmp_path / "tests")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a", "-c", "commit.gpgsign=false"]
    for command in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-qm", "first"]):
        subprocess.run([*git, *command], cwd=tmp_path, check=True)
    script = "from tests.changed import *; print(*selection(changed_files()))"
    expected = {
        "engine/plans/costs.py": {
            "engine/plans/costs.py",
            "tests/plans/test_plan.py",
            "tests/other/test_report.py",
            "tests/other/test_costs.py",
            "tests/other/test_helper.py",
        },
        "tests/helper.py": {"tests/other/test_helper.py"},
        "notes.md": {"tests/other/test_texts.py"},
    }
    for name, tests in expected.items():
        (tmp_path / name).write_text("changed = 1", encoding="utf-8")
        run = subprocess.run(
            [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert set(run.stdout.split()) == {*tests, "tests/test_architecture.py"}
        subprocess.run([*git, "checkout", "-q", "."], cwd=tmp_path, check=True)


def test_noise_depends_on_test_but_not_in_children() -> None:
    def noise_of_test(test: str) -> list[int]:
        conftest.seed_noise(test)
        return discrete_gaussian(variance=2**40, size=5).tolist()

    assert noise_of_test("tests/one") == noise_of_test("tests/one")
    assert noise_of_test("tests/one") != noise_of_test("tests/other")
    # `noise.os` is replaced in this process, and restored in a forked one
    child = multiprocessing.get_context("fork").Process(target=lambda: os._exit(noise.os is not os))
    child.start()
    child.join()
    assert child.exitcode == 0
    assert noise.os is not os


def test_table_is_saved_only_with_write_option(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    script = tmp_path / "rows.py"
    file = script.with_suffix(".txt")
    parser = options(str(script), "Rows.\nAnd more.")
    for arguments in ([], ["--write"]):
        assert not file.exists()
        with table(str(script), write=parser.parse_args(arguments).write) as show:
            show("head", "")
            show("row")
        assert capsys.readouterr().out == "head\n\nrow\n"
    assert file.read_text(encoding="utf-8") == "head\n\nrow\n"


def test_failed_table_keeps_previous_file(tmp_path: Path) -> None:
    table_file = tmp_path / "rows.txt"
    table_file.write_text("previous", encoding="utf-8")

    def write_half_table() -> None:
        with table(str(tmp_path / "rows.py"), write=True) as show:
            show("head")
            raise KeyError("row")

    with pytest.raises(KeyError, match="row"):
        write_half_table()
    assert table_file.read_text(encoding="utf-8") == "previous"


def test_run_in_new_process_measures_separate_memory():
    memory = bytearray(400 * 2**20)
    memory[:: 2**12] = b"x" * len(memory[:: 2**12])  # writes to every page of 4 KiB
    del memory
    # The peak of this process includes the 400 MB. A new Python process needs less than 300 MB.
    assert run_in_new_process(peak_megabytes) < 300 < peak_megabytes()
