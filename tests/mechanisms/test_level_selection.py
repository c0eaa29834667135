"""Level selection against explicit pseudo-inverses, exhaustive splits and certified optima."""

import math

import numpy as np
import pytest

import engine.mechanisms.hierarchical as search
from benchmarks.classic_strategies import all_predicate_gram, sample_ranges
from engine._clock import planning_time
from engine.errors import LimitExceeded, WorkloadError
from engine.mechanisms import plan
from engine.mechanisms.hierarchical import (
    PUBLISHED,
    LevelOptions,
    count_split_evaluations,
    interval_strategy,
    level_selection,
    merge_cells,
    separate_axes,
    svd_bound,
)
from engine.privacy import Budget
from engine.residuals import DualProblem, Factor, FullDomain
from engine.residuals import Options as SolverOptions
from engine.workload import Attribute, Custom, Schema, Workload
from engine.workload.families import family


def query_rows(name, *sizes):
    """Return the query matrix of a family of queries on each axis."""
    rows = np.ones((1, 1))
    for n in sizes:
        rows = np.kron(rows, family(name).rows((n,)))
    return rows


def random_rows(seed, cells=None):
    rng = np.random.default_rng(seed)
    return rng.integers(-1, 3, (int(rng.integers(1, 9)), cells or int(rng.integers(1, 14)))).astype(
        float
    )


WORKLOADS = {
    "range": (query_rows("range", 13), (13,)),
    "prefix": (query_rows("prefix", 16), (16,)),
    "two axes": (query_rows("range", 5, 4), (5, 4)),
    "three axes": (query_rows("prefix", 3, 2, 3), (3, 2, 3)),
    "one cell": (np.array([[2.0]]), (1,)),
    "an axis of one cell": (query_rows("range", 6, 1), (6, 1)),
    "no queries": (np.zeros((1, 5)), (5,)),
    "signed": (random_rows(3, 12), (12,)),
}


def brute_error(rows, W):
    return max(np.sum(rows**2, axis=0)) * np.sum((W @ np.linalg.pinv(rows)) ** 2)


@pytest.mark.parametrize(
    "options", [PUBLISHED, LevelOptions(patience=2, levels=60)], ids=["published", "patient"]
)
@pytest.mark.parametrize("name", WORKLOADS)
def test_level_selection_matches_explicit_matrices(name, options):
    W, sizes = WORKLOADS[name]
    strategy = level_selection(W.T @ W, sizes, options)
    np.testing.assert_allclose(np.sum(strategy.rows**2, axis=0), 1, rtol=1e-12)
    assert strategy.error == pytest.approx(brute_error(strategy.rows, W), rel=1e-8)
    np.testing.assert_allclose(strategy.rows.T @ strategy.rows, strategy.precision, atol=1e-12)
    np.testing.assert_allclose(
        strategy.square_rows.T @ strategy.square_rows, strategy.precision, atol=1e-12
    )
    x = np.random.default_rng(0).standard_normal(W.shape[1])
    np.testing.assert_allclose(
        np.linalg.lstsq(strategy.rows, strategy.rows @ x, rcond=None)[0], x, atol=1e-8
    )
    assert strategy.bound <= strategy.error * (1 + 1e-9)
    assert strategy.error <= np.sum(W**2) * (1 + 1e-9)


@pytest.mark.parametrize(
    "seed", [*range(6), *(pytest.param(s, marks=pytest.mark.full) for s in range(6, 20))]
)
def test_level_selection_is_between_optimum_and_identity(seed):
    W = random_rows(seed)
    gram = W.T @ W
    n = len(gram)
    problem = DualProblem(lift=FullDomain(n), factor=Factor(sizes=(n,), matrix=gram))
    optimum = problem.solution(*problem.maximise(SolverOptions(gap=1e-5)))
    for strategy in (
        level_selection(gram),
        level_selection(gram, options=PUBLISHED),
        interval_strategy(gram),
    ):
        assert strategy.error <= np.trace(gram) * (1 + 1e-9)
        assert strategy.error >= optimum.bound * (1 - 1e-9)
    assert svd_bound(gram) <= optimum.value * (1 + 1e-9)


