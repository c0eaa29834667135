"""Readers of Excel, Stata, SPSS and SAS files in a subprocess.

The side that asks: what the process of `child` says of a file, one value after the other.

Files of Stata, SPSS and SAS, which name the values of their columns; and the schema that these names make.

A value that has a label is read as the label, one that the file declares as missing and gives no label as missing.

Workbooks -> batches of the needed columns, or text, from the rows that the process of `child` sends.
"""

from __future__ import annotations

import csv
import io
import json
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from engine._format import header_name, near_matches, shown
from engine.errors import DataError, LimitExceeded, SchemaError
from engine.records.batches import Batch, batched, check_columns, needed
from engine.records.encoding import number_of, scalar, text_of
from engine.records.identifiers import EXACT, FLOAT_LIMITS
from engine.records.stored_dates import Clock, clock_of
from engine.records.subprocess_worker import JSON, SHEET, TOO_LARGE
from engine.workload import Attribute, DraftSchema, Schema
from engine.workload.schema_draft import no_attribute

if TYPE_CHECKING:
    import pandas as pd


CHILD = Path(__file__).with_name("subprocess_worker.py")
ENDED = {TOO_LARGE, -signal.SIGABRT, -9}  # where memory ended, by itself or by the system


def heard(path: Path, library: str, kind: str, too_large: str, **asked: Any) -> Generator[Any]:
    """What the process says, up to its last word: values, or pairs of one and bytes.  Whoever stops listening ends it.

    ``too_large`` says what to do when memory ends.  Raises: DataError when the library is missing or the file cannot be
    read, LimitExceeded when memory ends.
    """
    what = f"the file {shown(path.name)}"
    needed(library, what)
    command = [sys.executable, "-I", str(CHILD), str(path), kind, json.dumps(asked)]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as child:
        assert child.stdout is not None  # it is a pipe
        try:
            while line := child.stdout.readline():
                value, lengths = json.loads(line)
                if value is None:
                    return
                behind = [child.stdout.read(length) for length in lengths]
                if [len(one) for one in behind] != lengths:
                    break
                yield (value, behind) if behind else value
            code = child.wait()
        except ValueError:  # it ended within a line
            code = child.wait()
        finally:
            child.kill()
    if code in ENDED:
        raise LimitExceeded(f"{what} needs more memory than there is{too_large}")
    raise DataError(f"{what} cannot be read; check that it is complete and of the kind its name says")


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

    from engine.records.batches import array_of

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


SHEET_ENDINGS = (".xlsx", ".xls", ".ods")
MAX_LISTED = 8  # sheets in an error
MAX_WORKBOOK_INTEGER = 10**15  # spreadsheets store 15 digits of a number; others become 0
MOST_TEXT = 10_000_000  # characters of a public table
FORGOTTEN = (
    ": a forgotten cell far from the others makes a sheet as large as all between them. Delete the empty rows below "
    "and columns beside the table, or save it as CSV."
)


@dataclass(frozen=True, kw_only=True)
class SheetFile:
    """One sheet of a workbook with several.

    Fields: `path`; `sheet`, the name of the sheet.

    >>> SheetFile(path="survey.xlsx", sheet="2024").sheet
    '2024'
    """

    path: str | Path
    sheet: str

    def __post_init__(self) -> None:
        """Raise DataError for a file that is no workbook."""
        if not str(self.path).lower().endswith(SHEET_ENDINGS):
            raise DataError(
                f"the file {shown(Path(self.path).name)} has no sheets. Leave the name of the sheet out, or give a "
                f"workbook, whose name ends in one of {', '.join(SHEET_ENDINGS)}"
            )


def sheet_names(path: Path, sheet: str | None = None) -> list[str]:
    """The first row of a sheet."""
    return list(map(_name, next(_rows(path, sheet), [])))


def sheet_batches(path: Path, names: Sequence[str], rows: int, sheet: str | None = None) -> Iterator[Batch]:
    """The named columns of a sheet; without its name, of the only visible one with a cell."""
    all_rows = _rows(path, sheet)
    head = list(map(_name, next(all_rows, [])))
    check_columns(head, names, quote=False)
    places = [head.index(name) for name in names]
    # sheets end in rows that were emptied
    filled = ([row[i] for i in places] for row in all_rows if any(value != "" for value in row))
    limits = dict.fromkeys(names, MAX_WORKBOOK_INTEGER)
    return (replace(batch, float_limits=limits) for batch in batched(filled, len(names), rows))


def visible_sheets(path: Path) -> list[str]:
    """Return the names of the visible sheets with a cell, of which one has to be chosen when there are several."""
    with closing(_heard(path, None)) as found:
        chosen: list[str] = next(found)[0]
    return chosen


def sheet_text(path: Path, sheet: str | None = None, *, empty_rows: bool = False) -> str:
    """Return a sheet of a workbook as CSV: a public table, such as a data dictionary, as people keep it.

    Empty rows, and empty columns to the right, are left out; numbers are written as short as they are exact.  With
    ``empty_rows`` an empty row becomes an empty line, so that the lines have the numbers of the rows.
    Raises: DataError for a workbook of several sheets without the name of one, LimitExceeded for a sheet that is too
    large.
    """
    held, characters, width = list[list[str]](), 0, 0
    for row in _rows(path, sheet):
        cells = list(map(_written, row))
        filled = max((place for place, cell in enumerate(cells, 1) if cell), default=0)
        characters += sum(map(len, cells[:filled]))
        if characters > MOST_TEXT:
            raise LimitExceeded(
                f"the file {shown(path.name)} has over {MOST_TEXT:,} characters. Leave out what is not needed."
            )
        if filled or empty_rows:
            width = max(width, filled)
            held.append(cells[:filled])
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(
        [*cells, *[""] * (width - len(cells))] if cells else [] for cells in held
    )
    return out.getvalue()


def _written(value: Any) -> str:
    """A cell as the text that counting compares with labels."""
    return value.strip() if isinstance(value, str) else text_of(value)


def _name(value: Any) -> str:
    """A cell of the header as a name: a year that is a number is "2019", not "2019.0"."""
    return header_name(value) if isinstance(value, str) else _written(value)


def _heard(path: Path, sheet: str | None) -> Generator[Any]:
    return heard(path, "python_calamine", SHEET, FORGOTTEN, sheet=sheet)


def _rows(path: Path, sheet: str | None) -> Iterator[list[Any]]:
    what, found = f"the file {shown(path.name)}", _heard(path, sheet)
    with closing(found):
        chosen, names = next(found)
        if sheet is not None and len(chosen) != 1:
            raise DataError(f"{what} has no sheet {shown(sheet)}{near_matches(sheet, names)}; give the name of one")
        if len(chosen) != 1:
            listed = ", ".join(map(shown, chosen[:MAX_LISTED])) + (", ..." if len(chosen) > MAX_LISTED else "")
            raise DataError(f"{what} has {len(chosen):,} sheets, {listed}; give the name of one, or save it alone")
        if merged := next(found):  # all but the first of merged cells look empty
            raise DataError(f"{what} has merged cells in its {merged}; unmerge them and write every name and value out")
        for rows in found:
            yield from rows
