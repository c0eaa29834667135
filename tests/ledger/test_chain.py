"""The hash chain detects edits, lost rows and older copies, on opening and in use."""

import os
import shutil
import sqlite3
import time
from contextlib import closing

import pytest

import engine.ledger.ledger
import engine.ledger.sqlite_file
from engine.errors import BudgetExceeded, LedgerError
from engine.ledger import Ledger, verify_ledger
from engine.ledger.balance import balance
from engine.ledger.sqlite_file import Row
from engine.privacy import Budget
from tests.ledger.helpers import fill, in_child, spend
from tests.release.ledger_worker import edits, tamper


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE rows SET pcost = '0.01' WHERE kind = 'spend'",
        "DELETE FROM rows",
        "DELETE FROM rows WHERE seq = 4",
        (
            "INSERT OR REPLACE INTO rows SELECT seq, utc, kind, dataset, key, '0.01', plan_hash,"
            " sha256, size, note, hash FROM rows WHERE seq = 3"
        ),
        (
            "INSERT OR REPLACE INTO rows SELECT 10, utc, kind, dataset, key, '0.01', plan_hash,"
            " sha256, size, note, hash FROM rows WHERE seq = 3"
        ),
        (
            "INSERT INTO rows SELECT 99, utc, 'note', dataset, key, '0.01', plan_hash, sha256,"
            " size, note, hash FROM rows WHERE seq = 3"
        ),
    ],
)
def test_rows_are_append_only(ledger, statement):
    """A row cannot be changed, deleted, replaced or inserted out of sequence."""
    fill(ledger)
    with (
        closing(sqlite3.connect(ledger.path)) as connection,
        pytest.raises(sqlite3.IntegrityError, match="append-only"),
    ):
        connection.execute(statement)


TEXTS = [name for name in Row.__dataclass_fields__ if name not in ("seq", "size")]
EDITS = [
    f"UPDATE rows SET {name} = {name} || '0' WHERE seq = {seq}"
    for name in TEXTS
    for seq in (1, 3, 9)
]


@pytest.mark.parametrize(
    "edit",
    [
        *EDITS,
        "UPDATE rows SET size = size + 1 WHERE seq = 4",
        "UPDATE rows SET pcost = x'00' WHERE seq = 3",
        "UPDATE rows SET pcost = CAST(x'ff' AS TEXT) WHERE seq = 3",
        "UPDATE rows SET seq = 99 WHERE seq = 9",
        "UPDATE rows SET seq = -seq",
        "DELETE FROM rows",
        *(f"DELETE FROM rows WHERE seq = {seq}" for seq in range(1, 10)),
        "DELETE FROM rows WHERE seq > 4",
        "DELETE FROM sqlite_sequence",
        "UPDATE sqlite_sequence SET seq = 99",
        (
            "INSERT INTO rows SELECT 10, utc, 'note:x', dataset, key, pcost, plan_hash, sha256,"
            " size, note, hash FROM rows WHERE seq = 9"
        ),
    ],
)
def test_ledger_edit_is_detected_on_open_and_use(ledger, edit):
    fill(ledger)
    # the rows of the ledger, of the dataset, of three spends with their results, and of a note
    assert len(ledger.rows()) == 9
    tamper(ledger.path, edit)
    assert verify_ledger(ledger.path) != ()
    with pytest.raises(LedgerError, match=r"cannot be trusted|damaged"):
        Ledger(ledger.path)
    before = ledger.path.read_bytes()
    with pytest.raises(LedgerError):
        spend(ledger, attempt=4)
    assert ledger.path.read_bytes() == before


