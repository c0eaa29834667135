"""Forecasts of wide workloads, which are computed without their queries, and fast transforms."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from engine.mechanisms import forecast
from engine.mechanisms.minimax import is_symmetric_part
from engine.mechanisms.residual_base import TYPICAL_STEPS, table_entries
from engine.residuals import Factor, Options, decomposition, dual_solver
from engine.residuals.basis import Lift
from engine.residuals.decomposition import Decomposition, PredictedFactor, SpaceMapping, decompose
from engine.residuals.dual_solver import FourierProblem, count_symmetries
from engine.residuals.search_costs import low_rank_cost
from engine.workload import Attribute, Part, Schema, Workload, workload
from engine.workload.families import (
    Abs,
    Affine,
    Circular,
    Intervals,
    Marginal,
    Prefix,
    Random,
    Range,
    Total,
    Width,
)
from tests import shapes

FAMILIES = (Marginal(), Prefix(), Range(), Circular(), Total(), Width(1), Width(7), Width(120))


@pytest.mark.parametrize("family", [Affine(), Abs()])
@pytest.mark.parametrize("options", [{}, {"centers": "tuned"}, {"objective": "max"}])
def test_forecast_lists_no_queries_on_wide_pair(
    monkeypatch: pytest.MonkeyPatch, family: Any, options: Any
) -> None:
    workload = Workload(shapes.numeric(90, 60)).add(("a", "b"), family)
    monkeypatch.setattr(type(family), "rows", lambda *_: pytest.fail("queries were listed"))
    with monkeypatch.context() as patch:
        # Forecasts list the queries of an example with few cells, so examples are disabled.
        patch.setattr(PredictedFactor, "example", None)
        assert forecast(workload, **options).seconds > 0.1


@pytest.mark.parametrize("options", [{}, {"centers": "tuned"}, {"mechanism": "hdmm"}])
def test_forecast_many_groups_neither_compares_nor_names(
    monkeypatch: pytest.MonkeyPatch, options: Any
) -> None:
    built = Workload.all_ways(shapes.numeric(*range(3, 11)), (1, 2, 3))
    monkeypatch.setattr(workload, "group_classes", lambda *_: pytest.fail("groups were compared"))
    monkeypatch.setattr(SpaceMapping, "as_dict", property(lambda _: pytest.fail("names were made")))
    assert forecast(built, **options).seconds > 0.0


def test_forecast_of_max_has_one_search_per_step() -> None:
    """Query weights leave the Gram of 30 queries no symmetries, but its rank stays 30."""
    workload = Workload(shapes.numeric(40, 30)).add(("a", "b"), Random(seed=1, count=30))
    workload = workload.add("a", "prefix")
    assert forecast(workload, objective="max").seconds < TYPICAL_STEPS * forecast(workload).seconds


def test_table_entries_multiplies_coupled_parts_only() -> None:
    product = Workload(shapes.numeric(6, 5)).add(("a", "b"), "prefix")
    coupled = product.add(("a", "b"), "affine")
    assert table_entries(product, decompose(product)) == 2**2 * (6 + 5)
    affine = coupled.groups[1].count
    assert table_entries(coupled, decompose(coupled)) == 2**2 * (6 * 5 + affine)


@pytest.mark.parametrize("sizes", [(60, 45), (50, 50), (90, 7)])
@pytest.mark.parametrize("family", ["affine", "abs"])
def test_predicted_factor_has_size_and_symmetries_of_gram(
    monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...], family: str
) -> None:
    monkeypatch.setattr(decomposition, "MAX_FORECAST_PRODUCTS", 0.0)
    workload = Workload(shapes.numeric(*sizes)).add(("a", "b"), family)

    def joint_factor(parts: Decomposition) -> Factor | PredictedFactor:
        """Return the factor of the residual space of both attributes."""
        term = parts.of(("a", "b")).terms[0]
        ((_, index),) = term.factors
        return parts.factors[index]

    computed_factor = joint_factor(decompose(workload))
    predicted_factor = joint_factor(decompose(workload, forecast=True))
    assert isinstance(predicted_factor, PredictedFactor)
    for name in ("low_rank", "dimension", "n_rows", "rank"):
        assert getattr(computed_factor, name) == getattr(predicted_factor, name)
    example = predicted_factor.example
    assert example is not None
    assert count_symmetries(computed_factor, Lift(sizes)) == count_symmetries(
        example, Lift(example.sizes)
    )


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: "-".join(map(str, f.key)))
def test_symmetric_part_has_exchangeable_cells(family: Any) -> None:
    """Cells can be exchanged if the queries are all cells one by one, or all cells together."""
    part = Part(axes=(0,), family=family, sizes=(120,))
    expected = family in (Marginal(), Total(), Width(1), Width(120))
    assert is_symmetric_part(part, None) == expected


@pytest.mark.parametrize("options", [{}, {"objective": "max"}])
def test_forecast_forms_no_gram_matrix_on_wide_attribute(
    monkeypatch: pytest.MonkeyPatch, options: Any
) -> None:
    monkeypatch.setattr(Intervals, "gram", lambda *_: pytest.fail("a Gram matrix was formed"))
    for family in ("marginal", "prefix", "range"):
        workload = Workload(shapes.numeric(1_000, 1_200)).add(("a", "b"), family)
        assert forecast(workload, **options).seconds > 0.0


@pytest.mark.parametrize("sizes", [(21,), (6, 5), (4, 5, 3)])
def test_fourier_transforms_by_fft_equal_basis(
    monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...]
) -> None:
    rows = np.random.default_rng(5).standard_normal((4, math.prod(n - 1 for n in sizes)))
    factor = Factor(sizes=sizes, matrix=rows.T @ rows)
    problem = FourierProblem(lift=Lift(sizes), factor=factor)
    by_basis = problem.solution(*problem.maximise(Options()))
    monkeypatch.setattr(dual_solver, "FFT_FROM", 0)
    by_fft = problem.solution(*problem.maximise(Options()))
    assert by_fft.value == pytest.approx(by_basis.value, rel=1e-12)
    assert by_fft.strategy.rows == pytest.approx(by_basis.strategy.rows, abs=1e-12)
    assert by_fft.strategy.pinv == pytest.approx(by_basis.strategy.pinv, abs=1e-10)


def test_forecasts_of_one_workload_share_the_decomposition(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = Workload.all_ways(shapes.numeric(4, 5, 6), (1, 2))
    expected = forecast(workload).seconds
    monkeypatch.setattr(decomposition, "_decompose", lambda *_, **__: pytest.fail("computed"))
    assert forecast(workload).seconds == expected
    assert forecast(workload, centers="tuned").seconds > 0.0


def test_forecast_of_max_counts_differently_weighted_spaces() -> None:
    """The plan took 15 s when this test was written: 129 Grams in each of 23 steps.

    Without the pairs of other attributes it took 1 s.
    """
    sizes = (12, 10, *[2, 3, 4, 5] * 3, 2, 3)
    schema = Schema([Attribute.of_size(f"x{i}", n) for i, n in enumerate(sizes)])
    workload = Workload.all_ways(schema, 1, "prefix")
    workload = workload.add(("x0", "x1"), "affine").add(("x0", "x1"), "abs")
    assert 0.5 < forecast(workload, objective="max").seconds < 2.0
    pairs = Workload.all_ways(schema, 2, "prefix")
    with_pairs = Workload(schema, (*workload.groups, *pairs.groups))
    assert 7.5 < forecast(with_pairs, objective="max").seconds < 30.0


@pytest.mark.parametrize(("family", "seconds"), [("prefix", 0.90), ("range", 0.72)])
def test_forecast_of_wide_attribute_is_within_factor_two(family: str, seconds: float) -> None:
    """``seconds`` is the CPU time of the plan when this test was written."""
    workload = Workload(shapes.numeric(3_650)).add("a", family)
    ratio = forecast(workload, centers="tuned").seconds / seconds
    assert 0.5 < ratio < 2.0


def test_forecast_of_max_of_products_is_short() -> None:
    """The plan took 0.1 s when this test was written, without `TradeoffSearch`."""
    workload = Workload.all_ways(shapes.numeric(*[12] * 6), (1, 2), "prefix")
    assert forecast(workload, objective="max").seconds < 0.2


def pairs(*families: str) -> Workload:
    """Return queries of these families on all pairs of seven attributes of different sizes."""
    built = Workload(shapes.numeric(20, 25, 30, 35, 40, 45, 50))
    for pair in itertools.combinations(built.schema.names, 2):
        for family in families:
            built = built.add(pair, family)
    return built


def test_forecast_of_pairs_lists_few_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    entries, rows = [], Affine.rows

    def counted(family: Affine, sizes: Any, *bounds: int) -> Any:
        listed = rows(family, sizes, *bounds)
        entries.append(listed.size)
        return listed

    monkeypatch.setattr(Affine, "rows", counted)
    forecast(pairs("affine", "abs"))
    assert sum(entries) < 1e6


def test_decompose_lists_queries_of_pair_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, rows = [], Affine.rows
    monkeypatch.setattr(Affine, "rows", lambda *args: calls.append(args) or rows(*args))
    decompose(Workload(shapes.numeric(8, 7)).add(("a", "b"), "affine"))
    assert len(calls) == 1


def test_forecast_of_sum_counts_all_families() -> None:
    """Searches for both families took 11.3 s, and 0.4 s for the absolute differences alone."""
    assert 5.7 < forecast(pairs("affine", "abs")).seconds < 23.0
    assert forecast(pairs("abs")).seconds < 0.8


def test_low_rank_cost_counts_common_symmetries() -> None:
    parts = decompose(Workload(shapes.numeric(30, 30)).add(("a", "b"), "affine"))
    (joint,) = (f for f in parts.factors if len(f.sizes) == 2)
    rows = np.random.default_rng(0).normal(size=(9, 29 * 29))
    asymmetric = Factor(sizes=(30, 30), matrix=rows, low_rank=True)

    def seconds(*factors: Factor) -> float:
        return low_rank_cost((30, 30), 40, list(factors), 1e-6).seconds

    assert seconds(joint, joint) < 0.6 * seconds(joint, asymmetric)
    assert seconds(joint, asymmetric) == seconds()
