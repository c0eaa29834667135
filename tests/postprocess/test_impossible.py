"""Structural zeros: cells that rules make impossible are exactly 0 in what is published, and nothing else is bent."""

from __future__ import annotations

import itertools
import json
import zipfile

import numpy as np
import pytest

from engine.mechanisms import plan
from engine.postprocess.contrasts import assemble_table
from engine.postprocess.nonnegative_projection import zero_impossible_cells
from engine.postprocess.synthetic_records import impute_records
from engine.postprocess.uncertainty import simulate_measurement
from engine.privacy import Budget
from engine.publish.tables_package import write_tables
from engine.workload import Attribute, Schema, Workload
from tests.pairs import pairwise
from tests.publish.measured import SCHEMA, check, people, sets

RULES = {
    "one": ["a < 3 and b > 2"],
    "apart": ["a < 3 and b > 2", "c == 0 and d == 1"],
    "chained": ["a < 3 and b > 2", "b == 0 and c > 1", "d == 1 and a in [4, 5]"],
    "single and triple": ["a > 6", "a < 2 and b < 2 and c < 2"],
    "only together": ["a == 0 and d == 0", "a == 0 and d == 1"],
}
ASKED = tuple(RULES), ((1, 2), (1, 2, 3), (4,)), ("shrunk", "nonnegative"), (1e-4, 0.05)
FEW = pairwise(*ASKED)


def ruled(rules, ways=(1, 2), pcost=0.05, seed=1, **options):
    """A rehearsal on records that keep the rules, and their exact tables."""
    schema = SCHEMA.with_facts(impossible=rules)
    whole = people(schema, 3_000, seed)(schema.names) * (schema.possible_share(schema.names) > 0.0)

    def table(names):
        kept = [schema.order[name] for name in names]
        summed = whole.sum(axis=tuple(a for a in range(whole.ndim) if a not in kept))
        return summed.transpose([sorted(kept).index(a) for a in kept])

    made = plan(Workload.all_ways(schema, ways, family="marginal"), Budget(pcost=pcost), **options)
    return simulate_measurement(made, table, np.random.default_rng(seed)), table


@pytest.mark.parametrize(
    ("which", "ways", "fit", "pcost"),
    [pytest.param(*row, marks=() if row in FEW else pytest.mark.full) for row in itertools.product(*ASKED)],
)
def test_impossible_cells_are_empty_and_all_tables_agree(which, ways, fit, pcost):
    pcost = 50.0 if len(ways) == 1 else pcost
    found, _ = ruled(RULES[which], ways, pcost, mechanism="residualplanner")
    published = found.publish(fit)
    check(published, found.plan.workload)
    assert pcost < 1.0 or published.total == pytest.approx(float(found.marginal([])), rel=1e-3)
    for group in found.plan.workload.groups:
        impossible = found.plan.schema.possible_share(group.attributes) == 0.0
        assert (published.table(group.attributes)[impossible] == 0.0).all()
        # not by cutting: what the tables are made of has nothing there
        made = assemble_table(published.contrasts, published.positions(group.attributes))
        assert np.abs(made[impossible]).max(initial=0.0) <= 1e-9


@pytest.mark.parametrize("centers", ["uniform", "tuned"])
def test_prefixes_with_tuned_centers_keep_the_rules(centers):
    schema = SCHEMA.with_facts(impossible=RULES["chained"])
    workload = Workload(schema).add(("a", "b"), "prefix").add(("b", "c"), {"b": "range", "c": "marginal"})
    found = simulate_measurement(
        plan(workload, Budget(pcost=0.05), centers=centers), people(schema, 3_000, 1), np.random.default_rng(1)
    )
    published = found.publish()
    check(published, workload)
    assert (published.table(["a", "b"])[:3, 3:] == 0.0).all()


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
def test_unbiased_tables_stay_unbiased_and_keep_their_total(rules):
    found, _ = ruled(rules, (1, 2, 3), mechanism="residualplanner")
    published = found.publish("none")
    assert published.total == float(found.marginal([]))
    assert min(published.table(names).min() for names in sets(SCHEMA, (3,))) < 0.0
    for names in sets(SCHEMA, (1, 2, 3)):
        made, impossible = published.table(names), found.plan.schema.possible_share(names) == 0.0
        assert (made[impossible] == 0.0).all()
        for axis in range(made.ndim):
            rest = names[:axis] + names[axis + 1 :]
            assert np.abs(made.sum(axis=axis) - published.table(rest)).max() <= 1e-9
    # linear, and nothing happens to true tables: so what is right on average stays so
    contrasts, twice = published.contrasts, {axes: 2.0 * c for axes, c in published.contrasts.items()}
    seen = {axes: found.plan.schema.possible_share([published.names[a] for a in axes]) > 0.0 for axes in contrasts}
    largest = [axes for axes in contrasts if len(axes) == 3]
    sizes = SCHEMA.sizes(SCHEMA.names)
    for given, back in ((contrasts, 1.0), (twice, 2.0)):
        again = zero_impossible_cells({axes: c.copy() for axes, c in given.items()}, largest, sizes, seen)
        for axes, c in contrasts.items():
            np.testing.assert_allclose(again[axes], back * c, atol=1e-8)


