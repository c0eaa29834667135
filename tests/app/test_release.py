"""The Release page: rehearsal, ledger, confirmation, one draw per key, results; in the app without a browser."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pytest

import demo_data
import engine
from engine import Attribute, Budget, Measurement, Schema, Workload, measure, stepwise
from engine.errors import Cancelled
from engine.insight import worst_group
from engine.release import Ledger, load_measurement
from pages.parts.jobs import kept, plans, private, publishing, tasks
from pages.parts.release import download_view
from pages.parts.release.published_view import FILES
from pages.parts.release.records_form import Source
from pages.parts.shell import link, places
from pages.parts.shell.state import Studio
from tests.app.test_pages import Session, expected, wait, with_plan

SURVEY = str(demo_data.tables()["survey"])


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger.create(tmp_path / "budget.ledger")
    made.add_dataset("survey", total=Budget(pcost=2.5))
    return made


def ready(ledger: Ledger, records: str = SURVEY) -> Session:
    """A session that only has to confirm."""
    return releasing(ledger.path, records_path=records)


def releasing(ledger: Path, step: str = "2. Release", **filled: Any) -> Session:
    """A session that comes to a plan's page for releases, where a ledger is named."""
    return with_plan("survey", (1,), page="release", step=step, ledger_path=str(ledger), **filled)


def stopped_twice(source: dict[str, str], files: dict[str, str]) -> tuple[dict[str, Any], Path]:
    """What is published at the third attempt, and where the first two left what they had reached."""
    reached, told = private.reached("a job"), list[str]()

    def attempt(most: int) -> dict[str, Any]:
        told.clear()

        def heard(fraction: float, text: str) -> bool:
            told.append(text)
            return len(told) < most

        given = source, "shrunk", True, (True, None, ""), {"least_count": 5.0}, files, str(reached)
        return publishing.publish_tables(*given, progress=heard)

    for most in (8, 20):
        with pytest.raises(Cancelled):
            attempt(most)
        assert list(reached.rglob("*.npz"))
    return attempt(10**6), reached


def kinds(ledger: Ledger) -> list[str]:
    return [row.kind for row in Ledger(ledger.path).rows()]


def shown(session: Session, place: int = 0) -> pd.DataFrame:
    """The answers on screen, without what is said of their quality."""
    table = session.app.dataframe[place].value
    assert set(table["quality"]) <= {"publishable", "doubtful", "noise"}
    return table.drop(columns=["relative error", "quality"])


def answers(found: Measurement) -> pd.DataFrame:
    """The answers that a page begins with: those of the worst group."""
    return found.answers(worst_group(found.plan))


def waiting(session: Session) -> bool:
    return next(b for b in session.app.button if b.key == "release").disabled


def test_a_rehearsal_shows_the_truth_and_spends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    session = with_plan("survey", (1,), page="release")
    assert "Nothing rehearsed yet" in session.said()
    wait(session.set(rows=500).press("rehearse"))
    assert "REHEARSAL on simulated records" in session.said()
    table = shown(session)
    assert list(table) == ["query", "answer", "std", "low", "high", "truth"]
    records = tasks.synthetic(session.studio.schema, 500, 1)
    assert table["truth"].iloc[-1] == (records["age"] < 100).sum()
    assert (abs(table["answer"] - table["truth"]) < 6 * table["std"]).all()
    session.set(rehearsal_view="Ask something else", rehearsal_ask_names=["vote"])
    assert "(rehearsal)" in session.said()
    assert "The true count lies between" in session.said()
    assert max(map(len, session.metrics().values())) <= 12  # longer ones are cut off in a third of a narrow page
    session.set(rehearsal_together="minus", rehearsal_other_names=["vote"])
    assert ") minus (" in session.said()
    assert next(m.value for m in session.app.metric if m.label == "Standard error").startswith("0")
    session.set(rehearsal_view="Do the intervals hold?", coverage_rehearsals=20).press("coverage_start")
    wait(session)
    assert "In 20 rehearsals" in session.said()
    session.set(rehearsal_view="Tables to publish", rehearsal_simulate=True)
    assert "Nothing published yet" in session.said()
    wait(session.press("rehearsal_publish"))
    sides = session.app.dataframe[0].value
    np.testing.assert_array_equal(sides["answer"], table["answer"])
    assert (sides["published"].dropna() >= 0).all()
    assert any("criterion" in frame.value for frame in session.app.dataframe)
    assert "criteria read released numbers alone" in session.said()
    files = {b.label for b in session.app.get("download_button") if not b.disabled}
    assert files >= {"Tables (zip)", "Workbook (xlsx)", "Published as CSV", "Published as Parquet", "Simulated records"}
    assert list(session.set(rehearsal_shown="Published").app.dataframe[0].value) == list(sides)[:7]
    session.set(rehearsal_least=1e6)  # another rule is another work
    assert "Nothing published yet" in session.said()
    monkeypatch.setattr(download_view, "IN_BROWSER", 1)
    session.set(rehearsal_view="Download")
    assert "the package have to wait: More than 1 answers" in session.said()
    assert "rehearsal=True" in session.app.code[-1].value
    session.set(rows=501)
    assert "Nothing rehearsed yet" in session.said()


