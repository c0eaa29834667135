"""Panel with several rows per person, from plan to certificate."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import demo_data
from demo_data.make_panel import panel_records
from engine.errors import LedgerError
from engine.ledger import Ledger
from engine.mechanisms import load_plan, plan
from engine.privacy import Budget
from engine.publish import release_package as package
from engine.publish.release_package import write_package
from engine.publish.verify import verify_package
from engine.records import count_marginals
from engine.release import measure
from engine.workload import Schema, Workload

PANEL = demo_data.tables()["panel"]
SCHEMA = Schema.from_json(demo_data.schemas()["panel"].read_bytes())
WORKLOAD = Workload(SCHEMA).add(("status", "wave"), "marginal").add(("weekly_hours",), "prefix")
PERSON, ROWS = SCHEMA.person, SCHEMA.rows_per_person


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    book = Ledger.create(tmp_path / "office.ledger")
    book.add_dataset("panel", total=Budget(pcost=4.0, rows_per_person=ROWS))
    return book


def test_panel_file_equals_its_script() -> None:
    expected = panel_records()
    pd.testing.assert_frame_equal(pd.read_csv(PANEL), expected)
    assert set(expected.groupby(PERSON).size()) == set(range(1, 9))
    assert not expected.duplicated([PERSON, "wave"]).any()


def test_error_at_three_rows_is_tripled() -> None:
    one_row_plan, three_row_plan = (
        plan(WORKLOAD, Budget(pcost=1.0, rows_per_person=k)) for k in (1, ROWS)
    )
    assert three_row_plan.rmse / one_row_plan.rmse == pytest.approx(3.0, rel=1e-8)
    assert load_plan(three_row_plan.to_json()).budget.rows_per_person == ROWS


def test_panel_release_states_rows_per_person(ledger: Ledger, tmp_path: Path) -> None:
    panel_plan = plan(WORKLOAD, Budget(pcost=4.0, rows_per_person=ROWS))
    intakes = []
    measurement = measure(panel_plan, PANEL, dataset="panel", ledger=ledger, intake=intakes.append)
    (intake,) = intakes
    rows_by_person = pd.read_csv(PANEL).groupby(PERSON).size()
    assert (intake.people, intake.people_over_cap) == (800, int((rows_by_person > ROWS).sum()))
    assert intake.counted == int(rows_by_person.clip(upper=ROWS).sum())
    counts = count_marginals(PANEL, SCHEMA, [("status", "wave")])
    errors = measurement.values(0) - counts["status", "wave"].ravel()
    assert np.abs(errors / np.sqrt(panel_plan.variances(0))).max() < 6.0
    package_path = write_package(
        measurement, tmp_path / "panel.zip", receipt=ledger.find(measurement.key), ledger=ledger
    )
    assert verify_package(package_path, ledger=ledger.path) == ()
    with zipfile.ZipFile(package_path) as archive:
        certificate = json.loads(archive.read("certificate.json"))
        report = archive.read("report.html").decode()
    assert (certificate["rows_per_person"], certificate["neighbours"]) == (3, "add_remove")
    assert load_plan(panel_plan.to_json()).schema.person == "person"
    assert certificate["ledger"]["pcost"] == certificate["pcost"] == panel_plan.pcost
    assert certificate["promise"] == panel_plan.budget.promise
    assert "up to 3 rows, is protected together" in certificate["promise"]
    assert certificate["promise"] in report
    # The certificate must not contain the number of dropped rows. Hashes and decimals may contain
    # its digits.
    assert not re.search(rf"(?<![\w.]){intake.over_cap}(?![\w.])", json.dumps(certificate))
    assert "a person of at most 3 rows" in ledger.status("panel").definition.describe()


@pytest.mark.parametrize(
    "privacy_unit",
    [{}, {"rows_per_person": 2}, {"rows_per_person": 3, "neighbours": "replace_one"}],
)
def test_measure_with_other_privacy_unit_spends_nothing(
    ledger: Ledger, privacy_unit: dict[str, object]
) -> None:
    with pytest.raises(LedgerError, match="total privacy budget"):
        measure(
            plan(WORKLOAD, Budget(pcost=0.1, **privacy_unit)), PANEL, dataset="panel", ledger=ledger
        )
    assert ledger.status("panel").spent == 0


def test_verify_package_changed_promise_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measurement = measure(
        plan(WORKLOAD, Budget(pcost=0.1, rows_per_person=ROWS)), PANEL, rehearsal=True
    )
    original = package.certificate
    monkeypatch.setattr(
        package,
        "certificate",
        lambda *args: original(*args) | {"promise": "No person is protected."},
    )
    assert verify_package(write_package(measurement, tmp_path / "new.zip")) == (
        "promise in the certificate differs from what the plan and the measurements imply",
    )
