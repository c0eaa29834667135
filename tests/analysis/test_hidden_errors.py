"""Tables with errors far above the typical error, and weights that lower these errors."""

from __future__ import annotations

from datetime import date

import numpy as np
import pytest

from engine import analysis
from engine.analysis.quality import HIDDEN_RATIO, MAX_RISE
from engine.analysis.what_if import Request
from engine.errors import Cancelled
from engine.mechanisms import plan
from engine.privacy import Budget
from engine.workload import Attribute, Schema, Workload
from tests.app.session import demo_schema

ONE = Budget(pcost=1.0)
PAIRS = Workload.all_ways(demo_schema("cps"), (1, 2), "marginal")


def test_hidden_groups_exceed_typical_error() -> None:
    result = plan(PAIRS, ONE)
    hidden = analysis.hidden_groups(result)
    errors = result.by_group()["rmse"].to_numpy()
    assert set(hidden) == set(np.flatnonzero(errors > HIDDEN_RATIO * result.rmse))
    assert list(errors[list(hidden)]) == sorted(errors[list(hidden)], reverse=True)
    assert PAIRS.groups[hidden[0]].attributes == ("sex",)
    text = analysis.hidden_text(result, hidden)
    assert "2 queries on sex have" in text
    assert f"{len(hidden) - 1} more tables" in text


def test_even_errors_and_zero_weights_are_not_hidden() -> None:
    workload = Workload(Schema([Attribute.of_size("a", 4), Attribute.of_size("b", 4)]))
    assert analysis.hidden_groups(plan(workload.add("a").add("b"), ONE)) == ()
    hidden = analysis.hidden_groups(plan(PAIRS, ONE))[0]
    unweighted = PAIRS.with_weights({hidden: 0.0})
    assert hidden not in analysis.hidden_groups(plan(unweighted, ONE))


def test_proposed_weights_lower_hidden_errors() -> None:
    before = plan(PAIRS, ONE)
    hidden = analysis.hidden_groups(before)
    proposal = analysis.propose_weights(Request(workload=PAIRS, budget=ONE), hidden)
    assert proposal is not None
    after = plan(analysis.raise_weights(PAIRS, hidden, proposal.factor), ONE)
    assert after.rmse == pytest.approx(proposal.typical)
    assert after.by_group()["rmse"][list(hidden)].max() == pytest.approx(proposal.largest)
    assert proposal.largest < before.by_group()["rmse"][list(hidden)].max() / 1.5
    assert before.rmse < proposal.typical <= MAX_RISE * before.rmse


def test_weight_search_stops_when_cancelled() -> None:
    hidden = analysis.hidden_groups(plan(PAIRS, ONE))
    with pytest.raises(Cancelled):
        analysis.propose_weights(
            Request(workload=PAIRS, budget=ONE), hidden, lambda fraction, text: False
        )


def test_worst_tables_are_sorted_by_typical_error() -> None:
    result = plan(PAIRS, ONE)
    table = analysis.worst_tables(result)
    errors = np.sort(result.by_group()["rmse"].to_numpy())[::-1]
    assert table["typical error"].tolist() == pytest.approx(errors[:5].tolist())
    assert analysis.worst_tables(result, 99)["attributes"].size == len(PAIRS.groups)


def test_workload_errors_are_those_of_plan_or_missing() -> None:
    result = plan(PAIRS, ONE)
    table = analysis.workload_errors(PAIRS, [2, 0], result)
    assert table["group"].tolist() == [2, 0]
    assert table["typical error"].tolist() == result.by_group()["rmse"][[2, 0]].tolist()
    assert analysis.workload_errors(PAIRS, [1])["typical error"].isna().all()


LEAP_DAY = (date(2024, 2, 29) - date(2020, 1, 1)).days


@pytest.mark.parametrize(
    ("attribute", "text", "cells"),
    [
        (Attribute.of_size("zip", 30_000), "29999", [29_999]),
        (Attribute.of_size("zip", 9_000_000), "8999999", [8_999_999]),
        (Attribute.of_size("zip", 30_000), "30000", []),
        (Attribute.dates("day", "2020-01-01", "2024-12-31", "day"), "2024-02-29", [LEAP_DAY]),
        (Attribute.categorical("town", ["Ulm", "Bonn"]), "x", []),
        (Attribute.categorical("town", ["Ulm", "Bonn"]), "", [0, 1]),
        (Attribute.categorical("town", ["Neu-Ulm", "ULM", "Ulm"]), "ulm", [1, 2, 0]),
    ],
)
def test_find_cells_returns_matching_cells(
    attribute: Attribute, text: str, cells: list[int]
) -> None:
    assert analysis.find_cells(attribute, text) == cells
    assert analysis.find_cells(attribute, text, limit=1) == cells[:1]
