"""Options shared by several commands: workload, budget, records, stored release, mechanism.

The functions ``add_*`` add options to the parser of a command. A function such as `workload_of`
returns the value that the options of `add_workload_options` define.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

from engine._format import near_matches, pluralize, quote_public
from engine._untrusted import parse_json
from engine.cli.output import Commands, in_options, number, whole_number
from engine.common_mechanism import CommonPlan, coarse_or_fine, nested_choices, stepwise
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
from engine.mechanisms import MECHANISMS, label_of, variants
from engine.mechanisms.base import Mechanism, PlanOptions
from engine.mechanisms.registry import LIMITS, checked_options, implied_options
from engine.plans import Plan
from engine.privacy import ADD_REMOVE, NEIGHBOURS, Budget
from engine.records import SheetFile, TextFile, named_table
from engine.records.counts import COUNTS_ENDING
from engine.records.subprocess_readers import SHEET_ENDINGS, sheet_text
from engine.release import Intake, Measurement, load_measurement
from engine.release.measure import releases
from engine.release.public_draft import public_table
from engine.workload import Levels, Schema, Workload


def add_workload_options(command: argparse.ArgumentParser) -> None:
    """Add the options that define a workload."""
    add_workload_file(command)
    command.add_argument(
        "--whole-numbers",
        nargs="+",
        default=[],
        metavar="NAME",
        help="integer attributes in SQL, so that age <= 39 means age < 40; by default none",
    )
    command.add_argument(
        "--schema",
        type=Path,
        metavar="FILE",
        help="schema (JSON, CSV, workbook) for --ways or SQL; by default the schema of --workload",
    )
    command.add_argument(
        "--exact",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="public tables with exact counts (invariants); by default none",
    )
    command.add_argument(
        "--ways",
        type=whole_number,
        nargs="+",
        metavar="K",
        help="all sets of K attributes, with default query families; by default 1 2 3",
    )
    command.add_argument(
        "--levels",
        nargs="+",
        action="append",
        default=[],
        metavar="NAME",
        help="with --ways: an attribute and its levels to query, repeatable; by default its cells",
    )


def add_workload_file(command: argparse.ArgumentParser, group: Any = None) -> None:
    """Add the option ``--workload`` to a command.

    If ``group``, a group of alternative options, is given, the option is added to it instead.
    """
    help_text = "workload as JSON, or as SQL that counts records"
    help_text += "" if group else "; by default --ways"
    (group or command).add_argument("--workload", type=Path, metavar="FILE", help=help_text)


def workload_of(args: argparse.Namespace) -> Workload:
    """Return the workload from the options of `add_workload_options`."""
    workload = _workload_from_options(args)
    if not args.exact:
        return workload
    tables = [public_table(path, workload.schema) for path in args.exact]
    return Workload(workload.schema.with_facts(invariants=tables), workload.groups)


def _workload_from_options(args: argparse.Namespace) -> Workload:
    if args.workload is None:
        if args.schema is None:
            raise WorkloadError(
                "No workload is given. Give --workload, or give --schema to plan the tables of its"
                " attributes."
            )
        if args.whole_numbers:
            raise WorkloadError(
                "--whole-numbers applies to SQL only. Give --workload with an SQL file, or leave"
                " --whole-numbers out."
            )
        families = {name: Levels(levels) for name, *levels in args.levels}
        if len(families) < len(args.levels):
            raise WorkloadError(
                "--levels is given twice for an attribute. Give all levels of an attribute in one"
                " option."
            )
        ways = tuple(args.ways or (1, 2, 3))
        return Workload.all_ways(schema_of(args.schema), ways, families or "auto")
    if args.levels:
        raise WorkloadError(
            "--levels applies to --schema only. Leave --levels out, or give --schema in place of"
            " --workload."
        )
    if args.ways is not None:
        raise WorkloadError("--workload and --ways both define the workload. Give one of the two.")
    schema = None if args.schema is None else schema_of(args.schema)
    return workload_from_file(args.workload, schema, integer_columns=args.whole_numbers)


def workload_from_file(
    path: Path, schema: Schema | None, *, integer_columns: Sequence[str] = ()
) -> Workload:
    """Return the workload in a JSON file, or in an SQL file if the name ends in ``.sql``.

    Parameters
    ----------
    schema : schema of the workload, required for SQL. A JSON file contains a schema; if ``schema``
        is not None, both must be equal.
    integer_columns : attributes in the SQL whose values are integers.

    Raises
    ------
    WorkloadError : if the file cannot be read or does not contain a workload with this schema.
    """
    text = file_bytes(path, WorkloadError)
    if path.suffix.lower() != ".sql":
        if integer_columns:
            raise WorkloadError(
                "--whole-numbers applies to SQL only. Leave --whole-numbers out, or write the"
                " workload as SQL."
            )
        workload_from_json = Workload.from_json(text)
        if schema is not None and workload_from_json.schema != schema:
            raise WorkloadError(
                f"The schema in the workload {path} differs from --schema. Leave --schema out, or"
                " write the workload as SQL."
            )
        return workload_from_json
    if schema is None:
        raise WorkloadError(
            f"The SQL in {path} does not define its attributes. Give a schema by --schema."
        )
    from engine.workload.sql import sql_readings, workload_from_sql

    try:
        workload = workload_from_sql(schema, text.decode(), integer_columns=integer_columns)
        for written, reading in sql_readings(
            schema, text.decode(), integer_columns=integer_columns
        ):
            print(f"{path}: {written} is read as {reading}", file=sys.stderr)
        return workload
    except UnicodeDecodeError:
        raise WorkloadError(f"The file {path} is not UTF-8 text. Save it in UTF-8.") from None


def schema_of(path: Path) -> Schema:
    """Return the schema in a JSON file, a CSV file or a workbook."""
    if path.suffix.lower() in SHEET_ENDINGS:
        return Schema.from_csv(sheet_text(path, empty_rows=True))
    text = file_bytes(path, SchemaError)
    return Schema.from_csv(text) if path.suffix.lower() == ".csv" else Schema.from_json(text)


def file_bytes(path: Path, error: type[EngineError]) -> bytes:
    """Return the content of a file, or raise an ``error`` if the file cannot be read."""
    try:
        return path.read_bytes()
    except OSError as reason:
        raise error(
            f"The file {path} cannot be read: {reason.strerror}. Give the path of a readable file."
        ) from None


def add_budget_options(command: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Add the options that define a privacy budget."""
    unit = command.add_mutually_exclusive_group(required=required)
    end = "" if required else "; by default none"
    for name, metavar, help_text in (
        ("--pcost", "COST", "budget as privacy cost: 2 rho, or mu squared"),
        ("--rho", "RHO", "budget as rho of zero-concentrated DP"),
        ("--mu", "MU", "budget as mu of Gaussian DP"),
        ("--epsilon", "EPSILON", "budget as epsilon of (epsilon, delta)-DP, with --delta"),
        ("--pure-epsilon", "EPSILON", "budget as epsilon with delta 0, for Laplace noise"),
    ):
        unit.add_argument(name, type=number, metavar=metavar, help=help_text + end)
    command.add_argument(
        "--delta",
        type=number,
        help="delta of --epsilon, between 0 and 1; by default none",
    )
    command.add_argument(
        "--rows-per-person",
        type=whole_number,
        metavar="K",
        help="largest number of rows of a person; by default that of the schema, or 1",
    )
    command.add_argument(
        "--neighbours",
        choices=NEIGHBOURS,
        default=ADD_REMOVE,
        metavar="RULE",
        help=f"neighbouring datasets: {' or '.join(NEIGHBOURS)}; by default %(default)s",
    )


