"""Two-stage releases whose process is killed: recovery, and the budget that is charged."""

import os
import signal
import sys
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

import engine.ledger.ledger
from engine.common_mechanism.stepwise import decide, finish, look, look_key, looks, resume
from engine.errors import EngineError, ResultLost
from engine.ledger import Ledger
from engine.privacy import Budget
from tests.common_mechanism.steps import (
    COMMON,
    FINE,
    RECORDS,
    TWO_WAY,
    assert_same_measurement,
    ledger_decimal,
    ledger_spends,
)
from tests.release.ledger_worker import FORK
from tests.waiting import CEILING

measuring = sys.modules["engine.release.measure"]
POINTS = ("counted", "spent", "drawn", "saved")


def die_at(point):
    """Make this process kill itself at one ``point``: "counted", "spent", "drawn" or "saved"."""
    spend = engine.ledger.ledger.Ledger.spend
    draw = measuring.draw
    save = engine.ledger.ledger.Ledger.save_result

    def die():
        os.kill(os.getpid(), signal.SIGKILL)

    def spend_or_die(*args, **fields):
        if point == "counted":
            die()
        receipt = spend(*args, **fields)
        if point == "spent" and receipt.fresh:
            die()
        return receipt

    def draw_or_die(*args):
        answers = list(draw(*args))
        if point == "drawn":
            die()
        return answers

    def save_or_die(*args, **fields):
        path = save(*args, **fields)
        if point == "saved":
            die()
        return path

    engine.ledger.ledger.Ledger.spend, measuring.draw, engine.ledger.ledger.Ledger.save_result = (
        spend_or_die,
        draw_or_die,
        save_or_die,
    )


def killed(work, point):
    """Run ``work`` in a process that kills itself at ``point``; return whether it was killed."""

    def run():
        die_at(point)
        work()

    process = FORK.Process(target=run)
    process.start()
    process.join(CEILING)
    return process.exitcode == -signal.SIGKILL


def take_look(book, attempt=1):
    return look(COMMON, RECORDS, dataset="survey", ledger=book, attempt=attempt)


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("step", ["look", "finish"])
def test_killed_step_is_charged_once_and_recovered(tmp_path, step, point):
    book = Ledger.create(tmp_path / "office.ledger")
    book.add_dataset("survey", total=Budget(pcost=2.0))
    key = look_key(COMMON, dataset="survey")
    look_cost, rest_cost = (ledger_decimal(cost) for cost in COMMON.spends[1])
    if step == "look":
        assert killed(lambda: look(COMMON, RECORDS, dataset="survey", ledger=book.path), point)
        take_look(book)
        assert ledger_spends(book) == [look_cost]
        decide(book, key, verdict=FINE)
        finish(book, key, RECORDS)
    else:
        look_result = take_look(book)
        decide(book, key, verdict=FINE)
        assert killed(lambda: finish(book.path, key, RECORDS), point)
        steps = resume(book, key)
        assert_same_measurement(steps.look, look_result)
        assert steps.lost == ()
        assert steps.is_interrupted == (point in ("spent", "drawn"))
        final = finish(book, key, RECORDS)
        assert_same_measurement(resume(book, key).finished, final)
    assert ledger_spends(book) == [look_cost, rest_cost]
    assert look_cost + rest_cost == ledger_decimal(TWO_WAY.pcost)
    assert Ledger(book.path).verify() == ()
    assert not list(Path(f"{book.path}.results").glob("*.journal"))
    assert book.verify() == ()


def test_randomly_killed_steps_are_charged_once(tmp_path):
    """Workers that look, decide and finish are killed eight times; then the steps are completed."""
    path, rng = tmp_path / "office.ledger", np.random.default_rng(0)
    Ledger.create(path).add_dataset("survey", total=Budget(pcost=8.0))

    def work():
        for attempt in range(1, 7):
            try:
                key = take_look(path, attempt).key
                if resume(path, key).choice is None:
                    decide(path, key, option=attempt % 2, by="A. Reader")
                finish(path, key, RECORDS)
            except EngineError:
                continue

    for _ in range(8):
        process = FORK.Process(target=work)
        process.start()
        process.join(float(rng.uniform(0.02, 0.25)))
        process.kill()
        process.join()
        assert Ledger(path).verify() == ()
    work()
    book, completed = Ledger(path), 0
    for key in looks(book, "survey"):
        try:
            steps = resume(book, key)
        except ResultLost:
            continue
        assert len(steps.choices) == 1
        if steps.finished is not None:
            option = COMMON.options[COMMON.names.index(steps.choice.option)]
            costs = [
                Decimal(row.pcost)
                for row in book.rows()
                if row.kind == "spend" and (row.key == key or key in row.note)
            ]
            assert sum(costs) == ledger_decimal(option.pcost)
            assert_same_measurement(finish(book, key, None), steps.finished)
            completed += 1
    keys = [row.key for row in book.rows() if row.kind == "spend"]
    assert len(keys) == len(set(keys))
    assert completed >= 3  # of the six attempts; the results of others can be lost
