"""Files of published tables and records, summary, acceptance and forecast."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from engine.errors import Cancelled, LimitExceeded, NotApplicable, PlanError
from engine.mechanisms import plan
from engine.postprocess import QualityRule, publish
from engine.postprocess.published_tables import publish_forecast
from engine.postprocess.uncertainty import AcceptanceRule, acceptance
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
    result, rule = errors.published.measurement.plan, QualityRule(least_count=5.0)
    path = write_published(errors, tmp_path / "published.parquet", rule=rule)
    for i, group in enumerate(WORKLOAD.groups):
        for start, stop in ((0, None), (1, 14), (group.count, None)):
            expected = errors.answers(i, start, stop, rule=rule).reset_index(drop=True)
            page = read_published(result, path, i, start, stop)
            pd.testing.assert_frame_equal(page, expected, check_dtype=False)


def test_bins_of_integers_are_intervals_in_parquet_only(tmp_path):
    schema = Schema([Attribute.numeric("age", [0, 10, 30], integer=True)])
    measurement, _ = measured_on(Workload(schema).add("age").add("age", "prefix"))
    errors = measurement.publish().uncertainty(draws=2)
    for write, source in ((write_published, errors), (write_answers, measurement)):
        csv = pd.read_csv(write(source, tmp_path / f"{write.__name__}.csv", format="csv"))
        parquet = pd.read_parquet(write(source, tmp_path / f"{write.__name__}.parquet"))
        bins, prefixes = ["age in 0 to 9", "age in 10 to 30"], ["age < 10", "age <= 30"]
        assert csv["query"].tolist() == [*bins, *prefixes]
        assert parquet["query"].tolist()[:2] == ["age = [0, 10)", "age = [10, 30]"]
        np.testing.assert_allclose(csv["answer"], parquet["answer"], atol=1e-6)
        assert (csv["answer"] == csv["answer"].round(6)).all()
    codes = errors.published.records(20)
    path = write_records(measurement, codes, tmp_path / "records.csv")
    assert set(pd.read_csv(path)["age"]) <= {"0 to 9", "10 to 30"}
    path = write_records(measurement, codes, tmp_path / "records.parquet", format="parquet")
    assert set(pd.read_parquet(path)["age"]) <= {"[0, 10)", "[10, 30]"}


def test_rehearsal_files_are_marked_in_every_row(errors, tmp_path):
    measurement, records = errors.published.measurement, errors.published.records(50)
    answers_csv = write_published(errors, tmp_path / "answers.csv", format="csv")
    answers_parquet = write_published(errors, tmp_path / "answers.parquet")
    records_csv = write_records(measurement, records, tmp_path / "records.csv")
    records_parquet = write_records(
        measurement, records, tmp_path / "records.parquet", format="parquet"
    )
    for frame, rows in (
        (pd.read_csv(answers_csv), WORKLOAD.queries),
        (pd.read_parquet(answers_parquet), WORKLOAD.queries),
        (pd.read_csv(records_csv), 50),
        (pd.read_parquet(records_parquet), 50),
    ):
        assert len(frame) == rows
        assert set(frame["status"]) == {"REHEARSAL"}


def test_refused_or_cancelled_write_leaves_files(errors, tmp_path):
    measurement, records = errors.published.measurement, errors.published.records(50)
    existing = tmp_path / "existing.csv"
    write_published(errors, existing, format="csv")
    content = existing.read_bytes()
    with pytest.raises(PlanError, match="not overwritten"):
        write_published(errors, existing, format="csv")
    with pytest.raises(PlanError, match="format"):
        write_records(measurement, records, tmp_path / "records.xlsx", format="xlsx")
    with pytest.raises(Cancelled):
        write_published(errors, tmp_path / "new.csv", format="csv", progress=lambda *_: False)
    assert list(tmp_path.iterdir()) == [existing]
    assert existing.read_bytes() == content


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
    for i, group in enumerate(WORKLOAD.groups):
        answers, row = errors.answers(i, rule=rule), summary.iloc[i]
        is_negative = (answers["answer"] < 0).to_numpy()
        assert row["answers"] == group.count
        assert row["below zero"] == is_negative.sum()
        published_there = errors.published.values(i)[is_negative]
        mean = published_there.mean() if is_negative.any() else np.nan
        assert row["published there"] == pytest.approx(mean, nan_ok=True)
        for flag in ("publishable", "doubtful", "suppressed"):
            assert row[flag] == pytest.approx((answers["flag"] == flag).mean())


def test_acceptance_accepts_only_records_near_tables(errors):
    published = errors.published
    records = published.records()
    criteria = ["distance", "inside", "contradiction"]

    def figures(result):
        return dict(zip(criteria, result["found"], strict=True))

    near = acceptance(errors, records)
    assert near["met"].all(), near
    assert figures(near)["distance"] < 0.03
    assert figures(near)["contradiction"] < 1.4
    doubled = acceptance(errors, pd.concat([records] * 2))
    np.testing.assert_allclose(doubled["found"], near["found"], rtol=1e-9)
    # all records have the first value of attribute a
    constant = records.assign(a=0)
    far = acceptance(errors, constant)
    assert not far["met"].any()
    table = published.table(["a"])
    changed_share = 1.0 - table[0] / table.sum()
    assert figures(far)["distance"] >= changed_share - 0.02
    assert "a" in far["worst"][0].split()
    for name, limit in {"distance": 0.999, "inside": 1e-9, "contradiction": 1e9}.items():
        met = acceptance(errors, constant, AcceptanceRule(**{name: limit}))["met"]
        assert met.tolist() == [criterion == name for criterion in criteria]


def test_acceptance_of_records_of_integer_tables_is_exact():
    measurement, _ = measured_on(WORKLOAD, Budget(pcost=0.2))
    tables = measurement.publish(integer=True)
    assert any((tables.values(i) == 0.0).any() for i in range(len(WORKLOAD.groups)))
    criteria = acceptance(tables.uncertainty(draws=2), tables.records())
    distance, inside, _ = criteria["found"]
    assert distance == 0.0  # no record has to be moved
    assert inside == 1.0  # every interval holds its count


def test_publish_forecast_predicts_memory_limit():
    measurement, _ = measured_on(WORKLOAD, Budget(pcost=0.2))
    forecast = publish_forecast(measurement.plan)
    cells = sum(table.size for table in measurement.publish().contrasts.values())
    assert forecast.cells == cells
    assert forecast.bytes_needed >= 8 * 3 * cells
    with pytest.raises(LimitExceeded, match="memory_limit"):
        publish(measurement, memory_limit=forecast.bytes_needed - 1)
    publish(measurement, memory_limit=forecast.bytes_needed)
    explicit = plan(Workload(SCHEMA).add(("a", "b")), Budget(pcost=1.0), mechanism="identity")
    with pytest.raises(NotApplicable):
        publish_forecast(explicit)
