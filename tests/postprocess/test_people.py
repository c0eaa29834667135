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
from tests.publish.measured import (
    FITS,
    SCHEMA,
    SIZES,
    attribute_sets,
    check_consistent,
    measured_on,
    random_tables,
)
from tests.shapes import SHAPES

PAIRS = list(itertools.combinations(range(len(SIZES)), 2))


def silent(share, words):
    return None


def check_integer_tables(published, workload):
    check_consistent(published, workload, tolerance=0.0)
    for group in workload.groups:
        table = published.table(group.attributes)
        assert (table == np.rint(table)).all()


def exact_pairs(records, seed):
    """Return the exact tables of all pairs of attributes, by the positions of the attributes."""
    tables = random_tables(SCHEMA, records, seed)
    return {pair: tables([SCHEMA.names[a] for a in pair]) for pair in PAIRS}


def distance_to(exact, records):
    """Return the sum of the absolute differences over the cells of all pairs."""
    return sum(np.abs(table_of(records, pair, SIZES) - exact[pair]).sum() for pair in PAIRS)


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
    records = published.records()
    names = {name for group in workload.groups for name in group.attributes}
    assert list(records) == [name for name in workload.schema.names if name in names]
    assert len(records) == published.total
    for group in workload.groups:
        counts = np.zeros(workload.schema.sizes(group.attributes))
        # a code outside its domain has no cell and raises an error
        for cell in records[list(group.attributes)].itertuples(index=False, name=None):
            counts[cell] += 1.0
        np.testing.assert_array_equal(counts, published.table(group.attributes))


@pytest.mark.parametrize(
    ("ways", "pcost"), [((1, 2), 1e-3), ((1, 2), 0.05), ((1, 2), 5.0), ((1, 2, 3), 0.05)]
)
def test_integer_tables_are_nearly_as_accurate(ways, pcost):
    workload = Workload.all_ways(SCHEMA, ways, family="marginal")
    real_error = integer_error = rounding_error = 0.0
    for seed in range(2):
        measurement, table = measured_on(workload, Budget(pcost=pcost), seed=seed)
        published, integer = measurement.publish(), measurement.publish(integer=True)
        for names in attribute_sets(SCHEMA, (max(ways),)):
            real = published.table(names)
            real_error += np.abs(real - table(names)).sum()
            integer_error += np.abs(integer.table(names) - table(names)).sum()
            rounding_error += np.abs(real - np.rint(real)).sum()
    assert integer_error <= 1.05 * real_error + 0.6 * rounding_error


@pytest.mark.parametrize("pcost", [1e-3, 0.1, 10.0])
def test_integer_tables_of_large_counts_are_as_accurate(pcost):
    workload = Workload.all_ways(SCHEMA, (1, 2), family="marginal")
    measurement, table = measured_on(workload, Budget(pcost=pcost), records=30_000)

    def error(published):
        pairs = attribute_sets(SCHEMA, (2,))
        return sum(np.abs(published.table(names) - table(names)).sum() for names in pairs)

    assert error(measurement.publish(integer=True)) <= 1.1 * error(measurement.publish())


def test_nearest_people_ends_within_tolerance():
    exact = exact_pairs(3_000, seed=1)

    def adjusted_records(tolerance):
        """Return (mean distance to the tables, reported shares of the progress)."""
        shares = []
        records = nearest_people(
            exact,
            SIZES,
            3_000,
            np.random.default_rng(0),
            lambda share, words: shares.append(share),
            tolerance=tolerance,
        )
        assert shares == sorted(shares)
        assert shares[-1] <= 1.0
        return distance_to(exact, records) / (3_000 * len(PAIRS)), shares

    nearest_distance, nearest_shares = adjusted_records(0.0)
    distance, shares = adjusted_records(0.02)
    assert nearest_distance < distance <= 0.02
    assert len(shares) < len(nearest_shares)


