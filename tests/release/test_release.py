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
    truth = np.concatenate(true_answers(small_plan, records))
    predicted = np.concatenate(
        [small_plan.variances(i) for i in range(len(small_plan.workload.groups))]
    )
    counts = count_marginals(records, SCHEMA, measuring.maximal_sets(small_plan))
    errors = []
    for _ in range(REHEARSALS):
        drawn = measure(small_plan, counts, rehearsal=True)
        errors.append(
            np.concatenate([drawn.values(i) for i in range(len(small_plan.workload.groups))])
            - truth
        )
    mean, spread = np.mean(errors, axis=0), np.mean(np.square(errors), axis=0)
    assert np.abs(mean / np.sqrt(predicted / REHEARSALS)).max() <= 5.0
    # With 300 rehearsals, the standard error of the estimated variance of a query is 8%.
    assert spread.sum() / predicted.sum() == pytest.approx(1.0, abs=0.12)
    starts = np.cumsum([0, *(g.count for g in small_plan.workload.groups)])
    for low, high in itertools.pairwise(starts):
        assert spread[low:high].sum() / predicted[low:high].sum() == pytest.approx(1.0, abs=0.35)
    worst = np.abs(spread / predicted - 1.0).max()
    assert worst <= 6.0 * math.sqrt(2.0 / REHEARSALS)


def test_measure_repeated_spends_once_and_returns_same_answers(
    small_plan: Plan, records: pd.DataFrame, ledger: Ledger
) -> None:
    first = measure(small_plan, records, dataset="survey", ledger=ledger)
    again = measure(small_plan, records.iloc[::-1], dataset="survey", ledger=ledger.path)
    for number in range(len(small_plan.workload.groups)):
        pd.testing.assert_frame_equal(first.answers(number), again.answers(number))
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
    drawn = measure(small_plan, records, rehearsal=True)
    both, age = drawn.marginal(("age", "sex")), drawn.marginal(("age",))
    np.testing.assert_allclose(both.sum(axis=1), age, atol=1e-8)
    np.testing.assert_allclose(drawn.marginal(("sex", "age")), both.T)
    np.testing.assert_allclose(age.sum(), float(drawn.marginal(())), atol=1e-8)
    workload = small_plan.workload
    index = 0
    for number, group in enumerate(workload.groups):
        frame = drawn.answers(number, confidence=0.9)
        assert list(frame["query"]) == [workload.describe(index + i) for i in range(group.count)]
        np.testing.assert_allclose(frame["std"], np.sqrt(small_plan.variances(number)))
        np.testing.assert_allclose(
            frame["high"] - frame["low"], 2 * 1.6448536 * frame["std"], rtol=1e-6
        )
        np.testing.assert_allclose((frame["high"] + frame["low"]) / 2, frame["answer"], atol=1e-9)
        pd.testing.assert_frame_equal(
            drawn.answers(number, 1, 4, confidence=0.9), frame.iloc[1:4].reset_index(drop=True)
        )
        index += group.count


def test_answer_and_combination_have_exact_errors(small_plan: Plan, records: pd.DataFrame) -> None:
    drawn = measure(small_plan, records, rehearsal=True)
    table = np.random.default_rng(0).normal(size=(7, 2))
    query = drawn.answer(("age", "sex"), table)
    assert query.answer == pytest.approx(float(np.sum(table * drawn.marginal(("age", "sex")))))
    assert query.std == pytest.approx(math.sqrt(small_plan.variance_of(("age", "sex"), table)))
    # the 97.5% quantile of the standard normal distribution times the standard error
    half = 1.9599640 * query.std
    assert (query.low, query.high) == pytest.approx((query.answer - half, query.answer + half))
    men, women = [0.0, 1.0], [1.0, 0.0]
    difference = drawn.combination([(("sex",), men), (("sex",), women)], [1.0, -1.0])
    direct = drawn.answer(("sex",), [-1.0, 1.0])
    assert difference.answer == pytest.approx(direct.answer)
    assert difference.std == pytest.approx(direct.std)


def test_unmeasured_queries_are_refused(records: pd.DataFrame) -> None:
    one_plan = plan(Workload(SCHEMA).add(("age", "hours"), "affine"), Budget(pcost=1.0))
    drawn = measure(one_plan, records, rehearsal=True)
    with pytest.raises(NotAnswerable, match="age × hours"):
        drawn.marginal(("age", "hours"))
    with pytest.raises(NotAnswerable, match="sex"):
        drawn.answer(("sex",), [1.0, 0.0])
    low_sums = np.add.outer(np.arange(7), np.arange(6)) <= 3
    assert drawn.answer(("age", "hours"), low_sums).answer == pytest.approx(drawn.values(0)[3])


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


def test_refused_or_cancelled_release_spends_nothing(
    small_plan: Plan, records: pd.DataFrame, ledger: Ledger
) -> None:
    bad = records.copy()
    bad.loc[3, "age"] = 99
    with pytest.raises(DataError, match="age"):
        measure(small_plan, bad.drop(columns="age"), dataset="survey", ledger=ledger)
    with pytest.raises(PlanError, match="Check the records first"):
        measure(small_plan, bad, dataset="survey", ledger=ledger, on_refused="error")
    with pytest.raises(DataError, match="age"):
        measure(small_plan, bad, rehearsal=True)
    with pytest.raises(Cancelled):
        measure(small_plan, records, dataset="survey", ledger=ledger, progress=lambda *_: False)
    with pytest.raises(LedgerError):
        measure(small_plan, records, dataset="unlisted", ledger=ledger)
    assert ledger.status("survey").spent == 0.0
    intakes = []
    measure(small_plan, bad, dataset="survey", ledger=ledger, intake=intakes.append)
    assert (intakes[0].rows_in, intakes[0].counted, intakes[0].refused) == (3000, 2999, 1)


