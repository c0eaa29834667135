"""Whole records near published tables: people, as many as were counted, of whom all tables are exact counts."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from engine.errors import Cancelled, LimitExceeded, PlanError
from engine.postprocess.synthetic_records import _tree, _tree_of_people, nearest_people, table_of
from engine.privacy import Budget
from engine.workload import Workload
from tests.publish.measured import FITS, SCHEMA, SIZES, measured_on, people, sets
from tests.shapes import SHAPES

PAIRS = list(itertools.combinations(range(len(SIZES)), 2))


def silent(share, words):
    return None


def check_whole(published, workload):
    for group in workload.groups:
        table = published.table(group.attributes)
        assert (table == np.rint(table)).all()
        assert (table >= 0).all()
        assert table.sum() == published.total
        for axis in range(table.ndim):
            rest = group.attributes[:axis] + group.attributes[axis + 1 :]
            assert (table.sum(axis=axis) == published.table(rest)).all()


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize(("ways", "pcost"), [((1,), 0.05), ((1, 2), 50.0), ((1, 2, 3), 1e-4), ((4,), 0.05)])
def test_whole_tables_agree_exactly_and_keep_the_total(ways, pcost, fit):
    workload = Workload.all_ways(SCHEMA, ways, family="marginal")
    found, _ = measured_on(workload, Budget(pcost=pcost), records=300)
    published = found.publish(fit, integer=True)
    check_whole(published, workload)
    assert published.total == round(found.publish(fit).total)


@pytest.mark.parametrize(
    ("shape", "mechanism"),
    [("nested", "querysmasher"), ("single_value", "residualplanner+"), ("total_only", "querysmasher"),
     ("custom_matrix", "querysmasher"), ("circular", "wff"), ("disjoint", "querysmasher")],
)  # fmt: skip
def test_every_plan_of_residual_spaces_has_records(shape, mechanism):
    workload = SHAPES[shape]()
    found, _ = measured_on(workload, Budget(pcost=1.0), records=50, mechanism=mechanism)
    published = found.publish(integer=True)
    check_whole(published, workload)
    rows = published.records()
    held = {name for group in workload.groups for name in group.attributes}
    assert list(rows) == [name for name in workload.schema.names if name in held]
    assert len(rows) == published.total
    for group in workload.groups:
        shape_of = workload.schema.sizes(group.attributes)
        codes = tuple(rows[name].to_numpy() for name in group.attributes)
        counted = np.zeros(shape_of)
        if codes:
            np.add.at(counted, codes, 1.0)  # a code outside its domain has no cell
        else:
            counted += len(rows)
        np.testing.assert_array_equal(counted, published.table(group.attributes))


@pytest.mark.parametrize(("ways", "pcost"), [((1, 2), 1e-3), ((1, 2), 0.05), ((1, 2), 5.0), ((1, 2, 3), 0.05)])
def test_whole_tables_are_as_near_the_truth_as_the_others(ways, pcost):
    workload = Workload.all_ways(SCHEMA, ways, family="marginal")
    plain = rounded = floor = 0.0
    for seed in range(2):
        found, table = measured_on(workload, Budget(pcost=pcost), seed=seed)
        published, integer = found.publish(), found.publish(integer=True)
        for names in sets(SCHEMA, ways[-1:]):
            plain += np.abs(published.table(names) - table(names)).sum()
            rounded += np.abs(integer.table(names) - table(names)).sum()
            floor += np.abs(published.table(names) - np.rint(published.table(names))).sum()
    assert rounded <= 1.05 * plain + 0.6 * floor


def test_records_are_moved_much_nearer_than_a_tree_of_attributes_brings_them():
    table = people(SCHEMA, 3_000, 1)
    exact = {pair: table([SCHEMA.names[a] for a in pair]) for pair in PAIRS}
    begun = _tree_of_people(exact, SIZES, 3_000, np.random.default_rng(0))
    moved = nearest_people(exact, SIZES, 3_000, np.random.default_rng(0), silent)
    missed = [sum(np.abs(table_of(r, p, SIZES) - exact[p]).sum() for p in PAIRS) for r in (begun, moved)]
    assert missed[1] <= 0.25 * missed[0]
    assert missed[1] <= 0.02 * 3_000 * len(PAIRS)


def test_the_tree_follows_its_pairs_within_one():
    table = people(SCHEMA, 500, 3)
    exact = {pair: table([SCHEMA.names[a] for a in pair]) for pair in PAIRS}
    made = _tree_of_people(exact, SIZES, 500, np.random.default_rng(0))
    tree = _tree(exact)
    assert len(tree) == len(SIZES) - 1
    for child, (_, parent) in tree.items():
        counted = table_of(made, (parent, child), SIZES)
        wanted = exact[parent, child] if parent < child else exact[child, parent].T
        shares = wanted / np.maximum(wanted.sum(axis=1, keepdims=True), 1.0)
        near = np.abs(counted - shares * counted.sum(axis=1, keepdims=True))
        assert near[wanted.sum(axis=1) > 0].max() < 1.0


def test_the_same_measurement_gives_the_same_people_and_another_gives_others():
    workload = Workload.all_ways(SCHEMA, (1, 2), family="marginal")
    found, _ = measured_on(workload, records=200)
    one = found.publish(integer=True)
    assert one.records().equals(found.publish(integer=True).records())
    assert one.records().equals(found.publish().records())  # the nearest records of the same tables
    other, _ = measured_on(workload, records=200, seed=2)
    assert not one.records().equals(other.publish().records())


@pytest.mark.parametrize("n", [0, 1, 77, 1_000])
def test_as_many_records_as_are_asked_for(n):
    found, _ = measured_on(Workload.all_ways(SCHEMA, (1, 2), family="marginal"), Budget(pcost=1.0), records=200)
    published = found.publish()
    rows = published.records(n)
    assert rows.shape == (n, 4)
    if n == 1_000:
        shares = np.bincount(rows["a"], minlength=9) / n
        np.testing.assert_allclose(shares, published.table(["a"]) / published.total, atol=0.01)


def test_nobody_is_published_where_the_total_is_lost():
    workload = Workload.all_ways(SCHEMA, (1, 2), family="marginal")
    found = next(
        f for f in (measured_on(workload, Budget(pcost=1e-6), records=5, seed=s)[0] for s in range(8))
        if f.marginal([]) < 0
    )  # fmt: skip
    published = found.publish(integer=True)
    assert published.total == 0
    assert len(published.records()) == 0
    assert len(published.records(3)) == 3


def test_records_that_cannot_be_had_are_refused_by_name():
    found, _ = measured_on(Workload.all_ways(SCHEMA, (1, 2), family="marginal"), records=200)
    with pytest.raises(PlanError, match="negative cells"):
        found.publish("none", integer=True)
    with pytest.raises(PlanError, match="negative cells"):
        found.publish("none").records()
    with pytest.raises(PlanError, match="number of records was -1"):
        found.publish().records(-1)
    with pytest.raises(LimitExceeded, match="GB"):
        found.publish().records(900_000_000)
    with pytest.raises(Cancelled):
        found.publish().records(progress=lambda share, words: False)


def test_progress_of_whole_tables_goes_up_to_the_end():
    found, _ = measured_on(Workload.all_ways(SCHEMA, (1, 2, 3), family="marginal"), records=200)
    told = []
    found.publish(integer=True, progress=lambda share, words: told.append(share))
    assert told == sorted(told)
    assert told[-1] == 1.0
    assert len([share for share in told if share > 0.5]) > 3
