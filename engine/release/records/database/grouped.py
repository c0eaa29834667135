"""The questions to a database: how many rows are refused and why, and how many lie in each cell.

All answers are of the same rows: they come from a temporary table of codes, or from a single statement where none can
be made.  Otherwise a row that changes between two questions would count in different cells of two tables.

Where a person column caps rows, those of persons with more rows than count travel, as codes, for which of them count is
decided by the rule of `people`; all others stay.  This takes several questions, so without a temporary table all rows
travel, once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from engine.errors import DataError
from engine.progress import Progress, listener
from engine.release.records.batches import check_columns, tried
from engine.release.records.counts import LARGE_COUNT, note
from engine.release.records.database.recoding import CHANGED, NotThereError, code_of, in_bytes
from engine.release.records.database.spark import NOT_FOUND, is_spark_table, spark_answer, spark_kinds
from engine.release.records.database.stopping import ASKING, Heard, stoppable
from engine.release.records.encoding import MISSING, OUTSIDE, REASONS, Encoder
from engine.release.records.nested import Names
from engine.release.records.people import NOBODY
from engine.workload import Schema

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
            yield names, _cells(schema, found, names, columns), np.asarray(found[_ROWS])
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
        yield names, _cells(schema, some, names, columns), np.asarray(some["counted"])


def _cells(schema: Schema, found: pa.Table, names: Names, columns: Sequence[str]) -> np.ndarray:
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