def test_edited_byte_with_restored_mtime_is_detected(ledger):
    fill(ledger)
    before, content = os.stat(ledger.path), ledger.path.read_bytes()
    time.sleep(0.02)  # longer than the resolution of file system timestamps
    ledger.path.write_bytes(content.replace(b"0.25", b"0.01"))
    os.utime(ledger.path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(LedgerError, match="edited while it was in use"):
        spend(ledger, attempt=4)


def test_spend_after_undetected_edit_uses_verified_rows(ledger, monkeypatch):
    monkeypatch.setattr(engine.ledger.ledger, "_file_state", lambda path: (1,))
    # an empty text means that the comparison with the verified rows found no edit
    monkeypatch.setattr(engine.ledger.ledger, "_EDITED_TEXT", "")
    fill(ledger)
    assert ledger.status("adult").left == 0.25
    path = ledger.path
    path.write_bytes(path.read_bytes().replace(b"0.25", b"0.01"))
    with pytest.raises(BudgetExceeded):
        spend(ledger, attempt=4, pcost=0.26)
    with pytest.raises(LedgerError, match="was edited"):
        Ledger(path)


def test_spend_verifies_new_rows_and_open_all_rows(ledger, monkeypatch):
    other_program = Ledger(ledger.path)
    sealed_rows, seal = [], Row.sealed
    fill(ledger)
    ledger.status("adult")

    def recorded_seal(row, previous):
        sealed_rows.append(row.seq)
        return seal(row, previous)

    monkeypatch.setattr(Row, "sealed", recorded_seal)
    uses = {
        "nothing new": lambda: ledger.status("adult"),
        "a spend": lambda: spend(ledger, attempt=4, pcost=0.01),
        "the next": lambda: spend(ledger, attempt=5, pcost=0.01),
        "of another": lambda: other_program.status("adult"),
        "opening": lambda: Ledger(ledger.path),
        "verify": ledger.verify,
    }
    hashed = {}
    for name, use in uses.items():
        sealed_rows.clear()
        use()
        hashed[name] = list(sealed_rows)
    # the other program was opened at 2 rows, `fill` added 7, and the two spends added 2
    all_rows = list(range(1, 12))
    assert hashed == {
        "nothing new": [],
        "a spend": [10],
        "the next": [10, 11],
        "of another": all_rows[2:],
        "opening": all_rows,
        "verify": all_rows,
    }


def test_new_rows_are_verified_in_use(ledger):
    spend(ledger)
    with engine.ledger.sqlite_file.transaction(ledger.path, write=True, wait=1.0) as connection:
        head = engine.ledger.sqlite_file.read_rows(connection)[-1]
        engine.ledger.sqlite_file.append(
            connection, head, kind="spend", dataset="adult", key="k", pcost="2.0"
        )
    with pytest.raises(LedgerError, match="more than the remaining budget"):
        ledger.status("adult")


def test_new_row_with_wrong_hash_is_detected(ledger):
    spend(ledger)
    columns = "utc, 'note:x', dataset, key, pcost, plan_hash, sha256, size, note, hash"
    tamper(ledger.path, f"INSERT INTO rows SELECT 4, {columns} FROM rows WHERE seq = 3")
    with pytest.raises(LedgerError, match="row 4 was edited"):
        ledger.status("adult")


def test_rows_added_before_timestamp_check_are_read(ledger, monkeypatch):
    monkeypatch.setattr(engine.ledger.ledger, "_file_state", lambda path: (1,))
    spend(ledger)
    spend(Ledger(ledger.path), attempt=2, pcost=0.7)
    with pytest.raises(BudgetExceeded):
        spend(ledger, attempt=3, pcost=0.06)
    assert ledger.status("adult").left == 0.05


def test_balance_of_more_rows_does_not_change_input(ledger):
    rows = fill(ledger).rows()
    balance_of_first, _ = balance(rows[:4])
    copy = balance_of_first.copied()
    balance_of_all, problems = balance(rows[4:], balance_of_first)
    assert problems == []
    assert balance_of_first == copy
    assert balance(rows) == (balance_of_all, [])
    assert balance_of_all != copy


def test_reordered_rows_are_detected(ledger):
    fill(ledger)
    tamper(
        ledger.path,
        "UPDATE rows SET seq = -3 WHERE seq = 3",
        "UPDATE rows SET seq = 3 WHERE seq = 5",
        "UPDATE rows SET seq = 5 WHERE seq = -3",
    )
    assert len(verify_ledger(ledger.path)) >= 2  # one problem per moved row at least


def test_edited_row_with_recomputed_hash_is_detected(ledger):
    fill(ledger)
    rows = ledger.rows()
    _, dataset_row, spend_row = rows[:3]
    forged_hash = Row(**{**vars(spend_row), "pcost": "0.01"}).sealed(dataset_row.hash)
    tamper(ledger.path, f"UPDATE rows SET pcost = '0.01', hash = '{forged_hash}' WHERE seq = 3")
    assert verify_ledger(ledger.path) == ("row 4 was edited, or rows before it were removed",)


@pytest.mark.parametrize("rule", ["never_update", "never_delete", "never_replace"])
def test_removed_trigger_is_detected(ledger, rule):
    with closing(sqlite3.connect(ledger.path)) as connection:
        connection.execute(f"DROP TRIGGER {rule}")
    with pytest.raises(LedgerError, match="append-only"):
        Ledger(ledger.path)
    assert len(verify_ledger(ledger.path)) == 1


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (
            {"kind": "spend", "dataset": "adult", "key": "k", "pcost": "2.0"},
            "more than the remaining budget",
        ),
        ({"kind": "spend", "dataset": "adult", "key": "k", "pcost": "-1"}, "not positive"),
        ({"kind": "spend", "dataset": "adult", "key": "k", "pcost": "nan"}, "is not a number"),
        ({"kind": "spend", "dataset": "census", "key": "k", "pcost": "0.1"}, "never declared"),
        ({"kind": "saved", "dataset": "adult", "key": "k"}, "without a spend"),
        (
            {"kind": "dataset", "dataset": "adult", "key": "again", "pcost": "9"},
            "adds a dataset twice",
        ),
        ({"kind": "gift", "dataset": "adult"}, "unknown kind"),
        (
            {"kind": "spend", "dataset": "adult", "key": "k", "pcost": "epsilon 0.1"},
            "in another unit",
        ),
        (
            {
                "kind": "dataset",
                "dataset": "b",
                "key": "b",
                "pcost": "epsilon 0.1",
                "plan_hash": '{"kind":"zcdp"}',
            },
            "another unit",
        ),
        ({"kind": "dataset", "dataset": "b", "key": "b", "pcost": "0.1"}, "unknown unit"),
        ({"kind": "dataset", "dataset": "b", "key": "b", "pcost": "0"}, "not positive"),
    ],
)
def test_chained_row_that_violates_budget_is_refused(ledger, content, problem):
    with engine.ledger.sqlite_file.transaction(ledger.path, write=True, wait=1.0) as connection:
        engine.ledger.sqlite_file.append(
            connection, engine.ledger.sqlite_file.read_rows(connection)[-1], **content
        )
    assert any(problem in text for text in verify_ledger(ledger.path))
    with pytest.raises(LedgerError, match=problem):
        Ledger(ledger.path)


