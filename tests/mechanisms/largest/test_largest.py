"""The largest variance where queries are products over attributes: near the optimum, proven, and read back."""

from __future__ import annotations

import functools
import json
import math

import numpy as np
import pytest

from engine.errors import PlanError
from engine.mechanisms import forecast, load_plan, plan
from engine.mechanisms import residual_base as residual
from engine.mechanisms.minimax import Arranged, Line, is_applicable, is_symmetric_part, line_queries, max_rounds
from engine.plans.objectives import objective
from engine.privacy import Budget
from engine.residuals import Split, basis
from engine.residuals.basis import UNIFORM
from engine.residuals.decomposition import decompose
from engine.workload import Attribute, Group, Schema, Workload
from tests import oracles, shapes
from tests.plans.goals import packed, value_of

ONE = Budget(pcost=1.0)
SLACK = 1e-6


def mixed(*numeric, ways=(1, 2, 3), cells=(3,)):
    """Numeric attributes beside categorical ones of so many cells."""
    return Workload.all_ways(
        Schema(
            [Attribute.of_size(f"n{i}", n) for i, n in enumerate(numeric)]
            + [Attribute.of_size(f"c{i}", n, "categorical") for i, n in enumerate(cells)]
        ),
        ways,
    )


def largest(found):
    return math.sqrt(max(found.variances(i).max() for i in range(len(found.workload.groups))))


@functools.cache
def three():
    return plan(mixed(12, 12, 15, cells=(3, 5)), ONE, objective="max")


def test_plan_and_proof_meet():
    """Weights that all groups share leave 5.7e-3 here, and every space needs strategies of its own."""
    found = three()
    assert found.tradeoff.lines is not None
    assert found.achieved == pytest.approx(largest(found), rel=1e-8)
    assert 0.0 <= found.certificate.gap <= 1.5e-4


def test_the_largest_error_is_that_of_the_matrices():
    found = plan(mixed(5, 4, cells=(2,)), ONE, objective="max")
    assert found.tradeoff.lines is not None
    assert found.achieved == pytest.approx(value_of(found, "max"), rel=1e-8)


@pytest.mark.parametrize(
    ("sizes", "gap"), [((6, 4, 3), 2e-3), pytest.param((9, 8, 7), 6e-3, marks=pytest.mark.full)], ids=str
)
def test_targets_of_groups_are_met_alike(sizes, gap):
    workload = mixed(*sizes)
    targets = [1.0 + 0.5 * len(g.attributes) + 0.1 * i for i, g in enumerate(workload.groups)]
    found = plan(workload, ONE, objective="max", targets=targets)
    shares = [math.sqrt(found.variances(i).max()) / t for i, t in enumerate(targets)]
    assert found.achieved == pytest.approx(max(shares), rel=1e-8)
    assert 0.0 <= found.certificate.gap <= gap


@pytest.mark.parametrize(
    "sizes", [(3, 3, 2), *(pytest.param(s, marks=pytest.mark.full) for s in ((4, 3, 3), (5, 4, 3)))]
)
@pytest.mark.parametrize("family", ["prefix", "range", "circular"])
def test_the_proof_holds_for_weights_of_every_single_query(family, sizes, monkeypatch):
    """Dense searches with a weight for every query reach and bound the same optimum."""
    workload = Workload.all_ways(shapes.numeric(*sizes), (1, 2, 3), family)
    found = plan(workload, ONE, objective="max")
    monkeypatch.setattr(residual, "is_applicable", lambda *_: False)
    single = plan(workload, ONE, objective="max", cache=False)
    assert single.tradeoff.lines is None
    assert found.certificate.lower_bound <= single.achieved * (1 + SLACK)
    assert single.certificate.lower_bound <= found.achieved * (1 + SLACK)
    assert found.certificate.gap <= 2e-3


