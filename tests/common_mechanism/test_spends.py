"""Exact division of the cost of a plan between the two stages of a release."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import engine.common_mechanism.common_plan
from engine.common_mechanism.common_mechanism import CommonMechanism, LinearMechanism, exact_split
from engine.common_mechanism.common_plan import coarse_or_fine, nested_choices
from engine.errors import PlanError
from engine.mechanisms import plan
from engine.plans.blocks import joint_pcost
from engine.privacy import Budget
from tests.common_mechanism.matrices import exact, mechanism
from tests.common_mechanism.plans import make_plan, ways


@settings(max_examples=40, deadline=None)
@given(st.floats(1e-4, 1e3), st.floats(0.3, 3), st.floats(1, 1e8))
def test_spends_sum_exactly_to_mechanism_cost(variance, cell_ratio, total_ratio):
    """Two mechanisms measure different cells, and the total with the same large variance."""
    total_variance = variance * total_ratio
    pair = CommonMechanism(
        LinearMechanism([[1, 0, 0], [1, 1, 1]], np.diag([variance, total_variance])),
        LinearMechanism([[0, 1, 0], [1, 1, 1]], np.diag([variance * cell_ratio, total_variance])),
    )
    assert pair.common.pcost == pytest.approx(1 / total_variance, rel=1e-9)
    for (first, second), M in zip(pair.spends, pair.mechanisms, strict=True):
        assert exact(first) + exact(second) == exact(M.pcost)
        assert second >= 0
        assert first >= pair.common.pcost or first == M.pcost


def test_spends_of_distant_costs_are_refused():
    pair = CommonMechanism(mechanism(np.eye(2)), mechanism(np.eye(2), 3e7))
    with pytest.raises(PlanError, match="cannot be split into the cost"):
        _ = pair.spends


@pytest.mark.parametrize(
    "pcosts", [(1.0, 0.9999999999999998), (0.1, 0.30000000000000004), (0.7000000000000001, 1e-1)]
)
def test_exact_split_sums_as_decimals(pcosts):
    for look in (1 / 3 * min(pcosts), 0.09999, 1e-9):
        for (first, second), total in zip(
            exact_split(look, pcosts, has_residual=[True] * 2), pcosts, strict=True
        ):
            assert exact(first) + exact(second) == exact(total)
            assert look <= first < look + 1e-11 * max(pcosts)
    with pytest.raises(PlanError, match="cannot be split into the cost"):
        exact_split(1.0, pcosts, has_residual=[True, True])


@pytest.fixture
def multiply_joint_cost(monkeypatch):
    """Return a function that patches the joint cost of stages.

    ``patch(parts, factor)`` multiplies the joint cost by ``factor`` if at least ``parts`` stages
    are passed to it.
    """

    def patch(parts, factor=1.5):
        real = engine.common_mechanism.common_plan.joint_pcost

        def more(blocks, records):
            return real(blocks, records) * (factor if len(blocks) >= parts else 1.0)

        monkeypatch.setattr(engine.common_mechanism.common_plan, "joint_pcost", more)

    return patch


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("factor", [1.5, 1.0 + 1e-4, 1.0 + 1e-7])
def test_stretch_covers_joint_cost_of_parts(multiply_joint_cost, rows, factor):
    budget = Budget(pcost=1.0, rows_per_person=rows)
    options = [plan(ways((3, 2, 2), k), budget) for k in (1, 2)]
    assert coarse_or_fine(*options).stretch == pytest.approx(1.0, abs=1e-8)
    multiply_joint_cost(2, factor)
    assert coarse_or_fine(*options).stretch == pytest.approx(math.sqrt(factor), abs=1e-8)


@pytest.mark.parametrize("caps", [(10_000, 10**8), (10**8, 10_000)])
def test_parts_use_smallest_max_records(caps):
    options = [
        plan(ways((3, 2, 2), k), Budget(pcost=1.0), max_records=n)
        for k, n in zip((1, 2), caps, strict=True)
    ]
    common = coarse_or_fine(*options)
    for part in (common.look, *common.residuals):
        assert part.max_records == 10_000
    for residual, option in zip(common.residuals, options, strict=True):
        assert joint_pcost([common.look.blocks, residual.blocks], 10_000) <= option.pcost


def test_stretch_covers_joint_cost_of_chain(multiply_joint_cost, monkeypatch):
    options = [make_plan(ways((3, 2, 2), k)) for k in (1, 2, 3)]
    assert nested_choices(*options).stretch == pytest.approx(1.0, abs=1e-8)
    multiply_joint_cost(3, 1.0 + 1e-4)
    assert nested_choices(*options).stretch == pytest.approx(math.sqrt(1.0 + 1e-4), abs=1e-8)
    monkeypatch.setattr(engine.common_mechanism.common_plan, "MAX_STRETCH_STEPS", 1)
    with pytest.raises(PlanError, match="every stage rounds"):
        nested_choices(*options)
