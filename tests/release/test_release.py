"""Releases end to end: bias, variances, spends, stored results and answer files."""

from __future__ import annotations

import csv
import itertools
import math
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from demo_data.make_synthetic import synthetic
from engine.errors import (
    BudgetExceeded,
    Cancelled,
    DataError,
    LedgerError,
    NotAnswerable,
    PlanError,
    ResultLost,
)
from engine.ledger import Ledger, release_key
from engine.mechanisms import load_plan, plan
from engine.plans import Plan
from engine.privacy import Budget
from engine.publish import write_answers
from engine.records import count_marginals
from engine.release import apply_group
from engine.release.measure import load_rehearsal, save_rehearsal
from engine.workload import Attribute, Schema, Workload

measuring = sys.modules["engine.release.measure"]  # the package exports a function of this name
measure = measuring.measure
SCHEMA = Schema(
    [
        Attribute.categorical("sex", ["F", "M"]),
        Attribute.of_size("age", 7),
        Attribute.of_size("hours", 6),
        Attribute.of_size("one", 1),
    ]
)
REHEARSALS = 300


def small_workload() -> Workload:
    workload = Workload.all_ways(SCHEMA, ways=(1, 2, 3))
    return (
        workload.add(("hours", "age"), "affine")
        .add(("age",), "range", weight=2.0)
        .add(("age", "hours"), "circular")
    )


@pytest.fixture(scope="module")
def records() -> pd.DataFrame:
    return synthetic(SCHEMA, 3000, seed=5)


@pytest.fixture(scope="module")
def small_plan() -> Plan:
    return plan(small_workload(), Budget(pcost=0.5))


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    book = Ledger.create(tmp_path / "office.ledger")
    book.add_dataset("survey", total=Budget(pcost=1.2))
    return book


def true_answers(one_plan: Plan, records: pd.DataFrame) -> list[np.ndarray]:
    """Return the exact answers of each query group."""
    sets = [g.attributes for g in one_plan.workload.groups]
    counts = count_marginals(records, one_plan.schema, sets)
    return [
        apply_group(g, counts[g.attributes].astype(float), 0, g.count)
        for g in one_plan.workload.groups
    ]


def test_rehearsals_are_unbiased_with_predicted_variances(
    small_plan: Plan, records: pd.DataFrame
) -> None:
    groups = small_plan.workload.groups
    truth = np.concatenate(true_answers(small_plan, records))
    predicted = np.concatenate([small_plan.variances(i) for i in range(len(groups))])
    counts = count_marginals(records, SCHEMA, measuring.maximal_sets(small_plan))
    errors = []
    for _ in range(REHEARSALS):
        rehearsal = measure(small_plan, counts, rehearsal=True)
        answers = np.concatenate([rehearsal.values(i) for i in range(len(groups))])
        errors.append(answers - truth)
    mean_error, mean_square = np.mean(errors, axis=0), np.mean(np.square(errors), axis=0)
    assert np.abs(mean_error / np.sqrt(predicted / REHEARSALS)).max() <= 5.0
    # With 300 rehearsals, the standard error of the estimated variance of a query is 8%.
    assert mean_square.sum() / predicted.sum() == pytest.approx(1.0, abs=0.12)
    starts = np.cumsum([0, *(g.count for g in groups)])
    for start, end in itertools.pairwise(starts):
        ratio = mean_square[start:end].sum() / predicted[start:end].sum()
        assert ratio == pytest.approx(1.0, abs=0.35)
    largest_deviation = np.abs(mean_square / predicted - 1.0).max()
    assert largest_deviation <= 6.0 * math.sqrt(2.0 / REHEARSALS)


def test_measure_repeated_spends_once_and_returns_same_answers(
    small_plan: Plan, records: pd.DataFrame, ledger: Ledger
) -> None:
    first = measure(small_plan, records, dataset="survey", ledger=ledger)
    repeated = measure(small_plan, records.iloc[::-1], dataset="survey", ledger=ledger.path)
    for i in range(len(small_plan.workload.groups)):
        pd.testing.assert_frame_equal(first.answers(i), repeated.answers(i))
    assert ledger.status("survey").spent == pytest.approx(small_plan.pcost)


def test_measure_other_attempt_draws_new_noise_while_budget_lasts(
    small_plan: Plan, records: pd.DataFrame, ledger: Ledger
) -> None:
    first = measure(small_plan, records, dataset="survey", ledger=ledger)
    second = measure(small_plan, records, dataset="survey", ledger=ledger, attempt=2)
    assert not np.allclose(first.values(0), second.values(0))
    with pytest.raises(BudgetExceeded, match="left"):
        measure(small_plan, records, dataset="survey", ledger=ledger, attempt=3)
    assert ledger.verify() == ()


