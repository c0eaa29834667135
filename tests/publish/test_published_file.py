"""Files of published tables and records, summary, acceptance and forecast."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from engine.errors import Cancelled, LimitExceeded, NotApplicable, PlanError
from engine.mechanisms import plan
from engine.postprocess import QualityRule, publish
from engine.postprocess.published_tables import publish_forecast
from engine.postprocess.utility_checks import AcceptanceRule, acceptance
from engine.privacy import Budget
from engine.publish import report as published_file
from engine.publish.report import read_published, write_answers, write_published, write_records
from engine.workload import Attribute, Schema, Workload
from tests.publish.measured import SCHEMA, measured_on

WORKLOAD = (
    Workload.all_ways(SCHEMA, (0, 1), family="marginal")
    .add(("a", "d"), {"a": "prefix", "d": "marginal"})
    .add(("a", "b"), "marginal")
    .add(("c", "b"), "marginal")
)


@pytest.fixture(scope="module")
def errors():
    return measured_on(WORKLOAD, Budget(pcost=0.2))[0].publish().uncertainty(draws=3)


def test_read_published_returns_every_page_of_answers(errors, tmp_path, monkeypatch):
    monkeypatch.setattr(published_file, "ANSWERS_PER_ROW_GROUP", 10)
    measurement, rule = errors.published.measurement, QualityRule(least_count=5.0)
    place = write_published(errors, tmp_path / "a.parquet", rule=rule)
    for number, group in enumerate(WORKLOAD.groups):
        for start, stop in ((0, None), (1, 14), (group.count, None)):
            expected = errors.answers(number, start, stop, rule=rule).reset_index(drop=True)
            page = read_published(measurement.plan, place, number, start, stop)
            pd.testing.assert_frame_equal(page, expected, check_dtype=False)


def test_bins_of_integers_are_intervals_in_parquet_only(tmp_path):
    schema = Schema([Attribute.numeric("age", [0, 10, 30], integer=True)])
    workload = Workload(schema).add("age").add("age", "prefix")
    measurement = measured_on(workload)[0]
    errors = measurement.publish().uncertainty(draws=2)
    for write, source in ((write_published, errors), (write_answers, measurement)):
        csv = pd.read_csv(write(source, tmp_path / f"{write.__name__}.csv", format="csv"))
        assert csv["query"].tolist() == [
            "age in 0 to 9",
            "age in 10 to 30",
            "age < 10",
            "age <= 30",
        ]
        parquet = pd.read_parquet(write(source, tmp_path / f"{write.__name__}.parquet"))
        assert parquet["query"].tolist()[:2] == ["age = [0, 10)", "age = [10, 30]"]
        np.testing.assert_allclose(csv["answer"], parquet["answer"], atol=1e-6)
        assert (csv["answer"] == csv["answer"].round(6)).all()
    records = errors.published.records(20)
    file = write_records(measurement, records, tmp_path / "r.csv")
    assert set(pd.read_csv(file)["age"]) <= {"0 to 9", "10 to 30"}
    file = write_records(measurement, records, tmp_path / "r.parquet", format="parquet")
    assert set(pd.read_parquet(file)["age"]) <= {"[0, 10)", "[10, 30]"}


def test_rehearsal_files_are_marked_in_every_row(errors, tmp_path):
    measurement, records = errors.published.measurement, errors.published.records(50)
    frames = [
        pd.read_csv(write_published(errors, tmp_path / "a.csv", format="csv")),
        pd.read_parquet(write_published(errors, tmp_path / "a.parquet")),
        pd.read_csv(write_records(measurement, records, tmp_path / "r.csv")),
        pd.read_parquet(
            write_records(measurement, records, tmp_path / "r.parquet", format="parquet")
        ),
    ]
    assert [len(frame) for frame in frames] == [WORKLOAD.queries] * 2 + [50] * 2
    for frame in frames:
        assert set(frame["status"]) == {"REHEARSAL"}


def test_write_published_or_records_refused_or_cancelled_leaves_files(errors, tmp_path):
    measurement, records = errors.published.measurement, errors.published.records(50)
    write_published(errors, tmp_path / "a.csv", format="csv")
    with pytest.raises(PlanError, match="not overwritten"):
        write_published(errors, tmp_path / "a.csv", format="csv")
    with pytest.raises(PlanError, match="format"):
        write_records(measurement, records, tmp_path / "r.xlsx", format="xlsx")
    with pytest.raises(Cancelled):
        write_published(errors, tmp_path / "b.csv", format="csv", progress=lambda *_: False)
    assert [file.name for file in tmp_path.iterdir()] == ["a.csv"]


def test_write_records_writes_labels_and_escapes_formulas(tmp_path):
    schema = Schema(
        [
            Attribute.categorical("region", ["=North", "South"]),
            Attribute.numeric("age", [0, 18, 65]),
        ]
    )
    measurement, _ = measured_on(
        Workload(schema).add(("region", "age")), Budget(pcost=1.0), records=40
    )
    codes = pd.DataFrame({"region": [0, 1, 1], "age": [1, 0, 1]})
    rows = pd.read_csv(write_records(measurement, codes, tmp_path / "r.csv"))
    assert rows["region"].tolist() == ["'=North", "South", "South"]
    assert rows["age"].tolist() == [schema["age"].label(i) for i in (1, 0, 1)]


def test_summary_counts_negative_answers_and_flags(errors):
    summary, rule = errors.summary(), QualityRule()
    assert summary["below zero"].sum() > 9
    for number, group in enumerate(WORKLOAD.groups):
        rows, values = errors.answers(number, rule=rule), errors.published.values(number)
        row, negative = summary.iloc[number], (rows["answer"] < 0).to_numpy()
        assert row["answers"] == group.count
        assert row["below zero"] == negative.sum()
        assert row["published there"] == pytest.approx(
            values[negative].mean() if negative.any() else np.nan, nan_ok=True
        )
        for flag in ("publishable", "doubtful", "suppressed"):
            assert row[flag] == pytest.approx((rows["flag"] == flag).mean())


def test_acceptance_accepts_only_records_near_tables(errors):
    published = errors.published
    records = published.records()
    near = acceptance(errors, records)  # rows: distance, inside, contradiction
    assert near["met"].all(), near
    assert near["found"][0] < 0.03
    assert near["found"][2] < 1.4
    doubled = pd.concat([records] * 2)
    np.testing.assert_allclose(acceptance(errors, doubled)["found"], near["found"], rtol=1e-9)
    constant = records.assign(a=0)
    far = acceptance(errors, constant)
    assert not far["met"].any()
    table = published.table(["a"])
    changed_share = 1.0 - table[0] / table.sum()
    assert far["found"][0] >= changed_share - 0.02
    assert "a" in far["worst"][0].split()
    for limits in ({"distance": 0.999}, {"inside": 1e-9}, {"contradiction": 1e9}):
        (name,) = limits
        place = ["distance", "inside", "contradiction"].index(name)
        assert acceptance(errors, constant, AcceptanceRule(**limits))["met"].tolist() == [
            i == place for i in range(3)
        ]


def test_acceptance_of_integer_tables_and_their_records_is_exact():
    measurement, _ = measured_on(WORKLOAD, Budget(pcost=0.2))
    tables = measurement.publish(integer=True)
    assert any((tables.values(number) == 0.0).any() for number in range(len(WORKLOAD.groups)))
    criteria = acceptance(tables.uncertainty(draws=2), tables.records())
    # no record has to be moved, and every interval holds its count
    assert criteria["found"].tolist()[:2] == [0.0, 1.0]


def test_publish_forecast_predicts_memory_limit():
    measurement, _ = measured_on(WORKLOAD, Budget(pcost=0.2))
    forecast = publish_forecast(measurement.plan)
    shapes = [published.size for published in measurement.publish().contrasts.values()]
    assert forecast.cells == sum(shapes)
    assert forecast.bytes_needed >= 8 * 3 * sum(shapes)
    with pytest.raises(LimitExceeded, match="memory_limit"):
        publish(measurement, memory_limit=forecast.bytes_needed - 1)
    publish(measurement, memory_limit=forecast.bytes_needed)
    with pytest.raises(NotApplicable):
        publish_forecast(
            plan(Workload(SCHEMA).add(("a", "b")), Budget(pcost=1.0), mechanism="identity")
        )
