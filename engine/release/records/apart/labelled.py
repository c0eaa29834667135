"""Files of Stata, SPSS and SAS, which name the values of their columns; and the schema that these names make.

A value that has a label is read as the label, one that the file declares as missing and gives no label as missing.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.errors import DataError, SchemaError
from engine.release.records.apart.asking import heard
from engine.release.records.apart.child import JSON
from engine.release.records.batches import Batch, check_columns
from engine.release.records.clocks import Clock, clock_of
from engine.release.records.encoding import number_of, scalar, text_of
from engine.release.records.identifiers import EXACT, FLOAT_LIMITS
from engine.texts import shown
from engine.workload import Attribute, DraftSchema, Schema, no_attribute

if TYPE_CHECKING:
    import pandas as pd

READERS = {".dta": "read_dta", ".sav": "read_sav", ".zsav": "read_sav", ".por": "read_por",
           ".sas7bdat": "read_sas7bdat", ".xpt": "read_xport"}  # fmt: skip
LABELLED_ENDINGS = tuple(READERS)  # endings of the names of files
USUAL_MISSING = (7, 8, 9, 77, 88, 97, 98, 99, 777, 888, 997, 998, 999, 9997, 9998, 9999, 99997, 99998, 99999)
DATES = "it holds dates or times. Declare by hand which periods have a cell, or leave the column out of the schema"
MAX_SCALE_ENDS = 3  # labels of a scale of which only the ends, or the ends and the middle, have one
# formats of Stata, SPSS and SAS for numbers that are days, months or seconds since some day
DATE_FORMAT = re.compile(
    r"%-?(t[cCdwmqh]|d)|(A|E|S|J)?DATE\d|DATE$|Q?YR|MOYR|WKYR|DATETIME|D?TIME|YMDHMS|MTIME|(MMDD|DDMM)YY|YYMMDD|MONYY"
    r"|JULIAN|YYQ|[EB]8601|IS8601|TOD|WEEKDAT|WORDDAT|NLDAT"
)
XPORT_BYTES = 80  # a transport file is full records of these, and does not say how many


def draft_schema(path: str | Path) -> DraftSchema:
    """Return the schema that the value labels of a Stata, SPSS or SAS file make; reads no record.

    A label of a value that the file declares as missing, where it is the only such one, collects missing values, too.
    A column whose labels do not name all of its values is left to the person: `DraftSchema.reasons` says why.

    Raises: DataError when the file cannot be read; SchemaError when no column makes an attribute.
    """
    place = Path(path)
    if place.suffix.lower() not in READERS:
        raise DataError(f"the file {shown(place.name)} has no labels; give one of {', '.join(READERS)}")
    meta = _meta(place)
    attributes, reasons = [], _problems(meta)
    for name in meta.column_names:
        try:
            if name not in reasons:
                attributes.append(_attribute(meta, name))
        except SchemaError as error:
            reasons[name] = str(error)
    if not attributes and not any(meta.variable_value_labels.values()):
        raise SchemaError(f"no column of {shown(place.name)} has value labels; write the schema by hand")
    if not attributes:
        raise no_attribute(shown(place.name), reasons)
    names = [name for name in meta.column_names if name in reasons]
    return DraftSchema(
        schema=Schema(attributes), unlabelled=tuple(names), reasons={name: reasons[name] for name in names}
    )


def column_problems(path: Path) -> dict[str, str]:
    """Columns of a labelled file that no draft may have, and why; empty for other files."""
    return _problems(_meta(path)) if path.suffix.lower() in READERS and path.is_file() else {}


def _problems(meta: Any) -> dict[str, str]:
    """Columns of dates, and those whose labels take two values for one."""
    formats = meta.original_variable_types
    problems = {name: DATES for name in meta.column_names if DATE_FORMAT.match(formats.get(name) or "")}
    for name in meta.column_names:
        texts = _texts(meta, name)
        counted = [value for value in texts if not _is_missing(meta, name, value)]
        times = Counter(texts.values())
        if shared := next((texts[value] for value in counted if times[texts[value]] > 1), ""):
            codes = ", ".join(text_of(value) for value, text in texts.items() if text == shared)
            problems[name] = (
                f"the values {codes} have the same label, {shown(shared)}, and would be counted in one cell. Change "
                "the labels in the file, or write the attribute by hand"
            )
        numbers = [value for value in texts if not isinstance(value, str)]
        for value, text in texts.items():
            number = number_of(text)
            if number is not None and number not in texts and numbers and min(numbers) < number < max(numbers):
                problems[name] = (
                    f"the label of the value {text_of(value)} is {shown(text)}, which is another value, without a "
                    "label. Change the labels in the file, or write the attribute by hand"
                )
    return problems


def _texts(meta: Any, name: str) -> dict[Any, str]:
    """The text that stands for each value with a label in the records, in the order of the values."""
    ordered = sorted(meta.variable_value_labels.get(name, ()), key=lambda value: (str(type(value)), value))
    return {value: text_of(text) for value in ordered if (text := scalar(_label(meta, name, value))) is not None}


def _attribute(meta: Any, name: str) -> Attribute:
    """Return the attribute that the labels of a column make.  Raises: SchemaError with the reason if they make none."""
    texts = _texts(meta, name)
    if not texts:
        raise SchemaError("it has no value labels")
    gone = [value for value in texts if _is_missing(meta, name, value)]
    named = [value for value in texts if value not in gone]
    substantive = [value for value in named if not _looks_missing(value, named)]
    if not substantive:
        raise SchemaError("only missing values have a label. Declare bins or codes for the others by hand")
    if len(texts) < 2:
        raise SchemaError("one value alone has a label. Write the attribute by hand")
    if gaps := _unlabelled_between(substantive):
        raise SchemaError(
            f"the values {', '.join(map(text_of, substantive))} have labels, and {gaps:,} whole numbers between "
            "them have none. Write by hand those labels and the numbers without one"
        )
    return Attribute.categorical(name, list(texts.values()), missing=texts[gone[0]] if len(gone) == 1 else None)


def _looks_missing(value: Any, named: Sequence[Any]) -> bool:
    """Whether a code is one of those that are usual for missing values: negative, or nines far from the others."""
    if not isinstance(value, (int, float)) or value < 0:
        return not isinstance(value, str)
    smaller = [other for other in named if not isinstance(other, str) and 0 <= other < value]
    return value in USUAL_MISSING and not any(other not in USUAL_MISSING and value - other < 2 for other in smaller)


def _unlabelled_between(values: Sequence[Any]) -> int:
    """Whole numbers without a label between two or three that have one, as of a scale with labelled ends; else 0."""
    numbers = [value for value in values if isinstance(value, (int, float))]
    if not 2 <= len(numbers) == len(values) <= MAX_SCALE_ENDS or any(n != int(n) for n in numbers):
        return 0
    return int(max(numbers) - min(numbers)) + 1 - len(numbers)


def labelled_columns(path: Path) -> dict[str, bool | None]:
    """Names of the columns, and whether they hold numbers, of which none has a label unless it is missing."""
    meta = _meta(path)
    types, labels = meta.readstat_variable_types, meta.variable_value_labels
    return {
        name: types[name] != "string" and all(_is_missing(meta, name, value) for value in labels.get(name, ()))
        for name in meta.column_names
    }


def labelled_batches(path: Path, names: Sequence[str], rows: int) -> Iterator[Batch]:
    """The named columns, batch by batch, with labels in place of the values that have one."""
    what = f"the file {shown(path.name)}"
    with closing(_said(path, names=list(names), rows=rows)) as found:
        meta = _meta_of(path, next(found))
        check_columns(meta.column_names, names)
        if path.suffix.lower() == ".xpt" and path.stat().st_size % XPORT_BYTES:  # where it breaks off, it just ends
            raise DataError(f"{what} breaks off within a record of {XPORT_BYTES} bytes; copy it again, whole")
        done, total, limits = 0, meta.number_rows, {name: _float_limit(meta, name) for name in names}
        clocks = _clocks(path, meta, names)
        for (count, kinds), held in found:
            done += count
            columns = tuple(_named(_values(*own), meta, name) for *own, name in zip(kinds, held, names, strict=False))
            fraction = done / total if total else None
            fraction = None if fraction is None else min(1.0, fraction)
            yield Batch(columns=columns, rows=count, fraction=fraction, float_limits=limits, clocks=clocks)


def _clocks(path: Path, meta: Any, names: Sequence[str]) -> dict[str, Clock]:
    """The clocks of the named columns whose display format is one of dates."""
    forms = meta.original_variable_types
    clocks = {name: clock_of(path.suffix.lower(), str(forms.get(name) or "")) for name in names}
    return {name: clock for name, clock in clocks.items() if clock is not None}


def _named(values: pd.Series, meta: Any, name: str) -> Any:
    """A column with its labels, told apart once per distinct value."""
    import pandas as pd

    from engine.release.records.sources import array_of

    codes, found = pd.factorize(values)
    texts = [_label(meta, name, v) for v in found]
    named = pd.Series([*texts, None], dtype=object)
    return array_of(named.iloc[codes].reset_index(drop=True))


def _float_limit(meta: Any, name: str) -> int:
    """Return the size from which on a column stores equal numbers for different whole ones.

    Stata has floats of 32 bits, and SAS cuts the mantissa of a double to the length of its column, of 3 to 8 bytes.
    """
    if meta.readstat_variable_types[name] == "float":
        return FLOAT_LIMITS[4]
    width = meta.variable_storage_width[name]
    return 2 ** (8 * width - 11) if meta.readstat_variable_types[name] == "double" and 3 <= width < 8 else EXACT


def _label(meta: Any, name: str, value: Any) -> Any:
    """The label of a value, or the value itself where it has none but blanks; None for a missing value."""
    text = meta.variable_value_labels.get(name, {}).get(value, "")
    if isinstance(text, str) and not text.strip():
        return None if _is_missing(meta, name, value) else value
    return text


def _is_missing(meta: Any, name: str, value: Any) -> bool:
    """Whether the file declares a value as missing: in a range of SPSS, or one of the letters of Stata and SAS."""
    if value in meta.missing_user_values.get(name, ()):
        return True
    ranges = meta.missing_ranges.get(name, ())
    return any(type(value) is type(span["lo"]) and span["lo"] <= value <= span["hi"] for span in ranges)


def _meta(path: Path) -> Any:
    with closing(_said(path, names=None, rows=0)) as found:
        return _meta_of(path, next(found))


def _meta_of(path: Path, told: dict[str, Any]) -> Any:
    """What a file says of its columns; values that have labels may be numbers, which no key of JSON is."""
    labels = {name: dict(own) for name, own in told.pop("labels").items()}
    if not all(isinstance(name, str) for name in told["column_names"]):
        raise DataError(
            f"the file {shown(path.name)} has a column without a name; it is damaged, or was not written whole"
        )
    return SimpleNamespace(**told, variable_value_labels=labels)


def _values(kind: str, held: bytes) -> pd.Series:
    import pandas as pd

    return pd.Series(json.loads(held), dtype=object) if kind == JSON else pd.Series(np.frombuffer(held, kind))


def _said(path: Path, **asked: Any) -> Generator[Any]:
    """What the process in which the file is read says: of its columns first, then of its rows."""
    reader = READERS[path.suffix.lower()]
    return heard(path, "pyreadstat", reader, "; save it as CSV.", kept=_missing_kept(path), **asked)


def _missing_kept(path: Path) -> dict[str, bool]:
    """Ask for the values that a file declares as missing; two readers know no such question, and give none of them."""
    return {} if path.suffix.lower() in (".por", ".xpt") else {"user_missing": True}