def test_answers_are_consistent_and_match_their_labels(
    small_plan: Plan, records: pd.DataFrame
) -> None:
    rehearsal = measure(small_plan, records, rehearsal=True)
    table, ages = rehearsal.marginal(("age", "sex")), rehearsal.marginal(("age",))
    np.testing.assert_allclose(table.sum(axis=1), ages, atol=1e-8)
    np.testing.assert_allclose(rehearsal.marginal(("sex", "age")), table.T)
    np.testing.assert_allclose(ages.sum(), float(rehearsal.marginal(())), atol=1e-8)
    workload = small_plan.workload
    labels = [workload.describe(query) for query in range(workload.queries)]
    frames = []
    for i in range(len(workload.groups)):
        frame = rehearsal.answers(i, confidence=0.9)
        frames.append(frame)
        np.testing.assert_allclose(frame["std"], np.sqrt(small_plan.variances(i)))
        # 1.645 is the 95% quantile of the standard normal distribution.
        half_width = 1.6448536 * frame["std"]
        np.testing.assert_allclose(frame["high"] - frame["low"], 2 * half_width, rtol=1e-6)
        np.testing.assert_allclose((frame["high"] + frame["low"]) / 2, frame["answer"], atol=1e-9)
        part = rehearsal.answers(i, 1, 4, confidence=0.9)
        pd.testing.assert_frame_equal(part, frame.iloc[1:4].reset_index(drop=True))
    assert list(pd.concat(frames)["query"]) == labels


def test_answer_and_combination_have_exact_errors(small_plan: Plan, records: pd.DataFrame) -> None:
    rehearsal = measure(small_plan, records, rehearsal=True)
    coefficients = np.random.default_rng(0).normal(size=SCHEMA.sizes(("age", "sex")))
    query = rehearsal.answer(("age", "sex"), coefficients)
    assert query.answer == pytest.approx(
        float(np.sum(coefficients * rehearsal.marginal(("age", "sex"))))
    )
    assert query.std == pytest.approx(
        math.sqrt(small_plan.variance_of(("age", "sex"), coefficients))
    )
    # the 97.5% quantile of the standard normal distribution times the standard error
    half_width = 1.9599640 * query.std
    assert (query.low, query.high) == pytest.approx(
        (query.answer - half_width, query.answer + half_width)
    )
    men, women = [0.0, 1.0], [1.0, 0.0]
    difference = rehearsal.combination([(("sex",), men), (("sex",), women)], [1.0, -1.0])
    direct = rehearsal.answer(("sex",), [-1.0, 1.0])
    assert difference.answer == pytest.approx(direct.answer)
    assert difference.std == pytest.approx(direct.std)


def test_unmeasured_queries_are_refused(records: pd.DataFrame) -> None:
    sums_plan = plan(Workload(SCHEMA).add(("age", "hours"), "affine"), Budget(pcost=1.0))
    rehearsal = measure(sums_plan, records, rehearsal=True)
    with pytest.raises(NotAnswerable, match="age × hours"):
        rehearsal.marginal(("age", "hours"))
    with pytest.raises(NotAnswerable, match="sex"):
        rehearsal.answer(("sex",), [1.0, 0.0])
    # the query "age + hours <= 3" as coefficients of the cells
    low_sums = np.add.outer(np.arange(7), np.arange(6)) <= 3
    low_sum_answer = rehearsal.answer(("age", "hours"), low_sums).answer
    assert low_sum_answer == pytest.approx(rehearsal.values(0)[3])


def test_cancelling_at_the_last_report_returns_the_release(
    small_plan: Plan, records: pd.DataFrame, ledger: Ledger
) -> None:
    reports = []

    def cancel_at_end(fraction: float, text: str) -> bool:
        reports.append((fraction, text))
        return fraction < 1.0 or text != "Released"

    release = measure(small_plan, records, dataset="survey", ledger=ledger, progress=cancel_at_end)
    assert reports[-1] == (1.0, "Released")
    assert ledger.status("survey").spent == small_plan.pcost
    assert release == measure(small_plan, records, dataset="survey", ledger=ledger)


