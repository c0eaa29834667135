"""Windows beside prefixes, suffixes and the marginal of a wide attribute, without matrices."""

import numpy as np
import pandas as pd
import pytest

from engine import Attribute, Budget, Schema, Width, Workload, plan
from engine.errors import LimitExceeded
from engine.mechanisms import forecast, load_plan
from engine.release import measure
from engine.residuals import (
    DualProblem,
    Factor,
    Lift,
    Options,
    decomposition,
    operators,
    subworkload_solver,
)
from engine.residuals.alternating_search import AlternatingSearch
from engine.residuals.basis import basis
from engine.residuals.window_solver import WindowGram, WindowSpace, evaluate, solve
from engine.residuals.window_strategy import MixMatrices, WindowMixStrategy

# Pairs (cells, width). They cover all ways in which `window_solver` eliminates nodes: in their
# order, in their order up to the middle, and those with equal remainders together.
SHAPES = [(130, 7), (131, 24), (60, 25), (60, 3), (171, 17)]
# weights of windows, prefixes and cells
WEIGHTS = [(1.0, 0.3, 2.0), (2.5, 1.0, 0.0), (0.7, 0.0, 1.3), (1.0, 1e-4, 0.0), (1e-3, 1.0, 1.0)]


def rows_and_weights(gram):
    """Return the windows, the prefixes and the cells as unweighted rows, and their weights."""
    n, first = gram.cells, np.arange(gram.count)[:, None]
    cell = np.arange(n)
    windows = (cell >= first) & (cell < first + gram.width)
    rows = np.concatenate([windows, np.tri(n), np.eye(n)]).astype(float)
    return rows, np.repeat([gram.weight, gram.prefix, gram.marginal], [gram.count, n, n])


def spaces_of_mixes(cells, width):
    """Yield every mix on the whole attribute, with the total, and for two centers."""
    rng = np.random.default_rng(cells)
    center = rng.random(cells) - 0.2
    center /= center.sum()
    for weight, prefix, marginal in WEIGHTS:
        gram = WindowGram(
            cells=cells, width=width, weight=weight, prefix=prefix, marginal=marginal, total=0.3
        )
        yield WindowSpace(gram=gram)
        yield WindowSpace(gram=gram, center=center)
        yield WindowSpace(gram=gram, whole=True)


def random_weights(space):
    mass = np.random.default_rng(space.cells).random(space.cells) + 0.1
    mass = mass + mass[::-1] if space.is_symmetric else mass
    return mass / mass.sum()


def cell_costs_and_variances(space, mass):
    """Return the privacy cost of every cell and the variance of every query, with matrices."""
    rows, row_weights = rows_and_weights(space.gram)
    if not space.whole:
        rows = rows - (rows @ space.pi)[:, None]
    measured = np.sqrt(row_weights)[:, None] * rows
    if space.whole:
        measured = np.concatenate([measured, np.full((1, space.cells), np.sqrt(space.gram.total))])
    squares, U = np.linalg.eigh((measured * mass) @ measured.T)
    positive = squares > 1e-12 * squares[-1]
    half, U = np.sqrt(squares[positive]), U[:, positive]
    costs = np.sum((U.T @ measured) ** 2 / half[:, None], axis=0)
    root = U * half @ U.T
    estimates = rows @ np.linalg.pinv(measured, rcond=1e-10)
    return costs, np.sum((estimates @ root) * estimates, axis=1) * costs.max()


@pytest.mark.parametrize(("cells", "width"), SHAPES)
def test_evaluation_equals_dense_formulas(cells, width):
    for space in spaces_of_mixes(cells, width):
        weights = random_weights(space)
        costs, variances = cell_costs_and_variances(space, weights)
        solution = evaluate(space, weights)
        np.testing.assert_allclose(solution.norms, costs, rtol=1e-8, err_msg=str(space.gram))
        np.testing.assert_allclose(
            np.concatenate(solution.variances), variances, rtol=1e-6, atol=1e-9 * variances.max()
        )
        if not space.whole:
            assert solution.total_variance(space.gram) == pytest.approx(solution.value, rel=1e-8)


def test_network_of_prefixes_with_the_total_is_not_symmetric():
    def network(whole: bool, **families):
        gram = WindowGram(cells=100, width=5, **families)
        return WindowSpace(gram=gram, whole=whole).symmetric_network

    assert network(whole=True, prefix=1.0) is None
    assert network(whole=False, prefix=1.0, marginal=2.0) is not None
    assert network(whole=False, marginal=2.0) is not None
    assert network(whole=True, marginal=2.0) is not None