def test_nearest_people_improve_on_tree_start():
    exact = exact_pairs(3_000, seed=1)
    tree_records = _tree_of_people(exact, SIZES, 3_000, np.random.default_rng(0))
    records = nearest_people(exact, SIZES, 3_000, np.random.default_rng(0), silent)
    assert distance_to(exact, records) <= 0.25 * distance_to(exact, tree_records)
    assert distance_to(exact, records) <= 0.02 * 3_000 * len(PAIRS)


def test_tree_records_match_conditional_counts_within_one():
    exact = exact_pairs(500, seed=3)
    records = _tree_of_people(exact, SIZES, 500, np.random.default_rng(0))
    tree = mutual_information_tree(exact)
    assert len(tree) == len(SIZES) - 1
    for child, (_, parent) in tree.items():
        counts = table_of(records, (parent, child), SIZES)
        target = exact[parent, child] if parent < child else exact[child, parent].T
        shares_of_parent = target / np.maximum(target.sum(axis=1, keepdims=True), 1.0)
        expected = shares_of_parent * counts.sum(axis=1, keepdims=True)
        has_records = target.sum(axis=1) > 0
        assert np.abs(counts - expected)[has_records].max() < 1.0


def test_records_depend_only_on_measurement():
    workload = Workload.all_ways(SCHEMA, (1, 2), family="marginal")
    measurement, _ = measured_on(workload, records=200)
    records = measurement.publish(integer=True).records()
    assert records.equals(measurement.publish(integer=True).records())
    assert records.equals(measurement.publish().records())
    other_measurement, _ = measured_on(workload, records=200, seed=2)
    assert not records.equals(other_measurement.publish().records())


@pytest.mark.parametrize("rows", [0, 1, 77, 1_000])
def test_records_with_requested_number_keep_shares(rows):
    measurement, _ = measured_on(
        Workload.all_ways(SCHEMA, (1, 2), family="marginal"), Budget(pcost=1.0), records=200
    )
    published = measurement.publish()
    records = published.records(rows)
    assert records.shape == (rows, len(SCHEMA))
    if rows == 1_000:  # with fewer rows, shares differ from those of the table by rounding
        shares = np.bincount(records["a"], minlength=9) / rows
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


def test_invalid_or_cancelled_requests_for_records_raise():
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
    # records are adjusted in the second half, in several steps
    assert len([share for share in shares if share > 0.5]) > 3


def test_publish_integer_progress_follows_expected_times():
    def share_before_drawing(records):
        workload = Workload.all_ways(SCHEMA, (1, 2), family="marginal")
        measurement, _ = measured_on(workload, records=records)
        shares = {}
        measurement.publish(
            integer=True, progress=lambda share, words: shares.setdefault(words, share)
        )
        return shares["Drawing records"]

    # few records are drawn quickly, many slowly
    assert share_before_drawing(200) > 0.8
    assert share_before_drawing(200_000) < 0.2


def test_publish_forecast_includes_time_for_records():
    measurement, _ = measured_on(Workload.all_ways(SCHEMA, (1, 2), family="marginal"), records=200)
    without, with_records = (publish_forecast(measurement.plan, n) for n in (0, 1_000_000))
    assert without.seconds < with_records.seconds
    assert with_records.seconds - without.seconds == with_records.records_seconds


def test_forecast_of_records_grows_with_cells():
    """With 21 million cells, adjusting records takes about as long as fitting tables."""

    def plan_with_cells_per_attribute(cells):
        schema = Schema([Attribute.of_size(name, cells) for name in "abc"])
        workload = Workload.all_ways(schema, (1, 2, 3), family="marginal")
        return plan(workload, Budget(pcost=1.0), "residualplanner")

    large_plan = plan_with_cells_per_attribute(280)
    small = publish_forecast(plan_with_cells_per_attribute(5), records=50_000)
    large = publish_forecast(large_plan, records=50_000)
    assert small.records_seconds < 0.1
    assert 0.5 < large.fit_seconds / large.records_seconds < 2.0
    assert publish_forecast(large_plan, records=0).records_seconds == 0.0
