"""Durable ledger of privacy budgets: totals, spends, results and verification.

A budget belongs to a *named* dataset, never to the content of a file. A release runs in this order,
so that no crash leaves noise without a spend:

1. record the spend durably (`spend`),
2. draw the noise,
3. store the result (`save_result`),
4. publish.

Of all calls of `spend` with the same key exactly one returns ``fresh=True``, and only its caller
may draw noise; the other callers read the saved result. If the ledger is missing or damaged, every
spend raises an error; a new budget is never assumed. The ledger contains names, costs, hashes and
notes, and no private values.

**Incremental checks.** Budget decisions use rows that a `Ledger` object has verified and stores in
memory, so editing an earlier row cannot grant budget. Every transaction verifies the rows that were
added since the last verification. If the timestamps of the file have changed since the last
transaction of this object, all rows are also compared with the rows in memory, which detects edits
of earlier rows (about 2 ms per 1,000 rows). Opening the ledger and calling `verify` check the
complete file.

**Changes of a total.** A new row with author and reason raises or lowers a total; earlier rows
never change. A total is never below the amount spent, and its unit never changes. Each spend is
checked against the total that was valid when the spend was written. A later total therefore neither
hides an overspend nor makes it valid.

**Limits.** An open `Ledger` raises an error if the file lacks a row that this object has read or
written. Two situations are detected only by a saved result without a spend or by a receipt stored
elsewhere (`verify(receipts=...)`): two copies of a ledger are used in parallel, or an old copy is
restored while no program has the ledger open. Anyone with write access can forge the file: the
hashes detect accidents and careless edits, but they are not a signature.

**Confusable dataset names.** Names that differ only in invisible characters are the same name, and
names that differ only in confusable letters cause a warning. Invisible characters are characters
with Unicode's property Default_Ignorable_Code_Point and some others without a glyph. Confusable
letters are a selection from Unicode's security data (confusables.txt, UTS #39): letters of the
scripts Latin, Greek, Cyrillic, Armenian, Coptic, Cherokee and Lisu that look like one letter, digit
or hyphen of ASCII and that NFKC does not change.
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
    JointCharge,
    Receipt,
    TotalDefinition,
    balance,
    exact,
    same_charge,
)
from engine.ledger.release_files import (
    ACTIVE,
    HAS_FILE_LOCKS,
    INTERRUPTED,
    Content,
    Draft,
    journal_state,
    remove_ended,
    remove_stale,
    reserve_file,
    result_file,
    result_problem,
    results_folder,
    size_of,
    stray_results,
)
from engine.ledger.signing import key_file, secret, sign_with
from engine.ledger.sqlite_file import (
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
from engine.privacy import Budget

INVISIBLE_CHARACTERS = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    # braille blank, null notehead, Khitan filler, blanks of Egyptian hieroglyphs
    "\u2800\U0001d159\U00016fe4\U00013441\U00013442]"
)
# ASCII character -> characters that look like it. Capital I is separate from i, because it may also
# be read as l.
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
    """Return a name without its invisible characters, in Unicode normal form NFKC."""
    return unicodedata.normalize("NFKC", INVISIBLE_CHARACTERS.sub("", name))


def looks_like(name: str, other: str) -> bool:
    """Return whether a reader may confuse two names.

    The result is True if the names are equal, or differ only in case, repeated spaces, invisible
    characters or characters that look alike.

    >>> looks_like("\\u0430dult", "adult"), looks_like("wave l", "Wave I"), looks_like("mail", "mall")
    (True, True, False)
    """
    return bool(_skeletons(name) & _skeletons(other))


def _skeletons(name: str) -> set[str]:
    """Return two forms of a name in which characters that look alike are equal.

    Each class of look-alike characters becomes one character, "rn" becomes "m", and case and
    repeated spaces are ignored. The first form reads a capital I as i, the second as l. Two names
    are confusable if they have a form in common.
    """
    text = visible_text(name).translate(_SKELETON_LETTERS)
    folded = (" ".join(reading.casefold().split()) for reading in (text, text.replace("I", "l")))
    return {text.translate(_DIGIT_LETTERS).replace("rn", "m") for text in folded}


_REPLACED_TEXT = "it was replaced by another or an older copy while it was in use"
_EDITED_TEXT = "rows that were verified before were edited while it was in use"


@dataclass(frozen=True, kw_only=True)
class Checked:
    """Verified rows of a ledger, and the state of its file when they were verified.

    Attributes
    ----------
    cells : verified rows as tuples of their values.
    head : last verified row.
    book : balance of all datasets after the verified rows.
    file_state : device, inode, size and timestamps of the file.
    schema_version : SQLite's counter of changes to tables, indexes and triggers of the file.
    written : rows that this program appended after the verified rows, as tuples of their values.
    """

    cells: list[RowCells]
    head: Row
    book: Balance
    file_state: tuple[int, ...]
    schema_version: int
    written: tuple[RowCells, ...] = ()

    @property
    def length(self) -> int:
        """Number of rows that the file must contain at least."""
        return len(self.cells) + len(self.written)

    @property
    def last(self) -> tuple[int, str]:
        """Number and hash of the last row that the file must contain."""
        if not self.written:
            return self.head.seq, self.head.hash
        last_row = self.written[-1]
        return last_row[0], last_row[-1]

    def committed(self, path: Path, written: Iterable[RowCells]) -> Checked:
        """Return this state after a commit that appended the rows ``written`` to the file."""
        return replace(self, file_state=_file_state(path), written=tuple(written))


def _change_text(cells: list[RowCells], verified: Checked) -> str:
    """Return how the rows of the file contradict rows that this program verified or wrote.

    The result is "" if the file still contains all these rows.
    """
    n_verified = len(verified.cells)
    if cells[:n_verified] != verified.cells:
        # if the last verified row is in its place, the file is not an older copy
        has_head = len(cells) >= n_verified and cells[n_verified - 1] == verified.cells[-1]
        return _EDITED_TEXT if has_head else _REPLACED_TEXT
    if tuple(cells[n_verified : verified.length]) != verified.written:
        return _REPLACED_TEXT
    return ""


def check(
    connection: sqlite3.Connection, path: Path, verified: Checked | None
) -> tuple[Checked | None, list[str]]:
    """Verify a ledger inside a transaction.

    Parameters
    ----------
    verified : state after the last verification by this program. With such a state, the budget
        rules and the hash chain are checked only for later rows. With None they are checked for all
        rows, and SQLite checks the integrity of the file.

    Returns
    -------
    state : state after this verification; None if the ledger has a problem.
    problems : list of messages, empty if the ledger is valid.
    """
    file_state = _file_state(path)
    (schema_version,) = connection.execute("PRAGMA schema_version").fetchone()
    problems = [] if verified else file_problems(connection)
    is_unchanged = (
        verified is not None
        and bool(file_state)
        and (file_state, schema_version) == (verified.file_state, verified.schema_version)
    )
    if verified and is_unchanged:
        # Only the last verified row and later rows are read. Later rows may exist although the
        # timestamps are equal: another program may have written a row between this program's commit
        # and its call of `stat`.
        cells = verified.cells[:-1] + read_cells(connection, verified.head.seq - 1)
    else:
        cells = read_cells(connection)
    # an older copy of the file would grant spent budget again
    if verified and (change_text := _change_text(cells, verified)):
        problems, verified = [change_text], None
    new_rows = rows_of(cells[len(verified.cells) :] if verified else cells)
    book, rule_violations = balance(new_rows, verified.book if verified else None)
    problems += (
        chain_problems(connection, new_rows, verified.head if verified else None) + rule_violations
    )
    head = verified.head if verified else None
    if new_rows:
        head = new_rows[-1]
    # a valid ledger has at least one row
    if problems or head is None:
        return None, problems
    return Checked(
        cells=cells, head=head, book=book, file_state=file_state, schema_version=schema_version
    ), []


def _file_state(path: Path) -> tuple[int, ...]:
    """Return device, inode, size and timestamps of a file; empty if it does not exist."""
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


MAX_NAME_CHARS, MAX_KEY_CHARS, MAX_NOTE_CHARS = 200, 500, 2000


def normalize_line(what: str, text: str, *, most: int, empty: bool = False) -> str:
    """Check that a text is one printable line, and return it in Unicode normal form NFC.

    Raises LedgerError if the text has a character that is not printable, has a length that is not
    allowed, or starts or ends with a space.

    Parameters
    ----------
    what : noun for the text in messages, such as "dataset name".
    most : largest number of characters.
    empty : whether the empty text is allowed.
    """
    allowed = f"Give one line of {'at most' if empty else '1 to'} {most} printable characters"
    if not isinstance(text, str):
        raise LedgerError(f"The {what} is of type {type(text).__name__}. {allowed}.")
    text = unicodedata.normalize("NFC", text)
    # Unicode categories starting with C are control, format, surrogate, private-use and unassigned
    # characters; Zl and Zp are line and paragraph separators
    forbidden = [
        char
        for char in text
        if unicodedata.category(char)[0] == "C" or unicodedata.category(char) in ("Zl", "Zp")
    ]
    if forbidden or len(text) > most or text != text.strip() or not (text or empty):
        if forbidden:
            problem = f"contains the character U+{ord(forbidden[0]):04X}"
        elif not text:
            problem = "is empty"
        elif len(text) > most:
            problem = f"has {len(text):,} characters"
        else:
            problem = "starts or ends with a space"
        raise LedgerError(f"The {what} {problem}. {allowed}, without spaces at its ends.")
    return text


def dataset_name(dataset: str) -> str:
    """Return a dataset name as the ledger stores it; raise LedgerError if it is not allowed."""
    return normalize_line("dataset name", dataset, most=MAX_NAME_CHARS)


def hash_text(plan_hash: str) -> str:
    """Return the hash of a plan unchanged.

    Raises LedgerError unless it has 1 to 128 characters, each a letter, a digit or one of : _ . -
    """
    if not isinstance(plan_hash, str) or not re.fullmatch(r"[A-Za-z0-9:_.-]{1,128}", plan_hash):
        raise LedgerError(
            f"The plan hash was {plan_hash!r:.140}. Give 1 to 128 characters, each a letter, a"
            " digit or one of : _ . - , such as the attribute 'hash' of a plan."
        )
    return plan_hash


def new_dataset_name(dataset: str) -> str:
    """Return the name of a new dataset as the ledger stores it.

    Raises LedgerError if `dataset_name` does, and also if the name has invisible characters.
    """
    name = dataset_name(dataset)
    if invisible := INVISIBLE_CHARACTERS.search(name):
        raise LedgerError(
            f"The dataset name contains the invisible character U+{ord(invisible[0]):04X}. Give a"
            " name of visible characters."
        )
    return name


def lookalike(name: str) -> str:
    """Return a name in lower case, with single spaces and without invisible characters.

    The ledger refuses a new dataset if this text is the same for the name of another dataset.
    """
    return " ".join(visible_text(name).casefold().split())


MAX_AUTHOR_CHARS, MAX_REASON_CHARS = 200, 1000


@dataclass(frozen=True, kw_only=True)
class TotalChange:
    """One total of a dataset, valid from its time until the next change.

    Attributes
    ----------
    utc : time in ISO 8601.
    total : amount in the unit of the dataset's total.
    by, reason : author and reason of the change; empty for the first total.
    """

    utc: str
    total: float
    by: str = ""
    reason: str = ""


def changed_total(
    book: Balance, dataset: str, total: Budget, by: str, reason: str
) -> dict[str, str]:
    """Return the fields of a ledger row that changes the total of a dataset to ``total``.

    Raises
    ------
    LedgerError
        ``total`` has another unit, neighbouring relation or number of rows per person, is below the
        amount spent, or equals the present total; or author or reason is missing.
    """
    check_type(
        "total", total, Budget, give="a Budget, such as Budget(pcost=1.0)", error=LedgerError
    )
    status = book.status(dataset)
    definition = status.definition
    guarantee = (total.rows_per_person, total.neighbours)
    if guarantee != (definition.rows_per_person, definition.neighbours):
        raise LedgerError(
            f"The total of {dataset!r} has the definition {definition.describe()}. The definition"
            f" cannot change. Give a new total with rows_per_person={definition.rows_per_person} and"
            f" neighbours={definition.neighbours!r}."
        )
    amount = definition.total(total)
    if exact(amount) < book.spent[dataset]:
        raise LedgerError(
            f"The new total of {dataset!r} is {amount}, below the {definition.unit}"
            f" {status.spent!r} that is spent. Give at least the amount spent."
        )
    if exact(amount) == exact(book.totals[dataset].pcost):
        raise LedgerError(
            f"The total of {dataset!r} is {amount} already, so nothing was written. Give another"
            " amount."
        )
    attribution = {
        "by": normalize_line("name", by, most=MAX_AUTHOR_CHARS),
        "reason": normalize_line("reason", reason, most=MAX_REASON_CHARS),
    }
    note = json.dumps(attribution, ensure_ascii=False, sort_keys=True)
    note = normalize_line("note", note, most=MAX_NOTE_CHARS)
    return {
        "dataset": dataset,
        "pcost": amount,
        "plan_hash": book.totals[dataset].plan_hash,
        "note": note,
    }


def total_history(rows: Iterable[Row], dataset: str) -> tuple[TotalChange, ...]:
    """Return the first total of a dataset and all its changes, oldest first."""
    changes = []
    for row in rows:
        if row.dataset == dataset and row.kind in ("dataset", "total"):
            attribution = parse_json(row.note) if row.kind == "total" else {}
            changes.append(TotalChange(utc=row.utc, total=float(exact(row.pcost)), **attribution))
    return tuple(changes)


# Bytes that are reserved in addition to the size of a result: for its ledger row, and because the
# compressed size of the result is not known exactly before the noise is drawn.
_SPARE_BYTES = 1 << 16
REHEARSAL_NOTE_KIND = "note:rehearsed"


class ConfusableName(UserWarning):
    """Warning: the name of a new dataset looks like the name of another dataset."""


class _Add(Protocol):
    """Function that appends a row within a transaction and returns it."""

    def __call__(self, *, kind: str, dataset: str, **content: str | int) -> Row: ...


def release_key(*, dataset: str, plan_hash: str, attempt: int) -> str:
    """Return the key of a release: dataset, plan hash and attempt. Noise is drawn once per key.

    >>> release_key(dataset="adult", plan_hash="1f3a", attempt=1)
    'adult|1f3a|1'
    """
    number = check_int("attempt", attempt, error=LedgerError)
    return f"{dataset_name(dataset)}|{hash_text(plan_hash)}|{number}"


class Ledger:
    """Ledger file, verified completely on opening and incrementally in every transaction.

    Sums are exact: a pcost counts as the decimal number that `repr` prints, so ten spends of 0.1
    use up a total of 1. A ledger may be used by several threads and processes at the same time.

    Parameters
    ----------
    path : path of an existing ledger.
    wait : seconds that a call waits for other programs that write to the ledger.

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
        # Temporary files and journals are removed only after the ledger has been verified.
        remove_stale(self.path)
        remove_ended(self.path, self.unfinished)

    @classmethod
    def at(cls, ledger: Ledger | str | os.PathLike[str]) -> Ledger:
        """Return ``ledger`` unchanged if it is a Ledger; if it is a path, open the ledger there."""
        return ledger if isinstance(ledger, Ledger) else cls(ledger)

    @classmethod
    def create(cls, path: str | os.PathLike[str], *, wait: float = 30.0) -> Ledger:
        """Create a ledger file without datasets, and open it.

        Raises LedgerError if the file exists or cannot be created, or if files of a missing ledger
        of this name exist (its results, key file or SQLite journal).
        """
        ledger_file = Path(path).resolve()
        # results, a key file or a journal of SQLite without a ledger show that the ledger was moved
        # or lost; a new ledger of this name would grant the spent budget again
        for related_path in (
            results_folder(ledger_file),
            key_file(ledger_file),
            ledger_file.with_name(ledger_file.name + "-journal"),
        ):
            if related_path.exists() and not ledger_file.exists():
                raise LedgerError(
                    f"{related_path} belongs to the ledger {ledger_file}, which is missing. Restore"
                    " this ledger, or give another name for the new ledger."
                )
        create_file(ledger_file)
        return cls(ledger_file, wait=wait)

    def add_dataset(
        self, dataset: str, *, total: Budget, note: str = "", kind: str | None = None
    ) -> None:
        """Add a dataset with the total budget of all its releases; see also `change_total`.

        Parameters
        ----------
        total : total budget.
        note : one line of text about the dataset.
        kind : unit of the total, "zcdp", "gdp" or "pure", see `TotalDefinition`. With None the unit
            is "pure" if ``total`` is pure epsilon, and "zcdp" otherwise. Releases with Gaussian
            noise are not possible in the unit "pure". Give "gdp" for a total in mu, or in epsilon
            and delta.

        Warns
        -----
        ConfusableName
            The name looks like the name of another dataset; see `confusable_names`.

        Raises
        ------
        LedgerError
            The ledger has a dataset whose name is equal or differs only in case, repeated spaces or
            invisible characters; the name, the note or ``kind`` is not allowed; or ``total`` is not
            a `Budget` or cannot be converted to the unit ``kind``.
        """
        name = new_dataset_name(dataset)
        note = normalize_line("note", note, most=MAX_NOTE_CHARS, empty=True)
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
                        f"Dataset {existing!r} is in the ledger already and has a budget. Use"
                        " this dataset, or give a name that differs in more than case, repeated spaces and"
                        " invisible characters."
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
        """Return the names of other datasets in the ledger that a reader may confuse with a name.

        An example is a name in which a Latin letter is replaced by a Cyrillic letter.
        """
        with self._transaction(write=False) as (book, _):
            return _confusable_names(book, dataset)

    def change_total(self, dataset: str, *, total: Budget, by: str, reason: str) -> None:
        """Raise or lower the total of a dataset; the ledger records author and reason.

        Raises
        ------
        LedgerError
            The new total is below the amount spent, has another unit, neighbouring relation or
            number of rows per person, or equals the old one; or the author or reason is missing.
        """
        with self._transaction(write=True) as (book, add):
            add(kind="total", **changed_total(book, dataset_name(dataset), total, by, reason))

    def datasets(self) -> list[DatasetStatus]:
        """Return total, spent and remaining budget of every dataset, in the order of addition."""
        with self._transaction(write=False) as (book, _):
            return [book.status(dataset) for dataset in book.totals]

    def status(self, dataset: str) -> DatasetStatus:
        """Return total, spent and remaining budget of one dataset.

        A release that costs exactly the amount `left` of the result does not exceed the total.

        Raises
        ------
        LedgerError
            The ledger has no such dataset.
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
        kind : lower-case word that classifies the note, such as "decision".
        key : key of the release that the note refers to.
        earlier : expected number of existing notes of this kind and key. If two programs call this
            method with the same number, only the first call succeeds. With None, existing notes do
            not matter.

        Raises
        ------
        LedgerError
            The number of existing notes differs from ``earlier``, the ledger has no such dataset,
            ``kind`` is not allowed, or a text is not one printable line.
        """
        if not isinstance(kind, str) or not re.fullmatch(r"[a-z][a-z-]{0,39}", kind):
            raise LedgerError(
                f"The kind of the note was {kind!r:.60}. Give at most 40 lower-case letters and"
                " hyphens, with a letter first, such as 'decision'."
            )
        text = normalize_line("note", text, most=MAX_NOTE_CHARS)
        key = normalize_line("key", key, most=MAX_KEY_CHARS, empty=True)
        with self._transaction(write=True) as (book, add):
            n_existing = len(book.notes.get((f"note:{kind}", key), ()))
            if earlier is not None and n_existing != earlier:
                raise LedgerError(
                    f"Key {key!r} has {n_existing} notes of kind {kind!r}, not {earlier}: another"
                    " call wrote one in the meantime. Nothing was written. Read the notes of this"
                    " key, then try again."
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
        """Return 32 secret bytes of this ledger for one purpose.

        They are derived from the key file of the ledger, which is created if it does not exist.
        """
        return secret(self.path, purpose)

    def public_key(self) -> str:
        """Return the Ed25519 public key of the signatures of this ledger, as hexadecimal text."""
        return self.sign(b"")[0]

    def sign(self, content: bytes) -> tuple[str, str]:
        """Sign a content with the key of this ledger.

        Returns
        -------
        public_key, signature : Ed25519 public key and signature as hexadecimal text.
        """
        return sign_with(self.secret("signature"), content)

    def same_records(self, fingerprint: Fingerprint, *, dataset: str = "") -> list[Row]:
        """Return the rows of earlier releases and rehearsals of the same records.

        These are spends of datasets other than ``dataset``, and notes on rehearsals of any dataset.
        If several rows of one kind are about one dataset, only the last of them is returned.

        Parameters
        ----------
        fingerprint : keyed digests of the records.
        """
        with self._transaction(write=False) as (book, _):
            rehearsals = [
                row
                for (kind, _), rows in book.notes.items()
                if kind == REHEARSAL_NOTE_KIND
                for row in rows
            ]
            spends = list(book.spends.values())
        # Pairs of a row and the text of its fingerprint.  A note on a rehearsal begins with this
        # text.
        fingerprints = [(row, row.sha256) for row in spends]
        fingerprints += [(row, row.note.partition(": ")[0]) for row in rehearsals]
        # `same_columns` compares the shared columns, because the earlier run may have used a schema
        # with other attributes
        matches = {
            (row.kind, row.dataset): row
            for row, text in fingerprints
            if fingerprint.same_columns(Fingerprint.from_text(text))
        }
        return [
            row
            for (kind, name), row in matches.items()
            if kind == REHEARSAL_NOTE_KIND or name != dataset
        ]

    def afford(self, *, dataset: str, pcost: float, pure_epsilon: float | None = None) -> None:
        """Raise BudgetExceeded if a release costs more than the remaining budget now.

        Callers check this before they read records. No budget is reserved, so a later `spend` can
        still raise the error.

        Raises
        ------
        BudgetExceeded
            The remaining budget is smaller.
        LedgerError
            The ledger has no such dataset, or the unit of its total does not allow the release.
        BudgetError
            `pcost` or `pure_epsilon` is not a finite positive number.
        """
        with self._transaction(write=False) as (book, _):
            _check_remaining(book, book.status(dataset_name(dataset)), pcost, pure_epsilon)

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
        key : key of the release, see `release_key`. Only the first call with a key is charged.
        plan_hash : hash of the plan.
        note : one line of text, stored in the row.
        pure_epsilon : epsilon of a release with Laplace noise; None for Gaussian noise. The unit of
            the total determines the charge, see `TotalDefinition.charge`.
        records : keyed digests of the records, stored in the row.

        Raises
        ------
        BudgetExceeded
            The remaining budget is smaller.
        LedgerError
            The ledger has no such dataset, the unit of its total does not allow the release, a text
            is not one printable line, or the key was spent for another dataset, plan or cost.
        BudgetError
            `pcost` or `pure_epsilon` is not a finite positive number.

        Notes
        -----
        Guarantee: when this method returns, the row is on the disk. The spends of a dataset never
        exceed its total. Of all calls with one key, from any thread or process, exactly one returns
        ``fresh=True``, and only its caller may draw noise. If an error is raised, nothing is
        written.
        """
        name, key = dataset_name(dataset), normalize_line("key", key, most=MAX_KEY_CHARS)
        plan_hash = hash_text(plan_hash)
        note = normalize_line("note", note, most=MAX_NOTE_CHARS, empty=True)
        with self._transaction(write=True) as (book, add):
            # the key is looked up under the write lock: of two programs with the same key, the
            # second one reads the row of the first
            status, earlier = book.status(name), book.spends.get(key)
            cost = status.definition.charge(pcost, pure_epsilon)
            if earlier is not None:
                # a second spend of a key is not charged, so it must be for the same release
                is_same = (earlier.dataset, earlier.plan_hash) == (name, plan_hash)
                if not is_same or not same_charge(earlier.pcost, cost):
                    raise LedgerError(
                        f"Key {key!r} was spent in row {earlier.seq} for another dataset, plan or"
                        " cost, and a key has only one result. Use a new attempt."
                    )
                return Receipt.of(earlier, fresh=False)
            _check_remaining(book, status, pcost, pure_epsilon)
            digest = records.to_text() if records else ""
            row = add(
                kind="spend",
                dataset=name,
                key=key,
                pcost=cost,
                plan_hash=plan_hash,
                sha256=digest,
                note=note,
            )
        # the receipt is returned after the commit, so its row is on the disk
        return Receipt.of(row, fresh=True)

    def find(self, key: str) -> Receipt | None:
        """Return the receipt of a spent key with ``fresh=False``, or None if it was not spent."""
        with self._transaction(write=False) as (book, _):
            row = book.spends.get(normalize_line("key", key, most=MAX_KEY_CHARS))
        return Receipt.of(row, fresh=False) if row else None

    def spent(self, key: str) -> Receipt:
        """Return the receipt of a spent key; raise LedgerError if it was not spent."""
        key = normalize_line("key", key, most=MAX_KEY_CHARS)
        with self._transaction(write=False) as (book, _):
            if key not in book.spends:
                raise _not_spent_error(key)
        return Receipt.of(book.spends[key], fresh=False)

    def joint_charge(self, key: str) -> JointCharge:
        """Return what the dataset of a spent key was charged up to and including this spend.

        Raises LedgerError if the key was not spent.
        """
        key = normalize_line("key", key, most=MAX_KEY_CHARS)
        with self._transaction(write=False) as (book, _):
            if key not in book.spends:
                raise _not_spent_error(key)
            return book.joint_charge(key)

    def unfinished(self) -> set[str]:
        """Return the keys that were spent and have no saved result."""
        with self._transaction(write=False) as (book, _):
            return set(book.spends) - set(book.saved)

    @contextmanager
    def room_for(self, content: Content) -> Iterator[Draft]:
        """Yield a temporary file with reserved disk space for `content`, before budget is spent.

        Raises
        ------
        LedgerError
            The disk has too little space, or the folder is not writable; nothing was spent.
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
        draft : file with reserved space, from `room_for`; None without reserved space.

        Raises
        ------
        LedgerError
            The receipt is not fresh or is from another ledger, another result was saved under its
            key, or the file cannot be written.

        Notes
        -----
        Guarantee: if the ledger has a row for the result, the complete file is on the disk, and the
        row has its SHA-256. After an error the call can be repeated with the same receipt.
        """
        key = receipt.key
        if not receipt.fresh:
            raise LedgerError(
                f"The receipt of key {key!r} is from a repeated call: only the call that spent the"
                " budget may save the result. Read the saved result."
            )
        with ExitStack() as stack:
            result = draft or stack.enter_context(reserve_file(self.path, 0))
            try:
                result.write(content)
            except OSError as error:
                raise LedgerError(
                    f"The budget of key {key!r} is spent, but its result could not be saved:"
                    f" {error.strerror or error}. Remove the cause, such as a full disk, then repeat"
                    " the same release of the same records, which spends nothing."
                ) from error
            try:
                self._append_saved_row(result, receipt)
            except LedgerError as error:
                if isinstance(error.__cause__, sqlite3.Error):
                    raise LedgerError(
                        f"The budget of key {key!r} is spent, but its result may be missing in the"
                        f" ledger: {error} Repeat the same release of the same records, which spends"
                        " nothing."
                    ) from error
                raise
        return result_file(self.path, key)

    def _append_saved_row(self, result: Draft, receipt: Receipt) -> None:
        """Append the row of a stored result, unless the ledger has it; for parameters see
        `save_result`.
        """
        key = receipt.key
        with self._transaction(write=True) as (book, add):
            spend_row, saved_row = book.spends.get(key), book.saved.get(key)
            # A row hash depends on all earlier rows, so the hash in a receipt is found only in the
            # ledger that issued the receipt.
            if spend_row is None or spend_row.hash != receipt.hash:
                raise LedgerError(
                    f"The receipt of key {key!r} is from another ledger. Save the result in the"
                    " ledger that issued the receipt."
                )
            if saved_row and (saved_row.sha256, saved_row.size) != (result.sha256, result.size):
                raise LedgerError(
                    f"Key {key!r} has another saved result already, and a saved result cannot be"
                    " replaced. Read the saved result."
                )
            # The file gets its final name before its row is written. After a crash between the two
            # steps, the next call replaces the file by an identical one.
            result.rename_to(result_file(self.path, key))
            if not saved_row:
                add(
                    kind="saved",
                    dataset=spend_row.dataset,
                    key=key,
                    sha256=result.sha256,
                    size=result.size,
                )

    def result_path(self, key: str) -> Path:
        """Verify size and SHA-256 of a saved result, and return the path of its file.

        Raises
        ------
        ResultLost
            The budget was spent, but no result was saved, or its file is missing or was changed.
        LedgerError
            The key was never spent. Or no result was saved, and the noise journal of the release
            cannot be opened.
        """
        key = normalize_line("key", key, most=MAX_KEY_CHARS)
        with self._transaction(write=False) as (book, _):
            if key not in book.spends:
                raise _not_spent_error(key)
        if key not in book.saved:
            raise ResultLost(
                f"Budget was spent under key {key!r}, but no result is saved:"
                f" {_unsaved_text(journal_state(self.path, key))}"
            )
        if problem := result_problem(self.path, book.saved[key]):
            raise ResultLost(
                f"Budget was spent, but {problem}. Restore that file from a copy, or use a new"
                " attempt, which spends again."
            )
        return result_file(self.path, key)

    def load_result(self, key: str) -> bytes:
        """Return the content of a saved result.

        For large results, read the file at `result_path(key)` instead.
        """
        return self.result_path(key).read_bytes()

    def verify(self, *, receipts: Iterable[Receipt] = (), results: bool = True) -> tuple[str, ...]:
        """Return one message per problem of this ledger; empty if the ledger is valid.

        The checks are those of `verify_ledger`. Another check is whether the file still contains
        the last row that this object has read or written.
        """
        hashes = [self._checked.last] if self._checked else []
        return verify_ledger(
            self.path, receipts=receipts, hashes=hashes, results=results, wait=self.wait
        )

    @contextmanager
    def _transaction(self, *, write: bool) -> Iterator[tuple[Balance, _Add]]:
        """Open a transaction and verify the ledger; raise LedgerError if it has a problem.

        Yields
        ------
        book : verified balance of all datasets.
        add : function that appends a row with the given fields and returns it.
        """
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
            # the new rows are read from the file, because `append` may write a row about the clock
            # in addition
            written = read_cells(connection, checked.head.seq) if write else []
        # the next transaction checks that the file still contains the new rows
        self._remember(checked.committed(self.path, written) if write else checked)

    def _remember(self, checked: Checked) -> None:
        """Store the verified state, unless another thread has stored a state with more rows."""
        with self._lock:
            if self._checked is None or checked.length >= self._checked.length:
                self._checked = checked

    def _untrusted_error(self, problems: list[str]) -> LedgerError:
        return LedgerError(
            f"The ledger {self.path} cannot be trusted: {problems[0]}. Nothing was spent. Restore"
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
    """Return one message per problem of a ledger; empty if the ledger is valid.

    Problems are a damaged file, altered triggers, rows that were edited, removed, inserted or
    reordered, violated budget rules, results without a spend, and saved results that are missing or
    were changed. The ledger need not be valid enough for `Ledger` to open it.

    Parameters
    ----------
    receipts : receipts stored outside the ledger. If the ledger lacks the row of a receipt, an old
        copy or another ledger was restored.
    hashes : pairs (row number, row hash), for example from receipts; checked in the same way.
    results : whether to read the file of every saved result and compare its SHA-256.
    wait : seconds to wait for other programs.
    """
    ledger_file = Path(path).resolve()
    try:
        with transaction(ledger_file, write=False, wait=wait) as connection:
            problems = file_problems(connection)
            rows = read_rows(connection)
            book, rule_violations = balance(rows)
            # no program can write a spend during this transaction, so a result without a spend
            # cannot belong to a release in progress
            problems += (
                chain_problems(connection, rows)
                + rule_violations
                + stray_results(ledger_file, book.spends)
            )
    except LedgerError as error:
        return (str(error),)
    # an old copy of a ledger passes all checks above; only hashes stored elsewhere reveal its age
    stored_hashes = {row.seq: row.hash for row in rows}
    expected = [(r.seq, r.hash, f" (key {r.key!r})") for r in receipts] + [
        (seq, row_hash, "") for seq, row_hash in hashes
    ]
    for seq, row_hash, key_text in expected:
        if stored_hashes.get(seq) != row_hash:
            problems.append(
                f"row {seq}{key_text} does not have the hash that is stored elsewhere, or is"
                " missing: an old copy or another ledger was restored"
            )
    if results:
        problems += filter(None, (result_problem(ledger_file, row) for row in book.saved.values()))
    return tuple(problems)


def confusable_text(name: str, other: str) -> str:
    """Return the warning for a new dataset ``name`` that looks like the dataset ``other``."""
    return (
        f"The dataset name {name!r} looks like {other!r}, which has a separate budget in this"
        f" ledger. If these are the same records, use the name {other!r}."
    )


def _confusable_names(book: Balance, name: str) -> list[str]:
    return [other for other in book.totals if other != name and looks_like(name, other)]


def _unsaved_text(state: str) -> str:
    """Return a message for a release without a saved result: the reason, and what to do.

    ``state`` is the state of the noise journal of the release; see `journal_state`.
    """
    if state == ACTIVE:
        return (
            "its run has not ended. Wait until it ends, then repeat the release with the same"
            " records, which spends nothing."
        )
    if state == INTERRUPTED:
        return (
            "its run was interrupted. Repeat the release with the same records, which spends"
            " nothing, or use a new attempt, which spends again."
        )
    if not HAS_FILE_LOCKS:
        return (
            "its run has not ended, or was interrupted. If it was interrupted, its noise cannot be"
            " drawn again. Use a new attempt, which spends again."
        )
    return (
        "its run was interrupted, and its noise cannot be drawn again, because the noise journal is"
        " missing or damaged. Restore the folder of results from a copy, or use a new attempt,"
        " which spends again."
    )


def _not_spent_error(key: str) -> LedgerError:
    return LedgerError(
        f"Key {key!r} was never spent in this ledger. Give the key of a release in it."
    )


def _check_remaining(
    book: Balance, status: DatasetStatus, pcost: float, pure_epsilon: float | None
) -> None:
    """Raise BudgetExceeded if the charge of a release is larger than the remaining budget."""
    cost = status.definition.charge(pcost, pure_epsilon)
    # compare exact decimal numbers, because rounded doubles could allow a spend above the total
    if exact(cost) > book.left(status.dataset):
        # a total that was rounded when it was entered leaves a tiny rest
        is_used_up = status.left <= 1e-6 * status.total
        smaller = "" if is_used_up else "Plan with at most the remaining budget, or "
        change = "change the total by `budget change`, which the ledger records."
        advice = f"{smaller}{change}" if smaller else change.capitalize()
        raise BudgetExceeded(
            f"Dataset {status.dataset!r} has {status.definition.unit} {status.left!r} left of"
            f" {status.total!r}; the release costs {cost}. Nothing was spent. {advice}"
            " To show an earlier release again costs nothing."
        )
