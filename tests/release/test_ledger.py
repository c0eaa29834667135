"""The ledger: exact budgets, one draw per key, a chain that shows every edit, and plain words for every failure."""

import errno
import math
import os
import resource
import shutil
import sqlite3
import stat
import tempfile
import threading
import time
import unicodedata
from collections import Counter
from contextlib import closing
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import engine.release.ledger.chain
import engine.release.ledger.checked
import engine.release.ledger.ledger
import engine.release.ledger.results
from engine.errors import BudgetError, BudgetExceeded, LedgerError, ResultLost
from engine.privacy import Budget
from engine.release import Ledger, release_key, total_history, verify_ledger
from engine.release.ledger.balance import balance, exact
from engine.release.ledger.chain import Row
from tests.release.ledger_worker import COSTS, DATASETS, FORK, campaign, edits, hammer, make, tamper
from tests.waiting import CEILING


@pytest.fixture
def ledger(tmp_path) -> Ledger:
    made = Ledger.create(tmp_path / "budget.ledger", wait=5.0)
    made.add_dataset("adult", total=Budget(pcost=1.0), note="a first test")
    return made


def spend(ledger, attempt=1, pcost=0.25, dataset="adult", plan_hash="1f3a"):
    key = release_key(dataset=dataset, plan_hash=plan_hash, attempt=attempt)
    return ledger.spend(dataset=dataset, key=key, pcost=pcost, plan_hash=plan_hash)


def in_child(work) -> str:
    """What `work()` returns, or the error it raises, in a forked process that may lose its rights or die."""
    box = FORK.SimpleQueue()

    def run():
        try:
            box.put(str(work()))
        except Exception as error:
            box.put(f"{type(error).__name__}: {error}")

    process = FORK.Process(target=run)
    process.start()
    process.join(CEILING)
    return f"died with {process.exitcode}" if box.empty() else box.get()


# ---- the budget


def test_a_spend_is_durable_and_seen_by_everybody(ledger):
    receipt = spend(ledger)
    again = Ledger(ledger.path)
    status = again.status("adult")
    assert (status.total, status.spent, status.left, status.note) == (1.0, 0.25, 0.75, "a first test")
    assert again.datasets() == [status]
    assert again.find(receipt.key).hash == receipt.hash
    assert again.find("never") is None
    assert [row.kind for row in again.rows()] == ["ledger", "dataset", "spend"]


def test_the_same_key_is_fresh_once_and_costs_once(ledger):
    first, second = spend(ledger), spend(Ledger(ledger.path))
    assert (first.fresh, second.fresh) == (True, False)
    assert (first.seq, first.hash) == (second.seq, second.hash)
    assert ledger.status("adult").spent == 0.25
    # a repeated key is answered even when the budget is used up
    spend(ledger, attempt=2, pcost=0.75)
    assert not spend(ledger).fresh


@pytest.mark.parametrize("other", [{"pcost": 0.26}, {"plan_hash": "ffff"}, {"dataset": "census"}])
def test_a_key_spent_for_something_else_is_refused(ledger, other):
    ledger.add_dataset("census", total=Budget(pcost=1.0))
    key = spend(ledger).key
    with pytest.raises(LedgerError, match="another dataset, plan or cost"):
        ledger.spend(**{"dataset": "adult", "key": key, "pcost": 0.25, "plan_hash": "1f3a", **other})
    assert [status.spent for status in ledger.datasets()] == [0.25, 0.0]


@pytest.mark.parametrize("direction", [0.0, 1.0])
def test_a_key_comes_back_with_the_last_digit_of_another_machine(ledger, direction):
    first = spend(ledger, pcost=0.3)
    again = spend(ledger, pcost=math.nextafter(0.3, direction))
    assert (again.fresh, again.seq, again.pcost) == (False, first.seq, 0.3)
    with pytest.raises(LedgerError, match="another dataset, plan or cost"):
        spend(ledger, pcost=0.3 * (1.0 + 1e-9))
    assert ledger.status("adult").spent == 0.3


def test_overspending_is_refused_and_writes_nothing(ledger):
    spend(ledger, pcost=0.9)
    before = ledger.path.read_bytes()
    with pytest.raises(BudgetExceeded, match=r"0\.1 left of 1\.0; 0\.11 was asked for.*at most what is left"):
        spend(ledger, attempt=2, pcost=0.11)
    assert ledger.path.read_bytes() == before
    assert spend(ledger, attempt=2, pcost=0.1).fresh


def test_ten_tenths_are_one_and_not_a_bit_more(ledger):
    for attempt in range(10):
        spend(ledger, attempt=attempt + 1, pcost=0.1)
    assert (ledger.status("adult").spent, ledger.status("adult").left) == (1.0, 0.0)
    with pytest.raises(BudgetExceeded):
        spend(ledger, attempt=11, pcost=5e-324)


