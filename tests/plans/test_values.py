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
from engine.privacy import Budget
from engine.release import Measurement, measure
from engine.workload import Attribute, Schema, Workload

SCHEMA = Schema([Attribute.of_size("<b>age</b>", 5), Attribute.categorical("sex", ["F", "M"])])
WORKLOAD = Workload.all_ways(SCHEMA, (1, 2)).add("sex", query_weights=[1.0, 2.0])
MADE = plan(WORKLOAD, Budget(pcost=1.0))
RECORDS = synthetic(SCHEMA, 200, seed=1)


def released(tmp_path: Path) -> Measurement:
    book = Ledger.create(tmp_path / "ledger")
    book.add_dataset("<i>d</i>", total=Budget(pcost=1.0))
    return measure(MADE, RECORDS, dataset="<i>d</i>", ledger=book)


def copies(value: Any) -> list[Any]:
    return [pickle.loads(pickle.dumps(value)), copy.copy(value), copy.deepcopy(value)]


@pytest.mark.parametrize("mechanism", ["querysmasher", "residualplanner+", "identity", "hdmm", "wff", "laplace"])
def test_a_plan_and_its_copies_are_equal_and_measure_alike(mechanism: str) -> None:
    budget = Budget.pure(1.0) if mechanism == "laplace" else Budget(pcost=1.0)
    made = plan(WORKLOAD, budget, mechanism)
    assert made.rmse > 0
    assert made.certificate.gap >= -1e-9
    for found in copies(made):
        assert type(found) is type(made)
        assert found == made
        assert hash(found) == hash(made)
        assert found.pcost == made.pcost
        assert (found.variances(2) == made.variances(2)).all()
        assert found.workload == WORKLOAD
    assert made != plan(WORKLOAD, budget.at(0.5 * budget.pcost), mechanism)
    assert made != "a plan"


def test_a_pickled_plan_that_was_changed_to_cost_more_is_refused() -> None:
    make, (kind, given) = MADE.__reduce__()
    with pytest.raises(PlanError, match="over the budget"):
        make(kind, given | {"budget": Budget(pcost=0.5)})


def test_a_measurement_is_kept_in_a_file_of_its_own(tmp_path: Path) -> None:
    for found in (released(tmp_path), measure(MADE, RECORDS, rehearsal=True)):
        assert all(one == found for one in copies(found))
        place = tmp_path / "kept.measurement"
        found.save(place)
        again = Measurement.load(str(place))
        assert again == found
        assert (again.dataset, again.key, again.utc) == (found.dataset, found.key, found.utc)
        assert again.rehearsal == found.rehearsal
        assert again.answers(2).equals(found.answers(2))
        assert [p.name for p in tmp_path.glob("*kept*")] == ["kept.measurement"]
        place.unlink()


def test_comparisons_are_equal_when_all_that_they_hold_is() -> None:
    table = pd.DataFrame({"mechanism": ["wff", "laplace"], "rmse": [1.5, np.nan]})
    one = Comparison(frame=table, plans={}, bound=1.0, statement="None is below.")
    for other in (copy.deepcopy(one), pickle.loads(pickle.dumps(one)), one):
        assert one == other
        assert hash(one) == hash(other)
    assert one != Comparison(frame=table.assign(rmse=2.0), plans={}, bound=1.0, statement="None is below.")
    assert one != Comparison(frame=table, plans={"wff": "{}"}, bound=1.0, statement="None is below.")
    assert one != Comparison(frame=table, plans={}, bound=2.0, statement="None is below.")
    assert one != table


def test_two_draws_are_two_measurements() -> None:
    one, other = (measure(MADE, RECORDS, rehearsal=True) for _ in range(2))
    assert one != other


def test_what_cannot_be_saved_or_loaded_says_why(tmp_path: Path) -> None:
    found = measure(MADE, RECORDS, rehearsal=True)
    with pytest.raises(PlanError, match="folder that exists"):
        found.save(tmp_path / "missing" / "a")
    found.save(tmp_path / "a")
    (tmp_path / "a").write_bytes((tmp_path / "a").read_bytes()[:-30])
    for name in ("a", "b"):
        with pytest.raises(LedgerError, match="cannot be read"):
            Measurement.load(tmp_path / name)


def test_printing_is_short_and_names_are_text(tmp_path: Path) -> None:
    rehearsed = measure(MADE, RECORDS, rehearsal=True)
    compared = comparison(WORKLOAD, Budget(pcost=1.0), ["identity", "querysmasher"], jobs=1)
    for found in (WORKLOAD, MADE, released(tmp_path), rehearsed, compared):
        assert len(repr(found)) < 250
        shown = found._repr_html_()
        assert all(text in shown for text in ("<table>", type(found).__name__))
        assert not any(text in shown for text in ("<i>", "<b>"))
    assert "&lt;i&gt;d" in released_html(tmp_path)
    assert "queries 19" in repr(WORKLOAD)
    assert f"rmse {MADE.rmse:.3g}"[:8] in repr(MADE)
    assert "REHEARSAL" in repr(rehearsed)
    assert "REHEARSAL" in rehearsed._repr_html_()
    assert "best querysmasher" in repr(compared)


def released_html(tmp_path: Path) -> str:
    return measure(MADE, RECORDS, dataset="<i>d</i>", ledger=tmp_path / "ledger")._repr_html_()


def test_a_workload_iterates_over_its_groups() -> None:
    assert tuple(group for group in WORKLOAD) == WORKLOAD.groups
    assert len(WORKLOAD) == WORKLOAD.queries


def test_plot_gives_the_figures_of_the_pages() -> None:
    compared = comparison(WORKLOAD, Budget(pcost=1.0), ["identity", "querysmasher"], jobs=1)
    for found in (MADE, measure(MADE, RECORDS, rehearsal=True), compared):
        figure = plot(found)
        assert isinstance(figure, go.Figure)
        assert figure.data
    errors = np.asarray(plot(MADE, 2).data[0].z, dtype=float)
    assert np.allclose(np.sort(errors.ravel()), np.sort(np.sqrt(MADE.variances(2))))
    with pytest.raises(PlanError, match="what comparison\\(\\) returns"):
        plot(compared.frame)
    with pytest.raises(PlanError, match="number of the group"):
        plot(MADE, 9)


def test_a_value_without_headline_cannot_be_made() -> None:
    class Silent(FrozenValue):
        """A value without a headline, which could not be printed in a notebook."""

    with pytest.raises(TypeError, match="headline"):
        Silent()
