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
from engine.plans import Plan, group_variance, kronecker_rows, variance_builder
from engine.plans.blocks import LazyBlocks, total_pcost
from engine.plans.kronecker_rows import quadratic_forms, squared_norms_of_products
from engine.plans.variance_builder import VarianceBuilder, variances_by_class
from engine.privacy import Budget
from engine.residuals import Complement, Split
from engine.residuals.tuning.unions import variance_seconds
from engine.workload import Custom, Workload, joint_part
from tests.shapes import numeric


def set_listing(monkeypatch: pytest.MonkeyPatch, *, listed: bool) -> None:
    """Make the engine compute variances from listed queries (True) or by quadratic forms (False)."""
    for module in (kronecker_rows, variance_builder):
        monkeypatch.setattr(module, "prefers_quadratic_forms", lambda shapes, columns: not listed)


def test_quadratic_forms_match_all_products() -> None:
    rng = np.random.default_rng(0)
    rows = [rng.normal(size=shape) for shape in ((4, 2), (2, 3), (3, 2))]
    half = rng.normal(size=(12, 12))
    products = np.einsum("ai,bj,ck->abcijk", *rows).reshape(4, 2, 3, 12)
    expected = np.einsum("abci,ij,abcj->abc", products, half @ half.T, products)
    np.testing.assert_allclose(quadratic_forms(rows, half @ half.T), expected, rtol=1e-12)


@pytest.mark.parametrize("sets", [[(0, 1, 2)], [(2, 0, 1)]])
@pytest.mark.parametrize("weighted", [False, True])
def test_squared_norms_of_products_match_listed_queries(sets, weighted, monkeypatch) -> None:
    rng = np.random.default_rng(1)
    rows = [rng.normal(size=(7, 6)), rng.normal(size=(5, 4))]
    matrix, weights = rng.normal(size=(24, 9)), rng.uniform(0.5, 2.0, 9) if weighted else None
    squares = []
    for listed in (True, False):
        set_listing(monkeypatch, listed=listed)
        squares.append(squared_norms_of_products(rows, (2, 3, 4), sets, [matrix], weights))
    np.testing.assert_allclose(squares[0], squares[1], rtol=1e-11)


def mixed_workload() -> Workload:
    """Return groups on (a, b, c) and on pairs of these attributes, in different orders."""
    base = Workload(numeric(5, 4, 3)).add(("c", "a", "b"), "prefix").add(("a", "b", "c"), "range")
    return base.add(("b", "c"), "affine").add(("b", "a"), {"a": "range", "b": "prefix"})


@pytest.mark.parametrize(
    ("work", "options"),
    [
        (0, {}),
        (0, {"objective": "max"}),
        *((work, {"centers": "tuned"}) for work in (0, 30_000, 6e7)),
    ],
    ids=str,
)
def test_plan_variances_match_listed_queries(work, options, monkeypatch) -> None:
    monkeypatch.setattr("engine.residuals.tuning.unions.MAX_STEP_MULTIPLICATIONS", work)
    monkeypatch.setattr("engine.residuals.tuning.unions.MAX_FULL_DOMAIN_MULTIPLICATIONS", 0)
    monkeypatch.setattr("engine.mechanisms.querysmasher.MAX_PRODUCT_SEARCH_S", 0)
    result = (
        plan(mixed_workload(), Budget(pcost=1.0), **options)
        if "centers" in options
        else planned(*options.items())
    )
    variances_by_method = []
    assert bool(result.split.unions) == bool(work)
    for listed in (True, False):
        set_listing(monkeypatch, listed=listed)
        again = load_plan(result.to_json())
        variances_by_method.append([again.variances(i) for i in range(len(again.workload.groups))])
    for one, other in zip(*variances_by_method, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9)


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
    read = load_plan(at_budget(result, budget).to_json())
    expected = read.by_group()
    with monkeypatch.context() as patch:
        patch.setattr(ResidualMechanism, "_solve", lambda *_: pytest.fail("solved"))
        patch.setattr(VarianceBuilder, "_separable_terms", lambda *_: pytest.fail("listed"))
        patch.setattr(
            group_variance.GroupVariance, "_sum_of_products", lambda *_: pytest.fail("summed")
        )
        patch.setattr(group_variance, "pareto_front", lambda _: pytest.fail("compared"))
        again = at_budget(result, budget)
        assert again.totals == read.totals
        pd.testing.assert_frame_equal(again.by_group(), expected, check_exact=True)
    assert again.to_json() == read.to_json()
    assert [(b.noise, b.grid) for b in again.blocks.values()] == [
        (b.noise, b.grid) for b in read.blocks.values()
    ]
    for i in range(len(result.workload.groups)):
        np.testing.assert_array_equal(again.variances(i), read.variances(i))
    assert (again.certificate, again.statement) == (read.certificate, read.statement)