def test_measure_refused_or_cancelled_spends_nothing(
    small_plan: Plan, records: pd.DataFrame, ledger: Ledger
) -> None:
    one_bad_record = records.copy()
    one_bad_record.loc[3, "age"] = 99
    with pytest.raises(DataError, match="age"):
        measure(small_plan, one_bad_record.drop(columns="age"), dataset="survey", ledger=ledger)
    with pytest.raises(PlanError, match="Check the records first"):
        measure(small_plan, one_bad_record, dataset="survey", ledger=ledger, on_refused="error")
    with pytest.raises(DataError, match="age"):
        measure(small_plan, one_bad_record, rehearsal=True)
    with pytest.raises(Cancelled):
        measure(small_plan, records, dataset="survey", ledger=ledger, progress=lambda *_: False)
    with pytest.raises(LedgerError):
        measure(small_plan, records, dataset="unlisted", ledger=ledger)
    assert ledger.status("survey").spent == 0.0
    intakes = []
    measure(small_plan, one_bad_record, dataset="survey", ledger=ledger, intake=intakes.append)
    assert (intakes[0].rows_in, intakes[0].counted, intakes[0].refused) == (3000, 2999, 1)


@pytest.mark.parametrize(
    "options", [{}, {"dataset": "survey"}, {"rehearsal": True, "dataset": "survey"}]
)
def test_measure_needs_dataset_and_ledger(
    small_plan: Plan, records: pd.DataFrame, options: dict
) -> None:
    with pytest.raises(PlanError):
        measure(small_plan, records, **options)


