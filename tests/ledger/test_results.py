"""Stored results: immutable, private and checked when they are loaded."""

import errno
import os
import stat
from pathlib import Path

import pytest

from engine.errors import LedgerError, ResultLost
from engine.ledger import Ledger
from engine.privacy import Budget
from tests.ledger.helpers import spend


def test_save_result_is_immutable_and_readable_after_reopen(ledger):
    receipt = spend(ledger)
    path = ledger.save_result(receipt=receipt, content=b"noisy")
    assert Ledger(ledger.path).load_result(receipt.key) == b"noisy"
    assert Ledger(ledger.path).result_path(receipt.key) == path
    # a retry with the same content is allowed
    ledger.save_result(receipt=receipt, content=b"noisy")
    with pytest.raises(LedgerError, match="cannot be replaced"):
        ledger.save_result(receipt=receipt, content=b"other")
    assert ledger.load_result(receipt.key) == b"noisy"
    assert [row.kind for row in ledger.rows()].count("saved") == 1


def test_save_result_accepts_writer_function(ledger):
    receipt = spend(ledger)

    def write(file):
        for piece in range(40):
            file.write(bytes([piece]) * 250_000)
        file.seek(0)
        file.write(b"HEAD")

    path = ledger.save_result(receipt=receipt, content=write)
    assert path.stat().st_size == 40 * 250_000
    assert ledger.load_result(receipt.key)[:5] == b"HEAD\x00"
    assert ledger.rows()[-1].size == 40 * 250_000


def test_save_result_with_repeated_receipt_is_refused(ledger):
    spend(ledger)
    with pytest.raises(LedgerError, match="only the call that spent"):
        ledger.save_result(receipt=spend(ledger), content=b"second draw")


def test_save_result_with_foreign_receipt_is_refused(ledger, tmp_path):
    other_ledger = Ledger.create(tmp_path / "other.ledger")
    other_ledger.add_dataset("adult", total=Budget(pcost=1.0), note="a first test")
    foreign_receipt = spend(other_ledger)
    spend(ledger)
    with pytest.raises(LedgerError, match="another ledger"):
        ledger.save_result(receipt=foreign_receipt, content=b"noisy")
    assert ledger.verify() == ()


def test_load_result_never_saved_raises_result_lost(ledger):
    key = spend(ledger).key
    with pytest.raises(ResultLost, match=r"no result is saved.*new attempt"):
        ledger.load_result(key)
    with pytest.raises(LedgerError, match="never spent"):
        ledger.load_result("adult|1f3a|2")


@pytest.mark.parametrize(
    "damage",
    [lambda path: path.write_bytes(b"nois2"), lambda path: path.write_bytes(b"n"), os.unlink],
    ids=["edited", "shortened", "missing"],
)
def test_damaged_or_missing_result_is_detected(ledger, damage):
    receipt = spend(ledger)
    damage(ledger.save_result(receipt=receipt, content=b"noisy"))
    with pytest.raises(ResultLost, match="Budget was spent, but the saved result"):
        ledger.load_result(receipt.key)
    assert len(ledger.verify()) == 1
    assert ledger.verify(results=False) == ()


@pytest.mark.parametrize(
    "key", ["../../escape", "/etc/passwd", "a/b", "..", "C:\\x", "con", "x" * 500]
)
def test_result_path_of_hostile_key_stays_in_folder(ledger, tmp_path, key):
    receipt = ledger.spend(dataset="adult", key=key, pcost=0.1, plan_hash="1f3a")
    path = ledger.save_result(receipt=receipt, content=b"x")
    assert path.parent == tmp_path / "budget.ledger.results"
    assert {p.name for p in tmp_path.iterdir()} == {"budget.ledger", "budget.ledger.results"}


def test_failed_result_writer_can_be_retried(ledger):
    receipt = spend(ledger)

    def full(file):
        file.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(LedgerError, match=r"No space left on device.*same records"):
        ledger.save_result(receipt=receipt, content=full)
    with pytest.raises(KeyError):
        ledger.save_result(receipt=receipt, content=lambda file: {}["a bug in the writer"])
    assert list((ledger.path.parent / "budget.ledger.results").iterdir()) == []
    ledger.save_result(receipt=receipt, content=b"noisy")
    assert ledger.load_result(receipt.key) == b"noisy"


def test_result_files_have_owner_only_permissions(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        for has_folder in (False, True):
            ledger = Ledger.create(tmp_path / f"{has_folder}.ledger")
            ledger.add_dataset("a", total=Budget(pcost=1.0))
            folder = tmp_path / f"{has_folder}.ledger.results"
            if has_folder:
                folder.mkdir(mode=0o755)
            receipt = ledger.spend(dataset="a", key="k", pcost=0.5, plan_hash="1f")
            ledger.save_result(receipt=receipt, content=b"noisy")
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            assert stat.S_IMODE(ledger.path.stat().st_mode) == 0o600
    finally:
        os.umask(old)
