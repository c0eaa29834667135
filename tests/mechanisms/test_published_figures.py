"""Published figures of ResidualPlanner and WFF; comparison of mechanisms, labels."""

from __future__ import annotations

import itertools
import math
from dataclasses import fields

import numpy as np
import pandas as pd
import pytest

import demo_data
from engine.analysis.certificates import standard_workload
from engine.analysis.compare import compare, comparison
from engine.errors import Cancelled, PlanError
from engine.mechanisms import label_of, load_plan, plan, title_of
from engine.mechanisms.base import Mechanism
from engine.mechanisms.registry import MECHANISMS
from engine.privacy import Budget
from engine.workload import Attribute, Schema, Workload


def cube(n: int, d: int = 40) -> Schema:
    return Schema([Attribute.of_size(f"n{i}", n) for i in range(d)])


def pairs(n: int, family: str) -> Workload:
    """Return the queries of a joint family on all pairs, and prefixes of all attributes."""
    ones = Workload.all_ways(cube(n), (1,), "prefix")
    twos = Workload.all_ways(cube(n), (2,), family)
    return Workload(ones.schema, ones.groups + twos.groups)


def demo(name: str) -> Workload:
    return Workload.all_ways(Schema.from_json(demo_data.schemas()[name].read_bytes()), (1, 2, 3))


def label(value: Workload | str | float) -> str:
    """Return the name of a case in the report."""
    if isinstance(value, Workload):
        last = value.groups[-1]
        return f"{len(value.schema)} attributes, {len(last.attributes)}-way {last.family_text}"
    return str(value)


@pytest.mark.parametrize(
    ("workload", "mechanism", "rmse"),
    [
        (Workload.all_ways(cube(10), (1, 2), "marginal"), "residualplanner", 23.48),
        (Workload.all_ways(cube(10), (1, 2), "prefix"), "residualplanner+", 36.229),
        (Workload.all_ways(cube(20), (1, 2), "prefix"), "residualplanner+", 52.628),
        (Workload.all_ways(cube(10), (1, 2), "range"), "residualplanner+", 41.833),
        (Workload.all_ways(cube(20), (1, 2), "range"), "residualplanner+", 63.882),
        (pairs(10, "affine"), "residualplanner+", 62.479),
        (demo("cps"), "residualplanner+", 8.386),
        (demo("loans"), "residualplanner+", 36.046),
        (Workload.all_ways(cube(10), (1, 2), "prefix"), "wff", 39.701),
        (Workload.all_ways(cube(20), (1, 2), "prefix"), "wff", 62.947),
        (pairs(10, "affine"), "wff", 45.225),
        (pairs(20, "affine"), "wff", 70.311),
        (pairs(10, "abs"), "wff", 64.115),
        (demo("cps"), "wff", 10.594),
        (demo("loans"), "wff", 49.721),
        (standard_workload("CPS", "affine"), "residualplanner+", 10.012),
        (standard_workload("CPS", "abs"), "residualplanner+", 10.476),
        (standard_workload("Adult", "affine"), "residualplanner+", 19.395),
        (standard_workload("Adult", "abs"), "residualplanner+", 19.441),
        (standard_workload("Loans", "affine"), "residualplanner+", 18.082),
        (standard_workload("Loans", "abs"), "residualplanner+", 18.148),
    ],
    ids=label,
)
def test_plan_rmse_matches_published_figure(
    workload: Workload, mechanism: str, rmse: float
) -> None:
    result = plan(workload, Budget(pcost=1.0), mechanism)
    assert result.rmse == pytest.approx(rmse, rel=2e-4)
    assert result.certificate.gap >= 0.0


def test_residualplanner_equal_sizes_have_separate_strategies() -> None:
    schema = Schema([Attribute.of_size("a", 6), Attribute.of_size("b", 6)])
    workload = (
        Workload(schema)
        .add(("a",), "prefix")
        .add(("b",), "range")
        .add(("a", "b"), {"a": "prefix", "b": "range"})
    )
    result = plan(workload, Budget(pcost=1.0), "residualplanner+")
    ((_, strategy_a),) = result.blocks["a",].factors
    ((_, strategy_b),) = result.blocks["b",].factors
    assert abs(strategy_a.rows - strategy_b.rows).max() > 1e-3
    (_, first), (_, second) = result.blocks["a", "b"].factors
    assert first is strategy_a
    assert second is strategy_b


