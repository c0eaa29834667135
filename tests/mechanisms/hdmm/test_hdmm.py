"""HDMM's searches against explicit matrices on small domains, their gradients, bounds and sensitivities."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
import scipy.optimize

from engine.errors import NotApplicable, PlanError
from engine.mechanisms import forecast
from engine.mechanisms import hdmm as mechanism
from engine.mechanisms.hdmm import (
    OPERATORS,
    Lattice,
    best_of,
    budget_shares,
    closed_form,
    lattice_of,
    marginal_objective,
    marginal_strategy,
    marginal_svd_bound,
    merge_clusters,
    planned_problems,
    plus_strategy,
    residual_traces,
)
from engine.mechanisms.hierarchical import svd_bound
from engine.mechanisms.kronecker import (
    GramBuilder,
    KroneckerSolver,
    by_maximal_sets,
    by_sets,
    default_p,
    gaussian_strategy,
    p_identity_error,
    p_identity_rows,
    p_identity_strategy,
    weighted_groups,
)
from engine.workload import Attribute, Custom, Range, Schema, Workload
from engine.workload.families import Prefix, Random
from tests import oracles, shapes

NOISES = ("gaussian", "laplace")
SMALL = [name for name, make in shapes.SHAPES.items() if math.prod(a.size for a in make().schema.attributes) <= 130]


def numeric(*sizes):
    return Schema([Attribute.of_size("abcdefgh"[i], n) for i, n in enumerate(sizes)])


def full_rows(schema, component):
    """Strategy rows of a component on the full domain, shape (measurements, N)."""
    sizes, names = [a.size for a in schema.attributes], list(schema.names)
    cells, out = oracles.codes(sizes), np.ones((1, math.prod(sizes)))
    for axes, strategy in component.factors:
        own = np.zeros(len(cells), dtype=int)
        for column in (names.index(component.attributes[a]) for a in axes):
            own = own * sizes[column] + cells[:, column]
        out = np.array([a * b for a in out for b in strategy.rows[:, own]])
    return out


def noise_std(noise, share):
    return 1.0 / math.sqrt(share) if noise == "gaussian" else math.sqrt(2.0) / share


def variances(rows, std, queries):
    """Variance of every query by least squares from rows with noise of the given deviations; rows must support them."""
    whitened = rows / np.asarray(std)[:, None]
    pinv = np.linalg.pinv(whitened, rcond=1e-9)
    assert np.abs(queries @ pinv @ whitened - queries).max() < 1e-6
    return np.sum((queries @ pinv) ** 2, axis=1)


def brute_force(workload, strategy):
    """Weighted squared error of a strategy on explicit matrices, and its sensitivity at unit budget."""
    W, weights = oracles.workload_rows(workload), oracles.query_weights(workload)
    rows = [full_rows(workload.schema, c) for c in strategy.components]
    std = [noise_std(strategy.noise, c.share) for c in strategy.components]
    total = 0.0
    for k in weighted_groups(workload):
        if strategy.marginals is not None:
            own, own_std = np.concatenate(rows), np.repeat(std, [len(r) for r in rows])
        else:
            (c,) = [i for i, component in enumerate(strategy.components) if k in component.groups]
            own, own_std = rows[c], np.full(len(rows[c]), std[c])
        asked = weights[k] > 0
        total += float(weights[k][asked] @ variances(own, own_std, W[k][asked]))
    stacked = np.concatenate([r / s for r, s in zip(rows, std, strict=True)])
    if strategy.noise == "gaussian":
        return total, float(np.max(np.sum(stacked**2, axis=0)))
    return total, math.sqrt(2.0) * float(np.max(np.sum(np.abs(stacked), axis=0)))


def every_pair():
    """Shapes and operators with one noise each, which takes turns with both; the other noise in full runs alone."""
    for (s, shape), (o, operator), (n, noise) in itertools.product(*map(enumerate, (SMALL, OPERATORS, NOISES))):
        yield pytest.param(shape, operator, noise, marks=[pytest.mark.full] if (s + o + n) % 2 else [])


@pytest.mark.parametrize(("shape", "operator", "noise"), list(every_pair()))
def test_the_error_is_that_of_the_explicit_mechanism_at_unit_budget(shape, operator, noise):
    workload = shapes.SHAPES[shape]()
    found = best_of(workload, noise, operators=(operator,), restarts=1, gap=1e-3).best
    error, cost = brute_force(workload, found)
    assert found.squared_error == pytest.approx(error, rel=1e-6)
    assert cost == pytest.approx(1.0, rel=1e-9)
    if found.bound is not None:
        assert found.bound <= error * (1 + 1e-9)


@pytest.mark.parametrize("noise", NOISES)
def test_every_factor_has_sensitivity_one_and_shares_add_up(noise):
    workload = Workload.all_ways(numeric(3, 4, 5), (1, 2), "prefix")
    for operator in OPERATORS:
        found = best_of(workload, noise, operators=(operator,), restarts=1).best
        assert sum(c.share for c in found.components) == pytest.approx(1.0, rel=1e-12)
        for _, strategy in itertools.chain.from_iterable(c.factors for c in found.components):
            norms = np.linalg.norm(strategy.rows, ord=2 if noise == "gaussian" else 1, axis=0)
            assert norms.max() == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize("noise", NOISES)
def test_equal_seeds_give_equal_strategies(noise):
    workload = Workload.all_ways(numeric(4, 5), (1, 2), "prefix")
    one, two = (best_of(workload, noise, restarts=2, seed=5).best for _ in range(2))
    assert one.operator == two.operator
    for a, b in zip(one.components, two.components, strict=True):
        assert a.share == b.share
        assert all(np.array_equal(x[1].rows, y[1].rows) for x, y in zip(a.factors, b.factors, strict=True))


@pytest.mark.parametrize("rows", [Prefix().rows((9,)), Range().rows((8,)), Random(count=5, seed=3).rows((3, 3))])
def test_the_gaussian_strategy_reaches_the_oracle_optimum(rows):
    gram = rows.T @ rows
    found = gaussian_strategy(gram)
    low, high = oracles.optimum(gram)
    assert found.value == pytest.approx(math.sqrt(low * high), rel=1e-5)
    assert svd_bound(gram) <= found.bound * (1 + 1e-9) <= found.value * (1 + 2e-9)
    assert float(np.sum(found.strategy.covariance * gram)) == pytest.approx(found.value, rel=1e-9)
    assert np.allclose(rows @ found.strategy.pinv @ found.strategy.rows, rows, atol=1e-6)


@pytest.mark.parametrize("p", [1, 3])
def test_the_p_identity_error_and_its_gradient(p):
    rng = np.random.default_rng(4)
    gram, theta = Range().gram((6,)) + 0.1 * np.eye(6), rng.random((p, 6))
    A = p_identity_rows(theta)
    assert np.allclose(np.abs(A).sum(axis=0), 1.0)
    error, gradient = p_identity_error(theta, gram)
    assert error == pytest.approx(float(np.trace(np.linalg.inv(A.T @ A) @ gram)), rel=1e-9)
    numbers = scipy.optimize.approx_fprime(theta.ravel(), lambda x: p_identity_error(x.reshape(p, 6), gram)[0], 1e-7)
    assert np.allclose(gradient.ravel(), numbers, rtol=1e-4, atol=1e-4)


def test_p_identity_strategies_beat_the_identity_and_keep_the_best_start():
    gram = Prefix().gram((32,))
    one, many = (p_identity_strategy(gram, restarts=r, seed=1) for r in (1, 4))
    assert many.error <= one.error < 0.7 * float(np.trace(gram))
    assert float(np.sum(many.inverse * gram)) == pytest.approx(many.error, rel=1e-6)
    assert np.allclose(many.inverse, np.linalg.inv(many.rows.T @ many.rows), rtol=1e-6)
    assert default_p(gram) == 8


@pytest.mark.parametrize("noise", NOISES)
def test_the_gradient_of_marginal_strategies(noise):
    sizes = {"a": 3, "b": 2, "c": 4}
    sets = [s for k in range(4) for s in itertools.combinations(sizes, k)]
    lattice, rng = Lattice(sizes, sets), np.random.default_rng(0)
    traces, theta = rng.random(8) * (np.arange(8) < 7), rng.random(8) + 0.1
    gradient = marginal_objective(theta, lattice, traces, noise)[1]
    numbers = scipy.optimize.approx_fprime(theta, lambda x: marginal_objective(x, lattice, traces, noise)[0], 1e-7)
    assert np.allclose(gradient, numbers, atol=1e-5)


def test_precisions_are_eigenvalues_of_the_explicit_strategy():
    sizes = {"a": 3, "b": 2, "c": 4}
    sets = [s for k in range(4) for s in itertools.combinations(sizes, k)]
    v = np.random.default_rng(1).random(8)
    names, N = list(sizes), 24
    M = np.zeros((N, N))
    for s, share in zip(sets, v, strict=True):
        own = np.ones((1, 1))
        for name, n in sizes.items():
            own = np.kron(own, np.eye(n) if name in s else np.ones((n, n)))
        M += share * own
    closed = Lattice(sizes | {"d": 5}, sets)  # not all subsets of four: the sparse form
    for lattice in (Lattice(sizes, sets), closed):
        for s, f in zip(lattice.sets, lattice.precision(v), strict=True):
            P = oracles.residual_projector(list(sizes.values()), [names.index(a) for a in s])
            outside = math.prod(n for name, n in sizes.items() if name not in s)
            assert np.allclose(M @ P, f * outside * P)
        assert np.allclose(lattice.inverse(lattice.precision(v)), v)


def _lattice(workload):
    traces = residual_traces(workload)
    lattice = lattice_of(workload, list(traces))
    return lattice, np.array([traces.get(s, 0.0) for s in lattice.sets])


def test_the_closed_forms_of_marginal_workloads():
    workload = Workload.all_ways(numeric(3, 4, 2), (0, 1, 2, 3), "marginal")
    lattice, traces = _lattice(workload)
    gram = oracles.weighted_gram(workload)
    assert marginal_svd_bound(lattice, traces) == pytest.approx(svd_bound(gram), rel=1e-9)
    v = closed_form(lattice, traces)
    assert v is not None
    assert float(np.sum(traces / lattice.precision(v))) == pytest.approx(svd_bound(gram), rel=1e-9)
    assert marginal_strategy(workload).squared_error == pytest.approx(svd_bound(gram), rel=1e-9)


def test_the_bound_of_gaussian_marginals_is_tight_where_no_closed_form_exists():
    workload = Workload.all_ways(numeric(3, 3, 3, 3, 3), 2, "marginal").add("a", "prefix", weight=0.5)
    assert closed_form(*_lattice(workload)) is None
    found = marginal_strategy(workload)
    assert found.bound <= found.squared_error <= found.bound * (1 + 1e-4)
    assert marginal_svd_bound(*_lattice(workload)) < found.squared_error


def test_many_attributes_measure_subsets_of_what_is_asked():
    workload = Workload.all_ways(numeric(*[3] * 8), 2, "marginal")
    wide = Workload.all_ways(Schema([Attribute.of_size(f"x{i}", 3) for i in range(16)]), 2, "marginal")
    assert len(lattice_of(workload, list(residual_traces(workload))).sets) == 2**8
    found = marginal_strategy(wide)
    assert max(len(s) for s in found.shares) == 2
    assert found.bound <= found.squared_error <= found.bound * (1 + 1e-4)


def test_the_svd_bound_multiplies_over_factors():
    G, H = Prefix().gram((4,)), Range().gram((3,))
    singular = np.linalg.svd(np.kron(Prefix().rows((4,)), Range().rows((3,))), compute_uv=False)
    assert svd_bound(G, H) == pytest.approx(float(singular.sum()) ** 2 / 12, rel=1e-9)
    assert svd_bound(G, H, np.ones((5, 5))) == pytest.approx(svd_bound(np.kron(G, H)), rel=1e-9)


@pytest.mark.parametrize(("noise", "power"), [("gaussian", 1), ("laplace", 2)])
def test_budget_shares_are_optimal(noise, power):
    errors, rng = np.array([1.0, 7.0, 30.0]), np.random.default_rng(0)
    shares, value = budget_shares(errors, noise)
    assert value == pytest.approx(float(np.sum(errors / shares**power)))
    for _ in range(50):
        other = np.abs(shares + 0.05 * rng.standard_normal(3))
        assert float(np.sum(errors / (other / other.sum()) ** power)) >= value * (1 - 1e-12)


def test_a_product_workload_has_a_product_optimum():
    workload = Workload(numeric(4, 5)).add(("a", "b"), {"a": "prefix", "b": "range"})
    kron = best_of(workload, operators=("OPT_kron",), gap=1e-7).best
    whole = best_of(workload, operators=("OPT_0",), gap=1e-7).best
    assert kron.squared_error == pytest.approx(whole.squared_error, rel=1e-5)


def test_the_published_example_of_two_prefixes():
    workload = Workload(numeric(100, 100)).add("a", "prefix").add("b", "prefix")
    found = best_of(workload, "laplace", operators=("OPT_kron", "OPT_plus"), restarts=1)
    published = {"OPT_kron": 33385.0, "OPT_plus": 14252.0}  # squared errors for noise of variance 1, example 15
    for operator, printed in published.items():
        assert found.errors[operator] / 2 <= 1.05 * printed
    assert found.best.operator.startswith("OPT_plus")


def test_all_pairs_of_a_small_domain_reach_the_published_errors():
    workload = Workload.all_ways(numeric(2, 5, 50, 100), 2, "marginal")
    found = best_of(workload, "laplace", restarts=2)
    for operator, printed in {"OPT_kron": 213_270, "OPT_plus": 85_070, "OPT_marginals": 62_886}.items():  # table 3
        assert found.errors[operator] / 2 <= 1.001 * printed
    assert found.best.operator.startswith("OPT_marginals")


def test_merging_never_raises_the_error():
    workload = Workload.all_ways(numeric(2, 3, 4), (1, 2), "prefix")
    builder, solver = GramBuilder(workload), KroneckerSolver("laplace")
    apart = plus_strategy(builder, by_sets(workload), solver, "apart")
    together = plus_strategy(builder, merge_clusters(builder, by_sets(workload), solver), solver, "together")
    assert together.squared_error < apart.squared_error
    assert sorted(k for c in together.components for k in c.groups) == list(range(6))


@pytest.mark.parametrize("sizes", [(3, 4), (2, 9), (3, 4, 6)])
def test_a_forecast_counts_the_problems_that_the_search_solves(monkeypatch, sizes):
    asked = Workload.all_ways(numeric(*sizes), (1, 2))
    found, real = {}, KroneckerSolver.solve

    def solve(self, problem):
        found[problem.key] = problem
        return real(self, problem)

    monkeypatch.setattr(KroneckerSolver, "solve", solve)
    best_of(asked, operators=("OPT_kron", "OPT_plus"))
    # the cells of the units of every problem, whatever attributes it has, and whether its units do not meet
    foretold, solved = (
        Counter((tuple(len(unit[0].matrix) for unit in p.grams), all(len(unit) == 1 for unit in p.grams)) for p in own)
        for own in (planned_problems(asked), found.values())
    )
    # merging goes its own way after the first clusters that it merges
    assert (foretold & solved).total() >= 0.7 * max(foretold.total(), solved.total())
    assert foretold == solved or len(sizes) > 2


def test_clusters_cover_every_weighted_group_once():
    workload = shapes.SHAPES["zero_weight_uncovered"]()
    for clusters in (by_sets(workload), by_maximal_sets(workload)):
        assert sorted(k for c in clusters for k in c) == list(weighted_groups(workload))


def test_a_unit_too_large_says_why():
    workload = Workload(numeric(60, 60)).add(("a", "b"), "affine")
    with pytest.raises(NotApplicable, match="60 x 60 = 3,600 cells"):
        best_of(workload, operators=("OPT_kron",))
    found = best_of(workload)
    assert set(found.refused) == {"OPT_0", "OPT_kron", "OPT_plus"}
    assert found.best.marginals is not None


@pytest.mark.parametrize("bad", [{"noise": "uniform"}, {"operators": ("OPT_9",)}, {"operators": ()}])
def test_unknown_requests_are_refused(bad):
    with pytest.raises(PlanError, match="Choose"):
        best_of(Workload(numeric(3)).add("a"), **bad)


def test_groups_of_zeros_are_seen_as_nothing():
    workload = Workload(numeric(2, 3)).add("a").add("b", Custom([[0, 0, 0], [1, 0, 0]]), query_weights=[1.0, 0.0])
    assert weighted_groups(workload.add("b", Custom([[0, 0, 0]]))) == (0,)


def test_a_workload_without_weight_is_refused():
    with pytest.raises(PlanError, match="weight"):
        best_of(Workload(numeric(3)).add("a", weight=0.0))


def test_a_listener_can_stop_the_search():
    def stop(text):
        raise KeyboardInterrupt(text)

    with pytest.raises(KeyboardInterrupt, match="OPT_0"):
        best_of(Workload(numeric(3)).add("a"), tell=stop)


def test_very_many_groups_are_forecast_without_a_look_at_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every page that compares asks for it."""
    monkeypatch.setattr(mechanism, "planned_problems", lambda *_: pytest.fail("all problems were listed"))
    asked = Workload.all_ways(Schema([Attribute.of_size(f"a{i}", 2) for i in range(60)]), (2,))
    assert forecast(asked, "hdmm").seconds > 10.0