def test_a_ledger_and_a_dataset_are_made_by_hand(tmp_path: Path) -> None:
    place = tmp_path / "new.ledger"
    session = releasing(place)
    assert "There is no ledger here" in session.said()
    assert not place.exists()
    session.press("create_ledger")
    assert "Declare the dataset" in session.said()
    planned = session.studio.budget
    for unit, total in {"mu": planned.mu, "rho": planned.rho, "pcost": planned.pcost}.items():
        (box,) = (n for n in session.set(dataset_unit=unit).app.number_input if n.key == "dataset_total")
        assert total <= box.value <= 1.001 * total
        assert "pays for 1 release of the present plan" in session.said()
    assert "pays for 3 releases" in session.set(dataset_total=3.2).said()
    session.set(dataset_name="a", dataset_total=0.0).press("declare")
    assert "pcost was given as 0.0" in session.errors()
    session.set(dataset_total=0.5).press("declare")
    assert not session.errors()
    assert Ledger(place).status("a").total == 0.5
    assert "0 of 0.5 pcost spent" in next(p.text for p in session.app.get("progress"))
    assert "has 0.5 pcost left" in session.said()
    session.set(dataset_name="A", dataset_total=9.0).press("declare")
    assert "already" in session.errors()


@pytest.mark.parametrize("content", [b"", b"not a ledger", b"SQLite format 3\x00" + b"\x00" * 4000])
def test_a_damaged_ledger_is_never_a_fresh_budget(tmp_path: Path, content: bytes) -> None:
    place = tmp_path / "bad.ledger"
    place.write_bytes(content)
    session = releasing(place)
    assert session.errors()
    assert not any(b.key in ("release", "create_ledger", "declare") for b in session.app.button)
    assert place.read_bytes() == content


def test_the_release_waits_for_the_typed_name(ledger: Ledger) -> None:
    session = ready(ledger, records="")
    assert waiting(session)
    assert "choose the records first" in session.said()
    session.set(records_path=SURVEY)
    for typed in ("", "Survey", "surve"):
        session.set(confirmation=typed)
        assert waiting(session)
        assert "type the dataset's name exactly" in session.said()
    assert not waiting(session.set(confirmation="survey"))
    assert kinds(ledger) == ["ledger", "dataset"]


