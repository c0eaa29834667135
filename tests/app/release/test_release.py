"""The release itself: confirmation, one draw per key, results, and what broke off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from engine.errors import Cancelled
from engine.ledger import Ledger
from engine.release import measure
from engine.release.measure import load_measurement
from pages.parts.jobs import private, publishing
from pages.parts.release.published_view import FILES
from tests.app.release.given import SURVEY, kinds, ready, shown, waiting
from tests.app.session import expected, wait


def stopped_twice(source: dict[str, str], files: dict[str, str]) -> tuple[dict[str, Any], Path]:
    """What is published at the third attempt, and where the first two left what they had reached."""
    checkpoint, messages = private.reached("a job"), list[str]()

    def attempt(limit: int) -> dict[str, Any]:
        messages.clear()

        def heard(fraction: float, text: str) -> bool:
            messages.append(text)
            return len(messages) < limit

        args = source, "shrunk", True, (True, None), {"least_count": 5.0}, files, str(checkpoint)
        return publishing.publish_tables(*args, progress=heard)

    for limit in (8, 20):
        with pytest.raises(Cancelled):
            attempt(limit)
        assert list(checkpoint.rglob("*.npz"))
    return attempt(10**6), checkpoint


def test_release_without_confirmation_is_disabled(ledger: Ledger) -> None:
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


def test_release_requested_twice_runs_once(ledger: Ledger) -> None:
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
    result, checkpoint = stopped_twice(source, files)
    assert not checkpoint.exists()
    assert result["total"] == len(pd.read_csv(files["records"])) == len(stored.publish(integer=True).people)
    assert result["acceptance"]["met"][0]
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


def test_lost_result_shows_error_and_needs_attempt(ledger: Ledger) -> None:
    session = ready(ledger)
    reference = expected("survey", (1,))
    ledger.spend(dataset="survey", key=f"survey|{reference.hash}|1", pcost=reference.pcost, plan_hash=reference.hash)
    session.run(session.app)
    assert "no result was saved" in session.errors()
    assert not any(b.key == "release" for b in session.app.button)
    session.set(again_1=True, confirmation="survey")
    assert not waiting(session)


def test_interrupted_release_is_completed_without_cost(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = expected("survey", (1,))
    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "save_result", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            measure(reference, SURVEY, dataset="survey", ledger=ledger)
    session = ready(ledger)
    assert "spends nothing more" in session.said() + session.errors() + str(session.app.warning)
    wait(session.set(confirmation="survey").press("release"))
    assert "Released for survey" in session.said()
    assert kinds(ledger) == ["ledger", "dataset", "spend", "saved"]


def test_stored_result_is_shown_after_failed_job(ledger: Ledger) -> None:
    session = ready(ledger, records=str(ledger.path.parent / "missing.csv")).set(confirmation="survey")
    wait(session.press("release"))
    assert "there is no file" in session.errors()
    measure(expected("survey", (1,)), SURVEY, dataset="survey", ledger=ledger)  # another program was faster
    session.run(session.app)
    assert "Released for survey" in session.said()
    assert "Rows read" not in session.said()


def test_row_counts_are_shown_to_releasing_session_only(ledger: Ledger) -> None:
    session = ready(ledger)
    other = ready(ledger)
    wait(session.set(confirmation="survey").press("release"))
    for again in (wait(other.run(other.app)), wait(ready(ledger))):
        assert "Released for survey" in again.said()
        assert "Rows read" not in again.said()
    assert "Rows read 944" in session.said()
    session.set(release_result_group=4)
    assert "Rows read 944" in session.said()
    session.go("preview").go("release").set(step="2. Release")
    assert "Released for survey" in session.said()
    assert "Rows read" not in session.said()


def test_stored_answers_are_hidden_for_other_records(ledger: Ledger, tmp_path: Path) -> None:
    measure(expected("survey", (1,)), SURVEY, dataset="survey", ledger=ledger)
    rows = Path(SURVEY).read_text().splitlines(keepends=True)
    other, shuffled = tmp_path / "other.csv", tmp_path / "shuffled.csv"
    other.write_text("".join(rows[:-1]))
    shuffled.write_text("".join([rows[0], *reversed(rows[1:])]))
    session = wait(ready(ledger, records=str(shuffled)))
    assert "Released for survey" in session.said()
    session = wait(session.set(records_path=str(other)))
    assert "not the records that were released" in session.errors()
    assert "Release once more" in session.errors()
    assert "Released for survey" not in session.said()
    assert not session.app.dataframe
    wait(session.set(again_1=True, confirmation="survey").press("release"))
    assert "Released for survey" in session.said()
    assert kinds(ledger)[-2:] == ["spend", "saved"]
    session = wait(session.set(records_path=str(shuffled)))
    assert "not the records that were released" in session.errors()
