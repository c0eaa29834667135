"""Exports and stored releases on a running server."""

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
from pages.parts.shell import permalink
from pages.parts.shell.history import RequestState
from tests.app.protected import create_protected_files
from tests.app.release.sessions import SURVEY
from tests.app.session import demo_plan
from tests.server.client import Client, open_client
from tests.server.plan_query import QUERY
from tests.server.serving import RunningServer, run_server

SMALL_SCHEMA = Schema(
    [Attribute.of_size("a", 4), Attribute.of_size("b", 3), Attribute.categorical("c", ["x", "y"])]
)
COARSE_QUERY = "plan=" + permalink.packed(
    RequestState(workload=Workload(SMALL_SCHEMA), budget=Budget(pcost=0.4))
)
UNWRITABLE_PATH = "/proc/canary-export.parquet"  # in a folder where no file can be created
INVALID_PATHS = ("a\0b.csv", f"{'x' * 260}.csv", "~nobody/a.csv", "loop/a.csv", "loop")
PROTECTED_FILES = (
    "ledger",
    "records",
    "result",
    "in a dot folder",
    "link",
    "outside",
    "part",
    "not answers",
)
PAYER, CONFIRM = "3. Who pays", "4. Confirm"  # steps of the Release page


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the working folder of the server, below a folder that it must not change."""
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
def office(folder: Path) -> Iterator[RunningServer]:
    """Run the app; check that it prints no error and no private name, and calls no host."""
    with run_server(folder, DP_WORKBENCH_FOLDERS="/proc") as server:
        yield server
        output = "".join(server.lines)
    for word in ("Traceback", "canary", "Uncaught", str(folder.name) + "/"):
        assert word not in output
    assert server.outside_hosts() == []


def open_browser_client(server: RunningServer, page: str, query: str = "") -> Client:
    return open_client(server, page, query, cookie=f"{server.cookie}; workbench-browser=mine")


def open_release(
    server: RunningServer, ledger: Path, records: str, dataset: str = "canary-second"
) -> Client:
    """Open the step that confirms a release, with all fields filled in."""
    page = open_browser_client(server, "release", QUERY)
    page.set("step", string_value=PAYER).set("ledger_path", string_value=str(ledger))
    page.set("dataset", string_value=dataset)
    choose_records(page, records)
    return page.set("confirmation", string_value=dataset)


def choose_records(page: Client, records: str) -> Client:
    """Choose a file of records on the server, and open the step that confirms a release."""
    page.set("step", string_value="2. File").set("records_how", string_value="File on the server")
    page.set("records_path", string_value=records)
    return page.set("step", string_value=CONFIRM)


@pytest.fixture(scope="module")
def released(office: RunningServer, folder: Path) -> Client:
    """Return a session after a release for the second dataset of its ledger."""
    return (
        open_release(office, folder / "budget.csv", "records.csv")
        .press("release")
        .until("Released for canary")
    )


def read_files(folder: Path) -> dict[Path, bytes]:
    """Return the content of every file that the server must not change, by its path."""
    return {
        f: f.read_bytes()
        for f in folder.parent.rglob("*")
        if f.is_file() and f.parent.name != "settings"
    }


def test_invalid_export_paths_overwrite_nothing(released: Client, folder: Path) -> None:
    released.set("release_result_view", string_value="Download")
    protected_files = create_protected_files(folder)
    contents = read_files(folder)
    protected_paths = [str(protected_files[name]) for name in PROTECTED_FILES]
    for path in (*protected_paths, *INVALID_PATHS):
        released.set("release_result_path", string_value=path)
        assert "to replace it" not in released.text
        # a press must do nothing, because the button is disabled
        released.press("release_result_write")
        assert "Written" not in released.text
    assert read_files(folder) == contents


def test_export_replaces_file_after_typed_name(released: Client, folder: Path) -> None:
    released.set("release_result_path", string_value="mine.csv")
    released.press("release_result_write").until("Written")
    target = folder / "mine.csv"
    content = target.read_bytes()
    header = content[: content.index(b"\n") + 1]
    target.write_bytes(header)
    released.run().set("release_result_replace", string_value="mine").press("release_result_write")
    assert target.read_bytes() == header
    released.set("release_result_replace", string_value="mine.csv")
    released.press("release_result_write").until("Written")
    assert target.read_bytes() == content


def test_failed_export_shows_error_and_logs_no_path(released: Client) -> None:
    released.set("release_result_view", string_value="Download")
    released.set("release_result_path", string_value=UNWRITABLE_PATH)
    released.press("release_result_write").until("could not be")
    # At the end, the fixture `office` checks that the log has no traceback and no "canary", which
    # is a word of the path.


@pytest.mark.parametrize("key", ["ledger_path", "records_path"])
def test_invalid_input_paths_spend_nothing(office: RunningServer, folder: Path, key: str) -> None:
    page = open_release(office, folder / "budget.csv", "records.csv", "first")
    for path in (*INVALID_PATHS, "/etc/passwd", "../outside.csv", "/dev/zero"):
        page.set("step", string_value=PAYER if key == "ledger_path" else "2. File")
        page.set(key, string_value=path).set("step", string_value=CONFIRM)
        if '-release"' in page.text:
            page.press("release")
        assert "Released for" not in page.text
    rows = [row for row in Ledger(folder / "budget.csv").rows() if row.dataset == "first"]
    assert rows
    assert not any(row.kind == "spend" for row in rows)


def test_simultaneous_releases_spend_once(office: RunningServer, folder: Path) -> None:
    book = folder / "race.ledger"
    failing_page, *racing_pages = (open_release(office, book, "missing.csv") for _ in range(4))
    # this release fails, because its records are missing
    failing_page.press("release").until("there is no file")
    for page in racing_pages:
        choose_records(page, "records.csv").set("confirmation", string_value="canary-second")
    threads = [
        threading.Thread(target=lambda page=page: page.press("release")) for page in racing_pages
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for page in (failing_page, *racing_pages):
        assert "Released for canary" in page.until("Released for").text
    assert sum(row.kind == "spend" for row in Ledger(book).rows()) == 1
    # a release by another program is shown without the number of rows that this program read
    measure(demo_plan("survey", (1,)), SURVEY, dataset="first", ledger=book)
    failing_page.press("release_leave_0").set("step", string_value=PAYER)
    failing_page.set("dataset", string_value="first").set("step", string_value=CONFIRM)
    failing_page.until("was released on").press("open_result")
    assert "Rows read" not in failing_page.until("Released for first").text


def test_double_click_spends_once_and_shows_row_report(office: RunningServer, folder: Path) -> None:
    datasets = [f"canary-{number}" for number in range(5)]
    book = Ledger.create(folder / "double.ledger")
    for dataset in datasets:
        book.add_dataset(dataset, total=Budget(pcost=9.0))
        page = open_release(office, book.path, "records.csv", dataset)
        click = page.message(release={"trigger_value": True})
        assert "Rows read" in page.send(click, click).until("Released for").text
    assert [row.dataset for row in book.rows() if row.kind == "spend"] == datasets


def test_new_session_of_same_browser_shows_release(office: RunningServer, released: Client) -> None:
    new_session = open_browser_client(office, "release", released.query)
    assert "Released for canary" in new_session.text
    assert "New release" in new_session.text


def test_look_replaces_rehearsal_on_the_page(office: RunningServer, folder: Path) -> None:
    book = Ledger.create(folder / "looks.ledger")
    book.add_dataset("canary-third", total=Budget(pcost=9.0))
    synthetic(SMALL_SCHEMA, 20_000, seed=3).to_csv(folder / "small.csv", index=False)
    page = open_browser_client(office, "coarse", COARSE_QUERY)
    # these are not the default analyses
    page.set("coarse_ways_3_True", string_array_value={"data": ["1", "3"]})
    assert "3-way" in page.text
    page.set("coarse_step", string_value="2. Rule")
    page.set("coarse_snr", double_value=20.0)  # far above one record, far below 20,000 records
    page.set("coarse_step", string_value="3. Rehearse")
    page.set("coarse_rows", int_value=1).press("coarse_rehearse").until("The rule says stop")
    page.set("coarse_step", string_value="4. File")
    page.set("records_how", string_value="File on the server")
    page.set("records_path", string_value="small.csv")
    page.set("coarse_step", string_value="5. Who pays")
    page.set("ledger_path", string_value=str(book.path))
    page.set("dataset", string_value="canary-third").set("coarse_step", string_value="6. Measure")
    page.set("coarse_confirmation", string_value="canary-third")
    page.press("coarse_look").until("canary-third was measured on")
    for session in (page.run(), open_browser_client(office, "coarse", page.query)):
        assert "canary-third was measured on" in session.text
        assert "REHEARSAL" not in session.text
        assert "The rule says stop" not in session.text


@pytest.mark.usefixtures("released")
def test_restarted_server_lists_releases(folder: Path) -> None:
    book = Ledger(folder / "budget.csv")
    (dataset,) = [row.dataset for row in book.rows() if row.kind == "spend"]
    with run_server(folder, DP_WORKBENCH_FOLDERS="/proc") as later:
        page = open_browser_client(later, "release")
        assert str(book.path) in page.text  # among the ledgers opened before
        page.set("ledger_path", string_value=str(book.path))
        assert "1 release of canary" in page.set("dataset", string_value=dataset).text
