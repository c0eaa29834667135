"""Readers of Excel, Stata, SPSS and SAS files in a subprocess.

The parsers of these formats run in a separate process (`subprocess_worker`), so that a damaged or
very large file cannot crash the calling process. The worker sends JSON messages; bytes follow some
of them.

Stata, SPSS and SAS files contain value labels. A value that has a label is read as this label. A
value without a label is read as missing if the file declares the value as missing, and unchanged
otherwise. `draft_schema` derives a schema from the labels.

Workbooks are read as batches of the needed columns. A workbook with a public table can also be read
as CSV text.
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
from collections.abc import Generator, Iterator, Mapping, Sequence
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
from engine.workload.schema_tables import no_attribute

if TYPE_CHECKING:
    import pandas as pd


WORKER_SCRIPT = Path(__file__).with_name("subprocess_worker.py")
# exit codes of a worker that ran out of memory or was ended by the operating system for this reason
OUT_OF_MEMORY_CODES = {TOO_LARGE, -signal.SIGABRT, -9}


def worker_messages(
    path: Path, library: str, kind: str, too_large: str, **arguments: Any
) -> Generator[Any]:
    """Yield the messages of a worker process that reads a file.

    A message is a JSON value. If the worker sends bytes with the value, the pair (value, list of
    bytes objects) is yielded, otherwise only the value. Closing the generator ends the process.

    Parameters
    ----------
    path : file that the worker reads.
    library : package that the worker needs.
    kind : "sheet" or the name of a reader of pyreadstat.
    too_large : advice at the end of the message of LimitExceeded.
    arguments : keyword arguments of the reader in the worker.

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
        assert process.stdout is not None  # for type checkers: with PIPE it is a file
        try:
            while line := process.stdout.readline():
                value, lengths = json.loads(line)
                if value is None:  # the last message of a worker without errors
                    return
                payloads = [process.stdout.read(length) for length in lengths]
                if [len(payload) for payload in payloads] != lengths:
                    break
                yield (value, payloads) if payloads else value
            code = process.wait()
        # raised if the process ended before a line of JSON was complete
        except ValueError:
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
    "it contains dates or times. Declare an attribute of dates by hand, or leave the column out of"
    " the schema"
)
# a scale with at most this number of labels may have labels only at its ends and in its middle
MAX_SCALE_ENDS = 3
# display formats of Stata, SPSS and SAS for numbers that are dates or times
DATE_FORMAT = re.compile(
    r"%-?(t[cCdwmqhb]|d)|(A|E|S|J)?DATE\d|DATE$|Q?YR|MOYR|WKYR|DATETIME|D?TIME|YMDHMS|MTIME|(MMDD|DDMM)YY|YYMMDD|MONYY"
    r"|JULIAN|YYQ|[EB]8601|IS8601|TOD|WEEKDAT|WORDDAT|NLDAT"
)
# A SAS transport file is a sequence of records of this size. It does not store their number, so
# only an incomplete record reveals that the file is incomplete.
XPORT_RECORD_BYTES = 80