def test_ledger_set_back_is_detected(ledger, tmp_path):
    old = tmp_path / "old"
    shutil.copy(ledger.path, old)
    receipt = spend(ledger)
    in_use = Ledger(ledger.path)
    shutil.copy(old, ledger.path)
    with pytest.raises(LedgerError, match="older copy while it was in use"):
        spend(in_use)
    # a program started later detects it only by a receipt or a saved result
    assert Ledger(ledger.path).verify() == ()
    assert any("old copy" in problem for problem in verify_ledger(ledger.path, receipts=[receipt]))
    reopened = Ledger(ledger.path)
    reopened.save_result(receipt=spend(reopened), content=b"noisy")
    shutil.copy(old, ledger.path)
    with pytest.raises(LedgerError, match="no spend in the ledger: rows were lost"):
        Ledger(ledger.path)


@pytest.mark.parametrize("write", ["spend", "total", "saved", "note", "declare"])
def test_ledger_set_back_after_write_is_refused(ledger, tmp_path, write):
    receipt = spend(ledger)
    writes = {
        "spend": lambda: spend(ledger, attempt=2),
        "total": lambda: ledger.change_total(
            "adult", total=Budget(pcost=0.5), by="Ann", reason="less"
        ),
        "saved": lambda: ledger.save_result(receipt=receipt, content=b"noisy"),
        "note": lambda: ledger.note(dataset="adult", kind="decision", text="enough"),
        "declare": lambda: ledger.add_dataset("census", total=Budget(pcost=1.0)),
    }
    earlier = tmp_path / "earlier"
    shutil.copy(ledger.path, earlier)
    writes[write]()
    shutil.copy(earlier, ledger.path)
    assert any("old copy" in problem for problem in ledger.verify())
    for use in (
        lambda: spend(ledger, attempt=3),
        lambda: ledger.status("adult"),
        lambda: ledger.find("k"),
    ):
        with pytest.raises(LedgerError, match="older copy"):
            use()


