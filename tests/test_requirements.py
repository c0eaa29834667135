"""Programs and packages that only some tests need."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests import __main__ as runner
from tests import requirements

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def without_r(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirements, "missing_programs", lambda: ["R", "LaTeX"])
    monkeypatch.setattr(requirements, "missing_packages", lambda: ["importlinter"])


def test_notice_names_missing_and_commands(without_r: None) -> None:
    (line,) = requirements.notice().splitlines()
    assert "R, LaTeX, import-linter" in line
    debian = "r-base-core texlive-latex-base texlive-latex-recommended"
    assert f"apt-get install -y --no-install-recommends {debian} && " in line
    assert line.endswith('.venv/bin/pip install -e ".[dev]"')


def test_runner_in_ci_fails_with_missing_program(
    without_r: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setenv("CI", "true")
    assert runner.main([]) == 1
    assert "LaTeX" in capsys.readouterr().out


def test_program_path_unknown_program_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "program").touch(mode=0o755)
    assert requirements.program_path("program") == str(tmp_path / "program")
    assert requirements.program_path("no-such-program") is None


def test_packages_are_in_dev_extras_only() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    extras = tomllib.loads(text)["project"]["optional-dependencies"]
    names = {re.match(r"[\w-]+", line)[0] for line in extras["dev"] + extras["spark"]}
    names -= {"dp-query-workbench", "ibis-framework"}
    assert set(requirements.PACKAGES.values()) == {n for n in names if not n.endswith("-stubs")}


def test_files_of_requirements_exist() -> None:
    requirement_names = {*requirements.PROGRAMS, *requirements.PACKAGES}
    for file, names in requirements.FILES.items():
        assert (ROOT / "tests" / file).exists()
        assert set(names) <= requirement_names
