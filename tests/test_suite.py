"""What developers run: the tests, which tell what they leave out, and tables, which are kept as they were printed."""

import multiprocessing
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import options, own_process, peak_megabytes, table
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
    """Output of a run with the settings of this one over a file with three large tests and a small one."""
    (tmp_path / "test_marked.py").write_text(MARKED, encoding="utf-8")
    command = [sys.executable, "-m", "tests", "--only-tests", "-p", "no:cacheprovider", "-v"]
    command += ["-c", ROOT / "pyproject.toml", "-p", "tests.conftest", *options, tmp_path / "test_marked.py"]
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout


def test_left_out_tests_of_workers_are_counted(tmp_path):
    found = run(tmp_path, "-n", "1")
    assert "1 passed" in found
    assert "3 tests were left out; python -m tests --full runs them, too" in found


def test_full_runs_everything_and_what_it_compiled_is_kept_for_the_next_process(tmp_path):
    found = run(tmp_path, "--full", "-n", "0")
    assert "4 passed" in found
    assert "left out" not in found
    assert [file.suffix for file in (tmp_path / "__pycache__").iterdir()] == [".pyc"]


PROJECT = {
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
        run = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
        assert set(run.stdout.split()) == {*tests, "tests/test_architecture.py"}
        subprocess.run([*git, "checkout", "-q", "."], cwd=tmp_path, check=True)


def test_noise_is_that_of_the_test_here_and_its_own_in_a_child() -> None:
    drawn = []
    for place in ("tests/one", "tests/one", "tests/other"):
        conftest.plant(place)
        drawn.append(discrete_gaussian(variance=2**40, size=5).tolist())
    assert drawn[0] == drawn[1] != drawn[2]
    child = multiprocessing.get_context("fork").Process(target=lambda: os._exit(noise.os is not os))
    child.start()
    child.join()
    assert child.exitcode == 0
    assert noise.os is not os


def test_a_table_is_kept_as_it_was_printed_and_only_when_asked(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    script = tmp_path / "rows.py"
    for write in (options(str(script), "Rows.\nAnd more.").parse_args(words).write for words in ([], ["--write"])):
        assert not script.with_suffix(".txt").exists()
        with table(str(script), write=write) as show:
            show("head", "")
            show("row")
        printed = capsys.readouterr().out
        assert printed == "head\n\nrow\n"
    assert script.with_suffix(".txt").read_text(encoding="utf-8") == printed


def test_half_a_table_replaces_none(tmp_path: Path) -> None:
    kept = tmp_path / "rows.txt"
    kept.write_text("whole", encoding="utf-8")

    def broken() -> None:
        with table(str(tmp_path / "rows.py"), write=True) as show:
            show("head")
            raise KeyError("row")

    with pytest.raises(KeyError, match="row"):
        broken()
    assert kept.read_text(encoding="utf-8") == "whole"


def test_the_peak_of_memory_is_that_of_the_process_alone():
    held = bytearray(400 * 2**20)
    held[:: 2**12] = b"x" * len(held[:: 2**12])
    del held
    assert own_process(peak_megabytes) < 300 < peak_megabytes()
