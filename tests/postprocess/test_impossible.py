"""Structural zeros: impossible cells are exactly 0 in published tables."""

from __future__ import annotations

import itertools
import json
import zipfile

import numpy as np
import pytest

from engine.mechanisms import plan
from engine.postprocess.nonnegative_projection import zero_impossible_cells
from engine.postprocess.residual_estimates import assemble_table
from engine.postprocess.synthetic_records import impute_records
from engine.postprocess.uncertainty import simulate_measurement
from engine.privacy import Budget
from engine.publish.tables_package import write_tables
from engine.workload import Attribute, Schema, Workload
from tests.pairs import pairwise
from tests.publish.measured import (
    SCHEMA,
    attribute_sets,
    check_consistent,
    random_possible_tables,
    random_tables,
)

RULES = {
    "one": ["a < 3 and b > 2"],
    "disjoint": ["a < 3 and b > 2", "c == 0 and d == 1"],
    "chained": ["a < 3 and b > 2", "b == 0 and c > 1", "d == 1 and a in [4, 5]"],
    "single and triple": ["a > 6", "a < 2 and b < 2 and c < 2"],
    "joint": ["a == 0 and d == 0", "a == 0 and d == 1"],
}
CASES = tuple(RULES), ((1, 2), (1, 2, 3), (4,)), ("shrunk", "nonnegative"), (1e-4, 0.05)
FEW = pairwise(*CASES)


def simulate_with_rules(rules, ways=(1, 2), pcost=0.05, seed=1, **options):
    """Return (simulated measurement, function from attribute names to their exact table).

    The records are random and satisfy ``rules``.
    """
    schema = SCHEMA.with_facts(impossible=rules)
    table = random_possible_tables(schema, 3_000, seed)
    result = plan(
        Workload.all_ways(schema, ways, family="marginal"), Budget(pcost=pcost), **options
    )
    return simulate_measurement(result, table, np.random.default_rng(seed)), table


@pytest.mark.parametrize(
    ("rules", "ways", "fit", "pcost"),
    [
        pytest.param(*row, marks=() if row in FEW else pytest.mark.full)
        for row in itertools.product(*CASES)
    ],
)
def test_published_impossible_cells_are_zero(rules, ways, fit, pcost):
    pcost = 50.0 if len(ways) == 1 else pcost
    measurement, _ = simulate_with_rules(RULES[rules], ways, pcost, mechanism="residualplanner")
    published = measurement.publish(fit)
    check_consistent(published, measurement.plan.workload)
    if pcost >= 1.0:
        measured_total = float(measurement.marginal([]))
        assert published.total == pytest.approx(measured_total, rel=1e-3)
    for group in measurement.plan.workload.groups:
        impossible = measurement.plan.schema.possible_share(group.attributes) == 0.0
        assert (published.table(group.attributes)[impossible] == 0.0).all()
        # The tables are zero in these cells also before negative cells are set to zero.
        assembled = assemble_table(published.contrasts, published.positions(group.attributes))
        assert np.abs(assembled[impossible]).max(initial=0.0) <= 1e-9


@pytest.mark.parametrize("centers", ["uniform", "tuned"])
def test_published_prefixes_satisfy_rules(centers):
    schema = SCHEMA.with_facts(impossible=RULES["chained"])
    workload = Workload(schema).add(("a", "b"), "prefix")
    workload = workload.add(("b", "c"), {"b": "range", "c": "marginal"})
    result = plan(workload, Budget(pcost=0.05), centers=centers)
    tables = random_tables(schema, 3_000, seed=1)
    published = simulate_measurement(result, tables, np.random.default_rng(1)).publish()
    check_consistent(published, workload)
    assert (published.table(["a", "b"])[:3, 3:] == 0.0).all()  # a < 3 and b > 2


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
def test_unbiased_tables_with_zeros_stay_unbiased(rules):
    measurement, _ = simulate_with_rules(rules, (1, 2, 3), mechanism="residualplanner")
    schema, published = measurement.plan.schema, measurement.publish("none")
    assert published.total == float(measurement.marginal([]))
    assert min(published.table(names).min() for names in attribute_sets(SCHEMA, (3,))) < 0.0
    for names in attribute_sets(SCHEMA, (1, 2, 3)):
        table = published.table(names)
        assert (table[schema.possible_share(names) == 0.0] == 0.0).all()
        for axis in range(table.ndim):
            rest = names[:axis] + names[axis + 1 :]
            assert np.abs(table.sum(axis=axis) - published.table(rest)).max() <= 1e-9
    # `zero_impossible_cells` is linear and does not change tables that satisfy the rules, so the
    # expectation of its result is the true table.
    possible = {
        axes: schema.possible_share([published.names[a] for a in axes]) > 0.0
        for axes in published.contrasts
    }
    triples = [axes for axes in published.contrasts if len(axes) == 3]
    for factor in (1.0, 2.0):
        scaled = {axes: factor * cells for axes, cells in published.contrasts.items()}
        expected = {axes: cells.copy() for axes, cells in scaled.items()}
        result = zero_impossible_cells(scaled, triples, SCHEMA.sizes(SCHEMA.names), possible)
        for axes, cells in expected.items():
            np.testing.assert_allclose(result[axes], cells, atol=1e-8)


