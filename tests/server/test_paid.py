"""Files and paid results on the server as it runs: nothing is written over, nothing that was paid for is lost."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from demo_data.make_synthetic import synthetic
from engine.ledger import Ledger
from engine.privacy import Budget
from engine.release import measure
from engine.workload import Attribute, Schema, Workload
from pages.parts.shell import link
from pages.parts.shell.state import Studio
from tests.app.protected import plant
from tests.app.release.given import SURVEY
from tests.app.session import expected
from tests.server.asked import QUERY
from tests.server.client import Client, opened
from tests.server.serving import Served, serving

SMALL = Schema([Attribute.of_size("a", 4), Attribute.of_size("b", 3), Attribute.categorical("c", ["x", "y"])])
COARSE = "plan=" + link.packed(Studio(workload=Workload(SMALL), budget=Budget(pcost=0.4)))
NOWHERE = "/proc/canary-export.parquet"  # in a folder where nobody can make a file
HOSTILE = ("a\0b.csv", f"{'x' * 260}.csv", "~nobody/a.csv", "loop/a.csv", "loop")
PLANTED = ("ledger", "records", "result", "in a dot folder", "link", "outside", "part", "not answers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the server is started in; one level up nothing may be touched."""
    new_folder = tmp_path_factory.mktemp("outside") / "office"
    new_folder.mkdir()
    shutil.copy(SURVEY, new_folder / "records.csv")
    (new_folder / "loop").symlink_to(new_folder / "pool")
    (new_folder / "pool").symlink_to(new_folder / "loop")
    for name in ("budget.csv", "race.ledger"):
        Ledger.create(new_folder / name).add_dataset("first", total=Budget(pcost=9.0))
        Ledger(new_folder / name).add_dataset("canary-second", total=Budget(pcost=9.0))
    return new_folder


@pytest.fixture(scope="module")
def office(folder: Path) -> Iterator[Served]:
    with serving(folder, DP_WORKBENCH_FOLDERS="/proc") as server:
        yield server
        output = "".join(server.lines)
    for word in ("Traceback", "canary", "Uncaught", str(folder.name) + "/"):
        assert word not in output
    assert server.strangers() == []


def mine(server: Served, page: str, query: str = "") -> Client:
    return opened(server, page, query, cookie=f"{server.cookie}; workbench-browser=mine")


def paying(server: Served, ledger: Path, records: str, dataset: str = "canary-second") -> Client:
    """A session that only has to press Release."""
    page = mine(server, "release", QUERY)
    page.set("step", string_value="2. Release").set("ledger_path", string_value=str(ledger))
    page.set("dataset", string_value=dataset).set("records_path", string_value=records)
    return page.set("confirmation", string_value=dataset)


@pytest.fixture(scope="module")
def released(office: Served, folder: Path) -> Client:
    """A session that has released for the second dataset of its ledger."""
    return paying(office, folder / "budget.csv", "records.csv").press("release").until("Released for canary")


def files(folder: Path) -> dict[Path, bytes]:
    return {f: f.read_bytes() for f in folder.parent.rglob("*") if f.is_file() and f.parent.name != "settings"}


def test_invalid_export_paths_overwrite_nothing(released: Client, folder: Path) -> None:
    released.set("release_result_view", string_value="Download")
    planted = plant(folder)
    before = files(folder)
    for place in (*(str(planted[word]) for word in PLANTED), *HOSTILE):
        released.set("release_result_path", string_value=place)
        assert "to replace it" not in released.text
        released.press("release_result_write")  # a button that is switched off, pressed all the same
        assert "Written" not in released.text
    assert files(folder) == before


def test_export_replaces_file_after_typed_name(released: Client, folder: Path) -> None:
    released.set("release_result_path", string_value="mine.csv").press("release_result_write").until("Written")
    target = folder / "mine.csv"
    content = target.read_bytes()
    target.write_bytes(content[: content.index(b"\n") + 1])
    released.run().set("release_result_replace", string_value="mine").press("release_result_write")
    assert target.read_bytes() != content
    released.set("release_result_replace", string_value="mine.csv").press("release_result_write").until("Written")
    assert target.read_bytes() == content


