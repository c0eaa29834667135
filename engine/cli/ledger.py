"""Commands ``budget`` and ``verify``."""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path

from engine._format import cost, remaining_text
from engine.cli.arguments import add_budget_options, budget_of
from engine.cli.output import Commands, Reply, add_command, add_command_group
from engine.errors import LedgerError
from engine.ledger import Ledger, verify_ledger
from engine.ledger.balance import DatasetStatus
from engine.ledger.ledger import ConfusableName
from engine.ledger.signing import key_fingerprint
from engine.privacy import Budget
from engine.publish import package_signer, verify_package

STATUS_KEYS = "dataset total spent left note counts kind rows_per_person neighbours delta exact"


def add_ledger_commands(commands: Commands) -> None:
    """Add the commands ``budget`` and ``verify``."""
    actions = add_command_group(commands, "budget")
    add_command(actions, "create", _create, "create a ledger", json_keys="ledger public_key")
    add = add_command(actions, "add", _add, "add a dataset", json_keys=STATUS_KEYS)
    add_command(
        actions,
        "status",
        _status,
        "show the remaining budget of every dataset",
        json_keys="datasets",
        aliases=["list"],
    )
    change = add_command(
        actions, "change", _change, "raise or lower the total of a dataset", json_keys=STATUS_KEYS
    )
    for action in set(actions.choices.values()):
        action.add_argument(
            "--ledger", type=Path, required=True, metavar="FILE", help="file of the ledger"
        )
    for action in (add, change):
        action.add_argument(
            "--dataset", required=True, metavar="NAME", help="name of the dataset in the ledger"
        )
    add.add_argument(
        "--note", default="", metavar="TEXT", help="text stored with the dataset; by default empty"
    )
    add_budget_options(add)
    change.add_argument(
        "--by", required=True, metavar="NAME", help="person who changes the total, for the ledger"
    )
    change.add_argument(
        "--reason", required=True, metavar="TEXT", help="reason of the change, for the ledger"
    )
    add_budget_options(change)

    verify = add_command(
        commands,
        "verify",
        _verify,
        json_keys="sound problems signer",
    )
    verify.add_argument(
        "--ledger",
        type=Path,
        metavar="FILE",
        help="ledger to verify, which must contain the spend of --package; by default none",
    )
    verify.add_argument(
        "--package",
        type=Path,
        metavar="FILE",
        help="release package (zip) to verify by recomputing its content; by default none",
    )
    verify.add_argument(
        "--public-key",
        metavar="KEY",
        help="public key that must have signed --package; by default that of --ledger, or any",
    )
    verify.add_argument(
        "--receipt",
        action="append",
        default=[],
        metavar="ROW:HASH",
        help="row and hash of a receipt, which --ledger must contain; repeatable; by default none",
    )


def _create(args: argparse.Namespace) -> Reply:
    """Run ``budget create``: create a ledger and its key."""
    Ledger.create(args.ledger)
    key = Ledger(args.ledger).public_key()
    return Reply(
        text=(
            f"created {args.ledger}; its signatures have the public key {key}, with the fingerprint"
            f" {key_fingerprint(key)}"
        ),
        data={"ledger": args.ledger, "public_key": key},
    )


def _add(args: argparse.Namespace) -> Reply:
    """Run ``budget add``: add a dataset with its total budget."""
    ledger, total = Ledger(args.ledger), budget_of(args)
    # Totals in mu, or in epsilon with delta, bound the privacy curve of all releases by that of
    # Gaussian noise.  This requires the kind "gdp", which charges more for Laplace noise.
    kind = "gdp" if args.mu is not None or args.epsilon is not None else None
    with warnings.catch_warnings(record=True) as similar:
        warnings.simplefilter("always", ConfusableName)
        ledger.add_dataset(args.dataset, total=total, note=args.note, kind=kind)
    for warning in similar:
        print(f"Warning: {warning.message}", file=sys.stderr)
    status = ledger.status(args.dataset)
    return Reply(
        text=f"{args.dataset}: {status.describe()}. {_meaning(status, total)}",
        data=_status_data(status),
    )


