"""Repeated releases: stored answers for equal records, errors for other records."""

from __future__ import annotations

import pickle
import re
import sys
from pathlib import Path
from typing import Any

import ibis
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from demo_data.make_synthetic import synthetic
from engine.common_mechanism.common_plan import coarse_or_fine
from engine.common_mechanism.stepwise import decide, finish, look, resume
from engine.errors import DataError, OtherRecords, PlanError
from engine.ledger import Ledger
from engine.mechanisms import plan
from engine.plans import Plan
from engine.privacy import Budget
from engine.records import count_marginals
from engine.release.ingest import maximal_sets
from engine.release.measure import load_measurement
from engine.workload import Attribute, Schema, Workload

pytestmark = pytest.mark.usefixtures("in_process_readers")
measuring = sys.modules["engine.release.measure"]
measure = measuring.measure
SCHEMA = Schema(
    [Attribute.of_size("a", 5), Attribute.of_size("b", 4), Attribute.categorical("c", ["x", "y"])]
)
WORKLOAD = Workload.all_ways(SCHEMA, ways=(1, 2))
RECORDS = synthetic(SCHEMA, 500, seed=5)
CHANGED = RECORDS.assign(a=[(RECORDS["a"].iloc[0] + 1) % 5, *RECORDS["a"].iloc[1:]])


@pytest.fixture(scope="module")
def small_plan() -> Plan:
    return plan(WORKLOAD, Budget(pcost=0.1))


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    book = Ledger.create(tmp_path / "office.ledger")
    book.add_dataset("survey", total=Budget(pcost=1.0))
    return book


def release(small_plan: Plan, ledger: Ledger, data: Any = RECORDS, **options: Any) -> Any:
    return measure(small_plan, data, dataset="survey", ledger=ledger.path, **options)


def in_format(name: str, records: pd.DataFrame, small_plan: Plan, folder: Path) -> Any:
    """Return records as a file, a table or counts, in the format with this name.

    The counts are those for the plan ``small_plan``.
    """
    place = folder / f"again.{name}"
    if name == "csv":
        records.to_csv(place, index=False)
    elif name == "parquet":
        records.to_parquet(place)
    elif name == "jsonl":
        records.to_json(place, orient="records", lines=True)
    elif name == "sav":
        pyreadstat = pytest.importorskip("pyreadstat")
        pyreadstat.write_sav(records, place)
    elif name == "dta":
        records.to_stata(place, write_index=False)
    elif name == "frame":
        return records
    elif name == "arrow":
        return pa.Table.from_pandas(records)
    elif name == "database":
        return ibis.memtable(pa.Table.from_pandas(records, preserve_index=False))
    else:
        return count_marginals(records, SCHEMA, maximal_sets(small_plan))
    return place


FORMATS = ("csv", "parquet", "jsonl", "sav", "dta", "frame", "arrow", "database", "counts")


@pytest.mark.parametrize("name", FORMATS)
def test_repeat_same_records_returns_stored_answers(
    small_plan: Plan, ledger: Ledger, tmp_path: Path, name: str
) -> None:
    first = release(small_plan, ledger)
    intakes = []
    shuffled = RECORDS.sample(frac=1.0, random_state=2)
    data = in_format(name, shuffled, small_plan, tmp_path)
    assert release(small_plan, ledger, data, intake=intakes.append) == first
    assert ledger.status("survey").spent == small_plan.pcost
    (intake,) = intakes
    assert (intake.counted, intake.warnings) == (len(RECORDS), ())


@pytest.mark.parametrize("name", FORMATS)
def test_repeat_other_records_is_refused(
    small_plan: Plan, ledger: Ledger, tmp_path: Path, name: str
) -> None:
    first = release(small_plan, ledger)
    intakes = []
    for other_records in (CHANGED, RECORDS.iloc[1:]):
        data = in_format(name, other_records, small_plan, tmp_path)
        with pytest.raises(OtherRecords, match="attempt=2"):
            release(small_plan, ledger, data, intake=intakes.append)
    assert ledger.status("survey").spent == small_plan.pcost
    assert not intakes
    assert load_measurement(ledger, first.key) == release(small_plan, ledger, None) == first
    assert release(small_plan, ledger, CHANGED, attempt=2).key.endswith("|2")
    with pytest.raises(OtherRecords, match="attempt=3"):
        release(small_plan, ledger, CHANGED)


