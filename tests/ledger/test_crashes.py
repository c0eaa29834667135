"""Power cuts and kills at any moment: no spend is lost, nothing is drawn twice."""

import os
from collections import Counter

import pytest

import engine.ledger.hash_chain
import engine.ledger.ledger
import engine.ledger.result_store
from engine.errors import ResultLost
from engine.ledger import Ledger
from tests.ledger.given import in_child, spend
from tests.release.ledger_worker import campaign


def synced(monkeypatch):
    """The names of files and folders, in the order in which they are synced and renamed."""
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


def test_a_commit_waits_for_the_disk(ledger):
    with engine.ledger.hash_chain.transaction(ledger.path, write=True, wait=1.0) as connection:
        found = {name: connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("synchronous", "journal_mode")}
        fullfsync = connection.execute("PRAGMA fullfsync").fetchone()[0]
    assert (found, fullfsync) == ({"synchronous": 3, "journal_mode": "delete"}, 1)  # 3 is EXTRA


def test_a_new_ledger_is_in_its_folder_after_a_power_cut(tmp_path, monkeypatch):
    order = synced(monkeypatch)
    Ledger.create(tmp_path / "a")
    assert ("sync", str(tmp_path)) in order


def test_a_result_is_on_the_disk_before_it_has_its_name_and_its_name_before_the_row(ledger, monkeypatch):
    receipt, order = spend(ledger), synced(monkeypatch)
    monkeypatch.setattr(engine.ledger.result_store, "_allocate", lambda file, size: None)  # syncs the empty file
    real = engine.ledger.ledger.append

    def append(*given, **content):
        order.append(("row", content["kind"]))
        return real(*given, **content)

    monkeypatch.setattr(engine.ledger.ledger, "append", append)
    path = ledger.save_result(receipt=receipt, content=b"noisy")
    steps = ["part" if name.endswith(".part") else name for _, name in order]
    assert ("sync", str(ledger.path.parent)) in order, "the folder of results is in its folder"
    assert steps[-4:] == ["part", str(path), str(path.parent), "saved"]
    assert [what for what, _ in order[-4:]] == ["sync", "rename", "sync", "row"]


def test_a_key_is_on_the_disk_before_it_has_its_name(ledger, monkeypatch):
    order, link = synced(monkeypatch), os.link
    monkeypatch.setattr(os, "link", lambda source, target: order.append(("link", str(target))) or link(source, target))
    ledger.secret("records")
    assert [what for what, _ in order] == ["sync", "link", "sync"]
    assert order[-1][1] == str(ledger.path.parent)


MOMENTS = {
    "the row is written, not committed": (engine.ledger.ledger, "append", 0, "unspent"),
    "the spend is committed, nothing drawn": (engine.ledger.ledger.Receipt, "of", 0, "lost"),
    "half the result is written": (engine.ledger.result_store, "_digest", 0, "lost"),
    "the result has its name, no row yet": (engine.ledger.result_store.Draft, "publish", 0, "lost"),
    "the saved row is written, not committed": (engine.ledger.ledger, "append", 1, "lost"),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_crash_at_the_worst_moments_never_gives_a_second_draw(ledger, moment):
    owner, name, after, outcome = MOMENTS[moment]

    def work():
        real, calls = getattr(owner, name), Counter()

        def dying(*args, **fields):
            result = real(*args, **fields)
            if calls["made"] == after:
                os._exit(9)
            calls["made"] += 1
            return result

        setattr(owner, name, dying)
        ledger.save_result(receipt=spend(ledger), content=b"noisy")

    assert in_child(work) == "died with 9"
    again = Ledger(ledger.path)
    assert again.verify() == ()
    assert spend(again).fresh == (outcome == "unspent")
    with pytest.raises(ResultLost):
        again.load_result("adult|1f3a|1")
    assert again.status("adult").spent == 0.25
    again.save_result(receipt=spend(again, attempt=2), content=b"noisy")
    assert again.load_result("adult|1f3a|2") == b"noisy"


KILLS = 12  # python -m tests.release.ledger_worker makes as many as asked for


def test_random_kills_lose_no_spend_and_draw_nothing_twice(tmp_path):
    counts = campaign(tmp_path, kills=KILLS, seed=int.from_bytes(os.urandom(4)))
    assert counts["kills"] == KILLS
    assert counts["spends"] >= counts["draws"] >= counts["saved"] > 0