def _change(args: argparse.Namespace) -> Reply:
    """Run ``budget change``: change the total budget of a dataset."""
    ledger, total = Ledger(args.ledger), budget_of(args)
    ledger.change_total(args.dataset, total=total, by=args.by, reason=args.reason)
    status = ledger.status(args.dataset)
    amounts = f"{remaining_text(status.left)} of {cost(status.total)} left"
    text = f"{args.dataset}: {status.definition.unit} {amounts}. {_meaning(status, total)}"
    return Reply(text=text, data=_status_data(status))


def _meaning(status: DatasetStatus, total: Budget) -> str:
    """Return sentences that state the guarantee of the total budget of a dataset."""
    # A total of kind "zcdp" bounds rho.  `total.describe()` also states the epsilon of Gaussian
    # noise, which Laplace noise with the same rho can exceed.
    mixed = (
        " If some releases use Laplace noise, only the statement in rho is valid."
        if status.definition.kind == "zcdp"
        else ""
    )
    return f"{total.describe()}{mixed}"


def _status_data(status: DatasetStatus) -> dict[str, object]:
    """Return the entries of ``--json`` about a dataset, with the keys `STATUS_KEYS`."""
    numbers = {
        "dataset": status.dataset,
        "total": status.total,
        "spent": status.spent,
        "left": status.left,
        "note": status.note,
    }
    definition = vars(status.definition) | (
        {"delta": None} if status.definition.kind == "pure" else {}
    )
    return numbers | {"counts": status.definition.unit} | definition | {"exact": list(status.exact)}


def _status(args: argparse.Namespace) -> Reply:
    """Run ``budget status``: list the budgets of all datasets."""
    datasets = Ledger(args.ledger).datasets()
    lines = []
    for row in datasets:
        numbers = (
            f"total {cost(row.total)}, spent {cost(row.spent)}, left {remaining_text(row.left)}"
        )
        lines.append(f"{row.dataset}: {row.definition.unit} {numbers}; {row.describe()}")
    return Reply(text="\n".join(lines), data={"datasets": [_status_data(row) for row in datasets]})


def _verify(args: argparse.Namespace) -> Reply:
    """Run ``verify``: report all problems of a ledger, a release package, or both."""
    if args.ledger is None and args.package is None:
        raise LedgerError("There is nothing to verify. Give --ledger, --package, or both.")
    problems: list[str] = []
    signer: dict[str, str] | None = None
    lines = ["every file, row and result is unchanged"]
    if args.package is not None:
        signing_key = package_signer(args.package)
        public_key = args.public_key or (
            None if args.ledger is None else Ledger(args.ledger).public_key()
        )
        problems += verify_package(args.package, public_key=public_key, ledger=args.ledger)
        if signing_key is None:
            lines.append("the package is not signed: nothing in it shows who published it")
        else:
            signer = {"public_key": signing_key, "fingerprint": key_fingerprint(signing_key)}
            lines.append(f"signed with the public key {signing_key}")
            lines.append(
                f"fingerprint of this key: {signer['fingerprint']}; compare it with the one that the"
                " publisher gives in another way"
                if public_key is None
                else f"fingerprint of this key, which is the required one: {signer['fingerprint']}"
            )
    if args.ledger is not None:
        problems += verify_ledger(args.ledger, hashes=[_row_hash(text) for text in args.receipt])
    return Reply(
        text="\n".join(problems or lines),
        data={"sound": not problems, "problems": problems, "signer": signer},
        code=1 if problems else 0,
    )


def _row_hash(text: str) -> tuple[int, str]:
    """Return the row number and the hash in a text of the form ROW:HASH."""
    row, _, row_hash = text.partition(":")
    if not row.isdecimal() or not row_hash:
        raise LedgerError(
            f"The receipt {text!r} does not have the form ROW:HASH. Copy the number and the hash of"
            " the row from the entry 'ledger' of a certificate."
        )
    return int(row), row_hash
