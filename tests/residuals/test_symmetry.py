"""Symmetry reduction of the dual problem: equal optimum, exact detection."""

import math

import numpy as np
import pytest

import engine.residuals.dual_solver as solvers
from engine.residuals import DualProblem, Factor, Lift
from engine.workload import Custom, Marginal, Range
from engine.workload.families import Prefix
from tests.residuals.problems import (
    check_solution,
    kron,
    pair_rows,
    product,
    residual_rows,
    solve,
    stacked,
)

SYMMETRIC = {
    "affine and abs": ((5, 5), stacked(pair_rows("affine", 5, 5), pair_rows("abs", 5, 5)), 25),
    "range": ((9,), Range().rows((9,)), 9),
    "range of two sizes": ((4, 5), product(Range(), Range(), 4, 5), 20),
    "prefix squared": ((5, 5), product(Prefix(), Prefix(), 5, 5), 25),
    "three ranges": ((3, 3, 3), kron(*[Range().rows((3,))] * 3) + 0.0, 27),
    "three and a pair": (
        (3, 3, 3),
        stacked(
            kron(*[Prefix().rows((3,))] * 3), np.kron(pair_rows("affine", 3, 3), np.ones((1, 3)))
        ),
        27,
    ),
}


@pytest.mark.parametrize("name", SYMMETRIC)
def test_symmetry_reduction_preserves_optimum(name, monkeypatch):
    sizes, rows, cells = SYMMETRIC[name]
    residuals = residual_rows(rows, sizes)
    factor = Factor(sizes=sizes, matrix=residuals.T @ residuals)
    monkeypatch.setattr(solvers, "SYMMETRY_FROM", 10**9)
    plain = DualProblem(lift=Lift(sizes), factor=factor)
    monkeypatch.setattr(solvers, "SYMMETRY_FROM", 1)
    reduced = DualProblem(lift=Lift(sizes), factor=factor)
    assert plain.variables == cells
    assert reduced.variables < 0.7 * cells
    assert len(reduced.roots) > 1 or len(sizes) == 1
    solution, reduced_solution = solve(plain), solve(reduced)
    assert reduced_solution.value == pytest.approx(solution.value, rel=1e-5)
    assert reduced_solution.bound <= solution.value * (1 + 1e-9)
    assert solution.bound <= reduced_solution.value * (1 + 1e-9)
    check_solution(reduced_solution, residuals.T @ residuals)
    assert sum(map(len, reduced.roots)) == sum(map(len, plain.roots))
    # One variable of the reduced problem is the total weight of several equivalent cells.
    reduced_weights = np.random.default_rng(1).dirichlet(np.ones(reduced.variables))
    weights = (reduced_weights / reduced.multiplicity)[reduced.orbit]
    assert reduced.bound(reduced_weights) == pytest.approx(plain.bound(weights), rel=1e-9)


def test_symmetry_reduction_asymmetric_gram_has_all_variables(monkeypatch):
    monkeypatch.setattr(solvers, "SYMMETRY_FROM", 1)
    rng = np.random.default_rng(2)
    for sizes in ((7,), (4, 4), (3, 3, 3)):
        residuals = rng.standard_normal((40, math.prod(n - 1 for n in sizes)))
        problem = DualProblem(
            lift=Lift(sizes), factor=Factor(sizes=sizes, matrix=residuals.T @ residuals)
        )
        assert problem.variables == math.prod(sizes)
    # These two attributes have equal sizes but different queries, so exchanging them is no
    # symmetry.
    random_queries = Custom(rng.random((3, 5)))
    rows = stacked(product(Prefix(), random_queries, 5, 5), pair_rows("affine", 5, 5))
    residuals = residual_rows(rows, (5, 5))
    factor = Factor(sizes=(5, 5), matrix=residuals.T @ residuals)
    problem = DualProblem(lift=Lift((5, 5)), factor=factor)
    assert problem.variables == 25


@pytest.mark.parametrize("asymmetry", [1e-3, 1e-6])
def test_symmetry_reduction_nearly_symmetric_gram_is_exact(asymmetry, monkeypatch):
    monkeypatch.setattr(solvers, "SYMMETRY_FROM", 1)
    rows = stacked(
        product(Prefix(), Prefix(), 5, 5), asymmetry * product(Range(), Marginal(), 5, 5)
    )
    residuals = residual_rows(rows, (5, 5))
    reduced = DualProblem(
        lift=Lift((5, 5)), factor=Factor(sizes=(5, 5), matrix=residuals.T @ residuals)
    )
    check_solution(solve(reduced), residuals.T @ residuals)


def test_sign_classes_equal_sparse_bases(monkeypatch):
    monkeypatch.setattr(solvers, "SYMMETRY_FROM", 1)
    residuals = residual_rows(product(Range(), Range(), 4, 5), (4, 5))
    factor = Factor(sizes=(4, 5), matrix=residuals.T @ residuals)
    fast = DualProblem(lift=Lift((4, 5)), factor=factor)
    monkeypatch.setattr(solvers, "sign_classes", lambda *_: None)
    sparse = DualProblem(lift=Lift((4, 5)), factor=factor)
    assert len(fast.roots) == len(sparse.roots) == 4
    for fast_root, sparse_root in zip(fast.roots, sparse.roots, strict=True):
        np.testing.assert_array_equal(fast_root, sparse_root)
        assert fast_root.flags.f_contiguous == sparse_root.flags.f_contiguous


def test_reversals_need_no_sparse_bases(monkeypatch):
    monkeypatch.setattr(solvers, "SYMMETRY_FROM", 1)
    monkeypatch.setattr(solvers, "character_bases", lambda *_: pytest.fail("sparse bases"))
    residuals = residual_rows(Range().rows((9,)), (9,))
    problem = DualProblem(
        lift=Lift((9,)), factor=Factor(sizes=(9,), matrix=residuals.T @ residuals)
    )
    assert len(problem.roots) == 2
