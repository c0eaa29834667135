"""Tuned plans with one product strategy on the full table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from engine.errors import Cancelled, NotApplicable
from engine.ledger import Ledger, verify_ledger
from engine.mechanisms import at_budget, forecast, load_plan, plan
from engine.mechanisms.querysmasher import TABLE_STATEMENT
from engine.plans import Plan
from engine.plans.table_plan import ExplicitPlan
from engine.privacy import Budget
from engine.records import count_marginals
from engine.release import apply_group, measure
from engine.release.measure import load_measurement
from engine.workload import Attribute, Schema, Workload

# too many cells for one dense strategy on the full domain
SIZES = (11, 6, 11)
SCHEMA = Schema([Attribute.of_size(name, n) for name, n in zip("abc", SIZES, strict=True)])
BUDGET = Budget(pcost=1.0)


def mixed_workload(schema: Schema = SCHEMA) -> Workload:
    """Return joint queries of two attributes, and product queries of one, two and three."""
    base = (
        Workload(schema)
        .add("a", "circular", weight=2.0)
        .add("b", "range")
        .add(("b", "c"), "affine", weight=4.0)
    )
    circular = {"a": "circular", "b": "marginal", "c": "circular"}
    return base.add(("a", "b", "c"), circular, weight=2.0).add(
        ("a", "c"), {"a": "circular", "c": "prefix"}
    )


def tuned(workload: Workload, **options: Any) -> Plan:
    return plan(workload, BUDGET, centers="tuned", cache=False, workers=1, **options)


@pytest.fixture(scope="module")
def product_plan() -> Plan:
    return tuned(mixed_workload())


@pytest.fixture
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the search for separate strategies early, so that its error stays large.

    Any product strategy that the planner then considers has a smaller error.
    """
    monkeypatch.setattr("engine.mechanisms.reweighting.MAX_SOLVES", 4)
    monkeypatch.setattr("engine.residuals.tuning.tune.LBFGS_STEPS", 2)


