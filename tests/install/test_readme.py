"""README: its blocks run unchanged, and its numbers, files and modules are current."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from demo_data import make_synthetic
from engine.bounds import lower_bounds as best
from engine.cli.main import main
from engine.privacy import Budget
from engine.publish import release_package as package
from engine.publish.release_package import report_html
from engine.release import Measurement
from tests.mutations.bugs import BUGS

README = Path(__file__).resolve().parents[2] / "README.md"
ROOT = README.parent
FOLDERS = "engine|pages|tests|benchmarks|demo_data"
BLOCKS = re.findall(r"```(python|sh)\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
(PRINTED,) = re.findall(r"```text\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)


def run_shell(block: str) -> None:
    """Run the lines of a shell block in this process, without starting programs."""
    modules = {"engine": main, "demo_data.make_synthetic": make_synthetic.main}
    skipped = False
    for line in map(str.strip, block.splitlines()):
        if line.startswith("if "):
            skipped = Path(line.split()[4]).exists()
        elif line == "fi":
            skipped = False
        elif not skipped:
            program, flag, module, *arguments = shlex.split(line, comments=True)
            assert (program, flag) == (".venv/bin/python", "-m")
            assert not modules[module](arguments), line


def link_demo_data(folder: Path) -> Path:
    """Link the demo data into a folder and return the folder."""
    (folder / "demo_data").symlink_to(ROOT / "demo_data")
    return folder


def test_readme_blocks_run_twice_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    assert [kind for kind, _ in BLOCKS] == ["python", "sh", "sh"]
    monkeypatch.chdir(link_demo_data(tmp_path))
    said, reports = [], dict[str, str]()

    def render_once(measurement: Measurement, **options: Any) -> str:
        """Report of a release, rendered once per dataset."""
        if measurement.dataset not in reports:
            reports[measurement.dataset] = report_html(measurement, **options)
        return reports[measurement.dataset]

    monkeypatch.setattr(package, "report_html", render_once)
    # the search for the best bound is slow; its start value is a valid bound, too
    monkeypatch.setattr(best, "global_bound", partial(best.global_bound, steps=0))
    for _ in range(2):
        for kind, block in BLOCKS:
            if kind == "python":
                exec(compile(block, "README.md", "exec"), {})
            else:
                run_shell(block)
        said.append(capsys.readouterr())
    assert set(reports) == {"cps", "panel"}
    assert all("age < 19" in one.out for one in said)
    assert [one.out.count("; spent pcost") for one in said] == [2, 0]
    assert [one.out.count("nothing new was spent") for one in said] == [0, 2]
    assert "of 800 persons some of their rows" in said[0].err
    for row in PRINTED.splitlines():
        assert f"\n{row}" in f"\n{said[0].out}", "the README shows the printed comparison"


@pytest.mark.full
def test_readme_blocks_run_in_shell(tmp_path: Path) -> None:
    place = link_demo_data(tmp_path) / ".venv" / "bin"
    place.mkdir(parents=True)
    (place / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (place / "python").chmod(0o755)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    for _ in range(2):
        for kind, block in BLOCKS:
            command = ["bash", "-e", "-c", block] if kind == "sh" else [str(place / "python"), "-c", block]
            subprocess.run(command, cwd=tmp_path, env=environment, check=True)


def test_readme_figures_match_benchmarks() -> None:
    text = README.read_text(encoding="utf-8")
    printed = "".join((README.parent / "benchmarks" / f"{name}.txt").read_text() for name in ("published", "tuned"))
    rows = re.findall(r"^\| (?:CPS|Adult|Loans|\[).*$", text, flags=re.MULTILINE)
    assert len(rows) == 8
    for row in rows:
        figures = [f for f in row.split("|")[3:] if f.strip()]
        for figure in figures:
            assert figure.strip() in printed, f"{figure} of {row} is in no benchmark's output"


def printed_row(name: str, start: str) -> list[str]:
    """Numbers in the only row of a benchmark's output that begins with `start`."""
    lines = (ROOT / "benchmarks" / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    (row,) = [line for line in lines if " ".join(line.split()).startswith(f"{start} ")]
    return row.replace("|", " ").split()[len(start.split()) :]


def test_readme_times_match_benchmarks() -> None:
    text = " ".join(README.read_text(encoding="utf-8").split())
    *_, seconds, theirs, _, space, their_space, _, _ = printed_row("scale", "mixed [40]^40")
    ours = f"takes {seconds} s and {space} MB here"
    assert f"{ours}, where the paper prints {float(theirs):,} s and {round(int(their_space) / 1000)} GB" in text
    seconds_to_file = printed_row("release", "Adult <=3-way, 48,842")[5]
    assert f"to a file of 21 million rows, takes {float(seconds_to_file):.0f} s" in text
    (median, _, _) = printed_row("latency", "Adult, all up to 3-way 21,043,261 budget")
    assert f"a change of the budget shows in {float(median):.1f} s" in text
    assert "planned in less than a second" in text
    assert float(printed_row("published", "Adult <=3-way")[6]) < 1


def test_readme_pictures_exist_and_are_small() -> None:
    named = set(re.findall(r"\]\((\.readme/.*?)\)", README.read_text(encoding="utf-8")))
    assert named == {f".readme/{file.name}" for file in (ROOT / ".readme").iterdir()}
    source = (ROOT / "tests" / "browser" / "pictures.py").read_text(encoding="utf-8")
    (walk,) = re.findall(r'TOUR_FILE = .*"(\w+\.webp)"', source)
    taken = {f".readme/{name}.png" for name in re.findall(r'take_picture\(visit, "(\w+)"', source)}
    assert named == {*taken, f".readme/{walk}"}
    with Image.open(ROOT / ".readme" / walk) as moving:
        seconds = []
        for frame in range(moving.n_frames):
            moving.seek(frame)
            moving.load()
            seconds.append(moving.info["duration"] / 1000)
        assert 15 <= moving.n_frames <= 40
    assert 60 <= sum(seconds) <= 150
    assert (ROOT / ".readme" / walk).stat().st_size < 2_000_000
    for name in taken:
        with Image.open(ROOT / name) as picture:
            assert picture.size == (1440, 900)
        assert (ROOT / name).stat().st_size < 150_000


def test_readme_number_of_planted_bugs_is_current() -> None:
    (count,) = re.findall(r"^\| over (\d+) privacy bugs planted,", README.read_text(encoding="utf-8"), re.MULTILINE)
    assert int(count) < len(BUGS) <= int(count) + 100


def unknown_places(text: str) -> list[str]:
    """Files, modules and names that a text has in backticks but that do not exist."""
    missing = [p for p in re.findall(rf"`((?:{FOLDERS})/[^`\s]*)`", text) if not list(ROOT.glob(p.rstrip("/")))]
    dotted = re.findall(rf"`(?:python -m )?((?:{FOLDERS})(?:\.\w+)+)(?:\(.*?\))?`", text)
    for words in (name.split(".") for name in dotted):
        depth = max(k for k in range(1, len(words) + 1) if ROOT.joinpath(*words[: k - 1]).is_dir())
        place = ROOT.joinpath(*words[:depth])
        if not place.is_dir() and not place.with_suffix(".py").is_file():
            depth, place = depth - 1, place.parent
        source = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        if not all(re.search(rf"\b{n}\b", source.read_text("utf-8")) for n in words[depth:]):
            missing.append(".".join(words))
    return missing


def test_named_files_and_modules_exist() -> None:
    files = [README, ROOT / "CONTRIBUTING.md", ROOT / "demo_data" / "README.md"]
    files += [f for folder in FOLDERS.split("|") for f in (ROOT / folder).rglob("*.py") if f != Path(__file__)]
    texts = {f.relative_to(ROOT).as_posix(): f.read_text(encoding="utf-8") for f in files}
    assert sum(len(re.findall(rf"`(?:{FOLDERS})[/.]", text)) for text in texts.values()) > 50
    assert {name: missing for name, text in texts.items() if (missing := unknown_places(text))} == {}


def test_unknown_places_reports_missing_names() -> None:
    assert unknown_places("`engine/residuals`, `engine/*.py`, `engine.release.measure`, `engine.plans.plan.Plan`") == []
    gone = ["engine/centers.py", "engine.release.old", "engine.residuals.lifts.Lift"]
    assert unknown_places(", ".join(f"`{g}`" for g in gone)) == gone


def test_readme_promise_matches_budget() -> None:
    quoted = " ".join(re.findall(r"^> (.*)$", README.read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert quoted == Budget(pcost=1.0, rows_per_person=3).promise
