"""Ledger fixture for tests of the Release page."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.ledger import Ledger
from engine.privacy import Budget


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    new_ledger = Ledger.create(tmp_path / "budget.ledger")
    new_ledger.add_dataset("survey", total=Budget(pcost=2.5))
    return new_ledger
