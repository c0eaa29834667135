"""Concurrent threads, processes and programs on one ledger."""

import sqlite3
import threading
from collections import Counter
from contextlib import closing
from decimal import Decimal

import pytest

import engine.ledger.ledger
from engine.errors import LedgerError
from engine.ledger import Ledger, verify_ledger
from tests.ledger.helpers import spend
from tests.release.ledger_worker import COSTS, DATASETS, FORK, create_ledger, spend_every_key
from tests.waiting import CEILING


def test_locked_ledger_is_reported_or_awaited(ledger):
    waiting_ledger = Ledger(ledger.path, wait=CEILING)
    with closing(
        sqlite3.connect(ledger.path, isolation_level=None, check_same_thread=False)
    ) as other_program:
        other_program.execute("BEGIN EXCLUSIVE")
        with pytest.raises(LedgerError, match="Another program was writing"):
            Ledger(ledger.path, wait=0.1)
        ledger.wait = 0.1
        with pytest.raises(LedgerError, match=r"Another program was writing.*Try again"):
            spend(ledger)
        unlock = threading.Timer(0.3, other_program.execute, args=("ROLLBACK",))
        unlock.start()
        assert spend(waiting_ledger).fresh
        unlock.join()


def test_long_reader_blocks_commit_but_not_open(ledger):
    ledger.wait = 0.1
    with closing(sqlite3.connect(ledger.path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM rows").fetchone()
        with pytest.raises(LedgerError, match="Another program"):
            spend(ledger)
        assert Ledger(ledger.path).status("adult").spent == 0
    assert spend(ledger).fresh


def test_four_processes_never_overspend_or_draw_twice(tmp_path):
    ledger, queue = create_ledger(tmp_path / "busy.ledger"), FORK.Queue()
    processes = [
        FORK.Process(target=spend_every_key, args=(ledger.path, seed, queue)) for seed in range(4)
    ]
    for process in processes:
        process.start()
    results = [queue.get(timeout=CEILING) for _ in processes]
    for process in processes:
        process.join()
    fresh_keys = [key for fresh, _ in results for key in fresh]
    spends = [row for row in ledger.rows() if row.kind == "spend"]
    # every spend is fresh in one process only
    assert sorted(fresh_keys) == sorted(row.key for row in spends)
    assert len(set(fresh_keys)) == len(fresh_keys)
    assert sum(Decimal(row.pcost) for row in spends) <= 1
    # the total is too small for all keys, so that every process is refused some
    assert ledger.status(DATASETS[0]).left < max(COSTS)
    assert all(refused for _, refused in results)
    assert ledger.verify() == ()


@pytest.mark.parametrize("use", [Ledger, verify_ledger])
def test_verify_during_save_reports_no_problem(ledger, monkeypatch, use):
    """The ledger is locked while results are compared with rows."""
    other_program, real, messages = (
        Ledger(ledger.path, wait=0.05),
        engine.ledger.ledger.stray_results,
        [],
    )

    def save_meanwhile(path, keys):
        try:
            other_program.save_result(receipt=spend(other_program), content=b"noisy")
        except LedgerError as error:
            messages.append(str(error))
        return real(path, keys)

    monkeypatch.setattr(engine.ledger.ledger, "stray_results", save_meanwhile)
    result = use(ledger.path)
    if use is verify_ledger:
        assert result == ()
    assert all("Another program" in text for text in messages)
    assert messages


def test_eight_threads_share_one_ledger_object(ledger):
    fresh, start = [], threading.Barrier(8)

    def click():
        start.wait()
        for attempt in (1, 2, 3):
            fresh.append(spend(ledger, attempt=attempt, pcost=0.1).fresh)

    threads = [threading.Thread(target=click) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # eight threads spend the same three keys
    assert Counter(fresh) == {True: 3, False: 8 * 3 - 3}
    assert ledger.status("adult").spent == 0.3