def test_small_workloads_get_weights_of_single_queries_where_those_do_better(monkeypatch):
    """Many families on the same attributes: products of weights end in a worse plan and prove less."""
    words = {"p": "prefix", "r": "range", "s": "suffix", "t": "total", "m": "marginal"}
    asked = Workload(shapes.numeric(6, 2, 2, 6)).add((), "total")
    for group in ("ac pr", "ad sr", "cd rp", "abc mpp", "abd ppp", "acd rtp", "bcd pmr"):
        names, each = group.split()
        asked = asked.add(tuple(names), {name: words[word] for name, word in zip(names, each, strict=True)})
    found = plan(asked, ONE, objective="max", cache=False)
    monkeypatch.setattr(residual, "WHOLE_QUERIES", 0)
    products = plan(asked, ONE, objective="max", cache=False)
    assert found.tradeoff.lines is None
    assert found.achieved == pytest.approx(value_of(found, "max"), rel=1e-8)
    assert found.achieved < products.achieved
    assert found.certificate.gap <= 3e-3 < products.certificate.gap


def test_the_bound_is_what_its_weights_prove():
    """The optimum of the weighted sum, by brute force, over the sum of weights is at least the bound."""
    found = plan(mixed(3, 4, cells=(2,)), ONE, objective="max")
    workload, emphasis = found.workload, found.tradeoff.emphasis
    weighted, size = Workload(workload.schema), 0.0
    for group, kind in zip(workload.groups, emphasis.kinds, strict=True):
        own = np.ones(1)
        for number in emphasis.uses[kind]:
            own = np.multiply.outer(own, emphasis.vectors[number]).ravel()
        own = emphasis.weights[kind] * own
        weighted, size = weighted.add(group.attributes, group.family, query_weights=own), size + own.sum()
    low, high = (b**2 * workload.queries / size for b in oracles.class_optimum(weighted, 1.0, 1e-5))
    assert low * (1 - 2e-3) <= found.bound <= high * (1 + SLACK)


def test_a_plan_file_is_the_plan():
    found = three()
    again = load_plan(found.to_json())
    assert again.hash == found.hash
    assert again.certificate == found.certificate


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("weights", lambda old: old[:-1]),
        ("weights", lambda old: [packed(1.0, 2.0), *old[1:]]),
        ("weights", lambda old: [packed(-1.0), *old[1:]]),
        ("uses", lambda old: old[:-1]),
        ("uses", lambda old: [[*own, 0] for own in old]),
        ("uses", lambda old: [[99] * len(own) for own in old]),
        ("uses", lambda old: [[-1] * len(own) for own in old]),
    ],
)
def test_damaged_lines_are_refused(field, value):
    document = json.loads(three().to_json())
    lines = document["solved"]["tradeoff"]["lines"]
    lines[field] = value(lines[field])
    with pytest.raises(PlanError):
        load_plan(json.dumps(document))


def test_a_time_limit_leaves_a_plan():
    found = plan(mixed(30, 25, 20, cells=(4,)), ONE, objective="max", time_limit=0.05, cache=False)
    assert found.certificate.gap < 0.5
    assert found.achieved == pytest.approx(largest(found), rel=1e-8)


def test_where_the_search_is_for():
    """Products over single attributes without weights of single queries, two of them at least with unlike cells."""
    goal, two = objective("max"), mixed(5, 4)
    assert is_applicable(two, goal, UNIFORM)
    assert not is_applicable(two, objective("lp", power=3.0), UNIFORM)
    assert not is_applicable(mixed(5, cells=(3, 4)), goal, UNIFORM)
    assert is_applicable(mixed(5, cells=(3, 4)), goal, Split(centers={"c0": np.array([0.5, 0.25, 0.25])}))
    assert not is_applicable(two.add(("n0", "n1"), "affine"), goal, UNIFORM)
    assert not is_applicable(two.add(("n0",), query_weights=np.arange(5.0)), goal, UNIFORM)


def test_cells_are_asked_alike_by_tables_alone():
    def part(family):
        group: Group = Workload(shapes.numeric(4)).add(("a",), family).groups[0]
        return group.parts[0]

    assert is_symmetric_part(part("marginal"), None)
    assert not is_symmetric_part(part("marginal"), np.array([0.4, 0.2, 0.2, 0.2]))
    assert not is_symmetric_part(part("prefix"), None)
    assert not is_symmetric_part(part("range"), None)


