"""A short campaign reports no leak of the server, and reports every planted leak."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.isolation.campaign import Person, campaign, left_behind
from tests.server.client import open_client
from tests.server.serving import RunningServer


def searched_folders(served: RunningServer) -> list[Path]:
    return [served.sink.parent / "settings", Path(os.environ["DP_WORKBENCH_CACHE"])]


def new_folder(served: RunningServer, name: str) -> Path:
    path = served.sink.parent / name
    path.mkdir()
    return path


def test_campaign_with_separate_browsers_reports_no_leak(server: RunningServer) -> None:
    leaks = campaign(
        server,
        new_folder(server, "separate"),
        searched_folders(server),
        actions=7,
        rows=400,
        seed=92,
    )
    assert leaks == []


def test_campaign_with_shared_browser_reports_leak(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Both people use one browser, so that the session of each person lists the ledgers of the
    # other.
    shared = f"{server.cookie}; workbench-browser=shared"
    monkeypatch.setattr(
        Person,
        "opened",
        staticmethod(lambda _, served, query: open_client(served, "release", query, shared)),
    )
    leaks = campaign(
        server, new_folder(server, "shared"), searched_folders(server), actions=2, rows=400, seed=1
    )
    assert "b received b'canaryaq'" in leaks  # the mark of all values of person a


def test_left_behind_reports_files_with_private_values(tmp_path: Path) -> None:
    # "canary", the name of a person and "q" mark private values; records have a number, too
    (tmp_path / "places.json").write_text("canaryaq.ledger")
    (tmp_path / "places.json").chmod(0o600)
    private = tmp_path / "dp-workbench-x"
    private.mkdir(mode=0o700)
    (private / "records_1").write_text("canarybq7")
    # while the server runs, a private working copy may have values of records
    assert list(left_behind(tmp_path, at_end=False)) == []
    assert list(left_behind(tmp_path, at_end=True)) == ["records_1 holds values of records"]
    # three faults: a readable working copy, a private file name and readable settings
    private.chmod(0o755)
    (tmp_path / "canarybq.part").touch()
    (tmp_path / "places.json").chmod(0o644)
    assert len(list(left_behind(tmp_path, at_end=False))) == 3