def test_rules_sharpen_the_fit_and_much_budget_leaves_true_tables():
    rules = RULES["chained"]
    errors = {True: 0.0, False: 0.0}
    for seed in range(3):
        found, table = ruled(rules, seed=seed, mechanism="residualplanner")
        for with_rules in errors:
            made = found
            if not with_rules:
                bare = plan(
                    Workload.all_ways(SCHEMA, (1, 2), family="marginal"),
                    Budget(pcost=0.05),
                    mechanism="residualplanner",
                )
                made = simulate_measurement(bare, table, np.random.default_rng(seed))
            published = made.publish()
            errors[with_rules] += sum(np.abs(published.table(n) - table(n)).sum() for n in sets(SCHEMA, (2,)))
    assert errors[True] < 0.97 * errors[False]
    found, table = ruled(rules, (1, 2, 3), 1e6, mechanism="residualplanner")
    exact = found.publish()
    for names in sets(SCHEMA, (1, 2, 3)):
        np.testing.assert_allclose(exact.table(names), table(names), atol=0.05)


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
def test_whole_records_keep_every_rule(rules):
    found, _ = ruled(rules, (1, 2), 1e-3, mechanism="residualplanner")
    published = found.publish(integer=True)
    check(published, found.plan.workload)
    records = published.records(500)
    for made in (published.people, records.to_numpy()):
        cells = tuple(np.asarray(made).T)
        assert (found.plan.schema.possible_share(SCHEMA.names)[cells] > 0.0).all()


def test_records_that_break_a_rule_take_the_values_of_those_that_keep_it():
    possible = np.array([[True, False], [True, True]])
    records = np.array([[0, 7, 1], [1, 8, 1], [0, 9, 1]])
    impute_records(records, [([0, 2], possible)], np.random.default_rng(1))
    assert records.tolist() == [[1, 7, 1], [1, 8, 1], [1, 9, 1]]
    none = np.zeros((0, 3), int)
    impute_records(none, [([0, 2], possible)], np.random.default_rng(1))
    records = np.array([[0, 7, 1]])
    impute_records(records, [([0, 2], possible)], np.random.default_rng(1))
    assert records.tolist() == [[0, 7, 0]]


def test_an_impossible_cell_has_no_error_and_the_package_tells_the_rules(tmp_path):
    found, _ = ruled(RULES["one"], (2,), mechanism="residualplanner")
    uncertain = found.publish().uncertainty(draws=2)
    errors = uncertain.table_errors(["a", "b"])
    assert (errors[:3, 3:] == 0.0).all()
    assert (errors[3:] > 0.0).any()
    with zipfile.ZipFile(write_tables(uncertain, tmp_path / "tables.zip")) as archive:
        assert "- `a < 3 and b > 2`" in archive.read("codebook.md").decode()
        assert json.loads(archive.read("registry.json"))


def test_without_rules_for_its_attributes_a_table_is_as_before():
    schema = Schema([*SCHEMA.attributes, Attribute.of_size("e", 3)], impossible=["e == 1"])
    assert (schema.possible_share(["a", "b"]) == 1.0 / 63).all()
    made = plan(Workload(SCHEMA).add(("a", "b")), Budget(pcost=0.1))
    again = plan(Workload(schema).add(("a", "b")), Budget(pcost=0.1))
    table = people(SCHEMA, 3_000, 1)
    one, other = (simulate_measurement(p, table, np.random.default_rng(1)).publish() for p in (made, again))
    assert (one.table(["a", "b"]) == other.table(["a", "b"])).all()
    assert made.hash != again.hash


def test_unbiased_tables_without_impossible_cells_have_errors_of_their_own():
    """What was in impossible cells is noise that others have now: as much as other rehearsals miss."""
    found, table = ruled(RULES["one"], (2,), mechanism="residualplanner")
    published = found.publish("none")
    made = published.uncertainty(draws=30)
    errors = made.table_errors(("a", "b"))
    possible = found.plan.schema.possible_share(("a", "b")) > 0.0
    missed = []
    for seed in range(1_000, 1_040):
        again = simulate_measurement(found.plan, table, np.random.default_rng(seed)).publish("none")
        missed.append(again.table(("a", "b")) - table(("a", "b")))
    seen = np.mean(np.square(missed), axis=0)
    assert (errors[~possible] == 0.0).all()
    assert np.mean(errors[possible] ** 2) == pytest.approx(np.mean(seen[possible]), rel=0.15)
    number = next(i for i, g in enumerate(found.plan.workload.groups) if g.attributes == ("a", "b"))
    rows = made.answers(number)
    shown = rows["flag"] != "suppressed"
    assert (rows["published_low"][shown] <= rows["published"][shown]).all()
