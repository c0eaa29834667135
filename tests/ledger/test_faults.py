"""Missing, foreign and damaged ledgers, full disks and missing permissions."""

import os
import resource
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

import pytest

import engine.ledger.ledger
from engine.errors import LedgerError
from engine.ledger import Ledger, verify_ledger
from engine.privacy import Budget
from tests.ledger.helpers import fill, in_child, spend


def assert_refused(path, words):
    """Assert that a ledger cannot be opened, is reported as invalid, and keeps its size.

    The message of the error must match ``words``.
    """
    size = os.path.getsize(path) if os.path.isfile(path) else None
    with pytest.raises(LedgerError, match=words):
        Ledger(path, wait=0.2)
    assert verify_ledger(path, wait=0.2) != ()
    assert (os.path.getsize(path) if os.path.isfile(path) else None) == size


def test_open_missing_ledger_is_refused(tmp_path):
    assert_refused(tmp_path / "none", "no ledger at .* restore it")
    assert_refused(tmp_path / "no" / "folder", "no ledger at")
    assert_refused(tmp_path, "not a regular file")
    assert list(tmp_path.iterdir()) == []


def test_open_other_file_is_refused_and_unchanged(tmp_path):
    path = tmp_path / "x"
    for content in (b"", b"hello\n" * 1000, b"SQLite format 3\0" + b"\xff" * 5000):
        path.write_bytes(content)
        assert_refused(path, "not a ledger|damaged")
        assert path.read_bytes() == content
    path.unlink()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE rows(seq)")
    assert_refused(path, "not a ledger")


def test_open_later_format_is_refused(ledger):
    with closing(sqlite3.connect(ledger.path)) as connection:
        connection.execute("PRAGMA user_version=2")
    assert_refused(ledger.path, "format 2")


def test_damaged_files_are_refused(ledger):
    fill(ledger)
    content = ledger.path.read_bytes()
    for size in range(0, len(content), 1500):
        ledger.path.write_bytes(content[:size])
        assert_refused(ledger.path, "not a ledger|damaged|cannot be trusted|could not be read")
    page_bytes = 4096  # of SQLite
    for start in range(0, len(content) - page_bytes + 1, page_bytes):
        end = start + page_bytes
        ledger.path.write_bytes(content[:start] + bytes(page_bytes) + content[end:])
        assert verify_ledger(ledger.path) != (), f"page of zeros at byte {start}"
    ledger.path.write_bytes(content)
    assert Ledger(ledger.path).verify() == ()


def test_flipped_bytes_are_refused_or_harmless(ledger):
    """A flipped byte in unused space changes nothing; any other is detected before a spend."""
    fill(ledger)
    content, rows = ledger.path.read_bytes(), ledger.rows()
    detected = 0
    for position in range(0, len(content), 61):
        damaged = bytearray(content)
        damaged[position] ^= 0x41
        ledger.path.write_bytes(damaged)
        try:
            assert Ledger(ledger.path, wait=0.1).rows() == rows
        except LedgerError:
            detected += 1
    assert detected > 20  # the test covers bytes in use


def test_create_over_existing_ledger_is_refused(ledger, tmp_path):
    before = ledger.path.read_bytes()
    with pytest.raises(LedgerError, match="exists already"):
        Ledger.create(ledger.path)
    assert ledger.path.read_bytes() == before
    with pytest.raises(LedgerError, match="could not be created"):
        Ledger.create(tmp_path / "no" / "folder")
    ledger.save_result(receipt=spend(ledger), content=b"noisy")
    ledger.path.unlink()
    with pytest.raises(LedgerError, match="belongs to the ledger"):
        Ledger.create(ledger.path)


@pytest.mark.parametrize(
    "name", ["a b", "a?mode=ro", "a#b", "50%25", "été", "a&b=c", ":memory:", "file:x"]
)
def test_create_with_unusual_file_name_uses_that_file(tmp_path, name):
    Ledger.create(tmp_path / name).add_dataset("adult", total=Budget(pcost=1.0))
    assert [file.name for file in tmp_path.iterdir()] == [name]
    assert Ledger(tmp_path / name).verify() == ()