def draft_schema(path: str | Path) -> DraftSchema:
    """Draft a schema from the value labels of a Stata, SPSS or SAS file; no record is read.

    Every label of a column becomes a cell. If exactly one labelled value of the column is declared
    as missing, its cell also collects missing values. A column is left out if it contains dates, if
    it has no labels, or if its labels are ambiguous or do not cover all its values;
    `DraftSchema.reasons` contains the reasons.

    Raises
    ------
    DataError
        The file has another format than Stata, SPSS or SAS, or cannot be read.
    SchemaError
        No attribute can be drafted from any column.
    """
    file = Path(path)
    if file.suffix.lower() not in LABELLED_READERS:
        raise DataError(
            f"the name of the file {quote_public(file.name)} has no ending of a format with value"
            f" labels; give a file that ends in one of {', '.join(LABELLED_READERS)}"
        )
    meta = _meta(file)
    attributes = []
    reasons = _column_problems(meta)
    for name in meta.column_names:
        try:
            if name not in reasons:
                attributes.append(_attribute(meta, name))
        except SchemaError as error:
            reasons[name] = str(error)
    if not attributes and not any(meta.variable_value_labels.values()):
        raise SchemaError(
            f"no column of {quote_public(file.name)} has value labels; create the schema by hand"
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
    """Return column -> reason for the columns of a file from which no attribute can be drafted.

    These are columns with dates or ambiguous labels. The result is empty for files of other formats
    than Stata, SPSS and SAS.
    """
    return (
        _column_problems(_meta(path))
        if path.suffix.lower() in LABELLED_READERS and path.is_file()
        else {}
    )


def _column_problems(meta: Any) -> dict[str, str]:
    """Return column -> reason for the columns with dates or ambiguous labels."""
    formats = meta.original_variable_types
    problems = {
        name: DATES for name in meta.column_names if DATE_FORMAT.match(formats.get(name) or "")
    }
    for name in meta.column_names:
        labels = _label_texts(meta, name)
        is_missing = {value: _is_missing(meta, name, value) for value in labels}
        if problem := _numeric_label_problem(labels) or _shared_label_problem(labels, is_missing):
            problems[name] = problem
    return problems


def _shared_label_problem(labels: Mapping[Any, str], is_missing: Mapping[Any, bool]) -> str:
    """Return a message if several values of a column have the same label; otherwise "".

    Several missing values may have the same label. ``labels`` maps each labelled value to its
    label. ``is_missing`` maps each labelled value to whether the file declares it as missing.
    """
    label_counts = Counter(labels.values())
    shared = [
        label
        for value, label in labels.items()
        if label_counts[label] > 1 and not is_missing[value]
    ]
    if not shared:
        return ""
    values = ", ".join(text_of(value) for value, label in labels.items() if label == shared[0])
    return (
        f"the values {values} have the same label, {quote_public(shared[0])}, and would be counted"
        " in one cell. Change the labels in the file, or declare the attribute by hand"
    )


def _numeric_label_problem(labels: Mapping[Any, str]) -> str:
    """Return a message if a label is a number that may be an unlabelled value; otherwise "".

    For example, if value 1 has the label "7", a record "7" may contain value 1, or value 7 without
    a label. Only numbers between the smallest and the largest labelled value are taken for
    unlabelled values. ``labels`` maps each labelled value of a column to its label.
    """
    values = [value for value in labels if not isinstance(value, str)]
    if not values:
        return ""
    ambiguous_values = [
        value
        for value, label in labels.items()
        if (number := number_of(label)) is not None
        and number not in labels
        and min(values) < number < max(values)
    ]
    if not ambiguous_values:
        return ""
    value = ambiguous_values[-1]
    return (
        f"the label of the value {text_of(value)} is {quote_public(labels[value])}, which may also"
        " be a value without a label. Change the labels in the file, or declare the attribute by"
        " hand"
    )


def _label_texts(meta: Any, name: str) -> dict[Any, str]:
    """Return a mapping from each labelled value of a column to its label, sorted by value."""
    ordered = sorted(
        meta.variable_value_labels.get(name, ()), key=lambda value: (str(type(value)), value)
    )
    return {
        value: text_of(text)
        for value in ordered
        if (text := scalar(_label(meta, name, value))) is not None
    }


def _attribute(meta: Any, name: str) -> Attribute:
    """Draft the attribute of a labelled column; raise SchemaError with the reason if impossible."""
    texts = _label_texts(meta, name)
    if not texts:
        raise SchemaError("the column has no value labels. Declare the attribute by hand")
    missing_values = [value for value in texts if _is_missing(meta, name, value)]
    present = [value for value in texts if value not in missing_values]
    # labelled values that are not codes of missing values such as 99
    substantive = [value for value in present if not _looks_missing(value, present)]
    if not substantive:
        raise SchemaError(
            "all values with labels are missing values, or are probably codes of missing values."
            " Declare bins or codes for the other values by hand"
        )
    if len(texts) < 2:
        raise SchemaError("only one value of the column has a label. Declare the attribute by hand")
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
    """Return whether a labelled value is probably a code of a missing value.

    The result is True for negative numbers, and for numbers in `COMMON_MISSING_CODES` that do not
    continue a scale. For example, 7 continues the scale 1, 2, ..., 6, but not the scale 1, 2, 3.

    Parameters
    ----------
    labelled : labelled values of the column that the file does not declare as missing.
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
    """Return the number of unlabelled integers between the smallest and largest labelled value.

    For example, the scale 1 = bad, 5 = good has the three unlabelled integers 2 to 4. Only two or
    three integers are examined, which may be the ends, or the ends and the middle, of a scale. For
    all other `values` the result is 0.
    """
    numbers = [value for value in values if isinstance(value, (int, float))]
    are_integers = len(numbers) == len(values) and all(n == int(n) for n in numbers)
    if not are_integers or not 2 <= len(numbers) <= MAX_SCALE_ENDS:
        return 0
    return int(max(numbers) - min(numbers)) + 1 - len(numbers)


def labelled_columns(path: Path) -> dict[str, bool | None]:
    """Return a mapping from each column of a labelled file to whether it is read as numbers.

    A column of numbers is read as numbers if only values that the file declares as missing have
    labels. Otherwise labels are read in place of numbers.
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
    """Yield the named columns of a Stata, SPSS or SAS file; labels replace values that have one.

    A batch has at most ``rows`` rows.
    """
    what = f"the file {quote_public(path.name)}"
    with closing(_labelled_messages(path, names=list(names), rows=rows)) as messages:
        meta = _meta_of(path, next(messages))
        check_columns(meta.column_names, names)
        if path.suffix.lower() == ".xpt" and path.stat().st_size % XPORT_RECORD_BYTES:
            raise DataError(
                f"{what} is incomplete: it ends within a record of {XPORT_RECORD_BYTES} bytes. Copy"
                " the complete file again"
            )
        limits = {name: _float_limit(meta, name) for name in names}
        clocks = _clocks(path, meta, names)
        n_rows = 0
        for (count, kinds), payloads in messages:
            n_rows += count
            # if no column is requested, the worker sends one column so that rows can be counted
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
    """Return a column in which each value is replaced by the result of `_label` for this value."""
    import pandas as pd

    from engine.records.batches import array_of

    codes, distinct = pd.factorize(values)
    texts = [_label(meta, name, v) for v in distinct]
    labelled = pd.Series([*texts, None], dtype=object)
    return array_of(labelled.iloc[codes].reset_index(drop=True))


def _float_limit(meta: Any, name: str) -> int:
    """Return the number up to which the floats of a column represent every integer.

    Stata has 32-bit floats. SAS stores doubles in 3 to 8 bytes and cuts off the last bytes.
    """
    if meta.readstat_variable_types[name] == "float":
        return FLOAT_LIMITS[4]
    width: int = meta.variable_storage_width[name]
    if meta.readstat_variable_types[name] == "double" and 3 <= width < 8:
        # Of the 8 * width bits, 1 is the sign and 11 are the exponent. The significand has the
        # other 8 * width - 12 bits and a leading 1 that is not stored.
        return 1 << (8 * width - 11)
    return FLOAT64_INTEGER_LIMIT


def _label(meta: Any, name: str, value: Any) -> Any:
    """Return the label of a value.

    Without a label, the result is None if the file declares the value as missing, and the value
    itself otherwise.
    """
    text = meta.variable_value_labels.get(name, {}).get(value, "")
    if isinstance(text, str) and not text.strip():
        return None if _is_missing(meta, name, value) else value
    return text


def _is_missing(meta: Any, name: str, value: Any) -> bool:
    """Return whether the file declares a value, or a range that contains the value, as missing."""
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
    """Convert the metadata message of a labelled file to an object.

    In the message, labels are pairs (value, label), because keys in JSON cannot be numbers.
    """
    labels = {name: dict(pairs) for name, pairs in fields.pop("labels").items()}
    if not all(isinstance(name, str) for name in fields["column_names"]):
        raise DataError(
            f"the file {quote_public(path.name)} has a column without a name, so it is damaged or"
            " incomplete; save it again"
        )
    return SimpleNamespace(**fields, variable_value_labels=labels)


def _values(kind: str, payload: bytes) -> pd.Series:
    """Decode a column that the worker sent.

    ``kind`` is `JSON`, or the NumPy type of the numbers in ``payload``.
    """
    import pandas as pd

    return (
        pd.Series(json.loads(payload), dtype=object)
        if kind == JSON
        else pd.Series(np.frombuffer(payload, kind))
    )


def _labelled_messages(path: Path, **arguments: Any) -> Generator[Any]:
    """Yield the messages of the worker about a labelled file: first the metadata, then the rows."""
    reader = LABELLED_READERS[path.suffix.lower()]
    return worker_messages(
        path, "pyreadstat", reader, "; save it as CSV.", options=_missing_options(path), **arguments
    )


def _missing_options(path: Path) -> dict[str, bool]:
    """Return the options with which pyreadstat does not replace declared missing values by NaN.

    The result is empty for .por and .xpt files, whose readers do not have such an option.
    """
    return {} if path.suffix.lower() in (".por", ".xpt") else {"user_missing": True}


SHEET_ENDINGS = (".xlsx", ".xls", ".ods")
MAX_LISTED_SHEETS = 8  # largest number of sheets that an error message names
MAX_WORKBOOK_INTEGER = 10**15  # spreadsheets store only 15 digits of a number
MOST_TEXT = 10_000_000  # largest number of characters of a sheet that is read as text
LARGE_SHEET_ADVICE = (
    "; a single cell far from the table enlarges the sheet. Delete the rows below and the columns"
    " next to the table, or save it as CSV."
)


@dataclass(frozen=True, kw_only=True)
class SheetFile:
    """One sheet of a workbook.

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
    """Return the column names of a sheet, which are in its first row.

    ``sheet`` is its name or None, see `_sheet_rows`.
    """
    return list(map(_column_name, next(_sheet_rows(path, sheet), [])))


def sheet_batches(
    path: Path, names: Sequence[str], rows: int, sheet: str | None = None
) -> Iterator[Batch]:
    """Yield the named columns of a sheet in batches of at most ``rows`` rows.

    If ``sheet`` is None, at most one visible sheet may contain cells; see `_sheet_rows`.
    """
    all_rows = _sheet_rows(path, sheet)
    head = list(map(_column_name, next(all_rows, [])))
    check_columns(head, names, quote=False)
    positions = [head.index(name) for name in names]
    # rows without values are skipped: a file may still contain rows whose cells were deleted
    records = ([row[i] for i in positions] for row in all_rows if any(value != "" for value in row))
    limits = dict.fromkeys(names, MAX_WORKBOOK_INTEGER)
    return (
        replace(batch, float_limits=limits) for batch in rows_to_batches(records, len(names), rows)
    )


def visible_sheets(path: Path) -> list[str]:
    """Return the names of the visible sheets of a workbook that are not empty.

    If the workbook has only one sheet, or if all sheets are hidden or empty, return the first one.
    """
    with closing(_sheet_messages(path, None)) as messages:
        chosen: list[str] = next(messages)[0]
    return chosen


def sheet_text(path: Path, sheet: str | None = None, *, empty_rows: bool = False) -> str:
    """Return a sheet of a workbook as CSV, for public tables such as a data dictionary.

    Empty columns to the right are left out. Numbers are written with the fewest digits that
    determine them.

    Parameters
    ----------
    empty_rows : whether empty rows are written as empty lines, so that line numbers equal row
        numbers. With False, empty rows are left out.

    Raises
    ------
    DataError
        `sheet` is None and several visible sheets have values; or the sheet does not exist, has
        merged cells or cannot be read.
    LimitExceeded
        The sheet has more than `MOST_TEXT` characters.
    """
    lines = list[list[str]]()
    characters = 0
    width = 0
    for row in _sheet_rows(path, sheet, "save the one to be read as a separate file"):
        cells = list(map(_cell_text, row))
        # number of cells up to the last one that is not empty
        filled = max((column for column, cell in enumerate(cells, 1) if cell), default=0)
        characters += sum(map(len, cells[:filled]))
        if characters > MOST_TEXT:
            raise LimitExceeded(
                f"a sheet of {quote_public(path.name)} has more than {MOST_TEXT:,} characters."
                " Remove rows or columns that are not needed."
            )
        if filled or empty_rows:
            width = max(width, filled)
            lines.append(cells[:filled])
    # all lines have the same number of fields, except for empty lines, which have none
    for cells in lines:
        if cells:
            cells.extend([""] * (width - len(cells)))
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(lines)
    return out.getvalue()


def _cell_text(value: Any) -> str:
    """Return the value of a cell as the text that is compared with labels."""
    return value.strip() if isinstance(value, str) else text_of(value)


def _column_name(value: Any) -> str:
    """Return a cell of the header as a column name; the number 2019.0 becomes "2019"."""
    return header_name(value) if isinstance(value, str) else _cell_text(value)


def _sheet_messages(path: Path, sheet: str | None) -> Generator[Any]:
    return worker_messages(path, "python_calamine", SHEET, LARGE_SHEET_ADVICE, sheet=sheet)


def _sheet_rows(
    path: Path, sheet: str | None, advice: str = "choose one by SheetFile, or save it separately"
) -> Iterator[list[Any]]:
    """Yield the rows of a sheet, starting with the header.

    Parameters
    ----------
    sheet : name of the sheet. With None, it is the only sheet of the workbook, or the only visible
        sheet that is not empty, or the first sheet if all are hidden or empty.
    advice : end of the message if several visible sheets are not empty: what to do.

    Raises
    ------
    DataError
        The sheet does not exist, no name is given and several visible sheets are not empty, or the
        sheet has merged cells.
    """
    what = f"the file {quote_public(path.name)}"
    messages = _sheet_messages(path, sheet)
    # The worker sends the names of the candidates and of all visible sheets, then where the merged
    # cells are, then lists of rows.
    with closing(messages):
        chosen, names = next(messages)
        if sheet is not None and len(chosen) != 1:
            raise DataError(
                f"{what} has no sheet {quote_public(sheet)}{near_matches(sheet, names)}; give the"
                " name of a sheet of this file"
            )
        if len(chosen) != 1:
            listed = ", ".join(map(quote_public, chosen[:MAX_LISTED_SHEETS])) + (
                ", ..." if len(chosen) > MAX_LISTED_SHEETS else ""
            )
            raise DataError(
                f"{what} has {len(chosen):,} visible sheets with values, {listed}; {advice}"
            )
        # in a range of merged cells only the first cell has a value; the others would be read as
        # empty
        if merged := next(messages):
            raise DataError(
                f"{what} has merged cells in its {merged}; unmerge them and fill in every cell"
            )
        for rows in messages:
            yield from rows
