"""Variances of product queries: quadratic forms give the same as listing all products."""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from engine.mechanisms import at_budget, load_plan, plan
from engine.mechanisms.base import Limits
from engine.mechanisms.querysmasher import QuerySmasher
from engine.mechanisms.residual_base import ResidualMechanism
from engine.plans import Plan, group_variance, variance_builder
from engine.plans.blocks import LazyBlocks, total_pcost
from engine.plans.group_variance import quadratic_forms, squared_norms_of_products
from engine.plans.variance_builder import VarianceBuilder, variances_by_class
from engine.privacy import Budget
from engine.residuals import Complement, Split
from engine.residuals.tuning.unions import variance_seconds
from engine.workload import Custom, Workload, joint_part
from tests.shapes import numeric


def set_listing(monkeypatch: pytest.MonkeyPatch, *, listed: bool) -> None:
    """Make the engine compute variances from listed queries (True) or by quadratic forms (False)."""
    for module in (group_variance, variance_builder):
        monkeypatch.setattr(module, "prefers_quadratic_forms", lambda shapes, columns: not listed)


def test_quadratic_forms_match_all_products() -> None:
    rng = np.random.default_rng(0)
    rows = [rng.normal(size=shape) for shape in ((4, 2), (2, 3), (3, 2))]
    half = rng.normal(size=(12, 12))
    products = np.einsum("ai,bj,ck->abcijk", *rows).reshape(4, 2, 3, 12)
    expected = np.einsum("abci,ij,abcj->abc", products, half @ half.T, products)
    np.testing.assert_allclose(quadratic_forms(rows, half @ half.T), expected, rtol=1e-12)


@pytest.mark.parametrize("axes", [(0, 1, 2), (2, 0, 1)], ids=str)
@pytest.mark.parametrize("weighted", [False, True], ids=["unweighted", "weighted"])
def test_squared_norms_of_products_match_listed_queries(axes, weighted, monkeypatch) -> None:
    rng = np.random.default_rng(1)
    # 7 queries on the first two axes, 5 on the last axis
    rows = [rng.normal(size=(7, 6)), rng.normal(size=(5, 4))]
    matrix, weights = rng.normal(size=(24, 9)), rng.uniform(0.5, 2.0, 9) if weighted else None
    set_listing(monkeypatch, listed=True)
    expected = squared_norms_of_products(rows, (2, 3, 4), [axes], [matrix], weights)
    set_listing(monkeypatch, listed=False)
    squares = squared_norms_of_products(rows, (2, 3, 4), [axes], [matrix], weights)
    np.testing.assert_allclose(squares, expected, rtol=1e-11)


def mixed_workload() -> Workload:
    """Return groups on (a, b, c) and on pairs of these attributes, in different orders."""
    base = Workload(numeric(5, 4, 3)).add(("c", "a", "b"), "prefix").add(("a", "b", "c"), "range")
    return base.add(("b", "c"), "affine").add(("b", "a"), {"a": "range", "b": "prefix"})


@pytest.mark.parametrize(
    ("union_work", "options"),
    [
        (0, {}),
        (0, {"objective": "max"}),
        (0, {"centers": "tuned"}),
        (30_000, {"centers": "tuned"}),
        (6e7, {"centers": "tuned"}),
    ],
    ids=["uniform", "max", "tuned", "few unions", "all unions"],
)
def test_plan_variances_match_listed_queries(union_work, options, monkeypatch) -> None:
    monkeypatch.setattr("engine.residuals.tuning.unions.MAX_STEP_MULTIPLICATIONS", union_work)
    monkeypatch.setattr("engine.residuals.tuning.unions.MAX_FULL_DOMAIN_MULTIPLICATIONS", 0)
    monkeypatch.setattr("engine.mechanisms.querysmasher.MAX_PRODUCT_SEARCH_S", 0)
    result = (
        plan(mixed_workload(), Budget(pcost=1.0), **options)
        if "centers" in options
        else planned(*options.items())
    )
    assert bool(result.split.unions) == bool(union_work)

    def variances(*, listed: bool) -> list[np.ndarray]:
        set_listing(monkeypatch, listed=listed)
        loaded = load_plan(result.to_json())
        return [loaded.variances(i) for i in range(len(loaded.workload.groups))]

    for forms, expected in zip(variances(listed=False), variances(listed=True), strict=True):
        np.testing.assert_allclose(forms, expected, rtol=1e-9)


