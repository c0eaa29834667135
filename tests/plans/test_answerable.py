"""Answerable queries: finite variances despite rounding; weighted queries are answered."""

from __future__ import annotations

import ast
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine.analysis.compare import compare
from engine.errors import Unanswered
from engine.mechanisms import plan
from engine.mechanisms.registry import MECHANISMS
from engine.plans import Block, Plan
from engine.plans.table_plan import (
    explicit_group_variance,
    explicit_strategy,
    is_table_unmeasured,
    is_unmeasured,
)
from engine.plans.variance_builder import VarianceBuilder
from engine.privacy import Budget
from engine.workload import Attribute, Custom, Schema, Workload
from tests import oracles


def domain(*sizes: int) -> Schema:
    return Schema([Attribute.of_size(f"a{i}", n) for i, n in enumerate(sizes)])


def build_block(schema: Schema, factors) -> Block:
    return Block(attributes=schema.names, factors=tuple(factors), noise=1.0, grid=2.0**-30)


def random_rows(rng: np.random.Generator, rank: int, cells: int, spread: float) -> np.ndarray:
    """Return random rows whose typical norms fall from first to last by a factor of ``spread``."""
    return rng.normal(size=(rank, cells)) * np.geomspace(1.0, 1.0 / spread, rank)[:, None]


@pytest.mark.parametrize(
    "sizes",
    [
        (6,) * 4,
        pytest.param((3,) * 7, marks=pytest.mark.full),
        pytest.param((7,) * 4, marks=pytest.mark.full),
    ],
    ids=str,
)
def test_optimum_plan_answers_all_groups(sizes: tuple[int, ...]) -> None:
    workload = Workload.all_ways(domain(*sizes), (1, 2), "prefix")
    result = plan(workload, Budget(pcost=1.0), "optimum", gap=0.05)
    table = result.by_group()
    assert np.isfinite(table["max_std"]).all()
    # equal attributes have equal errors up to the gap of the search
    for _, group_rows in table.groupby("queries"):
        assert group_rows["rmse"].max() <= group_rows["rmse"].min() * 1.2
    *_, before_last, last = result.schema.names
    total = np.ones(sizes[-1])  # the last prefix
    single_attributes = len(sizes)
    last_prefix_variance = result.variances(single_attributes - 1)[-1]
    assert result.variance_of((last,), total) == pytest.approx(last_prefix_variance)
    one_cell = np.zeros(sizes[-2:])
    one_cell[1, 0] = 1.0
    assert math.isfinite(result.variance_of((before_last, last), one_cell))


@pytest.mark.parametrize("spread", [1.0, 1e4, 1e8])
def test_explicit_variance_unmeasured_component_is_infinite(spread: float) -> None:
    rng, sizes, cells = np.random.default_rng(4), (4, 5, 60), 1200
    schema = domain(*sizes)
    rows = random_rows(rng, 40, cells, spread)
    strategy = explicit_strategy(rows, sizes)
    block = build_block(schema, [((0, 1, 2), strategy)])
    measured = rng.normal(size=(6, 40)) @ (rows / np.linalg.norm(rows, axis=1, keepdims=True))
    unmeasured = rng.normal(size=(6, cells))
    unmeasured -= (unmeasured @ strategy.span) @ strategy.span.T
    norms = [np.linalg.norm(queries, axis=1, keepdims=True) for queries in (measured, unmeasured)]
    unmeasured *= norms[0] / norms[1]
    # An unmeasured component of 1e-5 of the norm counts; 1e-8 is treated as a rounding error.
    queries = np.concatenate([measured, measured + 1e-5 * unmeasured, measured + 1e-8 * unmeasured])
    expected = [False] * 6 + [True] * 6 + [False] * 6
    for scale in (1e-9, 1.0, 1e9):
        workload = Workload(schema).add(schema.names, Custom(scale * queries))
        variances = explicit_group_variance(workload.groups[0], block).values(0, len(queries))
        assert np.isinf(variances).tolist() == expected
        tables = (scale * queries).reshape(-1, *sizes)
        assert [is_unmeasured(block, schema.names, table) for table in tables] == expected


