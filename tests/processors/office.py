"""Write a ledger and releases for another processor: `python -m tests.processors.office FOLDER`.

Eigenvectors of equal eigenvalues and the last digits of sums depend on the processor.
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

measure_module: Any = sys.modules["engine.release.measure"]
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


class SimulatedCrash(BaseException):
    """Crash of the process before noise is drawn."""


def build_plan(name: str) -> Plan:
    queries, options = PLANS[name]
    return plan(Workload.all_ways(SCHEMA, **queries), Budget(pcost=0.1), cache=False, **options)


def choices(family: str) -> CommonPlan:
    """Return a choice between a coarse and a fine plan.

    The last digits of their costs depend on the order in which terms are summed.
    """
    coarse, fine = (
        plan(Workload.all_ways(SCHEMA, ways, family=family), Budget(pcost=0.3), cache=False)
        for ways in (1, (1, 2))
    )
    return coarse_or_fine(coarse, fine, names=["coarse", "fine"])


def interrupt_release(name: str, ledger: Ledger) -> None:
    """Spend the budget of a plan and stop before noise is drawn."""
    with (
        mock.patch.object(measure_module, "draw", side_effect=SimulatedCrash),
        suppress(SimulatedCrash),
    ):
        engine.release.measure(build_plan(name), RECORDS, dataset="broken", ledger=ledger)


def write_office(folder: Path) -> None:
    """Write a ledger, packages, tables, looks and interrupted releases to a folder."""
    ledger = Ledger.create(folder / "office.ledger")
    for dataset in ("people", "broken", *STEPS):
        ledger.add_dataset(dataset, total=Budget(pcost=2.0))
    for name in PLANS:
        measurement = engine.release.measure(
            build_plan(name), RECORDS, dataset="people", ledger=ledger
        )
        measurement.save(folder / f"{name}.measured")
        write_package(measurement, folder / f"{name}.zip", receipt=ledger.find(measurement.key))
        interrupt_release(name, ledger)
    tables = plan(TABLES, Budget(pcost=0.5), cache=False)
    measurement = engine.release.measure(tables, RECORDS, dataset="people", ledger=ledger)
    write_tables(publish(measurement).uncertainty(draws=3), folder / "tables.zip")
    for family in STEPS:
        stepwise.look(choices(family), RECORDS, dataset=family, ledger=ledger)


if __name__ == "__main__":
    write_office(Path(sys.argv[1]))