def test_a_cost_too_large_by_less_than_a_float_tells_is_refused(ledger):
    spend(ledger, pcost=1e-18)
    spend(ledger, attempt=2, pcost=0.9)
    with pytest.raises(BudgetExceeded):
        spend(ledger, attempt=3, pcost=0.1)
    assert ledger.status("adult").left < 0.1


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.floats(min_value=1e-12, max_value=0.3), min_size=1, max_size=8), st.floats(min_value=0.1, max_value=3)
)
def test_what_is_left_can_be_spent_exactly_and_then_nothing(costs, total):
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger.create(Path(folder) / "a")
        ledger.add_dataset("adult", total=Budget(pcost=total))
        spent = Decimal(0)
        for attempt, cost in enumerate(costs, start=1):
            if spent + Decimal(repr(cost)) <= Decimal(repr(total)):
                spend(ledger, attempt=attempt, pcost=cost)
                spent += Decimal(repr(cost))
            else:
                with pytest.raises(BudgetExceeded):
                    spend(ledger, attempt=attempt, pcost=cost)
        status = ledger.status("adult")
        assert exact(repr(status.spent)) >= exact(str(spent)) >= exact(repr(math.nextafter(status.spent, 0)))
        if status.left > 0:
            with pytest.raises(BudgetExceeded):
                spend(ledger, attempt=98, pcost=math.nextafter(status.left, 9))
            spend(ledger, attempt=99, pcost=status.left)
        assert ledger.verify() == ()


@pytest.mark.parametrize("pcost", [0, -1.0, math.nan, math.inf, True, "0.1", None])
def test_a_cost_that_is_no_positive_number_is_refused(ledger, pcost):
    with pytest.raises(BudgetError):
        spend(ledger, pcost=pcost)
    assert len(ledger.rows()) == 2


def test_an_unknown_dataset_is_refused(ledger):
    for use in (lambda: spend(ledger, dataset="census"), lambda: ledger.status("census")):
        with pytest.raises(LedgerError, match=r"'census' is not in the ledger \(it has: 'adult'\)"):
            use()


@pytest.mark.parametrize("name", ["adult", "Adult", "ADULT", "ａdult"])
def test_a_name_that_only_looks_different_gets_no_second_budget(ledger, name):
    with pytest.raises(LedgerError, match="in the ledger already"):
        ledger.add_dataset(name, total=Budget(pcost=5.0))
    assert ledger.status("adult").total == 1.0


def test_composed_and_decomposed_letters_are_one_name(ledger):
    ledger.add_dataset("santé", total=Budget(pcost=2.0))
    assert ledger.status(unicodedata.normalize("NFD", "santé")).total == 2.0


@pytest.mark.parametrize(
    "name", ["", " ", " a", "a ", "a\nb", "a\x00b", "a\u202eb", "a\u2028b", "\ud800", "x" * 201, None, 5, b"a"]
)
def test_hostile_names_are_refused_everywhere(ledger, name):
    uses = [
        lambda: ledger.add_dataset(name, total=Budget(pcost=1.0)),
        lambda: ledger.status(name),
        lambda: release_key(dataset=name, plan_hash="1f3a", attempt=1),
        lambda: ledger.spend(dataset=name, key="k", pcost=0.1, plan_hash="1f3a"),
    ]
    for use in uses:
        with pytest.raises(LedgerError, match="printable characters"):
            use()
    assert len(ledger.rows()) == 2


@pytest.mark.parametrize("plan_hash", ["", "a b", "../a", "a|1", "x" * 129, None])
def test_hostile_plan_hashes_are_refused(ledger, plan_hash):
    for use in (
        lambda: release_key(dataset="a", plan_hash=plan_hash, attempt=1),
        lambda: spend(ledger, plan_hash=plan_hash),
    ):
        with pytest.raises(LedgerError, match="plan hash"):
            use()


def test_attempts_are_whole_numbers_from_one():
    for attempt in (0, -1, 1.0, True, "1", None):
        with pytest.raises(LedgerError, match="whole number from 1"):
            release_key(dataset="adult", plan_hash="1f3a", attempt=attempt)


def test_notes_are_kept_in_the_chain_and_cost_nothing(ledger):
    ledger.note(dataset="adult", kind="decision", text="coarser ages were chosen")
    assert (ledger.rows()[-1].kind, ledger.status("adult").spent, ledger.verify()) == ("note:decision", 0.0, ())
    for kind, text in (("spend", ""), ("Decision", "x"), ("", "x"), ("decision", "two\nlines"), (None, "x")):
        with pytest.raises(LedgerError):
            ledger.note(dataset="adult", kind=kind, text=text)


# ---- results


def test_a_result_is_stored_once_and_read_by_everybody(ledger):
    receipt = spend(ledger)
    path = ledger.save_result(receipt=receipt, content=b"noisy")
    assert Ledger(ledger.path).load_result(receipt.key) == b"noisy"
    assert Ledger(ledger.path).result_path(receipt.key) == path
    ledger.save_result(receipt=receipt, content=b"noisy")  # tried again after an error: the same content is fine
    with pytest.raises(LedgerError, match="never change"):
        ledger.save_result(receipt=receipt, content=b"other")
    assert ledger.load_result(receipt.key) == b"noisy"
    assert [row.kind for row in ledger.rows()].count("saved") == 1


