"""Releases: refused rows, disk space, keys, digests and privacy units."""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from demo_data.make_synthetic import synthetic
from engine.errors import BudgetExceeded, DataError, LedgerError
from engine.ledger import Ledger, verify_ledger
from engine.mechanisms import plan
from engine.plans import Plan
from engine.privacy import Budget
from engine.records import count_marginals
from engine.release.add_noise import _on_grid
from engine.release.ingest import check_records, declare_public, fingerprint
from engine.release.measure import load_measurement
from engine.workload import Attribute, Schema, Workload

measuring = sys.modules["engine.release.measure"]
measure = measuring.measure
SCHEMA = Schema(
    [Attribute.of_size("a", 5), Attribute.of_size("b", 4), Attribute.categorical("c", ["x", "y"])]
)
WORKLOAD = Workload.all_ways(SCHEMA, ways=(1, 2))
RECORDS = synthetic(SCHEMA, 3000, seed=5)


@pytest.fixture(scope="module")
def small_plan() -> Plan:
    return plan(WORKLOAD, Budget(pcost=0.1))


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    book = Ledger.create(tmp_path / "office.ledger")
    book.add_dataset("survey", total=Budget(pcost=1.0))
    book.add_dataset("second", total=Budget(pcost=1.0))
    return book


# --- records ---


def test_check_records_reports_refused_rows_without_spending(
    small_plan: Plan, ledger: Ledger
) -> None:
    # 9 is outside attribute "a", and "z" is outside attribute "c".
    data = pd.concat([RECORDS, pd.DataFrame({"a": [9, 1], "b": [1, 1], "c": ["x", "z"]})])
    report = check_records(small_plan, data)
    assert (report.rows_in, report.counted, report.refused) == (len(RECORDS) + 2, len(RECORDS), 2)
    assert report.reasons == {"a": {"outside the schema": 1}, "c": {"outside the schema": 1}}
    assert [row.kind for row in ledger.rows()] == ["ledger", "dataset", "dataset"]
    intakes = []
    measure(small_plan, data, dataset="survey", ledger=ledger, intake=intakes.append)
    assert intakes[0].refused == 2
    assert ledger.status("survey").spent == small_plan.pcost


@pytest.mark.parametrize("mechanism", ["querysmasher", "laplace", "hdmm"])
def test_measure_above_max_records_is_exact(mechanism: str, ledger: Ledger) -> None:
    budget = Budget.pure(0.3) if mechanism == "laplace" else Budget(pcost=0.1)
    exceeded_plan = plan(WORKLOAD, budget, mechanism, max_records=100)
    assert "max_records of 100" in check_records(exceeded_plan, RECORDS).warnings[0]
    measurement = measure(exceeded_plan, RECORDS, dataset="survey", ledger=ledger)
    counts = count_marginals(RECORDS, SCHEMA, [b.attributes for b in exceeded_plan.blocks.values()])
    for block in exceeded_plan.blocks.values():
        table = counts[block.attributes]
        by_integers = _on_grid(block, table, within_max_records=False)
        by_floats = _on_grid(block, table, within_max_records=True)
        # Floats may round to the next integer, with a relative error of the sums below 2e-12.
        assert np.abs(by_integers - by_floats).max() <= 1 + 2e-12 * np.abs(by_floats).max()
        # answers to very large tables are clipped to 62 bits
        assert np.abs(_on_grid(block, table * 2**45, within_max_records=False)).max() <= 2**62
    assert measurement.plan.hash == exceeded_plan.hash


def test_integer_arithmetic_resolves_one_record_of_many(small_plan: Plan) -> None:
    """Next to 2^40 records per cell, one more record changes the answers within their sensitivity."""
    block = max(small_plan.blocks.values(), key=lambda b: b.measurements)
    table = np.full(SCHEMA.sizes(block.attributes), 2**40, np.int64)
    larger_table = table.copy()
    larger_table.flat[3] += 1
    answers, larger_answers = (
        _on_grid(block, t, within_max_records=False) for t in (table, larger_table)
    )
    distance = np.linalg.norm(larger_answers - answers) * block.grid
    largest_rounding_error = block.grid * np.sqrt(block.measurements)
    assert 0 < distance <= block.column_norm + largest_rounding_error


# --- the disk ---


