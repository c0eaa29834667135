"""Fixtures: a working folder with a schema, SQL queries and records."""

from __future__ import annotations

from pathlib import Path

import pytest

from demo_data.make_synthetic import synthetic
from tests.cli.commands import SCHEMA, SQL


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "schema.json").write_text(SCHEMA.to_json())
    (tmp_path / "queries.sql").write_text(SQL)
    synthetic(SCHEMA, 300, seed=1).to_csv(tmp_path / "people.csv", index=False)
    return tmp_path
