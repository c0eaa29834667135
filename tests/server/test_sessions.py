"""Sessions leave no data in files, memory or other sessions."""

from __future__ import annotations

import http.client
import os
import signal
import stat
from pathlib import Path

import psutil
import pytest

from engine.ledger import Ledger
from engine.privacy import Budget
from tests.app.release.sessions import SURVEY
from tests.server.client import Client, open_client
from tests.server.plan_query import QUERY
from tests.server.serving import RunningServer, run_server
from tests.server.uploading import upload
from tests.waiting import CEILING, until


def private_files(folder: Path) -> list[Path]:
    """Return the files in the temporary folders of servers, without lock files."""
    return [f for f in folder.glob("dp-workbench-*/**/*") if f.is_file() and f.name != "lock"]


def read_metric(server: RunningServer, name: str) -> float:
    """Return the bytes that Streamlit reports for a cache or store in memory."""
    line = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=CEILING)
    line.request("GET", "/_stcore/metrics", headers={"Cookie": server.cookie})
    text = line.getresponse().read().decode()
    return sum(float(row.split()[-1]) for row in text.splitlines() if name in row)


def wait_for_freed_uploads(server: RunningServer, words: str) -> None:
    """Wait until the server has less than 1 MB of uploads in memory; fail with ``words``."""
    until(lambda: read_metric(server, "UploadedFileManager") < 1_000_000, words=words, pause=0.25)


def fetch(server: RunningServer, place: str, cookie: str) -> tuple[int, bytes]:
    """Return the HTTP status and the first two bytes of the response to a request for a path."""
    line = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=CEILING)
    line.request("GET", place, headers={"Cookie": cookie})
    answer = line.getresponse()
    return answer.status, answer.read()[:2]


def test_rehearsal_files_are_removed_with_session(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    with run_server(tmp_path, TMPDIR=str(tmp_path / "t")) as server:
        page = open_client(server, "release", QUERY)
        page.press("rehearse").until("REHEARSAL on simulated")
        (file,) = private_files(tmp_path / "t")
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        page.press("rehearse").until("REHEARSAL on simulated")
        assert private_files(tmp_path / "t") == [file]
        page.set("seed", int_value=2)
        page.press("rehearse").until("REHEARSAL on simulated")
        assert len(private_files(tmp_path / "t")) == 1
        assert private_files(tmp_path / "t") != [file]
        page.set("rehearsal_view", string_value="Published tables").press("rehearsal_publish")
        page.until("All tables sum to")
        outputs = private_files(tmp_path / "t")
        assert sorted(one.suffix for one in outputs) == [
            "",
            ".csv",
            ".parquet",
            ".xlsx",
            ".zip",
            ".zip",
        ]
        assert {stat.S_IMODE(one.stat().st_mode) for one in outputs} == {0o600}
        place = page.file("rehearsal_published_zip")
        assert fetch(server, place, server.cookie) == (200, b"PK")
        assert fetch(server, place, "")[0] == 403
        page.close()
        until(lambda: not private_files(tmp_path / "t"), words="the rehearsal outlived its session")
        open_client(server, "release", QUERY).press("rehearse").until("REHEARSAL on simulated")
        os.killpg(server.process.pid, signal.SIGKILL)
        server.process.wait()
        assert private_files(tmp_path / "t")
    with run_server(tmp_path, TMPDIR=str(tmp_path / "t")):
        assert not private_files(tmp_path / "t")


def test_upload_is_freed_with_page_or_session(server: RunningServer) -> None:
    page = open_client(server, "release", QUERY)
    upload(server, page, b"x" * 1_000_000)
    assert read_metric(server, "UploadedFileManager") >= 1_000_000
    page.go("preview")
    wait_for_freed_uploads(server, "the upload outlived its page")
    upload(server, page, b"x" * 1_000_000)
    until(lambda: read_metric(server, "UploadedFileManager") >= 1_000_000, pause=0.25)
    page.close()
    wait_for_freed_uploads(server, "the upload outlived its session")


def test_timer_of_left_page_is_ignored(server: RunningServer) -> None:
    page = open_client(server, "compare", QUERY)
    timer = next(
        message.auto_rerun.fragment_id
        for message in page.messages
        if message.WhichOneof("type") == "auto_rerun"
    )
    timer_message = page.message()
    timer_message.rerun_script.fragment_id, timer_message.rerun_script.is_auto_rerun = timer, True
    page.page, page.states = "release", {}
    messages = page.send(page.message(), timer_message).messages + page.run().messages
    starts = [
        message.new_session for message in messages if message.WhichOneof("type") == "new_session"
    ]
    # a run of another page would clear the open page
    assert {start.page_script_hash for start in starts} == {page.pages["release"]}


@pytest.fixture
def released(tmp_path: Path, server: RunningServer) -> tuple[Client, Ledger]:
    """Return a session after a release, and its ledger."""
    book = Ledger.create(tmp_path / "canary-office.ledger")
    book.add_dataset("canary-dataset", total=Budget(pcost=2.5))
    page = open_client(server, "release", QUERY, cookie=f"{server.cookie}; workbench-browser=mine")
    page.set("step", string_value="2. File").set("records_how", string_value="File on the server")
    page.set("records_path", string_value=SURVEY)
    page.set("step", string_value="3. Who pays").set("ledger_path", string_value=str(book.path))
    page.set("dataset", string_value="canary-dataset").set("step", string_value="4. Confirm")
    page.set("confirmation", string_value="canary-dataset")
    page.press("release").until("Released for canary")
    return page, book


def test_other_session_receives_no_release_data(
    released: tuple[Client, Ledger], server: RunningServer
) -> None:
    page, book = released
    assert "Rows read 944" in page.text
    for browser in ("theirs", ""):
        stranger = open_client(
            server, "release", page.query, cookie=f"{server.cookie}; workbench-browser={browser}"
        )
        stranger.set("step", string_value="4. Confirm")
        for page_name in ("coarse", "release", "preview"):
            stranger.go(page_name)
        received = b"".join(stranger.received)
        assert b"Answers" not in received
        for word in (b"canary", b"Rows read", b"Released for"):
            assert word not in received
    same_browser = open_client(
        server, "release", page.query, cookie=f"{server.cookie}; workbench-browser=mine"
    )
    assert "Released for canary" in same_browser.text
    assert "Rows read 944" in same_browser.text  # a reload in the same browser
    assert "canary" not in page.query + "".join(server.lines)
    assert len([row for row in book.rows() if row.kind == "spend"]) == 1


def test_server_stops_during_comparison(tmp_path: Path) -> None:
    with run_server(tmp_path) as server:
        open_client(server, "compare", QUERY)
        helpers = psutil.Process(server.process.pid).children
        until(
            lambda: any("_workers" in " ".join(p.cmdline()) for p in helpers()),
            words="no process for the comparison",
        )
        server.process.send_signal(signal.SIGINT)
        server.process.wait(timeout=CEILING)
