"""Help texts: one screen per command, a text for every option, examples that parse."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.cli.main import _parser, main
from engine.cli.output import EXAMPLES, PROGRAM, SUMMARIES

SCREEN_LINES = 50


def subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of the commands, without those that were not imported."""
    choices: dict[str, argparse.ArgumentParser] = {}
    for action in parser._actions:
        if isinstance(action.choices, dict):
            choices |= action.choices
    return choices


def command_parsers() -> Iterator[argparse.ArgumentParser]:
    for name in SUMMARIES:
        parser = subcommands(_parser(name))[name]
        yield from subcommands(parser).values() or [parser]


def test_help_fits_one_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    for parser in (_parser(None), *command_parsers()):
        assert len(parser.format_help().splitlines()) <= SCREEN_LINES, parser.prog


def test_every_option_has_help_text() -> None:
    for parser in command_parsers():
        for action in parser._actions:
            assert action.help, (parser.prog, action.dest)


def test_every_command_has_example_that_parses() -> None:
    for words in EXAMPLES.values():
        arguments = shlex.split(words)
        _parser(arguments[0]).parse_args(arguments)
    programs = {parser.prog.removeprefix(PROGRAM).strip() for parser in command_parsers()}
    assert programs == EXAMPLES.keys()


def test_plan_overwrite_replaces_plans_only(tmp_path: Path) -> None:
    schema, out, other = tmp_path / "schema.json", tmp_path / "plan.json", tmp_path / "notes.json"
    schema.write_text('{"age": 3}')
    other.write_text("{}")

    def run(path: Path, rho: str, *options: str) -> int:
        words = ["plan", "--schema", str(schema), "--ways", "1", "--rho", rho, "--out", str(path)]
        return main([*words, *options])

    assert run(out, "1") == 0
    first = out.read_text()
    assert run(out, "2") == 1
    assert out.read_text() == first
    assert run(out, "2", "--overwrite") == 0
    assert out.read_text() != first
    assert run(other, "2", "--overwrite") == 1
    assert other.read_text() == "{}"
