"""Release page: confirmation, one draw per key, results and recovery."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from engine.errors import Cancelled
from engine.ledger import Ledger
from engine.ledger.signing import key_fingerprint
from engine.privacy import Budget
from engine.release import Measurement, measure
from engine.release.measure import load_measurement
from pages.parts.jobs import private_tempdir, publishing
from pages.parts.release.published_view import FILES
from pages.parts.shell import page_layout, permalink
from pages.parts.shell.history import RequestState
from tests.app.release.sessions import (
    CONFIRM,
    FILE,
    PAYER,
    SURVEY,
    answers_on_page,
    is_release_disabled,
    open_confirmation,
    open_release,
    open_result,
    open_step,
    row_kinds,
)
from tests.app.session import UNIFORM, Session, demo_plan, open_demo, wait


def publish_after_two_stops(
    source: dict[str, str], files: dict[str, str]
) -> tuple[dict[str, Any], Path]:
    """Cancel a publication twice; return the result of the third attempt and its checkpoints."""
    checkpoint = private_tempdir.checkpoint_folder("a job")
    messages = list[str]()

    def attempt(limit: int) -> dict[str, Any]:
        messages.clear()

        def report(fraction: float, text: str) -> bool:
            messages.append(text)
            return len(messages) < limit

        return publishing.publish_tables(
            source,
            fit="shrunk",
            integer=True,
            records=(True, None),
            rule={"least_count": 5.0},
            files=files,
            checkpoint=str(checkpoint),
            progress=report,
        )

    for limit in (8, 20):
        with pytest.raises(Cancelled):
            attempt(limit)
        assert list(checkpoint.rglob("*.npz"))
    return attempt(10**6), checkpoint


def test_release_without_confirmation_is_disabled(ledger: Ledger) -> None:
    session = open_release(ledger, records="")
    assert is_release_disabled(session)
    assert "choose the records" in session.text()
    session.set(records_path=SURVEY)
    for typed in ("", "Survey", "surve"):
        session.set(confirmation=typed)
        assert is_release_disabled(session)
        assert "type the dataset name" in session.text()
    assert not is_release_disabled(session.set(confirmation="survey"))
    assert row_kinds(ledger) == ["ledger", "dataset"]


def test_release_requested_twice_runs_once(ledger: Ledger) -> None:
    session = open_release(ledger).set(confirmation="survey")
    other = open_release(ledger).set(confirmation="survey")
    session.press("release")
    other.press("release")
    wait(session)
    wait(other)
    assert row_kinds(ledger) == ["ledger", "dataset", "spend", "saved"]
    assert "Released for survey" in session.text()
    # The curator keeps these files; the address of the page contains no path.
    assert f"Ledger: {ledger.path}. Key that signs packages: {ledger.path}.key." in session.text()
    assert ledger.path.name not in str(session.app.query_params)
    assert (
        session.app.session_state[page_layout.RELEASED] == session.studio.key
    )  # a tick in the path
    assert "Rows read 944 = counted 944 + dropped 0" in session.text()
    session.set(release_result_group=0)
    first = answers_on_page(session)
    for again in (other, open_release(ledger)):
        if again is not other:
            open_result(again)
        pd.testing.assert_frame_equal(answers_on_page(again.set(release_result_group=0)), first)
    for _ in range(3):
        session.run(session.app)
    pd.testing.assert_frame_equal(answers_on_page(session), first)
    (spend,) = (row for row in Ledger(ledger.path).rows() if row.kind == "spend")
    stored = load_measurement(ledger, spend.key)
    pd.testing.assert_frame_equal(stored.answers(0), first)
    assert "truth" not in first


def release_survey(ledger: Ledger) -> Measurement:
    """Release the plan that `open_release` opens, without a page."""
    return measure(demo_plan("survey", (1,)), SURVEY, dataset="survey", ledger=ledger)


def test_publication_stopped_twice_is_completed(ledger: Ledger) -> None:
    stored = release_survey(ledger)
    files = {kind: str(ledger.path.parent / f"output.{kind}") for kind in FILES}
    source = {"ledger": str(ledger.path), "key": stored.key}
    result, checkpoint = publish_after_two_stops(source, files)
    assert not checkpoint.exists()
    assert (
        result["total"]
        == len(pd.read_csv(files["records"]))
        == len(stored.publish(integer=True).people)
    )
    assert result["acceptance"]["met"][0]
    assert len(result["sums"]) == len(stored.plan.workload.groups)
    assert {Path(file).stat().st_mode & 0o777 for file in files.values()} == {0o600}
    for kind in ("csv", "zip"):
        assert b"REHEARSAL" not in Path(files[kind]).read_bytes()


def test_views_of_stored_release_show_its_answers(ledger: Ledger) -> None:
    stored, session = release_survey(ledger), open_result(open_release(ledger))
    session.set(release_result_group=4, release_result_confidence=0.9)
    pd.testing.assert_frame_equal(answers_on_page(session), stored.answers(4, confidence=0.9))
    session.set(release_result_view="Ask a question", release_result_ask_names=["vote"])
    answer = stored.answer(("vote",), [1.0, 0.0])
    assert session.metrics()["Answer (counts)"] == f"{answer.answer:,.1f}"
    session.set(release_result_ask_names=["vote", "party"])
    assert "does not measure" in session.errors()
    target = ledger.path.parent / "answers.csv"
    session.set(release_result_view="Download", release_result_path=str(target))
    wait(session.press("release_result_write"))
    assert "Written" in session.text()
    assert len(pd.read_csv(target)) == stored.plan.workload.queries


def test_second_attempt_draws_new_noise_and_third_is_too_expensive(ledger: Ledger) -> None:
    stored, session = release_survey(ledger), open_result(open_release(ledger))
    first = answers_on_page(session.set(release_result_group=0))
    session.press("New release").set(step=CONFIRM).set(again_1=True)
    assert "Attempt 2 draws new noise and spends" in session.text()
    joint = ledger.status("survey").joint_charge(stored.plan.pcost)
    assert joint.releases == 2
    assert f"all 2 releases guesses right at most {joint.guess:g}%" in session.text()
    wait(session.set(confirmation="survey").press("release"))
    assert row_kinds(ledger)[4:] == ["spend", "saved"]
    session.set(release_result_view="Answers", release_result_group=0)
    assert (answers_on_page(session)["answer"] != first["answer"]).all()
    # The step of the dataset offers the stored result, which is free.
    session.press("New release").set(step=PAYER)
    assert "Showing the result again costs nothing" in session.text()
    assert "Released for survey" in session.press("open_result").text()
    session.press("New release").set(step=CONFIRM).set(again_2=True)
    assert is_release_disabled(session.set(confirmation="survey"))
    assert "ε 3.307 is left of the total, and the plan costs ε 4.887" in session.text()


def test_download_shows_signer_and_receipt(ledger: Ledger) -> None:
    session = open_release(ledger).set(confirmation="survey").press("release")
    wait(session).set(release_result_view="Download")
    (spend,) = (row for row in Ledger(ledger.path).rows() if row.kind == "spend")
    public_key = ledger.public_key()
    text = session.text()
    assert key_fingerprint(public_key) in text
    assert f"ledger row {spend.seq}, hash `{spend.hash}`" in text
    files = {button.label: button for button in session.app.get("download_button")}
    assert {"Public key (text)", "Receipt (JSON)"} <= set(files)


def test_first_published_tables_need_no_click(ledger: Ledger) -> None:
    session = open_release(ledger).set(confirmation="survey").press("release")
    wait(session).set(release_result_view="Download")
    wait(session.press("release_result_to_tables"))
    assert "All tables sum to" in session.text()
    session.set(release_result_view="Download")
    labels = [b.label for b in session.app.get("download_button")]
    assert labels[0] == "Package with tables (zip)"
    session.set(release_result_view="Published tables")
    assert "Package with tables (zip)" in {b.label for b in session.app.get("download_button")}
    tables = session.app.dataframe[0].value
    # another option needs a click; until then the former tables are shown with a note
    session.set(release_result_whole=True)
    assert "former options" in wait(session).text()
    pd.testing.assert_frame_equal(session.app.dataframe[0].value, tables)
    wait(session.press("release_result_publish"))
    assert "former options" not in session.text()
    integers = session.app.dataframe[0].value["published"].dropna()
    assert (integers % 1 == 0).all()
    # the result of the former options is discarded now
    wait(session.set(release_result_whole=False))
    assert "former options" in session.text()


def test_lost_result_shows_error_and_needs_attempt(ledger: Ledger) -> None:
    session = open_release(ledger)
    reference = demo_plan("survey", (1,))
    ledger.spend(
        dataset="survey",
        key=f"survey|{reference.hash}|1",
        pcost=reference.pcost,
        plan_hash=reference.hash,
    )
    session.run(session.app)
    assert "no result is saved" in session.errors()
    assert not any(b.key == "release" for b in session.app.button)
    session.set(again_1=True, confirmation="survey")
    assert not is_release_disabled(session)


def test_interrupted_release_is_completed_without_cost(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = demo_plan("survey", (1,))
    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "save_result", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            measure(reference, SURVEY, dataset="survey", ledger=ledger)
    session = open_release(ledger)
    assert "spends nothing more" in session.text() + session.errors() + str(session.app.warning)
    wait(session.set(confirmation="survey").press("release"))
    assert "Released for survey" in session.text()
    assert row_kinds(ledger) == ["ledger", "dataset", "spend", "saved"]


def test_stored_result_is_shown_after_failed_job(ledger: Ledger) -> None:
    session = open_release(ledger, records=str(ledger.path.parent / "missing.csv")).set(
        confirmation="survey"
    )
    wait(session.press("release"))
    assert "there is no file" in session.errors()
    # Another program releases the plan in the meantime.
    release_survey(ledger)
    session.run(session.app)
    assert "Released for survey" in session.text()
    assert "Rows read" not in session.text()


def test_row_counts_are_shown_to_releasing_session_only(ledger: Ledger) -> None:
    session = open_release(ledger)
    other = open_release(ledger)
    wait(session.set(confirmation="survey").press("release"))
    for again in (other.run(other.app), open_release(ledger)):
        assert "Released for survey" in open_result(again).text()
        assert "Rows read" not in again.text()
    assert "Rows read 944" in session.text()
    session.set(release_result_group=4)
    assert "Rows read 944" in session.text()
    session.go("preview").go("release")
    assert "Released for survey" in session.text()
    assert "Rows read" not in session.text()


def test_stored_answers_are_hidden_for_other_records(ledger: Ledger, tmp_path: Path) -> None:
    measure(demo_plan("survey", (1,)), SURVEY, dataset="survey", ledger=ledger)
    rows = Path(SURVEY).read_text().splitlines(keepends=True)
    other, shuffled = tmp_path / "other.csv", tmp_path / "shuffled.csv"
    other.write_text("".join(rows[:-1]))
    shuffled.write_text("".join([rows[0], *reversed(rows[1:])]))
    assert "Released for survey" in open_result(open_release(ledger, str(shuffled))).text()
    session = open_release(ledger, str(other))
    assert "not the records that were released" in session.errors()
    assert "Release again" in session.errors()
    assert "Released for survey" not in session.text()
    assert not any(b.key == "open_result" for b in session.app.button)
    wait(session.set(again_1=True, confirmation="survey").press("release"))
    assert "Released for survey" in session.text()
    assert row_kinds(ledger)[-2:] == ["spend", "saved"]
    session = open_release(ledger, str(shuffled))
    assert "not the records that were released" in session.errors()


def test_huge_epsilon_shows_a_warning(ledger: Ledger) -> None:
    assert "almost no protection" not in open_release(ledger).text()
    workload = demo_plan("survey", (1,)).workload
    studio = RequestState(workload=workload, budget=Budget.approx(1e9, 1e-6), options=UNIFORM)
    session = Session(plan=permalink.packed(studio))
    wait(session.go("release", step=PAYER, ledger_path=str(ledger.path)))
    session.set(dataset="survey").set(step=CONFIRM)
    assert "almost no protection" in session.text()


def test_tiny_cost_is_shown_without_exponent(ledger: Ledger) -> None:
    workload = demo_plan("survey", (1,)).workload
    studio = RequestState(workload=workload, budget=Budget(pcost=5e-8), options=UNIFORM)
    session = Session(plan=permalink.packed(studio))
    wait(session.go("release", step=PAYER, ledger_path=str(ledger.path)))
    wait(session.set(dataset="survey").set(step=CONFIRM))
    button = next(b for b in session.app.button if b.key == "release")
    assert button.label == "Release: spend ε 0.0004989"
    (metric,) = (m for m in session.app.sidebar.metric)
    shown = metric.value + metric.help + session.text()
    assert not re.search(r"(pcost|rho|mu|ε|spend) \d*\.?\d*e-\d", shown)


def test_dataset_that_cannot_pay_names_the_control(ledger: Ledger) -> None:
    ledger.spend(dataset="survey", key="a", pcost=2.0, plan_hash="p")
    session = open_step(ledger.path).set(dataset="survey")
    assert "ε 7.287 of ε 8.307 spent" in session.text()
    assert "too little for this plan, which costs ε 4.887" in session.text()
    assert "Choose a smaller budget on Preview" in session.text()
    assert "enough for" not in session.text()
    assert "another dataset" not in session.text()
    ledger.change_total("survey", total=Budget(pcost=2.0), by="A", reason="test")
    session.run(session.app)
    assert "nothing is left of the total, too little for this plan" in session.text()
    assert "Use “Change the total” below." in session.text()
    assert "smaller budget" not in session.text()
    ledger.add_dataset("pure", total=Budget.pure(1.0))
    session.run(session.app)
    assert "choose “pure epsilon”" in session.set(dataset="pure").text()


def test_unspent_total_does_not_look_spent(ledger: Ledger) -> None:
    ledger.add_dataset("unspent", total=Budget(pcost=2.50025))
    session = open_step(ledger.path).set(dataset="unspent")
    assert "ε 0 of ε 8.307 spent" in session.text()
    ledger.spend(dataset="unspent", key="a", pcost=0.5, plan_hash="p")
    assert "ε 3.308 of ε 8.307 spent" in session.run(session.app).text()


def test_dataset_chosen_for_another_schema_is_not_preselected(ledger: Ledger) -> None:
    session = open_step(ledger.path)
    assert session.app.selectbox(key="dataset").value is None
    assert "choose or create the dataset" in session.text()
    session.set(dataset="survey")
    assert "choose or create the dataset" not in session.text()
    session.app.session_state["history"] = open_demo("cps", (1,)).app.session_state["history"]
    session.go("preview").go("release", step=PAYER)
    assert session.app.selectbox(key="dataset").value is None
    session.set(step=CONFIRM)
    assert not any(b.key == "release" for b in session.app.button)


def test_changed_request_closes_the_result(ledger: Ledger) -> None:
    session = open_release(ledger)
    wait(session.set(confirmation="survey").press("release"))
    assert "Released for survey" in session.text()
    session.app.session_state["history"] = open_demo("survey", (2,)).app.session_state["history"]
    # The former step "4. Confirm" is not open: the new plan begins with its rehearsal.
    session.app.session_state["step"] = CONFIRM
    wait(session.go("preview").go("release"))
    assert "Released for survey" not in session.text()
    assert "What will come out?" in session.text()
    assert session.app.session_state["dataset"] == "survey"
    assert "The schema has changed" not in session.set(step=CONFIRM).text()


def test_dataset_of_other_unit_is_not_chargeable(ledger: Ledger) -> None:
    ledger.add_dataset("visits", total=Budget(pcost=9.0, rows_per_person=3))
    session = open_step(ledger.path).set(dataset="visits")
    assert "cannot be charged for this plan" in session.text()
    assert "enough for" not in session.text()
    assert "rows_per_person" not in session.text() + session.errors()


@pytest.mark.parametrize(("extra_rows", "is_warned"), [(5, False), (50, True)])
def test_many_dropped_rows_are_an_amber_box(
    ledger: Ledger, tmp_path: Path, extra_rows: int, is_warned: bool
) -> None:
    lines = Path(SURVEY).read_text(encoding="utf-8").splitlines()
    invalid = lines[1].replace("36", "136", 1)
    place = tmp_path / "records.csv"
    place.write_text("\n".join([*lines, *[invalid] * extra_rows]) + "\n", encoding="utf-8")
    session = open_release(ledger, records=str(place))
    wait(session.press("check_records"))
    boxes = " ".join(box.value for box in session.app.warning)
    assert ("will be dropped" in boxes) == is_warned
    wait(session.set(confirmation="survey").press("release"))
    assert ("were dropped" in session.text()) == is_warned
    assert f"age: {extra_rows} outside the schema" in session.text()
    (fold,) = (e for e in session.app.expander if e.label == "Why rows were dropped")
    assert ("To keep such rows next time" in fold.markdown[0].value) == is_warned
    assert "To keep such rows" not in " ".join(box.value for box in session.app.warning)
    assert "Save this private report (text)" in {b.label for b in fold.get("download_button")}
    boxes = " ".join(box.value for box in session.app.warning).replace("\\", "")
    assert (f"dropped {extra_rows}" in boxes) == is_warned
    # The message that the release is done comes first, then at most one warning.
    boxes_in_order = [e.type for e in session.app.main if e.type in ("success", "warning")]
    assert boxes_in_order == ["success", "warning"][: 1 + is_warned]


def test_confirm_repeats_dropped_rows_of_the_check(ledger: Ledger, tmp_path: Path) -> None:
    lines = Path(SURVEY).read_text(encoding="utf-8").splitlines()
    invalid = lines[1].replace("36", "136", 1)
    place = tmp_path / "records.csv"
    place.write_text("\n".join([*lines, *[invalid] * 50]) + "\n", encoding="utf-8")
    session = open_step(ledger.path, FILE, records_path=str(place))
    wait(session.press("check_records"))
    open_confirmation(session)
    boxes = " ".join(box.value for box in session.app.warning).replace("\\", "")
    # 944 valid rows and 50 invalid ones
    assert "50 of 994 rows (5.0%) will be dropped." in boxes
    place.write_text("\n".join(lines) + "\n", encoding="utf-8")
    session.run(session.app)
    assert "50 of 994" not in session.text()
    assert "have not been checked" in session.text()


def test_warnings_of_the_check_are_not_repeated_after_the_release(
    ledger: Ledger, tmp_path: Path
) -> None:
    records = pd.read_csv(SURVEY).assign(id=lambda frame: range(len(frame)))
    records.to_csv(tmp_path / "records.csv", index=False)
    warned = open_release(ledger, records=str(tmp_path / "records.csv"))
    wait(warned.set(step=FILE).press("check_records"))
    assert "id" in " ".join(box.value for box in warned.app.warning)
    wait(open_confirmation(warned).set(confirmation="survey").press("release"))
    assert "Rows read 944" in warned.text()
    assert not warned.app.warning


def test_warnings_of_a_release_without_a_check_are_shown(ledger: Ledger, tmp_path: Path) -> None:
    records = pd.read_csv(SURVEY).assign(id=lambda frame: range(len(frame)))
    records.to_csv(tmp_path / "records.csv", index=False)
    session = open_release(ledger, records=str(tmp_path / "records.csv"))
    wait(session.set(confirmation="survey").press("release"))
    assert "id" in " ".join(box.value for box in session.app.warning)