def test_a_large_result_is_written_in_pieces(ledger):
    receipt = spend(ledger)

    def write(file):
        for piece in range(40):
            file.write(bytes([piece]) * 250_000)
        file.seek(0)
        file.write(b"HEAD")

    path = ledger.save_result(receipt=receipt, content=write)
    assert path.stat().st_size == 10_000_000
    assert ledger.load_result(receipt.key)[:5] == b"HEAD\x00"
    assert ledger.rows()[-1].size == 10_000_000


def test_only_the_fresh_receipt_may_save(ledger):
    spend(ledger)
    with pytest.raises(LedgerError, match="Only the call that spent"):
        ledger.save_result(receipt=spend(ledger), content=b"second draw")


def test_a_receipt_of_another_ledger_is_refused(ledger, tmp_path):
    other = Ledger.create(tmp_path / "other.ledger")
    other.add_dataset("adult", total=Budget(pcost=1.0), note="a first test")
    foreign = spend(other)
    spend(ledger)
    with pytest.raises(LedgerError, match="another ledger"):
        ledger.save_result(receipt=foreign, content=b"noisy")
    assert ledger.verify() == ()


def test_spent_but_never_saved_is_lost(ledger):
    key = spend(ledger).key
    with pytest.raises(ResultLost, match=r"no result was saved.*new attempt, which spends again"):
        ledger.load_result(key)
    with pytest.raises(LedgerError, match="Nothing was ever spent"):
        ledger.load_result("adult|1f3a|2")


@pytest.mark.parametrize("damage", [lambda p: p.write_bytes(b"nois2"), lambda p: p.write_bytes(b"n"), os.unlink])
def test_a_changed_or_missing_result_is_noticed(ledger, damage):
    receipt = spend(ledger)
    damage(ledger.save_result(receipt=receipt, content=b"noisy"))
    with pytest.raises(ResultLost, match="Budget was spent, but the saved result"):
        ledger.load_result(receipt.key)
    assert len(ledger.verify()) == 1
    assert ledger.verify(results=False) == ()


@pytest.mark.parametrize("key", ["../../escape", "/etc/passwd", "a/b", "..", "C:\\x", "con", "x" * 500])
def test_no_key_leaves_the_results_folder(ledger, tmp_path, key):
    receipt = ledger.spend(dataset="adult", key=key, pcost=0.1, plan_hash="1f3a")
    path = ledger.save_result(receipt=receipt, content=b"x")
    assert path.parent == tmp_path / "budget.ledger.results"
    assert {p.name for p in tmp_path.iterdir()} == {"budget.ledger", "budget.ledger.results"}


def test_a_failing_writer_leaves_nothing_and_may_try_again(ledger):
    receipt = spend(ledger)

    def full(file):
        file.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(LedgerError, match=r"No space left on device.*the same release again, of the same records"):
        ledger.save_result(receipt=receipt, content=full)
    with pytest.raises(KeyError):
        ledger.save_result(receipt=receipt, content=lambda file: {}["a bug in the writer"])
    assert list((ledger.path.parent / "budget.ledger.results").iterdir()) == []
    ledger.save_result(receipt=receipt, content=b"noisy")
    assert ledger.load_result(receipt.key) == b"noisy"


# ---- the chain


def fill(ledger):
    for attempt in (1, 2, 3):
        receipt = spend(ledger, attempt=attempt)
        ledger.save_result(receipt=receipt, content=b"noisy")
    ledger.note(dataset="adult", kind="decision", text="enough")
    return ledger


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE rows SET pcost = '0.01' WHERE kind = 'spend'",
        "DELETE FROM rows",
        "DELETE FROM rows WHERE seq = 4",
        "INSERT OR REPLACE INTO rows SELECT seq, utc, kind, dataset, key, '0.01', plan_hash, sha256, size, note, hash "
        "FROM rows WHERE seq = 3",
        "INSERT OR REPLACE INTO rows SELECT 10, utc, kind, dataset, key, '0.01', plan_hash, sha256, size, note, hash "
        "FROM rows WHERE seq = 3",
        "INSERT INTO rows SELECT 99, utc, 'note', dataset, key, '0.01', plan_hash, sha256, size, note, hash "
        "FROM rows WHERE seq = 3",
    ],
)
def test_rows_are_append_only(ledger, statement):
    fill(ledger)
    with (
        closing(sqlite3.connect(ledger.path)) as connection,
        pytest.raises(sqlite3.IntegrityError, match="append-only"),
    ):
        connection.execute(statement)


TEXTS = [name for name in Row.__dataclass_fields__ if name not in ("seq", "size")]
EDITS = [f"UPDATE rows SET {name} = {name} || '0' WHERE seq = {seq}" for name in TEXTS for seq in (1, 3, 9)]


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
        "INSERT INTO rows SELECT 10, utc, 'note:x', dataset, key, pcost, plan_hash, sha256, size, note, hash FROM rows "
        "WHERE seq = 9",
    ],
)
def test_every_edit_is_found_on_opening_and_in_use(ledger, edit):
    fill(ledger)
    assert len(ledger.rows()) == 9
    tamper(ledger.path, edit)
    assert verify_ledger(ledger.path) != ()
    with pytest.raises(LedgerError, match=r"cannot be trusted|damaged"):
        Ledger(ledger.path)
    before = ledger.path.read_bytes()
    with pytest.raises(LedgerError):
        spend(ledger, attempt=4)
    assert ledger.path.read_bytes() == before


