"""Exact totals (invariants) in plans and releases."""

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
from engine.plans.variance_builder import VarianceBuilder
from engine.privacy import Budget
from engine.records import count_marginals
from engine.release.ingest import check_records
from engine.residuals import Strategy, basis
from engine.workload import Attribute, Schema, Workload

measure = sys.modules["engine.release.measure"].measure
PLAIN = Schema(
    [Attribute.of_size("region", 5), Attribute.of_size("age", 5), Attribute.of_size("sex", 2)]
)
RNG = np.random.default_rng(5)
RECORDS = pd.DataFrame({name: RNG.integers(0, PLAIN[name].size, 400) for name in PLAIN})
TOTALS = count_marginals(RECORDS, PLAIN, [("region",), ("region", "sex")])
SCHEMA = PLAIN.with_facts(invariants=[(["region", "sex"], TOTALS["region", "sex"])])
RANGES = {"region": "marginal", "age": "prefix", "sex": "marginal"}
COUNTS = count_marginals(RECORDS, PLAIN, [PLAIN.names])
TABLES = [
    (),
    ("age",),
    ("region",),
    ("sex", "region"),
    ("age", "region"),
    ("age", "region", "sex"),
]


def six_tables(schema, family="marginal"):
    workload = Workload(schema)
    for names in TABLES:
        workload = workload.add(
            names, {n: RANGES[n] for n in names} if family == "ranges" and names else "marginal"
        )
    return workload


