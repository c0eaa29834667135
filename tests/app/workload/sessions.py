"""Sessions on the Workload page, and a large workload."""

from __future__ import annotations

from engine.workload import Attribute, Schema, Workload
from pages.parts.shell import permalink
from pages.parts.shell.history import RequestState
from tests.app.session import Session, demo_schema

SURVEY = demo_schema("survey")


def open_workload(name: str = "survey", **fields: object) -> Session:
    return Session(plan=permalink.packed(RequestState(workload=Workload(demo_schema(name))))).go(
        "workload", **fields
    )


def build_large_workload() -> Workload:
    schema = Schema(
        [
            Attribute.of_size(f"x{i}", 4, kind="numeric" if i % 2 else "categorical")
            for i in range(26)
        ]
    )
    return Workload.all_ways(schema, (2, 3))
