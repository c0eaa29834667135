"""A short run of the campaign finds nothing, and everything that is planted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.isolation.campaign import Person, campaign, left_behind
from tests.server.client import opened
from tests.server.serving import Served


def places(served: Served) -> list[Path]:
    return [served.sink.parent / "settings", Path(os.environ["DP_WORKBENCH_CACHE"])]


def folder(served: Served, name: str) -> Path:
    made = served.sink.parent / name
    made.mkdir()
    return made


def test_nothing_crosses(server: Served) -> None:
    assert campaign(server, folder(server, "apart"), places(server), actions=7, rows=400, seed=92) == []


def test_what_crosses_is_noticed(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = f"{server.cookie}; workbench-browser=shared"  # and so the ledgers that were opened before
    monkeypatch.setattr(
        Person, "opened", staticmethod(lambda _, served, asked: opened(served, "release", asked, shared))
    )
    assert "b received b'canaryaq'" in campaign(
        server, folder(server, "shared"), places(server), actions=2, rows=400, seed=1
    )


def test_values_that_are_left_in_a_file_are_noticed(tmp_path: Path) -> None:
    (tmp_path / "places.json").write_text("canaryaq.ledger")
    (tmp_path / "places.json").chmod(0o600)
    private = tmp_path / "dp-workbench-x"
    private.mkdir(mode=0o700)
    (private / "records_1").write_text("canarybq7")
    assert list(left_behind(tmp_path, at_end=False)) == []
    assert list(left_behind(tmp_path, at_end=True)) == ["records_1 holds values of records"]
    private.chmod(0o755)
    (tmp_path / "canarybq.part").touch()
    (tmp_path / "places.json").chmod(0o644)
    assert len(list(left_behind(tmp_path, at_end=False))) == 3