def test_one_release_however_often_it_is_asked_for(ledger: Ledger) -> None:
    session = ready(ledger).set(confirmation="survey")
    other = ready(ledger).set(confirmation="survey")
    session.press("release")
    other.press("release")
    wait(session)
    wait(other)
    assert kinds(ledger) == ["ledger", "dataset", "spend", "saved"]
    assert "Released for survey" in session.said()
    assert "Rows read 944 = counted 944 + left out 0" in session.said()
    session.set(release_result_group=0)
    first = shown(session)
    for again in (other, ready(ledger)):
        pd.testing.assert_frame_equal(shown(again.set(release_result_group=0)), first)
    for _ in range(3):
        session.run(session.app)
    pd.testing.assert_frame_equal(shown(session), first)
    (spend,) = (row for row in Ledger(ledger.path).rows() if row.kind == "spend")
    stored = load_measurement(ledger, spend.key)
    pd.testing.assert_frame_equal(stored.answers(0), first)
    assert "truth" not in first

    files = {kind: str(ledger.path.parent / f"made.{kind}") for kind in FILES}
    source = {"ledger": str(ledger.path), "key": spend.key}
    made, reached = stopped_twice(source, files)
    assert not reached.exists()
    assert made["total"] == len(pd.read_csv(files["records"])) == len(stored.publish(integer=True).people)
    assert made["acceptance"]["met"][0]
    assert {Path(file).stat().st_mode & 0o777 for file in files.values()} == {0o600}
    for kind in ("csv", "zip"):
        assert b"REHEARSAL" not in Path(files[kind]).read_bytes()

    session.set(release_result_group=4, release_result_confidence=0.9)
    pd.testing.assert_frame_equal(shown(session), stored.answers(4, confidence=0.9))
    session.set(release_result_view="Ask something else", release_result_ask_names=["vote"])
    answer = stored.answer(("vote",), [1.0, 0.0])
    assert session.metrics()["Answer (counts)"] == f"{answer.answer:,.1f}"
    session.set(release_result_ask_names=["vote", "party"])
    assert "does not measure" in session.errors()
    target = ledger.path.parent / "answers.csv"
    session.set(release_result_view="Download", release_result_path=str(target))
    wait(session.press("release_result_write"))
    assert "Written" in session.said()
    assert len(pd.read_csv(target)) == stored.plan.workload.queries

    session.set(again_1=True)
    assert "Attempt 2 draws new noise and spends" in session.said()
    wait(session.set(confirmation="survey").press("release"))
    assert kinds(ledger)[4:] == ["spend", "saved"]
    session.set(release_result_view="Answers", release_result_group=0)
    assert (shown(session)["answer"] != first["answer"]).all()
    session.set(again_2=True)
    assert waiting(session.set(confirmation="survey"))
    assert "has 0.5 pcost left and this plan costs 1" in session.said()


@pytest.mark.parametrize("how", ["File on this machine", "Upload"])
def test_letters_of_older_spreadsheets_are_read(tmp_path: Path, how: str) -> None:
    """What the wrong encoding makes of a label fits no label; the check says what to do, and the release counts."""
    schema = Schema([Attribute.categorical("city", ["Köln", "Łódź"])])
    rows = "city;n\n" + "Köln;1\n" * 600 + "Łódź;1\n" * 400
    place = tmp_path / "records.csv"
    place.write_bytes(rows.encode("cp1250"))
    book = Ledger.create(tmp_path / "budget.ledger")
    book.add_dataset("cities", total=Budget(pcost=1.0))
    studio = Studio(workload=Workload(schema).add("city", "marginal"), budget=Budget(pcost=1.0))
    session = Session(plan=link.packed(studio)).go("preview")
    session.go("release", step="2. Release", ledger_path=str(book.path), records_how=how)
    if how == "Upload":
        session.run(session.app.file_uploader(key="records_file").upload("s.csv", place.read_bytes(), "text/csv"))
    else:
        session.set(records_path=str(place))
    wait(session.set(rows_are="ignored", number_column="n").press("check_records"))
    assert any("save the file as UTF-8, or give its encoding" in e.value.replace("\\", "") for e in session.app.error)
    wait(session.set(records_encoding="cp1250", confirmation="cities").press("release"))
    assert "Released for cities" in session.said()
    (spend,) = (row for row in Ledger(book.path).rows() if row.kind == "spend")
    answers = load_measurement(book, spend.key).answers(0)
    assert np.abs(answers["answer"].to_numpy() - [600, 400]).max() < 40


def test_the_page_begins_with_the_rehearsal_once_there_is_a_plan() -> None:
    session = Session().go("release")
    assert "What was paid for before is found in the ledger" in session.said()
    assert session.app.session_state["step"] == "3. Paid releases"
    session.app.session_state["history"] = with_plan("survey", (1,)).app.session_state["history"]
    assert "Nothing rehearsed yet" in session.go("preview").go("release").said()