def test_explicit_variance_crossing_factors_matches_full_table() -> None:
    rng, schema = np.random.default_rng(7), domain(3, 4, 3, 2)
    # one factor on a2 and a0 of rank 4, one on a1 that measures two cells, one for the sum over a3
    pair = explicit_strategy(random_rows(rng, 4, 9, 1.0), (3, 3))
    two_cells = explicit_strategy(np.eye(4)[:2], (4,))
    total = explicit_strategy(np.ones((1, 2)), (2,))
    block = build_block(schema, [((2, 0), pair), ((1,), two_cells), ((3,), total)])
    span = np.einsum("abi,cj,dk->bcadijk", pair.span.reshape(3, 3, 4), two_cells.span, total.span)
    span = span.reshape(72, -1)
    measured_pair = (rng.normal(size=(3, 4)) @ pair.rows).reshape(3, 3, 3).transpose(0, 2, 1)
    measured = np.einsum("qac,b->qabc", measured_pair, np.eye(4)[1])
    queries = np.concatenate([measured, rng.normal(size=(2, 3, 4, 3))])
    workload = (
        Workload(schema)
        .add(("a0", "a1", "a2"), Custom(queries.reshape(5, -1)))
        .add(
            ("a2", "a3", "a1", "a0"),
            {"a2": Custom(np.eye(3)[:2]), "a3": "total", "a1": "prefix", "a0": "marginal"},
        )
        .add(("a1", "a0", "a2"), {"a1": Custom(np.eye(4)[[0, 3]]), "a0": "total", "a2": "total"})
        .add(("a3",), "marginal")
        .add((), "total")
    )
    rows = np.concatenate(oracles.workload_rows(workload))
    outside_span = np.linalg.norm(rows - (rows @ span) @ span.T, axis=1)
    unmeasured = outside_span > 1e-6 * np.linalg.norm(rows, axis=1)
    variances = [
        explicit_group_variance(group, block).values(0, group.count) for group in workload.groups
    ]
    np.testing.assert_array_equal(np.isinf(np.concatenate(variances)), unmeasured)
    assert 0 < unmeasured.sum() < len(unmeasured)
    for names in (("a1",), ("a2", "a0"), ()):
        assert is_table_unmeasured(block, names)
    all_cells = build_block(domain(3), [((0,), explicit_strategy(np.eye(3), (3,)))])
    assert not is_table_unmeasured(all_cells, ("a0",))


def test_by_group_unmeasured_groups_are_infinite() -> None:
    schema = domain(3, 3, 3, 3, 3)
    # the answers to these queries are always 0
    zero_rows = Custom(np.zeros((2, 3)))
    workload = Workload(schema).add("a0", "marginal")
    for name, family in zip(
        schema.names[1:], (zero_rows, zero_rows, "marginal", "marginal"), strict=True
    ):
        workload = workload.add(name, family, weight=0.0)
    for mechanism in ("hdmm", "querysmasher"):
        result = plan(workload, Budget(pcost=1.0), mechanism)
        table = result.by_group()
        assert np.isinf(table["max_std"]).tolist() == [False, False, False, True, True]
        assert np.isinf(table["rmse"]).tolist() == [False, False, False, True, True]
        assert (result.max_variance, result.rmse) == (math.inf, math.inf)
        assert math.isfinite(result.weighted_rmse)


