"""Group weights for published tables."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pandas as pd
import pytest

from engine.errors import LimitExceeded, PlanError
from engine.mechanisms import load_plan, plan
from engine.postprocess import publication_weights as module
from engine.postprocess.publication_weights import publication_weights
from engine.postprocess.uncertainty import simulate_measurement
from engine.privacy import Budget
from engine.workload import Attribute, Schema, Workload
from tests.publish.measured import SCHEMA, marginals_of, random_tables

PAIRS = Workload.all_ways(SCHEMA, (1, 2), family="marginal")
RECORDS = 3_000
TABLE = random_tables(SCHEMA, RECORDS, 1)


def weights_by_set(workload):
    return {group.attributes: group.weight for group in workload.groups}


def mean_pair_error(result, table, seeds=3):
    """Return the mean L1 error of the published tables of pairs, over ``seeds`` measurements."""
    pairs = list(itertools.combinations(result.schema.names, 2))
    releases = [
        simulate_measurement(result, table, np.random.default_rng(seed)).publish()
        for seed in range(seeds)
    ]
    return np.mean([np.abs(f.table(p) - table(p)).sum() for f in releases for p in pairs])


@pytest.mark.parametrize("pcost", [1e-4, 3e-3, 0.1, 10.0])
def test_publication_weights_reduce_or_keep_published_error(pcost):
    sizes = {"a": 40, "b": 9, "c": 20, "d": 2}
    schema = Schema([Attribute.of_size(name, n) for name, n in sizes.items()])
    workload = Workload.all_ways(schema, (1, 2), family="marginal")
    budget, table = Budget(pcost=pcost), random_tables(schema, 20_000, seed=1)
    weighted = publication_weights(workload, budget, expected_records=20_000)
    weighted_error, original_error = (
        mean_pair_error(plan(w, budget, "residualplanner"), table) for w in (weighted, workload)
    )
    assert weighted_error <= (0.9 if pcost <= 1e-4 else 1.03) * original_error


def test_one_way_errors_at_small_budget_ignore_pairs():
    budget = Budget(pcost=1e-5)

    def expected_one_way_error(workload):
        weighted = publication_weights(workload, budget, expected_records=RECORDS)
        result = plan(weighted, budget, "residualplanner")
        one_way = [i for i, group in enumerate(weighted.groups) if len(group.attributes) == 1]
        return sum(np.sqrt(result.variances(i)).sum() for i in one_way)

    without_pairs = Workload.all_ways(SCHEMA, (1,), family="marginal")
    assert expected_one_way_error(PAIRS) <= 1.02 * expected_one_way_error(without_pairs)


@pytest.mark.parametrize("pcost", [1e-4, 2e-4])
def test_publication_weights_give_unreliable_pairs_little_budget(pcost):
    schema = Schema([Attribute.of_size(name, 6) for name in "abcdef"])
    budget = Budget(pcost=pcost)

    def standard_error_of_a(workload):
        group = [g.attributes for g in workload.groups].index(("a",))
        variances = plan(workload, budget, "residualplanner").variances(group)
        return math.sqrt(float(variances.mean()))

    pairs = Workload.all_ways(schema, (1, 2), family="marginal")
    weighted = publication_weights(pairs, budget, expected_records=8_000)
    without_pairs = Workload.all_ways(schema, (1,), family="marginal")
    assert standard_error_of_a(weighted) <= 1.05 * standard_error_of_a(without_pairs)


def test_pair_weights_at_large_budget_are_similar():
    weights = weights_by_set(
        publication_weights(PAIRS, Budget(pcost=1e6), expected_records=RECORDS)
    )
    pairs = [weight for names, weight in weights.items() if len(names) == 2]
    assert max(pairs) <= 4.0 * min(pairs)


@pytest.mark.parametrize("pcost", [1e-3, 0.1, 1e4])
def test_publication_weights_blend_predicted_and_original_weights(pcost):
    """If the original weights are equal, a ratio of weights is a power of the predicted ratio."""
    blended = weights_by_set(
        publication_weights(PAIRS, Budget(pcost=pcost), expected_records=RECORDS)
    )
    importance = {group.attributes: 1.0 for group in PAIRS.groups}
    predicted, share = module._set_weights(SCHEMA, importance, pcost, RECORDS, None)
    assert 0.0 < share < 1.0
    exponent = 1.0 - share**2 / 2.0
    for names, weight in predicted.items():
        log_ratio = math.log(blended[names] / blended["a",])
        predicted_log_ratio = math.log(weight / predicted["a",])
        assert log_ratio == pytest.approx(exponent * predicted_log_ratio, abs=1e-9)


def test_one_way_error_changes_weights_only_without_reference(monkeypatch):
    budget, records = Budget(pcost=1e-3), pd.DataFrame({name: [0, 1] for name in SCHEMA.names})

    def pair_weight(reference):
        weighted = publication_weights(PAIRS, budget, expected_records=RECORDS, reference=reference)
        return weights_by_set(weighted)["a", "b"]

    without_reference, with_reference = pair_weight(None), pair_weight(records)
    monkeypatch.setattr(module, "ONE_WAY_ERROR", 1e9)
    assert pair_weight(None) > 1.5 * without_reference
    assert pair_weight(records) == with_reference


def test_one_way_tables_without_signal_get_less_budget(monkeypatch):
    """1,500 records at epsilon 0.03: the noise of large one-way tables exceeds their counts.

    The small table then gets a larger share of the budget than without the limit of the signal.
    """
    large = [Attribute.of_size(name, 40) for name in "abcd"]
    schema = Schema([Attribute.of_size("small", 2), *large])
    workload = Workload.all_ways(schema, (1, 2), family="marginal")
    small_group = [group.attributes for group in workload.groups].index(("small",))
    budget = Budget(pcost=4e-5)

    def variance_of_small_table():
        weighted = publication_weights(workload, budget, expected_records=1_500)
        return plan(weighted, budget, "residualplanner").variances(small_group).mean()

    with_limit = variance_of_small_table()
    monkeypatch.setattr(module, "MAX_DEVIATION", 1e9)
    assert with_limit < 0.7 * variance_of_small_table()


def test_publication_weights_depend_only_on_public_arguments():
    budget = Budget(pcost=0.02)
    weighted = publication_weights(PAIRS, budget, expected_records=RECORDS)
    assert publication_weights(PAIRS, budget, expected_records=RECORDS) == weighted
    assert publication_weights(PAIRS, budget, expected_records=10 * RECORDS) != weighted
    total_weight = sum(group.weight * group.count for group in weighted.groups)
    assert total_weight == pytest.approx(PAIRS.queries)
    result = plan(weighted, budget, "residualplanner")
    assert load_plan(result.to_json()).hash == result.hash


def test_publication_weights_keep_zero_weights():
    zero_weight = ("a", "b")
    workload = Workload(SCHEMA)
    for group in PAIRS.groups:
        weight = 0.0 if group.attributes == zero_weight else group.weight
        workload = workload.add(group.attributes, "marginal", weight=weight)
    weighted = publication_weights(workload, Budget(pcost=0.02), expected_records=RECORDS)
    assert [g.attributes for g in weighted.groups if g.weight == 0.0] == [zero_weight]


def test_publication_weights_accept_every_family_and_triples():
    workload = (
        Workload.all_ways(SCHEMA, (0, 1, 2, 3))
        .add(("a", "b"), "range")
        .add(("c", "d"), "affine")
        .add(("a",), "marginal")
    )
    weighted = publication_weights(workload, Budget(pcost=0.02), expected_records=RECORDS)
    assert all(0.0 < group.weight < np.inf for group in weighted.groups)
    plan(weighted, Budget(pcost=0.02))


def test_publication_weights_follow_dependence_in_reference():
    schema = Schema([Attribute.of_size(name, 6) for name in "abc"])
    workload = Workload.all_ways(schema, (1, 2), family="marginal")
    rng = np.random.default_rng(1)
    a, c = rng.integers(0, 6, (2, 4_000))
    records = pd.DataFrame({"a": a, "b": a, "c": c})
    counts = np.zeros((6, 6, 6))
    np.add.at(counts, tuple(records.to_numpy().T), 1.0)
    result = plan(workload, Budget(pcost=1.0), "residualplanner")
    earlier = simulate_measurement(result, marginals_of(schema, counts), rng).publish()
    for reference in (records, earlier):
        weighted = publication_weights(
            workload, Budget(pcost=0.001), expected_records=4_000, reference=reference
        )
        weights = weights_by_set(weighted)
        assert weights["a", "b"] > 3.0 * weights["a", "c"]


def test_publication_weights_with_bad_arguments_are_refused(monkeypatch):
    earlier = simulate_measurement(
        plan(PAIRS, Budget(pcost=0.02), "residualplanner"), TABLE, np.random.default_rng(0)
    )
    small = Workload(Schema([Attribute.of_size("a", 9), Attribute.of_size("z", 2)])).add(("z",))
    no_records = pd.DataFrame({name: np.zeros(0, int) for name in SCHEMA.names})
    cases = [
        (PAIRS, 0, None, "number of records"),
        (PAIRS, RECORDS, earlier.publish("none"), "negative"),
        (small, RECORDS, earlier.publish(), "attributes"),
        (PAIRS, RECORDS, no_records, "no records"),
        ("workload", RECORDS, None, "workload"),
    ]
    for workload, records, reference, word in cases:
        with pytest.raises(PlanError, match=word):
            publication_weights(
                workload, Budget(pcost=0.02), expected_records=records, reference=reference
            )
    monkeypatch.setattr(module, "MAX_SETS", 10)
    with pytest.raises(LimitExceeded, match="subsets"):
        publication_weights(PAIRS, Budget(pcost=0.02), expected_records=RECORDS)


def test_noisy_one_way_tables_get_most_budget():
    """13 attributes and 7,000 records at rho 0.0002, as in a small survey at epsilon 0.1."""
    schema = Schema([Attribute.of_size(f"x{i}", 2 + i % 11) for i in range(13)])
    workload = Workload.all_ways(schema, (1, 2), family="marginal")

    def one_way_share(budget):
        weighted = publication_weights(workload, budget, expected_records=7_000)
        result = plan(weighted, budget, "residualplanner")
        one_way = [block for space, block in result.blocks.items() if len(space) < 2]
        return sum(block.pcost(result.max_records) for block in one_way) / result.pcost

    assert one_way_share(Budget(pcost=4e-4)) > 0.93
    assert one_way_share(Budget(pcost=4e-2)) < 0.4


@pytest.mark.filterwarnings("error")
def test_total_alone_keeps_its_weight_without_a_warning():
    workload = Workload(Schema([Attribute.of_size("a", 4)])).add((), weight=2.0)
    weighted = publication_weights(workload, Budget(pcost=1e-3), expected_records=100)
    assert [group.weight for group in weighted.groups] == [2.0]