def test_an_upload_is_read_and_its_copy_removed(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = ledger.path.parent / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    session = ready(ledger, records="").set(records_how="Upload")
    content = Path(SURVEY).read_bytes()
    session.run(session.app.file_uploader(key="records_file").upload("s.csv", content, "text/csv"))
    wait(session.set(confirmation="survey").press("release"))
    assert "Released for survey" in session.said()
    assert not list(folder.rglob("records*"))


def test_a_table_that_the_settings_name_is_chosen_and_counted_where_it_is(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with duckdb.connect(str(tmp_path / "held.duckdb")) as database:
        database.execute(f"create table people as from read_csv('{SURVEY}')")
    settings = tmp_path / "sources.toml"
    settings.write_text(f'[census]\naddress = "duckdb://{tmp_path / "held.duckdb"}"\ntable = "people"\n')
    assert "Database" not in ready(ledger).app.radio(key="records_how").options
    monkeypatch.setenv("DP_WORKBENCH_SOURCES", str(settings))
    session = ready(ledger, records="").set(records_how="Database", confirmation="survey")
    assert session.app.selectbox(key="records_table").value == "census"
    assert not waiting(session)
    made = expected("survey", (1,)).to_json()
    by_file, by_name = (
        tasks.check(made, data, "survey", str(ledger.path), {}, progress=lambda *_: True)
        for data in (SURVEY, Source(name="census").to_file()[0])
    )
    assert by_name == by_file
    monkeypatch.chdir(ledger.path.parent)
    exec(session.app.code[0].value, {})
    assert kinds(ledger) == ["ledger", "dataset", "spend", "saved"]
    settings.write_text("[census]\n")
    assert "must hold texts" in session.set(confirmation="x").app.error[0].value


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("age\n36\n", "education"),
        ("", "records"),
        (None, "records"),
    ],
)
def test_records_that_cannot_be_read_spend_nothing(ledger: Ledger, content: str | None, words: str) -> None:
    place = ledger.path.parent / "records.csv"
    if content is not None:
        place.write_text(content, encoding="utf-8")
    session = ready(ledger, records=str(place)).set(confirmation="survey")
    wait(session.press("release"))
    assert "Release:" in session.errors()
    assert words in session.errors()
    assert kinds(ledger) == ["ledger", "dataset"]
    place.write_bytes(Path(SURVEY).read_bytes())
    wait(session.set(confirmation="survey").press("release"))
    assert kinds(ledger) == ["ledger", "dataset", "spend", "saved"]


def test_rows_can_be_left_out(ledger: Ledger) -> None:
    place = ledger.path.parent / "records.csv"
    lines = Path(SURVEY).read_text(encoding="utf-8").splitlines()
    place.write_text("\n".join([*lines, lines[1].replace("36", "136", 1)]) + "\n", encoding="utf-8")
    session = ready(ledger, records=str(place)).set(confirmation="survey")
    wait(session.press("check_records"))
    assert "left out 1" in session.said()
    assert "age: 1 outside the public domain" in session.said()
    fits = session.app.dataframe[-1].value.set_index("Column")
    assert fits.loc["age"].tolist() == [944, 0, 1, 0, 1, "136 (1)"]
    assert (fits["Known"] + fits["Missing"] + fits["Not known"] == 945).all()
    assert kinds(ledger) == ["ledger", "dataset"]
    session.set(records_path=SURVEY)
    assert "left out 1" not in session.said()  # of other records than those that are chosen now
    assert all("Not known" not in frame.value for frame in session.app.dataframe)
    wait(session.press("check_records"))
    assert "left out 0" in session.said()
    session.set(records_path=str(place))
    assert "left out 1" in session.said()
    place.write_text("\n".join(lines) + "\n", encoding="utf-8")
    wait(session.press("check_records"))
    assert "left out 0" in session.said()  # the file was mended
    place.write_text("\n".join([*lines, lines[1].replace("36", "136", 1)]) + "\n", encoding="utf-8")
    wait(session.press("release"))
    assert "Rows read 945 = counted 944 + left out 1" in session.said()


def test_a_lost_result_is_told_and_costs_a_new_attempt(ledger: Ledger) -> None:
    session = ready(ledger)
    made = expected("survey", (1,))
    ledger.spend(dataset="survey", key=f"survey|{made.hash}|1", pcost=made.pcost, plan_hash=made.hash)
    session.run(session.app)
    assert "no result was saved" in session.errors()
    assert not any(b.key == "release" for b in session.app.button)
    session.set(again_1=True, confirmation="survey")
    assert not waiting(session)