def test_ledger_set_back_and_continued_elsewhere_is_refused(ledger, tmp_path):
    shutil.copy(ledger.path, tmp_path / "earlier")
    spend(ledger)
    shutil.copy(tmp_path / "earlier", ledger.path)
    other_program = Ledger(ledger.path)
    for attempt in (2, 3):
        spend(other_program, attempt=attempt)
    with pytest.raises(LedgerError, match="older copy"):
        spend(ledger, attempt=4)


def test_ledger_set_back_after_clock_row_is_refused(ledger, tmp_path, monkeypatch):
    spend(ledger)
    shutil.copy(ledger.path, tmp_path / "earlier")
    monkeypatch.setattr(engine.ledger.sqlite_file, "utc_now", lambda: "2001-01-01T00:00:00.000000Z")
    spend(ledger, attempt=2)
    spend(ledger, attempt=3)
    assert [row.kind for row in ledger.rows()][3:] == ["clock", "spend", "spend"]
    shutil.copy(tmp_path / "earlier", ledger.path)
    with pytest.raises(LedgerError, match="older copy"):
        spend(ledger, attempt=4)


def test_interleaved_writes_of_another_process_are_allowed(ledger):
    spend(ledger, pcost=0.1)
    assert in_child(lambda: spend(Ledger(ledger.path), attempt=2, pcost=0.2).fresh) == "True"
    assert spend(ledger, attempt=3, pcost=0.3).fresh
    assert in_child(lambda: spend(ledger, attempt=4, pcost=0.1).fresh) == "True"
    assert ledger.status("adult").left == 0.3
    assert ledger.verify() == ()


def test_older_thread_transaction_keeps_newer_rows(ledger):
    spend(ledger)
    earlier = ledger._checked
    spend(ledger, attempt=2)
    # Simulate a thread whose transaction began before the second spend.
    ledger._remember(earlier)
    # the rows of the ledger, of the dataset and of two spends
    assert ledger._checked.length == 4


def test_verify_receipt_of_replaced_history_reports_problem(ledger, tmp_path):
    shutil.copy(ledger.path, tmp_path / "old")
    receipt = spend(ledger)
    shutil.copy(tmp_path / "old", ledger.path)
    other_receipt = spend(Ledger(ledger.path))
    assert (other_receipt.seq, other_receipt.key) == (receipt.seq, receipt.key)
    assert verify_ledger(ledger.path, receipts=[other_receipt]) == ()
    assert any("old copy" in problem for problem in verify_ledger(ledger.path, receipts=[receipt]))


def test_clock_set_back_adds_clock_row_only(ledger, monkeypatch):
    spend(ledger)
    monkeypatch.setattr(engine.ledger.sqlite_file, "utc_now", lambda: "1999-12-31T23:59:59.000000Z")
    assert spend(ledger, attempt=2).fresh
    assert not spend(ledger).fresh
    spend(ledger, attempt=3)
    kinds = [row.kind for row in ledger.rows()]
    assert kinds == ["ledger", "dataset", "spend", "clock", "spend", "spend"]
    assert "earlier than in row 3" in ledger.rows()[3].note
    assert Ledger(ledger.path).verify() == ()
    assert ledger.status("adult").left == 0.25


def test_random_edits_are_detected_or_harmless(tmp_path):
    counts = edits(tmp_path, count=12, seed=1)
    assert counts["edits"] == 12
    assert counts["noticed"] > 6  # the other edits change unused bytes
