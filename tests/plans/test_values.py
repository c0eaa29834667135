"""Workloads, plans and measurements as values: print, iterate, compare, copy, pickle, save."""

from __future__ import annotations

import copy
import pickle
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
from engine.plans import pareto_front as pareto_front_module
from engine.plans.pareto_front import pareto_front
from engine.privacy import Budget
from engine.release import Measurement, measure
from engine.workload import Attribute, Schema, Workload

SCHEMA = Schema([Attribute.of_size("<b>age</b>", 5), Attribute.categorical("sex", ["F", "M"])])
WORKLOAD = Workload.all_ways(SCHEMA, (1, 2)).add("sex", query_weights=[1.0, 2.0])
PLAN = plan(WORKLOAD, Budget(pcost=1.0))
RECORDS = synthetic(SCHEMA, 200, seed=1)


def released(tmp_path: Path) -> Measurement:
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
    assert result.rmse > 0
    assert result.certificate.gap >= -1e-9
    for copied in copies(result):
        assert type(copied) is type(result)
        assert copied == result
        assert hash(copied) == hash(result)
        assert copied.pcost == result.pcost
        assert (copied.variances(2) == result.variances(2)).all()
        assert copied.workload == WORKLOAD
    assert result != plan(WORKLOAD, budget.at(0.5 * budget.pcost), mechanism)
    assert result != "text"


def test_pickled_plan_over_budget_is_refused() -> None:
    make, (kind, args) = PLAN.__reduce__()
    with pytest.raises(PlanError, match="but its budget"):
        make(kind, args | {"budget": Budget(pcost=0.5)})


def test_measurement_save_and_load_are_equal(tmp_path: Path) -> None:
    for measurement in (released(tmp_path), measure(PLAN, RECORDS, rehearsal=True)):
        assert all(one == measurement for one in copies(measurement))
        path = tmp_path / "saved.measurement"
        measurement.save(path)
        again = Measurement.load(str(path))
        assert again == measurement
        assert (again.dataset, again.key, again.utc) == (
            measurement.dataset,
            measurement.key,
            measurement.utc,
        )
        assert again.rehearsal == measurement.rehearsal
        assert again.answers(2).equals(measurement.answers(2))
        assert [p.name for p in tmp_path.glob("*saved*")] == ["saved.measurement"]
        path.unlink()


def test_comparison_equality_compares_all_fields() -> None:
    table = pd.DataFrame({"mechanism": ["wff", "laplace"], "rmse": [1.5, np.nan]})
    one = Comparison(frame=table, plans={}, bound=1.0, statement="None is below.")
    for other in (copy.deepcopy(one), pickle.loads(pickle.dumps(one)), one):
        assert one == other
        assert hash(one) == hash(other)
    assert one != Comparison(
        frame=table.assign(rmse=2.0), plans={}, bound=1.0, statement="None is below."
    )
    assert one != Comparison(
        frame=table, plans={"wff": "{}"}, bound=1.0, statement="None is below."
    )
    assert one != Comparison(frame=table, plans={}, bound=2.0, statement="None is below.")
    assert one != table


def test_measure_two_rehearsals_differ() -> None:
    one, other = (measure(PLAN, RECORDS, rehearsal=True) for _ in range(2))
    assert one != other


def test_measurement_unreadable_file_is_refused(tmp_path: Path) -> None:
    measurement = measure(PLAN, RECORDS, rehearsal=True)
    with pytest.raises(PlanError, match="folder"):
        measurement.save(tmp_path / "missing" / "a")
    measurement.save(tmp_path / "a")
    (tmp_path / "a").write_bytes((tmp_path / "a").read_bytes()[:-30])
    for name in ("a", "b"):
        with pytest.raises(LedgerError, match="cannot be read"):
            Measurement.load(tmp_path / name)


