"""Ledger of privacy budgets: totals, spends, results and verification.

What a program has checked of a ledger, so that a spend checks what is new and not the whole chain again.

A program decides by rows that it checked itself and remembers: whatever happens to them in the file grants nothing.  In
every transaction the rows after those are read, and checked from the last known hash on.  An edit of the rows before is
told, too: the times of the file then differ from those after the last transaction, and all rows are compared with what
is remembered (about 2 ms per 1,000 rows; so it is when another program has spent).  Opening and `verify` check all.

The rows that this program wrote itself are remembered as well: the next transaction must read exactly those rows after
the checked ones, so a copy of the file from before the own write is refused.  Rows of other programs may follow them.

The words that a ledger keeps: one printable line each, so that what looks the same is the same.

A total that is raised or lowered: a row of its own that says who did it and why.

Nothing that was written before changes.  A total never goes below what is spent, counts what it counted before, and
spends are judged by the total of their time: a later one neither hides a spend nor makes one right.

The durable privacy budget: who may draw noise, how often, and what was drawn.

A budget belongs to a *named* dataset, never to the content of a file.  The order under any crash is: `spend` durably,
draw, `save_result`, show.  Of all calls that ever spend the same key exactly one is told `fresh=True`, and only that
caller may draw; everybody else reads the saved result.  A missing or damaged ledger refuses, it is never a fresh
budget.  Private values never enter it: it holds names, costs, hashes and notes.

An open `Ledger` refuses a file that lacks a row it has read or written.
What it cannot see: two copies of a ledger used side by side, and an old copy put back while no program has it open,
unless a saved result or an earlier receipt (`verify(receipts=...)`) gives it away.  Whoever may write the file may
forge it: the hashes show accidents and careless edits, they are no signature.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import threading
import unicodedata
import warnings
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from engine._untrusted import parse_json
from engine._validation import instance, whole
from engine.errors import BudgetExceeded, LedgerError, ResultLost
from engine.ledger.balance import Balance, DatasetStatus, Fingerprint, Receipt, balance
from engine.ledger.budget_unit import TotalDefinition, exact, same_charge
from engine.ledger.confusable import INVISIBLE, looks_like, visible
from engine.ledger.hash_chain import (
    Row,
    RowCells,
    append,
    chain_problems,
    create_file,
    file_problems,
    read_cells,
    read_rows,
    rows_of,
    transaction,
)
from engine.ledger.noise_journal import remove_ended
from engine.ledger.result_store import (
    Content,
    Draft,
    remove_stale,
    reserved,
    result_file,
    result_problem,
    results_folder,
    size_of,
    stray_results,
)
from engine.ledger.signing import key_file, secret, sign_with
from engine.privacy import Budget

_OLDER = "it was replaced by another or an older copy while it was in use"
_EDITED = "rows that were sound before were edited while it was in use"


@dataclass(frozen=True, kw_only=True)
class Checked:
    """Rows that were checked: their cells, the last of them, what they add up to, and how the file looked then.

    `written` are the cells of the rows that this program added after them and has not read back yet.
    """

    cells: list[RowCells]
    head: Row
    book: Balance
    times: tuple[int, ...]
    rules: int
    written: tuple[RowCells, ...] = ()

    @property
    def length(self) -> int:
        """Number of rows that the file must contain at least."""
        return len(self.cells) + len(self.written)

    @property
    def last(self) -> tuple[int, str]:
        """Number and hash of the last row that the file must contain."""
        return (self.written[-1][0], self.written[-1][-1]) if self.written else (self.head.seq, self.head.hash)

    def committed(self, path: Path, written: Iterable[RowCells]) -> Checked:
        """Return the state after this program's own commit, which has changed the times of the file."""
        return replace(self, times=_times(path), written=tuple(written))


