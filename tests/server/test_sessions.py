"""What sessions leave behind: nothing, in files, memory or other sessions, however they or the server end."""

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
from tests.app.release.given import SURVEY
from tests.server.asked import QUERY
from tests.server.client import Client, opened
from tests.server.serving import Served, serving
from tests.server.uploading import upload
from tests.waiting import CEILING, until


def private_files(folder: Path) -> list[Path]:
    return [f for f in folder.glob("dp-workbench-*/**/*") if f.is_file() and f.name != "lock"]


def metric(server: Served, name: str) -> float:
    line = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=CEILING)
    line.request("GET", "/_stcore/metrics", headers={"Cookie": server.cookie})
    text = line.getresponse().read().decode()
    return sum(float(row.split()[-1]) for row in text.splitlines() if name in row)


def shrinks(server: Served, words: str) -> None:
    """Wait until no upload is in memory, with few looks: the server counts all it holds for each."""
    until(lambda: metric(server, "UploadedFileManager") < 1_000_000, words=words, pause=0.25)


def got(server: Served, place: str, cookie: str) -> tuple[int, bytes]:
    """Status and first bytes of a file."""
    line = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=CEILING)
    line.request("GET", place, headers={"Cookie": cookie})
    answer = line.getresponse()
    return answer.status, answer.read()[:2]


def test_rehearsal_files_are_removed_with_session(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    with serving(tmp_path, TMPDIR=str(tmp_path / "t")) as server:
        page = opened(server, "release", QUERY)
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
        page.set("rehearsal_view", string_value="Tables to publish").press("rehearsal_publish")
        page.until("All tables sum to")
        outputs = private_files(tmp_path / "t")
        assert sorted(one.suffix for one in outputs) == ["", ".csv", ".parquet", ".xlsx", ".zip"]
        assert {stat.S_IMODE(one.stat().st_mode) for one in outputs} == {0o600}
        place = page.file("rehearsal_published_zip")
        assert got(server, place, server.cookie) == (200, b"PK")
        assert got(server, place, "")[0] == 403
        page.close()
        until(lambda: not private_files(tmp_path / "t"), words="the rehearsal outlived its session")
        opened(server, "release", QUERY).press("rehearse").until("REHEARSAL on simulated")
        os.killpg(server.process.pid, signal.SIGKILL)
        server.process.wait()
        assert private_files(tmp_path / "t")
    with serving(tmp_path, TMPDIR=str(tmp_path / "t")):
        assert not private_files(tmp_path / "t")


def test_upload_is_freed_with_page_or_session(server: Served) -> None:
    page = opened(server, "release", QUERY)
    upload(server, page, b"x" * 1_000_000)
    assert metric(server, "UploadedFileManager") >= 1_000_000
    page.go("preview")
    shrinks(server, "the upload outlived its page")
    upload(server, page, b"x" * 1_000_000)
    until(lambda: metric(server, "UploadedFileManager") >= 1_000_000, pause=0.25)
    page.close()
    shrinks(server, "the upload outlived its session")


def test_timer_of_left_page_is_ignored(server: Served) -> None:
    page = opened(server, "compare", QUERY)
    timer = next(message.auto_rerun.fragment_id for message in page.told if message.WhichOneof("type") == "auto_rerun")
    late = page.message()
    late.rerun_script.fragment_id, late.rerun_script.is_auto_rerun = timer, True
    page.page, page.states = "release", {}
    messages = page.ask(page.message(), late).told + page.run().told
    starts = [m.new_session for m in messages if m.WhichOneof("type") == "new_session"]
    # a run of another page would clear the open page
    assert {start.page_script_hash for start in starts} == {page.pages["release"]}


@pytest.fixture
def released(tmp_path: Path, server: Served) -> tuple[Client, Ledger]:
    """A session that has just released."""
    book = Ledger.create(tmp_path / "canary-office.ledger")
    book.add_dataset("canary-dataset", total=Budget(pcost=2.5))
    page = opened(server, "release", QUERY, cookie=f"{server.cookie}; workbench-browser=mine")
    page.set("step", string_value="2. Release")
    page.set("ledger_path", string_value=str(book.path))
    page.set("records_path", string_value=SURVEY)
    page.set("confirmation", string_value="canary-dataset")
    page.press("release").until("Released for canary")
    return page, book


def test_other_session_receives_no_release_data(released: tuple[Client, Ledger], server: Served) -> None:
    page, book = released
    assert "Rows read 944" in page.text
    for other in ("theirs", ""):
        stranger = opened(server, "release", page.query, cookie=f"{server.cookie}; workbench-browser={other}")
        stranger.set("step", string_value="2. Release")
        for where in ("coarse", "release", "preview"):
            stranger.go(where)
        received = b"".join(stranger.everything)
        assert b"Answers" not in received
        for word in (b"canary", b"Rows read", b"Released for"):
            assert word not in received
    again = opened(server, "release", page.query, cookie=f"{server.cookie}; workbench-browser=mine")
    assert "Released for canary" in again.text
    assert "Rows read" not in again.text
    assert "canary" not in page.query + "".join(server.lines)
    assert len([row for row in book.rows() if row.kind == "spend"]) == 1


def test_server_stops_during_comparison(tmp_path: Path) -> None:
    """A helper that is at work, of which no list knew, was waited for without end."""
    with serving(tmp_path) as server:
        opened(server, "compare", QUERY)
        helpers = psutil.Process(server.process.pid).children
        until(lambda: any("keeper" in " ".join(p.cmdline()) for p in helpers()), words="nothing is compared")
        server.process.send_signal(signal.SIGINT)
        server.process.wait(timeout=CEILING)
