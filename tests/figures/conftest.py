"""Fixtures: plans for figures."""

from __future__ import annotations

import pytest

from engine.mechanisms import plan
from engine.plans import Plan
from engine.privacy import Budget
from tests.figures.example import example_workload


@pytest.fixture(scope="session")
def plans() -> dict[str, Plan]:
    names = ("identity", "querysmasher", "wff")
    return {name: plan(example_workload(), Budget(pcost=0.7), name) for name in names}