def test_an_edited_byte_is_found_in_use_though_the_file_says_that_it_was_never_written(ledger):
    fill(ledger)
    before, content = os.stat(ledger.path), ledger.path.read_bytes()
    time.sleep(0.02)  # the clock of a file system may tick as slowly as that
    ledger.path.write_bytes(content.replace(b"0.25", b"0.01"))
    os.utime(ledger.path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(LedgerError, match="edited while it was in use"):
        spend(ledger, attempt=4)


def test_no_decision_rests_on_an_edited_row_even_where_the_edit_is_not_seen(ledger, monkeypatch):
    monkeypatch.setattr(engine.release.ledger.checked, "_times", lambda path: (1,))
    monkeypatch.setattr(engine.release.ledger.checked, "_EDITED", "")
    fill(ledger)
    assert ledger.status("adult").left == 0.25
    path = ledger.path
    path.write_bytes(path.read_bytes().replace(b"0.25", b"0.01"))
    with pytest.raises((BudgetExceeded, LedgerError)):
        spend(ledger, attempt=4, pcost=0.26)
    with pytest.raises(LedgerError, match="was edited"):
        Ledger(path)


def test_a_spend_checks_what_is_new_and_opening_checks_all(ledger, monkeypatch):
    other, real, sealed = Ledger(ledger.path), Row.sealed, []
    fill(ledger)
    ledger.status("adult")
    monkeypatch.setattr(Row, "sealed", lambda row, previous: sealed.append(row.seq) or real(row, previous))
    uses = {
        "nothing new": lambda: ledger.status("adult"),
        "a spend": lambda: spend(ledger, attempt=4, pcost=0.01),
        "the next": lambda: spend(ledger, attempt=5, pcost=0.01),
        "of another": lambda: other.status("adult"),
        "opening": lambda: Ledger(ledger.path),
        "verify": ledger.verify,
    }
    hashed = {}
    for name, use in uses.items():
        sealed.clear()
        use()
        hashed[name] = list(sealed)
    everything = list(range(1, 12))
    assert hashed == {
        "nothing new": [],
        "a spend": [10],
        "the next": [10, 11],
        "of another": everything[2:],
        "opening": everything,
        "verify": everything,
    }


def test_new_rows_are_checked_in_use(ledger):
    spend(ledger)
    with engine.release.ledger.chain.transaction(ledger.path, write=True, wait=1.0) as connection:
        head = engine.release.ledger.chain.read_rows(connection)[-1]
        engine.release.ledger.chain.append(connection, head, kind="spend", dataset="adult", key="k", pcost="2.0")
    with pytest.raises(LedgerError, match="spends more than was left"):
        ledger.status("adult")


def test_new_rows_without_their_hash_are_found_in_use(ledger):
    spend(ledger)
    columns = "utc, 'note:x', dataset, key, pcost, plan_hash, sha256, size, note, hash"
    tamper(ledger.path, f"INSERT INTO rows SELECT 4, {columns} FROM rows WHERE seq = 3")
    with pytest.raises(LedgerError, match="row 4 was edited"):
        ledger.status("adult")


def test_rows_added_between_a_commit_and_a_look_at_the_times_are_read(ledger, monkeypatch):
    monkeypatch.setattr(engine.release.ledger.checked, "_times", lambda path: (1,))
    spend(ledger)
    spend(Ledger(ledger.path), attempt=2, pcost=0.7)
    with pytest.raises(BudgetExceeded):
        spend(ledger, attempt=3, pcost=0.06)
    assert ledger.status("adult").left == 0.05


def test_what_was_checked_before_stays_as_it_was_when_rows_are_added(ledger):
    first = balance(fill(ledger).rows()[:4])[0]
    before = first.copied()
    later, problems = balance(ledger.rows()[4:], first)
    assert (first, problems) == (before, [])
    assert later == balance(ledger.rows())[0] != before


def test_reordered_rows_are_found(ledger):
    fill(ledger)
    tamper(
        ledger.path,
        "UPDATE rows SET seq = -3 WHERE seq = 3",
        "UPDATE rows SET seq = 3 WHERE seq = 5",
        "UPDATE rows SET seq = 5 WHERE seq = -3",
    )
    assert len(verify_ledger(ledger.path)) >= 2


def test_an_edit_with_its_own_hash_made_anew_is_found_at_the_next_row(ledger):
    fill(ledger)
    rows = ledger.rows()
    forged = Row(**{**vars(rows[2]), "pcost": "0.01"})
    tamper(ledger.path, f"UPDATE rows SET pcost = '0.01', hash = '{forged.sealed(rows[1].hash)}' WHERE seq = 3")
    assert verify_ledger(ledger.path) == ("row 4 was edited, or rows before it were removed",)


@pytest.mark.parametrize("rule", ["never_update", "never_delete", "never_replace"])
def test_a_removed_rule_is_found(ledger, rule):
    with closing(sqlite3.connect(ledger.path)) as connection:
        connection.execute(f"DROP TRIGGER {rule}")
    with pytest.raises(LedgerError, match="append-only rules were altered"):
        Ledger(ledger.path)
    assert len(verify_ledger(ledger.path)) == 1


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ({"kind": "spend", "dataset": "adult", "key": "k", "pcost": "2.0"}, "spends more than was left"),
        ({"kind": "spend", "dataset": "adult", "key": "k", "pcost": "-1"}, "no positive cost"),
        ({"kind": "spend", "dataset": "adult", "key": "k", "pcost": "nan"}, "holds no number"),
        ({"kind": "spend", "dataset": "census", "key": "k", "pcost": "0.1"}, "never declared"),
        ({"kind": "saved", "dataset": "adult", "key": "k"}, "without a spend"),
        ({"kind": "dataset", "dataset": "adult", "key": "again", "pcost": "9"}, "declares a dataset twice"),
        ({"kind": "gift", "dataset": "adult"}, "unknown kind"),
        ({"kind": "spend", "dataset": "adult", "key": "k", "pcost": "epsilon 0.1"}, "its total does not count"),
        ({"kind": "dataset", "dataset": "b", "key": "b", "pcost": "epsilon 0.1"}, "not of its kind"),
        ({"kind": "dataset", "dataset": "b", "key": "b", "pcost": "0"}, "no positive budget"),
    ],
)
def test_well_chained_rows_must_keep_the_rules_of_the_budget(ledger, content, problem):
    with engine.release.ledger.chain.transaction(ledger.path, write=True, wait=1.0) as connection:
        engine.release.ledger.chain.append(connection, engine.release.ledger.chain.read_rows(connection)[-1], **content)
    assert any(problem in found for found in verify_ledger(ledger.path))
    with pytest.raises(LedgerError, match=problem):
        Ledger(ledger.path)


