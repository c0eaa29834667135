"""Arguments and mechanism options shared by several commands.

What several commands are given: workload, budget, columns of the records; and how the engine takes them.

Which release a command goes on from, and how it is told.

Options of mechanisms on the command line, ``name=value``: read by their types, checked before any work.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

from engine._format import near_matches, shown
from engine._untrusted import parse_json
from engine.cli.output import Commands, in_options
from engine.common_mechanism import stepwise
from engine.errors import (
    BudgetError,
    DataError,
    EngineError,
    LedgerError,
    OtherRecords,
    PlanError,
    SchemaError,
    WorkloadError,
)
from engine.ledger import Ledger
from engine.mechanisms import label_of, variants
from engine.mechanisms.base import Mechanism, PlanOptions
from engine.mechanisms.registry import LIMITS, MECHANISMS, checked_options, implied_options
from engine.privacy import ADD_REMOVE, Budget
from engine.privacy.budget import NEIGHBOURS
from engine.records.counts import COUNTS_ENDING
from engine.records.csv_reader import TextFile
from engine.records.database import named_table
from engine.records.subprocess_readers import SHEET_ENDINGS, SheetFile, sheet_text
from engine.release import Intake, Measurement
from engine.release.invariant_tables import public_table
from engine.release.measure import load_measurement, releases
from engine.workload import Schema, Workload


def add_workload_options(command: argparse.ArgumentParser) -> None:
    """Add the files and numbers that say what is asked."""
    add_asked_file(command)
    command.add_argument(
        "--whole-numbers",
        nargs="+",
        default=[],
        metavar="NAME",
        help="attributes of the SQL whose values are whole numbers: age <= 39 is age < 40, and fractions are refused",
    )
    command.add_argument("--schema", type=Path, help="schema JSON, CSV or a sheet, with --ways or with SQL")
    command.add_argument(
        "--exact",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="tables that are public: attributes, and counts",
    )
    command.add_argument("--ways", type=int, nargs="+", help="all k-way sets, family by kind; by default 1 2 3")


def add_asked_file(command: argparse.ArgumentParser, group: Any = None) -> None:
    """Add a file of queries, to a group of options of which one is needed where there is one."""
    words = "workload JSON, or SQL: SELECT age, COUNT(*) FROM t GROUP BY age"
    (group or command).add_argument("--workload", type=Path, help=words)


def workload_of(given: argparse.Namespace) -> Workload:
    """Return what `add_workload_options` was given."""
    asked = _asked(given)
    if not given.exact:
        return asked
    tables = [public_table(path, asked.schema) for path in given.exact]
    return Workload(asked.schema.with_facts(invariants=tables), asked.groups)


def _asked(given: argparse.Namespace) -> Workload:
    if given.workload is None:
        if given.schema is None:
            raise WorkloadError("Nothing says what is asked. Give --workload, or --schema with --ways.")
        if given.whole_numbers:
            raise WorkloadError("--whole-numbers needs SQL. Give --workload, or leave it out.")
        return Workload.all_ways(schema_of(given.schema), tuple(given.ways or (1, 2, 3)))
    if given.ways is not None:
        raise WorkloadError("--workload and --ways both say what is asked. Give one of them.")
    schema = None if given.schema is None else schema_of(given.schema)
    return asked_in(given.workload, schema, whole_numbers=given.whole_numbers)


def asked_in(path: Path, schema: Schema | None, *, whole_numbers: Sequence[str] = ()) -> Workload:
    """Return the workload in a file, JSON or SQL; only SQL needs a schema, and JSON must be on that one if it is given.

    Raises: WorkloadError for a file that is none, or is on another schema.
    """
    text = file_bytes(path, WorkloadError)
    if path.suffix.lower() != ".sql":
        if whole_numbers:
            raise WorkloadError("--whole-numbers needs SQL. Leave it out, or write the workload as SQL.")
        found = Workload.from_json(text)
        if schema is not None and found.schema != schema:
            raise WorkloadError(f"The workload {path} is on another schema. Leave --schema out, or write SQL on it.")
        return found
    if schema is None:
        raise WorkloadError(f"The SQL in {path} needs the attributes that it asks about. Give them by --schema.")
    from engine.workload.sql import sql_readings, workload_from_sql

    try:
        workload = workload_from_sql(schema, text.decode(), whole_numbers=whole_numbers)
        for written, reading in sql_readings(schema, text.decode(), whole_numbers=whole_numbers):
            print(f"{path}: {written} is read as {reading}", file=sys.stderr)
        return workload
    except UnicodeDecodeError:
        raise WorkloadError(f"The file {path} is no text in UTF-8. Save it as one.") from None


def schema_of(path: Path) -> Schema:
    """Return the schema in a JSON or a CSV file, or in a workbook."""
    if path.suffix.lower() in SHEET_ENDINGS:
        return Schema.from_csv(sheet_text(path, empty_rows=True))
    text = file_bytes(path, SchemaError)
    return Schema.from_csv(text) if path.suffix.lower() == ".csv" else Schema.from_json(text)


def file_bytes(path: Path, error: type[EngineError]) -> bytes:
    """Return what a file holds, or raise an error of this kind."""
    try:
        return path.read_bytes()
    except OSError as reason:
        raise error(f"The file {path} cannot be read: {reason.strerror}. Give the path of an existing file.") from None


def add_budget_options(command: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Add the ways to say a budget."""
    which = command.add_mutually_exclusive_group(required=required)
    which.add_argument("--pcost", type=float)
    which.add_argument("--rho", type=float, help="zCDP")
    which.add_argument("--mu", type=float, help="Gaussian DP")
    which.add_argument("--epsilon", type=float, help="with --delta")
    which.add_argument("--pure-epsilon", type=float, help="delta 0, for mechanisms with Laplace noise")
    command.add_argument("--delta", type=float)
    command.add_argument("--rows-per-person", type=int, help="most rows of one person, protected together")
    command.add_argument("--neighbours", choices=NEIGHBOURS, default=ADD_REMOVE, help="which data sets look alike")


