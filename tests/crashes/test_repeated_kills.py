"""A release killed ten times between its blocks is one draw and one spend."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from demo_data.make_synthetic import synthetic
from engine.ledger.release_files import Journal
from engine.mechanisms import plan
from engine.privacy import Budget
from engine.workload import Attribute, Schema, Workload
from tests.crashes.campaign import campaign

SCHEMA = Schema([Attribute.of_size(name, 4) for name in "abcd"])
PLAN = plan(Workload.all_ways(SCHEMA, (2,), "affine"), Budget(pcost=1.0))
RECORDS = synthetic(SCHEMA, 200, seed=1)


def test_release_killed_ten_times_draws_noise_once(tmp_path: Path) -> None:
    assert list(campaign(PLAN, RECORDS, tmp_path, kills=10)) == []


def test_campaign_detects_second_draw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Journal, "bits", lambda self, row: os.urandom)
    assert any("different noise" in text for text in campaign(PLAN, RECORDS, tmp_path, kills=2))
