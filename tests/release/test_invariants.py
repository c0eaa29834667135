"""Exact totals in plans and releases: spent on nothing, kept to the digit, and nothing beyond them is told."""

from __future__ import annotations

import json
import sys

import numpy as np
import pandas as pd
import pytest
import scipy.optimize

from engine.common_mechanism.common_plan import coarse_or_fine
from engine.errors import DataError, NotApplicable, PlanError
from engine.ledger import Ledger
from engine.mechanisms import load_plan, plan
from engine.mechanisms.registry import MECHANISMS
from engine.plans import Block
from engine.plans.blocks import total_pcost
from engine.plans.variance import VarianceBuilder
from engine.privacy import Budget
from engine.records import Counts, count_marginals
from engine.release.ingest import check_records
from engine.residuals import Strategy, basis
from engine.workload import Attribute, Schema, Workload

measure = sys.modules["engine.release.measure"].measure
PLAIN = Schema([Attribute.of_size("region", 5), Attribute.of_size("age", 5), Attribute.of_size("sex", 2)])
RNG = np.random.default_rng(5)
RECORDS = pd.DataFrame({name: RNG.integers(0, PLAIN[name].size, 400) for name in PLAIN})
TOTALS = count_marginals(RECORDS, PLAIN, [("region",), ("region", "sex")])
SCHEMA = PLAIN.with_facts(invariants=[(["region", "sex"], TOTALS["region", "sex"])])
RANGES = {"region": "marginal", "age": "prefix", "sex": "marginal"}
COUNTS = count_marginals(RECORDS, PLAIN, [PLAIN.names])


def asked(schema, family="marginal"):
    made = Workload(schema)
    for names in ((), ("age",), ("region",), ("sex", "region"), ("age", "region"), ("age", "region", "sex")):
        made = made.add(names, {n: RANGES[n] for n in names} if family == "ranges" and names else "marginal")
    return made


def known(space, sizes):
    """A block that measures all of a space with next to no noise."""
    rows = [
        ((a,), Strategy(sizes=(n,), rows=basis(n).T, pinv=np.eye(n - 1), complete=True)) for a, n in enumerate(sizes)
    ]
    return Block(attributes=space, factors=tuple(rows), noise=1e-12, grid=1.0)


@pytest.mark.parametrize(
    ("family", "objective", "centers"),
    [
        ("marginal", "sum", "uniform"),
        ("marginal", "max", "uniform"),
        ("marginal", "lp", "tuned"),
        ("ranges", "sum", "uniform"),
        ("ranges", "sum", "tuned"),
    ],
)
def test_what_is_exact_costs_nothing_and_has_no_variance(family, objective, centers) -> None:
    made = plan(asked(SCHEMA, family), Budget(pcost=1.0), centers=centers, objective=objective)
    spaces = {space for block in made.blocks.values() for space in block.spaces}
    assert not any(SCHEMA.is_exact(space) for space in spaces)
    # all of the budget goes to what is measured
    assert 0.999 < made.pcost == total_pcost(made.blocks, made.max_records) <= 1.0
    exact = {space: known(space, SCHEMA.sizes(space)) for space in SCHEMA.exact_spaces}
    oracle = VarianceBuilder(blocks={**made.blocks, **exact}, split=made.split, schema=PLAIN)
    for i, group in enumerate(made.workload.groups):
        np.testing.assert_allclose(made.variances(i), oracle.group(group).values(0, group.count), rtol=1e-9, atol=1e-9)
        if SCHEMA.is_exact(group.attributes):
            assert made.totals[i] == made.largest[i] == 0.0
    # their weights do not count: the same noise elsewhere is found where nobody asks for them
    plain = plan(asked(PLAIN, family), Budget(pcost=1.0), centers=centers, objective=objective)
    assert made.achieved < 0.99 * plain.achieved
    assert made.certificate.gap < 1e-4 or centers == "tuned"
    assert made.certificate.global_bound == 0.0
    assert load_plan(made.to_json()) == made


