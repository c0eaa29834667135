"""README and documents: blocks run unchanged; numbers, links, files and modules are current."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from PIL import Image

import engine
from benchmarks import readme
from engine.bounds import lower_bounds as best
from engine.cli.main import main
from engine.mechanisms import MECHANISMS
from engine.privacy import Budget
from tests.mutations.bugs import BUGS

README = Path(__file__).resolve().parents[2] / "README.md"
ROOT = README.parent
THREAT_MODEL = ROOT / "engine" / "THREAT_MODEL.md"
DOCUMENTS = (
    *(
        "README.md",
        "CONTRIBUTING.md",
        "tests/README.md",
        ".github/SECURITY.md",
        "demo_data/README.md",
    ),
    *("engine/THREAT_MODEL.md", "engine/ARCHITECTURE.md"),
)
FOLDERS = "engine|pages|tests|benchmarks|demo_data"
TEXT = README.read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(python|sh)\n(.*?)```", TEXT, flags=re.DOTALL)
(PRINTED,) = re.findall(r"```text\n(.*?)```", TEXT, flags=re.DOTALL)


def run_shell(block: str, folder: Path) -> None:
    """Run the commands of a shell block of the README in this process, with $work as ``folder``."""
    first, *lines = block.strip().splitlines()
    assert first == "work=$(mktemp -d)"
    for line in lines:
        program, *arguments = shlex.split(line.replace("$work", str(folder)))
        assert program == ".venv/bin/dp-query-workbench"
        assert not main(arguments), line


def link_demo_data(folder: Path) -> Path:
    """Link the demo data into a folder and return the folder."""
    (folder / "demo_data").symlink_to(ROOT / "demo_data")
    return folder


def test_readme_blocks_print_shown_output(
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys,
) -> None:
    (kind, python), (other_kind, shell) = BLOCKS
    assert (kind, other_kind) == ("python", "sh")
    monkeypatch.chdir(link_demo_data(tmp_path))
    exec(compile(python, "README.md", "exec"), {})
    assert capsys.readouterr().out == PRINTED
    # the search for the best bound is slow; its start value is a valid bound, too
    monkeypatch.setattr(best, "global_bound", partial(best.global_bound, steps=0))
    run_shell(shell, tmp_path_factory.mktemp("work"))
    assert capsys.readouterr().out.count("; spent pcost") == 1
    # the commands leave no file in the checkout, so git status stays clean
    assert [file.name for file in tmp_path.iterdir()] == ["demo_data"]


@pytest.mark.full
@pytest.mark.needs("bash")
def test_readme_blocks_run_in_shell(tmp_path: Path) -> None:
    programs = link_demo_data(tmp_path) / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name, words in (("python", ""), ("dp-query-workbench", "-m engine ")):
        (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} {words}"$@"\n')
        (programs / name).chmod(0o755)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    for kind, block in BLOCKS:
        command = (
            ["bash", "-e", "-c", block] if kind == "sh" else [str(programs / "python"), "-c", block]
        )
        subprocess.run(command, cwd=tmp_path, env=environment, check=True)
    assert {file.name for file in tmp_path.iterdir()} == {"demo_data", ".venv"}


def test_readme_is_short() -> None:
    assert len(TEXT) <= 6_000


def test_benchmarks_readme_matches_results() -> None:
    text = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    assert text == readme.readme(), "run python -m benchmarks.readme --write"


def test_readme_figures_match_benchmarks() -> None:
    section = TEXT[TEXT.index("## What it does") : TEXT.index("## From Python")]
    results = {
        file.stem: file.read_text(encoding="utf-8") for file in (ROOT / "benchmarks").glob("*.txt")
    }
    linked = re.findall(r"\[([\d.]+)(?:%| s)?\]\(benchmarks/README\.md#(\w+)\)", section)
    assert len(linked) == 5
    for figure, name in linked:
        assert figure in results[name], f"{figure} is not in benchmarks/{name}.txt"
    figures = re.findall(r"\d[\d,]*\.\d+|\d+(?:,\d{3})+", section)
    assert [
        figure for figure in figures if not any(figure in text for text in results.values())
    ] == []
    assert f"**Compares** {len(MECHANISMS)} mechanisms" in section
    table = TEXT[TEXT.index("## Mechanisms") : TEXT.index("## What is promised")]
    assert sorted(re.findall(r"`([\w+]+)`", table)) == sorted(
        mechanism.name for mechanism in MECHANISMS
    )


# question -> texts of the links to click from the README, and words of the answer
FACTS = {
    "How do I protect a person with five rows?": (
        ["Guides", "Several rows per person"],
        "To protect a person with five rows",
    ),
    "Does it read PostgreSQL?": (["Guides", "Records in a database"], "postgres://"),
    "What happens after a crash?": (
        ["Threat model"],
        "completed by the same call, with the same noise",
    ),
    "What is epsilon here?": (["Guides", "Explaining it to a lawyer"], "What is epsilon"),
    "How do I cite it?": (["CITATION.cff"], "cff-version"),
    "How does a reader verify a package?": (
        ["Guides", "Release and verify"],
        "verify --package release.zip",
    ),
    "What is not protected?": (["Threat model"], "## What is not protected"),
    "Who can open the app?": (["Threat model"], "listens only on 127.0.0.1"),
    "Why are counts negative?": (
        ["Guides", "Rounding and negative counts"],
        "Unbiased answers can be negative",
    ),
    "Can I use sampling weights?": (["Guides", "Survey weights"], "does not add up weights"),
    "What about next year's data?": (
        ["Guides", "Next year's release"],
        "plan the total for all years",
    ),
    "How much memory does it need?": (["Benchmarks"], "peak memory on two cores"),
    "Where do I report a vulnerability?": (["security"], "Report a vulnerability in private"),
    "How do I add a mechanism?": (["contributing"], "**A mechanism.**"),
    "What does a term mean?": (["Architecture"], "## Glossary"),
    "What do the tests need?": (["Tests"], "## What each level needs"),
}


@pytest.mark.parametrize("question", FACTS)
def test_fact_is_within_two_clicks_of_readme(question: str) -> None:
    clicks, words = FACTS[question]
    assert len(clicks) <= 2
    file = README
    for click in clicks:
        links = re.findall(rf"\[{re.escape(click)}\]\(([^)#]+)\)", file.read_text(encoding="utf-8"))
        assert links, f"{file.name} has no link {click}"
        file = (file.parent / links[0]).resolve()
    assert words in " ".join(file.read_text(encoding="utf-8").split())


def headings(file: Path) -> set[str]:
    """Return the anchors of the headings in a Markdown file, as GitHub writes them."""
    titles = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_linked_headings_exist(name: str) -> None:
    file = ROOT / name
    links = re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", file.read_text(encoding="utf-8"))
    assert [
        anchor
        for path, anchor in links
        if anchor not in headings((file.parent / path).resolve() if path else file)
    ] == []


def test_changelog_first_version_is_that_of_project() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    version, date = re.findall(r"^## \[([\d.]+)\] - (\d{4}-\d\d-\d\d)$", text, re.MULTILINE)[0]
    assert version == engine.__version__
    assert f"date-released: {date}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [*DOCUMENTS, "pages/guides/README.md"])
def test_document_links_exist(name: str) -> None:
    file = ROOT / name
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)[^)]*\)", file.read_text(encoding="utf-8"))
    assert [link for link in links if not (file.parent / link).exists()] == []


def test_readme_pictures_exist_and_are_small() -> None:
    linked = set(re.findall(r"\]\((\.readme/.*?)\)", README.read_text(encoding="utf-8")))
    assert linked == {f".readme/{file.name}" for file in (ROOT / ".readme").iterdir()}
    source = (ROOT / "tests" / "browser" / "pictures.py").read_text(encoding="utf-8")
    (tour,) = re.findall(r'TOUR_FILE = .*"(\w+\.webp)"', source)
    taken = {f".readme/{name}.png" for name in re.findall(r'take_picture\(visit, "(\w+)"', source)}
    assert linked == {*taken, f".readme/{tour}"}
    with Image.open(ROOT / ".readme" / tour) as animation:
        seconds = []
        for frame in range(animation.n_frames):
            animation.seek(frame)
            animation.load()
            seconds.append(animation.info["duration"] / 1000)
        assert 15 <= animation.n_frames <= 40
    assert 60 <= sum(seconds) <= 150
    assert (ROOT / ".readme" / tour).stat().st_size < 2_000_000
    for name in taken:
        with Image.open(ROOT / name) as picture:
            assert picture.size == (1440, 900)
        assert (ROOT / name).stat().st_size < 150_000


def test_number_of_planted_bugs_is_current() -> None:
    texts = TEXT + THREAT_MODEL.read_text(encoding="utf-8")
    (count,) = {int(n) for n in re.findall(r"ore than \[?(\d+) (?:privacy|planted) bugs", texts)}
    assert count < len(BUGS) <= count + 100


def unknown_places(text: str) -> list[str]:
    """Return the files, modules and names in backticks in a text that do not exist."""
    missing = [
        p
        for p in re.findall(rf"`((?:{FOLDERS})/[^`\s]*)`", text)
        if not list(ROOT.glob(p.rstrip("/")))
    ]
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
    files = [ROOT / name for name in DOCUMENTS]
    files += (ROOT / "pages" / "guides").glob("*.md")
    for folder in FOLDERS.split("|"):
        files += (ROOT / folder).rglob("*.py")
    files.remove(Path(__file__))
    texts = {file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8") for file in files}
    assert sum(len(re.findall(rf"`(?:{FOLDERS})[/.]", text)) for text in texts.values()) > 50
    missing = {name: unknown_places(text) for name, text in texts.items()}
    assert {name: places for name, places in missing.items() if places} == {}


def test_unknown_places_reports_missing_names() -> None:
    assert (
        unknown_places(
            "`engine/residuals`, `engine/*.py`, `engine.release.measure`, `engine.plans.plan.Plan`"
        )
        == []
    )
    missing = ["engine/centers.py", "engine.release.old", "engine.residuals.lifts.Lift"]
    assert unknown_places(", ".join(f"`{place}`" for place in missing)) == missing


def test_threat_model_promise_matches_budget() -> None:
    quoted = " ".join(
        re.findall(r"^> (.*)$", THREAT_MODEL.read_text(encoding="utf-8"), flags=re.MULTILINE)
    )
    assert quoted == Budget(pcost=1.0, rows_per_person=3).promise