def budget_of(args: argparse.Namespace, schema: Schema | None = None) -> Budget:
    """Return the budget from the options of `add_budget_options`.

    Without ``--rows-per-person`` the limit on rows per person is that of ``schema``, or 1 if the
    schema has no limit. BudgetError is raised unless the options define one valid budget.
    """
    if (args.epsilon is None) != (args.delta is None):
        raise BudgetError(
            "--epsilon and --delta define a budget only together. Give both, or one of --pcost,"
            " --rho, --mu and --pure-epsilon."
        )
    rows = args.rows_per_person
    if rows is None:
        rows = (schema and schema.rows_per_person) or 1
    unit = {"rows_per_person": rows, "neighbours": args.neighbours}
    if args.pcost is not None:
        return Budget(pcost=args.pcost, **unit)
    if args.pure_epsilon is not None:
        return Budget.pure(args.pure_epsilon, **unit)
    if args.rho is not None:
        return Budget.zcdp(args.rho, **unit)
    if args.epsilon is not None:
        return Budget.approx(args.epsilon, args.delta, **unit)
    if args.mu is None:
        raise BudgetError(
            "No budget is given. Give one of --pcost, --rho, --mu, --pure-epsilon, or --epsilon"
            " with --delta."
        )
    return Budget.gdp(args.mu, **unit)


