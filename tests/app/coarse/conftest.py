"""Records and a ledger for the page "Coarse or fine"."""

from __future__ import annotations

from pathlib import Path

import pytest

from demo_data.make_synthetic import synthetic
from engine.ledger import Ledger
from engine.privacy import Budget
from tests.app.coarse.sessions import SCHEMA


@pytest.fixture
def records(tmp_path: Path) -> Path:
    place = tmp_path / "records.csv"
    synthetic(SCHEMA, 3000, seed=3).to_csv(place, index=False)
    return place


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    new_ledger = Ledger.create(tmp_path / "office.ledger")
    new_ledger.add_dataset("office", total=Budget(pcost=1.0))
    return new_ledger
