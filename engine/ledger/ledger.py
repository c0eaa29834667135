"""Durable ledger of privacy budgets: totals, spends, results and verification.

A budget belongs to a *named* dataset, never to the content of a file. The order under any crash is:
`spend` durably, draw the noise, `save_result`, publish. Of all calls that spend the same key
exactly one returns ``fresh=True``, and only that caller may draw; all others read the saved result.
A missing or damaged ledger refuses every spend; it is never a fresh budget. The ledger holds names,
costs, hashes and notes, and no private values.

Incremental checks. Decisions use rows verified in memory, so editing the file cannot grant budget.
Every transaction reads the rows after the verified ones and checks them from the last verified
hash. It also detects edits of earlier rows: the timestamps of the file then differ from those after
the last transaction, and all rows are compared with the copy in memory (about 2 ms per 1,000 rows;
the same happens after a spend by another program). Opening the ledger and `verify` check
everything.

Rows that this program wrote are kept in memory as well. The next transaction must read exactly
these rows after the verified ones, so an earlier copy of the file is refused. Rows of other
programs may follow them.

Changes of a total. A total is raised or lowered by a new row with author and reason; earlier rows
never change. A total is never below the amount spent and never changes its unit. Each spend is
judged by the total at its time, so a later total neither hides an overspend nor makes it valid.

Limits. An open `Ledger` refuses a file that lacks a row it has read or written. It cannot detect
two copies of a ledger used in parallel, or an old copy restored while no program has the ledger
open, unless a saved result or an earlier receipt (`verify(receipts=...)`) reveals it. Anyone with
write access can forge the file: the hashes detect accidents and careless edits, they are not a
signature.

Dataset names that look alike: invisible characters and confusable letters.

The invisible characters are those with Unicode's property Default_Ignorable_Code_Point, and further
ones without a glyph.  The confusable letters are a selection of Unicode's security data
(confusables.txt, UTS #39): letters of the scripts Latin, Greek, Cyrillic, Armenian, Coptic,
Cherokee and Lisu that look like one letter, digit or hyphen of ASCII and that NFKC does not change.
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
from engine._validation import check_int, check_type
from engine.errors import BudgetExceeded, LedgerError, ResultLost
from engine.ledger.balance import (
    Balance,
    DatasetStatus,
    Fingerprint,
    Receipt,
    TotalDefinition,
    balance,
    exact,
    same_charge,
)
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
    reserve_file,
    result_file,
    result_problem,
    results_folder,
    size_of,
    stray_results,
)
from engine.ledger.signing import key_file, secret, sign_with
from engine.privacy import Budget

INVISIBLE_CHARACTERS = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    # braille blank, null notehead, Khitan filler, blanks of Egyptian hieroglyphs
    "\u2800\U0001d159\U00016fe4\U00013441\U00013442]"
)
# by the ASCII character that they resemble; capital I is separate from l, because i and l differ
_CONFUSABLE = {
    "-": "\u02d7\u2010\u2011\u2012\u2013\u2014\u2015\u2043\u2212\u2796",
    "2": "\u01a7\u03e8\ua644\ua75a",
    "3": "\u01b7\u021c\u0417\u04e0\u2ccc\ua76a\ua7ab",
    "4": "\u13ce",
    "5": "\u01bc",
    "6": "\u0431\u13ee\u2cd2",
    "8": "\u0222\u0223",
    "9": "\u2cca\ua76e",
    "I": "\u0196\u0399\u0406\u04c0\u2c92",
    "a": "\u0251\u0391\u03b1\u0410\u0430\u13aa\ua4ee",
    "b": "\u0184\u0392\u0412\u042c\u13cf\u13f4\ua4d0\ua7b4",
    "c": "\u0421\u0441\u13df\u1d04\u2ca4\u2ca5\ua4da\uabaf",
    "d": "\u0501\u13a0\u13e7\ua4d2\ua4d3",
    "e": "\u0395\u0415\u0435\u04bd\u13ac\ua4f0\uab32",
    "f": "\u03dc\u0584\u1e9d\ua4dd\ua798\ua799\uab35",
    "g": "\u018d\u0261\u050c\u0581\u13c0\u13f3\u1d83\ua4d6",
    "h": "\u0397\u041d\u04bb\u0570\u13bb\u13c2\u2c8e\ua4e7",
    "i": "\u0131\u0269\u026a\u03b9\u0456\u04cf\u13a5\ua647\uab75",
    "j": "\u037f\u03f3\u0408\u0458\u13ab\ua4d9\ua7b2",
    "k": "\u039a\u041a\u13e6\u2c94\ua4d7",
    "l": "\u01c0\u13de\u2cd0\ua4e1\ua4f2",
    "m": "\u039c\u03fa\u041c\u13b7\u2c98\ua4df",
    "n": "\u039d\u0578\u057c\u2c9a\ua4e0",
    "o": "\u039f\u03bf\u03c3\u041e\u043e\u0555\u0585\u1d0f\u1d11\u2c9e\u2c9f\ua4f3\uab3d",
    "p": "\u03a1\u03c1\u0420\u0440\u13e2\u2ca2\u2ca3\ua4d1",
    "q": "\u051b\u0563\u0566",
    "r": "\u01a6\u0433\u13a1\u13d2\u1d26\u2c85\ua4e3\uab47\uab48\uab81",
    "s": "\u01bd\u0405\u0455\u054f\u13d5\u13da\ua4e2\ua731\uabaa",
    "t": "\u03a4\u0422\u13a2\u2ca6\ua4d4",
    "u": "\u028b\u03c5\u054d\u057d\u1d1c\ua4f4\ua79f\uab4e\uab52",
    "v": "\u03bd\u0474\u0475\u13d9\u1d20\ua4e6\uaba9",
    "w": "\u026f\u0461\u051c\u051d\u0561\u13b3\u13d4\u1d21\ua4ea\uab83",
    "x": "\u03a7\u0425\u0445\u2cac\ua4eb\ua7b3",
    "y": (
        "\u0263\u028f\u03a5\u03b3\u0423\u0443\u04ae\u04af\u13a9\u13bd\u1d8c\u1eff\u2ca8\ua4ec\uab5a"
    ),
    "z": "\u0396\u13c3\u1d22\ua4dc\uab93",
}
_SKELETON_LETTERS = str.maketrans(
    {char: target for target, chars in _CONFUSABLE.items() for char in chars}
)
_DIGIT_LETTERS = str.maketrans("01|", "oll")


def visible_text(name: str) -> str:
    """Return a name in normal form NFKC, without its invisible characters."""
    return unicodedata.normalize("NFKC", INVISIBLE_CHARACTERS.sub("", name))


def looks_like(name: str, other: str) -> bool:
    """Whether two names are confusable for a reader: equal skeletons, ignoring case.

    >>> looks_like("\\u0430dult", "adult"), looks_like("wave l", "Wave I"), looks_like("mail", "mall")
    (True, True, False)
    """
    return bool(_skeletons(name) & _skeletons(other))


def _skeletons(name: str) -> set[str]:
    """Return the skeletons of a name, with capital I read as i and as l."""
    text = visible_text(name).translate(_SKELETON_LETTERS)
    folded = (" ".join(reading.casefold().split()) for reading in (text, text.replace("I", "l")))
    return {text.translate(_DIGIT_LETTERS).replace("rn", "m") for text in folded}


_REPLACED_TEXT = "it was replaced by another or an older copy while it was in use"
_EDITED_TEXT = "rows that were sound before were edited while it was in use"


@dataclass(frozen=True, kw_only=True)
class Checked:
    """Verified rows of a ledger and the state of its file at that time.

    Attributes
    ----------
    cells : cells of the verified rows.
    head : last verified row.
    book : balance after these rows.
    times : identity, size and timestamps of the file.
    rules : schema version of the SQLite file.
    written : cells of rows that this program appended afterwards and has not read back yet.
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
        return (
            (self.written[-1][0], self.written[-1][-1])
            if self.written
            else (self.head.seq, self.head.hash)
        )

    def committed(self, path: Path, written: Iterable[RowCells]) -> Checked:
        """Return the state after a commit of this program, which changes the timestamps of the
        file.
        """
        return replace(self, times=_times(path), written=tuple(written))