def budget_data(budget: Budget) -> dict[str, Any]:
    """Return the parameters of a budget for ``--json``."""
    unit = {"rows_per_person": budget.rows_per_person, "neighbours": budget.neighbours}
    return {
        "pcost": budget.pcost,
        "rho": budget.rho,
        "mu": budget.mu,
        "pure_epsilon": budget.pure_epsilon,
        **unit,
        "delta": budget.report_delta if budget.pure_epsilon is None else None,
    }


def form_of(out: Path, name: str | None, forms: Sequence[str]) -> str:
    """Return the format of an output file: ``name``, or if it is None, the ending of the file name.

    Raises
    ------
    PlanError : if ``name`` is None and the ending is not one of the formats ``forms``.
    """
    ending = out.suffix.lower().lstrip(".")
    if name is None and ending not in forms:
        listed = ", ".join(f".{form}" for form in forms)
        alternative = ", or name the --format" if "zip" in forms else ""
        raise PlanError(
            f"The name of the file {out} does not end in one of {listed}. Give a name with one of"
            f" these endings{alternative}."
        )
    return name or ending


def add_records_options(command: argparse.ArgumentParser, text: str = "the records") -> None:
    """Add the options that name the records, or a file of their counts.

    ``text`` is the help text of ``--data``.
    """
    source = command.add_mutually_exclusive_group(required=True)
    source.add_argument("--data", type=Path, metavar="PATH", help=text)
    source.add_argument(
        "--counts",
        dest="data",
        type=_counts_path,
        metavar="FILE",
        help=f"exact counts of the records, in a file {COUNTS_ENDING} of the command count",
    )
    add_named_source(source)
    add_file_options(command)


def add_named_source(sources: argparse._MutuallyExclusiveGroup) -> None:
    """Add the option ``--source``, the name of a database table in a settings file."""
    sources.add_argument(
        "--source",
        metavar="NAME",
        help="name of a database table in the settings file DP_WORKBENCH_SOURCES",
    )


def add_file_options(command: argparse.ArgumentParser) -> None:
    """Add the options for reading a text file or a workbook."""
    command.add_argument(
        "--delimiter",
        metavar="CHARACTER",
        help="character between the fields of a CSV file; by default detected",
    )
    command.add_argument(
        "--encoding",
        metavar="NAME",
        help="encoding of a CSV file, such as latin-1; by default UTF-8",
    )
    command.add_argument(
        "--sheet", metavar="NAME", help="sheet of a workbook; by default its only sheet"
    )


def records_of(args: argparse.Namespace) -> Any:
    """Return the records that the options of `add_records_options` name.

    The result is a path or an object that `measure` accepts as its argument ``data``. DataError is
    raised for options that exclude each other.
    """
    is_text = args.delimiter is not None or args.encoding is not None
    if args.sheet is not None:
        if is_text:
            raise DataError(
                "--sheet is for workbooks, and --delimiter and --encoding are for text files. Leave"
                " out those that do not apply to your file."
            )
        if args.source is not None:
            raise DataError(
                "--sheet cannot be combined with --source. Leave --sheet out, or give a workbook by"
                " --data."
            )
        return SheetFile(path=args.data, sheet=args.sheet)
    if args.source is not None:
        if is_text:
            raise DataError(
                "--delimiter and --encoding cannot be combined with --source. Leave them out, or give"
                " a text file by --data."
            )
        return named_table(args.source)
    if not is_text:
        return Path(args.data)
    return TextFile(path=args.data, delimiter=args.delimiter, encoding=args.encoding or "utf-8")