def test_spend_on_moved_ledger_is_refused(ledger, tmp_path):
    ledger.path.rename(tmp_path / "moved")
    with pytest.raises(LedgerError, match="no ledger at"):
        spend(ledger)
    assert Ledger(tmp_path / "moved").status("adult").spent == 0


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("moment", ["connect", "check", "append"])
def test_ledger_deleted_during_spend_grants_nothing(ledger, monkeypatch, moment, before):
    owner = sqlite3 if moment == "connect" else engine.ledger.ledger
    real = getattr(owner, moment)

    def delete_ledger(*args, **fields):
        if before:
            ledger.path.unlink()
        result = real(*args, **fields)
        if not before:
            ledger.path.unlink()
        return result

    monkeypatch.setattr(owner, moment, delete_ledger)
    with pytest.raises(LedgerError, match=r"deleted or (moved|replaced)"):
        spend(ledger)
    assert not ledger.path.exists()


def test_spend_on_full_disk_grants_nothing(ledger, monkeypatch):
    real = sqlite3.connect

    def small_disk(*args, **options):
        connection = real(*args, **options)
        connection.execute("PRAGMA max_page_count=1")  # same SQLite error as a full disk
        return connection

    monkeypatch.setattr(sqlite3, "connect", small_disk)
    receipts = []

    def fill_up():
        for attempt in range(1, 100):
            receipts.append(spend(ledger, attempt=attempt, pcost=0.001))

    with pytest.raises(LedgerError, match=r"is full.*was not changed"):
        fill_up()
    monkeypatch.undo()
    rows = [row for row in Ledger(ledger.path).rows() if row.kind == "spend"]
    assert [row.hash for row in rows] == [receipt.hash for receipt in receipts] != []


def test_failed_save_message_says_budget_is_spent(ledger, monkeypatch):
    def fail(*_, **__):
        raise sqlite3.OperationalError("disk I/O error")

    receipt = spend(ledger)
    with monkeypatch.context() as patch:
        patch.setattr("engine.ledger.ledger.append", fail)
        with pytest.raises(LedgerError) as raised:
            ledger.save_result(receipt=receipt, content=b"noisy")
    assert "is spent, but its result may be missing" in str(raised.value)
    assert "spent nothing" not in str(raised.value)
    assert ledger.unfinished() == {receipt.key}
    assert ledger.save_result(receipt=receipt, content=b"noisy").read_bytes() == b"noisy"


def test_failed_commit_message_leaves_spend_open(ledger, monkeypatch):
    class Broken(sqlite3.Connection):
        def execute(self, statement, *values):
            if statement != "COMMIT":
                return super().execute(statement, *values)
            super().execute(statement)
            raise sqlite3.OperationalError("the folder could not be synced")

    real = sqlite3.connect
    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", lambda *a, **k: real(*a, **k, factory=Broken))
        with pytest.raises(LedgerError, match="may or may not"):
            spend(ledger)
    assert not spend(ledger).fresh  # the row was written, and the repeated call charges nothing
    assert ledger.status("adult").spent == 0.25


def test_spend_with_refused_write_grants_nothing(ledger):
    size = ledger.path.stat().st_size

    def work():
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        for attempt in range(1, 100):
            spend(ledger, attempt=attempt, pcost=0.001)

    assert "could not be read or written" in in_child(work)
    assert Ledger(ledger.path).verify() == ()

    def save():
        receipt = spend(ledger, attempt=200)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        ledger.save_result(receipt=receipt, content=bytes(size + 1))

    assert "cannot be saved" in in_child(save)
    assert ledger.verify() == ()


def test_read_only_ledger_is_readable_but_cannot_spend():
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger.create(Path(folder) / "budget.ledger")
        ledger.add_dataset("adult", total=Budget(pcost=1.0))

        def without_privileges(work):
            def run():
                if os.geteuid() == 0:  # root may write everywhere
                    os.setegid(65534)
                    os.seteuid(65534)
                return work()

            return in_child(run)

        os.chmod(folder, 0o555)
        for mode in (0o444, 0o666):
            os.chmod(ledger.path, mode)
            assert without_privileges(lambda: Ledger(ledger.path).status("adult").left) == "1.0"
            assert "read-only. Make both writable" in without_privileges(lambda: spend(ledger))
        assert "could not be created: Permission denied" in without_privileges(
            lambda: Ledger.create(Path(folder) / "new")
        )
        os.chmod(folder, 0o777)
        assert without_privileges(lambda: spend(ledger).fresh) == "True"
        os.chmod(folder, 0o755)