def test_engine_caches_do_not_use_object_ids() -> None:
    # After an object is deleted, a new object may have the same id.
    calls = [
        f"{file.name}:{node.lineno}"
        for package in (
            "plans",
            "mechanisms",
            "release",
            "ledger",
            "records",
            "common_mechanism",
            "residuals",
            "bounds",
        )
        for file in (Path(__file__).parents[2] / "engine" / package).rglob("*.py")
        # only files with the text id( are parsed, to save time
        if re.search(r"\bid\s*\(", text := file.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "id"
    ]
    assert calls == []


@pytest.mark.parametrize("mechanism", [m.name for m in MECHANISMS])
def test_plan_unanswered_weighted_query_is_refused(mechanism: str) -> None:
    schema = domain(4, 3, 5)
    workload = Workload(schema).add(("a0", "a1"), "marginal").add("a0", "marginal")
    laws = {m.name: m.laws for m in MECHANISMS}[mechanism]
    budget = Budget(pcost=1.0) if "gaussian" in laws else Budget.pure(1.0)
    result = plan(workload, budget, mechanism)

    def with_unmeasured_group(family, **weights) -> Plan:
        more_workload = workload.add("a2", family, **weights)
        if not hasattr(result, "answered_by"):
            return replace(result, workload=more_workload)
        # -1: no block answers the group
        return replace(result, workload=more_workload, answered_by=(*result.answered_by, -1))

    assert with_unmeasured_group("prefix", weight=0.0).rmse == math.inf
    # the answer of the first query is always 0
    one_of_two = Custom([[0, 0, 0, 0, 0], [1, 0, 0, 0, 0]])
    zero_weight_of_unmeasured = with_unmeasured_group(one_of_two, query_weights=[2.0, 0.0])
    assert math.isfinite(zero_weight_of_unmeasured.weighted_rmse)
    for weights in ({"weight": 1e-30}, {"query_weights": [1e-9, 0.0, 0.0, 0.0, 0.0]}):
        with pytest.raises(Unanswered, match="group 2"):
            with_unmeasured_group("prefix", **weights)


@pytest.mark.parametrize("mechanism", ["optimum", "hdmm"])
def test_unanswered_group_of_tiny_weight_is_refused(mechanism: str) -> None:
    answered = Workload(domain(6, 5, 4)).add(("a0", "a1"), "prefix")
    tiny_weight = answered.add("a2", "prefix", weight=1e-30)
    with pytest.raises(Unanswered, match="group 1"):
        plan(tiny_weight, Budget(pcost=1.0), mechanism)
    (row,) = compare(tiny_weight, Budget(pcost=1.0), [mechanism]).to_dict("records")
    assert "group 1" in row["status"]
    zero_weight = answered.add("a2", "prefix", weight=0.0)
    assert math.isfinite(plan(zero_weight, Budget(pcost=1.0), mechanism).weighted_rmse)


def test_plan_checks_answers_without_listing_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many ranges are replaced by a few rows with the same Gram matrix, hence the same span."""
    schema = domain(5, 4, 4)
    ranges = Workload(schema).add(schema.names, "range").add(schema.names, "prefix")
    narrow = Workload(domain(6, 6)).add(("a0", "a1"), "affine")
    with monkeypatch.context() as patch:
        patch.setattr(VarianceBuilder, "_squared_norms", lambda *_: pytest.fail("queries listed"))
        plans = [plan(workload, Budget(pcost=1.0), cache=False) for workload in (ranges, narrow)]
    assert any(not s.complete for _, s in plans[1].blocks["a0", "a1"].factors)
    assert all(math.isfinite(result.rmse) for result in plans)


def test_measures_all_is_false_for_unmeasured_differences() -> None:
    """A plan for bounds on sums of two attributes does not answer bounds on their differences."""
    pair = ("a0", "a1")
    sums = Workload(domain(6, 6)).add(pair, "affine")
    result = plan(sums, Budget(pcost=1.0), cache=False)
    sums_and_differences = sums.add(pair, "abs")
    with pytest.raises(Unanswered):
        replace(result, workload=sums_and_differences)
    builder = VarianceBuilder(blocks=result.blocks, split=result.split, schema=sums.schema)
    measures_all = [builder.measures_all(group) for group in sums_and_differences.groups]
    assert measures_all == [True, False]