def test_a_ledger_set_back_is_noticed_in_use_by_its_results_and_by_receipts(ledger, tmp_path):
    old = tmp_path / "old"
    shutil.copy(ledger.path, old)
    receipt = spend(ledger)
    in_use = Ledger(ledger.path)
    shutil.copy(old, ledger.path)
    with pytest.raises(LedgerError, match="older copy while it was in use"):
        spend(in_use)
    # a program started afterwards can know it only from a receipt, or from a saved result
    assert Ledger(ledger.path).verify() == ()
    assert any("set back" in problem for problem in verify_ledger(ledger.path, receipts=[receipt]))
    again = Ledger(ledger.path)
    again.save_result(receipt=spend(again), content=b"noisy")
    shutil.copy(old, ledger.path)
    with pytest.raises(LedgerError, match="no spend in the ledger: rows were lost"):
        Ledger(ledger.path)


def test_a_receipt_of_another_history_is_not_in_the_ledger(ledger, tmp_path):
    shutil.copy(ledger.path, tmp_path / "old")
    receipt = spend(ledger)
    shutil.copy(tmp_path / "old", ledger.path)
    other = spend(Ledger(ledger.path))
    assert (other.seq, other.key) == (receipt.seq, receipt.key)
    assert verify_ledger(ledger.path, receipts=[other]) == ()
    assert any("set back" in problem for problem in verify_ledger(ledger.path, receipts=[receipt]))


def test_a_clock_that_goes_back_is_noted_and_changes_nothing_else(ledger, monkeypatch):
    spend(ledger)
    monkeypatch.setattr(engine.release.ledger.chain, "utc_now", lambda: "1999-12-31T23:59:59.000000Z")
    assert spend(ledger, attempt=2).fresh
    assert not spend(ledger).fresh
    spend(ledger, attempt=3)
    kinds = [row.kind for row in ledger.rows()]
    assert kinds == ["ledger", "dataset", "spend", "clock", "spend", "spend"]
    assert "earlier than in row 3" in ledger.rows()[3].note
    assert Ledger(ledger.path).verify() == ()
    assert ledger.status("adult").left == 0.25


# ---- failures, each with a plain message, none of them a fresh budget


def refused(path, words):
    size = os.path.getsize(path) if os.path.isfile(path) else None
    with pytest.raises(LedgerError, match=words):
        Ledger(path, wait=0.2)
    assert verify_ledger(path, wait=0.2) != ()
    assert (os.path.getsize(path) if os.path.isfile(path) else None) == size


def test_a_missing_ledger_is_never_a_fresh_budget(tmp_path):
    refused(tmp_path / "none", "no ledger at .* never means a fresh budget")
    refused(tmp_path / "no" / "folder", "no ledger at")
    refused(tmp_path, "not a file")
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_ledger_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "x"
    for content in (b"", b"hello\n" * 1000, b"SQLite format 3\0" + b"\xff" * 5000):
        path.write_bytes(content)
        refused(path, "not a ledger|damaged")
        assert path.read_bytes() == content
    path.unlink()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE rows(seq)")
    refused(path, "not a ledger")


def test_a_later_format_is_refused(ledger):
    with closing(sqlite3.connect(ledger.path)) as connection:
        connection.execute("PRAGMA user_version=2")
    refused(ledger.path, "format 2, this program knows 1; update")


