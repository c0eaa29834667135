"""Properties of every plan, checked by brute force on the full domain."""

import math

import numpy as np
import pytest

from engine.errors import NotAnswerable
from engine.mechanisms import load_plan
from engine.plans.blocks import MAX_RECORDS, STD_PER_SCALE
from engine.plans.table_plan import VARIANCE_TOLERANCE
from tests import oracles

EXACT = 1e-9
# relative error that rounding to the grid and a search with a tolerance may cause
SLACK = 1e-4


def check_privacy(plan, explicit):
    """Compare the privacy cost of the explicit matrices with the plan, by block and in total."""
    # With Laplace noise the epsilons of the blocks add up, with Gaussian noise their squares.
    adds_epsilons = plan.budget.law == "laplace"
    total_pcost = 0.0
    for space, block in plan.blocks.items():
        explicit_pcost = explicit.block_pcost(space)
        # The plan charges for rounding: the sensitivity grows by one grid step per answer. A grid
        # step is at most 2^-30 of the noise scale.
        grid_steps = (
            block.measurements * STD_PER_SCALE["laplace"]
            if adds_epsilons
            else math.sqrt(block.measurements)
        )
        largest_pcost = (math.sqrt(explicit_pcost) * (1 + SLACK / 2) + grid_steps / 2**30) ** 2
        assert explicit_pcost <= block.pcost(plan.max_records) <= largest_pcost, space
        total_pcost += math.sqrt(largest_pcost) if adds_epsilons else largest_pcost
    assert explicit.pcost <= plan.pcost <= plan.budget.pcost
    assert plan.pcost >= plan.budget.pcost * (1 - SLACK)
    assert plan.pcost <= (total_pcost**2 if adds_epsilons else total_pcost)


def check_tight(plan, explicit):
    """Check that the costliest cell of the explicit matrices has the cost of the plan.

    Plans that add the costs of their groups are not checked.
    """
    # By default (charge="groups") the cost of these plans is a sum of costs of different cells.
    if plan.mechanism in ("gaussian", "laplace") and "charge" not in plan.options:
        return
    assert explicit.pcost >= plan.pcost * (1 - SLACK)