def check(connection: sqlite3.Connection, path: Path, known: Checked | None) -> tuple[Checked | None, list[str]]:
    """What stands in the ledger now, checked inside a transaction, or None and all problems in words.

    `known` is what this program checked before; without it everything is checked, the pages of the file, too.
    """
    times, (rules,) = _times(path), connection.execute("PRAGMA schema_version").fetchone()
    problems = [] if known else file_problems(connection)
    if known and times and (times, rules) == (known.times, known.rules):
        # others may have spent between a commit and the look at the times: the end is read whatever these say
        cells = known.cells[:-1] + read_cells(connection, known.head.seq - 1)
    else:
        cells = read_cells(connection)
    # an older copy put back under a ledger that is open would grant spent budget again
    if known and cells[: len(known.cells)] != known.cells:
        cut = len(cells) < len(known.cells) or cells[len(known.cells) - 1] != known.cells[-1]
        problems, known = [_OLDER if cut else _EDITED], None
    elif known and tuple(cells[len(known.cells) : known.length]) != known.written:
        problems, known = [_OLDER], None
    rows = rows_of(cells[len(known.cells) :] if known else cells)
    book, broken = balance(rows, known.book if known else None)
    problems += chain_problems(connection, rows, known.head if known else None) + broken
    head = rows[-1] if rows else known.head if known else None
    if problems or head is None:
        return None, problems
    return Checked(cells=cells, head=head, book=book, times=times, rules=rules), []


def _times(path: Path) -> tuple[int, ...]:
    """Which file lies at a path, how long it is and when it was written; nothing if it is gone."""
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


NAME, KEY, NOTE = 200, 500, 2000  # most characters of a dataset name, a key, a note


def one_line(what: str, text: str, *, most: int, empty: bool = False) -> str:
    """One line of printable text in Unicode form NFC, so that what looks the same is the same."""
    allowed = f"it must be one line of {'at most' if empty else '1 to'} {most} printable characters"
    if not isinstance(text, str):
        raise LedgerError(f"The {what} was given as {type(text).__name__}; {allowed}.")
    text = unicodedata.normalize("NFC", text)
    # categories C* and Zl, Zp: control, bidirectional, unassigned and line-breaking characters
    odd = [char for char in text if unicodedata.category(char)[0] == "C" or unicodedata.category(char) in ("Zl", "Zp")]
    if odd or len(text) > most or text != text.strip() or not (text or empty):
        given = f"holds the character U+{ord(odd[0]):04X}" if odd else f"has {len(text)} characters or outer spaces"
        raise LedgerError(f"The {what} {given}; {allowed}, with no space at its ends.")
    return text


def dataset_name(dataset: str) -> str:
    """The name of a dataset, in the one form in which it is kept."""
    return one_line("dataset name", dataset, most=NAME)


def hash_text(plan_hash: str) -> str:
    """The hash of a plan."""
    if not isinstance(plan_hash, str) or not re.fullmatch(r"[A-Za-z0-9:_.-]{1,128}", plan_hash):
        raise LedgerError("The plan hash must be 1 to 128 letters, digits or any of : _ . - ; take it from the plan.")
    return plan_hash


def new_dataset_name(dataset: str) -> str:
    """The name of a dataset that is declared now: as `dataset_name`, and without invisible characters."""
    name = dataset_name(dataset)
    if invisible := INVISIBLE.search(name):
        raise LedgerError(
            f"The dataset name contains the invisible character U+{ord(invisible[0]):04X}. Type it again without it."
        )
    return name


def lookalike(name: str) -> str:
    """What a name looks like: the same for names that only look different to a machine."""
    return " ".join(visible(name).casefold().split())


BY, REASON = 200, 1000  # most characters


@dataclass(frozen=True, kw_only=True)
class TotalChange:
    """A total as it was declared, or changed to: when, to how much in what it counts, by whom and why."""

    utc: str
    total: float
    by: str = ""
    reason: str = ""