def test_repr_is_short_and_escapes_names(tmp_path: Path) -> None:
    rehearsed = measure(PLAN, RECORDS, rehearsal=True)
    compared = comparison(WORKLOAD, Budget(pcost=1.0), ["identity", "querysmasher"], jobs=1)
    for value in (WORKLOAD, PLAN, released(tmp_path), rehearsed, compared):
        assert len(repr(value)) < 250
        shown = value._repr_html_()
        assert all(text in shown for text in ("<table>", type(value).__name__))
        assert not any(text in shown for text in ("<i>", "<b>"))
    assert "&lt;i&gt;d" in released_html(tmp_path)
    assert "queries 19" in repr(WORKLOAD)
    assert f"rmse {PLAN.rmse:.3g}"[:8] in repr(PLAN)  # the word and the first three characters
    assert "REHEARSAL" in repr(rehearsed)
    assert "REHEARSAL" in rehearsed._repr_html_()
    assert "best querysmasher" in repr(compared)


def released_html(tmp_path: Path) -> str:
    return measure(PLAN, RECORDS, dataset="<i>d</i>", ledger=tmp_path / "ledger")._repr_html_()


def test_workload_iterates_over_groups_but_has_length_in_queries() -> None:
    assert tuple(group for group in WORKLOAD) == WORKLOAD.groups
    assert len(WORKLOAD) == WORKLOAD.queries


def test_plot_returns_figures() -> None:
    compared = comparison(WORKLOAD, Budget(pcost=1.0), ["identity", "querysmasher"], jobs=1)
    for value in (PLAN, measure(PLAN, RECORDS, rehearsal=True), compared):
        figure = plot(value)
        assert isinstance(figure, go.Figure)
        assert figure.data
    errors = np.asarray(plot(PLAN, 2).data[0].z, dtype=float)
    assert np.allclose(np.sort(errors.ravel()), np.sort(np.sqrt(PLAN.variances(2))))
    with pytest.raises(PlanError, match="comparison"):
        plot(compared.frame)
    with pytest.raises(PlanError, match="group"):
        plot(PLAN, 9)
    refused = comparison(WORKLOAD, Budget(pcost=1.0), ["laplace"])
    with pytest.raises(PlanError, match="No mechanism"):
        plot(refused)


def test_frozen_value_without_headline_is_refused() -> None:
    class WithoutHeadline(FrozenValue):
        """A value class that lacks the required method `headline`, which notebooks call."""

    with pytest.raises(TypeError, match="headline"):
        WithoutHeadline()


@pytest.mark.parametrize("bins", [0, 2, 4096])
@pytest.mark.parametrize("features", [1, 2, 3])
def test_pareto_front_equals_pairwise_comparison(
    features: int, bins: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if bins:
        monkeypatch.setattr(pareto_front_module, "FRONT_BINS", bins)
        monkeypatch.setattr(pareto_front_module, "MIN_BINNED_POINTS", 0)
    rng = np.random.default_rng(features)
    for _ in range(30):
        values = rng.integers(0, 6, (features, 25)).astype(float)
        front = pareto_front(values)
        points = {tuple(column) for column in values.T}
        expected = {
            p
            for p in points
            if not any(q != p and all(a >= b for a, b in zip(q, p, strict=True)) for q in points)
        }
        assert {tuple(values[:, k]) for k in front} == expected
        assert len(front) == len(expected)


def test_largest_variance_of_joint_arrays_needs_no_front(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search for the front of all queries takes longer than the variances of all queries."""

    def fail(features: Any) -> Any:
        raise AssertionError("a Pareto front was searched")

    schema = Schema([Attribute.of_size(name, 6) for name in "abc"])
    workload = Workload(schema)
    for family in ("prefix", "range", "marginal"):
        workload = workload.add(("a", "b", "c"), family)
    three_families = plan(workload, Budget(pcost=1.0), cache=False)
    monkeypatch.setattr("engine.plans.group_variance.pareto_front", fail)
    largest = max(three_families.variances(i).max() for i in range(3))
    assert three_families.max_variance == pytest.approx(largest, rel=1e-12)
