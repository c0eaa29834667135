"""Relative errors of queries: shares per quality class, and budgets for these shares."""

from __future__ import annotations

import importlib
import math

import numpy as np
import pandas as pd
import pytest

from engine import figures
from engine.analysis import NoiseScale, budget_for_quality, publishable_by_group, quality_by_group
from engine.analysis import quality as scale
from engine.analysis.compare import comparison
from engine.analysis.quality import quality_text, with_quality
from engine.errors import PlanError
from engine.mechanisms import plan, title_of
from engine.privacy import Budget
from engine.workload import Attribute, Custom, Schema, Workload

SCHEMA = Schema(
    [Attribute.of_size("a", 6), Attribute.of_size("b", 4), Attribute.categorical("c", ["x", "y"])]
)
WORKLOAD = (
    Workload.all_ways(SCHEMA, (1, 2))
    .add(("a", "b"), "affine")
    .add("a", Custom(matrix=[[1, -1, 0, 0, 0, 0]]))
)
PLAN = plan(WORKLOAD, Budget(pcost=0.3))
SCALE = NoiseScale(records=100.0)


def relative_errors(number: int) -> np.ndarray:
    """Return the relative standard error of each query of group ``number``.

    The expected counts are computed from the dense query matrix for equal counts in all cells.
    """
    group = WORKLOAD.groups[number]
    rows = np.ones((1, 1))
    for part in group.parts:
        rows = np.kron(rows, part.family.rows(part.sizes))
    counts = SCALE.records * np.abs(rows.sum(axis=1)) / rows.shape[1]
    with np.errstate(divide="ignore"):
        return np.sqrt(PLAN.variances(number)) / counts


def test_quality_by_group_matches_enumeration() -> None:
    assert (SCALE.publishable, SCALE.doubtful) == (0.15, 0.30)
    table = quality_by_group(PLAN, SCALE)
    assert sorted(table["group"]) == list(range(len(WORKLOAD.groups)))
    assert table["publishable"].is_monotonic_increasing
    for row in table.to_dict("records"):
        errors = relative_errors(row["group"])
        assert row["publishable"] == pytest.approx(np.mean(errors <= SCALE.publishable))
        assert row["noise"] == pytest.approx(np.mean(errors > SCALE.doubtful))
        assert row["publishable"] + row["doubtful"] + row["noise"] == pytest.approx(1.0)
        assert row["publishable from"] == pytest.approx(row["RMSE"] / SCALE.publishable)


def test_publishable_by_group_lists_every_mechanism() -> None:
    workload = Workload.all_ways(SCHEMA, (1, 2), "marginal").add("a", "prefix")
    choices = ["querysmasher", "identity"]
    table = publishable_by_group(comparison(workload, Budget(pcost=0.3), choices), workload, SCALE)
    assert list(table) == ["attributes", *map(title_of, choices)]
    assert table[title_of(choices[0])].is_monotonic_increasing
    table = table.sort_values("attributes", ignore_index=True)
    assert table["attributes"].tolist()[:2] == ["1: a (marginal)", "2: b"]
    # a marginal cell counts the records divided by the number of cells
    cell_counts = [SCALE.records / math.prod(group.sizes) for group in workload.groups[:-1]]
    # the prefixes of the last group count 1/6 to 6/6 of the records
    prefix_counts = SCALE.records * np.arange(1, 7) / 6
    for choice in choices:
        *cell_errors, prefix_error = plan(workload, Budget(pcost=0.3), choice).by_group()["rmse"]
        cell_shares = [
            float(error / count <= SCALE.publishable)
            for error, count in zip(cell_errors, cell_counts, strict=True)
        ]
        prefix_share = np.mean(prefix_error / prefix_counts <= SCALE.publishable)
        assert table[title_of(choice)].tolist() == [*cell_shares, pytest.approx(prefix_share)]
    assert 0.0 < table.to_numpy()[:, 1:].mean() < 1.0


def test_sampled_quality_shares_are_near_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    sampling = importlib.import_module("engine.analysis.error_distribution")
    exact = scale.quality_shares(PLAN, SCALE)
    monkeypatch.setattr(sampling, "MAX_UNSAMPLED_QUERIES", 1)
    monkeypatch.setattr(sampling, "MIN_SAMPLED_QUERIES", 8)
    monkeypatch.setattr(sampling, "SAMPLED_QUERIES", 60)
    scale._variations.cache_clear()
    sampled = scale.quality_shares(PLAN, SCALE)
    scale._variations.cache_clear()
    assert sampled == pytest.approx(exact, abs=0.15)


@pytest.mark.parametrize("share", [0.5, 0.9])
def test_budget_for_quality_is_minimal(share: float) -> None:
    budget = budget_for_quality(PLAN, SCALE, share)
    # A warm-started strategy search differs from a new one in the last digits, so budgets 0.1%
    # above and below are compared.
    for factor, reached in ((1.001, True), (0.999, False)):
        nearby = plan(WORKLOAD, Budget(pcost=factor * budget.pcost))
        publishable, _doubtful, _noise = scale.quality_shares(nearby, SCALE)
        assert (publishable >= share - 1e-9) == reached


def test_budget_for_quality_of_difference_is_refused() -> None:
    with pytest.raises(PlanError, match="expected answer of 0"):
        budget_for_quality(PLAN, SCALE, 1.0)


def test_with_quality_classifies_and_hides_answers() -> None:
    answers = pd.DataFrame(
        {"answer": [100.0, 100.0, 100.0, -5.0, 0.0], "std": [15.0, 30.0, 31.0, 1.0, 0.0]}
    )
    answers = answers.assign(low=answers["answer"] - 1, high=answers["answer"] + 1)
    rated = with_quality(answers, SCALE)
    assert rated["quality"].tolist() == ["publishable", "doubtful", "noise", "noise", "publishable"]
    # a negative answer has no CV
    assert rated["CV"].isna().tolist() == [False, False, False, True, False]
    hidden = with_quality(answers, SCALE, hide=True)
    assert hidden["answer"].isna().tolist() == [False, False, True, True, False]
    assert hidden[["low", "high"]].isna().all(axis=1).tolist() == [False, False, True, True, False]
    assert not rated["answer"].isna().any()


def test_quality_picture_matches_quality_text() -> None:
    picture = figures.quality_picture(PLAN, SCALE)
    assert picture.alt == quality_text(PLAN, SCALE)
    assert [bar.name for bar in picture.figure.data] == ["publishable", "doubtful", "noise"]
    np.testing.assert_allclose(sum(np.array(bar.x) for bar in picture.figure.data), 1.0)


@pytest.mark.parametrize(
    "wrong", [{"records": 0}, {"records": 10, "publishable": 0.4}, {"records": 10, "doubtful": -1}]
)
def test_noise_scale_with_invalid_values_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(PlanError):
        NoiseScale(**wrong)
