"""The durable privacy budget: who may draw noise, how often, and what was drawn.

A budget belongs to a *named* dataset, never to the content of a file.  The order under any crash is: `spend` durably,
draw, `save_result`, show.  Of all calls that ever spend the same key exactly one is told `fresh=True`, and only that
caller may draw; everybody else reads the saved result.  A missing or damaged ledger refuses, it is never a fresh
budget.  Private values never enter it: it holds names, costs, hashes and notes.

What it cannot see: two copies of a ledger used side by side, and an old copy put back while no program has it open,
unless a saved result or an earlier receipt (`verify(receipts=...)`) gives it away.  Whoever may write the file may
forge it: the hashes show accidents and careless edits, they are no signature.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from engine.checks import whole
from engine.errors import BudgetExceeded, LedgerError, ResultLost
from engine.privacy import Budget
from engine.release.ledger.balance import Balance, DatasetStatus, Receipt, balance, exact
from engine.release.ledger.chain import Row, append, chain_problems, create_file, file_problems, read_rows, transaction
from engine.release.ledger.results import Content, draft, result_file, result_problem, results_folder, stray_results

_NAME, _KEY, _NOTE = 200, 500, 2000  # most characters of a dataset name, a key, a note


class _Add(Protocol):
    def __call__(self, *, kind: str, dataset: str, **content: str | int) -> Row: ...


def release_key(*, dataset: str, plan_hash: str, attempt: int) -> str:
    """The key of one release: the same key always means the same drawn noise.

    >>> release_key(dataset="adult", plan_hash="1f3a", attempt=1)
    'adult|1f3a|1'
    """
    number = whole("attempt", attempt, error=LedgerError)
    return f"{_name(dataset)}|{_hash_text(plan_hash)}|{number}"


class Ledger:
    """An existing ledger file, checked in full on opening and again within every transaction.

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
        self.path = Path(path).resolve()
        self.wait = wait
        self._seen: Row | None = None
        with self._transaction(write=False) as (book, _):
            if problems := stray_results(self.path, book.spends):
                raise self._distrust(problems)

    @classmethod
    def create(cls, path: str | os.PathLike[str], *, wait: float = 30.0) -> Ledger:
        """Make a new ledger; raises LedgerError if a file, or the results of an earlier ledger, are there."""
        place = Path(path).resolve()
        # results or a journal without their ledger: it was moved or lost, and a new one would grant its budget again
        for trace in (results_folder(place), place.with_name(place.name + "-journal")):
            if trace.exists() and not place.exists():
                raise LedgerError(f"{trace} shows that a ledger was at {place}; put it back, or choose another name.")
        create_file(place)
        return cls(place, wait=wait)

    @classmethod
    def open_or_create(cls, path: str | os.PathLike[str], *, wait: float = 30.0) -> Ledger:
        """Open the ledger at `path`, or make one where nothing is; only for a person who just asked for that."""
        return cls(path, wait=wait) if os.path.lexists(path) else cls.create(path, wait=wait)

    def add_dataset(self, dataset: str, *, total: Budget, note: str = "") -> None:
        """Declare a dataset and the most pcost that all its releases together may ever cost; it cannot be changed.

        Raises: LedgerError if the name, or one that only looks different, is there already.
        """
        name, note = _name(dataset), _line("note", note, most=_NOTE, empty=True)
        with self._transaction(write=True) as (book, add):
            for known in book.totals:
                if _lookalike(known) == _lookalike(name):
                    raise LedgerError(
                        f"Dataset {known!r} is in the ledger already, with its own budget; use that name."
                    )
            add(kind="dataset", dataset=name, key=name, pcost=repr(total.pcost), note=note)

    def datasets(self) -> list[DatasetStatus]:
        """The budgets of all datasets, in the order they were declared."""
        with self._transaction(write=False) as (book, _):
            return [book.status(dataset) for dataset in book.totals]

    def status(self, dataset: str) -> DatasetStatus:
        """The budget of one dataset; a spend of `left` is always granted.  Raises: LedgerError if it is unknown."""
        with self._transaction(write=False) as (book, _):
            return book.status(_name(dataset))

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
        text, key = _line("note", text, most=_NOTE), _line("key", key, most=_KEY, empty=True)
        with self._transaction(write=True) as (book, add):
            known = len(book.notes.get((f"note:{kind}", key), ()))
            if earlier is not None and known != earlier:
                raise LedgerError(
                    f"{known} notes of this kind are there under key {key!r}, not {earlier}: somebody else was faster. "
                    "Nothing was written; read them first."
                )
            add(kind=f"note:{kind}", dataset=book.status(_name(dataset)).dataset, key=key, note=text)

    def notes(self, *, kind: str, key: str) -> list[Row]:
        """The notes of one kind under one key, oldest first."""
        with self._transaction(write=False) as (book, _):
            return list(book.notes.get((f"note:{kind}", key), ()))

    def spend(self, *, dataset: str, key: str, pcost: float, plan_hash: str, note: str = "") -> Receipt:
        """Take `pcost` from the budget of a dataset, durably, before anything is drawn.

        Guarantee: once this returns the row is on the disk; the spends of a dataset never pass its total; of all
        calls with one key, from any thread or process, exactly one returns `fresh=True`, and only it may draw.
        Raises: BudgetExceeded if less is left, LedgerError if the key was spent for something else, BudgetError if
        pcost is no finite positive number; nothing is written then.
        """
        name, key, cost = _name(dataset), _line("key", key, most=_KEY), repr(Budget(pcost).pcost)
        plan_hash, note = _hash_text(plan_hash), _line("note", note, most=_NOTE, empty=True)
        with self._transaction(write=True) as (book, add):
            status, known = book.status(name), book.spends.get(key)
            if known is not None:
                if (known.dataset, known.pcost, known.plan_hash) != (name, cost, plan_hash):
                    raise LedgerError(
                        f"Key {key!r} was spent in row {known.seq} for another dataset, plan or cost; "
                        "what was drawn under a key never changes: use a new attempt."
                    )
                return Receipt.of(known, fresh=False)
            # decimal numbers, exactly: sums of doubles could round a spend past the total
            if exact(cost) > book.left(name):
                raise BudgetExceeded(
                    f"Dataset {name!r} has pcost {status.left!r} left of {status.total!r}; {cost} was asked for. "
                    "Nothing was spent. Plan with a budget of at most what is left."
                )
            row = add(kind="spend", dataset=name, key=key, pcost=cost, plan_hash=plan_hash, note=note)
        return Receipt.of(row, fresh=True)

    def find(self, key: str) -> Receipt | None:
        """The receipt of a key that was spent, never fresh; None if it was not.  Spends nothing."""
        with self._transaction(write=False) as (book, _):
            known = book.spends.get(_line("key", key, most=_KEY))
        return Receipt.of(known, fresh=False) if known else None

    def save_result(self, *, receipt: Receipt, content: Content) -> Path:
        """Store what was drawn under a fresh receipt and return its file; `content` is bytes or `f(binary_file)`.

        Guarantee: the result is either complete, on the disk and with its sha256 in the ledger, or not there at all.
        May be tried again with the same receipt after an error.
        Raises: LedgerError if the receipt is not fresh, if it is from another ledger, if something else was saved
        under its key, or if the file cannot be written.
        """
        key = receipt.key
        if not receipt.fresh:
            raise LedgerError(f"Only the call that spent key {key!r} may save; read it with load_result.")
        with draft(self.path, key, content) as new, self._transaction(write=True) as (book, add):
            spent, known = book.spends.get(key), book.saved.get(key)
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
        key = _line("key", key, most=_KEY)
        with self._transaction(write=False) as (book, _):
            if key not in book.spends:
                raise LedgerError(f"Nothing was ever spent under key {key!r}; spend first.")
        if key not in book.saved:
            raise ResultLost(
                f"Budget was spent under key {key!r}, but no result was saved: its run is still at work or was "
                "stopped. Wait for it; if nothing comes, use a new attempt, which spends again."
            )
        if problem := result_problem(self.path, book.saved[key]):
            raise ResultLost(
                f"Budget was spent, but {problem}. Restore that file, or use a new attempt (spends again)."
            )
        return result_file(self.path, key)

    def load_result(self, key: str) -> bytes:
        """The content of a saved result; read large ones from `result_path(key)` in pieces."""
        return self.result_path(key).read_bytes()

    def verify(self, *, receipts: Iterable[Receipt] = (), results: bool = True) -> tuple[str, ...]:
        """Every problem in words, none if all is sound; see `verify_ledger`."""
        return verify_ledger(self.path, receipts=receipts, results=results, wait=self.wait)

    @contextmanager
    def _transaction(self, *, write: bool) -> Iterator[tuple[Balance, _Add]]:
        """The checked balance, and how to add a row, inside one transaction."""
        seen = self._seen
        with transaction(self.path, write=write, wait=self.wait) as connection:
            rows = read_rows(connection)
            book, problems = balance(rows)
            problems = chain_problems(connection, rows) + problems
            if seen is None:
                problems = file_problems(connection) + problems
            elif len(rows) < seen.seq or rows[seen.seq - 1].hash != seen.hash:
                problems.insert(0, "it was replaced by another or an older copy while it was in use")
            if problems:
                raise self._distrust(problems)

            def add(**content: str | int) -> Row:
                rows.append(append(connection, rows[-1], **content))
                return rows[-1]

            yield book, add
        self._seen = rows[-1]

    def _distrust(self, problems: list[str]) -> LedgerError:
        return LedgerError(
            f"The ledger {self.path} cannot be trusted: {problems[0]}. Nothing was granted. Restore its newest copy; "
            "`verify_ledger` lists every problem."
        )


