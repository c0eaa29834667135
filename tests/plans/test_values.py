"""Workloads, plans and measurements as values: print, iterate, compare, copy, pickle, save."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest

from demo_data.make_synthetic import synthetic
from engine import plot
from engine._values import FrozenValue
from engine.analysis.compare import Comparison, comparison
from engine.errors import LedgerError, PlanError
from engine.ledger import Ledger
from engine.mechanisms import plan
from engine.plans import group_variance
from engine.plans.group_variance import pareto_front
from engine.privacy import Budget
from engine.release import Measurement, measure
from engine.workload import Attribute, Schema, Workload

SCHEMA = Schema([Attribute.of_size("<b>age</b>", 5), Attribute.categorical("sex", ["F", "M"])])
WORKLOAD = Workload.all_ways(SCHEMA, (1, 2)).add("sex", query_weights=[1.0, 2.0])
PLAN = plan(WORKLOAD, Budget(pcost=1.0))
RECORDS = synthetic(SCHEMA, 200, seed=1)


def release_to_ledger(tmp_path: Path) -> Measurement:
    ledger = Ledger.create(tmp_path / "ledger")
    ledger.add_dataset("<i>d</i>", total=Budget(pcost=1.0))
    return measure(PLAN, RECORDS, dataset="<i>d</i>", ledger=ledger)


def copies(value: Any) -> list[Any]:
    return [pickle.loads(pickle.dumps(value)), copy.copy(value), copy.deepcopy(value)]


@pytest.mark.parametrize(
    "mechanism", ["querysmasher", "residualplanner+", "identity", "hdmm", "wff", "laplace"]
)
def test_plan_copies_are_equal(mechanism: str) -> None:
    budget = Budget.pure(1.0) if mechanism == "laplace" else Budget(pcost=1.0)
    result = plan(WORKLOAD, budget, mechanism)
    # fills the caches of the plan
    assert result.rmse > 0
    assert result.certificate.gap >= -1e-9
    for copied in copies(result):
        assert type(copied) is type(result)
        assert copied == result
        assert hash(copied) == hash(result)
        assert copied.pcost == result.pcost
        for group in range(len(WORKLOAD.groups)):
            assert (copied.variances(group) == result.variances(group)).all()
        assert copied.workload == WORKLOAD
    assert result != plan(WORKLOAD, budget.at(0.5 * budget.pcost), mechanism)
    assert result != "text"


def test_pickled_plan_over_budget_is_refused() -> None:
    rebuild, (kind, fields) = PLAN.__reduce__()
    with pytest.raises(PlanError, match="but its budget"):
        rebuild(kind, fields | {"budget": Budget(pcost=0.5)})


def test_measurement_save_and_load_are_equal(tmp_path: Path) -> None:
    for measurement in (release_to_ledger(tmp_path), measure(PLAN, RECORDS, rehearsal=True)):
        assert all(copied == measurement for copied in copies(measurement))
        path = tmp_path / "saved.measurement"
        measurement.save(path)
        loaded = Measurement.load(str(path))
        assert loaded == measurement
        for field in ("dataset", "key", "utc", "rehearsal"):
            assert getattr(loaded, field) == getattr(measurement, field)
        for group in range(len(WORKLOAD.groups)):
            assert loaded.answers(group).equals(measurement.answers(group))
        # no temporary file remains
        assert [p.name for p in tmp_path.glob("*saved*")] == ["saved.measurement"]
        path.unlink()


def test_comparison_equality_compares_all_fields() -> None:
    table = pd.DataFrame({"mechanism": ["wff", "laplace"], "rmse": [1.5, np.nan]})
    result = Comparison(frame=table, plans={}, bound=1.0, statement="None is below.")
    for copied in copies(result):
        assert copied == result
        assert hash(copied) == hash(result)
    for change in (
        {"frame": table.assign(rmse=2.0)},
        {"plans": {"wff": "{}"}},
        {"bound": 2.0},
        {"statement": "One is below."},
    ):
        assert replace(result, **change) != result
    assert result != table


def test_measure_two_rehearsals_differ() -> None:
    assert measure(PLAN, RECORDS, rehearsal=True) != measure(PLAN, RECORDS, rehearsal=True)


def test_measurement_unreadable_file_is_refused(tmp_path: Path) -> None:
    measurement = measure(PLAN, RECORDS, rehearsal=True)
    with pytest.raises(PlanError, match="folder"):
        measurement.save(tmp_path / "missing folder" / "file")
    truncated = tmp_path / "truncated"
    measurement.save(truncated)
    truncated.write_bytes(truncated.read_bytes()[:-30])
    for path in (truncated, tmp_path / "missing file"):
        with pytest.raises(LedgerError, match="cannot be read"):
            Measurement.load(path)


def test_repr_is_short_and_escapes_names(tmp_path: Path) -> None:
    release, rehearsal = release_to_ledger(tmp_path), measure(PLAN, RECORDS, rehearsal=True)
    compared = comparison(WORKLOAD, Budget(pcost=1.0), ["identity", "querysmasher"], jobs=1)
    for value in (WORKLOAD, PLAN, release, rehearsal, compared):
        assert len(repr(value)) < 250
        html = value._repr_html_()
        assert "<table>" in html
        assert type(value).__name__ in html
        assert "<i>" not in html
        assert "<b>" not in html
    assert "&lt;i&gt;d" in release._repr_html_()
    assert "queries 19" in repr(WORKLOAD)
    assert f"rmse {PLAN.rmse:.3g}"[:8] in repr(PLAN)  # the word and the first three characters
    assert "REHEARSAL" in repr(rehearsal)
    assert "REHEARSAL" in rehearsal._repr_html_()
    assert "best querysmasher" in repr(compared)


def test_workload_iterates_groups_and_has_query_length() -> None:
    assert tuple(WORKLOAD) == WORKLOAD.groups
    assert len(WORKLOAD) == WORKLOAD.queries != len(WORKLOAD.groups)


def test_plot_returns_figures() -> None:
    compared = comparison(WORKLOAD, Budget(pcost=1.0), ["identity", "querysmasher"], jobs=1)
    for value in (PLAN, measure(PLAN, RECORDS, rehearsal=True), compared):
        figure = plot(value)
        assert isinstance(figure, go.Figure)
        assert figure.data
    pair = [group.attributes for group in WORKLOAD.groups].index(SCHEMA.names)
    (heatmap,) = plot(PLAN, pair).data
    errors = np.sqrt(PLAN.variances(pair))
    assert np.allclose(np.sort(np.ravel(heatmap.z).astype(float)), np.sort(errors))
    with pytest.raises(PlanError, match="comparison"):
        plot(compared.frame)
    with pytest.raises(PlanError, match="group"):
        plot(PLAN, len(WORKLOAD.groups))
    without_plans = comparison(WORKLOAD, Budget(pcost=1.0), ["laplace"])
    with pytest.raises(PlanError, match="No mechanism"):
        plot(without_plans)


def test_frozen_value_without_headline_is_refused() -> None:
    class WithoutHeadline(FrozenValue):
        """A value class that lacks the required method `headline`, which notebooks call."""

    with pytest.raises(TypeError, match="headline"):
        WithoutHeadline()


@pytest.mark.parametrize("bins", [None, 2, 4096], ids=["default", "2 bins", "4096 bins"])
@pytest.mark.parametrize("features", [1, 2, 3])
def test_pareto_front_equals_pairwise_comparison(
    features: int, bins: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if bins is not None:
        monkeypatch.setattr(group_variance, "FRONT_BINS", bins)
        monkeypatch.setattr(group_variance, "MIN_BINNED_POINTS", 0)
    rng = np.random.default_rng(features)
    for _ in range(30):
        values = rng.integers(0, 6, (features, 25)).astype(float)
        front = pareto_front(values)
        points = {tuple(column) for column in values.T}

        def is_dominated(point: tuple[float, ...], points: set[tuple[float, ...]] = points) -> bool:
            others = np.array([other for other in points if other != point])
            return bool((others >= point).all(axis=1).any())

        expected = {point for point in points if not is_dominated(point)}
        assert {tuple(values[:, k]) for k in front} == expected
        assert len(front) == len(expected)


def test_largest_variance_of_joint_arrays_needs_no_front(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search for the front of all queries takes longer than the variances of all queries."""
    schema = Schema([Attribute.of_size(name, 6) for name in "abc"])
    workload = Workload(schema)
    for family in ("prefix", "range", "marginal"):
        workload = workload.add(("a", "b", "c"), family)
    three_families = plan(workload, Budget(pcost=1.0), cache=False)
    monkeypatch.setattr(
        "engine.plans.group_variance.pareto_front", lambda _: pytest.fail("searched a front")
    )
    largest = max(three_families.variances(i).max() for i in range(3))
    assert three_families.max_variance == pytest.approx(largest, rel=1e-12)
