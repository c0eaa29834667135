"""Comparison of two plans: error ratios, losses and differences, against brute force."""

from __future__ import annotations

import importlib
import math

import numpy as np
import pytest

from engine._format import format_number
from engine.analysis import losses, plan_diff, summary
from engine.analysis.compare import ratios
from engine.errors import PlanError
from engine.figures import ratio_picture
from engine.mechanisms import plan
from engine.plans import Plan
from engine.privacy import Budget
from engine.workload import Attribute, Custom, Schema, Workload
from tests.figures.example import SCHEMA, check_picture, example_workload


def test_ratio_picture_matches_plan_ratios(plans: dict[str, Plan]) -> None:
    pair = {name: plans[name] for name in ("identity", "querysmasher")}
    for i, group in enumerate(example_workload().groups):
        ratio = np.sqrt(plans["identity"].variances(i) / plans["querysmasher"].variances(i))
        if len(group.parts) > 2:
            # the picture shows the first and the third family, for the query 1 of the second
            picture = check_picture(ratio_picture(pair, i, (0, 2), [0, 1, 0]))
            ratio = ratio.reshape([part.count for part in group.parts])[:, 1, :].ravel()
        else:
            picture = check_picture(ratio_picture(pair, i))
        np.testing.assert_allclose(picture.table["ratio"], ratio)
        trace = picture.figure.data[0]
        if trace.type == "heatmap":
            drawn_ratios = np.asarray(trace.z, dtype=float)
            np.testing.assert_allclose(2.0 ** drawn_ratios[~np.isnan(drawn_ratios)], ratio)
            assert trace.zmin == -trace.zmax


def test_ratios_of_infinite_errors_are_one_or_zero() -> None:
    assert ratios(np.array([np.inf, 2.0]), np.array([np.inf, np.inf])).tolist() == [1.0, 0.0]


def enumerate_losses(one: Plan, other: Plan) -> tuple[float, float, float, list[str]]:
    """Compare the standard errors of all queries in ``one`` and ``other``.

    Returns
    -------
    The share of queries with a larger error in ``one``, the share with a smaller error, the largest
    ratio of errors, and the texts of all queries with this ratio.
    """
    workload = one.workload
    group_ratios = [
        np.sqrt(one.variances(i) / other.variances(i)) for i in range(len(workload.groups))
    ]
    ratio = np.concatenate(group_ratios)
    texts = [workload.describe(int(k)) for k in np.flatnonzero(ratio > ratio.max() * (1 - 1e-6))]
    return (
        float((ratio > 1 + 1e-6).mean()),
        float((ratio < 1 - 1e-6).mean()),
        float(ratio.max()),
        texts,
    )


def test_losses_match_enumeration(plans: dict[str, Plan]) -> None:
    for first, second in (("identity", "wff"), ("wff", "identity"), ("querysmasher", "wff")):
        lost = losses(plans[first], plans[second])
        worse, better, worst, texts = enumerate_losses(plans[first], plans[second])
        assert (lost.worse, lost.better) == pytest.approx((worse, better))
        assert lost.worst == pytest.approx(worst)
        assert lost.query in texts
        assert lost.exact
        assert lost.groups["queries"].sum() == example_workload().queries
    same = losses(plans["wff"], plans["wff"])
    assert (same.worse, same.better, same.worst) == (0.0, 0.0, 1.0)


def test_losses_of_exact_answers_have_ratio_one() -> None:
    first, second = SCHEMA.names[:2]
    schema = SCHEMA.with_facts(invariants=[([first], [1] * SCHEMA[first].size)])
    workload = Workload(schema).add(first, "marginal").add(second, "marginal")
    low_budget, high_budget = (plan(workload, Budget(pcost=pcost)) for pcost in (1.0, 4.0))
    assert not low_budget.variances(0).any()
    by_group = losses(low_budget, high_budget).groups.set_index("group")
    assert by_group["worst ratio"].to_dict() == pytest.approx({0: 1.0, 1: 2.0})


def test_sampled_losses_are_near_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = Schema([Attribute.of_size(c, 24) for c in "abc"])
    workload = Workload.all_ways(schema, (1, 2, 3))
    first, second = (plan(workload, Budget(pcost=1.0), name) for name in ("querysmasher", "wff"))
    exact = losses(first, second)
    module = importlib.import_module("engine.analysis.error_distribution")
    monkeypatch.setattr(module, "MAX_UNSAMPLED_QUERIES", 1000)
    monkeypatch.setattr(module, "SAMPLED_QUERIES", 5000)
    sampled = losses(first, second)
    assert exact.exact
    assert not sampled.exact
    # a share of 5000 sampled queries has a standard error of at most 0.007
    assert sampled.worse == pytest.approx(exact.worse, abs=0.02)
    # the worst of the sampled queries is one of all queries
    assert 0.97 * exact.worst <= sampled.worst <= exact.worst * (1 + 1e-12)
    row = sampled.groups.iloc[0]
    group = row["group"]
    queries = [workload.describe_in_group(group, k) for k in range(workload.groups[group].count)]
    worst = queries.index(row["worst query"])
    ratio = math.sqrt(first.variances(group)[worst] / second.variances(group)[worst])
    assert ratio == pytest.approx(row["worst ratio"])