def test_total_square_and_product_equal_matrices():
    gram = WindowGram(cells=30, width=4, weight=0.5, prefix=2.0, marginal=3.0, total=0.7)
    rows, row_weights = rows_and_weights(gram)
    table = np.random.default_rng(0).random(30)
    expected = row_weights @ (rows @ table) ** 2 + 0.7 * table.sum() ** 2
    assert gram.total_square(table) == pytest.approx(expected)
    np.testing.assert_allclose(gram.product(table), rows.T @ (row_weights * (rows @ table)))
    # `normalized` divides all weights by that of the windows, 0.5.
    unit = gram.normalized()
    assert (unit.weight, unit.prefix, unit.marginal, unit.total) == (1.0, 4.0, 6.0, 1.4)


@pytest.mark.parametrize("mix", WEIGHTS)
def test_solution_is_as_good_as_dense_search(mix):
    weight, prefix, marginal = mix
    gram = WindowGram(cells=90, width=7, weight=weight, prefix=prefix, marginal=marginal)
    rows, row_weights = rows_and_weights(gram)
    residuals = np.sqrt(row_weights)[:, None] * (rows @ basis(90))
    factor = Factor(sizes=(90,), matrix=residuals.T @ residuals)
    problem = DualProblem(lift=Lift((90,)), factor=factor)
    dense_solution = problem.solution(*problem.maximise(Options(gap=1e-7)))
    solution = solve(WindowSpace(gram=gram), gap=1e-7)
    assert solution.gap <= 1e-7
    assert dense_solution.bound <= solution.value * (1.0 + 1e-9)
    assert solution.value == pytest.approx(dense_solution.value, rel=6e-7)


@pytest.mark.parametrize(("cells", "width"), SHAPES)
def test_strategy_equals_dense_formulas(cells, width):
    for space in spaces_of_mixes(cells, width):
        if space.whole:
            continue
        weights = random_weights(space)
        matrices = MixMatrices(solution=evaluate(space, weights))
        strategy_rows, pinv = matrices.formed
        assert strategy_rows.shape == (cells - 1, cells)
        assert np.all(np.sum(strategy_rows**2, axis=0) <= matrices.column_costs * (1.0 + 1e-14))
        query_rows, _ = rows_and_weights(space.gram)
        components = query_rows @ basis(cells)
        # products with the operator on the right and on the left
        estimates = components @ pinv
        expected = components @ (pinv @ np.eye(cells - 1))
        np.testing.assert_allclose(estimates, expected, rtol=0, atol=1e-8)
        # the estimates are unbiased: they are the components of the queries in the residual space
        residuals = query_rows - (query_rows @ space.pi)[:, None]
        np.testing.assert_allclose(estimates @ strategy_rows, residuals, rtol=0, atol=1e-8)
        _, variances = cell_costs_and_variances(space, weights)
        np.testing.assert_allclose(
            np.sum(estimates**2, axis=1), variances, rtol=1e-5, atol=1e-8 * variances.max()
        )


def mixed_workload(families, cells=120, products=()):
    attributes = [Attribute.of_size("a", cells), Attribute.of_size("b", 3)]
    workload = Workload(Schema(attributes))
    for number, family in enumerate(families):
        workload = workload.add("a", family, weight=1.0 + 0.5 * number)
    for family, family_of_b in products:
        workload = workload.add(("a", "b"), {"a": family, "b": family_of_b})
    return workload


MIXES = [
    (Width(12), "prefix"),
    (Width(7), "marginal"),
    (Width(7), "suffix", "marginal", "prefix"),
]


@pytest.fixture
def wide(monkeypatch):
    """Treat attributes of 100 cells as wide."""
    monkeypatch.setattr(operators, "MIN_WIDE_CELLS", 100)


def build_plan(workload, **options):
    return plan(workload, Budget(pcost=1.0), "querysmasher", cache=False, **options)


def strategy_rows_of_a(plan):
    """Return the strategy rows of the residual space of "a" as a matrix."""
    ((_, strategy),) = plan.blocks["a",].factors
    return np.asarray(strategy.rows)