def check(
    connection: sqlite3.Connection, path: Path, verified: Checked | None
) -> tuple[Checked | None, list[str]]:
    """Verify the ledger inside a transaction; return its state, or None and all problems.

    Parameters
    ----------
    verified : state that this program verified before; without it the whole file is verified,
        including the pages of SQLite.
    """
    times, (rules,) = _times(path), connection.execute("PRAGMA schema_version").fetchone()
    problems = [] if verified else file_problems(connection)
    if verified and times and (times, rules) == (verified.times, verified.rules):
        # another program may spend between a commit and the reading of the timestamps, so the end
        # of the rows is read even if the timestamps are equal
        cells = verified.cells[:-1] + read_cells(connection, verified.head.seq - 1)
    else:
        cells = read_cells(connection)
    # restoring an older copy while the ledger is open would grant spent budget again
    if verified and cells[: len(verified.cells)] != verified.cells:
        cut = (
            len(cells) < len(verified.cells) or cells[len(verified.cells) - 1] != verified.cells[-1]
        )
        problems, verified = [_REPLACED_TEXT if cut else _EDITED_TEXT], None
    elif verified and tuple(cells[len(verified.cells) : verified.length]) != verified.written:
        problems, verified = [_REPLACED_TEXT], None
    rows = rows_of(cells[len(verified.cells) :] if verified else cells)
    book, rule_violations = balance(rows, verified.book if verified else None)
    problems += (
        chain_problems(connection, rows, verified.head if verified else None) + rule_violations
    )
    head = rows[-1] if rows else verified.head if verified else None
    if problems or head is None:
        return None, problems
    return Checked(cells=cells, head=head, book=book, times=times, rules=rules), []