def check_variances(plan, explicit, rows):
    """Compare the variances of a plan with least squares on explicit matrices.

    ``rows`` has the query rows of each group.  The least-squares variances are returned, one array
    per group.
    """
    least_squares = [explicit.of_group(i).variances(W) for i, W in enumerate(rows)]
    for i, (W, expected) in enumerate(zip(rows, least_squares, strict=True)):
        variances = plan.variances(i)
        np.testing.assert_allclose(
            variances, expected, rtol=EXACT, atol=1e-12, err_msg=f"group {i}"
        )
        for start, stop in (
            (1, None),
            (0, len(W) // 2),
            (len(W) // 3, len(W) - 1),
            (len(W), None),
            (2, 1),
            (-1, None),
        ):
            np.testing.assert_array_equal(plan.variances(i, start, stop), variances[start:stop])
    return least_squares


def check_summary(plan, variances):
    """Check the total and group figures against the least-squares variances."""
    weights = oracles.query_weights(plan.workload)
    all_variances, table = np.concatenate(variances), plan.by_group()
    assert plan.workload.queries == len(all_variances) == table["queries"].sum()
    assert plan.rmse == pytest.approx(math.sqrt(all_variances.mean()), rel=EXACT)
    assert plan.max_variance == pytest.approx(all_variances.max(), rel=EXACT)
    objective = sum(float(w[w > 0] @ v[w > 0]) for w, v in zip(weights, variances, strict=True))
    assert math.isfinite(objective)
    assert plan.weighted_rmse == pytest.approx(math.sqrt(objective / len(all_variances)), rel=EXACT)
    for i, v in enumerate(variances):
        assert table["attributes"][i] == plan.workload.groups[i].attributes
        assert table["rmse"][i] == pytest.approx(math.sqrt(v.mean()), rel=EXACT, abs=1e-12)
        assert table["max_std"][i] == pytest.approx(math.sqrt(v.max()), rel=EXACT, abs=1e-12)


def check_certificate(plan, best=None):
    """Check the certificate of a plan.

    ``best`` is an interval that contains the smallest error of all plans of the same class.
    """
    certificate = plan.certificate
    assert 0 < certificate.lower_bound <= plan.weighted_rmse
    assert certificate.gap == pytest.approx(
        plan.weighted_rmse / certificate.lower_bound - 1, abs=1e-12
    )
    assert certificate.statement
    assert plan.weighted_rmse * (1 + EXACT) >= oracles.svd_bound(plan.workload, plan.budget.pcost)
    if best is not None:
        # The optimum is accurate to 1e-7, because its computation drops the smallest eigenvalues.
        low, high = best
        assert certificate.lower_bound <= high * (1 + 1e-7)
        assert plan.weighted_rmse >= low * (1 - 1e-7)
        assert certificate.gap >= plan.weighted_rmse / high - 1 - 1e-7


def check_optimal(plan, best):
    """Check that the certified gap is small and the error is near the optimum of another solver."""
    assert plan.certificate.gap <= SLACK
    assert plan.weighted_rmse <= best[1] * (1 + SLACK)


def check_any_query(plan, explicit, rows, seed=0):
    """Check variances and covariances of random queries, and refusals of unanswerable queries.

    ``rows`` has the query rows of each group.  Returns the numbers of answered and of refused
    queries.
    """
    rng, schema = np.random.default_rng(seed), plan.schema
    sizes, names = [a.size for a in schema.attributes], schema.names
    queries_and_rows, answered_rows = [], []
    for group, W in zip(plan.workload.groups, rows, strict=True):
        queries_and_rows.append((group.attributes, rng.integers(-3, 4, len(W)) @ W))
    for k in range(len(names) + 1):
        chosen = tuple(rng.permutation(names)[:k])
        coefficients = rng.standard_normal(
            [n if name in chosen else 1 for name, n in zip(names, sizes, strict=True)]
        )
        queries_and_rows.append((chosen, np.broadcast_to(coefficients, sizes).ravel()))
    queries = []
    # Several components of a plan can have the smallest variance, up to VARIANCE_TOLERANCE. The
    # first of these components answers the query. With very many records, rounding to a coarse grid
    # causes such small differences.
    tolerance = VARIANCE_TOLERANCE if plan.max_records > MAX_RECORDS else 1e-8
    all_rows = np.array([row for _, row in queries_and_rows]).reshape(
        len(queries_and_rows), math.prod(sizes)
    )
    for (attributes, row), answered, expected in zip(
        queries_and_rows, explicit.answers(all_rows), explicit.variances(all_rows), strict=True
    ):
        table = row.reshape(sizes)[
            tuple(slice(None) if name in attributes else 0 for name in names)
        ]
        order = [name for name in names if name in attributes]
        tensor = table.transpose([order.index(name) for name in attributes])
        if answered:
            queries.append((attributes, tensor))
            answered_rows.append(row)
            assert plan.variance_of(attributes, tensor) == pytest.approx(
                expected, rel=tolerance, abs=1e-12
            )
            if len(attributes) > 1:
                backwards = plan.variance_of(attributes[::-1], tensor.transpose())
                assert backwards == pytest.approx(expected, rel=tolerance, abs=1e-12)
        else:
            with pytest.raises(NotAnswerable):
                plan.variance_of(attributes, tensor)
    expected = explicit.covariance(
        np.array(answered_rows).reshape(len(answered_rows), math.prod(sizes))
    )
    np.testing.assert_allclose(
        plan.covariance(queries), expected, rtol=1e-8, atol=1e-9 * np.max(expected, initial=1e-3)
    )
    return len(answered_rows), len(queries_and_rows) - len(answered_rows)


def check_round_trip(plan):
    """Check that a plan read from JSON has equal text, hash, numbers and matrices."""
    text = plan.to_json()
    loaded = load_plan(text)
    assert loaded.to_json() == text
    assert loaded.hash == plan.hash
    assert loaded.rmse == plan.rmse
    assert loaded.pcost == plan.pcost
    assert loaded.certificate == plan.certificate
    assert list(loaded.blocks) == list(plan.blocks)
    for i in range(len(plan.workload.groups)):
        np.testing.assert_array_equal(loaded.variances(i), plan.variances(i))
    for space, block in plan.blocks.items():
        loaded_block = loaded.blocks[space]
        assert (loaded_block.noise, loaded_block.grid, loaded_block.attributes) == (
            block.noise,
            block.grid,
            block.attributes,
        )
        for (axes, strategy), (loaded_axes, loaded_strategy) in zip(
            block.factors, loaded_block.factors, strict=True
        ):
            assert axes == loaded_axes
            np.testing.assert_array_equal(strategy.rows, loaded_strategy.rows)