@pytest.mark.parametrize("name", ["two axes", "range", "signed"])
def test_level_splits_gains_match_explicit_inverses(name):
    """Compare best splits and their gains with the errors of explicit precision matrices."""
    W, sizes = WORKLOADS[name]
    gram = W.T @ W
    rng = np.random.default_rng(1)
    A = rng.standard_normal((len(gram), len(gram)))
    precision = np.eye(len(gram)) + A.T @ A  # of the levels before this one
    inverse = np.linalg.inv(precision)
    # the level has two boxes (corners: first cell, cell after the last), halves of the first axis
    lower_half, upper_half = np.zeros((2, 2, len(sizes)), dtype=int)
    lower_half[1] = upper_half[1] = sizes
    lower_half[1, 0] = upper_half[0, 0] = sizes[0] // 2
    level = search.Level(
        inverse, inverse @ gram @ inverse, np.array([lower_half, upper_half]), sizes
    )

    def error(*boxes):
        P = search.indicator(np.array(boxes), sizes).toarray()
        return np.sum(gram * np.linalg.inv(precision + P.T @ P))

    error_before = error(lower_half, upper_half)
    assert np.sum(gram * inverse) - level.gain == pytest.approx(error_before, rel=1e-9)
    gains, children = level.splits(inverse, inverse @ gram @ inverse)
    for k, (box, other_box) in enumerate([(lower_half, upper_half), (upper_half, lower_half)]):
        splits = []
        for axis in range(len(sizes)):
            for cut in range(box[0, axis] + 1, box[1, axis]):
                first, second = box.copy(), box.copy()
                first[1, axis] = second[0, axis] = cut
                splits.append((error_before - error(other_box, first, second), first, second))
        best_gain, *best_children = max(splits, key=lambda split: split[0])
        assert gains[k] == pytest.approx(max(best_gain, 0.0), rel=1e-7, abs=1e-9)
        if best_gain > 1e-9:
            np.testing.assert_array_equal(children[k], best_children)


def test_levels_cover_cells_once_and_refresh_is_neutral(monkeypatch):
    W = query_rows("range", 24)
    gram = W.T @ W
    strategy = level_selection(gram, options=LevelOptions(patience=1, levels=40))
    # number of levels that contain each box
    copies = np.rint(strategy.weights**2 * strategy.levels)
    lengths = strategy.boxes[:, 1, 0] - strategy.boxes[:, 0, 0]
    # each level contains each of the 24 cells once
    assert np.dot(copies, lengths) == 24 * strategy.levels
    # Compute the inverse anew after every level; the error must not change.
    monkeypatch.setattr(search, "LEVELS_PER_INVERSE", 1)
    refreshed = level_selection(gram, options=LevelOptions(patience=1, levels=40))
    assert refreshed.error == pytest.approx(strategy.error, rel=1e-9)


def test_level_options_patience_and_limits():
    W = query_rows("range", 32)
    gram = W.T @ W
    patience_0 = level_selection(gram, options=LevelOptions(patience=0))
    for options in (LevelOptions(patience=2), PUBLISHED):
        assert level_selection(gram, options=options).error <= patience_0.error * (1 + 1e-12)
    short = level_selection(gram, options=LevelOptions(levels=3))
    assert short.levels == 3
    assert "3 levels" in short.status
    assert patience_0.error < short.error < np.trace(gram)
    late = level_selection(gram, options=LevelOptions(deadline=planning_time() - 1))
    assert "time limit" in late.status
    assert late.error == pytest.approx(np.trace(gram))
    progress = []
    level_selection(
        gram,
        options=LevelOptions(patience=0, watch=lambda levels, gap: progress.append((levels, gap))),
    )
    assert [levels for levels, _ in progress] == list(range(2, len(progress) + 2))
    _, last_gap = progress[-1]
    assert last_gap == pytest.approx(math.sqrt(patience_0.error / patience_0.bound) - 1, rel=1e-6)


def test_merge_cells_joins_equal_columns():
    W = np.array([[1.0, 1, 0, 2, 0], [0, 0, 3, 1, 3]])
    different_columns = W[:, [0, 2, 3]]
    labels, gram = merge_cells(W.T @ W)
    np.testing.assert_array_equal(labels, [0, 0, 1, 2, 1])
    np.testing.assert_allclose(gram, different_columns.T @ different_columns)
    singular_values = np.linalg.svd(different_columns, compute_uv=False)
    assert svd_bound(W.T @ W) == pytest.approx(singular_values.sum() ** 2 / 3)


@pytest.mark.parametrize("sizes", [(4, 3), (3, 1, 5), (6,)])
def test_separate_axes_error_matches_full_domain(sizes):
    queries = [query_rows("prefix", n) for n in sizes]  # of each axis
    strategy = separate_axes([W.T @ W for W in queries])
    assert strategy.total + sum(strategy.shares) == pytest.approx(1)

    def on_full_domain(axis, rows):
        full_rows = np.ones((1, 1))
        for i, n in enumerate(sizes):
            full_rows = np.kron(full_rows, rows if i == axis else np.ones((1, n)))
        return full_rows

    strategy_rows = [math.sqrt(strategy.total) * np.ones((1, math.prod(sizes)))]
    for axis, (share, part) in enumerate(zip(strategy.shares, strategy.parts, strict=True)):
        strategy_rows.append(math.sqrt(share) * on_full_domain(axis, part.rows))
    A = np.concatenate(strategy_rows)
    W = np.concatenate([on_full_domain(axis, rows) for axis, rows in enumerate(queries)])
    np.testing.assert_allclose(np.sum(A**2, axis=0), 1, rtol=1e-9)
    assert strategy.error == pytest.approx(np.sum((W @ np.linalg.pinv(A)) ** 2), rel=1e-7)
    error_with_even_shares = len(sizes) * sum(part.error for part in strategy.parts)
    assert strategy.error <= error_with_even_shares * (1 + 1e-6)