def test_residualplanner_base_option_replaces_family_of_attribute() -> None:
    schema = Schema([Attribute.of_size("a", 6), Attribute.of_size("b", 6)])
    workload = Workload(schema).add(("a",), "prefix").add(("b",), "range")
    workload = workload.add(("a", "b"), {"a": "prefix", "b": "range"})
    result = plan(workload, Budget(pcost=1.0), "residualplanner+")
    by_prefixes = plan(workload, Budget(pcost=1.0), "residualplanner+", base={"b": "prefix"})
    assert by_prefixes.rmse > result.rmse
    assert load_plan(by_prefixes.to_json()).to_json() == by_prefixes.to_json()


def test_residualplanner_base_family_of_several_attributes_is_refused() -> None:
    workload = Workload(Schema([Attribute.of_size("a", 6)])).add(("a",), "prefix")
    with pytest.raises(PlanError, match="affine"):
        plan(workload, Budget(pcost=1.0), "residualplanner+", base={"a": "affine"})


def test_compare_ranks_mechanisms_and_gives_reasons() -> None:
    workload = Workload.all_ways(
        Schema([Attribute.of_size("a", 6), Attribute.of_size("b", 5)]), (1, 2)
    )
    table = compare(workload, Budget(pcost=2.0), jobs=2)
    expected = ["mechanism", "rmse", "max_std", "gap", "seconds", "peak_mb", "status"]
    assert list(table.columns) == expected
    assert len(table) == sum(len(m.variants) for m in MECHANISMS)
    gaussian = {m.name for m in MECHANISMS if "gaussian" in m.laws}
    has_gaussian = table["mechanism"].str.split(" ").str[0].isin(gaussian)
    needs_marginals = table["mechanism"] == "datacube"
    assert (table["status"][has_gaussian & ~needs_marginals] == "ok").all()
    assert table["status"][needs_marginals].str.contains("marginals").all()
    assert table["status"][~has_gaussian].str.contains("pure epsilon").all()
    assert table["rmse"].dropna().is_monotonic_increasing
    ranking = table["mechanism"].tolist()
    # The domain has only 30 cells, so HDMM and tuned plans search all strategies on the full
    # domain.
    assert set(ranking[:3]) == {"optimum", "hdmm", "querysmasher (centers=tuned)"}
    best, _, third = table["rmse"][:3]
    assert third == pytest.approx(best, rel=1e-4)
    assert table["gap"][0] == pytest.approx(0.0, abs=1e-4)
    assert (table["gap"].dropna() > 0).all()
    querysmasher = plan(workload, Budget(pcost=2.0))
    row = table.set_index("mechanism").loc["querysmasher"]
    assert row["rmse"] == pytest.approx(querysmasher.rmse)
    assert row["max_std"] == pytest.approx(querysmasher.max_variance**0.5)
    refused = compare(
        workload, Budget(pcost=2.0), ["wff", "nonsense", ("wff", {"speed": 3})], memory_limit=1e3
    )
    assert refused["rmse"].isna().all()
    assert refused["status"].str.contains("GB|does not exist|no option").all()


@pytest.mark.parametrize(("n", "printed"), [(20, 62.947), (50, None)])
def test_wff_circle_is_optimal_and_beats_cells(n: int, printed: float) -> None:
    """``printed`` is the published RMSE of "wff" with its default embedding, "cells"."""
    workload = Workload.all_ways(cube(n), (1, 2), "prefix")
    result = plan(workload, Budget(pcost=1.0), "wff", embedding="circle")
    assert result.certificate.gap < 1e-5
    assert result.rmse < 0.96 * (printed or plan(workload, Budget(pcost=1.0), "wff").rmse)
    suffixes = plan(
        Workload.all_ways(cube(n), (1, 2), "suffix"), Budget(pcost=1.0), "wff", embedding="circle"
    )
    assert suffixes.rmse == pytest.approx(result.rmse, rel=1e-6)
    assert load_plan(result.to_json()).rmse == result.rmse


