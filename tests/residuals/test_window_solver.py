"""Windows of one width on a wide attribute: network, dual solver, strategy and plans."""

import itertools

import numpy as np
import pytest

from engine import Attribute, Budget, Schema, Width, Workload, plan
from engine.errors import LimitExceeded
from engine.mechanisms import forecast, load_plan
from engine.residuals import (
    DualProblem,
    Factor,
    Lift,
    Options,
    decomposition,
    operators,
    window_solver,
    window_strategy,
)
from engine.residuals.basis import FullDomain, basis
from engine.residuals.operators import Chain
from engine.residuals.search_cache import SolveCache
from engine.residuals.window_solver import (
    WindowGram,
    WindowSolution,
    WindowSpace,
    evaluate,
    solve,
)
from engine.residuals.window_strategy import WindowMatrices

# Pairs (cells, width). Nodes are eliminated in their order, or those with equal remainders
# together, for even and odd widths. The windows of some pairs sum to the total.
SHAPES = [(30, 3), (30, 7), (40, 1), (24, 8), (70, 17), (60, 25), (60, 30), (75, 15), (90, 19)]


def window_rows(cells, width):
    """Return one 0/1 row per window, shape (windows, cells)."""
    first = np.arange(cells - width + 1)[:, None]
    cell = np.arange(cells)
    return ((cell >= first) & (cell < first + width)).astype(float)


def spaces_by_center(cells, width):
    """Yield (name, space, measured rows) for each kind of center."""
    rng = np.random.default_rng(cells * width)
    center = rng.random(cells) - 0.2
    center /= center.sum()
    gram, rows = WindowGram(cells=cells, width=width), window_rows(cells, width)
    with_total = WindowGram(cells=cells, width=width, total=0.3)
    yield "whole", WindowSpace(gram=gram, whole=True), rows
    total = np.full((1, cells), np.sqrt(0.3))
    yield "total", WindowSpace(gram=with_total, whole=True), np.concatenate([rows, total])
    yield "uniform", WindowSpace(gram=gram), rows - width / cells
    yield "center", WindowSpace(gram=gram, center=center), rows - (rows @ center)[:, None]


def random_weights(space):
    """Return random dual weights, symmetric if the space is, shape (cells,) with sum 1."""
    mass = np.random.default_rng(space.cells).random(space.cells) + 0.1
    mass = mass + mass[::-1] if space.is_symmetric else mass
    return mass / mass.sum()


def root_trace_and_costs(rows, mass):
    """Return the matrix root of rows diag(mass) rows^T, its trace, and the costs of the cells."""
    squares, U = np.linalg.eigh((rows * mass) @ rows.T)
    positive = squares > 1e-12 * squares[-1]
    half, U = np.sqrt(squares[positive]), U[:, positive]
    costs = np.sum((U.T @ rows) ** 2 / half[:, None], axis=0)
    return (U * half) @ U.T, float(half.sum()), costs


@pytest.mark.parametrize(("cells", "width"), SHAPES)
def test_evaluation_equals_dense_formulas(cells, width):
    for name, space, rows in spaces_by_center(cells, width):
        weights = random_weights(space)
        root, trace, costs = root_trace_and_costs(rows, weights)
        solution = evaluate(space, weights)
        np.testing.assert_allclose(solution.norms, costs, rtol=1e-10, err_msg=name)
        assert solution.trace == pytest.approx(trace, rel=1e-10), name
        variances = np.diagonal(root)[: space.gram.count] * costs.max()
        np.testing.assert_allclose(solution.window_variances, variances, rtol=1e-9, err_msg=name)


