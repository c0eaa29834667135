"""Variances of products of queries: factored quadratic forms equal those of all products."""

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
from engine.plans import Plan, variance
from engine.plans import variance as group_variance
from engine.plans.blocks import LazyBlocks, total_pcost
from engine.plans.variance import VarianceBuilder, quadratic_forms, squares_of_products, variances_by_class
from engine.privacy import Budget
from engine.residuals import Complement, Split
from engine.residuals.tuning.unions import union_seconds
from engine.workload import Custom, Workload, joint_part
from tests.shapes import numeric

PLACES = (group_variance, variance)


def listed(monkeypatch: pytest.MonkeyPatch, *, yes: bool) -> None:
    for place in PLACES:
        monkeypatch.setattr(place, "prefers_forms", lambda rows, rank: not yes)


def test_forms_are_those_of_all_products() -> None:
    rng = np.random.default_rng(0)
    rows = [rng.normal(size=shape) for shape in ((4, 2), (2, 3), (3, 2))]
    half = rng.normal(size=(12, 12))
    products = np.einsum("ai,bj,ck->abcijk", *rows).reshape(4, 2, 3, 12)
    expected = np.einsum("abci,ij,abcj->abc", products, half @ half.T, products)
    np.testing.assert_allclose(quadratic_forms(rows, half @ half.T), expected, rtol=1e-12)


@pytest.mark.parametrize("sets", [[(0, 1, 2)], [(2, 0, 1)]])
@pytest.mark.parametrize("weighted", [False, True])
def test_squares_are_the_same_either_way(sets, weighted, monkeypatch) -> None:
    """Also for a matrix with its axes in another order and for weighted measurements."""
    rng = np.random.default_rng(1)
    rows = [rng.normal(size=(7, 6)), rng.normal(size=(5, 4))]
    matrix, weights = rng.normal(size=(24, 9)), rng.uniform(0.5, 2.0, 9) if weighted else None
    found = []
    for yes in (True, False):
        listed(monkeypatch, yes=yes)
        found.append(squares_of_products(rows, (2, 3, 4), sets, [matrix], weights))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-11)


def asked() -> Workload:
    """Groups with attributes in any order, on a complete union and on a part of it."""
    base = Workload(numeric(5, 4, 3)).add(("c", "a", "b"), "prefix").add(("a", "b", "c"), "range")
    return base.add(("b", "c"), "affine").add(("b", "a"), {"a": "range", "b": "prefix"})


@pytest.mark.parametrize(
    ("work", "options"),
    [(0, {}), (0, {"objective": "max"}), *((work, {"centers": "tuned"}) for work in (0, 30_000, 6e7))],
    ids=str,
)
def test_plans_say_the_same_either_way(work, options, monkeypatch) -> None:
    monkeypatch.setattr("engine.residuals.tuning.unions.WORK", work)
    monkeypatch.setattr("engine.residuals.tuning.unions.MAX_FULL_DOMAIN_FLOPS", 0)
    monkeypatch.setattr("engine.mechanisms.querysmasher.PRODUCT", 0)
    made = plan(asked(), Budget(pcost=1.0), **options) if "centers" in options else planned(*options.items())
    found = []
    assert bool(made.split.unions) == bool(work)
    for yes in (True, False):
        listed(monkeypatch, yes=yes)
        again = load_plan(made.to_json())
        found.append([again.variances(i) for i in range(len(again.workload.groups))])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9)


@functools.cache
def planned(*options: tuple[str, str]) -> Plan:
    """Return a plan with cached variances, for all budgets."""
    workload = asked() if options else asked().add("a", Custom([[1, 0, 0, 0, 0]])).add(())
    made = plan(workload, Budget(pcost=1.0), **dict(options))
    made.by_group()
    return made