def test_a_release_that_broke_off_is_ended_by_the_same_click_for_nothing(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = expected("survey", (1,))
    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "save_result", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            measure(made, SURVEY, dataset="survey", ledger=ledger)
    session = ready(ledger)
    assert "spends nothing more" in session.said() + session.errors() + str(session.app.warning)
    wait(session.set(confirmation="survey").press("release"))
    assert "Released for survey" in session.said()
    assert kinds(ledger) == ["ledger", "dataset", "spend", "saved"]


def test_a_paid_result_is_shown_whatever_became_of_the_job_of_this_page(ledger: Ledger) -> None:
    session = ready(ledger, records=str(ledger.path.parent / "missing.csv")).set(confirmation="survey")
    wait(session.press("release"))
    assert "there is no file" in session.errors()
    measure(expected("survey", (1,)), SURVEY, dataset="survey", ledger=ledger)  # another program was faster
    session.run(session.app)
    assert "Released for survey" in session.said()
    assert "Rows read" not in session.said()


def test_what_happened_to_the_rows_is_told_once_and_nobody_else(ledger: Ledger) -> None:
    session = ready(ledger)
    other = ready(ledger)
    wait(session.set(confirmation="survey").press("release"))
    for again in (other.run(other.app), ready(ledger)):
        assert "Released for survey" in again.said()
        assert "Rows read" not in again.said()
    assert "Rows read 944" in session.said()
    session.set(release_result_group=4)
    assert "Rows read 944" in session.said()
    session.go("preview").go("release").set(step="2. Release")
    assert "Released for survey" in session.said()
    assert "Rows read" not in session.said()


@pytest.fixture
def browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Sessions that begin from now on are in the browser of this name."""
    monkeypatch.setenv("DP_WORKBENCH_SETTINGS", str(tmp_path / "settings"))

    def sit_at(name: str) -> None:
        monkeypatch.setattr(places, "browser", lambda: name)

    return sit_at


def reloaded(session: Session, page: str = "release") -> Session:
    """A new session at the address of an old one."""
    return Session(**session.app.query_params).go(page)


def test_a_reload_shows_the_same_dataset_tab_and_result(ledger: Ledger, browser: Callable[[str], None]) -> None:
    browser("mine")
    ledger.add_dataset("other", total=Budget(pcost=1.0))
    session = ready(ledger).set(dataset="other")
    wait(session.set(confirmation="other").press("release"))
    again = reloaded(session)
    assert "Released for other" in again.said()
    pd.testing.assert_frame_equal(shown(again), shown(session))
    assert kinds(ledger) == ["ledger", "dataset", "dataset", "spend", "saved"]
    for word in (str(ledger.path), "other"):
        assert word not in str(session.app.query_params)


def test_a_reload_shows_its_tab_whether_the_plan_is_there_or_has_to_be_made_again(
    ledger: Ledger, browser: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    browser("mine")
    session = ready(ledger)
    wait(session.set(confirmation="survey").press("release"))
    kept._plans.clear()  # the server was started again
    monkeypatch.setattr(plans, "AT_ONCE", -1.0)  # and planning takes long
    again = reloaded(session)
    assert "This needs the plan" in again.said()
    wait(again.press("plan_now"))
    assert "Released for survey" in again.said()


def test_another_browser_with_the_same_address_sees_nothing_of_it(
    ledger: Ledger, browser: Callable[[str], None]
) -> None:
    browser("mine")
    session = ready(ledger)
    wait(session.set(confirmation="survey").press("release"))
    for name in ("theirs", ""):
        browser(name)
        for other in (reloaded(session), reloaded(session).set(step="2. Release")):
            assert other.studio.to_json() == session.studio.to_json()
            shown = str(other.app.main) + str(other.app.sidebar)
            for word in (str(ledger.path), "Released for", "Rows read", "2.5 pcost", "'survey'"):
                assert word not in shown


def test_paid_releases_are_found_from_the_ledger_without_a_plan(ledger: Ledger, browser: Callable[[str], None]) -> None:
    browser("mine")
    ledger.add_dataset("other", total=Budget(pcost=9.0))
    made = [
        measure(expected("survey", ways, pcost), SURVEY, dataset=dataset, ledger=ledger)
        for dataset, ways, pcost in (("survey", (1,), 1.0), ("other", (1, 2), 2.0), ("other", (1,), 0.5))
    ]
    common = engine.coarse_or_fine(expected("survey", (1,)), expected("survey", (1, 2)))
    stepwise.look(common, SURVEY, dataset="other", ledger=ledger)
    session = Session().go("release")
    assert not any(b.key == "release" for b in session.app.button)
    session.set(ledger_path=str(ledger.path))
    for again in (session, Session().go("release")):  # the second one is a new day: the ledger is remembered
        assert "1 release of survey" in " ".join(s.value for s in again.app.subheader)
        pd.testing.assert_frame_equal(shown(again), answers(made[0]))
        again.set(dataset="other")
        assert len(again.app.selectbox(key="paid").options) == 2
        pd.testing.assert_frame_equal(shown(again), answers(made[2]))
        again.set(paid=made[1].key)
        pd.testing.assert_frame_equal(shown(again), answers(made[1]))
        assert "Look 1 of" in again.said()
        assert "waits for a decision" in again.said()
    pd.testing.assert_frame_equal(shown(reloaded(session)), answers(made[1]))
    session.press("paid_look_0")
    session.app.switch_page("pages/coarse.py")
    assert "What the look says" in " ".join(s.value for s in session.run(session.app).app.subheader)
    assert len([k for k in kinds(ledger) if k == "spend"]) == 4


def test_the_settings_hold_places_and_are_for_their_owner(ledger: Ledger, browser: Callable[[str], None]) -> None:
    browser("mine")
    session = ready(ledger)
    file = ledger.path.parent / "settings" / "places.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert set(json.loads(file.read_text())["mine"]) == {"pages", "ledgers", "used"}
    for content in ("", "[]", "{", "[" * 100_000):
        file.write_text(content)
        assert "Privacy cost" in reloaded(session).metrics()


def test_a_total_is_changed_with_a_name_and_a_reason(tmp_path: Path) -> None:
    path = tmp_path / "office.ledger"
    book = Ledger.create(path)
    book.add_dataset("people", total=Budget(pcost=1.0))
    book.spend(dataset="people", key="a", pcost=0.75, plan_hash="p")
    session = releasing(path)
    (box,) = (n for n in session.app.number_input if n.key.startswith("new_people_"))
    assert (box.value, box.min) == (1.0, 0.75)
    session.run(box.set_value(2.5))
    assert "name" in session.press("change_total").errors()  # nobody has said who
    session.set(total_by="R. Office", total_reason="a second wave").press("change_total")
    assert not session.errors()
    assert book.status("people").left == 1.75
    assert "2.5 pcost, changed by R. Office: a second wave" in session.said()


def test_another_release_judges_simulated_records(ledger: Ledger, tmp_path: Path) -> None:
    schema = Schema.from_json(demo_data.schemas()["survey"].read_bytes())
    names, budget = schema.names[:3], Budget(pcost=0.4)
    asked = Workload(schema).add(names[:2]), Workload(schema).add(names[:2][::-1]), Workload(schema).add(names)
    given = {"dataset": "survey", "ledger": ledger, "on_refused": "drop"}
    first, near, far = (measure(engine.plan(one, budget), SURVEY, **given) for one in asked)
    made = {}
    for other in (near, far):
        files = {kind: str(tmp_path / kind) for kind in FILES}
        source = {"ledger": str(ledger.path), "key": first.key}
        made[other.key] = publishing.publish_tables(
            source, "shrunk", True, (True, None, other.key), {}, files, progress=lambda *_: True
        )
    judged = made[near.key]["acceptance"]
    assert list(judged["cost"]) == [0.0, 0.0, 0.0, near.plan.pcost]
    assert not made[near.key]["no judge"]
    assert len(made[far.key]["acceptance"]) == 3
    assert f"no column {names[2]}" in made[far.key]["no judge"]
    session = releasing(ledger.path, "3. Paid releases")
    key = f"paid_{max(int(row.seq) for row in ledger.rows() if row.kind == 'spend')}"
    session.set(**{f"{key}_view": "Tables to publish", f"{key}_simulate": True})
    (choice,) = (box for box in session.app.selectbox if box.key == f"{key}_judge")
    assert len(choice.options) == 3
    assert "pcost" in choice.options[1]
