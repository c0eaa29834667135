"""The command ask: further questions to what was measured, at no further privacy cost."""

from __future__ import annotations

import argparse
from typing import Any

from engine.commands.given import add_asked_file, asked_in
from engine.commands.released import RELEASE_KEYS, add_release_options, head_of, release_data, release_of
from engine.commands.reply import Commands, Reply, add_command
from engine.errors import PlanError
from engine.insight import condition_query, further_answers


def add_asking_commands(commands: Commands) -> None:
    """Add the command ``ask``."""
    ask = add_command(
        commands,
        "ask",
        _ask,
        "answer further questions from a release; costs nothing",
        keys=f"{RELEASE_KEYS} confidence answers together",
    )
    add_release_options(ask)
    what = ask.add_mutually_exclusive_group(required=True)
    what.add_argument("--where", nargs="+", metavar="CONDITION", help="such as \"age >= 30 and sex == 'F'\"")
    what.add_argument("--total", action="store_true", help="the number of all records")
    add_asked_file(ask, what)
    ask.add_argument(
        "--times", nargs="+", type=float, metavar="NUMBER", help="one a condition: their sum, such as 1 -1 for two"
    )
    ask.add_argument("--confidence", type=float, default=0.95)


def _ask(given: argparse.Namespace) -> Reply:
    if given.times is not None and given.where is None:
        raise PlanError("--times adds up the counts of conditions. Give them by --where, or leave --times out.")
    if given.times is not None and len(given.times) != len(given.where):
        raise PlanError(f"--times has {len(given.times)} numbers for {len(given.where)} conditions. Give one for each.")
    found = release_of(given)
    together: dict[str, Any] | None = None
    if given.workload is not None:
        asked = asked_in(given.workload, found.plan.schema)
        answers: list[Any] = further_answers(found, asked, given.confidence).to_dict("records")
    else:
        queries = [condition_query(found.plan.schema, text) for text in given.where or [""]]
        pairs = [(query.attributes, query.tensor) for query in queries]
        answers = [
            {"query": query.text} | vars(found.combination([pair], [1.0], given.confidence))
            for query, pair in zip(queries, pairs, strict=True)
        ]
        if given.times is not None:
            text = " + ".join(f"{c:g} × ({q.text})" for c, q in zip(given.times, queries, strict=True))
            together = {"query": text} | vars(found.combination(pairs, given.times, given.confidence))
    rows = [*answers, *([together] if together else [])]
    lines = [f"{head_of(found)}; intervals at {given.confidence:g}"]
    lines += [
        f"{row['query']}: {row['answer']:.6g}, standard error {row['std']:.4g}, {row['low']:.6g} to {row['high']:.6g}"
        for row in rows
    ]
    data = release_data(found) | {"confidence": given.confidence, "answers": answers, "together": together}
    return Reply(text="\n".join(lines), data=data)
