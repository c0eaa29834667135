"""Windows beside prefixes, suffixes and the marginal of a wide attribute, without matrices."""

import numpy as np
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
from engine.residuals.window_mix_strategy import MixMatrices, WindowMixStrategy
from engine.residuals.window_solver import WindowGram, WindowSpace, evaluate, solve

# Pairs (cells, width). They cover all ways in which `window_solver` eliminates nodes: in their
# order, in their order up to the middle, and those with equal remainders together.
SHAPES = [(130, 7), (131, 24), (60, 25), (60, 3), (171, 17)]
# weights of windows, prefixes and cells
WEIGHTS = [(1.0, 0.3, 2.0), (2.5, 1.0, 0.0), (0.7, 0.0, 1.3), (1.0, 1e-4, 0.0), (1e-3, 1.0, 1.0)]


def rows_of(gram):
    """Return the windows, the prefixes and the cells as unweighted rows, and their weights."""
    n, first = gram.cells, np.arange(gram.count)[:, None]
    cell = np.arange(n)
    windows = (cell >= first) & (cell < first + gram.width)
    rows = np.concatenate([windows, np.tri(n), np.eye(n)]).astype(float)
    return rows, np.repeat([gram.weight, gram.prefix, gram.marginal], [gram.count, n, n])


def spaces(cells, width):
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


def weights(space):
    mass = np.random.default_rng(space.cells).random(space.cells) + 0.1
    mass = mass + mass[::-1] if space.is_symmetric else mass
    return mass / mass.sum()


def dense(space, mass):
    """Return the privacy cost of every cell and the variance of every query, with matrices."""
    rows, row_weights = rows_of(space.gram)
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
    for space in spaces(cells, width):
        mass = weights(space)
        costs, variances = dense(space, mass)
        solution = evaluate(space, mass)
        np.testing.assert_allclose(solution.norms, costs, rtol=1e-8, err_msg=str(space.gram))
        np.testing.assert_allclose(
            np.concatenate(solution.variances), variances, rtol=1e-6, atol=1e-9 * variances.max()
        )
        if not space.whole:
            assert solution.total_variance(space.gram) == pytest.approx(solution.value, rel=1e-8)


def test_network_of_prefixes_with_the_total_is_not_symmetric():
    whole = WindowSpace(gram=WindowGram(cells=100, width=5, prefix=1.0), whole=True)
    assert whole.symmetric_network is None
    for options in ({"prefix": 1.0, "marginal": 2.0}, {"marginal": 2.0}):
        gram = WindowGram(cells=100, width=5, **options)
        assert WindowSpace(gram=gram).symmetric_network is not None
    assert WindowSpace(gram=gram, whole=True).symmetric_network is not None


def test_total_square_and_product_equal_matrices():
    gram = WindowGram(cells=30, width=4, weight=0.5, prefix=2.0, marginal=3.0, total=0.7)
    rows, row_weights = rows_of(gram)
    pi = np.random.default_rng(0).random(30)
    expected = row_weights @ (rows @ pi) ** 2 + 0.7 * pi.sum() ** 2
    assert gram.total_square(pi) == pytest.approx(expected)
    np.testing.assert_allclose(gram.product(pi), rows.T @ (row_weights * (rows @ pi)))
    half = gram.normalized()
    assert (half.weight, half.prefix, half.marginal, half.total) == (1.0, 4.0, 6.0, 1.4)


@pytest.mark.parametrize("mix", WEIGHTS)
def test_solution_is_as_good_as_dense_search(mix):
    gram = WindowGram(
        cells=90, width=7, **dict(zip(("weight", "prefix", "marginal"), mix, strict=True))
    )
    rows, row_weights = rows_of(gram)
    residual = np.sqrt(row_weights)[:, None] * (rows @ basis(90))
    factor = Factor(sizes=(90,), matrix=residual.T @ residual)
    problem = DualProblem(lift=Lift((90,)), factor=factor)
    exact = problem.solution(*problem.maximise(Options(gap=1e-7)))
    solution = solve(WindowSpace(gram=gram), gap=1e-7)
    assert solution.gap <= 1e-7
    assert exact.bound <= solution.value * (1.0 + 1e-9)
    assert np.sqrt(solution.value / exact.value) == pytest.approx(1.0, abs=3e-7)


@pytest.mark.parametrize(("cells", "width"), SHAPES)
def test_strategy_equals_dense_formulas(cells, width):
    for space in spaces(cells, width):
        if space.whole:
            continue
        mass = weights(space)
        solution = evaluate(space, mass)
        matrices = MixMatrices(solution=solution)
        strategy_rows, pinv = matrices.formed
        assert strategy_rows.shape == (cells - 1, cells)
        assert np.all(np.sum(strategy_rows**2, axis=0) <= matrices.column_costs * (1.0 + 1e-14))
        rows, _ = rows_of(space.gram)
        components = rows @ basis(cells)
        estimates = components @ pinv
        np.testing.assert_allclose(
            estimates, components @ (pinv @ np.eye(cells - 1)), rtol=0, atol=1e-8
        )
        # the estimates are unbiased: they are the components of the queries in the residual space
        measured = rows - (rows @ space.pi)[:, None]
        np.testing.assert_allclose(estimates @ strategy_rows, measured, rtol=0, atol=1e-8)
        _, variances = dense(space, mass)
        np.testing.assert_allclose(
            np.sum(estimates**2, axis=1), variances, rtol=1e-5, atol=1e-8 * variances.max()
        )


