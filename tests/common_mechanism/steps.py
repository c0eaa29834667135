"""Options (plans) of one survey, and the ledger spends of both stages of a release."""

from decimal import Decimal

import numpy as np

from demo_data.make_synthetic import synthetic
from engine.common_mechanism.common_plan import coarse_or_fine, nested_choices
from engine.common_mechanism.selection_rule import Decision
from engine.mechanisms import plan
from engine.privacy import Budget
from engine.workload import Attribute, Schema, Workload

SCHEMA = Schema(
    [Attribute.of_size("a", 4), Attribute.of_size("b", 3), Attribute.categorical("c", ["x", "y"])]
)


def ways(k, pcost=0.4):
    return plan(Workload.all_ways(SCHEMA, ways=k, family="marginal"), Budget(pcost=pcost))


COMMON = coarse_or_fine(ways(1), ways(2), names=["1-way", "2-way"])
ONE_WAY, TWO_WAY = COMMON.options
# These plans are searched here, because a later search may start from another cached solution.
CHAIN = nested_choices(ways(1), ways(2), ways(3), names=["1-way", "2-way", "3-way"])
RECORDS = synthetic(SCHEMA, 4000, seed=3)
FINE = Decision(choice=1, certain=True, shares={"fine, lower": 0.9}, sentence="Fine.")


def ledger_decimal(pcost):
    """Return a cost as the decimal number that the ledger stores."""
    return Decimal(repr(pcost))


def ledger_spends(ledger):
    """Return the costs of all releases in a ledger, in their order."""
    return [Decimal(row.pcost) for row in ledger.rows() if row.kind == "spend"]


def assert_same_measurement(one, other):
    """Check that two measurements have the same plan, key, time, dataset and values."""
    assert one.plan.hash == other.plan.hash
    assert (one.key, one.utc, one.dataset) == (other.key, other.utc, other.dataset)
    for name in ("estimates", "answers_on_grid"):
        actual, expected = getattr(one, name), getattr(other, name)
        assert actual.keys() == expected.keys()
        for space in expected:
            np.testing.assert_array_equal(actual[space], expected[space])
