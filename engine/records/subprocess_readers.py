"""Readers of Excel, Stata, SPSS and SAS files in a subprocess.

The parsers of these formats run in a separate process (`subprocess_worker`), so that a damaged or
very large file cannot crash the calling process. The worker sends JSON messages, some of them
followed by bytes.

Stata, SPSS and SAS files contain value labels. A value with a label is read as its label; a value
without a label that the file declares as missing is read as missing. `draft_schema` derives a
schema from the labels.

Workbooks are read as batches of the needed columns, or, for public tables, as CSV text.
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

from engine._format import header_name, near_matches, quote_public
from engine.errors import DataError, LimitExceeded, SchemaError
from engine.records.batches import Batch, check_columns, import_optional, rows_to_batches
from engine.records.contribution_bounding import FLOAT64_INTEGER_LIMIT, FLOAT_LIMITS
from engine.records.encoding import Clock, clock_of, number_of, scalar, text_of
from engine.records.subprocess_worker import JSON, SHEET, TOO_LARGE
from engine.workload import Attribute, DraftSchema, Schema
from engine.workload.schema_draft import no_attribute

if TYPE_CHECKING:
    import pandas as pd


WORKER_SCRIPT = Path(__file__).with_name("subprocess_worker.py")
# exit codes when the worker, or the operating system, ends it for lack of memory
OUT_OF_MEMORY_CODES = {TOO_LARGE, -signal.SIGABRT, -9}


def worker_messages(
    path: Path, library: str, kind: str, too_large: str, **arguments: Any
) -> Generator[Any]:
    """Yield the messages of a worker process: values, or pairs of a value and a list of bytes.

    Closing the generator ends the process.

    Parameters
    ----------
    library : package that the worker needs.
    kind : "sheet" or the name of a reader of pyreadstat.
    too_large : advice in the message of LimitExceeded.
    arguments : arguments of the reader in the worker.

    Raises
    ------
    DataError
        The library is not installed, or the file cannot be read.
    LimitExceeded
        The worker needs more memory than available.
    """
    what = f"the file {quote_public(path.name)}"
    import_optional(library, what)
    command = [sys.executable, "-I", str(WORKER_SCRIPT), str(path), kind, json.dumps(arguments)]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None  # it is a pipe
        try:
            while line := process.stdout.readline():
                value, lengths = json.loads(line)
                if value is None:
                    return
                payloads = [process.stdout.read(length) for length in lengths]
                if [len(payload) for payload in payloads] != lengths:
                    break
                yield (value, payloads) if payloads else value
            code = process.wait()
        except ValueError:  # the process ended within a line
            code = process.wait()
        finally:
            process.kill()
    if code in OUT_OF_MEMORY_CODES:
        raise LimitExceeded(f"{what} needs more memory than is available{too_large}")
    raise DataError(
        f"{what} cannot be read; check that it is complete, and that its ending names its format"
    )


LABELLED_READERS = {".dta": "read_dta", ".sav": "read_sav", ".zsav": "read_sav", ".por": "read_por",
           ".sas7bdat": "read_sas7bdat", ".xpt": "read_xport"}  # fmt: skip
LABELLED_ENDINGS = tuple(LABELLED_READERS)
COMMON_MISSING_CODES = (
    7,
    8,
    9,
    77,
    88,
    97,
    98,
    99,
    777,
    888,
    997,
    998,
    999,
    9997,
    9998,
    9999,
    99997,
    99998,
    99999,
)
DATES = (
    "it contains dates or times. Declare the periods by hand, or leave the column out of the schema"
)
MAX_SCALE_ENDS = 3  # labels of a scale with labels only at its ends, or ends and middle
# display formats of Stata, SPSS and SAS for days, months or seconds since an epoch
DATE_FORMAT = re.compile(
    r"%-?(t[cCdwmqhb]|d)|(A|E|S|J)?DATE\d|DATE$|Q?YR|MOYR|WKYR|DATETIME|D?TIME|YMDHMS|MTIME|(MMDD|DDMM)YY|YYMMDD|MONYY"
    r"|JULIAN|YYQ|[EB]8601|IS8601|TOD|WEEKDAT|WORDDAT|NLDAT"
)
XPORT_RECORD_BYTES = 80  # a transport file is a sequence of such records, without their number


def draft_schema(path: str | Path) -> DraftSchema:
    """Draft a schema from the value labels of a Stata, SPSS or SAS file; reads no record.

    If exactly one labelled value of a column is declared as missing, its cell also collects missing
    values. Columns of dates, without labels, or whose labels are ambiguous or do not cover all
    values are left out; `DraftSchema.reasons` has the reasons.

    Raises
    ------
    DataError
        The file has another format than Stata, SPSS or SAS, or cannot be read.
    SchemaError
        No column gives an attribute.
    """
    file = Path(path)
    if file.suffix.lower() not in LABELLED_READERS:
        raise DataError(
            f"the file {quote_public(file.name)} has no value labels; give a file that ends in one"
            f" of {', '.join(LABELLED_READERS)}"
        )
    meta = _meta(file)
    attributes, reasons = [], _column_problems(meta)
    for name in meta.column_names:
        try:
            if name not in reasons:
                attributes.append(_attribute(meta, name))
        except SchemaError as error:
            reasons[name] = str(error)
    if not attributes and not any(meta.variable_value_labels.values()):
        raise SchemaError(
            f"no column of {quote_public(file.name)} has value labels; write the schema by hand"
        )
    if not attributes:
        raise no_attribute(quote_public(file.name), reasons)
    names = [name for name in meta.column_names if name in reasons]
    return DraftSchema(
        schema=Schema(attributes),
        unlabelled=tuple(names),
        reasons={name: reasons[name] for name in names},
    )


def column_problems(path: Path) -> dict[str, str]:
    """Return a mapping from a column to the reason why a drafted schema leaves it out.

    Empty for a file of another format than Stata, SPSS and SAS.
    """
    return (
        _column_problems(_meta(path))
        if path.suffix.lower() in LABELLED_READERS and path.is_file()
        else {}
    )


def _column_problems(meta: Any) -> dict[str, str]:
    """Return a mapping from columns of dates, or with ambiguous labels, to the reason as text."""
    formats = meta.original_variable_types
    problems = {
        name: DATES for name in meta.column_names if DATE_FORMAT.match(formats.get(name) or "")
    }
    for name in meta.column_names:
        labels = _label_texts(meta, name)
        label_counts = Counter(labels.values())
        shared = [
            label
            for value, label in labels.items()
            if label_counts[label] > 1 and not _is_missing(meta, name, value)
        ]
        if shared:
            values = ", ".join(
                text_of(value) for value, label in labels.items() if label == shared[0]
            )
            problems[name] = (
                f"the values {values} have the same label, {quote_public(shared[0])}, and would be"
                " counted in one cell. Change the labels in the file, or declare the attribute by"
                " hand"
            )
        numbers = [value for value in labels if not isinstance(value, str)]
        for value, label in labels.items():
            number = number_of(label)
            if (
                number is not None
                and number not in labels
                and numbers
                and min(numbers) < number < max(numbers)
            ):
                problems[name] = (
                    f"the label of the value {text_of(value)} is {quote_public(label)}, which is"
                    " also a value, but has no label. Change the labels in the file, or declare the"
                    " attribute by hand"
                )
    return problems


def _label_texts(meta: Any, name: str) -> dict[Any, str]:
    """Return a mapping from each labelled value of a column to its label, ordered by value."""
    ordered = sorted(
        meta.variable_value_labels.get(name, ()), key=lambda value: (str(type(value)), value)
    )
    return {
        value: text_of(text)
        for value in ordered
        if (text := scalar(_label(meta, name, value))) is not None
    }


def _attribute(meta: Any, name: str) -> Attribute:
    """Return the attribute of a labelled column; raise SchemaError with the reason if impossible."""
    texts = _label_texts(meta, name)
    if not texts:
        raise SchemaError("it has no value labels")
    missing_values = [value for value in texts if _is_missing(meta, name, value)]
    present = [value for value in texts if value not in missing_values]
    substantive = [value for value in present if not _looks_missing(value, present)]
    if not substantive:
        raise SchemaError(
            "only values that mean missing, or that look like codes for missing values, have"
            " labels. Declare bins or codes for the other values by hand"
        )
    if len(texts) < 2:
        raise SchemaError("only one of its values has a label. Declare the attribute by hand")
    if gaps := _unlabelled_between(substantive):
        raise SchemaError(
            f"the values {', '.join(map(text_of, substantive))} have labels, and {gaps:,} integers"
            " between them have none. Declare the attribute by hand, with these labels and the"
            " numbers without a label"
        )
    return Attribute.categorical(
        name,
        list(texts.values()),
        missing=texts[missing_values[0]] if len(missing_values) == 1 else None,
    )


def _looks_missing(value: Any, labelled: Sequence[Any]) -> bool:
    """Return whether a labelled value is probably a code for missing values.

    Such codes are negative numbers, and the numbers of `COMMON_MISSING_CODES` except for one that
    continues a scale: 7 is such a code after the labelled numbers 1, 2, 3, but not after
    1, ..., 6.
    """
    if isinstance(value, str):
        return False
    if value < 0:
        return True
    smaller = [other for other in labelled if not isinstance(other, str) and 0 <= other < value]
    return value in COMMON_MISSING_CODES and not any(
        other not in COMMON_MISSING_CODES and value - other < 2 for other in smaller
    )


def _unlabelled_between(values: Sequence[Any]) -> int:
    """Return the number of integers without a label between two or three labelled integers.

    Labels only at the ends of a scale, or at its ends and middle, mean that the values between them
    are valid. With more or fewer labelled values, or one that is not an integer, the result is 0.
    """
    numbers = [value for value in values if isinstance(value, (int, float))]
    are_integers = len(numbers) == len(values) and all(n == int(n) for n in numbers)
    if not are_integers or not 2 <= len(numbers) <= MAX_SCALE_ENDS:
        return 0
    return int(max(numbers) - min(numbers)) + 1 - len(numbers)


def labelled_columns(path: Path) -> dict[str, bool | None]:
    """Return a mapping from each column to whether it is read as numbers.

    That is the case for numeric columns in which only missing values have labels.
    """
    meta = _meta(path)
    types, labels = meta.readstat_variable_types, meta.variable_value_labels
    return {
        name: (
            types[name] != "string"
            and all(_is_missing(meta, name, value) for value in labels.get(name, ()))
        )
        for name in meta.column_names
    }


def labelled_batches(path: Path, names: Sequence[str], rows: int) -> Iterator[Batch]:
    """Yield the named columns of a Stata, SPSS or SAS file; labelled values are read as labels."""
    what = f"the file {quote_public(path.name)}"
    with closing(_labelled_messages(path, names=list(names), rows=rows)) as messages:
        meta = _meta_of(path, next(messages))
        check_columns(meta.column_names, names)
        if path.suffix.lower() == ".xpt" and path.stat().st_size % XPORT_RECORD_BYTES:
            raise DataError(
                f"{what} breaks off within a record of {XPORT_RECORD_BYTES} bytes; copy the"
                " complete file again"
            )
        limits = {name: _float_limit(meta, name) for name in names}
        clocks = _clocks(path, meta, names)
        n_rows = 0
        for (count, kinds), payloads in messages:
            n_rows += count
            # without names, the worker sends one column, only so that its rows can be counted
            columns = tuple(
                _with_labels(_values(kind, payload), meta, name)
                for kind, payload, name in zip(kinds, payloads, names, strict=False)
            )
            yield Batch(
                columns=columns,
                rows=count,
                fraction=min(1.0, n_rows / meta.number_rows) if meta.number_rows else None,
                float_limits=limits,
                clocks=clocks,
            )


def _clocks(path: Path, meta: Any, names: Sequence[str]) -> dict[str, Clock]:
    """Return a mapping from each named column with a date format to its unit and epoch."""
    forms = meta.original_variable_types
    clocks = {name: clock_of(path.suffix.lower(), str(forms.get(name) or "")) for name in names}
    return {name: clock for name, clock in clocks.items() if clock is not None}


def _with_labels(values: pd.Series, meta: Any, name: str) -> Any:
    """Replace values by labels, once per distinct value."""
    import pandas as pd

    from engine.records.batches import array_of

    codes, distinct = pd.factorize(values)
    texts = [_label(meta, name, v) for v in distinct]
    labelled = pd.Series([*texts, None], dtype=object)
    return array_of(labelled.iloc[codes].reset_index(drop=True))


def _float_limit(meta: Any, name: str) -> int:
    """Return the smallest number from which floats of a column cannot represent all integers.

    Stata has 32-bit floats, and SAS truncates doubles to a column width of 3 to 8 bytes.
    """
    if meta.readstat_variable_types[name] == "float":
        return FLOAT_LIMITS[4]
    width: int = meta.variable_storage_width[name]
    if meta.readstat_variable_types[name] == "double" and 3 <= width < 8:
        return 1 << (8 * width - 11)  # all bits but sign and exponent, and an implicit leading one
    return FLOAT64_INTEGER_LIMIT


def _label(meta: Any, name: str, value: Any) -> Any:
    """Return the label of a value, or the value itself without one; None for a missing value."""
    text = meta.variable_value_labels.get(name, {}).get(value, "")
    if isinstance(text, str) and not text.strip():
        return None if _is_missing(meta, name, value) else value
    return text


def _is_missing(meta: Any, name: str, value: Any) -> bool:
    """Return whether the file declares a value as missing, by itself or in a range of values."""
    if value in meta.missing_user_values.get(name, ()):
        return True
    ranges = meta.missing_ranges.get(name, ())
    return any(
        type(value) is type(span["lo"]) and span["lo"] <= value <= span["hi"] for span in ranges
    )


def _meta(path: Path) -> Any:
    with closing(_labelled_messages(path, names=None, rows=0)) as messages:
        return _meta_of(path, next(messages))


def _meta_of(path: Path, fields: dict[str, Any]) -> Any:
    """Return the metadata message of a labelled file as an object.

    The message has the labels as pairs (value, label), because JSON keys cannot be numbers.
    """
    labels = {name: dict(pairs) for name, pairs in fields.pop("labels").items()}
    if not all(isinstance(name, str) for name in fields["column_names"]):
        raise DataError(
            f"the file {quote_public(path.name)} has a column without a name, so it is damaged or"
            " incomplete; save it again"
        )
    return SimpleNamespace(**fields, variable_value_labels=labels)


def _values(kind: str, payload: bytes) -> pd.Series:
    """Return a column that the worker sent; `kind` is `JSON` or the type of its numbers."""
    import pandas as pd

    return (
        pd.Series(json.loads(payload), dtype=object)
        if kind == JSON
        else pd.Series(np.frombuffer(payload, kind))
    )


def _labelled_messages(path: Path, **arguments: Any) -> Generator[Any]:
    """Yield the messages about a labelled file: metadata first, then rows."""
    reader = LABELLED_READERS[path.suffix.lower()]
    return worker_messages(
        path, "pyreadstat", reader, "; save it as CSV.", options=_missing_options(path), **arguments
    )


def _missing_options(path: Path) -> dict[str, bool]:
    """Return the option by which pyreadstat returns values that the file declares as missing.

    Empty for .por and .xpt files, whose readers do not have this option.
    """
    return {} if path.suffix.lower() in (".por", ".xpt") else {"user_missing": True}


SHEET_ENDINGS = (".xlsx", ".xls", ".ods")
MAX_LISTED_SHEETS = 8  # in an error message
MAX_WORKBOOK_INTEGER = 10**15  # spreadsheets store 15 digits of a number
MOST_TEXT = 10_000_000  # maximum characters of a sheet that is read as text
LARGE_SHEET_ADVICE = (
    "; a single cell far from the table enlarges the sheet. Delete the rows below and the columns"
    " next to the table, or save it as CSV."
)


@dataclass(frozen=True, kw_only=True)
class SheetFile:
    """One sheet of a workbook with several sheets.

    Attributes
    ----------
    path : path of the workbook.
    sheet : name of the sheet.

    Examples
    --------

    >>> SheetFile(path="survey.xlsx", sheet="2024").sheet
    '2024'
    """

    path: str | Path
    sheet: str

    def __post_init__(self) -> None:
        """Raise DataError for a file that is not a workbook."""
        if not str(self.path).lower().endswith(SHEET_ENDINGS):
            raise DataError(
                f"the file {quote_public(Path(self.path).name)} has no sheets. Leave the name of"
                " the sheet out, or give a workbook, whose name ends in one of"
                f" {', '.join(SHEET_ENDINGS)}"
            )


def sheet_names(path: Path, sheet: str | None = None) -> list[str]:
    """Return the column names of a sheet, its first row."""
    return list(map(_column_name, next(_rows(path, sheet), [])))


def sheet_batches(
    path: Path, names: Sequence[str], rows: int, sheet: str | None = None
) -> Iterator[Batch]:
    """Yield the named columns of a sheet; without `sheet`, of the only one that `_rows` accepts."""
    all_rows = _rows(path, sheet)
    head = list(map(_column_name, next(all_rows, [])))
    check_columns(head, names, quote=False)
    positions = [head.index(name) for name in names]
    # a row whose cells were deleted may still be in the file
    records = ([row[i] for i in positions] for row in all_rows if any(value != "" for value in row))
    limits = dict.fromkeys(names, MAX_WORKBOOK_INTEGER)
    return (
        replace(batch, float_limits=limits) for batch in rows_to_batches(records, len(names), rows)
    )


def visible_sheets(path: Path) -> list[str]:
    """Return the names of the visible non-empty sheets of a workbook.

    If there are none, return the first sheet; if the workbook has a single sheet, return that one.
    """
    with closing(_sheet_messages(path, None)) as messages:
        chosen: list[str] = next(messages)[0]
    return chosen


def sheet_text(path: Path, sheet: str | None = None, *, empty_rows: bool = False) -> str:
    """Return a sheet of a workbook as CSV, for public tables such as a data dictionary.

    Empty rows, and empty columns to the right, are left out. Numbers have their shortest exact
    form.

    Parameters
    ----------
    empty_rows : whether to write empty rows as empty lines, so that line numbers are row numbers.

    Raises
    ------
    DataError
        The workbook has several sheets and `sheet` is None, or the sheet does not exist, has merged
        cells or cannot be read.
    LimitExceeded
        The sheet has more than `MOST_TEXT` characters.
    """
    lines, characters, width = list[list[str]](), 0, 0
    for row in _rows(path, sheet, "save the one to be read as a separate file"):
        cells = list(map(_cell_text, row))
        filled = max((place for place, cell in enumerate(cells, 1) if cell), default=0)
        characters += sum(map(len, cells[:filled]))
        if characters > MOST_TEXT:
            raise LimitExceeded(
                f"the file {quote_public(path.name)} has more than {MOST_TEXT:,} characters. Remove"
                " rows or columns that are not needed."
            )
        if filled or empty_rows:
            width = max(width, filled)
            lines.append(cells[:filled])
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(
        [*cells, *[""] * (width - len(cells))] if cells else [] for cells in lines
    )
    return out.getvalue()


def _cell_text(value: Any) -> str:
    """Return a cell as the text that is compared with labels."""
    return value.strip() if isinstance(value, str) else text_of(value)


def _column_name(value: Any) -> str:
    """Return a header cell as a column name: "2019" for a number, not "2019.0"."""
    return header_name(value) if isinstance(value, str) else _cell_text(value)


def _sheet_messages(path: Path, sheet: str | None) -> Generator[Any]:
    return worker_messages(path, "python_calamine", SHEET, LARGE_SHEET_ADVICE, sheet=sheet)


def _rows(
    path: Path, sheet: str | None, advice: str = "choose one by SheetFile, or save it separately"
) -> Iterator[list[Any]]:
    """Yield the rows of a sheet, the header first.

    Without a name, it is the only sheet, the only visible non-empty one, or the first if all are
    hidden or empty.

    Parameters
    ----------
    advice : what to do if the workbook has several sheets; last part of the message.

    Raises
    ------
    DataError
        The sheet does not exist, several sheets could be meant, or the sheet has merged cells.
    """
    what, messages = f"the file {quote_public(path.name)}", _sheet_messages(path, sheet)
    with closing(messages):
        chosen, names = next(messages)
        if sheet is not None and len(chosen) != 1:
            raise DataError(
                f"{what} has no sheet {quote_public(sheet)}{near_matches(sheet, names)}; give the"
                " name of one"
            )
        if len(chosen) != 1:
            listed = ", ".join(map(quote_public, chosen[:MAX_LISTED_SHEETS])) + (
                ", ..." if len(chosen) > MAX_LISTED_SHEETS else ""
            )
            raise DataError(f"{what} has {len(chosen):,} sheets, {listed}; {advice}")
        if merged := next(messages):  # merged cells are empty except for the first
            raise DataError(
                f"{what} has merged cells in its {merged}; unmerge them and fill in every cell"
            )
        for rows in messages:
            yield from rows