def _times(path: Path) -> tuple[int, ...]:
    """Return identity, size and timestamps of a file; empty if it does not exist."""
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


NAME, KEY, NOTE = 200, 500, 2000  # maximum number of characters of a dataset name, a key, a note


def normalize_line(what: str, text: str, *, most: int, empty: bool = False) -> str:
    """Return one line of printable text in normal form NFC, so that texts that look equal are
    equal.
    """
    allowed = f"it must be one line of {'at most' if empty else '1 to'} {most} printable characters"
    if not isinstance(text, str):
        raise LedgerError(f"The {what} is of type {type(text).__name__}; {allowed}.")
    text = unicodedata.normalize("NFC", text)
    # categories C* and Zl, Zp: control, bidirectional, unassigned and line-breaking characters
    forbidden = [
        char
        for char in text
        if unicodedata.category(char)[0] == "C" or unicodedata.category(char) in ("Zl", "Zp")
    ]
    if forbidden or len(text) > most or text != text.strip() or not (text or empty):
        problem = (
            f"holds the character U+{ord(forbidden[0]):04X}"
            if forbidden
            else f"has {len(text)} characters or outer spaces"
        )
        raise LedgerError(f"The {what} {problem}; {allowed}, with no space at its ends.")
    return text


def dataset_name(dataset: str) -> str:
    """Return the name of a dataset in its stored form."""
    return normalize_line("dataset name", dataset, most=NAME)


def hash_text(plan_hash: str) -> str:
    """Return the hash of a plan; raise LedgerError if it has other characters."""
    if not isinstance(plan_hash, str) or not re.fullmatch(r"[A-Za-z0-9:_.-]{1,128}", plan_hash):
        raise LedgerError(
            "The plan hash must be 1 to 128 letters, digits or any of : _ . - ; take it from the"
            " plan."
        )
    return plan_hash


def new_dataset_name(dataset: str) -> str:
    """Return the name of a new dataset: see `dataset_name`; invisible characters are refused."""
    name = dataset_name(dataset)
    if invisible := INVISIBLE_CHARACTERS.search(name):
        raise LedgerError(
            f"The dataset name contains the invisible character U+{ord(invisible[0]):04X}. Type it"
            " again without it."
        )
    return name


def lookalike(name: str) -> str:
    """Return a form of a name that is equal for names that differ in case, spaces or invisible
    signs.
    """
    return " ".join(visible_text(name).casefold().split())


MAX_AUTHOR_CHARS, MAX_REASON_CHARS = 200, 1000


@dataclass(frozen=True, kw_only=True)
class TotalChange:
    """One declared or changed total: time, amount in its unit, author and reason."""

    utc: str
    total: float
    by: str = ""
    reason: str = ""


