"""A workload with many query families, and a check of results by enumerating all queries."""

from __future__ import annotations

import math

import numpy as np
import pytest

from engine.analysis import tolerance_for
from engine.analysis.error_targets import share_within
from engine.plans import Plan
from engine.privacy import Budget
from engine.workload import Attribute, Schema, Workload
from engine.workload.families import Random

ONE = Budget(pcost=1.0)
SCHEMA = Schema(
    [
        Attribute.numeric("age", [0, 18, 30, 45, 65, 90]),
        Attribute.categorical("sex", ["F", "M"]),
        Attribute.of_size("code", 4),
    ]
)
WORKLOAD = (
    Workload.all_ways(SCHEMA, ways=(1, 2, 3))
    .add((), "total")
    .add(("age",), "range", weight=2.0)
    .add(("age", "code"), "affine")
    .add(("age", "code"), {"age": "range", "code": "marginal"})
    .add(("sex", "code"), Random(p=0.6, count=5, seed=4))
)

SHARES = (1e-9, 0.01, 0.1, 0.5, 0.9, 0.95, 0.999, 1.0)


def sorted_errors(plan: Plan, targets: list[float] | None = None) -> np.ndarray:
    """Return the sorted standard errors of all queries, each divided by the target of its group.

    Without ``targets`` the errors are not divided.
    """
    targets = targets or [1.0] * len(plan.workload.groups)
    return np.sort(np.concatenate([np.sqrt(plan.variances(i)) / t for i, t in enumerate(targets)]))


def check_shares_and_tolerances(plan: Plan) -> None:
    """Check `share_within` and `tolerance_for` against the standard errors of all queries.

    `share_within` returns the share of queries whose error is at most a tolerance.
    `tolerance_for` returns the smallest tolerance within which a given share of the queries is.
    """
    errors = sorted_errors(plan)
    tolerances = [tolerance_for(plan, share) for share in SHARES]
    assert tolerances == pytest.approx(
        [errors[math.ceil(share * len(errors) * (1 - 1e-12)) - 1] for share in SHARES], rel=1e-12
    )
    # The factors 1 - 1e-12 and 1 + 1e-12 allow for rounding errors.
    for share, tolerance in zip(SHARES, tolerances, strict=True):
        if math.isfinite(tolerance):
            exact_share = (errors <= tolerance * (1 + 1e-12)).mean()
            assert exact_share >= share
            assert share_within(plan, tolerance) == exact_share
        assert (errors < tolerance * (1 - 1e-12)).mean() < share
    assert share_within(plan, errors[0] / 2) == 0.0
    above_finite_errors = 1e49
    assert share_within(plan, above_finite_errors) == np.isfinite(errors).mean()
    targets = [1.0 + i for i in range(len(plan.workload.groups))]  # one per group
    assert share_within(plan, targets) == (sorted_errors(plan, targets) <= 1 + 1e-12).mean()
