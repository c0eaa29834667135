"""Repeated kills of one release at different steps, until it finishes."""

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
STEPS = (
    ("engine.release.add_noise", "discrete_gaussian"),
    ("engine.release.measure", "estimate"),
)


def campaign(plan: Plan, data: Any, folder: Path, kills: int) -> Iterator[str]:
    """Kill a release at evenly spaced steps and yield its differences from a reference.

    The reference continues in a copy of the folder after the first kill, without further kills.
    """
    (folder / "killed").mkdir()
    book = Ledger.create(folder / "killed" / "office.ledger")
    book.add_dataset("survey", total=Budget(pcost=10 * plan.pcost))

    def release(folder: Path) -> Any:
        return measure(plan, data, dataset="survey", ledger=folder / "office.ledger")

    steps = 2 * len(plan.blocks)  # the noise and the estimate of every block
    for i in range(kills):
        _run_and_kill(lambda: release(book.path.parent), 1 + steps * i // kills)
        if not i:
            shutil.copytree(folder / "killed", folder / "copy")
        if book.status("survey").spent != plan.pcost:
            yield f"kill {i + 1}: spent {book.status('survey').spent} instead of {plan.pcost}"
        if not is_unfinished(book, release_key(dataset="survey", plan_hash=plan.hash, attempt=1)):
            yield f"kill {i + 1}: the release cannot be resumed"
    measurement, reference = release(folder / "killed"), release(folder / "copy")
    if measurement.utc != reference.utc:
        yield "the time of the spend differs"
    for space in plan.blocks:
        if (measurement.answers_on_grid[space] != reference.answers_on_grid[space]).any():
            yield f"different noise on {space}"
    kinds = [row.kind for row in book.rows()]
    if kinds.count("spend") != 1 or kinds.count("saved") != 1 or book.verify():
        yield f"the ledger has rows of the kinds {kinds}"


def _run_and_kill(work: Callable[[], object], step: int) -> None:
    """Run a release in a process that kills itself at a step.

    The steps are the calls of the functions in `STEPS`: noise is drawn for every block, then every
    block is estimated.
    """

    def run() -> None:
        steps_left = step
        for module, name in STEPS:
            real = getattr(sys.modules[module], name)

            def kill_at_last_step(
                *args: Any, real: Callable[..., Any] = real, **options: Any
            ) -> Any:
                nonlocal steps_left
                steps_left -= 1
                if not steps_left:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*args, **options)

            setattr(sys.modules[module], name, kill_at_last_step)
        work()

    process = FORK.Process(target=run)
    process.start()
    process.join(CEILING)
    assert process.exitcode == -signal.SIGKILL, "the release finished, or hangs"
