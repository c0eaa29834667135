"""Published tables: nonnegative, consistent and at least as accurate as unbiased tables."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from engine.errors import Cancelled, LimitExceeded, NotAnswerable, NotApplicable, PlanError
from engine.mechanisms import plan
from engine.postprocess import publish
from engine.postprocess.published_tables import publish_forecast
from engine.privacy import Budget
from engine.workload import Attribute, Schema, Workload
from tests.pairs import pairwise
from tests.publish.measured import FITS, SCHEMA, attribute_sets, check_consistent, measured_on
from tests.shapes import SHAPES

CASES = ((1,), (1, 2), (1, 2, 3), (4,)), FITS, (1e-4, 0.05, 50.0)
FEW = pairwise(*CASES)


@pytest.mark.parametrize(
    ("ways", "fit", "pcost"),
    [
        pytest.param(*row, marks=() if row in FEW else pytest.mark.full)
        for row in itertools.product(*CASES)
    ],
)
def test_published_tables_are_consistent_and_nonnegative(ways, fit, pcost):
    workload = Workload.all_ways(SCHEMA, ways, family="marginal")
    measurement, _ = measured_on(workload, Budget(pcost=pcost))
    check_consistent(measurement.publish(fit), workload)


@pytest.mark.parametrize(
    ("shape", "mechanism", "options"),
    [
        ("nested", "querysmasher", {"centers": "tuned"}),
        ("cyclic", "querysmasher", {"centers": "tuned"}),
        ("same_size", "querysmasher", {"centers": "uniform"}),
        ("single_value", "residualplanner+", {}),
        ("weights_ratio", "querysmasher", {"centers": "tuned"}),
        ("total_only", "querysmasher", {}),
        ("custom_matrix", "querysmasher", {}),
        ("circular", "wff", {}),
        ("zero_weight_uncovered", "querysmasher", {}),
    ],
)
@pytest.mark.parametrize("fit", FITS)
def test_publish_every_residual_plan_is_consistent(shape, mechanism, options, fit):
    workload = SHAPES[shape]()
    measurement, _ = measured_on(
        workload, Budget(pcost=1.0), records=50, mechanism=mechanism, **options
    )
    published = measurement.publish(fit)
    check_consistent(published, workload)
    for number, group in enumerate(workload.groups):
        assert published.answers(number).shape == (group.count, 6)


def test_tuned_test_plans_have_centers_complements_unions():
    cyclic = plan(SHAPES["cyclic"](), Budget(pcost=1.0), centers="tuned")
    weights_ratio = plan(SHAPES["weights_ratio"](), Budget(pcost=1.0), centers="tuned")
    assert any(block.union for block in cyclic.blocks.values())
    assert weights_ratio.split.centers
    assert weights_ratio.split.complements


@pytest.mark.parametrize("centers", ["uniform", "tuned"])
def test_publish_without_fit_returns_unbiased_answers(centers):
    workload = SHAPES["nested"]().add(("a", "b"), {"a": "prefix", "b": "range"})
    measurement, _ = measured_on(
        workload, Budget(pcost=1.0), mechanism="querysmasher", centers=centers
    )
    published = measurement.publish("none")
    for number in range(len(workload.groups)):
        np.testing.assert_allclose(published.values(number), measurement.values(number), atol=1e-9)


def test_publish_with_large_budget_returns_true_tables():
    workload = Workload.all_ways(SCHEMA, (1, 2, 3), family="marginal")
    measurement, table = measured_on(workload, Budget(pcost=1e6))
    # Projecting cells with the true count 0 on nonnegative counts increases their sums slightly.
    for fit, tolerance in (("shrunk", 0.02), ("nonnegative", 1.0)):
        published = measurement.publish(fit)
        for names in attribute_sets(SCHEMA, (1, 2, 3)):
            np.testing.assert_allclose(published.table(names), table(names), atol=tolerance)


@pytest.mark.parametrize("pcost", [1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0])
def test_shrunk_tables_beat_unbiased_and_clipped(pcost):
    workload = Workload.all_ways(SCHEMA, (1, 2), family="marginal")
    errors = {"unbiased": 0.0, "clipped": 0.0, "shrunk": 0.0}
    for seed in range(4):
        measurement, table = measured_on(workload, Budget(pcost=pcost), seed=seed)
        published = measurement.publish()
        total = max(0.0, float(measurement.marginal([])))
        for names in attribute_sets(SCHEMA, (2,)):
            unbiased = measurement.marginal(names)
            clipped = np.maximum(unbiased, 0.0)
            clipped *= total / clipped.sum()
            tables = {"unbiased": unbiased, "clipped": clipped, "shrunk": published.table(names)}
            for name, values in tables.items():
                errors[name] += float(np.abs(values - table(names)).sum())
    assert errors["shrunk"] <= 1.02 * min(errors["unbiased"], errors["clipped"])
    if pcost <= 1e-2:
        assert errors["shrunk"] <= 0.8 * errors["clipped"]


def test_publish_same_measurement_is_deterministic():
    workload = Workload.all_ways(SCHEMA, (1, 2, 3), family="marginal")
    measurement, _ = measured_on(workload)
    first, second = measurement.publish().contrasts, publish(measurement).contrasts
    assert list(first) == list(second)
    assert all((first[axes] == second[axes]).all() for axes in first)


def test_table_axes_follow_requested_attribute_order():
    schema = Schema([Attribute.of_size("one", 1), *SCHEMA.attributes])
    workload = Workload(schema).add(("b", "one", "a"), "marginal")
    measurement, _ = measured_on(workload)
    published = measurement.publish()
    assert published.table(["b", "one", "a"]).shape == (7, 1, 9)
    np.testing.assert_array_equal(
        published.table(["a", "b"]), published.table(["b", "one", "a"])[:, 0].T
    )
    assert published.table(["one"]).tolist() == [published.total]


def test_answers_list_monotone_prefixes_and_unbiased_answers():
    workload = Workload(SCHEMA).add(("a",), "prefix")
    workload = workload.add(("b", "a"), {"a": "prefix", "b": "marginal"})
    measurement, _ = measured_on(workload, Budget(pcost=1e-4), mechanism="querysmasher")
    published = measurement.publish()
    prefixes = published.answers(0)
    assert list(prefixes) == ["query", "published", "answer", "std", "low", "high"]
    assert (np.diff(prefixes["published"]) >= -1e-9).all()
    assert (np.diff(prefixes["answer"]) < 0).any()
    np.testing.assert_array_equal(prefixes["answer"], measurement.values(0))
    prefixes_per_b = published.values(1).reshape(SCHEMA.sizes(("b", "a")))
    assert (np.diff(prefixes_per_b, axis=1) >= -1e-9).all()


def test_publish_negative_total_returns_zeros():
    workload = Workload.all_ways(SCHEMA, (1, 2), family="marginal")
    measurements = (
        measured_on(workload, Budget(pcost=1e-6), records=5, seed=seed)[0] for seed in range(8)
    )
    with_negative_total = next(m for m in measurements if m.marginal([]) < 0)
    for fit in FITS:
        published = with_negative_total.publish(fit)
        assert published.total == 0.0
        assert not published.table(["a", "b"]).any()


def test_publish_with_invalid_request_is_refused():
    workload = Workload.all_ways(SCHEMA, (1, 2), family="marginal")
    explicit, _ = measured_on(workload, mechanism="identity")
    with pytest.raises(NotApplicable, match="identity"):
        explicit.publish()
    without_total, _ = measured_on(SHAPES["contrasts_only"](), mechanism="querysmasher")
    with pytest.raises(NotAnswerable, match="number of records"):
        without_total.publish()
    measurement, _ = measured_on(workload)
    with pytest.raises(PlanError, match="fit"):
        measurement.publish("best")
    with pytest.raises(LimitExceeded, match="GB"):
        measurement.publish(memory_limit=1_000)
    with pytest.raises(Cancelled):
        measurement.publish(progress=lambda share, words: False)
    with pytest.raises(NotAnswerable, match="a × b × c"):
        measurement.publish().table(["a", "b", "c"])


def test_publish_integer_memory_limit_includes_records():
    measurement, _ = measured_on(
        Workload.all_ways(SCHEMA, (1, 2), family="marginal"), records=5_000
    )
    limit = publish_forecast(measurement.plan).bytes_needed
    measurement.publish(memory_limit=limit)
    with pytest.raises(LimitExceeded, match=r"integer=True.*memory_limit"):
        measurement.publish(integer=True, memory_limit=limit)


def test_publish_progress_increases_to_one():
    measurement, _ = measured_on(Workload.all_ways(SCHEMA, (1, 2, 3), family="marginal"))
    shares = []
    measurement.publish(progress=lambda share, words: shares.append(share))
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


@pytest.mark.parametrize("fit", FITS)
def test_published_prefixes_and_ranges_are_monotone(fit):
    prefix_groups = Workload(SCHEMA).add(("a", "b"), "prefix")
    prefix_groups = prefix_groups.add(("a", "d"), {"a": "prefix", "d": "marginal"})
    workload = prefix_groups.add(("b",), "range")
    measurement, _ = measured_on(workload, Budget(pcost=1e-4), mechanism="querysmasher")
    published = measurement.publish(fit)
    cells, ranges = published.table(["b"]), published.values(len(prefix_groups.groups))
    assert ranges.min() >= -1e-9
    limits = itertools.combinations(range(len(cells) + 1), 2)
    sums = [cells[start:stop].sum() for start, stop in limits]
    np.testing.assert_allclose(np.sort(ranges), np.sort(sums), atol=1e-9)
    for i, group in enumerate(prefix_groups.groups):
        counts = [part.count for part in group.parts]
        by_prefix_of_a = published.values(i).reshape(counts)
        assert np.diff(by_prefix_of_a, axis=0).min() >= -1e-9
        unbiased = measurement.values(i).reshape(counts)
        assert np.diff(unbiased, axis=0).min() < 0.0
