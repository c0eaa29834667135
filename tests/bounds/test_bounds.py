"""Lower bounds for all matrix mechanisms against brute force and the optimum."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.linalg

from engine.analysis.certificates import standard_workload
from engine.bounds.lower_bounds import (
    Model,
    basis_by_importance,
    best_bound,
    exact_bound,
    full_domain_problem,
    global_bound,
    largest_entry_bound,
    single_intervals,
    starting_roots,
)
from engine.bounds.product_weights import (
    DenseNormBound,
    State,
    error_bound,
    lower_eigenvalues,
    nuclear,
    reduce_workload,
    root_trace,
)
from engine.bounds.symmetric import (
    CompositionBound,
    SymmetricPairs,
    SymmetricProducts,
    product_weights_by_size,
    shares_norm,
    symmetric_terms,
)
from engine.errors import LimitExceeded
from engine.mechanisms import plan
from engine.privacy import Budget
from engine.residuals import Options
from engine.workload import Attribute, Custom, Schema, Workload
from tests import oracles
from tests.shapes import SHAPES, numeric

SMALL = [name for name in SHAPES if name != "wide"]
ALL_COLUMNS = 99  # more than any basis of the small workloads has
RANDOM = 20  # a normal run tests 20 of 500 random workloads, a full run tests all


def cube(n, d):
    return Schema([Attribute.of_size(f"x{i}", n) for i in range(d)])


def pairs_in_both_orders():
    """Return prefixes times ranges for each pair of attributes: a by b, and b by a."""
    w = Workload(cube(4, 4))
    for a, b in itertools.combinations(w.schema.names, 2):
        w = w.add((a, b), {a: "prefix", b: "range"}).add((a, b), {b: "prefix", a: "range"})
    return w


def transposed_pairs():
    """Return random queries and prefix queries on each pair of attributes.

    Exchanging the two attributes of a pair changes single queries but not the Gram matrix.
    """
    rows = np.random.default_rng(1).normal(size=(4, 4, 4))
    queries = Custom(np.concatenate([rows, rows.transpose(0, 2, 1)]).reshape(8, 16))
    w = Workload.all_ways(cube(4, 4), (2,), queries)
    return Workload(w.schema, w.groups + Workload.all_ways(w.schema, (2,), "prefix").groups)


def single_and_pair_groups(single, *pairs, d=4):
    schema = cube(4, d)
    groups = Workload.all_ways(schema, (1,), single).groups
    for family in pairs:
        groups += Workload.all_ways(schema, (2,), family).groups
    return Workload(schema, groups)


SYMMETRIC = {
    "prefix": lambda: Workload.all_ways(cube(4, 4), (1, 2), "prefix"),
    "with the total": lambda: Workload.all_ways(cube(3, 5), (0, 1, 2), "prefix"),
    "affine": lambda: single_and_pair_groups("prefix", "affine"),
    "three, abs": lambda: single_and_pair_groups("prefix", "abs", d=3),
    "mixed": lambda: single_and_pair_groups("range", "affine", "prefix"),
    "pairs only": lambda: Workload.all_ways(cube(4, 4), (2,), "abs"),
    "both orders": pairs_in_both_orders,
    "swapped": transposed_pairs,
}


def random_point(reduced, seed):
    """Return two dictionaries with one entry per class of equivalent attributes.

    The first holds random weights of the n cells, with squares that sum to 1.  The second holds
    bases of shape (n, n): a column of ones, and random columns.
    """
    rng = np.random.default_rng(seed)
    s = {
        attribute_class: np.sqrt(rng.dirichlet(np.full(n, 3.0)))
        for attribute_class, n in reduced.cells.items()
    }
    basis = {
        r: np.column_stack([np.ones(n), rng.normal(size=(n, n - 1))])
        for r, n in reduced.cells.items()
    }
    return s, basis


def nuclear_norm(workload, reduced, s):
    """Return the nuclear norm of the weighted query rows on the full domain.

    The singular values are computed from the rows: roots of the eigenvalues of the Gram matrix
    would have only half the exact digits.
    """
    root = np.ones(1)
    for attribute in workload.schema.attributes:
        attribute_class = reduced.class_of.get(attribute.name)
        root = np.kron(
            root,
            np.full(attribute.size, attribute.size**-0.5)
            if attribute_class is None
            else s[attribute_class],
        )
    groups = zip(oracles.workload_rows(workload), oracles.query_weights(workload), strict=True)
    rows = np.concatenate([np.sqrt(weights)[:, None] * rows * root for rows, weights in groups])
    return float(scipy.linalg.svdvals(rows).sum())


def model_bound(reduced, s, basis, columns):
    """Return the bound of a model with the first ``columns`` columns of each basis."""
    bound, _ = Model(reduced, [columns] * len(reduced.subproblems)).value(s, basis, False)
    return bound


@pytest.mark.parametrize("name", SMALL)
def test_model_value_is_at_most_nuclear_norm(name):
    workload = SHAPES[name]()
    reduced = reduce_workload(workload)
    s, basis = random_point(reduced, 1)
    truth = nuclear_norm(workload, reduced, s)
    has_joint_sums = any(len(squares) > 1 for _, squares in reduced.sums)
    for columns in (ALL_COLUMNS, 3, 2, 1):
        bound = model_bound(reduced, s, basis, columns)
        assert 0.0 < bound <= truth * (1 + 1e-12)
        if columns == ALL_COLUMNS and not has_joint_sums:
            assert bound == pytest.approx(truth, rel=1e-9)


@pytest.mark.parametrize("name", SYMMETRIC)
def test_symmetric_pairs_match_nuclear_norm(name):
    workload = SYMMETRIC[name]()
    reduced = reduce_workload(workload)
    s, basis = random_point(reduced, 2)
    (subproblem,) = reduced.subproblems
    names = subproblem.names
    attribute_class = 0
    terms = symmetric_terms(reduced, subproblem)
    truth = nuclear_norm(workload, reduced, s)
    state = State(reduced, s, basis, False)
    cells = reduced.cells[attribute_class]
    for columns in {1, 2, min(3, cells), cells}:
        symmetric, _ = SymmetricPairs(len(names), attribute_class, terms, columns).value(state)
        dense, _ = DenseNormBound(reduced, subproblem, dict.fromkeys(names, columns)).value(state)
        assert symmetric == pytest.approx(dense, rel=1e-9)
        assert symmetric <= truth * (1 + 1e-12)
        if columns == cells:
            assert symmetric == pytest.approx(truth, rel=1e-9)


def every_composition(n, d):
    """Return all compositions of ``d`` attributes with values 0 to n - 1.

    The composition of a cell is a row of n counts: how many of the attributes have each value.
    Returns (distinct compositions, shape (compositions, n); index of the composition of each of
    the n^d cells).
    """
    cells = np.array(list(itertools.product(range(n), repeat=d)))
    return np.unique(
        np.stack([np.sum(cells == a, axis=1) for a in range(n)], axis=1),
        axis=0,
        return_inverse=True,
    )


@pytest.mark.parametrize("name", SYMMETRIC)
def test_composition_bound_matches_nuclear_norm(name):
    """Value and derivatives are exact for any weights of the compositions of a cell."""
    workload = SYMMETRIC[name]()
    reduced = reduce_workload(workload)
    (subproblem,) = reduced.subproblems
    n, d = reduced.cells[0], len(subproblem.names)
    problem = CompositionBound(reduced, 0, d, symmetric_terms(reduced, subproblem))
    counts, of_cell = every_composition(n, d)
    shares = np.random.default_rng(9).dirichlet(np.ones(len(counts)))
    root = np.sqrt((shares / np.bincount(of_cell))[of_cell])
    groups = zip(oracles.workload_rows(workload), oracles.query_weights(workload), strict=True)
    rows = np.concatenate([np.sqrt(weights)[:, None] * rows * root for rows, weights in groups])
    truth = float(scipy.linalg.svdvals(rows).sum())
    prepared = problem.compositions(counts.astype(float))
    norm, norm_slopes = problem.norm(prepared, shares)
    assert truth * (1 - 1e-9) <= norm <= truth
    cost_terms = problem.cost_matrices(norm_slopes)

    def cost(composition):
        return sum(float(term.traces(composition)[0]) for term in cost_terms)

    # the derivative by the share of one composition, by central differences
    composition = 3
    share_step = 1e-6 * np.eye(len(shares))[composition]
    up, _ = problem.norm(prepared, shares + share_step)
    down, _ = problem.norm(prepared, shares - share_step)
    share_slope = (up - down) / 2e-6
    assert cost(prepared.counts[[composition]]) == pytest.approx(2 * share_slope, rel=1e-7)

    # the derivatives by the counts, at a point that is no composition
    point = prepared.counts[[composition]] + 0.3
    count_slopes = sum(term.slopes(point) for term in cost_terms)[0]
    tolerance = 1e-6 * np.abs(count_slopes).max()
    for slope, count_step in zip(count_slopes, 1e-5 * np.eye(n), strict=True):
        difference = cost(point + count_step) - cost(point - count_step)
        assert slope == pytest.approx(difference / 2e-5, rel=1e-6, abs=tolerance)


@pytest.mark.parametrize("name", ["affine", "pairs only", "mixed", "both orders", "three, abs"])
def test_shares_norm_reaches_optimum(name):
    workload = SYMMETRIC[name]()
    reduced = reduce_workload(workload)
    problem = full_domain_problem(workload)
    best = problem.solution(*problem.maximise(Options(gap=1e-5))).value
    cells = reduced.cells[0]
    uniform_roots = {0: np.full(cells, cells**-0.5)}
    norm = shares_norm(reduced, uniform_roots, math.inf)
    assert best * (1 - 4e-4) <= norm**2 <= best


@pytest.mark.parametrize(("family", "product_bound"), [("affine", 25.85), ("abs", 27.3)])
def test_shares_norm_forty_attributes_exceeds_product_bound(monkeypatch, family, product_bound):
    """The search for the bound stops after 7 rounds, and already exceeds the product bound.

    For the two families, product weights give bounds of 25.843 and 27.139 on the RMSE; converged
    searches give 25.864 and 27.375.
    """
    workload = standard_workload("[10]^40", family)
    monkeypatch.setattr("engine.bounds.symmetric.ROUNDS", 7)
    ends_first = np.array([0.2, 0.09, 0.07, 0.07, 0.07, 0.07, 0.07, 0.07, 0.09, 0.2])
    norm = shares_norm(reduce_workload(workload), {0: np.sqrt(ends_first)}, math.inf)
    result = plan(workload, Budget(pcost=1.0), centers="tuned")
    assert product_bound < math.sqrt(error_bound(norm) / workload.queries) < result.weighted_rmse


def test_shares_norm_of_unsupported_workload_is_zero():
    missing_group = pairs_in_both_orders()
    missing_group = Workload(missing_group.schema, missing_group.groups[1:])
    with_triple = single_and_pair_groups("prefix", "abs").add(("x0", "x1", "x2"), "marginal")
    # `shares_norm` returns 0 for this workload, because its matrices would be too large.
    large = Workload.all_ways(cube(40, 4), (1, 2), "prefix")
    workloads = (missing_group, with_triple, large, Workload.all_ways(cube(4, 5), (1,), "prefix"))
    for workload in workloads:
        reduced = reduce_workload(workload)
        roots = {
            attribute_class: np.full(n, n**-0.5) for attribute_class, n in reduced.cells.items()
        }
        assert shares_norm(reduced, roots, math.inf) == 0.0


def products(*families, d=5, n=4):
    """Return product queries on ``d`` attributes of ``n`` cells.

    Each pair (k, family) gives one group per set of k attributes.  All groups of a pair have the
    same weight, and groups of different pairs have different weights.
    """
    groups = [Workload.all_ways(cube(n, d), (k,), family).groups for k, family in families]
    weighted = [replace(g, weight=1.0 + i) for i, members in enumerate(groups) for g in members]
    return Workload(cube(n, d), tuple(weighted))


PRODUCTS = {
    "triples": lambda: products((3, "prefix")),
    "all orders": lambda: products((0, "total"), (1, "range"), (2, "prefix"), (3, "range"), d=4),
    "several families": lambda: products((2, "prefix"), (3, "prefix"), (3, "range"), d=4),
    "all attributes": lambda: products((4, "prefix"), d=4, n=3),
    "two cells": lambda: products((1, "prefix"), (3, "prefix"), n=2),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_symmetric_products_match_dense_matrices(name):
    workload = PRODUCTS[name]()
    reduced = reduce_workload(workload)
    (subproblem,) = reduced.subproblems
    s, basis = random_point(reduced, 6)
    weights_by_size = product_weights_by_size(reduced, subproblem)
    names = subproblem.names
    state = State(reduced, s, basis, False)
    symmetric, _ = SymmetricProducts(len(names), 0, weights_by_size).value(state)
    dense, _ = DenseNormBound(reduced, subproblem, dict.fromkeys(names, 2)).value(state)
    assert symmetric == pytest.approx(dense, rel=1e-8)
    assert symmetric <= nuclear_norm(workload, reduced, s) * (1 + 1e-12)


@pytest.mark.parametrize(("n", "d"), [(2, 2), (2, 4), (3, 2)])
def test_model_products_and_sums_match_nuclear_norm(n, d):
    """Sums are necessary: with products only, a bound for two attributes would be 28% too low."""
    workload = products((1, "prefix"), (2, "affine"), *([(3, "prefix")] if d > 2 else []), d=d, n=n)
    reduced = reduce_workload(workload)
    s, basis = random_point(reduced, 10)
    truth = nuclear_norm(workload, reduced, s)
    assert model_bound(reduced, s, basis, columns=n) == pytest.approx(truth, rel=1e-9)


def test_global_bound_single_cells_is_number_of_queries():
    workload = Workload.all_ways(cube(1, 5), (2,), "affine")
    assert global_bound(workload) == pytest.approx(math.comb(5, 2))


def test_product_weights_by_size_asymmetric_products_is_none():
    full = products((2, "prefix"), (3, "prefix"))
    missing_group = Workload(full.schema, full.groups[:-1])
    unequal_weight = Workload(
        full.schema, (*full.groups[:-1], replace(full.groups[-1], weight=7.0))
    )
    mixed = full.add(("x0", "x1", "x2"), {"x0": "prefix", "x1": "range", "x2": "prefix"})
    # Only neighbours on a ring form pairs.  Each attribute is in two pairs, but not all pairs
    # occur.
    ring = Workload(full.schema)
    for i in range(5):
        ring = ring.add((f"x{i}", f"x{(i + 1) % 5}"), "prefix")
    for workload in (missing_group, unequal_weight, mixed, ring):
        reduced = reduce_workload(workload)
        assert all(
            product_weights_by_size(reduced, subproblem) is None
            for subproblem in reduced.subproblems
        )


def test_product_weights_by_size_joint_pairs_has_only_product_sizes():
    pairs_and_triples = products((2, "abs"), (3, "prefix"))
    reduced = reduce_workload(pairs_and_triples)
    assert set(product_weights_by_size(reduced, reduced.subproblems[0])) == {3}


def test_global_bound_many_triples_is_close_to_plan():
    """The lower bound is within 2% of the plan.

    If no function of the cells were combined with the constant function, it would be 7% below.
    """
    workload = products((1, "range"), (3, "prefix"), d=24, n=5)
    result = plan(workload, Budget(pcost=1.0), centers="tuned", cache=False)
    bound = math.sqrt(global_bound(workload) / workload.queries)
    assert bound <= result.weighted_rmse <= 1.02 * bound


def test_workloads_without_symmetric_terms_have_exact_norm():
    full = Workload.all_ways(cube(4, 4), (1, 2), "prefix")
    missing_group = Workload(full.schema, full.groups[:-1])
    unequal_weight = Workload(full.schema, full.groups[:-1]).add(
        full.groups[-1].attributes, "prefix", weight=2.0
    )
    with_triples = Workload.all_ways(cube(3, 4), (1, 2, 3), "prefix")
    random_queries = Custom(np.random.default_rng(0).normal(size=(5, 16)))
    asymmetric = Workload.all_ways(cube(4, 4), (2,), random_queries)
    for workload in (missing_group, unequal_weight, with_triples, asymmetric):
        reduced = reduce_workload(workload)
        assert all(
            symmetric_terms(reduced, subproblem) is None for subproblem in reduced.subproblems
        )
        s, basis = random_point(reduced, 3)
        truth = nuclear_norm(workload, reduced, s)
        assert model_bound(reduced, s, basis, ALL_COLUMNS) == pytest.approx(truth, rel=1e-9)


def unit_vector(vector):
    return vector / np.linalg.norm(vector)


@pytest.mark.parametrize(
    "workload", [*(SHAPES[n] for n in SMALL), *SYMMETRIC.values(), *PRODUCTS.values()]
)
def test_model_gradient_matches_finite_differences(workload):
    reduced = reduce_workload(workload())
    s, basis = random_point(reduced, 4)
    rng = np.random.default_rng(5)
    for columns in (ALL_COLUMNS, 2):
        model = Model(reduced, [columns] * len(reduced.subproblems))
        bound, gradient = model.value(s, basis, True)
        for attribute_class, root in s.items():
            # a direction tangent to the unit sphere, on which the roots stay
            direction = rng.normal(size=len(root))
            direction -= direction @ root * root
            step = 1e-5
            up, down = (
                model_bound(reduced, s | {attribute_class: unit_vector(moved)}, basis, columns)
                for moved in (root + step * direction, root - step * direction)
            )
            expected = pytest.approx((up - down) / (2 * step), rel=1e-5, abs=1e-6 * bound)
            assert gradient[attribute_class] @ direction == expected


def test_root_trace_and_nuclear_do_not_round_up():
    rng = np.random.default_rng(6)
    for rank, order in ((1, 50), (3, 200), (40, 120)):
        # The entries are integers, so the Gram matrix and its null space are exact.
        rows = rng.integers(-3, 4, size=(rank, order)).astype(float)
        truth = float(scipy.linalg.svdvals(rows).sum())
        gram = rows.T @ rows
        trace, _ = root_trace(gram)
        assert truth * (1 - 1e-9) <= trace <= truth
        # roots of the rounding errors of zero eigenvalues would exceed the nuclear norm
        unadjusted = np.sqrt(np.maximum(scipy.linalg.eigvalsh(gram), 0.0)).sum()
        assert unadjusted > truth
        norm, _ = nuclear(rows)
        assert norm <= truth
    assert (lower_eigenvalues(np.array([-1e-15, 1e-15, 1.0]))[:2] == 0.0).all()


def random_small_workload(rng):
    """Return a random workload of all families on at most 300 cells."""
    sizes = rng.integers(2, 7, size=int(rng.integers(1, 5)))
    while math.prod(sizes) > 300:
        sizes = sizes[:-1]
    workload = Workload(Schema([Attribute.of_size("abcd"[i], int(n)) for i, n in enumerate(sizes)]))
    names = workload.schema.names
    if rng.random() < 0.3 and len(names) > 1:
        family = str(rng.choice(["prefix", "range", "marginal"]))
        return Workload.all_ways(cube(int(sizes[0]), min(len(names), 3)), (1, 2), family)
    for _ in range(int(rng.integers(1, 6))):
        chosen = tuple(
            str(name) for name in rng.permutation(names)[: int(rng.integers(1, len(names) + 1))]
        )
        weight = float(rng.choice([0.01, 0.5, 1.0, 2.0, 100.0]))
        kind = rng.random()
        if kind < 0.25 and len(chosen) == 2:
            workload = workload.add(chosen, str(rng.choice(["affine", "abs"])), weight)
        elif kind < 0.4:
            cells = workload.schema.cells(chosen)
            rows = (rng.random((int(rng.integers(1, 9)), cells)) < 0.4).astype(float)
            rows[0, 0] = 1.0
            workload = workload.add(chosen, Custom(rows), weight)
        else:
            words = ["prefix", "range", "marginal", "circular", "suffix", "total"]
            workload = workload.add(
                chosen, {name: str(rng.choice(words)) for name in chosen}, weight
            )
    return workload


@pytest.mark.parametrize(
    "seeds",
    [range(RANDOM), pytest.param(range(RANDOM, 500), marks=pytest.mark.full)],
    ids=["few", "many"],
)
def test_bounds_random_workloads_are_below_optimum(seeds):
    for seed in seeds:
        workload = random_small_workload(np.random.default_rng([7, seed]))
        problem = full_domain_problem(workload)
        optimum = problem.solution(*problem.maximise(Options(gap=1e-4))).value
        assert 0.0 < global_bound(workload, seconds=2.0) <= optimum * (1 + 1e-9), seed
        assert exact_bound(workload) <= optimum * (1 + 1e-9), seed


@pytest.mark.parametrize(
    ("schema", "queries", "max_gap"),
    [
        ("[10]^40", "prefix", 0.003),
        ("[10]^40", "affine", 0.025),
        pytest.param("CPS", "<=3-way", 0.003, marks=pytest.mark.full),
    ],
)
def test_global_bound_published_workload_is_close_to_plan(schema, queries, max_gap):
    workload = standard_workload(schema, queries)
    result = plan(workload, Budget(pcost=1.0), centers="tuned")
    bound = math.sqrt(global_bound(workload, seconds=5.0) / workload.queries)
    assert bound <= result.weighted_rmse <= bound * (1 + max_gap)


def test_global_bound_time_limit_returns_best_value(monkeypatch):
    workload = standard_workload("CPS", "<=3-way")
    original, calls = Model.value, 0

    def counted_value(*args, **kwargs):
        nonlocal calls
        calls += 1
        return original(*args, **kwargs)

    monkeypatch.setattr(Model, "value", counted_value)
    assert global_bound(workload, seconds=0.0) > 0.0
    assert calls == 2  # one evaluation at the start and one after the first step
    assert global_bound(workload, steps=0) == global_bound(workload, steps=0, seconds=0.0)


def test_model_value_grows_with_number_of_basis_functions():
    reduced = reduce_workload(standard_workload("CPS", "<=3-way"))
    s, _ = random_point(reduced, 8)
    basis = basis_by_importance(reduced, s)
    assert model_bound(reduced, s, basis, columns=1) < model_bound(reduced, s, basis, columns=2)


def test_largest_entry_bound_single_query_equals_optimum():
    workload = Workload(numeric(40, 30, 20)).add(
        ("a", "b", "c"), Custom(predicates=["a >= 20 and b <= 7 or c > 12"])
    )
    square, method = best_bound(workload)
    assert square == pytest.approx(1.0)
    assert "coefficient" in method


@pytest.mark.parametrize("cells", [3, 600])
def test_best_bound_zero_queries_is_zero(cells):
    workload = Workload(cube(cells, 1)).add("x0", Custom([[0.0] * cells]))
    assert best_bound(workload)[0] == 0.0


def test_starting_roots_of_intervals_match_search_with_matrices(monkeypatch):
    workload = Workload(numeric(30, 4)).add("a", "prefix", weight=3.0)
    workload = workload.add(("a", "b"), {"a": "range", "b": "marginal"})
    reduced = reduce_workload(workload)
    with_matrices = list(starting_roots(reduced))
    monkeypatch.setattr("engine.bounds.lower_bounds.MIN_LINEAR_CELLS", 2)
    of_intervals = list(starting_roots(reduced))
    norms = [nuclear_norm(workload, reduced, roots) for roots in of_intervals]
    expected = [nuclear_norm(workload, reduced, roots) for roots in with_matrices]
    assert norms == pytest.approx(expected, rel=1e-3)


def test_only_interval_queries_have_single_intervals(monkeypatch):
    monkeypatch.setattr("engine.bounds.lower_bounds.MIN_LINEAR_CELLS", 2)
    intervals = Workload(numeric(5, 4)).add(("a", "b"), "prefix")
    assert single_intervals(reduce_workload(intervals), 0) is not None
    for other in ("affine", {"a": Custom(np.eye(5)[:3]), "b": "prefix"}):
        workload = intervals.add(("a", "b"), other)
        assert single_intervals(reduce_workload(workload), 0) is None


def test_best_bound_wide_attribute_is_named_in_error():
    workload = Workload(Schema([Attribute.of_size("age", 3), Attribute.of_size("day", 2_001)]))
    with pytest.raises(LimitExceeded, match="day"):
        best_bound(workload.add(("age", "day"), "prefix"))


def test_largest_entry_bound_with_weights_is_below_optimum():
    rng = np.random.default_rng(0)
    workload = Workload(numeric(5, 4)).add(
        "a", "prefix", weight=2.0, query_weights=rng.uniform(0, 1, 5)
    )
    both = {"a": "suffix", "b": "range"}
    workload = workload.add(("a", "b"), both, query_weights=rng.uniform(0, 1, 50))
    # every query of these families counts the records of at least one cell
    total = sum(g.weight * g.query_weights.sum() for g in workload.groups)
    assert largest_entry_bound(workload) == pytest.approx(total)
    assert largest_entry_bound(workload) <= exact_bound(workload)
    assert largest_entry_bound(workload, "laplace") == pytest.approx(2.0 * total)


@pytest.mark.parametrize(
    "groups",
    [
        [("prefix", 1.0)],
        [("range", 1.0), ("suffix", 3.0), ("total", 5.0)],
        [("marginal", 2.0), ("total", 50.0)],
    ],
)
def test_best_bound_intervals_equals_exact_bound(groups):
    workload = Workload(cube(120, 1))
    for family, weight in groups:
        workload = workload.add("x0", family, weight=weight)
    for law in ("gaussian", "laplace"):
        expected = exact_bound(workload, law=law)
        assert best_bound(workload, law)[0] == pytest.approx(expected, rel=2e-4)


def test_best_bound_thousands_of_prefixes_is_close_below_plan():
    workload = Workload(cube(3_650, 1)).add("x0", "prefix")
    result = plan(workload, Budget(pcost=1.0), cache=False)
    bound = math.sqrt(best_bound(workload)[0] / workload.queries)
    assert bound < result.weighted_rmse < 1.04 * bound
    assert result.certificate.global_gap > 0.0