@functools.cache
def planned(*options: tuple[str, str]) -> Plan:
    """Return a plan at pcost 1 after its variances have been computed and cached.

    Tests rescale this plan to other budgets.
    """
    workload = (
        mixed_workload()
        if options
        else mixed_workload().add("a", Custom([[1, 0, 0, 0, 0]])).add(())
    )
    result = plan(workload, Budget(pcost=1.0), **dict(options))
    result.by_group()
    return result


@pytest.mark.parametrize("options", [{}, {"objective": "max"}, {"centers": "tuned"}], ids=str)
@pytest.mark.parametrize("pcost", [1e-3, 0.7, 40.0])
def test_at_budget_reuses_search_and_variances(options, pcost, monkeypatch) -> None:
    """Reused variances equal those of a plan that is read from a file, bit by bit."""
    result, budget = planned(*options.items()), Budget(pcost=pcost)
    loaded = load_plan(at_budget(result, budget).to_json())
    expected = loaded.by_group()
    with monkeypatch.context() as patch:
        patch.setattr(ResidualMechanism, "_solve", lambda *_: pytest.fail("solved"))
        patch.setattr(VarianceBuilder, "_separable_terms", lambda *_: pytest.fail("listed"))
        patch.setattr(
            group_variance.GroupVariance, "_sum_of_products", lambda *_: pytest.fail("summed")
        )
        patch.setattr(group_variance, "pareto_front", lambda _: pytest.fail("compared"))
        rescaled = at_budget(result, budget)
        assert rescaled.totals == loaded.totals
        pd.testing.assert_frame_equal(rescaled.by_group(), expected, check_exact=True)
    assert rescaled.to_json() == loaded.to_json()
    for space, block in loaded.blocks.items():
        assert (rescaled.blocks[space].noise, rescaled.blocks[space].grid) == (
            block.noise,
            block.grid,
        )
    for i in range(len(result.workload.groups)):
        np.testing.assert_array_equal(rescaled.variances(i), loaded.variances(i))
    assert (rescaled.certificate, rescaled.statement) == (loaded.certificate, loaded.statement)


def test_plan_large_strategy_uses_quadratic_forms(monkeypatch) -> None:
    """A matrix of all queries by all strategy rows would have 10^8 entries."""
    attribute_counts = []
    forms = group_variance.quadratic_forms

    def recorded_forms(rows, covariance):
        attribute_counts.append(len(rows))  # one array of query rows for each attribute
        return forms(rows, covariance)

    monkeypatch.setattr(group_variance, "quadratic_forms", recorded_forms)
    workload = Workload(numeric(30, 25)).add(("a", "b"), "range").add(("a", "b"), "prefix")
    assert plan(workload, Budget(pcost=1.0), gap=0.5).rmse > 0
    assert 2 in attribute_counts


def workload_with_union(*, joint: bool) -> Workload:
    """Return groups that have zero, one or two attributes in common with the union of a and d.

    With ``joint``, one group has a family of joint queries on two attributes.
    """
    workload = Workload(numeric(6, 5, 3, 2)).add("a", "prefix").add(("d", "a"), "prefix").add(())
    for names in (("b",), ("c", "b"), ("a", "b", "c"), ("d", "b", "a"), ("c", "d")):
        workload = workload.add(names, "prefix", weight=float(len(names)))
    return workload.add(("b", "a"), "affine") if joint else workload