def test_wff_circle_is_within_published_variance() -> None:
    m = 7
    windows = np.array(
        [[(j - i) % (2 * m) < m for j in range(2 * m)] for i in range(2 * m)], dtype=float
    )
    # Each window is half of the total plus a row of entries 0.5 and -0.5.
    centred_rows = windows - 0.5
    spectrum = np.abs(np.fft.fft(centred_rows[:, 0]))
    # the variance of the answers to the centred rows at pcost 1
    centred_variance = (spectrum.sum() / (2 * m)) ** 2
    # the variance of a window if the budget is divided optimally between total and centred rows
    published = (0.5 + math.sqrt(centred_variance)) ** 2
    result = plan(
        Workload(cube(m, 1)).add("n0", "prefix"), Budget(pcost=1.0), "wff", embedding="circle"
    )
    assert result.rmse**2 <= published * (1 + 1e-5)


def test_comparison_repeated_request_reuses_plans() -> None:
    workload = Workload.all_ways(
        Schema([Attribute.of_size("a", 5), Attribute.of_size("b", 4)]), (1, 2)
    )
    messages: list[str] = []

    def record(fraction: float, text: str) -> None:
        messages.append(text)

    first = comparison(workload, Budget(pcost=0.3), ["wff", "identity"], progress=record)
    assert messages
    messages.clear()
    repeated = comparison(workload, Budget(pcost=0.3), ["wff", "identity"], progress=record)
    assert not messages
    pd.testing.assert_frame_equal(first.frame, repeated.frame)
    for label, text in first.plans.items():
        loaded = load_plan(text)
        row = first.frame.set_index("mechanism").loc[label]
        assert loaded.rmse == pytest.approx(row["rmse"])
        assert row["gap"] == pytest.approx(loaded.weighted_rmse / first.bound - 1)


def test_comparison_progress_false_cancels() -> None:
    workload = Workload(Schema([Attribute.of_size("a", 5)])).add("a")
    with pytest.raises(Cancelled):
        comparison(workload, Budget(pcost=0.4), ["wff"], progress=lambda fraction, text: False)


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda m: m.name)
def test_mechanism_has_title_and_meaning(mechanism: type[Mechanism]) -> None:
    assert mechanism.title
    assert mechanism.meaning.endswith(".")


def test_label_of_omits_default_options() -> None:
    """Plan files record every option; labels show only the ones that differ."""
    workload = Workload(cube(4, 1)).add("n0", "prefix")
    loaded = load_plan(plan(workload, Budget(pcost=1.0), centers="tuned").to_json())
    assert set(loaded.options) == {"objective", "centers", "solver", "gap"}
    assert label_of(loaded.mechanism, loaded.options) == "querysmasher (centers=tuned)"
    assert (
        label_of("querysmasher", {"centers": "uniform", "gap": 1e-6, "keep": None})
        == "querysmasher"
    )
    assert label_of("hdmm", {"restarts": True}) == "hdmm (restarts=True)"
    assert label_of("nonsense", {"objective": "sum"}) == "nonsense (objective=sum)"


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda m: m.name)
def test_label_of_different_options_is_unique(mechanism: type[Mechanism]) -> None:
    values: dict[str, tuple[object, ...]] = {
        "objective": ("sum", "max", "lp"),
        "max_records": (10**8, 5),
        **mechanism.choices,
    }
    more_values = {
        "gap": (1e-6, 1e-5, 1e-4, 0.05),
        "keep": (None, 0.05, {0: 0.05}),
        "seed": (0, 2),
        "restarts": (2, 1),
    }
    values |= {
        name: more_values[name]
        for name in more_values
        if name in {f.name for f in fields(mechanism)}
    }
    labels = [
        label_of(mechanism.name, dict(zip(values, choice, strict=True)))
        for choice in itertools.product(*values.values())
    ]
    assert len(set(labels)) == len(labels)
    assert len({title_of(label) for label in labels}) == len(labels)
    defaults = {field.name: getattr(mechanism(), field.name) for field in fields(mechanism)}
    assert label_of(mechanism.name, defaults) == mechanism.name