def test_separate_axes_error_is_close_to_full_search():
    n, options = 6, LevelOptions(patience=1)
    ranges, all_cells = query_rows("range", n), np.ones((1, n))
    separate = separate_axes([ranges.T @ ranges] * 2, options)
    W = np.concatenate([np.kron(ranges, all_cells), np.kron(all_cells, ranges)])
    assert svd_bound(W.T @ W) <= separate.error * (1 + 1e-9)
    assert separate.error <= 1.1 * level_selection(W.T @ W, (n, n), options).error


@pytest.mark.parametrize(
    ("n", "groups"), [(1, None), (7, 2), (30, None), (30, 5), (30, 30), (30, 1), (9, 4)]
)
def test_interval_strategy_matches_explicit_matrices(n, groups):
    W = query_rows("range", n)
    strategy = interval_strategy(W.T @ W, groups)
    np.testing.assert_allclose(np.sum(strategy.rows**2, axis=0), 1, rtol=1e-9)
    assert strategy.error == pytest.approx(brute_error(strategy.rows, W), rel=1e-8)
    assert strategy.bound * (1 - 1e-9) <= strategy.error <= np.sum(W**2) * (1 + 1e-9)


def test_interval_strategy_ranges_is_close_to_level_selection():
    gram = family("range").gram((64,))
    assert interval_strategy(gram).error <= 1.5 * level_selection(gram).error
    assert interval_strategy(gram).error < 0.5 * np.trace(gram)


@pytest.mark.parametrize(
    "call",
    [
        lambda: level_selection(np.ones((2, 3))),
        lambda: level_selection(np.array([[1.0, 2.0], [0.0, 1.0]])),
        lambda: level_selection(np.array([[math.inf]])),
        lambda: level_selection(np.eye(4), (3,)),
        lambda: level_selection(np.zeros((0, 0))),
        lambda: interval_strategy(np.eye(3), 4),
        lambda: separate_axes([]),
    ],
)
def test_level_selection_invalid_workload_is_refused(call):
    with pytest.raises(WorkloadError, match=r"Give|sizes"):
        call()


def test_level_selection_too_many_cells_is_refused(monkeypatch):
    monkeypatch.setattr(search, "MAX_CELLS", 5)
    with pytest.raises(LimitExceeded, match="at most 5"):
        level_selection(np.eye(6))


def numeric(*sizes):
    return Schema([Attribute.of_size("abc"[i], n) for i, n in enumerate(sizes)])


FORECAST_WORKLOADS = {
    "ranges": lambda: Workload(numeric(60)).add("a", "range"),
    "prefixes of two": lambda: Workload(numeric(8, 8)).add(("a", "b"), "prefix"),
    "all ways": lambda: Workload.all_ways(numeric(6, 5, 4), (1, 2), "prefix"),
    "marginals": lambda: Workload.all_ways(numeric(6, 5, 4), (1, 2), "marginal"),
    "few queries": (
        lambda: Workload(numeric(10, 12)).add(("a", "b"), Custom(random_rows(4, 120)[:5]))
    ),
}


@pytest.mark.parametrize("name", FORECAST_WORKLOADS)
def test_count_split_evaluations_is_close_to_actual(monkeypatch, name):
    """The number of cells alone would underestimate the time by orders of magnitude."""
    calls, original = 0, search.Level.splits

    def counted_splits(*args):
        nonlocal calls
        calls += 1
        return original(*args)

    monkeypatch.setattr(search.Level, "splits", counted_splits)
    target = FORECAST_WORKLOADS[name]()
    plan(target, Budget(pcost=1.0), "lsa", cache=False)
    assert 1 / 3 < count_split_evaluations(target, target.schema.size) / calls < 3


@pytest.mark.parametrize("n", [4, 8])
def test_all_predicates_optimum_matches_corollary(n):
    """All 2^n queries, planned as rows: Li and Miklau, corollary C.1."""
    rows = (np.arange(2**n)[:, None] >> np.arange(n) & 1).astype(float)
    np.testing.assert_allclose(rows.T @ rows, 2.0 ** (n - 2) * all_predicate_gram(n))
    optimum = 2.0 ** (n - 2) / n * (n - 1 + math.sqrt(n + 1)) ** 2
    assert svd_bound(rows.T @ rows) == pytest.approx(optimum)
    schema = Schema([Attribute.of_size("cell", n)])
    result = plan(Workload(schema).add(("cell",), Custom(rows)), Budget(pcost=1.0))
    assert result.rmse == pytest.approx(math.sqrt(optimum / 2**n))


def test_sample_ranges_are_distinct_ranges_of_band():
    rows = sample_ranges((4, 3), 30, 0.2, 0.8)
    assert len(np.unique(rows, axis=0)) == len(rows) == 30
    assert 0.2 < rows.mean(axis=1).min() <= rows.mean(axis=1).max() <= 0.8
    all_ranges = {row.tobytes() for row in query_rows("range", 4, 3)}
    assert all(row.tobytes() in all_ranges for row in rows)
