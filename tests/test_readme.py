"""The README's Python runs as it stands, and what texts say of files and modules is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from engine import Budget
from engine.__main__ import main

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
FOLDERS = "engine|pages|tests|benchmarks|demo_data"


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


def unknown_places(text: str) -> list[str]:
    """Return the files, modules and names within a module that a text has in backticks and the project has not."""
    missing = [p for p in re.findall(rf"`((?:{FOLDERS})/[^`\s]*)`", text) if not list(ROOT.glob(p.rstrip("/")))]
    dotted = re.findall(rf"`(?:python -m )?((?:{FOLDERS})(?:\.\w+)+)(?:\(.*?\))?`", text)
    for words in (name.split(".") for name in dotted):
        kept = max(k for k in range(1, len(words) + 1) if ROOT.joinpath(*words[: k - 1]).is_dir())
        place = ROOT.joinpath(*words[:kept])
        if not place.is_dir() and not place.with_suffix(".py").is_file():
            kept, place = kept - 1, place.parent
        source = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        if not all(re.search(rf"\b{n}\b", source.read_text("utf-8")) for n in words[kept:]):
            missing.append(".".join(words))
    return missing


def test_places_that_are_named_exist() -> None:
    files = [README, ROOT / "CONTRIBUTING.md", ROOT / "demo_data" / "README.md"]
    files += [f for folder in FOLDERS.split("|") for f in (ROOT / folder).rglob("*.py") if f != Path(__file__)]
    texts = {f.relative_to(ROOT).as_posix(): f.read_text(encoding="utf-8") for f in files}
    assert sum(len(re.findall(rf"`(?:{FOLDERS})[/.]", text)) for text in texts.values()) > 50
    assert {name: found for name, text in texts.items() if (found := unknown_places(text))} == {}


def test_a_place_that_is_gone_is_noticed() -> None:
    assert unknown_places("`engine/spaces`, `engine/*.py`, `engine.release.measure`, `engine.plans.Plan`") == []
    gone = ["engine/centers.py", "engine.release.old", "engine.spaces.lifts.Lift"]
    assert unknown_places(", ".join(f"`{g}`" for g in gone)) == gone


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