def budget_of(given: argparse.Namespace, schema: Schema | None = None) -> Budget:
    """Return what `add_budget_options` was given; rows of a person that are not said are those of the schema."""
    if (given.epsilon is None) != (given.delta is None):
        raise BudgetError(
            "--epsilon and --delta go together. Give both, or one of --pcost, --rho, --mu, --pure-epsilon."
        )
    rows = given.rows_per_person
    if rows is None:
        rows = (schema and schema.rows_per_person) or 1
    unit = {"rows_per_person": rows, "neighbours": given.neighbours}
    if given.pcost is not None:
        return Budget(pcost=given.pcost, **unit)
    if given.pure_epsilon is not None:
        return Budget.pure(given.pure_epsilon, **unit)
    if given.rho is not None:
        return Budget.zcdp(given.rho, **unit)
    if given.epsilon is not None:
        return Budget.approx(given.epsilon, given.delta, **unit)
    if given.mu is None:
        raise BudgetError("There is no budget. Give one of --pcost, --rho, --mu, --epsilon with --delta.")
    return Budget.gdp(given.mu, **unit)


def budget_data(budget: Budget) -> dict[str, Any]:
    """Return a budget for programs, in all terms that are exact."""
    unit = {"rows_per_person": budget.rows_per_person, "neighbours": budget.neighbours}
    return {"pcost": budget.pcost, "rho": budget.rho, "mu": budget.mu, "pure_epsilon": budget.pure_epsilon} | unit


def form_of(out: Path, given: str | None, forms: Sequence[str]) -> str:
    """Return the form of a file of answers: what was given, or what its ending says; raise PlanError if it is none."""
    ending = out.suffix.lower().lstrip(".")
    if given is None and ending not in forms:
        endings, named = ", ".join(f".{known}" for known in forms), ", or name the --format" if "zip" in forms else ""
        raise PlanError(f"The file --out {out} ends in none of {endings}. Give one of them{named}.")
    return given or ending


def add_records_options(command: argparse.ArgumentParser, text: str = "the records") -> None:
    """Add where the records are, or their counts."""
    source = command.add_mutually_exclusive_group(required=True)
    source.add_argument("--data", type=Path, help=text)
    source.add_argument(
        "--counts", dest="data", type=_counts_path, help="exact counts of the records, in a file .counts"
    )
    add_named_source(source)
    add_file_options(command)


def add_named_source(sources: argparse._MutuallyExclusiveGroup) -> None:
    """Add tables that have a name on this machine."""
    sources.add_argument("--source", metavar="NAME", help="a table that the file DP_WORKBENCH_SOURCES names")


