"""Sessions on the Release page and the tables that they show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

import demo_data
from engine.ledger import Ledger
from engine.release import Measurement
from pages.parts.workload.group_choice import first_group
from tests.app.session import Session, open_demo, wait

SURVEY = str(demo_data.tables()["survey"])


FILE, PAYER, CONFIRM, PAST = "2. File", "3. Who pays", "4. Confirm", "Past releases"


def open_release(ledger: Ledger, records: str = SURVEY, dataset: str = "survey") -> Session:
    """Open the step that confirms a release, with ledger, dataset and records chosen."""
    return open_confirmation(open_step(ledger.path, records_path=records), dataset)


def open_step(ledger: Path, step: str = PAYER, **fields: Any) -> Session:
    """Open a step of the Release page with a plan and the path of a ledger."""
    return open_demo("survey", (1,), page="release", step=step, ledger_path=str(ledger), **fields)


def open_confirmation(session: Session, dataset: str = "survey") -> Session:
    """Choose the dataset in a session with records, and open the step that confirms a release."""
    return wait(session.set(step=PAYER).set(dataset=dataset).set(step=CONFIRM))


def open_result(session: Session) -> Session:
    """Wait for jobs, then press the button that opens the stored result of a release."""
    return wait(session).press("open_result")


def row_kinds(ledger: Ledger) -> list[str]:
    return [row.kind for row in Ledger(ledger.path).rows()]


def answers_on_page(session: Session, index: int = 0) -> pd.DataFrame:
    """Return the table of answers with this index on the page, without its columns on quality."""
    lists = [frame.value for frame in session.app.dataframe if "quality" in frame.value]
    table = lists[index]
    assert set(table["quality"]) <= {"publishable", "doubtful", "noise"}
    return table.drop(columns=["CV", "quality"])


def answers_of_first_group(measurement: Measurement) -> pd.DataFrame:
    return measurement.answers(first_group(measurement.plan))


def is_release_disabled(session: Session) -> bool:
    return next(b for b in session.app.button if b.key == "release").disabled
