"""Ledger fixture."""

import pytest

from engine.ledger import Ledger
from engine.privacy import Budget


@pytest.fixture
def ledger(tmp_path) -> Ledger:
    new_ledger = Ledger.create(tmp_path / "budget.ledger", wait=5.0)
    new_ledger.add_dataset("adult", total=Budget(pcost=1.0), note="a first test")
    return new_ledger