def changed_total(
    book: Balance, dataset: str, total: Budget, by: str, reason: str
) -> dict[str, str]:
    """Return the content of a row that changes a total; raise LedgerError for a forbidden change."""
    check_type(
        "total", total, Budget, give="a Budget, such as Budget(pcost=1.0)", error=LedgerError
    )
    status = book.status(dataset)
    unit, counted = (total.rows_per_person, total.neighbours), status.definition
    if unit != (counted.rows_per_person, counted.neighbours):
        raise LedgerError(
            f"The total of {dataset!r} is {counted.describe()}; a change keeps that. "
            "Give the new total in the same unit."
        )
    amount = counted.total(total)
    if exact(amount) < book.spent[dataset]:
        raise LedgerError(
            f"{status.spent!r} {counted.counts} of {dataset!r} are spent, and what is spent cannot"
            f" be taken back. {amount} was asked for; give at least what is spent."
        )
    if exact(amount) == exact(book.totals[dataset].pcost):
        raise LedgerError(f"The total of {dataset!r} is that already. Nothing was written.")
    words = {
        "by": normalize_line("name", by, most=MAX_AUTHOR_CHARS),
        "reason": normalize_line("reason", reason, most=MAX_REASON_CHARS),
    }
    note = normalize_line("note", json.dumps(words, ensure_ascii=False, sort_keys=True), most=NOTE)
    return {
        "dataset": dataset,
        "pcost": amount,
        "plan_hash": book.totals[dataset].plan_hash,
        "note": note,
    }


def total_history(rows: Iterable[Row], dataset: str) -> tuple[TotalChange, ...]:
    """Return the declared total of a dataset and all its changes, oldest first."""
    changes = []
    for row in rows:
        if row.dataset == dataset and row.kind in ("dataset", "total"):
            words = parse_json(row.note) if row.kind == "total" else {}
            changes.append(TotalChange(utc=row.utc, total=float(exact(row.pcost)), **words))
    return tuple(changes)


# additional bytes per result: its ledger row and variation in compressed size
_SPARE_BYTES = 1 << 16
REHEARSAL_NOTE_KIND = "note:rehearsed"


class ConfusableName(UserWarning):
    """The name of a new dataset looks like the name of another dataset."""


class _Add(Protocol):
    def __call__(self, *, kind: str, dataset: str, **content: str | int) -> Row: ...


def release_key(*, dataset: str, plan_hash: str, attempt: int) -> str:
    """Return the key of a release; the same key always means the same noise.

    >>> release_key(dataset="adult", plan_hash="1f3a", attempt=1)
    'adult|1f3a|1'
    """
    number = check_int("attempt", attempt, error=LedgerError)
    return f"{dataset_name(dataset)}|{hash_text(plan_hash)}|{number}"


