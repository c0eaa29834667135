"""Selection rules of two-stage releases, as notes in the ledger."""

from __future__ import annotations

import json
import sys

import pytest

from engine.common_mechanism import stepwise
from engine.ledger import Ledger
from engine.privacy import Budget
from pages.parts.jobs import tasks
from tests.common_mechanism.steps import COMMON, RECORDS

measuring = sys.modules["engine.release.measure"]
RULE = {"rule": "nested", "primary": "1-way", "share": 0.5, "snr": 5.0, "sigmas": 3.0}


def test_look_continued_after_interruption_records_its_rule(tmp_path, monkeypatch):
    path, records = tmp_path / "office.ledger", tmp_path / "records.csv"
    Ledger.create(path).add_dataset("survey", total=Budget(pcost=2.0))
    RECORDS.to_csv(records, index=False)

    def look(rule):
        arguments = (COMMON.to_json(), str(records), "survey", str(path), 1, {}, rule)
        return tasks.look(*arguments, progress=lambda share, text: True)

    with monkeypatch.context() as patch:

        def interrupt(*args):
            raise KeyboardInterrupt

        patch.setattr(measuring, "draw", interrupt)
        with pytest.raises(KeyboardInterrupt):
            look(RULE)
    key = stepwise.look_key(COMMON, dataset="survey")
    assert list(Ledger(path).notes(kind="rule", key=key)) == []
    assert look(RULE)["key"] == key
    # The first measurement has been released, so a rule chosen now is not recorded.
    look(RULE | {"share": 0.9})
    notes = Ledger(path).notes(kind="rule", key=key)
    assert [json.loads(note.note) for note in notes] == [RULE]