def test_tuned_plan_matches_hdmm_error(product_plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    hdmm_plan = plan(mixed_workload(), BUDGET, "hdmm")
    assert product_plan.weighted_rmse == pytest.approx(hdmm_plan.weighted_rmse, rel=1e-9)
    assert product_plan.certificate.statement.startswith(TABLE_STATEMENT)
    assert 0.0 <= product_plan.certificate.global_gap < 0.02
    monkeypatch.setattr("engine.mechanisms.querysmasher.MAX_PRODUCT_SEARCH_S", 0)
    assert product_plan.weighted_rmse < tuned(mixed_workload()).weighted_rmse * (1.0 - 1e-4)


def test_product_is_found_before_tuning_reaches_time_limit() -> None:
    sizes = {"a": 20, "b": 2, "c": 3, "d": 12}
    products = (
        ({"a": "circular", "b": "circular", "d": "range"}, 2.0),
        ({"a": "total", "b": "total", "d": "total"}, 2.0),
        ({"a": "total", "d": "range"}, 1.0),
        ({"a": "marginal", "b": "circular", "d": "range"}, 0.25),
    )
    workload = Workload(Schema([Attribute.of_size(name, n) for name, n in sizes.items()]))
    workload = workload.add(("a", "b"), "affine", weight=4.0).add(("a", "c"), "affine", weight=2.0)
    for families, weight in products:
        workload = workload.add(tuple(families), families, weight=weight)
    hdmm_plan = plan(workload, BUDGET, "hdmm")
    assert tuned(workload, time_limit=1.0).weighted_rmse <= hdmm_plan.weighted_rmse * (1.0 + 1e-9)


def test_product_plan_round_trip_and_budget_change(product_plan: Plan) -> None:
    assert isinstance(product_plan, ExplicitPlan)
    assert product_plan.mechanism == "querysmasher"
    assert product_plan.options["centers"] == "tuned"
    loaded = load_plan(product_plan.to_json())
    assert loaded == product_plan
    assert loaded.certificate.statement == product_plan.certificate.statement
    larger_budget = at_budget(product_plan, Budget(pcost=4.0))
    assert larger_budget == plan(mixed_workload(), Budget(pcost=4.0), centers="tuned", cache=False)
    assert larger_budget.weighted_rmse == pytest.approx(product_plan.weighted_rmse / 2.0, rel=1e-6)


def test_product_plan_release_has_predicted_errors(product_plan: Plan, tmp_path: Path) -> None:
    records = pd.DataFrame(
        np.random.default_rng(0).integers(0, SIZES, size=(500, 3)), columns=list("abc")
    )
    ledger = Ledger.create(tmp_path / "office.ledger")
    ledger.add_dataset("survey", total=BUDGET)
    key = measure(product_plan, records, dataset="survey", ledger=ledger).key
    release = load_measurement(ledger, key)
    assert ledger.status("survey").spent == pytest.approx(1.0, abs=1e-6)
    assert verify_ledger(ledger.path) == ()
    counts = count_marginals(
        records, SCHEMA, [group.attributes for group in product_plan.workload.groups]
    )
    rehearsals = [measure(product_plan, records, rehearsal=True) for _ in range(80)]
    for g, group in enumerate(product_plan.workload.groups):
        exact = apply_group(group, counts[group.attributes].astype(float), 0, group.count)
        errors = [measurement.values(g) - exact for measurement in (release, *rehearsals)]
        squares = np.square(errors) / product_plan.variances(g)
        # with fully correlated queries the mean has a standard deviation of 0.16
        assert np.mean(squares) == pytest.approx(1.0, abs=5 * 0.16)


@pytest.mark.parametrize(
    "options",
    [
        {"keep": 0.5},
        {"solver": "fourier"},
        {"objective": "max"},
        {"memory_limit": 1e8},
        {"time_limit": 0.01},
    ],
    ids=str,
)
def test_tuned_plan_other_options_has_no_product(options: dict[str, Any], few_steps: None) -> None:
    assert type(tuned(mixed_workload(), **options)) is Plan


def test_tuned_plan_with_invariants_has_no_product(few_steps: None) -> None:
    schema = SCHEMA.with_facts(invariants=[(["a"], [10] * SCHEMA["a"].size)])
    assert type(tuned(mixed_workload(schema))) is Plan


@pytest.mark.parametrize("family", ["marginal", "prefix"])
def test_tuned_plan_single_table_has_no_product(family: str) -> None:
    """A product plan would have an equal error but no published tables."""
    workload = Workload(
        Schema([Attribute.of_size(name, n) for name, n in zip("abc", (5, 9, 9), strict=True)])
    )
    result = tuned(workload.add(("a", "b", "c"), family))
    assert type(result) is Plan
    records = pd.DataFrame(np.zeros((9, 3), int), columns=list("abc"))
    published = measure(result, records, rehearsal=True).publish()
    assert (published.table(["a", "b", "c"]) >= 0.0).all()


def test_product_plan_publish_names_uniform_centers(product_plan: Plan) -> None:
    records = pd.DataFrame(np.zeros((9, 3), int), columns=list("abc"))
    with pytest.raises(NotApplicable, match="centers='uniform'"):
        measure(product_plan, records, rehearsal=True).publish()
    uniform = plan(product_plan.workload, BUDGET, centers="uniform")
    published = measure(uniform, records, rehearsal=True).publish()
    assert (published.table(("b", "c")) >= 0.0).all()


def test_tuned_plan_coupled_attributes_has_no_product(few_steps: None) -> None:
    assert type(tuned(mixed_workload().add(("a", "b"), "abs"))) is Plan


def test_product_search_is_forecast_and_cancellable(monkeypatch: pytest.MonkeyPatch) -> None:
    with_product = forecast(mixed_workload(), centers="tuned").seconds

    def stop(_: float, text: str) -> None:
        if text == "Strategy for b x c":
            raise Cancelled("enough")

    with pytest.raises(Cancelled):
        tuned(mixed_workload(), progress=stop)
    monkeypatch.setattr("engine.mechanisms.querysmasher.MAX_PRODUCT_SEARCH_S", 0)
    assert with_product > forecast(mixed_workload(), centers="tuned").seconds


def test_long_product_search_needs_long_time_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("engine.mechanisms.querysmasher.table_seconds", lambda workload: 3.0)
    assert isinstance(tuned(mixed_workload(), time_limit=40.0), ExplicitPlan)
    assert type(tuned(mixed_workload(), time_limit=20.0)) is Plan


def test_product_replaces_single_strategy_with_larger_rounding() -> None:
    schema = Schema([Attribute.of_size("a", 7), Attribute.of_size("b", 6)])
    workload = Workload(schema)
    for families in ({"a": "range", "b": "range"}, {"a": "prefix", "b": "total"}):
        workload = workload.add(("a", "b"), families)
    records = 10**11
    hdmm_plan = plan(workload, BUDGET, "hdmm", max_records=records)
    product_plan = tuned(workload, max_records=records)
    assert isinstance(product_plan, ExplicitPlan)
    assert product_plan.weighted_rmse < hdmm_plan.weighted_rmse * (1.0 - 1e-4)
