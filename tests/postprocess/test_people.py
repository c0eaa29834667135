"""Synthetic records whose exact counts are near the published tables."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from engine.errors import Cancelled, LimitExceeded, PlanError
from engine.mechanisms import plan
from engine.postprocess.published_tables import publish_forecast
from engine.postprocess.synthetic_records import (
    _tree_of_people,
    mutual_information_tree,
    nearest_people,
    table_of,
)
from engine.privacy import Budget
from engine.workload import Attribute, Schema, Workload
from tests.publish.measured import FITS, SCHEMA, SIZES, check, measured_on, people, sets
from tests.shapes import SHAPES

PAIRS = list(itertools.combinations(range(len(SIZES)), 2))


def silent(share, words):
    return None


def check_integer_tables(published, workload):
    check(published, workload, tolerance=0.0)
    for group in workload.groups:
        table = published.table(group.attributes)
        assert (table == np.rint(table)).all()


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize(
    ("ways", "pcost"), [((1,), 0.05), ((1, 2), 50.0), ((1, 2, 3), 1e-4), ((4,), 0.05)]
)
def test_integer_tables_are_consistent_with_rounded_total(ways, pcost, fit):
    workload = Workload.all_ways(SCHEMA, ways, family="marginal")
    measurement, _ = measured_on(workload, Budget(pcost=pcost), records=300)
    published = measurement.publish(fit, integer=True)
    check_integer_tables(published, workload)
    assert published.total == round(measurement.publish(fit).total)


@pytest.mark.parametrize(
    ("shape", "mechanism"),
    [("nested", "querysmasher"), ("single_value", "residualplanner+"), ("total_only", "querysmasher"),
     ("custom_matrix", "querysmasher"), ("circular", "wff"), ("disjoint", "querysmasher")],
)  # fmt: skip
def test_records_of_every_residual_plan_match_tables(shape, mechanism):
    workload = SHAPES[shape]()
    measurement, _ = measured_on(workload, Budget(pcost=1.0), records=50, mechanism=mechanism)
    published = measurement.publish(integer=True)
    check_integer_tables(published, workload)
    rows = published.records()
    names = {name for group in workload.groups for name in group.attributes}
    assert list(rows) == [name for name in workload.schema.names if name in names]
    assert len(rows) == published.total
    for group in workload.groups:
        shape_of = workload.schema.sizes(group.attributes)
        codes = tuple(rows[name].to_numpy() for name in group.attributes)
        counted = np.zeros(shape_of)
        # a code outside its domain has no cell and raises an error
        if codes:
            np.add.at(counted, codes, 1.0)
        else:
            counted += len(rows)
        np.testing.assert_array_equal(counted, published.table(group.attributes))


@pytest.mark.parametrize(
    ("ways", "pcost"), [((1, 2), 1e-3), ((1, 2), 0.05), ((1, 2), 5.0), ((1, 2, 3), 0.05)]
)
def test_integer_tables_are_nearly_as_accurate(ways, pcost):
    workload = Workload.all_ways(SCHEMA, ways, family="marginal")
    real_error = integer_error = rounding = 0.0
    for seed in range(2):
        measurement, table = measured_on(workload, Budget(pcost=pcost), seed=seed)
        published, integer = measurement.publish(), measurement.publish(integer=True)
        for names in sets(SCHEMA, ways[-1:]):
            real_error += np.abs(published.table(names) - table(names)).sum()
            integer_error += np.abs(integer.table(names) - table(names)).sum()
            rounding += np.abs(published.table(names) - np.rint(published.table(names))).sum()
    assert integer_error <= 1.05 * real_error + 0.6 * rounding


@pytest.mark.parametrize("pcost", [1e-3, 0.1, 10.0])
def test_integer_tables_of_large_counts_are_as_accurate(pcost):
    workload = Workload.all_ways(SCHEMA, (1, 2), family="marginal")
    measurement, table = measured_on(workload, Budget(pcost=pcost), records=30_000)
    published, integer = measurement.publish(), measurement.publish(integer=True)
    errors = [
        sum(np.abs(tables.table(names) - table(names)).sum() for names in sets(SCHEMA, (2,)))
        for tables in (published, integer)
    ]
    assert errors[1] <= 1.1 * errors[0]


def test_nearest_people_ends_within_tolerance():
    table = people(SCHEMA, 3_000, 1)
    exact = {pair: table([SCHEMA.names[a] for a in pair]) for pair in PAIRS}
    distances, shares = [], []
    for tolerance in (0.0, 0.02):
        messages = []
        records = nearest_people(
            exact,
            SIZES,
            3_000,
            np.random.default_rng(0),
            lambda share, words, messages=messages: messages.append(share),
            tolerance=tolerance,
        )
        gaps = [np.abs(table_of(records, p, SIZES) - exact[p]).sum() for p in PAIRS]
        distances.append(np.mean(gaps) / 3_000)
        shares.append(messages)
    assert distances[0] < distances[1] <= 0.02
    assert len(shares[1]) < len(shares[0])
    assert all(messages == sorted(messages) and messages[-1] <= 1.0 for messages in shares)


def test_nearest_people_improve_on_tree_start():
    table = people(SCHEMA, 3_000, 1)
    exact = {pair: table([SCHEMA.names[a] for a in pair]) for pair in PAIRS}
    tree_records = _tree_of_people(exact, SIZES, 3_000, np.random.default_rng(0))
    records = nearest_people(exact, SIZES, 3_000, np.random.default_rng(0), silent)
    errors = [
        sum(np.abs(table_of(r, p, SIZES) - exact[p]).sum() for p in PAIRS)
        for r in (tree_records, records)
    ]
    assert errors[1] <= 0.25 * errors[0]
    assert errors[1] <= 0.02 * 3_000 * len(PAIRS)


def test_tree_records_match_conditional_counts_within_one():
    table = people(SCHEMA, 500, 3)
    exact = {pair: table([SCHEMA.names[a] for a in pair]) for pair in PAIRS}
    records = _tree_of_people(exact, SIZES, 500, np.random.default_rng(0))
    tree = mutual_information_tree(exact)
    assert len(tree) == len(SIZES) - 1
    for child, (_, parent) in tree.items():
        counted = table_of(records, (parent, child), SIZES)
        target = exact[parent, child] if parent < child else exact[child, parent].T
        shares = target / np.maximum(target.sum(axis=1, keepdims=True), 1.0)
        differences = np.abs(counted - shares * counted.sum(axis=1, keepdims=True))
        assert differences[target.sum(axis=1) > 0].max() < 1.0


def test_records_depend_only_on_measurement():
    workload = Workload.all_ways(SCHEMA, (1, 2), family="marginal")
    measurement, _ = measured_on(workload, records=200)
    one = measurement.publish(integer=True)
    assert one.records().equals(measurement.publish(integer=True).records())
    assert one.records().equals(measurement.publish().records())
    other, _ = measured_on(workload, records=200, seed=2)
    assert not one.records().equals(other.publish().records())


@pytest.mark.parametrize("n", [0, 1, 77, 1_000])
def test_records_with_requested_number_keep_shares(n):
    measurement, _ = measured_on(
        Workload.all_ways(SCHEMA, (1, 2), family="marginal"), Budget(pcost=1.0), records=200
    )
    published = measurement.publish()
    rows = published.records(n)
    assert rows.shape == (n, 4)
    if n == 1_000:  # with fewer rows, shares differ from those of the table by rounding
        shares = np.bincount(rows["a"], minlength=9) / n
        np.testing.assert_allclose(shares, published.table(["a"]) / published.total, atol=0.01)


def test_records_of_negative_total_are_empty():
    workload = Workload.all_ways(SCHEMA, (1, 2), family="marginal")
    measurements = (
        measured_on(workload, Budget(pcost=1e-6), records=5, seed=seed)[0] for seed in range(8)
    )
    measurement = next(m for m in measurements if m.marginal([]) < 0)
    published = measurement.publish(integer=True)
    assert published.total == 0
    assert len(published.records()) == 0
    assert len(published.records(3)) == 3


def test_records_with_invalid_request_are_refused():
    measurement, _ = measured_on(Workload.all_ways(SCHEMA, (1, 2), family="marginal"), records=200)
    with pytest.raises(PlanError, match="integer=True"):
        measurement.publish("none", integer=True)
    with pytest.raises(PlanError, match="negative cells"):
        measurement.publish("none").records()
    with pytest.raises(PlanError, match="number of records was -1"):
        measurement.publish().records(-1)
    with pytest.raises(LimitExceeded, match="GB"):
        measurement.publish().records(900_000_000)
    with pytest.raises(Cancelled):
        measurement.publish().records(progress=lambda share, words: False)


def test_publish_integer_progress_increases_to_one():
    measurement, _ = measured_on(
        Workload.all_ways(SCHEMA, (1, 2, 3), family="marginal"), records=200
    )
    shares = []
    measurement.publish(integer=True, progress=lambda share, words: shares.append(share))
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert len([share for share in shares if share > 0.5]) > 3


def test_publish_integer_progress_follows_expected_times():
    start_of_drawing = {}  # number of records -> share of the progress at which drawing begins
    for records in (200, 200_000):
        measurement, _ = measured_on(
            Workload.all_ways(SCHEMA, (1, 2), family="marginal"), records=records
        )
        reports = []
        measurement.publish(
            integer=True,
            progress=lambda share, words, reports=reports: reports.append((words, share)),
        )
        start_of_drawing[records] = next(s for words, s in reports if words == "Drawing records")
    assert start_of_drawing[200_000] < 0.2
    assert start_of_drawing[200] > 0.8


def test_publish_forecast_includes_time_for_records():
    measurement, _ = measured_on(Workload.all_ways(SCHEMA, (1, 2), family="marginal"), records=200)
    without, with_records = (publish_forecast(measurement.plan, n) for n in (0, 1_000_000))
    assert without.seconds < with_records.seconds
    assert with_records.seconds - without.seconds == with_records.records_seconds


def test_forecast_of_records_grows_with_cells():
    """With 21 million cells, adjusting records takes about as long as fitting tables."""
    forecasts = []
    for sizes in ((5, 5, 5), (280, 280, 280)):
        schema = Schema([Attribute.of_size(n, k) for n, k in zip("abc", sizes, strict=True)])
        workload = Workload.all_ways(schema, (1, 2, 3), family="marginal")
        result = plan(workload, Budget(pcost=1.0), "residualplanner")
        forecasts.append(publish_forecast(result, 50_000))
    small, large = forecasts
    assert small.records_seconds < 0.1
    assert 0.5 < large.fit_seconds / large.records_seconds < 2.0
    assert publish_forecast(result, 0).records_seconds == 0.0