@pytest.mark.parametrize(
    "words", [{}, {"dataset": "survey"}, {"rehearsal": True, "dataset": "survey"}]
)
def test_measure_needs_dataset_and_ledger(
    small_plan: Plan, records: pd.DataFrame, words: dict
) -> None:
    with pytest.raises(PlanError):
        measure(small_plan, records, **words)


def test_crash_after_spend_never_draws_again(
    small_plan: Plan, records: pd.DataFrame, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    draws = []

    def interrupt(*_: object, **__: object) -> None:
        draws.append(ledger.status("survey").spent)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(measuring, "draw", interrupt)
        with pytest.raises(KeyboardInterrupt):
            measure(small_plan, records, dataset="survey", ledger=ledger)
    assert draws == [pytest.approx(small_plan.pcost)], (
        "the spend is durable before anything is drawn"
    )
    for journal in Path(f"{ledger.path}.results").glob("*.journal"):
        journal.unlink()
    with pytest.raises(ResultLost, match="attempt"):
        measure(small_plan, records, dataset="survey", ledger=ledger)
    assert measure(small_plan, records, dataset="survey", ledger=ledger, attempt=2).key.endswith(
        "|2"
    )


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


@pytest.mark.parametrize(("batch", "span"), [(1 << 17, 1 << 22), (3, 7)])
def test_files_hold_every_answer(
    batch: int,
    span: int,
    small_plan: Plan,
    records: pd.DataFrame,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("engine.publish.report.ANSWERS_PER_BATCH", batch)
    monkeypatch.setattr("engine.publish.report.ANSWERS_PER_TABLE", span)
    drawn = measure(small_plan, records, rehearsal=True)
    parquet = pq.read_table(write_answers(drawn, tmp_path / "a.parquet"))
    assert parquet.num_rows == small_plan.workload.queries
    assert b"REHEARSAL" in parquet.schema.metadata[b"status"]
    frame = pd.concat([drawn.answers(i) for i in range(len(small_plan.workload.groups))])
    np.testing.assert_array_equal(parquet["answer"].to_numpy(), frame["answer"])
    assert parquet["query"].to_pylist() == list(frame["query"])
    workload = small_plan.workload
    assert list(frame["query"]) == [
        workload.describe(i).rsplit(": ", 1)[-1] for i in range(workload.queries)
    ]
    text = write_answers(drawn, tmp_path / "a.csv", format="csv")
    rows = list(csv.DictReader(text.open()))
    assert {r["status"] for r in rows} == set(parquet["status"].to_pylist()) == {"REHEARSAL"}
    assert [float(r["answer"]) for r in rows] == pytest.approx(list(frame["answer"]))


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
    schema = Schema([Attribute.categorical("=cmd|'/c calc'!A1", ["-1", "@x"])])
    one_plan = plan(Workload.all_ways(schema, ways=(1,)), Budget(pcost=1.0))
    drawn = measure(one_plan, pd.DataFrame({"=cmd|'/c calc'!A1": ["-1", "@x"]}), rehearsal=True)
    cells = [
        c
        for row in csv.reader(write_answers(drawn, tmp_path / "a.csv", format="csv").open())
        for c in row
    ]
    assert not [c for c in cells if c[:1] in "=+@" or (c[:1] == "-" and not c[1:2].isdigit())]
    assert any(c.startswith("'=cmd") for c in cells)


def test_measure_loads_answers_lazily(tmp_path: Path) -> None:
    schema = Schema([Attribute.of_size(name, 60) for name in "abc"])
    one_plan = plan(Workload(schema).add(("a", "b", "c")).add(("a",)), Budget(pcost=1.0))
    counts = count_marginals(
        pd.DataFrame({"a": [1, 2], "b": [3, 59], "c": [5, 0]}), schema, [tuple("abc")]
    )
    # A table of the Counts is returned as it is, without a copy.
    assert (
        count_marginals(counts, schema, [("a",), tuple("abc")])[tuple("abc")]
        is counts[tuple("abc")]
    )
    book = Ledger.create(tmp_path / "book")
    book.add_dataset("d", total=Budget(pcost=1.0))
    tracemalloc.start()
    measurement = measure(one_plan, counts, dataset="d", ledger=book)
    assert tracemalloc.get_traced_memory()[0] < 400_000 < 60**3 * 8
    tracemalloc.stop()
    assert measurement == measuring.load_measurement(book, measurement.key)
    assert not any(
        a.flags.writeable
        for a in (*measurement.answers_on_grid.values(), *measurement.estimates.values())
    )


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
    assert file.stat().st_size > 2 * 60**3 * 8
    tracemalloc.start()
    loaded = load_rehearsal(one_plan, file)
    assert loaded.rehearsal
    assert tracemalloc.get_traced_memory()[0] < 200_000
    tracemalloc.stop()
    pd.testing.assert_frame_equal(loaded.answers(0), measurement.answers(0))
    for actual, expected in (
        (loaded.answers_on_grid, measurement.answers_on_grid),
        (loaded.estimates, measurement.estimates),
    ):
        assert list(actual) == list(expected)
        assert all(np.array_equal(actual[s], expected[s]) for s in expected)
        assert not any(a.flags.writeable for a in actual.values())
    content = file.read_bytes()
    for damaged in (content[: len(content) // 2], content[:30] + b"x" * 100 + content[130:], b""):
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
    with pytest.raises(DataError, match="age"):
        measure(one_plan, people, rehearsal=True)