@pytest.mark.parametrize("options", [{}, {"objective": "max"}, {"centers": "tuned"}], ids=str)
@pytest.mark.parametrize("pcost", [1e-3, 0.7, 40.0])
def test_another_budget_searches_and_lists_nothing_again(options, pcost, monkeypatch) -> None:
    """Reused variances equal those of a plan that is read from a file, bit by bit."""
    made, budget = planned(*options.items()), Budget(pcost=pcost)
    read = load_plan(at_budget(made, budget).to_json())
    expected = read.by_group()
    with monkeypatch.context() as blind:
        blind.setattr(ResidualMechanism, "_solve", lambda *_: pytest.fail("solved again"))
        blind.setattr(VarianceBuilder, "_products", lambda *_: pytest.fail("listed again"))
        if "centers" not in options:  # of the group without attributes a union makes one number
            blind.setattr(group_variance.GroupVariance, "_sum", lambda *_: pytest.fail("added up again"))
            blind.setattr(group_variance, "pareto_front", lambda _: pytest.fail("compared again"))
        again = at_budget(made, budget)
        assert again.totals == read.totals
        pd.testing.assert_frame_equal(again.by_group(), expected, check_exact=True)
    assert again.to_json() == read.to_json()
    assert [(b.noise, b.grid) for b in again.blocks.values()] == [(b.noise, b.grid) for b in read.blocks.values()]
    for i in range(len(made.workload.groups)):
        np.testing.assert_array_equal(again.variances(i), read.variances(i))
    assert (again.certificate, again.statement) == (read.certificate, read.statement)


def test_many_queries_of_a_large_strategy_are_not_listed(monkeypatch) -> None:
    """A matrix of all queries by all strategy rows would have 10^8 entries."""
    lengths = []
    forms = group_variance.quadratic_forms
    monkeypatch.setattr(group_variance, "quadratic_forms", lambda r, C: lengths.append(len(r)) or forms(r, C))
    workload = Workload(numeric(30, 25)).add(("a", "b"), "range").add(("a", "b"), "prefix")
    assert plan(workload, Budget(pcost=1.0), gap=0.5).rmse > 0
    assert 2 in lengths


def beside(*, joint: bool) -> Workload:
    """Groups that share zero to two attributes with a union; ``joint`` has a joint part."""
    workload = Workload(numeric(6, 5, 3, 2)).add("a", "prefix").add(("d", "a"), "prefix").add(())
    for names in (("b",), ("c", "b"), ("a", "b", "c"), ("d", "b", "a"), ("c", "d")):
        workload = workload.add(names, "prefix", weight=float(len(names)))
    return workload.add(("b", "a"), "affine") if joint else workload


def united(*, joint: bool) -> Split:
    """A union of the total, two attributes and their pair, and a complement for another pair."""
    rng = np.random.default_rng(7)
    rows = [rng.normal(size=(5 * 4, k)) for k in (5, 4)]
    passed = Complement(by_axis=(rows[0], rows[1]), by_total=rng.normal(size=20))
    return Split(
        centers={"a": np.arange(1.0, 7.0) / 21.0, "b": np.array([0.4, 0.3, 0.1, 0.1, 0.1])},
        complements={("a", "b"): passed} if joint else {},
        unions={("a", "d"): ((), ("a",), ("d",), ("a", "d"))},
    )


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("yes", [False, True])
def test_variances_beside_a_union_are_those_of_single_queries(joint, yes, monkeypatch) -> None:
    listed(monkeypatch, yes=yes)
    workload = beside(joint=joint)
    made = (
        QuerySmasher(centers="tuned")
        .candidate_plan(workload, Budget(pcost=1.0), Limits(), np.inf, united(joint=joint))
        .plan
    )
    assert made.split.unions
    for i, group in enumerate(workload.groups):
        found, shape = made.variances(i), group.sizes
        queries = joint_part(group)
        order = [queries.axes.index(a) for a in range(len(shape))]
        rows = queries.family.rows(queries.sizes).reshape(-1, *queries.sizes).transpose(0, *(1 + a for a in order))
        np.testing.assert_allclose(found, [made.variance_of(group.attributes, row) for row in rows], rtol=1e-9)
        assert made.group_variance(i).total() == pytest.approx(found.sum(), rel=1e-12)
        assert made.group_variance(i).largest() == pytest.approx(found.max(), rel=1e-12)