def mixed_workload(families, cells=120, others=()):
    attributes = [Attribute.of_size("a", cells), Attribute.of_size("b", 3)]
    workload = Workload(Schema(attributes))
    for number, family in enumerate(families):
        workload = workload.add("a", family, weight=1.0 + 0.5 * number)
    for family, other in others:
        workload = workload.add(("a", "b"), {"a": family, "b": other})
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


def plan_of(workload, **options):
    return plan(workload, Budget(pcost=1.0), "querysmasher", cache=False, **options)


def dense_plan(workload, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(decomposition, "MAX_WINDOW_SHARE", 0.0)
        return plan_of(workload, centers="uniform")


@pytest.mark.parametrize("families", MIXES)
def test_plan_equals_plan_with_matrices(families, wide, monkeypatch):
    workload = mixed_workload(families)
    result, expected = plan_of(workload, centers="uniform"), dense_plan(workload, monkeypatch)
    ((_, strategy),) = result.blocks[("a",)].factors
    assert isinstance(strategy, WindowMixStrategy)
    assert result.weighted_rmse == pytest.approx(expected.weighted_rmse, rel=3e-6)
    assert result.certificate.gap < 1e-5
    for number in range(len(families)):
        variances = expected.variances(number)
        np.testing.assert_allclose(result.variances(number), variances, rtol=2e-3)


def test_products_are_planned_without_matrices(wide, monkeypatch):
    def refuse(factor):
        raise AssertionError("a Gram was computed as a matrix")

    # the third lower bound of alternating searches uses matrices if it takes little time
    monkeypatch.setattr(AlternatingSearch, "_product_bound", lambda _: 0.0)
    # small tables would be solved by one dense search on both attributes
    monkeypatch.setattr(subworkload_solver, "MAX_OPTIMAL_SEARCH_S", 0.0)
    monkeypatch.setattr(decomposition.WindowSumFactor, "matrix", property(refuse))
    monkeypatch.setattr(decomposition.DeferredFactor, "matrix", property(refuse))
    others = ((Width(7), "marginal"), ("prefix", "prefix"), ("marginal", "marginal"))
    result = plan_of(mixed_workload((), others=others), centers="uniform")
    strategies = [s for axes, s in result.blocks[("a", "b")].factors if axes == (0,)]
    assert all(isinstance(s, WindowMixStrategy) for s in strategies)
    assert len(strategies) == 1


# products that merge to one product, and products that do not
PRODUCTS = [
    ((Width(7), "marginal"), ("prefix", "marginal")),
    ((Width(7), "marginal"), ("prefix", "prefix"), ("marginal", "marginal")),
]


@pytest.mark.parametrize("others", PRODUCTS)
def test_products_equal_plan_with_matrices(others, wide, monkeypatch):
    workload = mixed_workload((), others=others)
    result, expected = plan_of(workload, centers="uniform"), dense_plan(workload, monkeypatch)
    assert result.weighted_rmse == pytest.approx(expected.weighted_rmse, rel=1e-5)


@pytest.mark.parametrize("families", MIXES)
def test_stored_plan_is_rebuilt_with_equal_strategy(families, wide):
    result = plan_of(mixed_workload(families), centers="uniform")
    loaded = load_plan(result.to_json())
    assert loaded.weighted_rmse == result.weighted_rmse
    first, second = (p.blocks[("a",)].factors[0][1] for p in (result, loaded))
    np.testing.assert_array_equal(np.asarray(first.rows), np.asarray(second.rows))


@pytest.mark.parametrize("centers", ["uniform", "tuned"])
def test_plan_stored_with_matrices_is_rebuilt_with_matrices(centers, wide, monkeypatch):
    workload = mixed_workload((Width(12), "prefix"))
    with monkeypatch.context() as patch:
        patch.setattr(decomposition, "MAX_WINDOW_SHARE", 0.0)
        stored = plan_of(workload, centers=centers)
    loaded = load_plan(stored.to_json())
    first, second = (p.blocks[("a",)].factors[0][1] for p in (stored, loaded))
    np.testing.assert_array_equal(np.asarray(first.rows), np.asarray(second.rows))


def test_release_has_the_predicted_errors(wide):
    import pandas as pd

    result = plan_of(mixed_workload((Width(12), "prefix", "marginal")), centers="uniform")
    table = pd.DataFrame({"a": ["3"] * 50 + ["80"] * 30, "b": ["0"] * 80})
    true = np.zeros(120)
    true[3], true[80] = 50, 30
    errors = [
        measure(result, table, rehearsal=True, seed=seed).values(1) - np.cumsum(true)
        for seed in range(40)
    ]
    ratio = np.mean(np.square(errors)) / np.mean(result.variances(1))
    assert 0.7 < ratio < 1.4


def test_mixes_need_no_memory_of_matrices():
    product = ((Width(30), "marginal"), ("prefix", "prefix"))
    for workload in (
        mixed_workload((Width(30), "prefix", "suffix", "marginal"), 10_000),
        mixed_workload((), 10_000, product),
    ):
        for centers in ("uniform", "tuned"):
            expected = forecast(workload, "querysmasher", centers=centers)
            assert expected.seconds < 120.0
            assert expected.memory < 1e9
    for family in (Width(31), "range"):
        with pytest.raises(LimitExceeded, match="GB"):
            forecast(mixed_workload((Width(30), "prefix", family), 10_000), "querysmasher")


def test_forecast_counts_no_matrices():
    mixed = forecast(mixed_workload((Width(30), "prefix"), 3_650), "querysmasher")
    assert mixed.seconds < 3.0
    two_widths = mixed_workload((Width(30), Width(40), "prefix"), 3_650)
    assert forecast(two_widths, "querysmasher").seconds > 10.0