def precise_block(space, sizes):
    """Return a block that measures a residual space with almost no noise."""
    rows = [
        ((a,), Strategy(sizes=(n,), rows=basis(n).T, pinv=np.eye(n - 1), complete=True))
        for a, n in enumerate(sizes)
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
def test_exact_spaces_cost_nothing_and_have_no_variance(family, objective, centers) -> None:
    budget = Budget(pcost=1.0)
    exact_plan = plan(six_tables(SCHEMA, family), budget, centers=centers, objective=objective)
    measured_spaces = {space for block in exact_plan.blocks.values() for space in block.spaces}
    assert not any(SCHEMA.is_exact(space) for space in measured_spaces)
    # The measured residual spaces use the full budget.
    assert exact_plan.pcost == total_pcost(exact_plan.blocks, exact_plan.max_records)
    assert 0.999 < exact_plan.pcost <= 1.0
    noiseless_blocks = {
        space: precise_block(space, SCHEMA.sizes(space)) for space in SCHEMA.exact_spaces
    }
    reference = VarianceBuilder(
        blocks={**exact_plan.blocks, **noiseless_blocks}, split=exact_plan.split, schema=PLAIN
    )
    for i, group in enumerate(exact_plan.workload.groups):
        expected = reference.group(group).values(0, group.count)
        np.testing.assert_allclose(exact_plan.variances(i), expected, rtol=1e-9, atol=1e-9)
        if SCHEMA.is_exact(group.attributes):
            assert exact_plan.totals[i] == exact_plan.largest[i] == 0.0
    # The plan for a schema without exact totals has a larger error.
    plain_plan = plan(six_tables(PLAIN, family), budget, centers=centers, objective=objective)
    assert exact_plan.achieved < 0.99 * plain_plan.achieved
    assert exact_plan.certificate.gap < 1e-4 or centers == "tuned"
    assert exact_plan.certificate.global_bound == 0.0
    assert load_plan(exact_plan.to_json()) == exact_plan


def test_budget_shares_of_measured_spaces_are_optimal() -> None:
    exact_plan = plan(six_tables(SCHEMA), Budget(pcost=1.0))
    # At the optimum, the contribution of a residual space to the error, divided by its privacy
    # cost, is equal for all spaces.
    builder = VarianceBuilder(blocks=exact_plan.blocks, split=exact_plan.split, schema=SCHEMA)
    total_variance = dict.fromkeys(exact_plan.blocks, 0.0)
    for group in exact_plan.workload.groups:
        variance = builder.group(group)
        for term in variance.terms:
            space = tuple(group.attributes[axis] for axis in term.axes)
            weight = np.prod([array.sum() for _, array in term.arrays])
            used_positions = {p for positions, _ in term.arrays for p in positions}
            # The term is constant along the other positions.
            repeats = np.prod([n for p, n in enumerate(variance.counts) if p not in used_positions])
            total_variance[space] += term.coefficient * weight * repeats
    ratios = [
        total_variance[space] / block.pcost(exact_plan.max_records)
        for space, block in exact_plan.blocks.items()
    ]
    assert max(ratios) / min(ratios) == pytest.approx(1.0, rel=1e-4)


@pytest.mark.parametrize("mechanism", [m.name for m in MECHANISMS])
def test_mechanisms_support_or_refuse_exact_totals(mechanism) -> None:
    budget = Budget.pure(1.0) if mechanism == "laplace" else Budget(pcost=1.0)
    if mechanism in ("querysmasher", "residualplanner", "residualplanner+", "wff"):
        exact_plan = plan(six_tables(SCHEMA), budget, mechanism)
        assert not any(SCHEMA.is_exact(space) for space in exact_plan.blocks)
    else:
        with pytest.raises(NotApplicable, match="exact totals"):
            plan(six_tables(SCHEMA), budget, mechanism)


def test_exact_only_workload_or_common_mechanism_is_refused() -> None:
    with pytest.raises(PlanError, match="follows from the exact totals"):
        plan(Workload(SCHEMA).add(("region", "sex")), Budget(pcost=1.0))
    exact_plan = plan(six_tables(SCHEMA), Budget(pcost=1.0))
    with pytest.raises(PlanError, match="invariants"):
        coarse_or_fine(exact_plan, plan(Workload(SCHEMA).add("age"), Budget(pcost=1.0)))


@pytest.mark.parametrize("releases", [12, pytest.param(1_000, marks=pytest.mark.full)])
def test_releases_equal_exact_totals(releases) -> None:
    plans = [plan(six_tables(SCHEMA), Budget(pcost=0.01), centers=c) for c in ("uniform", "tuned")]
    # The nonnegative fit is slow.
    fits = ("shrunk", "nonnegative") if releases < 100 else ("shrunk",)
    noisy_tables = set()
    for number in range(releases):
        measurement = measure(plans[number % 2], COUNTS, rehearsal=True)
        assert (measurement.marginal(["region", "sex"]) == TOTALS["region", "sex"]).all()
        assert (measurement.marginal(["region"]) == TOTALS["region",]).all()
        answers = measurement.answers(TABLES.index(("sex", "region")))
        assert (answers["answer"] == TOTALS["region", "sex"].T.ravel()).all()
        assert (answers["std"] == 0.0).all()
        assert (answers["low"] == answers["high"]).all()
        assert measurement.marginal([]) == len(RECORDS)
        # The margin of a table with more attributes equals the exact totals up to rounding.
        table = measurement.marginal(["age", "region", "sex"])
        np.testing.assert_allclose(table.sum(axis=0), TOTALS["region", "sex"], rtol=0, atol=1e-8)
        noisy_tables.add(table.tobytes())
        for fit in fits:
            published = measurement.publish(fit, integer=number % 4 < 2)
            assert (published.table(["region", "sex"]) == TOTALS["region", "sex"]).all()
            regions = published.table(["age", "region"]).sum(axis=0)
            np.testing.assert_allclose(regions, TOTALS["region",], rtol=0, atol=1e-8)
    assert len(noisy_tables) == releases  # all other answers have fresh noise


def test_releases_disclose_only_the_exact_totals() -> None:
    """The constraints that all releases have in common bound no cell further than exact totals.

    The bounds are linear programs on 50 cells.
    """
    exact_plan = plan(Workload(SCHEMA).add(("region", "age", "sex")), Budget(pcost=1.0))
    truth = COUNTS[PLAIN.names].ravel().astype(float)
    releases = np.array(
        [
            measure(exact_plan, COUNTS, rehearsal=True).marginal(PLAIN.names).ravel()
            for _ in range(56)
        ]
    )
    _, lengths, directions = np.linalg.svd(releases - releases[0])
    # Of 50 directions, 40 have noise: the differences between the first release and 55 others span
    # these. In the other 10 directions all releases are equal, so they disclose exact values.
    constant_directions = directions[int((lengths > 1e-6).sum()) :]
    # one row of 0 and 1 per total of a region and a sex, over the cells (region, age, sex)
    total_rows = (np.eye(10).reshape(10, 5, 1, 2) * np.ones((1, 1, 5, 1))).reshape(10, 50)
    assert constant_directions.shape == (10, 50)
    assert np.linalg.matrix_rank(np.concatenate([constant_directions, total_rows])) == 10
    for cell in (0, 7, 23, 49):
        for sign in (1.0, -1.0):
            objective = sign * np.eye(50)[cell]
            bound = scipy.optimize.linprog(
                objective, A_eq=constant_directions, b_eq=constant_directions @ truth
            ).fun
            bound_of_totals = scipy.optimize.linprog(
                objective, A_eq=total_rows, b_eq=total_rows @ truth
            ).fun
            assert bound == pytest.approx(bound_of_totals, abs=1e-6)
        # The upper bound of a cell (the last sign is -1) is the exact total of its region and sex.
        assert bound == pytest.approx(-total_rows[:, cell] @ (total_rows @ truth))


def test_measure_records_against_exact_totals_spends_nothing(tmp_path) -> None:
    wrong_totals = TOTALS["region",].copy()
    wrong_totals[:2] += (1, -1)
    wrong_schema = PLAIN.with_facts(
        invariants=[(["region"], wrong_totals), (["sex"], TOTALS["region", "sex"].sum(axis=0))]
    )
    wrong_plan = plan(six_tables(wrong_schema), Budget(pcost=0.5))
    book = Ledger.create(tmp_path / "office.ledger")
    book.add_dataset("survey", total=Budget(pcost=2.0))
    for data in (RECORDS, COUNTS):
        with pytest.raises(DataError, match="exact totals on region that") as caught:
            measure(wrong_plan, data, dataset="survey", ledger=book)
        private_numbers = (*wrong_totals, *TOTALS["region",], len(RECORDS))
        assert not any(str(number) in str(caught.value) for number in private_numbers)
    assert book.status("survey").spent == 0.0
    assert book.status("survey").exact == ()
    assert any("disagree" in warning for warning in check_records(wrong_plan, RECORDS).warnings)
    with pytest.raises(DataError, match="disagree"):
        measure(wrong_plan, RECORDS, rehearsal=True)
    assert check_records(plan(six_tables(SCHEMA), Budget(pcost=0.5)), RECORDS).warnings == ()


def test_status_names_subspace_privacy_after_exact_release(tmp_path) -> None:
    book = Ledger.create(tmp_path / "office.ledger")
    book.add_dataset("survey", total=Budget(pcost=2.0))
    book.add_dataset("other", total=Budget(pcost=2.0))
    measure(plan(six_tables(PLAIN), Budget(pcost=0.5)), RECORDS, dataset="survey", ledger=book)
    assert "subspace" not in book.status("survey").describe()
    measure(plan(six_tables(SCHEMA), Budget(pcost=0.5)), RECORDS, dataset="survey", ledger=book)
    for ledger in (book, Ledger(tmp_path / "office.ledger")):
        status = ledger.status("survey")
        assert status.exact == ("the exact totals on region × sex",)
        assert "subspace differential privacy" in status.describe()
        assert "subspace" not in ledger.status("other").describe()
        # Two releases of pcost 0.5, one of them with exact totals, cost 1.0 together.
        assert status.spent == pytest.approx(1.0, rel=1e-6)


def test_measure_counts_without_exact_tables_is_refused() -> None:
    exact_plan = plan(Workload(SCHEMA).add("age"), Budget(pcost=0.5))
    counts_of_age = count_marginals(RECORDS, PLAIN, [("age",)])
    with pytest.raises(DataError, match="contain no table"):
        measure(exact_plan, counts_of_age, rehearsal=True)


def test_plan_hash_depends_on_invariants() -> None:
    exact_plan, plain_plan = (
        plan(six_tables(schema), Budget(pcost=0.5)) for schema in (SCHEMA, PLAIN)
    )
    assert exact_plan.hash != plain_plan.hash
    assert "invariants" not in json.loads(plain_plan.to_json())["workload"]["schema"]
