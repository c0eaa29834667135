"""What is changed just before a button is pressed is in what it does, and nothing that was not shown is spent."""

from __future__ import annotations

import shutil
from pathlib import Path

from engine import Budget
from engine.release import Ledger
from pages.parts.shell.clicks import AGAIN
from tests.app.test_pages import Session, wait, with_plan
from tests.app.test_release import SURVEY, ready


def both(session: Session, button: str, **fields: object) -> Session:
    """Change fields and press a button in one run, as both arrive where somebody is quick or the server is busy."""
    for key, value in fields.items():
        session._widget(key).set_value(value)
    session.app.button(key=button).click()
    return session.run(session.app)


def test_a_weight_typed_just_before_is_that_of_the_group() -> None:
    session = with_plan("survey", (1,), page="workload").set(
        add_how="One set of attributes", group_names=["age", "vote"]
    )
    both(session, "add_group", group_weight=2.5)
    assert session.studio.workload.groups[-1].weight == 2.5
    assert "1 group added" in session.said()
    before = len(session.studio.workload.groups)
    session.run(session.app)  # and once only
    assert len(session.studio.workload.groups) == before


def test_a_rehearsal_has_the_size_typed_just_before() -> None:
    session = with_plan("survey", (1,), page="release")
    both(session, "rehearse", rows=321)
    wait(session)
    assert "REHEARSAL on simulated records" in session.said()


def test_what_cannot_be_done_with_the_new_values_is_not_done() -> None:
    session = with_plan("survey", (1,), page="workload").set(ways=[2])
    before = session.studio.workload.groups
    both(session, "add_ways", ways=[])
    assert session.studio.workload.groups == before
    session.set(ways=[2])  # nor later, when it could be done again
    assert session.studio.workload.groups == before


def test_nothing_is_spent_on_other_records_than_were_shown(tmp_path: Path) -> None:
    book, other = Ledger.create(tmp_path / "office.ledger"), tmp_path / "other.csv"
    book.add_dataset("survey", total=Budget(pcost=2.5))
    shutil.copy(SURVEY, other)
    session = ready(book).set(confirmation="survey")
    both(session, "release", records_path=str(other))
    assert [told.value for told in session.app.toast] == [AGAIN]
    assert book.status("survey").spent == 0.0
    session.set(confirmation="survey").press("release")
    wait(session)
    assert book.status("survey").spent > 0.0
