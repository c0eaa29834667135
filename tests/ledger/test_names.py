"""Dataset names: refusal of invisible characters, warning of confusable names."""

import warnings

import pytest

from engine.errors import LedgerError
from engine.ledger import Ledger
from engine.ledger.ledger import INVISIBLE_CHARACTERS, ConfusableName, looks_like
from engine.privacy import Budget
from tests.ledger.helpers import spend

HIDDEN = {
    "soft hyphen": "\u00ad",
    "grapheme joiner": "\u034f",
    "hangul choseong filler": "\u115f",
    "hangul jungseong filler": "\u1160",
    "hangul filler": "\u3164",
    "halfwidth hangul filler": "\uffa0",
    "khmer vowel": "\u17b4",
    "mongolian variation selector": "\u180b",
    "zero width space": "\u200b",
    "zero width joiner": "\u200d",
    "word joiner": "\u2060",
    "braille blank": "\u2800",
    "variation selector": "\ufe0f",
    "byte order mark": "\ufeff",
    "musical symbol": "\U0001d173",
    "tag": "\U000e0041",
    "variation selector supplement": "\U000e0100",
}
PAIRS = [
    ("adult", "\u0430dult"),  # Cyrillic a
    ("census", "\u0421\u0415NSUS"),  # Cyrillic capitals
    ("income", "\u0406ncome"),  # Ukrainian capital I
    ("income beta", "\u0406ncome \u0392eta"),  # with a Greek capital beta
    ("health", "healt\u04bb"),
    ("wave l", "wave 1"),
    ("wave l", "wave I"),
    ("wave 10", "wave lo"),
    ("modem", "modern"),
    ("a-b", "a\u2212b"),
    ("\u0440\u043e\u0441", "poc"),  # all letters Cyrillic
]


@pytest.mark.parametrize("char", HIDDEN.values(), ids=HIDDEN)
def test_add_dataset_invisible_character_is_refused(ledger, char):
    for name in (f"ad{char}ult", f"adult{char}", f"{char}adult"):
        with pytest.raises(LedgerError, match=f"U\\+{ord(char):04X}"):
            ledger.add_dataset(name, total=Budget(pcost=1.0))
    assert [row.kind for row in ledger.rows()] == ["ledger", "dataset"]


def test_invisible_covers_default_ignorable_code_points():
    covered = sum(1 for code in range(0x110000) if INVISIBLE_CHARACTERS.match(chr(code)))
    assert covered == 4174 + 5  # Unicode 16.0, and five characters without a glyph


def test_name_declared_by_earlier_version_stays_usable(ledger, monkeypatch):
    with monkeypatch.context() as earlier:
        earlier.setattr("engine.ledger.ledger.new_dataset_name", lambda name: name)
        ledger.add_dataset("heart\ufe0f", total=Budget(pcost=1.0))
    assert spend(Ledger(ledger.path), dataset="heart\ufe0f").fresh
    with pytest.raises(LedgerError, match="already"):
        ledger.add_dataset("heart", total=Budget(pcost=1.0))


@pytest.mark.parametrize(("name", "other"), PAIRS)
def test_add_dataset_confusable_name_warns(ledger, name, other):
    if name != "adult":  # the fixture has added this dataset
        ledger.add_dataset(name, total=Budget(pcost=1.0))
    assert ledger.confusable_names(other) == [name]
    with pytest.warns(ConfusableName, match="looks like") as caught:
        ledger.add_dataset(other, total=Budget(pcost=1.0))
    assert repr(name) in str(caught[0].message)
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    "other",
    ["adults", "mail", "mall", "sante", "2024", "2023", "\u0434\u0430\u043d\u0456", "\u6570\u636e"],
)
def test_add_dataset_distinct_name_does_not_warn(ledger, other):
    ledger.add_dataset("santé", total=Budget(pcost=1.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ledger.add_dataset(other, total=Budget(pcost=1.0))


def test_looks_like_is_symmetric_and_reflexive():
    for name, other in PAIRS:
        assert looks_like(name, other)
        assert looks_like(other, name)
        assert looks_like(name, name)
    assert not looks_like("mail", "mall")
