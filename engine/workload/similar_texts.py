"""Codes that differ only in blanks, invisible characters, case, accents or leading zeros.

Codes of records and of code lists must be equal, character by character. The functions of this
module find the code that a person probably meant, for error messages. They never make two codes
equal.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable

# Soft hyphen, zero-width characters, direction marks, variation selectors and other characters
# without a visible form.
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0]"
)


def visible_text(text: str) -> str:
    """Return a text as it looks on screen: without invisible characters, with single blanks.

    The result is in Unicode form NFC, without blanks at the ends.

    >>> visible_text("a\\u200b\\u00a01 ")
    'a 1'
    """
    if text.isascii():
        return " ".join(text.split())
    return " ".join(unicodedata.normalize("NFC", _INVISIBLE.sub("", text)).split())


def _without_blanks(text: str) -> str:
    return "".join(text.split())


def _without_accents(text: str) -> str:
    decomposed = unicodedata.normalize("NFD", text)
    return "".join(c for c in decomposed if not unicodedata.combining(c))


def without_details(text: str) -> str:
    """Return a text in lower case without blanks, invisible characters, accents and leading zeros.

    Texts that differ only in these details give the same result.

    >>> without_details("Le\u00f3n 01") == without_details("leon01")
    True
    """
    return _without_blanks(_without_accents(visible_text(text))).casefold().lstrip("0") or "0"


# Kind of difference -> function that removes differences of this kind from a text. Two codes differ
# only by this kind if the function returns equal texts. Messages name the first kind that fits.
_DIFFERENCES: dict[str, Callable[[str], str]] = {
    "blanks": _without_blanks,
    "characters that are not visible": visible_text,
    "leading zeros": lambda text: text.lstrip("0") or "0",
    "upper and lower case": str.casefold,
    "accents": _without_accents,
    "blanks, case, accents or leading zeros": without_details,
}


def only_difference(text: str, candidates: Iterable[str]) -> tuple[str, str] | None:
    """Return a candidate that differs from a text only in details, and the kind of the difference.

    Details are blanks, invisible characters, case, accents and leading zeros. The kind is a phrase
    such as "leading zeros". The result is None if there is no such candidate. A candidate that
    equals the text is ignored.

    >>> only_difference("0101", ["101", "102"]), only_difference("León", ["Leon"]), only_difference("x", ["y"])
    (('101', 'leading zeros'), ('Leon', 'accents'), None)
    >>> only_difference("ab", ["AB "])
    ('AB ', 'blanks, case, accents or leading zeros')
    """
    key = without_details(text)
    similar = [c for c in candidates if c != text and without_details(c) == key]
    for kind, key_of in _DIFFERENCES.items():
        for candidate in similar:
            if key_of(candidate) == key_of(text):
                return candidate, kind
    return None


def difference_text(text: str, candidates: Iterable[str], quote: Callable[[object], str]) -> str:
    """Return an addition to an error message that names a candidate similar to ``text``.

    The addition is empty if `only_difference` finds no candidate. ``quote`` returns the text of a
    candidate in the message.
    """
    similar = only_difference(text, candidates)
    return "" if similar is None else f"; {quote(similar[0])} differs only by {similar[1]}"