def test_plan_large_strategy_uses_quadratic_forms(monkeypatch) -> None:
    """A matrix of all queries by all strategy rows would have 10^8 entries."""
    lengths = []
    forms = kronecker_rows.quadratic_forms

    def recorded_forms(rows, covariance):
        lengths.append(len(rows))
        return forms(rows, covariance)

    monkeypatch.setattr(kronecker_rows, "quadratic_forms", recorded_forms)
    workload = Workload(numeric(30, 25)).add(("a", "b"), "range").add(("a", "b"), "prefix")
    assert plan(workload, Budget(pcost=1.0), gap=0.5).rmse > 0
    assert 2 in lengths  # one array of query rows for each attribute


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


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("listed", [False, True])
def test_union_group_variances_match_single_queries(joint, listed, monkeypatch) -> None:
    set_listing(monkeypatch, listed=listed)
    workload = workload_with_union(joint=joint)
    result = (
        QuerySmasher(centers="tuned")
        .candidate_plan(
            workload, Budget(pcost=1.0), Limits(), np.inf, split_with_union(joint=joint)
        )
        .plan
    )
    assert result.split.unions
    for i, group in enumerate(workload.groups):
        variances, shape = result.variances(i), group.sizes
        queries = joint_part(group)
        order = [queries.axes.index(a) for a in range(len(shape))]
        rows = (
            queries.family.rows(queries.sizes)
            .reshape(-1, *queries.sizes)
            .transpose(0, *(1 + a for a in order))
        )
        np.testing.assert_allclose(
            variances, [result.variance_of(group.attributes, row) for row in rows], rtol=1e-9
        )
        assert result.group_variance(i).total() == pytest.approx(variances.sum(), rel=1e-12)
        assert result.group_variance(i).largest() == pytest.approx(variances.max(), rel=1e-12)


def test_union_variances_list_only_attributes_of_union(monkeypatch) -> None:
    """Of 30 x 60 x 7 queries, only those on the attribute in the union are listed."""
    workload = Workload(numeric(30, 60, 7, 2))
    for names in itertools.chain.from_iterable(
        itertools.combinations("abcd", k) for k in (1, 2, 3)
    ):
        workload = workload.add(
            names,
            {n: "prefix" if n in "ab" else Custom(np.eye(7 if n == "c" else 2)) for n in names},
        )
    counts = []

    def recorded_joint_part(group):
        counts.append(group.count)
        return joint_part(group)

    monkeypatch.setattr(variance_builder, "joint_part", recorded_joint_part)
    result = plan(workload, Budget(pcost=1.0), centers="tuned")
    assert result.split.unions
    # rounding errors decide whether there is a second union (joint strategy)
    assert set(result.split.unions) <= {("a", "d"), ("b", "d")}
    assert np.isfinite(result.max_variance)
    assert max(counts) <= max(
        math.prod(workload.schema.sizes(names)) for names in result.split.unions
    )
    assert sum(counts) < 200 * len(
        result.split.unions
    )  # the queries of equal groups are listed once
    assert all(
        variance_seconds(workload, names, spaces) < 1e-3
        for names, spaces in result.split.unions.items()
    )