def test_parts_that_a_union_does_not_touch_are_a_factor(monkeypatch) -> None:
    """Of 30 x 60 x 7 queries, only those on the attribute in the union are listed."""
    workload = Workload(numeric(30, 60, 7, 2))
    for names in itertools.chain.from_iterable(itertools.combinations("abcd", k) for k in (1, 2, 3)):
        workload = workload.add(
            names, {n: "prefix" if n in "ab" else Custom(np.eye(7 if n == "c" else 2)) for n in names}
        )
    counts = []
    monkeypatch.setattr(variance, "joint_part", lambda group: counts.append(group.count) or joint_part(group))
    made = plan(workload, Budget(pcost=1.0), centers="tuned")
    assert made.split.unions
    assert set(made.split.unions) <= {("a", "d"), ("b", "d")}  # the other gains what rounding decides
    assert np.isfinite(made.max_variance)
    assert max(counts) <= max(math.prod(workload.schema.sizes(names)) for names in made.split.unions)
    assert sum(counts) < 200 * len(made.split.unions)  # what is alike is gone through once
    assert all(union_seconds(workload, names, spaces) < 1e-3 for names, spaces in made.split.unions.items())


def test_what_a_union_does_not_measure_is_seen(monkeypatch) -> None:
    """A union measures the span of the weighted queries; others have infinite variance."""
    workload = Workload(numeric(4, 3)).add(("a", "b"), "affine").add(("a", "b"), "marginal", weight=0.0)
    made = plan(workload, Budget(pcost=1.0), centers="tuned")
    assert made.split.unions
    builder = VarianceBuilder(blocks=made.blocks, split=made.split, schema=made.schema)
    listed(monkeypatch, yes=False)
    assert [builder.all_measured(group) for group in workload.groups] == [False, False]
    assert np.isfinite(builder.group(workload.groups[0]).values(0, 1)).all()
    assert np.isinf(builder.group(workload.groups[1]).values(0, 12)).any()


def test_strategies_that_leave_something_out_are_not_taken_for_complete() -> None:
    workload = Workload(numeric(4, 3)).add("a", Custom([[1, 0, 0, 0]])).add("a", "marginal", weight=0.0)
    made = plan(workload, Budget(pcost=1.0))
    builder = VarianceBuilder(blocks=made.blocks, split=made.split, schema=made.schema)
    assert not builder.all_measured(workload.groups[1])
    assert np.isinf(made.variances(1)).any()


def test_blocks_alike_in_all_but_noise_are_priced_each() -> None:
    """Costs are computed once per class of equal strategy, noise and grid."""
    made = plan(Workload.all_ways(numeric(4, 4), (1,), "prefix"), Budget(pcost=1.0))
    block = made.blocks["a",]
    several = [block, replace(block, noise=2.0 * block.noise), replace(block, grid=2.0**10 * block.grid)]
    several.append(replace(block, weights=np.full(block.factors[0][1].rows.shape[:1], 0.5)))
    each = [b.pcost(made.max_records) for b in several]
    assert len(set(each)) == 4
    priced = total_pcost({(str(i),): b for i, b in enumerate(several)}, made.max_records)
    assert sum(each) <= priced <= sum(each) * (1.0 + 1e-9)


def test_groups_that_differ_in_names_alone_are_looked_at_once() -> None:
    asked = Workload.all_ways(numeric(3, 3, 3, 3), (1, 2), "prefix")
    made = plan(asked, Budget(pcost=1.0), "querysmasher")
    names = asked.schema.names
    assert isinstance(made.blocks, LazyBlocks)
    other = replace(made.blocks, numbers=dict(made.blocks.numbers) | {names[1:3]: 0}, _made={})
    split = replace(made.split, centers={names[0]: np.array([0.5, 0.25, 0.25])})
    looked = variances_by_class(other, split, asked, lambda number: number)
    pairs = {g.attributes: i for i, g in enumerate(asked.groups)}
    assert len(looked) == len(asked.groups)
    # groups with the first attribute, whose centers differ, and groups on the pair with
    # another strategy
    apart = [[(0,)], [(1,), (2,), (3,)], [(0, 1), (0, 2), (0, 3)], [(1, 2)], [(1, 3), (2, 3)]]
    for alike in apart:
        own = [pairs[tuple(names[i] for i in places)] for places in alike]
        assert {looked[i] for i in own} == {own[0]}
    assert [made.group_variance(i) for i in range(len(asked.groups))] == made._each
