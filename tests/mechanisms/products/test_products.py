"""Tuned plans that are one product of strategies on the whole table, where that is better than residual spaces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from engine.errors import Cancelled, NotApplicable
from engine.ledger import Ledger, verify_ledger
from engine.mechanisms import at_budget, forecast, load_plan, plan
from engine.mechanisms.querysmasher import OF_TABLE
from engine.plans import Plan
from engine.plans.table_plan import ExplicitPlan
from engine.privacy import Budget
from engine.records import count_marginals
from engine.release import apply_group, measure
from engine.release.measure import load_measurement
from engine.workload import Attribute, Schema, Workload

SIZES = (11, 6, 11)  # more cells than one strategy on all of them is waited for
SCHEMA = Schema([Attribute.of_size(name, n) for name, n in zip("abc", SIZES, strict=True)])
BUDGET = Budget(pcost=1.0)


def asked(schema: Schema = SCHEMA) -> Workload:
    """What couples two attributes, and what asks all three in products."""
    base = Workload(schema).add("a", "circular", weight=2.0).add("b", "range").add(("b", "c"), "affine", weight=4.0)
    whole = {"a": "circular", "b": "marginal", "c": "circular"}
    return base.add(("a", "b", "c"), whole, weight=2.0).add(("a", "c"), {"a": "circular", "c": "prefix"})


def tuned(workload: Workload, **options: Any) -> Plan:
    return plan(workload, BUDGET, centers="tuned", cache=False, workers=1, **options)


@pytest.fixture(scope="module")
def found() -> Plan:
    return tuned(asked())


@pytest.fixture
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that ends early leaves a worse plan: all the more would a product be taken."""
    monkeypatch.setattr("engine.mechanisms.reweighting.EVALUATIONS", 4)
    monkeypatch.setattr("engine.residuals.tuning.tune.STEPS", 2)


def test_tuned_is_as_good_as_a_product_on_the_whole_table(found: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    rival = plan(asked(), BUDGET, "hdmm")
    assert found.weighted_rmse == pytest.approx(rival.weighted_rmse, rel=1e-9)
    assert found.certificate.statement.startswith(OF_TABLE)
    assert 0.0 <= found.certificate.global_gap < 0.02
    monkeypatch.setattr("engine.mechanisms.querysmasher.PRODUCT", 0)
    assert found.weighted_rmse < tuned(asked()).weighted_rmse * (1.0 - 1e-4)


def test_it_is_the_plan_of_its_request_in_a_file_and_at_another_budget(found: Plan) -> None:
    assert isinstance(found, ExplicitPlan)
    assert (found.mechanism, found.options["centers"]) == ("querysmasher", "tuned")
    again = load_plan(found.to_json())
    assert (again, again.certificate.statement) == (found, found.certificate.statement)
    dearer = at_budget(found, Budget(pcost=4.0))
    assert dearer == plan(asked(), Budget(pcost=4.0), centers="tuned", cache=False)
    assert dearer.weighted_rmse == pytest.approx(found.weighted_rmse / 2.0, rel=1e-6)


def test_its_release_is_stored_and_has_the_errors_that_were_predicted(found: Plan, tmp_path: Path) -> None:
    records = pd.DataFrame(np.random.default_rng(0).integers(0, SIZES, size=(500, 3)), columns=list("abc"))
    book = Ledger.create(tmp_path / "book")
    book.add_dataset("d", total=BUDGET)
    made = load_measurement(book, measure(found, records, dataset="d", ledger=book).key)
    assert book.status("d").spent == pytest.approx(1.0, abs=1e-6)
    assert verify_ledger(book.path) == ()
    counts = count_marginals(records, SCHEMA, [group.attributes for group in found.workload.groups])
    again = [made, *(measure(found, records, rehearsal=True) for _ in range(80))]
    for number, group in enumerate(found.workload.groups):
        truth = apply_group(group, counts[group.attributes].astype(float), 0, group.count)
        squares = [np.mean((one.values(number) - truth) ** 2 / found.variances(number)) for one in again]
        # where all queries of a group move together the mean of so many squares is off by .16, and never by five of it
        assert abs(np.mean(squares) - 1.0) < 0.8


@pytest.mark.parametrize(
    "options",
    [{"keep": 0.5}, {"solver": "fourier"}, {"objective": "max"}, {"memory_limit": 1e8}, {"time_limit": 0.01}],
    ids=str,
)
def test_it_is_left_where_it_cannot_do_what_is_asked(options: dict[str, Any], few_steps: None) -> None:
    assert type(tuned(asked(), **options)) is Plan


def test_exact_totals_are_kept_space_by_space(few_steps: None) -> None:
    assert type(tuned(asked(SCHEMA.with_facts(invariants=[(["a"], [10] * SIZES[0])])))) is Plan


@pytest.mark.parametrize("family", ["marginal", "prefix"])
def test_what_is_hardly_better_is_left_for_tables_that_can_be_published(family: str) -> None:
    """One table alone is as exact either way but for the rounding of noise."""
    workload = Workload(Schema([Attribute.of_size(name, n) for name, n in zip("abc", (5, 9, 9), strict=True)]))
    made = tuned(workload.add(("a", "b", "c"), family))
    assert type(made) is Plan
    records = pd.DataFrame(np.zeros((9, 3), int), columns=list("abc"))
    assert (measure(made, records, rehearsal=True).publish().table(["a", "b", "c"]) >= 0.0).all()


def test_a_product_says_how_to_get_tables_that_can_be_published(found: Plan) -> None:
    records = pd.DataFrame(np.zeros((9, 3), int), columns=list("abc"))
    with pytest.raises(NotApplicable, match="centers='uniform'"):
        measure(found, records, rehearsal=True).publish()
    again = plan(found.workload, BUDGET, centers="uniform")
    assert (measure(again, records, rehearsal=True).publish().table(("b", "c")) >= 0.0).all()


def test_one_coupled_set_is_no_product(few_steps: None) -> None:
    assert type(tuned(asked().add(("a", "b"), "abs"))) is Plan


def test_it_is_forecast_and_can_be_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    with_it = forecast(asked(), centers="tuned").seconds

    def stop(_: float, text: str) -> None:
        if text == "Strategy for b x c":
            raise Cancelled("enough")

    with pytest.raises(Cancelled):
        tuned(asked(), progress=stop)
    monkeypatch.setattr("engine.mechanisms.querysmasher.PRODUCT", 0)
    assert with_it > forecast(asked(), centers="tuned").seconds
