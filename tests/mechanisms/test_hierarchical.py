"""Hierarchical strategies and data cubes against explicit matrices."""

import itertools
import math

import numpy as np
import pytest

from engine.errors import PlanError, WorkloadError
from engine.mechanisms.baselines import data_cube, marginals_error
from engine.mechanisms.hierarchical import (
    branching_factor,
    error,
    greedy_hierarchy,
    hb,
    hierarchy,
    identity,
    quadtree,
    sensitivity,
    wavelet,
)
from engine.workload.families import family

SIZES = (1, 2, 3, 5, 8, 13, 16, 31)
STRATEGIES = {
    "identity": identity,
    "H2": hierarchy,
    "three branches without root": lambda n: hierarchy(n, 3, root=False),
    "HB, Laplace": hb,
    "HB, Gaussian": lambda n: hb(n, "gaussian"),
    "wavelet": wavelet,
    "quadtree": lambda n: quadtree((n, 3)),
    "GreedyH, Laplace": lambda n: greedy_hierarchy(family("range").gram((n,))),
    "GreedyH, Gaussian": lambda n: greedy_hierarchy(family("prefix").gram((n,)), "gaussian"),
}


def brute_error(rows, W, noise):
    """Return the sum of the query variances with noise proportional to the sensitivity."""
    columns = rows.T.tolist()
    norms = [
        sum(abs(v) for v in c) if noise == "laplace" else math.sqrt(sum(v * v for v in c))
        for c in columns
    ]
    return max(norms) ** 2 * np.sum((W @ np.linalg.pinv(rows)) ** 2)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("name", STRATEGIES)
def test_strategy_least_squares_recovers_table(name, n):
    rows = STRATEGIES[name](n)
    x = np.random.default_rng(n).standard_normal(rows.shape[1])
    np.testing.assert_allclose(np.linalg.lstsq(rows, rows @ x, rcond=None)[0], x, atol=1e-9)


@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
@pytest.mark.parametrize("n", [1, 5, 12])
@pytest.mark.parametrize("name", STRATEGIES)
def test_error_matches_pseudo_inverse(name, n, noise):
    rows = STRATEGIES[name](n)
    W = np.random.default_rng(n).integers(-1, 3, (7, rows.shape[1])).astype(float)
    assert error(rows, W.T @ W, noise) == pytest.approx(brute_error(rows, W, noise), rel=1e-9)


@pytest.mark.parametrize("n", SIZES)
def test_sensitivity_matches_published_column_norms(n):
    depth = math.ceil(math.log2(n)) if n > 1 else 0
    for rows in (hierarchy(n), wavelet(n)):
        assert sensitivity(rows, "laplace") == depth + 1
        assert sensitivity(rows, "gaussian") == pytest.approx(math.sqrt(depth + 1))
    np.testing.assert_array_equal(np.abs(identity(n)).sum(axis=0), 1)
    for noise in ("laplace", "gaussian"):
        rows = greedy_hierarchy(family("range").gram((n,)), noise)
        norms = rows.sum(axis=0) if noise == "laplace" else np.sum(rows**2, axis=0)
        np.testing.assert_allclose(norms, 1, rtol=1e-9)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("branching", [2, 3, 4])
def test_hierarchy_rows_form_balanced_tree(n, branching):
    rows = hierarchy(n, branching)
    nodes = {tuple(np.flatnonzero(row)) for row in rows}  # the cells that each row counts
    assert len(nodes) == len(rows)
    root, leaves = tuple(range(n)), [(cell,) for cell in range(n)]
    assert {root, *leaves} <= nodes
    for node in nodes:
        assert node == tuple(range(node[0], node[-1] + 1))
        if len(node) > 1:
            below = [cells for cells in nodes if set(cells) < set(node)]
            children = [
                cells for cells in below if not any(set(cells) < set(larger) for larger in below)
            ]
            assert sorted(itertools.chain(*children)) == list(node)
            assert len(children) == min(branching, len(node))
            assert max(map(len, children)) - min(map(len, children)) <= 1
    assert len(hierarchy(n, branching, root=False)) == max(len(rows) - 1, 1)


def test_wavelet_power_of_two_has_orthogonal_rows():
    rows = wavelet(16)
    np.testing.assert_allclose(rows @ rows.T, np.diag(np.sum(rows**2, axis=1)), atol=1e-12)


