"""Dataset names that look alike: invisible characters and confusable letters.

The invisible characters are those with Unicode's property Default_Ignorable_Code_Point, and further
ones without a glyph.  The confusable letters are a selection of Unicode's security data
(confusables.txt, UTS #39): letters of the scripts Latin, Greek, Cyrillic, Armenian, Coptic, Cherokee
and Lisu that look like one letter, digit or hyphen of ASCII and that NFKC does not change.
"""

from __future__ import annotations

import re
import unicodedata

INVISIBLE = re.compile(
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
    "y": "\u0263\u028f\u03a5\u03b3\u0423\u0443\u04ae\u04af\u13a9\u13bd\u1d8c\u1eff\u2ca8\ua4ec\uab5a",
    "z": "\u0396\u13c3\u1d22\ua4dc\uab93",
}
_SKELETON_LETTERS = str.maketrans({char: target for target, chars in _CONFUSABLE.items() for char in chars})
_DIGITS = str.maketrans("01|", "oll")


def visible_text(name: str) -> str:
    """Return a name in normal form NFKC, without its invisible characters."""
    return unicodedata.normalize("NFKC", INVISIBLE.sub("", name))


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
    return {text.translate(_DIGITS).replace("rn", "m") for text in folded}
