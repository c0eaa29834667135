"""Sessions on the Release page, and what they show of a release."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

import demo_data
from engine.analysis import worst_group
from engine.ledger import Ledger
from engine.release import Measurement
from tests.app.session import Session, with_plan

SURVEY = str(demo_data.tables()["survey"])


def ready(ledger: Ledger, records: str = SURVEY) -> Session:
    """A session that only has to confirm."""
    return releasing(ledger.path, records_path=records)


def releasing(ledger: Path, step: str = "2. Release", **filled: Any) -> Session:
    """A session that comes to a plan's page for releases, where a ledger is named."""
    return with_plan("survey", (1,), page="release", step=step, ledger_path=str(ledger), **filled)


def kinds(ledger: Ledger) -> list[str]:
    return [row.kind for row in Ledger(ledger.path).rows()]


def shown(session: Session, place: int = 0) -> pd.DataFrame:
    """The answers on screen, without what is said of their quality."""
    table = session.app.dataframe[place].value
    assert set(table["quality"]) <= {"publishable", "doubtful", "noise"}
    return table.drop(columns=["relative error", "quality"])


def answers(measurement: Measurement) -> pd.DataFrame:
    """The answers that a page begins with: those of the worst group."""
    return measurement.answers(worst_group(measurement.plan))


def waiting(session: Session) -> bool:
    return next(b for b in session.app.button if b.key == "release").disabled