def _counts_path(text: str) -> Path:
    if not text.lower().endswith(COUNTS_ENDING):
        raise argparse.ArgumentTypeError(
            f"The name {text} does not end in {COUNTS_ENDING}. Give a file that the command count "
            "or counts merge has written."
        )
    return Path(text)


def add_column_options(command: argparse.ArgumentParser) -> None:
    """Add the options that name the person column, the count column and columns to ignore."""
    command.add_argument(
        "--person",
        metavar="COLUMN",
        help="column with identifiers of persons; by default that of the schema",
    )
    command.add_argument(
        "--count-column",
        metavar="COLUMN",
        help="column with the number of records per row, no weights; by default none",
    )
    command.add_argument(
        "--ignore",
        nargs="+",
        default=[],
        metavar="COLUMN",
        help="columns that look like counts and are none; by default none",
    )


def add_rule_options(command: argparse.ArgumentParser, *, share: float | None) -> None:
    """Add the options of the rule that chooses between coarse and fine.

    ``share`` is the default of ``--share``.  If it is None, no rule is applied without ``--share``.
    """
    command.add_argument(
        "--share",
        type=number,
        default=share,
        metavar="SHARE",
        help=(
            "rule: share of coarse cells (0 to 1) that must be reliable; by default"
            f" {'no rule' if share is None else share}"
        ),
    )
    command.add_argument(
        "--snr",
        type=number,
        default=5.0,
        metavar="NUMBER",
        help="number of standard errors from which a count is reliable; by default %(default)g",
    )


