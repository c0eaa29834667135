"""File access of the app: no overwriting, no paths outside its folders."""

from __future__ import annotations

import errno
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from engine.cli.main import main
from engine.errors import DataError, EngineError
from engine.ledger import Ledger
from engine.privacy import Budget
from engine.release import measure
from pages.parts.jobs import job_queue, tasks
from pages.parts.release import download_view
from tests.app.protected import SURVEY, create_protected_files
from tests.app.release.sessions import FILE, PAYER, open_confirmation, open_release, open_result
from tests.app.session import Session, demo_plan, wait


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    """Download view of a release with ledger and records in an allowed folder."""
    folder = tmp_path / "office"
    folder.mkdir()
    monkeypatch.setenv("DP_WORKBENCH_FOLDERS", str(folder))
    shutil.copy(SURVEY, folder / "records.csv")
    book = Ledger.create(folder / "budget.csv")
    book.add_dataset("survey", total=Budget(pcost=2.0))
    measure(demo_plan("survey", (1,)), folder / "records.csv", dataset="survey", ledger=book)
    records = str(folder / "records.csv")
    session = open_release(book, records)
    return open_result(session).set(release_result_view="Download")


def find_folder(session: Session) -> Path:
    return Path(session.app.session_state["ledger_path"]).parent


def can_write(session: Session) -> bool:
    return not next(b for b in session.app.button if b.key == "release_result_write").disabled


def read_files(folder: Path) -> dict[str, bytes]:
    return {
        str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()
    }


def read_package(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_export_overwrites_no_existing_file(session: Session) -> None:
    folder = find_folder(session)
    planted = create_protected_files(folder)
    before = read_files(folder.parent)
    (release,) = (row for row in Ledger(folder / "budget.csv").rows() if row.kind == "spend")
    for word, place in planted.items():
        session.set(release_result_path=str(place))
        assert not can_write(session), word
        assert "choose another file" in session.text(), word
        # The export job refuses the same paths as the page, with two exceptions: only the page
        # refuses new files behind a link or in a hidden folder.
        if word not in ("in a dot folder", "behind a link"):
            with pytest.raises((EngineError, OSError)):
                tasks.export(
                    str(folder / "budget.csv"),
                    release.key,
                    str(place),
                    [str(planted["records"])],
                    True,
                    0.95,
                    progress=lambda *_: True,
                )
    assert read_files(folder.parent) == before


def test_export_replaces_file_after_typed_name(session: Session) -> None:
    target = find_folder(session) / "answers.csv"
    (target.parent / "answers.csv.part").write_text("mine")
    session.set(release_result_path=str(target))
    wait(session.press("release_result_write"))
    assert "Written" in session.text()
    assert not any(box.key == "release_result_replace" for box in session.app.text_input)
    # A job whose attribute `stays` is True continues when the user closes the page.
    assert [
        job.stays
        for key, job in job_queue._JOBS.items()
        if key.startswith("export|") and str(target) in key
    ] == [True]
    queries = demo_plan("survey", (1,)).workload.queries
    assert len(pd.read_csv(target)) == queries
    target.write_text(target.read_text().splitlines()[0] + "\n")
    for typed in ("", "answers", "Answers.csv"):
        session.set(release_result_replace=typed)
        assert not can_write(session)
    assert can_write(session.set(release_result_replace="answers.csv"))
    wait(session.press("release_result_write"))
    assert len(pd.read_csv(target)) == queries
    assert (target.parent / "answers.csv.part").read_text() == "mine"
    assert {f.name for f in target.parent.iterdir()} == {
        "answers.csv",
        "answers.csv.part",
        "budget.csv",
        "budget.csv.key",
        "budget.csv.results",
        "records.csv",
    }


def test_downloaded_package_is_signed_like_written_file(
    session: Session, downloads: dict[str, Callable[[], bytes]]
) -> None:
    folder = find_folder(session)
    target = folder / "written.zip"
    wait(session.set(release_result_path=str(target)).press("release_result_write"))
    written = read_package(target)
    # Round 0 tests the result page that opens after the confirmation.  Round 1 tests the result
    # page that is opened from the past releases.
    for number in range(2):
        downloads.clear()
        if number:
            session.press("Past releases").press("open_result").set(release_result_view="Download")
        session.run(session.app)
        package = folder / f"download{number}.zip"
        package.write_bytes(downloads["release_answers.zip"]())
        ledger = ["--ledger", str(folder / "budget.csv")]
        assert main(["verify", *ledger, "--package", str(package)]) == 0
        content = read_package(package)
        assert content["signature.json"] == written["signature.json"]
        assert content["certificate.json"] == written["certificate.json"]


@pytest.mark.parametrize("word", ["outside", "dot file", "link", "behind a link", "no data file"])
def test_records_outside_folders_are_refused(session: Session, word: str) -> None:
    place = create_protected_files(find_folder(session))[word]
    session.press("New release").set(step=FILE).set(records_path=str(place))
    open_confirmation(session).set(again_1=True).set(confirmation="survey").press("release")
    reasons = ("outside the folders", "Hidden", "does not end with")
    assert any(reason in session.errors() for reason in reasons)
    assert (
        len([r for r in Ledger(find_folder(session) / "budget.csv").rows() if r.kind == "spend"])
        == 1
    )


@pytest.mark.parametrize(
    "name", ["../new.ledger", ".new.ledger", "way/new.ledger", "/dev/shm/new.ledger"]
)
def test_ledger_outside_folders_cannot_be_created(session: Session, name: str) -> None:
    create_protected_files(find_folder(session))
    place = find_folder(session) / name
    session.press("New release").set(step=PAYER).set(ledger_path=str(place))
    assert session.errors()
    assert not any(b.key == "declare" for b in session.app.button)
    assert not os.path.lexists(place)


def test_failed_download_shows_error_without_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> Callable:
        raise OSError(errno.ENOSPC, "No space left on device", "/a/secret/path")

    monkeypatch.setattr(download_view, "write_answers", full)
    monkeypatch.setattr(download_view, "write_package", full)
    monkeypatch.setattr(tasks, "write_signed_package", full)
    ledger = Ledger.create(tmp_path / "budget.ledger")
    for make in (
        lambda: download_view._content(None, "csv"),
        lambda: download_view._package(None, ""),
        lambda: download_view._package(None, str(ledger.path)),
    ):
        with pytest.raises(DataError, match="No space left") as caught:
            make()
        assert "secret" not in str(caught.value)