def changed_total(book: Balance, dataset: str, total: Budget, by: str, reason: str) -> dict[str, str]:
    """The content of the row that changes a total; raises LedgerError when it may not be changed so."""
    instance("total", total, Budget, give="a Budget, such as Budget(pcost=1.0)", error=LedgerError)
    status = book.status(dataset)
    unit, counted = (total.rows_per_person, total.neighbours), status.definition
    if unit != (counted.rows_per_person, counted.neighbours):
        raise LedgerError(
            f"The total of {dataset!r} is {counted.describe()}; a change keeps that. Give it for the same."
        )
    amount = counted.total(total)
    if exact(amount) < book.spent[dataset]:
        raise LedgerError(
            f"{status.spent!r} {counted.counts} of {dataset!r} are spent, and what is spent cannot be taken back. "
            f"{amount} was asked for; give at least what is spent."
        )
    if exact(amount) == exact(book.totals[dataset].pcost):
        raise LedgerError(f"The total of {dataset!r} is that already. Nothing was written.")
    words = {"by": one_line("name", by, most=BY), "reason": one_line("reason", reason, most=REASON)}
    note = one_line("note", json.dumps(words, ensure_ascii=False, sort_keys=True), most=NOTE)
    return {"dataset": dataset, "pcost": amount, "plan_hash": book.totals[dataset].plan_hash, "note": note}


def total_history(rows: Iterable[Row], dataset: str) -> tuple[TotalChange, ...]:
    """The total of a dataset as it was declared and every change of it, oldest first."""
    found = []
    for row in rows:
        if row.dataset == dataset and row.kind in ("dataset", "total"):
            words = parse_json(row.note) if row.kind == "total" else {}
            found.append(TotalChange(utc=row.utc, total=float(exact(row.pcost)), **words))
    return tuple(found)


_SPARE = 1 << 16  # bytes beside a result: for the row that tells of it, and for what compresses differently
REHEARSED = "note:rehearsed"


class ConfusableName(UserWarning):
    """A new dataset has a name that looks like that of another one."""


class _Add(Protocol):
    def __call__(self, *, kind: str, dataset: str, **content: str | int) -> Row: ...


def release_key(*, dataset: str, plan_hash: str, attempt: int) -> str:
    """The key of one release: the same key always means the same drawn noise.

    >>> release_key(dataset="adult", plan_hash="1f3a", attempt=1)
    'adult|1f3a|1'
    """
    number = whole("attempt", attempt, error=LedgerError)
    return f"{dataset_name(dataset)}|{hash_text(plan_hash)}|{number}"


