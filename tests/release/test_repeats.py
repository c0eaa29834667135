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
from engine.release import Intake
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
def small() -> Plan:
    return plan(WORKLOAD, Budget(pcost=0.1))


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    book = Ledger.create(tmp_path / "office.ledger")
    book.add_dataset("survey", total=Budget(pcost=1.0))
    return book


def release(small: Plan, ledger: Ledger, data: Any = RECORDS, **options: Any) -> Any:
    return measure(small, data, dataset="survey", ledger=ledger.path, **options)


def in_format(name: str, records: pd.DataFrame, small: Plan, folder: Path) -> Any:
    """Return records as a file, a table or counts, in the format with this name.

    The counts are those for the plan ``small``.
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
        return count_marginals(records, SCHEMA, maximal_sets(small))
    return place


FORMATS = ("csv", "parquet", "jsonl", "sav", "dta", "frame", "arrow", "database", "counts")


@pytest.mark.parametrize("name", FORMATS)
def test_repeat_same_records_returns_stored_answers(
    small: Plan, ledger: Ledger, tmp_path: Path, name: str
) -> None:
    first, intakes = release(small, ledger), list[Intake]()
    shuffled = RECORDS.sample(frac=1.0, random_state=2)
    assert (
        release(small, ledger, in_format(name, shuffled, small, tmp_path), intake=intakes.append)
        == first
    )
    assert ledger.status("survey").spent == small.pcost
    assert [(rows.counted, rows.warnings) for rows in intakes] == [(500, ())]


@pytest.mark.parametrize("name", FORMATS)
def test_repeat_other_records_is_refused(
    small: Plan, ledger: Ledger, tmp_path: Path, name: str
) -> None:
    first, intakes = release(small, ledger), list[Intake]()
    for other in (CHANGED, RECORDS.iloc[1:]):
        with pytest.raises(OtherRecords, match="attempt=2"):
            release(small, ledger, in_format(name, other, small, tmp_path), intake=intakes.append)
    assert (ledger.status("survey").spent, intakes) == (small.pcost, [])
    assert load_measurement(ledger, first.key) == release(small, ledger, None) == first
    assert release(small, ledger, CHANGED, attempt=2).key.endswith("|2")
    with pytest.raises(OtherRecords, match="attempt=3"):
        release(small, ledger, CHANGED)


def test_repeat_error_names_no_value_of_records(small: Plan, ledger: Ledger) -> None:
    release(small, ledger)
    digest = next(row.sha256 for row in ledger.rows() if row.kind == "spend")
    with pytest.raises(DataError) as caught:
        release(small, ledger, CHANGED)
    assert not any(part in str(caught.value) for part in digest.replace("=", " ").split())
    assert not re.search(r"(?<![\w:.])500(?!\w)", str(caught.value))
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_repeat_without_key_file_is_refused(small: Plan, ledger: Ledger) -> None:
    first = release(small, ledger)
    Path(f"{ledger.path}.key").unlink()
    with pytest.raises(OtherRecords, match="key file"):
        release(small, ledger)
    assert release(small, ledger, None) == first


def test_repeat_of_release_without_digest_is_refused(
    small: Plan, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(measuring, "fingerprint_of", lambda *_: None)
        release(small, ledger)
    with pytest.raises(OtherRecords):
        release(small, ledger)


def test_repeat_refuses_other_records_of_a_simultaneous_run(
    small: Plan, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One release completes after another has counted its records, before that one spends."""
    original = measuring.fingerprint_of

    def release_first(*arguments: Any) -> Any:
        monkeypatch.setattr(measuring, "fingerprint_of", original)
        release(small, ledger, RECORDS)
        return original(*arguments)

    monkeypatch.setattr(measuring, "fingerprint_of", release_first)
    with pytest.raises(OtherRecords):
        release(small, ledger, CHANGED)
    assert ledger.status("survey").spent == small.pcost


def test_repeat_checks_options_and_columns_again(small: Plan, ledger: Ledger) -> None:
    release(small, ledger)
    with pytest.raises(PlanError):
        release(small, ledger, RECORDS, on_refused="error")
    with pytest.raises(DataError, match="'a'"):
        release(small, ledger, RECORDS.drop(columns="a"))


def test_repeat_ignores_dropped_rows(small: Plan, ledger: Ledger) -> None:
    first = release(small, ledger)
    assert (
        release(small, ledger, pd.concat([RECORDS, pd.DataFrame({"a": [9], "b": [1], "c": ["x"]})]))
        == first
    )


def ways(k: int) -> Plan:
    return plan(Workload.all_ways(SCHEMA, ways=k, family="marginal"), Budget(pcost=0.1))


@pytest.mark.parametrize("option", ["1", "2"])
def test_steps_repeated_with_other_records_are_refused(ledger: Ledger, option: str) -> None:
    common = coarse_or_fine(ways(1), ways(2), names=["1", "2"])
    first = look(common, RECORDS, dataset="survey", ledger=ledger)
    with pytest.raises(OtherRecords, match="attempt"):
        look(common, CHANGED, dataset="survey", ledger=ledger)
    decide(ledger, first.key, option=option, by="A. Reader")
    done = finish(ledger, first.key, RECORDS)
    spent = ledger.status("survey").spent
    for answers in (
        finish(ledger, first.key, RECORDS.iloc[::-1]),
        resume(ledger, first.key).finished,
    ):
        for space, numbers in done.estimates.items():
            np.testing.assert_array_equal(answers.estimates[space], numbers)
    with pytest.raises(OtherRecords):
        finish(ledger, first.key, CHANGED)
    assert ledger.status("survey").spent == spent


def test_finish_charged_alone_repeats_with_changed_records(ledger: Ledger) -> None:
    common = coarse_or_fine(ways(1), ways(2), names=["1", "2"])
    key = look(common, RECORDS, dataset="survey", ledger=ledger).key
    decide(ledger, key, option="2", by="A. Reader")
    done = finish(ledger, key, CHANGED, on_changed="charge")
    assert finish(ledger, key, CHANGED, on_changed="charge").utc == done.utc
    for choice in ("charge", "refuse"):
        with pytest.raises(OtherRecords):
            finish(ledger, key, RECORDS, on_changed=choice)


def test_finish_without_residual_refuses_other_records(ledger: Ledger) -> None:
    coarse = ways(1)
    common = coarse_or_fine(coarse, coarse, names=["1", "same"])
    key = look(common, RECORDS, dataset="survey", ledger=ledger).key
    decide(ledger, key, option="same", by="A. Reader")
    assert not common.residuals[1].blocks
    with pytest.raises(OtherRecords):
        finish(ledger, key, CHANGED)
    assert finish(ledger, key, RECORDS).key == key