def test_a_line_has_the_strategy_of_a_search():
    """Variances of the best strategy for some weights, as the mechanism for the weighted sum finds it."""
    n, weights = 7, np.linspace(1.0, 2.0, 7)
    rows = np.tril(np.ones((n, n)))
    line = Line(rows - rows.mean(axis=1, keepdims=True))
    line.follow(weights)
    line.polish()
    found = plan(Workload(shapes.numeric(n)).add(("a",), "prefix", query_weights=weights), ONE)
    ((_, strategy),) = found.blocks[("a",)].factors
    expected = np.sum((rows @ basis(n) @ strategy.pinv) ** 2, axis=1)
    np.testing.assert_allclose(line.variances, expected, rtol=1e-3, atol=1e-9)


def test_a_forecast_knows_which_search_it_is_of(monkeypatch):
    """Lines are quicker than steps, powers of products are too, and what asks for sums of products has no short way."""
    asked = mixed(12, 15)
    other = Workload(asked.schema).add("n0").add("n1")
    assert [is_applicable(w, objective("max", 2.0, None, w), UNIFORM) for w in (asked, other)] == [True, False]

    def seconds(workload):
        return [forecast(workload, objective=o).seconds for o in ("max", "lp")]

    sums = asked.add(("n0", "n1"), "affine")
    by_lines, by_power = seconds(asked)[0], seconds(other)[1]
    monkeypatch.setattr("engine.mechanisms.residual_base.max_rounds", lambda *_: 0)
    assert by_lines < 0.5 * seconds(asked)[0]
    assert by_power < 0.5 * seconds(other)[0]
    assert seconds(sums)[0] == seconds(sums)[1]


def test_a_forecast_knows_that_many_queries_are_planned_once(monkeypatch):
    asked, goal = mixed(12, 15), objective("max", 2.0, None)
    many = max_rounds(asked, goal, UNIFORM)
    monkeypatch.setattr("engine.mechanisms.minimax.FEW", line_queries(asked, goal, UNIFORM) - 1)
    assert max_rounds(asked, goal, UNIFORM) == 1 < many


def test_the_order_of_the_schema_tells_nothing_apart():
    """Numeric attributes before, between and after categorical ones are asked alike, and so are their groups."""
    sizes = {"c": 3, "n": 9, "d": 4, "m": 9, "e": 5, "k": 9}
    kinds = {name: "categorical" if n < 9 else "numeric" for name, n in sizes.items()}
    workload = Workload.all_ways(
        Schema([Attribute.of_size(name, n, kinds[name]) for name, n in sizes.items()]), (1, 2, 3)
    )
    goal = objective("max", 2.0, None, workload)
    arranged = Arranged(workload, list(decompose(workload).spaces), goal, {}, UNIFORM)
    apart = {tuple(sorted(sizes[name] for name in group.attributes)) for group in workload.groups}
    assert len(arranged.same.examples) == len(apart)
    found = plan(workload, ONE, objective="max", cache=False)
    assert found.tradeoff.lines is not None
    assert found.achieved == pytest.approx(largest(found), rel=1e-8)
    assert 0.0 <= found.certificate.gap <= 5e-4
    assert load_plan(found.to_json()).certificate == found.certificate


@pytest.mark.parametrize(("each", "gap"), [(1.0, 8e-5), (2.0, 5e-4)])
def test_light_queries_come_back_in_time(each, gap):
    """Weights that fall to nothing, and moves that forget the last one, leave 1.0e-4 and 7.2e-4 here."""
    workload = Workload.all_ways(shapes.numeric(10, 10, 10, 10), (1, 2))
    targets = [each ** (len(group.attributes) - 1) for group in workload.groups]
    found = plan(workload, ONE, objective="max", targets=targets, cache=False)
    assert found.tradeoff.lines is not None
    assert 0.0 <= found.certificate.gap <= gap