def named_columns(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options of `add_column_options` as keyword arguments of `measure`."""
    return {name: getattr(args, name) for name in ("person", "count_column", "ignore")}


def refuse_seed_option(args: argparse.Namespace) -> None:
    """Raise PlanError if ``--seed`` is given to a command that releases records."""
    if args.seed is not None:
        raise PlanError(
            "--seed cannot be used for a release: noise from a public seed gives no privacy. Leave"
            " --seed out, or use --seed with the commands rehearse and coarse-or-fine --simulated."
        )


@contextmanager
def option_names(remedy: str) -> Iterator[None]:
    """Context manager that replaces the advice in an `OtherRecords` error by ``remedy``.

    The advice of the engine names Python arguments; ``remedy`` names options of the command line.
    """
    try:
        yield
    except OtherRecords as error:
        raise OtherRecords(error.fact, remedy) from None


def print_row_summary(rows: Intake) -> None:
    """Print the numbers of rows and the warnings to standard error, for the curator only."""
    print(rows.describe(), file=sys.stderr)
    for text in rows.warnings:
        print(f"Warning: {in_options(text)}", file=sys.stderr)


RELEASE_KEYS = "dataset key released rehearsal"
# In the ledger, the plan hash of one step of a two-stage release is "step:hash"; all other plan
# hashes do not contain this separator.
_STEP_SEPARATOR = ":"


def add_release_options(command: Commands) -> None:
    """Add the options that select a stored measurement."""
    source = command.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--ledger",
        type=Path,
        metavar="FILE",
        help="ledger with the release, with --key or --dataset",
    )
    source.add_argument(
        "--measurement", type=Path, metavar="FILE", help="file written by Measurement.save"
    )
    command.add_argument(
        "--key",
        help="key of a release or a first measurement, as printed; by default that of the only release",
    )
    command.add_argument(
        "--dataset", metavar="NAME", help="dataset of the release; by default that of --key"
    )


def release_of(args: argparse.Namespace) -> Measurement:
    """Return the stored measurement that the options of `add_release_options` select.

    Raises
    ------
    LedgerError : if the options do not select exactly one release, or the file of ``--measurement``
        does not contain a measurement.
    PlanError : if ``--key`` or ``--dataset`` is given without ``--ledger``.
    """
    if args.ledger is None:
        if args.key is not None or args.dataset is not None:
            raise PlanError(
                "--key and --dataset select a release in a --ledger. Leave both out, or give"
                " --ledger."
            )
        return Measurement.load(args.measurement)
    ledger = Ledger(args.ledger)
    key = args.key
    if key is None:
        if args.dataset is None:
            raise LedgerError(
                "--ledger alone does not select a release. Give the --key of the release, or give"
                " --dataset if the dataset has only one release."
            )
        keys = [receipt.key for receipt in releases(ledger, args.dataset)]
        if len(keys) != 1:
            listed = f", one of {', '.join(map(repr, keys[:5]))}" if keys else ""
            raise LedgerError(
                f"The dataset {args.dataset!r} has {pluralize(len(keys), 'release')} in the "
                f"ledger. Give the --key of one release{listed}."
            )
        (key,) = keys
    receipt = ledger.find(key)
    if receipt is None or _STEP_SEPARATOR not in receipt.plan_hash:
        return load_measurement(ledger, key)
    # The key belongs to a two-stage release.  Return the final measurement, which combines both
    # stages, or if there is none yet, the measurement of the first stage.
    steps = stepwise.resume(ledger, key)
    return steps.look if steps.finished is None else steps.finished


def common_plan_of(
    args: argparse.Namespace, plans: Iterable[Plan], names: Sequence[str]
) -> CommonPlan:
    """Return the common plan (common part and residuals) of several plans.

    With ``--chain``, it is a chain of choices between two options; otherwise one choice between
    all plans.
    """
    split = nested_choices if args.chain else coarse_or_fine
    return split(*plans, names=names)


def head_of(measurement: Measurement) -> str:
    """Return the first line of the output.

    It has the dataset and the time of a release, or the words that mark a rehearsal.
    """
    return (
        "REHEARSAL, not for publication"
        if measurement.rehearsal
        else f"{measurement.dataset}, released {measurement.utc}"
    )


def release_data(measurement: Measurement) -> dict[str, Any]:
    """Return the entries of ``--json`` that identify a release, with the keys `RELEASE_KEYS`."""
    identity = {
        "dataset": measurement.dataset or None,
        "key": measurement.key or None,
        "released": measurement.utc or None,
    }
    return identity | {"rehearsal": measurement.rehearsal}


_OPTION_TYPES = get_type_hints(PlanOptions)
_PROGRESS = "progress"  # an option in Python only, because the command line always shows progress
_CONSTANTS = {"true": True, "false": False, "none": None, "null": None}
_SHARED_OPTIONS = tuple(
    name for name in (*(f.name for f in fields(Mechanism)), *LIMITS) if name != _PROGRESS
)
_COMPARISON_LIMITS = ("time_limit", "memory_limit")  # arguments of `comparison`, not of a mechanism


def add_mechanism_options(command: argparse.ArgumentParser, *, several: bool = False) -> None:
    """Add ``--mechanism``, or ``--mechanisms`` if ``several`` is True, and ``--options``."""
    names = [m.name for m in MECHANISMS]
    if several:
        command.add_argument(
            "--mechanisms",
            nargs="+",
            choices=names,
            metavar="NAME",
            help=f"among {', '.join(names)}; by default all, with their variants",
        )
    else:
        command.add_argument(
            "--mechanism",
            default="querysmasher",
            choices=names,
            metavar="NAME",
            help=f"one of {', '.join(names)}; by default %(default)s",
        )
    one_of_several = ", or querysmasher.centers=tuned for one mechanism" if several else ""
    command.add_argument(
        "--options",
        nargs="+",
        default=[],
        metavar="NAME=VALUE",
        help=(
            "options of the mechanism, such as objective=max time_limit=60 (seconds)"
            f" centers=tuned{one_of_several}; by default none"
        ),
    )


def mechanism_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the mechanism options in ``--options`` as keyword arguments of `plan`.

    Raises
    ------
    PlanError : if the mechanism has no option of a given name, or does not allow its value.
    """
    options = implied_options(_parse_options(args.options))
    checked_options(args.mechanism, options)
    return options


def mechanisms_of(
    args: argparse.Namespace,
) -> tuple[list[tuple[str, dict[str, Any]]], dict[str, Any]]:
    """Return the mechanisms to compare, and the limits on time and memory.

    The mechanisms are (name, options) pairs. The limits are keyword arguments of `comparison`, such
    as ``time_limit``.

    Raises
    ------
    PlanError : if a mechanism has no option of a given name, or does not allow its value.
    """
    chosen = (
        variants().values() if args.mechanisms is None else [(name, {}) for name in args.mechanisms]
    )
    own_options, shared = _options_by_mechanism(
        args.options, list(dict.fromkeys(name for name, _ in chosen))
    )
    limits = {name: shared.pop(name) for name in _COMPARISON_LIMITS if name in shared}
    # A mechanism that is selected twice with the same options is compared once.
    by_label = {}
    for name, variant in chosen:
        options = {**variant, **shared, **own_options[name]}
        checked_options(name, options | limits)
        by_label[label_of(name, options)] = name, options
    return list(by_label.values()), limits


def _options_by_mechanism(
    texts: Iterable[str], mechanisms: Sequence[str]
) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Return the options of each mechanism, and the options that apply to all mechanisms.

    ``texts`` have the form ``mechanism.name=value`` for one mechanism, and ``name=value`` for all.
    Both results map names of options to values; the first has one such dictionary per mechanism.

    Raises
    ------
    PlanError : if an option is for a mechanism that is not in ``mechanisms``, or an option for all
        mechanisms is not one of `_SHARED_OPTIONS`.
    """
    own_texts: dict[str, list[str]] = {mechanism: [] for mechanism in mechanisms}
    shared_texts = []
    for text in texts:
        mechanism, dot, _ = text.partition("=")[0].rpartition(".")
        if not dot:
            shared_texts.append(text)
        elif mechanism in own_texts:
            own_texts[mechanism].append(text[len(mechanism) + 1 :])
        else:
            raise PlanError(
                f"The option {quote_public(text)} is for a mechanism that is not compared"
                f"{near_matches(mechanism, own_texts)}. Give an option of a compared"
                f" mechanism: {', '.join(own_texts)}."
            )
    shared = _parse_options(shared_texts)
    if unshared := [name for name in shared if name not in _SHARED_OPTIONS]:
        raise PlanError(
            f"The option {quote_public(unshared[0])} is not an option of all mechanisms"
            f"{near_matches(unshared[0], _SHARED_OPTIONS)}. Give it for one mechanism, as"
            f" MECHANISM.{unshared[0]}=VALUE, or give an option of all mechanisms:"
            f" {', '.join(_SHARED_OPTIONS)}."
        )
    return {mechanism: _parse_options(own) for mechanism, own in own_texts.items()}, shared


def _parse_options(texts: Iterable[str]) -> dict[str, Any]:
    """Return a dictionary of the options in texts of the form ``name=value``."""
    options: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise PlanError(
                f"The option {quote_public(text)} does not have the form NAME=VALUE. Write it like"
                " centers=tuned."
            )
        if name in options:
            raise PlanError(f"The option {quote_public(name)} is given twice. Give it once.")
        if name == _PROGRESS:
            raise PlanError(
                "The option 'progress' is for Python; the command line always shows progress."
                " Leave it out."
            )
        options[name] = value if _OPTION_TYPES.get(name) is str else _parse_value(value)
    return options


def _parse_value(text: str) -> Any:
    """Return the value of an option: true, false or none, a JSON value, or otherwise the text.

    >>> [_parse_value(text) for text in ("4", "best", "false", '{"age": "range"}')]
    [4, 'best', False, {'age': 'range'}]
    """
    if text.casefold() in _CONSTANTS:
        return _CONSTANTS[text.casefold()]
    try:
        return parse_json(text, constants=True)
    except ValueError:
        return text