def test_losses_of_different_queries_are_refused(plans: dict[str, Plan]) -> None:
    other_plan = plan(Workload.all_ways(SCHEMA, (1,)), Budget(pcost=1.0))
    with pytest.raises(PlanError, match="different queries"):
        losses(plans["wff"], other_plan)
    with pytest.raises(PlanError, match="different queries"):
        ratio_picture({"a": plans["wff"], "b": other_plan}, 0)


def test_plan_diff_reports_request_and_groups() -> None:
    first = plan(example_workload(), Budget(pcost=1.0))
    assert plan_diff(first, first).words == ()
    assert "same typical error" in summary(first, first)
    # some groups are left out, one has another weight, and one is new
    changed_groups = (*example_workload().groups[1:-2], *example_workload(weight=3.0).groups[-3:-2])
    workload = Workload(SCHEMA, changed_groups).add(("x",), "total")
    second = plan(workload, Budget.zcdp(2.0), centers="tuned")
    difference = plan_diff(first, second)
    request = difference.request.set_index("what")
    assert request.loc["budget"].tolist() == ["pcost 1", "pcost 4"]
    assert request.loc["option centers"].tolist() == ["uniform", "tuned"]
    assert "Only" not in " ".join(difference.words)
    groups = difference.groups
    both = groups[groups["in"] == "both"]
    assert (groups["in"] == "only first").sum() + len(both) == len(first.workload.groups)
    assert (groups["in"] == "only second").sum() + len(both) == len(second.workload.groups)
    assert (both["ratio"] < 1).all()
    assert format_number(second.rmse) in summary(first, second)
    rmse_of_group = {
        (" × ".join(group.attributes) or "(total)", group.family_text): rmse
        for group, rmse in zip(first.workload.groups, first.by_group()["rmse"], strict=True)
    }
    for _, row in both.iterrows():
        expected = rmse_of_group[row["attributes"], row["family"]]
        assert row["RMSE, first"] == pytest.approx(expected)


def test_summary_of_unbounded_errors_has_no_percentage() -> None:
    finite = plan(Workload(SCHEMA).add(("age",)), Budget(pcost=1.0))
    groups = (*finite.workload.groups, *Workload(SCHEMA).add(("age", "x"), weight=0.0).groups)
    unbounded = plan(Workload(SCHEMA, groups), Budget(pcost=1.0))
    assert "same typical error, unbounded" in summary(unbounded, unbounded)
    assert "second plan is larger: unbounded counts" in summary(finite, unbounded)
    assert "second plan is smaller: 1.00 counts" in summary(unbounded, finite)


def test_plan_diff_names_conditions_on_one_attribute() -> None:
    conditions = ["age < 2", "age >= 3"]
    workload = Workload(SCHEMA).add("age")
    for condition in conditions:
        workload = workload.add("age", Custom(predicates=[condition]))
    first = plan(workload, Budget(pcost=1.0))
    second = plan(Workload(SCHEMA, workload.groups[:2]), Budget(pcost=1.0))
    difference = plan_diff(first, second)
    assert difference.groups["attributes"].tolist() == ["age", *conditions]
    assert difference.request["what"].tolist() == ["table age >= 3 (custom)"]


def test_plan_diff_reports_weights_schemas_and_neighbours() -> None:
    workload = Workload(SCHEMA).add(("age",), "range")
    first = plan(workload, Budget(pcost=1.0))
    heavy = plan(Workload(SCHEMA).add(("age",), "range", weight=2.0), Budget(pcost=1.0))
    assert plan_diff(first, heavy).words == ("1 table has another weight.",)
    coarse_schema = Schema([Attribute.of_size("age", 3), *SCHEMA.attributes[1:]])
    other_mechanism = plan(
        Workload(coarse_schema).add(("age",), "range"),
        Budget.pure(1.0),
        "hierarchical",
        max_records=1000,
    )
    words = plan_diff(first, other_mechanism).words
    assert "The budget differs: pcost 1 and pure epsilon 1." in words
    assert "The schemas differ in 1 attribute." in words
    assert "The cap on records differs: 100,000,000 and 1,000." in words
    two_rows = Budget(pcost=1.0, rows_per_person=2, neighbours="replace_one")
    assert plan_diff(first, plan(workload, two_rows)).words == (
        "The number of rows per person differs: 1 and 2.",
        "The definition of neighbours differs: add_remove and replace_one.",
    )
    with_labels = Schema([Attribute.categorical("age", list("abcdef")), *SCHEMA.attributes[1:]])
    categorical = plan(Workload(with_labels).add(("age",), "marginal"), Budget(pcost=1.0))
    request = plan_diff(first, categorical).request.set_index("what")
    assert request.loc["attribute age"].tolist() == ["numeric, 6 cells", "categorical, 6 cells"]