def split_with_union(*, joint: bool) -> Split:
    """Return a split with one union: the residual spaces of the total, a, d and the pair (a, d).

    With ``joint``, it also has a complement for the pair (a, b).
    """
    rng = np.random.default_rng(7)
    rows = [rng.normal(size=(5 * 4, k)) for k in (5, 4)]
    passed = Complement(by_axis=(rows[0], rows[1]), by_total=rng.normal(size=20))
    return Split(
        centers={"a": np.arange(1.0, 7.0) / 21.0, "b": np.array([0.4, 0.3, 0.1, 0.1, 0.1])},
        complements={("a", "b"): passed} if joint else {},
        unions={("a", "d"): ((), ("a",), ("d",), ("a", "d"))},
    )


@pytest.mark.parametrize("joint", [False, True], ids=["products", "joint queries"])
@pytest.mark.parametrize("listed", [False, True], ids=["quadratic forms", "listed queries"])
def test_union_group_variances_match_single_queries(joint, listed, monkeypatch) -> None:
    set_listing(monkeypatch, listed=listed)
    workload, split = workload_with_union(joint=joint), split_with_union(joint=joint)
    mechanism = QuerySmasher(centers="tuned")
    candidate = mechanism.candidate_plan(workload, Budget(pcost=1.0), Limits(), np.inf, split)
    result = candidate.plan
    assert result.split.unions
    for i, group in enumerate(workload.groups):
        queries = joint_part(group)
        tables = queries.family.rows(queries.sizes).reshape(-1, *queries.sizes)
        # the axes of a joint part may be in another order than those of the group
        order = [1 + queries.axes.index(axis) for axis in range(len(group.sizes))]
        tables = tables.transpose(0, *order)
        expected = [result.variance_of(group.attributes, table) for table in tables]
        np.testing.assert_allclose(result.variances(i), expected, rtol=1e-9)
        assert result.group_variance(i).total() == pytest.approx(sum(expected), rel=1e-9)
        assert result.group_variance(i).largest() == pytest.approx(max(expected), rel=1e-9)


def test_union_variances_list_only_attributes_of_union(monkeypatch) -> None:
    """The group (a, b, c) has 30 x 60 x 7 queries; only those on a or b, in a union, are listed."""
    workload = Workload(numeric(30, 60, 7, 2))
    families = {
        "a": "prefix",
        "b": "prefix",
        "c": Custom(np.eye(7)),
        "d": Custom(np.eye(2)),
    }
    for attributes in (1, 2, 3):
        for names in itertools.combinations("abcd", attributes):
            workload = workload.add(names, {name: families[name] for name in names})
    listed_counts = []

    def recorded_joint_part(group):
        listed_counts.append(group.count)
        return joint_part(group)

    monkeypatch.setattr(variance_builder, "joint_part", recorded_joint_part)
    result = plan(workload, Budget(pcost=1.0), centers="tuned")
    unions = result.split.unions
    # rounding errors decide whether there is a second union (joint strategy)
    assert unions
    assert set(unions) <= {("a", "d"), ("b", "d")}
    assert np.isfinite(result.max_variance)
    union_cells = [math.prod(workload.schema.sizes(names)) for names in unions]
    assert max(listed_counts) <= max(union_cells)
    # The queries of equal groups are listed once: per union at most 2 on d, 60 on b, 120 on both.
    assert sum(listed_counts) < 200 * len(unions)
    for names, spaces in unions.items():
        assert variance_seconds(workload, names, spaces) < 1e-3


def test_union_unmeasured_queries_have_infinite_variance(monkeypatch) -> None:
    """A union measures the span of the weighted queries.  Other queries have infinite variance."""
    pair = ("a", "b")
    workload = Workload(numeric(4, 3)).add(pair, "affine").add(pair, "marginal", weight=0.0)
    result = plan(workload, Budget(pcost=1.0), centers="tuned")
    assert result.split.unions
    builder = VarianceBuilder(blocks=result.blocks, split=result.split, schema=result.schema)
    set_listing(monkeypatch, listed=False)
    sums, cells = workload.groups
    # `measures_all` may be False for measured queries, but not True for others
    assert [builder.measures_all(group) for group in (sums, cells)] == [False, False]
    assert np.isfinite(builder.group(sums).values(0, 1)).all()
    assert np.isinf(builder.group(cells).values(0, cells.count)).any()


