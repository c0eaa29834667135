"""Messages of the engine name Python arguments; command line and app replace all of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from engine._format import ARGUMENT, BARE_ARGUMENTS
from engine.cli.main import _parser, main
from engine.cli.output import OPTIONS, SUMMARIES, in_options
from engine.errors import SchemaError
from engine.mechanisms import plan
from engine.mechanisms.base import Limits, start_error
from engine.privacy import Budget
from engine.workload import Attribute, Schema, Workload
from pages.parts.shell.error_text import LABELS, in_labels

ROOT = Path(__file__).resolve().parents[1]
# strings that are Python or SQL code, not messages
CODE = {"PRAGMA", "return", "import", "python check.py"}


def texts(path: Path) -> Iterator[str]:
    """Yield the strings of a module except docstrings; values in f-strings are replaced by 0.

    Format specifications, such as ",.0f", are yielded, too.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    bodies = [
        node.body
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
    ]
    docstrings = {id(body[0].value) for body in bodies if body and isinstance(body[0], ast.Expr)}
    parts = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in node.values
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else "0" for part in node.values
            )
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in docstrings | parts
        ):
            yield node.value


def messages() -> list[str]:
    """Return the messages of the engine, without its command line, that name a Python argument."""
    engine = ROOT / "engine"
    modules = [p for p in sorted(engine.rglob("*.py")) if "cli" not in p.relative_to(engine).parts]
    sentences = [
        text for path in modules for text in texts(path) if " " in text and "<" not in text
    ]
    return [
        text
        for text in sentences
        if ARGUMENT.search(text) and not any(word in text for word in CODE)
    ]


def arguments(text: str) -> set[str]:
    """Return the names of the Python arguments in a message."""
    return {match[1] or match[3] for match in ARGUMENT.finditer(text)}


def test_messages_have_words_of_every_interface() -> None:
    names = set()
    for text in messages():
        for name in arguments(text):
            assert any(key.partition("=")[0] == name for key in OPTIONS), text
            assert any(key.partition("=")[0] == name for key in LABELS), text
        assert not arguments(in_labels(text)), text
        # the option --options takes texts such as time_limit=9, which are no Python arguments
        in_command_line = in_options(text).replace("--options ", "--options-")
        assert not {name for name in arguments(in_command_line) if "_" in name}, text
        names |= arguments(text)
    # the search finds messages at all
    assert {"count_column", "ignore", "rows_per_person", "other", "on_changed"} <= names


def test_wording_covers_bare_arguments() -> None:
    assert set(BARE_ARGUMENTS) <= OPTIONS.keys()
    assert set(BARE_ARGUMENTS) <= LABELS.keys()


def test_options_of_the_wording_exist() -> None:
    options = set()
    queue = [_parser(command) for command in SUMMARIES]
    while queue:
        parser = queue.pop()
        options |= set(parser._option_string_actions)
        for action in parser._subparsers._actions if parser._subparsers else ():
            queue += list(action.choices.values()) if isinstance(action.choices, dict) else []
    assert {word for text in OPTIONS.values() for word in re.findall(r"--[a-z-]+", text)} <= options


def test_labels_of_the_wording_exist() -> None:
    pages = "".join(
        "".join(texts(path)) for path in (ROOT / "pages").rglob("*.py") if path.name != "words.py"
    )
    for label in LABELS.values():
        for words in re.findall("“(.*?)”", label):
            first, _, value = words.partition(":")
            assert first in pages, words
            assert value.replace("{}", "").strip(" ,") in pages, words


@pytest.mark.parametrize(
    "text",
    [
        "The predicate 'fit=3' cannot be read.",
        "Give a Budget, such as Budget(rows_per_person=1).",
        "the keys \"rows_per_person\" and 'count_column'",
        "a column seed=3",
    ],
)
def test_text_without_argument_is_unchanged(text: str) -> None:
    assert in_options(text) == text
    assert in_labels(text) == text


def test_refusal_of_short_time_limit_names_control() -> None:
    refusal = str(start_error("A search", 7.2, Limits(time_limit=3.0)))
    assert "the time limit is 3 s. Set time_limit=8 or more" in refusal
    assert "Set --options time_limit=8 or more" in in_options(refusal)
    assert "Set “Time limit per mechanism (s): 8” or more" in in_labels(refusal)


@pytest.mark.parametrize("edges", [[0, 0.5], [0, 2.0**60]])
def test_option_of_attribute_is_not_an_option_of_a_command(edges: list[float]) -> None:
    with pytest.raises(SchemaError, match="the option 'integer'") as caught:
        Attribute.numeric("age", edges, integer=True)
    text = str(caught.value)
    assert in_options(text) == text
    assert in_labels(text) == text


def test_command_line_error_names_count_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    schema = Schema([Attribute.categorical("sex", ["F", "M"])])
    Path("plan.json").write_text(plan(Workload(schema).add("sex"), Budget(pcost=1.0)).to_json())
    pd.DataFrame({"sex": ["F", "M"], "n": [3, 2]}).to_csv("counts.csv", index=False)
    command = "count --plan plan.json --data counts.csv --out all.counts"
    assert main(command.split()) == 1
    error = capsys.readouterr().err
    assert "--count-column n" in error
    assert "--ignore n" in error
    assert "count_column" not in error


def test_no_message_calls_the_first_measurement_a_look() -> None:
    """The pages say "first measurement"; only names of the interface have "look"."""
    look = re.compile(r"\b(the|an?|this|new|shared|separate|first) look\b")
    wrong_texts = [
        (path.name, text)
        for path in sorted((ROOT / "engine").rglob("*.py"))
        for text in texts(path)
        if look.search(text.lower())
    ]
    assert not wrong_texts