@pytest.mark.parametrize(
    ("cells", "width"), [(90, 4), (91, 4), (400, 24), (401, 24), (170, 17), (130, 1)]
)
def test_symmetric_network_equals_complete_network(cells, width, monkeypatch):
    # several batches of quadrature nodes
    monkeypatch.setattr(window_solver, "BATCH_ENTRIES", 4_000)
    gram = WindowGram(cells=cells, width=width)
    symmetric = np.cos(np.linspace(-1.0, 1.0, cells))
    symmetric = symmetric + symmetric[::-1]  # exactly, without rounding errors
    for options in ({}, {"whole": True}, {"center": symmetric / symmetric.sum()}):
        space = WindowSpace(gram=gram, **options)
        complete = WindowSpace(gram=gram, **options)
        vars(complete)["symmetric_network"] = None  # sets the cached property
        assert space.symmetric_network is not None
        solution = evaluate(space, random_weights(space))
        expected = evaluate(complete, random_weights(complete))
        np.testing.assert_allclose(solution.norms, expected.norms, rtol=1e-9)
        np.testing.assert_array_equal(solution.norms, solution.norms[::-1])
        assert space.symmetric_network.blocks < 0.6 * complete.network.blocks + 2


def test_symmetric_network_needs_a_symmetric_space():
    gram = WindowGram(cells=100, width=5)
    asymmetric_center = np.arange(100.0) / sum(range(100))
    assert WindowSpace(gram=gram, center=asymmetric_center).symmetric_network is None
    with_total = WindowGram(cells=100, width=5, total=0.3)
    assert WindowSpace(gram=with_total, whole=True).symmetric_network is None
    assert WindowSpace(gram=with_total).symmetric_network is not None
    assert WindowSpace(gram=WindowGram(cells=100, width=14)).symmetric_network is not None
    # on 1,000 cells, blocks of nodes with equal remainders are smaller than those in node order
    assert WindowSpace(gram=WindowGram(cells=1_000, width=90)).symmetric_network is None


def test_costs_are_derivatives_of_the_dual_value():
    for name, space, _ in spaces_by_center(60, 7):
        weights = random_weights(space)
        direction = np.cos(np.arange(60) / 7.0)
        if space.is_symmetric:
            direction = direction + direction[::-1]
        step = 1e-6 * (direction - direction.mean())
        above, below = evaluate(space, weights + step), evaluate(space, weights - step)
        # The derivative of the trace of a matrix root is half of the costs, and the traces are two
        # steps apart.
        expected = evaluate(space, weights).norms @ step
        assert above.trace - below.trace == pytest.approx(expected, rel=1e-5), name


@pytest.mark.parametrize(("cells", "width"), SHAPES)
def test_center_of_total_equals_covariances(cells, width):
    for total in (0.0, 0.3):
        gram = WindowGram(cells=cells, width=width, total=total)
        space, rows = WindowSpace(gram=gram, whole=True), window_rows(cells, width)
        weights = random_weights(space)
        center = evaluate(space, weights).total_center()
        assert center.sum() == pytest.approx(1.0)
        if not gram.spans_total:
            np.testing.assert_allclose(rows @ center, 0.0, atol=1e-12)
            continue
        measured_rows = np.concatenate([rows, np.full((1, cells), np.sqrt(total))])
        root, _, _ = root_trace_and_costs(measured_rows, weights)
        # coefficients of the total in the measured rows, and covariances of their estimates
        coefficients = np.linalg.lstsq(measured_rows.T, np.ones(cells))[0]
        covariances = root @ coefficients
        expected = covariances / (coefficients @ covariances)
        np.testing.assert_allclose(rows @ center, expected[:-1], atol=1e-8)
        # rounding errors do not break the symmetry, which divides all later searches
        np.testing.assert_array_equal(center, center[::-1])
        assert WindowSpace(gram=gram, center=center).is_symmetric


