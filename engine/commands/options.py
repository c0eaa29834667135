"""Options of mechanisms on the command line, ``name=value``: read by their types, checked before any work."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import fields
from typing import Any, get_type_hints

from engine.errors import PlanError
from engine.mechanisms import (
    LIMITS,
    MECHANISMS,
    Mechanism,
    PlanOptions,
    checked_options,
    implied_options,
    label_of,
    variants,
)
from engine.texts import near_matches, shown
from engine.untrusted import parse_json

TYPES = get_type_hints(PlanOptions)
TOLD = "progress"  # what is shown is up to the command line
WORDS = {"true": True, "false": False, "none": None, "null": None}
OF_ALL = tuple(name for name in (*(f.name for f in fields(Mechanism)), *LIMITS) if name != TOLD)
FOR_ALL = ("time_limit", "memory_limit")  # of a comparison


def add_mechanism_options(command: argparse.ArgumentParser, *, several: bool = False) -> None:
    """Add the mechanism, or several, and their options."""
    names = [m.name for m in MECHANISMS]
    if several:
        command.add_argument("--mechanisms", nargs="+", choices=names, help="by default all, with their variants")
    else:
        command.add_argument("--mechanism", default="querysmasher", choices=names)
    one = "; querysmasher.centers=tuned is for one of several" if several else ""
    command.add_argument(
        "--options",
        nargs="+",
        default=[],
        metavar="NAME=VALUE",
        help=f"such as objective=max time_limit=60 centers=tuned{one}; lists and mappings as JSON",
    )


def mechanism_options(given: argparse.Namespace) -> dict[str, Any]:
    """Return the options of one mechanism, which it takes.

    Raises: PlanError for what is no option of it, or no value of the option.
    """
    found = implied_options(_read(given.options))
    checked_options(given.mechanism, found)
    return found


def asked_mechanisms(given: argparse.Namespace) -> tuple[list[tuple[str, dict[str, Any]]], dict[str, Any]]:
    """Return the mechanisms to compare with the options of each, which it takes, and the limits of all of them."""
    chosen = variants().values() if given.mechanisms is None else [(name, {}) for name in given.mechanisms]
    own: dict[str, list[str]] = {name: [] for name, _ in chosen}
    common = []
    for text in given.options:
        name, dot, _ = text.partition("=")[0].rpartition(".")
        if not dot:
            common.append(text)
        elif name in own:
            own[name].append(text[len(name) + 1 :])
        else:
            near = near_matches(name, own)
            raise PlanError(f"{shown(text)} is for none of those compared{near}. Choose one of {', '.join(own)}.")
    shared = _read(common)
    if alone := [name for name in shared if name not in OF_ALL]:
        raise PlanError(
            f"Not every mechanism has the option {shown(alone[0])}{near_matches(alone[0], OF_ALL)}. Say whose it is, "
            f"such as {next(iter(own))}.{alone[0]}=..., or give one that all have: {', '.join(OF_ALL)}."
        )
    limits = {name: shared.pop(name) for name in FOR_ALL if name in shared}
    asked = {}
    for name, variant in chosen:
        options = {**variant, **shared, **_read(own[name])}
        checked_options(name, options | limits)
        asked[label_of(name, options)] = name, options
    return list(asked.values()), limits


def _read(texts: Iterable[str]) -> dict[str, Any]:
    """Return options as Python values."""
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise PlanError(f"The option {shown(text)} is no NAME=VALUE. Write it like centers=tuned.")
        if name in found:
            raise PlanError(f"The option {shown(name)} is given twice. Leave one of them out.")
        if name == TOLD:
            raise PlanError("The option 'progress' is for Python. On the command line progress is always told.")
        found[name] = value if TYPES.get(name) is str else _value(value)
    return found


def _value(text: str) -> Any:
    """Return what a text stands for; one that stands for nothing else is a text.

    >>> _value("4"), _value("best"), _value("false"), _value('{"age": "range"}')
    (4, 'best', False, {'age': 'range'})
    """
    if text.casefold() in WORDS:
        return WORDS[text.casefold()]
    try:
        return parse_json(text, constants=True)
    except ValueError:
        return text
