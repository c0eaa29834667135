"""A release of many blocks that is killed again and again, at other places every time, until it is let finish."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from engine.ledger import Ledger, release_key
from engine.plans import Plan
from engine.privacy import Budget
from engine.release import measure
from engine.release.measure import is_unfinished
from tests.waiting import CEILING

FORK = multiprocessing.get_context("fork")
STEPS = (("engine.release.noisy_answers", "discrete_gaussian"), ("engine.release.measure", "estimate"))


def campaign(made: Plan, data: Any, folder: Path, kills: int) -> Iterator[str]:
    """Kill a release at evenly spread blocks, drawn and saved ones, and yield what differs from one that went on.

    The other one goes on in a copy of the folder, from the spend and the journal that the first kill left.
    """
    (folder / "here").mkdir()
    book = Ledger.create(folder / "here" / "office.ledger")
    book.add_dataset("survey", total=Budget(pcost=10 * made.pcost))

    def release(place: Path) -> Any:
        return measure(made, data, dataset="survey", ledger=place / "office.ledger")

    steps = 2 * len(made.blocks)
    for i in range(kills):
        _killed(lambda: release(book.path.parent), 1 + steps * i // kills)
        if not i:
            shutil.copytree(folder / "here", folder / "copy")
        if book.status("survey").spent != made.pcost:
            yield f"kill {i + 1}: spent {book.status('survey').spent} and not {made.pcost}"
        if not is_unfinished(book, release_key(dataset="survey", plan_hash=made.hash, attempt=1)):
            yield f"kill {i + 1}: it cannot be taken up"
    found, other = release(folder / "here"), release(folder / "copy")
    if found.utc != other.utc:
        yield "the spend is another one"
    for space in made.blocks:
        if (found.answers_on_grid[space] != other.answers_on_grid[space]).any():
            yield f"other noise on {space}"
    kinds = [row.kind for row in book.rows()]
    if kinds.count("spend") != 1 or kinds.count("saved") != 1 or book.verify():
        yield f"the ledger holds {kinds}"


def _killed(work: Callable[[], object], step: int) -> None:
    """Run in a process that kills itself at a step: blocks are drawn one after the other, then saved."""

    def run() -> None:
        left = step
        for module, name in STEPS:
            real = getattr(sys.modules[module], name)

            def counted(*given: Any, real: Callable[..., Any] = real, **named: Any) -> Any:
                nonlocal left
                left -= 1
                if not left:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*given, **named)

            setattr(sys.modules[module], name, counted)
        work()

    process = FORK.Process(target=run)
    process.start()
    process.join(CEILING)
    assert process.exitcode == -signal.SIGKILL, "it went to its end, or hangs"