def test_the_best_shares_are_those_of_what_is_left() -> None:
    made = plan(asked(SCHEMA), Budget(pcost=1.0))
    # every space of marginals is measured at its own noise v; at the optimum v^2 times what it adds is the same for all
    builder = VarianceBuilder(blocks=made.blocks, split=made.split, schema=SCHEMA)
    pulls = dict.fromkeys(made.blocks, 0.0)
    for group in made.workload.groups:
        found = builder.group(group)
        for summand in found.summands:
            own = np.prod([a.sum() for _, a in summand.arrays]) if summand.arrays else 1.0
            free = np.prod([n for p, n in enumerate(found.counts) if all(p not in ps for ps, _ in summand.arrays)])
            pulls[tuple(group.attributes[a] for a in summand.axes)] += own * free * summand.coefficient
    costs = {s: b.pcost(made.max_records) for s, b in made.blocks.items()}
    ratios = [pulls[s] / costs[s] for s in made.blocks]
    assert max(ratios) / min(ratios) == pytest.approx(1.0, rel=1e-4)


@pytest.mark.parametrize("mechanism", [m.name for m in MECHANISMS])
def test_mechanisms_keep_exact_totals_or_say_why_not(mechanism) -> None:
    budget = Budget.pure(1.0) if mechanism == "laplace" else Budget(pcost=1.0)
    if mechanism in ("querysmasher", "residualplanner", "residualplanner+", "wff"):
        made = plan(asked(SCHEMA), budget, mechanism)
        assert not any(SCHEMA.is_exact(space) for space in made.blocks)
    else:
        with pytest.raises(NotApplicable, match="exact totals"):
            plan(asked(SCHEMA), budget, mechanism)


def test_choosing_among_plans_and_asking_for_nothing_else_is_refused() -> None:
    with pytest.raises(PlanError, match="follows from the exact totals"):
        plan(Workload(SCHEMA).add(("region", "sex")), Budget(pcost=1.0))
    made = plan(asked(SCHEMA), Budget(pcost=1.0))
    with pytest.raises(PlanError, match="invariants"):
        coarse_or_fine(made, plan(Workload(SCHEMA).add("age"), Budget(pcost=1.0)))


@pytest.mark.parametrize("releases", [12, pytest.param(1_000, marks=pytest.mark.full)])
def test_releases_keep_exact_totals_to_the_digit(releases) -> None:
    made = [plan(asked(SCHEMA), Budget(pcost=0.01), centers=c) for c in ("uniform", "tuned")]
    drawn = set()
    for number in range(releases):
        found = measure(made[number % 2], COUNTS, rehearsal=True)
        assert (found.marginal(["region", "sex"]) == TOTALS["region", "sex"]).all()
        assert (found.marginal(["region"]) == TOTALS["region",]).all()
        answers = found.answers(3)
        assert (answers["answer"] == TOTALS["region", "sex"].T.ravel()).all()
        assert (answers["std"] == 0.0).all()
        assert (answers["low"] == answers["high"]).all()
        assert found.marginal([]) == 400
        # other tables agree with them but for the rounding of sums
        table = found.marginal(["age", "region", "sex"])
        assert np.abs(table.sum(axis=0) - TOTALS["region", "sex"]).max() < 1e-8
        drawn.add(table.tobytes())
        for fit in ("shrunk", "nonnegative")[: 1 + (releases < 100)]:
            published = found.publish(fit, integer=number % 4 < 2)
            assert (published.table(["region", "sex"]) == TOTALS["region", "sex"]).all()
            assert np.abs(published.table(["age", "region"]).sum(axis=0) - TOTALS["region",]).max() < 1e-8
    assert len(drawn) == releases  # all else is drawn anew