@pytest.mark.parametrize(("cells", "width"), [(60, 7), (60, 3), (90, 15), (100, 24)])
def test_solution_is_as_good_as_dense_search(cells, width):
    rows, N = window_rows(cells, width), basis(cells)
    for whole in (False, True):
        lift = FullDomain(cells) if whole else Lift((cells,))
        gram = rows.T @ rows if whole else N.T @ rows.T @ rows @ N
        problem = DualProblem(lift=lift, factor=Factor(sizes=(cells,), matrix=gram))
        dense_solution = problem.solution(*problem.maximise(Options(gap=1e-6)))
        space = WindowSpace(gram=WindowGram(cells=cells, width=width), whole=whole)
        solution = solve(space, gap=1e-6)
        assert solution.gap <= 1e-6
        assert dense_solution.bound <= solution.value * (1.0 + 1e-9)
        assert solution.bound <= dense_solution.value * (1.0 + 1e-9)
        assert solution.value == pytest.approx(float(solution.window_variances.sum()), rel=1e-7)


def test_search_stops_at_its_limits():
    space = WindowSpace(gram=WindowGram(cells=200, width=30))
    after_two_evaluations, late = solve(space, evaluations=2), solve(space, deadline=-np.inf)
    assert after_two_evaluations.evaluations == 2
    assert late.evaluations == 1
    assert (
        late.bound < after_two_evaluations.bound < solve(space).value < after_two_evaluations.value
    )


def test_window_as_wide_as_the_attribute_is_refused():
    with pytest.raises(ValueError, match="width"):
        WindowGram(cells=5, width=5)


def test_center_needs_the_whole_attribute():
    space = WindowSpace(gram=WindowGram(cells=20, width=4))
    with pytest.raises(ValueError, match="residual space"):
        WindowSolution(space=space, dual=np.ones(20), norms=np.ones(20)).total_center()


def window_plan(width, cells=120, *, dense=False, monkeypatch=None, **options):
    """Return the plan of all windows of an attribute, by a search with matrices if ``dense``."""
    with monkeypatch.context() as patch:
        patch.setattr(operators, "MIN_WIDE_CELLS", 100)
        if dense:
            patch.setattr(decomposition, "MAX_WINDOW_SHARE", 0.0)
        workload = Workload(Schema([Attribute.of_size("a", cells)])).add("a", Width(width))
        return plan(workload, Budget(pcost=1.0), "querysmasher", cache=False, **options)


@pytest.mark.parametrize(
    ("width", "centers"),
    [*itertools.product([7, 12, 30], ["uniform", "tuned"]), (40, "uniform")],
)
def test_plan_equals_plan_with_matrices(width, centers, monkeypatch):
    matrix_plan = window_plan(width, dense=True, monkeypatch=monkeypatch, centers=centers)
    result = window_plan(width, monkeypatch=monkeypatch, centers=centers)
    assert result.weighted_rmse == pytest.approx(matrix_plan.weighted_rmse, rel=3e-6)
    assert result.certificate.gap < 1e-5
    monkeypatch.setattr(operators, "MIN_WIDE_CELLS", 100)
    np.testing.assert_allclose(result.variances(0), matrix_plan.variances(0), rtol=1e-3)


@pytest.mark.parametrize("centers", ["uniform", "tuned"])
@pytest.mark.parametrize("width", [7, 12])
def test_noise_has_the_predicted_covariance(width, centers, monkeypatch):
    monkeypatch.setattr(operators, "MIN_WIDE_CELLS", 100)
    result = window_plan(width, monkeypatch=monkeypatch, centers=centers)
    block = result.blocks[("a",)]
    ((_, strategy),) = block.factors
    rows, pinv = np.asarray(strategy.rows), np.asarray(strategy.pinv)
    assert rows.shape == (strategy.rank, 120)
    assert np.all(np.sum(rows**2, axis=0) <= strategy.column_costs("gaussian") * (1.0 + 1e-14))
    components = window_rows(120, width) @ basis(120)
    variances = np.sum((components @ pinv) ** 2, axis=1)
    expected = strategy.query_variances(result.workload.groups[0].parts[0])
    np.testing.assert_allclose(variances, expected, rtol=1e-7)
    # the estimates are unbiased: they are the components of the windows in the residual space
    center = strategy.matrices.solution.space.pi
    measured = window_rows(120, width) @ (np.eye(120) - np.outer(center, np.ones(120)))
    np.testing.assert_allclose(components @ pinv @ rows, measured, atol=1e-10)