def test_crash_after_spend_never_draws_again(
    small_plan: Plan, records: pd.DataFrame, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    spent_at_draw = []

    def interrupt(*_: object, **__: object) -> None:
        spent_at_draw.append(ledger.status("survey").spent)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(measuring, "draw", interrupt)
        with pytest.raises(KeyboardInterrupt):
            measure(small_plan, records, dataset="survey", ledger=ledger)
    assert spent_at_draw == [pytest.approx(small_plan.pcost)]
    for journal in Path(f"{ledger.path}.results").glob("*.journal"):
        journal.unlink()
    with pytest.raises(ResultLost, match="attempt"):
        measure(small_plan, records, dataset="survey", ledger=ledger)
    second = measure(small_plan, records, dataset="survey", ledger=ledger, attempt=2)
    assert second.key == release_key(dataset="survey", plan_hash=small_plan.hash, attempt=2)


def test_load_measurement_returns_plan_or_refuses_damage(
    small_plan: Plan, records: pd.DataFrame, ledger: Ledger
) -> None:
    first = measure(small_plan, records, dataset="survey", ledger=ledger)
    key = release_key(dataset="survey", plan_hash=small_plan.hash, attempt=1)
    loaded = measuring.load_measurement(ledger, key)
    assert loaded.plan.to_json() == small_plan.to_json()
    assert loaded.key == first.key
    ledger.result_path(key).write_bytes(b"nonsense")
    with pytest.raises(ResultLost):
        measuring.load_measurement(ledger, key)


@pytest.mark.parametrize(("batch_size", "table_size"), [(1 << 17, 1 << 22), (20, 50)])
def test_answer_files_contain_every_answer(
    batch_size: int,
    table_size: int,
    small_plan: Plan,
    records: pd.DataFrame,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("engine.publish.report.ANSWERS_PER_BATCH", batch_size)
    monkeypatch.setattr("engine.publish.report.ANSWERS_PER_TABLE", table_size)
    workload = small_plan.workload
    rehearsal = measure(small_plan, records, rehearsal=True)
    answers = pd.concat([rehearsal.answers(i) for i in range(len(workload.groups))])
    parquet = pq.read_table(write_answers(rehearsal, tmp_path / "a.parquet"))
    assert parquet.num_rows == workload.queries
    assert b"REHEARSAL" in parquet.schema.metadata[b"status"]
    np.testing.assert_array_equal(parquet["answer"].to_numpy(), answers["answer"])
    assert parquet["query"].to_pylist() == list(answers["query"])
    file = write_answers(rehearsal, tmp_path / "a.csv", format="csv")
    rows = list(csv.DictReader(file.open()))
    assert {r["status"] for r in rows} == set(parquet["status"].to_pylist()) == {"REHEARSAL"}
    assert [float(r["answer"]) for r in rows] == pytest.approx(list(answers["answer"]))


def test_cancelled_or_unknown_answers_file_leaves_no_file(
    small_plan: Plan, records: pd.DataFrame, tmp_path: Path
) -> None:
    drawn = measure(small_plan, records, rehearsal=True)
    with pytest.raises(Cancelled):
        write_answers(drawn, tmp_path / "b.csv", format="csv", progress=lambda *_: False)
    with pytest.raises(PlanError, match="parquet"):
        write_answers(drawn, tmp_path / "b.xls", format="xls")
    assert not list(tmp_path.iterdir())


def test_labels_never_become_spreadsheet_formulas(tmp_path: Path) -> None:
    name = "=cmd|'/c calc'!A1"
    values = ["-1", "@x"]
    schema = Schema([Attribute.categorical(name, values)])
    one_way_plan = plan(Workload.all_ways(schema, ways=(1,)), Budget(pcost=1.0))
    rehearsal = measure(one_way_plan, pd.DataFrame({name: values}), rehearsal=True)
    file = write_answers(rehearsal, tmp_path / "a.csv", format="csv")
    cells = [cell for row in csv.reader(file.open()) for cell in row]
    assert any(cell.startswith("'=cmd") for cell in cells)
    for cell in cells:
        is_negative_number = cell[:1] == "-" and cell[1:2].isdigit()
        assert is_negative_number or not cell.startswith(("=", "+", "@", "-"))


def test_measure_loads_answers_lazily(tmp_path: Path) -> None:
    schema = Schema([Attribute.of_size(name, 60) for name in "abc"])
    one_plan = plan(Workload(schema).add(("a", "b", "c")).add(("a",)), Budget(pcost=1.0))
    counts = count_marginals(
        pd.DataFrame({"a": [1, 2], "b": [3, 59], "c": [5, 0]}), schema, [tuple("abc")]
    )
    book = Ledger.create(tmp_path / "book")
    book.add_dataset("d", total=Budget(pcost=1.0))
    tracemalloc.start()
    measurement = measure(one_plan, counts, dataset="d", ledger=book)
    allocated_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    table_bytes = 60**3 * 8
    assert allocated_bytes < 400_000 < table_bytes
    assert measurement == measuring.load_measurement(book, measurement.key)
    for array in (*measurement.answers_on_grid.values(), *measurement.estimates.values()):
        assert not array.flags.writeable


def test_plan_json_round_trips_noise_and_grid(small_plan: Plan) -> None:
    loaded = load_plan(small_plan.to_json())
    assert loaded.to_json() == small_plan.to_json()
    for space, block in small_plan.blocks.items():
        assert (block.noise, block.grid) == (loaded.blocks[space].noise, loaded.blocks[space].grid)


def test_saved_rehearsal_round_trips_and_loads_lazily(tmp_path: Path) -> None:
    schema = Schema([Attribute.of_size(name, 60) for name in "abc"])
    one_plan = plan(Workload(schema).add(("a", "b", "c")).add(("a",)), Budget(pcost=1.0))
    measurement = measure(
        one_plan, pd.DataFrame({"a": [1, 2], "b": [3, 59], "c": [5, 0]}), rehearsal=True
    )
    file = tmp_path / "numbers"
    save_rehearsal(measurement, file)
    # The file contains the answers on the grid and the estimates, about 60^3 numbers of 8 bytes each.
    assert file.stat().st_size > 2 * 60**3 * 8
    tracemalloc.start()
    loaded = load_rehearsal(one_plan, file)
    assert loaded.rehearsal
    allocated_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert allocated_bytes < 200_000
    pd.testing.assert_frame_equal(loaded.answers(0), measurement.answers(0))
    for actual, expected in (
        (loaded.answers_on_grid, measurement.answers_on_grid),
        (loaded.estimates, measurement.estimates),
    ):
        assert list(actual) == list(expected)
        assert all(np.array_equal(actual[s], expected[s]) for s in expected)
        assert not any(a.flags.writeable for a in actual.values())
    content = file.read_bytes()
    first_half = content[: len(content) // 2]
    overwritten = content[:30] + b"x" * 100 + content[130:]
    for damaged in (first_half, overwritten, b""):
        file.write_bytes(damaged)
        with pytest.raises(LedgerError):
            load_rehearsal(one_plan, file)


def test_attribute_with_one_cell_is_checked(ledger: Ledger) -> None:
    adults = Schema([Attribute.numeric("age", [18, 120]), Attribute.categorical("sex", ["F", "M"])])
    people = pd.DataFrame({"age": [5, 40, 50], "sex": ["F", "M", "F"]})
    one_plan = plan(Workload(adults).add(("age", "sex"), "marginal"), Budget(pcost=0.5))
    intakes = []
    measure(one_plan, people, dataset="survey", ledger=ledger, intake=intakes.append)
    assert (intakes[0].counted, intakes[0].reasons) == (2, {"age": {"outside the schema": 1}})
    # A rehearsal refuses records with a value outside the schema.
    with pytest.raises(DataError, match="age"):
        measure(one_plan, people, rehearsal=True)