def test_nothing_beyond_exact_totals_is_told() -> None:
    """A linear program on 50 cells: what holds in all releases bounds no cell more than the exact totals do."""
    made = plan(Workload(SCHEMA).add(("region", "age", "sex")), Budget(pcost=1.0))
    truth = COUNTS[PLAIN.names].ravel().astype(float)
    releases = np.array([measure(made, COUNTS, rehearsal=True).marginal(PLAIN.names).ravel() for _ in range(56)])
    apart = releases - releases[0]
    _, lengths, directions = np.linalg.svd(apart)
    alike = directions[int((lengths > 1e-6).sum()) :]  # of 55 differences of noise 40 directions are left, surely
    rows = np.array([row.ravel() for row in np.eye(10).reshape(10, 5, 1, 2) * np.ones((1, 1, 5, 1))])
    assert alike.shape == (10, 50)
    assert np.linalg.matrix_rank(np.concatenate([alike, rows])) == 10
    for cell in (0, 7, 23, 49):
        for sign in (1.0, -1.0):
            aim = sign * np.eye(50)[cell]
            told = scipy.optimize.linprog(aim, A_eq=alike, b_eq=alike @ truth).fun
            before = scipy.optimize.linprog(aim, A_eq=rows, b_eq=rows @ truth).fun
            assert told == pytest.approx(before, abs=1e-6)
        assert told == pytest.approx(-rows[:, cell] @ (rows @ truth))  # anything up to all of its region and sex


def test_records_that_disagree_are_refused_before_anything_is_spent(tmp_path) -> None:
    wrong = TOTALS["region",].copy()
    wrong[:2] += (1, -1)
    other = PLAIN.with_facts(invariants=[(["region"], wrong), (["sex"], TOTALS["region", "sex"].sum(axis=0))])
    made, book = plan(asked(other), Budget(pcost=0.5)), Ledger.create(tmp_path / "office.ledger")
    book.add_dataset("survey", total=Budget(pcost=2.0))
    for data in (RECORDS, COUNTS):
        with pytest.raises(DataError, match="exact totals on region that") as refused:
            measure(made, data, dataset="survey", ledger=book)
        assert not any(f"{n}" in str(refused.value) for n in (*wrong.tolist(), *TOTALS["region",].tolist(), 400))
    assert book.status("survey").spent == 0.0
    assert book.status("survey").exact == ()
    assert any("disagree" in words for words in check_records(made, RECORDS).warnings)
    with pytest.raises(DataError, match="disagree"):
        measure(made, RECORDS, rehearsal=True)
    assert check_records(plan(asked(SCHEMA), Budget(pcost=0.5)), RECORDS).warnings == ()


def test_the_ledger_names_the_guarantee_of_all_releases_together(tmp_path) -> None:
    book = Ledger.create(tmp_path / "office.ledger")
    book.add_dataset("survey", total=Budget(pcost=2.0))
    book.add_dataset("other", total=Budget(pcost=2.0))
    measure(plan(asked(PLAIN), Budget(pcost=0.5)), RECORDS, dataset="survey", ledger=book)
    assert "subspace" not in book.status("survey").describe()
    measure(plan(asked(SCHEMA), Budget(pcost=0.5)), RECORDS, dataset="survey", ledger=book)
    for ledger in (book, Ledger(tmp_path / "office.ledger")):
        status = ledger.status("survey")
        assert status.exact == ("the exact totals on region × sex",)
        assert "subspace differential privacy beside the exact totals on region × sex" in status.describe()
        assert "subspace" not in ledger.status("other").describe()
        # costs of noise add up as they do without exact totals
        assert status.spent == pytest.approx(1.0, rel=1e-6)


def test_counts_without_the_exact_tables_are_refused() -> None:
    made = plan(Workload(SCHEMA).add("age"), Budget(pcost=0.5))
    few = count_marginals(RECORDS, PLAIN, [("age",)])
    assert isinstance(few, Counts)
    with pytest.raises(DataError, match="no table that contains"):
        measure(made, few, rehearsal=True)


def test_the_hash_of_a_plan_holds_its_facts() -> None:
    budget = Budget(pcost=0.5)
    assert plan(asked(SCHEMA), budget).hash != plan(asked(PLAIN), budget).hash
    assert "invariants" not in json.loads(plan(asked(PLAIN), budget).to_json())["workload"]["schema"]
