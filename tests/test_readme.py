"""The README's Python runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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
