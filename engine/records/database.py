"""Counting inside databases: sources by name, encoding expressions, GROUP BY, cancellation.

A column of a database -> cell codes of one attribute, as an expression: what `encoding` says, value for value.

Numbers are compared with constants that no reader of SQL can round: whole numbers, and fractions as a quotient of two
of them; decimals are whole numbers of their last place.  Texts are compared by their bytes, because a database may take
"f" for "F".  Columns of few distinct values that no rule fits, and texts that spell numbers, are recoded by the rule
for one value.  What none of this serves is not recoded there, and its rows travel.

Questions to a database that somebody may stop while they run, however long they take.

Whoever hears of progress is asked again and again, in a thread beside the question, whether it shall go on; if not, the
database is told to let go of it, and what was said is raised where the question was asked.

The questions to a database: how many rows are refused and why, and how many lie in each cell.

All answers are of the same rows: they come from a temporary table of codes, or from a single statement where none can
be made.  Otherwise a row that changes between two questions would count in different cells of two tables.

Where a person column caps rows, those of persons with more rows than count travel, as codes, for which of them count is
decided by the rule of `people`; all others stay.  This takes several questions, so without a temporary table all rows
travel, once.

Tables that the settings of a machine name, so that people choose a name and nobody types a secret.

The variable DP_WORKBENCH_SOURCES holds the path of a TOML file, a section a table:

    [census]
    address = "postgres://reader:${CENSUS_PASSWORD}@db.example.org/census"
    table = "people"
    database = "public"

``address`` is one that `ibis.connect` takes; ``${NAME}`` stands for a variable of the environment, so that the file
need not hold secrets either (put in as it is: a password with / or # in it must be percent-encoded there).
``database`` is the schema or catalogue of the table, where it is not the usual one.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import threading
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import date, timedelta
from decimal import Decimal
from fractions import Fraction
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from engine._format import near_matches, shown
from engine.errors import DataError
from engine.progress import Listener, Progress, listener
from engine.records.batches import check_columns, needed, tried
from engine.records.contribution_bounding import NOBODY
from engine.records.counts import LARGE_COUNT, note
from engine.records.encoding import FRACTION, MISSING, OUTSIDE, REASONS, UNSUPPORTED, Encoder
from engine.records.marginal_lattice import Names
from engine.records.spark import NOT_FOUND, is_spark_table, spark_answer, spark_kinds
from engine.workload import Schema
from engine.workload.calendar import MAX_YEAR

MOST_CASES = 1_000  # of one expression, and distinct values that are looked at one by one
MOST_PLACES = 18  # of decimals, so that whole numbers of their last place have 64 bits
WITH_HEX = ("duckdb", "pyspark")  # where hex(text) gives the bytes of a text
WITH_DATES = ("duckdb", "postgres", "pyspark")  # where a column of dates holds dates only
ANY_TYPE = ("sqlite",)  # where a column holds values of other types than its own
WITH_ZONES = ("duckdb", "postgres")  # where timezone('UTC', moment) gives the time in UTC
CHANGED = -1 - len(REASONS)  # code of a value that was not there yet when distinct values were looked up
_LARGE = 2**63


class NotThereError(Exception):
    """The database cannot tell which cell a value belongs to; the rows have to travel."""


def code_of(column: Any, encoder: Encoder, distinct: Callable[[Any, int], list[str | None]]) -> Any:
    """Return an expression of the codes of a column, or raise NotThereError.

    `distinct` returns the distinct values of a column of texts if they are at most so many, or more than that.
    """
    import ibis

    attribute, kind = encoder.attribute, column.type()
    if column.get_backend().name in ANY_TYPE:
        raise NotThereError
    cases: list[tuple[Any, int]] = [(column.isnull(), encoder.missing)]
    rest = OUTSIDE if attribute.other is None else encoder.one(attribute.other)
    if kind.is_uint64():
        column = column.cast("decimal(20, 0)")  # which can be compared with numbers below 0
    if kind.is_null():
        return _integer(encoder.missing).cast(np.dtype(encoder.dtype).name)
    if attribute.is_dated:
        added, rest = _date_cases(column, encoder, distinct)
        cases += added
    elif kind.is_temporal() or kind.is_interval() or kind.is_array() or kind.is_struct() or kind.is_map():
        rest = UNSUPPORTED
    elif kind.is_string() and attribute.labels is not None:
        known = {"": encoder.missing} | encoder.texts
        rest = _chosen(in_bytes(column), {text.encode().hex().upper(): code for text, code in known.items()}, rest)
    elif kind.is_boolean():
        cases.append((column, encoder.one(True)))
        rest = encoder.one(False)
    elif kind.is_integer() and attribute.labels is not None:
        whole = {label: int(label) for label in encoder.texts if _is_whole(label)}
        cases += [(column == number, encoder.one(number)) for number in whole.values()]
    elif kind.is_integer():
        missing = [int(number) for number in encoder.missing_decimals if number == number.to_integral_value()]
        cases += [(column == number, encoder.missing) for number in missing if abs(number) < _LARGE]
        cases += _cell_conditions(column, encoder, *_steps([Fraction(edge) for edge in attribute.edges or ()]))
        rest = _last(column, encoder)
    elif kind.is_floating() and attribute.labels is not None:
        column = column.cast("float64")
        cases.append((column.isnan(), encoder.missing))
        cases += [(column == _exact(number), code) for number, code in _spelled(encoder)]
    elif kind.is_floating():
        column = column.cast("float64")
        cases.append((column.isnan(), encoder.missing))
        cases += [(column == _exact(number), encoder.missing) for number in encoder.missing_floats]
        if encoder.needs_whole:
            # an infinite number is outside, and only a finite one may be no whole number
            finite = (column > -_exact(2.0**62)) & (column < _exact(2.0**62))
            cases.append((finite & (column.floor() != column), FRACTION))
        edges = [_exact(edge) for edge in attribute.edges or ()]
        cases += _cell_conditions(column, encoder, edges, *edges[-1:])
        rest = _last(column, encoder)
    elif kind.is_decimal() and attribute.labels is None and _is_exact(column):
        cases += _decimal_cases(column, encoder)
        rest = _last(column, encoder)
    elif kind.is_decimal():
        texts = column.cast("string")
        rest = _chosen(texts, _by_distinct(texts, lambda text: encoder.one(Decimal(text)), distinct), CHANGED)
    elif kind.is_string():
        texts = in_bytes(column)
        rest = _chosen(texts, _by_distinct(texts, lambda text: encoder.one(bytes.fromhex(text)), distinct), CHANGED)
    else:
        raise NotThereError
    if len(cases) > MOST_CASES + 4:
        raise NotThereError
    found = ibis.cases(*((test, _integer(code)) for test, code in cases), else_=_integer(rest))
    return found.cast(np.dtype(encoder.dtype).name)


def _date_cases(
    column: Any, encoder: Encoder, distinct: Callable[[Any, int], list[Any]]
) -> tuple[list[tuple[Any, Any]], Any]:
    """What a value must be to lie in a cell of dates, or in none, and the code of every other value."""
    import ibis

    attribute, kind, name = encoder.attribute, column.type(), column.get_backend().name
    if kind.is_string():
        texts = in_bytes(column)
        codes = _by_distinct(texts, lambda text: encoder.one(bytes.fromhex(text)), distinct)
        return [], _chosen(texts, codes, CHANGED)
    if kind.is_integer():
        values = [value for value in _few(column, distinct) if value is not None]
        return [(column == value, encoder.one(value)) for value in values], CHANGED
    if kind.is_boolean():
        return [], encoder.one(True)
    if not (kind.is_date() or kind.is_timestamp()):
        if kind.is_numeric() or kind.is_binary():
            raise NotThereError
        return [], UNSUPPORTED
    if name not in WITH_DATES:
        raise NotThereError
    if kind.is_timestamp() and kind.timezone is not None:
        if name not in WITH_ZONES:
            raise NotThereError
        column = _functions()["timezone"]("UTC", column)  # the time in UTC, without a zone
    # comparisons come first: there are dates that have no year, such as infinity
    literal = ibis.date if kind.is_date() else lambda day: ibis.timestamp(f"{day}T00:00:00")
    first, last = attribute.days(0)[0], attribute.days(attribute.date_cells - 1)[1]
    step = timedelta(days=1)
    cases = [
        ((column >= literal(day)) & (column < literal(day + step)), encoder.missing)
        for day in encoder.missing_days
        if day.year <= MAX_YEAR
    ]
    if len(cases) < len(encoder.missing_days):
        raise NotThereError
    cases.append((column < literal(first), encoder.one(first - step) if first > date.min else OUTSIDE))
    cases.append((column >= literal(last + step), encoder.one(last + step)))
    day = column if kind.is_date() else column.date()
    if attribute.unit == "day":
        return cases, day.delta(ibis.date(first), unit="day").cast("int64")
    year, month = day.year().cast("int64"), day.month().cast("int64")
    number = {
        "year": year,
        "quarter": year * 4 + ibis.cases((month < 4, 0), (month < 7, 1), (month < 10, 2), else_=3),
        "month": year * 12 + month - 1,
    }[attribute.unit or ""]
    return cases, number - attribute.first_cell


def _few(column: Any, distinct: Callable[[Any, int], list[Any]]) -> list[Any]:
    """The distinct values of a column of few."""
    values = distinct(column, MOST_CASES)
    if len(values) > MOST_CASES:
        raise NotThereError
    return values


def _integer(code: Any) -> Any:
    import ibis

    return ibis.literal(code, "int64") if isinstance(code, int) else code


def in_bytes(column: Any) -> Any:
    """A column of texts as the hexadecimal digits of their bytes, which no collation takes for others."""
    name, call = column.get_backend().name, _functions()
    if name in WITH_HEX:
        return call["hex"](column)
    if name != "postgres":
        raise NotThereError
    return call["encode"](call["convert_to"](as_text(column), "UTF8"), "hex").upper()


def as_text(column: Any) -> Any:
    """Texts of PostgreSQL as type text: char(n) without the blanks that fill it up, enumerations as written."""
    return _functions()["text"](column)


@cache
def _functions() -> dict[str, Callable[..., Any]]:
    """Functions that databases have and Ibis does not name."""
    import ibis

    def hex(text: str) -> str: ...  # type: ignore[empty-body]
    def text(value: str) -> str: ...  # type: ignore[empty-body]
    def convert_to(text: str, encoding: str) -> bytes: ...  # type: ignore[empty-body]
    def encode(content: bytes, form: str) -> str: ...  # type: ignore[empty-body]
    def timezone(zone: str, moment): ...  # type: ignore[no-untyped-def]

    functions = {made.__name__: ibis.udf.scalar.builtin(made) for made in (hex, text, convert_to, encode)}
    functions["timezone"] = ibis.udf.scalar.builtin(timezone, signature=((str, None), "timestamp"))
    return functions


def _chosen(column: Any, codes: dict[str, int], rest: Any) -> Any:
    """The code of each of some texts, and what all others have."""
    if len(codes) > MOST_CASES + 1:
        raise NotThereError
    return column.cases(*((text, _integer(code)) for text, code in codes.items()), else_=_integer(rest))


def _cell_conditions(column: Any, encoder: Encoder, edges: list[Any], last: Any = None) -> list[tuple[Any, Any]]:
    """What a number must be to lie in each cell but the last, the ones outside first; `last` is the largest inside."""
    attribute = encoder.attribute
    if attribute.edges is None:
        return [((column < 0) | (column >= attribute.size), OUTSIDE)]
    outside = [] if attribute.clip else [((column < edges[0]) | (column > last), OUTSIDE)]
    return [*outside, *((column < edge, cell) for cell, edge in enumerate(edges[1:-1]))]


def _last(column: Any, encoder: Encoder) -> Any:
    """The code of a number that lies in no cell before: the last cell, or the number itself."""
    return column.cast("int64") if encoder.attribute.edges is None else encoder.attribute.size - 1


def _steps(edges: Sequence[Fraction]) -> tuple[list[int], int | None]:
    """The least whole number from each edge on, and the largest that is not past the last one.

    A whole number is below the one if it is below the other.
    """
    if any(abs(edge) >= _LARGE for edge in edges):
        raise NotThereError
    return [math.ceil(edge) for edge in edges], math.floor(edges[-1]) if edges else None


def _is_exact(column: Any) -> bool:
    """Whether a column of decimals can be compared with any number: where it is as long as it has to be, or short."""
    return column.get_backend().name == "postgres" or (column.type().precision or 99) <= MOST_PLACES


def _decimal_cases(column: Any, encoder: Encoder) -> list[tuple[Any, Any]]:
    """What a decimal must be to lie in each cell but the last."""
    import ibis

    edges, cases = encoder.attribute.edges, []
    if column.get_backend().name == "postgres":  # where decimals may be no number
        cases.append((column == ibis.literal("NaN").cast("decimal"), encoder.missing))
    cases += [(found, encoder.missing) for found in _missing_decimals(column, encoder)]
    if encoder.needs_whole:
        cases.append((column.floor() != column, FRACTION))
    if edges is None:
        return cases + _cell_conditions(column, encoder, [])
    if column.get_backend().name == "postgres":
        exact = [ibis.literal(format(Decimal(edge), "f")).cast("decimal") for edge in edges]
        return cases + _cell_conditions(column, encoder, exact, exact[-1])
    places = 10 ** column.type().scale
    # beyond every number of so many places it is all one where an edge lies
    far = Fraction(10**MOST_PLACES)
    steps, last = _steps([max(-far, min(far, Fraction(edge) * places)) for edge in edges])
    return cases + _cell_conditions((column * places).cast("int64"), encoder, steps, last)


def _missing_decimals(column: Any, encoder: Encoder) -> list[Any]:
    """Tests whether a decimal is one of the numbers that mean missing."""
    import ibis

    numbers = encoder.missing_decimals
    if column.get_backend().name == "postgres":
        return [column == ibis.literal(format(number, "f")).cast("decimal") for number in numbers]
    places = 10 ** column.type().scale
    whole = [int(number * places) for number in numbers if (number * places) == (number * places).to_integral_value()]
    return [(column * places).cast("int64") == number for number in whole if abs(number) < _LARGE]


def _exact(number: float) -> Any:
    """A number as the quotient of two whole ones, which no reader rounds."""
    import ibis

    over, under = float(number).as_integer_ratio()
    if max(abs(over), under) >= _LARGE:
        raise NotThereError
    whole = ibis.literal(over, "int64").cast("float64")
    return whole if under == 1 else whole / ibis.literal(under, "int64").cast("float64")


def _is_whole(label: str) -> bool:
    """Whether a label is the text of a whole number of 64 bits."""
    if not label.removeprefix("-").isdecimal() or not label.isascii() or len(label) > 20:
        return False
    return str(int(label)) == label and -_LARGE <= int(label) < _LARGE


def _spelled(encoder: Encoder) -> list[tuple[float, int]]:
    """The numbers whose texts are labels, with their codes."""
    found = []
    for label, code in encoder.texts.items():
        try:
            number = float(label)
        except ValueError:
            continue
        if math.isinf(number):
            raise NotThereError
        if not math.isnan(number) and encoder.one(number) == code:
            found.append((number, code))
    return found


def _by_distinct(
    texts: Any, one: Callable[[str], int], distinct: Callable[[Any, int], list[str | None]]
) -> dict[str, int]:
    """The code of each distinct text, by the rule for one."""
    return {value: one(value) for value in _few(texts, distinct) if value is not None}


EVERY = 0.2  # seconds between two signs of life, and between two tries to stop
ASKING = "counting in the database"


@contextmanager
def stoppable(backend: Any, heard: Listener | None) -> Iterator[Heard | None]:
    """Tell progress while a database works, by what is given here, and raise what the listener raises.

    The listener is called from a thread of its own until the block ends, and after that from the caller's.
    """
    if heard is None:
        yield None
        return
    watch = Heard(heard)
    with _stopper(backend) as stop:
        thread = threading.Thread(target=watch.run, args=(stop,), daemon=True)
        thread.start()
        try:
            yield watch
        except Exception:
            if watch.said is None:
                raise
        finally:
            watch.ended.set()
            thread.join()
    if watch.said is not None:
        raise watch.said
    heard(*watch.latest)


class Heard:
    """Who hears of progress, what was told last, how many signs of life were given since the start, and what was said.

    Called like a listener, with what is to be told from now on.
    """

    def __init__(self, heard: Listener) -> None:
        self.heard = heard
        self.latest, self.signs = (0.0, ASKING), 0
        self.said: BaseException | None = None
        self.ended = threading.Event()

    def __call__(self, fraction: float, text: str) -> None:
        self.latest = (fraction, text)
        if self.said is not None:
            raise self.said

    def run(self, stop: Callable[[], object]) -> None:
        while not self.ended.wait(EVERY):
            self.signs += 1
            if self.said is None:
                try:
                    self.heard(*self.latest)
                except BaseException as said:
                    self.said = said
            if self.said is not None:
                # again and again: what comes between two questions stops neither
                with suppress(Exception):
                    stop()


@contextmanager
def _stopper(backend: Any) -> Iterator[Callable[[], object]]:
    """What makes a database let go of what this thread asks it; nothing does for those that have no such call."""
    if backend.name == "pyspark":
        context, tag = backend._session.sparkContext, f"counted-{threading.get_ident()}"
        with suppress(Exception):  # a session that has ended says so when it is asked
            context.addJobTag(tag)
        try:
            yield lambda: context.cancelJobsWithTag(tag)
        finally:
            with suppress(Exception):
                context.removeJobTag(tag)
    elif backend.name == "postgres":
        yield backend.con.cancel_safe
    else:
        yield getattr(getattr(backend, "con", None), "interrupt", lambda: None)


SQL = {"int32": "INTEGER", "int64": "BIGINT"}
TOGETHER, FIRST = 32, 8  # grouped sets of one query at most, and of the first one
NEWS = 4  # signs of life in one query, of a table that is kept, after which fewer sets are asked for at once
MOST_ANSWERS = 1_000  # numbers of one row; PostgreSQL has at most 1,664
KEEPING = ("duckdb", "postgres", "pyspark")  # where a table of codes is kept: by a statement of ours, or by Ibis
GROUPING_SETS = ("duckdb", "postgres", "pyspark", "snowflake", "trino")
WHAT = "the database"
TABLE_CHANGED = "the table changed while it was counted; count a copy"
_PROBLEMS = {
    ("permission", "privilege", "denied", "forbidden"): "does not let you read this table; ask who keeps it",
    ("interrupt", "cancel", "timeout"): "stopped before the counts were complete; ask again",
    ("connection", "operational", "interface", "ioexception", "closed"): "cannot be reached; check the connection",
    ("catalog", "undefined", "binder", "notfound", *NOT_FOUND): "has another table, or other columns, than before",
}
MAX_STATEMENT_PARTS = 400  # of one statement; SQLite has at most 500
# the bytes of texts that `identifiers` changes or refuses: zeros after the point, or a signed exponent
NUMBER_IN_BYTES = "^(2B|2D)?(3[0-9])+(2E(30)+|((2C|2E)(3[0-9])*)?(45|65)2B(3[0-9])+)$"
_REFUSED = range(MISSING, MISSING - len(REASONS), -1)
_PERSON, _KEY, _ROWS, _GOOD = "person", "key", "counted", "good"
_Asked = tuple[Names, list[str]]  # a set, and the columns of its codes
_Cells = tuple[Names, np.ndarray, np.ndarray]  # a set, its cells by their number, and the rows in each


def is_table(data: Any) -> bool:
    """Whether data are a table of Ibis."""
    return type(data).__module__.startswith("ibis.") and hasattr(data, "get_backend")


def count_there(tally: Any, data: Any, progress: Progress | None) -> bool:
    """Fill a tally with the counts of a table of Ibis; False where its rows have to travel instead."""
    with stoppable(data.get_backend(), listener(progress)) as heard:
        return _counted_there(tally, data, heard)


def fit_there(
    data: Any, encoders: Sequence[Encoder], few: int, progress: Progress | None
) -> list[tuple[dict[int, int], dict[Any, int]]] | None:
    """Rows of a table of Ibis by the code of each column, all cells as 0, and its most frequent values of no cell.

    None where its rows have to travel to tell.
    """
    import ibis

    names = [encoder.attribute.name for encoder in encoders]
    check_columns(list(data.columns), names)
    with stoppable(data.get_backend(), listener(progress)) as heard:
        try:
            codes = [code_of(data[name], encoder, _distinct) for name, encoder in zip(names, encoders, strict=True)]
            codes = [ibis.ifelse(code == CHANGED, OUTSIDE, code) for code in codes]
        except NotThereError:
            return None
        asked = {f"r{i}_{c}": _total((code == c).ifelse(1, 0)) for i, code in enumerate(codes) for c in _REFUSED}
        found = _answers(data, {"rows": data.count()} | asked)
        out = []
        for i, (name, code) in enumerate(zip(names, codes, strict=True)):
            rows = {c: found[f"r{i}_{c}"] for c in _REFUSED if found[f"r{i}_{c}"]}
            rows[0] = found["rows"] - sum(rows.values())
            kind, values = data[name].type(), {}
            if any(c < MISSING for c in rows) and not (kind.is_array() or kind.is_struct() or kind.is_map()):
                odd = data.filter(code < MISSING).group_by(value=data[name]).aggregate(**{_ROWS: ibis._.count()})
                most = _fetched(odd.order_by(ibis.desc(_ROWS)).limit(few))
                values = dict(zip(most["value"].to_pylist(), most[_ROWS].to_pylist(), strict=True))
            out.append((rows, values))
            if heard is not None:
                heard((i + 1) / len(names), "looking at columns and values in the database")
    return out


def _counted_there(tally: Any, data: Any, heard: Heard | None) -> bool:
    import ibis

    encoders = tally.encoders
    if tally.cap is not None:
        # which rows of a person count depends on all columns of the schema
        encoders = [Encoder(attribute=attribute) for attribute in tally.schema.attributes]
    names = [encoder.attribute.name for encoder in encoders]
    check_columns(list(data.columns), [*names, *([tally.cap.column] if tally.cap is not None else [])])
    try:
        codes = {f"c{i}": code_of(data[e.attribute.name], e, _distinct) for i, e in enumerate(encoders)}
        people = {} if tally.cap is None else _person(data[tally.cap.column], tally.cap.column)
    except NotThereError:
        return False
    if not codes:
        codes = {"c": ibis.literal(0, "int64")}
    columns = [f"c{names.index(name)}" for name in tally.names]
    coded = data.select(**codes, **people)
    coded = coded.mutate(**{_GOOD: ibis.and_(*(coded[c] >= 0 for c in columns)) if columns else ibis.literal(True)})
    with _snapshot(coded) as (table, answer_sets):
        if answer_sets is None:
            if tally.cap is not None or 1 + len(columns) + len(tally.tables) > MAX_STATEMENT_PARTS:
                return False
            _count_in_one_statement(tally, table, columns)
            if heard is not None:
                heard(1.0, ASKING)
            return True
        if tally.cap is not None:
            if _has_numbers_as_text(table):
                return False
            table = _capped(tally, table, names)
        _count(tally, table, columns, heard, answer_sets)
    return True


def _count_in_one_statement(tally: Any, table: Any, columns: Sequence[str]) -> None:
    """Add the rows of a table that may change to a tally, from the answer to one statement."""
    import ibis

    weight = columns[-1] if tally.weighted else None
    one = ibis.literal(1, "int64")
    rows = one if weight is None else ibis.ifelse(table[weight] < 0, one, table[weight]).cast("int64")
    table = table.mutate(**{_ROWS: rows})
    good, parts = table.filter(table[_GOOD]), list[Any]()

    def ask(some: Any, cell: Any) -> None:
        """Sum rows by cell, as one part of the statement."""
        cells = some.group_by(cell=cell.cast("int64")).aggregate(**{_ROWS: _total(some[_ROWS])})
        parts.append(cells.select(part=ibis.literal(len(parts), "int32"), cell=cells["cell"], **{_ROWS: cells[_ROWS]}))

    ask(table, table[_GOOD].ifelse(1, 0))
    for column in columns:
        bad = table.filter(table[column] < 0)
        ask(bad, bad[column])
    sets = [names for names in tally.tables if names]
    place = dict(zip(tally.names, columns, strict=True))
    for names in sets:
        cell = good[place[names[0]]].cast("int64")
        for name in names[1:]:
            cell = cell * tally.schema[name].size + good[place[name]]
        ask(good, cell)
    if weight is not None:
        ask(good.mutate(**{_ROWS: one}), (good[weight] >= LARGE_COUNT).ifelse(1, 0))
    found = _fetched(ibis.union(*parts))
    part, cell, counted = (np.asarray(found[name]).astype(np.int64) for name in ("part", "cell", _ROWS))
    tally.records += int(counted[(part == 0) & (cell == 1)].sum())
    tally.rows_refused += int(counted[(part == 0) & (cell == 0)].sum())
    if weight is not None:
        tally.small_counts += int(counted[(part == len(parts) - 1) & (cell == 0)].sum())
        tally.large_counts += int(counted[(part == len(parts) - 1) & (cell == 1)].sum())
    for number, name in enumerate(tally.names, 1):
        refused = dict(zip(cell[part == number].tolist(), counted[part == number].tolist(), strict=True))
        if CHANGED in refused:
            raise DataError(TABLE_CHANGED)
        for code in sorted(refused, reverse=True):
            if refused[code]:
                note(tally.refused, name, REASONS[-1 - code], refused[code])
    if tally.rows_refused and not tally.drop:
        return
    for number, names in enumerate(sets, 1 + len(columns)):
        tally.tables[names].reshape(-1)[cell[part == number]] += counted[part == number]


def _has_numbers_as_text(table: Any) -> bool:
    """Return whether some identifiers are texts such as 7.0, which `identifiers` changes or refuses."""
    if not table[_KEY].type().is_string():
        return False
    found = _fetched(table.aggregate(found=_total(table[_KEY].re_search(NUMBER_IN_BYTES).ifelse(1, 0))))
    return bool(found["found"][0].as_py())


def _count(
    tally: Any, table: Any, columns: Sequence[str], heard: Heard | None, answer_sets: Callable[..., Iterator[_Cells]]
) -> None:
    """Add the rows of a table of codes that does not change to the tables of a tally."""
    is_quick = answer_sets is _one_by_one
    weight = columns[-1] if tally.weighted else None
    counted = _take_refused(tally, table, columns, weight)
    good = table.filter(table[_GOOD]) if tally.rows_refused else table
    if tally.rows_refused and not tally.drop:
        return
    place = dict(zip(tally.names, columns, strict=True))
    sets = [names for names in tally.tables if names]
    before = {names: int(tally.tables[names].sum()) for names in sets}
    done, together = 0, min(FIRST, TOGETHER) if is_quick and heard is not None else TOGETHER
    while some := sets[done : done + together]:
        heard_before = heard.signs if heard is not None else 0
        questions = [(names, [place[name] for name in names]) for names in some]
        for names, cells, counts in answer_sets(tally.schema, good, questions, weight, counted):
            tally.tables[names].reshape(-1)[cells] += counts
        for names in some:
            if int(tally.tables[names].sum()) - before[names] != counted:
                raise DataError(TABLE_CHANGED)
        done += len(some)
        if heard is not None:
            heard(done / len(sets), ASKING)
            if is_quick:  # elsewhere fewer sets a question are more scans
                together = _next_together(together, heard.signs - heard_before)


def _next_together(together: int, signs: int) -> int:
    """Return how many sets to ask for after so many took so many signs of life: who waits shall hear of progress."""
    if signs > NEWS:
        return max(1, together // 2)
    return min(TOGETHER, 2 * together) if 2 * signs < NEWS else together


def _take_refused(tally: Any, table: Any, columns: Sequence[str], weight: str | None) -> int:
    """Return how many records count, and note those that do not; a row whose count was refused is one record."""
    import ibis

    one = ibis.literal(1, "int64")
    rows = one if weight is None else ibis.ifelse(table[weight] < 0, one, table[weight])
    good = table[_GOOD]
    asked = {"good": _total(ibis.ifelse(good, rows, 0)), "bad": _total(ibis.ifelse(good, 0, rows))}
    if weight is not None:
        asked["small"] = _total((good & (table[weight] < LARGE_COUNT)).ifelse(1, 0))
        asked["large"] = _total((good & (table[weight] >= LARGE_COUNT)).ifelse(1, 0))
    for column, reason in itertools.product(columns, range(len(REASONS))):
        asked[f"{column}_{reason}"] = _total(ibis.ifelse(table[column] == -1 - reason, rows, 0))
    asked["changed"] = _changed(table, columns)
    found = _answers(table, asked)
    if found["changed"]:
        raise DataError(TABLE_CHANGED)
    tally.records += found["good"]
    tally.rows_refused += found["bad"]
    tally.small_counts += found.get("small", 0)
    tally.large_counts += found.get("large", 0)
    for name, column in zip(tally.names, columns, strict=True):
        for reason, text in enumerate(REASONS):
            if number := found[f"{column}_{reason}"]:
                note(tally.refused, name, text, number)
    return found["good"]


def _changed(table: Any, columns: Sequence[str]) -> Any:
    """Return the number of rows with a value that was not there when the values of its column were looked up.

    Such values depend on other rows, so that a row would not be counted by its own values alone.
    """
    import ibis

    return (
        _total(ibis.or_(*(table[column] == CHANGED for column in columns)).ifelse(1, 0)) if columns else ibis.literal(0)
    )


def _answers(table: Any, asked: Mapping[str, Any]) -> dict[str, int]:
    """Whole numbers about a table, by their names."""
    found: dict[str, int] = {}
    for start in range(0, len(asked), MOST_ANSWERS):
        answers = _fetched(table.aggregate(**dict(list(asked.items())[start : start + MOST_ANSWERS])))
        found |= {name: int(values[0]) for name, values in answers.to_pydict().items()}
    return found


def _total(values: Any) -> Any:
    return values.cast("int64").sum().fill_null(0).cast("int64")


def _one_by_one(
    schema: Schema, table: Any, sets: Sequence[_Asked], weight: str | None, counted: int
) -> Iterator[_Cells]:
    """The cells of some sets that hold rows, and how many: a grouped query each, in one statement.

    All that travels is two numbers a cell, so cells are numbered through all sets, and both are as narrow as they can.
    """
    backend = table.get_backend()
    inner = tried(lambda: backend.compile(table), WHAT)
    rows, questions = "COUNT(*)" if weight is None else f"SUM({weight})", []
    starts = list(itertools.accumulate((schema.cells(names) for names, _ in sets), initial=0))
    kinds = {"cell": _integers(starts[-1]), "counted": _integers(counted)}
    for i, (names, columns) in enumerate(sets):
        cell = f"CAST({columns[0]} AS BIGINT)"
        for name, column in zip(names[1:], columns[1:], strict=True):
            cell = f"({cell} * {schema[name].size} + {column})"
        listed = ", ".join(columns)
        questions.append(
            f"SELECT CAST({cell} + {starts[i]} AS {SQL[kinds['cell']]}) AS cell, counted FROM "
            f"(SELECT {listed}, CAST({rows} AS {SQL[kinds['counted']]}) AS counted FROM ({inner}) AS good{i} "
            f"GROUP BY {listed}) AS g{i}"
        )
    found = _asked(backend, " UNION ALL ".join(questions), kinds)
    cells, counts = np.asarray(found["cell"]).astype(np.int64), np.asarray(found["counted"])
    for (names, _), (low, high) in zip(sets, itertools.pairwise(starts), strict=True):
        own = (low <= cells) & (cells < high)
        yield names, cells[own] - low, counts[own]


def _integers(most: int) -> str:
    """A type that holds every number from 0 to `most`."""
    return "int32" if most < 2**31 else "int64"


def _together(
    schema: Schema, table: Any, sets: Sequence[_Asked], weight: str | None, _counted: int
) -> Iterator[_Cells]:
    """The same in one scan where the database has grouping sets, because codes that are not kept are made in it."""
    backend = table.get_backend()
    if backend.name not in GROUPING_SETS or len(sets) == 1:
        for names, columns in sets:
            rows = table.count() if weight is None else table[weight].sum()
            found = _fetched(table.group_by(columns).aggregate(**{_ROWS: rows.cast("int64")}))
            yield names, _flat_cells(schema, found, names, columns), np.asarray(found[_ROWS])
        return
    used = sorted({column for _, columns in sets for column in columns})
    inner = tried(lambda: backend.compile(table.select(*{*used, *([weight] if weight else [])})), WHAT)
    groups = ", ".join(f"({', '.join(columns)})" for _, columns in sets)
    rows = "COUNT(*)" if weight is None else f"SUM({weight})"
    found = _asked(
        backend,
        f"SELECT {', '.join(used)}, CAST({rows} AS BIGINT) AS counted FROM ({inner}) AS good "
        f"GROUP BY GROUPING SETS ({groups})",
        {**{column: table[column].type() for column in used}, "counted": "int64"},
    )
    # a cell of a set has no code in the columns of others, and every row has codes in all of its own
    held = np.stack([np.asarray(found[column].is_valid()) for column in used], axis=1)
    for names, columns in sets:
        some = found.filter(pa.array((held == np.array([column in columns for column in used])).all(axis=1)))
        yield names, _flat_cells(schema, some, names, columns), np.asarray(some["counted"])


def _flat_cells(schema: Schema, found: pa.Table, names: Names, columns: Sequence[str]) -> np.ndarray:
    codes = tuple(np.asarray(found[column]).astype(np.int64) for column in columns)
    return np.asarray(np.ravel_multi_index(codes, schema.sizes(names)))


def _capped(tally: Any, table: Any, names: Sequence[str]) -> Any:
    """The rows of persons who have no more than count; those of all others are taken here."""
    import ibis

    cap, known = tally.cap, table.filter(table[_PERSON].notnull())
    sized = known.mutate(**{_ROWS: ibis._.count().over(ibis.window(group_by=_KEY))})
    light = sized.filter(sized[_ROWS] <= cap.rows)
    nobody = table[_PERSON].isnull()
    asked = {"nobody": _total(ibis.ifelse(nobody, 1, 0)), "people": table[_KEY].nunique(where=~nobody)}
    asked["changed"] = _changed(table, [f"c{i}" for i in range(len(names))])
    found = {name: values[0] for name, values in _fetched(table.aggregate(**asked)).to_pydict().items()}
    if found["changed"]:
        raise DataError(TABLE_CHANGED)
    over = sized.filter(sized[_ROWS] > cap.rows).drop(_ROWS, _KEY)
    for batch in _fetched(over).to_batches() if is_spark_table(over) else _batches(over):
        cap.take(batch.column(_PERSON), [np.asarray(batch.column(f"c{i}")) for i in range(len(names))])
    if found["nobody"]:
        note(tally.refused, cap.column, NOBODY, found["nobody"])
        tally.rows_refused += found["nobody"]
    tally.take_kept(names)
    cap.elsewhere = found["people"] - cap.people
    return light


def _person(column: Any, name: str) -> dict[str, Any]:
    """Whose row it is, and what tells persons apart there."""
    kind = column.type()
    if kind.is_string():
        column = column.nullif("")
        return {_PERSON: column, _KEY: in_bytes(column)}
    if kind.is_floating() or kind.is_decimal():  # whether they are whole is found out where the rows are read
        raise NotThereError
    if not kind.is_integer() and not kind.is_null():
        raise DataError(f"the person column {name!r} must hold whole numbers or texts, all of one kind")
    return {_PERSON: column, _KEY: column}


@contextmanager
def _snapshot(table: Any) -> Iterator[tuple[Any, Callable[..., Iterator[_Cells]] | None]]:
    """Yield a table of codes that does not change, and how it answers for several sets; the table and None without."""
    import ibis

    backend, name = table.get_backend(), ibis.util.gen_name("counted")
    if is_spark_table(table) and backend.name in KEEPING:
        cached = tried(table.cache, WHAT, explained)
        try:
            yield cached, _together
        finally:
            with suppress(Exception):  # it goes with the session, too
                cached.release()
        return
    if not _made(backend, name, table):
        yield table, None
        return
    try:
        snapshot = tried(lambda: backend.sql(f'SELECT * FROM "{name}"', schema=table.schema()), WHAT, explained)
        yield snapshot, _one_by_one
    finally:
        with suppress(Exception):  # it goes with the connection, too
            backend.raw_sql(f'DROP TABLE "{name}"')


def _made(backend: Any, name: str, table: Any) -> bool:
    """Whether a temporary table of codes could be made; if not, the questions themselves will tell what is wrong."""
    if backend.name not in KEEPING:
        return False
    try:
        backend.raw_sql(f'CREATE TEMPORARY TABLE "{name}" AS {backend.compile(table)}')
    except Exception:
        return False
    return True


def some_values(data: Any, names: Sequence[str], most: int) -> Iterator[tuple[str, list[Any]]]:
    """Some distinct values of columns of texts and whole numbers of a table of Ibis."""
    for name in names:
        kind = data[name].type() if name in data.columns else None
        if kind is not None and (kind.is_string() or kind.is_integer()):
            yield name, _distinct(data[name], most)


def _distinct(column: Any, most: int) -> list[Any]:
    found = _fetched(column.name("value").as_table().distinct().limit(most + 1))
    return list(found["value"].to_pylist())


def _asked(backend: Any, text: str, columns: Mapping[str, Any]) -> pa.Table:
    """What a question of ours is answered by, of columns of known types: to find them out Ibis would make a view."""
    return _fetched(tried(lambda: backend.sql(text, schema=dict(columns)), WHAT, explained))


def _fetched(expression: Any) -> pa.Table:
    """What a question is answered by; all that ever travels, but for persons beyond their cap."""
    ask = partial(spark_answer, expression) if is_spark_table(expression) else expression.to_pyarrow
    found: pa.Table = tried(ask, WHAT, explained)
    return found


def _batches(expression: Any) -> Iterator[pa.RecordBatch]:
    yield from tried(expression.to_pyarrow_batches, WHAT, explained)


def explained(error: Exception) -> str:
    """What is wrong, from the kind of an error alone: its text may hold values."""
    kinds = " ".join([*(kind.__name__.lower() for kind in type(error).__mro__), spark_kinds(error)])
    for words, text in _PROBLEMS.items():
        if any(word in kinds for word in words):
            return f"{WHAT} {text}"
    return ""


VARIABLE = "DP_WORKBENCH_SOURCES"
KEYS = {"address": True, "table": True, "database": False}  # and whether a section must have them
_PLACE = re.compile(r"\$\{(\w+)\}")


@dataclass(frozen=True, kw_only=True)
class _Source:
    """Where a table is; the address, which may hold a secret, is in no text that is made of it."""

    name: str
    address: str = field(repr=False)
    table: str
    database: str | None = None

    @property
    def what(self) -> str:
        return f"the source {shown(self.name)}"

    def connected(self) -> Any:
        """A connection of Ibis.  Raises: DataError that tells nothing of the address."""
        lost = [name for name in _PLACE.findall(self.address) if name not in os.environ]
        if lost:
            raise DataError(f"{self.what} needs the variable {shown(lost[0])}, which is not set where this was started")
        address = _PLACE.sub(lambda found: os.environ[found[1]], self.address)
        ibis = needed("ibis", self.what)
        return tried(lambda: ibis.connect(address), self.what, explained)


def named_sources() -> tuple[str, ...]:
    """The names that the settings give, in their order; none without settings.  Raises: DataError for wrong ones."""
    return tuple(_settings())


def named_table(name: str) -> Any:
    """The table of a name as one of Ibis, to be counted where it is, by a connection of its own.

    Raises: DataError for a name that the settings lack, and where the database or the table cannot be reached.
    """
    known = _settings()
    if name not in known:
        near = near_matches(name, known) if known else f"; the variable {VARIABLE} names a file of them"
        raise DataError(f"there is no source {shown(name)} in the settings of this machine{near}")
    source = known[name]
    connection = source.connected()
    return tried(lambda: connection.table(source.table, database=source.database), source.what, explained)


def _settings() -> dict[str, _Source]:
    """What the file of the settings says, a section a source."""
    path = os.environ.get(VARIABLE, "").strip()
    if not path:
        return {}
    what = f"the file that {VARIABLE} names"
    read = tried(lambda: tomllib.loads(Path(path).expanduser().read_text(encoding="utf-8")), what)
    found = {}
    for name, section in read.items():
        wrong = not isinstance(section, dict) or not all(isinstance(value, str) for value in section.values())
        if wrong or section.keys() - KEYS or any(must and not section.get(key) for key, must in KEYS.items()):
            raise DataError(
                f"the section {shown(name)} of {what} must hold texts: address, table and, if needed, database"
            )
        found[name] = _Source(name=name, **section)
    return found