def test_union_unmeasured_queries_have_infinite_variance(monkeypatch) -> None:
    """A union measures the span of the weighted queries.  Other queries have infinite variance."""
    workload = (
        Workload(numeric(4, 3)).add(("a", "b"), "affine").add(("a", "b"), "marginal", weight=0.0)
    )
    result = plan(workload, Budget(pcost=1.0), centers="tuned")
    assert result.split.unions
    builder = VarianceBuilder(blocks=result.blocks, split=result.split, schema=result.schema)
    set_listing(monkeypatch, listed=False)
    assert [builder.measures_all(group) for group in workload.groups] == [False, False]
    assert np.isfinite(builder.group(workload.groups[0]).values(0, 1)).all()
    assert np.isinf(builder.group(workload.groups[1]).values(0, 12)).any()


def test_incomplete_strategy_has_infinite_variances() -> None:
    workload = (
        Workload(numeric(4, 3)).add("a", Custom([[1, 0, 0, 0]])).add("a", "marginal", weight=0.0)
    )
    result = plan(workload, Budget(pcost=1.0))
    builder = VarianceBuilder(blocks=result.blocks, split=result.split, schema=result.schema)
    assert not builder.measures_all(workload.groups[1])
    assert np.isinf(result.variances(1)).any()


def test_total_pcost_blocks_with_different_noise_are_separate() -> None:
    """Costs are computed once per class of equal strategy, noise and grid."""
    result = plan(Workload.all_ways(numeric(4, 4), (1,), "prefix"), Budget(pcost=1.0))
    block = result.blocks["a",]
    several = [
        block,
        replace(block, noise=2.0 * block.noise),
        replace(block, grid=2.0**10 * block.grid),
    ]
    several.append(replace(block, weights=np.full(block.factors[0][1].rows.shape[:1], 0.5)))
    each = [b.pcost(result.max_records) for b in several]
    assert len(set(each)) == 4
    total = total_pcost({(str(i),): b for i, b in enumerate(several)}, result.max_records)
    assert sum(each) <= total <= sum(each) * (1.0 + 1e-9)


def test_variances_by_class_equal_groups_share_one_class() -> None:
    workload = Workload.all_ways(numeric(3, 3, 3, 3), (1, 2), "prefix")
    result = plan(workload, Budget(pcost=1.0), "querysmasher")
    names = workload.schema.names
    assert isinstance(result.blocks, LazyBlocks)
    other = replace(
        result.blocks, class_of_key=dict(result.blocks.class_of_key) | {names[1:3]: 0}, _blocks={}
    )
    split = replace(result.split, centers={names[0]: np.array([0.5, 0.25, 0.25])})
    class_of_group = variances_by_class(other, split, workload, lambda number: number)
    pairs = {g.attributes: i for i, g in enumerate(workload.groups)}
    assert len(class_of_group) == len(workload.groups)
    # Attribute 0 has another center, and the pair (1, 2) has another strategy. The groups on this
    # attribute and on this pair are therefore in separate classes.
    classes = [[(0,)], [(1,), (2,), (3,)], [(0, 1), (0, 2), (0, 3)], [(1, 2)], [(1, 3), (2, 3)]]
    for attribute_sets in classes:
        members = [pairs[tuple(names[i] for i in places)] for places in attribute_sets]
        assert {class_of_group[i] for i in members} == {members[0]}
    assert [
        result.group_variance(i) for i in range(len(workload.groups))
    ] == result._group_variance_list


@pytest.mark.parametrize("limit", [0, 10_000])
@pytest.mark.parametrize("counts", [(36, 10), (10, 36)])
def test_largest_variance_avoids_slow_fronts(counts, limit, monkeypatch) -> None:
    monkeypatch.setattr(group_variance, "MIN_SLOW_FRONT_POINTS", 20)
    monkeypatch.setattr(group_variance, "MAX_COMPARED_COMBINATIONS", limit)
    compared = []
    front = group_variance.pareto_front

    def recorded_front(features):
        compared.append(len(features[0]))
        return front(features)

    monkeypatch.setattr(group_variance, "pareto_front", recorded_front)
    rng = np.random.default_rng(0)
    terms = tuple(
        group_variance.VarianceTerm(
            coefficient=k + 1.0, arrays=tuple(((p,), rng.random(n)) for p, n in enumerate(counts))
        )
        for k in range(3)
    )
    variances = group_variance.GroupVariance(counts=counts, terms=terms)
    assert variances.largest() == variances.values(0, 360).max()
    assert sorted(compared) == ([10, 36] if limit == 0 else [10])