class Ledger:
    """An existing ledger file, checked in full on opening, and whatever is new in it within every transaction.

    Costs are exact: a pcost counts as the decimal number that its `repr` shows, so ten spends of 0.1 use up 1.
    Safe between threads and processes.  `wait` is how many seconds a call waits for other programs.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ledger = Ledger.create(Path(folder) / "budget.ledger")
    ...     ledger.add_dataset("adult", total=Budget(pcost=1.0))
    ...     key = release_key(dataset="adult", plan_hash="1f3a", attempt=1)
    ...     receipt = ledger.spend(dataset="adult", key=key, pcost=0.1, plan_hash="1f3a")
    ...     if receipt.fresh:
    ...         path = ledger.save_result(receipt=receipt, content=b"noisy answers")
    ...     ledger.spend(dataset="adult", key=key, pcost=0.1, plan_hash="1f3a").fresh, ledger.status("adult").left
    (False, 0.9)
    """

    def __init__(self, path: str | os.PathLike[str], *, wait: float = 30.0) -> None:
        instance("ledger", path, (str, os.PathLike), give="a Ledger, or the path of one", error=LedgerError)
        self.path = Path(path).resolve()
        self.wait = wait
        self._checked: Checked | None = None
        self._lock = threading.Lock()
        with self._transaction(write=False) as (book, _):
            if problems := stray_results(self.path, book.spends):
                raise self._distrust(problems)
        # after the check, so that nothing is touched beside a ledger that cannot be trusted
        remove_stale(self.path)
        remove_ended(self.path, self.unfinished)

    @classmethod
    def at(cls, ledger: Ledger | str | os.PathLike[str]) -> Ledger:
        """Return the ledger itself, or the one at a path."""
        return ledger if isinstance(ledger, Ledger) else cls(ledger)

    @classmethod
    def create(cls, path: str | os.PathLike[str], *, wait: float = 30.0) -> Ledger:
        """Make a new ledger; raises LedgerError if a file, or the results of an earlier ledger, are there."""
        place = Path(path).resolve()
        # results or a journal without their ledger: it was moved or lost, and a new one would grant its budget again
        for trace in (results_folder(place), key_file(place), place.with_name(place.name + "-journal")):
            if trace.exists() and not place.exists():
                raise LedgerError(f"{trace} shows that a ledger was at {place}; put it back, or choose another name.")
        create_file(place)
        return cls(place, wait=wait)

    @classmethod
    def open_or_create(cls, path: str | os.PathLike[str], *, wait: float = 30.0) -> Ledger:
        """Open the ledger at `path`, or make one where nothing is; only for a person who just asked for that."""
        return cls(path, wait=wait) if os.path.lexists(path) else cls.create(path, wait=wait)

    def add_dataset(self, dataset: str, *, total: Budget, note: str = "", kind: str | None = None) -> None:
        """Declare a dataset and the most that all its releases together may cost; see `change_total`.

        `kind` is what the total counts, see `TotalDefinition`; by default "pure" for a budget of pure epsilon, which
        then takes no Gaussian noise, and "zcdp" for all others.  Give "gdp" for a total in mu, or in epsilon and delta.

        Warns (`ConfusableName`) if the name looks like that of another dataset; see `confusable_names`.

        Raises: LedgerError if the name, or one that only looks different, is there already, or if it has invisible
        characters.
        """
        name, note = new_dataset_name(dataset), one_line("note", note, most=NOTE, empty=True)
        instance("total", total, Budget, give="a Budget, such as Budget(pcost=1.0)", error=LedgerError)
        defined = TotalDefinition(
            kind=kind or ("zcdp" if total.pure_epsilon is None else "pure"),
            rows_per_person=total.rows_per_person,
            neighbours=total.neighbours,
        )
        amount = defined.total(total)
        with self._transaction(write=True) as (book, add):
            for known in book.totals:
                # Adult and adult would each have a budget for the same people
                if lookalike(known) == lookalike(name):
                    raise LedgerError(
                        f"Dataset {known!r} is in the ledger already, with its own budget; use that name."
                    )
            add(kind="dataset", dataset=name, key=name, pcost=amount, plan_hash=defined.to_text(), note=note)
            similar = _confusable(book, name)
        for other in similar:
            warnings.warn(confusable_text(name, other), ConfusableName, stacklevel=2)

    def confusable_names(self, dataset: str) -> list[str]:
        """Names of other datasets in this ledger that a reader may take for this one, such as with Cyrillic letters."""
        with self._transaction(write=False) as (book, _):
            return _confusable(book, dataset)

    def change_total(self, dataset: str, *, total: Budget, by: str, reason: str) -> None:
        """Raise or lower the total of a dataset, never below what is spent, by a row that says who and why.

        Raises: LedgerError for a total below that, of another kind, for others, or the same, and without a reason.
        """
        with self._transaction(write=True) as (book, add):
            add(kind="total", **changed_total(book, dataset_name(dataset), total, by, reason))

    def datasets(self) -> list[DatasetStatus]:
        """The budgets of all datasets, in the order they were declared."""
        with self._transaction(write=False) as (book, _):
            return [book.status(dataset) for dataset in book.totals]

    def status(self, dataset: str) -> DatasetStatus:
        """The budget of one dataset; a spend of `left` is always granted.  Raises: LedgerError if it is unknown."""
        with self._transaction(write=False) as (book, _):
            return book.status(dataset_name(dataset))

    def rows(self) -> list[Row]:
        """The whole history, oldest first, as it stands in the file."""
        with transaction(self.path, write=False, wait=self.wait) as connection:
            return read_rows(connection)

    def note(self, *, dataset: str, kind: str, text: str, key: str = "", earlier: int | None = None) -> None:
        """Keep one line of text about a dataset, such as a decision; `kind` is a lower-case word.

        `key` ties it to a release.  With `earlier` it is kept only if exactly so many notes of this kind and key are
        there, so that of two people who decide at once one is refused.
        Raises: LedgerError then, and for text that is no line.
        """
        if not isinstance(kind, str) or not re.fullmatch(r"[a-z][a-z-]{0,39}", kind):
            raise LedgerError("The kind of a note must be a lower-case word of at most 40 letters, such as decision.")
        text, key = one_line("note", text, most=NOTE), one_line("key", key, most=KEY, empty=True)
        with self._transaction(write=True) as (book, add):
            known = len(book.notes.get((f"note:{kind}", key), ()))
            if earlier is not None and known != earlier:
                given = f"{known} notes of this kind are there under key {key!r}, not {earlier}"
                raise LedgerError(f"{given}: somebody else was faster. Nothing was written; read them first.")
            add(kind=f"note:{kind}", dataset=book.status(dataset_name(dataset)).dataset, key=key, note=text)

    def notes(self, *, kind: str, key: str) -> list[Row]:
        """The notes of one kind under one key, oldest first."""
        with self._transaction(write=False) as (book, _):
            return list(book.notes.get((f"note:{kind}", key), ()))

    def secret(self, purpose: str) -> bytes:
        """Secret bytes of this ledger for one purpose, from the key file beside it, which is made when it is needed."""
        return secret(self.path, purpose)

    def sign(self, content: bytes) -> tuple[str, str]:
        """Public key and Ed25519 signature of this ledger for some content, in hexadecimal."""
        return sign_with(self.secret("signature"), content)

    def same_records(self, fingerprint: Fingerprint, *, dataset: str = "") -> list[Row]:
        """Spends for the same records under other names, and notes on them as public ones under any."""
        with self._transaction(write=False) as (book, _):
            noted = (r for (kind, _), rows in book.notes.items() if kind == REHEARSED for r in rows)
            rows = [*book.spends.values(), *noted]
        texts = ((row, row.sha256 if row.kind == "spend" else row.note.partition(": ")[0]) for row in rows)
        # column by column, because the same records may be counted under another schema
        known = {(r.kind, r.dataset): r for r, text in texts if fingerprint.same_columns(Fingerprint.from_text(text))}
        return [row for (kind, name), row in known.items() if kind == REHEARSED or name != dataset]

    def afford(self, *, dataset: str, pcost: float, pure_epsilon: float | None = None) -> None:
        """Refuse what `spend` would refuse now, before any record is read; grants nothing.

        Raises: BudgetExceeded if less is left; LedgerError if the total does not count such a release.
        """
        with self._transaction(write=False) as (book, _):
            # only a forecast: between this and the spend others may spend, and it is the spend that decides
            _enough(book, book.status(dataset_name(dataset)), pcost, pure_epsilon)

    def spend(
        self,
        *,
        dataset: str,
        key: str,
        pcost: float,
        plan_hash: str,
        note: str = "",
        pure_epsilon: float | None = None,
        records: Fingerprint | None = None,
    ) -> Receipt:
        """Take `pcost` from the budget of a dataset, durably, before anything is drawn.

        `pure_epsilon` is given for a release with Laplace noise; what it takes depends on what the total counts.
        With `records`, the ledger remembers which they were: their digests, by a key that stays beside it.

        Guarantee: once this returns the row is on the disk; the spends of a dataset never pass its total; of all
        calls with one key, from any thread or process, exactly one returns `fresh=True`, and only it may draw.
        Raises: BudgetExceeded if less is left, LedgerError if the key was spent for something else, BudgetError if
        pcost is no finite positive number; nothing is written then.
        """
        name, key = dataset_name(dataset), one_line("key", key, most=KEY)
        plan_hash, note = hash_text(plan_hash), one_line("note", note, most=NOTE, empty=True)
        with self._transaction(write=True) as (book, add):
            # looked up under the write lock: of two programs with one key the second finds the row of the first
            status, known = book.status(name), book.spends.get(key)
            if known is not None:
                # a key that comes back after a crash must mean the same release: another one under it would be free
                cost = status.definition.charge(pcost, pure_epsilon)
                if not same_charge(known.pcost, cost) or (known.dataset, known.plan_hash) != (name, plan_hash):
                    raise LedgerError(
                        f"Key {key!r} was spent in row {known.seq} for another dataset, plan or cost; "
                        "what was drawn under a key never changes: use a new attempt."
                    )
                return Receipt.of(known, fresh=False)
            _enough(book, status, pcost, pure_epsilon)
            digest, cost = records.to_text() if records else "", status.definition.charge(pcost, pure_epsilon)
            row = add(kind="spend", dataset=name, key=key, pcost=cost, plan_hash=plan_hash, sha256=digest, note=note)
        # after the commit, not inside it: what is told to be fresh is on the disk
        return Receipt.of(row, fresh=True)

    def find(self, key: str) -> Receipt | None:
        """The receipt of a key that was spent, never fresh; None if it was not.  Spends nothing."""
        with self._transaction(write=False) as (book, _):
            known = book.spends.get(one_line("key", key, most=KEY))
        return Receipt.of(known, fresh=False) if known else None

    def spent(self, key: str) -> Receipt:
        """The receipt of a key that was spent; raises LedgerError if it was not."""
        key = one_line("key", key, most=KEY)
        with self._transaction(write=False) as (book, _):
            if key not in book.spends:
                raise LedgerError(f"Nothing was ever spent under key {key!r}; spend first.")
        return Receipt.of(book.spends[key], fresh=False)

    def unfinished(self) -> set[str]:
        """The keys that were spent and have no saved result."""
        with self._transaction(write=False) as (book, _):
            return set(book.spends) - set(book.saved)

    @contextmanager
    def room_for(self, content: Content) -> Iterator[Draft]:
        """Take the space on the disk that a result like `content` needs, before anything is spent for it.

        Raises: LedgerError if there is no room; nothing was spent.
        """
        with reserved(self.path, size_of(content) + _SPARE) as draft:
            yield draft

    def save_result(self, *, receipt: Receipt, content: Content, draft: Draft | None = None) -> Path:
        """Store what was drawn under a fresh receipt and return its file; `content` is bytes or `f(binary_file)`.

        Guarantee: the result is either complete, on the disk and with its sha256 in the ledger, or not there at all.
        May be tried again with the same receipt after an error.  `draft` has its space already.
        Raises: LedgerError if the receipt is not fresh, if it is from another ledger, if something else was saved
        under its key, or if the file cannot be written.
        """
        key = receipt.key
        if not receipt.fresh:
            raise LedgerError(f"Only the call that spent key {key!r} may save; read it with load_result.")
        with ExitStack() as stack:
            new = draft or stack.enter_context(reserved(self.path, 0))
            try:
                new.write(content)
            except OSError as error:
                raise LedgerError(
                    f"The result of key {key!r} could not be saved: {error.strerror or error}. Its budget is spent. "
                    "Make room; then the same release again, of the same records, ends it and spends nothing."
                ) from error
            book, add = stack.enter_context(self._transaction(write=True))
            spent, known = book.spends.get(key), book.saved.get(key)
            # the hash seals all rows before it, so that a copy of the ledger that went its own way does not pass for
            # this one
            if spent is None or spent.hash != receipt.hash:
                raise LedgerError(f"The receipt of key {key!r} is from another ledger; save it there.")
            if known and (known.sha256, known.size) != (new.sha256, new.size):
                raise LedgerError(f"Key {key!r} has another saved result already; results never change.")
            # the file first, then its row: a crash in between leaves a file that saving again replaces by the same
            new.publish(result_file(self.path, key))
            if not known:
                add(kind="saved", dataset=spent.dataset, key=key, sha256=new.sha256, size=new.size)
        return result_file(self.path, key)

    def result_path(self, key: str) -> Path:
        """The file of a saved result, after its sha256 was checked.

        Raises: ResultLost if the budget was spent but there is no whole result; LedgerError if it was never spent.
        """
        key = one_line("key", key, most=KEY)
        with self._transaction(write=False) as (book, _):
            if key not in book.spends:
                raise LedgerError(f"Nothing was ever spent under key {key!r}; spend first.")
        if key not in book.saved:
            raise ResultLost(
                f"Budget was spent under key {key!r}, but no result was saved: its run is at work or was stopped. Ask "
                "again with the same records, which ends it for nothing, or use a new attempt, which spends again."
            )
        if problem := result_problem(self.path, book.saved[key]):
            what = "Restore that file, or use a new attempt (spends again)."
            raise ResultLost(f"Budget was spent, but {problem}. {what}")
        return result_file(self.path, key)

    def load_result(self, key: str) -> bytes:
        """The content of a saved result; read large ones from `result_path(key)` in pieces."""
        return self.result_path(key).read_bytes()

    def verify(self, *, receipts: Iterable[Receipt] = (), results: bool = True) -> tuple[str, ...]:
        """Every problem in words, none if all is sound; see `verify_ledger`.

        The last row that this object has read or written must be in the file, too.
        """
        hashes = [self._checked.last] if self._checked else []
        return verify_ledger(self.path, receipts=receipts, hashes=hashes, results=results, wait=self.wait)

    @contextmanager
    def _transaction(self, *, write: bool) -> Iterator[tuple[Balance, _Add]]:
        """The checked balance, and how to add a row, inside one transaction."""
        with transaction(self.path, write=write, wait=self.wait) as connection:
            checked, problems = check(connection, self.path, self._checked)
            if checked is None:
                raise self._distrust(problems)
            head = checked.head

            def add(**content: str | int) -> Row:
                nonlocal head
                head = append(connection, head, **content)
                return head

            yield checked.book, add
            # not from `add`, which may write a row for the clock as well
            written = read_cells(connection, checked.head.seq) if write else []
        # a row added here counts as checked only when the next transaction has read it back
        self._remember(checked.committed(self.path, written) if write else checked)

    def _remember(self, checked: Checked) -> None:
        """Keep what a transaction checked, unless another thread has already kept a longer history."""
        with self._lock:
            if self._checked is None or checked.length >= self._checked.length:
                self._checked = checked

    def _distrust(self, problems: list[str]) -> LedgerError:
        return LedgerError(
            f"The ledger {self.path} cannot be trusted: {problems[0]}. Nothing was granted. Restore its newest copy; "
            "`verify_ledger` lists every problem."
        )


