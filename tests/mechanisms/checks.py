"""What must be true of every plan, by brute force on the full domain; that each check can fail is in test_checks."""

import math

import numpy as np
import pytest

from engine.errors import NotAnswerable
from engine.mechanisms import load_plan
from engine.plans.blocks import DEVIATION, MAX_RECORDS
from engine.plans.table_plan import SAME
from tests import oracles

EXACT = 1e-9
SLACK = 1e-4  # what rounding to the grid and a stopped search may cost


def check_privacy(made, explicit):
    """The explicit matrices cost what the plan states, block by block, and that is the budget up to rounding."""
    epsilons = made.budget.law == "laplace"  # epsilons of Laplace noise add up, costs of Gaussian noise do
    together = 0.0
    for space, block in made.blocks.items():
        part = explicit.block_pcost(space)
        # every answer is charged a grid step, at most 2^-30 of the noise: in L1 or Euclidean norm, over its scale
        steps = block.measurements * DEVIATION["laplace"] if epsilons else math.sqrt(block.measurements)
        most = (math.sqrt(part) * (1 + SLACK / 2) + steps / 2**30) ** 2
        assert part <= block.pcost(made.max_records) <= most, space
        together += math.sqrt(most) if epsilons else most
    assert explicit.pcost <= made.pcost <= made.budget.pcost
    assert made.pcost >= made.budget.pcost * (1 - SLACK)
    assert made.pcost <= (together**2 if epsilons else together)


def check_tight(made, explicit):
    """Some single record really costs the stated budget: the noise is not merely safe.

    The option charge="groups" adds up the costs of the groups, so no single record need cost the sum.
    """
    if made.mechanism in ("gaussian", "laplace") and "charge" not in made.options:
        return
    assert explicit.pcost >= made.pcost * (1 - SLACK)


def check_variances(made, explicit, rows):
    """Variances of all queries, in order, are those of least squares on the explicit matrices, which are returned."""
    least_squares = [explicit.of_group(i).variances(W) for i, W in enumerate(rows)]
    for i, (W, expected) in enumerate(zip(rows, least_squares, strict=True)):
        found = made.variances(i)
        np.testing.assert_allclose(found, expected, rtol=EXACT, atol=1e-12, err_msg=f"group {i}")
        for start, stop in ((1, None), (0, len(W) // 2), (len(W) // 3, len(W) - 1), (len(W), None), (2, 1), (-1, None)):
            np.testing.assert_array_equal(made.variances(i, start, stop), found[start:stop])
    return least_squares


def check_summary(made, variances):
    """Figures of the whole and of every group follow from the variances by least squares."""
    weights = oracles.query_weights(made.workload)
    together, table = np.concatenate(variances), made.by_group()
    assert made.workload.queries == len(together) == table["queries"].sum()
    assert made.rmse == pytest.approx(math.sqrt(together.mean()), rel=EXACT)
    assert made.max_variance == pytest.approx(together.max(), rel=EXACT)
    objective = sum(float(w[w > 0] @ v[w > 0]) for w, v in zip(weights, variances, strict=True))
    assert math.isfinite(objective)
    assert made.weighted_rmse == pytest.approx(math.sqrt(objective / len(together)), rel=EXACT)
    for i, v in enumerate(variances):
        assert table["attributes"][i] == made.workload.groups[i].attributes
        assert table["rmse"][i] == pytest.approx(math.sqrt(v.mean()), rel=EXACT, abs=1e-12)
        assert table["max_std"][i] == pytest.approx(math.sqrt(v.max()), rel=EXACT, abs=1e-12)


def check_certificate(made, best=None):
    """The bound is below the plan, the plan above what nothing can beat; ``best`` is an interval of the optimum."""
    certificate = made.certificate
    assert 0 < certificate.lower_bound <= made.weighted_rmse
    assert certificate.gap == pytest.approx(made.weighted_rmse / certificate.lower_bound - 1, abs=1e-12)
    assert certificate.statement
    assert made.weighted_rmse * (1 + EXACT) >= oracles.svd_bound(made.workload, made.budget.pcost)
    if best is not None:
        # the oracle drops eigenvalues below 1e-14 of the largest, so its own ends are good to 1e-7
        low, high = best
        assert certificate.lower_bound <= high * (1 + 1e-7)
        assert made.weighted_rmse >= low * (1 - 1e-7)
        assert certificate.gap >= made.weighted_rmse / high - 1 - 1e-7


def check_optimal(made, best):
    """The certified gap is small, and an independent solver finds the same optimum."""
    assert made.certificate.gap <= SLACK
    assert made.weighted_rmse <= best[1] * (1 + SLACK)


def check_any_query(made, explicit, rows, seed=0):
    """Any query on any attributes is answered with its exact variance, or refused when it was not measured."""
    rng, schema = np.random.default_rng(seed), made.schema
    sizes, names = [a.size for a in schema.attributes], schema.names
    asked, full = [], []
    for group, W in zip(made.workload.groups, rows, strict=True):
        asked.append((group.attributes, rng.integers(-3, 4, len(W)) @ W))
    for k in range(len(names) + 1):
        chosen = tuple(rng.permutation(names)[:k])
        inside = rng.standard_normal([n if name in chosen else 1 for name, n in zip(names, sizes, strict=True)])
        asked.append((chosen, np.broadcast_to(inside, sizes).ravel()))
    queries = []
    # of components whose variances differ by the rounding to a coarse grid alone, any may answer
    close = SAME if made.max_records > MAX_RECORDS else 1e-8
    every = np.array([row for _, row in asked]).reshape(len(asked), math.prod(sizes))
    for (attributes, row), answered, expected in zip(
        asked, explicit.answers(every), explicit.variances(every), strict=True
    ):
        table = row.reshape(sizes)[tuple(slice(None) if name in attributes else 0 for name in names)]
        kept = [name for name in names if name in attributes]
        tensor = table.transpose([kept.index(name) for name in attributes])
        if answered:
            queries.append((attributes, tensor))
            full.append(row)
            assert made.variance_of(attributes, tensor) == pytest.approx(expected, rel=close, abs=1e-12)
            if len(attributes) > 1:
                backwards = made.variance_of(attributes[::-1], tensor.transpose())
                assert backwards == pytest.approx(expected, rel=close, abs=1e-12)
        else:
            with pytest.raises(NotAnswerable):
                made.variance_of(attributes, tensor)
    expected = explicit.covariance(np.array(full).reshape(len(full), math.prod(sizes)))
    np.testing.assert_allclose(
        made.covariance(queries), expected, rtol=1e-8, atol=1e-9 * np.max(expected, initial=1e-3)
    )
    return len(full), len(asked) - len(full)


def check_round_trip(made):
    """JSON gives back the same plan: same text, same hash, same numbers, same matrices."""
    text = made.to_json()
    again = load_plan(text)
    assert again.to_json() == text
    assert again.hash == made.hash
    assert again.rmse == made.rmse
    assert again.pcost == made.pcost
    assert again.certificate == made.certificate
    assert list(again.blocks) == list(made.blocks)
    for i in range(len(made.workload.groups)):
        np.testing.assert_array_equal(again.variances(i), made.variances(i))
    for space, block in made.blocks.items():
        mine = again.blocks[space]
        assert (mine.noise, mine.grid, mine.attributes) == (block.noise, block.grid, block.attributes)
        for (axes, strategy), (axes_again, strategy_again) in zip(block.factors, mine.factors, strict=True):
            assert axes == axes_again
            np.testing.assert_array_equal(strategy.rows, strategy_again.rows)
