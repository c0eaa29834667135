"""Help texts: length, a text for every option, examples; shell completion; --overwrite."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.cli.main import _parser, main
from engine.cli.output import EXAMPLES, PROGRAM, SUMMARIES, number, whole_number

ROOT = Path(__file__).resolve().parents[2]
SCREEN_LINES = 40
# words of which the help text of a numeric option has at least one
UNITS = (
    *("between 0 and 1", "0 to 1", "budget as", "number of", "standard error", "count of records"),
    *("all sets of K", "per K", "port", "whole number", "factor per condition"),
)


def subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return a dictionary from the name of each subcommand to its parser."""
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


def options(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield the options of a command, without hidden ones."""
    for action in parser._actions:
        if action.option_strings and action.help != argparse.SUPPRESS:
            yield action


def test_every_argument_has_help_text() -> None:
    for parser in command_parsers():
        for action in parser._actions:
            assert action.help, (parser.prog, action.dest)


def test_help_of_optional_values_names_default() -> None:
    for parser in command_parsers():
        required = {
            action
            for group in parser._mutually_exclusive_groups
            if group.required
            for action in group._group_actions
        }
        for action in options(parser):
            if action.nargs != 0 and not action.required and action not in required:
                assert "by default" in str(action.help), (parser.prog, action.dest)


def test_help_of_numbers_names_unit() -> None:
    numeric = [
        (parser.prog, str(action.help))
        for parser in command_parsers()
        for action in options(parser)
        if action.type in (number, whole_number)
    ]
    assert numeric
    for command, text in numeric:
        assert any(unit in text for unit in UNITS), (command, text)


def test_no_option_is_parsed_by_int_or_float() -> None:
    for parser in command_parsers():
        assert all(action.type not in (int, float) for action in parser._actions), parser.prog


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["plan", "--out", "p.json", "--rho", "abc"], "'abc' is not a number"),
        (["plan", "--out", "p.json", "--rho", "1", "--ways", "1.5"], "'1.5' is not a whole number"),
    ],
)
def test_invalid_number_is_refused_with_example(
    command: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(command)
    error = capsys.readouterr().err
    assert words in error
    assert "such as" in error


def completions(line: str) -> set[str]:
    """Return the completions that argcomplete gives a shell for the end of a command line."""
    request = {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line.encode()))}
    code = (
        "import os, sys\n"
        # argcomplete writes the completions to the file descriptor 8
        "os.dup2(1, 8)\n"
        "from engine.cli.main import main\n"
        "main([])"
    )
    process = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | request | {"_ARGCOMPLETE_SHELL": "bash", "_ARGCOMPLETE_IFS": "\n"},
        capture_output=True,
        text=True,
        check=True,
    )
    return {word.strip() for word in process.stdout.splitlines()}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("pl", {"plan"}),
        ("budget ch", {"change"}),
        ("plan --mechanism resid", {"residualplanner", "residualplanner+"}),
        ("release --at", {"--attempt"}),
    ],
)
def test_shell_completes_commands_options_and_choices(line: str, expected: set[str]) -> None:
    assert completions(f"{PROGRAM} {line}") == expected


def test_every_command_has_example_that_parses() -> None:
    for words in EXAMPLES.values():
        arguments = shlex.split(words)
        _parser(arguments[0]).parse_args(arguments)
    programs = {parser.prog.removeprefix(PROGRAM).strip() for parser in command_parsers()}
    assert programs == EXAMPLES.keys()


def test_plan_overwrite_replaces_plans_only(tmp_path: Path) -> None:
    schema, plan_path, notes = (
        tmp_path / "schema.json",
        tmp_path / "plan.json",
        tmp_path / "notes.json",
    )
    schema.write_text('{"age": 3}')
    notes.write_text("{}")

    def run(path: Path, rho: str, *options: str) -> int:
        words = ["plan", "--schema", str(schema), "--ways", "1", "--rho", rho, "--out", str(path)]
        return main([*words, *options])

    assert run(plan_path, "1") == 0
    first_plan = plan_path.read_text()
    assert run(plan_path, "2") == 1
    assert plan_path.read_text() == first_plan
    assert run(plan_path, "2", "--overwrite") == 0
    assert plan_path.read_text() != first_plan
    assert run(notes, "2", "--overwrite") == 1
    assert notes.read_text() == "{}"