@pytest.mark.parametrize(("cells", "width"), SHAPES)
def test_strategy_equals_dense_formulas(cells, width):
    for name, space, rows in spaces_by_center(cells, width):
        if space.whole:
            continue
        solution, N = evaluate(space, random_weights(space)), basis(cells)
        matrices = WindowMatrices(solution=solution)
        strategy_rows, pinv = matrices.formed
        # The map from answers to residual coordinates is a product of operators; its matrix is not
        # formed.
        assert isinstance(pinv, Chain), name
        root, _, costs = root_trace_and_costs(rows, solution.dual)
        components = window_rows(cells, width) @ N
        # products with the operator on the right and on the left
        estimates = components @ pinv
        right = components @ (pinv @ np.eye(matrices.rank))
        np.testing.assert_allclose(estimates, right, atol=1e-9)
        np.testing.assert_allclose(
            estimates @ estimates.T, root * costs.max(), atol=1e-7 * costs.max(), err_msg=name
        )
        np.testing.assert_allclose(estimates @ strategy_rows, rows, atol=1e-9, err_msg=name)
        # estimated coordinates have no component that the windows do not determine
        unmeasured = matrices.unmeasured
        assert unmeasured.shape == (cells - 1, cells - 1 - matrices.rank)
        np.testing.assert_allclose(
            unmeasured.T @ unmeasured, np.eye(unmeasured.shape[1]), atol=1e-9
        )
        np.testing.assert_allclose(components @ unmeasured, 0.0, atol=1e-9)
        np.testing.assert_allclose(unmeasured.T @ pinv, 0.0, atol=1e-7)


@pytest.mark.parametrize("centers", ["uniform", "tuned"])
def test_stored_plan_is_rebuilt_with_equal_strategy(centers, monkeypatch):
    result = window_plan(12, monkeypatch=monkeypatch, centers=centers)
    monkeypatch.setattr(operators, "MIN_WIDE_CELLS", 100)
    loaded = load_plan(result.to_json())
    assert loaded.weighted_rmse == result.weighted_rmse
    ((_, strategy),) = result.blocks["a",].factors
    ((_, loaded_strategy),) = loaded.blocks["a",].factors
    np.testing.assert_array_equal(np.asarray(strategy.rows), np.asarray(loaded_strategy.rows))


def recorded_searches(monkeypatch):
    """Return a list that receives (initial weights, solution) of every search for a plan."""
    searches = []

    def recorded(space, **options):
        searches.append((options["start"], solve(space, **options)))
        return searches[-1][1]

    monkeypatch.setattr(window_strategy, "solve", recorded)
    return searches


def test_searches_of_one_plan_share_weights(monkeypatch):
    searches = recorded_searches(monkeypatch)
    for _ in range(2):
        window_plan(12, monkeypatch=monkeypatch, centers="tuned")
    (start, _), (second_start, second_solution), (repeated_start, _), (repeated_second_start, _) = (
        searches
    )
    # The first search of a plan has no initial weights, so that a plan does not depend on earlier
    # plans.
    assert start is repeated_start is None
    assert second_start is not None
    np.testing.assert_array_equal(second_start, repeated_second_start)
    # the search for centers has already proved the gap of the plan
    assert second_solution.evaluations == 1


