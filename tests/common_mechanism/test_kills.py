"""Steps that are killed at any point: nothing is lost, and each is charged once."""

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
from tests.common_mechanism.steps import COMMON, FINE, RECORDS, same, spent
from tests.release.ledger_worker import FORK
from tests.waiting import CEILING

measuring = sys.modules["engine.release.measure"]
POINTS = ("counted", "spent", "drawn", "saved")


def die_at(point):
    """Make this process kill itself at one point of a step."""
    die = lambda: os.kill(os.getpid(), signal.SIGKILL)  # noqa: E731
    spend, draw, save = (
        engine.ledger.ledger.Ledger.spend,
        measuring.draw,
        engine.ledger.ledger.Ledger.save_result,
    )

    def dying_spend(*args, **fields):
        if point == "counted":
            die()
        receipt = spend(*args, **fields)
        if point == "spent" and receipt.fresh:
            die()
        return receipt

    def dying_draw(*args):
        answers = list(draw(*args))
        if point == "drawn":
            die()
        return answers

    def dying_save(*args, **fields):
        path = save(*args, **fields)
        if point == "saved":
            die()
        return path

    engine.ledger.ledger.Ledger.spend, measuring.draw, engine.ledger.ledger.Ledger.save_result = (
        dying_spend,
        dying_draw,
        dying_save,
    )


def killed(work, point):
    def run():
        die_at(point)
        work()

    process = FORK.Process(target=run)
    process.start()
    process.join(CEILING)
    return process.exitcode == -signal.SIGKILL


def looked_under(book):
    return look(COMMON, RECORDS, dataset="survey", ledger=book)


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("step", ["look", "finish"])
def test_a_kill_at_any_point_loses_nothing_and_is_charged_once(tmp_path, step, point):
    book = Ledger.create(tmp_path / "office.ledger")
    book.add_dataset("survey", total=Budget(pcost=2.0))
    key, total = look_key(COMMON, dataset="survey"), Decimal(repr(COMMON.options[1].pcost))
    first, second = (Decimal(repr(cost)) for cost in COMMON.spends[1])
    if step == "look":
        assert killed(lambda: look(COMMON, RECORDS, dataset="survey", ledger=book.path), point)
        looked_under(book)
        assert spent(book) == [first]
        decide(book, key, verdict=FINE)
        finish(book, key, RECORDS)
    else:
        before = looked_under(book)
        decide(book, key, verdict=FINE)
        assert killed(lambda: finish(book.path, key, RECORDS), point)
        same(resume(book, key).look, before)
        assert (resume(book, key).lost, resume(book, key).is_interrupted) == ((), point in ("spent", "drawn"))
        done = finish(book, key, RECORDS)
        same(resume(book, key).finished, done)
        assert spent(book) == [first, second]
    assert sum(spent(book)) == total
    assert Ledger(book.path).verify() == ()
    assert not list(Path(f"{book.path}.results").glob("*.journal"))
    assert book.verify() == ()


def test_a_campaign_of_kills_at_random_moments(tmp_path):
    """Workers that look, decide and finish are killed again and again; then one worker ends what they began."""
    path, rng = tmp_path / "office.ledger", np.random.default_rng(0)
    Ledger.create(path).add_dataset("survey", total=Budget(pcost=8.0))
    common = COMMON

    def work():
        for attempt in range(1, 7):
            try:
                key = look(common, RECORDS, dataset="survey", ledger=path, attempt=attempt).key
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
    book, endings = Ledger(path), 0
    for key in looks(book, "survey"):
        try:
            steps = resume(book, key)
        except ResultLost:
            continue
        assert len(steps.choices) == 1
        if steps.finished is not None:
            i = common.names.index(steps.choice.option)
            own = [Decimal(r.pcost) for r in book.rows() if r.kind == "spend" and (r.key == key or key in r.note)]
            assert sum(own) == Decimal(repr(common.options[i].pcost))
            same(finish(book, key, None), steps.finished)
            endings += 1
    keys = [row.key for row in book.rows() if row.kind == "spend"]
    assert len(keys) == len(set(keys))
    assert endings >= 3