class Ledger:
    """Ledger file, verified completely on opening and incrementally in every transaction.

    Costs are exact: a pcost counts as the decimal number of its `repr`, so ten spends of 0.1 use up
    1. Safe for concurrent threads and processes.

    Parameters
    ----------
    path : path of an existing ledger.
    wait : seconds that a call waits for other programs.

    Examples
    --------

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
        check_type(
            "ledger",
            path,
            (str, os.PathLike),
            give="a Ledger, or the path of one",
            error=LedgerError,
        )
        self.path = Path(path).resolve()
        self.wait = wait
        self._checked: Checked | None = None
        self._lock = threading.Lock()
        with self._transaction(write=False) as (book, _):
            if problems := stray_results(self.path, book.spends):
                raise self._untrusted_error(problems)
        # after the verification, so that an untrusted ledger leaves all files unchanged
        remove_stale(self.path)
        remove_ended(self.path, self.unfinished)

    @classmethod
    def at(cls, ledger: Ledger | str | os.PathLike[str]) -> Ledger:
        """Return a ledger unchanged, or open the ledger at a path."""
        return ledger if isinstance(ledger, Ledger) else cls(ledger)

    @classmethod
    def create(cls, path: str | os.PathLike[str], *, wait: float = 30.0) -> Ledger:
        """Create a ledger; raise LedgerError if the file or results of an earlier ledger exist."""
        place = Path(path).resolve()
        # results or a journal without a ledger: it was moved or lost, and a new one would grant its
        # budget again
        for trace in (
            results_folder(place),
            key_file(place),
            place.with_name(place.name + "-journal"),
        ):
            if trace.exists() and not place.exists():
                raise LedgerError(
                    f"{trace} shows that a ledger was at {place}; put it back, or choose another"
                    " name."
                )
        create_file(place)
        return cls(place, wait=wait)

    def add_dataset(
        self, dataset: str, *, total: Budget, note: str = "", kind: str | None = None
    ) -> None:
        """Declare a dataset and the total cost of all its releases; see also `change_total`.

        Parameters
        ----------
        kind : unit of the total, see `TotalDefinition`. The default is "pure" for a budget of pure
            epsilon, which then allows no Gaussian noise, and "zcdp" for all others. Use "gdp" for a
            total in mu, or in epsilon and delta.

        Warns
        -----
        ConfusableName
            The name looks like that of another dataset; see `confusable_names`.

        Raises
        ------
        LedgerError
            The name, or one that differs only in case, spaces or invisible signs, exists already,
            or it has invisible characters.
        """
        name, note = new_dataset_name(dataset), normalize_line("note", note, most=NOTE, empty=True)
        check_type(
            "total", total, Budget, give="a Budget, such as Budget(pcost=1.0)", error=LedgerError
        )
        definition = TotalDefinition(
            kind=kind or ("zcdp" if total.pure_epsilon is None else "pure"),
            rows_per_person=total.rows_per_person,
            neighbours=total.neighbours,
            delta=total.report_delta,
        )
        amount = definition.total(total)
        with self._transaction(write=True) as (book, add):
            for existing in book.totals:
                # "Adult" and "adult" would be two budgets for the same persons
                if lookalike(existing) == lookalike(name):
                    raise LedgerError(
                        f"Dataset {existing!r} is in the ledger already and has a budget; use that"
                        " name."
                    )
            add(
                kind="dataset",
                dataset=name,
                key=name,
                pcost=amount,
                plan_hash=definition.to_text(),
                note=note,
            )
            similar = _confusable_names(book, name)
        for other in similar:
            warnings.warn(confusable_text(name, other), ConfusableName, stacklevel=2)

    def confusable_names(self, dataset: str) -> list[str]:
        """Return names of other datasets that look like this one, such as with Cyrillic letters."""
        with self._transaction(write=False) as (book, _):
            return _confusable_names(book, dataset)

    def change_total(self, dataset: str, *, total: Budget, by: str, reason: str) -> None:
        """Raise or lower the total of a dataset by a row with author and reason.

        Raises
        ------
        LedgerError
            The new total is below the amount spent, has another unit, or equals the old one; or the
            author or reason is missing.
        """
        with self._transaction(write=True) as (book, add):
            add(kind="total", **changed_total(book, dataset_name(dataset), total, by, reason))

    def datasets(self) -> list[DatasetStatus]:
        """Return the budgets of all datasets, in the order of their declaration."""
        with self._transaction(write=False) as (book, _):
            return [book.status(dataset) for dataset in book.totals]

    def status(self, dataset: str) -> DatasetStatus:
        """Return the budget of one dataset; a spend of `left` is always granted.

        Raises
        ------
        LedgerError
            The dataset was never declared.
        """
        with self._transaction(write=False) as (book, _):
            return book.status(dataset_name(dataset))

    def rows(self) -> list[Row]:
        """Return all rows of the file, oldest first, without verification."""
        with transaction(self.path, write=False, wait=self.wait) as connection:
            return read_rows(connection)

    def note(
        self, *, dataset: str, kind: str, text: str, key: str = "", earlier: int | None = None
    ) -> None:
        """Store one line of text about a dataset, such as a decision.

        Parameters
        ----------
        kind : lower-case word.
        key : key of the release that the note refers to.
        earlier : expected number of existing notes of this kind and key. Of two concurrent
            decisions only one then succeeds.

        Raises
        ------
        LedgerError
            The number of existing notes differs, or a text is not one printable line.
        """
        if not isinstance(kind, str) or not re.fullmatch(r"[a-z][a-z-]{0,39}", kind):
            raise LedgerError(
                "The kind of a note must be a lower-case word of at most 40 letters, such as"
                " decision."
            )
        text, key = (
            normalize_line("note", text, most=NOTE),
            normalize_line("key", key, most=KEY, empty=True),
        )
        with self._transaction(write=True) as (book, add):
            n_existing = len(book.notes.get((f"note:{kind}", key), ()))
            if earlier is not None and n_existing != earlier:
                problem = f"key {key!r} has {n_existing} notes of this kind, not {earlier}"
                raise LedgerError(
                    f"{problem}: another person wrote one first. Nothing was written; read them"
                    " first."
                )
            add(
                kind=f"note:{kind}",
                dataset=book.status(dataset_name(dataset)).dataset,
                key=key,
                note=text,
            )

    def notes(self, *, kind: str, key: str) -> list[Row]:
        """Return the notes of one kind and key, oldest first."""
        with self._transaction(write=False) as (book, _):
            return list(book.notes.get((f"note:{kind}", key), ()))

    def secret(self, purpose: str) -> bytes:
        """Return secret bytes of this ledger for one purpose; the key file is created at first use."""
        return secret(self.path, purpose)

    def sign(self, content: bytes) -> tuple[str, str]:
        """Return public key and Ed25519 signature of a content, in hexadecimal."""
        return sign_with(self.secret("signature"), content)

    def same_records(self, fingerprint: Fingerprint, *, dataset: str = "") -> list[Row]:
        """Return spends on the same records in other datasets, and rehearsals on them in any
        dataset.
        """
        with self._transaction(write=False) as (book, _):
            rehearsed = (
                r
                for (kind, _), rows in book.notes.items()
                if kind == REHEARSAL_NOTE_KIND
                for r in rows
            )
            rows = [*book.spends.values(), *rehearsed]
        texts = (
            (row, row.sha256 if row.kind == "spend" else row.note.partition(": ")[0])
            for row in rows
        )
        # compared column by column, because the same records may have been counted with another
        # schema
        matches = {
            (r.kind, r.dataset): r
            for r, text in texts
            if fingerprint.same_columns(Fingerprint.from_text(text))
        }
        return [
            row
            for (kind, name), row in matches.items()
            if kind == REHEARSAL_NOTE_KIND or name != dataset
        ]

    def afford(self, *, dataset: str, pcost: float, pure_epsilon: float | None = None) -> None:
        """Raise the errors that `spend` would raise now, before any record is read; grants nothing.

        Raises
        ------
        BudgetExceeded
            The remaining budget is smaller.
        LedgerError
            The total cannot be charged for such a release.
        """
        with self._transaction(write=False) as (book, _):
            # a forecast only: others may spend in between, and `spend` decides
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
        """Charge `pcost` to the budget of a dataset, durably, before any noise is drawn.

        Parameters
        ----------
        pure_epsilon : epsilon of a release with Laplace noise; its charge depends on the unit of
            the total.
        records : keyed digests of the records, stored in the row.

        Raises
        ------
        BudgetExceeded
            The remaining budget is smaller.
        LedgerError
            The key was spent for another release.
        BudgetError
            `pcost` is not a finite positive number.

        Notes
        -----
        Guarantee: when this returns, the row is on the disk. The spends of a dataset never exceed
        its total. Of all calls with one key, from any thread or process, exactly one returns
        ``fresh=True``, and only that caller may draw. Nothing is written if an error is raised.
        """
        name, key = dataset_name(dataset), normalize_line("key", key, most=KEY)
        plan_hash, note = hash_text(plan_hash), normalize_line("note", note, most=NOTE, empty=True)
        with self._transaction(write=True) as (book, add):
            # looked up under the write lock: of two programs with one key the second reads the row
            # of the first
            status, known = book.status(name), book.spends.get(key)
            if known is not None:
                # a key used again after a crash must mean the same release; another one would be
                # free
                cost = status.definition.charge(pcost, pure_epsilon)
                if not same_charge(known.pcost, cost) or (known.dataset, known.plan_hash) != (
                    name,
                    plan_hash,
                ):
                    raise LedgerError(
                        f"Key {key!r} was spent in row {known.seq} for another dataset, plan or"
                        " cost; the noise of a key never changes: use a new attempt."
                    )
                return Receipt.of(known, fresh=False)
            _enough(book, status, pcost, pure_epsilon)
            digest, cost = (
                records.to_text() if records else "",
                status.definition.charge(pcost, pure_epsilon),
            )
            row = add(
                kind="spend",
                dataset=name,
                key=key,
                pcost=cost,
                plan_hash=plan_hash,
                sha256=digest,
                note=note,
            )
        # after the commit, so that a fresh receipt is on the disk
        return Receipt.of(row, fresh=True)

    def find(self, key: str) -> Receipt | None:
        """Return the receipt of a spent key, never fresh, or None if it was not spent."""
        with self._transaction(write=False) as (book, _):
            row = book.spends.get(normalize_line("key", key, most=KEY))
        return Receipt.of(row, fresh=False) if row else None

    def spent(self, key: str) -> Receipt:
        """Return the receipt of a spent key; raise LedgerError if it was not spent."""
        key = normalize_line("key", key, most=KEY)
        with self._transaction(write=False) as (book, _):
            if key not in book.spends:
                raise LedgerError(f"Nothing was ever spent under key {key!r}; spend first.")
        return Receipt.of(book.spends[key], fresh=False)

    def unfinished(self) -> set[str]:
        """Return the keys that were spent and have no saved result."""
        with self._transaction(write=False) as (book, _):
            return set(book.spends) - set(book.saved)

    @contextmanager
    def room_for(self, content: Content) -> Iterator[Draft]:
        """Reserve disk space for a result like `content` before its budget is spent.

        Raises
        ------
        LedgerError
            The disk has not enough space; nothing was spent.
        """
        with reserve_file(self.path, size_of(content) + _SPARE_BYTES) as draft:
            yield draft

    def save_result(
        self, *, receipt: Receipt, content: Content, draft: Draft | None = None
    ) -> Path:
        """Store the result of a fresh receipt and return its file.

        Parameters
        ----------
        content : bytes, or a function that writes to a binary file.
        draft : file with reserved space, from `room_for`.

        Raises
        ------
        LedgerError
            The receipt is not fresh or is from another ledger, another result was saved under its
            key, or the file cannot be written.

        Notes
        -----
        Guarantee: the result is either complete, on the disk and with its SHA-256 in the ledger, or
        absent. After an error the call can be repeated with the same receipt.
        """
        key = receipt.key
        if not receipt.fresh:
            raise LedgerError(
                f"Only the call that spent key {key!r} may save; read it with load_result."
            )
        with ExitStack() as stack:
            result = draft or stack.enter_context(reserve_file(self.path, 0))
            try:
                result.write(content)
            except OSError as error:
                raise LedgerError(
                    f"The result of key {key!r} could not be saved: {error.strerror or error}. Its"
                    " budget is spent. Make room; then the same release again, of the same"
                    " records, ends it and spends nothing."
                ) from error
            book, add = stack.enter_context(self._transaction(write=True))
            spend_row, saved_row = book.spends.get(key), book.saved.get(key)
            # the hash seals all rows before it, so a diverged copy of the ledger is refused
            if spend_row is None or spend_row.hash != receipt.hash:
                raise LedgerError(
                    f"The receipt of key {key!r} is from another ledger; save it there."
                )
            if saved_row and (saved_row.sha256, saved_row.size) != (result.sha256, result.size):
                raise LedgerError(
                    f"Key {key!r} has another saved result already; results never change."
                )
            # the file first, then its row: after a crash in between, saving again replaces the file
            # by an identical one
            result.publish(result_file(self.path, key))
            if not saved_row:
                add(
                    kind="saved",
                    dataset=spend_row.dataset,
                    key=key,
                    sha256=result.sha256,
                    size=result.size,
                )
        return result_file(self.path, key)

    def result_path(self, key: str) -> Path:
        """Return the file of a saved result after verification of its SHA-256.

        Raises
        ------
        ResultLost
            The budget was spent, but there is no complete result.
        LedgerError
            The key was never spent.
        """
        key = normalize_line("key", key, most=KEY)
        with self._transaction(write=False) as (book, _):
            if key not in book.spends:
                raise LedgerError(f"Nothing was ever spent under key {key!r}; spend first.")
        if key not in book.saved:
            raise ResultLost(
                f"Budget was spent under key {key!r}, but no result was saved: its run is at work"
                " or was stopped. Ask again with the same records, which ends it for nothing, or"
                " use a new attempt, which spends again."
            )
        if problem := result_problem(self.path, book.saved[key]):
            advice = "Restore that file, or use a new attempt (spends again)."
            raise ResultLost(f"Budget was spent, but {problem}. {advice}")
        return result_file(self.path, key)

    def load_result(self, key: str) -> bytes:
        """Return the content of a saved result; read large results from `result_path(key)` in
        pieces.
        """
        return self.result_path(key).read_bytes()

    def verify(self, *, receipts: Iterable[Receipt] = (), results: bool = True) -> tuple[str, ...]:
        """Return a description of every problem, empty for a valid ledger; see `verify_ledger`.

        Also checks that the file contains the last row that this object has read or written.
        """
        hashes = [self._checked.last] if self._checked else []
        return verify_ledger(
            self.path, receipts=receipts, hashes=hashes, results=results, wait=self.wait
        )

    @contextmanager
    def _transaction(self, *, write: bool) -> Iterator[tuple[Balance, _Add]]:
        """Yield the verified balance and a function that adds a row, inside one transaction."""
        with transaction(self.path, write=write, wait=self.wait) as connection:
            checked, problems = check(connection, self.path, self._checked)
            if checked is None:
                raise self._untrusted_error(problems)
            head = checked.head

            def add(**content: str | int) -> Row:
                nonlocal head
                head = append(connection, head, **content)
                return head

            yield checked.book, add
            # read from the file, because `add` may also write a row about the clock
            written = read_cells(connection, checked.head.seq) if write else []
        # a row added here counts as verified once the next transaction has read it back
        self._remember(checked.committed(self.path, written) if write else checked)

    def _remember(self, checked: Checked) -> None:
        """Store the verified state, unless another thread has stored a longer history."""
        with self._lock:
            if self._checked is None or checked.length >= self._checked.length:
                self._checked = checked

    def _untrusted_error(self, problems: list[str]) -> LedgerError:
        return LedgerError(
            f"The ledger {self.path} cannot be trusted: {problems[0]}. Nothing was granted. Restore"
            " its newest copy; `verify_ledger` lists every problem."
        )


def verify_ledger(
    path: str | os.PathLike[str],
    *,
    receipts: Iterable[Receipt] = (),
    hashes: Iterable[tuple[int, str]] = (),
    results: bool = True,
    wait: float = 30.0,
) -> tuple[str, ...]:
    """Return a description of every problem of a ledger, empty if it is valid.

    Detects a damaged file, altered triggers, rows that were edited, removed, added or reordered, a
    truncated end, violated budget rules, and results without a row. Also works for files that
    `Ledger` refuses to open.

    Parameters
    ----------
    receipts : receipts stored outside the ledger; a missing one reveals that an old copy was
        restored.
    hashes : pairs (row number, hash) with the same purpose.
    results : whether to read every saved file and compare its SHA-256.
    wait : seconds to wait for other programs.
    """
    place = Path(path).resolve()
    try:
        with transaction(place, write=False, wait=wait) as connection:
            problems = file_problems(connection)
            rows = read_rows(connection)
            book, rule_violations = balance(rows)
            # no program can spend during this transaction, so a result without a row is not a new
            # one
            problems += (
                chain_problems(connection, rows)
                + rule_violations
                + stray_results(place, book.spends)
            )
    except LedgerError as error:
        return (str(error),)
    # only data stored outside reveals that the complete file was set back: inside, all hashes fit
    there = {row.seq: row.hash for row in rows}
    expected = [(r.seq, r.hash, f" (key {r.key!r})") for r in receipts] + [
        (seq, found, "") for seq, found in hashes
    ]
    for seq, found, what in expected:
        if there.get(seq) != found:
            problems.append(f"the receipt of row {seq}{what} is not in the ledger: it was set back")
    if results:
        problems += filter(None, (result_problem(place, row) for row in book.saved.values()))
    return tuple(problems)


def confusable_text(name: str, other: str) -> str:
    """Return the warning for a dataset name that looks like another one."""
    return (
        f"The dataset name {name!r} looks like {other!r}, which has a separate budget in this"
        f" ledger. If these are the same records, use the name {other!r}."
    )


def _confusable_names(book: Balance, name: str) -> list[str]:
    return [other for other in book.totals if other != name and looks_like(name, other)]


def _enough(book: Balance, status: DatasetStatus, pcost: float, pure_epsilon: float | None) -> None:
    cost = status.definition.charge(pcost, pure_epsilon)
    # exact decimal numbers, because rounding of doubles could grant a spend beyond the total
    if exact(cost) > book.left(status.dataset):
        raise BudgetExceeded(
            f"Dataset {status.dataset!r} has {status.definition.counts} {status.left!r} left of"
            f" {status.total!r}; {cost} was asked for. Nothing was spent. Plan with a budget of at"
            " most what is left."
        )
