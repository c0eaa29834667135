"""A new ledger with one dataset."""

import pytest

from engine.ledger import Ledger
from engine.privacy import Budget


@pytest.fixture
def ledger(tmp_path) -> Ledger:
    made = Ledger.create(tmp_path / "budget.ledger", wait=5.0)
    made.add_dataset("adult", total=Budget(pcost=1.0), note="a first test")
    return made
