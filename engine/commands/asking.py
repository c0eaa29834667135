"""The command ask: further questions to what was measured, at no further privacy cost."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from engine.choice import stepwise
from engine.commands.given import add_asked_file, asked_in
from engine.commands.reply import Commands, Reply, add_command
from engine.errors import LedgerError, PlanError
from engine.insight import condition_query, further_answers
from engine.release import Ledger, Measurement, load_measurement, releases

STEP = ":"  # between the word and the hash in what a step was spent for


def add_asking_commands(commands: Commands) -> None:
    """Add the command ``ask``."""
    ask = add_command(
        commands,
        "ask",
        _ask,
        "answer further questions from a release; costs nothing",
        keys="dataset key released rehearsal confidence answers together",
    )
    source = ask.add_mutually_exclusive_group(required=True)
    source.add_argument("--ledger", type=Path, help="with --key, or --dataset where it has one release")
    source.add_argument("--measurement", type=Path, help="a file that Measurement.save wrote")
    ask.add_argument("--key", help="of a release or a look, as their replies name it")
    ask.add_argument("--dataset", help="name in the ledger")
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
    found = _source(given)
    together: dict[str, Any] | None = None
    if given.workload is not None:
        asked = asked_in(given.workload, found.plan.schema, whole_numbers=given.whole_numbers)
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
    head = "REHEARSAL, not for publication" if found.rehearsal else f"{found.dataset}, released {found.utc}"
    rows = [*answers, *([together] if together else [])]
    lines = [f"{head}; intervals at {given.confidence:g}"]
    lines += [
        f"{row['query']}: {row['answer']:.6g}, standard error {row['std']:.4g}, {row['low']:.6g} to {row['high']:.6g}"
        for row in rows
    ]
    data = {
        "dataset": found.dataset or None,
        "key": found.key or None,
        "released": found.utc or None,
        "rehearsal": found.rehearsal,
        "confidence": given.confidence,
        "answers": answers,
        "together": together,
    }
    return Reply(text="\n".join(lines), data=data)


def _source(given: argparse.Namespace) -> Measurement:
    """The measurement that is asked."""
    if given.ledger is None:
        if given.key is not None or given.dataset is not None:
            raise PlanError("--key and --dataset name a release in a --ledger. Leave them out, or give the ledger.")
        return Measurement.load(given.measurement)
    book = Ledger(given.ledger)
    key = given.key
    if key is None:
        keys = [receipt.key for receipt in releases(book, given.dataset or "")]
        if len(keys) != 1:
            words = f"{len(keys)} releases of {given.dataset!r}" if given.dataset else "no --dataset"
            listed = f", one of {', '.join(map(repr, keys[:5]))}" if keys else ""
            raise LedgerError(f"There are {words} to ask. Give the --key of the one that is meant{listed}.")
        (key,) = keys
    receipt = book.find(key)
    if receipt is None or STEP not in receipt.plan_hash:
        return load_measurement(book, key)
    steps = stepwise.resume(book, key)
    return steps.look if steps.finished is None else steps.finished