def add_file_options(command: argparse.ArgumentParser) -> None:
    """Add the options that say how a text file or a workbook is read."""
    command.add_argument("--delimiter", help="character between the fields of a CSV file, by default read off its head")
    command.add_argument("--encoding", help="of a CSV file, such as latin-1; by default UTF-8")
    command.add_argument("--sheet", metavar="NAME", help="sheet of a workbook that has several")


def records_of(given: argparse.Namespace) -> Any:
    """Return what `add_records_options` was given, as data for the engine."""
    is_text = given.delimiter is not None or given.encoding is not None
    if given.sheet is not None:
        if is_text:
            raise DataError("--sheet is for workbooks, --delimiter and --encoding are for text files. Leave one out.")
        if given.source is not None:
            raise DataError("--sheet was given with --source. Leave it out, or give a workbook by --data.")
        return SheetFile(path=given.data, sheet=given.sheet)
    if given.source is not None:
        return named_table(given.source)
    if not is_text:
        return Path(given.data)
    return TextFile(path=given.data, delimiter=given.delimiter, encoding=given.encoding or "utf-8")


def _counts_path(text: str) -> Path:
    if not text.lower().endswith(COUNTS_ENDING):
        raise argparse.ArgumentTypeError(
            f"{text} does not end in {COUNTS_ENDING}; give a file that count or counts wrote"
        )
    return Path(text)


COUNT_COLUMN = (
    "column with the number of records in each row, for tables that are counted already; no attribute of the schema, "
    "and no sampling weight"
)


def add_column_options(command: argparse.ArgumentParser) -> None:
    """Add what a file's columns are that the schema does not know."""
    command.add_argument(
        "--person",
        help="column that tells whose row it is, by default the schema's; caps the rows of each person; "
        "whole numbers, or texts, as which long numbers keep all digits",
    )
    command.add_argument("--count-column", metavar="N", help=COUNT_COLUMN)
    command.add_argument("--ignore", nargs="+", default=[], metavar="COLUMN", help="columns that are no counts")


def named_columns(given: argparse.Namespace) -> dict[str, Any]:
    """Return what `add_column_options` was given, as arguments of the engine."""
    return {name: getattr(given, name) for name in ("person", "count_column", "ignore")}


def refuse_seed_option(given: argparse.Namespace) -> None:
    """Raise PlanError for ``--seed`` on a command that releases."""
    if given.seed is not None:
        raise PlanError(
            "--seed was given for a release. Noise from a known seed protects nobody. Leave it out; it is for the "
            "commands rehearse and coarse-or-fine --simulated."
        )


@contextmanager
def option_names(remedy: str) -> Iterator[None]:
    """Say in options of the command what to do about records that are not those of the stored release."""
    try:
        yield
    except OtherRecords as error:
        raise OtherRecords(error.fact, remedy) from None


def say_rows(rows: Intake) -> None:
    """Tell the curator, and nobody who reads standard output, what happened to the rows."""
    print(rows.describe(), file=sys.stderr)
    for text in rows.warnings:
        print(f"Warning: {in_options(text)}", file=sys.stderr)


RELEASE_KEYS = "dataset key released rehearsal"
STEP = ":"  # between the word and the hash in what a step was spent for


def add_release_options(command: Commands) -> None:
    """Add where what was measured is."""
    source = command.add_mutually_exclusive_group(required=True)
    source.add_argument("--ledger", type=Path, help="with --key, or --dataset where it has one release")
    source.add_argument("--measurement", type=Path, help="a file that Measurement.save wrote")
    command.add_argument("--key", help="of a release or a look, as their replies name it")
    command.add_argument("--dataset", help="name in the ledger")


def release_of(given: argparse.Namespace) -> Measurement:
    """Return what `add_release_options` was given.

    Raises: LedgerError when no release, or more than one, is meant; PlanError for a file that is none.
    """
    if given.ledger is None:
        if given.key is not None or given.dataset is not None:
            raise PlanError("--key and --dataset name a release in a --ledger. Leave them out, or give the ledger.")
        return Measurement.load(given.measurement)
    book = Ledger(given.ledger)
    key = given.key
    if key is None:
        keys = [receipt.key for receipt in releases(book, given.dataset or "")]
        if len(keys) != 1:
            words = f"{len(keys)} releases of {given.dataset!r}" if given.dataset else "no --dataset"
            listed = f", one of {', '.join(map(repr, keys[:5]))}" if keys else ""
            raise LedgerError(f"There are {words} to go on from. Give the --key of the one that is meant{listed}.")
        (key,) = keys
    receipt = book.find(key)
    if receipt is None or STEP not in receipt.plan_hash:
        return load_measurement(book, key)
    steps = stepwise.resume(book, key)
    return steps.look if steps.finished is None else steps.finished


