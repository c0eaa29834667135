"""What an office leaves behind on one machine for another: `python -m tests.processors.office FOLDER`.

Eigenvectors of equal eigenvalues, and the last digits of sums, are what a processor's kernels make of them.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock

import engine.release.measure
from demo_data.make_synthetic import synthetic
from engine.common_mechanism import CommonPlan, stepwise
from engine.common_mechanism.common_plan import coarse_or_fine
from engine.ledger import Ledger
from engine.mechanisms import plan
from engine.plans import Plan
from engine.postprocess import publish
from engine.privacy import Budget
from engine.publish.release_package import write_package
from engine.publish.tables_package import write_tables
from engine.workload import Attribute, Schema, Workload

measuring: Any = sys.modules["engine.release.measure"]
SCHEMA = Schema([Attribute.of_size("a", 8), Attribute.of_size("b", 5), Attribute.of_size("c", 3)])
RECORDS = synthetic(SCHEMA, 900, seed=5)
PLANS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "ranges": ({"ways": (0, 1, 2), "family": "range"}, {}),
    "wheels": ({"ways": (1, 2), "family": "circular"}, {}),
    "sums": ({"ways": (2,), "family": "affine"}, {}),
    "differences": ({"ways": (2,), "family": "abs"}, {"centers": "uniform"}),
    "cells": ({"ways": (1, 2, 3), "family": "marginal"}, {"objective": "max"}),
    "prefixes": ({"ways": (1, 2), "family": "prefix"}, {"mechanism": "residualplanner+"}),
    "product": ({"ways": (1, 2), "family": "prefix"}, {"mechanism": "hdmm"}),
}
STEPS = ("range", "prefix", "circular", "marginal")
TABLES = Workload.all_ways(SCHEMA, (0, 1, 2), family="marginal").add(("a", "b"), "prefix")


class Died(BaseException):
    """The machine went out."""


def made(name: str) -> Plan:
    asked, options = PLANS[name]
    return plan(Workload.all_ways(SCHEMA, **asked), Budget(pcost=0.1), cache=False, **options)


def choices(family: str) -> CommonPlan:
    """Options whose costs have a last digit that depends on the order of sums."""
    coarse, fine = (
        plan(Workload.all_ways(SCHEMA, ways, family=family), Budget(pcost=0.3), cache=False) for ways in (1, (1, 2))
    )
    return coarse_or_fine(coarse, fine, names=["coarse", "fine"])


def broken_off(name: str, book: Ledger) -> None:
    """Pay for a plan, and go out before anything is drawn."""
    with mock.patch.object(measuring, "draw", side_effect=Died), suppress(Died):
        engine.release.measure(made(name), RECORDS, dataset="broken", ledger=book)


def work(folder: Path) -> None:
    """Fill a folder with a ledger, packages, tables, a look, and releases that were paid for and never drawn."""
    book = Ledger.create(folder / "office.ledger")
    for dataset in ("people", "broken", *STEPS):
        book.add_dataset(dataset, total=Budget(pcost=2.0))
    for name in PLANS:
        found = engine.release.measure(made(name), RECORDS, dataset="people", ledger=book)
        found.save(folder / f"{name}.measured")
        write_package(found, folder / f"{name}.zip", receipt=book.find(found.key))
        broken_off(name, book)
    tables = plan(TABLES, Budget(pcost=0.5), cache=False)
    found = engine.release.measure(tables, RECORDS, dataset="people", ledger=book)
    write_tables(publish(found).uncertainty(draws=3), folder / "tables.zip")
    for family in STEPS:
        stepwise.look(choices(family), RECORDS, dataset=family, ledger=book)


if __name__ == "__main__":
    work(Path(sys.argv[1]))
