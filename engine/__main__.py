"""Command line: plan, forecast, compare, show, check, release, rehearse, look, decide, finish, budget, verify.

python -m engine plan --schema adult.json --ways 1 2 3 --pcost 1 --out plan.json
python -m engine budget create --ledger office.ledger
python -m engine budget add --ledger office.ledger --dataset survey --rho 1
python -m engine check --plan plan.json --data survey.csv
python -m engine release --plan plan.json --data survey.csv --dataset survey --ledger office.ledger --out a.parquet
python -m engine verify --ledger office.ledger --package release.zip
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from engine.errors import BudgetError, EngineError, LedgerError, PlanError, SchemaError, WorkloadError
from engine.insight import claim_text, comparison
from engine.mechanisms import MECHANISMS, forecast, plan
from engine.plans import Plan
from engine.privacy import ADD_REMOVE, NEIGHBOURS, Budget
from engine.publish import FORMATS, check_target, new_file, verify_package, write_answers, write_package
from engine.release import Intake, Ledger, check_records, declare_public, measure, read_plan, release_key, verify_ledger
from engine.step_commands import add_column_options, add_step_commands, named_columns
from engine.texts import set_name
from engine.workload import Schema, Workload


def main(arguments: list[str] | None = None) -> int:
    """Run one command; return 0, or 1 after printing what was wrong."""
    parser = _parser()
    given = parser.parse_args(arguments)
    try:
        code = int(given.run(given) or 0)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # who reads has seen enough; what is left must not be written, and fail, once more at the end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + 13
    except EngineError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"{where}{error.strerror or type(error).__name__}. Check the path and who may use it.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m engine", description="Differentially private query answering.")
    commands = parser.add_subparsers(required=True, metavar="command")

    for name, run, text in (
        ("plan", _plan, "fit a mechanism to a workload and write the plan"),
        ("forecast", _forecast, "say what planning would take"),
        ("compare", _compare, "plan with every mechanism and rank them"),
    ):
        command = commands.add_parser(name, help=text)
        what = command.add_mutually_exclusive_group(required=True)
        what.add_argument("--workload", type=Path, help="workload JSON")
        what.add_argument("--schema", type=Path, help="schema JSON or CSV, with --ways")
        command.add_argument("--ways", type=int, nargs="+", default=[1, 2, 3], help="all k-way sets, family by kind")
        command.set_defaults(run=run)
        names = [m.name for m in MECHANISMS]
        if name == "compare":
            command.add_argument("--mechanisms", nargs="+", choices=names, help="by default all, with their variants")
        else:
            command.add_argument("--mechanism", default="querysmasher", choices=names)
        if name != "forecast":
            _budget_options(command)
        if name == "plan":
            command.add_argument("--out", type=Path, required=True, help="plan JSON to write; never over another file")

    show = commands.add_parser("show", help="what a plan promises, group by group")
    show.add_argument("--plan", type=Path, required=True)
    show.set_defaults(run=_show)

    for name, text in (
        ("release", "spend the plan's cost once and write the answers"),
        ("rehearse", "the same on simulated or public records; spends nothing, marks every file"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("--plan", type=Path, required=True)
        command.add_argument(
            "--data", type=Path, required=True, help="CSV or parquet; rows outside the schema are left out"
        )
        command.add_argument("--out", type=Path, required=True, help="file for the answers")
        command.add_argument(
            "--format", choices=(*FORMATS, "zip"), help="by default the ending of --out; zip: the package"
        )
        add_column_options(command)
        command.add_argument("--confidence", type=float, default=0.95)
        command.add_argument("--overwrite", action="store_true", help="replace an earlier file of answers")
        if name == "release":
            command.add_argument("--attempt", type=int, default=1)
        else:
            records = command.add_mutually_exclusive_group(required=True)
            records.add_argument("--simulated", action="store_true", help="the records were made by a program")
            records.add_argument("--public", metavar="WHY", default="", help="anybody has the records; say why")
        only = "; notes that the records are public, and finds those released before" if name == "rehearse" else ""
        command.add_argument("--dataset", required=name == "release", help=f"name in the ledger{only}")
        command.add_argument("--ledger", type=Path, required=name == "release")
        command.set_defaults(run=_release, rehearsal=name == "rehearse")

    check = commands.add_parser("check", help="how records fit a plan; exact, for the curator's eyes only")
    check.add_argument("--plan", type=Path, required=True)
    check.add_argument("--data", type=Path, required=True)
    check.add_argument("--ledger", type=Path, help="also look for the same records under other names")
    check.add_argument("--dataset", default="", help="their name in the ledger")
    add_column_options(check)
    check.set_defaults(run=_check)

    add_step_commands(commands, progress=_bar, say_rows=_say_rows)

    budget = commands.add_parser("budget", help="create a ledger, add a dataset, show what is left")
    actions = budget.add_subparsers(required=True, metavar="action")
    for name, run in (("create", _create), ("add", _add), ("status", _status)):
        action = actions.add_parser(name)
        action.add_argument("--ledger", type=Path, required=True)
        action.set_defaults(run=run)
        if name == "add":
            action.add_argument("--dataset", required=True)
            action.add_argument("--note", default="")
            _budget_options(action)

    verify = commands.add_parser("verify", help="check every row and result of a ledger, or a package")
    verify.add_argument("--ledger", type=Path)
    verify.add_argument("--package", type=Path, help="zip: recompute everything in it; with --ledger, find its spend")
    verify.add_argument("--public-key", help="of the ledger that must have signed the package")
    verify.add_argument("--receipt", action="append", default=[], metavar="ROW:HASH", help="kept elsewhere; may repeat")
    verify.set_defaults(run=_verify)
    return parser


def _budget_options(command: argparse.ArgumentParser) -> None:
    which = command.add_mutually_exclusive_group(required=True)
    which.add_argument("--pcost", type=float)
    which.add_argument("--rho", type=float, help="zCDP")
    which.add_argument("--mu", type=float, help="Gaussian DP")
    which.add_argument("--epsilon", type=float, help="with --delta")
    which.add_argument("--pure-epsilon", type=float, help="delta 0, for mechanisms with Laplace noise")
    command.add_argument("--delta", type=float)
    command.add_argument("--rows-per-person", type=int, help="most rows of one person, protected together")
    command.add_argument("--neighbours", choices=NEIGHBOURS, default=ADD_REMOVE, help="which data sets look alike")


def _budget(given: argparse.Namespace, schema: Schema | None = None) -> Budget:
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
    return Budget.gdp(given.mu, **unit) if given.mu is not None else Budget.approx(given.epsilon, given.delta, **unit)


def _workload(given: argparse.Namespace) -> Workload:
    if given.workload is not None:
        return Workload.from_json(_text(given.workload, WorkloadError))
    text = _text(given.schema, SchemaError)
    schema = Schema.from_csv(text) if given.schema.suffix.lower() == ".csv" else Schema.from_json(text)
    return Workload.all_ways(schema, tuple(given.ways))


def _text(path: Path, error: type[EngineError]) -> bytes:
    try:
        return path.read_bytes()
    except OSError as reason:
        raise error(f"The file {path} cannot be read: {reason.strerror}. Give the path of an existing file.") from None


def _plan(given: argparse.Namespace) -> None:
    workload = _workload(given)
    sources = [path for path in (given.workload, given.schema) if path is not None]
    if not given.out.is_file():  # what is there may be the same plan, which is then left as it is
        check_target(given.out, keep=sources)
    made = plan(workload, _budget(given, workload.schema), given.mechanism, progress=_bar)
    if not _is_there(made, given.out):
        with new_file(given.out, keep=sources) as partial:
            partial.write_text(made.to_json(), encoding="utf-8")
    _promise(made)
    print(f"plan       {given.out}")


def _is_there(made: Plan, path: Path) -> bool:
    """Whether a file holds this very plan."""
    try:
        return path.is_file() and read_plan(path).hash == made.hash
    except EngineError:
        return False


def _forecast(given: argparse.Namespace) -> None:
    found = forecast(_workload(given), given.mechanism)
    print(f"{found.text}: about {found.seconds:.1f} s and at most {found.memory / 1e6:,.0f} MB")


def _compare(given: argparse.Namespace) -> None:
    workload = _workload(given)
    found = comparison(workload, _budget(given, workload.schema), given.mechanisms, progress=_bar)
    served = found.frame["rmse"].notna()
    print(found.frame[served].drop(columns="status").to_string(index=False, float_format=lambda v: f"{v:.4g}"))
    for row in found.frame[~served].itertuples():
        print(f"{row.mechanism}: {row.status}")
    print(f"{found.statement} It is {found.bound:.6g} counts.")


def _promise(made: Plan) -> None:
    print(f"queries    {made.workload.queries:,} in {len(made.workload.groups):,} groups")
    print(f"rmse       {made.rmse:.6g} counts")
    print(f"proven     {claim_text(made)}")
    print(f"budget     {made.budget.describe()}")
    print(f"promise    {made.budget.promise}")
    if note := made.schema.other_rows(made.budget.rows_per_person):
        print(f"rows       {note}")


def _show(given: argparse.Namespace) -> None:
    made = read_plan(given.plan)
    _promise(made)
    groups = made.by_group()
    groups["attributes"] = [set_name(names) for names in groups["attributes"]]
    print(groups.to_string(index=False))


def _check(given: argparse.Namespace) -> None:
    print("For your eyes only: these exact numbers depend on single records.", file=sys.stderr)
    book = None if given.ledger is None else Ledger(given.ledger)
    asked = {"dataset": given.dataset, "ledger": book} | named_columns(given)
    found = check_records(read_plan(given.plan), given.data, **asked, progress=_bar)
    _say_rows(found)
    for column, reasons in found.reasons.items():
        print(f"{column}: " + ", ".join(f"{rows:,} {reason}" for reason, rows in reasons.items()), file=sys.stderr)


def _release(given: argparse.Namespace) -> None:
    keep = [path for path in (given.plan, given.data, given.ledger) if path is not None]
    kind = _kind(given)
    check_target(given.out, keep=keep, overwrite=given.overwrite)
    made, book = read_plan(given.plan), None if given.ledger is None else Ledger(given.ledger)
    if given.rehearsal and given.public and book is not None:
        if not given.dataset:
            raise LedgerError("--ledger needs --dataset, the name under which the records are noted as public.")
        asked = {"dataset": given.dataset, "ledger": book, "why": given.public} | named_columns(given)
        declare_public(made, given.data, **asked)
    where = {} if given.rehearsal else {"dataset": given.dataset, "ledger": book, "attempt": given.attempt}
    key = release_key(dataset=given.dataset, plan_hash=made.hash, attempt=given.attempt) if where else ""
    before = None if book is None or not key else book.find(key)
    measured = measure(
        made,
        given.data,
        rehearsal=given.rehearsal,
        on_refused="drop",
        progress=_bar,
        intake=_say_rows,
        **named_columns(given),
        **where,
    )
    options = {"confidence": given.confidence, "overwrite": given.overwrite, "progress": _bar}
    if kind == "zip":
        receipt = None if given.rehearsal or book is None else book.find(key)
        write_package(measured, given.out, receipt=receipt, ledger=book, **options)
    else:
        write_answers(measured, given.out, format=kind, **options)
    spent = f"spent pcost {made.pcost!r}"
    if given.rehearsal:
        spent = "REHEARSAL, nothing was spent; not for publication"
    elif before is not None:
        spent = f"the release of {before.utc} once more, nothing new was spent; --attempt 2 or more draws again"
    print(f"{made.workload.queries:,} answers in {given.out}; {spent}")


def _kind(given: argparse.Namespace) -> str:
    """The form of the answers, from --format or the ending of --out."""
    ending = given.out.suffix.lower().lstrip(".")
    allowed = (*FORMATS, "zip")
    if given.format is None and ending not in allowed:
        endings = ", ".join(f".{known}" for known in allowed)
        raise PlanError(
            f"The file --out {given.out} ends in none of {endings}. Give one of them, or name the --format."
        )
    return str(given.format or ending)


def _say_rows(rows: Intake) -> None:
    print(rows.describe(), file=sys.stderr)
    for text in rows.warnings:
        print(f"Warning: {text}", file=sys.stderr)


def _create(given: argparse.Namespace) -> None:
    Ledger.create(given.ledger)
    print(f"created {given.ledger}; what it signs has the public key {Ledger(given.ledger).sign(b'')[0]}")


def _add(given: argparse.Namespace) -> None:
    book, total = Ledger(given.ledger), _budget(given)
    # mu, and epsilon with delta, are read off the curve of Gaussian noise
    kind = "gdp" if given.mu is not None or given.epsilon is not None else None
    book.add_dataset(given.dataset, total=total, note=given.note, kind=kind)
    print(f"{given.dataset}: {book.status(given.dataset).definition.describe()}. {total.describe()}")


def _status(given: argparse.Namespace) -> None:
    for row in Ledger(given.ledger).datasets():
        numbers = f"total {row.total:.6g}, spent {row.spent:.6g}, left {row.left:.6g}"
        print(f"{row.dataset}: {row.definition.counts} {numbers}; {row.definition.describe()}")


def _verify(given: argparse.Namespace) -> int:
    if given.ledger is None and given.package is None:
        raise LedgerError("Give --ledger, --package, or both.")
    problems: list[str] = []
    if given.package is not None:
        public = given.public_key or (None if given.ledger is None else Ledger(given.ledger).sign(b"")[0])
        problems += verify_package(given.package, public_key=public, ledger=given.ledger)
    if given.ledger is not None:
        problems += verify_ledger(given.ledger, hashes=[_row_hash(text) for text in given.receipt])
    print("\n".join(problems) or "every file, row and result is as it was written")
    return 1 if problems else 0


def _row_hash(text: str) -> tuple[int, str]:
    row, _, found = text.partition(":")
    if not row.isdecimal() or not found:
        raise LedgerError(f"The receipt {text!r} is none. Give ROW:HASH, as a certificate has them under ledger.")
    return int(row), found


def _bar(fraction: float, text: str) -> None:
    if sys.stderr.isatty():
        print(
            f"\r{100 * fraction:5.1f}%  {text:60.60s}", end="\n" if fraction >= 1 else "", file=sys.stderr, flush=True
        )


if __name__ == "__main__":
    sys.exit(main())