def test_damaged_files_are_refused(ledger):
    fill(ledger)
    whole = ledger.path.read_bytes()
    for at in range(0, len(whole), 1500):
        ledger.path.write_bytes(whole[:at])
        refused(ledger.path, "not a ledger|damaged|cannot be trusted|could not be read")
    for page in range(len(whole) // 4096):
        ledger.path.write_bytes(whole[: page * 4096] + bytes(4096) + whole[(page + 1) * 4096 :])
        assert verify_ledger(ledger.path) != (), f"page {page} of zeros"
    ledger.path.write_bytes(whole)
    assert Ledger(ledger.path).verify() == ()


def test_flipped_bytes_are_refused_or_harmless(ledger):
    """A flipped byte in unused space changes nothing; any other is noticed before a spend."""
    fill(ledger)
    whole, rows = ledger.path.read_bytes(), ledger.rows()
    noticed = 0
    for at in range(0, len(whole), 61):
        ledger.path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :])
        try:
            assert Ledger(ledger.path, wait=0.1).rows() == rows
        except LedgerError:
            noticed += 1
    assert noticed > 20


def test_create_never_replaces_anything(ledger, tmp_path):
    before = ledger.path.read_bytes()
    with pytest.raises(LedgerError, match="there already"):
        Ledger.create(ledger.path)
    assert ledger.path.read_bytes() == before
    with pytest.raises(LedgerError, match="could not be created"):
        Ledger.create(tmp_path / "no" / "folder")
    ledger.save_result(receipt=spend(ledger), content=b"noisy")
    ledger.path.unlink()
    for make_anew in (Ledger.create, Ledger.open_or_create):
        with pytest.raises(LedgerError, match="shows that a ledger was at"):
            make_anew(ledger.path)


@pytest.mark.parametrize("name", ["a b", "a?mode=ro", "a#b", "50%25", "été", "a&b=c", ":memory:", "file:x"])
def test_any_file_name_means_that_file(tmp_path, name):
    Ledger.create(tmp_path / name).add_dataset("adult", total=Budget(pcost=1.0))
    assert [file.name for file in tmp_path.iterdir()] == [name]
    assert Ledger(tmp_path / name).verify() == ()


def test_open_or_create_opens_what_is_there(tmp_path):
    first = Ledger.open_or_create(tmp_path / "a")
    first.add_dataset("adult", total=Budget(pcost=1.0))
    assert len(Ledger.open_or_create(tmp_path / "a").datasets()) == 1
    (tmp_path / "b").write_text("no ledger")
    with pytest.raises(LedgerError):
        Ledger.open_or_create(tmp_path / "b")


def test_a_ledger_deleted_or_moved_while_open_grants_nothing(ledger, tmp_path):
    ledger.path.rename(tmp_path / "moved")
    with pytest.raises(LedgerError, match="no ledger at"):
        spend(ledger)
    assert Ledger(tmp_path / "moved").status("adult").spent == 0


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("moment", ["connect", "check", "append"])
def test_a_ledger_deleted_during_a_spend_grants_nothing(ledger, monkeypatch, moment, before):
    owner = sqlite3 if moment == "connect" else engine.release.ledger.ledger
    real = getattr(owner, moment)

    def deleting(*args, **fields):
        if before:
            ledger.path.unlink()
        result = real(*args, **fields)
        if not before:
            ledger.path.unlink()
        return result

    monkeypatch.setattr(owner, moment, deleting)
    with pytest.raises(LedgerError, match=r"deleted or (moved|replaced)"):
        spend(ledger)
    assert not ledger.path.exists()


