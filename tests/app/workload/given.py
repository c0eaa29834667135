"""Sessions on the Workload page and workloads of every kind and size."""

from __future__ import annotations

from engine.workload import Attribute, Schema, Workload
from pages.parts.shell import link
from pages.parts.shell.state import Studio
from tests.app.session import Session, demo

SURVEY = demo("survey")


def on_workload(name: str = "survey", **left: object) -> Session:
    return Session(plan=link.packed(Studio(workload=Workload(demo(name))))).go("workload", **left)


def large_workload() -> Workload:
    schema = Schema([Attribute.of_size(f"x{i}", 4, kind="numeric" if i % 2 else "categorical") for i in range(26)])
    return Workload.all_ways(schema, (2, 3))