def test_incomplete_strategy_has_infinite_variances() -> None:
    first_cell = Custom([[1, 0, 0, 0]])
    workload = Workload(numeric(4, 3)).add("a", first_cell).add("a", "marginal", weight=0.0)
    result = plan(workload, Budget(pcost=1.0))
    builder = VarianceBuilder(blocks=result.blocks, split=result.split, schema=result.schema)
    _, marginal = workload.groups
    assert not builder.measures_all(marginal)
    assert np.isinf(builder.group(marginal).values(0, marginal.count)).any()


def test_total_pcost_blocks_with_different_noise_are_separate() -> None:
    """Costs are computed once per class of equal strategy, noise and grid."""
    result = plan(Workload.all_ways(numeric(4, 4), (1,), "prefix"), Budget(pcost=1.0))
    block = result.blocks["a",]
    ((_, strategy),) = block.factors
    blocks = {
        ("same",): block,
        ("noise",): replace(block, noise=2.0 * block.noise),
        ("grid",): replace(block, grid=2.0**10 * block.grid),
        ("weights",): replace(block, weights=np.full(len(strategy.rows), 0.5)),
    }
    costs = [b.pcost(result.max_records) for b in blocks.values()]
    assert len(set(costs)) == 4
    total = total_pcost(blocks, result.max_records)
    assert sum(costs) <= total <= sum(costs) * (1.0 + 1e-9)


def test_variances_by_class_equal_groups_share_one_class() -> None:
    workload = Workload.all_ways(numeric(3, 3, 3, 3), (1, 2), "prefix")
    result = plan(workload, Budget(pcost=1.0), "querysmasher")
    # attribute a has another center, and the pair (b, c) has the strategy of a single attribute
    class_of_key = result.blocks.class_of_key | {("b", "c"): 0}
    assert isinstance(result.blocks, LazyBlocks)
    blocks = replace(result.blocks, class_of_key=class_of_key, _blocks={})
    split = replace(result.split, centers={"a": np.array([0.5, 0.25, 0.25])})
    # the "variances" of a class are the index of the first group of the class
    first_of_class = variances_by_class(blocks, split, workload, lambda group: group)
    assert len(first_of_class) == len(workload.groups)
    classes: dict[int, list[str]] = {}
    for group, first in zip(workload.groups, first_of_class, strict=True):
        classes.setdefault(first, []).append("".join(group.attributes))
    assert list(classes.values()) == [
        ["a"],
        ["b", "c", "d"],
        ["ab", "ac", "ad"],
        ["bc"],
        ["bd", "cd"],
    ]
    variances = [result.group_variance(i) for i in range(len(workload.groups))]
    assert variances == result._group_variance_list


@pytest.mark.parametrize(
    ("max_combinations", "compared_axes"),
    [(0, [10, 36]), (10_000, [10])],
    ids=["many combinations", "few combinations"],
)
@pytest.mark.parametrize("counts", [(36, 10), (10, 36)], ids=str)
def test_largest_variance_avoids_slow_fronts(
    counts, max_combinations, compared_axes, monkeypatch
) -> None:
    # the front of the axis with 36 queries is slow
    monkeypatch.setattr(group_variance, "MIN_SLOW_FRONT_POINTS", 20)
    monkeypatch.setattr(group_variance, "MAX_COMPARED_COMBINATIONS", max_combinations)
    front_sizes = []
    front = group_variance.pareto_front

    def recorded_front(features):
        front_sizes.append(len(features[0]))
        return front(features)

    monkeypatch.setattr(group_variance, "pareto_front", recorded_front)
    rng = np.random.default_rng(0)
    terms = tuple(
        group_variance.VarianceTerm(
            coefficient=coefficient,
            arrays=tuple(((axis,), rng.random(n)) for axis, n in enumerate(counts)),
        )
        for coefficient in (1.0, 2.0, 3.0)
    )
    variances = group_variance.GroupVariance(counts=counts, terms=terms)
    assert variances.largest() == variances.values(0, 360).max()
    assert sorted(front_sizes) == compared_axes
