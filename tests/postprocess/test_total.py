"""The number of records: what residuals tell of it where its own noise hides it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from engine.mechanisms import plan
from engine.postprocess import publish
from engine.postprocess.partial_pooling import borrowed_total
from engine.postprocess.residual_estimates import evidence
from engine.postprocess.shrinkage import shrunk_total
from engine.postprocess.uncertainty import simulate_measurement
from engine.privacy import Budget
from engine.workload import Attribute, Schema, Workload

SIZES, PEOPLE, SEEDS = (6, 5, 4, 8, 3, 7), 4_000.0, 12
SCHEMA = Schema([Attribute.of_size(name, n) for name, n in zip("abcdef", SIZES, strict=True)])


def share_of(size):
    """Most people in the first cell, as in real tables."""
    return np.array([0.7, *([0.3 / (size - 1)] * (size - 1))])


def independent(names):
    """The table of people whose attributes have nothing to do with each other."""
    table = np.array(PEOPLE)
    for name in names:
        table = np.multiply.outer(table, share_of(SCHEMA[name].size))
    return table


def alike(names):
    """The table of people all of whose attributes are in the first cell, or all in the last."""
    table = np.zeros(SCHEMA.sizes(names))
    table[(0,) * len(names)] += 0.7 * PEOPLE
    table[(-1,) * len(names)] += 0.3 * PEOPLE
    return table


def errors(table, pcost, ways):
    """Root mean square errors of the total's own answer and of the one that is borrowed for, and what is said of it."""
    made = plan(Workload.all_ways(SCHEMA, ways, family="marginal"), Budget(pcost=pcost), mechanism="residualplanner")
    rows = []
    for seed in range(SEEDS):
        found = evidence(simulate_measurement(made, table, np.random.default_rng(seed)))
        total, variance = borrowed_total(found)
        rows.append([(found.total - PEOPLE) ** 2, (total - PEOPLE) ** 2, variance])
    return np.sqrt(np.mean(rows, axis=0))


@pytest.mark.parametrize(("ways", "least"), [((1, 2), 0.9), ((1, 2, 3), 0.85)])
def test_residuals_tell_of_a_total_that_noise_hides(ways, least):
    own, borrowed, said = errors(independent, 0.002, ways)
    assert borrowed < least * own
    assert 0.5 * borrowed < said < 2.0 * borrowed


@pytest.mark.parametrize("ways", [(1, 2), (1, 2, 3)])
def test_attributes_that_all_say_the_same_hardly_mislead_it(ways):
    own, borrowed, _ = errors(alike, 0.01, ways)
    assert borrowed < 1.15 * own


def test_a_total_that_is_known_well_stays_as_it_was_measured():
    made = plan(Workload.all_ways(SCHEMA, (1, 2), family="marginal"), Budget(pcost=0.2), mechanism="residualplanner")
    found = evidence(simulate_measurement(made, alike, np.random.default_rng(1)))
    assert borrowed_total(found) == (found.total, found.total_variance)


def test_where_nothing_is_clear_the_own_answer_is_all_there_is():
    made = plan(Workload.all_ways(SCHEMA, (1, 2), family="marginal"), Budget(pcost=1e-6), mechanism="residualplanner")
    found = evidence(simulate_measurement(made, independent, np.random.default_rng(0)))
    assert borrowed_total(found) == (found.total, found.total_variance)


def test_all_published_tables_sum_to_the_total_that_was_borrowed_for():
    made = plan(Workload.all_ways(SCHEMA, (1, 2), family="marginal"), Budget(pcost=0.002), mechanism="residualplanner")
    found = simulate_measurement(made, independent, np.random.default_rng(3))
    shrunk, seen = publish(found), evidence(found)
    borrowed, own = shrunk_total(*borrowed_total(seen)), shrunk_total(seen.total, seen.total_variance)
    assert abs(shrunk.total - borrowed) < 0.1 * abs(own - borrowed)
    for names in itertools.combinations("abcdef", 2):
        assert abs(shrunk.table(names).sum() - shrunk.total) <= 1e-9