def test_measure_on_full_disk_spends_nothing(
    small_plan: Plan, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(LedgerError, match=r"No space left.*Free disk space"):
        measure(small_plan, RECORDS, dataset="survey", ledger=ledger)
    assert ledger.status("survey").spent == 0.0
    monkeypatch.undo()
    assert measure(small_plan, RECORDS, dataset="survey", ledger=ledger).key


def test_measure_reserves_disk_space_before_spend(
    small_plan: Plan, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserved_sizes = []
    spend = Ledger.spend
    monkeypatch.setattr(sys.modules["engine.ledger.ledger"], "_SPARE_BYTES", 0)

    def record_reserved_size(self: Ledger, **fields: object) -> object:
        for file in Path(f"{ledger.path}.results").glob("*.part"):
            reserved_sizes.append(file.stat().st_blocks * 512)  # st_blocks counts 512-byte blocks
        return spend(self, **fields)

    monkeypatch.setattr(Ledger, "spend", record_reserved_size)
    measurement = measure(small_plan, RECORDS, dataset="survey", ledger=ledger)
    (size,) = reserved_sizes
    assert size >= ledger.result_path(measurement.key).stat().st_size


def test_open_ledger_removes_only_orphaned_parts(small_plan: Plan, ledger: Ledger) -> None:
    measure(small_plan, RECORDS, dataset="survey", ledger=ledger)
    results = Path(f"{ledger.path}.results")
    orphan = results / "killed.part"
    orphan.write_bytes(b"half")
    with ledger.room_for(b"living"):
        Ledger(ledger.path)
        (remaining_part,) = results.glob("*.part")
        assert remaining_part != orphan
    assert not list(results.glob("*.part"))


def test_simultaneous_runs_of_one_key_draw_once(
    small_plan: Plan, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No run finds the key, as if both searched for it before either of them spent."""
    calls, draw = [], measuring.draw

    def record_draw(*arguments):
        calls.append(arguments)
        return draw(*arguments)

    monkeypatch.setattr(Ledger, "find", lambda self, key: None)
    monkeypatch.setattr(measuring, "draw", record_draw)
    first, second = (
        measure(small_plan, RECORDS, dataset="survey", ledger=ledger) for _ in range(2)
    )
    assert len(calls) == 1
    for space in small_plan.blocks:
        np.testing.assert_array_equal(first.answers_on_grid[space], second.answers_on_grid[space])
    assert ledger.status("survey").spent == small_plan.pcost


# --- Digests of records ---


def test_measure_warns_before_spending_on_duplicate_dataset(
    small_plan: Plan, ledger: Ledger, tmp_path: Path
) -> None:
    intakes = []
    measure(small_plan, RECORDS, dataset="survey", ledger=ledger, intake=intakes.append)
    shuffled = tmp_path / "again.csv"
    RECORDS.sample(frac=1.0, random_state=1).to_csv(shuffled, index=False)
    ways1_plan = plan(Workload.all_ways(SCHEMA, ways=1), Budget(pcost=0.1))

    def check_unspent(intake: object) -> None:
        intakes.append(intake)
        assert ledger.status("second").spent == 0.0

    measure(ways1_plan, shuffled, dataset="second", ledger=ledger, intake=check_unspent)
    measure(ways1_plan, RECORDS.iloc[1:], dataset="survey", ledger=ledger, intake=intakes.append)
    first, duplicate, fewer_records = intakes
    assert first.warnings == fewer_records.warnings == ()
    (warning,) = duplicate.warnings
    assert "'survey'" in warning
    report = check_records(small_plan, RECORDS, dataset="survey", ledger=ledger)
    assert "'second'" in report.warnings[0]


def test_declare_public_warns_and_refuses_measured_records(
    small_plan: Plan, ledger: Ledger
) -> None:
    declare_public(small_plan, RECORDS, dataset="survey", ledger=ledger, why="in the yearbook")
    intakes = []
    measure(small_plan, RECORDS, dataset="survey", ledger=ledger, intake=intakes.append)
    assert "declared public for a rehearsal" in intakes[0].warnings[0]
    with pytest.raises(DataError, match="'survey'"):
        declare_public(small_plan, RECORDS, dataset="second", ledger=ledger, why="in the yearbook")


def test_digests_need_ledger_key_and_stay_unpublished(
    small_plan: Plan, ledger: Ledger, tmp_path: Path
) -> None:
    measurement = measure(small_plan, RECORDS, dataset="survey", ledger=ledger)
    counts = count_marginals(RECORDS, SCHEMA, [("a", "b")])
    other_ledger = Ledger.create(tmp_path / "b")
    keys = [
        ledger.secret("records"),
        ledger.secret("signature"),
        other_ledger.secret("records"),
    ]
    fingerprints = [fingerprint(counts, [("a", "b")], key) for key in keys]
    assert len({f.tables for f in fingerprints}) == len(keys)
    for first, second in itertools.combinations(fingerprints, 2):
        assert not first.same_columns(second)
    (spend,) = (row for row in ledger.rows() if row.kind == "spend")
    result = ledger.load_result(measurement.key)
    for digest in spend.sha256.replace("=", " ").split():
        assert digest.encode() not in result
    assert Path(f"{ledger.path}.key").stat().st_mode & 0o777 == 0o600
    assert ledger.path.stat().st_mode & 0o077 == 0


def test_measure_with_damaged_key_spends_nothing(small_plan: Plan, ledger: Ledger) -> None:
    Path(f"{ledger.path}.key").write_text("{}")
    with pytest.raises(LedgerError, match="key file"):
        measure(small_plan, RECORDS, dataset="survey", ledger=ledger)
    assert ledger.status("survey").spent == 0.0


# --- Units of a total ---


def test_pure_total_sums_epsilon_and_refuses_gaussian(ledger: Ledger, small_plan: Plan) -> None:
    ledger.add_dataset("pure", total=Budget.pure(1.0))
    fifth_of_total = plan(WORKLOAD, Budget.pure(0.2), "laplace")
    for attempt in range(1, 6):
        measure(fifth_of_total, RECORDS, dataset="pure", ledger=ledger, attempt=attempt)
    status = ledger.status("pure")
    assert status.definition.kind == "pure"
    assert (status.total, status.spent, status.left) == (1.0, 1.0, 0.0)
    with pytest.raises(BudgetExceeded, match="epsilon"):
        measure(fifth_of_total, RECORDS, dataset="pure", ledger=ledger, attempt=6)
    ledger.add_dataset("pure too", total=Budget.pure(9.0))
    with pytest.raises(LedgerError, match="no pure epsilon"):
        measure(small_plan, RECORDS, dataset="pure too", ledger=ledger)
    measurement = load_measurement(ledger, f"pure|{fifth_of_total.hash}|1")
    assert measurement.plan.budget.pure_epsilon == 0.2
    assert ledger.find(measurement.key).pcost == Budget.pure(0.2).pcost
    assert verify_ledger(ledger.path) == ()


def test_laplace_costs_more_of_a_gdp_total(ledger: Ledger) -> None:
    ledger.add_dataset("curve", total=Budget.gdp(1.0), kind="gdp")
    pure = Budget.pure(0.2)
    pcost_charge = ledger.status("survey").takes(pure.pcost, 0.2)
    gdp_charge = ledger.status("curve").takes(pure.pcost, 0.2)
    assert pcost_charge == pure.pcost
    assert gdp_charge >= pure.mu**2 > 1.5 * pure.pcost
    # The largest advantage of an attacker under 0.2-DP. It equals delta at epsilon 0.
    advantage = np.tanh(0.2 / 2)
    assert Budget(gdp_charge).delta(0.0) >= advantage > Budget(pcost_charge).delta(0.0)


def test_add_dataset_with_unfit_kind_is_refused(ledger: Ledger) -> None:
    with pytest.raises(LedgerError, match="kind"):
        ledger.add_dataset("odd", total=Budget(1.0), kind="renyi")
    with pytest.raises(LedgerError, match="unit"):
        ledger.add_dataset("odd", total=Budget(1.0), kind="pure")


def test_total_accepts_only_stronger_privacy_units(ledger: Ledger, small_plan: Plan) -> None:
    ledger.add_dataset("visits", total=Budget(pcost=1.0, rows_per_person=3))
    ledger.add_dataset("fixed", total=Budget(pcost=1.0, neighbours="replace_one"))
    assert "at most 3 rows" in ledger.status("visits").definition.describe()
    for dataset in ("visits", "fixed"):
        with pytest.raises(LedgerError, match="rows_per_person="):
            measure(small_plan, RECORDS, dataset=dataset, ledger=ledger)
    three_row_plan = plan(WORKLOAD, Budget(pcost=0.1, rows_per_person=3))
    for dataset in ("visits", "survey"):
        measure(three_row_plan, RECORDS, dataset=dataset, ledger=ledger)
        assert ledger.status(dataset).spent == three_row_plan.pcost
    replace_one_plan = plan(WORKLOAD, Budget(pcost=0.1, neighbours="replace_one"))
    measure(replace_one_plan, RECORDS, dataset="fixed", ledger=ledger)
    assert ledger.status("fixed").spent == replace_one_plan.pcost
    assert verify_ledger(ledger.path) == ()