def test_failed_export_shows_error_without_path(released: Client) -> None:
    released.set("release_result_view", string_value="Download")
    released.set("release_result_path", string_value=NOWHERE)
    released.press("release_result_write").until("could not be")  # and nothing in the log, see `office`


@pytest.mark.parametrize("key", ["ledger_path", "records_path"])
def test_invalid_input_paths_do_not_break_page(office: Served, folder: Path, key: str) -> None:
    page = paying(office, folder / "budget.csv", "records.csv", "first")
    for place in (*HOSTILE, "/etc/passwd", "../outside.csv", "/dev/zero"):
        page.set(key, string_value=place)
        if '-release"' in page.text:
            page.press("release")
        assert "Released for" not in page.text
    assert not [row for row in Ledger(folder / "budget.csv").rows() if row.dataset == "first" and row.kind == "spend"]


def test_simultaneous_releases_spend_once(office: Served, folder: Path) -> None:
    book = folder / "race.ledger"
    pages = [paying(office, book, "missing.csv") for _ in range(4)]
    pages[0].press("release").until("there is no file")  # its job failed; the release is paid for elsewhere
    for page in pages[1:]:
        page.set("records_path", string_value="records.csv").set("confirmation", string_value="canary-second")
    racers = [threading.Thread(target=lambda page=page: page.press("release")) for page in pages[1:]]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    for page in pages:
        assert "Released for canary" in page.until("Released for").text
    assert sum(row.kind == "spend" for row in Ledger(book).rows()) == 1
    measure(expected("survey", (1,)), SURVEY, dataset="first", ledger=book)  # by another program
    pages[0].set("dataset", string_value="first")
    assert "Rows read" not in pages[0].until("Released for first").text


def test_reload_shows_dataset_tab_and_result(office: Served, released: Client) -> None:
    again = mine(office, "release", released.query)
    assert "Released for canary" in again.text
    assert 'value: "2. Release"' in again.text or "2. Release" in again.text


def test_look_replaces_rehearsal_on_the_page(office: Served, folder: Path) -> None:
    book = Ledger.create(folder / "looks.ledger")
    book.add_dataset("canary-third", total=Budget(pcost=9.0))
    synthetic(SMALL, 20_000, seed=3).to_csv(folder / "small.csv", index=False)
    page = mine(office, "coarse", COARSE)
    page.set("coarse_ways_3_True", string_array_value={"data": ["1", "3"]})  # other analyses than the page begins with
    assert "3-way" in page.text
    page.set("coarse_snr", double_value=20.0)  # one record is far below it in every draw, 20,000 are far above it
    page.set("coarse_rows", int_value=1).press("coarse_rehearse").until("The rule says to stop")
    page.set("coarse_step", string_value="Look for real").set("ledger_path", string_value=str(book.path))
    page.set("records_path", string_value="small.csv").set("coarse_confirmation", string_value="canary-third")
    page.press("coarse_look").until("Looked at canary")
    for again in (page.run(), mine(office, "coarse", page.query)):
        assert "Looked at canary" in again.text
        assert "REHEARSAL" not in again.text
        assert "The rule says to stop" not in again.text


def test_restarted_server_lists_releases(office: Served, folder: Path) -> None:
    book = Ledger(folder / "budget.csv")
    (dataset,) = [row.dataset for row in book.rows() if row.kind == "spend"]
    with serving(folder, DP_WORKBENCH_FOLDERS="/proc") as later:
        page = mine(later, "release")
        assert str(book.path) in page.text  # the ledger opened last, or one of those opened before
        page.set("ledger_path", string_value=str(book.path))
        assert "1 release of canary" in page.set("dataset", string_value=dataset).text