def head_of(found: Measurement) -> str:
    """Return a release in words, as the first line for people."""
    return "REHEARSAL, not for publication" if found.rehearsal else f"{found.dataset}, released {found.utc}"


def release_data(found: Measurement) -> dict[str, Any]:
    """Return a release for programs, under `RELEASE_KEYS`."""
    named = {"dataset": found.dataset or None, "key": found.key or None, "released": found.utc or None}
    return named | {"rehearsal": found.rehearsal}


TYPES = get_type_hints(PlanOptions)
TOLD = "progress"  # what is shown is up to the command line
WORDS = {"true": True, "false": False, "none": None, "null": None}
OF_ALL = tuple(name for name in (*(f.name for f in fields(Mechanism)), *LIMITS) if name != TOLD)
FOR_ALL = ("time_limit", "memory_limit")  # of a comparison


def add_mechanism_options(command: argparse.ArgumentParser, *, several: bool = False) -> None:
    """Add the mechanism, or several, and their options."""
    names = [m.name for m in MECHANISMS]
    if several:
        command.add_argument("--mechanisms", nargs="+", choices=names, help="by default all, with their variants")
    else:
        command.add_argument("--mechanism", default="querysmasher", choices=names)
    one = "; querysmasher.centers=tuned is for one of several" if several else ""
    command.add_argument(
        "--options",
        nargs="+",
        default=[],
        metavar="NAME=VALUE",
        help=f"such as objective=max time_limit=60 centers=tuned{one}; lists and mappings as JSON",
    )


def mechanism_options(given: argparse.Namespace) -> dict[str, Any]:
    """Return the options of one mechanism, which it takes.

    Raises: PlanError for what is no option of it, or no value of the option.
    """
    found = implied_options(_read(given.options))
    checked_options(given.mechanism, found)
    return found


def asked_mechanisms(given: argparse.Namespace) -> tuple[list[tuple[str, dict[str, Any]]], dict[str, Any]]:
    """Return the mechanisms to compare with the options of each, which it takes, and the limits of all of them."""
    chosen = variants().values() if given.mechanisms is None else [(name, {}) for name in given.mechanisms]
    own: dict[str, list[str]] = {name: [] for name, _ in chosen}
    common = []
    for text in given.options:
        name, dot, _ = text.partition("=")[0].rpartition(".")
        if not dot:
            common.append(text)
        elif name in own:
            own[name].append(text[len(name) + 1 :])
        else:
            near = near_matches(name, own)
            raise PlanError(f"{shown(text)} is for none of those compared{near}. Choose one of {', '.join(own)}.")
    shared = _read(common)
    if alone := [name for name in shared if name not in OF_ALL]:
        raise PlanError(
            f"Not every mechanism has the option {shown(alone[0])}{near_matches(alone[0], OF_ALL)}. Say whose it is, "
            f"such as {next(iter(own))}.{alone[0]}=..., or give one that all have: {', '.join(OF_ALL)}."
        )
    limits = {name: shared.pop(name) for name in FOR_ALL if name in shared}
    asked = {}
    for name, variant in chosen:
        options = {**variant, **shared, **_read(own[name])}
        checked_options(name, options | limits)
        asked[label_of(name, options)] = name, options
    return list(asked.values()), limits


def _read(texts: Iterable[str]) -> dict[str, Any]:
    """Return options as Python values."""
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise PlanError(f"The option {shown(text)} is no NAME=VALUE. Write it like centers=tuned.")
        if name in found:
            raise PlanError(f"The option {shown(name)} is given twice. Leave one of them out.")
        if name == TOLD:
            raise PlanError("The option 'progress' is for Python. On the command line progress is always told.")
        found[name] = value if TYPES.get(name) is str else _value(value)
    return found


def _value(text: str) -> Any:
    """Return what a text stands for; one that stands for nothing else is a text.

    >>> _value("4"), _value("best"), _value("false"), _value('{"age": "range"}')
    (4, 'best', False, {'age': 'range'})
    """
    if text.casefold() in WORDS:
        return WORDS[text.casefold()]
    try:
        return parse_json(text, constants=True)
    except ValueError:
        return text