def test_repeat_error_names_no_value_of_records(small_plan: Plan, ledger: Ledger) -> None:
    release(small_plan, ledger)
    (spend,) = (row for row in ledger.rows() if row.kind == "spend")
    with pytest.raises(DataError) as caught:
        release(small_plan, ledger, CHANGED)
    message = str(caught.value)
    for digest in spend.sha256.replace("=", " ").split():
        assert digest not in message
    # The number of records is no word of the message. A time or a hash may contain its digits.
    assert not re.search(rf"(?<![\w:.]){len(RECORDS)}(?!\w)", message)
    assert str(pickle.loads(pickle.dumps(caught.value))) == message


def test_repeat_without_key_file_is_refused(small_plan: Plan, ledger: Ledger) -> None:
    first = release(small_plan, ledger)
    Path(f"{ledger.path}.key").unlink()
    with pytest.raises(OtherRecords, match="key file"):
        release(small_plan, ledger)
    assert release(small_plan, ledger, None) == first


def test_repeat_of_release_without_digest_is_refused(
    small_plan: Plan, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(measuring, "fingerprint_of", lambda *_: None)
        release(small_plan, ledger)
    with pytest.raises(OtherRecords):
        release(small_plan, ledger)


def test_repeat_refuses_other_records_of_a_simultaneous_run(
    small_plan: Plan, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One release completes after another has counted its records, before that one spends."""
    original = measuring.fingerprint_of

    def release_first(*arguments: Any) -> Any:
        monkeypatch.setattr(measuring, "fingerprint_of", original)
        release(small_plan, ledger, RECORDS)
        return original(*arguments)

    monkeypatch.setattr(measuring, "fingerprint_of", release_first)
    with pytest.raises(OtherRecords):
        release(small_plan, ledger, CHANGED)
    assert ledger.status("survey").spent == small_plan.pcost


def test_repeat_checks_options_and_columns_again(small_plan: Plan, ledger: Ledger) -> None:
    release(small_plan, ledger)
    with pytest.raises(PlanError):
        release(small_plan, ledger, RECORDS, on_refused="error")
    with pytest.raises(DataError, match="'a'"):
        release(small_plan, ledger, RECORDS.drop(columns="a"))


def test_repeat_ignores_dropped_rows(small_plan: Plan, ledger: Ledger) -> None:
    first = release(small_plan, ledger)
    refused_row = pd.DataFrame({"a": [9], "b": [1], "c": ["x"]})  # "a" has the values 0 to 4
    assert release(small_plan, ledger, pd.concat([RECORDS, refused_row])) == first


def ways(k: int) -> Plan:
    return plan(Workload.all_ways(SCHEMA, ways=k, family="marginal"), Budget(pcost=0.1))


@pytest.mark.parametrize("option", ["1", "2"])
def test_steps_repeated_with_other_records_are_refused(ledger: Ledger, option: str) -> None:
    common = coarse_or_fine(ways(1), ways(2), names=["1", "2"])
    stage = look(common, RECORDS, dataset="survey", ledger=ledger)
    with pytest.raises(OtherRecords, match="attempt"):
        look(common, CHANGED, dataset="survey", ledger=ledger)
    decide(ledger, stage.key, option=option, by="A. Reader")
    finished = finish(ledger, stage.key, RECORDS)
    spent = ledger.status("survey").spent
    repeated = finish(ledger, stage.key, RECORDS.iloc[::-1])
    resumed = resume(ledger, stage.key).finished
    for space, estimates in finished.estimates.items():
        np.testing.assert_array_equal(repeated.estimates[space], estimates)
        np.testing.assert_array_equal(resumed.estimates[space], estimates)
    with pytest.raises(OtherRecords):
        finish(ledger, stage.key, CHANGED)
    assert ledger.status("survey").spent == spent


def test_finish_charged_alone_repeats_with_changed_records(ledger: Ledger) -> None:
    common = coarse_or_fine(ways(1), ways(2), names=["1", "2"])
    key = look(common, RECORDS, dataset="survey", ledger=ledger).key
    decide(ledger, key, option="2", by="A. Reader")
    finished = finish(ledger, key, CHANGED, on_changed="charge")
    assert finish(ledger, key, CHANGED, on_changed="charge").utc == finished.utc
    for on_changed in ("charge", "refuse"):
        with pytest.raises(OtherRecords):
            finish(ledger, key, RECORDS, on_changed=on_changed)


def test_finish_without_residual_refuses_other_records(ledger: Ledger) -> None:
    coarse = ways(1)
    common = coarse_or_fine(coarse, coarse, names=["1", "same"])
    key = look(common, RECORDS, dataset="survey", ledger=ledger).key
    decide(ledger, key, option="same", by="A. Reader")
    assert not common.residuals[1].blocks
    with pytest.raises(OtherRecords):
        finish(ledger, key, CHANGED)
    assert finish(ledger, key, RECORDS).key == key
