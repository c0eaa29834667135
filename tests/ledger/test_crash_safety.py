"""Order of disk writes, and recovery from kills: no lost spend, no second draw."""

import os
from collections import Counter

import pytest

import engine.ledger.ledger
import engine.ledger.release_files
import engine.ledger.sqlite_file
from engine.errors import ResultLost
from engine.ledger import Ledger
from tests.ledger.helpers import in_child, spend
from tests.release.ledger_worker import campaign


def record_syncs(monkeypatch):
    """Return a list to which all later syncs and renames of files and folders are appended."""
    order, sync, rename = [], os.fsync, os.replace

    def fsync(handle):
        order.append(("sync", os.readlink(f"/proc/self/fd/{handle}")))
        sync(handle)

    def replace(source, target):
        order.append(("rename", str(target)))
        rename(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    return order


def test_transaction_commit_syncs_to_disk(ledger):
    with engine.ledger.sqlite_file.transaction(ledger.path, write=True, wait=1.0) as connection:
        pragmas = {
            name: connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("synchronous", "journal_mode", "fullfsync")
        }
    # 3 is the level EXTRA of SQLite
    assert pragmas == {"synchronous": 3, "journal_mode": "delete", "fullfsync": 1}


def test_create_ledger_syncs_folder(tmp_path, monkeypatch):
    order = record_syncs(monkeypatch)
    Ledger.create(tmp_path / "a")
    assert ("sync", str(tmp_path)) in order


def test_save_result_syncs_file_then_name_then_row(ledger, monkeypatch):
    receipt, order = spend(ledger), record_syncs(monkeypatch)
    # The allocation of disk space also syncs the file, which would be recorded here.
    monkeypatch.setattr(engine.ledger.release_files, "_allocate", lambda file, size: None)
    real = engine.ledger.ledger.append

    def append(*args, **content):
        order.append(("row", content["kind"]))
        return real(*args, **content)

    monkeypatch.setattr(engine.ledger.ledger, "append", append)
    path = ledger.save_result(receipt=receipt, content=b"noisy")
    assert ("sync", str(ledger.path.parent)) in order  # for the new folder of results
    (event, part), *last_steps = order[-4:]
    assert event == "sync"
    assert part.endswith(".part")
    assert last_steps == [("rename", str(path)), ("sync", str(path.parent)), ("row", "saved")]


def test_secret_key_is_synced_before_link(ledger, monkeypatch):
    order, link = record_syncs(monkeypatch), os.link

    def recorded_link(source, target):
        order.append(("link", str(target)))
        link(source, target)

    monkeypatch.setattr(os, "link", recorded_link)
    ledger.secret("records")
    assert [event for event, _ in order] == ["sync", "link", "sync"]
    assert order[-1] == ("sync", str(ledger.path.parent))


# Maps the moment of a crash to (owner, name, number of earlier calls, outcome).  The process ends
# after a call of the function ``name`` of ``owner``; the spend is then "unspent" or "lost".
MOMENTS = {
    "the row is written, not committed": (engine.ledger.ledger, "append", 0, "unspent"),
    "the spend is committed, nothing drawn": (engine.ledger.ledger.Receipt, "of", 0, "lost"),
    "result is partly written": (engine.ledger.release_files, "_digest", 0, "lost"),
    "the result has its name, no row yet": (
        engine.ledger.release_files.Draft,
        "rename_to",
        0,
        "lost",
    ),
    "the saved row is written, not committed": (engine.ledger.ledger, "append", 1, "lost"),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_crash_at_critical_step_allows_no_second_draw(ledger, moment):
    owner, name, earlier_calls, outcome = MOMENTS[moment]

    def work():
        real, calls = getattr(owner, name), Counter()

        def call_and_exit(*args, **fields):
            result = real(*args, **fields)
            if calls[name] == earlier_calls:
                os._exit(9)
            calls[name] += 1
            return result

        setattr(owner, name, call_and_exit)
        ledger.save_result(receipt=spend(ledger), content=b"noisy")

    assert in_child(work) == "died with 9"
    reopened = Ledger(ledger.path)
    assert reopened.verify() == ()
    assert spend(reopened).fresh == (outcome == "unspent")
    with pytest.raises(ResultLost):
        reopened.load_result("adult|1f3a|1")
    assert reopened.status("adult").spent == 0.25
    reopened.save_result(receipt=spend(reopened, attempt=2), content=b"noisy")
    assert reopened.load_result("adult|1f3a|2") == b"noisy"


KILLS = 12  # more with `python -m tests.release.ledger_worker --kills N`


def test_random_kills_lose_no_spend_or_draw(tmp_path):
    counts = campaign(tmp_path, kills=KILLS, seed=int.from_bytes(os.urandom(4)))
    assert counts["kills"] == KILLS
    assert counts["spends"] >= counts["draws"] >= counts["saved"] > 0
