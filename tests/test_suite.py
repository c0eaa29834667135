"""What developers run: the tests, which tell what they leave out, and tables, which are kept as they were printed."""

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

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


@pytest.mark.parametrize("workers", ["0", "1"])
def test_what_is_left_out_is_told(tmp_path, workers):
    found = run(tmp_path, "-n", workers)
    assert "1 passed" in found
    assert "3 tests were left out; python -m tests --full runs them, too" in found


def test_full_runs_everything_and_what_it_compiled_is_kept_for_the_next_process(tmp_path):
    found = run(tmp_path, "--full", "-n", "0")
    assert "4 passed" in found
    assert "left out" not in found
    assert [file.suffix for file in (tmp_path / "__pycache__").iterdir()] == [".pyc"]


def test_what_takes_long_begins_first_and_the_rest_stays_in_order() -> None:
    places = [
        "engine/_format.py::texts",
        "tests/common_mechanism/test_b.py::b",
        "tests/server/test_c.py::c",
        "tests/browser/d.py::d",
    ]
    items = [SimpleNamespace(nodeid=place) for place in places]
    conftest.pytest_collection_modifyitems(items)
    assert [item.nodeid for item in items] == [places[3], places[2], places[0], places[1]]
    workers = (ROOT / "tests" / "__main__.py").read_text(encoding="utf-8")
    assert '"--no-loadscope-reorder"' in workers, "or files with many tests would begin first"


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


COSTLY = """
import subprocess
import sys
import time

BURN = "import time\\nwhile time.process_time() < 0.2: pass"

def test_here():
    end = time.process_time() + 0.2
    while time.process_time() < end:
        pass

def test_in_a_child_that_is_waited_for():
    subprocess.run([sys.executable, "-c", BURN], check=True)

def test_in_a_child_that_loses_its_parent():
    leave = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {BURN!r}])"
    subprocess.run([sys.executable, "-c", leave], check=True)
"""


def test_the_cost_of_tests_is_that_of_all_their_processes(tmp_path: Path) -> None:
    (tmp_path / "test_costly.py").write_text(COSTLY, encoding="utf-8")
    command = [sys.executable, "-m", "tests.cost", "-p", "no:cacheprovider", "-c", ROOT / "pyproject.toml"]
    run = subprocess.run([*command, tmp_path / "test_costly.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    told = dict(line.split(" CPU seconds ")[::-1] for line in run.stdout.splitlines() if " CPU seconds " in line)
    total, by_place = float(told.pop("in all")), {Path(place.strip()).name: float(v) for place, v in told.items()}
    assert by_place["test_costly.py"] >= 0.35
    assert total - sum(by_place.values()) >= 0.15, "of the child without a parent"
