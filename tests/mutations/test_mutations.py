"""Planted bugs: every patch fits the code, and some are planted in every run."""

from __future__ import annotations

import ast
import re
import subprocess
import sys

import pytest

from tests.mutations import __main__ as runner
from tests.mutations.bugs import BUGS
from tests.mutations.planting import ROOT, Bug, bug, copied, planted

# The tests of these bugs take far less than a second. The first two bugs are planted in every run,
# the others with --full.
QUICK_BUGS = (
    "release noise scale off by 1%",
    "block of equal shape receives the first table",
    "row cap off by one",
    "joint cost of the largest part only",
)


def test_bugs_fit_the_code_and_name_tests() -> None:
    assert len(BUGS) >= 60
    assert len({planted.name for planted in BUGS}) == len(BUGS)
    for mutation in BUGS:
        ast.parse(mutation.patched(ROOT))
        assert mutation.tests, mutation.name
        for test in mutation.tests:
            file, _, name = test.partition("::")
            text = (ROOT / file).read_text(encoding="utf-8")
            assert (
                f"def {name}(" in text if name else file.startswith("tests/") or ">>> " in text
            ), test


@pytest.mark.parametrize(
    ("old", "new"),
    [("no such text", ""), ("class", "type"), ("__future__", "__future__")],
    ids=["absent text", "repeated text", "same text"],
)
def test_bug_with_unfit_patch_raises(old: str, new: str) -> None:
    with pytest.raises(ValueError, match="rewrite"):
        bug("odd", "engine/errors.py", old, new).patched(ROOT)


def test_planted_restores_the_copy() -> None:
    mutation = BUGS[0]
    with copied() as place:
        file = place / mutation.file
        before = file.read_bytes(), file.stat().st_mtime
        with planted(mutation, place):
            assert file.read_text(encoding="utf-8") == mutation.patched(ROOT)
        assert (file.read_bytes(), file.stat().st_mtime) == before
        assert not (place / ".git").exists()
    assert not place.exists()


@pytest.mark.parametrize(
    "names", [QUICK_BUGS[:2], pytest.param(QUICK_BUGS[2:], marks=pytest.mark.full)]
)
def test_some_bugs_are_caught(names: tuple[str, ...]) -> None:
    # in a subprocess: forking a process that has run many tests is slow
    command = [sys.executable, "-m", "tests.mutations", "--trust", "--exactly", *names]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.stdout.endswith(f"{len(names)} bugs planted, {len(names)} caught, 0 missed\n"), run
    assert run.returncode == 0


def test_campaign_reports_missed_bugs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    harmless = Bug(
        name="no bug",
        file="tests/pairs.py",
        old="few rows that contain",
        new="a few rows that contain",
        tests=("tests/test_pairs.py::test_pairwise_new_value_only_adds_its_rows",),
    )
    lost = Bug(
        name="no test", file="tests/pairs.py", old=harmless.old, new="", tests=("tests/nowhere.py",)
    )
    monkeypatch.setattr(runner, "BUGS", (harmless, lost))
    assert runner.main(["--trust"]) == 1
    output = capsys.readouterr().out
    assert "2 bugs planted, 0 caught, 2 missed" in output
    assert re.search(r"^MISSED  no bug .*\n +passed: \.", output, re.MULTILINE)
    assert re.search(
        r"^MISSED  no test .*\n +neither passed nor failed:\s+ERROR: file or dir",
        output,
        re.MULTILINE,
    )


@pytest.mark.parametrize("option", ["--only", "--exactly"])
def test_unknown_bug_name_lists_near_matches(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        # the first name is valid, the second is not
        runner.main([option, QUICK_BUGS[0], "row cap of by one"])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert "'row cap of by one'; near: 'row cap off by one'" in error
