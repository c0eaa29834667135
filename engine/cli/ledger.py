"""Commands budget and verify."""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path

from engine._format import cost, remainder
from engine.cli.arguments import add_budget_options, budget_of
from engine.cli.output import Commands, Reply, add_command
from engine.errors import LedgerError
from engine.ledger import Ledger, verify_ledger
from engine.ledger.balance import DatasetStatus
from engine.ledger.ledger import ConfusableName
from engine.privacy import Budget
from engine.publish.verify import verify_package

LEFT = "dataset total spent left note counts kind rows_per_person neighbours exact"


def add_keeping_commands(commands: Commands) -> None:
    """Add the commands ``budget`` and ``verify``."""
    budget = commands.add_parser("budget", help="create a ledger, add a dataset, change its total, show what is left")
    actions = budget.add_subparsers(required=True, metavar="action")
    add_command(actions, "create", _create, "create a ledger", keys="ledger public_key")
    add = add_command(actions, "add", _add, "add a dataset", keys=LEFT)
    add_command(actions, "status", _status, "show what is left of every dataset", keys="datasets", aliases=["list"])
    change = add_command(actions, "change", _change, "raise or lower the total of a dataset", keys=LEFT)
    for action in set(actions.choices.values()):
        action.add_argument("--ledger", type=Path, required=True)
    add.add_argument("--dataset", required=True)
    add.add_argument("--note", default="")
    add_budget_options(add)
    change.add_argument("--dataset", required=True)
    change.add_argument("--by", required=True, help="who changes it; stays on the ledger")
    change.add_argument("--reason", required=True, help="why; stays on the ledger")
    add_budget_options(change)

    verify = add_command(
        commands, "verify", _verify, "check every row and result of a ledger, or a package", keys="sound problems"
    )
    verify.add_argument("--ledger", type=Path)
    verify.add_argument("--package", type=Path, help="zip: recompute all in it; with --ledger, find its spend")
    verify.add_argument("--public-key", help="of the ledger that must have signed the package")
    verify.add_argument("--receipt", action="append", default=[], metavar="ROW:HASH", help="kept elsewhere; may repeat")


def _create(given: argparse.Namespace) -> Reply:
    Ledger.create(given.ledger)
    key = Ledger(given.ledger).sign(b"")[0]
    return Reply(
        text=f"created {given.ledger}; what it signs has the public key {key}",
        data={"ledger": given.ledger, "public_key": key},
    )


def _add(given: argparse.Namespace) -> Reply:
    book, total = Ledger(given.ledger), budget_of(given)
    # mu, and epsilon with delta, are numbers on the curve of Gaussian noise
    kind = "gdp" if given.mu is not None or given.epsilon is not None else None
    with warnings.catch_warnings(record=True) as similar:
        warnings.simplefilter("always", ConfusableName)
        book.add_dataset(given.dataset, total=total, note=given.note, kind=kind)
    for warning in similar:
        print(f"Warning: {warning.message}", file=sys.stderr)
    status = book.status(given.dataset)
    return Reply(text=f"{given.dataset}: {status.describe()}. {_meaning(status, total)}", data=_left(status))


def _change(given: argparse.Namespace) -> Reply:
    book, total = Ledger(given.ledger), budget_of(given)
    book.change_total(given.dataset, total=total, by=given.by, reason=given.reason)
    status = book.status(given.dataset)
    text = f"{given.dataset}: {status.left!r} of {status.total!r} left. {_meaning(status, total)}"
    return Reply(text=text, data=_left(status))


def _meaning(status: DatasetStatus, total: Budget) -> str:
    """What a total means; zCDP alone holds for Gaussian and Laplace noise together."""
    mixed = " With releases of Laplace noise among them only rho holds." if status.definition.kind == "zcdp" else ""
    return f"{total.describe()}{mixed}"


def _left(row: DatasetStatus) -> dict[str, object]:
    numbers = {"dataset": row.dataset, "total": row.total, "spent": row.spent, "left": row.left, "note": row.note}
    return numbers | {"counts": row.definition.counts} | vars(row.definition) | {"exact": list(row.exact)}


def _status(given: argparse.Namespace) -> Reply:
    found = Ledger(given.ledger).datasets()
    lines = []
    for row in found:
        numbers = f"total {cost(row.total)}, spent {cost(row.spent)}, left {remainder(row.left)}"
        lines.append(f"{row.dataset}: {row.definition.counts} {numbers}; {row.describe()}")
    return Reply(text="\n".join(lines), data={"datasets": [_left(row) for row in found]})


def _verify(given: argparse.Namespace) -> Reply:
    if given.ledger is None and given.package is None:
        raise LedgerError("Give --ledger, --package, or both.")
    problems: list[str] = []
    if given.package is not None:
        public = given.public_key or (None if given.ledger is None else Ledger(given.ledger).sign(b"")[0])
        problems += verify_package(given.package, public_key=public, ledger=given.ledger)
    if given.ledger is not None:
        problems += verify_ledger(given.ledger, hashes=[_row_hash(text) for text in given.receipt])
    return Reply(
        text="\n".join(problems) or "every file, row and result is as it was written",
        data={"sound": not problems, "problems": problems},
        code=1 if problems else 0,
    )


def _row_hash(text: str) -> tuple[int, str]:
    row, _, found = text.partition(":")
    if not row.isdecimal() or not found:
        raise LedgerError(f"The receipt {text!r} is none. Give ROW:HASH, as a certificate has them under ledger.")
    return int(row), found