def plan_by_matrices(workload, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(decomposition, "MAX_WINDOW_SHARE", 0.0)
        return build_plan(workload, centers="uniform")


@pytest.mark.parametrize("families", MIXES)
def test_plan_equals_plan_with_matrices(families, wide, monkeypatch):
    workload = mixed_workload(families)
    result = build_plan(workload, centers="uniform")
    expected = plan_by_matrices(workload, monkeypatch)
    ((_, strategy),) = result.blocks[("a",)].factors
    assert isinstance(strategy, WindowMixStrategy)
    assert result.weighted_rmse == pytest.approx(expected.weighted_rmse, rel=3e-6)
    assert result.certificate.gap < 1e-5
    for i in range(len(families)):
        variances = expected.variances(i)
        np.testing.assert_allclose(result.variances(i), variances, rtol=2e-3)


def test_products_are_planned_without_matrices(wide, monkeypatch):
    def refuse(factor):
        raise AssertionError("a Gram was computed as a matrix")

    # the third lower bound of alternating searches uses matrices if it takes little time
    monkeypatch.setattr(AlternatingSearch, "_product_bound", lambda _: 0.0)
    # small tables would be solved by one dense search on both attributes
    monkeypatch.setattr(subworkload_solver, "MAX_OPTIMAL_SEARCH_S", 0.0)
    monkeypatch.setattr(decomposition.WindowSumFactor, "matrix", property(refuse))
    monkeypatch.setattr(decomposition.DeferredFactor, "matrix", property(refuse))
    products = ((Width(7), "marginal"), ("prefix", "prefix"), ("marginal", "marginal"))
    result = build_plan(mixed_workload((), products=products), centers="uniform")
    ((_, strategy_of_a),) = (f for f in result.blocks["a", "b"].factors if f[0] == (0,))
    assert isinstance(strategy_of_a, WindowMixStrategy)


# products that merge to one product, and products that do not
PRODUCTS = [
    ((Width(7), "marginal"), ("prefix", "marginal")),
    ((Width(7), "marginal"), ("prefix", "prefix"), ("marginal", "marginal")),
]


@pytest.mark.parametrize("products", PRODUCTS)
def test_products_equal_plan_with_matrices(products, wide, monkeypatch):
    workload = mixed_workload((), products=products)
    result = build_plan(workload, centers="uniform")
    expected = plan_by_matrices(workload, monkeypatch)
    assert result.weighted_rmse == pytest.approx(expected.weighted_rmse, rel=1e-5)


@pytest.mark.parametrize("families", MIXES)
def test_stored_plan_is_rebuilt_with_equal_strategy(families, wide):
    result = build_plan(mixed_workload(families), centers="uniform")
    loaded = load_plan(result.to_json())
    assert loaded.weighted_rmse == result.weighted_rmse
    rows, loaded_rows = (strategy_rows_of_a(p) for p in (result, loaded))
    np.testing.assert_array_equal(rows, loaded_rows)


@pytest.mark.parametrize("centers", ["uniform", "tuned"])
def test_plan_stored_with_matrices_is_rebuilt_with_matrices(centers, wide, monkeypatch):
    workload = mixed_workload((Width(12), "prefix"))
    with monkeypatch.context() as patch:
        patch.setattr(decomposition, "MAX_WINDOW_SHARE", 0.0)
        stored = build_plan(workload, centers=centers)
    loaded = load_plan(stored.to_json())
    rows, loaded_rows = (strategy_rows_of_a(p) for p in (stored, loaded))
    np.testing.assert_array_equal(rows, loaded_rows)


def test_release_has_the_predicted_errors(wide):
    result = build_plan(mixed_workload((Width(12), "prefix", "marginal")), centers="uniform")
    records = pd.DataFrame({"a": ["3"] * 50 + ["80"] * 30, "b": ["0"] * 80})
    counts = np.zeros(120)
    counts[3], counts[80] = 50, 30
    prefixes = np.cumsum(counts)
    errors = [
        measure(result, records, rehearsal=True, seed=seed).values(1) - prefixes
        for seed in range(40)
    ]
    ratio = np.mean(np.square(errors)) / np.mean(result.variances(1))
    assert 0.7 < ratio < 1.4


def test_mixes_need_no_memory_of_matrices():
    families = (Width(30), "prefix", "suffix", "marginal")
    products = ((Width(30), "marginal"), ("prefix", "prefix"))
    for workload in (
        mixed_workload(families, cells=10_000),
        mixed_workload((), cells=10_000, products=products),
    ):
        for centers in ("uniform", "tuned"):
            prediction = forecast(workload, "querysmasher", centers=centers)
            assert prediction.seconds < 120.0
            assert prediction.memory < 1e9
    for family in (Width(31), "range"):
        with pytest.raises(LimitExceeded, match="GB"):
            forecast(mixed_workload((Width(30), "prefix", family), 10_000), "querysmasher")


def test_forecast_counts_no_matrices():
    one_width = mixed_workload((Width(30), "prefix"), cells=3_650)
    assert forecast(one_width, "querysmasher").seconds < 3.0
    # windows of two widths need matrices
    two_widths = mixed_workload((Width(30), Width(40), "prefix"), cells=3_650)
    assert forecast(two_widths, "querysmasher").seconds > 10.0
