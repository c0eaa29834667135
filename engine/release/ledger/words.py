"""The words that a ledger keeps: one printable line each, so that what looks the same is the same."""

from __future__ import annotations

import re
import unicodedata

from engine.errors import LedgerError
from engine.release.ledger.confusable import INVISIBLE, visible

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
