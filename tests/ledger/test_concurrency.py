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
from tests.release.ledger_worker import COSTS, DATASETS, FORK, hammer, make
from tests.waiting import CEILING


def test_locked_ledger_is_reported_or_awaited(ledger):
    patient = Ledger(ledger.path, wait=CEILING)
    with closing(
        sqlite3.connect(ledger.path, isolation_level=None, check_same_thread=False)
    ) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(LedgerError, match="Another program was writing"):
            Ledger(ledger.path, wait=0.1)
        ledger.wait = 0.1
        with pytest.raises(LedgerError, match=r"Another program was writing.*Try again"):
            spend(ledger)
        release = threading.Timer(0.3, other.execute, args=("ROLLBACK",))
        release.start()
        assert spend(patient).fresh
        release.join()


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
    ledger, queue = make(tmp_path / "busy.ledger"), FORK.Queue()
    processes = [FORK.Process(target=hammer, args=(ledger.path, seed, queue)) for seed in range(4)]
    for process in processes:
        process.start()
    answers = [queue.get(timeout=CEILING) for _ in processes]
    for process in processes:
        process.join()
    fresh = Counter(key for keys, _ in answers for key in keys)
    rows = [row for row in ledger.rows() if row.kind == "spend"]
    assert set(fresh.values()) == {1}
    assert set(fresh) == {row.key for row in rows}
    assert sum(Decimal(row.pcost) for row in rows) <= 1
    assert ledger.status(DATASETS[0]).left < max(COSTS)
    assert all(refused for _, refused in answers)
    assert ledger.verify() == ()


@pytest.mark.parametrize("use", [Ledger, verify_ledger])
def test_verify_during_save_reports_no_problem(ledger, monkeypatch, use):
    """The ledger is locked while results are compared with rows."""
    other, real, messages = Ledger(ledger.path, wait=0.05), engine.ledger.ledger.stray_results, []

    def save_meanwhile(path, keys):
        try:
            other.save_result(receipt=spend(other), content=b"noisy")
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
