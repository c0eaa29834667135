"""Plans with aim="published", whose weights come from a public reference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from engine.errors import Cancelled, NotApplicable, PlanError
from engine.mechanisms import load_plan, plan
from engine.postprocess import publication_weights as aim
from engine.postprocess.publication_weights import weighed_for_publishing
from engine.postprocess.uncertainty import simulate_measurement
from engine.privacy import Budget
from engine.workload import Attribute, Schema, Workload
from tests.publish.measured import SCHEMA, people

PAIRS = Workload.all_ways(SCHEMA, (1, 2), family="marginal")
BUDGET = Budget(pcost=0.02)
TABLE = people(SCHEMA, 3_000, 1)


@pytest.fixture(autouse=True)
def small_search(monkeypatch):
    """Reduce candidates and rehearsals to keep tests short."""
    for name, value in {"QUERY_POWERS": (0.0, 0.75), "SIGNAL_POWERS": (0.5,)}.items():
        monkeypatch.setattr(aim, name, value)
    monkeypatch.setattr(aim, "REHEARSALS", (1, 1))


def records(schema=SCHEMA, table=TABLE):
    counts = table(schema.names).astype(int)
    return pd.DataFrame(
        np.repeat(np.argwhere(counts >= 0), counts.ravel(), axis=0), columns=list(schema.names)
    )


def test_published_aim_reduces_error_of_fitted_tables():
    """The reference and the measured records are different samples of one population."""
    wide = Schema([Attribute.of_size(name, n) for name, n in zip("abc", (100, 50, 2), strict=True)])
    pairs, table = Workload.all_ways(wide, (1, 2), family="marginal"), people(wide, 20_000, 1)
    shares = table(wide.names)
    other = (
        np.random.default_rng(5).multinomial(20_000, shares.ravel() / 20_000).reshape(shares.shape)
    )
    counted = records(wide, lambda names: other)

    def mean_error(**aim):
        weighted_plan = plan(pairs, Budget(pcost=0.003), "residualplanner", **aim)
        releases = [
            simulate_measurement(weighted_plan, table, np.random.default_rng(100 + seed)).publish()
            for seed in range(2)
        ]
        sets = [g.attributes for g in pairs.groups if len(g.attributes) == 2]
        return np.mean(
            [np.abs(f.table(names) - table(names)).sum() for f in releases for names in sets]
        )

    assert mean_error(aim="published", reference=counted) < 0.95 * mean_error()


def test_published_aim_weights_survive_the_plan_file():
    weighted_plan = plan(PAIRS, BUDGET, "residualplanner", aim="published", reference=records())
    weights = {g.attributes: g.weight for g in weighted_plan.workload.groups}
    assert weights["c",] > weights["a",] > weights["a", "b"]  # fewer cells
    assert load_plan(weighted_plan.to_json()).hash == weighted_plan.hash
    assert weighted_plan.pcost <= BUDGET.pcost
    by_hand = weighed_for_publishing(PAIRS, BUDGET, records(), "residualplanner")
    assert by_hand.to_json() == weighted_plan.workload.to_json()
    total_weight = sum(g.weight * g.count for g in weighted_plan.workload.groups)
    assert total_weight == pytest.approx(PAIRS.queries)


def test_published_aim_leaves_zero_weights_at_zero():
    groups = [
        replace(g, weight=0.0 if g.attributes == ("a", "b") else g.weight) for g in PAIRS.groups
    ]
    weighted = weighed_for_publishing(
        Workload(SCHEMA, tuple(groups)), BUDGET, records(), "residualplanner"
    )
    assert [g.attributes for g in weighted.groups if g.weight == 0.0] == [("a", "b")]


def test_published_aim_accepts_earlier_release_as_reference():
    earlier = simulate_measurement(
        plan(PAIRS, BUDGET, "residualplanner"), TABLE, np.random.default_rng(0)
    ).publish()
    workload = Workload(SCHEMA).add(("b", "a"), "marginal").add(("c",), "prefix").add((), "total")
    weighted_plan = plan(workload, BUDGET, aim="published", reference=earlier)
    assert {g.attributes for g in weighted_plan.workload.groups} == {("b", "a"), ("c",), ()}


def test_published_aim_with_bad_arguments_is_refused():
    earlier = simulate_measurement(
        plan(PAIRS, BUDGET, "residualplanner"), TABLE, np.random.default_rng(0)
    )
    small = Schema([Attribute.of_size("a", 9), Attribute.of_size("z", 2)])
    with pytest.raises(PlanError, match="needs a reference"):
        plan(PAIRS, BUDGET, aim="published")
    with pytest.raises(PlanError, match='aim "published" alone'):
        plan(PAIRS, BUDGET, reference=records())
    with pytest.raises(PlanError, match="aim"):
        plan(PAIRS, BUDGET, aim="publish", reference=records())
    with pytest.raises(PlanError, match="no negative cells"):
        plan(PAIRS, BUDGET, aim="published", reference=earlier.publish("none"))
    with pytest.raises(PlanError, match="other attributes"):
        plan(Workload(small).add(("z",)), BUDGET, aim="published", reference=earlier.publish())
    with pytest.raises(PlanError, match="no record"):
        plan(PAIRS, BUDGET, aim="published", reference=records()[:0])
    with pytest.raises(PlanError, match="objective"):
        plan(PAIRS, BUDGET, aim="published", reference=records(), objective="max")
    with pytest.raises(NotApplicable, match="residual spaces"):
        plan(PAIRS, BUDGET, "identity", aim="published", reference=records())
    with pytest.raises(Cancelled):
        plan(
            PAIRS, BUDGET, aim="published", reference=records(), progress=lambda share, words: False
        )