def test_a_locked_ledger_says_so_or_waits(ledger):
    patient = Ledger(ledger.path, wait=CEILING)
    with closing(sqlite3.connect(ledger.path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(LedgerError, match="Another program is writing"):
            Ledger(ledger.path, wait=0.1)
        ledger.wait = 0.1
        with pytest.raises(LedgerError, match=r"Another program is writing.*try again"):
            spend(ledger)
        release = threading.Timer(0.3, other.execute, args=("ROLLBACK",))
        release.start()
        assert spend(patient).fresh
        release.join()


def test_a_reader_that_never_ends_stops_the_commit_but_not_the_ledger(ledger):
    ledger.wait = 0.1
    with closing(sqlite3.connect(ledger.path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM rows").fetchone()
        with pytest.raises(LedgerError, match="Another program"):
            spend(ledger)
        assert Ledger(ledger.path).status("adult").spent == 0
    assert spend(ledger).fresh


def test_a_full_disk_says_so_and_spends_nothing(ledger, monkeypatch):
    real = sqlite3.connect

    def small_disk(*args, **options):
        connection = real(*args, **options)
        connection.execute("PRAGMA max_page_count=1")  # SQLite reports what it reports for a full disk
        return connection

    monkeypatch.setattr(sqlite3, "connect", small_disk)
    receipts = []

    def fill_up():
        for attempt in range(1, 100):
            receipts.append(spend(ledger, attempt=attempt, pcost=0.001))

    with pytest.raises(LedgerError, match=r"is full; free some space.*Nothing was granted"):
        fill_up()
    monkeypatch.undo()
    rows = [row for row in Ledger(ledger.path).rows() if row.kind == "spend"]
    assert [row.hash for row in rows] == [receipt.hash for receipt in receipts] != []


def test_a_write_the_system_refuses_spends_nothing(ledger):
    size = ledger.path.stat().st_size

    def work():
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        for attempt in range(1, 100):
            spend(ledger, attempt=attempt, pcost=0.001)

    assert "look at the disk, then try again. Nothing was granted" in in_child(work)
    assert Ledger(ledger.path).verify() == ()

    def save():
        receipt = spend(ledger, attempt=200)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        ledger.save_result(receipt=receipt, content=bytes(size + 1))

    assert "could not be saved" in in_child(save)
    assert ledger.verify() == ()


def test_a_read_only_ledger_or_folder_can_be_read_and_says_why_it_cannot_spend():
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger.create(Path(folder) / "budget.ledger")
        ledger.add_dataset("adult", total=Budget(pcost=1.0))

        def as_nobody(work):
            def run():
                if os.geteuid() == 0:  # the administrator may write everywhere
                    os.setegid(65534)
                    os.seteuid(65534)
                return work()

            return in_child(run)

        os.chmod(folder, 0o555)
        for mode in (0o444, 0o666):
            os.chmod(ledger.path, mode)
            assert as_nobody(lambda: Ledger(ledger.path).status("adult").left) == "1.0"
            assert "read-only; make both writable" in as_nobody(lambda: spend(ledger))
        assert "could not be created: Permission denied" in as_nobody(lambda: Ledger.create(Path(folder) / "new"))
        os.chmod(folder, 0o777)
        assert as_nobody(lambda: spend(ledger).fresh) == "True"
        os.chmod(folder, 0o755)


# ---- power cuts


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
    with engine.release.ledger.chain.transaction(ledger.path, write=True, wait=1.0) as connection:
        found = {name: connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("synchronous", "journal_mode")}
        fullfsync = connection.execute("PRAGMA fullfsync").fetchone()[0]
    assert (found, fullfsync) == ({"synchronous": 3, "journal_mode": "delete"}, 1)  # 3 is EXTRA


def test_a_new_ledger_is_in_its_folder_after_a_power_cut(tmp_path, monkeypatch):
    order = synced(monkeypatch)
    Ledger.create(tmp_path / "a")
    assert ("sync", str(tmp_path)) in order


def test_a_result_is_on_the_disk_before_it_has_its_name_and_its_name_before_the_row(ledger, monkeypatch):
    receipt, order = spend(ledger), synced(monkeypatch)
    monkeypatch.setattr(engine.release.ledger.results, "_allocate", lambda file, size: None)  # syncs the empty file
    real = engine.release.ledger.ledger.append

    def append(*given, **content):
        order.append(("row", content["kind"]))
        return real(*given, **content)

    monkeypatch.setattr(engine.release.ledger.ledger, "append", append)
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


# ---- crashes

MOMENTS = {
    "the row is written, not committed": (engine.release.ledger.ledger, "append", 0, "unspent"),
    "the spend is committed, nothing drawn": (engine.release.ledger.ledger.Receipt, "of", 0, "lost"),
    "half the result is written": (engine.release.ledger.results, "_digest", 0, "lost"),
    "the result has its name, no row yet": (engine.release.ledger.results.Draft, "publish", 0, "lost"),
    "the saved row is written, not committed": (engine.release.ledger.ledger, "append", 1, "lost"),
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


def test_four_processes_never_overspend_and_draw_each_key_once(tmp_path):
    ledger, found = make(tmp_path / "busy.ledger"), FORK.Queue()
    crew = [FORK.Process(target=hammer, args=(ledger.path, seed, found)) for seed in range(4)]
    for process in crew:
        process.start()
    answers = [found.get(timeout=CEILING) for _ in crew]
    for process in crew:
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
def test_work_going_on_is_no_alarm(ledger, monkeypatch, use):
    """While a check compares the results with the rows nobody can add either; a later look would see half of both."""
    other, real, said = Ledger(ledger.path, wait=0.05), engine.release.ledger.ledger.stray_results, []

    def meanwhile(path, keys):
        try:
            other.save_result(receipt=spend(other), content=b"noisy")
        except LedgerError as error:
            said.append(str(error))
        return real(path, keys)

    monkeypatch.setattr(engine.release.ledger.ledger, "stray_results", meanwhile)
    assert not isinstance(use(ledger.path), tuple) or use(ledger.path) == ()
    assert all("Another program" in text for text in said)
    assert said


def test_eight_threads_share_one_ledger_object(ledger):
    fresh, start = [], threading.Barrier(8)

    def click():
        start.wait()
        for attempt in (1, 2, 3):
            fresh.append(spend(ledger, attempt=attempt, pcost=0.1).fresh)

    crew = [threading.Thread(target=click) for _ in range(8)]
    for thread in crew:
        thread.start()
    for thread in crew:
        thread.join()
    assert Counter(fresh) == {True: 3, False: 21}
    assert ledger.status("adult").spent == 0.3


KILLS = 12  # python -m tests.release.ledger_worker makes as many as asked for


def test_random_kills_lose_no_spend_and_draw_nothing_twice(tmp_path):
    counts = campaign(tmp_path, kills=KILLS, seed=int.from_bytes(os.urandom(4)))
    assert counts["kills"] == KILLS
    assert counts["spends"] >= counts["draws"] >= counts["saved"] > 0


def test_random_edits_are_noticed_or_change_nothing(tmp_path):
    counts = edits(tmp_path, count=12, seed=1)
    assert counts["edits"] == 12
    assert counts["noticed"] > 6


def test_results_are_for_their_owner_alone(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        for made_before in (False, True):
            ledger = Ledger.create(tmp_path / f"{made_before}.ledger")
            ledger.add_dataset("a", total=Budget(pcost=1.0))
            folder = tmp_path / f"{made_before}.ledger.results"
            if made_before:
                folder.mkdir(mode=0o755)
            receipt = ledger.spend(dataset="a", key="k", pcost=0.5, plan_hash="1f")
            ledger.save_result(receipt=receipt, content=b"noisy")
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            assert stat.S_IMODE(ledger.path.stat().st_mode) == 0o600
    finally:
        os.umask(old)


def test_a_total_is_changed_by_a_row_that_says_who_and_why(ledger):
    ledger.spend(dataset="adult", key="a", pcost=0.75, plan_hash="p")
    with pytest.raises(BudgetExceeded):
        ledger.spend(dataset="adult", key="b", pcost=0.5, plan_hash="p")
    ledger.change_total("adult", total=Budget(pcost=2.0), by="R. Office", reason="a second wave")
    assert ledger.status("adult").left == 1.25
    assert ledger.spend(dataset="adult", key="b", pcost=0.5, plan_hash="p").fresh
    ledger.change_total("adult", total=Budget(pcost=1.25), by="R. Office", reason="closed")
    status = Ledger(ledger.path).status("adult")
    assert (status.total, status.spent, status.left, status.note) == (1.25, 1.25, 0.0, "a first test")
    with pytest.raises(BudgetExceeded):
        ledger.spend(dataset="adult", key="c", pcost=1e-9, plan_hash="p")
    found = total_history(ledger.rows(), "adult")
    assert [(c.total, c.by, c.reason) for c in found] == [
        (1.0, "", ""),
        (2.0, "R. Office", "a second wave"),
        (1.25, "R. Office", "closed"),
    ]
    assert verify_ledger(ledger.path) == ()
    assert [row.kind for row in ledger.rows()] == ["ledger", "dataset", "spend", "total", "spend", "total"]


def test_no_total_goes_below_what_is_spent_or_counts_something_else(ledger):
    ledger.spend(dataset="adult", key="a", pcost=0.75, plan_hash="p")
    ledger.add_dataset("pure", total=Budget.pure(1.0))
    before = ledger.rows()
    why = {"by": "R. Office", "reason": "try"}
    for dataset, total, words in (
        ("adult", Budget(pcost=0.7499999999999999), "cannot be taken back"),
        ("adult", Budget(pcost=1.0), "already"),
        ("adult", Budget.pure(2.0), "of its own kind"),
        ("adult", Budget(pcost=2.0, rows_per_person=2), "a change keeps that"),
        ("adult", Budget(pcost=2.0, neighbours="replace_one"), "a change keeps that"),
        ("pure", Budget(pcost=2.0), "of its own kind"),
        ("nobody", Budget(pcost=2.0), "not in the ledger"),
    ):
        with pytest.raises(LedgerError, match=words):
            ledger.change_total(dataset, total=total, **why)
    for words in ({"by": "", "reason": "x"}, {"by": "x", "reason": ""}, {"by": "x", "reason": "a\nb"}):
        with pytest.raises(LedgerError):
            ledger.change_total("adult", total=Budget(pcost=2.0), **words)
    assert ledger.rows() == before


def test_a_changed_total_hides_no_spend(ledger):
    # rows that a program other than this one could have written
    opened, declared = ledger.rows()
    total = {"kind": "total", "dataset": "adult", "plan_hash": declared.plan_hash, "utc": "", "note": "{}"}
    spend = {"kind": "spend", "dataset": "adult", "utc": ""}
    rows = [
        opened,
        declared,
        Row(seq=3, key="a", pcost="1.5", **spend),  # too much at its time
        Row(seq=4, pcost="3.0", **total),  # and a later total does not make it right
        Row(seq=5, pcost="1.25", **total),
        Row(seq=6, pcost="epsilon 9.0", **total),
        Row(seq=7, pcost="9.0", **(total | {"plan_hash": ""})),
        Row(seq=8, pcost="9.0", **(total | {"note": ""})),
        Row(seq=9, pcost="9.0", **(total | {"dataset": "nobody"})),
    ]
    book, problems = balance(rows)
    assert [p.split()[1] for p in problems] == ["3", "5", "6", "7", "8", "9"]
    assert "spends more than was left" in problems[0]
    assert "below what is spent" in problems[1]
    assert book.left("adult") == Decimal("1.5")