def verify_ledger(
    path: str | os.PathLike[str], *, receipts: Iterable[Receipt] = (), results: bool = True, wait: float = 30.0
) -> tuple[str, ...]:
    """Every problem of the ledger at `path` in words, none if all is sound; works for files that do not open.

    Finds: a damaged file, altered rules, rows that were edited, removed, added or reordered, a cut end, broken budget
    rules, results without a row.  `results` also reads every saved file and compares its sha256.  `receipts` that were
    kept elsewhere are looked for: they show a ledger that was set back to an older copy.
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
    hashes = {row.seq: row.hash for row in rows}
    for receipt in receipts:
        if hashes.get(receipt.seq) != receipt.hash:
            problems.append(
                f"the receipt of row {receipt.seq} (key {receipt.key!r}) is not in the ledger: it was set back"
            )
    if results:
        problems += filter(None, (result_problem(place, row) for row in book.saved.values()))
    return tuple(problems)


def _line(what: str, text: str, *, most: int, empty: bool = False) -> str:
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


def _name(dataset: str) -> str:
    return _line("dataset name", dataset, most=_NAME)


def _hash_text(plan_hash: str) -> str:
    if not isinstance(plan_hash, str) or not re.fullmatch(r"[A-Za-z0-9:_.-]{1,128}", plan_hash):
        raise LedgerError("The plan hash must be 1 to 128 letters, digits or any of : _ . - ; take it from the plan.")
    return plan_hash


def _lookalike(name: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", name).casefold().split())