def test_publish_with_rules_reduces_errors():
    rules = RULES["chained"]
    workload = Workload.all_ways(SCHEMA, (1, 2), family="marginal")
    plan_without_rules = plan(workload, Budget(pcost=0.05), mechanism="residualplanner")
    error_with_rules = error_without_rules = 0.0
    for seed in range(3):
        with_rules, table = simulate_with_rules(rules, seed=seed, mechanism="residualplanner")
        rng = np.random.default_rng(seed)
        without_rules = simulate_measurement(plan_without_rules, table, rng).publish()
        with_rules = with_rules.publish()
        for names in attribute_sets(SCHEMA, (2,)):
            error_with_rules += np.abs(with_rules.table(names) - table(names)).sum()
            error_without_rules += np.abs(without_rules.table(names) - table(names)).sum()
    assert error_with_rules < 0.97 * error_without_rules
    precise, table = simulate_with_rules(rules, (1, 2, 3), 1e6, mechanism="residualplanner")
    published = precise.publish()
    for names in attribute_sets(SCHEMA, (1, 2, 3)):
        np.testing.assert_allclose(published.table(names), table(names), atol=0.05)


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
def test_synthetic_records_satisfy_every_rule(rules):
    measurement, _ = simulate_with_rules(rules, (1, 2), 1e-3, mechanism="residualplanner")
    published = measurement.publish(integer=True)
    check_consistent(published, measurement.plan.workload)
    records = published.records(500)
    for rows in (published.people, records.to_numpy()):
        cells = tuple(np.asarray(rows).T)
        assert (measurement.plan.schema.possible_share(SCHEMA.names)[cells] > 0.0).all()


def test_impute_records_copies_values_of_possible_records():
    # the values 0 and 1 of the attributes in columns 0 and 2 are impossible together
    rules = [([0, 2], np.array([[True, False], [True, True]]))]
    records = np.array([[0, 7, 1], [1, 8, 1], [0, 9, 1]])
    impute_records(records, rules, np.random.default_rng(1))
    assert records.tolist() == [[1, 7, 1], [1, 8, 1], [1, 9, 1]]
    without_possible_records = np.array([[0, 7, 1]])
    impute_records(without_possible_records, rules, np.random.default_rng(1))
    assert without_possible_records.tolist() == [[0, 7, 0]]
    impute_records(np.zeros((0, 3), int), rules, np.random.default_rng(1))  # raises no error


def test_impossible_cells_have_zero_error_and_documented_rules(tmp_path):
    measurement, _ = simulate_with_rules(RULES["one"], (2,), mechanism="residualplanner")
    uncertainty = measurement.publish().uncertainty(draws=2)
    errors = uncertainty.table_errors(["a", "b"])
    assert (errors[:3, 3:] == 0.0).all()
    assert (errors[3:] > 0.0).any()
    with zipfile.ZipFile(write_tables(uncertainty, tmp_path / "tables.zip")) as archive:
        assert "- `a < 3 and b > 2`" in archive.read("codebook.md").decode()
        assert json.loads(archive.read("registry.json"))


def test_rule_on_other_attributes_leaves_tables_unchanged():
    schema = Schema([*SCHEMA.attributes, Attribute.of_size("e", 3)], impossible=["e == 1"])
    pair = ("a", "b")
    assert (schema.possible_share(pair) == 1.0 / (9 * 7)).all()
    result = plan(Workload(SCHEMA).add(pair), Budget(pcost=0.1))
    plan_with_rule = plan(Workload(schema).add(pair), Budget(pcost=0.1))
    tables = random_tables(SCHEMA, 3_000, seed=1)
    without_rule, with_rule = (
        simulate_measurement(p, tables, np.random.default_rng(1)).publish().table(pair)
        for p in (result, plan_with_rule)
    )
    assert (with_rule == without_rule).all()
    assert result.hash != plan_with_rule.hash


def test_unbiased_uncertainty_with_rules_matches_simulation():
    """Noise of impossible cells moves to possible ones; the errors match those of simulations."""
    measurement, table = simulate_with_rules(RULES["one"], (2,), mechanism="residualplanner")
    pair, result = ("a", "b"), measurement.plan
    uncertainty = measurement.publish("none").uncertainty(draws=30)
    errors = uncertainty.table_errors(pair)
    possible = result.schema.possible_share(pair) > 0.0
    simulated_errors = []
    for seed in range(1_000, 1_040):
        simulated = simulate_measurement(result, table, np.random.default_rng(seed))
        simulated_errors.append(simulated.publish("none").table(pair) - table(pair))
    variances = np.mean(np.square(simulated_errors), axis=0)
    assert (errors[~possible] == 0.0).all()
    assert np.mean(errors[possible] ** 2) == pytest.approx(np.mean(variances[possible]), rel=0.15)
    group = [g.attributes for g in result.workload.groups].index(pair)
    rows = uncertainty.answers(group)
    shown = rows[rows["flag"] != "suppressed"]
    assert (shown["published_low"] <= shown["published"]).all()
