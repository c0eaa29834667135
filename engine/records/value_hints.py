"""Hints why values of records may have been read wrongly, for the curator and without values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from engine._format import quote_public
from engine.records.encoding import MISSING, NOT_DATE, UNSUPPORTED, Encoder, is_scalar, text_of
from engine.workload import DEFAULT_MISSING_TEXTS

MAX_VALUES = 1_000  # distinct values per column that are examined
GROUPED = r"[+-]?\d{1,3}(\.\d{3})+"
_GROUPS = re.compile(r"[+-]?\d{1,3}(?:([.,' ]|\u00a0|\u202f|\u2019)\d{3})(?:\1\d{3})*(?:[.,]\d+)?", re.ASCII)
_DATE = re.compile(r"\d{1,4}[./-]\d{1,2}[./-]\d{1,4}", re.ASCII)
_MISSING = {text.casefold() for text in DEFAULT_MISSING_TEXTS}
_DECLARE = "which the schema can declare"
PHRASES = {
    "blanks": "would fit without blanks at its ends",
    "missing": f"is a text that usually means missing, {_DECLARE}",
    "point": "would fit without .0",
    "zero": "would fit with a leading zero",
    "zeros": "would fit without leading zeros",
    "comma": f"would fit with a decimal comma, {_DECLARE}",
    "thousands": f"would fit with a thousands sign, {_DECLARE}",
    "date": f"looks like a date in another format, {_DECLARE}",
}


class Hints:
    """Collects changes of values, or declarations of the schema, that would make refused values fit."""

    def __init__(self) -> None:
        self._found: dict[str, set[str]] = {}
        self._tried: dict[str, set[str]] = {}
        self._points: dict[str, tuple[bool, bool]] = {}  # column -> has texts like 1.200, has other texts with a point

    def see(self, encoder: Encoder, values: pa.Array | list[Any], codes: np.ndarray) -> None:
        """Examine a column of values and their codes."""
        name = encoder.attribute.name
        tried = self._tried.setdefault(name, set())
        self._see_points(encoder, values)
        refused = (codes < MISSING) & (codes != UNSUPPORTED)
        if len(tried) < MAX_VALUES and refused.any():
            for value in _distinct(values, refused):
                text = text_of(value.decode("utf-8", "replace") if isinstance(value, bytes) else value)
                if text not in tried and len(tried) < MAX_VALUES:
                    tried.add(text)
                    self._found.setdefault(name, set()).update(refusal_reasons(encoder, text))

    def see_values(self, encoder: Encoder, values: Iterable[Any]) -> None:
        """Examine some values of a column."""
        entries = [value for value in values if value is not None]
        self.see(encoder, entries, encoder.objects(entries))

    @property
    def texts(self) -> tuple[str, ...]:
        """Sentences for the curator; they name columns and no value."""
        sentences = [
            f"Column {quote_public(name)}: a value that does not fit {PHRASES[reason]}."
            for name, found in self._found.items()
            for reason in PHRASES
            if reason in found
        ]
        sentences += [
            f"Column {quote_public(name)}: all texts with a point are like 1.200, with three digits after it, and are read as "
            f"1.2. If they are thousands, declare the thousands sign in the schema."
            for name, (grouped, others) in self._points.items()
            if grouped and not others
        ]
        return tuple(sentences)

    def _see_points(self, encoder: Encoder, values: pa.Array | list[Any]) -> None:
        import pyarrow.compute as pc

        attribute = encoder.attribute
        before = self._points.get(attribute.name, (False, False))
        if attribute.edges is None or attribute.decimal or attribute.thousands or before[1]:
            return
        if isinstance(values, list):
            values = pa.array([value for value in values if isinstance(value, str)], pa.string())
        if pa.types.is_dictionary(values.type):
            values = values.dictionary
        if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
            return
        pointed = values.filter(pc.match_substring(values, ".").fill_null(False))
        if not len(pointed):
            return
        grouped = pc.match_substring_regex(pc.ascii_trim_whitespace(pointed), f"^{GROUPED}$")
        self._points[attribute.name] = (before[0] or bool(pc.any(grouped).as_py()), not pc.all(grouped).as_py())


def refusal_reasons(encoder: Encoder, text: str) -> Iterator[str]:
    """Yield keys of `PHRASES` for a text that the attribute refuses."""

    def fits(candidate: str) -> bool:
        return candidate != text and encoder.one(candidate) >= 0

    attribute, stripped = encoder.attribute, text.strip()
    if fits(stripped):
        yield "blanks"
    if stripped.casefold() in _MISSING:
        yield "missing"
        return
    if attribute.is_dated:
        if encoder.one(text) == NOT_DATE and _DATE.fullmatch(stripped):
            yield "date"
        return
    if re.fullmatch(r"-?\d+\.0+", stripped) and fits(stripped.partition(".")[0]):
        yield "point"
    if attribute.labels is not None and stripped.isascii() and stripped.isdigit():
        longest = min(20, max(map(len, attribute.labels)))
        if any(fits(stripped.zfill(width)) for width in range(len(stripped) + 1, longest + 1)):
            yield "zero"
        if fits(stripped.lstrip("0") or "0"):
            yield "zeros"
    if attribute.labels is None:
        if _GROUPS.fullmatch(stripped):
            if fits(_without_groups(stripped)):
                yield "thousands"
        elif stripped.count(",") == 1 and fits(stripped.replace(",", ".")):
            yield "comma"


def _without_groups(text: str) -> str:
    """Return a number without the sign between its groups, and with a decimal point."""
    sign = next(character for character in text.lstrip("+-") if not character.isdigit())
    return text.replace(sign, "").replace(",", ".")


def _distinct(values: pa.Array | list[Any], among: np.ndarray) -> list[Any]:
    """Return some distinct values of the selected rows of a column."""
    if isinstance(values, list):
        return list({str(values[i]): values[i] for i in np.flatnonzero(among)[: 10 * MAX_VALUES]}.values())
    chosen = values.filter(pa.array(among))[: 100 * MAX_VALUES]
    if not is_scalar(chosen.type) and not pa.types.is_dictionary(chosen.type):
        return []
    return list(chosen.unique()[: 2 * MAX_VALUES].to_pylist())
