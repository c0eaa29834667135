"""Texts on screen do not contain phrases that were replaced in earlier versions."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import demo_data

ROOT = Path(__file__).resolve().parents[2]
# Files with texts that the app shows. Other tests check the messages of the engine.
SOURCES = [
    ROOT / "app.py",
    *sorted((ROOT / "pages").rglob("*.py")),
    *sorted((ROOT / "engine" / "figures").rglob("*.py")),
]
COARSE = [
    ROOT / "pages" / "coarse.py",
    ROOT / "engine" / "figures" / "two_stage.py",
    *(
        path
        for path in sorted((ROOT / "pages" / "parts" / "coarse").glob("*.py"))
        if path.name != "script.py"  # Python code
    ),
]
GUIDES = sorted((ROOT / "pages" / "guides").glob("*.md"))
FENCED = re.compile(r"^```.*?^```$|`[^`\n]+`", re.DOTALL | re.MULTILINE)
UNITS = "person|people|rows?|records?|tables?|lines?|cells?|query|queries|year|day|group|attribute"
# Phrases that texts must not contain, as regular expressions by name.  Case is ignored.
HABITS = {
    "exact in place of accurate": r"\b(least|most|more|less|as|how|so) exact\b|\bexactness\b",
    "dear in place of expensive": r"\bdear(er|est|ly)?\b",
    "tell in place of show": r"\b(tells?|told|telling)\b",
    "X a Y in place of X per Y": rf"\b({UNITS}|one|numbers?|errors?|counts?|seconds?) an? ({UNITS})\b",
    "no number in place of not a number": r"\bno number\b",
    "has to wait in place of to continue": r"\b(has|have) to wait\b",
    "whoever in place of anyone who": r"\bwho(so)?ever\b|\bnobody\b|\beverybody\b",
    "say in place of choose": r"\bsay the\b|\bto say (it|so)\b|\bask(s|ed)? the same\b",
    "two names for the app": r"\b(studio|workbench)\b",
    "two names for a table": r"\bk-way\b|\bgroups? of queries\b",
    "own or rest in place of remainder": r"\bthe rest\b|\bof (its|their|your) own\b",
    "look in place of first measurement": r"\b(the|an?|this|new|shared|separate|first) looks?\b",
    "house and family": r"\b(keeper|house rules?|sibling|kin)\b",
}


def texts_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line number, text) of every string literal that contains a space; omit docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "…" for part in node.values]
            text = "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = "" if id(node) in docstrings else node.value
        else:
            continue
        if " " in text.strip():
            yield node.lineno, text


def habits_in(text: str) -> list[str]:
    return [habit for habit, pattern in HABITS.items() if re.search(pattern, text, re.IGNORECASE)]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_texts_of_pages_have_no_forbidden_habits(path: Path) -> None:
    problems = [
        f"{path.relative_to(ROOT)}:{line}: {habit}: {text.strip()[:80]!r}"
        for line, text in texts_of(path)
        for habit in habits_in(text)
    ]
    assert problems == []


@pytest.mark.parametrize("path", COARSE, ids=lambda path: path.name)
def test_coarse_page_names_measurements_in_plain_words(path: Path) -> None:
    """The words of the Python code, look and remainder, occur only in the tooltip of the page."""
    problems = [
        (line, text.strip()[:80])
        for line, text in texts_of(path)
        if re.search(r"\b(looks?|remainders?)\b", text, re.IGNORECASE) and "**look**" not in text
    ]
    assert problems == []


@pytest.mark.parametrize("path", GUIDES, ids=lambda path: path.name)
def test_guides_have_no_forbidden_habits(path: Path) -> None:
    text = FENCED.sub("", path.read_text(encoding="utf-8"))
    lines = [line for line in text.splitlines() if not line.startswith("    ")]
    assert [(line, habit) for line in lines for habit in habits_in(line)] == []


def test_demos_have_no_forbidden_habits() -> None:
    texts = [*demo_data.TITLES.values(), *demo_data.WORDS.values()]
    assert [(text, habit) for text in texts for habit in habits_in(text)] == []


@pytest.mark.parametrize(
    "text",
    [
        "How exact every number will be",
        "The dearest table",
        "It tells whose row it is",
        "Labels, one a line",
        "at most 3 rows a person",
        "Release has to wait",
        "Take one into the studio",
        "All k-way sets",
    ],
)
def test_forbidden_habits_are_reported(text: str) -> None:
    assert habits_in(text)