@pytest.mark.parametrize("stored", ["own", "short", "negative", "random"])
def test_repeated_plan_starts_at_stored_weights(stored, monkeypatch, tmp_path):
    monkeypatch.setenv("DP_WORKBENCH_CACHE", str(tmp_path))
    searches = recorded_searches(monkeypatch)
    monkeypatch.setattr(operators, "MIN_WIDE_CELLS", 100)
    workload = Workload(Schema([Attribute.of_size("a", 120)])).add("a", Width(12))
    first = plan(workload, Budget(pcost=1.0), "querysmasher")
    wrong_weights = {
        "short": np.full(7, 1.0 / 7.0),
        "negative": np.array([-1.0, 2.0] + [0.0] * 118),
        "random": np.random.default_rng(0).dirichlet(np.ones(120)),
    }
    if stored in wrong_weights:
        monkeypatch.setattr(SolveCache, "numbers", lambda *_: (wrong_weights[stored], False))
    second = plan(workload, Budget(pcost=1.0), "querysmasher")
    (start, first_solution), (second_start, second_solution) = searches
    assert start is None
    assert (second_start is None) == (stored in ("short", "negative"))
    assert second_solution.gap <= 1e-6
    assert first_solution.evaluations > 5
    if stored == "own":
        assert second_solution.evaluations == 1
        assert second.weighted_rmse == first.weighted_rmse
    else:
        assert second.weighted_rmse == pytest.approx(first.weighted_rmse, rel=1e-6)


def test_windows_with_other_queries_use_matrices(monkeypatch):
    monkeypatch.setattr(operators, "MIN_WIDE_CELLS", 100)
    schema = Schema([Attribute.of_size("a", 110), Attribute.of_size("b", 3)])
    mixed = Workload(schema).add("a", Width(5)).add("a", Width(9)).add("a", "prefix")
    product = Workload(schema).add(("a", "b"), {"a": Width(5), "b": "marginal"}).add("b")
    for workload in (mixed, product):
        for centers in ("uniform", "tuned"):
            result = plan(workload, Budget(pcost=1.0), "querysmasher", centers=centers, cache=False)
            assert result.certificate.gap < 1e-3


def test_forecast_counts_no_matrices_of_windows():
    schema = Schema([Attribute.of_size("a", 3_650)])
    windows_only = Workload(schema).add("a", Width(30))
    two_widths = windows_only.add("a", Width(40))
    assert forecast(windows_only, "querysmasher").seconds < 3.0
    wide_windows = Workload(schema).add("a", Width(1_200))
    assert forecast(wide_windows, "querysmasher").seconds < 5.0
    # windows of two widths need matrices
    assert forecast(two_widths, "querysmasher").seconds > 10.0


def test_windows_need_no_memory_of_matrices():
    schema = Schema([Attribute.of_size("a", 10_000), Attribute.of_size("b", 3)])
    alone = Workload(schema).add("a", Width(30)).add("b")
    product = alone.add(("a", "b"), {"a": Width(30), "b": "prefix"})
    for workload in (alone, product):
        for centers in ("uniform", "tuned"):
            prediction = forecast(workload, "querysmasher", centers=centers)
            assert prediction.seconds < 120.0
            assert prediction.memory < 1e9
    for other in (Width(40), "range"):
        with pytest.raises(LimitExceeded, match="GB"):
            forecast(alone.add("a", other), "querysmasher")
    with pytest.raises(LimitExceeded, match="GB"):
        forecast(alone.add(("a", "b"), {"a": "range", "b": "prefix"}), "querysmasher")


def test_too_many_cells_for_windows_are_refused():
    workload = Workload(Schema([Attribute.of_size("a", 10_001)])).add("a", Width(30))
    with pytest.raises(LimitExceeded, match="at most 10,000"):
        forecast(workload, "querysmasher")


def test_leaves_span_only_for_queries_outside_windows(monkeypatch):
    monkeypatch.setattr(operators, "MIN_WIDE_CELLS", 100)
    result = window_plan(7, monkeypatch=monkeypatch)
    ((_, strategy),) = result.blocks[("a",)].factors
    single_cells = np.eye(120)[2:6]
    assert strategy.leaves_span(single_cells @ basis(120)).all()
    assert not strategy.leaves_span(window_rows(120, 7) @ basis(120)).any()
    span = strategy.span
    np.testing.assert_allclose(span @ span.T + strategy.unmeasured, np.eye(119), atol=1e-12)
