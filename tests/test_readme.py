"""The README's Python runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from engine import Budget
from engine.__main__ import main

README = Path(__file__).resolve().parent.parent / "README.md"


def test_the_python_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    (script,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(script, "README.md", "exec"), {})
    assert "age < 19" in capsys.readouterr().out


def test_its_figures_are_those_of_the_benchmarks() -> None:
    text = README.read_text(encoding="utf-8")
    printed = "".join((README.parent / "benchmarks" / f"{name}.txt").read_text() for name in ("published", "tuned"))
    rows = re.findall(r"^\| (?:CPS|Adult|Loans|\[).*$", text, flags=re.MULTILINE)
    assert len(rows) == 8
    for row in rows:
        figures = [f for f in row.split("|")[3:] if f.strip()]
        for figure in figures:
            assert figure.strip() in printed, f"{figure} of {row} is in no benchmark's output"


def test_the_commands_for_a_panel_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    _, block = README.read_text(encoding="utf-8").split("Several rows a person:")
    commands = re.findall(r"^    python -m engine (.*)$", block.split("## The pages")[0], flags=re.MULTILINE)
    assert len(commands) == 4
    monkeypatch.chdir(tmp_path)
    for command in commands:
        assert main(command.replace("demo_data/", f"{README.parent}/demo_data/").split()) == 0
    assert "of 800 persons some of their rows" in capsys.readouterr().err
    assert (tmp_path / "panel.zip").is_file()


def test_the_promise_it_quotes_is_the_one_that_is_made() -> None:
    quoted = " ".join(re.findall(r"^> (.*)$", README.read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert quoted == Budget(pcost=1.0, rows_per_person=3).promise