@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
@pytest.mark.parametrize("n", [64, 216, 256])
def test_branching_factor_is_close_to_best(n, noise):
    """Compare `branching_factor` with all factors that give a full tree of n cells."""
    gram = family("range").gram((n,))
    full = [b for b in range(2, n + 1) if any(b**h == n for h in range(1, 10))]
    errors = {b: error(hierarchy(n, b, root=False), gram, noise) for b in full}
    chosen = error(hb(n, noise), gram, noise)
    assert chosen <= 1.25 * min(errors.values())
    assert chosen <= error(identity(n), gram, noise)
    assert 2 <= branching_factor(n, noise) <= n


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_greedy_hierarchy_is_not_worse_than_published_rule(seed, noise):
    rng = np.random.default_rng(seed)
    W = rng.integers(0, 2, (9, int(rng.integers(2, 20)))).astype(float)
    gram = W.T @ W
    published = greedy_hierarchy(gram, noise, squared=True, discount=0.5**0.5)
    published_error = brute_error(published, W, noise)
    assert brute_error(greedy_hierarchy(gram, noise), W, noise) <= published_error * (1 + 1e-9)


def explicit_marginals(sizes, sets):
    """Return the query matrix of one marginal per set of axes in ``sets``."""
    one = {True: np.eye, False: lambda n: np.ones((1, n))}
    out = []
    for axes in sets:
        rows = np.ones((1, 1))
        for i, n in enumerate(sizes):
            rows = np.kron(rows, one[i in axes](n))
        out.append(rows)
    return np.concatenate(out)


@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
@pytest.mark.parametrize(
    ("requested", "measured"),
    [
        ([(0,), (1,), (2,)], [(0, 1), (1, 2)]),
        ([(), (0,), (0, 1), (0, 1, 2)], [(0, 1, 2)]),
        ([(0, 2), (1,)], [(0, 2), (1, 2), (1,)]),
        ([()], [(1,)]),
    ],
)
def test_marginals_error_matches_explicit_rows(requested, measured, noise):
    sizes = (2, 3, 4)
    A, W = explicit_marginals(sizes, measured), explicit_marginals(sizes, requested)
    assert marginals_error(sizes, requested, measured, noise) == pytest.approx(
        brute_error(A, W, noise), rel=1e-9
    )


@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
@pytest.mark.parametrize("limit", [None, 1, 4, 10_000])
def test_data_cube_covers_requested_marginals(limit, noise):
    sizes = (2, 3, 4, 1)
    requested = [axes for k in range(4) for axes in itertools.combinations(range(4), k)]
    chosen = data_cube(sizes, requested, noise, limit=limit)
    for axes in requested:
        # how many measured cells are added up for a cell of the requested marginal
        summed_cells = [
            math.prod(sizes[axis] for axis in measured if axis not in axes)
            for measured in chosen
            if set(axes) <= set(measured)
        ]
        assert summed_cells
        assert min(summed_cells) <= (limit or 10_000)
    assert set(chosen) <= set(requested)
    if limit is None:
        chosen_error = marginals_error(sizes, requested, chosen, noise)
        for other_limit in (1, 2, 4, 6, 24):
            other = data_cube(sizes, requested, noise, limit=other_limit)
            assert chosen_error <= marginals_error(sizes, requested, other, noise) * (1 + 1e-9)


def test_marginals_error_of_unmeasured_marginal_is_infinite():
    assert marginals_error((2, 3), [(0, 1)], [(0,), (1,)], "gaussian") == math.inf


@pytest.mark.parametrize(
    "call",
    [
        lambda: identity(0),
        lambda: wavelet(2.5),
        lambda: quadtree((2, 0)),
        lambda: greedy_hierarchy(np.ones((2, 3))),
        lambda: greedy_hierarchy(np.array([[math.nan]])),
        lambda: data_cube((2, 3), []),
        lambda: data_cube((2, 3), [(2,)]),
    ],
)
def test_strategy_invalid_workload_is_refused(call):
    with pytest.raises(WorkloadError, match="Give"):
        call()


@pytest.mark.parametrize(
    "call", [lambda: hierarchy(4, 1), lambda: sensitivity(np.eye(2), "uniform")]
)
def test_strategy_invalid_option_is_refused(call):
    with pytest.raises(PlanError, match=r"Give|Choose"):
        call()
