"""Sessions on the Release page and the tables that they show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

import demo_data
from engine.analysis import worst_group
from engine.ledger import Ledger
from engine.release import Measurement
from tests.app.session import Session, open_demo

SURVEY = str(demo_data.tables()["survey"])


def open_release(ledger: Ledger, records: str = SURVEY) -> Session:
    """Open the step of the release with ledger and records chosen."""
    return open_step(ledger.path, records_path=records)


def open_step(ledger: Path, step: str = "2. Release", **fields: Any) -> Session:
    """Open a step of the Release page with a plan and the path of a ledger."""
    return open_demo("survey", (1,), page="release", step=step, ledger_path=str(ledger), **fields)


def row_kinds(ledger: Ledger) -> list[str]:
    return [row.kind for row in Ledger(ledger.path).rows()]


def answers_on_page(session: Session, index: int = 0) -> pd.DataFrame:
    """Return the answers on the page without the columns on their quality."""
    table = session.app.dataframe[index].value
    assert set(table["quality"]) <= {"publishable", "doubtful", "noise"}
    return table.drop(columns=["relative error", "quality"])


def answers_of_worst_group(measurement: Measurement) -> pd.DataFrame:
    return measurement.answers(worst_group(measurement.plan))


def is_release_disabled(session: Session) -> bool:
    return next(b for b in session.app.button if b.key == "release").disabled