def verify_ledger(
    path: str | os.PathLike[str],
    *,
    receipts: Iterable[Receipt] = (),
    hashes: Iterable[tuple[int, str]] = (),
    results: bool = True,
    wait: float = 30.0,
) -> tuple[str, ...]:
    """Every problem of the ledger at `path` in words, none if all is sound; works for files that do not open.

    Finds: a damaged file, altered rules, rows that were edited, removed, added or reordered, a cut end, broken budget
    rules, results without a row.  `results` also reads every saved file and compares its sha256.  `receipts` that were
    kept elsewhere, and `hashes`, rows with their hashes, are looked for: they show a ledger that was set back.
    """
    place = Path(path).resolve()
    try:
        with transaction(place, write=False, wait=wait) as connection:
            problems = file_problems(connection)
            rows = read_rows(connection)
            book, broken = balance(rows)
            # while this transaction reads nobody can spend, so a result without a row is not just a new one
            problems += chain_problems(connection, rows) + broken + stray_results(place, book.spends)
    except LedgerError as error:
        return (str(error),)
    # what was kept outside is the only witness of a whole file set back: inside, all hashes fit
    there = {row.seq: row.hash for row in rows}
    kept = [(r.seq, r.hash, f" (key {r.key!r})") for r in receipts] + [(seq, found, "") for seq, found in hashes]
    for seq, found, what in kept:
        if there.get(seq) != found:
            problems.append(f"the receipt of row {seq}{what} is not in the ledger: it was set back")
    if results:
        problems += filter(None, (result_problem(place, row) for row in book.saved.values()))
    return tuple(problems)


def confusable_text(name: str, other: str) -> str:
    """The warning for a dataset name that looks like another one."""
    return (
        f"The dataset name {name!r} looks like {other!r}, which has a budget of its own in this ledger. If these are "
        f"the same records, use the name {other!r}."
    )


def _confusable(book: Balance, name: str) -> list[str]:
    return [other for other in book.totals if other != name and looks_like(name, other)]


def _enough(book: Balance, status: DatasetStatus, pcost: float, pure_epsilon: float | None) -> None:
    cost = status.definition.charge(pcost, pure_epsilon)
    # decimal numbers, exactly: sums of doubles could round a spend past the total
    if exact(cost) > book.left(status.dataset):
        raise BudgetExceeded(
            f"Dataset {status.dataset!r} has {status.definition.counts} {status.left!r} left of {status.total!r}; "
            f"{cost} was asked for. Nothing was spent. Plan with a budget of at most what is left."
        )
