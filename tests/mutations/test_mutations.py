"""Planted bugs: every patch fits the code as it is, and a few of them are planted in every run."""

from __future__ import annotations

import ast
import re
import subprocess
import sys

import pytest

from tests.mutations import __main__ as runner
from tests.mutations.bugs import BUGS
from tests.mutations.planting import ROOT, Bug, bug, copied, planted

# by tests of far less than a second
EVERY_RUN = (
    "release noise scale off by 1%",
    "block of equal shape receives the first table",
    "row cap off by one",
    "joint cost of the largest part only",
)


def test_every_patch_fits_and_names_tests_that_are_there() -> None:
    assert len(BUGS) >= 60
    assert len({planted.name for planted in BUGS}) == len(BUGS)
    for mutation in BUGS:
        ast.parse(mutation.patched(ROOT))
        assert mutation.tests, mutation.name
        for test in mutation.tests:
            file, _, name = test.partition("::")
            text = (ROOT / file).read_text(encoding="utf-8")
            assert f"def {name}(" in text if name else file.startswith("tests/") or ">>> " in text, test


@pytest.mark.parametrize(("old", "new"), [("not there at all", ""), ("class", "type"), ("__future__", "__future__")])
def test_a_patch_that_does_not_fit_is_told(old: str, new: str) -> None:
    with pytest.raises(ValueError, match="write the patch anew"):
        bug("odd", "engine/errors.py", old, new).patched(ROOT)


def test_a_copy_is_as_it_was_after_a_bug() -> None:
    mutation = BUGS[0]
    with copied() as place:
        file = place / mutation.file
        before = file.read_bytes(), file.stat().st_mtime
        with planted(mutation, place):
            assert file.read_text(encoding="utf-8") == mutation.patched(ROOT)
        assert (file.read_bytes(), file.stat().st_mtime) == before
        assert not (place / ".git").exists()
    assert not place.exists()


@pytest.mark.parametrize("names", [EVERY_RUN[:2], pytest.param(EVERY_RUN[2:], marks=pytest.mark.full)])
def test_some_bugs_are_caught_in_every_run(names: tuple[str, ...]) -> None:
    # by a process of its own: to fork one that has run many tests takes long
    command = [sys.executable, "-m", "tests.mutations", "--trust", "--exactly", *names]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.stdout.endswith(f"{len(names)} bugs planted, {len(names)} caught, 0 missed\n"), run
    assert run.returncode == 0


def test_a_bug_that_nobody_notices_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    harmless = Bug(
        name="no bug",
        file="tests/pairs.py",
        old="few rows in which",
        new="a few rows in which",
        tests=("tests/test_pairs.py::test_a_new_value_is_taken_up_by_itself",),
    )
    lost = Bug(name="no test", file="tests/pairs.py", old=harmless.old, new="", tests=("tests/nowhere.py",))
    monkeypatch.setattr(runner, "BUGS", (harmless, lost))
    assert runner.main(["--trust"]) == 1
    told = capsys.readouterr().out
    assert "2 bugs planted, 0 caught, 2 missed" in told
    assert re.search(r"^MISSED  no bug .*\n +passed: \.", told, re.MULTILINE)
    assert re.search(r"^MISSED  no test .*\n +neither passed nor failed:\s+ERROR: file or dir", told, re.MULTILINE)


@pytest.mark.parametrize("option", ["--only", "--exactly"])
def test_a_name_that_fits_no_bug_is_refused_with_near_ones(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        runner.main([option, EVERY_RUN[0], "row cap of by one"])  # one that fits does not excuse the other
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert "'row cap of by one'; near: 'row cap off by one'" in told
